/* A problem as the command line puts it, and from it the library's pattern and problem. */
#ifndef CLI_SPEC_H
#define CLI_SPEC_H

#include <stdbool.h>

#include "make.h"
#include "mtx.h"
#include "sparse_autotune.h"

typedef struct spec {
    int op;          /* place in operation_names: the library's enum less 1 */
    int64_t m, n, k; /* of the product; 0: the default (4096; 128 beside a matrix from a file) */
    int64_t block_rows, block_cols;
    make_request pattern;       /* kind, sparsity, skew, seed, overlap; its sizes come from here */
    const mtx *matrix;          /* NULL: made up */
    sat_dtype a_dtype, c_dtype; /* 0: f32 on a CPU, f16 on CUDA */
    bool transpose, bias, col_b, col_c;
    int64_t batch, align;
    double alpha, beta;
    int activation;
    uint32_t flags;
    /* Attention: m queries, n keys, k elements a head. */
    int64_t heads, kv_heads, window, sequences; /* kv_heads 0: as many; sequences 0: not packed */
    int64_t value_dim;                          /* 0: k */
    double scale, softcap;                      /* 0: 1/sqrt(k); 0: none */
    bool causal, lse, head_masks, sinks;
    bool item_masks; /* where indices change: each batch item has its own */
    bool dynamic;    /* the indices change: the blocks that are made up give capacity and skew */
    double density;  /* then: what is expected; 0: the capacity is used up */
    /* Products of groups: m rows, one matrix a group. The pattern's skew is that of the groups; 0: the library's. */
    int64_t groups, top_k; /* spec_sizes multiplies m by top_k */
    int offsets;           /* place in offset_names: the library's enum less 1 */
} spec;

extern const char *const operation_names[], *const activation_names[], *const order_names[], *const offset_names[];

spec spec_default(void);
bool spec_is_attention(const spec *s); /* or its gradients */
double spec_skew(const spec *s);       /* of groups: the rows of the largest over the mean */
bool spec_is_grouped(const spec *s);   /* or the gradient of the weights: there is no pattern */
/* Sizes filled in, from the matrix where there is one. False with a message where they contradict. */
bool spec_sizes(spec *s, char *message, size_t capacity);
bool spec_blocks(const spec *s, blocks *out, char *message, size_t capacity);
/* Fills in the default dtype, which depends on the device. */
void spec_dtype(spec *s, const sat_device *device);
/* NULL where the operation has none. */
sat_status spec_pattern(sat_context *context, const spec *s, const blocks *b, sat_pattern **pattern);
sat_problem spec_problem(const spec *s, const blocks *b);
/* "matmul f32 4096x4096x4096, block 64x64, 512 of 4096 blocks (87.5 % sparse)" and what else is not the default. */
void spec_title(const spec *s, const blocks *b, char *out, size_t capacity);

#endif
