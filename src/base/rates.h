/* What a device was measured to do: bytes and operations a second, as in sat_device. */
#ifndef SAT_BASE_RATES_H
#define SAT_BASE_RATES_H

#include "base/dtype.h"

typedef struct sat_rates {
    double memory, l2, tf32, flop[SAT_DTYPE_SLOTS]; /* flop: by sat_dtype */
} sat_rates;

#endif
