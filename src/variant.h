/* What a kernel family sees: the public header, how a family declares itself, and small helpers that every family
 * would otherwise write again. Beside it kernels include attention.h or groups.h, their own headers, and the list of
 * variants. */
#ifndef SAT_VARIANT_H
#define SAT_VARIANT_H

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "sparse_autotune.h"
#ifndef __CUDACC__
#include "base/trust.h"
#endif

/* A kernel family: one file. Its instances are lines in a variants.def; each becomes a sat_variant.
 *   SAT_FAMILY(cpu_matmul_portable) = {.revision = "1", .op = SAT_MATMUL, .backend = SAT_CPU, ...};           */
typedef struct sat_family {
    const char *revision;
    const char *(*version)(void); /* libraries: their version, used as revision; NULL from it: not on this machine */
    sat_operation op;
    sat_backend_kind backend;
    uint32_t flags;
    const char *about;
    bool (*supports)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    double (*estimate)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    size_t (*workspace)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    sat_status (*prepare)(const sat_prepare *prepare, void **state);
    sat_status (*refresh)(const sat_launch *launch);
    sat_status (*launch)(const sat_launch *launch);
    void (*release)(const sat_variant *v, void *state);
} sat_family;

#ifdef __cplusplus
#define SAT_FAMILY(name) extern "C" const sat_family sat_family_##name
#else
#define SAT_FAMILY(name) const sat_family sat_family_##name
#endif

/* `supports` of a family that takes everything. */
static inline bool sat_takes_all(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                 const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return true;
}

/* An instance of a family as a variant: for the registry, and for families that are made of others' kernels. */
static inline sat_variant sat_variant_of(const sat_family *f, sat_instance instance, const char *name) {
    sat_variant v;
    memset(&v, 0, sizeof v);
    v.size = sizeof v, v.name = name, v.revision = f->revision, v.op = f->op, v.backend = f->backend;
    v.flags = f->flags, v.instance = instance, v.about = f->about, v.supports = f->supports;
    v.estimate = f->estimate, v.workspace = f->workspace, v.prepare = f->prepare, v.refresh = f->refresh;
    v.launch = f->launch, v.release = f->release;
    return v;
}

/* ---- workspace and alignment ---- */

/* Takes so many bytes of a workspace, at a multiple of 256; `used` is what is taken of it so far. */
static inline size_t sat_carve(size_t *used, double bytes) {
    size_t at = *used;
    *used += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

/* What every batch item's pointer is a multiple of, in bytes, at most 256. */
static inline uint32_t sat_item_align(uint32_t align, const sat_layout *l, int64_t batch, sat_dtype t) {
    uint64_t bits = align | 256u;
    if (batch > 1) bits |= (uint64_t)l->batch_stride * sat_dtype_size(t);
    return (uint32_t)(bits & -bits);
}

/* ---- the process ---- */

#ifdef __cplusplus
extern "C" {
#endif
bool sat_forked(void);                 /* a child of a process that had other threads, which are not here */
int sat_threads_startable(int wanted); /* so many of them could be started just now */
size_t sat_address_space_left(void);   /* bytes; SIZE_MAX where nothing limits it */
#ifdef __cplusplus
}
#endif

/* ---- what only a matmul has; other operations, which share much of its code, do without ---- */

SAT_BOTH static inline bool sat_transposed(const sat_problem *p) {
    return p->op == SAT_MATMUL && p->matmul.transpose == SAT_TRANSPOSE;
}
SAT_BOTH static inline bool sat_has_bias(const sat_problem *p) {
    return p->op == SAT_MATMUL && p->matmul.bias == SAT_BIAS_ROW;
}
SAT_BOTH static inline sat_activation sat_activation_of(const sat_problem *p) {
    return p->op == SAT_MATMUL ? p->matmul.activation : SAT_ACT_NONE;
}

/* ---- the matmul's block rows, transposed or not ---- */

/* The stored blocks of op(A), by rows of op(A). Element (i, j) of block b of op(A) is
 * values[b*block_rows*block_cols + i*row_step + j*col_step]. */
typedef struct sat_rows {
    int64_t count;        /* block rows of op(A) */
    const int64_t *ptr;   /* count + 1; never decreases */
    const int64_t *end;   /* row i has the blocks ptr[i] to end[i] - 1; that is ptr[i + 1], or of a faulty row ptr[i] */
    const int32_t *col;   /* block column in op(A) of each stored block */
    const int64_t *block; /* its block index; NULL: equal to its position */
    int64_t br, bc;       /* block shape of op(A) */
    int64_t row_step, col_step;
    int64_t m, k; /* size of op(A) */
    int64_t block_elements;
} sat_rows;

/* Where rows end that follow each other without gaps. The index may not be there yet (sat_pattern_view). */
SAT_BOTH static inline const int64_t *sat_next(const int64_t *ptr) { return ptr ? ptr + 1 : NULL; }

static inline sat_rows sat_op_rows(const sat_problem *p, const sat_pattern_view *a) {
    sat_rows r = {.block_elements = a->block_rows * a->block_cols};
    if (sat_transposed(p)) {
        r.count = a->grid_cols, r.ptr = a->t_ptr, r.end = sat_next(a->t_ptr), r.col = a->t_row, r.block = a->t_block;
        r.br = a->block_cols, r.bc = a->block_rows, r.row_step = 1, r.col_step = a->block_cols;
        r.m = a->cols, r.k = a->rows;
    } else {
        r.count = a->grid_rows, r.ptr = a->row_ptr, r.end = a->row_end, r.col = a->col_idx, r.block = NULL;
        r.br = a->block_rows, r.bc = a->block_cols, r.row_step = a->block_cols, r.col_step = 1;
        r.m = a->rows, r.k = a->cols;
    }
    return r;
}

SAT_BOTH static inline int64_t sat_block_of(const sat_rows *r, int64_t i) { return r->block ? r->block[i] : i; }
SAT_BOTH static inline int64_t sat_min(int64_t x, int64_t y) { return x < y ? x : y; }
SAT_BOTH static inline int64_t sat_max(int64_t x, int64_t y) { return x > y ? x : y; }

/* ---- long sums ---- */

/* A long f32 sum of one sign loses digits: the relative error of n terms grows with sqrt(n). So a sum of more terms
 * than this is made of parts of so many, each summed from zero and then added. Where parts begin may depend on the
 * pattern, never on threads. */
enum { SAT_SUM_PART = 2048 };

/* A part of a block row: of its stored blocks [t, t_end) the columns [k, k_end). */
typedef struct sat_part {
    int64_t t, t_end, k, k_end;
} sat_part;

/* Blocks that make a part where each is `depth` deep; a deeper one than SAT_SUM_PART is several parts. */
static inline int64_t sat_part_blocks(int64_t depth) { return sat_max(1, SAT_SUM_PART / sat_max(1, depth)); }

/* What the first sat_next_part() goes on from. */
static inline sat_part sat_before_parts(int64_t first, int64_t depth) { return (sat_part){first, first, 0, depth}; }

/* The next part among the stored blocks up to `end`; `blocks` is sat_part_blocks(depth). False: there is none. */
static inline bool sat_next_part(sat_part *p, int64_t end, int64_t depth, int64_t blocks) {
    if (p->k_end < depth) p->k = p->k_end;
    else if (p->t_end < end) p->t = p->t_end, p->t_end = sat_min(end, p->t + blocks), p->k = 0;
    else return false;
    p->k_end = sat_min(depth, p->k + SAT_SUM_PART);
    return true;
}

/* What a part is at most where it is added to C in memory, which then has to have the type of the sums: stored blocks,
 * and columns of each. `lanes` share out a sum, and each has as many terms as a part may. */
typedef struct sat_parts {
    int64_t blocks, deep;
} sat_parts;

static inline sat_parts sat_parts_in_c(const sat_problem *p, int64_t depth, int64_t lanes) {
    depth = sat_max(1, depth);
    if (p->compute_dtype != SAT_F32 || p->c_dtype != SAT_F32) return (sat_parts){INT64_MAX / 2, depth};
    return (sat_parts){sat_max(1, lanes * SAT_SUM_PART / depth), sat_min(lanes * SAT_SUM_PART, depth)};
}

/* ---- epilogue: act(alpha*sum + beta*C + bias) ---- */

SAT_BOTH static inline float sat_act_f32(sat_activation act, float x) {
    switch (act) {
    case SAT_ACT_RELU: return x > 0 ? x : x != x ? x : 0;
    case SAT_ACT_GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case SAT_ACT_SILU: return x / (1.0f + expf(-x));
    default: return x;
    }
}

SAT_BOTH static inline double sat_act_f64(sat_activation act, double x) {
    switch (act) {
    case SAT_ACT_RELU: return x > 0 ? x : x != x ? x : 0;
    case SAT_ACT_GELU: return 0.5 * x * (1.0 + erf(x * 0.70710678118654752440));
    case SAT_ACT_SILU: return x / (1.0 + exp(-x));
    default: return x;
    }
}

/* ---- estimates ---- */

/* Seconds for an operation that does `flops` at `efficiency` of the device's rate and moves `bytes`. */
static inline double sat_roofline(const sat_device *d, sat_dtype t, double flops, double efficiency, double bytes) {
    double compute = flops / (d->flop_rate[t] * efficiency), memory = bytes / d->memory_rate;
    return (compute > memory ? compute : memory) + 1e-6;
}

/* What matrix units do with inputs of this dtype; f32 they round to TF32, which a problem has to allow. */
static inline double sat_matrix_rate(const sat_device *d, sat_dtype t) {
    return t == SAT_F32 ? d->tf32_rate : d->flop_rate[t];
}

/* Arithmetic on stored blocks, as every rate counts it. */
static inline double sat_flops(const sat_problem *p, const sat_pattern_view *a) {
    double columns = (double)(p->op == SAT_MATMUL ? p->n : p->k);
    return 2.0 * (double)a->stored_elements * columns * (double)p->batch;
}

/* What must move at least once: stored values, both dense operands, and the output (twice where it is read). */
static inline double sat_bytes(const sat_problem *p, const sat_pattern_view *a) {
    double values = (double)a->stored_elements, batch = (double)p->batch;
    double sa = (double)sat_dtype_size(p->a_dtype), sb = (double)sat_dtype_size(p->b_dtype);
    double sc = (double)sat_dtype_size(p->c_dtype) * (p->beta != 0 ? 2 : 1);
    double ba = p->a.batch_stride ? batch : 1, bb = p->b.batch_stride ? batch : 1;
    double index = 4.0 * (double)a->stored_blocks + 8.0 * (double)a->grid_rows;
    if (p->op == SAT_MATMUL)
        return index + values * sa * ba + (double)p->k * (double)p->n * sb * bb +
               (double)p->m * (double)p->n * sc * batch;
    return index + (double)p->m * (double)p->k * sa * ba + (double)p->k * (double)p->n * sb * bb + values * sc * batch;
}

#endif
