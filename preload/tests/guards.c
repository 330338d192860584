/* What the library must not do to a program, or let a program do. Prints what it sees. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include "probe.h"

/* More than a megabyte, so that mappings for reading are served. */
#define LONG 300

/* Enough for a lease to read. */
static void read_often(int fd)
{
    char c;
    for (int i = 0; i < 200; i++)
        CHECK(pread(fd, &c, 1, 0) == 1);
}

static char first(int fd)
{
    char c = 0;
    CHECK(pread(fd, &c, 1, 0) == 1);
    return c;
}

static char *map_for_stores(int fd)
{
    return mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

/* A reader of a file that the process has mapped through the page cache, before and after. */
static void store_beside_reader(void)
{
    int reader = opened(O_RDONLY), writer = opened(O_RDWR);
    char *at = map_for_stores(writer);
    CHECK(at != MAP_FAILED);
    read_often(reader);
    at[0] = 'X';
    SAY("%c\n", first(reader));
    CHECK(close(writer) == 0 && munmap(at, BLOCK) == 0 && close(reader) == 0);
}

static void store_after_reader(void)
{
    int reader = opened(O_RDONLY), writer;
    read_often(reader);
    writer = opened(O_RDWR);
    char *at = map_for_stores(writer);
    CHECK(at != MAP_FAILED);
    at[0] = 'Y';
    SAY("%c\n", first(reader));
    /* A mapping for reading that becomes one for stores. */
    CHECK(munmap(at, BLOCK) == 0);
    at = mmap(NULL, BLOCK, PROT_READ, MAP_SHARED, writer, 0);
    CHECK(at != MAP_FAILED && mprotect(at, BLOCK, PROT_READ | PROT_WRITE) == 0);
    read_often(reader);
    at[0] = 'Z';
    SAY("%c\n", first(reader));
}

/* A long mapping for reading, and one for stores: it shows the stores, or is alone. */
static void store_beside_view(void)
{
    int reader = opened(O_RDONLY), writer;
    char *shown = mmap(NULL, LONG * BLOCK, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(shown != MAP_FAILED);
    writer = opened(O_RDWR);
    char *at = map_for_stores(writer);
    if (at != MAP_FAILED)
        at[0] = 'V';
    else
        CHECK(errno == ENODEV);
    SAY("%s\n", at == MAP_FAILED || shown[0] == 'V' ? "coherent" : "stale");
}

/* Another process, without the library. */
static int to_other, from_other;

/* Does what it is told: opens the file and maps it for stores, stores a letter, ends the mapping. */
static void be_other(void)
{
    char *at = MAP_FAILED, told, done;
    while (read(STDIN_FILENO, &told, 1) == 1) {
        done = '+';
        if (told == '+') {
            int fd = opened(O_RDWR);
            at = map_for_stores(fd);
            if (at == MAP_FAILED) {
                CHECK(errno == ENODEV);
                done = '-';
            }
            CHECK(close(fd) == 0);
        } else if (told == '-') {
            CHECK(munmap(at, BLOCK) == 0);
        } else {
            at[0] = told;
        }
        CHECK(write(STDOUT_FILENO, &done, 1) == 1);
    }
}

static void start_other(void)
{
    int to[2], from[2];
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    if (fork() == 0) {
        CHECK(dup2(to[0], STDIN_FILENO) >= 0 && dup2(from[1], STDOUT_FILENO) >= 0);
        CHECK(close_range(3, 100, 0) == 0 && unsetenv("LD_PRELOAD") == 0);
        execl("/proc/self/exe", "guards", "other", path, (char *)NULL);
        _exit(1);
    }
    CHECK(close(to[0]) == 0 && close(from[1]) == 0);
    to_other = to[1];
    from_other = from[0];
}

static char tell(char what)
{
    char done;
    CHECK(write(to_other, &what, 1) == 1 && read(from_other, &done, 1) == 1);
    return done;
}

/* A reader with a lease, and a mapping of another process that comes later. */
static void store_of_other_after_reader(void)
{
    start_other();
    int reader = opened(O_RDONLY);
    read_often(reader);
    CHECK(tell('+') == '+' && tell('Y') == '+');
    SAY("%c\n", first(reader));
    CHECK(tell('Z') == '+');
    SAY("%c\n", first(reader));
    /* One that comes when the mapping is there. */
    int later = opened(O_RDONLY);
    read_often(later);
    CHECK(tell('U') == '+');
    SAY("%c\n", first(later));
}

/* A long mapping for reading, and one of another process for stores: before, beside and after. */
static void store_of_other_beside_view(void)
{
    start_other();
    CHECK(tell('+') == '+');
    int reader = opened(O_RDONLY);
    char *shown = mmap(NULL, LONG * BLOCK, PROT_READ, MAP_SHARED, reader, 0);
    CHECK(shown != MAP_FAILED && tell('U') == '+');
    SAY("%c\n", shown[0]);
    CHECK(munmap(shown, LONG * BLOCK) == 0 && close(reader) == 0 && tell('-') == '+');
    /* The kernel tells the server of a close a little late. */
    for (int i = 0, refused = 0; !refused; i++) {
        CHECK(i < 10000);
        reader = opened(O_RDONLY);
        shown = mmap(NULL, LONG * BLOCK, PROT_READ, MAP_SHARED, reader, 0);
        CHECK(shown != MAP_FAILED);
        refused = tell('+') == '-';
        if (refused)
            break;
        CHECK(tell('V') == '+');
        CHECK(shown[0] == 'V' && tell('-') == '+');
        CHECK(munmap(shown, LONG * BLOCK) == 0 && close(reader) == 0);
    }
    SAY("refused\n");
    /* The descriptor stays open. */
    CHECK(munmap(shown, LONG * BLOCK) == 0);
    SAY("%c\n", tell('+'));
    CHECK(tell('-') == '+' && close(reader) == 0);
    /* One that the library cannot serve keeps nobody away. */
    CHECK(truncate(path, LONG * BLOCK + 100) == 0);
    for (int i = 0; i < 20; i++) {
        reader = opened(O_RDONLY);
        shown = mmap(NULL, LONG * BLOCK + 100, PROT_READ, MAP_SHARED, reader, 0);
        CHECK(shown != MAP_FAILED && tell('+') == '+' && tell('-') == '+');
        CHECK(munmap(shown, LONG * BLOCK + 100) == 0 && close(reader) == 0);
    }
}

/* Pages of a mapping that would be those of another file. */
static void other_pages(void)
{
    int fd = opened(O_RDWR);
    char *at = mmap(NULL, 4 * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED);
    for (int i = 0; i < 2; i++) {
        int done = i ? (int)syscall(SYS_remap_file_pages, at, BLOCK, 0, 1000, 0)
                     : remap_file_pages(at, BLOCK, 0, 1000, 0);
        SAY("remap: %d, %s\n", done, strerror(errno));
        done = i ? (int)syscall(SYS_madvise, at, 4 * BLOCK, MADV_REMOVE) : madvise(at, 4 * BLOCK, MADV_REMOVE);
        SAY("remove: %d, %s\n", done, strerror(errno));
    }
    CHECK(madvise(at, 4 * BLOCK, MADV_WILLNEED) == 0);
    SAY("%c %c\n", at[0], at[BLOCK]);
    char *own = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED && madvise(own, BLOCK, MADV_REMOVE) == 0);
}

/* In a root directory whose /proc belongs to somebody else. */
static void planted_proc(void)
{
    char name[4096];
    char *file = strrchr(path, '/');
    CHECK(file);
    *file = 0;
    static const char *const directories[] = {"/proc", "/proc/self", "/proc/self/fd"};
    for (int i = 0; i < 3; i++) {
        CHECK(sprintf(name, "%s%s", path, directories[i]) > 0);
        CHECK(mkdir(name, 0755) == 0);
    }
    for (int i = 3; i < 64; i++) {
        CHECK(sprintf(name, "%s/proc/self/fd/%d", path, i) > 0);
        int fd = open(name, O_WRONLY | O_CREAT, 0644);
        CHECK(fd >= 0 && write(fd, "P", 1) == 1 && close(fd) == 0);
    }
    CHECK(chroot(path) == 0 && chdir("/") == 0);
    *file = '/';
    int fd = open(file, O_RDWR), planted = 0;
    CHECK(fd >= 0);
    SAY("%c\n", first(fd));
    CHECK(pwrite(fd, "Q", 1, 0) == 1);
    for (int i = 3; i < 64; i++) {
        CHECK(sprintf(name, "/proc/self/fd/%d", i) > 0);
        int other = open(name, O_RDONLY);
        CHECK(other >= 0);
        planted += first(other) == 'P';
        CHECK(close(other) == 0);
    }
    SAY("%c, %d as before\n", first(fd), planted);
}

/* Shared mappings that can be stored to, and sockets. */
static void show_rights(void)
{
    char line[4096];
    int mappings = 0, sockets = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        mappings += strstr(line, " rw-s ") != NULL;
    fclose(maps);
    for (int fd = 3; fd < 4096; fd++) {
        struct stat st;
        sockets += fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
    }
    SAY("%s, %s\n", mappings ? "mapped" : "not mapped", sockets ? "connected" : "not connected");
}

static void gives_root_away(void)
{
    int fd = opened(O_RDWR), status;
    CHECK(first(fd) == 'a' && chmod(path, 0666) == 0);
    show_rights();
    /* It can come back. */
    CHECK(seteuid(12345) == 0 && seteuid(0) == 0);
    show_rights();
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            fd = opened(O_RDWR);
            CHECK(first(fd) == 'a');
            show_rights();
            CHECK((i == 0   ? setuid(12345)
                   : i == 1 ? setresuid(12345, 12345, 12345)
                            : (int)syscall(SYS_setuid, 12345))
                  == 0);
            CHECK(prctl(PR_SET_DUMPABLE, 1) == 0);
            show_rights();
            CHECK(pwrite(fd, "b", 1, BLOCK) == 1 && first(fd) == 'a');
            _exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
}

/* What a child has at high numbers, where the library keeps its descriptors. */
static void inherited(void)
{
    int fd = opened(O_RDWR), status;
    CHECK(first(fd) == 'a');
    pid_t child = fork();
    if (child == 0) {
        struct stat file, st;
        int files = 0, sockets = 0;
        CHECK(fstat(fd, &file) == 0);
        for (int n = fd + 1; n < 4096; n++)
            if (fstat(n, &st) == 0) {
                files += st.st_dev == file.st_dev && st.st_ino == file.st_ino;
                sockets += S_ISSOCK(st.st_mode);
            }
        SAY("%d files, %d sockets\n", files, sockets);
        /* It gets leases of its own. */
        int own = opened(O_RDWR);
        CHECK(first(own) == 'a' && pwrite(own, "c", 1, 0) == 1 && first(fd) == 'c');
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(first(fd) == 'c');
}

/* O_APPEND that is set where the library does not see of which descriptor. */
static void append_is_set_elsewhere(void)
{
    struct stat st;
    for (int i = 0; i < 3; i++) {
        int fd = opened(O_RDWR), status, high = -1;
        CHECK(first(fd) == 'a' && pwrite(fd, "a", 1, 0) == 1 && fstat(fd, &st) == 0);
        if (i == 0) {
            pid_t child = fork();
            if (child == 0)
                _exit(fcntl(fd, F_SETFL, O_APPEND));
            CHECK(waitpid(child, &status, 0) == child && status == 0);
        } else if (i == 1) {
            high = fcntl(fd, F_DUPFD, 4500);
            CHECK(high >= 4500 && fcntl(high, F_SETFL, O_APPEND) == 0);
        } else {
            CHECK(syscall(SYS_fcntl, fd, F_SETFL, O_APPEND) == 0);
        }
        off_t before = st.st_size;
        CHECK(write(fd, "w", 1) == 1 && pwrite(fd, "p", 1, 0) == 1);
        CHECK(fstat(fd, &st) == 0);
        SAY("%d %c\n", (int)(st.st_size - before), first(fd));
        CHECK(close(fd) == 0 && (high < 0 || close(high) == 0));
    }
}

/* A number that was a file of the library, in a thread with descriptors of its own. */
static void number_is_pipe(void)
{
    int fd = opened(O_RDWR), ends[2];
    CHECK(first(fd) == 'a' && unshare(CLONE_FILES) == 0 && first(fd) == 'a');
    CHECK(!(fcntl(fd, F_GETFL) & O_DIRECT));
    CHECK(pipe(ends) == 0 && close(fd) == 0 && dup(ends[1]) == fd);
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    char all[8] = "";
    CHECK(write(fd, "ab", 2) == 2 && write(fd, "cd", 2) == 2);
    CHECK(read(ends[0], all, 1) == 1 && read(ends[0], all + 1, 3) == 3);
    SAY("%s\n", all);
}

static time_t mtime(void)
{
    struct stat st;
    CHECK(stat(path, &st) == 0);
    return st.st_mtime;
}

/* A time that the program sets, and times of stores that no call tells of. */
static void times_of_stores(void)
{
    const struct timespec then[2] = {{1000, 0}, {1000, 0}};
    int fd = opened(O_RDWR), status;
    char *at = map_for_stores(fd);
    CHECK(at != MAP_FAILED);
    at[0] = 'T';
    CHECK(munmap(at, BLOCK) == 0 && futimens(fd, then) == 0);
    CHECK(fsync(fd) == 0);
    SAY("%ld ", (long)mtime());
    CHECK(close(fd) == 0);
    /* The server looks twice a second. */
    CHECK(usleep(1200 * 1000) == 0);
    SAY("%ld\n", (long)mtime());
    for (int i = 0; i < 2; i++) {
        CHECK(utimensat(AT_FDCWD, path, then, 0) == 0);
        pid_t child = fork();
        if (child == 0) {
            at = map_for_stores(opened(O_RDWR));
            CHECK(at != MAP_FAILED);
            at[0] = 'E';
            if (i)
                _exit(0);
            exit(0);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        SAY("%s\n", mtime() > 1000 ? "noted" : "not noted");
    }
}

/* Calls that the kernel refuses as a whole. */
static void vectors_are_refused_whole(void)
{
    int fd = opened(O_RDWR);
    char byte = 'V';
    struct iovec too_long[2] = {{&byte, 1}, {&byte, (size_t)-1}}, empty[2] = {{&byte, 0}, {&byte, 0}};
    CHECK(first(fd) == 'a');
    int done = pwritev(fd, too_long, 2, 0);
    SAY("%d %s, %c\n", done, strerror(errno), first(fd));
    done = preadv(fd, empty, 2, -1);
    SAY("%d %s\n", done, strerror(errno));
    done = pwritev(fd, empty, 2, -1);
    SAY("%d %s\n", done, strerror(errno));
}

/* An address that is a wish only, when others may share the description. */
static void wish_after_fork(void)
{
    int fd = opened(O_RDWR), status;
    CHECK(first(fd) == 'a');
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    void *wish = (void *)0x7f0000000000;
    for (int i = 0; i < 2; i++) {
        int flags = i ? MAP_SHARED_VALIDATE : MAP_SHARED;
        char *at = mmap(wish, BLOCK, PROT_READ | PROT_WRITE, flags, fd, 0);
        SAY("%s\n", at == MAP_FAILED ? strerror(errno) : "mapped");
        if (at != MAP_FAILED)
            at[0] = 'W';
    }
    SAY("%c\n", first(fd));
}

/* sendfile beside direct stores, when the program has taken O_DIRECT back. */
static char sent(int fd)
{
    int ends[2];
    off_t at = 0;
    char c;
    CHECK(pipe(ends) == 0 && sendfile(ends[1], fd, &at, 1) == 1 && read(ends[0], &c, 1) == 1);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    return c;
}

static void sends_after_o_direct(void)
{
    int fd = opened(O_RDWR | O_DIRECT);
    CHECK(first(fd) == 'a' && fcntl(fd, F_SETFL, 0) == 0);
    SAY("%c ", sent(fd));
    CHECK(pwrite(fd, "N", 1, 0) == 1);
    SAY("%c, %s\n", sent(fd), fcntl(fd, F_GETFL) & O_DIRECT ? "shown" : "hidden");
}

static int by_close_range;
static int shared_fd;
static pthread_barrier_t barrier;

static void *has_descriptors_of_its_own(void *unused)
{
    if (by_close_range)
        CHECK(close_range(5000, 5001, CLOSE_RANGE_UNSHARE) == 0);
    else
        CHECK(unshare(CLONE_FILES) == 0);
    pthread_barrier_wait(&barrier);
    /* The other thread opens another file under this number. */
    pthread_barrier_wait(&barrier);
    char mine = first(shared_fd);
    SAY("%c\n", mine);
    pthread_barrier_wait(&barrier);
    return unused;
}

/* Two threads with different files under one number. */
static void own_descriptors(void)
{
    char other[4096];
    CHECK(sprintf(other, "%s2", path) > 0);
    make(other, 1);
    int fd = open(other, O_RDWR);
    CHECK(fd >= 0 && pwrite(fd, "o", 1, 0) == 1 && close(fd) == 0);
    CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
    pthread_t thread;
    shared_fd = opened(O_RDWR);
    CHECK(first(shared_fd) == 'a');
    CHECK(pthread_create(&thread, NULL, has_descriptors_of_its_own, NULL) == 0);
    pthread_barrier_wait(&barrier);
    CHECK(close(shared_fd) == 0 && open(other, O_RDWR) == shared_fd);
    SAY("%c\n", first(shared_fd));
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void own_descriptors_by_close_range(void)
{
    by_close_range = 1;
    own_descriptors();
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"store_beside_reader", store_beside_reader}, {"store_after_reader", store_after_reader},
        {"store_beside_view", store_beside_view},
        {"store_of_other_after_reader", store_of_other_after_reader},
        {"store_of_other_beside_view", store_of_other_beside_view}, {"other_pages", other_pages},
        {"append_is_set_elsewhere", append_is_set_elsewhere}, {"number_is_pipe", number_is_pipe},
        {"times_of_stores", times_of_stores},
        {"vectors_are_refused_whole", vectors_are_refused_whole},
        {"wish_after_fork", wish_after_fork},
        {"sends_after_o_direct", sends_after_o_direct}, {"planted_proc", planted_proc}, {"gives_root_away", gives_root_away},
        {"inherited", inherited}, {"own_descriptors", own_descriptors},
        {"own_descriptors_by_close_range", own_descriptors_by_close_range},
    };
    if (count != 3)
        return 2;
    path = arguments[2];
    if (!strcmp(arguments[1], "other")) {
        be_other();
        return 0;
    }
    make(path, LONG);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(arguments[1], all[i].name)) {
            all[i].run();
            return 0;
        }
    return 2;
}
