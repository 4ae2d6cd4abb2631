/* How this library makes CUDA calls in a program that makes its own: on its own device, beside captures of graphs, one
 * thread at a time on the tuning stream; and what a failed call means.
 *
 * While any stream is captured in the global mode, calls that allocate or wait are forbidden to every thread, and one
 * such call spoils the capture. The library's own calls concern no stream of the program, so they run in the relaxed
 * mode, which lifts that; a caller's run does not, so that a variant that allocates in its launch is found out. */
#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "backend/cuda.h"

static pthread_mutex_t locks[SAT_CUDA_DEVICES]; /* of the tuning streams */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_locks(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    for (int i = 0; i < SAT_CUDA_DEVICES; i++) pthread_mutex_init(&locks[i], &a);
    pthread_mutexattr_destroy(&a);
}

/* ---- another device than the thread's ---- */

/* cudaSetDevice makes a context on the device that it names, so putting back with it the device that was current would
 * give a process a context, and some hundred MB less, on a GPU that it never used. The driver's stack of contexts is
 * put back without a trace. */
static struct {
    CUresult (*device)(CUdevice *device, int index);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
    bool found;
} driver;

static bool find_call(const char *name, void *function) {
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    cudaError_t e = cudaGetDriverEntryPointByVersion(name, function, 12000, cudaEnableDefault, &found);
#else
    cudaError_t e = cudaGetDriverEntryPoint(name, function, cudaEnableDefault, &found);
#endif
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess;
}

static void find_driver(void) {
    driver.found = find_call("cuDeviceGet", &driver.device) && find_call("cuDevicePrimaryCtxRetain", &driver.retain) &&
                   find_call("cuCtxPushCurrent", &driver.push) && find_call("cuCtxPopCurrent", &driver.pop);
}

/* The context that every runtime of the process uses there; kept for the life of the process, as the tuning stream is.
 */
static CUcontext primary(int index) {
    static _Atomic(CUcontext) known[SAT_CUDA_DEVICES];
    static pthread_once_t looked = PTHREAD_ONCE_INIT;
    CUcontext context = atomic_load(&known[index]);
    CUdevice device;
    if (context) return context;
    pthread_once(&looked, find_driver);
    if (!driver.found || driver.device(&device, index) != CUDA_SUCCESS) return NULL;
    if (driver.retain(&context, device) != CUDA_SUCCESS) return NULL;
    atomic_store(&known[index], context);
    return context;
}

/* Makes the device the thread's own; true if unswitch() must put back what was. */
static bool switch_to(int index) {
    int now = -1;
    if (cudaGetDevice(&now) == cudaSuccess && now == index) return false;
    CUcontext context = primary(index);
    if (context && driver.push(context) == CUDA_SUCCESS) return true;
    (void)cudaSetDevice(index); /* it does not work: at least no call goes to another one */
    return false;
}

static void unswitch(void) {
    CUcontext ours;
    (void)driver.pop(&ours);
}

/* ---- enter and leave ---- */

/* What leave() gets: whether the device was switched to; the mode before; how it was entered. */
enum { SWITCHED = 1, MODE_SHIFT = 4, WAY_SHIFT = 8, NIBBLE = 0xf };

int sat_cuda_enter_as(const sat_device *d, sat_cuda_way way) {
    int switched = switch_to(d->index) ? SWITCHED : 0;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (way == SAT_CUDA_RUN) return switched;
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) mode = cudaStreamCaptureModeRelaxed;
    if (way == SAT_CUDA_OWN) {
        pthread_once(&once, make_locks);
        pthread_mutex_lock(&locks[d->index]);
    }
    return switched | (int)mode << MODE_SHIFT | (int)way << WAY_SHIFT;
}

int sat_cuda_enter(const sat_device *d) { return sat_cuda_enter_as(d, SAT_CUDA_OWN); }

void sat_cuda_leave(const sat_device *d, int token) {
    int way = token >> WAY_SHIFT & NIBBLE;
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)(token >> MODE_SHIFT & NIBBLE);
    if (way == SAT_CUDA_OWN) pthread_mutex_unlock(&locks[d->index]);
    if (way != SAT_CUDA_RUN) (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (token & SWITCHED) unswitch();
}

/* ---- waiting, and captures ---- */

/* cudaFree waits for everything that any stream has queued. cudaDeviceSynchronize does too, but spoils captures. */
void sat_cuda_sync_device(const sat_device *d) {
    int before = sat_cuda_enter_as(d, SAT_CUDA_ASIDE);
    void *p = NULL;
    if (cudaMalloc(&p, (size_t)2 << 20) == cudaSuccess) (void)cudaFree(p);
    else (void)cudaDeviceSynchronize();
    (void)cudaGetLastError();
    sat_cuda_leave(d, before);
}

bool sat_cuda_capturing(const sat_device *d, void *stream) {
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int before = sat_cuda_enter_as(d, SAT_CUDA_RUN);
    cudaError_t e = cudaStreamIsCapturing(stream, &capture);
    if (e != cudaSuccess) (void)cudaGetLastError();
    sat_cuda_leave(d, before);
    if (e == cudaErrorStreamCaptureImplicit) return true; /* the default stream, while another one is captured */
    return e == cudaSuccess && capture != cudaStreamCaptureStatusNone;
}

/* ---- errors ---- */

static const char *remedy(cudaError_t error) {
    if (error == cudaErrorNoKernelImageForDevice)
        return "; this build has no code for this GPU: SAT_CUDA_ARCHITECTURES chooses what it has";
    if (error == cudaErrorUnsupportedPtxVersion) return "; the NVIDIA driver is older than this build: update it";
    return "";
}

sat_status sat_cuda_status(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return SAT_OK;
    (void)cudaGetLastError(); /* not for the next call to find */
    return sat_fail(error == cudaErrorMemoryAllocation ? SAT_OUT_OF_MEMORY : SAT_DEVICE_ERROR, "%s: %s (%s)%s", what,
                    cudaGetErrorString(error), cudaGetErrorName(error), remedy(error));
}

sat_status sat_cuda_absent(cudaError_t error, int index) {
    int driver = 0, runtime = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) runtime = 0;
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; no NVIDIA driver (libcuda.so.1) was found on this machine",
                        index);
    if (error == cudaErrorInsufficientDriver) /* a driver serves every run time of its own major version */
        return sat_fail(SAT_UNSUPPORTED,
                        "device is 'cuda:%d'; the NVIDIA driver is of CUDA %d.%d and this build needs %d.0 or newer: "
                        "update the driver, or build with CUDA %d",
                        index, driver / 1000, driver % 1000 / 10, runtime / 1000, driver / 1000);
    if (error == cudaSuccess || error == cudaErrorNoDevice)
        return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; the NVIDIA driver finds no GPU%s%s%s", index,
                        visible ? " (CUDA_VISIBLE_DEVICES is '" : "", visible ? visible : "", visible ? "')" : "");
    return sat_fail(SAT_NOT_FOUND, "device is 'cuda:%d'; the NVIDIA driver does not work: %s (%s)", index,
                    cudaGetErrorString(error), cudaGetErrorName(error));
}
