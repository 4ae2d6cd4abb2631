/* A device's measured rates: taken from the cache when a context opens, measured before its first race where the cache
 * has none. Until then, and wherever measuring fails, the backend's nominal ones serve. */
#ifndef SAT_RATES_H
#define SAT_RATES_H

#include "core/context.h"

/* The device as it was after one measurement. A context keeps all of them: callers hold pointers. */
typedef struct sat_rated {
    sat_device device;
    struct sat_rated *before;
} sat_rated;

void sat_rates_open(sat_context *ctx); /* takes on what the cache has */
void sat_rates_close(sat_context *ctx);
/* Before a race that is kept; the caller holds the tuning lock. Measures at most once a context, where the cache has
 * nothing and the effort allows tuning. Gives `device` the rates that there are then. */
void sat_rates_before_race(sat_context *ctx, sat_device *device);

#endif
