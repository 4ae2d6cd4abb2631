/* MKL's runtime library, opened once, with its layers chosen to agree with this process. */
#ifndef SAT_MKL_H
#define SAT_MKL_H

#include <stdbool.h>

typedef struct sat_mkl {
    void *library;
    char version[48]; /* "MKL 2025.0.1" */
    bool wide;        /* its integers have 64 bits */
    /* Threads of the calling thread's calls; 0 takes that back. Gives the setting before. */
    int (*set_threads)(int count);
} sat_mkl;

const sat_mkl *sat_mkl_get(void);  /* NULL: not on this machine, not whole, or not ours to use */
const char *sat_mkl_version(void); /* for sat_family.version */

#endif
