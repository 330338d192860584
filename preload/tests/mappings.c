/* Says which mappings a call must make durable, and makes the call. The test compares that with the
   system calls of the process. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "probe.h"

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

/* Says which call comes next, on which first argument, and which mappings it must find durable. Pages
   are counted from a base. */
static void covers(const char *call, const char *first, char *base, const char *pages)
{
    SAY("%s %s:", call, first);
    int at, n, read;
    for (; sscanf(pages, "%d+%d%n", &at, &n, &read) == 2; pages += read)
        SAY(" %lx+%d", (unsigned long)(base + at * BLOCK), n * BLOCK);
    SAY("\n");
}

static const char *number(unsigned long n, int is_address)
{
    static char text[32];
    sprintf(text, is_address ? "0x%lx" : "%ld", n);
    return text;
}

#define SYNC(call, fd, pages) (covers(#call, number(fd, 0), base, pages), call(fd))

static void *protects(void *page)
{
    for (;;)
        CHECK(mprotect(page, BLOCK, PROT_READ | PROT_WRITE) == 0);
    return NULL;
}

/* Children are forked while another thread changes a mapping whose lease was given up. */
static void forks(void)
{
    int fd = opened(O_RDWR), status;
    pthread_t thread;
    char *base = mmap(NULL, 8 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(base != MAP_FAILED && fcntl(fd, F_SETFL, O_APPEND) == 0);
    base[0] = '1';
    CHECK(pthread_create(&thread, NULL, protects, base + 7 * BLOCK) == 0);
    for (int i = 0; i < 20; i++) {
        covers("fsync", number(fd, 0), base, "0+8");
        covers("munmap", number((unsigned long)(base + 2 * BLOCK), 1), base, "2+1");
        covers("fdatasync", number(fd, 0), base, "0+2 3+5");
        pid_t child = i % 2 ? fork() : _Fork();
        if (child == 0) {
            alarm(60);
            errno = 0;
            _exit(fsync(fd) != 0 || munmap(base + 2 * BLOCK, BLOCK) != 0 || fdatasync(fd) != 0
                  || errno != 0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    SAY("done\n");
    _exit(0);
}

/* Mappings whose lease was given up, and what becomes of them. Each call that makes the file durable
   finds those that are there. */
int main(int count, char **arguments)
{
    if (count < 2)
        return 2;
    path = arguments[1];
    make(path, BLOCKS);
    if (count == 3)
        forks();
    const int both = PROT_READ | PROT_WRITE;
    /* All lie in one range, so that their order is known. */
    char *base = mmap(NULL, 128 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *second = malloc(strlen(path) + 2);
    CHECK(base != MAP_FAILED && sprintf(second, "%s2", path) > 0);
    make(second, 8);
    int fd = opened(O_RDWR), status;
    char *map = mmap(NULL, 8 * BLOCK, both, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(mremap(map, 8 * BLOCK, 8 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, base) == base);
    /* With a lease too. */
    map = mmap(NULL, 8 * BLOCK, both, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    covers("munmap", number((unsigned long)map, 1), map, "0+8");
    CHECK(munmap(map, 8 * BLOCK) == 0);
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
    base[0] = '1';
    CHECK(SYNC(fsync, fd, "0+8") == 0 && SYNC(fdatasync, fd, "0+8") == 0);
    int other = opened(O_RDONLY);
    CHECK(SYNC(fsync, other, "0+8") == 0 && SYNC(syncfs, other, "0+8") == 0);
    covers("sync_file_range", number(fd, 0), base, "0+8");
    CHECK(sync_file_range(fd, 0, BLOCK, SYNC_FILE_RANGE_WRITE) == 0);
    covers("sync", "", base, "0+8");
    sync();
    covers("fsync", number(fd, 0), base, "0+8");
    CHECK(syscall(SYS_fsync, fd) == 0);
    covers("sync_file_range", number(fd, 0), base, "0+8");
    CHECK(syscall(SYS_sync_file_range, fd, 0, BLOCK, SYNC_FILE_RANGE_WRITE) == 0);
    covers("sync", "", base, "0+8");
    CHECK(syscall(SYS_sync) == 0);
    /* Calls that fail change nothing. */
    CHECK(munmap(base + 1, BLOCK) < 0);
    CHECK(mremap(base, 4 * BLOCK, 4 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, base + BLOCK) == MAP_FAILED);
    CHECK(mmap(base, BLOCK, both, MAP_SHARED | MAP_FIXED, 1000, 0) == MAP_FAILED);
    CHECK(mprotect(base + 1, BLOCK, PROT_NONE) < 0);
    CHECK(SYNC(fsync, fd, "0+8") == 0);
    /* What goes is made durable first. */
    covers("munmap", number((unsigned long)(base + 2 * BLOCK), 1), base, "2+1");
    CHECK(munmap(base + 2 * BLOCK, BLOCK) == 0);
    CHECK(SYNC(fsync, fd, "0+2 3+5") == 0);
    /* Moved, shortened in its place, shortened on the way, and replaced. */
    CHECK(mremap(base + 3 * BLOCK, 2 * BLOCK, 2 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, base + 20 * BLOCK)
          == base + 20 * BLOCK);
    CHECK(SYNC(fsync, fd, "0+2 5+3 20+2") == 0);
    /* To a length that is not whole pages: the kernel cuts the third one. */
    errno = 0;
    covers("mremap", number((unsigned long)(base + 5 * BLOCK), 1), base, "7+1");
    CHECK(mremap(base + 5 * BLOCK, 3 * BLOCK - 7, BLOCK + 1, 0) == base + 5 * BLOCK && errno == 0);
    CHECK(SYNC(fsync, fd, "0+2 5+2 20+2") == 0);
    covers("mremap", number((unsigned long)(base + 5 * BLOCK), 1), base, "");
    CHECK(mremap(base + 5 * BLOCK, 2 * BLOCK, BLOCK + 1, 0) == base + 5 * BLOCK);
    covers("mremap", number((unsigned long)(base + 5 * BLOCK), 1), base, "6+1");
    CHECK(mremap(base + 5 * BLOCK, 2 * BLOCK, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, base + 30 * BLOCK)
          == base + 30 * BLOCK);
    CHECK(SYNC(fsync, fd, "0+2 20+2 30+1") == 0);
    CHECK(mmap(base + 21 * BLOCK, BLOCK, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    CHECK(SYNC(fsync, fd, "0+2 20+1 30+1") == 0);
    /* A mapping for reading may have been one for stores. */
    CHECK(mprotect(base, 2 * BLOCK, PROT_READ) == 0);
    CHECK(SYNC(fsync, fd, "0+2 20+1 30+1") == 0);
    /* In two places at once, where the kernel can. */
    char *twice = mremap(base, 2 * BLOCK, 2 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP,
                         base + 40 * BLOCK);
    const char *all = twice == MAP_FAILED ? "0+2 20+1 30+1" : "0+2 20+1 30+1 40+2";
    CHECK(SYNC(fsync, fd, all) == 0);
    /* A forked child has them too. */
    pid_t child = fork();
    if (child == 0)
        _exit(SYNC(fsync, fd, all) != 0 || SYNC(fdatasync, other, all) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(close(fd) == 0 && SYNC(fsync, other, all) == 0);
    /* One that is only read needs nothing, until a part of it becomes writable. */
    int reader = open(second, O_RDWR);
    map = mmap(NULL, 8 * BLOCK, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(reader >= 0 && map != MAP_FAILED);
    CHECK(mremap(map, 8 * BLOCK, 8 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, base + 50 * BLOCK) != MAP_FAILED);
    CHECK(fcntl(reader, F_SETFL, O_APPEND) == 0);
    CHECK(SYNC(fsync, reader, "") == 0);
    CHECK(syscall(SYS_pkey_mprotect, base + 51 * BLOCK, BLOCK, both, -1) == 0);
    CHECK(SYNC(fsync, reader, "51+1") == 0);
    CHECK(mprotect(base + 54 * BLOCK, 2 * BLOCK, both) == 0);
    CHECK(SYNC(fsync, reader, "51+1 54+2") == 0);
    /* The kernel has it made writable up to a mapping that must not be. */
    int program = open("/proc/self/exe", O_RDONLY);
    char *next = base + 58 * BLOCK;
    CHECK(program >= 0 && mmap(next, BLOCK, PROT_READ, MAP_SHARED | MAP_FIXED, program, 0) == next);
    CHECK(mprotect(base + 57 * BLOCK, 2 * BLOCK, both) < 0 && errno == EACCES);
    CHECK(SYNC(fsync, reader, "51+1 54+2 57+1") == 0);
    /* Up to where nothing is. */
    CHECK(munmap(next, 2 * BLOCK) == 0);
    CHECK(mprotect(base + 56 * BLOCK, 4 * BLOCK, both) < 0 && errno == ENOMEM);
    CHECK(SYNC(fsync, reader, "51+1 54+4") == 0);
    SAY("done\n");
    return 0;
}
