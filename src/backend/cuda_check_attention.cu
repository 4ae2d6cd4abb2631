/* Attention's check on the device: what src/ops/attention_check.c does, read there and in its header for why, without
 * moving an operand to the host. */
#include "backend/cuda_check_uniform.cuh"
#include "ops/attention_check.h"

#define DEVICE_WORK 1e10 /* multiply-adds in double precision that an expectation may take */

enum { SETS = 4, WARPS = 8 };

/* The largest of a head's elements and of its rows' norms. */
enum { K_LARGEST, K_NORM, V_LARGEST, V_NORM, Q_LARGEST, Q_NORM, D_LARGEST, D_NORM, TOPS };

struct expectation : expectation_base {
    uint64_t seed;
    int sets;
    sat_lines set[SETS];
    double *most; /* the largest element of V; on the device */
};

struct job {
    sat_problem p;
    sat_mask mask;
    bool far;                      /* scores are far apart */
    bool lone;                     /* and the largest alone counts */
    const void *q, *k, *v, *o, *d; /* d: dO */
    const float *lse, *sinks;      /* sinks: NULL where there are none */
    expectation e;
    double *top; /* [TOPS][batch*heads] */
    double *q_norm, *d_norm, *delta, *delta_loss,
        *k_norm; /* of rows; backward. delta: dO*O, and what it may be off by */
};

/* ---- the expectation's size ---- */

static int describe(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_lines set[SETS]) {
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    double work = sat_attention_flops(p, a) * (back ? 0.7 : 0.5);
    int64_t step = 1;
    while (step < SAT_LINE_STEP && work / (double)step > (fill_case ? DEVICE_WORK / 8 : DEVICE_WORK)) step *= 2;
    sat_lines queries = {}, keys = {};
    queries.heads = t->heads, queries.rows = p->m, queries.cols = t->dim, queries.step = step;
    keys.heads = t->kv_heads, keys.rows = p->n, keys.cols = t->dim, keys.step = step;
    queries.groups = sat_line_groups(p->m, step), keys.groups = sat_line_groups(p->n, step);
    set[0] = queries, set[0].operand = back ? 6 : 3;
    if (back) {
        set[1] = keys, set[1].operand = 7;
        set[2] = keys, set[2].operand = 8, set[2].cols = sat_value_dim(t);
        sat_lines sinks = {};
        sinks.operand = 10, sinks.heads = t->heads, sinks.rows = sinks.cols = sinks.step = sinks.groups = 1;
        set[3] = sinks;
        return t->sinks ? 4 : 3;
    }
    set[0].cols = sat_value_dim(t);
    set[1] = queries, set[1].operand = 4, set[1].cols = 1;
    return t->lse ? 2 : 1;
}

SAT_BOTH static int64_t line_count(const sat_problem *p, const sat_lines *s) { return p->batch * s->heads * s->groups; }

static int64_t doubles_of(const sat_problem *p, const sat_lines *set, int sets) {
    const sat_attention *t = &p->attention;
    int64_t all = 1 + TOPS * p->batch * t->heads;
    for (int i = 0; i < sets; i++) all += line_count(p, &set[i]) * (set[i].cols + 3);
    if (p->op == SAT_ATTENTION_BACKWARD) all += p->batch * (4 * t->heads * p->m + t->kv_heads * p->n);
    return all;
}

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    if (probe == SAT_PROBE_STRUCTURE) return sat_cuda_uniform_bytes(p, a);
    sat_lines set[SETS];
    int sets = describe(p, a, 0, set);
    return (size_t)doubles_of(p, set, sets) * sizeof(double) + 4096;
}

/* ---- rows, an element in each lane and then every 32nd ---- */

template <typename T, int PER> __device__ static void load_as(double (&r)[PER], const T *from, int64_t dim) {
#pragma unroll
    for (int e = 0; e < PER; e++) {
        int64_t x = threadIdx.x % 32 + 32 * e;
        r[e] = x < dim ? (double)(float)from[x] : 0;
    }
}

template <int PER>
__device__ static void load_row(double (&r)[PER], sat_dtype t, const void *base, int64_t at, int64_t dim) {
    switch (t) {
    case SAT_F16: load_as((r), (const __half *)base + at, dim); break;
    case SAT_BF16: load_as((r), (const __nv_bfloat16 *)base + at, dim); break;
    case SAT_F32: load_as((r), (const float *)base + at, dim); break;
    case SAT_F64:
#pragma unroll
        for (int e = 0; e < PER; e++) {
            int64_t x = threadIdx.x % 32 + 32 * e;
            r[e] = x < dim ? ((const double *)base)[at + x] : 0;
        }
    }
}

template <int PER> __device__ static double dot(const double (&x)[PER], const double (&y)[PER]) {
    double sum = 0;
#pragma unroll
    for (int e = 0; e < PER; e++) sum += x[e] * y[e];
    return warp_sum(sum);
}

template <int PER> __device__ static void add(double (&y)[PER], const double (&x)[PER], double factor) {
#pragma unroll
    for (int e = 0; e < PER; e++) y[e] += factor * x[e];
}

__device__ static void grow(double *to, double x) { /* never negative: as bits they order alike */
    atomicMax((unsigned long long *)to, (unsigned long long)__double_as_longlong(x));
}

/* The largest elements and norms of an operand's rows, a warp a row. */
template <int PER>
static __global__ void measure(job w, const void *base, sat_heads s, int64_t heads, int64_t rows, int64_t dim,
                               double *norms, double *largest, double *largest_norm, double *most) {
    int64_t all = w.p.batch * heads * rows, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        double r[PER], top = 0;
        int64_t bh = at / rows;
        load_row(r, w.p.a_dtype, base, sat_heads_at(&s, bh / heads, bh % heads, at % rows), dim);
#pragma unroll
        for (int e = 0; e < PER; e++) top = fmax(top, fabs(r[e]));
        for (int d = 16; d > 0; d /= 2) top = fmax(top, __shfl_xor_sync(~0u, top, d));
        double norm = sqrt(dot(r, r));
        if (threadIdx.x % 32) continue;
        if (norms) norms[at] = norm;
        grow(largest + bh, top), grow(largest_norm + bh, norm);
        if (most) grow(most, top);
    }
}

template <int PER> static __global__ void find_delta(job w) {
    const sat_attention &t = w.p.attention;
    int64_t all = w.p.batch * t.heads * w.p.m, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        double o[PER], d[PER];
        int64_t bh = at / w.p.m, b = bh / t.heads, h = bh % t.heads, i = at % w.p.m;
        load_row(o, w.p.a_dtype, w.o, sat_heads_at(&t.o, b, h, i), sat_value_dim(&t));
        load_row(d, w.p.a_dtype, w.d, sat_heads_at(&t.do_, b, h, i), sat_value_dim(&t));
        double sum = dot(o, d), o_norm = sqrt(dot(o, o)), d_norm = sqrt(dot(d, d));
        double v_norm = w.top[V_NORM * w.p.batch * t.heads + b * t.kv_heads + h / (t.heads / t.kv_heads)];
        if (threadIdx.x % 32 == 0) w.delta[at] = sum, w.delta_loss[at] = sat_delta_loss(&w.p, d_norm, o_norm, v_norm);
    }
}

__device__ static double of_sink(const job &w, int64_t head) { return w.sinks ? (double)w.sinks[head] : -INFINITY; }

/* Calls for every run of keys that query i keeps. */
template <typename F> __device__ static void each_run(const sat_mask &k, int64_t h, int64_t i, F run) {
    sat_range r = sat_keys_of(&k, i);
    if (r.end <= r.begin) return;
    if (k.full) {
        run(r.begin, r.end);
        return;
    }
    int64_t row = sat_mask_row(&k, h, i);
    for (int64_t t = sat_mask_find(&k, row, r.begin / k.block_cols); t < k.row_ptr[row + 1]; t++) {
        int64_t from = k.col_idx[t] * k.block_cols;
        if (from >= r.end) break;
        run(sat_max(from, r.begin), sat_min(from + k.block_cols, r.end));
    }
}

/* What the warps of a CTA have summed up apart, together: the result in `out`, which all threads see afterwards. */
template <int PER>
__device__ static void join(double (*part)[PER * 32], const double (&sum)[PER], double *out, int64_t dim) {
    __syncthreads();
#pragma unroll
    for (int e = 0; e < PER; e++) part[threadIdx.x / 32][threadIdx.x % 32 + 32 * e] = sum[e];
    __syncthreads();
    for (int64_t x = threadIdx.x; x < dim; x += WARPS * 32) {
        double all = 0;
        for (int i = 0; i < WARPS; i++) all += part[i][x];
        out[x] = all;
    }
}

/* The sum over the CTA's warps of a number that all lanes of each have. */
__device__ static double join_one(double x) {
    __shared__ double part[WARPS];
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    double all = 0;
    for (int i = 0; i < WARPS; i++) all += part[i];
    return all;
}

/* ---- a line of O and LSE: a CTA has one, each warp every eighth key ---- */

struct online {
    double largest, total, squares, count;
};

template <int PER> __device__ static void forward_line(const job &w, int64_t g, double (*part)[PER * 32]) {
    const sat_attention &t = w.p.attention;
    const sat_lines &o = w.e.set[0];
    int64_t bh = g / o.groups, b = bh / t.heads, h = bh % t.heads, kv = h / (t.heads / t.kv_heads);
    int64_t i = sat_line_row(&o, w.e.seed, g);
    double q[PER], x[PER], sum[PER] = {};
    online s = {-INFINITY, 0, 0, 0};
    load_row(q, w.p.a_dtype, w.q, sat_heads_at(&t.q, b, h, i), t.dim);
    each_run(w.mask, h, i, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin + threadIdx.x / 32; j < end; j += WARPS) {
            load_row(x, w.p.a_dtype, w.k, sat_heads_at(&t.k, b, kv, j), t.dim);
            double score = sat_capped(&w.p, w.p.alpha * dot(q, x));
            if (score > s.largest) {
                double less = exp(s.largest - score); /* 0 at first */
#pragma unroll
                for (int e = 0; e < PER; e++) sum[e] *= less;
                s.total *= less, s.squares *= less * less, s.largest = score;
            }
            double weight = exp(score - s.largest);
            s.total += weight, s.squares += weight * weight, s.count++;
            load_row(x, w.p.a_dtype, w.v, sat_heads_at(&t.v, b, kv, j), sat_value_dim(&t));
            add(sum, x, weight);
        }
    });
    __shared__ double tops[WARPS];
    __syncthreads();
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = s.largest;
    __syncthreads();
    double sink = of_sink(w, h), largest = sink;
    bool sunk = !isinf(sink);
    for (int k = 0; k < WARPS; k++) largest = fmax(largest, tops[k]);
    double less = s.count > 0 ? exp(s.largest - largest) : 0;
    double depth = join_one(s.count), total = join_one(s.total * less), squares = join_one(s.squares * less * less);
    if (sunk) total += exp(sink - largest);
    if (depth == 0) total = 1;
#pragma unroll
    for (int e = 0; e < PER; e++) sum[e] *= less / total;
    join(part, sum, o.value + g * o.cols, o.cols);
    double q_norm = sqrt(dot(q, q));
    if (threadIdx.x) return;
    int64_t kv_at = b * t.kv_heads + kv, pitch = w.p.batch * t.heads;
    double v_largest = w.top[V_LARGEST * pitch + kv_at];
    double magnitude = fabs(w.p.alpha) * q_norm * w.top[K_NORM * pitch + kv_at];
    sat_row_loss loss = sat_loss_of(&w.p, w.far, magnitude, sunk ? fabs(sink) : 0, depth + sunk);
    o.wide[g] = sat_walk_bound(&w.p, loss, sqrt(squares) / total * v_largest, depth, v_largest);
    o.rel[g] = sat_rel_bound(&w.p, loss), o.scale[g] = v_largest;
    if (w.lone) o.wide[g] = sat_far_bound(&w.p, largest, total, v_largest);
    if (w.lone) o.rel[g] = 1.001 * sat_unit(w.p.c_dtype) + sat_low_unit(&w.p);
    if (depth == 0) o.wide[g] = 0;
    if (w.e.sets < 2) return;
    const sat_lines &l = w.e.set[1];
    double log_sum = depth > 0 || sunk ? largest + log(total) : -INFINITY;
    l.value[g] = log_sum, l.scale[g] = 1 + fabs(log_sum), l.rel[g] = 0;
    l.wide[g] = loss.weight + loss.sum + 0x1p-23 * (1 + fabs(log_sum));
    if (w.lone) l.wide[g] = sat_far_lse_bound(&w.p, largest, total);
    if (depth == 0) l.wide[g] = sunk ? 0x1p-22 * (1 + fabs(log_sum)) : 0;
}

template <int PER> static __global__ void __launch_bounds__(WARPS * 32) forward_lines(job w) {
    __shared__ double part[WARPS][PER * 32];
    int64_t all = line_count(&w.p, &w.e.set[0]);
    for (int64_t g = blockIdx.x; g < all; g += gridDim.x) forward_line<PER>(w, g, part);
}

/* ---- lines of the gradients ---- */

struct pair {
    double weight, ds, weight_error, ds_error;
    double size; /* of what dS is the difference of */
};

/* One pair: its weight, and dS/alpha, and what either may be off by. */
__device__ static pair pair_of(const sat_problem &p, bool far, double score, double dp, double lse, double delta,
                               double delta_loss, double magnitude, double d_norm, double v_norm) {
    double slope = sat_cap_slope(&p, score);
    double eps = sat_loss_of(&p, far, magnitude, fabs(lse), 0).weight;
    pair x;
    x.weight = exp(sat_capped(&p, score) - lse), x.ds = x.weight * (dp - delta) * slope;
    x.weight_error = x.weight * eps + sat_lost_weight(far);
    x.size = x.weight * (fabs(dp) + fabs(delta));
    double dp_error = d_norm * sat_value_loss(&p) * v_norm + delta_loss;
    x.ds_error = fabs(x.ds) * 2 * eps + x.weight * dp_error + sat_lost_weight(far) * fabs(dp - delta);
    x.ds_error += x.weight * fabs(dp - delta) * sat_slope_loss(&p, far, magnitude);
    return x;
}

/* A gradient's bounds, from the random walks of its terms and of their errors; its line is multiplied by alpha. */
__device__ static void bound_gradient(const sat_problem &p, bool far, const sat_lines &s, int64_t line, double alpha,
                                      double squares, double errors, double sizes, double depth, double largest,
                                      double magnitude) {
    sat_row_loss loss = sat_loss_of(&p, far, magnitude, 0, depth);
    double wide = SAT_SURE * largest * (sqrt(errors) + loss.sum * sqrt(squares) + sqrt(depth) * sat_tiny(p.a_dtype));
    s.wide[line] = depth > 0 ? fabs(alpha) * wide + sat_tiny(p.c_dtype) : 0;
    s.rel[line] = sat_rel_bound(&p, loss) + loss.weight;
    s.scale[line] = fabs(alpha) * sqrt(sizes) * largest;
}

template <int PER> __device__ static void query_line(const job &w, int64_t g, double (*part)[PER * 32]) {
    const sat_attention &t = w.p.attention;
    const sat_lines &s = w.e.set[0];
    int64_t bh = g / s.groups, b = bh / t.heads, h = bh % t.heads, kv = h / (t.heads / t.kv_heads);
    int64_t i = sat_line_row(&s, w.e.seed, g), at = bh * w.p.m + i, kv_at = b * t.kv_heads + kv;
    int64_t pitch = w.p.batch * t.heads;
    double q[PER], d[PER], k[PER], v[PER], sum[PER] = {}, v_norm = w.top[V_NORM * pitch + kv_at];
    double squares = 0, errors = 0, sizes = 0, weights = 0, count = 0, q_norm = w.q_norm[at], d_norm = w.d_norm[at];
    load_row(q, w.p.a_dtype, w.q, sat_heads_at(&t.q, b, h, i), t.dim);
    load_row(d, w.p.a_dtype, w.d, sat_heads_at(&t.do_, b, h, i), sat_value_dim(&t));
    each_run(w.mask, h, i, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin + threadIdx.x / 32; j < end; j += WARPS) {
            load_row(k, w.p.a_dtype, w.k, sat_heads_at(&t.k, b, kv, j), t.dim);
            load_row(v, w.p.a_dtype, w.v, sat_heads_at(&t.v, b, kv, j), sat_value_dim(&t));
            double magnitude = fabs(w.p.alpha) * q_norm * w.k_norm[kv_at * w.p.n + j];
            pair x = pair_of(w.p, w.far, w.p.alpha * dot(q, k), dot(d, v), w.lse[at], w.delta[at], w.delta_loss[at],
                             magnitude, d_norm, v_norm);
            add(sum, k, x.ds * w.p.alpha);
            squares += x.ds * x.ds, errors += x.ds_error * x.ds_error, weights += x.weight,
                count += sat_counts(w.lone, x.weight);
            sizes += x.size * x.size;
        }
    });
    join(part, sum, s.value + g * t.dim, t.dim);
    squares = join_one(squares), errors = join_one(errors), weights = join_one(weights), count = join_one(count);
    sizes = join_one(sizes);
    if (threadIdx.x) return;
    double k_largest = w.top[K_LARGEST * pitch + kv_at];
    bound_gradient(w.p, w.far, s, g, w.p.alpha, squares, errors, sizes, count, k_largest,
                   fabs(w.p.alpha) * q_norm * w.top[K_NORM * pitch + kv_at]);
    /* dO*O is one number for the whole row: what it is off by is no random walk */
    s.wide[g] += fabs(w.p.alpha) * w.delta_loss[at] * weights * k_largest;
}

template <int PER> __device__ static void key_line(const job &w, int64_t g, double (*part)[PER * 32]) {
    const sat_attention &t = w.p.attention;
    const sat_lines &s = w.e.set[1];
    int64_t bh = g / s.groups, b = bh / t.kv_heads, kv = bh % t.kv_heads, share = t.heads / t.kv_heads;
    int64_t j = sat_line_row(&s, w.e.seed, g), pitch = w.p.batch * t.heads;
    double q[PER], d[PER], k[PER], v[PER], dk[PER] = {}, dv[PER] = {};
    double dk_squares = 0, dk_errors = 0, dk_sizes = 0, dv_squares = 0, dv_errors = 0, count = 0;
    double v_norm = w.top[V_NORM * pitch + bh], k_norm = w.k_norm[bh * w.p.n + j];
    load_row(k, w.p.a_dtype, w.k, sat_heads_at(&t.k, b, kv, j), t.dim);
    load_row(v, w.p.a_dtype, w.v, sat_heads_at(&t.v, b, kv, j), sat_value_dim(&t));
    sat_range r = sat_queries_of(&w.mask, j);
    for (int64_t h = kv * share; h < (kv + 1) * share; h++)
        for (int64_t begin = r.begin; begin < r.end;) {
            int64_t end = sat_min(r.end, (begin / w.mask.block_rows + 1) * w.mask.block_rows); /* they share a block */
            bool stored = sat_mask_stores(&w.mask, h, begin, j);
            for (int64_t i = begin + threadIdx.x / 32; stored && i < end; i += WARPS) {
                int64_t at = (b * t.heads + h) * w.p.m + i;
                load_row(q, w.p.a_dtype, w.q, sat_heads_at(&t.q, b, h, i), t.dim);
                load_row(d, w.p.a_dtype, w.d, sat_heads_at(&t.do_, b, h, i), sat_value_dim(&t));
                double magnitude = fabs(w.p.alpha) * w.q_norm[at] * k_norm;
                pair x = pair_of(w.p, w.far, w.p.alpha * dot(q, k), dot(d, v), w.lse[at], w.delta[at], w.delta_loss[at],
                                 magnitude, w.d_norm[at], v_norm);
                add(dk, q, x.ds * w.p.alpha), add(dv, d, x.weight);
                dk_squares += x.ds * x.ds, dk_errors += x.ds_error * x.ds_error, count += sat_counts(w.lone, x.weight);
                dk_sizes += x.size * x.size;
                dv_squares += x.weight * x.weight, dv_errors += x.weight_error * x.weight_error;
            }
            begin = end;
        }
    join(part, dk, s.value + g * t.dim, t.dim);
    join(part, dv, w.e.set[2].value + g * sat_value_dim(&t), sat_value_dim(&t));
    dk_squares = join_one(dk_squares), dk_errors = join_one(dk_errors), count = join_one(count);
    dk_sizes = join_one(dk_sizes), dv_squares = join_one(dv_squares), dv_errors = join_one(dv_errors);
    if (threadIdx.x) return;
    double q_largest = 0, d_largest = 0, q_norm = 0;
    for (int64_t h = b * t.heads + kv * share; h < b * t.heads + (kv + 1) * share; h++) {
        q_largest = fmax(q_largest, w.top[Q_LARGEST * pitch + h]), q_norm = fmax(q_norm, w.top[Q_NORM * pitch + h]);
        d_largest = fmax(d_largest, w.top[D_LARGEST * pitch + h]);
    }
    double magnitude = fabs(w.p.alpha) * q_norm * w.top[K_NORM * pitch + bh];
    bound_gradient(w.p, w.far, s, g, w.p.alpha, dk_squares, dk_errors, dk_sizes, count, q_largest, magnitude);
    bound_gradient(w.p, w.far, w.e.set[2], g, 1, dv_squares, dv_errors, dv_squares, count, d_largest, magnitude);
}

/* The gradient of a head's sink, of the whole batch: it is a line of every item. A CTA has a head. */
static __global__ void __launch_bounds__(WARPS * 32) lines_of_sinks(job w) {
    const sat_lines &s = w.e.set[3];
    int64_t h = blockIdx.x;
    double sink = of_sink(w, h), sum = 0, squares = 0, errors = 0, error_squares = 0;
    for (int64_t row = threadIdx.x / 32; row < w.p.batch * w.p.m && !isinf(sink); row += WARPS) {
        int64_t at = (row / w.p.m * s.heads + h) * w.p.m + row % w.p.m;
        double lse = w.lse[at], weight = exp(sink - lse), term = weight * w.delta[at];
        double error = sat_sink_loss(&w.p, sink, lse, weight, w.delta[at], w.delta_loss[at]);
        sum -= term, squares += term * term, errors += error, error_squares += error * error;
    }
    sum = join_one(sum), squares = join_one(squares);
    errors = join_one(errors), error_squares = join_one(error_squares);
    for (int64_t b = threadIdx.x; b < w.p.batch; b += WARPS * 32) {
        int64_t line = b * s.heads + h;
        s.value[line] = sum, s.wide[line] = sat_sink_bound(&w.p, error_squares, errors, squares);
        s.rel[line] = 0x1p-23, s.scale[line] = sqrt(squares);
    }
}

template <int PER> static __global__ void __launch_bounds__(WARPS * 32) query_lines(job w) {
    __shared__ double part[WARPS][PER * 32];
    int64_t all = line_count(&w.p, &w.e.set[0]);
    for (int64_t g = blockIdx.x; g < all; g += gridDim.x) query_line<PER>(w, g, part);
}

template <int PER> static __global__ void __launch_bounds__(WARPS * 32) key_lines(job w) {
    __shared__ double part[WARPS][PER * 32];
    int64_t all = line_count(&w.p, &w.e.set[1]);
    for (int64_t g = blockIdx.x; g < all; g += gridDim.x) key_line<PER>(w, g, part);
}

/* ---- comparing: a CTA has a group of lines ---- */

static __global__ void compare_lines(job w, int set, sat_heads place, const void *got) {
    const sat_lines &s = w.e.set[set];
    sat_dtype dtype = s.operand == 4 || s.operand == 10 ? SAT_F32 : w.p.c_dtype;
    int64_t all = line_count(&w.p, &s);
    double most = set == 0 && w.p.op == SAT_ATTENTION ? *w.e.most * (1 + 0x1p-4) : INFINITY; /* whatever P became */
    for (int64_t g = blockIdx.x; g < all; g += gridDim.x) {
        int64_t bh = g / s.groups, b = bh / s.heads, h = bh % s.heads, first = g % s.groups * s.step;
        int64_t mine = sat_line_row(&s, w.e.seed, g), rows = sat_min(s.step, s.rows - first);
        for (int64_t at = threadIdx.x; at < rows * s.cols; at += blockDim.x) {
            int64_t i = first + at / s.cols, x = at % s.cols;
            double y = sat_device_load(dtype, got, sat_heads_at(&place, b, h, i) + x);
            note(w.e.result, s.operand, i, x, y, 0, most, 0, bh);
            if (i != mine) continue;
            double want = s.value[g * s.cols + x];
            if (isinf(want) && y == want) continue;
            note(w.e.result, s.operand, i, x, y, want, s.wide[g] + s.rel[g] * fabs(want), s.scale[g], bh);
        }
    }
}

/* ---- the host's side ---- */

static job make_job(const sat_trial *t, const expectation *e) {
    job w = {};
    w.far = t->fill_case == SAT_FILL_FAR, w.lone = w.far && t->problem->attention.softcap == 0;
    w.p = *t->problem, w.mask = sat_device_mask_of(t->problem, t->pattern), w.e = *e;
    w.q = t->operands[0], w.k = t->operands[1], w.v = t->operands[2];
    if (t->problem->op == SAT_ATTENTION_BACKWARD)
        w.o = t->operands[3], w.lse = (const float *)t->operands[4], w.d = t->operands[5];
    if (t->problem->attention.sinks) w.sinks = (const float *)t->operands[sat_sinks_at(t->problem)];
    return w;
}

template <int PER> static void work_out(const job &w, cudaStream_t stream) {
    const sat_attention &t = w.p.attention;
    bool back = w.p.op == SAT_ATTENTION_BACKWARD;
    int64_t queries = w.p.batch * t.heads * w.p.m, keys = w.p.batch * t.kv_heads * w.p.n, pitch = w.p.batch * t.heads;
    const int threads = WARPS * 32;
    const int64_t value_dim = sat_value_dim(&t);
    unsigned of_queries = sat_blocks(queries, WARPS), of_keys = sat_blocks(keys, WARPS);
    auto top = [&](int which) { return w.top + which * pitch; };
    if (keys > 0) {
        measure<PER><<<of_keys, threads, 0, stream>>>(w, w.k, t.k, t.kv_heads, w.p.n, t.dim, w.k_norm, top(K_LARGEST),
                                                      top(K_NORM), NULL);
        measure<PER><<<of_keys, threads, 0, stream>>>(w, w.v, t.v, t.kv_heads, w.p.n, value_dim, NULL, top(V_LARGEST),
                                                      top(V_NORM), w.e.most);
    }
    if (!back) {
        if (queries > 0) forward_lines<PER><<<sat_blocks(line_count(&w.p, &w.e.set[0]), 1), threads, 0, stream>>>(w);
        return;
    }
    if (queries > 0) {
        measure<PER><<<of_queries, threads, 0, stream>>>(w, w.q, t.q, t.heads, w.p.m, t.dim, w.q_norm, top(Q_LARGEST),
                                                         top(Q_NORM), NULL);
        measure<PER><<<of_queries, threads, 0, stream>>>(w, w.d, t.do_, t.heads, w.p.m, value_dim, w.d_norm,
                                                         top(D_LARGEST), top(D_NORM), NULL);
        find_delta<PER><<<of_queries, threads, 0, stream>>>(w);
        query_lines<PER><<<sat_blocks(line_count(&w.p, &w.e.set[0]), 1), threads, 0, stream>>>(w);
    }
    if (t.sinks) lines_of_sinks<<<(unsigned)t.heads, threads, 0, stream>>>(w);
    if (keys > 0) key_lines<PER><<<sat_blocks(line_count(&w.p, &w.e.set[1]), 1), threads, 0, stream>>>(w);
}

static expectation *allocate(const sat_trial *t, uint64_t seed, job *w) {
    const sat_problem *p = t->problem;
    sat_lines set[SETS];
    int sets = describe(p, t->pattern, t->fill_case, set);
    expectation *e = make_expectation<expectation>((size_t)doubles_of(p, set, sets));
    if (!e) return NULL;
    double *at = e->memory;
    e->seed = seed, e->sets = sets, e->most = at++;
    for (int i = 0; i < sets; i++) {
        int64_t lines = line_count(p, &set[i]);
        e->set[i] = set[i];
        e->set[i].value = at, at += lines * set[i].cols;
        e->set[i].wide = at, e->set[i].rel = at + lines, e->set[i].scale = at + 2 * lines, at += 3 * lines;
    }
    *w = make_job(t, e);
    w->top = at, at += TOPS * p->batch * p->attention.heads;
    if (p->op == SAT_ATTENTION_BACKWARD) {
        int64_t queries = p->batch * p->attention.heads * p->m;
        w->q_norm = at, w->d_norm = at + queries, w->delta = at + 2 * queries;
        w->delta_loss = at + 3 * queries, w->k_norm = at + 4 * queries;
    }
    return e;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    if (probe == SAT_PROBE_STRUCTURE) return sat_cuda_uniform_expect(t, out);
    const sat_problem *p = t->problem;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    job w;
    expectation *e = allocate(t, seed, &w);
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of %lld x %lld scores", (long long)p->m,
                        (long long)p->n);
    }
    cudaError_t error = cudaMemsetAsync(e->memory, 0, (char *)e->result - (char *)e->memory, stream);
    if (error == cudaSuccess) {
        int64_t dim = sat_max(p->attention.dim, sat_value_dim(&p->attention));
        if (dim <= 64) work_out<2>(w, stream);
        else if (dim <= 128) work_out<4>(w, stream);
        else if (dim <= 256) work_out<8>(w, stream);
        else work_out<SAT_ATTENTION_MAX_DIM / 32>(w, stream);
        error = cudaGetLastError();
    }
    sat_status status = finish_expectation(e, error, stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

static void words(char *to, size_t size, const outcome *o) {
    static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", "sinks", "dsinks"};
    snprintf(to, size, "%s: head %lld (over the batch), row %lld, element %lld: off by %.3g where rounding allows %.3g",
             names[o->kind], o->head, o->line, o->column, fabs(o->got - o->want), o->bound);
}

static sat_heads place_of(const sat_problem *p, int operand) {
    const sat_attention *t = &p->attention;
    const sat_heads lse = {t->heads * p->m, p->m, 1}, sinks = {0, 1, 1};
    switch (operand) {
    case 3: return t->o;
    case 4: return lse;
    case 6: return t->dq;
    case 7: return t->dk;
    case 10: return sinks;
    default: return t->dv;
    }
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    if (e->exact) return sat_cuda_uniform_compare(t, e, finding);
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    job w = make_job(t, e);
    for (int i = 0; i < e->sets; i++) {
        int64_t lines = line_count(t->problem, &e->set[i]);
        if (lines > 0)
            compare_lines<<<sat_blocks(lines, 1), 256, 0, stream>>>(w, i, place_of(t->problem, e->set[i].operand),
                                                                    t->operands[e->set[i].operand]);
    }
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_attention_check = {bytes, expect, compare, free_expectation};
