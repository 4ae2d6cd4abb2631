/* Errors and messages: sat_fail (public) records this thread's message; SAT_TRY passes a failure on. */
#ifndef SAT_STATUS_H
#define SAT_STATUS_H

#include "base/dtype.h"
#include "sparse_autotune.h"

#define SAT_TRY(call)                                                                                                  \
    do {                                                                                                               \
        sat_status sat_try_status = (call);                                                                            \
        if (sat_try_status != SAT_OK) return sat_try_status;                                                           \
    } while (0)

/* Where a module reports what the caller need not handle. Filled from the context's options. */
typedef struct sat_log {
    sat_log_fn fn;
    void *user;
    sat_log_level level;
} sat_log;

void sat_logf(const sat_log *log, sat_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* For every struct that begins with its size: copies what both sides know, zeroes the rest. SAT_BAD_STRUCT names
 * `what` when the size is below `least` or beyond any version. `least` is the size that the struct has in the frozen
 * header of tests/abi: sizeof until it grows, then offsetof its first new field. What is given out has the size of what
 * was written. */
sat_status sat_struct_in(void *to, size_t to_size, const void *from, size_t least, const char *what);
sat_status sat_struct_out(void *to, const void *from, size_t from_size, size_t least, const char *what);
size_t sat_first_set(const void *from, size_t begin, size_t end); /* the first of these bytes that is not 0, or end */

/* How many messages this thread has had. A caller of what may fail without a message sees whether there was one. */
unsigned sat_messages(void);

const char *sat_verdict_name(sat_verdict v); /* "ok", "wrong", "error", "skipped" */

#endif
