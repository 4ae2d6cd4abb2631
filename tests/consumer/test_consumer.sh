#!/usr/bin/env bash
# Installs a build into a folder and uses it from there, as somebody else's project would; or takes a prefix that is
# there already, of a package that was unpacked.
# usage: test_consumer.sh cmake|pkgconfig|cxx <build folder> <this folder> [prefix]
set -eu
way=$1 build=$2 consumer=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# $CC may hold flags too.
read -ra cc <<<"${CC:-cc}"

if [ $# -gt 3 ]; then cp -r "$4" "$work/first"
else cmake --install "$build" --prefix "$work/first" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }; fi
# What was installed can be moved: nothing in it may remember where it was.
mv "$work/first" "$work/prefix"
prefix=$work/prefix
if grep -rIl -e "$build" -e "$work/first" "$prefix"; then echo "FAILED: those name a folder that users do not have" && exit 1; fi
library=$(dirname "$(find "$prefix" -name 'libsparse_autotune.so')")

case $way in
cmake)
    cmake -S "$consumer" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release
    cmake --build "$work/build"
    "$work/build/consumer"
    "$work/build/consumer_static"
    if [ -e "$prefix/bin/sparse_autotune" ]; then "$prefix/bin/sparse_autotune" variants >/dev/null; fi
    ;;
pkgconfig)
    command -v pkg-config >/dev/null || { echo "skipped: there is no pkg-config"; exit 77; }
    export PKG_CONFIG_PATH=$library/pkgconfig
    pkg-config --modversion sparse_autotune
    # shellcheck disable=SC2046 # pkg-config prints words
    "${cc[@]}" "$consumer/main.c" $(pkg-config --cflags --libs sparse_autotune) -o "$work/consumer"
    LD_LIBRARY_PATH=$library "$work/consumer"
    rm "$library"/libsparse_autotune.so*
    # shellcheck disable=SC2046
    "${cc[@]}" "$consumer/main.c" $(pkg-config --cflags --libs --static sparse_autotune) -o "$work/consumer_static"
    "$work/consumer_static"
    # OpenMP by its files, for those who link with another compiler than the library's: the Rust crates.
    IFS=';' read -ra openmp <<<"$(pkg-config --variable=openmp sparse_autotune)"
    # shellcheck disable=SC2046
    "${cc[@]}" "$consumer/main.c" $(pkg-config --cflags --libs sparse_autotune) "${openmp[@]}" -pthread -lm -ldl -lrt \
        -o "$work/consumer_openmp"
    "$work/consumer_openmp"
    ;;
cxx)
    command -v "${CXX:-c++}" >/dev/null || { echo "skipped: there is no C++ compiler"; exit 77; }
    "${CXX:-c++}" -std=c++17 -Wall -Wextra -pedantic -Werror "$consumer/main.cc" -I"$prefix/include" -L"$library" \
        -lsparse_autotune -o "$work/consumer"
    LD_LIBRARY_PATH=$library "$work/consumer"
    ;;
esac
echo "ok: $way"
