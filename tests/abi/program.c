/* A program that was built with the frozen header, linked to the library of today: all that it was promised still
 * holds. It keeps guard bytes behind every struct that the library writes. */
#include "sparse_autotune.h" // the copy beside this file

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GUARD 0x5a
#define GUARDED(type)                                                                                                  \
    struct {                                                                                                           \
        type it;                                                                                                       \
        unsigned char guard[256];                                                                                      \
    }
#define OPEN(x)  (memset(&(x), GUARD, sizeof(x)), memset(&(x).it, 0, sizeof(x).it), (x).it.size = sizeof(x).it)
#define WHOLE(x) whole((x).guard, sizeof(x).guard, #x)

static void need(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "FAILED: %s (%s)\n", what, sat_last_error());
    exit(1);
}

static void whole(const unsigned char *guard, size_t bytes, const char *name) {
    for (size_t i = 0; i < bytes; i++) need(guard[i] == GUARD, name);
}

#define OK(call) need((call) == SAT_OK, #call)

enum { SIDE = 8, BLOCK = 4, COLUMNS = 3, DIM = 8 };

static sat_context *context;
static sat_pattern *pattern;

static int live;

static void *take(void *user, size_t bytes, size_t alignment) {
    ++*(int *)user;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void give(void *user, void *pointer) {
    --*(int *)user;
    free(pointer);
}

static void open_all(void) {
    const sat_allocator allocator = {SAT_SIZED(sat_allocator), take, give, &live};
    static const int32_t row_ptr[] = {0, 1, 3}, col_idx[] = {1, 0, 1};
    sat_context_options options = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "",
                                   .effort = SAT_EFFORT_QUICK,     .threads = 1,    .allocator = &allocator};
    sat_bsr bsr = {SAT_SIZED(sat_bsr),    .rows = SIDE,        .cols = SIDE,
                   .block_rows = BLOCK,   .block_cols = BLOCK, .stored_blocks = 3,
                   .index_type = SAT_I32, .row_ptr = row_ptr,  .col_idx = col_idx};
    OK(sat_context_create(&options, &context));
    OK(sat_pattern_create(context, &bsr, &pattern));
    GUARDED(sat_pattern_view) view;
    OPEN(view);
    OK(sat_pattern_get(pattern, &view.it));
    WHOLE(view);
    need(view.it.stored_blocks == 3 && view.it.grid_rows == 2 && view.it.col_idx[2] == 1, "the pattern's view");
    const sat_device *device = sat_context_device(context);
    need(device->threads == 1 && device->multiprocessors == 0 && device->flop_rate[SAT_F32] > 0, "the device");
}

static void multiply(void) {
    float values[3 * BLOCK * BLOCK], b[SIDE * COLUMNS], c[SIDE * COLUMNS], want[SIDE * COLUMNS] = {0};
    for (int i = 0; i < 3 * BLOCK * BLOCK; i++) values[i] = (float)(i % 7 - 3);
    for (int i = 0; i < SIDE * COLUMNS; i++) b[i] = (float)(i % 5 - 2);
    const int rows[] = {0, 1, 1}, cols[] = {1, 0, 1};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < BLOCK; i++)
            for (int k = 0; k < BLOCK; k++)
                for (int j = 0; j < COLUMNS; j++)
                    want[(rows[t] * BLOCK + i) * COLUMNS + j] +=
                        values[(t * BLOCK + i) * BLOCK + k] * b[(cols[t] * BLOCK + k) * COLUMNS + j];
    for (int i = 0; i < SIDE * COLUMNS; i++) want[i] = want[i] + 1 > 0 ? want[i] + 1 : 0;
    float bias[SIDE] = {1, 1, 1, 1, 1, 1, 1, 1};
    GUARDED(sat_problem) problem;
    OPEN(problem);
    OK(sat_problem_matmul(&problem.it, SAT_F32, COLUMNS));
    WHOLE(problem);
    problem.it.matmul.bias = SAT_BIAS_ROW, problem.it.matmul.activation = SAT_ACT_RELU;
    sat_plan *plan = NULL;
    OK(sat_plan_create(context, pattern, &problem.it, &plan));
    const void *inputs[] = {values, b, bias};
    void *outputs[] = {c};
    memset(c, 0xff, sizeof c);
    OK(sat_run(plan, inputs, 3, outputs, 1, NULL));
    for (int i = 0; i < SIDE * COLUMNS; i++) need(c[i] == want[i], "the product");
    GUARDED(sat_plan_info) info;
    OPEN(info);
    OK(sat_plan_get_info(plan, &info.it));
    WHOLE(info);
    need(info.it.verified && info.it.variant[0], "the plan's info");
    sat_plan_free(plan);
}

static bool go_on(void *user, int done, int total, const char *what) {
    (void)done, (void)total, (void)what;
    return ++*(int *)user > 0;
}

static void race(void) {
    int calls = 0;
    sat_race *race = NULL;
    GUARDED(sat_problem) problem;
    OPEN(problem);
    OK(sat_problem_sampled(&problem.it, SAT_F64, 5));
    WHOLE(problem);
    sat_race_options options = {SAT_SIZED(sat_race_options), .fresh = true, .discard = true, .progress = go_on,
                                .progress_user = &calls};
    OK(sat_race_run(context, pattern, &problem.it, &options, &race));
    GUARDED(sat_race_info) info;
    OPEN(info);
    OK(sat_race_get_info(race, &info.it));
    WHOLE(info);
    need(calls > 0 && sat_race_count(race) > 0 && sat_race_best(race)->seconds > 0 && info.it.key[0], "the race");
    sat_race_free(race);
}

static void attend(void) {
    float q[SIDE * DIM], o[SIDE * DIM], lse[SIDE], d[SIDE * DIM], dq[SIDE * DIM], dk[SIDE * DIM], dv[SIDE * DIM];
    for (int i = 0; i < SIDE * DIM; i++) q[i] = (float)(i % 9 - 4) / 8, d[i] = 1;
    GUARDED(sat_problem) forward, backward;
    OPEN(forward);
    OPEN(backward);
    OK(sat_problem_attention(&forward.it, SAT_F32, 1, 1, DIM));
    OK(sat_problem_attention_backward(&backward.it, SAT_F32, 1, 1, DIM));
    WHOLE(forward);
    WHOLE(backward);
    OK(sat_attention_forward(context, pattern, &forward.it, q, q, q, o, lse, NULL));
    OK(sat_attention_backward(context, pattern, &backward.it, q, q, q, o, lse, d, dq, dk, dv, NULL));
    double sum = 0; /* weights of a row sum to 1, so all of dV sums to all of dO */
    for (int i = 0; i < SIDE * DIM; i++) sum += dv[i];
    need(fabs(sum - SIDE * DIM) < 1e-4, "gradients");
}

static bool fits(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return v->instance.option == 7 && p->op == SAT_MATMUL && a->stored_blocks == 3 && d->threads == 1;
}
static double slow(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return (void)v, (void)p, (void)a, (void)d, 1;
}
static sat_status set_first(const sat_launch *l) {
    *(float *)l->operands[2] = (float)l->threads;
    return SAT_OK;
}

static void bring_a_variant(void) {
    sat_variant v = {SAT_SIZED(sat_variant), .name = "cpu_matmul_f32_any_abi_frozen",
                     .revision = "1",        .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .instance = {.option = 7},
                     .supports = fits,       .estimate = slow,
                     .launch = set_first};
    OK(sat_variant_register(context, &v));
    GUARDED(sat_problem) problem;
    OPEN(problem);
    OK(sat_problem_matmul(&problem.it, SAT_F32, COLUMNS));
    sat_plan *plan = NULL;
    float values[3 * BLOCK * BLOCK] = {0}, b[SIDE * COLUMNS] = {0}, c[SIDE * COLUMNS] = {0};
    OK(sat_plan_create_with(context, pattern, &problem.it, v.name, &plan));
    OK(sat_run(plan, (const void *[]){values, b}, 2, (void *[]){c}, 1, NULL));
    need(c[0] == 1, "a variant of the program's own");
    sat_plan_free(plan);
}

int main(void) {
    open_all();
    multiply();
    race();
    attend();
    bring_a_variant();
    sat_pattern_free(pattern);
    sat_context_free(context);
    need(live == 0, "all memory came back");
    puts("ok");
    return 0;
}
