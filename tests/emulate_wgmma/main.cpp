#include "emu.h"
#include "groups.h"
#include "sparse_autotune.h"
#include <cstdio>
#include <cstdarg>
extern "C" const sat_family sat_family_cuda_grouped_mma, sat_family_cuda_grouped_weights_mma, sat_family_cuda_grouped_wgmma, sat_family_cuda_grouped_weights_wgmma;
extern "C" sat_status sat_fail(sat_status s, const char *f, ...) { va_list a; va_start(a, f); vprintf(f, a); puts(""); return s; }
static double ld(sat_dtype t, const void *p, int64_t i) { return sat_load(t, p, i); }
static int rnd(int n) { return n <= 0 ? 0 : rand() % n; }
static double act(sat_activation a, double x) { return sat_act_f64(a, x); }
static long checked, ran;
static void one(bool wg, int tm, int tn, bool weights, int SMs) {
    sat_dtype t = rnd(2) ? SAT_F16 : SAT_BF16, ct = rnd(2) ? SAT_F32 : t; int shape = rnd(4);
    int m = 1 + rnd(shape == 0 ? 500 : 150), n = 1 + rnd(shape == 1 ? 600 : 100), k = 1 + rnd(shape == 2 ? 700 : 100), G = rnd(9) == 0 && !wg ? 0 : 1 + rnd(rnd(2) ? 6 : 80);
    if (rnd(2)) n = (n + 7) / 8 * 8, k = (k + 7) / 8 * 8; if (rnd(2)) n = (n + 63) / 64 * 64; if (rnd(2)) k = (k + 63) / 64 * 64;
    int al = rnd(3); // which layouts
    sat_problem p = {}; p.size = sizeof p; p.op = weights ? SAT_GROUPED_WEIGHTS : SAT_GROUPED; p.m = m, p.n = n, p.k = k, p.batch = 1;
    p.a_dtype = p.b_dtype = t, p.c_dtype = ct, p.compute_dtype = SAT_F32; p.alpha = rnd(2) ? 1 : -0.5; p.beta = rnd(3) ? 0 : 0.75;
    p.grouped.groups = G, p.grouped.offset_type = rnd(2) ? SAT_I32 : SAT_I64; p.grouped.bias = !weights && rnd(2); p.grouped.activation = weights ? SAT_ACT_NONE : (sat_activation)(SAT_ACT_NONE + rnd(4)); if (rnd(2)) p.grouped.activation = SAT_ACT_NONE;
    auto up = [](int x) { return (int64_t)(x + 7) / 8 * 8 + 8 * rnd(2); };
    p.a = {up(k), 1, 0}; bool wc = !weights && rnd(2), one_w = !weights && rnd(8) == 0;
    p.b = {up(n), 1, 0}; if (wc) p.b = {1, up(k), 0}; int64_t wspan = weights ? 0 : wc ? p.b.col_stride * n : p.b.row_stride * k; if (!weights && !one_w) p.b.batch_stride = wspan + 8 * rnd(2);
    bool cc = al == 0; int cr = weights ? k : m; int64_t gap = al == 1 ? rnd(3) : 0; p.c = {al == 1 ? n + gap : up(n), 1, 0}; if (cc) p.c = {1, up(cr), 0}; int64_t cspan = cc ? p.c.col_stride * n : p.c.row_stride * cr; if (weights) p.c.batch_stride = cspan + (al == 1 ? rnd(3) : 8 * rnd(2));
    p.a_align = p.b_align = 16, p.c_align = al == 1 ? 4 : 16;
    sat_variant v = {}; const sat_family *f = wg ? (weights ? &sat_family_cuda_grouped_weights_wgmma : &sat_family_cuda_grouped_wgmma) : (weights ? &sat_family_cuda_grouped_weights_mma : &sat_family_cuda_grouped_mma);
    v.name = "v"; v.instance = {t, tm, tn, 64, 0};
    sat_device d = {}; d.multiprocessors = SMs, d.capability = 90, d.shared_bytes = 227 << 10; d.flop_rate[t] = 1e14; d.memory_rate = 1e12;
    if (!f->supports(&v, &p, nullptr, &d)) return;
    size_t nx = (size_t)(m * p.a.row_stride) + 64, nb = (size_t)(weights ? m * p.b.row_stride : (one_w ? 1 : (G ? G : 1)) * (p.b.batch_stride ? p.b.batch_stride : wspan)) + 64, nc = (size_t)(weights ? (G ? G : 1) * p.c.batch_stride : cspan) + 64;
    char *x = (char *)aligned_alloc(64, (nx * 2 + 127) / 64 * 64), *b = (char *)aligned_alloc(64, (nb * 2 + 127) / 64 * 64), *c = (char *)aligned_alloc(64, (nc * 4 + 127) / 64 * 64), *bias = (char *)aligned_alloc(64, ((size_t)(G + 1) * n * 4 + 127) / 64 * 64);
    memset(x, 0xff, nx * 2), memset(b, 0xff, nb * 2), memset(c, 0xff, nc * 4);
    auto val = [] { return (rand() % 2001 - 1000) / 1000.0; };
    std::vector<int64_t> raw(G + 1), o(G + 1); int end = rnd(2) ? m : m - rnd(m / 4 + 1), style = rnd(3); raw[0] = 0;
    for (int g = 1; g <= G; g++) { int left = end - raw[g - 1], some = left / (G - g + 1); if (style == 0) some = rnd(2) ? 0 : rnd(left + 1); if (style == 1) some = g == G / 2 + 1 ? left : 0; if (style == 2 && g == G) some = left; raw[g] = raw[g - 1] + some; }
    bool hostile = G && rnd(4) == 0; if (hostile) { int at = rnd(G + 1); int64_t bad[] = {-1, m + 1, INT32_MIN, INT32_MAX, 0, 1}; raw[at] = bad[rnd(6)]; }
    std::vector<char> off((G + 1) * 8); for (int g = 0; g <= G; g++) if (p.grouped.offset_type == SAT_I32) ((int32_t *)off.data())[g] = raw[g]; else ((int64_t *)off.data())[g] = raw[g];
    sat_groups_take(&p, off.data(), o.data());
    int used = o[G];
    for (int i = 0; i < used; i++) for (int j = 0; j < k; j++) sat_store(t, x, i * p.a.row_stride + j, val());
    if (weights) { for (int i = 0; i < used; i++) for (int j = 0; j < n; j++) sat_store(t, b, i * p.b.row_stride + j, val()); }
    else for (int g = 0; g < (one_w ? 1 : G); g++) for (int i = 0; i < k; i++) for (int j = 0; j < n; j++) sat_store(t, b, g * p.b.batch_stride + i * p.b.row_stride + j * p.b.col_stride, val());
    int nang = rnd(3) == 0 && G ? rnd(G) : -1; if (nang >= 0) { p.grouped.activation = SAT_ACT_NONE; for (int i = o[nang]; i < o[nang + 1]; i++) { for (int j = 0; j < k; j++) sat_store(t, x, i * p.a.row_stride + j, NAN); if (weights) for (int j = 0; j < n; j++) sat_store(t, b, i * p.b.row_stride + j, NAN); } }
    for (int i = 0; i < G * n; i++) sat_store(ct, bias, i, val());
    int items = weights ? G : 1; std::vector<double> before; size_t cs = ct == SAT_F32 ? 4 : 2;
    auto at = [&](int z, int i, int j) { return z * p.c.batch_stride + i * p.c.row_stride + j * p.c.col_stride; };
    if (p.beta != 0) for (int z = 0; z < items; z++) for (int i = 0; i < cr; i++) for (int j = 0; j < n; j++) { sat_store(ct, c, at(z, i, j), val()); before.push_back(ld(ct, c, at(z, i, j))); }
    void *ops[SAT_MAX_OPERANDS] = {x, b, c, off.data(), bias}; unsigned ws[64] = {}; sat_prepare q = {}; q.variant = &v, q.device = &d, q.problem = &p, q.workspace = ws; void *state = nullptr; 
    // the mma family keeps its counter in the workspace
    if (f->prepare(&q, &state) != SAT_OK) abort();
    sat_launch l = {}; l.variant = &v, l.device = &d, l.problem = &p, l.operands = ops, l.workspace = ws, l.state = state;
    if (f->launch(&l) != SAT_OK) abort();
    if (ws[0] || ws[1]) { printf("counter not reset\n"); exit(1); }
    ran++; size_t nb4 = 0; (void)nb4;
    for (int z = 0; z < items; z++) for (int i = 0; i < cr; i++) for (int j = 0; j < n; j++, nb4++) { double s = 0, mag = 0; int g = z, depth = 0;
        if (weights) for (int r = o[z]; r < o[z + 1]; r++, depth++) { double e = ld(t, x, r * p.a.row_stride + i) * ld(t, b, r * p.b.row_stride + j); s += e, mag += fabs(e); }
        else { g = sat_group_of(o.data(), G, i); if (g >= 0) for (int e = 0; e < k; e++, depth++) { double y = ld(t, x, i * p.a.row_stride + e) * ld(t, b, g * p.b.batch_stride + e * p.b.row_stride + j * p.b.col_stride); s += y, mag += fabs(y); } }
        double r = p.alpha * s + (p.beta != 0 ? p.beta * before[nb4] : 0) + (p.grouped.bias && g >= 0 ? ld(ct, bias, (int64_t)g * n + j) : 0), want = act(p.grouped.activation, r), got = ld(ct, c, at(z, i, j)); checked++;
        double bound = 1e-5 * (mag + 3) + (ct == SAT_F32 ? 0 : ct == SAT_F16 ? 1e-3 : 8e-3) * (fabs(want) + 0.01);
        if (!(std::isnan(want) ? std::isnan(got) : fabs(got - want) <= bound)) { printf("WRONG %s %dx%d %s: m %d n %d k %d G %d group %d [%d][%d][%d] got %g want %g; wc %d cc %d al %d beta %g act %d bias %d ct %d hostile %d nan %d one_w %d row0 %ld end %ld\n", wg ? "wgmma" : "mma", tm, tn, weights ? "weights" : "y", m, n, k, G, g, z, i, j, got, want, wc, cc, al, p.beta, p.grouped.activation, p.grouped.bias, ct, hostile, nang, one_w, g >= 0 ? o[g] : -1, g >= 0 ? o[g + 1] : -1); exit(1); }
        memset(c + at(z, i, j) * cs, 0xff, cs); }
    for (size_t i = 0; i < nc * 4; i++) if ((unsigned char)c[i] != 0xff) { printf("WROTE BESIDE\n"); exit(1); }
    free(x), free(b), free(c), free(bias), free(state);
}
int main(int argc, char **argv) { srand(atoi(argv[1])); int wg = atoi(argv[2]), tm = atoi(argv[3]), tn = atoi(argv[4]), w = atoi(argv[5]), count = atoi(argv[6]);
    for (int i = 0; i < count; i++) one(wg, tm, tn, w, 1 + rnd(3)); printf("%s %dx%d %s: %ld ran, %ld elements right\n", wg ? "wgmma" : "mma", tm, tn, w ? "weights" : "y", ran, checked); }
