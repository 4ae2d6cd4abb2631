/* What the CUDA libraries' variants do on the host: finding libraries, converting indices, telling cuBLAS of matrices,
 * and what they take. Nothing here needs a GPU; without the CUDA backend only the first two parts are built. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

#include "libs/convert.h"
#include "libs/library.h"

/* ---- index conversions ---- */

typedef struct sample {
    sat_context *ctx;
    sat_pattern *pattern;
    sat_pattern_view view;
    sat_rows rows; /* of A or its transpose */
} sample;

static sample make_sample(uint64_t *r) {
    sample s = {.ctx = open_context(SAT_EFFORT_OFF)};
    double densities[] = {0, 0.05, 0.3, 1};
    s.pattern = random_pattern(s.ctx, r, 1 + random_below(r, 60), 1 + random_below(r, 60), 1 + random_below(r, 5),
                               1 + random_below(r, 5), densities[random_below(r, 4)], false);
    s.view = view_of(s.pattern);
    sat_problem p = {.matmul.transpose = random_below(r, 2) ? SAT_TRANSPOSE : SAT_NO_TRANSPOSE};
    s.rows = sat_op_rows(&p, &s.view);
    return s;
}

static void free_sample(sample *s) {
    sat_pattern_free(s->pattern);
    sat_context_free(s->ctx);
}

static void rows_and_pointers_say_what_the_pattern_says(void **state) {
    (void)state;
    uint64_t r = 2;
    for (int round = 0; round < 50; round++) {
        sample s = make_sample(&r);
        const sat_rows *a = &s.rows;
        int64_t blocks = a->ptr[a->count];
        int32_t *rows = malloc((size_t)(blocks + 1) * 4), *pointers = malloc((size_t)(a->count + 1) * 4);
        sat_convert_rows(a, rows);
        sat_convert_pointers(a, pointers);
        for (int64_t t = 0; t < blocks; t++) assert_true(a->ptr[rows[t]] <= t && t < a->ptr[rows[t] + 1]);
        for (int64_t g = 0; g <= a->count; g++) assert_int_equal(pointers[g], a->ptr[g]);
        free(rows), free(pointers);
        free_sample(&s);
    }
}

/* Entry e of row i: its column is inside the matrix, later than the one before, and its value is where the block that
 * covers (i, column) has it. */
static void csr_has_every_element_inside_the_matrix_once_and_in_order(void **state) {
    (void)state;
    uint64_t r = 5;
    for (int round = 0; round < 100; round++) {
        sample s = make_sample(&r);
        const sat_rows *a = &s.rows;
        size_t entries = (size_t)s.view.stored_elements;
        int32_t *ptr = malloc((size_t)(a->m + 1) * 4), *col = malloc((entries + 1) * 4),
                *from = malloc((entries + 1) * 4);
        sat_convert_csr(a, ptr, col, from);
        assert_int_equal(ptr[0], 0);
        assert_int_equal(ptr[a->m], entries);
        bool in_order = (int64_t)entries == a->ptr[a->count] * a->block_elements;
        for (int64_t i = 0; i < a->m; i++)
            for (int32_t e = ptr[i]; e < ptr[i + 1]; e++) {
                assert_true(col[e] < a->k && (e == ptr[i] || col[e] > col[e - 1]));
                int64_t t = a->ptr[i / a->br];
                while (a->col[t] != col[e] / a->bc) t++;
                assert_true(t < a->ptr[i / a->br + 1]);
                assert_int_equal(from[e], sat_block_of(a, t) * a->block_elements + i % a->br * a->row_step +
                                              col[e] % a->bc * a->col_step);
                in_order = in_order && from[e] == e;
            }
        assert_true(in_order || !sat_convert_csr_in_order(a));
        free(ptr), free(col), free(from);
        free_sample(&s);
    }
}

static void rounds_take_each_block_once_and_no_row_twice(void **state) {
    (void)state;
    uint64_t r = 3;
    for (int round = 0; round < 100; round++) {
        sample s = make_sample(&r);
        const sat_rows *a = &s.rows;
        int64_t depth = sat_convert_widest(a), blocks = a->ptr[a->count];
        int64_t *first = malloc((size_t)(depth + 1) * sizeof *first);
        int32_t *at = malloc((size_t)(blocks + 1) * 4), *row = malloc((size_t)(blocks + 1) * 4);
        int *seen = calloc((size_t)(blocks + 1), sizeof *seen), *used = calloc((size_t)(a->count + 1), sizeof *used);
        sat_convert_rounds(a, depth, first, at, row);
        assert_int_equal(first[0], 0);
        assert_int_equal(first[depth], blocks);
        for (int64_t t = 0; t < depth; t++) {
            assert_true(t == 0 || first[t + 1] - first[t] <= first[t] - first[t - 1]); /* rows only drop out */
            for (int64_t e = first[t]; e < first[t + 1]; e++) {
                assert_int_equal(at[e], a->ptr[row[e]] + t);
                assert_int_equal(used[row[e]]++, t);
                seen[at[e]]++;
            }
        }
        for (int64_t t = 0; t < blocks; t++) assert_int_equal(seen[t], 1);
        free(first), free(at), free(row), free(seen), free(used);
        free_sample(&s);
    }
}

/* ---- finding ---- */

static const char *const probe_names[] = {"libsat_probe.so.2", "libsat_probe.so.1", NULL};
static const char *const probe_packages[] = {"/nvidia/cu13/lib", "/nvidia/probe/lib", NULL};
static const sat_cuda_library probe = {"SAT_TEST_PROBE", probe_names, NULL, probe_packages, NULL};
static char root[PATH_MAX - 256];

/* Some library of this process under another name: dlopen looks at the name first, then at the file. */
static bool plant(const char *folder) {
    char path[PATH_MAX];
    Dl_info info;
    int length = snprintf(path, sizeof path, "%s%s/", root, folder);
    if (length < 0 || !dladdr((void *)(uintptr_t)_cmocka_run_group_tests, &info) || info.dli_fname[0] != '/')
        return false;
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    strcat(path, "libsat_probe.so.1");
    return symlink(info.dli_fname, path) == 0;
}

static void uproot(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s/libsat_probe.so.1", root, folder) > 0) unlink(path);
    for (char *slash; (slash = strrchr(path, '/')) && slash > path + strlen(root);) {
        *slash = 0;
        rmdir(path);
    }
}

static int leave_no_trace(void **state) {
    (void)state;
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "HOME"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    const char *temporary = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/sat_cuda_libs_XXXXXX", temporary && temporary[0] == '/' ? temporary : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    return rmdir(root);
}

static void a_library_is_found_in_toolkits_and_in_wheels(void **state) {
    (void)state;
    const struct {
        const char *variable, *folder;
    } places[] = {{"CUDA_HOME", "/lib64"},
                  {"CUDA_PATH", "/lib"},
                  {"CONDA_PREFIX", "/lib"},
                  {"VIRTUAL_ENV", "/lib/python3.9/site-packages/nvidia/cu13/lib"},
                  {"CONDA_PREFIX", "/lib/python3.12/site-packages/nvidia/probe/lib"},
                  {"HOME", "/.local/lib/python3.11/site-packages/nvidia/probe/lib"},
                  {"VIRTUAL_ENV", "/lib/python3/dist-packages/nvidia/cu13/lib"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        assert_null(sat_library_open_cuda(&probe));
        if (!plant(places[i].folder)) skip();
        setenv(places[i].variable, root, 1);
        void *library = sat_library_open_cuda(&probe);
        unsetenv(places[i].variable);
        uproot(places[i].folder);
        if (!library) fail_msg("not found below $%s%s", places[i].variable, places[i].folder);
        dlclose(library);
    }
}

static void the_variable_decides_alone(void **state) {
    (void)state;
    if (!plant("/lib64")) skip();
    setenv("CUDA_HOME", root, 1);
    setenv("SAT_TEST_PROBE", "off", 1);
    assert_null(sat_library_open_cuda(&probe));
    setenv("SAT_TEST_PROBE", "/nowhere/libsat_probe.so.1", 1);
    assert_null(sat_library_open_cuda(&probe));
    unsetenv("SAT_TEST_PROBE");
    void *library = sat_library_open_cuda(&probe);
    assert_non_null(library);
    dlclose(library);
    unsetenv("CUDA_HOME");
    uproot("/lib64");
}

#ifdef SAT_HAVE_CUDA
#include "libs/cublaslt.h"
#include "libs/cudnn.h"
#include "libs/cusparse.h"
#include "problems.h"

static void a_library_that_is_absent_has_no_version(void **state) {
    (void)state;
    setenv("SPARSE_AUTOTUNE_CUBLAS", "off", 1);
    setenv("SPARSE_AUTOTUNE_CUBLASLT", "off", 1);
    setenv("SPARSE_AUTOTUNE_CUSPARSE", "off", 1);
    setenv("SPARSE_AUTOTUNE_CUDNN", "off", 1);
    assert_null(sat_cudnn_version());
    assert_int_equal(sat_cudnn_number(), 0);
    assert_null(sat_cublas_version());
    assert_null(sat_cublaslt_version());
    assert_null(sat_cusparse_version());
    assert_null(sat_cusparse_bsr_version());
}

/* ---- matrices as cuBLAS has them ---- */

static sat_matrix random_matrix(uint64_t *r, int64_t rows, int64_t cols, double **memory) {
    int64_t gap = random_below(r, 3);
    bool by_rows = random_below(r, 2);
    sat_matrix m = {NULL, by_rows ? cols + gap : 1, by_rows ? 1 : rows + gap};
    m.data = *memory = malloc((size_t)((rows + 3) * (cols + 3)) * sizeof **memory);
    for (int64_t i = 0; i < (rows + 3) * (cols + 3); i++) (*memory)[i] = (double)random_below(r, 19) - 9;
    return m;
}

static double at(const sat_matrix *m, int64_t i, int64_t j) {
    return ((double *)m->data)[i * m->row_stride + j * m->col_stride];
}

/* A column-major product, read as the BLAS standard has it. */
static double blas_element(const sat_gemm *g, const double *a, const double *b, int i, int j) {
    double sum = 0;
    for (int k = 0; k < g->k; k++)
        sum += (g->ta ? a[k + i * g->lda] : a[i + k * g->lda]) * (g->tb ? b[j + k * g->ldb] : b[k + j * g->ldb]);
    return sum;
}

static void any_order_of_the_operands_is_the_same_product(void **state) {
    (void)state;
    uint64_t r = 4;
    for (int round = 0; round < 500; round++) {
        int64_t m = 1 + random_below(&r, 7), n = 1 + random_below(&r, 7), k = 1 + random_below(&r, 7);
        double *memory[3];
        sat_matrix a = random_matrix(&r, m, k, &memory[0]), b = random_matrix(&r, k, n, &memory[1]);
        sat_matrix c = random_matrix(&r, m, n, &memory[2]);
        sat_problem p = matmul_problem(SAT_F64, n);
        sat_gemm g;
        assert_true(sat_gemm_make(&g, &p, SAT_F64, m, n, k, &a, &b, &c));
        const double *x = g.swapped ? b.data : a.data, *y = g.swapped ? a.data : b.data;
        for (int j = 0; j < g.n; j++)
            for (int i = 0; i < g.m; i++) ((double *)c.data)[i + (int64_t)j * g.ldc] = blas_element(&g, x, y, i, j);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t e = 0; e < k; e++) sum += at(&a, i, e) * at(&b, e, j);
                assert_true(at(&c, i, j) == sum);
            }
        for (int i = 0; i < 3; i++) free(memory[i]);
    }
}

static void strides_that_no_leading_dimension_describes_are_refused(void **state) {
    (void)state;
    sat_problem p = matmul_problem(SAT_F32, 8);
    sat_matrix good = {NULL, 8, 1}, both = {NULL, 16, 2}, none = {NULL, 0, 1}, far = {NULL, (int64_t)INT_MAX + 1, 1};
    sat_gemm g;
    assert_true(sat_gemm_make(&g, &p, SAT_F32, 8, 8, 8, &good, &good, &good));
    const sat_matrix *bad[] = {&both, &none, &far};
    for (int i = 0; i < 3; i++) {
        assert_false(sat_gemm_make(&g, &p, SAT_F32, 8, 8, 8, bad[i], &good, &good));
        assert_false(sat_gemm_make(&g, &p, SAT_F32, 8, 8, 8, &good, bad[i], &good));
        assert_false(sat_gemm_make(&g, &p, SAT_F32, 8, 8, 8, &good, &good, bad[i]));
    }
}

/* ---- what they take ---- */

extern const sat_family sat_family_cuda_matmul_cusparse_bsr, sat_family_cuda_matmul_cusparse_ell;
extern const sat_family sat_family_cuda_matmul_cusparse_csr;
extern const sat_family sat_family_cuda_matmul_cublas_block, sat_family_cuda_matmul_cublas_dense;
extern const sat_family sat_family_cuda_matmul_cublaslt_dense, sat_family_cuda_matmul_cublaslt_guarded;
extern const sat_family sat_family_cuda_matmul_cublas_guarded, sat_family_cuda_sampled_cublas_dense;

static const sat_device hopper = {SAT_SIZED(sat_device),  .backend = SAT_CUDA,
                                  .multiprocessors = 132, .capability = 90,
                                  .l2_bytes = 60 << 20,   .memory_bytes = (int64_t)139 << 30,
                                  .memory_rate = 4e12,    .flop_rate = {0, 5e13, 5e13, 8e14, 8e14}};

static bool takes(const sat_family *f, int option, const sat_problem *p, const sat_pattern_view *a) {
    sat_variant v = {SAT_SIZED(sat_variant), .name = "probe", .flags = f->flags, .instance.option = option};
    bool taken = f->supports(&v, p, a, &hopper);
    if (taken) {
        assert_true(f->estimate(&v, p, a, &hopper) > 0);
        assert_true(f->workspace(&v, p, a, &hopper) > 0);
    }
    return taken;
}

static sat_problem aligned_problem(sat_dtype t, const sat_pattern_view *a) {
    sat_problem p = matmul_problem(t, 64);
    p.m = a->rows, p.k = a->cols, p.compute_dtype = t == SAT_F64 ? SAT_F64 : SAT_F32;
    p.b = p.c = (sat_layout){64, 1, 0};
    p.a_align = p.b_align = p.c_align = 256;
    return p;
}

static void each_refuses_what_its_library_cannot_do(void **state) {
    (void)state;
    const sat_family *bsr = &sat_family_cuda_matmul_cusparse_bsr, *ell = &sat_family_cuda_matmul_cusparse_ell;
    const sat_family *block = &sat_family_cuda_matmul_cublas_block, *dense = &sat_family_cuda_matmul_cublas_dense;
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *full = random_pattern(ctx, &r, 128, 128, 16, 16, 1, false);
    sat_pattern *ragged = random_pattern(ctx, &r, 120, 128, 16, 16, 1, false);
    sat_pattern *flat = random_pattern(ctx, &r, 128, 128, 16, 32, 1, false);
    sat_pattern_view a = view_of(full), b = view_of(ragged), c = view_of(flat);
    sat_problem p = aligned_problem(SAT_F16, &a);
    assert_true(takes(bsr, 0, &p, &a) && takes(ell, 1, &p, &a) && takes(block, 0, &p, &a) && takes(dense, -1, &p, &a));
    p.matmul.transpose = SAT_TRANSPOSE; /* only where the values are copied anyway, or by cuBLAS */
    assert_true(!takes(bsr, 0, &p, &a) && takes(ell, 1, &p, &a) && takes(block, 0, &p, &a) && takes(dense, -1, &p, &a));
    p = aligned_problem(SAT_F16, &b);
    assert_true(!takes(bsr, 0, &p, &b) && !takes(ell, 1, &p, &b) && !takes(block, 0, &p, &b));
    assert_true(takes(dense, -1, &p, &b));
    p = aligned_problem(SAT_F16, &c);
    assert_true(!takes(bsr, 0, &p, &c) && !takes(ell, 1, &p, &c)); /* not square */
    assert_true(takes(dense, -1, &p, &c) && takes(block, 0, &p, &c));
    p = aligned_problem(SAT_F32, &a);
    assert_false(takes(ell, 1, &p, &a)); /* it would round to TF32 */
    p.flags = SAT_ALLOW_TF32;
    assert_true(takes(ell, 1, &p, &a));
    p = aligned_problem(SAT_F16, &a);
    p.b_align = 2;
    assert_true(!takes(bsr, 0, &p, &a) && !takes(block, 0, &p, &a) && takes(dense, -1, &p, &a));
    p = aligned_problem(SAT_F16, &a);
    p.batch = 2, p.b.batch_stride = 64 * 128 + 1; /* the second item's pointer is not aligned */
    assert_true(!takes(bsr, 0, &p, &a) && !takes(block, 0, &p, &a) && takes(dense, -1, &p, &a));
    sat_pattern_free(full), sat_pattern_free(ragged), sat_pattern_free(flat);
    sat_context_free(ctx);
}

static void blocked_ell_refuses_rows_that_differ_and_odd_columns(void **state) {
    (void)state;
    const sat_family *ell = &sat_family_cuda_matmul_cusparse_ell;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    int32_t row_ptr[5] = {0, 2, 3, 4, 4}, col_idx[4] = {1, 3, 0, 2};
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = 64, .cols = 64, .block_rows = 16, .block_cols = 16, .stored_blocks = 4};
    s.index_type = SAT_I32, s.row_ptr = row_ptr, s.col_idx = col_idx;
    sat_pattern *pattern = NULL;
    assert_ok(sat_pattern_create(ctx, &s, &pattern));
    sat_pattern_view a = view_of(pattern);
    sat_problem p = aligned_problem(SAT_F16, &a);
    assert_false(takes(ell, 1, &p, &a)); /* an empty row, and two blocks in one */
    p.matmul.transpose = SAT_TRANSPOSE;
    assert_true(takes(ell, 1, &p, &a)); /* one block in each column */
    for (p.n = 2; p.n <= 64; p.n++) assert_true(takes(ell, 1, &p, &a) == (p.n % 16 == 0));
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* It needs C until its sums have been looked at. */
static void a_guarded_product_takes_what_a_bare_one_does_and_keeps_sums_apart_where_c_is_added(void **state) {
    (void)state;
    const sat_family *bare = &sat_family_cuda_matmul_cublaslt_dense,
                     *guarded = &sat_family_cuda_matmul_cublaslt_guarded;
    assert_true((bare->flags & SAT_V_DENSE) && !(guarded->flags & SAT_V_DENSE) && (guarded->flags & SAT_V_LIBRARY));
    assert_false(sat_family_cuda_matmul_cublas_guarded.flags & SAT_V_DENSE);
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *pattern = random_pattern(ctx, &r, 120, 128, 16, 16, 0.9, false);
    sat_pattern_view a = view_of(pattern);
    sat_variant v[2] = {{SAT_SIZED(sat_variant), .name = "bare", .flags = bare->flags},
                        {SAT_SIZED(sat_variant), .name = "guarded", .flags = guarded->flags}};
    static const sat_dtype dtypes[][2] = {
        {SAT_F32, SAT_F32}, {SAT_F64, SAT_F64}, {SAT_F16, SAT_F16}, {SAT_BF16, SAT_F32}};
    for (int i = 0; i < 8; i++) {
        sat_problem p = aligned_problem(dtypes[i / 2][0], &a);
        p.c_dtype = dtypes[i / 2][1], p.beta = i % 2;
        assert_true(takes(bare, 0, &p, &a) && takes(guarded, 0, &p, &a));
        size_t more = guarded->workspace(&v[1], &p, &a, &hopper) - bare->workspace(&v[0], &p, &a, &hopper);
        size_t sums = (size_t)(p.m * p.n) * (p.c_dtype == SAT_F64 ? 8 : 4); /* 16-bit results are apart in both */
        assert_true(more == (p.beta != 0 && p.c_dtype != SAT_F16 ? (sums + 255) / 256 * 256 : 0));
        double costs = guarded->estimate(&v[1], &p, &a, &hopper) - bare->estimate(&v[0], &p, &a, &hopper);
        assert_true(costs > 0 && costs < 4e-6);
    }
    sat_pattern_free(pattern);
    sat_context_free(ctx);
}

/* Copies of B, and sums beside C, whose lines are multiples of 16 bytes. */
static void aligned_copies_are_made_of_lines_that_are_not(void **state) {
    (void)state;
    enum { PLAIN = -1, ALIGNED = -3 };
    const sat_family *f = &sat_family_cuda_matmul_cublas_guarded;
    uint64_t r = 5;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    sat_pattern *even = random_pattern(ctx, &r, 120, 128, 16, 16, 0.9, false);
    sat_pattern *odd = random_pattern(ctx, &r, 123, 125, 5, 5, 0.9, false);
    sat_pattern_view a = view_of(even), b = view_of(odd);
    sat_problem p = aligned_problem(SAT_F16, &a);
    assert_false(takes(f, ALIGNED, &p, &a)); /* nothing to gain */
    p.beta = 1;
    assert_false(takes(f, ALIGNED, &p, &a)); /* sums beside C are no reason */
    p = aligned_problem(SAT_F16, &a);
    p.b_align = 2;
    assert_true(takes(f, ALIGNED, &p, &a));
    p = aligned_problem(SAT_F16, &a);
    p.n = 63, p.b = p.c = (sat_layout){63, 1, 0};
    assert_true(takes(f, PLAIN, &p, &a) && takes(f, ALIGNED, &p, &a));
    sat_variant v[2] = {{SAT_SIZED(sat_variant), .name = "plain", .instance.option = PLAIN},
                        {SAT_SIZED(sat_variant), .name = "aligned", .instance.option = ALIGNED}};
    size_t more = f->workspace(&v[1], &p, &a, &hopper) - f->workspace(&v[0], &p, &a, &hopper);
    assert_true(more == 64 * (128 * 2 + 120 * 4)); /* columns of B's copy and of the sums: 63, and one of zeros */
    assert_true(f->estimate(&v[1], &p, &a, &hopper) > f->estimate(&v[0], &p, &a, &hopper)); /* launches */
    p.b = p.c = (sat_layout){1, 128, 0};
    assert_true(!takes(f, ALIGNED, &p, &a)); /* column-major: lines of 128 and 120 */
    p.n = 15, p.b = p.c = (sat_layout){15, 1, 0};
    assert_false(takes(f, ALIGNED, &p, &a)); /* too small */
    p = aligned_problem(SAT_BF16, &b);       /* the depth is odd: A's lines, and rows of B */
    assert_true(takes(f, ALIGNED, &p, &b));
    p.matmul.transpose = SAT_TRANSPOSE, p.m = b.cols, p.k = b.rows;
    assert_true(takes(f, ALIGNED, &p, &b));
    p = aligned_problem(SAT_F32, &b);
    assert_false(takes(f, ALIGNED, &p, &b)); /* no tensor cores */
    p.flags = SAT_ALLOW_TF32;
    assert_true(takes(f, ALIGNED, &p, &b));
    p = aligned_problem(SAT_F16, &a);
    p.n = 4095, p.m = p.k = 4096, p.b = p.c = (sat_layout){4095, 1, 0}; /* sizes matter here, not the pattern's */
    assert_true(f->estimate(&v[1], &p, &a, &hopper) < f->estimate(&v[0], &p, &a, &hopper) / 3);

    f = &sat_family_cuda_sampled_cublas_dense;
    p = aligned_problem(SAT_F16, &a);
    p.op = SAT_SAMPLED, p.m = 120, p.n = 128, p.k = 64;
    p.a = (sat_layout){64, 1, 0}, p.b = (sat_layout){128, 1, 0};
    assert_true(takes(f, 0, &p, &a) && !takes(f, 1, &p, &a));
    p.k = 63, p.a.row_stride = 63;
    assert_true(takes(f, 0, &p, &a) && takes(f, 1, &p, &a));
    v[0].instance.option = 0, v[1].instance.option = 1;
    more = f->workspace(&v[1], &p, &a, &hopper) - f->workspace(&v[0], &p, &a, &hopper);
    assert_true(more == 2 * 64 * (120 + 128)); /* X and Y, a row or column of zeros in each */
    sat_pattern_free(even), sat_pattern_free(odd);
    sat_context_free(ctx);
}

static void csr_takes_thin_blocks_ragged_and_transposed(void **state) {
    (void)state;
    const sat_family *csr = &sat_family_cuda_matmul_cusparse_csr;
    const int64_t sides[][2] = {{1, 1}, {1, 7}, {12, 1}, {5, 3}, {128, 8}};
    uint64_t r = 7;
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++) {
        sat_pattern *pattern = random_pattern(ctx, &r, 130, 131, sides[i][0], sides[i][1], 0.3, false);
        sat_pattern_view a = view_of(pattern);
        sat_problem p = aligned_problem(SAT_F16, &a);
        assert_true(takes(csr, SAT_SPMM_CSR, &p, &a));
        p.n = 1; /* a vector */
        assert_false(takes(csr, SAT_SPMM_CSR, &p, &a));
        p = aligned_problem(SAT_F64, &a);
        p.matmul.transpose = SAT_TRANSPOSE, p.m = a.cols, p.k = a.rows;
        p.b = (sat_layout){1, 136, 0}, p.c = (sat_layout){1, 136, 0};
        assert_true(takes(csr, SAT_SPMM_CSR, &p, &a));
        sat_pattern_free(pattern);
    }
    sat_pattern *large = random_pattern(ctx, &r, 128, 128, 16, 16, 1, false);
    sat_pattern_view a = view_of(large);
    sat_problem p = aligned_problem(SAT_F16, &a);
    assert_false(takes(csr, SAT_SPMM_CSR, &p, &a));
    sat_pattern_free(large);
    sat_context_free(ctx);
}

/* ---- what they do after the product ---- */

static void sixteen_bit_results_are_rounded_once(void **state) {
    (void)state;
    sat_problem p = matmul_problem(SAT_BF16, 8);
    assert_false(sat_libs_wide(&p));
    p.beta = 1;
    assert_true(sat_libs_wide(&p));
    p.beta = 0, p.matmul.activation = SAT_ACT_RELU;
    assert_true(sat_libs_wide(&p));
    p.beta = 1, p.c_dtype = SAT_F32;
    assert_false(sat_libs_wide(&p));
    p = sampled_problem(SAT_F16, 8);
    assert_false(sat_libs_wide(&p));
    p.beta = 0.5;
    assert_true(sat_libs_wide(&p));
}

/* As an H200 took them, warm: f16, density 1/8, blocks of 64. */
static void estimates_are_near_what_was_measured(void **state) {
    (void)state;
    const sat_device h200 = {SAT_SIZED(sat_device),  .backend = SAT_CUDA,
                             .multiprocessors = 132, .capability = 90,
                             .l2_bytes = 60 << 20,   .memory_bytes = (int64_t)139 << 30,
                             .memory_rate = 4.1e12,  .flop_rate = {0, 5.35e13, 5.35e13, 8.0e14, 8.0e14}};
    const struct {
        const sat_family *family;
        int option;
        int64_t size;
        double seconds;
    } seen[] = {{&sat_family_cuda_matmul_cusparse_ell, 1, 4096, 101e-6},
                {&sat_family_cuda_matmul_cusparse_bsr, 0, 4096, 1301e-6},
                {&sat_family_cuda_matmul_cublaslt_dense, 0, 4096, 169.6e-6},
                {&sat_family_cuda_matmul_cublaslt_dense, 1, 4096, 172e-6},
                {&sat_family_cuda_matmul_cusparse_ell, 1, 8192, 791e-6},
                {&sat_family_cuda_matmul_cusparse_bsr, 0, 8192, 9884e-6},
                {&sat_family_cuda_matmul_cublaslt_dense, 0, 8192, 1213e-6}};
    sat_context *ctx = open_context(SAT_EFFORT_OFF);
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++) {
        int64_t size = seen[i].size, grid = size / 64, width = grid / 8;
        int32_t *row_ptr = malloc((size_t)(grid + 1) * 4), *col_idx = malloc((size_t)(grid * width) * 4);
        for (int64_t g = 0; g <= grid; g++) row_ptr[g] = (int32_t)(g * width);
        for (int64_t t = 0; t < grid * width; t++) col_idx[t] = (int32_t)(t % width * 8 + t / width % 8);
        sat_bsr s = {SAT_SIZED(sat_bsr), .rows = size,       .cols = size,
                     .block_rows = 64,   .block_cols = 64,   .index_type = SAT_I32,
                     .row_ptr = row_ptr, .col_idx = col_idx, .stored_blocks = grid * width};
        sat_pattern *pattern = NULL;
        assert_ok(sat_pattern_create(ctx, &s, &pattern));
        sat_pattern_view a = view_of(pattern);
        sat_problem p = aligned_problem(SAT_F16, &a);
        p.n = size, p.b = p.c = (sat_layout){size, 1, 0};
        sat_variant v = {SAT_SIZED(sat_variant), .name = "probe", .instance.option = seen[i].option};
        double estimate = seen[i].family->estimate(&v, &p, &a, &h200);
        if (estimate > 2 * seen[i].seconds || estimate < seen[i].seconds / 2)
            fail_msg("line %zu: %.1f us, measured %.1f", i, estimate * 1e6, seen[i].seconds * 1e6);
        sat_pattern_free(pattern);
        free(row_ptr), free(col_idx);
    }
    sat_context_free(ctx);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_and_pointers_say_what_the_pattern_says),
        cmocka_unit_test(csr_has_every_element_inside_the_matrix_once_and_in_order),
        cmocka_unit_test(rounds_take_each_block_once_and_no_row_twice),
        cmocka_unit_test(a_library_is_found_in_toolkits_and_in_wheels),
        cmocka_unit_test(the_variable_decides_alone),
#ifdef SAT_HAVE_CUDA
        cmocka_unit_test(a_library_that_is_absent_has_no_version),
        cmocka_unit_test(any_order_of_the_operands_is_the_same_product),
        cmocka_unit_test(strides_that_no_leading_dimension_describes_are_refused),
        cmocka_unit_test(each_refuses_what_its_library_cannot_do),
        cmocka_unit_test(blocked_ell_refuses_rows_that_differ_and_odd_columns),
        cmocka_unit_test(a_guarded_product_takes_what_a_bare_one_does_and_keeps_sums_apart_where_c_is_added),
        cmocka_unit_test(aligned_copies_are_made_of_lines_that_are_not),
        cmocka_unit_test(csr_takes_thin_blocks_ragged_and_transposed),
        cmocka_unit_test(sixteen_bit_results_are_rounded_once),
        cmocka_unit_test(estimates_are_near_what_was_measured),
#endif
    };
    return cmocka_run_group_tests(tests, leave_no_trace, remove_root);
}
