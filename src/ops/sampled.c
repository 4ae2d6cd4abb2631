/* The sampled product S = alpha*(X*Y at the stored blocks) + beta*S: its operands and counts. Its check is beside. */
#include "ops/op.h"

extern const sat_checker sat_sampled_check;

static sat_status normalise(sat_problem *p, const sat_pattern_view *a) {
    SAT_TRY(sat_normalise_common(p));
    if (p->transpose != SAT_NO_TRANSPOSE)
        return sat_fail(SAT_UNSUPPORTED,
                        "transpose is SAT_TRANSPOSE; a sampled product swaps X's or Y's strides instead");
    if (p->bias != SAT_BIAS_NONE || p->activation != SAT_ACT_NONE)
        return sat_fail(SAT_UNSUPPORTED, "bias or activation given; a sampled product has neither");
    SAT_TRY(sat_normalise_size(&p->m, a->rows, "m"));
    SAT_TRY(sat_normalise_size(&p->n, a->cols, "n"));
    if (p->k < 0) return sat_fail(SAT_BAD_SIZE, "k is %lld; expected 0 or more", (long long)p->k);
    p->flags &= ~(uint32_t)SAT_FIXED_VALUES; /* the values are the output here */
    SAT_TRY(sat_normalise_input(&p->a, p, p->m, p->k, "a"));
    SAT_TRY(sat_normalise_input(&p->b, p, p->k, p->n, "b"));
    SAT_TRY(sat_normalise_values(&p->c, a, p->batch, true, "c"));
    SAT_TRY(sat_normalise_align(&p->a_align, p->a_dtype, "a_align"));
    SAT_TRY(sat_normalise_align(&p->b_align, p->b_dtype, "b_align"));
    return sat_normalise_align(&p->c_align, p->c_dtype, "c_align");
}

static int operands(const sat_problem *p, const sat_pattern_view *a, sat_operand *out) {
    out[0] = (sat_operand){
        .name = "x", .dtype = p->a_dtype, .rows = p->m, .cols = p->k, .layout = p->a, .align = p->a_align};
    out[1] = (sat_operand){
        .name = "y", .dtype = p->b_dtype, .rows = p->k, .cols = p->n, .layout = p->b, .align = p->b_align};
    out[2] = (sat_operand){.name = "values",
                           .dtype = p->c_dtype,
                           .output = true,
                           .values = true,
                           .rows = a->stored_blocks * a->block_rows,
                           .cols = a->block_cols,
                           .layout = p->c,
                           .align = p->c_align};
    for (int i = 0; i < 3; i++) {
        out[i].batch = p->batch;
        out[i].span = sat_layout_span(&out[i].layout, out[i].rows, out[i].cols, out[i].batch);
    }
    return 3;
}

static sat_problem sums(const sat_problem *p, const sat_pattern_view *a) {
    sat_problem q = *p;
    q.c_dtype = p->compute_dtype, q.c_align = 64, q.alpha = 1, q.beta = 0, q.flags &= SAT_ALLOW_TF32;
    q.c.batch_stride = p->batch > 1 ? a->stored_blocks * a->block_rows * a->block_cols : 0;
    return q;
}

static void exact(const sat_problem *p, const sat_pattern_view *a, int round, sat_fill *fills) {
    (void)a;
    sat_exact_fills(p, p->k, round, &fills[0], &fills[1], &fills[2]);
}

static int flip(const sat_problem *p) {
    (void)p;
    return 0;
}

const sat_op sat_op_sampled = {
    .id = SAT_SAMPLED,
    .name = "sampled",
    .output = 2,
    .names = (const char *const[]){"x", "y", "values", NULL},
    .aligns = "abc",
    .normalise = normalise,
    .operands = operands,
    .flops = sat_flops,
    .bytes = sat_bytes,
    .flip = flip,
    .sums = sums,
    .exact = exact,
    .host_checker = &sat_sampled_check,
};
