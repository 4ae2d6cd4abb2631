/* Indices as libraries want them, made on the host once for a pattern. */
#ifndef SAT_CONVERT_H
#define SAT_CONVERT_H

#include "variant.h"

/* The block row of each stored block, in the order of op(A)'s rows. */
void sat_convert_rows(const sat_rows *r, int32_t *rows);

/* Row pointers of 32 bits, for fewer than 2^31 blocks; count + 1 of them. */
void sat_convert_pointers(const sat_rows *r, int32_t *pointers);

int64_t sat_convert_widest(const sat_rows *r); /* blocks of the heaviest row */

/* Rounds: round t takes block t of every row that has so many, so no row twice and each stored block once.
 * first[depth + 1]: where a round begins, depth being the heaviest row's blocks; at[] and row[]: each entry's place
 * in the order of op(A)'s rows, and its block row. */
void sat_convert_rounds(const sat_rows *r, int64_t depth, int64_t *first, int32_t *at, int32_t *row);

/* The stored elements of op(A) as CSR, without those beyond the matrix: ptr[m + 1], and for each entry its column and
 * where its value is stored. `from` may be NULL. For fewer than 2^31 elements, with those beyond the matrix. */
void sat_convert_csr(const sat_rows *r, int32_t *ptr, int32_t *col, int32_t *from);

/* The entries are in the order in which the values are stored, and none is left out. */
bool sat_convert_csr_in_order(const sat_rows *r);

/* Blocks so thin that their elements one by one may be the faster form. */
static inline bool sat_convert_csr_thin(const sat_pattern_view *a, int64_t side) {
    return sat_min(a->block_rows, a->block_cols) < side;
}

#endif
