/* Buckets only decide which timings speak for which problem, never what is valid: `supports` sees the exact call. */
#include "core/key.h"

#include <math.h>
#include <stdio.h>

#include "ops/op.h"

int64_t sat_bucket_size(int64_t x) {
    if (x <= 8) return x;
    int64_t step = 1;
    while (x / step >= 8) step *= 2;
    int64_t low = x / step * step, up = x - low;
    return 2 * up >= step && low <= INT64_MAX - step ? low + step : low;
}

double sat_bucket_ratio(double x) { return x > 0 ? exp2(round(2 * log2(x)) / 2) : 0; }

static const char *layout_name(const sat_operand *o) {
    const sat_layout *l = &o->layout;
    if (o->values) return "blocks";
    if (l->col_stride == 1 || o->cols <= 1) return l->row_stride == o->cols || o->rows <= 1 ? "row" : "row+gap";
    if (l->row_stride == 1 || o->rows <= 1) return l->col_stride == o->rows ? "col" : "col+gap";
    return "any";
}

static unsigned alignment(uint32_t bytes, unsigned most) { return bytes > most ? most : bytes; }

static void format_options(char *to, size_t size, const sat_problem *p, const sat_pattern_view *a,
                           const sat_key_fields *fields) {
    snprintf(to, size, "beta=%d %s%s%s%s%s%s", p->beta != 0, fields->epilogue, p->flags & SAT_ALLOW_TF32 ? " tf32" : "",
             p->flags & SAT_ALLOW_NONDETERMINISTIC ? " nondeterministic" : "",
             p->flags & SAT_ALLOW_DENSE ? " dense" : "", p->flags & SAT_FIXED_VALUES ? " fixed" : "",
             a->dynamic ? " dynamic" : "");
}

void sat_key_format(char key[SAT_KEY_SIZE], const sat_problem *p, const sat_pattern_view *a, sat_measure m,
                    int threads) {
    const sat_op *op = sat_op_find(p->op);
    char options[96];
    sat_key_fields fields;
    sat_operand o[SAT_MAX_OPERANDS];
    /* Alignment counts up to a line of any cache of a device. No variant on the host's threads asks for it, and what an
     * allocator gives is chance: each alignment would be another key and another race. */
    unsigned most = threads > 0 ? 1 : 128;
    op->operands(p, a, o);
    op->set_key_fields(p, a, false, &fields);
    format_options(options, sizeof options, p, a, &fields);
    snprintf(key, SAT_KEY_SIZE,
             "op=%s m=%lld n=%lld k=%lld block=%lldx%lld batch=%lld a=%s b=%s c=%s %s layout=%s,%s,%s shared=%d%d "
             "align=%u,%u,%u %s%s density=%.3g skew=%.3g overlap=%.3g measure=%s threads=%d",
             op->name, (long long)sat_bucket_size(p->m), (long long)sat_bucket_size(p->n),
             (long long)sat_bucket_size(p->k), (long long)a->block_rows, (long long)a->block_cols,
             (long long)sat_bucket_size(p->batch), sat_dtype_name(p->a_dtype), sat_dtype_name(p->b_dtype),
             sat_dtype_name(p->c_dtype), fields.form, layout_name(&o[0]), layout_name(&o[1]), layout_name(&o[2]),
             p->a.batch_stride == 0, p->b.batch_stride == 0, alignment(p->a_align, most), alignment(p->b_align, most),
             alignment(p->c_align, most), options, fields.more, sat_bucket_ratio(a->density),
             sat_bucket_ratio(fields.skew), round(a->overlap * 8) / 8, m == SAT_MEASURE_WARM ? "warm" : "cold",
             threads);
}

/* 0 and 1 are cases of their own in many kernels; what is right for one other number is right for all. */
static char scalar_case(double x) { return x == 0 ? '0' : x == 1 ? '1' : 'x'; }

sat_problem sat_representative_scalars(const sat_problem *p) {
    sat_problem other = *p;
    if (scalar_case(p->alpha) == 'x') other.alpha = -1.5;
    if (scalar_case(p->beta) == 'x') other.beta = 0.75;
    return other;
}

void sat_full_key_format(char full_key[SAT_KEY_SIZE], const sat_problem *p, const sat_pattern_view *a) {
    const sat_op *op = sat_op_find(p->op);
    char options[96];
    sat_key_fields fields;
    op->set_key_fields(p, a, true, &fields);
    format_options(options, sizeof options, p, a, &fields);
    snprintf(full_key, SAT_KEY_SIZE,
             "op=%s m=%lld n=%lld k=%lld block=%lldx%lld batch=%lld a=%s b=%s c=%s %s%s align=%u,%u,%u %s "
             "scalars=%c%c blocks=%lld skew=%.3g overlap=%.3g",
             op->name, (long long)p->m, (long long)p->n, (long long)p->k, (long long)a->block_rows,
             (long long)a->block_cols, (long long)p->batch, sat_dtype_name(p->a_dtype), sat_dtype_name(p->b_dtype),
             sat_dtype_name(p->c_dtype), fields.form, fields.more, alignment(p->a_align, 128),
             alignment(p->b_align, 128), alignment(p->c_align, 128), options, scalar_case(p->alpha),
             scalar_case(p->beta), (long long)a->stored_blocks, fields.skew, a->overlap);
}
