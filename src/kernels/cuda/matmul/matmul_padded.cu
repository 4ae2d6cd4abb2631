// cuda_matmul_padded: runs another family's kernel on padded, aligned copies. Blocks whose sides are no multiples of 16
// are padded with zeros, and so are the rows of B and C that belong to them; rows that begin at odd addresses are
// copied to aligned ones. Every block is multiplied by its own rows of B and by zeros, never by another block's rows:
// NaN and infinities stay where they belong. What fits already is not copied.
//
// The families that support the padded problem are ranked by estimate. An instance's option is its rank.

#include <stdlib.h>

#include "variant.cuh"

#define SAT_VARIANT(name, family, ...) extern "C" const sat_family sat_family_##family;
#include "kernels/cuda/variants.def"
#undef SAT_VARIANT

enum { TILE = 32, ROWS_AT_ONCE = 8, MOST_PADDING = 8 /* times the elements */ };

/* ---- copies ---- */

// Rows of a matrix and of its padded copy: of every `padded` rows of the copy the first `real` are the matrix's, the
// others zero. The matrix has `count`.
struct row_map {
    int64_t real, padded, count;
};

static int64_t padded_count(const row_map &x) { return (x.count + x.real - 1) / x.real * x.padded; }
static bool is_identity(const row_map &x) { return padded_count(x) == x.count; }

// The matrix's row, or -1: padding. Rows are counted in 32 bits: divisions of 64 would take longer than the memory
// does.
__device__ __forceinline__ int64_t real_row(const row_map &x, int64_t line) {
    unsigned group = (unsigned)line / (unsigned)x.padded, within = (unsigned)line - group * (unsigned)x.padded;
    int64_t at = (int64_t)group * x.real + within;
    return within < x.real && at < x.count ? at : -1;
}

// Between a matrix of the caller and its padded copy, which is row-major.
struct copy_args {
    void *matrix, *copy;
    int64_t row_stride, col_stride; // of the matrix
    int64_t pitch;                  // of the copy
    row_map rows;
    int64_t lines, columns; // of the copy
};

// 16 bytes.
template <typename T> struct alignas(16) chunk {
    static constexpr int COUNT = 16 / (int)sizeof(T);
    T of[COUNT];
};

// A row-major matrix: a thread copies a chunk of a line. OUT: from the copy to the matrix.
template <typename T, bool OUT> static __global__ void __launch_bounds__(TILE *ROWS_AT_ONCE) copy_rows(copy_args x) {
    constexpr int COUNT = chunk<T>::COUNT;
    int64_t j = ((int64_t)blockIdx.x * TILE + threadIdx.x) * COUNT;
    if (j >= x.columns) return;
    for (int64_t line = (int64_t)blockIdx.y * ROWS_AT_ONCE + threadIdx.y; line < x.lines;
         line += (int64_t)gridDim.y * ROWS_AT_ONCE) {
        int64_t real = real_row(x.rows, line);
        chunk<T> *copy = (chunk<T> *)((T *)x.copy + line * x.pitch + j), c = {};
        T *matrix = (T *)x.matrix + real * x.row_stride + j;
        if (OUT && real >= 0) {
            c = *copy;
#pragma unroll
            for (int e = 0; e < COUNT; e++)
                if (j + e < x.columns) matrix[e] = c.of[e];
        } else if (!OUT) {
#pragma unroll
            for (int e = 0; e < COUNT; e++)
                if (real >= 0 && j + e < x.columns) c.of[e] = matrix[e];
            *copy = c;
        }
    }
}

// Any other matrix, by tiles of 32 x 32 through shared memory: neighbouring threads have neighbouring lines of the
// matrix, and neighbouring columns of the copy.
template <typename T, bool OUT> static __global__ void __launch_bounds__(TILE *ROWS_AT_ONCE) copy_tiles(copy_args x) {
    __shared__ T tile[TILE][TILE + 2];
    int64_t j0 = (int64_t)blockIdx.x * TILE;
    for (int64_t i0 = (int64_t)blockIdx.y * TILE; i0 < x.lines; i0 += (int64_t)gridDim.y * TILE) {
        int64_t real = i0 + threadIdx.x < x.lines ? real_row(x.rows, i0 + threadIdx.x) : -1;
        T *matrix = (T *)x.matrix + real * x.row_stride + j0 * x.col_stride;
        T *copy = (T *)x.copy + i0 * x.pitch + j0 + threadIdx.x;
        auto between_tile_and_copy = [&] {
            for (int i = (int)threadIdx.y; i < TILE; i += ROWS_AT_ONCE)
                if (i0 + i < x.lines && j0 + threadIdx.x < x.columns) {
                    if (OUT) tile[i][threadIdx.x] = copy[i * x.pitch];
                    else copy[i * x.pitch] = tile[i][threadIdx.x];
                }
        };
        if (OUT) between_tile_and_copy(), __syncthreads();
        for (int j = (int)threadIdx.y; j < TILE && j0 + j < x.columns; j += ROWS_AT_ONCE) {
            if (!OUT) tile[threadIdx.x][j] = real < 0 ? T() : matrix[j * x.col_stride];
            else if (real >= 0) matrix[j * x.col_stride] = tile[threadIdx.x][j];
        }
        __syncthreads();
        if (!OUT) between_tile_and_copy(), __syncthreads();
    }
}

// The block values. What the last block row or column holds beyond the matrix may be anything, and becomes zero.
struct values_args {
    const void *from;
    void *to;
    const int32_t *col_idx;
    int64_t blocks, last_row_block; // the first block of the last block row
    int64_t block_rows, block_cols, last_rows, last_cols, last_col, padded_rows, padded_cols;
};

// I: the type of the divisions. Those of 64 bits would take longer than the memory does.
template <typename T, typename I> static __global__ void __launch_bounds__(256) pad_values(values_args x) {
    constexpr int COUNT = chunk<T>::COUNT;
    I line_chunks = (I)(x.padded_cols / COUNT), block_chunks = (I)x.padded_rows * line_chunks;
    I step = (I)gridDim.x * blockDim.x, all = (I)x.blocks * block_chunks;
    for (I at = (I)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        I block = at / block_chunks, within = at - block * block_chunks, i = within / line_chunks;
        int64_t j = (int64_t)(within - i * line_chunks) * COUNT;
        int64_t rows = (int64_t)block >= x.last_row_block ? x.last_rows : x.block_rows;
        int64_t cols = x.col_idx[block] == x.last_col ? x.last_cols : x.block_cols;
        const T *line = (const T *)x.from + ((int64_t)block * x.block_rows + i) * x.block_cols;
        chunk<T> c;
#pragma unroll
        for (int e = 0; e < COUNT; e++) c.of[e] = (int64_t)i < rows && j + e < cols ? line[j + e] : T();
        ((chunk<T> *)x.to)[at] = c;
    }
}

/* ---- host: the padded problem, and who computes it ---- */

struct padded {
    sat_variant variant; // who computes it
    sat_problem problem;
    sat_pattern_view pattern;
    row_map b_rows, c_rows;
    bool copy_values, copy_b, copy_c;
};

struct offsets { // bytes in the workspace
    size_t values, b, c, bias, inner, all;
};

struct padded_state {
    padded x;
    offsets at;
    void *inner; // state
};

struct candidate {
    const sat_family *family;
    sat_instance instance;
};

static const candidate candidates[] = {
#define SAT_VARIANT(name, family, priority, dtype, tile_m, tile_n, tile_k, option)                                     \
    {&sat_family_##family, {(sat_dtype)(dtype), tile_m, tile_n, tile_k, option}},
#include "kernels/cuda/variants.def"
#undef SAT_VARIANT
};

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static double bytes_of(int64_t rows, int64_t columns, sat_dtype t) {
    return (double)rows * (double)columns * (double)sat_dtype_size(t);
}

static bool is_aligned(const sat_layout &l, uint32_t align, sat_dtype t) {
    int64_t line = l.col_stride == 1 ? l.row_stride : l.row_stride == 1 ? l.col_stride : 1;
    return align % 16 == 0 && line * (int64_t)sat_dtype_size(t) % 16 == 0;
}

// Row-major without gaps but for what makes every row begin at 16 bytes.
static sat_layout copied(int64_t columns, sat_dtype t) {
    return sat_layout{round_up(columns, 16 / (int64_t)sat_dtype_size(t)), 1, 0};
}

// The problem with blocks whose sides are multiples of `side`, and rows that begin at 16 bytes.
static padded pad(const sat_problem *p, const sat_pattern_view *a, int64_t side) {
    padded x = {};
    row_map rows = {a->block_rows, round_up(a->block_rows, side), a->rows};
    row_map cols = {a->block_cols, round_up(a->block_cols, side), a->cols};
    x.b_rows = sat_transposed(p) ? rows : cols, x.c_rows = sat_transposed(p) ? cols : rows;
    x.problem = *p;
    x.problem.a_align = sat_item_align(p->a_align, &p->a, p->batch, p->a_dtype);
    x.problem.b_align = sat_item_align(p->b_align, &p->b, p->batch, p->b_dtype);
    x.problem.c_align = sat_item_align(p->c_align, &p->c, p->batch, p->c_dtype);
    x.copy_values = !is_identity(rows) || !is_identity(cols) || x.problem.a_align % 16 != 0;
    x.copy_b = !is_identity(x.b_rows) || !is_aligned(p->b, x.problem.b_align, p->b_dtype);
    x.copy_c = !is_identity(x.c_rows) || !is_aligned(p->c, x.problem.c_align, p->c_dtype);
    x.pattern = *a;
    x.pattern.block_rows = rows.padded, x.pattern.block_cols = cols.padded;
    x.pattern.rows = padded_count(rows), x.pattern.cols = padded_count(cols);
    x.pattern.stored_elements = a->stored_blocks * rows.padded * cols.padded;
    x.problem.m = padded_count(x.c_rows), x.problem.k = padded_count(x.b_rows), x.problem.batch = 1;
    if (x.copy_values) x.problem.a_align = 256;
    if (x.copy_b) x.problem.b = copied(p->n, p->b_dtype), x.problem.b_align = 256;
    if (x.copy_c) x.problem.c = copied(p->n, p->c_dtype), x.problem.c_align = 256;
    return x;
}

static bool fits(const padded &x, const sat_pattern_view *a) {
    bool some = a->stored_blocks > 0 && (x.copy_values || x.copy_b || x.copy_c);
    bool countable = sat_max(x.problem.m, x.problem.k) <= INT32_MAX;
    return some && countable &&
           x.pattern.block_rows * x.pattern.block_cols <= MOST_PADDING * a->block_rows * a->block_cols;
}

static offsets lay_out(const padded &x, const sat_device *d) {
    const sat_problem *p = &x.problem;
    offsets at = {};
    at.values = sat_carve(&at.all, x.copy_values ? bytes_of(x.pattern.stored_elements, 1, p->a_dtype) : 0);
    at.b = sat_carve(&at.all, x.copy_b ? bytes_of(p->k, p->b.row_stride, p->b_dtype) : 0);
    at.c = sat_carve(&at.all, x.copy_c ? bytes_of(p->m, p->c.row_stride, p->c_dtype) : 0);
    at.bias = sat_carve(&at.all, sat_has_bias(p) ? bytes_of(p->m, 1, p->c_dtype) : 0);
    at.inner = sat_carve(&at.all, x.variant.workspace ? (double)x.variant.workspace(&x.variant, p, &x.pattern, d) : 0);
    return at;
}

// Copies are read and written once; most of what they write is still in L2 when it is read again.
static double copy_seconds(const padded &x, const sat_problem *p, const sat_device *d) {
    double bytes = 0, launches = sat_has_bias(p);
    bool kept = p->flags & SAT_FIXED_VALUES;
    if (x.copy_values && !kept) bytes += 2 * bytes_of(x.pattern.stored_elements, 1, p->a_dtype), launches++;
    if (x.copy_b) bytes += 2 * bytes_of(x.problem.k, p->n, p->b_dtype), launches++;
    if (x.copy_c) bytes += (p->beta != 0 ? 4 : 2) * bytes_of(x.problem.m, p->n, p->c_dtype), launches++;
    return bytes / (0.6 * d->memory_rate) + 2e-6 * launches;
}

static sat_status launch(const sat_launch *l);

// The family at `rank` among those that take the padded problem, by the estimate of its best instance and block.
static bool choose(int rank, const char *name, const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                   padded *to, double *seconds) {
    enum { MOST = 4 };
    struct {
        const sat_family *family;
        padded x;
        double seconds;
    } best[MOST + 1];
    int count = 0;
    for (int64_t side = 16; side <= 64; side *= 2) {
        padded x = pad(p, a, side);
        if (!fits(x, a)) continue;
        double copies = copy_seconds(x, p, d);
        for (const candidate &c : candidates) {
            if (c.family->op != SAT_MATMUL || c.family->launch == launch) continue;
            if (c.family == &sat_family_cuda_matmul_gathered) continue; // takes every problem as it is
            if (c.family->flags & (SAT_V_REFERENCE | SAT_V_NONDETERMINISTIC) || c.family->refresh) continue;
            x.variant = sat_variant_of(c.family, c.instance, name);
            if (!c.family->supports(&x.variant, &x.problem, &x.pattern, d)) continue;
            double estimate = copies + c.family->estimate(&x.variant, &x.problem, &x.pattern, d);
            // `best` is sorted and has each family once: its place now, and the place where it was, or a new one.
            int at = 0, from = 0;
            while (at < count && best[at].seconds <= estimate) at++;
            while (from < count && best[from].family != c.family) from++;
            if (at > rank || from < at) continue; // too slow, or its family is there and faster
            if (from == count && count <= rank) count++;
            for (int i = from < count ? from : count - 1; i > at; i--) best[i] = best[i - 1];
            best[at].family = c.family, best[at].x = x, best[at].seconds = estimate;
        }
    }
    if (count <= rank) return false;
    *to = best[rank].x, *seconds = best[rank].seconds;
    return true;
}

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    padded x;
    double seconds;
    return p->n > 0 && choose(v->instance.option, v->name, p, a, d, &x, &seconds);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    padded x;
    double seconds;
    return choose(v->instance.option, v->name, p, a, d, &x, &seconds) ? seconds * (double)p->batch : INFINITY;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    padded x;
    double seconds;
    return choose(v->instance.option, v->name, p, a, d, &x, &seconds) ? lay_out(x, d).all : 0;
}

static void release(const sat_variant *v, void *state) {
    padded_state *st = (padded_state *)state;
    (void)v;
    if (st && st->x.variant.release) st->x.variant.release(&st->x.variant, st->inner);
    free(st);
}

static sat_status prepare(const sat_prepare *q, void **state) {
    padded_state *st = (padded_state *)calloc(1, sizeof *st);
    double seconds;
    *state = NULL;
    if (!st) return sat_fail(SAT_OUT_OF_MEMORY, "%s: no memory on the host", q->variant->name);
    if (!choose(q->variant->instance.option, q->variant->name, q->problem, q->pattern, q->device, &st->x, &seconds)) {
        free(st);
        return sat_fail(SAT_UNSUPPORTED, "%s: strides or sizes", q->variant->name);
    }
    st->at = lay_out(st->x, q->device);
    sat_prepare inner = *q;
    inner.variant = &st->x.variant, inner.problem = &st->x.problem, inner.pattern = &st->x.pattern;
    inner.workspace = (char *)q->workspace + st->at.inner;
    sat_status status = st->x.variant.prepare ? st->x.variant.prepare(&inner, &st->inner) : SAT_OK;
    if (status == SAT_OK) *state = st;
    else free(st);
    return status;
}

/* ---- host: launch ---- */

template <typename T> static void start_values(const values_args &x, const sat_launch *l) {
    int64_t chunks = x.blocks * x.padded_rows * x.padded_cols / chunk<T>::COUNT;
    unsigned ctas = sat_blocks(chunks, 256);
    cudaStream_t s = (cudaStream_t)l->stream;
    if (chunks < INT32_MAX) pad_values<T, uint32_t><<<ctas, 256, 0, s>>>(x);
    else pad_values<T, int64_t><<<ctas, 256, 0, s>>>(x);
}

static sat_status copy_values(const sat_launch *l, const padded_state *st) {
    const sat_pattern_view *a = l->pattern, *to = &st->x.pattern;
    values_args x = {l->operands[0],
                     (char *)l->workspace + st->at.values,
                     a->device_col_idx,
                     a->stored_blocks,
                     a->row_ptr[a->grid_rows - 1],
                     a->block_rows,
                     a->block_cols,
                     a->rows - (a->grid_rows - 1) * a->block_rows,
                     a->cols - (a->grid_cols - 1) * a->block_cols,
                     a->grid_cols - 1,
                     to->block_rows,
                     to->block_cols};
    size_t size = sat_dtype_size(l->problem->a_dtype);
    if (size == 2) start_values<uint16_t>(x, l);
    else if (size == 4) start_values<uint32_t>(x, l);
    else start_values<uint64_t>(x, l);
    return sat_launched(l);
}

template <typename T, bool OUT> static void start_copy(const copy_args &x, const sat_launch *l) {
    bool by_rows = x.col_stride == 1;
    int64_t wide = by_rows ? TILE * chunk<T>::COUNT : TILE, high = by_rows ? ROWS_AT_ONCE : TILE;
    dim3 threads(TILE, ROWS_AT_ONCE);
    dim3 ctas(sat_blocks(x.columns, wide), (unsigned)sat_min(65535, (x.lines + high - 1) / high));
    if (by_rows) copy_rows<T, OUT><<<ctas, threads, 0, (cudaStream_t)l->stream>>>(x);
    else copy_tiles<T, OUT><<<ctas, threads, 0, (cudaStream_t)l->stream>>>(x);
}

template <bool OUT>
static sat_status copy_matrix(const sat_launch *l, void *matrix, const sat_layout &from, void *copy, int64_t pitch,
                              const row_map &rows, int64_t columns, sat_dtype t) {
    copy_args x = {matrix, copy, from.row_stride, from.col_stride, pitch, rows, padded_count(rows), columns};
    size_t size = sat_dtype_size(t);
    if (size == 2) start_copy<uint16_t, OUT>(x, l);
    else if (size == 4) start_copy<uint32_t, OUT>(x, l);
    else start_copy<uint64_t, OUT>(x, l);
    return sat_launched(l);
}

// With fixed values: once for all launches that follow.
static sat_status refresh(const sat_launch *l) {
    const padded_state *st = (const padded_state *)l->state;
    bool kept = l->problem->flags & SAT_FIXED_VALUES;
    return kept && st->x.copy_values ? copy_values(l, st) : SAT_OK;
}

static sat_status copy_in(const sat_launch *l, const padded_state *st, void *const *to) {
    const sat_problem *p = l->problem, *inner = &st->x.problem;
    sat_status status = SAT_OK;
    if (st->x.copy_values && !(p->flags & SAT_FIXED_VALUES)) status = copy_values(l, st);
    if (status == SAT_OK && st->x.copy_b)
        status =
            copy_matrix<false>(l, l->operands[1], p->b, to[1], inner->b.row_stride, st->x.b_rows, p->n, p->b_dtype);
    if (status == SAT_OK && st->x.copy_c && p->beta != 0)
        status =
            copy_matrix<false>(l, l->operands[2], p->c, to[2], inner->c.row_stride, st->x.c_rows, p->n, p->c_dtype);
    if (status == SAT_OK && to[3] != l->operands[3])
        status = copy_matrix<false>(l, l->operands[3], sat_layout{1, 0, 0}, to[3], 1, st->x.c_rows, 1, p->c_dtype);
    return status;
}

static sat_status launch(const sat_launch *l) {
    const padded_state *st = (const padded_state *)l->state;
    const sat_problem *p = l->problem;
    char *w = (char *)l->workspace;
    bool copy_bias = l->operands[3] && !is_identity(st->x.c_rows);
    void *operands[SAT_MAX_OPERANDS] = {
        st->x.copy_values ? w + st->at.values : l->operands[0], st->x.copy_b ? w + st->at.b : l->operands[1],
        st->x.copy_c ? w + st->at.c : l->operands[2], copy_bias ? w + st->at.bias : l->operands[3]};
    sat_launch inner = *l;
    inner.variant = &st->x.variant, inner.problem = &st->x.problem, inner.pattern = &st->x.pattern;
    inner.operands = operands, inner.workspace = w + st->at.inner, inner.state = st->inner;
    sat_status status = copy_in(l, st, operands);
    if (status == SAT_OK) status = st->x.variant.launch(&inner);
    if (status == SAT_OK && st->x.copy_c)
        status = copy_matrix<true>(l, l->operands[2], p->c, operands[2], st->x.problem.c.row_stride, st->x.c_rows, p->n,
                                   p->c_dtype);
    return status;
}

SAT_FAMILY(cuda_matmul_padded) = {
    .revision = "1",
    .op = SAT_MATMUL,
    .backend = SAT_CUDA,
    .about = "odd blocks and odd addresses, copied to what another kernel takes",
    .supports = supports,
    .estimate = estimate,
    .workspace = workspace,
    .prepare = prepare,
    .refresh = refresh,
    .launch = launch,
    .release = release,
};
