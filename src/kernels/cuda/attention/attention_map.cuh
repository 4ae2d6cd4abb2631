/* Tensor maps of attention's operands, 16-bit elements: (dim, row, head, batch), boxes of 64 columns. */
#ifndef SAT_ATTENTION_MAP_CUH
#define SAT_ATTENTION_MAP_CUH

#include "kernels/cuda/common/tma.cuh"

/* What a tensor map can step over, in elements; of one alone nothing is stepped over. */
static inline bool attention_steps_fit(int64_t stride, int64_t count) {
    return count <= 1 || (stride > 0 && stride % 8 == 0 && stride < (int64_t)1 << 39);
}

static inline bool attention_map_fits(const sat_problem *p, const sat_heads &s, int64_t heads, int64_t rows) {
    return attention_steps_fit(s.batch_stride, p->batch) && attention_steps_fit(s.head_stride, heads) &&
           attention_steps_fit(s.row_stride, rows);
}

static inline cuuint64_t attention_step_bytes(int64_t stride, int64_t count) {
    return count > 1 ? (cuuint64_t)stride * 2 : 16; // what is never stepped over must still be one that maps take
}

static inline bool attention_map(const sat_problem *p, const void *base, const sat_heads &s, int64_t heads,
                                 int64_t rows, int box, CUtensorMap *map) {
    sat_tensor_box t = {p->a_dtype,
                        base,
                        4,
                        {(cuuint64_t)p->attention.dim, (cuuint64_t)rows, (cuuint64_t)heads, (cuuint64_t)p->batch},
                        {attention_step_bytes(s.row_stride, rows), attention_step_bytes(s.head_stride, heads),
                         attention_step_bytes(s.batch_stride, p->batch)},
                        {64, (cuuint32_t)box, 1, 1},
                        128};
    return tensormap_encode(map, t);
}

#endif
