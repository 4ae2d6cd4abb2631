/* Fuzzes all text that the cache reads: a record, an entry file, an export, the untuned list, the rates.
 *
 * A checksum would keep almost every input out of the parser behind it, so each input is also tried as the body of an
 * entry, with the right checksum put after it. What is taken must come back the same when written and read again. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cache/cache_file.h"
#include "cache/cache_rates.h"

static void demand(bool holds) {
    if (!holds) abort();
}

static void check_record(const char *text, size_t length) {
    sat_record record, back, tidy;
    sat_text line = {0};
    if (!sat_record_parse(text, length, &record)) return;
    sat_record_format(&line, &record);
    demand(sat_record_parse(line.data, line.length - 1, &back) && sat_record_same(&record, &back));
    demand(sat_record_sanitize(&record, &tidy) && sat_record_same(&record, &tidy));
    sat_text_free(&line);
}

static void check_entry(const char *text, size_t length) {
    sat_entry_head head;
    sat_entry entry, back, merged = {0};
    sat_text again = {0};
    char key[SAT_KEY_CAPACITY];
    size_t used = 0;
    if (sat_entry_read(text, length, &head, &entry, &used) != SAT_OK) {
        demand(!entry.records && !entry.count);
        return;
    }
    demand(used <= length && entry.count <= SAT_RECORD_LIMIT && sat_key_valid(head.key));
    sat_entry_format(&again, head.identity, head.key, &entry);
    sat_status status = sat_entry_parse(again.data, again.length, key, sizeof key, &back);
    /* Written out, the defaults of the fields are left out, so it never becomes too long to read. */
    demand(status == SAT_OK && !strcmp(key, head.key) && sat_entry_same(&entry, &back));
    demand(sat_entry_merge(&merged, entry.records, entry.count) == SAT_OK && merged.count <= entry.count);
    demand(merged.count <= SAT_RACED_KEPT + SAT_VERIFIED_KEPT);
    size_t kept = merged.count;
    demand(sat_entry_merge(&merged, back.records, back.count) == SAT_OK && merged.count == kept);
    sat_entry_free(&entry);
    sat_entry_free(&back);
    sat_entry_free(&merged);
    sat_text_free(&again);
}

static void check_rates(const char *text, size_t length) {
    sat_rates rates, back;
    sat_text again = {0};
    if (sat_rates_parse(text, length, "d", &rates) != SAT_OK) return;
    sat_rates_format(&again, "d", &rates);
    demand(sat_rates_parse(again.data, again.length, "d", &back) == SAT_OK && !memcmp(&rates, &back, sizeof back));
    sat_text_free(&again);
}

static void check_with_checksum(const char *text, size_t length) {
    static const char title[] = "sparse_autotune cache 1.1\ndevice=d\nkey=k\n";
    for (int whole = 0; whole < 2; whole++) {
        char line[64];
        sat_text body = {0};
        if (!whole) sat_text_adds(&body, title);
        sat_text_add(&body, text, length);
        if (!length || text[length - 1] != '\n') sat_text_add(&body, "\n", 1);
        snprintf(line, sizeof line, "checksum=%016" PRIx64 "\n", sat_checksum(body.data, body.length));
        sat_text_adds(&body, line);
        check_entry(body.data, body.length);
        check_rates(body.data, body.length);
        sat_text_free(&body);
    }
}

static sat_status count_entry(void *user, const sat_entry_head *head, sat_entry *entry) {
    sat_entry_clear_foreign(entry, "");
    demand(sat_key_valid(head->key) && sat_text_valid(head->identity, sizeof head->identity));
    ++*(size_t *)user;
    return SAT_OK;
}

static void check_pair(void *user, const char *key, const char *exact) {
    (void)user;
    demand(sat_key_valid(key) && sat_text_valid(exact, 512));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    size_t entries = 0, again = 0;
    check_record(text, size);
    check_entry(text, size);
    check_rates(text, size);
    check_with_checksum(text, size);
    if (sat_pack_parse(text, size, NULL, NULL) == SAT_OK) {
        demand(sat_pack_parse(text, size, count_entry, &entries) == SAT_OK);
        demand(sat_pack_parse(text, size, count_entry, &again) == SAT_OK && entries == again);
    }
    sat_untuned_parse(text, size, check_pair, NULL);
    return 0;
}
