#!/usr/bin/env bash
# The command line, driven as a person or a script would: every subcommand, wrong usage, JSON, the cache, and the
# planted faulty plugins. Small problems, a cache of its own, well under a minute.
# usage: test_cli.sh <the sparse_autotune binary> <folder of the plugins>
set -u
cli=$1
plugins=${2:-}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SPARSE_AUTOTUNE_CACHE=$folder/cache SPARSE_AUTOTUNE_DEVICE=cpu
unset SPARSE_AUTOTUNE SPARSE_AUTOTUNE_LOG SPARSE_AUTOTUNE_FORCE
passed=0
failed=0
small="--size 64x48x96 --block 16"

# ---- helpers: each run leaves its status, stdout and stderr ----

run() {
    "$cli" "$@" >"$folder/out" 2>"$folder/err"
    status=$?
}

verdict() { # what, whether it holds
    if [ "$2" = yes ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1 (status ${status:-?})"
        sed 's/^/    out: /' "$folder/out" | head -n 20
        sed 's/^/    err: /' "$folder/err" | head -n 20
    fi
}

expect() { # what, status, then words that stdout must hold
    local what=$1 want=$2 holds=yes
    shift 2
    [ "$status" -eq "$want" ] || holds=no
    for word in "$@"; do
        grep -qF -- "$word" "$folder/out" || holds="no: $word"
    done
    verdict "$what" "$holds"
}

expect_error() { # what, status, then words that stderr must hold
    local what=$1 want=$2 holds=yes
    shift 2
    [ "$status" -eq "$want" ] || holds=no
    for word in "$@"; do
        grep -qF -- "$word" "$folder/err" || holds="no: $word"
    done
    verdict "$what" "$holds"
}

expect_not() { # what, words that stdout must not hold
    local holds=yes
    grep -qF -- "$2" "$folder/out" && holds=no
    verdict "$1" "$holds"
}

expect_quiet() { # nothing on stderr
    local holds=yes
    [ -s "$folder/err" ] && holds=no
    verdict "$1" "$holds"
}

have_python=no
python3 -c '' 2>/dev/null && have_python=yes
expect_json() { # what, a Python expression over the object `o`
    [ $have_python = yes ] || return 0
    local holds=no
    python3 -c 'import json, sys
o = json.load(open(sys.argv[1]))
assert ('"$2"')' "$folder/out" 2>"$folder/why" && holds=yes
    [ $holds = yes ] || cat "$folder/why"
    verdict "$1" "$holds"
}

# ---- help, version, wrong usage ----

run --help
expect 'help names every command' 0 race check tune cache variants info doctor 'Exit status'
run --version
expect 'the version is printed' 0 'sparse_autotune 0.'
for command in race check tune cache variants info doctor; do
    run $command --help
    expect "$command has help" 0 "Usage: sparse_autotune $command" --help
    run $command --no-such-option
    expect_error "$command refuses an unknown option" 2 "unknown option '--no-such-option'"
done

wrong() { # words the message must hold, then the command line
    local words=$1
    shift
    run "$@"
    expect_error "wrong usage: $*" 2 "$words"
}
wrong "unknown command 'rice'" rice
wrong 'options follow a command' --block 64
wrong "unexpected argument '64'" race 64
wrong "--sparsity '1.5': expected a number from 0 to 1" race --sparsity 1.5
wrong "--sparsity 'nan'" race --sparsity nan
wrong "--sparsity ''" race --sparsity ''
wrong "--sparsity '101%'" race --sparsity=101%
wrong "-m '99999999999999999999': expected a whole number from 1 to 2147483647" race -m 99999999999999999999
wrong "-n '0'" race -n 0
wrong "-k '-4'" race -k -4
wrong "-m '4k'" race -m4k
wrong '-m needs a value' race -m
wrong '--size' race --size 4x4
wrong "--block '0'" race --block 0
wrong "--block '16,,32'" race --block 16,,32
wrong "--block '16x'" race --block 16x
wrong "--block '9999999999'" race --block 9999999999
wrong 'expected one of random, banded, diagonal, powerlaw' race --pattern checkered
wrong "--dtype 'f8'" race --dtype f8
wrong "--dtype 'f32:f16'" race --dtype f32:f16
wrong "--layout 'diagonal'" race --layout diagonal
wrong "--alpha 'inf'" race --alpha inf
wrong "--beta '1e999'" race --beta 1e999
wrong "--effort 'off'" race --effort off
wrong "takes no --sparsity" race --matrix x.mtx --sparsity 0.5
wrong "is -m meant" race --m=64
wrong "--skew '0.5'" race --skew 0.5
wrong "--overlap '2'" race --overlap 2
wrong "--align '24'" race --align 24
wrong "--effort 'heroic'" race --effort heroic
wrong "--threads '0'" race --threads 0
wrong "--only 'nobody': no variant of that name" race $small --only nobody
wrong "--only ''" race --only ''
wrong '--fresh takes no value' race --fresh=yes
wrong 'is --sparsity meant?' race --sparsty 0.5
wrong 'takes no --transpose' race --op sampled --transpose
wrong 'takes no --bias' race --op attention --bias
for option in '--layout row' --fixed-values '--alpha 2'; do
    wrong "op attention: takes no ${option%% *}" race --op attention $option
done
wrong 'op sampled: takes no --fixed-values' race --op sampled --fixed-values
for option in --seq --kv-seq --dim; do wrong "op matmul: takes no $option" race $option 16; done
wrong '--dim 16: -k or --size gives 24' race --op attention --dim 16 -k 24
wrong '--seq 16: -m or --size gives 64' race --op attention --size 64x64x16 --seq 16
wrong "--scale '0': expected a finite number other than 0" race --op attention --scale 0
wrong "--scale 'inf': expected a finite number" race --op attention --scale inf
wrong 'op matmul: takes no --heads' race --heads 4
wrong 'op sampled: takes no --causal' race --op sampled --causal
wrong "--dim '1000'" race --op attention --dim 1000
wrong "--heads '0'" race --op attention --heads 0
wrong "--window '0'" race --op attention --window 0
for option in --transpose --fixed-values '--batch 2' '--block 32' '--sparsity 0.5' '--pattern banded' '--seed 2' \
    '--matrix x.mtx' '--heads 4' --causal; do
    wrong "op grouped: takes no ${option%% *}" race --op grouped $option
done
for option in --bias '--activation relu'; do
    wrong "op grouped-weights: takes no ${option%% *}" race --op grouped-weights $option
done
wrong 'op matmul: takes no --experts' race --experts 4
wrong 'op attention: takes no --top-k' race --op attention --top-k 2
wrong 'op sampled: takes no --offsets' race --op sampled --offsets i32
wrong "--experts '0': expected a whole number from 1 to 1048576" race --op grouped --experts 0
wrong "--offsets 'i16': expected one of i32, i64" race --op grouped --offsets i16
wrong '-m 2000000000 with --top-k 2: expected at most 2147483647 rows together' race --op grouped -m 2000000000 --top-k 2
wrong "--cases '0'" check --cases 0
wrong "--seconds '-1'" check --seconds -1
wrong "--only 'nobody'" check --only nobody
wrong "--depth '3'" check --power --depth 3
wrong "--dtype 'f16:f32'" check --power --dtype f16:f32
wrong "unknown action 'lost'" cache lost
wrong 'expected one key' cache show
wrong '-o with a file' cache merge x
wrong 'expected one file' cache import

run race --matrix "$folder/nothing.mtx"
expect_error 'a missing matrix is a failure' 1 nothing.mtx 'No such file'
run race --device abacus
expect_error 'an unknown device is a failure' 1 abacus
run race -m 2147483647 -k 2147483647 --block 1
expect_error 'a pattern beyond the memory is refused at once' 1 'more than this machine has'

# ---- race ----

run race $small
expect 'a race names the best and remembers it' 0 'matmul f32 64x48x96, block 16x16, 3 of 24 blocks (87.5 % sparse), on ' \
    'rate on stored blocks' 'spread' 'best: ' ', remembered' 'ok   '
expect_quiet 'no progress in a pipe'
expect_not 'the first run tunes' 'from the cache'
run race $small
expect 'the second run comes from the cache' 0 'best: ' 'from the cache, no tuning'
run race $small --fresh --no-keep
expect '--fresh races again, --no-keep forgets' 0 'not remembered'
run race -m 1024 -n 16 -k 1024 --block 16 --overlap 1 --json
expect_json 'the floor, the rows and the overlap show' 'o["problem"]["floor_seconds"] > 0 and
    o["problem"]["blocks_a_row"] == {"least": 8, "median": 8, "most": 8} and o["problem"]["measure"] == "cold" and
    "overlap=1 " in o["problem"]["key"]'
run race $small --json
expect_json 'JSON has the fields that stay' 'o["version"] == 1 and o["cached"] and o["problem"]["op"] == "matmul" and
    [o["problem"][x] for x in "mnk"] == [64, 48, 96] and o["problem"]["block"] == [16, 16] and
    o["problem"]["dtype"] == "f32" and o["problem"]["stored_blocks"] == 3 and o["problem"]["density"] == 0.125 and
    o["problem"]["flops"] == 2 * 3 * 256 * 48 and o["device"]["backend"] == "cpu" and o["device"]["name"] and
    o["tuning_seconds"] == 0 and o["best"] == o["results"][0]["variant"] and
    all(r["verdict"] in ("ok", "wrong", "error", "skipped") for r in o["results"]) and
    o["busy"] in (True, False) and
    all(0 < r["least_seconds"] <= r["seconds"] for r in o["results"] if r["seconds"]) and
    all(abs(r["flops_per_second"] * r["seconds"] / o["problem"]["flops"] - 1) < 1e-6
        for r in o["results"] if r["seconds"])'
run race --size 64x32x64 --block 8,16x32,32 --json
expect_json 'several blocks name the best' 'len(o["races"]) == 3 and o["races"][1]["problem"]["block"] == [16, 32] and
    o["best_block"] in [r["problem"]["block"] for r in o["races"]] and
    o["seconds"] == min(r["results"][0]["seconds"] for r in o["races"])'
run race --size 64x32x64 --block 8,16x32,32
expect 'several blocks are shown one after the other' 0 'block 8x8' 'block 16x32' 'block 32x32' 'best block: '
for options in '--dtype f64' '--dtype bf16' '--dtype f16:f32' '--op sampled' '--op sampled --layout col,row --batch 2' \
    '--transpose --skew 2' '--layout col' '--batch 3' '--alpha -2 --beta 0.5' '--bias --activation gelu' \
    '--fixed-values' '--allow-dense' '--pattern banded' '--pattern diagonal' '--pattern powerlaw --block 4' \
    '--sparsity 50%' '--sparsity 1' '--sparsity 0' '--measure warm' '--threads 1' '--block 7x3 --size 50x9x31' '--seed 7'; do
    run race $small $options --json
    expect_json "race $options" 'o["best"]'
done
attention='--seq 100 --dim 32 --heads 4 --block 16'
for options in '--op attention' '--op attention --kv-heads 2 --kv-seq 130 --causal --window 40' \
    '--op attention --sparsity 0.7 --head-masks --lse' '--op attention --sequences 3 --causal --dtype bf16' \
    '--op attention --dtype f64 --scale -0.5' '--op attention --batch 2 --dtype f16' '--op attention-backward' \
    '--op attention-backward --kv-heads 1 --sparsity 0.5 --causal --dtype bf16' '--op attention-backward --dtype f64' \
    '--op attention --dynamic --sparsity 0.5 --causal' '--op attention --dynamic --sparsity 0.5 --batch 2 --batch-masks' \
    '--op attention-backward --dynamic --sparsity 0.6 --kv-heads 2 --head-masks --batch 2 --batch-masks'; do
    run race $attention $options --json
    expect_json "race $options" 'o["best"] and o["problem"]["heads"] == 4 and o["problem"]["dim"] == 32'
done
run race --op attention --batch 2 --heads 16 --kv-heads 4 --seq 256 --dim 64 --causal --window 64 --block 32 --sparsity 0.5
expect 'a race of attention says what it was' 0 'attention f32 256x256x64, block 32x32, 32 of 64 blocks (50 % sparse), batch 2, ' \
    '16 heads over 4, causal, window 64'
run race --op attention --dynamic --batch 2 --batch-masks --heads 2 --head-masks --seq 64 --dim 16 --block 16 --sparsity 0.5
expect 'a race of masks that change says what it was' 0 'attention f32 64x64x16, block 16x16, 32 of 64 blocks' \
    'a mask a head, a mask a batch item, indices that change'
wrong 'op attention: takes no --sequences' race --op attention --dynamic --sequences 2
wrong 'op attention: takes no --batch-masks' race --op attention --batch-masks
run race --op attention --heads 1 --block 16 --size 32x48x16 --dim 16
expect 'sizes may be given by either name' 0 'attention f32 32x48x16'
grouped='-m 50 -n 24 -k 40 --experts 6 --top-k 2'
for options in '--op grouped' '--op grouped --bias --activation gelu --beta 0.5 --dtype bf16' \
    '--op grouped --layout col,row --offsets i32 --dtype f64' '--op grouped-weights --alpha -2 --dtype f16:f32' \
    '--op grouped-weights --layout col --beta 1 --measure warm'; do
    run race $grouped $options --skew 4 --json
    expect_json "race $options" 'o["best"] and [o["problem"][x] for x in "mnk"] == [100, 24, 40] and
        o["problem"]["groups"] == 6 and o["problem"]["top_k"] == 2 and o["problem"]["skew"] == 4 and
        o["problem"]["flops"] == 2 * 100 * 24 * 40 and "block" not in o["problem"] and "skew=4 " in o["problem"]["key"]'
done
run race $grouped --op grouped --bias --offsets i32 --layout col,row
expect 'a race of groups says what it was' 0 \
    'grouped f32 100x24x40, 6 groups, skew 2, top-k 2 of 50 tokens, offsets i32, W by columns, bias, on ' 'best: '
expect_not 'and has no stored blocks' 'stored blocks'
run race $grouped --op grouped --isolate --no-keep --fresh --timeout 20
expect 'groups are tried in processes of their own' 0 'best: '
run race --op attention --heads 6 --kv-heads 4
expect_error 'heads that do not divide are named' 1 'kv_heads is 4; expected a number that divides heads, 6'
run race --op attention --dim 577
expect_error 'a head size that nothing takes is named' 2 "--dim '577'"
run race --op attention --heads 2 --seq 40 --dim 20 --value-dim 12 --softcap 5 --sinks --lse --no-keep --fresh --json
expect 'options of attention are raced' 0 '"value_dim": 12' '"softcap": 5' '"sinks": true' '"verdict": "ok"'
run race $small --only "$("$cli" variants --names | head -n 1)"
expect '--only races one variant and remembers nothing' 0 ', 1 variant' 'not remembered'

cat >"$folder/a.mtx" <<'END'
%%MatrixMarket matrix coordinate real symmetric
% a small mesh
40 40 5
1 1 1.0
17 2 0.5
40 40 2.0
39 1 -1.0
20 20 3
END
run race --matrix "$folder/a.mtx" --block 8 -n 16 --json
expect_json 'a Matrix Market file gives the pattern' \
    '[o["problem"][x] for x in "mnk"] == [40, 16, 40] and o["problem"]["stored_blocks"] == 7'
run race --matrix "$folder/a.mtx" --block 8 -m 41
expect_error 'a size that contradicts the matrix is wrong usage' 2 '-m 41: the matrix gives 40'
head -n 5 "$folder/a.mtx" >"$folder/short.mtx"
run race --matrix "$folder/short.mtx"
expect_error 'a truncated matrix is named with its line' 1 short.mtx 'line 5: the file ends after 2 of the 5 entries'
echo junk >"$folder/junk.mtx"
run race --matrix "$folder/junk.mtx"
expect_error 'a file of something else is refused' 1 'line 1: expected'

# ---- where the output goes ----

"$cli" info >&- 2>"$folder/err"
status=$?
expect_error 'a closed stdout is a failure' 1 'cannot write the output'
if [ -w /dev/full ]; then
    "$cli" info >/dev/full 2>"$folder/err"
    status=$?
    expect_error 'a full disk is a failure' 1 'cannot write the output'
fi
"$cli" race --help | head -n 1 >"$folder/out" 2>"$folder/err"
status=0
expect 'a reader that leaves early is no trouble' 0 Usage

# ---- variants, info ----

run variants
expect 'variants are listed with what they support' 0 'dtypes' 'block any' '(matmul, revision' '(sampled, revision' \
    '(grouped, revision' '(grouped-weights, revision'
run variants --json
expect_json 'variants as JSON' 'len(o["variants"]) >= 2 and any("reference" in v["flags"] and v["usable"] and
    len(v["dtypes"]) == 6 for v in o["variants"]) and all(v["usable"] or v["needs"] for v in o["variants"])'
run info
expect 'info shows the machine' 0 'device ' 'caches ' "cache       $folder/cache" 'SPARSE_AUTOTUNE_CACHE='
run info --json
expect_json 'info as JSON' 'o["device"]["threads"] >= 1 and o["cache"] and o["device"]["flop_rate"]["f32"] > 0 and
    o["device"]["tf32_rate"] > 0 and o["device"]["measured"] in (True, False)'
run info --device cpu
expect 'info says why CUDA is not used' 0 'cuda        not used: '
run info --json --device cpu
expect_json 'and as JSON' 'o["cuda"]["used"] is False and len(o["cuda"]["reason"]) > 20'
run info --device cpu --measure
expect_error 'the rates of a CPU stay nominal' 1 '--measure' 'stay nominal'

# ---- doctor ----

doctor() { # variables, then `--` and more words: the doctor under them
    local variables=()
    while [ "$1" != -- ]; do variables+=("$1") && shift; done
    shift
    env -u OMP_NUM_THREADS "${variables[@]}" "$cli" doctor "$@" >"$folder/out" 2>"$folder/err"
    status=$?
}
finding() { # what, an id, a level, words of the finding
    expect_json "$1" "any(f['id'] == '$2' and f['level'] == '$3' and '$4' in f['what'] and len(f['remedy']) > 8
        for f in o['findings'])"
}

doctor --
expect 'the doctor shows what is found' 0 'device ' 'isa ' 'threads ' 'openmp ' 'libraries ' 'driver ' 'nvcc ' \
    "cache       $folder/cache (" 'can be written' 'effort      quick' 'environment SPARSE_AUTOTUNE_DEVICE=cpu'
doctor -- --json
expect_json 'the doctor as JSON' 'o["version"] == 1 and o["device"]["threads"] >= 1 and len(o["openmp"]) >= 1 and
    o["processors"]["online"] >= o["processors"]["allowed"] >= 1 and o["cache"]["writable"] is True and
    o["cache"]["write_seconds"] > 0 and o["effort"] == "quick" and o["cuda"]["used"] is False and
    "broken" not in [f["level"] for f in o["findings"]]'
expect_quiet 'and nothing else'
holds=yes
compgen -G "$folder/cache/doctor-*" >/dev/null && holds=no
verdict 'the file that it tried the disk with is gone' $holds
doctor SPARSE_AUTOTUNE_DEVICE=abacus --
expect 'a device that cannot be had is broken, and the rest is shown' 1 'cache  ' "broken    device is 'abacus'" Remedy
doctor -- --json --device abacus
finding 'and as JSON' device broken abacus
doctor SPARSE_AUTOTUNE=heroic SPARSE_AUTOTUNE_FORCE=nobody SPARSE_AUTOTUNE_DEVCE=cpu SPARSE_AUTOTUNE_LOG=loud -- --json
finding 'an effort that is none is ignored' ignored slower heroic
finding 'a variant that is none is ignored' ignored slower nobody
finding 'a variable that is none is ignored' ignored note SPARSE_AUTOTUNE_DEVCE
finding 'a log level that is none is ignored' ignored note loud
doctor SPARSE_AUTOTUNE=off -- --json
finding 'an effort of off is said' effort slower off
doctor SPARSE_AUTOTUNE_FORCE="$("$cli" variants --names | head -n 1)" -- --json
finding 'a forced variant is said' forced note SPARSE_AUTOTUNE_FORCE
processors=$(getconf _NPROCESSORS_ONLN)
doctor OMP_NUM_THREADS=$((4 * processors)) -- --json
finding 'more threads than processors are said' threads slower "$((4 * processors)) threads share"
if [ "$(nproc)" -gt 1 ]; then
    doctor OMP_NUM_THREADS=1 -- --json
    finding 'one thread of many is said' threads slower '1 of '
    doctor OMP_NUM_THREADS=1 -- --json --threads 2
    expect_json 'but not where threads are asked for' '"threads" not in [f["id"] for f in o["findings"]]'
    one=$(taskset -cp $$ 2>/dev/null | sed 's/.*: \([0-9]*\).*/\1/')
    if [ -n "$one" ]; then
        taskset -c "$one" "$cli" doctor --json >"$folder/out"
        finding 'an affinity of one processor is said' affinity slower 'may run on 1 of '
    fi
fi
doctor SPARSE_AUTOTUNE_CACHE= -- --json
finding 'a cache in memory alone is said' cache_in_memory slower 'every process races again'
doctor SPARSE_AUTOTUNE_CACHE= SPARSE_AUTOTUNE=pinned --
expect 'and is broken where answers are pinned' 1 'broken    the effort is pinned, and no cache is read'
mkdir -m 777 "$folder/open"
doctor SPARSE_AUTOTUNE_CACHE="$folder/open" -- --json
finding 'a cache that others may write is said' cache_of_others slower 'mode 0777'
: >"$folder/file"
doctor SPARSE_AUTOTUNE_CACHE="$folder/file/cache" -- --json
finding 'a cache that cannot be written is said' cache_read_only slower 'Not a directory'
doctor SPARSE_AUTOTUNE_CACHE="$folder/file/cache" SPARSE_AUTOTUNE=cached -- --json
expect_json 'but not where nothing is raced' '"cache_read_only" not in [f["id"] for f in o["findings"]]'
doctor SPARSE_AUTOTUNE_CACHE="$folder/new/cache" --
expect 'a cache that is not made yet is not made by the doctor' 0 'not made yet'
holds=yes
[ -e "$folder/new" ] && holds=no
verdict 'and is not there afterwards' $holds
doctor SPARSE_AUTOTUNE_BLAS=/nothing -- --json
expect_json 'a library that a variable names and that is not there is missed, if none is left' \
    'bool(o["libraries"]) != ("library" in [f["id"] for f in o["findings"]])'
doctor SPARSE_AUTOTUNE_BLAS=off SPARSE_AUTOTUNE_MKL=off -- --json
expect_json 'one that is switched off is not missed' '"library" not in [f["id"] for f in o["findings"]]'
if [ -f "$plugins/good.so" ]; then # any shared object by that name
    cp "$plugins/good.so" "$folder/libiomp5.so"
    if LD_PRELOAD=$folder/libiomp5.so "$cli" --version >/dev/null 2>&1; then # a sanitizer wants to be first
        doctor LD_PRELOAD="$folder/libiomp5.so" -- --json
        finding 'two OpenMP run times are said' openmp slower libiomp5.so
    fi
fi
if [ -e "$plugins/../driver/libcuda.so.1" ]; then # a stand-in of CUDA 11.4, so that no build uses a GPU
    doctor -u SPARSE_AUTOTUNE_DEVICE LD_LIBRARY_PATH="$plugins/../driver" -- --json
    expect_json 'a driver that is of no use is said' 'o["cuda"]["used"] or o["driver"].endswith("CUDA 11.4") and
        {f["id"] for f in o["findings"]} & {"build_without_cuda", "old_driver"}'
fi

# ---- ranges for profilers ----

nvtx=$folder/libnvtx3interop.so.1 log=$folder/nvtx.log
ranges() { # what, words that a line must hold each
    local what=$1 holds=yes
    shift
    for word in "$@"; do grep -q -- "$word" "$log" || holds="no: $word"; done
    [ "$(grep -c '^push ' "$log")" = "$(grep -c '^pop$' "$log")" ] || holds="no: as many ends as beginnings"
    verdict "$what" "$holds"
}
if [ -e "$plugins/../nvtx/libnvtx3interop.so.1" ]; then
    cp -L "$plugins/../nvtx/libnvtx3interop.so.1" "$nvtx"
    SPARSE_AUTOTUNE_NVTX=$nvtx FAKE_NVTX=$log run race $small --fresh
    ranges 'a race and what runs in it show by name in a profiler' '^push op=matmul m=64 n=48 k=96' '^push cpu_matmul_'
    rm "$log"
    SPARSE_AUTOTUNE_NVTX=$nvtx FAKE_NVTX=$log SPARSE_AUTOTUNE=quick run check --tune --no-isolate --cases 1 \
        --only cpu_matmul_any_any_c_portable
    ranges 'and so does a plan' '^push op=matmul '
    rm "$log"
    if LD_PRELOAD=$nvtx "$cli" --version >/dev/null 2>&1; then # a sanitizer wants to be first
        LD_PRELOAD=$nvtx NVTX_INJECTION64_PATH=/profiler FAKE_NVTX=$log run race $small --fresh
        ranges 'where a profiler is attached, what the program has loaded serves' '^push cpu_matmul_'
        rm "$log"
        LD_PRELOAD=$nvtx FAKE_NVTX=$log run race $small --fresh
        holds=yes
        [ ! -e "$log" ] || holds=no
        verdict 'without a profiler there are none' $holds
    fi
    chmod 777 "$nvtx"
    SPARSE_AUTOTUNE_NVTX=$nvtx FAKE_NVTX=$log run race $small
    holds=yes
    [ ! -e "$log" ] || holds=no
    verdict 'a library that others may write is not loaded' $holds
    doctor SPARSE_AUTOTUNE_NVTX="$nvtx" -- --json
    finding 'and the doctor says so' warning slower 'is not loaded'
fi

# ---- cache ----

run cache list
expect 'the cache is listed' 0 'op=matmul' 'op=sampled' 'op=grouped ' 'op=grouped-weights ' "entries in $folder/cache"
run cache list --json
expect_json 'the list as JSON' 'len(o["entries"]) > 10 and all(e["key"] and e["results"] > 0 and
    e["spread"] >= 0 and e["busy"] in (True, False) for e in o["entries"])'
count=$(grep -o '"id"' "$folder/out" | wc -l)
id=$(sed 's/.*"id": "\([0-9a-f]*\)".*/\1/' "$folder/out")
run cache show "$id"
expect 'an entry is shown' 0 'key=' 'verdict=ok' 'checksum='
run cache show nothing
expect_error 'an entry that is not there is a failure' 1 "'nothing': no entry"
run cache export "$folder/one"
expect 'the cache is exported' 0
run cache clear "$id"
expect 'one entry is cleared' 0 '1 entry removed'
run cache import "$folder/one"
expect 'what is missing comes back' 0 "taken from $folder/one"
run cache list --json
expect_json 'all are there again' "len(o['entries']) == $count"
run race --size 32x32x32 --block 8 --cache "$folder/other"
run cache export "$folder/two" --cache "$folder/other"
run cache merge "$folder/one" "$folder/two" -o "$folder/both"
expect 'exports are merged' 0
run cache import "$folder/both" --cache "$folder/third"
run cache list --json --cache "$folder/third"
expect_json 'the merged file holds both' "len(o['entries']) == $count + 1"
run cache clear
expect 'everything is cleared' 0 "$count entries removed"
run cache list
expect 'then nothing is left' 0 '0 entries'
echo garbage >"$folder/garbage"
run cache import "$folder/garbage"
expect_error 'garbage is not imported' 1 garbage
run cache merge "$folder/garbage" -o "$folder/nowhere"
expect_error 'nor merged' 1 garbage
run cache export /nonexistent/file
expect_error 'an export that cannot be written is a failure' 1 /nonexistent/file
run race --size 32x32x32 --block 8 --cache /proc/nowhere
expect 'a cache that cannot be written does not stop a race' 0 'best: ' 'not remembered'

for delay in 0.02 0.1 0.2 0.3 0.5; do # killed at some moment of a race, whatever is there is still good
    "$cli" race --size 256x64x256 --block 16 --fresh >/dev/null 2>&1 &
    sleep $delay
    kill -9 $! 2>/dev/null
    wait $! 2>/dev/null
done
run cache list
expect 'killed races leave a cache that can be read' 0 entr
expect_quiet 'and nothing to complain about'

# ---- check ----

run check --cases 3 --seed 5
expect 'a short check passes' 0 'seed 5' 'all right'
expect_quiet 'check shows no progress in a pipe'
run check --cases 3 --seed 5 --no-isolate --json
expect_json 'check as JSON, in this process' 'o["failed"] == 0 and o["cases"] > 0 and o["seed"] == 5 and
    all(v["ok"] for v in o["variants"])'
run check --cases 2 --seed 5 --sides 200 --tune --json --only cpu_matmul_any_any_c_reference
expect_json 'check tunes problems of a given size' 'o["failed"] == 0 and o["cases"] == 2'
run check --power --only 'drops a block' --dtype f32 --depth 16
expect 'a planted fault is found' 0 'drops a block' 'the race' '0 not as expected'
expect_quiet 'check --power shows no progress in a pipe'
run check --power --only 'from the 256th run on' --op matmul --dtype f64 --depth 16 --json
expect_json 'one that no race sees is for check' 'len(o["rows"]) == 1 and o["not_as_expected"] == 0 and
    o["rows"][0]["found_by"] == "check" and not o["rows"][0]["race"][0]["found"] and o["rows"][0]["check"]["cases"] > 80'
run check --power --only 'nothing is wrong' --op attention --dtype bf16 --depth 16 --cases 2 --json
expect_json 'a right kernel is found right' 'all(r["ok"] and not r["is_fault"] for r in o["rows"]) and len(o["rows"]) > 5'
run check --power --only 'offset' --op grouped --dtype f32 --depth 16 --json
expect_json 'faults in offsets are planted, and found' 'len(o["rows"]) > 4 and o["not_as_expected"] == 0'
run check --power --only 'no such fault'
expect 'a fault that is not there is an error' 1
run check --seconds 0.3 --only cpu_matmul_any_any_c_reference
expect 'a check by time ends' 0 'all right' seed

# ---- tune, plugins ----

run tune --world 2 --rank 1
expect_error 'ranks need a store' 2 '--world 2: expected --store'
run tune --world 2 --rank 2 --store "$folder/job"
expect_error 'a rank is below the world' 2 '--rank 2: expected 0 to 1'
run tune --rank 1
expect_error 'a rank needs a world' 2 '--rank 1: expected 0 to 0, below --world'
run tune --effort pinned
expect_error 'tune races' 2 "--effort 'pinned': expected default, quick or full"

if [ -d "$plugins" ]; then
    SPARSE_AUTOTUNE=cached run variants --names --plugin "$plugins/asks.so" --cache "$folder/asked"
    expect 'a plugin may ask for plans' 0 reference
    run tune --list --cache "$folder/asked"
    expect 'an untuned problem was noted' 0 'op=matmul m=60 n=24 k=64 block=16x16'
    run tune --cache "$folder/asked"
    expect 'tune races it' 0 'matmul f32 60x24x64, block 16x16, 4 of 16 blocks' '1 problem'
    expect_not 'under the very key that was asked for' 'its key differs'
    run tune --cache "$folder/asked"
    expect 'and then nothing is left to tune' 0 '0 problems'

    SPARSE_AUTOTUNE=cached run variants --names --plugin "$plugins/asks_groups.so" --cache "$folder/asked"
    run tune --list --cache "$folder/asked"
    expect 'untuned products of groups were noted' 0 'op=grouped m=60 n=24 k=40' 'op=grouped-weights m=60 n=24 k=40'
    run tune --cache "$folder/asked"
    expect 'tune races them' 0 'grouped f32 60x24x40, 6 groups, skew 3, offsets i32' \
        'grouped-weights bf16:f32 60x24x40, 6 groups, skew 2' '2 problems'
    expect_not 'under their very keys' 'its key differs'
    run tune --cache "$folder/asked"
    expect 'and then none of them is left' 0 '0 problems'

    # Two processes share three problems that another one noted; each has a cache of its own.
    for plugin in asks asks_groups; do
        SPARSE_AUTOTUNE=cached run variants --names --plugin "$plugins/$plugin.so" --cache "$folder/noted"
    done
    tune_rank() { # rank, the job's folder
        "$cli" tune --notes "$folder/noted" --cache "$folder/rank$1" --world 2 --rank "$1" --store "$folder/$2" \
            >"$folder/tuned$1" 2>"$folder/tuned$1.err"
    }
    tune_job() { # the job's folder
        tune_rank 0 "$1" &
        tune_rank 1 "$1"
        status=$?
        wait $! || status=$?
        cat "$folder"/tuned? >"$folder/out"
        cat "$folder"/tuned?.err >"$folder/err"
    }
    lines() { grep -c -- "$1" "$folder/out"; } # how many have the words
    tune_job job1
    expect 'two processes share the problems' 0 'matmul f32 60x24x64' 'grouped f32 60x24x40'
    expect_quiet 'and have nothing to complain of'
    verdict 'each problem is raced by one of them' "$([ "$(lines ', raced here$')" -eq 3 ] && echo yes)"
    verdict 'and its winner is checked by the other' "$([ "$(lines ', checked here$')" -eq 3 ] && echo yes)"
    verdict 'which is the same variant' "$([ "$(sed -n 's/, [a-z]* here$//p' "$folder/out" | sort | uniq -d | wc -l)" -eq 3 ] && echo yes)"
    verdict 'both have races of their own' "$([ "$(lines '^3 problems, [12] raced here')" -eq 2 ] && echo yes)"
    tune_job job2
    verdict 'a second job races nothing' "$([ "$(lines '^3 problems, 0 raced here')" -eq 2 ] && echo yes)"
    run cache export "$folder/fleet.cache" --cache "$folder/rank1"
    run cache import "$folder/fleet.cache" --cache "$folder/another"
    expect 'the export of one rank has all winners' 0 '3 entries'
    for plugin in asks asks_groups; do
        SPARSE_AUTOTUNE=pinned run variants --names --plugin "$plugins/$plugin.so" --cache "$folder/another"
        expect "and $plugin runs with pinned choices" 0 reference
    done
    SPARSE_AUTOTUNE=pinned run variants --names --plugin "$plugins/asks.so" --cache "$folder/empty"
    expect_error 'what is not pinned is named' 1 'nothing is pinned for op=matmul m=60 n=24 k=64'

    planted() { # plugin, its verdict, words of its message
        run race $small --fresh --timeout 2 --plugin "$plugins/$1.so" --json
        expect_json "race reports plugin_$1" '[r["verdict"] for r in o["results"] if r["variant"] == "plugin_'"$1"'"] == ["'"$2"'"] and
            any("'"$3"'" in r["message"] for r in o["results"]) and o["best"] and not o["best"].startswith("plugin")'
        run check --seed 3 --cases 12 --timeout 2 --plugin "$plugins/$1.so" --only "plugin_$1"
        expect "check reports plugin_$1" 1 "FAILED plugin_$1, case " "--only plugin_$1 --seed 3 --case " 'NOT all right'
    }
    planted wrong_element wrong ''
    planted dropped_block wrong ''
    planted stale_tile wrong ''
    planted writes_past wrong ''
    planted returns_error error 'nothing works today'
    planted crashes error 'signal 11'
    planted hangs error 'no answer in 2 s'

    again=$(sed -n 's/^  again: sparse_autotune //p' "$folder/out" | head -n 1)
    run $again --timeout 1
    expect 'the line that repeats a failure repeats it' 1 'FAILED plugin_hangs'
    run race $small --fresh --plugin "$plugins/good.so"
    expect 'a right plugin takes part' 0 plugin_good
    run check --seed 3 --cases 12 --plugin "$plugins/good.so" --only plugin_good
    expect 'and passes its check' 0 'all right'
    run check --seed 3 --cases 4 --timeout 2 --plugin "$plugins/crashes.so" --plugin "$plugins/wrong_element.so" \
        --plugin "$plugins/good.so" --json
    expect_json 'one that crashes does not keep the others from being checked' \
        "$status"' == 1 and [(v["variant"], v["cases"], v["ok"]) for v in o["variants"]][-3:] ==
            [("plugin_crashes", 1, False), ("plugin_wrong_element", 4, False), ("plugin_good", 4, True)]'
    run race $small --fresh --isolate --timeout 20 --plugin "$plugins/crashes.so"
    expect 'race --isolate survives too' 0 'crashed: signal 11' 'best: '
    run race $small --plugin "$plugins/crashes.so" --only plugin_crashes
    expect 'a race that nobody can win is a failure' 1 'best: none'
fi
run race $small --plugin "$folder/nothing.so"
expect_error 'a missing plugin is named' 1 nothing.so
run check --plugin "$folder/junk.mtx"
expect_error 'a plugin that is none is named' 1 junk.mtx

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
