// cuda_attention_split: for few queries, as in decoding: bound by reading keys and values once. A tile has 16 rows,
// which are the queries of all heads that share keys; a CTA has one tile and a part of its keys, and each of its warps
// every fourth 16 keys, through a ring of its own in shared memory, so that no warp waits for another. The parts of a
// tile are joined by a second kernel in their order. f16 and bf16 by mma.sync, dense and block-sparse.

#include "kernels/cuda/attention/attention_mma.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 16, KEYS = 64, MOST_PARTS = 128 };

struct split_job {
    attention_job a; // its walk's heads are groups of `packed` heads
    int packed;      // heads in a tile: row r is query first + r / packed of head r % packed
    int parts, all_heads;
    float *sums, *tops; // partial: [item][part][row][D], and of each row its largest score and its sum
};

template <int D_, int STAGES_, int CTAS_> struct split_shape {
    static constexpr int D = D_, STAGES = STAGES_, CTAS = CTAS_, PITCH = 2 * D + 16;
    static constexpr int HALF = ROWS * PITCH, STAGE = 2 * HALF, RING = STAGES * STAGE; // a warp's
    static constexpr int BYTES = ROWS * PITCH + WARPS * RING;
    static_assert(WARPS * ROWS * (D + 2) * 4 <= BYTES, "the warps' sums take the place of all else");
};

// 16 keys of a step, and their values, by one warp
template <typename S>
__device__ __forceinline__ void bring(const attention_job &x, const attention_place &p, int step, uint32_t to) {
    attention_step t = attention_step_at(x.w, p.steps, step);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = t.first + warp * 16, count = t.count - warp * 16;
    const char *keys = p.keys + 2 * first * x.k_at.row_stride, *values = p.values + 2 * first * x.v_at.row_stride;
    constexpr int CHUNKS = S::D / 8;
#pragma unroll
    for (int i = 0; i < CHUNKS / 2; i++) {
        int at = lane + i * 32, row = at / CHUNKS, chunk = at % CHUNKS;
        bool inside = row < count && chunk * 8 < x.dim;
        uint32_t place = to + row * S::PITCH + chunk * 16;
        int64_t k = inside ? 2 * row * x.k_at.row_stride + chunk * 16 : 0;
        int64_t v = inside ? 2 * row * x.v_at.row_stride + chunk * 16 : 0;
        cp_async_16(place, (inside ? keys : p.keys) + k, inside ? 16 : 0);
        cp_async_16(place + S::HALF, (inside ? values : p.values) + v, inside ? 16 : 0);
    }
}

// A row's query and head; false: the tile has none there
__device__ __forceinline__ bool row_at(const split_job &x, const attention_item &item, int row, int &query, int &head) {
    query = item.t.first + row / x.packed, head = item.head * x.packed + row % x.packed;
    return query < item.t.end && row < ROWS / x.packed * x.packed;
}

template <typename S>
__device__ __forceinline__ void load_queries(const split_job &x, const attention_item &item, uint32_t to) {
    constexpr int CHUNKS = S::D / 8;
    for (int at = threadIdx.x; at < ROWS * CHUNKS; at += THREADS) {
        int row = at / CHUNKS, chunk = at % CHUNKS, query, head;
        bool inside = row_at(x, item, row, query, head) && chunk * 8 < x.a.dim;
        const char *from = x.a.q;
        if (inside) from += 2 * sat_heads_at(&x.a.q_at, item.batch, head, query) + chunk * 16;
        cp_async_16(to + row * S::PITCH + chunk * 16, from, inside ? 16 : 0);
    }
}

__device__ __forceinline__ float weight_of(float top, float largest, float c) {
    return top == -INFINITY ? 0 : attention_factor(top, largest, c);
}

// One element of O, or LSE where `x` is the first
template <typename E>
__device__ __forceinline__ void put_row(const split_job &x, const attention_item &item, int row, int column,
                                        float value, float top, float sum) {
    int query, head;
    if (!row_at(x, item, row, query, head)) return;
    float factor = sum > 0 ? 1 / sum : sum == 0 ? 0 : sum;
    ((E *)x.a.o)[sat_heads_at(&x.a.o_at, item.batch, head, query) + column] = E(value * factor);
    if (column == 0 && x.a.lse)
        x.a.lse[((int64_t)item.batch * x.all_heads + head) * x.a.m + query] =
            sum > 0 ? (__fmul_rn(top, x.a.c) + log2f(sum)) * 0.69314718056f : -INFINITY;
}

// What the warps of a CTA have, together: to O, or as one part of a tile's
template <typename E, typename S>
__device__ __forceinline__ void join_warps(const split_job &x, const attention_item &item, float *memory,
                                           const float (&o)[1][S::D / 8][4], const float (&top)[2],
                                           const float (&sum)[2]) {
    float *tops = memory + WARPS * ROWS * S::D;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < S::D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            memory[(warp * ROWS + lane / 4 + e / 2 * 8) * S::D + j * 8 + lane % 4 * 2 + e % 2] = o[0][j][e];
    if (lane % 4 == 0)
        for (int h = 0; h < 2; h++) {
            tops[(warp * ROWS + lane / 4 + h * 8) * 2] = top[h];
            tops[(warp * ROWS + lane / 4 + h * 8) * 2 + 1] = sum[h];
        }
    __syncthreads();
    for (int at = threadIdx.x; at < ROWS * S::D; at += THREADS) {
        int row = at / S::D, column = at % S::D;
        float largest = -INFINITY, all = 0, value = 0;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, tops[(w * ROWS + row) * 2]);
        for (int w = 0; w < WARPS; w++) {
            float weight = weight_of(tops[(w * ROWS + row) * 2], largest, x.a.c);
            all += weight * tops[(w * ROWS + row) * 2 + 1], value += weight * memory[(w * ROWS + row) * S::D + column];
        }
        if (x.parts == 1) {
            if (column < x.a.dim) put_row<E>(x, item, row, column, value, largest, all);
            continue;
        }
        x.sums[(int64_t)blockIdx.x * ROWS * S::D + at] = value;
        if (column == 0) {
            float *to = x.tops + ((int64_t)blockIdx.x * ROWS + row) * 2;
            to[0] = largest, to[1] = all;
        }
    }
}

template <typename MATH, typename S>
static __global__ void __launch_bounds__(THREADS, S::CTAS) split_forward(const __grid_constant__ split_job x) {
    typedef typename MATH::element E;
    typedef attention_mma_shape<S::D, 16, 16, 1, 1> W; // what one warp does
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_place place;
    int part = blockIdx.x % x.parts, warp = threadIdx.x / 32, from, to;
    uint32_t q = smem_address(memory), ring = q + S::HALF + warp * S::RING;
    {
        attention_place p;
        p.item = attention_item_of(x.a.w, blockIdx.x / x.parts);
        p.steps = attention_steps_of(x.a.w, p.item, p.item.head * x.packed);
        int kv = p.item.head / x.a.w.share;
        p.keys = x.a.k + 2 * sat_heads_at(&x.a.k_at, p.item.batch, kv, 0);
        p.values = x.a.v + 2 * sat_heads_at(&x.a.v_at, p.item.batch, kv, 0);
        from = (int)((int64_t)p.steps.count * part / x.parts),
        to = (int)((int64_t)p.steps.count * (part + 1) / x.parts);
        load_queries<S>(x, p.item, q);
        cp_async_commit_group();
#pragma unroll 1
        for (int s = 0; s < S::STAGES - 1; s++) {
            if (from + s < to) bring<S>(x.a, p, from + s, ring + s * S::STAGE);
            cp_async_commit_group();
        }
        if (threadIdx.x == 0) place = p;
    }
    cp_async_wait_group<S::STAGES - 1>();
    __syncthreads();
    uint32_t left[S::D / 16][4];
#pragma unroll
    for (int k = 0; k < S::D / 16; k++) {
        ldmatrix_x4(left[k], q + attention_lane_left<S::PITCH>() + k * 32);
        if (x.a.negative)
#pragma unroll
            for (int e = 0; e < 4; e++) left[k][e] ^= 0x80008000u;
    }
    float o[1][S::D / 8][4] = {};
    attention_rows<W> r = {{{-INFINITY, -INFINITY}}, {{0, 0}}};
#pragma unroll 1
    for (int step = from; step < to; step++) {
        uint32_t tile = ring + (step - from) % S::STAGES * S::STAGE;
        cp_async_wait_group<S::STAGES - 2>();
        __syncwarp(); // the tile is there, and no lane reads the one before any more
        int ahead = step + S::STAGES - 1;
        if (ahead < to) bring<S>(x.a, place, ahead, ring + (ahead - from) % S::STAGES * S::STAGE);
        cp_async_commit_group();
        float s[1][2][4] = {}, scale[1][2];
        uint32_t p[1][1][4], right[4];
#pragma unroll
        for (int k = 0; k < S::D / 16; k++) {
            ldmatrix_x4(right, tile + attention_lane_right<S::PITCH>() + k * 32);
            MATH::multiply(s[0][0], left[k], right[0], right[1]);
            MATH::multiply(s[0][1], left[k], right[2], right[3]);
        }
        attention_step t = attention_step_at(x.a.w, place.steps, step);
        if (t.edge)
            for (int h = 0; h < 2; h++) {
                int row = threadIdx.x % 32 / 4 + h * 8,
                    query = min(place.item.t.first + row / x.packed, place.item.t.end - 1);
                uint64_t keep = attention_keep(x.a.w, query, place.item.t.first, place.item.t.diagonal, t.first,
                                               t.count, place.item.t.begin, place.item.t.stop,
                                               (int64_t)(place.steps.list + step) * x.a.w.words);
                if (h == 0) attention_hide<16>(s[0], 0, keep >> (warp * 16), -INFINITY);
                else attention_hide<16>(s[0], 1, keep >> (warp * 16), -INFINITY);
            }
        if (attention_softmax<W>(s, r, scale, x.a.c, x.a.slack)) {
#pragma unroll
            for (int j = 0; j < S::D / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[0][j][e] *= scale[0][e / 2];
        }
        attention_fold<E, 1, 16>(p, s);
        attention_values<MATH, 1, 16, S::D, S::PITCH>(o, p, tile + S::HALF + attention_lane_left<S::PITCH>());
    }
    for (int h = 0; h < 2; h++) {
        r.sum[0][h] += __shfl_xor_sync(~0u, r.sum[0][h], 1);
        r.sum[0][h] += __shfl_xor_sync(~0u, r.sum[0][h], 2);
    }
    cp_async_wait_group<0>();
    __syncthreads();
    join_warps<E, S>(x, place.item, (float *)memory, o, r.m[0], r.sum[0]);
}

// The parts of a tile, in their order: a CTA has a tile
template <typename E, int D> static __global__ void split_join(const __grid_constant__ split_job x) {
    attention_item item = attention_item_of(x.a.w, blockIdx.x);
    const float *tops = x.tops + (int64_t)blockIdx.x * x.parts * ROWS * 2;
    const float *sums = x.sums + (int64_t)blockIdx.x * x.parts * ROWS * D;
    for (int at = threadIdx.x; at < ROWS * D; at += blockDim.x) {
        int row = at / D, column = at % D;
        if (column >= x.a.dim) continue;
        float largest = -INFINITY, all = 0, value = 0;
        for (int i = 0; i < x.parts; i++) largest = fmaxf(largest, tops[(i * ROWS + row) * 2]);
        for (int i = 0; i < x.parts; i++) {
            float weight = weight_of(tops[(i * ROWS + row) * 2], largest, x.a.c);
            all += weight * tops[(i * ROWS + row) * 2 + 1], value += weight * sums[i * ROWS * D + at];
        }
        put_row<E>(x, item, row, column, value, largest, all);
    }
}

/* ---- the host's side ---- */

struct kernel {
    sat_dtype dtype;
    int dim, ctas, bytes;
    void (*forward)(split_job);
    void (*join)(split_job);
};

template <typename MATH, typename S> static constexpr kernel kernel_of() {
    return {MATH::dtype, S::D, S::CTAS, S::BYTES, split_forward<MATH, S>, split_join<typename MATH::element, S::D>};
}

static const kernel kernels[] = {
    kernel_of<sat_f16_math, split_shape<64, 4, 2>>(),   kernel_of<sat_f16_math, split_shape<128, 3, 2>>(),
    kernel_of<sat_f16_math, split_shape<256, 3, 1>>(),  kernel_of<sat_bf16_math, split_shape<64, 4, 2>>(),
    kernel_of<sat_bf16_math, split_shape<128, 3, 2>>(), kernel_of<sat_bf16_math, split_shape<256, 3, 1>>(),
};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.dtype == v->instance.dtype && p->attention.dim <= k.dim) return &k;
    return NULL;
}

/* Heads that share a tile: those that share keys, as many as fit and divide them; one where each has its own mask. */
static int64_t packed_of(const sat_problem *p, const sat_pattern_view *a) {
    sat_mask k = sat_mask_of(p, a);
    int64_t share = p->attention.heads / p->attention.kv_heads,
            packed = k.head_rows && !k.full ? 1 : sat_min(share, ROWS);
    while (share % packed) packed--;
    return packed;
}

static attention_shape shape_of(const sat_problem *p, const sat_pattern_view *a) {
    return {ROWS / packed_of(p, a), KEYS, false};
}

static double tiles_of(const sat_problem *p, const sat_pattern_view *a) {
    return (double)attention_tiles_of(p->m, a->sequences, ROWS / packed_of(p, a)) * (double)p->batch *
           (double)(p->attention.heads / packed_of(p, a));
}

/* Parts that a tile's steps are cut into, so that the CTAs have like shares; a part has a price of some steps. */
static int64_t parts_of(const kernel *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t steps = (p->n + KEYS - 1) / KEYS, best = 1;
    if (a->sequences) steps = (steps + a->sequences - 1) / a->sequences;
    double tiles = tiles_of(p, a), places = (double)d->threads * k->ctas, least = 0;
    for (int64_t parts = 1; parts <= sat_min(MOST_PARTS, sat_max(1, steps / 2)); parts++) {
        double waves = ceil(tiles * (double)parts / places);
        double time = waves * (ceil((double)steps / (double)parts) + 4) + (parts > 1 ? 4 + 0.05 * (double)parts : 0);
        if (parts == 1 || time < 0.99 * least) best = parts, least = time;
    }
    return best;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(v, p);
    if (!k || p->a_dtype != k->dtype || p->a_align < 16) return false;
    if (!attention_in_steps(&t->q) || !attention_in_steps(&t->k) || !attention_in_steps(&t->v)) return false;
    if (p->m > 4 * ROWS * sat_max(1, a->sequences)) return false; // every tile reads all keys: others are better
    if (tiles_of(p, a) * (double)parts_of(k, p, a, d) >= 1 << 30) return false;
    return k->bytes <= d->shared_bytes && attention_walks(p, a, shape_of(p, a));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    double pairs = attention_visited(p, a, shape_of(p, a)) / (double)packed_of(p, a) / (double)shape_of(p, a).q_rows;
    double bytes = pairs * 4 * (double)p->attention.dim; // of keys and values, once a tile
    double first = fmin(bytes, sat_attention_bytes(p, a)), again = bytes - first;
    double places = (double)d->threads * k->ctas,
           busy = fmin(1, tiles_of(p, a) * (double)parts_of(k, p, a, d) / places);
    double seconds = first / (0.85 * d->memory_rate) + again / (0.7 * d->l2_rate);
    seconds = fmax(seconds / fmax(0.3, busy), 64 * pairs * (double)k->dim / (0.3 * d->flop_rate[p->a_dtype]));
    return seconds + (parts_of(k, p, a, d) > 1 ? 9e-6 : 6e-6);
}

static size_t walk_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return ((size_t)attention_walk_bytes(p, a, shape_of(p, a)) + 255) / 256 * 256;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    int64_t parts = parts_of(k, p, a, d);
    double partial = parts > 1 ? tiles_of(p, a) * (double)(parts * ROWS * (k->dim + 2) * 4) : 0;
    return walk_bytes(p, a) + (size_t)partial;
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const sat_problem *p = q->problem;
    const kernel *k = kernel_for(q->variant, p);
    sat_status status = attention_allow(q, (const void *)k->forward, k->bytes);
    if (status != SAT_OK) return status;
    split_job *x = (split_job *)calloc(1, sizeof *x);
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    attention_walk *w = &x->a.w;
    status = attention_walk_make(q, shape_of(p, q->pattern), (char *)q->workspace, w);
    if (status != SAT_OK) return free(x), status;
    x->packed = (int)packed_of(p, q->pattern), x->parts = (int)parts_of(k, p, q->pattern, q->device);
    x->all_heads = (int)p->attention.heads;
    w->heads /= x->packed, w->share /= x->packed, w->together = w->heads * w->batch;
    x->sums = (float *)((char *)q->workspace + walk_bytes(p, q->pattern));
    x->tops = x->sums + (int64_t)attention_items(w) * x->parts * ROWS * k->dim;
    *state = x;
    return SAT_OK;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const kernel *k = kernel_for(l->variant, p);
    split_job x = *(const split_job *)l->state;
    unsigned items = attention_items(&x.a.w);
    if (items == 0) return SAT_OK;
    attention_job_fill(&x.a, l);
    k->forward<<<items *(unsigned)x.parts, THREADS, k->bytes, (cudaStream_t)l->stream>>>(x);
    if (x.parts > 1) k->join<<<items, 256, 0, (cudaStream_t)l->stream>>>(x);
    return sat_launched(l);
}

SAT_FAMILY(cuda_attention_split) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "few queries (decoding): heads that share keys in one tile, keys split over CTAs, joined in order",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
