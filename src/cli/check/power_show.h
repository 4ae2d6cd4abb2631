/* What came of the planted faults, for people and as JSON. */
#ifndef CLI_POWER_SHOW_H
#define CLI_POWER_SHOW_H

#include "power.h"

enum { POWER_DEPTHS = 8 };

typedef enum found { NOT_RUN = 0, FOUND = 1, MISSED = 2 } found;

/* One fault in one operation and dtype. */
typedef struct power_row {
    const fault *fault;
    sat_operation op;
    sat_dtype dtype;
    found race[POWER_DEPTHS], check;
    int missed[POWER_DEPTHS]; /* races that missed it */
    int64_t cases;            /* of the grid, until it was found */
    char race_message[192], check_message[256];
} power_row;

typedef struct power_report {
    char device[128];
    int64_t depth[POWER_DEPTHS];
    int depths;
    int64_t cases;   /* of the grid, at most */
    power_row *rows; /* all dtypes of a fault and an operation one after the other */
    int count;
    double seconds;
} power_report;

bool power_shows(const fault *f, sat_dtype t);                        /* false: it must be found right there */
bool power_race_expected(const fault *f, sat_dtype t, int64_t depth); /* to find it */
bool power_row_good(const power_report *p, const power_row *r);       /* as expected, or better */

void power_print(const power_report *p);
void power_json(const power_report *p);

#endif
