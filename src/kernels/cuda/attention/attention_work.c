/* Makes the work items of the Hopper attention kernel.
 *
 * The lists are built on kernels/attention_schedule.h, which says which half tiles of keys every 64 rows keep. The
 * kernel needs more than that: which rows share a CTA, which two half tiles make a key tile, and which warpgroups visit
 * it. So this groups the schedule's lists, and does not look at the mask again. */
#include "kernels/cuda/attention/attention_lists.h"

#include <cuda_runtime_api.h>

#include "kernels/attention_schedule.h"

bool sat_needs_words(const sat_mask *k, int64_t half_keys) {
    if (k->full) return false;
    if (k->block_rows % SAT_WARPGROUP_ROWS != 0 && k->block_rows < k->m) return true;
    return k->block_cols % half_keys != 0 && k->block_cols < k->n;
}

int64_t sat_half_tiles(const sat_mask *k, int64_t half_keys) { return (k->n + half_keys - 1) / half_keys; }

void sat_fill_words(const sat_mask *k, int64_t block_rows, int64_t half_keys, uint64_t *to) {
    for (int64_t row = 0; row < block_rows; row++)
        for (int64_t h = 0; h < sat_half_tiles(k, half_keys); h++)
            *to++ = sat_stored_bits(k, row, h * half_keys, half_keys);
}

bool sat_lists_fit(const sat_mask *k, int64_t half_keys) {
    if (half_keys % SAT_KEY_ALIGN != 0) return false;
    for (int64_t s = 0; s < k->sequences; s++) /* a warpgroup's rows are of one sequence */
        if (k->q_offsets[s] < k->q_offsets[s + 1] && k->q_offsets[s] % SAT_WARPGROUP_ROWS != 0) return false;
    return true;
}

int64_t sat_max_items(const sat_mask *k, int warpgroups) {
    int64_t rows = (int64_t)SAT_WARPGROUP_ROWS * warpgroups;
    return (k->m + rows - 1) / rows + k->sequences;
}
/* How many tiles a block may touch, of a side of `length`. */
static int64_t tiles_of_block(int64_t block, int64_t length, int64_t tile) {
    block = sat_min(block, length);
    bool apart = block % tile == 0 || tile % block == 0 || block == length; /* no edge of a tile is within a block */
    return (block + tile - 1) / tile + !apart;
}

double sat_max_listed(const sat_mask *k, int64_t stored_blocks, int64_t half_keys) {
    int64_t down = tiles_of_block(k->block_rows, k->m, SAT_WARPGROUP_ROWS);
    int64_t across = tiles_of_block(k->block_cols, k->n, half_keys);
    return (double)stored_blocks * (double)down * (double)across;
}

void sat_items_free(sat_attention_items *w) {
    free(w->item), free(w->tile);
    w->item = NULL, w->tile = NULL;
}

/* 64 rows of a mask, and the list of half tiles that they visit. */
typedef struct sat_row_list {
    int64_t first;       /* row */
    const int32_t *step; /* of the schedule */
    int32_t count;
} sat_row_list;

typedef struct sat_items_builder {
    const sat_attention_schedule *s; /* 64 rows by a half tile */
    int warpgroups;
    int64_t half_keys;                           /* keys of a half tile */
    sat_row_list *rows;                          /* of a sequence */
    int32_t *half_tiles[SAT_MAX_WARPGROUPS + 1]; /* of an item: visited by one warpgroup; last: visited by all */
    int64_t count[SAT_MAX_WARPGROUPS + 1];
    sat_attention_items *to;
} sat_items_builder;

static int32_t sat_listed_half_tile(const sat_items_builder *b, const sat_row_list *r, int32_t i) {
    return (int32_t)(b->s->k[sat_step_tile(r->step[i])].first / b->half_keys);
}

/* Sorts the half tiles of `lists` row lists, one a warpgroup, by who visits them. A half tile that some warpgroups
 * visit, but not all, is listed for each alone. */
static void sat_sort_half_tiles(sat_items_builder *b, const sat_row_list *const *r, int lists) {
    int32_t at[SAT_MAX_WARPGROUPS] = {0};
    int all = b->warpgroups;
    for (int g = 0; g <= all; g++) b->count[g] = 0;
    for (;;) {
        int32_t least = INT32_MAX;
        int visitors = 0;
        for (int g = 0; g < lists; g++)
            if (at[g] < r[g]->count) least = sat_min_i32(least, sat_listed_half_tile(b, r[g], at[g]));
        if (least == INT32_MAX) break;
        for (int g = 0; g < lists; g++) {
            if (at[g] >= r[g]->count || sat_listed_half_tile(b, r[g], at[g]) != least) continue;
            at[g]++, visitors++;
            b->half_tiles[g][b->count[g]++] = least;
        }
        if (visitors < all) continue;
        for (int g = 0; g < all; g++) b->count[g]--;
        b->half_tiles[all][b->count[all]++] = least;
    }
    /* If every list is odd, the last shared half tile pairs with each warpgroup's last one, which saves a half-empty
     * key tile. */
    bool odd = b->count[all] % 2 != 0 && all > 1;
    for (int g = 0; g < all; g++) odd = odd && b->count[g] % 2 != 0;
    if (!odd) return;
    int32_t last = b->half_tiles[all][--b->count[all]];
    for (int g = 0; g < all; g++) b->half_tiles[g][b->count[g]++] = last;
}

/* A key tile of half tiles `at` and the next of list g. */
static void sat_add_tile(sat_items_builder *b, int g, int64_t at) {
    const int32_t *from = b->half_tiles[g];
    int32_t visitors = g == b->warpgroups ? (1 << b->warpgroups) - 1 : 1 << g, half_keys = (int32_t)b->half_keys;
    sat_key_tile t = {from[at] * half_keys | visitors,
                      at + 1 < b->count[g] ? from[at + 1] * half_keys : SAT_NO_HALF_TILE};
    b->to->tile[b->to->listed++] = t;
}

/* The key tiles of sorted half tiles: the shared ones first, then those of each warpgroup in turn, so that a
 * warpgroup's next tile is never more than `warpgroups` tiles away. */
static void sat_add_tiles(sat_items_builder *b, sat_attention_item *w) {
    w->list = (int32_t)b->to->listed, w->pingpong = 1;
    for (int64_t at = 0; at < b->count[b->warpgroups]; at += 2) sat_add_tile(b, b->warpgroups, at);
    for (int64_t at = 0, more = 1; more; at += 2) {
        more = 0;
        for (int g = 0; g < b->warpgroups; g++)
            if (at < b->count[g]) sat_add_tile(b, g, at), more = 1, w->pingpong = 0;
    }
    w->key_tiles = (int32_t)(b->to->listed - w->list);
}

/* Items of the first `lists` row lists in their order. Returns the cost: products, and tiles that are loaded. */
static int64_t sat_add_listed_items(sat_items_builder *b, const sat_attention_item *like, int64_t lists) {
    int64_t cost = 0;
    for (int64_t u = 0; u < lists; u += b->warpgroups) {
        const sat_row_list *some[SAT_MAX_WARPGROUPS];
        int count = (int)sat_min(b->warpgroups, lists - u);
        int64_t longest = 0;
        sat_attention_item w = *like;
        for (int g = 0; g < SAT_MAX_WARPGROUPS; g++) {
            w.row[g] = g < count ? (int32_t)b->rows[u + g].first : w.row_end;
            if (g < count) some[g] = &b->rows[u + g], longest = sat_max(longest, some[g]->count);
        }
        sat_sort_half_tiles(b, some, count);
        sat_add_tiles(b, &w);
        b->to->item[b->to->items++] = w;
        cost += longest * b->warpgroups + 2 * w.key_tiles;
    }
    return cost;
}

static int sat_row_list_by_place(const void *a, const void *b) {
    const sat_row_list *x = (const sat_row_list *)a, *y = (const sat_row_list *)b;
    return (x->first > y->first) - (x->first < y->first);
}

static int sat_row_list_by_length(const void *a, const void *b) { /* the longest first */
    const sat_row_list *x = (const sat_row_list *)a, *y = (const sat_row_list *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return sat_row_list_by_place(a, b);
}

static int sat_item_by_length(const void *a, const void *b) { /* the longest first */
    const sat_attention_item *x = (const sat_attention_item *)a, *y = (const sat_attention_item *)b;
    if (x->key_tiles != y->key_tiles) return x->key_tiles < y->key_tiles ? 1 : -1;
    return (x->row[0] > y->row[0]) - (x->row[0] < y->row[0]);
}

/* Query tiles `begin` to before `end` of one mask, which are a sequence: neighbours share a CTA, or rows with lists of
 * like length, whichever costs less. */
static void sat_add_sequence(sat_items_builder *b, int64_t mask, const sat_attention_item *like, int64_t begin,
                             int64_t end) {
    const sat_step_lists *l = &b->s->by_query;
    int64_t lists = 0, items = b->to->items, listed = b->to->listed, cost[2];
    for (int64_t i = begin; i < end; i++) {
        int64_t place = mask * b->s->q_tiles + i;
        sat_row_list r = {b->s->q[i].first, l->step + l->start[place],
                          (int32_t)(l->start[place + 1] - l->start[place])};
        b->rows[lists++] = r;
    }
    cost[0] = sat_add_listed_items(b, like, lists);
    if (b->warpgroups == 1) return;
    qsort(b->rows, (size_t)lists, sizeof *b->rows, sat_row_list_by_length);
    b->to->items = items, b->to->listed = listed;
    cost[1] = sat_add_listed_items(b, like, lists);
    if (cost[1] < cost[0]) return;
    qsort(b->rows, (size_t)lists, sizeof *b->rows, sat_row_list_by_place);
    b->to->items = items, b->to->listed = listed;
    sat_add_listed_items(b, like, lists);
}

/* What all items of a sequence have in common. */
static sat_attention_item sat_item_of_sequence(const sat_mask *k, int64_t sequence) {
    sat_sequence s = sat_sequence_at(k, sequence);
    sat_attention_item w = {.row_end = (int32_t)s.q.end,
                            .diagonal = (int32_t)(s.k.end - s.q.end),
                            .key_begin = (int32_t)s.k.begin,
                            .key_end = (int32_t)s.k.end,
                            .list = -1,
                            .pingpong = 1};
    return w;
}

/* Every block is stored: items are neighbouring rows and ranges of keys, the same for every mask. */
static bool sat_items_of_ranges(const sat_mask *k, int warpgroups, int32_t tile_keys, sat_attention_items *to) {
    int32_t rows = SAT_WARPGROUP_ROWS * warpgroups;
    sat_tile *tile = NULL;
    bool ok = sat_attention_schedule_tiles(k->q_offsets, k->sequences, k->m, rows, false, &tile, &to->items);
    for (int64_t i = 0; ok && i < to->items; i++) {
        sat_attention_item w = sat_item_of_sequence(k, tile[i].sequence);
        for (int g = 0; g < SAT_MAX_WARPGROUPS; g++) w.row[g] = (int32_t)tile[i].first + g * SAT_WARPGROUP_ROWS;
        sat_attention_item clipped = w;
        sat_clip_keys(&clipped, rows, tile_keys, sat_band_of(k));
        w.key_tiles = clipped.key_tiles; /* to sort by; the kernel clips for itself */
        to->item[i] = w;
    }
    free(tile);
    if (ok) qsort(to->item, (size_t)to->items, sizeof *to->item, sat_item_by_length);
    return ok;
}

/* Blocks are absent: items with lists of tiles. */
static void sat_items_of_lists(sat_items_builder *b, const sat_mask *k) {
    const sat_tile *q = b->s->q;
    for (int64_t mask = 0; mask < b->s->masks; mask++) {
        int64_t before = b->to->items;
        for (int64_t begin = 0, end; begin < b->s->q_tiles; begin = end) {
            for (end = begin; end < b->s->q_tiles && q[end].sequence == q[begin].sequence; end++) {}
            sat_attention_item like = sat_item_of_sequence(k, q[begin].sequence);
            sat_add_sequence(b, mask, &like, begin, end);
        }
        qsort(b->to->item + before, (size_t)(b->to->items - before), sizeof *b->to->item, sat_item_by_length);
    }
    b->to->items /= b->s->masks; /* queries are cut alike for each mask, so all have as many */
}

bool sat_items_make(const sat_mask *k, int64_t masks, int64_t stored_blocks, int warpgroups, int64_t half_keys,
                    sat_attention_items *to) {
    double listed = k->full ? 0 : sat_max_listed(k, stored_blocks, half_keys);
    to->items = to->listed = 0;
    to->item = (sat_attention_item *)malloc(((size_t)(sat_max_items(k, warpgroups) * masks) + 1) * sizeof *to->item);
    to->tile = (sat_key_tile *)malloc(((size_t)listed + 1) * sizeof *to->tile);
    if (!to->item || !to->tile) return false;
    if (k->full) return sat_items_of_ranges(k, warpgroups, (int32_t)(2 * half_keys), to);
    sat_items_builder b = {.warpgroups = warpgroups, .half_keys = half_keys, .to = to};
    sat_attention_schedule *s = sat_attention_schedule_of_mask(k, masks, SAT_WARPGROUP_ROWS, half_keys, true, false);
    bool ok = s != NULL;
    b.s = s, b.rows = (sat_row_list *)malloc(((size_t)(k->m / SAT_WARPGROUP_ROWS) + 1) * sizeof *b.rows);
    for (int g = 0; g <= warpgroups; g++)
        b.half_tiles[g] = (int32_t *)malloc((size_t)(k->n / half_keys + 2) * sizeof *b.half_tiles[g]),
        ok = ok && b.half_tiles[g];
    ok = ok && b.rows;
    if (ok) sat_items_of_lists(&b, k);
    for (int g = 0; g <= warpgroups; g++) free(b.half_tiles[g]);
    free(b.rows), sat_attention_schedule_free(s);
    return ok;
}

/* ---- on the device ---- */

static size_t round_up(double bytes) { return ((size_t)bytes + 255) & ~(size_t)255; }

bool sat_items_fit(const sat_problem *p, const sat_pattern_view *a, int warpgroups, int64_t half_keys) {
    sat_mask mask = sat_mask_of(p, a);
    double items = (double)sat_max_items(&mask, warpgroups);
    if (items * (double)p->batch * (double)p->attention.heads >= 1 << 30) return false;
    if (mask.full) return true;
    /* Half tiles of 40 keys fit no usual block, so 80-key tiles visit ranges only. */
    return 64 % half_keys == 0 && sat_lists_fit(&mask, half_keys) &&
           sat_max_listed(&mask, a->stored_blocks, half_keys) < 1 << 30;
}

static double word_count(const sat_pattern_view *a, const sat_mask *k, int64_t half_keys) {
    return (double)a->grid_rows * (double)sat_half_tiles(k, half_keys);
}

size_t sat_items_bytes(const sat_problem *p, const sat_pattern_view *a, int warpgroups, int64_t half_keys) {
    sat_mask mask = sat_mask_of(p, a);
    if (sat_mask_is_regular(&mask)) return 0;
    double items = (double)(sat_max_items(&mask, warpgroups) * sat_mask_count(&mask, p));
    double listed = mask.full ? 0 : sat_max_listed(&mask, a->stored_blocks, half_keys);
    double words = sat_needs_words(&mask, half_keys) ? word_count(a, &mask, half_keys) : 0;
    return round_up(words * sizeof(uint64_t)) + round_up(items * sizeof(sat_attention_item)) +
           round_up(listed * sizeof(sat_key_tile));
}

static cudaError_t copy_work(cudaStream_t stream, const sat_attention_items *from, int64_t masks, char *to,
                             sat_device_items *w) {
    size_t bytes = (size_t)(from->items * masks) * sizeof *from->item;
    w->item = (const sat_attention_item *)to, w->items = (int)from->items;
    w->listed_tiles = (const sat_key_tile *)(to + round_up((double)bytes));
    cudaError_t e = cudaMemcpyAsync(to, from->item, bytes, cudaMemcpyHostToDevice, stream);
    if (e == cudaSuccess && from->listed > 0)
        e = cudaMemcpyAsync((void *)w->listed_tiles, from->tile, (size_t)from->listed * sizeof *from->tile,
                            cudaMemcpyHostToDevice, stream);
    return e == cudaSuccess ? cudaStreamSynchronize(stream) : e;
}

/* Makes the words in device memory at `*to`, which moves on. */
static sat_status upload_words(const sat_prepare *q, const sat_mask *mask, int64_t half_keys, char **to,
                               sat_device_items *w) {
    size_t bytes = (size_t)word_count(q->pattern, mask, half_keys) * sizeof(uint64_t);
    uint64_t *words = malloc(bytes + 1);
    if (!words) return sat_fail(SAT_OUT_OF_MEMORY, "%s: words of a mask", q->variant->name);
    sat_fill_words(mask, q->pattern->grid_rows, half_keys, words);
    w->words = (const uint64_t *)*to, *to += round_up((double)bytes);
    cudaError_t e = cudaMemcpyAsync((void *)w->words, words, bytes, cudaMemcpyHostToDevice, (cudaStream_t)q->stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize((cudaStream_t)q->stream);
    free(words);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

sat_status sat_items_upload(const sat_prepare *q, int warpgroups, int64_t half_keys, char *to, sat_device_items *w) {
    const sat_mask mask = sat_mask_of(q->problem, q->pattern);
    const int64_t masks = mask.full ? 1 : sat_mask_count(&mask, q->problem);
    const int64_t rows = (int64_t)warpgroups * SAT_WARPGROUP_ROWS;
    w->items = (int)((q->problem->m + rows - 1) / rows);
    if (sat_mask_is_regular(&mask)) return SAT_OK;
    sat_status status = sat_needs_words(&mask, half_keys) ? upload_words(q, &mask, half_keys, &to, w) : SAT_OK;
    if (status != SAT_OK) return status;
    sat_attention_items work = {0};
    bool made = sat_items_make(&mask, masks, q->pattern->stored_blocks, warpgroups, half_keys, &work);
    cudaError_t e = made ? copy_work((cudaStream_t)q->stream, &work, masks, to, w) : cudaSuccess;
    sat_items_free(&work);
    if (!made) return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", q->variant->name);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}
