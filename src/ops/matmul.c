/* The matmul C = act(alpha*op(A)*B + beta*C + bias), A block-sparse: its operands and counts. Its check is beside. */
#include "ops/check.h"

extern const sat_checker sat_matmul_check;

static sat_status check_enums(const sat_matmul *m) {
    if (m->transpose != SAT_NO_TRANSPOSE && m->transpose != SAT_TRANSPOSE)
        return sat_fail(SAT_BAD_ENUM, "transpose is %d; expected SAT_NO_TRANSPOSE or SAT_TRANSPOSE", (int)m->transpose);
    if (m->bias != SAT_BIAS_NONE && m->bias != SAT_BIAS_ROW)
        return sat_fail(SAT_BAD_ENUM, "bias is %d; expected SAT_BIAS_NONE or SAT_BIAS_ROW", (int)m->bias);
    if ((int)m->activation < SAT_ACT_NONE || m->activation > SAT_ACT_SILU)
        return sat_fail(SAT_BAD_ENUM, "activation is %d; expected one of SAT_ACT_*", (int)m->activation);
    return SAT_OK;
}

static bool same(const sat_problem *x, const sat_problem *y) {
    return x->matmul.transpose == y->matmul.transpose && x->matmul.bias == y->matmul.bias &&
           x->matmul.activation == y->matmul.activation;
}

static sat_status normalise(sat_problem *p, const sat_pattern_view *a) {
    bool t = p->matmul.transpose == SAT_TRANSPOSE;
    SAT_TRY(sat_normalise_common(p));
    SAT_TRY(check_enums(&p->matmul));
    SAT_TRY(sat_normalise_size(&p->m, t ? a->cols : a->rows, "m"));
    SAT_TRY(sat_normalise_size(&p->k, t ? a->rows : a->cols, "k"));
    if (p->n < 0) return sat_fail(SAT_BAD_SIZE, "n is %lld; expected 0 or more", (long long)p->n);
    SAT_TRY(sat_normalise_values(&p->a, a, p->batch, false, "a"));
    SAT_TRY(sat_normalise_input(&p->b, p, p->k, p->n, "b"));
    SAT_TRY(sat_normalise_layout(&p->c, p->m, p->n, p->batch, true, "c"));
    SAT_TRY(sat_normalise_align(&p->a_align, p->a_dtype, "a_align"));
    SAT_TRY(sat_normalise_align(&p->b_align, p->b_dtype, "b_align"));
    return sat_normalise_align(&p->c_align, p->c_dtype, "c_align");
}

static int operands(const sat_problem *p, const sat_pattern_view *a, sat_operand *out) {
    out[0] = (sat_operand){.name = "values",
                           .dtype = p->a_dtype,
                           .values = true,
                           .rows = a->stored_blocks * a->block_rows,
                           .cols = a->block_cols,
                           .layout = p->a,
                           .align = p->a_align};
    out[1] = (sat_operand){
        .name = "b", .dtype = p->b_dtype, .rows = p->k, .cols = p->n, .layout = p->b, .align = p->b_align};
    out[2] = (sat_operand){.name = "c",
                           .dtype = p->c_dtype,
                           .output = true,
                           .rows = p->m,
                           .cols = p->n,
                           .layout = p->c,
                           .align = p->c_align};
    out[3] = (sat_operand){.name = "bias",
                           .dtype = p->c_dtype,
                           .rows = p->m,
                           .cols = 1,
                           .layout = {.row_stride = 1, .col_stride = 1},
                           .align = (uint32_t)sat_dtype_size(p->c_dtype)};
    int count = p->matmul.bias == SAT_BIAS_NONE ? 3 : 4;
    for (int i = 0; i < count; i++) {
        out[i].batch = p->batch;
        out[i].span = sat_layout_span(&out[i].layout, out[i].rows, out[i].cols, out[i].batch);
    }
    return count;
}

static sat_problem sums_problem(const sat_problem *p, const sat_pattern_view *a) {
    sat_problem q = *p;
    (void)a;
    q.c_dtype = p->compute_dtype, q.c_align = 64;
    q.alpha = 1, q.beta = 0, q.matmul.bias = SAT_BIAS_NONE, q.matmul.activation = SAT_ACT_NONE,
    q.flags &= SAT_ALLOW_TF32;
    q.c = (sat_layout){.row_stride = sat_max(p->n, 1), .col_stride = 1, .batch_stride = p->batch > 1 ? p->m * p->n : 0};
    return q;
}

static void set_fills(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_fill *fills) {
    bool t = p->matmul.transpose == SAT_TRANSPOSE; /* products in the heaviest row */
    int64_t depth = t ? a->max_col * a->block_rows : a->max_row * a->block_cols;
    sat_exact_fills(p, depth, fill_case, &fills[0], &fills[1], &fills[2]);
    fills[3] = fills[2];
}

/* A random element of the stored blocks: its place among the values, and the row of B that it multiplies. -1: drew a
 * block that no row has. */
static int64_t draw_element(const sat_rows *r, int64_t stored, uint64_t x, int64_t *k) {
    int64_t t = (int64_t)(x % (uint64_t)stored), k0 = r->col[t] * r->bc;
    int64_t row = sat_row_of_block(r->ptr, r->end, r->count, t), i0 = row * r->br;
    if (row < 0) return -1;
    int64_t i = (int64_t)(sat_mix(x + 1) % (uint64_t)sat_min(r->br, r->m - i0));
    int64_t j = (int64_t)(sat_mix(x + 2) % (uint64_t)sat_min(r->bc, r->k - k0));
    *k = k0 + j;
    return sat_block_of(r, t) * r->block_elements + i * r->row_step + j * r->col_step;
}

/* In B, in rows that stored blocks multiply; the first, an infinity, by a stored zero if there is one. */
static int specials(const sat_problem *p, const sat_pattern_view *a, const sat_fill *fills, uint64_t seed,
                    sat_special *out) {
    enum { TRIES = 4096 };
    sat_operand o[SAT_MAX_OPERANDS];
    sat_rows r = sat_op_rows(p, a);
    int64_t k;
    int count = 0;
    (void)operands(p, a, o);
    if (a->stored_blocks == 0 || !sat_specials_show(p, o, 2)) return 0;
    for (uint64_t i = 0; i < TRIES && count < SAT_MAX_SPECIALS; i++) {
        uint64_t x = sat_mix(seed + i);
        int64_t at = draw_element(&r, a->stored_blocks, x, &k), j = (int64_t)(sat_mix(x + 3) % (uint64_t)p->n);
        if (at < 0) continue;
        bool zero = sat_made_up(&fills[0], sat_operand_seed(seed, 0), at) == 0, late = i >= TRIES / 2;
        /* The others stay out of its column, where they would hide it, if there are more columns. */
        if (late || (count == 0 ? zero : j != out[0].col)) count = sat_special_add(out, count, 1, k, j);
    }
    return count;
}

/* A bias that the problem does not speak of is not left out in silence. */
static sat_status from_call(sat_problem *p, void *const *operands) {
    if (!operands[3] || p->matmul.bias != SAT_BIAS_NONE) return SAT_OK;
    return sat_fail(SAT_UNSUPPORTED, "bias is %p; expected NULL where the problem's bias is SAT_BIAS_NONE",
                    operands[3]);
}

static bool needs_columns(const sat_problem *p) { return p->matmul.transpose == SAT_TRANSPOSE; }

const sat_op sat_op_matmul = {
    .id = SAT_MATMUL,
    .name = "matmul",
    .part_bytes = sizeof(sat_matmul),
    .same = same,
    .output = 2,
    .names = (const char *const[]){"values", "b", "c", "bias", NULL},
    .aligns = "abc-",
    .normalise = normalise,
    .operands = operands,
    .flops = sat_flops,
    .bytes = sat_bytes,
    .set_key_fields = sat_set_product_key_fields,
    .takes_dynamic = true,
    .needs_columns = needs_columns,
    .from_call = from_call,
    .sums_problem = sums_problem,
    .set_fills = set_fills,
    .specials = specials,
    .host_checker = &sat_matmul_check,
};
