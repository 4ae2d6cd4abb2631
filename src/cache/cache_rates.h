/* The file of a device's measured rates. */
#ifndef SAT_CACHE_RATES_H
#define SAT_CACHE_RATES_H

#include "base/rates.h"
#include "cache/cache_file.h"

/* Load looks through the layers; a file that is damaged, of a later version or of another device is none. Keep fails
 * with SAT_IO where the disk refuses, SAT_UNSUPPORTED where a later version's file is. */
bool sat_cache_load_rates(sat_cache *cache, sat_rates *rates);
sat_status sat_cache_keep_rates(sat_cache *cache, const sat_rates *rates);
bool sat_rates_plausible(const sat_rates *rates); /* every rate is there, and plausible */
/* Its text. Parse gives SAT_NOT_FOUND for another device's or another way of measuring, SAT_BAD_FORMAT, or
 * SAT_UNSUPPORTED for a later version's. */
void sat_rates_format(sat_text *out, const char *identity, const sat_rates *rates);
sat_status sat_rates_parse(const char *text, size_t length, const char *identity, sat_rates *rates);

#endif
