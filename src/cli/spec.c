// From the options of a race to a pattern and a problem.

#include "spec.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "memory.h"
#include "number.h"

const char *const operation_names[] = {"matmul",  "sampled",         "attention", "attention-backward",
                                       "grouped", "grouped-weights", NULL};
const char *const activation_names[] = {"none", "relu", "gelu", "silu", NULL};
const char *const order_names[] = {"row", "col", NULL};
const char *const offset_names[] = {"i32", "i64", NULL};

static const double DEFAULT_SKEW = 2; // of groups, as the library has it

spec spec_default(void) {
    return (spec){.block_rows = 64,
                  .block_cols = 64,
                  .pattern = {.stored = -1, .sparsity = -1, .overlap = -1, .seed = 1},
                  .batch = 1,
                  .alpha = 1,
                  .heads = 8,
                  .groups = 8,
                  .top_k = 1,
                  .offsets = SAT_I64 - 1};
}

static sat_operation operation(const spec *s) { return (sat_operation)(s->op + 1); }

bool spec_is_attention(const spec *s) { return s->op >= SAT_ATTENTION - 1 && s->op <= SAT_ATTENTION_BACKWARD - 1; }

bool spec_is_grouped(const spec *s) { return s->op >= SAT_GROUPED - 1; }

double spec_skew(const spec *s) { return s->pattern.skew > 0 ? s->pattern.skew : DEFAULT_SKEW; }

// One size: what the file says where it says something, else what was asked for, else the default.
static bool settle(int64_t *size, int64_t from_file, bool given_by_file, const char *name, char *message,
                   size_t capacity) {
    if (!given_by_file) {
        if (*size == 0) *size = from_file;
        return true;
    }
    if (*size != 0 && *size != from_file) {
        snprintf(message, capacity, "-%s %" PRId64 ": the matrix gives %" PRId64, name, *size, from_file);
        return false;
    }
    *size = from_file;
    return true;
}

// Every token has top_k rows of its own.
static bool grouped_sizes(spec *s, char *message, size_t capacity) {
    if (s->m == 0) s->m = 2048;
    if (s->n == 0) s->n = 1024;
    if (s->k == 0) s->k = 1024;
    if (s->m > INT32_MAX / s->top_k) {
        snprintf(message, capacity, "-m %" PRId64 " with --top-k %" PRId64 ": expected at most %d rows together", s->m,
                 s->top_k, INT32_MAX);
        return false;
    }
    s->m *= s->top_k;
    return true;
}

bool spec_sizes(spec *s, char *message, size_t capacity) {
    if (spec_is_grouped(s)) return grouped_sizes(s, message, capacity);
    const mtx *f = s->matrix;
    int64_t other = f ? 128 : 4096, rows = f ? f->rows : other, cols = f ? f->cols : other;
    if (spec_is_attention(s))
        return settle(&s->m, f ? rows : 1024, f, "-seq", message, capacity) &&
               settle(&s->n, f ? cols : s->m, f, "-kv-seq", message, capacity) &&
               settle(&s->k, 64, false, "-dim", message, capacity);
    if (operation(s) == SAT_SAMPLED)
        return settle(&s->m, rows, f, "m", message, capacity) && settle(&s->n, cols, f, "n", message, capacity) &&
               settle(&s->k, other, false, "k", message, capacity);
    return settle(&s->m, s->transpose ? cols : rows, f, "m", message, capacity) &&
           settle(&s->k, s->transpose ? rows : cols, f, "k", message, capacity) &&
           settle(&s->n, other, false, "n", message, capacity);
}

// Packed sequences of about the same length.
static bool add_sequences(const spec *s, blocks *b, char *message, size_t capacity) {
    if (!spec_is_attention(s) || s->sequences == 0) return true;
    size_t bytes = (size_t)(s->sequences + 1) * sizeof *b->q_offsets;
    b->sequences = s->sequences, b->q_offsets = malloc(bytes), b->kv_offsets = malloc(bytes);
    if (!b->q_offsets || !b->kv_offsets) {
        snprintf(message, capacity, "not enough memory for %" PRId64 " sequences", s->sequences);
        blocks_free(b);
        return false;
    }
    for (int64_t i = 0; i <= s->sequences; i++) {
        b->q_offsets[i] = (int64_t)((__int128_t)s->m * i / s->sequences);
        b->kv_offsets[i] = (int64_t)((__int128_t)s->n * i / s->sequences);
    }
    return true;
}

// The mask of attention: everything, unless a sparsity says otherwise.
static bool mask_blocks(const spec *s, blocks *out, char *message, size_t capacity) {
    make_request q = s->pattern;
    int64_t masks = (s->head_masks ? s->heads : 1) * (s->item_masks ? s->batch : 1);
    bool stacked = s->head_masks || (s->item_masks && s->batch > 1);
    q.rows = stacked ? masks * grid_of(s->m, s->block_rows) * s->block_rows : s->m, q.cols = s->n;
    q.block_rows = s->block_rows, q.block_cols = s->block_cols;
    if (q.sparsity < 0 && q.stored < 0 && q.kind == MAKE_RANDOM) q.sparsity = 0;
    return make_blocks(&q, out, message, capacity) && add_sequences(s, out, message, capacity);
}

bool spec_blocks(const spec *s, blocks *out, char *message, size_t capacity) {
    if (spec_is_grouped(s)) return *out = (blocks){.block_rows = 1, .block_cols = 1}, true;
    if (s->matrix) {
        mtx_error error;
        if (mtx_block(s->matrix, s->block_rows, s->block_cols, (size_t)(0.5 * memory_bytes()), out, NULL, &error))
            return true;
        snprintf(message, capacity, "%s", error.text);
        return false;
    }
    if (spec_is_attention(s)) return mask_blocks(s, out, message, capacity);
    make_request q = s->pattern;
    bool sampled = operation(s) == SAT_SAMPLED;
    q.rows = sampled || !s->transpose ? s->m : s->k;
    q.cols = sampled ? s->n : s->transpose ? s->m : s->k;
    q.block_rows = s->block_rows, q.block_cols = s->block_cols;
    q.by_columns = !sampled && s->transpose && (q.skew > 1.25 || q.kind == MAKE_POWERLAW); // of op(A)'s rows
    return make_blocks(&q, out, message, capacity);
}

void spec_dtype(spec *s, const sat_device *device) {
    if (!s->align) s->align = device->backend == SAT_CUDA ? 256 : 64; // as such memory comes from its allocators
    if (!s->a_dtype) s->a_dtype = s->c_dtype = device->backend == SAT_CUDA ? SAT_F16 : SAT_F32;
}

static double measured_skew(const blocks *b) {
    int64_t most = 0;
    for (int64_t i = 0; i < b->grid_rows; i++)
        if (b->row_ptr[i + 1] - b->row_ptr[i] > most) most = b->row_ptr[i + 1] - b->row_ptr[i];
    return b->count ? (double)most * (double)b->grid_rows / (double)b->count : 0;
}

// Races make masks of their own and read none of the caller's, so any memory of the device will do.
static sat_status dynamic_pattern(sat_context *context, const spec *s, const blocks *b, sat_pattern **pattern) {
    void *memory = NULL;
    sat_status status = sat_memory_alloc(context, 256, &memory);
    sat_dynamic_bsr a = {SAT_SIZED(sat_dynamic_bsr), .rows = b->rows, .cols = b->cols, .block_rows = b->block_rows};
    a.block_cols = b->block_cols, a.capacity = b->count, a.index_type = SAT_I64, a.row_ptr = a.col_idx = memory;
    a.density = s->density, a.skew = s->pattern.skew > 0 ? s->pattern.skew : measured_skew(b);
    if (spec_is_attention(s)) a.rows = s->m, a.mask_heads = s->head_masks ? s->heads : 1;
    if (s->item_masks) a.mask_batch = s->batch;
    if (status == SAT_OK) status = sat_pattern_create_dynamic(context, &a, pattern);
    sat_memory_free(context, memory);
    return status;
}

sat_status spec_pattern(sat_context *context, const spec *s, const blocks *b, sat_pattern **pattern) {
    *pattern = NULL;
    if (spec_is_grouped(s)) return SAT_OK;
    if (s->dynamic) return dynamic_pattern(context, s, b, pattern);
    sat_bsr indices = {
        SAT_SIZED(sat_bsr),          .rows = b->rows,           .cols = b->cols,           .block_rows = b->block_rows,
        .block_cols = b->block_cols, .stored_blocks = b->count, .index_type = SAT_I64,     .row_ptr = b->row_ptr,
        .col_idx = b->col_idx,       .sequences = b->sequences, .q_offsets = b->q_offsets, .kv_offsets = b->kv_offsets};
    return sat_pattern_create(context, &indices, pattern);
}

static sat_problem attention_problem(const spec *s) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)sat_problem_attention(&p, s->a_dtype, s->heads, s->kv_heads, s->k);
    p.op = operation(s);
    p.m = s->m, p.n = s->n, p.c_dtype = s->c_dtype, p.batch = s->batch;
    p.alpha = s->scale, p.beta = s->beta, p.flags = s->flags;
    p.a_align = p.b_align = p.c_align = (uint32_t)s->align;
    p.attention.causal = s->causal, p.attention.window = s->window, p.attention.lse = s->lse;
    p.attention.value_dim = s->value_dim, p.attention.softcap = s->softcap;
    p.attention.sinks = s->sinks;
    return p;
}

// Dense operands without gaps; each item of a batch has its own, but for a matmul's values, which are shared.
static sat_layout dense(int64_t rows, int64_t cols, bool by_columns, int64_t batch) {
    sat_layout l = {.row_stride = by_columns ? 1 : cols, .col_stride = by_columns ? rows : 1};
    if (l.row_stride < 1) l.row_stride = 1;
    if (l.col_stride < 1) l.col_stride = 1;
    if (batch > 1) l.batch_stride = rows * cols;
    return l;
}

static sat_problem grouped_problem(const spec *s) {
    bool weights = operation(s) == SAT_GROUPED_WEIGHTS;
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)sat_problem_grouped(&p, s->a_dtype, s->m, s->n, s->k, s->groups);
    p.op = operation(s);
    p.c_dtype = s->c_dtype;
    p.alpha = s->alpha, p.beta = s->beta, p.flags = s->flags;
    p.a_align = p.b_align = p.c_align = (uint32_t)s->align;
    p.b = dense(weights ? s->m : s->k, s->n, s->col_b, weights ? 1 : s->groups);
    p.c = dense(weights ? s->k : s->m, s->n, s->col_c, weights ? s->groups : 1);
    p.grouped.offset_type = (sat_index_type)(s->offsets + 1);
    p.grouped.bias = s->bias, p.grouped.activation = (sat_activation)s->activation;
    p.grouped.skew = s->pattern.skew;
    return p;
}

sat_problem spec_problem(const spec *s, const blocks *b) {
    if (spec_is_attention(s)) return attention_problem(s);
    if (spec_is_grouped(s)) return grouped_problem(s);
    bool sampled = operation(s) == SAT_SAMPLED;
    sat_problem p = {SAT_SIZED(sat_problem)};
    (void)(sampled ? sat_problem_sampled(&p, s->a_dtype, s->k) : sat_problem_matmul(&p, s->a_dtype, s->n));
    p.m = s->m, p.n = s->n, p.k = s->k;
    p.c_dtype = s->c_dtype;
    p.batch = s->batch;
    p.alpha = s->alpha, p.beta = s->beta;
    p.flags = s->flags;
    p.a_align = p.b_align = p.c_align = (uint32_t)s->align;
    if (sampled) {
        p.a = dense(s->m, s->k, s->col_b, s->batch);
        p.b = dense(s->k, s->n, s->col_c, s->batch);
        if (s->batch > 1) p.c.batch_stride = b->count * b->block_rows * b->block_cols;
        return p;
    }
    p.b = dense(s->k, s->n, s->col_b, s->batch);
    p.c = dense(s->m, s->n, s->col_c, s->batch);
    p.matmul.transpose = s->transpose ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE;
    p.matmul.bias = s->bias ? SAT_BIAS_ROW : SAT_BIAS_NONE;
    p.matmul.activation = (sat_activation)s->activation;
    return p;
}

typedef struct line {
    char *out;
    size_t capacity, at;
} line;

static void add(line *l, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void add(line *l, const char *format, ...) {
    if (l->at >= l->capacity) return;
    va_list list;
    va_start(list, format);
    int n = vsnprintf(l->out + l->at, l->capacity - l->at, format, list);
    va_end(list);
    if (n > 0) l->at += (size_t)n;
}

static void add_attention(line *l, const spec *s) {
    add(l, ", %" PRId64 " head%s", s->heads, s->heads == 1 ? "" : "s");
    if (s->kv_heads && s->kv_heads != s->heads) add(l, " over %" PRId64, s->kv_heads);
    if (s->value_dim && s->value_dim != s->k) add(l, ", values of %" PRId64, s->value_dim);
    if (s->causal) add(l, ", causal");
    if (s->window) add(l, ", window %" PRId64, s->window);
    if (s->sequences) add(l, ", %" PRId64 " sequences", s->sequences);
    if (s->head_masks) add(l, ", a mask a head");
    if (s->item_masks) add(l, ", a mask a batch item");
    if (s->dynamic) add(l, ", indices that change");
    if (s->scale != 0) add(l, ", scale %g", s->scale);
    if (s->softcap != 0) add(l, ", softcap %g", s->softcap);
    if (s->sinks) add(l, ", sinks");
    if (s->lse) add(l, ", with LSE");
}

static void add_groups(line *l, const spec *s) {
    add(l, ", %" PRId64 " group%s, skew %g", s->groups, s->groups == 1 ? "" : "s", spec_skew(s));
    if (s->top_k > 1) add(l, ", top-k %" PRId64 " of %" PRId64 " tokens", s->top_k, s->m / s->top_k);
    if (s->offsets != SAT_I64 - 1) add(l, ", offsets %s", offset_names[s->offsets]);
}

void spec_title(const spec *s, const blocks *b, char *out, size_t capacity) {
    line l = {out, capacity, 0};
    double all = (double)b->grid_rows * (double)b->grid_cols;
    add(&l, "%s %s %" PRId64 "x%" PRId64 "x%" PRId64, operation_names[s->op], dtype_pair_name(s->a_dtype, s->c_dtype),
        s->m, s->n, s->k);
    if (spec_is_grouped(s)) add_groups(&l, s);
    else
        add(&l, ", block %" PRId64 "x%" PRId64 ", %" PRId64 " of %.0f blocks", b->block_rows, b->block_cols, b->count,
            all);
    if (all > 0) add(&l, " (%.4g %% sparse)", 100 * (1 - (double)b->count / all));
    if (s->batch > 1) add(&l, ", batch %" PRId64, s->batch);
    if (spec_is_attention(s)) return add_attention(&l, s);
    if (s->transpose) add(&l, ", A transposed");
    static const char *const names[][2] = {[SAT_MATMUL] = {"B", "C"},
                                           [SAT_SAMPLED] = {"X", "Y"},
                                           [SAT_GROUPED] = {"W", "Y"},
                                           [SAT_GROUPED_WEIGHTS] = {"Z", "W"}};
    if (s->col_b) add(&l, ", %s by columns", names[operation(s)][0]);
    if (s->col_c) add(&l, ", %s by columns", names[operation(s)][1]);
    if (s->alpha != 1) add(&l, ", alpha %g", s->alpha);
    if (s->beta != 0) add(&l, ", beta %g", s->beta);
    if (s->bias) add(&l, ", bias");
    if (s->activation) add(&l, ", %s", activation_names[s->activation]);
    if (s->flags & SAT_FIXED_VALUES) add(&l, ", fixed values");
    if (s->dynamic) add(&l, ", indices that change");
}
