/* The fingerprint of a build on a machine. A library's version and CPU target are in its variants' revision. */
#define _GNU_SOURCE
#include "core/identity.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/text.h"

/* The first line of a file, if it is a number: systemd writes "uninitialized" before it has one. */
static bool read_number(const char *path, char *to, size_t size) {
    FILE *f = fopen(path, "re");
    bool good = f && fgets(to, (int)size, f);
    if (f) fclose(f);
    if (!good) return false;
    to[strcspn(to, "\n")] = 0;
    size_t digits = strspn(to, "0123456789abcdefABCDEF");
    return digits >= 16 && !to[digits];
}

void sat_identity_machine(char *machine, size_t size) {
    if (read_number("/etc/machine-id", machine, size) || read_number("/var/lib/dbus/machine-id", machine, size)) return;
    machine[0] = 0;
    if (gethostname(machine, size - 1)) machine[0] = 0;
    machine[size - 1] = 0;
}

void sat_identity_hash(const char *build, const char *machine, const char *device, const char *unique,
                       char fingerprint[SAT_DIGEST_SIZE]) {
    const char *const parts[] = {build, machine, device, unique};
    sat_text text = {0};
    for (int i = 0; i < 4; i++) sat_text_add(&text, parts[i], strlen(parts[i]) + 1); /* the zero parts them */
    /* Without memory there is no fingerprint, and all is checked again. */
    if (text.failed) fingerprint[0] = 0;
    else snprintf(fingerprint, SAT_DIGEST_SIZE, "%016" PRIx64, sat_hash_bytes(SAT_HASH_START, text.data, text.length));
    sat_text_free(&text);
}

void sat_identity_fingerprint(const sat_backend *backend, const sat_device *device, char fingerprint[SAT_DIGEST_SIZE]) {
    char machine[256], unique[64] = "";
    sat_identity_machine(machine, sizeof machine);
    if (backend->unique) backend->unique(device, unique, sizeof unique);
    sat_identity_hash(sat_build_id, machine, device->identity, unique, fingerprint);
}
