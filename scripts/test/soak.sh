# What takes hours: fuzzing, random cases of every variant, and the tests that kill, fill disks and race, over and over.
# SOAK_SECONDS is shared by the three in equal parts.
# shellcheck shell=bash

part_soak() {
    local share=$((${SOAK_SECONDS:-3600} / 3)) end round=0
    build "$BUILD" "${CC:-cc}" all || { fail "build" && return; }
    echo "fuzz targets for $share s"
    build_fuzzers && fuzz_for "$share"

    echo "random cases of every variant for $share s"
    local device=cpu
    "$BUILD/sparse_autotune" info --device cuda >/dev/null 2>&1 && device=cuda
    if "$BUILD/sparse_autotune" check --device $device --cases 1000000000 --seconds "$share"; then pass; else fail "check"; fi

    echo "faults, kills and concurrency for $share s"
    end=$((SECONDS + share))
    while [ $SECONDS -lt $end ] || [ $round -eq 0 ]; do
        round=$((round + 1))
        ctest --test-dir "$BUILD" -R 'faults|processes|threads' -LE gpu --output-on-failure --no-tests=error >"$BUILD/soak.log" 2>&1 && continue
        cat "$BUILD/soak.log"
        fail "round $round of faults, kills and concurrency: $(sed -n 's/.*- \([a-z_]*\) (.*/\1/p' "$BUILD/soak.log" | paste -sd' ')"
        return
    done
    echo "$round rounds"
    pass
}
