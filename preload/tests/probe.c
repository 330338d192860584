/* Uses a file as programs do, and prints what it sees. The tests run it on a mount with the
   preload library, and on tmpfs without it: the output must be the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include "probe.h"

/* Set in a handler that could have interrupted malloc: whoever calls it then waits for ever. */
static volatile int in_malloc;

static void may_allocate(void)
{
    static const char what[] = "memory of the C library is used in a handler\n";
    if (in_malloc) {
        (void)!write(1, what, sizeof what - 1);
        abort();
    }
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

void *malloc(size_t n)
{
    may_allocate();
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    may_allocate();
    return __libc_calloc(n, size);
}

void *realloc(void *old, size_t n)
{
    may_allocate();
    return __libc_realloc(old, n);
}

void free(void *old)
{
    may_allocate();
    __libc_free(old);
}

static uint64_t sum(const void *bytes, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h;
}

/* The whole file, through a descriptor of its own. */
static void show(const char *what)
{
    int fd = opened(O_RDONLY);
    static char all[(BLOCKS + 256) * BLOCK];
    ssize_t n = pread(fd, all, sizeof all, 0);
    SAY("%s: %zd bytes, %016llx\n", what, n, (unsigned long long)sum(all, n < 0 ? 0 : n));
    close(fd);
}

static unsigned next_random(void)
{
    static unsigned state = 12345;
    state = state * 1103515245 + 12345;
    return state >> 8;
}

static void data(void)
{
    int fd = opened(O_RDWR);
    char *buf = malloc(8 * BLOCK), *other = malloc(8 * BLOCK);
    for (int i = 0; i < 4000; i++) {
        size_t n = next_random() % (3 * BLOCK) + 1;
        off_t at = next_random() % ((BLOCKS + 4) * BLOCK);
        memset(buf, next_random(), n);
        ssize_t done = 0;
        struct iovec two[2] = {{buf, n / 2}, {other, n - n / 2}};
        memset(other, 7, n);
        switch (next_random() % 12) {
        case 0: done = pwrite(fd, buf, n, at); break;
        case 1: done = pread(fd, buf, n, at); break;
        case 2: done = lseek(fd, at, SEEK_SET); break;
        case 3: done = read(fd, buf, n); break;
        case 4: done = write(fd, buf, n); break;
        case 5: done = preadv(fd, two, 2, at); break;
        case 6: done = pwritev(fd, two, 2, at); break;
        case 7: done = readv(fd, two, 2); break;
        case 8: done = i % 50 ? 0 : ftruncate(fd, at); break;
        case 9: done = fsync(fd); break;
        case 10: done = i % 20 ? 0 : fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n); break;
        case 11: done = pwritev2(fd, two, 2, at, i % 2 ? RWF_DSYNC : 0); break;
        }
        off_t position = lseek(fd, 0, SEEK_CUR);
        if (i % 97 == 0)
            SAY("%d: %zd at %lld, %016llx\n", i, done, (long long)position,
                (unsigned long long)(sum(buf, n) ^ sum(other, n)));
    }
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    SAY("size %lld\n", (long long)st.st_size);
    close(fd);
    show("data");
}

static void errors(void)
{
    char c[16];
    int fd = opened(O_RDWR);
    errno = 0;
    CHECK(pread(fd, c, 16, 0) == 16 && errno == 0);
    SAY("%zd %d\n", pread(fd, c, 16, -1), errno);
    SAY("%zd %d\n", pwrite(fd, c, 16, -1), errno);
    SAY("%zd\n", pread(fd, c, 16, (off_t)BLOCKS * BLOCK));
    SAY("%zd\n", pread(fd, c, 16, (off_t)BLOCKS * BLOCK - 3));
    SAY("%zd\n", pread(fd, c, 0, 0));
    int reader = opened(O_RDONLY);
    SAY("%zd %d\n", pwrite(reader, c, 1, 0), errno);
    int writer = opened(O_WRONLY);
    SAY("%zd %d\n", pread(writer, c, 1, 0), errno);
    close(writer);
    close(reader);
    close(fd);
    SAY("%zd %d\n", pread(fd, c, 1, 0), errno);
    SAY("%zd %d\n", pread(-1, c, 1, 0), errno);
    SAY("%zd %d\n", pread(1 << 20, c, 1, 0), errno);
    SAY("%d %d\n", close(fd), errno);
    int nowhere = open(path, O_PATH);
    SAY("%zd %d\n", pread(nowhere, c, 1, 0), errno);
}

static void maps(void)
{
    int fd = opened(O_RDWR);
    char *map = mmap(NULL, BLOCKS * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    char *part = mmap(NULL, 3 * BLOCK, PROT_READ, MAP_SHARED, fd, 5 * BLOCK);
    CHECK(part != MAP_FAILED);
    memset(map + 6 * BLOCK, '!', 100);
    SAY("%c %c %c\n", map[0], part[BLOCK], part[BLOCK + 100]);
    char c;
    CHECK(pread(fd, &c, 1, 6 * BLOCK) == 1);
    SAY("%c\n", c);
    CHECK(pwrite(fd, "?", 1, 7 * BLOCK) == 1);
    SAY("%c\n", part[2 * BLOCK]);
    CHECK(msync(map, BLOCKS * BLOCK, MS_SYNC) == 0);
    CHECK(fdatasync(fd) == 0);
    close(fd);
    /* After its descriptor, in pieces, moved, in a child. */
    CHECK(munmap(map + 10 * BLOCK, 10 * BLOCK) == 0);
    map[0] = 'P';
    if (fork() == 0) {
        map[1] = 'C';
        _exit(part[0] == 'f' ? 0 : 1);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    SAY("%c%c\n", map[0], map[1]);
    char *moved = mremap(part, 3 * BLOCK, 2 * BLOCK, MREMAP_MAYMOVE);
    CHECK(moved != MAP_FAILED);
    SAY("%c\n", moved[BLOCK]);
    CHECK(munmap(moved, 2 * BLOCK) == 0);
    CHECK(mprotect(map, BLOCK, PROT_READ) == 0);
    CHECK(munmap(map, BLOCKS * BLOCK) == 0);
    /* Past the end, private, at an address. */
    fd = opened(O_RDWR);
    CHECK(lseek(fd, 77, SEEK_SET) == 77);
    map = mmap(NULL, 2 * BLOCKS * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    SAY("%s\n", map == MAP_FAILED ? strerror(errno) : "mapped past the end");
    if (map != MAP_FAILED) {
        CHECK(pwrite(fd, "new", 3, BLOCKS * BLOCK) == 3);
        SAY("%c\n", map[BLOCKS * BLOCK + 2]);
        map[2] = '2';
        CHECK(msync(map, BLOCK, MS_SYNC) == 0);
        munmap(map, 2 * BLOCKS * BLOCK);
    }
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
    show("maps");
    fd = opened(O_RDWR);
    map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(map != MAP_FAILED);
    map[3] = 'x';
    CHECK(pread(fd, &c, 1, 3) == 1);
    SAY("%c\n", c);
    close(fd);
    show("maps");
}

static void forks(void)
{
    int fd = opened(O_RDWR);
    char c[8] = "";
    CHECK(pread(fd, c, 4, 0) == 4);
    CHECK(read(fd, c, 4) == 4);
    if (fork() == 0) {
        /* The position is shared. */
        CHECK(read(fd, c, 4) == 4);
        CHECK(pwrite(fd, "child", 5, 2 * BLOCK) == 5);
        int own = opened(O_RDWR);
        for (int i = 0; i < 20; i++)
            CHECK(pwrite(own, "own", 3, 3 * BLOCK) == 3 && pread(own, c, 4, i) == 4);
        CHECK(close(fd) == 0 && close(own) == 0);
        _exit(0);
    }
    int status;
    CHECK(wait(&status) > 0 && status == 0);
    CHECK(read(fd, c, 4) == 4);
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    char found[8] = "";
    CHECK(pread(fd, found, 5, 2 * BLOCK) == 5);
    SAY("%s\n", found);
    pid_t child = vfork();
    if (child == 0) {
        close(fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(pwrite(fd, "after", 5, 0) == 5);
    close(fd);
    show("forks");
}

static void descriptors(void)
{
    char c[8] = "";
    int fd = opened(O_RDWR);
    SAY("%d\n", fd);
    int copy = dup(fd), high = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    SAY("%d %d\n", copy, high);
    CHECK(pwrite(copy, "copy", 4, 0) == 4 && pwrite(high, "high", 4, 10) == 4);
    CHECK(close(fd) == 0);
    CHECK(pread(copy, c, 4, 10) == 4);
    SAY("%s\n", c);
    /* Another file under the same numbers. */
    int null = open("/dev/zero", O_RDWR);
    SAY("%d\n", null);
    CHECK(pread(null, c, 4, 0) == 4);
    SAY("%d\n", c[0]);
    CHECK(dup2(null, copy) == copy);
    CHECK(pread(copy, c, 4, 0) == 4);
    SAY("%d\n", c[0]);
    CHECK(dup3(high, copy, O_CLOEXEC) == copy);
    CHECK(pread(copy, c, 4, 0) == 4);
    SAY("%s\n", c);
    CHECK(fcntl(high, F_SETFL, O_APPEND) == 0);
    CHECK(pwrite(copy, "appended", 8, 0) == 8);
    SAY("%x\n", fcntl(high, F_GETFL));
    close(high);
    close(copy);
    close(null);
    FILE *stream = fopen(path, "r+");
    CHECK(stream);
    CHECK(fputs("stdio", stream) >= 0 && fclose(stream) == 0);
    fd = opened(O_RDWR);
    stream = fdopen(fd, "r+");
    CHECK(pwrite(fd, "X", 1, 4 * BLOCK) == 1 && fgetc(stream) == 's');
    CHECK(fclose(stream) == 0);
    null = open("/dev/zero", O_RDONLY);
    CHECK(pread(null, c, 4, 4 * BLOCK) == 4);
    SAY("%d %d\n", null == fd, c[0]);
    close(null);
    show("descriptors");
}

static void closes_all(void)
{
    char c[8] = "";
    int fd = opened(O_RDWR);
    CHECK(pwrite(fd, "one", 3, 0) == 3);
    for (int i = 3; i < 1024; i++)
        close(i);
    SAY("%zd %d\n", pread(fd, c, 3, 0), errno);
    fd = opened(O_RDWR);
    SAY("%d\n", fd);
    CHECK(pwrite(fd, "two", 3, 0) == 3 && pread(fd, c, 3, 0) == 3);
    CHECK(close_range(3, ~0u, 0) == 0);
    SAY("%zd %d\n", pread(fd, c, 3, 0), errno);
    fd = opened(O_RDWR);
    closefrom(3);
    fd = opened(O_RDWR);
    SAY("%d\n", fd);
    /* Further blocks are asked for over the connection. */
    CHECK(ftruncate(fd, BLOCK) == 0 && ftruncate(fd, 9 * BLOCK) == 0);
    for (int i = 0; i < 9; i++)
        CHECK(pwrite(fd, "three", 5, i * BLOCK) == 5);
    close(fd);
    show("closes_all");
}

static void *overwrite(void *argument)
{
    int fd = opened(O_RDWR);
    long me = (long)argument;
    char block[BLOCK];
    for (int round = 0; round < 200; round++) {
        for (int i = (int)me; i < BLOCKS; i += 8) {
            memset(block, 'A' + me, BLOCK);
            CHECK(pwrite(fd, block, BLOCK, i * BLOCK) == BLOCK);
            memset(block, 0, BLOCK);
            CHECK(pread(fd, block, BLOCK, i * BLOCK) == BLOCK && block[77] == 'A' + me);
        }
        if (round % 20 == 0) {
            close(fd);
            fd = opened(O_RDWR);
        }
    }
    close(fd);
    return NULL;
}

static int shared_fd;

static void *consume(void *argument)
{
    uint64_t *total = argument, record;
    while (read(shared_fd, &record, sizeof record) == sizeof record)
        *total += record;
    return NULL;
}

static void threads(void)
{
    pthread_t all[8];
    for (long i = 0; i < 8; i++)
        CHECK(pthread_create(&all[i], NULL, overwrite, (void *)i) == 0);
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], NULL);
    show("threads");
    /* Each record is read once, by threads and processes that share the position. */
    int fd = opened(O_RDWR);
    for (uint64_t i = 0; i < BLOCKS * BLOCK / 8; i++)
        CHECK(pwrite(fd, &i, 8, i * 8) == 8);
    shared_fd = opened(O_RDWR);
    uint64_t totals[8] = {0}, whole = 0;
    int back[2];
    CHECK(pipe(back) == 0);
    if (fork() == 0) {
        consume(&totals[0]);
        CHECK(write(back[1], &totals[0], 8) == 8);
        _exit(0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, consume, &totals[i]) == 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(all[i], NULL);
        whole += totals[i];
    }
    CHECK(read(back[0], &totals[5], 8) == 8);
    SAY("%llu\n", (unsigned long long)(whole + totals[5]));
}

static int is_locked(const char *name)
{
    int status;
    if (fork() == 0) {
        int fd = open(name, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 1};
        CHECK(fcntl(fd, F_GETLK, &lock) == 0);
        _exit(lock.l_type != F_UNLCK);
    }
    CHECK(wait(&status) > 0);
    return WEXITSTATUS(status);
}

static void locks(void)
{
    /* A second open of a locked file must not release the lock. */
    char c;
    for (int size = 0; size < 2; size++) {
        unlink(path);
        make(path, size);
        int fd = opened(O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 1};
        CHECK(fcntl(fd, F_SETLK, &lock) == 0);
        CHECK(pwrite(fd, "x", 1, 0) == 1);
        SAY("%d\n", is_locked(path));
        int second = opened(O_RDWR);
        for (int i = 0; i < 50; i++)
            CHECK(pread(second, &c, 1, 0) == 1 && pwrite(second, "y", 1, 0) == 1);
        SAY("%d\n", is_locked(path));
        int reader = opened(O_RDONLY);
        for (int i = 0; i < 50; i++)
            CHECK(pread(reader, &c, 1, 0) == 1);
        SAY("%d\n", is_locked(path));
        close(second);
        SAY("%d\n", is_locked(path));
        close(reader);
        close(fd);
    }
}

static void appends(void)
{
    int status;
    for (int child = 0; child < 4; child++) {
        if (fork() == 0) {
            int fd = opened(O_RDWR | O_APPEND);
            char record[32];
            for (int i = 0; i < 200; i++) {
                memset(record, '0' + child, sizeof record);
                CHECK(write(fd, record, sizeof record) == sizeof record);
            }
            _exit(0);
        }
    }
    for (int child = 0; child < 4; child++)
        CHECK(wait(&status) > 0 && status == 0);
    int fd = opened(O_RDWR), counts[4] = {0};
    char record[32];
    for (int i = 0; i < 800; i++) {
        CHECK(pread(fd, record, 32, BLOCKS * BLOCK + i * 32) == 32);
        CHECK(record[0] == record[31]);
        counts[record[0] - '0']++;
    }
    SAY("%d %d %d %d\n", counts[0], counts[1], counts[2], counts[3]);
    close(fd);
}

static volatile int handled;
static int handler_fd;

static void handler(int number)
{
    char c;
    int saved = errno;
    CHECK(pread(handler_fd, &c, 1, 0) == 1 && pwrite(handler_fd, "s", 1, 100) == 1);
    (void)number;
    handled++;
    errno = saved;
}

static void signals(void)
{
    handler_fd = opened(O_RDWR);
    signal(SIGALRM, handler);
    ualarm(200, 200);
    char block[BLOCK];
    for (int i = 0; i < 3000 || handled < 50; i++) {
        int fd = i % 100 ? handler_fd : opened(O_RDWR);
        CHECK(pread(fd, block, BLOCK, i % BLOCKS * BLOCK) == BLOCK);
        CHECK(pwrite(fd, block, BLOCK, i % BLOCKS * BLOCK) == BLOCK);
        if (i % 100 == 0)
            close(fd);
    }
    ualarm(0, 0);
    SAY("handled\n");
    close(handler_fd);
}

static void passes(void)
{
    /* A descriptor that a socket brings. */
    int pair[2], status;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    char space[CMSG_SPACE(sizeof(int))], byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (fork() == 0) {
        CHECK(recvmsg(pair[1], &message, 0) == 1);
        int fd;
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        char c[8] = "";
        CHECK(pread(fd, c, 6, 0) == 6 && pwrite(fd, "theirs", 6, 100) == 6);
        CHECK(read(fd, c, 6) == 6);
        _exit(strcmp(c, "passed") != 0);
    }
    int fd = opened(O_RDWR);
    CHECK(pwrite(fd, "passed", 6, 0) == 6);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(pair[0], &message, 0) == 1);
    CHECK(wait(&status) > 0 && status == 0);
    char c[8] = "";
    CHECK(read(fd, c, 6) == 6);
    CHECK(pread(fd, c, 6, 100) == 6);
    SAY("%s at %lld\n", c, (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
}

static void limits(void)
{
    /* Many descriptors, up to the limit. */
    struct rlimit limit = {64, 64};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    char c;
    int opens = 0;
    for (;;) {
        int fd = open(path, O_RDWR);
        if (fd < 0)
            break;
        CHECK(pwrite(fd, "l", 1, opens) == 1 && pread(fd, &c, 1, opens) == 1);
        opens++;
    }
    SAY("%d, errno %d\n", opens > 40, errno);
}

static void filters(void)
{
    /* A sandbox that kills for sockets, as the library uses them, and for lseek. */
    int fd = opened(O_RDWR), second = opened(O_RDWR);
    char block[BLOCK];
    CHECK(pwrite(fd, "before", 6, 0) == 6);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_recvmsg, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpid, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_lseek, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    CHECK(pwrite(fd, "after!", 6, 0) == 6 && pread(second, block, 6, 0) == 6);
    CHECK(write(1, block, 6) == 6 && read(fd, block, 100) == 100);
    CHECK(ftruncate(fd, BLOCK) == 0 && ftruncate(fd, 3 * BLOCK) == 0);
    for (int i = 0; i < 20; i++)
        CHECK(pwrite(fd, block, BLOCK, 2 * BLOCK) == BLOCK && pread(fd, block, 10, 2 * BLOCK) == 10);
    CHECK(fsync(fd) == 0 && close(fd) == 0);
    fd = opened(O_RDWR);
    CHECK(pread(fd, block, 10, 0) == 10);
    CHECK(close(fd) == 0 && close(second) == 0);
    /* A new file that is mapped. */
    CHECK(unlink(path) == 0);
    fd = opened(O_RDWR | O_CREAT);
    CHECK(ftruncate(fd, BLOCK) == 0 || pwrite(fd, block, BLOCK, 0) == BLOCK);
    char *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == 0);
    _exit(0);
}

/* A filter that allows everything. */
static const struct sock_fprog *harmless(void)
{
    static struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    static const struct sock_fprog program = {1, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    return &program;
}

/* The child of a vfork puts a file in the place of another. In its parent they stay. */
static void vforks_under_filter(void)
{
    char *second = malloc(strlen(path) + 2), block[BLOCK];
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 1);
    int fd = opened(O_RDWR), other = open(second, O_RDWR), status;
    char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && other >= 0);
    char *other_map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    CHECK(other_map != MAP_FAILED);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, harmless(), 0, 0) == 0);
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, other);
        close(fd);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(pwrite(other, "other", 5, 10) == 5 && pread(other, block, 16, 0) == 16);
    CHECK(pwrite(fd, "first", 5, 10) == 5);
    SAY("%.5s %.5s %.5s\n", block + 10, map + 10, other_map + 10);
    map[20] = '!';
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    /* A copy that the table does not have makes all writes append. */
    int copy = dup(other);
    CHECK(fcntl(copy, F_SETFL, O_APPEND) == 0);
    CHECK(pwrite(other, "appended", 8, 0) == 8);
    CHECK(pread(copy, block, 8, BLOCK) == 8);
    SAY("%.8s %c\n", block, other_map[0]);
    _exit(0);
}

/* Files are mapped after a filter was set. Questions about filters change nothing. */
static void maps_under_filter(void)
{
    char *second = malloc(strlen(path) + 2), c;
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 2);
    int fd = opened(O_RDWR), copy = dup(fd), other = open(second, O_RDWR | O_CLOEXEC), status;
    uint32_t action = SECCOMP_RET_ALLOW;
    struct sock_fprog wrong = {0, NULL};
    CHECK(other >= 0 && lseek(fd, 77, SEEK_SET) == 77);
    CHECK(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) < 0 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) < 0 && errno == EFAULT);
    for (int i = 0; i < 1000; i++)
        CHECK(pwrite(copy, "x", 1, i) == 1 && pread(other, &c, 1, i) == 1 && c == 'a');
    int third = opened(O_RDWR);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &wrong, 0, 0) < 0 && errno == EINVAL);
    char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, third, 0);
    CHECK(map != MAP_FAILED && map[999] == 'x' && munmap(map, BLOCK) == 0);
    CHECK(close(third) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, harmless()) == 0);
    map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, BLOCK);
    char *other_map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
    CHECK(map != MAP_FAILED && other_map != MAP_FAILED);
    SAY("%c %c at %lld\n", map[5], other_map[5], (long long)lseek(copy, 0, SEEK_CUR));
    SAY("%x %d %d\n", fcntl(other, F_GETFL) & ~O_LARGEFILE, fcntl(fd, F_GETFD), fcntl(other, F_GETFD));
    map[6] = '!';
    CHECK(msync(map, BLOCK, MS_SYNC) == 0 && pread(copy, &c, 1, BLOCK + 6) == 1);
    pid_t child = fork();
    if (child == 0) {
        int own = opened(O_RDWR);
        char *theirs = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, own, BLOCK);
        _exit(theirs == MAP_FAILED ? errno : theirs[6] != '!');
    }
    CHECK(waitpid(child, &status, 0) == child);
    SAY("%c %d\n", c, status);
    _exit(0);
}

/* A program that is started with a filter which kills for what leases need. */
static void starts_with_filter(void)
{
    if (getenv("PROBE_FILTERED")) {
        char c;
        int fd = opened(O_RDWR);
        CHECK(pwrite(fd, "filtered", 8, 0) == 8 && pread(fd, &c, 1, 1) == 1);
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED);
        SAY("%c %c %x\n", c, map[2], fcntl(fd, F_GETFL) & ~O_LARGEFILE);
        exit(0);
    }
    int status;
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 4, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 3, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fstatfs, 2, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 1, 0),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        };
        struct sock_fprog program = {sizeof code / sizeof *code, code};
        char *arguments[] = {"probe", "starts_with_filter", path, NULL};
        setenv("PROBE_FILTERED", "1", 1);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
        execv("/proc/self/exe", arguments);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    SAY("%d\n", status);
}

static void executes(void)
{
    /* A descriptor of another program, with its position, mapped there. */
    int status;
    if (getenv("PROBE_FD")) {
        int fd = atoi(getenv("PROBE_FD"));
        char c[8] = "";
        CHECK(read(fd, c, 4) == 4 && pread(fd, c + 4, 3, 0) == 3);
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, BLOCK);
        CHECK(map != MAP_FAILED);
        SAY("%s %c\n", c, map[0]);
        memcpy(map, "mapped", 6);
        CHECK(msync(map, BLOCK, MS_SYNC) == 0);
        exit(0);
    }
    int fd = opened(O_RDWR);
    CHECK(pwrite(fd, "inherit", 7, 0) == 7);
    char number[16], *arguments[] = {"probe", "executes", path, NULL};
    sprintf(number, "%d", fd);
    setenv("PROBE_FD", number, 1);
    pid_t child;
    extern char **environ;
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    char c[8] = "";
    CHECK(read(fd, c, 3) == 3);
    SAY("%s\n", c);
    CHECK(pread(fd, c, 6, BLOCK) == 6);
    SAY("%s\n", c);
    close(fd);
}

static volatile int stop;

static void *churn_opens(void *argument)
{
    char block[BLOCK];
    long me = (long)argument;
    memset(block, 'A' + me, BLOCK);
    for (int i = 0; !stop; i++) {
        int fd = opened(O_RDWR);
        for (int k = 0; k < 10; k++)
            CHECK(pwrite(fd, block, BLOCK, me * BLOCK) == BLOCK && pread(fd, block, BLOCK, me * BLOCK) == BLOCK);
        CHECK(block[i % BLOCK] == 'A' + me);
        int copy = dup(fd);
        CHECK(close(fd) == 0);
        CHECK(pread(copy, block, BLOCK, me * BLOCK) == BLOCK && close(copy) == 0);
    }
    return NULL;
}

static void churns(void)
{
    /* Threads open and close while the process forks, and signals arrive. */
    pthread_t all[4];
    handler_fd = opened(O_RDWR);
    signal(SIGALRM, handler);
    ualarm(1000, 1000);
    for (long i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, churn_opens, (void *)(i + 1)) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char block[BLOCK];
            int fd = opened(O_RDWR), status;
            for (int k = 0; k < 100; k++)
                CHECK(pwrite(fd, "child", 5, 10 * BLOCK) == 5 && pread(fd, block, BLOCK, k % BLOCKS * BLOCK) == BLOCK);
            if (i % 10 == 0 && fork() == 0)
                _exit(pread(fd, block, 5, 0) != 5 || close(fd) != 0);
            if (i % 10 == 0)
                CHECK(wait(&status) > 0 && status == 0);
            _exit(0);
        }
        int status;
        while (waitpid(child, &status, 0) < 0)
            CHECK(errno == EINTR);
        CHECK(status == 0);
    }
    stop = 1;
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    ualarm(0, 0);
    close(handler_fd);
    SAY("done\n");
}

static void overwrites(int fd)
{
    char block[BLOCK];
    for (int i = 0; i < 400; i++) {
        memset(block, i, BLOCK);
        CHECK(pwrite(fd, block, BLOCK, i % 8 * BLOCK) == BLOCK);
        CHECK(pread(fd, block, BLOCK, (i + 4) % 8 * BLOCK) >= 0);
    }
}

static int grown(int flags)
{
    unlink(path);
    return opened(O_RDWR | O_CREAT | O_CLOEXEC | flags);
}

static int is_flocked(void)
{
    int status;
    if (fork() == 0)
        _exit(flock(opened(O_RDONLY), LOCK_EX | LOCK_NB) != 0);
    CHECK(wait(&status) > 0);
    return WEXITSTATUS(status);
}

static void *overwrites_in_thread(void *argument)
{
    overwrites(*(int *)argument);
    return NULL;
}

static void grows(void)
{
    /* A new file that is then overwritten. What belongs to its description stays. */
    char c[8] = "";
    int fd = grown(0), status;
    overwrites(fd);
    SAY("at %lld, flags %x\n", (long long)lseek(fd, 0, SEEK_CUR), fcntl(fd, F_GETFL) & ~O_LARGEFILE);
    CHECK(read(fd, c, 1) == 1 && pread(fd, c + 1, 1, 0) == 1 && c[0] == c[1]);
    char *map = mmap(NULL, 8 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && map[0] == c[0]);
    munmap(map, 8 * BLOCK);
    close(fd);
    fd = grown(0);
    CHECK(flock(fd, LOCK_EX) == 0);
    overwrites(fd);
    SAY("%d\n", is_flocked());
    close(fd);
    fd = grown(0);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 1};
    CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
    overwrites(fd);
    SAY("%d\n", is_locked(path));
    lock.l_type = F_UNLCK;
    CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
    int other = opened(O_RDWR);
    lock.l_type = F_WRLCK;
    lock.l_pid = 0;
    CHECK(fcntl(other, F_SETLK, &lock) == 0);
    overwrites(fd);
    SAY("%d\n", is_locked(path));
    close(other);
    close(fd);
    fd = grown(0);
    int copy = dup(fd);
    overwrites(fd);
    CHECK(lseek(copy, 5, SEEK_SET) == 5);
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    close(copy);
    close(fd);
    fd = grown(0);
    CHECK(write(fd, "12345678", 8) == 8);
    overwrites(fd);
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = grown(0);
    FILE *stream = fdopen(dup(fd), "r+");
    CHECK(fputs("stream", stream) >= 0 && fflush(stream) == 0);
    overwrites(fd);
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    fclose(stream);
    close(fd);
    fd = grown(0);
    int back[2];
    CHECK(pipe(back) == 0);
    if (fork() == 0) {
        CHECK(read(back[0], c, 1) == 1 && read(fd, c, 5) == 5);
        _exit(0);
    }
    overwrites(fd);
    CHECK(write(back[1], "x", 1) == 1 && wait(&status) > 0 && status == 0);
    SAY("at %lld\n", (long long)lseek(fd, 0, SEEK_CUR));
    close(fd);
    fd = grown(0);
    pthread_t all[4];
    overwrites(fd);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], NULL, overwrites_in_thread, &fd) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], NULL);
    close(fd);
    show("grows");
}

static int never[2];

static void *waits(void *argument)
{
    char c;
    int fd = opened(O_RDWR);
    for (int i = 0; i < 200; i++)
        CHECK(pwrite(fd, "c", 1, i) == 1 && pread(fd, &c, 1, i) == 1);
    switch ((long)argument) {
    case 0: read(never[0], &c, 1); break;
    case 1: { struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET}; for (;;) { fcntl(fd, F_OFD_SETLKW, &lock); pause(); } }
    case 2: for (;;) { pread(fd, &c, 1, 0); fsync(fd); }
    case 3: for (;;) { int again = opened(O_RDWR); pwrite(again, "c", 1, 0); close(again); }
    }
    return NULL;
}

static void cancels(void)
{
    CHECK(pipe(never) == 0);
    for (long i = 0; i < 40; i++) {
        pthread_t thread;
        void *end;
        CHECK(pthread_create(&thread, NULL, waits, (void *)(i % 4)) == 0);
        usleep(3000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &end) == 0);
        CHECK(end == PTHREAD_CANCELED);
    }
    int fd = opened(O_RDWR);
    /* The threads may have been cancelled before they wrote all of it. */
    for (int i = 0; i < 200; i++)
        CHECK(pwrite(fd, "c", 1, i) == 1);
    CHECK(pwrite(fd, "after", 5, 0) == 5);
    show("cancels");
}

static void survives(void)
{
    /* Until the server dies: then errors, and no signal. */
    int fd = opened(O_RDWR), reader = opened(O_RDONLY), i;
    char block[BLOCK];
    SAY("ready\n");
    for (i = 0;; i++) {
        memset(block, i, BLOCK);
        off_t at = i % BLOCKS * BLOCK;
        if (pwrite(fd, block, BLOCK, at) != BLOCK || pread(fd, block, BLOCK, at) != BLOCK
            || pread(reader, block, BLOCK, at) != BLOCK)
            break;
        if (i % 100 == 0 && (pwrite(fd, block, BLOCK, BLOCKS * BLOCK) != BLOCK || ftruncate(fd, BLOCKS * BLOCK) != 0))
            break;
    }
    int error = errno;
    /* Requests that were queued are cancelled where the server uses io_uring. */
    SAY("%d\n", error == ENOTCONN || error == ECONNABORTED || error == ECANCELED ? 1 : -error);
    int again = open(path, O_RDWR);
    SAY("%d\n", again < 0);
    SAY("%d\n", i);
    close(fd);
    close(reader);
}

/* Makes a mapping of a file longer, as programs do: if it cannot grow, it is made anew. */
static char *stretched(int fd, char *map, size_t len, size_t more, int raw)
{
    char *longer = raw ? (char *)syscall(SYS_mremap, map, len, more, MREMAP_MAYMOVE, NULL)
                       : mremap(map, len, more, MREMAP_MAYMOVE);
    if (longer == MAP_FAILED && errno == ENOMEM) {
        CHECK(munmap(map, len) == 0);
        longer = mmap(NULL, more, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    CHECK(longer != MAP_FAILED);
    return longer;
}

/* A mapping that grows shows the file, and never what lies behind it on the medium. */
static void stretches(void)
{
    char *neighbour = malloc(strlen(path) + 2);
    CHECK(sprintf(neighbour, "%s2", path) > 0);
    make(neighbour, BLOCKS);
    int fd = opened(O_RDWR);
    size_t len = BLOCKS * BLOCK;
    char *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    for (int i = 0; i < BLOCKS; i++) {
        char block[BLOCK];
        memset(block, 'z', BLOCK);
        CHECK(pwrite(fd, block, BLOCK, len + i * BLOCK) == BLOCK);
    }
    char *longer = stretched(fd, map, len, 2 * len, 0);
    for (size_t i = 0; i < len; i++)
        CHECK(longer[len + i] == 'z');
    longer[len + 5] = '!';
    CHECK(msync(longer, 2 * len, MS_SYNC) == 0);
    char c;
    CHECK(pread(fd, &c, 1, len + 5) == 1);
    SAY("%c %c\n", c, longer[0]);
    CHECK(munmap(longer, 2 * len) == 0);
    /* A part of a mapping, and by the raw call. */
    map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    longer = stretched(fd, map, len, len + BLOCK, 1);
    CHECK(longer[len] == 'z');
    /* What is left of a mapping, one in its middle, a second one. */
    CHECK(munmap(longer + BLOCK, 2 * BLOCK) == 0);
    char *part = stretched(fd, longer, BLOCK, 2 * BLOCK, 0);
    CHECK(part[0] == 'a' && part[BLOCK] == 'b');
    char *twice = mremap(longer + 3 * BLOCK, 0, 2 * BLOCK, MREMAP_MAYMOVE);
    if (twice != MAP_FAILED)
        CHECK(twice[0] == 'd' && twice[BLOCK] == 'e');
    /* Other memory takes its place, and may grow. */
    char *other_map = mmap(longer + 3 * BLOCK, 2 * BLOCK, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(other_map != MAP_FAILED);
    memset(other_map, 'A', 2 * BLOCK);
    other_map = mremap(other_map, 2 * BLOCK, 4 * BLOCK, MREMAP_MAYMOVE);
    CHECK(other_map != MAP_FAILED && other_map[2 * BLOCK - 1] == 'A' && other_map[2 * BLOCK] == 0);
    memset(other_map, 'B', 4 * BLOCK);
    CHECK(pread(fd, &c, 1, 3 * BLOCK) == 1 && c == 'd');
    close(fd);
    int other = open(neighbour, O_RDONLY);
    char block[BLOCK];
    for (int i = 0; i < BLOCKS; i++) {
        CHECK(read(other, block, BLOCK) == BLOCK);
        for (int j = 0; j < BLOCK; j++)
            CHECK(block[j] == 'a' + i % 26);
    }
    SAY("the neighbour is whole\n");
}

/* Bytes behind the end of a file are zeros in its last page. */
/* A mapping that is longer than its file shows what the file grows by, as LMDB's does. */
static void maps_ahead(void)
{
    size_t len = 2048 * BLOCK;
    unlink(path);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    CHECK(fd >= 0);
    char block[2 * BLOCK];
    memset(block, 'a', sizeof block);
    CHECK(pread(fd, block, 100, 0) == 0);
    CHECK(pwrite(fd, block, 2 * BLOCK, 0) == 2 * BLOCK);
    char *map = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    int meta = open(path, O_WRONLY | O_DSYNC | O_CLOEXEC);
    CHECK(meta >= 0);
    SAY("%zd %d\n", read(meta, block, 1), errno);
    SAY("%zd %d\n", pread(meta, block, 1, 0), errno);
    CHECK(mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, meta, 0) == MAP_FAILED);
    SAY("%d\n", errno);
    /* By both descriptors, at the end and across it. */
    for (int i = 2; i < 40; i++) {
        memset(block, 'a' + i % 26, sizeof block);
        CHECK(pwrite(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK);
        CHECK(map[i * BLOCK] == 'a' + i % 26 && map[(i + 1) * BLOCK - 1] == 'a' + i % 26);
        CHECK(pwrite(meta, block, 77, 100 * i) == 77);
        CHECK(map[100 * i + 76] == 'a' + i % 26);
    }
    CHECK(pwrite(meta, block, 2 * BLOCK, 39 * BLOCK) == 2 * BLOCK);
    SAY("%c %c\n", map[40 * BLOCK], map[41 * BLOCK - 1]);
    /* Behind a gap, and in the middle of a page. */
    CHECK(pwrite(fd, "far", 3, 100 * BLOCK + 5) == 3);
    SAY("%c %d %d %d\n", map[100 * BLOCK + 5], map[100 * BLOCK + 8], map[99 * BLOCK], map[101 * BLOCK - 1]);
    /* By another process, which maps it as well. */
    if (fork() == 0) {
        int other = open(path, O_RDWR | O_CLOEXEC);
        CHECK(other >= 0);
        char *own = mmap(NULL, len, PROT_READ, MAP_SHARED, other, 0);
        CHECK(own != MAP_FAILED);
        CHECK(pwrite(other, "child", 5, 200 * BLOCK + 7) == 5);
        _exit(own[200 * BLOCK + 11] == 'd' && own[3 * BLOCK] == 'd' ? 0 : 1);
    }
    int status;
    CHECK(wait(&status) > 0);
    SAY("%d %c %d %d\n", status, map[200 * BLOCK + 11], map[200 * BLOCK + 12], map[200 * BLOCK + 6]);
    /* Longer and shorter by ftruncate. */
    CHECK(ftruncate(fd, 300 * BLOCK + 9) == 0);
    SAY("%d %d\n", map[300 * BLOCK + 8], map[250 * BLOCK]);
    CHECK(ftruncate(fd, 3 * BLOCK) == 0);
    CHECK(ftruncate(fd, 50 * BLOCK) == 0);
    SAY("%d %d %c\n", map[3 * BLOCK], map[40 * BLOCK], map[3 * BLOCK - 1]);
    CHECK(pwrite(fd, "again", 5, 49 * BLOCK + 3) == 5);
    SAY("%c\n", map[49 * BLOCK + 7]);
    CHECK(fdatasync(fd) == 0 && close(meta) == 0 && close(fd) == 0);
    SAY("%c\n", map[49 * BLOCK + 7]);
    CHECK(munmap(map, len) == 0);
    show("maps ahead");
    /* A mapping that begins behind the end. */
    fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    memset(block, 'x', sizeof block);
    CHECK(pwrite(fd, block, BLOCK, 0) == BLOCK);
    CHECK(close(fd) == 0);
    fd = opened(O_RDWR);
    map = mmap(NULL, 256 * BLOCK, PROT_READ, MAP_SHARED, fd, 16 * BLOCK);
    CHECK(map != MAP_FAILED);
    for (int i = 1; i < 20; i++) {
        CHECK(pwrite(fd, block, BLOCK, (off_t)i * BLOCK) == BLOCK);
        CHECK(pread(fd, block + BLOCK, BLOCK, (off_t)i * BLOCK) == BLOCK);
        CHECK(memcmp(block, block + BLOCK, BLOCK) == 0);
    }
    SAY("%c\n", map[3 * BLOCK]);
    /* More than there is room for, while another descriptor of the file is open. */
    meta = open(path, O_WRONLY | O_DSYNC | O_CLOEXEC);
    CHECK(meta >= 0 && munmap(map, 256 * BLOCK) == 0);
    map = mmap(NULL, (size_t)1 << 32, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    CHECK(pwrite(meta, "meta", 4, 20 * BLOCK) == 4);
    CHECK(pwrite(fd, "data", 4, 30 * BLOCK) == 4);
    SAY("%c %c\n", map[20 * BLOCK + 1], map[30 * BLOCK + 2]);
    show("maps ahead");
}

/* The process has no room for mappings, of two kinds. */
static void no_room_to_map(void)
{
    int fd = opened(O_RDWR);
    char c;
    CHECK(pread(fd, &c, 1, 0) == 1);
    size_t len = BLOCKS * BLOCK;
    /* Address space. */
    struct rlimit old, none = {1 << 20, RLIM_INFINITY};
    CHECK(getrlimit(RLIMIT_AS, &old) == 0);
    none.rlim_max = old.rlim_max;
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    char *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    CHECK(setrlimit(RLIMIT_AS, &old) == 0);
    SAY("%d %d\n", map == MAP_FAILED, error == ENOMEM);
    /* The number of mappings: neighbours that differ do not join. */
    static char *many[70000];
    int n = 0, most = 0;
    FILE *limit = fopen("/proc/sys/vm/max_map_count", "r");
    CHECK(limit && fscanf(limit, "%d", &most) == 1 && fclose(limit) == 0);
    if (most < 70000) {
        for (; n < 70000; n++) {
            many[n] = mmap(NULL, BLOCK, n % 2 ? PROT_READ : PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (many[n] == MAP_FAILED)
                break;
        }
        CHECK(n < 70000);
        map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        SAY("%d %d\n", map == MAP_FAILED, errno == ENOMEM);
    } else {
        SAY("skipped: a process may have %d mappings, too many to try\n", most);
    }
    while (n-- > 0)
        CHECK(munmap(many[n], BLOCK) == 0);
    map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    map[BLOCK] = '!';
    CHECK(pread(fd, &c, 1, BLOCK) == 1);
    SAY("%c\n", c);
}

static void ends_in_page(void)
{
    int fd = opened(O_RDWR);
    CHECK(ftruncate(fd, 5000) == 0);
    close(fd);
    fd = opened(O_RDWR);
    char *map = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    SAY("%d %d %d\n", map[4999], map[5000], map[8191]);
    close(fd);
}

/* A child that no handler tells of. */
static void forks_raw(void)
{
    char *second = malloc(strlen(path) + 2);
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 1);
    int fd = opened(O_RDWR);
    char c = 0;
    CHECK(pread(fd, &c, 1, 26 * BLOCK) == 1 && c == 'a');
    CHECK(pwrite(fd, "p", 1, 0) == 1);
    for (int way = 0; way < 2; way++) {
        pid_t child = way ? _Fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            close(fd);
            int own = open(second, O_RDWR);
            if (own != fd || pread(own, &c, 1, 100) != 1 || pwrite(own, "c", 1, 7) != 1)
                _exit(1);
            _exit(c == 'a' ? 0 : 2);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        SAY("%d\n", status);
    }
    CHECK(pread(fd, &c, 1, 7) == 1);
    SAY("%c\n", c);
    int own = open(second, O_RDONLY);
    CHECK(pread(own, &c, 1, 7) == 1);
    SAY("%c\n", c);
}

static int is_locked_for_others(int kind)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 3, .l_len = 1};
        int done = kind == 0 ? flock(fd, LOCK_EX | LOCK_NB) : fcntl(fd, F_SETLK, &lock);
        _exit(done < 0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WEXITSTATUS(status);
}

/* Locks stay, whatever the library does with descriptors. */
static void keeps_locks(void)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 3, .l_len = 1};
    /* The lock ends with the description. */
    int fd = opened(O_RDWR), second = opened(O_RDWR);
    CHECK(flock(fd, LOCK_EX) == 0 && close(fd) == 0);
    SAY("%d\n", flock(second, LOCK_EX | LOCK_NB));
    close(second);
    fd = opened(O_RDWR);
    CHECK(flock(fd, LOCK_EX) == 0);
    char *map = mmap(NULL, 2 * BLOCKS * BLOCK, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED)
        munmap(map, 2 * BLOCKS * BLOCK);
    SAY("%d\n", is_locked_for_others(0));
    close(fd);
    /* By stdio, which the library does not see. */
    FILE *stream = fopen(path, "r+");
    CHECK(stream && fcntl(fileno(stream), F_SETLK, &lock) == 0);
    fd = opened(O_RDWR);
    SAY("%d\n", is_locked_for_others(1));
    CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
    SAY("%d\n", is_locked_for_others(1));
    /* A copy that fails. */
    CHECK(dup2(1000, fd) < 0 && errno == EBADF);
    SAY("%d\n", is_locked_for_others(1));
    fclose(stream);
    int reader = opened(O_RDONLY);
    lock.l_type = F_RDLCK;
    CHECK(fcntl(reader, F_SETLK, &lock) == 0);
    char c;
    for (int i = 0; i < 200; i++)
        CHECK(pread(reader, &c, 1, i) == 1);
    SAY("%d\n", is_locked_for_others(1));
}

static int a_reader;
static volatile int in_handler;

static void reads_in_handler(int number)
{
    (void)number;
    char c[64];
    for (int i = 0; i < 20; i++)
        in_handler += pread(a_reader, c, sizeof c, i * BLOCK) == sizeof c;
}

/* A handler reads what its thread reads, while another process changes the blocks. */
static void handlers_while_layout_changes(void)
{
    a_reader = opened(O_RDWR);
    pid_t child = fork();
    if (child == 0) {
        int fd = opened(O_RDWR);
        for (;;) {
            fallocate(fd, 0, BLOCKS * BLOCK, 10 * BLOCK);
            if (ftruncate(fd, BLOCKS * BLOCK) != 0)
                _exit(1);
        }
    }
    struct sigaction action = {.sa_handler = reads_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &often, NULL);
    char *all = malloc(BLOCKS * BLOCK);
    for (int i = 0; i < 20000; i++)
        CHECK(pread(a_reader, all, BLOCKS * BLOCK, 0) == BLOCKS * BLOCK);
    kill(child, SIGKILL);
    wait(NULL);
    SAY("%d\n", in_handler > 0);
}

static void *opens_and_closes(void *unused)
{
    for (;;)
        close(opened(O_RDWR));
    return unused;
}

static void *maps_and_unmaps(void *unused)
{
    int fd = opened(O_RDWR);
    for (;;) {
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK(map != MAP_FAILED && munmap(map, BLOCK) == 0);
    }
    return unused;
}

/* Children of raw forks map and unmap files while other threads open, map and unmap some. */
static void forks_raw_and_maps(void)
{
    pthread_t threads[2];
    int fd = opened(O_RDWR);
    char *live = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(live != MAP_FAILED);
    CHECK(pthread_create(&threads[0], NULL, opens_and_closes, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, maps_and_unmaps, NULL) == 0);
    for (int i = 0; i < 50; i++) {
        pid_t child = _Fork();
        if (child == 0) {
            alarm(60);
            live[1] = '!';
            if (munmap(live, BLOCK) != 0 || mprotect(live + BLOCK, BLOCK, PROT_READ | PROT_WRITE) != 0)
                _exit(2);
            if (fsync(fd) != 0 || msync(live + BLOCK, BLOCK, MS_SYNC) != 0)
                _exit(3);
            char *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
            /* While the parent has a lease it cannot be mapped through the mount. */
            if (map != MAP_FAILED)
                _exit(map[0] != 'a');
            _exit(errno != ENODEV);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            SAY("%d: %x\n", i, status);
    }
    SAY("done\n");
    _exit(0);
}

static pthread_mutex_t allocator = PTHREAD_MUTEX_INITIALIZER;
static char *second_path;

static void *allocates(void *unused)
{
    for (;;) {
        pthread_mutex_lock(&allocator);
        for (int i = 0; i < 20; i++) {
            char *some = mmap(NULL, BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(some != MAP_FAILED && munmap(some, BLOCK) == 0);
        }
        pthread_mutex_unlock(&allocator);
        /* The lock goes to whoever comes first, which must not be this thread again. */
        usleep(50);
    }
    return unused;
}

static void uses_files(void)
{
    const int fixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char c = 0, *some = mmap(NULL, BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(some != MAP_FAILED && mmap(some, BLOCK, PROT_READ, fixed, -1, 0) == some);
    CHECK(munmap(some, BLOCK) == 0 && fsync(a_reader) == 0);
    for (int i = 0; i < 2; i++) {
        int fd = open(i ? second_path : path, O_RDWR);
        CHECK(fd >= 0 && pread(fd, &c, 1, 0) == 1 && close(fd) == 0);
        CHECK(c == (i ? 'a' : 'x'));
    }
}

static void before_fork(void)
{
    pthread_mutex_lock(&allocator);
    uses_files();
}

static void after_fork(void)
{
    uses_files();
    pthread_mutex_unlock(&allocator);
}

/* Handlers of a fork use files, and take the lock under which another thread unmaps memory. They
   run between those of the library, which come with the first file. */
static void forks_with_handlers(void)
{
    pthread_t thread;
    CHECK(pthread_atfork(before_fork, after_fork, after_fork) == 0);
    second_path = malloc(strlen(path) + 2);
    CHECK(sprintf(second_path, "%s2", path) > 0);
    make(second_path, 1);
    a_reader = opened(O_RDWR);
    char *map = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, a_reader, 0);
    CHECK(map != MAP_FAILED);
    map[0] = 'x';
    CHECK(pthread_create(&thread, NULL, allocates, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        alarm(60);
        pid_t child = fork();
        if (child == 0)
            _exit(fsync(a_reader) != 0 || munmap(map, 2 * BLOCK) != 0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    SAY("done\n");
    _exit(0);
}

static void *opens_often(void *unused)
{
    for (;;) {
        int fd = opened(O_RDWR);
        char c;
        CHECK(pread(fd, &c, 1, 0) == 1);
        close(fd);
    }
    return unused;
}

/* By no function of the C library. */
static pid_t fork_unseen(void)
{
#ifdef __x86_64__
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "a"(SYS_fork) : "rcx", "r11", "memory");
    return (pid_t)done;
#else
    return _Fork();
#endif
}

/* Children of raw forks open files, whatever the other threads were at. */
static void forks_raw_and_opens(void)
{
    pthread_t threads[3];
    char *second = malloc(strlen(path) + 2);
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 1);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, opens_often, NULL) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t child = fork_unseen();
        if (child == 0) {
            char c = 0;
            alarm(20);
            for (int k = 0; k < 2; k++) {
                int fd = open(second, O_RDWR);
                if (fd < 0 || pread(fd, &c, 1, 0) != 1 || pwrite(fd, "a", 1, 5) != 1 || c != 'a')
                    _exit(1);
                close(fd);
            }
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (status != 0)
            SAY("%d: %x\n", i, status);
    }
    SAY("done\n");
    _exit(0);
}

/* A file that is only read keeps its times. */
static void reads_keep_mtime(void)
{
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    CHECK(utimensat(AT_FDCWD, path, old, 0) == 0);
    int fd = opened(O_RDWR);
    char *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED);
    SAY("%c\n", map[0]);
    CHECK(fsync(fd) == 0 && munmap(map, BLOCK) == 0 && close(fd) == 0);
    struct stat stat_now;
    CHECK(stat(path, &stat_now) == 0);
    SAY("%ld\n", (long)stat_now.st_mtime);
}

static long mtime_of(const char *name)
{
    struct stat s;
    CHECK(stat(name, &s) == 0);
    return (long)s.st_mtime;
}

/* What is done to other memory and other files changes no time of a file. */
static void other_memory_keeps_mtime(void)
{
    struct timespec old[2] = {{1000, 0}, {1000, 0}};
    char *second = malloc(strlen(path) + 2);
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 4);
    CHECK(utimensat(AT_FDCWD, path, old, 0) == 0 && utimensat(AT_FDCWD, second, old, 0) == 0);
    int fd = opened(O_RDWR), other = open(second, O_RDWR), both = PROT_READ | PROT_WRITE;
    char *map = mmap(NULL, 2 * BLOCK, both, MAP_SHARED, fd, 0);
    char *theirs = mmap(NULL, 2 * BLOCK, both, MAP_SHARED, other, 0);
    char *none = mmap(NULL, BLOCK, both, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED && theirs != MAP_FAILED && none != MAP_FAILED);
    none[0] = 'x';
    CHECK(msync(none, BLOCK, MS_SYNC) == 0);
    SAY("%ld %ld\n", mtime_of(path), mtime_of(second));
    theirs[0] = 'x';
    /* Some kernels' tmpfs notes no stores. */
    int notes = getenv("LD_PRELOAD") != NULL;
    CHECK(msync(theirs, BLOCK, MS_SYNC) == 0);
    CHECK(!notes || mtime_of(second) != 1000);
    SAY("%ld\n", mtime_of(path));
    /* Moved and cut. */
    CHECK(utimensat(AT_FDCWD, second, old, 0) == 0);
    char *room = mmap(NULL, 4 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED);
    theirs = mremap(theirs, 2 * BLOCK, BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, room + BLOCK);
    CHECK(theirs == room + BLOCK);
    theirs[1] = 'y';
    CHECK(msync(theirs, BLOCK, MS_SYNC) == 0);
    CHECK(!notes || mtime_of(second) != 1000);
    SAY("%ld\n", mtime_of(path));
    /* Other memory in its place. */
    CHECK(munmap(map, 2 * BLOCK) == 0);
    char *there = mmap(map, 2 * BLOCK, both, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(there == map && msync(there, BLOCK, MS_SYNC) == 0);
    SAY("%ld\n", mtime_of(path));
    /* A mapping that is only read, beside memory that becomes writable. */
    char *third = malloc(strlen(path) + 2);
    CHECK(sprintf(third, "%s3", path) > 0);
    make(third, 4);
    CHECK(utimensat(AT_FDCWD, third, old, 0) == 0);
    int reader = open(third, O_RDWR);
    char *read_only = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(read_only != MAP_FAILED && mprotect(room, BLOCK, both) == 0);
    CHECK(fsync(reader) == 0);
    SAY("%c %ld\n", read_only[0], mtime_of(third));
    CHECK(mprotect(read_only, BLOCK, both) == 0);
    read_only[0] = 'z';
    CHECK(fsync(reader) == 0);
    CHECK(!notes || mtime_of(third) != 1000);
}

static void syncs_after_refused_filter(void)
{
    int fd = opened(O_RDWR);
    char *map = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && mprotect(map, BLOCK, PROT_READ | PROT_WRITE) == 0);
    map[0] = 'x';
    CHECK(fsync(fd) == 0);
    CHECK(prctl(PR_SET_SECCOMP, 77, 0, 0, 0) < 0);
    map[1] = 'y';
    CHECK(fsync(fd) == 0 && fdatasync(fd) == 0);
    SAY("%c%c\n", map[0], map[1]);
}

/* A handler has interrupted malloc. It reads and writes blocks that are not known yet. */
static void reads_in_malloc(int number)
{
    char c = 0;
    (void)number;
    in_malloc = 1;
    for (int i = 0; i < 8; i++)
        CHECK(pread(handler_fd, &c, 1, 8 * BLOCK) == 1 && c == 0);
    for (int i = 0; i < 8; i++)
        CHECK(pread(a_reader, &c, 1, 8 * BLOCK) == 1 && pwrite(handler_fd, &c, 1, 9 * BLOCK) == 1);
    in_malloc = 0;
    handled++;
}

static void handler_in_malloc(void)
{
    char c;
    handler_fd = opened(O_RDWR);
    a_reader = opened(O_RDONLY);
    for (int i = 0; i < 100; i++)
        CHECK(pread(a_reader, &c, 1, i) == 1);
    signal(SIGUSR1, reads_in_malloc);
    for (int i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0) {
            int own = opened(O_RDWR);
            _exit(ftruncate(own, BLOCK) != 0 || ftruncate(own, 16 * BLOCK) != 0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(raise(SIGUSR1) == 0);
    }
    SAY("%d\n", handled);
}

/* A handler has interrupted malloc. It opens the first file of the process that has a lease, uses it in
   all ways, and closes it. */
static void opens_in_malloc(int number)
{
    char c = 0;
    (void)number;
    in_malloc = 1;
    for (int i = 0; i < 3; i++) {
        int fd = open(path, O_RDWR), reader = open(path, O_RDONLY);
        CHECK(fd >= 0 && reader >= 0);
        for (int k = 0; k < 100; k++)
            CHECK(pwrite(fd, "h", 1, k) == 1 && pread(fd, &c, 1, k) == 1 && pread(reader, &c, 1, k) == 1);
        CHECK(fsync(fd) == 0 && fdatasync(reader) == 0);
        CHECK(ftruncate(fd, (BLOCKS - i) * BLOCK) == 0);
        CHECK(close(reader) == 0 && close(fd) == 0);
    }
    in_malloc = 0;
    handled++;
}

static void handler_that_opens_in_malloc(void)
{
    signal(SIGUSR1, opens_in_malloc);
    for (int i = 0; i < 3; i++)
        CHECK(raise(SIGUSR1) == 0);
    SAY("%d\n", handled);
    show("opens in malloc");
}

/* Has a lease, and uses the last two blocks until its input ends. Others have the rest. */
static void holds_lease(void)
{
    int fd = opened(O_RDWR), flags = fcntl(0, F_GETFL);
    char block[BLOCK], c;
    CHECK(fcntl(0, F_SETFL, flags | O_NONBLOCK) == 0);
    for (int i = 0; read(0, &c, 1) < 0; i++) {
        off_t at = (BLOCKS - 1 - i % 2) * BLOCK;
        memset(block, i, BLOCK);
        CHECK(pwrite(fd, block, BLOCK, at) == BLOCK);
        memset(block, i + 1, BLOCK);
        CHECK(pread(fd, block, BLOCK, at) == BLOCK);
        for (int k = 0; k < BLOCK; k++)
            CHECK(block[k] == (char)i);
        if (i == 100)
            SAY("ready\n");
        if (i > 100)
            usleep(100);
    }
    SAY("done\n");
}

/* The file system is mounted anew meanwhile, perhaps with the same number. */
static void waits_for_mount(void)
{
    char c;
    int fd = opened(O_RDWR);
    CHECK(pwrite(fd, "w", 1, 1) == 1 && close(fd) == 0);
    SAY("ready\n");
    CHECK(read(0, &c, 1) == 1);
    make(path, 1);
    fd = opened(O_RDWR);
    for (int i = 0; i < 1000; i++)
        CHECK(pwrite(fd, "w", 1, i) == 1 && pread(fd, &c, 1, i) == 1 && c == 'w');
    SAY("done\n");
}

/* Leases before and after a change of the user. With PROBE_LATE, only after. */
static void changes_user(void)
{
    char *second = malloc(strlen(path) + 2), c = 0, d = 0;
    CHECK(sprintf(second, "%s2", path) > 0);
    make(second, 1);
    CHECK(chmod(second, 0644) == 0);
    int fd = open(path, getenv("PROBE_LATE") ? O_RDONLY : O_RDWR);
    CHECK(fd >= 0 && pread(fd, &c, 1, 0) == 1);
    CHECK(setgid(12345) == 0 && setuid(12345) == 0);
    int reader = open(second, O_RDONLY);
    CHECK(reader >= 0);
    for (int i = 0; i < 2000; i++)
        CHECK(pread(reader, &d, 1, i) == 1);
    SAY("%c %c\n", c, d);
}

static int flags_of(int fd)
{
    return fcntl(fd, F_GETFL) & ~O_LARGEFILE;
}

/* O_APPEND on one descriptor changes nothing for other opens of the file, also if other processes
   share them. */
static void sets_append(void)
{
    for (int shares = 0; shares < 2; shares++) {
        int fd = opened(O_RDWR), other = opened(O_RDWR), status;
        if (shares) {
            pid_t child = fork();
            if (child == 0)
                _exit(0);
            CHECK(waitpid(child, &status, 0) == child);
        }
        CHECK(lseek(other, 5, SEEK_SET) == 5 && fcntl(fd, F_SETFL, O_APPEND) == 0);
        int copy = dup(other), third = opened(O_RDWR);
        SAY("%x %x %x %x\n", flags_of(fd), flags_of(other), flags_of(copy), flags_of(third));
        char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0);
        CHECK(map != MAP_FAILED);
        SAY("%x at %lld\n", flags_of(other), (long long)lseek(copy, 0, SEEK_CUR));
        CHECK(pwrite(fd, "appended", 8, 0) == 8 && pwrite(other, "here", 4, 1) == 4);
        SAY("%.5s\n", map);
        CHECK(munmap(map, BLOCK) == 0);
        CHECK(close(fd) == 0 && close(other) == 0 && close(copy) == 0 && close(third) == 0);
        show("appended");
    }
}

/* The file is busy, and once the lease is refused the library cannot open it again. */
static void cannot_open_again(void)
{
    FILE *stream = fopen(path, "r");
    char c;
    CHECK(stream && fgetc(stream) == 'a');
    /* Not seen: by no function of the C library. Opens of the library have O_NOCTTY. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 32),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_NOCTTY | O_DIRECT),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, O_NOCTTY, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EMFILE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
#ifdef __x86_64__
    long done;
    __asm__ volatile("syscall" : "=a"(done)
                     : "a"(SYS_seccomp), "D"(SECCOMP_SET_MODE_FILTER), "S"(0), "d"(&program)
                     : "rcx", "r11", "memory");
    CHECK(done == 0);
#endif
    int fd = opened(O_RDWR | O_NONBLOCK), copy = dup(fd);
    SAY("%x %x\n", flags_of(fd), flags_of(copy));
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    SAY("%x %x\n", flags_of(fd), flags_of(copy));
    CHECK(pwrite(fd, "x", 1, 3) == 1 && pread(copy, &c, 1, 3) == 1);
    SAY("%c\n", c);
    fclose(stream);
}

/* Where a descriptor, a stat and the end are. */
static void places(const char *what, int fd)
{
    struct stat s;
    CHECK(fstat(fd, &s) == 0);
    long long here = lseek(fd, 0, SEEK_CUR);
    SAY("%s: at %lld, size %lld", what, here, (long long)s.st_size);
    SAY(", end %lld\n", (long long)lseek(fd, 0, SEEK_END));
    CHECK(lseek(fd, here, SEEK_SET) == here);
}

static void extends(void)
{
    /* Writes at the end in all ways, past it, and beside others. */
    int fd = opened(O_RDWR), status;
    char *buf = malloc(40 * BLOCK), c[8] = "";
    off_t end = BLOCKS * BLOCK;
    for (int i = 0; i < 3000; i++) {
        size_t n = next_random() % 300 + 1;
        memset(buf, 'a' + i % 26, n);
        CHECK(pwrite(fd, buf, n, end) == (ssize_t)n);
        end += n;
        CHECK(pread(fd, c, 2, end - 1) == 1 && c[0] == 'a' + i % 26);
    }
    places("pwrite", fd);
    show("pwrite");
    CHECK(lseek(fd, 0, SEEK_END) == end);
    for (int i = 0; i < 1000; i++) {
        size_t n = next_random() % 300 + 1;
        memset(buf, 'A' + i % 26, n);
        CHECK(write(fd, buf, n) == (ssize_t)n);
    }
    places("write", fd);
    show("write");
    struct iovec parts[2] = {{buf, 100}, {buf + 100, 33}};
    for (int i = 0; i < 100; i++)
        CHECK(writev(fd, parts, i % 2 + 1) == (i % 2 ? 133 : 100));
    end = lseek(fd, 0, SEEK_END);
    CHECK(pwritev(fd, parts, 2, end) == 133 && pwritev(fd, parts, 2, end + 100) == 133);
    places("vectors", fd);
    show("vectors");
    /* One descriptor that appends, and a child, in turns. */
    int appending = opened(O_RDWR | O_APPEND);
    for (int i = 0; i < 50; i++) {
        end = lseek(fd, 0, SEEK_END);
        CHECK(write(fd, "first", 5) == 5);
        CHECK(write(appending, "second", 6) == 6 && lseek(appending, 0, SEEK_CUR) == end + 11);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int own = opened(O_RDWR);
            CHECK(pwrite(own, "third", 5, end + 11) == 5);
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(pread(fd, buf, 100, end) == 16 && !memcmp(buf, "firstsecondthird", 16));
    }
    places("turns", fd);
    CHECK(ftruncate(fd, 1000) == 0 && lseek(fd, 0, SEEK_END) == 1000);
    CHECK(write(fd, "tail", 4) == 4 && pwrite(fd, "gap", 3, 3000) == 3 && pwrite(fd, "end", 3, 3003) == 3);
    memset(buf, 'x', 4000);
    CHECK(pread(fd, buf, 4000, 0) == 3006);
    places("truncate", fd);
    show("truncate");
    int copy = dup(fd);
    CHECK(lseek(fd, 0, SEEK_END) == 3006 && write(copy, "copy", 4) == 4 && write(fd, "fd", 2) == 2);
    places("dup", copy);
    close(copy);
    /* A mapping of what was appended. */
    CHECK(pwrite(fd, buf, 2 * BLOCK, 3012) == 2 * BLOCK);
    char *map = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && !memcmp(map + 3006, "copyfd", 6) && map[3012] == buf[0]);
    CHECK(munmap(map, BLOCK) == 0 && close(fd) == 0 && close(appending) == 0);
    show("end");
}

static void limits_size(void)
{
    struct rlimit limit = {BLOCKS * BLOCK + 10000, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    int fd = opened(O_RDWR);
    char block[1000];
    memset(block, 'l', sizeof block);
    off_t end = BLOCKS * BLOCK;
    for (int i = 0; i < 5; i++, end += 100)
        CHECK(pwrite(fd, block, 100, end) == 100);
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    for (int i = 0; i < 12; i++) {
        ssize_t n = pwrite(fd, block, sizeof block, end);
        SAY("%zd, errno %d\n", n, n < 0 ? errno : 0);
        end += n < 0 ? 0 : n;
    }
    limit.rlim_cur = RLIM_INFINITY;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0 && pwrite(fd, block, 7, end) == 7);
    places("limits", fd);
    show("limits");
}

static off_t handler_end;

static void handler_that_extends(int number)
{
    int saved = errno;
    CHECK(pwrite(handler_fd, "handler", 7, handler_end) == 7);
    (void)number;
    handled++;
    errno = saved;
}

static void extends_in_handler(void)
{
    /* The handler writes to the last record, or the first one, while the file grows. */
    int fd = opened(O_RDWR);
    char record[64];
    off_t end = BLOCKS * BLOCK;
    handler_fd = fd;
    signal(SIGALRM, handler_that_extends);
    ualarm(500, 500);
    for (int i = 0; handled < 200; i++) {
        memset(record, 'a' + i % 26, sizeof record);
        handler_end = i % 10 ? end - 64 : 0;
        CHECK(pwrite(fd, record, sizeof record, end) == sizeof record);
        CHECK(pread(fd, record, 1, end) == 1 && record[0] == 'a' + i % 26);
        end += sizeof record;
    }
    ualarm(0, 0);
    struct stat s;
    CHECK(fstat(fd, &s) == 0 && s.st_size == end);
    SAY("done\n");
}

/* Opens something of the kind PROBE_KIND, PROBE_OPENS times. */
static void opens(void)
{
    const char *kind = getenv("PROBE_KIND"), *times = getenv("PROBE_OPENS");
    CHECK(kind && times);
    for (int left = atoi(times); left > 0; left--) {
        int fd;
        char some[16];
        if (!strcmp(kind, "file")) {
            fd = opened(O_RDWR);
            CHECK(pread(fd, some, sizeof some, 0) == sizeof some);
            CHECK(write(fd, some, sizeof some) == sizeof some);
            CHECK(lseek(fd, 0, SEEK_CUR) == sizeof some);
        } else if (!strcmp(kind, "device")) {
            fd = open("/dev/null", O_RDWR);
        } else if (!strcmp(kind, "handle")) {
            fd = open(path, O_PATH);
        } else if (!strcmp(kind, "directory")) {
            fd = open("/", O_RDONLY | O_DIRECTORY);
        } else {
            CHECK(open("/nonexistent/file", O_RDONLY) == -1 && errno == ENOENT);
            continue;
        }
        CHECK(fd >= 0);
        CHECK(close(fd) == 0);
    }
}

/* A mapping that the kernel must make, of a file with several descriptors. Copies go on sharing
   their position. */
static void maps_with_copies(void)
{
    int fd = opened(O_RDWR | O_CLOEXEC), copy = dup(fd), other = opened(O_RDWR);
    CHECK(copy >= 0 && lseek(fd, 77, SEEK_SET) == 77 && lseek(other, 5, SEEK_SET) == 5);
    char c;
    CHECK(pread(copy, &c, 1, 0) == 1);
    char *at = mmap(NULL, BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    /* At an address, by the copy. */
    char *map = mmap(at, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, copy, BLOCK);
    SAY("%s\n", map == MAP_FAILED ? strerror(errno) : "mapped");
    CHECK(map == at);
    CHECK(pwrite(other, "new", 3, BLOCK) == 3);
    SAY("%.4s\n", map);
    map[3] = '!';
    CHECK(msync(map, BLOCK, MS_SYNC) == 0);
    char bytes[4];
    CHECK(pread(fd, bytes, 4, BLOCK) == 4);
    SAY("%.4s\n", bytes);
    CHECK(lseek(copy, 0, SEEK_CUR) == 77 && read(copy, &c, 1) == 1);
    SAY("%lld %lld %lld\n", (long long)lseek(fd, 0, SEEK_CUR), (long long)lseek(copy, 0, SEEK_CUR),
        (long long)lseek(other, 0, SEEK_CUR));
    SAY("%d %d %d\n", fcntl(fd, F_GETFD), fcntl(copy, F_GETFD), fcntl(other, F_GETFD));
    SAY("%x %x\n", fcntl(fd, F_GETFL) & ~O_LARGEFILE, fcntl(other, F_GETFL) & ~O_LARGEFILE);
    close(fd);
    CHECK(write(copy, "+", 1) == 1 && write(other, "-", 1) == 1);
    close(copy);
    close(other);
    munmap(map, BLOCK);
    show("maps with copies");
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"data", data}, {"errors", errors}, {"maps", maps}, {"forks", forks},
        {"descriptors", descriptors}, {"closes_all", closes_all}, {"threads", threads},
        {"locks", locks}, {"appends", appends}, {"signals", signals}, {"passes", passes},
        {"limits", limits}, {"survives", survives},
        {"filters", filters}, {"executes", executes}, {"churns", churns}, {"grows", grows}, {"cancels", cancels},
        {"stretches", stretches}, {"ends_in_page", ends_in_page},
        {"maps_ahead", maps_ahead}, {"no_room_to_map", no_room_to_map},
        {"forks_raw", forks_raw},
        {"keeps_locks", keeps_locks}, {"handlers_while_layout_changes", handlers_while_layout_changes},
        {"syncs_after_refused_filter", syncs_after_refused_filter},
        {"forks_raw_and_maps", forks_raw_and_maps}, {"reads_keep_mtime", reads_keep_mtime},
        {"extends", extends}, {"limits_size", limits_size}, {"extends_in_handler", extends_in_handler},
        {"maps_with_copies", maps_with_copies}, {"opens", opens},
        {"other_memory_keeps_mtime", other_memory_keeps_mtime},
        {"waits_for_mount", waits_for_mount},
        {"forks_raw_and_opens", forks_raw_and_opens}, {"forks_with_handlers", forks_with_handlers},
        {"holds_lease", holds_lease},
        {"changes_user", changes_user}, {"sets_append", sets_append}, {"cannot_open_again", cannot_open_again},
        {"handler_in_malloc", handler_in_malloc}, {"handler_that_opens_in_malloc", handler_that_opens_in_malloc},
        {"starts_with_filter", starts_with_filter},
        {"vforks_under_filter", vforks_under_filter}, {"maps_under_filter", maps_under_filter},
    };
    if (count != 3)
        return 2;
    path = arguments[2];
    if (!getenv("PROBE_FD"))
        make(path, BLOCKS);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(arguments[1], all[i].name)) {
            all[i].run();
            return 0;
        }
    return 2;
}
