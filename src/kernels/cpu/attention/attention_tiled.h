/* The tiled attention: tiles of 64 queries by 64 keys, online softmax, absent tiles skipped. The same source for every
 * instruction set; it reads from the micro-kernel out to softmax, forward, backward and the launches.
 *
 * Everything is computed with the tile's own rows in the lanes of vectors: a *panel* is up to PANEL rows, transposed,
 * [dim][PANEL]. Scores, weights and sums are such panels too, [keys][PANEL] and [dim][PANEL]; the products are all one
 * micro-kernel (a broadcast element of K or V times a vector of the panel), and softmax needs no sums across lanes.
 *   forward    panels of queries; O stays beside while the key tiles pass.
 *   dQ         the same, with dO as a second panel.
 *   dK, dV     panels of keys and values, while the query tiles pass, of all heads that share the keys.
 * A task is one tile of one head, computed by one thread in one order, so results do not depend on threads. 16-bit
 * operands are widened tile by tile. Head sizes are padded with zeros to a multiple of 8, in scratch memory alone.
 *
 * A family defines, beside VECTOR_BYTES (common/vector.h):
 *   COLUMNS                   of the products' register tile: COLUMNS x 2 vectors; a divisor of 8
 *   rate_on(device)           what is reached of the device's rate at dim 64 */

#include <omp.h>

#include "attention_vector.h"
#include "kernels/attention_schedule.h"

#define FN(name) name##_f32 /* common/vector.h: everything is computed in f32 */

enum { ATTENTION_TILE = 64 };

/* What one thread works in. */
typedef struct attention_scratch {
    float *panel[2]; /* Q and dO, or K and V; all of TILE * the wider head size */
    float *sum[2];   /* O or dQ, or dK and dV */
    float *wide[2];  /* the tile that passes, where it must be widened */
    float *score[2]; /* of TILE * TILE: scores, then weights; dP, then dS */
    float *row[3];   /* of TILE: one number for each row */
} attention_scratch;

static inline int64_t attention_padded(int64_t dim) { return (dim + 7) / 8 * 8; }

static inline int64_t attention_widest(const sat_attention *t) {
    return attention_padded(sat_max(t->dim, t->value_dim));
}

static inline size_t attention_scratch_floats(const sat_attention *t) {
    int64_t dim = attention_widest(t);
    return (size_t)(6 * ATTENTION_TILE * dim + 2 * ATTENTION_TILE * ATTENTION_TILE + 3 * ATTENTION_TILE);
}

static inline attention_scratch attention_scratch_of(const sat_launch *l, int thread) {
    const sat_attention *t = &l->problem->attention;
    int64_t tile = ATTENTION_TILE * attention_widest(t);
    float *at = (float *)l->workspace + (size_t)thread * attention_scratch_floats(t);
    attention_scratch s;
    for (int i = 0; i < 2; i++) s.panel[i] = at, s.sum[i] = at + tile, s.wide[i] = at + 2 * tile, at += 3 * tile;
    for (int i = 0; i < 2; i++) s.score[i] = at, at += ATTENTION_TILE * ATTENTION_TILE;
    for (int i = 0; i < 3; i++) s.row[i] = at, at += ATTENTION_TILE;
    return s;
}

/* dO*O of each query, which the tasks of keys read. */
static inline float *attention_delta(const sat_launch *l) {
    return (float *)l->workspace + (size_t)l->device->threads * attention_scratch_floats(&l->problem->attention);
}

static inline size_t attention_delta_floats(const sat_problem *p) {
    return p->op == SAT_ATTENTION_BACKWARD ? (size_t)(p->batch * p->attention.heads * p->m) : 0;
}

/* Where indices change, what a thread makes a list in: a mark for each tile, and as many steps. */
typedef struct attention_list {
    int64_t *seen;
    int32_t *step;
} attention_list;

static inline size_t attention_most_tiles(const sat_problem *p) {
    return (size_t)sat_max(p->m, p->n) / ATTENTION_TILE + 1;
}

static inline size_t attention_list_floats(const sat_problem *p) { return 4 * attention_most_tiles(p); }

static inline attention_list attention_list_of(const sat_launch *l, int thread) {
    size_t before = (attention_delta_floats(l->problem) + 1) / 2 * 2, tiles = attention_most_tiles(l->problem);
    float *at = attention_delta(l) + before + (size_t)thread * attention_list_floats(l->problem);
    attention_list x = {(int64_t *)(void *)at, (int32_t *)(void *)(at + 2 * tiles)};
    memset(x.seen, 0, tiles * sizeof *x.seen);
    return x;
}

/* ---- packing and unpacking tiles ---- */

/* Rows of a head: an operand, where its first row is, and how far the next. */
typedef struct attention_rows {
    void *data;
    int64_t at, stride;
} attention_rows;

static inline attention_rows attention_rows_of(const sat_launch *l, int operand, const sat_heads *s, int64_t b,
                                               int64_t h, int64_t i) {
    return (attention_rows){l->operands[operand], sat_heads_at(s, b, h, i), s->row_stride};
}

/* Elements at to at + 7; of the last ones of a row, where `count` is below 8, those from there on are zero. */
static __m256 attention_load_last(sat_dtype t, const void *p, int64_t at, int64_t count) {
    float x[8] = {0};
    for (int64_t e = 0; e < count; e++) x[e] = (float)sat_load(t, p, at + e);
    return _mm256_loadu_ps(x);
}

static void attention_store_last(sat_dtype t, void *p, int64_t at, int64_t count, __m256 v) {
    float x[8];
    _mm256_storeu_ps(x, v);
    for (int64_t e = 0; e < count; e++) sat_store(t, p, at + e, (double)x[e]);
}

/* 8 rows by 8 elements of a panel, from `at` on; fewer elements where `last`, a constant. */
static inline __attribute__((always_inline)) void attention_pack8(sat_dtype t, attention_rows r, int64_t rows,
                                                                  int64_t at, int64_t elements, int64_t width,
                                                                  float *to, const bool last) {
    __m256 v[8];
    for (int64_t e = 0; e < 8; e++)
        v[e] = e >= rows ? _mm256_setzero_ps()
               : last    ? attention_load_last(t, r.data, at + e * r.stride, elements)
                         : load8(t, r.data, at + e * r.stride);
    transpose8x8(v);
    for (int64_t e = 0; e < 8; e++) _mm256_storeu_ps(to + e * width, v[e]);
}

static inline __attribute__((always_inline)) void attention_unpack8(sat_dtype t, attention_rows r, int64_t rows,
                                                                    int64_t at, int64_t elements, int64_t width,
                                                                    const float *from, __m256 factor, const bool last) {
    __m256 v[8];
    for (int64_t e = 0; e < 8; e++) v[e] = _mm256_mul_ps(_mm256_loadu_ps(from + e * width), factor);
    transpose8x8(v);
    for (int64_t e = 0; e < 8 && e < rows; e++) {
        if (last) attention_store_last(t, r.data, at + e * r.stride, elements, v[e]);
        else store8(t, r.data, at + e * r.stride, v[e]);
    }
}

/* panels[row / width][x][row % width], zero beyond `count` rows and `dim` elements. */
static void attention_pack(sat_dtype t, attention_rows r, int64_t count, int64_t dim, int64_t width, float *panels) {
    int64_t padded = attention_padded(dim), whole = dim / 8 * 8;
    for (int64_t i = 0; i < (count + width - 1) / width * width; i += 8) {
        float *to = panels + i / width * width * padded + i % width;
        int64_t at = r.at + i * r.stride;
        for (int64_t x = 0; x < whole; x += 8)
            attention_pack8(t, r, count - i, at + x, 8, width, to + x * width, false);
        if (whole < dim) attention_pack8(t, r, count - i, at + whole, dim - whole, width, to + whole * width, true);
    }
}

/* Panels back to rows; row i is multiplied by factor[i]. */
static void attention_unpack(sat_dtype t, attention_rows r, int64_t count, int64_t dim, int64_t width,
                             const float *panels, const float *factor) {
    int64_t padded = attention_padded(dim), whole = dim / 8 * 8;
    for (int64_t i = 0; i < count; i += 8) {
        const float *from = panels + i / width * width * padded + i % width;
        int64_t at = r.at + i * r.stride;
        __m256 f = _mm256_loadu_ps(factor + i);
        for (int64_t x = 0; x < whole; x += 8)
            attention_unpack8(t, r, count - i, at + x, 8, width, from + x * width, f, false);
        if (whole < dim)
            attention_unpack8(t, r, count - i, at + whole, dim - whole, width, from + whole * width, f, true);
    }
}

/* A tile as f32 rows: in place where it is f32, else widened; rows and elements beyond it are zero. */
typedef struct attention_matrix {
    const float *data;
    int64_t stride;
} attention_matrix;

static attention_matrix attention_widen(sat_dtype t, attention_rows r, int64_t count, int64_t dim, float *to) {
    int64_t padded = attention_padded(dim), rows = (count + 7) / 8 * 8;
    if (t == SAT_F32 && count == ATTENTION_TILE && dim == padded)
        return (attention_matrix){(const float *)r.data + r.at, r.stride};
    int64_t whole = dim / 8 * 8;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = r.at + i * r.stride;
        for (int64_t x = 0; x < whole; x += 8) _mm256_storeu_ps(to + i * padded + x, load8(t, r.data, at + x));
        if (whole < dim)
            _mm256_storeu_ps(to + i * padded + whole, attention_load_last(t, r.data, at + whole, dim - whole));
    }
    memset(to + count * padded, 0, (size_t)((rows - count) * padded) * sizeof *to);
    return (attention_matrix){to, padded};
}

/* ---- masks of edge tiles ---- */

/* Bit j of bits[i]: key j of the tile is kept by query i. Rows beyond the tile rescale nothing. */
static void attention_mask_bits(const sat_mask *k, int64_t head, const sat_tile *q, const sat_tile *t, uint64_t *bits) {
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

/* The transposed mask: bit i of b[j]. */
static void attention_transpose_bits(uint64_t b[64]) {
    uint64_t mask = 0x00000000ffffffffu;
    for (int step = 32; step; step >>= 1, mask ^= mask << step)
        for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
            uint64_t swap = ((b[i] >> step) ^ b[i | step]) & mask;
            b[i] ^= swap << step, b[i | step] ^= swap;
        }
}

enum { PANEL = 2 * LANES };

/* ---- the micro-kernel ---- */

/* out[c][PANEL] for COLUMNS columns from `b` on: sums over k of b[c*cs + k*ks] * a[k][PANEL]. `vectors` of a panel. */
INLINE void product_tile(const float *b, int64_t cs, int64_t ks, int64_t depth, const float *a, float *out,
                         const VEC *rescale, const int vectors) {
    VEC sum[COLUMNS][2];
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[c][v] = VZERO();
    for (int64_t k = 0; k < depth; k++) {
        VEC x[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) x[v] = VLOAD(a + k * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) {
            VEC y = VSET(b[c * cs + k * ks]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[c][v] = VFMA(y, x[v], sum[c][v]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            float *to = out + c * PANEL + v * LANES;
            VSTORE(to, rescale ? VFMA(VLOAD(to), rescale[v], sum[c][v]) : sum[c][v]);
        }
}

/* rescale: what out is multiplied by before the sums are added to it, lane by lane; NULL: out is overwritten. Each tile
 * has sums of its own, since one long f32 sum would lose digits. `columns` is a multiple of COLUMNS. */
INLINE void product_of(const float *b, int64_t cs, int64_t ks, int64_t columns, int64_t depth, const float *a,
                       float *out, const VEC *rescale, const int vectors) {
    for (int64_t c = 0; c < columns; c += COLUMNS)
        product_tile(b + c * cs, cs, ks, depth, a, out + c * PANEL, rescale, vectors);
}

/* Rows of a tile times the panel: one sum over dim for each row. */
static void product_rows(attention_matrix t, int64_t count, int64_t dim, const float *panel, float *out, int vectors) {
    int64_t columns = (count + 7) / 8 * 8;
    if (vectors == 1) product_of(t.data, t.stride, 1, columns, dim, panel, out, NULL, 1);
    else product_of(t.data, t.stride, 1, columns, dim, panel, out, NULL, 2);
}

/* Adds the rows of a tile, each times its own row of weights: one sum over the rows for each element of dim. */
static void product_sum(attention_matrix t, int64_t count, int64_t dim, const float *weights, float *out,
                        const VEC *rescale, int vectors) {
    if (vectors == 1) product_of(t.data, 1, t.stride, dim, count, weights, out, rescale, 1);
    else product_of(t.data, 1, t.stride, dim, count, weights, out, rescale, 2);
}

/* ---- a task ---- */

typedef struct task {
    const sat_launch *l;
    const sat_problem *p;
    const sat_attention *t;
    const sat_attention_schedule *s;
    sat_mask mask;
    attention_scratch w;
    int64_t dim, value_dim; /* padded */
    int64_t b, h, kv;
    attention_list list; /* where indices change */
    uint64_t bits[ATTENTION_TILE];
} task;

/* The tiles that pass in a task, see kernels/attention_schedule.h. */
typedef struct passing {
    const int32_t *step;
    int64_t count;
} passing;

static passing passing_of(const sat_step_lists *lists, int64_t place) {
    return (passing){lists->step + lists->start[place], lists->start[place + 1] - lists->start[place]};
}

static sat_changing_lists changing_lists_of(const task *k) {
    const sat_pattern_view *a = k->l->pattern;
    return (sat_changing_lists){.s = k->s,
                                .mask = &k->mask,
                                .q_rows = ATTENTION_TILE,
                                .k_rows = ATTENTION_TILE,
                                .t_ptr = a->t_ptr,
                                .t_row = a->t_row,
                                .first_row = k->b * sat_item_rows(a),
                                .seen = k->list.seen};
}

/* Key tiles of a query tile. */
static passing keys_of(task *k, int64_t place) {
    if (!k->l->pattern->dynamic) return passing_of(&k->s->by_query, place);
    const sat_changing_lists x = changing_lists_of(k);
    int64_t count = sat_changing_list_of_query(&x, k->h, &k->s->q[place % k->s->q_tiles], k->list.step);
    return (passing){k->list.step, count};
}

/* Query tiles of a key tile, for the head that the task is at. */
static passing queries_of(task *k, int64_t tile) {
    if (!k->l->pattern->dynamic) return passing_of(&k->s->by_key, (k->s->masks > 1 ? k->h : 0) * k->s->k_tiles + tile);
    const sat_changing_lists x = changing_lists_of(k);
    return (passing){k->list.step, sat_changing_list_of_key(&x, k->h, &k->s->k[tile], k->list.step)};
}

static void go_to_item(task *k, int64_t b) { k->b = b, k->mask = sat_mask_of_item(k->p, k->l->pattern, b); }

static int vectors_of(int64_t count, int64_t panel) { return count - panel * PANEL > LANES ? 2 : 1; }

static float *lse_of(const task *k, int64_t i) {
    return (float *)k->l->operands[4] + (k->b * k->t->heads + k->h) * k->p->m + i;
}

/* Scores of a panel as they are weighed, in powers of two: the factor that is still to come. */
INLINE float cap_scores(const task *k, float *score, int64_t rows, int vectors) {
    if (k->t->softcap == 0) return (float)(k->p->alpha * ATTENTION_LOG2E);
    VEC inner = VSET((float)(k->p->alpha / k->t->softcap)), outer = VSET((float)(k->t->softcap * ATTENTION_LOG2E));
    for (int64_t j = 0; j < rows; j++)
        for (int v = 0; v < vectors; v++) {
            float *at = score + j * PANEL + v * LANES;
            VSTORE(at, VMUL(outer, tanh_of(VMUL(VLOAD(at), inner))));
        }
    return 1;
}

/* By what a score in powers of two becomes its tanh; 0: there is no cap. */
static float tanh_factor(const task *k) {
    return k->t->softcap == 0 ? 0 : (float)(1 / (k->t->softcap * ATTENTION_LOG2E));
}

/* ---- forward ---- */

/* Online softmax: scores become weights relative to the new maximum; row sums and maxima are updated. rescale: the
 * factor for older sums. */
INLINE void softmax(float *score, int64_t keys, float scale, const uint64_t *bits, int shift, float *row_max,
                    float *row_sum, VEC *rescale, int vectors) {
    for (int v = 0; v < vectors; v++) {
        VEC largest = VLOAD(row_max + v * LANES), before = largest, sum = VZERO(), factor = VSET(scale);
        float *at = score + v * LANES;
        for (int64_t j = 0; j < keys; j++) {
            VEC s = VMUL(VLOAD(at + j * PANEL), factor);
            if (bits) s = VSELECT(s, bits[j] >> (shift + v * LANES), VSET(-INFINITY));
            largest = VMAX(s, largest);
            VSTORE(at + j * PANEL, s);
        }
        VEC from = VMAX(VSET(-3e38f), largest); /* where no key is kept yet, weights are to be 0 and not NaN */
        rescale[v] = exp2_of(VSUB(before, from));
        for (int64_t j = 0; j < keys; j++) {
            VEC weight = exp2_of(VSUB(VLOAD(at + j * PANEL), from));
            sum = VADD(sum, weight);
            VSTORE(at + j * PANEL, weight);
        }
        VSTORE(row_max + v * LANES, largest);
        VSTORE(row_sum + v * LANES, VFMA(VLOAD(row_sum + v * LANES), rescale[v], sum));
    }
}

/* The keys and values of a step, and for each key the queries that keep it; bits NULL: all do. */
typedef struct kv_tile {
    attention_matrix key, value;
    int64_t count;
    const uint64_t *bits;
} kv_tile;

static kv_tile load_kv_tile(task *k, const sat_tile *q, int32_t step) {
    const sat_attention *t = k->t;
    const sat_tile *keys = &k->s->k[sat_step_tile(step)];
    kv_tile x = {.count = keys->count, .bits = sat_step_edge(step) ? k->bits : NULL};
    attention_rows rows = attention_rows_of(k->l, 1, &t->k, k->b, k->kv, keys->first);
    x.key = attention_widen(k->p->a_dtype, rows, keys->count, t->dim, k->w.wide[0]);
    rows = attention_rows_of(k->l, 2, &t->v, k->b, k->kv, keys->first);
    x.value = attention_widen(k->p->a_dtype, rows, keys->count, t->value_dim, k->w.wide[1]);
    if (x.bits) {
        attention_mask_bits(&k->mask, k->h, q, keys, k->bits);
        attention_transpose_bits(k->bits);
    }
    return x;
}

static void forward_step(task *k, const sat_tile *q, int32_t step) {
    kv_tile x = load_kv_tile(k, q, step);
    for (int64_t panel = 0; panel * PANEL < q->count; panel++) {
        int vectors = vectors_of(q->count, panel);
        int64_t at = panel * PANEL;
        VEC rescale[2];
        product_rows(x.key, x.count, k->dim, k->w.panel[0] + at * k->dim, k->w.score[0], vectors);
        float scale = cap_scores(k, k->w.score[0], x.count, vectors);
        softmax(k->w.score[0], x.count, scale, x.bits, (int)at, k->w.row[0] + at, k->w.row[1] + at, rescale, vectors);
        product_sum(x.value, x.count, k->value_dim, k->w.score[0], k->w.sum[0] + at * k->value_dim, rescale, vectors);
    }
}

static void forward_tile(task *k, int64_t place) {
    const sat_attention *t = k->t;
    const sat_tile *q = &k->s->q[place % k->s->q_tiles];
    const passing keys = keys_of(k, place);
    float *row_max = k->w.row[0], *row_sum = k->w.row[1], *factor = k->w.row[2];
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.panel[0]);
    memset(k->w.sum[0], 0, (size_t)(ATTENTION_TILE * k->value_dim) * sizeof(float));
    double sink = sat_sink_of(k->p, k->l->operands, k->h); /* a key that was there before all others */
    for (int i = 0; i < ATTENTION_TILE; i++)
        row_max[i] = (float)(sink * ATTENTION_LOG2E), row_sum[i] = isinf(sink) ? 0 : 1;
    for (int64_t i = 0; i < keys.count; i++) forward_step(k, q, keys.step[i]);
    for (int i = 0; i < ATTENTION_TILE; i++) factor[i] = row_sum[i] == 0 ? 0 : 1 / row_sum[i];
    rows = attention_rows_of(k->l, 3, &t->o, k->b, k->h, q->first);
    attention_unpack(k->p->a_dtype, rows, q->count, t->value_dim, PANEL, k->w.sum[0], factor);
    for (int64_t i = 0; t->lse && i < q->count; i++)
        *lse_of(k, q->first + i) =
            row_sum[i] == 0 ? -INFINITY : (float)((double)row_max[i] * ATTENTION_LN2 + log((double)row_sum[i]));
}

/* ---- backward ---- */

/* score: Q*K^T, dp: dO*V^T, a row of each for every row of the tile that passes. score becomes the weights, dp becomes
 * dS/alpha. The LSE and the dO*O of a query are one a lane where `lanes`, else one a row. `tanh_by`: tanh_factor(). */
INLINE void gradient(float *score, float *dp, int64_t rows, float scale, float tanh_by, const uint64_t *bits, int shift,
                     const float *lse, const float *delta, const bool lanes, int vectors) {
    for (int v = 0; v < vectors; v++)
        for (int64_t j = 0; j < rows; j++) {
            float *at = score + j * PANEL + v * LANES, *to = dp + j * PANEL + v * LANES;
            VEC minus = lanes ? VLOAD(lse + v * LANES) : VSET(lse[j]),
                d = lanes ? VLOAD(delta + v * LANES) : VSET(delta[j]);
            VEC weight = exp2_of(VSUB(VMUL(VLOAD(at), VSET(scale)), minus));
            if (bits) weight = VSELECT(weight, bits[j] >> (shift + v * LANES), VZERO());
            VEC ds = VMUL(weight, VSUB(VLOAD(to), d));
            if (tanh_by != 0) {
                VEC t = VMUL(VLOAD(at), VSET(tanh_by));
                ds = VMUL(ds, VSUB(VSET(1.0f), VMUL(t, t))); /* the slope of tanh */
            }
            if (bits) ds = VSELECT(ds, bits[j] >> (shift + v * LANES), VZERO());
            VSTORE(at, weight);
            VSTORE(to, ds);
        }
}

static void query_step(task *k, const sat_tile *q, int32_t step, const float *lse, const float *delta) {
    int64_t dim = k->dim;
    float tanh_by = tanh_factor(k);
    kv_tile x = load_kv_tile(k, q, step);
    const VEC rescale[2] = {VSET(1.0f), VSET(1.0f)};
    for (int64_t at = 0; at < q->count; at += PANEL) {
        int vectors = vectors_of(q->count, at / PANEL);
        product_rows(x.key, x.count, dim, k->w.panel[0] + at * dim, k->w.score[0], vectors);
        product_rows(x.value, x.count, k->value_dim, k->w.panel[1] + at * k->value_dim, k->w.score[1], vectors);
        float scale = cap_scores(k, k->w.score[0], x.count, vectors);
        gradient(k->w.score[0], k->w.score[1], x.count, scale, tanh_by, x.bits, (int)at, lse + at, delta + at, true,
                 vectors);
        product_sum(x.key, x.count, dim, k->w.score[1], k->w.sum[0] + at * dim, rescale, vectors);
    }
}

/* dO*O of the rows of a tile. */
static void delta_of(const task *k, const sat_tile *q, float *delta) {
    const sat_attention *t = k->t;
    for (int64_t i = 0; i < q->count; i++) {
        int64_t o = sat_heads_at(&t->o, k->b, k->h, q->first + i), d = sat_heads_at(&t->do_, k->b, k->h, q->first + i);
        __m256 sum = _mm256_setzero_ps();
        int64_t whole = t->value_dim / 8 * 8;
        for (int64_t x = 0; x < whole; x += 8)
            sum = _mm256_fmadd_ps(load8(k->p->a_dtype, k->l->operands[3], o + x),
                                  load8(k->p->a_dtype, k->l->operands[5], d + x), sum);
        float part[8], all = 0;
        _mm256_storeu_ps(part, sum);
        for (int x = 0; x < 8; x++) all += part[x];
        for (int64_t x = whole; x < t->value_dim; x++)
            all += (float)(sat_load(k->p->a_dtype, k->l->operands[3], o + x) *
                           sat_load(k->p->a_dtype, k->l->operands[5], d + x));
        delta[i] = all;
    }
}

static void query_tile(task *k, int64_t place) {
    const sat_attention *t = k->t;
    const sat_tile *q = &k->s->q[place % k->s->q_tiles];
    const passing keys = keys_of(k, place);
    float *lse = k->w.row[0], *delta = k->w.row[1], *factor = k->w.row[2];
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.panel[0]);
    rows = attention_rows_of(k->l, 5, &t->do_, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->value_dim, PANEL, k->w.panel[1]);
    memset(k->w.sum[0], 0, (size_t)(ATTENTION_TILE * k->dim) * sizeof(float));
    delta_of(k, q, delta);
    memcpy(attention_delta(k->l) + (k->b * t->heads + k->h) * k->p->m + q->first, delta,
           (size_t)q->count * sizeof *delta);
    for (int i = 0; i < ATTENTION_TILE; i++) {
        lse[i] = i < q->count ? (float)(*lse_of(k, q->first + i) * ATTENTION_LOG2E) : 0;
        if (i >= q->count) delta[i] = 0;
        factor[i] = (float)k->p->alpha;
    }
    for (int64_t i = 0; i < keys.count; i++) query_step(k, q, keys.step[i], lse, delta);
    rows = attention_rows_of(k->l, 6, &t->dq, k->b, k->h, q->first);
    attention_unpack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.sum[0], factor);
}

static void key_step(task *k, const sat_tile *keys, int32_t step) {
    const sat_attention *t = k->t;
    const sat_tile *q = &k->s->q[sat_step_tile(step)];
    int64_t dim = k->dim, value_dim = k->value_dim;
    const uint64_t *bits = sat_step_edge(step) ? k->bits : NULL;
    float tanh_by = tanh_factor(k), *lse = k->w.row[0];
    const float *delta = attention_delta(k->l) + (k->b * t->heads + k->h) * k->p->m + q->first;
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_matrix query = attention_widen(k->p->a_dtype, rows, q->count, t->dim, k->w.wide[0]);
    rows = attention_rows_of(k->l, 5, &t->do_, k->b, k->h, q->first);
    attention_matrix out = attention_widen(k->p->a_dtype, rows, q->count, t->value_dim, k->w.wide[1]);
    for (int64_t i = 0; i < q->count; i++) lse[i] = (float)(*lse_of(k, q->first + i) * ATTENTION_LOG2E);
    if (bits) attention_mask_bits(&k->mask, k->h, q, keys, k->bits);
    const VEC rescale[2] = {VSET(1.0f), VSET(1.0f)};
    for (int64_t at = 0; at < keys->count; at += PANEL) {
        int vectors = vectors_of(keys->count, at / PANEL);
        product_rows(query, q->count, dim, k->w.panel[0] + at * dim, k->w.score[0], vectors);
        product_rows(out, q->count, value_dim, k->w.panel[1] + at * value_dim, k->w.score[1], vectors);
        float scale = cap_scores(k, k->w.score[0], q->count, vectors);
        gradient(k->w.score[0], k->w.score[1], q->count, scale, tanh_by, bits, (int)at, lse, delta, false, vectors);
        product_sum(query, q->count, dim, k->w.score[1], k->w.sum[0] + at * dim, rescale, vectors);
        product_sum(out, q->count, value_dim, k->w.score[0], k->w.sum[1] + at * value_dim, rescale, vectors);
    }
}

static void key_tile(task *k, int64_t tile) {
    const sat_attention *t = k->t;
    const sat_tile *keys = &k->s->k[tile];
    float factor[2][ATTENTION_TILE];
    attention_rows rows = attention_rows_of(k->l, 1, &t->k, k->b, k->kv, keys->first);
    attention_pack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.panel[0]);
    rows = attention_rows_of(k->l, 2, &t->v, k->b, k->kv, keys->first);
    attention_pack(k->p->a_dtype, rows, keys->count, t->value_dim, PANEL, k->w.panel[1]);
    memset(k->w.sum[0], 0, (size_t)(ATTENTION_TILE * k->dim) * sizeof(float));
    memset(k->w.sum[1], 0, (size_t)(ATTENTION_TILE * k->value_dim) * sizeof(float));
    int64_t share = t->heads / t->kv_heads;
    for (k->h = k->kv * share; k->h < (k->kv + 1) * share; k->h++) {
        const passing queries = queries_of(k, tile);
        for (int64_t i = 0; i < queries.count; i++) key_step(k, keys, queries.step[i]);
    }
    for (int i = 0; i < ATTENTION_TILE; i++) factor[0][i] = (float)k->p->alpha, factor[1][i] = 1;
    rows = attention_rows_of(k->l, 7, &t->dk, k->b, k->kv, keys->first);
    attention_unpack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.sum[0], factor[0]);
    rows = attention_rows_of(k->l, 8, &t->dv, k->b, k->kv, keys->first);
    attention_unpack(k->p->a_dtype, rows, keys->count, t->value_dim, PANEL, k->w.sum[1], factor[1]);
}

/* ---- launches ---- */

static task task_of(const sat_launch *l) {
    bool changes = l->pattern->dynamic != NULL;
    return (task){.l = l,
                  .p = l->problem,
                  .t = &l->problem->attention,
                  .s = (const sat_attention_schedule *)l->state,
                  .list = changes ? attention_list_of(l, omp_get_thread_num()) : (attention_list){0},
                  .dim = attention_padded(l->problem->attention.dim),
                  .value_dim = attention_padded(l->problem->attention.value_dim),
                  .w = attention_scratch_of(l, omp_get_thread_num())};
}

/* Query tiles of all heads: one head after the other, so that its keys stay in the cache, its longest tiles first.
 * Which those are is not known where indices change; then the last ones, which see the most in a causal mask. */
static void query_tasks(const sat_launch *l, void (*run)(task *k, int64_t place)) {
    const sat_attention_schedule *s = (const sat_attention_schedule *)l->state;
    const sat_attention *t = &l->problem->attention;
    int64_t each = s->q_tiles, share = t->heads / t->kv_heads, count = l->problem->batch * t->heads * each;
    task k = task_of(l);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        int64_t place = s->masks > 1 ? i % (t->heads * each) : i % each;
        go_to_item(&k, i / each / t->heads);
        k.h = i / each % t->heads;
        if (l->pattern->dynamic) place = each - 1 - i % each;
        else place = s->by_query.order[place];
        if (s->masks > 1 && !l->pattern->dynamic) k.h = place / each; /* sorted over all heads */
        k.kv = k.h / share;
        run(&k, place);
    }
}

static void key_tasks(const sat_launch *l) {
    const sat_attention_schedule *s = (const sat_attention_schedule *)l->state;
    const sat_attention *t = &l->problem->attention;
    int64_t count = l->problem->batch * t->kv_heads * s->k_tiles;
    task k = task_of(l);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        bool in_order = s->masks > 1 || l->pattern->dynamic;
        go_to_item(&k, i / s->k_tiles / t->kv_heads);
        k.kv = i / s->k_tiles % t->kv_heads;
        key_tile(&k, in_order ? i % s->k_tiles : s->by_key.order[i % s->k_tiles]);
    }
}

/* Gradients of the sinks, from dO*O of all queries. */
static void gradient_of_sinks(const sat_launch *l) {
    const sat_problem *p = l->problem;
    int64_t heads = p->attention.heads;
#pragma omp for schedule(dynamic, 1)
    for (int64_t h = 0; h < heads; h++) {
        double sink = sat_sink_of(p, l->operands, h), sum = 0;
        for (int64_t b = 0; b < p->batch && !isinf(sink); b++)
            for (int64_t at = (b * heads + h) * p->m; at < (b * heads + h + 1) * p->m; at++)
                sum -= exp(sink - (double)((const float *)l->operands[4])[at]) * (double)attention_delta(l)[at];
        ((float *)l->operands[10])[h] = (float)sum;
    }
}

static sat_status forward(const sat_launch *l) {
#pragma omp parallel num_threads(l->threads)
    query_tasks(l, forward_tile);
    return SAT_OK;
}

static sat_status backward(const sat_launch *l) {
#pragma omp parallel num_threads(l->threads)
    {
        query_tasks(l, query_tile); /* the barrier at its end: dO*O is there */
        key_tasks(l);
        if (l->problem->attention.sinks) gradient_of_sinks(l);
    }
    return SAT_OK;
}

/* ---- what the tuner asks ---- */

static bool attention_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    (void)a;
    return (d->isa & VECTOR_ISA) != 0 && p->a_dtype == v->instance.dtype;
}

/* Tiles are computed whole, however much of them is kept. */
static double attention_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                 const sat_device *d) {
    (void)v;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    double rows = fmin(1, (double)p->m / 16), dim = (double)(p->attention.dim + p->attention.value_dim) / 2;
    double flops = sat_attention_flops(p, a) * (back ? 1.4 : 1) / fmax(rows, 0.05);
    double tiles = (double)p->batch * (double)p->attention.heads * (double)p->m / ATTENTION_TILE;
    double fill = fmin(1, sqrt((double)sat_min(a->block_rows, a->block_cols) / ATTENTION_TILE));
    return flops / (d->flop_rate[SAT_F32] * rate_on(d) * dim / (dim + 12) * fmax(fill, 0.1)) +
           sat_attention_bytes(p, a) / d->memory_rate + 1e-6 * tiles / (double)d->threads + 8e-6;
}

static size_t attention_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                  const sat_device *d) {
    (void)v;
    size_t floats = (size_t)d->threads * attention_scratch_floats(&p->attention) + attention_delta_floats(p);
    if (a->dynamic) floats += 1 + (size_t)d->threads * attention_list_floats(p);
    return floats * sizeof(float);
}

static sat_status attention_prepare(const sat_prepare *p, void **state) {
    bool back = p->problem->op == SAT_ATTENTION_BACKWARD;
    *state = sat_attention_schedule_make(p->problem, p->pattern, ATTENTION_TILE, ATTENTION_TILE, back);
    return *state ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", p->variant->name);
}

static void attention_release(const sat_variant *v, void *state) {
    (void)v;
    sat_attention_schedule_free((sat_attention_schedule *)state);
}

#define TILED_FAMILY(operation, run, words)                                                                            \
    {                                                                                                                  \
        .revision = "1", .op = operation, .backend = SAT_CPU, .flags = SAT_V_BATCHED | SAT_V_SCRATCH | SAT_V_DYNAMIC,  \
        .about = words, .supports = attention_supports, .estimate = attention_estimate,                                \
        .workspace = attention_workspace, .prepare = attention_prepare, .launch = run, .release = attention_release    \
    }
