#pragma once
#include "variant.cuh"
void emu_cp(uint32_t to, const void *from, int bytes, int valid);
void emu_commit();
void emu_wait(int pending);
void emu_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
inline void cp_async_16(uint32_t to, const void *from, int valid = 16) { emu_cp(to, from, 16, valid); }
template <int BYTES> inline void cp_async_small(uint32_t to, const void *from, int valid = BYTES) { emu_cp(to, from, BYTES, valid); }
inline void cp_async_commit_group() { emu_commit(); }
template <int P> inline void cp_async_wait_group() { emu_wait(P); }
inline void ldmatrix_x4(uint32_t (&)[4], uint32_t) { abort(); }
inline void ldmatrix_x4_trans(uint32_t (&)[4], uint32_t) { abort(); }
struct sat_tf32_math {
    typedef float element;
    static constexpr sat_dtype dtype = SAT_F32;
    static inline void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { emu_mma(c, a, b0, b1); }
};
