/* The public API on a device: plan and one-call form on memory of the library's and of the program's own runtime. */
#include "cuda_support.h"

#include <cuda_runtime_api.h>
#include "problems.h"

enum { ROWS = 100, COLS = 70, N = 33 };

typedef struct product {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_pattern_view a;
    int64_t value_count;
    float *values, *b, *c;
    double *want;
} product;

static product open_product(void) {
    uint64_t seed = 7;
    product x = {.ctx = open_cuda(SAT_EFFORT_OFF)};
    x.pattern = random_pattern(x.ctx, &seed, ROWS, COLS, 16, 8, 0.4, true);
    x.a = view_of(x.pattern);
    x.value_count = x.a.stored_blocks * 16 * 8;
    x.values = random_floats(&seed, x.value_count);
    x.b = random_floats(&seed, COLS * N);
    x.c = random_floats(&seed, ROWS * N);
    x.want = dense_product(&x.a, x.values, x.b, N);
    return x;
}

static void close_product(product *x) {
    free(x->values), free(x->b), free(x->c), free(x->want);
    sat_pattern_free(x->pattern);
    sat_context_free(x->ctx);
}

static void a_product_on_the_device_is_right(void **state) {
    (void)state;
    product x = open_product();
    void *values = to_device(x.ctx, x.values, (size_t)x.value_count * 4), *b = to_device(x.ctx, x.b, COLS * N * 4);
    void *c = to_device(x.ctx, x.c, ROWS * N * 4);
    sat_problem p = matmul_problem(SAT_F32, N);
    assert_ok(sat_bsr_matmul(x.ctx, x.pattern, &p, values, b, c, NULL, NULL));
    assert_ok(sat_stream_wait(x.ctx, NULL));
    assert_ok(sat_memory_read(x.ctx, x.c, c, ROWS * N * 4));
    assert_close(x.c, x.want, ROWS * N, COLS);
    sat_memory_free(x.ctx, values), sat_memory_free(x.ctx, b), sat_memory_free(x.ctx, c);
    close_product(&x);
}

static void memory_and_streams_of_the_programs_own_runtime_serve(void **state) {
    (void)state;
    product x = open_product();
    float *values, *b, *c;
    cudaStream_t stream;
    assert_int_equal(cudaMalloc((void **)&values, (size_t)x.value_count * 4), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&b, COLS * N * 4), cudaSuccess);
    assert_int_equal(cudaMalloc((void **)&c, ROWS * N * 4), cudaSuccess);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(values, x.values, (size_t)x.value_count * 4, cudaMemcpyHostToDevice, stream),
                     cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(b, x.b, COLS * N * 4, cudaMemcpyHostToDevice, stream), cudaSuccess);
    sat_problem p = matmul_problem(SAT_F32, N);
    sat_plan *plan = NULL;
    assert_ok(sat_plan_create(x.ctx, x.pattern, &p, &plan));
    assert_ok(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, stream));
    assert_int_equal(cudaMemcpyAsync(x.c, c, ROWS * N * 4, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_close(x.c, x.want, ROWS * N, COLS);
    sat_plan_free(plan);
    cudaFree(values), cudaFree(b), cudaFree(c), cudaStreamDestroy(stream);
    close_product(&x);
}

int main(void) {
    if (!has_gpu()) return NO_GPU;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_on_the_device_is_right),
        cmocka_unit_test(memory_and_streams_of_the_programs_own_runtime_serve),
    };
    return cmocka_run_group_tests_name("cuda_product", tests, NULL, NULL);
}
