/* What a race catches: a product with one fault in it, alone in a race, must be found wrong, in every dtype and at
 * every depth; the same product without a fault must be found right. */
#include "support.h"

#include <omp.h>

#include "core/status.h"
#include "variant.h"

typedef enum fault {
    NONE,
    DROPS_A_BLOCK,
    ONE_ELEMENT_BY_A_TENTH,
    LAST_BIT_OF_ONE_ELEMENT,
    LAST_COLUMN_OF_A_PANEL,
    INPUTS_AS_TF32,
    INPUTS_AS_BF16,
    SUMS_IN_F16,
    SUMS_IN_F32,
    PARTIAL_SUMS_IN_16_BITS,
    KEEPS_THE_FIRST_B,
    KEEPS_THE_FIRST_VALUES,
    WRONG_ALPHA_BELOW_ZERO,
    WRONG_BETA_BELOW_ZERO,
    READS_C_ALTHOUGH_BETA_IS_ZERO,
    WRONG_ON_FEWER_THREADS,
    SKIPS_EMPTY_ROWS,
    CLAMPS_INPUTS,
    FLUSHES_TINY_INPUTS,
    WRITES_INTO_B,
    WRITES_INTO_PADDING_OF_A,
    WRITES_BESIDE_THE_OUTPUT,
    RANDOM_LAST_BITS,
    NEEDS_A_CLEAN_WORKSPACE,
    SHARES_STATE_BETWEEN_PLANS,
    FORGETS_THE_LAST_ROW,
    LOSES_THE_SIGN_OF_ZERO_SUMS, /* right: zeros of either sign are equal */
    FAULTS
} fault;

static const char *const names[FAULTS] = {"none",
                                          "drops a block",
                                          "one element by a tenth",
                                          "last bit of one element",
                                          "last column of a panel",
                                          "inputs as TF32",
                                          "inputs as bf16",
                                          "sums in f16",
                                          "sums in f32",
                                          "partial sums in 16 bits",
                                          "keeps the first B",
                                          "keeps the first values",
                                          "wrong alpha below zero",
                                          "wrong beta below zero",
                                          "reads C although beta is zero",
                                          "wrong on fewer threads",
                                          "skips empty rows",
                                          "clamps inputs",
                                          "flushes tiny inputs",
                                          "writes into B",
                                          "writes into padding of A",
                                          "writes beside the output",
                                          "random last bits",
                                          "needs a clean workspace",
                                          "shares state between plans",
                                          "forgets the last row",
                                          "loses the sign of zero sums"};

typedef struct planted {
    fault fault;
    void *kept;                      /* of the first run */
    const sat_pattern_view *pattern; /* of the last prepare */
    uint64_t random;
} planted;

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)a, (void)d;
    return p->transpose == SAT_NO_TRANSPOSE && p->bias == SAT_BIAS_NONE && p->batch == 1;
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)v, (void)p, (void)a, (void)d;
    return 1e-6;
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    (void)p, (void)a, (void)d;
    return ((planted *)v->user)->fault == NEEDS_A_CLEAN_WORKSPACE ? 64 : 0;
}

static sat_status prepare(const sat_prepare *p, void **state) {
    ((planted *)p->variant->user)->pattern = p->pattern;
    *state = NULL;
    return SAT_OK;
}

static double low_bits_off(double x, int bits) { /* of a float's 24 */
    float f = (float)x;
    uint32_t half = 1u << (bits - 1), word = sat_float_bits(f) + half;
    return (double)sat_bits_float(word & ~((1u << bits) - 1));
}

static double input(const planted *me, sat_dtype t, const void *from, int64_t at) {
    double x = sat_load(t, from, at);
    switch (me->fault) {
    case INPUTS_AS_TF32: return low_bits_off(x, 13);
    case INPUTS_AS_BF16: return low_bits_off(x, 16);
    case CLAMPS_INPUTS: return x > 65504 ? 65504 : x < -65504 ? -65504 : x;
    case FLUSHES_TINY_INPUTS: return fabs(x) < 1e-3 ? 0 : x;
    default: return x;
    }
}

/* One more product onto a sum in the compute type, or in a narrower one. */
static double add(const planted *me, sat_dtype compute, double sum, double a, double b) {
    if (me->fault == SUMS_IN_F16) return sat_from_f16(sat_to_f16((float)(sum + a * b)));
    if (me->fault == SUMS_IN_F32 || compute == SAT_F32) return (double)fmaf((float)a, (float)b, (float)sum);
    return fma(a, b, sum);
}

static void *first_of(planted *me, const void *from, size_t bytes) {
    if (!me->kept && (me->kept = malloc(bytes + 1))) memcpy(me->kept, from, bytes);
    return me->kept;
}

static sat_status launch(const sat_launch *l) {
    planted *me = l->variant->user;
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = me->fault == SHARES_STATE_BETWEEN_PLANS ? me->pattern : l->pattern;
    const void *values = l->operands[0], *b = l->operands[1];
    void *c = l->operands[2];
    int64_t area = a->block_rows * a->block_cols, drop = a->stored_blocks / 2;
    size_t size = sat_dtype_size(p->a_dtype);
    if (me->fault == KEEPS_THE_FIRST_B) b = first_of(me, b, (size_t)(p->k * p->n) * size);
    if (me->fault == KEEPS_THE_FIRST_VALUES) values = first_of(me, values, (size_t)(a->stored_blocks * area) * size);
    bool dirty = me->fault == NEEDS_A_CLEAN_WORKSPACE && *(uint64_t *)l->workspace != 0;
    double alpha = me->fault == WRONG_ALPHA_BELOW_ZERO && p->alpha == -1 ? 1 : p->alpha;
    double beta = me->fault == WRONG_BETA_BELOW_ZERO && p->beta < 0 ? -p->beta : p->beta;
    for (int64_t i = 0; i < p->m - (me->fault == FORGETS_THE_LAST_ROW); i++) {
        int64_t row = i / a->block_rows;
        if (me->fault == SKIPS_EMPTY_ROWS && a->row_ptr[row] == a->row_ptr[row + 1]) {
            for (int64_t j = 0; j < p->n; j++) sat_store(p->c_dtype, c, i * p->n + j, 1);
            continue;
        }
        for (int64_t j = 0; j < p->n; j++) {
            double sum = 0, partial = 0;
            for (int64_t t = a->row_ptr[row]; t < a->row_ptr[row + 1]; t++) {
                if (me->fault == DROPS_A_BLOCK && t == drop) continue;
                int64_t k0 = a->col_idx[t] * a->block_cols;
                for (int64_t k = 0; k < a->block_cols && k0 + k < p->k; k++)
                    sum = add(me, p->compute_dtype, sum,
                              input(me, p->a_dtype, values, t * area + i % a->block_rows * a->block_cols + k),
                              input(me, p->b_dtype, b, (k0 + k) * p->n + j));
                if (me->fault != PARTIAL_SUMS_IN_16_BITS || t % 2) continue;
                partial += sum, sum = 0;
                partial = p->c_dtype == SAT_F16 ? (double)sat_from_f16(sat_to_f16((float)partial))
                                                : (double)sat_from_bf16(sat_to_bf16((float)partial));
            }
            double before =
                p->beta != 0 || me->fault == READS_C_ALTHOUGH_BETA_IS_ZERO ? sat_load(p->c_dtype, c, i * p->n + j) : 0;
            double x = alpha * (sum + partial) + beta * before;
            bool here = i == p->m / 2 && j == p->n / 3;
            if (me->fault == ONE_ELEMENT_BY_A_TENTH && here) x = x == 0 ? 1 : 1.1 * x;
            if (me->fault == LAST_COLUMN_OF_A_PANEL && j == p->n - 1) x = -x;
            if (dirty || (me->fault == WRONG_ON_FEWER_THREADS && l->threads < l->device->threads)) x += 1;
            if (me->fault == RANDOM_LAST_BITS && next_random(&me->random) % 64 == 0) x *= 1 + 0x1p-50;
            if (me->fault == LOSES_THE_SIGN_OF_ZERO_SUMS && x == 0) x = -0.0;
            sat_store(p->c_dtype, c, i * p->n + j, x);
            unsigned char *bits = (unsigned char *)c + (size_t)(i * p->n + j) * sat_dtype_size(p->c_dtype);
            if (me->fault == LAST_BIT_OF_ONE_ELEMENT && here) bits[0] ^= 1;
        }
    }
    if (me->fault == WRITES_INTO_B) ((char *)(uintptr_t)l->operands[1])[3] ^= 1;
    if (me->fault == WRITES_INTO_PADDING_OF_A) sat_store(p->a_dtype, l->operands[0], a->stored_blocks * area - 1, 0);
    if (me->fault == WRITES_BESIDE_THE_OUTPUT) ((char *)c)[-1] = 0;
    return SAT_OK;
}

/* A race of the planted product alone. */
static sat_result race_of(fault f, sat_dtype dtype, int64_t depth, bool scalars) {
    sat_context *ctx = open_context(SAT_EFFORT_QUICK);
    planted me = {.fault = f, .random = 5};
    uint64_t random = 77 + (uint64_t)f;
    sat_variant v = {SAT_SIZED(sat_variant), .name = "planted",      .revision = "1",    .op = SAT_MATMUL,
                     .backend = SAT_CPU,     .flags = SAT_V_SCRATCH, .user = &me,        .supports = supports,
                     .estimate = estimate,   .workspace = workspace, .prepare = prepare, .launch = launch};
    assert_ok(sat_register_variant(ctx, &v));
    sat_problem p = sat_matmul_problem(dtype, 21);
    if (scalars) p.alpha = -1.5, p.beta = 0.75;
    sat_pattern *pattern = random_pattern(ctx, &random, 30, depth - 3, 8, 8, f == SKIPS_EMPTY_ROWS ? 0.4 : 0.9, false);
    sat_race *race = NULL;
    sat_race_options options = {SAT_SIZED(sat_race_options), .fresh = true, .only = "planted"};
    assert_ok(sat_race_run(ctx, pattern, &p, &options, &race));
    sat_result result = *sat_race_at(race, 0);
    sat_race_free(race);
    sat_pattern_free(pattern);
    sat_context_free(ctx);
    free(me.kept);
    return result;
}

/* Is it a fault in this dtype at all? */
static bool shows(fault f, sat_dtype t) {
    switch (f) {
    case NONE:
    case LOSES_THE_SIGN_OF_ZERO_SUMS: return false;
    case INPUTS_AS_TF32: return t == SAT_F32 || t == SAT_F64;
    case INPUTS_AS_BF16: return t != SAT_BF16;
    case SUMS_IN_F32:
    case RANDOM_LAST_BITS: return t == SAT_F64;
    case CLAMPS_INPUTS: return t != SAT_F16; /* whose largest number that is */
    case WRONG_ON_FEWER_THREADS: return omp_get_max_threads() > 1;
    default: return true;
    }
}

static void every_fault_is_found(void **state) {
    (void)state;
    const sat_dtype dtypes[] = {SAT_F32, SAT_F64, SAT_F16, SAT_BF16};
    const int64_t depths[] = {24, 256, 4096};
    int misses = 0;
    for (int d = 0; d < 3; d++)
        for (int t = 0; t < 4; t++)
            for (fault f = NONE; f < FAULTS; f++) {
                bool scalars = f == WRONG_ALPHA_BELOW_ZERO || f == WRONG_BETA_BELOW_ZERO;
                bool deep = f <= PARTIAL_SUMS_IN_16_BITS; /* the others have nothing to do with depth */
                if (depths[d] == 4096 && !deep) continue;
                sat_result r = race_of(f, dtypes[t], depths[d], scalars);
                if ((r.verdict == SAT_VERDICT_WRONG) == shows(f, dtypes[t])) continue;
                misses++;
                print_error("%s, %s, depth %lld: %s %s\n", names[f], sat_dtype_name(dtypes[t]), (long long)depths[d],
                            sat_verdict_name(r.verdict), r.message);
            }
    assert_int_equal(misses, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_fault_is_found)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
