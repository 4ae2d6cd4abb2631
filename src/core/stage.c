/* Made-up operands and their check. */
#include "core/stage.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/answer.h"
#include "core/runner.h"
#include "variant.h"

enum { GUARD = 4096 }; /* poisoned bytes on each side of every operand */

/* Exactly as aligned as the problem says and no more: what runs here runs on the caller's pointers too. */
static void *place(void *memory, uint32_t align) {
    uintptr_t start = ((uintptr_t)memory + GUARD + 4095) & ~(uintptr_t)4095;
    return (void *)(start + (align < 4096 ? align : 0));
}

static size_t allocation(const sat_operand *o) {
    return (size_t)o->span * sat_dtype_size(o->dtype) + 2 * GUARD + 2 * 4096 + (o->align < 4096 ? o->align : 0);
}

/* Only cold runs flush. */
static size_t flush_bytes(const sat_context *ctx, const sat_device *d) {
    bool cold = ctx->options.measure == SAT_MEASURE_COLD;
    return cold && ctx->backend->flush_bytes ? ctx->backend->flush_bytes(d) : 0;
}

static sat_status take_room(sat_stage *s, size_t bytes) {
    if (bytes == 0) return SAT_OK;
    s->room = sat_alloc(s->ctx, bytes);
    if (!s->room) return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes to flush the cache", bytes);
    return s->ctx->backend->set(s->device, s->room, 0, bytes);
}

sat_status sat_stage_open(sat_stage *s, sat_context *ctx, const sat_problem *p, const sat_pattern_view *a,
                          const sat_device *d, size_t limit) {
    *s = (sat_stage){.ctx = ctx, .op = sat_op_find(p->op), .device = d, .problem = p, .pattern = a};
    s->checker = ctx->backend->checker(p->op);
    if (!s->checker) return sat_fail(SAT_UNSUPPORTED, "op %s has no check on %s", s->op->name, d->name);
    s->count = s->op->operands(p, a, s->operand);
    const sat_operand *out = &s->operand[s->op->output];
    size_t need = s->checker->bytes(p, a, SAT_PROBE_PANELS) + (p->beta != 0 ? allocation(out) : 0);
    for (int i = 0; i < s->count; i++) need += allocation(&s->operand[i]);
    size_t room = flush_bytes(ctx, d);
    if (need + room > limit)
        return sat_fail(SAT_OUT_OF_MEMORY,
                        "tuning needs %zu bytes for made-up operands and %zu to flush the cache; the limit is %zu",
                        need, room, limit);
    need += room;
    s->held = need;
    for (int i = 0; i < s->count; i++) {
        s->bytes[i] = (size_t)s->operand[i].span * sat_dtype_size(s->operand[i].dtype);
        s->memory[i] = sat_alloc(ctx, allocation(&s->operand[i]));
        if (!s->memory[i])
            return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes for %s", allocation(&s->operand[i]),
                            s->operand[i].name);
        s->pointer[i] = place(s->memory[i], s->operand[i].align);
        SAT_TRY(ctx->backend->set(d, s->memory[i], 0xff, allocation(&s->operand[i])));
    }
    if (p->beta != 0) {
        s->before_memory = sat_alloc(ctx, allocation(out));
        if (!s->before_memory)
            return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes for a second %s", allocation(out), out->name);
        s->before = place(s->before_memory, out->align);
    }
    return take_room(s, room);
}

static void forget_expectation(sat_stage *s) {
    if (!s->expectation) return;
    int before = s->ctx->backend->enter(s->device, true);
    s->checker->free(s->expectation);
    s->ctx->backend->leave(s->device, before);
    s->expectation = NULL;
}

void sat_stage_close(sat_stage *s) {
    forget_expectation(s);
    for (int i = 0; i < s->count; i++) sat_free(s->ctx, s->memory[i]);
    sat_free(s->ctx, s->before_memory);
    sat_free(s->ctx, s->room);
    *s = (sat_stage){0};
}

static sat_trial trial(const sat_stage *s) {
    return (sat_trial){.device = s->device,
                       .problem = s->problem,
                       .pattern = s->pattern,
                       .operands = s->pointer,
                       .before = s->before,
                       .flipped = s->flipped};
}

/* ---- how large made-up values are ---- */

/* Above this x, gelu(x) and silu(x) are x to the precision that the output shows. */
static double identity_from(const sat_problem *p) {
    return p->c_dtype == SAT_F64 ? 64 : p->c_dtype == SAT_F32 ? 24 : 12;
}

static double largest_sum(const sat_stage *s) { /* products in the heaviest row */
    const sat_pattern_view *a = s->pattern;
    return s->problem->transpose == SAT_TRANSPOSE ? (double)a->max_col * (double)a->block_rows
                                                  : (double)a->max_row * (double)a->block_cols;
}

bool sat_stage_can_be_positive(const sat_stage *s) {
    if (s->problem->c_dtype != SAT_F16) return true;
    return 4 * identity_from(s->problem) * (largest_sum(s) + 2) < 60000;
}

/* `positive`: alpha*a*b of each single product, beta*C0 and the bias are each at least identity_from(). */
static double scale_of(const sat_stage *s, int i, sat_fill fill) {
    const sat_problem *p = s->problem;
    double alpha = fabs(p->alpha), beta = fabs(p->beta), least = identity_from(p);
    bool positive = fill == SAT_FILL_POSITIVE;
    if (i == s->op->output) {
        double scale = positive ? least / beta : beta > 1 ? 1 / beta : 1;
        return positive && p->beta < 0 ? -scale : scale;
    }
    if (i > s->op->output) return positive ? least : 1; /* bias */
    if (!positive) return i == 0 && alpha > 1 ? 1 / alpha : 1;
    double scale = alpha > 0 ? sqrt(least / alpha) : 1; /* both factors share it, so that neither overflows f16 */
    return i == 0 && p->alpha < 0 ? -scale : scale;
}

/* Inputs that cannot be made up come from a run of another operation, by whichever variant the estimate prefers. */
static sat_status make_inputs(sat_stage *s) {
    sat_problem p = s->op->inputs(s->problem);
    sat_question q = {.ctx = s->ctx, .view = s->pattern, .op = sat_op_find(p.op), .device = *s->device, .problem = p};
    q.memory_limit = sat_memory_limit(s->ctx);
    sat_exact_spell(q.exact, &q.problem, q.view);
    sat_answer answer;
    sat_runner runner;
    SAT_TRY(sat_answer_estimate(&q, &answer));
    SAT_TRY(sat_runner_open(&runner, s->ctx, answer.variant, &p, s->pattern, s->device, q.memory_limit, NULL));
    void *stream = s->ctx->backend->stream(s->device);
    sat_status status = sat_runner_launch(&runner, s->pointer, stream);
    if (status == SAT_OK) status = s->ctx->backend->sync(s->device, stream);
    sat_runner_close(&runner);
    return status;
}

sat_status sat_stage_fill(sat_stage *s, sat_fill fill, sat_probe probe, uint64_t seed) {
    const sat_backend *b = s->ctx->backend;
    for (int i = 0; i < s->count; i++) {
        void *to = s->pointer[i];
        if (s->operand[i].output) {
            if (!s->before || i != s->op->output) continue;
            SAT_TRY(b->set(s->device, s->before_memory, 0xff, allocation(&s->operand[i])));
            to = s->before;
        }
        SAT_TRY(
            b->make(s->device, &s->operand[i], s->pattern, to, seed + (uint64_t)i * 7919, fill, scale_of(s, i, fill)));
    }
    if (s->op->inputs) SAT_TRY(make_inputs(s));
    forget_expectation(s);
    s->flipped = false;
    sat_trial t = trial(s);
    return s->checker->expect(&t, probe, seed, &s->expectation);
}

sat_status sat_stage_flip(sat_stage *s) {
    int i = s->op->flip(s->problem);
    s->flipped = !s->flipped;
    return s->ctx->backend->negate(s->device, s->operand[i].dtype, s->pointer[i], s->operand[i].span);
}

sat_status sat_stage_reset(sat_stage *s) {
    for (int i = 0; i < s->count; i++) {
        if (!s->operand[i].output) continue;
        char *to = (char *)s->pointer[i] - GUARD;
        size_t bytes = s->bytes[i] + 2 * GUARD;
        if (s->before && i == s->op->output)
            SAT_TRY(s->ctx->backend->copy(s->device, to, (char *)s->before - GUARD, bytes));
        else SAT_TRY(s->ctx->backend->set(s->device, to, 0xff, bytes));
    }
    return SAT_OK;
}

void sat_stage_flush(sat_stage *s) { s->ctx->backend->flush(s->device, s->pointer, s->bytes, s->count, s->room); }

sat_status sat_stage_check(sat_stage *s, sat_finding *finding) {
    sat_trial t = trial(s);
    SAT_TRY(s->checker->compare(&t, s->expectation, finding));
    for (int i = 0; i < s->count && finding->ok; i++) {
        if (!s->operand[i].output || s->ctx->backend->clean(s->device, &s->operand[i], s->pointer[i], GUARD)) continue;
        finding->ok = false;
        snprintf(finding->where, sizeof finding->where, "wrote outside of its output");
    }
    return SAT_OK;
}
