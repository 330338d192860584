/*
 * A log and a table of counters in a region, from C.
 *
 *   cc -o log_and_counters log_and_counters.c $(pkg-config --cflags --libs pramfs)
 *   ./log_and_counters region
 *
 * The first run makes the region. Each run appends a line to the log, counts itself in a
 * mapped file, and reads both back.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <pramfs.h>

enum { REGION = 16 << 20, TABLE = 4096 };

/* Ends the program if a call has failed. */
static void must(int64_t result)
{
    if (result < 0) {
        fprintf(stderr, "log_and_counters: %s\n", pramfs_errormsg());
        exit(EXIT_FAILURE);
    }
}

static struct pramfs_fs *open_or_make(const char *region)
{
    struct pramfs_fs *fs;
    int result = pramfs_open(&fs, region, NULL);

    if (result == -ENOENT) {
        must(pramfs_format(region, REGION, NULL));
        result = pramfs_open(&fs, region, NULL);
    }
    must(result);
    return fs;
}

/* Counts up the first number of a mapped file, and returns it. */
static uint64_t count_run(struct pramfs_fs *fs)
{
    struct pramfs_file *file;
    struct pramfs_map *map;
    uint64_t *runs, run;

    must(pramfs_file_open(&file, fs, "/counters", O_RDWR | O_CREAT, 0644));
    must(pramfs_file_truncate(file, TABLE));
    must(pramfs_map_open(&map, file, 0, TABLE, 0, PROT_READ | PROT_WRITE));
    /* The map keeps what it needs of the file. */
    must(pramfs_file_close(file));

    /* The medium itself. The store is durable after the call that follows it. */
    runs = pramfs_map_address(map);
    run = ++runs[0];
    must(pramfs_map_persist(map, 0, sizeof *runs));
    must(pramfs_map_close(map));
    return run;
}

static void log_run(struct pramfs_fs *fs, uint64_t run)
{
    struct pramfs_file *log;
    char line[64], *all;
    uint64_t size;
    int len = snprintf(line, sizeof line, "run %" PRIu64 "\n", run);

    must(pramfs_file_open(&log, fs, "/log", O_RDWR | O_CREAT | O_APPEND, 0644));
    /* Durable when it returns. */
    must(pramfs_file_append(log, line, (size_t)len, NULL));

    must(pramfs_file_size(log, &size));
    all = malloc(size);
    if (all == NULL)
        abort();
    must(pramfs_file_read(log, all, size, 0));
    fwrite(all, 1, size, stdout);
    free(all);
    must(pramfs_file_close(log));
}

int main(int argc, char **argv)
{
    struct pramfs_fs *fs;

    if (argc != 2) {
        fprintf(stderr, "usage: log_and_counters REGION\n");
        return 2;
    }
    fs = open_or_make(argv[1]);
    log_run(fs, count_run(fs));
    must(pramfs_close(fs));
    return 0;
}
