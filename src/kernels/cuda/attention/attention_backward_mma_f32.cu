// cuda_attention_backward_mma_f32: the gradients of fused attention in f32 on tensor cores, dense and block-sparse,
// from sm_80 on. Products are 3xTF32 (attention_mma_f32.cuh), which is as exact as f32.
//
// Head sizes up to 256, padded in shared memory to 32, 64, 96, 128, 192 or 256. With OPTIONS values may be of another
// size than keys, rows may begin anywhere, and there are soft caps and sinks. Three kernels: the statistics of each
// query (attention_device.cuh), then dQ by tiles of queries, then dK and dV by tiles of keys. Every sum is made in one
// order and nothing is added up in memory, so the result is deterministic.
//
// Both gradient kernels are one template. With P = exp(scale*S - LSE) where kept and dS = P*(dP - delta):
//
//   own rows (A)   other rows (B)   S          dP         sums
//   Q, dO          K, V             Q*K^T      dO*V^T     dQ += dS*K
//   K, V           Q, dO            K*Q^T      V*dO^T     dV += P*dO, dK += dS*Q      (S, dP, P, dS transposed)
//
// A warp has 16 own rows. Where few warps have rows (few queries, large heads), several share them: each has some of
// the other rows of a step, and in the end their sums are added in the order of the warps. Where there are few queries,
// several CTAs share a tile of dQ as well: each has some of its steps, and a fourth kernel adds their sums in order.

#include "kernels/cuda/attention/attention_mma_f32.cuh"

struct kernel_args {
    attention_schedule schedule;
    const float *own[2], *other[2]; // Q and dO, K and V; or K and V, Q and dO
    sat_heads own_at[2], other_at[2];
    float *out[2]; // dQ; or dK and dV
    sat_heads out_at[2];
    const float *lse, *delta; // attention_backward_state has what they are
    int64_t head_stride;
    int dim;
    float scale_log2, scale; // scale_log2: scale*log2(e)
    int splits;              // CTAs that share a tile
    float *partial;          // their sums, [tile][split][row][N]
    attention_options options;
};

// ---- shared memory: two operands of own rows, stages of two operands and statistics, kept bits; in the end sums ----

// Head sizes up to D. A CTA sums over N columns of them, other CTAs over the others. ROW_WARPS times 16 own rows, steps
// of BN other rows, of which each of STEP_WARPS warps has a part. Sizes in bytes.
template <bool BY_KEY_, int D_, int N_, int ROW_WARPS_, int STEP_WARPS_, int BN_, int STAGES_, int CTAS_>
struct tile_shape {
    static constexpr bool BY_KEY = BY_KEY_;
    static constexpr int D = D_, N = N_, ROW_WARPS = ROW_WARPS_, STEP_WARPS = STEP_WARPS_, BN = BN_, STAGES = STAGES_;
    static constexpr int CTAS = CTAS_, THREADS = 32 * ROW_WARPS * STEP_WARPS, BM = 16 * ROW_WARPS;
    static constexpr int COLUMNS = BN / STEP_WARPS, NT = COLUMNS / 8; // of a warp, of the scores
    static constexpr int COLUMN_CTAS = D / N, SUMS = BY_KEY ? 2 : 1;
    static constexpr bool SPLIT = !BY_KEY && ROW_WARPS == 1; // several CTAs may share a tile
    static constexpr int PITCH = 4 * D, OWN = BM * PITCH, TILE = BN * PITCH;
    static constexpr int STATISTICS = BY_KEY ? 8 * BN : 0, STAGE = 2 * TILE + STATISTICS; // lse and delta of queries
    static constexpr int KEPT_OFFSET = 2 * OWN + STAGES * STAGE, BYTES = KEPT_OFFSET + (BY_KEY ? 8 * BN : 0);
    static_assert((BY_KEY ? BM : BN) <= ATTENTION_WORD_KEYS && D % N == 0 && COLUMNS % 8 == 0, "");
    static_assert((STEP_WARPS - 1) * BM * N * 4 <= BYTES, "sums of warps take the place of all else");
};

struct step_info {
    attention_step t;
    int64_t word; // its first of `stored`
};

struct shared_cta {
    attention_work work;
    step_info step[2]; // by turns
};

// ---- load ----

// The next step of a CTA, over its query heads. Where CTAs share a tile there is one head, and steps up to end_step.
struct step_cursor {
    int head, end_head, step, end_step;
};

// The rows of operand `k` of a side: the first is of keys' size, the second of values'.
template <typename S, int ROWS, bool OPTIONS>
__device__ __forceinline__ void load_rows(const kernel_args &x, uint32_t to, const float *from, int64_t stride,
                                          int count, int k) {
    if constexpr (OPTIONS)
        attention_f32_load_any<ROWS, S::D, S::THREADS>(to, from, stride, count, k ? x.options.value_dim : x.dim,
                                                       x.options.aligned);
    else attention_f32_load_rows<ROWS, S::D, S::THREADS>(to, from, stride, count, x.dim);
}

// Begins to copy the next step into a stage; false: there is none.
template <typename S, bool OPTIONS>
__device__ __forceinline__ bool load_step(const kernel_args &x, const attention_work &work, step_info *to,
                                          step_cursor &at, uint32_t stage) {
    for (; at.head < at.end_head; at.head++, at.step = 0) {
        attention_steps s = attention_steps_of(x.schedule, work, at.head);
        if (at.step >= (S::SPLIT ? at.end_step : s.count)) continue;
        attention_step t = attention_step_at(x.schedule, s, at.step);
        int head = S::BY_KEY ? at.head : at.head / x.schedule.heads_per_kv;
#pragma unroll
        for (int k = 0; k < 2; k++)
            load_rows<S, S::BN, OPTIONS>(x, stage + k * S::TILE,
                                         x.other[k] + sat_heads_at(&x.other_at[k], work.batch, head, t.first),
                                         x.other_at[k].row_stride, t.count, k);
        int thread = reread_thread_index();
        if (S::BY_KEY && thread < S::BN) {
            int64_t from = ((int64_t)work.batch * x.schedule.heads * x.schedule.heads_per_kv + head) * x.head_stride +
                           t.first + (thread < t.count ? thread : 0);
            uint32_t place = stage + 2 * S::TILE + 4 * thread;
            cp_async_small<4>(place, x.lse + from, thread < t.count ? 4 : 0);
            cp_async_small<4>(place + 4 * S::BN, x.delta + from, thread < t.count ? 4 : 0);
        }
        if (thread == 0) to->t = t, to->word = (int64_t)(s.list + at.step) * x.schedule.words;
        at.step++;
        return true;
    }
    return false;
}

// ---- mask ----

// Weights of pairs that are not kept become 0. `row`: the lane's first among the own rows; `column`: the warp's first
// among the other rows; `kept`: BN words of shared memory, by key.
template <typename S>
__device__ __forceinline__ void mask_weights(float (&p)[1][S::NT][4], const kernel_args &x, const attention_work &work,
                                             const step_info &step, int row, int column, uint64_t *kept) {
    const attention_tile &t = work.t;
    if constexpr (!S::BY_KEY) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = min(t.first + row + h * 8, t.end - 1);
            uint64_t keep = attention_kept_keys(x.schedule, query, t.first, t.diagonal, step.t.first, step.t.count,
                                                t.other_begin, t.other_end, step.word);
            attention_mask_row<S::COLUMNS>(p[0], h, keep >> column, 0);
        }
    } else {
        int thread = reread_thread_index();
        if (thread < S::BN)
            kept[thread] = thread < step.t.count
                               ? attention_kept_keys(x.schedule, step.t.first + thread, step.t.first, t.diagonal,
                                                     t.first, t.end - t.first, t.first, t.end, step.word)
                               : 0;
        __syncthreads();
#pragma unroll
        for (int j = 0; j < S::NT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(kept[column + j * 8 + thread % 4 * 2 + e % 2] >> (row + e / 2 * 8) & 1)) p[0][j][e] = 0;
        __syncthreads(); // before the next step's words
    }
}

// ---- weights, with options ----

// Products of Q and K become weights, and those of dO and V dS.
template <typename S>
__device__ __forceinline__ void weigh(float (&s)[1][S::NT][4], float (&d)[1][S::NT][4], const kernel_args &x,
                                      const float *statistics, const float (&row_lse)[2], const float (&row_delta)[2]) {
#pragma unroll
    for (int j = 0; j < S::NT; j++) {
        float2 lse = S::BY_KEY ? *(const float2 *)(statistics + j * 8) : make_float2(0, 0);
        float2 delta = S::BY_KEY ? *(const float2 *)(statistics + S::BN + j * 8) : make_float2(0, 0);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float &p = s[0][j][e], slope = 1;
            if (x.options.cap != 0) p = tanhf(p * x.options.cap), slope -= p * p;
            p = attention_exp2(fmaf(p, x.scale_log2, -(S::BY_KEY ? e % 2 ? lse.y : lse.x : row_lse[e / 2])));
            d[0][j][e] = p * slope * (d[0][j][e] - (S::BY_KEY ? e % 2 ? delta.y : delta.x : row_delta[e / 2]));
        }
    }
}

// ---- sums of warps that share rows ----

// The first of them gets all sums.
template <typename S>
__device__ __forceinline__ void add_warps(float (&sum)[1][S::N / 8][4], uint32_t memory, int row_warp, int step_warp) {
    uint32_t at = memory + row_warp * 16 * S::N * 4 + threadIdx.x % 32 * 16;
    __syncthreads(); // every warp has read what is there
    if (step_warp > 0)
#pragma unroll
        for (int j = 0; j < S::N / 8; j++)
            asm volatile(
                "st.shared.v4.f32 [%0], {%1,%2,%3,%4};" ::"r"(at + (step_warp - 1) * S::BM * S::N * 4 + j * 512),
                "f"(sum[0][j][0]), "f"(sum[0][j][1]), "f"(sum[0][j][2]), "f"(sum[0][j][3])
                : "memory");
    __syncthreads();
    if (step_warp > 0) return;
    for (int w = 0; w < S::STEP_WARPS - 1; w++)
#pragma unroll
        for (int j = 0; j < S::N / 8; j++) {
            uint4 y = ld_shared_v4(at + w * S::BM * S::N * 4 + j * 512);
            sum[0][j][0] += __uint_as_float(y.x), sum[0][j][1] += __uint_as_float(y.y);
            sum[0][j][2] += __uint_as_float(y.z), sum[0][j][3] += __uint_as_float(y.w);
        }
}

// ---- kernel ----

template <typename S, bool OPTIONS>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS)
    attention_backward(const __grid_constant__ kernel_args x) {
    extern __shared__ __align__(16) char memory[];
    __shared__ shared_cta cta;
    uint32_t own = smem_address(memory), ring = own + 2 * S::OWN;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % S::ROW_WARPS,
        step_warp = warp / S::ROW_WARPS;
    int row = row_warp * 16 + lane / 4, column = step_warp * S::COLUMNS;
    uint32_t column_cta = blockIdx.x % S::COLUMN_CTAS, number = blockIdx.x / S::COLUMN_CTAS;
    if (S::SPLIT) number /= x.splits;
    step_cursor at;
    bool more, busy; // busy: this warp has own rows
    float row_lse[2], row_delta[2];
    {
        attention_work work = attention_work_at(x.schedule, number);
#pragma unroll
        for (int k = 0; k < 2; k++)
            load_rows<S, S::BM, OPTIONS>(x, own + k * S::OWN,
                                         x.own[k] + sat_heads_at(&x.own_at[k], work.batch, work.head, work.t.first),
                                         x.own_at[k].row_stride, work.t.end - work.t.first, k);
        at.head = S::BY_KEY ? work.head * x.schedule.heads_per_kv : work.head;
        at.end_head = at.head + (S::BY_KEY ? x.schedule.heads_per_kv : 1);
        at.step = 0, busy = work.t.first + row_warp * 16 < work.t.end;
        if (S::SPLIT) {
            int64_t count = attention_steps_of(x.schedule, work, at.head).count;
            int split = blockIdx.x % x.splits; // SPLIT has one column CTA
            at.step = (int)(count * split / x.splits), at.end_step = (int)(count * (split + 1) / x.splits);
        }
        more = load_step<S, OPTIONS>(x, work, &cta.step[0], at, ring);
        cp_async_commit_group();
        if (threadIdx.x == 0) cta.work = work;
        int64_t rows = ((int64_t)work.batch * x.schedule.heads + work.head) * x.head_stride;
#pragma unroll
        for (int h = 0; h < 2 && !S::BY_KEY; h++) {
            int query = min(work.t.first + row + h * 8, work.t.end - 1);
            row_lse[h] = x.lse[rows + query], row_delta[h] = x.delta[rows + query];
        }
    }
    attention_f32_lane rows = attention_f32_lane_abt<S::D>(own + row_warp * 16 * S::PITCH);
    float sums[S::SUMS][1][S::N / 8][4] = {};
    if (!more) cp_async_wait_group<0>(), __syncthreads();
#pragma unroll 1
    for (int step = 0; more; step++) {
        uint32_t stage = ring + step % S::STAGES * S::STAGE;
        cp_async_wait_group<0>();
        __syncthreads(); // the stage is full, and every warp has read the other one
        if (S::STAGES > 1) {
            more = load_step<S, OPTIONS>(x, cta.work, &cta.step[(step + 1) % 2], at,
                                         ring + (step + 1) % S::STAGES * S::STAGE);
            cp_async_commit_group();
        }
        float s[1][S::NT][4], d[1][S::NT][4];
        attention_f32_operand<1, S::NT> p;
        uint32_t other = stage + column * S::PITCH;
        attention_f32_lane own_second = {{rows.at[0] + S::OWN, rows.at[1] + S::OWN}};
        if constexpr (OPTIONS) { // both products first: what a soft cap leaves of dS follows from the score
            if (busy) {
                attention_f32_abt<1, S::NT, S::D>(s, rows, attention_f32_lane_abt<S::D>(other));
                attention_f32_abt<1, S::NT, S::D>(d, own_second, attention_f32_lane_abt<S::D>(other + S::TILE));
                weigh<S>(s, d, x, (const float *)(memory + (stage - own) + 2 * S::TILE) + column + lane % 4 * 2,
                         row_lse, row_delta);
            }
            if (cta.step[step % 2].t.edge) {
                uint64_t *kept = (uint64_t *)(memory + S::KEPT_OFFSET);
                mask_weights<S>(s, x, cta.work, cta.step[step % 2], row, column, kept);
                mask_weights<S>(d, x, cta.work, cta.step[step % 2], row, column, kept);
            }
            if (busy && S::BY_KEY) { // dV += P*dO
                attention_f32_make_operand(p, s);
                attention_f32_pb<1, S::NT, S::N, S::D>(
                    sums[S::SUMS - 1], p, attention_f32_lane_pb<S::D>(other + S::TILE + column_cta * S::N * 4));
            }
            if (busy) { // dQ += dS*K, or dK += dS*Q
                attention_f32_make_operand(p, d);
                attention_f32_pb<1, S::NT, S::N, S::D>(sums[0], p,
                                                       attention_f32_lane_pb<S::D>(other + column_cta * S::N * 4));
            }
        } else {
            if (busy) {
                attention_f32_abt<1, S::NT, S::D>(s, rows, attention_f32_lane_abt<S::D>(other));
                const float *statistics = (const float *)(memory + (stage - own) + 2 * S::TILE) + column + lane % 4 * 2;
#pragma unroll
                for (int j = 0; j < S::NT; j++) {
                    float2 l = S::BY_KEY ? *(const float2 *)(statistics + j * 8) : make_float2(0, 0);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[0][j][e] = attention_exp2(
                            fmaf(s[0][j][e], x.scale_log2, -(S::BY_KEY ? e % 2 ? l.y : l.x : row_lse[e / 2])));
                }
            }
            if (cta.step[step % 2].t.edge)
                mask_weights<S>(s, x, cta.work, cta.step[step % 2], row, column, (uint64_t *)(memory + S::KEPT_OFFSET));
            if (busy) {
                const float *statistics = (const float *)(memory + (stage - own) + 2 * S::TILE) + column + lane % 4 * 2;
                if (S::BY_KEY) { // dV += P*dO
                    attention_f32_make_operand(p, s);
                    attention_f32_pb<1, S::NT, S::N, S::D>(
                        sums[S::SUMS - 1], p, attention_f32_lane_pb<S::D>(other + S::TILE + column_cta * S::N * 4));
                }
                attention_f32_abt<1, S::NT, S::D>(d, own_second, attention_f32_lane_abt<S::D>(other + S::TILE));
#pragma unroll
                for (int j = 0; j < S::NT; j++) {
                    float2 l = S::BY_KEY ? *(const float2 *)(statistics + S::BN + j * 8) : make_float2(0, 0);
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        s[0][j][e] *= d[0][j][e] - (S::BY_KEY ? e % 2 ? l.y : l.x : row_delta[e / 2]);
                }
                attention_f32_make_operand(p, s); // dQ += dS*K, or dK += dS*Q
                attention_f32_pb<1, S::NT, S::N, S::D>(sums[0], p,
                                                       attention_f32_lane_pb<S::D>(other + column_cta * S::N * 4));
            }
        }
        if (S::STAGES == 1) {
            __syncthreads(); // every warp has read the stage
            more = load_step<S, OPTIONS>(x, cta.work, &cta.step[(step + 1) % 2], at, ring);
            cp_async_commit_group();
        }
    }

    const attention_work &work = cta.work;
    int first = work.t.first + row_warp * 16;
#pragma unroll
    for (int k = 0; k < S::SUMS; k++) {
        if (S::STEP_WARPS > 1) add_warps<S>(sums[k], own, row_warp, step_warp);
        if (step_warp > 0) continue;
        float factor[1][2] = {{k == 0 ? x.scale : 1, k == 0 ? x.scale : 1}};
        if (S::SPLIT && x.splits > 1) {
            attention_f32_store_rows<1, S::N>(sums[k], factor, x.partial + (int64_t)blockIdx.x * S::BM * S::N, S::N,
                                              S::BM, S::N);
            continue;
        }
        attention_f32_store_rows<1, S::N, OPTIONS>(
            sums[k], factor, x.out[k] + sat_heads_at(&x.out_at[k], work.batch, work.head, first) + column_cta * S::N,
            x.out_at[k].row_stride, work.t.end - first,
            (OPTIONS && k ? x.options.value_dim : x.dim) - (int)column_cta * S::N, x.options.aligned);
    }
}

// The split reduction: a CTA adds up a row of dQ, in the order of the splits.
template <int N> static __global__ void split_reduce(const __grid_constant__ kernel_args x) {
    attention_work work = attention_work_at(x.schedule, blockIdx.x / 16);
    int row = blockIdx.x % 16, query = work.t.first + row;
    if (query >= work.t.end) return;
    const float *from = x.partial + ((int64_t)(blockIdx.x / 16) * x.splits * 16 + row) * N;
    float *to = x.out[0] + sat_heads_at(&x.out_at[0], work.batch, work.head, query);
    for (int column = threadIdx.x; column < x.dim; column += blockDim.x) {
        float sum = 0;
        for (int i = 0; i < x.splits; i++) sum += from[(int64_t)i * 16 * N + column];
        to[column] = sum;
    }
}

// ---- instances ----

struct pass {
    int bm, bn, threads, ctas, bytes, column_ctas;
    bool split;
    void (*plain)(kernel_args), (*with_options)(kernel_args);
    void (*reduce)(kernel_args); // where it is split
};

struct instance {
    int tile_m, max_dim; // tile_m of a variant; head sizes up to max_dim
    pass queries, keys;
};

template <typename S> static constexpr pass pass_of() {
    pass x = {S::BM,
              S::BN,
              S::THREADS,
              S::CTAS,
              S::BYTES,
              S::COLUMN_CTAS,
              S::SPLIT,
              attention_backward<S, false>,
              attention_backward<S, true>,
              NULL};
    if constexpr (S::SPLIT) x.reduce = split_reduce<S::N>;
    return x;
}

// By key, D, N, warps of rows, warps that share rows, BN, stages, CTAs a multiprocessor; of each tile the head sizes in
// rising order.
static const instance instances[] = {
    {64, 32, pass_of<tile_shape<false, 32, 32, 4, 1, 32, 2, 4>>(), pass_of<tile_shape<true, 32, 32, 4, 1, 32, 2, 4>>()},
    {64, 64, pass_of<tile_shape<false, 64, 64, 4, 1, 32, 2, 3>>(), pass_of<tile_shape<true, 64, 64, 4, 1, 32, 2, 3>>()},
    {64, 96, pass_of<tile_shape<false, 96, 96, 4, 1, 32, 1, 3>>(), pass_of<tile_shape<true, 96, 96, 4, 1, 32, 2, 2>>()},
    {64, 128, pass_of<tile_shape<false, 128, 128, 4, 1, 32, 1, 2>>(),
     pass_of<tile_shape<true, 128, 128, 4, 1, 32, 1, 2>>()},
    {64, 192, pass_of<tile_shape<false, 192, 192, 4, 2, 32, 2, 1>>(),
     pass_of<tile_shape<true, 192, 96, 4, 2, 32, 2, 1>>()},
    {64, 256, pass_of<tile_shape<false, 256, 256, 4, 2, 32, 1, 1>>(),
     pass_of<tile_shape<true, 256, 128, 4, 2, 32, 1, 1>>()},
    {16, 64, pass_of<tile_shape<false, 64, 64, 1, 4, 64, 2, 2>>(), pass_of<tile_shape<true, 64, 64, 4, 1, 16, 2, 3>>()},
    {16, 128, pass_of<tile_shape<false, 128, 128, 1, 4, 64, 1, 2>>(),
     pass_of<tile_shape<true, 128, 128, 4, 1, 16, 2, 2>>()},
    {16, 256, pass_of<tile_shape<false, 256, 256, 1, 4, 64, 1, 1>>(),
     pass_of<tile_shape<true, 256, 128, 4, 2, 16, 2, 1>>()},
};
static const instance *instance_for(const sat_variant *v, const sat_problem *p) {
    for (const instance &k : instances)
        if (k.tile_m == v->instance.tile_m && attention_widest(p) <= k.max_dim) return &k;
    return NULL;
}

static void (*kernel_for(const pass *k, const sat_problem *p))(kernel_args) {
    return attention_needs_options(p) ? k->with_options : k->plain;
}

static attention_tiling by_query(const instance *k) { return {k->queries.bm, k->queries.bn, false}; }
static attention_tiling by_key(const instance *k) { return {k->keys.bn, k->keys.bm, true}; }

// ---- host ----

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    if (!k || p->a_dtype != v->instance.dtype) return false;
    if (k->queries.bytes > d->shared_bytes || k->keys.bytes > d->shared_bytes) return false;
    return attention_schedule_fits(p, a, by_query(k)) && attention_schedule_fits(p, a, by_key(k));
}

// Tiles of dQ, at most.
static double max_tiles(const instance *k, const sat_problem *p, const sat_pattern_view *a) {
    return (double)attention_max_tiles(p->m, a->sequences, k->queries.bm) * (double)(p->batch * p->attention.heads);
}

// How many CTAs share a tile of dQ: so many that all can run at once, each with two steps at least.
static int splits_of(const instance *k, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double fit = (double)d->multiprocessors * k->queries.ctas / fmax(1, max_tiles(k, p, a));
    int64_t keys = p->n / sat_max(1, a->sequences);
    return k->queries.split ? (int)sat_max(1, sat_min((int64_t)fmin(fit, 32), keys / k->queries.bn / 2)) : 1;
}

// Of so many operations in so many CTAs.
static double seconds_of(const pass *k, double flops, double ctas, const sat_device *d) {
    double rate = d->tf32_rate / 3 * (d->capability >= 90 ? 0.38 : 0.6); // of mma.sync
    double waves = fmax(1e-3, ctas / (double)(d->multiprocessors * k->ctas)),
           idle = waves < 4 ? ceil(waves) / waves : 1;
    if (waves < 1) idle = fmax(1, idle / k->ctas);
    return flops / rate * idle;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    double dim = k->max_dim, columns = k->keys.column_ctas, splits = splits_of(k, p, a, d);
    double tiles = ceil((double)p->n / k->keys.bm) * (double)(p->batch * p->attention.kv_heads);
    double busy =
        seconds_of(&k->queries, 6 * attention_visited_pairs(p, a, by_query(k)) * dim, max_tiles(k, p, a) * splits, d);
    busy +=
        seconds_of(&k->keys, (4 * columns + 4) * attention_visited_pairs(p, a, by_key(k)) * dim, tiles * columns, d);
    return fmax(busy, 2 * sat_attention_bytes(p, a) / d->memory_rate) + (splits > 1 ? 1.5e-5 : 1.2e-5);
}

// The workspace: schedules and statistics, then the partial sums of dQ.
static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *k = instance_for(v, p);
    int splits = splits_of(k, p, a, d);
    double partial = splits > 1 ? max_tiles(k, p, a) * splits * k->queries.bm * k->max_dim * 4 : 0;
    return attention_backward_bytes(p, a, by_query(k), by_key(k)) + (size_t)partial;
}

struct state {
    attention_backward_state s;
    int splits;
    float *partial;
};

static sat_status prepare(const sat_prepare *q, void **out) {
    const instance *k = instance_for(q->variant, q->problem);
    sat_status status = attention_allow_shared(q, (const void *)kernel_for(&k->queries, q->problem), k->queries.bytes);
    if (status == SAT_OK)
        status = attention_allow_shared(q, (const void *)kernel_for(&k->keys, q->problem), k->keys.bytes);
    if (status != SAT_OK) return status;
    state *x = (state *)calloc(1, sizeof *x);
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    x->splits = splits_of(k, q->problem, q->pattern, q->device);
    x->partial =
        (float *)((char *)q->workspace + attention_backward_bytes(q->problem, q->pattern, by_query(k), by_key(k)));
    status = attention_backward_make(q, by_query(k), by_key(k), (char *)q->workspace, &x->s);
    if (status == SAT_OK) *out = x;
    else free(x);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const instance *k = instance_for(l->variant, p);
    const state *all = (const state *)l->state;
    const attention_backward_state *s = &all->s;
    cudaStream_t stream = (cudaStream_t)l->stream;
    unsigned queries = attention_work_count(&s->by_query), keys = attention_work_count(&s->by_key);
    const float *q = (const float *)l->operands[0], *key = (const float *)l->operands[1];
    const float *v = (const float *)l->operands[2], *d = (const float *)l->operands[5];
    float *const *out = (float *const *)l->operands + 6;
    float scale_log2 = (float)(attention_scale(p) * 1.44269504088896340736), scale = (float)p->alpha;
    attention_options options = attention_options_of(l);
    if (queries > 0) {
        sat_status status = attention_needs_options(p) ? attention_launch_delta_any(l, s->lse, s->delta, s->head_stride)
                                                       : attention_launch_delta<float>(l, s);
        if (status != SAT_OK) return status;
        const pass *o = &k->queries;
        kernel_args x = {s->by_query,    {q, d},      {key, v},     {t->q, t->do_}, {t->k, t->v}, {out[0], NULL},
                         {t->dq, t->dq}, s->lse,      s->delta,     s->head_stride, (int)t->dim,  scale_log2,
                         scale,          all->splits, all->partial, options};
        unsigned ctas = queries * (unsigned)(o->column_ctas * all->splits);
        kernel_for(o, p)<<<ctas, o->threads, o->bytes, stream>>>(x);
        if (all->splits > 1) o->reduce<<<queries *(unsigned)o->bm, 128, 0, stream>>>(x);
    }
    if (keys > 0) {
        const pass *o = &k->keys;
        kernel_args x = {s->by_key,      {key, v}, {q, d},   {t->k, t->v},   {t->q, t->do_}, {out[1], out[2]},
                         {t->dk, t->dv}, s->lse,   s->delta, s->head_stride, (int)t->dim,    scale_log2,
                         scale,          1,        NULL,     options};
        kernel_for(o, p)<<<keys *(unsigned)o->column_ctas, o->threads, o->bytes, stream>>>(x);
    }
    sat_status status = sat_launched(l);
    return status == SAT_OK && t->sinks ? attention_launch_sinks(l, s->delta, s->head_stride) : status;
}

SAT_FAMILY(cuda_attention_backward_mma_f32) = {
    .revision = "1",
    .op = SAT_ATTENTION_BACKWARD,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "f32 as 3xTF32 on tensor cores (mma.sync), dQ by queries, then dK and dV by keys; skips absent blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = attention_release,
};
