/* The check of products of groups on the device: what src/ops/grouped_check.c does, read there for why, without moving
 * a matrix to the host. Which sum an element is, ops/grouped_lines.h says for both. */
#include "backend/cuda_check.cuh"
#include "ops/grouped_lines.h"

static const double WORK = 4e9; /* multiply-adds for lines that are worked out */

struct expectation : expectation_base {
    uint64_t seed;
    int64_t step, chosen;        /* one line of `step` */
    double *sum, *low, *squares; /* [chosen][n] */
    int64_t *offsets;            /* without faults, taken anew by each comparison */
};

/* What the kernels get. */
struct item {
    sat_grouped_lines of;
    sat_fill fills[2];
    planted_specials specials;
    expectation e;
    outcome *result;
};

static item make_item(const sat_trial *t, const expectation *e) {
    item w = {};
    w.of = sat_grouped_lines_of(t, e->offsets);
    w.fills[0] = t->fills[0], w.fills[1] = t->fills[1], w.specials = specials_of(t);
    w.e = *e, w.result = e->result;
    return w;
}

static __global__ void take_offsets(sat_problem p, const void *from, int64_t *to) {
    sat_groups_take_by_cta(p, from, to);
}

static void queue_offsets(const sat_trial *t, const expectation *e, cudaStream_t stream) {
    take_offsets<<<1, 1024, 0, stream>>>(*t->problem, t->operands[3], e->offsets);
}

static int64_t step_of(const sat_problem *p) {
    return sat_line_step(sat_grouped_line_count(p), (double)p->m * (double)p->n * (double)p->k, WORK);
}

static int64_t chosen_lines(const sat_problem *p) { return sat_line_groups(sat_grouped_line_count(p), step_of(p)); }

static size_t bytes(const sat_problem *p, const sat_pattern_view *a, sat_probe probe) {
    int64_t groups = p->grouped.groups, rows = p->op == SAT_GROUPED_WEIGHTS ? p->m : groups * p->k;
    (void)a;
    if (probe == SAT_PROBE_STRUCTURE) return (size_t)(rows + sat_grouped_line_count(p) + 2 * groups + 4) * 8 + 8192;
    return (size_t)(3 * chosen_lines(p) * p->n + groups + 2) * sizeof(double) + 4096;
}

/* beta*before + bias of one element, and the squares of both. `at`: where it is. */
__device__ static double rest_at(const sat_grouped_lines &w, int64_t at, int64_t group, int64_t j, double *squares) {
    double bias = w.bias && group >= 0 ? sat_device_load(w.p.c_dtype, w.bias, group * w.width + j) : 0;
    double before = w.before ? w.p.beta * sat_device_load(w.p.c_dtype, w.before, at) : 0;
    *squares = bias * bias + before * before;
    return bias + before;
}

/* The factors of term number t of a line, in column j. */
__device__ static double x_at(const sat_grouped_lines &w, const sat_grouped_terms &s, int64_t t) {
    return sat_device_load(w.p.a_dtype, w.x, s.x + t * s.x_step);
}
__device__ static double factor_at(const sat_grouped_lines &w, const sat_grouped_terms &s, int64_t t, int64_t j) {
    return sat_device_load(w.p.b_dtype, w.factor, s.row + t * s.row_step + j * w.p.b.col_stride);
}

/* ---- precision ---- */

/* A thread has one element of the lines that are worked out. */
static __global__ void true_lines(item w) {
    int64_t all = w.e.chosen * w.of.width, step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t line = sat_line_of_group(w.of.count, w.e.step, w.e.seed, at / w.of.width), j = at % w.of.width;
        sat_grouped_terms s = sat_grouped_terms_of(&w.of, line);
        true_sum sum = {};
        for (int64_t t = 0; t < s.count; t++) add_product(&sum, x_at(w.of, s, t), factor_at(w.of, s, t, j));
        w.e.sum[at] = sum.sum, w.e.low[at] = sum.low, w.e.squares[at] = sum.squares;
    }
}

static sat_status expect(const sat_trial *t, sat_probe probe, uint64_t seed, void **out) {
    const sat_problem *p = t->problem;
    bool exact = probe == SAT_PROBE_STRUCTURE;
    int64_t chosen = exact ? 0 : chosen_lines(p), count = chosen * p->n;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    expectation *e = make_expectation<expectation>((size_t)(3 * count + p->grouped.groups + 1));
    if (!e) {
        sat_cuda_leave(t->device, before);
        return sat_fail(SAT_OUT_OF_MEMORY, "check: lines of a %lld x %lld product of groups", (long long)p->m,
                        (long long)p->n);
    }
    e->exact = exact, e->seed = seed, e->step = step_of(p), e->chosen = chosen;
    e->sum = e->memory, e->low = e->sum + count, e->squares = e->low + count;
    e->offsets = (int64_t *)(e->squares + count);
    if (count > 0) {
        queue_offsets(t, e, stream);
        true_lines<<<sat_blocks(count, 128), 128, 0, stream>>>(make_item(t, e));
    }
    sat_status status = finish_expectation(e, cudaGetLastError(), stream, out);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- comparing ---- */

enum { WRONG_SUM = 1, EXACT = 2, PRECISION = 3 };

/* What a message says of a line: its row, and of the gradient its group; -1: none. */
__device__ static void place_of(const sat_grouped_lines &w, int64_t line, int64_t *row, int64_t *head) {
    *row = w.weights ? line % w.p.k : line, *head = w.weights ? line / w.p.k : -1;
}

__device__ static double with_specials(const item &w, int64_t line, const sat_grouped_terms &s, int64_t j, double sum) {
    for (int i = 0; i < w.specials.count; i++) {
        const sat_special &at = w.specials.list[i];
        if (at.operand != 0 && at.col != j) continue;
        int64_t t = sat_grouped_special_term(&w.of, line, &s, &at);
        if (t >= 0) sum += x_at(w.of, s, t) * factor_at(w.of, s, t, j);
    }
    return sum;
}

static __global__ void compare_exactly(item w) {
    int64_t all = w.of.count * w.of.width, step = (int64_t)gridDim.x * blockDim.x, row, head;
    bool columns = w.of.p.c.row_stride == 1; /* neighbouring threads read neighbouring elements */
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t line = columns ? at % w.of.count : at / w.of.width, j = columns ? at / w.of.count : at % w.of.width;
        int64_t to = sat_grouped_out_at(&w.of, line) + j * w.of.p.c.col_stride;
        sat_grouped_terms s = sat_grouped_terms_of(&w.of, line);
        double got = sat_device_load(w.of.p.c_dtype, w.of.out, to), squares;
        double sum = sat_device_load(w.of.p.compute_dtype, w.of.sums, line * w.of.width + j);
        sum = with_specials(w, line, s, j, sum);
        double rest = rest_at(w.of, to, s.group, j, &squares), want = sat_exact_element(&w.of.like, sum, rest);
        if (sat_equal(got, want)) continue;
        place_of(w.of, line, &row, &head);
        note(w.result, EXACT, row, j, got, want, sat_exact_slack(&w.of.like, sum, rest, want), 0, head);
    }
}

static __global__ void compare_precisely(item w) {
    int64_t all = w.e.chosen * w.of.width, step = (int64_t)gridDim.x * blockDim.x;
    sat_squares mine = {};
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        int64_t line = sat_line_of_group(w.of.count, w.e.step, w.e.seed, at / w.of.width), j = at % w.of.width;
        int64_t from = sat_grouped_out_at(&w.of, line) + j * w.of.p.c.col_stride;
        sat_grouped_terms s = sat_grouped_terms_of(&w.of, line);
        double got = sat_device_load(w.of.p.c_dtype, w.of.out, from), squares;
        double rest = rest_at(w.of, from, s.group, j, &squares);
        true_sum sum = {w.e.sum[at], w.e.low[at], w.e.squares[at]};
        sat_loss loss = sat_grouped_loss(&w.of, SAT_CUDA, s.count, all);
        note_precisely(w.result, PRECISION, line, j, w.of.like, loss, got, sum, rest, squares, &mine);
    }
    add_squares(w.result, mine);
}

static void words(char *to, size_t size, const outcome *o) {
    char group[40] = "";
    if (o->kind == EXACT && o->head >= 0) snprintf(group, sizeof group, "group %lld, ", o->head);
    if (o->kind == WRONG_SUM) snprintf(to, size, "the sums of line %lld are not those of its group", o->line);
    else if (o->kind == EXACT)
        snprintf(to, size, "%srow %lld, column %lld: %.9g where %.9g is exact", group, o->line, o->column, o->got,
                 o->want);
    else
        snprintf(to, size, "line %lld, column %lld: off by %.3g where rounding allows %.3g", o->line, o->column,
                 fabs(o->got - o->want), o->bound);
}

static sat_status compare(const sat_trial *t, const void *expectation_, sat_finding *finding) {
    const expectation *e = (const expectation *)expectation_;
    int64_t all = sat_grouped_line_count(t->problem) * t->problem->n;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    if (all > 0) {
        item w = make_item(t, e);
        queue_offsets(t, e, stream);
        if (e->exact) compare_exactly<<<sat_blocks(sat_min(all, 1 << 24), 256), 256, 0, stream>>>(w);
        else compare_precisely<<<sat_blocks(e->chosen * w.of.width, 256), 256, 0, stream>>>(w);
    }
    sat_status status = fetch_outcome(e->result, stream, words, finding);
    sat_cuda_leave(t->device, before);
    return status;
}

/* ---- proving the sums ---- */

/* The rows of the second factor, or of the sums, times the random vector. */
static __global__ void fold(item w, bool sums, uint64_t seed, unsigned long long *to) {
    sat_layout plain = {w.of.width, 1, 0};
    double scale = sums ? w.fills[0].scale * w.fills[1].scale : w.fills[1].scale;
    int64_t rows = sums ? w.of.count : w.of.weights ? w.of.p.m : w.of.p.k;
    int64_t items = sums || w.of.weights ? 1 : w.of.p.grouped.groups;
    fold_rows(w.result, WRONG_SUM, sums ? w.of.p.compute_dtype : w.of.p.b_dtype, sums ? w.of.sums : w.of.factor,
              sums ? plain : w.of.p.b, items, rows, w.of.width, scale, seed, to);
}

/* A warp has a line. */
static __global__ void prove_lines(item w, const unsigned long long *folded, const unsigned long long *sums) {
    int64_t lane = threadIdx.x % 32, warps = (int64_t)gridDim.x * (blockDim.x / 32);
    for (int64_t i = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32; i < w.of.count; i += warps) {
        sat_grouped_terms s = sat_grouped_terms_of(&w.of, i);
        uint64_t sum = 0, value;
        bool integer = true;
        for (int64_t t = lane; t < s.count; t += 32) {
            integer &= sat_integer(x_at(w.of, s, t), w.fills[0].scale, &value);
            sum += value * folded[s.first + t];
        }
        sum = warp_sum(sum);
        if (!integer || (lane == 0 && sum != sums[i])) note(w.result, WRONG_SUM, i, 0, 1, 0, 0, 0);
    }
}

static sat_status prove(const sat_trial *t, uint64_t seed, sat_finding *finding) {
    const sat_problem *p = t->problem;
    int before = sat_cuda_enter(t->device);
    cudaStream_t stream = (cudaStream_t)sat_backend_cuda.stream(t->device);
    int64_t lines = sat_grouped_line_count(p), rows = p->op == SAT_GROUPED_WEIGHTS ? p->m : p->grouped.groups * p->k;
    expectation *e = make_expectation<expectation>((size_t)(rows + lines + p->grouped.groups + 1));
    sat_status status = SAT_OK;
    *finding = (sat_finding){};
    if (!e)
        status = sat_fail(SAT_OUT_OF_MEMORY, "check: a proof of %lld x %lld sums", (long long)lines, (long long)p->n);
    else (void)cudaMemsetAsync(e->result, 0, sizeof *e->result, stream);
    if (e && lines > 0) {
        unsigned long long *folded = (unsigned long long *)e->memory, *sums = folded + rows;
        e->offsets = (int64_t *)(sums + lines);
        item w = make_item(t, e);
        queue_offsets(t, e, stream);
        (void)cudaMemsetAsync(folded, 0, (size_t)(rows + lines) * 8, stream);
        int64_t across = sat_tiles(p->n), tiles = sat_tiles(rows) + p->grouped.groups;
        if (rows > 0) fold<<<sat_blocks(tiles * across, 1), 128, 0, stream>>>(w, false, seed, folded);
        fold<<<sat_blocks(sat_tiles(lines) * across, 1), 128, 0, stream>>>(w, true, seed, sums);
        prove_lines<<<sat_blocks(lines, 4), 128, 0, stream>>>(w, folded, sums);
    }
    if (e) status = fetch_outcome(e->result, stream, words, finding);
    free_expectation(e);
    sat_cuda_leave(t->device, before);
    return status;
}

extern "C" const sat_checker sat_cuda_grouped_check = {bytes, expect, compare, free_expectation, prove};
