/* How the threads of a CTA visit a strip of an operand, LINES by BK steps of k, element by element and coalesced in
 * either storage order: along k by LANES neighbouring threads where that is the smaller step, else along the lines. In
 * shared memory strips lie with k outermost. */
#ifndef SAT_SAMPLED_STRIP_CUH
#define SAT_SAMPLED_STRIP_CUH

#include "kernels/cuda/sampled/sampled_tile.cuh"

template <int LINES, int BK, int THREADS, int LANES> struct sampled_strip {
    static constexpr int TURNS = LINES * BK / THREADS, GROUP = TURNS < 8 ? TURNS : 8;
    static constexpr int STEPS = THREADS > LINES ? THREADS / LINES : 1; /* that a turn across takes at once */
    static_assert(THREADS % (32 / LANES * BK) == 0 && LINES * BK % THREADS == 0 && TURNS % GROUP == 0, "whole turns");

    template <bool ALONG> __device__ static __forceinline__ void place(int tid, int turn, int &line, int &step) {
        if (ALONG) {
            step = tid % LANES + tid / 32 % (BK / LANES) * LANES;
            line = tid / LANES % (32 / LANES) + tid / (32 / LANES * BK) * (32 / LANES) + turn * (THREADS / BK);
        } else {
            step = tid / LINES + turn % (BK / STEPS) * STEPS;
            line = tid % LINES + turn / (BK / STEPS) * THREADS;
        }
    }

    /* visit(turn, line, step, from, real) for each element of the thread; where it is not real, it counts as zero. */
    template <typename F>
    __device__ static __forceinline__ void each(const char *base, const int64_t *line_at, int lines,
                                                const sampled_side &o, int64_t k0, int64_t k, F visit) {
        bool whole = lines == LINES && k0 + BK <= k; /* nearly always */
        if (o.k_step < o.line_step) {
            if (whole) each_as<true, true>(base, line_at, lines, o.k_step, k0, k, visit);
            else each_as<true, false>(base, line_at, lines, o.k_step, k0, k, visit);
        } else if (whole) each_as<false, true>(base, line_at, lines, o.k_step, k0, k, visit);
        else each_as<false, false>(base, line_at, lines, o.k_step, k0, k, visit);
    }

    template <bool ALONG, bool WHOLE, typename F>
    __device__ static __forceinline__ void each_as(const char *base, const int64_t *line_at, int lines, int64_t k_step,
                                                   int64_t k0, int64_t k, F visit) {
        int tid = threadIdx.x;
        asm volatile("" : "+r"(tid)); /* what follows from it is cheaper to find again than to keep in registers */
#pragma unroll
        for (int turn = 0; turn < TURNS; turn += GROUP) {
            const char
                *from[GROUP]; /* all of them first: reads of shared memory and copies into it in turns would wait */
            int line, step;
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                place<ALONG>(tid, turn + i, line, step);
                from[i] = base + line_at[line] + (k0 + step) * k_step;
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++) {
                place<ALONG>(tid, turn + i, line, step);
                bool real = WHOLE || (line < lines && k0 + step < k);
                visit(turn + i, line, step, real ? from[i] : base, real);
            }
        }
    }
};

#endif
