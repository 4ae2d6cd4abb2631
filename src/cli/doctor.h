/* What `doctor` looks at beside the library: processors, OpenMP, the disk of the cache, NVIDIA's driver and compiler.
 */
#ifndef CLI_DOCTOR_H
#define CLI_DOCTOR_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "sparse_autotune.h"

typedef struct processors {
    int online;   /* of the machine */
    int allowed;  /* by this process's affinity */
    double quota; /* of the cgroup, in processors; 0: none */
} processors;

#define OPENMP_MOST 4
typedef struct openmp {
    char path[OPENMP_MOST][PATH_MAX]; /* the files of OpenMP run times that this process has loaded */
    int count;
} openmp;

typedef struct disk {
    const char *kind; /* "ext4", "NFS"; "other" where it is none of the list */
    bool network, memory;
    char place[PATH_MAX]; /* the folder, or the nearest one above that is there */
    bool exists;          /* place is the folder */
    char others[256];     /* who else may write there, in words; "" if nobody */
    int error;            /* errno of writing a small file, or of access to the place; 0: it can be written */
    double seconds;       /* for a small file to be on the disk; 0 where none was written */
} disk;

typedef struct nvidia {
    bool gpu;            /* the PCI bus has one */
    bool driver;         /* libcuda.so.1 can be loaded */
    int cuda;            /* the newest CUDA that the driver serves, 13000 for 13.0; 0: unknown */
    char version[64];    /* of the kernel's part, "580.65.06"; "" if it is not loaded */
    char nvcc[PATH_MAX]; /* "" if there is none */
} nvidia;

void look_at_processors(processors *p);
void look_at_openmp(openmp *o);
void look_at_disk(const char *folder, disk *d); /* writes a small file there and removes it */
void look_at_nvidia(nvidia *n);

#endif
