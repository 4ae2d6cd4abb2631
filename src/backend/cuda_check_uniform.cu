/* The uniform probe of attention on the device: what src/ops/attention_uniform.c does, with the same arithmetic, which
 * is in its header. A thread has one column. */
#include "backend/cuda_check_uniform.cuh"

#include "ops/attention_uniform.h"

enum { WARPS = 8, KEY_LINES = 4 };

struct expectation : expectation_base {
    sat_uniform u; /* tables and queries are in device memory */
};

size_t sat_cuda_uniform_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return (size_t)sat_uniform_room(p, a) * sizeof(double) + 4096;
}

/* ---- tables ---- */

/* The sums of one cell, to the place of the next one: a CTA has a cell. */
static __global__ void sum_cells(const __grid_constant__ sat_uniform u, bool of_queries) {
    const sat_uniform_side *s = of_queries ? &u.queries : &u.keys;
    int64_t dim = sat_uniform_dim(&u.p, of_queries), all = u.p.batch * s->heads * s->cells;
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        int64_t bh = at / s->cells, cell = at % s->cells;
        double *to = s->table + (bh * (s->cells + 1) + cell + 1) * s->width;
        for (int64_t x = threadIdx.x; x < dim; x += blockDim.x) {
            sat_uniform_sum sum;
            memset(&sum, 0, sizeof sum);
            for (int64_t i = cell * s->cell; i < (cell + 1) * s->cell; i++)
                sat_uniform_add_row(&u, s, bh / s->heads, bh % s->heads, i, x, 1, &sum);
            for (int v = 0; v < s->vectors; v++) to[v * dim + x] = sum.x[v][0];
            if (x == 0) to[s->vectors * dim] = sum.square[0], to[s->vectors * dim + 1] = sum.square[1];
        }
    }
}

/* Each becomes the sum of all before it; the first stays 0. */
static __global__ void add_up_cells(const __grid_constant__ sat_uniform u, bool of_queries) {
    const sat_uniform_side *s = of_queries ? &u.queries : &u.keys;
    int64_t all = u.p.batch * s->heads * s->width, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        double *table = s->table + at / s->width * (s->cells + 1) * s->width + at % s->width, sum = 0;
        for (int64_t cell = 1; cell <= s->cells; cell++) sum += table[cell * s->width], table[cell * s->width] = sum;
    }
}

/* ---- queries of the gradients: a warp has one ---- */

static __global__ void make_queries(const __grid_constant__ sat_uniform u) {
    const sat_attention &t = u.p.attention;
    int64_t all = u.p.batch * t.heads * u.p.m, step = (int64_t)gridDim.x * WARPS;
    for (int64_t at = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; at < all; at += step) {
        int64_t bh = at / u.p.m, b = bh / t.heads, h = bh % t.heads, i = at % u.p.m, kv = h / (t.heads / t.kv_heads);
        int64_t kept = sat_uniform_count(&u.mask, h, i), first = sat_heads_at(&t.v, b, kv, 0);
        double s = 0, delta = 0, delta_size = 0, d_size = 0;
        for (int64_t x = threadIdx.x % 32; kept && x < sat_value_dim(&t); x += 32) {
            double d = sat_device_load(u.p.a_dtype, u.d, sat_heads_at(&t.do_, b, h, i) + x);
            double o = sat_device_load(u.p.a_dtype, u.o, sat_heads_at(&t.o, b, h, i) + x);
            double v = sat_device_load(u.p.a_dtype, u.v, first + x);
            s += d * v, delta += d * o, delta_size += fabs(d * o), d_size += fabs(d);
        }
        s = warp_sum(s), delta = warp_sum(delta), delta_size = warp_sum(delta_size), d_size = warp_sum(d_size);
        if (threadIdx.x % 32) continue;
        if (kept) s /= sat_device_load(u.p.a_dtype, u.v, first); /* v is +-1 */
        u.query[at] = sat_uniform_query_of(&u, kept, (double)u.lse[at], s, delta, delta_size, d_size);
    }
}

/* ---- comparing: a CTA has a chunk of lines ---- */

struct run {
    sat_uniform u;
    const void *o, *dk, *dv;           /* o: or dQ */
    const float *lse, *sinks, *dsinks; /* sinks: NULL where there are none */
    outcome *result;
};

__device__ static double of_sink(const run &r, int64_t head) { return r.sinks ? (double)r.sinks[head] : -INFINITY; }

__device__ static void compare_one(const run &r, int operand, int64_t bh, int64_t row, int64_t x, double got,
                                   double want, double bound) {
    if (isinf(want) && got == want) return;
    note(r.result, operand, row, x, got, want, bound, 0, bh);
}

static __global__ void compare_queries(const __grid_constant__ run r) {
    const sat_uniform &u = r.u;
    const sat_attention &t = u.p.attention;
    bool back = u.p.op == SAT_ATTENTION_BACKWARD;
    int64_t chunks = sat_uniform_chunks(u.p.m, u.mask.block_rows), all = u.p.batch * t.heads * chunks;
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        int64_t bh = at / chunks, b = bh / t.heads, h = bh % t.heads;
        sat_range lines = sat_uniform_chunk(u.p.m, u.mask.block_rows, at % chunks);
        double sink = of_sink(r, h);
        for (int64_t x = threadIdx.x; x < (back ? t.dim : sat_value_dim(&t)); x += blockDim.x) {
            sat_range now = {0, 0};
            sat_uniform_sum sum;
            memset(&sum, 0, sizeof sum);
            for (int64_t i = lines.begin; i < lines.end; i++) {
                double bound, want;
                sat_uniform_slide(&u, &u.keys, b, h, i, &now, sat_keys_of(&u.mask, i), x, &sum);
                if (back)
                    want = sat_uniform_dq(&u, &u.query[bh * u.p.m + i], sum.x[0][0], sum.x[1][0], sum.count, &bound);
                else want = sat_uniform_o_with(&u, sink, sum.x[0][0], sum.count, &bound);
                double got = sat_device_load(u.p.c_dtype, r.o, sat_heads_at(back ? &t.dq : &t.o, b, h, i) + x);
                compare_one(r, back ? 6 : 3, bh, i, x, got, want, bound);
                if (x > 0 || !t.lse) continue;
                want = sat_uniform_lse_with(&u.p, sink, sum.count, &bound);
                compare_one(r, 4, bh, i, 0, (double)r.lse[bh * u.p.m + i], want, bound);
            }
        }
    }
}

/* Lines of keys from `first` on, in column x; all heads that share them are added up. */
__device__ static void compare_few_keys(const run &r, int64_t bh, int64_t first, int64_t end, int64_t x) {
    const sat_uniform &u = r.u;
    const sat_attention &t = u.p.attention;
    int64_t b = bh / t.kv_heads, kv = bh % t.kv_heads, share = t.heads / t.kv_heads;
    sat_uniform_sum sums[KEY_LINES];
    memset(sums, 0, sizeof sums);
    for (int64_t h = kv * share; h < (kv + 1) * share; h++) {
        sat_range now = {0, 0};
        sat_uniform_sum sum;
        memset(&sum, 0, sizeof sum);
#pragma unroll 1
        for (int e = 0; e < KEY_LINES; e++) {
            if (first + e >= end) continue;
            sat_uniform_slide(&u, &u.queries, b, h, first + e, &now, sat_queries_of(&u.mask, first + e), x, &sum);
            sat_uniform_join(&sums[e], &sum);
        }
    }
#pragma unroll 1
    for (int e = 0; e < KEY_LINES; e++) {
        int64_t j = first + e;
        const sat_uniform_sum &s = sums[e];
        if (j >= end) continue;
        double bound, of_key = sat_device_load(u.p.a_dtype, u.v, sat_heads_at(&t.v, b, kv, j));
        double want = sat_uniform_dk(&u, of_key, s.x[1][0], s.x[2][0], s.square[1], s.count, &bound);
        int64_t at_dk = sat_heads_at(&t.dk, b, kv, j) + x, at_dv = sat_heads_at(&t.dv, b, kv, j) + x;
        if (x < t.dim) compare_one(r, 7, bh, j, x, sat_device_load(u.p.c_dtype, r.dk, at_dk), want, bound);
        want = sat_uniform_dv(&u, s.x[0][0], s.square[0], s.count, &bound);
        if (x < sat_value_dim(&t)) compare_one(r, 8, bh, j, x, sat_device_load(u.p.c_dtype, r.dv, at_dv), want, bound);
    }
}

static __global__ void compare_keys(const __grid_constant__ run r) {
    const sat_uniform &u = r.u;
    int64_t chunks = sat_uniform_chunks(u.p.n, u.mask.block_cols), all = u.p.batch * u.p.attention.kv_heads * chunks;
    for (int64_t at = blockIdx.x; at < all; at += gridDim.x) {
        sat_range lines = sat_uniform_chunk(u.p.n, u.mask.block_cols, at % chunks);
        for (int64_t j = lines.begin; j < lines.end; j += KEY_LINES)
            for (int64_t x = threadIdx.x; x < sat_uniform_dim(&u.p, true); x += blockDim.x)
                compare_few_keys(r, at / chunks, j, lines.end, x);
    }
}

/* The gradient of a head's sink; a warp has a head. */
static __global__ void compare_sinks(const __grid_constant__ run r) {
    const sat_uniform &u = r.u;
    const sat_attention &t = u.p.attention;
    int64_t h = blockIdx.x;
    double sink = of_sink(r, h), sum = 0, squares = 0, errors = 0, error_squares = 0;
    for (int64_t row = threadIdx.x; row < u.p.batch * u.p.m && !isinf(sink); row += 32) {
        int64_t at = (row / u.p.m * t.heads + h) * u.p.m + row % u.p.m;
        const sat_uniform_query &q = u.query[at];
        double lse = (double)u.lse[at], weight = exp(sink - lse), term = weight * q.delta;
        double error = sat_sink_loss(&u.p, sink, lse, weight, q.delta, q.delta_off);
        sum -= term, squares += term * term, errors += error, error_squares += error * error;
    }
    sum = warp_sum(sum), squares = warp_sum(squares), errors = warp_sum(errors),
    error_squares = warp_sum(error_squares);
    if (threadIdx.x) return;
    double bound = sat_sink_bound(&u.p, error_squares, errors, squares) + 0x1p-23 * fabs(sum);
    compare_one(r, 10, h, 0, 0, (double)r.dsinks[h], sum, bound);
}

/* ---- the host's side ---- */

static int threads_of(const sat_problem *p) { return (int)sat_min(256, (sat_uniform_dim(p, true) + 31) / 32 * 32); }

static void fill_table(const sat_uniform &u, bool of_queries, cudaStream_t stream) {
    const sat_uniform_side *s = of_queries ? &u.queries : &u.keys;
    int64_t heads = u.p.batch * s->heads;
    if (heads * s->cells == 0) return;
    sum_cells<<<sat_blocks(heads * s->cells, 1), threads_of(&u.p), 0, stream>>>(u, of_queries);
    add_up_cells<<<sat_blocks(heads * s->width, 64), 64, 0, stream>>>(u, of_queries);
}

sat_status sat_cuda_uniform_expect(const sat_trial *t, void **out) {
    const sat_problem *p = t->problem;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>((size_t)sat_uniform_room(p, t->pattern));
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: sums over %lld x %lld scores", (long long)p->m, (long long)p->n);
    }
    e->exact = true, e->u = sat_uniform_of(t, true), e->u.keys.table = e->memory;
    cudaError_t error = cudaMemsetAsync(e->memory, 0, (char *)e->result - (char *)e->memory, stream);
    if (sat_uniform_backward(p)) {
        e->u.queries.table = e->memory + sat_uniform_doubles(p, &e->u.keys);
        e->u.query = (sat_uniform_query *)(e->u.queries.table + sat_uniform_doubles(p, &e->u.queries));
        if (sat_uniform_queries(p) > 0)
            make_queries<<<sat_blocks(sat_uniform_queries(p), WARPS), WARPS * 32, 0, stream>>>(e->u);
        fill_table(e->u, true, stream);
    }
    fill_table(e->u, false, stream);
    if (error == cudaSuccess) error = cudaGetLastError();
    sat_status status = finish_expectation(e, error, stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

static void words(char *to, size_t size, const outcome *o) {
    static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", "sinks", "dsinks"};
    snprintf(
        to, size,
        "%s: head %lld (over the batch), row %lld, element %lld is %.9g; with all weights equal it is %.9g to within "
        "%.2g",
        names[o->kind], o->head, o->line, o->column, o->got, o->want, o->bound);
}

sat_status sat_cuda_uniform_compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    const sat_problem *p = t->problem;
    const sat_attention *s = &p->attention;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    run r = {};
    r.u = e->u, r.result = e->result, r.o = t->operands[sat_uniform_backward(p) ? 6 : 3];
    if (sat_uniform_backward(p)) r.dk = t->operands[7], r.dv = t->operands[8];
    else if (s->lse) r.lse = (const float *)t->operands[4];
    if (s->sinks) r.sinks = (const float *)t->operands[sat_sinks_at(p)];
    if (s->sinks && sat_uniform_backward(p)) r.dsinks = (const float *)t->operands[sat_sinks_at(p) + 1];
    int64_t queries = p->batch * s->heads * sat_uniform_chunks(p->m, t->pattern->block_rows);
    int64_t keys = p->batch * s->kv_heads * sat_uniform_chunks(p->n, t->pattern->block_cols);
    if (queries > 0) compare_queries<<<sat_blocks(queries, 1), threads_of(p), 0, stream>>>(r);
    if (keys > 0 && sat_uniform_backward(p)) compare_keys<<<sat_blocks(keys, 1), threads_of(p), 0, stream>>>(r);
    if (r.dsinks) compare_sinks<<<(unsigned)s->heads, 32, 0, stream>>>(r);
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}
