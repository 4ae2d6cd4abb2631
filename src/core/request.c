/* Normalising a problem, and finding the variants that fit it. */
#include "core/request.h"

#include <string.h>

#include "core/choose.h"
#include "core/dynamic.h"
#include "core/runner.h"

/* May the operation have a pattern whose indices change? */
static sat_status check_dynamic(const sat_request *q) {
    const sat_pattern_view *a = q->view;
    const char *name = q->op->name;
    if (!q->op->takes_dynamic) return sat_fail(SAT_UNSUPPORTED, "op %s takes no pattern whose indices change", name);
    if (q->op->takes_masks && !q->ctx->backend->copy_masks)
        return sat_fail(SAT_UNSUPPORTED,
                        "op %s takes a mask whose indices change on a CPU alone, so far; the device is %s", name,
                        q->device.name);
    if (q->op->takes_masks) return SAT_OK;
    if (a->dynamic->row_stride)
        return sat_fail(SAT_UNSUPPORTED, "op %s takes no padded indices (row_counts); expected row_ptr", name);
    if (a->mask_batch * a->mask_heads > 1)
        return sat_fail(SAT_UNSUPPORTED, "op %s takes one pattern; mask_batch is %lld and mask_heads %lld", name,
                        (long long)a->mask_batch, (long long)a->mask_heads);
    return SAT_OK;
}

sat_status sat_request_make(sat_request *q, sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!problem) return sat_fail(SAT_NULL_POINTER, "problem is NULL");
    q->ctx = ctx;
    SAT_TRY(sat_problem_take(&q->problem, problem));
    q->op = sat_op_find(q->problem.op);
    SAT_TRY(sat_pattern_for(q->op, &pattern));
    q->pattern = pattern;
    q->view = sat_pattern_by_rows(pattern);
    q->device = sat_device_now(ctx);
    if (q->view->dynamic) SAT_TRY(check_dynamic(q));
    SAT_TRY(q->op->normalise(&q->problem, q->view));
    /* Values that differ over the batch cannot be converted once for all. */
    if (q->problem.batch > 1 && q->problem.a.batch_stride != 0) q->problem.flags &= ~(uint32_t)SAT_FIXED_VALUES;
    if (q->view->dynamic) q->problem.flags &= ~(uint32_t)SAT_FIXED_VALUES; /* where they belong changes */
    if (q->op->needs_columns && q->op->needs_columns(&q->problem)) SAT_TRY(sat_pattern_transposed(pattern, &q->view));
    sat_key_format(q->key, &q->problem, q->view, ctx->options.measure,
                   ctx->backend->threads(1) ? q->device.threads : 0);
    sat_full_key_format(q->full_key, &q->problem, q->view);
    q->race_problem =
        q->op->representative ? q->op->representative(&q->problem) : sat_representative_scalars(&q->problem);
    q->memory_limit = SAT_LIMIT_UNKNOWN;
    q->wrong_generation = atomic_load(&ctx->wrong_generation);
    return SAT_OK;
}

/* ---- candidates ---- */

static bool named(const char *only, const char *name) {
    size_t length = strlen(name);
    for (const char *at = only; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (at[length] == ',' || at[length] == 0)) return true;
    return false;
}

size_t sat_request_find_candidates(const sat_request *q, const char *only, const sat_variant **out) {
    const sat_registry *r = &q->ctx->registry;
    size_t count = atomic_load(&r->count), found = 0;
    for (size_t i = 0; i < count; i++)
        if ((!only || named(only, r->list[i]->name)) && sat_variant_fits(r->list[i], &q->problem, q->view, &q->device))
            out[found++] = r->list[i];
    return found;
}

static size_t workspace(const sat_request *q, const sat_variant *v) {
    return v->workspace ? v->workspace(v, &q->problem, q->view, &q->device) : 0;
}

bool sat_request_affords(sat_request *q, const sat_variant *v) {
    return sat_within_limit(q->ctx, workspace(q, v), &q->memory_limit);
}

bool sat_request_takes_no_memory(const sat_request *q, const sat_variant *v) {
    return !v->prepare && !q->view->dynamic && workspace(q, v) == 0;
}

/* Nothing may be checked here, so only trusted variants serve. The reference fits everything, so one is found. */
sat_status sat_request_pick_by_estimate(sat_request *q, bool without_memory, const sat_variant **variant) {
    const sat_variant *list[SAT_MAX_VARIANTS];
    size_t count = sat_request_find_candidates(q, NULL, list);
    double best = 0;
    *variant = NULL;
    for (size_t i = 0; i < count; i++) {
        const sat_variant *v = list[i];
        if (!sat_registry_trusted(&q->ctx->registry, v) || !sat_request_affords(q, v)) continue;
        if (!sat_choose_allowed(v, q->problem.flags)) continue;
        if (without_memory && !sat_request_takes_no_memory(q, v)) continue;
        double t = v->estimate(v, &q->problem, q->view, &q->device);
        if (!*variant || t < best) *variant = v, best = t;
    }
    return *variant ? SAT_OK : sat_fail(SAT_UNSUPPORTED, "no variant fits %s", q->full_key);
}
