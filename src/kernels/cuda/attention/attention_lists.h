/* How the host makes the work items of the Hopper attention kernel, and their lists of key tiles: attention_work.c. */
#ifndef SAT_ATTENTION_LISTS_H
#define SAT_ATTENTION_LISTS_H

#include "kernels/cuda/attention/attention_work.h"

typedef struct sat_attention_items {
    int64_t items; /* of each mask: mask h has item[h * items] and on, the longest first */
    sat_attention_item *item;
    int64_t listed; /* how many */
    sat_key_tile *tile;
} sat_attention_items;

/* Whether lists can be made of 64 rows by half tiles of `half_keys` keys. */
bool sat_lists_fit(const sat_mask *k, int64_t half_keys);

/* The words of sat_needs_words: `to` has [block_rows][half tiles]. */
int64_t sat_half_tiles(const sat_mask *k, int64_t half_keys);
void sat_fill_words(const sat_mask *k, int64_t block_rows, int64_t half_keys, uint64_t *to);

/* Upper bounds: items of a mask, and listed key tiles of all masks. */
int64_t sat_max_items(const sat_mask *k, int warpgroups);
double sat_max_listed(const sat_mask *k, int64_t stored_blocks, int64_t half_keys);

/* The work of CTAs of `warpgroups` and key tiles of twice `half_keys` keys. False: out of memory; free `to` in any
 * case. */
bool sat_items_make(const sat_mask *k, int64_t masks, int64_t stored_blocks, int warpgroups, int64_t half_keys,
                    sat_attention_items *to);
void sat_items_free(sat_attention_items *w);

#endif
