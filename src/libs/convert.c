// Index conversions for the CUDA libraries; see convert.h. Plain C, so that any machine can test it.

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
