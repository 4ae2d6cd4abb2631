/* The file that keeps a device's measured rates: rates.txt in the device's folder, with the title, the device and the
 * checksum that entries have. One line of numbers; a new measurement replaces it. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cache/cache_private.h"
#include "cache/cache_rates.h"

static const char rates_title[] = "sparse_autotune rates";
static const char rates_name[] = "rates.txt";
/* What was measured how. Numbers of another revision are not these. */
static const char revision[] = "revision=1";
enum { FILE_LIMIT = 64 << 10 };

bool sat_rates_named(const char *name) { return !strcmp(name, rates_name); }

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
    {"memory=", offsetof(sat_rates, memory)},
    {"l2=", offsetof(sat_rates, l2)},
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    {#name "=", offsetof(sat_rates, flop[id])},
#include "base/dtypes.def"
#undef SAT_DTYPE
    {"tf32=", offsetof(sat_rates, tf32)},
};
enum { FIELDS = sizeof fields / sizeof fields[0] };

static double *field_of(sat_rates *r, int i) { return (double *)((char *)r + fields[i].offset); }

static bool plausible(double x) { return x > 0 && x < 1e18; }

bool sat_rates_plausible(const sat_rates *rates) {
    sat_rates r = *rates;
    for (int i = 0; i < FIELDS; i++)
        if (!plausible(*field_of(&r, i))) return false;
    return true;
}

/* ---- text ---- */

void sat_rates_format(sat_text *out, const char *identity, const sat_rates *rates) {
    char line[SAT_IDENTITY_CAPACITY + 64], number[40];
    sat_rates r = *rates;
    snprintf(line, sizeof line, "%s %d.%d\ndevice=%s\n", rates_title, SAT_CACHE_MAJOR, SAT_CACHE_MINOR, identity);
    sat_text_adds(out, line);
    snprintf(line, sizeof line, "%s\twhen=%" PRId64, revision, (int64_t)time(NULL));
    sat_text_adds(out, line);
    for (int i = 0; i < FIELDS; i++) {
        sat_number_format(number, *field_of(&r, i));
        sat_text_add(out, "\t", 1);
        sat_text_adds(out, fields[i].name);
        sat_text_adds(out, number);
    }
    sat_text_add(out, "\n", 1);
    sat_text_seal(out, 0);
}

/* One "name=value". What it does not know is a later minor version's. */
static bool take_field(const char *s, size_t length, sat_rates *r) {
    for (int i = 0; i < FIELDS; i++) {
        size_t n = strlen(fields[i].name);
        if (length < n || memcmp(s, fields[i].name, n)) continue;
        double *at = field_of(r, i);
        return *at == 0 && sat_number_parse(s + n, length - n, at) && plausible(*at); /* each but once */
    }
    return true;
}

static sat_status parse_line(const char *line, size_t length, sat_rates *r) {
    bool ours = false;
    for (const char *s = line, *end = line + length; s < end;) {
        const char *tab = memchr(s, '\t', (size_t)(end - s)), *stop = tab ? tab : end;
        size_t n = (size_t)(stop - s);
        if (n == sizeof revision - 1 && !memcmp(s, revision, n)) ours = true;
        if (!take_field(s, n, r)) return SAT_BAD_FORMAT;
        s = stop + 1;
    }
    if (!ours) return SAT_NOT_FOUND;
    for (int i = 0; i < FIELDS; i++)
        if (*field_of(r, i) == 0) return SAT_BAD_FORMAT;
    return SAT_OK;
}

sat_status sat_rates_parse(const char *text, size_t length, const char *identity, sat_rates *r) {
    const char *at = text, *line;
    size_t left = length, n, used, lines;
    int minor;
    char device[SAT_IDENTITY_CAPACITY];
    *r = (sat_rates){0};
    if (!sat_text_line(&at, &left, &line, &n)) return SAT_BAD_FORMAT;
    SAT_TRY(sat_title_parse(line, n, rates_title, &minor));
    if (!sat_text_sealed(text, length, &left, &used, &lines) || used != length || lines < 3) return SAT_BAD_FORMAT;
    left -= (size_t)(at - text);
    if (!sat_text_line(&at, &left, &line, &n) || !sat_head_parse(line, n, "device=", device, sizeof device))
        return SAT_BAD_FORMAT;
    if (strcmp(device, identity)) return SAT_NOT_FOUND;
    return sat_text_line(&at, &left, &line, &n) ? parse_line(line, n, r) : SAT_BAD_FORMAT;
}

/* ---- files ---- */

/* SAT_NOT_FOUND where there is none of this device and revision; else as parsing went. */
static sat_status read_rates(const char *path, const char *identity, sat_rates *rates) {
    char *text;
    size_t length;
    int error = sat_disk_read_own(path, FILE_LIMIT, &text, &length);
    if (error == ENOENT || error == ENOTDIR) return SAT_NOT_FOUND;
    if (error) return errno = error, SAT_IO;
    sat_status status = length > FILE_LIMIT ? SAT_BAD_FORMAT : sat_rates_parse(text, length, identity, rates);
    free(text);
    return status;
}

static bool rates_path(const sat_cache *cache, int layer, char folder[SAT_PATH_CAPACITY],
                       char path[SAT_PATH_CAPACITY]) {
    return sat_cache_folder(cache, layer, cache->identity, folder) && sat_path_join(path, folder, rates_name);
}

bool sat_cache_load_rates(sat_cache *cache, sat_rates *rates) {
    char folder[SAT_PATH_CAPACITY], path[SAT_PATH_CAPACITY];
    for (int i = 0; i < cache->layers; i++) {
        if (!rates_path(cache, i, folder, path)) continue;
        sat_status status = read_rates(path, cache->identity, rates);
        if (status == SAT_OK) return true;
        if (status == SAT_IO) sat_cache_unread(cache, path, errno);
        else if (status == SAT_UNSUPPORTED)
            sat_cache_warn_once(cache, SAT_WARN_NEWER, "%s is of a later version", path);
        else if (status == SAT_BAD_FORMAT) sat_cache_warn_once(cache, SAT_WARN_BAD, "%s is damaged", path);
    }
    return false;
}

/* Under the folder's lock, so that a later version's file that just came is seen. */
static sat_status replace(sat_cache *cache, const char *path, const sat_rates *rates) {
    sat_rates there;
    sat_text text = {0};
    if (read_rates(path, cache->identity, &there) == SAT_UNSUPPORTED) {
        sat_cache_warn_once(cache, SAT_WARN_NEWER, "%s is of a later version and is left alone", path);
        return SAT_UNSUPPORTED;
    }
    sat_rates_format(&text, cache->identity, rates);
    int error = text.failed ? ENOMEM : sat_disk_write(path, text.data, text.length);
    sat_text_free(&text);
    if (!error) return SAT_OK;
    sat_cache_warn_once(cache, SAT_WARN_WRITE, "cannot write %s: %s; rates are kept in memory", path, strerror(error));
    return SAT_IO;
}

sat_status sat_cache_keep_rates(sat_cache *cache, const sat_rates *rates) {
    char folder[SAT_PATH_CAPACITY], path[SAT_PATH_CAPACITY], lock_path[SAT_PATH_CAPACITY];
    sat_file_lock lock;
    if (!sat_rates_plausible(rates)) return sat_fail(SAT_BAD_FORMAT, "cache: implausible rates");
    if (!cache->layers) return SAT_OK; /* memory only: the context has them */
    if (!rates_path(cache, 0, folder, path)) return SAT_IO;
    if (!sat_cache_make(cache, folder)) return SAT_IO;
    sat_lock_result got = sat_cache_lock_folder(cache, folder, lock_path, &lock);
    if (got == SAT_LOCK_BUSY || got == SAT_LOCK_NO_PATH) return SAT_IO;
    sat_status status = replace(cache, path, rates);
    sat_file_lock_give(&lock);
    return status;
}
