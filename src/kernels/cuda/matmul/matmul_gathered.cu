// cuda_matmul_gathered: dense tiles of op(A), gathered from blocks of any shape in shared memory, by tensor cores, or
// for f32 without TF32 by plain units. One launch, without copies, for any block, stride and alignment: made for
// products of a few microseconds, where anything that is queued before or after the product costs as much as the
// product.
//
// A CTA has a tile of C, BM x BN. The nonempty tiles of its rows of op(A), BM x BK, are divided among its warps, each
// of which gathers a tile, loads B's and multiplies, without CTA barriers (warp_tile.cuh). Then their sums are added.
// Where C has too few tiles for a GPU, several CTAs share one: they leave partial sums, and the last to arrive adds
// them up, in their order.
//
// A tile has zeros where nothing is stored, and 0*Inf and 0*NaN are NaN. So each sum that is not finite is computed
// once more, from the stored blocks alone.

#include <type_traits>

#include "kernels/cuda/common/simt_rates.h"
#include "kernels/cuda/common/warp_tile.cuh"

struct kernel_args {
    sat_rows r;
    sat_epilogue out;
    sat_device_patches tiles;
    warp_patches a;
    warp_operand b;
    unsigned columns, splits; // tiles across C; CTAs that share a tile
    unsigned *arrived;        // by tile of C: CTAs that have left their partial sums
    void *partial;            // [tile of C][CTA][row][column]
    const void *b_start;
    int64_t b_row_stride, b_col_stride;
    bool by_columns; // C is column-major
};

// ---- epilogue

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// Row i of op(A) times column j of B: stored elements alone.
template <class S>
static __device__ __noinline__ typename S::accumulator stored_sum(const kernel_args &args, int64_t i, int64_t j) {
    typedef typename S::element element;
    typedef typename S::accumulator accumulator;
    const sat_rows &r = args.r;
    accumulator sum = 0, part = 0;
    int terms = 0;
    for (int64_t row = i / r.br, t = r.ptr[row]; t < r.ptr[row + 1]; t++) {
        const int64_t k0 = r.col[t] * r.bc, depth = sat_min(r.bc, r.k - k0);
        const element *a =
            (const element *)args.a.values + sat_block_of(&r, t) * r.block_elements + i % r.br * r.row_step;
        const element *b = (const element *)args.b_start + k0 * args.b_row_stride + j * args.b_col_stride;
        for (int64_t k = 0; k < depth; k++) {
            part += widen(a[k * r.col_step]) * widen(b[k * args.b_row_stride]);
            if (++terms == SAT_SUM_PART) sum += part, part = 0, terms = 0;
        }
    }
    return sum + part;
}

template <class S>
__device__ __forceinline__ void finish(const kernel_args &args, int64_t i, int64_t j, typename S::accumulator sum) {
    if (i >= args.out.m || j >= args.out.n) return;
    if (!isfinite(sum)) sum = stored_sum<S>(args, i, j);
    sat_epilogue_store(args.out, i, j, sum);
}

// ---- kernel

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) gathered(const __grid_constant__ kernel_args args) {
    typedef typename S::accumulator accumulator;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ bool last;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    griddepcontrol_launch_dependents();
    const unsigned split = blockIdx.x % args.splits, tile = blockIdx.x / args.splits;
    const unsigned strip = tile / args.columns, first = args.tiles.ptr[strip],
                   count = args.tiles.ptr[strip + 1] - first;
    const unsigned begin = first + (unsigned)((uint64_t)count * split / args.splits),
                   end = first + (unsigned)((uint64_t)count * (split + 1) / args.splits);
    const int64_t i0 = (int64_t)strip * S::BM, j0 = (int64_t)(tile % args.columns) * S::BN;
    const uint32_t a = smem_address(shared) + warp * S::TILES, b = a + S::a_tile::BYTES;
    warp_sums<S> sums;
    sums.clear();
    // A plan's own data need not wait for the kernel before. The next tile and its first patches are loaded early.
    sat_patch_tile next = {};
    uint2 patch = {};
    auto look_ahead = [&](unsigned t) {
        if (t >= end) return;
        next = args.tiles.tile[t];
        if (lane < next.count) patch = warp_load_patch(args.tiles.patch + next.first + lane);
    };
    look_ahead(begin + warp);
    griddepcontrol_wait();

    for (unsigned t = begin + warp; t < end; t += S::WARPS) {
        const sat_patch_tile x = next;
        const uint2 mine = patch;
        const int64_t k0 = (int64_t)x.col * S::BK;
        look_ahead(t + S::WARPS);
        S::b_tile::load(b, args.b, S::B_K_MAJOR ? j0 : k0, S::B_K_MAJOR ? k0 : j0, lane);
        S::a_tile::clear(a, lane);
        __syncwarp();
        S::a_tile::gather(a, args.a, args.tiles.patch + x.first, x.count, mine, lane);
        sums.multiply(a, b, args.r.k - k0, lane);
    }
    __syncthreads(); // tiles become sums
    accumulator *all = (accumulator *)shared;
    sums.store(all + warp * S::SUMS, lane);
    __syncthreads();

    const int parts = (int)min(end - begin, (unsigned)S::WARPS); // warps that had anything
    const int64_t mine = (int64_t)blockIdx.x * (S::BM * S::BN);
    for (int e = threadIdx.x; e < S::BM * S::BN; e += S::THREADS) {
        const int i = args.by_columns ? e % S::BM : e / S::BN, j = args.by_columns ? e / S::BM : e % S::BN;
        accumulator sum = 0;
        for (int w = 0; w < parts; w++) sum += all[w * S::SUMS + i * S::PITCH + j];
        if (args.splits == 1) finish<S>(args, i0 + i, j0 + j, sum);
        else __stcg((accumulator *)args.partial + mine + e, sum);
    }
    if (args.splits == 1) return;

    __threadfence(); // partial sums before the arrival
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(args.arrived + tile, 1u) == args.splits - 1;
    __syncthreads();
    if (!last) return;
    __threadfence(); // the arrivals before their partial sums
    const accumulator *partial = (const accumulator *)args.partial + (int64_t)tile * args.splits * (S::BM * S::BN);
    for (int e = threadIdx.x; e < S::BM * S::BN; e += S::THREADS) {
        const int i = args.by_columns ? e % S::BM : e / S::BN, j = args.by_columns ? e / S::BM : e % S::BN;
        accumulator sum = 0;
        for (unsigned s = 0; s < args.splits; s++) sum += __ldcg(partial + s * (S::BM * S::BN) + e);
        finish<S>(args, i0 + i, j0 + j, sum);
    }
    if (threadIdx.x == 0) args.arrived[tile] = 0; // for the next launch
}

// ---- host: instances

enum { PLAIN = 1 }; // sat_instance.option: f32 by plain units, not as TF32

struct instance {
    sat_dtype dtype;
    int option;
    int bm, bn, bk, warps, shared;
    sat_status (*start[2][2])(const sat_launch *, unsigned grid, const kernel_args &); // op(A) K-major, B K-major
};

template <class S> static sat_status start(const sat_launch *l, unsigned grid, const kernel_args &args) {
    return sat_start<gathered<S>>(l, grid, S::THREADS, S::SHARED, args);
}

template <class MATH, int BM, int BN, int WARPS> constexpr instance instance_of() {
    typedef warp_shape<MATH, BM, BN, WARPS, true, true> any;
    return {
        MATH::dtype,
        std::is_same<MATH, fma_f32>::value ? PLAIN : 0,
        BM,
        BN,
        any::BK,
        WARPS,
        any::SHARED,
        {{start<warp_shape<MATH, BM, BN, WARPS, false, false>>, start<warp_shape<MATH, BM, BN, WARPS, false, true>>},
         {start<warp_shape<MATH, BM, BN, WARPS, true, false>>, start<any>}}};
}

static const instance instances[] = {
    instance_of<mma_16bit<sat_f16_math>, 16, 16, 8>(),  /**/
    instance_of<mma_16bit<sat_f16_math>, 32, 32, 8>(),  /**/
    instance_of<mma_16bit<sat_bf16_math>, 16, 16, 8>(), /**/
    instance_of<mma_16bit<sat_bf16_math>, 32, 32, 8>(), /**/
    instance_of<mma_tf32, 16, 16, 8>(),                 /**/
    instance_of<mma_tf32, 32, 32, 8>(),                 /**/
    instance_of<fma_f32, 16, 16, 8>(),                  /**/
    instance_of<fma_f32, 32, 32, 8>(),                  /**/
    instance_of<mma_f64<16, 8>, 16, 16, 8>(),           /**/
    instance_of<mma_f64<16, 8>, 32, 32, 8>(),           /**/
};

static const instance *find(const sat_variant *v) {
    for (const instance &x : instances)
        if (x.dtype == v->instance.dtype && x.option == v->instance.option && x.bm == v->instance.tile_m) return &x;
    return NULL;
}

// ---- host: how the work is cut

struct cut {
    sat_patch_shape shape;
    unsigned columns, splits;
    int64_t tiles; // of C
    double steps;  // nonempty tiles of op(A) in all its rows, about
};

static cut cut_of(const instance *x, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    cut c = {};
    c.shape = {r.m, r.k, x->bm, x->bk};
    int64_t strips = sat_patch_tiles_across(r.m, x->bm), columns = sat_patch_tiles_across(p->n, x->bn);
    c.columns = (unsigned)sat_min(columns, INT32_MAX), c.tiles = strips * columns;
    c.steps = sat_patch_tiles_expected(a, &r, &c.shape);
    double wanted = 2.0 * d->multiprocessors / (double)sat_max(1, c.tiles);
    double most = c.steps / (double)sat_max(1, strips) / x->warps; // a step for every warp
    c.splits = (unsigned)fmax(1, fmin(32, fmin(ceil(wanted), floor(most))));
    return c;
}

static bool b_k_major(const sat_problem *p) { return p->b.row_stride == 1; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *x = find(v);
    if (!x || p->a_dtype != x->dtype || d->capability < 80 || x->shared + 1024 > d->l1_bytes) return false;
    if (x->dtype == SAT_F32 && (x->option == PLAIN) == ((p->flags & SAT_ALLOW_TF32) != 0)) return false;
    if (x->option == PLAIN && p->k > (int64_t)SAT_SUM_PART * x->warps)
        return false; // a warp's part of a sum is one chain
    sat_rows r = sat_op_rows(p, a);
    sat_patch_shape shape = {r.m, r.k, x->bm, x->bk};
    if (r.br > INT32_MAX / 2 || r.bc > INT32_MAX / 2 || r.block_elements > INT32_MAX) return false;
    // alpha 0 makes zeros of NaN, as BLAS has it; here it would be multiplied
    if (p->alpha == 0 || p->m < 1 || p->n < 1 || !sat_patches_fit(a, &r, &shape)) return false;
    cut c = cut_of(x, p, a, d);
    return (double)c.tiles * c.splits < (double)INT32_MAX;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *x = find(v);
    sat_rows r = sat_op_rows(p, a);
    cut c = cut_of(x, p, a, d);
    double size = (double)sat_dtype_size(p->a_dtype), steps = fmax(1, c.steps), elements = (double)a->stored_elements;
    int64_t align = sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype);
    int unit = b_k_major(p) ? warp_unit((int64_t)size, align, p->b.col_stride, 1)
                            : warp_unit((int64_t)size, align, p->b.row_stride, p->b.col_stride);
    // instructions of a warp for a step: gathering, loading B, multiplying
    double gather = elements / steps / 32 * (r.block_elements <= WARP_SMALL_BLOCK ? 50 : 16) + x->bm / 4.0;
    double load = x->bn * x->bk * size / unit / 32 * (unit == 2 ? 16 : 12);
    double multiply =
        x->option == PLAIN ? x->bm * x->bn * x->bk / 32 * 1.4 : x->bm * x->bn * x->bk * size / (16 * 8 * 32) * 3;
    double issue = steps * c.columns * (150 + gather + load + multiply) / (sat_simt_cycles(d) * 2);
    // a step after the other, where nothing hides the latency
    double room = x->bm == 16 ? 24 : x->dtype == SAT_F64 ? 8 : 16; // warps of a multiprocessor
    double resident = fmax(1, fmin(room / x->warps, floor(227e3 / (x->shared + 1024))));
    double rounds = ceil((double)c.tiles * c.splits / (d->multiprocessors * resident));
    double strips = (double)c.tiles / c.columns, chain = ceil(steps / strips / c.splits / x->warps);
    double latency = rounds * (1.5e-6 + 1.5e-6 * chain);
    double l2 = c.columns * (elements * size + 8.0 * sat_patches_bound(a, &r, &c.shape)) +
                steps * c.columns * x->bn * x->bk * size;
    double rate = x->option == PLAIN ? 0.5 * sat_simt_rate(d, SAT_F32) : 0.3 * sat_matrix_rate(d, p->a_dtype);
    double units = steps * c.columns * 2 * x->bm * x->bn * x->bk / rate;
    double memory = fmax(l2 / d->l2_rate, sat_bytes(p, a) / d->memory_rate);
    double busy = fmax(fmax(issue, latency), fmax(units, memory));
    return (1.5e-6 + (c.splits > 1 ? 1.5e-6 : 0) + busy) * (double)p->batch;
}

struct offsets { // bytes in the workspace
    size_t patches, arrived, partial, all;
};

static offsets lay_out(const instance *x, const cut &c, const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = sat_op_rows(p, a);
    offsets at = {};
    double sum = p->a_dtype == SAT_F64 ? 8 : 4, partial = c.splits > 1 ? (double)c.tiles * c.splits : 0;
    at.patches = sat_carve(&at.all, (double)sat_patches_bytes(a, &r, &c.shape));
    at.arrived = sat_carve(&at.all, c.splits > 1 ? 4.0 * (double)c.tiles : 0);
    at.partial = sat_carve(&at.all, partial * x->bm * x->bn * sum);
    return at;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *x = find(v);
    return lay_out(x, cut_of(x, p, a, d), p, a).all;
}

// ---- host: prepare and launch

struct state {
    sat_device_patches tiles;
    cut c;
    offsets at;
};

static sat_status prepare(const sat_prepare *q, void **to) {
    const instance *x = find(q->variant);
    state *s = (state *)calloc(1, sizeof *s);
    *to = NULL;
    if (!s) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    s->c = cut_of(x, q->problem, q->pattern, q->device);
    s->at = lay_out(x, s->c, q->problem, q->pattern);
    char *workspace = (char *)q->workspace;
    sat_status status = sat_upload_patches(q, &r, &s->c.shape, workspace + s->at.patches, &s->tiles);
    if (status == SAT_OK && s->c.splits > 1) {
        cudaError_t e =
            cudaMemsetAsync(workspace + s->at.arrived, 0, s->at.partial - s->at.arrived, (cudaStream_t)q->stream);
        if (e != cudaSuccess) status = sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
    }
    if (status == SAT_OK) *to = s;
    else free(s);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const instance *x = find(l->variant);
    const state *s = (const state *)l->state;
    const int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    const int64_t a_align = sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype);
    const int64_t b_align = sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype);
    const bool a_rows = !sat_transposed(p), b_lines = b_k_major(p);
    kernel_args args = {};
    args.r = sat_device_rows(p, l->pattern), args.out = sat_epilogue_of(l), args.tiles = s->tiles;
    args.a = warp_patches_of(&args.r, l->operands[0], warp_unit(size, a_align, 0, 1), a_rows);
    args.b = {(const char *)l->operands[1],  b_lines ? p->b.col_stride : p->b.row_stride,
              b_lines ? 1 : p->b.col_stride, b_lines ? p->n : p->k,
              b_lines ? p->k : p->n,         0};
    args.b.unit = warp_unit(size, b_align, args.b.line_stride, args.b.step);
    args.columns = s->c.columns, args.splits = s->c.splits;
    args.arrived = (unsigned *)((char *)l->workspace + s->at.arrived),
    args.partial = (char *)l->workspace + s->at.partial;
    args.b_start = l->operands[1], args.b_row_stride = p->b.row_stride, args.b_col_stride = p->b.col_stride;
    args.by_columns = p->c.row_stride < p->c.col_stride;
    return x->start[a_rows][b_lines](l, (unsigned)(s->c.tiles * s->c.splits), args);
}

SAT_FAMILY(cuda_matmul_gathered) = {
    .revision = "2",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "blocks of any shape gathered into dense tiles of shared memory, tensor cores (mma.sync) or plain f32",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
