/* MKL's runtime library, opened once with its threading made to agree with ours. */
#ifndef SAT_MKL_H
#define SAT_MKL_H

#include <stdbool.h>

typedef struct sat_mkl {
    void *library;
    char version[48];                   /* "MKL 2025.0.1" */
    bool wide;                          /* its integers have 64 bits */
    bool threaded;                      /* it runs on more than one thread by itself */
    int (*set_threads_local)(int count); /* for the calling thread; 0 takes that back; gives the setting before */
} sat_mkl;

const sat_mkl *sat_mkl_get(void); /* NULL: not on this machine, or not whole */

#endif
