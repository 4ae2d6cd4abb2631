/* What a device was measured to do: bytes and operations a second, as in sat_device. */
#ifndef SAT_BASE_RATES_H
#define SAT_BASE_RATES_H

#include "sparse_autotune.h"

typedef struct sat_rates {
    double memory, l2, tf32, flop[5]; /* flop: by sat_dtype */
} sat_rates;

#endif
