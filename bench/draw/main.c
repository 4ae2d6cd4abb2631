// bench_draw SEED SECONDS [DEVICE]: draws problems at random, races every variant that fits each of them, skips nobody,
// and prints one JSON object a line. bench/earn reads them: a variant that is never near the best has no reason to be.
//
// The draw is log-uniform in sizes and block sides, and wide on purpose: thin blocks, few columns, odd sizes, skewed
// rows.

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sparse_autotune.h"

static double most_work = 2e11; // of one problem; less on a CPU
static const double MOST_BYTES = 1.5e9;
static const double RACE_SECONDS = 0.15;

static uint64_t state;

static uint64_t draw(void) {
    uint64_t x = (state += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double unit(void) { return (double)(draw() >> 11) * 0x1p-53; }
static bool chance(double p) { return unit() < p; }
static double log_uniform(double low, double high) { return low * pow(high / low, unit()); }
static int64_t pick(const int64_t *list, int count) { return list[draw() % (uint64_t)count]; }
#define PICK(...) pick((const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(sat_status status) {
    if (status == SAT_OK) return;
    fprintf(stderr, "bench_draw: %s\n", sat_last_error());
    exit(2);
}

// A size; mostly a multiple of 64, as people have them.
static int64_t side(double low, double high) {
    int64_t n = (int64_t)log_uniform(low, high);
    return chance(0.7) && n >= 64 ? n / 64 * 64 : n;
}

static int64_t block_side(void) {
    if (chance(0.6)) return PICK(16, 32, 64, 128);
    if (chance(0.5)) return PICK(1, 2, 4, 8, 24, 48, 96, 256);
    return (int64_t)log_uniform(1, 160);
}

/* ---- patterns ---- */

typedef enum kind { RANDOM, BANDED, POWER_LAW } kind;
static const char *const kind_names[] = {"random", "banded", "powerlaw"};

typedef struct drawn {
    sat_bsr bsr;
    int64_t *row_ptr, *col_idx;
    kind kind;
    double density;
} drawn;

// `count` columns of one row, in order: every column with the chance that leaves as many as are still wanted.
static void draw_row(int64_t *to, int64_t count, int64_t cols) {
    for (int64_t j = 0, left = count; left > 0; j++)
        if (unit() * (double)(cols - j) < (double)left) *to++ = j, left--;
}

static bool draw_pattern(drawn *d, int64_t rows, int64_t cols, int64_t br, int64_t bc, double density) {
    int64_t grid_rows = (rows + br - 1) / br, grid_cols = (cols + bc - 1) / bc;
    double mean = density * (double)grid_cols, weights = 0;
    d->row_ptr = calloc((size_t)grid_rows + 1, sizeof *d->row_ptr);
    for (int64_t i = 0; i < grid_rows; i++) weights += 1 / sqrt((double)(i + 1));
    for (int64_t i = 0; d->row_ptr && i < grid_rows; i++) {
        double wanted = d->kind == POWER_LAW ? mean * (double)grid_rows / sqrt((double)(i + 1)) / weights : mean;
        int64_t count = (int64_t)(wanted + unit());
        d->row_ptr[i + 1] = d->row_ptr[i] + (count < grid_cols ? count : grid_cols);
    }
    int64_t stored = d->row_ptr ? d->row_ptr[grid_rows] : 0;
    d->col_idx = malloc((size_t)(stored + 1) * sizeof *d->col_idx);
    if (!d->row_ptr || !d->col_idx) return false;
    for (int64_t i = 0; i < grid_rows; i++) {
        int64_t *to = d->col_idx + d->row_ptr[i], count = d->row_ptr[i + 1] - d->row_ptr[i];
        int64_t first = grid_rows > 1 ? i * (grid_cols - count) / (grid_rows - 1) : 0;
        if (d->kind == BANDED)
            for (int64_t j = 0; j < count; j++) to[j] = first + j;
        else draw_row(to, count, grid_cols);
    }
    d->bsr = (sat_bsr){SAT_SIZED(sat_bsr),    .rows = rows,          .cols = cols,
                       .block_rows = br,      .block_cols = bc,      .stored_blocks = stored,
                       .index_type = SAT_I64, .row_ptr = d->row_ptr, .col_idx = d->col_idx};
    d->density = (double)stored / ((double)grid_rows * (double)grid_cols);
    return stored > 0;
}

static void free_drawn(drawn *d) { free(d->row_ptr), free(d->col_idx); }

/* ---- problems ---- */

static bool draw_product(drawn *d, sat_problem *p) {
    static const sat_dtype dtypes[] = {SAT_F16, SAT_BF16, SAT_F32, SAT_F32, SAT_F64};
    int64_t m = side(256, 16384), k = side(256, 16384), n = chance(0.4) ? side(1, 64) : side(64, 4096);
    int64_t br = block_side(), bc = chance(0.67) ? br : block_side(), which = (int64_t)(draw() % 5);
    sat_dtype t = dtypes[which];
    bool sampled = chance(0.2);
    double density = log_uniform(0.008, 0.5);
    double size = t == SAT_F64 ? 8 : t == SAT_F32 ? 4 : 2, work = 2.0 * (double)m * (double)k * (double)n * density;
    double bytes = size * ((double)m * (double)k * density + (double)k * (double)n + (double)m * (double)n);
    double blocks = (double)m * (double)k * density / (double)(br * bc);
    d->kind = (kind)(draw() % 3);
    if (work > most_work || bytes > MOST_BYTES || blocks > 4e6 || !draw_pattern(d, m, k, br, bc, density)) return false;
    if (sampled) {
        must(sat_problem_sampled(p, t, n));
        p->m = m, p->n = k, p->k = n;
        p->a = chance(0.5) ? (sat_layout){n, 1, 0} : (sat_layout){1, m, 0};
        p->b = chance(0.5) ? (sat_layout){k, 1, 0} : (sat_layout){1, n, 0};
    } else {
        must(sat_problem_matmul(p, t, n));
        p->matmul.transpose = chance(0.3) ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
        int64_t rows = p->matmul.transpose ? k : m, depth = p->matmul.transpose ? m : k;
        p->m = rows, p->k = depth;
        bool columns = chance(0.4); // X*A is this with both dense operands by columns
        p->b = columns ? (sat_layout){1, depth, 0} : (sat_layout){n, 1, 0};
        p->c = columns ? (sat_layout){1, rows, 0} : (sat_layout){n, 1, 0};
        if (chance(0.2)) p->flags |= SAT_FIXED_VALUES;
    }
    if (which == 3) p->flags |= SAT_ALLOW_TF32;
    if (chance(0.85)) p->a_align = p->b_align = p->c_align = 256;
    return true;
}

static bool draw_attention(drawn *d, sat_problem *p) {
    int64_t m = side(16, 16384), n = chance(0.8) ? m : side(16, 16384),
            dim = PICK(32, 64, 64, 96, 128, 128, 128, 192, 256);
    int64_t kv_heads = PICK(1, 2, 4, 8), heads = kv_heads * PICK(1, 1, 4, 8), batch = (int64_t)log_uniform(1, 33);
    bool masked = chance(0.4), backward = chance(0.4);
    double density = masked ? log_uniform(0.05, 1) : 1;
    double work = 4.0 * (double)(batch * heads) * (double)m * (double)n * (double)dim * density;
    double bytes = 2.0 * (double)(batch * heads) * (double)(m + n) * (double)dim * (backward ? 4 : 2);
    int64_t br = masked ? PICK(64, 128, 128, 32, 256) : m, bc = masked ? br : n;
    d->kind = RANDOM;
    if (work > most_work || bytes > MOST_BYTES || !draw_pattern(d, m, n, br, bc, density)) return false;
    static const sat_dtype dtypes[] = {SAT_F16, SAT_BF16, SAT_F16, SAT_BF16, SAT_F32};
    sat_dtype t = dtypes[draw() % 5];
    must((backward ? sat_problem_attention_backward : sat_problem_attention)(p, t, heads, kv_heads, dim));
    p->m = m, p->n = n, p->batch = batch, p->attention.causal = chance(0.5);
    p->a_align = p->b_align = p->c_align = 256;
    return true;
}

/* ---- races ---- */

static const char *const op_names[] = {"", "matmul", "sampled", "attention", "attention_backward"};
static const char *const dtype_names[] = {"", "f32", "f64", "f16", "bf16"};

static void print_problem(const drawn *d, const sat_problem *p) {
    printf(
        "{\"op\":\"%s\",\"dtype\":\"%s\",\"m\":%" PRId64 ",\"n\":%" PRId64 ",\"k\":%" PRId64 ",\"block\":[%" PRId64
        ",%" PRId64
        "],\"density\":%.4g,\"pattern\":\"%s\",\"transpose\":%d,\"columns\":%d,\"tf32\":%d,\"fixed\":%d,\"align\":%u",
        op_names[p->op], dtype_names[p->a_dtype], p->m, p->n, p->k, d->bsr.block_rows, d->bsr.block_cols, d->density,
        kind_names[d->kind], p->op == SAT_MATMUL && p->matmul.transpose, p->b.row_stride == 1,
        (p->flags & SAT_ALLOW_TF32) != 0, (p->flags & SAT_FIXED_VALUES) != 0, p->a_align);
    if (p->op == SAT_ATTENTION || p->op == SAT_ATTENTION_BACKWARD)
        printf(",\"batch\":%" PRId64 ",\"heads\":%" PRId64 ",\"kv_heads\":%" PRId64 ",\"dim\":%" PRId64
               ",\"causal\":%d",
               p->batch, p->attention.heads, p->attention.kv_heads, p->attention.dim, p->attention.causal);
    putchar('}');
}

static void race(sat_context *context, const char *measure, const drawn *d, const sat_problem *p) {
    sat_pattern *pattern = NULL;
    sat_race *race = NULL;
    sat_race_options options = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true};
    sat_status status = sat_pattern_create(context, &d->bsr, &pattern);
    if (status == SAT_OK) status = sat_race_run(context, pattern, p, &options, &race);
    printf("{\"problem\":");
    print_problem(d, p);
    printf(",\"measure\":\"%s\"", measure);
    if (status != SAT_OK) printf(",\"status\":\"%s\"", sat_status_name(status));
    printf(",\"results\":[");
    for (size_t i = 0, shown = 0; status == SAT_OK && i < sat_race_count(race); i++) {
        const sat_result *r = sat_race_at(race, i);
        if (r->verdict == SAT_VERDICT_OK && r->seconds > 0)
            printf("%s[\"%s\",%.4g,%d]", shown++ ? "," : "", r->variant, r->seconds, r->may_win);
        else if (r->verdict == SAT_VERDICT_WRONG) printf("%s[\"%s\",null,0]", shown++ ? "," : "", r->variant);
    }
    puts("]}");
    fflush(stdout);
    sat_race_free(race);
    sat_pattern_free(pattern);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: bench_draw SEED SECONDS [DEVICE]\n");
        return 2;
    }
    double end = now() + atof(argv[2]);
    state = strtoull(argv[1], NULL, 10) * 0x2545f4914f6cdd1du + 1;
    static const char *const measures[] = {[SAT_MEASURE_COLD] = "cold", [SAT_MEASURE_WARM] = "warm"};
    sat_context *contexts[2] = {NULL, NULL}; // by sat_measure
    for (int i = 0; i < 2; i++) {
        sat_context_options options = {SAT_SIZED(sat_context_options), .cache_dir = "", .effort = SAT_EFFORT_FULL,
                                       .measure = (sat_measure)i, .budget_seconds = RACE_SECONDS};
        if (argc == 4) options.device = argv[3];
        must(sat_context_create(&options, &contexts[i]));
    }
    if (sat_context_device(contexts[0])->backend == SAT_CPU) most_work = 2e9;
    while (now() < end) {
        drawn d = {0};
        sat_problem p = {SAT_SIZED(sat_problem)};
        bool fits = chance(0.7) ? draw_product(&d, &p) : draw_attention(&d, &p);
        int measure = chance(0.5) ? SAT_MEASURE_COLD : SAT_MEASURE_WARM;
        if (fits) race(contexts[measure], measures[measure], &d, &p);
        free_drawn(&d);
    }
    for (int i = 0; i < 2; i++) sat_context_free(contexts[i]);
    return 0;
}
