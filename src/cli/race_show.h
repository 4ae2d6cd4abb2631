/* One race and how it is shown: as a table for people, or as JSON. */
#ifndef CLI_RACE_SHOW_H
#define CLI_RACE_SHOW_H

#include "json.h"
#include "spec.h"

#define EXCLUDED_MOST 256

/* A candidate that its trial in a process of its own kept out of the race. */
typedef struct excluded {
    char variant[128];
    sat_verdict verdict;
    char message[192];
} excluded;

typedef struct outcome {
    const spec *spec;
    const blocks *blocks;
    const sat_context *context;
    const sat_race *race; /* NULL: no variant was left to race */
    sat_race_info info;
    const excluded *out;
    int out_count;
    bool remembered;
    bool cold; /* operands were out of the cache before each run */
} outcome;

void race_print(const outcome *o);
void race_json(json *j, const char *key, const outcome *o);
const char *verdict_text(sat_verdict v);

#endif
