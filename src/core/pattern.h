/* A pattern: the validated, owned copy of a BSR matrix's indices, with its statistics and transposed index. */
#ifndef SAT_PATTERN_H
#define SAT_PATTERN_H

#include "base/status.h"
#include "core/masks.h"
#include "ops/op.h"

/* References keep a pattern alive while plans and queued background races use it. */
sat_pattern *sat_pattern_ref(const sat_pattern *pattern);

/* The pattern that an operation runs on: the caller's, or where the operation has none, one without rows. That one is
 * never freed. */
sat_status sat_pattern_for(const sat_op *op, const sat_pattern **pattern);

/* The view without the transposed index, or with it, which is then made once and kept. */
const sat_pattern_view *sat_pattern_by_rows(const sat_pattern *pattern);
sat_status sat_pattern_transposed(const sat_pattern *pattern, const sat_pattern_view **view);
/* A hash of all indices: another one for another pattern of the same shape. */
uint64_t sat_pattern_digest(const sat_pattern *pattern);
bool sat_pattern_has_transposed(const sat_pattern *pattern); /* made already */

/* A mask that a race makes up for a pattern whose indices change, of its shape and capacity: a pattern whose indices
 * stay, for checks alone, since its faulty rows leave gaps; none where it is packed. */
sat_status sat_pattern_create_mask(sat_context *context, const sat_pattern_view *shape, const sat_mask_indices *mask,
                                   bool packed, sat_pattern **pattern);

#endif
