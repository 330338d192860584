module example.org/counters

go 1.19
