// cuda_matmul_wgmma: tensor maps bring the tiles, warpgroups multiply them (sm_90a). f16 and bf16.
//
// One CTA a multiprocessor takes tiles, BM rows of a block row by BN columns, from a counter. A warp of its own walks
// the row's blocks and keeps STAGES tiles of A and B on their way into shared memory; two warpgroups multiply what has
// arrived. They split a tile of 128 rows by rows and one of 64 by columns. Blocks lower than 64 rows run as 64, whose
// upper rows nobody stores: what limits such blocks is the way from L2, not the tensor cores.

#include "hopper.cuh"
#include "join.cuh"

enum { CONSUMERS = 256, THREADS = CONSUMERS + 128, SLICE = 64 * 16 * 2 }; // a slice of output: 16 rows of 128 bytes

struct maps {
    CUtensorMap a, b, c;
};

struct job {
    sat_rows r;
    sat_out out;
    sat_plan_work work;
    unsigned *counter;          // tiles handed out; then CTAs that are done
    int panels, slices, a_rows; // a_rows: what one copy brings of A, and a slice has
    bool wide_b;                // B row-major in chunks of 64 columns that fill it: one copy brings them all
    bool map_c;                 // C by its map
    bool turned_c;              // C column-major
};

template <int BM, int BN, int KS, int STAGES> struct shape {
    static constexpr int A = BM * KS * 2, B = KS * BN * 2, STAGE = A + B;
    static constexpr int WN = BM == 128 ? BN : BN / 2; // columns of a warpgroup
    static constexpr int OUT = 8 * 2 * SLICE;
    static constexpr int BYTES = STAGES * STAGE + OUT + 1024;
};

// A tile, as the producer tells the consumers of it.
struct tile {
    int row, slice, panel, count, slot; // count: blocks; -1: there are no more tiles
};

enum { AHEAD = 4 }; // tiles that the producer may be ahead

struct barriers {
    uint64_t full[8], empty[8], tile_full[AHEAD], tile_empty[AHEAD];
    tile tiles[AHEAD];
};

struct state {
    sat_plan_work work;
    unsigned *counter;
    maps m; // of these operands: made anew only where a pointer has changed
    const void *of[3];
};

/* ---- the producer ---- */

template <int BM, int BN, int KS, int STAGES, bool TA, bool TB>
__device__ static void load_stage(const job &x, const maps &m, uint32_t to, uint32_t bar, int64_t block, int slice,
                                  int64_t k, int in_block, int n0) {
    typedef shape<BM, BN, KS, STAGES> S;
    sat_barrier_expect(bar, S::B + (TA ? BM : x.a_rows) * KS * 2);
    if (TA) {
        for (int i = 0; i < BM; i += 64)
            sat_tile_load(to + i * KS * 2, &m.a, bar, slice * BM + i, (int)(block * x.r.bc) + in_block);
    } else {
        sat_tile_load(to, &m.a, bar, in_block, (int)(block * x.r.br) + slice * BM);
    }
    uint32_t b = to + S::A;
    if (TB) {
        for (int i = 0; i < BN; i += 256) sat_tile_load(b + i * KS * 2, &m.b, bar, (int)k, n0 + i);
    } else if (x.wide_b) {
        sat_tile_load(b, &m.b, bar, 0, (int)k, n0 / 64);
    } else {
        for (int i = 0; i < BN; i += 64) sat_tile_load(b + i * KS * 2, &m.b, bar, n0 + i, (int)k);
    }
}

/* The next tile, fetched while this one's blocks are on their way: each step waits for what the one before asked for.
 */
struct coming {
    unsigned number;
    sat_piece piece;
    tile t;
    int64_t place; // of this lane's block of the first 32: its values, and its first row of B
    int64_t k;
    int step;
};

__device__ static void fetch_blocks(const job &x, const sat_piece &piece, int first, int64_t *place, int64_t *k) {
    int mine = first + (int)(threadIdx.x % 32);
    if (mine >= piece.count) return;
    *place = sat_block_of(&x.r, piece.first + mine), *k = x.r.col[piece.first + mine] * x.r.bc;
}

__device__ static void fetch(const job &x, coming *c) {
    unsigned all = (unsigned)x.work.pieces * x.slices;
    if (c->step == 0) {
        if (threadIdx.x % 32 == 0) c->number = atomicAdd(x.counter, 1u);
    } else if (c->step == 1) {
        c->number = __shfl_sync(~0u, c->number, 0);
        unsigned at = c->number % all;
        c->t.panel = (int)(c->number / all), c->t.slice = (int)(at % x.slices);
        if (c->t.panel < x.panels) c->piece = sat_piece_at(x.r, x.work.piece, at / x.slices);
    } else if (c->step == 2 && c->t.panel < x.panels) {
        fetch_blocks(x, c->piece, 0, &c->place, &c->k);
    }
    c->step++;
}

template <int BM, int BN, int KS, int STAGES, bool TA, bool TB>
__device__ static void produce(const job &x, const maps &m, barriers *s, uint32_t stages) {
    int lane = threadIdx.x % 32, stage = 0, turn = 0;
    uint32_t parity = 1, tile_parity = 1;
    coming next = {};
    for (;;) {
        while (next.step < 3) fetch(x, &next);
        coming now = next;
        bool last = now.t.panel >= x.panels;
        if (lane == 0) {
            sat_barrier_wait(sat_shared(&s->tile_empty[turn]), tile_parity);
            s->tiles[turn] = {now.piece.row, now.t.slice, now.t.panel, last ? -1 : now.piece.count, now.piece.slot};
            sat_barrier_arrive(sat_shared(&s->tile_full[turn]));
        }
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (last) return;
        next.step = 0;
        for (int t = 0; t < now.piece.count; t++) {
            if (t % 32 == 0 && t > 0) fetch_blocks(x, now.piece, t, &now.place, &now.k);
            int64_t block = __shfl_sync(~0u, now.place, t % 32), k = __shfl_sync(~0u, now.k, t % 32);
            for (int in_block = 0; in_block < x.r.bc; in_block += KS) {
                if (lane == 0) {
                    sat_barrier_wait(sat_shared(&s->empty[stage]), parity);
                    load_stage<BM, BN, KS, STAGES, TA, TB>(x, m, stages + stage * shape<BM, BN, KS, STAGES>::STAGE,
                                                           sat_shared(&s->full[stage]), block, now.t.slice,
                                                           k + in_block, in_block, now.t.panel * BN);
                }
                __syncwarp();
                if (++stage == STAGES) stage = 0, parity ^= 1;
            }
            if (next.step < 3) fetch(x, &next);
        }
    }
}

/* ---- the consumers ---- */

template <typename T> __device__ static uint32_t pack(float x, float y);
template <> __device__ uint32_t pack<sat_f16_math>(float x, float y) {
    __half2 h = __floats2half2_rn(x, y);
    return *(uint32_t *)&h;
}
template <> __device__ uint32_t pack<sat_bf16_math>(float x, float y) {
    __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    return *(uint32_t *)&h;
}

/* alpha*sum + bias in place, and the activation that costs nothing; the others have their own way out. */
template <int COUNT> __device__ static void finish(const job &x, float (&d)[COUNT], int64_t i) {
    float alpha = (float)x.out.alpha, low = 0, high = 0, least = x.out.activation == SAT_ACT_RELU ? 0 : -INFINITY;
    if (x.out.bias) {
        if (i < x.out.m) low = sat_load_as(0.f, x.out.dtype, x.out.bias, i);
        if (i + 8 < x.out.m) high = sat_load_as(0.f, x.out.dtype, x.out.bias, i + 8);
    }
#pragma unroll
    for (int e = 0; e < COUNT; e++) {
        float y = alpha * d[e] + (e % 4 < 2 ? low : high);
        d[e] = y < least ? least : y; // NaN stays
    }
}

/* 16 rows by 32 columns of sums as f32, rows of 128 bytes, chunks of 16 bytes exchanged by row. */
template <int COUNT> __device__ static void stage_f32(const float (&d)[COUNT], int j, uint32_t to) {
    int lane = threadIdx.x % 32, row = lane / 4;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        uint32_t at = to + row * 128 + ((q * 2 + lane % 4 / 2) ^ row) * 16 + lane % 2 * 8;
        const float *v = &d[j / 2 + q * 4];
        asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at), "f"(v[0]), "f"(v[1]) : "memory");
        asm volatile("st.shared.v2.f32 [%0], {%1,%2};" ::"r"(at + 1024), "f"(v[2]), "f"(v[3]) : "memory");
    }
}

/* A warp's 16 rows by 64 columns at a time: shared memory, then one copy by the map. */
template <typename T, int WN>
__device__ static void store_mapped(const job &x, const CUtensorMap *map, const float (&d)[WN / 2], uint32_t staging,
                                    int64_t i0, int64_t n0, bool stores) {
    int lane = threadIdx.x % 32;
    bool f32 = x.out.dtype == SAT_F32;
    int width = f32 ? 32 : 64;
#pragma unroll
    for (int j = 0; j < WN; j += 32) {
        if (f32 || j % 64 == 0) {
            if (lane == 0) sat_store_wait<1>();
            __syncwarp();
        }
        uint32_t to = staging + (f32 ? j / 32 % 2 : j / 64 % 2) * SLICE;
        if (f32) {
            stage_f32(d, j, to);
        } else {
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const float *v = &d[j / 2 + q * 8];
                int row = lane % 16, chunk = j % 64 / 8 + q * 2 + lane / 16;
                sat_store_matrix(to + row * 128 + ((chunk ^ (row & 7)) * 16), pack<T>(v[0], v[1]), pack<T>(v[2], v[3]),
                                 pack<T>(v[4], v[5]), pack<T>(v[6], v[7]));
            }
        }
        if (f32 || j % 64 == 32) {
            sat_async_fence();
            __syncwarp();
            if (lane == 0 && stores && n0 + j / width * width < x.out.n) {
                sat_tile_store(map, to, (int)(n0 + j / width * width), (int)i0);
            }
            if (lane == 0) sat_store_commit();
        }
    }
}

/* A warpgroup's 64 rows by 64 columns at a time, turned. */
template <typename T, int WN>
__device__ static void store_turned(const job &x, const CUtensorMap *map, const float (&d)[WN / 2], uint32_t staging,
                                    int64_t i0, int64_t n0, int group) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int j = 0; j < WN; j += 64) {
        uint32_t to = staging + j / 64 % 2 * (64 * 128);
        if (threadIdx.x % 128 == 0) sat_store_wait<1>();
        sat_some_sync(1 + group, 128);
#pragma unroll
        for (int q = 0; q < 4; q++) { // 16 columns; each row of the slice is a column of C, 64 rows long
            const float *v = &d[j / 2 + q * 8];
            int row = q * 16 + lane % 8 + lane / 16 * 8, chunk = warp * 2 + lane / 8 % 2;
            sat_store_turned(to + row * 128 + ((chunk ^ (row & 7)) * 16), pack<T>(v[0], v[1]), pack<T>(v[2], v[3]),
                             pack<T>(v[4], v[5]), pack<T>(v[6], v[7]));
        }
        sat_async_fence();
        sat_some_sync(1 + group, 128);
        if (threadIdx.x % 128 == 0) {
            if (n0 + j < x.out.n) sat_tile_store(map, to, (int)i0, (int)(n0 + j));
            sat_store_commit();
        }
    }
}

/* Everything else, element by element: beta, other activations, odd strides, partial sums. */
template <int WN>
__device__ static void store_plain(const job &x, const float (&d)[WN / 2], uint32_t staging, const tile &t, int in_row,
                                   int64_t n0) {
    int lane = threadIdx.x % 32;
    float *partial = (float *)x.work.partial;
#pragma unroll
    for (int j0 = 0; j0 < WN; j0 += 32) {
        __syncwarp();
        stage_f32(d, j0, staging);
        __syncwarp();
#pragma unroll 1
        for (int e = 0; e < 16; e++) { // neighbouring lanes along what is contiguous
            int row = x.turned_c ? lane % 16 : e, col = x.turned_c ? e * 2 + lane / 16 : lane;
            int64_t i = t.row * x.r.br + in_row + row, j = n0 + j0 + col;
            float sum;
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(sum)
                         : "r"(staging + row * 128 + ((col / 4) ^ (row & 7)) * 16 + col % 4 * 4)
                         : "memory");
            if (in_row + row >= x.r.br || i >= x.out.m || j >= x.out.n) continue;
            if (t.slot >= 0) partial[(t.slot * x.r.br + in_row + row) * x.out.n + j] = sum;
            else sat_put(x.out, i, j, sum);
        }
    }
}

template <typename T, int BM, int BN, int KS, int STAGES, bool TA, bool TB>
__device__ static void multiply_stage(float (&d)[shape<BM, BN, KS, STAGES>::WN / 2], uint32_t from, int group,
                                      int add) {
    typedef shape<BM, BN, KS, STAGES> S;
    constexpr int swizzle = KS == 64 ? 1 : KS == 32 ? 2 : 3, eight = KS * 2 * 8; // eight rows, K contiguous
    uint32_t a = from, b = from + S::A;
    if (BM == 128) a += group * 64 * KS * 2;
    else b += TB ? group * S::WN * KS * 2 : group * (S::WN / 64) * KS * 128;
    sat_group_fence();
#pragma unroll
    for (int k = 0; k < KS / 16; k++) {
        uint64_t da =
            TA ? sat_descriptor(a + k * 2048, 1, KS * 128, 1024) : sat_descriptor(a + k * 32, swizzle, 16, eight);
        uint64_t db =
            TB ? sat_descriptor(b + k * 32, swizzle, 16, eight) : sat_descriptor(b + k * 2048, 1, KS * 128, 1024);
        sat_group_product<T, S::WN, TA, !TB>::run(d, da, db, add || k);
    }
    sat_group_commit();
}

template <typename T, int BM, int BN, int KS, int STAGES, bool TA, bool TB>
__device__ static void consume(const job &x, const maps &m, barriers *s, uint32_t stages, uint32_t staging) {
    typedef shape<BM, BN, KS, STAGES> S;
    int group = threadIdx.x / 128, warp = threadIdx.x / 32, lane = threadIdx.x % 32, stage = 0, turn = 0;
    uint32_t parity = 0, tile_parity = 0;
    for (;;) {
        sat_barrier_wait(sat_shared(&s->tile_full[turn]), tile_parity);
        tile t = s->tiles[turn];
        __syncwarp();
        if (lane == 0) sat_barrier_arrive(sat_shared(&s->tile_empty[turn]));
        if (++turn == AHEAD) turn = 0, tile_parity ^= 1;
        if (t.count < 0) break;
        int steps = t.count * (int)(x.r.bc / KS), before = -1;
        float d[S::WN / 2];
        if (steps == 0)
#pragma unroll
            for (int e = 0; e < S::WN / 2; e++) d[e] = 0;
        for (int step = 0; step < steps; step++) {
            sat_barrier_wait(sat_shared(&s->full[stage]), parity);
            multiply_stage<T, BM, BN, KS, STAGES, TA, TB>(d, stages + stage * S::STAGE, group, step);
            sat_group_wait<1>();
            if (before >= 0 && lane == 0) sat_barrier_arrive(sat_shared(&s->empty[before]));
            before = stage;
            if (++stage == STAGES) stage = 0, parity ^= 1;
        }
        sat_group_wait<0>();
        if (before >= 0 && lane == 0) sat_barrier_arrive(sat_shared(&s->empty[before]));
        int in_row = t.slice * BM + (BM == 128 ? group * 64 : 0) + warp % 4 * 16;
        int64_t n0 = (int64_t)t.panel * BN + (BM == 128 ? 0 : group * S::WN), i0 = t.row * x.r.br;
        if (t.slot >= 0 || !x.map_c) {
            store_plain<S::WN>(x, d, staging + warp * 2 * SLICE, t, in_row, n0);
            continue;
        }
        finish(x, d, i0 + in_row + lane / 4);
        if (x.turned_c && in_row - warp % 4 * 16 < x.r.br)
            store_turned<T, S::WN>(x, &m.c, d, staging + group * 8 * SLICE, i0 + in_row - warp % 4 * 16, n0, group);
        else if (!x.turned_c)
            store_mapped<T, S::WN>(x, &m.c, d, staging + warp * 2 * SLICE, i0 + in_row, n0, in_row < x.r.br);
    }
}

template <typename T, int BM, int BN, int KS, int STAGES, bool TA, bool TB>
static __global__ void __launch_bounds__(THREADS, 1)
    multiply(const __grid_constant__ job x, const __grid_constant__ maps m) {
    extern __shared__ char memory[];
    __shared__ barriers s;
    uint32_t stages = (sat_shared(memory) + 1023) & ~1023u,
             staging = stages + STAGES * shape<BM, BN, KS, STAGES>::STAGE;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            sat_barrier_init(sat_shared(&s.full[i]), 1), sat_barrier_init(sat_shared(&s.empty[i]), 8);
        for (int i = 0; i < AHEAD; i++)
            sat_barrier_init(sat_shared(&s.tile_full[i]), 1), sat_barrier_init(sat_shared(&s.tile_empty[i]), 8);
        sat_barrier_publish();
        sat_prefetch_map(&m.a), sat_prefetch_map(&m.b);
        if (x.map_c) sat_prefetch_map(&m.c);
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        sat_registers_fewer<40>();
        if (threadIdx.x < CONSUMERS + 32) produce<BM, BN, KS, STAGES, TA, TB>(x, m, &s, stages);
    } else {
        sat_registers_more<232>();
        consume<T, BM, BN, KS, STAGES, TA, TB>(x, m, &s, stages, staging);
        if (threadIdx.x % 32 == 0 || threadIdx.x % 128 == 0) sat_store_wait<0>();
    }
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(x.counter + 1, 1u) == gridDim.x - 1)
        x.counter[0] = x.counter[1] = 0; // for the next launch
}

/* ---- the host's side ---- */

typedef CUresult (*encode_fn)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                              const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static encode_fn encoder() {
    static encode_fn found; // written once, to the same value by whoever comes first
    if (found) return found;
    void *function = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t e =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
#else
    cudaError_t e = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &result);
#endif
    if (e != cudaSuccess || result != cudaDriverEntryPointSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    return found = (encode_fn)function;
}

struct tensor {
    sat_dtype dtype;
    const void *base;
    int rank;
    cuuint64_t size[3], stride[2]; // strides in bytes
    cuuint32_t box[3];
    int row_bytes; // of a tile in shared memory: 128, 64 or 32
};

static bool encode(CUtensorMap *map, const tensor &t) {
    static const cuuint32_t ones[3] = {1, 1, 1};
    CUtensorMapDataType type = t.dtype == SAT_F32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                               : t.dtype == SAT_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    CUtensorMapSwizzle swizzle = t.row_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                 : t.row_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                     : CU_TENSOR_MAP_SWIZZLE_32B;
    return encoder()(map, type, (cuuint32_t)t.rank, (void *)t.base, t.size, t.stride, t.box, ones,
                     CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                     CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

static bool whole(const sat_problem *p, const sat_layout &l, int64_t size) { // every item's pointer is aligned too
    return p->batch <= 1 || l.batch_stride * size % 16 == 0;
}

static bool by_map(const sat_problem *p, const sat_layout &l, int64_t rows, int64_t cols, uint32_t align, int64_t size,
                   bool *turned) {
    *turned = l.col_stride != 1;
    int64_t lead = *turned ? l.col_stride : l.row_stride, line = *turned ? rows : cols;
    if (l.col_stride != 1 && l.row_stride != 1) return false;
    return whole(p, l, size) && align % 16 == 0 && lead * size % 16 == 0 && lead >= line && lead < (1ll << 36);
}

template <int BM, int BN, int KS, int STAGES> static bool make_maps(const sat_launch *l, const job &x, maps *m) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    cuuint64_t bc = (cuuint64_t)a->block_cols, rows = (cuuint64_t)(a->stored_blocks * a->block_rows);
    cuuint64_t n = (cuuint64_t)p->n, k = (cuuint64_t)p->k, mm = (cuuint64_t)p->m;
    bool turned_a = p->transpose == SAT_TRANSPOSE, turned_b = p->b.col_stride != 1;
    tensor ta = {p->a_dtype, l->operands[0], 2, {bc, rows}, {bc * 2}, {KS, (cuuint32_t)x.a_rows}, KS * 2};
    if (turned_a) ta.box[0] = 64, ta.box[1] = KS, ta.row_bytes = 128;
    cuuint64_t lead = (cuuint64_t)(turned_b ? p->b.col_stride : p->b.row_stride) * 2;
    tensor tb = {p->b_dtype, l->operands[1], 2, {n, k}, {lead}, {64, KS}, 128};
    if (turned_b) tb = {p->b_dtype, l->operands[1], 2, {k, n}, {lead}, {KS, BN < 256 ? BN : 256}, KS * 2};
    else if (x.wide_b) tb = {p->b_dtype, l->operands[1], 3, {64, k, n / 64}, {lead, 128}, {64, KS, BN / 64}, 128};
    if (!encode(&m->a, ta) || !encode(&m->b, tb)) return false;
    if (!x.map_c) return true;
    cuuint64_t size = sat_dtype_size(p->c_dtype), pitch = (cuuint64_t)(x.turned_c ? p->c.col_stride : p->c.row_stride);
    tensor tc = {p->c_dtype, l->operands[2], 2, {n, mm}, {pitch * size}, {(cuuint32_t)(128 / size), 16}, 128};
    if (x.turned_c) tc.size[0] = mm, tc.size[1] = n, tc.box[0] = 64, tc.box[1] = 64;
    return encode(&m->c, tc);
}

template <typename T, int BM, int BN, int KS, int STAGES, bool TA, bool TB>
static sat_status start(const sat_launch *l, const job &x, const maps &m) {
    typedef shape<BM, BN, KS, STAGES> S;
    auto kernel = multiply<T, BM, BN, KS, STAGES, TA, TB>;
    static bool told[64]; // the limit is the function's on a device, and stays
    if (!told[l->device->index % 64]) {
        cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, S::BYTES);
        if (e != cudaSuccess) return sat_launched(l);
        told[l->device->index % 64] = true;
    }
    int64_t tiles = x.work.pieces * x.slices * x.panels;
    unsigned grid = (unsigned)sat_min(tiles, l->device->threads);
    kernel<<<grid, THREADS, S::BYTES, (cudaStream_t)l->stream>>>(x, m);
    return sat_launched(l);
}

template <typename T, int BM, int BN, int KS, int STAGES> static sat_status launch_tile(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->m == 0 || p->n == 0) return SAT_OK;
    state *st = (state *)l->state;
    job x = {};
    x.r = sat_device_rows(p, l->pattern), x.out = sat_out_of(l), x.work = st->work, x.counter = st->counter;
    x.panels = (int)((p->n + BN - 1) / BN), x.slices = (int)((x.r.br + BM - 1) / BM);
    x.a_rows = (int)sat_min(BM, x.r.br);
    x.wide_b = p->n % 64 == 0;
    bool plain = p->beta == 0 && (p->activation == SAT_ACT_NONE || p->activation == SAT_ACT_RELU);
    int64_t size = (int64_t)sat_dtype_size(p->c_dtype);
    x.map_c = by_map(p, p->c, p->m, p->n, p->c_align, size, &x.turned_c) && plain;
    if ((x.turned_c ? p->m : p->n) * size % 16 != 0) x.map_c = false; // stores go by 16 bytes, past the end of a line
    if (x.turned_c && (x.r.br % 64 != 0 || p->c_dtype == SAT_F32)) x.map_c = false;
    if (x.work.joins) x.map_c = false; // partial sums leave through the memory that such stores may still be reading
    if (st->of[0] != l->operands[0] || st->of[1] != l->operands[1] || st->of[2] != l->operands[2]) {
        st->of[0] = NULL;
        if (!make_maps<BM, BN, KS, STAGES>(l, x, &st->m))
            return sat_fail(SAT_DEVICE_ERROR, "%s: no tensor map", l->variant->name);
        for (int i = 0; i < 3; i++) st->of[i] = l->operands[i];
    }
    const maps &m = st->m;
    bool ta = p->transpose == SAT_TRANSPOSE, tb = p->b.col_stride != 1;
    sat_status status = ta ? (tb ? start<T, BM, BN, KS, STAGES, true, true>(l, x, m)
                                 : start<T, BM, BN, KS, STAGES, true, false>(l, x, m))
                           : (tb ? start<T, BM, BN, KS, STAGES, false, true>(l, x, m)
                                 : start<T, BM, BN, KS, STAGES, false, false>(l, x, m));
    return status == SAT_OK ? sat_launch_join<float>(l, x.r, x.out, x.work) : status;
}

#define TILES(X) X(64, 512, 32, 5) X(64, 256, 64, 4) X(128, 256, 64, 4) X(128, 128, 64, 6) X(64, 128, 64, 8)

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t deep = v->instance.tile_k;
    bool turned;
    if (d->capability != 90 || p->a_dtype != v->instance.dtype || a->stored_blocks == 0 || p->n == 0) return false;
    if (r.br % 16 || r.bc % deep || r.k % r.bc || p->a_align % 16 || a->block_cols % 8) return false;
    if (a->stored_blocks * sat_max(a->block_rows, a->block_cols) > 0x7fffffff) return false;
    if (sat_max(p->m, sat_max(p->n, p->k)) > 0x7fff0000) return false;
    double tiles = ((double)r.count + (double)a->stored_blocks) * ceil((double)p->n / v->instance.tile_n) *
                   ceil((double)r.br / v->instance.tile_m);
    if (tiles > 0x7fff0000) return false; // more than the counter counts
    return whole(p, p->a, 2) && by_map(p, p->b, p->k, p->n, p->b_align, 2, &turned);
}

static int64_t share_of(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    int64_t panels = (p->n + v->instance.tile_n - 1) / v->instance.tile_n;
    int64_t slices = (r.br + v->instance.tile_m - 1) / v->instance.tile_m;
    return sat_schedule_share(&r, panels * slices, d->threads, sat_max(1, 512 / r.bc));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    sat_schedule s = sat_schedule_count(&r, share_of(v, p, a, d));
    return (sat_schedule_bytes(&s, r.br, p->n, sizeof(float)) + 255) / 256 * 256 + 256;
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!encoder()) return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    void *work = NULL;
    sat_status status = sat_prepare_work(q, share_of(q->variant, q->problem, q->pattern, q->device), &work);
    if (status != SAT_OK) return status;
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) {
        free(work);
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    }
    st->work = *(sat_plan_work *)work;
    free(work);
    size_t bytes = workspace(q->variant, q->problem, q->pattern, q->device);
    st->counter = (unsigned *)((char *)q->workspace + bytes - 256);
    cudaError_t e = cudaMemsetAsync(st->counter, 0, 256, (cudaStream_t)q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    *out = st;
    return e == cudaSuccess ? SAT_OK : sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static sat_status launch(const sat_launch *l) {
    const sat_instance *i = &l->variant->instance;
#define PICK(bm, bn, ks, stages)                                                                                       \
    if (i->tile_m == bm && i->tile_n == bn && i->tile_k == ks)                                                         \
        return i->dtype == SAT_F16 ? launch_tile<sat_f16_math, bm, bn, ks, stages>(l)                                  \
                                   : launch_tile<sat_bf16_math, bm, bn, ks, stages>(l);
    TILES(PICK)
    return sat_fail(SAT_INTERNAL, "%s: no such tile", l->variant->name);
}

/* Copies from L2 and products overlap; the longer counts. A multiprocessor has 1/132 of either. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double bm = v->instance.tile_m, bn = v->instance.tile_n, panels = ceil((double)p->n / bn);
    double slices = ceil((double)r.br / bm), tiles = (double)r.count * slices * panels, items = (double)p->batch;
    double loads = (double)a->stored_blocks * panels * slices * (double)r.bc * (fmin(bm, (double)r.br) + bn) * 2;
    double work = 2 * (double)a->stored_blocks * panels * slices * (double)r.bc * bm * bn;
    double busy = fmin(1, tiles / d->threads), rate = 9e12 * d->threads / 132;
    double time = fmax(loads / rate, work / d->flop_rate[p->a_dtype]) / busy;
    return fmax(items * time, sat_bytes(p, a) / d->memory_rate) + items * (tiles / d->threads * 1e-6 + 3e-6);
}

SAT_FAMILY(cuda_matmul_wgmma) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .flags = 0,
    .about = "tensor maps and warpgroup products on Hopper; f16, bf16; block rows multiples of 16, columns of 32",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_work,
};
