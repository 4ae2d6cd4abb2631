/* The uniform probe of attention: every row of every output, on the host and on a device alike.
 *
 * K, or in another case Q, is zero. Then every score is 0, every kept weight is 1/C where C keys are kept, and
 *     O_i  = (sum of kept V_j) / C_i        LSE_i = log C_i        dV_j = sum over queries that keep j of dO_i / C_i
 * For the gradients V has rank one, V_jx = c_j*v_x with v_x = +-1, so that dO_i*V_j = c_j*s_i with s_i = dO_i*v, and
 *     dS_ij = (c_j*s_i - delta_i) / C_i     delta_i = dO_i*O_i
 *     dK_j = alpha * (c_j * sum of s_i/C_i*q_i - sum of delta_i/C_i*q_i)      over queries that keep j
 *     dQ_i = alpha/C_i * (s_i * sum of c_j*k_j - delta_i * sum of k_j)        over keys that i keeps
 * All of them are sums over the kept part of a range: of keys for a query, of queries for a key. A table holds the sums
 * of all cells (up to 64 neighbours) before each, and from one line to the next only the ends of the range move. So a
 * line costs a few rows of additions and not as many as it keeps. Where K is zero dQ is exactly 0, where Q is, dK.
 *
 * How far a right result may be off. V holds integers, and their sums are exact in the compute type in any order.
 *   - What all weights of a row have in common cancels where O is divided by their sum, and where weights are divided
 *     first, 1/C is rounded to the inputs' dtype: one unit of O_ix itself, and one more for the output.
 *   - A row that is split has its partial means weighed by exp(lse - lse'): each is good for the few units that exp and
 *     log take, and for the units of log C; weights add up to 1 and means are at most max|V|, so this is
 *     u*(16 + 4*log C)*max|V|.
 *   - Weights that were divided first make the sums inexact. After k of n terms a partial sum is about
 *     sqrt(k)*max|V|/n, and rounding it to nearest loses up to u of that, as a random walk over k: u*max|V|/sqrt(2) in
 * all, of which 8 deviations are within those 16 units. Tensor cores truncate: n/16 times up to 2u of a partial sum of
 * up to 8*sqrt(k)*max|V|/n, in one direction, which is below sqrt(n)*u*max|V|. The gradients' terms meet random signs
 * (of dO, q or k), so that what is lost adds up as a random walk does; its squares are summed over the same ranges as
 * the terms. What all of them have in common is relative to the sum itself. See attention_check.h for SAT_SURE. */
#ifndef SAT_ATTENTION_UNIFORM_H
#define SAT_ATTENTION_UNIFORM_H

#include "ops/attention_check.h"

/* Columns that are worked on together: one a thread on a device, which includes variant.cuh before. Those beyond a
 * head size, where it is no multiple, are zero. */
#ifdef __CUDACC__
#define SAT_LINE __device__
enum { SAT_LANES = 1 };
#else
#define SAT_LINE
enum { SAT_LANES = 8 };
#endif

enum { SAT_VECTORS = 3, SAT_CHUNK = 64 /* lines at most whose range slides on from one to the next */ };

/* What is summed over: rows of keys or of queries, with `vectors` sums of dim each, and two numbers. */
typedef struct sat_uniform_side {
    bool of_queries;
    int vectors;
    int64_t heads, rows, cell, cells, width; /* width: doubles of one cell's sums */
    double *table;                           /* [batch*heads][cells + 1][width]: sums of all cells before */
} sat_uniform_side;

/* Of each query, for the gradients. */
typedef struct sat_uniform_query {
    double weight, slope, shift;         /* 1/C, s/C, delta/C */
    double dv_square, dk_square, dq_off; /* squares of what one term may be off by, without max|dO| or max|q|; dq's */
    double delta, delta_off;             /* for the gradient of its head's sink */
} sat_uniform_query;

typedef struct sat_uniform {
    sat_problem p;
    sat_backend_kind backend;
    sat_mask mask;
    const int64_t *t_ptr; /* blocks by column, for the gradients */
    const int32_t *t_row;
    const void *q, *k, *v, *o, *d; /* d: dO */
    const float *lse;
    bool keys_are_zero;                    /* otherwise queries are */
    double v_most, d_most, q_most, k_most; /* no element is larger */
    double d_sure, q_sure, k_sure; /* deviations of a random walk over its rows; more where rows share their place */
    double rel;                    /* of a gradient: what all terms of a sum may have in common */
    sat_uniform_side keys, queries;
    sat_uniform_query *query; /* [batch*heads*m] */
#ifndef __CUDACC__
    int64_t first_row; /* block row where the masks of the batch item begin; on a device all items share them */
#endif
} sat_uniform;

typedef struct sat_uniform_sum {
    double x[SAT_VECTORS][SAT_LANES];
    double square[2];
    int64_t count;
} sat_uniform_sum;

/* ---- sizes ---- */

/* Of the widest sum of a side. */
SAT_BOTH static inline int64_t sat_uniform_dim(const sat_problem *p, bool of_queries) {
    int64_t dim = p->attention.dim, value_dim = sat_value_dim(&p->attention);
    if (value_dim == dim) return dim;
    return of_queries ? sat_max(dim, value_dim) : p->op == SAT_ATTENTION ? value_dim : dim;
}

static inline sat_uniform_side sat_uniform_side_of(const sat_problem *p, const sat_pattern_view *a, bool of_queries) {
    int64_t block = of_queries ? a->block_rows : a->block_cols;
    sat_uniform_side s;
    s.of_queries = of_queries, s.table = NULL;
    s.vectors = of_queries ? 3 : p->op == SAT_ATTENTION ? 1 : 2;
    s.heads = of_queries ? p->attention.heads : p->attention.kv_heads;
    s.rows = of_queries ? p->m : p->n;
    s.cell = sat_max(8, sat_min(block, 64));
    s.cells = s.rows / s.cell; /* whole ones */
    s.width = s.vectors * sat_uniform_dim(p, of_queries) + 2;
    return s;
}

/* Doubles of one side's table. */
static inline int64_t sat_uniform_doubles(const sat_problem *p, const sat_uniform_side *s) {
    return p->batch * s->heads * (s->cells + 1) * s->width;
}

SAT_BOTH static inline bool sat_uniform_backward(const sat_problem *p) { return p->op == SAT_ATTENTION_BACKWARD; }

static inline int64_t sat_uniform_queries(const sat_problem *p) { return p->batch * p->attention.heads * p->m; }

/* Doubles that tables and queries take together. */
static inline int64_t sat_uniform_room(const sat_problem *p, const sat_pattern_view *a) {
    sat_uniform_side keys = sat_uniform_side_of(p, a, false), queries = sat_uniform_side_of(p, a, true);
    int64_t all = sat_uniform_doubles(p, &keys), each = (int64_t)(sizeof(sat_uniform_query) / sizeof(double));
    return sat_uniform_backward(p) ? all + sat_uniform_doubles(p, &queries) + each * sat_uniform_queries(p) : all;
}

/* Rows that share a place have one sign: of so many in each sum (sum of e)^2 is at most `copies` times sum of e^2. */
static inline double sat_uniform_sure(const sat_problem *p, const sat_heads *s, int64_t rows, bool of_queries) {
    int64_t share = of_queries ? p->attention.heads / p->attention.kv_heads : 1;
    double copies = (double)(s->row_stride == 0 ? sat_max(1, rows) : 1) * (double)(s->head_stride == 0 ? share : 1);
    return SAT_SURE * sqrt(copies);
}

/* Of the largest output. */
SAT_BOTH static inline int64_t sat_uniform_elements(const sat_problem *p) {
    return p->batch * p->attention.heads * sat_max(p->m, p->n) *
           sat_max(p->attention.dim, sat_value_dim(&p->attention));
}

static inline sat_uniform sat_uniform_of(const sat_trial *t, bool on_device) {
    const sat_problem *p = t->problem;
    const sat_pattern_view *a = t->pattern;
    sat_uniform u;
    memset(&u, 0, sizeof u);
    u.p = *p, u.backend = t->device->backend;
    u.mask = on_device ? sat_device_mask_of(p, a) : sat_mask_of(p, a);
    u.t_ptr = on_device ? a->device_t_ptr : a->t_ptr, u.t_row = on_device ? a->device_t_row : a->t_row;
    u.q = t->operands[0], u.k = t->operands[1], u.v = t->operands[2];
    u.keys_are_zero = t->fills[1].scale == 0;
    u.q_most = t->fills[0].scale, u.k_most = t->fills[1].scale, u.v_most = t->fills[2].most * t->fills[2].scale;
    u.keys = sat_uniform_side_of(p, a, false), u.queries = sat_uniform_side_of(p, a, true);
    if (p->op == SAT_ATTENTION) return u;
    u.o = t->operands[3], u.lse = (const float *)t->operands[4], u.d = t->operands[5];
    u.d_most = t->fills[5].most * t->fills[5].scale;
    u.d_sure = sat_uniform_sure(p, &p->attention.do_, p->m, true);
    u.q_sure = sat_uniform_sure(p, &p->attention.q, p->m, true);
    u.k_sure = sat_uniform_sure(p, &p->attention.k, p->n, false);
    double lse = log((double)p->n * (p->attention.sinks ? 4 : 1) + 1), /* a sink is worth up to e*n keys */
        rows = (double)sat_max(p->n, p->m * (p->attention.heads / p->attention.kv_heads));
    u.rel = sat_loss_of(p, false, 0, lse, 0).weight + 0x1p-24 * (16 + 8 * lse) +
            sat_loss_of_sum(p, u.backend, (int64_t)rows, sat_uniform_elements(p)).most;
    return u;
}

/* Lines of queries (or keys) in chunks that stay within one block row (or column). */
SAT_BOTH static inline int64_t sat_uniform_chunks(int64_t rows, int64_t block) {
    return (rows + block - 1) / block * ((sat_min(block, rows) + SAT_CHUNK - 1) / SAT_CHUNK);
}

SAT_BOTH static inline sat_range sat_uniform_chunk(int64_t rows, int64_t block, int64_t number) {
    int64_t each = (sat_min(block, rows) + SAT_CHUNK - 1) / SAT_CHUNK, first = number / each * block;
    sat_range r;
    r.begin = first + number % each * SAT_CHUNK;
    r.end = sat_min(r.begin + SAT_CHUNK, sat_min(first + block, rows));
    return r;
}

/* ---- terms ---- */

/* Of a row of `dim` elements, those from x on; zeros beyond it. `at`: of the row's first. */
SAT_LINE static inline void sat_uniform_load(double *to, sat_dtype t, const void *from, int64_t at, int64_t x,
                                             int64_t dim) {
#ifdef __CUDACC__
    to[0] = x < dim ? sat_device_load(t, from, at + x) : 0;
#else
    int64_t count = sat_max(0, sat_min(SAT_LANES, dim - x));
    for (int64_t e = count; e < SAT_LANES; e++) to[e] = 0;
    sat_load_row(to, t, from, at + x, 1, count);
#endif
}

SAT_LINE static inline double sat_uniform_one(sat_dtype t, const void *from, int64_t at) {
#ifdef __CUDACC__
    return sat_device_load(t, from, at);
#else
    return sat_load(t, from, at);
#endif
}

/* Adds sign times one row of a side, in columns x and on. */
SAT_LINE static inline void sat_uniform_add_row(const sat_uniform *u, const sat_uniform_side *s, int64_t b, int64_t h,
                                                int64_t i, int64_t x, double sign, sat_uniform_sum *sum) {
    const sat_attention *t = &u->p.attention;
    sat_dtype dtype = u->p.a_dtype;
    double row[SAT_LANES];
    if (!s->of_queries && u->p.op == SAT_ATTENTION) {
        sat_uniform_load(row, dtype, u->v, sat_heads_at(&t->v, b, h, i), x, sat_value_dim(t));
        for (int e = 0; e < SAT_LANES; e++) sum->x[0][e] += sign * row[e];
    } else if (!s->of_queries) {
        double c = sat_uniform_one(dtype, u->v, sat_heads_at(&t->v, b, h, i));
        sat_uniform_load(row, dtype, u->k, sat_heads_at(&t->k, b, h, i), x, t->dim);
        for (int e = 0; e < SAT_LANES; e++) sum->x[0][e] += sign * c * row[e], sum->x[1][e] += sign * row[e];
    } else {
        const sat_uniform_query *q = &u->query[(b * t->heads + h) * u->p.m + i];
        sat_uniform_load(row, dtype, u->d, sat_heads_at(&t->do_, b, h, i), x, sat_value_dim(t));
        for (int e = 0; e < SAT_LANES; e++) sum->x[0][e] += sign * q->weight * row[e];
        sat_uniform_load(row, dtype, u->q, sat_heads_at(&t->q, b, h, i), x, t->dim);
        for (int e = 0; e < SAT_LANES; e++)
            sum->x[1][e] += sign * q->slope * row[e], sum->x[2][e] += sign * q->shift * row[e];
        sum->square[0] += sign * q->dv_square, sum->square[1] += sign * q->dk_square;
    }
}

/* Adds sign times the sums of cells before number `cell`. */
SAT_LINE static inline void sat_uniform_add_cells(const sat_uniform *u, const sat_uniform_side *s, int64_t bh,
                                                  int64_t cell, int64_t x, double sign, sat_uniform_sum *sum) {
    const double *from = s->table + (bh * (s->cells + 1) + cell) * s->width;
    int64_t dim = sat_uniform_dim(&u->p, s->of_queries), count = SAT_LANES == 1 ? 1 : sat_min(SAT_LANES, dim - x);
    for (int v = 0; v < s->vectors; v++)
        for (int e = 0; e < count; e++) sum->x[v][e] += sign * from[v * dim + x + e];
    for (int e = 0; e < 2; e++) sum->square[e] += sign * from[s->vectors * dim + e];
}

/* ---- ranges ---- */

/* Adds sign times all rows from begin to end: whole cells by the table, the rest one by one. */
SAT_LINE static inline void sat_uniform_add_run(const sat_uniform *u, const sat_uniform_side *s, int64_t b, int64_t h,
                                                int64_t begin, int64_t end, int64_t x, double sign,
                                                sat_uniform_sum *sum) {
    int64_t first = (begin + s->cell - 1) / s->cell, last = end / s->cell, i = begin;
    sum->count += (int64_t)sign * (end - begin);
    if (last > first) {
        for (; i < first * s->cell; i++) sat_uniform_add_row(u, s, b, h, i, x, sign, sum);
        sat_uniform_add_cells(u, s, b * s->heads + h, last, x, sign, sum);
        sat_uniform_add_cells(u, s, b * s->heads + h, first, x, -sign, sum);
        i = last * s->cell;
    }
    for (; i < end; i++) sat_uniform_add_row(u, s, b, h, i, x, sign, sum);
}

#ifdef __CUDACC__
#define SAT_FIRST_ROW(u) 0
#else
#define SAT_FIRST_ROW(u) (u)->first_row
#endif

/* Of the rows in r, those whose block is stored: a query's keys (side keys), or a key's queries. `head` is the one
 * whose mask counts, and h the one whose rows are added. */
SAT_LINE static inline void sat_uniform_add_range(const sat_uniform *u, const sat_uniform_side *s, int64_t b,
                                                  int64_t head, int64_t line, sat_range r, int64_t x, double sign,
                                                  sat_uniform_sum *sum) {
    const sat_mask *k = &u->mask;
    const sat_attention *t = &u->p.attention;
    int64_t h = s->of_queries ? head : head / (t->heads / t->kv_heads);
    if (r.end <= r.begin) return;
    if (k->full) {
        sat_uniform_add_run(u, s, b, h, r.begin, r.end, x, sign, sum);
        return;
    }
    int64_t own = s->of_queries ? line / k->block_cols : sat_mask_row(k, head, line);
    const int64_t *ptr = s->of_queries ? u->t_ptr : k->row_ptr;
    const int32_t *list = s->of_queries ? u->t_row : k->col_idx;
    int64_t block = s->of_queries ? k->block_rows : k->block_cols;
    int64_t offset = s->of_queries ? head * k->head_rows + SAT_FIRST_ROW(u) : 0;
    int64_t low = ptr[own], high = ptr[own + 1], last = high, first = offset + r.begin / block;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (list[middle] < first) low = middle + 1;
        else high = middle;
    }
    for (; low < last; low++) {
        int64_t from = (list[low] - offset) * block;
        if (from >= r.end) break;
        sat_uniform_add_run(u, s, b, h, sat_max(from, r.begin), sat_min(from + block, r.end), x, sign, sum);
    }
}

/* The sums of one line become those of the next of its chunk: only what the ends of the range pass over changes. */
SAT_LINE static inline void sat_uniform_slide(const sat_uniform *u, const sat_uniform_side *s, int64_t b, int64_t head,
                                              int64_t line, sat_range *now, sat_range next, int64_t x,
                                              sat_uniform_sum *sum) {
    bool on = next.begin < now->end && next.begin >= now->begin && next.end >= now->end;
    if (on) {
        sat_range gone = {now->begin, next.begin}, come = {now->end, next.end};
        sat_uniform_add_range(u, s, b, head, line, gone, x, -1, sum);
        sat_uniform_add_range(u, s, b, head, line, come, x, 1, sum);
    } else {
        memset(sum, 0, sizeof *sum);
        sat_uniform_add_range(u, s, b, head, line, next, x, 1, sum);
    }
    *now = next;
}

/* What one head adds to a line of keys that several share. */
SAT_LINE static inline void sat_uniform_join(sat_uniform_sum *all, const sat_uniform_sum *one) {
    for (int v = 0; v < SAT_VECTORS; v++)
        for (int e = 0; e < SAT_LANES; e++) all->x[v][e] += one->x[v][e];
    for (int e = 0; e < 2; e++) all->square[e] += one->square[e];
    all->count += one->count;
}

/* How many keys a query keeps. */
SAT_BOTH static inline int64_t sat_uniform_count(const sat_mask *k, int64_t head, int64_t i) {
    sat_range r = sat_keys_of(k, i);
    int64_t count = 0;
    if (k->full || r.end <= r.begin) return sat_max(0, r.end - r.begin);
    int64_t row = sat_mask_row(k, head, i);
    for (int64_t t = sat_mask_find(k, row, r.begin / k->block_cols); t < k->row_ptr[row + 1]; t++) {
        int64_t from = k->col_idx[t] * k->block_cols;
        if (from >= r.end) break;
        count += sat_min(from + k->block_cols, r.end) - sat_max(from, r.begin);
    }
    return count;
}

/* ---- bounds ---- */

/* u*(16 + 4*log C), and on tensor cores what truncation adds: over max|V|. */
SAT_BOTH static inline double sat_uniform_slack(const sat_uniform *u, double count) {
    bool truncates = u->backend == SAT_CUDA && (u->p.a_dtype != SAT_F32 || sat_rounds_to_tf32(&u->p)) &&
                     u->p.compute_dtype == SAT_F32;
    return sat_unit(u->p.compute_dtype) * (16 + 4 * log(count) + (truncates ? sqrt(count) : 0));
}

/* An element of O, by the sum of V over the keys that are kept. */
SAT_BOTH static inline double sat_uniform_o(const sat_uniform *u, double sum, int64_t kept, double *bound) {
    double count = (double)kept, want = kept ? sum / count : 0;
    double rel = 1.001 * sat_unit(u->p.c_dtype) + sat_low_unit(&u->p) + count * sat_tiny(u->p.a_dtype);
    *bound = kept ? rel * fabs(want) + sat_uniform_slack(u, count) * u->v_most + sat_tiny(u->p.c_dtype) : 0;
    return want;
}

/* LSE is f32 in any case. A logarithm is good for 4 units of its result, or of 1. */
SAT_BOTH static inline double sat_uniform_lse(const sat_problem *p, int64_t kept, double *bound) {
    double want = kept ? log((double)kept) : -INFINITY;
    *bound = kept ? 0x1p-24 * (16 + 8 * want) + sat_exp_loss(p) : 0;
    return want;
}

/* The same where each query keeps a sink too, which is worth exp(sink) keys with values of zeros: exp is good for a few
 * units, and for those of the sink. */
SAT_BOTH static inline double sat_uniform_o_with(const sat_uniform *u, double sink, double sum, int64_t kept,
                                                 double *bound) {
    double want = sat_uniform_o(u, sum, kept, bound), keys = (double)kept;
    if (kept == 0 || isinf(sink)) return want;
    double factor = keys / (keys + exp(sink));
    *bound = *bound * factor + sat_tiny(u->p.c_dtype) +
             sat_unit(u->p.compute_dtype) * (16 + 8 * fabs(sink)) * fabs(want * factor);
    return want * factor;
}

SAT_BOTH static inline double sat_uniform_lse_with(const sat_problem *p, double sink, int64_t kept, double *bound) {
    double want = sat_uniform_lse(p, kept, bound);
    if (isinf(sink)) return want;
    want = log((double)kept + exp(sink));
    *bound = 0x1p-24 * (16 + 8 * fabs(sink) + 8 * fabs(want)) + sat_exp_loss(p);
    return want;
}

/* What a query of the gradients is: s = dO*v, delta = dO*O, and the sums of |dO*O| and of |dO|. */
SAT_BOTH static inline sat_uniform_query sat_uniform_query_of(const sat_uniform *u, int64_t kept, double lse, double s,
                                                              double delta, double delta_size, double d_size) {
    const sat_problem *p = &u->p;
    sat_uniform_query q;
    memset(&q, 0, sizeof q);
    if (kept == 0) return q;
    double unit = sat_unit(p->compute_dtype), count = (double)kept;
    double eps =
        sat_loss_of(p, false, 0, fabs(lse), 0).weight + 0x1p-24 * (16 + 8 * fabs(lse)); /* 1/C from C itself, too */
    double size = u->v_most * fabs(s) + fabs(delta);
    /* O is given, rounded; a kernel may also use what it was before that */
    double delta_off = delta_size * (2.002 * sat_unit(p->c_dtype) + sat_value_loss(p)) +
                       d_size * (sat_uniform_slack(u, count) * u->v_most + sat_tiny(p->c_dtype));
    q.delta = delta, q.delta_off = delta_off;
    int64_t share = p->attention.heads / p->attention.kv_heads;
    int64_t elements = sat_uniform_elements(p);
    double of_keys = sat_loss_of_sum(p, u->backend, p->m * share, elements).most;
    double of_queries = sat_loss_of_sum(p, u->backend, kept, elements).most;
    q.weight = exp(-lse), q.slope = q.weight * s, q.shift = q.weight * delta;
    double ds_off = q.weight * (size * (2 * eps + 8 * unit) + delta_off) + sat_tiny(p->a_dtype);
    double dv = q.weight * (eps + of_keys) + sat_tiny(p->a_dtype), dk = ds_off + of_keys * q.weight * size;
    q.dv_square = dv * dv, q.dk_square = dk * dk;
    q.dq_off = sqrt(count) * (ds_off + of_queries * q.weight * size);
    return q;
}

/* `rows` terms: what the check itself may lose, which only f64 sees. */
SAT_BOTH static inline double sat_uniform_own(int64_t rows, double term) { return 0x1p-49 * (double)rows * term; }

SAT_BOTH static inline double sat_uniform_bound(const sat_uniform *u, double want, double wide) {
    double before = wide + u->rel * fabs(want);
    return before + 1.001 * sat_unit(u->p.c_dtype) * (fabs(want) + before) + sat_tiny(u->p.c_dtype);
}

SAT_BOTH static inline double sat_uniform_dv(const sat_uniform *u, double sum, double squares, int64_t kept,
                                             double *bound) {
    double wide = u->d_most * (u->d_sure * sqrt(fmax(0.0, squares)) + sat_uniform_own(u->p.m, 1));
    *bound = kept ? sat_uniform_bound(u, sum, wide) : 0;
    return kept ? sum : 0;
}

/* c: of the key; sums of s/C*q and of delta/C*q. */
SAT_BOTH static inline double sat_uniform_dk(const sat_uniform *u, double c, double slopes, double shifts,
                                             double squares, int64_t kept, double *bound) {
    double alpha = fabs(u->p.alpha), dim = (double)sat_value_dim(&u->p.attention), size = u->v_most * u->d_most * dim;
    double wide = alpha * u->q_most * (u->q_sure * sqrt(fmax(0.0, squares)) + sat_uniform_own(u->p.m, 2 * size));
    double want = kept ? u->p.alpha * (c * slopes - shifts) : 0;
    *bound = kept && !(u->q_most == 0) ? sat_uniform_bound(u, want, wide) : 0;
    return u->q_most == 0 ? 0 : want;
}

/* Sums of c*k and of k. */
SAT_BOTH static inline double sat_uniform_dq(const sat_uniform *u, const sat_uniform_query *q, double weighed,
                                             double plain, int64_t kept, double *bound) {
    double alpha = fabs(u->p.alpha), dim = (double)sat_value_dim(&u->p.attention), size = u->v_most * u->d_most * dim;
    double wide = alpha * u->k_most * (u->k_sure * q->dq_off + sat_uniform_own(u->p.n, 2 * size * q->weight));
    double want = kept ? u->p.alpha * (q->slope * weighed - q->shift * plain) : 0;
    *bound = kept && !u->keys_are_zero ? sat_uniform_bound(u, want, wide) : 0;
    return u->keys_are_zero ? 0 : want;
}

#endif
