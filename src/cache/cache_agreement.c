/* An agreement by a folder: a file a key, which is made once and never changed. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/status.h"
#include "base/trust.h"
#include "cache/cache_disk.h"

/* A key with its slashes as dots. */
static bool path_of(char path[SAT_PATH_CAPACITY], const char *folder, const char *key) {
    if (!sat_path_join(path, folder, key)) return false;
    for (char *at = path + strlen(folder) + 1; *at; at++)
        if (*at == '/') *at = '.';
    return true;
}

static sat_status look(const char *path, char value[SAT_AGREED_SIZE]) {
    char *text = NULL;
    size_t length = 0;
    int error = sat_disk_read_own(path, SAT_AGREED_SIZE, &text, &length);
    if (error == ENOENT) return SAT_NOT_FOUND;
    if (error) return sat_fail(SAT_IO, "agreement: %s cannot be read: %s", path, strerror(error));
    bool fits = length > 0 && length < SAT_AGREED_SIZE;
    if (fits) memcpy(value, text, length), value[length] = 0;
    free(text);
    return fits ? SAT_OK : sat_fail(SAT_BAD_FORMAT, "agreement: %s holds no value", path);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Looks again after a millisecond, and then ever later, up to a twentieth of a second. */
static sat_status get(void *user, const char *key, double seconds, char value[SAT_AGREED_SIZE]) {
    char path[SAT_PATH_CAPACITY];
    if (!path_of(path, user, key)) return sat_fail(SAT_BAD_SIZE, "agreement: the path of %s is too long", key);
    double end = now() + seconds, pause = 1e-3;
    for (;;) {
        sat_status status = look(path, value);
        double left = end - now();
        if (status != SAT_NOT_FOUND || left <= 0) return status;
        double some = pause < left ? pause : left;
        nanosleep(&(struct timespec){.tv_nsec = (long)(some * 1e9)}, NULL);
        pause = pause < 0.025 ? 2 * pause : 0.05;
    }
}

static sat_status put(void *user, const char *key, const char *desired, char value[SAT_AGREED_SIZE]) {
    char path[SAT_PATH_CAPACITY];
    if (!path_of(path, user, key)) return sat_fail(SAT_BAD_SIZE, "agreement: the path of %s is too long", key);
    int error = sat_disk_claim(path, desired, strlen(desired));
    sat_status there = look(path, value); /* on a full disk, too */
    if (there != SAT_NOT_FOUND || !error) return there;
    return sat_fail(SAT_IO, "agreement: %s cannot be written: %s", path, strerror(error));
}

sat_status sat_agreement_folder(const char *folder, int rank, int world, sat_agreement *agreement) {
    if (!folder) return sat_fail(SAT_NULL_POINTER, "folder is NULL");
    if (!agreement) return sat_fail(SAT_NULL_POINTER, "agreement is NULL");
    int error = sat_disk_make(folder);
    if (error) return sat_fail(SAT_IO, "folder is '%s', which cannot be made: %s", folder, strerror(error));
    char *path = realpath(folder, NULL), why[256];
    if (!path) return sat_fail(SAT_IO, "folder is '%s': %s", folder, strerror(errno));
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISDIR(info.st_mode)) {
        free(path);
        return sat_fail(SAT_IO, "folder is '%s', which is no folder", folder);
    }
    if (!sat_path_safe(path, true, why, sizeof why)) {
        sat_status status = sat_fail(SAT_IO, "folder is '%s', which another user may change: %s", folder, why);
        free(path);
        return status;
    }
    sat_agreement made = {SAT_SIZED(sat_agreement), .rank = rank, .world = world, .get = get, .put = put, .user = path};
    sat_status status = sat_struct_out(agreement, &made, sizeof made, sizeof made, "sat_agreement");
    if (status != SAT_OK) free(path);
    return status;
}

void sat_agreement_folder_free(sat_agreement *agreement) {
    if (!agreement || agreement->get != get) return;
    free(agreement->user);
    agreement->user = NULL;
}
