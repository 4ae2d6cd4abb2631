// cuda_sampled_picked: whole tiles of X*Y by tensor cores, of which the stored elements are picked in shared memory.
// One launch, for blocks, strides and alignments of any kind; a tile without a stored element is never computed.
//
// A CTA has a tile of BM x BN. Its warps divide k: each loads tiles of X and Y, and multiplies, without CTA barriers
// (warp_tile.cuh). Then their sums are added, and the patches of stored blocks in the tile are written.

#include "kernels/cuda/common/simt_rates.h"
#include "kernels/cuda/common/warp_tile.cuh"

struct kernel_args {
    sat_device_patches tiles;
    warp_operand x, y;
    warp_patches s;
    int64_t m, n, k;
    double alpha, beta;
    sat_dtype dtype; // of S
};

// ---- epilogue: one element

template <class S>
__device__ __forceinline__ void pick(const kernel_args &args, const sat_patch_tile &t, const sat_patch &p,
                                     unsigned line, unsigned at, const typename S::accumulator *sums) {
    typedef typename S::accumulator accumulator;
    const unsigned i = p.row + line, j = p.col + at;
    const int64_t to = (int64_t)p.from + (int64_t)line * args.s.line_stride + at;
    void *s = (void *)args.s.values;
    accumulator y = (accumulator)args.alpha * sums[i * S::PITCH + j];
    if (args.beta != 0) y += (accumulator)args.beta * sat_load_as(accumulator(), args.dtype, s, to);
    const bool inside = (int64_t)t.row * S::BM + i < args.m && (int64_t)t.col * S::BN + j < args.n;
    sat_store_from(inside ? y : accumulator(0), args.dtype, s, to);
}

// ---- kernel

template <class S>
static __global__ void __launch_bounds__(S::THREADS, S::CTAS) picked(const __grid_constant__ kernel_args args) {
    typedef typename S::accumulator accumulator;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    griddepcontrol_launch_dependents();
    const sat_patch_tile t = args.tiles.tile[blockIdx.x];
    const int64_t i0 = (int64_t)t.row * S::BM, j0 = (int64_t)t.col * S::BN;
    const uint32_t a = smem_address(shared) + warp * S::TILES, b = a + S::a_tile::BYTES;
    warp_sums<S> sums;
    sums.clear();
    griddepcontrol_wait();

    for (int64_t k0 = warp * S::BK; k0 < args.k; k0 += S::WARPS * S::BK) {
        S::a_tile::load(a, args.x, S::A_K_MAJOR ? i0 : k0, S::A_K_MAJOR ? k0 : i0, lane);
        S::b_tile::load(b, args.y, S::B_K_MAJOR ? j0 : k0, S::B_K_MAJOR ? k0 : j0, lane);
        sums.multiply(a, b, args.k - k0, lane);
    }
    __syncthreads(); // tiles become sums
    accumulator *all = (accumulator *)shared;
    sums.store(all + warp * S::SUMS, lane);
    __syncthreads();
    const int parts = (int)min((args.k + S::BK - 1) / S::BK, (int64_t)S::WARPS); // warps that had anything
    if (parts > 1) {
        for (int e = threadIdx.x; e < S::SUMS; e += S::THREADS)
            for (int w = 1; w < parts; w++) all[e] += all[w * S::SUMS + e];
        __syncthreads();
    }

    const sat_patch *patches = args.tiles.patch + t.first;
    if (args.s.area <= WARP_SMALL_BLOCK) {
#pragma unroll 4
        for (unsigned e = threadIdx.x; e < t.count * args.s.area; e += S::THREADS) {
            unsigned line, at, number = warp_small_element(args.s, e, line, at);
            const sat_patch p = warp_patch(warp_load_patch(patches + number));
            if (line < p.height && at < p.width) pick<S>(args, t, p, line, at, all);
        }
        return;
    }
    for (unsigned first = 0; first < t.count; first += 32) {
        uint2 mine = {};
        if (first + lane < t.count) mine = warp_load_patch(patches + first + lane);
        for (unsigned i = 0; i < min(t.count - first, 32u); i++) {
            const uint2 words = {__shfl_sync(~0u, mine.x, i), __shfl_sync(~0u, mine.y, i)};
            const sat_patch p = warp_patch(words);
            const int bits = warp_lane_bits(p.width);
            for (unsigned at = threadIdx.x & ((1u << bits) - 1); at < p.width; at += 32)
#pragma unroll 4
                for (unsigned line = threadIdx.x >> bits; line < p.height; line += (unsigned)S::THREADS >> bits)
                    pick<S>(args, t, p, line, at, all);
        }
    }
}

// ---- host: instances

struct instance {
    sat_dtype dtype;
    int bm, bn, bk, warps, shared;
    sat_status (*start[2][2])(const sat_launch *, unsigned grid, const kernel_args &); // X K-major, Y K-major
};

template <class S> static sat_status start(const sat_launch *l, unsigned grid, const kernel_args &args) {
    return sat_start<picked<S>>(l, grid, S::THREADS, S::SHARED, args);
}

template <class MATH, int BM, int BN, int WARPS> constexpr instance instance_of() {
    typedef warp_shape<MATH, BM, BN, WARPS, true, true> any;
    return {
        MATH::dtype,
        BM,
        BN,
        any::BK,
        WARPS,
        any::SHARED,
        {{start<warp_shape<MATH, BM, BN, WARPS, false, false>>, start<warp_shape<MATH, BM, BN, WARPS, false, true>>},
         {start<warp_shape<MATH, BM, BN, WARPS, true, false>>, start<any>}}};
}

static const instance instances[] = {
    instance_of<mma_16bit<sat_f16_math>, 32, 32, 8>(),  /**/
    instance_of<mma_16bit<sat_f16_math>, 64, 64, 4>(),  /**/
    instance_of<mma_16bit<sat_f16_math>, 64, 64, 1>(),  /**/
    instance_of<mma_16bit<sat_bf16_math>, 32, 32, 8>(), /**/
    instance_of<mma_16bit<sat_bf16_math>, 64, 64, 4>(), /**/
    instance_of<mma_16bit<sat_bf16_math>, 64, 64, 1>(), /**/
    instance_of<mma_tf32, 32, 32, 8>(),                 /**/
    instance_of<mma_tf32, 64, 64, 4>(),                 /**/
    instance_of<mma_tf32, 64, 64, 1>(),                 /**/
    instance_of<mma_f64<16, 8>, 32, 32, 4>(),           /**/
    instance_of<mma_f64<16, 8>, 32, 32, 1>(),           /**/
};

static const instance *find(const sat_variant *v) {
    for (const instance &x : instances)
        if (x.dtype == v->instance.dtype && x.bm == v->instance.tile_m && x.warps == v->instance.option) return &x;
    return NULL;
}

// ---- host: what a variant has

// Blocks are cut whole: what they hold beyond the matrix is written, too.
static sat_patch_shape shape_of(const instance *x, const sat_pattern_view *a) {
    return {a->grid_rows * a->block_rows, a->grid_cols * a->block_cols, x->bm, x->bn};
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *x = find(v);
    if (!x || p->a_dtype != x->dtype || d->capability < 80 || x->shared + 1024 > d->l1_bytes) return false;
    if (x->dtype == SAT_F32 && !(p->flags & SAT_ALLOW_TF32)) return false;
    if (a->block_rows > INT32_MAX / 2 || a->block_cols > INT32_MAX / 2 || a->block_rows * a->block_cols > INT32_MAX)
        return false;
    sat_rows r = sat_op_rows(p, a);
    sat_patch_shape shape = shape_of(x, a);
    return sat_patches_fit(a, &r, &shape);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const instance *x = find(v);
    sat_rows r = sat_op_rows(p, a);
    sat_patch_shape shape = shape_of(x, a);
    double size = (double)sat_dtype_size(p->a_dtype), tiles = fmax(1, sat_patch_tiles_expected(a, &r, &shape));
    double depth = ceil((double)p->k / x->bk), steps = tiles * depth, elements = (double)a->stored_elements;
    bool x_lines = p->a.col_stride == 1, y_lines = p->b.row_stride == 1;
    int64_t x_align = sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype),
            y_align = sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype);
    double x_unit =
        warp_unit((int64_t)size, x_align, x_lines ? p->a.row_stride : p->a.col_stride, x_lines ? 1 : p->a.row_stride);
    double y_unit =
        warp_unit((int64_t)size, y_align, y_lines ? p->b.col_stride : p->b.row_stride, y_lines ? 1 : p->b.col_stride);
    // instructions of a warp: for a step, loading and multiplying; for a tile, adding and picking
    double load = x->bk * size / 32 * 14 * (x->bm / x_unit + x->bn / y_unit);
    double multiply = x->bm * x->bn * x->bk * size / (16 * 8 * 32) * 3;
    double add = x->bm * x->bn / 32.0 * 4 * (fmin(depth, x->warps) + 1), picking = elements / 32 * 60;
    double issue = (steps * (100 + load + multiply) + tiles * (200 + add) + picking) / (sat_simt_cycles(d) * 2);
    double room = x->bm == 64 || x->dtype == SAT_F64 ? 8 : 16; // warps of a multiprocessor
    double resident = fmax(1, fmin(room / x->warps, floor(227e3 / (x->shared + 1024))));
    double chain = ceil(tiles / (d->multiprocessors * resident)) * (2e-6 + 1.2e-6 * ceil(depth / x->warps));
    double l2 = steps * (x->bm + x->bn) * x->bk * size / d->l2_rate;
    double units = steps * 2 * x->bm * x->bn * x->bk / (0.3 * sat_matrix_rate(d, p->a_dtype));
    double busy = fmax(fmax(issue, chain), fmax(units, fmax(l2, sat_bytes(p, a) / d->memory_rate)));
    return (1.5e-6 + busy) * (double)p->batch;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    sat_rows r = sat_op_rows(p, a);
    sat_patch_shape shape = shape_of(find(v), a);
    return sat_patches_bytes(a, &r, &shape);
}

static sat_status prepare(const sat_prepare *q, void **to) {
    sat_device_patches *tiles = (sat_device_patches *)calloc(1, sizeof *tiles);
    *to = NULL;
    if (!tiles) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", q->variant->name);
    sat_rows r = sat_op_rows(q->problem, q->pattern);
    sat_patch_shape shape = shape_of(find(q->variant), q->pattern);
    sat_status status = sat_upload_patches(q, &r, &shape, q->workspace, tiles);
    if (status == SAT_OK) *to = tiles;
    else free(tiles);
    return status;
}

// An operand of `lines` lines: K-major where k is contiguous.
static warp_operand operand_of(const void *base, bool k_major, int64_t stride, int64_t k_stride, int64_t count,
                               int64_t k, int64_t size, int64_t align) {
    warp_operand x = {(const char *)base, stride, k_stride, count, k, 0};
    if (!k_major) x.line_stride = k_stride, x.step = stride, x.lines = k, x.length = count;
    x.unit = warp_unit(size, align, x.line_stride, x.step);
    return x;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_device_patches *tiles = (const sat_device_patches *)l->state;
    if (tiles->tiles == 0) return SAT_OK;
    const int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    const bool x_lines = p->a.col_stride == 1, y_lines = p->b.row_stride == 1;
    kernel_args args = {};
    sat_rows r = sat_device_rows(p, l->pattern);
    args.tiles = *tiles;
    args.x = operand_of(l->operands[0], x_lines, p->a.row_stride, p->a.col_stride, p->m, p->k, size,
                        sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype));
    args.y = operand_of(l->operands[1], y_lines, p->b.col_stride, p->b.row_stride, p->n, p->k, size,
                        sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype));
    args.s = warp_patches_of(&r, l->operands[2], (int)size, true);
    args.m = p->m, args.n = p->n, args.k = p->k;
    args.alpha = p->alpha, args.beta = p->beta, args.dtype = p->c_dtype;
    return find(l->variant)->start[x_lines][y_lines](l, (unsigned)tiles->tiles, args);
}

SAT_FAMILY(cuda_sampled_picked) = {
    .revision = "1",
    .op = SAT_SAMPLED,
    .backend = SAT_CUDA,
    .about = "whole tiles of X*Y by tensor cores (mma.sync), stored elements picked in shared memory, one launch",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = sat_release_state,
};
