/* The matmul by rows of single elements ("CSR"), from thin blocks too; a template, included once for each element type.
 *
 * A row of C is the sum of rows of B, each times one stored element. Its sums stay in vectors, up to CSR_VECTORS of
 * them at a time, over some of the row's entries, whose columns and values stand side by side: where blocks are single
 * elements as they are stored, else they are copied first. So a sum is made of parts, as SAT_SUM_PART asks. B has to
 * have rows without gaps in the type that is computed in; another one is copied. A single column is gathered. Threads
 * have whole block rows, about as many entries each. */

#include "kernels/cpu/common/finish_line.h"

/* ---- the micro-kernel: entries of some rows ---- */

typedef struct FN(csr_run) {
    const int64_t *ptr; /* row i has entries ptr[i] - ptr[0] to ptr[i + 1] - ptr[0] of these */
    int64_t rows;
    const int32_t *k; /* rows of B, */
    const REAL *value;
    const REAL *b;
    int64_t stride;
    int tail;     /* elements of a row's last vector */
    bool add;     /* to what `out` holds; else alpha*sum + bias is written */
    REAL *out;    /* rows of sums, or of C, */
    int64_t down; /* so far apart */
    REAL alpha;
    const REAL *bias; /* one for each row; NULL: none */
} FN(csr_run);

typedef void (*FN(csr_kernel))(const FN(csr_run) * r);

/* A row of b, `vectors` wide, times a value, is added to the sums. The last vector has `tail` elements. */
INLINE void FN(csr_entry)(const REAL *value, const REAL *row, int vectors, const int *tail, VEC *sums) {
    const VEC a = VBROADCAST(value);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        VEC x = v == vectors - 1 && tail ? VLOAD_SOME(row + v * LANES, *tail) : VLOAD(row + v * LANES);
        sums[v] = VFMA(a, x, sums[v]);
    }
}

/* The sums of value[e] * row k[e] of b. Where few vectors would make every addition wait for the one before, `side`
 * entries run side by side with sums of their own. tail: the last vector has only so many elements; NULL: all. */
INLINE void FN(csr_rows)(const FN(csr_run) * r, int vectors, const int *tail, int side) {
    const int64_t *ptr = r->ptr, stride = r->stride;
    const int32_t *k = r->k;
    const REAL *value = r->value, *b = r->b;
    const VEC alpha = VBROADCAST(&r->alpha);
    REAL *out = r->out;
    for (int64_t q = 0; q < r->rows; q++, out += r->down) {
        const int64_t end = ptr[q + 1] - ptr[0];
        int64_t e = ptr[q] - ptr[0];
        VEC sums[4][CSR_VECTORS], bias = r->bias ? VBROADCAST(r->bias + q) : VZERO();
#pragma GCC unroll 16
        for (int u = 0; u < side; u++)
#pragma GCC unroll 16
            for (int v = 0; v < vectors; v++) sums[u][v] = VZERO();
        for (; e + side <= end; e += side)
#pragma GCC unroll 16
            for (int u = 0; u < side; u++) FN(csr_entry)(value + e + u, b + k[e + u] * stride, vectors, tail, sums[u]);
        for (; e < end; e++) FN(csr_entry)(value + e, b + k[e] * stride, vectors, tail, sums[0]);
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) {
            const bool some = v == vectors - 1 && tail;
            VEC sum = sums[0][v];
#pragma GCC unroll 16
            for (int u = 1; u < side; u++) sum = VADD(sum, sums[u][v]);
            if (r->add) sum = VADD(sum, some ? VLOAD_SOME(out + v * LANES, *tail) : VLOAD(out + v * LANES));
            else sum = VFMA(alpha, sum, bias);
            if (some) VSTORE_SOME(out + v * LANES, sum, *tail);
            else VSTORE(out + v * LANES, sum);
        }
    }
}

#define CSR_WIDTH(width)                                                                                               \
    static void FN(csr_whole_##width)(const FN(csr_run) * r) { FN(csr_rows)(r, width, NULL, CSR_SIDE(width)); }        \
    static void FN(csr_some_##width)(const FN(csr_run) * r) { FN(csr_rows)(r, width, &r->tail, CSR_SIDE(width)); }
CSR_WIDTHS(CSR_WIDTH)
#undef CSR_WIDTH

static FN(csr_kernel) FN(csr_pick)(int64_t columns) {
#define CSR_WIDTH(width) {FN(csr_whole_##width), FN(csr_some_##width)},
    static const FN(csr_kernel) table[][2] = {CSR_WIDTHS(CSR_WIDTH)};
#undef CSR_WIDTH
    return table[(columns + LANES - 1) / LANES - 1][columns % LANES != 0];
}

/* One column: the sum of value[e] * b[k[e]]. */
static REAL FN(csr_dot)(const int32_t *k, const REAL *value, int64_t count, const REAL *b) {
    VEC sums[4] = {VZERO(), VZERO(), VZERO(), VZERO()};
    REAL lanes[4], sum = 0;
    int64_t e = 0;
    for (; e + 4 * LANES <= count; e += 4 * LANES)
#pragma GCC unroll 16
        for (int u = 0; u < 4; u++)
            sums[u] = VFMA(VLOAD(value + e + u * LANES), CSR_GATHER(b, k + e + u * LANES), sums[u]);
    for (; e + LANES <= count; e += LANES) sums[0] = VFMA(VLOAD(value + e), CSR_GATHER(b, k + e), sums[0]);
    for (; e < count; e++) sum += value[e] * b[k[e]];
    VSUM4(lanes, sums[0], sums[1], sums[2], sums[3]);
    return sum + ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3]));
}

static void FN(csr_column)(const FN(csr_run) * r) {
    for (int64_t q = 0; q < r->rows; q++) {
        const int64_t from = r->ptr[q] - r->ptr[0];
        const REAL sum = FN(csr_dot)(r->k + from, r->value + from, r->ptr[q + 1] - r->ptr[q], r->b);
        REAL *out = r->out + q * r->down;
        *out = r->add ? *out + sum : r->alpha * sum + (r->bias ? r->bias[q] : 0);
    }
}

/* ---- the entries of a row ---- */

typedef struct FN(csr_job) {
    const sat_launch *l;
    const sat_problem *p;
    sat_rows r;
    const REAL *b; /* rows without gaps */
    int64_t b_stride;
    int64_t width;                      /* columns, rounded up to whole vectors */
    bool as_stored, direct;             /* values need no copy; rows of C are written by the micro-kernel */
    FN(csr_kernel) kernel, last_kernel; /* for CSR_VECTORS vectors of columns, and for the last ones */
} FN(csr_job);

/* Values of `count` blocks of one element, from the t-th on. */
static void FN(csr_singles)(const FN(csr_job) * j, int64_t t, int64_t count, REAL *value) {
    const int64_t *block = j->r.block ? j->r.block + t : NULL;
    const void *values = j->l->operands[0];
    /* a loop for each dtype */
#define CSR_SINGLES(dtype)                                                                                             \
    if (block)                                                                                                         \
        for (int64_t e = 0; e < count; e++) value[e] = FN(widen)(dtype, values, block[e]);                             \
    else                                                                                                               \
        for (int64_t e = 0; e < count; e++) value[e] = FN(widen)(dtype, values, t + e);
    switch (j->p->a_dtype) {
    case SAT_F16: CSR_SINGLES(SAT_F16); break;
    case SAT_BF16: CSR_SINGLES(SAT_BF16); break;
    case SAT_F32: CSR_SINGLES(SAT_F32); break;
    case SAT_F64: CSR_SINGLES(SAT_F64); break;
    }
#undef CSR_SINGLES
}

INLINE int64_t FN(csr_entries_of)(const FN(csr_job) * j, sat_dtype dtype, int64_t i, int64_t t, int64_t blocks,
                                  int64_t in, int64_t deep, int32_t *k, REAL *value) {
    const sat_rows *r = &j->r;
    const void *values = j->l->operands[0];
    const int64_t step = r->col_step, wide = r->bc;
    int64_t count = 0;
    for (int64_t e = t; e < t + blocks; e++) {
        const int64_t k0 = r->col[e] * wide, end = sat_min(sat_min(wide, r->k - k0), in + deep);
        const int64_t from = sat_block_of(r, e) * r->block_elements + i * r->row_step;
        for (int64_t c = in; c < end; c++, count++) {
            k[count] = (int32_t)(k0 + c);
            value[count] = FN(widen)(dtype, values, from + c * step);
        }
    }
    return count;
}

/* Columns and values of row i of some blocks, from the t-th on; returns how many entries that are. */
static int64_t FN(csr_entries)(const FN(csr_job) * j, int64_t i, int64_t t, int64_t blocks, int64_t in, int64_t deep,
                               int32_t *k, REAL *value) {
    switch (j->p->a_dtype) {
    case SAT_F16: return FN(csr_entries_of)(j, SAT_F16, i, t, blocks, in, deep, k, value);
    case SAT_BF16: return FN(csr_entries_of)(j, SAT_BF16, i, t, blocks, in, deep, k, value);
    default: return FN(csr_entries_of)(j, sizeof(REAL) == 4 ? SAT_F32 : SAT_F64, i, t, blocks, in, deep, k, value);
    }
}

/* Some rows whose entries are at hand, all their columns. */
static void FN(csr_run_all)(const FN(csr_job) * j, FN(csr_run) r) {
    const int64_t n = j->p->n, most = CSR_VECTORS * LANES;
    r.stride = j->b_stride;
    REAL *out = r.out;
    for (int64_t c = 0; c < n; c += most) {
        r.b = j->b + c, r.out = out + c, r.tail = (int)((n - c) % LANES);
        (n - c > most ? j->kernel : j->last_kernel)(&r);
    }
}

/* Adds some entries of a row to its sums. */
static void FN(csr_some)(const FN(csr_job) * j, const int32_t *k, const REAL *value, int64_t count, REAL *out) {
    FN(csr_run_all)
    (j, (FN(csr_run)){.ptr = (const int64_t[]){0, count}, .rows = 1, .k = k, .value = value, .add = true, .out = out});
}

/* The sums of row i of a block row, however long. */
static void FN(csr_row)(const FN(csr_job) * j, int64_t block_row, int64_t i, REAL *out) {
    const sat_rows *r = &j->r;
    const int64_t end = r->end[block_row];
    int32_t k[CSR_ENTRIES];
    REAL value[CSR_ENTRIES];
    memset(out, 0, (size_t)j->width * sizeof *out);
    for (int64_t t = r->ptr[block_row], some; t < end; t += some) {
        if (j->as_stored) {
            some = sat_min(end - t, SAT_SUM_PART);
            FN(csr_some)(j, r->col + t, (const REAL *)j->l->operands[0] + t, some, out);
        } else if (r->block_elements == 1) {
            some = sat_min(end - t, CSR_ENTRIES);
            FN(csr_singles)(j, t, some, value);
            FN(csr_some)(j, r->col + t, value, some, out);
        } else {
            some = sat_min(end - t, sat_max(1, CSR_ENTRIES / r->bc));
            for (int64_t in = 0; in < r->bc; in += CSR_ENTRIES)
                FN(csr_some)(j, k, value, FN(csr_entries)(j, i, t, some, in, CSR_ENTRIES, k, value), out);
        }
    }
}

/* Up to CSR_ROWS rows that the micro-kernel takes at once. */
typedef struct FN(csr_batch) {
    int64_t rows, own[CSR_ROWS + 1];
    const int64_t *ptr; /* as the run's */
    const int32_t *k;
    const REAL *value;
    int32_t own_k[CSR_ENTRIES];
    REAL own_value[CSR_ENTRIES];
} FN(csr_batch);

/* The rows from i on, up to `last`, whose entries are at hand or fit into the batch; maybe none. */
static void FN(csr_singles_batch)(const FN(csr_job) * j, int64_t i, int64_t last, FN(csr_batch) * x) {
    const int64_t *ptr = j->r.ptr + i;
    const int64_t most = j->as_stored ? SAT_SUM_PART : CSR_ENTRIES;
    last = sat_min(last - i, CSR_ROWS);
    for (x->rows = 0; x->rows < last && j->r.end[i + x->rows] == ptr[x->rows + 1]; x->rows++) /* up to a faulty one */
        if (ptr[x->rows + 1] - (j->as_stored ? ptr[x->rows] : ptr[0]) > most) break;
    x->ptr = ptr, x->k = j->r.col + *ptr, x->value = (const REAL *)j->l->operands[0] + *ptr;
    if (j->as_stored) return;
    FN(csr_singles)(j, *ptr, ptr[x->rows] - *ptr, x->own_value);
    x->value = x->own_value;
}

/* The same from blocks. */
static void FN(csr_blocks_batch)(const FN(csr_job) * j, int64_t i, int64_t last, FN(csr_batch) * x) {
    const sat_rows *r = &j->r;
    int64_t count = 0, row = i / r->br, q = i % r->br;
    last = sat_min(last - i, CSR_ROWS);
    x->own[0] = 0;
    for (x->rows = 0; x->rows < last; x->own[++x->rows] = count) {
        const int64_t t = r->ptr[row], blocks = r->end[row] - t;
        if (blocks > CSR_ENTRIES || count + blocks * r->bc > CSR_ENTRIES) break;
        count += FN(csr_entries)(j, q, t, blocks, 0, r->bc, x->own_k + count, x->own_value + count);
        if (++q == r->br) q = 0, row++;
    }
    x->ptr = x->own, x->k = x->own_k, x->value = x->own_value;
}

/* Multiplies and stores the rows of a batch, the first of which is row i of C. */
static void FN(csr_multiply)(const FN(csr_job) * j, int64_t i, const FN(csr_batch) * x, REAL *sums) {
    const sat_problem *p = j->p;
    REAL bias[CSR_ROWS];
    FN(csr_run) r = {.ptr = x->ptr, .rows = x->rows, .k = x->k, .value = x->value, .alpha = 1};
    r.out = sums, r.down = j->width;
    if (j->direct) {
        r.out = (REAL *)j->l->operands[2] + i * p->c.row_stride, r.down = p->c.row_stride, r.alpha = (REAL)p->alpha;
        for (int64_t q = 0; q < x->rows && p->matmul.bias == SAT_BIAS_ROW; q++) bias[q] = FN(row_bias)(j->l, i + q);
        if (p->matmul.bias == SAT_BIAS_ROW) r.bias = bias;
    }
    FN(csr_run_all)(j, r);
    if (!j->direct) FN(finish_rows)(j->l, sums, j->width, i, x->rows);
}

/* ---- copying B ---- */

/* Rows [from, to) of B, so many at a time that what is read by columns stays in cache. */
static void FN(csr_copy)(const FN(csr_job) * j, int64_t from, int64_t to, REAL *b) {
    enum { AT_ONCE = 16 };
    const sat_problem *p = j->p;
    const void *matrix = j->l->operands[1];
    const int64_t down = p->b.row_stride, along = p->b.col_stride;
    for (int64_t k = from; k < to; k += AT_ONCE) {
        const int64_t end = sat_min(to, k + AT_ONCE);
        if (down < along) {
            for (int64_t n = 0; n < p->n; n++)
                for (int64_t q = k; q < end; q++)
                    b[q * j->b_stride + n] = FN(widen)(p->b_dtype, matrix, q * down + n * along);
        } else {
            for (int64_t q = k; q < end; q++)
                for (int64_t n = 0; n < p->n; n++)
                    b[q * j->b_stride + n] = FN(widen)(p->b_dtype, matrix, q * down + n * along);
        }
    }
}

/* ---- launch ---- */

/* Rows [first, last) of a thread. */
static void FN(csr_share)(const FN(csr_job) * j, int64_t first, int64_t last, REAL *sums) {
    FN(csr_batch) x;
    for (int64_t i = first; i < last; i += sat_max(1, x.rows)) {
        (j->r.block_elements == 1 ? FN(csr_singles_batch) : FN(csr_blocks_batch))(j, i, last, &x);
        if (x.rows) {
            FN(csr_multiply)(j, i, &x, sums);
            continue;
        }
        FN(csr_row)(j, i / j->r.br, i % j->r.br, sums); /* a long one */
        FN(finish_rows)(j->l, sums, j->width, i, 1);
    }
}

static sat_status FN(csr_launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const csr_shape s = csr_shape_of(p, l->pattern);
    FN(csr_job) j = {.l = l, .p = p, .r = sat_op_rows(p, l->pattern), .width = s.width};
    REAL *copy = l->workspace, *sums = copy + s.b_elements;
    j.b = s.copies ? copy : (const REAL *)l->operands[1], j.b_stride = s.copies ? s.b_stride : p->b.row_stride;
    j.kernel = FN(csr_pick)(CSR_VECTORS * LANES);
    j.last_kernel = p->n == 1 ? FN(csr_column) : FN(csr_pick)((p->n - 1) % (CSR_VECTORS * LANES) + 1);
    j.direct = p->c_dtype == p->compute_dtype && p->beta == 0 && p->matmul.activation == SAT_ACT_NONE &&
               (p->n == 1 || p->c.col_stride == 1);
    j.as_stored = j.r.block_elements == 1 && !j.r.block && p->a_dtype == p->compute_dtype;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        if (s.copies) {
            FN(csr_copy)(&j, j.r.k * thread / threads, j.r.k * (thread + 1) / threads, copy);
#pragma omp barrier
        }
        const int64_t first = csr_first_row(j.r.ptr, j.r.count, thread, threads) * j.r.br;
        const int64_t last = csr_first_row(j.r.ptr, j.r.count, thread + 1, threads) * j.r.br;
        FN(csr_share)(&j, first, sat_min(last, j.r.m), sums + thread * CSR_ROWS * s.width);
    }
    return SAT_OK;
}

#undef FN
#undef CSR_GATHER
