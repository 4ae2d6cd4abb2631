// Takes its process down.

#include <signal.h>

#include "planted.h"

static sat_status launch(const sat_launch *l) {
    (void)l;
    signal(SIGSEGV, SIG_DFL); // whoever catches it (a sanitizer) would turn it into an ordinary exit
    raise(SIGSEGV);
    return SAT_OK;
}

sat_status sat_plugin(sat_context *context) {
    return planted_register(context,
                            (sat_variant){.name = "plugin_crashes", .about = "ends in SIGSEGV", .launch = launch});
}
