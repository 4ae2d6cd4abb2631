/* The tiled attention's plan, shared by its families: tiles of 64 queries by 64 keys, softmax as they come, absent
 * tiles passed over.
 *
 * Everything is computed with the tile's own rows in the lanes of vectors: a *panel* is up to PANEL rows, transposed,
 * [dim][PANEL]. Scores, weights and sums then are such panels too, [keys][PANEL] and [dim][PANEL], the products are all
 * one kernel (a broadcast element of K or V times a vector of the panel), and softmax needs no sums across lanes.
 *   forward    panels of queries; O stays beside while the key tiles pass by.
 *   dQ         the same, with dO as a second panel.
 *   dK, dV     panels of keys and values, while the query tiles pass by, of all heads that share the keys.
 * A task is one tile of one head, computed by one thread in one order, so results do not depend on threads. 16-bit
 * operands are widened tile by tile. */
#ifndef SAT_ATTENTION_TILED_H
#define SAT_ATTENTION_TILED_H

#include <immintrin.h>
#include <omp.h>

#include "kernels/attention_schedule.h"

enum { ATTENTION_TILE = 64, ATTENTION_DIM = 256 };
#define ATTENTION_LOG2E 1.44269504088896340736
#define ATTENTION_LN2   0.69314718055994530942

/* What one thread works in. */
typedef struct attention_scratch {
    float *panel[2]; /* Q and dO, or K and V; all of TILE * dim */
    float *sum[2];   /* O or dQ, or dK and dV */
    float *wide[2];  /* the tile that passes by, where it must be widened */
    float *score[2]; /* of TILE * TILE: scores, then weights; dP, then dS */
    float *row[3];   /* of TILE: numbers of each row */
} attention_scratch;

static inline size_t attention_scratch_floats(int64_t dim) {
    return (size_t)(6 * ATTENTION_TILE * dim + 2 * ATTENTION_TILE * ATTENTION_TILE + 3 * ATTENTION_TILE);
}

static inline attention_scratch attention_scratch_of(const sat_launch *l, int thread) {
    int64_t dim = l->problem->attention.dim, tile = ATTENTION_TILE * dim;
    float *at = (float *)l->workspace + (size_t)thread * attention_scratch_floats(dim);
    attention_scratch s;
    for (int i = 0; i < 2; i++) s.panel[i] = at, s.sum[i] = at + tile, s.wide[i] = at + 2 * tile, at += 3 * tile;
    for (int i = 0; i < 2; i++) s.score[i] = at, at += ATTENTION_TILE * ATTENTION_TILE;
    for (int i = 0; i < 3; i++) s.row[i] = at, at += ATTENTION_TILE;
    return s;
}

/* dO*O of each query, which the tasks of keys read. */
static inline float *attention_delta(const sat_launch *l) {
    return (float *)l->workspace + (size_t)l->device->threads * attention_scratch_floats(l->problem->attention.dim);
}

static size_t attention_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                  const sat_device *d) {
    (void)v, (void)a;
    size_t floats = (size_t)d->threads * attention_scratch_floats(p->attention.dim);
    if (p->op == SAT_ATTENTION_BACKWARD) floats += (size_t)(p->batch * p->attention.heads * p->m);
    return floats * sizeof(float);
}

static sat_status attention_prepare(const sat_prepare *p, void **state) {
    bool back = p->problem->op == SAT_ATTENTION_BACKWARD;
    *state = sat_schedule_make(p->problem, p->pattern, ATTENTION_TILE, ATTENTION_TILE, back);
    return *state ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", p->variant->name);
}

static void attention_release(const sat_variant *v, void *state) {
    (void)v;
    sat_schedule_free((sat_schedule *)state);
}

static bool attention_fits(const sat_variant *v, const sat_problem *p) {
    return p->a_dtype == v->instance.dtype && p->attention.dim <= ATTENTION_DIM;
}

/* Tiles are whole, whatever is kept of them. `rate` of the device's peak is reached at dim 64. */
static double attention_estimate_at(const sat_problem *p, const sat_pattern_view *a, const sat_device *d, double rate) {
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    double rows = fmin(1, (double)p->m / 16), dim = (double)p->attention.dim;
    double flops = sat_attention_flops(p, a) * (back ? 1.4 : 1) / fmax(rows, 0.05);
    double tiles = (double)p->batch * (double)p->attention.heads * (double)p->m / ATTENTION_TILE;
    double fill = fmin(1, sqrt((double)sat_min(a->block_rows, a->block_cols) / ATTENTION_TILE));
    return flops / (d->flop_rate[SAT_F32] * rate * dim / (dim + 12) * fmax(fill, 0.1)) +
           sat_attention_bytes(p, a) / d->memory_rate + 1e-6 * tiles / (double)d->threads + 8e-6;
}

/* ---- eight elements at a time, of any dtype ---- */

static inline __attribute__((always_inline)) __m256 attention_load8(sat_dtype t, const void *p, int64_t at) {
    if (t == SAT_F32) return _mm256_loadu_ps((const float *)p + at);
    __m128i half = _mm_loadu_si128((const __m128i *)(const void *)((const uint16_t *)p + at));
    if (t == SAT_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static inline __attribute__((always_inline)) void attention_store8(sat_dtype t, void *p, int64_t at, __m256 v) {
    if (t == SAT_F32) {
        _mm256_storeu_ps((float *)p + at, v);
        return;
    }
    __m128i half;
    if (t == SAT_F16) half = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    else {
        __m256i x = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
        __m256i rounded = _mm256_add_epi32(x, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        x = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_or_si256(x, _mm256_set1_epi32(0x400000)), nan), 16);
        half = _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(x, x), 0x08));
    }
    _mm_storeu_si128((__m128i *)(void *)((uint16_t *)p + at), half);
}

static inline __attribute__((always_inline)) void attention_turn8(__m256 r[8]) {
    __m256 t[8], u[8];
    for (int i = 0; i < 4; i++) {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
        u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
        u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
        u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
    }
}

/* ---- tiles in and out ---- */

/* Rows of a head: an operand, where its first row is, and how far the next. */
typedef struct attention_rows {
    void *data;
    int64_t at, stride;
} attention_rows;

static inline attention_rows attention_rows_of(const sat_launch *l, int operand, const sat_heads *s, int64_t b,
                                               int64_t h, int64_t i) {
    return (attention_rows){l->operands[operand], sat_heads_at(s, b, h, i), s->row_stride};
}

/* panels[row / width][x][row % width], zero beyond `count` rows. */
static void attention_pack(sat_dtype t, attention_rows r, int64_t count, int64_t dim, int64_t width, float *panels) {
    for (int64_t i = 0; i < (count + width - 1) / width * width; i += 8)
        for (int64_t x = 0; x < dim; x += 8) {
            __m256 v[8];
            for (int64_t e = 0; e < 8; e++)
                v[e] = i + e < count ? attention_load8(t, r.data, r.at + (i + e) * r.stride + x) : _mm256_setzero_ps();
            attention_turn8(v);
            float *to = panels + i / width * width * dim + x * width + i % width;
            for (int64_t e = 0; e < 8; e++) _mm256_storeu_ps(to + e * width, v[e]);
        }
}

/* The other way round; row i is multiplied by factor[i]. */
static void attention_unpack(sat_dtype t, attention_rows r, int64_t count, int64_t dim, int64_t width,
                             const float *panels, const float *factor) {
    for (int64_t i = 0; i < count; i += 8)
        for (int64_t x = 0; x < dim; x += 8) {
            __m256 v[8], f = _mm256_loadu_ps(factor + i);
            const float *from = panels + i / width * width * dim + x * width + i % width;
            for (int64_t e = 0; e < 8; e++) v[e] = _mm256_mul_ps(_mm256_loadu_ps(from + e * width), f);
            attention_turn8(v);
            for (int64_t e = 0; e < 8 && i + e < count; e++)
                attention_store8(t, r.data, r.at + (i + e) * r.stride + x, v[e]);
        }
}

/* A tile as plain f32 rows: in place where it is, else widened; rows beyond it are zero. */
typedef struct attention_plain {
    const float *data;
    int64_t stride;
} attention_plain;

static attention_plain attention_widen(sat_dtype t, attention_rows r, int64_t count, int64_t dim, float *to) {
    if (t == SAT_F32 && count == ATTENTION_TILE) return (attention_plain){(const float *)r.data + r.at, r.stride};
    for (int64_t i = 0; i < count; i++)
        for (int64_t x = 0; x < dim; x += 8)
            _mm256_storeu_ps(to + i * dim + x, attention_load8(t, r.data, r.at + i * r.stride + x));
    int64_t padded = (count + 7) / 8 * 8;
    memset(to + count * dim, 0, (size_t)((padded - count) * dim) * sizeof *to);
    return (attention_plain){to, dim};
}

/* ---- edges ---- */

/* Bit j of bits[i]: key j of the tile is kept by query i. Rows beyond the tile keep nothing. */
static void attention_edge(const sat_mask *k, int64_t head, const sat_tile *q, const sat_tile *t, uint64_t *bits) {
    uint64_t stored = ~(uint64_t)0;
    for (int64_t i = 0; i < ATTENTION_TILE; i++) {
        bits[i] = 0;
        if (i >= q->count) continue;
        int64_t row = q->first + i;
        if (!k->full && (i == 0 || row % k->block_rows == 0)) {
            sat_mask open = *k; /* the blocks alone */
            open.causal = false, open.window = 0, open.sequences = 0;
            stored = sat_mask_bits(&open, head, row, t->first, t->count);
        }
        sat_range r = sat_keys_of(k, row);
        int64_t begin = sat_max(r.begin, t->first) - t->first, end = sat_min(r.end, t->first + t->count) - t->first;
        if (end > begin) bits[i] = stored & (~(uint64_t)0 >> (64 - (end - begin))) << begin;
    }
}

/* Rows become columns. */
static void attention_turn64(uint64_t b[64]) {
    uint64_t mask = 0x00000000ffffffffu;
    for (int step = 32; step; step >>= 1, mask ^= mask << step)
        for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
            uint64_t swap = ((b[i] >> step) ^ b[i | step]) & mask;
            b[i] ^= swap << step, b[i | step] ^= swap;
        }
}

#endif
