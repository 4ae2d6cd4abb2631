/* What the ranks of one job agree on, by a store of the caller's: which variant answers a key. */
#ifndef SAT_AGREE_H
#define SAT_AGREE_H

#include "core/context.h"

/* What was agreed on for a key, as far as this process knows or the store has it. Waits up to so many seconds; < 0: as
 * long as the agreement allows. False: nothing yet. */
bool sat_agree_find(sat_agree *agree, const char *key, double seconds, char value[SAT_AGREED_SIZE]);
/* Proposes a value; what is agreed on then may be another one, that was there before. */
void sat_agree_propose(sat_agree *agree, const char *key, const char *proposed, char value[SAT_AGREED_SIZE]);
/* Is it for this rank to tune the key? True on one rank, as long as the store works; the others wait for it. */
bool sat_agree_claim(sat_agree *agree, const char *key);
void sat_agree_close(sat_agree *agree);

#endif
