/* What may be believed: the environment of a program without privileges, and files that only root and this user can
 * have changed. As ssh does, owner and mode decide, of the file and of every folder on the way to it. */
#define _GNU_SOURCE
#include "base/trust.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/xattr.h>
#endif

enum { PATH_CAPACITY = 4096, MOST_LINKS = 40 };

/* ---- the environment ---- */

/* Does this program have rights that its caller has not (setuid, setgid, capabilities)? */
static bool privileged(void) {
#if defined(__linux__)
    return getauxval(AT_SECURE) != 0;
#else
    return getuid() != geteuid() || getgid() != getegid();
#endif
}

const char *sat_environment(const char *name) { return privileged() ? NULL : getenv(name); }

/* ---- owners and groups ---- */

/* In a user namespace root may have another number: whoever owns / can change everything below it anyway. A setgid
 * program's user is its caller, whom it has reason to distrust. */
static bool owner_trusted(uid_t owner) {
    struct stat root;
    if (owner == 0) return true;
    if (owner == geteuid() && !(privileged() && geteuid() == getuid())) return true;
    return !stat("/", &root) && owner == root.st_uid;
}

/* The next field of a line of /etc/passwd or /etc/group; NULL past the last. */
static char *take_field(char **rest) {
    char *field = *rest, *colon = field ? strchr(field, ':') : NULL;
    if (colon) *colon = 0;
    *rest = colon ? colon + 1 : NULL;
    return field;
}

static bool field_is(const char *field, unsigned long number) {
    char *end;
    return field && *field && strtoul(field, &end, 10) == number && !*end;
}

/* Calls `line` with each line of a file, until one says no. False also for a file or a line that cannot be read. */
static bool each_line(const char *path, bool (*line)(char *text, void *user), void *user) {
    char text[8192];
    FILE *f = fopen(path, "re");
    bool good = f;
    while (good && fgets(text, sizeof text, f)) {
        size_t length = strcspn(text, "\n");
        good = text[length] == '\n' || feof(f);
        text[length] = 0;
        if (good) good = line(text, user);
    }
    if (f) fclose(f);
    return good;
}

typedef struct group_search {
    gid_t group;
    char name[256]; /* this user's */
    bool found;
} group_search;

/* name:password:uid:gid:... False for somebody else whose own group it is. */
static bool passwd_line(char *text, void *user) {
    group_search *s = user;
    char *rest = text, *name = take_field(&rest);
    (void)take_field(&rest);
    char *uid = take_field(&rest), *gid = take_field(&rest);
    bool ours = field_is(uid, geteuid());
    if (ours && name) snprintf(s->name, sizeof s->name, "%s", name);
    return ours || field_is(uid, 0) || !field_is(gid, s->group);
}

/* name:password:gid:member,member. False where the group has a member beside root and this user. */
static bool group_line(char *text, void *user) {
    group_search *s = user;
    char *rest = text, *save = NULL;
    (void)take_field(&rest);
    (void)take_field(&rest);
    if (!field_is(take_field(&rest), s->group)) return true;
    s->found = true;
    for (char *m = rest ? strtok_r(rest, ",", &save) : NULL; m; m = strtok_r(NULL, ",", &save))
        if (strcmp(m, "root") != 0 && strcmp(m, s->name) != 0) return false;
    return true;
}

/* Many systems give each user a group of their own, and files that this group may write. */
static bool group_is_ours(gid_t group) {
    group_search s = {.group = group};
    return each_line("/etc/passwd", passwd_line, &s) && each_line("/etc/group", group_line, &s) && s.found;
}

/* A list of more users hides behind the bits of the group. */
static bool has_access_list(const char *path) {
#if defined(__linux__)
    return lgetxattr(path, "system.posix_acl_access", NULL, 0) > 0;
#else
    return (void)path, false;
#endif
}

/* ---- paths ---- */

typedef struct path_check {
    char path[PATH_CAPACITY]; /* what was seen so far, without links; "" is the root */
    char rest[PATH_CAPACITY]; /* what is still to come */
    bool strict;
    bool shared; /* the last folder seen is one like /tmp: everybody may add to it, and only owners take away */
    int links;
    bool group_known; /* what was found out of a group: most folders of a path have the same one */
    bool group_ours;
    gid_t group;
    char *why;
    size_t why_size;
} path_check;

static const char *here(const path_check *w) { return w->path[0] ? w->path : "/"; }

static bool refuse(path_check *w, int error, const char *text) {
    snprintf(w->why, w->why_size, "%s %s", here(w), text);
    errno = error;
    return false;
}

static bool fail(path_check *w, int error) {
    snprintf(w->why, w->why_size, "%s: %s", here(w), strerror(error));
    errno = error;
    return false;
}

static bool others_may_write(path_check *w, const struct stat *info) {
    if (info->st_mode & S_IWOTH) return true;
    if (!w->strict || !(info->st_mode & S_IWGRP)) return false;
    if (!w->group_known || w->group != info->st_gid) w->group_ours = group_is_ours(info->st_gid);
    w->group_known = true, w->group = info->st_gid;
    return !w->group_ours || has_access_list(here(w));
}

static bool check_one(path_check *w, const struct stat *info) {
    char text[64];
    bool folder = S_ISDIR(info->st_mode);
    if (w->strict && !owner_trusted(info->st_uid)) {
        snprintf(text, sizeof text, "belongs to user %lu", (unsigned long)info->st_uid);
        return refuse(w, EPERM, text);
    }
    bool shared = others_may_write(w, info);
    if (shared && !(folder && (info->st_mode & S_ISVTX))) {
        snprintf(text, sizeof text, "may be written by others (mode %04o)", (unsigned)info->st_mode & 07777);
        return refuse(w, EPERM, text);
    }
    if (!folder && w->shared) return refuse(w, EPERM, "is in a folder that everybody may write");
    w->shared = shared;
    return true;
}

/* Takes the next name off what is to come; false at the end. */
static bool next_name(path_check *w, char name[PATH_CAPACITY]) {
    size_t skip = strspn(w->rest, "/"), length = strcspn(w->rest + skip, "/");
    memcpy(name, w->rest + skip, length);
    name[length] = 0;
    memmove(w->rest, w->rest + skip + length, strlen(w->rest + skip + length) + 1);
    return length > 0;
}

/* Puts what a link says before what is to come. */
static bool follow(path_check *w, size_t before) {
    char target[PATH_CAPACITY], rest[PATH_CAPACITY];
    ssize_t length = readlink(w->path, target, sizeof target - 1);
    if (length <= 0 || ++w->links > MOST_LINKS) return refuse(w, ELOOP, "is a link that leads nowhere");
    target[length] = 0;
    int n = snprintf(rest, sizeof rest, "%s/%s", target, w->rest);
    if (n < 0 || (size_t)n >= sizeof rest) return refuse(w, ENAMETOOLONG, "is a link to a path that is too long");
    memcpy(w->rest, rest, (size_t)n + 1);
    w->path[target[0] == '/' ? 0 : before] = 0;
    if (target[0] == '/') w->shared = false;
    return true;
}

static bool step_up(path_check *w) {
    struct stat info;
    char *slash = strrchr(w->path, '/');
    if (slash) *slash = 0;
    return lstat(here(w), &info) ? fail(w, errno) : check_one(w, &info);
}

static bool step(path_check *w, const char *name) {
    struct stat info;
    size_t before = strlen(w->path);
    if (strcmp(name, ".") == 0) return true;
    if (strcmp(name, "..") == 0) return step_up(w);
    int n = snprintf(w->path + before, sizeof w->path - before, "/%s", name);
    if (n < 0 || (size_t)n >= sizeof w->path - before) return refuse(w, ENAMETOOLONG, "is too long");
    if (lstat(w->path, &info)) return fail(w, errno);
    if (!S_ISLNK(info.st_mode)) return check_one(w, &info);
    if (w->strict && !owner_trusted(info.st_uid)) return refuse(w, EPERM, "is another user's link");
    return follow(w, before);
}

bool sat_path_safe(const char *path, bool strict, char *why, size_t size) {
    path_check w = {.strict = strict, .why = why, .why_size = size};
    char name[PATH_CAPACITY];
    struct stat root;
    snprintf(w.rest, sizeof w.rest, "%s", path);
    if (path[0] != '/') {
        snprintf(why, size, "%s is no full path", path[0] ? path : "''");
        return errno = EPERM, false;
    }
    if (strlen(path) >= sizeof w.rest) return refuse(&w, ENAMETOOLONG, "is too long");
    if (stat("/", &root)) return fail(&w, errno);
    if (!check_one(&w, &root)) return false;
    while (next_name(&w, name))
        if (!step(&w, name)) return false;
    return !w.shared || refuse(&w, EPERM, "is a folder that everybody may write");
}

/* ---- what was refused ---- */

enum { REFUSALS = 8 };
static pthread_mutex_t refusals_lock = PTHREAD_MUTEX_INITIALIZER;
static char refusals[REFUSALS][512]; /* the last ones, newest first; "" past the end */

void sat_refusal_note(const char *text) {
    char line[sizeof refusals[0]];
    int at = 0;
    snprintf(line, sizeof line, "%s", text);
    pthread_mutex_lock(&refusals_lock);
    while (at < REFUSALS - 1 && refusals[at][0] && strcmp(refusals[at], line) != 0) at++;
    memmove(refusals[1], refusals[0], (size_t)at * sizeof refusals[0]);
    memcpy(refusals[0], line, sizeof line);
    pthread_mutex_unlock(&refusals_lock);
}

bool sat_refusal_at(int i, char *text, size_t size) {
    if (i < 0 || i >= REFUSALS) return false;
    pthread_mutex_lock(&refusals_lock);
    snprintf(text, size, "%s", refusals[i]);
    pthread_mutex_unlock(&refusals_lock);
    return text[0] != 0;
}
