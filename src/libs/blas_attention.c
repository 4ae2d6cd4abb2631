// Attention in three passes by BLAS: a strip of scores, 128 queries by the keys that any of them may keep, its softmax,
// and its product with the values. Absent tiles are skipped. Good for large head sizes and f64.

#include "kernels/attention_schedule.h"
#include "libs/blas.h"
#include "libs/room.h"

enum { STRIP = 128, KEYS = 64 };

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    const sat_blas *blas = sat_blas_of(v);
    const sat_attention *t = &p->attention;
    if (!blas || !sat_room_to_run(d->threads) || (p->a_dtype != SAT_F32 && p->a_dtype != SAT_F64)) return false;
    double bytes = (double)d->threads * STRIP * (double)p->n * (double)sat_dtype_size(p->a_dtype);
    return bytes <= (double)d->memory_bytes / 4 && sat_blas_fits(blas, p->m, t->dim, t->q.row_stride, 1) &&
           sat_blas_fits(blas, p->n, t->dim, t->k.row_stride, 1) &&
           sat_blas_fits(blas, p->n, t->value_dim, t->v.row_stride, 1) &&
           sat_blas_fits(blas, p->m, t->value_dim, t->o.row_stride, 1) && sat_blas_fits(blas, STRIP, p->n, p->n, 1);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    double flops = sat_attention_flops(p, a), dim = (double)(p->attention.dim + p->attention.value_dim) / 2;
    double exps = flops / (4 * dim) * 6e-9 / (double)d->threads; /* one at a time */
    return flops / (d->flop_rate[p->a_dtype] * 0.6 * dim / (dim + 32)) + exps +
           sat_attention_bytes(p, a) / d->memory_rate + 1e-5;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a;
    return (size_t)d->threads * STRIP * (size_t)p->n * sat_dtype_size(p->a_dtype);
}

static sat_status prepare(const sat_prepare *p, void **state) {
    *state = sat_attention_schedule_make(p->problem, p->pattern, STRIP, KEYS, false);
    return *state ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", p->variant->name);
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    sat_attention_schedule_free(state);
}

/* One strip: its queries, and the tiles of keys that it visits. */
typedef struct strip {
    const sat_launch *l;
    const sat_blas *blas;
    sat_mask mask;
    const sat_attention_schedule *s;
    const sat_tile *q;
    const int32_t *step;
    int64_t steps, b, h, kv;
    void *scores; /* STRIP x n */
} strip;

/* From step `i` on, keys that are neighbours; gives the step after them. */
static int64_t next_run(const strip *w, int64_t i, sat_range *keys) {
    const sat_tile *k = &w->s->k[sat_step_tile(w->step[i])];
    *keys = (sat_range){k->first, k->first + k->count};
    for (i++; i < w->steps; i++) {
        k = &w->s->k[sat_step_tile(w->step[i])];
        if (k->first != keys->end) break;
        keys->end += k->count;
    }
    return i;
}

static sat_matrix rows_of(const strip *w, int operand, const sat_heads *s, int64_t h, int64_t i) {
    void *data = sat_at(w->l->problem->a_dtype, w->l->operands[operand], sat_heads_at(s, w->b, h, i));
    return (sat_matrix){data, s->row_stride, 1};
}

static sat_matrix scores_from(const strip *w, int64_t j) {
    return (sat_matrix){sat_at(w->l->problem->a_dtype, w->scores, j), w->l->problem->n, 1};
}

/* In every tile that it visits, what query i does not keep becomes -inf. Then weights, in place. */
#define SOFTMAX(T, name, exponential, cap_by)                                                                          \
    static double name(const strip *w, int64_t i, double *largest_out) {                                               \
        double sink = sat_sink_of(w->l->problem, w->l->operands, w->h);                                                \
        T *row = (T *)w->scores + i * w->l->problem->n, largest = (T)sink;                                             \
        const T cap = (T)w->l->problem->attention.softcap;                                                             \
        for (int64_t t = 0; t < w->steps; t++) {                                                                       \
            const sat_tile *k = &w->s->k[sat_step_tile(w->step[t])];                                                   \
            uint64_t bits = ~(uint64_t)0;                                                                              \
            if (sat_step_edge(w->step[t])) bits = sat_mask_bits(&w->mask, w->h, w->q->first + i, k->first, k->count);  \
            for (int64_t j = 0; j < k->count; j++) {                                                                   \
                T *at = &row[k->first + j];                                                                            \
                if (cap != 0) *at = cap * cap_by(*at / cap);                                                           \
                if (!(bits >> j & 1)) *at = -INFINITY;                                                                 \
                else if (!(*at <= largest)) largest = *at;                                                             \
            }                                                                                                          \
        }                                                                                                              \
        double sum = isinf(sink) ? 0 : exp(sink - (double)largest); /* in T it would be a long sum of one sign */      \
        for (int64_t t = 0; t < w->steps; t++) {                                                                       \
            const sat_tile *k = &w->s->k[sat_step_tile(w->step[t])];                                                   \
            for (int64_t j = k->first; j < k->first + k->count; j++) {                                                 \
                row[j] = row[j] == -(T)INFINITY ? 0 : exponential(row[j] - largest);                                   \
                sum += (double)row[j];                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        *largest_out = (double)largest;                                                                                \
        return sum;                                                                                                    \
    }

SOFTMAX(float, softmax_f32, expf, tanhf)
SOFTMAX(double, softmax_f64, exp, tanh)

static void divide_row(const strip *w, int64_t i, double sum) {
    const sat_problem *p = w->l->problem;
    void *row = rows_of(w, 3, &p->attention.o, w->h, w->q->first + i).data;
    double factor = sum == 0 ? 0 : 1 / sum;
    if (w->steps == 0) memset(row, 0, (size_t)p->attention.value_dim * sat_dtype_size(p->a_dtype));
    for (int64_t x = 0; w->steps && x < p->attention.value_dim; x++) {
        if (p->a_dtype == SAT_F32) ((float *)row)[x] *= (float)factor;
        else ((double *)row)[x] *= factor;
    }
}

static void run_strip(const strip *w) {
    const sat_problem *p = w->l->problem;
    const sat_attention *t = &p->attention;
    sat_matrix q = rows_of(w, 0, &t->q, w->h, w->q->first), o = rows_of(w, 3, &t->o, w->h, w->q->first);
    double sums[STRIP];
    sat_range keys;
    for (int64_t i = 0; i < w->steps;) {
        i = next_run(w, i, &keys);
        sat_matrix k = rows_of(w, 1, &t->k, w->kv, keys.begin), s = scores_from(w, keys.begin);
        sat_matrix k_transposed = {k.data, 1, k.row_stride};
        sat_blas_gemm(w->blas, p->a_dtype, w->q->count, keys.end - keys.begin, t->dim, p->alpha, &q, &k_transposed, 0,
                      &s);
    }
    for (int64_t i = 0; i < w->q->count; i++) {
        double largest;
        sums[i] = p->a_dtype == SAT_F32 ? softmax_f32(w, i, &largest) : softmax_f64(w, i, &largest);
        if (t->lse)
            ((float *)w->l->operands[4])[(w->b * t->heads + w->h) * p->m + w->q->first + i] =
                sums[i] == 0 ? -INFINITY : (float)(largest + log(sums[i]));
    }
    for (int64_t i = 0; i < w->steps;) {
        bool first = i == 0;
        i = next_run(w, i, &keys);
        sat_matrix v = rows_of(w, 2, &t->v, w->kv, keys.begin), s = scores_from(w, keys.begin);
        sat_blas_gemm(w->blas, p->a_dtype, w->q->count, t->value_dim, keys.end - keys.begin, 1, &s, &v, first ? 0 : 1,
                      &o);
    }
    for (int64_t i = 0; i < w->q->count; i++) divide_row(w, i, sums[i]);
}

static sat_status launch(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    const sat_attention_schedule *s = l->state;
    int64_t count = p->batch * t->heads * s->q_tiles;
    size_t each = (size_t)STRIP * (size_t)p->n * sat_dtype_size(p->a_dtype);
    int next = 0;
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
#pragma omp parallel num_threads(l->threads)
    {
        strip w = {.l = l, .blas = sat_blas_of(l->variant), .mask = sat_mask_of(p, l->pattern), .s = s};
        int mine;
#pragma omp atomic capture
        mine = next++;
        w.scores = (char *)l->workspace + (size_t)mine * each;
        int token = w.blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < count; i++) {
            w.b = i / s->q_tiles / t->heads, w.h = i / s->q_tiles % t->heads, w.kv = w.h / (t->heads / t->kv_heads);
            int64_t place = (s->masks > 1 ? w.h : 0) * s->q_tiles + i % s->q_tiles;
            w.q = &s->q[i % s->q_tiles], w.step = s->by_query.step + s->by_query.start[place];
            w.steps = s->by_query.start[place + 1] - s->by_query.start[place];
            run_strip(&w);
        }
        w.blas->leave(token);
    }
    return SAT_OK;
}

#define PASSES(library_version, words)                                                                                 \
    {                                                                                                                  \
        .version = library_version, .op = SAT_ATTENTION, .backend = SAT_CPU,                                           \
        .flags = SAT_V_LIBRARY | SAT_V_SCRATCH | SAT_V_BATCHED, .about = words, .supports = supports,                  \
        .estimate = estimate, .workspace = workspace, .prepare = prepare, .launch = launch, .release = release         \
    }

SAT_FAMILY(cpu_attention_openblas_passes) =
    PASSES(sat_openblas_version, "OpenBLAS, softmax between two products, 128 queries at a time; f32, f64");
SAT_FAMILY(cpu_attention_mkl_passes) = PASSES(sat_mkl_blas_version,
                                              "MKL, softmax between two products, 128 queries at a time; f32, f64");
