/* The skinny matmul: 1 to 16 columns. A template, included once for each element type; it reads from the micro-kernel
 * out to the loop over a block row, the epilogue and the launch. matmul_skinny_plan.h says how lanes are split.
 *
 * Threads pack B together, then each takes its share of the block rows. A block row that has more than two slices of
 * all blocks is split at places that depend on the pattern alone; its partial sums are added in order: so the result is
 * the same for any number of threads. 16-bit values are widened a few kilobytes at a time. */

#include <omp.h>

/* ---- the micro-kernel ---- */

/* Takes a run of whole blocks of one block row, keeps its sums in registers over as many of them as it can, and adds
 * them, lane by lane, to r->out. Where few rows would make every addition wait for the one before, several blocks run
 * side by side with sums of their own. What can be a constant is one: everything here is inlined into one function for
 * each split of the lanes (ga, gb, vs, by), and there again for common numbers of rows and steps. */

typedef struct FN(run) {
    const REAL *a;        /* values */
    const int64_t *block; /* where the blocks are in the values; NULL: one after the other */
    const int32_t *col;   /* block columns */
    int64_t count;        /* blocks */
    bool prefetch;        /* operands come from beyond L2, and SKINNY_AHEAD more blocks follow */
    const REAL *b;        /* packed B */
    int64_t rows, steps;  /* vectors of sums, and multiply-adds that go into each, a block */
    REAL *out;
} FN(run);

typedef void (*FN(kernel))(const FN(run) * r);

/* How a kernel splits the lanes: it repeats ga elements of A and gb of B over a vector, and takes vs vectors of B. It
 * reads a block in the order in which it is stored: by rows, by columns (transposed), or flat, where a vector spans
 * rows and a row has one step. */
typedef struct FN(skinny_split) {
    int ga, gb, vs;
    skinny_order by;
} FN(skinny_split);

INLINE int64_t FN(a_row)(FN(skinny_split) x, int64_t steps) { return x.by == BY_ROWS ? x.ga * steps : x.ga; }
INLINE int64_t FN(a_step)(FN(skinny_split) x, int64_t rows) { return x.by == BY_ROWS ? x.ga : x.ga * rows; }

/* Elements of a block and of a block column of packed B: constants where rows and steps are. */
INLINE int64_t FN(a_size)(FN(skinny_split) x, int64_t rows, int64_t steps) { return rows * steps * x.ga; }
INLINE int64_t FN(b_size)(FN(skinny_split) x, int64_t steps) { return steps * x.gb * x.vs; }

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
    const int64_t a_size = FN(a_size)(x, rows, steps), b_size = FN(b_size)(x, steps);
    const int64_t stream = side * a_size * (int64_t)sizeof(REAL);
#pragma GCC unroll 4
    for (int u = 0; u < side; u++) {
        if (rows * steps * x.vs >= 8) FN(prefetch_lines)(FN(b_at)(r, t + u + SKINNY_AHEAD, b_size), b_size);
        if (x.by == BY_COLUMNS && r->block) FN(prefetch_lines)(FN(a_at)(x, r, t + u + SKINNY_AHEAD, a_size), a_size);
    }
    if (x.by == BY_COLUMNS || stream < 64) return;
    const char *a = (const char *)(r->a + t * a_size) + (stream < 512 ? SKINNY_AHEAD_SMALL : SKINNY_AHEAD_BYTES);
    for (int64_t i = 0; i < stream; i += stream < 512 ? 128 : 64) _mm_prefetch(a + i, _MM_HINT_T1);
}

/* One step of `rows` rows. */
INLINE void FN(step)(FN(skinny_split) x, const REAL *a, int64_t a_row, const REAL *b, VEC *sums, int rows) {
    const REAL *a3 = a + 3 * a_row, *a6 = a + 6 * a_row; /* so that addresses need no arithmetic of their own */
    VEC bv[4];
#pragma GCC unroll 16
    for (int v = 0; v < x.vs; v++) bv[v] = VREPEAT(b + v * LANES, x.gb);
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        VEC av = VREPEAT((i < 3 ? a : i < 6 ? a3 : a6) + (i < 6 ? i % 3 : i - 6) * a_row, x.ga);
#pragma GCC unroll 16
        for (int v = 0; v < x.vs; v++) sums[i * x.vs + v] = VFMA(av, bv[v], sums[i * x.vs + v]);
    }
}

/* Blocks of few rows: all sums in registers over the whole run, `side` blocks side by side. */
INLINE void FN(narrow)(FN(skinny_split) x, const FN(run) * r, int rows, int64_t steps, int side) {
    VEC sums[4][16];
    const int64_t a_row = FN(a_row)(x, steps), a_step = FN(a_step)(x, rows), b_k = x.gb * x.vs, count = r->count;
    const int64_t a_size = FN(a_size)(x, rows, steps), b_size = FN(b_size)(x, steps);
#pragma GCC unroll 16
    for (int u = 0; u < side; u++)
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) sums[u][i] = VZERO();
    int64_t t = 0;
    for (; t + side <= count; t += side) {
        const REAL *a[4], *b[4];
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) a[u] = FN(a_at)(x, r, t + u, a_size), b[u] = FN(b_at)(r, t + u, b_size);
        if (r->prefetch) FN(prefetch)(x, r, t, side, rows, steps);
        for (int64_t k = 0; k < steps; k++)
#pragma GCC unroll 16
            for (int u = 0; u < side; u++) {
                FN(step)(x, a[u], a_row, b[u], sums[u], rows);
                a[u] += a_step, b[u] += b_k;
            }
    }
    for (; t < count; t++) {
        const REAL *a = FN(a_at)(x, r, t, a_size), *b = FN(b_at)(r, t, b_size);
        for (int64_t k = 0; k < steps; k++, a += a_step, b += b_k) FN(step)(x, a, a_row, b, sums[0], rows);
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows * x.vs; i++) {
        VEC sum = VLOAD(r->out + i * LANES);
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) sum = VADD(sum, sums[u][i]);
        VSTORE(r->out + i * LANES, sum);
    }
}

/* `rows` rows of one block of a taller kind: sums live in memory between blocks. A block that is deeper than a part of
 * a sum is several: each begins with zero and is added. */
INLINE void FN(tile)(FN(skinny_split) x, const REAL *a, int64_t a_row, int64_t a_step, const REAL *b, REAL *out,
                     int rows, int64_t steps) {
    VEC sums[16];
    const bool whole = steps <= SAT_SUM_PART;
    for (int64_t k = 0, end; k < steps; k = end) {
        end = whole ? steps : sat_min(steps, k + SAT_SUM_PART);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++) sums[i] = whole ? VLOAD(out + i * LANES) : VZERO();
        for (int64_t e = k; e < end; e++, a += a_step, b += x.gb * x.vs) FN(step)(x, a, a_row, b, sums, rows);
#pragma GCC unroll 16
        for (int i = 0; i < rows * x.vs; i++)
            VSTORE(out + i * LANES, whole ? sums[i] : VADD(VLOAD(out + i * LANES), sums[i]));
    }
}

INLINE void FN(tall)(FN(skinny_split) x, const FN(run) * r, int64_t steps) {
    const int64_t a_row = FN(a_row)(x, steps), a_step = FN(a_step)(x, r->rows), out = x.vs * LANES;
    const int64_t a_size = FN(a_size)(x, r->rows, steps), b_size = FN(b_size)(x, steps);
    const int most = 8 / x.vs;
    for (int64_t t = 0; t < r->count; t++) {
        const REAL *a = FN(a_at)(x, r, t, a_size), *b = FN(b_at)(r, t, b_size);
        if (r->prefetch) FN(prefetch)(x, r, t, 1, r->rows, steps);
        int64_t i = 0;
        for (; i + most <= r->rows; i += most)
            FN(tile)(x, a + i * a_row, a_row, a_step, b, r->out + i * out, most, steps);
        for (; i < r->rows; i++) FN(tile)(x, a + i * a_row, a_row, a_step, b, r->out + i * out, 1, steps);
    }
}

INLINE void FN(any)(FN(skinny_split) x, const FN(run) * r) {
    const int64_t rows = r->rows, steps = x.by == FLAT ? 1 : r->steps;
    const int side = x.vs > 1 ? 1 : 2;
    if (steps > SAT_SUM_PART) FN(tall)(x, r, steps);
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
        if (p->n < s->np || inside < bc) memset(to, 0, (size_t)s->b_step * sizeof(REAL));
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

/* Adds stored blocks [begin, end) of one block row, one part of its sum, to out. */
static void FN(multiply_part)(const FN(job) * j, const FN(buffers) * m, int64_t begin, int64_t end, REAL *out) {
    const sat_rows *r = &j->r;
    const skinny_plan *s = &j->s;
    FN(run) run = {.b = j->b, .rows = s->rows, .steps = s->steps, .out = out};
    run.prefetch = s->beyond_l2 && end + SKINNY_AHEAD <= r->ptr[r->count];
    int64_t whole = end - (end > begin && r->col[end - 1] == j->s.edge);
    if (sat_dtype_size(j->p->a_dtype) == sizeof(REAL)) {
        const REAL *values = j->l->operands[0];
        run.a = values + (r->block ? 0 : begin * r->block_elements);
        run.block = r->block ? r->block + begin : NULL;
        run.col = r->col + begin, run.count = whole - begin;
        if (run.count > 0) j->kernel(&run);
    } else {
        int64_t batch = sat_max(1, SKINNY_WIDEN / r->block_elements);
        run.a = m->scratch;
        for (int64_t t = begin; t < whole; t += batch) {
            run.col = r->col + t, run.count = sat_min(batch, whole - t);
            for (int64_t i = 0; i < (r->block ? run.count : 1); i++) FN(widen_all)
            (j->p->a_dtype, sat_at(j->p->a_dtype, j->l->operands[0], sat_block_of(r, t + i) * r->block_elements),
             m->scratch + i * r->block_elements, r->block_elements * (r->block ? 1 : run.count));
            j->kernel(&run);
        }
    }
    if (whole == end) return;
    FN(copy_edge)(j, sat_block_of(r, whole), m->scratch);
    run.a = m->scratch, run.block = NULL, run.col = r->col + whole, run.count = 1, run.prefetch = false;
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

/* One row of C from its sums. */
static void FN(store_row)(const FN(job) * j, const REAL *sum, int64_t row) {
    const sat_problem *p = j->p;
    void *c = j->l->operands[2];
    REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    REAL bias = p->matmul.bias == SAT_BIAS_ROW ? FN(widen)(p->c_dtype, j->l->operands[3], row) : 0;
    int64_t at = row * p->c.row_stride, step = p->c.col_stride;
    if (sat_dtype_size(p->c_dtype) == sizeof(REAL) &&
        p->matmul.activation == SAT_ACT_NONE) { /* no rounding, no branches */
        REAL *to = (REAL *)c + at;
        if (beta == 0)
            for (int64_t n = 0; n < p->n; n++) to[n * step] = alpha * sum[n] + bias;
        else
            for (int64_t n = 0; n < p->n; n++) to[n * step] = alpha * sum[n] + beta * to[n * step] + bias;
        return;
    }
    for (int64_t n = 0; n < p->n; n++, at += step) {
        REAL x = alpha * sum[n] + bias;
        if (beta != 0) x += beta * FN(widen)(p->c_dtype, c, at);
        sat_store(p->c_dtype, c, at, FN(sat_act)(p->matmul.activation, x));
    }
}

/* Adds up each sum's lanes: columns are lane_n lanes apart, rows that share a vector lane_i. */
INLINE void FN(store_rows)(const FN(job) * j, const REAL *sums, int64_t first, int64_t rows, int add) {
    const skinny_plan *s = &j->s;
    for (int64_t i = 0; i < rows; i += s->rows_a_vec, sums += s->vs * s->lanes)
        for (int64_t e = 0; e < sat_min(s->rows_a_vec, rows - i); e++) {
            REAL sum[SKINNY_MAX_N];
            for (int64_t n = 0; n < j->p->n; n++) {
                const REAL *lane = sums + e * s->lane_i + n * s->lane_n;
                REAL x = lane[0];
                for (int k = 1; k < add; k++) x += lane[k];
                sum[n] = x;
            }
            FN(store_row)(j, sum, first + i + e);
        }
}

/* Stores the rows of C that begin at `first`. */
static void FN(store_block_rows)(const FN(job) * j, const REAL *sums, int64_t first, int64_t rows) {
    rows = sat_min(rows, j->p->m - first);
    switch (j->s.add) {
    case 1: FN(store_rows)(j, sums, first, rows, 1); break;
    case 2: FN(store_rows)(j, sums, first, rows, 2); break;
    case 4: FN(store_rows)(j, sums, first, rows, 4); break;
    case 8: FN(store_rows)(j, sums, first, rows, 8); break;
    default: FN(store_rows)(j, sums, first, rows, 16); break;
    }
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
    FN(multiply_blocks)(j, m, j->r.ptr[row], j->r.ptr[row + 1], out);
    m->rows++;
    if ((m->rows + 1) * j->s.sums > j->s.pending) FN(flush)(j, m);
}

/* A long block row is split into slices; the sums of slice i are a partial sum of their own. */
static int64_t FN(slices_of)(const FN(job) * j, int64_t row) {
    int64_t n = j->r.ptr[row + 1] - j->r.ptr[row];
    return j->s.slices && n >= 2 * j->s.slice_blocks ? n / j->s.slice_blocks : 1;
}

static REAL *FN(partial_of)(const FN(job) * j, int64_t row, int64_t i) {
    return j->partials + (j->r.ptr[row] / j->s.slice_blocks + i) * j->s.sums;
}

static void FN(multiply_share)(const FN(job) * j, FN(buffers) * m, const skinny_share *s) {
    for (int64_t row = s->first_row; row < j->r.count && skinny_cost(&j->r, row) < s->to; row++) {
        int64_t slices = FN(slices_of)(j, row), begin = j->r.ptr[row], n = j->r.ptr[row + 1] - begin;
        if (slices == 1) {
            if (skinny_in_share(s, skinny_cost(&j->r, row))) FN(multiply_row)(j, m, row);
            continue;
        }
        FN(flush)(j, m);
        for (int64_t i = 0; i < slices; i++) {
            int64_t from = begin + n * i / slices, to = begin + n * (i + 1) / slices;
            if (!skinny_in_share(s, from + row)) continue;
            memset(FN(partial_of)(j, row, i), 0, (size_t)j->s.sums * sizeof(REAL));
            FN(multiply_blocks)(j, m, from, to, FN(partial_of)(j, row, i));
        }
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
