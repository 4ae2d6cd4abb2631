/* The one-call form: plans kept in a bounded pool, found by problem, pattern and stream.
 *
 * A call that is captured into a graph may not make a plan that takes memory, and what it used the graph uses again at
 * any later time: such a plan is from then on the graphs' own, and stays until the context closes. */
#include "core/pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/select.h"
#include "core/context.h"
#include "core/plan.h"
#include "variant.h"

enum { SLOTS = 64 };

typedef struct slot {
    const sat_pattern *pattern; /* a reference, so that no other pattern gets its address meanwhile */
    sat_problem problem;        /* as called, alignment filled in */
    const void *stream;
    uint64_t thread; /* where one handle means another stream in each thread: which one; else 0 */
    int threads;
    sat_plan *plan;
    bool in_use;               /* by a call of some thread */
    bool captured;             /* a graph may hold its workspace */
    bool no_memory;            /* made under capture, by estimate: serves captures only, and holds no memory */
    unsigned background_done;  /* background jobs that were finished when the plan was made */
    unsigned wrong_generation; /* the context's, then */
    bool final;    /* cached or tuned, not estimated: only a wrong variant makes it stale, not a background job */
    uint64_t used; /* the pool's clock at its last use */
} slot;

struct sat_pool {
    pthread_mutex_t lock;
    uint64_t clock;
    slot slots[SLOTS];
};

sat_status sat_pool_open(sat_pool **pool) {
    *pool = calloc(1, sizeof **pool);
    if (!*pool) return sat_fail(SAT_OUT_OF_MEMORY, "pool");
    pthread_mutex_init(&(*pool)->lock, NULL);
    return SAT_OK;
}

static void evict(slot *p) {
    sat_plan_free(p->plan);
    sat_pattern_free((sat_pattern *)(uintptr_t)p->pattern);
    *p = (slot){0};
}

void sat_pool_close(sat_pool *pool) {
    if (!pool) return;
    for (int i = 0; i < SLOTS; i++)
        if (pool->slots[i].plan) evict(&pool->slots[i]);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static uint32_t alignment_of(const void *pointer, uint32_t most) {
    uintptr_t p = (uintptr_t)pointer | most;
    return (uint32_t)(p & (~p + 1));
}

/* How well a slot suits a call; 0: not at all. Plain calls and captured ones have plans of their own. */
static int suits(const slot *p, bool capture) {
    if (!capture) return !p->captured && !p->no_memory;
    return p->no_memory ? 1 : p->captured ? 3 : 2;
}

/* With the lock held: a free plan for this call, now in use; NULL if there is none. */
static slot *borrow(sat_pool *pool, const slot *call, bool capture) {
    slot *best = NULL;
    for (int i = 0; i < SLOTS; i++) {
        slot *p = &pool->slots[i];
        if (p->pattern != call->pattern || p->in_use || !p->plan) continue;
        if (p->stream != call->stream || p->thread != call->thread || p->threads != call->threads) continue;
        if (!sat_problem_same(&p->problem, &call->problem)) continue;
        bool stale =
            p->wrong_generation != call->wrong_generation || (!p->final && p->background_done != call->background_done);
        if (!capture && !p->captured && stale) {
            evict(p); /* a variant was found wrong, or a background job finished, since: select again */
            continue;
        }
        if (suits(p, capture) > (best ? suits(best, capture) : 0)) best = p;
    }
    if (!best) return NULL;
    best->captured = best->captured || (capture && !best->no_memory);
    best->in_use = true;
    best->used = ++pool->clock;
    return best;
}

/* With the lock held: puts a new plan into the least recently used slot that is not in use. False if all are. The plan
 * that was there is freed, which waits for the device; under capture only an empty slot will do. */
static bool add_plan(sat_pool *pool, const slot *made) {
    slot *oldest = NULL;
    for (int i = 0; i < SLOTS; i++) {
        slot *p = &pool->slots[i];
        if (p->in_use || p->captured || (made->no_memory && p->plan)) continue;
        if (!oldest || p->used < oldest->used) oldest = p;
    }
    if (!oldest) return false;
    if (oldest->plan) evict(oldest);
    *oldest = *made;
    oldest->used = ++pool->clock;
    return true;
}

/* Here, where the caller's own names are known: later only the alignment that was read off the pointers is. */
static sat_status check_alignment(const sat_problem *p, void *const *operands) {
    const sat_op *op = sat_op_find(p->op);
    const sat_dtype types[] = {p->a_dtype, p->b_dtype ? p->b_dtype : p->a_dtype, p->c_dtype ? p->c_dtype : p->a_dtype};
    for (int i = 0; op->aligns[i]; i++) {
        if (op->aligns[i] == '-') continue;
        size_t size = sat_dtype_size(types[op->aligns[i] - 'a']);
        if (size && (uintptr_t)operands[i] % size) /* 0: a dtype that is refused later */
            return sat_fail(SAT_MISALIGNED, "%s is %p; expected a multiple of %zu bytes", op->names[i], operands[i],
                            size);
    }
    return SAT_OK;
}

/* What all operands that share this alignment have in common. */
static uint32_t common_alignment(const sat_problem *p, void *const *operands, char which, uint32_t most) {
    const char *aligns = sat_op_find(p->op)->aligns;
    for (int i = 0; aligns[i]; i++)
        if (aligns[i] == which) most = alignment_of(operands[i], most);
    return most;
}

static sat_status make_without_memory(sat_context *ctx, slot *made) {
    made->no_memory = true;
    sat_status status = sat_plan_create_without_memory(ctx, made->pattern, &made->problem, &made->plan);
    if (status != SAT_UNSUPPORTED) return status;
    char why[256];
    snprintf(why, sizeof why, "%s", sat_last_error());
    return sat_fail(SAT_UNSUPPORTED,
                    "stream is being captured into a graph, and this call has no plan yet (%s): make the call once "
                    "before the capture, or run a plan of your own",
                    why);
}

static sat_status call_new(sat_context *ctx, slot *made, void *const *operands, void *stream, bool capture) {
    sat_plan_info info = {SAT_SIZED(sat_plan_info)};
    SAT_TRY(capture ? make_without_memory(ctx, made)
                    : sat_plan_create(ctx, made->pattern, &made->problem, &made->plan));
    sat_status status = sat_plan_launch(made->plan, operands, NULL, stream);
    if (sat_plan_get_info(made->plan, &info) == SAT_OK) made->final = info.cached || info.tuned;
    sat_pattern_ref(made->pattern);
    pthread_mutex_lock(&ctx->pool->lock);
    bool kept = add_plan(ctx->pool, made);
    pthread_mutex_unlock(&ctx->pool->lock);
    if (!kept) evict(made);
    return status;
}

/* The calling thread where the stream is its own, else 0. Never given again, as an address or a pthread_t would be: the
 * work that a thread queued may outlive it. */
static uint64_t thread_of(const sat_context *ctx, const void *stream) {
    static _Atomic uint64_t last;
    static _Thread_local uint64_t mine;
    if (!ctx->backend->per_thread || !ctx->backend->per_thread(stream)) return 0;
    if (mine == 0) mine = atomic_fetch_add(&last, 1) + 1;
    return mine;
}

sat_status sat_pool_call(sat_context *ctx, const sat_pattern *pattern, const sat_problem *problem, sat_operation op,
                         void *const *operands, void *stream) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!problem) return sat_fail(SAT_NULL_POINTER, "problem is NULL");
    SAT_TRY(sat_pattern_for(sat_op_find(op), &pattern));
    slot made = {
        .pattern = pattern, .stream = stream, .thread = thread_of(ctx, stream), .threads = sat_threads_now(ctx)};
    SAT_TRY(sat_problem_take(&made.problem, problem));
    if (made.problem.op != op)
        return sat_fail(SAT_BAD_ENUM, "problem: op is %d; this call does %d", (int)made.problem.op, (int)op);
    const sat_op *found = sat_op_find(op);
    if (found->from_call) SAT_TRY(found->from_call(&made.problem, operands));
    /* Another call may bring other values, and there is no call that says when they change. */
    made.problem.flags &= ~(uint32_t)SAT_FIXED_VALUES;
    SAT_TRY(check_alignment(&made.problem, operands));
    uint32_t most = ctx->backend->call_alignment;
    made.problem.a_align = common_alignment(&made.problem, operands, 'a', most);
    made.problem.b_align = common_alignment(&made.problem, operands, 'b', most);
    made.problem.c_align = common_alignment(&made.problem, operands, 'c', most);
    made.background_done = ctx->background ? sat_background_done(ctx->background) : 0;
    made.wrong_generation = atomic_load(&ctx->wrong_generation);
    bool capture = ctx->backend->capturing(&ctx->device, stream);
    pthread_mutex_lock(&ctx->pool->lock);
    slot *p = borrow(ctx->pool, &made, capture);
    pthread_mutex_unlock(&ctx->pool->lock);
    if (!p) return call_new(ctx, &made, operands, stream, capture);
    sat_status status = sat_plan_launch(p->plan, operands, NULL, stream);
    pthread_mutex_lock(&ctx->pool->lock);
    p->in_use = false;
    pthread_mutex_unlock(&ctx->pool->lock);
    return status;
}
