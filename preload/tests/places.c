/* Uses a file where the library gets no lease, or a part of one: it must see what it sees without the
   library. */
#define _GNU_SOURCE
#include <link.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include "probe.h"

static uint64_t sum(const void *bytes, size_t n)
{
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ ((const unsigned char *)bytes)[i]) * 1099511628211u;
    return h;
}

/* Overwrites, reads, maps and syncs a file that is there. */
static void use(void)
{
    int fd = opened(O_RDWR), reader = opened(O_RDONLY);
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    size_t len = st.st_size;
    char *all = malloc(len), block[BLOCK];
    for (size_t at = 0; at + BLOCK <= len; at += 3 * BLOCK) {
        memset(block, at / BLOCK, BLOCK);
        CHECK(pwrite(fd, block, BLOCK, at) == BLOCK && pread(reader, block, 9, at) == 9);
    }
    for (int i = 0; i < 200; i++)
        CHECK(pread(fd, block, BLOCK, (size_t)i * 777 % len) > 0 && pread(reader, block, 1, i) == 1);
    CHECK(pread(fd, all, len, 0) == (ssize_t)len);
    SAY("%zu bytes, %016llx\n", len, (unsigned long long)sum(all, len));
    char *map = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && memcmp(map, all, len) == 0);
    map[1] = '!';
    CHECK(msync(map, len, MS_SYNC) == 0 && fsync(fd) == 0 && pread(fd, block, 2, 0) == 2);
    SAY("%c\n", block[1]);
    CHECK(munmap(map, len) == 0 && ftruncate(fd, len + 100) == 0 && pwrite(fd, "end", 3, len) == 3);
    CHECK(fdatasync(fd) == 0 && close(fd) == 0 && close(reader) == 0);
    free(all);
}

/* The socket, /proc and the tools are outside. */
static void in_chroot(void)
{
    char *end = strrchr(path, '/');
    *end = 0;
    CHECK(chroot(path) == 0 && chdir("/") == 0);
    *end = '/';
    path = end;
    use();
}

/* A container: the file system is there, and /run is its own. */
static void without_run(void)
{
    CHECK(unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    CHECK(mount("none", "/run", "tmpfs", 0, NULL) == 0);
    use();
}

static void setuid_program(void)
{
    SAY("%d\n", geteuid());
    use();
}

/* Pages of the medium fail meanwhile. */
static void failed_page(void)
{
    int fd = opened(O_RDWR);
    char block[BLOCK], c;
    struct stat st;
    CHECK(fstat(fd, &st) == 0);
    off_t last = st.st_size - BLOCK;
    for (int i = 0; i < 100; i++)
        CHECK(pread(fd, block, BLOCK, last) == BLOCK && pwrite(fd, block, BLOCK, last) == BLOCK);
    SAY("ready\n");
    CHECK(read(0, &c, 1) == 1);
    for (int i = 0; i < 3; i++) {
        ssize_t done = pread(fd, block, BLOCK, last);
        SAY("read: %zd, errno %d\n", done, done < 0 ? errno : 0);
        done = pwrite(fd, block, BLOCK, last);
        SAY("write: %zd, errno %d\n", done, done < 0 ? errno : 0);
    }
    SAY("first block: %zd\n", pread(fd, block, BLOCK, 0));
}

static int is_library(struct dl_phdr_info *object, size_t size, void *found)
{
    (void)size;
    *(int *)found |= strstr(object->dlpi_name, "pramfs_preload") != NULL;
    return 0;
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } all[] = {
        {"use", use}, {"in_chroot", in_chroot}, {"without_run", without_run},
        {"setuid_program", setuid_program}, {"failed_page", failed_page},
    };
    if (count != 3)
        return 2;
    path = arguments[2];
    int is_loaded = 0;
    dl_iterate_phdr(is_library, &is_loaded);
    fprintf(stderr, "library: %d\n", is_loaded);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(arguments[1], all[i].name)) {
            all[i].run();
            return 0;
        }
    return 2;
}
