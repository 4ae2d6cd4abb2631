/* Attention in `check`: random problems, their operands, and what right results are. */
#ifndef CLI_CHECK_ATTENTION_H
#define CLI_CHECK_ATTENTION_H

#include "../rng.h"
#include "check_data.h"

static inline int64_t value_dim_of(const sat_problem *p) { // elements of a head of V and O
    return p->attention.value_dim ? p->attention.value_dim : p->attention.dim;
}

static inline bool is_attention(const sat_problem *p) {
    return p->op == SAT_ATTENTION || p->op == SAT_ATTENTION_BACKWARD;
}

/* A random problem, and its mask in c->blocks; `wild` and `lean` as in check_case.c. False without memory. */
bool attention_case(const sat_variant *v, rng *r, double wild, int64_t sides, check_case *c);
void attention_text(const check_case *c, char *out, size_t capacity);

/* Lists the operands, without memory; gives how many. */
int attention_operands(const sat_problem *p, operand *list);
/* Of gradients: O and LSE as the forward pass gives them. After the other operands have their values. */
bool attention_inputs(check_data *d, const check_case *c);
bool attention_reference(check_data *d, const check_case *c);

#endif
