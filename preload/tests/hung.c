/* A thread of the program waits for the server of the mount of its file, which is stopped,
   while the library asks that server for a lease. The file of the second argument is on
   another mount, whose server answers. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/wait.h>
#include "probe.h"

/* Reads before the library asks for a lease. */
#define READS 64

static volatile int reads;

static void *read_until_lease(void *fd)
{
    char c;
    for (; reads < 2 * READS; reads++)
        CHECK(pread(*(int *)fd, &c, 1, reads) == 1);
    return NULL;
}

static void works(int fd)
{
    char c;
    CHECK(pwrite(fd, "w", 1, 7) == 1 && pread(fd, &c, 1, 7) == 1 && c == 'w');
}

int main(int count, char **arguments)
{
    static char all[BLOCKS * BLOCK];
    pthread_t thread;
    int status;
    if (count != 3)
        return 2;
    path = arguments[1];
    make(path, BLOCKS);
    make(arguments[2], BLOCKS);
    int fd = opened(O_RDONLY), before = open(arguments[2], O_RDWR);
    /* From the page cache later, and not by offset, which would count. */
    CHECK(before >= 0 && read(fd, all, sizeof all) == sizeof all);
    works(before);
    SAY("ready\n");
    CHECK(getchar() == 'x' && pthread_create(&thread, NULL, read_until_lease, &fd) == 0);
    while (reads < READS)
        usleep(1000);
    usleep(100000);
    int other = open(arguments[2], O_RDWR);
    CHECK(other >= 0);
    works(other);
    works(before);
    CHECK(fsync(before) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int own = open(arguments[2], O_RDWR);
        CHECK(own >= 0);
        works(own);
        works(other);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(other) == 0 && close(before) == 0);
    SAY("%d\n", reads);
    CHECK(getchar() == 'x' && pthread_join(thread, NULL) == 0);
    SAY("%d\n", reads);
    return 0;
}
