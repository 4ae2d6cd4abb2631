/* Attention of few queries, as in decoding, where reading keys and values once is all the cost. The same source for
 * every instruction set; it reads from the products of a tile out to an item, the reduction and the launch.
 *
 * The queries of all heads that share keys are the *rows* of a work item, so that a key is read once for all of them. A
 * work item is ITEM_KEYS keys of one head of keys: it takes them in tiles of 64 with online softmax, and leaves each
 * row's maximum, sum and weighted sum of values. Then the partial results of a row are added, in order, and the sink of
 * its head. Items do not depend on threads, so results do not either.
 *
 * Elements of a head are in the lanes of vectors; 16-bit ones are widened as they are loaded.
 *
 * A family defines, beside VECTOR_BYTES (common/vector.h):
 *   ROWS   rows that are multiplied with a key at a time: ROWS * 4 sums stay in registers */

#include <omp.h>

#include "attention_vector.h"
#include "kernels/attention_schedule.h"

#define FN(name) name##_f32 /* common/vector.h: everything is computed in f32 */

enum { TILE_KEYS = 64, ITEM_KEYS = 512, MOST_ROWS = 32 };

/* ---- elements ---- */

/* A vector of elements from `at` on. */
INLINE VEC load_lanes(sat_dtype t, const void *p, int64_t at) {
    if (t == SAT_F32) return VLOAD((const float *)p + at);
    vec_half h = vec_load_half((const uint16_t *)p + at);
    return t == SAT_F16 ? vec_widen_f16(h) : vec_widen_bf16(h);
}

/* Head sizes are multiples of 8 here: what is left beyond whole vectors is half a vector of AVX-512, and nothing of
 * AVX2. */
INLINE VEC load_rest(sat_dtype t, const void *p, int64_t at) {
#if VECTOR_BYTES == 64
    return _mm512_zextps256_ps512(load8(t, p, at));
#else
    return load8(t, p, at);
#endif
}

/* Rows of a head: an operand, where the first one is, and how far the next. */
typedef struct head_rows {
    const void *data;
    int64_t at, stride;
} head_rows;

/* ---- the products of a tile ---- */

/* score[r][u], u below 4: q[r] times four keys. A row of q is `pitch` long, zero behind `dim`. */
INLINE void score_keys(sat_dtype t, head_rows k, const int64_t key[4], const float *q, int64_t dim, int64_t pitch,
                       float *score, const int rows) {
    VEC sum[ROWS][4];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int u = 0; u < 4; u++) sum[r][u] = VZERO();
    for (int64_t x = 0; x < dim; x += LANES) {
        VEC y[4];
        UNROLL for (int u = 0; u < 4; u++) {
            int64_t at = k.at + key[u] * k.stride + x;
            y[u] = x + LANES <= dim ? load_lanes(t, k.data, at) : load_rest(t, k.data, at);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            VEC w = VLOAD(q + r * pitch + x);
            UNROLL for (int u = 0; u < 4; u++) sum[r][u] = VFMA(w, y[u], sum[r][u]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) VSUM4(score + r * TILE_KEYS, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
}

/* score[r][j]: q[r] times the keys of a tile. */
INLINE void score_tile(sat_dtype t, head_rows k, int64_t keys, const float *q, int64_t dim, int64_t pitch, float *score,
                       const int rows) {
    for (int64_t j = 0; j < keys; j += 4) {
        int64_t last = keys - 1; /* beyond the last key: that again */
        const int64_t key[4] = {j, sat_min(j + 1, last), sat_min(j + 2, last), sat_min(j + 3, last)};
        score_keys(t, k, key, q, dim, pitch, score + j, rows);
    }
}

/* Columns x to x + vectors * LANES of sum[r] times rescale[r], plus the values of a tile by their weights. */
INLINE void add_columns(sat_dtype t, head_rows v, int64_t keys, const float *weight, int64_t x, bool whole,
                        int64_t pitch, const float *rescale, float *sum, const int vectors, const int rows) {
    VEC part[ROWS][8];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < vectors; c++) part[r][c] = VZERO();
    for (int64_t j = 0; j < keys; j++) {
        VEC y[8];
        UNROLL for (int c = 0; c < vectors; c++) {
            int64_t at = v.at + j * v.stride + x + c * LANES;
            y[c] = whole ? load_lanes(t, v.data, at) : load_rest(t, v.data, at);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            VEC w = VSET(weight[r * TILE_KEYS + j]);
            UNROLL for (int c = 0; c < vectors; c++) part[r][c] = VFMA(w, y[c], part[r][c]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < vectors; c++) {
        float *to = sum + r * pitch + x + c * LANES;
        VSTORE(to, VFMA(VLOAD(to), VSET(rescale[r]), part[r][c]));
    }
}

/* All columns. One row has as many sums in registers by more vectors of it. */
INLINE void add_values(sat_dtype t, head_rows v, int64_t keys, const float *weight, int64_t dim, int64_t pitch,
                       const float *rescale, float *sum, const int rows) {
    const int wide = rows == 1 ? 8 : 4;
    int64_t x = 0;
    for (; x + wide * LANES <= dim; x += wide * LANES)
        add_columns(t, v, keys, weight, x, true, pitch, rescale, sum, wide, rows);
    for (; x + 2 * LANES <= dim; x += 2 * LANES) add_columns(t, v, keys, weight, x, true, pitch, rescale, sum, 2, rows);
    for (; x < dim; x += LANES) add_columns(t, v, keys, weight, x, x + LANES <= dim, pitch, rescale, sum, 1, rows);
}

/* ---- softmax ---- */

/* A row of scores becomes weights relative to the new maximum. row_sum has the sums of the lanes. Returns the factor
 * for older sums. */
static float softmax_row(float *score, int64_t keys, float scale, uint64_t bits, float *row_max, float *row_sum) {
    VEC largest = VSET(-INFINITY), sum = VZERO();
    for (int64_t j = 0; j < keys; j += LANES) {
        VEC s = VSELECT(VMUL(VLOAD(score + j), VSET(scale)), bits >> j, VSET(-INFINITY));
        largest = VMAX(s, largest);
        VSTORE(score + j, s);
    }
    float lane[LANES], most = *row_max;
    VSTORE(lane, largest);
    for (int i = 0; i < LANES; i++) most = lane[i] > most ? lane[i] : most;
    float from = most > -3e38f ? most : -3e38f; /* where no key is kept yet, weights are to be 0 and not NaN */
    for (int64_t j = 0; j < keys; j += LANES) {
        VEC weight = exp2_of(VSUB(VLOAD(score + j), VSET(from)));
        sum = VADD(sum, weight);
        VSTORE(score + j, weight);
    }
    VSTORE(lane, exp2_of(VSET(*row_max - from)));
    VSTORE(row_sum, VFMA(VLOAD(row_sum), VSET(lane[0]), sum));
    *row_max = most;
    return lane[0];
}

/* Scores of a row as they are weighed, in powers of two: the factor that is still to come. */
static float cap_row(const sat_problem *p, float *score, int64_t keys) {
    const double softcap = p->attention.softcap;
    if (softcap == 0) return (float)(p->alpha * ATTENTION_LOG2E);
    VEC inner = VSET((float)(p->alpha / softcap)), outer = VSET((float)(softcap * ATTENTION_LOG2E));
    for (int64_t j = 0; j < keys; j += LANES) VSTORE(score + j, VMUL(outer, tanh_of(VMUL(VLOAD(score + j), inner))));
    return 1;
}

/* ---- an item ---- */

/* The sizes of a problem, as they are used here. */
typedef struct split_shape {
    int64_t rows;           /* of an item: the queries of the heads that share keys, head by head */
    int64_t pitch, v_pitch; /* of a row of Q, and of sums: whole vectors */
    int64_t splits, items;
} split_shape;

static split_shape shape_of(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    split_shape s = {.rows = t->heads / t->kv_heads * p->m, .pitch = (t->dim + LANES - 1) / LANES * LANES};
    s.v_pitch = (sat_value_dim(t) + LANES - 1) / LANES * LANES;
    s.splits = sat_max(1, (p->n + ITEM_KEYS - 1) / ITEM_KEYS);
    s.items = p->batch * t->kv_heads * s.splits;
    return s;
}

/* What an item leaves of each row: sums [rows][v_pitch], then the sums of weights [rows][LANES], then maxima [rows]. */
static int64_t partial_floats(const split_shape *s) { return s->rows * (s->v_pitch + LANES + 1); }

/* What a thread works in: Q, and the scores of a tile; then a row of sums. */
static int64_t scratch_floats(const split_shape *s) { return sat_max(s->rows * (s->pitch + TILE_KEYS), s->v_pitch); }

typedef struct item {
    const sat_problem *p;
    const sat_attention *t;
    const sat_mask *mask;
    split_shape s;
    head_rows k, v;
    int64_t head;                   /* the first that shares the keys */
    float *q, *score;               /* scratch */
    float *sum, *row_sum, *row_max; /* the partial results */
} item;

static uint64_t bits_of(const item *w, int64_t row, int64_t first, int64_t keys) {
    const sat_mask *k = w->mask;
    if (k->full && !k->causal && !k->window && !k->sequences) return ~(uint64_t)0 >> (64 - keys);
    return sat_mask_bits(k, w->head + row / w->p->m, row % w->p->m, first, keys);
}

/* `rows` rows from `row` on meet a tile of keys. */
INLINE void tile_rows(item *w, sat_dtype t, int64_t row, int64_t first, int64_t keys, const uint64_t *bits,
                      const int rows) {
    const int64_t pitch = w->s.pitch, v_pitch = w->s.v_pitch;
    head_rows k = w->k, v = w->v;
    k.at += first * k.stride, v.at += first * v.stride;
    float *score = w->score + row * TILE_KEYS, rescale[ROWS];
    score_tile(t, k, keys, w->q + row * pitch, w->t->dim, pitch, score, rows);
    for (int r = 0; r < rows; r++) {
        float *at = score + r * TILE_KEYS, scale = cap_row(w->p, at, keys);
        rescale[r] = softmax_row(at, keys, scale, bits[r], w->row_max + row + r, w->row_sum + (row + r) * LANES);
    }
    add_values(t, v, keys, score, sat_value_dim(w->t), v_pitch, rescale, w->sum + row * v_pitch, rows);
}

INLINE void run_tiles(item *w, sat_dtype t, int64_t begin, int64_t end) {
    uint64_t bits[MOST_ROWS];
    for (int64_t first = begin; first < end; first += TILE_KEYS) {
        int64_t keys = sat_min(TILE_KEYS, end - first), row = 0;
        uint64_t any = 0;
        for (int64_t r = 0; r < w->s.rows; r++) any |= bits[r] = bits_of(w, r, first, keys);
        if (!any) continue;
        for (; row + ROWS <= w->s.rows; row += ROWS) tile_rows(w, t, row, first, keys, bits + row, ROWS);
        for (; row < w->s.rows; row++) tile_rows(w, t, row, first, keys, bits + row, 1);
    }
}

static void begin_rows(item *w, const sat_launch *l, int64_t b) {
    memset(w->sum, 0, (size_t)(w->s.rows * (w->s.v_pitch + LANES)) * sizeof(float));
    for (int64_t r = 0; r < w->s.rows; r++) {
        int64_t at = sat_heads_at(&w->t->q, b, w->head + r / w->p->m, r % w->p->m);
        float *to = w->q + r * w->s.pitch;
        for (int64_t x = 0; x < w->s.pitch; x += LANES)
            VSTORE(to + x, x + LANES <= w->t->dim ? load_lanes(w->p->a_dtype, l->operands[0], at + x)
                                                  : load_rest(w->p->a_dtype, l->operands[0], at + x));
        w->row_max[r] = -INFINITY;
    }
}

static void run_item(const sat_launch *l, split_shape s, int64_t number, float *scratch, float *partial) {
    const sat_attention *t = &l->problem->attention;
    int64_t kv = number / s.splits % t->kv_heads, b = number / s.splits / t->kv_heads;
    const sat_mask mask = sat_mask_of_item(l->problem, l->pattern, b);
    item w = {.p = l->problem, .t = t, .mask = &mask, .s = s, .head = kv * (t->heads / t->kv_heads)};
    w.k = (head_rows){l->operands[1], sat_heads_at(&t->k, b, kv, 0), t->k.row_stride};
    w.v = (head_rows){l->operands[2], sat_heads_at(&t->v, b, kv, 0), t->v.row_stride};
    w.q = scratch, w.score = scratch + s.rows * s.pitch;
    w.sum = partial + number * partial_floats(&s), w.row_sum = w.sum + s.rows * s.v_pitch;
    w.row_max = w.row_sum + s.rows * LANES;
    begin_rows(&w, l, b);
    int64_t begin = number % s.splits * ITEM_KEYS, end = sat_min(w.p->n, begin + ITEM_KEYS);
    switch (w.p->a_dtype) { /* so that each has loops of its own */
    case SAT_F16: run_tiles(&w, SAT_F16, begin, end); break;
    case SAT_BF16: run_tiles(&w, SAT_BF16, begin, end); break;
    default: run_tiles(&w, SAT_F32, begin, end); break;
    }
}

/* ---- the reduction of a row ---- */

/* Row r of the heads that share keys, from its items' partial results, into `sum`, which has a row of sums' pitch. */
static void reduce_row(const sat_launch *l, split_shape s, int64_t group, int64_t r, const float *partial, float *sum) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    int64_t share = t->heads / t->kv_heads, b = group / t->kv_heads, h = group % t->kv_heads * share + r / p->m;
    const float sink = (float)(sat_sink_of(p, l->operands, h) * ATTENTION_LOG2E);
    float most = sink, total = 0, lane[LANES];
    for (int64_t i = 0; i < s.splits; i++) {
        float x = partial[(group * s.splits + i) * partial_floats(&s) + s.rows * (s.v_pitch + LANES) + r];
        most = x > most ? x : most;
    }
    if (sink > -INFINITY) VSTORE(lane, exp2_of(VSET(sink - most))), total = lane[0];
    memset(sum, 0, (size_t)s.v_pitch * sizeof *sum);
    for (int64_t i = 0; i < s.splits; i++) {
        const float *from = partial + (group * s.splits + i) * partial_floats(&s), *lanes = from + s.rows * s.v_pitch;
        float x = lanes[s.rows * LANES + r];
        if (x == -INFINITY && most > x) continue; /* it kept nothing */
        VSTORE(lane, exp2_of(VSET(x == most ? 0 : x - most)));
        VEC factor = VSET(lane[0]);
        VSTORE(lane, VMUL(VLOAD(lanes + r * LANES), factor));
        for (int e = 0; e < LANES; e++) total += lane[e];
        for (int64_t e = 0; e < s.v_pitch; e += LANES)
            VSTORE(sum + e, VFMA(VLOAD(from + r * s.v_pitch + e), factor, VLOAD(sum + e)));
    }
    int64_t at = sat_heads_at(&t->o, b, h, r % p->m);
    __m256 factor = _mm256_set1_ps(total == 0 ? 0 : 1 / total);
    for (int64_t e = 0; e < sat_value_dim(t); e += 8)
        store8(p->c_dtype, l->operands[3], at + e, _mm256_mul_ps(_mm256_loadu_ps(sum + e), factor));
    if (t->lse)
        ((float *)l->operands[4])[(b * t->heads + h) * p->m + r % p->m] =
            total == 0 ? -INFINITY : (float)((double)most * ATTENTION_LN2 + log((double)total));
}

/* ---- launch ---- */

static sat_status launch(const sat_launch *l) {
    const split_shape s = shape_of(l->problem);
    float *scratch = l->workspace, *partial = scratch + l->device->threads * scratch_floats(&s);
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        float *own = scratch + omp_get_thread_num() * scratch_floats(&s);
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < s.items; i++) run_item(l, s, i, own, partial);
#pragma omp for schedule(static)
        for (int64_t i = 0; i < s.items / s.splits * s.rows; i++)
            reduce_row(l, s, i / s.rows, i % s.rows, partial, own);
    }
    return SAT_OK;
}

/* ---- what the tuner asks ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    if ((d->isa & VECTOR_ISA) == 0 || p->a_dtype != v->instance.dtype || shape_of(p).rows > MOST_ROWS) return false;
    return p->attention.dim % 8 == 0 && sat_value_dim(&p->attention) % 8 == 0;
}

/* A key and a value are loaded once for ROWS rows, from the processor's own cache but for the first of them. */
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    split_shape s = shape_of(p);
    int64_t loads = s.rows / ROWS + s.rows % ROWS;
    double efficiency =
        0.3 / fmax(1, 2 * (double)loads / (double)sat_max(1, s.rows)) * (p->a_dtype == SAT_F32 ? 1 : 0.7);
    double partial = 8.0 * (double)(s.items * partial_floats(&s));
    return sat_roofline(d, SAT_F32, sat_attention_flops(p, a), efficiency, sat_attention_bytes(p, a) + partial) + 2e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    split_shape s = shape_of(p);
    return (size_t)(d->threads * scratch_floats(&s) + s.items * partial_floats(&s)) * sizeof(float);
}

#define SPLIT_FAMILY(words)                                                                                            \
    {                                                                                                                  \
        .revision = "1", .op = SAT_ATTENTION, .backend = SAT_CPU,                                                      \
        .flags = SAT_V_BATCHED | SAT_V_SCRATCH | SAT_V_DYNAMIC, .about = words, .supports = supports,                  \
        .estimate = estimate, .workspace = workspace, .launch = launch                                                 \
    }
