/* Fuzzes the public interface: bytes become calls. Patterns, good and hostile; problems with any field; plans, runs and
 * the one-call form on buffers of exactly the size that they need; races, seldom; imports of any text.
 *
 * Nothing may crash, and a product that was accepted is right: it is compared with a plain loop in double. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/select.h"
#include "cache/cache_file.h"
#include "ops/check.h"
#include "variant.h"
#include "../problems.h"

static void demand(bool holds) {
    if (!holds) abort();
}

/* ---- bytes ---- */

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

static int64_t take(bytes *b, int64_t below) { /* 0 past the end */
    return b->at < b->end && below > 0 ? *b->at++ % below : 0;
}

static int64_t take_wide(bytes *b) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x = x << 8 | (uint64_t)take(b, 256);
    return (int64_t)x;
}

/* Mostly small, sometimes anything. */
static int64_t take_size(bytes *b, int64_t small) {
    static const int64_t odd[] = {
        -1, INT64_MIN, INT64_MAX, INT32_MAX, (int64_t)1 << 31, (int64_t)1 << 40, (int64_t)1 << 62};
    int64_t how = take(b, 32);
    return how == 31 ? take_wide(b) : how == 30 ? odd[take(b, 7)] : take(b, small);
}

static double take_real(bytes *b) {
    static const double odd[] = {0,      1,   -1,       0.5,   2.5,      -1.5, 1e300, -1e300,
                                 1e-300, NAN, INFINITY, 65504, 0x1p-140, 3,    7,     -0.0};
    return odd[take(b, 16)];
}

/* ---- the world ---- */

enum { OFF, QUICK, CONTEXTS, MOST_BYTES = 1 << 18 };
static sat_context *contexts[CONTEXTS];
static char import_path[64];

static void open_world(void) {
    if (contexts[OFF]) return;
    for (int i = 0; i < CONTEXTS; i++) {
        sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .threads = 1};
        o.effort = i == OFF ? SAT_EFFORT_OFF : SAT_EFFORT_QUICK, o.budget_seconds = 1e-4, o.measure = SAT_MEASURE_WARM;
        o.memory_limit = 64 << 20;
        demand(sat_context_create(&o, &contexts[i]) == SAT_OK);
    }
    snprintf(import_path, sizeof import_path, "/tmp/sat_fuzz_api_%ld", (long)getpid());
}

/* A struct's size is a promise of the caller's that the library believes, up to 4096 bytes: so they are there. */
enum { LARGEST_STRUCT = 4096 };
static _Alignas(16) unsigned char larger[2][LARGEST_STRUCT];

static const void *enlarge(bytes *b, int which, const void *from, size_t size) {
    memset(larger[which], 0, sizeof larger[which]);
    memcpy(larger[which], from, size);
    if (take(b, 64) == 0) larger[which][LARGEST_STRUCT - 1 - take(b, 256) * 8] = 1;
    return larger[which];
}

/* ---- patterns ---- */

enum { MOST_BLOCKS = 64 };

/* The caller's arrays have as many entries as the struct promises: a pattern that promises more is left out. */
static sat_pattern *make_pattern(bytes *b, sat_context *ctx) {
    int64_t ptr64[MOST_BLOCKS + 1], col64[MOST_BLOCKS], q[5] = {0}, kv[5] = {0};
    int32_t ptr32[MOST_BLOCKS + 1], col32[MOST_BLOCKS];
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = take_size(b, 40), .cols = take_size(b, 40)};
    s.block_rows = take_size(b, 9), s.block_cols = take_size(b, 9);
    s.index_type = take(b, 16) == 0 ? (sat_index_type)take(b, 256) : take(b, 2) ? SAT_I64 : SAT_I32;
    if (take(b, 64) == 0) s.size = (size_t)take_wide(b);
    int64_t rows = s.rows > 0 && s.block_rows > 0 ? (s.rows - 1) / s.block_rows + 1 : 0, cols = 0, stored = 0;
    if (s.cols > 0 && s.block_cols > 0) cols = (s.cols - 1) / s.block_cols + 1;
    if (rows > MOST_BLOCKS) return NULL;
    ptr64[0] = 0;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < sat_min(cols, 12) && stored < MOST_BLOCKS; j++)
            if (take(b, 2)) col64[stored++] = j;
        ptr64[i + 1] = stored;
    }
    if (stored > 0 && take(b, 8) == 0) col64[take(b, stored)] = take_size(b, 12);
    if (rows > 0 && take(b, 8) == 0) ptr64[take(b, rows + 1)] = take_size(b, 12);
    for (int64_t i = 0; i <= rows; i++) ptr32[i] = (int32_t)ptr64[i];
    for (int64_t i = 0; i < stored; i++) col32[i] = (int32_t)col64[i];
    s.stored_blocks = stored, s.row_ptr = s.index_type == SAT_I64 ? (void *)ptr64 : (void *)ptr32;
    s.col_idx = s.index_type == SAT_I64 ? (void *)col64 : (void *)col32;
    if (take(b, 32) == 0) s.row_ptr = NULL;
    if (take(b, 16) == 0) {
        s.sequences = 1 + take(b, 4), s.q_offsets = q, s.kv_offsets = take(b, 2) ? kv : NULL;
        for (int64_t i = 1; i <= s.sequences; i++) q[i] = q[i - 1] + take(b, 12), kv[i] = kv[i - 1] + take(b, 12);
        if (take(b, 2)) q[s.sequences] = s.rows, kv[s.sequences] = s.cols;
    }
    sat_pattern *pattern = NULL;
    sat_status status = sat_pattern_create(ctx, enlarge(b, 0, &s, sizeof s), &pattern);
    demand((status == SAT_OK) == (pattern != NULL));
    if (cols <= 1 << 16) return pattern;
    sat_pattern_free(pattern); /* its transposed index, which is as long as the matrix is wide, may not fit */
    return NULL;
}

/* ---- problems ---- */

static sat_layout take_layout(bytes *b) {
    sat_layout l = {0};
    if (take(b, 3)) return l;
    l.row_stride = take_size(b, 48), l.col_stride = take(b, 2) ? 1 : take_size(b, 48);
    if (take(b, 4) == 0) l.batch_stride = take_size(b, 200);
    return l;
}

static sat_heads take_heads(bytes *b) {
    sat_heads h = {0};
    if (take(b, 6) == 0) h = (sat_heads){take_size(b, 255), take_size(b, 255), take_size(b, 64)};
    return h;
}

static sat_problem take_problem(bytes *b) {
    sat_dtype type = (sat_dtype)(1 + take(b, 4));
    int64_t op = take(b, 8);
    sat_problem p = op < 4   ? matmul_problem(type, take_size(b, 20))
                    : op < 6 ? sampled_problem(type, take_size(b, 20))
                             : attention_problem(type, take_size(b, 4), take_size(b, 3),
                                                 take(b, 8) ? 8 * take(b, 5) : take_size(b, 64));
    if (op == 7) p.op = SAT_ATTENTION_BACKWARD;
    if (take(b, 4) == 0) p.c_dtype = SAT_F32;
    if (take(b, 2) && op < 4) p.matmul.transpose = SAT_TRANSPOSE;
    if (take(b, 4) == 0) p.batch = take_size(b, 4);
    p.a = take_layout(b), p.b = take_layout(b), p.c = take_layout(b);
    if (take(b, 4) == 0) p.alpha = take_real(b);
    if (take(b, 4) == 0) p.beta = take_real(b);
    if (op < 4 && take(b, 4) == 0) p.matmul.bias = SAT_BIAS_ROW;
    if (op < 4 && take(b, 4) == 0) p.matmul.activation = (sat_activation)take(b, 5);
    if (take(b, 4) == 0) p.flags = (uint32_t)take(b, 64);
    if (op >= 6) {
        sat_attention *a = &p.attention;
        a->causal = take(b, 2), a->window = take(b, 3) ? 0 : take_size(b, 20), a->lse = take(b, 2);
        a->q = take_heads(b), a->k = take_heads(b), a->v = take_heads(b), a->o = take_heads(b);
        if (take(b, 4) == 0) p.m = take_size(b, 40);
    }
    switch (take(b, 24)) { /* now and then a field that is no use at all */
    case 0: p.size = (size_t)take_wide(b); break;
    case 1: p.op = (sat_operation)take(b, 256); break;
    case 2: p.a_dtype = (sat_dtype)take(b, 256); break;
    case 3: p.b_dtype = (sat_dtype)take(b, 8); break;
    case 4: p.compute_dtype = (sat_dtype)take(b, 8); break;
    case 5: p.a_align = (uint32_t)take_wide(b); break;
    case 6: p.c_align = (uint32_t)1 << take(b, 32); break;
    case 7: p.m = take_size(b, 40), p.n = take_size(b, 40), p.k = take_size(b, 40); break;
    case 8:
        if (op < 4) p.matmul.transpose = (sat_transpose)take(b, 256);
        break;
    case 9: p.room[sizeof(sat_attention) / 8 + (size_t)take(b, 8)] = (uint64_t)take_wide(b); break;
    case 10: p.reserved[take(b, 8)] = (uint64_t)take_wide(b); break;
    default: break;
    }
    return p;
}

static sat_problem take_grouped(bytes *b) {
    sat_problem p = {SAT_SIZED(sat_problem)};
    sat_dtype type = (sat_dtype)(1 + take(b, 4));
    int64_t m = take_size(b, 30), n = take_size(b, 20), k = take_size(b, 20), groups = take_size(b, 6);
    bool weights = take(b, 2);
    demand((weights ? sat_problem_grouped_weights : sat_problem_grouped)(&p, type, m, n, k, groups) == SAT_OK);
    sat_grouped *g = &p.grouped;
    g->offset_type = take(b, 16) == 0 ? (sat_index_type)take(b, 256) : take(b, 2) ? SAT_I64 : SAT_I32;
    g->bias = take(b, weights ? 32 : 2) == 1, g->activation = (sat_activation)take(b, weights ? 1 : 5);
    if (take(b, 8) == 0) g->skew = take_real(b);
    if (take(b, 4) == 0) p.c_dtype = SAT_F32;
    p.a = take_layout(b), p.b = take_layout(b), p.c = take_layout(b);
    if (take(b, 4) == 0) p.alpha = take_real(b);
    if (take(b, 4) == 0) p.beta = take_real(b);
    if (take(b, 4) == 0) p.flags = (uint32_t)take(b, 64);
    if (take(b, 24) == 0) p.room[sizeof(sat_grouped) / 8 + (size_t)take(b, 8)] = (uint64_t)take_wide(b);
    return p;
}

/* ---- runs ---- */

typedef struct operands {
    int count;
    sat_operand list[SAT_MAX_OPERANDS];
    void *memory[SAT_MAX_OPERANDS], *pointer[SAT_MAX_OPERANDS];
    void *before; /* of the first output */
} operands;

/* Buffers that end where the operands do, so that a sanitizer sees one element too many. False: too large to try. */
static bool make_operands(operands *o, const sat_request *q, uint64_t seed) {
    size_t all = 0;
    *o = (operands){0};
    o->count = q->op->operands(&q->problem, q->view, o->list);
    for (int i = 0; i < o->count; i++) {
        const sat_operand *x = &o->list[i];
        if (x->span < 0 || x->span > MOST_BYTES / 8 || x->align > 4096) return false;
        all += (size_t)x->span * 8;
    }
    if (all > MOST_BYTES) return false;
    for (int i = 0; i < o->count; i++) {
        const sat_operand *x = &o->list[i];
        size_t bytes = (size_t)x->span * sat_operand_size(x), align = x->align < 16 ? 16 : x->align;
        demand(posix_memalign(&o->memory[i], align, bytes ? bytes : 1) == 0);
        o->pointer[i] = o->memory[i];
        for (int64_t e = 0; e < x->span && !x->index; e++)
            sat_store(x->dtype, o->pointer[i], e,
                      (double)(sat_mix(seed + (uint64_t)e * 7 + (uint64_t)i) >> 40) * 0x1p-23 - 1);
    }
    const sat_operand *out = &o->list[q->op->output];
    size_t bytes = (size_t)out->span * sat_dtype_size(out->dtype);
    o->before = malloc(bytes + 1);
    demand(o->before);
    memcpy(o->before, o->pointer[q->op->output], bytes);
    return true;
}

static void free_operands(operands *o) {
    for (int i = 0; i < o->count; i++) free(o->memory[i]);
    free(o->before);
}

/* One element of a matmul or sampled product, and how far it may be off: worst-case rounding, whatever the order. */
typedef struct element {
    double want, bound;
} element;

static element finish(const sat_problem *p, double sum, double size, int64_t depth, double before, double bias) {
    double rest = (p->beta != 0 ? p->beta * before : 0) + bias, x = p->alpha * sum + rest;
    double most = fabs(p->alpha) * size + fabs(p->beta * before) + fabs(bias),
           want = sat_act_f64(sat_activation_of(p), x);
    double loss = sat_accumulated(p, depth) * most + 2 * (double)(depth + 4) * sat_tiny(p->compute_dtype);
    return (element){want, 1.2 * loss + 16 * sat_unit(p->compute_dtype) * fabs(x) +
                               1.01 * sat_unit(p->c_dtype) * (fabs(want) + loss) + 2 * sat_tiny(p->c_dtype)};
}

static void expect(const sat_problem *p, const operands *o, int64_t at, element e) {
    double got = sat_load(p->c_dtype, o->pointer[2], at), top = p->c_dtype == SAT_F16   ? 65504
                                                                : p->c_dtype == SAT_F64 ? 1e300
                                                                                        : 1e38;
    if (fabs(e.want) + e.bound >= top) return; /* may overflow */
    demand(fabs(got - e.want) <= e.bound);
}

static void check_matmul(const sat_request *q, const operands *o) {
    const sat_problem *p = &q->problem;
    sat_rows r = sat_op_rows(p, q->view);
    for (int64_t z = 0; z < p->batch; z++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                double sum = 0, size = 0;
                int64_t depth = 0, at = z * p->c.batch_stride + i * p->c.row_stride + j * p->c.col_stride;
                for (int64_t t = r.ptr[i / r.br]; t < r.ptr[i / r.br + 1]; t++)
                    for (int64_t k = 0; k < sat_min(r.bc, r.k - r.col[t] * r.bc); k++, depth++) {
                        int64_t from = sat_block_of(&r, t) * r.block_elements + i % r.br * r.row_step + k * r.col_step;
                        double a = sat_load(p->a_dtype, o->pointer[0], z * p->a.batch_stride + from);
                        double b = sat_load(p->b_dtype, o->pointer[1],
                                            z * p->b.batch_stride + (r.col[t] * r.bc + k) * p->b.row_stride +
                                                j * p->b.col_stride);
                        sum += a * b, size += fabs(a * b);
                    }
                double bias = p->matmul.bias == SAT_BIAS_ROW ? sat_load(p->c_dtype, o->pointer[3], i) : 0;
                expect(p, o, at, finish(p, sum, size, depth, sat_load(p->c_dtype, o->before, at), bias));
            }
}

static void check_sampled(const sat_request *q, const operands *o) {
    const sat_problem *p = &q->problem;
    const sat_pattern_view *a = q->view;
    for (int64_t z = 0; z < p->batch; z++)
        for (int64_t g = 0; g < a->grid_rows; g++)
            for (int64_t t = a->row_ptr[g]; t < a->row_ptr[g + 1]; t++)
                for (int64_t e = 0; e < a->block_rows * a->block_cols; e++) {
                    int64_t i = g * a->block_rows + e / a->block_cols,
                            j = a->col_idx[t] * a->block_cols + e % a->block_cols;
                    int64_t at = z * p->c.batch_stride + t * a->block_rows * a->block_cols + e;
                    double sum = 0, size = 0;
                    if (i >= a->rows || j >= a->cols) {
                        demand(sat_load(p->c_dtype, o->pointer[2], at) == 0);
                        continue;
                    }
                    for (int64_t k = 0; k < p->k; k++) {
                        double x = sat_load(p->a_dtype, o->pointer[0],
                                            z * p->a.batch_stride + i * p->a.row_stride + k * p->a.col_stride);
                        double y = sat_load(p->b_dtype, o->pointer[1],
                                            z * p->b.batch_stride + k * p->b.row_stride + j * p->b.col_stride);
                        sum += x * y, size += fabs(x * y);
                    }
                    expect(p, o, at, finish(p, sum, size, p->k, sat_load(p->c_dtype, o->before, at), 0));
                }
}

/* Scalars that a plain loop can follow. */
static bool tame(double x) { return isfinite(x) && fabs(x) <= 16 && (x == 0 || fabs(x) >= 1e-3); }

/* Offsets without faults, mostly. */
static void take_offsets(bytes *b, const sat_problem *p, void *to) {
    const sat_grouped *g = &p->grouped;
    int64_t at = 0;
    for (int64_t i = 0; i <= g->groups; i++) {
        if (i > 0) at += take(b, sat_max(1, p->m - at + 1));
        int64_t given = take(b, 24) == 23 ? take_size(b, 40) : at;
        if (g->offset_type == SAT_I32) ((int32_t *)to)[i] = (int32_t)given;
        else ((int64_t *)to)[i] = given;
    }
}

/* The group that row i is in; -1 where it is in none. From a fault on groups are empty. */
static int64_t group_of(const sat_problem *p, const void *offsets, int64_t i) {
    const sat_grouped *g = &p->grouped;
    for (int64_t e = 0, before = 0; e <= g->groups; e++) {
        int64_t at = g->offset_type == SAT_I32 ? ((const int32_t *)offsets)[e] : ((const int64_t *)offsets)[e];
        if ((e == 0 && at != 0) || at < before || at > p->m) return -1;
        if (i < at) return e - 1;
        before = at;
    }
    return -1;
}

static void check_grouped(const sat_request *q, const operands *o) {
    const sat_problem *p = &q->problem;
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    if (p->n == 0) return;
    for (int64_t line = 0; line < (weights ? p->grouped.groups * p->k : p->m); line++)
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0, size = 0;
            int64_t group = weights ? line / p->k : group_of(p, o->pointer[3], line), depth = 0;
            for (int64_t e = 0; e < (weights ? p->m : group < 0 ? 0 : p->k); e++) {
                if (weights && group_of(p, o->pointer[3], e) != group) continue;
                int64_t a = weights ? e * p->a.row_stride + line % p->k * p->a.col_stride
                                    : line * p->a.row_stride + e * p->a.col_stride;
                int64_t b = (weights ? 0 : group * p->b.batch_stride) + e * p->b.row_stride + j * p->b.col_stride;
                double term = sat_load(p->a_dtype, o->pointer[0], a) * sat_load(p->b_dtype, o->pointer[1], b);
                sum += term, size += fabs(term), depth++;
            }
            int64_t at = weights ? group * p->c.batch_stride + line % p->k * p->c.row_stride : line * p->c.row_stride;
            at += j * p->c.col_stride;
            double bias = p->grouped.bias && group >= 0 ? sat_load(p->c_dtype, o->pointer[4], group * p->n + j) : 0;
            sat_problem like = *p; /* a matmul's activation is what the arithmetic knows */
            like.op = SAT_MATMUL, like.matmul = (sat_matmul){.activation = p->grouped.activation};
            expect(p, o, at, finish(&like, sum, size, depth, sat_load(p->c_dtype, o->before, at), bias));
        }
}

static void check_result(const sat_request *q, const operands *o) {
    const sat_problem *p = &q->problem;
    if (!tame(p->alpha) || !tame(p->beta)) return;
    double visits = (double)p->batch * ((double)p->m + 1) * ((double)p->n + 1); /* also where nothing is multiplied */
    if (q->op->flops(p, q->view) + visits > 2e6) return; /* a plain loop under a sanitizer takes its time */
    if (p->op == SAT_MATMUL) check_matmul(q, o);
    else if (p->op == SAT_SAMPLED) check_sampled(q, o);
    else if (p->op == SAT_GROUPED || p->op == SAT_GROUPED_WEIGHTS) check_grouped(q, o);
}

/* Faults in offsets are reported, and the result is there. */
static bool has_result(const sat_problem *p, sat_status status) {
    bool grouped = p->op == SAT_GROUPED || p->op == SAT_GROUPED_WEIGHTS;
    return status == SAT_OK || (grouped && status == SAT_BAD_ROW_PTR);
}

static sat_status one_call(sat_context *ctx, const sat_pattern *pattern, const sat_problem *p, const operands *o) {
    void *const *x = o->pointer;
    switch (p->op) {
    case SAT_MATMUL:
        return sat_bsr_matmul(ctx, pattern, p, x[0], x[1], x[2], p->matmul.bias == SAT_BIAS_ROW ? x[3] : NULL, NULL);
    case SAT_SAMPLED: return sat_bsr_sampled_matmul(ctx, pattern, p, x[0], x[1], x[2], NULL);
    case SAT_ATTENTION:
        return sat_attention_forward(ctx, pattern, p, x[0], x[1], x[2], x[3], p->attention.lse ? x[4] : NULL, NULL);
    case SAT_GROUPED: return sat_grouped_matmul(ctx, p, x[0], x[1], x[3], x[2], p->grouped.bias ? x[4] : NULL, NULL);
    case SAT_GROUPED_WEIGHTS: return sat_grouped_weights(ctx, p, x[0], x[1], x[3], x[2], NULL);
    default: return sat_attention_backward(ctx, pattern, p, x[0], x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8], NULL);
    }
}

/* Counts that are one off are refused. */
static sat_status run_plan(sat_plan *plan, const sat_request *q, const operands *o) {
    sat_operand list[SAT_MAX_OPERANDS];
    const void *inputs[SAT_MAX_OPERANDS + 1] = {NULL};
    void *outputs[SAT_MAX_OPERANDS + 1] = {NULL};
    size_t in = 0, out = 0;
    int count = q->op->operands(&q->problem, q->view, list);
    for (int i = 0; i < count; i++) {
        if (list[i].output) outputs[out++] = o->pointer[i];
        else inputs[in++] = o->pointer[i];
    }
    demand(sat_run(plan, inputs, in + 1, outputs, out, NULL) == SAT_BAD_SIZE);
    demand(sat_run(plan, inputs, in, outputs, out - 1, NULL) == SAT_BAD_SIZE);
    return sat_run(plan, inputs, in, outputs, out, NULL);
}

static void run_product(bytes *b, sat_context *ctx, const sat_pattern *pattern, const sat_problem *p) {
    sat_request q;
    operands o;
    sat_plan *plan = NULL, *copy = NULL;
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    bool known = sat_request_make(&q, ctx, pattern, p) == SAT_OK;
    if (!known) { /* what is refused is refused by all */
        unsigned messages = sat_messages();
        demand(sat_plan_create(ctx, pattern, p, &plan) != SAT_OK && !plan);
        demand(sat_messages() > messages && sat_last_error()[0]);
        return;
    }
    if (!make_operands(&o, &q, (uint64_t)take_wide(b))) {
        free_operands(&o);
        return; /* a valid problem of great size */
    }
    if (!pattern) take_offsets(b, &q.problem, o.pointer[3]);
    if (take(b, 3) == 0) {
        if (has_result(p, one_call(ctx, pattern, p, &o))) check_result(&q, &o);
    } else if (sat_plan_create(ctx, pattern, p, &plan) == SAT_OK) {
        demand(sat_plan_get_info(plan, &info) == SAT_OK && info.variant[0]);
        if (take(b, 8) == 0) demand(sat_plan_dup(plan, &copy) == SAT_OK);
        if (take(b, 16) == 0) o.pointer[take(b, o.count)] = NULL;
        if (has_result(p, run_plan(copy ? copy : plan, &q, &o))) check_result(&q, &o);
        sat_plan_free(copy);
        sat_plan_free(plan);
    }
    free_operands(&o);
}

/* ---- imports ---- */

static void import_rest(bytes *b, sat_context *ctx) {
    sat_text text = {0};
    int64_t entries = 0, how = take(b, 3);
    if (how == 1) sat_text_adds(&text, "sparse_autotune cache 1.0\ndevice=d\nkey=k\n");
    sat_text_add(&text, (const char *)b->at, (size_t)(b->end - b->at));
    if (how) sat_text_seal(&text, 0);
    b->at = b->end;
    FILE *f = fopen(import_path, "wb");
    demand(f && text.data && !text.failed);
    fwrite(text.data, 1, text.length, f);
    fclose(f);
    (void)sat_cache_import(ctx, import_path, &entries);
    (void)sat_cache_clear(ctx, NULL, &entries);
    unlink(import_path);
    sat_text_free(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, data + size};
    open_world();
    sat_context *ctx = contexts[take(&b, 64) == 63 ? QUICK : OFF]; /* a race takes a hundred times as long */
    int64_t kind = take(&b, 16);
    if (kind == 15) {
        import_rest(&b, ctx);
        return 0;
    }
    for (int i = 0; i < 4 && kind == 14 && (i == 0 || b.at < b.end); i++) {
        sat_problem p = take_grouped(&b);
        run_product(&b, ctx, NULL, enlarge(&b, 1, &p, sizeof p));
    }
    if (kind == 14) return 0;
    sat_pattern *pattern = make_pattern(&b, ctx);
    for (int i = 0; i < 4 && pattern && (i == 0 || b.at < b.end); i++) {
        sat_problem p = take_problem(&b);
        run_product(&b, ctx, pattern, enlarge(&b, 1, &p, sizeof p));
    }
    sat_pattern_free(pattern);
    return 0;
}
