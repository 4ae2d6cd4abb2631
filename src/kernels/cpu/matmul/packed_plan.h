/* The packed matmul's plan, the same for every instruction set: how the product is cut into pieces, where they lie in
 * the workspace, and what is made once for a pattern.
 *
 *   columns of C   vectors -> panels of up to tile_n columns -> groups of panels, whose part of B is packed together
 *   rows of C      block rows -> strips of up to tile_m rows -> spans of strips of about equal work
 *   depth          packed rows of B (block columns that nobody stores are left out) -> chunks that fit the cache
 *
 * One strip times one panel is a tile: it stays in registers over all blocks of a chunk, or of a part of a long sum.
 * None of this changes the order in which a tile's products are summed, and parts are those of the block row, wherever
 * chunks begin: so the result depends neither on threads nor on the cuts. */
#ifndef SAT_PACKED_PLAN_H
#define SAT_PACKED_PLAN_H

#include <stdlib.h>

#include "variant.h"

enum { PACKED_STORE = 64 }; /* rows of C that are finished at a time */

/* Bits of sat_instance.option. */
enum {
    PACKED_DIRECT = 1 /* values are read where they lie instead of being copied into strips first */
};

typedef struct packed_isa {
    uint32_t needs;    /* SAT_ISA_* */
    int64_t bytes;     /* of a vector register */
    double efficiency; /* of the nominal rate, for estimates */
    bool pairs;        /* bf16 pairs go into one element: two k in each step */
} packed_isa;

typedef struct packed_shape {
    sat_rows rows;
    int64_t lanes, element;       /* elements in a vector; bytes of a packed element */
    int64_t height, strips;       /* rows in a strip; strips in a block row */
    int64_t steps, last_steps;    /* k-steps in a block; in one of the last block column */
    int64_t part_blocks;          /* blocks of a row that are summed together: see SAT_SUM_PART */
    int64_t part_steps;           /* and k-steps of one of them */
    bool long_sums;               /* some row has more */
    int64_t vectors, panels;      /* of columns; panels differ by one vector at most */
    int64_t group_panels, groups; /* panels packed together; groups in all */
    int64_t group_columns;        /* at most */
    int64_t depth;                /* packed rows, at most */
    int64_t chunks, chunk_cols;   /* chunks of the depth; packed block columns in each */
    int64_t spans;                /* spans of strips, at most */
    int64_t kept_rows;            /* rows of tiles that wait to be finished together */
    int64_t items;                /* batch items done in one pass */
    int64_t desks;                /* packed groups at a time */
    bool direct, keeps;           /* values as they lie; values packed once, by refresh */
    size_t buffers_at, buffer_bytes, arenas_at, arena_bytes, desks_at, total_bytes; /* the stream of values is first */
} packed_shape;

/* Neighbouring block columns that somebody stores. */
typedef struct packed_run {
    int64_t k, k_end; /* rows of B */
    int64_t at;       /* the first one's packed row */
} packed_run;

/* What prepare makes; read only afterwards. */
typedef struct packed_state {
    int64_t depth; /* packed rows */
    int64_t runs, spans;
    packed_run *run; /* [runs] */
    int64_t *span;   /* [spans + 1]: first strip of each */
    int64_t *cut;    /* [block rows][chunks + 1]: first stored block of each chunk; NULL: there is one chunk */
    int32_t *place;  /* packed place of each stored block's column; NULL: the column itself */
} packed_state;

/* Where threads meet over a group of panels that one of them packs and all may use. */
typedef struct packed_desk {
    _Alignas(64) _Atomic int64_t group; /* which; -1: none */
    _Atomic int64_t pack_next, pack_done, span_next;
    _Atomic int64_t group_next; /* of the groups that are its owner's to begin with */
    _Atomic int readers;        /* threads that use the buffer now, besides its owner */
} packed_desk;

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

/* As many panels together as the cache holds: values then pass by less often, and rows of B are read in longer
 * pieces. But every thread should get a group of its own: what one packs is far from another's cache. */
static void packed_choose_groups(packed_shape *s, const sat_device *d, int64_t tile_vectors) {
    int64_t vector_bytes = sat_max(s->depth, 1) * s->lanes * s->element, each = s->panels * s->items / d->threads;
    int64_t fit = d->l2_bytes * 7 / 8 / (tile_vectors * vector_bytes);
    s->group_panels = sat_max(1, sat_min(fit, each));
    s->groups = packed_ceil(s->panels, s->group_panels);
    s->group_columns = sat_min(s->group_panels * tile_vectors, s->vectors) * s->lanes;
}

/* A depth beyond the cache is cut into chunks, unless tiles would then do too little between being fetched and put
 * back. */
static void packed_choose_chunks(packed_shape *s, const sat_pattern_view *a, const sat_device *d) {
    int64_t bytes = s->depth * s->group_columns * s->element, most = d->l2_bytes * 3 / 2;
    int64_t stored = s->rows.count ? a->stored_blocks / s->rows.count * s->steps : 0;
    s->chunks = bytes > most ? packed_ceil(bytes, d->l2_bytes / 2 + 1) : 1;
    s->chunks = sat_max(1, sat_min(s->chunks, stored / 32));
    int64_t cols = packed_ceil(s->rows.k, s->rows.bc);
    s->chunk_cols = sat_max(1, packed_ceil(cols, s->chunks));
}

/* Tiles wait until their last chunk, or, where C is column-major, until columns of them are whole lines of memory. */
static void packed_choose_kept(packed_shape *s, const sat_problem *p, const sat_device *d) {
    s->kept_rows = s->height;
    if (s->chunks > 1) s->kept_rows = sat_max(s->height, d->l2_bytes / 4 / (s->group_columns * s->element));
    else if (p->c.row_stride == 1 && p->c.col_stride != 1) s->kept_rows = sat_max(s->height, PACKED_STORE);
}

/* Small enough that threads end together, large enough that taking one costs nothing. */
static void packed_choose_spans(packed_shape *s, const sat_device *d) {
    int64_t share = packed_ceil(d->threads, sat_max(s->groups * s->items, 1));
    s->spans = sat_max(1, sat_min(16 + 8 * share, s->rows.count * s->strips));
}

static void packed_size_workspace(packed_shape *s, const sat_pattern_view *a, const sat_device *d) {
    enum { MOST = 512 << 20 }; /* bytes of packed B beyond which threads share buffers */
    int64_t block_bytes = s->rows.br * s->steps * s->element, rows = s->kept_rows + PACKED_STORE;
    if (s->long_sums) rows += s->kept_rows; /* for parts of them */
    s->buffer_bytes = packed_round((size_t)(s->depth * s->group_columns * s->element));
    s->desks = sat_min(sat_min(d->threads, s->groups * s->items), MOST / (int64_t)(s->buffer_bytes + 1));
    s->desks = sat_max(s->desks, 1);
    s->arena_bytes = packed_round((size_t)(rows * s->group_columns * s->element));
    s->buffers_at = s->direct ? 0 : packed_round((size_t)(a->stored_blocks * block_bytes));
    s->arenas_at = s->buffers_at + (size_t)s->desks * s->buffer_bytes;
    s->desks_at = s->arenas_at + (size_t)d->threads * s->arena_bytes;
    s->total_bytes = s->desks_at + (size_t)s->desks * sizeof(packed_desk);
}

/* `v` and `isa` give the largest tile; the rest follows from the problem and the caches. */
static packed_shape packed_make_shape(const sat_variant *v, const packed_isa *isa, const sat_problem *p,
                                      const sat_pattern_view *a, const sat_device *d) {
    packed_shape s = {.rows = sat_op_rows(p, a), .direct = v->instance.option & PACKED_DIRECT};
    const sat_rows *r = &s.rows;
    int64_t in_step = isa->pairs ? 2 : 1, ragged = r->k % r->bc;
    int64_t high = sat_min(r->br, sat_max(1, r->m)); /* a block may be higher than the matrix */
    s.element = p->compute_dtype == SAT_F64 ? 8 : 4;
    s.lanes = isa->bytes / s.element;
    s.height = packed_ceil(high, packed_ceil(high, v->instance.tile_m));
    s.strips = packed_ceil(high, s.height);
    s.steps = packed_ceil(r->bc, in_step);
    s.last_steps = packed_ceil(ragged ? ragged : r->bc, in_step);
    s.part_steps = SAT_SUM_PART / in_step, s.part_blocks = sat_part_blocks(s.steps * in_step);
    s.long_sums = s.steps > s.part_steps || (p->transpose ? a->max_col : a->max_row) > s.part_blocks;
    s.depth = packed_ceil(r->k, r->bc) * s.steps;
    s.items = p->a.batch_stride ? 1 : p->batch;
    s.keeps = !s.direct && (p->flags & SAT_FIXED_VALUES) && (p->batch == 1 || p->a.batch_stride == 0);
    int64_t tile_vectors = v->instance.tile_n / s.lanes;
    s.vectors = packed_ceil(p->n, s.lanes);
    s.panels = packed_ceil(s.vectors, tile_vectors);
    packed_choose_groups(&s, d, tile_vectors);
    packed_choose_chunks(&s, a, d);
    packed_choose_kept(&s, p, d);
    packed_choose_spans(&s, d);
    packed_size_workspace(&s, a, d);
    return s;
}

/* ---- what is made once for a pattern ---- */

static void packed_free_state(packed_state *t) {
    if (!t) return;
    free(t->run), free(t->span), free(t->cut), free(t->place), free(t);
}

/* Finds the block columns in use, numbers them, and joins neighbours to runs. */
static bool packed_find_runs(packed_state *t, const packed_shape *s, const packed_isa *isa) {
    const sat_rows *r = &s->rows;
    int64_t cols = packed_ceil(r->k, r->bc), stored = r->count ? r->ptr[r->count] : 0, used = 0;
    bool alone = isa->pairs && r->bc % 2; /* a pair may not reach into the next block column */
    int32_t *number = calloc((size_t)cols + 1, sizeof *number);
    if (!number) return false;
    for (int64_t i = 0; i < stored; i++) number[r->col[i]] = 1;
    for (int64_t c = 0; c < cols; c++) {
        used += number[c];
        t->runs += number[c] && (alone || c == 0 || !number[c - 1]);
    }
    t->run = malloc((size_t)(t->runs + 1) * sizeof *t->run);
    t->place = used < cols ? malloc((size_t)(stored + 1) * sizeof *t->place) : NULL;
    if (!t->run || (used < cols && !t->place)) return free(number), false;
    for (int64_t c = 0, at = -1, n = 0; c < cols; c++) {
        if (!number[c]) continue;
        if (alone || c == 0 || !number[c - 1]) t->run[++at] = (packed_run){.k = c * r->bc, .at = n * s->steps};
        t->run[at].k_end = sat_min((c + 1) * r->bc, r->k);
        number[c] = 1 + (int32_t)n++; /* never 0: the next column asks whether this one is in use */
        if (c == cols - 1) t->depth = (n - 1) * s->steps + s->last_steps;
        else t->depth = n * s->steps;
    }
    for (int64_t i = 0; t->place && i < stored; i++) t->place[i] = number[r->col[i]] - 1;
    free(number);
    return true;
}

/* Cuts the strips into spans of about equal work, whoever stores how much. */
static bool packed_find_spans(packed_state *t, const packed_shape *s) {
    enum { TILE_COST = 8 }; /* k-steps that writing a tile is worth */
    const sat_rows *r = &s->rows;
    int64_t stored = r->count ? r->ptr[r->count] : 0;
    double all = ((double)stored * (double)s->steps + (double)r->count * TILE_COST) * (double)s->strips;
    double share = all / (double)s->spans, work = 0;
    t->span = malloc((size_t)(s->spans + 1) * sizeof *t->span);
    if (!t->span) return false;
    t->span[0] = 0;
    for (int64_t u = 0; u < r->count * s->strips; u++) {
        int64_t row = u / s->strips, *last = &t->span[t->spans];
        if (u > *last && t->spans + 1 < s->spans && work >= share) {
            t->span[++t->spans] = u;
            work = 0;
        }
        work += (double)(r->ptr[row + 1] - r->ptr[row]) * (double)s->steps + TILE_COST;
    }
    t->span[++t->spans] = r->count * s->strips;
    return true;
}

static bool packed_find_cuts(packed_state *t, const packed_shape *s) {
    const sat_rows *r = &s->rows;
    if (s->chunks == 1) return true;
    t->cut = malloc((size_t)(r->count * (s->chunks + 1)) * sizeof *t->cut);
    if (!t->cut) return false;
    const int32_t *col = t->place ? t->place : r->col;
    for (int64_t row = 0; row < r->count; row++) {
        int64_t i = r->ptr[row], *cut = t->cut + row * (s->chunks + 1);
        for (int64_t c = 0; c < s->chunks; c++) {
            cut[c] = i;
            while (i < r->ptr[row + 1] && col[i] < (c + 1) * s->chunk_cols) i++;
        }
        cut[s->chunks] = r->ptr[row + 1];
    }
    return true;
}

static sat_status packed_prepare(const sat_prepare *q, const packed_isa *isa, void **state) {
    packed_shape s = packed_make_shape(q->variant, isa, q->problem, q->pattern, q->device);
    packed_state *t = calloc(1, sizeof *t);
    if (!t || !packed_find_runs(t, &s, isa) || !packed_find_spans(t, &s) || !packed_find_cuts(t, &s)) {
        packed_free_state(t);
        return sat_fail(SAT_OUT_OF_MEMORY, "no memory for the schedule of %s", q->variant->name);
    }
    *state = t;
    return SAT_OK;
}

#endif
