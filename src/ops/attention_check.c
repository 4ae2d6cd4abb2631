/* Checks attention on the host: lines of the outputs in double precision, see attention_check.h. */
#include "ops/attention_check.h"

#include <stdlib.h>

#include "ops/attention_probe.h"

enum { SETS = 4 };

typedef struct expectation {
    sat_attention_probe probe;
    uint64_t seed;
    int sets;
    sat_lines set[SETS];
    double memory[];
} expectation;

/* ---- the expectation's size ---- */

static int64_t step_of(const sat_problem *p, const sat_pattern_view *a, int fill_case) {
    double work = sat_attention_flops(p, a) * (p->op == SAT_ATTENTION ? 0.5 : 0.7);
    int64_t step = 1;
    while (step < SAT_LINE_STEP && work / (double)step > (fill_case ? SAT_WORK / 8 : SAT_WORK)) step *= 2;
    return step;
}

static int describe(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_lines set[SETS]) {
    const sat_attention *t = &p->attention;
    int64_t step = step_of(p, a, fill_case);
    sat_lines queries = {.heads = t->heads, .rows = p->m, .cols = t->dim, .step = step};
    sat_lines keys = {.heads = t->kv_heads, .rows = p->n, .cols = t->dim, .step = step};
    queries.groups = sat_line_groups(p->m, step), keys.groups = sat_line_groups(p->n, step);
    set[0] = queries;
    if (p->op == SAT_ATTENTION) {
        set[0].operand = 3, set[0].cols = t->value_dim;
        set[1] = queries, set[1].operand = 4, set[1].cols = 1;
        return t->lse ? 2 : 1;
    }
    set[0].operand = 6;
    set[1] = keys, set[1].operand = 7;
    set[2] = keys, set[2].operand = 8, set[2].cols = t->value_dim;
    set[3] = (sat_lines){.operand = 10, .heads = t->heads, .rows = 1, .cols = 1, .step = 1, .groups = 1};
    return t->sinks ? 4 : 3;
}

static int64_t line_count(const sat_problem *p, const sat_lines *s) { return p->batch * s->heads * s->groups; }

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    if (probe == SAT_PROBE_STRUCTURE) return sat_uniform_bytes(p, a);
    sat_lines set[SETS];
    int sets = describe(p, a, 0, set);
    double all = (double)(p->m + p->n) * (double)(p->attention.dim + p->attention.value_dim + 2);
    for (int i = 0; i < sets; i++) all += (double)line_count(p, &set[i]) * (double)(set[i].cols + 3);
    return (size_t)(8 * all) + 4096;
}

static expectation *allocate(const sat_problem *p, const sat_pattern_view *a, int fill_case, uint64_t seed) {
    sat_lines set[SETS];
    int sets = describe(p, a, fill_case, set);
    int64_t doubles = 0;
    for (int i = 0; i < sets; i++) doubles += line_count(p, &set[i]) * (set[i].cols + 3);
    expectation *e = calloc(1, sizeof *e + (size_t)doubles * sizeof(double));
    if (!e) return NULL;
    e->seed = seed, e->sets = sets;
    double *at = e->memory;
    for (int i = 0; i < sets; i++) {
        int64_t lines = line_count(p, &set[i]);
        e->set[i] = set[i];
        e->set[i].value = at, at += lines * set[i].cols;
        e->set[i].wide = at, e->set[i].rel = at + lines, e->set[i].scale = at + 2 * lines, at += 3 * lines;
    }
    return e;
}

/* ---- one head's operands in double precision ---- */

typedef struct rows {
    double *value, *norm; /* [count][dim], [count] */
    int64_t dim;
    double largest, largest_norm;
} rows;

static void load_rows(rows *r, const sat_trial *t, int operand, const sat_heads *s, int64_t b, int64_t h,
                      int64_t count) {
    int64_t dim = r->dim;
    double largest = 0, norm = 0;
#pragma omp parallel for num_threads(t->device->threads) schedule(static) reduction(max : largest, norm)
    for (int64_t i = 0; i < count; i++) {
        double *row = r->value + i * dim;
        sat_load_row(row, t->problem->a_dtype, t->operands[operand], sat_heads_at(s, b, h, i), 1, dim);
        for (int64_t x = 0; x < dim; x++) largest = fmax(largest, fabs(row[x]));
        r->norm[i] = sqrt(sat_dot(row, row, dim));
        norm = fmax(norm, r->norm[i]);
    }
    r->largest = largest, r->largest_norm = norm;
}

/* What lines of one head, and of the keys it reads, are worked out from. */
typedef struct head {
    const sat_trial *t;
    expectation *e;
    bool far;  /* scores are far apart, and exact */
    bool lone; /* and the largest alone counts */
    sat_mask mask;
    int64_t b, h, kv;
    double sink;                /* of head h; -inf: none */
    rows k, v, q, d;            /* d: dO; q and d only where lines of keys are worked out */
    double *delta, *delta_loss; /* dO*O of each query, and what it may be off by */
} head;

static const float *lse_of(const head *w) {
    return (const float *)w->t->operands[4] + (w->b * w->t->problem->attention.heads + w->h) * w->t->problem->m;
}

/* Calls for every run of keys that query i keeps. */
typedef void (*run_fn)(void *user, int64_t begin, int64_t end);

static void each_run(const sat_mask *k, int64_t h, int64_t i, run_fn run, void *user) {
    sat_range r = sat_keys_of(k, i);
    if (r.end <= r.begin) return;
    if (k->full) {
        run(user, r.begin, r.end);
        return;
    }
    int64_t row = sat_mask_row(k, h, i);
    for (int64_t t = sat_mask_find(k, row, r.begin / k->block_cols); t < k->row_ptr[row + 1]; t++) {
        int64_t from = k->col_idx[t] * k->block_cols;
        if (from >= r.end) break;
        run(user, sat_max(from, r.begin), sat_min(from + k->block_cols, r.end));
    }
}

/* ---- a line of O and LSE ---- */

typedef struct forward_line {
    const head *w;
    const double *q;
    double *score; /* of each key that is kept, then its weight */
    double *sum;
    double largest, total, squares;
    int64_t count;
    bool weigh; /* the second time: scores become weights */
} forward_line;

static void forward_run(void *user, int64_t begin, int64_t end) {
    forward_line *f = user;
    int64_t dim = f->w->k.dim, value_dim = f->w->v.dim;
    for (int64_t j = begin; j < end; j++) {
        if (!f->weigh) {
            const sat_problem *p = f->w->t->problem;
            double s = sat_capped(p, p->alpha * sat_dot(f->q, f->w->k.value + j * dim, dim));
            f->score[f->count++] = s, f->largest = fmax(f->largest, s);
            continue;
        }
        double weight = exp(f->score[f->count++] - f->largest);
        f->total += weight, f->squares += weight * weight;
        sat_axpy(f->sum, f->w->v.value + j * value_dim, weight, value_dim);
    }
}

/* work: the query, and a score for each key. */
static void forward_row(const head *w, int64_t line, int64_t i, double *work) {
    const sat_problem *p = w->t->problem;
    int64_t dim = p->attention.dim, value_dim = p->attention.value_dim;
    sat_lines *o = &w->e->set[0], *lse = w->e->sets > 1 ? &w->e->set[1] : NULL;
    forward_line f = {.w = w, .q = work, .score = work + dim, .sum = o->value + line * value_dim, .largest = w->sink};
    sat_load_row(work, p->a_dtype, w->t->operands[0], sat_heads_at(&p->attention.q, w->b, w->h, i), 1, dim);
    each_run(&w->mask, w->h, i, forward_run, &f);
    double depth = (double)f.count, total = 1;
    double magnitude = fabs(p->alpha) * sqrt(sat_dot(f.q, f.q, dim)) * w->k.largest_norm;
    bool sink = !isinf(w->sink);
    f.count = 0, f.weigh = true, f.total = sink ? exp(w->sink - f.largest) : 0;
    if (depth > 0) each_run(&w->mask, w->h, i, forward_run, &f), total = f.total;
    for (int64_t x = 0; x < value_dim; x++) f.sum[x] /= total;
    sat_row_loss loss = sat_loss_of(p, w->far, magnitude, sink ? fabs(w->sink) : 0, depth + sink);
    o->wide[line] = sat_walk_bound(p, loss, sqrt(f.squares) / total * w->v.largest, depth, w->v.largest);
    o->rel[line] = sat_rel_bound(p, loss), o->scale[line] = w->v.largest;
    if (w->lone) o->wide[line] = sat_far_bound(p, f.largest, total, w->v.largest);
    if (w->lone) o->rel[line] = 1.001 * sat_unit(p->c_dtype) + sat_low_unit(p);
    if (depth == 0) o->wide[line] = 0;
    if (!lse) return;
    double log_sum = depth > 0 || sink ? f.largest + log(total) : -INFINITY;
    lse->value[line] = log_sum, lse->scale[line] = 1 + fabs(log_sum), lse->rel[line] = 0;
    lse->wide[line] = loss.weight + loss.sum + 0x1p-23 * (1 + fabs(log_sum));
    if (w->lone) lse->wide[line] = sat_far_lse_bound(p, f.largest, total);
    if (depth == 0) lse->wide[line] = sink ? 0x1p-22 * (1 + fabs(log_sum)) : 0;
}

/* ---- lines of the gradients ---- */

/* One pair: its weight, and dS/alpha, and what either may be off by; size: of what dS is the difference of. */
typedef struct pair {
    double weight, ds, weight_error, ds_error, size;
} pair;

static pair pair_of(const head *w, const double *q, const double *d, double q_norm, double d_norm, int64_t i,
                    int64_t j) {
    const sat_problem *p = w->t->problem;
    double magnitude = fabs(p->alpha) * q_norm * w->k.norm[j], lse = lse_of(w)[i], delta = w->delta[i];
    double eps = sat_loss_of(p, w->far, magnitude, fabs(lse), 0).weight;
    double s = p->alpha * sat_dot(q, w->k.value + j * w->k.dim, w->k.dim), slope = sat_cap_slope(p, s);
    pair x = {.weight = exp(sat_capped(p, s) - lse)};
    double dp = sat_dot(d, w->v.value + j * w->v.dim, w->v.dim);
    x.ds = x.weight * (dp - delta) * slope, x.size = x.weight * (fabs(dp) + fabs(delta));
    x.weight_error = x.weight * eps + sat_lost_weight(w->far);
    /* weights and dS may each be rounded to 16 bits */
    double dp_error = d_norm * sat_value_loss(p) * w->v.norm[j] + w->delta_loss[i];
    x.ds_error = fabs(x.ds) * 2 * eps + x.weight * dp_error + sat_lost_weight(w->far) * fabs(dp - delta);
    x.ds_error += x.weight * fabs(dp - delta) * sat_slope_loss(p, w->far, magnitude);
    return x;
}

typedef struct gradient_line {
    const head *w;
    const double *q, *d;
    double q_norm, d_norm;
    int64_t i;
    double *sum;
    double squares, errors, sizes, weights, depth;
} gradient_line;

static void query_run(void *user, int64_t begin, int64_t end) {
    gradient_line *g = user;
    int64_t dim = g->w->t->problem->attention.dim;
    for (int64_t j = begin; j < end; j++) {
        pair x = pair_of(g->w, g->q, g->d, g->q_norm, g->d_norm, g->i, j);
        sat_axpy(g->sum, g->w->k.value + j * dim, x.ds, dim);
        g->squares += x.ds * x.ds, g->errors += x.ds_error * x.ds_error, g->weights += x.weight;
        g->sizes += x.size * x.size, g->depth += sat_counts(g->w->lone, x.weight);
    }
}

/* A gradient's bounds, from the random walks of its terms and of their errors. */
static void bound_gradient(const sat_problem *p, bool far, sat_lines *s, int64_t line, double alpha, double squares,
                           double errors, double sizes, double depth, double largest, double magnitude) {
    sat_row_loss loss = sat_loss_of(p, far, magnitude, 0, depth);
    double wide = SAT_SURE * largest * (sqrt(errors) + loss.sum * sqrt(squares) + sqrt(depth) * sat_tiny(p->a_dtype));
    s->wide[line] = depth > 0 ? fabs(alpha) * wide + sat_tiny(p->c_dtype) : 0;
    s->rel[line] = sat_rel_bound(p, loss) + loss.weight;
    s->scale[line] = fabs(alpha) * sqrt(sizes) * largest;
    for (int64_t x = 0; x < s->cols; x++) s->value[line * s->cols + x] *= alpha;
}

static void query_row(const head *w, int64_t line, int64_t i) {
    const sat_problem *p = w->t->problem;
    int64_t dim = p->attention.dim;
    sat_lines *s = &w->e->set[0];
    gradient_line g = {.w = w,
                       .q = w->q.value + i * dim,
                       .d = w->d.value + i * w->d.dim,
                       .q_norm = w->q.norm[i],
                       .d_norm = w->d.norm[i],
                       .i = i,
                       .sum = s->value + line * dim};
    each_run(&w->mask, w->h, i, query_run, &g);
    bound_gradient(p, w->far, s, line, p->alpha, g.squares, g.errors, g.sizes, g.depth, w->k.largest,
                   fabs(p->alpha) * g.q_norm * w->k.largest_norm);
    /* dO*O is one number for the whole row: what it is off by is no random walk */
    s->wide[line] += fabs(p->alpha) * w->delta_loss[i] * g.weights * w->k.largest;
}

/* What one head gives to its sink's gradient. Until all items of the batch are added up, the bounds hold sums: of the
 * errors' squares, of the errors, and of the terms' squares. */
static void add_sink(const head *w) {
    const sat_problem *p = w->t->problem;
    const sat_lines *s = &w->e->set[3];
    for (int64_t i = 0; i < p->m && !isinf(w->sink); i++) {
        double lse = lse_of(w)[i], weight = exp(w->sink - lse), term = weight * w->delta[i];
        double error = sat_sink_loss(p, w->sink, lse, weight, w->delta[i], w->delta_loss[i]);
        s->value[w->h] -= term, s->scale[w->h] += term * term;
        s->wide[w->h] += error * error, s->rel[w->h] += error;
    }
}

static void bound_sinks(const sat_problem *p, const sat_lines *s) {
    for (int64_t h = 0; h < s->heads; h++) {
        double squares = s->scale[h], wide = sat_sink_bound(p, s->wide[h], s->rel[h], squares);
        s->wide[h] = wide, s->rel[h] = 0x1p-23, s->scale[h] = sqrt(squares);
        for (int64_t b = 1; b < p->batch; b++) { /* one output for the batch */
            int64_t line = b * s->heads + h;
            s->value[line] = s->value[h], s->wide[line] = wide, s->rel[line] = s->rel[h], s->scale[line] = s->scale[h];
        }
    }
}

/* Adds what one head gives to the lines of key j. */
typedef struct key_sums {
    double dk_squares, dk_errors, dk_sizes, dv_squares, dv_errors, depth;
} key_sums;

static void add_query(const head *w, int64_t i, int64_t j, int64_t line, key_sums *k) {
    int64_t dim = w->q.dim, value_dim = w->d.dim;
    const double *q = w->q.value + i * dim, *d = w->d.value + i * value_dim;
    pair x = pair_of(w, q, d, w->q.norm[i], w->d.norm[i], i, j);
    sat_axpy(w->e->set[1].value + line * dim, q, x.ds, dim);
    sat_axpy(w->e->set[2].value + line * value_dim, d, x.weight, value_dim);
    k->dk_squares += x.ds * x.ds, k->dk_errors += x.ds_error * x.ds_error, k->dk_sizes += x.size * x.size;
    k->dv_squares += x.weight * x.weight, k->dv_errors += x.weight_error * x.weight_error;
    k->depth += sat_counts(w->lone, x.weight);
}

static void key_row(const head *w, int64_t line, int64_t j, key_sums *k) {
    sat_range r = sat_queries_of(&w->mask, j);
    for (int64_t i = r.begin; i < r.end;) {
        int64_t end = sat_min(r.end, (i / w->mask.block_rows + 1) * w->mask.block_rows); /* they share a block */
        if (sat_mask_stores(&w->mask, w->h, i, j))
            for (int64_t at = i; at < end; at++) add_query(w, at, j, line, k);
        i = end;
    }
}

/* ---- heads ---- */

static bool forward_head(const head *w) {
    const sat_problem *p = w->t->problem;
    int64_t groups = w->e->set[0].groups, first = (w->b * p->attention.heads + w->h) * groups;
    bool ok = true;
#pragma omp parallel num_threads(w->t->device->threads)
    {
        double *work = malloc((size_t)(p->attention.dim + p->n + 1) * sizeof *work);
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t g = first; g < first + groups; g++)
            if (work) forward_row(w, g, sat_line_row(&w->e->set[0], w->e->seed, g), work);
        if (!work) {
#pragma omp atomic write
            ok = false;
        }
        free(work);
    }
    return ok;
}

static void load_queries(head *w) {
    const sat_problem *p = w->t->problem;
    const sat_attention *t = &p->attention;
    load_rows(&w->q, w->t, 0, &t->q, w->b, w->h, p->m);
    load_rows(&w->d, w->t, 3, &t->o, w->b, w->h, p->m);
#pragma omp parallel for num_threads(w->t->device->threads) schedule(static)
    for (int64_t i = 0; i < p->m; i++) {
        double sum = 0;
        for (int64_t x = 0; x < t->value_dim; x++)
            sum += w->d.value[i * t->value_dim + x] *
                   sat_load(p->a_dtype, w->t->operands[5], sat_heads_at(&t->do_, w->b, w->h, i) + x);
        w->delta[i] = sum, w->delta_loss[i] = w->d.norm[i]; // O's, for now
    }
    load_rows(&w->d, w->t, 5, &t->do_, w->b, w->h, p->m);
    for (int64_t i = 0; i < p->m; i++)
        w->delta_loss[i] = sat_delta_loss(p, w->d.norm[i], w->delta_loss[i], w->v.largest_norm);
}

/* All heads that read the keys of one, since they share dK and dV. */
static void backward_keys(head *w, key_sums *sums) {
    const sat_problem *p = w->t->problem;
    const sat_attention *t = &p->attention;
    expectation *e = w->e;
    int64_t share = t->heads / t->kv_heads, groups = e->set[0].groups, key_groups = e->set[1].groups;
    int64_t first_key = (w->b * t->kv_heads + w->kv) * key_groups;
    double q_largest = 0, d_largest = 0, q_norm = 0;
    memset(sums, 0, (size_t)key_groups * sizeof *sums);
    for (w->h = w->kv * share; w->h < (w->kv + 1) * share; w->h++) {
        load_queries(w);
        w->sink = sat_sink_of(p, w->t->operands, w->h);
        if (t->sinks) add_sink(w);
        q_largest = fmax(q_largest, w->q.largest), d_largest = fmax(d_largest, w->d.largest);
        q_norm = fmax(q_norm, w->q.largest_norm);
        int64_t first = (w->b * t->heads + w->h) * groups;
#pragma omp parallel num_threads(w->t->device->threads)
        {
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t g = first; g < first + groups; g++) query_row(w, g, sat_line_row(&e->set[0], e->seed, g));
#pragma omp for schedule(dynamic, 1)
            for (int64_t g = 0; g < key_groups; g++)
                key_row(w, first_key + g, sat_line_row(&e->set[1], e->seed, first_key + g), &sums[g]);
        }
    }
    for (int64_t g = 0; g < key_groups; g++) {
        double magnitude = fabs(p->alpha) * q_norm * w->k.largest_norm;
        const key_sums *k = &sums[g];
        bound_gradient(p, w->far, &e->set[1], first_key + g, p->alpha, k->dk_squares, k->dk_errors, k->dk_sizes,
                       k->depth, q_largest, magnitude);
        bound_gradient(p, w->far, &e->set[2], first_key + g, 1, k->dv_squares, k->dv_errors, k->dv_squares, k->depth,
                       d_largest, magnitude);
    }
}

static bool expect_heads(const sat_trial *t, expectation *e) {
    const sat_problem *p = t->problem;
    const sat_attention *s = &p->attention;
    bool back = p->op == SAT_ATTENTION_BACKWARD;
    int64_t queries = back ? p->m : 0, each = s->dim + s->value_dim + 2, key_groups = back ? e->set[1].groups : 0;
    double *memory = malloc((size_t)(each * (p->n + queries) + 2 * queries + 1) * sizeof *memory);
    key_sums *sums = malloc((size_t)(key_groups + 1) * sizeof *sums);
    bool ok = memory && sums;
    head w = {.t = t, .e = e, .far = t->fill_case == SAT_FILL_FAR};
    w.lone = w.far && s->softcap == 0;
    w.k.dim = w.q.dim = s->dim, w.v.dim = w.d.dim = s->value_dim;
    w.k.value = memory, w.v.value = memory + p->n * s->dim, w.k.norm = w.v.value + p->n * s->value_dim;
    w.v.norm = w.k.norm + p->n, w.q.value = w.v.norm + p->n, w.d.value = w.q.value + queries * s->dim;
    w.q.norm = w.d.value + queries * s->value_dim, w.d.norm = w.q.norm + queries, w.delta = w.d.norm + queries;
    w.delta_loss = w.delta + queries;
    for (w.b = 0; ok && w.b < p->batch; w.b++) {
        w.mask = sat_mask_of_item(p, t->pattern, w.b);
        for (w.kv = 0; ok && w.kv < s->kv_heads; w.kv++) {
            load_rows(&w.k, t, 1, &s->k, w.b, w.kv, p->n);
            load_rows(&w.v, t, 2, &s->v, w.b, w.kv, p->n);
            if (!back) e->set[0].most = fmax(e->set[0].most, w.v.largest);
            if (back) backward_keys(&w, sums);
            int64_t share = s->heads / s->kv_heads;
            for (w.h = w.kv * share; ok && !back && w.h < (w.kv + 1) * share; w.h++) {
                w.sink = sat_sink_of(p, t->operands, w.h);
                ok = forward_head(&w);
            }
        }
    }
    if (back && s->sinks) bound_sinks(p, &e->set[3]);
    if (!back) e->set[0].most *= 1 + 0x1p-4; /* whatever P was rounded to */
    free(memory), free(sums);
    return ok;
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    if (probe == SAT_PROBE_STRUCTURE) return sat_uniform_expect(t, out);
    expectation *e = allocate(t->problem, t->pattern, t->fill_case, seed);
    if (!e || !expect_heads(t, e)) {
        free(e);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: expectation of %lld x %lld scores", (long long)t->problem->m,
                        (long long)t->problem->n);
    }
    *out = e;
    return SAT_OK;
}

/* ---- comparing ---- */

static void compare_line(const sat_trial *t, const sat_lines *s, const sat_operand *o, int64_t g, int64_t i,
                         sat_finding *f) {
    int64_t bh = g / s->groups, b = bh / s->heads, h = bh % s->heads;
    for (int64_t x = 0; x < s->cols; x++) {
        double got = sat_load(o->dtype, t->operands[s->operand], sat_operand_at(o, b, h * s->rows + i, x));
        double want = s->value[g * s->cols + x];
        if (isinf(want) && got == want) continue;
        double bound = s->wide[g] + s->rel[g] * fabs(want);
        if (sat_judge(f, got, want, bound, s->scale[g]) || !f->ok) continue;
        f->ok = false;
        snprintf(f->where, sizeof f->where,
                 "%s: item %lld, head %lld, row %lld, element %lld: off by %.3g where rounding allows %.3g", o->name,
                 (long long)b, (long long)h, (long long)i, (long long)x, fabs(got - want), bound);
    }
}

/* Every element of a group's rows: something was written there, and it is no nonsense. */
static void scan_lines(const sat_trial *t, const sat_lines *s, const sat_operand *o, int64_t g, sat_finding *f) {
    int64_t bh = g / s->groups, b = bh / s->heads, h = bh % s->heads, first = g % s->groups * s->step;
    for (int64_t i = first; i < sat_min(first + s->step, s->rows) && f->ok; i++)
        for (int64_t x = 0; x < s->cols && f->ok; x++) {
            double got = sat_load(o->dtype, t->operands[s->operand], sat_operand_at(o, b, h * s->rows + i, x));
            if (!isnan(got) && (s->most == 0 || fabs(got) <= s->most)) continue;
            f->ok = false;
            snprintf(f->where, sizeof f->where, "%s: item %lld, head %lld, row %lld, element %lld is %g", o->name,
                     (long long)b, (long long)h, (long long)i, (long long)x, got);
        }
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = expectation_;
    if (e->probe.uniform) return sat_uniform_compare(t, e, finding);
    sat_operand o[SAT_MAX_OPERANDS];
    sat_op_find(t->problem->op)->operands(t->problem, t->pattern, o);
    *finding = (sat_finding){.ok = true};
    for (int k = 0; k < e->sets; k++) {
        const sat_lines *s = &e->set[k];
        int64_t lines = line_count(t->problem, s);
#pragma omp parallel num_threads(t->device->threads)
        {
            sat_finding mine = {.ok = true};
#pragma omp for schedule(dynamic, 16) nowait
            for (int64_t g = 0; g < lines; g++) {
                compare_line(t, s, &o[s->operand], g, sat_line_row(s, e->seed, g), &mine);
                if (mine.ok && (s->step > 1 || s->most > 0)) scan_lines(t, s, &o[s->operand], g, &mine);
            }
#pragma omp critical(sat_attention_check)
            sat_finding_add(finding, &mine);
        }
    }
    return SAT_OK;
}

static void free_expectation(void *e) { free(e); }

const sat_checker sat_attention_check = {
    .bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation};
const sat_checker sat_attention_backward_check = {
    .bytes = bytes, .expect = expect, .compare = compare, .free = free_expectation};
