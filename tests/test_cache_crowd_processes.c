/* A crowd on one cache, for as long as SAT_TEST_SECONDS says (2): 36 processes add, read, clear, export and import,
 * and are killed and replaced at random. What an add reported as written is there at any later time, every file stays
 * valid, and nobody hangs. */
#define _GNU_SOURCE
#include "cache_helpers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "cache/cache_private.h"

enum { CROWD = 36, SLOTS = 24, HUNG = 200 };

/* What all of them see. A process writes only its own line. */
typedef struct shared {
    _Atomic int64_t written[CROWD][SLOTS]; /* the number of the last add that was reported as written */
    _Atomic int64_t adds, reads, clears, exports, imports;
} shared;

typedef struct member {
    const char *dir;
    shared *all;
    int number;
    int64_t next; /* number of the next add */
    uint64_t random;
    sat_cache *cache, *cleared; /* cleared: another device, whose entries come and go */
} member;

static void name_key(char out[64], int process, int slot) { snprintf(out, 64, "kept by %d in %d", process, slot); }

/* Adds a race to a key of its own and says so to all. */
static int add_one(member *m) {
    char k[64], race[64];
    int slot = (int)(next_random(&m->random) % SLOTS);
    name_key(k, m->number, slot);
    snprintf(race, sizeof race, "race %lld", (long long)m->next);
    sat_record r = raced(race, 1000 + m->next, "v", 1e-3);
    if (sat_cache_add(m->cache, k, &r, 1) != SAT_OK) return 11;
    atomic_store(&m->all->written[m->number][slot], m->next++);
    atomic_fetch_add(&m->all->adds, 1);
    return 0;
}

/* Whether a key has a race with this number or a later one. */
static bool has_since(sat_cache *cache, const char *k, int64_t number) {
    sat_entry entry;
    bool found = false;
    if (sat_cache_load(cache, k, &entry) != SAT_OK) return false;
    for (size_t i = 0; i < entry.count; i++) found = found || atoll(entry.records[i].race + 5) >= number;
    sat_entry_free(&entry);
    return found;
}

/* Another one's key has what was written before we looked. */
static int read_one(member *m) {
    char k[64];
    int other = (int)(next_random(&m->random) % CROWD), slot = (int)(next_random(&m->random) % SLOTS);
    int64_t number = atomic_load(&m->all->written[other][slot]);
    name_key(k, other, slot);
    atomic_fetch_add(&m->all->reads, 1);
    return number == 0 || has_since(m->cache, k, number) ? 0 : 12;
}

static int clear_some(member *m) {
    sat_record r = raced("race 1", 5, "v", 1);
    int64_t n;
    if (sat_cache_add(m->cleared, "comes and goes", &r, 1) != SAT_OK) return 13;
    atomic_fetch_add(&m->all->clears, 1);
    return sat_cache_remove(m->cleared, next_random(&m->random) % 2 ? NULL : "comes and goes", &n) == SAT_OK ? 0 : 14;
}

/* Half of them to one file that all share: a reader sees it whole or as it was. */
static int pack_one(member *m) {
    char file[4200], name[64];
    int64_t n;
    snprintf(name, sizeof name, "export-%d", next_random(&m->random) % 2 ? m->number : 0);
    if (sat_cache_export_file(m->cache, in(file, m->dir, name)) != SAT_OK) return 15;
    atomic_fetch_add(&m->all->exports, 1);
    if (sat_cache_import_file(m->cache, file, &n) != SAT_OK) return 16;
    atomic_fetch_add(&m->all->imports, 1);
    return 0;
}

static void member_lives(member *m) {
    char dir[4200];
    int failed = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(HUNG);
    in(dir, m->dir, "cache");
    if (sat_cache_open(dir, device, NULL, &m->cache) != SAT_OK) _exit(10);
    if (sat_cache_open(dir, "another device", NULL, &m->cleared) != SAT_OK) _exit(10);
    m->cache->merge_seconds = m->cleared->merge_seconds = 600; /* a slow machine is no failure */
    while (!failed) {
        int64_t what = (int64_t)(next_random(&m->random) % 100);
        failed = what < 50 ? add_one(m) : what < 90 ? read_one(m) : what < 97 ? clear_some(m) : pack_one(m);
    }
    _exit(failed);
}

static pid_t start(const char *dir, shared *all, int number, int64_t next) {
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child) return child;
    member m = {.dir = dir, .all = all, .number = number, .next = next, .random = (uint64_t)(next * 64 + number + 1)};
    member_lives(&m);
    _exit(0);
}

/* Only our own kill may have ended it. */
static void end(pid_t child) {
    int status;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) fail_msg("a process ended with %d", WEXITSTATUS(status));
    if (WTERMSIG(status) != SIGKILL) fail_msg("a process was ended by signal %d", WTERMSIG(status));
}

static int64_t last_number(const shared *all, int number) {
    int64_t last = 0;
    for (int s = 0; s < SLOTS; s++)
        if (atomic_load(&all->written[number][s]) > last) last = atomic_load(&all->written[number][s]);
    return last;
}

static void expect_all_written(const char *dir, const shared *all) {
    char folder[4200], k[64], sub[4200];
    messages m;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.') continue;
        all_valid(in(folder, dir, e->d_name));
        assert_int_equal(count_files(in(sub, dir, e->d_name), ".bad"), 0);
    }
    closedir(d);
    sat_cache *cache = open_logged(dir, &m);
    for (int p = 0; p < CROWD; p++)
        for (int s = 0; s < SLOTS; s++) {
            int64_t number = atomic_load(&all->written[p][s]);
            name_key(k, p, s);
            if (number > 0 && !has_since(cache, k, number)) fail_msg("%s lost its race %lld", k, (long long)number);
        }
    assert_int_equal(m.count, 0);
    sat_cache_close(cache);
}

static void a_crowd_that_is_killed_loses_nothing_that_was_written(void **state) {
    const char *given = getenv("SAT_TEST_SECONDS");
    double seconds = given ? atof(given) : 2, begun = seconds_now();
    pid_t children[CROWD];
    char dir[4200];
    uint64_t random = 31;
    int64_t kills = 0;
    shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(all != MAP_FAILED);
    for (int p = 0; p < CROWD; p++) children[p] = start(*state, all, p, 1);
    while (seconds_now() - begun < seconds) {
        nanosleep(&(struct timespec){.tv_nsec = (long)(next_random(&random) % 20000000)}, NULL);
        int p = (int)(next_random(&random) % CROWD);
        end(children[p]);
        /* The add that the kill met may or may not be there: its number is not used again. */
        children[p] = start(*state, all, p, last_number(all, p) + 2), kills++;
    }
    for (int p = 0; p < CROWD; p++) end(children[p]);
    expect_all_written(in(dir, *state, "cache"), all);
    print_message("%lld kills, %lld adds, %lld reads, %lld clears, %lld exports, %lld imports\n", (long long)kills,
                  (long long)all->adds, (long long)all->reads, (long long)all->clears, (long long)all->exports,
                  (long long)all->imports);
    assert_true(all->adds > CROWD && all->reads > 0 && kills > 0);
    munmap(all, sizeof *all);
}

int main(void) {
    const struct CMUnitTest tests[] = {TEST_IN_FOLDER(a_crowd_that_is_killed_loses_nothing_that_was_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
