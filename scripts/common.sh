# What the scripts share. Sourced, from the root of the tree.
# shellcheck shell=bash
BUILD=${BUILD:-build} WERROR=${WERROR:-OFF} JOBS=${JOBS:-$(nproc 2>/dev/null || echo 2)}

have_driver() { # NVIDIA's, and so perhaps a GPU
    [ -e /dev/nvidia0 ] || [ -e /usr/lib/wsl/lib/libcuda.so.1 ] ||
        PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'
}

# The version of ruff that decides how Python is laid out: this machine's, or the one that setup.sh fetches.
ruff_version=0.17.5
ruff_command() {
    local found
    for found in "$BUILD/ruff/bin/ruff" ruff; do
        if [ "$("$found" --version 2>/dev/null)" = "ruff $ruff_version" ]; then echo "$found" && return; fi
    done
    return 1
}

has_cuda() { grep -qs '^SAT_HAVE_CUDA:.*=ON' "$1/CMakeCache.txt"; } # a build folder

# Where CUDA code is compiled: in the build folder where that has a CUDA compiler, otherwise in one of its own, so that
# a first build without a GPU stays quick.
cuda_folder() { if has_cuda "$BUILD" || [ -f "$BUILD/cuda/ready" ]; then echo "$BUILD"; else echo "$BUILD-cuda"; fi; }

# What packs and looks at packages (scripts/packages/requirements.txt), in an environment of its own.
have_package_tools() { cmp -s scripts/packages/requirements.txt "$BUILD/package-tools/ready"; }

# Downloads are timed apart from the rest: a line each in a file that test.sh prints and empties.
note_download() { # what, seconds, more words
    mkdir -p "$BUILD" && printf '%s\t%s\t%s\n' "$1" "$2" "${3:-}" >>"$BUILD/downloads"
}
show_downloads() { # such files, which end here
    cat "$@" 2>/dev/null |
        awk -F'\t' '{ printf "%s%s %s s%s", (NR > 1 ? ", " : "downloads in that: "), $1, $2, $3 } END { if (NR) print "" }'
    rm -f "$@"
}
