#!/usr/bin/env bash
# Plants one of each fault that scripts/check_layout.sh is there to see, all in one copy of the tree, and expects each to be
# named; the copy without them must pass.
# usage: test_layout.sh <root of the tree>
set -eu
root=$1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/src" "$root/include" "$copy"
bash "$root/scripts/check_layout.sh" "$copy"
cpu=$copy/src/kernels/cpu cuda=$copy/src/kernels/cuda libs=$copy/src/libs

family() { printf '#include "variant.h"\nSAT_FAMILY(%s) = {.revision = "1"};\n' "$1"; }
line() { echo "SAT_VARIANT($1, $2, 0, 0, 0, 0, 0, 0)"; }
faults=() messages=()
fault() { faults+=("$1") messages+=("$2"); } # what is planted, words that the message must hold

mkdir -p "$cpu/matmul" "$cpu/attention" "$cuda/matmul"
family cpu_matmul_orphan >"$cpu/matmul/matmul_orphan.c"
fault 'a kernel file without a line' 'matmul_orphan.c defines SAT_FAMILY(cpu_matmul_orphan)'

echo '#include <core/plan.h>' >>"$cpu/matmul/matmul_orphan.c"
fault 'a header of ours in angle brackets' 'includes <core/plan.h>'

echo '#include "core/plan.h"' >>"$copy/src/variant.h"
fault 'what every kernel includes reaches upwards' 'src/variant.h includes "core/plan.h"'

printf 'int sat_nobody_calls_this;\n' >"$cpu/matmul/unused.c"
fault 'a file that defines no family' 'unused.c defines no SAT_FAMILY'

family cpu_matmul_stray >"$cpu/attention/matmul_stray.c"
line cpu_matmul_f32_any_c_stray cpu_matmul_stray >>"$cpu/variants.def"
fault "a family in another operation's folder" 'its folder is for cpu_attention_'

family cpu_matmul_flat >"$cpu/matmul_flat.c"
line cpu_matmul_f32_any_c_flat cpu_matmul_flat >>"$cpu/variants.def"
fault 'a kernel file in no folder of an operation' 'matmul_flat.c defines SAT_FAMILY(cpu_matmul_flat): it belongs into'

mkdir -p "$copy/src/helpers"
fault 'a folder that no rule knows' 'src/helpers: no rule says'

line cpu_matmul_f32_any_c_ghost cpu_matmul_ghost >>"$cpu/variants.def"
fault 'a line without a file' 'names the family cpu_matmul_ghost'

line fastest_ever cpu_matmul_reference >>"$cpu/variants.def"
fault 'a name outside the grammar' 'fastest_ever is not'

for i in 1 2; do line cpu_matmul_f32_any_c_twin cpu_matmul_reference >>"$cpu/variants.def"; done
fault 'two variants of one name' 'two variants are called cpu_matmul_f32_any_c_twin'

family cpu_matmul_tiles_amx >"$cpu/matmul/matmul_tiles_amx.c"
line cpu_matmul_bf16_any_amx_tiles cpu_matmul_tiles_amx >>"$cpu/variants.def"
fault 'an instruction set without its guard' 'inside #ifndef SAT_NO_AMX'

family cuda_matmul_tiles >"$cuda/matmul/matmul_tiles_sm90.cu"
line cuda_matmul_f16_any_sm90_tiles cuda_matmul_tiles >>"$cuda/variants.def"
fault 'a Hopper file without its guard' 'inside #ifndef SAT_NO_SM90'

for ((i = 0; i < 1460; i++)); do echo "// one more line"; done >"$cuda/matmul/planted_long.cuh"
echo '#include "planted_long.cuh"' >>"$cuda/matmul/matmul_tiles_sm90.cu"
fault 'a Hopper kernel with much to read' 'matmul_tiles_sm90.cu needs 146'

family cuda_matmul_planted >"$libs/cuplanted.c"
line cuda_matmul_any_any_planted cuda_matmul_planted >>"$libs/variants.def"
fault 'a CUDA library without its guard' 'inside #ifdef SAT_HAVE_CUDA'

echo '#include "core/plan.h"' >>"$cpu/matmul/matmul_reference.c"
fault 'a kernel that includes core' 'matmul_reference.c includes "core/plan.h"'

for i in 1 2 3 4 5 6; do
    echo "#include \"planted_$((i + 1)).h\"" >"$cpu/matmul/planted_$i.h"
done
echo >"$cpu/matmul/planted_7.h"
echo '#include "planted_1.h"' >>"$cpu/matmul/matmul_orphan.c"
fault 'a kernel that needs many headers' 'matmul_orphan.c needs more than 5 headers'

echo '/* a desk */' >>"$cpu/matmul/planted_7.h"
fault 'a word that is gone' 'planted_7.h:2:desk: docs/internals/naming.md has another word'

mkdir -p "$copy/bench"
echo '# CTAs that stay' >"$copy/bench/planted.py"
fault 'a word that is gone, in a benchmark' 'bench/planted.py:1:CTAs that stay: docs/internals/naming.md has another word'

echo '#include "kernels/cpu/tile.h"' >>"$copy/src/core/plan.h"
fault 'core that includes a kernel header' 'plan.h includes "kernels/cpu/tile.h"'

echo 'int first(const sat_problem *p) { return p->op == SAT_SAMPLED; }' >>"$copy/src/core/key.c"
fault 'core that names an operation' 'p->op == SAT_SAMPLED; }: this folder names no operation'

echo 'int second(const sat_device *d) { return d->backend == SAT_CUDA; }' >>"$copy/src/core/pattern.c"
fault 'core that names a backend' 'd->backend == SAT_CUDA; }: this folder names no operation'

echo 'int third(const sat_problem *p) { return p->attention.causal; }' >>"$copy/src/core/plan.c"
fault 'core that looks into an operation' 'p->attention.causal; }: this folder names no operation'

echo 'int fourth(const sat_problem *p) { return (int)p->grouped.groups; }' >>"$copy/src/core/request.c"
fault "core that looks into another operation's part" 'p->grouped.groups; }: this folder names no operation'

echo '#include "core/context.h"' >>"$copy/src/cache/cache.h"
fault 'a cache that includes core' 'cache.h includes "core/context.h"'

echo '#include "variant.h"' >>"$copy/src/base/status.h"
fault 'a base that includes what is above it' 'status.h includes "variant.h"'

echo '#include "cache/cache.h"' >>"$copy/src/cli/peek.c"
fault 'a command line that looks inside' 'peek.c includes "cache/cache.h"'

echo '#include "../../core/key.h"' >>"$copy/src/cli/check/peek.c"
fault 'a check that looks inside' 'peek.c includes "../../core/key.h"'

if output=$(bash "$root/scripts/check_layout.sh" "$copy"); then
    echo "FAILED: nothing was seen"
    exit 1
fi
for i in "${!faults[@]}"; do
    if ! grep -qF "${messages[$i]}" <<<"$output"; then
        printf 'FAILED: %s: no message says "%s":\n%s\n' "${faults[$i]}" "${messages[$i]}" "$output"
        exit 1
    fi
    echo "ok: ${faults[$i]}"
done
