/* Names: directories, links, renames, attributes; files and maps. */
#define _GNU_SOURCE /* memfd_create */
#include "check.h"

#include <sys/statvfs.h>

static void directories(struct pramfs_fs *fs)
{
    struct pramfs_dir *dir;
    struct pramfs_dirent entry;
    char path[32];
    int i, found = 0, seen[300] = {0};

    OK(pramfs_mkdir_all(fs, "/a/b/c"));
    OK(pramfs_mkdir_all(fs, "/a/b/c"));
    GIVES(-EEXIST, pramfs_mkdir(fs, "/a/b", 0755));
    GIVES(-EEXIST, pramfs_mkdir(fs, "/a/.", 0755));
    GIVES(-EEXIST, pramfs_mkdir(fs, "/", 0755));
    GIVES(-ENOENT, pramfs_mkdir(fs, "/no/b", 0755));
    GIVES(-ENOTEMPTY, pramfs_rmdir(fs, "/a/b"));
    GIVES(-EBUSY, pramfs_rmdir(fs, "/"));
    GIVES(-EISDIR, pramfs_unlink(fs, "/a/b"));
    OK(pramfs_rmdir(fs, "/a/b/c"));
    for (i = 0; i < 300; i++) {
        snprintf(path, sizeof path, "/a/b/file%d", i);
        OK(pramfs_file_close(made(fs, path)));
    }
    OK(pramfs_dir_open(&dir, fs, "/a/b"));
    while ((i = pramfs_dir_read(dir, &entry)) == 1) {
        CHECK(S_ISREG(entry.file_type) && strlen(entry.name) == entry.name_len);
        CHECK(sscanf(entry.name, "file%d", &i) == 1 && i >= 0 && i < 300);
        CHECK(seen[i]++ == 0 && entry.ino > 0);
        found++;
    }
    OK(i);
    OK(pramfs_dir_read(dir, &entry));
    CHECK(found == 300);
    OK(pramfs_dir_close(dir));
    GIVES(-ENOTDIR, pramfs_dir_open(&dir, fs, "/a/b/file0"));
    OK(pramfs_remove_all(fs, "/a"));
    GIVES(0, pramfs_exists(fs, "/a"));

    /* The longest name. */
    memset(path, 0, sizeof path);
    {
        char name[300] = "/";
        memset(name + 1, 'n', 255);
        OK(pramfs_mkdir(fs, name, 0700));
        OK(pramfs_dir_open(&dir, fs, "/"));
        GIVES(1, pramfs_dir_read(dir, &entry));
        CHECK(entry.name_len == 255 && strcmp(entry.name, name + 1) == 0);
        CHECK(S_ISDIR(entry.file_type));
        OK(pramfs_dir_close(dir));
        OK(pramfs_rmdir(fs, name));
        name[256] = 'n';
        GIVES(-ENAMETOOLONG, pramfs_mkdir(fs, name, 0700));
    }
}

static void links(struct pramfs_fs *fs)
{
    struct stat st, target;
    char buf[16];

    OK(pramfs_file_close(made(fs, "/one")));
    OK(pramfs_link(fs, "/one", "/two"));
    GIVES(-EEXIST, pramfs_link(fs, "/one", "/two"));
    OK(pramfs_stat(fs, "/two", &st));
    CHECK(st.st_nlink == 2 && S_ISREG(st.st_mode));
    OK(pramfs_symlink(fs, "one", "/sym"));
    GIVES(3, pramfs_readlink(fs, "/sym", buf, sizeof buf));
    CHECK(strcmp(buf, "one") == 0);
    GIVES(3, pramfs_readlink(fs, "/sym", buf, 4));
    GIVES(-ERANGE, pramfs_readlink(fs, "/sym", buf, 3));
    SAYS("3 bytes");
    GIVES(-ERANGE, pramfs_readlink(fs, "/sym", NULL, 0));
    GIVES(-EINVAL, pramfs_readlink(fs, "/one", buf, sizeof buf));
    OK(pramfs_lstat(fs, "/sym", &st));
    CHECK(S_ISLNK(st.st_mode) && st.st_size == 3);
    OK(pramfs_stat(fs, "/sym", &target));
    CHECK(target.st_ino != st.st_ino && S_ISREG(target.st_mode));
    OK(pramfs_unlink(fs, "/one"));
    GIVES(0, pramfs_exists(fs, "/sym"));
    GIVES(1, pramfs_exists(fs, "/two"));
    OK(pramfs_unlink(fs, "/sym"));

    GIVES(-EINVAL, pramfs_rename(fs, "/two", "/three", 8));
    OK(pramfs_rename(fs, "/two", "/three", 0));
    OK(pramfs_file_close(made(fs, "/two")));
    GIVES(-EEXIST, pramfs_rename(fs, "/two", "/three", PRAMFS_RENAME_NOREPLACE));
    CHECK(strcmp(pramfs_errormsg(), "cannot rename /two to /three: the name exists already")
          == 0);
    OK(pramfs_stat(fs, "/two", &st));
    OK(pramfs_rename(fs, "/two", "/three", PRAMFS_RENAME_EXCHANGE));
    OK(pramfs_stat(fs, "/three", &target));
    CHECK(st.st_ino == target.st_ino);
    OK(pramfs_unlink(fs, "/three"));
    OK(pramfs_unlink(fs, "/two"));
}

static void unnamed(struct pramfs_fs *fs)
{
    struct pramfs_file *file;
    struct stat st;
    char buf[8];

    GIVES(-EINVAL, pramfs_file_open(&file, fs, "/", O_RDWR | O_DIRECTORY, 0600));
    GIVES(-EINVAL, pramfs_file_open(&file, fs, "/", O_RDONLY | O_TMPFILE, 0600));
    GIVES(-EINVAL, pramfs_file_open(&file, fs, "/", O_RDWR | O_TMPFILE | O_EXCL, 0600));
    SAYS("O_EXCL");
    GIVES(-ENOENT, pramfs_file_open(&file, fs, "/none", O_RDWR | O_TMPFILE, 0600));
    OK(pramfs_file_open(&file, fs, "/", O_RDWR | O_TMPFILE, 0600));
    GIVES(8, pramfs_file_write(file, "contents", 8, 0));
    OK(pramfs_file_stat(file, &st));
    CHECK(st.st_nlink == 0 && st.st_size == 8);
    GIVES(-ENOENT, pramfs_file_link(file, fs, "/none/f"));
    OK(pramfs_file_link(file, fs, "/published"));
    GIVES(-EEXIST, pramfs_file_link(file, fs, "/published"));
    OK(pramfs_file_close(file));
    OK(pramfs_file_open(&file, fs, "/published", O_RDONLY, 0));
    GIVES(8, pramfs_file_read(file, buf, sizeof buf, 0));
    CHECK(memcmp(buf, "contents", 8) == 0);
    OK(pramfs_unlink(fs, "/published"));
    GIVES(-ENOENT, pramfs_file_link(file, fs, "/again"));
    OK(pramfs_file_close(file));
}

static void attributes(struct pramfs_fs *fs)
{
    struct timespec times[2] = {{1000, 5}, {-7, 999999999}};
    struct pramfs_file *file = made(fs, "/file");
    struct statvfs space;
    struct stat st;
    char buf[64];

    GIVES(5, pramfs_file_write(file, "hello", 5, 0));
    OK(pramfs_chmod(fs, "/file", 0600));
    OK(pramfs_chown(fs, "/file", 1, UINT32_MAX));
    OK(pramfs_chown(fs, "/file", UINT32_MAX, 2));
    OK(pramfs_utimens(fs, "/file", times));
    OK(pramfs_file_stat(file, &st));
    CHECK(st.st_mode == (S_IFREG | 0600) && st.st_uid == 1 && st.st_gid == 2);
    CHECK(st.st_size == 5 && st.st_blocks > 0 && st.st_blksize > 0 && st.st_dev == 0);
    CHECK(st.st_atim.tv_sec == 1000 && st.st_atim.tv_nsec == 5);
    CHECK(st.st_mtim.tv_sec == -7 && st.st_mtim.tv_nsec == 999999999);
    times[0].tv_nsec = UTIME_OMIT;
    times[1].tv_nsec = UTIME_NOW;
    OK(pramfs_utimens(fs, "/file", times));
    OK(pramfs_file_stat(file, &st));
    CHECK(st.st_atim.tv_sec == 1000 && st.st_mtim.tv_sec > 1000000000);
    times[0].tv_nsec = 1000000000;
    GIVES(-EINVAL, pramfs_utimens(fs, "/file", times));
    times[0].tv_nsec = 0;
    times[0].tv_sec = INT64_MIN;
    GIVES(-EOVERFLOW, pramfs_utimens(fs, "/file", times));
    OK(pramfs_utimens(fs, "/file", NULL));

    OK(pramfs_copy(fs, "/file", "/copy"));
    OK(pramfs_stat(fs, "/copy", &st));
    CHECK(st.st_size == 5 && st.st_mode == (S_IFREG | 0600));
    GIVES(-EINVAL, pramfs_copy(fs, "/copy", "/copy"));
    OK(pramfs_symlink(fs, "x", "/s"));
    OK(pramfs_lchown(fs, "/s", 8, 9));
    OK(pramfs_lstat(fs, "/s", &st));
    CHECK(st.st_uid == 8 && st.st_gid == 9);

    OK(pramfs_setxattr(fs, "/file", "user.colour", "blue", 4, 0));
    OK(pramfs_setxattr(fs, "/file", "user.empty", NULL, 0, PRAMFS_XATTR_CREATE));
    GIVES(-EEXIST, pramfs_setxattr(fs, "/file", "user.empty", "", 0, PRAMFS_XATTR_CREATE));
    GIVES(-ENODATA, pramfs_setxattr(fs, "/file", "user.no", "", 0, PRAMFS_XATTR_REPLACE));
    GIVES(-EINVAL, pramfs_setxattr(fs, "/file", "user.no", "", 0, 3));
    GIVES(4, pramfs_getxattr(fs, "/file", "user.colour", NULL, 0));
    GIVES(4, pramfs_getxattr(fs, "/file", "user.colour", buf, sizeof buf));
    CHECK(memcmp(buf, "blue", 4) == 0);
    GIVES(-ERANGE, pramfs_getxattr(fs, "/file", "user.colour", buf, 3));
    SAYS("user.colour of /file");
    GIVES(0, pramfs_getxattr(fs, "/file", "user.empty", buf, sizeof buf));
    GIVES(-ENODATA, pramfs_getxattr(fs, "/file", "user.no", buf, sizeof buf));
    GIVES(23, pramfs_listxattr(fs, "/file", NULL, 0));
    GIVES(-ERANGE, pramfs_listxattr(fs, "/file", buf, 22));
    GIVES(23, pramfs_listxattr(fs, "/file", buf, 23));
    CHECK(buf[22] == 0 && strncmp(buf, "user.", 5) == 0);
    OK(pramfs_removexattr(fs, "/file", "user.colour"));
    GIVES(-ENODATA, pramfs_removexattr(fs, "/file", "user.colour"));

    OK(pramfs_statvfs(fs, &space));
    CHECK(space.f_bsize == 4096 && space.f_blocks == 16 * MIB / 4096);
    CHECK(space.f_bavail < space.f_bfree && space.f_ffree < space.f_files);
    CHECK(space.f_namemax == 255 && space.f_flag == 0);
    OK(pramfs_file_close(file));
}

static void files(struct pramfs_fs *fs)
{
    struct pramfs_file *file = made(fs, "/data");
    struct pramfs_map *map, *look;
    uint64_t size, *numbers;
    struct stat st;
    char *bytes;

    OK(pramfs_file_truncate(file, 100));
    OK(pramfs_file_size(file, &size));
    CHECK(size == 100);
    OK(pramfs_file_fallocate(file, PRAMFS_FALLOC_KEEP_SIZE, 0, MIB));
    OK(pramfs_file_size(file, &size));
    CHECK(size == 100);
    OK(pramfs_file_fallocate(file, 0, 0, MIB));
    OK(pramfs_file_stat(file, &st));
    CHECK(st.st_size == (off_t)MIB && st.st_blocks >= (blkcnt_t)(MIB / 512));
    OK(pramfs_file_fallocate(file, PRAMFS_FALLOC_PUNCH_HOLE | PRAMFS_FALLOC_KEEP_SIZE, 0,
                             MIB));
    OK(pramfs_file_stat(file, &st));
    CHECK(st.st_size == (off_t)MIB && st.st_blocks < (blkcnt_t)(MIB / 512));
    OK(pramfs_file_sync(file));
    OK(pramfs_file_datasync(file));

    /* A map that grows, seen by the file and by another map. */
    OK(pramfs_map_open(&map, file, 0, 8192, 4 * MIB, PROT_READ | PROT_WRITE));
    CHECK(pramfs_map_len(map) == 8192 && pramfs_map_reserved(map) >= 4 * MIB);
    OK(pramfs_map_populate(map));
    OK(pramfs_map_advise(map, 0, 8192, PRAMFS_ADVICE_RANDOM));
    OK(pramfs_map_advise(map, 0, 8192, PRAMFS_ADVICE_SEQUENTIAL));
    OK(pramfs_map_advise(map, 0, 8192, PRAMFS_ADVICE_WILLNEED));
    OK(pramfs_map_advise(map, 0, 8192, PRAMFS_ADVICE_NORMAL));
    numbers = pramfs_map_address(map);
    CHECK(numbers[0] == 0 && numbers[1023] == 0);
    numbers[0] = 0x1122334455667788;
    numbers[1023] = 42;
    OK(pramfs_map_flush(map, 0, 8));
    OK(pramfs_map_flush(map, 8184, 8));
    OK(pramfs_map_drain(map));
    GIVES(8, pramfs_file_read(file, &size, 8, 8184));
    CHECK(size == 42);
    OK(pramfs_map_write(map, 8, "through", 7));
    OK(pramfs_map_persist(map, 8, 7));
    OK(pramfs_map_extend(map, MIB));
    CHECK(pramfs_map_len(map) == MIB && pramfs_map_address(map) == numbers);
    bytes = pramfs_map_address(map);
    bytes[MIB - 1] = 'z';
    OK(pramfs_map_persist(map, MIB - 1, 1));
    OK(pramfs_map_open(&look, file, 8, MIB - 8, 0, PROT_READ));
    bytes = pramfs_map_address(look);
    CHECK(memcmp(bytes, "through", 7) == 0 && bytes[MIB - 9] == 'z');
    CHECK(pramfs_map_len(look) == MIB - 8);
    GIVES(8, pramfs_file_write(file, "replaced", 8, 8));
    {
        char copy[8];
        OK(pramfs_map_read(look, 0, copy, 8));
        CHECK(memcmp(copy, "replaced", 8) == 0);
    }
    OK(pramfs_map_close(look));
    {
        struct pramfs_change changes[] = {
            {.data = "second", .len = 6, .offset = 100},
            {.data = "first", .len = 5, .offset = 8},
            {.data = NULL, .len = 0, .offset = 0},
        };
        bytes = pramfs_map_address(map);
        OK(pramfs_map_write_atomic(map, changes, 3));
        CHECK(memcmp(bytes + 8, "firstced", 8) == 0 && memcmp(bytes + 100, "second", 6) == 0);
        OK(pramfs_map_write_atomic(map, NULL, 0));
        /* Nothing is written if a range is wrong. */
        changes[0].offset = 10;
        changes[1].data = "other";
        GIVES(-EINVAL, pramfs_map_write_atomic(map, changes, 2));
        CHECK(strstr(pramfs_errormsg(), "overlap") != NULL);
        changes[0].offset = MIB - 5;
        GIVES(-EINVAL, pramfs_map_write_atomic(map, changes, 2));
        changes[0].offset = UINT64_MAX;
        GIVES(-EINVAL, pramfs_map_write_atomic(map, changes, 2));
        changes[2].len = 1;
        GIVES(-EINVAL, pramfs_map_write_atomic(map, changes, 3));
        CHECK(memcmp(bytes + 8, "first", 5) == 0);
        OK(pramfs_file_write_atomic(file, "whole", 5, 200));
        CHECK(memcmp(bytes + 200, "whole", 5) == 0);
    }
    OK(pramfs_map_close(map));
    OK(pramfs_file_close(file));
}

/* A region without a name: the system has a path for each descriptor. */
static void by_descriptor(void)
{
    struct pramfs_format_options *options;
    struct pramfs_fs *fs, *second;
    char path[64];
    int fd = memfd_create("region", MFD_CLOEXEC);

    CHECK(fd >= 0 && ftruncate(fd, 4 * MIB) == 0);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    OK(pramfs_format_options_new(&options));
    OK(pramfs_format_options_set_force(options, 1));
    OK(pramfs_format(path, 0, options));
    pramfs_format_options_delete(options);
    OK(pramfs_open(&fs, path, NULL));
    GIVES(-EBUSY, pramfs_open(&second, path, NULL));
    /* The descriptor is not needed any more. */
    CHECK(close(fd) == 0);
    OK(pramfs_mkdir(fs, "/d", 0755));
    OK(pramfs_unmount(fs));
}

int main(int argc, char **argv)
{
    struct pramfs_fs *fs;

    CHECK(argc == 2);
    by_descriptor();
    fs = fresh(argv[1]);
    directories(fs);
    links(fs);
    unnamed(fs);
    attributes(fs);
    files(fs);
    OK(pramfs_sync(fs));
    OK(pramfs_unmount(fs));
    puts("names: passed");
    return 0;
}
