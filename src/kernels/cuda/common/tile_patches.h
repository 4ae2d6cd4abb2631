/* Stored blocks cut along the lines of dense tiles.
 *
 * A kernel that works on dense tiles of a block-sparse matrix needs to know which tiles hold anything, and what of the
 * stored blocks is in each. A patch is a rectangle of one block inside one tile. Blocks may have any shape: one block
 * may be cut into many patches, and one tile may hold patches of many blocks. Made on the host, once a plan. */
#ifndef SAT_TILE_PATCHES_H
#define SAT_TILE_PATCHES_H

#include <stdlib.h>

#include "variant.h"

typedef struct sat_patch {
    uint32_t from;                   /* its first element in the values */
    uint8_t row, col, height, width; /* in its tile; sides of tiles are at most 255 */
} sat_patch;

/* A tile with patches. */
typedef struct sat_patch_tile {
    uint32_t row, col;     /* in tiles */
    uint32_t first, count; /* its patches */
} sat_patch_tile;

/* All tiles with patches, row by row. */
typedef struct sat_patches {
    int64_t rows, tiles, count; /* rows of tiles, tiles with patches, patches */
    uint32_t *ptr;              /* row i has the tiles ptr[i] to ptr[i + 1] - 1; rows + 1 of them */
    sat_patch_tile *tile;
    sat_patch *patch;
} sat_patches;

/* What is cut: a matrix of so many rows and columns by tiles of tile_rows x tile_cols. */
typedef struct sat_patch_shape {
    int64_t rows, cols;
    int tile_rows, tile_cols;
} sat_patch_shape;

enum { SAT_MOST_PATCHES = 1 << 23, SAT_MOST_TILES = 1 << 22 };

static inline int64_t sat_patch_tiles_across(int64_t length, int tile) { return (length + tile - 1) / tile; }

/* At most so many patches. */
static inline double sat_patches_bound(const sat_pattern_view *a, const sat_rows *r, const sat_patch_shape *s) {
    int64_t down = (r->br - 1) / s->tile_rows + 2, along = (r->bc - 1) / s->tile_cols + 2;
    if (s->tile_rows % r->br == 0) down = 1;
    else if (r->br % s->tile_rows == 0) down = r->br / s->tile_rows;
    if (s->tile_cols % r->bc == 0) along = 1;
    else if (r->bc % s->tile_cols == 0) along = r->bc / s->tile_cols;
    return (double)a->stored_blocks * (double)down * (double)along;
}

static inline bool sat_patches_fit(const sat_pattern_view *a, const sat_rows *r, const sat_patch_shape *s) {
    double tiles =
        (double)sat_patch_tiles_across(s->rows, s->tile_rows) * (double)sat_patch_tiles_across(s->cols, s->tile_cols);
    double values = (double)a->stored_blocks * (double)r->block_elements;
    return tiles <= (double)SAT_MOST_TILES && values <= 4e9 && sat_patches_bound(a, r, s) <= (double)SAT_MOST_PATCHES;
}

/* About how many tiles have patches where blocks are spread at random. */
static inline double sat_patch_tiles_expected(const sat_pattern_view *a, const sat_rows *r, const sat_patch_shape *s) {
    double all =
        (double)sat_patch_tiles_across(s->rows, s->tile_rows) * (double)sat_patch_tiles_across(s->cols, s->tile_cols);
    double grid = (double)a->grid_rows * (double)a->grid_cols;
    double blocks = ((double)s->tile_rows / (double)r->br + 1) * ((double)s->tile_cols / (double)r->bc + 1);
    return fmin(all * (1 - pow(1 - fmin(1, (double)a->stored_blocks / fmax(1, grid)), blocks)),
                sat_patches_bound(a, r, s));
}

static inline void sat_patches_free(sat_patches *x) {
    free(x->ptr), free(x->tile), free(x->patch);
    x->ptr = NULL, x->tile = NULL, x->patch = NULL;
}

/* Goes through all patches of `r`, whose arrays are in host memory. `count`: patches by tile, which is what there is to
 * do where `at` is NULL; else at[tile] is where its next patch is written. */
static inline void sat_patches_iterate(const sat_rows *r, const sat_patch_shape *s, uint32_t *count, uint32_t *at,
                                       sat_patch *to) {
    const int64_t across = sat_patch_tiles_across(s->cols, s->tile_cols);
    for (int64_t row = 0; row < r->count; row++) {
        const int64_t i0 = row * r->br, i1 = sat_min(i0 + r->br, s->rows);
        for (int64_t t = r->ptr[row]; t < r->ptr[row + 1]; t++) {
            const int64_t j0 = r->col[t] * r->bc, j1 = sat_min(j0 + r->bc, s->cols);
            const int64_t values = sat_block_of(r, t) * r->block_elements;
            for (int64_t x = i0 / s->tile_rows; x * s->tile_rows < i1; x++)
                for (int64_t y = j0 / s->tile_cols; y * s->tile_cols < j1; y++) {
                    if (!at) {
                        count[x * across + y]++;
                        continue;
                    }
                    const int64_t i = sat_max(i0, x * s->tile_rows), j = sat_max(j0, y * s->tile_cols);
                    const int64_t high = sat_min(i1, (x + 1) * s->tile_rows) - i;
                    const int64_t wide = sat_min(j1, (y + 1) * s->tile_cols) - j;
                    sat_patch p = {(uint32_t)(values + (i - i0) * r->row_step + (j - j0) * r->col_step),
                                   (uint8_t)(i - x * s->tile_rows), (uint8_t)(j - y * s->tile_cols), (uint8_t)high,
                                   (uint8_t)wide};
                    to[at[x * across + y]++] = p;
                }
        }
    }
}

/* Cuts the blocks of `r`. False: out of memory. Free it with sat_patches_free. */
static inline bool sat_patches_make(const sat_rows *r, const sat_patch_shape *s, sat_patches *x) {
    const int64_t across = sat_patch_tiles_across(s->cols, s->tile_cols);
    memset(x, 0, sizeof *x);
    x->rows = sat_patch_tiles_across(s->rows, s->tile_rows);
    uint32_t *count = (uint32_t *)calloc((size_t)(x->rows * across) + 1, sizeof *count);
    x->ptr = (uint32_t *)malloc(((size_t)x->rows + 1) * sizeof *x->ptr);
    if (count) sat_patches_iterate(r, s, count, NULL, NULL);
    for (int64_t i = 0; count && i < x->rows * across; i++) x->tiles += count[i] > 0, x->count += count[i];
    x->tile = (sat_patch_tile *)malloc(((size_t)x->tiles + 1) * sizeof *x->tile);
    x->patch = (sat_patch *)malloc(((size_t)x->count + 1) * sizeof *x->patch);
    if (!count || !x->ptr || !x->tile || !x->patch) {
        free(count);
        sat_patches_free(x);
        return false;
    }
    uint32_t tiles = 0, patches = 0;
    for (int64_t i = 0; i < x->rows; i++) {
        x->ptr[i] = tiles;
        for (int64_t j = 0; j < across; j++) {
            uint32_t here = count[i * across + j];
            if (here) {
                sat_patch_tile t = {(uint32_t)i, (uint32_t)j, patches, here};
                x->tile[tiles++] = t;
            }
            count[i * across + j] = patches; /* from now on: where the next patch is written */
            patches += here;
        }
    }
    x->ptr[x->rows] = tiles;
    sat_patches_iterate(r, s, NULL, count, x->patch);
    free(count);
    return true;
}

#ifdef __CUDACC__
#include "variant.cuh"

/* The same in device memory. */
struct sat_device_patches {
    const uint32_t *ptr;
    const sat_patch_tile *tile;
    const sat_patch *patch;
    int64_t rows, tiles;
};

/* Bytes of a workspace that holds them. */
static inline size_t sat_patches_bytes(const sat_pattern_view *a, const sat_rows *r, const sat_patch_shape *s) {
    int64_t rows = sat_patch_tiles_across(s->rows, s->tile_rows);
    double patches = sat_patches_bound(a, r, s), all = (double)(rows * sat_patch_tiles_across(s->cols, s->tile_cols));
    size_t bytes = 0;
    sat_carve(&bytes, 4.0 * (double)(rows + 1));
    sat_carve(&bytes, (double)sizeof(sat_patch_tile) * fmin(all, patches));
    sat_carve(&bytes, (double)sizeof(sat_patch) * patches);
    return bytes;
}

/* Cuts the blocks, and copies the patches to `to`, which has room for sat_patches_bytes. */
static inline sat_status sat_upload_patches(const sat_prepare *q, const sat_rows *r, const sat_patch_shape *s, void *to,
                                            sat_device_patches *x) {
    sat_patches p;
    if (!sat_patches_make(r, s, &p))
        return sat_fail(SAT_OUT_OF_MEMORY, "%s: patches of %lld blocks", q->variant->name, (long long)r->ptr[r->count]);
    cudaStream_t stream = (cudaStream_t)q->stream;
    size_t used = 0;
    auto copy = [&](const void *from, size_t bytes, cudaError_t &e) -> const void * {
        void *there = (char *)to + sat_carve(&used, (double)bytes);
        if (e == cudaSuccess && bytes) e = cudaMemcpyAsync(there, from, bytes, cudaMemcpyHostToDevice, stream);
        return there;
    };
    cudaError_t e = cudaSuccess;
    x->ptr = (const uint32_t *)copy(p.ptr, ((size_t)p.rows + 1) * sizeof *p.ptr, e);
    x->tile = (const sat_patch_tile *)copy(p.tile, (size_t)p.tiles * sizeof *p.tile, e);
    x->patch = (const sat_patch *)copy(p.patch, (size_t)p.count * sizeof *p.patch, e);
    x->rows = p.rows, x->tiles = p.tiles;
    if (e == cudaSuccess) e = cudaStreamSynchronize(stream); // the copies read what is freed now
    sat_patches_free(&p);
    if (e == cudaSuccess) return SAT_OK;
    return sat_fail(SAT_DEVICE_ERROR, "%s: %s", q->variant->name, cudaGetErrorString(e));
}

#endif
#endif
