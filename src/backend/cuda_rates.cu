/* What a device does when nothing holds it up: copying, reading from L2, arithmetic on registers. Each rate is the best
 * of a few runs of some tenths of a millisecond; how many loops that takes is found out first, since devices differ by
 * a factor of a hundred. All of it takes about 20 ms. */
#include "backend/cuda.h"
#include "variant.cuh"

enum {
    THREADS = 256,
    CTAS = 2, /* a multiprocessor; twice and four times as many where memory is to be kept busy */
    RUNS = 4,
    STEPS = 64 /* of arithmetic in a loop */
};

/* ---- memory ---- */

static __global__ void copy(const uint4 *from, uint4 *to, int64_t count, int loops) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int l = 0; l < loops; l++)
        for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i + 3 * step < count; i += 4 * step) {
            uint4 x[4];
#pragma unroll
            for (int j = 0; j < 4; j++) x[j] = __ldcs(from + i + j * step);
#pragma unroll
            for (int j = 0; j < 4; j++) __stcs(to + i + j * step, x[j]);
        }
}

/* A ring of `mask` + 1 elements, past L1; who reads what changes from loop to loop. */
static __global__ void read_l2(const uint4 *ring, int64_t mask, int loops, unsigned *never_written) {
    int64_t step = (int64_t)gridDim.x * blockDim.x, at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    for (int l = 0; l < loops; l++, at += 8 * step) {
        uint4 x[8];
#pragma unroll
        for (int j = 0; j < 8; j++) x[j] = __ldcg(ring + ((at + j * step) & mask));
#pragma unroll
        for (int j = 0; j < 8; j++) sum += x[j].x ^ x[j].y ^ x[j].z ^ x[j].w;
    }
    if (sum == 0x9e3779b9u) *never_written = sum; /* so that the compiler cannot leave anything out */
}

/* ---- arithmetic ---- */

/* One kind of arithmetic: independent chains in registers; `work` is what a warp does in one step. */

#define TENSOR(kind, instruction, flops)                                                                               \
    struct kind {                                                                                                      \
        static constexpr double work = 8 * (flops);                                                                    \
        float c[8][4];                                                                                                 \
        unsigned a[4], b[2];                                                                                           \
        __device__ void start(unsigned seed) {                                                                         \
            for (int i = 0; i < 4; i++) a[i] = 0x2c002c00u + seed + (unsigned)i; /* small in every type */             \
            for (int i = 0; i < 2; i++) b[i] = 0x2c002c00u - seed - (unsigned)i;                                       \
            for (int i = 0; i < 32; i++) c[i / 4][i % 4] = (float)i; /* else eight chains would be one */              \
        }                                                                                                              \
        __device__ void step() {                                                                                       \
            _Pragma("unroll") for (int i = 0; i < 8; i++) asm(                                                         \
                "mma.sync.aligned." instruction " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" :             \
                "+f"(c[i][0]), "+f"(c[i][1]), "+f"(c[i][2]), "+f"(c[i][3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]),          \
                "r"(a[3]), "r"(b[0]), "r"(b[1]));                                                                      \
        }                                                                                                              \
        __device__ double sum() const {                                                                                \
            float s = 0;                                                                                               \
            for (int i = 0; i < 8; i++) s += c[i][0] + c[i][1] + c[i][2] + c[i][3];                                    \
            return s;                                                                                                  \
        }                                                                                                              \
    };

TENSOR(tensor_f16, "m16n8k16.row.col.f32.f16.f16.f32", 2 * 16 * 8 * 16)
TENSOR(tensor_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32", 2 * 16 * 8 * 16)
TENSOR(tensor_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32", 2 * 16 * 8 * 8)
#undef TENSOR

/* Hopper has larger shapes; one of its is eight of the others. */
struct tensor_f64 {
    static constexpr double work = 4 * 2 * 16 * 8 * 16;
    double c[4][4], a[8], b[4];
    __device__ void start(unsigned seed) {
        for (int i = 0; i < 8; i++) a[i] = 1e-3 * (seed + i);
        for (int i = 0; i < 4; i++) b[i] = 1e-3 * (seed + 9 + i);
        for (int i = 0; i < 16; i++) c[i / 4][i % 4] = i;
    }
    __device__ void step() {
#pragma unroll
        for (int i = 0; i < 4; i++) {
#if __CUDA_ARCH__ >= 900
            asm("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7,%8,%9,%10,%11}, "
                "{%12,%13,%14,%15}, {%0,%1,%2,%3};"
                : "+d"(c[i][0]), "+d"(c[i][1]), "+d"(c[i][2]), "+d"(c[i][3])
                : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]),
                  "d"(b[1]), "d"(b[2]), "d"(b[3]));
#else
#pragma unroll
            for (int j = 0; j < 8; j++)
                asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                    : "+d"(c[i][j % 2 * 2]), "+d"(c[i][j % 2 * 2 + 1])
                    : "d"(a[j]), "d"(b[j / 2]));
#endif
        }
    }
    __device__ double sum() const {
        double s = 0;
        for (int i = 0; i < 4; i++) s += c[i][0] + c[i][1] + c[i][2] + c[i][3];
        return s;
    }
};

template <class T> struct plain {
    static constexpr double work = 2 * 16 * 32;
    T c[16], a, b;
    __device__ void start(unsigned seed) {
        a = (T)(0.5 + 1e-3 * seed), b = (T)1e-3;
        for (int i = 0; i < 16; i++) c[i] = (T)i;
    }
    __device__ void step() {
#pragma unroll
        for (int i = 0; i < 16; i++) c[i] = c[i] * a + b;
    }
    __device__ double sum() const {
        T s = 0;
        for (int i = 0; i < 16; i++) s += c[i];
        return (double)s;
    }
};

template <class Kind> static __global__ void __launch_bounds__(THREADS) spin(int loops, double *never_written) {
    Kind k;
    k.start(threadIdx.x);
    for (int l = 0; l < loops; l++)
#pragma unroll 4
        for (int i = 0; i < STEPS; i++) k.step();
    double sum = k.sum();
    if (sum == 0.123456789) *never_written = sum; /* so that the compiler cannot leave anything out */
}

/* ---- timing ---- */

typedef struct timer {
    char *scratch;
    int ctas;
    int64_t copied, ring; /* elements of 16 bytes: of a copy, and of what L2 surely holds, a power of two */
    cudaStream_t stream;
    cudaEvent_t begin, end;
} timer;

typedef void (*timed_job)(const timer &d, int loops);

static void run_copy(const timer &d, int loops) {
    const uint4 *from = (const uint4 *)d.scratch;
    copy<<<d.ctas * 4, THREADS, 0, d.stream>>>(from, (uint4 *)d.scratch + d.copied, d.copied, loops);
}

static void run_l2(const timer &d, int loops) {
    read_l2<<<d.ctas * 2, THREADS, 0, d.stream>>>((const uint4 *)d.scratch, d.ring - 1, loops, (unsigned *)d.scratch);
}

template <class Kind> static void run_spin(const timer &d, int loops) {
    spin<Kind><<<d.ctas, THREADS, 0, d.stream>>>(loops, (double *)d.scratch);
}

static cudaError_t time_once(const timer &d, timed_job run, int loops, double *seconds) {
    float ms = 0;
    cudaError_t e = cudaEventRecord(d.begin, d.stream);
    if (e == cudaSuccess) run(d, loops), e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaEventRecord(d.end, d.stream);
    if (e == cudaSuccess) e = cudaEventSynchronize(d.end);
    if (e == cudaSuccess) e = cudaEventElapsedTime(&ms, d.begin, d.end);
    *seconds = ms > 1e-4 ? ms * 1e-3 : 1e-7;
    return e;
}

/* Seconds of one loop, at best: runs of about 0.6 ms, against which a launch does not count. */
static cudaError_t best_of_loop(const timer &d, timed_job run, double *seconds) {
    double once = 1, best = 1;
    cudaError_t e = time_once(d, run, 1, &once); /* not counted: its code may have to be loaded */
    if (e == cudaSuccess) e = time_once(d, run, 1, &once);
    int loops = once < 6e-4 ? (int)(6e-4 / once) + 1 : 1;
    for (int i = 0; i < RUNS && e == cudaSuccess; i++) {
        e = time_once(d, run, loops, &once);
        if (once / loops < best) best = once / loops;
    }
    *seconds = best;
    return e;
}

template <class Kind> static cudaError_t arithmetic(const timer &d, double *rate) {
    double seconds;
    cudaError_t e = best_of_loop(d, run_spin<Kind>, &seconds);
    *rate = d.ctas * (THREADS / 32) * STEPS * Kind::work / seconds;
    return e;
}

/* A device that was idle takes a while to reach its clock. */
static cudaError_t wake(const timer &d) {
    double seconds, spent = 0;
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 100 && spent < 5e-3 && e == cudaSuccess; i++, spent += seconds)
        e = time_once(d, run_spin<plain<float>>, 32, &seconds);
    return e;
}

static cudaError_t measure(const timer &d, sat_rates *r) {
    double seconds = 1, vector_f64 = 0;
    cudaError_t e = wake(d);
    if (e == cudaSuccess) e = best_of_loop(d, run_copy, &seconds);
    r->memory = (double)d.copied * 32 / seconds; /* read and written */
    if (e == cudaSuccess) e = best_of_loop(d, run_l2, &seconds);
    r->l2 = (double)(d.ctas * 2 * THREADS * 8 * 16) / seconds;
    if (e == cudaSuccess) e = arithmetic<plain<float>>(d, &r->flop[SAT_F32]);
    if (e == cudaSuccess) e = arithmetic<plain<double>>(d, &vector_f64);
    if (e == cudaSuccess) e = arithmetic<tensor_f64>(d, &r->flop[SAT_F64]);
    if (e == cudaSuccess) e = arithmetic<tensor_f16>(d, &r->flop[SAT_F16]);
    if (e == cudaSuccess) e = arithmetic<tensor_bf16>(d, &r->flop[SAT_BF16]);
    if (e == cudaSuccess) e = arithmetic<tensor_tf32>(d, &r->tf32);
    if (vector_f64 > r->flop[SAT_F64]) r->flop[SAT_F64] = vector_f64;
    return e;
}

cudaError_t sat_cuda_measure(const sat_device *device, void *scratch, size_t bytes, sat_rates *rates,
                             cudaStream_t stream) {
    timer d = {(char *)scratch, device->multiprocessors * CTAS, 0, 1, stream, NULL, NULL};
    int64_t turn = (int64_t)d.ctas * 4 * THREADS * 4, most = sat_min((int64_t)bytes, device->l2_bytes / 3) / 16;
    d.copied = (int64_t)bytes / 32 / turn * turn;
    while (d.ring * 2 <= most) d.ring *= 2;
    if (d.copied == 0 || d.ring < 1024) return cudaErrorInvalidValue; /* no memory to speak of, or no L2 */
    cudaError_t e = cudaMemsetAsync(scratch, 0x11, bytes, stream);
    if (e == cudaSuccess) e = cudaEventCreate(&d.begin);
    if (e == cudaSuccess) e = cudaEventCreate(&d.end);
    if (e == cudaSuccess) e = measure(d, rates);
    if (d.begin) (void)cudaEventDestroy(d.begin);
    if (d.end) (void)cudaEventDestroy(d.end);
    return e;
}
