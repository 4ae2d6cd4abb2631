/* The sampled product S = alpha*(X*Y at the stored blocks) + beta*S: its operands and counts. Its check is beside. */
#include "ops/check.h"

extern const sat_checker sat_sampled_check;

static sat_status normalise(sat_problem *p, const sat_pattern_view *a) {
    SAT_TRY(sat_normalise_common(p));
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

static sat_problem sums_problem(const sat_problem *p, const sat_pattern_view *a) {
    sat_problem q = *p;
    q.c_dtype = p->compute_dtype, q.c_align = 64, q.alpha = 1, q.beta = 0, q.flags &= SAT_ALLOW_TF32;
    q.c.batch_stride = p->batch > 1 ? a->stored_blocks * a->block_rows * a->block_cols : 0;
    return q;
}

static void set_fills(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_fill *fills) {
    (void)a;
    sat_exact_fills(p, p->k, fill_case, &fills[0], &fills[1], &fills[2]);
}

/* A random element of the stored blocks, by its row and column. False: drew a block that no row has. */
static bool draw_element(const sat_pattern_view *a, uint64_t x, int64_t *row, int64_t *col) {
    int64_t t = (int64_t)(x % (uint64_t)a->stored_blocks);
    int64_t in = sat_row_of_block(a->row_ptr, a->row_end, a->grid_rows, t);
    int64_t i0 = in * a->block_rows, j0 = a->col_idx[t] * a->block_cols;
    if (in < 0) return false;
    *row = i0 + (int64_t)(sat_mix(x + 1) % (uint64_t)sat_min(a->block_rows, a->rows - i0));
    *col = j0 + (int64_t)(sat_mix(x + 2) % (uint64_t)sat_min(a->block_cols, a->cols - j0));
    return true;
}

/* In rows of X and columns of Y that stored blocks have. The first, an infinity of X, meets a zero of Y, and the second
 * one of Y a zero of X, if there are such. The others stay out of their rows and columns, where they would hide them,
 * if there are more. */
static int specials(const sat_problem *p, const sat_pattern_view *a, const sat_fill *fills, uint64_t seed,
                    sat_special *out) {
    enum { TRIES = 4096 };
    sat_operand o[SAT_MAX_OPERANDS];
    int64_t row, col, rows[SAT_MAX_SPECIALS] = {0}, cols[SAT_MAX_SPECIALS] = {0};
    int count = 0;
    (void)operands(p, a, o);
    if (a->stored_blocks == 0 || !sat_specials_show(p, o, 2)) return 0;
    for (uint64_t i = 0; i < TRIES && count < SAT_MAX_SPECIALS; i++) {
        uint64_t x = sat_mix(seed + i);
        int64_t k = (int64_t)(sat_mix(x + 3) % (uint64_t)p->k);
        int into = count % 2, other = 1 - into; /* the operand that it goes into, and the one that it meets */
        if (!draw_element(a, x, &row, &col)) continue;
        int64_t met = other ? sat_operand_at(&o[1], 0, k, col) : sat_operand_at(&o[0], 0, row, k);
        bool zero = sat_made_up(&fills[other], sat_operand_seed(seed, other), met) == 0, apart = true;
        for (int j = 0; j < count && j < 2; j++) apart = apart && row != rows[j] && col != cols[j];
        if (i < TRIES / 2 && (!apart || (count < 2 && !zero))) continue;
        rows[count] = row, cols[count] = col;
        count = sat_special_add(out, count, into, into ? k : row, into ? col : k);
    }
    return count;
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
    .set_key_fields = sat_set_product_key_fields,
    .takes_dynamic = true,
    .sums_problem = sums_problem,
    .set_fills = set_fills,
    .specials = specials,
    .host_checker = &sat_sampled_check,
};
