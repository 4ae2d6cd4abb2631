# The tests of the C library under sanitizers, and the fuzzers, which share a build with AddressSanitizer.
# shellcheck shell=bash disable=SC2034,SC2154 # test.sh has the rest

clang_can() { # flags
    command -v clang >/dev/null && echo 'int main(void) { return 0; }' | clang "$@" -x c - -o /dev/null 2>/dev/null
}

# With clang where it can: the tests then have passed with two compilers.
build_asan() { # what to build
    local compiler=${CC:-cc} fuzz=OFF
    clang_can -fsanitize=address -fopenmp && compiler=clang
    clang_can -fsanitize=fuzzer-no-link,address -fopenmp && fuzz=ON
    build "$BUILD-asan" "$compiler" "$1" -DSAT_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG=-O1 \
        -DSAT_BUILD_FUZZ=$fuzz -DSAT_BUILD_BENCH=OFF -DSAT_CHECK_CASES=40 -DSAT_CHECK_SEED=2
}

part_asan() {
    build_asan all || { fail "build" && return; }
    without_randomisation
    # The OpenMP run time of clang keeps what it allocated.
    echo 'leak:libomp' >"$BUILD-asan/leaks.txt"
    ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=0} UBSAN_OPTIONS=print_stacktrace=1 \
        LSAN_OPTIONS=suppressions=$(realpath "$BUILD-asan/leaks.txt"):print_suppressions=0 run_ctest "$BUILD-asan" -LE 'tools|long'
    steady=()
}

part_tsan() {
    build "$BUILD-tsan" "${CC:-cc}" concurrent_tests -DSAT_SANITIZE=thread -DCMAKE_BUILD_TYPE=Debug \
        -DCMAKE_C_FLAGS_DEBUG=-O1 -DSAT_BUILD_BENCH=OFF -DSAT_BUILD_CLI=OFF -DSAT_BUILD_ISA=OFF ||
        { fail "build" && return; }
    without_randomisation
    # What is watched is the callers' threads. OpenMP's run time is not instrumented, so its teams are kept to one thread;
    # that a product does not depend on their number is the grid's to see.
    OMP_THREAD_LIMIT=1 OMP_TOOL=disabled \
        TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1 report_thread_leaks=0 halt_on_error=1} \
        run_ctest "$BUILD-tsan" -L concurrent
    steady=()
}

# To libFuzzer no seconds are no limit.
whole_seconds() { [[ $1 =~ ^[1-9][0-9]*$ ]]; }

# All fuzz targets at once, each for so many seconds. The same seed gives nearly the same inputs, so that what fails here
# fails again; seed 0 is another one each time.
fuzz_for() { # seconds, seed
    local file name names=() pids=() i
    for file in tests/fuzz/fuzz_*.c; do
        [ -f "$file" ] || { fail "there are no fuzz targets" && return; }
        name=$(basename "$file" .c)
        mkdir -p "$BUILD-asan/corpus/$name"
        local seeds=()
        [ -d "tests/fuzz/corpus/${name#fuzz_}" ] && seeds=("tests/fuzz/corpus/${name#fuzz_}")
        "$BUILD-asan/tests/fuzz/$name" -max_total_time="$1" -seed="$2" -timeout=20 -print_final_stats=1 \
            -artifact_prefix="$BUILD-asan/$name-" "$BUILD-asan/corpus/$name" "${seeds[@]}" \
            >"$BUILD-asan/$name.log" 2>&1 </dev/null &
        names+=("$name") pids+=($!)
    done
    for i in "${!pids[@]}"; do
        name=${names[$i]}
        if wait "${pids[$i]}"; then
            pass
            echo "$name: no finding, $(sed -n 's/stat::number_of_executed_units: *//p' "$BUILD-asan/$name.log") inputs"
        else
            fail "$name: see $BUILD-asan/$name.log"
            tail -n 40 "$BUILD-asan/$name.log"
        fi
    done
}

build_fuzzers() {
    if ! clang_can -fsanitize=fuzzer-no-link,address -fopenmp; then
        skip "fuzzing needs clang with libFuzzer and OpenMP (clang, libclang-rt-<version>-dev, libomp-dev)"
        return 1
    fi
    build_asan fuzzers || { fail "build" && return 1; }
}

part_fuzz() {
    local seconds=${FUZZ_SECONDS:-60}
    whole_seconds "$seconds" || { fail "FUZZ_SECONDS=$seconds is not a number of seconds above 0" && return; }
    build_fuzzers || return
    echo "each target for $seconds s"
    fuzz_for "$seconds" 1
}
