/* The CPU as a backend: what machine this is, memory, made-up operands, a monotonic clock and a cache flush. */
#define _GNU_SOURCE
#include "backend/backend.h"

#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "backend/limits.h"
#include "backend/threads.h"
#include "ops/check.h"
#include "variant.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#endif

/* ---- what machine this is ---- */

#if defined(__x86_64__)
static void cpu_model(char *to, size_t size) {
    uint32_t r[12] = {0};
    char text[49] = "";
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &r[4 * i], &r[4 * i + 1], &r[4 * i + 2], &r[4 * i + 3])) break;
    memcpy(text, r, 48);
    size_t start = strspn(text, " "), end = strlen(text);
    while (end > start && text[end - 1] == ' ') end--;
    snprintf(to, size, "%.*s", (int)(end - start), text + start);
    if (!to[0]) snprintf(to, size, "x86-64");
}

/* AMX state is large, so Linux hands it out on request only. */
static bool amx_allowed(void) {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & (1u << 24)) || !(d & (1u << 22))) return false; /* AMX-TILE, AMX-BF16 */
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static uint32_t cpu_isa(void) {
    uint32_t isa = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        unsigned a, b, c, d;
        if (__get_cpuid(1, &a, &b, &c, &d) && (c & (1u << 29))) isa |= SAT_ISA_AVX2; /* F16C */
    }
    if ((isa & SAT_ISA_AVX2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        isa |= SAT_ISA_AVX512;
    if ((isa & SAT_ISA_AVX512)) {
        unsigned a, b, c, d;
        if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5))) isa |= SAT_ISA_AVX512_BF16;
        if (amx_allowed()) isa |= SAT_ISA_AMX_BF16;
    }
    return isa;
}
#else
static void cpu_model(char *to, size_t size) { snprintf(to, size, "generic CPU"); }
static uint32_t cpu_isa(void) { return 0; }
#endif

static const char *isa_name(uint32_t isa) {
    if (isa & SAT_ISA_AMX_BF16) return "AMX";
    if (isa & SAT_ISA_AVX512_BF16) return "AVX-512 BF16";
    if (isa & SAT_ISA_AVX512) return "AVX-512";
    return isa & SAT_ISA_AVX2 ? "AVX2" : "portable";
}

/* Linux has it in sysfs; sysconf is wrong for some virtual machines' L3. */
static int64_t cache_size(int level, int name, int64_t otherwise) {
    for (int i = 0; i < 8; i++) {
        char path[96], type[16] = "";
        int found = 0;
        long kib = 0;
        const char *const what[] = {"level", "type", "size"};
        for (int w = 0; w < 3; w++) {
            snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i, what[w]);
            FILE *f = fopen(path, "r");
            int got = !f       ? 0
                      : w == 0 ? fscanf(f, "%d", &found)
                      : w == 1 ? fscanf(f, "%15s", type)
                               : fscanf(f, "%ldK", &kib);
            if (f) fclose(f);
            if (got != 1) break;
        }
        if (found == level && kib > 0 && strcmp(type, "Instruction") != 0) return (int64_t)kib * 1024;
    }
    long bytes = sysconf(name);
    return bytes > 0 ? bytes : otherwise;
}

/* Nominal rates of one core, for ordering candidates only: 3 GHz times operations a cycle. */
static void nominal_rates(sat_device *d) {
    double lanes = d->isa & SAT_ISA_AVX512 ? 16 : d->isa & SAT_ISA_AVX2 ? 8 : 4, cores = d->threads;
    double f32 = 3e9 * lanes * 4 * cores; /* two multiply-adds a cycle */
    d->flop_rate[SAT_F32] = d->flop_rate[SAT_F16] = f32;
    d->flop_rate[SAT_F64] = f32 / 2;
    d->flop_rate[SAT_BF16] = d->isa & SAT_ISA_AMX_BF16 ? 16 * f32 : d->isa & SAT_ISA_AVX512_BF16 ? 2 * f32 : f32;
    d->tf32_rate = f32;
    d->memory_rate = 12e9 * (cores < 16 ? cores : 16);
}

static int cpu_count(void) { return 1; }
static int cpu_threads(int wanted) { return sat_threads_usable(wanted > 0 ? wanted : omp_get_max_threads()); }

static sat_status cpu_open(int index, const sat_context_options *options, sat_device *d) {
    if (index != 0) return sat_fail(SAT_NOT_FOUND, "device is cpu:%d; expected cpu", index);
    char model[64];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    sat_threads_watch_forks();
    cpu_model(model, sizeof model);
    *d = (sat_device){SAT_SIZED(sat_device), .backend = SAT_CPU, .isa = cpu_isa()};
    d->threads = cpu_threads(options->threads);
    d->l1_bytes = cache_size(1, _SC_LEVEL1_DCACHE_SIZE, 32 << 10);
    d->l2_bytes = cache_size(2, _SC_LEVEL2_CACHE_SIZE, 512 << 10);
    d->l3_bytes = cache_size(3, _SC_LEVEL3_CACHE_SIZE, 8 << 20);
    d->memory_bytes = (int64_t)sat_memory_now("").total;
    snprintf(d->name, sizeof d->name, "%s (%ld %s, %s)", model, cores, cores == 1 ? "core" : "cores", isa_name(d->isa));
    snprintf(d->identity, sizeof d->identity, "cpu %s, %s, %ld cores, L2 %lld KiB, L3 %lld KiB", model,
             isa_name(d->isa), cores, (long long)d->l2_bytes / 1024, (long long)d->l3_bytes / 1024);
    nominal_rates(d);
    return SAT_OK;
}

/* ---- memory ---- */

static void *cpu_alloc(void *device, size_t bytes, size_t alignment) {
    (void)device;
    const size_t huge = (size_t)2 << 20;
    void *p = NULL;
    if (alignment < sizeof(void *)) alignment = sizeof(void *);
    if (bytes >= huge && alignment < huge) alignment = huge;
    if (posix_memalign(&p, alignment, bytes ? bytes : 1)) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= huge)
        (void)madvise(p, bytes & ~(huge - 1), MADV_HUGEPAGE); /* a request: it costs nothing if refused */
#endif
    return p;
}

static void cpu_free(void *device, void *pointer) {
    (void)device;
    free(pointer);
}

static size_t cpu_available(const sat_device *d) { return (void)d, sat_memory_now("").left; }

static bool cpu_usable(const sat_device *d, const void *p) {
    (void)d;
    return p != NULL && !sat_is_device_memory(p);
}

static sat_status cpu_copy(const sat_device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    memcpy(to, from, bytes);
    return SAT_OK;
}

static sat_status cpu_set(const sat_device *d, void *to, int byte, size_t bytes) {
    const size_t part = (size_t)1 << 20;
    int64_t parts = (int64_t)((bytes + part - 1) / part);
#pragma omp parallel for num_threads(d->threads) schedule(static) if (parts > 8)
    for (int64_t i = 0; i < parts; i++) {
        size_t at = (size_t)i * part;
        memset((char *)to + at, byte, bytes - at < part ? bytes - at : part);
    }
    return SAT_OK;
}

/* ---- indices that change ---- */

static sat_status cpu_copy_indices(const sat_device *d, const sat_index_copy *x, void *stream) {
    (void)d, (void)stream;
    sat_indices_copy(x);
    return SAT_OK;
}

static sat_status cpu_copy_masks(const sat_device *d, const sat_index_copy *x, const sat_mask_form *form,
                                 void *stream) {
    (void)d, (void)stream;
    sat_masks_copy(x, form);
    return SAT_OK;
}

static sat_status cpu_clear_blocks(const sat_device *d, const sat_index_copy *x, const sat_block_values *values,
                                   void *stream) {
    (void)d, (void)stream;
    sat_indices_clear(x, values);
    return SAT_OK;
}

static void *cpu_alloc_shared(void *d, size_t bytes) { return (void)d, calloc(1, bytes); }

static void cpu_free_shared(void *d, void *pointer) {
    (void)d;
    free(pointer);
}

/* ---- made-up operands ---- */

enum { BATCH = 256 }; /* elements that are made up before they are stored */

/* `count` elements from number `at` on, `stride` apart, each with `add` added. */
static void make_line(const sat_operand *o, void *base, uint64_t seed, const sat_fill *fill, int64_t at, int64_t stride,
                      int64_t count, double add) {
    double values[BATCH];
    for (int64_t done = 0; done < count; done += BATCH) {
        int64_t n = sat_min(BATCH, count - done), first = at + done * stride;
        for (int64_t i = 0; i < n; i++) values[i] = sat_made_up(fill, seed, first + i * stride) + add;
        sat_store_row(o->dtype, base, first, stride, values, n);
    }
}

/* Padding stays NaN. */
static void make_values(const sat_device *d, const sat_operand *o, const sat_pattern_view *a, void *base, uint64_t seed,
                        const sat_fill *fill, int64_t z) {
    int64_t item = z * o->layout.batch_stride, size = a->block_rows * a->block_cols;
    bool ragged = a->rows % a->block_rows != 0 || a->cols % a->block_cols != 0;
#pragma omp parallel for num_threads(d->threads) schedule(dynamic, 16)
    for (int64_t g = 0; g < a->grid_rows; g++) {
        int64_t begin = a->row_ptr[g], end = a->row_end[g];
        if (!ragged) make_line(o, base, seed, fill, item + begin * size, 1, (end - begin) * size, 0);
        for (int64_t t = begin; t < end && ragged; t++) {
            int64_t rows = sat_min(a->block_rows, a->rows - g * a->block_rows);
            int64_t cols = sat_min(a->block_cols, a->cols - a->col_idx[t] * a->block_cols);
            for (int64_t i = 0; i < rows; i++)
                make_line(o, base, seed, fill, item + t * size + i * a->block_cols, 1, cols, 0);
        }
    }
}

static void make_dense(const sat_device *d, const sat_operand *o, void *base, uint64_t seed, const sat_fill *fill,
                       int64_t z) {
#pragma omp parallel for num_threads(d->threads) schedule(static)
    for (int64_t i = 0; i < o->rows; i++) {
        if (!fill->rank_one) {
            make_line(o, base, seed, fill, sat_operand_at(o, z, i, 0), o->layout.col_stride, o->cols,
                      sat_made_up_rise(fill, o, i));
            continue;
        }
        for (int64_t j = 0; j < o->cols; j++) {
            int64_t at = sat_operand_at(o, z, i, j);
            sat_store(o->dtype, base, at, sat_made_up_at(fill, o, seed, at, i, j));
        }
    }
}

static sat_status cpu_make(const sat_device *d, const sat_operand *o, const sat_pattern_view *a, void *base,
                           uint64_t seed, const sat_fill *fill) {
    (void)cpu_set(d, base, sat_padding_byte(fill), (size_t)o->span * sat_dtype_size(o->dtype));
    int64_t items = o->layout.batch_stride || o->batch == 0 ? o->batch : 1;
    for (int64_t z = 0; z < items; z++) {
        if (o->values) make_values(d, o, a, base, seed, fill, z);
        else make_dense(d, o, base, seed, fill, z);
    }
    return SAT_OK;
}

/* Sums of mixed words, which threads add up in any order; the last bytes are a word of their own. */
static sat_status cpu_digest(const sat_device *d, const void *from, size_t bytes, uint64_t *digest) {
    const unsigned char *p = from;
    int64_t words = (int64_t)(bytes / 8);
    uint64_t sum = 0, last = bytes;
#pragma omp parallel for num_threads(d->threads) schedule(static) reduction(+ : sum)
    for (int64_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, p + i * 8, 8);
        sum += (word ^ (word >> 29)) * (2 * (uint64_t)i + 0x9e3779b97f4a7c15u);
    }
    memcpy(&last, p + words * 8, bytes % 8);
    *digest = sum + sat_mix(last);
    return SAT_OK;
}

static bool all_poison(const unsigned char *p, size_t bytes) {
    unsigned char all = 0xff;
    for (size_t i = 0; i < bytes; i++) all &= p[i];
    return all == 0xff;
}

static bool cpu_gaps_intact(const sat_device *d, const sat_operand *o, void *base, size_t guard) {
    (void)d;
    size_t size = sat_dtype_size(o->dtype), bytes = (size_t)o->span * size;
    unsigned char *start = base;
    if (!all_poison(start - guard, guard) || !all_poison(start + bytes, guard)) return false;
    if (o->span == o->rows * o->cols * o->batch) return true; /* no gaps */
    for (int64_t z = 0; z < o->batch; z++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++) {
                int64_t at = sat_operand_at(o, z, i, j);
                memset(start + (size_t)at * size, 0xff, size);
            }
    return all_poison(start, bytes);
}

/* ---- runs ---- */

static sat_status cpu_run_in_region(sat_status (*run)(void *user), void *user) {
    sat_status status = SAT_OK;
#pragma omp parallel num_threads(2)
#pragma omp master
    status = run(user);
    return status;
}

/* ---- timing ---- */

#if defined(__x86_64__)
static void flush_range(const sat_device *d, const char *p, size_t bytes) {
    int64_t lines = (int64_t)(bytes / 64 + 1);
#pragma omp parallel for num_threads(d->threads) schedule(static)
    for (int64_t i = 0; i < lines; i++) {
        size_t at = (size_t)i * 64;
        _mm_clflush(p + (at < bytes ? at : bytes - 1));
    }
    _mm_mfence();
}
#endif

/* Flushing leaves the operands' pages in the TLBs; reading many others does not. Nobody ever writes to these, so
 * they take no memory; they are mapped once. */
enum { PAGE = 4096, FAR_PAGES = 6144 };
static pthread_once_t far_once = PTHREAD_ONCE_INIT;
static const volatile char *far_pages;

static void map_far_pages(void) {
    void *p = mmap(NULL, (size_t)FAR_PAGES * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    (void)madvise(p, (size_t)FAR_PAGES * PAGE, MADV_NOHUGEPAGE);
    far_pages = p;
}

static void flush_tlb(const sat_device *d) {
    (void)pthread_once(&far_once, map_far_pages);
    if (!far_pages) return;
#pragma omp parallel num_threads(d->threads)
    for (size_t i = 0; i < FAR_PAGES; i++) (void)far_pages[i * PAGE];
}

static void cpu_flush(const sat_device *d, void *const *pointers, const size_t *bytes, int count, void *buffer) {
    (void)buffer;
#if defined(__x86_64__)
    for (int i = 0; i < count; i++)
        if (bytes[i]) flush_range(d, pointers[i], bytes[i]);
    flush_tlb(d);
#else
    (void)pointers, (void)bytes, (void)count;
    size_t size = (size_t)d->l3_bytes * 2; /* writing to other memory pushes everything out */
    volatile char *other = malloc(size);
    for (size_t i = 0; other && i < size; i += 64) other[i] = 1;
    free((void *)other);
#endif
}

static double clock_seconds(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void) { return clock_seconds(CLOCK_MONOTONIC); }

static sat_status cpu_time(const sat_device *d, sat_status (*run)(void *), void *user, int repeat, double *seconds) {
    (void)d;
    sat_status status = SAT_OK;
    double start = now();
    for (int i = 0; i < repeat && status == SAT_OK; i++) status = run(user);
    *seconds = (now() - start) / repeat;
    return status;
}

static int64_t cpu_preempted(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_nivcsw : 0;
}

/* Every thread keeps a processor busy for a moment and sees how much of the time it was given. Other work that shares
 * one processor takes half of it; what the system itself needs is a hundredth. */
static bool cpu_quiet(const sat_device *d) {
    const double moment = 0.02;
    double least = 1;
#pragma omp parallel num_threads(d->threads) reduction(min : least)
    {
        double start = now(), used = clock_seconds(CLOCK_THREAD_CPUTIME_ID), passed;
        while ((passed = now() - start) < moment) continue;
        least = (clock_seconds(CLOCK_THREAD_CPUTIME_ID) - used) / passed;
    }
    return least > 0.9;
}

static sat_status cpu_sync(const sat_device *d, void *stream) {
    (void)d, (void)stream;
    return SAT_OK;
}

static int cpu_enter(const sat_device *d, bool own) { return (void)d, (void)own, 0; }
static void cpu_leave(const sat_device *d, int before) { (void)d, (void)before; }
static void cpu_sync_device(const sat_device *d) { (void)d; }
static bool cpu_broken(const sat_device *d) { return (void)d, false; }

static void *cpu_stream(const sat_device *d) {
    (void)d;
    return NULL;
}

static bool cpu_capturing(const sat_device *d, void *stream) {
    (void)d, (void)stream;
    return false;
}

static const sat_checker *cpu_checker(sat_operation op) {
    const sat_op *found = sat_op_find(op);
    return found ? found->host_checker : NULL;
}

const sat_backend sat_backend_cpu = {
    .kind = SAT_CPU,
    .name = "cpu",
    .alignment = 64,
    .call_alignment = 16,
    .shares_memory = true,
    .count = cpu_count,
    .open = cpu_open,
    .enter = cpu_enter,
    .leave = cpu_leave,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .available = cpu_available,
    .usable = cpu_usable,
    .read = cpu_copy,
    .write = cpu_copy,
    .set = cpu_set,
    .copy = cpu_copy,
    .copy_indices = cpu_copy_indices,
    .copy_masks = cpu_copy_masks,
    .clear_blocks = cpu_clear_blocks,
    .alloc_shared = cpu_alloc_shared,
    .free_shared = cpu_free_shared,
    .make = cpu_make,
    .digest = cpu_digest,
    .gaps_intact = cpu_gaps_intact,
    .run_in_region = cpu_run_in_region,
    .stream = cpu_stream,
    .flush = cpu_flush,
    .time = cpu_time,
    .preempted = cpu_preempted,
    .quiet = cpu_quiet,
    .sync = cpu_sync,
    .sync_device = cpu_sync_device,
    .broken = cpu_broken,
    .capturing = cpu_capturing,
    .threads = cpu_threads,
    .checker = cpu_checker,
};
