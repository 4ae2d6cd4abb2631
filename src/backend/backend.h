/* The table every backend fills. Core calls devices through this and nothing else. */
#ifndef SAT_BACKEND_H
#define SAT_BACKEND_H

#include "backend/indices.h"
#include "base/rates.h"
#include "ops/op.h"

typedef struct sat_backend {
    sat_backend_kind kind;
    const char *name; /* "cpu", "cuda": also what $SPARSE_AUTOTUNE_DEVICE calls it */
    size_t alignment; /* of workspaces and made-up operands */
    /* One-call forms read the alignment off the pointers, up to this. The limit keeps accidental alignment, which no
     * variant asks for, from making more keys and more races. */
    uint32_t call_alignment;
    bool shares_memory; /* the device reads and writes the host's memory */
    bool lazy_loading;  /* a kernel's code is brought to the device when it is first launched */
    int (*count)(void); /* devices; 0 where there is no driver */
    /* Of the options it reads threads, or multiprocessors; 0: as many as a run would use now. */
    sat_status (*open)(int index, const sat_context_options *options, sat_device *device);
    /* What distinguishes this device from others of its kind, as text; NULL: nothing but the machine that it is in. */
    void (*unique)(const sat_device *device, char *text, size_t size);

    /* Brackets calls on a device: enter() makes it the current device, leave() restores `before`, which enter() gave.
     * For a caller's run that is all. The library's own work (`own`) moreover has the tuning stream to itself,
     * and may allocate and wait while some stream is being captured into a graph. May be nested; calls nothing back. */
    int (*enter)(const sat_device *device, bool own);
    void (*leave)(const sat_device *device, int before);

    void *(*alloc)(void *device, size_t bytes, size_t alignment); /* `device` is the sat_device; NULL when out */
    void (*free)(void *device, void *pointer);
    size_t (*available)(const sat_device *device); /* bytes free now */
    /* May this device read and write there? Not in another device's memory, nor on CUDA in pageable host memory. */
    bool (*usable)(const sat_device *device, const void *pointer);

    sat_status (*read)(const sat_device *device, void *host, const void *from, size_t bytes); /* device to host */
    sat_status (*write)(const sat_device *device, void *to, const void *host, size_t bytes);  /* host to device */
    sat_status (*set)(const sat_device *device, void *to, int byte, size_t bytes);
    sat_status (*copy)(const sat_device *device, void *to, const void *from, size_t bytes);

    /* Indices that change (indices.h): queued on `stream` before a run, and zeros into blocks without a row after it.
     */
    sat_status (*copy_indices)(const sat_device *device, const sat_index_copy *x, void *stream);
    /* The same of masks; NULL: this backend has none that change. */
    sat_status (*copy_masks)(const sat_device *device, const sat_index_copy *x, const sat_mask_form *form,
                             void *stream);
    sat_status (*clear_blocks)(const sat_device *device, const sat_index_copy *x, const sat_block_values *values,
                               void *stream);
    size_t (*index_scratch)(const sat_index_copy *x); /* NULL: none is needed */
    void *(*alloc_shared)(void *device,
                          size_t bytes); /* zeroed memory that host and device both reach; NULL when out */
    void (*free_shared)(void *device, void *pointer);

    /* Gives an operand random values (the same for the same seed): `base` is its first element's place. Elements of
     * the span that the layout does not reach, and the padding of blocks, become NaN, or what the fill says. */
    sat_status (*make)(const sat_device *device, const sat_operand *o, const sat_pattern_view *a, void *base,
                       uint64_t seed, const sat_fill *fill);
    /* A digest of bytes: another one where any of them differs. */
    sat_status (*digest)(const sat_device *device, const void *from, size_t bytes, uint64_t *digest);

    /* After a run over poison (bytes of 0xFF): is all that the output's layout does not reach still poison, `guard`
     * bytes on both sides included? Poisons the output itself on the way. */
    bool (*gaps_intact)(const sat_device *device, const sat_operand *o, void *base, size_t guard);

    void *(*stream)(const sat_device *device); /* the tuning stream; the functions above run on it */
    /* Takes operands out of the cache. A device reads `buffer` for that, flush_bytes() of zeros. */
    void (*flush)(const sat_device *device, void *const *pointers, const size_t *bytes, int count, void *buffer);
    size_t (*flush_bytes)(const sat_device *device); /* of that buffer; NULL: none is needed */
    /* Times one call of run(user), as a device sees it, in seconds; `repeat` runs back to back give their mean. */
    sat_status (*time)(const sat_device *device, sat_status (*run)(void *user), void *user, int repeat,
                       double *seconds);
    /* Measures rates, in some tens of milliseconds, with so much memory of the device to use. NULL: they stay nominal.
     */
    sat_status (*measure)(const sat_device *device, void *scratch, size_t bytes, sat_rates *rates);
    /* How often, so far, threads of this process were preempted; NULL: not relevant. */
    int64_t (*preempted)(void);
    /* Does every thread of a run get a processor to itself now? Takes some tens of milliseconds. NULL: unknown. */
    bool (*quiet)(const sat_device *device);
    /* Starts a load on part of the device, for less than a millisecond, and does not wait for it. NULL: other work
     * cannot change the order in which a run does its own. */
    void (*add_load)(const sat_device *device);
    /* Calls run(user) in a parallel region, as a program may; NULL: that is the same. */
    sat_status (*run_in_region)(sat_status (*run)(void *user), void *user);
    sat_status (*sync)(const sat_device *device, void *stream);
    void (*sync_device)(const sat_device *device); /* waits for all streams of the device */
    bool (*broken)(
        const sat_device *device); /* has a kernel left it unusable to this process? Waits for the tuning stream. */
    bool (*per_thread)(const void *stream); /* one handle, another stream in each thread; NULL: never */
    bool (*capturing)(const sat_device *device, void *stream); /* into a CUDA graph: calls on it are not done yet */
    int (*threads)(int wanted); /* threads that a run would use now, where so many are wanted (0: the usual); CUDA: 0 */

    const sat_checker *(*checker)(sat_operation op); /* where this backend checks results */
} sat_backend;

extern const sat_backend sat_backend_cpu;
#ifdef SAT_HAVE_CUDA
extern const sat_backend sat_backend_cuda;
#endif

/* Memory of a CUDA device, which the CPU cannot read? Asks the driver where this process has one, and loads none. */
bool sat_is_device_memory(const void *pointer);

/* Every backend of this build, best first; NULL past the end. */
const sat_backend *sat_backend_at(int i);
/* Of a backend that this library can have and this build has not: why, in words. NULL: of all others. */
const char *sat_backend_missing(const char *name, size_t length);

#endif
