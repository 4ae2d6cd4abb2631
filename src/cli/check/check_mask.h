/* Cases whose indices change from run to run: masks within one capacity, some with faults. `blocks` says what they
 * mean, the raw arrays are what a run is given. */
#ifndef CLI_CHECK_MASK_H
#define CLI_CHECK_MASK_H

#include "../rng.h"
#include "check_case.h"

/* Makes a case of that kind of one whose blocks are drawn. False without memory. */
bool mask_open(check_case *c, rng *r);
void mask_close(check_case *c);
/* Another mask. */
void mask_draw(check_case *c, rng *r);

/* Memory of the device for the raw arrays; what is drawn is written there. */
sat_status mask_place(check_case *c, sat_context *context);
sat_status mask_write(const check_case *c, sat_context *context);
void mask_unplace(check_case *c, sat_context *context);

sat_status mask_pattern(sat_context *context, const check_case *c, sat_pattern **pattern);

static inline bool mask_fault(sat_status status) {
    return status == SAT_BAD_ROW_PTR || status == SAT_COLUMN_RANGE || status == SAT_COLUMN_ORDER;
}

#endif
