/*
 * sparse_autotune: block-sparse matrix products that are right, and as fast as this machine allows.
 *
 * This header is the whole interface and its manual.
 *
 * A *pattern* says where the stored blocks of a BSR matrix are. A *problem* says what to do with them. Making a
 * *plan* from both races every implementation (*variant*) that fits, checks each one's result, times the right
 * ones, remembers all of it in a cache, and keeps the winner. Running the plan then is a bare function call.
 *
 *     sat_context *ctx;   sat_context_create(NULL, &ctx);
 *     sat_pattern *pat;   sat_pattern_create(ctx, &(sat_bsr){SAT_SIZED(sat_bsr), .rows = 4096, ...}, &pat);
 *     sat_problem  p = {SAT_SIZED(sat_problem)};
 *     sat_problem_matmul(&p, SAT_F32, 4096);                        // C = A*B, 4096 columns, row-major
 *     sat_plan    *plan;  sat_plan_create(ctx, pat, &p, &plan);     // tunes once; later runs find the answer
 *     sat_run(plan, (const void *[]){values, B}, 2, (void *[]){C}, 1, NULL);
 *
 * C++ has no compound literals: name the struct and the two arrays, as the README's program does. SAT_SIZED needs
 * C++20; before that write `sat_bsr a = {}; a.size = sizeof a; a.rows = 4096; ...`.
 *
 * Every function that can fail returns a sat_status; sat_last_error() gives the calling thread's message, which
 * names the argument, its value and what was expected. Nothing here exits, throws or forks, or prints unless
 * $SPARSE_AUTOTUNE_LOG asks for it. Contexts and patterns may be shared between threads; a plan serves one caller at a
 * time, and on a GPU one stream, or streams that the caller puts in order (sat_plan_dup is cheap).
 * Every ..._free accepts NULL.
 *
 * How it grows. A caller that was built with an older header runs with a newer library: values of enums are never
 * changed; structs begin with their size and grow at their end, a problem's parts within the room that is left for
 * them, sat_layout and sat_heads never. Every struct is zeroed first, then its size set, then what differs from 0:
 * {SAT_SIZED(sat_bsr), .rows = ...}. A field that this library does not know and that is not 0 is refused, never
 * ignored. A caller that was built with a newer header than the library's reads a field of a struct that the library
 * wrote or lent only if the field is within that struct's `size`.
 */
#ifndef SPARSE_AUTOTUNE_H
#define SPARSE_AUTOTUNE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAT_VERSION_MAJOR 0
#define SAT_VERSION_MINOR 1
#define SAT_VERSION_PATCH 0

#if defined(SAT_STATIC)
#define SAT_API
#else
#define SAT_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Status ------------------------------------------------------------------------------------------------ */

/* Pinned: a value never changes its meaning. */
typedef enum sat_status {
    SAT_OK = 0,
    SAT_NULL_POINTER = 1,   /* a required pointer is NULL */
    SAT_MISALIGNED = 2,     /* a pointer is less aligned than its problem says, or than its dtype needs */
    SAT_BAD_SIZE = 3,       /* a size or a count is negative, not what it must be, or its products overflow */
    SAT_BAD_STRIDE = 4,     /* a stride is negative, 0 unasked, or makes elements of an output coincide */
    SAT_OVERLAP = 5,        /* an output overlaps another operand */
    SAT_BAD_ENUM = 6,       /* a value that its enum does not list */
    SAT_BAD_STRUCT = 7,     /* a struct's size is of no version, or a field is set that this version does not know */
    SAT_BAD_ROW_PTR = 8,    /* row pointers, or offsets, do not start at 0, decrease, or end elsewhere */
    SAT_COLUMN_RANGE = 9,   /* a block column index is outside the matrix */
    SAT_COLUMN_ORDER = 10,  /* block columns of a row are unsorted or repeated */
    SAT_BAD_BLOCK = 11,     /* a block side below 1 */
    SAT_UNSUPPORTED = 12,   /* a combination this header does not list */
    SAT_OUT_OF_MEMORY = 13, /* memory ran out, or a context's memory limit was reached */
    SAT_NOT_FOUND = 14,     /* no such variant, device or cache entry */
    SAT_IO = 15,            /* a file could not be read or written */
    SAT_BAD_FORMAT = 16,    /* a file's content is not what it should be */
    SAT_DEVICE_ERROR = 17,  /* the device or its driver failed */
    SAT_LIBRARY_ERROR = 18, /* an official library reported a failure */
    SAT_WRONG_RESULT = 19,  /* a variant's result failed its check */
    SAT_WRONG_MEMORY = 20,  /* a pointer to memory that this context's device cannot use */
    SAT_DUPLICATE = 21,     /* a variant of that name is registered already */
    SAT_CANCELLED = 22,     /* the caller's progress function stopped the race */
    SAT_BUSY = 23,          /* another thread runs this plan; or another thread or process tunes this device, or holds
                               the cache's lock, for too long (sat_race_run, sat_context_measure_rates, sat_cache_clear) */
    SAT_INTERNAL = 99       /* a defect of this library */
} sat_status;

SAT_API const char *sat_status_name(sat_status status); /* "SAT_BAD_SIZE"; never NULL */
SAT_API const char *sat_last_error(void);               /* this thread's last message; "" before any; never NULL */
SAT_API const char *sat_version(void);                  /* "0.1.0" */

/* ---- Vocabulary -------------------------------------------------------------------------------------------- */

typedef enum sat_dtype { SAT_F32 = 1, SAT_F64 = 2, SAT_F16 = 3, SAT_BF16 = 4 } sat_dtype;
typedef enum sat_index_type { SAT_I32 = 1, SAT_I64 = 2 } sat_index_type;

/*
 *                                                                   inputs               outputs
 *   matmul         C = act(alpha*op(A)*B + beta*C + bias)           values, B[, bias]    C             A block-sparse
 *   sampled        S = alpha*(X*Y at the stored blocks) + beta*S    X, Y                 values of S
 *   attention      O = softmax(alpha*Q*K^T where kept)*V            Q, K, V[, sinks]     O[, LSE]
 *   its gradients                        Q, K, V, O, LSE, dO[, sinks]                    dQ, dK, dV[, dsinks]
 *   grouped        Y = act(alpha*X*W[group] + beta*Y + bias[group]) X, W, offsets[, b]   Y             rows in groups
 *   its weights    W[group] = alpha*X^T*Z + beta*W[group]           X, Z, offsets        W
 */
typedef enum sat_operation {
    SAT_MATMUL = 1,
    SAT_SAMPLED = 2,
    SAT_ATTENTION = 3,
    SAT_ATTENTION_BACKWARD = 4,
    SAT_GROUPED = 5,
    SAT_GROUPED_WEIGHTS = 6
} sat_operation;

typedef enum sat_transpose { SAT_NO_TRANSPOSE = 0, SAT_TRANSPOSE = 1 } sat_transpose;

typedef enum sat_activation {
    SAT_ACT_NONE = 0,
    SAT_ACT_RELU = 1,
    SAT_ACT_GELU = 2, /* x/2 * (1 + erf(x/sqrt 2)) */
    SAT_ACT_SILU = 3  /* x / (1 + exp(-x)) */
} sat_activation;

typedef enum sat_bias {
    SAT_BIAS_NONE = 0,
    SAT_BIAS_ROW = 1 /* one value of C's dtype for each row of C (each output feature of W*x) */
} sat_bias;

/* How much may be spent to answer a problem that the cache does not know. */
typedef enum sat_effort {
    SAT_EFFORT_DEFAULT = 0, /* $SPARSE_AUTOTUNE (off, cached, quick, full, pinned), else quick */
    SAT_EFFORT_OFF = 1,     /* the estimate decides; the cache is neither read nor written */
    SAT_EFFORT_CACHED = 2,  /* the cache, else the estimate; the miss is noted for a later `sparse_autotune tune` */
    SAT_EFFORT_QUICK = 3,   /* the cache, else a race of about a second */
    SAT_EFFORT_FULL = 4,    /* the cache, else a race of about ten seconds that skips no variant */
    /* The cache's winner and nothing else, so that every run gives the same bits: a problem that the cache does not
     * know fails with SAT_NOT_FOUND, and is noted as under SAT_EFFORT_CACHED. No race of the context is remembered. */
    SAT_EFFORT_PINNED = 5
} sat_effort;

typedef enum sat_measure {
    SAT_MEASURE_COLD = 0, /* operands out of the processor's caches before each run */
    SAT_MEASURE_WARM = 1  /* back to back */
} sat_measure;

/* Problem flags. */
enum {
    SAT_ALLOW_TF32 = 1u << 0,             /* f32 products may round their inputs to TF32 */
    SAT_ALLOW_NONDETERMINISTIC = 1u << 1, /* variants whose result depends on timing (atomics) may take part */
    SAT_ALLOW_DENSE = 1u << 2,    /* bare dense products may win too: their result differs where B has Inf or NaN */
    SAT_FIXED_VALUES = 1u << 3,   /* values stay as they are between sat_plan_refresh calls (inference) */
    SAT_ALLOW_BROADCAST = 1u << 4 /* an input's stride of 0 is meant: one row, column or head is broadcast */
};

/* The first field of a struct that can grow. */
#define SAT_SIZED(type) .size = sizeof(type)

/* ---- Device ------------------------------------------------------------------------------------------------ */

typedef enum sat_backend_kind { SAT_CPU = 1, SAT_CUDA = 2 } sat_backend_kind;

/* Instruction sets of a CPU device, as found at run time. */
enum {
    SAT_ISA_AVX2 = 1u << 0,   /* AVX2, FMA and F16C */
    SAT_ISA_AVX512 = 1u << 1, /* AVX-512 F, BW, DQ and VL */
    SAT_ISA_AVX512_BF16 = 1u << 2,
    SAT_ISA_AMX_BF16 = 1u << 3 /* and the kernel lets this process use the tiles */
};

typedef struct sat_device {
    size_t size;
    sat_backend_kind backend;
    int index;
    char name[128];                       /* "AMD EPYC (2 cores, AVX-512)" */
    char identity[192];                   /* what timings depend on: model, ISA or SMs, driver; the cache's folder */
    uint32_t isa;                         /* CPU: SAT_ISA_* */
    int threads;                          /* CPU: threads a run uses; 0 on CUDA */
    int multiprocessors;                  /* CUDA: those that a run is planned for; 0 on a CPU */
    int capability;                       /* CUDA: 90 for sm_90 */
    int64_t l1_bytes, l2_bytes, l3_bytes; /* CPU: L1 and L2 of a core, L3 in all */
    int64_t memory_bytes;
    /* Rates, for estimates: bytes a second, and operations a second with a multiply-add counted as two, by all threads
     * or multiprocessors. Nominal, until `measured`. */
    double memory_rate;
    double flop_rate[32]; /* by sat_dtype; 0 where there is no such dtype; that of f32 is without TF32 */
    double l2_rate;       /* CUDA: bytes a second that multiprocessors read from L2; 0 on a CPU */
    double tf32_rate;     /* f32 with inputs rounded to TF32; on a CPU that of f32 */
    bool measured;        /* the rates were measured on this machine, now or once before (sat_context_measure_rates) */
    int64_t shared_bytes; /* CUDA: shared memory that one block may ask for */
    int driver;           /* CUDA: the driver's version, 13000 for 13.0 */
} sat_device;

/* ---- Context ----------------------------------------------------------------------------------------------- */

typedef struct sat_context sat_context;

typedef enum sat_log_level { SAT_LOG_ERROR = 1, SAT_LOG_WARN = 2, SAT_LOG_INFO = 3, SAT_LOG_DEBUG = 4 } sat_log_level;
typedef void (*sat_log_fn)(void *user, sat_log_level level, const char *message);

/* Where the library takes device memory from. `alignment` is a power of two. */
typedef struct sat_allocator {
    size_t size;
    void *(*alloc)(void *user, size_t bytes, size_t alignment);
    void (*free)(void *user, void *pointer);
    void *user;
} sat_allocator;

typedef struct sat_context_options {
    size_t size;
    const char *device;    /* "cpu", "cuda", "cuda:1"; NULL: $SPARSE_AUTOTUNE_DEVICE, else the best found: a GPU where
                              there is one that works. Operands are in memory of this device: for arrays of the
                              host say "cpu" */
    const char *cache_dir; /* NULL: $SPARSE_AUTOTUNE_CACHE, else the user's cache folder; "": memory only.
                              Several folders, separated by ':', are layers: the first is written, all are read.
                              One that another user may write is neither */
    sat_effort effort;
    sat_measure measure;
    int threads;           /* CPU: threads; 0: OpenMP's at each call */
    int multiprocessors;   /* CUDA: those to plan for; 0: all */
    bool background;       /* a miss is served by the estimate while a thread of the library tunes it, and a new
                              pattern of a verified problem while that thread checks it */
    double budget_seconds; /* a race's time limit; 0: the effort's own */
    size_t memory_limit;   /* bytes for workspace and tuning together; 0: half of what the device has free */
    const sat_allocator *allocator; /* NULL: the backend's own; else copied */
    sat_log_fn log; /* NULL: silent, unless $SPARSE_AUTOTUNE_LOG (error, warn, info, debug) sends it to stderr */
    void *log_user;
} sat_context_options;

/* Options NULL: defaults. The device then is a GPU where there is one, and a run refuses plain host memory there
 * (SAT_WRONG_MEMORY); sat_context_device says which it is, sat_memory_alloc gives memory of it. */
SAT_API sat_status sat_context_create(const sat_context_options *options, sat_context **context);
SAT_API void sat_context_free(sat_context *context); /* after its plans; patterns may outlive it */
/* Valid as long as the context. Rates that are measured later show in what a later call returns. */
SAT_API const sat_device *sat_context_device(const sat_context *context);
/* What the context may spend on a problem. SAT_EFFORT_DEFAULT has become what the environment says, or quick. */
SAT_API sat_effort sat_context_effort(const sat_context *context);
/* What the environment asks for and the context does not do, "" where there is nothing of the kind: an effort that is
 * no effort ($SPARSE_AUTOTUNE), a variant of this backend that is not registered now ($SPARSE_AUTOTUNE_FORCE). A text
 * that is longer than capacity is cut. The log gets the same. */
SAT_API sat_status sat_context_ignored(const sat_context *context, char *text, size_t capacity);
/* Measures the device's rates now, and keeps them in the cache for every later context on it. The first race on a
 * device does this by itself. SAT_UNSUPPORTED on a CPU, whose rates stay nominal. */
SAT_API sat_status sat_context_measure_rates(sat_context *context);

/* Ranks of one job that run the same variants. Where ranks tune by themselves they may choose differently, and then
 * their results differ in the last bits and each pays for every race. With an agreement each key is tuned by one of the
 * ranks with equal devices and builds, which share the keys, and the first answer that a rank stores is that of all: a
 * race's winner, a cached one, or what a rank estimated that had waited for too long. Every rank verifies the variant
 * on its own device. No rank waits for another beyond `wait_seconds` a key, be that one late, dead or of another kind;
 * and ranks exchange nothing but texts below SAT_AGREED_SIZE bytes.
 *
 * The store is the caller's: torch.distributed's, MPI's, or a folder (sat_agreement_folder). Both functions may be
 * called from several threads at once. They write the value that the key has then, closed by a zero, and give
 * SAT_NOT_FOUND where it has none. Any other failure is logged, and the rank then decides by itself. */
enum { SAT_AGREED_SIZE = 256 };

typedef struct sat_agreement {
    size_t size;
    int rank, world;
    double wait_seconds; /* 0: 60 */
    /* Waits for a value up to so many seconds; 0: looks whether there is one. */
    sat_status (*get)(void *user, const char *key, double seconds, char value[SAT_AGREED_SIZE]);
    /* Stores `desired`, unless the key has a value already. */
    sat_status (*put)(void *user, const char *key, const char *desired, char value[SAT_AGREED_SIZE]);
    void *user; /* outlives the context */
} sat_agreement;

/* From here on plans of this context agree with the other ranks'. To be called before any plan is made, on every rank;
 * a context agrees once. Not with a background thread, and of no effect under SAT_EFFORT_OFF and SAT_EFFORT_PINNED. */
SAT_API sat_status sat_context_agree(sat_context *context, const sat_agreement *agreement);
/* An agreement by a folder that all ranks see, on NFS too, made where it is not there; one folder a job. Free it after
 * its contexts. */
SAT_API sat_status sat_agreement_folder(const char *folder, int rank, int world, sat_agreement *agreement);
SAT_API void sat_agreement_folder_free(sat_agreement *agreement);

/* Blocks until the background thread has nothing left to tune or to check. */
SAT_API sat_status sat_context_wait(sat_context *context);

/* Memory of the context's device, for callers who have no other way to it. What a run wrote is there to read after
 * sat_stream_wait. On a CPU this is plain memory, and there is nothing to wait for. */
SAT_API sat_status sat_memory_alloc(sat_context *context, size_t bytes, void **pointer);
SAT_API void sat_memory_free(sat_context *context, void *pointer);
SAT_API sat_status sat_memory_write(sat_context *context, void *to, const void *host, size_t bytes);
SAT_API sat_status sat_memory_read(sat_context *context, void *host, const void *from, size_t bytes);
SAT_API sat_status sat_stream_wait(sat_context *context, void *stream); /* until all that was queued on it is done */

/* ---- Pattern ----------------------------------------------------------------------------------------------- */

/* The indices of a BSR matrix, zero-based. Rows and columns need not be multiples of the block: the last blocks are
 * stored whole, and what is beyond the matrix is ignored on reading and written as zero by the sampled product. */
typedef struct sat_bsr {
    size_t size;
    int64_t rows, cols;
    int64_t block_rows, block_cols; /* the shape of one block */
    int64_t stored_blocks;
    sat_index_type index_type;
    const void *row_ptr; /* ceil(rows/block_rows) + 1 entries: 0 first, never decreasing, stored_blocks last */
    const void *col_idx; /* stored_blocks entries: strictly increasing within a row; NULL when there are none */
    /* A mask of attention over packed sequences; `sequences` 0: there is one. Both arrays have sequences + 1 entries:
     * 0 first, never decreasing, the length of all queries or of all keys last. */
    int64_t sequences;
    const int64_t *q_offsets;
    const int64_t *kv_offsets; /* NULL: the same as q_offsets */
} sat_bsr;

typedef struct sat_pattern sat_pattern;

/* Validates and copies the indices; the caller's arrays are not needed afterwards. At most 2^31-1 block rows/columns.
 */
SAT_API sat_status sat_pattern_create(sat_context *context, const sat_bsr *indices, sat_pattern **pattern);
SAT_API void sat_pattern_free(sat_pattern *pattern); /* safe while plans made from it live */

/* Indices that change: a mask that is new at every step, a matrix that is pruned as it is trained. They stay where they
 * are, in memory of the context's device, and anybody's kernels may rewrite them between runs, in a CUDA graph too. A
 * run takes them as they are when it comes to be: it validates them into a copy that the plan owns, makes the
 * transposed index from that where the problem needs it, and multiplies; nothing passes through the host, nothing
 * waits. Values have room for `capacity` blocks, and a block's place among them is that of its column in col_idx.
 *
 * Attention takes such a pattern as its mask, or as several: one for each batch item, each head or both (mask_batch,
 * mask_heads). Mask (b, h) has block rows (b*mask_heads + h)*ceil(rows/block_rows) and on, with b or h 0 where all
 * share one. Its indices may be padded instead of compressed (row_counts, row_stride), as FlexAttention's BlockMask has
 * them in kv_num_blocks and kv_indices. Several masks, and padded ones, are for attention alone.
 *
 * The hints say what to tune for. Patterns of one shape, capacity and hints share a plan's key, so that a new mask is a
 * hit and not a race; a variant that serves one was checked on empty, full, uneven and faulty masks.
 *
 * Indices that break the rules are never followed out of bounds. A block row whose columns are out of range, unsorted
 * or repeated is empty, and so is one whose count is below 0 or above row_stride. So is the first row whose row
 * pointers do not begin with 0, decrease or go beyond the capacity, and all rows after it, of all masks. The product of
 * an empty row is zero; the sampled product writes zeros into every block that no row has, up to the capacity; a query
 * of an empty row keeps nothing. A run that sees a fault returns SAT_BAD_ROW_PTR, SAT_COLUMN_RANGE or SAT_COLUMN_ORDER,
 * its outputs written: on a CPU the run that had it, on a GPU, where no run waits, perhaps a later one of the same
 * plan. Each fault is returned once, by such a run or by sat_pattern_fault. A run whose output has no elements reads
 * nothing. */
typedef struct sat_dynamic_bsr {
    size_t size;
    int64_t rows, cols;
    int64_t block_rows, block_cols;
    int64_t capacity; /* most blocks that will be stored, by all masks together; at most as many as there are */
    sat_index_type index_type;
    const void *row_ptr; /* one entry more than block rows, of all masks; the last is the number of stored blocks, */
    const void *col_idx; /* of which col_idx, with room for `capacity` entries, has the columns. NULL, both: each run
                            brings its own, see sat_run */
    double density;      /* expected: stored blocks over all blocks; 0: the capacity is used up */
    double skew;         /* expected: the heaviest row's blocks over the mean of the rows; 0: 2 */
    /* Attention alone. */
    int64_t mask_batch, mask_heads; /* 0 or 1: all batch items, or all heads, share a mask; else as many as there are */
    /* Not NULL: padded, and row_ptr is NULL, capacity 0. The number of blocks of each block row, of all masks; the
     * columns of row i begin at col_idx[i*row_stride], and what stands behind them up to the next row is ignored. */
    const void *row_counts;
    int64_t row_stride;
} sat_dynamic_bsr;

/* Only the pointers are read. They must be valid whenever a plan of the pattern runs, and while a graph may be launched
 * that holds such a run. Plans of one pattern may serve many matrices, whose runs bring their own indices (sat_run); a
 * fault may then be that of another matrix. For products and sampled products, and on a CPU for attention and its
 * gradients. */
SAT_API sat_status sat_pattern_create_dynamic(sat_context *context, const sat_dynamic_bsr *indices,
                                              sat_pattern **pattern);
/* Returns the fault of a run on this pattern that no run has returned yet; SAT_OK where there is none. `wait`: first
 * for everything that is queued on the device. Without, it sees the runs that are done. */
SAT_API sat_status sat_pattern_fault(const sat_pattern *pattern, bool wait);

typedef struct sat_dynamic sat_dynamic; /* the library's own */

/* What a pattern looks like: the library's own copy, valid as long as the pattern. This is what variants read. */
typedef struct sat_pattern_view {
    size_t size;
    int64_t rows, cols, block_rows, block_cols;
    int64_t grid_rows, grid_cols; /* block rows and block columns, rounded up */
    int64_t stored_blocks;
    int64_t stored_elements; /* inside the matrix: less what the last blocks hold beyond it */
    const int64_t *row_ptr;
    const int32_t *col_idx;
    /* The same blocks by column, sorted by row; NULL until a plan needs it (sat_pattern_get makes it). */
    const int64_t *t_ptr;   /* grid_cols + 1 */
    const int32_t *t_row;   /* block row of each */
    const int64_t *t_block; /* its place among the stored values */
    /* The same five arrays where the device reads them: copies on a GPU, the very same pointers on a CPU. */
    const int64_t *device_row_ptr;
    const int32_t *device_col_idx;
    const int64_t *device_t_ptr;
    const int32_t *device_t_row;
    const int64_t *device_t_block;
    /* Statistics. */
    double density; /* stored blocks over all blocks */
    double skew;    /* the heaviest row's blocks over the mean of the rows; 0 when nothing is stored */
    double t_skew;  /* the same of columns */
    double overlap; /* share of a row's block columns that the next row has too, on average */
    int64_t max_row, max_col, empty_rows;
    /* Packed sequences; NULL where there are none. */
    int64_t sequences;
    const int64_t *q_offsets, *kv_offsets;
    const int64_t *device_q_offsets, *device_kv_offsets;
    /* Row i has the blocks row_ptr[i] to row_end[i] - 1. Where indices stay as they are row_end is row_ptr + 1. */
    const int64_t *row_end;
    const int64_t *device_row_end;
    /* Not NULL: the indices change between runs (sat_dynamic_bsr). Then stored_blocks is the capacity, max_row and
     * max_col are the most there can be, all other statistics are expected. The arrays are there in `prepare`, where
     * only their addresses count, and in `launch`; on a GPU those of the host are NULL. row_ptr never decreases, and
     * row_ptr[grid_rows] says how many blocks are stored; a faulty row ends where it begins. Every column is one of the
     * matrix, also where no row has it. For attention, which has no values, rows follow one another without gaps. */
    const sat_dynamic *dynamic;
    /* Where indices change: how many batch items and heads have a mask of their own, 1 where all share one, and the
     * rows of one mask. `rows` then is that, or of several masks the whole blocks of all. Else 0, all three. */
    int64_t mask_batch, mask_heads, mask_rows;
} sat_pattern_view;

SAT_API sat_status sat_pattern_get(const sat_pattern *pattern, sat_pattern_view *view); /* set view->size first */

/* ---- Problem ----------------------------------------------------------------------------------------------- */

/* Distances in elements between neighbours in memory. row_stride 1 is column-major, col_stride 1 row-major; any
 * positive strides are right, those two are fast. An output's elements may not share a place: the larger stride
 * must reach past all that the smaller one spans. batch_stride 0 means that all of a batch share the operand.
 * For the operand that holds block values (each block row-major, contiguous) only batch_stride counts.
 * row_stride = col_stride = 0 means row-major without gaps. One of them 0 where there is more than one row or column
 * is refused, since BLAS's habit of one leading dimension would otherwise repeat a column in silence: set it to 1, or
 * set SAT_ALLOW_BROADCAST where one row or column of an input is meant to be broadcast. */
typedef struct sat_layout {
    int64_t row_stride, col_stride, batch_stride;
} sat_layout;

/* Strides of an operand's heads: element (b, h, i, x) is at b*batch_stride + h*head_stride + i*row_stride + x. All 0:
 * (batch, head, row, element) without gaps. BHSD, BSHD and packed QKV are views of this kind. batch_stride 0 beside
 * others shares an input over the batch; head_stride or row_stride 0 wants SAT_ALLOW_BROADCAST, as above. */
typedef struct sat_heads {
    int64_t batch_stride, head_stride, row_stride;
} sat_heads;

/* Attention. The pattern is over the score matrix, m queries by n keys. Key j is kept for query i where the block of
 * (i, j) is stored, causal and window allow it, and both belong to the same sequence. Then i and j count from the
 * start of the sequence, and the diagonal position of query i is key i + (keys - queries of the sequence): aligned to
 * the bottom right.
 *   No mask             one stored block of m x n.
 *   One mask a head     block rows of head 0, then those of head 1, ...: heads * ceil(m/block_rows) * block_rows rows;
 *                       the problem must give m.
 *   Masks that change   sat_dynamic_bsr, which also has masks of batch items.
 *   Packed sequences    offsets in sat_bsr; the batch is 1, m and n are totals, and blocks count over all of them.
 *   Sinks               one f32 a head (-inf: none), as if each query of that head kept one more key with this score
 *                       and a value of zeros. LSE counts it: for a query that keeps nothing it is the sink. The
 *                       gradients have dsinks, one f32 a head: -exp(sink - LSE)*(dO*O), summed over queries and batch.
 *
 * A query for which nothing is kept gets zeros and, without a sink, an LSE of -inf, and adds nothing to gradients. An
 * Inf or NaN in a key or value that is not kept may still reach the result. */
typedef struct sat_attention {
    int64_t heads, kv_heads; /* heads is a multiple of kv_heads (0: as many); head h reads h / (heads/kv_heads) */
    int64_t dim;    /* elements of a head of Q and K, and of V and O unless value_dim says otherwise: 1 to 576 */
    bool causal;    /* only keys up to the query's diagonal position */
    int64_t window; /* only keys at a distance below this from that position; 0: all */
    bool lse;       /* forward: also log(sum(exp(alpha*q*k))) of each row, f32, (batch, head, row), no gaps */
    sat_heads q, k, v, o;
    sat_heads dq, dk, dv, do_; /* backward */
    int64_t value_dim;         /* elements of a head of V and O, and of their gradients: 1 to 576; 0: dim */
    double softcap;            /* scores s = alpha*q*k become softcap*tanh(s/softcap): 1e-4 to 1e6; 0: they stay */
    bool sinks;                /* an input more: a logit of each head that is weighed and has no value; see above */
} sat_attention;

/* Products of groups, as in a mixture of experts. Rows offsets[g] to offsets[g + 1] - 1 of X, and of Y or Z, are group
 * g, and meet a matrix W of their own. There is no pattern: give NULL. The offsets are an operand, groups + 1 numbers
 * in memory of the context's device, and a run takes them as they are then: m only says how many rows there may be.
 * They begin with 0, never decrease, and end at m or before. A row behind the last group belongs to none: its product
 * is zero, and it has no bias. Group g of W is at g*batch_stride; without strides W has no gaps.
 *
 * The gradient to X is SAT_GROUPED with the gradient of Y in place of X, and W's row and column stride exchanged. The
 * gradient to W is SAT_GROUPED_WEIGHTS with the gradient of Y in place of Z; that of an empty group is zero.
 *
 * Offsets that break these rules are never followed out of bounds: the group where they do and all after it are empty.
 * Where the host sees them (on a CPU) the run then returns SAT_BAD_ROW_PTR, its outputs written. */
typedef struct sat_grouped {
    int64_t groups;
    sat_index_type offset_type;
    bool bias;                 /* SAT_GROUPED: one value of C's dtype for each column, of each group: groups x n */
    sat_activation activation; /* SAT_GROUPED */
    double skew;               /* what to tune for: the rows of the largest group over their mean; 0: 2 */
} sat_grouped;

/* What a matmul has beside its sizes and layouts. */
typedef struct sat_matmul {
    sat_transpose transpose; /* op(A) */
    sat_bias bias;
    sat_activation activation;
} sat_matmul;

/*
 * dtypes listed now: a = b; c = a, or c = f32 with 16-bit a; compute f32, or f64 where a is f64 (0 picks that).
 * Attention has one dtype for all but LSE, which is f32.
 *
 *               a        b        c        sizes
 *   matmul      values   B: k x n C: m x n m, k from the pattern (swapped if transposed), n from the problem
 *   sampled     X: m x k Y: k x n values   m, n from the pattern, k from the problem
 *   attention   layouts are those of sat_attention; a_align is of all inputs, c_align of all outputs; m, n from the
 *               pattern; alpha is the scale, 0 for 1/sqrt(dim); beta is 0
 *   grouped     X: m x k W: k x n Y: m x n   m, n, k from the problem; the batch is 1
 *   its weights X: m x k Z: m x n W: k x n   the same
 */

/* What all operations have, and a part of its own for each. */
typedef struct sat_problem {
    size_t size;
    sat_operation op;
    uint32_t flags;  /* SAT_ALLOW_..., SAT_FIXED_VALUES */
    int64_t m, n, k; /* the one that the pattern does not give; the others 0 or right */
    int64_t batch;   /* 0 means 1 */
    sat_dtype a_dtype, b_dtype, c_dtype, compute_dtype;
    sat_layout a, b, c;
    uint32_t a_align, b_align, c_align; /* bytes that the pointers are multiples of; 0: the element's size */
    uint32_t reserved_align;            /* 0 */
    double alpha, beta;                 /* beta 0: the output is never read; attention's alpha 0: 1/sqrt(dim) */
    uint64_t reserved[8];               /* 0 */
    union {                             /* the room comes first, so that an initialiser clears all of it */
        uint64_t room[48];              /* what an operation does not use is 0 */
        sat_matmul matmul;              /* SAT_MATMUL */
        sat_attention attention;        /* SAT_ATTENTION, SAT_ATTENTION_BACKWARD */
        sat_grouped grouped;            /* SAT_GROUPED, SAT_GROUPED_WEIGHTS */
    };
} sat_problem;

/* These write a row-major, gapless problem with alpha 1, beta 0, one dtype throughout; change what differs. Set
 * problem->size first: no more is written. */
SAT_API sat_status sat_problem_matmul(sat_problem *problem, sat_dtype dtype, int64_t n);
SAT_API sat_status sat_problem_sampled(sat_problem *problem, sat_dtype dtype, int64_t k);
/* Scaled by 1/sqrt(dim). The gradients' problem differs from the forward one in its operation alone. */
SAT_API sat_status sat_problem_attention(sat_problem *problem, sat_dtype dtype, int64_t heads, int64_t kv_heads,
                                         int64_t dim);
SAT_API sat_status sat_problem_attention_backward(sat_problem *problem, sat_dtype dtype, int64_t heads,
                                                  int64_t kv_heads, int64_t dim);
/* With offsets of 64 bits. The problem of the weights differs in its operation alone. */
SAT_API sat_status sat_problem_grouped(sat_problem *problem, sat_dtype dtype, int64_t m, int64_t n, int64_t k,
                                       int64_t groups);
SAT_API sat_status sat_problem_grouped_weights(sat_problem *problem, sat_dtype dtype, int64_t m, int64_t n, int64_t k,
                                               int64_t groups);

/* ---- Plan -------------------------------------------------------------------------------------------------- */

typedef struct sat_plan sat_plan;

/* Operations on groups have no pattern: there, and in all other calls that take one with a problem, it is NULL. */
SAT_API sat_status sat_plan_create(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                   sat_plan **plan);
/* A plan that uses exactly this variant, unchecked: for tests and benchmarks. SAT_UNSUPPORTED if it does not fit. */
SAT_API sat_status sat_plan_create_with(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                        const char *variant, sat_plan **plan);
/* A second plan with a workspace of its own; tunes nothing. The first one may be running meanwhile. */
SAT_API sat_status sat_plan_dup(const sat_plan *plan, sat_plan **copy);
SAT_API void sat_plan_free(sat_plan *plan);

/* Runs. Inputs and outputs are in the order that sat_operation gives, a bias or an LSE only where the problem has
 * one; other counts are refused. Where the pattern's indices change, two inputs more may follow: row_ptr and col_idx,
 * which this run reads instead of the pattern's. `stream` is a cudaStream_t on CUDA and ignored on the CPU. Looks
 * nothing up, allocates nothing, waits for nothing; but OpenMP makes its threads the first time that a thread runs on a
 * CPU, and in a forked child a plan of a library's variant is made anew. */
SAT_API sat_status sat_run(sat_plan *plan, const void *const *inputs, size_t input_count, void *const *outputs,
                           size_t output_count, void *stream);

/* With SAT_FIXED_VALUES: converts new block values to the variant's own form. The first sat_run does it by itself. */
SAT_API sat_status sat_plan_refresh(sat_plan *plan, const void *values, void *stream);

/* `verified`: this build of the library checked the variant's result, on this machine, for this exact problem: sizes,
 * strides, dtypes, options, and the pattern's number of blocks, skew and overlap. `pattern_verified`: and on this very
 * pattern. A new pattern of a verified problem is served at once; a context with a background thread then checks it
 * there, one without does not. Both report the present state: a variant found wrong later is no longer verified. */
typedef struct sat_plan_info {
    size_t size;
    char variant[128];
    bool cached; /* the answer came from the cache */
    bool tuned;  /* this call raced it */
    bool verified;
    bool pattern_verified;
    double tuning_seconds;  /* spent in this call */
    double prepare_seconds; /* schedules and conversions, once */
    size_t workspace_bytes;
    double flops, bytes; /* arithmetic on stored blocks; bytes that must move at least once */
    double estimate_seconds;
} sat_plan_info;

SAT_API sat_status sat_plan_get_info(const sat_plan *plan, sat_plan_info *info); /* set info->size first */

/* One call: finds or makes the plan (kept in a bounded pool of the context) and runs it. Alignment is read off the
 * pointers, so the problem's *_align need not be set; SAT_FIXED_VALUES is ignored, since every call brings its values.
 * `bias` is NULL exactly where the problem has none. */
SAT_API sat_status sat_bsr_matmul(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                  const void *values, const void *b, void *c, const void *bias, void *stream);
SAT_API sat_status sat_bsr_sampled_matmul(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                          const void *x, const void *y, void *values, void *stream);
/* `lse` is written where it is not NULL, whatever the problem says. Problems with sinks need a plan. */
SAT_API sat_status sat_attention_forward(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                         const void *q, const void *k, const void *v, void *o, float *lse,
                                         void *stream);
SAT_API sat_status sat_attention_backward(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                          const void *q, const void *k, const void *v, const void *o, const float *lse,
                                          const void *d_o, void *dq, void *dk, void *dv, void *stream);
SAT_API sat_status sat_grouped_matmul(sat_context *context, const sat_problem *problem, const void *x, const void *w,
                                      const void *offsets, void *y, const void *bias, void *stream);
SAT_API sat_status sat_grouped_weights(sat_context *context, const sat_problem *problem, const void *x, const void *z,
                                       const void *offsets, void *w, void *stream);

/* ---- On CUDA ----------------------------------------------------------------------------------------------- */

/*
 * Streams   A run is queued on the caller's stream and returns. Its operands must be there in that stream's order, and
 *           sat_stream_wait, or any wait of the caller's own, waits for it. Tuning, sat_pattern_create and
 *           sat_memory_* use a stream of the library's own: what they read must be done before they are called.
 * Devices   Any thread may call, whichever device is current, and finds it current afterwards. Operands are in memory
 *           of the context's device, in managed or in pinned memory; all other pointers are SAT_WRONG_MEMORY.
 * Graphs    sat_run and sat_plan_refresh may be captured into a CUDA graph; plan and pattern must live as long as the
 *           graph. Where SAT_FIXED_VALUES is set, run or refresh once before: else converting the values becomes part
 *           of the graph. A captured one-call form uses the plan of an earlier call like it on that stream, and keeps
 *           it for graphs until the context closes; graphs that were captured on one stream so share a workspace, and
 *           are to be launched one after the other. Without such a plan it takes a variant that needs no memory, by
 *           estimate, or fails with SAT_UNSUPPORTED. Everything else may be called too, from any thread, and leaves
 *           the capture alone; an allocator of the caller's own must do so as well.
 * Freeing   Plans, patterns, contexts and memory may be freed while work that uses them is queued: the call waits for
 *           the device. An allocator of the caller's own gets its memory back when nothing queued uses it any more.
 * Errors    What goes wrong in a kernel shows in a later call, SAT_DEVICE_ERROR, and CUDA then serves this process no
 *           more. A race in which a candidate does that ends with its name, which is remembered: a later process
 *           leaves it out. `sparse_autotune race --isolate` tries every candidate in a process of its own.
 */

/* ---- Race -------------------------------------------------------------------------------------------------- */

typedef enum sat_verdict {
    SAT_VERDICT_OK = 1,
    SAT_VERDICT_WRONG = 2,   /* failed its check: can never win */
    SAT_VERDICT_ERROR = 3,   /* returned an error, crashed or hung */
    SAT_VERDICT_SKIPPED = 4, /* not run: estimated too slow to win */
    SAT_VERDICT_MEMORY = 5   /* not run: it wanted more memory than there was; no cache has it */
} sat_verdict;

typedef struct sat_result {
    size_t size;
    char variant[128];
    char revision[48]; /* a library variant's is the library's version */
    sat_verdict verdict;
    double seconds; /* median; 0 where it was not timed */
    double spread;  /* half of the distance between the quartiles */
    double error;   /* largest error of the check over the magnitude of what was summed */
    double estimate_seconds, prepare_seconds;
    size_t workspace_bytes;
    int runs;
    bool may_win; /* false: for comparison only (SAT_V_DENSE without SAT_ALLOW_DENSE; or not registered any more) */
    char message[192];    /* why it is not ok; else "" */
    double least_seconds; /* the fastest run; 0 where it was not timed, or by an earlier version */
    int threads;          /* on which a short run takes the least time; 0: on all */
} sat_result;

typedef struct sat_race sat_race;

typedef struct sat_race_options {
    size_t size;
    bool fresh;       /* race even when the cache has the answer */
    bool discard;     /* results do not go into the cache */
    const char *only; /* NULL, or variant names separated by ',': only these take part, and nothing is kept */
    bool (*progress)(void *user, int done, int total, const char *what); /* false: stop, SAT_CANCELLED; NULL: none */
    void *progress_user;
} sat_race_options;

/* Races, or reads a race back from the cache. It races whatever the context's effort is, but under SAT_EFFORT_OFF the
 * cache is left alone, and under SAT_EFFORT_PINNED nothing is written to it. */
SAT_API sat_status sat_race_run(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                const sat_race_options *options, sat_race **race);
SAT_API void sat_race_free(sat_race *race);
SAT_API size_t sat_race_count(const sat_race *race);
SAT_API const sat_result *sat_race_at(const sat_race *race, size_t i); /* fastest first; NULL past the end */
SAT_API const sat_result *sat_race_best(const sat_race *race);         /* NULL if nothing could win */

typedef struct sat_race_info {
    size_t size;
    bool cached;
    double seconds;      /* spent tuning in this call */
    double flops, bytes; /* arithmetic on stored blocks; bytes that must move at least once */
    size_t peak_bytes;   /* the most memory that tuning held */
    char key[512];
    bool disturbed; /* by other work: its times are too long, and when the machine is quiet it is run again */
} sat_race_info;

SAT_API sat_status sat_race_get_info(const sat_race *race, sat_race_info *info); /* set info->size first */

/* ---- Variants ---------------------------------------------------------------------------------------------- */

typedef struct sat_variant sat_variant;

#define SAT_MAX_OPERANDS 12

/* What a variant gets in prepare. On CUDA its device is current there, and in refresh, launch and release. */
typedef struct sat_prepare {
    size_t size;
    const sat_variant *variant;
    const sat_device *device;
    const sat_problem *problem;      /* normalised: every size, stride, dtype and alignment filled in */
    const sat_pattern_view *pattern; /* with the transposed index if the problem is transposed or a gradient */
    void *workspace;                 /* workspace(...) bytes, 64-byte aligned (256 on CUDA) */
    void *stream;                    /* CUDA: queue work on this one; it is waited for before any run */
} sat_prepare;

/* What a variant gets at every launch. Pointers are those of one batch item, unless the variant is SAT_V_BATCHED. On
 * CUDA a launch queues on `stream` and returns; it allocates nothing and waits for nothing: it may be captured. */
typedef struct sat_launch {
    size_t size;
    const sat_variant *variant;
    const sat_device *device;
    const sat_problem *problem;
    const sat_pattern_view *pattern;
    void *const *operands; /* SAT_MAX_OPERANDS entries; NULL where the problem has none:
                              matmul              values, B, C, bias
                              sampled             X, Y, values of S
                              attention           Q, K, V, O, LSE, sinks
                              its gradients       Q, K, V, O, LSE, dO, dQ, dK, dV, sinks, dsinks
                              grouped             X, W, Y, offsets, bias
                              its weights         X, Z, W, offsets */
    void *workspace;
    void *state; /* what prepare made */
    void *stream;
    int threads; /* CPU: use so many, at most device->threads; the result may not depend on it */
} sat_launch;

/* Variant flags. */
enum {
    SAT_V_REFERENCE = 1u << 0,        /* slow and always right: stays out of a race that others can run */
    SAT_V_NONDETERMINISTIC = 1u << 1, /* takes part only under SAT_ALLOW_NONDETERMINISTIC */
    SAT_V_DENSE = 1u << 2,            /* lets absent blocks spread Inf and NaN of B: wins only under SAT_ALLOW_DENSE */
    SAT_V_LIBRARY = 1u << 3,          /* calls an official library: serves only after it was verified */
    SAT_V_BATCHED = 1u << 4,          /* does the whole batch in one launch */
    SAT_V_SCRATCH = 1u << 5,          /* its workspace holds nothing from one launch to the next, but what `refresh` put
                                         there: where nothing was refreshed others may use it in between, and it may
                                         move */
    SAT_V_DYNAMIC = 1u << 6           /* takes part where indices change: reads them in `launch` alone, and where rows
                                         end from row_end (a sampled product may also write blocks that no row has;
                                         attention finds each batch item's masks by mask_batch) */
};

/* An instance's own settings; a family reads what it needs. */
typedef struct sat_instance {
    sat_dtype dtype;
    int tile_m, tile_n, tile_k;
    int option;
} sat_instance;

struct sat_variant {
    size_t size;
    const char *name;     /* <backend>_<op>_<dtype>_<block>_<arch>_<tile>[_<trick>] */
    const char *revision; /* changes when old timings no longer hold */
    sat_operation op;
    sat_backend_kind backend;
    uint32_t flags;
    int priority; /* breaks ties: larger first, then the name */
    sat_instance instance;
    int reserved[7];   /* 0: where the instance grows */
    const char *about; /* one line for people: what it is good at */
    void *user;

    /* Exact: sizes, strides, dtypes and alignment of this very call. False for an operation, a dtype or a flag that it
     * does not know: a later library may have more of them. */
    bool (*supports)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    /* Seconds, from bytes and operations against the device's rates. */
    double (*estimate)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    /* The rest may be NULL, but launch. */
    size_t (*workspace)(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a, const sat_device *d);
    sat_status (*prepare)(const sat_prepare *prepare, void **state);
    sat_status (*refresh)(const sat_launch *launch); /* SAT_FIXED_VALUES: operands[] holds the values alone */
    sat_status (*launch)(const sat_launch *launch);
    void (*release)(const sat_variant *v, void *state);
};

/* Copies the struct; the strings, functions and `user` must outlive the context. */
SAT_API sat_status sat_variant_register(sat_context *context, const sat_variant *variant);
SAT_API size_t sat_variant_count(const sat_context *context);
SAT_API const sat_variant *sat_variant_at(const sat_context *context, size_t i); /* NULL past the end */
/* For use inside a variant: sets this thread's message. */
SAT_API sat_status sat_fail(sat_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* A plugin is a shared object that exports this; the command line loads it by --plugin. */
#define SAT_PLUGIN_SYMBOL "sat_plugin"
typedef sat_status (*sat_plugin_fn)(sat_context *context);

/* ---- Cache ------------------------------------------------------------------------------------------------- */

/* Called once for each entry of this context's device; return false to stop. `text` is the entry's file. */
typedef bool (*sat_cache_visit_fn)(void *user, const char *key, const char *text);

SAT_API const char *sat_cache_path(const sat_context *context); /* the folder written to; "" if there is none */
SAT_API sat_status sat_cache_visit(sat_context *context, sat_cache_visit_fn visit, void *user);
/* All devices' entries as one file, and back. Import keeps what is there and adds what is not. Times are taken from the
 * file; that a variant is right is not, and it is checked here before it serves. */
SAT_API sat_status sat_cache_export(sat_context *context, const char *file);
SAT_API sat_status sat_cache_import(sat_context *context, const char *file, int64_t *entries);
/* Removes the entry of this key, or every entry of this device (NULL). */
SAT_API sat_status sat_cache_clear(sat_context *context, const char *key, int64_t *entries);
/* Problems that SAT_EFFORT_CACHED had to answer by estimate, or SAT_EFFORT_PINNED did not answer; `text` is the problem
 * as `name=value` words. */
SAT_API sat_status sat_cache_visit_untuned(sat_context *context, sat_cache_visit_fn visit, void *user);
/* The key of a problem, as the cache spells it. */
SAT_API sat_status sat_problem_key(sat_context *context, const sat_pattern *pattern, const sat_problem *problem,
                                   char *key, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
