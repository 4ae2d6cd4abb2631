/* The operands of a case in guarded memory, and what a right result is. */
#ifndef CLI_CHECK_DATA_H
#define CLI_CHECK_DATA_H

#include "../number.h"
#include "check_case.h"

#define CHECK_OPERANDS 11

/* Memory between two pages that may not be touched; reused from case to case. */
typedef struct arena {
    char *map;
    size_t bytes; /* usable, between the pages */
} arena;

typedef struct operand {
    const char *name; /* NULL: the problem lacks it, and its place alone is kept */
    sat_dtype dtype;
    int index; /* bytes of an index: it is one column of them and has no dtype; 0: it has elements */
    bool output, values;
    int64_t rows, cols, batch; /* of block values: stored blocks * block rows, block columns */
    sat_layout layout;
    int64_t group, group_stride; /* rows come in groups of so many (heads), so far apart; 0: they do not */
    uint32_t align;
    int64_t span; /* elements from the first to past the last */
    char *data;
    char *zone; /* data and the guard zones around it */
    size_t zone_bytes;
    char *before;             /* the zone before the run */
    double *expected, *bound; /* of an output, batch * rows * cols */
} operand;

static inline int64_t operand_at(const operand *o, int64_t z, int64_t i, int64_t j) {
    int64_t at = z * o->layout.batch_stride + j * o->layout.col_stride;
    if (o->group) return at + i / o->group * o->group_stride + i % o->group * o->layout.row_stride;
    return at + i * o->layout.row_stride;
}

static inline size_t operand_size(const operand *o) { return o->index ? (size_t)o->index : number_size(o->dtype); }

typedef struct check_data {
    arena arenas[CHECK_OPERANDS];
    operand list[CHECK_OPERANDS];
    int count;
    int64_t *groups;     /* offsets as they are meant, cut off at their fault; NULL: there are none */
    sat_status expected; /* what a run returns where the host sees the operands */
    void *pointers[SAT_MAX_OPERANDS];
    sat_context *context; /* whose device has the copies; NULL: it reads the host's memory */
    char *copies[CHECK_OPERANDS];
    size_t copy_bytes[CHECK_OPERANDS];
} check_data;

/* Lists the operands of a case's problem, without memory; gives how many. */
int data_operands(const check_case *c, operand *list);
/* Lays them out. False without memory. */
bool data_open(check_data *d, const check_case *c);
/* New random values; outputs NaN, or random where they are read. Then the expectation of a right result. */
bool data_fill(check_data *d, const check_case *c, uint64_t seed);
void data_restore(check_data *d); /* as data_fill left it */
/* Zones to the device, and back after a run; nothing to do where the device reads the host's memory. */
sat_status data_push(check_data *d, sat_context *context);
sat_status data_pull(check_data *d);
/* The outputs against the expectation, their gaps, the guard zones and the inputs. False with what is wrong. */
bool data_compare(const check_data *d, const check_case *c, char *message, size_t capacity);
void data_close(check_data *d); /* what belongs to a case */
void data_free(check_data *d);  /* the arenas too */

#endif
