// Right at first; later runs leave the first block row as it was, which is wrong as soon as the operands change.

#include "planted.h"

static sat_status prepare(const sat_prepare *p, void **state) {
    (void)p;
    *state = calloc(1, sizeof(int));
    return *state ? SAT_OK : sat_fail(SAT_OUT_OF_MEMORY, "a counter");
}

static void release(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

static sat_status launch(const sat_launch *l) {
    int *runs = l->state;
    planted_product(l, *runs > 0 ? 1 : 0, -1);
    if (*runs < 1000000) ++*runs;
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(context, (sat_variant){.name = "plugin_stale_tile",
                                                   .about = "skips a tile in later runs",
                                                   .prepare = prepare,
                                                   .launch = launch,
                                                   .release = release});
}
