/* Errors: negative errno values, and messages that say what failed, on what, and why. */
#include "check.h"

static void null_is_einval(struct pramfs_fs *fs)
{
    struct pramfs_fs *other;
    struct pramfs_file *file;
    struct pramfs_map *map;
    struct pramfs_dir *dir;
    struct pramfs_lease *lease;
    struct pramfs_view *view;
    struct pramfs_dirent entry;
    struct stat st;
    struct statvfs space;
    uint64_t n;
    char buf[8];

    GIVES(-EINVAL, pramfs_format(NULL, MIB, NULL));
    SAYS("path is NULL");
    GIVES(-EINVAL, pramfs_format_options_new(NULL));
    GIVES(-EINVAL, pramfs_format_options_set_force(NULL, 1));
    GIVES(-EINVAL, pramfs_format_options_set_label(NULL, "x"));
    GIVES(-EINVAL, pramfs_format_options_set_uuid(NULL, (const uint8_t *)"0123456789abcdef"));
    GIVES(-EINVAL, pramfs_format_options_set_block_size(NULL, 4096));
    GIVES(-EINVAL, pramfs_format_options_set_max_inodes(NULL, 100));
    GIVES(-EINVAL, pramfs_format_options_set_bytes_per_inode(NULL, 4096));
    GIVES(-EINVAL, pramfs_format_options_set_lanes(NULL, 4));
    GIVES(-EINVAL, pramfs_format_options_set_root(NULL, 0, 0, 0755));
    GIVES(-EINVAL, pramfs_options_new(NULL));
    GIVES(-EINVAL, pramfs_options_set_read_only(NULL, 1));
    GIVES(-EINVAL, pramfs_options_set_require_dax(NULL, 1));
    GIVES(-EINVAL, pramfs_options_set_preallocate(NULL, 1));
    GIVES(-EINVAL, pramfs_options_set_fault_guard(NULL, 1));
    GIVES(-EINVAL, pramfs_options_set_durability(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_backend(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_protect(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_data(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_errors(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_atime(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_cache_size(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_discard(NULL, 0));
    GIVES(-EINVAL, pramfs_options_set_creator(NULL, 0, 0, 0));

    GIVES(-EINVAL, pramfs_open(NULL, "x", NULL));
    SAYS("fs is NULL");
    GIVES(-EINVAL, pramfs_open(&other, NULL, NULL));
    SAYS("region is NULL");
    GIVES(-EINVAL, pramfs_unmount(NULL));
    GIVES(-EINVAL, pramfs_sync(NULL));
    GIVES(-EINVAL, pramfs_statvfs(NULL, &space));
    GIVES(-EINVAL, pramfs_statvfs(fs, NULL));

    GIVES(-EINVAL, pramfs_mkdir(NULL, "/d", 0755));
    GIVES(-EINVAL, pramfs_mkdir(fs, NULL, 0755));
    GIVES(-EINVAL, pramfs_mkdir_all(fs, NULL));
    GIVES(-EINVAL, pramfs_unlink(NULL, "/f"));
    GIVES(-EINVAL, pramfs_unlink(fs, NULL));
    GIVES(-EINVAL, pramfs_rmdir(fs, NULL));
    GIVES(-EINVAL, pramfs_remove_all(fs, NULL));
    GIVES(-EINVAL, pramfs_rename(NULL, "/a", "/b", 0));
    GIVES(-EINVAL, pramfs_rename(fs, NULL, "/b", 0));
    SAYS("old_path is NULL");
    GIVES(-EINVAL, pramfs_rename(fs, "/a", NULL, 0));
    SAYS("new_path is NULL");
    GIVES(-EINVAL, pramfs_link(fs, "/a", NULL));
    GIVES(-EINVAL, pramfs_symlink(fs, NULL, "/b"));
    GIVES(-EINVAL, pramfs_symlink(fs, "/a", NULL));
    GIVES(-EINVAL, pramfs_readlink(fs, NULL, buf, sizeof buf));
    GIVES(-EINVAL, pramfs_readlink(fs, "/a", NULL, 8));
    GIVES(-EINVAL, pramfs_exists(fs, NULL));
    GIVES(-EINVAL, pramfs_chmod(fs, NULL, 0644));
    GIVES(-EINVAL, pramfs_chown(fs, NULL, 0, 0));
    GIVES(-EINVAL, pramfs_lchown(fs, NULL, 0, 0));
    GIVES(-EINVAL, pramfs_utimens(fs, NULL, NULL));
    GIVES(-EINVAL, pramfs_copy(fs, NULL, "/b"));
    GIVES(-EINVAL, pramfs_stat(fs, "/", NULL));
    GIVES(-EINVAL, pramfs_stat(fs, NULL, &st));
    GIVES(-EINVAL, pramfs_lstat(NULL, "/", &st));
    GIVES(-EINVAL, pramfs_getxattr(fs, "/", NULL, buf, sizeof buf));
    GIVES(-EINVAL, pramfs_setxattr(fs, "/", NULL, buf, sizeof buf, 0));
    GIVES(-EINVAL, pramfs_setxattr(fs, "/", "user.a", NULL, 8, 0));
    SAYS("value is NULL");
    GIVES(-EINVAL, pramfs_listxattr(fs, NULL, buf, sizeof buf));
    GIVES(-EINVAL, pramfs_removexattr(fs, "/", NULL));
    GIVES(-EINVAL, pramfs_dir_open(NULL, fs, "/"));
    GIVES(-EINVAL, pramfs_dir_open(&dir, NULL, "/"));
    GIVES(-EINVAL, pramfs_dir_open(&dir, fs, NULL));
    GIVES(-EINVAL, pramfs_dir_read(NULL, &entry));
    OK(pramfs_dir_open(&dir, fs, "/"));
    GIVES(-EINVAL, pramfs_dir_read(dir, NULL));
    OK(pramfs_dir_close(dir));

    GIVES(-EINVAL, pramfs_file_open(NULL, fs, "/f", O_RDONLY, 0));
    GIVES(-EINVAL, pramfs_file_open(&file, NULL, "/f", O_RDONLY, 0));
    GIVES(-EINVAL, pramfs_file_open(&file, fs, NULL, O_RDONLY, 0));
    GIVES(-EINVAL, pramfs_file_read(NULL, buf, 1, 0));
    GIVES(-EINVAL, pramfs_file_write(NULL, buf, 1, 0));
    GIVES(-EINVAL, pramfs_file_write_atomic(NULL, buf, 1, 0));
    GIVES(-EINVAL, pramfs_file_append(NULL, buf, 1, &n));
    GIVES(-EINVAL, pramfs_file_sync(NULL));
    GIVES(-EINVAL, pramfs_file_datasync(NULL));
    GIVES(-EINVAL, pramfs_file_size(NULL, &n));
    GIVES(-EINVAL, pramfs_file_stat(NULL, &st));
    GIVES(-EINVAL, pramfs_file_truncate(NULL, 0));
    GIVES(-EINVAL, pramfs_file_fallocate(NULL, 0, 0, 1));
    GIVES(-EINVAL, pramfs_file_link(NULL, fs, "/f"));
    file = made(fs, "/null");
    GIVES(-EINVAL, pramfs_file_read(file, NULL, 1, 0));
    SAYS("buf is NULL");
    GIVES(-EINVAL, pramfs_file_write(file, NULL, 1, 0));
    GIVES(-EINVAL, pramfs_file_write_atomic(file, NULL, 1, 0));
    GIVES(-EINVAL, pramfs_file_append(file, NULL, 1, NULL));
    GIVES(-EINVAL, pramfs_file_size(file, NULL));
    GIVES(-EINVAL, pramfs_file_stat(file, NULL));
    GIVES(-EINVAL, pramfs_file_read(file, buf, SIZE_MAX, 0));
    GIVES(-EINVAL, pramfs_file_link(file, NULL, "/f"));
    GIVES(-EINVAL, pramfs_file_link(file, fs, NULL));
    /* No bytes need no buffer. */
    GIVES(0, pramfs_file_read(file, NULL, 0, 0));
    GIVES(0, pramfs_file_write(file, NULL, 0, 0));
    GIVES(0, pramfs_file_write_atomic(file, NULL, 0, 0));
    GIVES(0, pramfs_file_append(file, NULL, 0, NULL));

    GIVES(-EINVAL, pramfs_map_open(NULL, file, 0, 1, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_map_open(&map, NULL, 0, 1, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_map_persist(NULL, 0, 1));
    GIVES(-EINVAL, pramfs_map_flush(NULL, 0, 1));
    GIVES(-EINVAL, pramfs_map_drain(NULL));
    GIVES(-EINVAL, pramfs_map_read(NULL, 0, buf, 1));
    GIVES(-EINVAL, pramfs_map_write(NULL, 0, buf, 1));
    GIVES(-EINVAL, pramfs_map_write_atomic(NULL, NULL, 0));
    GIVES(-EINVAL, pramfs_map_extend(NULL, 1));
    GIVES(-EINVAL, pramfs_map_populate(NULL));
    GIVES(-EINVAL, pramfs_map_advise(NULL, 0, 1, PRAMFS_ADVICE_NORMAL));
    CHECK(pramfs_map_address(NULL) == NULL);
    CHECK(pramfs_map_len(NULL) == 0 && pramfs_map_reserved(NULL) == 0);
    OK(pramfs_file_close(file));

    GIVES(-EINVAL, pramfs_lease_open(NULL, "/f", O_RDONLY, NULL));
    GIVES(-EINVAL, pramfs_lease_open(&lease, NULL, O_RDWR, NULL));
    GIVES(-EINVAL, pramfs_lease_open_fd(NULL, 0, O_RDONLY, NULL));
    GIVES(-EINVAL, pramfs_lease_read(NULL, buf, 1, 0));
    GIVES(-EINVAL, pramfs_lease_write(NULL, buf, 1, 0));
    GIVES(-EINVAL, pramfs_lease_size(NULL, &n));
    GIVES(-EINVAL, pramfs_view_open(NULL, NULL, 0, 1, PROT_READ));
    GIVES(-EINVAL, pramfs_view_open(&view, NULL, 0, 1, PROT_READ));
    GIVES(-EINVAL, pramfs_view_persist(NULL, 0, 1));
    GIVES(-EINVAL, pramfs_view_flush(NULL, 0, 1));
    GIVES(-EINVAL, pramfs_view_drain(NULL));
    GIVES(-EINVAL, pramfs_view_read(NULL, 0, buf, 1));
    GIVES(-EINVAL, pramfs_view_write(NULL, 0, buf, 1));
    GIVES(-EINVAL, pramfs_view_populate(NULL));
    GIVES(-EINVAL, pramfs_view_is_current(NULL));
    CHECK(pramfs_view_address(NULL) == NULL && pramfs_view_len(NULL) == 0);

    /* Closing NULL does nothing. */
    OK(pramfs_close(NULL));
    OK(pramfs_file_close(NULL));
    OK(pramfs_map_close(NULL));
    OK(pramfs_dir_close(NULL));
    OK(pramfs_lease_close(NULL));
    OK(pramfs_view_close(NULL));
    pramfs_options_delete(NULL);
    pramfs_format_options_delete(NULL);
}

static void regions(const char *region)
{
    struct pramfs_fs *fs = NULL, *second;
    struct pramfs_format_options *options;
    struct stat st;

    CHECK(strcmp(pramfs_errormsg(), "") == 0);
    GIVES(-ENOENT, pramfs_open(&fs, region, NULL));
    CHECK(fs == NULL);
    SAYS("cannot open");
    SAYS(region);

    GIVES(-EINVAL, pramfs_format(region, 0, NULL));
    GIVES(-EINVAL, pramfs_format(region, 4096, NULL));
    SAYS("262144");
    CHECK(access(region, F_OK) != 0);
    OK(pramfs_format(region, MIB, NULL));
    GIVES(-EEXIST, pramfs_format(region, MIB, NULL));
    SAYS(region);

    OK(pramfs_format_options_new(&options));
    OK(pramfs_format_options_set_force(options, 1));
    GIVES(-EEXIST, pramfs_format(region, 2 * MIB, options));
    OK(pramfs_format_options_set_block_size(options, 777));
    GIVES(-EINVAL, pramfs_format(region, MIB, options));
    SAYS("512, 1024, 2048 and 4096");
    OK(pramfs_format_options_set_block_size(options, 4096));
    GIVES(-EINVAL, pramfs_format_options_set_label(options, NULL));
    GIVES(-EINVAL, pramfs_format_options_set_label(options, "\xff"));
    SAYS("not UTF-8");
    GIVES(-EINVAL, pramfs_format_options_set_uuid(options, NULL));
    SAYS("uuid is NULL");
    OK(pramfs_format_options_set_uuid(options, (const uint8_t *)"0123456789abcdef"));
    OK(pramfs_format_options_set_label(options, "label"));
    OK(pramfs_format_options_set_root(options, 5, 6, 01777));
    OK(pramfs_format_options_set_lanes(options, 65));
    GIVES(-EINVAL, pramfs_format(region, MIB, options));
    SAYS("65 journal lanes");
    OK(pramfs_format_options_set_lanes(options, 3));
    OK(pramfs_format_options_set_max_inodes(options, 100));
    OK(pramfs_format(region, MIB, options));
    OK(pramfs_format(region, 0, options));

    /* One process, one file system. */
    OK(pramfs_open(&fs, region, NULL));
    GIVES(-EBUSY, pramfs_open(&second, region, NULL));
    GIVES(-EBUSY, pramfs_format(region, 0, options));
    OK(pramfs_stat(fs, "/", &st));
    CHECK(st.st_uid == 5 && st.st_gid == 6 && st.st_mode == (S_IFDIR | 01777));
    OK(pramfs_close(fs));
    pramfs_format_options_delete(options);

    /* No file system. */
    CHECK(truncate(region, 0) == 0 && truncate(region, MIB) == 0);
    GIVES(-EINVAL, pramfs_open(&fs, region, NULL));
    SAYS("cannot mount");
    CHECK(unlink(region) == 0);
}

static void options(const char *region)
{
    struct pramfs_options *options;
    struct pramfs_fs *fs, *second;
    struct pramfs_file *file;
    struct stat st;

    OK(pramfs_options_new(&options));
    GIVES(-EINVAL, pramfs_options_set_durability(options, 9));
    SAYS("9 is no value of the durability");
    GIVES(-EINVAL, pramfs_options_set_backend(options, -1));
    GIVES(-EINVAL, pramfs_options_set_protect(options, 4));
    SAYS("4 is no value of the protection");
    GIVES(-EINVAL, pramfs_options_set_data(options, 2));
    SAYS("2 is no value of the data mode");
    GIVES(-EINVAL, pramfs_options_set_errors(options, 3));
    GIVES(-EINVAL, pramfs_options_set_atime(options, 3));
    GIVES(-EINVAL, pramfs_options_set_creator(options, 0, 0, 01000));
    OK(pramfs_options_set_durability(options, PRAMFS_DURABILITY_PROCESS));
    OK(pramfs_options_set_backend(options, PRAMFS_BACKEND_NATIVE));
    OK(pramfs_options_set_protect(options, PRAMFS_PROTECT_MPROTECT));
    OK(pramfs_options_set_data(options, PRAMFS_DATA_ATOMIC));
    OK(pramfs_options_set_errors(options, PRAMFS_ERRORS_CONTINUE));
    OK(pramfs_options_set_atime(options, PRAMFS_ATIME_NEVER));
    OK(pramfs_options_set_cache_size(options, 1 << 20));
    OK(pramfs_options_set_discard(options, 1));
    OK(pramfs_options_set_preallocate(options, 1));
    OK(pramfs_options_set_fault_guard(options, 1));
    OK(pramfs_options_set_creator(options, 12, 34, 027));
    OK(pramfs_format(region, MIB, NULL));
    OK(pramfs_open(&fs, region, options));
    OK(pramfs_file_close(made(fs, "/f")));
    OK(pramfs_mkdir(fs, "/d", 0777));
    OK(pramfs_stat(fs, "/f", &st));
    CHECK(st.st_uid == 12 && st.st_gid == 34 && st.st_mode == (S_IFREG | 0640));
    OK(pramfs_stat(fs, "/d", &st));
    CHECK(st.st_uid == 12 && st.st_gid == 34 && st.st_mode == (S_IFDIR | 0750));
    OK(pramfs_close(fs));

    OK(pramfs_options_set_require_dax(options, 1));
    GIVES(-EOPNOTSUPP, pramfs_open(&fs, region, options));
    OK(pramfs_options_set_require_dax(options, 0));

    /* Readers share a region. */
    OK(pramfs_options_set_read_only(options, 1));
    OK(pramfs_open(&fs, region, options));
    OK(pramfs_open(&second, region, options));
    GIVES(-EROFS, pramfs_unlink(fs, "/f"));
    GIVES(-EROFS, pramfs_file_open(&file, second, "/new", O_RDWR | O_CREAT, 0644));
    OK(pramfs_close(second));
    OK(pramfs_close(fs));
    pramfs_options_delete(options);
    CHECK(unlink(region) == 0);
}

static void files(struct pramfs_fs *fs)
{
    struct pramfs_file *file, *reader, *log;
    struct pramfs_map *map = NULL;
    uint64_t at = 77;
    char buf[8] = "unset";

    file = NULL;
    GIVES(-ENOENT, pramfs_file_open(&file, fs, "/no/file", O_RDONLY, 0));
    CHECK(file == NULL);
    CHECK(strcmp(pramfs_errormsg(), "cannot open /no/file: no such file or directory") == 0);
    GIVES(-EISDIR, pramfs_file_open(&file, fs, "/", O_RDWR, 0));
    GIVES(-EINVAL, pramfs_file_open(&file, fs, "/f", O_RDONLY | O_DIRECTORY, 0));
    GIVES(-EINVAL, pramfs_file_open(&file, fs, "/f", O_RDONLY | O_CREAT, 0644));
    SAYS("creating a file needs write or append");
    file = made(fs, "/f");
    GIVES(-EEXIST, pramfs_file_open(&reader, fs, "/f", O_RDWR | O_CREAT | O_EXCL, 0644));
    OK(pramfs_file_open(&reader, fs, "/f", O_RDONLY | O_CLOEXEC, 0));
    OK(pramfs_file_open(&log, fs, "/f", O_WRONLY | O_APPEND, 0));
    GIVES(-EBADF, pramfs_file_write(reader, "x", 1, 0));
    SAYS("cannot write /f at byte 0");
    GIVES(-EBADF, pramfs_file_write_atomic(reader, "x", 1, 0));
    GIVES(-EBADF, pramfs_file_append(reader, "x", 1, &at));
    CHECK(at == 77);
    GIVES(-EBADF, pramfs_file_truncate(reader, 0));
    GIVES(-EBADF, pramfs_file_fallocate(reader, 0, 0, 1));
    GIVES(-EBADF, pramfs_file_read(log, buf, 1, 0));
    GIVES(-EBADF, pramfs_file_write(log, "x", 1, 0));
    OK(pramfs_file_append(log, "abc", 3, &at));
    CHECK(at == 0);
    OK(pramfs_file_append(log, "def", 3, &at));
    CHECK(at == 3);
    GIVES(6, pramfs_file_read(reader, buf, sizeof buf, 0));
    CHECK(memcmp(buf, "abcdef", 6) == 0);
    GIVES(0, pramfs_file_read(reader, buf, sizeof buf, 6));
    GIVES(-EFBIG, pramfs_file_write(file, "x", 1, UINT64_MAX));
    GIVES(-EFBIG, pramfs_file_write_atomic(file, "x", 1, UINT64_MAX));
    GIVES(-EOPNOTSUPP, pramfs_file_fallocate(file, PRAMFS_FALLOC_PUNCH_HOLE, 0, 1));
    GIVES(-ENOSPC, pramfs_file_fallocate(file, 0, 0, 1024 * MIB));

    GIVES(-EINVAL, pramfs_map_open(&map, file, 0, 0, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_map_open(&map, file, 0, 4096, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_map_open(&map, file, UINT64_MAX, 2, 0, PROT_READ));
    GIVES(-EINVAL, pramfs_map_open(&map, file, 0, 6, 0, PROT_WRITE));
    GIVES(-EINVAL, pramfs_map_open(&map, file, 0, 6, 0, PROT_READ | PROT_EXEC));
    SAYS("PROT_READ, or PROT_READ | PROT_WRITE");
    GIVES(-EBADF, pramfs_map_open(&map, reader, 0, 6, 0, PROT_READ | PROT_WRITE));
    CHECK(map == NULL);
    OK(pramfs_map_open(&map, reader, 0, 6, 0, PROT_READ));
    GIVES(-EACCES, pramfs_map_write(map, 0, "x", 1));
    GIVES(-EBADF, pramfs_map_write_atomic(map, NULL, 0));
    GIVES(-EINVAL, pramfs_map_read(map, 6, buf, 1));
    GIVES(-EINVAL, pramfs_map_persist(map, 5, 2));
    GIVES(-EINVAL, pramfs_map_persist(map, UINT64_MAX, 2));
    GIVES(-EINVAL, pramfs_map_extend(map, 7));
    GIVES(-EINVAL, pramfs_map_advise(map, 0, 6, 9));
    OK(pramfs_map_close(map));
    OK(pramfs_file_close(log));
    OK(pramfs_file_close(reader));
    OK(pramfs_file_close(file));
}

/* The message belongs to a thread, and a success leaves it alone. */
static void *message_of_thread(void *fs)
{
    CHECK(strcmp(pramfs_errormsg(), "") == 0);
    GIVES(-ENOENT, pramfs_unlink(fs, "/thread"));
    SAYS("/thread");
    OK(pramfs_sync(fs));
    SAYS("/thread");
    return NULL;
}

static void leases(void)
{
    const int wrong[] = {O_WRONLY, O_WRONLY | O_RDWR, O_RDWR | O_CREAT, O_RDWR | O_APPEND,
                         O_RDONLY | O_CLOEXEC, -1};
    struct pramfs_lease *lease = NULL;
    size_t i;

    GIVES(-ENOTTY, pramfs_lease_open(&lease, "/proc/self/status", O_RDONLY, NULL));
    SAYS("/proc/self/status");
    GIVES(-ENOENT, pramfs_lease_open(&lease, "/no/such/file", O_RDONLY, NULL));
    GIVES(-ENOENT, pramfs_lease_open(&lease, "/no/such/file", O_RDWR, NULL));
    GIVES(-EBADF, pramfs_lease_open_fd(&lease, -1, O_RDONLY, NULL));
    GIVES(-EBADF, pramfs_lease_open_fd(&lease, 1000000, O_RDWR, NULL));
    for (i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        GIVES(-EINVAL, pramfs_lease_open(&lease, "/no/such/file", wrong[i], NULL));
        SAYS("neither O_RDONLY nor O_RDWR");
        GIVES(-EINVAL, pramfs_lease_open_fd(&lease, -1, wrong[i], NULL));
    }
    CHECK(lease == NULL);
}

int main(int argc, char **argv)
{
    struct pramfs_fs *fs;
    pthread_t thread;

    CHECK(argc == 2);
    regions(argv[1]);
    options(argv[1]);
    fs = fresh(argv[1]);
    null_is_einval(fs);
    files(fs);
    leases();
    GIVES(-ENOENT, pramfs_unlink(fs, "/main"));
    CHECK(pthread_create(&thread, NULL, message_of_thread, fs) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    SAYS("/main");
    OK(pramfs_close(fs));
    puts("errors: passed");
    return 0;
}
