/* Work items of the Hopper attention kernel. An item is a CTA's rows and key tiles, without the head: 64 query rows for
 * each of its warpgroups, and the key tiles that they visit. Where every block is stored the key tiles are a range of
 * keys. Otherwise they are a list, made on the host once a plan (attention_work.c). A key tile of a list has two
 * halves, *half tiles*, which need not be neighbours; it says which warpgroups visit it. */
#ifndef SAT_ATTENTION_WORK_H
#define SAT_ATTENTION_WORK_H

#include "attention.h"

enum {
    SAT_WARPGROUP_ROWS = 64,
    SAT_MAX_WARPGROUPS = 3,    /* of a CTA */
    SAT_KEY_ALIGN = 8,         /* key tiles begin at multiples of it; in a list the bits below name warpgroups */
    SAT_NO_HALF_TILE = 1 << 30 /* first key of a half tile that holds nothing: TMA reads nothing there */
};

/* Warpgroup g has the 64 rows from row[g] on, as far as `row_end`. Rows and keys are counted over the whole operand. */
typedef struct sat_attention_item {
    int32_t row[SAT_MAX_WARPGROUPS], row_end;
    int32_t diagonal, key_begin, key_end; /* of the sequence: sat_band has what the diagonal is */
    int32_t list, key_tiles;              /* its key tiles are tile[list] and on; list -1: a range of keys */
    int32_t pingpong;                     /* all warpgroups visit all key tiles, so that they can alternate */
} sat_attention_item;

/* A key tile: the first keys of its two halves. In a list, bit g of `first`: warpgroup g visits it. */
typedef struct sat_key_tile {
    int32_t first, second;
} sat_key_tile;

SAT_BOTH static inline int32_t sat_first_key(sat_key_tile t) { return t.first & ~(SAT_KEY_ALIGN - 1); }
/* Of a list: the mask of the warpgroups that visit the tile. */
SAT_BOTH static inline int32_t sat_warpgroup_mask(sat_key_tile t) { return t.first & (SAT_KEY_ALIGN - 1); }

SAT_BOTH static inline int32_t sat_min_i32(int32_t x, int32_t y) { return x < y ? x : y; }
SAT_BOTH static inline int32_t sat_max_i32(int32_t x, int32_t y) { return x > y ? x : y; }

/* Clips the key range of an item of `rows` neighbouring rows to the keys that some row keeps; counts its key tiles. */
SAT_BOTH static inline void sat_clip_keys(sat_attention_item *w, int32_t rows, int32_t tile_keys, sat_band b) {
    int32_t low = w->row[0], high = sat_min_i32(low + rows, w->row_end) - 1;
    w->key_begin = sat_max_i32(w->key_begin, low + w->diagonal - b.behind);
    w->key_end = sat_min_i32(w->key_end, high + w->diagonal + b.ahead);
    int32_t from = w->key_begin & -SAT_KEY_ALIGN;
    w->key_tiles = w->key_end > w->key_begin ? (w->key_end - from + tile_keys - 1) / tile_keys : 0;
}

/* The first key of key tile i of a range. The last one comes first, since a causal mask masks there. */
SAT_BOTH static inline int32_t sat_range_tile(const sat_attention_item *w, int32_t i, int32_t tile_keys) {
    return (w->key_begin & -SAT_KEY_ALIGN) + (w->key_tiles - 1 - i) * tile_keys;
}

/* Row i keeps keys of its item from sat_row_begin to before sat_row_end. */
SAT_BOTH static inline int32_t sat_row_begin(const sat_attention_item *w, int32_t i, sat_band b) {
    return sat_max_i32(w->key_begin, i + w->diagonal - b.behind);
}
SAT_BOTH static inline int32_t sat_row_end(const sat_attention_item *w, int32_t i, sat_band b) {
    return sat_min_i32(w->key_end, i + w->diagonal + b.ahead);
}

/* ---- the host ---- */

/* What a plan keeps in device memory. */
typedef struct sat_device_items {
    int items;                        /* of a mask */
    const sat_attention_item *item;   /* NULL: a kernel computes them */
    const sat_key_tile *listed_tiles; /* of all lists */
    const uint64_t *words;            /* sat_needs_words has what they are; NULL: half tiles are kept whole */
} sat_device_items;

#ifdef __cplusplus
extern "C" {
#endif
/* Whether a half tile may be kept in part, since blocks are smaller or end within it. Then a kernel needs a word of
 * bits for each block row and half tile: which of its keys are in stored blocks. */
bool sat_needs_words(const sat_mask *k, int64_t half_keys);
/* Whether the work can be made, and all numbers fit an int; the bytes of that memory; and makes the work there. */
bool sat_items_fit(const sat_problem *p, const sat_pattern_view *a, int warpgroups, int64_t half_keys);
size_t sat_items_bytes(const sat_problem *p, const sat_pattern_view *a, int warpgroups, int64_t half_keys);
sat_status sat_items_upload(const sat_prepare *q, int warpgroups, int64_t half_keys, char *to, sat_device_items *w);

#ifdef __cplusplus
}
#endif

#endif
