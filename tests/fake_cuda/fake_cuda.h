/* A CUDA runtime that needs no device, so that what the library does around kernels can be tested on any machine: which
 * memory it takes, what it waits for, what it may do while a graph is captured, and what it says when a call fails.
 *
 * It is a model, stricter than a device where that shows mistakes. Memory is the host's. Copies and fills that are
 * queued are done when somebody waits for their stream, and not before; kernels do nothing. Memory that is used after
 * it was freed is counted. While a stream is captured, calls that CUDA documents as unsafe fail and spoil the capture
 * unless the thread's mode allows them. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

enum { FAKE_DEVICES = 4, FAKE_L2 = 1 << 20 };

/* The machine, to be set up by a test; and what was counted. */
typedef struct fake_machine {
    int devices, capability[FAKE_DEVICES]; /* 90 for sm_90 */
    int driver;                            /* 13000; 0: there is none */
    cudaError_t count_error;               /* what cudaGetDeviceCount says */
    size_t memory;                         /* of each device */

    bool contexts[FAKE_DEVICES]; /* which devices something was done on */
    size_t held;                 /* bytes, now */
    int allocations;             /* now */
    int misuses;                 /* of memory that was freed, or never there */
    int attribute_calls;         /* cudaPointerGetAttributes */
    int kernels;                 /* launched or captured */
    int spoilt;                  /* captures */
    cudaError_t dead;            /* every call gives this: a kernel has gone wrong */
} fake_machine;

extern fake_machine fake;

void fake_reset(void);                /* one H200-like device, nothing wrong; memory and streams stay */
void fake_fault(cudaStream_t stream); /* queues a kernel that reads where it must not */
int fake_pending(void);               /* operations queued on all streams */
bool fake_live(const void *pointer);  /* allocated now? */

#endif
