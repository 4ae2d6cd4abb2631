/* What core knows of an operation: its operands, sizes, and how its results are checked. One file an operation. */
#ifndef SAT_OP_H
#define SAT_OP_H

#include "core/status.h"

/* One operand of a normalised problem. Element (i, j) of batch item z is base[z*batch + i*row + j*col]. */
typedef struct sat_operand {
    const char *name; /* as messages call it */
    sat_dtype dtype;
    bool output;
    bool values; /* block values: rows = stored blocks * block rows, cols = block columns */
    int64_t rows, cols, batch;
    sat_layout layout;
    uint32_t align;
    int64_t span; /* elements from the first to just past the last, over the batch */
} sat_operand;

/* A run on made-up operands, to be checked. */
typedef struct sat_trial {
    const sat_device *device;
    const sat_problem *problem;
    const sat_pattern_view *pattern;
    void *const *operands;
    const void *before; /* what the output held before the run; NULL where beta is 0 */
    bool flipped;       /* the operand `flip` has changed its signs since expect() */
} sat_trial;

typedef enum sat_probe {
    SAT_PROBE_PANELS =
        0, /* random vectors against panels: sees every element; wants no activation (or positive fill) */
    SAT_PROBE_SAMPLES = 1 /* some whole rows and columns, element by element: sees what an activation does */
} sat_probe;

typedef struct sat_finding {
    bool ok;
    double error;    /* largest |difference| over the magnitude of what was summed */
    char where[160]; /* where and how much, when not ok */
} sat_finding;

/* How a backend checks one operation's results, in higher precision than the variants compute. */
typedef struct sat_checker {
    size_t (*bytes)(const sat_problem *p, const sat_pattern_view *a, sat_probe probe); /* memory an expectation takes */
    /* Once per race: what any right result must show, and the rounding that it may. */
    sat_status (*expect)(const sat_trial *t, sat_probe probe, uint64_t seed, void **expectation);
    /* Per run: reads the output only. */
    sat_status (*compare)(const sat_trial *t, const void *expectation, sat_finding *finding);
    void (*free)(void *expectation);
} sat_checker;

typedef struct sat_op {
    sat_operation id;
    const char *name;
    int output; /* which operand is written */
    /* Checks a caller's problem against the pattern and fills in every size, stride, dtype and alignment. */
    sat_status (*normalise)(sat_problem *p, const sat_pattern_view *a);
    int (*operands)(const sat_problem *p, const sat_pattern_view *a, sat_operand *out); /* how many */
    double (*flops)(const sat_problem *p, const sat_pattern_view *a);
    double (*bytes)(const sat_problem *p, const sat_pattern_view *a);
    int (*flip)(const sat_problem *p); /* the operand to change the sign of for the last check: a linear one */
    const sat_checker *host_checker;
} sat_op;

extern const sat_op sat_op_matmul, sat_op_sampled;

const sat_op *sat_op_find(sat_operation id); /* NULL if unknown */

/* Shared by the operations. */
sat_status sat_normalise_common(sat_problem *p); /* enums, dtypes, batch, alpha, beta */
sat_status sat_normalise_layout(sat_layout *l, int64_t rows, int64_t cols, int64_t batch, bool output,
                                const char *name);
sat_status sat_normalise_values(sat_layout *l, const sat_pattern_view *a, int64_t batch, bool output, const char *name);
sat_status sat_normalise_align(uint32_t *align, sat_dtype t, const char *name);
int64_t sat_layout_span(const sat_layout *l, int64_t rows, int64_t cols, int64_t batch); /* -1: overflows */

#endif
