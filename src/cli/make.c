// Patterns by kind. First every row gets its number of blocks (that is where skew lives), then its columns.

#include "make.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "memory.h"
#include "rng.h"

const char *const make_kind_names[] = {"random", "banded", "diagonal", "powerlaw", NULL};

// Rows by rank: weight (rank+1)^-exponent, none heavier than a whole row. `scale` makes them sum to the total.
static double row_share(int64_t rank, double exponent, double scale, double most) {
    double x = scale * pow((double)(rank + 1), -exponent);
    return x < most ? x : most;
}

static double sum_of_shares(int64_t rows, double exponent, double scale, double most) {
    double sum = 0;
    for (int64_t i = 0; i < rows;) { // past the first few, many rows by their middle one: the weights are smooth
        int64_t width = i < 64 ? 1 : i / 32;
        if (width > rows - i) width = rows - i;
        sum += (double)width * row_share(i + width / 2, exponent, scale, most);
        i += width;
    }
    return sum;
}

static double scale_for(int64_t rows, double exponent, double total, double most) {
    double low = 0, high = total * pow((double)rows, exponent) + 1;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (sum_of_shares(rows, exponent, middle, most) < total) low = middle;
        else high = middle;
    }
    return 0.5 * (low + high);
}

// The exponent whose heaviest row is `skew` times the mean.
static double exponent_for(int64_t rows, double skew, double total, double most) {
    double low = 0, high = 8, mean = total / (double)rows;
    for (int i = 0; i < 30; i++) {
        double middle = 0.5 * (low + high);
        double top = row_share(0, middle, scale_for(rows, middle, total, most), most);
        if (top < skew * mean) low = middle;
        else high = middle;
    }
    return 0.5 * (low + high);
}

// Whole numbers of blocks a row that sum to the total exactly; the rounding's remainder goes along the rows evenly.
static void fill_counts(const make_request *q, int64_t rows, int64_t cols, int64_t total, double skew, rng *r,
                        int64_t *count) {
    if (rows == 0) return;
    if (skew <= 1) {
        for (int64_t i = 0; i < rows; i++)
            count[i] = (int64_t)((__int128_t)total * (i + 1) / rows) - (int64_t)((__int128_t)total * i / rows);
        return;
    }
    double exponent = exponent_for(rows, skew, (double)total, (double)cols);
    double scale = scale_for(rows, exponent, (double)total, (double)cols), owed = 0;
    int64_t given = 0;
    for (int64_t i = 0; i < rows; i++) {
        owed += row_share(i, exponent, scale, (double)cols);
        int64_t now = (int64_t)floor(owed + 0.5) - given;
        count[i] = now < 0 ? 0 : now > cols ? cols : now;
        given += count[i];
    }
    for (int64_t i = 0; given != total; i = (i + 1) % rows) {
        if (given < total && count[i] < cols) count[i]++, given++;
        if (given > total && count[i] > 0) count[i]--, given--;
    }
    if (q->kind == MAKE_BANDED) return; // a band keeps its heavy rows together, as a mesh refined at one end does
    for (int64_t i = rows - 1; i > 0; i--) {
        int64_t j = rng_below(r, i + 1), swap = count[i];
        count[i] = count[j], count[j] = swap;
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static bool mark(uint64_t *seen, int64_t i) {
    uint64_t bit = (uint64_t)1 << (i & 63);
    if (seen[i >> 6] & bit) return false;
    seen[i >> 6] |= bit;
    return true;
}

// Floyd's sampling: `count` different columns of `cols`, every set equally likely, in `count` draws.
static void uniform_columns(rng *r, uint64_t *seen, int64_t cols, int64_t count, int64_t *out) {
    for (int64_t i = 0, j = cols - count; i < count; i++, j++) {
        int64_t pick = rng_below(r, j + 1);
        if (!mark(seen, pick)) mark(seen, pick = j);
        out[i] = pick;
    }
}

// Some columns of the row before, then uniform ones that it has not, as long as there are enough of those.
static void overlapping_columns(rng *r, uint64_t *seen, const int64_t *before, int64_t had, double overlap,
                                int64_t cols, int64_t count, int64_t *out) {
    int64_t keep = (int64_t)(overlap * (double)had + rng_unit(r)), n = 0;
    if (keep < count - (cols - had)) keep = count - (cols - had);
    if (keep > count) keep = count;
    for (int64_t i = 0; i < had; i++) { // selection sampling: `keep` of the `had`
        if (rng_below(r, had - i) < keep - n) out[n++] = before[i];
        mark(seen, before[i]);
    }
    while (n < count) {
        int64_t pick = rng_below(r, cols);
        for (int tries = 0; !mark(seen, pick); tries++) pick = tries < 64 ? rng_below(r, cols) : (pick + 1) % cols;
        out[n++] = pick;
    }
    for (int64_t i = 0; i < had; i++) seen[before[i] >> 6] = 0;
}

// Popular columns first: the density of x^-1/2 scattered over the matrix by a fixed stride, repeats drawn again.
static void powerlaw_columns(rng *r, uint64_t *seen, int64_t cols, int64_t count, int64_t *out) {
    int64_t tries = 0, next = 0, stride = (int64_t)((double)cols * 0.6180339887498949) | 1;
    while (stride > 1) {
        int64_t a = stride, b = cols;
        while (b) {
            int64_t t = a % b;
            a = b, b = t;
        }
        if (a == 1) break;
        stride -= 2;
    }
    for (int64_t i = 0; i < count;) {
        double u = rng_unit(r);
        int64_t pick = (int64_t)((double)cols * u * u);
        if (tries++ > 16 * count) pick = next++; // nearly full: take what is left
        if (pick >= cols) pick = cols - 1;
        pick = (int64_t)((__int128_t)pick * stride % cols);
        if (mark(seen, pick)) out[i++] = pick;
    }
}

static void band_columns(int64_t row, int64_t rows, int64_t cols, int64_t count, int64_t *out) {
    int64_t middle = (int64_t)((__int128_t)row * cols / rows), first = middle - count / 2;
    if (first > cols - count) first = cols - count;
    if (first < 0) first = 0;
    for (int64_t i = 0; i < count; i++) out[i] = first + i;
}

static void diagonal_columns(int64_t row, int64_t rows, int64_t cols, int64_t count, int64_t *out) {
    int64_t middle = (int64_t)((__int128_t)row * cols / rows);
    for (int64_t i = 0; i < count; i++) out[i] = (middle + (int64_t)((__int128_t)i * cols / count)) % cols;
}

static void fill_columns(const make_request *q, blocks *b, uint64_t *seen, rng *r) {
    for (int64_t row = 0; row < b->grid_rows; row++) {
        int64_t *out = b->col_idx + b->row_ptr[row], count = b->row_ptr[row + 1] - b->row_ptr[row];
        switch (q->kind) {
        case MAKE_BANDED: band_columns(row, b->grid_rows, b->grid_cols, count, out); break;
        case MAKE_DIAGONAL: diagonal_columns(row, b->grid_rows, b->grid_cols, count, out); break;
        case MAKE_POWERLAW: powerlaw_columns(r, seen, b->grid_cols, count, out); break;
        default:
            if (q->overlap < 0 || row == 0) uniform_columns(r, seen, b->grid_cols, count, out);
            else
                overlapping_columns(r, seen, out - (b->row_ptr[row] - b->row_ptr[row - 1]),
                                    b->row_ptr[row] - b->row_ptr[row - 1], q->overlap, b->grid_cols, count, out);
            break;
        }
        qsort(out, (size_t)count, sizeof *out, by_value);
        for (int64_t i = 0; i < count; i++) seen[out[i] >> 6] = 0;
    }
}

static int64_t wanted(const make_request *q, int64_t rows, int64_t cols) {
    double all = (double)rows * (double)cols;
    if (q->stored >= 0) return (double)q->stored < all ? q->stored : rows * cols;
    if (q->sparsity < 0 && q->kind == MAKE_DIAGONAL) return cols > 0 ? rows : 0;
    double sparsity = q->sparsity < 0 ? 0.875 : q->sparsity;
    int64_t count = (int64_t)llround((1 - sparsity) * all);
    return count == 0 && sparsity < 1 && all > 0 ? 1 : count; // something to race
}

// The blocks of the transposed matrix. Rows are visited in order, so columns come out sorted.
static bool transpose_blocks(const blocks *b, blocks *out) {
    *out = (blocks){.rows = b->cols, .cols = b->rows, .block_rows = b->block_cols, .block_cols = b->block_rows};
    out->grid_rows = b->grid_cols, out->grid_cols = b->grid_rows, out->count = b->count;
    out->row_ptr = calloc((size_t)out->grid_rows + 2, sizeof *out->row_ptr);
    out->col_idx = calloc((size_t)out->count + 1, sizeof *out->col_idx);
    if (!out->row_ptr || !out->col_idx) return blocks_free(out), false;
    for (int64_t i = 0; i < b->count; i++) out->row_ptr[b->col_idx[i] + 2]++;
    for (int64_t i = 0; i < out->grid_rows; i++) out->row_ptr[i + 2] += out->row_ptr[i + 1];
    for (int64_t row = 0; row < b->grid_rows; row++)
        for (int64_t i = b->row_ptr[row]; i < b->row_ptr[row + 1]; i++)
            out->col_idx[out->row_ptr[b->col_idx[i] + 1]++] = row;
    return true;
}

static bool make_by_columns(const make_request *q, blocks *out, char *message, size_t capacity) {
    make_request transposed = *q;
    blocks b;
    transposed.by_columns = false;
    transposed.rows = q->cols, transposed.cols = q->rows;
    transposed.block_rows = q->block_cols, transposed.block_cols = q->block_rows;
    if (!make_blocks(&transposed, &b, message, capacity)) return false;
    bool ok = transpose_blocks(&b, out);
    if (!ok) snprintf(message, capacity, "not enough memory for %.3g stored blocks", (double)b.count);
    blocks_free(&b);
    return ok;
}

bool make_blocks(const make_request *q, blocks *out, char *message, size_t capacity) {
    if (q->by_columns) return make_by_columns(q, out, message, capacity);
    *out = (blocks){.rows = q->rows, .cols = q->cols, .block_rows = q->block_rows, .block_cols = q->block_cols};
    out->grid_rows = grid_of(q->rows, q->block_rows), out->grid_cols = grid_of(q->cols, q->block_cols);
    double all = (double)out->grid_rows * (double)out->grid_cols;
    double bytes = 8 * (2 * (double)out->grid_rows + all * (q->sparsity < 0 ? 0.125 : 1 - q->sparsity));
    if (q->stored >= 0) bytes = 8 * (2 * (double)out->grid_rows + (double)q->stored);
    if (!memory_fits(bytes)) {
        snprintf(message, capacity, "a pattern of %.3g by %.3g blocks takes %.3g GB, more than this machine has",
                 (double)out->grid_rows, (double)out->grid_cols, bytes * 1e-9);
        return false;
    }
    out->count = wanted(q, out->grid_rows, out->grid_cols);
    out->row_ptr = calloc((size_t)out->grid_rows + 1, sizeof *out->row_ptr);
    out->col_idx = calloc((size_t)out->count + 1, sizeof *out->col_idx);
    uint64_t *seen = calloc((size_t)out->grid_cols / 64 + 1, sizeof *seen);
    if (!out->row_ptr || !out->col_idx || !seen) {
        snprintf(message, capacity, "not enough memory for %.3g stored blocks", (double)out->count);
        free(seen);
        blocks_free(out);
        return false;
    }
    rng r = {q->seed};
    double skew = q->skew > 0 ? q->skew : q->kind == MAKE_POWERLAW ? 8 : 1;
    fill_counts(q, out->grid_rows, out->grid_cols, out->count, skew, &r, out->row_ptr + 1);
    for (int64_t i = 0; i < out->grid_rows; i++) out->row_ptr[i + 1] += out->row_ptr[i];
    fill_columns(q, out, seen, &r);
    free(seen);
    return true;
}
