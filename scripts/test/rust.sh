# The Rust crates. `rust` tests them on the library that is built already; `rust_all` has what looks at the code without
# running it, the crate's own build of the C library, and AddressSanitizer.
# shellcheck shell=bash disable=SC2154 # test.sh has the rest

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
rust_folder=$(realpath -m "$BUILD/rust")

# In a shell of its own. Nothing may touch the user's own cache, and nothing in the user's shell may change what a test sees.
in_rust() ( # command ...
    for name in "${!SPARSE_AUTOTUNE@}"; do unset "$name"; done
    export CARGO_TARGET_DIR=$rust_folder CARGO_BUILD_JOBS=$JOBS CARGO_TERM_COLOR=never SPARSE_AUTOTUNE_CACHE=$rust_folder/tuned
    [ "${CI:-}" != true ] || export CARGO_INCREMENTAL=0 # a gigabyte for a second build that never comes
    # One library for all: where this is set, the crate does not compile the C sources once more.
    [ "$1" = bundled ] || export SPARSE_AUTOTUNE_DIR=${library:-$(realpath -m "$BUILD")}
    library=${library:-$(realpath -m "$BUILD")}
    root=$PWD
    cd bindings/rust && "$@"
)

have_cargo() { command -v cargo >/dev/null || { skip "cargo is not installed (scripts/setup.sh rust)" && return 1; }; }

fetch_crates() {
    local start=$SECONDS
    command -v cargo >/dev/null && (cd bindings/rust && cargo fetch --locked --quiet) >/dev/null 2>&1 || return
    [ $((SECONDS - start)) -lt 2 ] || note_download crates $((SECONDS - start)) " beside other parts"
}

step() { # name, command ...: one thing that passes or fails as a whole
    local name=$1 start=$SECONDS log
    shift
    log=$rust_folder/${name// /_}.log
    mkdir -p "$rust_folder"
    if in_rust "$@" >"$log" 2>&1; then
        pass
        echo "ok: $name ($((SECONDS - start)) s)"
    else
        tail -n 60 "$log"
        fail "$name"
    fi
}

# A program that crashes, or that a sanitizer ends, calls no test failed: cargo then says which program it was, and its end.
fallen() { # log
    awk '/^error: (doc)?test failed, to rerun pass `/ { program = $0; gsub(/^[^`]*`-p |`$/, "", program) }
        program && /^ *process didn.t exit successfully: / { sub(/.*` /, ""); print program, $0 }' "$1"
}

# What a log says about the tests that failed, wherever in it that stands; the end of it if nothing
what_failed() { # log
    {
        awk '/^failures:$/, /^test result:/' "$1"
        [ -z "$(fallen "$1")" ] || grep -B 40 -A 1 '^Caused by:' "$1"
    } | grep '' || tail -n 60 "$1"
}

tests() { # name, command ...: `cargo test`, whose tests are counted one by one
    local name=$1 start=$SECONDS log count left
    shift
    log=$rust_folder/${name// /_}.log
    mkdir -p "$rust_folder"
    in_rust "$@" >"$log" 2>&1
    local status=$?
    count=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
    left=$(grep -c '^skipped: ' "$log") # a test that leaves something out says so, and passes
    pass $((count - left))
    while read -r reason; do skip "$name: $reason"; done < <(sed -n 's/^skipped: //p' "$log")
    local before=$failed
    while read -r failure; do fail "$name: $failure"; done < <(
        sed -n 's/^test \(.*\) \.\.\. FAILED$/\1/p' "$log"
        fallen "$log"
    )
    if [ $status -ne 0 ]; then
        what_failed "$log"
        [ "$failed" -gt "$before" ] || fail "$name did not build or run"
    elif [ "$count" -eq 0 ]; then fail "$name: no tests ran"; fi
    echo "$name: $((count - left)) passed ($((SECONDS - start)) s)"
}

# The fenced blocks of the README that are Rust are examples/readme.rs, to the letter.
readme() {
    diff <(awk '$0 == "```rust" { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md") burn-sparse/examples/readme.rs &&
        cargo run --locked --quiet --example readme
}

# Packages hold what is a link here: the C source, every file that the build reads, what the tests share, and the licences.
packaged() {
    local package list
    for package in sparse-autotune-sys sparse-autotune burn-sparse; do
        list=$(cargo package --locked --list --allow-dirty -p "$package") || return 1
        case $package in
        *-sys) (cd "$root" && git ls-files CMakeLists.txt LICENSE-APACHE LICENSE-MIT include src cmake) | sed 's,^,source/,' ;;
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

# As a user of the crate has it: the C library compiled by its build script.
bundled() { cargo test --locked --no-fail-fast -p sparse-autotune-sys -p sparse-autotune; }

# The crates on a library that AddressSanitizer watches, which sees their use of our memory too. It comes in by the linker, by
# a `cc` of our own: flags would have all of Burn built anew. So this is the last part, which leaves programs of its own.
sanitized() {
    local cc=$rust_folder-cc
    mkdir -p "$cc" && printf '#!/bin/sh\nexec clang -fsanitize=address,undefined "$@"\n' >"$cc/cc" && chmod +x "$cc/cc" &&
        PATH=$cc:$PATH ASAN_OPTIONS=allocator_may_return_null=1 \
            LSAN_OPTIONS=suppressions=$library/leaks.txt:print_suppressions=0 \
            cargo test --locked --no-fail-fast -p sparse-autotune -p burn-sparse --lib --tests
}

part_rust() {
    have_cargo || return
    build "$BUILD" "${CC:-cc}" sparse_autotune_static || { fail "build" && return; }
    tests "tests" cargo test --locked --no-fail-fast --workspace
    step "example simple" cargo run --locked --example simple
    step "example train" cargo run --locked --example train
    step "readme" readme
    step "package" packaged
}

part_rust_all() {
    have_cargo || return
    step "layout" cargo fmt --check
    tests "bundled" bundled
    step "clippy and the types of the CUDA feature" look clippy --all-targets -- -D warnings
    step "clippy of the WGPU feature" other_gpus
    step "documentation" look doc --no-deps
    if grep -qs 'CMAKE_C_COMPILER:.*clang' "$BUILD-asan/CMakeCache.txt" && [ -f "$BUILD-asan/libsparse_autotune.a" ]; then
        library=$(realpath "$BUILD-asan") tests "AddressSanitizer" sanitized
    else
        skip "AddressSanitizer, which needs what the asan part builds with clang (make asan, before this)"
    fi
    drop "$rust_folder"
}
