/* What the variants of all CUDA libraries share: uploads, a pool of handles, types and alignment. */
#ifndef SAT_CUDA_COMMON_H
#define SAT_CUDA_COMMON_H

#include <cuda_runtime_api.h>
#include <library_types.h>
#include <pthread.h>

#include "libs/matrix.h"

sat_status sat_libs_status(cudaError_t error, const sat_variant *v, const char *what); /* SAT_OK, or its message */

/* Copies from the host and waits for it, so that the host's memory may go. For `prepare`. */
sat_status sat_libs_upload(const sat_prepare *p, void *to, const void *from, size_t bytes);

/* The block row of each stored block, as 32-bit integers. */
sat_status sat_libs_upload_rows(const sat_prepare *p, int32_t *to);

/* Handles take milliseconds to make and serve one thread at a time: those given back wait here for the next. */
typedef struct sat_handles {
    pthread_mutex_t lock;
    struct {
        void *handle;
        int device;
    } idle[32];
    int count;
} sat_handles;

void *sat_handles_take(sat_handles *h, int device);              /* NULL: none is idle */
bool sat_handles_give(sat_handles *h, void *handle, int device); /* false: enough are idle, destroy it */

/* ---- problems ---- */

static inline cudaDataType sat_libs_type(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return library;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    SAT_NO_SUCH_DTYPE();
}

static inline bool sat_libs_narrow(sat_dtype t) { return sat_dtype_compute(t) != t; }

/* Something is left to do after alpha*op(A)*B + beta*C. */
static inline bool sat_libs_epilogue(const sat_problem *p) {
    return sat_has_bias(p) || sat_activation_of(p) != SAT_ACT_NONE;
}

/* Only one rounding to 16 bits is allowed, and libraries that add beta*C to such a result may round the product first:
 * where anything is to be done after it, the product comes in f32 and we round it. */
static inline bool sat_libs_wide(const sat_problem *p) {
    return sat_libs_narrow(p->c_dtype) && (p->beta != 0 || sat_libs_epilogue(p));
}

/* Where a product goes before the epilogue: C itself, or, `apart`, sums without gaps, in C's order. */
static inline sat_matrix sat_libs_target(const sat_problem *p, bool apart) {
    sat_matrix c = {NULL, p->c.row_stride, p->c.col_stride};
    int64_t leading;
    if (!apart) return c;
    bool by_rows = sat_matrix_row_major(&c, p->m, p->n, &leading);
    return (sat_matrix){NULL, by_rows ? p->n : 1, by_rows ? 1 : p->m};
}

/* One copy of converted values is kept: those that differ from one batch item to the next are converted every time. */
static inline bool sat_libs_keeps(const sat_problem *p) {
    return (p->flags & SAT_FIXED_VALUES) && (p->batch <= 1 || p->a.batch_stride == 0);
}

static inline bool sat_libs_tf32(const sat_problem *p) { return p->a_dtype == SAT_F32 && (p->flags & SAT_ALLOW_TF32); }

/* Nothing is empty: libraries differ in what they make of that. */
static inline bool sat_libs_some(const sat_problem *p, const sat_pattern_view *a) {
    return p->m > 0 && p->n > 0 && p->k > 0 && a->stored_blocks > 0 && a->stored_blocks < INT32_MAX;
}

/* Every block is whole inside the matrix. */
static inline bool sat_libs_whole(const sat_pattern_view *a) {
    return a->rows % a->block_rows == 0 && a->cols % a->block_cols == 0;
}

/* Scalars of the compute type. */
typedef union sat_scalar {
    float f;
    double d;
} sat_scalar;

static inline sat_scalar sat_libs_scalar(const sat_problem *p, double x) {
    sat_scalar s;
    if (p->compute_dtype == SAT_F64) s.d = x;
    else s.f = (float)x;
    return s;
}

static inline void *sat_libs_place(void *workspace, size_t at) { return (char *)workspace + at; }

/* ---- estimates ---- */

/* What the device does with the problem's inputs: on matrix units, but for f32 that may not be rounded. */
static inline double sat_libs_rate(const sat_problem *p, const sat_device *d) {
    return sat_libs_tf32(p) ? d->tf32_rate : d->flop_rate[p->a_dtype];
}

/* A call of a library for each item of a batch: `flops` at `rate` while `bytes` move, and then `extra` bytes. */
static inline double sat_libs_seconds(const sat_problem *p, const sat_device *d, double flops, double rate,
                                      double bytes, double extra) {
    double compute = flops / rate, memory = bytes / d->memory_rate;
    return (compute > memory ? compute : memory) + extra / d->memory_rate + 8e-6 * (double)sat_max(1, p->batch);
}

/* The same of a dense product of all of the matrix: on an H200 more than the nominal rate of 16-bit inputs, and a
 * seventh of that where their lines are not `aligned` (aligned.h). */
static inline double sat_libs_dense_seconds(const sat_problem *p, const sat_device *d, double bytes, double extra,
                                            bool aligned) {
    double flops = 2.0 * (double)p->m * (double)p->n * (double)p->k * (double)sat_max(1, p->batch);
    double share = !sat_libs_narrow(p->a_dtype) ? 0.9 : aligned ? 1.1 : 1.1 / 7;
    return sat_libs_seconds(p, d, flops, sat_libs_rate(p, d) * share, bytes, extra);
}

/* Plain units whatever the dtype, at a part of their rate of f32: what cuSPARSE does on BSR. */
static inline double sat_libs_plain_rate(const sat_problem *p, const sat_device *d, double part) {
    return part * d->flop_rate[SAT_F32] * (p->a_dtype == SAT_F64 ? 0.5 : 1);
}

/* Bytes of the pass after a product: over `count` outputs, with sums in the compute type beside them if `apart`. */
static inline double sat_libs_pass_bytes(const sat_problem *p, bool apart, double count) {
    double size = (double)sat_dtype_size(p->c_dtype), sums = 2 * (double)sat_dtype_size(p->compute_dtype);
    if (!apart && !sat_libs_epilogue(p)) return 0;
    return count * (double)sat_max(1, p->batch) * (apart ? sums + (p->beta != 0 ? 2 : 1) * size : 2 * size);
}

static inline double sat_libs_finish_bytes(const sat_problem *p, bool apart) { /* a matmul's */
    return sat_libs_pass_bytes(p, apart, (double)p->m * (double)p->n);
}

#endif
