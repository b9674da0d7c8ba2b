// Preloaded into a broker: while the file $REFUSE_FSYNC_WHILE is there, every fsync and fdatasync of what lies below the
// folder $REFUSE_FSYNC_BELOW fails, as on a disk that has lost its medium.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int refused(int descriptor) {
    const char *switch_file = getenv("REFUSE_FSYNC_WHILE"), *folder = getenv("REFUSE_FSYNC_BELOW");
    char link[64], path[PATH_MAX];
    if (!switch_file || !folder || access(switch_file, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    return length >= (ssize_t)strlen(folder) && !memcmp(path, folder, strlen(folder));
}

static int synced(long call, int descriptor) {
    if (refused(descriptor)) {
        errno = EIO;
        return -1;
    }
    return syscall(call, descriptor);
}

int fsync(int descriptor) { return synced(SYS_fsync, descriptor); }
int fdatasync(int descriptor) { return synced(SYS_fdatasync, descriptor); }
