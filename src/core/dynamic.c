/* What a plan owns of a pattern whose indices change. */
#include "core/dynamic.h"

#include <stdio.h>
#include <stdlib.h>

struct sat_tracker {
    sat_context *ctx;
    sat_device device;
    sat_dynamic *source;
    sat_tracker *next;
    sat_pattern_view view;
    sat_index_copy copy;
    sat_mask_form form; /* of a mask */
    bool is_mask;
    void *memory;
    size_t bytes;
    _Atomic uint64_t returned; /* of fault->runs, so many were returned */
    int cleared;               /* the output of values; -1: none */
    sat_block_values values;   /* its blocks, without the base */
};

void sat_dynamic_init(sat_dynamic *s, sat_index_type type, const void *row_ptr, const void *col_idx,
                      int64_t row_stride) {
    *s = (sat_dynamic){.type = type, .row_ptr = row_ptr, .col_idx = col_idx, .row_stride = row_stride};
    pthread_mutex_init(&s->lock, NULL);
}

void sat_dynamic_end(sat_dynamic *s) { pthread_mutex_destroy(&s->lock); }

/* ---- faults ---- */

/* With the source's lock held: is there one that nothing has returned? From now on it counts as returned. */
static bool take_fault(sat_tracker *t, sat_index_fault *fault) {
    uint64_t runs = __atomic_load_n(&t->copy.fault->runs, __ATOMIC_ACQUIRE);
    if (runs == atomic_load(&t->returned)) return false;
    *fault = *t->copy.fault;
    atomic_store(&t->returned, runs);
    return true;
}

sat_status sat_tracker_fault(sat_tracker *t) {
    sat_index_fault fault;
    if (__atomic_load_n(&t->copy.fault->runs, __ATOMIC_RELAXED) == atomic_load(&t->returned)) return SAT_OK;
    pthread_mutex_lock(&t->source->lock);
    bool found = take_fault(t, &fault);
    pthread_mutex_unlock(&t->source->lock);
    if (!found) return SAT_OK;
    sat_status status = sat_index_fault_fail(&fault, t->copy.capacity, t->copy.grid_cols, t->form.row_stride);
    if (t->ctx->backend->shares_memory) return status;
    char what[256];
    snprintf(what, sizeof what, "%s", sat_last_error());
    return sat_fail(status, "%s, in this run or an earlier one", what);
}

sat_status sat_dynamic_fault(const sat_pattern_view *a) {
    sat_dynamic *s = (sat_dynamic *)(uintptr_t)a->dynamic; /* const to callers, as the pattern is */
    sat_index_fault fault;
    pthread_mutex_lock(&s->lock);
    bool found = s->left.runs > 0;
    if (found) fault = s->left, s->left.runs = 0;
    for (sat_tracker *t = s->trackers; t && !found; t = t->next) found = take_fault(t, &fault);
    pthread_mutex_unlock(&s->lock);
    return found ? sat_index_fault_fail(&fault, a->stored_blocks, a->grid_cols, s->row_stride) : SAT_OK;
}

static void join(sat_tracker *t) {
    pthread_mutex_lock(&t->source->lock);
    t->next = t->source->trackers, t->source->trackers = t;
    pthread_mutex_unlock(&t->source->lock);
}

static void leave(sat_tracker *t) {
    sat_dynamic *s = t->source;
    sat_index_fault fault;
    pthread_mutex_lock(&s->lock);
    for (sat_tracker **at = &s->trackers; *at; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            break;
        }
    if (take_fault(t, &fault)) s->left = fault;
    pthread_mutex_unlock(&s->lock);
}

/* ---- opening and closing ---- */

/* Lays out the copy from `base` on and returns its bytes; the largest elements come first. */
static size_t lay_out(sat_index_copy *x, bool columns, void *memory, size_t scratch) {
    size_t rows = (size_t)x->grid_rows, cols = (size_t)x->grid_cols, blocks = (size_t)x->capacity, at = 0;
    uintptr_t base = (uintptr_t)memory;
#define PLACE(field, count) (x->field = (void *)(base + at), at = (at + (count) * sizeof *x->field + 255) / 256 * 256)
    PLACE(row_ptr, rows + 1);
    PLACE(row_end, rows + 1);
    PLACE(col_idx, blocks);
    if (columns) {
        PLACE(t_ptr, cols + 2);
        PLACE(t_block, blocks);
        PLACE(t_row, blocks);
    }
#undef PLACE
    x->scratch = (void *)(base + at);
    return at + scratch;
}

/* The device's arrays are the copy's; the host has them too where it shares the device's memory. */
static void show(sat_tracker *t) {
    sat_pattern_view *v = &t->view;
    const sat_index_copy *x = &t->copy;
    v->device_row_ptr = x->row_ptr, v->device_row_end = x->row_end, v->device_col_idx = x->col_idx;
    v->device_t_ptr = x->t_ptr, v->device_t_row = x->t_row, v->device_t_block = x->t_block;
    if (!t->ctx->backend->shares_memory) return;
    v->row_ptr = x->row_ptr, v->row_end = x->row_end, v->col_idx = x->col_idx;
    v->t_ptr = x->t_ptr, v->t_row = x->t_row, v->t_block = x->t_block;
}

static void find_output(sat_tracker *t, const sat_problem *p, const sat_pattern_view *a) {
    sat_operand o[SAT_MAX_OPERANDS];
    int count = sat_op_find(p->op)->operands(p, a, o);
    t->cleared = -1;
    for (int i = 0; i < count; i++) {
        if (!o[i].output || !o[i].values) continue;
        size_t size = sat_operand_size(&o[i]);
        t->cleared = i;
        t->values = (sat_block_values){.block_bytes = (size_t)(a->block_rows * a->block_cols) * size,
                                       .item_bytes = (size_t)o[i].layout.batch_stride * size,
                                       .items = o[i].span ? o[i].batch : 0};
    }
}

sat_status sat_tracker_open(sat_tracker **tracker, sat_context *ctx, const sat_device *d, const sat_problem *p,
                            const sat_pattern_view *a, size_t limit) {
    const sat_op *op = sat_op_find(p->op);
    sat_dynamic *source = (sat_dynamic *)(uintptr_t)a->dynamic;
    bool columns = op->needs_columns && op->needs_columns(p);
    sat_tracker *t = calloc(1, sizeof *t);
    *tracker = NULL;
    if (!t) return sat_fail(SAT_OUT_OF_MEMORY, "plan");
    t->ctx = ctx, t->device = *d, t->view = *a, t->source = source, t->is_mask = op->takes_masks;
    t->form = (sat_mask_form){source->row_stride, sat_min(source->row_stride, a->grid_cols)};
    sat_index_copy *x = &t->copy;
    *x = (sat_index_copy){.grid_rows = a->grid_rows, .grid_cols = a->grid_cols, .capacity = a->stored_blocks};
    x->type = source->type, x->from_ptr = source->row_ptr, x->from_col = source->col_idx;
    t->bytes = lay_out(x, columns, NULL, 0);
    size_t scratch = ctx->backend->index_scratch ? ctx->backend->index_scratch(x) : 0;
    t->bytes += scratch;
    if (sat_within_limit(ctx, t->bytes, &limit)) t->memory = sat_alloc(ctx, t->bytes + 1);
    x->fault = t->memory ? ctx->backend->alloc_shared(&t->device, sizeof *x->fault) : NULL;
    if (!x->fault) {
        sat_free(ctx, t->memory);
        size_t bytes = t->bytes;
        free(t);
        return sat_fail(SAT_OUT_OF_MEMORY, "%zu bytes for a copy of indices that change", bytes);
    }
    (void)lay_out(x, columns, t->memory, scratch);
    sat_status status = ctx->backend->set(d, t->memory, 0, t->bytes); /* no index is ever anything but a valid one */
    if (status == SAT_OK) status = ctx->backend->sync(d, ctx->backend->stream(d));
    if (status != SAT_OK) {
        ctx->backend->free_shared(&t->device, x->fault);
        sat_free(ctx, t->memory);
        free(t);
        return status;
    }
    show(t);
    find_output(t, p, a);
    join(t);
    *tracker = t;
    return SAT_OK;
}

void sat_tracker_close(sat_tracker *t) {
    if (!t) return;
    sat_free(t->ctx, t->memory); /* waits for runs that are queued: what they find is there afterwards */
    leave(t);
    t->ctx->backend->free_shared(&t->device, t->copy.fault);
    free(t);
}

const sat_pattern_view *sat_tracker_view(const sat_tracker *t) { return &t->view; }

size_t sat_tracker_bytes(const sat_tracker *t) { return t->bytes; }

/* ---- a run ---- */

void sat_tracker_read_from(sat_tracker *t, const void *const *indices) {
    t->copy.from_ptr = indices ? indices[0] : t->source->row_ptr;
    t->copy.from_col = indices ? indices[1] : t->source->col_idx;
}

sat_status sat_tracker_before(sat_tracker *t, int threads, void *stream) {
    t->copy.threads = threads;
    if (t->is_mask) return t->ctx->backend->copy_masks(&t->device, &t->copy, &t->form, stream);
    return t->ctx->backend->copy_indices(&t->device, &t->copy, stream);
}

sat_status sat_tracker_after(sat_tracker *t, void *const *operands, void *stream) {
    sat_block_values values = t->values;
    if (t->cleared < 0 || values.items == 0) return SAT_OK;
    values.base = operands[t->cleared];
    return t->ctx->backend->clear_blocks(&t->device, &t->copy, &values, stream);
}
