/* What the programs of the tests share. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <pramfs.h>

#define MIB ((uint64_t)1 << 20)

/* The result of a call must be this one. */
#define GIVES(expected, call)                                                              \
    do {                                                                                   \
        int64_t wanted_ = (int64_t)(expected), given_ = (int64_t)(call);                   \
        if (wanted_ != given_) {                                                           \
            fprintf(stderr, "%s:%d: %s gave %" PRId64 ", not %" PRId64 " (%s)\n",          \
                    __FILE__, __LINE__, #call, given_, wanted_, pramfs_errormsg());        \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#define OK(call) GIVES(0, call)

#define CHECK(truth)                                                                       \
    do {                                                                                   \
        if (!(truth)) {                                                                    \
            fprintf(stderr, "%s:%d: not true: %s (%s)\n", __FILE__, __LINE__, #truth,      \
                    pramfs_errormsg());                                                    \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

/* The message about the last error has this part. */
#define SAYS(part) CHECK(strstr(pramfs_errormsg(), part) != NULL)

/* A new file system in a region. */
static inline struct pramfs_fs *fresh(const char *region)
{
    struct pramfs_fs *fs;

    OK(pramfs_format(region, 16 * MIB, NULL));
    OK(pramfs_open(&fs, region, NULL));
    return fs;
}

static inline struct pramfs_file *made(struct pramfs_fs *fs, const char *path)
{
    struct pramfs_file *file;

    OK(pramfs_file_open(&file, fs, path, O_RDWR | O_CREAT | O_EXCL, 0644));
    return file;
}

/* Says a line, and waits for an answer: the test looks, or changes something, meanwhile. */
static inline void ask(const char *what)
{
    char line[8];

    puts(what);
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

#endif
