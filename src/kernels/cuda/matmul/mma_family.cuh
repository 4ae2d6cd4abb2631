/* What the tensor-core matmul families share on the host: what they support, what it should take, and launching. */
#ifndef SAT_MMA_FAMILY_CUH
#define SAT_MMA_FAMILY_CUH

#include "kernels/cuda/matmul/mma_kernel.cuh"

/* An instance: a line of variants.def finds it by its tile. */
struct sat_mma_instance {
    void (*kernel)(sat_mma_job);
    sat_dtype dtype;
    int bm, bn, ks, ku, wm, wn, threads, shared, ctas;
    int a_deep_pass, a_wide_pass, b_deep_pass, b_wide_pass; /* lines a thread's chunks are apart */
};

template <class S> constexpr sat_mma_instance sat_mma_instance_of() {
    typedef sat_mma_share<S, S::BM> a;
    typedef sat_mma_share<S, S::BN> b;
    return {sat_mma_matmul<S>, S::math::dtype, S::BM,   S::BN,        S::KS,        S::KU,        S::WM,       S::WN,
            S::THREADS,        S::SHARED,      S::CTAS, a::DEEP_PASS, a::WIDE_PASS, b::DEEP_PASS, b::WIDE_PASS};
}

template <class MATH, int... SHAPE> constexpr sat_mma_instance sat_mma_tile_of() {
    return sat_mma_instance_of<sat_mma_shape<MATH, SHAPE...>>();
}

/* ---- what it takes ---- */

static inline bool sat_mma_wide_b(const sat_problem *p) {
    return p->b.col_stride == 1 && p->b.row_stride * (int64_t)sat_dtype_size(p->b_dtype) % 16 == 0;
}

/* Both operands come in chunks of 16 bytes: lines, items and pointers are multiples of that. */
static inline bool sat_mma_aligned(const sat_problem *p) {
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    bool deep = p->b.row_stride == 1 && p->b.col_stride * size % 16 == 0;
    if (p->a_align < 16 || p->b_align < 16 || (!deep && !sat_mma_wide_b(p))) return false;
    return p->batch == 1 || (p->a.batch_stride * size % 16 == 0 && p->b.batch_stride * size % 16 == 0);
}

/* Tiles that a piece of a row is walked for, in one item of a batch. */
static inline int64_t sat_mma_tiles(const sat_mma_instance *k, const sat_problem *p, const sat_rows *r) {
    return r->br / k->bm * ((p->n + k->bn - 1) / k->bn);
}

/* Rows of a block that this tile is made for: of its height, twice that, or multiples that no larger tile has. */
static inline bool sat_mma_fits(const sat_mma_instance *k, const sat_rows *r) {
    if (r->br % k->bm != 0 || r->bc % k->ku != 0) return false;
    return k->bm == (k->dtype == SAT_F64 ? 64 : 128) || r->br <= 2 * k->bm || r->br % (2 * k->bm) != 0;
}

/* What the kernel counts in 32 bits. */
static inline bool sat_mma_countable(const sat_mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                                     const sat_rows *r) {
    const int64_t most = INT32_MAX;
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype), units = r->bc / k->ku;
    int64_t longest = p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
    if (p->n > most || r->k + r->bc > most || a->stored_blocks > most || p->batch > most) return false;
    if (r->block_elements * size > most || (sat_mma_wide_b(p) && p->b.row_stride * size > most)) return false;
    if ((double)longest * (double)units * (double)units > 4e9) return false;
    double pieces = (double)(a->stored_blocks + r->count);
    return pieces * (double)(r->br / k->bm) * ((double)p->n / k->bn + 1) * (double)p->batch < (double)most;
}

static inline bool sat_mma_supports(const sat_mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                                    const sat_device *d) {
    if (!k || p->a_dtype != k->dtype || d->capability < 80 || k->shared + 1024 > d->l1_bytes) return false;
    if (k->dtype == SAT_F32 && !(p->flags & SAT_ALLOW_TF32)) return false;
    sat_rows r = sat_op_rows(p, a);
    return sat_mma_fits(k, &r) && sat_mma_aligned(p) && sat_mma_countable(k, p, a, &r);
}

/* ---- what it should take ---- */

/* Seconds of the whole machine's work, by whatever is scarcest: matrix units, what goes from L2 to shared memory, what
 * goes in and out of that, and memory. */
static inline double sat_mma_work(const sat_mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                                  const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    double size = (double)sat_dtype_size(k->dtype), panels = (double)((p->n + k->bn - 1) / k->bn);
    double depth = (double)a->stored_blocks * (double)r.bc * (double)(r.br / k->bm) * panels * (double)p->batch;
    double per_cycle = d->capability >= 90 ? 4096 : d->capability == 80 ? 2048 : 1024; /* of 16-bit operations */
    double cycles = d->flop_rate[SAT_F16] / (0.75 * per_cycle);                        /* all multiprocessors' */
    double part = k->dtype == SAT_F64 ? 0.5 : (d->capability >= 90 ? 0.6 : 0.85) / 0.75;
    double rate = sat_matrix_rate(d, k->dtype) * part;
    double warps = k->threads / 32, tile = (double)(k->bm + k->bn) * size, reads = warps * (k->wm + k->wn) * size;
    double compute = depth * 2 * k->bm * k->bn / rate, shared = depth * (tile + reads) / (cycles * 128 * 0.9);
    double l2 = depth * tile / (d->memory_rate * 2.1), memory = sat_bytes(p, a) / d->memory_rate;
    return fmax(fmax(compute, shared), fmax(l2, memory));
}

/* `longest`: blocks of the longest piece; `pieces`: how many there are. */
static inline double sat_mma_seconds(const sat_mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                                     const sat_device *d, double longest, double pieces) {
    sat_rows r = sat_op_rows(p, a);
    double tiles = (double)sat_mma_tiles(k, p, &r) * (double)p->batch * fmax(1, pieces), sms = (double)d->threads;
    double work = sat_mma_work(k, p, a, d), mean = (double)a->stored_blocks / fmax(1, pieces);
    double share = fmax(1, tiles / sms),
           uneven = tiles > 8 * sms ? fmin(1.05, ceil(share) / share) : ceil(share) / share;
    double lonely = fmax(1, sms * fmin(k->ctas, 2) / tiles); /* multiprocessors with less than they could work on */
    double alone = work * sms / tiles * longest / fmax(1e-9, mean); /* the longest, when the others are done */
    return 3e-6 + 1e-6 * fmin(4, share) + fmax(work * fmax(uneven, lonely), alone);
}

/* ---- launching ---- */

/* Without a schedule, `work` is NULL and all items of a batch are in the job. */
static inline sat_mma_job sat_mma_job_of(const sat_mma_instance *k, const sat_launch *l,
                                         const sat_device_schedule *work) {
    const sat_problem *p = l->problem;
    sat_mma_job job = {};
    int64_t size = (int64_t)sat_dtype_size(p->a_dtype);
    job.r = sat_device_rows(p, l->pattern);
    job.work = work ? *work : sat_whole_rows_schedule(&job.r);
    job.out = sat_tile_epilogue_of(l);
    job.a = (const char *)l->operands[0], job.b = (const char *)l->operands[1];
    job.a_deep = job.r.col_step == 1, job.b_deep = !sat_mma_wide_b(p);
    job.slices = (unsigned)(job.r.br / k->bm), job.panels = (unsigned)((p->n + k->bn - 1) / k->bn);
    job.tiles = (unsigned)(sat_mma_tiles(k, p, &job.r) * job.work.pieces * (work ? 1 : p->batch));
    job.units = (unsigned)(job.r.bc / k->ku),
    job.inverse = (unsigned)((((uint64_t)1 << 32) + job.units - 1) / job.units);
    job.k_whole = (unsigned)sat_max(0, job.r.k - k->ku + 1);
    job.a_block = (unsigned)(job.r.block_elements * size), job.a_slice = (unsigned)(k->bm * job.r.row_step * size);
    job.a_unit = (unsigned)(k->ku * job.r.col_step * size);
    job.a_line = (unsigned)((job.a_deep ? job.r.row_step : job.r.col_step) * size);
    job.a_pass = (unsigned)(job.a_deep ? k->a_deep_pass : k->a_wide_pass) * job.a_line;
    job.b_line = (job.b_deep ? p->b.col_stride : p->b.row_stride) * size;
    job.b_pass = (job.b_deep ? k->b_deep_pass : k->b_wide_pass) * job.b_line;
    job.b_k = (unsigned)(job.b_deep ? size : job.b_line), job.b_panel = k->bn * (job.b_deep ? job.b_line : size);
    job.a_item = p->a.batch_stride * size, job.b_item = p->b.batch_stride * size;
    job.c_item = p->c.batch_stride * (int64_t)sat_dtype_size(p->c_dtype);
    return job;
}

static inline sat_status sat_mma_ready(const sat_mma_instance *k, const sat_variant *v) {
    cudaError_t e = cudaFuncSetAttribute(k->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, k->shared);
    if (e == cudaSuccess)
        e = cudaFuncSetAttribute(k->kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
    if (e == cudaSuccess) return SAT_OK;
    (void)cudaGetLastError();
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", v->name, cudaGetErrorString(e));
}

/* `resident`: as many CTAs as fit at once, each going from tile to tile; else one a tile, for the hardware to deal out.
 */
static inline sat_status sat_mma_launch(const sat_mma_instance *k, const sat_launch *l, const sat_mma_job &job,
                                        bool resident) {
    unsigned most = (unsigned)(l->device->threads * k->ctas), grid = resident && job.tiles > most ? most : job.tiles;
    k->kernel<<<grid, (unsigned)k->threads, (size_t)k->shared, (cudaStream_t)l->stream>>>(job);
    return sat_launched(l);
}

/* ---- the functions of a family, by the one that finds its instances ---- */

template <int COUNT>
static const sat_mma_instance *sat_mma_find(const sat_mma_instance (&all)[COUNT], const sat_variant *v) {
    for (const sat_mma_instance &k : all)
        if (k.bm == v->instance.tile_m && k.bn == v->instance.tile_n && k.ks == v->instance.tile_k) return &k;
    return NULL;
}

template <const sat_mma_instance *(*FIND)(const sat_variant *)> struct sat_mma_plain {
    static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        return sat_mma_supports(FIND(v), p, a, d);
    }
    static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        double longest = (double)(p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row);
        double rows = (double)(p->transpose == SAT_TRANSPOSE ? a->grid_cols : a->grid_rows);
        return sat_mma_seconds(FIND(v), p, a, d, longest, rows);
    }
    static sat_status prepare(const sat_prepare *prepare, void **state) {
        *state = NULL;
        return sat_mma_ready(FIND(prepare->variant), prepare->variant);
    }
    static sat_status launch(const sat_launch *l) {
        const sat_problem *p = l->problem;
        if (p->m == 0 || p->n == 0 || p->batch == 0) return SAT_OK;
        const sat_pattern_view *a = l->pattern;
        bool even = (p->transpose == SAT_TRANSPOSE ? a->t_skew : a->skew) < 1.5;
        sat_mma_job job = sat_mma_job_of(FIND(l->variant), l, NULL);
        return sat_mma_launch(FIND(l->variant), l, job, even);
    }
};

/* The same with a schedule: the longest first, and rows above a fair share cut. */
template <const sat_mma_instance *(*FIND)(const sat_variant *)> struct sat_mma_split {
    static int64_t share(const sat_mma_instance *k, const sat_problem *p, const sat_pattern_view *a,
                         const sat_device *d) {
        sat_rows r = sat_op_rows(p, a);
        return sat_schedule_share(&r, sat_mma_tiles(k, p, &r), (int64_t)d->threads * k->ctas, sat_max(1, 512 / r.bc));
    }
    static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
        const sat_mma_instance *k = FIND(v);
        sat_rows r = sat_op_rows(p, a);
        int64_t most = share(k, p, a, d), longest = p->transpose == SAT_TRANSPOSE ? a->max_col : a->max_row;
        sat_schedule s = sat_schedule_count(&r, most);
        double joined = (double)s.slots * (double)r.br * (double)p->n * 8 / d->memory_rate + (s.joins ? 2e-6 : 0);
        return 1.02 * sat_mma_seconds(k, p, a, d, (double)sat_min(longest, most), (double)s.pieces) + joined;
    }
    static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
        sat_rows r = sat_op_rows(p, a);
        sat_schedule s = sat_schedule_count(&r, share(FIND(v), p, a, d));
        return sat_schedule_bytes(&s, r.br, p->n, p->a_dtype == SAT_F64 ? 8 : 4);
    }
    static sat_status prepare(const sat_prepare *x, void **state) {
        const sat_mma_instance *k = FIND(x->variant);
        sat_status status = sat_mma_ready(k, x->variant);
        if (status != SAT_OK) return status;
        return sat_prepare_schedule(x, share(k, x->problem, x->pattern, x->device), state);
    }
    static sat_status launch(const sat_launch *l) {
        const sat_problem *p = l->problem;
        if (p->m == 0 || p->n == 0) return SAT_OK;
        const sat_device_schedule *work = (const sat_device_schedule *)l->state;
        sat_mma_job job = sat_mma_job_of(FIND(l->variant), l, work);
        sat_status status = sat_mma_launch(FIND(l->variant), l, job, false);
        return status == SAT_OK ? sat_launch_split_reduction(l, job.r, job.out.to, *work) : status;
    }
};

#endif
