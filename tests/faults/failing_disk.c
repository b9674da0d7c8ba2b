// Preloaded into a broker: while the file $REFUSE_FSYNC_WHILE is there, every fsync of what lies below the folder
// $FAILING_BELOW fails, as on a disk that has lost its medium behind a cache; while $REFUSE_WRITES_WHILE is there, every
// write does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static int refused(const char *variable, int descriptor) {
    const char *switch_file = getenv(variable), *folder = getenv("FAILING_BELOW");
    char link[64], path[PATH_MAX];
    int before = errno, answer = 0;
    if (switch_file && folder && !access(switch_file, F_OK)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        ssize_t length = readlink(link, path, sizeof path);
        answer = length >= (ssize_t)strlen(folder) && !memcmp(path, folder, strlen(folder));
    }
    errno = answer ? EIO : before;
    return answer;
}

// The function of this name, between the program and the C library's.
#define BETWEEN(variable, result, name, parameters, arguments)         \
    result name parameters {                                           \
        static result(*real) parameters;                               \
        if (!real) real = (result(*) parameters)dlsym(RTLD_NEXT, #name); \
        return refused(variable, descriptor) ? -1 : real arguments;    \
    }
#define SYNC(name) BETWEEN("REFUSE_FSYNC_WHILE", int, name, (int descriptor), (descriptor))
#define WRITE(name, parameters, arguments) BETWEEN("REFUSE_WRITES_WHILE", ssize_t, name, parameters, arguments)

SYNC(fsync)
SYNC(fdatasync)
SYNC(syncfs)
WRITE(write, (int descriptor, const void *bytes, size_t size), (descriptor, bytes, size))
WRITE(pwrite, (int descriptor, const void *bytes, size_t size, off_t at), (descriptor, bytes, size, at))
WRITE(pwrite64, (int descriptor, const void *bytes, size_t size, off64_t at), (descriptor, bytes, size, at))
WRITE(pwritev, (int descriptor, const struct iovec *parts, int count, off_t at), (descriptor, parts, count, at))
WRITE(pwritev64, (int descriptor, const struct iovec *parts, int count, off64_t at), (descriptor, parts, count, at))
WRITE(pwritev2, (int descriptor, const struct iovec *parts, int count, off_t at, int how),
      (descriptor, parts, count, at, how))
WRITE(pwritev64v2, (int descriptor, const struct iovec *parts, int count, off64_t at, int how),
      (descriptor, parts, count, at, how))
