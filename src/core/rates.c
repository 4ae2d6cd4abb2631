/* When rates are measured, and how a context takes them on. */
#include "core/rates.h"

#include <stdlib.h>
#include <string.h>

#include "cache/cache_rates.h"

/* From now on the context's device has these rates. Whoever reads the device meanwhile sees it before or after. */
static sat_status take_on(sat_context *ctx, const sat_rates *rates) {
    sat_rated *now = malloc(sizeof *now);
    if (!now) return sat_fail(SAT_OUT_OF_MEMORY, "the rates of a device");
    now->device = ctx->device;
    now->device.measured = true;
    now->device.memory_rate = rates->memory, now->device.l2_rate = rates->l2, now->device.tf32_rate = rates->tf32;
    memcpy(now->device.flop_rate, rates->flop, sizeof rates->flop);
    now->before = atomic_load(&ctx->rated);
    while (!atomic_compare_exchange_weak(&ctx->rated, &now->before, now)) continue;
    return SAT_OK;
}

void sat_rates_open(sat_context *ctx) {
    sat_rates rates;
    if (!ctx->backend->measure || ctx->options.effort == SAT_EFFORT_OFF) return;
    if (sat_cache_load_rates(ctx->cache, &rates)) (void)take_on(ctx, &rates);
}

void sat_rates_close(sat_context *ctx) {
    for (sat_rated *r = atomic_load(&ctx->rated), *before; r; r = before) {
        before = r->before;
        free(r);
    }
}

/* Eight times L2 in one piece lets a copy be four times as large as what L2 can hold. */
static sat_status measure(sat_context *ctx) {
    size_t bytes = 8 * (size_t)(ctx->device.l2_bytes > 0 ? ctx->device.l2_bytes : 32 << 20);
    if (bytes > sat_memory_limit(ctx)) return sat_fail(SAT_OUT_OF_MEMORY, "measuring rates takes %zu bytes", bytes);
    if (ctx->backend->capturing(&ctx->device, NULL)) return sat_fail(SAT_DEVICE_ERROR, "a graph is being captured");
    void *scratch = sat_alloc(ctx, bytes);
    if (!scratch) return sat_fail(SAT_OUT_OF_MEMORY, "measuring rates takes %zu bytes", bytes);
    sat_rates rates = {0};
    sat_status status = ctx->backend->measure(&ctx->device, scratch, bytes, &rates);
    sat_free(ctx, scratch);
    if (status == SAT_OK && !sat_rates_plausible(&rates)) status = sat_fail(SAT_DEVICE_ERROR, "implausible rates");
    if (status == SAT_OK) status = take_on(ctx, &rates);
    bool keep = ctx->options.effort != SAT_EFFORT_OFF;
    if (status == SAT_OK && keep && sat_cache_keep_rates(ctx->cache, &rates) != SAT_OK)
        sat_logf(&ctx->log, SAT_LOG_DEBUG, "cache: the device's rates are kept in memory");
    return status;
}

static void measure_once(sat_context *ctx) {
    sat_rates rates;
    bool tuning = ctx->options.effort == SAT_EFFORT_QUICK || ctx->options.effort == SAT_EFFORT_FULL;
    if (!tuning || atomic_load(&ctx->rated) || atomic_exchange(&ctx->rates_tried, true)) return;
    sat_status status = SAT_OK;
    if (sat_cache_load_rates(ctx->cache, &rates)) status = take_on(ctx, &rates); /* another process was here since */
    else status = measure(ctx);
    if (status != SAT_OK) sat_logf(&ctx->log, SAT_LOG_WARN, "the device's rates stay nominal: %s", sat_last_error());
}

void sat_rates_before_race(sat_context *ctx, sat_device *device) {
    if (!ctx->backend->measure) return;
    measure_once(ctx);
    *device = *sat_context_device(ctx);
}

sat_status sat_context_measure_rates(sat_context *ctx) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!ctx->backend->measure) return sat_fail(SAT_UNSUPPORTED, "the rates of a %s stay nominal", ctx->backend->name);
    if (!sat_cache_tuning_lock(ctx->cache, 30))
        return sat_fail(SAT_BUSY, "another process has been tuning this device for too long");
    sat_status status = measure(ctx);
    sat_cache_tuning_unlock(ctx->cache);
    return status;
}
