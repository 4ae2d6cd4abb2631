/* Export and import: all devices' entries as one text file, and back.
 *
 * The file is the entries' own files one after the other, between a title and a line that counts them, so that two
 * exports put end to end are an export too. Import checks all of it before it changes anything, and makes up file
 * names from keys and identities; no name in the file is a path. */
#include "cache/cache_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char pack_title[] = "sparse_autotune export";
static const char count_name[] = "entries=";

sat_status sat_cache_export_file(sat_cache *cache, const char *file) {
    sat_names names;
    sat_text text = {0};
    char line[64];
    if (sat_cache_names(cache, NULL, &names) != SAT_OK) return sat_cache_no_memory();
    snprintf(line, sizeof line, "%s %d.%d\n", pack_title, SAT_CACHE_MAJOR, SAT_CACHE_MINOR);
    sat_text_adds(&text, line);
    sat_status status = SAT_OK;
    size_t count = 0;
    for (size_t i = 0; i < names.count && status == SAT_OK && text.length < SAT_PACK_LIMIT; i++) {
        sat_entry entry;
        status = sat_cache_get(cache, names.list[i].identity, names.list[i].key, &entry);
        sat_entry_clear_foreign(&entry, "");
        if (status == SAT_OK && entry.count)
            sat_entry_format(&text, names.list[i].identity, names.list[i].key, &entry), count++;
        sat_entry_free(&entry);
    }
    sat_names_free(&names);
    snprintf(line, sizeof line, "%s%zu\n", count_name, count);
    sat_text_adds(&text, line);
    int error = 0;
    if (status != SAT_OK || text.failed) status = sat_fail(SAT_OUT_OF_MEMORY, "cache: no memory to export");
    else if (text.length > SAT_PACK_LIMIT)
        status = sat_fail(SAT_BAD_SIZE, "cache: the export would be larger than %d MiB", SAT_PACK_LIMIT >> 20);
    else if ((error = sat_disk_write(file, text.data, text.length)))
        status = sat_fail(SAT_IO, "cache: cannot write %s: %s", file, strerror(error));
    sat_text_free(&text);
    return status;
}

/* ---- import ---- */

static bool line_is(const char *text, size_t left, const char *with) {
    size_t n = strlen(with);
    return left >= n && !memcmp(text, with, n);
}

static bool count_parse(const char *line, size_t length, size_t *count) {
    size_t n = strlen(count_name);
    *count = 0;
    if (length == n || length > n + 9) return false;
    for (size_t i = n; i < length; i++) {
        if (line[i] < '0' || line[i] > '9') return false;
        *count = *count * 10 + (size_t)(line[i] - '0');
    }
    return true;
}

sat_status sat_pack_parse(const char *text, size_t length, sat_pack_fn take, void *user) {
    size_t left = length, n, entries = 0, expected;
    bool inside = false; /* between a title and its count; a bare entry file stands outside */
    const char *line;
    if (!length || length > SAT_PACK_LIMIT) return SAT_BAD_FORMAT;
    while (left) {
        int minor;
        if (line_is(text, left, pack_title)) {
            if (inside || !sat_text_line(&text, &left, &line, &n)) return SAT_BAD_FORMAT;
            SAT_TRY(sat_title_parse(line, n, pack_title, &minor));
            inside = true, entries = 0;
        } else if (line_is(text, left, count_name)) {
            if (!inside || !sat_text_line(&text, &left, &line, &n)) return SAT_BAD_FORMAT;
            if (!count_parse(line, n, &expected) || expected != entries) return SAT_BAD_FORMAT;
            inside = false;
        } else {
            sat_entry_head head;
            sat_entry entry;
            size_t used = 0;
            SAT_TRY(sat_entry_read(text, left, &head, &entry, &used));
            sat_status status = take ? take(user, &head, &entry) : SAT_OK;
            sat_entry_free(&entry);
            if (status != SAT_OK) return status;
            text += used, left -= used, entries++;
        }
    }
    return inside ? SAT_BAD_FORMAT : SAT_OK;
}

typedef struct import_job {
    sat_cache *cache;
    int64_t entries;
    sat_status worst;
} import_job;

/* A file may be anybody's: it brings times, and nothing that is believed to be right. */
static sat_status import_entry(void *user, const sat_entry_head *head, sat_entry *entry) {
    import_job *job = user;
    sat_entry_clear_foreign(entry, "");
    sat_status status = sat_cache_put(job->cache, head->identity, head->key, entry->records, entry->count);
    if (status == SAT_OK) job->entries++;
    else job->worst = status; /* one entry that the disk refuses, or of a later version, does not stop the others */
    return status == SAT_OUT_OF_MEMORY ? status : SAT_OK;
}

sat_status sat_cache_import_file(sat_cache *cache, const char *file, int64_t *entries) {
    char *text;
    size_t length;
    if (entries) *entries = 0;
    int error = sat_disk_read(file, SAT_PACK_LIMIT, &text, &length);
    if (error == ENOMEM) return sat_fail(SAT_OUT_OF_MEMORY, "cache: no memory to import %s", file);
    if (error) return sat_fail(SAT_IO, "cache: cannot read %s: %s", file, strerror(error));
    import_job job = {.cache = cache};
    sat_status status = sat_pack_parse(text, length, NULL, NULL);
    if (status == SAT_OK) status = sat_pack_parse(text, length, import_entry, &job);
    free(text);
    if (entries) *entries = job.entries;
    if (status == SAT_OK) status = job.worst;
    switch (status) {
    case SAT_OK: return SAT_OK;
    case SAT_BAD_FORMAT: return sat_fail(status, "cache: %s is damaged or no export; nothing was imported", file);
    case SAT_UNSUPPORTED: return sat_fail(status, "cache: %s, or an entry here, is of a later version", file);
    case SAT_OUT_OF_MEMORY: return sat_fail(status, "cache: no memory to import %s", file);
    default:
        return sat_fail(status, "cache: not all of %s could be written to %s; the rest is in memory", file,
                        sat_cache_dir(cache));
    }
}
