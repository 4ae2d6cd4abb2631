#!/usr/bin/env bash
# Looks at the sources without running them: clang-format, cppcheck, clang-tidy, shellcheck, ruff, and the order
# of the house.
# usage: lint.sh [--fix | PART ...]     --fix only lays the C and Python files out again
#   PART    clang-format, layout, cppcheck, clang-tidy, ruff or shellcheck: only those, and nothing is installed
set -u
cd "$(dirname "$0")/.." || exit 2
. scripts/common.sh
export BUILD
BUILD=$(cuda_folder) # clang-tidy reads the host side of CUDA too
passed=0 failed=0 skipped=0 failures=()

mapfile -t sources < <(find cmake include src tests bench bindings -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | grep -v '/build' | sort)
mapfile -t scripts < <(find scripts tests bench -name '*.sh' | sort && echo .ci/run)

# Every Python file, the programs in bench/ that have no ending too.
mapfile -t python < <({
    find bench bindings/python examples scripts tests -name '*.py'
    find bench scripts tests -maxdepth 1 -type f ! -name '*.*' -exec grep -lE '^#!.*python' {} +
} | grep -v '/build' | sort)

parts=("$@")
case ${1:-} in
--fix) scripts/setup.sh lint || exit 1 ;;
"") scripts/setup.sh lint cuda || exit 1 ;;
esac
clang_format=$(command -v clang-format-14 || true)
[ -n "$clang_format" ] || ! clang-format --version 2>/dev/null | grep -q 'version 14\.' || clang_format=clang-format
ruff=$(ruff_command || true)

if [ "${1:-}" = --fix ]; then
    [ -n "$clang_format" ] || { echo "clang-format 14 is not installed (package clang-format-14)" && exit 1; }
    [ -n "$ruff" ] || { echo "ruff $ruff_version is not installed" && exit 1; }
    "$clang_format" -i "${sources[@]}"
    "$ruff" format --no-cache --quiet "${python[@]}"
    exit
fi

step() { # name, program, command ...
    local name=$1 program=$2 start=$SECONDS
    shift 2
    case " ${parts[*]:-$name} " in *" $name "*) ;; *) return ;; esac
    if [ -z "$program" ] || ! command -v "$program" >/dev/null; then
        echo "skipped: $name is not installed"
        skipped=$((skipped + 1))
    elif "$@"; then
        echo "ok: $name ($((SECONDS - start)) s)"
        passed=$((passed + 1))
    else
        echo "FAILED: $name ($((SECONDS - start)) s)"
        failed=$((failed + 1)) && failures+=("$name")
    fi
}

# What cppcheck 2.10 gets wrong: variants.def is a list and not code, an offset from a malloc that is checked on the next
# line is no fault, a comparison of two indices is no check of limits, and a compound literal reads nothing twice.
quiet=(--suppress=missingIncludeSystem --suppress=unknownMacro --suppress=nullPointerArithmeticRedundantCheck
    --suppress=arrayIndexThenCheck --suppress=unknownEvaluationOrder --suppress=uninitvar:src/cli/check/check_run.c)

run_cppcheck() {
    cppcheck --std=c11 --language=c --enable=warning,performance --error-exitcode=1 --inline-suppr --quiet "${quiet[@]}" -U__CUDACC__ \
        -I include -I src -j "$JOBS" src bench
}

run_tidy() {
    local generator=()
    [ -f "$BUILD/CMakeCache.txt" ] || ! command -v ninja >/dev/null || generator=(-G Ninja)
    cmake -S . -B "$BUILD" "${generator[@]}" --log-level=WARNING -DSAT_BUILD_TESTS=ON -DSAT_BUILD_BENCH=ON >/dev/null ||
        return 1
    # Only what the build compiles: the build knows the flags. CUDA sources are nvcc's, which clang does not take after.
    sed -n 's/.*"file": "\(.*\.c\)".*/\1/p' "$BUILD/compile_commands.json" | sort -u |
        xargs -P "$JOBS" -n 4 clang-tidy --quiet -p "$BUILD" --warnings-as-errors='*' 2>"$BUILD/tidy.log"
}

run_ruff() {
    "$ruff" format --no-cache --quiet --check --diff "${python[@]}" && "$ruff" check --no-cache --quiet "${python[@]}"
}

step clang-format "$clang_format" "$clang_format" --dry-run -Werror "${sources[@]}"
step layout bash bash scripts/check_layout.sh
step cppcheck cppcheck run_cppcheck
step clang-tidy clang-tidy run_tidy
step ruff "$ruff" run_ruff
step shellcheck shellcheck shellcheck -x -S warning "${scripts[@]}"

echo "lint: $SECONDS s"
show_downloads "$BUILD/downloads"
[ $((passed + failed + skipped)) -gt 0 ] || { echo "lint.sh: no part is called $*" >&2 && exit 2; }
[ ${#failures[@]} -eq 0 ] || printf 'failed: lint: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
