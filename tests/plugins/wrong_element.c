// One element of the whole result is wrong, by a little.

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    planted_product(l, 0, -1);
    if (l->problem->m > 0 && l->problem->n > 0) *planted_at(l, l->problem->m / 2, l->problem->n / 2) += 0.25f;
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(
        context, (sat_variant){.name = "plugin_wrong_element", .about = "one wrong element", .launch = launch});
}
