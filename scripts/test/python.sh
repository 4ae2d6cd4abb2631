# The Python package: its wheel in a fresh environment, on top of what its tests need. `python_all` has the tests of whole
# models, which want Hugging Face's transformers, those of many ranks, and the documents once more.
# shellcheck shell=bash disable=SC2034,SC2154 # test.sh has the rest

have_python() { python3 -c 'import sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; }

# What the tests need is installed once (torch is large); the wheel goes into a fresh environment on top of it.
python_base() {
    local base=$BUILD/python/base wanted=bindings/python/requirements.txt index=() start=$SECONDS
    rm -rf "$base"
    python3 -m venv "$base" || return 1
    # CPU-only torch is a tenth of what PyPI has, where its index can be reached.
    if python3 -c 'import urllib.request as u; u.urlopen("https://download.pytorch.org/whl/cpu/", timeout=10)' 2>/dev/null; then
        index=(--extra-index-url https://download.pytorch.org/whl/cpu)
    fi
    # Wheels of two gigabytes: not into a /tmp that is memory, and not left there by a run that is killed.
    mkdir "$base/tmp" &&
        TMPDIR=$(realpath "$base/tmp") "$base/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 \
            "${index[@]}" -r "$wanted" &&
        rm -rf "$base/tmp" && cp "$wanted" "$base/ready" &&
        note_download "Python packages" $((SECONDS - start)) " beside other parts"
}

# In the background, while C is compiled; part_python waits for it.
base_job=
start_python_base() {
    have_python || return
    cmp -s bindings/python/requirements.txt "$BUILD/python/base/ready" && return
    echo "installing what the tests of the Python package need into $BUILD/python/base (torch is large)"
    mkdir -p "$BUILD/python"
    python_base >"$BUILD/python/base.log" 2>&1 &
    base_job=$!
}

python_wheel() { # from the library that is built already: compiling it twice would show nothing new
    rm -f "$BUILD"/python/*.whl
    "$BUILD/python/base/bin/python" -m pip wheel . --quiet --disable-pip-version-check --no-deps --no-build-isolation \
        -w "$BUILD/python" -C build-dir="$BUILD/python/wheel" -C cmake.define.SAT_CUDA=OFF \
        -C cmake.define.SAT_WERROR="$WERROR" -C cmake.define.SAT_PYTHON_LIBRARY="$(realpath "$BUILD/libsparse_autotune.so")"
}

python_fresh() {
    local venv=$BUILD/python/venv
    rm -rf "$venv"
    python3 -m venv "$venv" || return 1
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-index "$BUILD"/python/*.whl || return 1
    realpath "$BUILD"/python/base/lib/python*/site-packages >"$(echo "$venv"/lib/python*/site-packages)/beneath.pth"
}

# The package, ready to be tested. Where nothing can be tested, that is noted, and it fails.
python_ready() {
    have_python || { skip "needs Python 3.10 or newer with venv (python3-venv)" && return 1; }
    build "$BUILD" "${CC:-cc}" sparse_autotune_shared || { fail "build" && return 1; }
    if [ -n "$base_job" ] && ! wait "$base_job"; then
        tail -n 20 "$BUILD/python/base.log"
        fail "what the tests need could not be installed"
        return 1
    fi
    base_job=
    [ -x "$BUILD/python/base/bin/python" ] || { fail "what the tests need is not installed" && return 1; }
    python_wheel || { fail "wheel" && return 1; }
    python_fresh || { fail "the wheel could not be installed" && return 1; }
    # Without the fast path its tests skip themselves; where it can be built it must be there.
    if [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h" ]; then
        "$BUILD/python/venv/bin/python" -c 'import sparse_autotune._fast' || { fail "the fast path (_fast.c)" && return 1; }
    fi
}

run_pytest() { # what of it, more words for pytest
    local report=$BUILD/python/junit.xml log=$BUILD/python/pytest.log tests bad name status
    rm -f "$report"
    TORCHINDUCTOR_CACHE_DIR=$(realpath -m "$BUILD/python/inductor") \
        "$BUILD/python/venv/bin/python" -m pytest --timeout 300 -p no:cacheprovider -W ignore -n 2 --dist worksteal \
        --junitxml "$report" "$@" 2>&1 | tee "$log"
    status=${PIPESTATUS[0]}
    attribute() { grep -o "<testsuite [^>]*" "$report" 2>/dev/null | sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p"; }
    tests=$(attribute tests)
    [ "${tests:-0}" -gt 0 ] || { fail "no tests ran" && return; }
    bad=$(($(attribute failures) + $(attribute errors)))
    pass $((tests - bad - $(attribute skipped)))
    count_skips "$(attribute skipped)" "tests that need a GPU or JAX (bench/python_check)"
    while read -r name; do fail "$name"; done < <(sed -n 's/^\(FAILED\|ERROR\) \(bindings.*\)/\2/p' "$log" | sed 's/ - .*//' | sort -u)
    [ "$bad" -eq 0 ] || [ "$failed" -gt 0 ] || fail "$bad tests"
    [ "$status" -eq 0 ] || [ "$failed" -gt 0 ] || fail "pytest returned $status"
}

part_python() {
    python_ready || return
    run_pytest bindings/python/tests --ignore-glob='*/test_models_*' --ignore-glob='*/test_long_*'
    drop "$BUILD"/python/{venv,wheel,inductor} # python_all wants the rest
}

part_python_all() {
    local start
    if have_python && ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        if [ "${CI:-}" = true ]; then fail "transformers needs Python 3.11"; else skip "transformers needs Python 3.11"; fi
        return
    fi
    python_ready || return
    start=$SECONDS
    "$BUILD/python/venv/bin/python" -m pip install --quiet --disable-pip-version-check --retries 2 \
        -r bindings/python/requirements-models.txt || { fail "what the tests of models need could not be installed" && return; }
    note_download transformers $((SECONDS - start))
    "$BUILD/python/venv/bin/python" -c 'import torch, transformers' || { fail "transformers cannot be imported" && return; }
    run_pytest bindings/python/tests/test_models_* bindings/python/tests/test_long_* bindings/python/tests/test_documents.py
    drop "$BUILD/python"
}
