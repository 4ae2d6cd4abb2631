/* Resource check: whether this process has the threads, and address space for each, that a library of the CPU takes.
 * OpenBLAS ends the process where it cannot start its threads, and tries for ever where it gets no buffer. */
#ifndef SAT_ROOM_H
#define SAT_ROOM_H

#include "variant.h"

bool sat_room_to_load(void);                    /* one that starts as many threads as there are cores */
bool sat_room_to_run(int threads);              /* so many of ours will call it at once */
sat_status sat_room_check(const sat_launch *l); /* the same at a launch, with a message */

#endif
