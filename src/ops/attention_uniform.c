/* The uniform probe on the host, see attention_uniform.h: tables of sums once per fill, then every line of every output
 * per run. */
#include "ops/attention_uniform.h"

#include <stdlib.h>

#include "ops/attention_probe.h"

typedef struct expectation {
    sat_attention_probe probe;
    sat_uniform u;
    double memory[];
} expectation;

size_t sat_uniform_bytes(const sat_problem *p, const sat_pattern_view *a) {
    return sizeof(expectation) + (size_t)sat_uniform_room(p, a) * sizeof(double);
}

/* ---- tables ---- */

/* The sums of one cell, to the place of the next one. */
static void sum_cell(const sat_uniform *u, const sat_uniform_side *s, int64_t bh, int64_t cell) {
    double *to = s->table + (bh * (s->cells + 1) + cell + 1) * s->width;
    const int64_t dim = sat_uniform_dim(&u->p, s->of_queries);
    for (int64_t x = 0; x < dim; x += SAT_LANES) {
        sat_uniform_sum sum = {0};
        size_t bytes = (size_t)sat_min(SAT_LANES, dim - x) * sizeof(double);
        for (int64_t i = cell * s->cell; i < (cell + 1) * s->cell; i++)
            sat_uniform_add_row(u, s, bh / s->heads, bh % s->heads, i, x, 1, &sum);
        for (int v = 0; v < s->vectors; v++) memcpy(to + v * dim + x, sum.x[v], bytes);
        memcpy(to + s->vectors * dim, sum.square, sizeof sum.square);
    }
}

static void fill_table(const sat_trial *t, const sat_uniform *u, const sat_uniform_side *s) {
    int64_t heads = u->p.batch * s->heads;
#pragma omp parallel for num_threads(t->device->threads) schedule(static)
    for (int64_t at = 0; at < heads * s->cells; at++) sum_cell(u, s, at / s->cells, at % s->cells);
#pragma omp parallel for num_threads(t->device->threads) schedule(static)
    for (int64_t bh = 0; bh < heads; bh++) {
        double *table = s->table + bh * (s->cells + 1) * s->width;
        memset(table, 0, (size_t)s->width * sizeof *table);
        for (int64_t cell = 0; cell < s->cells; cell++)
            for (int64_t x = 0; x < s->width; x++) table[(cell + 1) * s->width + x] += table[cell * s->width + x];
    }
}

/* The probe as a batch item's masks make it. */
static sat_uniform of_item(const sat_uniform *u, const sat_pattern_view *a, int64_t b) {
    sat_uniform one = *u;
    one.mask = sat_mask_of_item(&u->p, a, b);
    one.first_row = b * sat_item_rows(a);
    return one;
}

/* ---- queries of the gradients ---- */

static sat_uniform_query make_query(const sat_uniform *all, const sat_pattern_view *a, int64_t at) {
    const sat_attention *t = &all->p.attention;
    const sat_uniform item = of_item(all, a, at / all->p.m / t->heads), *u = &item;
    int64_t bh = at / u->p.m, b = bh / t->heads, h = bh % t->heads, i = at % u->p.m, kv = h / (t->heads / t->kv_heads);
    int64_t kept = sat_uniform_count(&u->mask, h, i), first = sat_heads_at(&t->v, b, kv, 0);
    double s = 0, delta = 0, delta_size = 0, d_size = 0;
    for (int64_t x = 0; kept && x < t->value_dim; x += SAT_LANES) {
        double d[SAT_LANES], o[SAT_LANES], v[SAT_LANES];
        sat_uniform_load(d, u->p.a_dtype, u->d, sat_heads_at(&t->do_, b, h, i), x, t->value_dim);
        sat_uniform_load(o, u->p.a_dtype, u->o, sat_heads_at(&t->o, b, h, i), x, t->value_dim);
        sat_uniform_load(v, u->p.a_dtype, u->v, first, x, t->value_dim);
        for (int e = 0; e < SAT_LANES; e++) {
            s += d[e] * v[e], delta += d[e] * o[e];
            delta_size += fabs(d[e] * o[e]), d_size += fabs(d[e]);
        }
    }
    if (kept) s /= sat_load(u->p.a_dtype, u->v, first); /* v is +-1 */
    return sat_uniform_query_of(u, kept, (double)u->lse[at], s, delta, delta_size, d_size);
}

sat_status sat_uniform_expect(const sat_trial *t, void **out) {
    const sat_problem *p = t->problem;
    expectation *e = malloc(sat_uniform_bytes(p, t->pattern));
    if (!e) return sat_fail(SAT_OUT_OF_MEMORY, "check: sums over %lld x %lld scores", (long long)p->m, (long long)p->n);
    e->probe.uniform = true;
    e->u = sat_uniform_of(t, false);
    e->u.keys.table = e->memory;
    if (sat_uniform_backward(p)) {
        e->u.queries.table = e->memory + sat_uniform_doubles(p, &e->u.keys);
        e->u.query = (sat_uniform_query *)(e->u.queries.table + sat_uniform_doubles(p, &e->u.queries));
#pragma omp parallel for num_threads(t->device->threads) schedule(static)
        for (int64_t at = 0; at < sat_uniform_queries(p); at++) e->u.query[at] = make_query(&e->u, t->pattern, at);
        fill_table(t, &e->u, &e->u.queries);
    }
    fill_table(t, &e->u, &e->u.keys);
    *out = e;
    return SAT_OK;
}

/* ---- comparing ---- */

typedef struct output {
    const sat_uniform *u;
    void *const *operands;
    sat_finding *finding;
} output;

static void compare_one(const output *c, int operand, int64_t b, int64_t h, int64_t row, int64_t x, double got,
                        double want, double bound) {
    static const char *const names[] = {"q", "k", "v", "o", "lse", "do", "dq", "dk", "dv", "sinks", "dsinks"};
    sat_finding *f = c->finding;
    if ((isinf(want) && got == want) || sat_judge(f, got, want, bound, 0) || !f->ok) return;
    f->ok = false;
    snprintf(f->where, sizeof f->where,
             "%s: item %lld, head %lld, row %lld, element %lld is %.9g; with all weights equal it is %.9g to within "
             "%.2g",
             names[operand], (long long)b, (long long)h, (long long)row, (long long)x, got, want, bound);
}

/* The queries of one chunk, in columns x and on. */
static void compare_queries(const output *c, int64_t b, int64_t h, sat_range lines, int64_t x) {
    const sat_uniform *u = c->u;
    const sat_attention *t = &u->p.attention;
    const sat_heads *place = sat_uniform_backward(&u->p) ? &t->dq : &t->o;
    int operand = sat_uniform_backward(&u->p) ? 6 : 3;
    int64_t dim = sat_uniform_backward(&u->p) ? t->dim : t->value_dim, count = sat_min(SAT_LANES, dim - x);
    double sink = sat_sink_of(&u->p, c->operands, h);
    sat_range now = {0, 0};
    sat_uniform_sum sum = {0};
    for (int64_t i = lines.begin; i < lines.end && c->finding->ok; i++) {
        double got[SAT_LANES], bound, want;
        int64_t line = (b * t->heads + h) * u->p.m + i;
        sat_uniform_slide(u, &u->keys, b, h, i, &now, sat_keys_of(&u->mask, i), x, &sum);
        sat_uniform_load(got, u->p.c_dtype, c->operands[operand], sat_heads_at(place, b, h, i), x, dim);
        for (int e = 0; e < count; e++) {
            if (sat_uniform_backward(&u->p))
                want = sat_uniform_dq(u, &u->query[line], sum.x[0][e], sum.x[1][e], sum.count, &bound);
            else want = sat_uniform_o_with(u, sink, sum.x[0][e], sum.count, &bound);
            compare_one(c, operand, b, h, i, x + e, got[e], want, bound);
        }
        if (x > 0 || !t->lse) continue;
        want = sat_uniform_lse_with(&u->p, sink, sum.count, &bound);
        compare_one(c, 4, b, h, i, 0, (double)((const float *)c->operands[4])[line], want, bound);
    }
}

static void compare_keys(const output *c, int64_t b, int64_t kv, sat_range lines, int64_t x) {
    const sat_uniform *u = c->u;
    const sat_attention *t = &u->p.attention;
    int64_t share = t->heads / t->kv_heads;
    sat_uniform_sum all[SAT_CHUNK] = {0};
    for (int64_t h = kv * share; h < (kv + 1) * share; h++) {
        sat_range now = {0, 0};
        sat_uniform_sum sum = {0};
        for (int64_t j = lines.begin; j < lines.end; j++) {
            sat_uniform_slide(u, &u->queries, b, h, j, &now, sat_queries_of(&u->mask, j), x, &sum);
            sat_uniform_join(&all[j - lines.begin], &sum);
        }
    }
    for (int64_t j = lines.begin; j < lines.end && c->finding->ok; j++) {
        const sat_uniform_sum *s = &all[j - lines.begin];
        double dk[SAT_LANES], dv[SAT_LANES], bound,
            of_key = sat_load(u->p.a_dtype, u->v, sat_heads_at(&t->v, b, kv, j));
        sat_uniform_load(dk, u->p.c_dtype, c->operands[7], sat_heads_at(&t->dk, b, kv, j), x, t->dim);
        sat_uniform_load(dv, u->p.c_dtype, c->operands[8], sat_heads_at(&t->dv, b, kv, j), x, t->value_dim);
        for (int e = 0; e < SAT_LANES; e++) {
            double want = sat_uniform_dk(u, of_key, s->x[1][e], s->x[2][e], s->square[1], s->count, &bound);
            if (x + e < t->dim) compare_one(c, 7, b, kv, j, x + e, dk[e], want, bound);
            want = sat_uniform_dv(u, s->x[0][e], s->square[0], s->count, &bound);
            if (x + e < t->value_dim) compare_one(c, 8, b, kv, j, x + e, dv[e], want, bound);
        }
    }
}

/* The gradient of one head's sink. */
static void compare_sink(const output *c, int64_t h) {
    const sat_uniform *u = c->u;
    const sat_attention *t = &u->p.attention;
    double sink = sat_sink_of(&u->p, c->operands, h), sum = 0, squares = 0, errors = 0, error_squares = 0;
    for (int64_t b = 0; b < u->p.batch && !isinf(sink); b++)
        for (int64_t i = 0; i < u->p.m; i++) {
            int64_t at = (b * t->heads + h) * u->p.m + i;
            const sat_uniform_query *q = &u->query[at];
            double lse = (double)u->lse[at], weight = exp(sink - lse), term = weight * q->delta;
            double error = sat_sink_loss(&u->p, sink, lse, weight, q->delta, q->delta_off);
            sum -= term, squares += term * term, errors += error, error_squares += error * error;
        }
    double bound = sat_sink_bound(&u->p, error_squares, errors, squares) + 0x1p-23 * fabs(sum);
    compare_one(c, 10, 0, h, 0, 0, (double)((const float *)c->operands[10])[h], sum, bound);
}

sat_status sat_uniform_compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *x = expectation_;
    const sat_problem *p = t->problem;
    const sat_attention *s = &p->attention;
    int64_t of_queries = sat_uniform_chunks(p->m, t->pattern->block_rows);
    int64_t of_keys = sat_uniform_backward(p) ? sat_uniform_chunks(p->n, t->pattern->block_cols) : 0;
    int64_t queries = p->batch * s->heads * of_queries, keys = p->batch * s->kv_heads * of_keys;
    *finding = (sat_finding){.ok = true};
#pragma omp parallel num_threads(t->device->threads)
    {
        sat_finding mine = {.ok = true};
        output c = {&x->u, t->operands, &mine};
#pragma omp for schedule(dynamic, 4) nowait
        for (int64_t at = 0; at < queries; at++) {
            int64_t bh = at / of_queries;
            const sat_uniform item = of_item(&x->u, t->pattern, bh / s->heads);
            c.u = &item;
            sat_range lines = sat_uniform_chunk(p->m, t->pattern->block_rows, at % of_queries);
            for (int64_t e = 0; e < (sat_uniform_backward(p) ? s->dim : s->value_dim) && mine.ok; e += SAT_LANES)
                compare_queries(&c, bh / s->heads, bh % s->heads, lines, e);
        }
        c.u = &x->u;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t h = 0; h < (sat_uniform_backward(p) && s->sinks ? s->heads : 0); h++) compare_sink(&c, h);
#pragma omp for schedule(dynamic, 4) nowait
        for (int64_t at = 0; at < keys; at++) {
            int64_t bh = at / of_keys;
            const sat_uniform item = of_item(&x->u, t->pattern, bh / s->kv_heads);
            c.u = &item;
            sat_range lines = sat_uniform_chunk(p->n, t->pattern->block_cols, at % of_keys);
            for (int64_t e = 0; e < sat_uniform_dim(p, true) && mine.ok; e += SAT_LANES)
                compare_keys(&c, bh / s->kv_heads, bh % s->kv_heads, lines, e);
        }
#pragma omp critical(sat_attention_uniform)
        if (!mine.ok && finding->ok) *finding = mine;
    }
    return SAT_OK;
}
