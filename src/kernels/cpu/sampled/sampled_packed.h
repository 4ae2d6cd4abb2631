/* The sampled product; a template, included once for each element type. It reads from the tiles out to packing,
 * epilogue, the loop over a run and the launch. sampled_packed_plan.h says how the product is cut. A family defines
 *   FN(name)                            the element type: common/vector.h
 *   what common/packed_tiles.h asks for
 *   narrow(to, from, n, dtype)          n sums as 16-bit elements
 * FN is undefined at the end. */

#include "kernels/cpu/common/packed_tiles.h"

/* ---- packing X and Y ---- */

static void FN(pack_x)(const sampled_job *j, int64_t k0, int64_t len, int64_t i0) {
    const sat_problem *p = j->p;
    const sat_pattern_view *a = j->a;
    int64_t pitch = j->st->shape.x_pitch, i1 = sat_min(i0 + SAMPLED_BATCH, p->m);
    for (int64_t i = i0, end; i < i1; i = end) { /* by block row, skipping empty ones */
        int64_t row = i / a->block_rows;
        end = sat_min(i1, (row + 1) * a->block_rows);
        if (a->row_ptr[row] == a->row_ptr[row + 1]) continue;
        const void *src = sat_at(p->a_dtype, j->x, i * p->a.row_stride + k0 * p->a.col_stride);
        FN(copy)((OPERAND *)j->xp + i * pitch, pitch, end - i, len, p->a_dtype, src, p->a.row_stride, p->a.col_stride);
    }
}

static void FN(pack_y_dot)(const sampled_job *j, int64_t k0, int64_t len, int64_t j0) {
    const sat_problem *p = j->p;
    int64_t pitch = j->st->shape.y_pitch, j1 = sat_min(j0 + SAMPLED_BATCH, p->n), wide = j->a->block_cols;
    bool used = false;
    for (int64_t c = j0 / wide; c <= (j1 - 1) / wide; c++) used |= j->st->columns[c];
    if (!used) return;
    const void *src = sat_at(p->b_dtype, j->y, k0 * p->b.row_stride + j0 * p->b.col_stride);
    FN(copy)((OPERAND *)j->yp + j0 * pitch, pitch, j1 - j0, len, p->b_dtype, src, p->b.col_stride, p->b.row_stride);
}

enum { FN(panels_at_once) = 256 / sizeof(OPERAND) / LANES };

/* Some panels together, row by row, so that whole cache lines of Y are used. */
static void FN(pack_y_outer)(const sampled_job *j, int64_t k0, int64_t len, int64_t first) {
    const sat_problem *p = j->p;
    const sat_pattern_view *a = j->a;
    const sampled_shape *s = &j->st->shape;
    OPERAND *dst[FN(panels_at_once)];
    int64_t at[FN(panels_at_once)], width[FN(panels_at_once)], count = 0;
    bool whole = true;
    for (int64_t q = first; q < sat_min(first + FN(panels_at_once), a->grid_cols * s->panels); q++) {
        int64_t block = q / s->panels, in_block = q % s->panels * LANES, col = block * a->block_cols + in_block;
        int64_t wide = sat_min(LANES, sat_min(a->block_cols - in_block, p->n - col));
        if (!j->st->columns[block] || wide <= 0) continue;
        dst[count] = (OPERAND *)j->yp + q * s->y_pitch;
        at[count] = k0 * p->b.row_stride + col * p->b.col_stride;
        width[count++] = wide;
        whole &= wide == LANES;
    }
    int64_t rs = p->b.row_stride, cs = p->b.col_stride;
    if (cs != 1) {
        for (int64_t q = 0; q < count; q++) {
            const void *src = sat_at(p->b_dtype, j->y, at[q]);
            if (width[q] < LANES) memset(dst[q], 0, (size_t)(len * LANES) * sizeof(OPERAND));
            FN(copy)(dst[q], LANES, len, width[q], p->b_dtype, src, rs, cs);
        }
        return;
    }
    for (int64_t k = 0; k < len; k++) {
        for (int64_t q = 0; q < count; q++) {
            OPERAND *to = dst[q] + k * LANES;
            if (k + 8 < len) __builtin_prefetch(sat_at(p->b_dtype, j->y, at[q] + (k + 8) * rs));
            if (whole) { /* a call of its own, so that the compiler knows the width */
                FN(copy_row)(to, LANES, p->b_dtype, j->y, at[q] + k * rs);
                continue;
            }
            FN(copy_row)(to, width[q], p->b_dtype, j->y, at[q] + k * rs);
            for (int64_t e = width[q]; e < LANES; e++) to[e] = 0;
        }
    }
}

/* Packing tasks: some rows of X each, then some columns or panels of Y. */
static inline int64_t FN(x_packs)(const sampled_job *j) {
    return j->st->shape.x_in_place ? 0 : sampled_ceil(j->p->m, SAMPLED_BATCH);
}

static inline int64_t FN(y_packs)(const sampled_job *j) {
    const sampled_shape *s = &j->st->shape;
    if (s->y_in_place) return 0;
    return s->dot ? sampled_ceil(j->p->n, SAMPLED_BATCH)
                  : sampled_ceil(j->a->grid_cols * s->panels, FN(panels_at_once));
}

static void FN(pack)(const sampled_job *j, int64_t k0, int64_t len, int64_t task) {
    int64_t x_packs = FN(x_packs)(j);
    if (task < x_packs) FN(pack_x)(j, k0, len, task * SAMPLED_BATCH);
    else if (j->st->shape.dot) FN(pack_y_dot)(j, k0, len, (task - x_packs) * SAMPLED_BATCH);
    else FN(pack_y_outer)(j, k0, len, (task - x_packs) * FN(panels_at_once));
}

/* Where the tiles find row i of X, from step k0 on. */
static inline const OPERAND *FN(x_row)(const sampled_job *j, int64_t k0, int64_t i, int64_t *pitch) {
    const sampled_shape *s = &j->st->shape;
    *pitch = s->x_in_place ? j->p->a.row_stride : s->x_pitch;
    return s->x_in_place ? (const OPERAND *)j->x + i * *pitch + k0 : (const OPERAND *)j->xp + i * *pitch;
}

static inline const OPERAND *FN(y_column)(const sampled_job *j, int64_t k0, int64_t *pitch) { /* the first */
    const sampled_shape *s = &j->st->shape;
    *pitch = s->y_in_place ? j->p->b.col_stride : s->y_pitch;
    return s->y_in_place ? (const OPERAND *)j->y + k0 : (const OPERAND *)j->yp;
}

/* ---- the epilogue: n sums v to the stored elements from `at` on ---- */

INLINE void FN(store_n)(const sampled_job *j, int64_t chunk, const REAL *v, int64_t n, int64_t at) {
    const sat_problem *p = j->p;
    const REAL alpha = (REAL)p->alpha, beta = (REAL)p->beta;
    bool last = chunk + 1 == j->st->shape.chunks;
    if (sat_dtype_size(p->c_dtype) == sizeof(REAL)) {
        REAL *restrict s = (REAL *)j->s + at;
        if (chunk > 0)
            for (int64_t e = 0; e < n; e++) s[e] += alpha * v[e];
        else if (beta != 0)
            for (int64_t e = 0; e < n; e++) s[e] = alpha * v[e] + beta * s[e];
        else
            for (int64_t e = 0; e < n; e++) s[e] = alpha * v[e];
        return;
    }
    float *sums = j->sums + at;
    if (!last) {
        if (chunk > 0)
            for (int64_t e = 0; e < n; e++) sums[e] += (float)v[e];
        else
            for (int64_t e = 0; e < n; e++) sums[e] = (float)v[e];
        return;
    }
    for (int64_t e0 = 0; e0 < n; e0 += LANES) {
        int64_t some = sat_min(LANES, n - e0);
        float total[LANES];
        uint16_t *s = (uint16_t *)j->s + at + e0;
        for (int64_t e = 0; e < some; e++)
            total[e] = (float)alpha * ((float)v[e0 + e] + (chunk > 0 ? sums[e0 + e] : 0));
        if (beta != 0)
            for (int64_t e = 0; e < some; e++) total[e] += (float)beta * (float)sat_load(p->c_dtype, s, e);
        narrow(s, total, some, p->c_dtype);
    }
}

static inline void FN(store)(const sampled_job *j, int64_t chunk, const REAL *v, int64_t n, int64_t at) {
    if (n == LANES) FN(store_n)(j, chunk, v, LANES, at); /* whole vectors: the compiler drops the loops */
    else FN(store_n)(j, chunk, v, n, at);
}

/* Zero in what a block holds beyond the matrix, rows r0 to r1 of the block. */
static void FN(clear)(const sampled_job *j, int64_t t, int64_t rows, int64_t cols, int64_t r0, int64_t r1) {
    int64_t size = (int64_t)sat_dtype_size(j->p->c_dtype), br = j->a->block_rows, bc = j->a->block_cols;
    char *block = (char *)j->s + t * br * bc * size;
    for (int64_t r = r0; r < r1; r++) {
        int64_t keep = r < rows ? cols : 0;
        if (keep < bc) memset(block + (r * bc + keep) * size, 0, (size_t)((bc - keep) * size));
    }
}

/* ---- the loop over a run, by outer tiles ---- */

/* The panels of a tile: where each is, where its first row of sums goes, and how many columns of it are real. */
typedef struct FN(panels) {
    int count;
    const OPERAND *y[8];
    int64_t at[8], width[8];
} FN(panels);

/* Takes up to `wide` panels of the run from panel q on, and gives the next. */
static int64_t FN(take_panels)(const sampled_job *j, const sampled_item *u, int64_t q, int wide, FN(panels) * out) {
    const sat_pattern_view *a = j->a;
    const sampled_shape *s = &j->st->shape;
    out->count = 0;
    for (int64_t end = q + wide; q < end; q++) {
        int64_t t = u->run->first + q / s->panels, panel = q % s->panels, block = a->col_idx[t];
        int64_t inside = sat_min(a->block_cols, a->cols - block * a->block_cols) - panel * LANES;
        if (inside <= 0) continue; /* beyond the matrix */
        int e = out->count++;
        out->y[e] = (const OPERAND *)j->yp + (block * s->panels + panel) * s->y_pitch;
        out->at[e] = (t * a->block_rows + u->r0) * a->block_cols + panel * LANES;
        out->width[e] = sat_min(LANES, inside);
    }
    return q;
}

static void FN(store_tile)(const sampled_job *j, const sampled_item *u, const FN(panels) * w, int64_t from,
                           int64_t rows, const REAL *out) {
    for (int64_t r = 0; r < rows; r++)
        for (int e = 0; e < w->count; e++, out += LANES) {
            int64_t at = w->at[e] + (from + r) * j->a->block_cols;
            FN(store)(j, u->chunk, out, w->width[e], at);
        }
}

static void FN(multiply_outer)(const sampled_job *j, sampled_item *u) {
    const sat_pattern_view *a = j->a;
    int64_t high = u->r1 - u->r0, strips = sampled_ceil(high, j->tm), total = u->run->count * j->st->shape.panels;
    int64_t pitch;
    const OPERAND *x = FN(x_row)(j, u->k0, u->run->row * a->block_rows + u->r0, &pitch);
    REAL out[8 * 8 * LANES] __attribute__((aligned(64)));
    FN(panels) w;
    for (int64_t q = 0; q < total;) {
        q = FN(take_panels)(j, u, q, sampled_tile_width(total - q, j->tn), &w);
        for (int64_t i = 0; i < strips && w.count > 0; i++) {
            int64_t from = sampled_strip_begin(high, strips, i), rows = sampled_strip_begin(high, strips, i + 1) - from;
            for (int64_t r = from; r < from + rows; r++) /* S will be written when the tile is done */
                for (int e = 0; e < w.count; e++)
                    __builtin_prefetch(sat_at(j->p->c_dtype, j->s, w.at[e] + r * a->block_cols), 1);
            sampled_prefetch_some(&u->prefetch);
            FN(outer_tiles)[rows][w.count](u->len, x + from * pitch, pitch, w.y, out);
            FN(store_tile)(j, u, &w, from, rows, out);
        }
    }
}

/* ---- the loop over a run, by dot tiles ---- */

/* Rows of a tile that takes whole blocks, so that its sums are in the order of the block; 0 where none does. */
static inline int64_t FN(rows_of_narrow)(const sampled_job *j) {
    int64_t wide = j->a->block_cols, rows = sat_min(4, j->tm * j->tn / wide);
    return wide >= 3 && wide <= 8 && rows >= 2 ? rows : 0;
}

static void FN(multiply_dot_narrow)(const sampled_job *j, sampled_item *u) {
    const sat_pattern_view *a = j->a;
    int64_t high = u->r1 - u->r0, strips = sampled_ceil(high, FN(rows_of_narrow)(j)), x_pitch, y_pitch;
    const OPERAND *x = FN(x_row)(j, u->k0, u->run->row * a->block_rows + u->r0, &x_pitch);
    const OPERAND *y = FN(y_column)(j, u->k0, &y_pitch);
    REAL out[32] __attribute__((aligned(64)));
    for (int64_t t = u->run->first; t < u->run->first + u->run->count; t++) {
        int64_t col = a->col_idx[t] * a->block_cols, wide = sat_min(a->block_cols, a->cols - col);
        const OPERAND *columns[8];
        for (int64_t e = 0; e < wide; e++) columns[e] = y + (col + e) * y_pitch;
        for (int64_t i = 0; i < strips; i++) {
            int64_t from = sampled_strip_begin(high, strips, i), rows = sampled_strip_begin(high, strips, i + 1) - from;
            int64_t at = (t * a->block_rows + u->r0 + from) * a->block_cols;
            __builtin_prefetch(sat_at(j->p->c_dtype, j->s, at), 1);
            sampled_prefetch_some(&u->prefetch);
            FN(dot_tiles)[rows][wide](u->len, x + from * x_pitch, x_pitch, columns, out);
            if (wide == a->block_cols) FN(store)(j, u->chunk, out, rows * wide, at);
            else
                for (int64_t r = 0; r < rows; r++) FN(store)(j, u->chunk, out + r * wide, wide, at + r * a->block_cols);
        }
    }
}

/* A batch: columns of a run for dot tiles. Their sums are kept in the order of the blocks: segments, each some
 * neighbouring columns of one block, one after the other. */
typedef struct FN(batch) {
    int columns, segments;
    const OPERAND *y[SAMPLED_BATCH];
    int at[SAMPLED_BATCH], step[SAMPLED_BATCH]; /* a column's sum in the first row, and the distance from row to row */
    int64_t to[SAMPLED_BATCH];                  /* a segment's first stored element */
    int count[SAMPLED_BATCH];                   /* and its columns */
} FN(batch);

static void FN(store_batch)(const sampled_job *j, int64_t chunk, const FN(batch) * b, const REAL *sums, int64_t rows) {
    int64_t wide = j->a->block_cols;
    for (int g = 0; g < b->segments; g++) {
        int64_t count = b->count[g], to = b->to[g];
        if (count == wide) FN(store)(j, chunk, sums, count * rows, to);
        else
            for (int64_t r = 0; r < rows; r++) FN(store)(j, chunk, sums + r * count, count, to + r * wide);
        sums += count * rows;
    }
}

static void FN(multiply_batch)(const sampled_job *j, sampled_item *u, const OPERAND *x, int64_t pitch,
                               const FN(batch) * b) {
    REAL out[32] __attribute__((aligned(64))), sums[32 * SAMPLED_BATCH] __attribute__((aligned(64)));
    int64_t high = u->r1 - u->r0, strips = sampled_ceil(high, j->tm);
    int64_t line = 64 / (int64_t)sat_dtype_size(j->p->c_dtype);
    for (int g = 0; g < b->segments; g++) /* S will be written when the tiles are done */
        for (int64_t e = 0; e < high * j->a->block_cols; e += line)
            __builtin_prefetch(sat_at(j->p->c_dtype, j->s, b->to[g] + e), 1);
    for (int64_t i = 0; i < strips; i++) {
        int64_t from = sampled_strip_begin(high, strips, i), rows = sampled_strip_begin(high, strips, i + 1) - from;
        int most = (int)sat_min(8, j->tm * j->tn / rows), wide; /* few rows leave room for more columns */
        for (int c = 0; c < b->columns; c += wide) {
            wide = sampled_tile_width(b->columns - c, most);
            sampled_prefetch_some(&u->prefetch);
            FN(dot_tiles)[rows][wide](u->len, x + from * pitch, pitch, b->y + c, out);
            for (int e = 0; e < wide; e++) {
                REAL *to = sums + b->at[c + e] + from * b->step[c + e];
                for (int64_t r = 0; r < rows; r++) to[r * b->step[c + e]] = out[r * wide + e];
            }
        }
    }
    FN(store_batch)(j, u->chunk, b, sums, high);
}

static void FN(multiply_dot)(const sampled_job *j, sampled_item *u) {
    const sat_pattern_view *a = j->a;
    int64_t high = u->r1 - u->r0, end = u->run->first + u->run->count, x_pitch, y_pitch;
    const OPERAND *x = FN(x_row)(j, u->k0, u->run->row * a->block_rows + u->r0, &x_pitch);
    const OPERAND *y = FN(y_column)(j, u->k0, &y_pitch);
    FN(batch) b;
    b.columns = b.segments = 0;
    for (int64_t t = u->run->first; t < end; t++) {
        int64_t col = a->col_idx[t] * a->block_cols, wide = sat_min(a->block_cols, a->cols - col);
        for (int64_t c = 0, some; c < wide; c += some) {
            some = sat_min(wide - c, SAMPLED_BATCH - b.columns);
            b.to[b.segments] = (t * a->block_rows + u->r0) * a->block_cols + c;
            b.count[b.segments++] = (int)some;
            int64_t first = b.columns * high;
            for (int64_t e = 0; e < some; e++, b.columns++) {
                b.y[b.columns] = y + (col + c + e) * y_pitch;
                b.at[b.columns] = (int)(first + e), b.step[b.columns] = (int)some;
            }
            if (b.columns < SAMPLED_BATCH && !(t + 1 == end && c + some == wide)) continue;
            FN(multiply_batch)(j, u, x, x_pitch, &b);
            b.columns = b.segments = 0;
        }
    }
}

/* ---- work items and launch ---- */

/* What work item `next` will read of X, to be prefetched while the one before it is computed. */
static sampled_prefetch FN(prefetch_of)(const sampled_job *j, const sampled_item *u, int64_t next) {
    const sampled_shape *s = &j->st->shape;
    sampled_prefetch h = {0};
    if (next >= j->st->run_count * s->row_splits) return h;
    int64_t high = sampled_ceil(j->a->block_rows, s->row_splits), pitch;
    int64_t i0 = j->st->runs[next / s->row_splits].row * j->a->block_rows + next % s->row_splits * high;
    h.row = (const char *)FN(x_row)(j, u->k0, i0, &pitch);
    h.rows = sat_min(high, j->a->rows - i0);
    h.pitch = pitch * (int64_t)sizeof(OPERAND), h.bytes = u->len * (int64_t)sizeof(OPERAND);
    int64_t tiles = sampled_ceil(u->run->count * s->panels, j->tn) * sampled_ceil(u->r1 - u->r0, j->tm);
    h.lines = sampled_ceil(h.rows * sampled_ceil(h.bytes, 64), sat_max(1, tiles));
    return h;
}

static void FN(multiply_item)(const sampled_job *j, int64_t chunk, int64_t index) {
    const sat_pattern_view *a = j->a;
    const sampled_shape *s = &j->st->shape;
    sampled_item u = {.chunk = chunk, .k0 = chunk * s->kc, .run = &j->st->runs[index / s->row_splits]};
    int64_t high = sampled_ceil(a->block_rows, s->row_splits);
    int64_t rows = sat_min(a->block_rows, a->rows - u.run->row * a->block_rows);
    u.len = sat_min(s->kc, j->p->k - u.k0);
    u.r0 = index % s->row_splits * high, u.r1 = sat_min(u.r0 + high, rows);
    if (u.r0 < u.r1) {
        u.prefetch = FN(prefetch_of)(j, &u, index + 1);
        if (!s->dot) FN(multiply_outer)(j, &u);
        else if (FN(rows_of_narrow)(j)) FN(multiply_dot_narrow)(j, &u);
        else FN(multiply_dot)(j, &u);
    }
    if (chunk + 1 < s->chunks) return;
    for (int64_t t = u.run->first; t < u.run->first + u.run->count; t++) {
        int64_t cols = sat_min(a->block_cols, a->cols - a->col_idx[t] * a->block_cols);
        int64_t end = sat_min(u.r0 + high, a->block_rows);
        if (rows < a->block_rows || cols < a->block_cols) FN(clear)(j, t, rows, cols, u.r0, end);
    }
}

static sat_status FN(launch)(const sat_launch *l) {
    sampled_job job = sampled_job_of(l);
    const sampled_shape *s = &job.st->shape;
    int64_t packs = FN(x_packs)(&job) + FN(y_packs)(&job), tasks = job.st->task_count;
#pragma omp parallel num_threads(sampled_threads(l))
    for (int64_t chunk = 0; chunk < s->chunks; chunk++) {
        int64_t k0 = chunk * s->kc, len = sat_min(s->kc, job.p->k - k0);
        if (packs > 0) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t i = 0; i < packs; i++) FN(pack)(&job, k0, len, i);
        }
#pragma omp for schedule(dynamic, 1)
        for (int64_t t = 0; t < tasks; t++)
            for (int64_t u = job.st->tasks[t]; u < job.st->tasks[t + 1]; u++) FN(multiply_item)(&job, chunk, u);
    }
    return SAT_OK;
}

#undef FN
