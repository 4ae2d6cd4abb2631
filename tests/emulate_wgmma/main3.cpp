#include "emu.h"
extern "C" {
#include "ops/grouped.h"
#include "ops/check.h"
}
#include <cstdio>
struct sat_backend_stub { void *pad[64]; };
extern "C" const sat_checker sat_grouped_check, sat_cuda_grouped_check;
static int rnd(int n) { return n <= 0 ? 0 : rand() % n; }
static long n_ok, n_bad, planted_n;
static void verdict(const char *what, const sat_trial &t, const void *he, const void *de, bool want) {
    sat_finding h = {}, d = {}; if (sat_grouped_check.compare(&t, he, &h) || sat_cuda_grouped_check.compare(&t, de, &d)) { printf("compare failed\n"); exit(1); }
    if (h.ok != d.ok || (want != d.ok)) { printf("DIFFER %s: want %d host %d (%s) device %d (%s)\n", what, want, h.ok, h.where, d.ok, d.where); exit(1); }
    (d.ok ? n_ok : n_bad)++;
    if (fabs(h.share - d.share) > 1e-6 * (1 + fabs(h.share)) && t.sums == nullptr && d.ok) { double r = d.share / h.share; if (r > 1.0001) printf("share %g %g\n", h.share, d.share); }
}
int main(int argc, char **argv) { srand(atoi(argv[1]));
  for (int it = 0; it < 12; it++) for (int weights = 0; weights < 2; weights++) {
    sat_problem p = {}; p.size = sizeof p; p.op = weights ? SAT_GROUPED_WEIGHTS : SAT_GROUPED; sat_dtype dt = (sat_dtype)(SAT_F32 + rnd(4)); p.a_dtype = p.b_dtype = p.c_dtype = dt; if (dt > SAT_F64 && rnd(2)) p.c_dtype = SAT_F32; p.compute_dtype = (sat_dtype)0;
    p.m = 1 + rnd(90), p.n = 1 + rnd(80), p.k = 1 + rnd(70); p.grouped.groups = 1 + rnd(6); p.grouped.offset_type = rnd(2) ? SAT_I32 : SAT_I64; p.alpha = rnd(2) ? 1 : 2, p.beta = rnd(2) ? 0 : 1; p.grouped.activation = SAT_ACT_NONE; if (!weights) p.grouped.bias = rnd(2), p.grouped.activation = (sat_activation)(SAT_ACT_NONE + rnd(4));
    if (p.grouped.activation == SAT_ACT_NONE && 0) abort(); p.batch = 1;
    if (!weights && rnd(2)) p.b = {1, p.k + rnd(3), 0}, p.b.batch_stride = p.b.col_stride * p.n + rnd(3);
    if (!weights && rnd(2)) p.c = {1, p.m + rnd(3), 0};
    const sat_op *op = weights ? &sat_op_grouped_weights : &sat_op_grouped; if (op->normalise(&p, nullptr)) { printf("normalise\n"); continue; }
    sat_device dev = {}; dev.threads = 1; sat_operand o[SAT_MAX_OPERANDS]; int count = op->operands(&p, nullptr, o);
    static const int cases[] = {0, 1, 2, 4, -1};
    for (int ci = 0; ci < 5; ci++) { bool real = cases[ci] < 0; sat_probe probe = real ? SAT_PROBE_PRECISION : SAT_PROBE_STRUCTURE; uint64_t seed = rand();
      sat_fill fills[SAT_MAX_OPERANDS] = {}; if (real) for (int i = 0; i < count; i++) fills[i] = sat_fill{}, fills[i].scale = 1; else op->set_fills(&p, nullptr, cases[ci], fills);
      void *at[SAT_MAX_OPERANDS] = {}; for (int i = 0; i < count; i++) { size_t sz = o[i].index ? o[i].index : sat_dtype_size(o[i].dtype); at[i] = malloc((o[i].span + 8) * sz + 64); memset(at[i], 0xff, (o[i].span + 8) * sz);
        if (o[i].index) { std::vector<int64_t> ix(o[i].rows + 1); op->make_indices(&p, probe, real ? 0 : cases[ci], sat_operand_seed(seed, i), ix.data()); for (int g = 0; g < o[i].rows; g++) if (o[i].index == 4) ((int32_t *)at[i])[g] = ix[g]; else ((int64_t *)at[i])[g] = ix[g]; continue; }
        for (int z = 0; z < o[i].batch; z++) for (int r = 0; r < o[i].rows; r++) for (int c = 0; c < o[i].cols; c++) { int64_t w = sat_operand_at(&o[i], z, r, c); sat_store(o[i].dtype, at[i], w, sat_made_up_at(&fills[i], &o[i], sat_operand_seed(seed, i), w, r, c)); } }
      std::vector<char> before((char *)at[2], (char *)at[2] + o[2].span * sat_dtype_size(p.c_dtype));
      std::vector<int64_t> off(p.grouped.groups + 1); sat_groups_take(&p, at[3], off.data());
      int lines = weights ? p.grouped.groups * p.k : p.m; std::vector<double> sums((size_t)lines * p.n);
      std::vector<char> sum_store((size_t)lines * p.n * 8 + 8); auto bare = [&](int line, int j) { double s = 0; if (weights) for (int r = off[line / p.k]; r < off[line / p.k + 1]; r++) s += sat_load(dt, at[0], r * p.a.row_stride + line % p.k * p.a.col_stride) * sat_load(dt, at[1], r * p.b.row_stride + j * p.b.col_stride);
        else { int64_t g = sat_group_of(off.data(), p.grouped.groups, line); for (int k = 0; k < (g < 0 ? 0 : p.k); k++) s += sat_load(dt, at[0], line * p.a.row_stride + k * p.a.col_stride) * sat_load(dt, at[1], g * p.b.batch_stride + k * p.b.row_stride + j * p.b.col_stride); } return s; };
      for (int l = 0; l < lines; l++) for (int j = 0; j < p.n; j++) sat_store(p.compute_dtype, sum_store.data(), (int64_t)l * p.n + j, bare(l, j));
      sat_trial t = {}; t.device = &dev, t.problem = &p, t.operands = at, t.fills = fills, t.fill_case = cases[ci], t.before = p.beta != 0 ? before.data() : nullptr; if (!real) t.sums = sum_store.data();
      if (!real) for (int k = 0; k < 2; k++) { sat_finding h = {}, d = {}; if (k) { int64_t e = (int64_t)rnd(lines) * p.n + rnd(p.n); sat_store(p.compute_dtype, sum_store.data(), e, sat_load(p.compute_dtype, sum_store.data(), e) + fills[0].scale * fills[1].scale); 
          if (sat_grouped_check.prove(&t, seed, &h) || sat_cuda_grouped_check.prove(&t, seed, &d)) abort(); if (h.ok || d.ok) { printf("PROVE missed %d %d\n", h.ok, d.ok); exit(1); } sat_store(p.compute_dtype, sum_store.data(), e, sat_load(p.compute_dtype, sum_store.data(), e) - fills[0].scale * fills[1].scale); }
        else { if (sat_grouped_check.prove(&t, seed, &h) || sat_cuda_grouped_check.prove(&t, seed, &d)) abort(); if (!h.ok || !d.ok) { printf("PROVE %d (%s) %d (%s)\n", h.ok, h.where, d.ok, d.where); exit(1); } } }
      sat_special sp[SAT_MAX_SPECIALS]; int ns = 0;
      void *he, *de; if (sat_grouped_check.expect(&t, probe, seed, &he) || sat_cuda_grouped_check.expect(&t, probe, seed, &de)) abort();
      for (int round = 0; round < 2; round++) {
        if (round && cases[ci] == 0) { ns = op->specials(&p, nullptr, fills, seed, sp); for (int i = 0; i < ns; i++) sat_store(dt, at[sp[i].operand], sat_operand_at(&o[sp[i].operand], sp[i].item, sp[i].row, sp[i].col), sp[i].value); t.specials = sp, t.special_count = ns; planted_n += ns; } else if (round) break;
        for (int l = 0; l < lines; l++) for (int j = 0; j < p.n; j++) { int64_t w = weights ? l / p.k * p.c.batch_stride + l % p.k * p.c.row_stride + j * p.c.col_stride : l * p.c.row_stride + j * p.c.col_stride; int64_t g = weights ? l / p.k : sat_group_of(off.data(), p.grouped.groups, l);
          double y = p.alpha * bare(l, j) + (p.beta != 0 ? p.beta * sat_load(p.c_dtype, before.data(), w) : 0) + (p.grouped.bias && g >= 0 ? sat_load(p.c_dtype, at[4], g * p.n + j) : 0); sat_store(p.c_dtype, at[2], w, sat_act_f64(weights ? SAT_ACT_NONE : p.grouped.activation, y)); }
        verdict("right", t, he, de, true);
        if (!real) { int l = rnd(lines), j = rnd(p.n); int64_t w = weights ? l / p.k * p.c.batch_stride + l % p.k * p.c.row_stride + j * p.c.col_stride : l * p.c.row_stride + j * p.c.col_stride; double old = sat_load(p.c_dtype, at[2], w); sat_store(p.c_dtype, at[2], w, old != old ? 1 : old * 1.25 + 3); verdict("wrong", t, he, de, false); sat_store(p.c_dtype, at[2], w, old); }
        else { int64_t w = 0; double old = sat_load(p.c_dtype, at[2], w); for (int l = 0; l < lines; l++) for (int j = 0; j < p.n; j++) { w = weights ? l / p.k * p.c.batch_stride + l % p.k * p.c.row_stride + j * p.c.col_stride : l * p.c.row_stride + j * p.c.col_stride; if (rnd(50) == 0) sat_store(p.c_dtype, at[2], w, sat_load(p.c_dtype, at[2], w) + 1); } sat_store(p.c_dtype, at[2], w, sat_load(p.c_dtype, at[2], w) + 1); verdict("wrong real", t, he, de, false); (void)old; }
      }
      sat_grouped_check.free(he), sat_cuda_grouped_check.free(de); for (int i = 0; i < count; i++) free(at[i]);
    } }
  printf("%ld right, %ld wrong found by both, %ld planted\n", n_ok, n_bad, planted_n); }
