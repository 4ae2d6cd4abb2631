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

/* The file (cache_rates.c). Load looks through the layers; a file that is damaged, of a later version or of another
 * device is none. Keep fails with SAT_IO where the disk refuses, SAT_UNSUPPORTED where a later version's file is. */
bool sat_cache_load_rates(sat_cache *cache, sat_rates *rates);
sat_status sat_cache_keep_rates(sat_cache *cache, const sat_rates *rates);
bool sat_rates_plausible(const sat_rates *rates); /* all there, and no number that cannot be */
/* Its text. Parse gives SAT_NOT_FOUND for another device's or another way of measuring, SAT_BAD_FORMAT, or
 * SAT_UNSUPPORTED for a later version's. */
struct sat_text; /* cache_file.h */
void sat_rates_format(struct sat_text *out, const char *identity, const sat_rates *rates);
sat_status sat_rates_parse(const char *text, size_t length, const char *identity, sat_rates *rates);

#endif
