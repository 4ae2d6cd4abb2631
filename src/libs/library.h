/* Finds official libraries at run time, so that the build needs none of them and one binary serves every machine. */
#ifndef SAT_LIBRARY_H
#define SAT_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* Opens the first of `names` (file names without a folder, NULL last) that can be loaded, or returns NULL.
 *
 * The variable `env` decides alone where it is set: a full path is opened and nothing else; anything else ("off")
 * means to do without the library. Otherwise the loader's own search comes first, then the folders where pip, conda
 * and virtual environments put shared libraries: those that the environment names, the one that this library is
 * installed in, the program's. Never a relative path, never the working directory, and never a file that anybody but
 * root and this user can have put there or changed (sat_path_safe): that is noted (sat_refusal_note) and left alone.
 * What was opened stays open: libraries with threads of their own do not survive being closed. */
void *sat_library_open(const char *env, const char *const *names);

/* One of NVIDIA's libraries, by the lists of where it may be found; each list ends with NULL. */
typedef struct sat_cuda_library {
    const char *env;             /* decides alone, as above */
    const char *const *names;    /* newest first */
    const char *const *needs;    /* files beside it that it does not load without; one of them is enough */
    const char *const *packages; /* its folders below Python's site-packages: "/nvidia/cu13/lib" */
    const char *const *beside; /* libraries that load it later: where one is loaded, it is taken from there; or NULL */
} sat_cuda_library;

/* One that the process has loaded already comes first: PyTorch's own serves us too. Then one beside a library that
 * would load it itself, and would get ours instead. Then packages beside this library's own, the loader's search, the
 * toolkit, and Python's packages: those of the environment, beside this library's own, and of the program's. */
void *sat_library_open_cuda(const sat_cuda_library *library);

/* Whether the process has one of them loaded already, by itself or through another library. */
bool sat_library_loaded(const char *const *names);

/* The full path of the file that defines `symbol` of an open library; false when it cannot be determined. */
bool sat_library_path(void *library, const char *symbol, char *path, size_t capacity);

/* Fills functions[i] with the address of names[i]; false unless all are there. Function pointers are the same size as
 * data pointers wherever dlsym exists. */
bool sat_library_symbols(void *library, const char *const *names, void **functions, size_t count);

#endif
