# The C library and the command line: built, tested, and checked on a GPU where there is one.
# shellcheck shell=bash disable=SC2154 # test.sh has the rest

build() { # folder, compiler, what to build, more words for cmake
    local folder=$1 compiler=$2 target=$3 generator=()
    shift 3
    [ -f "$folder/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
    CC=$compiler cmake -S . -B "$folder" "${generator[@]}" --log-level=WARNING -DSAT_WERROR="$WERROR" \
        -DSAT_BUILD_TESTS=ON -DSAT_BUILD_BENCH=ON "$@" >/dev/null || return 1
    local start=$SECONDS
    echo "building into $folder"
    if cmake --build "$folder" -j "$JOBS" --target "$target" >"$folder/build.log" 2>&1; then
        echo "built in $((SECONDS - start)) s"
        return
    fi
    tail -n 60 "$folder/build.log"
    return 1
}

run_ctest() { # folder, more words for ctest
    local folder=$1 report tests bad idle name status=0 before=$failed
    shift
    report=$(realpath -m "$folder")/junit.xml
    rm -f "$report"
    "${steady[@]}" ctest --test-dir "$folder" -j "$JOBS" --output-on-failure --output-junit "$report" --no-tests=error "$@" ||
        status=$?
    attribute() { sed -n "/<testsuite/,/>\$/s/^[ \t]*$1=\"\([0-9]*\)\".*/\1/p" "$report" 2>/dev/null; }
    # A program that fails, and which of its tests: those that say so, and the one that it ended in
    fallen_programs() {
        awk '/<testcase name="/ { split($0, words, "\""); name = words[2]; bad = / status="fail"/; tests = running = "" }
            /^\[ RUN      \] [A-Za-z0-9_]+$/ { running = $4 }
            /^\[       OK \] / { running = "" }
            (/^\[  FAILED  \] / || /<\/testcase>/) && running { tests = tests " " running; running = "" }
            /<\/testcase>/ && bad { print name (tests ? ":" tests : "") }' "$report"
    }
    named() { sed -n "s/.*<testcase name=\"\([^\"]*\)\".* status=\"$1\".*/\1/p" "$report"; }
    tests=$(attribute tests)
    [ "${tests:-0}" -gt 0 ] || { fail "no tests ran" && return; }
    bad=$(attribute failures) idle=$(($(attribute skipped) + $(attribute disabled)))
    pass $((tests - bad - idle))
    while read -r name; do fail "$name"; done < <(fallen_programs)
    while read -r name; do skip "$name"; done < <(named notrun)
    # A test that cannot be started is not run, as one that skips itself is; but ctest does not return 0 then.
    [ $status -eq 0 ] || [ "$failed" -gt "$before" ] || fail "ctest returned $status: a test could not be started"
}

# Sanitizers want a memory layout that newer kernels' randomisation does not promise.
steady=()
without_randomisation() {
    if setarch "$(uname -m)" -R true 2>/dev/null; then steady=(setarch "$(uname -m)" -R); fi
}

part_c() {
    build "$BUILD" "${CC:-cc}" all || { fail "build" && return; }
    pass
    if has_cuda "$BUILD"; then echo "CUDA code: compiled for $(sed -n 's/^SAT_CUDA_ARCHITECTURES:.*=//p' "$BUILD/CMakeCache.txt")"
    else echo "CUDA code: not compiled, since there is no CUDA compiler here"; fi
    run_ctest "$BUILD" -LE 'gpu|long'
    if ! grep -q 'CMOCKA_LIBRARY:.*=/' "$BUILD/CMakeCache.txt"; then skip "C tests: cmocka is not installed"; fi
}

# Everything again with CUDA in the library, and what only such a build has; where CI=true a CUDA compiler must work.
part_cuda() {
    local folder words=()
    folder=$(cuda_folder)
    [ "${CI:-}" != true ] || words=(-DSAT_CUDA=ON)
    build "$folder" "${CC:-cc}" all "${words[@]}" || { fail "build" && return; }
    if ! has_cuda "$folder"; then
        skip "no CUDA compiler works here, so CUDA code was not compiled (scripts/setup.sh cuda)"
        return
    fi
    pass
    echo "compiled for $(sed -n 's/^SAT_CUDA_ARCHITECTURES:.*=//p' "$folder/CMakeCache.txt")"
    # Of the first three the long forms are here; the others do not depend on the build, and part c has them.
    run_ctest "$folder" -LE gpu \
        -E '^(check_grid|check_by_race|planted_faults|layout|layout_sees_faults|build_id|compare_records|docs_links)$'
    drop "$folder"/tests/test_* # each has all the device code in it
}

part_gpu() {
    local reason folder code
    folder=$(cuda_folder)
    if ! have_driver; then # before minutes are spent on a build
        skip "every test that needs a GPU: there is no NVIDIA driver here (make gpu, where there is one)"
    elif ! has_cuda "$folder"; then
        skip "every test that needs a GPU: this build has no CUDA code"
    elif ! build "$folder" "${CC:-cc}" all; then
        fail "build"
    else
        reason=$("$folder/sparse_autotune" info --device cuda 2>&1 >/dev/null)
        code=$?
        if [ $code -ge 126 ]; then fail "sparse_autotune info --device cuda ended with $code"
        elif [ $code -ne 0 ]; then skip "every test that needs a GPU: there is no device: ${reason#*: }"
        else on_gpu "$folder"; fi
    fi
}

on_gpu() { # folder
    if "$1/sparse_autotune" check --device cuda --seconds "${GPU_SECONDS:-60}"; then pass; else fail "check"; fi
    run_ctest "$1" -L gpu
}
