// Problems from lines of text, and their operands.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gpu.h"

// The value of "name=..." in a line, up to the next blank; false where there is none.
static bool word(const char *line, const char *name, char *out, size_t capacity) {
    size_t length = strlen(name);
    for (const char *at = line; at; at = strchr(at, ' ') ? strchr(at, ' ') + 1 : NULL) {
        if (strncmp(at, name, length) != 0 || at[length] != '=') continue;
        size_t n = strcspn(at + length + 1, " \n");
        need(n < capacity, name);
        memcpy(out, at + length + 1, n);
        out[n] = 0;
        return true;
    }
    return false;
}

static int64_t number(const char *line, const char *name, int64_t otherwise) {
    char text[32];
    return word(line, name, text, sizeof text) ? strtoll(text, NULL, 10) : otherwise;
}

static sat_dtype dtype_of(const char *line) {
    static const char *const names[] = {"f32", "f64", "f16", "bf16"};
    char text[16];
    need(word(line, "dtype", text, sizeof text), "dtype");
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) return (sat_dtype)(SAT_F32 + i);
    need(false, "dtype");
    return SAT_F32;
}

static size_t size_of(sat_dtype t) { return t == SAT_F64 ? 8 : t == SAT_F32 ? 4 : 2; }

// A Matrix Market file of entries by rows, one for each block.
static sat_pattern *read_pattern(sat_context *context, const char *path, int64_t br, int64_t bc) {
    FILE *f = fopen(path, "r");
    need(f != NULL, path);
    int64_t rows = 0, cols = 0, count = 0;
    bool good = fscanf(f, "%*[^\n] %" SCNd64 " %" SCNd64 " %" SCNd64, &rows, &cols, &count) == 3;
    need(good && rows > 0 && cols > 0 && count >= 0 && count < 1 << 30, path);
    int64_t grid = (rows + br - 1) / br;
    int64_t *ptr = calloc((size_t)grid + 1, sizeof *ptr), *col = calloc((size_t)count + 1, sizeof *col);
    need(ptr && col, "memory");
    for (int64_t i = 0, r, c; i < count; i++) {
        need(fscanf(f, "%" SCNd64 " %" SCNd64, &r, &c) == 2 && r > 0 && r <= rows && c > 0 && c <= cols, path);
        ptr[(r - 1) / br + 1]++, col[i] = (c - 1) / bc;
    }
    fclose(f);
    for (int64_t i = 0; i < grid; i++) ptr[i + 1] += ptr[i];
    sat_bsr s = {SAT_SIZED(sat_bsr), .rows = rows, .cols = cols, .block_rows = br, .block_cols = bc};
    s.stored_blocks = count, s.index_type = SAT_I64, s.row_ptr = ptr, s.col_idx = col;
    sat_pattern *pattern = NULL;
    need_ok(sat_pattern_create(context, &s, &pattern), path);
    free(ptr);
    free(col);
    return pattern;
}

static sat_layout dense(int64_t rows, int64_t cols, bool by_columns) {
    return (sat_layout){.row_stride = by_columns ? 1 : cols, .col_stride = by_columns ? rows : 1};
}

static void make_problem(job *j, const char *line, bool sampled) {
    int64_t m = number(line, "m", 0), n = number(line, "n", 0), k = number(line, "k", 0);
    sat_dtype t = dtype_of(line);
    bool col_b = number(line, "col_b", 0), col_c = number(line, "col_c", 0);
    sat_problem *p = &j->problem;
    need_ok(sampled ? sat_problem_sampled(p, t, k) : sat_problem_matmul(p, t, n), "problem");
    p->m = m, p->n = n, p->k = k;
    p->a_align = p->b_align = p->c_align = 256;
    if (number(line, "tf32", 0)) p->flags |= SAT_ALLOW_TF32;
    if (number(line, "transpose", 0)) p->matmul.transpose = SAT_TRANSPOSE;
    sat_pattern_view v = {SAT_SIZED(sat_pattern_view)};
    need_ok(sat_pattern_get(j->pattern, &v), "pattern");
    size_t values = (size_t)(v.stored_blocks * v.block_rows * v.block_cols) * size_of(t);
    size_t sizes[3] = {values, (size_t)(k * n) * size_of(t), (size_t)(m * n) * size_of(t)};
    if (sampled) sizes[0] = (size_t)(m * k) * size_of(t), sizes[2] = values;
    if (sampled) p->a = dense(m, k, col_b), p->b = dense(k, n, col_c);
    else p->b = dense(k, n, col_b), p->c = dense(m, n, col_c);
    memcpy(j->bytes, sizes, sizeof sizes);
    j->count = 3, j->types[0] = j->types[1] = j->types[2] = t;
}

// Q, K, V, O, and backward LSE, dO, dQ, dK, dV: without gaps, (batch, head, row, size).
static void make_attention(job *j, const char *line, bool back) {
    sat_dtype t = dtype_of(line);
    int64_t m = number(line, "m", 0), n = number(line, "n", 0), dim = number(line, "dim", 0);
    int64_t heads = number(line, "heads", 0), kv_heads = number(line, "kv_heads", heads);
    sat_problem *p = &j->problem;
    need_ok((back ? sat_problem_attention_backward : sat_problem_attention)(p, t, heads, kv_heads, dim), "problem");
    p->m = m, p->n = n, p->batch = number(line, "batch", 1);
    p->a_align = p->b_align = p->c_align = 256;
    p->attention.causal = number(line, "causal", 0), p->attention.window = number(line, "window", 0);
    size_t q = (size_t)(p->batch * heads * m * dim) * size_of(t),
           k = (size_t)(p->batch * kv_heads * n * dim) * size_of(t);
    const size_t sizes[9] = {q, k, k, q, (size_t)(p->batch * heads * m) * sizeof(float), q, q, k, k};
    memcpy(j->bytes, sizes, sizeof sizes);
    for (int i = 0; i < 9; i++) j->types[i] = i == 4 ? SAT_F32 : t;
    j->count = back ? 9 : 4;
}

sat_status job_run(const job *j, sat_plan *plan, bool forward, void *stream) {
    void *const *o = j->operands;
    const void *inputs[] = {o[0], o[1], o[2], o[3], o[4], o[5]};
    if (forward) return sat_run(plan, inputs, 3, o + 3, 2, stream); // with LSE
    switch (j->count) {
    case 3: return sat_run(plan, inputs, 2, o + 2, 1, stream);
    case 4: return sat_run(plan, inputs, 3, o + 3, 1, stream);
    default: return sat_run(plan, inputs, 6, o + 6, 3, stream);
    }
}

// O and LSE as the backward pass finds them: with others, weights would not sum to 1 and gradients overflow.
static void run_forward(const job *j, sat_context *context) {
    sat_problem p = j->problem;
    sat_plan *plan = NULL;
    p.op = SAT_ATTENTION, p.attention.lse = true;
    need_ok(sat_plan_create(context, j->pattern, &p, &plan), "a plan of the forward pass");
    need_ok(job_run(j, plan, true, NULL), "the forward pass");
    need_ok(sat_stream_wait(context, NULL), "the forward pass");
    sat_plan_free(plan);
}

bool job_open(job *j, sat_context *context, const char *line) {
    char op[24], matrix[1024];
    *j = (job){.id = (int)number(line, "id", -1), .problem = {SAT_SIZED(sat_problem)}};
    if (!word(line, "op", op, sizeof op)) return false;
    int64_t br = number(line, "block_rows", 0), bc = number(line, "block_cols", 0);
    need(word(line, "matrix", matrix, sizeof matrix) && br > 0 && bc > 0, line);
    word(line, "variants", j->variants, sizeof j->variants);
    j->estimate = number(line, "estimate", 0), j->within = (int)number(line, "within", 0);
    j->pattern = read_pattern(context, matrix, br, bc);
    bool back = strcmp(op, "attention-backward") == 0;
    if (back || strcmp(op, "attention") == 0) make_attention(j, line, back);
    else make_problem(j, line, strcmp(op, "sampled") == 0);
    for (int i = 0; i < j->count; i++)
        need_ok(sat_memory_alloc(context, j->bytes[i] + 64, &j->operands[i]), "operands");
    job_fill(j, context, 1);
    if (back) run_forward(j, context);
    return true;
}

void job_close(job *j, sat_context *context) {
    for (int i = 0; i < j->count; i++) sat_memory_free(context, j->operands[i]);
    sat_pattern_free(j->pattern);
}

/* ---- operands ---- */

// A number from -1 to 1 in 16 bits, cut off; what is too small for them is zero.
static uint16_t half_bits(float x, bool bf16) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (bf16) return (uint16_t)(bits >> 16);
    int exponent = (int)(bits >> 23 & 0xff) - 127 + 15;
    return (uint16_t)(bits >> 16 & 0x8000) | (exponent <= 0 ? 0 : (uint16_t)(exponent << 10 | (bits >> 13 & 0x3ff)));
}

// Uniform from -1 to 1, as races and rivals have them: the power that products take depends on it, and so their time.
static void fill_host(void *to, sat_dtype t, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i < bytes / size_of(t); i++) {
        uint64_t r = seed = seed * 6364136223846793005u + 1442695040888963407u;
        r = (r ^ (r >> 31)) * 0x9e3779b97f4a7c15u;
        double x = (double)(int64_t)r * 0x1p-63;
        if (t == SAT_F64) ((double *)to)[i] = x;
        else if (t == SAT_F32) ((float *)to)[i] = (float)x;
        else ((uint16_t *)to)[i] = half_bits((float)x, t == SAT_BF16);
    }
}

void job_fill(const job *j, sat_context *context, uint64_t seed) {
    const size_t piece = (size_t)4 << 20; // the same numbers again and again: what counts is that they vary
    void *host = malloc(piece);
    need(host != NULL, "memory");
    for (int i = 0; i < j->count; i++) {
        fill_host(host, j->types[i], piece, seed * 3 + (uint64_t)i);
        for (size_t at = 0; at < j->bytes[i]; at += piece) {
            size_t left = j->bytes[i] - at;
            need_ok(sat_memory_write(context, (char *)j->operands[i] + at, host, left < piece ? left : piece), "fill");
        }
    }
    free(host);
}
