/* The packed matmul's plan: how the product is cut, where its parts are in the workspace, what is made once for a
 * pattern, how threads share the work, and what the tuner asks. The same for every instruction set.
 *
 *   columns of C   vectors -> panels of up to tile_n columns -> panel groups, whose part of B is packed together
 *   rows of C      block rows -> strips of up to tile_m rows -> work items: strips of about equal work
 *   depth          packed rows of B (block columns without stored blocks are left out) -> chunks that fit the cache
 *
 * One strip times one panel is a register tile: it stays in registers over all blocks of a chunk, or of a part of a
 * long sum. Where it has few sums, several blocks run side by side and are added up at the end of the chunk. Chunks
 * depend on the sizes of the problem and the cache, never on threads: so neither does the result.
 *
 * Before it is included, a family defines VECTOR_BYTES and VECTOR_ISA (common/vector.h), PACKED_EFFICIENCY, the part of
 * the nominal rate that its tiles reach, and PACKED_K_STEP: 2 where an operand is a pair of bf16 of neighbouring k,
 * else 1. */
#ifndef SAT_MATMUL_PACKED_PLAN_H
#define SAT_MATMUL_PACKED_PLAN_H

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "variant.h"

enum {
    PACKED_STORE_ROWS = 64,                  /* rows of C that the epilogue takes at a time */
    PACKED_TASK_ROWS = 128,                  /* packed rows of B that a thread packs at a time */
    SIDE_SUMS = VECTOR_BYTES == 64 ? 16 : 8, /* vectors of sums, at most, where blocks run side by side */
    SMALL_STEPS = 8,                         /* k-steps, at most, of blocks that do */
};

/* Bits of sat_instance.option. */
enum {
    PACKED_DIRECT = 1,    /* values are read in place instead of being packed into strips first */
    PACKED_B_IN_PLACE = 2 /* and so is B, row-major: no part of it that is not used is read, nothing is written */
};

/* Where a tile reads: packed strips (rows of a strip are neighbours), blocks in place whose columns are contiguous (a
 * transposed matrix), blocks in place whose rows are; the latter two also with B in place. */
enum { FROM_STRIPS, FROM_COLUMNS, FROM_ROWS, FROM_COLUMNS_AND_B, FROM_ROWS_AND_B, PACKED_FROMS };

INLINE bool packed_from_columns(int from) { return from == FROM_COLUMNS || from == FROM_COLUMNS_AND_B; }
INLINE bool packed_from_rows(int from) { return from == FROM_ROWS || from == FROM_ROWS_AND_B; }
INLINE bool packed_from_b(int from) { return from >= FROM_COLUMNS_AND_B; }

/* How many blocks, or k-steps, run side by side with sums of their own: where a tile has few sums, every addition would
 * wait for the one before. */
INLINE int packed_side(int sums) { return 4 * sums <= SIDE_SUMS ? 4 : 2 * sums <= SIDE_SUMS ? 2 : 1; }

typedef struct packed_shape {
    sat_rows rows;
    int64_t lanes, element;       /* elements in a vector; bytes of a packed element */
    int64_t height, strips;       /* rows in a strip; strips in a block row */
    int64_t steps, last_steps;    /* k-steps in a block; in one of the last block column */
    int64_t part_blocks;          /* blocks of a row that are summed together: see SAT_SUM_PART */
    int64_t part_steps;           /* and k-steps of one of them */
    bool long_sums;               /* some row has more */
    int64_t vectors, panels;      /* of columns; panels differ by one vector at most */
    int64_t group_panels, groups; /* panels of a group; panel groups in all */
    int64_t group_columns;        /* of a group, at most */
    int64_t depth;                /* packed rows, at most */
    int64_t chunks, chunk_cols;   /* chunks of the depth; packed block columns in each */
    int64_t items;                /* work items, at most */
    int64_t pending_rows;         /* rows of C that wait for the epilogue together */
    int64_t batch_items;          /* of the batch, done in one pass */
    int64_t slots;                /* panel groups that are packed at a time */
    bool direct, prepacked;       /* values are read in place; values are packed once, by refresh */
    bool b_in_place;
    size_t buffers_at, buffer_bytes, scratch_at, scratch_bytes, slots_at, total_bytes; /* packed values are first */
} packed_shape;

/* A run of neighbouring block columns that have stored blocks. */
typedef struct packed_run {
    int64_t k, k_end; /* rows of B */
    int64_t at;       /* the first one's packed row */
} packed_run;

/* What prepare makes; read only afterwards. */
typedef struct packed_state {
    int64_t depth; /* packed rows */
    int64_t runs, items;
    packed_run *run;      /* [runs] */
    int64_t *item_first;  /* [items + 1]: first strip of each work item */
    int64_t *chunk_first; /* [block rows][chunks + 1]: first stored block of each chunk; NULL: there is one chunk */
    int32_t *packed_col;  /* of each stored block: its column among the packed ones; NULL: the same as its column */
} packed_state;

/* A shared slot: a buffer for one packed panel group, and the counters by which threads share the work on it. */
typedef struct packed_slot {
    _Alignas(64) _Atomic int64_t group; /* the panel group in it; -1: none */
    _Atomic int64_t next_pack, packs_done, next_item;
    _Atomic int64_t next_group; /* among the groups that are its owner's at first */
    _Atomic int readers;        /* threads that use the buffer now, besides its owner */
} packed_slot;

static inline int64_t packed_ceil(int64_t x, int64_t y) { return (x + y - 1) / y; }
static inline size_t packed_round(size_t bytes) { return (bytes + 255) & ~(size_t)255; }

/* ---- columns ---- */

static inline int64_t packed_first_vector(const packed_shape *s, int64_t panel) {
    return panel * (s->vectors / s->panels) + sat_min(panel, s->vectors % s->panels);
}

static inline int64_t packed_panel_vectors(const packed_shape *s, int64_t panel) {
    return s->vectors / s->panels + (panel < s->vectors % s->panels);
}

static inline int64_t packed_panel_end(const packed_shape *s, int64_t group) {
    return sat_min((group + 1) * s->group_panels, s->panels);
}

/* ---- rows ---- */

static inline int64_t packed_strip_row(const packed_shape *s, int64_t strip) {
    return strip / s->strips * s->rows.br + strip % s->strips * s->height;
}

/* ---- the shape ---- */

/* A group has as many panels as the cache holds: the values are then read less often, and rows of B in longer
 * stretches. But every thread should get a group of its own, since what one packs is far from another's cache. */
static void packed_choose_groups(packed_shape *s, const sat_device *d, int64_t tile_vectors) {
    int64_t vector_bytes = sat_max(s->depth, 1) * s->lanes * s->element, each = s->panels * s->batch_items / d->threads;
    int64_t fit = d->l2_bytes * 7 / 8 / (tile_vectors * vector_bytes);
    s->group_panels = sat_max(1, s->b_in_place ? s->panels : sat_min(fit, each));
    s->groups = packed_ceil(s->panels, s->group_panels);
    s->group_columns = sat_min(s->group_panels * tile_vectors, s->vectors) * s->lanes;
}

/* A depth beyond the cache is cut into chunks, unless tiles would then do too little between being loaded and stored.
 */
static void packed_choose_chunks(packed_shape *s, const sat_pattern_view *a, const sat_device *d) {
    int64_t bytes = s->depth * s->group_columns * s->element, most = d->l2_bytes * 3 / 2;
    int64_t stored = s->rows.count ? a->stored_blocks / s->rows.count * s->steps : 0;
    s->chunks = bytes > most && !s->b_in_place ? packed_ceil(bytes, d->l2_bytes / 2 + 1) : 1;
    s->chunks = sat_max(1, sat_min(s->chunks, stored / 32));
    int64_t cols = packed_ceil(s->rows.k, s->rows.bc);
    s->chunk_cols = sat_max(1, packed_ceil(cols, s->chunks));
}

/* Tiles wait for the epilogue until their last chunk, or, where C is column-major, until their columns are whole cache
 * lines. */
static void packed_choose_pending(packed_shape *s, const sat_problem *p, const sat_device *d) {
    s->pending_rows = s->height;
    if (s->chunks > 1) s->pending_rows = sat_max(s->height, d->l2_bytes / 4 / (s->group_columns * s->element));
    else if (p->c.row_stride == 1 && p->c.col_stride != 1) s->pending_rows = sat_max(s->height, PACKED_STORE_ROWS);
}

/* Work items are small enough that threads end together, large enough that taking one costs nothing. */
static void packed_choose_items(packed_shape *s, const sat_device *d) {
    int64_t share = packed_ceil(d->threads, sat_max(s->groups * s->batch_items, 1));
    s->items = sat_max(1, sat_min(16 + 8 * share, s->rows.count * s->strips));
}

static void packed_size_workspace(packed_shape *s, const sat_pattern_view *a, const sat_device *d) {
    enum { MOST = 512 << 20 }; /* bytes of packed B beyond which threads share buffers */
    int64_t block_bytes = s->rows.br * s->steps * s->element, rows = s->pending_rows + PACKED_STORE_ROWS;
    if (s->long_sums) rows += s->pending_rows; /* for their parts */
    s->buffer_bytes = s->b_in_place ? 0 : packed_round((size_t)(s->depth * s->group_columns * s->element));
    s->slots = sat_min(sat_min(d->threads, s->groups * s->batch_items), MOST / (int64_t)(s->buffer_bytes + 1));
    s->slots = sat_max(s->slots, 1);
    s->scratch_bytes = packed_round((size_t)(rows * s->group_columns * s->element));
    s->buffers_at = s->direct ? 0 : packed_round((size_t)(a->stored_blocks * block_bytes));
    s->scratch_at = s->buffers_at + (size_t)s->slots * s->buffer_bytes;
    s->slots_at = s->scratch_at + (size_t)d->threads * s->scratch_bytes;
    s->total_bytes = s->slots_at + (size_t)s->slots * sizeof(packed_slot);
}

/* `v` gives the largest tile; the rest follows from the problem and the caches. */
static packed_shape packed_make_shape(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                                      const sat_device *d) {
    packed_shape s = {.rows = sat_op_rows(p, a), .direct = v->instance.option & PACKED_DIRECT};
    s.b_in_place = v->instance.option & PACKED_B_IN_PLACE;
    const sat_rows *r = &s.rows;
    int64_t ragged = r->k % r->bc;
    int64_t high = sat_min(r->br, sat_max(1, r->m)); /* a block may be higher than the matrix */
    s.element = p->compute_dtype == SAT_F64 ? 8 : 4;
    s.lanes = VECTOR_BYTES / s.element;
    s.height = packed_ceil(high, packed_ceil(high, v->instance.tile_m));
    s.strips = packed_ceil(high, s.height);
    s.steps = packed_ceil(r->bc, PACKED_K_STEP);
    s.last_steps = packed_ceil(ragged ? ragged : r->bc, PACKED_K_STEP);
    s.part_steps = SAT_SUM_PART / PACKED_K_STEP, s.part_blocks = sat_part_blocks(s.steps * PACKED_K_STEP);
    s.long_sums = s.steps > s.part_steps || (p->matmul.transpose ? a->max_col : a->max_row) > s.part_blocks;
    s.depth = packed_ceil(r->k, r->bc) * s.steps;
    s.batch_items = p->a.batch_stride ? 1 : p->batch;
    s.prepacked = !s.direct && (p->flags & SAT_FIXED_VALUES) && (p->batch == 1 || p->a.batch_stride == 0);
    int64_t tile_vectors = v->instance.tile_n / s.lanes;
    s.vectors = packed_ceil(p->n, s.lanes);
    s.panels = packed_ceil(s.vectors, tile_vectors);
    packed_choose_groups(&s, d, tile_vectors);
    packed_choose_chunks(&s, a, d);
    packed_choose_pending(&s, p, d);
    packed_choose_items(&s, d);
    packed_size_workspace(&s, a, d);
    return s;
}

/* ---- what is made once for a pattern ---- */

static void packed_release(const sat_variant *v, void *state) {
    (void)v;
    packed_state *t = state;
    if (!t) return;
    free(t->run), free(t->item_first), free(t->chunk_first), free(t->packed_col), free(t);
}

/* Finds the block columns that have stored blocks, numbers them, and joins neighbours to runs. */
static bool packed_make_runs(packed_state *t, const packed_shape *s) {
    const sat_rows *r = &s->rows;
    int64_t cols = packed_ceil(r->k, r->bc), stored = r->count ? r->ptr[r->count] : 0, used = 0;
    bool alone = r->bc % PACKED_K_STEP; /* a pair may not reach into the next block column */
    if (s->b_in_place) return true;
    int32_t *number = calloc((size_t)cols + 1, sizeof *number);
    if (!number) return false;
    for (int64_t i = 0; i < stored; i++) number[r->col[i]] = 1;
    for (int64_t c = 0; c < cols; c++) {
        used += number[c];
        t->runs += number[c] && (alone || c == 0 || !number[c - 1]);
    }
    t->run = malloc((size_t)(t->runs + 1) * sizeof *t->run);
    t->packed_col = used < cols ? malloc((size_t)(stored + 1) * sizeof *t->packed_col) : NULL;
    if (!t->run || (used < cols && !t->packed_col)) return free(number), false;
    for (int64_t c = 0, at = -1, n = 0; c < cols; c++) {
        if (!number[c]) continue;
        if (alone || c == 0 || !number[c - 1]) t->run[++at] = (packed_run){.k = c * r->bc, .at = n * s->steps};
        t->run[at].k_end = sat_min((c + 1) * r->bc, r->k);
        number[c] = 1 + (int32_t)n++; /* never 0: the next column asks whether this one is in use */
        if (c == cols - 1) t->depth = (n - 1) * s->steps + s->last_steps;
        else t->depth = n * s->steps;
    }
    for (int64_t i = 0; t->packed_col && i < stored; i++) t->packed_col[i] = number[r->col[i]] - 1;
    free(number);
    return true;
}

/* Cuts the strips into work items of about equal work, however many blocks each row stores. */
static bool packed_make_items(packed_state *t, const packed_shape *s) {
    enum { TILE_COST = 8 }; /* k-steps that writing a tile is worth */
    const sat_rows *r = &s->rows;
    int64_t stored = r->count ? r->ptr[r->count] : 0;
    double all = ((double)stored * (double)s->steps + (double)r->count * TILE_COST) * (double)s->strips;
    double share = all / (double)s->items, work = 0;
    t->item_first = malloc((size_t)(s->items + 1) * sizeof *t->item_first);
    if (!t->item_first) return false;
    t->item_first[0] = 0;
    for (int64_t row = 0; row < r->count; row++) {
        double strip = (double)(r->ptr[row + 1] - r->ptr[row]) * (double)s->steps + TILE_COST;
        for (int64_t u = row * s->strips, end = u + s->strips; u < end;) { /* as many strips at once as fill an item */
            if (u > t->item_first[t->items] && t->items + 1 < s->items && work >= share)
                t->item_first[++t->items] = u, work = 0;
            double wanted = t->items + 1 < s->items ? ceil((share - work) / strip) : INFINITY;
            int64_t some = sat_max(1, (int64_t)fmin(wanted, (double)(end - u)));
            work += strip * (double)some, u += some;
        }
    }
    t->item_first[++t->items] = r->count * s->strips;
    return true;
}

static bool packed_make_chunks(packed_state *t, const packed_shape *s) {
    const sat_rows *r = &s->rows;
    if (s->chunks == 1) return true;
    t->chunk_first = malloc((size_t)(r->count * (s->chunks + 1)) * sizeof *t->chunk_first);
    if (!t->chunk_first) return false;
    const int32_t *col = t->packed_col ? t->packed_col : r->col;
    for (int64_t row = 0; row < r->count; row++) {
        int64_t i = r->ptr[row], *chunk_first = t->chunk_first + row * (s->chunks + 1);
        for (int64_t c = 0; c < s->chunks; c++) {
            chunk_first[c] = i;
            while (i < r->ptr[row + 1] && col[i] < (c + 1) * s->chunk_cols) i++;
        }
        chunk_first[s->chunks] = r->ptr[row + 1];
    }
    return true;
}

static sat_status packed_prepare(const sat_prepare *q, void **state) {
    packed_shape s = packed_make_shape(q->variant, q->problem, q->pattern, q->device);
    packed_state *t = calloc(1, sizeof *t);
    if (!t || !packed_make_runs(t, &s) || !packed_make_items(t, &s) || !packed_make_chunks(t, &s)) {
        packed_release(q->variant, t);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for the schedule of %s", q->variant->name);
    }
    *state = t;
    return SAT_OK;
}

/* ---- shared slots ---- */

/* A thread opens its slot for a panel group, packs B into the slot's buffer and multiplies work item after work item. A
 * thread that finds no group left helps at another's slot, packing included. So all cores are busy to the end, be there
 * one panel or a thousand. */

/* One pass: the items of the batch that share their values. */
typedef struct packed_job {
    const sat_launch *launch;
    const sat_problem *problem;
    const packed_state *state;
    packed_shape shape;
    const void *values, *b, *bias;
    void *c;
    bool no_epilogue; /* C is the tile as it comes out of the registers */
    bool nontemporal; /* C would not stay in the cache: its stores go around it */
    packed_slot *slots;
    _Atomic int64_t next_a_item, groups_open;
} packed_job;

static inline int64_t packed_groups(const packed_job *j) { return j->shape.groups * j->shape.batch_items; }

static inline void *packed_buffer(const packed_job *j, int64_t slot) {
    return (char *)j->launch->workspace + j->shape.buffers_at + (size_t)slot * j->shape.buffer_bytes;
}

static inline void *packed_scratch(const packed_job *j, int64_t thread) {
    return (char *)j->launch->workspace + j->shape.scratch_at + (size_t)thread * j->shape.scratch_bytes;
}

/* Neighbouring groups belong to one thread: caches far apart then share no lines of C and few of B, and the next run
 * finds them where the last one left them. */
static inline int64_t packed_first_group(const packed_job *j, int64_t slot) {
    return packed_groups(j) * slot / j->shape.slots;
}

/* The next group for the owner of a slot: one of its own, or one of a slower owner's; -1: all are taken. */
static int64_t packed_next_group(packed_job *j, int64_t slot) {
    for (int64_t i = 0; i < j->shape.slots; i++) {
        int64_t from = (slot + i) % j->shape.slots, g = atomic_fetch_add(&j->slots[from].next_group, 1);
        if (g < packed_first_group(j, from + 1)) return g;
    }
    return -1;
}

/* Waits for another thread, which may have lost its core to this one. */
static inline void packed_back_off(int *tries) {
    if (++*tries < 200) __builtin_ia32_pause();
    else sched_yield();
}

/* Makes this thread a reader of the slot with most work left; -1: nobody needs help. */
static int64_t packed_help_slot(packed_job *j) {
    for (;;) {
        int64_t best = -1, most = 0, group = -1;
        for (int64_t d = 0; d < j->shape.slots; d++) {
            int64_t g = atomic_load(&j->slots[d].group), left = j->state->items - atomic_load(&j->slots[d].next_item);
            if (g >= 0 && left > most) best = d, most = left, group = g;
        }
        if (best < 0) return -1;
        atomic_fetch_add(&j->slots[best].readers, 1);
        if (atomic_load(&j->slots[best].group) == group) return best;
        atomic_fetch_sub(&j->slots[best].readers, 1); /* its owner has opened the next group meanwhile */
    }
}

static void packed_leave_slot(packed_job *j, int64_t slot) { atomic_fetch_sub(&j->slots[slot].readers, 1); }

/* Opens the slot of this thread for a group, once nobody reads the last one any more. */
static void packed_open_slot(packed_job *j, int64_t slot, int64_t group) {
    packed_slot *d = &j->slots[slot];
    int tries = 0;
    atomic_store(&d->group, -1);
    while (atomic_load(&d->readers) > 0) packed_back_off(&tries);
    atomic_store(&d->next_pack, 0), atomic_store(&d->packs_done, 0), atomic_store(&d->next_item, 0);
    atomic_store(&d->group, group);
    atomic_fetch_add(&j->groups_open, 1);
}

static void packed_reset_slots(packed_job *j) {
    for (int64_t d = 0; d < j->shape.slots; d++) {
        packed_slot *x = &j->slots[d];
        atomic_init(&x->group, -1), atomic_init(&x->readers, 0);
        atomic_init(&x->next_pack, 0), atomic_init(&x->packs_done, 0), atomic_init(&x->next_item, 0);
        atomic_init(&x->next_group, packed_first_group(j, d));
    }
    atomic_store(&j->next_a_item, 0), atomic_store(&j->groups_open, 0);
}

/* ---- what the tuner asks ---- */

static bool packed_values_in_place(const sat_problem *p) {
    return PACKED_K_STEP > 1 || p->a_dtype == SAT_F32 || p->a_dtype == SAT_F64; /* others are widened first */
}

static bool packed_supports(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                            const sat_device *d) {
    (void)a;
    if ((d->isa & VECTOR_ISA) != VECTOR_ISA || p->a_dtype != v->instance.dtype) return false;
    if (p->compute_dtype != (p->a_dtype == SAT_F64 ? SAT_F64 : SAT_F32)) return false;
    if (v->instance.option & PACKED_B_IN_PLACE && (p->b.col_stride != 1 || p->b_dtype != p->a_dtype)) return false;
    return !(v->instance.option & PACKED_DIRECT) || packed_values_in_place(p);
}

/* Multiply-adds at the rate that a tile of this height reaches, B packed and values copied once, C written. */
static double packed_estimate(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                              const sat_device *d) {
    packed_shape s = packed_make_shape(v, p, a, d);
    double width = (double)(s.vectors * s.lanes), batch = (double)p->batch, element = (double)s.element;
    double panel = s.panels ? (double)s.vectors / (double)s.panels : 1, tile = (double)s.height * panel;
    /* A k-step costs its multiply-adds, or its loads where the tile is small. */
    double slow = (panel + (double)s.height) / (1.5 * tile), work = slow > 1 ? slow : 1;
    double flops = 2.0 * (double)a->stored_elements * width * batch * work;
    double packed = s.b_in_place ? 0 : (double)p->k * width * element * batch;
    double copied = s.direct || s.prepacked ? 0 : (double)a->stored_elements * element * batch;
    double depth = 1e-6 + 3e-9 * (double)a->grid_rows * (double)s.panels * batch / d->threads;
    return flops / (d->flop_rate[s.element == 8 ? SAT_F64 : SAT_F32] * PACKED_EFFICIENCY) +
           (packed + 1.5 * copied) / d->memory_rate + sat_bytes(p, a) / (4 * d->memory_rate) + depth;
}

static size_t packed_workspace(const sat_variant *v, const sat_problem *p, const sat_pattern_view *a,
                               const sat_device *d) {
    return packed_make_shape(v, p, a, d).total_bytes;
}

#define PACKED_FAMILY(words)                                                                                           \
    {                                                                                                                  \
        .revision = "2", .op = SAT_MATMUL, .backend = SAT_CPU, .flags = SAT_V_BATCHED | SAT_V_SCRATCH, .about = words, \
        .supports = packed_supports, .estimate = packed_estimate, .workspace = packed_workspace,                       \
        .prepare = packed_prepare, .refresh = refresh, .launch = launch, .release = packed_release                     \
    }

#endif
