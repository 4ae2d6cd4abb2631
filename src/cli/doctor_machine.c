// What the machine has and what it lets this process have, read from where Linux says it. What cannot be read is as
// good as absent: a doctor may not fail where the library works.

#define _GNU_SOURCE // affinity
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "doctor.h"
#include "progress.h"

/* The first line of a file, without its end; false if there is none. */
static bool first_line(const char *path, char *line, int capacity) {
    FILE *f = fopen(path, "r");
    bool got = f && fgets(line, capacity, f);
    if (f) fclose(f);
    if (got) line[strcspn(line, "\n")] = 0;
    return got;
}

/* ---- processors ---- */

static void less(double *least, double quota) {
    if (quota > 0 && (*least == 0 || quota < *least)) *least = quota;
}

static double quota_of_v2(const char *folder) { // "200000 100000", or "max 100000"
    char path[PATH_MAX], line[64], *end;
    if ((size_t)snprintf(path, sizeof path, "%s/cpu.max", folder) >= sizeof path) return 0;
    if (!first_line(path, line, sizeof line)) return 0;
    double quota = strtod(line, &end), period = strtod(end, NULL);
    return end > line && period > 0 ? quota / period : 0;
}

static double quota_of_v1(const char *folder) {
    static const char *const names[] = {"cpu.cfs_quota_us", "cpu.cfs_period_us"};
    double value[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX], line[64];
        if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, names[i]) >= sizeof path) return 0;
        if (first_line(path, line, sizeof line)) value[i] = strtod(line, NULL);
    }
    return value[0] > 0 && value[1] > 0 ? value[0] / value[1] : 0;
}

/* The least quota of a cgroup and of those above it. In a container `group` may name a folder that it does not see; the
 * root of its own is then what counts. */
static double quota_above(const char *root, const char *group, double (*quota_of)(const char *folder)) {
    double least = 0;
    char folder[PATH_MAX];
    if ((size_t)snprintf(folder, sizeof folder, "%s%s", root, group) >= sizeof folder) return 0;
    for (size_t length = strlen(root); strlen(folder) >= length;) {
        less(&least, quota_of(folder));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < length) break;
        *slash = 0;
    }
    return least;
}

/* Lines of /proc/self/cgroup: "0::/path" of version 2, "4:cpu,cpuacct:/path" of version 1. */
static double cgroup_quota(void) {
    double least = 0;
    char line[PATH_MAX];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0, controllers++;
        if (!*controllers) less(&least, quota_above("/sys/fs/cgroup", group, quota_of_v2));
        else if (strcmp(controllers, "cpu") == 0 || strncmp(controllers, "cpu,", 4) == 0 || strstr(controllers, ",cpu"))
            less(&least, quota_above("/sys/fs/cgroup/cpu", group, quota_of_v1));
    }
    if (f) fclose(f);
    return least;
}

void look_at_processors(processors *p) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t set;
    p->online = online > 0 ? (int)online : 1;
    p->allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : p->online;
    p->quota = cgroup_quota();
}

/* ---- OpenMP ---- */

void look_at_openmp(openmp *o) {
    static const char *const names[] = {"libgomp", "libiomp5", "libomp"};
    char line[PATH_MAX + 128];
    o->count = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        const char *path = strchr(line, '/'), *name = path ? strrchr(path, '/') + 1 : "";
        bool is = false, known = false;
        for (int i = 0; i < 3; i++) {
            size_t length = strlen(names[i]);
            is = is || (strncmp(name, names[i], length) == 0 && (name[length] == '.' || name[length] == '-'));
        }
        for (int i = 0; is && i < o->count; i++) known = known || strcmp(o->path[i], path) == 0;
        if (is && !known && o->count < OPENMP_MOST) snprintf(o->path[o->count++], PATH_MAX, "%s", path);
    }
    if (f) fclose(f);
}

/* ---- the disk of the cache ---- */

static const struct {
    unsigned long magic;
    const char *name;
    bool network, memory;
} disks[] = {
    {0xef53, "ext4", false, false},      {0x58465342, "XFS", false, false},     {0x9123683e, "Btrfs", false, false},
    {0x2fc12fc1, "ZFS", false, false},   {0x794c7630, "overlay", false, false}, {0x01021994, "tmpfs", false, true},
    {0x6969, "NFS", true, false},        {0xff534d42, "CIFS", true, false},     {0xfe534d42, "SMB", true, false},
    {0x517b, "SMB", true, false},        {0x01021997, "9P", true, false},       {0x65735546, "FUSE", true, false},
    {0x0bd00bd0, "Lustre", true, false}, {0x00c36400, "Ceph", true, false},     {0x47504653, "GPFS", true, false},
    {0x19830326, "BeeGFS", true, false}, {0x5346414f, "AFS", true, false},
};

static void name_disk(disk *d) {
    struct statfs info;
    d->kind = "other";
    if (statfs(d->place, &info) != 0) return;
    for (size_t i = 0; i < sizeof disks / sizeof *disks; i++)
        if (disks[i].magic == (unsigned long)(info.f_type & 0xffffffff))
            d->kind = disks[i].name, d->network = disks[i].network, d->memory = disks[i].memory;
}

/* The rule of the library in short: nobody but root and this user may have a hand in the folder, or in one above it. */
static void look_for_others(disk *d) {
    char path[PATH_MAX];
    struct stat info;
    if (!realpath(d->place, path)) return;
    for (bool last = d->exists;; last = false) {
        const char *shown = *path ? path : "/";
        if (stat(shown, &info) != 0) return;
        bool sticky = (info.st_mode & S_ISVTX) && !last, all = info.st_mode & S_IWOTH;
        bool group = (info.st_mode & S_IWGRP) && info.st_gid != 0 && info.st_gid != getegid();
        if (info.st_uid != 0 && info.st_uid != geteuid())
            snprintf(d->others, sizeof d->others, "%.180s belongs to user %lu", shown, (unsigned long)info.st_uid);
        else if ((all || group) && !sticky)
            snprintf(d->others, sizeof d->others, "others may write %.180s (mode %04o)", shown,
                     (unsigned)info.st_mode & 07777);
        char *slash = strrchr(path, '/');
        if (*d->others || !slash) return;
        *slash = 0;
    }
}

/* As the cache writes: a new file, on the disk before it counts. */
static void write_one(disk *d) {
    char path[PATH_MAX + 32], text[4096];
    memset(text, '\n', sizeof text);
    snprintf(path, sizeof path, "%s/doctor-XXXXXX", d->place);
    double start = now_seconds();
    int file = mkstemp(path);
    if (file < 0) {
        d->error = errno;
        return;
    }
    if (write(file, text, sizeof text) != (ssize_t)sizeof text || fsync(file) != 0) d->error = errno ? errno : ENOSPC;
    d->seconds = now_seconds() - start;
    close(file);
    unlink(path);
}

void look_at_disk(const char *folder, disk *d) {
    memset(d, 0, sizeof *d);
    snprintf(d->place, sizeof d->place, "%s", folder);
    d->exists = access(d->place, F_OK) == 0;
    while (access(d->place, F_OK) != 0) {
        char *slash = strrchr(d->place, '/');
        if (!slash || slash == d->place) {
            snprintf(d->place, sizeof d->place, "/");
            break;
        }
        *slash = 0;
    }
    name_disk(d);
    look_for_others(d);
    struct stat info;
    if (stat(d->place, &info) == 0 && !S_ISDIR(info.st_mode)) d->error = ENOTDIR;
    else if (access(d->place, W_OK | X_OK) != 0) d->error = errno;
    else if (d->exists && !*d->others) write_one(d);
}

/* ---- NVIDIA ---- */

/* A display or 3D controller (class 0x03...) of NVIDIA's. */
static bool gpu_on_bus(void) {
    bool found = false;
    DIR *bus = opendir("/sys/bus/pci/devices");
    for (struct dirent *entry; bus && !found && (entry = readdir(bus));) {
        char path[PATH_MAX], vendor[16] = "", class[16] = "";
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/vendor", entry->d_name);
        if (!first_line(path, vendor, sizeof vendor) || strcmp(vendor, "0x10de") != 0) continue;
        snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/class", entry->d_name);
        found = first_line(path, class, sizeof class) && strncmp(class, "0x03", 4) == 0;
    }
    if (bus) closedir(bus);
    return found;
}

static void look_at_driver(nvidia *n) {
    char line[256];
    if (first_line("/proc/driver/nvidia/version", line, sizeof line)) {
        const char *word =
            strpbrk(line, "0123456789"); // "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06 ..."
        const char *after = strstr(line, "Kernel Module");
        if (after) word = strpbrk(after, "0123456789");
        if (word) snprintf(n->version, sizeof n->version, "%.*s", (int)strcspn(word, " "), word);
    }
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL); // stays open: the library uses it too
    n->driver = library != NULL;
    int (*get)(int *version) = NULL;
    if (library) *(void **)&get = dlsym(library, "cuDriverGetVersion");
    if (!get || get(&n->cuda) != 0) n->cuda = 0;
}

static bool runs(const char *folder, const char *below, char path[PATH_MAX]) {
    return (size_t)snprintf(path, PATH_MAX, "%s%s", folder, below) < PATH_MAX && access(path, X_OK) == 0;
}

static bool find_nvcc(char path[PATH_MAX]) {
    const char *compiler = getenv("CUDACXX");
    static const char *const roots[] = {"CUDA_HOME", "CUDA_PATH"};
    if (compiler && *compiler == '/' && runs(compiler, "", path)) return true;
    for (int i = 0; i < 2; i++)
        if (getenv(roots[i]) && runs(getenv(roots[i]), "/bin/nvcc", path)) return true;
    for (const char *p = getenv("PATH"); p && *p;) {
        char folder[PATH_MAX];
        int length = (int)strcspn(p, ":");
        snprintf(folder, sizeof folder, "%.*s", length, p);
        if (*folder == '/' && runs(folder, "/nvcc", path)) return true;
        p += length + (p[length] == ':');
    }
    return runs("/usr/local/cuda", "/bin/nvcc", path);
}

void look_at_nvidia(nvidia *n) {
    memset(n, 0, sizeof *n);
    n->gpu = gpu_on_bus();
    look_at_driver(n);
    if (!find_nvcc(n->nvcc)) n->nvcc[0] = 0;
}
