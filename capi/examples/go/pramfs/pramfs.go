// Package pramfs is a small binding of libpramfs for Go: enough for a program that keeps a log and
// numbers in persistent memory, and a start for one that needs more.
//
// The library tells the reason of an error for each thread of the system, and Go moves goroutines
// among threads. So each call that can fail runs on one thread until its message has been read.
package pramfs

/*
#cgo pkg-config: pramfs
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <pramfs.h>
*/
import "C"

import (
	"errors"
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Error is an error of the library: its errno, and its message. errors.Is(err, fs.ErrNotExist) and
// the like work.
type Error struct {
	Errno   syscall.Errno
	Message string
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }

// call runs a function of the library that returns a number, or a negative errno.
func call(function func() C.int64_t) (int64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	result := int64(function())
	if result < 0 {
		return result, &Error{syscall.Errno(-result), C.GoString(C.pramfs_errormsg())}
	}
	return result, nil
}

func done(function func() C.int) error {
	_, err := call(func() C.int64_t { return C.int64_t(function()) })
	return err
}

// ErrClosed is the error of a call on a closed handle.
var ErrClosed = os.ErrClosed

// Format makes a region of size bytes: a new file. It fails with EEXIST if there is one.
func Format(region string, size uint64) error {
	name := C.CString(region)
	defer C.free(unsafe.Pointer(name))
	return done(func() C.int { return C.pramfs_format(name, C.uint64_t(size), nil) })
}

// FS is a file system that is open in this process.
type FS struct{ handle *C.struct_pramfs_fs }

// Open opens the file system of a region. After a crash, it is recovered.
func Open(region string) (*FS, error) {
	name := C.CString(region)
	defer C.free(unsafe.Pointer(name))
	fs := new(FS)
	if err := done(func() C.int { return C.pramfs_open(&fs.handle, name, nil) }); err != nil {
		return nil, err
	}
	return fs, nil
}

// Close closes the file system. It is unmounted when its last file and map is closed.
func (fs *FS) Close() error {
	handle := fs.handle
	if handle == nil {
		return ErrClosed
	}
	fs.handle = nil
	return done(func() C.int { return C.pramfs_close(handle) })
}

// File is an open file: an io.ReaderAt, an io.WriterAt, and an io.Writer that appends. Goroutines
// may share it.
type File struct {
	handle *C.struct_pramfs_file
	name   string
}

var (
	_ io.ReaderAt = (*File)(nil)
	_ io.WriterAt = (*File)(nil)
	_ io.Writer   = (*File)(nil)
)

// Create opens a file for reading and writing, and makes it if it does not exist.
func (fs *FS) Create(path string) (*File, error) {
	if fs.handle == nil {
		return nil, ErrClosed
	}
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	file := &File{name: path}
	err := done(func() C.int {
		return C.pramfs_file_open(&file.handle, fs.handle, name, C.O_RDWR|C.O_CREAT, 0o644)
	})
	if err != nil {
		return nil, err
	}
	return file, nil
}

// ReadAt reads at an offset. It returns io.EOF with fewer bytes at the end of the file.
func (f *File) ReadAt(p []byte, offset int64) (int, error) {
	if f.handle == nil {
		return 0, ErrClosed
	}
	if offset < 0 {
		return 0, &os.PathError{Op: "read", Path: f.name, Err: errors.New("negative offset")}
	}
	read := 0
	for read < len(p) {
		rest := p[read:]
		n, err := call(func() C.int64_t {
			return C.int64_t(C.pramfs_file_read(f.handle, unsafe.Pointer(&rest[0]),
				C.size_t(len(rest)), C.uint64_t(offset+int64(read))))
		})
		if err != nil {
			return read, err
		}
		if n == 0 {
			return read, io.EOF
		}
		read += int(n)
	}
	return read, nil
}

// WriteAt writes all bytes at an offset. They are durable when it returns.
func (f *File) WriteAt(p []byte, offset int64) (int, error) {
	if f.handle == nil {
		return 0, ErrClosed
	}
	if offset < 0 {
		return 0, &os.PathError{Op: "write", Path: f.name, Err: errors.New("negative offset")}
	}
	written := 0
	for written < len(p) {
		rest := p[written:]
		n, err := call(func() C.int64_t {
			return C.int64_t(C.pramfs_file_write(f.handle, unsafe.Pointer(&rest[0]),
				C.size_t(len(rest)), C.uint64_t(offset+int64(written))))
		})
		if err != nil {
			return written, err
		}
		if n == 0 {
			return written, io.ErrShortWrite
		}
		written += int(n)
	}
	return written, nil
}

// Write appends all bytes; appends of several goroutines do not mix.
func (f *File) Write(p []byte) (int, error) {
	if f.handle == nil {
		return 0, ErrClosed
	}
	if len(p) == 0 {
		return 0, nil
	}
	err := done(func() C.int {
		return C.pramfs_file_append(f.handle, unsafe.Pointer(&p[0]), C.size_t(len(p)), nil)
	})
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

// Truncate sets the size. Added bytes are zeros.
func (f *File) Truncate(size uint64) error {
	if f.handle == nil {
		return ErrClosed
	}
	return done(func() C.int { return C.pramfs_file_truncate(f.handle, C.uint64_t(size)) })
}

// Close closes the file. Its maps stay valid.
func (f *File) Close() error {
	handle := f.handle
	if handle == nil {
		return ErrClosed
	}
	f.handle = nil
	return done(func() C.int { return C.pramfs_file_close(handle) })
}

// Map is a range of a file as memory: the medium itself.
type Map struct {
	handle *C.struct_pramfs_map
	bytes  []byte
}

// Map maps a range of the file for reading and storing.
func (f *File) Map(offset, length uint64) (*Map, error) {
	if f.handle == nil {
		return nil, ErrClosed
	}
	m := new(Map)
	err := done(func() C.int {
		return C.pramfs_map_open(&m.handle, f.handle, C.uint64_t(offset), C.uint64_t(length), 0,
			C.PROT_READ|C.PROT_WRITE)
	})
	if err != nil {
		return nil, err
	}
	m.bytes = unsafe.Slice((*byte)(C.pramfs_map_address(m.handle)), int(C.pramfs_map_len(m.handle)))
	return m, nil
}

// Bytes returns the bytes of the medium. They must not be used after Close.
func (m *Map) Bytes() []byte { return m.bytes }

// Word returns a number of 8 bytes at an offset, which is a multiple of 8, for the functions of
// sync/atomic. It must not be used after Close.
func (m *Map) Word(offset uint64) *atomic.Uint64 {
	if offset%8 != 0 {
		panic("pramfs: the offset of a word is not a multiple of 8")
	}
	return (*atomic.Uint64)(unsafe.Pointer(&m.bytes[offset : offset+8][0]))
}

// Persist makes the stores to a range durable.
func (m *Map) Persist(offset, length uint64) error {
	if m.handle == nil {
		return ErrClosed
	}
	return done(func() C.int {
		return C.pramfs_map_persist(m.handle, C.uint64_t(offset), C.uint64_t(length))
	})
}

// Close ends the map.
func (m *Map) Close() error {
	handle := m.handle
	if handle == nil {
		return ErrClosed
	}
	m.handle, m.bytes = nil, nil
	return done(func() C.int { return C.pramfs_map_close(handle) })
}
