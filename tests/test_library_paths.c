/* Where libraries are loaded from: the loader's folders, the wheel and the environment that the library belongs to, and
 * paths that the user names; never from where another user may have put a file.
 *
 * What depends on where the program lies is done by a copy of this program, started with a word that says what to do;
 * its exit status is the answer. */
#define _GNU_SOURCE
#include "support.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libs/library.h"

enum { OPENED = 40, NOT_OPENED = 41, SKIPPED = 42 };
static const char *const names[] = {"libsat_probe.so.2", "libsat_probe.so.1", NULL};
static const char *const packages[] = {"/nvidia/probe/lib", NULL};
static const sat_cuda_library in_wheels = {"SAT_TEST_PROBE", names, NULL, packages, NULL};
static const char *const others[] = {"libanl.so.1", NULL}; /* glibc's; nobody has loaded it */
static const sat_cuda_library beside_other = {"SAT_TEST_PROBE", names, NULL, packages, others};
static const char variable[] = "SAT_TEST_PROBE";
static const uid_t nobody = 65534;

/* ---- folders and files ---- */

static char root[512]; /* each test's own */

static int remove_entry(const char *path, const struct stat *info, int flag, struct FTW *ftw) {
    (void)info, (void)flag, (void)ftw;
    return remove(path);
}

static int make_root(void **state) {
    (void)state;
    static const char *const variables[] = {"VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "HOME"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) unsetenv(variables[i]);
    unsetenv(variable);
    const char *base = getenv("TMPDIR");
    snprintf(root, sizeof root, "%s/sat_library_XXXXXX", base && base[0] == '/' ? base : "/tmp");
    umask(022);
    return mkdtemp(root) && !chmod(root, 0755) ? 0 : -1;
}

static int drop_root(void **state) {
    (void)state;
    return nftw(root, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *below(char out[PATH_MAX], const char *path) {
    assert_true((size_t)snprintf(out, PATH_MAX, "%s%s", root, path) < PATH_MAX);
    return out;
}

static void copy_file(const char *from, const char *to, mode_t mode) {
    char path[PATH_MAX], buffer[65536];
    snprintf(path, sizeof path, "%s", to);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        assert_true(mkdir(path, 0755) == 0 || errno == EEXIST);
        *slash = '/';
    }
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
    assert_true(in >= 0 && out >= 0);
    for (ssize_t n; (n = read(in, buffer, sizeof buffer)) > 0;) assert_int_equal(write(out, buffer, (size_t)n), n);
    close(in), close(out);
    assert_int_equal(chmod(to, mode), 0);
}

/* A library that can be loaded, under a name that this machine has not. */
static const char *plant(char out[PATH_MAX], const char *folder) {
    Dl_info info;
    char name[PATH_MAX];
    if (!dladdr((void *)(uintptr_t)_cmocka_run_group_tests, &info) || info.dli_fname[0] != '/') skip();
    snprintf(name, sizeof name, "%s/libsat_probe.so.1", folder);
    copy_file(info.dli_fname, below(out, name), 0755);
    return out;
}

static bool opens(void) {
    void *library = sat_library_open(variable, names);
    if (library) dlclose(library);
    return library;
}

static void set_mode(const char *path, mode_t mode) {
    char full[PATH_MAX];
    assert_int_equal(chmod(below(full, path), mode), 0);
}

static void give_away(const char *path) {
    char full[PATH_MAX];
    assert_int_equal(lchown(below(full, path), nobody, nobody), 0);
}

/* ---- a copy of this program ---- */

static int act(const char *word) {
    void *library = NULL;
    if (strcmp(word, "open") == 0) library = sat_library_open(variable, names);
    else if (strcmp(word, "open-cuda") == 0) library = sat_library_open_cuda(&in_wheels);
    else if (strcmp(word, "open-beside") == 0) {
        if (!dlopen(getenv("SAT_TEST_OTHER"), RTLD_NOW)) return SKIPPED;
        library = sat_library_open_cuda(&beside_other);
    } else if (strcmp(word, "open-setuid") == 0) {
        if (getuid() == geteuid()) return SKIPPED; /* setuid means nothing on this file system */
        library = sat_library_open(variable, names);
    }
    return library ? OPENED : NOT_OPENED;
}

static const char *copy_program(char out[PATH_MAX], const char *path, mode_t mode) {
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = 0;
    copy_file(self, below(out, path), mode);
    return out;
}

static int run_program(const char *path, const char *word, uid_t user) {
    int status;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (user != getuid() && (setgid(user) || setuid(user))) _exit(1);
        execl(path, path, word, (char *)NULL);
        _exit(2);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* ---- what is loaded ---- */

/* PyTorch's libcudnn.so loads others by name when it needs them: they have to be those of its own folder. */
static void one_beside_a_loaded_library_is_loaded(void **state) {
    (void)state;
    char path[PATH_MAX], program[PATH_MAX], other[PATH_MAX];
    struct link_map *map = NULL;
    void *anl = dlopen(others[0], RTLD_NOW);
    if (!anl || dlinfo(anl, RTLD_DI_LINKMAP, &map)) skip();
    copy_file(map->l_name, below(other, "/theirs/libanl.so.1"), 0755);
    dlclose(anl);
    copy_program(program, "/program", 0755);
    setenv("SAT_TEST_OTHER", other, 1);
    assert_int_equal(run_program(program, "open-beside", getuid()), NOT_OPENED);
    plant(path, "/theirs");
    assert_int_equal(run_program(program, "open-cuda", getuid()), NOT_OPENED);
    assert_int_equal(run_program(program, "open-beside", getuid()), OPENED);
    unsetenv("SAT_TEST_OTHER");
}

static void a_named_path_and_the_users_own_folders_are_loaded(void **state) {
    (void)state;
    char path[PATH_MAX], link[PATH_MAX], target[PATH_MAX];
    static const char *const variables[] = {"CONDA_PREFIX", "VIRTUAL_ENV"};
    assert_false(opens());
    setenv(variable, plant(path, "/named"), 1);
    assert_true(opens());
    assert_int_equal(symlink(path, below(link, "/link.so")), 0);
    setenv(variable, link, 1);
    assert_true(opens());
    unsetenv(variable);
    plant(path, "/env/lib");
    for (int i = 0; i < 2; i++) {
        setenv(variables[i], below(target, "/env"), 1);
        assert_true(opens());
        unsetenv(variables[i]);
        assert_false(opens());
    }
}

static void the_wheel_and_the_environment_that_we_belong_to_are_searched(void **state) {
    (void)state;
    char path[PATH_MAX];
    copy_program(path, "/env/lib/python3.11/site-packages/sparse_autotune/program", 0755);
    assert_int_equal(run_program(path, "open", getuid()), NOT_OPENED);
    plant((char[PATH_MAX]){0}, "/env/lib");
    assert_int_equal(run_program(path, "open", getuid()), OPENED);
    assert_int_equal(run_program(path, "open-cuda", getuid()), NOT_OPENED);
    plant((char[PATH_MAX]){0}, "/env/lib/python3.11/site-packages/nvidia/probe/lib");
    assert_int_equal(run_program(path, "open-cuda", getuid()), OPENED);
    plant((char[PATH_MAX]){0}, "/app/lib");
    assert_int_equal(run_program(copy_program(path, "/app/bin/program", 0755), "open", getuid()), OPENED);
}

/* ---- what is not ---- */

static void folders_above_a_program_are_none_of_its_environment(void **state) {
    (void)state;
    char path[PATH_MAX];
    plant(path, "/lib");
    plant(path, "/nvidia/probe/lib");
    copy_program(path, "/deep/er/program", 0755);
    assert_int_equal(run_program(path, "open", getuid()), NOT_OPENED);
    assert_int_equal(run_program(path, "open-cuda", getuid()), NOT_OPENED);
    copy_program(path, "/deep/program", 0755); /* its grandparent has a lib/ */
    assert_int_equal(run_program(path, "open", getuid()), NOT_OPENED);
}

static void a_folder_that_others_may_write_is_left_alone_wherever_it_is_on_the_path(void **state) {
    (void)state;
    char path[PATH_MAX], target[PATH_MAX];
    static const char *const folders[] = {"", "/env", "/env/lib", "/env/lib/libsat_probe.so.1"};
    plant(path, "/env/lib");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        setenv("CONDA_PREFIX", below(target, "/env"), 1);
        assert_true(opens());
        set_mode(folders[i], 0777);
        assert_false(opens());
        setenv(variable, path, 1); /* a name makes it no safer */
        assert_false(opens());
        unsetenv(variable);
        set_mode(folders[i], 0755);
        assert_true(opens());
    }
}

static void a_program_where_everybody_may_write_loads_nothing_from_there(void **state) {
    (void)state;
    char path[PATH_MAX];
    plant(path, "/shared/lib");
    copy_program(path, "/shared/bin/program", 0755);
    assert_int_equal(run_program(path, "open", getuid()), OPENED);
    set_mode("/shared", 0777);
    assert_int_equal(run_program(path, "open", getuid()), NOT_OPENED);
    set_mode("/shared", 01777); /* like /tmp: fine on the way to a folder of ours, ... */
    assert_int_equal(run_program(path, "open", getuid()), OPENED);
    set_mode("/shared", 0755);
    set_mode("/shared/lib", 01777); /* ... but not to load from */
    assert_int_equal(run_program(path, "open", getuid()), NOT_OPENED);
}

static void what_another_user_owns_is_left_alone(void **state) {
    (void)state;
    char path[PATH_MAX], target[PATH_MAX];
    static const char *const folders[] = {"/env", "/env/lib", "/env/lib/libsat_probe.so.1"};
    if (getuid() != 0) {
        print_message("needs root, to give files away\n");
        skip();
    }
    plant(path, "/env/lib");
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        setenv("CONDA_PREFIX", below(target, "/env"), 1);
        assert_true(opens());
        give_away(folders[i]);
        assert_false(opens());
        setenv(variable, path, 1);
        assert_false(opens());
        unsetenv(variable);
        assert_int_equal(chown(below(target, folders[i]), 0, 0), 0);
    }
    set_mode("", 01777); /* in a folder like /tmp: another user's folder, and another user's link to ours */
    give_away("/env");
    assert_false(opens());
    assert_int_equal(chown(below(target, "/env"), 0, 0), 0);
    assert_int_equal(symlink(below(path, "/env"), below(target, "/link")), 0);
    setenv("CONDA_PREFIX", target, 1);
    assert_true(opens());
    give_away("/link");
    assert_false(opens());
    set_mode("", 0755);
}

static void the_loaders_folders_are_left_alone_where_everybody_may_write(void **state) {
    (void)state;
    char path[PATH_MAX], folder[PATH_MAX], program[PATH_MAX];
    plant(path, "/loader");
    copy_program(program, "/elsewhere/program", 0755);
    setenv("LD_LIBRARY_PATH", below(folder, "/loader"), 1);
    assert_int_equal(run_program(program, "open", getuid()), OPENED);
    set_mode("/loader", 0777);
    assert_int_equal(run_program(program, "open", getuid()), NOT_OPENED);
    set_mode("/loader", 0755);
    char before[PATH_MAX];
    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(folder), 0);
    setenv("LD_LIBRARY_PATH", ":/usr/lib", 1); /* an empty entry is the working directory */
    assert_int_equal(run_program(program, "open", getuid()), NOT_OPENED);
    assert_int_equal(chdir(before), 0);
    unsetenv("LD_LIBRARY_PATH");
}

static void a_setuid_program_takes_no_path_from_its_environment(void **state) {
    (void)state;
    char path[PATH_MAX], program[PATH_MAX];
    if (getuid() != 0) {
        print_message("needs root, to make a setuid program\n");
        skip();
    }
    setenv(variable, plant(path, "/named"), 1);
    copy_program(program, "/elsewhere/program", 04755);
    assert_int_equal(run_program(program, "open", getuid()), OPENED);
    int answer = run_program(program, "open-setuid", nobody);
    if (answer == SKIPPED) skip();
    assert_int_equal(answer, NOT_OPENED);
}

/* ---- what is said ---- */

typedef struct told {
    char text[4096];
} told;

static void take(void *user, sat_log_level level, const char *message) {
    told *t = user;
    if (level == SAT_LOG_WARN && strlen(t->text) + strlen(message) + 2 < sizeof t->text)
        strcat(strcat(t->text, message), "\n");
}

static void the_log_says_what_was_left_alone(void **state) {
    (void)state;
    char path[PATH_MAX];
    told t = {0};
    sat_context *ctx;
    sat_context_options o = {SAT_SIZED(sat_context_options), .device = "cpu", .cache_dir = "", .log = take};
    o.log_user = &t, o.effort = SAT_EFFORT_OFF;
    setenv(variable, plant(path, "/open"), 1);
    set_mode("/open", 0777);
    assert_false(opens());
    assert_ok(sat_context_create(&o, &ctx));
    sat_context_free(ctx);
    assert_non_null(strstr(t.text, path));
    assert_non_null(strstr(t.text, "may be written by others (mode 0777)"));
}

int main(int argc, char **argv) {
    if (argc == 2) return act(argv[1]);
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_root, drop_root)
    const struct CMUnitTest tests[] = {
        TEST(one_beside_a_loaded_library_is_loaded),
        TEST(a_named_path_and_the_users_own_folders_are_loaded),
        TEST(the_wheel_and_the_environment_that_we_belong_to_are_searched),
        TEST(folders_above_a_program_are_none_of_its_environment),
        TEST(a_folder_that_others_may_write_is_left_alone_wherever_it_is_on_the_path),
        TEST(a_program_where_everybody_may_write_loads_nothing_from_there),
        TEST(what_another_user_owns_is_left_alone),
        TEST(the_loaders_folders_are_left_alone_where_everybody_may_write),
        TEST(a_setuid_program_takes_no_path_from_its_environment),
        TEST(the_log_says_what_was_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
