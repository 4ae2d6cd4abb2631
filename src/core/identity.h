/* The fingerprint of this build of the library on this machine. A record of the cache holds the fingerprint of
 * the build and machine that checked it. */
#ifndef SAT_IDENTITY_H
#define SAT_IDENTITY_H

#include "backend/backend.h"
#include "cache/cache.h"

/* Sources, compilers and flags that this library was built from and with: cmake/build_id.cmake. */
extern const char sat_build_id[];

/* A hash of this build, machine and device: `checked_by` of the records that they make. */
void sat_identity_fingerprint(const sat_backend *backend, const sat_device *device, char fingerprint[SAT_DIGEST_SIZE]);

/* The hash behind it, of any build, machine, device and device's own number. */
void sat_identity_hash(const char *build, const char *machine, const char *device, const char *unique,
                       char fingerprint[SAT_DIGEST_SIZE]);
/* The machine's own number, and where it has none its name. Never written anywhere as it is. */
void sat_identity_machine(char *machine, size_t size);

#endif
