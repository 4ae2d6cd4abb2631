#!/usr/bin/env bash
# Builds and runs the tests, step by step, and ends with how many passed, failed and were skipped.
# usage: test.sh disk|release|gpu|python|asan|tsan|fuzz|rust ...  from the Makefile, which gives BUILD, WERROR and JOBS
# CUDA code is compiled wherever a CUDA compiler works, with or without a GPU; where CI=true one must.
set -u
cd "$(dirname "$0")/.." || exit 2
BUILD=${BUILD:-build} WERROR=${WERROR:-OFF} JOBS=${JOBS:-2} FUZZ_SECONDS=${FUZZ_SECONDS:-60} GPU_SECONDS=${GPU_SECONDS:-60}
passed=0 failed=0 skipped=0
failures=() skips=()

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)) && failures+=("$1"); }
skip() { skipped=$((skipped + 1)) && skips+=("$1"); }
title() { printf '\n== %s\n' "$1"; }

# Where nobody comes back to it, what a step leaves makes room for the next.
drop() { [ "${CI:-}" != true ] || rm -rf "$@"; }

build() { # folder, compiler, more words for cmake; then what to build
    local folder=$1 compiler=$2 target=$3 generator=()
    shift 3
    [ -f "$folder/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
    CC=$compiler cmake -S . -B "$folder" "${generator[@]}" --log-level=WARNING -DSAT_WERROR="$WERROR" "$@" >/dev/null ||
        return 1
    echo "building into $folder"
    cmake --build "$folder" -j "$JOBS" --target "$target" >"$folder/build.log" 2>&1 && return
    tail -n 60 "$folder/build.log"
    return 1
}

run_ctest() { # what, folder, more words for ctest
    local what=$1 folder=$2 report tests bad idle
    shift 2
    report=$(realpath -m "$folder")/junit.xml
    rm -f "$report"
    "${steady[@]}" ctest --test-dir "$folder" -j "$JOBS" --output-on-failure --output-junit "$report" --no-tests=error "$@" ||
        echo "ctest returned $?"
    count() { sed -n "/<testsuite/,/>\$/s/^[ \t]*$1=\"\([0-9]*\)\".*/\1/p" "$report" 2>/dev/null; }
    tests=$(count tests)
    [ -n "$tests" ] || { fail "$what: no tests ran" && return; }
    bad=$(count failures) idle=$(($(count skipped) + $(count disabled)))
    passed=$((passed + tests - bad - idle)) failed=$((failed + bad)) skipped=$((skipped + idle))
    while read -r name; do failures+=("$what: $name"); done < <(named fail "$report")
    while read -r name; do skips+=("$what: $name"); done < <(named notrun "$report")
}
named() { sed -n "s/.*<testcase name=\"\([^\"]*\)\".* status=\"$1\".*/\1/p" "$2"; }

# Sanitizers want a memory layout that newer kernels' randomisation does not promise.
steady=()
without_randomisation() {
    if setarch "$(uname -m)" -R true 2>/dev/null; then steady=(setarch "$(uname -m)" -R); fi
}

clang_can() { # flags
    command -v clang >/dev/null && echo 'int main(void) { return 0; }' | clang "$@" -x c - -o /dev/null 2>/dev/null
}

# A full disk fails in many ways, few of which say so: this is said before, and again beside what failed.
scarce=
step_disk() {
    local room had needed=$((13 << 20)) # KiB, of a first run of everything
    [ "${CI:-}" != true ] || needed=$((9 << 20))
    mkdir -p "$BUILD" && room=$(df -Pk "$BUILD" | awk 'NR == 2 { print $4 }') || return
    had=$(du -skc "$BUILD" "$BUILD"-* 2>/dev/null | awk 'END { print $1 }')
    [ $((room + had)) -lt $needed ] || return
    scarce="$((room >> 10)) MB of disk are free for $BUILD, and all tests take about $(((needed - had) >> 10)) MB more"
    echo "sparse_autotune: $scarce" >&2
}

build_release() {
    local words=()
    [ "${CI:-}" != true ] || words=(-DSAT_CUDA=ON)
    build "$BUILD" "${CC:-cc}" all "${words[@]}"
}
has_cuda() { grep -q '^SAT_HAVE_CUDA:.*=ON' "$BUILD/CMakeCache.txt"; }

step_release() {
    title "build and tests"
    build_release || { fail "build" && return; }
    pass
    if has_cuda; then echo "CUDA code: compiled for $(sed -n 's/^SAT_CUDA_ARCHITECTURES:.*=//p' "$BUILD/CMakeCache.txt")"
    else skip "CUDA code: no CUDA compiler works here, so it was not compiled (scripts/setup.sh cuda)"; fi
    run_ctest tests "$BUILD" -LE gpu
    if ! grep -q 'CMOCKA_LIBRARY:.*=/' "$BUILD/CMakeCache.txt"; then skip "C tests: cmocka is not installed"; fi
}

# What the tests need is installed once (torch is large); the wheel goes into a fresh environment on top of it.
python_base() {
    local base=$BUILD/python/base wanted=bindings/python/requirements.txt index=()
    cmp -s "$wanted" "$base/ready" && return
    echo "installing what the tests of the Python package need into $base (torch is large)"
    rm -rf "$base"
    python3 -m venv "$base" || return 1
    # CPU-only torch is a tenth of what PyPI has, where its index can be reached.
    if python3 -c 'import urllib.request as u; u.urlopen("https://download.pytorch.org/whl/cpu/", timeout=10)' 2>/dev/null; then
        index=(--extra-index-url https://download.pytorch.org/whl/cpu)
    fi
    # Wheels of two gigabytes: not into a /tmp that is memory, and not left there by a run that is killed.
    mkdir "$base/tmp" &&
        TMPDIR=$(realpath "$base/tmp") "$base/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 \
            "${index[@]}" -r "$wanted" &&
        rm -rf "$base/tmp" && cp "$wanted" "$base/ready"
}

python_wheel() { # from the library that is built already: compiling it twice would show nothing new
    rm -f "$BUILD"/python/*.whl
    "$BUILD/python/base/bin/python" -m pip wheel . --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        -w "$BUILD/python" -C build-dir="$BUILD/python/wheel" -C cmake.define.SAT_CUDA=OFF \
        -C cmake.define.SAT_WERROR="$WERROR" -C cmake.define.SAT_PYTHON_LIBRARY="$(realpath "$BUILD/libsparse_autotune.so")"
}

python_fresh() {
    local venv=$BUILD/python/venv
    rm -rf "$venv"
    python3 -m venv "$venv" || return 1
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$BUILD"/python/*.whl || return 1
    realpath "$BUILD"/python/base/lib/python*/site-packages >"$(echo "$venv"/lib/python*/site-packages)/beneath.pth"
}

step_python() {
    title "the Python package: wheel, fresh environment, tests"
    if ! python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        skip "Python: needs Python 3.10 or newer with venv (python3-venv)"
        return
    fi
    build "$BUILD" "${CC:-cc}" sparse_autotune_shared || { fail "Python: build" && return; }
    mkdir -p "$BUILD/python"
    python_base || { fail "Python: what the tests need could not be installed" && return; }
    python_wheel || { fail "Python: wheel" && return; }
    python_fresh || { fail "Python: the wheel could not be installed" && return; }
    local report=$BUILD/python/junit.xml tests bad idle
    rm -f "$report"
    TORCHINDUCTOR_CACHE_DIR=$(realpath -m "$BUILD/python/inductor") \
        "$BUILD/python/venv/bin/python" -m pytest --timeout 300 -p no:cacheprovider -W ignore --junitxml "$report" bindings/python/tests ||
        echo "pytest returned $?"
    count() { grep -o "<testsuite [^>]*" "$report" 2>/dev/null | sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p"; }
    tests=$(count tests)
    [ -n "$tests" ] || { fail "Python: no tests ran" && return; }
    bad=$(($(count failures) + $(count errors))) idle=$(count skipped)
    passed=$((passed + tests - bad - idle)) failed=$((failed + bad)) skipped=$((skipped + idle))
    [ "$bad" -eq 0 ] || failures+=("Python: $bad tests")
    [ "$idle" -eq 0 ] || skips+=("Python: $idle tests, those that need a GPU or JAX")
    drop "$BUILD/python"
}

step_asan() {
    title "AddressSanitizer and UndefinedBehaviorSanitizer"
    # With clang where it can: the tests then have passed with two compilers.
    local compiler=${CC:-cc}
    clang_can -fsanitize=address -fopenmp && compiler=clang
    build "$BUILD-asan" "$compiler" all -DSAT_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG=-O1 -DSAT_BUILD_BENCH=OFF -DSAT_CHECK_CASES=40 -DSAT_CHECK_SEED=2 ||
        { fail "asan: build" && return; }
    without_randomisation
    # The OpenMP run time of clang keeps what it allocated.
    echo 'leak:libomp' >"$BUILD-asan/leaks.txt"
    ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0} UBSAN_OPTIONS=print_stacktrace=1 \
        LSAN_OPTIONS=suppressions=$(realpath "$BUILD-asan/leaks.txt"):print_suppressions=0 run_ctest asan "$BUILD-asan" -LE tools
    steady=()
}

step_tsan() {
    title "ThreadSanitizer, the concurrent tests"
    build "$BUILD-tsan" "${CC:-cc}" concurrent_tests -DSAT_SANITIZE=thread -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG=-O1 -DSAT_BUILD_BENCH=OFF -DSAT_BUILD_CLI=OFF -DSAT_BUILD_ISA=OFF ||
        { fail "tsan: build" && return; }
    without_randomisation
    # What is watched is the callers' threads. OpenMP's run time is not instrumented, so its teams are kept to one thread;
    # that a product does not depend on their number is the grid's to see.
    OMP_THREAD_LIMIT=1 OMP_TOOL=disabled \
        TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1 report_thread_leaks=0 halt_on_error=1} \
        run_ctest tsan "$BUILD-tsan" -L concurrent
    steady=()
}

step_fuzz() {
    title "fuzz targets, $FUZZ_SECONDS s each"
    if ! clang_can -fsanitize=fuzzer-no-link,address -fopenmp; then
        skip "fuzz: needs clang with libFuzzer and OpenMP (clang, libclang-rt-<version>-dev, libomp-dev)"
        return
    fi
    build "$BUILD-fuzz" clang fuzzers -DSAT_BUILD_FUZZ=ON -DSAT_BUILD_TESTS=OFF -DSAT_BUILD_BENCH=OFF \
        -DSAT_BUILD_CLI=OFF -DSAT_BUILD_ISA=OFF -DSAT_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo ||
        { fail "fuzz: build" && return; }
    local file name names=() pids=() i
    for file in tests/fuzz/fuzz_*.c; do
        [ -f "$file" ] || { fail "fuzz: there are no targets" && return; }
        name=$(basename "$file" .c)
        mkdir -p "$BUILD-fuzz/corpus/$name"
        local seeds=()
        [ -d "tests/fuzz/corpus/${name#fuzz_}" ] && seeds=("tests/fuzz/corpus/${name#fuzz_}")
        "$BUILD-fuzz/tests/fuzz/$name" -max_total_time="$FUZZ_SECONDS" -timeout=20 -print_final_stats=1 \
            -artifact_prefix="$BUILD-fuzz/$name-" "$BUILD-fuzz/corpus/$name" "${seeds[@]}" \
            >"$BUILD-fuzz/$name.log" 2>&1 </dev/null &
        names+=("$name") pids+=($!)
    done
    for i in "${!pids[@]}"; do
        name=${names[$i]}
        if wait "${pids[$i]}"; then
            pass
            echo "$name: no finding, $(sed -n 's/stat::number_of_executed_units: *//p' "$BUILD-fuzz/$name.log") inputs"
        else
            fail "$name: see $BUILD-fuzz/$name.log"
            tail -n 40 "$BUILD-fuzz/$name.log"
        fi
    done
}

step_gpu() {
    title "GPU"
    local reason
    build_release || { fail "GPU: build" && return; }
    if ! has_cuda; then
        skip "GPU: the check of every variant and the tests that need a GPU, since this build has no CUDA code"
    elif ! reason=$("$BUILD/sparse_autotune" info --device cuda 2>&1 >/dev/null); then
        skip "GPU: the check of every variant, since there is no device: ${reason#*: }"
        run_ctest GPU "$BUILD" -L gpu
    else
        if "$BUILD/sparse_autotune" check --device cuda --seconds "$GPU_SECONDS"; then pass; else fail "GPU: check"; fi
        run_ctest GPU "$BUILD" -L gpu
    fi
    drop "$BUILD"/tests/test_* # each has all the device code in it
}

step_rust() {
    title "Rust crates"
    PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
    if ! command -v cargo >/dev/null; then
        skip "Rust: cargo is not installed (scripts/setup.sh rust)"
        return
    fi
    local name
    while read -r name; do
        case $name in
        passed:*) pass ;;
        skipped:*) skip "Rust: ${name#*: }" ;;
        failed:*) fail "Rust: ${name#*: }" ;;
        *) echo "$name" ;;
        esac
    done < <(BUILD=$(realpath -m "$BUILD") JOBS=$JOBS scripts/test_rust.sh 2>&1)
}

for step in "$@"; do "step_$step"; done

title "summary"
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
[ ${#failures[@]} -eq 0 ] || [ -z "$scarce" ] || echo "perhaps for want of room: $scarce"
[ ${#skips[@]} -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
