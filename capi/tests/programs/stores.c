/* Stores to a file of a mount by a lease. After each step, this program prints a line, and the
 * test looks at the file through the mount. The file has three blocks: of 'a', a hole, of 'c'.
 * A second file is sparse, and larger than the region. */
#define _GNU_SOURCE /* O_DIRECT */
#include "check.h"

#include <linux/fs.h>
#include <sys/ioctl.h>

#define BLOCK 4096
#define HUGE_FILE (64 * MIB)
#define READ_WRITE (PROT_READ | PROT_WRITE)

/* The kernel tells the server of a close late, on a busy machine very late. */
#define ONCE_CLOSED(result, call)                                                          \
    do {                                                                                   \
        int tries_ = 0;                                                                    \
        while (((result) = (call)) == -EBUSY && ++tries_ < 10000)                          \
            usleep(10000);                                                                 \
    } while (0)

static struct pramfs_lease *opened(const char *path)
{
    struct pramfs_lease *lease;
    int result;

    ONCE_CLOSED(result, pramfs_lease_open(&lease, path, O_RDWR, NULL));
    OK(result);
    return lease;
}

static void lease_for_reading_stores_nothing(const char *path)
{
    struct pramfs_lease *lease;
    struct pramfs_view *view = NULL;

    OK(pramfs_lease_open(&lease, path, O_RDONLY, NULL));
    GIVES(-EBADF, pramfs_lease_append(lease, "x", 1, NULL));
    SAYS("cannot append");
    GIVES(-EBADF, pramfs_lease_write(lease, "x", 1, 0));
    SAYS("cannot write");
    SAYS("not opened for writing");
    GIVES(-EBADF, pramfs_view_open(&view, lease, 0, 10, READ_WRITE));
    CHECK(view == NULL);
    OK(pramfs_view_open(&view, lease, 0, 10, PROT_READ));
    GIVES(-EACCES, pramfs_view_write(view, 0, "x", 1));
    SAYS("cannot write the view");
    OK(pramfs_view_populate(view));
    CHECK(*(const volatile char *)pramfs_view_address(view) == 'a');
    OK(pramfs_view_close(view));
    OK(pramfs_lease_close(lease));
}

static void file_in_page_cache_is_busy(const char *path)
{
    struct pramfs_lease *lease = NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC), result;

    CHECK(fd >= 0);
    GIVES(-EBUSY, pramfs_lease_open(&lease, path, O_RDWR, NULL));
    SAYS("page cache");
    /* Not by the descriptor itself. */
    GIVES(-EBUSY, pramfs_lease_open_fd(&lease, fd, O_RDWR, NULL));
    CHECK(lease == NULL);
    /* Readers have no quarrel with it. */
    OK(pramfs_lease_open_fd(&lease, fd, O_RDONLY, NULL));
    OK(pramfs_lease_close(lease));
    CHECK(close(fd) == 0);

    lease = NULL;
    fd = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    CHECK(fd >= 0);
    GIVES(-EBADF, pramfs_lease_open_fd(&lease, fd, O_RDWR, NULL));
    CHECK(lease == NULL && close(fd) == 0);

    fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    CHECK(fd >= 0);
    ONCE_CLOSED(result, pramfs_lease_open_fd(&lease, fd, O_RDWR, NULL));
    OK(result);
    /* The lease has a descriptor of its own. */
    CHECK(close(fd) == 0);
    GIVES(1, pramfs_lease_write(lease, "d", 1, 10));
    OK(pramfs_lease_close(lease));
}

static void immutable_file_is_eperm(const char *path)
{
    const int flags[] = {FS_IMMUTABLE_FL, FS_APPEND_FL}, none = 0;
    struct pramfs_lease *lease = NULL;
    int fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    size_t i;

    CHECK(fd >= 0);
    for (i = 0; i < 2; i++) {
        CHECK(ioctl(fd, FS_IOC_SETFLAGS, &flags[i]) == 0);
        GIVES(-EPERM, pramfs_lease_open(&lease, path, O_RDWR, NULL));
        GIVES(-EPERM, pramfs_lease_open_fd(&lease, fd, O_RDWR, NULL));
        SAYS("immutable or append-only");
        CHECK(lease == NULL);
        OK(pramfs_lease_open(&lease, path, O_RDONLY, NULL));
        OK(pramfs_lease_close(lease));
        lease = NULL;
    }
    CHECK(ioctl(fd, FS_IOC_SETFLAGS, &none) == 0 && close(fd) == 0);
}

static void in_child(struct pramfs_lease *lease, struct pramfs_view *view, const char *path)
{
    volatile char *bytes = pramfs_view_address(view);
    struct pramfs_lease *own;
    struct pramfs_view *other;

    GIVES(-EIO, pramfs_lease_write(lease, "child", 5, 0));
    GIVES(-EIO, pramfs_view_open(&other, lease, 0, 1, READ_WRITE));
    GIVES(-EIO, pramfs_view_write(view, 0, "child", 5));
    GIVES(-EIO, pramfs_view_persist(view, 0, 1));
    GIVES(-EIO, pramfs_view_flush(view, 0, 1));
    GIVES(-EIO, pramfs_view_drain(view));
    GIVES(-EIO, pramfs_view_populate(view));
    /* Zeros, and stores that reach nobody. */
    CHECK(bytes[0] == 0);
    bytes[0] = 'x';
    OK(pramfs_view_close(view));
    OK(pramfs_lease_close(lease));
    own = opened(path);
    GIVES(5, pramfs_lease_write(own, "child", 5, 100));
    OK(pramfs_lease_close(own));
}

static void full_region_is_enospc(const char *path)
{
    struct pramfs_lease *lease = opened(path);
    struct pramfs_view *view = NULL;
    static char buf[BLOCK];
    uint64_t at = HUGE_FILE;
    ssize_t written;

    GIVES(-ENOSPC, pramfs_view_open(&view, lease, 0, HUGE_FILE, READ_WRITE));
    CHECK(view == NULL);
    /* The server fills up to 2 MiB, or nothing: less than that is left. */
    do {
        at -= BLOCK;
        written = pramfs_lease_write(lease, buf, BLOCK, at);
    } while (written == BLOCK && at > HUGE_FILE - 2 * MIB);
    GIVES(-ENOSPC, written);
    OK(pramfs_view_open(&view, lease, 0, HUGE_FILE, PROT_READ));
    OK(pramfs_view_close(view));
    OK(pramfs_lease_close(lease));
}

/* Appends; the test takes the bytes away again. */
static void at_the_end(struct pramfs_lease *lease)
{
    uint64_t at = 0, size;
    char buf[8];

    GIVES(-EINVAL, pramfs_lease_append(lease, NULL, 1, &at));
    GIVES(-EINVAL, pramfs_lease_append(NULL, buf, 1, &at));
    CHECK(at == 0);
    OK(pramfs_lease_append(lease, "more", 4, &at));
    CHECK(at == 3 * BLOCK + 4);
    OK(pramfs_lease_append(lease, "bytes", 5, NULL));
    OK(pramfs_lease_append(lease, NULL, 0, &at));
    CHECK(at == 3 * BLOCK + 13);
    GIVES(8, pramfs_lease_read(lease, buf, sizeof buf, 3 * BLOCK + 5));
    CHECK(memcmp(buf, "orebytes", 8) == 0);
    ask("appended");
    OK(pramfs_lease_size(lease, &size));
    CHECK(size == 3 * BLOCK + 4);
}

int main(int argc, char **argv)
{
    struct pramfs_lease *lease;
    struct pramfs_view *view, *nothing = NULL, *hole;
    volatile char *bytes;
    char buf[8];
    uint64_t size;
    int status;
    pid_t child;

    CHECK(argc == 3);
    lease_for_reading_stores_nothing(argv[1]);
    file_in_page_cache_is_busy(argv[1]);
    immutable_file_is_eperm(argv[1]);

    lease = opened(argv[1]);
    GIVES(-EINVAL, pramfs_lease_write(lease, NULL, 1, 0));
    SAYS("buf is NULL");
    GIVES(-EINVAL, pramfs_lease_write(lease, buf, SIZE_MAX, 0));
    GIVES(0, pramfs_lease_write(lease, NULL, 0, 0));
    /* In place, into a hole, and past the end. */
    GIVES(4, pramfs_lease_write(lease, "over", 4, 20));
    GIVES(4, pramfs_lease_write(lease, "hole", 4, BLOCK - 2));
    GIVES(4, pramfs_lease_write(lease, "last", 4, 3 * BLOCK));
    OK(pramfs_lease_size(lease, &size));
    CHECK(size == 3 * BLOCK + 4);
    GIVES(4, pramfs_lease_read(lease, buf, sizeof buf, 3 * BLOCK));
    CHECK(memcmp(buf, "last", 4) == 0);
    ask("written");
    at_the_end(lease);

    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 10, PROT_WRITE));
    SAYS("PROT_READ, or PROT_READ | PROT_WRITE");
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 10, PROT_NONE));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 0, READ_WRITE));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 3 * BLOCK + 5, READ_WRITE));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, UINT64_MAX, 2, READ_WRITE));
    CHECK(nothing == NULL);
    OK(pramfs_view_open(&view, lease, 200, 3 * BLOCK - 200, READ_WRITE));
    OK(pramfs_view_populate(view));
    CHECK(pramfs_view_len(view) == 3 * BLOCK - 200);
    bytes = pramfs_view_address(view);
    CHECK(bytes[0] == 'a');
    bytes[0] = 's';
    OK(pramfs_view_write(view, 1, "tored", 5));
    OK(pramfs_view_persist(view, 0, 6));
    OK(pramfs_view_read(view, 0, buf, 6));
    CHECK(memcmp(buf, "stored", 6) == 0);
    GIVES(1, pramfs_view_is_current(view));
    ask("stored");

    OK(pramfs_view_write(view, BLOCK, "one", 3));
    OK(pramfs_view_flush(view, BLOCK, 3));
    OK(pramfs_view_write(view, 2 * BLOCK, "two", 3));
    OK(pramfs_view_flush(view, 2 * BLOCK, 3));
    OK(pramfs_view_drain(view));
    GIVES(-EINVAL, pramfs_view_write(view, 3 * BLOCK - 201, "xx", 2));
    GIVES(-EINVAL, pramfs_view_persist(view, 0, 3 * BLOCK));
    GIVES(-EINVAL, pramfs_view_flush(view, UINT64_MAX, 2));
    ask("flushed");

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_child(lease, view, argv[1]);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The child has closed nothing of its parent: this one asks the server to fill a hole. */
    ask("grow");
    OK(pramfs_view_open(&hole, lease, 8 * BLOCK, BLOCK, READ_WRITE));
    *(volatile char *)pramfs_view_address(hole) = 'h';
    OK(pramfs_view_persist(hole, 0, 1));
    OK(pramfs_view_close(hole));
    CHECK(bytes[0] == 's');
    ask("forked");

    /* A view keeps the lease, and its blocks. */
    OK(pramfs_lease_close(lease));
    ask("truncate");
    GIVES(0, pramfs_view_is_current(view));
    OK(pramfs_view_write(view, BLOCK, "late", 4));
    OK(pramfs_view_persist(view, BLOCK, 4));
    OK(pramfs_view_close(view));

    full_region_is_enospc(argv[2]);
    puts("stores: passed");
    return 0;
}
