/* FNV-1a with 64 bits: names files, seals them, and marks builds, so what it gives may never change. */
#ifndef SAT_HASH_H
#define SAT_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SAT_HASH_START 0xcbf29ce484222325u

/* Takes one more number into a hash. A byte of text is such a number. */
static inline uint64_t sat_hash_number(uint64_t hash, uint64_t number) { return (hash ^ number) * 0x100000001b3u; }

/* Takes bytes into a hash; the first time it is SAT_HASH_START. */
static inline uint64_t sat_hash_bytes(uint64_t hash, const char *data, size_t length) {
    for (size_t i = 0; i < length; i++) hash = sat_hash_number(hash, (unsigned char)data[i]);
    return hash;
}

static inline uint64_t sat_hash_text(const char *text) { return sat_hash_bytes(SAT_HASH_START, text, strlen(text)); }

#endif
