/* Handles keep what they need, in every order of closing; the last one unmounts. */
#include "check.h"

#include <sys/file.h>

enum { FS, FILE_, MAP, DIR_, HANDLES };

static int locked(const char *region)
{
    int fd = open(region, O_RDONLY | O_CLOEXEC), result;

    CHECK(fd >= 0);
    result = flock(fd, LOCK_EX | LOCK_NB);
    CHECK(result == 0 || errno == EWOULDBLOCK);
    CHECK(close(fd) == 0);
    return result != 0;
}

static void close_in_order(const char *region, const int order[HANDLES])
{
    struct pramfs_fs *fs;
    struct pramfs_file *file;
    struct pramfs_map *map;
    struct pramfs_dir *dir;
    struct pramfs_dirent entry;
    int i, open[HANDLES] = {1, 1, 1, 1};

    OK(pramfs_open(&fs, region, NULL));
    OK(pramfs_file_open(&file, fs, "/f", O_RDWR | O_CREAT, 0644));
    OK(pramfs_file_truncate(file, 4096));
    OK(pramfs_map_open(&map, file, 0, 4096, 0, PROT_READ | PROT_WRITE));
    OK(pramfs_dir_open(&dir, fs, "/"));
    GIVES(-EBUSY, pramfs_unmount(fs));
    SAYS("3 files, maps or directories are open");
    for (i = 0; i < HANDLES; i++) {
        CHECK(locked(region));
        switch (order[i]) {
        case FS: OK(pramfs_close(fs)); break;
        case FILE_: OK(pramfs_file_close(file)); break;
        case MAP: OK(pramfs_map_close(map)); break;
        case DIR_: OK(pramfs_dir_close(dir)); break;
        }
        open[order[i]] = 0;
        if (open[FS])
            OK(pramfs_sync(fs));
        if (open[FILE_])
            GIVES(1, pramfs_file_write(file, "x", 1, 0));
        if (open[MAP]) {
            ((char *)pramfs_map_address(map))[1] = 'y';
            OK(pramfs_map_persist(map, 0, 4096));
        }
        if (open[DIR_])
            CHECK(pramfs_dir_read(dir, &entry) >= 0);
    }
    CHECK(!locked(region));
}

static void all_orders(const char *region, int order[HANDLES], int fixed)
{
    int i, j, used;

    if (fixed == HANDLES) {
        close_in_order(region, order);
        return;
    }
    for (i = 0; i < HANDLES; i++) {
        used = 0;
        for (j = 0; j < fixed; j++)
            used |= order[j] == i;
        order[fixed] = i;
        if (!used)
            all_orders(region, order, fixed + 1);
    }
}

/* A removed file lives while a map of it does. */
static void removed(const char *region)
{
    struct pramfs_fs *fs;
    struct pramfs_file *file;
    struct pramfs_map *map;

    OK(pramfs_open(&fs, region, NULL));
    OK(pramfs_file_open(&file, fs, "/f", O_RDWR, 0));
    OK(pramfs_map_open(&map, file, 0, 4096, 0, PROT_READ));
    OK(pramfs_unlink(fs, "/f"));
    OK(pramfs_file_close(file));
    CHECK(((char *)pramfs_map_address(map))[0] == 'x');
    OK(pramfs_map_close(map));
    OK(pramfs_unmount(fs));
    CHECK(!locked(region));
}

int main(int argc, char **argv)
{
    int order[HANDLES];

    CHECK(argc == 2);
    OK(pramfs_format(argv[1], 4 * MIB, NULL));
    all_orders(argv[1], order, 0);
    removed(argv[1]);
    puts("closing: passed");
    return 0;
}
