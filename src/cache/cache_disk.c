/* Bounded reading and atomic writing. A reader sees a file as it was or as it will be, never between: what is written
 * goes to a temporary file beside it, reaches the disk, and takes the name. */
#include "cache/cache_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/trust.h"

static const char temporary_prefix[] = ".tmp-";
enum { STALE_SECONDS = 3600, FOLDER_MODE = 0755, FILE_MODE = 0644 };

bool sat_path_join(char out[SAT_PATH_CAPACITY], const char *folder, const char *name) {
    int n = snprintf(out, SAT_PATH_CAPACITY, "%s/%s", folder, name);
    return n > 0 && n < SAT_PATH_CAPACITY;
}

bool sat_path_folder(char out[SAT_PATH_CAPACITY], const char *path) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    if (length >= SAT_PATH_CAPACITY) return false;
    if (!length) return strcpy(out, slash ? "/" : "."), true;
    memcpy(out, path, length);
    out[length] = 0;
    return true;
}

int sat_disk_make(const char *folder) {
    char path[SAT_PATH_CAPACITY];
    size_t length = strlen(folder);
    if (!mkdir(folder, FOLDER_MODE) || errno == EEXIST)
        return 0; /* a file of that name shows when something is put in it */
    if (errno != ENOENT) return errno;
    if (length >= sizeof path) return ENAMETOOLONG;
    memcpy(path, folder, length + 1);
    for (char *s = path + 1; *s; s++) {
        if (*s != '/') continue;
        *s = 0;
        if (mkdir(path, FOLDER_MODE) && errno != EEXIST && errno != EROFS && errno != EACCES) return errno;
        *s = '/';
    }
    return mkdir(folder, FOLDER_MODE) && errno != EEXIST ? errno : 0;
}

/* ---- reading ---- */

static int read_open(int fd, size_t limit, char **text, size_t *length) {
    struct stat info;
    if (fstat(fd, &info)) return errno;
    if (!S_ISREG(info.st_mode)) return S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
    size_t capacity = (size_t)info.st_size < limit ? (size_t)info.st_size + 1 : limit + 1, n = 0;
    char *data = malloc(capacity);
    if (!data) return ENOMEM;
    while (n < capacity) {
        ssize_t got = read(fd, data + n, capacity - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int error = errno;
            free(data);
            return error;
        }
        if (got == 0) break;
        n += (size_t)got;
    }
    *text = data, *length = n;
    return 0;
}

int sat_disk_read(const char *path, size_t limit, char **text, size_t *length) {
    int error = 0;
    for (int attempt = 0; attempt < 4; attempt++) { /* ESTALE: on NFS, the file was replaced while we looked */
        int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        error = fd < 0 ? errno : read_open(fd, limit, text, length);
        if (fd >= 0) close(fd);
        if (error != ESTALE && error != EINTR) break;
    }
    return error;
}

int sat_disk_read_own(const char *path, size_t limit, char **text, size_t *length) {
    char why[64];
    return sat_path_safe(path, true, why, sizeof why) ? sat_disk_read(path, limit, text, length) : errno;
}

/* ---- writing ---- */

/* Writing past a file size limit raises SIGXFSZ, into a closed pipe SIGPIPE; both kill by default, and neither is ours
 * to handle for the program. They are blocked in this thread, and taken back if this write raised them. */
static int write_all(int fd, const char *text, size_t length) {
    sigset_t both, before, already, raised;
    int error = 0;
    sigemptyset(&both);
    sigaddset(&both, SIGXFSZ);
    sigaddset(&both, SIGPIPE);
    sigpending(&already);
    pthread_sigmask(SIG_BLOCK, &both, &before);
    while (length && !error) {
        ssize_t put = write(fd, text, length);
        if (put > 0) text += put, length -= (size_t)put;
        else if (put == 0 || errno != EINTR) error = put == 0 ? EIO : errno;
    }
    if (error == EFBIG || error == EPIPE) {
        int which = error == EFBIG ? SIGXFSZ : SIGPIPE, taken;
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, which);
        sigpending(&raised);
        if (sigismember(&raised, which) && !sigismember(&already, which)) sigwait(&one, &taken);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

static int sync_file(int fd) { /* some file systems know no fsync; that is no failure of the write */
    while (fsync(fd))
        if (errno != EINTR) return errno == EINVAL || errno == ENOSYS || errno == ENOTSUP || errno == EROFS ? 0 : errno;
    return 0;
}

static int open_temporary(const char *path, char temporary[SAT_PATH_CAPACITY]) {
    static atomic_uint counter;
    char folder[SAT_PATH_CAPACITY];
    if (!sat_path_folder(folder, path)) return errno = ENAMETOOLONG, -1;
    for (int attempt = 0; attempt < 64; attempt++) { /* another host's process may have our number: O_EXCL fails then */
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        int n = snprintf(temporary, SAT_PATH_CAPACITY, "%s/%s%ld-%u-%09ld", folder, temporary_prefix, (long)getpid(),
                         atomic_fetch_add(&counter, 1), t.tv_nsec);
        if (n >= SAT_PATH_CAPACITY) return errno = ENAMETOOLONG, -1;
        int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, FILE_MODE);
        if (fd >= 0 || (errno != EEXIST && errno != EINTR)) return fd;
    }
    return -1;
}

int sat_disk_write_temporary(const char *path, const char *text, size_t length, char temporary[SAT_PATH_CAPACITY]) {
    int fd = open_temporary(path, temporary);
    if (fd < 0) return errno;
    int error = write_all(fd, text, length);
    if (!error) error = sync_file(fd);
    if (close(fd) && !error && errno != EINTR) error = errno; /* NFS reports a full disk here */
    if (error) unlink(temporary);
    return error;
}

int sat_disk_commit(const char *temporary, const char *path) {
    char folder[SAT_PATH_CAPACITY];
    if (rename(temporary, path)) {
        int error = errno;
        unlink(temporary);
        return error;
    }
    if (sat_path_folder(folder, path)) {
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            sync_file(fd); /* best effort: the name is in place, at worst a power cut brings the old file back */
            close(fd);
        }
    }
    return 0;
}

void sat_disk_discard(const char *temporary) { unlink(temporary); }

int sat_disk_claim(const char *path, const char *text, size_t length) {
    char temporary[SAT_PATH_CAPACITY];
    int error = sat_disk_write_temporary(path, text, length, temporary);
    if (error) return error;
    struct stat info;
    error = link(temporary, path) ? errno : 0;
    if (error && error != EEXIST && !stat(temporary, &info) && info.st_nlink == 2)
        error = 0; /* NFS: the answer was lost */
    unlink(temporary);
    return error;
}

static int write_through(const char *path, const char *text, size_t length) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) return errno;
    int error = write_all(fd, text, length);
    return close(fd) && !error ? errno : error;
}

int sat_disk_write(const char *path, const char *text, size_t length) {
    char temporary[SAT_PATH_CAPACITY];
    struct stat info;
    bool there = !stat(path, &info);
    if (there && S_ISDIR(info.st_mode)) return EISDIR;
    if (there && !S_ISREG(info.st_mode)) return write_through(path, text, length); /* never replace /dev/stdout */
    char *target = there ? realpath(path, NULL) : NULL;                            /* a link stays a link */
    const char *to = target ? target : path;
    int error = sat_disk_write_temporary(to, text, length, temporary);
    if (!error) error = sat_disk_commit(temporary, to);
    free(target);
    return error;
}

void sat_disk_sweep(const char *folder) {
    DIR *d = opendir(folder);
    if (!d) return;
    time_t now = time(NULL);
    for (struct dirent *e; (e = readdir(d));) {
        struct stat info;
        if (strncmp(e->d_name, temporary_prefix, sizeof temporary_prefix - 1)) continue;
        if (fstatat(dirfd(d), e->d_name, &info, AT_SYMLINK_NOFOLLOW) || !S_ISREG(info.st_mode)) continue;
        if (now - info.st_mtime > STALE_SECONDS) unlinkat(dirfd(d), e->d_name, 0);
    }
    closedir(d);
}
