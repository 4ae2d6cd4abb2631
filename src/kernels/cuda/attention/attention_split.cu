// cuda_attention_split: fused attention for few queries, as in decoding, where reading keys and values once is all the
// cost (flash decoding). By mma.sync, f16 and bf16, and f32 as 3xTF32 (attention_mma_f32.cuh); dense and block-sparse.
//
// A tile has 16 rows, which are the queries of all heads that share keys. Its keys are split over several CTAs. Each
// warp of a CTA has every fourth 16 keys (of long rows in f32: 8), in a ring of its own in shared memory, so that no
// warp waits for another. A second kernel reduces the partial results of a tile, in a fixed order.

#include "kernels/cuda/attention/attention_mma_f32.cuh"

enum { WARPS = 4, THREADS = 32 * WARPS, ROWS = 16, MAX_SPLITS = 128 };

struct split_args {
    attention_args a; // the heads of its schedule are groups of `packed` heads
    int packed;       // heads in a tile: row r is query first + r / packed of head r % packed
    int splits, all_heads;
    float *partial; // [tile][split][row][D]
    float *rows;    // [tile][split][row][2]: the maximum and the sum of a row
};

// ---- shared memory: Q, then a ring of every warp; in the end the sums of all warps ----

// Elements of SIZE bytes; a warp has KEYS keys of a step. Sizes in bytes. Rows of f32 are swizzled, others padded.
template <int SIZE_, int D_, int KEYS_, int STAGES_, int CTAS_> struct tile_shape {
    static constexpr int SIZE = SIZE_, D = D_, KEYS = KEYS_, STAGES = STAGES_, CTAS = CTAS_, STEP_KEYS = WARPS * KEYS;
    static constexpr int VECTORS = D * SIZE / 16, VECTOR = 16 / SIZE; // of a row; elements of one
    static constexpr int PITCH = SIZE * D + (SIZE == 4 ? 0 : 16), Q = ROWS * PITCH;
    static constexpr int TILE = KEYS * PITCH, STAGE = 2 * TILE, RING = STAGES * STAGE; // a warp's
    static constexpr int BYTES = Q + WARPS * RING;
    static_assert(WARPS * ROWS * (D + 2) * 4 <= BYTES, "the sums of the warps take the place of all else");
    static_assert(STEP_KEYS <= ATTENTION_WORD_KEYS && (SIZE == 4 || KEYS == 16), "");
    __device__ static __forceinline__ int place(int row, int vec16) { // in a tile
        return row * PITCH + (SIZE == 4 ? vec16 ^ attention_f32_swizzle(row) : vec16) * 16;
    }
};

// ---- load ----

// A vector of a row of a tile: `inside` of its elements, then zeros. Those of rows that do not begin on 16 bytes are
// copied by element.
template <typename S>
__device__ __forceinline__ void load_any(uint32_t to, const char *from, int inside, bool aligned) {
    if (aligned) {
        cp_async_16(to, from, S::SIZE * inside);
    } else if (S::SIZE == 2) {
        attention_copy_elements(to, from, inside);
    } else {
        for (int e = 0; e < 4; e++) cp_async_small<4>(to + 4 * e, from + (e < inside ? 4 * e : 0), e < inside ? 4 : 0);
    }
}

// The same of a warp's keys of a step and their values.
template <typename S>
__device__ __forceinline__ void load_step_any(const attention_args &x, const attention_cta &c, int step, uint32_t to) {
    attention_step t = attention_step_at(x.schedule, c.steps, step);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = t.first + warp * S::KEYS;
    int count = t.count - warp * S::KEYS;
#pragma unroll 2
    for (int at = lane; at < S::KEYS * S::VECTORS; at += 32) {
        int row = at / S::VECTORS, vec16 = at % S::VECTORS, column = vec16 * S::VECTOR;
        int of_key = row < count ? max(0, min(S::VECTOR, x.dim - column)) : 0;
        int of_value = row < count ? max(0, min(S::VECTOR, x.options.value_dim - column)) : 0;
        int64_t k = of_key ? S::SIZE * (first + row) * x.k_at.row_stride + vec16 * 16 : 0;
        int64_t v = of_value ? S::SIZE * (first + row) * x.v_at.row_stride + vec16 * 16 : 0;
        load_any<S>(to + S::place(row, vec16), c.keys + k, of_key, x.options.aligned);
        load_any<S>(to + S::TILE + S::place(row, vec16), c.values + v, of_value, x.options.aligned);
    }
}

// One warp: begins to copy its keys of a step, and their values.
template <typename S, bool OPTIONS>
__device__ __forceinline__ void load_step(const attention_args &x, const attention_cta &c, int step, uint32_t to) {
    if constexpr (OPTIONS) {
        load_step_any<S>(x, c, step, to);
        return;
    }
    attention_step t = attention_step_at(x.schedule, c.steps, step);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = t.first + warp * S::KEYS;
    int count = t.count - warp * S::KEYS;
    const char *keys = c.keys + S::SIZE * first * x.k_at.row_stride;
    const char *values = c.values + S::SIZE * first * x.v_at.row_stride;
#pragma unroll
    for (int i = 0; i < S::KEYS * S::VECTORS / 32; i++) {
        int at = lane + i * 32, row = at / S::VECTORS, vec16 = at % S::VECTORS;
        bool inside = row < count && vec16 * S::VECTOR < x.dim;
        uint32_t place = to + S::place(row, vec16);
        int64_t k = inside ? S::SIZE * row * x.k_at.row_stride + vec16 * 16 : 0;
        int64_t v = inside ? S::SIZE * row * x.v_at.row_stride + vec16 * 16 : 0;
        cp_async_16(place, (inside ? keys : c.keys) + k, inside ? 16 : 0);
        cp_async_16(place + S::TILE, (inside ? values : c.values) + v, inside ? 16 : 0);
    }
}

// The query and the head of a row; false: the tile has none there.
__device__ __forceinline__ bool row_at(const split_args &x, const attention_work &work, int row, int &query,
                                       int &head) {
    query = work.t.first + row / x.packed, head = work.head * x.packed + row % x.packed;
    return query < work.t.end && row < ROWS / x.packed * x.packed;
}

template <typename S, bool OPTIONS>
__device__ __forceinline__ void load_queries(const split_args &x, const attention_work &work, uint32_t to) {
    for (int at = threadIdx.x; at < ROWS * S::VECTORS; at += THREADS) {
        int row = at / S::VECTORS, vec16 = at % S::VECTORS, query, head;
        bool inside = row_at(x, work, row, query, head) && vec16 * S::VECTOR < x.a.dim;
        const char *from = x.a.q;
        if (inside) from += S::SIZE * sat_heads_at(&x.a.q_at, work.batch, head, query) + vec16 * 16;
        if constexpr (OPTIONS)
            load_any<S>(to + S::place(row, vec16), from, inside ? min(S::VECTOR, x.a.dim - vec16 * S::VECTOR) : 0,
                        x.a.options.aligned);
        else cp_async_16(to + S::place(row, vec16), from, inside ? 16 : 0);
    }
}

// ---- epilogue ----

// The factor of sums relative to the row maximum `m` where they become relative to `largest`.
__device__ __forceinline__ float factor_of(float m, float largest, float c) {
    return m == -INFINITY ? 0 : attention_rescale(m, largest, c);
}

// One element of O; with the first of a row, its LSE.
template <typename E, bool OPTIONS>
__device__ __forceinline__ void store_element(const split_args &x, const attention_work &work, int row, int column,
                                              float value, float m, float sum) {
    int query, head;
    if (!row_at(x, work, row, query, head)) return;
    attention_end_row<OPTIONS>(x.a, work, head, x.all_heads, query, m, sum, column == 0);
    ((E *)x.a.o)[sat_heads_at(&x.a.o_at, work.batch, head, query) + column] = E(value * sum);
}

// Reduces the sums of the warps: to O, or to this split's part of the partial results.
template <typename E, typename S, bool OPTIONS>
__device__ __forceinline__ void epilogue(const split_args &x, const attention_work &work, float *memory,
                                         const float (&o)[1][S::D / 8][4], const float (&m)[2], const float (&sum)[2]) {
    float *rows = memory + WARPS * ROWS * S::D;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < S::D / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = S::SIZE == 4 ? attention_f32_column(j, e) : j * 8 + lane % 4 * 2 + e % 2;
            memory[(warp * ROWS + lane / 4 + e / 2 * 8) * S::D + column] = o[0][j][e];
        }
    if (lane % 4 == 0)
        for (int h = 0; h < 2; h++) {
            rows[(warp * ROWS + lane / 4 + h * 8) * 2] = m[h];
            rows[(warp * ROWS + lane / 4 + h * 8) * 2 + 1] = sum[h];
        }
    __syncthreads();
    for (int at = threadIdx.x; at < ROWS * S::D; at += THREADS) {
        int row = at / S::D, column = at % S::D;
        float largest = -INFINITY, all = 0, value = 0;
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, rows[(w * ROWS + row) * 2]);
        for (int w = 0; w < WARPS; w++) {
            float factor = factor_of(rows[(w * ROWS + row) * 2], largest, x.a.scale_log2);
            all += factor * rows[(w * ROWS + row) * 2 + 1], value += factor * memory[(w * ROWS + row) * S::D + column];
        }
        if (x.splits == 1) {
            if (column < (OPTIONS ? x.a.options.value_dim : x.a.dim))
                store_element<E, OPTIONS>(x, work, row, column, value, largest, all);
            continue;
        }
        x.partial[(int64_t)blockIdx.x * ROWS * S::D + at] = value;
        if (column == 0) {
            float *to = x.rows + ((int64_t)blockIdx.x * ROWS + row) * 2;
            to[0] = largest, to[1] = all;
        }
    }
}

// ---- the products of a warp ----

// Of 16-bit elements: Q stays in registers.
template <typename MATH, typename S> struct warp_products {
    uint32_t a[S::D / 16][4];
    __device__ __forceinline__ void read_q(uint32_t q, bool negative) {
#pragma unroll
        for (int k = 0; k < S::D / 16; k++) {
            ldmatrix_x4(a[k], q + attention_lane_a<S::PITCH>() + k * 32);
            if (negative) // the softmax takes a positive scale
#pragma unroll
                for (int e = 0; e < 4; e++) a[k][e] ^= 0x80008000u;
        }
    }
    __device__ __forceinline__ void scores(float (&s)[1][S::KEYS / 8][4], uint32_t stage) const {
        uint32_t b[4];
#pragma unroll
        for (int k = 0; k < S::D / 16; k++) {
            ldmatrix_x4(b, stage + attention_lane_bt<S::PITCH>() + k * 32);
            MATH::multiply(s[0][0], a[k], b[0], b[1]);
            MATH::multiply(s[0][1], a[k], b[2], b[3]);
        }
    }
    __device__ __forceinline__ void add_values(float (&o)[1][S::D / 8][4], const float (&s)[1][S::KEYS / 8][4],
                                               uint32_t stage) const {
        uint32_t p[1][1][4];
        attention_pack_operand<typename MATH::element, 1, 16>(p, s);
        attention_mma_pb<MATH, 1, 16, S::D, S::PITCH>(o, p, stage + S::TILE + attention_lane_a<S::PITCH>());
    }
};

// Of f32: Q is read from shared memory again, since registers are full of sums.
template <typename S> struct warp_products<sat_tf32_math, S> {
    attention_f32_lane rows;
    uint32_t sign;
    __device__ __forceinline__ void read_q(uint32_t q, bool negative) {
        rows = attention_f32_lane_abt<S::D>(q), sign = negative ? 0x80000000u : 0;
    }
    __device__ __forceinline__ void scores(float (&s)[1][S::KEYS / 8][4], uint32_t stage) const {
        attention_f32_abt<1, S::KEYS / 8, S::D>(s, rows, attention_f32_lane_abt<S::D>(stage));
#pragma unroll
        for (int j = 0; j < S::KEYS / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[0][j][e] = __uint_as_float(__float_as_uint(s[0][j][e]) ^ sign);
    }
    __device__ __forceinline__ void add_values(float (&o)[1][S::D / 8][4], const float (&s)[1][S::KEYS / 8][4],
                                               uint32_t stage) const {
        attention_f32_operand<1, S::KEYS / 8> p;
        attention_f32_make_operand(p, s);
        attention_f32_pb<1, S::KEYS / 8, S::D, S::D>(o, p, attention_f32_lane_pb<S::D>(stage + S::TILE));
    }
};

// ---- kernels ----

template <typename MATH, typename S, bool OPTIONS>
static __global__ void __launch_bounds__(THREADS, S::CTAS) split_forward(const __grid_constant__ split_args x) {
    typedef typename MATH::element E;
    extern __shared__ __align__(16) char memory[];
    __shared__ attention_cta cta;
    int split = blockIdx.x % x.splits, warp = threadIdx.x / 32, begin, end; // steps of this split
    uint32_t q = smem_address(memory), ring = q + S::Q + warp * S::RING;
    {
        attention_cta c;
        c.work = attention_work_at(x.a.schedule, blockIdx.x / x.splits);
        c.steps = attention_steps_of(x.a.schedule, c.work, c.work.head * x.packed);
        int kv_head = c.work.head / x.a.schedule.heads_per_kv;
        c.keys = x.a.k + S::SIZE * sat_heads_at(&x.a.k_at, c.work.batch, kv_head, 0);
        c.values = x.a.v + S::SIZE * sat_heads_at(&x.a.v_at, c.work.batch, kv_head, 0);
        begin = (int)((int64_t)c.steps.count * split / x.splits);
        end = (int)((int64_t)c.steps.count * (split + 1) / x.splits);
        load_queries<S, OPTIONS>(x, c.work, q);
        cp_async_commit_group();
#pragma unroll 1
        for (int s = 0; s < S::STAGES - 1; s++) {
            if (begin + s < end) load_step<S, OPTIONS>(x.a, c, begin + s, ring + s * S::STAGE);
            cp_async_commit_group();
        }
        if (threadIdx.x == 0) cta = c;
    }
    cp_async_wait_group<S::STAGES - 1>();
    __syncthreads();
    warp_products<MATH, S> products;
    products.read_q(q, x.a.negative);
    float o[1][S::D / 8][4] = {};
    attention_rows<1> r = {{{-INFINITY, -INFINITY}}, {{0, 0}}};
#pragma unroll 1
    for (int step = begin; step < end; step++) {
        uint32_t stage = ring + (step - begin) % S::STAGES * S::STAGE;
        cp_async_wait_group<S::STAGES - 2>();
        __syncwarp(); // the stage is full, and every lane has read the one before
        int next = step + S::STAGES - 1;
        if (next < end) load_step<S, OPTIONS>(x.a, cta, next, ring + (next - begin) % S::STAGES * S::STAGE);
        cp_async_commit_group();
        float s[1][S::KEYS / 8][4] = {}, scale[1][2];
        products.scores(s, stage);
        if (OPTIONS && x.a.options.cap != 0) attention_cap_scores(s, x.a.options.cap);
        attention_step t = attention_step_at(x.a.schedule, cta.steps, step);
        if (t.edge)
            for (int h = 0; h < 2; h++) {
                const attention_tile &own = cta.work.t;
                int row = threadIdx.x % 32 / 4 + h * 8, query = min(own.first + row / x.packed, own.end - 1);
                uint64_t keep =
                    attention_kept_keys(x.a.schedule, query, own.first, own.diagonal, t.first, t.count, own.other_begin,
                                        own.other_end, (int64_t)(cta.steps.list + step) * x.a.schedule.words);
                if (h == 0) attention_mask_row<S::KEYS>(s[0], 0, keep >> (warp * S::KEYS), -INFINITY);
                else attention_mask_row<S::KEYS>(s[0], 1, keep >> (warp * S::KEYS), -INFINITY);
            }
        if (attention_softmax<1, S::KEYS>(s, r, scale, x.a.scale_log2, x.a.rescale_above)) {
#pragma unroll
            for (int j = 0; j < S::D / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[0][j][e] *= scale[0][e / 2];
        }
        products.add_values(o, s, stage);
    }
    for (int h = 0; h < 2; h++) {
        r.sum[0][h] += __shfl_xor_sync(~0u, r.sum[0][h], 1);
        r.sum[0][h] += __shfl_xor_sync(~0u, r.sum[0][h], 2);
    }
    cp_async_wait_group<0>();
    __syncthreads();
    epilogue<E, S, OPTIONS>(x, cta.work, (float *)memory, o, r.m[0], r.sum[0]);
}

// The split reduction: a CTA reduces the partial results of a tile, in their order.
template <typename E, int D, bool OPTIONS> static __global__ void split_reduce(const __grid_constant__ split_args x) {
    attention_work work = attention_work_at(x.a.schedule, blockIdx.x);
    const float *rows = x.rows + (int64_t)blockIdx.x * x.splits * ROWS * 2;
    const float *partial = x.partial + (int64_t)blockIdx.x * x.splits * ROWS * D;
    for (int at = threadIdx.x; at < ROWS * D; at += blockDim.x) {
        int row = at / D, column = at % D;
        if (column >= (OPTIONS ? x.a.options.value_dim : x.a.dim)) continue;
        float largest = -INFINITY, all = 0, value = 0;
        for (int i = 0; i < x.splits; i++) largest = fmaxf(largest, rows[(i * ROWS + row) * 2]);
        for (int i = 0; i < x.splits; i++) {
            float factor = factor_of(rows[(i * ROWS + row) * 2], largest, x.a.scale_log2);
            all += factor * rows[(i * ROWS + row) * 2 + 1], value += factor * partial[i * ROWS * D + at];
        }
        store_element<E, OPTIONS>(x, work, row, column, value, largest, all);
    }
}

// ---- instances ----

struct instance {
    sat_dtype dtype;
    int max_dim, step_keys, ctas, bytes;
    struct {
        void (*forward)(split_args), (*reduce)(split_args);
    } plain, with_options;
};

template <typename MATH, typename S> static constexpr instance instance_of() {
    return {MATH::dtype,
            S::D,
            S::STEP_KEYS,
            S::CTAS,
            S::BYTES,
            {split_forward<MATH, S, false>, split_reduce<typename MATH::element, S::D, false>},
            {split_forward<MATH, S, true>, split_reduce<typename MATH::element, S::D, true>}};
}

// Bytes of an element, D, a warp's keys, stages, CTAs a multiprocessor; of each dtype the head sizes in rising order.
static const instance instances[] = {
    instance_of<sat_f16_math, tile_shape<2, 64, 16, 4, 2>>(),
    instance_of<sat_f16_math, tile_shape<2, 128, 16, 3, 2>>(),
    instance_of<sat_f16_math, tile_shape<2, 256, 16, 3, 1>>(),
    instance_of<sat_bf16_math, tile_shape<2, 64, 16, 4, 2>>(),
    instance_of<sat_bf16_math, tile_shape<2, 128, 16, 3, 2>>(),
    instance_of<sat_bf16_math, tile_shape<2, 256, 16, 3, 1>>(),
    instance_of<sat_tf32_math, tile_shape<4, 64, 16, 3, 2>>(),
    instance_of<sat_tf32_math, tile_shape<4, 128, 16, 3, 1>>(),
    instance_of<sat_tf32_math, tile_shape<4, 256, 8, 3, 1>>(),
};

static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    for (const instance &k : instances)
        if (k.dtype == v->instance.dtype && attention_widest(p) <= k.max_dim) return &k;
    return NULL;
}

// ---- host ----

// Heads that share a tile: those that share keys, as many as fit and divide them; one where each has its own mask.
static int64_t packed_heads(const sat_problem *p, const sat_pattern_view *a) {
    sat_mask k = sat_mask_of(p, a);
    int64_t per_kv = p->attention.heads / p->attention.kv_heads;
    int64_t packed = k.head_rows && !k.full ? 1 : sat_min(per_kv, ROWS);
    while (per_kv % packed) packed--;
    return packed;
}

static attention_tiling tiling_of(const instance *k, const sat_problem *p, const sat_pattern_view *a) {
    return {ROWS / packed_heads(p, a), k->step_keys, false};
}

static double max_tiles(const sat_problem *p, const sat_pattern_view *a) {
    return (double)attention_max_tiles(p->m, a->sequences, ROWS / packed_heads(p, a)) * (double)p->batch *
           (double)(p->attention.heads / packed_heads(p, a));
}

// How many CTAs share a tile, so that all CTAs have like shares. A CTA costs as much as some steps.
static int64_t splits_of(const instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    int64_t steps = (p->n + k->step_keys - 1) / k->step_keys, best = 1;
    if (a->sequences) steps = (steps + a->sequences - 1) / a->sequences;
    double tiles = max_tiles(p, a), resident = (double)d->multiprocessors * k->ctas, least = 0;
    for (int64_t splits = 1; splits <= sat_min(MAX_SPLITS, sat_max(1, steps / 2)); splits++) {
        double waves = ceil(tiles * (double)splits / resident);
        double time = waves * (ceil((double)steps / (double)splits) + 4) + (splits > 1 ? 4 + 0.05 * (double)splits : 0);
        if (splits == 1 || time < 0.99 * least) best = splits, least = time;
    }
    return best;
}

// Every tile reads all keys, so that larger tiles are better for more queries: unless those leave multiprocessors idle.
static int64_t most_queries(const sat_problem *p, const sat_device *d) {
    int64_t large_tiles = (p->m + 63) / 64 * p->batch * p->attention.heads;
    return large_tiles < d->multiprocessors ? 32 * ROWS : 4 * ROWS;
}

// O is stored by element: its rows may begin anywhere.
static bool reads_aligned(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    return p->a_align >= 16 && attention_rows_aligned(&t->q) && attention_rows_aligned(&t->k) &&
           attention_rows_aligned(&t->v);
}

static bool needs_options(const sat_problem *p) { return !sat_attention_is_plain(p) || !reads_aligned(p); }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    if (!k || p->a_dtype != k->dtype) return false;
    if (p->m > most_queries(p, d) * sat_max(1, a->sequences)) return false;
    if (max_tiles(p, a) * (double)splits_of(k, p, a, d) >= 1 << 30) return false;
    return k->bytes <= d->shared_bytes && attention_schedule_fits(p, a, tiling_of(k, p, a));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    attention_tiling s = tiling_of(k, p, a);
    double pairs = attention_visited_pairs(p, a, s) / (double)packed_heads(p, a) / (double)s.q_rows;
    double bytes = pairs * (double)sat_dtype_size(p->a_dtype) *
                   (double)(p->attention.dim + sat_value_dim(&p->attention)); // once a tile
    double first = fmin(bytes, sat_attention_bytes(p, a)), again = bytes - first;
    double resident = (double)d->multiprocessors * k->ctas, splits = (double)splits_of(k, p, a, d);
    double busy = fmin(1, max_tiles(p, a) * splits / resident);
    double seconds = first / (0.85 * d->memory_rate) + again / (0.62 * d->l2_rate);
    double rate = p->a_dtype == SAT_F32 ? d->tf32_rate / 3 : d->flop_rate[p->a_dtype];
    seconds = fmax(seconds / fmax(0.3, busy), 64 * pairs * (double)k->max_dim / (0.3 * rate));
    return seconds + (splits > 1 ? 9e-6 : 6e-6);
}

// The workspace: the schedule, then the partial results.
static size_t schedule_bytes(const instance *k, const sat_problem *p, const sat_pattern_view *a) {
    return attention_round_up(attention_schedule_bytes(p, a, tiling_of(k, p, a)));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    int64_t splits = splits_of(k, p, a, d);
    double partial = splits > 1 ? max_tiles(p, a) * (double)(splits * ROWS * (k->max_dim + 2) * 4) : 0;
    return schedule_bytes(k, p, a) + (size_t)partial;
}

static sat_status prepare(const sat_prepare *q, void **state) {
    const sat_problem *p = q->problem;
    const instance *k = instance_for(q->variant, p);
    const void *forward = (const void *)(needs_options(p) ? k->with_options : k->plain).forward;
    sat_status status = attention_allow_shared(q, forward, k->bytes);
    if (status != SAT_OK) return status;
    split_args *x = (split_args *)calloc(1, sizeof *x);
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    attention_schedule *s = &x->a.schedule;
    status = attention_schedule_make(q, tiling_of(k, p, q->pattern), (char *)q->workspace, s);
    if (status != SAT_OK) return free(x), status;
    x->packed = (int)packed_heads(p, q->pattern), x->splits = (int)splits_of(k, p, q->pattern, q->device);
    x->all_heads = (int)p->attention.heads;
    s->heads /= x->packed, s->heads_per_kv /= x->packed, s->heads_in_flight = s->heads * s->batch;
    x->partial = (float *)((char *)q->workspace + schedule_bytes(k, p, q->pattern));
    x->rows = x->partial + (int64_t)attention_work_count(s) * x->splits * ROWS * k->max_dim;
    *state = x;
    return SAT_OK;
}

static sat_status launch(const sat_launch *l) {
    const instance *k = instance_for(l->variant, l->problem);
    split_args x = *(const split_args *)l->state;
    unsigned tiles = attention_work_count(&x.a.schedule);
    if (tiles == 0) return SAT_OK;
    attention_fill_args(&x.a, l);
    x.a.options.aligned = reads_aligned(l->problem);
    const auto &kernels = needs_options(l->problem) ? k->with_options : k->plain;
    kernels.forward<<<tiles *(unsigned)x.splits, THREADS, k->bytes, (cudaStream_t)l->stream>>>(x);
    if (x.splits > 1) kernels.reduce<<<tiles, 256, 0, (cudaStream_t)l->stream>>>(x);
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
