/* Makes the work items of the tile scheduler, on the host. */
#include "kernels/cuda/common/schedule.h"

int64_t sat_schedule_share(const sat_rows *r, int64_t times, int64_t workers, int64_t minimum) {
    if (!r->ptr) return INT64_MAX; /* the host does not see the rows */
    double fair = (double)r->ptr[r->count] * (double)times / (double)sat_max(1, workers);
    return sat_max(minimum, fair < 1e15 ? (int64_t)fair + 1 : INT64_MAX);
}

int64_t sat_schedule_parts(int64_t blocks, int64_t share) {
    return blocks - share <= share / 4 ? 1 : (blocks + share - 1) / share;
}

sat_schedule_counts sat_schedule_count(const sat_rows *r, int64_t share) {
    sat_schedule_counts s = {0};
    if (!r->ptr) s.items = r->count; /* each row is an item */
    for (int64_t i = 0; r->ptr && i < r->count; i++) {
        int64_t parts = sat_schedule_parts(r->ptr[i + 1] - r->ptr[i], share);
        s.items += parts;
        if (parts > 1) s.splits++, s.partials += parts;
    }
    return s;
}

size_t sat_schedule_workspace(const sat_rows *r, int64_t share, int64_t n, size_t element) {
    sat_schedule_counts s = sat_schedule_count(r, share);
    return (size_t)s.items * sizeof(sat_work_item) + (size_t)s.splits * sizeof(sat_split_row) + 256 +
           (size_t)s.partials * (size_t)r->br * (size_t)n * element;
}

/* Longest first. Items of the same length stay in the order of rows, for locality. */
static int by_length(const void *a, const void *b) {
    const sat_work_item *x = (const sat_work_item *)a, *y = (const sat_work_item *)b;
    if (x->count != y->count) return x->count < y->count ? 1 : -1;
    return x->first < y->first ? -1 : x->first > y->first ? 1 : x->row < y->row ? -1 : x->row > y->row;
}

void sat_schedule_free(sat_schedule *s) {
    free(s->item);
    free(s->split);
    s->item = NULL, s->split = NULL;
}

bool sat_schedule_make(const sat_rows *r, int64_t share, sat_schedule *s) {
    sat_schedule_counts counts = sat_schedule_count(r, share);
    *s = (sat_schedule){.items = counts.items, .splits = counts.splits, .partials = counts.partials};
    s->item = (sat_work_item *)malloc(((size_t)s->items + 1) * sizeof *s->item);
    s->split = (sat_split_row *)malloc(((size_t)s->splits + 1) * sizeof *s->split);
    if (!s->item || !s->split) {
        sat_schedule_free(s);
        return false;
    }
    int64_t at = 0, splits = 0;
    int32_t partial = 0;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t first = r->ptr[i], blocks = r->ptr[i + 1] - first, parts = sat_schedule_parts(blocks, share);
        if (parts > 1) {
            sat_split_row split = {(int32_t)i, partial, (int32_t)parts, 0};
            s->split[splits++] = split;
        }
        for (int64_t part = 0; part < parts; part++) {
            int64_t from = blocks * part / parts, to = blocks * (part + 1) / parts;
            sat_work_item item = {first + from, (int32_t)i, (int32_t)(to - from), parts > 1 ? partial++ : -1, {0}};
            for (int64_t t = 0; r->col && t < to - from && t < SAT_ITEM_COLUMNS; t++)
                item.col[t] = r->col[first + from + t];
            s->item[at++] = item;
        }
    }
    qsort(s->item, (size_t)s->items, sizeof *s->item, by_length);
    int64_t busy = s->items;
    while (busy > 0 && s->item[busy - 1].count == 0) busy--;
    while (s->heavy < busy && s->item[s->heavy].count * busy > 2 * r->ptr[r->count]) s->heavy++;
    s->even = busy == 0 || s->item[0].count * busy * 4 <= 5 * r->ptr[r->count];
    return true;
}

int64_t sat_schedule_runs(const sat_pattern_view *a, int64_t each, sat_work_item *items) {
    int64_t count = 0;
    for (int64_t row = 0; row < a->grid_rows; row++)
        for (int64_t first = a->row_ptr[row], end = a->row_ptr[row + 1]; first < end; first += each) {
            sat_work_item one = {first, (int32_t)row, (int32_t)sat_min(each, end - first), -1, {0}};
            if (items) items[count] = one;
            count++;
        }
    return count;
}

unsigned sat_panels_in_flight(bool even, int64_t tiles_of_panel, int64_t panels, double panel_bytes, double tiles,
                              double l2_bytes) {
    double wanted = ceil(tiles / (double)sat_max(1, tiles_of_panel));
    double most = fmax(1, floor(0.7 * l2_bytes / fmax(1, panel_bytes)));
    double sets = fmax(1, fmax(ceil((double)panels / most), floor((double)panels / wanted)));
    return even ? 1 : (unsigned)fmax(1, ceil((double)panels / sets));
}
