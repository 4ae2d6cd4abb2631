// The tile schedule of the attention kernels, its part on the host: bounds of its size, and its lists, which are those
// of kernels/attention_schedule.h in the form that the device reads. And what gradients with options need of each query
// and each sink.

#include "kernels/attention_schedule.h"
#include "kernels/cuda/attention/attention_device.cuh"

// ---- bounds ----

/* Tiles of the own side, at most. */
static double attention_max_own_tiles(const sat_problem *p, const sat_mask *k, attention_tiling s) {
    return (double)attention_max_tiles(s.by_key ? p->n : p->m, k->sequences, s.by_key ? s.k_rows : s.q_rows);
}

/* How many tiles of `rows` a block of `side` rows may touch. `anywhere`: tiles begin at any row. */
static int64_t attention_tiles_touched(int64_t side, int64_t rows, bool anywhere) {
    if (!anywhere && side % rows == 0) return side / rows;
    if (!anywhere && rows % side == 0) return 1;
    return (side + rows - 2) / rows + 1;
}

/* Steps of all lists, at most. */
static double attention_max_listed(const sat_mask *k, const sat_problem *p, const sat_pattern_view *a,
                                   attention_tiling s) {
    double q = (double)attention_max_tiles(p->m, k->sequences, s.q_rows);
    double all = q * (double)attention_max_tiles(p->n, k->sequences, s.k_rows) * (double)sat_mask_count(k, p);
    /* sequences that end within a block divide it further */
    bool packed = k->sequences > 0;
    int64_t down = attention_tiles_touched(a->block_rows, s.q_rows, packed) + sat_min(k->sequences, a->block_rows);
    int64_t across = attention_tiles_touched(a->block_cols, s.k_rows, packed) + sat_min(k->sequences, a->block_cols);
    return fmin(all, (double)a->stored_blocks * (double)down * (double)across);
}

static int64_t attention_key_words(attention_tiling s) {
    return (s.k_rows + ATTENTION_WORD_KEYS - 1) / ATTENTION_WORD_KEYS;
}

int64_t attention_step_words(const sat_mask *k, attention_tiling s) {
    if (k->full) return 0;
    bool anywhere = k->sequences > 0 || s.q_rows % k->block_rows;
    return attention_tiles_touched(s.q_rows, k->block_rows, anywhere) * attention_key_words(s);
}

double attention_schedule_bytes(const sat_problem *p, const sat_pattern_view *a, attention_tiling s) {
    sat_mask k = sat_mask_of(p, a);
    if (sat_mask_is_regular(&k)) return 0;
    double tiles = attention_max_own_tiles(p, &k, s), places = tiles * (double)sat_mask_count(&k, p);
    double steps = k.full ? 0 : attention_max_listed(&k, p, a, s);
    return tiles * sizeof(attention_tile) + 8 * places + steps * (8 + 8 * (double)attention_step_words(&k, s)) +
           6 * 256;
}

bool attention_schedule_fits(const sat_problem *p, const sat_pattern_view *a, attention_tiling s) {
    sat_mask k = sat_mask_of(p, a);
    if (p->m >= SAT_ATTENTION_MAX_LENGTH || p->n >= SAT_ATTENTION_MAX_LENGTH) return false;
    if (a->block_rows >= SAT_ATTENTION_UNLIMITED) return false;
    if (attention_max_own_tiles(p, &k, s) * (double)p->batch * (double)p->attention.heads >= 1 << 30) return false;
    return k.full || attention_max_listed(&k, p, a, s) < 1 << 30;
}

double attention_visited_pairs(const sat_problem *p, const sat_pattern_view *a, attention_tiling s) {
    sat_mask k = sat_mask_of(p, a);
    double heads = (double)(p->batch * p->attention.heads), m = (double)p->m, side = (double)(s.q_rows + s.k_rows) / 2;
    double rows = ceil(m / (double)s.q_rows) * (double)s.q_rows + (double)k.sequences * (double)s.q_rows / 2;
    double pairs = sat_pairs(p, a) / fmax(1, heads * m);
    if (k.full) {
        double wide = pairs + (k.causal || k.window ? side : (double)s.k_rows / 2 * (p->n % s.k_rows != 0));
        return heads * rows * fmin(wide, ceil((double)p->n / (double)s.k_rows) * (double)s.k_rows);
    }
    double steps = attention_max_listed(&k, p, a, s) * (k.head_rows ? (double)p->batch : heads);
    double kept = sat_pairs(p, a) / fmax(1, (double)a->stored_elements * (k.head_rows ? (double)p->batch : heads));
    return steps * (double)(s.q_rows * s.k_rows) * fmin(1, kept * 1.2 + 0.05);
}

// ---- the schedule ----

attention_schedule attention_regular_schedule(const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                                              attention_tiling s) {
    const sat_attention *t = &p->attention;
    sat_mask k = sat_mask_of(p, a);
    attention_schedule x = {};
    x.by_key = s.by_key, x.block_rows = (int)a->block_rows, x.heads_per_kv = (int)(t->heads / t->kv_heads);
    x.key_words = (int)attention_key_words(s);
    x.heads = (int)(s.by_key ? t->kv_heads : t->heads), x.batch = (int)p->batch;
    x.tile_rows = (int)(s.by_key ? s.k_rows : s.q_rows), x.step_rows = (int)(s.by_key ? s.q_rows : s.k_rows);
    x.own_length = (int)(s.by_key ? p->n : p->m), x.other_length = (int)(s.by_key ? p->m : p->n);
    sat_band b = sat_band_of(&k);
    x.ahead = b.ahead, x.behind = b.behind;
    x.tiles = x.units = (x.own_length + x.tile_rows - 1) / x.tile_rows;
    int64_t longest = sat_min(x.other_length, (int64_t)b.ahead + b.behind + x.tile_rows);
    x.max_steps = (int)((longest + x.step_rows - 1) / x.step_rows);
    x.reversed = k.causal && !s.by_key; /* the last rows keep the most keys */
    x.mask_per_head = k.head_rows && !k.full;
    /* as many heads at once as half of the cache holds what all their CTAs read */
    double head = 2.0 * (double)x.other_length * (double)t->dim * (double)sat_dtype_size(p->a_dtype);
    if (!s.by_key) head /= x.heads_per_kv;
    int64_t all = (int64_t)x.heads * x.batch;
    x.heads_in_flight = (int)sat_max(1, sat_min((int64_t)((double)d->l2_bytes / 2 / fmax(head, 1)), all));
    int together = s.by_key ? 1 : x.heads_per_kv; /* heads that share keys */
    x.heads_in_flight = (int)sat_min((int64_t)(x.heads_in_flight + together - 1) / together * together, all);
    return x;
}

void attention_lists_free(attention_lists *l) { free(l->tile), free(l->order), free(l->list), free(l->step); }

static attention_tile attention_tile_of(const sat_mask *k, bool by_key, const sat_tile *t) {
    sat_sequence s = sat_sequence_at(k, t->sequence);
    sat_range other = by_key ? s.q : s.k;
    attention_tile x = {(int)t->first, (int)(t->first + t->count), (int)other.begin, (int)other.end,
                        (int)(s.k.end - s.q.end)};
    return x;
}

/* Orders units by their steps: of lists the steps of all masks that share the unit, of ranges about. */
static bool attention_order_units(attention_lists *l, const attention_schedule *s) {
    int64_t *length = (int64_t *)calloc((size_t)l->units + 1, sizeof *length), most = 0;
    int64_t masks = s->by_key ? s->heads_per_kv : 1; /* that share a unit */
    if (!length) return false;
    for (int64_t i = 0; i < l->places && l->list; i++) {
        int64_t steps = l->list[i + 1] - l->list[i];
        length[s->mask_per_head ? i / l->tiles / masks * l->tiles + i % l->tiles : i] += steps;
        l->max_steps = sat_max(l->max_steps, steps);
    }
    for (int64_t i = 0; i < l->units && !l->list; i++) {
        const attention_tile *t = &l->tile[i];
        int64_t low = s->by_key ? t->first - t->diagonal - s->ahead + 1 : t->first + t->diagonal - s->behind;
        int64_t high = s->by_key ? t->end - t->diagonal + s->behind : t->end - 1 + t->diagonal + s->ahead;
        int64_t rows = sat_min(high, t->other_end) - sat_max(low, t->other_begin);
        length[i] = sat_max(0, (rows + s->step_rows - 1) / s->step_rows);
        l->max_steps = sat_max(l->max_steps, length[i]);
    }
    for (int64_t i = 0; i < l->units; i++) most = sat_max(most, length[i]);
    bool ok = sat_longest_first(length, l->units, most, l->order);
    free(length);
    return ok;
}

/* Lists and steps as the device reads them. */
static bool attention_copy_lists(const sat_step_lists *from, const sat_tile *other, int step_rows, attention_lists *l) {
    l->list = (int *)malloc(((size_t)l->places + 1) * sizeof *l->list);
    l->step = (int2 *)malloc(((size_t)l->steps + 1) * sizeof *l->step);
    if (!l->list || !l->step) return false;
    for (int64_t i = 0; i <= l->places; i++) l->list[i] = (int)from->start[i];
    for (int64_t i = 0; i < l->steps; i++) {
        const sat_tile *t = &other[sat_step_tile(from->step[i])];
        bool edge = sat_step_edge(from->step[i]) || t->count < step_rows;
        l->step[i].x = (int)t->first, l->step[i].y = 2 * t->count + edge;
    }
    return true;
}

bool attention_lists_make(const sat_prepare *q, attention_tiling s, const attention_schedule *x, attention_lists *l) {
    sat_mask k = sat_mask_of(q->problem, q->pattern);
    bool by_key = s.by_key;
    sat_attention_schedule *all = NULL;
    sat_tile *tiles = NULL;
    if (k.full) {
        if (!sat_attention_schedule_tiles(by_key ? k.kv_offsets : k.q_offsets, k.sequences, by_key ? k.n : k.m,
                                          by_key ? s.k_rows : s.q_rows, false, &tiles, &l->tiles))
            return free(tiles), false;
        l->places = l->units = l->tiles;
    } else {
        all = sat_attention_schedule_make(q->problem, q->pattern, s.q_rows, s.k_rows, by_key);
        if (!all) return false;
        const sat_step_lists *lists = by_key ? &all->by_key : &all->by_query;
        l->tiles = by_key ? all->k_tiles : all->q_tiles, l->places = lists->places, l->steps = lists->steps;
        l->units = x->mask_per_head && by_key ? l->places / x->heads_per_kv : l->places;
    }
    const sat_tile *own = all ? (by_key ? all->k : all->q) : tiles;
    l->tile = (attention_tile *)malloc(((size_t)l->tiles + 1) * sizeof *l->tile);
    l->order = (int *)malloc(((size_t)l->units + 1) * sizeof *l->order);
    bool ok = l->tile && l->order;
    for (int64_t i = 0; ok && i < l->tiles; i++) l->tile[i] = attention_tile_of(&k, by_key, &own[i]);
    if (ok && all)
        ok = attention_copy_lists(by_key ? &all->by_key : &all->by_query, by_key ? all->q : all->k, x->step_rows, l);
    ok = ok && attention_order_units(l, x);
    free(tiles), sat_attention_schedule_free(all);
    return ok;
}

// ---- statistics of queries and sinks ----

struct statistics_args {
    sat_dtype dtype;
    const void *o, *d;
    sat_heads o_at, d_at;
    const float *lse, *sinks;
    float *lse2, *delta, *dsinks;
    int64_t head_stride, batch, heads, m, dim;
};

// A warp has a query.
static __global__ void attention_delta_any(const __grid_constant__ statistics_args w) {
    int64_t all = w.batch * w.heads * w.m, step = (int64_t)gridDim.x * blockDim.x / 32;
    for (int64_t at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32; at < all; at += step) {
        int64_t bh = at / w.m, b = bh / w.heads, h = bh % w.heads, i = at % w.m;
        int64_t o = sat_heads_at(&w.o_at, b, h, i), d = sat_heads_at(&w.d_at, b, h, i);
        float sum = 0;
        for (int64_t e = threadIdx.x % 32; e < w.dim; e += 32)
            sum = fmaf(sat_load_as(0.f, w.dtype, w.o, o + e), sat_load_as(0.f, w.dtype, w.d, d + e), sum);
        for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (threadIdx.x % 32) continue;
        float lse = w.lse[at];
        w.lse2[bh * w.head_stride + i] = lse == -INFINITY ? INFINITY : lse * 1.44269504f;
        w.delta[bh * w.head_stride + i] = sum;
    }
}

// A CTA has a head; every sum is made in one order.
static __global__ void __launch_bounds__(256) attention_sinks(const __grid_constant__ statistics_args w) {
    __shared__ double part[8];
    int64_t h = blockIdx.x;
    double sink = w.sinks[h], sum = 0;
    for (int64_t row = threadIdx.x; row < w.batch * w.m && !isinf(sink); row += blockDim.x) {
        int64_t bh = row / w.m * w.heads + h, i = row % w.m;
        sum -= (double)(expf((float)(sink - (double)w.lse[bh * w.m + i])) * w.delta[bh * w.head_stride + i]);
    }
    for (int k = 16; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < 8; i++) sum += part[i];
    w.dsinks[h] = (float)sum;
}

static statistics_args statistics_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    statistics_args w = {p->a_dtype, l->operands[3], l->operands[5], t->o, t->do_, (const float *)l->operands[4]};
    w.batch = p->batch, w.heads = t->heads, w.m = p->m, w.dim = sat_value_dim(t);
    return w;
}

sat_status attention_launch_delta_any(const sat_launch *l, float *lse2, float *delta, int64_t head_stride) {
    statistics_args w = statistics_of(l);
    w.lse2 = lse2, w.delta = delta, w.head_stride = head_stride;
    attention_delta_any<<<sat_blocks(w.batch * w.heads * w.m, 8), 256, 0, (cudaStream_t)l->stream>>>(w);
    return sat_launched(l);
}

sat_status attention_launch_sinks(const sat_launch *l, const float *delta, int64_t head_stride) {
    int at = sat_sinks_at(l->problem);
    statistics_args w = statistics_of(l);
    w.delta = (float *)delta, w.head_stride = head_stride;
    w.sinks = (const float *)l->operands[at], w.dsinks = (float *)l->operands[at + 1];
    attention_sinks<<<(unsigned)w.heads, 256, 0, (cudaStream_t)l->stream>>>(w);
    return sat_launched(l);
}
