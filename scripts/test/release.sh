# The packages that others get: made, looked at, installed where nothing of ours is, and used there. `make release-check`.
# shellcheck shell=bash disable=SC2154 # test.sh has the rest

packages=$BUILD/packages

check() { # name, command ...: one thing that passes or fails as a whole
    local name=$1 start=$SECONDS log
    shift
    log=$packages/${name// /_}.log
    mkdir -p "$packages"
    if "$@" >"$log" 2>&1; then
        pass
        echo "ok: $name ($((SECONDS - start)) s)$(sed -n '$s/^Python /: Python /p' "$log")"
    else
        tail -n 40 "$log"
        fail "$name"
        return 1
    fi
}

# Every Python of 3.10 or newer that this machine has, one a version.
pythons() {
    local minor found
    for minor in $(seq 10 29); do
        for found in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3."$minor".*/bin/python3 python3; do
            if [ "$("$found" -c 'import sys, venv, ensurepip; print(sys.version_info[1])' 2>/dev/null)" = "$minor" ]; then
                echo "$minor $found" && break
            fi
        done
    done
}

environment() { # folder, interpreter, more words for pip: a fresh one with the wheel
    local venv=$1 interpreter=$2
    shift 2
    rm -rf "$venv"
    "$interpreter" -m venv "$venv" &&
        TMPDIR=$(realpath "$packages") "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 "$@"
}

# In a shell of its own: nothing of the user's may change what is seen.
smoke() ( # folder, more words for smoke.py
    for name in "${!SPARSE_AUTOTUNE@}" "${!OMP_@}" PYTHONPATH; do unset "$name"; done
    "$1/bin/python" scripts/packages/smoke.py "${@:2}"
)

in_environment() { # interpreter, words for smoke.py, words for pip
    local venv=$packages/venv
    # shellcheck disable=SC2086 # words
    environment "$venv" "$1" $3 "$packages"/*.whl && smoke "$venv" $2
}

# On top of what the tests of the package need, where torch is.
on_torch() {
    local venv=$packages/venv
    environment "$venv" "$BUILD/python/base/bin/python" --no-deps --no-index "$packages"/*.whl || return 1
    realpath "$BUILD"/python/base/lib/python*/site-packages >"$(echo "$venv"/lib/python*/site-packages)/beneath.pth"
    smoke "$venv" --torch
}

part_wheel() {
    local minor interpreter oldest=
    have_package_tools || { skip "auditwheel, patchelf and twine are not here" && return; }
    check "wheel" scripts/wheel.sh || return
    tail -n 1 "$packages/wheel.log"
    if [ "${SAT_CUDA:-}" = OFF ]; then skip "CUDA code in the wheel: SAT_CUDA is OFF"
    elif grep -q 'without CUDA' "$packages/wheel.log"; then skip "CUDA code in the wheel: no CUDA compiler works here"; fi
    check "twine check of the wheel" "$BUILD/package-tools/bin/twine" check --strict "$packages"/*.whl
    while read -r minor interpreter; do
        check "Python 3.$minor without torch and SciPy" in_environment "$interpreter" --no-scipy ""
        [ "$minor" -ne 10 ] || oldest=$interpreter
        last=$interpreter
    done < <(pythons)
    check "the newest Python with SciPy" in_environment "$last" "" scipy
    if [ -n "$base_job" ] && ! wait "$base_job"; then fail "torch could not be installed (see $BUILD/python/base.log)"
    elif [ -x "$BUILD/python/base/bin/python" ]; then check "torch of the tests" on_torch
    else fail "torch is not installed"; fi
    base_job=
    if [ -z "$oldest" ]; then skip "the oldest torch: there is no Python 3.10 here"
    else check "Python 3.10 with torch 2.6" in_environment "$oldest" --torch "torch==2.6.*"; fi
    rm -rf "$packages/venv"
}

# Compiled from what the sdist holds alone, without CUDA code, which part wheel has.
sdist_builds() {
    rm -rf "$packages/from-sdist" && mkdir -p "$packages/from-sdist"
    CMAKE_BUILD_PARALLEL_LEVEL=$JOBS "$BUILD/package-tools/bin/python3" -m pip wheel --quiet --disable-pip-version-check --no-deps \
        --no-build-isolation -w "$packages/from-sdist" -C cmake.define.SAT_CUDA=OFF "$packages"/sparse_autotune-*.tar.gz || return 1
    environment "$packages/venv" python3 "$packages"/from-sdist/*.whl && smoke "$packages/venv"
}

make_sdist() {
    rm -f "$packages"/sparse_autotune-*.tar.gz
    "$BUILD/package-tools/bin/python3" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' \
        "$(realpath -m "$packages")" || return 1
    ! tar -tzf "$packages"/sparse_autotune-*.tar.gz | grep -E '^[^/]*/(build|docs|tests|bench|scripts|\.[a-z])' ||
        { echo "these do not belong into an sdist" && return 1; }
}

part_sdist() {
    have_package_tools || { skip "twine is not here" && return; }
    check "sdist" make_sdist || return
    check "twine check of the sdist" "$BUILD/package-tools/bin/twine" check --strict "$packages"/sparse_autotune-*.tar.gz
    PATH=$(realpath "$BUILD/package-tools/bin"):$PATH check "the sdist builds" sdist_builds
    rm -rf "$packages/venv" "$packages/from-sdist"
}

# Cargo's own check of what it packs: each crate compiled from its package. C is compiled below. Cargo keeps what it has
# unpacked and compiled of such a package, and takes it for the next of the same version: that goes first.
pack_crates() (
    CARGO_TARGET_DIR=$(realpath -m "$packages/cargo")
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/{src,cache}/-*/{sparse-autotune,burn-sparse}-* \
        "$CARGO_TARGET_DIR"/debug/.fingerprint/{sparse-autotune,burn-sparse}-* "$CARGO_TARGET_DIR/package"
    export CARGO_TARGET_DIR CARGO_BUILD_JOBS=$JOBS CARGO_TERM_COLOR=never SPARSE_AUTOTUNE_CHECK_ONLY=1
    cd bindings/rust && cargo package --workspace --locked --allow-dirty
)

# The README's example in a crate of somebody else's, on the packages of the crates, which build the C library.
crate_example() (
    local user=$packages/crates version name
    version=$(sed -n 's/^version = "\(.*\)"/\1/p' bindings/rust/Cargo.toml | head -n 1)
    rm -rf "$user" && mkdir -p "$user/src" || exit 1
    {
        printf '[package]\nname = "user"\nversion = "0.1.0"\nedition = "2024"\n\n'
        printf '[dependencies]\nsparse-autotune = "=%s"\n\n[patch.crates-io]\n' "$version"
        for name in sparse-autotune-sys sparse-autotune; do
            tar -xzf "$packages/cargo/package/$name-$version.crate" -C "$user" || exit 1
            printf '%s = { path = "%s-%s" }\n' "$name" "$name" "$version"
        done
    } >"$user/Cargo.toml"
    awk '$0 == "```rust" { on = 1; next } /^```$/ { on = 0 } on' bindings/rust/sparse-autotune/README.md >"$user/src/main.rs"
    unset SPARSE_AUTOTUNE_DIR SPARSE_AUTOTUNE_CHECK_ONLY
    export SPARSE_AUTOTUNE_CACHE=$rust_folder/tuned CARGO_BUILD_JOBS=$JOBS CARGO_TERM_COLOR=never
    cd "$user" && CARGO_TARGET_DIR=target cargo run --quiet
)

part_crates() {
    have_cargo || return
    check "crates" pack_crates || return
    check "the example of a crate from its package" crate_example
    grep -q '^repository' bindings/rust/Cargo.toml || skip "the crates have no \`repository\`: the project has no address yet"
    rm -rf "$packages/crates"
    drop "$packages/cargo"
}

# What was unpacked works with pkg-config and find_package, from C and C++, and so does its command line.
unpacked() { # prefix
    local way
    for way in pkgconfig cmake cxx; do
        bash tests/consumer/test_consumer.sh $way "$(realpath "$BUILD")" tests/consumer "$1" || [ $? -eq 77 ] || return 1
    done
    LD_LIBRARY_PATH=$1/lib "$1/bin/sparse_autotune" --version
}

tarball_works() {
    mkdir -p "$packages/tarball" && tar -xzf "$packages"/sparse-autotune-*.tar.gz -C "$packages/tarball" &&
        unpacked "$(realpath "$packages"/tarball/*)"
}

# Unpacked, not installed: this machine stays as it is. dpkg says whether it could be.
deb_works() {
    dpkg-deb -x "$packages"/sparse-autotune_*.deb "$packages/deb" && unpacked "$(realpath "$packages/deb/usr")" || return 1
    [ "$(dpkg-deb -f "$packages"/sparse-autotune_*.deb Version)" = "$("$packages/deb/usr/bin/sparse_autotune" --version | cut -d' ' -f2)" ] ||
        { echo "the versions differ" && return 1; }
    dpkg-deb -f "$packages"/sparse-autotune_*.deb Depends | grep libc6 | grep libgomp1 || { echo "it does not say what it needs" && return 1; }
    [ "$(id -u)" -ne 0 ] || dpkg --dry-run -i "$packages"/sparse-autotune_*.deb
}

part_archives() {
    rm -rf "$packages"/{tarball,deb} "$packages"/sparse-autotune[-_]*
    local target
    for target in sparse_autotune_{shared,static,cli}; do
        build "$BUILD" "${CC:-cc}" $target || { fail "build" && return; }
    done
    check "cpack" cpack --config "$BUILD/CPackConfig.cmake" -B "$(realpath -m "$packages")" || return
    check "tarball" tarball_works
    if command -v dpkg-deb >/dev/null; then check "deb" deb_works; else skip "deb: there is no dpkg here"; fi
    rm -rf "$packages"/{tarball,deb,_CPack_Packages}
}
