/* The sampled product whose sums have few terms; a template, included once for each element type. It reads from the
 * packing of Y and the order of X to the tiles, the loop over a thread's part and the launch. sampled_shallow_plan.h
 * says how a block row is cut into vectors. FN is undefined at the end. */

typedef struct FN(shallow_job) {
    const sat_problem *p;
    const sat_pattern_view *a;
    const void *x, *from; /* X and Y as the caller has them */
    REAL *y;              /* packed */
    void *s;
    shallow_shape shape;
    shallow_lanes lanes;
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
    const shallow_shape *s = &j->shape;
    const int64_t rs = p->b.row_stride, cs = p->b.col_stride;
    const int64_t in_block = panel % s->panels * s->width, column = panel / s->panels * j->a->block_cols + in_block;
    const int64_t stored = sat_min(s->width, j->a->block_cols - in_block);
    const int64_t inside = sat_max(0, sat_min(stored, p->n - column));
    REAL *to = j->y + panel * s->width * p->k;
    if (inside < s->width) memset(to, 0, (size_t)(s->width * p->k) * sizeof *to);
    if (cs == 1) {
        const bool room = inside == s->width && column + LANES <= p->n;
        for (int64_t k = 0; k < p->k; k++) FN(shallow_copy)
        (t, j->from, k * rs + column, to + k * s->width, inside, room && (p->k - k) * s->width >= LANES);
    } else {
        for (int64_t e = 0; e < inside; e++)
            for (int64_t k = 0; k < p->k; k++) to[k * s->width + e] = FN(widen)(t, j->from, (column + e) * cs + k * rs);
    }
}

/* Columns [first, end) as lines along k, zero beyond it. */
INLINE void FN(shallow_columns)(const FN(shallow_job) * j, sat_dtype t, int64_t first, int64_t end) {
    const sat_problem *p = j->p;
    const int64_t deep = j->shape.deep, rs = p->b.row_stride, cs = p->b.col_stride;
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
    if (j->shape.together) {
        FN(shallow_columns)(j, t, j->p->n * thread / threads, j->p->n * (thread + 1) / threads);
        return;
    }
    const int64_t panels = j->a->grid_cols * j->shape.panels;
    for (int64_t q = panels * thread / threads; q < panels * (thread + 1) / threads; q++) FN(shallow_panel)(j, t, q);
}

static void FN(shallow_pack)(const FN(shallow_job) * j, int64_t thread, int64_t threads) {
    switch (j->p->b_dtype) { /* a loop for each type */
    case SAT_F16: FN(shallow_pack_as)(j, SAT_F16, thread, threads); break;
    case SAT_BF16: FN(shallow_pack_as)(j, SAT_BF16, thread, threads); break;
    default: FN(shallow_pack_as)(j, SAT_F32, thread, threads);
    }
}

/* ---- X as the tiles read it ---- */

enum { FN(lines_pitch) = (SHALLOW_STRIP + 1) * LANES }; /* of rows that a strip reads; a vector may read beyond them */

/* A wide strip has its rows in the room of the vectors. */
_Static_assert(SHALLOW_DEEPEST_WIDE <= SHALLOW_DEEPEST * LANES, "as deep as the buffer");

/* Where tiles find X: wide: row v at rows[v], from k to k `step` elements on; else vector v of step k at
 * x + (k*vectors + v)*LANES. */
typedef struct FN(shallow_x) {
    const REAL *rows[SHALLOW_STRIP];
    int64_t step;
    REAL x[SHALLOW_DEEPEST * SHALLOW_STRIP * LANES] __attribute__((aligned(64)));
} FN(shallow_x);

/* Row i beyond the matrix: any row. */
static inline int64_t FN(shallow_row)(const FN(shallow_job) * j, int64_t i) {
    return sat_min(i, j->p->m - 1) * j->p->a.row_stride;
}

static void FN(shallow_wide_x)(const FN(shallow_job) * j, int64_t i, int64_t rows, FN(shallow_x) * to) {
    const sat_problem *p = j->p;
    const bool in_place = sat_dtype_size(p->a_dtype) == sizeof(REAL), along = p->a.col_stride == 1;
    to->step = in_place ? p->a.col_stride : 1;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = FN(shallow_row)(j, i + r);
        REAL *row = to->x + r * p->k;
        to->rows[r] = in_place ? (const REAL *)j->x + at : row;
#if WIDENS
        if (!in_place && along) widen_all_f32(p->a_dtype, (const uint16_t *)j->x + at, row, p->k);
#endif
        if (!in_place && !along)
            for (int64_t k = 0; k < p->k; k++) row[k] = FN(widen)(p->a_dtype, j->x, at + k * p->a.col_stride);
    }
}

/* Rows of X as lines [k][rows]. */
INLINE void FN(shallow_lines)(const FN(shallow_job) * j, sat_dtype t, int64_t i, int64_t rows, REAL *lines) {
    const int64_t depth = j->p->k, step = j->p->a.col_stride;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t at = FN(shallow_row)(j, i + r);
        for (int64_t k = 0; k < depth; k++) lines[k * FN(lines_pitch) + r] = FN(widen)(t, j->x, at + k * step);
    }
}

static void FN(shallow_narrow_x)(const FN(shallow_job) * j, int64_t i, int64_t rows, int64_t vectors,
                                 FN(shallow_x) * to) {
    const VINDEX row = VLOAD_INDEX(j->lanes.row);
    REAL lines[SHALLOW_DEEPEST * FN(lines_pitch)];
    switch (j->p->a_dtype) { /* a loop for each type */
    case SAT_F16: FN(shallow_lines)(j, SAT_F16, i, rows, lines); break;
    case SAT_BF16: FN(shallow_lines)(j, SAT_BF16, i, rows, lines); break;
    default: FN(shallow_lines)(j, SAT_F32, i, rows, lines);
    }
    REAL *x = to->x;
    for (int64_t k = 0; k < j->p->k; k++)
        for (int64_t v = 0; v < vectors; v++, x += LANES)
            VSTORE(x, VPERMUTE(VLOAD(lines + k * FN(lines_pitch) + v * j->shape.rows), row));
    if (j->shape.together)
        for (int64_t k = j->p->k; k < j->shape.deep; k++, x += LANES) VSTORE(x, VZERO());
}

/* ---- the epilogue: the first n sums to the stored elements from `at` on ---- */

typedef struct FN(shallow_output) {
    void *s;
    VEC alpha, beta;
    bool adds;
    sat_dtype dtype;
} FN(shallow_output);

static inline FN(shallow_output) FN(shallow_output_of)(const FN(shallow_job) * j) {
    const sat_problem *p = j->p;
    return (FN(shallow_output)){j->s, VSET((REAL)p->alpha), VSET((REAL)p->beta), p->beta != 0, p->c_dtype};
}

INLINE void FN(shallow_put)(const FN(shallow_output) * o, VEC sum, int64_t at, int n) {
    VEC v = VMUL(o->alpha, sum);
    if (o->adds) {
        REAL old[LANES];
        if (n == LANES) FN(shallow_copy)(o->dtype, o->s, at, old, n, true);
        else
            for (int e = 0; e < LANES; e++) old[e] = e < n ? FN(widen)(o->dtype, o->s, at + e) : 0;
        v = VFMA(o->beta, VLOAD(old), v);
    }
#if WIDENS
    if (o->dtype != SAT_F32) {
        vec_half h = o->dtype == SAT_F16 ? vec_narrow_f16(v) : vec_narrow_bf16(v);
        if (n == LANES) vec_store_half((uint16_t *)o->s + at, h);
        else vec_store_some_half((uint16_t *)o->s + at, h, n);
        return;
    }
#endif
    if (n == LANES) VSTORE((REAL *)o->s + at, v);
    else VSTORE_SOME((REAL *)o->s + at, v, n);
}

/* ---- a strip of the vectors of some blocks ---- */

/* A panel of a stored block: its Y, the strip's first stored element, and how many there are from it on, to the end of
 * the block if narrow, else of the row. */
typedef struct FN(shallow_place) {
    const REAL *y;
    int64_t at, left;
} FN(shallow_place);

INLINE FN(shallow_place) FN(shallow_place_of)(const FN(shallow_job) * j, int64_t t, int64_t panel, int64_t row) {
    const shallow_shape *s = &j->shape;
    const int64_t wide = j->a->block_cols;
    const REAL *y = j->y + (j->a->col_idx[t] * s->panels + panel) * s->width * j->p->k;
    const int64_t left = s->rows > 1 ? s->elements - row * wide : wide - panel * LANES;
    return (FN(shallow_place)){y, t * s->elements + row * wide + panel * LANES, left};
}

/* `blocks` panels at a time. */
INLINE void FN(shallow_strip)(const int vectors, const int blocks, const int repeat, const FN(shallow_job) * j,
                              const shallow_part *w, const FN(shallow_x) * x) {
    const FN(shallow_output) out = FN(shallow_output_of)(j);
    const shallow_shape *s = &j->shape;
    const bool wide = repeat == LANES;
    const int64_t depth = j->p->k, width = s->width, panels = s->panels, row = w->strip * s->high * s->rows;
    const int64_t step = s->rows * j->a->block_cols; /* stored elements from vector to vector */
    const int most = (int)(wide ? LANES : step);
    const VINDEX column = VLOAD_INDEX(j->lanes.column);
    for (int64_t t = w->t, panel = 0; t < w->t_end;) {
        FN(shallow_place) to[4] = {{NULL, 0, 0}};
        VEC sum[4][4];
        int count = 0;
#pragma GCC unroll 8
        for (int b = 0; b < blocks; b++) { /* beyond the last one it is computed once more, and not stored */
            to[b] = t < w->t_end ? FN(shallow_place_of)(j, t, panel, row) : to[b - 1];
            if (t < w->t_end) count++;
            if (t < w->t_end && ++panel == panels) panel = 0, t++;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) sum[b][v] = VZERO();
        }
        for (int64_t k = 0; k < depth; k++) {
            VEC u[4];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++)
                u[v] = wide ? VSET(x->rows[v][k * x->step]) : VLOAD(x->x + (k * vectors + v) * LANES);
#pragma GCC unroll 8
            for (int b = 0; b < blocks; b++) {
                const VEC y =
                    repeat ? VREPEAT(to[b].y + k * width, repeat) : VPERMUTE(VLOAD(to[b].y + k * width), column);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) sum[b][v] = VFMA(u[v], y, sum[b][v]);
            }
        }
#pragma GCC unroll 8
        for (int b = 0; b < blocks; b++) {
            if (b == count) break;
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) FN(shallow_put)
            (&out, sum[b][v], to[b].at + v * step, (int)sat_min(most, wide ? to[b].left : to[b].left - v * step));
        }
    }
}

#define SHALLOW_TILE(vectors, blocks, repeat)                                                                          \
    static void FN(shallow_strip_##vectors##_##repeat)(const FN(shallow_job) * j, const shallow_part *w,               \
                                                       const FN(shallow_x) * x) {                                      \
        FN(shallow_strip)(vectors, blocks, repeat, j, w, x);                                                           \
    }
SHALLOW_TILES(SHALLOW_TILE)
#undef SHALLOW_TILE

#define SHALLOW_ENTRY(vectors, blocks, repeat) [repeat][vectors] = FN(shallow_strip_##vectors##_##repeat),
static void (*const FN(shallow_strips)[VECTOR_BYTES / 4 + 1][SHALLOW_STRIP + 1])(
    const FN(shallow_job) *, const shallow_part *, const FN(shallow_x) *) = {SHALLOW_TILES(SHALLOW_ENTRY)};
#undef SHALLOW_ENTRY

/* ---- vectors of several blocks ---- */

enum { FN(shallow_batch) = 32 }; /* vectors whose places are found before they are read: what was just stored is slow */

/* Vectors of blocks [t, t_end). Sums of one segment are a loop of their own, which keeps no places from step to step.
 */
INLINE void FN(shallow_vectors)(const FN(shallow_job) * j, const bool one, int64_t t, int64_t t_end, const int32_t *at,
                                const REAL *x) {
    const FN(shallow_output) out = FN(shallow_output_of)(j);
    const int64_t together = j->shape.together, elements = j->shape.elements;
    const int64_t deep = one ? SEGMENT : j->shape.deep;
    for (; t < t_end; t += together, at += VECTOR_BYTES / 4) {
        VEC sum[2] = {VZERO(), VZERO()};
        for (int64_t k = 0; k < deep; k += SEGMENT) {
            VEC y[SEGMENT];
#pragma GCC unroll 8
            for (int u = 0; u < SEGMENT; u++) y[u] = VSEGMENTS(j->y + k, at + u);
            VTRANSPOSE_SEGMENTS(y);
#pragma GCC unroll 8
            for (int u = 0; u < SEGMENT; u++) sum[u % 2] = VFMA(VLOAD(x + (k + u) * LANES), y[u], sum[u % 2]);
        }
        FN(shallow_put)(&out, VADD(sum[0], sum[1]), t * elements, (int)(sat_min(together, t_end - t) * elements));
    }
}

static void FN(shallow_together)(const FN(shallow_job) * j, const shallow_part *w, const REAL *x) {
    const int64_t together = j->shape.together, last = j->p->n - 1;
    for (int64_t t = w->t, next; t < w->t_end; t = next) {
        int32_t at[FN(shallow_batch) * VECTOR_BYTES / 4], *to = at;
        next = sat_min(w->t_end, t + FN(shallow_batch) * together);
        for (int64_t b = t; b < next; b += together, to += VECTOR_BYTES / 4)
            VPLACES(to, j->a->col_idx + b, sat_min(together, next - b), j->lanes.block, j->lanes.column,
                    j->a->block_cols, last, j->shape.deep);
        if (j->shape.deep == SEGMENT) FN(shallow_vectors)(j, true, t, next, at, x);
        else FN(shallow_vectors)(j, false, t, next, at, x);
    }
}

/* ---- a thread's part, and the launch ---- */

static void FN(shallow_multiply)(const FN(shallow_job) * j, int64_t begin, int64_t end) {
    const shallow_shape *s = &j->shape;
    const int64_t br = j->a->block_rows, width = s->width;
    const int64_t repeat = shallow_wide(s) ? LANES : LANES % width ? 0 : width;
    FN(shallow_x) x;
    if (begin == end) return;
    for (shallow_part w = shallow_first(j->a, s->strips, begin, end);; shallow_next(j->a, s->strips, end - begin, &w)) {
        const int64_t first = w.strip * s->high * s->rows, rows = sat_min(s->high * s->rows, br - first);
        const int64_t vectors = shallow_ceil(rows, s->rows), i = w.row * br + first;
        if (repeat == LANES) FN(shallow_wide_x)(j, i, rows, &x);
        else FN(shallow_narrow_x)(j, i, rows, vectors, &x);
        if (s->together) FN(shallow_together)(j, &w, x.x);
        else FN(shallow_strips)[repeat][vectors](j, &w, &x);
        begin += w.t_end - w.t;
        if (begin == end) return;
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
                for (int64_t r = 0; r < rows; r++)
                    memset(block + (r * bc + cols) * size, 0, (size_t)((bc - cols) * size));
            if (rows < br) memset(block + rows * bc * size, 0, (size_t)((br - rows) * bc * size));
        }
    }
}

static sat_status FN(shallow_launch)(const sat_launch *l) {
    const sat_problem *p = l->problem;
    const sat_pattern_view *a = l->pattern;
    const shallow_shape s = shallow_shape_of(p, a);
    const FN(shallow_job) j = {.p = p,
                               .a = a,
                               .x = l->operands[0],
                               .from = l->operands[1],
                               .y = l->workspace,
                               .s = l->operands[2],
                               .shape = s,
                               .lanes = shallow_lanes_of(&s, a->block_cols)};
    const int64_t steps = a->row_ptr[a->grid_rows] * s.strips;
    const bool ragged = a->grid_rows * a->block_rows > p->m || a->grid_cols * a->block_cols > p->n;
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
