// Problems to measure on: a random or skewed pattern, random operands, and an independent look at the result.

#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void *bench_alloc(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1) != 0) {
        fprintf(stderr, "bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

size_t bench_dtype_size(sat_dtype t) { return t == SAT_F64 ? 8 : t == SAT_F32 ? 4 : 2; }

const char *bench_dtype_name(sat_dtype t) {
    return t == SAT_F64 ? "f64" : t == SAT_F32 ? "f32" : t == SAT_F16 ? "f16" : "bf16";
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform(uint64_t seed, int64_t i) { return (double)(mix(seed ^ mix((uint64_t)i)) >> 11) * 0x1p-53; }

static uint16_t to_bf16(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)(bits >> 16);
}

static double load(sat_dtype t, const void *p, int64_t i) {
    if (t == SAT_F64) return ((const double *)p)[i];
    if (t == SAT_F32) return (double)((const float *)p)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

void bench_fill(sat_dtype t, void *to, int64_t count, uint64_t seed) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i++) {
        double x = 2 * uniform(seed, i) - 1;
        if (t == SAT_F64) ((double *)to)[i] = x;
        else if (t == SAT_F32) ((float *)to)[i] = (float)x;
        else ((uint16_t *)to)[i] = to_bf16((float)x);
    }
}

// How many blocks each row gets: the same number everywhere, or by a power law of the row's rank, ranks shuffled.
static void row_counts(const bench_problem *p, int64_t rows, int64_t cols, uint64_t seed, int64_t *count) {
    double total = p->density * (double)rows * (double)cols, weights = 0;
    int64_t *rank = bench_alloc((size_t)rows * sizeof *rank);
    for (int64_t i = 0; i < rows; i++) rank[i] = i;
    for (int64_t i = rows - 1; i > 0; i--) {
        int64_t j = (int64_t)(uniform(seed, i) * (double)(i + 1)), swap = rank[i];
        rank[i] = rank[j], rank[j] = swap;
    }
    for (int64_t i = 0; i < rows; i++) weights += pow((double)(i + 1), -0.8);
    for (int64_t i = 0; i < rows; i++) {
        double share = p->shape == BENCH_POWERLAW ? pow((double)(rank[i] + 1), -0.8) / weights : 1.0 / (double)rows;
        count[i] = (int64_t)llround(total * share);
        if (count[i] > cols) count[i] = cols;
    }
    free(rank);
}

void bench_problem_make(bench_problem *p, uint64_t seed) {
    int64_t rows = (p->m + p->block - 1) / p->block, cols = (p->k + p->block - 1) / p->block;
    int64_t *count = bench_alloc((size_t)rows * sizeof *count);
    row_counts(p, rows, cols, seed, count);
    p->row_ptr = bench_alloc((size_t)(rows + 1) * sizeof *p->row_ptr);
    p->row_ptr[0] = 0;
    for (int64_t i = 0; i < rows; i++) p->row_ptr[i + 1] = p->row_ptr[i] + count[i];
    p->stored_blocks = p->row_ptr[rows];
    p->col_idx = bench_alloc((size_t)p->stored_blocks * sizeof *p->col_idx);
    // Each column in turn is taken with the chance that leaves exactly enough of them: sorted without sorting.
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < rows; i++) {
        int64_t need = count[i], at = p->row_ptr[i];
        for (int64_t j = 0; j < cols && need > 0; j++) {
            if (uniform(seed + 1, i * cols + j) * (double)(cols - j) < (double)need) {
                p->col_idx[at++] = (int32_t)j;
                need--;
            }
        }
    }
    free(count);

    size_t size = bench_dtype_size(p->dtype);
    p->values_bytes = (size_t)(p->stored_blocks * p->block * p->block) * size;
    p->b_bytes = (size_t)(p->k * p->n) * size;
    p->c_bytes = (size_t)(p->m * p->n) * size;
    p->values = bench_alloc(p->values_bytes);
    p->b = bench_alloc(p->b_bytes);
    p->c = bench_alloc(p->c_bytes);
    bench_fill(p->dtype, p->values, p->stored_blocks * p->block * p->block, seed + 2);
    bench_fill(p->dtype, p->b, p->k * p->n, seed + 3);
    memset(p->c, 0xff, p->c_bytes); // NaN: an element that nobody writes is seen
}

void bench_problem_free(bench_problem *p) {
    free(p->row_ptr);
    free(p->col_idx);
    free(p->values);
    free(p->b);
    free(p->c);
    p->row_ptr = NULL, p->col_idx = NULL, p->values = NULL, p->b = NULL, p->c = NULL;
}

sat_status bench_pattern(sat_context *context, const bench_problem *p, sat_pattern **pattern) {
    int64_t *cols = bench_alloc((size_t)p->stored_blocks * sizeof *cols);
    for (int64_t i = 0; i < p->stored_blocks; i++) cols[i] = p->col_idx[i];
    sat_bsr bsr = {SAT_SIZED(sat_bsr),     .rows = p->m,           .cols = p->k,
                   .block_rows = p->block, .block_cols = p->block, .stored_blocks = p->stored_blocks,
                   .index_type = SAT_I64,  .row_ptr = p->row_ptr,  .col_idx = cols};
    sat_status status = sat_pattern_create(context, &bsr, pattern);
    free(cols);
    return status;
}

bool bench_problem_check(const bench_problem *p, uint64_t seed) {
    double unit = p->dtype == SAT_F64 ? 0x1p-53 : 0x1p-24, out = p->dtype == SAT_BF16 ? 0x1p-8 : unit;
    for (int s = 0; s < 64; s++) {
        int64_t i = (int64_t)(uniform(seed, 2 * s) * (double)p->m),
                j = (int64_t)(uniform(seed, 2 * s + 1) * (double)p->n);
        int64_t row = i / p->block, depth = 0;
        double sum = 0, magnitude = 0;
        for (int64_t t = p->row_ptr[row]; t < p->row_ptr[row + 1]; t++) {
            for (int64_t k = 0; k < p->block && p->col_idx[t] * p->block + k < p->k; k++, depth++) {
                double x = load(p->dtype, p->values, (t * p->block + i % p->block) * p->block + k);
                double y = load(p->dtype, p->b, (p->col_idx[t] * p->block + k) * p->n + j);
                sum += x * y, magnitude += fabs(x * y);
            }
        }
        double got = load(p->dtype, p->c, i * p->n + j);
        // Each of `depth` products and sums rounds once; the stored element rounds once more.
        if (!(fabs(got - sum) <= (double)(depth + 2) * unit * magnitude + out * fabs(sum))) {
            fprintf(stderr, "bench: C[%lld, %lld] is %g, should be %g\n", (long long)i, (long long)j, got, sum);
            return false;
        }
    }
    return true;
}
