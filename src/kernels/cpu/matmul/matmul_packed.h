/* cpu_matmul packed: C = act(alpha*op(A)*B + beta*C + bias), A block-sparse, for wide B. The template that every
 * instruction set and kind of element fills in. packed_plan.h says how the product is cut, packed_desk.h how threads
 * share it: first all copy the block values into strips (unless they are read where they lie), then each takes groups
 * of panels, packs B for it into a buffer that stays in its cache, and multiplies.
 *
 * To be defined before: NAME(x) gives x a suffix; T, V: element and vector of C; E, W: of packed A and B; VL: elements
 * in a vector; V_ZERO, V_LOAD, V_STORE, V_STREAM, V_FMA(V, W, W), W_LOAD, W_BROADCAST; STEPS: k-steps in a row;
 * DIRECT_KERNELS(X): X(H, NV) for every tile whose values may be read where they lie, KERNELS(X) the others, of at most
 * MAX_H x MAX_NV; AHEAD: 1 to fetch small blocks' B ahead; HALVES: 1 where 16-bit sources become T, with V_LOAD_F16 and
 * V_LOAD_BF16; PAIRS: 1 where an element of A and B is two bf16; ACTIVATE(line, n, kind). All is undefined again at the
 * end.
 */

#include <omp.h>

#include "packed_desk.h"

#define K_IN_STEP (PAIRS ? 2 : 1)

#include "packed_kernel.h"
#include "packed_pack.h"
#include "packed_store.h"

/* What a thread has at hand while it works on a group. */
typedef struct NAME(packed_worker) {
    const packed_job *job;
    int64_t group;
    const E *buffer;
    T *kept; /* [kept_rows][group_columns] of C that wait to be finished */
    T *open; /* as many, of parts of long sums */
    T *turn; /* room to turn some round */
} NAME(packed_worker);

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
            const void *from =
                sat_at(j->problem->a_dtype, values, sat_block_of(r, t) * r->block_elements + top * r->row_step);
            NAME(packed_a)(j->problem->a_dtype, from, r, rows, sat_min(r->bc, r->k - r->col[t] * r->bc), to);
        }
    }
}

/* ---- B into panels ---- */

/* Rows k to k_end of B, of which the first is packed row `at`, in all panels of a group. Few rows at a time, so that
 * the next panel finds their pages known and, where columns are contiguous, the packed rows near. */
static void NAME(packed_fill_run)(const packed_job *j, int64_t group, E *buffer, int64_t at, int64_t k, int64_t k_end,
                                  int64_t run_end) {
    const packed_shape *s = &j->shape;
    const sat_problem *p = j->problem;
    int64_t item = group / s->groups, from = group % s->groups * s->group_panels, few = p->b.col_stride == 1 ? 16 : 64;
    const void *b = sat_at(p->b_dtype, j->b, item * p->b.batch_stride);
    NAME(packed_piece) x = {.dtype = p->b_dtype, .layout = p->b};
    for (; k < k_end; k += few, at += few / K_IN_STEP) {
        x.rows = sat_min(few, k_end - k), x.more = run_end - k - x.rows;
        for (int64_t panel = from; panel < packed_panel_end(s, group % s->groups); panel++) {
            int64_t vector = packed_first_vector(s, panel);
            x.width = packed_panel_vectors(s, panel) * VL, x.cols = sat_min(x.width, p->n - vector * VL);
            x.b = sat_at(p->b_dtype, b, k * p->b.row_stride + vector * VL * p->b.col_stride);
            x.to = buffer + (vector - packed_first_vector(s, from)) * VL * j->state->depth + at * x.width;
            NAME(packed_b)(&x);
        }
    }
}

/* Packed rows `at` to `end` of a group. */
static void NAME(packed_fill)(const packed_job *j, int64_t group, E *buffer, int64_t at, int64_t end) {
    const packed_state *t = j->state;
    int64_t low = 0, high = t->runs;
    while (high - low > 1) { /* the run that holds packed row `at` */
        int64_t middle = (low + high) / 2;
        if (t->run[middle].at <= at) low = middle;
        else high = middle;
    }
    for (int64_t stop; at < end; low++, at = stop) {
        const packed_run *run = &t->run[low];
        stop = sat_min(end, low + 1 < t->runs ? run[1].at : t->depth);
        int64_t k = run->k + (at - run->at) * K_IN_STEP, k_end = run->k + (stop - run->at) * K_IN_STEP;
        NAME(packed_fill_run)(j, group, buffer, at, k, sat_min(k_end, run->k_end), run->k_end);
    }
}

/* Packs the next portion of a desk that nobody has taken yet; false: there is none. */
static bool NAME(packed_take_portion)(packed_job *j, int64_t desk) {
    packed_desk *d = &j->desks[desk];
    int64_t size = PACKED_PORTION, depth = j->state->depth, i = atomic_fetch_add(&d->pack_next, 1);
    if (i * size >= depth) return false;
    NAME(packed_fill)(j, atomic_load(&d->group), packed_buffer(j, desk), i * size, sat_min((i + 1) * size, depth));
    atomic_fetch_add(&d->pack_done, 1);
    return true;
}

/* ---- tiles ---- */

/* Everything about a strip that its panels share. */
typedef struct NAME(packed_strip) {
    NAME(packed_tile) x;
    int64_t i, rows;           /* rows of C */
    int from;                  /* where values come from */
    int64_t first, begin, end; /* the block row's first stored block, the chunk's, and one past the block row's last */
    bool parts;                /* the sum is long */
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
    strip.first = first, strip.begin = from, strip.end = end;
    strip.parts = to > from && (end - first > s->part_blocks || s->steps > s->part_steps);
    if (!s->direct) {
        strip.x.a = (const E *)j->launch->workspace + (first * r->br + (end - first) * top) * s->steps;
        strip.x.a += (from - first) * s->steps * strip.rows;
        strip.from = NAME(PACKED_STREAM);
        return strip;
    }
    strip.x.a = (const E *)j->values + top * r->row_step;
    strip.x.a_block = r->block_elements, strip.x.a_row = r->row_step, strip.x.a_k = r->col_step;
    strip.x.soon = sat_max(1, 32 / s->steps);
    if (r->block) strip.x.block = r->block + from, strip.from = NAME(PACKED_COLS);
    else strip.x.a += from * r->block_elements, strip.from = NAME(PACKED_ROWS);
    return strip;
}

/* Where one panel of a group is: in B's buffer, among the kept tiles, in C. */
typedef struct NAME(packed_panel) {
    int64_t nv, width, cols; /* vectors, columns with and without padding */
    int64_t before, j;       /* columns of the group, and of C, before it */
} NAME(packed_panel);

static NAME(packed_panel) NAME(packed_find_panel)(const packed_job *j, int64_t group, int64_t panel) {
    const packed_shape *s = &j->shape;
    int64_t vector = packed_first_vector(s, panel), nv = packed_panel_vectors(s, panel);
    int64_t first = packed_first_vector(s, group % s->groups * s->group_panels);
    return (NAME(packed_panel)){.nv = nv,
                                .width = nv * VL,
                                .cols = sat_min(nv * VL, j->problem->n - vector * VL),
                                .before = (vector - first) * VL,
                                .j = vector * VL};
}

/* Straight into C go tiles that need nothing but to be written. */
static bool NAME(packed_straight)(const packed_job *j, const NAME(packed_panel) * q) {
    return j->plain && q->cols == q->width;
}

/* Some blocks of a strip, the chunk's `t`th to before its `stop`th, and of each the k-steps from k to end. */
INLINE NAME(packed_tile) NAME(packed_some)(const NAME(packed_strip) * strip, int64_t t, int64_t stop, int64_t k,
                                           int64_t end, int64_t width) {
    NAME(packed_tile) x = strip->x;
    bool last = stop == x.blocks;
    if (strip->from == NAME(PACKED_STREAM)) x.a += (t * x.steps[0] + k) * strip->rows;
    else if (strip->from == NAME(PACKED_ROWS)) x.a += t * x.a_block + k;
    else x.a += k * x.a_k, x.block += t;
    x.col += t, x.blocks = stop - t, x.b += k * width;
    x.steps[0] = sat_min(end, x.steps[0]) - k, x.steps[1] = last ? sat_min(end, x.steps[1]) - k : x.steps[0];
    return x;
}

/* c = c + open, or open alone. */
static void NAME(packed_add_part)(const NAME(packed_strip) * strip, int64_t width, const T *open, bool more) {
    int64_t step = strip->x.c_row;
    for (int64_t i = 0; i < strip->rows; i++) {
        T *restrict to = strip->x.c + i * step;
        const T *restrict from = open + i * width;
        for (int64_t j = 0; j < width; j++) to[j] = more ? to[j] + from[j] : from[j];
    }
}

/* A long sum, part by part: each begins with zero in `open`, a tile of its own, and is added to what c holds of those
 * before. One that goes on in the next chunk waits there: so the result does not depend on the chunks. */
static void NAME(packed_do_parts)(const packed_shape *s, const NAME(packed_strip) * strip, NAME(packed_kernel) kernel,
                                  int64_t width, T *open) {
    for (int64_t t = 0, stop; t < strip->x.blocks; t = stop) {
        int64_t done = strip->begin + t - strip->first, in = done % s->part_blocks; /* blocks of the row, of the part */
        stop = sat_min(strip->x.blocks, t - in + s->part_blocks);
        bool closes = strip->begin + stop == strip->end || stop - t + in == s->part_blocks;
        for (int64_t k = 0; k < s->steps; k += s->part_steps) {
            NAME(packed_tile) x = NAME(packed_some)(strip, t, stop, k, k + s->part_steps, width);
            x.c = open, x.c_row = width, x.resume = in > 0, x.around = false;
            kernel(&x);
            if (closes) NAME(packed_add_part)(strip, width, open, done > in || k > 0);
        }
    }
}

/* One chunk of strip `u` with all panels of a group. Kept tiles begin with row `i`. */
static void NAME(packed_do_strip)(const NAME(packed_worker) * w, int64_t u, int64_t chunk, int64_t i) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    const sat_layout *l = &j->problem->c;
    NAME(packed_strip) strip = NAME(packed_find_strip)(j, u, chunk);
    NAME(packed_tile) *x = &strip.x;
    int64_t first = w->group % s->groups * s->group_panels, end = packed_panel_end(s, w->group % s->groups);
    if (strip.rows <= 0 || (x->blocks == 0 && chunk > 0)) return;
    for (int64_t panel = first; panel < end; panel++) {
        NAME(packed_panel) q = NAME(packed_find_panel)(j, w->group, panel);
        x->b = w->buffer + q.before * j->state->depth;
        x->b_block = s->steps * q.width;
        x->ahead = s->steps <= 8 ? 2 : s->steps <= 16;
        x->c = w->kept + (strip.i - i) * s->group_columns + q.before;
        x->c_row = s->group_columns;
        x->around = false;
        if (NAME(packed_straight)(j, &q)) {
            x->c = (T *)j->c + w->group / s->groups * l->batch_stride + strip.i * l->row_stride + q.j;
            x->c_row = l->row_stride;
            x->around = j->around && (uintptr_t)x->c % 64 == 0 && x->c_row * (int64_t)sizeof(T) % 64 == 0;
        }
        NAME(packed_kernel) kernel = NAME(packed_kernels)[strip.from][strip.rows - 1][q.nv - 1];
        if (strip.parts) {
            T *open =
                w->open + (strip.i - i) * s->group_columns + q.before * strip.rows; /* its rows are q.width apart */
            NAME(packed_do_parts)(s, &strip, kernel, q.width, open);
        } else {
            kernel(x);
        }
    }
}

/* Rows i to end of a group's part of C: what its kernels leave among the kept tiles. */
static NAME(packed_result) NAME(packed_find_result)(const NAME(packed_worker) * w, int64_t i, int64_t end) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    int64_t group = w->group % s->groups, panel = group * s->group_panels, stop = packed_panel_end(s, group);
    NAME(packed_result) x = {.problem = j->problem, .bias = j->bias, .around = j->around, .turn = w->turn};
    NAME(packed_panel) q = NAME(packed_find_panel)(j, w->group, panel);
    while (panel < stop && NAME(packed_straight)(j, &q)) q = NAME(packed_find_panel)(j, w->group, ++panel);
    x.c = sat_at(j->problem->c_dtype, j->c, w->group / s->groups * j->problem->c.batch_stride);
    x.i = i, x.rows = end - i;
    x.j = packed_first_vector(s, panel) * VL;
    x.cols = sat_min(packed_first_vector(s, stop) * VL, j->problem->n) - x.j;
    x.tile = w->kept + q.before, x.width = s->group_columns;
    return x;
}

/* Asks for the lines of row-major C that will be written, so that no store has to wait for its line. */
static void NAME(packed_expect)(const NAME(packed_worker) * w, int64_t i, int64_t end) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    const sat_problem *p = j->problem;
    int64_t group = w->group % s->groups, size = (int64_t)sat_dtype_size(p->c_dtype);
    int64_t from = packed_first_vector(s, group * s->group_panels) * VL;
    int64_t to = sat_min(packed_first_vector(s, packed_panel_end(s, group)) * VL, p->n);
    if (p->c.col_stride != 1 || (j->around && p->beta == 0)) return;
    for (; i < end; i++) {
        const char *c = sat_at(p->c_dtype, j->c, w->group / s->groups * p->c.batch_stride + i * p->c.row_stride);
        for (int64_t e = from * size; e < to * size; e += 64) __builtin_prefetch(c + e, 1, 2);
    }
}

/* A span, in parts of so many strips as are kept together. */
static void NAME(packed_do_span)(const NAME(packed_worker) * w, int64_t span) {
    const packed_shape *s = &w->job->shape;
    int64_t u = w->job->state->span[span], end = w->job->state->span[span + 1], m = s->rows.m;
    while (u < end) {
        int64_t i = packed_strip_row(s, u), limit = (i / s->kept_rows + 1) * s->kept_rows, stop = u + 1;
        while (stop < end && packed_strip_row(s, stop + 1) <= limit) stop++;
        NAME(packed_result) x = NAME(packed_find_result)(w, i, sat_min(packed_strip_row(s, stop), m));
        NAME(packed_expect)(w, i, i + x.rows);
        for (int64_t chunk = 0; chunk < s->chunks; chunk++)
            for (int64_t e = u; e < stop; e++) NAME(packed_do_strip)(w, e, chunk, i);
        if (x.cols > 0) NAME(packed_store)(&x);
        u = stop;
    }
}

/* ---- threads ---- */

/* Takes part in a group: packs with the others, waits for the last of them, then does spans as long as there are. */
static void NAME(packed_take_part)(packed_job *j, int64_t desk, void *arena) {
    packed_desk *d = &j->desks[desk];
    int64_t portions = packed_ceil(j->state->depth, PACKED_PORTION);
    NAME(packed_worker) w = {.job = j, .group = atomic_load(&d->group), .buffer = packed_buffer(j, desk)};
    w.turn = arena, w.kept = w.turn + PACKED_STORE * j->shape.group_columns;
    w.open = w.kept + j->shape.kept_rows * j->shape.group_columns;
    while (NAME(packed_take_portion)(j, desk)) {}
    for (int tries = 0; atomic_load(&d->pack_done) < portions;) packed_relax(&tries);
    for (int64_t i; (i = atomic_fetch_add(&d->span_next, 1)) < j->state->spans;) NAME(packed_do_span)(&w, i);
}

static void NAME(packed_work)(packed_job *j, int64_t me) {
    void *arena = packed_arena(j, me);
    for (int64_t g; me < j->shape.desks && (g = packed_next_group(j, me)) >= 0;) {
        packed_open(j, me, g);
        NAME(packed_take_part)(j, me, arena);
    }
    for (int tries = 0;;) {
        bool open = atomic_load(&j->groups_open) >= packed_groups(j);
        int64_t desk = packed_join(j);
        if (desk >= 0) {
            NAME(packed_take_part)(j, desk, arena);
            packed_leave(j, desk);
        } else if (open) {
            break;
        } else {
            packed_relax(&tries);
        }
    }
    _mm_sfence(); /* what was written around the cache */
}

static void NAME(packed_stream)(packed_job *j, const void *values) {
    for (int64_t i; (i = atomic_fetch_add(&j->stream_next, 1)) < j->state->spans;)
        NAME(packed_stream_span)(j, values, i);
}

static void NAME(packed_pass)(packed_job *j) {
    bool stream = !j->shape.direct && !j->shape.keeps;
    packed_start(j);
#pragma omp parallel num_threads(j->launch->threads)
    {
        if (stream) {
            NAME(packed_stream)(j, j->values);
#pragma omp barrier
        }
        NAME(packed_work)(j, omp_get_thread_num());
    }
}

/* Is every panel as wide as some whole lines of memory? Only such go around the cache by themselves. */
static bool NAME(packed_whole_lines)(const packed_shape *s) {
    int64_t vector = VL * (int64_t)sizeof(T), each = s->panels ? s->vectors / s->panels : 0;
    return vector % 64 == 0 || (each * s->panels == s->vectors && each * vector % 64 == 0);
}

static packed_job NAME(packed_job_of)(const sat_launch *l, const packed_isa *isa) {
    const sat_problem *p = l->problem;
    packed_job j = {.launch = l, .problem = p, .state = l->state};
    j.shape = packed_make_shape(l->variant, isa, p, l->pattern, l->device);
    j.desks = (packed_desk *)(void *)((char *)l->workspace + j.shape.desks_at);
    j.around = sat_bytes(p, l->pattern) > (double)l->device->l3_bytes / 2;
    j.plain = p->alpha == 1 && p->beta == 0 && p->bias == SAT_BIAS_NONE && p->activation == SAT_ACT_NONE &&
              p->c.col_stride == 1 && sat_dtype_size(p->c_dtype) == sizeof(T) && j.shape.chunks == 1;
    if (j.around && !NAME(packed_whole_lines)(&j.shape)) j.plain = false;
    return j;
}

static sat_status NAME(packed_launch)(const sat_launch *l, const packed_isa *isa) {
    const sat_problem *p = l->problem;
    packed_job j = NAME(packed_job_of)(l, isa);
    j.bias = l->operands[3];
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
    packed_job j = NAME(packed_job_of)(l, isa);
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
#undef V_STREAM
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
#undef PAIRS
#undef K_IN_STEP
#undef AHEAD
#undef FOUR
#undef UNROLL
#undef INLINE
