/* The skinny matmul: 1 to 16 columns. A template, included once for each element type; it reads from the micro-kernel
 * out to the loop over a block row, the epilogue and the launch. matmul_skinny_plan.h says how lanes are split.
 *
 * Threads pack B together, then each takes its share of the block rows. A block row that has more than two slices of
 * all blocks is split at places that depend on the pattern alone; its partial sums are added in order: so the result is
 * the same for any number of threads. 16-bit values are widened a few kilobytes at a time. */

#include <omp.h>

#include "kernels/cpu/common/finish_line.h"

/* ---- the micro-kernel ---- */

/* Takes the whole blocks of some block rows, one row after the other, and keeps a row's sums in registers over as many
 * blocks as it can, lane by lane. Where few rows would make every addition wait for the one before, several blocks run
 * side by side with sums of their own. What can be a constant is one: everything here is inlined into one function for
 * each split of the lanes (ga, gb, vs, by), and there again for common numbers of rows and steps. */

typedef struct FN(run) {
    const REAL *a;        /* values of the first block */
    const int64_t *block; /* where the blocks are in the values; NULL: one after the other */
    const int32_t *col;   /* block columns */
    const int64_t *ptr;   /* block row i has blocks ptr[i] - ptr[0] to ptr[i + 1] - ptr[0] of these */
    int64_t block_rows;
    bool add;            /* to what `out` holds; else it is written */
    bool prefetch;       /* operands come from beyond L2, and SKINNY_AHEAD more blocks follow */
    const REAL *b;       /* packed B */
    int64_t rows, steps; /* vectors of sums, and multiply-adds that go into each, a block */
    int64_t along;       /* PARTIAL: elements of a row of a block */
    REAL *out;
} FN(run);

typedef void (*FN(kernel))(const FN(run) * r);

/* How a kernel splits the lanes: it repeats ga elements of A and gb of B over a vector, and takes vs vectors of B. It
 * reads a block in the order in which it is stored: by rows, by columns (transposed), flat, where a vector spans rows
 * and a row has one step, or partial: by rows whose last vector is not full. */
typedef struct FN(skinny_split) {
    int ga, gb, vs;
    skinny_order by;
} FN(skinny_split);

/* What depends on the split, the rows and the steps: constants where those are. */
typedef struct FN(skinny_size) {
    int64_t a_row, a_step; /* from row to row, and from step to step, in a block */
    int64_t b_step;
    int64_t a, b;  /* elements of a block, and of a block column of packed B */
    int64_t whole; /* steps with a full vector of A */
    int tail;      /* elements of the last vector, if it is not */
} FN(skinny_size);

INLINE FN(skinny_size) FN(size_of)(FN(skinny_split) x, const FN(run) * r, int64_t rows, int64_t steps) {
    FN(skinny_size) s = {.a_row = x.ga, .a_step = x.ga, .b_step = x.gb * x.vs, .whole = steps};
    if (x.by == BY_ROWS) s.a_row = x.ga * steps;
    else if (x.by == PARTIAL) s.a_row = r->along, s.whole = steps - 1, s.tail = (int)(r->along - s.whole * x.ga);
    else s.a_step = x.ga * rows;
    s.a = x.by == PARTIAL ? rows * r->along : rows * steps * x.ga, s.b = steps * s.b_step;
    return s;
}

/* Block t of the run. */
INLINE const REAL *FN(a_at)(FN(skinny_split) x, const FN(run) * r, int64_t t, int64_t a_size) {
    return r->a + (x.by == BY_COLUMNS && r->block ? r->block[t] : t) * a_size;
}
INLINE const REAL *FN(b_at)(const FN(run) * r, int64_t t, int64_t b_size) { return r->b + r->col[t] * b_size; }

INLINE void FN(prefetch_lines)(const REAL *p, int64_t elements) {
    for (int64_t i = 0; i < elements * (int64_t)sizeof(REAL); i += 64) _mm_prefetch((const char *)p + i, _MM_HINT_T0);
}

/* Prefetches what later blocks need. The jumps through B mislead the hardware prefetcher of the values, so those are
 * prefetched too: far ahead, and only into L2, where many requests may wait; of small blocks every other line, since
 * their B needs the other requests that may be under way. The B of small blocks needs no prefetch: many of them are
 * under way at a time. */
INLINE void FN(prefetch)(FN(skinny_split) x, const FN(run) * r, int64_t t, int side, int64_t rows, int64_t steps) {
    const FN(skinny_size) s = FN(size_of)(x, r, rows, steps);
    const int64_t stream = side * s.a * (int64_t)sizeof(REAL);
#pragma GCC unroll 4
    for (int u = 0; u < side; u++) {
        if (rows * steps * x.vs >= 8) FN(prefetch_lines)(FN(b_at)(r, t + u + SKINNY_AHEAD, s.b), s.b);
        if (x.by == BY_COLUMNS && r->block) FN(prefetch_lines)(FN(a_at)(x, r, t + u + SKINNY_AHEAD, s.a), s.a);
    }
    if (x.by == BY_COLUMNS || stream < 64) return;
    const char *a = (const char *)(r->a + t * s.a) + (stream < 512 ? SKINNY_AHEAD_SMALL : SKINNY_AHEAD_BYTES);
    for (int64_t i = 0; i < stream; i += stream < 512 ? 128 : 64) _mm_prefetch(a + i, _MM_HINT_T1);
}

/* One step of `rows` rows. tail: A's vectors are not full, and only so many elements are read; else NULL. */
INLINE void FN(step)(FN(skinny_split) x, const REAL *a, int64_t a_row, const int *tail, const REAL *b, VEC *sums,
                     int rows) {
    const REAL *a3 = a + 3 * a_row, *a6 = a + 6 * a_row; /* so that addresses need no arithmetic of their own */
    VEC bv[4];
    if (rows > 3 && !__builtin_constant_p(a_row)) __asm__("" : "+r"(a3), "+r"(a6)); /* nor a register for each row */
#pragma GCC unroll 16
    for (int v = 0; v < x.vs; v++) bv[v] = VREPEAT(b + v * LANES, x.gb);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        const REAL *row = (i < 3 ? a : i < 6 ? a3 : a6) + (i < 6 ? i % 3 : i - 6) * a_row;
        VEC av = tail ? VLOAD_SOME(row, *tail) : VREPEAT(row, x.ga);
#pragma GCC unroll 16
        for (int v = 0; v < x.vs; v++) sums[i * x.vs + v] = VFMA(av, bv[v], sums[i * x.vs + v]);
    }
}

/* Steps of `side` blocks side by side. */
INLINE void FN(steps)(FN(skinny_split) x, FN(skinny_size) s, const REAL **a, const REAL **b, VEC sums[][16], int rows,
                      int side) {
    for (int64_t k = 0; k < s.whole; k++)
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) {
            FN(step)(x, a[u], s.a_row, NULL, b[u], sums[u], rows);
            a[u] += s.a_step, b[u] += s.b_step;
        }
    if (x.by != PARTIAL) return;
#pragma GCC unroll 16
    for (int u = 0; u < side; u++) FN(step)(x, a[u], s.a_row, &s.tail, b[u], sums[u], rows);
}

/* Blocks of few rows: all sums in registers over a whole block row, `side` blocks side by side. */
INLINE void FN(narrow)(FN(skinny_split) x, const FN(run) * r, int rows, int64_t steps, int side) {
    const FN(skinny_size) s = FN(size_of)(x, r, rows, steps);
    const int64_t *ptr = r->ptr;
    REAL *out = r->out;
    for (int64_t q = 0; q < r->block_rows; q++, out += rows * x.vs * LANES) {
        const int64_t end = ptr[q + 1] - ptr[0];
        int64_t t = ptr[q] - ptr[0];
        const REAL *a[4], *b[4];
        VEC sums[4][16];
#pragma GCC unroll 16
        for (int u = 0; u < side; u++)
#pragma GCC unroll 16
            for (int i = 0; i < rows * x.vs; i++) sums[u][i] = VZERO();
        for (; t + side <= end; t += side) {
#pragma GCC unroll 16
            for (int u = 0; u < side; u++) a[u] = FN(a_at)(x, r, t + u, s.a), b[u] = FN(b_at)(r, t + u, s.b);
            if (r->prefetch) FN(prefetch)(x, r, t, side, rows, steps);
            FN(steps)(x, s, a, b, sums, rows, side);
        }
        for (; t < end; t++) {
            a[0] = FN(a_at)(x, r, t, s.a), b[0] = FN(b_at)(r, t, s.b);
            FN(steps)(x, s, a, b, sums, rows, 1);
        }
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) {
            VEC sum = sums[0][i];
#pragma GCC unroll 16
            for (int u = 1; u < side; u++) sum = VADD(sum, sums[u][i]);
            VSTORE(out + i * LANES, r->add ? VADD(VLOAD(out + i * LANES), sum) : sum);
        }
    }
}

/* `rows` rows of one block of a taller kind: sums live in memory between blocks. A block that is deeper than a part of
 * a sum is several: each begins with zero and is added. */
INLINE void FN(tile)(FN(skinny_split) x, FN(skinny_size) s, const REAL *a, const REAL *b, REAL *out, int rows,
                     int64_t steps) {
    VEC sums[16];
    const bool whole = steps <= SAT_SUM_PART;
    for (int64_t k = 0, end; k < steps; k = end) {
        end = whole ? steps : sat_min(steps, k + SAT_SUM_PART);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) sums[i] = whole ? VLOAD(out + i * LANES) : VZERO();
        const int64_t full = x.by == PARTIAL ? sat_min(end, s.whole) : end;
        for (int64_t e = k; e < full; e++, a += s.a_step, b += s.b_step) FN(step)(x, a, s.a_row, NULL, b, sums, rows);
        if (x.by == PARTIAL && end == steps) FN(step)(x, a, s.a_row, &s.tail, b, sums, rows);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++)
            VSTORE(out + i * LANES, whole ? sums[i] : VADD(VLOAD(out + i * LANES), sums[i]));
    }
}

INLINE void FN(tall)(FN(skinny_split) x, const FN(run) * r, int64_t steps) {
    const FN(skinny_size) s = FN(size_of)(x, r, r->rows, steps);
    const int64_t line = x.vs * LANES, size = r->rows * line;
    const int most = 8 / x.vs;
    REAL *out = r->out;
    for (int64_t q = 0; q < r->block_rows; q++, out += size) {
        if (!r->add) memset(out, 0, (size_t)size * sizeof(REAL));
        for (int64_t t = r->ptr[q] - r->ptr[0]; t < r->ptr[q + 1] - r->ptr[0]; t++) {
            const REAL *a = FN(a_at)(x, r, t, s.a), *b = FN(b_at)(r, t, s.b);
            if (r->prefetch) FN(prefetch)(x, r, t, 1, r->rows, steps);
            int64_t i = 0;
            for (; i + most <= r->rows; i += most) FN(tile)(x, s, a + i * s.a_row, b, out + i * line, most, steps);
            if (x.by == PARTIAL && most >= 4 && i + most / 2 <= r->rows) {
                FN(tile)(x, s, a + i * s.a_row, b, out + i * line, most / 2, steps);
                i += most / 2;
            }
            for (; i < r->rows; i++) FN(tile)(x, s, a + i * s.a_row, b, out + i * line, 1, steps);
        }
    }
}

/* Rows whose last vector is not full: all sums in registers where they fit. */
INLINE void FN(partial)(FN(skinny_split) x, const FN(run) * r, int64_t steps) {
#define SKINNY_PARTIAL(count)                                                                                          \
    if (r->rows == (count) && (count)*x.vs <= 12) {                                                                    \
        FN(narrow)(x, r, count, steps, (count)*x.vs <= 3 ? 4 : (count)*x.vs <= 6 ? 2 : 1);                             \
        return;                                                                                                        \
    }
    SKINNY_PARTIAL(1)
    SKINNY_PARTIAL(2)
    SKINNY_PARTIAL(3)
    SKINNY_PARTIAL(4)
    SKINNY_PARTIAL(5)
    SKINNY_PARTIAL(6)
    SKINNY_PARTIAL(7)
    SKINNY_PARTIAL(8)
#undef SKINNY_PARTIAL
    FN(tall)(x, r, steps);
}

INLINE void FN(any)(FN(skinny_split) x, const FN(run) * r) {
    const int64_t rows = r->rows, steps = x.by == FLAT ? 1 : r->steps;
    const int side = x.vs > 1 ? 1 : 2;
    if (steps > SAT_SUM_PART) FN(tall)(x, r, steps);
    else if (x.by == PARTIAL && steps == 1) FN(partial)(x, r, 1);
    else if (x.by == PARTIAL) FN(partial)(x, r, steps);
    else if (rows == 1 && steps == 1) FN(narrow)(x, r, 1, 1, 4);
    else if (rows == 1) FN(narrow)(x, r, 1, steps, 4);
    else if (rows == 2 && steps == 1) FN(narrow)(x, r, 2, 1, 2 * side);
    else if (rows == 2 && steps == 2) FN(narrow)(x, r, 2, 2, 2 * side);
    else if (rows == 2) FN(narrow)(x, r, 2, steps, 2);
    else if (rows == 4 && steps == 1) FN(narrow)(x, r, 4, 1, side);
    else if (rows == 4 && steps == 2) FN(narrow)(x, r, 4, 2, side);
    else if (rows == 4 && steps == 4) FN(narrow)(x, r, 4, 4, side);
    else if (rows == 4) FN(narrow)(x, r, 4, steps, side);
    else if (rows == 8 && steps == 8 && x.vs == 1) FN(narrow)(x, r, 8, 8, 1);
    else if (rows == 8 && x.vs == 1) FN(narrow)(x, r, 8, steps, 1);
    else if (rows == 3 && x.ga == 1) FN(narrow)(x, r, 3, steps, side);
    else if (rows == 5 && x.ga == 1 && x.vs == 1) FN(narrow)(x, r, 5, steps, 1);
    else if (rows == 6 && x.ga <= 2 && x.vs == 1) FN(narrow)(x, r, 6, steps, 1);
    else if (rows == 16 && steps == 1 && x.vs == 1 && VECTOR_BYTES == 64) FN(narrow)(x, r, 16, 1, 1); /* 32 registers */
    else if (rows == 16 && steps == 8 && x.vs == 1 && VECTOR_BYTES == 64) FN(narrow)(x, r, 16, 8, 1);
    else if (steps == 16 && x.ga == 1) FN(tall)(x, r, 16);
    else FN(tall)(x, r, steps);
}

/* ---- a product ---- */

typedef struct FN(job) {
    const sat_launch *l;
    const sat_problem *p;
    sat_rows r;
    skinny_plan s;
    FN(kernel) kernel;
    REAL *b, *partials;
} FN(job);

typedef struct FN(buffers) { /* a thread's own */
    REAL *sums, *part_sums, *scratch;
    int64_t first, rows; /* block rows whose sums wait to be stored */
} FN(buffers);

/* ---- packing B ---- */

/* One block column of `inside` rows, `together` rows at a time: of those column by column, every element `copies`
 * times. */
INLINE void FN(pack_column)(const sat_problem *p, const void *b, int64_t k0, int64_t inside, REAL *to, int64_t b_k,
                            int64_t together, int64_t copies) {
    int64_t rs = p->b.row_stride, cs = p->b.col_stride;
    for (int64_t k = 0; k < inside; k += together, to += b_k)
        for (int64_t n = 0; n < p->n; n++)
            for (int64_t i = 0; i < sat_min(together, inside - k); i++) {
                REAL x = FN(widen)(p->b_dtype, b, (k0 + k + i) * rs + n * cs);
                for (int64_t c = 0; c < copies; c++) to[(n * together + i) * copies + c] = x;
            }
}

static void FN(pack)(const FN(job) * j, int thread, int threads) {
    const sat_problem *p = j->p;
    const skinny_plan *s = &j->s;
    const void *b = j->l->operands[1];
    int64_t bc = j->r.bc, columns = (j->r.k + bc - 1) / bc, b_k = s->gb * s->vs;
    bool transposed = p->matmul.transpose == SAT_TRANSPOSE;
    int64_t together = transposed ? 1 : s->g, copies = transposed && p->n > 1 ? s->g : 1;
    for (int64_t c = columns * thread / threads; c < columns * (thread + 1) / threads; c++) {
        REAL *to = j->b + c * s->b_step;
        int64_t inside = sat_min(bc, j->r.k - c * bc);
        if (p->n < s->np || inside < bc || s->by == PARTIAL) memset(to, 0, (size_t)s->b_step * sizeof(REAL));
        if (copies > 1) FN(pack_column)(p, b, c * bc, inside, to, b_k, 1, copies);
        else if (together == 1) FN(pack_column)(p, b, c * bc, inside, to, b_k, 1, 1);
        else FN(pack_column)(p, b, c * bc, inside, to, b_k, together, 1);
    }
}

/* ---- the loop over a block row ---- */

/* A block that reaches beyond the matrix, with zeros in place of its padding. */
static void FN(copy_edge)(const FN(job) * j, int64_t block, REAL *to) {
    const sat_rows *r = &j->r;
    memset(to, 0, (size_t)r->block_elements * sizeof(REAL));
    for (int64_t i = 0; i < r->br; i++)
        for (int64_t k = 0; k < j->s.edge_k; k++) {
            int64_t at = i * r->row_step + k * r->col_step;
            to[at] = FN(widen)(j->p->a_dtype, j->l->operands[0], block * r->block_elements + at);
        }
}

/* Multiplies the stored blocks of some block rows, whose blocks ptr[0] to ptr[block_rows] follow each other; none
 * reaches beyond the matrix. */
static void FN(multiply_whole)(const FN(job) * j, const FN(buffers) * m, const int64_t *ptr, int64_t block_rows,
                               bool add, REAL *out) {
    const sat_rows *r = &j->r;
    const skinny_plan *s = &j->s;
    const int64_t begin = *ptr, blocks = ptr[block_rows] - begin;
    const sat_dtype t = j->p->a_dtype;
    FN(run) run = {.col = r->col + begin, .ptr = ptr, .block_rows = block_rows, .add = add, .b = j->b, .out = out};
    run.rows = s->rows, run.steps = s->steps, run.along = r->bc;
    run.prefetch = s->beyond_l2 && begin + blocks + SKINNY_AHEAD <= r->ptr[r->count];
    if (sat_dtype_size(t) == sizeof(REAL)) {
        run.a = (const REAL *)j->l->operands[0] + (r->block ? 0 : begin * r->block_elements);
        run.block = r->block ? r->block + begin : NULL;
    } else {
        run.a = m->scratch;
        const int64_t copies = r->block ? blocks : 1, size = r->block_elements * (r->block ? 1 : blocks);
        for (int64_t i = 0; i < copies; i++) FN(widen_all)
        (t, sat_at(t, j->l->operands[0], sat_block_of(r, begin + i) * r->block_elements), m->scratch + i * size, size);
    }
    j->kernel(&run);
}

/* Adds stored blocks [begin, end) of one block row, one part of its sum, to out. */
static void FN(multiply_part)(const FN(job) * j, const FN(buffers) * m, int64_t begin, int64_t end, REAL *out) {
    const sat_rows *r = &j->r;
    const int64_t whole = end - (end > begin && r->col[end - 1] == j->s.edge);
    for (int64_t t = begin, some; t < whole; t += some) {
        some = sat_min(j->s.together, whole - t);
        FN(multiply_whole)(j, m, (const int64_t[]){t, t + some}, 1, true, out);
    }
    if (whole == end) return;
    FN(copy_edge)(j, sat_block_of(r, whole), m->scratch);
    const FN(run) run = {.a = m->scratch,
                         .col = r->col + whole,
                         .ptr = (const int64_t[]){0, 1},
                         .block_rows = 1,
                         .add = true,
                         .b = j->b,
                         .rows = j->s.rows,
                         .steps = j->s.steps,
                         .along = r->bc,
                         .out = out};
    j->kernel(&run);
}

/* Adds stored blocks [begin, end) of one block row to out. A long sum is made of parts. */
static void FN(multiply_blocks)(const FN(job) * j, const FN(buffers) * m, int64_t begin, int64_t end, REAL *out) {
    const int64_t some = j->s.part_blocks, size = j->s.sums;
    if (end - begin <= some) {
        FN(multiply_part)(j, m, begin, end, out);
        return;
    }
    for (int64_t t = begin; t < end; t += some) {
        memset(m->part_sums, 0, (size_t)size * sizeof(REAL));
        FN(multiply_part)(j, m, t, sat_min(end, t + some), m->part_sums);
        for (int64_t e = 0; e < size; e++) out[e] += m->part_sums[e];
    }
}

/* ---- the epilogue ---- */

/* Adds up `add` neighbouring lanes of some vectors, in place. */
INLINE void FN(add_lanes)(REAL *sums, int64_t vectors, int add) {
    REAL *to = sums;
    for (int64_t i = 0; i < vectors; i += add, to += LANES) {
        VEC x[16];
#pragma GCC unroll 16
        for (int v = 0; v < add; v++) x[v] = i + v < vectors ? VLOAD(sums + (i + v) * LANES) : VZERO();
#pragma GCC unroll 16
        for (int half = add / 2; half > 0; half /= 2)
#pragma GCC unroll 16
            for (int v = 0; v < half; v++) x[v] = VPAIRS(x[2 * v], x[2 * v + 1]);
        VSTORE(to, x[0]);
    }
}

/* Transposed: the rows of a vector of sums, which are columns apart, one after the other, in place. */
static void FN(sort_lanes)(const skinny_plan *s, REAL *sums, int64_t rows, int64_t n) {
    REAL x[4 * LANES], *to = sums;
    for (int64_t i = 0; i < rows; i += s->rows_a_vec, sums += s->vs * LANES) {
        memcpy(x, sums, (size_t)(s->vs * LANES) * sizeof(REAL));
        for (int64_t e = 0; e < sat_min(s->rows_a_vec, rows - i); e++, to += n)
            for (int64_t c = 0; c < n; c++) to[c] = x[e + c * s->g];
    }
}

/* Stores the rows of C that begin at `first`. Overwrites the sums. */
static void FN(store_block_rows)(const FN(job) * j, REAL *sums, int64_t first, int64_t rows) {
    const skinny_plan *s = &j->s;
    int64_t vectors, step = s->lanes * s->vs / (s->add * s->rows_a_vec); /* between rows, once lanes are added up */
    rows = sat_min(rows, j->p->m - first), vectors = (rows + s->rows_a_vec - 1) / s->rows_a_vec * s->vs;
    switch (s->add) {
    case 2: FN(add_lanes)(sums, vectors, 2); break;
    case 4: FN(add_lanes)(sums, vectors, 4); break;
    case 8: FN(add_lanes)(sums, vectors, sat_min(8, LANES)); break;
    case 16: FN(add_lanes)(sums, vectors, sat_min(16, LANES)); break;
    }
    if (s->rows_a_vec > 1 && s->by == BY_COLUMNS) FN(sort_lanes)(s, sums, rows, j->p->n), step = j->p->n;
    FN(finish_rows)(j->l, sums, step, first, rows);
}

/* ---- a thread's share ---- */

static void FN(flush)(const FN(job) * j, FN(buffers) * m) {
    if (m->rows) FN(store_block_rows)(j, m->sums, m->first * j->r.br, m->rows * j->r.br);
    m->rows = 0;
}

static void FN(multiply_row)(const FN(job) * j, FN(buffers) * m, int64_t row) {
    if (m->rows == 0) m->first = row;
    REAL *out = m->sums + m->rows * j->s.sums;
    memset(out, 0, (size_t)j->s.sums * sizeof(REAL));
    FN(multiply_blocks)(j, m, j->r.ptr[row], j->r.end[row], out);
    m->rows++;
    if ((m->rows + 1) * j->s.sums > j->s.pending) FN(flush)(j, m);
}

/* A long block row is split into slices; the sums of slice i are a partial sum of their own. */
static int64_t FN(slices_of)(const FN(job) * j, int64_t row) {
    int64_t n = j->r.end[row] - j->r.ptr[row];
    return j->s.slices && n >= 2 * j->s.slice_blocks ? n / j->s.slice_blocks : 1;
}

static REAL *FN(partial_of)(const FN(job) * j, int64_t row, int64_t i) {
    return j->partials + (j->r.ptr[row] / j->s.slice_blocks + i) * j->s.sums;
}

/* How many block rows from `row` on are multiplied by one call: rows of the share that are not split, are one part
 * each, do not reach beyond the matrix, and together fit into the buffers. */
static int64_t FN(rows_together)(const FN(job) * j, const FN(buffers) * m, const skinny_share *s, int64_t row) {
    const int64_t *ptr = j->r.ptr, first = row, begin = ptr[row];
    const int64_t room = (j->s.pending - m->rows * j->s.sums) / j->s.sums, last = sat_min(j->r.count, row + room);
    for (; row < last && skinny_cost(&j->r, row) < s->to; row++) {
        const int64_t end = ptr[row + 1], blocks = end - ptr[row];
        if (j->r.end[row] != end) break; /* a faulty row, whose blocks are skipped */
        if (blocks > j->s.part_blocks || end - begin > j->s.together || FN(slices_of)(j, row) > 1) break;
        if (blocks > 0 && j->r.col[end - 1] == j->s.edge) break;
    }
    return row - first;
}

static void FN(multiply_share)(const FN(job) * j, FN(buffers) * m, const skinny_share *s) {
    int64_t row = s->first_row;
    while (row < j->r.count && skinny_cost(&j->r, row) < s->to) {
        int64_t slices = FN(slices_of)(j, row), begin = j->r.ptr[row], n = j->r.end[row] - begin;
        if (slices == 1 && skinny_in_share(s, skinny_cost(&j->r, row))) {
            const int64_t rows = FN(rows_together)(j, m, s, row);
            if (m->rows == 0) m->first = row;
            if (rows == 0) {
                FN(multiply_row)(j, m, row++);
                continue;
            }
            FN(multiply_whole)(j, m, j->r.ptr + row, rows, false, m->sums + m->rows * j->s.sums);
            m->rows += rows, row += rows;
            if ((m->rows + 1) * j->s.sums > j->s.pending) FN(flush)(j, m);
            continue;
        }
        if (slices > 1) FN(flush)(j, m);
        for (int64_t i = 0; i < slices && slices > 1; i++) {
            int64_t from = begin + n * i / slices, to = begin + n * (i + 1) / slices;
            if (!skinny_in_share(s, from + row)) continue;
            memset(FN(partial_of)(j, row, i), 0, (size_t)j->s.sums * sizeof(REAL));
            FN(multiply_blocks)(j, m, from, to, FN(partial_of)(j, row, i));
        }
        row++;
    }
    FN(flush)(j, m);
}

/* The split reduction: adds up the partial sums of split rows, in order. */
static void FN(reduce_share)(const FN(job) * j, const skinny_share *s) {
    for (int64_t row = s->first_row; row < j->r.count && skinny_cost(&j->r, row) < s->to; row++) {
        int64_t slices = FN(slices_of)(j, row);
        if (slices == 1 || !skinny_in_share(s, skinny_cost(&j->r, row))) continue;
        REAL *sum = FN(partial_of)(j, row, 0);
        for (int64_t i = 1; i < slices; i++)
            for (int64_t e = 0; e < j->s.sums; e++) sum[e] += FN(partial_of)(j, row, i)[e];
        FN(store_block_rows)(j, sum, row * j->r.br, j->r.br);
    }
}

/* ---- launch ---- */

/* The kernel for each split of the lanes that skinny_plan_lanes makes. */
#define SKINNY_KERNEL(ga, gb, vs, by)                                                                                  \
    static void FN(kernel_##ga##_##gb##_##vs##_##by)(const FN(run) * r) {                                              \
        FN(any)((FN(skinny_split)){ga, gb, vs, by}, r);                                                                \
    }
SKINNY_SPLITS(SKINNY_KERNEL)

static FN(kernel) FN(pick)(const skinny_plan *s) {
    static const struct {
        FN(skinny_split) split;
        FN(kernel) kernel;
    } table[] = {
#define SKINNY_ENTRY(ga, gb, vs, by) {{ga, gb, vs, by}, FN(kernel_##ga##_##gb##_##vs##_##by)},
        SKINNY_SPLITS(SKINNY_ENTRY)};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const FN(skinny_split) *x = &table[i].split;
        if (x->ga == s->ga && x->gb == s->gb && x->vs == s->vs && x->by == s->by) return table[i].kernel;
    }
    return NULL;
}

static sat_status FN(launch)(const sat_launch *l) {
    FN(job) j = {.l = l, .p = l->problem, .r = sat_op_rows(l->problem, l->pattern)};
    if (j.p->n == 0 || j.p->m == 0) return SAT_OK;
    j.s = skinny_make_plan(j.p, l->pattern);
    j.kernel = FN(pick)(&j.s);
    if (!j.kernel) return sat_fail(SAT_UNSUPPORTED, "no kernel splits a vector this way");
    j.b = l->workspace;
    j.partials = j.b + j.s.b_size;
    REAL *own = j.partials + j.s.slices * j.s.sums;
    int wanted = skinny_threads(l);
#pragma omp parallel num_threads(wanted) if (wanted > 1)
    {
        int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        FN(buffers) m = {.sums = own + thread * (j.s.pending + j.s.part_sums + j.s.scratch)};
        m.part_sums = m.sums + j.s.pending, m.scratch = m.part_sums + j.s.part_sums;
        skinny_share s = skinny_share_of(&j.r, thread, threads);
        FN(pack)(&j, thread, threads);
#pragma omp barrier
        FN(multiply_share)(&j, &m, &s);
        if (j.s.slices) {
#pragma omp barrier
            FN(reduce_share)(&j, &s);
        }
    }
    return SAT_OK;
}

#undef FN
#undef SKINNY_KERNEL
#undef SKINNY_ENTRY
