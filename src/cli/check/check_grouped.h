/* Products of groups in `check`: random problems, their operands, and what right results are. */
#ifndef CLI_CHECK_GROUPED_H
#define CLI_CHECK_GROUPED_H

#include "../rng.h"
#include "check_data.h"

static inline bool is_grouped(const sat_problem *p) { return p->op == SAT_GROUPED || p->op == SAT_GROUPED_WEIGHTS; }

/* A random problem; `wild` as in check_case.c. It has no pattern, and c->blocks stays empty. */
void grouped_case(const sat_variant *v, rng *r, double wild, int64_t sides, check_case *c);
void grouped_text(const check_case *c, char *out, size_t capacity);

/* Lists the operands, without memory; gives how many. */
int grouped_operands(const sat_problem *p, operand *list);
/* Memory for the offsets as they are meant. False without any. */
bool grouped_open(check_data *d, const check_case *c);
/* New offsets, some with a fault, and NaN where no result may depend on it. After the other operands have values. */
void grouped_inputs(check_data *d, const check_case *c, rng *r);
bool grouped_reference(check_data *d, const check_case *c);

#endif
