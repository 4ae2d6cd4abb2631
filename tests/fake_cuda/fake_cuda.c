// The model of a CUDA runtime that fake_cuda.h describes. One lock; operations are kept in lists, one a stream.

#define _GNU_SOURCE
#include "fake_cuda.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_machine fake;

enum { DEVICES = FAKE_DEVICES, DEEPEST = 16 };
typedef enum kind { COPY, FILL, KERNEL, FAULT } kind;

typedef struct op {
    struct op *next;
    kind kind;
    char *to;
    const char *from;
    size_t bytes;
    int byte;
    void *owned; // what a copy from pageable memory reads: CUDA takes it at the call
} op;

typedef struct op_list {
    op *first, **end;
} op_list;

struct CUgraph_st {
    op_list ops;
};
struct CUgraphExec_st {
    op_list ops;
};

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool blocking, capturing, invalid;
    enum cudaStreamCaptureMode mode;
    pthread_t thread;
    op_list queue;
    struct CUgraph_st *graph;
};

struct CUevent_st {
    cudaStream_t stream;
};

typedef struct block {
    struct block *next;
    char *start;
    size_t bytes;
    enum cudaMemoryType type;
    int device;
} block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st legacy[DEVICES], *streams;
static block *blocks;
static struct CUctx_st { int device; } primaries[DEVICES];
static _Thread_local int chosen;                   // by cudaSetDevice
static _Thread_local CUcontext bound[DEEPEST + 1]; // the driver's stack; NULL: no context is current
static _Thread_local int depth;
static _Thread_local enum cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;
static _Thread_local cudaError_t last;

static int current(void) { return bound[depth] ? bound[depth]->device : chosen; }

// What any call that needs a context does where there is none.
static void bind(int device) {
    primaries[device].device = device;
    bound[depth] = &primaries[device];
    fake.contexts[device] = true;
}

static cudaError_t give(cudaError_t e) {
    if (e == cudaSuccess) e = fake.dead;
    if (e != cudaSuccess) last = e;
    return e;
}

/* ---- operations ---- */

static void append(op_list *l, op *o) {
    if (!l->end) l->end = &l->first;
    o->next = NULL;
    *l->end = o, l->end = &o->next;
}

static op *copy_op(const op *o) {
    op *c = malloc(sizeof *c);
    *c = *o;
    if (o->owned) c->owned = malloc(o->bytes + 1), memcpy(c->owned, o->owned, o->bytes), c->from = c->owned;
    return c;
}

static void free_ops(op_list *l) {
    for (op *o = l->first, *next; o; o = next) {
        next = o->next;
        free(o->owned), free(o);
    }
    *l = (op_list){0};
}

static block *block_of(const void *p, size_t bytes) {
    for (block *b = blocks; b; b = b->next)
        if ((const char *)p >= b->start && (const char *)p + bytes <= b->start + b->bytes) return b;
    return NULL;
}

static void perform(const op *o) {
    if (o->kind == FAULT) fake.dead = cudaErrorIllegalAddress;
    if (o->kind == KERNEL || fake.dead != cudaSuccess) return;
    bool from_ok = o->kind == FILL || o->owned || block_of(o->from, o->bytes);
    if (!block_of(o->to, o->bytes) || !from_ok) {
        fake.misuses++;
        return;
    }
    if (o->kind == FILL) memset(o->to, o->byte, o->bytes);
    else memmove(o->to, o->from, o->bytes);
}

static void drain(struct CUstream_st *s) {
    for (op *o = s->queue.first; o; o = o->next) perform(o);
    free_ops(&s->queue);
}

static void drain_all(void) {
    for (int i = 0; i < DEVICES; i++) drain(&legacy[i]);
    for (struct CUstream_st *s = streams; s; s = s->next) drain(s);
}

static struct CUstream_st *new_stream(bool blocking) {
    struct CUstream_st *s = calloc(1, sizeof *s);
    s->device = current(), s->blocking = blocking;
    s->next = streams, streams = s;
    return s;
}

static struct CUstream_st *stream_of(cudaStream_t s) {
    static _Thread_local struct CUstream_st *own_streams[DEVICES];
    if (s == cudaStreamPerThread) {
        struct CUstream_st **mine = &own_streams[current()];
        return *mine ? *mine : (*mine = new_stream(true));
    }
    if (s && s != cudaStreamLegacy) return s;
    struct CUstream_st *own = &legacy[current()];
    own->device = current(), own->blocking = true;
    return own;
}

static void spoil(struct CUstream_st *s) {
    if (s->capturing && !s->invalid) s->invalid = true, fake.spoilt++;
}

// The default stream waits for blocking ones, so it cannot be used while one of them is captured.
static bool implicit(struct CUstream_st *s) {
    bool found = false;
    for (struct CUstream_st *x = streams; x && s >= legacy && s < legacy + DEVICES; x = x->next)
        found = found || (x->capturing && x->blocking && x->device == s->device);
    return found;
}

static cudaError_t enqueue(cudaStream_t stream, op o) {
    struct CUstream_st *s = stream_of(stream);
    if (implicit(s)) {
        for (struct CUstream_st *x = streams; x; x = x->next)
            if (x->blocking) spoil(x);
        return cudaErrorStreamCaptureImplicit;
    }
    if (s->capturing && s->invalid) return cudaErrorStreamCaptureInvalidated;
    if (o.kind == KERNEL && s->device != current()) return cudaErrorInvalidResourceHandle;
    fake.kernels += o.kind == KERNEL;
    append(s->capturing ? &s->graph->ops : &s->queue, copy_op(&o));
    return cudaSuccess;
}

// May this thread allocate and wait now? As cudaThreadExchangeStreamCaptureMode tells it.
static cudaError_t guard_unsafe(void) {
    bool forbidden = false;
    for (struct CUstream_st *s = streams; s && thread_mode != cudaStreamCaptureModeRelaxed; s = s->next) {
        if (!s->capturing || s->mode == cudaStreamCaptureModeRelaxed) continue;
        bool mine = pthread_equal(s->thread, pthread_self());
        if (!mine && (s->mode != cudaStreamCaptureModeGlobal || thread_mode != cudaStreamCaptureModeGlobal)) continue;
        spoil(s), forbidden = true;
    }
    return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

void fake_reset(void) {
    pthread_mutex_lock(&lock);
    fake = (fake_machine){.devices = 1,
                          .capability = {90, 90, 90, 90},
                          .driver = 13000,
                          .memory = (size_t)1 << 30,
                          .held = fake.held,
                          .allocations = fake.allocations};
    chosen = depth = 0, bound[0] = NULL, thread_mode = cudaStreamCaptureModeGlobal, last = cudaSuccess;
    pthread_mutex_unlock(&lock);
}

void fake_fault(cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    enqueue(stream, (op){.kind = FAULT});
    pthread_mutex_unlock(&lock);
}

int fake_pending(void) {
    int count = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < DEVICES; i++)
        for (op *o = legacy[i].queue.first; o; o = o->next) count++;
    for (struct CUstream_st *s = streams; s; s = s->next)
        for (op *o = s->queue.first; o; o = o->next) count++;
    pthread_mutex_unlock(&lock);
    return count;
}

bool fake_live(const void *pointer) {
    pthread_mutex_lock(&lock);
    bool live = block_of(pointer, 1) != NULL;
    pthread_mutex_unlock(&lock);
    return live;
}

#define LOCKED(expression)                                                                                             \
    do {                                                                                                               \
        pthread_mutex_lock(&lock);                                                                                     \
        bind(current());                                                                                               \
        cudaError_t e_ = fake.dead != cudaSuccess ? fake.dead : (expression);                                          \
        e_ = give(e_);                                                                                                 \
        pthread_mutex_unlock(&lock);                                                                                   \
        return e_;                                                                                                     \
    } while (0)

/* ---- devices and errors ---- */

cudaError_t cudaGetDeviceCount(int *count) {
    *count = fake.devices;
    return fake.count_error;
}

cudaError_t cudaDriverGetVersion(int *version) { return *version = fake.driver, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int *version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaGetDevice(int *device) { return *device = current(), cudaSuccess; }
cudaError_t cudaSetDevice(int device) { return chosen = device, bind(device), cudaSuccess; }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "fake %d", device);
    p->major = fake.capability[device] / 10, p->minor = fake.capability[device] % 10;
    p->multiProcessorCount = 4, p->sharedMemPerMultiprocessor = 228 << 10, p->l2CacheSize = FAKE_L2;
    p->totalGlobalMem = fake.memory;
    p->uuid.bytes[0] = (char)0xa0, p->uuid.bytes[15] = (char)device;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr a, int device) {
    (void)a, (void)device;
    *value = 1000;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = fake.dead != cudaSuccess ? fake.dead : last;
    last = cudaSuccess;
    return e;
}

const char *cudaGetErrorName(cudaError_t e) {
    return e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "fake";
}
const char *cudaGetErrorString(cudaError_t e) {
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "fake error %d", (int)e);
    return e == cudaErrorIllegalAddress ? "an illegal memory access was encountered" : text;
}

/* ---- the driver's own calls ---- */

static CUresult device_get(CUdevice *device, int index) { return *device = index, CUDA_SUCCESS; }

static CUresult retain(CUcontext *context, CUdevice device) {
    primaries[device].device = device, fake.contexts[device] = true;
    return *context = &primaries[device], CUDA_SUCCESS;
}

static CUresult push(CUcontext context) {
    if (depth == DEEPEST) return CUDA_ERROR_INVALID_VALUE;
    bound[++depth] = context, fake.contexts[context->device] = true;
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context) {
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    return *context = bound[depth--], CUDA_SUCCESS;
}

static cudaError_t driver_call(const char *name, void **function, enum cudaDriverEntryPointQueryResult *result) {
    uintptr_t call = strcmp(name, "cuDeviceGet") == 0                ? (uintptr_t)device_get
                     : strcmp(name, "cuDevicePrimaryCtxRetain") == 0 ? (uintptr_t)retain
                     : strcmp(name, "cuCtxPushCurrent") == 0         ? (uintptr_t)push
                     : strcmp(name, "cuCtxPopCurrent") == 0          ? (uintptr_t)pop
                                                                     : 0;
    *function = (void *)call;
    *result = call ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)version, (void)flags;
    return driver_call(name, function, result);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char *name, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *result) {
    (void)flags;
    return driver_call(name, function, result);
}
#endif

/* ---- memory ---- */

static cudaError_t allocate(void **p, size_t bytes, enum cudaMemoryType type) {
    cudaError_t e = guard_unsafe();
    if (e != cudaSuccess) return e;
    if (fake.held + bytes > fake.memory) return cudaErrorMemoryAllocation;
    block *b = malloc(sizeof *b);
    b->start = aligned_alloc(256, (bytes + 511) / 256 * 256);
    *b = (block){blocks, b->start, bytes, type, current()};
    memset(b->start, 0xa5, bytes);
    blocks = b, fake.held += bytes, fake.allocations++;
    *p = b->start;
    return cudaSuccess;
}

static cudaError_t release(void *p) {
    cudaError_t e = guard_unsafe();
    if (e != cudaSuccess || !p) return e;
    drain_all();
    for (block **at = &blocks; *at; at = &(*at)->next) {
        block *b = *at;
        if (b->start != p) continue;
        *at = b->next, fake.held -= b->bytes, fake.allocations--;
        free(b->start), free(b);
        return fake.dead;
    }
    fake.misuses++;
    return cudaErrorInvalidValue;
}

cudaError_t cudaMalloc(void **p, size_t bytes) { LOCKED(allocate(p, bytes, cudaMemoryTypeDevice)); }
cudaError_t cudaMallocManaged(void **p, size_t bytes, unsigned flags) {
    (void)flags;
    LOCKED(allocate(p, bytes, cudaMemoryTypeManaged));
}
cudaError_t cudaMallocHost(void **p, size_t bytes) { LOCKED(allocate(p, bytes, cudaMemoryTypeHost)); }
cudaError_t cudaFree(void *p) { LOCKED(release(p)); }
cudaError_t cudaFreeHost(void *p) { LOCKED(release(p)); }

static cudaError_t memory_info(size_t *free, size_t *total) {
    cudaError_t e = guard_unsafe();
    *free = fake.memory - fake.held, *total = fake.memory;
    return e;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { LOCKED(memory_info(free, total)); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
    pthread_mutex_lock(&lock);
    bind(current());
    block *b = block_of(p, 1);
    memset(a, 0, sizeof *a);
    fake.attribute_calls++;
    a->type = b ? b->type : cudaMemoryTypeUnregistered;
    a->device = b ? b->device : -1;
    a->devicePointer = b ? (void *)(uintptr_t)p : NULL;
    pthread_mutex_unlock(&lock);
    return give(cudaSuccess);
}

// To pageable memory at once; from it, what stands there now. To host memory of a symbol, likewise.
static cudaError_t copy(void *to, const void *from, size_t bytes, cudaStream_t stream) {
    op o = {.kind = COPY, .to = to, .from = from, .bytes = bytes};
    if (bytes == 0) return cudaSuccess;
    if (!block_of(to, bytes)) {
        struct CUstream_st *s = stream_of(stream);
        if (s->capturing) return spoil(s), cudaErrorStreamCaptureUnsupported;
        drain(s);
        if (fake.dead != cudaSuccess) return fake.dead;
        memmove(to, from, bytes);
        return cudaSuccess;
    }
    if (!block_of(from, bytes)) {
        o.owned = malloc(bytes + 1);
        memcpy(o.owned, from, bytes);
        o.from = o.owned;
    }
    cudaError_t e = enqueue(stream, o);
    free(o.owned);
    return e;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    LOCKED(copy(to, from, bytes, stream));
}
cudaError_t cudaMemcpyToSymbolAsync(const void *symbol, const void *from, size_t bytes, size_t offset,
                                    enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    LOCKED(copy((char *)(uintptr_t)symbol + offset, from, bytes, stream));
}
cudaError_t cudaMemcpyFromSymbolAsync(void *to, const void *symbol, size_t bytes, size_t offset,
                                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    LOCKED(copy(to, (const char *)symbol + offset, bytes, stream));
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream) {
    LOCKED(enqueue(stream, (op){.kind = FILL, .to = to, .byte = byte, .bytes = bytes}));
}

/* ---- streams, events ---- */

static cudaError_t create_stream(cudaStream_t *out, unsigned flags) {
    *out = new_stream(!(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags) { LOCKED(create_stream(out, flags)); }
cudaError_t cudaStreamCreate(cudaStream_t *out) { return cudaStreamCreateWithFlags(out, 0); }

static cudaError_t destroy_stream(cudaStream_t s) {
    drain(s);
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == s) {
            *at = s->next;
            free(s);
            break;
        }
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) { LOCKED(destroy_stream(s)); }

static cudaError_t wait_for(struct CUstream_st *s) {
    if (s->capturing) return spoil(s), cudaErrorStreamCaptureUnsupported;
    if (implicit(s)) return cudaErrorStreamCaptureImplicit;
    cudaError_t e = guard_unsafe();
    if (e != cudaSuccess) return e;
    drain(s);
    return fake.dead;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) { LOCKED(wait_for(stream_of(s))); }

static cudaError_t wait_for_all(void) {
    bool any = false;
    for (struct CUstream_st *s = streams; s; s = s->next) any = any || s->capturing, spoil(s);
    if (any) return cudaErrorStreamCaptureUnsupported;
    drain_all();
    return fake.dead;
}
cudaError_t cudaDeviceSynchronize(void) { LOCKED(wait_for_all()); }

cudaError_t cudaEventCreate(cudaEvent_t *out) { return *out = calloc(1, sizeof **out), give(cudaSuccess); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return free(event), give(cudaSuccess); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t s) { return event->stream = s, give(cudaSuccess); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { LOCKED(wait_for(stream_of(event->stream))); }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    (void)begin, (void)end;
    *ms = 0.01f;
    return give(cudaSuccess);
}

/* ---- graphs ---- */

static cudaError_t begin_capture(cudaStream_t s, enum cudaStreamCaptureMode mode) {
    if (!s || s == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    s = stream_of(s);
    if (s->capturing) return cudaErrorIllegalState;
    s->capturing = true, s->invalid = false, s->mode = mode, s->thread = pthread_self();
    s->graph = calloc(1, sizeof *s->graph);
    return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode) { LOCKED(begin_capture(s, mode)); }

static cudaError_t end_capture(cudaStream_t s, cudaGraph_t *graph) {
    *graph = NULL;
    s = stream_of(s);
    if (!s->capturing) return cudaErrorIllegalState;
    bool right = s->mode == cudaStreamCaptureModeRelaxed || pthread_equal(s->thread, pthread_self());
    s->capturing = false;
    if (right && !s->invalid) return *graph = s->graph, cudaSuccess;
    free_ops(&s->graph->ops), free(s->graph);
    return right ? cudaErrorStreamCaptureInvalidated : cudaErrorStreamCaptureWrongThread;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph) { LOCKED(end_capture(s, graph)); }

static cudaError_t is_capturing(struct CUstream_st *s, enum cudaStreamCaptureStatus *status) {
    if (implicit(s)) return cudaErrorStreamCaptureImplicit;
    *status = !s->capturing ? cudaStreamCaptureStatusNone
              : s->invalid  ? cudaStreamCaptureStatusInvalidated
                            : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) {
    LOCKED(is_capturing(stream_of(s), status));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    enum cudaStreamCaptureMode before = thread_mode;
    thread_mode = *mode, *mode = before;
    return give(cudaSuccess);
}

static void copy_ops(op_list *to, const op_list *from) {
    for (op *o = from->first; o; o = o->next) append(to, copy_op(o));
}

static cudaError_t instantiate(cudaGraphExec_t *out, cudaGraph_t graph) {
    *out = calloc(1, sizeof **out);
    copy_ops(&(*out)->ops, &graph->ops);
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags) {
    (void)flags;
    LOCKED(instantiate(out, graph));
}

static cudaError_t launch_graph(cudaGraphExec_t graph, cudaStream_t stream) {
    struct CUstream_st *s = stream_of(stream);
    copy_ops(s->capturing ? &s->graph->ops : &s->queue, &graph->ops);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { LOCKED(launch_graph(graph, stream)); }
cudaError_t cudaGraphDestroy(cudaGraph_t g) { return free_ops(&g->ops), free(g), cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) { return free_ops(&g->ops), free(g), cudaSuccess; }

/* ---- what nvcc's code calls ---- */

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    void *stream;
} configuration;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void);
void __cudaRegisterVar(void);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(void **kernel, const void *function);
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary) {
    static void *handle;
    (void)binary;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }
void __cudaRegisterFunction(void) {}
void __cudaRegisterVar(void) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    configuration.grid = grid, configuration.block = block;
    configuration.shared = shared, configuration.stream = stream;
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    *grid = configuration.grid, *block = configuration.block, *shared = configuration.shared;
    *(void **)stream = configuration.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(void **kernel, const void *function) {
    *kernel = (void *)(uintptr_t)function;
    return cudaSuccess;
}

/* Of all kernels: those of the tests' own are the only ones that ask for more. */
static atomic_int shared_allowed = 48 << 10;

static cudaError_t launch(cudaStream_t stream) { LOCKED(enqueue(stream, (op){.kind = KERNEL})); }
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
    (void)kernel, (void)grid, (void)block, (void)args, (void)shared;
    return launch(stream);
}
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream) { // before CUDA 13
    (void)kernel, (void)grid, (void)block, (void)args, (void)shared;
    return launch(stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *kernel, void **args) {
    (void)kernel, (void)args;
    if ((int)c->dynamicSmemBytes > atomic_load(&shared_allowed)) return give(cudaErrorInvalidValue);
    return launch(c->stream);
}
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value) {
    (void)kernel;
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) atomic_store(&shared_allowed, value);
    return give(cudaSuccess);
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *kernel) {
    (void)kernel;
    *a = (struct cudaFuncAttributes){.ptxVersion = 90};
    return give(cudaSuccess);
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks_, const void *kernel, int threads,
                                                          size_t shared) {
    (void)kernel, (void)threads, (void)shared;
    *blocks_ = 1;
    return give(cudaSuccess);
}
