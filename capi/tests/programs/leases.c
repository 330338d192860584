/* Reads a file of a mount by a lease, while the test changes it: for each line that this
 * program prints, the test does what it says, and answers with a line. */
#include "check.h"

static void in_child(struct pramfs_lease *lease, struct pramfs_view *view, const char *path)
{
    struct pramfs_lease *own;
    struct pramfs_view *other;
    uint64_t size;
    char byte;

    GIVES(-EIO, pramfs_lease_read(lease, &byte, 1, 0));
    GIVES(-EIO, pramfs_lease_size(lease, &size));
    GIVES(-EIO, pramfs_view_open(&other, lease, 0, 1, PROT_READ));
    GIVES(-EIO, pramfs_view_read(view, 0, &byte, 1));
    GIVES(-EIO, pramfs_view_is_current(view));
    OK(pramfs_view_close(view));
    OK(pramfs_lease_close(lease));
    OK(pramfs_lease_open(&own, path, O_RDONLY, NULL));
    GIVES(1, pramfs_lease_read(own, &byte, 1, 0));
    OK(pramfs_lease_close(own));
}

int main(int argc, char **argv)
{
    struct pramfs_lease *lease, *second;
    struct pramfs_view *view, *nothing = NULL;
    const volatile char *bytes;
    static char buf[20000];
    uint64_t size;
    int fd, status;
    pid_t child;

    CHECK(argc == 3);
    OK(pramfs_lease_open(&lease, argv[1], O_RDONLY, NULL));
    OK(pramfs_lease_size(lease, &size));
    CHECK(size == 10000);
    GIVES(10000, pramfs_lease_read(lease, buf, sizeof buf, 0));
    CHECK(buf[0] == 'a' && buf[9999] == 'a');
    OK(pramfs_view_open(&view, lease, 4000, 6000, PROT_READ));
    CHECK(pramfs_view_len(view) == 6000);
    GIVES(1, pramfs_view_is_current(view));

    ask("write");
    GIVES(4, pramfs_lease_read(lease, buf, 4, 5000));
    CHECK(memcmp(buf, "bbbb", 4) == 0);
    bytes = pramfs_view_address(view);
    CHECK(bytes[999] == 'a' && bytes[1000] == 'b' && bytes[1003] == 'b');
    OK(pramfs_view_read(view, 1000, buf, 5));
    CHECK(memcmp(buf, "bbbba", 5) == 0);
    GIVES(1, pramfs_view_is_current(view));

    ask("append");
    GIVES(4, pramfs_lease_read(lease, buf, sizeof buf, 10000));
    CHECK(memcmp(buf, "cccc", 4) == 0);
    GIVES(-EINVAL, pramfs_view_read(view, 5999, buf, 2));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, 0, 10005, PROT_READ));
    GIVES(-EINVAL, pramfs_view_open(&nothing, lease, UINT64_MAX, 2, PROT_READ));
    CHECK(nothing == NULL);

    /* By a descriptor, which stays the caller's. */
    fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    OK(pramfs_lease_open_fd(&second, fd, O_RDONLY, NULL));
    GIVES(1, pramfs_lease_read(second, buf, 1, 0));
    CHECK(read(fd, buf, 1) == 1 && close(fd) == 0);
    GIVES(1, pramfs_lease_read(second, buf, 1, 0));
    OK(pramfs_lease_close(second));
    GIVES(-ENOENT, pramfs_lease_open(&second, argv[2], O_RDONLY, NULL));
    /* A process that can only read the region needs no key. */
    OK(pramfs_lease_open(&second, argv[1], O_RDONLY | PRAMFS_LEASE_PROTECT_PKEY, NULL));
    GIVES(4, pramfs_lease_read(second, buf, 4, 5000));
    OK(pramfs_lease_close(second));

    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_child(lease, view, argv[1]);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    ask("truncate");
    OK(pramfs_lease_size(lease, &size));
    CHECK(size == 100);
    GIVES(100, pramfs_lease_read(lease, buf, sizeof buf, 0));
    GIVES(0, pramfs_view_is_current(view));
    /* The view keeps its blocks. */
    CHECK(bytes[1000] == 'b');

    ask("unlink");
    GIVES(100, pramfs_lease_read(lease, buf, sizeof buf, 0));
    /* The view keeps the lease. */
    OK(pramfs_lease_close(lease));
    CHECK(bytes[1000] == 'b');
    OK(pramfs_view_close(view));
    puts("leases: passed");
    return 0;
}
