/* Locks between threads and between processes.
 *
 * A POSIX file lock belongs to the process: two threads that take it both succeed, and closing any descriptor of the
 * file gives it away. So this process keeps a list of what it holds, a thread first gets its path into that list, and
 * only then locks the file. The kernel releases the file's lock when the process dies, however it dies. */
#include "cache/cache_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A holder that shows no sign of life for so long is stuck; after meeting a stuck one a waiter waits no longer than
 * this again. */
static const double QUIET_SECONDS = 1, AGAIN_SECONDS = 0.01;

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

/* Opens the file, or makes it. Nobody but its maker needs it: a folder that others may write is not used. */
static int open_lock(const char *path) {
    struct stat info;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd >= 0 && (fstat(fd, &info) || !S_ISREG(info.st_mode))) close(fd), fd = -1;
    return fd;
}

/* Someone may have removed the file, and a third process made a new one, since we opened it. */
static bool still_there(int fd, const char *path) {
    struct stat ours, theirs;
    return !fstat(fd, &ours) && !stat(path, &theirs) && ours.st_ino == theirs.st_ino && ours.st_dev == theirs.st_dev;
}

/* ---- stuck holders ---- */

typedef struct holder {
    long pid;
    unsigned long times[2]; /* in user and in system mode */
} holder;

/* Does the process that holds the lock do anything? It runs, waits for a disk, has used time since the last look, or is
 * another one now. One that cannot be looked at (another host's, another container's) counts as busy. */
static bool holder_works(int fd, holder *last) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[64], text[1024];
    holder h = {0};
    char state = 0;
    if (fcntl(fd, F_GETLK, &whole) || whole.l_type == F_UNLCK || whole.l_pid <= 0) return true;
    h.pid = (long)whole.l_pid;
    snprintf(path, sizeof path, "/proc/%ld/stat", h.pid);
    FILE *f = fopen(path, "re");
    size_t length = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (f) fclose(f);
    text[length] = 0;
    const char *after_name = strrchr(text, ')'); /* proc(5): the name may hold anything */
    if (!after_name || sscanf(after_name + 1, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %lu %lu", &state,
                              &h.times[0], &h.times[1]) != 3)
        return true;
    bool changed = h.pid != last->pid || h.times[0] != last->times[0] || h.times[1] != last->times[1];
    *last = h;
    return changed || state == 'R' || state == 'D';
}

/* The locks that this process met stuck and has not got since. Under guard. */
enum { STUCK = 16 };
static struct {
    dev_t device;
    ino_t inode; /* 0: no lock */
    char name[32];
} stuck[STUCK];
static unsigned next_stuck;

static int find_stuck(const sat_file_lock *lock) {
    for (int i = 0; i < STUCK; i++)
        if (stuck[i].inode && stuck[i].device == lock->device && stuck[i].inode == lock->inode &&
            !strcmp(stuck[i].name, name_of(lock)))
            return i;
    return -1;
}

static bool was_stuck(const sat_file_lock *lock) {
    sat_guard_lock();
    bool found = find_stuck(lock) >= 0;
    sat_guard_unlock();
    return found;
}

static void mark(const sat_file_lock *lock, bool is_stuck) {
    if (!lock->inode || strlen(name_of(lock)) >= sizeof stuck[0].name) return;
    sat_guard_lock();
    int at = find_stuck(lock);
    if (at >= 0 && !is_stuck) stuck[at].inode = 0;
    if (at < 0 && is_stuck) {
        at = (int)(next_stuck++ % STUCK);
        stuck[at].device = lock->device, stuck[at].inode = lock->inode;
        strcpy(stuck[at].name, name_of(lock));
    }
    sat_guard_unlock();
}

/* ---- taking and giving ---- */

static sat_lock_result lock_file(sat_file_lock *lock, const struct timespec *deadline, bool *idle) {
    long pause = 300000; /* ns; grows, so that a crowd of waiters does not eat the machine it waits for */
    holder seen = {0};
    struct timespec look = now(), quiet = after(look, QUIET_SECONDS);
    for (*idle = false;;) {
        if (lock->fd < 0) lock->fd = open_lock(lock->path);
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
        } else if (past(&look)) {
            if (holder_works(lock->fd, &seen)) quiet = after(now(), QUIET_SECONDS);
            look = after(now(), QUIET_SECONDS / 10);
        }
        if ((*idle = past(&quiet)) || past(deadline)) break;
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
    bool idle = false;
    *lock = (sat_file_lock){.path = path, .fd = -1, .process = getpid()};
    if (!threads_only && sat_path_folder(folder, path) && !stat(folder, &info))
        lock->device = info.st_dev, lock->inode = info.st_ino;
    if (!list_enter(lock, &deadline)) return SAT_LOCK_BUSY;
    if (threads_only) return SAT_LOCK_THREADS;
    if (was_stuck(lock) && seconds > AGAIN_SECONDS) deadline = after(now(), AGAIN_SECONDS);
    sat_lock_result result = lock_file(lock, &deadline, &idle);
    if (result != SAT_LOCK_BUSY) return mark(lock, false), result;
    if (idle || seconds >= QUIET_SECONDS) mark(lock, true);
    list_leave(lock);
    return result;
}

void sat_file_lock_give(sat_file_lock *lock) {
    if (lock->process != getpid()) return; /* the parent's */
    if (lock->fd >= 0) close(lock->fd);    /* that unlocks */
    lock->fd = -1;
    list_leave(lock);
}
