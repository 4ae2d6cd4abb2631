/* Plans: a ready variant and the checks that a run makes on its pointers. */
#include <stdlib.h>
#include <string.h>

#include "core/answer.h"
#include "core/plan.h"
#include "core/runner.h"
#include "variant.h"

enum { SEEN = 8 }; /* more buffers than anyone takes turns with */

/* Pointers that were found usable, newest last: asking a driver takes a good part of the time that a run may. */
typedef struct seen {
    void *pointer[SEEN];
    unsigned next;
} seen;

struct sat_plan {
    sat_context *ctx;
    sat_pattern *pattern; /* a reference */
    sat_runner runner;
    sat_plan_info info;
    int count, output;
    sat_operand operand[SAT_MAX_OPERANDS];
    seen seen[SAT_MAX_OPERANDS];
};

static sat_status make_plan(const sat_question *q, const sat_answer *answer, sat_plan **plan) {
    sat_plan *p = calloc(1, sizeof *p);
    if (!p) return sat_fail(SAT_OUT_OF_MEMORY, "plan");
    p->ctx = q->ctx;
    p->count = q->op->operands(&q->problem, q->view, p->operand);
    p->output = q->op->output;
    sat_status status =
        sat_runner_open(&p->runner, q->ctx, answer->variant, &q->problem, q->view, &q->device, q->memory_limit, NULL);
    if (status != SAT_OK) {
        free(p);
        return status;
    }
    p->pattern = sat_pattern_ref(q->pattern);
    p->info = (sat_plan_info){SAT_SIZED(sat_plan_info),
                              .cached = answer->cached,
                              .tuned = answer->tuned,
                              .verified = answer->verified,
                              .tuning_seconds = answer->tuning_seconds,
                              .prepare_seconds = p->runner.prepare_seconds,
                              .workspace_bytes = p->runner.workspace_bytes,
                              .flops = q->op->flops(&q->problem, q->view),
                              .bytes = q->op->bytes(&q->problem, q->view)};
    strncpy(p->info.variant, answer->variant->name, sizeof p->info.variant - 1);
    p->info.estimate_seconds = answer->variant->estimate(answer->variant, &q->problem, q->view, &q->device);
    *plan = p;
    return SAT_OK;
}

sat_status sat_plan_create(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, sat_plan **plan) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    *plan = NULL;
    sat_question q;
    sat_answer answer;
    SAT_TRY(sat_question_make(&q, ctx, pattern, problem));
    SAT_TRY(sat_answer_find(&q, &answer));
    sat_status status = make_plan(&q, &answer, plan);
    if (status != SAT_OUT_OF_MEMORY) return status;
    q.memory_limit = 0; /* less was to be had than it seemed: what takes no workspace still serves */
    SAT_TRY(sat_answer_estimate(&q, &answer));
    return make_plan(&q, &answer, plan);
}

sat_status sat_plan_create_bare(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                sat_plan **plan) {
    *plan = NULL;
    sat_question q;
    sat_answer answer;
    if (problem->transpose == SAT_TRANSPOSE && !sat_pattern_has_transposed(pattern))
        return sat_fail(SAT_UNSUPPORTED, "the pattern's transposed index takes memory");
    SAT_TRY(sat_question_make(&q, ctx, pattern, problem));
    SAT_TRY(sat_answer_bare(&q, &answer));
    return make_plan(&q, &answer, plan);
}

sat_status sat_plan_create_with(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                const char *variant, sat_plan **plan) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    *plan = NULL;
    if (!variant) return sat_fail(SAT_NULL_POINTER, "variant is NULL");
    sat_question q;
    SAT_TRY(sat_question_make(&q, ctx, pattern, problem));
    sat_answer answer = {.variant = sat_registry_find(&ctx->registry, variant)};
    if (!answer.variant) return sat_fail(SAT_NOT_FOUND, "variant is '%s'; no such variant is registered", variant);
    if (!sat_variant_fits(answer.variant, &q.problem, q.view, &q.device))
        return sat_fail(SAT_UNSUPPORTED, "variant is '%s', which does not fit %s", variant, q.exact);
    return make_plan(&q, &answer, plan);
}

sat_status sat_plan_dup(const sat_plan *plan, sat_plan **copy) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!copy) return sat_fail(SAT_NULL_POINTER, "copy is NULL");
    *copy = NULL;
    sat_plan *p = malloc(sizeof *p);
    if (!p) return sat_fail(SAT_OUT_OF_MEMORY, "plan");
    *p = *plan;
    const sat_runner *r = &plan->runner;
    sat_status status = sat_runner_open(&p->runner, p->ctx, r->variant, &r->problem, r->pattern, &r->device,
                                        sat_memory_limit(p->ctx), NULL);
    if (status != SAT_OK) {
        free(p);
        return status;
    }
    sat_pattern_ref(p->pattern);
    p->info.tuned = false, p->info.tuning_seconds = 0;
    *copy = p;
    return SAT_OK;
}

void sat_plan_free(sat_plan *plan) {
    if (!plan) return;
    /* Memory waits for what is queued by itself; what a variant prepared may be more than memory. */
    if (plan->runner.state) plan->ctx->backend->settle(&plan->runner.device);
    sat_runner_close(&plan->runner);
    sat_pattern_free(plan->pattern);
    free(plan);
}

sat_status sat_plan_get_info(const sat_plan *plan, sat_plan_info *info) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!info) return sat_fail(SAT_NULL_POINTER, "info is NULL");
    return sat_struct_out(info, &plan->info, sizeof plan->info, sizeof plan->info, "sat_plan_info");
}

/* ---- running ---- */

static size_t bytes_of(const sat_operand *o) { return (size_t)o->span * sat_dtype_size(o->dtype); }

/* Two views of one row-major buffer may lie side by side in its rows: their spans cross, their elements do not. */
static bool side_by_side(const sat_operand *x, uintptr_t px, const sat_operand *y, uintptr_t py) {
    size_t size = sat_dtype_size(x->dtype);
    int64_t row = x->layout.row_stride;
    if (size != sat_dtype_size(y->dtype) || row != y->layout.row_stride || row == 0) return false;
    if (x->layout.col_stride != 1 || y->layout.col_stride != 1 || x->values || y->values) return false;
    if ((x->batch > 1 && x->layout.batch_stride % row) || (y->batch > 1 && y->layout.batch_stride % row)) return false;
    int64_t distance = py >= px ? (int64_t)((py - px) / size) % row : (row - (int64_t)((px - py) / size) % row) % row;
    return distance >= x->cols && distance + y->cols <= row;
}

static bool overlap(const sat_operand *x, const void *at_x, const sat_operand *y, const void *at_y) {
    uintptr_t px = (uintptr_t)at_x, py = (uintptr_t)at_y;
    size_t nx = bytes_of(x), ny = bytes_of(y);
    return nx && ny && px < py + ny && py < px + nx && !side_by_side(x, px, y, py);
}

static sat_status check_pointer(sat_plan *p, int i, void *pointer) {
    const sat_operand *o = &p->operand[i];
    if (!pointer) return o->span ? sat_fail(SAT_NULL_POINTER, "%s is NULL", o->name) : SAT_OK;
    if ((uintptr_t)pointer & (o->align - 1))
        return sat_fail(SAT_MISALIGNED, "%s is %p; the problem says that it is a multiple of %u bytes", o->name,
                        pointer, o->align);
    seen *s = &p->seen[i];
    for (int j = 0; j < SEEN; j++)
        if (s->pointer[j] == pointer) return SAT_OK;
    if (!p->ctx->backend->usable(&p->runner.device, pointer))
        return sat_fail(SAT_WRONG_MEMORY, "%s is %p, which %s cannot use", o->name, pointer, p->runner.device.name);
    s->pointer[s->next++ % SEEN] = pointer;
    return SAT_OK;
}

sat_status sat_run(sat_plan *plan, void *const *operands, void *stream) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!operands) return sat_fail(SAT_NULL_POINTER, "operands is NULL");
    void *all[SAT_MAX_OPERANDS] = {0};
    for (int i = 0; i < plan->count; i++) {
        SAT_TRY(check_pointer(plan, i, operands[i]));
        all[i] = operands[i];
    }
    const sat_operand *out = &plan->operand[plan->output];
    for (int i = 0; i < plan->count; i++)
        if (i != plan->output && overlap(out, all[plan->output], &plan->operand[i], all[i]))
            return sat_fail(SAT_OVERLAP, "%s at %p overlaps %s at %p", out->name, all[plan->output],
                            plan->operand[i].name, all[i]);
    if (!out->span) return SAT_OK; /* a batch of 2^40 empty products would take its time to do nothing */
    return sat_runner_launch(&plan->runner, all, stream);
}

sat_status sat_plan_refresh(sat_plan *plan, const void *values, void *stream) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!(plan->runner.problem.flags & SAT_FIXED_VALUES)) return SAT_OK;
    SAT_TRY(check_pointer(plan, 0, (void *)(uintptr_t)values));
    return sat_runner_refresh(&plan->runner, values, stream);
}

/* ---- problems ---- */

static sat_problem plain_problem(sat_operation op, sat_dtype dtype) {
    return (sat_problem){SAT_SIZED(sat_problem), .op = op,         .batch = 1,   .a_dtype = dtype,
                         .b_dtype = dtype,       .c_dtype = dtype, .alpha = 1.0, .compute_dtype = 0};
}

sat_problem sat_matmul_problem(sat_dtype dtype, int64_t n) {
    sat_problem p = plain_problem(SAT_MATMUL, dtype);
    p.n = n;
    return p;
}

sat_problem sat_sampled_problem(sat_dtype dtype, int64_t k) {
    sat_problem p = plain_problem(SAT_SAMPLED, dtype);
    p.k = k;
    return p;
}

sat_status sat_problem_key(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, char *key,
                           size_t capacity) {
    sat_question q;
    SAT_TRY(sat_question_make(&q, ctx, pattern, problem));
    if (!key) return sat_fail(SAT_NULL_POINTER, "key is NULL");
    if (capacity <= strlen(q.key))
        return sat_fail(SAT_BAD_SIZE, "capacity is %zu; expected at least %zu", capacity, strlen(q.key) + 1);
    memcpy(key, q.key, strlen(q.key) + 1);
    return SAT_OK;
}
