/* The tiled attention's vector code. A family defines before it includes this:
 *   V, LANES, VLOAD(p), VSTORE(p, v), VSET(x), VZERO(), VFMA(a, b, c), VADD, VSUB, VMUL, VMAX(a, b): b where either is
 * NaN VKEEP(v, bits, other)  lanes of v whose bit is set, else those of other VEXP2_SPLIT(x, n, f)   x as a whole
 * number n and a rest f of at most 1/2 VEXP2_JOIN(p, n)       p * 2^n, 0 where that is below every normal number
 *   COLUMNS                of the products' register tile: COLUMNS x 2 vectors; a divisor of 8 */

enum { PANEL = 2 * LANES };
#define INLINE static inline __attribute__((always_inline))

/* 2^x, good to two units in the last place. */
INLINE V exp2_of(V x) {
    V n, f;
    VEXP2_SPLIT(VMAX(VSET(-200.0f), x), n, f);
    V p = VFMA(VSET(0.00015461445f), f, VSET(0.0013400428f));
    p = VFMA(p, f, VSET(0.0096180567f));
    p = VFMA(p, f, VSET(0.055503272f));
    p = VFMA(p, f, VSET(0.24022651f));
    p = VFMA(p, f, VSET(0.69314721f));
    p = VFMA(p, f, VSET(1.0f));
    return VEXP2_JOIN(p, n);
}

/* ---- products ---- */

/* out[c][PANEL] for COLUMNS columns from `b` on: sums over k of b[c*cs + k*ks] * a[k][PANEL]. `vectors` of a panel. */
INLINE void product_tile(const float *b, int64_t cs, int64_t ks, int64_t depth, const float *a, float *out,
                         const V *keep, const int vectors) {
    V sum[COLUMNS][2];
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) sum[c][v] = VZERO();
    for (int64_t k = 0; k < depth; k++) {
        V x[2];
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) x[v] = VLOAD(a + k * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int c = 0; c < COLUMNS; c++) {
            V y = VSET(b[c * cs + k * ks]);
#pragma GCC unroll 2
            for (int v = 0; v < vectors; v++) sum[c][v] = VFMA(y, x[v], sum[c][v]);
        }
    }
#pragma GCC unroll 8
    for (int c = 0; c < COLUMNS; c++)
#pragma GCC unroll 2
        for (int v = 0; v < vectors; v++) {
            float *to = out + c * PANEL + v * LANES;
            VSTORE(to, keep ? VFMA(VLOAD(to), keep[v], sum[c][v]) : sum[c][v]);
        }
}

/* keep: what out is multiplied by before the sums are added to it, lane by lane; NULL: it is written over. Each tile
 * has sums of its own, since one long f32 sum would lose digits. `columns` is a multiple of COLUMNS. */
INLINE void product_of(const float *b, int64_t cs, int64_t ks, int64_t columns, int64_t depth, const float *a,
                       float *out, const V *keep, const int vectors) {
    for (int64_t c = 0; c < columns; c += COLUMNS)
        product_tile(b + c * cs, cs, ks, depth, a, out + c * PANEL, keep, vectors);
}

/* Rows of a tile times the panel: one sum over dim for each row. */
static void product_rows(attention_plain t, int64_t count, int64_t dim, const float *panel, float *out, int vectors) {
    int64_t columns = (count + 7) / 8 * 8;
    if (vectors == 1) product_of(t.data, t.stride, 1, columns, dim, panel, out, NULL, 1);
    else product_of(t.data, t.stride, 1, columns, dim, panel, out, NULL, 2);
}

/* Adds the rows of a tile, each times its own row of weights: one sum over the rows for each element of dim. */
static void product_sum(attention_plain t, int64_t count, int64_t dim, const float *weights, float *out, const V *keep,
                        int vectors) {
    if (vectors == 1) product_of(t.data, 1, t.stride, dim, count, weights, out, keep, 1);
    else product_of(t.data, 1, t.stride, dim, count, weights, out, keep, 2);
}

/* ---- a task ---- */

typedef struct task {
    const sat_launch *l;
    const sat_problem *p;
    const sat_attention *t;
    const sat_schedule *s;
    sat_mask mask;
    attention_scratch w;
    int64_t b, h, kv;
    uint64_t bits[ATTENTION_TILE];
} task;

static int vectors_of(int64_t count, int64_t panel) { return count - panel * PANEL > LANES ? 2 : 1; }

static float *lse_of(const task *k, int64_t i) {
    return (float *)k->l->operands[4] + (k->b * k->t->heads + k->h) * k->p->m + i;
}

/* ---- forward ---- */

/* Scores become weights against the new maximum; row sums and maxima follow. keep: what older sums are rescaled by. */
INLINE void softmax(float *score, int64_t keys, float scale, const uint64_t *bits, int shift, float *top, float *total,
                    V *keep, int vectors) {
    for (int v = 0; v < vectors; v++) {
        V largest = VLOAD(top + v * LANES), before = largest, sum = VZERO(), factor = VSET(scale);
        float *at = score + v * LANES;
        for (int64_t j = 0; j < keys; j++) {
            V s = VMUL(VLOAD(at + j * PANEL), factor);
            if (bits) s = VKEEP(s, bits[j] >> (shift + v * LANES), VSET(-INFINITY));
            largest = VMAX(s, largest);
            VSTORE(at + j * PANEL, s);
        }
        V from = VMAX(VSET(-3e38f), largest); /* where nothing is kept yet, weights are to be 0 and not NaN */
        keep[v] = exp2_of(VSUB(before, from));
        for (int64_t j = 0; j < keys; j++) {
            V weight = exp2_of(VSUB(VLOAD(at + j * PANEL), from));
            sum = VADD(sum, weight);
            VSTORE(at + j * PANEL, weight);
        }
        VSTORE(top + v * LANES, largest);
        VSTORE(total + v * LANES, VFMA(VLOAD(total + v * LANES), keep[v], sum));
    }
}

/* What a tile of queries meets in a step: keys and values, and for each key which queries keep it; NULL: all. */
typedef struct met {
    attention_plain key, value;
    int64_t count;
    const uint64_t *bits;
} met;

static met meet(task *k, const sat_tile *q, int32_t step) {
    const sat_attention *t = k->t;
    const sat_tile *keys = &k->s->k[sat_step_tile(step)];
    met x = {.count = keys->count, .bits = sat_step_edge(step) ? k->bits : NULL};
    attention_rows rows = attention_rows_of(k->l, 1, &t->k, k->b, k->kv, keys->first);
    x.key = attention_widen(k->p->a_dtype, rows, keys->count, t->dim, k->w.wide[0]);
    rows = attention_rows_of(k->l, 2, &t->v, k->b, k->kv, keys->first);
    x.value = attention_widen(k->p->a_dtype, rows, keys->count, t->dim, k->w.wide[1]);
    if (x.bits) {
        attention_edge(&k->mask, k->h, q, keys, k->bits);
        attention_turn64(k->bits);
    }
    return x;
}

static void forward_step(task *k, const sat_tile *q, int32_t step) {
    int64_t dim = k->t->dim;
    float scale = (float)(k->p->alpha * ATTENTION_LOG2E);
    met x = meet(k, q, step);
    for (int64_t panel = 0; panel * PANEL < q->count; panel++) {
        int vectors = vectors_of(q->count, panel);
        int64_t at = panel * PANEL;
        V keep[2];
        product_rows(x.key, x.count, dim, k->w.panel[0] + at * dim, k->w.score[0], vectors);
        softmax(k->w.score[0], x.count, scale, x.bits, (int)at, k->w.row[0] + at, k->w.row[1] + at, keep, vectors);
        product_sum(x.value, x.count, dim, k->w.score[0], k->w.sum[0] + at * dim, keep, vectors);
    }
}

static void forward_tile(task *k, int64_t place) {
    const sat_attention *t = k->t;
    const sat_step_lists *lists = &k->s->by_query;
    const sat_tile *q = &k->s->q[place % k->s->q_tiles];
    float *top = k->w.row[0], *total = k->w.row[1], *factor = k->w.row[2];
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.panel[0]);
    memset(k->w.sum[0], 0, (size_t)(ATTENTION_TILE * t->dim) * sizeof(float));
    for (int i = 0; i < ATTENTION_TILE; i++) top[i] = -INFINITY, total[i] = 0;
    for (int64_t i = lists->start[place]; i < lists->start[place + 1]; i++) forward_step(k, q, lists->step[i]);
    for (int i = 0; i < ATTENTION_TILE; i++) factor[i] = total[i] == 0 ? 0 : 1 / total[i];
    rows = attention_rows_of(k->l, 3, &t->o, k->b, k->h, q->first);
    attention_unpack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.sum[0], factor);
    for (int64_t i = 0; t->lse && i < q->count; i++)
        *lse_of(k, q->first + i) =
            total[i] == 0 ? -INFINITY : (float)((double)top[i] * ATTENTION_LN2 + log((double)total[i]));
}

/* ---- backward ---- */

/* score: Q*K^T, dp: dO*V^T, a row of each for every row of the tile that passes by. score becomes the weights, dp
 * becomes dS/alpha. Numbers of a query (its LSE, its dO*O) are one a lane, or one a row: `lse` and `delta` step by
 * `lane` vectors or by one number. */
INLINE void gradient(float *score, float *dp, int64_t rows, float scale, const uint64_t *bits, int shift,
                     const float *lse, const float *delta, const bool lanes, int vectors) {
    for (int v = 0; v < vectors; v++)
        for (int64_t j = 0; j < rows; j++) {
            float *at = score + j * PANEL + v * LANES, *to = dp + j * PANEL + v * LANES;
            V minus = lanes ? VLOAD(lse + v * LANES) : VSET(lse[j]),
              d = lanes ? VLOAD(delta + v * LANES) : VSET(delta[j]);
            V weight = exp2_of(VSUB(VMUL(VLOAD(at), VSET(scale)), minus));
            if (bits) weight = VKEEP(weight, bits[j] >> (shift + v * LANES), VZERO());
            V ds = VMUL(weight, VSUB(VLOAD(to), d));
            if (bits) ds = VKEEP(ds, bits[j] >> (shift + v * LANES), VZERO());
            VSTORE(at, weight);
            VSTORE(to, ds);
        }
}

static void query_step(task *k, const sat_tile *q, int32_t step, const float *lse, const float *delta) {
    int64_t dim = k->t->dim;
    float scale = (float)(k->p->alpha * ATTENTION_LOG2E);
    met x = meet(k, q, step);
    const V keep[2] = {VSET(1.0f), VSET(1.0f)};
    for (int64_t at = 0; at < q->count; at += PANEL) {
        int vectors = vectors_of(q->count, at / PANEL);
        product_rows(x.key, x.count, dim, k->w.panel[0] + at * dim, k->w.score[0], vectors);
        product_rows(x.value, x.count, dim, k->w.panel[1] + at * dim, k->w.score[1], vectors);
        gradient(k->w.score[0], k->w.score[1], x.count, scale, x.bits, (int)at, lse + at, delta + at, true, vectors);
        product_sum(x.key, x.count, dim, k->w.score[1], k->w.sum[0] + at * dim, keep, vectors);
    }
}

/* dO*O of the rows of a tile. */
static void delta_of(const task *k, const sat_tile *q, float *delta) {
    const sat_attention *t = k->t;
    for (int64_t i = 0; i < q->count; i++) {
        int64_t o = sat_heads_at(&t->o, k->b, k->h, q->first + i), d = sat_heads_at(&t->do_, k->b, k->h, q->first + i);
        __m256 sum = _mm256_setzero_ps();
        for (int64_t x = 0; x < t->dim; x += 8)
            sum = _mm256_fmadd_ps(attention_load8(k->p->a_dtype, k->l->operands[3], o + x),
                                  attention_load8(k->p->a_dtype, k->l->operands[5], d + x), sum);
        float part[8], all = 0;
        _mm256_storeu_ps(part, sum);
        for (int x = 0; x < 8; x++) all += part[x];
        delta[i] = all;
    }
}

static void query_tile(task *k, int64_t place) {
    const sat_attention *t = k->t;
    const sat_step_lists *lists = &k->s->by_query;
    const sat_tile *q = &k->s->q[place % k->s->q_tiles];
    float *lse = k->w.row[0], *delta = k->w.row[1], *factor = k->w.row[2];
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.panel[0]);
    rows = attention_rows_of(k->l, 5, &t->do_, k->b, k->h, q->first);
    attention_pack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.panel[1]);
    memset(k->w.sum[0], 0, (size_t)(ATTENTION_TILE * t->dim) * sizeof(float));
    delta_of(k, q, delta);
    memcpy(attention_delta(k->l) + (k->b * t->heads + k->h) * k->p->m + q->first, delta,
           (size_t)q->count * sizeof *delta);
    for (int i = 0; i < ATTENTION_TILE; i++) {
        lse[i] = i < q->count ? (float)(*lse_of(k, q->first + i) * ATTENTION_LOG2E) : 0;
        if (i >= q->count) delta[i] = 0;
        factor[i] = (float)k->p->alpha;
    }
    for (int64_t i = lists->start[place]; i < lists->start[place + 1]; i++)
        query_step(k, q, lists->step[i], lse, delta);
    rows = attention_rows_of(k->l, 6, &t->dq, k->b, k->h, q->first);
    attention_unpack(k->p->a_dtype, rows, q->count, t->dim, PANEL, k->w.sum[0], factor);
}

static void key_step(task *k, const sat_tile *keys, int32_t step) {
    const sat_attention *t = k->t;
    const sat_tile *q = &k->s->q[sat_step_tile(step)];
    const uint64_t *bits = sat_step_edge(step) ? k->bits : NULL;
    float scale = (float)(k->p->alpha * ATTENTION_LOG2E), *lse = k->w.row[0];
    const float *delta = attention_delta(k->l) + (k->b * t->heads + k->h) * k->p->m + q->first;
    attention_rows rows = attention_rows_of(k->l, 0, &t->q, k->b, k->h, q->first);
    attention_plain query = attention_widen(k->p->a_dtype, rows, q->count, t->dim, k->w.wide[0]);
    rows = attention_rows_of(k->l, 5, &t->do_, k->b, k->h, q->first);
    attention_plain out = attention_widen(k->p->a_dtype, rows, q->count, t->dim, k->w.wide[1]);
    for (int64_t i = 0; i < q->count; i++) lse[i] = (float)(*lse_of(k, q->first + i) * ATTENTION_LOG2E);
    if (bits) attention_edge(&k->mask, k->h, q, keys, k->bits);
    const V keep[2] = {VSET(1.0f), VSET(1.0f)};
    for (int64_t at = 0; at < keys->count; at += PANEL) {
        int vectors = vectors_of(keys->count, at / PANEL);
        product_rows(query, q->count, t->dim, k->w.panel[0] + at * t->dim, k->w.score[0], vectors);
        product_rows(out, q->count, t->dim, k->w.panel[1] + at * t->dim, k->w.score[1], vectors);
        gradient(k->w.score[0], k->w.score[1], q->count, scale, bits, (int)at, lse, delta, false, vectors);
        product_sum(query, q->count, t->dim, k->w.score[1], k->w.sum[0] + at * t->dim, keep, vectors);
        product_sum(out, q->count, t->dim, k->w.score[0], k->w.sum[1] + at * t->dim, keep, vectors);
    }
}

static void key_tile(task *k, int64_t tile) {
    const sat_attention *t = k->t;
    const sat_step_lists *lists = &k->s->by_key;
    const sat_tile *keys = &k->s->k[tile];
    float factor[2][ATTENTION_TILE];
    attention_rows rows = attention_rows_of(k->l, 1, &t->k, k->b, k->kv, keys->first);
    attention_pack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.panel[0]);
    rows = attention_rows_of(k->l, 2, &t->v, k->b, k->kv, keys->first);
    attention_pack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.panel[1]);
    for (int i = 0; i < 2; i++) memset(k->w.sum[i], 0, (size_t)(ATTENTION_TILE * t->dim) * sizeof(float));
    int64_t share = t->heads / t->kv_heads;
    for (k->h = k->kv * share; k->h < (k->kv + 1) * share; k->h++) {
        int64_t place = (k->s->masks > 1 ? k->h : 0) * k->s->k_tiles + tile;
        for (int64_t i = lists->start[place]; i < lists->start[place + 1]; i++) key_step(k, keys, lists->step[i]);
    }
    for (int i = 0; i < ATTENTION_TILE; i++) factor[0][i] = (float)k->p->alpha, factor[1][i] = 1;
    rows = attention_rows_of(k->l, 7, &t->dk, k->b, k->kv, keys->first);
    attention_unpack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.sum[0], factor[0]);
    rows = attention_rows_of(k->l, 8, &t->dv, k->b, k->kv, keys->first);
    attention_unpack(k->p->a_dtype, rows, keys->count, t->dim, PANEL, k->w.sum[1], factor[1]);
}

/* ---- launches ---- */

static task task_of(const sat_launch *l) {
    return (task){.l = l,
                  .p = l->problem,
                  .t = &l->problem->attention,
                  .s = (const sat_schedule *)l->state,
                  .mask = sat_mask_of(l->problem, l->pattern),
                  .w = attention_scratch_of(l, omp_get_thread_num())};
}

/* Query tiles of all heads: one head after the other, so that its keys stay near, its longest tiles first. */
static void query_tasks(const sat_launch *l, void (*run)(task *k, int64_t place)) {
    const sat_schedule *s = (const sat_schedule *)l->state;
    const sat_attention *t = &l->problem->attention;
    int64_t each = s->q_tiles, share = t->heads / t->kv_heads, count = l->problem->batch * t->heads * each;
    task k = task_of(l);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        int64_t place = s->masks > 1 ? i % (t->heads * each) : i % each;
        k.b = i / each / t->heads, k.h = i / each % t->heads;
        place = s->by_query.order[place];
        if (s->masks > 1) k.h = place / each; /* sorted over all heads */
        k.kv = k.h / share;
        run(&k, place);
    }
}

static void key_tasks(const sat_launch *l) {
    const sat_schedule *s = (const sat_schedule *)l->state;
    const sat_attention *t = &l->problem->attention;
    int64_t count = l->problem->batch * t->kv_heads * s->k_tiles;
    task k = task_of(l);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        k.b = i / s->k_tiles / t->kv_heads, k.kv = i / s->k_tiles % t->kv_heads;
        key_tile(&k, s->masks > 1 ? i % s->k_tiles : s->by_key.order[i % s->k_tiles]);
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
    }
    return SAT_OK;
}

/* ---- families ---- */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)a;
    return (d->isa & ISA) != 0 && attention_fits(v, p);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v;
    return attention_estimate_at(p, a, d, rate_on(d));
}

#define TILED_FAMILY(operation, run, words)                                                                            \
    {                                                                                                                  \
        .revision = "1", .op = operation, .backend = SAT_CPU, .flags = SAT_V_BATCHED | SAT_V_SCRATCH, .about = words,  \
        .supports = supports, .estimate = estimate, .workspace = attention_workspace, .prepare = attention_prepare,    \
        .launch = run, .release = attention_release                                                                    \
    }
