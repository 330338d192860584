/* A child of fork(2) can use no handle of its parent, and damages nothing. */
#include "check.h"

static void in_child(struct pramfs_fs *fs, struct pramfs_file *file, struct pramfs_map *map,
                     struct pramfs_dir *dir, const char *region)
{
    struct pramfs_dirent entry;
    struct pramfs_file *other;
    struct pramfs_fs *again;
    struct stat st;
    char buf[8];
    uint64_t n;

    GIVES(-EIO, pramfs_sync(fs));
    SAYS(region);
    GIVES(-EIO, pramfs_stat(fs, "/", &st));
    GIVES(-EIO, pramfs_mkdir(fs, "/child", 0755));
    GIVES(-EIO, pramfs_file_open(&other, fs, "/f", O_RDONLY, 0));
    GIVES(-EIO, pramfs_file_read(file, buf, 8, 0));
    GIVES(-EIO, pramfs_file_write(file, "child", 5, 0));
    GIVES(-EIO, pramfs_file_append(file, "child", 5, NULL));
    GIVES(-EIO, pramfs_file_truncate(file, 0));
    GIVES(-EIO, pramfs_file_size(file, &n));
    GIVES(-EIO, pramfs_file_sync(file));
    GIVES(-EIO, pramfs_map_persist(map, 0, 8));
    GIVES(-EIO, pramfs_map_read(map, 0, buf, 6));
    GIVES(-EIO, pramfs_map_write(map, 0, "child", 5));
    GIVES(-EIO, pramfs_map_drain(map));
    GIVES(-EIO, pramfs_map_populate(map));
    GIVES(-EIO, pramfs_map_flush(map, 0, 6));
    GIVES(-EIO, pramfs_map_advise(map, 0, 6, PRAMFS_ADVICE_RANDOM));
    GIVES(-EIO, pramfs_map_extend(map, 7));
    GIVES(-EIO, pramfs_dir_read(dir, &entry));
    /* Zeros, and stores that reach nobody. */
    CHECK(((char *)pramfs_map_address(map))[0] == 0);
    memcpy(pramfs_map_address(map), "child", 5);
    /* The region belongs to the parent. */
    GIVES(-EBUSY, pramfs_open(&again, region, NULL));
    OK(pramfs_dir_close(dir));
    OK(pramfs_map_close(map));
    OK(pramfs_file_close(file));
    GIVES(-EIO, pramfs_close(fs));
}

int main(int argc, char **argv)
{
    struct pramfs_fs *fs;
    struct pramfs_file *file;
    struct pramfs_map *map;
    struct pramfs_dir *dir;
    struct pramfs_dirent entry;
    char buf[8];
    pid_t child;
    int status;

    CHECK(argc == 2);
    fs = fresh(argv[1]);
    file = made(fs, "/f");
    GIVES(6, pramfs_file_write(file, "parent", 6, 0));
    OK(pramfs_map_open(&map, file, 0, 6, 0, PROT_READ | PROT_WRITE));
    OK(pramfs_dir_open(&dir, fs, "/"));
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        in_child(fs, file, map, dir, argv[1]);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    /* The parent goes on. */
    GIVES(6, pramfs_file_read(file, buf, 8, 0));
    CHECK(memcmp(buf, "parent", 6) == 0);
    memcpy(pramfs_map_address(map), "PARENT", 6);
    OK(pramfs_map_persist(map, 0, 6));
    GIVES(1, pramfs_dir_read(dir, &entry));
    GIVES(0, pramfs_exists(fs, "/child"));
    OK(pramfs_dir_close(dir));
    OK(pramfs_map_close(map));
    OK(pramfs_file_close(file));
    OK(pramfs_unmount(fs));
    puts("forks: passed");
    return 0;
}
