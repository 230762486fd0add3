/* Makes the disk fail under one directory, for a process that is started with this in LD_PRELOAD.
 *
 * Why a preload and not a small file system: it needs no rights, fails single calls, and can stop failing. What the
 * process does elsewhere (sockets, event counters, its log) is passed on untouched.
 *
 * SPINDLE_CHAOS_DISK is a file of at least 64 bytes, mapped by us and by whoever decides; its first word is the mode,
 * its second counts the calls that were spoiled. SPINDLE_CHAOS_DISK_DIR is the directory, as /proc shows it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    PASS,       /* nothing is spoiled */
    FULL,       /* writing and allocating fail: no space */
    WRITE_EIO,  /* writing fails: input/output error */
    SYNC_EIO,   /* syncing fails */
    SHORT,      /* half of what is asked is written, and that is no error */
    TORN_FULL,  /* half of what is asked is written, then there is no space */
    SLOW,       /* syncing takes 80 ms */
};

struct control {
    volatile uint32_t mode;
    volatile uint32_t spoiled;
};

static struct control *control;
static const char *directory;
static size_t directory_size;

static void counted(void) { control->spoiled++; } /* a hint that the fault was met; one lost in a race does no harm */

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("SPINDLE_CHAOS_DISK");
    directory = getenv("SPINDLE_CHAOS_DISK_DIR");
    if (!path || !directory)
        return;
    directory_size = strlen(directory);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *page = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED)
        control = page;
}

/* The mode for calls on fd: PASS unless it is a file below the directory. */
static uint32_t mode_of(int fd) {
    if (!control || control->mode == PASS)
        return PASS;
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= (ssize_t)directory_size || memcmp(path, directory, directory_size) || path[directory_size] != '/')
        return PASS;
    return control->mode;
}

static int refused(int error) {
    counted();
    errno = error;
    return -1;
}

/* What a write of size bytes becomes: bytes to really write, or -1 with errno set. */
static ssize_t spoil(int fd, size_t size) {
    static __thread int torn;
    switch (mode_of(fd)) {
    case FULL:
        return refused(ENOSPC);
    case WRITE_EIO:
        return refused(EIO);
    case SHORT:
        if (size > 1) {
            counted();
            return size / 2;
        }
        return size;
    case TORN_FULL:
        if (!torn && size > 1) {
            torn = 1;
            counted();
            return size / 2;
        }
        torn = 0;
        return refused(ENOSPC);
    default:
        return size;
    }
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    ssize_t allowed = spoil(fd, size);
    return allowed < 0 ? -1 : real(fd, data, allowed);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    REAL(pwrite);
    ssize_t allowed = spoil(fd, size);
    return allowed < 0 ? -1 : real(fd, data, allowed, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    ssize_t allowed = spoil(fd, size);
    return allowed < 0 ? -1 : real(fd, data, allowed, offset);
}

/* Gathers at most `allowed` bytes of the parts: a vector that is cut in its middle. */
static size_t cut(const struct iovec *parts, int count, size_t allowed, struct iovec *kept) {
    int used = 0;
    for (int i = 0; i < count && allowed; i++) {
        kept[used] = parts[i];
        if (kept[used].iov_len > allowed)
            kept[used].iov_len = allowed;
        allowed -= kept[used++].iov_len;
    }
    return used;
}

static size_t sum(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int i = 0; i < count; i++)
        size += parts[i].iov_len;
    return size;
}

#define VECTOR(name, offset_type, call) \
    REAL(name); \
    if (mode_of(fd) == PASS || count > 1024 || count < 0) \
        return real call(parts, count); \
    ssize_t allowed = spoil(fd, sum(parts, count)); \
    if (allowed < 0) \
        return -1; \
    struct iovec kept[1024]; \
    return real call(kept, (int)cut(parts, count, allowed, kept))

ssize_t writev(int fd, const struct iovec *parts, int count) {
#define CALL(v, n) (fd, v, n)
    VECTOR(writev, off_t, CALL);
#undef CALL
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
#define CALL(v, n) (fd, v, n, offset)
    VECTOR(pwritev, off_t, CALL);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    VECTOR(pwritev64, off64_t, CALL);
#undef CALL
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t offset, int flags) {
#define CALL(v, n) (fd, v, n, offset, flags)
    VECTOR(pwritev2, off_t, CALL);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t offset, int flags) {
    VECTOR(pwritev64v2, off64_t, CALL);
#undef CALL
}

/* 0, or what a sync returns instead. */
static int spoil_sync(int fd) {
    switch (mode_of(fd)) {
    case SYNC_EIO:
        return refused(EIO);
    case SLOW: {
        struct timespec pause = {0, 80 * 1000 * 1000};
        counted();
        nanosleep(&pause, NULL);
        return 0;
    }
    default:
        return 0;
    }
}

int fsync(int fd) {
    REAL(fsync);
    return spoil_sync(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return spoil_sync(fd) ? -1 : real(fd);
}

/* Returns the error, unlike the others. */
int posix_fallocate(int fd, off_t offset, off_t size) {
    REAL(posix_fallocate);
    uint32_t mode = mode_of(fd);
    if (mode == FULL || mode == TORN_FULL) {
        counted();
        return ENOSPC;
    }
    return real(fd, offset, size);
}

int posix_fallocate64(int fd, off64_t offset, off64_t size) {
    REAL(posix_fallocate64);
    uint32_t mode = mode_of(fd);
    if (mode == FULL || mode == TORN_FULL) {
        counted();
        return ENOSPC;
    }
    return real(fd, offset, size);
}
