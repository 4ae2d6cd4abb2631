/* Prepare, launch over the batch, refresh, release. */
#include "core/runner.h"

#include <string.h>

#include "base/ranges.h"
#include "variant.h"

bool sat_variant_fits(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    if (v->op != p->op || v->backend != d->backend) return false;
    if ((v->flags & SAT_V_LIBRARY) && sat_forked()) return false; /* its threads are the parent's */
    if ((v->flags & SAT_V_NONDETERMINISTIC) && !(p->flags & SAT_ALLOW_NONDETERMINISTIC)) return false;
    if (a->dynamic && !(v->flags & SAT_V_DYNAMIC)) return false;
    return v->supports(v, p, a, d);
}

static bool may_share(const sat_variant *v, const sat_problem *p) {
    return (v->flags & SAT_V_SCRATCH) && !(v->refresh && (p->flags & SAT_FIXED_VALUES));
}

/* Touches what it takes, so that the first run does not pay for the pages. */
static sat_status take_workspace(sat_runner *r, sat_scratch *scratch) {
    sat_scratch own = {0}, *to = scratch ? scratch : &own;
    if (r->workspace_bytes > to->bytes) {
        void *memory =
            sat_alloc(r->ctx, r->workspace_bytes); /* first: where it fails, other runners keep the old one */
        if (!memory)
            return sat_fail(SAT_OUT_OF_MEMORY, "%s: workspace of %zu bytes", r->variant->name, r->workspace_bytes);
        sat_free(r->ctx, to->memory);
        *to = (sat_scratch){memory, r->workspace_bytes};
        r->ctx->backend->set(&r->device, to->memory, 0, to->bytes);
    }
    r->scratch = scratch;
    r->workspace = own.memory;
    return SAT_OK;
}

static void *workspace_of(const sat_runner *r) { return r->scratch ? r->scratch->memory : r->workspace; }

/* A variant's failure, with a message in any case: one of a plugin may bring none. `before`: sat_messages() then. */
static sat_status failed(const sat_runner *r, const char *what, sat_status status, unsigned before) {
    if (status == SAT_OK || sat_messages() != before) return status;
    return sat_fail(status, "%s: %s failed with %s and no message", r->variant->name, what, sat_status_name(status));
}

/* What a variant sees in `prepare` and `launch`. */
static const sat_pattern_view *view_of(const sat_runner *r) {
    return r->tracker ? sat_tracker_view(r->tracker) : r->pattern;
}

/* On the tuning stream, after the zeroing of the workspace. It is waited for, since runs come on other streams. */
static sat_status prepare(sat_runner *r) {
    const sat_backend *b = r->ctx->backend;
    sat_status status = SAT_OK;
    int before = b->enter(&r->device, true);
    void *stream = b->stream(&r->device);
    if (r->variant->prepare) {
        sat_prepare p = {SAT_SIZED(sat_prepare), .variant = r->variant, .device = &r->device,
                         .problem = &r->problem, .pattern = view_of(r), .workspace = workspace_of(r),
                         .stream = stream};
        unsigned messages = sat_messages();
        status = failed(r, "prepare", r->variant->prepare(&p, &r->state), messages);
    }
    if (status == SAT_OK) status = b->sync(&r->device, stream);
    b->leave(&r->device, before);
    return status;
}

sat_status sat_runner_open(sat_runner *r, sat_context *ctx, const sat_variant *v, const sat_problem *p,
                           const sat_pattern_view *a, const sat_device *d, size_t limit, sat_scratch *scratch) {
    *r = (sat_runner){.ctx = ctx, .variant = v, .device = *d, .problem = *p, .pattern = a};
    sat_operand o[SAT_MAX_OPERANDS];
    int count = sat_op_find(p->op)->operands(p, a, o);
    for (int i = 0; i < count; i++) { /* a stride that is not used may be any number */
        bool taken = o[i].batch > 1 && o[i].span > 0;
        r->item_step[i] = taken ? o[i].layout.batch_stride * (int64_t)sat_operand_size(&o[i]) : 0;
    }
    double start = sat_now();
    if (!may_share(v, p)) scratch = NULL;
    if (scratch && limit != SAT_LIMIT_UNKNOWN) limit += scratch->bytes;
    r->workspace_bytes = v->workspace ? v->workspace(v, p, a, d) : 0;
    if (!sat_within_limit(ctx, r->workspace_bytes, &limit))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: workspace of %zu bytes; the limit leaves %zu", v->name,
                        r->workspace_bytes, limit);
    if (r->workspace_bytes > 0) SAT_TRY(take_workspace(r, scratch));
    sat_status status = a->dynamic ? sat_tracker_open(&r->tracker, ctx, d, p, a, limit) : SAT_OK;
    if (status == SAT_OK) status = r->workspace_bytes > 0 || v->prepare ? prepare(r) : SAT_OK;
    r->prepare_seconds = sat_now() - start;
    if (status != SAT_OK) sat_runner_close(r);
    return status;
}

void sat_runner_close(sat_runner *r) {
    if (r->state && r->variant->release) {
        int before = r->ctx->backend->enter(&r->device, true);
        r->variant->release(r->variant, r->state);
        r->ctx->backend->leave(&r->device, before);
    }
    if (r->workspace) sat_free(r->ctx, r->workspace);
    sat_tracker_close(r->tracker);
    r->workspace = r->state = NULL, r->scratch = NULL, r->tracker = NULL;
}

static sat_launch make_launch(const sat_runner *r, void *const *operands, void *stream) {
    int threads = sat_threads_now(r->ctx);
    if (r->most_threads > 0 && r->most_threads < threads) threads = r->most_threads;
    return (sat_launch){SAT_SIZED(sat_launch),
                        .variant = r->variant,
                        .device = &r->device,
                        .problem = &r->problem,
                        .pattern = view_of(r),
                        .operands = operands,
                        .workspace = workspace_of(r),
                        .state = r->state,
                        .stream = stream,
                        .threads = threads < r->device.threads ? threads : r->device.threads};
}

sat_status sat_runner_spoil_workspace(sat_runner *r, int byte) {
    if (r->workspace_bytes == 0 || !may_share(r->variant, &r->problem)) return SAT_OK;
    return r->ctx->backend->set(&r->device, workspace_of(r), byte, r->workspace_bytes);
}

/* What is captured into a graph is not done yet: a run outside of it converts the values once more. */
sat_status sat_runner_refresh(sat_runner *r, const void *values, void *stream) {
    const sat_backend *b = r->ctx->backend;
    if (!r->variant->refresh || !(r->problem.flags & SAT_FIXED_VALUES)) return r->refreshed = true, SAT_OK;
    void *operands[SAT_MAX_OPERANDS] = {(void *)(uintptr_t)values};
    sat_launch l = make_launch(r, operands, stream);
    int before = b->enter(&r->device, false);
    unsigned messages = sat_messages();
    sat_status status = failed(r, "refresh", r->variant->refresh(&l), messages);
    b->leave(&r->device, before);
    if (status != SAT_OK) r->refreshed = false;
    else if (!b->capturing(&r->device, stream)) r->refreshed = true;
    return status;
}

static sat_status launch_items(const sat_runner *r, sat_launch l) {
    void *const *operands = l.operands;
    void *item[SAT_MAX_OPERANDS];
    l.operands = item;
    for (int64_t z = 0; z < r->problem.batch; z++) {
        for (int i = 0; i < SAT_MAX_OPERANDS; i++)
            item[i] = operands[i] ? (char *)operands[i] + z * r->item_step[i] : NULL;
        SAT_TRY(r->variant->launch(&l));
    }
    return SAT_OK;
}

/* `operands` has SAT_MAX_OPERANDS entries. */
sat_status sat_runner_launch(sat_runner *r, void *const *operands, void *stream) {
    if (!r->refreshed) SAT_TRY(sat_runner_refresh(r, operands[0], stream));
    sat_launch l = make_launch(r, operands, stream);
    int before = r->ctx->backend->enter(&r->device, false);
    bool whole = r->problem.batch == 1 || (r->variant->flags & SAT_V_BATCHED);
    unsigned messages = sat_messages();
    sat_range_push(r->variant->name);
    sat_status status = r->tracker ? sat_tracker_before(r->tracker, l.threads, stream) : SAT_OK;
    if (status == SAT_OK) status = failed(r, "launch", whole ? r->variant->launch(&l) : launch_items(r, l), messages);
    if (status == SAT_OK && r->tracker) status = sat_tracker_after(r->tracker, operands, stream);
    sat_range_pop();
    r->ctx->backend->leave(&r->device, before);
    return status;
}

sat_status sat_runner_fault(const sat_runner *r) { return r->tracker ? sat_tracker_fault(r->tracker) : SAT_OK; }

size_t sat_runner_index_bytes(const sat_runner *r) { return r->tracker ? sat_tracker_bytes(r->tracker) : 0; }
