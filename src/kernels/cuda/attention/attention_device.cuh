/* What the attention kernels share, but for the one that has attention_work.h: the tile schedule on the device, the
 * arguments of forward kernels, and the statistics of queries that backward kernels need.
 *
 * A CTA has a tile of rows of one side of the score matrix, queries or keys, its *own* side. It visits tiles of the
 * *other* side in steps. Where every block is stored the steps are a range of rows; otherwise they are a list made on
 * the host (kernels/attention_schedule.h). Tiles with the most steps come first. For each step of a list, `stored` says
 * which keys are stored in each block row of its queries, so that a kernel never reads the pattern. */
#ifndef SAT_ATTENTION_DEVICE_CUH
#define SAT_ATTENTION_DEVICE_CUH

#include "attention.h"
#include "variant.cuh"

#include <stdlib.h>

enum { ATTENTION_WORD_KEYS = 64 }; /* keys of a word of `stored`: a bit each */

/* Own rows first to before end. They may keep rows of the other side from other_begin to before other_end. */
struct attention_tile {
    int first, end, other_begin, other_end, diagonal;
};

struct attention_schedule {
    const attention_tile *tile; /* NULL: computed */
    const int *order;           /* units, the longest first; NULL: as they are numbered, or reversed */
    const int *list;            /* first step of mask * tiles + tile; NULL: ranges */
    const int2 *step;           /* first row, 2 * count + edge */
    const uint64_t *stored;     /* `words` for each step; NULL: all blocks are stored */
    int words, block_rows;
    int key_words; /* words for the keys of one block row */
    bool by_key;   /* own rows are keys */
    bool reversed;
    int tiles, units;         /* units: tiles * masks; by key, the masks of a key head are one */
    int heads_per_kv;         /* query heads of a key head */
    int heads, batch;         /* heads of the own side */
    int heads_in_flight;      /* heads that are computed together: what they read fits into L2 */
    int tile_rows, step_rows; /* at most */
    int own_length, other_length;
    int ahead, behind; /* the band: sat_band */
    bool mask_per_head;
    int max_steps; /* of a tile and a query head */
};

/* What a CTA computes: a tile of one head. */
struct attention_work {
    attention_tile t;
    int number, head, batch; /* number of the tile; head of the own side */
};

/* The steps of a CTA for one query head. */
struct attention_steps {
    int list, count;            /* list: the first step; -1: a range */
    int begin, end;             /* the range */
    int whole_begin, whole_end; /* steps within need no mask */
};

struct attention_step {
    int first, count;
    bool edge; /* some pairs may not be kept */
};

__device__ __forceinline__ attention_work attention_work_at(const attention_schedule &s, unsigned number) {
    attention_work x;
    int unit, n = (int)number;
    if (s.mask_per_head) {
        unit = n / s.batch, x.batch = n % s.batch;
        if (s.order) unit = __ldg(s.order + unit);
        x.head = unit / s.tiles, unit %= s.tiles;
    } else {
        int in_flight = s.heads_in_flight * s.tiles, round = n / in_flight, rest = n % in_flight;
        int first = round * s.heads_in_flight, heads = min(s.heads_in_flight, s.heads * s.batch - first);
        int head = first + rest % heads;
        unit = rest / heads, x.batch = head / s.heads, x.head = head % s.heads;
        if (s.order) unit = __ldg(s.order + unit);
        else if (s.reversed) unit = s.tiles - 1 - unit;
    }
    x.number = unit;
    if (s.tile) {
        x.t = s.tile[unit];
    } else {
        x.t.first = unit * s.tile_rows, x.t.end = min(x.t.first + s.tile_rows, s.own_length);
        x.t.other_begin = 0, x.t.other_end = s.other_length;
        x.t.diagonal = s.by_key ? s.own_length - s.other_length : s.other_length - s.own_length;
    }
    return x;
}

__device__ __forceinline__ attention_steps attention_steps_of(const attention_schedule &s, const attention_work &x,
                                                              int query_head) {
    attention_steps r;
    if (s.list) {
        int at = (s.mask_per_head ? query_head : 0) * s.tiles + x.number;
        r.list = __ldg(s.list + at), r.count = __ldg(s.list + at + 1) - r.list;
        return r;
    }
    const attention_tile &t = x.t;
    r.list = -1;
    int low = t.first, high = t.end - 1;
    if (s.by_key) { /* key j is kept by queries of j - diagonal - ahead + 1 to before j - diagonal + behind + 1 */
        r.begin = max(t.other_begin, low - t.diagonal - s.ahead + 1);
        r.end = min(t.other_end, high - t.diagonal + s.behind + 1);
        r.whole_begin = high - t.diagonal - s.ahead + 1, r.whole_end = low - t.diagonal + s.behind + 1;
    } else {
        r.begin = max(t.other_begin, low + t.diagonal - s.behind);
        r.end = min(t.other_end, high + t.diagonal + s.ahead);
        r.whole_begin = high + t.diagonal - s.behind, r.whole_end = low + t.diagonal + s.ahead;
    }
    r.count = r.end > r.begin ? (r.end - r.begin + s.step_rows - 1) / s.step_rows : 0;
    return r;
}

__device__ __forceinline__ attention_step attention_step_at(const attention_schedule &s, const attention_steps &r,
                                                            int i) {
    attention_step x;
    if (r.list >= 0) {
        int2 e = __ldg(s.step + r.list + i);
        x.first = e.x, x.count = e.y >> 1, x.edge = e.y & 1;
    } else {
        x.first = r.begin + i * s.step_rows, x.count = min(s.step_rows, r.end - x.first);
        x.edge = x.count < s.step_rows || x.first < r.whole_begin || x.first + x.count > r.whole_end;
    }
    return x;
}

/* Bits begin to before end, of 64. */
__device__ __forceinline__ uint64_t attention_bit_range(int begin, int end) {
    begin = max(begin, 0), end = min(end, 64);
    return end > begin ? (~(uint64_t)0 >> (64 - (end - begin))) << begin : 0;
}

/* Which of `count` keys from `key` on query i keeps, of the first 64, a bit each. Its sequence has the keys from
 * key_begin to before key_end. `word`: the step's first word for these keys; `first_query` is the first of its queries.
 */
__device__ __forceinline__ uint64_t attention_kept_keys(const attention_schedule &s, int i, int first_query,
                                                        int diagonal, int key, int count, int key_begin, int key_end,
                                                        int64_t word) {
    int begin = max(key_begin, i + diagonal - s.behind), end = min(key_end, i + diagonal + s.ahead);
    uint64_t bits = attention_bit_range(begin - key, min(end, key + count) - key);
    if (s.stored) bits &= __ldg(s.stored + word + (i / s.block_rows - first_query / s.block_rows) * s.key_words);
    return bits;
}

/* ---- the host: a schedule (attention_device.cu makes its lists) ---- */

typedef struct attention_tiling { /* rows of a query tile and of a key tile */
    int64_t q_rows, k_rows;
    bool by_key;
} attention_tiling;

static inline int64_t attention_max_tiles(int64_t length, int64_t sequences, int64_t rows) {
    return (length + rows - 1) / rows + sequences;
}

/* Workspace of a schedule, in bytes: tiles, order, lists, steps, words. */
double attention_schedule_bytes(const sat_problem *p, const sat_pattern_view *a, attention_tiling s);

/* Whether the sizes fit the schedule's integers. */
bool attention_schedule_fits(const sat_problem *p, const sat_pattern_view *a, attention_tiling s);

/* Pairs of queries and keys in the tiles that are visited, over all heads and the batch, about. */
double attention_visited_pairs(const sat_problem *p, const sat_pattern_view *a, attention_tiling s);

/* The schedule of a regular mask, whose tiles and steps the kernel computes. Other masks add arrays to it. */
attention_schedule attention_regular_schedule(const sat_problem *p, const sat_pattern_view *a, const sat_device *d,
                                              attention_tiling s);

/* Words of `stored` for a step: key words for each block row that its queries touch. */
int64_t attention_step_words(const sat_mask *k, attention_tiling s);

/* CTAs of a kernel. */
static inline unsigned attention_work_count(const attention_schedule *s) {
    return (unsigned)(s->mask_per_head ? s->units * s->batch : s->tiles * s->heads * s->batch);
}

/* Which of 64 keys from `key` on are stored in a block row of a head; none if its queries are not before `end`. */
SAT_BOTH static inline uint64_t attention_stored_word(const sat_mask *k, int64_t head, int64_t row, int64_t end,
                                                      int64_t key) {
    uint64_t bits = 0;
    if (row * k->block_rows >= end) return 0;
    row += head * k->head_rows;
    for (int64_t b = sat_mask_find(k, row, key / k->block_cols); b < k->row_ptr[row + 1]; b++) {
        int64_t from = k->col_idx[b] * k->block_cols - key, to = sat_min(from + k->block_cols, 64);
        if (from >= 64) break;
        from = sat_max(from, 0);
        bits |= (~(uint64_t)0 >> (64 - (to - from))) << from;
    }
    return bits;
}

/* Fills `stored`; a CTA has a list. */
static __global__ void attention_fill_stored(attention_schedule s, sat_mask k, int masks, uint64_t *stored) {
    for (int place = blockIdx.x; place < masks * s.tiles; place += gridDim.x) {
        int list = s.list[place], count = s.list[place + 1] - list;
        attention_tile t = s.tile[place % s.tiles];
        for (int at = threadIdx.x; at < count * s.words; at += blockDim.x) {
            int2 e = s.step[list + at / s.words];
            int query = s.by_key ? e.x : t.first, end = s.by_key ? e.x + (e.y >> 1) : t.end, word = at % s.words;
            int key = (s.by_key ? t.first : e.x) + word % s.key_words * ATTENTION_WORD_KEYS;
            stored[(int64_t)list * s.words + at] =
                attention_stored_word(&k, place / s.tiles, query / k.block_rows + word / s.key_words, end, key);
        }
    }
}

/* The arrays of a schedule on the host. */
typedef struct attention_lists {
    attention_tile *tile;
    int *order, *list;
    int2 *step;
    int64_t tiles, units, places, steps;
    int64_t max_steps; /* of a tile and a mask */
} attention_lists;

/* False: out of memory; free `l` in any case. */
bool attention_lists_make(const sat_prepare *q, attention_tiling s, const attention_schedule *x, attention_lists *l);
void attention_lists_free(attention_lists *l);

/* Copies to the workspace at `*at`, which moves on, and stores where in `to`. */
template <typename T>
static inline cudaError_t attention_upload(char **at, const T *from, int64_t count, const T **to, cudaStream_t stream) {
    size_t bytes = (size_t)count * sizeof *from;
    *to = (const T *)*at;
    cudaError_t e = bytes ? cudaMemcpyAsync(*at, from, bytes, cudaMemcpyHostToDevice, stream) : cudaSuccess;
    *at += (bytes + 255) / 256 * 256;
    return e;
}

/* Fills `x`, whose arrays are then in the workspace from `at` on, where attention_schedule_bytes fit. */
static inline sat_status attention_schedule_make(const sat_prepare *q, attention_tiling s, char *at,
                                                 attention_schedule *x) {
    *x = attention_regular_schedule(q->problem, q->pattern, q->device, s);
    sat_mask k = sat_mask_of(q->problem, q->pattern);
    if (sat_mask_is_regular(&k)) return SAT_OK;
    attention_lists l = {};
    if (!attention_lists_make(q, s, x, &l)) {
        attention_lists_free(&l);
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: schedule", q->variant->name);
    }
    cudaStream_t stream = (cudaStream_t)q->stream;
    x->tiles = (int)l.tiles, x->units = (int)l.units, x->max_steps = (int)l.max_steps;
    cudaError_t e = attention_upload(&at, l.tile, l.tiles, &x->tile, stream);
    if (e == cudaSuccess) e = attention_upload(&at, l.order, l.units, &x->order, stream);
    if (l.list) {
        if (e == cudaSuccess) e = attention_upload(&at, l.list, l.places + 1, &x->list, stream);
        if (e == cudaSuccess) e = attention_upload(&at, l.step, l.steps, &x->step, stream);
        x->words = (int)attention_step_words(&k, s), x->stored = (const uint64_t *)at;
        if (e == cudaSuccess && l.places > 0) {
            attention_fill_stored<<<sat_blocks(l.places, 1), 128, 0, stream>>>(
                *x, sat_device_mask_of(q->problem, q->pattern), (int)(l.places / sat_max(1, l.tiles)), (uint64_t *)at);
            e = cudaGetLastError();
        }
    }
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream);
    attention_lists_free(&l);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* ---- the host: parts of prepare and release ---- */

/* Allows a kernel so many bytes of dynamic shared memory. */
static inline sat_status attention_allow_shared(const sat_prepare *q, const void *kernel, int bytes) {
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

/* `prepare` of a family whose state is a schedule. */
static inline sat_status attention_prepare(const sat_prepare *q, const void *kernel, int bytes, attention_tiling s,
                                           void **state) {
    sat_status status = attention_allow_shared(q, kernel, bytes);
    if (status != SAT_OK) return status;
    attention_schedule *x = (attention_schedule *)calloc(1, sizeof *x);
    if (!x) return sat_fail(SAT_OUT_OF_MEMORY, "%s: state", q->variant->name);
    status = attention_schedule_make(q, s, (char *)q->workspace, x);
    if (status == SAT_OK) *state = x;
    else free(x);
    return status;
}

static inline void attention_release(const sat_variant *v, void *state) {
    (void)v;
    free(state);
}

/* Every row begins on a multiple of 16 bytes, where the first does. */
static inline bool attention_rows_aligned(const sat_heads *s) {
    return s->batch_stride % 8 == 0 && s->head_stride % 8 == 0 && s->row_stride % 8 == 0;
}

/* ---- options: what kernels that are compiled with OPTIONS know, and those of plain problems do without ---- */

struct attention_options {
    int value_dim;      /* elements of a head of V and O */
    float cap;          /* products become tanh(cap*product), and the scale is softcap; 0: they stay */
    const float *sinks; /* of heads; NULL: none */
    bool aligned;       /* every row begins on 16 bytes */
};

/* Every row of every operand begins on 16 bytes. */
static inline bool attention_all_aligned(const sat_problem *p) {
    const sat_attention *t = &p->attention;
    const sat_heads *const all[] = {&t->q, &t->k, &t->v, &t->o, &t->do_, &t->dq, &t->dk, &t->dv};
    bool aligned = p->a_align >= 16 && p->c_align >= 16;
    for (int i = 0; i < (p->op == SAT_ATTENTION ? 4 : 8); i++) aligned = aligned && attention_rows_aligned(all[i]);
    return aligned;
}

/* The kernel must be one with OPTIONS. */
static inline bool attention_needs_options(const sat_problem *p) {
    return !sat_attention_is_plain(p) || !attention_all_aligned(p);
}

/* Of the wider of a head's keys and values. */
static inline int64_t attention_widest(const sat_problem *p) {
    return sat_max(p->attention.dim, sat_value_dim(&p->attention));
}

static inline attention_options attention_options_of(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    attention_options o = {};
    o.value_dim = (int)sat_value_dim(t), o.aligned = attention_all_aligned(p);
    if (t->softcap != 0) o.cap = (float)(p->alpha / t->softcap);
    if (t->sinks) o.sinks = (const float *)l->operands[sat_sinks_at(p)];
    return o;
}

/* What scores as the kernel has them are multiplied by: products, or the tanh of them. */
static inline double attention_scale(const sat_problem *p) {
    return p->attention.softcap != 0 ? p->attention.softcap : p->alpha;
}

/* A row's sum of weights, relative to exp2(m), takes in its head's sink. Both become relative to the larger exponent;
 * sums of values must be multiplied by the result for that. */
__device__ __forceinline__ float attention_add_sink(float sink, float &m, float &sum) {
    sink *= 1.44269504f;
    float top = fmaxf(m, sink), factor = m == -INFINITY ? 0 : attention_exp2(m - top);
    if (sink == -INFINITY) return 1;
    sum = sum * factor + attention_exp2(sink - top), m = top;
    return factor;
}

/* ---- forward kernels ---- */

struct attention_args {
    attention_schedule schedule;
    const char *q, *k, *v;
    char *o;
    float *lse; /* NULL: not wanted */
    sat_heads q_at, k_at, v_at, o_at;
    int m, dim;
    float scale_log2;    /* |scale|*log2(e) */
    float rescale_above; /* sums are rescaled once a row's maximum has grown by more */
    bool negative;       /* the scale is */
    attention_options options;
};

/* What a CTA keeps in shared memory and reads again where it is needed, since registers are few. */
struct attention_cta {
    attention_work work;
    attention_steps steps;
    const char *keys, *values; /* of its head */
};

/* Ends a row: the sum of its weights, relative to its maximum m, becomes what its sums of values are multiplied by; NaN
 * stays. Where `stores` says so, and LSE is wanted, it goes to its place: row `at` of `heads` heads. */
template <bool OPTIONS>
__device__ __forceinline__ void attention_end_row(const attention_args &x, const attention_work &work, int head,
                                                  int heads, int at, float m, float &sum, bool stores) {
    float factor = 1, exponent = m;
    if constexpr (OPTIONS) {
        exponent = __fmul_rn(m, x.scale_log2);
        if (x.options.sinks) factor = attention_add_sink(__ldg(x.options.sinks + head), exponent, sum);
    }
    if (x.lse && stores)
        x.lse[((int64_t)work.batch * heads + head) * x.m + at] =
            sum > 0 ? ((OPTIONS ? exponent : __fmul_rn(m, x.scale_log2)) + log2f(sum)) * 0.69314718056f : -INFINITY;
    sum = sum > 0 ? factor / sum : sum == 0 ? 0 : sum;
}

static inline void attention_fill_args(attention_args *x, const sat_launch *l) { /* all but the schedule */
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    x->q = (const char *)l->operands[0], x->k = (const char *)l->operands[1], x->v = (const char *)l->operands[2];
    x->o = (char *)l->operands[3], x->lse = t->lse ? (float *)l->operands[4] : NULL;
    x->q_at = t->q, x->k_at = t->k, x->v_at = t->v, x->o_at = t->o;
    x->m = (int)p->m, x->dim = (int)t->dim;
    double scale = attention_scale(p);
    x->scale_log2 = (float)(fabs(scale) * 1.44269504088896340736), x->negative = scale < 0;
    x->rescale_above = fminf(8 / x->scale_log2, 1e30f);
    x->options = attention_options_of(l);
}

/* ---- backward kernels on tensor cores ---- */

/* Two schedules, by queries for dQ and by keys for dK and dV, and two numbers of each query. */
struct attention_backward_state {
    attention_schedule by_query, by_key;
    float *lse, *delta;  /* log2(e)*LSE, inf where nothing is kept; and the sum of dO*O */
    int64_t head_stride; /* of those; every head's begin on 16 bytes */
};

template <typename E> struct attention_delta_args {
    const E *o, *d;
    sat_heads o_at, d_at;
    const float *lse;
    float *lse2, *delta;
    int64_t head_stride, batch, heads, m;
    int dim;
};

template <typename E> struct alignas(16) attention_vector_8 { E x[8]; };

/* Makes the two numbers. Eight lanes have a query. */
template <typename E> static __global__ void attention_delta(const __grid_constant__ attention_delta_args<E> x) {
    griddepcontrol_launch_dependents();
    griddepcontrol_wait();
    int64_t all = x.batch * x.heads * x.m, at = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 8;
    int64_t row = sat_min(at, all - 1), bh = row / x.m, i = row % x.m;
    const E *o = x.o + sat_heads_at(&x.o_at, bh / x.heads, bh % x.heads, i);
    const E *d = x.d + sat_heads_at(&x.d_at, bh / x.heads, bh % x.heads, i);
    float sum = 0;
    for (int c = threadIdx.x % 8 * 8; c < x.dim; c += 64) {
        attention_vector_8<E> y = *(const attention_vector_8<E> *)(o + c), z = *(const attention_vector_8<E> *)(d + c);
#pragma unroll
        for (int e = 0; e < 8; e++) sum = fmaf((float)y.x[e], (float)z.x[e], sum);
    }
    for (int k = 4; k > 0; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
    if (at >= all || threadIdx.x % 8) return;
    float lse = x.lse[row];
    x.lse2[bh * x.head_stride + i] = lse == -INFINITY ? INFINITY : lse * 1.44269504f;
    x.delta[bh * x.head_stride + i] = sum;
}

template <typename E> static sat_status attention_launch_delta(const sat_launch *l, const attention_backward_state *s) {
    const sat_problem *p = l->problem;
    const sat_attention *t = &p->attention;
    attention_delta_args<E> x = {(const E *)l->operands[3],
                                 (const E *)l->operands[5],
                                 t->o,
                                 t->do_,
                                 (const float *)l->operands[4],
                                 s->lse,
                                 s->delta,
                                 s->head_stride,
                                 p->batch,
                                 t->heads,
                                 p->m,
                                 (int)sat_value_dim(t)};
    return sat_start<attention_delta<E>>(l, sat_blocks(x.batch * x.heads * x.m, 32), 256, 0, x);
}

/* The same for any head size and rows that begin anywhere; and the gradient of sinks, by the sums of dO*O. */
sat_status attention_launch_delta_any(const sat_launch *l, float *lse2, float *delta, int64_t head_stride);
sat_status attention_launch_sinks(const sat_launch *l, const float *delta, int64_t head_stride);

static inline size_t attention_round_up(double bytes) { return ((size_t)bytes + 255) / 256 * 256; }

static inline int64_t attention_delta_stride(const sat_problem *p) { return 2 * ((p->m + 3) / 4 * 4); }

/* The workspace: both schedules, then the numbers. */
static inline size_t attention_backward_bytes(const sat_problem *p, const sat_pattern_view *a,
                                              attention_tiling by_query, attention_tiling by_key) {
    return attention_round_up(attention_schedule_bytes(p, a, by_query)) +
           attention_round_up(attention_schedule_bytes(p, a, by_key)) +
           attention_round_up(4 * (double)(p->batch * p->attention.heads * attention_delta_stride(p)));
}

static inline sat_status attention_backward_make(const sat_prepare *q, attention_tiling by_query,
                                                 attention_tiling by_key, char *at, attention_backward_state *s) {
    const sat_problem *p = q->problem;
    sat_status status = attention_schedule_make(q, by_query, at, &s->by_query);
    at += attention_round_up(attention_schedule_bytes(p, q->pattern, by_query));
    if (status == SAT_OK) status = attention_schedule_make(q, by_key, at, &s->by_key);
    at += attention_round_up(attention_schedule_bytes(p, q->pattern, by_key));
    s->head_stride = attention_delta_stride(p);
    s->lse = (float *)at, s->delta = s->lse + s->head_stride / 2;
    return status;
}

#endif
