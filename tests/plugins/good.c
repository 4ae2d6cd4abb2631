// A right variant: the control beside the planted bad ones, and an example of a plugin.

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    planted_product(l, 0, -1);
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(context, (sat_variant){.name = "plugin_good", .about = "right", .launch = launch});
}
