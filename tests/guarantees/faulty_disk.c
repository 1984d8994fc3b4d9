/* Stands between a database and the C library, and does to its files what a bad disk would.
 *
 * The file named by RELAY_FAULT says what is to happen, and nothing happens while it is missing:
 *   sync-fails   fsync and fdatasync of the write-ahead log fail with EIO
 *   sync-hangs   they wait until the file is gone
 *   write-fails  writes to the log fail with EIO
 *   quota        writes to the log fail with EDQUOT, and so does the allocation of space in any file
 *   quota-sync   fsync and fdatasync of the log fail with EDQUOT, as on a network file system
 *   full         writes past the end of any file fail with ENOSPC, as PostgreSQL's do on a full disk
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int told(const char *wanted) {
    char text[32] = "";
    const char *path = getenv("RELAY_FAULT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    return size > 0 && strcmp(text, wanted) == 0;
}

static int is_log(int file) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, sizeof path);
    return size > 4 && memcmp(path + size - 4, "-wal", 4) == 0;
}

static int is_refused(int file, off_t at) {
    struct stat found;
    return fstat(file, &found) == 0 && at >= found.st_size && told("full");
}

static int sync_faulty(int file, const char *name) {
    int (*real)(int) = dlsym(RTLD_NEXT, name);
    if (is_log(file)) {
        if (told("sync-fails")) return errno = EIO, -1;
        if (told("quota-sync")) return errno = EDQUOT, -1;
        while (told("sync-hangs")) usleep(2000);
    }
    return real(file);
}

int fsync(int file) { return sync_faulty(file, "fsync"); }
int fdatasync(int file) { return sync_faulty(file, "fdatasync"); }

static ssize_t write_faulty(int file, const void *data, size_t size, off_t at, const char *name) {
    ssize_t (*real)(int, const void *, size_t, off_t) = dlsym(RTLD_NEXT, name);
    if (is_log(file)) {
        if (told("write-fails")) return errno = EIO, -1;
        if (told("quota")) return errno = EDQUOT, -1;
    }
    if (is_refused(file, at)) return errno = ENOSPC, -1;
    return real(file, data, size, at);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return write_faulty(file, data, size, at, "pwrite");
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return write_faulty(file, data, size, at, "pwrite64");
}

static ssize_t gather_faulty(int file, const struct iovec *data, int count, off_t at, const char *name) {
    ssize_t (*real)(int, const struct iovec *, int, off_t) = dlsym(RTLD_NEXT, name);
    if (is_refused(file, at)) return errno = ENOSPC, -1;
    return real(file, data, count, at);
}

ssize_t pwritev(int file, const struct iovec *data, int count, off_t at) {
    return gather_faulty(file, data, count, at, "pwritev");
}

ssize_t pwritev64(int file, const struct iovec *data, int count, off64_t at) {
    return gather_faulty(file, data, count, at, "pwritev64");
}

static int allocate_faulty(int file, off_t at, off_t size, const char *name) {
    int (*real)(int, off_t, off_t) = dlsym(RTLD_NEXT, name);
    return told("quota") ? EDQUOT : real(file, at, size);
}

int posix_fallocate(int file, off_t at, off_t size) {
    return allocate_faulty(file, at, size, "posix_fallocate");
}

int posix_fallocate64(int file, off64_t at, off64_t size) {
    return allocate_faulty(file, at, size, "posix_fallocate64");
}
