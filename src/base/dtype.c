/* The names of dtypes. */
#include "base/dtype.h"

/* By a dtype: in the device, the rates, and the file of rates. */
_Static_assert(sizeof(((sat_device *)0)->flop_rate) >= SAT_DTYPE_SLOTS * sizeof(double), "a rate for each dtype");
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    _Static_assert((int)id == SAT_DTYPE_AT_##name + 1, "the table has the order of sat_dtype");
#include "base/dtypes.def"
#undef SAT_DTYPE

const char *sat_dtype_name(sat_dtype t) {
    switch (t) {
#define SAT_DTYPE(id, name, stored, on_device, library, compute, bits, unit, tiny)                                     \
    case id:                                                                                                           \
        return #name;
#include "base/dtypes.def"
#undef SAT_DTYPE
    }
    return "?";
}
