/* The buffers that candidates of a race are tried on: operands made up for it, with the caller's dtypes, strides and
 * alignment, and the check of what a run leaves in the output. The caller's buffers are never touched. (Benchmarks are
 * elsewhere, in the top folder's bench/.)
 *
 * A probe says which kind of question is asked: of structure, by integers, or of precision, by random reals; a fill
 * case is one of several ways to fill operands for that question (ops/op.h). An expectation is what the check works out
 * beforehand. That of the structure probe needs the exact sums: a variant computes them, and they are proven before
 * they are believed.
 */
#ifndef SAT_BENCH_H
#define SAT_BENCH_H

#include "core/dynamic.h"
#include "core/masks.h"
#include "core/pattern.h"

typedef struct sat_bench {
    sat_context *ctx;
    const sat_op *op;
    const sat_device *device;
    const sat_problem *problem;
    const sat_pattern_view *pattern;  /* where the blocks are: what operands are made for, and checks go by */
    const sat_pattern_view *run_with; /* what runners are opened with: the same, unless indices change */
    const sat_checker *checker;
    int count;
    sat_operand operand[SAT_MAX_OPERANDS];
    sat_fill fills[SAT_MAX_OPERANDS];
    void *memory[SAT_MAX_OPERANDS], *pointer[SAT_MAX_OPERANDS];
    size_t bytes[SAT_MAX_OPERANDS];
    uint64_t digest[SAT_MAX_OPERANDS]; /* of an input, with all around it */
    void *before_memory, *before;      /* what the output holds before a run, where beta is not 0 */
    void *sums;                        /* structure probe: what the output is made of, in the compute type */
    size_t sums_bytes;
    void *flush_buffer; /* what a flush reads; NULL: it needs nothing */
    void *expectation;
    sat_probe probe;
    int fill_case; /* as in sat_op.set_fills */
    uint64_t seed;
    sat_special specials[SAT_MAX_SPECIALS]; /* planted in the inputs */
    int special_count;
    bool finite_padding; /* of the inputs that are made from now on */
    size_t held;         /* bytes of all of it, the expectation included */
    /* Indices that change: memory in place of the caller's, and the mask that is there now. */
    void *row_ptr, *col_idx;
    sat_dynamic source;
    sat_pattern_view changing;
    sat_pattern *mask;
} sat_bench;

/* SAT_OUT_OF_MEMORY when it would not fit into `limit`. Close accepts a failed one. */
sat_status sat_bench_open(sat_bench *s, sat_context *ctx, const sat_problem *p, const sat_pattern_view *a,
                          const sat_device *d, size_t limit);
void sat_bench_close(sat_bench *s);

/* Fills the operands and works out what a right result must show. Case 0 of precision is random reals; the operation
 * sets all others (sat_op.set_fills). */
sat_status sat_bench_fill(sat_bench *s, sat_probe probe, int fill_case, uint64_t seed);
/* Fills the operands alone: for a run that is not checked. */
sat_status sat_bench_make(sat_bench *s, sat_probe probe, int fill_case, uint64_t seed);
/* Where indices change: writes another mask over them. Fill afterwards. */
sat_status sat_bench_lay_mask(sat_bench *s, sat_mask_kind kind, uint64_t seed);
/* Moves the operands to other addresses, as much aligned as the problem says. Fill afterwards. */
void sat_bench_move(sat_bench *s);
/* Plants NaN and infinities in inputs of the structure probe; `special_count` says how many found a place. */
sat_status sat_bench_plant(sat_bench *s);
sat_status sat_bench_reset(sat_bench *s); /* poison, or the values before a run, back into the output */
void sat_bench_flush(sat_bench *s);       /* operands out of the cache */
/* Checks the output, that nothing beside it was written, and that the inputs are what they were. */
sat_status sat_bench_check(sat_bench *s, sat_finding *finding);

#endif
