/* Attention: how many pairs of query and key are kept, and what operations and bytes that is. */
#include "attention.h"

static int64_t sat_overlap(int64_t a0, int64_t a1, int64_t b0, int64_t b1) {
    return sat_max(0, sat_min(a1, b1) - sat_max(a0, b0));
}

/* Pairs that one mask keeps of rows i0 to i1, which share a block row. */
static int64_t sat_pairs_of_rows(const sat_mask *k, int64_t head, int64_t i0, int64_t i1) {
    int64_t row = sat_mask_row(k, head, i0), pairs = 0;
    for (int64_t i = i0; i < i1; i++) {
        sat_range r = sat_keys_of(k, i);
        if (r.end <= r.begin) continue;
        if (k->full) pairs += r.end - r.begin;
        else
            for (int64_t t = sat_mask_find(k, row, r.begin / k->block_cols); t < k->row_ptr[row + 1]; t++) {
                int64_t from = k->col_idx[t] * k->block_cols;
                if (from >= r.end) break;
                pairs += sat_overlap(from, from + k->block_cols, r.begin, r.end);
            }
    }
    return pairs;
}

int64_t sat_item_rows(const sat_pattern_view *a) { return a->mask_batch > 1 ? a->grid_rows / a->mask_batch : 0; }

sat_mask sat_mask_of_item(const sat_problem *p, const sat_pattern_view *a, int64_t b) {
    sat_mask k = sat_mask_of(p, a);
    if (k.row_ptr) k.row_ptr += b * sat_item_rows(a);
    return k;
}

/* Of one mask, or of all heads' where they have their own. */
static double sat_pairs_of_item(const sat_mask *k, int64_t masks) {
    double pairs = 0;
    for (int64_t h = 0; h < masks; h++)
        for (int64_t i = 0; i < k->m; i += k->block_rows)
            pairs += (double)sat_pairs_of_rows(k, h, i, sat_min(i + k->block_rows, k->m));
    return pairs;
}

double sat_pairs(const sat_problem *p, const sat_pattern_view *a) {
    sat_mask k = sat_mask_of(p, a);
    int64_t items = sat_item_rows(a) ? p->batch : 1, masks = sat_mask_count(&k, p);
    double pairs = 0, each = (double)p->batch * (double)p->attention.heads / (double)(items * masks); /* alike */
    if (a->dynamic) {
        k.full = true;
        return a->density * sat_pairs_of_item(&k, 1) * (double)p->batch * (double)p->attention.heads;
    }
    if (!k.causal && !k.window && !k.sequences && a->rows == p->m) return (double)a->stored_elements * each;
    for (int64_t b = 0; b < items; b++) {
        k = sat_mask_of_item(p, a, b);
        pairs += sat_pairs_of_item(&k, masks);
    }
    return pairs * each;
}

/* Q*K^T, dQ and dK are sums over, or of, dim elements; the products with V, and dV, of those of a value. */
double sat_attention_flops(const sat_problem *p, const sat_pattern_view *a) {
    double dim = (double)p->attention.dim, value_dim = (double)sat_value_dim(&p->attention);
    return (p->op == SAT_ATTENTION ? 2 * dim + 2 * value_dim : 6 * dim + 4 * value_dim) * sat_pairs(p, a);
}

double sat_attention_bytes(const sat_problem *p, const sat_pattern_view *a) {
    const sat_attention *t = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    double size = (double)sat_dtype_size(p->a_dtype) * (double)(t->dim + sat_value_dim(t)), batch = (double)p->batch;
    double q = (double)(t->heads * p->m) * batch, kv = (double)(t->kv_heads * p->n) * batch;
    double index = 4.0 * (double)a->stored_blocks + 8.0 * (double)a->grid_rows;
    return index + size * (back ? 2 * q + 2 * kv : q + kv) + (back || t->lse ? 4 * q : 0);
}
