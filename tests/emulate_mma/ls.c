#define PRINT
#include "long_sums.h"
#include "problems.h"
#include <dlfcn.h>
static void align(sat_problem *p) { p->a_align = p->b_align = p->c_align = 16; }
static bool emu(const sat_variant *v, sat_operation op) { return v->op == op && strstr(v->name, "emu"); }
static void *al(const void *p, size_t n) { void *x = aligned_alloc(256, (n + 255) / 256 * 256); if (p) memcpy(x, p, n); return x; }
int main(int c, char **v) {
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    void *h = dlopen("./emu.so", RTLD_NOW); if (!h) return puts(dlerror()), 1;
    sat_plugin_fn f = (sat_plugin_fn)dlsym(h, SAT_PLUGIN_SYMBOL); assert_ok(f(ctx));
    int lg = atoi(v[1]);
    if (v[2][0] == 'f') {
        attention x = make_attention(40, 1 << lg);
        sat_pattern *pattern = full_pattern(ctx, x.queries, x.keys, 16, 64);
        sat_problem p = attention_problem(SAT_F32, 1, 1, DIM); align(&p);
        size_t size = x.queries * DIM, rows = x.keys * DIM; float *o = al(NULL, size * 4);
        void *dev[4] = {al(x.q.data, size * 4), al(x.k.data, rows * 4), al(x.v.data, rows * 4), o};
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *w = sat_variant_at(ctx, i); sat_plan *plan = NULL;
            if (!emu(w, p.op)) continue;
            if (sat_plan_create_with(ctx, pattern, &p, w->name, &plan) != SAT_OK) { puts(sat_last_error()); continue; }
            assert_ok(run_in_order(plan, &p, dev, NULL));
            double mean = 0; for (size_t k = 0; k < size; k++) mean += (o[k] - x.o[k]) / x.o[k] / size;
            printf("bias %.1f u ", mean / U);
            expect_error(largest_error(o, x.o, size), bound((double)x.keys, SAT_SUM_PART, 16), w->name, "O");
        }
    } else if (v[2][0] == 'g') {
        enum { KEYS = 3 * SAT_SUM_PART + 100, QUERIES = 17 };
        sat_pattern *pattern = full_pattern(ctx, QUERIES, KEYS, QUERIES, 4);
        sat_problem p = attention_problem(SAT_F32, 1, 1, DIM); align(&p);
        size_t size = QUERIES * DIM, rows = (size_t)KEYS * DIM;
        float *q = al(NULL, size*4), *k = al(NULL, rows*4), *vv = al(NULL, rows * 4), *o = al(NULL, size * 4);
        memset(q,0,size*4); memset(k,0,rows*4);
        double *want = calloc(size, sizeof *want); uint64_t random = 9;
        for (int64_t i = 0; i < QUERIES; i++) q[i * DIM] = (float)(i - 8);
        for (int64_t j = 0; j < KEYS; j++) k[j * DIM] = (float)j / 1024;
        for (size_t i = 0; i < rows; i++) vv[i] = positive(&random);
        for (int64_t i = 0; i < QUERIES; i++) {
            double total = 0, most = fmax(0, (double)q[i * DIM] * (double)k[(KEYS - 1) * DIM] / 4);
            for (int64_t j = 0; j < KEYS; j++) {
                double weight = exp((double)q[i * DIM] * (double)k[j * DIM] / 4 - most);
                total += weight;
                for (int e = 0; e < DIM; e++) want[i * DIM + e] += weight * (double)vv[j * DIM + e];
            }
            for (int e = 0; e < DIM; e++) want[i * DIM + e] /= total;
        }
        void *dev[4] = {q, k, vv, o};
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *w = sat_variant_at(ctx, i); sat_plan *plan = NULL;
            if (!emu(w, p.op)) continue;
            if (sat_plan_create_with(ctx, pattern, &p, w->name, &plan) != SAT_OK) { puts(sat_last_error()); continue; }
            assert_ok(run_in_order(plan, &p, dev, NULL));
            expect_error(largest_error(o, want, size), bound(KEYS, SAT_SUM_PART, 64), w->name, "O grow");
        }
    } else {
        int64_t queries = 1 << lg, keys = 72;
        attention x = make_attention(queries, keys);
        sat_pattern *pattern = full_pattern(ctx, queries, keys, 64, 8);
        sat_problem p = attention_problem(SAT_F32, 1, 1, DIM); align(&p); p.op = SAT_ATTENTION_BACKWARD;
        size_t size = x.queries * DIM * 4, rows = keys * DIM, bytes = rows * 4;
        double *want = calloc(rows, 8);
        for (int64_t i = 0; i < queries; i++) for (int64_t j = 0; j < keys; j++) for (int e = 0; e < DIM; e++)
            want[j * DIM + e] += x.weight[i * keys + j] * (double)x.dout.exact[i * DIM + e];
        void *dev[9] = {al(x.q.data, size), al(x.k.data, bytes), al(x.v.data, bytes), al(x.o32, size), al(x.lse, size / DIM), al(x.dout.data, size), al(NULL, size), al(NULL, bytes), al(NULL, bytes)};
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *w = sat_variant_at(ctx, i); sat_plan *plan = NULL;
            if (!emu(w, p.op)) continue;
            if (sat_plan_create_with(ctx, pattern, &p, w->name, &plan) != SAT_OK) { puts(sat_last_error()); continue; }
            assert_ok(run_in_order(plan, &p, dev, NULL));
            float *dv = dev[8]; double mean = 0; for (size_t k = 0; k < rows; k++) mean += (dv[k] - want[k]) / want[k] / rows;
            printf("bias %.1f u ", mean / U);
            expect_error(largest_error(dv, want, rows), bound((double)queries, SAT_SUM_PART, 16), w->name, "dV");
        }
    }
}
