/* What core knows of an operation: its operands, sizes, and how its results are checked. One file an operation. */
#ifndef SAT_OP_H
#define SAT_OP_H

#include "base/status.h"
#include "variant.h"

/* One operand of a normalised problem. Element (i, j) of batch item z is base[z*batch + i*row + j*col]; where rows come
 * in groups (heads), row i is the (i % group)th of group i / group, and groups are group_stride apart. */
typedef struct sat_operand {
    const char *name; /* as messages call it; NULL: the problem lacks it, and its place alone is kept */
    sat_dtype dtype;
    bool output;
    bool values;   /* block values: rows = stored blocks * block rows, cols = block columns */
    uint8_t index; /* it is one column of indices, of so many bytes, and has no dtype; 0: it has elements */
    int64_t rows, cols, batch;
    sat_layout layout;
    int64_t group, group_stride; /* group 0: rows are not grouped */
    uint32_t align;
    int64_t span; /* elements from the first to just past the last, over the batch */
} sat_operand;

SAT_BOTH static inline int64_t sat_operand_at(const sat_operand *o, int64_t z, int64_t i, int64_t j) {
    int64_t at = z * o->layout.batch_stride + j * o->layout.col_stride;
    if (o->group) return at + i / o->group * o->group_stride + i % o->group * o->layout.row_stride;
    return at + i * o->layout.row_stride;
}

/* The place of an optional operand that the problem lacks, where others follow it. */
static inline sat_operand sat_operand_absent(void) { return (sat_operand){.dtype = SAT_F32, .align = 4}; }

/* Bytes of an element, or of an index. */
static inline size_t sat_operand_size(const sat_operand *o) { return o->index ? o->index : sat_dtype_size(o->dtype); }

/* How a made-up operand looks. The integers are for the structure probe, whose sums must be exact. */
typedef struct sat_fill {
    double scale;   /* a power of two where the operand has integers */
    double most;    /* integers up to this, times scale; 0: random reals in [-scale, scale] */
    bool wide;      /* only odd integers from most/2 on, so that a narrower type shows */
    unsigned zeros; /* of integers: so many of 65536 elements are zero */
    /* By place: offset + slope*row is added, with rows counted from the start of their group. */
    double offset, slope;
    bool rank_one;       /* one number per row, times +1 or -1 per column */
    bool finite_padding; /* what no element reaches is a large number, not NaN */
} sat_fill;

/* The byte that padding, gaps and guards are made of. All bits set is NaN in every dtype; but a sum that takes in such
 * a NaN may be the same NaN, and would not show in the gaps of an output, which are made of it too. */
SAT_BOTH static inline int sat_padding_byte(const sat_fill *f) { return f->finite_padding ? 0x7b : 0xff; }

/* A number that is not finite, planted at (row, col) of one batch item of an input. */
typedef struct sat_special {
    int operand;
    int64_t item, row, col;
    double value;
} sat_special;

enum { SAT_MAX_SPECIALS = 6 };

/* A run on made-up operands, to be checked. */
typedef struct sat_trial {
    const sat_device *device;
    const sat_problem *problem;
    const sat_pattern_view *pattern;
    void *const *operands;
    const sat_fill *fills; /* of the operands */
    int fill_case;         /* of the fill */
    const void *before;    /* what the output held before the run; NULL where beta is 0 */
    const void *sums; /* structure: the bare sums, as op->sums_problem() describes them; NULL until they are there */
    const sat_special *specials; /* structure: planted in the inputs after the sums were worked out */
    int special_count;
} sat_trial;

typedef enum sat_probe {
    SAT_PROBE_STRUCTURE = 0, /* integers: every element is known to the last bit; attention: within a tolerance */
    SAT_PROBE_PRECISION = 1  /* random reals: some lines of the output, each element within what rounding does */
} sat_probe;

typedef struct sat_finding {
    bool ok;
    double error;    /* largest |difference| over the magnitude of what was summed; structure: 0 */
    char where[224]; /* where and how much, when not ok */
    double share;    /* precision: the largest |difference| over what rounding allows it */
    double rms;      /* precision: of the differences, over what is predicted; 0: not looked at */
} sat_finding;

/* How a backend checks one operation's results, in higher precision than the variants compute. */
typedef struct sat_checker {
    size_t (*bytes)(const sat_problem *p, const sat_pattern_view *a, sat_probe probe); /* memory an expectation takes */
    /* Once per fill: what any right result must show, and the rounding that it may. */
    sat_status (*expect)(const sat_trial *t, sat_probe probe, uint64_t seed, void **expectation);
    /* Per run: reads the output only. */
    sat_status (*compare)(const sat_trial *t, const void *expectation, sat_finding *finding);
    void (*free)(void *expectation);
    /* Structure: checks t->sums with a random vector, in exact arithmetic modulo 2^64. NULL: there are no sums. */
    sat_status (*prove)(const sat_trial *t, uint64_t seed, sat_finding *finding);
} sat_checker;

/* Operands of another kind, which a winner is checked on. */
typedef struct sat_check_case {
    sat_probe probe;
    int fill_case;
    const char *label; /* what is different about them, for messages; NULL ends a list */
} sat_check_case;

/* An operation's own fields of a key, in three places of the line. */
typedef struct sat_key_fields {
    char form[8];      /* "t=0" or "t=1": the transposed matrix, or not */
    char epilogue[32]; /* what follows the sums: "bias=0 act=none" */
    char more[200];    /* all others, each after a space; may be "" */
    double skew;       /* of the pattern's rows, or of its columns where the operation is transposed */
} sat_key_fields;

typedef struct sat_op {
    sat_operation id;
    const char *name;
    size_t part_bytes;                                        /* of its own part of a problem; 0: it has none */
    bool (*same)(const sat_problem *x, const sat_problem *y); /* does that part agree? NULL: it has none */
    int output;               /* which operand is written; where there are several, the first */
    const char *const *names; /* of the operands, as messages call them; NULL at the end */
    const char
        *aligns; /* of each operand: 'a', 'b', 'c': the problem's a_align, b_align, c_align; '-': the element's size */
    /* Checks a caller's problem against the pattern and fills in every size, stride, dtype and alignment. */
    sat_status (*normalise)(sat_problem *p, const sat_pattern_view *a);
    int (*operands)(const sat_problem *p, const sat_pattern_view *a, sat_operand *out); /* how many */
    double (*flops)(const sat_problem *p, const sat_pattern_view *a);
    double (*bytes)(const sat_problem *p, const sat_pattern_view *a);
    /* The same problem without scalars, bias, activation and gaps, its output in the compute type: the bare sums. NULL:
     * the structure probe needs none. */
    sat_problem (*sums_problem)(const sat_problem *p, const sat_pattern_view *a);
    /* Sets the fills of all operands: for every case of the structure probe, and for the precision probe from case 1 on
     * (case 0 is random reals). Cases differ in which factor is wide and in their scales. */
    void (*set_fills)(const sat_problem *p, const sat_pattern_view *a, int fill_case, sat_fill *fills);
    /* The fills of random reals, case 0 of the precision probe, where numbers in [-1, 1] would not show something that
     * the problem asks for. NULL: they do. */
    void (*set_real_fills)(const sat_problem *p, sat_fill *fills);
    /* Formats this operation's own fields of the key, or of the full key. */
    void (*set_key_fields)(const sat_problem *p, const sat_pattern_view *a, bool full, sat_key_fields *fields);
    bool without_pattern; /* callers give NULL */
    bool takes_dynamic;   /* patterns whose indices change between runs */
    bool takes_masks;     /* as masks: several, padded ones, and without values that a block's place would count for */
    /* The rest may be NULL, as `sums_problem` may. */
    /* Operands of indices: made up for a case of a probe, `count` of them; where a run's operands break their rules, in
     * memory that the host reads, what is wrong. NULL: there are none. */
    void (*make_indices)(const sat_problem *p, sat_probe probe, int fill_case, uint64_t seed, int64_t *to);
    sat_status (*check_indices)(const sat_problem *p, void *const *operands);
    /* Do variants need the transposed index of the pattern? Asked before normalising, too. NULL: none does. */
    bool (*needs_columns)(const sat_problem *p);
    /* One-call forms: the optional operands of the problem, by which pointers are given. */
    sat_status (*from_call)(sat_problem *p, void *const *operands);
    sat_problem (*representative)(const sat_problem *p); /* instead of sat_representative_scalars */
    /* Gradients: the forward problem, whose operands are some of this one's, by name. It is run first, since its
     * outputs are inputs here and cannot be made up. */
    sat_problem (*forward_problem)(const sat_problem *p);
    /* Where to plant numbers that are not finite, at most SAT_MAX_SPECIALS; how many. The fills and the seed are those
     * of the operands, so that a place can be found where an infinity meets a zero. */
    int (*specials)(const sat_problem *p, const sat_pattern_view *a, const sat_fill *fills, uint64_t seed,
                    sat_special *out);
    const sat_checker *host_checker;
    /* What a winner is checked on; NULL: large and tiny integers, and those again with other scalars. */
    const sat_check_case *winner_cases;
    const sat_check_case *other_scale;   /* with another alpha, where the sums depend on it (attention) */
    const sat_check_case *other_pattern; /* on another pattern; NULL: tiny integers */
} sat_op;

extern const sat_op sat_op_matmul, sat_op_sampled, sat_op_attention, sat_op_attention_backward, sat_op_grouped,
    sat_op_grouped_weights;

const sat_op *sat_op_find(sat_operation id); /* NULL if unknown */

/* Do two problems agree in every field, those of their operation's part included? */
bool sat_problem_same(const sat_problem *x, const sat_problem *y);
/* A caller's problem, of whatever size, with all that this version knows of it; refused where more is set. */
sat_status sat_problem_take(sat_problem *to, const sat_problem *from);
/* `set_key_fields` for what all operations share: everything but `more`; and all of it for a product of matrices. */
void sat_set_common_key_fields(const sat_matmul *m, const sat_pattern_view *a, sat_key_fields *fields);
void sat_set_product_key_fields(const sat_problem *p, const sat_pattern_view *a, bool full, sat_key_fields *fields);
void sat_format_strides(const sat_problem *p, char *text, size_t size); /* of a, b, c; after a space */

/* Integer operands whose sums of `depth` products are exact. Cases 0 and 1 differ in which factor is wide; 2 has large
 * numbers, 3 tiny ones. */
enum { SAT_FILL_LARGE = 2, SAT_FILL_TINY = 3 };
double sat_exact_widest(const sat_problem *p); /* integers: exact in this dtype, and in no narrower one */
void sat_exact_fills(const sat_problem *p, int64_t depth, int fill_case, sat_fill *a, sat_fill *b, sat_fill *rest);

/* Adds one to the list, +Inf, -Inf and NaN in turn, unless something is planted there already; returns how many there
 * are then. */
int sat_special_add(sat_special *list, int count, int operand, int64_t row, int64_t col);
/* The seed of operand i, of those that sat_bench_fill makes from one. */
static inline uint64_t sat_operand_seed(uint64_t seed, int i) { return seed + (uint64_t)i * 7919; }
/* Are a problem's results known where its inputs are not finite? Not where an activation follows (what it
 * makes of them is not promised), alpha is 0, or an input repeats its elements. */
bool sat_specials_show(const sat_problem *p, const sat_operand *inputs, int count);

/* Shared by the operations. */
sat_status sat_normalise_common(sat_problem *p); /* enums, dtypes, batch, alpha, beta */
sat_status sat_normalise_layout(sat_layout *l, int64_t rows, int64_t cols, int64_t batch, bool output,
                                const char *name);
/* A dense input's layout. A stride of 0 that repeats a row or column is refused unless the problem asks for it. */
sat_status sat_normalise_input(sat_layout *l, const sat_problem *p, int64_t rows, int64_t cols, const char *name);
sat_status sat_check_broadcast(const sat_problem *p, int64_t stride, int64_t count, const char *name, const char *which,
                               const char *what);
sat_status sat_normalise_values(sat_layout *l, const sat_pattern_view *a, int64_t batch, bool output, const char *name);
sat_status sat_normalise_align(uint32_t *align, sat_dtype t, const char *name);
sat_status sat_normalise_size(int64_t *given, int64_t expected, const char *name); /* 0, or what the pattern gives */
/* A stride along at most one element leads nowhere and may be any number. One that is larger than any memory becomes 1,
 * so that a kernel may step past the last element without overflow. */
void sat_bound_stride(int64_t *stride, int64_t extent);
int64_t sat_layout_span(const sat_layout *l, int64_t rows, int64_t cols, int64_t batch); /* -1: overflows */
/* The same for any number of extents and strides, and whether all elements have places of their own. */
int64_t sat_strides_span(const int64_t *extent, const int64_t *stride, int count);
bool sat_strides_distinct(const int64_t *extent, const int64_t *stride, int count);

#endif
