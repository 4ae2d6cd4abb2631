/* The cache's text: records and entries, what is refused, limits, and merging. */
#define _XOPEN_SOURCE 700
#define _DEFAULT_SOURCE
#include "cache_helpers.h"

#include <float.h>
#include <locale.h>
#include <math.h>

/* ---- records ---- */

static void expect_round_trip(const sat_record *r) {
    sat_text text = {0};
    sat_record back;
    sat_record_format(&text, r);
    assert_true(sat_record_parse(text.data, text.length - 1, &back));
    if (!sat_record_same(r, &back)) fail_msg("came back otherwise: %s", text.data);
    assert_memory_equal(r->message, back.message, sizeof r->message);
    assert_true(r->error == back.error && r->seconds == back.seconds);
    sat_text_free(&text);
}

static void a_record_comes_back_as_it_was_written(void **state) {
    (void)state;
    sat_record r = full_record();
    expect_round_trip(&r);
    r = verified(0, "v", "");
    expect_round_trip(&r);
    uint64_t seed = 88172645463325252u;
    for (int i = 0; i < 20000; i++) {
        r = full_record();
        uint64_t bits = next_random(&seed) & INT64_MAX;
        double x;
        memcpy(&x, &bits, sizeof x);
        r.seconds = isfinite(x) ? x : 0;
        r.error = (double)(bits % 1000) * 1e-3;
        expect_round_trip(&r);
    }
    double edges[] = {0, DBL_MIN, DBL_TRUE_MIN, DBL_MAX, 1, 1e22, 1e23, 0.1, 123456, 1234567, 4.9e-324};
    for (size_t i = 0; i < sizeof edges / sizeof edges[0]; i++) r.seconds = edges[i], expect_round_trip(&r);
}

/* A locale with a decimal comma: one that is installed, or one made for the occasion. */
static bool use_comma_locale(const char *folder) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (setlocale(LC_ALL, names[i])) return true;
    char command[4400];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/xx_XX.UTF-8 >/dev/null 2>&1", folder);
    if (system(command) || setenv("LOCPATH", folder, 1)) return false;
    return setlocale(LC_ALL, "xx_XX.UTF-8");
}

static void numbers_are_spelled_the_same_in_every_locale(void **state) {
    sat_text plain = {0}, local = {0};
    sat_record r = full_record();
    char comma[64];
    sat_record_format(&plain, &r);
    bool found = use_comma_locale(*state);
    snprintf(comma, sizeof comma, "%.1f", 0.5);
    sat_record_format(&local, &r);
    expect_round_trip(&r);
    setlocale(LC_ALL, "C");
    assert_string_equal(plain.data, local.data);
    sat_text_free(&plain);
    sat_text_free(&local);
    if (!found) skip();
    assert_string_equal(comma, "0,5");
}

/* Lists of odd lines are one string each, so that they stay short: a '|' ends an item. */
static bool next_item(const char **list, char out[256]) {
    size_t n = strcspn(*list, "|");
    if (!**list) return false;
    memcpy(out, *list, n);
    out[n] = 0;
    *list += n + 1;
    return true;
}

static void every_malformed_field_is_refused(void **state) {
    (void)state;
    static const char good[] = "kind=raced\tverdict=ok\trace=r\twhen=1\tvariant=v";
    const char *lines = "|kind|=|=x|\t|kind=raced|kind=raced\t|kind=raced\tverdict=ok\trace=r\twhen=1|"
                        "verdict=ok\trace=r\twhen=1\tvariant=v|kind=other\tverdict=ok\trace=r\tvariant=v|"
                        "kind=Raced\tverdict=ok\trace=r\tvariant=v|kind=raced\trace=r\tvariant=v|"
                        "kind=raced\tverdict=great\trace=r\tvariant=v|kind=raced\tverdict=\trace=r\tvariant=v|"
                        "kind=raced\tverdict=ok\tvariant=v|kind=raced\tverdict=ok\trace=\tvariant=v|"
                        "kind=raced\tverdict=ok\trace=r\tvariant=|";
    const char *added =
        "|when=2|\t|noequals|=value|seconds=|seconds=nan|seconds=inf|seconds=-1|seconds=+1|seconds=1e999|"
        "seconds=1e400|seconds=0x1p3|seconds=1,5|seconds= 1|seconds=1 |seconds=.5|seconds=1e|seconds=1e+|"
        "seconds=1e--3|seconds=1.2.3|seconds=11111111111111111111111111111111111111111|spread=x|error=NaN|"
        "estimate_seconds=1s|prepare_seconds=-0.5|workspace_bytes=-1|workspace_bytes=9223372036854775808|"
        "workspace_bytes=1.5|workspace_bytes=99999999999999999999999|runs=2147483648|runs=-1|runs=|may_win=2|"
        "may_win=true|may_win=|exact=a\x01|exact=a\x7f|message=\xc3\xa9|runs=1\truns=1|future=\x02|message=a\rb|";
    char item[256], line[512];
    sat_record r;
    assert_true(sat_record_parse(good, strlen(good), &r));
    while (next_item(&lines, item))
        if (sat_record_parse(item, strlen(item), &r)) fail_msg("taken: \"%s\"", item);
    while (next_item(&added, item)) {
        snprintf(line, sizeof line, "%s\t%s", good, item);
        if (sat_record_parse(line, strlen(line), &r)) fail_msg("taken: \"%s\"", line);
    }
    assert_false(sat_record_parse("kind=raced\tverdict=ok\trace=r\tvariant=a\0b", 41, &r));
}

static void a_field_that_is_too_long_is_refused_and_one_that_just_fits_is_not(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t capacity;
    } fields[] = {{"race", 40},     {"variant", 128}, {"revision", 48}, {"exact", 512},
                  {"message", 192}, {"by", 17},       {"pattern", 17}};
    for (size_t i = 0; i < 7; i++)
        for (size_t over = 0; over < 2; over++) {
            char value[600], line[1024];
            sat_record r;
            memset(value, 'x', sizeof value);
            value[fields[i].capacity - 1 + over] = 0;
            snprintf(line, sizeof line, "kind=verified\tverdict=ok\t%s%s=%s",
                     strcmp(fields[i].name, "variant") ? "variant=v\t" : "", fields[i].name, value);
            assert_int_equal(sat_record_parse(line, strlen(line), &r), over == 0);
        }
}

static void unknown_fields_are_ignored(void **state) {
    (void)state;
    static const char line[] = "future=1\tkind=raced\tverdict=ok\trace=r\twhen=5\tcolour=blue=green\tvariant=v\tempty=";
    sat_record r;
    assert_true(sat_record_parse(line, strlen(line), &r));
    assert_int_equal(r.when, 5);
    assert_string_equal(r.variant, "v");
}

/* ---- entries ---- */

static sat_text sample_text(size_t records) {
    sat_entry entry = {calloc(records + 1, sizeof(sat_record)), records};
    sat_text text = {0};
    for (size_t i = 0; i < records; i++) {
        char name[64];
        snprintf(name, sizeof name, "variant_%zu", i);
        entry.records[i] = raced("race-1", 1700000000, name, 1e-3 * (double)(i + 1));
    }
    sat_entry_format(&text, device, key, &entry);
    sat_entry_free(&entry);
    return text;
}

static void an_entry_comes_back_as_it_was_written(void **state) {
    (void)state;
    for (size_t records = 0; records < 5; records++) {
        sat_text text = sample_text(records), again = {0};
        sat_entry entry;
        char found[SAT_KEY_CAPACITY];
        assert_int_equal(sat_entry_parse(text.data, text.length, found, sizeof found, &entry), SAT_OK);
        assert_string_equal(found, key);
        assert_int_equal(entry.count, records);
        sat_entry_format(&again, device, found, &entry);
        assert_string_equal(text.data, again.data);
        sat_entry_free(&entry);
        assert_int_equal(sat_entry_parse(text.data, text.length, found, strlen(key), &entry), SAT_BAD_FORMAT);
        sat_text_free(&text);
        sat_text_free(&again);
    }
}

/* The example of docs/internals/cache-format.md. A change here is a new version. */
static void an_entry_is_spelled_as_the_documentation_says(void **state) {
    (void)state;
    static const char expected[] = "sparse_autotune cache 1.2\n"
                                   "device=cpu AMD EPYC (2 cores, AVX2)\n"
                                   "key=matmul f32 m=4096 n=4096 k=4096 block=64x64\n"
                                   "kind=raced\tverdict=ok\trace=5f1c-1\twhen=1704067200\tvariant=cpu_matmul_f32_any_"
                                   "avx2_6x16\trevision=1\tseconds=0.0625\truns=9\tmay_win=1\tby=c0ffee0123456789\t"
                                   "pattern=0123456789abcdef\n"
                                   "kind=raced\tverdict=wrong\trace=5f1c-1\twhen=1704067200\tvariant=mine\trevision="
                                   "2\terror=0.5\tmay_win=1\tmessage=row 3, column 7\n"
                                   "kind=verified\tverdict=ok\twhen=1704067300\tvariant=cpu_matmul_f32_any_avx2_"
                                   "6x16\trevision=1\terror=3e-08\texact=m=4095 n=4096\tby=c0ffee0123456789\tpattern="
                                   "0123456789abcdef\n"
                                   "checksum=0ba59201f29e7298\n";
    sat_record r[3] = {{.kind = SAT_RECORD_RACED, .verdict = SAT_VERDICT_OK, .when = 1704067200, .race = "5f1c-1"},
                       {.kind = SAT_RECORD_RACED, .verdict = SAT_VERDICT_WRONG, .when = 1704067200, .race = "5f1c-1"},
                       {.kind = SAT_RECORD_VERIFIED, .verdict = SAT_VERDICT_OK, .when = 1704067300}};
    sat_entry entry = {r, 3};
    sat_text text = {0};
    strcpy(r[0].variant, "cpu_matmul_f32_any_avx2_6x16"), strcpy(r[0].revision, "1");
    r[0].seconds = 0.0625, r[0].runs = 9, r[0].may_win = true;
    strcpy(r[1].variant, "mine"), strcpy(r[1].revision, "2"), strcpy(r[1].message, "row 3, column 7");
    r[1].error = 0.5, r[1].may_win = true;
    strcpy(r[2].variant, r[0].variant), strcpy(r[2].revision, "1"), strcpy(r[2].full_key, "m=4095 n=4096");
    r[2].error = 3e-8;
    for (int i = 0; i < 3; i += 2)
        strcpy(r[i].checked_by, "c0ffee0123456789"), strcpy(r[i].pattern, "0123456789abcdef");
    sat_entry_format(&text, "cpu AMD EPYC (2 cores, AVX2)", "matmul f32 m=4096 n=4096 k=4096 block=64x64", &entry);
    assert_string_equal(text.data, expected);
    sat_text_free(&text);
}

static void an_entry_cut_at_any_byte_is_refused(void **state) {
    (void)state;
    sat_text text = sample_text(3);
    for (size_t n = 0; n < text.length; n++) {
        char *cut = malloc(n + 1), found[SAT_KEY_CAPACITY]; /* exactly so long, for ASan to see an overrun */
        sat_entry entry;
        memcpy(cut, text.data, n);
        assert_int_equal(sat_entry_parse(cut, n, found, sizeof found, &entry), SAT_BAD_FORMAT);
        assert_null(entry.records);
        free(cut);
    }
    sat_text_free(&text);
}

static void a_flipped_bit_anywhere_is_a_miss(void **state) {
    (void)state;
    sat_text text = sample_text(2);
    for (size_t i = 0; i < text.length; i++)
        for (int bit = 0; bit < 8; bit++) {
            char found[SAT_KEY_CAPACITY];
            sat_entry entry;
            text.data[i] = (char)(text.data[i] ^ (1 << bit));
            if (sat_entry_parse(text.data, text.length, found, sizeof found, &entry) == SAT_OK)
                fail_msg("byte %zu, bit %d went unseen", i, bit);
            text.data[i] = (char)(text.data[i] ^ (1 << bit));
        }
    sat_text_free(&text);
}

/* An entry of any text before the checksum's line. */
static sat_status parse_body(const char *body, sat_entry *entry) {
    char found[SAT_KEY_CAPACITY], sum[64];
    sat_text text = {0};
    sat_text_adds(&text, body);
    snprintf(sum, sizeof sum, "checksum=%016" PRIx64 "\n", sat_checksum(body, strlen(body)));
    sat_text_adds(&text, sum);
    sat_status status = sat_entry_parse(text.data, text.length, found, sizeof found, entry);
    sat_text_free(&text);
    return status;
}

static void a_right_checksum_does_not_excuse_a_wrong_entry(void **state) {
    (void)state;
#define TITLE "sparse_autotune cache 1.0\n"
    const char *bodies = "|\n|" TITLE "|" TITLE "key=k\n|" TITLE "key=k\ndevice=d\n|" TITLE "device=d\nkey=\n|" TITLE
                         "device=\nkey=k\n|" TITLE "device=d\nkey=k\tx\n|" TITLE "device=d\nkey=k\n\n|" TITLE
                         "device=d\nkey=k\nnonsense\n|" TITLE "device=d\nkey=k\nkind=new\tvariant=v\n|"
                         "sparse_autotune cache 1.2\ndevice=d\nkey=k\nkind=raced\tvariant=v\n|"
                         "sparse_autotune cache 1\ndevice=d\nkey=k\n|sparse_autotune cache 0.9\ndevice=d\nkey=k\n|"
                         "sparse_autotune cache 1.0 \ndevice=d\nkey=k\n|sparse_autotune cache -1.0\ndevice=d\nkey=k\n|"
                         "sparse_autotune cache 1.0\r\ndevice=d\r\nkey=k\r\n|"
                         "sparse_autotune cachet 1.0\ndevice=d\nkey=k\n|";
    sat_entry entry;
    char item[256];
    assert_int_equal(parse_body(TITLE "device=d\nkey=k\n", &entry), SAT_OK);
    while (next_item(&bodies, item))
        if (parse_body(item, &entry) != SAT_BAD_FORMAT) fail_msg("taken: %s", item);
#undef TITLE
}

/* As version 1.0 wrote it: times, and verdicts that nobody answers for. */
static void an_older_minor_version_is_read_and_has_no_fingerprint(void **state) {
    (void)state;
    sat_entry entry;
    assert_int_equal(parse_body("sparse_autotune cache 1.0\ndevice=d\nkey=k\n"
                                "kind=raced\tverdict=ok\trace=r\twhen=7\tvariant=v\tseconds=0.5\texact=e\n",
                                &entry),
                     SAT_OK);
    assert_int_equal(entry.count, 1);
    assert_true(entry.records[0].seconds == 0.5);
    assert_string_equal(entry.records[0].checked_by, "");
    assert_string_equal(entry.records[0].pattern, "");
    sat_entry_free(&entry);
}

static void of_two_records_that_differ_in_nothing_else_the_signed_one_stays(void **state) {
    (void)state;
    sat_record plain = verified(7, "v", "exact"), both = plain;
    sat_entry entry = {0};
    strcpy(both.checked_by, fingerprint);
    for (int order = 0; order < 2; order++) {
        assert_int_equal(sat_entry_merge(&entry, order ? &both : &plain, 1), SAT_OK);
        assert_int_equal(sat_entry_merge(&entry, order ? &plain : &both, 1), SAT_OK);
        assert_int_equal(entry.count, 1);
        assert_string_equal(entry.records[0].checked_by, fingerprint);
        sat_entry_clear_foreign(&entry, fingerprint);
        assert_string_equal(entry.records[0].checked_by, fingerprint);
        sat_entry_clear_foreign(&entry, "");
        assert_string_equal(entry.records[0].checked_by, "");
        sat_entry_free(&entry);
    }
}

static void a_later_minor_version_is_read_and_a_later_major_one_is_not(void **state) {
    (void)state;
    sat_entry entry;
    assert_int_equal(parse_body("sparse_autotune cache 1.7\ndevice=d\nkey=k\ncolour=blue\nkind=new\tvariant=v\n"
                                "kind=raced\tverdict=ok\trace=r\tvariant=v\tshade=3\n",
                                &entry),
                     SAT_OK);
    assert_int_equal(entry.count, 1);
    sat_entry_free(&entry);
    assert_int_equal(parse_body("sparse_autotune cache 2.0\nanything\n", &entry), SAT_UNSUPPORTED);
    static const char newer[] = "sparse_autotune cache 31.4\n\x01\x02";
    char found[SAT_KEY_CAPACITY];
    assert_int_equal(sat_entry_parse(newer, sizeof newer, found, sizeof found, &entry), SAT_UNSUPPORTED);
}

static void lines_records_and_files_have_limits(void **state) {
    (void)state;
    sat_entry entry;
    sat_text text = {0};
    sat_text_adds(&text, "sparse_autotune cache 1.0\ndevice=d\nkey=k\n");
    size_t head = text.length;
    for (int i = 0; i < SAT_RECORD_LIMIT; i++) sat_text_adds(&text, "kind=verified\tverdict=ok\tvariant=v\n");
    assert_int_equal(parse_body(text.data, &entry), SAT_OK);
    assert_int_equal(entry.count, SAT_RECORD_LIMIT);
    sat_entry_free(&entry);
    sat_text_adds(&text, "kind=verified\tverdict=ok\tvariant=v\n");
    assert_int_equal(parse_body(text.data, &entry), SAT_BAD_FORMAT);
    for (int over = 0; over < 2; over++) {
        static const char start[] = "kind=verified\tverdict=ok\tvariant=v\tlong=";
        text.length = head;
        sat_text_adds(&text, start);
        for (size_t i = strlen(start); i + 1 < SAT_LINE_LIMIT + (size_t)over; i++) sat_text_add(&text, "x", 1);
        sat_text_add(&text, "\n", 1);
        assert_int_equal(parse_body(text.data, &entry), over ? SAT_BAD_FORMAT : SAT_OK);
        sat_entry_free(&entry);
    }
    text.length = head;
    while (text.length < SAT_ENTRY_LIMIT)
        sat_text_adds(&text, "kind=verified\tverdict=ok\tvariant=v\tlonglonglong=1\n");
    assert_int_equal(parse_body(text.data, &entry), SAT_BAD_FORMAT);
    sat_text_free(&text);
}

/* ---- merging ---- */

static void merging_gives_the_same_in_any_order(void **state) {
    (void)state;
    uint64_t seed = 42;
    enum { N = 400 };
    sat_record *all = calloc(N, sizeof *all);
    for (int i = 0; i < N; i++) { /* races 0..11 by age, checks with repeats, of which the later counts */
        char race[64], name[64];
        snprintf(race, sizeof race, "race-%d", i % 12);
        snprintf(name, sizeof name, "v%d", i / 12);
        all[i] = i < 240 ? raced(race, 1000 + i % 12, name, 1e-3 * (double)(1 + i))
                         : verified(2000 + (int64_t)(next_random(&seed) % 100), name, i % 3 ? "a" : "b");
    }
    sat_entry first = {0};
    assert_int_equal(sat_entry_merge(&first, all, N), SAT_OK);
    for (int round = 0; round < 20; round++) {
        sat_entry entry = {0};
        for (int i = N - 1; i > 0; i--) {
            int j = (int)(next_random(&seed) % (uint64_t)(i + 1));
            sat_record t = all[i];
            all[i] = all[j], all[j] = t;
        }
        for (int at = 0; at < N;) {
            int n = (int)(next_random(&seed) % 60) + 1;
            if (n > N - at) n = N - at;
            assert_int_equal(sat_entry_merge(&entry, all + at, (size_t)n), SAT_OK);
            at += n;
        }
        assert_true(sat_entry_same(&first, &entry));
        sat_entry_free(&entry);
    }
    sat_entry_free(&first);
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_record_comes_back_as_it_was_written),
        TEST_IN_FOLDER(numbers_are_spelled_the_same_in_every_locale),
        cmocka_unit_test(every_malformed_field_is_refused),
        cmocka_unit_test(a_field_that_is_too_long_is_refused_and_one_that_just_fits_is_not),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(an_entry_comes_back_as_it_was_written),
        cmocka_unit_test(an_entry_is_spelled_as_the_documentation_says),
        cmocka_unit_test(an_entry_cut_at_any_byte_is_refused),
        cmocka_unit_test(a_flipped_bit_anywhere_is_a_miss),
        cmocka_unit_test(a_right_checksum_does_not_excuse_a_wrong_entry),
        cmocka_unit_test(an_older_minor_version_is_read_and_has_no_fingerprint),
        cmocka_unit_test(of_two_records_that_differ_in_nothing_else_the_signed_one_stays),
        cmocka_unit_test(a_later_minor_version_is_read_and_a_later_major_one_is_not),
        cmocka_unit_test(lines_records_and_files_have_limits),
        cmocka_unit_test(merging_gives_the_same_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
