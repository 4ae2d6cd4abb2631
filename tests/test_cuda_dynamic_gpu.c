/* On a GPU: patterns whose indices change. Every variant that takes part against loops on the host, on right and on
 * hostile masks under one plan; one captured graph that is replayed a thousand times with new indices; faults that
 * later calls return; what a run queues. */
#include "cuda_support.h"

#include <cuda_runtime_api.h>

#include "dynamic_cases.h"

/* ---- a case on the device ---- */

typedef struct device_case {
    dynamic_case c;
    void *row_ptr, *col_idx, *first, *second, *out;
    void *host_out;
    sat_pattern *pattern;
} device_case;

static size_t out_bytes(const dynamic_case *c) { return (size_t)(c->wanted + 1) * sat_dtype_size(c->problem.c_dtype); }

static int64_t first_count(const dynamic_case *c) {
    return c->problem.op == SAT_SAMPLED ? c->m * c->k : value_count(c);
}

static size_t input_bytes(const dynamic_case *c, int64_t count) {
    return (size_t)(count + 1) * sat_dtype_size(c->problem.a_dtype);
}

static void *alloc(sat_context *ctx, size_t bytes) {
    void *p = NULL;
    assert_ok(sat_memory_alloc(ctx, bytes + 256, &p));
    return p;
}

static device_case put(sat_context *ctx, dynamic_case c) {
    device_case d = {.c = c};
    d.row_ptr = alloc(ctx, index_bytes(&c, c.grid_rows + 1)), d.col_idx = alloc(ctx, index_bytes(&c, c.capacity + 1));
    d.first = alloc(ctx, input_bytes(&c, first_count(&c))), d.second = alloc(ctx, input_bytes(&c, c.k * c.n));
    d.out = alloc(ctx, out_bytes(&c)), d.host_out = malloc(out_bytes(&c));
    d.c.problem.a_align = d.c.problem.b_align = d.c.problem.c_align = 64;
    if (c.problem.a_dtype == SAT_F32) d.c.problem.flags |= SAT_ALLOW_TF32; /* small integers stay exact */
    d.pattern = make_dynamic_pattern(ctx, &d.c, d.row_ptr, d.col_idx);
    return d;
}

static void free_device_case(sat_context *ctx, device_case *d) {
    void *all[] = {d->row_ptr, d->col_idx, d->first, d->second, d->out};
    sat_pattern_free(d->pattern);
    for (int i = 0; i < 5; i++) sat_memory_free(ctx, all[i]);
    free(d->host_out);
    free_dynamic_case(&d->c);
}

static void write_mask(sat_context *ctx, device_case *d, void *row_ptr, void *col_idx) {
    const dynamic_case *c = &d->c;
    void *ptr = malloc(index_bytes(c, c->grid_rows + 1)), *col = malloc(index_bytes(c, c->capacity + 1));
    store_indices(c, ptr, col);
    assert_ok(sat_memory_write(ctx, row_ptr, ptr, index_bytes(c, c->grid_rows + 1)));
    assert_ok(sat_memory_write(ctx, col_idx, col, index_bytes(c, c->capacity)));
    free(ptr), free(col);
}

/* All blocks have values here, those of faulty rows too: nothing may come of them. */
static void write_inputs(sat_context *ctx, device_case *d) {
    const dynamic_case *c = &d->c;
    bool sampled = c->problem.op == SAT_SAMPLED;
    sat_dtype t = c->problem.a_dtype;
    void *first = stored(c, t, sampled ? c->x : c->values, first_count(c), false);
    void *second = stored(c, t, sampled ? c->y : c->x, c->k * c->n, false);
    assert_ok(sat_memory_write(ctx, d->first, first, input_bytes(c, first_count(c))));
    assert_ok(sat_memory_write(ctx, d->second, second, input_bytes(c, c->k * c->n)));
    free(first), free(second);
}

/* The same, and NaN in blocks that no row has. */
static void write_values(sat_context *ctx, device_case *d) {
    const dynamic_case *c = &d->c;
    if (c->problem.op == SAT_SAMPLED) return;
    void *values = stored(c, c->problem.a_dtype, c->values, value_count(c), true);
    assert_ok(sat_memory_write(ctx, d->first, values, input_bytes(c, value_count(c))));
    free(values);
}

static void poison_output(sat_context *ctx, device_case *d) {
    memset(d->host_out, 0xff, out_bytes(&d->c));
    assert_ok(sat_memory_write(ctx, d->out, d->host_out, out_bytes(&d->c)));
}

static sat_status queue(device_case *d, sat_plan *plan, void *stream) {
    return sat_run(plan, (const void *[]){d->first, d->second}, 2, (void *[]){d->out}, 1, stream);
}

static void expect_on_device(sat_context *ctx, device_case *d, const char *who, int number) {
    assert_ok(sat_memory_read(ctx, d->host_out, d->out, out_bytes(&d->c)));
    expect_dynamic(&d->c);
    expect_dynamic_output(&d->c, d->host_out, who, number);
}

/* A fault is returned by the run itself where the device is quick, else by whoever asks next; by one of them. */
static sat_status queue_and_wait(sat_context *ctx, device_case *d, sat_plan *plan) {
    sat_status first = queue(d, plan, NULL);
    assert_ok(sat_stream_wait(ctx, NULL));
    sat_status second = sat_pattern_fault(d->pattern, false);
    assert_true(first == SAT_OK || second == SAT_OK);
    return first != SAT_OK ? first : second;
}

/* A run on the mask that the case has now, and its fault. */
static void run_and_expect(sat_context *ctx, device_case *d, sat_plan *plan, const char *who, int number) {
    write_mask(ctx, d, d->row_ptr, d->col_idx);
    write_values(ctx, d);
    poison_output(ctx, d);
    sat_status fault = queue_and_wait(ctx, d, plan);
    if (fault != d->c.fault)
        fail_msg("%s, mask %d: %s where %s is right: %s", who, number, sat_status_name(fault),
                 sat_status_name(d->c.fault), sat_last_error());
    expect_on_device(ctx, d, who, number);
}

static dynamic_case draw_case(uint64_t *r, int which) {
    static const sat_dtype types[] = {SAT_F16, SAT_BF16, SAT_F32, SAT_F64};
    static const int64_t sides[] = {1, 4, 8, 16, 16, 32, 64, 64, 128};
    static const int64_t others[] = {1, 7, 8, 16, 33, 64, 128, 200, 256, 512};
    int64_t br = sides[random_below(r, 9)], bc = random_below(r, 3) ? br : sides[random_below(r, 9)];
    int64_t most = br * bc >= 64 * 64 ? 6 : 14, gr = 1 + random_below(r, most), gc = 1 + random_below(r, most);
    int64_t capacity = random_below(r, 3) ? 1 + random_below(r, gr * gc) : gr * gc;
    bool ragged = random_below(r, 4) == 0;
    return make_dynamic_case(r, types[random_below(r, 4)], which, gr, gc, br, bc, others[random_below(r, 10)], capacity,
                             ragged);
}

/* ---- tests ---- */

static void every_variant_follows_a_mask_that_changes(void **state) {
    uint64_t random = 71;
    int runs = 0, faults = 0, wgmma = 0, mma = 0;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (int number = 0; number < 120; number++) {
        device_case d = put(ctx, draw_case(&random, number % 3));
        write_inputs(ctx, &d);
        for (size_t i = 0; i < sat_variant_count(ctx); i++) {
            const sat_variant *v = sat_variant_at(ctx, i);
            sat_plan *plan = NULL;
            if (v->op != d.c.problem.op) continue;
            sat_status status = sat_plan_create_with(ctx, d.pattern, &d.c.problem, v->name, &plan);
            if (!(v->flags & SAT_V_DYNAMIC)) assert_int_equal(status, SAT_UNSUPPORTED);
            if (status != SAT_OK) continue;
            wgmma += strstr(v->name, "sm90") != NULL, mma += strstr(v->name, "sm80") || strstr(v->name, "mma");
            for (int mask = 0; mask < 6; mask++) {
                if (mask % 2) draw_hostile_mask(&random, &d.c);
                else draw_right_mask(&random, &d.c);
                run_and_expect(ctx, &d, plan, v->name, number * 100 + mask);
                runs++, faults += d.c.fault != SAT_OK;
            }
            sat_plan_free(plan);
        }
        free_device_case(ctx, &d);
    }
    print_message("%d runs, %d with faults; plans of kernels for tensor cores: %d for Hopper, %d others\n", runs,
                  faults, wgmma, mma);
    assert_true(runs > 1500 && faults > 400 && mma > 0);
    sat_context_free(ctx);
}

/* Large grids take another way to the transposed index, and rows have more blocks than a warp reads at once. */
static void wide_and_tall_grids_are_transposed_in_order(void **state) {
    static const int64_t grids[][3] = {{3000, 3000, 20000}, {70000, 100, 60000}, {40, 200000, 30000}, {1, 9000, 9000}};
    uint64_t random = 13;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
        device_case d =
            put(ctx, make_dynamic_case(&random, SAT_F32, 1, grids[g][0], grids[g][1], 1, 1, 3, grids[g][2], false));
        sat_plan *plan = NULL;
        write_inputs(ctx, &d);
        assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
        for (int mask = 0; mask < 4; mask++) {
            int64_t at = 0;
            for (int64_t i = 0; i < d.c.grid_rows; i++) { /* a column that nearly all rows have, and some others */
                int64_t left = d.c.capacity - at, count = sat_min(left, random_below(&random, 3));
                if (mask == 1 && i == d.c.grid_rows / 2) count = sat_min(left, d.c.grid_cols);
                for (int64_t j = 0; j < count; j++)
                    d.c.raw_col[at + j] = count == d.c.grid_cols ? j : j ? 7 + random_below(&random, 80) + j * 90 : 5;
                for (int64_t j = 0; j < count; j++)
                    if (d.c.raw_col[at + j] >= d.c.grid_cols) d.c.raw_col[at + j] = d.c.grid_cols - count + j;
                at += count, d.c.raw_ptr[i + 1] = at;
            }
            if (mask == 2) d.c.raw_ptr[d.c.grid_rows / 2] = d.c.capacity + 1;
            understand(&d.c);
            run_and_expect(ctx, &d, plan, "transposed", (int)g * 10 + mask);
        }
        sat_plan_free(plan);
        free_device_case(ctx, &d);
    }
    sat_context_free(ctx);
}

/* Hostile masks under one plan of the fastest variants and of the reference. compute-sanitizer watches this one. */
static void hundreds_of_hostile_masks_break_nothing(void **state) {
    static const char *const words[] = {"", "reference"};
    uint64_t random = 29;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    for (int which = 0; which < 3; which++)
        for (int w = 0; w < 2; w++) {
            device_case d = put(ctx, make_dynamic_case(&random, SAT_F16, which, 9, 7, 64, 64, 128, 40, false));
            sat_plan *plan = NULL;
            write_inputs(ctx, &d);
            for (size_t i = 0; i < sat_variant_count(ctx) && w; i++) {
                const sat_variant *v = sat_variant_at(ctx, i);
                if (!plan && v->op == d.c.problem.op && strstr(v->name, words[w]))
                    assert_ok(sat_plan_create_with(ctx, d.pattern, &d.c.problem, v->name, &plan));
            }
            if (!plan) assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
            for (int mask = 0; mask < (w ? 50 : 500); mask++) {
                draw_hostile_mask(&random, &d.c);
                run_and_expect(ctx, &d, plan, w ? "the reference" : "the estimate's choice", mask);
            }
            sat_plan_free(plan);
            free_device_case(ctx, &d);
        }
    sat_context_free(ctx);
}

/* ---- graphs ---- */

enum { POOL = 40 };

typedef struct pool { /* masks on the device, and what they give */
    void *row_ptr[POOL], *col_idx[POOL];
    double *want[POOL];
} pool;

static pool make_pool(sat_context *ctx, uint64_t *random, device_case *d) {
    pool p;
    for (int i = 0; i < POOL; i++) {
        if (i % 4 == 3) draw_hostile_mask(random, &d->c);
        else draw_right_mask(random, &d->c);
        p.row_ptr[i] = alloc(ctx, index_bytes(&d->c, d->c.grid_rows + 1));
        p.col_idx[i] = alloc(ctx, index_bytes(&d->c, d->c.capacity + 1));
        write_mask(ctx, d, p.row_ptr[i], p.col_idx[i]);
        expect_dynamic(&d->c);
        p.want[i] = malloc((size_t)(d->c.wanted + 1) * sizeof(double));
        memcpy(p.want[i], d->c.want, (size_t)d->c.wanted * sizeof(double));
    }
    return p;
}

static void free_pool(sat_context *ctx, pool *p) {
    for (int i = 0; i < POOL; i++) {
        sat_memory_free(ctx, p->row_ptr[i]), sat_memory_free(ctx, p->col_idx[i]);
        free(p->want[i]);
    }
}

static void assert_cuda(cudaError_t e) {
    if (e != cudaSuccess) fail_msg("%s", cudaGetErrorString(e));
}

/* What a run queues: kernels, and memory that is set. No copy, no call of the host. */
static void expect_nodes(cudaGraph_t graph) {
    cudaGraphNode_t nodes[64];
    size_t count = 64;
    assert_cuda(cudaGraphGetNodes(graph, nodes, &count));
    assert_true(count >= 2 && count < 64);
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        assert_cuda(cudaGraphNodeGetType(nodes[i], &type));
        assert_true(type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset);
    }
}

static void a_graph_follows_a_thousand_masks(void **state) {
    static const struct {
        sat_dtype dtype;
        int64_t side;
        bool tuned;
    } cases[] = {{SAT_F16, 64, false}, {SAT_F16, 128, true}, {SAT_F32, 16, false}, {SAT_F64, 8, false}};
    uint64_t random = 3;
    (void)state;
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++)
        for (int which = 0; which < 3; which++) {
            sat_context *ctx = open_cuda(cases[n].tuned ? SAT_EFFORT_QUICK : SAT_EFFORT_OFF);
            int64_t side = cases[n].side;
            device_case d =
                put(ctx, make_dynamic_case(&random, cases[n].dtype, which, 8, 8, side, side, 128, 50, false));
            sat_plan *plan = NULL;
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            cudaStream_t stream;
            cudaGraph_t graph = NULL;
            cudaGraphExec_t run = NULL;
            write_inputs(ctx, &d);
            pool p = make_pool(ctx, &random, &d);
            assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal)); /* refuses what waits */
            assert_ok(queue(&d, plan, stream));
            assert_cuda(cudaStreamEndCapture(stream, &graph));
            expect_nodes(graph);
            assert_cuda(cudaGraphInstantiate(&run, graph, 0));
            for (int replay = 0; replay < 1000; replay++) {
                int i = (int)random_below(&random, POOL);
                assert_cuda(cudaMemsetAsync(d.out, 0xff, out_bytes(&d.c), stream));
                assert_cuda(cudaMemcpyAsync(d.row_ptr, p.row_ptr[i], index_bytes(&d.c, d.c.grid_rows + 1),
                                            cudaMemcpyDeviceToDevice, stream));
                assert_cuda(cudaMemcpyAsync(d.col_idx, p.col_idx[i], index_bytes(&d.c, d.c.capacity),
                                            cudaMemcpyDeviceToDevice, stream));
                assert_cuda(cudaGraphLaunch(run, stream));
                assert_cuda(cudaMemcpyAsync(d.host_out, d.out, out_bytes(&d.c), cudaMemcpyDeviceToHost, stream));
                assert_cuda(cudaStreamSynchronize(stream));
                memcpy(d.c.want, p.want[i], (size_t)d.c.wanted * sizeof(double));
                expect_dynamic_output(&d.c, d.host_out, info.variant, replay);
            }
            print_message("%s: 1000 replays\n", info.variant);
            assert_cuda(cudaGraphExecDestroy(run));
            assert_cuda(cudaGraphDestroy(graph));
            sat_plan_free(plan);
            assert_cuda(cudaStreamDestroy(stream));
            free_pool(ctx, &p);
            free_device_case(ctx, &d);
            sat_context_free(ctx);
        }
}

/* ---- faults, and the race ---- */

static void one_call_returns_a_fault(void **state) {
    uint64_t random = 1;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    device_case d = put(ctx, make_dynamic_case(&random, SAT_F32, 0, 4, 4, 4, 4, 5, 16, false));
    sat_plan *plan = NULL;
    write_inputs(ctx, &d);
    assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
    do draw_right_mask(&random, &d.c);
    while (d.c.end[0] == 0);
    d.c.raw_col[0] = 4;
    understand(&d.c);
    write_mask(ctx, &d, d.row_ptr, d.col_idx);
    sat_status first = queue(&d, plan, NULL); /* sees the fault already where the device is quick */
    if (first != SAT_OK) assert_fails(first, SAT_COLUMN_RANGE, "col_idx[0] is 4; expected 0 to 3");
    assert_ok(sat_stream_wait(ctx, NULL));
    draw_right_mask(&random, &d.c);
    write_mask(ctx, &d, d.row_ptr, d.col_idx);
    sat_status second = queue(&d, plan, NULL);
    if (first != SAT_OK) assert_ok(second);
    else assert_fails(second, SAT_COLUMN_RANGE, "col_idx[0] is 4; expected 0 to 3");
    assert_ok(sat_stream_wait(ctx, NULL));
    expect_on_device(ctx, &d, "after a fault", 0); /* the run that returned it is right itself */
    assert_ok(queue(&d, plan, NULL));
    free_device_case(ctx, &d);
    sat_plan_free(plan);
    sat_context_free(ctx);
}

/* A graph's replays return nothing: what they find stays with the plan, and with the pattern when the plan is gone. */
static void a_fault_outlives_its_plan(void **state) {
    uint64_t random = 1;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_OFF);
    device_case d = put(ctx, make_dynamic_case(&random, SAT_F32, 0, 4, 4, 4, 4, 5, 16, false));
    sat_plan *plan = NULL;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t run = NULL;
    write_inputs(ctx, &d);
    assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    assert_ok(queue(&d, plan, stream));
    assert_cuda(cudaStreamEndCapture(stream, &graph));
    assert_cuda(cudaGraphInstantiate(&run, graph, 0));
    draw_right_mask(&random, &d.c);
    d.c.raw_ptr[0] = -1;
    write_mask(ctx, &d, d.row_ptr, d.col_idx);
    assert_cuda(cudaGraphLaunch(run, stream));
    assert_cuda(cudaStreamSynchronize(stream));
    sat_plan_free(plan);
    assert_fails(sat_pattern_fault(d.pattern, true), SAT_BAD_ROW_PTR, "row_ptr[0] is -1; expected 0");
    assert_ok(sat_pattern_fault(d.pattern, true));
    assert_cuda(cudaGraphExecDestroy(run));
    assert_cuda(cudaGraphDestroy(graph));
    assert_cuda(cudaStreamDestroy(stream));
    free_device_case(ctx, &d);
    sat_context_free(ctx);
}

static void the_race_verifies_a_winner_on_all_masks(void **state) {
    uint64_t random = 8;
    (void)state;
    sat_context *ctx = open_cuda(SAT_EFFORT_QUICK);
    for (int which = 0; which < 3; which++) {
        device_case d = put(ctx, make_dynamic_case(&random, SAT_BF16, which, 16, 16, 64, 64, 512, 200, false));
        write_inputs(ctx, &d);
        for (int again = 0; again < 2; again++) {
            sat_plan *plan = NULL;
            sat_plan_info info = {SAT_SIZED(sat_plan_info)};
            assert_ok(sat_plan_create(ctx, d.pattern, &d.c.problem, &plan));
            assert_ok(sat_plan_get_info(plan, &info));
            assert_int_equal(info.tuned, !again);
            assert_true(info.verified);
            print_message("%s\n", info.variant);
            draw_hostile_mask(&random, &d.c);
            run_and_expect(ctx, &d, plan, info.variant, again);
            sat_plan_free(plan);
        }
        free_device_case(ctx, &d);
    }
    sat_context_free(ctx);
}

int main(void) {
    if (!has_gpu()) return NO_GPU;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_variant_follows_a_mask_that_changes),
        cmocka_unit_test(wide_and_tall_grids_are_transposed_in_order),
        cmocka_unit_test(hundreds_of_hostile_masks_break_nothing),
        cmocka_unit_test(a_graph_follows_a_thousand_masks),
        cmocka_unit_test(one_call_returns_a_fault),
        cmocka_unit_test(a_fault_outlives_its_plan),
        cmocka_unit_test(the_race_verifies_a_winner_on_all_masks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
