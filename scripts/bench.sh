#!/usr/bin/env bash
# Runs the benchmark: with SciPy in an environment of its own beside the build where it can be had, without it where not.
# `--section grid` needs torch too: where it is missing, it is installed as the tests of the Python package do it.
# usage: bench.sh <build folder> [words for bench.py]
set -eu
cd "$(dirname "$0")/.."
build=$1
shift
python=python3
case " $* " in
*" --section grid "* | *" --section=grid "*)
    if ! python3 -c 'import scikit_build_core, scipy, torch' 2>/dev/null; then
        BUILD=$build
        . scripts/common.sh
        . scripts/test/python.sh
        python=$build/python/base/bin/python
        if ! cmp -s bindings/python/requirements.txt "$build/python/base/ready"; then
            echo "installing torch and SciPy into $build/python/base (torch is large)"
            python_base
        fi
    fi
    ;;
*)
    if ! python3 -c 'import numpy, scipy' 2>/dev/null; then
        # What is installed already (PyTorch, say) stays visible.
        venv=$build/venv
        if [ ! -x "$venv/bin/python3" ]; then python3 -m venv --system-site-packages "$venv" >/dev/null || true; fi
        if [ -x "$venv/bin/python3" ]; then
            python=$venv/bin/python3
            "$python" -c 'import numpy, scipy' 2>/dev/null || "$python" -m pip install --quiet --disable-pip-version-check \
                numpy scipy || echo "bench: SciPy could not be installed; its rows are left out" >&2
        fi
    fi
    ;;
esac
exec "$python" bench/bench.py --program "$build/bench/bench_cpu" --json "$build/bench.json" "$@"
