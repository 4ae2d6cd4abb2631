/* Right results in many orders of summation, in one compute type. Included once with REAL = float and once with double;
 * NAME(x) gives each its own names.
 *
 * A line is a row of the output: `depth` products with `width` columns each. All lines of a problem stand one after the
 * other in `a` and `k`; b is (depth of the problem, pitch), so product i of a line is a[i] * b[k[i]][first_col + j]. */

typedef struct NAME(sums) {
    REAL *a, *b;
    int32_t *k;
    int64_t pitch;
} NAME(sums);

/* acc += a*b over a line's columns: in one rounding, or in two. */
static void NAME(fused)(REAL *restrict acc, REAL a, const REAL *restrict b, int64_t n) {
    for (int64_t j = 0; j < n; j++) acc[j] = NAME(fma)(a, b[j], acc[j]);
}

FAST_ISA static void NAME(fused_fast)(REAL *restrict acc, REAL a, const REAL *restrict b, int64_t n) {
    for (int64_t j = 0; j < n; j++) acc[j] = NAME(fma)(a, b[j], acc[j]);
}

static void NAME(apart)(REAL *restrict acc, REAL a, const REAL *restrict b, int64_t n) {
    for (int64_t j = 0; j < n; j++) acc[j] += a * b[j]; /* compiled without contraction */
}

static void NAME(accumulate)(REAL *acc, REAL a, const REAL *b, int64_t n, bool together) {
    if (!together) NAME(apart)(acc, a, b, n);
    else if (HAS_FAST_ISA) NAME(fused_fast)(acc, a, b, n);
    else NAME(fused)(acc, a, b, n);
}

static void NAME(add)(REAL *acc, const REAL *more, int64_t n) {
    for (int64_t j = 0; j < n; j++) acc[j] += more[j];
}

/* Products at[from], at[from + step], ... before `to`, one after the other, onto acc; at NULL: their own order. */
static void NAME(chain)(const NAME(sums) * s, const line *l, const int32_t *at, int64_t from, int64_t to, int64_t step,
                        bool together, REAL *acc) {
    for (int64_t x = from; x < to; x += step) {
        int64_t i = l->start + (at ? at[x] : x);
        const REAL *b = s->b + s->k[i] * s->pitch + l->first_col;
        NAME(accumulate)(acc, s->a[i], b, l->width, together);
    }
}

static void NAME(pairwise)(const NAME(sums) * s, const line *l, const int32_t *at, int64_t from, int64_t to,
                           bool together, REAL *acc) {
    REAL half[WIDEST] = {0};
    memset(acc, 0, (size_t)l->width * sizeof *acc);
    if (to - from <= 8) {
        NAME(chain)(s, l, at, from, to, 1, together, acc);
        return;
    }
    int64_t middle = from + (to - from) / 2;
    NAME(pairwise)(s, l, at, from, middle, together, acc);
    NAME(pairwise)(s, l, at, middle, to, together, half);
    NAME(add)(acc, half, l->width);
}

/* In the widest type there is, rounded once. */
static void NAME(wide)(const NAME(sums) * s, const line *l, REAL *acc) {
    for (int64_t j = 0; j < l->width; j++) {
        long double sum = 0;
        for (int64_t i = l->start; i < l->start + l->depth; i++)
            sum += (long double)s->a[i] * (long double)s->b[s->k[i] * s->pitch + l->first_col + j];
        acc[j] = (REAL)sum;
    }
}

/* The bare sums of a line. */
static void NAME(sum_line)(const NAME(sums) * s, const line *l, const order *o, const int32_t *at, REAL *acc) {
    REAL lane[16][WIDEST];
    memset(acc, 0, (size_t)l->width * sizeof *acc);
    int64_t size = o->kind == SPLIT ? (l->depth + o->size - 1) / o->size : o->size;
    switch (o->kind) {
    case CHAIN: NAME(chain)(s, l, at, 0, l->depth, 1, o->fused, acc); break;
    case LANES:
        memset(lane, 0, sizeof lane);
        for (int64_t i = 0; i < o->size; i++) NAME(chain)(s, l, at, i, l->depth, o->size, o->fused, lane[i]);
        for (int64_t half = o->size / 2; half > 0; half /= 2)
            for (int64_t i = 0; i < half; i++) NAME(add)(lane[i], lane[i + half], l->width);
        memcpy(acc, lane[0], (size_t)l->width * sizeof *acc);
        break;
    case BLOCKS:
    case SPLIT:
        for (int64_t x = 0; x < l->depth; x += size) {
            memset(lane[0], 0, sizeof lane[0]);
            NAME(chain)(s, l, at, x, sat_min(x + size, l->depth), 1, o->fused, lane[0]);
            NAME(add)(acc, lane[0], l->width);
        }
        break;
    case PAIRWISE: NAME(pairwise)(s, l, at, 0, l->depth, o->fused, acc); break;
    default: NAME(wide)(s, l, acc); break;
    }
}

/* Scalars, bias and activation on top of a sum. `before` and `bias` are 0 where there are none. */
static REAL NAME(epilogue)(const sat_problem *p, const order *o, REAL sum, REAL before, REAL bias) {
    REAL x = (REAL)p->alpha * sum;
    if (p->beta != 0 && o->fused) x = NAME(fma)((REAL)p->beta, before, x);
    else if (p->beta != 0) x += (REAL)p->beta * before;
    if (p->matmul.bias == SAT_BIAS_ROW) x += bias;
    return NAME(act)(p->matmul.activation, x);
}

/* As a BLAS does that adds every panel of the depth into C: C = beta*C + bias, then C += alpha*panel. */
static void NAME(in_place)(const NAME(sums) * s, const line *l, const order *o, const sat_problem *p, REAL *acc) {
    REAL panel[WIDEST];
    for (int64_t x = 0; x < l->depth; x += o->size) {
        memset(panel, 0, sizeof panel);
        NAME(chain)(s, l, NULL, x, sat_min(x + o->size, l->depth), 1, o->fused, panel);
        NAME(accumulate)(acc, (REAL)p->alpha, panel, l->width, o->fused);
    }
    for (int64_t j = 0; j < l->width; j++) acc[j] = NAME(act)(p->matmul.activation, acc[j]);
}

/* One line of the output, in an order. */
static void NAME(make_line)(const NAME(sums) * s, const line *l, const order *o, const int32_t *at,
                            const sat_bench *bench) {
    const sat_problem *p = bench->problem;
    REAL acc[WIDEST], before[WIDEST], bias = 0;
    if (p->matmul.bias == SAT_BIAS_ROW) bias = (REAL)sat_load(p->c_dtype, bench->pointer[3], l->bias);
    for (int64_t j = 0; j < l->width; j++)
        before[j] = p->beta != 0 ? (REAL)sat_load(p->c_dtype, bench->before, l->out + j * l->out_step) : 0;
    if (o->kind == IN_PLACE) {
        for (int64_t j = 0; j < l->width; j++) acc[j] = (REAL)p->beta * before[j] + bias;
        NAME(in_place)(s, l, o, p, acc);
    } else {
        NAME(sum_line)(s, l, o, at, acc);
        for (int64_t j = 0; j < l->width; j++) acc[j] = NAME(epilogue)(p, o, acc[j], before[j], bias);
    }
    for (int64_t j = 0; j < l->width; j++)
        sat_store(p->c_dtype, bench->pointer[2], l->out + j * l->out_step, (double)acc[j]);
    for (int64_t j = l->width; j < l->stored; j++) sat_store(p->c_dtype, bench->pointer[2], l->out + j, 0);
}

/* The operands as they stand in the bench, widened to the compute type, which is exact. */
static void NAME(load)(NAME(sums) * s, const sat_bench *bench, const line *lines, int64_t count, const int64_t *from) {
    const sat_problem *p = bench->problem;
    int64_t depth = bench->operand[1].rows;
    s->pitch = bench->operand[1].cols;
    for (int64_t x = 0; x < depth; x++)
        for (int64_t j = 0; j < s->pitch; j++)
            s->b[x * s->pitch + j] =
                (REAL)sat_load(p->b_dtype, bench->pointer[1], x * p->b.row_stride + j * p->b.col_stride);
    for (int64_t i = 0; i < count; i++)
        for (int64_t x = lines[i].start; x < lines[i].start + lines[i].depth; x++)
            s->a[x] = (REAL)sat_load(p->a_dtype, bench->pointer[0], from[x]);
}
