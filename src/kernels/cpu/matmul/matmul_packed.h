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

/* An element of A: an operand is one, or two of neighbouring k. */
#if PACKED_K_STEP == 1
typedef REAL FN(packed_value);
#else
typedef uint16_t FN(packed_value);
#endif
#define VALUE FN(packed_value)

/* One strip times one panel. Distances count elements. */
typedef struct FN(packed_tile) {
    const VALUE *a;              /* the strip's values in the first block, or in block 0 if `block` */
    const int64_t *block;        /* where the blocks are; NULL: one after the other */
    int64_t a_block, a_row, a_k; /* distance between blocks, rows, and k */
    const int32_t *col;          /* packed block columns, or block columns where B is in place */
    int64_t blocks, steps[2];    /* blocks; k-steps of each, and of the last; */
    bool half[2];                /* the last of these has one k, not two, and A is in place */
    const OPERAND *b;            /* the panel */
    int64_t b_block;             /* distance between its block columns */
    int64_t b_row;               /* of B in place: between its rows; a packed panel has no gaps */
    int last;                    /* and elements in the last vector of B's, and C's, row */
    REAL *c;                     /* ROWS x VECTORS*LANES */
    int64_t c_row;               /* distance between its rows */
    bool nontemporal;            /* c's lines are whole and aligned, and are stored around the cache */
    bool resume;                 /* c holds the sums of earlier blocks */
    int64_t a_prefetch;          /* blocks by which values are prefetched, where they are read in place */
    int64_t b_prefetch;          /* blocks by which B is prefetched: hardware does not foresee small ones; 0: none */
} FN(packed_tile);

typedef void (*FN(packed_kernel))(const FN(packed_tile) * x);

/* Vector j of a row of B. */
INLINE OPERAND_VEC FN(packed_b_vector)(const int VECTORS, const int FROM, const FN(packed_tile) * x, const OPERAND *b,
                                       int j) {
#if B_IN_PLACE
    if (packed_from_b(FROM) && j == VECTORS - 1) return VLOAD_SOME(b + j * LANES, x->last);
#endif
    (void)VECTORS, (void)FROM, (void)x;
    return VLOAD_OPERAND(b + j * LANES);
}

/* A row's operand of a k-step, in every lane. */
INLINE OPERAND_VEC FN(packed_a_vector)(const int FROM, const bool HALF, const FN(packed_tile) * x, const VALUE *a) {
#if PACKED_K_STEP == 1
    (void)FROM, (void)HALF, (void)x;
    return VBROADCAST(a);
#else
    uint32_t pair = 0;
    if (HALF) pair = *a;
    else if (packed_from_columns(FROM)) pair = *a | (uint32_t)a[x->a_k] << 16;
    else memcpy(&pair, a, sizeof pair);
    return VBROADCAST(&pair);
#endif
}

/* Rows of A in place are addressed in threes: base, base + row and base + 2*row need one register together. */
INLINE void FN(packed_multiply_step)(const int ROWS, const int VECTORS, const int FROM, const bool HALF,
                                     const FN(packed_tile) * x, VEC (*acc)[MAX_VECTORS], const VALUE *const *a,
                                     int64_t row, const OPERAND *b) {
    const int down = FROM == FROM_STRIPS ? PACKED_K_STEP : 1;
    OPERAND_VEC bv[MAX_VECTORS];
    UNROLL for (int j = 0; j < VECTORS; j++) bv[j] = FN(packed_b_vector)(VECTORS, FROM, x, b, j);
    UNROLL for (int i = 0; i < ROWS; i++) {
        const VALUE *at = packed_from_rows(FROM) ? a[i / 3] + (i % 3) * row : a[0] + i * down;
        OPERAND_VEC y = FN(packed_a_vector)(FROM, HALF, x, at);
        UNROLL for (int j = 0; j < VECTORS; j++) VFMA_INTO(acc[i][j], y, bv[j]);
    }
}

/* Values of block t, the first row's first. */
INLINE const VALUE *FN(packed_a_at)(const int ROWS, const int FROM, const FN(packed_tile) * x, int64_t t) {
    if (FROM == FROM_STRIPS) return x->a + t * x->steps[0] * ROWS * PACKED_K_STEP;
    return x->a + (packed_from_columns(FROM) ? x->block[t] : t) * x->a_block;
}

/* Elements from a k-step to the next. */
INLINE int64_t FN(packed_a_next)(const int ROWS, const int FROM, const FN(packed_tile) * x) {
    return PACKED_K_STEP * (packed_from_columns(FROM) ? x->a_k : packed_from_rows(FROM) ? 1 : ROWS);
}

INLINE void FN(packed_prefetch)(const void *p, int64_t bytes) {
    UNROLL for (int64_t e = 0; e < bytes; e += 64) __builtin_prefetch((const char *)p + e, 0, 3);
}

/* Blocks of few steps, SIDE of them side by side; returns how many are done. */
INLINE int64_t FN(packed_multiply_side)(const int ROWS, const int VECTORS, const int FROM, const int SIDE,
                                        const bool HALF, const FN(packed_tile) * x, int64_t steps,
                                        VEC (*acc)[MAX_ROWS][MAX_VECTORS]) {
    const int PREFETCHES_B = PREFETCH_B || packed_from_b(FROM);
    const int COLUMNS = packed_from_columns(FROM), bases = packed_from_rows(FROM) ? (ROWS + 2) / 3 : 1;
    const int64_t next = FN(packed_a_next)(ROWS, FROM, x), row = packed_from_rows(FROM) ? x->a_row : 0;
    const int64_t b_row = packed_from_b(FROM) ? x->b_row : VECTORS * LANES;
    const int64_t whole = x->blocks - (x->steps[1] != steps || x->half[1] != HALF), last = x->blocks - 1;
    int64_t t = 0;
    for (; t + SIDE <= whole; t += SIDE) {
        UNROLL for (int u = 0; u < SIDE; u++) {
            const VALUE *a[(MAX_ROWS + 2) / 3];
            const OPERAND *b = x->b + x->col[t + u] * x->b_block;
            a[0] = FN(packed_a_at)(ROWS, FROM, x, t + u);
            UNROLL for (int i = 1; i < bases; i++) a[i] = a[i - 1] + 3 * row;
            if (COLUMNS) FN(packed_prefetch)(FN(packed_a_at)(ROWS, FROM, x, sat_min(t + u + x->a_prefetch, last)), 1);
            if (PREFETCHES_B && x->b_prefetch) {
                const OPERAND *b_next = x->b + x->col[sat_min(t + u + SIDE * x->b_prefetch, last)] * x->b_block;
                for (int64_t k = 0; k < steps; k++) FN(packed_prefetch)(b_next + k * b_row, VECTORS * VECTOR_BYTES);
            }
            for (int64_t k = 0; k < steps - HALF; k++) {
                FN(packed_multiply_step)(ROWS, VECTORS, FROM, false, x, acc[u], a, row, b + k * b_row);
                UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            }
            if (HALF) FN(packed_multiply_step)(ROWS, VECTORS, FROM, true, x, acc[u], a, row, b + (steps - 1) * b_row);
        }
    }
    return t;
}

/* The same for any tile and number of steps. */
INLINE int64_t FN(packed_multiply_small)(const int ROWS, const int VECTORS, const int FROM, const int SIDE,
                                         const FN(packed_tile) * x, VEC (*acc)[MAX_ROWS][MAX_VECTORS]) {
    const int64_t steps = x->steps[0];
    if (SIDE == 1 || steps > SMALL_STEPS) return 0;
#define SIDE_OF(half, steps) FN(packed_multiply_side)(ROWS, VECTORS, FROM, SIDE, half, x, steps, acc)
    if (PACKED_K_STEP > 1 && FROM != FROM_STRIPS && x->half[0])
        return steps == 1 ? SIDE_OF(true, 1) : steps == 2 ? SIDE_OF(true, 2) : SIDE_OF(true, steps);
    if (steps == 1) return SIDE_OF(false, 1);
    if (steps == 2) return SIDE_OF(false, 2);
    if (steps == 4) return SIDE_OF(false, 4);
    return SIDE_OF(false, steps);
#undef SIDE_OF
}

/* The sums of all sides into c. */
INLINE void FN(packed_store_tile)(const int ROWS, const int VECTORS, const int FROM, const int SIDE,
                                  const FN(packed_tile) * x, VEC (*acc)[MAX_ROWS][MAX_VECTORS]) {
    UNROLL for (int i = 0; i < ROWS; i++) {
        REAL *c = x->c + i * x->c_row;
        UNROLL for (int j = 0; j < VECTORS; j++) {
            VEC sum = acc[0][i][j];
            if (SIDE == 4) sum = VADD(VADD(sum, acc[1][i][j]), VADD(acc[2][i][j], acc[3][i][j]));
            if (SIDE == 2) sum = VADD(sum, acc[1][i][j]);
#if B_IN_PLACE
            if (packed_from_b(FROM) && j == VECTORS - 1) {
                VSTORE_SOME(c + j * LANES, sum, x->last);
                continue;
            }
#endif
            if (x->nontemporal) VSTREAM(c + j * LANES, sum);
            else VSTORE(c + j * LANES, sum);
        }
    }
    (void)FROM;
}

INLINE void FN(packed_multiply_tile)(const int ROWS, const int VECTORS, const int FROM, const FN(packed_tile) * x) {
    const int BY_ROWS = packed_from_rows(FROM), BY_COLUMNS = packed_from_columns(FROM);
    const int PREFETCHES_B = PREFETCH_B || packed_from_b(FROM);
    const int SIDE = packed_side(ROWS * VECTORS), bases = BY_ROWS ? (ROWS + 2) / 3 : 1;
    VEC acc[4][MAX_ROWS][MAX_VECTORS];
    UNROLL for (int i = 0; i < ROWS; i++) {
        UNROLL for (int j = 0; j < VECTORS; j++) {
            /* What is beyond the last element is not B's, and is never stored. */
            acc[0][i][j] = x->resume ? VLOAD(x->c + i * x->c_row + j * LANES) : VZERO();
            UNROLL for (int u = 1; u < SIDE; u++) acc[u][i][j] = VZERO();
        }
    }
    const int64_t end = x->blocks - 1, next = FN(packed_a_next)(ROWS, FROM, x), row = BY_ROWS ? x->a_row : 0;
    const int64_t b_row = packed_from_b(FROM) ? x->b_row : VECTORS * LANES;
    const VALUE *a[(MAX_ROWS + 2) / 3];
    int64_t t = FN(packed_multiply_small)(ROWS, VECTORS, FROM, SIDE, x, acc);
    const int32_t *col = x->col + t, *last = x->col + end;
    a[0] = FROM == FROM_STRIPS ? FN(packed_a_at)(ROWS, FROM, x, t) : NULL;
    for (; col <= last; col++, t++) {
        const OPERAND *b = x->b + *col * x->b_block;
        if (FROM != FROM_STRIPS) a[0] = FN(packed_a_at)(ROWS, FROM, x, t);
        UNROLL for (int i = 1; i < bases; i++) a[i] = a[i - 1] + 3 * row;
        const OPERAND *b_next =
            PREFETCHES_B && x->b_prefetch ? x->b + col[sat_min(x->b_prefetch, last - col)] * x->b_block : NULL;
        const VALUE *a_next = BY_ROWS      ? a[0] + x->a_prefetch * x->a_block
                              : BY_COLUMNS ? FN(packed_a_at)(ROWS, FROM, x, sat_min(t + x->a_prefetch, end))
                                           : NULL;
        const bool half = PACKED_K_STEP > 1 && FROM != FROM_STRIPS && x->half[col == last];
        int64_t n = x->steps[col == last] - half;
        for (; n >= K_UNROLL; n -= K_UNROLL) {
            if (BY_ROWS) { /* the strip's rows of a block are contiguous */
                FN(packed_prefetch)(a_next, ROWS * K_UNROLL * (int64_t)sizeof(OPERAND));
                a_next += ROWS * K_UNROLL * PACKED_K_STEP;
            }
            if (BY_COLUMNS) {
                UNROLL for (int u = 0; u < K_UNROLL; u++) FN(packed_prefetch)(a_next + u * next, 1);
                a_next += K_UNROLL * next;
            }
            if (PREFETCHES_B && b_next) {
                UNROLL for (int u = 0; u < K_UNROLL; u++)
                    FN(packed_prefetch)(b_next + u * b_row, VECTORS * VECTOR_BYTES);
                b_next += K_UNROLL * b_row;
            }
            UNROLL for (int u = 0; u < K_UNROLL; u++) {
                FN(packed_multiply_step)(ROWS, VECTORS, FROM, false, x, acc[u % SIDE], a, row, b + u * b_row);
                UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            }
            b += K_UNROLL * b_row;
        }
        for (; n > 0; n--) {
            FN(packed_multiply_step)(ROWS, VECTORS, FROM, false, x, acc[0], a, row, b);
            UNROLL for (int i = 0; i < bases; i++) a[i] += next;
            b += b_row;
        }
        if (half) FN(packed_multiply_step)(ROWS, VECTORS, FROM, true, x, acc[0], a, row, b);
    }
    FN(packed_store_tile)(ROWS, VECTORS, FROM, SIDE, x, acc);
}

/* A function for every tile, and the table by which they are found. */
#define DEFINE(ROWS, VECTORS, FROM)                                                                                    \
    static void FN(packed_##FROM##_##ROWS##x##VECTORS)(const FN(packed_tile) * x) {                                    \
        FN(packed_multiply_tile)(ROWS, VECTORS, FROM, x);                                                              \
    }
#define LIST(ROWS, VECTORS, FROM) [FROM][ROWS - 1][VECTORS - 1] = FN(packed_##FROM##_##ROWS##x##VECTORS),
#if B_IN_PLACE
#define B_TILES(X) DIRECT_TILES(X, FROM_ROWS_AND_B) DIRECT_TILES(X, FROM_COLUMNS_AND_B)
#else
#define B_TILES(X)
#endif
#define ALL_TILES(X)                                                                                                   \
    TILES(X, FROM_STRIPS)                                                                                              \
    DIRECT_TILES(X, FROM_STRIPS) DIRECT_TILES(X, FROM_ROWS) DIRECT_TILES(X, FROM_COLUMNS) B_TILES(X)

ALL_TILES(DEFINE)

static const FN(packed_kernel) FN(packed_kernels)[PACKED_FROMS][MAX_ROWS][MAX_VECTORS] = {ALL_TILES(LIST)};

#undef DEFINE
#undef LIST
#undef B_TILES
#undef ALL_TILES

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
    int from;                  /* FROM_... */
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
        int64_t at = (first * r->br + (end - first) * top + (from - first) * strip.rows) * s->steps; /* operands */
        strip.x.a = (const VALUE *)j->launch->workspace + at * PACKED_K_STEP;
        strip.from = FROM_STRIPS;
        return strip;
    }
    strip.x.a = (const VALUE *)j->values + top * r->row_step;
    strip.x.a_block = r->block_elements, strip.x.a_row = r->row_step, strip.x.a_k = r->col_step;
    strip.x.half[0] = r->bc % PACKED_K_STEP, strip.x.half[1] = (ragged ? r->k % r->bc : r->bc) % PACKED_K_STEP;
    strip.x.a_prefetch = sat_max(1, 32 / s->steps);
    if (r->block) strip.x.block = r->block + from;
    else strip.x.a += from * r->block_elements;
    strip.from =
        s->b_in_place ? (r->block ? FROM_COLUMNS_AND_B : FROM_ROWS_AND_B) : (r->block ? FROM_COLUMNS : FROM_ROWS);
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
    return j->no_epilogue && (q->cols == q->width || j->shape.b_in_place);
}

/* A part of a strip: of its chunk the blocks from t to before stop, and of each the k-steps from k to before end. */
INLINE FN(packed_tile) FN(packed_sub_tile)(const FN(packed_strip) * strip, int64_t t, int64_t stop, int64_t k,
                                           int64_t end, int64_t width) {
    FN(packed_tile) x = strip->x;
    bool last = stop == x.blocks;
    if (strip->from == FROM_STRIPS) x.a += (t * x.steps[0] + k) * strip->rows * PACKED_K_STEP;
    else if (packed_from_rows(strip->from)) x.a += t * x.a_block + k * PACKED_K_STEP;
    else x.a += k * x.a_k * PACKED_K_STEP, x.block += t;
    for (int e = 0; e < 2; e++) x.half[e] = x.half[last && e] && k < x.steps[last && e] && end >= x.steps[last && e];
    x.col += t, x.blocks = stop - t, x.b += k * (packed_from_b(strip->from) ? x.b_row : width);
    x.steps[0] = sat_min(end, x.steps[0]) - k, x.steps[1] = last ? sat_min(end, x.steps[1]) - k : x.steps[0];
    return x;
}

/* c += partial, or c = partial where there is nothing yet. */
static void FN(packed_add_part)(const FN(packed_strip) * strip, int64_t cols, int64_t width, const REAL *partial,
                                bool more) {
    int64_t step = strip->x.c_row;
    for (int64_t i = 0; i < strip->rows; i++) {
        REAL *restrict to = strip->x.c + i * step;
        const REAL *restrict from = partial + i * width;
        for (int64_t j = 0; j < cols; j++) to[j] = more ? to[j] + from[j] : from[j];
    }
}

/* A long sum, part by part: each begins with zero in `partial`, a tile of its own, and is then added to c. A part that
 * goes on in the next chunk stays in `partial`. */
static void FN(packed_multiply_parts)(const packed_shape *s, const FN(packed_strip) * strip, FN(packed_kernel) kernel,
                                      int64_t cols, int64_t width, REAL *partial) {
    for (int64_t t = 0, stop; t < strip->x.blocks; t = stop) {
        int64_t done = strip->begin + t - strip->first, in = done % s->part_blocks; /* blocks before t */
        stop = sat_min(strip->x.blocks, t - in + s->part_blocks);
        bool closes = strip->begin + stop == strip->end || stop - t + in == s->part_blocks;
        for (int64_t k = 0; k < s->steps; k += s->part_steps) {
            FN(packed_tile) x = FN(packed_sub_tile)(strip, t, stop, k, k + s->part_steps, width);
            x.c = partial, x.c_row = width, x.resume = in > 0, x.nontemporal = false;
            kernel(&x);
            if (closes) FN(packed_add_part)(strip, cols, width, partial, done > in || k > 0);
        }
    }
}

/* Where a tile reads a panel of B. */
static void FN(packed_find_b)(const FN(packed_worker) * w, const FN(packed_panel) * q, FN(packed_tile) * x) {
    const packed_job *j = w->job;
    const packed_shape *s = &j->shape;
    x->b_prefetch = s->steps <= 8 ? 2 : s->steps <= 16;
    if (!s->b_in_place) {
        x->b = w->buffer + q->before * j->state->depth, x->b_block = s->steps * q->width;
        return;
    }
    const sat_layout *b = &j->problem->b;
    x->b = (const OPERAND *)j->b + w->group / s->groups * b->batch_stride + q->j;
    x->b_row = b->row_stride, x->b_block = s->rows.bc * x->b_row, x->last = (int)(q->cols - q->width + LANES);
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
        FN(packed_find_b)(w, &q, x);
        x->c = w->pending + (strip.i - i) * s->group_columns + q.before;
        x->c_row = s->group_columns;
        x->nontemporal = false;
        if (FN(packed_stores_to_c)(j, &q)) {
            x->c = (REAL *)j->c + w->group / s->groups * l->batch_stride + strip.i * l->row_stride + q.j;
            x->c_row = l->row_stride;
            x->nontemporal = j->nontemporal && !s->b_in_place && (uintptr_t)x->c % 64 == 0 &&
                             x->c_row * (int64_t)sizeof(REAL) % 64 == 0;
        }
        FN(packed_kernel) kernel = FN(packed_kernels)[strip.from][strip.rows - 1][q.nv - 1];
        if (strip.parts) {
            /* Its rows are q.width apart. */
            REAL *partial = w->partial + (strip.i - i) * s->group_columns + q.before * strip.rows;
            FN(packed_multiply_parts)(s, &strip, kernel, s->b_in_place ? q.cols : q.width, q.width, partial);
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
