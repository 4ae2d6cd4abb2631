/* One case of `check`: a random problem, the same for the same seed, variant and number. */
#ifndef CLI_CHECK_CASE_H
#define CLI_CHECK_CASE_H

#include "../blocks.h"
#include "sparse_autotune.h"

/* Where operands are in memory that ends, on both sides, in pages that nothing may touch. */
typedef enum place { PLACE_MIDDLE = 0, PLACE_END = 1, PLACE_START = 2 } place;

/* Of a case whose indices change (check_mask.h). */
typedef struct check_mask {
    bool used;
    int64_t capacity;
    double density;             /* the hint */
    int64_t batch, heads;       /* attention: items and heads with a mask of their own, 1: all share it; else 0 */
    int64_t row_stride;         /* padded: raw_ptr has the counts of rows; 0: compressed */
    int64_t *raw_ptr, *raw_col; /* what a run is given: grid_rows + 1, raw_count; owned */
    int64_t raw_count;
    sat_status fault;        /* of these */
    void *row_ptr, *col_idx; /* where the device has them; NULL: nowhere yet */
} check_mask;

typedef struct check_case {
    uint64_t seed; /* of the data */
    blocks blocks; /* owned */
    sat_index_type index_type;
    check_mask mask;
    sat_problem problem; /* every size and stride filled in, but those of block values */
    place place;
    bool faults;      /* offsets of groups break their rules in some runs */
    bool duplicate;   /* the second run uses a copy of the plan */
    int64_t poisoned; /* a block row of the dense operand that is NaN: results without it must not notice; -1: none.
                         Products of groups: what one group multiplies */
} check_case;

/* `attempt` 0 is wild; later ones are ever tamer and closer to the sizes of the variant's tile, so that a variant that
 * takes little gets its cases too. `sides`: sizes up to about that, all alike; 0: mostly small ones. */
bool case_make(const sat_variant *v, uint64_t seed, int64_t number, int attempt, int64_t sides, check_case *c);
void case_free(check_case *c);
void case_text(const check_case *c, char *out, size_t capacity);

/* Blocks that values have room for. */
static inline int64_t case_room(const check_case *c) { return c->mask.used ? c->mask.capacity : c->blocks.count; }

#endif
