// Returns an error from every run.

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    (void)l;
    return sat_fail(SAT_LIBRARY_ERROR, "planted: nothing works today");
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(context,
                            (sat_variant){.name = "plugin_returns_error", .about = "always fails", .launch = launch});
}
