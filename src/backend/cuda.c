/* The CUDA backend: device, memory, streams and timing. Its kernels are in cuda_fill.cu, its checks in cuda_check*.cu.
 *
 * Tuning runs on a stream of its own for each device, so that it neither waits for the program's work nor holds it up.
 * Every call sets its device first and puts the caller's back. */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/cuda.h"
#include "variant.h"

enum { MOST_DEVICES = 64 };

static struct {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    void *flush;
    size_t flush_bytes;
    double empty_seconds; /* what an event pair shows around a kernel that does nothing */
    bool ready;
} devices[MOST_DEVICES];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

sat_status sat_cuda_status(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return SAT_OK;
    (void)cudaGetLastError(); /* not for the next call to find */
    return sat_fail(error == cudaErrorMemoryAllocation ? SAT_OUT_OF_MEMORY : SAT_DEVICE_ERROR, "%s: %s (%s)", what,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}

int sat_cuda_enter(const sat_device *d) {
    int before = -1;
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    if (before != d->index) (void)cudaSetDevice(d->index);
    return before;
}

void sat_cuda_leave(const sat_device *d, int before) {
    if (before >= 0 && before != d->index) (void)cudaSetDevice(before);
}

/* ---- devices ---- */

static int cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    return count < MOST_DEVICES ? count : MOST_DEVICES;
}

static int attribute(int index, enum cudaDeviceAttr what) {
    int value = 0;
    return cudaDeviceGetAttribute(&value, what, index) == cudaSuccess ? value : 0;
}

/* Operations a multiprocessor does in a cycle, a multiply-add counted as two: tensor cores for 16-bit types, plain
 * units for f32 (TF32 has to be allowed), whichever is faster for f64. */
static void nominal_rates(sat_device *d, int index) {
    double hz = 1e3 * attribute(index, cudaDevAttrClockRate), all = hz * d->threads;
    bool hopper = d->capability >= 90, server = d->capability == 80 || d->capability >= 90;
    d->flop_rate[SAT_F16] = d->flop_rate[SAT_BF16] = all * (hopper ? 4096 : d->capability == 80 ? 2048 : 1024) * 0.75;
    d->flop_rate[SAT_F32] = all * (d->capability == 80 ? 128 : 256) * 0.8;
    d->flop_rate[SAT_F64] = all * (hopper ? 256 : server ? 128 : 4) * 0.8;
    double wires = attribute(index, cudaDevAttrGlobalMemoryBusWidth) / 8.0;
    d->memory_rate = 2e3 * attribute(index, cudaDevAttrMemoryClockRate) * wires * 0.85;
    if (d->memory_rate <= 0) d->memory_rate = 1e12;
}

static sat_status cuda_open(int index, int threads, sat_device *d) {
    (void)threads;
    int count = 0, driver = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; this machine has none that works: %s", index,
                        cudaGetErrorString(error));
    }
    if (index >= count || index >= MOST_DEVICES)
        return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; this machine has %d", index, count);
    struct cudaDeviceProp p;
    error = cudaGetDeviceProperties(&p, index);
    if (error != cudaSuccess) return sat_cuda_status(error, "cudaGetDeviceProperties");
    (void)cudaDriverGetVersion(&driver);
    if (p.major < 8)
        return sat_fail(SAT_UNSUPPORTED, "device is 'cuda:%d', %s of capability %d.%d; expected 8.0 or more", index,
                        p.name, p.major, p.minor);
    *d = (sat_device){SAT_SIZED(sat_device), .backend = SAT_CUDA, .index = index};
    d->threads = p.multiProcessorCount;
    d->capability = p.major * 10 + p.minor;
    d->l1_bytes = (int64_t)p.sharedMemPerMultiprocessor;
    d->l2_bytes = p.l2CacheSize;
    d->memory_bytes = (int64_t)p.totalGlobalMem;
    snprintf(d->name, sizeof d->name, "%.80s (%d SMs, %.0f GB)", p.name, d->threads, (double)p.totalGlobalMem * 1e-9);
    snprintf(d->identity, sizeof d->identity, "cuda %.80s, sm_%d, %d SMs, %lld MiB, L2 %d MiB, driver %d.%d", p.name,
             d->capability, d->threads, (long long)(p.totalGlobalMem >> 20), p.l2CacheSize >> 20, driver / 1000,
             driver % 1000 / 10);
    nominal_rates(d, index);
    return SAT_OK;
}

/* ---- memory ---- */

static void *cuda_alloc(void *device, size_t bytes, size_t alignment) { /* cudaMalloc gives 256 bytes of it */
    int before = sat_cuda_enter(device);
    void *p = NULL;
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        (void)cudaGetLastError();
        p = NULL;
    }
    sat_cuda_leave(device, before);
    return (uintptr_t)p % alignment ? NULL : p;
}

static void cuda_free(void *device, void *pointer) { /* waits for work that is queued, so freeing is always safe */
    int before = sat_cuda_enter(device);
    (void)cudaFree(pointer);
    sat_cuda_leave(device, before);
}

static size_t cuda_available(const sat_device *d) {
    int before = sat_cuda_enter(d);
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) free = 0;
    sat_cuda_leave(d, before);
    return free;
}

static bool cuda_usable(const sat_device *d, const void *pointer) {
    struct cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, pointer) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (a.type == cudaMemoryTypeDevice) return a.device == d->index;
    return a.type == cudaMemoryTypeManaged || (a.type == cudaMemoryTypeHost && a.devicePointer == pointer);
}

/* ---- the tuning stream ---- */

static cudaError_t start(int index) {
    cudaError_t e = cudaStreamCreateWithFlags(&devices[index].stream, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaEventCreate(&devices[index].begin);
    if (e == cudaSuccess) e = cudaEventCreate(&devices[index].end);
    int l2 = attribute(index, cudaDevAttrL2CacheSize);
    devices[index].flush_bytes = (size_t)(l2 > 0 ? l2 : 64 << 20) * 2;
    if (e == cudaSuccess) e = cudaMalloc(&devices[index].flush, devices[index].flush_bytes);
    if (e == cudaSuccess)
        e = cudaMemsetAsync(devices[index].flush, 0, devices[index].flush_bytes, devices[index].stream);
    double all[31] = {0};
    for (int i = -5; e == cudaSuccess && i < 31; i++) {
        float ms = 0;
        e = sat_cuda_sweep(devices[index].flush, devices[index].flush_bytes, devices[index].stream);
        if (e == cudaSuccess) e = cudaEventRecord(devices[index].begin, devices[index].stream);
        if (e == cudaSuccess) e = sat_cuda_nothing(devices[index].stream);
        if (e == cudaSuccess) e = cudaEventRecord(devices[index].end, devices[index].stream);
        if (e == cudaSuccess) e = cudaEventSynchronize(devices[index].end);
        if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, devices[index].begin, devices[index].end);
        if (i >= 0) all[i] = ms * 1e-3;
    }
    for (int i = 1; i < 31; i++) /* sorts */
        for (int j = i; j > 0 && all[j] < all[j - 1]; j--) {
            double swap = all[j];
            all[j] = all[j - 1], all[j - 1] = swap;
        }
    devices[index].empty_seconds = all[15];
    return e;
}

/* Made on first use and kept for the life of the process: contexts come and go. */
static cudaError_t begin(const sat_device *d) {
    cudaError_t error = cudaSuccess;
    pthread_mutex_lock(&devices_lock);
    if (!devices[d->index].ready) {
        int before = sat_cuda_enter(d);
        error = start(d->index);
        devices[d->index].ready = error == cudaSuccess;
        sat_cuda_leave(d, before);
    }
    pthread_mutex_unlock(&devices_lock);
    return error;
}

static void *cuda_stream(const sat_device *d) { return begin(d) == cudaSuccess ? devices[d->index].stream : NULL; }

static sat_status finish(const sat_device *d, cudaError_t error, const char *what) {
    if (error == cudaSuccess) error = cudaStreamSynchronize(cuda_stream(d));
    return sat_cuda_status(error, what);
}

static sat_status cuda_read(const sat_device *d, void *host, const void *from, size_t bytes) {
    int before = sat_cuda_enter(d);
    cudaError_t e = cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, cuda_stream(d));
    sat_status status = finish(d, e, "copying from the device");
    sat_cuda_leave(d, before);
    return status;
}

static sat_status cuda_write(const sat_device *d, void *to, const void *host, size_t bytes) {
    int before = sat_cuda_enter(d);
    cudaError_t e = cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, cuda_stream(d));
    sat_status status = finish(d, e, "copying to the device");
    sat_cuda_leave(d, before);
    return status;
}

static sat_status cuda_set(const sat_device *d, void *to, int byte, size_t bytes) {
    int before = sat_cuda_enter(d);
    cudaError_t e = bytes ? cudaMemsetAsync(to, byte, bytes, cuda_stream(d)) : cudaSuccess;
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "filling memory");
}

static sat_status cuda_copy(const sat_device *d, void *to, const void *from, size_t bytes) {
    int before = sat_cuda_enter(d);
    cudaError_t e = bytes ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream(d)) : cudaSuccess;
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "copying on the device");
}

static sat_status cuda_make(const sat_device *d, const sat_operand *o, const sat_pattern_view *a, void *base,
                            uint64_t seed, sat_fill fill, double scale) {
    int before = sat_cuda_enter(d);
    size_t bytes = (size_t)o->span * sat_dtype_size(o->dtype);
    cudaError_t e = bytes ? cudaMemsetAsync(base, 0xff, bytes, cuda_stream(d)) : cudaSuccess; /* NaN in every dtype */
    if (e == cudaSuccess && bytes) e = sat_cuda_fill(o, a, base, seed, fill, scale, cuda_stream(d));
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "making up operands");
}

static sat_status cuda_negate(const sat_device *d, sat_dtype t, void *base, int64_t elements) {
    int before = sat_cuda_enter(d);
    cudaError_t e = elements ? sat_cuda_flip_signs(t, base, elements, cuda_stream(d)) : cudaSuccess;
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "changing signs");
}

static bool cuda_clean(const sat_device *d, const sat_operand *o, void *base, size_t guard) {
    int before = sat_cuda_enter(d);
    bool clean = false;
    cudaError_t e = sat_cuda_all_poison(o, base, guard, &clean, cuda_stream(d));
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "looking at guard zones") == SAT_OK && clean;
}

/* ---- timing ---- */

static void cuda_flush(const sat_device *d, void *const *pointers, const size_t *bytes, int count) {
    (void)pointers, (void)bytes, (void)count;
    int before = sat_cuda_enter(d);
    if (begin(d) == cudaSuccess)
        (void)sat_cuda_sweep(devices[d->index].flush, devices[d->index].flush_bytes, cuda_stream(d));
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
    cudaError_t e = begin(d);
    if (e != cudaSuccess) return sat_cuda_status(e, "starting to tune");
    int before = sat_cuda_enter(d);
    cudaStream_t stream = cuda_stream(d);
    const cudaEvent_t event[2] = {devices[d->index].begin, devices[d->index].end};
    cudaGraphExec_t graph = NULL;
    sat_status status = SAT_OK;
    int nodes = repeat < MOST_NODES ? repeat : MOST_NODES;
    float ms = 0;
    if (repeat > 1 && capture_runs(stream, run, user, nodes, &graph)) repeat = (repeat + nodes - 1) / nodes;
    else nodes = 1;
    e = time_launches(stream, run, user, graph, repeat, event, &status);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, event[0], event[1]);
    if (graph) (void)cudaGraphExecDestroy(graph);
    sat_cuda_leave(d, before);
    double taken = (ms * 1e-3 - devices[d->index].empty_seconds) / ((double)repeat * nodes);
    *seconds = taken > 1e-7 ? taken : 1e-7;
    return status != SAT_OK ? status : sat_cuda_status(e, "running a variant");
}

static sat_status cuda_sync(const sat_device *d, void *stream) {
    int before = sat_cuda_enter(d);
    cudaError_t e = cudaStreamSynchronize(stream);
    if (e == cudaSuccess) e = cudaGetLastError();
    sat_cuda_leave(d, before);
    return sat_cuda_status(e, "waiting for the device");
}

static bool cuda_capturing(const sat_device *d, void *stream) {
    (void)d;
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) {
        (void)cudaGetLastError(); /* the default stream, while another one captures */
        return true;
    }
    return capture != cudaStreamCaptureStatusNone;
}

static int cuda_threads(void) { return 0; }

static const sat_checker *cuda_checker(sat_operation op) {
    return op == SAT_MATMUL ? &sat_cuda_matmul_check : op == SAT_SAMPLED ? &sat_cuda_sampled_check : NULL;
}

const sat_backend sat_backend_cuda = {
    .kind = SAT_CUDA,
    .name = "cuda",
    .alignment = 256,
    .loads_late = true,
    .count = cuda_count,
    .open = cuda_open,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .available = cuda_available,
    .usable = cuda_usable,
    .read = cuda_read,
    .write = cuda_write,
    .set = cuda_set,
    .copy = cuda_copy,
    .make = cuda_make,
    .negate = cuda_negate,
    .clean = cuda_clean,
    .stream = cuda_stream,
    .flush = cuda_flush,
    .time = cuda_time,
    .sync = cuda_sync,
    .capturing = cuda_capturing,
    .threads = cuda_threads,
    .checker = cuda_checker,
};
