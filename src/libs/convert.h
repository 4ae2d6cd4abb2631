/* Indices as the CUDA libraries want them, made on the host once for a pattern. */
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

#endif
