/* The matmul by rows of single elements ("CSR"), from thin blocks too; a template, included once for each element type.
 *
 * A row of C is the sum of rows of B, each times one stored element. Its sums stay in vectors, up to CSR_VECTORS of
 * them at a time, over some of the row's entries, whose columns and values stand side by side: where blocks are single
 * elements as they are stored, else they are copied first. So a sum is made of parts, as SAT_SUM_PART asks. B has to
 * have rows without gaps in the type that is computed in; another one is copied. A single column is gathered. Threads
 * have whole block rows, about as many entries each. */

/* ---- the micro-kernel: entries of one row ---- */

/* A row of b, `vectors` wide, times a value, is added to the sums. The last vector has `tail` elements. */
INLINE void FN(csr_entry)(const REAL *value, const REAL *row, int vectors, int tail, VEC *sums) {
    const VEC a = VBROADCAST(value);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        VEC x = v == vectors - 1 && tail < LANES ? VLOAD_SOME(row + v * LANES, tail) : VLOAD(row + v * LANES);
        sums[v] = VFMA(a, x, sums[v]);
    }
}

/* Adds the sum of value[e] * row k[e] of b to out. Where few vectors would make every addition wait for the one before,
 * `side` entries run side by side with sums of their own. */
INLINE void FN(csr_add)(const int32_t *k, const REAL *value, int64_t count, const REAL *b, int64_t stride, int vectors,
                        int tail, int side, REAL *out) {
    VEC sums[4][CSR_VECTORS];
    int64_t e = 0;
#pragma GCC unroll 16
    for (int u = 0; u < side; u++)
#pragma GCC unroll 16
        for (int v = 0; v < vectors; v++) sums[u][v] = VZERO();
    for (; e + side <= count; e += side)
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) FN(csr_entry)(value + e + u, b + k[e + u] * stride, vectors, tail, sums[u]);
    for (; e < count; e++) FN(csr_entry)(value + e, b + k[e] * stride, vectors, tail, sums[0]);
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) {
        VEC sum = VLOAD(out + v * LANES);
#pragma GCC unroll 16
        for (int u = 0; u < side; u++) sum = VADD(sum, sums[u][v]);
        VSTORE(out + v * LANES, sum);
    }
}

static void FN(csr_add_any)(const int32_t *k, const REAL *value, int64_t count, const REAL *b, int64_t stride,
                            int64_t columns, REAL *out) {
    const int vectors = (int)((columns + LANES - 1) / LANES), tail = (int)(columns - (vectors - 1) * LANES);
#define CSR_WIDTH(width)                                                                                               \
    if (vectors == width && tail == LANES)                                                                             \
        FN(csr_add)(k, value, count, b, stride, width, LANES, CSR_SIDE(width), out);                                   \
    else if (vectors == width) FN(csr_add)(k, value, count, b, stride, width, tail, CSR_SIDE(width), out);
    CSR_WIDTHS(CSR_WIDTH)
#undef CSR_WIDTH
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

/* ---- the entries of a row ---- */

typedef struct FN(csr_job) {
    const sat_launch *l;
    const sat_problem *p;
    sat_rows r;
    const REAL *b; /* rows without gaps */
    int64_t b_stride;
    int64_t width; /* columns, rounded up to whole vectors */
    int64_t rows;  /* of sums that a thread keeps before they are stored */
    bool as_stored;
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

/* Columns and values of row i of some blocks, from the t-th on; returns how many entries that are. */
static int64_t FN(csr_entries)(const FN(csr_job) * j, int64_t i, int64_t t, int64_t blocks, int64_t in, int64_t deep,
                               int32_t *k, REAL *value) {
    const sat_rows *r = &j->r;
    int64_t count = 0;
    for (int64_t e = t; e < t + blocks; e++) {
        const int64_t k0 = r->col[e] * r->bc, end = sat_min(sat_min(r->bc, r->k - k0), in + deep);
        const int64_t from = sat_block_of(r, e) * r->block_elements + i * r->row_step;
        for (int64_t c = in; c < end; c++, count++) {
            k[count] = (int32_t)(k0 + c);
            value[count] = FN(widen)(j->p->a_dtype, j->l->operands[0], from + c * r->col_step);
        }
    }
    return count;
}

/* Adds some entries of a row to its sums. */
static void FN(csr_some)(const FN(csr_job) * j, const int32_t *k, const REAL *value, int64_t count, REAL *out) {
    const int64_t n = j->p->n;
    if (n == 1) {
        out[0] += FN(csr_dot)(k, value, count, j->b);
        return;
    }
    for (int64_t c = 0; c < n; c += CSR_VECTORS * LANES)
        FN(csr_add_any)(k, value, count, j->b + c, j->b_stride, sat_min(n - c, CSR_VECTORS * LANES), out + c);
}

/* The sums of row i of a block row. */
static void FN(csr_row)(const FN(csr_job) * j, int64_t block_row, int64_t i, REAL *out) {
    const sat_rows *r = &j->r;
    const int64_t end = r->ptr[block_row + 1];
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

/* ---- the epilogue ---- */

INLINE void FN(csr_store_element)(const FN(csr_job) * j, int64_t i, int64_t n, REAL sum, REAL bias) {
    const sat_problem *p = j->p;
    void *c = j->l->operands[2];
    const int64_t at = i * p->c.row_stride + n * p->c.col_stride;
    REAL y = (REAL)p->alpha * sum + bias;
    if (p->beta != 0) y += (REAL)p->beta * FN(widen)(p->c_dtype, c, at);
    FN(csr_put)(p->c_dtype, c, at, FN(csr_act)(p->matmul.activation, y));
}

/* `rows` rows of sums from row i on, along whatever is contiguous in C. */
static void FN(csr_store)(const FN(csr_job) * j, const REAL *sums, int64_t i, int64_t rows) {
    const sat_problem *p = j->p;
    const bool bias = p->matmul.bias == SAT_BIAS_ROW;
#define CSR_BIAS(row) (bias ? FN(widen)(p->c_dtype, j->l->operands[3], row) : 0)
    if (sat_dtype_size(p->c_dtype) == sizeof(REAL) && p->matmul.activation == SAT_ACT_NONE && p->beta == 0) {
        REAL *c = (REAL *)j->l->operands[2], alpha = (REAL)p->alpha;
        const int64_t down = p->c.row_stride, along = p->c.col_stride;
        if (along == 1) {
            for (int64_t q = 0; q < rows; q++) {
                const REAL add = CSR_BIAS(i + q), *sum = sums + q * j->width;
                for (int64_t n = 0; n < p->n; n++) c[(i + q) * down + n] = alpha * sum[n] + add;
            }
            return;
        }
        for (int64_t n = 0; n < p->n; n++)
            for (int64_t q = 0; q < rows; q++)
                c[(i + q) * down + n * along] = alpha * sums[q * j->width + n] + CSR_BIAS(i + q);
        return;
    }
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t q = 0; q < rows; q++) FN(csr_store_element)(j, i + q, n, sums[q * j->width + n], CSR_BIAS(i + q));
#undef CSR_BIAS
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

/* Block rows [first, last) of a thread. */
static void FN(csr_share)(const FN(csr_job) * j, int64_t first, int64_t last, REAL *sums) {
    const sat_rows *r = &j->r;
    int64_t waiting = 0, i = 0;
    for (int64_t row = first; row < last; row++)
        for (int64_t q = 0; q < sat_min(r->br, r->m - row * r->br); q++) {
            i = row * r->br + q;
            FN(csr_row)(j, row, q, sums + waiting * j->width);
            if (++waiting < j->rows) continue;
            FN(csr_store)(j, sums, i + 1 - waiting, waiting);
            waiting = 0;
        }
    if (waiting) FN(csr_store)(j, sums, i + 1 - waiting, waiting);
}

static sat_status FN(csr_launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const csr_shape s = csr_shape_of(p, l->pattern);
    FN(csr_job) j = {.l = l, .p = p, .r = sat_op_rows(p, l->pattern), .width = s.width, .rows = s.rows};
    REAL *copy = l->workspace, *sums = copy + s.b_elements;
    j.b = s.copies ? copy : (const REAL *)l->operands[1], j.b_stride = s.copies ? s.b_stride : p->b.row_stride;
    j.as_stored = j.r.block_elements == 1 && !j.r.block && p->a_dtype == p->compute_dtype;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
        if (s.copies) {
            FN(csr_copy)(&j, j.r.k * thread / threads, j.r.k * (thread + 1) / threads, copy);
#pragma omp barrier
        }
        FN(csr_share)
        (&j, csr_first_row(j.r.ptr, j.r.count, thread, threads), csr_first_row(j.r.ptr, j.r.count, thread + 1, threads),
         sums + thread * s.rows * s.width);
    }
    return SAT_OK;
}

#undef FN
#undef CSR_GATHER
