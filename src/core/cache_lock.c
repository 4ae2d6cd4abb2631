/* Locks between threads and between processes.
 *
 * A POSIX file lock belongs to the process: two threads that take it both succeed, and closing any descriptor of the
 * file gives it away. So this process keeps a list of what it holds, a thread first gets its path into that list, and
 * only then locks the file. The kernel releases the file's lock when the process dies, however it dies. */
#include "core/cache_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t guard;
static pthread_cond_t given; /* a lock left the list */
static sat_file_lock *held;  /* under guard */

static void make_guard(void) {
    pthread_condattr_t attr;
    pthread_mutex_init(&guard, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&given, &attr);
    pthread_condattr_destroy(&attr);
}

static void before_fork(void) { pthread_mutex_lock(&guard); }
static void parent_after_fork(void) { pthread_mutex_unlock(&guard); }

/* The child has one thread, and that one is no waiter; the kernel gave it none of the file locks. The descriptors go
 * at once: closed later, they would take a lock along that the child has got meanwhile. */
static void child_after_fork(void) {
    for (sat_file_lock *l = held; l; l = l->next) {
        if (l->fd >= 0) close(l->fd);
        l->fd = -1;
    }
    held = NULL;
    make_guard();
}

static void initialise(void) {
    make_guard();
    pthread_atfork(before_fork, parent_after_fork, child_after_fork);
}

void sat_guard_lock(void) {
    pthread_once(&once, initialise);
    pthread_mutex_lock(&guard);
}

void sat_guard_unlock(void) { pthread_mutex_unlock(&guard); }

/* ---- time ---- */

static struct timespec after(struct timespec t, double seconds) {
    if (!(seconds > 0)) seconds = 0;
    if (seconds > 1e6) seconds = 1e6;
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    return t;
}

static struct timespec now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t;
}

static bool past(const struct timespec *deadline) {
    struct timespec t = now();
    return t.tv_sec > deadline->tv_sec || (t.tv_sec == deadline->tv_sec && t.tv_nsec >= deadline->tv_nsec);
}

/* ---- between threads ---- */

static const char *name_of(const sat_file_lock *lock) { /* within its folder, where that is known */
    const char *slash = strrchr(lock->path, '/');
    return lock->inode && slash ? slash + 1 : lock->path;
}

static bool listed(const sat_file_lock *lock) {
    for (const sat_file_lock *l = held; l; l = l->next)
        if (l->device == lock->device && l->inode == lock->inode && !strcmp(name_of(l), name_of(lock))) return true;
    return false;
}

static bool list_enter(sat_file_lock *lock, const struct timespec *deadline) {
    int failed = 0;
    sat_guard_lock();
    while (listed(lock) && !failed) failed = pthread_cond_timedwait(&given, &guard, deadline);
    bool free_now = !listed(lock);
    if (free_now) lock->next = held, held = lock;
    sat_guard_unlock();
    return free_now;
}

static void list_leave(sat_file_lock *lock) {
    sat_guard_lock();
    for (sat_file_lock **at = &held; *at; at = &(*at)->next) {
        if (*at != lock) continue;
        *at = lock->next;
        break;
    }
    pthread_cond_broadcast(&given);
    sat_guard_unlock();
}

/* ---- between processes ---- */

/* Opens the file, or makes it: writable by whoever may write the folder, since a lock needs a writable descriptor. */
static int open_lock(const char *path, mode_t folder_mode) {
    const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat info;
    int fd = open(path, flags);
    if (fd < 0 && errno == ENOENT) {
        fd = open(path, flags | O_CREAT, 0666);
        /* Where this fails, others may do without the lock. */
        if (fd >= 0 && fchmod(fd, 0600 | (folder_mode & 0022) * 3)) errno = 0;
    }
    if (fd >= 0 && (fstat(fd, &info) || !S_ISREG(info.st_mode))) close(fd), fd = -1;
    return fd;
}

/* Someone may have removed the file, and a third process made a new one, since we opened it. */
static bool still_there(int fd, const char *path) {
    struct stat ours, theirs;
    return !fstat(fd, &ours) && !stat(path, &theirs) && ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

static sat_lock_result lock_file(sat_file_lock *lock, mode_t folder_mode, const struct timespec *deadline) {
    long pause = 300000; /* ns; grows, so that a crowd of waiters does not eat the machine it waits for */
    for (;;) {
        if (lock->fd < 0) lock->fd = open_lock(lock->path, folder_mode);
        if (lock->fd < 0) return SAT_LOCK_THREADS;
        struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
        if (!fcntl(lock->fd, F_SETLK, &whole)) {
            if (still_there(lock->fd, lock->path)) return SAT_LOCK_HELD;
            close(lock->fd);
            lock->fd = -1;
        } else if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
            close(lock->fd); /* ENOLCK and its kin: this file system knows no locks */
            lock->fd = -1;
            return SAT_LOCK_THREADS;
        }
        if (past(deadline)) break;
        nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        if (pause < 2000000) pause += pause / 2 + (long)getpid() % 64 * 1000; /* not all in step */
    }
    if (lock->fd >= 0) close(lock->fd);
    lock->fd = -1;
    return SAT_LOCK_BUSY;
}

sat_lock_result sat_file_lock_take(sat_file_lock *lock, const char *path, bool threads_only, double seconds) {
    struct timespec deadline = after(now(), seconds);
    char folder[SAT_PATH_CAPACITY];
    struct stat info = {0};
    *lock = (sat_file_lock){.path = path, .fd = -1, .process = getpid()};
    if (!threads_only && sat_path_folder(folder, path) && !stat(folder, &info))
        lock->device = info.st_dev, lock->inode = info.st_ino;
    if (!list_enter(lock, &deadline)) return SAT_LOCK_BUSY;
    sat_lock_result result = threads_only ? SAT_LOCK_THREADS : lock_file(lock, info.st_mode, &deadline);
    if (result == SAT_LOCK_BUSY) list_leave(lock);
    return result;
}

void sat_file_lock_give(sat_file_lock *lock) {
    if (lock->process != getpid()) return; /* the parent's */
    if (lock->fd >= 0) close(lock->fd);    /* that unlocks */
    lock->fd = -1;
    list_leave(lock);
}
