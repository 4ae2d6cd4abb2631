#include "kernels/cuda/common/ptx_sm80.cuh"
#include <mutex>
uint3 threadIdx, blockIdx; dim3 blockDim, gridDim; char *emu_smem; int emu_bytes;
static std::mutex one;
struct cp { uint32_t to; const void *from; int bytes, valid, group; };
struct fiber { void *sp; char *stack; int id; bool done; unsigned long cta_gen; bool at_cta; std::vector<cp> q; int group; uint64_t ops; uint32_t bank[64]; };
static fiber *fibers; static int count; static fiber *current; static void *main_sp;
static unsigned long cta_gen; static int cta_arrived;
struct warp { int arrived; unsigned long gen; uint64_t slot[2][32][8]; };
static warp *warps;
static const std::function<void()> *body;
extern "C" void emu_switch(void **from, void *to);
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
emu_switch:
 pushq %rbp
 pushq %rbx
 pushq %r12
 pushq %r13
 pushq %r14
 pushq %r15
 movq %rsp,(%rdi)
 movq %rsi,%rsp
 popq %r15
 popq %r14
 popq %r13
 popq %r12
 popq %rbx
 popq %rbp
 ret
)");
static void yield() { fiber *f = current; emu_switch(&f->sp, main_sp); }
static void entry() { (*body)(); current->done = true; for (;;) yield(); }
static uint64_t rnd = 88172645463325252ull;
static uint64_t rng() { rnd ^= rnd << 13; rnd ^= rnd >> 7; rnd ^= rnd << 17; return rnd; }
void emu_sync() {
    fiber *f = current; unsigned long g = cta_gen;
    if (++cta_arrived == count) { cta_arrived = 0; cta_gen++; return; }
    f->at_cta = true; f->cta_gen = g;
    while (cta_gen == g) yield();
    f->at_cta = false;
}
static warp &my_warp() { return warps[current->id / 32]; }
void emu_warp_sync() {
    warp &w = my_warp(); unsigned long g = w.gen;
    if (++w.arrived == 32) { w.arrived = 0; w.gen++; return; }
    while (w.gen == g) yield();
}
uint64_t emu_shfl(uint64_t v, int src) {
    int buf = current->ops++ % 2; warp &w = my_warp();
    w.slot[buf][current->id % 32][0] = v; emu_warp_sync();
    return w.slot[buf][src][0];
}
bool emu_any(bool v) {
    int buf = current->ops++ % 2; warp &w = my_warp();
    w.slot[buf][current->id % 32][0] = v; emu_warp_sync();
    for (int i = 0; i < 32; i++) if (w.slot[buf][i][0]) return true;
    return false;
}
unsigned long emu_loads, emu_conflicts;
void emu_bank(uint32_t a) { // conflicts of a quarter warp
    int buf = current->ops++ % 2; warp &w = my_warp(); int lane = current->id % 32;
    w.slot[buf][lane][7] = a; emu_warp_sync();
    if (lane % 8) return;
    int used[8] = {};
    emu_loads++;
    for (int i = 0; i < 8; i++) { 
        bool dup = false;
        for (int k = 0; k < i; k++) dup |= w.slot[buf][lane + k][7] == w.slot[buf][lane + i][7];
        if (!dup) used[w.slot[buf][lane + i][7] / 16 % 8]++; }
    for (int i = 0; i < 8; i++) if (used[i] > 1) { emu_conflicts++; break; }
}
static float tf(uint32_t x) { return __uint_as_float(x & 0xffffe000u); }
static float chop(double x) { // toward zero
    float f = (float)x;
    if (fabs((double)f) > fabs(x)) f = nextafterf(f, 0);
    return f;
}
void emu_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    int buf = current->ops++ % 2; warp &w = my_warp(); int lane = current->id % 32, g = lane / 4, t = lane % 4;
    uint64_t *s = w.slot[buf][lane];
    for (int i = 0; i < 4; i++) s[i] = a[i];
    s[4] = b0, s[5] = b1;
    emu_warp_sync();
    for (int e = 0; e < 4; e++) {
        int r = g + e / 2 * 8, n = 2 * t + e % 2;
        double sum = c[e];
        for (int k = 0; k < 8; k++)
            sum += (double)tf((uint32_t)w.slot[buf][r % 8 * 4 + k % 4][(r >= 8) + 2 * (k >= 4)]) *
                   (double)tf((uint32_t)w.slot[buf][n * 4 + k % 4][4 + k / 4]);
        c[e] = chop(sum);
    }
}
static void execute(const cp &x) { char *to = emu_at(x.to); if (x.valid) memcpy(to, x.from, x.valid); memset(to + x.valid, 0, x.bytes - x.valid); }
void emu_cp(uint32_t to, const void *from, int bytes, int valid) {
    emu_check(to, bytes);
    if ((uintptr_t)from % bytes) { fprintf(stderr, "cp.async from %p\n", from); abort(); }
    cp x = {to, from, bytes, valid, current->group};
    memset(emu_at(to), 0xff, bytes);
    if (rng() & 1) execute(x); else current->q.push_back(x);
}
void emu_commit() { current->group++; }
void emu_wait(int pending) {
    auto &q = current->q; size_t keep = 0;
    for (size_t i = 0; i < q.size(); i++) if (q[i].group < current->group - pending) execute(q[i]); else q[keep++] = q[i];
    q.resize(keep);
}
void emu_run(unsigned grid, int threads, int bytes, const std::function<void()> &f) {
    static std::vector<char> smem(256 << 10), stacks((size_t)1024 * (128 << 10));
    static std::vector<fiber> fs(1024); static std::vector<warp> ws(32);
    if (bytes > 227 * 1024) { fprintf(stderr, "shared memory\n"); abort(); }
    emu_smem = (char *)(((uintptr_t)smem.data() + 127) / 128 * 128) + 80; emu_bytes = bytes;
    fibers = fs.data(), warps = ws.data(), count = threads, body = &f;
    blockDim = dim3(threads), gridDim = dim3(grid);
    for (unsigned b = 0; b < grid; b++) {
        blockIdx = {b, 0, 0};
        memset(emu_smem, 0xff, bytes);
        cta_gen = cta_arrived = 0;
        for (int i = 0; i < threads; i++) {
            fiber &x = fs[i]; x.stack = stacks.data() + (size_t)i * (128 << 10); x.id = i; x.done = x.at_cta = false; x.q.clear(); x.group = 0; x.ops = 0;
            void **sp = (void **)(((uintptr_t)x.stack + (128 << 10)) & ~(uintptr_t)63);
            *--sp = NULL; *--sp = (void *)entry; for (int k = 0; k < 6; k++) *--sp = NULL;
            x.sp = sp;
        }
        int nw = (threads + 31) / 32;
        for (int i = 0; i < nw; i++) ws[i].arrived = 0, ws[i].gen = 0;
        for (;;) {
            int left = 0, order[32];
            for (int i = 0; i < nw; i++) order[i] = i;
            for (int i = nw - 1; i > 0; i--) std::swap(order[i], order[rng() % (i + 1)]);
            bool progress = false;
            for (int o = 0; o < nw; o++) {
                int w = order[o];
                for (bool any = true; any;) {
                    any = false;
                    int first = w * 32, last = std::min(first + 32, threads);
                    for (int i = first; i < last; i++) {
                        fiber &x = fs[i];
                        if (x.done || (x.at_cta && x.cta_gen == cta_gen)) continue;
                        current = &x, threadIdx = {(unsigned)i, 0, 0}, any = progress = true;
                        emu_switch(&main_sp, x.sp);
                    }
                }
            }
            for (int i = 0; i < threads; i++) left += !fs[i].done;
            if (!left) break;
            if (!progress) { fprintf(stderr, "deadlock\n"); abort(); }
        }
        for (int i = 0; i < threads; i++) if (!fs[i].q.empty()) { fprintf(stderr, "cp.async left\n"); abort(); }
    }
}
extern "C" {
cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind, cudaStream_t) { memcpy(to, from, n); return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return ""; }
}
// ---- variants ----
extern "C" const sat_family sat_family_cuda_attention_mma_f32, sat_family_cuda_attention_split, sat_family_cuda_attention_backward_mma_f32;
struct entry_ { const char *name; const sat_family *f; sat_instance i; };
static const entry_ all[] = {
 {"cpu_attention_f32_any_emu_128x32", &sat_family_cuda_attention_mma_f32, {SAT_F32, 128, 32, 0, 0}},
 {"cpu_attention_f32_any_emu_64x32", &sat_family_cuda_attention_mma_f32, {SAT_F32, 64, 32, 0, 0}},
 {"cpu_attention_f32_any_emu_16x64_split", &sat_family_cuda_attention_split, {SAT_F32, 16, 64, 0, 0}},
 {"cpu_attention_backward_f32_any_emu_64x32", &sat_family_cuda_attention_backward_mma_f32, {SAT_F32, 64, 32, 0, 0}},
 {"cpu_attention_backward_f32_any_emu_16x64", &sat_family_cuda_attention_backward_mma_f32, {SAT_F32, 16, 64, 0, 0}},
};
static sat_device dev(const sat_device *d) { sat_device x = *d; x.backend = SAT_CUDA; x.shared_bytes = 227 * 1024; x.multiprocessors = 132; x.capability = 90; x.l2_bytes = 50 << 20; x.tf32_rate = 3e14; x.l2_rate = 5e12; x.memory_rate = 4e12; return x; }
static const sat_family *fam(const sat_variant *v) { return ((const entry_ *)v->user)->f; }
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) { sat_device x = dev(d); sat_problem q = *p; bool ok = fam(v)->supports(v, &q, a, &x); return ok; }
static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) { sat_device x = dev(d); return fam(v)->estimate(v, p, a, &x) * 0 + 1e-9; }
static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) { sat_device x = dev(d); return fam(v)->workspace(v, p, a, &x) + 256; }
static void *up(void *p) { return (void *)(((uintptr_t)p + 255) / 256 * 256); }
static sat_pattern_view view(const sat_pattern_view *a) { sat_pattern_view x = *a; x.device_row_ptr = a->row_ptr, x.device_col_idx = a->col_idx, x.device_q_offsets = a->q_offsets, x.device_kv_offsets = a->kv_offsets; return x; }
static sat_status prepare(const sat_prepare *q, void **state) {
    std::lock_guard<std::mutex> lock(one);
    sat_device x = dev(q->device); sat_pattern_view a = view(q->pattern); sat_prepare r = *q; r.device = &x, r.pattern = &a, r.workspace = up(q->workspace);
    return fam(q->variant)->prepare(&r, state);
}
static sat_status launch(const sat_launch *l) {
    std::lock_guard<std::mutex> lock(one);
    sat_device x = dev(l->device); sat_pattern_view a = view(l->pattern); sat_launch r = *l; r.device = &x, r.pattern = &a, r.workspace = up(l->workspace);
    return fam(l->variant)->launch(&r);
}
static void release(const sat_variant *v, void *state) { fam(v)->release(v, state); }
static void report() { fprintf(stderr, "quarter-warp loads %lu, with conflicts %lu\n", emu_loads, emu_conflicts); }
extern "C" __attribute__((visibility("default"))) sat_status sat_plugin(sat_context *context) {
    if (getenv("EMU_REPORT")) atexit(report);
    for (const entry_ &e : all) {
        sat_variant v = {};
        v.size = sizeof v, v.name = e.name, v.revision = "1", v.op = e.f->op, v.backend = SAT_CPU, v.flags = e.f->flags, v.priority = 1;
        v.instance = e.i, v.about = "emulated", v.user = (void *)&e;
        v.supports = supports, v.estimate = estimate, v.workspace = workspace, v.prepare = prepare, v.launch = launch, v.release = release;
        sat_status s = sat_variant_register(context, &v);
        if (s != SAT_OK) return s;
    }
    return SAT_OK;
}
