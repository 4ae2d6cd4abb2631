/* Made-up operands and their check. */
#include "core/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/request.h"
#include "core/runner.h"
#include "variant.h"

enum { GUARD = 4096 }; /* poisoned bytes on each side of every operand */

/* Exactly as aligned as the problem says and no more: what runs here runs on the caller's pointers too. There are two
 * places: one or three times the alignment past a page. */
static void *place(void *memory, uint32_t align, bool moved) {
    uintptr_t start = ((uintptr_t)memory + GUARD + 4095) & ~(uintptr_t)4095;
    return (void *)(start + (align >= 4096 ? 0 : moved ? 3 * align : align));
}

static size_t allocation(const sat_operand *o) {
    return (size_t)o->span * sat_operand_size(o) + 2 * GUARD + 2 * 4096 + (o->align < 4096 ? 3 * o->align : 0);
}

/* Only cold runs flush. */
static size_t flush_bytes(const sat_context *ctx, const sat_device *d) {
    bool cold = ctx->options.measure == SAT_MEASURE_COLD;
    return cold && ctx->backend->flush_bytes ? ctx->backend->flush_bytes(d) : 0;
}

static sat_status allocate_flush_buffer(sat_bench *s, size_t bytes) {
    if (bytes == 0) return SAT_OK;
    s->flush_buffer = sat_alloc(s->ctx, bytes);
    if (!s->flush_buffer) return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes to flush the cache", bytes);
    return s->ctx->backend->set(s->device, s->flush_buffer, 0, bytes);
}

/* Bytes of the exact sums, which are as many as the output has elements, and of the larger of the two probes'
 * expectations: there is one at a time. */
static size_t bytes_of_checks(sat_bench *s) {
    size_t precision = s->checker->bytes(s->problem, s->pattern, SAT_PROBE_PRECISION);
    size_t structure = s->checker->bytes(s->problem, s->pattern, SAT_PROBE_STRUCTURE);
    if (s->op->sums_problem) {
        sat_operand o[SAT_MAX_OPERANDS];
        sat_problem problem = s->op->sums_problem(s->problem, s->pattern);
        (void)s->op->operands(&problem, s->pattern, o);
        s->sums_bytes = (size_t)o[s->op->output].span * sat_dtype_size(problem.c_dtype);
    }
    return s->sums_bytes + (precision > structure ? precision : structure);
}

/* ---- indices that change ---- */

static size_t index_size(const sat_bench *s) { return s->source.type == SAT_I32 ? 4 : 8; }

static sat_status write_indices(const sat_bench *s, void *to, int64_t *indices, int64_t count) {
    for (int64_t i = 0; i < count && index_size(s) == 4; i++) { /* in place: none is written before it was read */
        int32_t narrow = (int32_t)indices[i];
        memcpy((char *)indices + i * 4, &narrow, 4);
    }
    return count ? s->ctx->backend->write(s->device, to, indices, (size_t)count * index_size(s)) : SAT_OK;
}

sat_status sat_bench_lay_mask(sat_bench *s, sat_mask_kind kind, uint64_t seed) {
    const sat_pattern_view *a = &s->changing;
    sat_mask_indices mask;
    sat_pattern *made = NULL;
    const sat_pattern_view *view;
    int64_t row_stride = s->source.row_stride, pointers = a->grid_rows + (row_stride == 0);
    SAT_TRY(sat_mask_make(a, s->source.type, row_stride, kind, seed, &mask));
    sat_status status = sat_pattern_create_mask(s->ctx, a, &mask, s->op->takes_masks, &made);
    if (status == SAT_OK) status = sat_pattern_transposed(made, &view); /* checks look at columns too */
    if (status == SAT_OK) status = write_indices(s, s->row_ptr, mask.raw_ptr, pointers);
    if (status == SAT_OK) status = write_indices(s, s->col_idx, mask.raw_col, mask.raw_count);
    sat_mask_free(&mask);
    sat_pattern *gone = status == SAT_OK ? s->mask : made; /* where it failed the mask before stays */
    if (status == SAT_OK) s->mask = made, s->pattern = view;
    sat_pattern_free(gone);
    return status;
}

static sat_status open_indices(sat_bench *s, const sat_pattern_view *a) {
    int64_t row_stride = a->dynamic->row_stride, columns = row_stride ? a->grid_rows * row_stride : a->stored_blocks;
    s->source.type = a->dynamic->type;
    s->row_ptr = sat_alloc(s->ctx, ((size_t)a->grid_rows + 1) * index_size(s));
    s->col_idx = sat_alloc(s->ctx, ((size_t)columns + 1) * index_size(s));
    sat_dynamic_init(&s->source, s->source.type, s->row_ptr, s->col_idx, row_stride);
    s->changing = *a, s->changing.dynamic = &s->source;
    s->run_with = &s->changing;
    if (!s->row_ptr || !s->col_idx)
        return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %lld indices", (long long)(a->grid_rows + columns));
    return sat_bench_lay_mask(s, SAT_MASK_EXPECTED, (uint64_t)(sat_now() * 1e9));
}

static void close_indices(sat_bench *s) {
    if (s->run_with != &s->changing) return;
    sat_free(s->ctx, s->row_ptr);
    sat_free(s->ctx, s->col_idx);
    sat_pattern_free(s->mask);
    sat_dynamic_end(&s->source);
}

/* ---- opening and closing ---- */

sat_status sat_bench_open(sat_bench *s, sat_context *ctx, const sat_problem *p, const sat_pattern_view *a,
                          const sat_device *d, size_t limit) {
    *s = (sat_bench){.ctx = ctx, .op = sat_op_find(p->op), .device = d, .problem = p, .pattern = a, .run_with = a};
    s->checker = ctx->backend->checker(p->op);
    if (!s->checker) return sat_fail(SAT_UNSUPPORTED, "op %s has no check on %s", s->op->name, d->name);
    if (a->dynamic) SAT_TRY(open_indices(s, a));
    s->count = s->op->operands(p, a, s->operand);
    const sat_operand *out = &s->operand[s->op->output];
    size_t need = bytes_of_checks(s) + (p->beta != 0 ? allocation(out) : 0);
    for (int i = 0; i < s->count; i++) need += allocation(&s->operand[i]);
    size_t flush = flush_bytes(ctx, d);
    if (need + flush > limit)
        return sat_fail(SAT_OUT_OF_MEMORY,
                        "tuning needs %zu bytes for made-up operands and %zu to flush the cache; the limit is %zu",
                        need, flush, limit);
    need += flush;
    s->held = need;
    for (int i = 0; i < s->count; i++) {
        if (!s->operand[i].name) continue;
        s->bytes[i] = (size_t)s->operand[i].span * sat_operand_size(&s->operand[i]);
        s->memory[i] = sat_alloc(ctx, allocation(&s->operand[i]));
        if (!s->memory[i])
            return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes for %s", allocation(&s->operand[i]),
                            s->operand[i].name);
        s->pointer[i] = place(s->memory[i], s->operand[i].align, false);
        SAT_TRY(ctx->backend->set(d, s->memory[i], 0xff, allocation(&s->operand[i])));
    }
    if (p->beta != 0) {
        s->before_memory = sat_alloc(ctx, allocation(out));
        if (!s->before_memory)
            return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes for a second %s", allocation(out), out->name);
        s->before = place(s->before_memory, out->align, false);
    }
    if (s->sums_bytes > 0) {
        s->sums = sat_alloc(ctx, s->sums_bytes);
        if (!s->sums) return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %zu bytes for exact sums", s->sums_bytes);
    }
    return allocate_flush_buffer(s, flush);
}

static void forget_expectation(sat_bench *s) {
    if (!s->expectation) return;
    int before = s->ctx->backend->enter(s->device, true);
    s->checker->free(s->expectation);
    s->ctx->backend->leave(s->device, before);
    s->expectation = NULL;
}

void sat_bench_close(sat_bench *s) {
    forget_expectation(s);
    for (int i = 0; i < s->count; i++) sat_free(s->ctx, s->memory[i]);
    sat_free(s->ctx, s->before_memory);
    sat_free(s->ctx, s->sums);
    sat_free(s->ctx, s->flush_buffer);
    close_indices(s);
    *s = (sat_bench){0};
}

static sat_trial trial(const sat_bench *s) {
    return (sat_trial){.device = s->device,
                       .problem = s->problem,
                       .pattern = s->pattern,
                       .operands = s->pointer,
                       .fills = s->fills,
                       .before = s->before,
                       .sums = s->sums,
                       .specials = s->specials,
                       .special_count = s->special_count,
                       .fill_case = s->fill_case};
}

/* ---- operands ---- */

/* Random reals, so that no sum overflows whatever the scalars are. */
static sat_fill real_fill(const sat_bench *s, int i) {
    double alpha = fabs(s->problem->alpha), beta = fabs(s->problem->beta);
    double scale = i == s->op->output && beta > 1 ? 1 / beta : i == 0 && alpha > 1 ? 1 / alpha : 1;
    return (sat_fill){.scale = scale};
}

/* Runs a variant on the made-up operands; NULL: the one that the estimate prefers. */
static sat_status run_other(sat_bench *s, const sat_problem *p, const sat_variant *v, void *const *operands) {
    sat_request q = {.ctx = s->ctx, .view = s->run_with, .op = sat_op_find(p->op), .device = *s->device, .problem = *p};
    q.memory_limit = SAT_LIMIT_UNKNOWN;
    sat_full_key_format(q.full_key, &q.problem, q.view);
    sat_runner runner;
    if (!v) SAT_TRY(sat_request_pick_by_estimate(&q, false, &v));
    SAT_TRY(sat_runner_open(&runner, s->ctx, v, p, s->run_with, s->device, q.memory_limit, NULL));
    void *stream = s->ctx->backend->stream(s->device);
    sat_status status = sat_runner_launch(&runner, operands, stream);
    if (status == SAT_OK) status = s->ctx->backend->sync(s->device, stream);
    sat_runner_close(&runner);
    return status;
}

static size_t around(const sat_bench *s, int i) { return s->bytes[i] + 2 * GUARD; }
static char *begin_of(const sat_bench *s, int i) { return (char *)s->pointer[i] - GUARD; }

static sat_status write_specials(const sat_bench *s) {
    for (int i = 0; i < s->special_count; i++) {
        const sat_special *x = &s->specials[i];
        const sat_operand *o = &s->operand[x->operand];
        uint64_t bits = 0;
        sat_store(o->dtype, &bits, 0, x->value);
        void *to = sat_at(o->dtype, s->pointer[x->operand], sat_operand_at(o, x->item, x->row, x->col));
        SAT_TRY(s->ctx->backend->write(s->device, to, &bits, sat_dtype_size(o->dtype)));
    }
    return SAT_OK;
}

/* Made on the host, since the operation alone knows what they may be. */
static sat_status make_indices(sat_bench *s, int i) {
    const sat_operand *o = &s->operand[i];
    int64_t *indices = malloc((size_t)(o->rows + 1) * sizeof *indices);
    if (!indices) return sat_fail(SAT_OUT_OF_MEMORY, "tuning: %lld %s", (long long)o->rows, o->name);
    s->op->make_indices(s->problem, s->probe, s->fill_case, sat_operand_seed(s->seed, i), indices);
    for (int64_t j = 0; j < o->rows && o->index == 4; j++) { /* in place: none is written before it was read */
        int32_t narrow = (int32_t)indices[j];
        memcpy((char *)indices + j * 4, &narrow, 4);
    }
    sat_status status = s->ctx->backend->write(s->device, s->pointer[i], indices, s->bytes[i]);
    free(indices);
    return status;
}

/* Those that cannot be made up come from a run of another operation, on the operands of the same names. */
static sat_status run_forward(sat_bench *s) {
    sat_problem p = s->op->forward_problem(s->problem);
    sat_operand o[SAT_MAX_OPERANDS];
    void *operands[SAT_MAX_OPERANDS] = {0};
    int count = sat_op_find(p.op)->operands(&p, s->pattern, o);
    for (int i = 0; i < count; i++)
        for (int j = 0; j < s->count; j++)
            if (o[i].name && s->operand[j].name && strcmp(o[i].name, s->operand[j].name) == 0)
                operands[i] = s->pointer[j];
    return run_other(s, &p, NULL, operands);
}

static sat_status make_operands(sat_bench *s) {
    const sat_backend *b = s->ctx->backend;
    for (int i = 0; i < s->count; i++) {
        void *to = s->pointer[i];
        if (!to) continue;
        if (s->operand[i].index) {
            SAT_TRY(b->set(s->device, begin_of(s, i), 0xff, around(s, i)));
            SAT_TRY(make_indices(s, i));
            continue;
        }
        if (s->operand[i].output) {
            if (!s->before || i != s->op->output) continue;
            SAT_TRY(b->set(s->device, s->before_memory, 0xff, allocation(&s->operand[i])));
            to = s->before;
        } else {
            SAT_TRY(b->set(s->device, begin_of(s, i), sat_padding_byte(&s->fills[i]), around(s, i)));
        }
        SAT_TRY(b->make(s->device, &s->operand[i], s->pattern, to, sat_operand_seed(s->seed, i), &s->fills[i]));
    }
    if (s->op->forward_problem) SAT_TRY(run_forward(s));
    return write_specials(s);
}

static sat_status take_digests(sat_bench *s) {
    for (int i = 0; i < s->count; i++)
        if (s->pointer[i] && !s->operand[i].output)
            SAT_TRY(s->ctx->backend->digest(s->device, begin_of(s, i), around(s, i), &s->digest[i]));
    return SAT_OK;
}

/* The input that is not what it was when its digest was taken; count: there is none. */
static sat_status find_changed_input(const sat_bench *s, int *input) {
    for (*input = 0; *input < s->count; ++*input) {
        uint64_t now;
        if (s->operand[*input].output || !s->pointer[*input]) continue;
        SAT_TRY(s->ctx->backend->digest(s->device, begin_of(s, *input), around(s, *input), &now));
        if (now != s->digest[*input]) break;
    }
    return SAT_OK;
}

/* ---- the sums ---- */

/* Sums of a variant that wrote into its inputs prove nothing, and the inputs are made again. */
static sat_status prove_sums(sat_bench *s, const sat_problem *problem, const sat_variant *v, sat_finding *finding) {
    void *operands[SAT_MAX_OPERANDS] = {0};
    sat_trial t = trial(s);
    int changed;
    for (int i = 0; i < s->count; i++) operands[i] = i == s->op->output ? s->sums : s->pointer[i];
    SAT_TRY(s->ctx->backend->set(s->device, s->sums, 0xff, s->sums_bytes));
    sat_status status = run_other(s, problem, v, operands);
    SAT_TRY(find_changed_input(s, &changed));
    if (changed < s->count) {
        snprintf(finding->where, sizeof finding->where, "its input %s was written into", s->operand[changed].name);
        return make_operands(s);
    }
    SAT_TRY(status);
    return s->checker->prove(&t, ~s->seed, finding);
}

static const sat_variant *reference_of(const sat_bench *s, const sat_problem *p) {
    const sat_registry *r = &s->ctx->registry;
    for (size_t i = 0; i < atomic_load(&r->count); i++)
        if ((r->list[i]->flags & SAT_V_REFERENCE) && sat_variant_fits(r->list[i], p, s->run_with, s->device))
            return r->list[i];
    return NULL;
}

/* Runs the variant with the best estimate for the sums, and the reference where those are wrong. */
static sat_status work_out_sums(sat_bench *s) {
    sat_finding finding = {0};
    if (s->sums_bytes == 0) return SAT_OK;
    sat_problem problem = s->op->sums_problem(s->problem, s->pattern);
    if (prove_sums(s, &problem, NULL, &finding) == SAT_OK && finding.ok) return SAT_OK;
    finding.ok = false;
    SAT_TRY(prove_sums(s, &problem, reference_of(s, &problem), &finding));
    if (finding.ok) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "check: the reference is wrong on %s: %s", s->device->name, finding.where);
}

sat_status sat_bench_make(sat_bench *s, sat_probe probe, int fill_case, uint64_t seed) {
    s->probe = probe, s->fill_case = fill_case, s->seed = seed, s->special_count = 0;
    for (int i = 0; i < s->count; i++) s->fills[i] = real_fill(s, i);
    if (probe == SAT_PROBE_STRUCTURE || fill_case > 0) s->op->set_fills(s->problem, s->pattern, fill_case, s->fills);
    else if (s->op->set_real_fills) s->op->set_real_fills(s->problem, s->fills);
    for (int i = 0; i < s->count; i++) s->fills[i].finite_padding = s->finite_padding && !s->operand[i].output;
    return make_operands(s);
}

sat_status sat_bench_fill(sat_bench *s, sat_probe probe, int fill_case, uint64_t seed) {
    SAT_TRY(sat_bench_make(s, probe, fill_case, seed));
    SAT_TRY(take_digests(s));
    if (probe == SAT_PROBE_STRUCTURE) SAT_TRY(work_out_sums(s));
    forget_expectation(s);
    sat_trial t = trial(s);
    return s->checker->expect(&t, probe, seed, &s->expectation);
}

/* The new places overlap the old ones: a variant that keeps old pointers reads shifted operands. */
void sat_bench_move(sat_bench *s) {
    for (int i = 0; i < s->count; i++)
        if (s->pointer[i]) s->pointer[i] = place(s->memory[i], s->operand[i].align, true);
}

sat_status sat_bench_plant(sat_bench *s) {
    s->special_count = s->op->specials ? s->op->specials(s->problem, s->pattern, s->fills, s->seed, s->specials) : 0;
    SAT_TRY(write_specials(s));
    return take_digests(s);
}

sat_status sat_bench_reset(sat_bench *s) {
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

void sat_bench_flush(sat_bench *s) {
    s->ctx->backend->flush(s->device, s->pointer, s->bytes, s->count, s->flush_buffer);
}

/* An input that was overwritten is made again, so that the next run has the right one. */
static sat_status check_inputs(sat_bench *s, sat_finding *finding) {
    int changed;
    SAT_TRY(find_changed_input(s, &changed));
    if (changed == s->count) return SAT_OK;
    finding->ok = false;
    snprintf(finding->where, sizeof finding->where, "wrote into its input %s, or beside it", s->operand[changed].name);
    return make_operands(s);
}

sat_status sat_bench_check(sat_bench *s, sat_finding *finding) {
    sat_trial t = trial(s);
    SAT_TRY(s->checker->compare(&t, s->expectation, finding));
    for (int i = 0; i < s->count && finding->ok; i++) {
        if (!s->operand[i].output || s->ctx->backend->gaps_intact(s->device, &s->operand[i], s->pointer[i], GUARD))
            continue;
        finding->ok = false;
        snprintf(finding->where, sizeof finding->where, "wrote outside of its output");
    }
    return check_inputs(s, finding);
}
