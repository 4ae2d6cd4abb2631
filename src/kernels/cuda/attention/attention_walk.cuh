/* What the CTAs of an attention kernel visit. One side of the scores, queries or keys, is cut into tiles of which a CTA
 * has one; it visits tiles of the other side, which are a range where every block is stored, and otherwise a list made
 * on the host (kernels/attention_schedule.h). Tiles with the most to visit come first. Of a list's step, `stored` has
 * which keys of the step each block row of its queries keeps, so that a kernel never looks into the pattern. */
#ifndef SAT_ATTENTION_WALK_CUH
#define SAT_ATTENTION_WALK_CUH

#include "kernels/attention_schedule.h"
#include "variant.cuh"

enum {
    ATTENTION_ALL = 1 << 29,     /* no limit */
    ATTENTION_LARGEST = 1 << 28, /* lengths are below it, so that sums with the above fit an int */
    ATTENTION_KEYS = 64          /* keys of a word: its bits */
};

/* Rows first to before end; they may keep rows of the other side from begin to before stop. Query i stands at key
 * i + diagonal. */
struct attention_tile {
    int first, end, begin, stop, diagonal;
};

struct attention_walk {
    const attention_tile *tile; /* NULL: one after the other */
    const int *order;           /* units by what they visit; NULL: as they come, or backwards */
    const int *start;           /* of the list of mask * tiles + tile; NULL: ranges */
    const int2 *entry;          /* a step: first row, 2 * count + whether pairs are to be tested */
    const uint64_t *stored;     /* words of a step; NULL: all */
    int words, block_rows;
    int parts; /* words for the keys of a block row */
    bool by_key, backwards;
    int tiles, units;  /* units: tiles * masks, or where heads share keys * groups of masks */
    int share;         /* query heads of a key head */
    int heads, batch;  /* heads of this side */
    int together;      /* heads whose keys fit into the cache together */
    int height, width; /* rows of a tile, and of a step */
    int length, other; /* of this side, and of the other */
    int ahead, behind; /* query i keeps keys of i + diagonal - behind to before i + diagonal + ahead */
    bool head_masks;
    int longest; /* no CTA has more steps of a head */
};

/* A CTA's work: a tile of one head. */
struct attention_item {
    attention_tile t;
    int number, head, batch; /* number of the tile; heads are this side's */
};

/* The other side, of one query head: steps are `count`. */
struct attention_steps {
    int list, count;    /* list -1: a range */
    int from, to;       /* the range */
    int inner0, inner1; /* steps within these test no pair */
};

struct attention_step {
    int first, count;
    bool edge;
};

__device__ __forceinline__ attention_item attention_item_of(const attention_walk &w, unsigned number) {
    attention_item x;
    int unit, n = (int)number;
    if (w.head_masks) {
        unit = n / w.batch, x.batch = n % w.batch;
        if (w.order) unit = __ldg(w.order + unit);
        x.head = unit / w.tiles, unit %= w.tiles;
    } else {
        int in_group = w.together * w.tiles, group = n / in_group, rest = n % in_group, first = group * w.together;
        int wide = min(w.together, w.heads * w.batch - first), head = first + rest % wide;
        unit = rest / wide, x.batch = head / w.heads, x.head = head % w.heads;
        if (w.order) unit = __ldg(w.order + unit);
        else if (w.backwards) unit = w.tiles - 1 - unit;
    }
    x.number = unit;
    if (w.tile) {
        x.t = w.tile[unit];
    } else {
        x.t.first = unit * w.height, x.t.end = min(x.t.first + w.height, w.length), x.t.begin = 0, x.t.stop = w.other;
        x.t.diagonal = w.by_key ? w.length - w.other : w.other - w.length;
    }
    return x;
}

/* What query head `head` has of it. */
__device__ __forceinline__ attention_steps attention_steps_of(const attention_walk &w, const attention_item &x,
                                                              int head) {
    attention_steps s;
    if (w.start) {
        int at = (w.head_masks ? head : 0) * w.tiles + x.number;
        s.list = __ldg(w.start + at), s.count = __ldg(w.start + at + 1) - s.list;
        return s;
    }
    const attention_tile &t = x.t;
    s.list = -1;
    int low = t.first, high = t.end - 1;
    if (w.by_key) { /* queries of j - diagonal - ahead + 1 to before j - diagonal + behind + 1 */
        s.from = max(t.begin, low - t.diagonal - w.ahead + 1), s.to = min(t.stop, high - t.diagonal + w.behind + 1);
        s.inner0 = high - t.diagonal - w.ahead + 1, s.inner1 = low - t.diagonal + w.behind + 1;
    } else {
        s.from = max(t.begin, low + t.diagonal - w.behind), s.to = min(t.stop, high + t.diagonal + w.ahead);
        s.inner0 = high + t.diagonal - w.behind, s.inner1 = low + t.diagonal + w.ahead;
    }
    s.count = s.to > s.from ? (s.to - s.from + w.width - 1) / w.width : 0;
    return s;
}

__device__ __forceinline__ attention_step attention_step_at(const attention_walk &w, const attention_steps &s, int i) {
    attention_step x;
    if (s.list >= 0) {
        int2 e = __ldg(w.entry + s.list + i);
        x.first = e.x, x.count = e.y >> 1, x.edge = e.y & 1;
    } else {
        x.first = s.from + i * w.width, x.count = min(w.width, s.to - x.first);
        x.edge = x.count < w.width || x.first < s.inner0 || x.first + x.count > s.inner1;
    }
    return x;
}

/* Bits begin to before end, of 64. */
__device__ __forceinline__ uint64_t attention_bits(int begin, int end) {
    begin = max(begin, 0), end = min(end, 64);
    return end > begin ? (~(uint64_t)0 >> (64 - (end - begin))) << begin : 0;
}

/* Which of `count` keys from `key` on query i keeps, of the first 64; `tile` has its sequence's keys. `word`: the
 * step's first for these keys. */
__device__ __forceinline__ uint64_t attention_keep(const attention_walk &w, int i, int first_query, int diagonal,
                                                   int key, int count, int key_begin, int key_stop, int64_t word) {
    int left = max(key_begin, i + diagonal - w.behind), right = min(key_stop, i + diagonal + w.ahead);
    uint64_t bits = attention_bits(left - key, min(right, key + count) - key);
    if (w.stored) bits &= __ldg(w.stored + word + (i / w.block_rows - first_query / w.block_rows) * w.parts);
    return bits;
}

/* ---- the host's side ---- */

typedef struct attention_shape { /* rows of a query tile and of a key tile */
    int64_t q_rows, k_rows;
    bool by_key;
} attention_shape;

static inline int64_t attention_tiles_of(int64_t length, int64_t sequences, int64_t rows) { /* at most */
    return (length + rows - 1) / rows + sequences;
}

static inline bool attention_plain(const sat_mask *k) { return k->full && !k->sequences; }

/* Tiles of `rows` that `side` of a block may touch. */
static inline int64_t attention_touches(int64_t side, int64_t rows, bool anywhere) {
    if (!anywhere && side % rows == 0) return side / rows;
    if (!anywhere && rows % side == 0) return 1;
    return (side + rows - 2) / rows + 1;
}

/* Steps of a list, at most. */
static inline double attention_most_steps(const sat_mask *k, const sat_problem *p, const sat_pattern_view *a,
                                          attention_shape s) {
    double q = (double)attention_tiles_of(p->m, k->sequences, s.q_rows);
    double all = q * (double)attention_tiles_of(p->n, k->sequences, s.k_rows) * (double)sat_mask_count(k, p);
    /* sequences that end within a block cut it into more */
    int64_t down = attention_touches(a->block_rows, s.q_rows, k->sequences > 0) + sat_min(k->sequences, a->block_rows);
    int64_t over = attention_touches(a->block_cols, s.k_rows, k->sequences > 0) + sat_min(k->sequences, a->block_cols);
    return fmin(all, (double)a->stored_blocks * (double)down * (double)over);
}

static inline int64_t attention_parts(attention_shape s) { return (s.k_rows + ATTENTION_KEYS - 1) / ATTENTION_KEYS; }

static inline int64_t attention_words(const sat_mask *k, attention_shape s) {
    if (k->full) return 0;
    return attention_touches(s.q_rows, k->block_rows, k->sequences > 0 || s.q_rows % k->block_rows) *
           attention_parts(s);
}

/* Room for a walk: tiles, order, start, entries, words. */
static inline double attention_walk_bytes(const sat_problem *p, const sat_pattern_view *a, attention_shape s) {
    sat_mask k = sat_mask_of(p, a);
    if (attention_plain(&k)) return 0;
    double tiles = (double)attention_tiles_of(s.by_key ? p->n : p->m, k.sequences, s.by_key ? s.k_rows : s.q_rows);
    double steps = k.full ? 0 : attention_most_steps(&k, p, a, s), places = tiles * (double)sat_mask_count(&k, p);
    return tiles * sizeof(attention_tile) + 8 * places + steps * (8 + 8 * (double)attention_words(&k, s)) + 6 * 256;
}

/* Sizes that a walk can count. */
static inline bool attention_walks(const sat_problem *p, const sat_pattern_view *a, attention_shape s) {
    sat_mask k = sat_mask_of(p, a);
    if (p->m >= ATTENTION_LARGEST || p->n >= ATTENTION_LARGEST || a->block_rows >= ATTENTION_ALL) return false;
    double tiles = (double)attention_tiles_of(s.by_key ? p->n : p->m, k.sequences, s.by_key ? s.k_rows : s.q_rows);
    if (tiles * (double)p->batch * (double)p->attention.heads >= 1 << 30) return false;
    return k.full || attention_most_steps(&k, p, a, s) < 1 << 30;
}

/* What is visited, as pairs of queries and keys over all heads and the batch, about. */
static inline double attention_visited(const sat_problem *p, const sat_pattern_view *a, attention_shape s) {
    sat_mask k = sat_mask_of(p, a);
    double heads = (double)(p->batch * p->attention.heads), m = (double)p->m, side = (double)(s.q_rows + s.k_rows) / 2;
    double rows = ceil(m / (double)s.q_rows) * (double)s.q_rows + (double)k.sequences * (double)s.q_rows / 2;
    double pairs = sat_pairs(p, a) / fmax(1, heads * m);
    if (k.full) {
        double wide = pairs + (k.causal || k.window ? side : (double)s.k_rows / 2 * (p->n % s.k_rows != 0));
        return heads * rows * fmin(wide, ceil((double)p->n / (double)s.k_rows) * (double)s.k_rows);
    }
    double steps = attention_most_steps(&k, p, a, s) * (k.head_rows ? (double)p->batch : heads);
    double cut = sat_pairs(p, a) / fmax(1, (double)a->stored_elements * (k.head_rows ? (double)p->batch : heads));
    return steps * (double)(s.q_rows * s.k_rows) * fmin(1, cut * 1.2 + 0.05);
}

static inline attention_walk attention_walk_plain(const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                                                  attention_shape s) {
    const sat_attention *t = &p->attention;
    sat_mask k = sat_mask_of(p, a);
    attention_walk w = {};
    w.by_key = s.by_key, w.block_rows = (int)a->block_rows, w.share = (int)(t->heads / t->kv_heads);
    w.parts = (int)attention_parts(s);
    w.heads = (int)(s.by_key ? t->kv_heads : t->heads), w.batch = (int)p->batch;
    w.height = (int)(s.by_key ? s.k_rows : s.q_rows), w.width = (int)(s.by_key ? s.q_rows : s.k_rows);
    w.length = (int)(s.by_key ? p->n : p->m), w.other = (int)(s.by_key ? p->m : p->n);
    w.ahead = k.causal ? 1 : k.window ? (int)k.window : ATTENTION_ALL;
    w.behind = k.window ? (int)k.window - 1 : ATTENTION_ALL;
    w.tiles = w.units = (w.length + w.height - 1) / w.height;
    int64_t reach = sat_min(w.other, (int64_t)w.ahead + w.behind + w.height);
    w.longest = (int)((reach + w.width - 1) / w.width);
    w.backwards = k.causal && !s.by_key;
    w.head_masks = k.head_rows && !k.full;
    /* as many heads at once as half of the cache holds what all their CTAs read */
    double head = 2.0 * (double)w.other * (double)t->dim * (double)sat_dtype_size(p->a_dtype);
    if (!s.by_key) head /= w.share;
    w.together =
        (int)sat_max(1, sat_min((int64_t)((double)d->l2_bytes / 2 / fmax(head, 1)), (int64_t)w.heads * w.batch));
    int group = s.by_key ? 1 : w.share; /* those that share keys stay together */
    w.together = (int)sat_min((int64_t)(w.together + group - 1) / group * group, (int64_t)w.heads * w.batch);
    return w;
}

static inline unsigned attention_items(const attention_walk *w) {
    return (unsigned)(w->head_masks ? w->units * w->batch : w->tiles * w->heads * w->batch);
}

/* Which of 64 keys from `key` on are stored in a block row of a head; none where its queries are not before `end`. */
SAT_BOTH static inline uint64_t attention_word(const sat_mask *k, int64_t head, int64_t row, int64_t end, int64_t key) {
    uint64_t bits = 0;
    if (row * k->block_rows >= end) return 0;
    row += head * k->head_rows;
    for (int64_t b = sat_mask_find(k, row, key / k->block_cols); b < k->row_ptr[row + 1]; b++) {
        int64_t from = k->col_idx[b] * k->block_cols - key, to = sat_min(from + k->block_cols, 64);
        if (from >= 64) break;
        from = sat_max(from, 0);
        bits |= (~(uint64_t)0 >> (64 - (to - from))) << from;
    }
    return bits;
}

/* Words of the steps; a CTA has a list. */
static __global__ void attention_fill_stored(attention_walk w, sat_mask k, int masks, uint64_t *stored) {
    for (int place = blockIdx.x; place < masks * w.tiles; place += gridDim.x) {
        int list = w.start[place], count = w.start[place + 1] - list;
        attention_tile t = w.tile[place % w.tiles];
        for (int at = threadIdx.x; at < count * w.words; at += blockDim.x) {
            int2 e = w.entry[list + at / w.words];
            int query = w.by_key ? e.x : t.first, end = w.by_key ? e.x + (e.y >> 1) : t.end, word = at % w.words;
            int key = (w.by_key ? t.first : e.x) + word % w.parts * ATTENTION_KEYS;
            stored[(int64_t)list * w.words + at] =
                attention_word(&k, place / w.tiles, query / k.block_rows + word / w.parts, end, key);
        }
    }
}

/* The lists as the device has them, on the host, before they are sent. */
typedef struct attention_lists {
    attention_tile *tile;
    int *order, *start;
    int2 *entry;
    int64_t tiles, units, places, steps;
    int64_t longest; /* steps of a tile and a mask */
} attention_lists;

static inline void attention_lists_free(attention_lists *l) {
    free(l->tile), free(l->order), free(l->start), free(l->entry);
}

static inline void attention_describe(const sat_mask *k, bool by_key, const sat_tile *t, attention_tile *to) {
    int64_t q0 = 0, q1 = k->m, k0 = 0, k1 = k->n;
    if (k->sequences)
        q0 = k->q_offsets[t->sequence], q1 = k->q_offsets[t->sequence + 1], k0 = k->kv_offsets[t->sequence],
        k1 = k->kv_offsets[t->sequence + 1];
    to->first = (int)t->first, to->end = (int)(t->first + t->count);
    to->begin = (int)(by_key ? q0 : k0), to->stop = (int)(by_key ? q1 : k1);
    to->diagonal = (int)(k1 - q1);
}

/* Units, the longest first; of equals the first. */
static inline bool attention_sort(attention_lists *l, const int64_t *length) {
    int64_t most = 0;
    for (int64_t i = 0; i < l->units; i++) most = sat_max(most, length[i]);
    int64_t *at = (int64_t *)calloc((size_t)most + 2, sizeof *at);
    if (!at) return false;
    for (int64_t i = 0; i < l->units; i++) at[most - length[i] + 1]++;
    for (int64_t i = 0; i < most + 1; i++) at[i + 1] += at[i];
    for (int64_t i = 0; i < l->units; i++) l->order[at[most - length[i]]++] = (int)i;
    free(at);
    return true;
}

/* What a unit visits: of a list its steps, over the masks that share it; of a range, about. */
static inline bool attention_order(attention_lists *l, const attention_walk *w) {
    int64_t *length = (int64_t *)calloc((size_t)l->units + 1, sizeof *length), share = w->by_key ? w->share : 1;
    if (!length) return false;
    for (int64_t i = 0; i < l->places && l->start; i++) {
        length[w->head_masks ? i / l->tiles / share * l->tiles + i % l->tiles : i] += l->start[i + 1] - l->start[i];
        l->longest = sat_max(l->longest, l->start[i + 1] - l->start[i]);
    }
    for (int64_t i = 0; i < l->units && !l->start; i++) {
        const attention_tile *t = &l->tile[i];
        int64_t low = w->by_key ? t->first - t->diagonal - w->ahead + 1 : t->first + t->diagonal - w->behind;
        int64_t high = w->by_key ? t->end - t->diagonal + w->behind : t->end - 1 + t->diagonal + w->ahead;
        length[i] = sat_max(0, (sat_min(high, t->stop) - sat_max(low, t->begin) + w->width - 1) / w->width);
        l->longest = sat_max(l->longest, length[i]);
    }
    bool ok = attention_sort(l, length);
    free(length);
    return ok;
}

static inline bool attention_lists_make(const sat_prepare *q, attention_shape s, const attention_walk *w,
                                        attention_lists *l) {
    sat_mask k = sat_mask_of(q->problem, q->pattern);
    bool by_key = s.by_key;
    sat_schedule *all = NULL;
    sat_tile *cut = NULL;
    if (k.full) {
        if (!sat_schedule_cut(by_key ? k.kv_offsets : k.q_offsets, k.sequences, by_key ? k.n : k.m,
                              by_key ? s.k_rows : s.q_rows, &cut, &l->tiles))
            return free(cut), false;
        l->places = l->units = l->tiles;
    } else {
        all = sat_schedule_make(q->problem, q->pattern, s.q_rows, s.k_rows, by_key);
        if (!all) return false;
        const sat_step_lists *lists = by_key ? &all->by_key : &all->by_query;
        l->tiles = by_key ? all->k_tiles : all->q_tiles, l->places = lists->places, l->steps = lists->steps;
        l->units = w->head_masks && by_key ? l->places / w->share : l->places;
    }
    const sat_tile *from = all ? (by_key ? all->k : all->q) : cut, *other = all ? (by_key ? all->q : all->k) : NULL;
    l->tile = (attention_tile *)malloc(((size_t)l->tiles + 1) * sizeof *l->tile);
    l->order = (int *)malloc(((size_t)l->units + 1) * sizeof *l->order);
    bool ok = l->tile && l->order;
    for (int64_t i = 0; ok && i < l->tiles; i++) attention_describe(&k, by_key, &from[i], &l->tile[i]);
    if (ok && all) {
        const sat_step_lists *lists = by_key ? &all->by_key : &all->by_query;
        l->start = (int *)malloc(((size_t)l->places + 1) * sizeof *l->start);
        l->entry = (int2 *)malloc(((size_t)l->steps + 1) * sizeof *l->entry);
        ok = l->start && l->entry;
        for (int64_t i = 0; ok && i <= l->places; i++) l->start[i] = (int)lists->start[i];
        for (int64_t i = 0; ok && i < l->steps; i++) {
            const sat_tile *t = &other[sat_step_tile(lists->step[i])];
            bool edge = sat_step_edge(lists->step[i]) || t->count < w->width;
            l->entry[i].x = (int)t->first, l->entry[i].y = 2 * t->count + edge;
        }
    }
    ok = ok && attention_order(l, w);
    free(cut), sat_schedule_free(all);
    return ok;
}

static inline cudaError_t attention_send(char **at, const void *from, size_t bytes, const void *to,
                                         cudaStream_t stream) {
    *(const void **)(uintptr_t)to = *at;
    cudaError_t e = bytes ? cudaMemcpyAsync(*at, from, bytes, cudaMemcpyHostToDevice, stream) : cudaSuccess;
    *at += (bytes + 255) / 256 * 256;
    return e;
}

/* Fills `w`, whose arrays are then in the workspace from `at` on, where attention_walk_bytes fit. */
static inline sat_status attention_walk_make(const sat_prepare *q, attention_shape s, char *at, attention_walk *w) {
    *w = attention_walk_plain(q->problem, q->pattern, q->device, s);
    sat_mask k = sat_mask_of(q->problem, q->pattern);
    if (attention_plain(&k)) return SAT_OK;
    attention_lists l = {};
    if (!attention_lists_make(q, s, w, &l)) {
        attention_lists_free(&l);
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", q->variant->name);
    }
    cudaStream_t stream = (cudaStream_t)q->stream;
    w->tiles = (int)l.tiles, w->units = (int)l.units, w->longest = (int)l.longest;
    cudaError_t e = attention_send(&at, l.tile, (size_t)l.tiles * sizeof *l.tile, &w->tile, stream);
    if (e == cudaSuccess) e = attention_send(&at, l.order, (size_t)l.units * sizeof *l.order, &w->order, stream);
    if (l.start) {
        if (e == cudaSuccess)
            e = attention_send(&at, l.start, ((size_t)l.places + 1) * sizeof *l.start, &w->start, stream);
        if (e == cudaSuccess) e = attention_send(&at, l.entry, (size_t)l.steps * sizeof *l.entry, &w->entry, stream);
        w->words = (int)attention_words(&k, s), w->stored = (const uint64_t *)at;
        if (e == cudaSuccess && l.places > 0) {
            attention_fill_stored<<<sat_blocks(l.places, 1), 128, 0, stream>>>(
                *w, sat_device_mask_of(q->problem, q->pattern), (int)(l.places / sat_max(1, l.tiles)), (uint64_t *)at);
            e = cudaGetLastError();
        }
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    attention_lists_free(&l);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* A family's prepare: the kernel's shared memory is allowed, and its state is the walk. */
static inline sat_status attention_allow(const sat_prepare *q, const void *kernel, int bytes) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

static inline sat_status attention_prepare(const sat_prepare *q, const void *kernel, int bytes, attention_shape s,
                                           void **state) {
    sat_status status = attention_allow(q, kernel, bytes);
    if (status != SAT_OK) return status;
    attention_walk *w = (attention_walk *)calloc(1, sizeof *w);
    if (!w) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    status = attention_walk_make(q, s, (char *)q->workspace, w);
    if (status == SAT_OK) *state = w;
    else free(w);
    return status;
}

static inline void attention_release(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

#endif
