/* How the packed matmul's threads share the work: the same for every instruction set.
 *
 * A desk is where threads meet over one group of panels: whoever took the group opens a desk for it, packs B into the
 * desk's buffer and works through the spans of strips. Who finds no group left joins another's desk, packing included.
 * So all cores are busy to the end, be there one panel or a thousand. */
#ifndef SAT_PACKED_DESK_H
#define SAT_PACKED_DESK_H

#include <sched.h>
#include <stdatomic.h>

#include "packed_plan.h"

enum { PACKED_PORTION = 128 }; /* packed rows that a thread takes at a time */

/* One pass: the batch items that share their values. */
typedef struct packed_job {
    const sat_launch *launch;
    const sat_problem *problem;
    const packed_state *state;
    packed_shape shape;
    const void *values, *b, *bias;
    void *c;
    bool plain;  /* a tile, as it comes out of the registers, is what C wants to hold */
    bool around; /* C would not stay in the cache: write it around it */
    packed_desk *desks;
    _Atomic int64_t stream_next, groups_open;
} packed_job;

static inline int64_t packed_groups(const packed_job *j) { return j->shape.groups * j->shape.items; }

static inline void *packed_buffer(const packed_job *j, int64_t desk) {
    return (char *)j->launch->workspace + j->shape.buffers_at + (size_t)desk * j->shape.buffer_bytes;
}

static inline void *packed_arena(const packed_job *j, int64_t thread) {
    return (char *)j->launch->workspace + j->shape.arenas_at + (size_t)thread * j->shape.arena_bytes;
}

/* Neighbouring groups are one thread's: caches far apart then hold no lines of C, and few of B, in common; and the next
 * run finds them where the last one left them. */
static inline int64_t packed_first_group(const packed_job *j, int64_t desk) {
    return packed_groups(j) * desk / j->shape.desks;
}

/* The next group for the owner of a desk: one of its own, or of another's that is behind; -1: all are taken. */
static int64_t packed_next_group(packed_job *j, int64_t desk) {
    for (int64_t i = 0; i < j->shape.desks; i++) {
        int64_t from = (desk + i) % j->shape.desks, g = atomic_fetch_add(&j->desks[from].group_next, 1);
        if (g < packed_first_group(j, from + 1)) return g;
    }
    return -1;
}

/* Waits for another thread, which may have lost its core to this one. */
static inline void packed_relax(int *tries) {
    if (++*tries < 200) __builtin_ia32_pause();
    else sched_yield();
}

/* The desk with most work left, this thread now being one of its readers; -1: nobody needs help. */
static int64_t packed_join(packed_job *j) {
    for (;;) {
        int64_t best = -1, most = 0, group = -1;
        for (int64_t d = 0; d < j->shape.desks; d++) {
            int64_t g = atomic_load(&j->desks[d].group), left = j->state->spans - atomic_load(&j->desks[d].span_next);
            if (g >= 0 && left > most) best = d, most = left, group = g;
        }
        if (best < 0) return -1;
        atomic_fetch_add(&j->desks[best].readers, 1);
        if (atomic_load(&j->desks[best].group) == group) return best;
        atomic_fetch_sub(&j->desks[best].readers, 1); /* its owner went on meanwhile */
    }
}

static void packed_leave(packed_job *j, int64_t desk) { atomic_fetch_sub(&j->desks[desk].readers, 1); }

/* Gives a desk of this thread to another group, once those who still read the last one are done. */
static void packed_open(packed_job *j, int64_t desk, int64_t group) {
    packed_desk *d = &j->desks[desk];
    int tries = 0;
    atomic_store(&d->group, -1);
    while (atomic_load(&d->readers) > 0) packed_relax(&tries);
    atomic_store(&d->pack_next, 0), atomic_store(&d->pack_done, 0), atomic_store(&d->span_next, 0);
    atomic_store(&d->group, group);
    atomic_fetch_add(&j->groups_open, 1);
}

static void packed_start(packed_job *j) {
    for (int64_t d = 0; d < j->shape.desks; d++) {
        packed_desk *x = &j->desks[d];
        atomic_init(&x->group, -1), atomic_init(&x->readers, 0);
        atomic_init(&x->pack_next, 0), atomic_init(&x->pack_done, 0), atomic_init(&x->span_next, 0);
        atomic_init(&x->group_next, packed_first_group(j, d));
    }
    atomic_store(&j->stream_next, 0), atomic_store(&j->groups_open, 0);
}

#endif
