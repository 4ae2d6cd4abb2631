/* The sampled product whose sums have few terms; a template, included once for each element type. It reads from the
 * packing of Y and the order of X to the tiles, the loop over a thread's part and the launch. sampled_shallow_plan.h
 * says how a block row is cut into vectors. FN is undefined at the end. */

enum {
    FN(rows_pitch) = (SHALLOW_STRIP + 1) * LANES, /* rows of X that a strip reads, and what a vector reads beyond */
};

typedef struct FN(shallow_job) {
    const sat_problem *p;
    const sat_pattern_view *a;
    const shallow_state *st;
    const void *x, *from; /* X and Y as the caller has them */
    REAL *y;              /* packed */
    void *s;
} FN(shallow_job);

/* ---- packing Y ---- */

/* n neighbours; reads and writes a whole vector where it may. */
INLINE void FN(shallow_copy)(sat_dtype t, const void *from, int64_t at, REAL *to, int64_t n, bool whole) {
    if (!whole) {
        for (int64_t e = 0; e < n; e++) to[e] = FN(widen)(t, from, at + e);
        return;
    }
#if WIDENS
    if (t != SAT_F32) {
        vec_half h = vec_load_half((const uint16_t *)from + at);
        VSTORE(to, t == SAT_F16 ? vec_widen_f16(h) : vec_widen_bf16(h));
        return;
    }
#endif
    VSTORE(to, VLOAD((const REAL *)from + at));
}

/* A panel: [k][width], zero beyond the matrix. A line may be written over the next one's place, before that is. */
INLINE void FN(shallow_panel)(const FN(shallow_job) * j, sat_dtype t, int64_t panel) {
    const sat_problem *p = j->p;
    const shallow_shape *s = &j->st->shape;
    const int64_t rs = p->b.row_stride, cs = p->b.col_stride;
    const int64_t column = panel / s->panels * j->a->block_cols + panel % s->panels * s->width;
    const int64_t stored = sat_min(s->width, j->a->block_cols - panel % s->panels * s->width);
    const int64_t inside = sat_max(0, sat_min(stored, p->n - column));
    REAL *to = j->y + panel * s->width * p->k;
    if (inside < s->width) memset(to, 0, (size_t)(s->width * p->k) * sizeof *to);
    if (cs == 1) {
        const bool room = inside == s->width && column + LANES <= p->n;
        for (int64_t k = 0; k < p->k; k++)
            FN(shallow_copy)(t, j->from, k * rs + column, to + k * s->width, inside,
                             room && (k + 1) * s->width + LANES <= p->k * s->width + s->width);
    } else {
        for (int64_t e = 0; e < inside; e++)
            for (int64_t k = 0; k < p->k; k++)
                to[k * s->width + e] = FN(widen)(t, j->from, (column + e) * cs + k * rs);
    }
}

/* Columns [first, end) as lines along k, zero beyond it. */
INLINE void FN(shallow_columns)(const FN(shallow_job) * j, sat_dtype t, int64_t first, int64_t end) {
    const sat_problem *p = j->p;
    const int64_t deep = j->st->shape.deep, rs = p->b.row_stride, cs = p->b.col_stride;
    for (int64_t c = first; c < end; c++)
        for (int64_t k = p->k; k < deep; k++) j->y[c * deep + k] = 0;
    if (cs < rs) {
        for (int64_t c = first, next; c < end; c = next) {
            next = sat_min(end, c + 16);
            for (int64_t k = 0; k < p->k; k++)
                for (int64_t q = c; q < next; q++) j->y[q * deep + k] = FN(widen)(t, j->from, k * rs + q * cs);
        }
    } else {
        for (int64_t c = first; c < end; c++)
            for (int64_t k = 0; k < p->k; k++) j->y[c * deep + k] = FN(widen)(t, j->from, k * rs + c * cs);
    }
}

INLINE void FN(shallow_pack_as)(const FN(shallow_job) * j, sat_dtype t, int64_t thread, int64_t threads) {
    if (j->st->shape.together) {
        FN(shallow_columns)(j, t, j->p->n * thread / threads, j->p->n * (thread + 1) / threads);
        return;
    }
    const int64_t panels = j->a->grid_cols * j->st->shape.panels;
    for (int64_t q = panels * thread / threads; q < panels * (thread + 1) / threads; q++) FN(shallow_panel)(j, t, q);
}

static void FN(shallow_pack)(const FN(shallow_job) * j, int64_t thread, int64_t threads) {
    switch (j->p->b_dtype) { /* a loop for each type */
    case SAT_F16: FN(shallow_pack_as)(j, SAT_F16, thread, threads); break;
    case SAT_BF16: FN(shallow_pack_as)(j, SAT_BF16, thread, threads); break;
    default: FN(shallow_pack_as)(j, SAT_F32, thread, threads);
    }
}

/* ---- X in the order of the lanes ---- */

/* `rows` rows of X from row i on, as [k][rows]: zero beyond the matrix. */
INLINE void FN(shallow_rows)(const FN(shallow_job) * j, sat_dtype t, int64_t i, int64_t rows, REAL *to) {
    const sat_problem *p = j->p;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < p->k; k++)
            to[k * FN(rows_pitch) + r] =
                i + r < p->m ? FN(widen)(t, j->x, (i + r) * p->a.row_stride + k * p->a.col_stride) : 0;
}

/* `vectors` vectors of a block of this block row from vector v on: x is [k][vectors][LANES]. */
static void FN(shallow_order_x)(const FN(shallow_job) * j, int64_t row, int64_t v, int64_t vectors, REAL *x) {
    const shallow_shape *s = &j->st->shape;
    const int64_t br = j->a->block_rows, first = j->st->first[v], last = v + vectors - 1, i = row * br + first;
    const int64_t spanned = s->lines ? (LANES - 1) / j->a->block_cols + 2 : s->together ? br : 1;
    const int64_t rows = sat_min(br, j->st->first[last] + spanned) - first;
    REAL lines[SHALLOW_DEEPEST * FN(rows_pitch)];
    switch (j->p->a_dtype) {
    case SAT_F16: FN(shallow_rows)(j, SAT_F16, i, rows, lines); break;
    case SAT_BF16: FN(shallow_rows)(j, SAT_BF16, i, rows, lines); break;
    default: FN(shallow_rows)(j, SAT_F32, i, rows, lines);
    }
    for (int64_t e = 0; e < vectors; e++) {
        const VINDEX places = VLOAD_INDEX(j->st->row + (v + e) * LANES);
        const REAL *from = lines + j->st->first[v + e] - first;
        for (int64_t k = 0; k < j->p->k; k++)
            VSTORE(x + (k * vectors + e) * LANES, VPERMUTE(VLOAD(from + k * FN(rows_pitch)), places));
    }
    for (int64_t k = j->p->k; k < s->deep; k++)
        for (int64_t e = 0; e < vectors; e++) VSTORE(x + (k * vectors + e) * LANES, VZERO());
}

/* ---- the epilogue: n sums to the stored elements from `at` on ---- */

INLINE void FN(shallow_put)(const FN(shallow_job) * j, VEC sum, int64_t at, int n) {
    const sat_problem *p = j->p;
    VEC v = VMUL(VSET((REAL)p->alpha), sum);
    if (p->beta != 0) {
        REAL old[LANES];
        for (int e = 0; e < LANES; e++) old[e] = e < n ? FN(widen)(p->c_dtype, j->s, at + e) : 0;
        v = VFMA(VSET((REAL)p->beta), VLOAD(old), v);
    }
#if WIDENS
    if (p->c_dtype != SAT_F32) {
        uint16_t *to = (uint16_t *)j->s + at, lanes[LANES];
        vec_half h = p->c_dtype == SAT_F16 ? vec_narrow_f16(v) : vec_narrow_bf16(v);
        vec_store_half(n == LANES ? to : lanes, h);
        if (n < LANES)
            for (int e = 0; e < n; e++) to[e] = lanes[e];
        return;
    }
#endif
    if (n == LANES) VSTORE((REAL *)j->s + at, v);
    else VSTORE_SOME((REAL *)j->s + at, v, n);
}

/* ---- a strip of vectors of neighbouring blocks ---- */

/* A panel of a stored block: its Y, the first stored element of the strip, and how many are left of it from there on:
 * lines: of the block; rows: of each row. */
typedef struct FN(shallow_place) {
    const REAL *y;
    int64_t at, left;
} FN(shallow_place);

INLINE FN(shallow_place) FN(shallow_place_of)(const FN(shallow_job) * j, int64_t t, int64_t panel, int64_t v) {
    const shallow_shape *s = &j->st->shape;
    const int64_t wide = j->a->block_cols;
    const REAL *y = j->y + (j->a->col_idx[t] * s->panels + panel) * s->width * j->p->k;
    if (s->lines) return (FN(shallow_place)){y, t * s->elements + v * LANES, s->elements - v * LANES};
    return (FN(shallow_place)){y, t * s->elements + v * wide + panel * LANES, wide - panel * LANES};
}

/* `blocks` panels at a time; x is [k][vectors][LANES]. */
INLINE void FN(shallow_strip)(const int vectors, const int blocks, const int repeat, const FN(shallow_job) * j,
                              const shallow_part *w, const REAL *x) {
    const shallow_shape *s = &j->st->shape;
    const int64_t depth = j->p->k, v0 = w->strip * s->high;
    const int64_t step = s->lines ? LANES : j->a->block_cols; /* stored elements from vector to vector */
    VINDEX places[4];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) places[v] = VLOAD_INDEX(j->st->column + (v0 + v) * LANES);
    for (int64_t t = w->t, panel = 0; t < w->t_end;) {
        FN(shallow_place) to[4];
        VEC sum[4][4];
        int count = 0;
#pragma GCC unroll 8
        for (int b = 0; b < blocks; b++) { /* beyond the last one it is computed once more, and not stored */
            to[b] = t < w->t_end ? FN(shallow_place_of)(j, t, panel, v0) : to[b - 1];
            if (t < w->t_end) count++;
            if (t < w->t_end && ++panel == s->panels) panel = 0, t++;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[b][v] = VZERO();
        }
        for (int64_t k = 0; k < depth; k++) {
#pragma GCC unroll 8
            for (int b = 0; b < blocks; b++) {
                const VEC y = repeat ? VREPEAT(to[b].y + k * repeat, repeat) : VLOAD(to[b].y + k * s->width);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++)
                    sum[b][v] =
                        VFMA(VLOAD(x + (k * vectors + v) * LANES), repeat ? y : VPERMUTE(y, places[v]), sum[b][v]);
            }
        }
#pragma GCC unroll 8
        for (int b = 0; b < blocks; b++) {
            if (b == count) break;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                FN(shallow_put)(j, sum[b][v], to[b].at + v * step,
                                (int)sat_min(LANES, s->lines ? to[b].left - v * LANES : to[b].left));
        }
    }
}

#define SHALLOW_TILE(vectors, blocks, repeat)                                                                          \
    static void FN(shallow_strip_##vectors##_##repeat)(const FN(shallow_job) * j, const shallow_part *w,               \
                                                       const REAL *x) {                                                \
        FN(shallow_strip)(vectors, blocks, repeat, j, w, x);                                                           \
    }
SHALLOW_REPEATS(SHALLOW_STRIPS, SHALLOW_TILE)
#undef SHALLOW_TILE

#define SHALLOW_ENTRY(vectors, blocks, repeat) [repeat][vectors] = FN(shallow_strip_##vectors##_##repeat),
static void (*const FN(shallow_strips)[17][SHALLOW_STRIP + 1])(const FN(shallow_job) *, const shallow_part *,
                                                               const REAL *) = {
    SHALLOW_REPEATS(SHALLOW_STRIPS, SHALLOW_ENTRY)};
#undef SHALLOW_ENTRY

/* ---- vectors of several blocks ---- */

static void FN(shallow_together)(const FN(shallow_job) * j, const shallow_part *w, const REAL *x) {
    const shallow_shape *s = &j->st->shape;
    const int32_t *column = j->st->column;
    const int64_t wide = j->a->block_cols, last = j->p->n - 1;
    for (int64_t t = w->t; t < w->t_end; t += s->together) {
        const int64_t blocks = sat_min(s->together, w->t_end - t);
        const int elements = (int)(blocks * s->elements);
        int32_t at[LANES];
        if (s->elements == 1 && blocks == LANES)
            for (int e = 0; e < LANES; e++) at[e] = j->a->col_idx[t + e] * (int32_t)s->deep;
        else {
            int e = 0;
            for (int64_t b = 0; b < blocks; b++)
                for (int64_t q = 0; q < s->elements; q++, e++) /* beyond the matrix: any column */
                    at[e] = (int32_t)(sat_min(j->a->col_idx[t + b] * wide + column[q], last) * s->deep);
            for (; e < LANES; e++) at[e] = at[0];
        }
        VEC sum[2] = {VZERO(), VZERO()};
        for (int64_t k = 0; k < s->deep; k += PART) {
            VEC y[PART];
#pragma GCC unroll 8
            for (int u = 0; u < PART; u++) y[u] = VPARTS(j->y + k, at + u);
            VTRANSPOSE_PARTS(y);
#pragma GCC unroll 8
            for (int u = 0; u < PART; u++) sum[u % 2] = VFMA(VLOAD(x + (k + u) * LANES), y[u], sum[u % 2]);
        }
        FN(shallow_put)(j, VADD(sum[0], sum[1]), t * s->elements, elements);
    }
}

/* ---- a thread's part, and the launch ---- */

static void FN(shallow_multiply)(const FN(shallow_job) * j, int64_t begin, int64_t end) {
    const shallow_shape *s = &j->st->shape;
    const int64_t wide = j->a->block_cols;
    const int64_t repeat = !s->lines ? LANES : LANES % wide ? 0 : wide;
    REAL x[SHALLOW_DEEPEST * SHALLOW_STRIP * LANES] __attribute__((aligned(64)));
    for (int64_t at = begin; at < end;) {
        const shallow_part w = shallow_part_at(j->a, s->strips, at, end);
        const int64_t v = w.strip * s->high, vectors = sat_min(s->high, s->vectors - v);
        FN(shallow_order_x)(j, w.row, v, vectors, x);
        if (s->together) FN(shallow_together)(j, &w, x);
        else FN(shallow_strips)[repeat][vectors](j, &w, x);
        at += w.t_end - w.t;
    }
}

/* Zero in what the last blocks of some block rows hold beyond the matrix. */
static void FN(shallow_clear)(const FN(shallow_job) * j, int64_t row, int64_t end) {
    const sat_pattern_view *a = j->a;
    const int64_t size = (int64_t)sat_dtype_size(j->p->c_dtype), br = a->block_rows, bc = a->block_cols;
    for (; row < end; row++) {
        const int64_t rows = sat_min(br, j->p->m - row * br), last = a->row_ptr[row + 1] - 1;
        for (int64_t t = rows < br ? a->row_ptr[row] : sat_max(last, a->row_ptr[row]); t <= last; t++) {
            const int64_t cols = sat_min(bc, j->p->n - a->col_idx[t] * bc);
            char *block = (char *)j->s + t * br * bc * size;
            if (cols < bc)
                for (int64_t r = 0; r < rows; r++) memset(block + (r * bc + cols) * size, 0, (size_t)((bc - cols) * size));
            if (rows < br) memset(block + rows * bc * size, 0, (size_t)((br - rows) * bc * size));
        }
    }
}

static sat_status FN(shallow_launch)(const sat_launch *l) {
    const sat_pattern_view *a = l->pattern;
    const FN(shallow_job) j = {.p = l->problem, .a = a, .st = l->state, .x = l->operands[0], .from = l->operands[1],
                               .y = l->workspace, .s = l->operands[2]};
    const int64_t steps = a->stored_blocks * j.st->shape.strips;
    const bool ragged = a->grid_rows * a->block_rows > j.p->m || a->grid_cols * a->block_cols > j.p->n;
#pragma omp parallel num_threads(l->threads) if (l->threads > 1)
    {
        const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
        FN(shallow_pack)(&j, thread, threads);
#pragma omp barrier
        FN(shallow_multiply)(&j, steps * thread / threads, steps * (thread + 1) / threads);
        if (ragged) {
#pragma omp barrier
            FN(shallow_clear)(&j, a->grid_rows * thread / threads, a->grid_rows * (thread + 1) / threads);
        }
    }
    return SAT_OK;
}

#undef FN
