/* What the cache needs of a file system: bounded reading, atomic writing, and locks between threads and processes.
 * Functions that return int give 0 or an errno. Nothing here can kill the process: the signals that a full or closed
 * file raises are held back. */
#ifndef SAT_CACHE_DISK_H
#define SAT_CACHE_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum { SAT_PATH_CAPACITY = 4096 };

/* "folder/name"; false where it does not fit. */
bool sat_path_join(char out[SAT_PATH_CAPACITY], const char *folder, const char *name);
bool sat_path_folder(char out[SAT_PATH_CAPACITY], const char *path); /* what `path` stands in; "." if it does not say */

/* With its parents; 0 also where it is there already. Whatever the umask, neither the group nor others may write to
 * what is made here, nor to files. */
int sat_disk_make(const char *folder);

/* Reads up to limit + 1 bytes of a regular file, so that a length above the limit shows that it was longer. Own gives
 * EPERM for a file that anybody but root and this user can have changed (sat_path_safe). */
int sat_disk_read(const char *path, size_t limit, char **text, size_t *length);
int sat_disk_read_own(const char *path, size_t limit, char **text, size_t *length);

/* Writes a temporary file beside `path`, synced; sat_disk_commit then puts it in place, or removes it. */
int sat_disk_write_temporary(const char *path, const char *text, size_t length, char temporary[SAT_PATH_CAPACITY]);
int sat_disk_commit(const char *temporary, const char *path);
void sat_disk_discard(const char *temporary);
/* Writes a file of that name unless there is one, atomically, on NFS too; EEXIST: there is. */
int sat_disk_claim(const char *path, const char *text, size_t length);
/* Both at once. A `path` that is there and is no regular file (a terminal, a pipe) is written to as it is. */
int sat_disk_write(const char *path, const char *text, size_t length);

/* Removes temporary files that a writer left behind more than an hour ago. */
void sat_disk_sweep(const char *folder);

typedef enum sat_lock_result {
    SAT_LOCK_BUSY,    /* not within the time */
    SAT_LOCK_NO_PATH, /* its path is too long */
    SAT_LOCK_HELD,
    SAT_LOCK_THREADS /* only against threads of this process: the file cannot be locked */
} sat_lock_result;

/* A lock on a file, against threads of this process and against other processes; goes when the process dies. The
 * struct stays where it is, and `path` lives, from take to give. A child of fork() holds none of its parent's. */
typedef struct sat_file_lock {
    struct sat_file_lock *next; /* all that this process holds */
    const char *path;
    dev_t device; /* of the folder it stands in: one folder may have several spellings; 0 where there is none */
    ino_t inode;
    _Atomic int fd; /* -1: against threads alone */
    pid_t process;
} sat_file_lock;

/* Waits so long, but only a second for a process that holds the lock and does nothing (it was stopped, or hangs), and
 * hardly at all for one that this process has met before. */
sat_lock_result sat_file_lock_take(sat_file_lock *lock, const char *path, bool threads_only, double seconds);
void sat_file_lock_give(sat_file_lock *lock); /* only after a take that was not BUSY */

/* One lock for all memory of the caches of this process. Held for moments only, so that fork() can wait for it and
 * leave the child a whole table. */
void sat_guard_lock(void);
void sat_guard_unlock(void);

#endif
