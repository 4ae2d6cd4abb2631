/* What every family of the packed sampled product answers alike; included last, after defining
 *   vectors_of(problem, device)            what it computes this problem with
 *   runs_on(problem, device)               whether the processor can, and the dtype is one it takes
 *   run(launch, tile_m, tile_n) */

static bool supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return runs_on(p, d) && sampled_supports(v, p, a, vectors_of(p, d));
}

static double estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    return sampled_estimate(v, p, a, d, vectors_of(p, d));
}

static size_t workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d) {
    sampled_shape s = sampled_shape_of(v, p, a, d, vectors_of(p, d));
    return sampled_bytes(&s);
}

static sat_status prepare(const sat_prepare *prepare, void **state) {
    return sampled_prepare(prepare, vectors_of(prepare->problem, prepare->device), state);
}

static sat_status launch(const sat_launch *l) {
    return run(l, l->variant->instance.tile_m, l->variant->instance.tile_n);
}

#define SAMPLED_FAMILY(words)                                                                                          \
    {                                                                                                                  \
        .revision = "1", .op = SAT_SAMPLED, .backend = SAT_CPU, .flags = SAT_V_SCRATCH, .about = words,                \
        .supports = supports, .estimate = estimate, .workspace = workspace, .prepare = prepare, .launch = launch,      \
        .release = sampled_release                                                                                     \
    }
