// cpu_matmul_amx: bf16 in, f32 sums in AMX tiles, bf16 or f32 out. For Sapphire Rapids and later.
//
// Four tile registers hold 32x32 of C over all blocks of a block row; a step loads two tiles of A and two of B and does
// four products. A tile of A is 16 rows by 32 columns, loaded from the block in place where its shape allows; otherwise
// all blocks are first packed into tiles, padded with zeros (and transposed, where op(A) is). B is packed into panels
// of 32 to 128 columns that fit the L2 cache, pairs of rows interleaved as the instruction reads them. Blocks whose
// sides are not multiples of 16 and 32 get smaller tiles of equal size, so that little is spent on zeros. Good for bf16
// where block sides are such multiples.

#include <immintrin.h>
#include <omp.h>

#include "variant.h"

enum { PAIR = 32, HALF = 16 }; /* columns of C that are computed together, and of one tile */

/* Tiles 0..3 are C (rows 0 and 1 by columns 0 and 1), 4 and 5 A, 6 and 7 B. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* How one problem is cut. bf16 elements unless said otherwise. */
typedef struct shape {
    int64_t mr, tiles;                         /* rows of a tile of A, and tiles that make a block's rows */
    int64_t kk, steps;                         /* columns of a tile of A, and tiles that make a block's columns */
    int64_t part_blocks, part_steps;           /* blocks, and such tiles of one, that are a part of a long sum */
    bool direct;                               /* tiles of A are loaded from the caller's blocks */
    int64_t a_block, a_tile, a_step, a_stride; /* to the next block, tile row, step and row of A */
    int64_t b_tile, b_step, b_col;             /* elements of a tile of B, of a step's tiles, of a block column's */
    int64_t width, panels, panel;              /* columns of a panel, panels, and elements of one */
    int64_t grid_k;
    bool own; /* each thread packs panels of its own; else all share all */
    size_t a_bytes, b_bytes;
} shape;

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* Panels as wide as half of L2 allows. With enough of them, each thread takes whole panels; with few, threads share
 * them and split the rows. */
static void choose_panels(shape *c, int64_t n, const sat_device *d) {
    int64_t k_bytes = c->grid_k * c->steps * c->kk * 2, room = d->l2_bytes / 2;
    for (c->width = 128; c->width >= PAIR; c->width /= 2) {
        c->panels = (n + c->width - 1) / c->width;
        bool even = c->panels % d->threads == 0 || c->panels >= 4 * d->threads;
        c->own = c->panels >= d->threads && even;
        if (c->own && c->width * k_bytes <= room) return;
    }
    for (c->width = 128; c->width > PAIR && (c->width * k_bytes > room || c->width >= 2 * n);) c->width /= 2;
    c->panels = (n + c->width - 1) / c->width;
    c->own = d->threads == 1;
}

static shape make_shape(const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sat_rows r = sat_op_rows(p, a);
    shape c = {.tiles = (r.br + 15) / 16, .steps = (r.bc + 31) / 32, .grid_k = (r.k + r.bc - 1) / r.bc};
    c.mr = (r.br + c.tiles - 1) / c.tiles;
    c.kk = round_up((r.bc + c.steps - 1) / c.steps, 2);
    c.part_steps = SAT_SUM_PART / c.kk, c.part_blocks = sat_max(1, c.part_steps / c.steps);
    c.direct =
        p->matmul.transpose == SAT_NO_TRANSPOSE && c.mr * c.tiles == r.br && c.kk * c.steps == r.bc && r.k % r.bc == 0;
    c.a_block = c.tiles * c.mr * c.steps * c.kk;
    c.a_tile = c.mr * c.steps * c.kk;
    c.a_step = c.direct ? c.kk : c.mr * c.kk;
    c.a_stride = c.direct ? r.bc : c.kk;
    c.a_bytes = c.direct ? 0 : (size_t)round_up(a->stored_blocks * c.a_block * 2, 64);
    choose_panels(&c, p->n, d);
    c.b_tile = c.kk * HALF;
    c.b_step = c.width / HALF * c.b_tile;
    c.b_col = c.steps * c.b_step;
    c.panel = c.grid_k * c.b_col;
    c.b_bytes = (size_t)((c.own ? d->threads : c.panels) * c.panel * 2);
    return c;
}

/* ---- packing ---- */

/* Blocks [from, to) of A into tiles, in the order of op(A)'s rows. What is beyond the block or the matrix is zero. */
static void pack_a(const sat_launch *l, const sat_rows *r, const shape *c, int64_t from, int64_t to) {
    uint16_t *out = (uint16_t *)l->workspace + from * c->a_block;
    for (int64_t t = from; t < to; t++, out += c->a_block) {
        const uint16_t *block = (const uint16_t *)l->operands[0] + sat_block_of(r, t) * r->block_elements;
        int64_t columns = sat_min(r->bc, r->k - r->col[t] * r->bc);
        memset(out, 0, (size_t)c->a_block * 2);
        for (int64_t i = 0; i < r->br; i++) {
            uint16_t *row = out + i / c->mr * c->a_tile + i % c->mr * c->kk;
            for (int64_t k = 0; k < columns; k += c->kk, row += c->a_step)
                for (int64_t j = 0; j < sat_min(c->kk, columns - k); j++)
                    row[j] = block[i * r->row_step + (k + j) * r->col_step];
        }
    }
}

/* One tile of B: rows k and k+1 interleaved over 16 columns, `rows` by `columns` of them inside the matrix. */
static void pack_b_tile(const sat_layout *b, const uint16_t *from, int64_t rows, int64_t columns, int64_t kk,
                        uint16_t *to) {
    if (b->col_stride == 1) {
        __mmask16 inside = (__mmask16)((1u << sat_max(0, sat_min(columns, HALF))) - 1);
        for (int64_t k = 0; k < kk; k += 2, to += 2 * HALF) {
            __m256i low = _mm256_maskz_loadu_epi16(k < rows ? inside : 0, from + k * b->row_stride);
            __m256i high = _mm256_maskz_loadu_epi16(k + 1 < rows ? inside : 0, from + (k + 1) * b->row_stride);
            __m512i pair =
                _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
            _mm512_storeu_si512(to, pair);
        }
        return;
    }
    memset(to, 0, (size_t)(kk * HALF) * 2);
    for (int64_t j = 0; j < sat_min(columns, HALF); j++)
        for (int64_t k = 0; k < rows; k++)
            to[k / 2 * 2 * HALF + 2 * j + k % 2] = from[k * b->row_stride + j * b->col_stride];
}

/* Block columns [from, to) of a panel. */
static void pack_b(const sat_launch *l, const sat_rows *r, const shape *c, int64_t panel, int64_t from, int64_t to,
                   uint16_t *out) {
    const sat_layout *b = &l->problem->b;
    for (int64_t g = from; g < to; g++)
        for (int64_t s = 0; s < c->steps; s++) {
            int64_t k = g * r->bc + s * c->kk;
            int64_t rows = sat_max(0, sat_min(c->kk, sat_min(r->bc - s * c->kk, r->k - k)));
            for (int64_t h = 0; h < c->width / HALF; h++) {
                int64_t n = panel * c->width + h * HALF, columns = l->problem->n - n;
                const uint16_t *at = l->operands[1];
                if (rows > 0 && columns > 0) at += k * b->row_stride + n * b->col_stride;
                pack_b_tile(b, at, rows, columns, c->kk, out + g * c->b_col + s * c->b_step + h * c->b_tile);
            }
        }
}

/* ---- the micro-kernel ---- */

static void configure(const shape *c) {
    tile_config t = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        t.rows[i] = (uint8_t)(i < 6 ? c->mr : c->kk / 2);
        t.row_bytes[i] = (uint16_t)(i < 4 || i > 5 ? 64 : c->kk * 2);
    }
    __asm__ volatile("" : : "r"(&t) : "memory"); /* the intrinsic names only the first bytes as read */
    _tile_loadconfig(&t);
}

typedef struct strip {     /* one or two tiles of rows of one block row, times one panel */
    const uint16_t *a;     /* of the row's first block */
    const uint16_t *b;     /* the panel, from the columns at hand */
    const int32_t *col;    /* block columns */
    int64_t blocks, steps; /* tiles of each block's columns */
    int rows;              /* 1 or 2 tiles */
} strip;

static inline __attribute__((always_inline)) void multiply_2x2(const strip *s, const shape *c, float *sums,
                                                               bool prefetch) {
    int64_t a_stride = c->a_stride * 2;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t t = 0; t < s->blocks; t++) {
        const uint16_t *a = s->a + t * c->a_block, *b = s->b + s->col[t] * c->b_col;
        const uint16_t *next = s->b + s->col[t + 1 < s->blocks ? t + 1 : t] * c->b_col;
        for (int64_t k = 0; k < s->steps; k++, a += c->a_step, b += c->b_step, next += c->b_step) {
            _tile_loadd(6, b, 64);
            _tile_loadd(4, a, a_stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, a + c->a_tile, a_stride);
            _tile_dpbf16ps(2, 5, 6);
            _tile_loadd(7, b + c->b_tile, 64);
            if (prefetch)
                for (int64_t i = 0; i < 2 * c->b_tile; i += 32) _mm_prefetch((const char *)(next + i), _MM_HINT_T0);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, PAIR * 4);
    _tile_stored(1, sums + HALF, PAIR * 4);
    _tile_stored(2, sums + c->mr * PAIR, PAIR * 4);
    _tile_stored(3, sums + c->mr * PAIR + HALF, PAIR * 4);
}

static void multiply_1x2(const strip *s, const shape *c, float *sums) {
    int64_t a_stride = c->a_stride * 2;
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t t = 0; t < s->blocks; t++) {
        const uint16_t *a = s->a + t * c->a_block, *b = s->b + s->col[t] * c->b_col;
        for (int64_t k = 0; k < s->steps; k++, a += c->a_step, b += c->b_step) {
            _tile_loadd(4, a, a_stride);
            _tile_loadd(6, b, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, b + c->b_tile, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, sums, PAIR * 4);
    _tile_stored(1, sums + HALF, PAIR * 4);
}

static void multiply(const strip *s, const shape *c, float *sums, bool ahead) {
    if (s->rows == 2 && ahead) multiply_2x2(s, c, sums, true);
    else if (s->rows == 2) multiply_2x2(s, c, sums, false);
    else multiply_1x2(s, c, sums);
}

/* A long sum is made of parts: see SAT_SUM_PART. */
static void multiply_parts(const strip *all, const shape *c, float *sums, bool ahead) {
    float part[2 * HALF * PAIR] __attribute__((aligned(64)));
    if (all->blocks <= c->part_blocks && c->steps <= c->part_steps) {
        multiply(all, c, sums, ahead);
        return;
    }
    memset(sums, 0, sizeof part);
    for (int64_t t = 0; t < all->blocks; t += c->part_blocks)
        for (int64_t k = 0; k < c->steps; k += c->part_steps) {
            strip s = *all;
            s.a += t * c->a_block + k * c->a_step, s.b += k * c->b_step, s.col += t;
            s.blocks = sat_min(c->part_blocks, all->blocks - t), s.steps = sat_min(c->part_steps, c->steps - k);
            multiply(&s, c, part, ahead);
            for (int64_t e = 0; e < s.rows * c->mr * PAIR; e++) sums[e] += part[e];
        }
}

/* ---- the epilogue ---- */

static __m512 load_c(sat_dtype t, const void *c, int64_t at, __mmask16 m) {
    if (t == SAT_F32) return _mm512_maskz_loadu_ps(m, (const float *)c + at);
    __m256i h = _mm256_maskz_loadu_epi16(m, (const uint16_t *)c + at);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* To the nearest even as sat_to_bf16 does; the conversion instruction would flush the smallest numbers. */
static void store_c(sat_dtype t, void *c, int64_t at, __mmask16 m, __m512 x) {
    if (t == SAT_F32) {
        _mm512_mask_storeu_ps((float *)c + at, m, x);
        return;
    }
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16);
    __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
    _mm256_mask_storeu_epi16((uint16_t *)c + at, m, _mm512_cvtepi32_epi16(rounded));
}

static void store_row(const sat_launch *l, const float *sums, int64_t i, int64_t n, int64_t columns) {
    const sat_problem *p = l->problem;
    void *c = l->operands[2];
    float alpha = (float)p->alpha, beta = (float)p->beta;
    float bias = p->matmul.bias == SAT_BIAS_ROW ? (float)sat_load(p->c_dtype, l->operands[3], i) : 0;
    int64_t at = i * p->c.row_stride + n * p->c.col_stride;
    if (p->c.col_stride == 1 && (p->matmul.activation == SAT_ACT_NONE || p->matmul.activation == SAT_ACT_RELU)) {
        for (int64_t j = 0; j < columns; j += HALF) {
            __mmask16 m = (__mmask16)((1u << sat_min(HALF, columns - j)) - 1);
            __m512 x = _mm512_mul_ps(_mm512_set1_ps(alpha), _mm512_loadu_ps(sums + j));
            if (beta != 0) x = _mm512_fmadd_ps(_mm512_set1_ps(beta), load_c(p->c_dtype, c, at + j, m), x);
            x = _mm512_add_ps(x, _mm512_set1_ps(bias));
            if (p->matmul.activation == SAT_ACT_RELU) x = _mm512_max_ps(_mm512_setzero_ps(), x); /* NaN stays */
            store_c(p->c_dtype, c, at + j, m, x);
        }
        return;
    }
    for (int64_t j = 0; j < columns; j++, at += p->c.col_stride) {
        float x = alpha * sums[j] + bias;
        if (beta != 0) x += beta * (float)sat_load(p->c_dtype, c, at);
        sat_store(p->c_dtype, c, at, (double)sat_act_f32(p->matmul.activation, x));
    }
}

/* ---- the loop over a block row ---- */

/* One block row times one panel. */
static void block_row(const sat_launch *l, const sat_rows *r, const shape *c, int64_t row, int64_t panel,
                      const uint16_t *b) {
    float sums[2 * HALF * PAIR] __attribute__((aligned(64)));
    const uint16_t *a = c->direct ? l->operands[0] : l->workspace;
    int64_t n0 = panel * c->width, width = sat_min(c->width, l->problem->n - n0), first = row * r->br;
    bool ahead = l->variant->instance.option == 1; /* prefetches the next block's B */
    strip s = {.col = r->col + r->ptr[row], .blocks = r->end[row] - r->ptr[row], .steps = c->steps};
    for (int64_t tile = 0; tile < c->tiles && first + tile * c->mr < r->m; tile += 2) {
        int64_t i0 = tile * c->mr, rows = sat_min(sat_min(2 * c->mr, r->br - i0), r->m - first - i0);
        s.rows = tile + 1 < c->tiles && rows > c->mr ? 2 : 1;
        s.a = a + r->ptr[row] * c->a_block + tile * c->a_tile;
        for (int64_t j = 0; j < width; j += PAIR) {
            s.b = b + j / HALF * c->b_tile;
            multiply_parts(&s, c, sums, ahead);
            for (int64_t i = 0; i < rows; i++)
                store_row(l, sums + i * PAIR, first + i0 + i, n0 + j, sat_min(PAIR, width - j));
        }
    }
}

static void whole_panels(const sat_launch *l, const sat_rows *r, const shape *c, uint16_t *b) {
    uint16_t *mine = b + omp_get_thread_num() * c->panel;
#pragma omp for schedule(dynamic, 1)
    for (int64_t panel = 0; panel < c->panels; panel++) {
        pack_b(l, r, c, panel, 0, c->grid_k, mine);
        for (int64_t row = 0; row < r->count; row++) block_row(l, r, c, row, panel, mine);
    }
}

static void shared_panels(const sat_launch *l, const sat_rows *r, const shape *c, uint16_t *b) {
#pragma omp for schedule(static) collapse(2)
    for (int64_t panel = 0; panel < c->panels; panel++)
        for (int64_t g = 0; g < c->grid_k; g++) pack_b(l, r, c, panel, g, g + 1, b + panel * c->panel);
    int64_t item_rows = sat_max(1, 64 / r->br), items = (r->count + item_rows - 1) / item_rows;
#pragma omp for schedule(dynamic, 1) collapse(2)
    for (int64_t panel = 0; panel < c->panels; panel++)
        for (int64_t item = 0; item < items; item++)
            for (int64_t row = item * item_rows; row < sat_min(r->count, (item + 1) * item_rows); row++)
                block_row(l, r, c, row, panel, b + panel * c->panel);
}

/* ---- the family ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    return (d->isa & SAT_ISA_AMX_BF16) && (d->isa & SAT_ISA_AVX512) && p->a_dtype == SAT_BF16;
}

/* A tile product costs the same however small its tiles; the caches feed a third of the peak. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (p->n == 0) return 1e-6;
    shape c = make_shape(p, a, d);
    double padded =
        (double)(round_up(p->n, PAIR) * c.tiles * 16 * c.steps * 32) / (double)(p->n * a->block_rows * a->block_cols);
    double packing = 4.0 * (double)(c.panel * c.panels) + 2.0 * (double)c.a_bytes;
    return sat_roofline(d, SAT_BF16, sat_flops(p, a), 0.3 / padded, sat_bytes(p, a) + packing * (double)p->batch);
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    if (p->n == 0) return 0;
    shape c = make_shape(p, a, d);
    return c.a_bytes + c.b_bytes;
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    if (p->n == 0 || p->m == 0) return SAT_OK;
    sat_rows r = sat_op_rows(p, l->pattern);
    shape c = make_shape(p, l->pattern, l->device);
    uint16_t *b = (uint16_t *)((char *)l->workspace + c.a_bytes);
    double useful =
        sat_flops(p, l->pattern) / 2e7 + sat_bytes(p, l->pattern) / 2e5 + 1; /* starting one costs microseconds */
    int threads = useful < l->threads ? (int)useful : l->threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        configure(&c);
        if (!c.direct) {
            int64_t stored = r.ptr[r.count];
#pragma omp for schedule(static)
            for (int64_t t = 0; t < stored; t++) pack_a(l, &r, &c, t, t + 1);
        }
        if (c.own) whole_panels(l, &r, &c, b);
        else shared_panels(l, &r, &c, b);
        _tile_release();
    }
    return SAT_OK;
}

SAT_FAMILY(cpu_matmul_amx) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CPU,
    .flags = SAT_V_SCRATCH | SAT_V_DYNAMIC,
    .about = "bf16 in AMX tiles, 32x32 of C in registers over a block row; best where blocks are multiples of 16x32",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .launch = launch,
};
