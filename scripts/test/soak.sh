# What takes hours: fuzzing, random cases of every variant, right results through the check of a race, a crowd of processes
# that is killed, the tests that let calls fail, fill disks and race, over and over, and ranks of torch.distributed that
# begin late and die. SOAK_SECONDS is shared by the six in equal parts; the last two take a few minutes at least.
# shellcheck shell=bash

# Rounds of a hundred thousand races' worth, each with a seed of its own; every round prints how near to the bounds it came.
soak_alarms() { # seconds
    local end=$((SECONDS + $1)) seed=$RANDOM round=0
    while [ $SECONDS -lt $end ] || [ $round -eq 0 ]; do
        round=$((round + 1))
        "$BUILD/tests/alarms" 100000 $((seed + round)) >"$BUILD/soak.log" 2>&1 && continue
        cat "$BUILD/soak.log"
        fail "a right result was called wrong (seed $((seed + round)))"
        return
    done
    cat "$BUILD/soak.log"
    echo "$((round * 100000)) races' worth, no alarm"
    pass
}

# Each test once in its long form, then all that race, kill and fail, as often as time allows.
soak_rounds() { # seconds
    local end=$((SECONDS + $1)) round=0 words=(-L soak -LE gpu)
    while [ $SECONDS -lt $end ] || [ $round -lt 2 ]; do
        round=$((round + 1))
        if ctest --test-dir "$BUILD" "${words[@]}" --output-on-failure --no-tests=error >"$BUILD/soak.log" 2>&1; then
            # Faults that are planted, and the layout's, are the same in every round.
            words=(-R '^test_.*(faults|calls|hostile|allocations|trust|limits|processes|threads)' -LE gpu)
            continue
        fi
        cat "$BUILD/soak.log"
        fail "round $round of faults, kills and concurrency: $(sed -n 's/^[\t ]*[0-9]* - \([^ ]*\) (.*/\1/p' "$BUILD/soak.log" | paste -sd' ')"
        return
    done
    echo "$round rounds"
    pass
}

# Eight ranks with torch and gloo that agree though they begin late and die: ten rounds, and ten others.
soak_ranks() { # seconds
    python_ready || return
    SAT_TEST_SECONDS=$1 run_pytest bindings/python/tests/test_long_sharding.py -k ten_rounds --timeout $(($1 + 900))
    drop "$BUILD/python"
}

part_soak() {
    local share seconds=${SOAK_SECONDS-3600}
    whole_seconds "$seconds" || { fail "SECONDS=$seconds is not a number of seconds above 0" && return; }
    share=$((seconds < 6 ? 1 : seconds / 6))
    build "$BUILD" "${CC:-cc}" all || { fail "build" && return; }
    echo "fuzz targets for $share s"
    build_fuzzers && fuzz_for "$share" 0

    echo "random cases of every variant for $share s"
    local device=cpu
    "$BUILD/sparse_autotune" info --device cuda >/dev/null 2>&1 && device=cuda
    if "$BUILD/sparse_autotune" check --device $device --cases 1000000000 --seconds "$share"; then pass; else fail "check"; fi

    echo "right results through the check of a race for $share s"
    soak_alarms "$share"

    if [ -x "$BUILD/tests/test_cache_crowd_processes" ]; then
        echo "36 processes on one cache for $share s"
        if SAT_TEST_SECONDS=$share "$BUILD/tests/test_cache_crowd_processes"; then pass; else fail "a crowd on one cache"; fi
    fi

    echo "faults, kills and concurrency for $share s"
    soak_rounds "$share"

    echo "ranks with torch and gloo for $share s"
    soak_ranks "$share"
}
