/* Another library that is loaded beside: it counts calls, and passes them on. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/types.h>

static int opens, reads;

int open(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    static int (*next)(const char *, int, mode_t);
    if (!next)
        next = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open");
    opens++;
    return next(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    static int (*next)(const char *, int, mode_t);
    if (!next)
        next = (int (*)(const char *, int, mode_t))dlsym(RTLD_NEXT, "open64");
    opens++;
    return next(path, flags, mode);
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    static ssize_t (*next)(int, void *, size_t, off_t);
    if (!next)
        next = (ssize_t (*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, "pread");
    reads++;
    return next(fd, to, n, at);
}

__attribute__((destructor)) static void say(void)
{
    fprintf(stderr, "beside: %d opens, %d reads\n", opens, reads);
}
