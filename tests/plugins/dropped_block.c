// Forgets one stored block.

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    planted_product(l, 0, l->pattern->stored_blocks / 2);
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(
        context, (sat_variant){.name = "plugin_dropped_block", .about = "forgets a stored block", .launch = launch});
}
