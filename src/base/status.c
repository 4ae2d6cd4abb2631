/* Status names, this thread's last message, logging, and the copying of structs that begin with their size. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[512];
static _Thread_local unsigned messages;

const char *sat_last_error(void) { return last_error; }
unsigned sat_messages(void) { return messages; }

const char *sat_version(void) {
#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
    return TEXT(SAT_VERSION_MAJOR) "." TEXT(SAT_VERSION_MINOR) "." TEXT(SAT_VERSION_PATCH);
}

sat_status sat_fail(sat_status status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(last_error, sizeof last_error, format, list);
    va_end(list);
    messages++;
    return status;
}

const char *sat_status_name(sat_status status) {
    switch (status) {
#define NAME(s)                                                                                                        \
    case s: return #s
        NAME(SAT_OK);
        NAME(SAT_NULL_POINTER);
        NAME(SAT_MISALIGNED);
        NAME(SAT_BAD_SIZE);
        NAME(SAT_BAD_STRIDE);
        NAME(SAT_OVERLAP);
        NAME(SAT_BAD_ENUM);
        NAME(SAT_BAD_STRUCT);
        NAME(SAT_BAD_ROW_PTR);
        NAME(SAT_COLUMN_RANGE);
        NAME(SAT_COLUMN_ORDER);
        NAME(SAT_BAD_BLOCK);
        NAME(SAT_UNSUPPORTED);
        NAME(SAT_OUT_OF_MEMORY);
        NAME(SAT_NOT_FOUND);
        NAME(SAT_IO);
        NAME(SAT_BAD_FORMAT);
        NAME(SAT_DEVICE_ERROR);
        NAME(SAT_LIBRARY_ERROR);
        NAME(SAT_WRONG_RESULT);
        NAME(SAT_WRONG_MEMORY);
        NAME(SAT_DUPLICATE);
        NAME(SAT_CANCELLED);
        NAME(SAT_BUSY);
        NAME(SAT_INTERNAL);
    }
    return "unknown status";
}

void sat_logf(const sat_log *log, sat_log_level level, const char *format, ...) {
    if (!log || !log->fn || level > log->level) return;
    char message[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    log->fn(log->user, level, message);
}

/* Beyond this no version of ours will ever grow; a larger size is an uninitialised struct. */
enum { LARGEST_STRUCT = 4096 };

static sat_status check_size(size_t size, size_t least, const char *what) {
    if (size >= least && size <= LARGEST_STRUCT) return SAT_OK;
    return sat_fail(SAT_BAD_STRUCT, "%s: size is %zu; expected sizeof(%s), at least %zu", what, size, what, least);
}

/* Mostly all are 0, and on the way of every call: bytes that equal the next one and begin with 0. */
size_t sat_first_set(const void *from, size_t begin, size_t end) {
    const unsigned char *bytes = from;
    if (begin < end && bytes[begin] == 0 && memcmp(bytes + begin, bytes + begin + 1, end - begin - 1) == 0) return end;
    while (begin < end && bytes[begin] == 0) begin++;
    return begin;
}

sat_status sat_struct_in(void *to, size_t to_size, const void *from, size_t least, const char *what) {
    size_t size;
    memcpy(&size, from, sizeof size);
    SAT_TRY(check_size(size, least, what));
    size_t set = to_size < size ? sat_first_set(from, to_size, size) : size;
    if (set < size)
        return sat_fail(SAT_BAD_STRUCT, "%s: size is %zu, beyond the %zu that this version knows, and byte %zu is set",
                        what, size, to_size, set);
    memset(to, 0, to_size);
    memcpy(to, from, size < to_size ? size : to_size);
    memcpy(to, &to_size, sizeof to_size);
    return SAT_OK;
}

sat_status sat_struct_out(void *to, const void *from, size_t from_size, size_t least, const char *what) {
    size_t size;
    memcpy(&size, to, sizeof size);
    SAT_TRY(check_size(size, least, what));
    memset(to, 0, size);
    if (size > from_size) size = from_size;
    memcpy(to, from, size);
    memcpy(to, &size, sizeof size);
    return SAT_OK;
}

const char *sat_verdict_name(sat_verdict v) {
    switch (v) {
    case SAT_VERDICT_OK: return "ok";
    case SAT_VERDICT_WRONG: return "wrong";
    case SAT_VERDICT_ERROR: return "error";
    case SAT_VERDICT_SKIPPED: return "skipped";
    case SAT_VERDICT_MEMORY: return "memory";
    }
    return "?";
}
