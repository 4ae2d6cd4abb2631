/* What disturbs a race. Times and counts are of this process alone, so that they mean the same in a container. */
#include "core/noise.h"

enum {
    FEW = 3,    /* times that a thread is preempted on a quiet machine, too: interrupts, the kernel's own threads */
    OFTEN = 40, /* a second and thread; one that shares its processor is at 60 and more */
    ENOUGH_RUNS = 10, /* for the winner's own times to say something */
};
static const double SLOWER = 1.5, LEAST_DELAY = 20e-6; /* seconds; less is the clock's and the caches' own noise */

static int64_t preempted(const sat_context *ctx) { return ctx->backend->preempted ? ctx->backend->preempted() : 0; }

sat_noise sat_noise_begin(const sat_context *ctx) {
    return (sat_noise){.seconds = -sat_now(), .preempted = -preempted(ctx)};
}

void sat_noise_end(sat_noise *noise, const sat_context *ctx) {
    noise->seconds += sat_now();
    noise->preempted += preempted(ctx);
}

bool sat_noise_quiet(const sat_context *ctx, const sat_device *d) {
    return !ctx->backend->quiet || ctx->backend->quiet(d);
}

static bool scattered(const sat_record *r) {
    return r->runs >= ENOUGH_RUNS && r->least_seconds > 0 && r->seconds > SLOWER * r->least_seconds &&
           r->seconds - r->least_seconds > LEAST_DELAY;
}

bool sat_noise_too_high(const sat_noise *noise, const sat_context *ctx, const sat_device *d, const sat_record *winner) {
    if (scattered(winner)) return true;
    if (noise->preempted <= FEW) return false;
    bool often = (double)noise->preempted > OFTEN * noise->seconds * (d->threads > 0 ? d->threads : 1);
    return often || !sat_noise_quiet(ctx, d);
}
