/* Agreement between ranks. Keys of the store begin with the name of a space: ranks whose devices, builds and variants
 * are equal share one, and others never see each other's answers. A rank that is about to tune a key claims it first,
 * and writes that into a list, by which all know how many keys each has claimed. A key is that rank's own that has
 * claimed the fewest, so that all of them tune; but where it is busy elsewhere, whoever needs the key claims it after a
 * moment, which is the longer the more it has claimed: no rank waits for one that does not tune. */
#include "core/agree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "core/identity.h"

/* A key's own rank is one of four, the first that have joined from the key's hash on: who is asked does not grow with
 * the world. */
enum { MAX_RANKS = 1 << 20, MAX_RANKS_ASKED = 16, CHOICES = 4, MOST_PLACES = 4096, SPACE_SIZE = 17, NAME_SIZE = 96 };
/* In which a key's own rank may claim it, and the same again for each key that this rank has claimed more. */
static const double OWNER_GRACE_SECONDS = 0.2, MOST_GRACE_SECONDS = 1;

typedef struct known_answer {
    struct known_answer *next;
    uint64_t key;
    char value[SAT_AGREED_SIZE];
} known_answer;

struct sat_agree {
    sat_agreement store;
    const sat_log *log;
    char space[SPACE_SIZE];
    pthread_mutex_t lock;
    known_answer *known; /* answers that this process has seen, which never change */
    bool *member;        /* by rank: it is known to be in this space */
    int *claims;         /* by rank: keys that it has claimed, as far as the list was read */
    long read;           /* places of the list that were read */
    double patience;     /* 0 to 1: falls while nobody else claims anything */
};

/* ---- the store ---- */

static void name_of_key(const sat_agree *a, uint64_t key, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, "sparse_autotune/%s/%016" PRIx64, a->space, key);
}

static void name_of_rank(const sat_agree *a, int rank, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, "sparse_autotune/%s/rank/%d", a->space, rank);
}

/* A value is printable, or it is none. */
static bool accept(const sat_agree *a, sat_status status, const char *name, char value[SAT_AGREED_SIZE]) {
    value[SAT_AGREED_SIZE - 1] = 0;
    size_t length = strlen(value);
    if (status == SAT_OK && length > 0 && sat_printable(value, length)) return true;
    if (status == SAT_OK) sat_logf(a->log, SAT_LOG_WARN, "agreement: the value of %s is not printable", name);
    else if (status != SAT_NOT_FOUND)
        sat_logf(a->log, SAT_LOG_WARN, "agreement: %s failed with %s", name, sat_status_name(status));
    value[0] = 0;
    return false;
}

static bool get(sat_agree *a, const char *name, double seconds, char value[SAT_AGREED_SIZE]) {
    memset(value, 0, SAT_AGREED_SIZE);
    return accept(a, a->store.get(a->store.user, name, seconds, value), name, value);
}

static bool put(sat_agree *a, const char *name, const char *desired, char value[SAT_AGREED_SIZE]) {
    memset(value, 0, SAT_AGREED_SIZE);
    return accept(a, a->store.put(a->store.user, name, desired, value), name, value);
}

/* ---- what is known here ---- */

/* With the lock held. */
static known_answer *known(const sat_agree *a, uint64_t key) {
    known_answer *x = a->known;
    while (x && x->key != key) x = x->next;
    return x;
}

static bool recall(sat_agree *a, uint64_t key, char value[SAT_AGREED_SIZE]) {
    pthread_mutex_lock(&a->lock);
    const known_answer *found = known(a, key);
    if (found) memcpy(value, found->value, SAT_AGREED_SIZE);
    pthread_mutex_unlock(&a->lock);
    return found != NULL;
}

/* The first answer stays: a store that changes its mind changes nothing here. */
static void remember(sat_agree *a, uint64_t key, char value[SAT_AGREED_SIZE]) {
    known_answer *made = malloc(sizeof *made);
    pthread_mutex_lock(&a->lock);
    const known_answer *before = known(a, key);
    if (before) memcpy(value, before->value, SAT_AGREED_SIZE);
    else if (made) {
        made->key = key, made->next = a->known, a->known = made;
        memcpy(made->value, value, SAT_AGREED_SIZE);
        made = NULL;
    }
    pthread_mutex_unlock(&a->lock);
    free(made);
}

bool sat_agree_find(sat_agree *a, const char *key, double seconds, char value[SAT_AGREED_SIZE]) {
    char name[NAME_SIZE];
    uint64_t hash = sat_hash_text(key);
    if (recall(a, hash, value)) return true;
    name_of_key(a, hash, name);
    if (!get(a, name, seconds < 0 ? a->store.wait_seconds : seconds, value)) return false;
    remember(a, hash, value);
    return true;
}

void sat_agree_propose(sat_agree *a, const char *key, const char *proposed, char value[SAT_AGREED_SIZE]) {
    char name[NAME_SIZE];
    uint64_t hash = sat_hash_text(key);
    name_of_key(a, hash, name);
    if (!put(a, name, proposed, value) && !get(a, name, 0, value))
        snprintf(value, SAT_AGREED_SIZE, "%s", proposed); /* without a store: by itself */
    remember(a, hash, value);
}

/* ---- who tunes ---- */

/* Has the rank joined this space? One that has not yet is passed over. */
static bool is_member(sat_agree *a, int rank) {
    char name[NAME_SIZE], value[SAT_AGREED_SIZE];
    if (rank == a->store.rank) return true;
    pthread_mutex_lock(&a->lock);
    bool member = a->member[rank];
    pthread_mutex_unlock(&a->lock);
    if (member) return true;
    name_of_rank(a, rank, name);
    if (!get(a, name, 0, value)) return false;
    pthread_mutex_lock(&a->lock);
    a->member[rank] = true;
    pthread_mutex_unlock(&a->lock);
    return true;
}

static void name_of_place(const sat_agree *a, long place, char name[NAME_SIZE]) {
    snprintf(name, NAME_SIZE, "sparse_autotune/%s/taken/%ld", a->space, place);
}

/* Takes the rank that stands at a place of the list. False: it is none. */
static bool take_place(sat_agree *a, long place, const char *value) {
    char *end;
    long rank = strtol(value, &end, 10);
    if (end == value || *end || rank < 0 || rank >= a->store.world) return false;
    pthread_mutex_lock(&a->lock);
    if (a->read == place) a->read++, a->claims[rank]++;
    pthread_mutex_unlock(&a->lock);
    return true;
}

static long next_place(sat_agree *a) {
    pthread_mutex_lock(&a->lock);
    long place = a->read;
    pthread_mutex_unlock(&a->lock);
    return place;
}

/* Reads what is new in the list. True: something is. */
static bool read_claims(sat_agree *a) {
    char name[NAME_SIZE], value[SAT_AGREED_SIZE];
    long before = next_place(a), place = before;
    for (; place - before < MOST_PLACES; place = next_place(a)) {
        name_of_place(a, place, name);
        if (!get(a, name, 0, value) || !take_place(a, place, value)) break;
    }
    return place > before;
}

/* Writes this rank to the end of the list. */
static void write_claim(sat_agree *a, const char *mine) {
    char name[NAME_SIZE], value[SAT_AGREED_SIZE];
    for (int i = 0; i < MOST_PLACES; i++) {
        long place = next_place(a);
        name_of_place(a, place, name);
        if (!put(a, name, mine, value) || !take_place(a, place, value) || strcmp(value, mine) == 0) return;
    }
}

/* The rank that should tune the key: of the first that have joined, the one that has claimed the fewest. `lead`: how
 * many more this one has claimed. */
static int find_owner(sat_agree *a, const char *key, int *lead) {
    int first = (int)(sat_hash_text(key) % (uint64_t)a->store.world), owner = a->store.rank, found = 0;
    for (int i = 0; i < a->store.world && i < MAX_RANKS_ASKED && found < CHOICES; i++) {
        int rank = (first + i) % a->store.world;
        if (!is_member(a, rank)) continue;
        pthread_mutex_lock(&a->lock);
        if (found++ == 0 || a->claims[rank] < a->claims[owner]) owner = rank;
        pthread_mutex_unlock(&a->lock);
    }
    pthread_mutex_lock(&a->lock);
    *lead = a->claims[a->store.rank] - a->claims[owner];
    pthread_mutex_unlock(&a->lock);
    return owner;
}

/* Seconds that this rank leaves the key to its own. */
static double grace(sat_agree *a, int lead) {
    pthread_mutex_lock(&a->lock);
    double seconds = a->patience * fmin(OWNER_GRACE_SECONDS * (1 + (lead > 0 ? lead : 0)), MOST_GRACE_SECONDS);
    pthread_mutex_unlock(&a->lock);
    return fmin(seconds, a->store.wait_seconds);
}

static void set_patience(sat_agree *a, bool others_claim) {
    pthread_mutex_lock(&a->lock);
    a->patience = others_claim ? 1 : a->patience / 2;
    pthread_mutex_unlock(&a->lock);
}

bool sat_agree_claim(sat_agree *a, const char *key) {
    char name[NAME_SIZE], value[SAT_AGREED_SIZE], mine[16];
    int lead;
    name_of_key(a, sat_hash_text(key), name);
    snprintf(name + strlen(name), NAME_SIZE - strlen(name), "/claim");
    snprintf(mine, sizeof mine, "%d", a->store.rank);
    (void)read_claims(a);
    bool own = find_owner(a, key, &lead) == a->store.rank;
    bool claimed = !own && get(a, name, grace(a, lead), value);
    if (!own) set_patience(a, claimed || read_claims(a));
    if (!claimed && !put(a, name, mine, value)) return true; /* without a store each rank is by itself */
    if (strcmp(value, mine) != 0) return false;
    write_claim(a, mine);
    return true;
}

/* ---- joining ---- */

/* Device, build and variants: libraries that only one rank has make two spaces. */
static void name_space(const sat_context *ctx, char space[SPACE_SIZE]) {
    const sat_device *d = sat_context_device(ctx);
    uint64_t hash = sat_hash_text(sat_build_id);
    hash = sat_hash_bytes(hash, d->identity, strlen(d->identity));
    for (size_t i = 0; i < atomic_load(&ctx->registry.count); i++) {
        const sat_variant *v = ctx->registry.list[i];
        hash = sat_hash_bytes(hash, v->name, strlen(v->name) + 1);
        hash = sat_hash_bytes(hash, v->revision, strlen(v->revision) + 1);
    }
    snprintf(space, SPACE_SIZE, "%016" PRIx64, hash);
}

static sat_status check(const sat_context *ctx, const sat_agreement *g) {
    if (ctx->agree) return sat_fail(SAT_DUPLICATE, "this context agrees with other ranks already");
    if (ctx->background)
        return sat_fail(SAT_UNSUPPORTED, "the context tunes in the background; ranks agree on what is tuned at once");
    if (!g->get) return sat_fail(SAT_NULL_POINTER, "agreement: get is NULL");
    if (!g->put) return sat_fail(SAT_NULL_POINTER, "agreement: put is NULL");
    if (g->world < 1 || g->world > MAX_RANKS)
        return sat_fail(SAT_BAD_SIZE, "agreement: world is %d; expected 1 to %d", g->world, MAX_RANKS);
    if (g->rank < 0 || g->rank >= g->world)
        return sat_fail(SAT_BAD_SIZE, "agreement: rank is %d; expected 0 to %d", g->rank, g->world - 1);
    if (!(g->wait_seconds >= 0) || !isfinite(g->wait_seconds))
        return sat_fail(SAT_BAD_SIZE, "agreement: wait_seconds is %g; expected 0 or more", g->wait_seconds);
    return SAT_OK;
}

sat_status sat_context_agree(sat_context *ctx, const sat_agreement *agreement) {
    if (!ctx) return sat_fail(SAT_NULL_POINTER, "context is NULL");
    if (!agreement) return sat_fail(SAT_NULL_POINTER, "agreement is NULL");
    sat_agreement g = {0};
    SAT_TRY(sat_struct_in(&g, sizeof g, agreement, sizeof g, "sat_agreement"));
    SAT_TRY(check(ctx, &g));
    if (g.wait_seconds == 0) g.wait_seconds = 60;
    sat_agree *a = calloc(1, sizeof *a);
    bool *member = calloc((size_t)g.world, sizeof *member);
    int *claims = calloc((size_t)g.world, sizeof *claims);
    if (!a || !member || !claims) {
        free(a), free(member), free(claims);
        return sat_fail(SAT_OUT_OF_MEMORY, "agreement of %d ranks", g.world);
    }
    a->store = g, a->log = &ctx->log, a->member = member, a->claims = claims, a->patience = 1;
    pthread_mutex_init(&a->lock, NULL);
    name_space(ctx, a->space);
    char name[NAME_SIZE], value[SAT_AGREED_SIZE];
    name_of_rank(a, g.rank, name);
    (void)put(a, name, "here", value);
    ctx->agree = a;
    atomic_fetch_add(&ctx->wrong_generation, 1); /* plans of the one-call forms are selected again */
    return SAT_OK;
}

void sat_agree_close(sat_agree *a) {
    if (!a) return;
    for (known_answer *x = a->known, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    pthread_mutex_destroy(&a->lock);
    free(a->member);
    free(a->claims);
    free(a);
}
