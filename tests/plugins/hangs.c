// Never comes back.

#include <unistd.h>

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    (void)l;
    for (;;) sleep(1);
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(context, (sat_variant){.name = "plugin_hangs", .about = "never returns", .launch = launch});
}
