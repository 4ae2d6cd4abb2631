/* What the tests on a GPU share: products whose every sum is exact in every dtype, so that results are compared for
 * equality whatever the order of summation; streams; and two kernels, given as PTX so that the tests stay plain C.
 * They use the public API and a CUDA runtime of their own, as a program would. */
#ifndef GPU_PRODUCT_H
#define GPU_PRODUCT_H

#include "support.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "problems.h"

enum { NO_GPU = 77 }; /* CTest's word for skipped */

#define assert_cuda(call)                                                                                              \
    do {                                                                                                               \
        cudaError_t error_ = (call);                                                                                   \
        if (error_ != cudaSuccess) fail_msg("%s: %s", #call, cudaGetErrorString(error_));                              \
    } while (0)

static inline bool has_gpu(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

static inline sat_context *open_gpu(sat_context_options o) {
    sat_context *ctx = NULL;
    o.size = sizeof o;
    if (!o.device) o.device = "cuda";
    if (!o.cache_dir) o.cache_dir = "";
    assert_ok(sat_context_create(&o, &ctx));
    return ctx;
}

static inline cudaStream_t new_stream(void) {
    cudaStream_t s;
    assert_cuda(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

/* ---- numbers: -1, -0.5, 0, 0.5, 1 ---- */

static inline void put_number(sat_dtype t, void *to, int64_t i, int halves) {
    static const uint16_t f16[] = {0xbc00, 0xb800, 0, 0x3800, 0x3c00}, bf16[] = {0xbf80, 0xbf00, 0, 0x3f00, 0x3f80};
    if (t == SAT_F64) ((double *)to)[i] = 0.5 * halves;
    else if (t == SAT_F32) ((float *)to)[i] = 0.5f * (float)halves;
    else ((uint16_t *)to)[i] = (t == SAT_F16 ? f16 : bf16)[halves + 2];
}

static inline double get_number(sat_dtype t, const void *from, int64_t i) {
    if (t == SAT_F64) return ((const double *)from)[i];
    if (t == SAT_F32) return (double)((const float *)from)[i];
    uint32_t h = ((const uint16_t *)from)[i], bits = h << 16;
    if (t == SAT_F16) { /* normal numbers and zero */
        bits = (h & 0x7fffu) ? (h & 0x8000u) << 16 | (((h >> 10 & 31) + 112) << 23) | (h & 0x3ffu) << 13 : 0;
    }
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

static inline int64_t number_bytes(sat_dtype t) { return t == SAT_F64 ? 8 : t == SAT_F32 ? 4 : 2; }

/* ---- a product, its operands on the host and on the device ---- */

typedef struct product {
    sat_pattern *pattern;
    sat_pattern_view a;
    sat_problem problem;
    int64_t count[3]; /* elements of each operand */
    void *host[3], *device[3];
    double *want;
    uint64_t random;
} product;

static inline void work_out(product *x) {
    const sat_pattern_view *a = &x->a;
    const sat_problem *p = &x->problem;
    double *in[2];
    for (int o = 0; o < 2; o++) {
        in[o] = malloc((size_t)x->count[o] * sizeof(double) + 8);
        for (int64_t i = 0; i < x->count[o]; i++) in[o][i] = get_number(p->a_dtype, x->host[o], i);
    }
    memset(x->want, 0, (size_t)x->count[2] * sizeof *x->want);
    for (int64_t g = 0; g < a->grid_rows; g++)
        for (int64_t e = a->row_ptr[g] * a->block_rows * a->block_cols;
             e < a->row_ptr[g + 1] * a->block_rows * a->block_cols; e++) {
            int64_t in_block = e % (a->block_rows * a->block_cols), t = e / (a->block_rows * a->block_cols);
            int64_t i = g * a->block_rows + in_block / a->block_cols;
            int64_t j = a->col_idx[t] * a->block_cols + in_block % a->block_cols;
            if (i >= a->rows || j >= a->cols) continue;
            int64_t to = p->matmul.transpose ? j : i, from = p->matmul.transpose ? i : j;
            if (p->op == SAT_MATMUL)
                for (int64_t n = 0; n < p->n; n++) x->want[to * p->n + n] += in[0][e] * in[1][from * p->n + n];
            else
                for (int64_t k = 0; k < p->k; k++) x->want[e] += in[0][i * p->k + k] * in[1][k * a->cols + j];
        }
    free(in[0]), free(in[1]);
}

/* New numbers in both inputs, on both sides, and poison in the output. */
static inline void renew(product *x) {
    for (int o = 0; o < 2; o++) {
        for (int64_t i = 0; i < x->count[o]; i++)
            put_number(x->problem.a_dtype, x->host[o], i, (int)random_below(&x->random, 5) - 2);
        assert_cuda(cudaMemcpy(x->device[o], x->host[o], (size_t)(x->count[o] * number_bytes(x->problem.a_dtype)),
                               cudaMemcpyHostToDevice));
    }
    assert_cuda(cudaMemset(x->device[2], 0xff, (size_t)(x->count[2] * number_bytes(x->problem.c_dtype))));
    assert_cuda(cudaStreamSynchronize(NULL));
    work_out(x);
}

/* The problem's sizes stand in for operands that are row-major and without gaps. */
static inline product make_product(sat_context *ctx, sat_problem p, int64_t rows, int64_t cols, int64_t block,
                                   uint64_t seed) {
    product x = {.problem = p, .random = seed};
    x.pattern = random_pattern(ctx, &x.random, rows, cols, block, block, 0.4, seed & 1);
    x.a = view_of(x.pattern);
    int64_t stored = x.a.stored_blocks * block * block;
    if (p.op == SAT_MATMUL) {
        x.count[0] = stored;
        x.count[1] = (p.matmul.transpose ? rows : cols) * p.n;
        x.count[2] = (p.matmul.transpose ? cols : rows) * p.n;
    } else x.count[0] = rows * p.k, x.count[1] = p.k * cols, x.count[2] = stored;
    for (int i = 0; i < 3; i++) {
        size_t bytes = (size_t)(x.count[i] * number_bytes(i < 2 ? p.a_dtype : p.c_dtype)) + 16;
        x.host[i] = malloc(bytes);
        assert_cuda(cudaMalloc(&x.device[i], bytes));
    }
    x.want = malloc((size_t)x.count[2] * sizeof *x.want + 8);
    renew(&x);
    return x;
}

static inline void free_product(product *x) {
    for (int i = 0; i < 3; i++) free(x->host[i]), cudaFree(x->device[i]);
    free(x->want);
    sat_pattern_free(x->pattern);
}

/* Where the device's output differs from what it should be; -1: nowhere. The stream's work is waited for. */
static inline int64_t differs(product *x, cudaStream_t stream) {
    assert_cuda(cudaStreamSynchronize(stream));
    size_t bytes = (size_t)(x->count[2] * number_bytes(x->problem.c_dtype));
    assert_cuda(cudaMemcpy(x->host[2], x->device[2], bytes, cudaMemcpyDeviceToHost));
    for (int64_t i = 0; i < x->count[2]; i++)
        if (!(get_number(x->problem.c_dtype, x->host[2], i) == x->want[i])) return i;
    return -1;
}

static inline sat_status run(sat_plan *plan, const product *x, cudaStream_t stream) {
    return run_in_order(plan, &x->problem, (void *const *)x->device, stream);
}

static inline sat_status one_call(sat_context *ctx, const product *x, cudaStream_t stream) {
    if (x->problem.op == SAT_MATMUL)
        return sat_bsr_matmul(ctx, x->pattern, &x->problem, x->device[0], x->device[1], x->device[2], NULL, stream);
    return sat_bsr_sampled_matmul(ctx, x->pattern, &x->problem, x->device[0], x->device[1], x->device[2], stream);
}

/* ---- kernels, through the driver ---- */

static const char kernels_ptx[] = ".version 7.0\n.target sm_80\n.address_size 64\n"
                                  ".visible .entry wait_ns(.param .u64 ns) {\n"
                                  "  .reg .u64 %start, %now, %gone, %ns;\n  .reg .pred %early;\n"
                                  "  ld.param.u64 %ns, [ns];\n  mov.u64 %start, %globaltimer;\n"
                                  "AGAIN:\n  mov.u64 %now, %globaltimer;\n  sub.u64 %gone, %now, %start;\n"
                                  "  setp.lt.u64 %early, %gone, %ns;\n  @%early bra AGAIN;\n  ret;\n}\n"
                                  ".visible .entry write_nowhere() {\n"
                                  "  .reg .u64 %at;\n  .reg .u32 %x;\n"
                                  "  mov.u64 %at, 64;\n  mov.u32 %x, 1;\n  st.global.u32 [%at], %x;\n  ret;\n}\n";

/* Queues one of them; `argument` may be NULL. The runtime's context is made current first. */
static inline void launch_kernel(const char *name, void *argument, cudaStream_t stream) {
    static void *module;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW), *function = NULL;
    int (*load)(void **, const void *), (*get)(void **, void *, const char *);
    int (*go)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    assert_non_null(driver);
    *(void **)&load = dlsym(driver, "cuModuleLoadData");
    *(void **)&get = dlsym(driver, "cuModuleGetFunction");
    *(void **)&go = dlsym(driver, "cuLaunchKernel");
    assert_true(load && get && go);
    if (!module) {
        assert_cuda(cudaFree(NULL));
        assert_int_equal(load(&module, kernels_ptx), 0);
    }
    assert_int_equal(get(&function, module, name), 0);
    assert_int_equal(go(function, 1, 1, 1, 1, 1, 1, 0, stream, argument ? &argument : NULL, NULL), 0);
}

/* Keeps a stream busy for so long. */
static inline void hold(cudaStream_t stream, double seconds) {
    uint64_t ns = (uint64_t)(seconds * 1e9);
    launch_kernel("wait_ns", &ns, stream);
}

#endif
