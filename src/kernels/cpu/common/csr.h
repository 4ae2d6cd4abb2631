/* What the families that go by single elements ("CSR") share: elements as they are stored, and how block rows are
 * divided among threads. Needs F16C. A family defines VECTOR_BYTES (vector.h) before it. */
#ifndef SAT_CPU_CSR_H
#define SAT_CPU_CSR_H

#include <omp.h>

#include "kernels/cpu/common/widen.h"

enum { CSR_ENTRIES = 512 }; /* elements of a row at a time */

static const double CSR_MOST_COPIED = 1e12; /* elements: more would fit into no machine */

INLINE void csr_put_f32(sat_dtype t, void *p, int64_t i, float x) {
    if (t == SAT_F32) ((float *)p)[i] = x;
    else ((uint16_t *)p)[i] = t == SAT_F16 ? _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT) : sat_to_bf16(x);
}
INLINE void csr_put_f64(sat_dtype t, void *p, int64_t i, double x) { (void)t, ((double *)p)[i] = x; }

/* Where a thread's block rows begin, of `count` in all: each counts as its blocks, and one more. */
static inline int64_t csr_first_row(const int64_t *ptr, int64_t count, int thread, int threads) {
    int64_t low = 0, high = count, target = (ptr[count] + count) / threads * thread;
    if (thread == threads) return count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (ptr[middle] + middle < target) low = middle + 1;
        else high = middle;
    }
    return low;
}

#endif
