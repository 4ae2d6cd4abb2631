#!/usr/bin/env bash
# The command line on a GPU beside variants that are faulty on purpose: each takes its own process down and nothing else.
# usage: test_cli_cuda.sh <the sparse_autotune binary> <folder of the plugins>        77: there is no device
set -u
cli=$1 plugin=$2/cuda_planted.so
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SPARSE_AUTOTUNE_CACHE=$folder/cache SPARSE_AUTOTUNE_DEVICE=cuda
unset SPARSE_AUTOTUNE SPARSE_AUTOTUNE_LOG SPARSE_AUTOTUNE_FORCE
reference=cuda_matmul_any_any_simt_reference
small=(--size 256x64x256 --block 16 --dtype f32)
passed=0 failed=0

if ! reason=$("$cli" info 2>&1 >/dev/null); then
    echo "skipped: $reason"
    exit 77
fi

run() {
    "$cli" "$@" >"$folder/out" 2>"$folder/err"
    status=$?
}

expect() { # what, status, then lines that stdout and stderr together must hold, as patterns
    local what=$1 holds=yes word
    [ "$status" -eq "$2" ] || holds=no
    shift 2
    for word in "$@"; do
        grep -qE -- "$word" "$folder/out" "$folder/err" || holds="no: $word"
    done
    if [ "$holds" = yes ]; then passed=$((passed + 1)) && return; fi
    failed=$((failed + 1))
    echo "FAILED: $what (status $status; $holds)"
    sed 's/^/    /' "$folder/out" "$folder/err" | head -n 40
}

run info --device cpu
expect 'whoever asks for the CPU hears that CUDA would work' 0 "not used: it would work, and --device is 'cpu'"

run race "${small[@]}" --fresh --timeout 20 --plugin "$plugin"
expect 'a race survives what is planted, and says what each did' 0 'best: ' \
    '^ *plugin_cuda_good .* ok ' \
    '^ *plugin_cuda_wrong_element .* WRONG ' \
    '^ *plugin_cuda_writes_past .* WRONG .*outside of its output' \
    '^ *plugin_cuda_illegal_address .* ERROR .*broke the device' \
    '^ *plugin_cuda_never_ends .* ERROR .*no answer in 20 s'

run race "${small[@]}" --fresh --isolate --timeout 20 --plugin "$plugin" --only "$reference,plugin_cuda_illegal_address"
expect 'race --isolate survives too' 0 "best: $reference" '^ *plugin_cuda_illegal_address .* ERROR .*broke the device'

run check --seed 3 --cases 4 --timeout 20 --plugin "$plugin" --only \
    plugin_cuda_illegal_address,plugin_cuda_never_ends,plugin_cuda_wrong_element,plugin_cuda_writes_past,plugin_cuda_good
expect 'check goes on after each of them' 1 'NOT all right' \
    '^ *plugin_cuda_good +4 +0 +ok' \
    '^ *plugin_cuda_wrong_element +4 +[1-4] +FAILED' \
    '^ *plugin_cuda_writes_past +4 +[1-4] +FAILED' \
    '^ *plugin_cuda_illegal_address +1 +1 +took its process or its device down' \
    '^ *plugin_cuda_never_ends +1 +1 +took its process or its device down' \
    'FAILED plugin_cuda_illegal_address, case 0: .*illegal memory access' \
    'FAILED plugin_cuda_never_ends, case 0: hung: no answer in 20 s'

run check --seed 3 --cases 4 --no-isolate --plugin "$plugin" --only plugin_cuda_illegal_address,plugin_cuda_good
expect 'in one process the first that breaks the device ends it' 1 'plugin_cuda_illegal_address broke the device'

run race "${small[@]}" --fresh --only "$reference"
expect 'and the device works as before' 0 "best: $reference"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
