/* Several threads use the same handles. */
#include "check.h"

enum { THREADS = 4, ROUNDS = 100 };

static struct pramfs_fs *fs;
static struct pramfs_file *log_file;
static struct pramfs_map *map;
static struct pramfs_dir *dir;
static int entries;

static void *work(void *number)
{
    struct pramfs_dirent entry;
    struct pramfs_file *own;
    uint64_t *counter = pramfs_map_address(map), at;
    char line[16], back[16], path[32];
    int i, result;

    for (i = 0; i < ROUNDS; i++) {
        snprintf(line, sizeof line, "%3d %11d", *(int *)number, i);
        OK(pramfs_file_append(log_file, line, 15, &at));
        CHECK(at % 15 == 0);
        GIVES(15, pramfs_file_read(log_file, back, 15, at));
        CHECK(memcmp(line, back, 15) == 0);
        __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
        OK(pramfs_map_persist(map, 0, 8));
        snprintf(path, sizeof path, "/%d-%d", *(int *)number, i);
        own = made(fs, path);
        OK(pramfs_unlink(fs, path));
        OK(pramfs_file_close(own));
        GIVES(-ENOENT, pramfs_unlink(fs, path));
        SAYS(path);
    }
    /* Each entry goes to one thread. */
    while ((result = pramfs_dir_read(dir, &entry)) == 1)
        __atomic_fetch_add(&entries, 1, __ATOMIC_SEQ_CST);
    OK(result);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[THREADS];
    int numbers[THREADS], i;
    struct pramfs_file *table;
    char path[32];
    uint64_t size;

    CHECK(argc == 2);
    fs = fresh(argv[1]);
    OK(pramfs_mkdir(fs, "/d", 0755));
    for (i = 0; i < 500; i++) {
        snprintf(path, sizeof path, "/d/%d", i);
        OK(pramfs_file_close(made(fs, path)));
    }
    log_file = made(fs, "/log");
    table = made(fs, "/table");
    OK(pramfs_file_truncate(table, 4096));
    OK(pramfs_map_open(&map, table, 0, 4096, 0, PROT_READ | PROT_WRITE));
    OK(pramfs_file_close(table));
    OK(pramfs_dir_open(&dir, fs, "/d"));
    for (i = 0; i < THREADS; i++) {
        numbers[i] = i;
        CHECK(pthread_create(&threads[i], NULL, work, &numbers[i]) == 0);
    }
    for (i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(*(uint64_t *)pramfs_map_address(map) == THREADS * ROUNDS);
    OK(pramfs_file_size(log_file, &size));
    CHECK(size == THREADS * ROUNDS * 15);
    CHECK(entries == 500);
    OK(pramfs_dir_close(dir));
    OK(pramfs_map_close(map));
    OK(pramfs_file_close(log_file));
    OK(pramfs_unmount(fs));
    puts("threads: passed");
    return 0;
}
