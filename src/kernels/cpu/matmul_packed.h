/* cpu_matmul packed: C = act(alpha*op(A)*B + beta*C + bias), A block-sparse, for wide B. The template that every
 * instruction set and kind of element fills in; packed_plan.h says how the product is cut.
 *
 * Threads first copy the block values into strips (unless they are read where they lie), then take groups of panels:
 * whoever takes one packs B for it into a buffer that stays in its cache and works through the spans of strips. Who
 * finds no group left joins another's, packing included, and reads its buffer. So all cores are busy to the end,
 * be there one panel or a thousand.
 *
 * To be defined before: NAME(x) gives x a suffix; T, V: element and vector of C; E, W: of packed A and B; VL: elements
 * in a vector; V_ZERO, V_LOAD, V_STORE, V_FMA(V, W, W), W_LOAD, W_BROADCAST; STEPS: k-steps in a row; DIRECT_KERNELS(X): X(H, NV) for
 * every tile whose values may be read where they lie, KERNELS(X) the others, of at most MAX_H x MAX_NV; HALVES: 1 where 16-bit sources become T, with V_LOAD_F16 and V_LOAD_BF16; ACTIVATE(kind, x).
 * PACK_A and PACK_B name other copies for other kinds of E. All of it is undefined again at the end. */

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>

#include "packed_plan.h"

#include "packed_kernel.h"
#include "packed_pack.h"
#include "packed_store.h"

#ifndef SAT_PACKED_JOB
#define SAT_PACKED_JOB

enum { PACKED_ROWS_AT_ONCE = 128 }; /* rows of a buffer that a thread packs before it asks for more */

/* One pass: the batch items that share their values. */
typedef struct packed_job {
    const sat_launch *launch;
    const sat_problem *problem;
    const packed_state *state;
    packed_shape shape;
    const void *values, *b, *bias;
    void *c;
    packed_desk *desks;
    _Atomic int64_t stream_next, group_next, groups_begun;
} packed_job;

static inline int64_t packed_groups(const packed_job *j) { return j->shape.groups * j->shape.items; }
static inline void *packed_buffer(const packed_job *j, int64_t desk) {
    return (char *)j->launch->workspace + j->shape.buffers_at + (size_t)desk * j->shape.buffer_bytes;
}

/* Waits for another thread, which may have lost its core to this one. */
static inline void packed_relax(int *tries) {
    if (++*tries < 200) __builtin_ia32_pause();
    else sched_yield();
}

/* The desk with most work left, this thread now being one of its readers; -1: nobody needs help. */
static int64_t packed_join(packed_job *j) {
    int64_t best = -1, most = 0, group = -1;
    for (int64_t d = 0; d < j->shape.buffers; d++) {
        int64_t g = atomic_load(&j->desks[d].group), left = j->state->spans - atomic_load(&j->desks[d].span_next);
        if (g >= 0 && left > most) best = d, most = left, group = g;
    }
    if (best < 0) return -1;
    atomic_fetch_add(&j->desks[best].readers, 1);
    if (atomic_load(&j->desks[best].group) == group) return best;
    atomic_fetch_sub(&j->desks[best].readers, 1); /* its owner went on meanwhile */
    return packed_join(j);
}

/* Gives this thread's desk to another group, once those who still read the last one are done. */
static void packed_open(packed_job *j, int64_t desk, int64_t group) {
    packed_desk *d = &j->desks[desk];
    int tries = 0;
    atomic_store(&d->group, -1);
    while (atomic_load(&d->readers) > 0) packed_relax(&tries);
    atomic_store(&d->pack_next, 0), atomic_store(&d->pack_done, 0), atomic_store(&d->span_next, 0);
    atomic_store(&d->group, group);
    atomic_fetch_add(&j->groups_begun, 1);
}
#endif

/* ---- values into strips ---- */

static void NAME(packed_stream_span)(const packed_job *j, const void *values, int64_t span) {
    const packed_shape *s = &j->shape;
    const sat_rows *r = &s->rows;
    E *stream = j->launch->workspace;
    for (int64_t u = j->state->span[span]; u < j->state->span[span + 1]; u++) {
        int64_t row = u / s->strips, top = u % s->strips * s->height, first = r->ptr[row], end = r->ptr[row + 1];
        int64_t rows = sat_min(s->height, sat_min(r->br - top, r->m - row * r->br - top));
        E *to = stream + (first * r->br + (end - first) * top) * s->steps;
        for (int64_t t = first; rows > 0 && t < end; t++, to += rows * s->steps) {
            const void *from = sat_at(j->problem->a_dtype, values, sat_block_of(r, t) * r->block_elements + top * r->row_step);
            PACK_A(j->problem->a_dtype, from, r, rows, sat_min(r->bc, r->k - r->col[t] * r->bc), to);
        }
    }
}

/* ---- B into panels ---- */

/* Packed rows `at` to `end` of a group's panels. */
static void NAME(packed_fill)(const packed_job *j, int64_t group, E *buffer, int64_t at, int64_t end) {
    const packed_shape *s = &j->shape;
    const packed_state *t = j->state;
    const sat_problem *p = j->problem;
    int64_t item = group / s->groups, from = group % s->groups * s->group_panels, low = 0, high = t->runs;
    const void *b = sat_at(p->b_dtype, j->b, item * p->b.batch_stride);
    while (high - low > 1) { /* the run that holds packed row `at` */
        int64_t middle = (low + high) / 2;
        if (t->run[middle].at <= at) low = middle;
        else high = middle;
    }
    for (; at < end; low++) {
        const packed_run *run = &t->run[low];
        int64_t run_end = low + 1 < t->runs ? run[1].at : t->depth, stop = sat_min(end, run_end);
        int64_t k = run->k + (at - run->at) * K_IN_STEP, k_end = sat_min(run->k_end, run->k + (stop - run->at) * K_IN_STEP);
        for (int64_t panel = from; panel < packed_panel_end(s, group % s->groups); panel++) {
            int64_t vector = packed_first_vector(s, panel), width = packed_panel_vectors(s, panel) * VL;
            E *to = buffer + (vector - packed_first_vector(s, from)) * VL * t->depth + at * width;
            int64_t cols = sat_min(width, p->n - vector * VL);
            const void *source = sat_at(p->b_dtype, b, k * p->b.row_stride + vector * VL * p->b.col_stride);
            PACK_B(p->b_dtype, source, &p->b, k_end - k, cols, width, to);
        }
        at = stop;
    }
}

/* ---- tiles ---- */

/* Everything about a strip that its panels share. */
typedef struct NAME(packed_strip) {
    NAME(packed_tile) x;
    int64_t i, rows; /* rows of C */
    int from;        /* where values come from */
} NAME(packed_strip);

/* Chunk `chunk` of strip `u`. */
static NAME(packed_strip) NAME(packed_find_strip)(const packed_job *j, int64_t u, int64_t chunk) {
    const packed_shape *s = &j->shape;
    const sat_rows *r = &s->rows;
    int64_t row = u / s->strips, top = u % s->strips * s->height, first = r->ptr[row], end = r->ptr[row + 1];
    const int64_t *cut = j->state->cut ? j->state->cut + row * (s->chunks + 1) + chunk : NULL;
    int64_t from = cut ? cut[0] : first, to = cut ? cut[1] : end;
    bool ragged = to > from && to == end && (r->col[to - 1] + 1) * r->bc > r->k;
    NAME(packed_strip) strip = {.i = row * r->br + top};
    strip.rows = sat_min(s->height, sat_min(r->br - top, r->m - strip.i));
    strip.x = (NAME(packed_tile)){.col = (j->state->place ? j->state->place : r->col) + from,
                                  .blocks = to - from,
                                  .steps = {s->steps, ragged ? s->last_steps : s->steps},
                                  .resume = chunk > 0};
    if (!s->direct) {
        strip.x.a = (const E *)j->launch->workspace + (first * r->br + (end - first) * top) * s->steps;
        strip.x.a += (from - first) * s->steps * strip.rows;
        strip.from = NAME(PACKED_STREAM);
        return strip;
    }
    strip.x.a = (const E *)j->values + top * r->row_step;
    strip.x.a_block = r->block_elements, strip.x.a_row = r->row_step, strip.x.a_k = r->col_step;
    if (r->block) strip.x.block = r->block + from, strip.from = NAME(PACKED_COLS);
    else strip.x.a += from * r->block_elements, strip.from = NAME(PACKED_ROWS);
    return strip;
}

/* Is a tile, as it comes out of the registers, what C wants to hold? */
static bool NAME(packed_plain)(const sat_problem *p) {
    return p->alpha == 1 && p->beta == 0 && p->bias == SAT_BIAS_NONE && p->activation == SAT_ACT_NONE &&
           p->c.col_stride == 1 && sat_dtype_size(p->c_dtype) == sizeof(T);
}

/* One chunk of a strip with all panels of a group. `scratch` holds the strip's tiles between chunks. */
static void NAME(packed_do_strip)(const packed_job *j, int64_t group, const E *buffer, int64_t u, int64_t chunk,
                                  T *scratch, T *turn) {
    const packed_shape *s = &j->shape;
    const sat_problem *p = j->problem;
    NAME(packed_strip) strip = NAME(packed_find_strip)(j, u, chunk);
    bool last = chunk + 1 == s->chunks, plain = s->chunks == 1 && NAME(packed_plain)(p);
    int64_t item = group / s->groups, from = group % s->groups * s->group_panels;
    void *c = sat_at(p->c_dtype, j->c, item * p->c.batch_stride);
    if (strip.rows <= 0) return;
    for (int64_t panel = from; panel < packed_panel_end(s, group % s->groups); panel++) {
        int64_t vector = packed_first_vector(s, panel), nv = packed_panel_vectors(s, panel), width = nv * VL;
        int64_t before = (vector - packed_first_vector(s, from)) * VL, cols = sat_min(width, p->n - vector * VL);
        NAME(packed_tile) *x = &strip.x;
        T *tile = scratch + before * s->height;
        bool straight = plain && cols == width;
        x->b = buffer + before * j->state->depth;
        x->b_block = s->steps * width;
        x->ahead = s->steps <= 8 ? s->steps * width : 0;
        x->c = straight ? (T *)c + strip.i * p->c.row_stride + vector * VL : tile;
        x->c_row = straight ? p->c.row_stride : width;
        if (straight) {
            for (int64_t i = 0; i < strip.rows; i++)
                for (int64_t at = 0; at < width; at += 64 / (int64_t)sizeof(T)) __asm__ volatile("prefetchw %0" :: "m"(x->c[i * x->c_row + at]));
        }
        if (x->blocks > 0 || chunk == 0) NAME(packed_kernels)[strip.from][strip.rows - 1][nv - 1](x);
        if (last && !straight)
            NAME(packed_store)(p, tile, width, strip.i, strip.rows, vector * VL, cols, c, j->bias, turn);
    }
}

static void NAME(packed_do_span)(const packed_job *j, int64_t group, const E *buffer, int64_t span, void *arena) {
    const packed_shape *s = &j->shape;
    int64_t first = j->state->span[span], end = j->state->span[span + 1];
    T *turn = arena, *scratch = turn + s->height * s->group_columns;
    for (int64_t chunk = 0; chunk < s->chunks; chunk++)
        for (int64_t u = first; u < end; u++) {
            int64_t place = s->chunks > 1 ? u - first : 0;
            NAME(packed_do_strip)(j, group, buffer, u, chunk, scratch + place * s->height * s->group_columns, turn);
        }
}

/* ---- threads ---- */

/* Takes part in a group: packs with the others, waits for the last of them, then does spans as long as there are. */
static void NAME(packed_take_part)(packed_job *j, int64_t desk, void *arena) {
    packed_desk *d = &j->desks[desk];
    E *buffer = packed_buffer(j, desk);
    int64_t group = atomic_load(&d->group), depth = j->state->depth, parts = packed_ceil(depth, PACKED_ROWS_AT_ONCE);
    for (int64_t i; (i = atomic_fetch_add(&d->pack_next, 1)) < parts; atomic_fetch_add(&d->pack_done, 1))
        NAME(packed_fill)(j, group, buffer, i * PACKED_ROWS_AT_ONCE, sat_min((i + 1) * PACKED_ROWS_AT_ONCE, depth));
    for (int tries = 0; atomic_load(&d->pack_done) < parts;) packed_relax(&tries);
    for (int64_t i; (i = atomic_fetch_add(&d->span_next, 1)) < j->state->spans;)
        NAME(packed_do_span)(j, group, buffer, i, arena);
}

static void NAME(packed_work)(packed_job *j, int64_t me) {
    void *arena = (char *)j->launch->workspace + j->shape.arenas_at + (size_t)me * j->shape.arena_bytes;
    for (int64_t g; me < j->shape.buffers && (g = atomic_fetch_add(&j->group_next, 1)) < packed_groups(j);) {
        packed_open(j, me, g);
        NAME(packed_take_part)(j, me, arena);
    }
    for (int tries = 0;;) {
        bool all = atomic_load(&j->groups_begun) >= packed_groups(j);
        int64_t desk = packed_join(j);
        if (desk >= 0) {
            NAME(packed_take_part)(j, desk, arena);
            atomic_fetch_sub(&j->desks[desk].readers, 1);
        } else if (all) {
            return;
        } else {
            packed_relax(&tries);
        }
    }
}

static void NAME(packed_stream)(packed_job *j, const void *values) {
    for (int64_t i; (i = atomic_fetch_add(&j->stream_next, 1)) < j->state->spans;) NAME(packed_stream_span)(j, values, i);
}

static void NAME(packed_pass)(packed_job *j) {
    bool stream = !j->shape.direct && !j->shape.keeps;
    for (int64_t d = 0; d < j->shape.buffers; d++) j->desks[d] = (packed_desk){.group = -1};
    atomic_store(&j->stream_next, 0), atomic_store(&j->group_next, 0), atomic_store(&j->groups_begun, 0);
#pragma omp parallel num_threads(j->launch->threads)
    {
        if (stream) {
            NAME(packed_stream)(j, j->values);
#pragma omp barrier
        }
        NAME(packed_work)(j, omp_get_thread_num());
    }
}

static sat_status NAME(packed_launch)(const sat_launch *l, const packed_isa *isa) {
    const sat_problem *p = l->problem;
    packed_job j = {.launch = l, .problem = p, .state = l->state, .bias = l->operands[3]};
    j.shape = packed_make_shape(l->variant, isa, p, l->pattern, l->device);
    j.desks = (packed_desk *)(void *)((char *)l->workspace + j.shape.desks_at);
    if (p->m == 0 || p->n == 0) return SAT_OK;
    for (int64_t item = 0; item < p->batch; item += j.shape.items) {
        j.values = sat_at(p->a_dtype, l->operands[0], item * p->a.batch_stride);
        j.b = sat_at(p->b_dtype, l->operands[1], item * p->b.batch_stride);
        j.c = sat_at(p->c_dtype, l->operands[2], item * p->c.batch_stride);
        NAME(packed_pass)(&j);
    }
    return SAT_OK;
}

static sat_status NAME(packed_refresh)(const sat_launch *l, const packed_isa *isa) {
    packed_job j = {.launch = l, .problem = l->problem, .state = l->state};
    j.shape = packed_make_shape(l->variant, isa, l->problem, l->pattern, l->device);
    if (!j.shape.keeps) return SAT_OK;
#pragma omp parallel num_threads(l->threads)
    NAME(packed_stream)(&j, l->operands[0]);
    return SAT_OK;
}

#undef NAME
#undef T
#undef V
#undef E
#undef W
#undef VL
#undef V_ZERO
#undef V_LOAD
#undef V_STORE
#undef V_FMA
#undef W_LOAD
#undef W_BROADCAST
#undef V_LOAD_F16
#undef V_LOAD_BF16
#undef KERNELS
#undef DIRECT_KERNELS
#undef STEPS
#undef MAX_H
#undef MAX_NV
#undef HALVES
#undef ACTIVATE
#undef PACK_A
#undef PACK_B
#undef K_IN_STEP
#undef FOUR
#undef UNROLL
#undef INLINE
