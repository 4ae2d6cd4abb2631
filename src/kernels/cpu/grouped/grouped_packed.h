/* The packed products of groups; a template, included once for each element type. It reads from packing out to the
 * tiles, the epilogue and the launch. grouped_packed_plan.h says how the products are cut. A family defines
 *   FN(name)             the element type: common/vector.h
 *   what common/packed_tiles.h asks for
 * FN is undefined at the end. */

#include "kernels/cpu/common/packed_tiles.h"
#include "kernels/cpu/common/finish_line.h"

/* A thread at one task: rows [i, i + rows) and columns [j, j + cols) of a product. */
typedef struct FN(task) {
    const grouped_job *job;
    grouped_product product;
    grouped_sizes sizes;
    int64_t i, rows, j, cols;
    REAL *a, *b, *sums, *biases;
} FN(task);

/* ---- packing ---- */

static void FN(pack_panels)(const FN(task) * t, int64_t from, int64_t len, int64_t first) {
    const sat_problem *p = t->job->p;
    const int64_t panels = grouped_ceil(t->cols, LANES), rs = p->b.row_stride, cs = p->b.col_stride;
    for (int64_t q = first; q < panels; q++) {
        int64_t wide = sat_min(LANES, t->cols - q * LANES);
        if (cs == 1 && wide == LANES) continue;
        const void *src = sat_at(p->b_dtype, t->product.b, from * rs + (t->j + q * LANES) * cs);
        REAL *to = t->b + q * t->sizes.panel;
        if (wide < LANES) memset(to, 0, (size_t)(len * LANES) * sizeof *to);
        FN(copy)(to, LANES, len, wide, p->b_dtype, src, rs, cs);
    }
    if (cs != 1) return;
    int64_t whole = t->cols / LANES, line = 64 / (int64_t)sat_dtype_size(p->b_dtype);
    for (int64_t k = 0; k < len; k++) { /* row by row, so that whole cache lines are used */
        const void *src = sat_at(p->b_dtype, t->product.b, (from + k) * rs + t->j);
        for (int64_t e = first * LANES; e < whole * LANES; e += line)
            __builtin_prefetch(sat_at(p->b_dtype, src, 4 * rs + e));
        for (int64_t q = first; q < whole; q++)
            FN(copy_row)(t->b + q * t->sizes.panel + k * LANES, LANES, p->b_dtype, src, q * LANES);
    }
}

static void FN(pack)(const FN(task) * t, int64_t from, int64_t len) {
    const sat_problem *p = t->job->p;
    const grouped_product *x = &t->product;
    const void *src = sat_at(p->a_dtype, x->a, t->i * x->a_row + from * x->a_depth);
    FN(copy)(t->a, t->sizes.pitch, t->rows, len, p->a_dtype, src, x->a_row, x->a_depth);
    FN(pack_panels)(t, from, len, t->job->direct ? t->cols / LANES : 0);
}

/* ---- tiles ---- */

#define DIRECT_TILE(rows, panels)                                                                                      \
    static void FN(direct_##rows##_##panels)(int64_t kc, const OPERAND *x, int64_t pitch, const OPERAND *const *y,     \
                                             int64_t step, REAL *out) {                                                \
        FN(outer)(rows, panels, kc, x, pitch, y, step, out);                                                           \
    }
OUTER_TILES(DIRECT_TILE)
#define DIRECT_ENTRY(rows, panels) [rows][panels] = FN(direct_##rows##_##panels),
typedef void (*FN(direct_tile))(int64_t kc, const OPERAND *x, int64_t pitch, const OPERAND *const *y, int64_t step,
                                REAL *out);
static const FN(direct_tile) FN(direct_tiles)[9][9] = {OUTER_TILES(DIRECT_ENTRY)};
#undef DIRECT_TILE
#undef DIRECT_ENTRY

/* Sums of one tile, added to those of the chunks before. */
static void FN(add_tile)(const FN(task) * t, const REAL *tile, int64_t row, int64_t rows, int64_t col, int64_t cols,
                         bool first) {
    for (int64_t r = 0; r < rows; r++) {
        REAL *to = t->sums + (row + r) * t->sizes.width + col;
        const REAL *from = tile + r * cols;
        if (first) memcpy(to, from, (size_t)cols * sizeof *to);
        else
            for (int64_t e = 0; e < cols; e++) to[e] += from[e];
    }
}

static void FN(multiply)(const FN(task) * t, int64_t from, int64_t len) {
    const sat_problem *p = t->job->p;
    const sat_instance *own = &t->job->l->variant->instance;
    int64_t panels = grouped_ceil(t->cols, LANES), in_place = t->job->direct ? t->cols / LANES : 0;
    int64_t strips = grouped_ceil(t->rows, own->tile_m), wide;
    const REAL *b = t->product.b;
    REAL tile[8 * 8 * LANES] __attribute__((aligned(64)));
    for (int64_t q = 0; q < panels; q += wide) {
        const OPERAND *y[8];
        bool direct = q < in_place;
        int64_t left = (direct ? in_place : panels) - q;
        wide = left >= 2 * own->tile_n || left <= own->tile_n ? sat_min(left, own->tile_n) : (left + 1) / 2;
        for (int64_t e = 0; e < wide; e++)
            y[e] = direct ? b + from * p->b.row_stride + t->j + (q + e) * LANES : t->b + (q + e) * t->sizes.panel;
        for (int64_t s = 0; s < strips; s++) { /* of like height */
            int64_t row = t->rows * s / strips, rows = t->rows * (s + 1) / strips - row;
            const OPERAND *a = t->a + row * t->sizes.pitch;
            if (direct) FN(direct_tiles)[rows][wide](len, a, t->sizes.pitch, y, p->b.row_stride, tile);
            else FN(outer_tiles)[rows][wide](len, a, t->sizes.pitch, y, tile);
            FN(add_tile)(t, tile, row, rows, q * LANES, wide * LANES, from == 0);
        }
    }
}

/* ---- the epilogue ---- */

static void FN(finish)(const FN(task) * t) {
    const sat_problem *p = t->job->p;
    FN(line)
    l = {.alpha = (REAL)p->alpha, .beta = (REAL)p->beta, .activation = p->grouped.activation, .dtype = p->c_dtype};
    if (t->product.bias) FN(read_line)(t->biases, p->c_dtype, sat_at(p->c_dtype, t->product.bias, t->j), t->cols);
    if (t->product.bias) l.biases = t->biases;
    for (int64_t r = 0; r < t->rows; r++) {
        REAL *sums = t->sums + r * t->sizes.width;
        void *c = sat_at(p->c_dtype, t->product.c, (t->i + r) * p->c.row_stride + t->j * p->c.col_stride);
        if (p->c.col_stride == 1) {
            FN(finish_line)(sums, c, t->cols, &l);
            continue;
        }
        for (int64_t e = 0; e < t->cols; e++) {
            FN(line) one = l;
            if (l.biases) one.biases = l.biases + e;
            FN(finish_line)(sums + e, sat_at(p->c_dtype, c, e * p->c.col_stride), 1, &one);
        }
    }
}

/* ---- tasks and launch ---- */

static void FN(run_task)(const grouped_job *j, const grouped_sizes *sizes, int64_t task) {
    int64_t g = grouped_product_of_task(j, task), tile = task - j->first_task[g];
    FN(task) t = {.job = j, .product = grouped_product_of(j, g), .sizes = *sizes};
    t.i = tile / j->across * GROUPED_ROWS, t.rows = sat_min(GROUPED_ROWS, t.product.rows - t.i);
    t.j = tile % j->across * GROUPED_COLUMNS, t.cols = sat_min(GROUPED_COLUMNS, j->p->n - t.j);
    t.a = (REAL *)(void *)(j->buffers + (size_t)omp_get_thread_num() * sizes->bytes);
    t.b = t.a + GROUPED_ROWS * sizes->pitch;
    t.sums = t.b + sizes->width / LANES * sizes->panel;
    t.biases = t.sums + GROUPED_ROWS * sizes->width;
    if (t.product.depth == 0) memset(t.sums, 0, (size_t)(t.rows * sizes->width) * sizeof *t.sums);
    for (int64_t from = 0; from < t.product.depth; from += sizes->chunk) {
        int64_t len = sat_min(sizes->chunk, t.product.depth - from);
        FN(pack)(&t, from, len);
        FN(multiply)(&t, from, len);
    }
    FN(finish)(&t);
}

static sat_status FN(launch)(const sat_launch *l) {
    grouped_job job;
    grouped_sizes sizes = grouped_sizes_of(l->problem);
    grouped_open(&job, l);
    int64_t tasks = job.first_task[job.products];
#pragma omp parallel for num_threads(l->threads) schedule(dynamic, 1) if (tasks > 1)
    for (int64_t task = 0; task < tasks; task++) FN(run_task)(&job, &sizes, task);
    return SAT_OK;
}

#undef FN
