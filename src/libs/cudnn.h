/* cuDNN, found at run time: a graph of operations on tensors of four dimensions, and the plan that runs it.
 *
 * A graph remembers the first thing that went wrong: later calls do nothing, and sat_dnn_plan returns it. Tensors are
 * numbers from 1 on; 0 means none. */
#ifndef SAT_CUDNN_H
#define SAT_CUDNN_H

#include "libs/cuda_common.h"

const char *sat_cudnn_version(void); /* for sat_family.version: "cuDNN 9.19.0"; NULL: not on this machine */
int sat_cudnn_number(void);          /* 91900; 0: not on this machine */

/* As cudnn_graph.h numbers them; the same in all of cuDNN 9. */
typedef enum sat_dnn_type {
    SAT_DNN_F32 = 0,
    SAT_DNN_F16 = 2,
    SAT_DNN_I32 = 4,
    SAT_DNN_BF16 = 9,
    SAT_DNN_BOOL = 11
} sat_dnn_type;

typedef enum sat_dnn_mode { /* of sat_dnn_pointwise; x and b in this order */
                            SAT_DNN_ADD = 0,
                            SAT_DNN_MUL = 1,
                            SAT_DNN_DIV = 6,
                            SAT_DNN_SUB = 9,
                            SAT_DNN_EXP = 13,
                            SAT_DNN_LOG = 15,
                            SAT_DNN_SAME = 21,
                            SAT_DNN_GREATER = 302,
                            SAT_DNN_GREATER_EQUAL = 303,
                            SAT_DNN_INDEX = 501, /* of a place along an axis */
                            SAT_DNN_SELECT = 601 /* x where t holds, else b */
} sat_dnn_mode;

typedef enum sat_dnn_fold { SAT_DNN_SUM = 0, SAT_DNN_LARGEST = 3 } sat_dnn_fold;

typedef struct sat_dnn sat_dnn;

typedef struct sat_dnn_shape {
    int64_t size[4], stride[4];
} sat_dnn_shape;

enum { SAT_DNN_KEY = 48 };

/* A plan is compiled each time it is made, for half a second: graphs that were closed with a plan wait for the next
 * that is opened with the same key, which describes all that they depend on but the device. */
sat_status sat_dnn_open(const sat_prepare *p, const double key[SAT_DNN_KEY], sat_dnn **graph);
bool sat_dnn_planned(const sat_dnn *graph); /* there is nothing left to describe */
void sat_dnn_close(sat_dnn *graph);         /* accepts NULL */

/* Tensors that a run is given: in the device's memory, at multiples of `align` bytes, or a single number that stays. */
int sat_dnn_operand(sat_dnn *g, sat_dnn_type t, const sat_dnn_shape *shape, int align);
int sat_dnn_number_f32(sat_dnn *g, float value);
int sat_dnn_number_i32(sat_dnn *g, int32_t value);
/* A tensor that lives inside of the plan: without gaps, the last dimension innermost, or of any shape. */
int sat_dnn_inner(sat_dnn *g, sat_dnn_type t, const int64_t size[4]);
int sat_dnn_inner_of(sat_dnn *g, sat_dnn_type t, const sat_dnn_shape *shape);

/* y = x*b over the last two dimensions, in f32. */
void sat_dnn_matmul(sat_dnn *g, int x, int b, int y);
/* y = mode(x, b, t), computed as `in`. b and t may be 0 where the mode has none; `axis` is read by SAT_DNN_INDEX. */
void sat_dnn_pointwise(sat_dnn *g, sat_dnn_mode mode, sat_dnn_type in, int axis, int x, int b, int t, int y);
/* y = x with its last two dimensions swapped; the shape of y says so. */
void sat_dnn_transpose(sat_dnn *g, int x, int y);
/* y = all of x along the dimensions in which y has size 1, in f32. */
void sat_dnn_reduce(sat_dnn *g, sat_dnn_fold fold, int x, int y);

/* The first plan of the library's heuristic that needs no more than `workspace` bytes. */
sat_status sat_dnn_plan(sat_dnn *g, size_t workspace);

/* Runs the plan: pointers[i] is of the i-th operand that was made, numbers not counted. */
sat_status sat_dnn_run(const sat_launch *l, sat_dnn *g, void *const *pointers, void *workspace);

#endif
