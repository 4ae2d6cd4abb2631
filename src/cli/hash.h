// FNV-1a of a text: what names entries and seeds cases. The library's own is not the command line's to see.
#ifndef CLI_HASH_H
#define CLI_HASH_H

#include <stdint.h>

static inline uint64_t hash_text(const char *text) {
    uint64_t h = 0xcbf29ce484222325u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}

#endif
