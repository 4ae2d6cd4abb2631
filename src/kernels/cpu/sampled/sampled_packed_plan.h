/* The sampled product's plan: S = alpha*(X*Y at the stored blocks) + beta*S. The same for every instruction set.
 *
 * k is cut into chunks. For each chunk X and Y are packed (and widened, where they are 16-bit) into shared workspace in
 * the layout that the tiles read, then every stored block gets its part of the sum. Two kinds of tile:
 *   outer  X as rows along k, Y as panels [k][lanes]; a tile of S stays in registers, one step of k at a time.
 *   dot    X and Y as rows along k; each element of a tile is a vector of partial sums over k, added up at the end.
 *          Wastes nothing on narrow blocks.
 * What is already stored as the tiles read it may be read in place instead: X along k, and for dot tiles Y along k.
 * A tile's columns may come from several blocks of a block row, so that small blocks fill a tile too.
 *
 * Block columns are cut into bands, so that a band's chunk of Y stays in the cache while the block rows pass. A *run*
 * is what one block row stores in one band, a *work item* some rows of a run, a *task* some work items of like work.
 * None of it depends on the number of threads, so neither does the result.
 *
 * A family defines VECTOR_BYTES (common/vector.h) before it, SAMPLED_PEAK(device), what full tiles reach of the
 * device's rate, and SAMPLED_BF16: 1 where tiles multiply pairs of bf16, else 0. */
#ifndef SAT_SAMPLED_PACKED_PLAN_H
#define SAT_SAMPLED_PACKED_PLAN_H

#include <stdlib.h>

#include "variant.h"

enum { SAMPLED_DOT = 1, SAMPLED_X_IN_PLACE = 2, SAMPLED_Y_IN_PLACE = 4 }; /* sat_instance.option, or-ed */

enum { SAMPLED_BATCH = 64 }; /* columns whose dot products are stored together; rows or columns packed at a time */

/* What a family computes a problem with. */
typedef struct sampled_vectors {
    int lanes;    /* sums in a vector */
    int64_t size; /* bytes of an element that a tile reads */
    double peak;  /* what full tiles reach of the device's rate */
} sampled_vectors;

static sampled_vectors sampled_vectors_of(const sat_problem *p, const sat_device *d) {
    double peak = SAMPLED_PEAK(d);
    (void)p, (void)d;
    if (SAMPLED_BF16) return (sampled_vectors){VECTOR_BYTES / 4, 2, peak};
    return p->compute_dtype == SAT_F64 ? (sampled_vectors){VECTOR_BYTES / 8, 8, peak}
                                       : (sampled_vectors){VECTOR_BYTES / 4, 4, peak};
}

typedef struct sampled_run {
    int64_t first; /* stored block */
    int32_t row, count;
} sampled_run;

/* Sizes that follow from the problem and the instance alone. */
typedef struct sampled_shape {
    bool dot, x_in_place, y_in_place;
    int64_t size;             /* of an element that a tile reads */
    int64_t kc, chunks;       /* steps of k in a chunk (the last may have fewer) */
    int64_t panels;           /* of a block column: vectors (outer) or columns (dot) */
    int64_t x_pitch, y_pitch; /* packed elements from row to row of X, from panel to panel of Y */
    int64_t x_bytes, y_bytes, sum_bytes;
    int64_t row_splits; /* work items that share a block's rows */
    int64_t band;       /* block columns of a band */
} sampled_shape;

typedef struct sampled_state {
    sampled_shape shape;
    int64_t run_count, task_count;
    sampled_run *runs;      /* by band, then by block row */
    int64_t *tasks;         /* first work item of each, and one past the last */
    unsigned char *columns; /* 1: the block column holds a block */
} sampled_state;

static inline int64_t sampled_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline int64_t sampled_round(int64_t x, int64_t y) { return sampled_ceil(x, y) * y; }

static sampled_shape sampled_shape_of(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                      const sat_device *d, sampled_vectors w) {
    sampled_shape s = {.dot = (v->instance.option & SAMPLED_DOT) != 0};
    s.x_in_place = (v->instance.option & SAMPLED_X_IN_PLACE) != 0;
    s.y_in_place = (v->instance.option & SAMPLED_Y_IN_PLACE) != 0;
    s.size = w.size;
    int64_t most = v->instance.tile_k > 0 ? v->instance.tile_k : 512, line = 64 / s.size;
    most = sat_min(most, sat_max(64, (256 << 20) / s.size / sat_max(1, p->m + p->n))); /* bounds the workspace */
    s.chunks = sat_max(1, sampled_ceil(p->k, most));
    s.kc = sampled_round(sat_max(1, sampled_ceil(p->k, s.chunks)), line);
    s.chunks = sat_max(1, sampled_ceil(p->k, s.kc));
    s.panels = s.dot ? a->block_cols : sampled_ceil(a->block_cols, w.lanes);
    s.x_pitch = s.kc + line; /* one line more, or powers of two would share cache sets */
    s.y_pitch = s.dot ? s.kc + line : s.kc * w.lanes + line;
    if (!s.x_in_place) s.x_bytes = p->m * s.x_pitch * s.size;
    if (!s.y_in_place) s.y_bytes = (s.dot ? p->n : a->grid_cols * s.panels) * s.y_pitch * s.size;
    if (s.chunks > 1 && sat_dtype_size(p->c_dtype) < 4)
        s.sum_bytes = a->stored_blocks * a->block_rows * a->block_cols * 4;
    s.row_splits = sampled_ceil(a->block_rows, s.dot ? 32 : 96);
    /* Each element of Y that comes from beyond L2 is used as often as a block has rows: high blocks can wait for it. */
    int64_t l2 = d->l2_bytes > 0 ? d->l2_bytes : 512 << 10;
    int64_t budget = l2 * sat_min(32, sat_max(4, a->block_rows)) / 8;
    int64_t columns = sat_min(4096, sat_max(64, budget / (s.kc * s.size)));
    s.band = sat_max(1, columns / a->block_cols);
    return s;
}

static inline size_t sampled_bytes(const sampled_shape *s) {
    return (size_t)(sampled_round(s->x_bytes, 64) + sampled_round(s->y_bytes, 64) + s->sum_bytes);
}

static void sampled_release(const sat_variant *v, void *state) {
    (void)v;
    sampled_state *st = state;
    if (!st) return;
    free(st->runs);
    free(st->tasks);
    free(st->columns);
    free(st);
}

/* Goes over the runs by block rows: counts those of each band, or (with runs) writes them where they belong. */
static void sampled_find_runs(const sat_pattern_view *a, int64_t band, int64_t *place, sampled_run *runs) {
    for (int64_t row = 0; row < a->grid_rows; row++) {
        for (int64_t t = a->row_ptr[row], end = a->row_ptr[row + 1], next; t < end; t = next) {
            int64_t g = a->col_idx[t] / band, limit = (g + 1) * band;
            for (next = t + 1; next < end && a->col_idx[next] < limit; next++) {}
            if (runs) runs[place[g]] = (sampled_run){t, (int32_t)row, (int32_t)(next - t)};
            place[g]++;
        }
    }
}

static bool sampled_make_runs(sampled_state *st, const sat_pattern_view *a) {
    int64_t bands = sampled_ceil(a->grid_cols, st->shape.band);
    int64_t *place = calloc((size_t)bands + 1, sizeof *place);
    if (!place) return false;
    sampled_find_runs(a, st->shape.band, place, NULL);
    for (int64_t g = 0; g < bands; g++) {
        int64_t count = place[g];
        place[g] = st->run_count;
        st->run_count += count;
    }
    st->runs = malloc((size_t)sat_max(1, st->run_count) * sizeof *st->runs);
    if (st->runs) sampled_find_runs(a, st->shape.band, place, st->runs);
    free(place);
    return st->runs != NULL;
}

/* Tasks small enough to balance many threads, large enough to cost nothing to hand out. */
static bool sampled_make_tasks(sampled_state *st, const sat_pattern_view *a) {
    const sampled_shape *s = &st->shape;
    double step = (double)sampled_ceil(a->block_rows, s->row_splits) * (double)a->block_cols * (double)s->kc;
    double total = (double)a->stored_blocks * (double)s->row_splits;
    int64_t target = (int64_t)fmax(total / 1024, (1 << 20) / step) + 1, work = 0;
    int64_t most = (int64_t)(total / (double)target) + 2;
    st->tasks = malloc((size_t)(most + 1) * sizeof *st->tasks);
    if (!st->tasks) return false;
    st->tasks[0] = 0;
    int64_t items = st->run_count * s->row_splits;
    for (int64_t u = 0; u < items; u++) {
        work += st->runs[u / s->row_splits].count;
        if (work >= target || u + 1 == items) st->tasks[++st->task_count] = u + 1, work = 0;
    }
    return true;
}

static sat_status sampled_make_state(const sat_prepare *prepare, sampled_vectors w, void **state) {
    const sat_pattern_view *a = prepare->pattern;
    sampled_state *st = calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "no memory for a schedule");
    st->shape = sampled_shape_of(prepare->variant, prepare->problem, a, prepare->device, w);
    st->columns = calloc((size_t)sat_max(1, a->grid_cols), 1);
    if (!st->columns || !sampled_make_runs(st, a) || !sampled_make_tasks(st, a)) {
        sampled_release(prepare->variant, st);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for a schedule of %lld blocks", (long long)a->stored_blocks);
    }
    for (int64_t t = 0; t < a->stored_blocks; t++) st->columns[a->col_idx[t]] = 1;
    *state = st;
    return SAT_OK;
}

/* ---- what a launch hands to its threads ---- */

typedef struct sampled_job {
    const sat_problem *p;
    const sat_pattern_view *a;
    const sampled_state *st;
    const void *x, *y; /* as the caller has them */
    void *xp, *yp;     /* packed chunk */
    void *s;
    float *sums; /* for 16-bit results of more than one chunk */
    int tm, tn;
} sampled_job;

static inline sampled_job sampled_job_of(const sat_launch *l) {
    sampled_state *st = l->state;
    char *w = l->workspace;
    sampled_job j = {.p = l->problem,
                     .a = l->pattern,
                     .st = st,
                     .tm = l->variant->instance.tile_m,
                     .tn = l->variant->instance.tile_n};
    j.x = l->operands[0], j.y = l->operands[1], j.s = l->operands[2];
    j.xp = w;
    if (w) {
        j.yp = w + sampled_round(st->shape.x_bytes, 64);
        j.sums = (float *)(void *)((char *)j.yp + sampled_round(st->shape.y_bytes, 64));
    }
    return j;
}

/* The rows of X that the next work item will read, prefetched a few lines with every tile: no hardware prefetcher
 * foresees them, and from beyond L2 they would stall the tiles. */
typedef struct sampled_prefetch {
    const char *row;
    int64_t rows, pitch, bytes, at; /* pitch and bytes of a row, and how far into this one */
    int64_t lines;                  /* with every tile */
} sampled_prefetch;

static inline void sampled_prefetch_some(sampled_prefetch *h) {
    for (int64_t left = h->lines; left > 0 && h->rows > 0;) {
        int64_t some = sat_min(left, sampled_ceil(h->bytes - h->at, 64));
        for (int64_t i = 0; i < some; i++) __builtin_prefetch(h->row + h->at + 64 * i, 0, 2);
        left -= some, h->at += 64 * some;
        if (h->at >= h->bytes) h->at = 0, h->row += h->pitch, h->rows--;
    }
}

/* A work item: rows r0 to r1, counted within the block row, of a run; one chunk of k. */
typedef struct sampled_item {
    int64_t chunk, k0, len;
    const sampled_run *run;
    int64_t r0, r1;
    sampled_prefetch prefetch;
} sampled_item;

/* The first row of strip i, where `total` rows are cut into strips of like height. */
static inline int64_t sampled_strip_begin(int64_t total, int64_t strips, int64_t i) { return total * i / strips; }

/* A tile's width where `left` panels or columns remain: even widths rather than a narrow one at the end. */
static inline int sampled_tile_width(int64_t left, int most) {
    return (int)(left >= 2 * most || left <= most ? sat_min(left, most) : (left + 1) / 2);
}

/* Threads that a problem of this size can keep busy; a parallel region costs some microseconds. */
static inline int sampled_threads(const sat_launch *l) {
    double flops = sat_flops(l->problem, l->pattern) / (double)sat_max(1, l->problem->batch);
    double useful = 1 + flops / 2e5;
    return useful < l->threads ? (int)useful : l->threads > 0 ? l->threads : 1;
}

/* ---- what the tuner asks ---- */

static inline bool sampled_fits(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                sampled_vectors w) {
    bool as_is = (int64_t)sat_dtype_size(p->a_dtype) == w.size;
    if (v->instance.dtype && v->instance.dtype != p->a_dtype) return false;
    if ((v->instance.option & SAMPLED_X_IN_PLACE) && !(as_is && p->a.col_stride == 1)) return false;
    if ((v->instance.option & SAMPLED_Y_IN_PLACE) && !(as_is && p->b.row_stride == 1)) return false;
    if (v->instance.option & SAMPLED_DOT) return true;
    return 3 * a->block_cols >= 2 * sampled_round(a->block_cols, w.lanes); /* else mostly padding */
}

/* Packing moves what it copies twice; short chunks pay more for the end of a tile; panels wider than the block compute
 * padding; blocks lower than a tile leave it half empty. */
static double sampled_seconds(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d, sampled_vectors w) {
    sampled_shape s = sampled_shape_of(v, p, a, d, w);
    double used = s.dot ? (double)s.kc / (double)(s.kc + 8 * w.lanes)
                        : (double)s.kc / (double)(s.kc + 16) * (double)a->block_cols / (double)(s.panels * w.lanes);
    double rows = (double)sat_min(a->block_rows, v->instance.tile_m) / (double)v->instance.tile_m;
    double values = (double)a->stored_elements * (double)sat_dtype_size(p->c_dtype);
    double packed =
        (double)p->k * (double)s.size * ((s.x_in_place ? 0 : (double)p->m) + (s.y_in_place ? 0 : (double)p->n));
    double bytes = sat_bytes(p, a) + (double)sat_max(1, p->batch) * (packed + 2 * values * (double)(s.chunks - 1));
    double compute = sat_flops(p, a) / (d->flop_rate[p->compute_dtype] * w.peak * used * (0.4 + 0.6 * rows));
    return compute + bytes / d->memory_rate + 2e-6;
}

static inline bool sampled_runs_on(const sat_problem *p, const sat_device *d) {
    if (SAMPLED_BF16 && (p->a_dtype != SAT_BF16 || p->b_dtype != SAT_BF16)) return false;
    return (d->isa & VECTOR_ISA) == VECTOR_ISA;
}

static bool sampled_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                             const sat_device *d) {
    return sampled_runs_on(p, d) && sampled_fits(v, p, a, sampled_vectors_of(p, d));
}

static double sampled_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    return sampled_seconds(v, p, a, d, sampled_vectors_of(p, d));
}

static size_t sampled_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                const sat_device *d) {
    sampled_shape s = sampled_shape_of(v, p, a, d, sampled_vectors_of(p, d));
    return sampled_bytes(&s);
}

static sat_status sampled_prepare(const sat_prepare *prepare, void **state) {
    return sampled_make_state(prepare, sampled_vectors_of(prepare->problem, prepare->device), state);
}

#define SAMPLED_FAMILY(words)                                                                                          \
    {                                                                                                                  \
        .revision = "1", .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_SCRATCH, .about = words,                \
        .supports = sampled_supports, .estimate = sampled_estimate, .workspace = sampled_workspace,                    \
        .prepare = sampled_prepare, .launch = launch, .release = sampled_release                                       \
    }

/* ---- tiles of dot products ---- */

/* Rows x columns that leave registers for their operands: at most 12 sums in 16 registers, at most 24 in 32. */
// clang-format off
#define SAMPLED_DOT_TILES_12(X)                                                                                        \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 7) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6)    \
    X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(4, 1) X(4, 2) X(4, 3)
#define SAMPLED_DOT_TILES_24(X)                                                                                        \
    X(1, 1) X(1, 2) X(1, 3) X(1, 4) X(1, 5) X(1, 6) X(1, 7) X(1, 8) X(2, 1) X(2, 2) X(2, 3) X(2, 4) X(2, 5) X(2, 6)    \
    X(2, 7) X(2, 8) X(3, 1) X(3, 2) X(3, 3) X(3, 4) X(3, 5) X(3, 6) X(3, 7) X(3, 8) X(4, 1) X(4, 2) X(4, 3) X(4, 4)    \
    X(4, 5) X(4, 6)
// clang-format on

#endif
