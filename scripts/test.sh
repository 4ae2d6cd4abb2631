#!/usr/bin/env bash
# Sets up, builds and tests, part by part, and ends with a table of the parts: time, passed, failed, skipped.
# usage: test.sh quick|all|soak|release|PART ...
#   quick   what `make test` runs          all     the rest, `make test-all`          soak    hours, `make soak`
#   release   the packages, `make release-check`
#   PART    c gpu rust python | python_all cuda asan fuzz tsan rust_all docs | soak | wheel sdist crates archives
#           (scripts/test/: a file a subject)
# BUILD, WERROR and JOBS come from the Makefile. Where CI=true nothing may be missing, and each part makes room for the next.
set -u
cd "$(dirname "$0")/.." || exit 2
. scripts/common.sh
began=$SECONDS

quick=(c gpu rust python)
all=(python_all cuda asan fuzz tsan rust_all docs)
release=(wheel sdist crates archives)

# What setup.sh must bring for a part
declare -A wants=([c]="test gpu" [gpu]="test gpu" [rust]="test rust" [python]="python" [python_all]="python" [cuda]="test"
    [asan]="test sanitize" [fuzz]="sanitize" [tsan]="test" [rust_all]="rust sanitize" [docs]="docs" [soak]="test sanitize python"
    [wheel]="packages" [sdist]="packages" [crates]="rust" [archives]="run packages")

# What `make test` leaves for later, and what `make test-all` does
soak="make soak|hours of fuzzing, random cases, right results through the check, kill loops, ranks that die (SECONDS=3600)"
packed="make release-check|the packages: wheel, sdist, crates, tarball and .deb"
linted="make lint|layout, cppcheck, clang-tidy, shellcheck, ruff"
later_than_all=("make gpu|every test that needs a GPU" "make test|the Python package, the Rust crates on this library" "$soak" "$packed"
    "$linted")
later=(
    "make test-all|CUDA code for every architecture, its host tests, the long grid, the guide that adds a variant"
    "make test-all|AddressSanitizer, UndefinedBehaviorSanitizer, ThreadSanitizer, fuzzers"
    "make test-all|Python: whole models of Hugging Face's transformers, layers over many ranks"
    "make test-all|Rust: the crate's own build of C, clippy, the types of the CUDA and WGPU features, rustdoc, AddressSanitizer"
    "make test-all|the site of the documents, built and opened in Chromium"
    "$soak"
    "$packed"
    "$linted"
)

# ---- bookkeeping ----

passed=0 failed=0 skipped=0   # of the part that runs
failures=() skips=() table=() # of all

pass() { passed=$((passed + ${1:-1})); }
fail() { failed=$((failed + 1)) && failures+=("$part: $1"); }
skip() { skipped=$((skipped + 1)) && skips+=("$part: $1"); }
count_skips() { [ "$1" -eq 0 ] || { skipped=$((skipped + $1)) && skips+=("$part: $1 $2"); }; }

run_part() { # name of a function part_*
    local start=$SECONDS
    part=$1 passed=0 failed=0 skipped=0
    printf '\n== %s\n' "$part"
    "part_$1"
    [ $((passed + failed + skipped)) -gt 0 ] || fail "nothing was tested"
    table+=("$part|$((SECONDS - start))|$passed|$failed|$skipped")
    echo "$part: $passed passed, $failed failed, $skipped skipped in $((SECONDS - start)) s"
}

# Where nobody comes back to it, what a part leaves makes room for the next.
drop() { [ "${CI:-}" != true ] || rm -rf "$@"; }

# A full disk fails in many ways, few of which say so: this is said before, and again beside what failed.
scarce=
look_at_disk() { # GB
    local room had needed=$(($1 << 20)) # KiB
    mkdir -p "$BUILD" && room=$(df -Pk "$BUILD" | awk 'NR == 2 { print $4 }') || return
    had=$(du -skc "$BUILD" "$BUILD"-* 2>/dev/null | awk 'END { print $1 }')
    [ $((room + had)) -lt $needed ] || return
    scarce="$((room >> 10)) MB of disk are free for $BUILD, and these tests take about $(((needed - had) >> 10)) MB more"
    echo "sparse_autotune: $scarce" >&2
}

# An error in one of this shell's own sums leaves the loop over the parts, and what follows the loop goes on.
find_parts_without_end() { # names of those that were asked for
    local ended=" ${table[*]%%|*} "
    for part in "$@"; do
        [[ $ended != *" $part "* ]] || continue
        failed=0 && fail "did not come to its end" && table+=("$part|0|0|1|0")
    done
}

summary() {
    local row rest=() p=0 f=0 s=0
    printf '\n== summary\n%-12s%9s%10s%9s%10s\n' part time passed failed skipped
    for row in "${table[@]}"; do
        IFS='|' read -r -a row <<<"$row"
        printf '%-12s%7d s%10d%9d%10d\n' "${row[@]}"
        p=$((p + row[2])) f=$((f + row[3])) s=$((s + row[4]))
    done
    printf '%-12s%7d s%10d%9d%10d\n' total $((SECONDS - began)) $p $f $s
    show_downloads "$BUILD/downloads" "$BUILD-cuda/downloads"
    [ ${#skips[@]} -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
    case $mode in quick) rest=("${later[@]}") ;; all) rest=("${later_than_all[@]}") ;; esac
    for row in "${rest[@]}"; do echo "not run here, but by ${row%%|*}: ${row#*|}"; done
    [ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[@]}"
    [ ${#failures[@]} -eq 0 ] || [ -z "$scarce" ] || echo "perhaps for want of room: $scarce"
    echo "$p passed, $f failed, $s skipped"
    [ "$f" -eq 0 ] && [ $((p + s)) -gt 0 ]
}

# ---- parts ----

# shellcheck source=/dev/null
for file in scripts/test/*.sh; do . "$file"; done

mode=parts
case ${1:-} in quick | all | release) [ $# -eq 1 ] || set -- "$*" ;; esac # no more words: what is wrong is said below
case ${1:-} in
quick) mode=quick && set -- "${quick[@]}" && look_at_disk 9 ;;
all) mode=all && set -- "${all[@]}" && look_at_disk 9 ;;
release) mode=release && set -- "${release[@]}" && look_at_disk 20 ;;
esac
words=()
for name in "${@:-}"; do
    declare -F "part_$name" >/dev/null || { echo "usage: test.sh quick|all|$(IFS='|' && echo "${quick[*]}|${all[*]}|soak|release|${release[*]}") ..." >&2 && exit 2; }
    read -ra more <<<"${wants[$name]}" && words+=("${more[@]}")
done
scripts/setup.sh "${words[@]}" || exit 1
case " $* " in *" cuda "*) BUILD=$(cuda_folder) scripts/setup.sh cuda || exit 1 ;; esac
case " $* " in *" rust "* | *" crates "*) fetch_crates & ;; esac
case " $* " in *" python "* | *" python_all "* | *" soak "* | *" wheel "*) start_python_base ;; esac
for name in "$@"; do run_part "$name"; done
find_parts_without_end "$@"
summary
