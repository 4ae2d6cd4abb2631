/* The CUDA backend: device, memory, the tuning stream and timing. Its kernels are in cuda_fill.cu and cuda_rates.cu,
 * its checks in cuda_check*.cu, and how it gets along with the program's own CUDA calls in cuda_calls.c.
 *
 * Tuning runs on a stream of its own for each device, so that it neither waits for the program's work nor holds it up.
 * Every function enters its device first, and leaves it again. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cuda.h"
#include "variant.h"

static struct {
    _Atomic(cudaStream_t) stream; /* NULL until first used */
    cudaStream_t beside;          /* likewise */
    cudaEvent_t begin, end;
    double empty_seconds; /* what an event pair shows around a kernel that does nothing; 0 until `ready` */
    bool ready;
} devices[SAT_CUDA_DEVICES];

/* ---- devices ---- */

static int cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count < SAT_CUDA_DEVICES ? count : SAT_CUDA_DEVICES;
}

static int attribute(int index, enum cudaDeviceAttr what) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, what, index) == cudaSuccess ? value : 0;
}

/* Operations a multiprocessor does in a cycle, a multiply-add counted as two: tensor cores for 16-bit types, plain
 * units for f32 (TF32 has to be allowed), whichever is faster for f64. */
static void nominal_rates(sat_device *d, int index) {
    int khz = attribute(index, cudaDevAttrClockRate);
    double all = 1e3 * (khz > 0 ? khz : 1500000) * d->multiprocessors; /* newer drivers may not say */
    bool hopper = d->capability >= 90, server = d->capability == 80 || d->capability >= 90;
    d->flop_rate[SAT_F16] = d->flop_rate[SAT_BF16] = all * (hopper ? 4096 : d->capability == 80 ? 2048 : 1024) * 0.75;
    d->tf32_rate = d->flop_rate[SAT_F16] / 2;
    d->flop_rate[SAT_F32] = all * (d->capability == 80 ? 128 : 256) * 0.8;
    d->flop_rate[SAT_F64] = all * (hopper ? 256 : server ? 128 : 4) * 0.8;
    double wires = attribute(index, cudaDevAttrGlobalMemoryBusWidth) / 8.0;
    d->memory_rate = 2e3 * attribute(index, cudaDevAttrMemoryClockRate) * wires * 0.85;
    if (d->memory_rate <= 0) d->memory_rate = 1e12;
    d->l2_rate = all * 36; /* bytes a cycle of each multiprocessor */
    if (d->l2_rate <= d->memory_rate) d->l2_rate = 2 * d->memory_rate;
}

static sat_status cuda_open(int index, const sat_context_options *options, sat_device *d) {
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) return sat_cuda_absent(error, index);
    if (index >= count || index >= SAT_CUDA_DEVICES)
        return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; this machine has %d", index, count);
    struct cudaDeviceProp p;
    error = cudaGetDeviceProperties(&p, index);
    if (error != cudaSuccess) return sat_cuda_status(error, "cudaGetDeviceProperties");
    (void)cudaDriverGetVersion(&driver);
    if (p.major < 8)
        return sat_fail(SAT_UNSUPPORTED, "device is 'cuda:%d', %s of capability %d.%d; expected 8.0 or more", index,
                        p.name, p.major, p.minor);
    *d = (sat_device){SAT_SIZED(sat_device), .backend = SAT_CUDA, .index = index};
    d->multiprocessors = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    d->l1_bytes = (int64_t)p.sharedMemPerMultiprocessor;
    d->l2_bytes = p.l2CacheSize;
    d->shared_bytes = (int64_t)p.sharedMemPerBlockOptin;
    d->driver = driver;
    d->memory_bytes = (int64_t)p.totalGlobalMem;
    snprintf(d->name, sizeof d->name, "%.80s (%d SMs, %.0f GB)", p.name, d->multiprocessors,
             (double)p.totalGlobalMem * 1e-9);
    snprintf(d->identity, sizeof d->identity, "cuda %.80s, sm_%d, %d SMs, %lld MiB, L2 %d MiB, driver %d.%d", p.name,
             d->capability, d->multiprocessors, (long long)(p.totalGlobalMem >> 20), p.l2CacheSize >> 20, driver / 1000,
             driver % 1000 / 10);
    nominal_rates(d, index);
    int wanted = options->multiprocessors;
    /* Persistent kernels start so many CTAs. */
    if (wanted > 0 && wanted < d->multiprocessors) d->multiprocessors = wanted;
    return SAT_OK;
}

static void cuda_unique(const sat_device *d, char *text, size_t size) {
    struct cudaDeviceProp p;
    text[0] = 0;
    if (cudaGetDeviceProperties(&p, d->index) != cudaSuccess) {
        (void)cudaGetLastError();
        return;
    }
    for (size_t i = 0; i < sizeof p.uuid.bytes && 2 * i + 3 <= size; i++)
        snprintf(text + 2 * i, 3, "%02x", (unsigned)(unsigned char)p.uuid.bytes[i]);
}

/* ---- memory ---- */

static void *cuda_alloc(void *device, size_t bytes, size_t alignment) { /* cudaMalloc gives 256 bytes of it */
    int before = sat_cuda_enter_as(device, SAT_CUDA_ASIDE);
    void *p = NULL;
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        p = NULL;
    }
    sat_cuda_leave(device, before);
    return (uintptr_t)p % alignment ? NULL : p;
}

static void cuda_free(void *device, void *pointer) { /* waits for work that is queued, so freeing is always safe */
    int before = sat_cuda_enter_as(device, SAT_CUDA_ASIDE);
    if (cudaFree(pointer) != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(device, before);
}

static size_t cuda_available(const sat_device *d) {
    int before = sat_cuda_enter_as(d, SAT_CUDA_ASIDE);
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
        (void)cudaGetLastError();
        free = 0;
    }
    sat_cuda_leave(d, before);
    return free;
}

static bool cuda_usable(const sat_device *d, const void *pointer) {
    struct cudaPointerAttributes a;
    int before = sat_cuda_enter_as(d, SAT_CUDA_RUN);
    cudaError_t e = cudaPointerGetAttributes(&a, pointer);
    if (e != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(d, before);
    if (e != cudaSuccess) return false;
    if (a.type == cudaMemoryTypeDevice) return a.device == d->index;
    return a.type == cudaMemoryTypeManaged || (a.type == cudaMemoryTypeHost && a.devicePointer == pointer);
}

/* ---- the tuning stream ---- */

/* Made on first use and kept for the life of the process: contexts come and go. All of these are within enter(). */
static cudaError_t begin(const sat_device *d, cudaStream_t *stream) {
    *stream = atomic_load(&devices[d->index].stream);
    if (*stream) return cudaSuccess;
    cudaError_t e = cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) atomic_store(&devices[d->index].stream, *stream);
    return e;
}

static void *cuda_stream(const sat_device *d) {
    int before = sat_cuda_enter(d);
    cudaStream_t stream = NULL;
    if (begin(d, &stream) != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(d, before);
    return stream;
}

static cudaError_t finish(cudaError_t error, cudaStream_t stream) {
    return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

static sat_status cuda_read(const sat_device *d, void *host, const void *from, size_t bytes) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = finish(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, stream), stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "copying from the device");
}

static sat_status cuda_write(const sat_device *d, void *to, const void *host, size_t bytes) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = finish(cudaMemcpyAsync(to, host, bytes, cudaMemcpyDefault, stream), stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "copying to the device");
}

static sat_status cuda_set(const sat_device *d, void *to, int byte, size_t bytes) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess && bytes) e = cudaMemsetAsync(to, byte, bytes, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "filling memory");
}

static sat_status cuda_copy(const sat_device *d, void *to, const void *from, size_t bytes) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess && bytes) e = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "copying on the device");
}

/* ---- indices that change ---- */

/* In a caller's run, whose device is current: no more than what is queued. */
static sat_status cuda_copy_indices(const sat_device *d, const sat_index_copy *x, void *stream) {
    (void)d;
    return sat_cuda_status(sat_cuda_copy_indices(x, stream), "copying indices");
}

static sat_status cuda_clear_blocks(const sat_device *d, const sat_index_copy *x, const sat_block_values *values,
                                    void *stream) {
    (void)d;
    return sat_cuda_status(sat_cuda_clear_blocks(x, values, stream), "clearing blocks");
}

static void *cuda_alloc_shared(void *device, size_t bytes) { /* has the same address on the device */
    int before = sat_cuda_enter_as(device, SAT_CUDA_ASIDE);
    void *p = NULL;
    if (cudaMallocHost(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError();
        p = NULL;
    }
    sat_cuda_leave(device, before);
    return p ? memset(p, 0, bytes) : NULL;
}

static void cuda_free_shared(void *device, void *pointer) {
    int before = sat_cuda_enter_as(device, SAT_CUDA_ASIDE);
    if (cudaFreeHost(pointer) != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(device, before);
}

/* ---- made-up operands ---- */

static sat_status cuda_make(const sat_device *d, const sat_operand *o, const sat_pattern_view *a, void *base,
                            uint64_t seed, const sat_fill *fill) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    size_t bytes = (size_t)o->span * sat_dtype_size(o->dtype);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess && bytes) e = cudaMemsetAsync(base, sat_padding_byte(fill), bytes, stream);
    if (e == cudaSuccess && bytes) e = sat_cuda_fill(o, a, base, seed, fill, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "making up operands");
}

static sat_status cuda_digest(const sat_device *d, const void *from, size_t bytes, uint64_t *digest) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = sat_cuda_digest(from, bytes, digest, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "looking at inputs");
}

static bool cuda_gaps_intact(const sat_device *d, const sat_operand *o, void *base, size_t guard) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    bool clean = false;
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = sat_cuda_all_poison(o, base, guard, &clean, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "looking at guard zones") == SAT_OK && clean;
}

/* CTAs of 1024 threads on half of the multiprocessors: what runs meanwhile gets the others, and half of each. */
static void cuda_add_load(const sat_device *d) {
    cudaStream_t stream, *beside = &devices[d->index].beside;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e == cudaSuccess && !*beside) e = cudaStreamCreateWithFlags(beside, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = sat_cuda_spin((d->multiprocessors + 1) / 2, *beside);
    if (e != cudaSuccess) (void)cudaGetLastError(); /* then the run has the device to itself */
    sat_cuda_leave(d, before);
}

/* ---- timing ---- */

static double median(double *all, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && all[j] < all[j - 1]; j--) {
            double swap = all[j];
            all[j] = all[j - 1], all[j - 1] = swap;
        }
    return all[count / 2];
}

/* The stream, and the events that timing needs besides; they are kept as it is. */
static cudaError_t begin_timing(const sat_device *d, cudaStream_t *stream) {
    cudaEvent_t *first = &devices[d->index].begin, *last = &devices[d->index].end;
    cudaError_t e = begin(d, stream);
    if (e == cudaSuccess && !*first) e = cudaEventCreate(first);
    if (e == cudaSuccess && !*last) e = cudaEventCreate(last);
    return e;
}

static size_t cuda_flush_bytes(const sat_device *d) { return 2 * (size_t)(d->l2_bytes > 0 ? d->l2_bytes : 64 << 20); }

/* Behind a sweep, as cold runs are. Warm ones are so many that it does not matter to them. */
static cudaError_t time_nothing(const sat_device *d, void *buffer, cudaStream_t stream) {
    double all[31] = {0};
    const cudaEvent_t first = devices[d->index].begin, last = devices[d->index].end;
    cudaError_t e = cudaSuccess;
    for (int i = -5; e == cudaSuccess && i < 31; i++) {
        float ms = 0;
        e = sat_cuda_sweep(buffer, cuda_flush_bytes(d), stream);
        if (e == cudaSuccess) e = cudaEventRecord(first, stream);
        if (e == cudaSuccess) e = sat_cuda_nothing(stream);
        if (e == cudaSuccess) e = cudaEventRecord(last, stream);
        if (e == cudaSuccess) e = cudaEventSynchronize(last);
        if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, first, last);
        if (i >= 0) all[i] = ms * 1e-3;
    }
    devices[d->index].ready = e == cudaSuccess;
    if (e == cudaSuccess) devices[d->index].empty_seconds = median(all, 31);
    return e;
}

static void cuda_flush(const sat_device *d, void *const *pointers, const size_t *bytes, int count, void *buffer) {
    (void)pointers, (void)bytes, (void)count;
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin_timing(d, &stream);
    if (e == cudaSuccess && !devices[d->index].ready) e = time_nothing(d, buffer, stream);
    if (e == cudaSuccess) e = sat_cuda_sweep(buffer, cuda_flush_bytes(d), stream);
    if (e != cudaSuccess) (void)cudaGetLastError(); /* the run that follows fails too, and says so */
    sat_cuda_leave(d, before);
}

/* Many runs as one graph, so that the host's part of a launch is not timed with them. False where `run` does what
 * cannot be captured. */
static bool capture_runs(cudaStream_t stream, sat_status (*run)(void *), void *user, int repeat, cudaGraphExec_t *out) {
    cudaGraph_t graph = NULL;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return false;
    sat_status status = SAT_OK;
    for (int i = 0; i < repeat && status == SAT_OK; i++) status = run(user);
    bool captured = cudaStreamEndCapture(stream, &graph) == cudaSuccess && status == SAT_OK;
    captured = captured && cudaGraphInstantiate(out, graph, 0) == cudaSuccess;
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    return captured;
}

enum { MOST_NODES = 100 }; /* launches in one graph */

/* The events bracket what is queued on the tuning stream, so the host's own time is hidden behind what was queued
 * before: the flush, or for warm runs a first launch. */
static cudaError_t time_launches(cudaStream_t stream, sat_status (*run)(void *), void *user, cudaGraphExec_t graph,
                                 int repeat, const cudaEvent_t event[2], sat_status *status) {
    cudaError_t e = cudaSuccess;
    if (graph) e = cudaGraphLaunch(graph, stream);
    else if (repeat > 1) *status = run(user);
    if (e == cudaSuccess) e = cudaEventRecord(event[0], stream);
    for (int i = 0; i < repeat && *status == SAT_OK && e == cudaSuccess; i++)
        if (graph) e = cudaGraphLaunch(graph, stream);
        else *status = run(user);
    if (e == cudaSuccess) e = cudaEventRecord(event[1], stream);
    if (e == cudaSuccess) e = cudaEventSynchronize(event[1]);
    return e == cudaSuccess ? cudaGetLastError() : e;
}

static sat_status cuda_time(const sat_device *d, sat_status (*run)(void *), void *user, int repeat, double *seconds) {
    cudaStream_t stream;
    cudaGraphExec_t graph = NULL;
    sat_status status = SAT_OK;
    float ms = 0;
    int nodes = 1, before = sat_cuda_enter(d);
    cudaError_t e = begin_timing(d, &stream);
    if (e == cudaSuccess) {
        const cudaEvent_t event[2] = {devices[d->index].begin, devices[d->index].end};
        nodes = repeat < MOST_NODES ? repeat : MOST_NODES;
        if (repeat > 1 && capture_runs(stream, run, user, nodes, &graph)) repeat = (repeat + nodes - 1) / nodes;
        else nodes = 1;
        e = time_launches(stream, run, user, graph, repeat, event, &status);
        if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, event[0], event[1]);
        if (graph) (void)cudaGraphExecDestroy(graph);
    }
    double taken = (ms * 1e-3 - devices[d->index].empty_seconds) / ((double)repeat * nodes);
    sat_cuda_leave(d, before);
    *seconds = taken > 1e-7 ? taken : 1e-7;
    return status != SAT_OK ? status : sat_cuda_status(e, "running a variant");
}

static sat_status cuda_measure(const sat_device *d, void *scratch, size_t bytes, sat_rates *rates) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = sat_cuda_measure(d, scratch, bytes, rates, stream);
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "measuring the device's rates");
}

static sat_status cuda_sync(const sat_device *d, void *stream) {
    /* The tuning stream may be in another thread's hands, which may be capturing it. */
    bool own = stream && stream == atomic_load(&devices[d->index].stream);
    int before = sat_cuda_enter_as(d, own ? SAT_CUDA_OWN : SAT_CUDA_ASIDE);
    cudaError_t e = cudaStreamSynchronize(stream);
    if (e == cudaSuccess) e = cudaGetLastError();
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "waiting for the device");
}

/* After an illegal access, or anything else that ends a kernel, every call fails for as long as the process lives. */
static bool cuda_broken(const sat_device *d) {
    cudaStream_t stream;
    int before = sat_cuda_enter(d);
    (void)cudaGetLastError();
    cudaError_t e = begin(d, &stream);
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    if (e != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(d, before);
    return e != cudaSuccess && e != cudaErrorMemoryAllocation;
}

static int cuda_enter(const sat_device *d, bool own) { return sat_cuda_enter_as(d, own ? SAT_CUDA_OWN : SAT_CUDA_RUN); }

static bool cuda_per_thread(const void *stream) { return stream == cudaStreamPerThread; }

static int cuda_threads(int wanted) { return (void)wanted, 0; }

static const sat_checker *cuda_checker(sat_operation op) {
    switch (op) {
    case SAT_MATMUL: return &sat_cuda_matmul_check;
    case SAT_SAMPLED: return &sat_cuda_sampled_check;
    case SAT_ATTENTION:
    case SAT_ATTENTION_BACKWARD: return &sat_cuda_attention_check;
    case SAT_GROUPED:
    case SAT_GROUPED_WEIGHTS: return &sat_cuda_grouped_check;
    }
    return NULL;
}

const sat_backend sat_backend_cuda = {
    .kind = SAT_CUDA,
    .name = "cuda",
    .alignment = 256,
    .call_alignment = 128,
    .lazy_loading = true,
    .count = cuda_count,
    .open = cuda_open,
    .unique = cuda_unique,
    .enter = cuda_enter,
    .leave = sat_cuda_leave,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .available = cuda_available,
    .usable = cuda_usable,
    .read = cuda_read,
    .write = cuda_write,
    .set = cuda_set,
    .copy = cuda_copy,
    .copy_indices = cuda_copy_indices,
    .clear_blocks = cuda_clear_blocks,
    .index_scratch = sat_cuda_index_scratch,
    .alloc_shared = cuda_alloc_shared,
    .free_shared = cuda_free_shared,
    .make = cuda_make,
    .digest = cuda_digest,
    .gaps_intact = cuda_gaps_intact,
    .stream = cuda_stream,
    .flush = cuda_flush,
    .flush_bytes = cuda_flush_bytes,
    .time = cuda_time,
    .measure = cuda_measure,
    .add_load = cuda_add_load,
    .sync = cuda_sync,
    .sync_device = sat_cuda_sync_device,
    .broken = cuda_broken,
    .per_thread = cuda_per_thread,
    .capturing = sat_cuda_capturing,
    .threads = cuda_threads,
    .checker = cuda_checker,
};
