// Right, but writes one element past the end of its output.

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    planted_product(l, 0, -1);
    if (l->problem->m > 0 && l->problem->n > 0) planted_at(l, l->problem->m - 1, l->problem->n - 1)[1] = 0;
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(
        context, (sat_variant){.name = "plugin_writes_past", .about = "writes past its output", .launch = launch});
}
