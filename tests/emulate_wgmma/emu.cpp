#include "emu.h"
#include <ucontext.h>
#include <cstdio>
dim3 threadIdx, blockIdx, gridDim, blockDim; char *SMEM; std::map<uint32_t, emu_mbar> emu_bar;
struct Group { std::vector<std::function<void()>> ops; };
struct Fiber { ucontext_t c; char *stack; bool done; Group open; std::vector<Group> pending; };
static std::vector<Fiber> fib; static ucontext_t mainc; static int cur; static std::function<void()> fn;
struct Warp { int arrived, gen; uint64_t val[2][32]; }; static std::vector<Warp> warps;
struct Named { int arrived, gen; }; static Named named[16]; static long progress;
void emu_yield() { swapcontext(&fib[cur].c, &mainc); }
void emu_gather64(uint64_t *all, uint64_t mine) { Warp &w = warps[cur / 32]; int g = w.gen; w.val[g & 1][cur % 32] = mine; progress++;
 if (++w.arrived == 32) w.arrived = 0, w.gen++; else while (w.gen == g) emu_yield();
 memcpy(all, w.val[g & 1], sizeof w.val[0]); }
void emu_named(int b, int n) { Named &x = named[b]; int g = x.gen; progress++; if (++x.arrived == n) x.arrived = 0, x.gen++; else while (x.gen == g) emu_yield(); }
void emu_async(std::function<void()> f) { fib[cur].open.ops.push_back(f); }
void emu_commit() { fib[cur].pending.push_back(std::move(fib[cur].open)); fib[cur].open = {}; progress++; }
void emu_wait(int n) { auto &p = fib[cur].pending; while ((int)p.size() > n) { for (auto &f : p[0].ops) f(); p.erase(p.begin()); } progress++; }
static void entry() { fn(); fib[cur].done = true; progress++; for (;;) swapcontext(&fib[cur].c, &mainc); }
void emu_run(unsigned grid, int threads, int shared, std::function<void()> f) {
 fn = f; gridDim = grid; blockDim = threads; if (!SMEM) SMEM = (char *)aligned_alloc(1 << 18, 1 << 18);
 if (fib.size() < (size_t)threads) { size_t o = fib.size(); fib.resize(threads); for (size_t i = o; i < fib.size(); i++) fib[i].stack = (char *)malloc(65536 * 2); }
 for (unsigned b = 0; b < grid; b++) { blockIdx = b; memset(SMEM, 0xff, 1 << 18); emu_bar.clear(); memset(named, 0, sizeof named); warps.assign(threads / 32, {});
  for (int t = 0; t < threads; t++) { getcontext(&fib[t].c); fib[t].c.uc_stack.ss_sp = fib[t].stack; fib[t].c.uc_stack.ss_size = 65536 * 2; fib[t].c.uc_link = 0; fib[t].done = false; fib[t].open = {}; fib[t].pending.clear(); makecontext(&fib[t].c, entry, 0); }
  int left = threads; long idle = 0; unsigned rot = rand();
  while (left) { long before = progress; int seen = 0; for (int i = 0; i < threads; i++) { int t = (i * 37 + rot) % threads; if (fib[t].done) continue; cur = t; threadIdx = t; swapcontext(&mainc, &fib[t].c); if (fib[t].done) left--; seen++; }
   rot = rand(); if (progress == before) { if (++idle > 200) { printf("DEADLOCK cta %u left %d\n", b, left); for (int i = 0; i < 16; i++) if (named[i].arrived) printf(" named %d: %d\n", i, named[i].arrived); for (auto &m : emu_bar) printf(" bar %x count %d pending %d tx %d phase %d\n", m.first, m.second.count, m.second.pending, m.second.tx, m.second.phase); exit(1); } } else idle = 0; }
 } }
