// Operands of a case: laid out by their strides in guarded memory, filled, and compared after a run.

#include "check_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../number.h"
#include "../rng.h"
#include "check_attention.h"
#include "check_grouped.h"
#include "check_reference.h"

enum { GUARD = 256, POISON = 0xff }; // all bits set is a NaN in every dtype

/* ---- memory ---- */

static bool arena_reserve(arena *a, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) / page * page;
    if (a->bytes >= bytes) return true;
    if (a->map) munmap(a->map - page, a->bytes + 2 * page);
    *a = (arena){0};
    char *map = mmap(NULL, bytes + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return false;
    if (mprotect(map + page, bytes, PROT_READ | PROT_WRITE) != 0) {
        munmap(map, bytes + 2 * page);
        return false;
    }
    a->map = map + page, a->bytes = bytes;
    return true;
}

// At the very end, at the very start, or between: there no more aligned than the problem says.
static char *put(const arena *a, size_t bytes, size_t align, place where) {
    if (where == PLACE_START) return a->map;
    if (where == PLACE_END) return a->map + (a->bytes - bytes) / align * align;
    return a->map + GUARD + align;
}

static bool lay_out(arena *a, operand *o, place where) {
    size_t bytes = (size_t)o->span * operand_size(o);
    if (!arena_reserve(a, bytes + 4 * GUARD)) return false;
    o->data = put(a, bytes, o->align, where);
    char *end = o->data + bytes, *last = a->map + a->bytes;
    o->zone = o->data - a->map > GUARD ? o->data - GUARD : a->map;
    o->zone_bytes = (size_t)((last - end > GUARD ? end + GUARD : last) - o->zone);
    o->before = malloc(o->zone_bytes + 1);
    return o->before != NULL;
}

static int64_t span_of(const operand *o) {
    if (o->rows == 0 || o->cols == 0 || o->batch == 0) return 0;
    return operand_at(o, o->batch - 1, o->rows - 1, o->cols - 1) + 1;
}

static operand values_operand(const check_case *c, sat_dtype t, sat_layout l, uint32_t align) {
    const blocks *b = &c->blocks;
    l.row_stride = b->block_cols, l.col_stride = 1;
    return (operand){.name = "values",
                     .dtype = t,
                     .values = true,
                     .rows = case_room(c) * b->block_rows,
                     .cols = b->block_cols,
                     .layout = l,
                     .align = align};
}

static operand dense_operand(const char *name, sat_dtype t, int64_t rows, int64_t cols, sat_layout l, uint32_t align) {
    return (operand){.name = name, .dtype = t, .rows = rows, .cols = cols, .layout = l, .align = align};
}

int data_operands(const check_case *c, operand *list) {
    const sat_problem *p = &c->problem;
    int count = 3;
    bool product = p->op <= SAT_SAMPLED;
    if (is_attention(p)) count = attention_operands(p, list);
    else if (is_grouped(p)) count = grouped_operands(p, list);
    else if (p->op == SAT_SAMPLED) {
        list[0] = dense_operand("X", p->a_dtype, p->m, p->k, p->a, p->a_align);
        list[1] = dense_operand("Y", p->b_dtype, p->k, p->n, p->b, p->b_align);
        list[2] = values_operand(c, p->c_dtype, p->c, p->c_align);
    } else {
        list[0] = values_operand(c, p->a_dtype, p->a, p->a_align);
        list[1] = dense_operand("B", p->b_dtype, p->k, p->n, p->b, p->b_align);
        list[2] = dense_operand("C", p->c_dtype, p->m, p->n, p->c, p->c_align);
    }
    if (product && p->matmul.bias) {
        sat_layout l = {.row_stride = 1, .col_stride = 1};
        list[count++] = dense_operand("bias", p->c_dtype, p->m, 1, l, (uint32_t)number_size(p->c_dtype));
    }
    if (product) list[2].output = true;
    for (int i = 0; i < count; i++) {
        if (!is_grouped(p) && list[i].batch == 0) list[i].batch = p->batch;
        list[i].span = span_of(&list[i]);
    }
    return count;
}

bool data_open(check_data *d, const check_case *c) {
    d->count = data_operands(c, d->list);
    memset(d->pointers, 0, sizeof d->pointers);
    if (is_grouped(&c->problem) && !grouped_open(d, c)) return false;
    for (int i = 0; i < d->count; i++) {
        operand *o = &d->list[i];
        if (!lay_out(&d->arenas[i], o, c->place)) return false;
        d->pointers[i] = o->data;
        size_t elements = o->output ? (size_t)(o->rows * o->cols * o->batch) + 1 : 1;
        o->expected = calloc(elements, sizeof *o->expected);
        o->bound = calloc(elements, sizeof *o->bound);
        if (!o->expected || !o->bound) return false;
    }
    return true;
}

void data_close(check_data *d) {
    for (int i = 0; i < d->count; i++) {
        free(d->list[i].before), free(d->list[i].expected), free(d->list[i].bound);
        d->list[i] = (operand){0};
    }
    free(d->groups);
    d->count = 0, d->groups = NULL;
}

void data_free(check_data *d) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (int i = 0; i < CHECK_OPERANDS; i++)
        if (d->arenas[i].map) munmap(d->arenas[i].map - page, d->arenas[i].bytes + 2 * page);
    for (int i = 0; d->context && i < CHECK_OPERANDS; i++) sat_memory_free(d->context, d->copies[i]);
    *d = (check_data){0};
}

/* ---- filling ---- */

// Is this element of block values inside the matrix? What is not stays NaN, and no result may depend on it.
static bool inside(const check_case *c, const int64_t *block_row, int64_t i, int64_t j) {
    const blocks *b = &c->blocks;
    int64_t block = i / b->block_rows;
    return block_row[block] >= 0 && block_row[block] * b->block_rows + i % b->block_rows < b->rows &&
           b->col_idx[block] * b->block_cols + j < b->cols;
}

static void fill_operand(const operand *o, const check_case *c, const int64_t *block_row, rng *r) {
    memset(o->zone, POISON, o->zone_bytes);
    if (o->index || (o->output && c->problem.beta == 0)) return;
    int64_t items = o->layout.batch_stride || o->batch == 0 ? o->batch : 1;
    for (int64_t z = 0; z < items; z++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++)
                if (!o->values || inside(c, block_row, i, j))
                    number_store(o->dtype, o->data, operand_at(o, z, i, j), 2 * rng_unit(r) - 1);
}

// The band of the dense operand that the case wants NaN: rows of B or X that one block row or column reads.
static void poison_band(const check_data *d, const check_case *c) {
    const blocks *b = &c->blocks;
    bool sampled = c->problem.op == SAT_SAMPLED;
    const operand *o = &d->list[sampled ? 0 : 1];
    int64_t width = sampled || c->problem.matmul.transpose ? b->block_rows : b->block_cols;
    if (c->poisoned < 0 || o->layout.row_stride == 0) return;
    for (int64_t z = 0; z < o->batch; z++)
        for (int64_t i = c->poisoned * width; i < (c->poisoned + 1) * width && i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++) number_store(o->dtype, o->data, operand_at(o, z, i, j), NAN);
}

// Some heads have no sink, which -inf says.
static void leave_sinks_out(const check_data *d, const check_case *c, rng *r) {
    const operand *o = &d->list[c->problem.op == SAT_ATTENTION ? 5 : 9];
    for (int64_t h = 0; h < o->rows; h++)
        if (rng_chance(r, 0.15)) number_store(o->dtype, o->data, operand_at(o, 0, h, 0), -INFINITY);
}

// Without an element to write a run reads nothing.
static bool writes(const check_data *d) {
    bool any = false;
    for (int i = 0; i < d->count; i++) any = any || (d->list[i].output && d->list[i].span > 0);
    return any;
}

bool data_fill(check_data *d, const check_case *c, uint64_t seed) {
    const blocks *b = &c->blocks;
    int64_t room = case_room(c), *block_row = malloc((size_t)(room + 1) * sizeof *block_row);
    if (!block_row) return false;
    for (int64_t i = 0; i < room; i++) block_row[i] = -1; // of no row
    for (int64_t row = 0; row < b->grid_rows; row++)
        for (int64_t i = b->row_ptr[row]; i < blocks_end(b, row); i++) block_row[i] = row;
    rng r = {seed};
    for (int i = 0; i < d->count; i++) fill_operand(&d->list[i], c, block_row, &r);
    free(block_row);
    d->expected = c->mask.used && writes(d) ? c->mask.fault : SAT_OK;
    if (is_grouped(&c->problem)) grouped_inputs(d, c, &r);
    if (is_attention(&c->problem) && c->problem.attention.sinks) leave_sinks_out(d, c, &r);
    if (c->problem.op == SAT_ATTENTION_BACKWARD && !attention_inputs(d, c)) return false;
    if (c->problem.op <= SAT_SAMPLED) poison_band(d, c);
    for (int i = 0; i < d->count; i++) memcpy(d->list[i].before, d->list[i].zone, d->list[i].zone_bytes);
    if (is_grouped(&c->problem)) return grouped_reference(d, c);
    return is_attention(&c->problem) ? attention_reference(d, c) : reference_compute(d, c);
}

void data_restore(check_data *d) {
    for (int i = 0; i < d->count; i++) memcpy(d->list[i].zone, d->list[i].before, d->list[i].zone_bytes);
}

/* ---- a device with memory of its own ---- */

sat_status data_push(check_data *d, sat_context *context) {
    if (sat_context_device(context)->backend == SAT_CPU) return SAT_OK;
    d->context = context;
    for (int i = 0; i < d->count; i++) {
        const operand *o = &d->list[i];
        size_t shift = (uintptr_t)o->zone % 4096, bytes = o->zone_bytes + 4096; // aligned as here, and no better
        if (d->copy_bytes[i] < bytes) {
            sat_memory_free(context, d->copies[i]);
            d->copies[i] = NULL, d->copy_bytes[i] = 0;
            void *memory = NULL;
            sat_status status = sat_memory_alloc(context, 2 * bytes + 4096, &memory);
            if (status != SAT_OK) return status;
            d->copies[i] = memory, d->copy_bytes[i] = 2 * bytes;
        }
        char *zone = (char *)(((uintptr_t)d->copies[i] + 4095) / 4096 * 4096) + shift;
        sat_status status = sat_memory_write(context, zone, o->zone, o->zone_bytes);
        if (status != SAT_OK) return status;
        d->pointers[i] = zone + (o->data - o->zone);
    }
    return SAT_OK;
}

sat_status data_pull(check_data *d) {
    if (!d->context) return SAT_OK;
    sat_status status = sat_stream_wait(d->context, NULL);
    for (int i = 0; i < d->count && status == SAT_OK; i++) {
        const operand *o = &d->list[i];
        status = sat_memory_read(d->context, o->zone, (char *)d->pointers[i] - (o->data - o->zone), o->zone_bytes);
    }
    return status;
}

/* ---- comparing ---- */

static bool compare_elements(const operand *o, const check_case *c, char *message, size_t capacity) {
    bool nan_shows = activation_of(&c->problem) == SAT_ACT_NONE; // what an activation makes of NaN is not promised
    for (int64_t z = 0, at = 0; z < o->batch; z++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++, at++) {
                double got = number_load(o->dtype, o->data, operand_at(o, z, i, j)), want = o->expected[at];
                bool ok = isnan(want)   ? isnan(got) || !nan_shows
                          : isinf(want) ? got == want
                                        : fabs(got - want) <= o->bound[at];
                if (ok) continue;
                snprintf(message, capacity,
                         "%s[%" PRId64 ",%" PRId64 "] of item %" PRId64 " is %.9g, expected %.9g +- %.2g", o->name, i,
                         j, z, got, want, o->bound[at]);
                return false;
            }
    return true;
}

// The output's zone with its elements taken out must be as it was: gaps, and guards on both sides.
static bool compare_gaps(const operand *o, char *message, size_t capacity) {
    size_t size = operand_size(o), ahead = (size_t)(o->data - o->zone);
    char *rest = malloc(o->zone_bytes + 1);
    if (!rest) return snprintf(message, capacity, "not enough memory to compare"), false;
    memcpy(rest, o->zone, o->zone_bytes);
    for (int64_t z = 0; z < o->batch; z++)
        for (int64_t i = 0; i < o->rows; i++)
            for (int64_t j = 0; j < o->cols; j++)
                memset(rest + ahead + (size_t)operand_at(o, z, i, j) * size, POISON, size);
    size_t k = 0;
    while (k < o->zone_bytes && (unsigned char)rest[k] == POISON) k++;
    free(rest);
    if (k == o->zone_bytes) return true;
    snprintf(message, capacity, "wrote outside its output: byte %" PRId64 " from its start, of %" PRId64,
             (int64_t)k - (int64_t)ahead, o->span * (int64_t)size);
    return false;
}

bool data_compare(const check_data *d, const check_case *c, char *message, size_t capacity) {
    for (int i = 0; i < d->count; i++) {
        const operand *o = &d->list[i];
        if (o->output || memcmp(o->zone, o->before, o->zone_bytes) == 0) continue;
        snprintf(message, capacity, "changed its input %s, or memory beside it", o->name);
        return false;
    }
    for (int i = 0; i < d->count; i++) {
        const operand *o = &d->list[i];
        if (o->output && !(compare_gaps(o, message, capacity) && compare_elements(o, c, message, capacity)))
            return false;
    }
    return true;
}
