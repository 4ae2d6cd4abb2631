/* Was the machine busy with something else while a race was timed? Then its times are longer than they should be, and
 * the race is run again another day (sat_choose_provisional). */
#ifndef SAT_NOISE_H
#define SAT_NOISE_H

#include "core/context.h"

/* What happened while runs were timed. */
typedef struct sat_noise {
    double seconds;    /* how long that took */
    int64_t preempted; /* how often a thread of this process had to leave a processor to somebody else */
} sat_noise;

sat_noise sat_noise_begin(const sat_context *ctx);
void sat_noise_end(sat_noise *noise, const sat_context *ctx);

/* Two signs. The threads were preempted: often, or at all while they do not get their processors even now. Or most of
 * the winner's runs took half as long again as its fastest, over many runs. The first is the surer one: on a machine
 * that is busy enough a race has time for a run or two. */
bool sat_noise_busy(const sat_noise *noise, const sat_context *ctx, const sat_device *device, const sat_record *winner);

/* Is there nothing now that would disturb a race? True where a backend cannot say. Takes some tens of milliseconds. */
bool sat_noise_quiet(const sat_context *ctx, const sat_device *device);

#endif
