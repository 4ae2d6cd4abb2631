/* A problem on the host with its operands, one variant to run on them and the check of a race: what the tests of checks
 * begin with. */
#ifndef SAT_TEST_SCENE_H
#define SAT_TEST_SCENE_H

#include "support.h"

#include "core/select.h"
#include "core/runner.h"
#include "core/bench.h"

typedef struct scene {
    sat_context *ctx;
    sat_pattern *pattern;
    const sat_pattern_view *view;
    sat_request q;
    sat_bench bench;
    sat_runner runner;
} scene;

static inline void close_scene(scene *s) {
    sat_runner_close(&s->runner);
    sat_bench_close(&s->bench);
    sat_pattern_free(s->pattern);
    sat_context_free(s->ctx);
}

static inline void run(scene *s) {
    assert_ok(sat_bench_reset(&s->bench));
    assert_ok(sat_runner_launch(&s->runner, s->bench.pointer, NULL));
}

static inline bool passes(scene *s, char *where) {
    sat_finding f;
    assert_ok(sat_bench_check(&s->bench, &f));
    if (where) snprintf(where, 224, "%s", f.where);
    return f.ok;
}

#endif
