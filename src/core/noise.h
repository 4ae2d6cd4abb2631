/* Did other work disturb the timing of a race? Then its times are too long and its records are `noisy`. The key is
 * raced again later, at the earliest after a minute, when the machine is quiet (sat_choose_needs_retune). */
#ifndef SAT_NOISE_H
#define SAT_NOISE_H

#include "core/context.h"

/* What happened while runs were timed. */
typedef struct sat_noise {
    double seconds;    /* how long that took */
    int64_t preempted; /* how often a thread of this process was preempted */
} sat_noise;

sat_noise sat_noise_begin(const sat_context *ctx);
void sat_noise_end(sat_noise *noise, const sat_context *ctx);

/* Was the timing noisy? There are two signs. The threads were preempted: often, or at all while they do not get their
 * processors even now. Or most of the winner's runs took half as long again as its fastest, over many runs. The first
 * is the surer one: a heavily loaded machine leaves a race time for only a run or two. */
bool sat_noise_too_high(const sat_noise *noise, const sat_context *ctx, const sat_device *device,
                        const sat_record *winner);

/* Is there nothing now that would disturb a race? True where a backend cannot say. Takes some tens of milliseconds. */
bool sat_noise_quiet(const sat_context *ctx, const sat_device *device);

#endif
