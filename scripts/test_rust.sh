#!/usr/bin/env bash
# Everything about the Rust crates, a line `passed:`, `failed:` or `skipped:` a part. test.sh counts them.
# usage: test_rust.sh            BUILD and JOBS as in test.sh
set -u
cd "$(dirname "$0")/../bindings/rust" || exit 2
BUILD=${BUILD:-$PWD/../../build} JOBS=${JOBS:-2}
# Nothing may touch the user's own cache, and nothing in the user's shell may change what a test sees.
for name in "${!SPARSE_AUTOTUNE@}"; do unset "$name"; done
export CARGO_TARGET_DIR=$BUILD/rust CARGO_BUILD_JOBS=$JOBS CARGO_TERM_COLOR=never SPARSE_AUTOTUNE_CACHE=$BUILD/rust/tuned
[ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0 # a gigabyte for a second build that never comes
status=0

part() { # name, command ...
    local name=$1 start=$SECONDS log
    shift
    log=$CARGO_TARGET_DIR/${name// /_}.log
    mkdir -p "$CARGO_TARGET_DIR"
    if "$@" >"$log" 2>&1; then
        grep '^skipped:' "$log"
        echo "passed: $name"
        echo "ok: $name ($((SECONDS - start)) s)"
    else
        tail -n 60 "$log"
        echo "failed: $name"
        status=1
    fi
}

# The fenced blocks of the README that are Rust are examples/readme.rs, to the letter.
readme() {
    diff <(awk '$0 == "```rust" { on = 1; next } /^```$/ { on = 0 } on' ../../README.md) burn-sparse/examples/readme.rs &&
        cargo run --locked --quiet --example readme
}

# Packages hold what is a link here: the C source, every file that the build reads, what the tests share, and the licences.
packaged() {
    local package list
    for package in sparse-autotune-sys sparse-autotune burn-sparse; do
        list=$(cargo package --locked --list --allow-dirty -p "$package") || return 1
        case $package in
        *-sys) (cd ../.. && git ls-files CMakeLists.txt LICENSE-APACHE LICENSE-MIT include src cmake) | sed 's,^,source/,' ;;
        *) printf '%s\n' LICENSE-APACHE LICENSE-MIT tests/common/testing.rs ;;
        esac | sort | comm -23 - <(sort <<<"$list") | sed "s,^,missing in $package: ," | grep . && return 1
    done
    return 0
}

# What looks at the code without running it takes in the CUDA feature too: no toolkit is asked for, and nothing is linked.
look() { # cargo's word, then more for it
    SPARSE_AUTOTUNE_CHECK_ONLY=1 RUSTDOCFLAGS=-Dwarnings cargo "$1" --locked --workspace \
        --features burn-sparse/cuda,burn-sparse/fusion,burn-sparse/threads "${@:2}"
}

# Without CUDA the code of CubeCL's backends is another: this looks at that.
other_gpus() { SPARSE_AUTOTUNE_CHECK_ONLY=1 cargo clippy --locked -p burn-sparse --features wgpu -- -D warnings; }

# The crates on a library that AddressSanitizer watches, which sees their use of our memory too. It comes in by the linker, by
# a `cc` of our own: flags would have all of Burn built anew. So this is the last part, which leaves programs of its own.
sanitized() {
    mkdir -p "$BUILD/rust-cc" && printf '#!/bin/sh\nexec clang -fsanitize=address,undefined "$@"\n' >"$BUILD/rust-cc/cc" &&
        chmod +x "$BUILD/rust-cc/cc" &&
        PATH=$BUILD/rust-cc:$PATH SPARSE_AUTOTUNE_DIR=$BUILD-asan ASAN_OPTIONS=allocator_may_return_null=1 \
            LSAN_OPTIONS=suppressions=$BUILD-asan/leaks.txt:print_suppressions=0 \
            cargo test --locked -p sparse-autotune -p burn-sparse --lib --tests
}

part "layout" cargo fmt --check
part "tests" cargo test --locked --workspace
part "example simple" cargo run --locked --example simple
part "example train" cargo run --locked --example train
part "readme" readme
part "package" packaged
part "clippy and the types of the CUDA feature" look clippy --all-targets -- -D warnings
part "clippy of the WGPU feature" other_gpus
part "documentation" look doc --no-deps
if grep -qs 'CMAKE_C_COMPILER:.*clang' "$BUILD-asan/CMakeCache.txt" && [ -f "$BUILD-asan/libsparse_autotune.a" ]; then
    part "AddressSanitizer" sanitized
else
    echo "skipped: AddressSanitizer, which needs what the asan step builds with clang"
fi
exit $status
