// The resource check for libraries of the CPU; see room.h.

#include "libs/room.h"

#include <unistd.h>

static const size_t MIB = (size_t)1 << 20;
static const size_t EACH = 144; /* MiB: OpenBLAS maps 128 for a thread, its own or a caller's, besides the stack */

bool sat_room_to_load(void) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int cores = online > 1 ? (int)online : 1;
    if (sat_forked() || !sat_room_to_run(2 * cores)) return false; /* its threads, and as many that call it */
    return sat_threads_startable(cores - 1) == cores - 1;
}

bool sat_room_to_run(int threads) {
    size_t left = sat_address_space_left();
    return left == SIZE_MAX || left / MIB >= 64 + (size_t)threads * EACH;
}

sat_status sat_room_check(const sat_launch *l) {
    if (sat_room_to_run(l->threads)) return SAT_OK;
    return sat_fail(SAT_OUT_OF_MEMORY, "%s: %s may take %zu MiB of address space, and RLIMIT_AS leaves %zu",
                    l->variant->name, l->variant->revision, 64 + (size_t)l->threads * EACH,
                    sat_address_space_left() / MIB);
}
