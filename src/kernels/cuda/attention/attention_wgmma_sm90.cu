// cuda_attention_wgmma: attention by warpgroup products on Hopper (attention_wgmma.cuh), f16 and bf16, head sizes up to
// 256. Dense, causal, windows and packed sequences by ranges of keys; masks of blocks, whose sides are multiples of 64,
// by lists. Needs rows that begin on 16 bytes, and a positive scale.

#include "kernels/cuda/attention/attention_map.cuh"
#include "kernels/cuda/attention/attention_wgmma.cuh"

typedef sat_status (*start_fn)(const sat_launch *l, const sat_att_job &x, const sat_att_maps &m);

struct kernel {
    sat_dtype dtype;
    int dim, above; // head sizes up to the one, and above the other
    int keys, groups;
    double speed; // of a full device, as a part of the rate of its matrix units
    start_fn start;
};

static int64_t rows_of(const kernel *k) { return (int64_t)k->groups * SAT_ATT_ROWS; }

template <auto KERNEL, typename S>
static sat_status start(const sat_launch *l, const sat_att_job &x, const sat_att_maps &m) {
    unsigned grid = (unsigned)sat_min(x.items, l->device->threads);
    return sat_start<KERNEL>(l, grid, S::THREADS, S::BYTES, x, m);
}

template <typename T, typename S> static constexpr kernel kernel_of(double speed) {
    constexpr int above = S::D == 64 ? 0 : S::D == 256 ? 128 : 64;
    return {T::dtype, S::D, above, S::BN, S::GROUPS, speed, start<sat_att_forward<T, S>, S>};
}

/* Head size, keys, warpgroups, stages, tiles of Q; and the speed on an H200. Of those with the same tile the one for
 * the smaller heads comes first. */
#define KERNELS(MATH)                                                                                                  \
    kernel_of<MATH, sat_att_shape<64, 128, 2, 2, 2>>(0.52), kernel_of<MATH, sat_att_shape<96, 128, 2, 2, 2>>(0.68),    \
        kernel_of<MATH, sat_att_shape<128, 128, 2, 2, 2>>(0.81),                                                       \
        kernel_of<MATH, sat_att_shape<64, 128, 3, 2, 2>>(0.63),                                                        \
        kernel_of<MATH, sat_att_shape<128, 80, 3, 2, 2>>(0.83),                                                        \
        kernel_of<MATH, sat_att_shape<64, 128, 1, 4, 1>>(0.34),                                                        \
        kernel_of<MATH, sat_att_shape<128, 128, 1, 3, 1>>(0.5), kernel_of<MATH, sat_att_shape<256, 64, 2, 2, 1>>(0.93)

static const kernel kernels[] = {KERNELS(sat_f16_math), KERNELS(sat_bf16_math)};

static const kernel *kernel_for(const sat_variant *v, const sat_problem *p) {
    for (const kernel &k : kernels)
        if (k.dtype == v->instance.dtype && rows_of(&k) == v->instance.tile_m && k.keys == v->instance.tile_n &&
            p->attention.dim <= k.dim && p->attention.dim > k.above)
            return &k;
    return NULL;
}

/* ---- what it takes ---- */

static bool plain(const sat_mask *k) { return k->full && !k->sequences; }

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(v, p);
    if (d->capability != 90 || !k || p->a_dtype != k->dtype || p->a_align % 16 || p->c_align % 16) return false;
    if (p->m <= 0 || p->n <= 0 || p->batch <= 0 || p->m >= SAT_ATT_LARGEST || p->n >= SAT_ATT_LARGEST) return false;
    if (!(p->alpha > 1e-30 && p->alpha < 1e30)) return false; // what is not kept is -inf before it is scaled
    if (!attention_map_fits(p, t->q, t->heads, p->m) || !attention_map_fits(p, t->o, t->heads, p->m) ||
        !attention_map_fits(p, t->k, t->kv_heads, p->n) || !attention_map_fits(p, t->v, t->kv_heads, p->n))
        return false;
    sat_mask mask = sat_mask_of(p, a);
    double pieces = (double)sat_att_most_pieces(&mask, k->groups);
    if (pieces * (double)p->batch * (double)t->heads >= 1 << 30) return false;
    if (mask.full) return true;
    int chunk = k->keys / 2;
    return 64 % chunk == 0 && sat_att_lists_fit(&mask, chunk) &&
           sat_att_most_entries(&mask, a->stored_blocks, chunk) < 1 << 30;
}

/* Each piece's tiles on one multiprocessor. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const kernel *k = kernel_for(v, p);
    sat_mask mask = sat_mask_of(p, a);
    double heads = (double)(p->batch * p->attention.heads), rows = (double)rows_of(k), keys = k->keys;
    double items = ((double)((p->m + rows_of(k) - 1) / rows_of(k)) + (double)mask.sequences / 2) * heads;
    double kept = sat_pairs(p, a) / fmax(1, heads * (double)p->m), most = ceil((double)p->n / keys), tiles, longest;
    bool uneven = mask.causal || mask.sequences || !mask.full;
    if (mask.full) tiles = fmin(most, kept / keys + (mask.causal || mask.window ? rows / keys / 2 + 0.5 : 0.5));
    else tiles = kept / keys * (k->groups > 1 && mask.block_rows < rows_of(k) ? 1.6 : 1.1);
    longest = fmin(most, uneven ? 2 * tiles : tiles);
    double each = 4 * k->dim * rows * keys / (k->speed * d->flop_rate[p->a_dtype] / d->threads);
    double waves = items / d->threads, busy = waves * tiles;
    if (!uneven && waves < 8) busy = ceil(waves) * tiles;
    return fmax(fmax(busy, longest) * each, sat_attention_bytes(p, a) / d->memory_rate) + 4e-6;
}

/* ---- the schedule ---- */

struct state {
    const sat_att_piece *piece; // in the workspace
    const int2 *entry;
    int pieces;
    unsigned *counter;
    sat_att_maps maps;
    const void *of[3]; // what the maps were made for
};

enum { COUNTER_BYTES = 256 };

static size_t rounded(double bytes) { return ((size_t)bytes + 255) & ~(size_t)255; }

/* The counter, pieces, entries. */
static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)d;
    const kernel *k = kernel_for(v, p);
    sat_mask mask = sat_mask_of(p, a);
    if (plain(&mask)) return COUNTER_BYTES;
    double pieces = (double)(sat_att_most_pieces(&mask, k->groups) * sat_mask_count(&mask, p));
    double entries = mask.full ? 0 : sat_att_most_entries(&mask, a->stored_blocks, k->keys / 2);
    return COUNTER_BYTES + rounded(pieces * sizeof(sat_att_piece)) + rounded(entries * sizeof(sat_att_entry));
}

static cudaError_t send_lists(const sat_prepare *q, const sat_att_lists *l, int64_t masks, state *st) {
    cudaStream_t stream = (cudaStream_t)q->stream;
    char *to = (char *)q->workspace + COUNTER_BYTES;
    size_t bytes = (size_t)(l->pieces * masks) * sizeof *l->piece;
    st->piece = (const sat_att_piece *)to, st->pieces = (int)l->pieces;
    st->entry = (const int2 *)(to + rounded((double)bytes));
    cudaError_t e = cudaMemcpyAsync(to, l->piece, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && l->entries > 0)
        e = cudaMemcpyAsync((void *)st->entry, l->entry, (size_t)l->entries * sizeof *l->entry, cudaMemcpyHostToDevice,
                            stream);
    return e;
}

static sat_status prepare_state(const sat_prepare *q, const kernel *k, state *st) {
    sat_mask mask = sat_mask_of(q->problem, q->pattern);
    int64_t masks = mask.full ? 1 : sat_mask_count(&mask, q->problem);
    sat_att_lists lists = {};
    st->pieces = (int)((q->problem->m + rows_of(k) - 1) / rows_of(k));
    st->counter = (unsigned *)q->workspace;
    cudaError_t e = cudaMemsetAsync(st->counter, 0, COUNTER_BYTES, (cudaStream_t)q->stream);
    if (!plain(&mask)) {
        if (!sat_att_lists_make(&mask, masks, q->pattern->stored_blocks, k->groups, k->keys / 2, &lists)) {
            sat_att_lists_free(&lists);
            return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", q->variant->name);
        }
        if (e == cudaSuccess) e = send_lists(q, &lists, masks, st);
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    sat_att_lists_free(&lists);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static sat_status prepare(const sat_prepare *q, void **out) {
    if (!tensormap_encoder())
        return sat_fail(SAT_DEVICE_ERROR, "%s: this driver makes no tensor maps", q->variant->name);
    state *st = (state *)calloc(1, sizeof *st);
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    sat_status status = prepare_state(q, kernel_for(q->variant, q->problem), st);
    if (status == SAT_OK) *out = st;
    else free(st);
    return status;
}

/* ---- a launch ---- */

static sat_status make_maps(const sat_launch *l, int box, state *st) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    void *const *o = l->operands;
    if (tensormaps_current(st->of, o)) return SAT_OK;
    if (!attention_map(p, o[0], t->q, t->heads, p->m, SAT_ATT_ROWS, &st->maps.q) ||
        !attention_map(p, o[1], t->k, t->kv_heads, p->n, box, &st->maps.k) ||
        !attention_map(p, o[2], t->v, t->kv_heads, p->n, box, &st->maps.v))
        return tensormap_failed(l, st->of);
    return SAT_OK;
}

/* Heads that are worked on together: where pieces differ in length, all whose keys fit into L2, so that the longest
 * come first; in groups of about the same size. Otherwise one after the other. */
static int together(const sat_problem *p, const sat_device *d, bool uneven) {
    const sat_attention *t = &p->attention;
    int64_t share = t->heads / t->kv_heads, all = p->batch * t->heads;
    if (!uneven) return (int)share;
    double fit = 0.8 * (double)d->l2_bytes / (4.0 * (double)p->n * (double)t->dim);
    int64_t most = sat_max(1, (int64_t)fmin(fit, 1 << 20)) * share, groups = (all + most - 1) / most;
    return (int)(((all + groups - 1) / groups + share - 1) / share * share);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const kernel *k = kernel_for(l->variant, p);
    state *st = (state *)l->state;
    sat_mask mask = sat_mask_of(p, l->pattern);
    sat_att_job x = {};
    x.counter = st->counter, x.piece = st->piece, x.entry = st->entry, x.pieces = st->pieces;
    x.all_heads = (int)(p->batch * t->heads), x.items = (unsigned)(x.pieces * x.all_heads);
    x.heads_together = together(p, l->device, mask.causal || mask.sequences || !mask.full);
    x.halves = !mask.full, x.head_masks = x.halves && mask.head_rows;
    x.heads = (int)t->heads, x.share = (int)(t->heads / t->kv_heads);
    x.m = (int)p->m, x.n = (int)p->n, x.dim = (int)t->dim, x.reach = sat_att_reach_of(&mask);
    x.c = (float)(p->alpha * 1.4426950408889634), x.slack = 8 / x.c;
    x.o = l->operands[3], x.lse = t->lse ? (float *)l->operands[4] : NULL;
    x.o_batch = t->o.batch_stride, x.o_head = t->o.head_stride, x.o_row = t->o.row_stride;
    sat_status status = make_maps(l, x.halves ? k->keys / 2 : k->keys, st);
    return status == SAT_OK ? k->start(l, x, st->maps) : status;
}

static void release(const sat_variant *v, void *st) {
    (void)v;
    free(st);
}

SAT_FAMILY(cuda_attention_wgmma) = {
    .revision = "1",
    .op = SAT_ATTENTION,
    .backend = SAT_CUDA,
    .flags = SAT_V_BATCHED,
    .about = "Hopper: warpgroup products overlapped with the softmax, tiles by the copy engine, lists of stored blocks",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .launch = launch,
    .release = release,
};
