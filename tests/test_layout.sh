#!/usr/bin/env bash
# Plants one of each fault that scripts/check_layout.sh is there to see, and expects it to be named.
# usage: test_layout.sh <root of the tree>
set -eu
root=$1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -r "$root/src" "$root/include" "$copy"

expect() { # what, words the message must hold
    local output
    if output=$(bash "$root/scripts/check_layout.sh" "$copy"); then
        echo "FAILED: $1 was not seen"
        exit 1
    fi
    if ! grep -q "$2" <<<"$output"; then
        printf 'FAILED: %s: no message says "%s":\n%s\n' "$1" "$2" "$output"
        exit 1
    fi
    echo "ok: $1"
}

bash "$root/scripts/check_layout.sh" "$copy"
kernels=$copy/src/kernels/cpu

printf '#include "variant.h"\nSAT_FAMILY(cpu_matmul_orphan) = {.revision = "1"};\n' >"$kernels/matmul_orphan.c"
expect 'a kernel file without a line' 'matmul_orphan.c defines SAT_FAMILY(cpu_matmul_orphan)'
rm "$kernels/matmul_orphan.c"

printf 'int sat_nobody_calls_this;\n' >"$kernels/unused.c"
expect 'a file that defines no family' 'unused.c defines no SAT_FAMILY'
rm "$kernels/unused.c"

cp "$kernels/variants.def" "$copy/saved"
echo 'SAT_VARIANT(cpu_matmul_f32_any_c_ghost, cpu_matmul_ghost, 0, 0, 0, 0, 0, 0)' >>"$kernels/variants.def"
expect 'a line without a file' 'names the family cpu_matmul_ghost'
cp "$copy/saved" "$kernels/variants.def"

echo 'SAT_VARIANT(fastest_ever, cpu_matmul_reference, 0, 0, 0, 0, 0, 0)' >>"$kernels/variants.def"
expect 'a name outside the grammar' 'fastest_ever is not'
cp "$copy/saved" "$kernels/variants.def"

printf '#include "variant.h"\nSAT_FAMILY(cpu_matmul_tiles_amx) = {.revision = "1"};\n' >"$kernels/matmul_tiles_amx.c"
echo 'SAT_VARIANT(cpu_matmul_bf16_any_amx_tiles, cpu_matmul_tiles_amx, 0, 0, 0, 0, 0, 0)' >>"$kernels/variants.def"
expect 'an instruction set without its guard' 'inside #ifndef SAT_NO_AMX'
rm "$kernels/matmul_tiles_amx.c"
cp "$copy/saved" "$kernels/variants.def"

hopper=$copy/src/kernels/cuda
cp "$hopper/variants.def" "$copy/saved"
printf '#include "variant.cuh"\nSAT_FAMILY(cuda_matmul_tiles) = {.revision = "1"};\n' >"$hopper/matmul_tiles_sm90.cu"
echo 'SAT_VARIANT(cuda_matmul_f16_any_sm90_tiles, cuda_matmul_tiles, 0, 0, 0, 0, 0, 0)' >>"$hopper/variants.def"
expect 'a Hopper file without its guard' 'inside #ifndef SAT_NO_SM90'
rm "$hopper/matmul_tiles_sm90.cu"
cp "$copy/saved" "$hopper/variants.def"

libs=$copy/src/libs
cp "$libs/variants.def" "$copy/saved"
printf '#include "variant.h"\nSAT_FAMILY(cuda_matmul_planted) = {.revision = "1"};\n' >"$libs/cuplanted.c"
echo 'SAT_VARIANT(cuda_matmul_any_any_planted, cuda_matmul_planted, 0, 0, 0, 0, 0, 0)' >>"$libs/variants.def"
expect 'a CUDA library without its guard' 'inside #ifdef SAT_HAVE_CUDA'
rm "$libs/cuplanted.c"
cp "$copy/saved" "$libs/variants.def"

echo '#include "core/status.h"' >>"$kernels/matmul_reference.c"
expect 'a kernel that includes core' 'matmul_reference.c includes "core/status.h"'
sed -i '$d' "$kernels/matmul_reference.c"

echo '#include "kernels/cpu/tile.h"' >>"$copy/src/core/status.h"
expect 'core that includes a kernel header' 'status.h includes "kernels/cpu/tile.h"'
sed -i '$d' "$copy/src/core/status.h"

mkdir -p "$copy/src/cli"
echo '#include "core/cache.h"' >>"$copy/src/cli/peek.c"
expect 'a command line that looks inside' 'peek.c includes "core/cache.h"'
rm "$copy/src/cli/peek.c"

bash "$root/scripts/check_layout.sh" "$copy" >/dev/null
