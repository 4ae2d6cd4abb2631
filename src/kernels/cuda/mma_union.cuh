/* The kernel for rows of small blocks taken together, as mma_union.h cuts them: 256 rows and 128 columns of C a CTA.
 *
 * What a stage holds is told by its plan, 304 bytes that are copied twice as far ahead as the stage itself: the copies
 * of a stage arrive with the plan of the one that is copied next. */
#ifndef SAT_MMA_UNION_CUH
#define SAT_MMA_UNION_CUH

#include "mma_out.cuh"
#include "mma_tile.cuh"
#include "mma_union.h"

enum {
    SAT_UNION_COLUMNS = 128,
    SAT_UNION_STAGES = 4,
    SAT_UNION_PLANS = 8, /* at least 2*STAGES - 1 */
    SAT_UNION_THREADS = 256,
    SAT_UNION_A = SAT_UNION_CELLS * 512,
    SAT_UNION_B = 16 * SAT_UNION_COLUMNS * 2, /* of a unit */
    SAT_UNION_STAGE = SAT_UNION_A + SAT_UNION_UNITS * SAT_UNION_B,
    SAT_UNION_SQUARES = SAT_UNION_STAGES * SAT_UNION_STAGE,
    SAT_UNION_PLAN = SAT_UNION_SQUARES + SAT_UNION_THREADS / 32 * sat_mma_square<float>(),
    SAT_UNION_TILE = SAT_UNION_PLAN + SAT_UNION_PLANS * (int)sizeof(sat_union_stage),
    SAT_UNION_SHARED = SAT_UNION_TILE + SAT_UNION_PLANS * 4
};
static_assert(sizeof(sat_union_stage) % 16 == 0 && SAT_UNION_STAGE % 1024 == 0, "copied and permuted in chunks");

struct sat_union_job {
    const sat_union_stage *plan;
    const uint32_t *first;
    sat_mma_out out;
    const char *a, *b;
    bool a_deep, b_deep;
    unsigned groups, panels, tiles; /* all tiles of all items */
    int k;
    unsigned a_line, b_k; /* in bytes, like the rest */
    int64_t a_item, b_item, c_item, b_panel, b_line;
};

/* Where the plans are, and whose each is. */
__device__ __forceinline__ sat_union_stage *sat_union_plan(unsigned char *shared, unsigned number) {
    return (sat_union_stage *)(shared + SAT_UNION_PLAN) + number % SAT_UNION_PLANS;
}
__device__ __forceinline__ unsigned &sat_union_tile(unsigned char *shared, unsigned number) {
    return ((unsigned *)(shared + SAT_UNION_TILE))[number % SAT_UNION_PLANS];
}

/* Elements of a chunk that are inside: in line number `line` of `lines`, of which `length` count. */
__device__ __forceinline__ int sat_union_inside(int line, int lines, int chunk, int length) {
    return line < lines ? max(0, min(8, length - 8 * chunk)) * 2 : 0;
}

/* Copies stage `number`, whose plan has come. EDGE: some of it is outside. */
template <bool EDGE>
__device__ __forceinline__ void sat_union_copy(const sat_union_job &job, const sat_union_stage *s, const char *a,
                                               const char *b, uint32_t to, int columns) {
    const int thread = sat_thread_here(), warp = thread / 32, cells = s->cells, units = s->units;
    int line = thread % 32 / 2, chunk = thread % 2;
    uint32_t place = to + sat_mma_place<2, 0>(line, chunk);
    a += line * job.a_line + chunk * 16;
#pragma unroll
    for (int cell = warp; cell < SAT_UNION_CELLS; cell += SAT_UNION_THREADS / 32) {
        if (cell >= cells) break;
        int valid = 16, room = EDGE ? job.k - s->k[s->unit[cell]] : 0;
        if (EDGE) valid = job.a_deep ? sat_union_inside(0, 1, chunk, room) : sat_union_inside(line, room, 0, 8);
        sat_copy16(place + cell * 512, a + (uint64_t)s->cell[cell] * 16, valid);
    }
    line = job.b_deep ? thread / 2 : thread / 16, chunk = job.b_deep ? thread & 1 : thread & 15;
    place = to + SAT_UNION_A + (job.b_deep ? sat_mma_place<2, 0>(line, chunk) : sat_mma_place<16, 0>(line, chunk));
    b += line * job.b_line + chunk * 16;
#pragma unroll
    for (int unit = 0; unit < SAT_UNION_UNITS; unit++) {
        if (unit >= units) break;
        int valid = 16, k = s->k[unit], room = job.k - k;
        if (EDGE)
            valid = job.b_deep ? sat_union_inside(line, columns, chunk, room)
                               : sat_union_inside(line, room, chunk, columns);
        sat_copy16(place + unit * SAT_UNION_B, b + (uint64_t)(unsigned)k * job.b_k, valid);
    }
}

__device__ __forceinline__ void sat_union_copy_stage(const sat_union_job &job, unsigned char *shared, uint32_t base,
                                                     unsigned number) {
    unsigned tile = sat_union_tile(shared, number);
    if (tile >= job.tiles) return;
    const sat_union_stage *s = sat_union_plan(shared, number);
    unsigned panel = tile / job.groups, item = 0;
    if (panel >= job.panels) item = panel / job.panels, panel %= job.panels;
    const char *a = job.a + item * job.a_item, *b = job.b + item * job.b_item + panel * job.b_panel;
    uint32_t to = base + number % SAT_UNION_STAGES * SAT_UNION_STAGE;
    int columns = (int)min((int64_t)SAT_UNION_COLUMNS, job.out.to.n - panel * (int64_t)SAT_UNION_COLUMNS);
    if (s->ragged || columns < SAT_UNION_COLUMNS) sat_union_copy<true>(job, s, a, b, to, columns);
    else sat_union_copy<false>(job, s, a, b, to, columns);
}

/* The plans that are copied: number `number` is plan `at` of the tile, which ends before `end`. */
struct sat_union_plans {
    unsigned tile, at, end;

    __device__ __forceinline__ void open(const sat_union_job &job) {
        if (tile >= job.tiles) return;
        at = job.first[tile % job.groups], end = job.first[tile % job.groups + 1];
    }
    __device__ __forceinline__ void copy(const sat_union_job &job, unsigned char *shared, unsigned number) {
        if (threadIdx.x == 0) sat_union_tile(shared, number) = tile;
        if (tile >= job.tiles) return;
        const char *from = (const char *)(job.plan + at), *to = (const char *)sat_union_plan(shared, number);
        if (threadIdx.x < sizeof(sat_union_stage) / 16)
            sat_copy16(sat_shared(to + threadIdx.x * 16), from + threadIdx.x * 16);
        if (++at == end) tile += gridDim.x, open(job);
    }
};

/* A warp's part of a stage: 4 strips, 64 columns. */
template <class MATH>
__device__ __forceinline__ void sat_union_multiply(const sat_union_job &job, const sat_union_stage *s, uint32_t a_place,
                                                   uint32_t b_place, int quarter, float (&sum)[4][8][4]) {
    typedef sat_mma_16bit<MATH> math;
    const uint32_t *slots_of = (const uint32_t *)s->slot[quarter], none = 0xffffffffu; /* a byte a strip */
    const int units = s->units;
#pragma unroll 1
    for (int unit = 0; unit < units; unit++) {
        const uint32_t slots = slots_of[unit];
        if (slots == none) continue;
        typename math::b b[8];
        if (!job.b_deep) math::template load_b<SAT_UNION_COLUMNS, 16, false>(b, b_place + unit * SAT_UNION_B, 0);
        else math::template load_b<SAT_UNION_COLUMNS, 16, true>(b, b_place + unit * SAT_UNION_B, 0);
        typename math::a a[4][1];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t slot = slots >> (8 * i) & 255;
            if (slot == SAT_UNION_NONE) continue;
            if (job.a_deep) math::template load_a<16, 16, true>(a[i], a_place + slot * 512, 0);
            else math::template load_a<16, 16, false>(a[i], a_place + slot * 512, 0);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if ((slots >> (8 * i) & 255) == SAT_UNION_NONE) continue;
#pragma unroll
            for (int j = 0; j < 8; j++) math::multiply(sum[i][j], a[i][0], b[j]);
        }
    }
}

template <class MATH>
__device__ __forceinline__ void sat_union_store(const sat_union_job &job, unsigned tile, const float (&sum)[4][8][4],
                                                unsigned char *squares) {
    int thread = sat_thread_here(), warp = thread / 32;
    unsigned panel = tile / job.groups, item = panel / job.panels;
    sat_mma_out out = job.out;
    out.to.c = (char *)out.to.c + item * job.c_item;
    int64_t i = (int64_t)(tile % job.groups) * SAT_UNION_ROWS + warp / 2 * 64;
    int64_t j = (int64_t)(panel % job.panels) * SAT_UNION_COLUMNS + warp % 2 * 64;
    sat_mma_put<typename MATH::element>(out, sum, i, j, thread % 32,
                                        (float *)(squares + warp * sat_mma_square<float>()));
}

template <class MATH>
static __global__ void __launch_bounds__(SAT_UNION_THREADS, 1)
    sat_union_matmul(const __grid_constant__ sat_union_job job) {
    typedef sat_mma_16bit<MATH> math;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = sat_shared(shared);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, quarter = warp / 2, column = warp % 2 * 64;
    const uint32_t a_place = base + (job.a_deep ? math::template find_a<16, 16, true>(lane, 0)
                                                : math::template find_a<16, 16, false>(lane, 0));
    const uint32_t b_place = base + SAT_UNION_A +
                             (job.b_deep ? math::template find_b<SAT_UNION_COLUMNS, 16, true>(lane, column)
                                         : math::template find_b<SAT_UNION_COLUMNS, 16, false>(lane, column));
    const unsigned ahead = SAT_UNION_STAGES - 1; /* of what is multiplied: what is copied; twice as far: its plans */
    sat_union_plans plans = {blockIdx.x, 0, 0};
    plans.open(job);
    float sum[4][8][4] = {};
    for (unsigned step = 0;; step++) {
        sat_copy_wait<SAT_UNION_STAGES - 2>();
        __syncthreads(); /* what this step needs has come, and all are done with the one before it */
        if (step >= ahead) sat_union_copy_stage(job, shared, base, step - ahead);
        plans.copy(job, shared, step);
        sat_copy_commit();
        if (step < 2 * ahead) continue;
        const unsigned number = step - 2 * ahead;
        const sat_union_stage *s = sat_union_plan(shared, number);
        const uint32_t stage = number % SAT_UNION_STAGES * SAT_UNION_STAGE;
        sat_union_multiply<MATH>(job, s, a_place + stage, b_place + stage, quarter, sum);
        if (!s->last) continue;
        unsigned tile = sat_union_tile(shared, number);
        sat_union_store<MATH>(job, tile, sum, shared + SAT_UNION_SQUARES);
        if (tile + gridDim.x >= job.tiles) break;
#pragma unroll
        for (int i = 0; i < 128; i++) sum[i / 32][i / 4 % 8][i % 4] = 0;
    }
}

#endif
