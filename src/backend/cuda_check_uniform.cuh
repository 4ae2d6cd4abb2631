/* The uniform probe of attention on the device, which is its structure probe: cuda_check_uniform.cu. Its
 * expectations have `exact` set. */
#ifndef SAT_CUDA_CHECK_UNIFORM_CUH
#define SAT_CUDA_CHECK_UNIFORM_CUH

#include "backend/cuda_check.cuh"

size_t sat_cuda_uniform_bytes(const sat_problem *p, const sat_pattern_view *a);
sat_status sat_cuda_uniform_expect(const sat_trial *t, void **expectation);
sat_status sat_cuda_uniform_compare(const sat_trial *t, const void *expectation, sat_finding *finding);

#endif
