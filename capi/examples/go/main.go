// A log and a mapped counter, from Go: as log_and_counters.c.
//
//	cd capi/examples/go && go build -o counters . && ./counters region
//
// cgo finds the library by pkg-config: make install-lib.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"example.org/counters/pramfs"
)

const (
	size       = 16 << 20
	table      = 4096
	runs       = 0 // offsets in the table
	visits     = 64
	visitors   = 8
	perVisitor = 1000
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: counters REGION")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "counters: %v\n", err)
		os.Exit(1)
	}
}

func run(region string) (err error) {
	// The second run finds the region of the first.
	if err := pramfs.Format(region, size); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	system, err := pramfs.Open(region)
	if err != nil {
		return err
	}
	defer func() { err = keep(err, system.Close()) }()
	file, err := system.Create("/table")
	if err != nil {
		return err
	}
	defer func() { err = keep(err, file.Close()) }()
	if err := file.Truncate(table); err != nil {
		return err
	}
	m, err := file.Map(0, table)
	if err != nil {
		return err
	}
	defer func() { err = keep(err, m.Close()) }()

	// Stores of the processor, from several goroutines.
	var all sync.WaitGroup
	for i := 0; i < visitors; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for i := 0; i < perVisitor; i++ {
				m.Word(visits).Add(1)
			}
		}()
	}
	all.Wait()
	number := m.Word(runs).Add(1)
	if err := m.Persist(0, table); err != nil { // durable from here on
		return err
	}

	log, err := system.Create("/log")
	if err != nil {
		return err
	}
	defer func() { err = keep(err, log.Close()) }()
	if _, err := fmt.Fprintf(log, "run %d: %d visits\n", number, m.Word(visits).Load()); err != nil {
		return err
	}
	lines := make([]byte, 4096)
	n, _ := log.ReadAt(lines, 0)
	_, err = os.Stdout.Write(lines[:n])
	return err
}

// keep returns the first error of two.
func keep(first, second error) error {
	if first != nil {
		return first
	}
	return second
}
