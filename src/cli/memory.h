/* What this machine has: sizes from a command line or a file are compared with it before anything is allocated. */
#ifndef CLI_MEMORY_H
#define CLI_MEMORY_H

#include <stdbool.h>
#include <unistd.h>

static inline double memory_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (double)pages * (double)page : 0x1p40;
}

static inline bool memory_fits(double bytes) { return bytes <= 0.75 * memory_bytes(); }

#endif
