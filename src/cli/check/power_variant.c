// The planted variant as the library sees it: one for each operation, whose fault is changed from race to race. On a
// device with memory of its own it copies the operands to the host, computes there and copies the outputs back. A real
// launch must not wait; here nothing is captured, and nothing else runs.

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../number.h"
#include "power.h"

enum { WORKSPACE = 64 };

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a, (void)d;
    return p->a_dtype == ((const planted *)v->user)->dtype;
}

// So slow that no other race takes it for the fast one.
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e3;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return WORKSPACE;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    plan_state *s = calloc(1, sizeof *s);
    if (!s) return sat_fail(SAT_OUT_OF_MEMORY, "planted: a plan's state");
    planted *me = p->variant->user;
    s->pattern = p->pattern, s->alpha = p->problem->alpha, s->releases = me->releases, s->thread = pthread_self();
    me->last = s, me->last_alpha = s->alpha;
    *state = s;
    return SAT_OK;
}

static void release(const sat_variant *v, void *state) {
    planted *me = v->user;
    if (me->last == state) me->last = NULL;
    me->releases++, me->released = ((plan_state *)state)->pattern;
    free(((plan_state *)state)->kept);
    free(state);
}

/* ---- memory ---- */

static bool has_own_memory(const run *r) { return r->launch->device->backend != SAT_CPU; }

// Through a pipe: an address that may not be touched is an error here, not a signal.
static bool copy_carefully(void *to, const void *from, size_t bytes) {
    int ends[2];
    if (pipe(ends) != 0) return false;
    size_t done = 0;
    while (done < bytes) {
        size_t n = bytes - done < 4096 ? bytes - done : 4096;
        if (write(ends[1], (const char *)from + done, n) != (ssize_t)n) break;
        if (read(ends[0], (char *)to + done, n) != (ssize_t)n) break;
        done += n;
    }
    close(ends[0]), close(ends[1]);
    return done == bytes;
}

sat_status power_peek(run *r, void *to, const void *address, size_t bytes) {
    if (has_own_memory(r)) return sat_memory_read(r->me->context, to, address, bytes);
    if (copy_carefully(to, address, bytes)) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "planted: reads memory that is not there");
}

sat_status power_poke(run *r, char *address, int value) {
    unsigned char byte = 0;
    sat_status status = value < 0 ? power_peek(r, &byte, address, 1) : SAT_OK;
    byte = value < 0 ? byte ^ 1 : (unsigned char)value;
    if (status != SAT_OK) return status;
    if (has_own_memory(r)) return sat_memory_write(r->me->context, address, &byte, 1);
    if (copy_carefully(address, &byte, 1)) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "planted: writes memory that is not there");
}

static size_t bytes_of(const operand *o) { return (size_t)o->span * operand_size(o); }

static sat_status bring(run *r, int i) {
    planted *me = r->me;
    size_t bytes = bytes_of(&r->list[i]);
    r->host[i] = r->launch->operands[i];
    if (!has_own_memory(r)) return SAT_OK;
    if (me->mirror_bytes[i] < bytes + 1) {
        free(me->mirror[i]);
        me->mirror[i] = malloc(bytes + 1), me->mirror_bytes[i] = me->mirror[i] ? bytes + 1 : 0;
        if (!me->mirror[i]) return sat_fail(SAT_OUT_OF_MEMORY, "planted: %zu bytes", bytes);
    }
    r->host[i] = me->mirror[i];
    return bytes ? sat_memory_read(me->context, me->mirror[i], r->launch->operands[i], bytes) : SAT_OK;
}

static sat_status take_back(run *r) {
    sat_status status = SAT_OK;
    for (int i = 0; i < r->count && status == SAT_OK && has_own_memory(r); i++)
        if (r->list[i].output && r->list[i].span > 0)
            status = sat_memory_write(r->me->context, r->launch->operands[i], r->me->mirror[i], bytes_of(&r->list[i]));
    return status;
}

/* ---- one launch ---- */

static sat_status open_run(run *r, const sat_launch *l, int most) { // as many operands as there are
    planted *me = l->variant->user;
    *r = (run){.me = me, .how = &me->fault->how, .launch = l, .state = l->state, .p = *l->problem, .a = l->pattern};
    const sat_pattern_view *a = l->pattern;
    blocks b = {.block_rows = a->block_rows, .block_cols = a->block_cols, .count = a->stored_blocks};
    r->count = data_operands(&(check_case){.blocks = b, .problem = r->p}, r->list);
    if (r->count > most) r->count = most;
    sat_status status = SAT_OK;
    for (int i = 0; i < r->count && status == SAT_OK; i++) status = bring(r, i);
    if (r->state->runs == 0) memcpy(r->state->first, l->operands, sizeof r->state->first);
    return status;
}

static sat_status launch(const sat_launch *l) {
    static bool (*const kernels[])(const run *) = {
        NULL, power_matmul, power_sampled, power_attention, power_gradients, power_grouped, power_grouped_weights};
    run r;
    sat_status status = open_run(&r, l, CHECK_OPERANDS);
    if (status == SAT_OK && r.how->start) status = r.how->start(&r);
    memcpy(r.state->before, l->operands, sizeof r.state->before);
    r.state->runs++, r.me->runs++;
    if (status != SAT_OK) return status;
    if (!kernels[r.p.op](&r)) return sat_fail(SAT_OUT_OF_MEMORY, "planted: operands as doubles");
    status = take_back(&r);
    return status == SAT_OK && r.how->after ? r.how->after(&r) : status;
}

static sat_status refresh(const sat_launch *l) {
    run r;
    if (!((const planted *)l->variant->user)->fault->how.values) return SAT_OK;
    sat_status status = open_run(&r, l, 1);
    return status == SAT_OK ? r.how->values(&r) : status;
}

sat_status power_register(sat_context *context, sat_operation op, planted *me) {
    static const char *const names[] = {NULL,
                                        "planted_matmul",
                                        "planted_sampled",
                                        "planted_attention",
                                        "planted_attention_backward",
                                        "planted_grouped",
                                        "planted_grouped_weights"};
    sat_variant v = {SAT_SIZED(sat_variant),
                     .name = names[op],
                     .revision = "1",
                     .op = op,
                     .backend = sat_context_device(context)->backend,
                     .flags = SAT_V_SCRATCH | SAT_V_BATCHED,
                     .user = me,
                     .supports = supports,
                     .estimate = estimate,
                     .workspace = workspace,
                     .prepare = prepare,
                     .refresh = refresh,
                     .launch = launch,
                     .release = release};
    return sat_variant_register(context, &v);
}

void power_begin(planted *me, const fault *f, sat_dtype t) {
    me->fault = f, me->dtype = t, me->runs = me->releases = 0, me->last = NULL;
    me->random = (rng){7};
    free(me->fixed), me->fixed = NULL, me->fixed_for = NULL;
}

void power_free(planted *me) {
    for (int i = 0; i < CHECK_OPERANDS; i++) free(me->mirror[i]);
    free(me->fixed);
    *me = (planted){0};
}

/* ---- what the kernels share ---- */

// All 16-bit numbers of a dtype as doubles: deep operands are read thousands of times.
static const double *short_numbers(sat_dtype t) {
    static double tables[2][1 << 16];
    static bool made[2];
    int which = t == SAT_BF16;
    for (int bits = 0; !made[which] && bits < 1 << 16; bits++) {
        uint16_t number = (uint16_t)bits;
        tables[which][bits] = number_load(t, &number, 0);
    }
    made[which] = true;
    return tables[which];
}

double *power_load(const run *r, int which, int64_t z, int64_t first, int64_t rows) {
    const operand *o = &r->list[which];
    const void *from = r->host[which];
    const double *numbers = o->dtype == SAT_F16 || o->dtype == SAT_BF16 ? short_numbers(o->dtype) : NULL;
    double *out = malloc((size_t)(rows * o->cols + 1) * sizeof *out), *to = out;
    for (int64_t i = 0; out && i < rows; i++)
        for (int64_t j = 0; j < o->cols; j++) {
            int64_t at = operand_at(o, z, first + i, j);
            *to++ = numbers ? numbers[((const uint16_t *)from)[at]] : number_load(o->dtype, from, at);
        }
    for (int64_t e = 0; out && r->how->input && e < rows * o->cols; e++) out[e] = r->how->input(out[e]);
    return out;
}

void power_store(const spot *s, int64_t row, double x) {
    const run *r = s->r;
    const operand *o = &r->list[s->which];
    bool wrong = r->wrong || (r->wrong_parts && s->parts < r->a->grid_cols);
    if (wrong) x = x == 0 || isnan(x) ? 1 : -x;
    if (r->how->element) x = r->how->element(s, x);
    char *to = (char *)(uintptr_t)r->host[s->which];
    (r->how->store ? r->how->store : number_store)(o->dtype, to, operand_at(o, s->z, row, s->j), x);
}
