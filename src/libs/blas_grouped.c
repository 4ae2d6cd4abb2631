// Products of groups by BLAS: one call for each tile of each group. Good for groups of many rows.

#include "groups.h"
#include "libs/blas.h"
#include "libs/room.h"

/* ---- how it is cut ---- */

/* Groups one after the other; of Y, the rows behind the last group are one more, which has no depth. */
typedef struct job {
    const sat_launch *l;
    const sat_problem *p;
    bool weights;
    int64_t products;
    int64_t *offsets;    /* without faults */
    int64_t *first_tile; /* of each product, and how many there are */
} job;

/* C = A*B for one group; A is transposed for the gradient of W. */
typedef struct product {
    int64_t rows, depth;
    sat_matrix a, b, c;
    const void *bias;
    sat_tiles tiles;
} product;

static product product_of(const job *j, int64_t g) {
    const sat_problem *p = j->p;
    void *const *operands = j->l->operands;
    bool group = g < p->grouped.groups;
    int64_t first = j->offsets[g], rows = (group ? j->offsets[g + 1] : p->m) - first;
    sat_matrix x = sat_matrix_of(sat_at(p->a_dtype, operands[0], first * p->a.row_stride), &p->a);
    sat_matrix b = sat_matrix_of(operands[1], &p->b), c = sat_matrix_of(operands[2], &p->c);
    product r = {.rows = j->weights ? p->k : rows, .depth = j->weights ? rows : group ? p->k : 0, .b = b, .c = c};
    r.a = j->weights ? (sat_matrix){x.data, x.col_stride, x.row_stride} : x;
    r.b.data = sat_at(p->b_dtype, b.data, j->weights ? first * p->b.row_stride : group ? g * p->b.batch_stride : 0);
    r.c.data = sat_at(p->c_dtype, c.data, j->weights ? g * p->c.batch_stride : first * p->c.row_stride);
    if (group && p->grouped.bias) r.bias = sat_at(p->c_dtype, operands[4], g * p->n);
    r.tiles = sat_blas_tiles(r.rows, p->n);
    return r;
}

static void open_job(job *j, const sat_launch *l) {
    const sat_problem *p = l->problem;
    *j = (job){.l = l, .p = p, .weights = p->op == SAT_GROUPED_WEIGHTS, .offsets = l->workspace};
    j->products = p->grouped.groups + !j->weights;
    j->first_tile = j->offsets + p->grouped.groups + 1;
    (void)sat_groups_take(p, l->operands[3], j->offsets);
    j->first_tile[0] = 0;
    for (int64_t g = 0; g < j->products; g++) {
        product r = product_of(j, g);
        j->first_tile[g + 1] = j->first_tile[g] + (r.rows > 0 ? r.tiles.down * r.tiles.across : 0);
    }
}

/* ---- one tile ---- */

/* act(x + beta*C + bias) where there is no sum, act(C + bias) where BLAS has added it. */
static void finish_tile(const sat_problem *p, const product *r, const sat_matrix *c, int64_t rows, int64_t j,
                        int64_t cols) {
    double beta = r->depth == 0 ? p->beta : 1;
    if (beta == 1 && !r->bias && p->grouped.activation == SAT_ACT_NONE) return;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t e = 0; e < cols; e++) {
            int64_t at = i * c->row_stride + e * c->col_stride;
            double x = beta == 0 ? 0 : beta * sat_load(p->c_dtype, c->data, at);
            if (r->bias) x += sat_load(p->c_dtype, r->bias, j + e);
            sat_store(p->c_dtype, c->data, at, sat_act_f64(p->grouped.activation, x));
        }
}

static void run_tile(const job *j, int64_t tile) {
    const sat_problem *p = j->p;
    int64_t g = 0;
    while (j->first_tile[g + 1] <= tile) g++;
    product r = product_of(j, g);
    int64_t number = tile - j->first_tile[g], i = number / r.tiles.across * r.tiles.high,
            first = number % r.tiles.across * r.tiles.wide;
    int64_t rows = sat_min(r.tiles.high, r.rows - i), cols = sat_min(r.tiles.wide, p->n - first);
    sat_matrix a = sat_matrix_at(p->a_dtype, &r.a, i, 0), b = sat_matrix_at(p->b_dtype, &r.b, 0, first);
    sat_matrix c = sat_matrix_at(p->c_dtype, &r.c, i, first);
    if (r.depth > 0)
        sat_blas_gemm(sat_blas_of(j->l->variant), p->a_dtype, rows, cols, r.depth, p->alpha, &a, &b, p->beta, &c);
    finish_tile(p, &r, &c, rows, first, cols);
}

static sat_status launch(const sat_launch *l) {
    const sat_blas *blas = sat_blas_of(l->variant);
    sat_status room = sat_room_check(l);
    if (room != SAT_OK) return room;
    job j;
    open_job(&j, l);
#pragma omp parallel num_threads(l->threads)
    {
        int token = blas->enter();
#pragma omp for schedule(dynamic, 1)
        for (int64_t tile = 0; tile < j.first_tile[j.products]; tile++) run_tile(&j, tile);
        blas->leave(token);
    }
    return SAT_OK;
}

/* ---- what the tuner asks ---- */

/* Groups may have any number of rows up to all of them. */
static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    const sat_blas *blas = sat_blas_of(v);
    bool weights = p->op == SAT_GROUPED_WEIGHTS;
    (void)a;
    if (!sat_blas_takes(v, p, d)) return false;
    return sat_blas_fits(blas, p->m, p->k, p->a.row_stride, p->a.col_stride) &&
           sat_blas_fits(blas, weights ? p->m : p->k, p->n, p->b.row_stride, p->b.col_stride) &&
           sat_blas_fits(blas, weights ? p->k : p->m, p->n, p->c.row_stride, p->c.col_stride);
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    double m = (double)p->m, n = (double)p->n, k = (double)p->k, groups = (double)p->grouped.groups;
    double size = (double)sat_dtype_size(p->a_dtype), rows = fmax(1, m / fmax(1, groups));
    double bytes = size * (m * k + m * n + fmin(groups, m) * k * n);
    (void)v, (void)a;
    return fmax(2 * m * n * k / (d->flop_rate[p->compute_dtype] * 0.85 * rows / (rows + 16)), bytes / d->memory_rate) +
           groups * 1e-6 / (double)sat_max(1, d->threads) + 5e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return (size_t)(2 * p->grouped.groups + 4) * sizeof(int64_t);
}

#define FAMILY(operation, library_version, words)                                                                      \
    {                                                                                                                  \
        .version = library_version, .op = operation, .backend = SAT_CPU, .flags = SAT_V_LIBRARY | SAT_V_SCRATCH,       \
        .about = words, .supports = supports, .estimate = estimate, .workspace = workspace, .launch = launch           \
    }

SAT_FAMILY(cpu_grouped_openblas) = FAMILY(SAT_GROUPED, sat_openblas_version, "OpenBLAS, a call a tile of each group");
SAT_FAMILY(cpu_grouped_mkl) = FAMILY(SAT_GROUPED, sat_mkl_blas_version, "MKL, a call a tile of each group");
SAT_FAMILY(cpu_grouped_weights_openblas) = FAMILY(SAT_GROUPED_WEIGHTS, sat_openblas_version,
                                                  "OpenBLAS, a call a tile of each group");
SAT_FAMILY(cpu_grouped_weights_mkl) = FAMILY(SAT_GROUPED_WEIGHTS, sat_mkl_blas_version,
                                             "MKL, a call a tile of each group");
