/* The table of operations, and the parts of normalising that they share. */
#include "ops/op.h"

#include <math.h>
#include <stdio.h>

static const sat_op *const operations[] = {&sat_op_matmul,    &sat_op_sampled,
                                           &sat_op_attention, &sat_op_attention_backward,
                                           &sat_op_grouped,   &sat_op_grouped_weights};

const sat_op *sat_op_find(sat_operation id) {
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (operations[i]->id == id) return operations[i];
    return NULL;
}

static sat_status normalise_dtypes(sat_problem *p) {
    if (!p->b_dtype) p->b_dtype = p->a_dtype;
    if (!p->c_dtype) p->c_dtype = p->a_dtype;
    if (!p->compute_dtype && sat_dtype_known(p->a_dtype)) p->compute_dtype = sat_dtype_compute(p->a_dtype);
    const char *names[] = {"a_dtype", "b_dtype", "c_dtype", "compute_dtype"};
    sat_dtype types[] = {p->a_dtype, p->b_dtype, p->c_dtype, p->compute_dtype};
    for (int i = 0; i < 4; i++)
        if (!sat_dtype_known(types[i]))
            return sat_fail(SAT_BAD_ENUM, "%s is %d; expected SAT_F32, SAT_F64, SAT_F16 or SAT_BF16", names[i],
                            (int)types[i]);
    sat_dtype compute = sat_dtype_compute(p->a_dtype);
    if (p->b_dtype != p->a_dtype)
        return sat_fail(SAT_UNSUPPORTED, "b_dtype is %s beside a_dtype %s; expected the same",
                        sat_dtype_name(p->b_dtype), sat_dtype_name(p->a_dtype));
    if (p->c_dtype != p->a_dtype && p->c_dtype != compute)
        return sat_fail(SAT_UNSUPPORTED, "c_dtype is %s beside a_dtype %s; expected %s%s%s", sat_dtype_name(p->c_dtype),
                        sat_dtype_name(p->a_dtype), sat_dtype_name(p->a_dtype), compute != p->a_dtype ? " or " : "",
                        compute != p->a_dtype ? sat_dtype_name(compute) : "");
    if (p->compute_dtype != compute)
        return sat_fail(SAT_UNSUPPORTED, "compute_dtype is %s beside a_dtype %s; expected %s",
                        sat_dtype_name(p->compute_dtype), sat_dtype_name(p->a_dtype), sat_dtype_name(compute));
    return SAT_OK;
}

sat_status sat_normalise_common(sat_problem *p) {
    const uint32_t flags =
        SAT_ALLOW_TF32 | SAT_ALLOW_NONDETERMINISTIC | SAT_ALLOW_DENSE | SAT_FIXED_VALUES | SAT_ALLOW_BROADCAST;
    SAT_TRY(normalise_dtypes(p));
    if (p->flags & ~flags)
        return sat_fail(SAT_BAD_ENUM, "flags is 0x%x; bits beyond 0x%x are unknown", p->flags, flags);
    if (p->batch < 0) return sat_fail(SAT_BAD_SIZE, "batch is %lld; expected 0 or more", (long long)p->batch);
    if (p->batch == 0) p->batch = 1;
    if (!isfinite(p->alpha)) return sat_fail(SAT_UNSUPPORTED, "alpha is %g; expected a finite number", p->alpha);
    if (!isfinite(p->beta)) return sat_fail(SAT_UNSUPPORTED, "beta is %g; expected a finite number", p->beta);
    if (p->compute_dtype == SAT_F32 && !isfinite((float)p->alpha))
        return sat_fail(SAT_UNSUPPORTED, "alpha is %g; expected a number that f32 holds", p->alpha);
    if (p->compute_dtype == SAT_F32 && !isfinite((float)p->beta))
        return sat_fail(SAT_UNSUPPORTED, "beta is %g; expected a number that f32 holds", p->beta);
    return SAT_OK;
}

sat_status sat_normalise_size(int64_t *given, int64_t expected, const char *name) {
    if (*given != 0 && *given != expected)
        return sat_fail(SAT_BAD_SIZE, "%s is %lld; the pattern gives %lld", name, (long long)*given,
                        (long long)expected);
    *given = expected;
    return SAT_OK;
}

int64_t sat_layout_span(const sat_layout *l, int64_t rows, int64_t cols, int64_t batch) {
    return sat_strides_span((int64_t[]){rows, cols, batch}, (int64_t[]){l->row_stride, l->col_stride, l->batch_stride},
                            3);
}

int64_t sat_strides_span(const int64_t *extent, const int64_t *stride, int count) {
    int64_t span = 1;
    for (int i = 0; i < count; i++)
        if (extent[i] == 0) return 0;
    for (int i = 0; i < count; i++) {
        int64_t reach;
        if (__builtin_mul_overflow(extent[i] - 1, stride[i], &reach) || __builtin_add_overflow(span, reach, &span))
            return -1;
    }
    return span > INT64_MAX / 64 ? -1 : span; /* bytes and guards must not overflow either */
}

void sat_bound_stride(int64_t *stride, int64_t extent) {
    if (extent <= 1 && *stride > (int64_t)1 << 40) *stride = 1;
}

/* Two elements of an output may not share a place: each stride must step over all that the smaller ones reach. */
bool sat_strides_distinct(const int64_t *extent, const int64_t *stride, int count) {
    for (int i = 0; i < count; i++) {
        if (extent[i] <= 1) continue;
        int64_t reach = 0;
        for (int j = 0; j < count; j++)
            if (j != i && extent[j] > 1 && (stride[j] < stride[i] || (stride[j] == stride[i] && j < i)))
                reach += (extent[j] - 1) * stride[j];
        if (stride[i] <= reach) return false;
    }
    return true;
}

sat_status sat_normalise_layout(sat_layout *l, int64_t rows, int64_t cols, int64_t batch, bool output,
                                const char *name) {
    if (l->row_stride < 0 || l->col_stride < 0 || l->batch_stride < 0)
        return sat_fail(SAT_BAD_STRIDE, "%s: strides are %lld (row), %lld (col), %lld (batch); expected 0 or more",
                        name, (long long)l->row_stride, (long long)l->col_stride, (long long)l->batch_stride);
    bool empty = rows == 0 || cols == 0 || batch == 0; /* then strides lead nowhere, and may be any numbers */
    if (empty) l->batch_stride = 0;
    if (empty || (l->row_stride == 0 && l->col_stride == 0)) l->row_stride = cols > 0 ? cols : 1, l->col_stride = 1;
    sat_bound_stride(&l->row_stride, rows), sat_bound_stride(&l->col_stride, cols);
    sat_bound_stride(&l->batch_stride, batch);
    if (sat_layout_span(l, rows, cols, batch) < 0)
        return sat_fail(SAT_BAD_SIZE, "%s: %lld x %lld, batch %lld with strides %lld, %lld, %lld overflows", name,
                        (long long)rows, (long long)cols, (long long)batch, (long long)l->row_stride,
                        (long long)l->col_stride, (long long)l->batch_stride);
    const int64_t extent[] = {rows, cols, batch}, stride[] = {l->row_stride, l->col_stride, l->batch_stride};
    if (output && rows > 0 && cols > 0 && !sat_strides_distinct(extent, stride, 3))
        return sat_fail(SAT_BAD_STRIDE,
                        "%s: with strides %lld (row), %lld (col), %lld (batch) elements of the %lld x %lld output, "
                        "batch %lld, share a place",
                        name, (long long)l->row_stride, (long long)l->col_stride, (long long)l->batch_stride,
                        (long long)rows, (long long)cols, (long long)batch);
    return SAT_OK;
}

sat_status sat_check_broadcast(const sat_problem *p, int64_t stride, int64_t count, const char *name, const char *which,
                               const char *what) {
    if (stride != 0 || count <= 1 || (p->flags & SAT_ALLOW_BROADCAST)) return SAT_OK;
    return sat_fail(SAT_BAD_STRIDE,
                    "%s: %s is 0, which would make all %lld %s the same; expected 1 or more, or SAT_ALLOW_BROADCAST "
                    "among the flags",
                    name, which, (long long)count, what);
}

sat_status sat_normalise_input(sat_layout *l, const sat_problem *p, int64_t rows, int64_t cols, const char *name) {
    SAT_TRY(sat_normalise_layout(l, rows, cols, p->batch, false, name));
    SAT_TRY(sat_check_broadcast(p, l->row_stride, rows, name, "row_stride", "rows"));
    return sat_check_broadcast(p, l->col_stride, cols, name, "col_stride", "columns");
}

sat_status sat_normalise_values(sat_layout *l, const sat_pattern_view *a, int64_t batch, bool output,
                                const char *name) {
    l->row_stride = a->block_cols, l->col_stride = 1;
    return sat_normalise_layout(l, a->stored_blocks * a->block_rows, a->block_cols, batch, output, name);
}

sat_status sat_normalise_align(uint32_t *align, sat_dtype t, const char *name) {
    uint32_t size = (uint32_t)sat_dtype_size(t);
    if (*align == 0) *align = size;
    if ((*align & (*align - 1)) != 0 || *align < size)
        return sat_fail(SAT_MISALIGNED, "%s is %u; expected a power of two, at least the element's %u bytes", name,
                        *align, size);
    return SAT_OK;
}

/* ---- equal problems ---- */

static bool same_layout(const sat_layout *x, const sat_layout *y) {
    return x->row_stride == y->row_stride && x->col_stride == y->col_stride && x->batch_stride == y->batch_stride;
}

static bool same_part(const sat_problem *x, const sat_problem *y) {
    const sat_op *op = sat_op_find(x->op);
    return !op->same || op->same(x, y);
}

bool sat_problem_same(const sat_problem *x, const sat_problem *y) {
    return x->op == y->op && x->flags == y->flags && x->m == y->m && x->n == y->n && x->k == y->k &&
           x->batch == y->batch && x->a_dtype == y->a_dtype && x->b_dtype == y->b_dtype && x->c_dtype == y->c_dtype &&
           x->compute_dtype == y->compute_dtype && same_layout(&x->a, &y->a) && same_layout(&x->b, &y->b) &&
           same_layout(&x->c, &y->c) && x->a_align == y->a_align && x->b_align == y->b_align &&
           x->c_align == y->c_align && x->alpha == y->alpha && x->beta == y->beta && same_part(x, y);
}

/* ---- a caller's problem ---- */

sat_status sat_problem_take(sat_problem *to, const sat_problem *from) {
    SAT_TRY(sat_struct_in(to, sizeof *to, from, sizeof *to, "sat_problem"));
    const sat_op *op = sat_op_find(to->op);
    if (!op) return sat_fail(SAT_BAD_ENUM, "op is %d; expected one of sat_operation", (int)to->op);
    size_t part = offsetof(sat_problem, room);
    if (to->reserved_align || sat_first_set(to, offsetof(sat_problem, reserved), part) < part)
        return sat_fail(SAT_BAD_STRUCT, "sat_problem: a reserved field is set; expected 0");
    if (sat_first_set(to, part + op->part_bytes, sizeof *to) < sizeof *to)
        return sat_fail(SAT_BAD_STRUCT,
                        "sat_problem: beyond the %zu bytes that op %s has of its own, something is set; expected 0",
                        op->part_bytes, op->name);
    return SAT_OK;
}

/* ---- keys ---- */

static const char *activation_name(sat_activation a) {
    switch (a) {
    case SAT_ACT_NONE: return "none";
    case SAT_ACT_RELU: return "relu";
    case SAT_ACT_GELU: return "gelu";
    case SAT_ACT_SILU: return "silu";
    }
    return "?";
}

void sat_set_common_key_fields(const sat_matmul *m, const sat_pattern_view *a, sat_key_fields *fields) {
    *fields = (sat_key_fields){.skew = m->transpose ? a->t_skew : a->skew};
    snprintf(fields->form, sizeof fields->form, "t=%d", m->transpose == SAT_TRANSPOSE);
    snprintf(fields->epilogue, sizeof fields->epilogue, "bias=%d act=%s", m->bias != SAT_BIAS_NONE,
             activation_name(m->activation));
}

void sat_set_product_key_fields(const sat_problem *p, const sat_pattern_view *a, bool full, sat_key_fields *fields) {
    sat_set_common_key_fields(p->op == SAT_MATMUL ? &p->matmul : &(sat_matmul){0}, a, fields);
    if (full) sat_format_strides(p, fields->more, sizeof fields->more);
}

void sat_format_strides(const sat_problem *p, char *text, size_t size) {
    snprintf(text, size, " a_strides=%lld,%lld,%lld b_strides=%lld,%lld,%lld c_strides=%lld,%lld,%lld",
             (long long)p->a.row_stride, (long long)p->a.col_stride, (long long)p->a.batch_stride,
             (long long)p->b.row_stride, (long long)p->b.col_stride, (long long)p->b.batch_stride,
             (long long)p->c.row_stride, (long long)p->c.col_stride, (long long)p->c.batch_stride);
}
