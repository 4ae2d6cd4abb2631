/* Agreement between ranks. Keys of the store begin with the name of a space: ranks whose devices, builds and variants
 * are equal share one, and others never see each other's answers. A rank that is about to tune a key claims it first.
 * Keys are divided among the ranks of a space by a hash, so that all of them tune; but where a key's own rank is busy
 * elsewhere, whoever needs it claims it after a moment: no rank waits for one that does not tune. */
#include "core/agree.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"
#include "core/identity.h"

enum { MAX_RANKS = 1 << 20, MAX_RANKS_ASKED = 16, SPACE_SIZE = 17, NAME_SIZE = 96 };
static const double OWNER_GRACE_SECONDS = 0.2; /* seconds in which a key's own rank may claim it */

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

/* Is the key this rank's own? Of few ranks in a large world it may be nobody's. */
static bool owns(sat_agree *a, const char *key) {
    int first = (int)(sat_hash_text(key) % (uint64_t)a->store.world);
    for (int i = 0; i < a->store.world && i < MAX_RANKS_ASKED; i++) {
        int rank = (first + i) % a->store.world;
        if (is_member(a, rank)) return rank == a->store.rank;
    }
    return false;
}

bool sat_agree_claim(sat_agree *a, const char *key) {
    char name[NAME_SIZE], value[SAT_AGREED_SIZE], mine[16];
    name_of_key(a, sat_hash_text(key), name);
    snprintf(name + strlen(name), NAME_SIZE - strlen(name), "/claim");
    snprintf(mine, sizeof mine, "%d", a->store.rank);
    bool claimed = !owns(a, key) && get(a, name, fmin(OWNER_GRACE_SECONDS, a->store.wait_seconds), value);
    if (!claimed && !put(a, name, mine, value)) return true; /* without a store each rank is by itself */
    return strcmp(value, mine) == 0;
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
    if (!a || !member) {
        free(a), free(member);
        return sat_fail(SAT_OUT_OF_MEMORY, "agreement of %d ranks", g.world);
    }
    a->store = g, a->log = &ctx->log, a->member = member;
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
    free(a);
}
