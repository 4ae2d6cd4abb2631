/* The table every backend fills. Core calls devices through this and nothing else. */
#ifndef SAT_BACKEND_H
#define SAT_BACKEND_H

#include "ops/op.h"

/* How made-up operands look. */
typedef enum sat_fill {
    SAT_FILL_CENTRED = 0, /* random, finite, both signs: what races are timed on */
    SAT_FILL_POSITIVE = 1 /* far enough above zero that every activation is the identity on the result */
} sat_fill;

typedef struct sat_backend {
    sat_backend_kind kind;
    const char *name;   /* "cpu", "cuda": also what $SPARSE_AUTOTUNE_DEVICE calls it */
    size_t alignment;   /* of workspaces and made-up operands */
    bool loads_late;    /* a kernel's code is brought to the device when it is first launched */
    int (*count)(void); /* devices; 0 where there is no driver */
    sat_status (*open)(int index, int threads, sat_device *device); /* threads 0: as many as a run would use now */

    void *(*alloc)(void *device, size_t bytes, size_t alignment); /* `device` is the sat_device; NULL when out */
    void (*free)(void *device, void *pointer);
    size_t (*available)(const sat_device *device); /* bytes free now */
    /* May this device read and write there? False for another device's memory, or a plain host pointer on CUDA. */
    bool (*usable)(const sat_device *device, const void *pointer);

    sat_status (*read)(const sat_device *device, void *host, const void *from, size_t bytes); /* device to host */
    sat_status (*write)(const sat_device *device, void *to, const void *host, size_t bytes);  /* host to device */
    sat_status (*set)(const sat_device *device, void *to, int byte, size_t bytes);
    sat_status (*copy)(const sat_device *device, void *to, const void *from, size_t bytes);
    /* Gives an operand random values (the same for the same seed): `base` is its first element's place. Elements of
     * the span that the layout does not reach, and the padding of blocks, become NaN. */
    sat_status (*make)(const sat_device *device, const sat_operand *o, const sat_pattern_view *a, void *base,
                       uint64_t seed, sat_fill fill, double scale);
    sat_status (*negate)(const sat_device *device, sat_dtype t, void *base, int64_t elements); /* flips every sign */

    /* After a run over poison (bytes of 0xFF): is all that the output's layout does not reach still poison, `guard`
     * bytes on both sides included? Poisons the output itself on the way. */
    bool (*clean)(const sat_device *device, const sat_operand *o, void *base, size_t guard);

    void *(*stream)(const sat_device *device); /* what tuning runs on; all of the above are in its order */
    void (*flush)(const sat_device *device, void *const *pointers, const size_t *bytes, int count);
    /* Times one call of run(user), as a device sees it, in seconds; `repeat` runs back to back give their mean. */
    sat_status (*time)(const sat_device *device, sat_status (*run)(void *user), void *user, int repeat,
                       double *seconds);
    sat_status (*sync)(const sat_device *device, void *stream);
    bool (*capturing)(const sat_device *device, void *stream); /* a CUDA graph is being captured */
    int (*threads)(void);                                      /* threads a run would use now; CUDA: 0 */

    const sat_checker *(*checker)(sat_operation op); /* where this backend checks results */
} sat_backend;

extern const sat_backend sat_backend_cpu;
#ifdef SAT_HAVE_CUDA
extern const sat_backend sat_backend_cuda;
#endif

/* Every backend of this build, best first; NULL past the end. */
const sat_backend *sat_backend_at(int i);

#endif
