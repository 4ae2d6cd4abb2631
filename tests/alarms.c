/* Does the check of a race ever call a right result wrong? Small random problems, each summed in many orders, pass
 * through the very probes of a race; so does every variant of this machine. Prints what was found, and how near to the
 * bounds right results come.
 *
 *   alarms RACES [SEED]     RACES: how many candidates' worth of checks, each two exact ones and one of precision
 *
 * Ends with 1 where there was an alarm. docs/internals/check.md has the tail that this measures and the one that is
 * derived. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/select.h"
#include "core/runner.h"
#include "core/bench.h"
#include "ops/check.h"
#include "variant.h"

enum { WIDEST = 64, DEEPEST = 20000, WORK = 200000 };

#define DEMAND(call)                                                                                                   \
    do {                                                                                                               \
        sat_status status_ = (call);                                                                                   \
        if (status_ == SAT_OK) break;                                                                                  \
        fprintf(stderr, "alarms: %s: %s: %s\n", #call, sat_status_name(status_), sat_last_error());                    \
        exit(2);                                                                                                       \
    } while (0)

/* Loops twice: for any machine, where a fused multiply-add may be a call, and for those that have it. */
#if defined(__x86_64__)
#define FAST_ISA     __attribute__((target("avx2,fma")))
#define HAS_FAST_ISA (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
#else
#define FAST_ISA
#define HAS_FAST_ISA false
#endif

/* ---- orders of summation ---- */

typedef enum order_kind { CHAIN, LANES, BLOCKS, SPLIT, PAIRWISE, IN_PLACE, WIDE } order_kind;
typedef enum direction { FORWARD, REVERSED, SHUFFLED } direction;

typedef struct order {
    const char *name;
    order_kind kind;
    int64_t size; /* lanes, products of a block, or parts of a split */
    bool fused;   /* multiply-add in one rounding */
    direction direction;
} order;

static const order orders[] = {
    {"one after the other", CHAIN, 0, true, FORWARD},
    {"one after the other, products rounded", CHAIN, 0, false, FORWARD},
    {"backwards", CHAIN, 0, true, REVERSED},
    {"backwards, products rounded", CHAIN, 0, false, REVERSED},
    {"shuffled", CHAIN, 0, true, SHUFFLED},
    {"4 lanes", LANES, 4, true, FORWARD},
    {"8 lanes, products rounded", LANES, 8, false, FORWARD},
    {"16 lanes", LANES, 16, true, FORWARD},
    {"blocks of 4", BLOCKS, 4, true, FORWARD},
    {"blocks of 8, products rounded", BLOCKS, 8, false, FORWARD},
    {"blocks of 16", BLOCKS, 16, true, FORWARD},
    {"blocks of 256, shuffled", BLOCKS, 256, true, SHUFFLED},
    {"split in 2", SPLIT, 2, true, FORWARD},
    {"split in 7, products rounded", SPLIT, 7, false, REVERSED},
    {"pairwise", PAIRWISE, 0, true, FORWARD},
    {"panels of 64 into C", IN_PLACE, 64, true, FORWARD},
    {"panels of 5 into C, products rounded", IN_PLACE, 5, false, FORWARD},
    {"in a wider type", WIDE, 0, true, FORWARD},
};
enum { ORDERS = sizeof orders / sizeof orders[0] };

typedef struct line {     /* of the output */
    int64_t start, depth; /* its products */
    int64_t first_col, width;
    int64_t out, out_step; /* where its elements are */
    int64_t stored;        /* elements that it has in memory, with those beyond the matrix */
    int64_t bias;
} line;

#define REAL    float
#define NAME(x) x##_f32
#define fma_f32 __builtin_fmaf
#define act_f32 sat_act_f32
#include "alarms_sums.h"
#undef REAL
#undef NAME
#define REAL    double
#define NAME(x) x##_f64
#define fma_f64 __builtin_fma
#define act_f64 sat_act_f64
#include "alarms_sums.h"
#include "problems.h"
#undef REAL
#undef NAME

/* ---- what is counted ---- */

enum { KINDS = 7, BINS = 40, SERIAL_BINS = 24 };
static const char *const kind_names[KINDS] = {"f32", "f64", "f16", "bf16", "f16 to f32", "bf16 to f32", "attention"};

typedef struct counts {
    int64_t races, checks, alarms, problems;
    int64_t elements[KINDS], near[KINDS][BINS]; /* of |error| over its bound, in steps of 1/BINS */
    double most[KINDS], most_rms[KINDS];        /* of a bound; of what is allowed of the sum of squares */
    int64_t serial, beyond[SERIAL_BINS];        /* sums of one chain in f32 or f64: in steps of 1/4 of u*sqrt(n)*N2 */
} counts;

static void add_counts(counts *to, const counts *from) {
    to->races += from->races, to->checks += from->checks, to->alarms += from->alarms, to->problems += from->problems;
    for (int k = 0; k < KINDS; k++) {
        to->elements[k] += from->elements[k];
        to->most[k] = fmax(to->most[k], from->most[k]), to->most_rms[k] = fmax(to->most_rms[k], from->most_rms[k]);
        for (int i = 0; i < BINS; i++) to->near[k][i] += from->near[k][i];
    }
    to->serial += from->serial;
    for (int i = 0; i < SERIAL_BINS; i++) to->beyond[i] += from->beyond[i];
}

static int kind_of(const sat_problem *p) {
    bool widened = p->c_dtype != p->a_dtype;
    return p->a_dtype == SAT_F32 ? 0 : p->a_dtype == SAT_F64 ? 1 : (p->a_dtype == SAT_F16 ? 2 : 3) + 2 * widened;
}

/* ---- one problem ---- */

typedef struct scene {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_request q;
    sat_bench bench;
    line *lines;
    int64_t count, products, elements;
    int64_t *from;     /* where the first factor of each product is */
    int32_t *at[3];    /* of a line's products, by direction; for the deepest */
    double *true_sums; /* [3][count][WIDEST]: sum, low, squares */
    sums_f32 narrow;
    sums_f64 wide;
    counts *counts;
    uint64_t random;
} scene;

static uint64_t next(uint64_t *state) { return sat_mix((*state)++); }
static int64_t below(uint64_t *state, int64_t n) { return (int64_t)(next(state) % (uint64_t)n); }
static bool one_in(uint64_t *state, int64_t n) { return below(state, n) == 0; }

static void *room_for(size_t count, size_t size) {
    void *memory = calloc(count + 1, size);
    if (!memory) fprintf(stderr, "alarms: no memory\n"), exit(2);
    return memory;
}

static void alarm_at(scene *s, const char *who, const char *what, const sat_finding *f) {
    s->counts->alarms++;
#pragma omp critical(alarms_print)
    printf("alarm: %s, %s: %s\n  %s\n", who, what, f->where, s->q.full_key);
}

static bool judge(scene *s, const char *who, const char *what) {
    sat_finding finding;
    DEMAND(sat_bench_check(&s->bench, &finding));
    s->counts->checks++;
    if (!finding.ok) alarm_at(s, who, what, &finding);
    return finding.ok;
}

static sat_pattern *make_pattern(sat_context *ctx, uint64_t *r, int64_t rows, int64_t cols, int64_t br, int64_t bc) {
    int64_t gr = (rows + br - 1) / br, gc = (cols + bc - 1) / bc, stored = 0, kept = 1 + below(r, 8);
    int32_t *ptr = room_for((size_t)gr + 1, 4), *col = room_for((size_t)(gr * gc), 4);
    for (int64_t i = 0; i < gr; i++) {
        for (int64_t j = 0; j < gc; j++)
            if (below(r, 8) < kept) col[stored++] = (int32_t)j;
        ptr[i + 1] = (int32_t)stored;
    }
    sat_bsr b = {SAT_SIZED(sat_bsr), .rows = rows, .cols = cols, .block_rows = br, .block_cols = bc};
    b.stored_blocks = stored, b.index_type = SAT_I32, b.row_ptr = ptr, b.col_idx = col;
    sat_pattern *pattern = NULL;
    DEMAND(sat_pattern_create(ctx, &b, &pattern));
    free(ptr), free(col);
    return pattern;
}

/* Deep sums are rare, and come with few elements. */
static int64_t random_depth(uint64_t *r) {
    int64_t x = below(r, 100);
    return x < 60 ? 1 + below(r, 64) : x < 90 ? 1 + below(r, 300) : x < 98 ? 1 + below(r, 2000) : 1 + below(r, DEEPEST);
}

static int64_t random_side(uint64_t *r) { return one_in(r, 3) ? 1 + below(r, 8) : 1 + below(r, WIDEST); }
static int64_t random_block(uint64_t *r) { return one_in(r, 2) ? 1 + below(r, 20) : (int64_t)1 << below(r, 6); }

static sat_problem random_problem(uint64_t *r, bool sampled, int64_t *rows, int64_t *cols) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    static const double alphas[] = {-1.5, -1, 2.5}, betas[] = {1, 0.75, -0.5};
    int64_t depth = random_depth(r), m = random_side(r), n = random_side(r);
    while (m * n * depth > WORK && (m > 1 || n > 1)) *(m > n ? &m : &n) /= 2;
    sat_dtype type = types[below(r, 4)];
    sat_problem p = sampled ? sampled_problem(type, depth) : matmul_problem(type, n);
    if ((type == SAT_F16 || type == SAT_BF16) && one_in(r, 2)) p.c_dtype = SAT_F32;
    if (one_in(r, 3)) p.alpha = alphas[below(r, 3)];
    if (one_in(r, 3)) p.beta = betas[below(r, 3)];
    if (!sampled && one_in(r, 2)) p.matmul.transpose = SAT_TRANSPOSE;
    if (!sampled && one_in(r, 3)) p.matmul.bias = SAT_BIAS_ROW;
    if (!sampled && one_in(r, 3)) p.matmul.activation = (sat_activation)(1 + below(r, 3));
    bool t = p.matmul.transpose == SAT_TRANSPOSE;
    *rows = sampled ? m : t ? depth : m, *cols = sampled ? n : t ? m : depth;
    if (one_in(r, 4)) p.b = (sat_layout){.row_stride = 1, .col_stride = (sampled ? depth : t ? *rows : *cols) + 3};
    if (!sampled && one_in(r, 4)) p.c = (sat_layout){.row_stride = 1, .col_stride = m + 5};
    return p;
}

/* ---- which products a line is made of ---- */

static void matmul_lines(scene *s) {
    const sat_problem *p = &s->q.problem;
    sat_rows r = sat_op_rows(p, s->q.view);
    int64_t at = 0;
    s->count = p->m;
    s->lines = room_for((size_t)p->m, sizeof *s->lines);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t t = r.ptr[i / r.br]; t < r.ptr[i / r.br + 1]; t++) at += sat_min(r.bc, r.k - r.col[t] * r.bc);
    s->products = at, at = 0;
    s->from = room_for((size_t)s->products, sizeof *s->from);
    s->narrow.k = s->wide.k = room_for((size_t)s->products, sizeof *s->narrow.k);
    for (int64_t i = 0; i < p->m; i++) {
        line *l = &s->lines[i];
        *l = (line){.start = at, .width = p->n, .out = i * p->c.row_stride, .out_step = p->c.col_stride, .bias = i};
        for (int64_t t = r.ptr[i / r.br]; t < r.ptr[i / r.br + 1]; t++)
            for (int64_t k = 0; k < sat_min(r.bc, r.k - r.col[t] * r.bc); k++, at++) {
                s->from[at] = sat_block_of(&r, t) * r.block_elements + i % r.br * r.row_step + k * r.col_step;
                s->narrow.k[at] = (int32_t)(r.col[t] * r.bc + k);
            }
        l->depth = at - l->start;
    }
}

/* A line is one row of a stored block. */
static void sampled_lines(scene *s) {
    const sat_problem *p = &s->q.problem;
    const sat_pattern_view *a = s->q.view;
    int64_t at = 0;
    s->count = a->stored_blocks * a->block_rows, s->products = s->count * p->k;
    s->lines = room_for((size_t)s->count, sizeof *s->lines);
    s->from = room_for((size_t)s->products, sizeof *s->from);
    s->narrow.k = s->wide.k = room_for((size_t)s->products, sizeof *s->narrow.k);
    for (int64_t g = 0; g < a->grid_rows; g++)
        for (int64_t t = a->row_ptr[g]; t < a->row_ptr[g + 1]; t++)
            for (int64_t i = 0; i < a->block_rows; i++) {
                int64_t row = g * a->block_rows + i, col = a->col_idx[t] * a->block_cols;
                line *l = &s->lines[t * a->block_rows + i];
                *l = (line){.start = at, .first_col = col, .out_step = 1, .stored = a->block_cols};
                l->out = (t * a->block_rows + i) * a->block_cols;
                if (row >= a->rows) continue;
                l->width = sat_min(a->block_cols, a->cols - col), l->depth = p->k;
                for (int64_t k = 0; k < p->k; k++, at++) {
                    s->from[at] = row * p->a.row_stride + k * p->a.col_stride;
                    s->narrow.k[at] = (int32_t)k;
                }
            }
}

static void make_directions(scene *s) {
    int64_t deepest = 0;
    for (int64_t i = 0; i < s->count; i++) deepest = sat_max(deepest, s->lines[i].depth);
    for (int d = 0; d < 3; d++) s->at[d] = room_for((size_t)deepest, sizeof *s->at[d]);
    for (int64_t x = 0; x < deepest; x++) s->at[SHUFFLED][x] = (int32_t)x;
    for (int64_t x = deepest; x > 1; x--) {
        int64_t other = below(&s->random, x);
        int32_t keep = s->at[SHUFFLED][x - 1];
        s->at[SHUFFLED][x - 1] = s->at[SHUFFLED][other], s->at[SHUFFLED][other] = keep;
    }
    s->at[REVERSED][0] = -1; /* depends on the line */
}

/* The products of a line in a direction; NULL: forward. */
static const int32_t *direct(scene *s, const line *l, direction d) {
    if (d == FORWARD || l->depth == 0) return NULL;
    int32_t *to = s->at[FORWARD];
    int64_t n = 0;
    if (d == REVERSED)
        for (int64_t x = 0; x < l->depth; x++) to[x] = (int32_t)(l->depth - 1 - x);
    else
        for (int64_t x = 0; n < l->depth; x++)
            if (s->at[SHUFFLED][x] < l->depth) to[n++] = s->at[SHUFFLED][x];
    return to;
}

static void open_scene(scene *s, bool sampled) {
    int64_t rows, cols;
    sat_problem p = random_problem(&s->random, sampled, &rows, &cols);
    s->pattern = make_pattern(s->ctx, &s->random, rows, cols, random_block(&s->random), random_block(&s->random));
    DEMAND(sat_request_make(&s->q, s->ctx, s->pattern, &p));
    DEMAND(sat_bench_open(&s->bench, s->ctx, &s->q.problem, s->q.view, &s->q.device, (size_t)1 << 32));
    if (sampled) sampled_lines(s);
    else matmul_lines(s);
    make_directions(s);
    s->elements = sampled ? s->count * s->q.view->block_cols : s->count * s->q.problem.n; /* as the checks count */
    size_t b = (size_t)(s->bench.operand[1].rows * s->bench.operand[1].cols);
    s->narrow.a = room_for((size_t)s->products, sizeof *s->narrow.a), s->narrow.b = room_for(b, sizeof *s->narrow.b);
    s->wide.a = room_for((size_t)s->products, sizeof *s->wide.a), s->wide.b = room_for(b, sizeof *s->wide.b);
    s->true_sums = room_for((size_t)(3 * s->count * WIDEST), sizeof *s->true_sums);
}

static void close_scene(scene *s) {
    free(s->lines), free(s->from), free(s->narrow.k), free(s->true_sums);
    free(s->narrow.a), free(s->narrow.b), free(s->wide.a), free(s->wide.b);
    for (int d = 0; d < 3; d++) free(s->at[d]);
    sat_bench_close(&s->bench);
    sat_pattern_free(s->pattern);
}

/* ---- how near the bounds right results come ---- */

static sat_true_line true_line(const scene *s, int64_t i) {
    double *sum = s->true_sums + i * WIDEST, *low = sum + s->count * WIDEST, *squares = low + s->count * WIDEST;
    return (sat_true_line){sum, s->q.problem.compute_dtype == SAT_F64 ? low : NULL, squares};
}

static void work_out(scene *s) {
    memset(s->true_sums, 0, (size_t)(3 * s->count * WIDEST) * sizeof *s->true_sums);
    for (int64_t i = 0; i < s->count; i++) {
        const line *l = &s->lines[i];
        sat_true_line to = true_line(s, i);
        for (int64_t x = l->start; x < l->start + l->depth; x++)
            sat_true_add(&to, s->wide.a[x], s->wide.b + s->wide.k[x] * s->wide.pitch + l->first_col, l->width);
    }
}

/* What one element is allowed, and how far off it is. */
typedef struct distance {
    double off, bound, predicted, walk; /* walk: u*sqrt(n)*N2 */
} distance;

static distance measure(const scene *s, int64_t i, int64_t j) {
    const sat_problem *p = &s->q.problem;
    const line *l = &s->lines[i];
    sat_true_line t = true_line(s, i);
    int64_t at = l->out + j * l->out_step;
    double before = p->beta != 0 ? p->beta * sat_load(p->c_dtype, s->bench.before, at) : 0;
    double bias = p->matmul.bias == SAT_BIAS_ROW ? sat_load(p->c_dtype, s->bench.pointer[3], l->bias) : 0;
    double x = p->alpha * t.sum[j] + (before + bias), low = t.low ? p->alpha * t.low[j] : 0;
    double scale = sqrt(p->alpha * p->alpha * t.squares[j] + before * before + bias * bias);
    double got = sat_load(p->c_dtype, s->bench.pointer[2], at), want = sat_act_f64(p->matmul.activation, x + low);
    sat_loss loss = sat_loss_of_sum(p, SAT_CPU, l->depth, s->elements);
    return (distance){.off = p->matmul.activation == SAT_ACT_NONE ? fabs((got - x) - low) : fabs(got - want),
                      .bound = sat_precision_bound(p, loss.most, scale, x, want),
                      .predicted = sat_predicted_square(p, loss.rms, scale, x, want),
                      .walk =
                          sat_unit(p->compute_dtype) * sqrt((double)l->depth) * fabs(p->alpha) * sqrt(t.squares[j])};
}

static void note_distances(scene *s, const order *o) {
    const sat_problem *p = &s->q.problem;
    int k = kind_of(p);
    bool serial = o && o->kind == CHAIN && p->c_dtype == p->compute_dtype && p->alpha == 1 && p->beta == 0 &&
                  p->matmul.bias == SAT_BIAS_NONE && p->matmul.activation == SAT_ACT_NONE;
    sat_squares squares = {0};
    for (int64_t i = 0; i < s->count; i++)
        for (int64_t j = 0; j < s->lines[i].width; j++) {
            distance d = measure(s, i, j);
            double near = d.bound > 0 ? d.off / d.bound : 0;
            s->counts->elements[k]++;
            s->counts->near[k][(int)fmin(BINS - 1, near * BINS)]++;
            s->counts->most[k] = fmax(s->counts->most[k], near);
            sat_squares_add(&squares, d.off, d.predicted);
            if (!serial || s->lines[i].depth < 64) continue; /* below that, discrete: no walk yet */
            s->counts->serial++;
            for (int b = 0; b < SERIAL_BINS && d.off > (b + 1) * 0.25 * d.walk; b++) s->counts->beyond[b]++;
        }
    if (squares.count == 0) return;
    double allowed = sat_squares_most(sat_squares_effective(&squares)) * squares.predicted;
    s->counts->most_rms[k] = fmax(s->counts->most_rms[k], squares.seen / allowed);
}

/* ---- races' worth ---- */

static void load_operands(scene *s) {
    if (s->q.problem.compute_dtype == SAT_F64) load_f64(&s->wide, &s->bench, s->lines, s->count, s->from);
    else load_f32(&s->narrow, &s->bench, s->lines, s->count, s->from);
}

static void compute(scene *s, const order *o) {
    DEMAND(sat_bench_reset(&s->bench));
    for (int64_t i = 0; i < s->count; i++) {
        const int32_t *at = direct(s, &s->lines[i], o->direction);
        if (s->q.problem.compute_dtype == SAT_F64) make_line_f64(&s->wide, &s->lines[i], o, at, &s->bench);
        else make_line_f32(&s->narrow, &s->lines[i], o, at, &s->bench);
    }
}

enum { VARIANTS = 64 };

/* Built-in variants that take this problem; a library's threads are not ours to count. */
static size_t find_variants(const scene *s, const sat_variant **list) {
    const sat_registry *r = &s->ctx->registry;
    size_t count = 0;
    for (size_t i = 0; i < atomic_load(&r->count) && count < VARIANTS; i++)
        if (!(r->list[i]->flags & SAT_V_LIBRARY) &&
            sat_variant_fits(r->list[i], &s->q.problem, s->q.view, &s->q.device))
            list[count++] = r->list[i];
    return count;
}

static void run_variant(scene *s, const sat_variant *v) {
    sat_runner runner;
    DEMAND(sat_runner_open(&runner, s->ctx, v, &s->q.problem, s->q.view, &s->q.device, (size_t)1 << 32, NULL));
    DEMAND(sat_bench_reset(&s->bench));
    DEMAND(sat_runner_launch(&runner, s->bench.pointer, NULL));
    sat_runner_close(&runner);
}

/* Every order and every variant on one fill. */
static void try_all(scene *s, const char *what, bool precision, const sat_variant *const *variants, size_t count) {
    load_operands(s);
    if (precision) {
        if (s->q.problem.compute_dtype != SAT_F64) load_f64(&s->wide, &s->bench, s->lines, s->count, s->from);
        work_out(s);
    }
    for (int o = 0; o < ORDERS; o++) {
        compute(s, &orders[o]);
        if (precision) note_distances(s, &orders[o]); /* before the check, which may poison an output to see its gaps */
        judge(s, orders[o].name, what);
    }
    for (size_t v = 0; v < count; v++) {
        run_variant(s, variants[v]);
        if (precision) note_distances(s, NULL);
        judge(s, variants[v]->name, what);
    }
}

static void race_product(scene *s, int64_t number) {
    const sat_variant *variants[VARIANTS];
    open_scene(s, number % 3 == 2);
    size_t count = find_variants(s, variants);
    int pair = number % 4 == 3 ? 2 : 0; /* rounds 2 and 3 have large and tiny numbers, as the winner's checks have */
    DEMAND(sat_bench_fill(&s->bench, SAT_PROBE_STRUCTURE, pair, next(&s->random)));
    try_all(s, "exact", false, variants, count);
    DEMAND(sat_bench_fill(&s->bench, SAT_PROBE_PRECISION, 0, next(&s->random)));
    try_all(s, "precision", true, variants, count);
    DEMAND(sat_bench_fill(&s->bench, SAT_PROBE_STRUCTURE, pair + 1, next(&s->random)));
    try_all(s, "exact", false, variants, count);
    s->counts->races += ORDERS + (int64_t)count;
    close_scene(s);
}

/* A problem without orders of our own: every variant, on exact operands (attention: equal weights) and on random reals.
 * `pattern`: NULL where there is none. */
static void race_variants(scene *s, const sat_problem *p, sat_pattern *pattern) {
    const sat_variant *variants[VARIANTS];
    DEMAND(sat_request_make(&s->q, s->ctx, pattern, p));
    DEMAND(sat_bench_open(&s->bench, s->ctx, &s->q.problem, s->q.view, &s->q.device, (size_t)1 << 32));
    size_t count = find_variants(s, variants);
    for (int precise = 0; precise < 2; precise++) {
        DEMAND(sat_bench_fill(&s->bench, precise ? SAT_PROBE_PRECISION : SAT_PROBE_STRUCTURE, 0, next(&s->random)));
        for (size_t v = 0; v < count; v++) {
            run_variant(s, variants[v]);
            judge(s, variants[v]->name, precise ? "precision" : "exact");
        }
    }
    s->counts->races += (int64_t)count;
    sat_bench_close(&s->bench);
    sat_pattern_free(pattern);
}

static void race_attention(scene *s) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    uint64_t *r = &s->random;
    int64_t kv = 1 + below(r, 2);
    sat_problem p = attention_problem(types[below(r, 4)], kv * (1 + below(r, 2)), kv, 8 * (1 + below(r, 8)));
    p.attention.causal = one_in(r, 2), p.attention.lse = one_in(r, 2);
    if (one_in(r, 4)) p.attention.window = 1 + below(r, 30);
    if (one_in(r, 3)) p.op = SAT_ATTENTION_BACKWARD, p.attention.lse = false;
    int64_t queries = 1 + below(r, 60), keys = 1 + below(r, 60);
    race_variants(s, &p, make_pattern(s->ctx, r, queries, keys, random_block(r), random_block(r)));
}

static void race_groups(scene *s) {
    static const sat_dtype types[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    uint64_t *r = &s->random;
    sat_problem p = {SAT_SIZED(sat_problem)};
    sat_dtype type = types[below(r, 4)];
    int64_t m = random_depth(r), n = random_side(r), k = random_side(r), groups = 1 + below(r, 12);
    if (one_in(r, 2)) DEMAND(sat_problem_grouped(&p, type, k, n, m, groups)); /* deep: m products */
    else DEMAND(sat_problem_grouped_weights(&p, type, m, n, k, groups));
    if (p.op == SAT_GROUPED && one_in(r, 3)) p.grouped.bias = true;
    if (p.op == SAT_GROUPED && one_in(r, 3)) p.grouped.activation = (sat_activation)(1 + below(r, 3));
    if ((type == SAT_F16 || type == SAT_BF16) && one_in(r, 2)) p.c_dtype = SAT_F32;
    if (one_in(r, 3)) p.alpha = -1.5;
    if (one_in(r, 3)) p.beta = 0.75;
    race_variants(s, &p, NULL);
}

/* ---- the report ---- */

static void print_counts(const counts *c) {
    printf("%" PRId64 " races' worth on %" PRId64 " problems, %" PRId64 " checks, %" PRId64 " alarms\n", c->races,
           c->problems, c->checks, c->alarms);
    printf(
        "\n|error| over its bound: share of elements beyond, and the largest; the largest sum of squares over what is "
        "allowed\n%-12s%14s",
        "", "elements");
    static const int shown[] = {4, 8, 12, 16, 20, 24, 28, 32, 36};
    for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) printf("%9.1f", (double)shown[i] / BINS);
    printf("%9s%9s\n", "largest", "squares");
    for (int k = 0; k < KINDS - 1; k++) {
        printf("%-12s%14" PRId64, kind_names[k], c->elements[k]);
        for (size_t i = 0; i < sizeof shown / sizeof shown[0]; i++) {
            int64_t beyond = 0;
            for (int b = shown[i]; b < BINS; b++) beyond += c->near[k][b];
            printf(" %8.1e", c->elements[k] ? (double)beyond / (double)c->elements[k] : 0);
        }
        printf("%9.3f%9.3f\n", c->most[k], c->most_rms[k]);
    }
    printf("\none chain of 64 products or more, f32 and f64: |error| beyond so many u*sqrt(n)*N2, of %" PRId64
           "\n%8s%12s%14s\n",
           c->serial, "", "measured", "derived");
    for (int b = 1; b < SERIAL_BINS && c->beyond[b] > 0; b += 2) {
        double t = (b + 1) * 0.25 / 0.294;
        printf("%8.2f%12.1e%14.1e\n", (b + 1) * 0.25, (double)c->beyond[b] / (double)c->serial,
               0.854 / sqrt(t) * exp(-1.1107 * t));
    }
}

int main(int argc, char **argv) {
    int64_t wanted = argc > 1 ? atoll(argv[1]) : 5000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    counts all = {0};
    int64_t begun = 0;
#pragma omp parallel
    {
        counts mine = {0};
        sat_context *ctx = NULL;
        sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .threads = 1};
        o.effort = SAT_EFFORT_OFF, o.measure = SAT_MEASURE_WARM;
        DEMAND(sat_context_create(&o, &ctx));
        for (bool more = true; more;) {
            int64_t number;
#pragma omp critical(alarms_counts)
            {
                add_counts(&all, &mine);
                more = all.races < wanted;
                number = begun++;
            }
            mine = (counts){0};
            if (!more) break;
            scene s = {.ctx = ctx, .counts = &mine, .random = seed * 0x9e3779b97f4a7c15u + (uint64_t)number * 1000003};
            mine.problems = 1;
            if (number % 16 == 15) race_attention(&s);
            else if (number % 16 == 7) race_groups(&s);
            else race_product(&s, number);
        }
        sat_context_free(ctx);
    }
    printf("seed %" PRIu64 "\n", seed);
    print_counts(&all);
    return all.alarms > 0;
}
