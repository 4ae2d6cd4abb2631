/* The sampled product's plan, shared by its families: S = alpha*(X*Y at the stored blocks) + beta*S.
 *
 * k is cut into chunks. For each chunk X and Y are copied (and widened, where they are 16-bit) into shared workspace
 * in the layout that the tiles want, then every stored block gets its part of the sum. Two kinds of tile:
 *   outer  X as rows along k, Y as panels [k][lanes]; a tile of S stays in registers, one step of k at a time.
 *   dot    X and Y as rows along k; each element of a tile is a vector of partial sums over k, added up at the end.
 *          Wastes nothing on narrow blocks.
 * What already lies as the tiles want it may be read in place instead: X along k, and for dot tiles Y along k.
 * A tile's columns may come from several blocks of a block row, so that small blocks fill a tile too.
 *
 * Block columns are grouped so that a group's chunk of Y stays near while the block rows pass by. A *run* is what one
 * block row stores in one group, a *unit* some rows (a piece) of a run, a *task* some units of like work. None of it
 * depends on the number of threads, so neither does the result. */
#ifndef SAT_SAMPLED_PACKED_H
#define SAT_SAMPLED_PACKED_H

#include <stdlib.h>

#include "variant.h"

enum { SAMPLED_DOT = 1, SAMPLED_X_IN_PLACE = 2, SAMPLED_Y_IN_PLACE = 4 }; /* sat_instance.option, or-ed */

enum { SAMPLED_BATCH = 64 }; /* columns that a dot tile's results are gathered over; rows or columns packed at a time */

/* What a family computes a problem with. */
typedef struct sampled_vectors {
    int lanes;    /* sums in a vector */
    int64_t size; /* bytes of an element that a tile reads */
    double peak;  /* what full tiles reach of the device's rate */
} sampled_vectors;

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
    int64_t pieces; /* of a block's rows */
    int64_t group;  /* block columns */
} sampled_shape;

typedef struct sampled_state {
    sampled_shape shape;
    int64_t run_count, task_count;
    sampled_run *runs;      /* by group, then by block row */
    int64_t *tasks;         /* first unit of each, and one past the last */
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
    s.pieces = sampled_ceil(a->block_rows, s.dot ? 32 : 96);
    /* Each element of Y that comes from beyond L2 is used as often as a block has rows: high blocks can wait for it. */
    int64_t l2 = d->l2_bytes > 0 ? d->l2_bytes : 512 << 10;
    int64_t budget = l2 * sat_min(32, sat_max(4, a->block_rows)) / 8;
    int64_t columns = sat_min(4096, sat_max(64, budget / (s.kc * s.size)));
    s.group = sat_max(1, columns / a->block_cols);
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

/* Visits the runs in the order of the block rows: counts those of each group, or (with runs) puts them in place. */
static void sampled_find_runs(const sat_pattern_view *a, int64_t group, int64_t *place, sampled_run *runs) {
    for (int64_t row = 0; row < a->grid_rows; row++) {
        for (int64_t t = a->row_ptr[row], end = a->row_ptr[row + 1], next; t < end; t = next) {
            int64_t g = a->col_idx[t] / group, limit = (g + 1) * group;
            for (next = t + 1; next < end && a->col_idx[next] < limit; next++) {}
            if (runs) runs[place[g]] = (sampled_run){t, (int32_t)row, (int32_t)(next - t)};
            place[g]++;
        }
    }
}

static bool sampled_make_runs(sampled_state *st, const sat_pattern_view *a) {
    int64_t groups = sampled_ceil(a->grid_cols, st->shape.group);
    int64_t *place = calloc((size_t)groups + 1, sizeof *place);
    if (!place) return false;
    sampled_find_runs(a, st->shape.group, place, NULL);
    for (int64_t g = 0; g < groups; g++) {
        int64_t count = place[g];
        place[g] = st->run_count;
        st->run_count += count;
    }
    st->runs = malloc((size_t)sat_max(1, st->run_count) * sizeof *st->runs);
    if (st->runs) sampled_find_runs(a, st->shape.group, place, st->runs);
    free(place);
    return st->runs != NULL;
}

/* Tasks small enough to balance many threads, large enough to cost nothing to hand out. */
static bool sampled_make_tasks(sampled_state *st, const sat_pattern_view *a) {
    const sampled_shape *s = &st->shape;
    double step = (double)sampled_ceil(a->block_rows, s->pieces) * (double)a->block_cols * (double)s->kc;
    double total = (double)a->stored_blocks * (double)s->pieces;
    int64_t target = (int64_t)fmax(total / 1024, (1 << 20) / step) + 1, work = 0;
    int64_t most = (int64_t)(total / (double)target) + 2;
    st->tasks = malloc((size_t)(most + 1) * sizeof *st->tasks);
    if (!st->tasks) return false;
    st->tasks[0] = 0;
    int64_t units = st->run_count * s->pieces;
    for (int64_t u = 0; u < units; u++) {
        work += st->runs[u / s->pieces].count;
        if (work >= target || u + 1 == units) st->tasks[++st->task_count] = u + 1, work = 0;
    }
    return true;
}

static sat_status sampled_prepare(const sat_prepare *prepare, sampled_vectors w, void **state) {
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
    float *sums; /* 16-bit results in more than one chunk gather here */
    int tm, tn;
} sampled_job;

static inline sampled_job sampled_job_of(const sat_launch *l, int tm, int tn) {
    sampled_state *st = l->state;
    char *w = l->workspace;
    sampled_job j = {.p = l->problem, .a = l->pattern, .st = st, .tm = tm, .tn = tn};
    j.x = l->operands[0], j.y = l->operands[1], j.s = l->operands[2];
    j.xp = w;
    if (w) {
        j.yp = w + sampled_round(st->shape.x_bytes, 64);
        j.sums = (float *)(void *)((char *)j.yp + sampled_round(st->shape.y_bytes, 64));
    }
    return j;
}

/* The rows of X that the next unit will read, asked for a few lines with every tile: no hardware prefetcher sees them
 * coming, and from beyond L2 they would stall the tiles. */
typedef struct sampled_ahead {
    const char *row;
    int64_t rows, pitch, bytes, at; /* pitch and bytes of a row, and how far into this one */
    int64_t lines;                  /* with every tile */
} sampled_ahead;

static inline void sampled_look_ahead(sampled_ahead *h) {
    for (int64_t left = h->lines; left > 0 && h->rows > 0;) {
        int64_t some = sat_min(left, sampled_ceil(h->bytes - h->at, 64));
        for (int64_t i = 0; i < some; i++) __builtin_prefetch(h->row + h->at + 64 * i, 0, 2);
        left -= some, h->at += 64 * some;
        if (h->at >= h->bytes) h->at = 0, h->row += h->pitch, h->rows--;
    }
}

/* Rows r0 to r1, counted within the block row, of what one block row stores in one group; one chunk of k. */
typedef struct sampled_unit {
    int64_t chunk, k0, len;
    const sampled_run *run;
    int64_t r0, r1;
    sampled_ahead ahead;
} sampled_unit;

/* Cuts `total` rows into strips of at most `most`, all of like height. */
static inline int64_t sampled_cut(int64_t total, int64_t strips, int64_t i) { return total * i / strips; }

/* A tile's width where `left` panels or columns remain: even pieces rather than a sliver at the end. */
static inline int sampled_wide(int64_t left, int most) {
    return (int)(left >= 2 * most || left <= most ? sat_min(left, most) : (left + 1) / 2);
}

/* Threads that a problem of this size can keep busy; a parallel region costs some microseconds. */
static inline int sampled_threads(const sat_launch *l) {
    double flops = sat_flops(l->problem, l->pattern) / (double)sat_max(1, l->problem->batch);
    double useful = 1 + flops / 2e5;
    return useful < l->threads ? (int)useful : l->threads > 0 ? l->threads : 1;
}

/* ---- what fits ---- */

static inline bool sampled_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
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
static double sampled_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
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

#endif
