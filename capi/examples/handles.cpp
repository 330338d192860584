/*
 * Handles that close themselves, from C++11.
 *
 *   c++ -std=c++11 -o handles handles.cpp $(pkg-config --cflags --libs pramfs)
 *   ./handles region          # makes a region, writes and maps a file
 *   ./handles --mounted /mnt/data/file         # reads a file of a mount by a lease (root)
 *   ./handles --mounted /mnt/data/file TEXT    # stores TEXT over its first bytes before
 */
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <sys/mman.h>

#include <pramfs.h>

namespace {

/// An error of the library: its errno, and its message.
class Error : public std::runtime_error {
public:
    explicit Error(std::int64_t result)
        : std::runtime_error(pramfs_errormsg()), number(static_cast<int>(-result))
    {
    }
    const int number;
};

std::int64_t must(std::int64_t result)
{
    if (result < 0)
        throw Error(result);
    return result;
}

/// Closes a handle. An error of the medium at the last close is lost here: a program that
/// must know it calls pramfs_unmount.
template <typename T, int (*close)(T *)> struct Closer {
    void operator()(T *handle) const { close(handle); }
};

template <typename T, int (*close)(T *)> using Handle = std::unique_ptr<T, Closer<T, close>>;

using Fs = Handle<pramfs_fs, pramfs_close>;
using File = Handle<pramfs_file, pramfs_file_close>;
using Map = Handle<pramfs_map, pramfs_map_close>;
using Lease = Handle<pramfs_lease, pramfs_lease_close>;
using View = Handle<pramfs_view, pramfs_view_close>;

Fs open(const std::string &region)
{
    pramfs_fs *fs;
    must(pramfs_open(&fs, region.c_str(), nullptr));
    return Fs(fs);
}

File open(Fs &fs, const std::string &path, int flags)
{
    pramfs_file *file;
    must(pramfs_file_open(&file, fs.get(), path.c_str(), flags, 0644));
    return File(file);
}

Map map(File &file, std::uint64_t len)
{
    pramfs_map *map;
    must(pramfs_map_open(&map, file.get(), 0, len, 0, PROT_READ | PROT_WRITE));
    return Map(map);
}

void in_process(const std::string &region)
{
    must(pramfs_format(region.c_str(), 16 << 20, nullptr));
    Map view;
    {
        Fs fs = open(region);
        File file = open(fs, "/greeting", O_RDWR | O_CREAT);
        must(pramfs_file_append(file.get(), "hello", 5, nullptr));
        view = map(file, 5);
        // Closed here, in any order: the map keeps the file system mounted.
    }
    std::memcpy(pramfs_map_address(view.get()), "HELLO", 5);
    must(pramfs_map_persist(view.get(), 0, 5));
    // The last handle: it unmounts.
    view.reset();

    Fs fs = open(region);
    File file = open(fs, "/greeting", O_RDONLY);
    char back[16];
    std::int64_t n = must(pramfs_file_read(file.get(), back, sizeof back, 0));
    std::cout << std::string(back, static_cast<std::size_t>(n)) << '\n';
    try {
        open(fs, "/missing", O_RDONLY);
    } catch (const Error &e) {
        std::cout << "errno " << e.number << ": " << e.what() << '\n';
    }
}

void by_lease(const std::string &path, const std::string &stored)
{
    const bool writes = !stored.empty();
    pramfs_lease *opened;
    must(pramfs_lease_open(&opened, path.c_str(), writes ? O_RDWR | PRAMFS_LEASE_PROTECT_AUTO : O_RDONLY, nullptr));
    Lease file(opened);
    std::uint64_t size;
    must(pramfs_lease_size(file.get(), &size));
    pramfs_view *mapped;
    must(pramfs_view_open(&mapped, file.get(), 0, size,
                          writes ? PROT_READ | PROT_WRITE : PROT_READ));
    View view(mapped);
    if (writes) {
        // By a call that checks the length; memcpy to pramfs_view_address() is as good.
        must(pramfs_view_write(view.get(), 0, stored.data(), stored.size()));
        must(pramfs_view_persist(view.get(), 0, stored.size()));
    }
    std::string text(size, '\0');
    must(pramfs_view_read(view.get(), 0, &text[0], text.size()));
    std::cout << text;
}

} // namespace

int main(int argc, char **argv)
{
    try {
        if (argc == 2)
            in_process(argv[1]);
        else if ((argc == 3 || argc == 4) && std::string(argv[1]) == "--mounted")
            by_lease(argv[2], argc == 4 ? argv[3] : "");
        else
            throw std::runtime_error("usage: handles REGION, or handles --mounted FILE [TEXT]");
    } catch (const std::exception &e) {
        std::cerr << "handles: " << e.what() << '\n';
        return 1;
    }
    return 0;
}
