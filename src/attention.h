/* Attention: which pairs of query and key are kept, how many, and where heads are stored. What its check, its schedules
 * and its kernels share. attention.c counts. */
#ifndef SAT_ATTENTION_H
#define SAT_ATTENTION_H

#include "variant.h"

/* Elements of a head of V and O. A problem that is not normalised may leave it to dim. */
SAT_BOTH static inline int64_t sat_value_dim(const sat_attention *t) { return t->value_dim ? t->value_dim : t->dim; }

enum { SAT_ATTENTION_MAX_DIM = 576 };

/* A problem without options: what a variant takes that knows none of them. */
static inline bool sat_attention_is_plain(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    bool one_dim = t->value_dim == 0 || t->value_dim == t->dim;
    return one_dim && t->dim % 8 == 0 && t->dim <= 512 && t->softcap == 0 && !t->sinks;
}

/* The mask of a normalised problem: plain values and pointers, so that a kernel can take it as an argument. */
typedef struct sat_mask {
    int64_t m, n, block_rows, block_cols;
    int64_t head_rows; /* block rows from one head's mask to the next; 0: one for all */
    bool full;         /* every block is stored */
    bool causal;
    int64_t window;
    const int64_t *row_ptr;
    const int32_t *col_idx;
    int64_t sequences;
    const int64_t *q_offsets, *kv_offsets;
} sat_mask;

static inline sat_mask sat_mask_of(const sat_problem *p, const sat_pattern_view *a) {
    int64_t each = p->m / a->block_rows + (p->m % a->block_rows != 0);
    sat_mask k = {.m = p->m,
                  .n = p->n,
                  .block_rows = a->block_rows,
                  .block_cols = a->block_cols,
                  .head_rows = (a->mask_rows ? a->mask_heads == 1 : a->grid_rows == each) ? 0 : each,
                  .full = !a->dynamic && a->stored_blocks == a->grid_rows * a->grid_cols,
                  .causal = p->attention.causal,
                  .window = p->attention.window,
                  .row_ptr = a->row_ptr,
                  .col_idx = a->col_idx,
                  .sequences = a->sequences,
                  .q_offsets = a->q_offsets,
                  .kv_offsets = a->kv_offsets};
    return k;
}

/* That of a problem with the pointers that the device reads. */
static inline sat_mask sat_device_mask_of(const sat_problem *p, const sat_pattern_view *a) {
    sat_mask k = sat_mask_of(p, a);
    k.row_ptr = a->device_row_ptr, k.col_idx = a->device_col_idx;
    k.q_offsets = a->device_q_offsets, k.kv_offsets = a->device_kv_offsets;
    return k;
}

/* Masks that differ, of one batch item: one, or one a head. */
static inline int64_t sat_mask_count(const sat_mask *k, const sat_problem *p) {
    return k->head_rows ? p->attention.heads : 1;
}

/* The last entry of a rising list of `count` + 1 that is not above x: the sequence that row x is in. Empty sequences
 * are passed over. */
SAT_BOTH static inline int64_t sat_sequence_of(const int64_t *offsets, int64_t count, int64_t x) {
    int64_t low = 0, high = count;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (offsets[middle] <= x) low = middle;
        else high = middle;
    }
    return low;
}

/* A range, `end` not included. */
typedef struct sat_range {
    int64_t begin, end;
} sat_range;

enum {
    SAT_ATTENTION_UNLIMITED = 1 << 29, /* a band without a limit */
    SAT_ATTENTION_MAX_LENGTH = 1 << 28 /* lengths stay below it on the GPU, so that sums with the above fit an int */
};

/* The band of causal and windowed masks: row i keeps keys of i + diagonal - behind to before i + diagonal + ahead,
 * where `diagonal` is the last key of the sequence minus its last query. */
typedef struct sat_band {
    int32_t ahead, behind;
} sat_band;

static inline sat_band sat_band_of(const sat_mask *k) {
    sat_band b = {SAT_ATTENTION_UNLIMITED, SAT_ATTENTION_UNLIMITED};
    if (k->window) b.ahead = (int32_t)k->window, b.behind = (int32_t)k->window - 1;
    if (k->causal) b.ahead = 1;
    return b;
}

/* Queries and keys of a packed sequence, or all of them where nothing is packed. */
typedef struct sat_sequence {
    sat_range q, k;
} sat_sequence;

static inline sat_sequence sat_sequence_at(const sat_mask *k, int64_t s) {
    sat_sequence x = {{0, k->m}, {0, k->n}};
    if (k->sequences)
        x.q.begin = k->q_offsets[s], x.q.end = k->q_offsets[s + 1], x.k.begin = k->kv_offsets[s],
        x.k.end = k->kv_offsets[s + 1];
    return x;
}

/* Every block is stored and nothing is packed: what a tile visits follows from its number, and needs no list. */
static inline bool sat_mask_is_regular(const sat_mask *k) { return k->full && !k->sequences; }

/* The keys that causal, window and sequences leave to a query; empty: end <= begin. Both ends rise with i within a
 * sequence. */
SAT_BOTH static inline sat_range sat_keys_of(const sat_mask *k, int64_t i) {
    int64_t q0 = 0, q1 = k->m, k0 = 0, k1 = k->n;
    if (k->sequences) {
        int64_t s = sat_sequence_of(k->q_offsets, k->sequences, i);
        q0 = k->q_offsets[s], q1 = k->q_offsets[s + 1], k0 = k->kv_offsets[s], k1 = k->kv_offsets[s + 1];
    }
    int64_t at = k0 + (i - q0) + (k1 - k0) - (q1 - q0); /* its diagonal key */
    sat_range r = {k0, k1};
    if (k->window && at - k->window + 1 > r.begin) r.begin = at - k->window + 1;
    if (k->window && at + k->window < r.end) r.end = at + k->window;
    if (k->causal && at + 1 < r.end) r.end = at + 1;
    return r;
}

/* The queries that may keep a key, the other way round. */
SAT_BOTH static inline sat_range sat_queries_of(const sat_mask *k, int64_t j) {
    int64_t q0 = 0, q1 = k->m, k0 = 0, k1 = k->n;
    if (k->sequences) {
        int64_t s = sat_sequence_of(k->kv_offsets, k->sequences, j);
        q0 = k->q_offsets[s], q1 = k->q_offsets[s + 1], k0 = k->kv_offsets[s], k1 = k->kv_offsets[s + 1];
    }
    int64_t at = q0 + (j - k0) - (k1 - k0) + (q1 - q0); /* the query whose diagonal key it is */
    sat_range r = {q0, q1};
    if (k->causal && at > r.begin) r.begin = at;
    if (k->window && at - k->window + 1 > r.begin) r.begin = at - k->window + 1;
    if (k->window && at + k->window < r.end) r.end = at + k->window;
    return r;
}

SAT_BOTH static inline int64_t sat_mask_row(const sat_mask *k, int64_t head, int64_t i) {
    return head * k->head_rows + i / k->block_rows;
}

/* The first stored block of a block row whose column is not below `column`. */
SAT_BOTH static inline int64_t sat_mask_find(const sat_mask *k, int64_t row, int64_t column) {
    int64_t low = k->row_ptr[row], high = k->row_ptr[row + 1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (k->col_idx[middle] < column) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Is the block of (i, j) stored? Ranges are not looked at. */
SAT_BOTH static inline bool sat_mask_stores(const sat_mask *k, int64_t head, int64_t i, int64_t j) {
    if (k->full) return true;
    int64_t row = sat_mask_row(k, head, i), column = j / k->block_cols, at = sat_mask_find(k, row, column);
    return at < k->row_ptr[row + 1] && k->col_idx[at] == column;
}

#ifdef __cplusplus
extern "C" {
#endif
/* Block rows from the masks of one batch item to those of the next; 0: all items share them. */
int64_t sat_item_rows(const sat_pattern_view *a);
/* The masks of a batch item, on the host. */
sat_mask sat_mask_of_item(const sat_problem *p, const sat_pattern_view *a, int64_t b);
/* Pairs that are kept, over all heads and the batch: exactly, or where indices change as many as are expected. */
double sat_pairs(const sat_problem *p, const sat_pattern_view *a);
/* Operations on those pairs; and bytes: what must move at least once. */
double sat_attention_flops(const sat_problem *p, const sat_pattern_view *a);
double sat_attention_bytes(const sat_problem *p, const sat_pattern_view *a);
#ifdef __cplusplus
}
#endif

/* The place of the sinks among a variant's operands; that of their gradient is the next. */
SAT_BOTH static inline int sat_sinks_at(const sat_problem *p) { return p->op == SAT_ATTENTION ? 5 : 9; }

/* The sink of a head; -inf: there is none. */
SAT_BOTH static inline double sat_sink_of(const sat_problem *p, void *const *operands, int64_t head) {
    return p->attention.sinks ? (double)((const float *)operands[sat_sinks_at(p)])[head] : -(double)INFINITY;
}

/* Element (b, h, i, 0). */
SAT_BOTH static inline int64_t sat_heads_at(const sat_heads *s, int64_t b, int64_t h, int64_t i) {
    return b * s->batch_stride + h * s->head_stride + i * s->row_stride;
}

#ifdef __CUDACC__
/* ---- the online softmax on the device: weights are powers of two ---- */

__device__ __forceinline__ float attention_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The factor by which sums relative to the row maximum `from` become relative to `to`; c is scale*log2(e). Each product
 * is rounded as it is beside scores, so that the two cancel however large they are. */
__device__ __forceinline__ float attention_rescale(float from, float to, float c) {
    return to == -INFINITY ? 1 : from == -INFINITY ? 0 : attention_exp2(__fmul_rn(from, c) - __fmul_rn(to, c));
}
#endif

#endif
