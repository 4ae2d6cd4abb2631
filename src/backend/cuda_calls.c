/* How this library makes CUDA calls in a program that makes its own: on its own device, beside captures of graphs, one
 * thread at a time on the tuning stream; and what a failed call means.
 *
 * While any stream is captured in the global mode, calls that allocate or wait are forbidden to every thread, and one
 * such call spoils the capture. The library's own calls concern no stream of the program, so they run in the relaxed
 * mode, which lifts that; a caller's run does not, so that a variant that allocates in its launch is found out. */
#include <pthread.h>
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

/* ---- enter and leave ---- */

/* What leave() gets: the device before, plus one; the mode before; how it was entered. */
enum { MODE_SHIFT = 8, WAY_SHIFT = 12, BYTE = 0xff, NIBBLE = 0xf };

int sat_cuda_enter_as(const sat_device *d, sat_cuda_way way) {
    int before = -1;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    if (before != d->index) (void)cudaSetDevice(d->index);
    if (way == SAT_CUDA_RUN) return before + 1;
    if (cudaThreadExchangeStreamCaptureMode(&mode) != cudaSuccess) mode = cudaStreamCaptureModeRelaxed;
    if (way == SAT_CUDA_OWN) {
        pthread_once(&once, make_locks);
        pthread_mutex_lock(&locks[d->index]);
    }
    return (before + 1) | (int)mode << MODE_SHIFT | (int)way << WAY_SHIFT;
}

int sat_cuda_enter(const sat_device *d) { return sat_cuda_enter_as(d, SAT_CUDA_OWN); }

void sat_cuda_leave(const sat_device *d, int token) {
    int before = (token & BYTE) - 1, way = token >> WAY_SHIFT & NIBBLE;
    enum cudaStreamCaptureMode mode = (enum cudaStreamCaptureMode)(token >> MODE_SHIFT & NIBBLE);
    if (way == SAT_CUDA_OWN) pthread_mutex_unlock(&locks[d->index]);
    if (way != SAT_CUDA_RUN) (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (before >= 0 && before != d->index) (void)cudaSetDevice(before);
}

/* ---- waiting, and captures ---- */

/* cudaFree waits for everything that any stream has queued. cudaDeviceSynchronize does too, but spoils captures. */
void sat_cuda_settle(const sat_device *d) {
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
