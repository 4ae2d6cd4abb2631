/* `check --power`: a right kernel with one fault in it. What a fault does is a row of a table (power_faults.c):
 * hooks, functions that change one step of the kernel each. The kernels (power_product.c, power_attention.c,
 * power_grouped.c) are plain loops on the host, in double precision, and know no fault by name. */
#ifndef CLI_POWER_H
#define CLI_POWER_H

#include <math.h>
#include <pthread.h>

#include "../rng.h"
#include "check_data.h"

/* Sets of operations and of dtypes. */
enum {
    OP_MATMUL = 1 << SAT_MATMUL,
    OP_SAMPLED = 1 << SAT_SAMPLED,
    OP_FORWARD = 1 << SAT_ATTENTION,
    OP_BACKWARD = 1 << SAT_ATTENTION_BACKWARD,
    OP_GROUPED = 1 << SAT_GROUPED,
    OP_WEIGHTS = 1 << SAT_GROUPED_WEIGHTS,
    OP_STORED = OP_MATMUL | OP_SAMPLED, /* with stored blocks */
    OP_GROUPS = OP_GROUPED | OP_WEIGHTS,
    OP_PRODUCTS = OP_STORED | OP_GROUPS,
    OP_EPILOGUE = OP_MATMUL | OP_GROUPED, /* with a bias and an activation */
    OP_ATTENTION = OP_FORWARD | OP_BACKWARD,
    OP_PATTERN = OP_STORED | OP_ATTENTION,
    OP_ALL = OP_PATTERN | OP_GROUPS,
    T_F32 = 1 << SAT_F32,
    T_F64 = 1 << SAT_F64,
    T_F16 = 1 << SAT_F16,
    T_BF16 = 1 << SAT_BF16,
    T_WIDE = T_F32 | T_F64,
    T_SHORT = T_F16 | T_BF16,
    T_ALL = T_WIDE | T_SHORT
};

/* What `check` is expected to find is expected of so many cases of its grid. Half as many miss a fault that shows in
 * one case of twenty once in twenty times. */
enum { POWER_CASES = 120 };

/* Scenarios: what a race's problem needs so that the fault can show. */
enum {
    SCENE_SCALARS = 1 << 0, /* alpha -1.5, beta 0.75 */
    SCENE_BIAS = 1 << 1,    /* a bias */
    SCENE_RELU = 1 << 2,    /* an activation */
    SCENE_GELU = 1 << 3,    /* another */
    SCENE_BATCH = 1 << 4,   /* two items, with a gap between them */
    SCENE_TRANSPOSE = 1 << 5,
    SCENE_COLUMNS = 1 << 6, /* the second operand column-major */
    SCENE_WIDE = 1 << 7,    /* 70 columns instead of 13 */
    SCENE_TALL = 1 << 8,    /* 4096 rows instead of 29, with fewer blocks in each */
    SCENE_EMPTY = 1 << 9,   /* block rows without blocks */
    SCENE_CAUSAL = 1 << 10, /* attention */
    SCENE_WINDOW = 1 << 11,
    SCENE_LSE = 1 << 12,
    SCENE_GROUPS = 1 << 13, /* four heads over two, instead of two over one */
    SCENE_MASKS = 1 << 14,  /* one mask a head */
    SCENE_SPARSE = 1 << 16, /* half of the blocks, no block row without any */
    SCENE_PACKED = 1 << 15, /* two sequences */
    SCENE_FIXED = 1 << 17,  /* SAT_FIXED_VALUES */
    SCENE_VALUES = 1 << 18, /* attention: values of 13 elements, which are no multiple of anything */
    SCENE_CAP = 1 << 19,    /* attention: scores are capped */
    SCENE_SINKS = 1 << 20   /* attention: a sink a head */
};

typedef struct planted planted;
typedef struct run run;

/* An element, or one term of its sum. */
typedef struct spot {
    const run *r;
    int which;              /* the operand that it belongs to or adds to */
    int64_t z, h, i, j;     /* item, head, row and column; attention: in a term query and key, else row and element */
    int64_t rows, cols;     /* of the output, or of one head's */
    int64_t part, parts, t; /* the term's place among the row's blocks (attention: key blocks); the stored block.
                               Groups: its place among parts of the depth, and in the depth */
    int64_t depth;          /* groups: how many terms */
    bool here;              /* one element in the middle of the output */
} spot;

/* How a fault changes the kernel; all may be NULL. */
typedef struct fault_hooks {
    sat_status (*start)(run *r);             /* before a launch: its problem, operands, or r->wrong */
    sat_status (*values)(run *r);            /* when fixed values are refreshed; they are the only operand */
    double (*input)(double x);               /* every input, as it is read */
    bool (*skip)(const spot *s);             /* leaves a term out */
    double (*sum)(double x);                 /* every sum, after each addition */
    double (*part)(const spot *s, double x); /* products: the sum after each block */
    double (*epilogue)(const sat_problem *p, double sum, double before, double bias);
    double (*element)(const spot *s, double x); /* before it is stored */
    void (*store)(sat_dtype t, void *to, int64_t at, double x);
    sat_status (*after)(run *r);                            /* when the output is written */
    int64_t (*row)(const spot *s);                          /* where a row is stored */
    int64_t (*column)(const spot *s, int64_t block_column); /* of a stored block */
    /* Groups: takes the offsets, as the kernel then has them; without it as the header says. */
    void (*take)(const run *r, int64_t *to);
    /* Attention. */
    bool (*keep)(const spot *s, bool kept);
    int64_t (*kv_head)(const sat_attention *t, int64_t h);
    double (*score)(double x), (*weight)(double x), (*ds)(double x);
    double (*delta)(const spot *s, double x);
    double (*lse)(double largest, double total);
    bool never_rescales, without_largest;
    bool first_sink, lse_without_sink;
    bool flat_cap;      /* gradients: the cap's slope is taken for 1 */
    bool skips_zeros;   /* matmul, sampled: 0 times anything is 0 */
    bool absent_too;    /* matmul: multiplies by the zeros of absent blocks; groups: 0 times what others multiply */
    bool reads_padding; /* matmul: of the last block column, times 0 */
    bool unwritten;     /* attention: a query that keeps no key is left out; sampled: so is padding; groups: so are
                           rows of no group, and the gradient of an empty one */
    bool bias_for_all;  /* groups: rows of no group have the bias of the last one */
    double zero_keys;   /* keys beyond the last that count with a score of 0 */
    double nothing;     /* what a query that keeps no key gets */
    int operand;        /* the one that the functions above are about */
} fault_hooks;

typedef struct fault {
    const char *name;
    unsigned ops, shows;  /* where it is a fault at all: operations, dtypes */
    unsigned scene;       /* SCENE_*: the scenario, what the problem of its race has */
    unsigned race, check; /* dtypes in which each is expected to find it */
    const char *why;      /* it is not found there, or not by both */
    int64_t to;           /* deepest race that it has; 0: any */
    int64_t from;         /* depths from which on it shows; 0: all */
    int64_t deepest[5];   /* by dtype: depth up to which the race is expected to find it; 0: any */
    bool threads;         /* shows on a CPU with several threads alone */
    fault_hooks how;
} fault;

extern const fault fault_table[];
extern const int fault_count;

/* What a plan keeps from run to run. */
typedef struct plan_state {
    int64_t runs;
    const void *first[SAT_MAX_OPERANDS];  /* where the operands of the first run were */
    const void *before[SAT_MAX_OPERANDS]; /* and those of the run before */
    char *kept;                           /* a copy of one of them */
    double largest;                       /* number of the run before */
    bool nan;                             /* a run had one */
    double alpha;
    int64_t releases; /* of all plans, before this one was prepared */
    pthread_t thread; /* that prepared it */
    const sat_pattern_view *pattern;
} plan_state;

/* The planted variant: one for each operation and context; all of them share this. */
struct planted {
    const fault *fault;
    sat_dtype dtype;
    sat_context *context;   /* whose memory functions reach the device */
    int64_t runs;           /* of all plans */
    const plan_state *last; /* prepared */
    double alpha, beta;     /* of the first plan's first run */
    double last_alpha;      /* of the plan that was prepared last */
    int64_t releases;       /* plans that were released */
    const void *released;   /* the pattern of the last of them */
    char *fixed;            /* the fixed values of whichever plan was refreshed last */
    const void *fixed_for;  /* its pattern */
    rng random;
    char *mirror[CHECK_OPERANDS]; /* the operands in host memory, where the device has its own */
    size_t mirror_bytes[CHECK_OPERANDS];
};

/* One launch. */
struct run {
    planted *me;
    const fault_hooks *how;
    const sat_launch *launch;
    plan_state *state;
    sat_problem p;             /* as the kernel sees it */
    const sat_pattern_view *a; /* likewise */
    sat_pattern_view own;      /* where a fault needs another */
    operand list[CHECK_OPERANDS];
    int count;
    const char *host[CHECK_OPERANDS]; /* the operands where loops can read them; outputs can be written */
    bool wrong;                       /* every element is to be wrong */
    bool wrong_parts;                 /* elements of block rows that are not full are to be wrong */
    bool backwards;                   /* sums run from the end */
};

/* Registers the variant of one operation. */
sat_status power_register(sat_context *context, sat_operation op, planted *me);
/* A fault's turn begins: nothing is left of the one before. */
void power_begin(planted *me, const fault *f, sat_dtype t);
void power_free(planted *me);

/* The kernels. False without memory. */
bool power_matmul(const run *r);
bool power_grouped(const run *r);
bool power_grouped_weights(const run *r);
bool power_sampled(const run *r);
bool power_attention(const run *r);
bool power_gradients(const run *r);

/* The parts that kernels share. */
int64_t power_offset(const run *r, int64_t i); /* offset i, as the caller has it */
/* sums[j] += a * b[j], by how->sum. */
void power_add_row(const run *r, double *sums, double a, const double *b, int64_t n);
double power_finish(const run *r, double sum, double before, double bias);
double *power_load(const run *r, int which, int64_t z, int64_t first, int64_t rows); /* rows x cols, by how->input */
void power_store(const spot *s, int64_t row, double x);  /* element (row, s->j) of item z of output s->which */
sat_status power_poke(run *r, char *address, int value); /* a byte of the device's memory; < 0: changes a bit of it */
sat_status power_peek(run *r, void *to, const void *address, size_t bytes);

/* The pattern and problem of a fault's race. */
bool power_scene(sat_context *context, const fault *f, sat_operation op, sat_dtype t, int64_t depth,
                 sat_pattern **pattern, sat_problem *p);

int power_main(int argc, char **argv);

static inline double to_bits(double x, int bits) { /* nearest with so many bits, whatever its exponent */
    double c = x * ((double)((int64_t)1 << (53 - bits)) + 1);
    return isfinite(c) ? c - (c - x) : x;
}

#endif
