/* Who answers for a verdict: this build of the library, on this machine. */
#ifndef SAT_IDENTITY_H
#define SAT_IDENTITY_H

#include "backend/backend.h"
#include "cache/cache.h"

/* Sources, compilers and flags that this library was built from and with: cmake/build_id.cmake. */
extern const char sat_build_id[];

/* What records of this build, on this machine and device, are marked with. */
void sat_identity_mark(const sat_backend *backend, const sat_device *device, char mark[SAT_MARK_SIZE]);

/* The hash behind it, of any build, machine, device and device's own number. */
void sat_identity_hash(const char *build, const char *machine, const char *device, const char *unique,
                       char mark[SAT_MARK_SIZE]);
/* The machine's own number, and where it has none its name. Never written anywhere as it is. */
void sat_identity_machine(char *machine, size_t size);

#endif
