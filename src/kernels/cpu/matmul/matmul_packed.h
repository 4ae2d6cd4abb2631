/* The packed matmul: C = act(alpha*op(A)*B + beta*C + bias), A block-sparse, for wide B. A template, included once for
 * each element type; it reads from the micro-kernel out to the loop over a block row, the threads and the launch.
 * matmul_packed_plan.h says how the product is cut. A run:
 *   1. all threads pack the block values into strips, unless the variant reads them in place
 *   2. each thread takes a panel group, packs its part of B into a buffer that stays in the cache,
 *   3. and multiplies strip after strip with the group's panels; the epilogue writes C
 *
 * A family defines FN(name) (common/vector.h) and the register tiles that it has, rows x vectors: DIRECT_TILES(X) lists
 * X(rows, vectors) for those that may read values in place, TILES(X) the others, of at most MAX_ROWS x MAX_VECTORS;
 * K_UNROLL: k-steps that are unrolled; PREFETCH_B: 1 to prefetch the B of small blocks. FN is undefined at the end. */

#include <omp.h>

/* ---- the micro-kernel ---- */

/* ROWS x VECTORS of C stay in registers while all blocks of a strip pass. Each k-step loads VECTORS vectors of B and
 * multiplies them by ROWS broadcast values of A. The multiply-adds are written as instructions: compilers fold the
 * loads of B into them, and so load each vector ROWS times, or choose forms that copy the accumulators. */

/* One strip times one panel. Distances count elements. */
typedef struct FN(packed_tile) {
    const OPERAND *a;            /* the strip's values in the first block, or in block 0 if `block` */
    const int64_t *block;        /* where the blocks are; NULL: one after the other */
    int64_t a_block, a_row, a_k; /* distance between blocks, rows, and k */
    const int32_t *col;          /* packed block columns */
    int64_t blocks, steps[2];    /* blocks; k-steps of each, and of the last */
    const OPERAND *b;            /* the panel */
    int64_t b_block;             /* distance between its block columns */
    REAL *c;                     /* ROWS x VECTORS*LANES */
    int64_t c_row;               /* distance between its rows */
    bool nontemporal;            /* c's lines are whole and aligned, and are stored around the cache */
    bool resume;                 /* c holds the sums of earlier blocks */
    int64_t a_prefetch;          /* blocks by which values are prefetched, where they are read in place */
    int64_t b_prefetch;          /* blocks by which B is prefetched: hardware does not foresee small ones; 0: none */
} FN(packed_tile);

typedef void (*FN(packed_kernel))(const FN(packed_tile) * x);

/* Where a tile reads A: packed strips (rows of a strip are neighbours), blocks in place whose columns are contiguous
 * (a transposed matrix), blocks in place whose rows are. */
enum { FN(A_PACKED), FN(A_COLUMNS), FN(A_ROWS) };

/* Rows of A in place are addressed in threes: base, base + row and base + 2*row need one register together. */
INLINE void FN(packed_multiply_step)(const int ROWS, const int VECTORS, const int BY_ROWS, VEC (*acc)[MAX_VECTORS],
                                     const OPERAND *const *a, int64_t row, const OPERAND *b) {
    OPERAND_VEC x[MAX_VECTORS];
    UNROLL for (int j = 0; j < VECTORS; j++) x[j] = VLOAD_OPERAND(b + j * LANES);
    UNROLL for (int i = 0; i < ROWS; i++) {
        OPERAND_VEC y = VBROADCAST(BY_ROWS ? a[i / 3] + (i % 3) * row : a[0] + i);
        UNROLL for (int j = 0; j < VECTORS; j++) VFMA_INTO(acc[i][j], y, x[j]);
    }
}

INLINE void FN(packed_multiply_tile)(const int ROWS, const int VECTORS, const int FROM, const FN(packed_tile) * x) {
    enum { LINE = 64 / sizeof(OPERAND) };
    const int BY_ROWS = FROM == FN(A_ROWS), BY_COLUMNS = FROM == FN(A_COLUMNS), bases = BY_ROWS ? (ROWS + 2) / 3 : 1;
    VEC acc[MAX_ROWS][MAX_VECTORS];
    UNROLL for (int i = 0; i < ROWS; i++) {
        UNROLL for (int j = 0; j < VECTORS; j++) acc[i][j] =
            x->resume ? VLOAD(x->c + i * x->c_row + j * LANES) : VZERO();
    }
    const int64_t end = x->blocks - 1, next = BY_COLUMNS ? x->a_k : BY_ROWS ? 1 : ROWS, row = BY_ROWS ? x->a_row : 0;
    const OPERAND *a[(MAX_ROWS + 2) / 3];
    const int32_t *col = x->col, *last = col + end;
    a[0] = x->a;
    for (int64_t t = 0; col <= last; col++, t++) {
        const OPERAND *b = x->b + *col * x->b_block;
        if (BY_ROWS) a[0] = x->a + t * x->a_block;
        if (BY_COLUMNS) a[0] = x->a + x->block[t] * x->a_block;
        UNROLL for (int i = 1; i < bases; i++) a[i] = a[i - 1] + 3 * row;
        const OPERAND *b_next =
            PREFETCH_B && x->b_prefetch ? x->b + col[sat_min(x->b_prefetch, last - col)] * x->b_block : NULL;
        const OPERAND *a_next = BY_ROWS      ? a[0] + x->a_prefetch * x->a_block
                                : BY_COLUMNS ? x->a + x->block[sat_min(t + x->a_prefetch, end)] * x->a_block
                                             : NULL;
        int64_t n = x->steps[col == last];
        for (; n >= K_UNROLL; n -= K_UNROLL) {
            if (BY_ROWS) { /* the strip's rows of a block are contiguous */
                UNROLL for (int e = 0; e < ROWS * K_UNROLL; e += LINE) __builtin_prefetch(a_next + e, 0, 3);
                a_next += ROWS * K_UNROLL;
            }
            if (BY_COLUMNS) {
                UNROLL for (int u = 0; u < K_UNROLL; u++) __builtin_prefetch(a_next + u * next, 0, 3);
                a_next += K_UNROLL * next;
            }
            if (PREFETCH_B && b_next) {
                UNROLL for (int e = 0; e < K_UNROLL * VECTORS * LANES; e += LINE) __builtin_prefetch(b_next + e, 0, 3);
                b_next += K_UNROLL * VECTORS * LANES;
            }
            UNROLL for (int u = 0; u < K_UNROLL; u++) {
                FN(packed_multiply_step)(ROWS, VECTORS, BY_ROWS, acc, a, row, b + u * VECTORS * LANES);
                UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            }
            b += K_UNROLL * VECTORS * LANES;
        }
        for (; n > 0; n--) {
            FN(packed_multiply_step)(ROWS, VECTORS, BY_ROWS, acc, a, row, b);
            UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            b += VECTORS * LANES;
        }
    }
    UNROLL for (int i = 0; i < ROWS; i++) {
        REAL *c = x->c + i * x->c_row;
        if (x->nontemporal) {
            UNROLL for (int j = 0; j < VECTORS; j++) VSTREAM(c + j * LANES, acc[i][j]);
        } else {
            UNROLL for (int j = 0; j < VECTORS; j++) VSTORE(c + j * LANES, acc[i][j]);
        }
    }
}

/* A function for every tile, and the table by which they are found. */
#define DEFINE(ROWS, VECTORS)                                                                                          \
    static void FN(packed_tile_##ROWS##x##VECTORS)(const FN(packed_tile) * x) {                                        \
        FN(packed_multiply_tile)(ROWS, VECTORS, FN(A_PACKED), x);                                                      \
    }
TILES(DEFINE)
DIRECT_TILES(DEFINE)
#undef DEFINE
#define DEFINE(ROWS, VECTORS)                                                                                          \
    static void FN(packed_rows_##ROWS##x##VECTORS)(const FN(packed_tile) * x) {                                        \
        FN(packed_multiply_tile)(ROWS, VECTORS, FN(A_ROWS), x);                                                        \
    }
DIRECT_TILES(DEFINE)
#undef DEFINE
#if PACKED_K_STEP == 1 /* a pair of neighbouring k is together in a row alone */
#define DEFINE(ROWS, VECTORS)                                                                                          \
    static void FN(packed_columns_##ROWS##x##VECTORS)(const FN(packed_tile) * x) {                                     \
        FN(packed_multiply_tile)(ROWS, VECTORS, FN(A_COLUMNS), x);                                                     \
    }
DIRECT_TILES(DEFINE)
#undef DEFINE
#endif

static const FN(packed_kernel) FN(packed_kernels)[3][MAX_ROWS][MAX_VECTORS] = {
#define LIST(ROWS, VECTORS) [FN(A_PACKED)][ROWS - 1][VECTORS - 1] = FN(packed_tile_##ROWS##x##VECTORS),
    TILES(LIST) DIRECT_TILES(LIST)
#undef LIST
#define LIST(ROWS, VECTORS) [FN(A_ROWS)][ROWS - 1][VECTORS - 1] = FN(packed_rows_##ROWS##x##VECTORS),
        DIRECT_TILES(LIST)
#undef LIST
#if PACKED_K_STEP == 1
#define LIST(ROWS, VECTORS) [FN(A_COLUMNS)][ROWS - 1][VECTORS - 1] = FN(packed_columns_##ROWS##x##VECTORS),
            DIRECT_TILES(LIST)
#undef LIST
#endif
};

/* ---- packing and epilogue ---- */

#include "matmul_packed_pack.h"
#include "matmul_packed_epilogue.h"

/* A thread at work on a panel group. */
typedef struct FN(packed_worker) {
    const packed_job *job;
    int64_t group;
    const OPERAND *buffer;
    REAL *pending;    /* [pending_rows][group_columns] of C that wait for the epilogue */
    REAL *partial;    /* as many, for the parts of long sums */
    REAL *transposed; /* [PACKED_STORE_ROWS][group_columns] for the epilogue of a column-major C */
} FN(packed_worker);

/* The strips of one work item, packed. */
static void FN(packed_pack_a_item)(const packed_job *j, const void *values, int64_t item) {
    const packed_shape *s = &j->shape;
    const sat_rows *r = &s->rows;
    OPERAND *packed = j->launch->workspace;
    for (int64_t u = j->state->item_first[item]; u < j->state->item_first[item + 1]; u++) {
        int64_t row = u / s->strips, top = u % s->strips * s->height, first = r->ptr[row], end = r->ptr[row + 1];
        int64_t rows = sat_min(s->height, sat_min(r->br - top, r->m - row * r->br - top));
        OPERAND *to = packed + (first * r->br + (end - first) * top) * s->steps;
        for (int64_t t = first; rows > 0 && t < end; t++, to += rows * s->steps) {
            const void *from =
                sat_at(j->problem->a_dtype, values, sat_block_of(r, t) * r->block_elements + top * r->row_step);
            FN(packed_pack_a)(j->problem->a_dtype, from, r, rows, sat_min(r->bc, r->k - r->col[t] * r->bc), to);
        }
    }
}

/* Packs rows k to k_end of B, the first of which is packed row `at`, for all panels of a group. Few rows at a time, so
 * that the next panel finds their pages in the TLB and, where columns are contiguous, the packed rows in the cache. */
static void FN(packed_pack_run)(const packed_job *j, int64_t group, OPERAND *buffer, int64_t at, int64_t k,
                                int64_t k_end, int64_t run_end) {
    const packed_shape *s = &j->shape;
    const sat_problem *p = j->problem;
    int64_t batch_item = group / s->groups, from = group % s->groups * s->group_panels,
            few = p->b.col_stride == 1 ? 16 : 64;
    const void *b = sat_at(p->b_dtype, j->b, batch_item * p->b.batch_stride);
    FN(packed_slice) x = {.dtype = p->b_dtype, .layout = p->b};
    for (; k < k_end; k += few, at += few / PACKED_K_STEP) {
        x.rows = sat_min(few, k_end - k), x.more = run_end - k - x.rows;
        for (int64_t panel = from; panel < packed_panel_end(s, group % s->groups); panel++) {
            int64_t vector = packed_first_vector(s, panel);
            x.width = packed_panel_vectors(s, panel) * LANES, x.cols = sat_min(x.width, p->n - vector * LANES);
            x.b = sat_at(p->b_dtype, b, k * p->b.row_stride + vector * LANES * p->b.col_stride);
            x.to = buffer + (vector - packed_first_vector(s, from)) * LANES * j->state->depth + at * x.width;
            FN(packed_pack_b)(&x);
        }
    }
}

/* Packs packed rows `at` to `end` of a group. */
static void FN(packed_pack_rows)(const packed_job *j, int64_t group, OPERAND *buffer, int64_t at, int64_t end) {
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
        int64_t k = run->k + (at - run->at) * PACKED_K_STEP, k_end = run->k + (stop - run->at) * PACKED_K_STEP;
        FN(packed_pack_run)(j, group, buffer, at, k, sat_min(k_end, run->k_end), run->k_end);
    }
}

/* Packs the next rows of a slot's group that nobody has taken yet; false: there are none. */
static bool FN(packed_pack_next)(packed_job *j, int64_t slot) {
    packed_slot *d = &j->slots[slot];
    int64_t size = PACKED_TASK_ROWS, depth = j->state->depth, i = atomic_fetch_add(&d->next_pack, 1);
    if (i * size >= depth) return false;
    FN(packed_pack_rows)(j, atomic_load(&d->group), packed_buffer(j, slot), i * size, sat_min((i + 1) * size, depth));
    atomic_fetch_add(&d->packs_done, 1);
    return true;
}

/* ---- the loop over a block row ---- */

/* A strip: what its tiles have in common. */
typedef struct FN(packed_strip) {
    FN(packed_tile) x;
    int64_t i, rows;           /* rows of C */
    int from;                  /* where values are read: A_PACKED, A_COLUMNS or A_ROWS */
    int64_t first, begin, end; /* the block row's first stored block, the chunk's, and one past the block row's last */
    bool parts;                /* the sum is long */
} FN(packed_strip);

/* Chunk `chunk` of strip `u`. */
static FN(packed_strip) FN(packed_find_strip)(const packed_job *j, int64_t u, int64_t chunk) {
    const packed_shape *s = &j->shape;
    const sat_rows *r = &s->rows;
    int64_t row = u / s->strips, top = u % s->strips * s->height, first = r->ptr[row], end = r->ptr[row + 1];
    const int64_t *chunk_first = j->state->chunk_first ? j->state->chunk_first + row * (s->chunks + 1) + chunk : NULL;
    int64_t from = chunk_first ? chunk_first[0] : first, to = chunk_first ? chunk_first[1] : end;
    bool ragged = to > from && to == end && (r->col[to - 1] + 1) * r->bc > r->k;
    FN(packed_strip) strip = {.i = row * r->br + top};
    strip.rows = sat_min(s->height, sat_min(r->br - top, r->m - strip.i));
    strip.x = (FN(packed_tile)){.col = (j->state->packed_col ? j->state->packed_col : r->col) + from,
                                .blocks = to - from,
                                .steps = {s->steps, ragged ? s->last_steps : s->steps},
                                .resume = chunk > 0};
    strip.first = first, strip.begin = from, strip.end = end;
    strip.parts = to > from && (end - first > s->part_blocks || s->steps > s->part_steps);
    if (!s->direct) {
        strip.x.a = (const OPERAND *)j->launch->workspace + (first * r->br + (end - first) * top) * s->steps;
        strip.x.a += (from - first) * s->steps * strip.rows;
        strip.from = FN(A_PACKED);
        return strip;
    }
    int64_t block = r->block_elements / PACKED_K_STEP, line = r->row_step / PACKED_K_STEP; /* in operands */
    strip.x.a = (const OPERAND *)j->values + top * line;
    strip.x.a_block = block, strip.x.a_row = line, strip.x.a_k = r->col_step;
    strip.x.a_prefetch = sat_max(1, 32 / s->steps);
    if (r->block) strip.x.block = r->block + from, strip.from = FN(A_COLUMNS);
    else strip.x.a += from * block, strip.from = FN(A_ROWS);
    return strip;
}

/* A panel of a group: where it is in B's buffer, in the pending rows, in C. */
typedef struct FN(packed_panel) {
    int64_t nv, width, cols; /* vectors, columns with and without padding */
    int64_t before, j;       /* columns of the group, and of C, before it */
} FN(packed_panel);

static FN(packed_panel) FN(packed_find_panel)(const packed_job *j, int64_t group, int64_t panel) {
    const packed_shape *s = &j->shape;
    int64_t vector = packed_first_vector(s, panel), nv = packed_panel_vectors(s, panel);
    int64_t first = packed_first_vector(s, group % s->groups * s->group_panels);
    return (FN(packed_panel)){.nv = nv,
                              .width = nv * LANES,
                              .cols = sat_min(nv * LANES, j->problem->n - vector * LANES),
                              .before = (vector - first) * LANES,
                              .j = vector * LANES};
}

/* Whole tiles that need no epilogue are stored to C. */
static bool FN(packed_stores_to_c)(const packed_job *j, const FN(packed_panel) * q) {
    return j->no_epilogue && q->cols == q->width;
}

/* A part of a strip: of its chunk the blocks from t to before stop, and of each the k-steps from k to before end. */
INLINE FN(packed_tile) FN(packed_sub_tile)(const FN(packed_strip) * strip, int64_t t, int64_t stop, int64_t k,
                                           int64_t end, int64_t width) {
    FN(packed_tile) x = strip->x;
    bool last = stop == x.blocks;
    if (strip->from == FN(A_PACKED)) x.a += (t * x.steps[0] + k) * strip->rows;
    else if (strip->from == FN(A_ROWS)) x.a += t * x.a_block + k;
    else x.a += k * x.a_k, x.block += t;
    x.col += t, x.blocks = stop - t, x.b += k * width;
    x.steps[0] = sat_min(end, x.steps[0]) - k, x.steps[1] = last ? sat_min(end, x.steps[1]) - k : x.steps[0];
    return x;
}

/* c += partial, or c = partial where there is nothing yet. */
static void FN(packed_add_part)(const FN(packed_strip) * strip, int64_t width, const REAL *partial, bool more) {
    int64_t step = strip->x.c_row;
    for (int64_t i = 0; i < strip->rows; i++) {
        REAL *restrict to = strip->x.c + i * step;
        const REAL *restrict from = partial + i * width;
        for (int64_t j = 0; j < width; j++) to[j] = more ? to[j] + from[j] : from[j];
    }
}

/* A long sum, part by part: each begins with zero in `partial`, a tile of its own, and is then added to c. A part that
 * goes on in the next chunk stays in `partial`: so the result does not depend on the chunks. */
static void FN(packed_multiply_parts)(const packed_shape *s, const FN(packed_strip) * strip, FN(packed_kernel) kernel,
                                      int64_t width, REAL *partial) {
    for (int64_t t = 0, stop; t < strip->x.blocks; t = stop) {
        int64_t done = strip->begin + t - strip->first, in = done % s->part_blocks; /* blocks before t */
        stop = sat_min(strip->x.blocks, t - in + s->part_blocks);
        bool closes = strip->begin + stop == strip->end || stop - t + in == s->part_blocks;
        for (int64_t k = 0; k < s->steps; k += s->part_steps) {
            FN(packed_tile) x = FN(packed_sub_tile)(strip, t, stop, k, k + s->part_steps, width);
            x.c = partial, x.c_row = width, x.resume = in > 0, x.nontemporal = false;
            kernel(&x);
            if (closes) FN(packed_add_part)(strip, width, partial, done > in || k > 0);
        }
    }
}

/* One chunk of strip `u` times all panels of a group. The pending rows begin with row `i`. */
static void FN(packed_multiply_strip)(const FN(packed_worker) * w, int64_t u, int64_t chunk, int64_t i) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    const sat_layout *l = &j->problem->c;
    FN(packed_strip) strip = FN(packed_find_strip)(j, u, chunk);
    FN(packed_tile) *x = &strip.x;
    int64_t first = w->group % s->groups * s->group_panels, end = packed_panel_end(s, w->group % s->groups);
    if (strip.rows <= 0 || (x->blocks == 0 && chunk > 0)) return;
    for (int64_t panel = first; panel < end; panel++) {
        FN(packed_panel) q = FN(packed_find_panel)(j, w->group, panel);
        x->b = w->buffer + q.before * j->state->depth;
        x->b_block = s->steps * q.width;
        x->b_prefetch = s->steps <= 8 ? 2 : s->steps <= 16;
        x->c = w->pending + (strip.i - i) * s->group_columns + q.before;
        x->c_row = s->group_columns;
        x->nontemporal = false;
        if (FN(packed_stores_to_c)(j, &q)) {
            x->c = (REAL *)j->c + w->group / s->groups * l->batch_stride + strip.i * l->row_stride + q.j;
            x->c_row = l->row_stride;
            x->nontemporal = j->nontemporal && (uintptr_t)x->c % 64 == 0 && x->c_row * (int64_t)sizeof(REAL) % 64 == 0;
        }
        FN(packed_kernel) kernel = FN(packed_kernels)[strip.from][strip.rows - 1][q.nv - 1];
        if (strip.parts) {
            /* Its rows are q.width apart. */
            REAL *partial = w->partial + (strip.i - i) * s->group_columns + q.before * strip.rows;
            FN(packed_multiply_parts)(s, &strip, kernel, q.width, partial);
        } else {
            kernel(x);
        }
    }
}

/* Rows i to end of a group's columns of C: those that wait for the epilogue. */
static FN(packed_result) FN(packed_find_result)(const FN(packed_worker) * w, int64_t i, int64_t end) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    int64_t group = w->group % s->groups, panel = group * s->group_panels, stop = packed_panel_end(s, group);
    FN(packed_result)
    x = {.problem = j->problem, .bias = j->bias, .nontemporal = j->nontemporal, .transposed = w->transposed};
    FN(packed_panel) q = FN(packed_find_panel)(j, w->group, panel);
    while (panel < stop && FN(packed_stores_to_c)(j, &q)) q = FN(packed_find_panel)(j, w->group, ++panel);
    x.c = sat_at(j->problem->c_dtype, j->c, w->group / s->groups * j->problem->c.batch_stride);
    x.i = i, x.rows = end - i;
    x.j = packed_first_vector(s, panel) * LANES;
    x.cols = sat_min(packed_first_vector(s, stop) * LANES, j->problem->n) - x.j;
    x.tile = w->pending + q.before, x.width = s->group_columns;
    return x;
}

/* Prefetches the lines of row-major C that will be written, so that no store has to wait for its line. */
static void FN(packed_prefetch_c)(const FN(packed_worker) * w, int64_t i, int64_t end) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    const sat_problem *p = j->problem;
    int64_t group = w->group % s->groups, size = (int64_t)sat_dtype_size(p->c_dtype);
    int64_t from = packed_first_vector(s, group * s->group_panels) * LANES;
    int64_t to = sat_min(packed_first_vector(s, packed_panel_end(s, group)) * LANES, p->n);
    if (p->c.col_stride != 1 || (j->nontemporal && p->beta == 0)) return;
    for (; i < end; i++) {
        const char *c = sat_at(p->c_dtype, j->c, w->group / s->groups * p->c.batch_stride + i * p->c.row_stride);
        for (int64_t e = from * size; e < to * size; e += 64) __builtin_prefetch(c + e, 1, 2);
    }
}

/* A work item: as many strips at a time as wait for the epilogue together. */
static void FN(packed_multiply_item)(const FN(packed_worker) * w, int64_t item) {
    const packed_shape *s = &w->job->shape;
    int64_t u = w->job->state->item_first[item], end = w->job->state->item_first[item + 1], m = s->rows.m;
    while (u < end) {
        int64_t i = packed_strip_row(s, u), limit = (i / s->pending_rows + 1) * s->pending_rows, stop = u + 1;
        while (stop < end && packed_strip_row(s, stop + 1) <= limit) stop++;
        FN(packed_result) x = FN(packed_find_result)(w, i, sat_min(packed_strip_row(s, stop), m));
        FN(packed_prefetch_c)(w, i, i + x.rows);
        for (int64_t chunk = 0; chunk < s->chunks; chunk++)
            for (int64_t e = u; e < stop; e++) FN(packed_multiply_strip)(w, e, chunk, i);
        if (x.cols > 0) FN(packed_store)(&x);
        u = stop;
    }
}

/* ---- threads and launch ---- */

/* Packs a slot's group together with the others, waits for the last of them, then takes work items while there are any.
 */
static void FN(packed_work_on_slot)(packed_job *j, int64_t slot, void *scratch) {
    packed_slot *d = &j->slots[slot];
    int64_t tasks = packed_ceil(j->state->depth, PACKED_TASK_ROWS);
    FN(packed_worker) w = {.job = j, .group = atomic_load(&d->group), .buffer = packed_buffer(j, slot)};
    w.transposed = scratch, w.pending = w.transposed + PACKED_STORE_ROWS * j->shape.group_columns;
    w.partial = w.pending + j->shape.pending_rows * j->shape.group_columns;
    while (FN(packed_pack_next)(j, slot)) {}
    for (int tries = 0; atomic_load(&d->packs_done) < tasks;) packed_back_off(&tries);
    for (int64_t i; (i = atomic_fetch_add(&d->next_item, 1)) < j->state->items;) FN(packed_multiply_item)(&w, i);
}

static void FN(packed_work_of_thread)(packed_job *j, int64_t me) {
    void *scratch = packed_scratch(j, me);
    for (int64_t g; me < j->shape.slots && (g = packed_next_group(j, me)) >= 0;) {
        packed_open_slot(j, me, g);
        FN(packed_work_on_slot)(j, me, scratch);
    }
    for (int tries = 0;;) {
        bool all_open = atomic_load(&j->groups_open) >= packed_groups(j);
        int64_t slot = packed_help_slot(j);
        if (slot >= 0) {
            FN(packed_work_on_slot)(j, slot, scratch);
            packed_leave_slot(j, slot);
        } else if (all_open) {
            break;
        } else {
            packed_back_off(&tries);
        }
    }
    _mm_sfence(); /* for the nontemporal stores */
}

/* Takes work items and packs their strips. */
static void FN(packed_pack_a_items)(packed_job *j, const void *values) {
    for (int64_t i; (i = atomic_fetch_add(&j->next_a_item, 1)) < j->state->items;) FN(packed_pack_a_item)(j, values, i);
}

static void FN(packed_pass)(packed_job *j) {
    bool pack_a = !j->shape.direct && !j->shape.prepacked;
    packed_reset_slots(j);
#pragma omp parallel num_threads(j->launch->threads)
    {
        if (pack_a) {
            FN(packed_pack_a_items)(j, j->values);
#pragma omp barrier
        }
        FN(packed_work_of_thread)(j, omp_get_thread_num());
    }
}

/* Is every panel as wide as some whole cache lines? Only such tiles may be stored nontemporal. */
static bool FN(packed_whole_lines)(const packed_shape *s) {
    int64_t vector = LANES * (int64_t)sizeof(REAL), each = s->panels ? s->vectors / s->panels : 0;
    return vector % 64 == 0 || (each * s->panels == s->vectors && each * vector % 64 == 0);
}

static packed_job FN(packed_job_of)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    packed_job j = {.launch = l, .problem = p, .state = l->state};
    j.shape = packed_make_shape(l->variant, p, l->pattern, l->device);
    j.slots = (packed_slot *)(void *)((char *)l->workspace + j.shape.slots_at);
    j.nontemporal = sat_bytes(p, l->pattern) > (double)l->device->l3_bytes / 2;
    j.no_epilogue = p->alpha == 1 && p->beta == 0 && p->matmul.bias == SAT_BIAS_NONE &&
                    p->matmul.activation == SAT_ACT_NONE && p->c.col_stride == 1 &&
                    sat_dtype_size(p->c_dtype) == sizeof(REAL) && j.shape.chunks == 1;
    if (j.nontemporal && !FN(packed_whole_lines)(&j.shape)) j.no_epilogue = false;
    return j;
}

static sat_status FN(packed_launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    packed_job j = FN(packed_job_of)(l);
    j.bias = l->operands[3];
    if (p->m == 0 || p->n == 0) return SAT_OK;
    for (int64_t first = 0; first < p->batch; first += j.shape.batch_items) {
        j.values = sat_at(p->a_dtype, l->operands[0], first * p->a.batch_stride);
        j.b = sat_at(p->b_dtype, l->operands[1], first * p->b.batch_stride);
        j.c = sat_at(p->c_dtype, l->operands[2], first * p->c.batch_stride);
        FN(packed_pass)(&j);
    }
    return SAT_OK;
}

static sat_status FN(packed_refresh)(const sat_launch *l) {
    packed_job j = FN(packed_job_of)(l);
    if (!j.shape.prepacked) return SAT_OK;
#pragma omp parallel num_threads(l->threads)
    FN(packed_pack_a_items)(&j, l->operands[0]);
    return SAT_OK;
}

#undef FN
