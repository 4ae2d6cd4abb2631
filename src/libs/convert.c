// Index conversions for libraries; see convert.h. Plain C, so that any machine can test it.

#include "libs/convert.h"

void sat_convert_rows(const sat_rows *r, int32_t *rows) {
    for (int64_t g = 0; g < r->count; g++)
        for (int64_t t = r->ptr[g]; t < r->ptr[g + 1]; t++) rows[t] = (int32_t)g;
}

void sat_convert_pointers(const sat_rows *r, int32_t *pointers) {
    for (int64_t g = 0; g <= r->count; g++) pointers[g] = (int32_t)r->ptr[g];
}

int64_t sat_convert_widest(const sat_rows *r) {
    int64_t widest = 0;
    for (int64_t g = 0; g < r->count; g++) widest = sat_max(widest, r->ptr[g + 1] - r->ptr[g]);
    return widest;
}

void sat_convert_rounds(const sat_rows *r, int64_t depth, int64_t *first, int32_t *at, int32_t *row) {
    memset(first, 0, (size_t)(depth + 1) * sizeof *first);
    for (int64_t g = 0; g < r->count; g++)
        for (int64_t t = 0; t < r->ptr[g + 1] - r->ptr[g]; t++) first[t + 1]++;
    for (int64_t t = 0; t < depth; t++) first[t + 1] += first[t];
    for (int64_t g = 0; g < r->count; g++)
        for (int64_t t = r->ptr[g]; t < r->ptr[g + 1]; t++) {
            int64_t entry = first[t - r->ptr[g]]++; /* moves on to where the next round begins */
            at[entry] = (int32_t)t, row[entry] = (int32_t)g;
        }
    for (int64_t t = depth; t > 0; t--) first[t] = first[t - 1];
    first[0] = 0;
}

void sat_convert_csr(const sat_rows *r, int32_t *ptr, int32_t *col, int32_t *from) {
    int64_t at = 0;
    for (int64_t g = 0; g < r->count; g++)
        for (int64_t i = 0, height = sat_min(r->br, r->m - g * r->br); i < height; i++) {
            ptr[g * r->br + i] = (int32_t)at;
            for (int64_t t = r->ptr[g]; t < r->ptr[g + 1]; t++) {
                int64_t k0 = r->col[t] * r->bc, depth = sat_min(r->bc, r->k - k0);
                int64_t place = sat_block_of(r, t) * r->block_elements + i * r->row_step;
                for (int64_t k = 0; k < depth; k++, at++) {
                    col[at] = (int32_t)(k0 + k);
                    if (from) from[at] = (int32_t)(place + k * r->col_step);
                }
            }
        }
    ptr[r->m] = (int32_t)at;
}

bool sat_convert_csr_in_order(const sat_rows *r) { return !r->block && r->br == 1 && r->k % r->bc == 0; }
