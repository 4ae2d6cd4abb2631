#!/usr/bin/env bash
# The build's identity follows the sources and settings, and nothing else.
# usage: test_build_id.sh ROOT CMAKE
set -u
root=$1 cmake=$2
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
failures=0

id() { # folder of sources, settings
    echo "$2" >"$folder/settings"
    "$cmake" -D root="$1" -D settings="$folder/settings" -D output="$folder/id.c" -P "$1/cmake/build_id.cmake" &&
        sed -n 's/.*"\([0-9a-f]\{64\}\) .*/\1/p' "$folder/id.c"
}
expect() { # what, same or other, of which it must be
    local now
    now=$(id "$folder/copy" "${3:-settings}")
    if [ -z "$now" ] || { [ "$2" = same ] && [ "$now" != "$first" ]; } || { [ "$2" = other ] && [ "$now" = "$first" ]; }; then
        echo "failed: $1: expected the $2 identity, got '$now' after '$first'"
        failures=$((failures + 1))
    fi
}

mkdir "$folder/copy" && cp -r "$root/src" "$root/include" "$root/cmake" "$root/CMakeLists.txt" "$folder/copy" || exit 2
cd "$folder/copy" || exit 2
first=$(id "$folder/copy" settings)
expect 'nothing changed' same
find . -exec touch -d '2001-02-03' {} +
expect 'older files' same
expect 'other settings' other 'other settings'
for file in src/kernels/cpu/variants.def src/kernels/cpu/matmul/matmul_reference.c src/kernels/cuda/matmul/matmul_direct.cu \
    src/base/status.c src/cache/cache_file.c src/core/tune.c src/api/calls.c src/ops/check.h src/backend/cpu.c src/libs/blas.c src/variant.h include/sparse_autotune.h cmake/kernels.cmake CMakeLists.txt; do
    cp "$file" "$folder/saved" || exit 2
    echo '/* changed */' >>"$file"
    expect "$file changed" other
    cp "$folder/saved" "$file"
    expect "$file as it was" same
done
echo >src/kernels/cpu/matmul/another.c
expect 'a file more' other
rm src/kernels/cpu/matmul/another.c
echo '/* changed */' >>src/cli/main.c
echo 'changed' >>src/README.md
expect 'the command line and a page' same
mv src/ops/op.h src/ops/renamed.h
expect 'a file of another name' other
mv src/ops/renamed.h src/ops/op.h
cp -r "$folder/copy" "$folder/elsewhere"
[ "$(id "$folder/elsewhere" settings)" = "$first" ] || { echo "failed: another folder" && failures=$((failures + 1)); }
[ "$failures" -eq 0 ] && echo "build id: follows sources and settings"
exit $((failures != 0))
