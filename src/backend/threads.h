/* How many threads OpenMP may be asked for. */
#ifndef SAT_THREADS_H
#define SAT_THREADS_H

/* To be called before the first parallel region. From then on a child that is forked beside other threads computes on
 * one: see sat_forked() in variant.h. */
void sat_threads_watch_forks(void);

/* So many of `wanted` as a region in this thread can have. The first time that a thread wants more than before they are
 * started and ended once, to see whether that can be done; where it cannot, half of what could be are used. */
int sat_threads_usable(int wanted);

#endif
