/* How the threads of a CTA divide a strip of an operand, LINES x BK, which they load element by element: coalesced in
 * either storage order, by LANES neighbouring threads along k where that is the smaller stride, else along the lines.
 * In shared memory a strip is stored as [k][line]. */
#ifndef SAT_SAMPLED_STRIP_CUH
#define SAT_SAMPLED_STRIP_CUH

#include "kernels/cuda/sampled/sampled_tile.cuh"

template <int LINES, int BK, int THREADS, int LANES> struct sampled_strip {
    static constexpr int PASSES = LINES * BK / THREADS, GROUP = PASSES < 8 ? PASSES : 8;
    static constexpr int STEPS = THREADS > LINES ? THREADS / LINES : 1; /* of k in a pass along the lines */
    static_assert(THREADS % (32 / LANES * BK) == 0 && LINES * BK % THREADS == 0 && PASSES % GROUP == 0, "full passes");

    template <bool ALONG_K> __device__ static __forceinline__ void position(int tid, int pass, int &line, int &step) {
        if (ALONG_K) {
            step = tid % LANES + tid / 32 % (BK / LANES) * LANES;
            line = tid / LANES % (32 / LANES) + tid / (32 / LANES * BK) * (32 / LANES) + pass * (THREADS / BK);
        } else {
            step = tid / LINES + pass % (BK / STEPS) * STEPS;
            line = tid % LINES + pass / (BK / STEPS) * THREADS;
        }
    }

    /* visit(pass, line, step, from, real) for each element of the thread; one that is not real counts as zero. */
    template <typename F>
    __device__ static __forceinline__ void each(const char *base, const int64_t *line_offset, int lines,
                                                const sampled_operand &o, int64_t k0, int64_t k, F visit) {
        bool whole = lines == LINES && k0 + BK <= k; /* nearly all strips */
        if (o.k_stride < o.line_stride) {
            if (whole) each_as<true, true>(base, line_offset, lines, o.k_stride, k0, k, visit);
            else each_as<true, false>(base, line_offset, lines, o.k_stride, k0, k, visit);
        } else if (whole) each_as<false, true>(base, line_offset, lines, o.k_stride, k0, k, visit);
        else each_as<false, false>(base, line_offset, lines, o.k_stride, k0, k, visit);
    }

    template <bool ALONG_K, bool WHOLE, typename F>
    __device__ static __forceinline__ void each_as(const char *base, const int64_t *line_offset, int lines,
                                                   int64_t k_stride, int64_t k0, int64_t k, F visit) {
        int tid = threadIdx.x;
        asm volatile("" : "+r"(tid)); /* computed again each time instead of kept in registers */
#pragma unroll
        for (int pass = 0; pass < PASSES; pass += GROUP) {
            const char *from[GROUP]; /* read before the first copy: a read after a copy would wait for it */
            int line, step;
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                position<ALONG_K>(tid, pass + i, line, step);
                from[i] = base + line_offset[line] + (k0 + step) * k_stride;
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                position<ALONG_K>(tid, pass + i, line, step);
                bool real = WHOLE || (line < lines && k0 + step < k);
                visit(pass + i, line, step, real ? from[i] : base, real);
            }
        }
    }
};

#endif
