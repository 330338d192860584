/* What the programs of these tests share. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK 4096
#define BLOCKS 64

static char *path;

#define SAY(...) (printf(__VA_ARGS__), fflush(stdout))
#define CHECK(what) \
    do { \
        if (!(what)) { \
            SAY("line %d: %s: errno %d\n", __LINE__, #what, errno); \
            exit(1); \
        } \
    } while (0)

static void make(const char *name, int blocks)
{
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0644);
    CHECK(fd >= 0);
    for (int i = 0; i < blocks; i++) {
        char block[BLOCK];
        memset(block, 'a' + i % 26, BLOCK);
        CHECK(write(fd, block, BLOCK) == BLOCK);
    }
    CHECK(close(fd) == 0);
}

static int opened(int flags)
{
    int fd = open(path, flags, 0644);
    CHECK(fd >= 0);
    return fd;
}
