/* Plans: a ready variant and the checks that a run makes on its pointers. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/ranges.h"
#include "core/select.h"
#include "core/plan.h"
#include "core/runner.h"
#include "variant.h"

enum {
    SEEN = 8,   /* recently validated pointers per operand */
    INDICES = 2 /* row_ptr and col_idx, where a run brings them */
};

/* A ring of pointers that were found usable: asking the driver takes a good part of the time of a short run. */
typedef struct seen {
    void *pointer[SEEN];
    unsigned next;
} seen;

struct sat_plan {
    sat_context *ctx;
    sat_pattern *pattern; /* a reference */
    sat_runner runner;
    sat_plan_info info;
    int count;
    bool writes; /* some output has elements */
    /* Of indices that the host can read, after a run: as sat_op has it; else NULL. */
    sat_status (*check_indices)(const sat_problem *p, void *const *operands);
    bool forked;               /* made, or made anew, in a forked child */
    uint64_t check_id;         /* as in sat_selection */
    unsigned wrong_generation; /* the context's, before the variant was chosen */
    atomic_flag running;
    sat_operand operand[SAT_MAX_OPERANDS];
    seen seen[SAT_MAX_OPERANDS], seen_indices[INDICES];
};

static void describe(sat_plan *p, const sat_request *q, const sat_selection *selection) {
    p->info = (sat_plan_info){SAT_SIZED(sat_plan_info),
                              .cached = selection->cached,
                              .tuned = selection->tuned,
                              .verified = selection->verified,
                              .pattern_verified = selection->pattern_verified,
                              .tuning_seconds = selection->tuning_seconds,
                              .prepare_seconds = p->runner.prepare_seconds,
                              .workspace_bytes = p->runner.workspace_bytes + sat_runner_index_bytes(&p->runner),
                              .flops = q->op->flops(&q->problem, q->view),
                              .bytes = q->op->bytes(&q->problem, q->view)};
    p->check_id = selection->check_id, p->wrong_generation = q->wrong_generation;
    strncpy(p->info.variant, selection->variant->name, sizeof p->info.variant - 1);
    p->info.estimate_seconds = selection->variant->estimate(selection->variant, &q->problem, q->view, &q->device);
}

static sat_status make_plan(const sat_request *q, const sat_selection *selection, sat_plan **plan) {
    sat_plan *p = calloc(1, sizeof *p);
    if (!p) return sat_fail(SAT_OUT_OF_MEMORY, "plan");
    p->ctx = q->ctx;
    atomic_flag_clear(&p->running);
    p->count = q->op->operands(&q->problem, q->view, p->operand);
    for (int i = 0; i < p->count; i++) p->writes = p->writes || (p->operand[i].output && p->operand[i].span);
    sat_status status = sat_runner_open(&p->runner, q->ctx, selection->variant, &q->problem, q->view, &q->device,
                                        q->memory_limit, NULL);
    if (status != SAT_OK) {
        free(p);
        return status;
    }
    p->runner.most_threads = selection->threads;
    if (q->ctx->backend->shares_memory) p->check_indices = q->op->check_indices;
    p->pattern = sat_pattern_ref(q->pattern);
    p->forked = sat_forked();
    describe(p, q, selection);
    *plan = p;
    return SAT_OK;
}

static sat_status select_and_make(sat_request *q, sat_plan **plan) {
    sat_selection selection;
    SAT_TRY(sat_select_variant(q, &selection));
    if (selection.tuned) q->device = sat_device_now(q->ctx); /* its race may have measured the device's rates */
    sat_status status = make_plan(q, &selection, plan);
    if (status != SAT_OUT_OF_MEMORY) return status;
    q->memory_limit = 0; /* the allocation failed: again without workspace */
    SAT_TRY(sat_select_instead(q, status, &selection));
    return make_plan(q, &selection, plan);
}

sat_status sat_plan_create(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, sat_plan **plan) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    *plan = NULL;
    sat_request q;
    SAT_TRY(sat_request_make(&q, ctx, pattern, problem));
    sat_range_push(q.full_key);
    sat_status status = select_and_make(&q, plan);
    sat_range_pop();
    return status;
}

sat_status sat_plan_create_without_memory(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                          sat_plan **plan) {
    *plan = NULL;
    sat_request q;
    sat_selection selection;
    const sat_op *op = sat_op_find(problem->op);
    bool needs_columns = op && op->needs_columns && op->needs_columns(problem);
    if (needs_columns && !sat_pattern_has_transposed(pattern))
        return sat_fail(SAT_UNSUPPORTED, "the pattern's transposed index takes memory");
    SAT_TRY(sat_request_make(&q, ctx, pattern, problem));
    SAT_TRY(sat_select_without_memory(&q, &selection));
    return make_plan(&q, &selection, plan);
}

sat_status sat_plan_create_with(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem,
                                const char *variant, sat_plan **plan) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    *plan = NULL;
    if (!variant) return sat_fail(SAT_NULL_POINTER, "variant is NULL");
    sat_request q;
    SAT_TRY(sat_request_make(&q, ctx, pattern, problem));
    sat_selection selection = {.variant = sat_registry_find(&ctx->registry, variant)};
    if (!selection.variant) return sat_fail(SAT_NOT_FOUND, "variant is '%s'; no such variant is registered", variant);
    if (!sat_variant_fits(selection.variant, &q.problem, q.view, &q.device))
        return sat_fail(SAT_UNSUPPORTED, "variant is '%s', which does not fit %s", variant, q.full_key);
    return make_plan(&q, &selection, plan);
}

sat_status sat_plan_dup(const sat_plan *plan, sat_plan **copy) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!copy) return sat_fail(SAT_NULL_POINTER, "copy is NULL");
    *copy = NULL;
    sat_plan *p = calloc(1, sizeof *p);
    if (!p) return sat_fail(SAT_OUT_OF_MEMORY, "plan");
    p->ctx = plan->ctx, p->pattern = plan->pattern, p->info = plan->info; /* what no run of the plan writes */
    p->count = plan->count, p->writes = plan->writes, p->forked = plan->forked;
    p->check_indices = plan->check_indices;
    p->check_id = plan->check_id, p->wrong_generation = plan->wrong_generation;
    memcpy(p->operand, plan->operand, sizeof p->operand);
    atomic_flag_clear(&p->running);
    const sat_runner *r = &plan->runner;
    sat_status status =
        sat_runner_open(&p->runner, p->ctx, r->variant, &r->problem, r->pattern, &r->device, SAT_LIMIT_UNKNOWN, NULL);
    if (status != SAT_OK) {
        free(p);
        return status;
    }
    p->runner.most_threads = r->most_threads;
    sat_pattern_ref(p->pattern);
    p->info.tuned = false, p->info.tuning_seconds = 0;
    *copy = p;
    return SAT_OK;
}

void sat_plan_free(sat_plan *plan) {
    if (!plan) return;
    /* Memory waits for what is queued by itself; what a variant prepared may be more than memory. */
    if (plan->runner.state) plan->ctx->backend->sync_device(&plan->runner.device);
    sat_runner_close(&plan->runner);
    sat_pattern_free(plan->pattern);
    free(plan);
}

/* Was the plan's variant found wrong, on any problem of its key, after the plan was made? */
static bool found_wrong_since(const sat_plan *plan) {
    sat_request q;
    sat_entry entry;
    if (atomic_load(&plan->ctx->wrong_generation) == plan->wrong_generation) return false;
    if (sat_request_make(&q, plan->ctx, plan->pattern, &plan->runner.problem) != SAT_OK) return false;
    if (sat_cache_find(plan->ctx->cache, q.key, false, &entry) != SAT_OK) return false;
    bool wrong = sat_choose_wrong(&entry, plan->runner.variant);
    sat_entry_free(&entry);
    return wrong;
}

sat_status sat_plan_get_info(const sat_plan *plan, sat_plan_info *info) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!info) return sat_fail(SAT_NULL_POINTER, "info is NULL");
    sat_plan_info now = plan->info;
    if (now.verified && !now.pattern_verified) now.pattern_verified = sat_memo_checked(plan->ctx->memo, plan->check_id);
    if (now.verified && found_wrong_since(plan)) now.verified = now.pattern_verified = false;
    return sat_struct_out(info, &now, sizeof now, sizeof now, "sat_plan_info");
}

/* ---- running ---- */

static size_t bytes_of(const sat_operand *o) { return (size_t)o->span * sat_operand_size(o); }

/* How far an operand reaches in a line of a buffer whose lines are `line` long: strides lead from line to line, or stay
 * within one. Beyond `line` where they do neither. */
static int64_t reach_in_line(const sat_operand *o, int64_t line) {
    int64_t group = o->group ? o->group : o->rows;
    const int64_t extent[] = {group, o->rows / (group ? group : 1), o->batch};
    const int64_t stride[] = {o->layout.row_stride, o->group_stride, o->layout.batch_stride};
    int64_t reach = o->cols;
    for (int i = 0; i < 3; i++)
        if (extent[i] > 1 && stride[i] % line) reach += stride[i] < line ? (extent[i] - 1) * stride[i] : line;
    return reach;
}

/* Two views of one row-major buffer may be stored side by side in its lines: their spans overlap, their elements do
 * not. */
static bool side_by_side_in(const sat_operand *x, uintptr_t px, const sat_operand *y, uintptr_t py, int64_t line) {
    size_t size = sat_dtype_size(x->dtype);
    if (line <= 0) return false;
    int64_t distance =
        py >= px ? (int64_t)((py - px) / size) % line : (line - (int64_t)((px - py) / size) % line) % line;
    return distance >= reach_in_line(x, line) && distance + reach_in_line(y, line) <= line;
}

static bool side_by_side(const sat_operand *x, uintptr_t px, const sat_operand *y, uintptr_t py) {
    if (sat_dtype_size(x->dtype) != sat_dtype_size(y->dtype) || x->values || y->values) return false;
    if (x->layout.col_stride != 1 || y->layout.col_stride != 1) return false;
    return side_by_side_in(x, px, y, py, x->layout.row_stride) ||
           (x->group && side_by_side_in(x, px, y, py, x->group_stride));
}

static bool overlap(const sat_operand *x, const void *at_x, const sat_operand *y, const void *at_y) {
    uintptr_t px = (uintptr_t)at_x, py = (uintptr_t)at_y;
    size_t nx = bytes_of(x), ny = bytes_of(y);
    return nx && ny && px < py + ny && py < px + nx && !side_by_side(x, px, y, py);
}

static sat_status check_usable(sat_plan *p, seen *s, const char *name, void *pointer) {
    for (int j = 0; j < SEEN; j++)
        if (s->pointer[j] == pointer) return SAT_OK;
    if (!p->ctx->backend->usable(&p->runner.device, pointer))
        return sat_fail(SAT_WRONG_MEMORY, "%s is %p, which %s cannot use", name, pointer, p->runner.device.name);
    s->pointer[s->next++ % SEEN] = pointer;
    return SAT_OK;
}

static sat_status check_pointer(sat_plan *p, int i, void *pointer) {
    const sat_operand *o = &p->operand[i];
    if (!pointer) return o->span ? sat_fail(SAT_NULL_POINTER, "%s is NULL", o->name) : SAT_OK;
    if ((uintptr_t)pointer & (o->align - 1))
        return sat_fail(SAT_MISALIGNED, "%s is %p; the problem says that it is a multiple of %u bytes", o->name,
                        pointer, o->align);
    return check_usable(p, &p->seen[i], o->name, pointer);
}

/* `indices`: those that a run brings, or NULL for the pattern's own, which were checked when it was made. */
static sat_status check_run_indices(sat_plan *p, const void *const *indices) {
    static const char *const names[INDICES] = {"row_ptr", "col_idx"};
    const sat_pattern_view *a = p->runner.pattern;
    size_t width = a->dynamic->type == SAT_I32 ? 4 : 8;
    if (!indices && !a->dynamic->row_ptr)
        return sat_fail(SAT_NULL_POINTER,
                        "row_ptr is NULL in the pattern; expected two inputs more, row_ptr and col_idx");
    for (int i = 0; indices && i < (a->stored_blocks > 0 ? INDICES : 1); i++) {
        void *pointer = (void *)(uintptr_t)indices[i];
        if (!pointer) return sat_fail(SAT_NULL_POINTER, "%s is NULL", names[i]);
        if ((uintptr_t)pointer % width)
            return sat_fail(SAT_MISALIGNED, "%s is %p; expected a multiple of %zu bytes", names[i], pointer, width);
        SAT_TRY(check_usable(p, &p->seen_indices[i], names[i], pointer));
    }
    return SAT_OK;
}

static sat_status check_overlap(const sat_plan *p, void *const *all, int j) {
    const sat_operand *out = &p->operand[j];
    for (int i = 0; i < p->count; i++)
        if (i != j && overlap(out, all[j], &p->operand[i], all[i]))
            return sat_fail(SAT_OVERLAP, "%s at %p overlaps %s at %p", out->name, all[j], p->operand[i].name, all[i]);
    return SAT_OK;
}

/* A library's threads are not there in a forked child, and its locks may be held by threads that are gone: a plan that
 * was made before the fork then takes a variant of our own. What it held of the library is left alone. */
static sat_status plan_after_fork(sat_plan *plan) {
    sat_request q;
    sat_selection selection;
    sat_runner runner;
    const sat_runner *r = &plan->runner;
    if (!sat_variant_fits(r->variant, &r->problem, r->pattern, &r->device)) {
        SAT_TRY(sat_request_make(&q, plan->ctx, plan->pattern, &r->problem));
        sat_status why = sat_fail(SAT_NOT_FOUND, "%s is pinned, and cannot run in a forked process", r->variant->name);
        SAT_TRY(sat_select_instead(&q, why, &selection));
        SAT_TRY(
            sat_runner_open(&runner, q.ctx, selection.variant, &q.problem, q.view, &q.device, q.memory_limit, NULL));
        plan->runner = runner;
        describe(plan, &q, &selection);
    }
    plan->forked = true;
    return SAT_OK;
}

static sat_status launch(sat_plan *plan, void *const *operands, const void *const *indices, void *stream) {
    void *all[SAT_MAX_OPERANDS];
    for (int i = 0; i < SAT_MAX_OPERANDS; i++) all[i] = i < plan->count ? operands[i] : NULL;
    for (int i = 0; i < plan->count; i++) SAT_TRY(check_pointer(plan, i, all[i]));
    for (int j = 0; j < plan->count; j++)
        if (plan->operand[j].output) SAT_TRY(check_overlap(plan, all, j));
    if (plan->forked != sat_forked()) SAT_TRY(plan_after_fork(plan));
    if (!plan->writes) return SAT_OK; /* a batch of 2^40 empty products would take its time to do nothing */
    if (plan->runner.tracker) {
        SAT_TRY(check_run_indices(plan, indices));
        sat_tracker_read_from(plan->runner.tracker, indices);
    }
    SAT_TRY(sat_runner_launch(&plan->runner, all, stream));
    SAT_TRY(sat_runner_fault(&plan->runner));
    return plan->check_indices ? plan->check_indices(&plan->runner.problem, all) : SAT_OK;
}

static void leave(sat_plan *plan) { atomic_flag_clear_explicit(&plan->running, memory_order_release); }

/* A plan has one workspace. Two runs at once would mix their sums in it, so the second is refused. A run of the
 * parent's that was under way when this process was forked goes on there, and not here. */
static sat_status enter(sat_plan *plan) {
    if (plan->forked != sat_forked()) leave(plan);
    if (!atomic_flag_test_and_set_explicit(&plan->running, memory_order_acquire)) return SAT_OK;
    return sat_fail(SAT_BUSY, "plan is running in another thread; expected one of its own for each (sat_plan_dup)");
}

sat_status sat_plan_launch(sat_plan *plan, void *const *operands, const void *const *indices, void *stream) {
    SAT_TRY(enter(plan));
    sat_status status = launch(plan, operands, indices, stream);
    leave(plan);
    return status;
}

/* "2 (values, b)" */
static void spell_operands(const sat_plan *plan, bool output, char *text, size_t size) {
    int count = 0;
    for (int i = 0; i < plan->count; i++) count += plan->operand[i].name && plan->operand[i].output == output;
    int at = snprintf(text, size, "%d (", count);
    for (int i = 0, n = 0; i < plan->count; i++)
        if (plan->operand[i].name && plan->operand[i].output == output)
            at += snprintf(text + at, size - (size_t)at, "%s%s%s", n ? ", " : "", plan->operand[i].name,
                           n + 1 == count ? ")" : ""),
                n++;
}

static sat_status wrong_count(const sat_plan *plan, bool output, size_t count) {
    char expected[96];
    spell_operands(plan, output, expected, sizeof expected);
    return sat_fail(SAT_BAD_SIZE, "%s_count is %zu; expected %s", output ? "output" : "input", count, expected);
}

sat_status sat_run(sat_plan *plan, const void *const *inputs, size_t input_count, void *const *outputs,
                   size_t output_count, void *stream) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!inputs) return sat_fail(SAT_NULL_POINTER, "inputs is NULL");
    if (!outputs) return sat_fail(SAT_NULL_POINTER, "outputs is NULL");
    void *operands[SAT_MAX_OPERANDS];
    size_t in = 0, out = 0;
    for (int i = 0; i < plan->count; i++) {
        bool output = plan->operand[i].output;
        operands[i] = NULL;
        if (!plan->operand[i].name) continue;
        if (output ? out == output_count : in == input_count)
            return wrong_count(plan, output, output ? output_count : input_count);
        operands[i] = output ? outputs[out++] : (void *)(uintptr_t)inputs[in++];
    }
    const void *const *indices = plan->runner.tracker && input_count == in + INDICES ? &inputs[in] : NULL;
    if (!indices && in != input_count) return wrong_count(plan, false, input_count);
    if (out != output_count) return wrong_count(plan, true, output_count);
    return sat_plan_launch(plan, operands, indices, stream);
}

sat_status sat_plan_refresh(sat_plan *plan, const void *values, void *stream) {
    if (!plan) return sat_fail(SAT_NULL_POINTER, "plan is NULL");
    if (!(plan->runner.problem.flags & SAT_FIXED_VALUES)) return SAT_OK;
    SAT_TRY(enter(plan));
    sat_status status = check_pointer(plan, 0, (void *)(uintptr_t)values);
    if (status == SAT_OK && plan->forked != sat_forked()) status = plan_after_fork(plan);
    if (status == SAT_OK) status = sat_runner_refresh(&plan->runner, values, stream);
    leave(plan);
    return status;
}

/* ---- keys ---- */

sat_status sat_problem_key(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, char *key,
                           size_t capacity) {
    sat_request q;
    SAT_TRY(sat_request_make(&q, ctx, pattern, problem));
    if (!key) return sat_fail(SAT_NULL_POINTER, "key is NULL");
    if (capacity <= strlen(q.key))
        return sat_fail(SAT_BAD_SIZE, "capacity is %zu; expected at least %zu", capacity, strlen(q.key) + 1);
    memcpy(key, q.key, strlen(q.key) + 1);
    return SAT_OK;
}
