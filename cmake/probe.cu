// The smallest program that needs every part of a CUDA toolkit that we need: see nvcc.cmake.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

static __global__ void one(__half *x) { *x = __float2half(1.0f); }

int main() {
    one<<<1, 1>>>(nullptr);
    return 0;
}
