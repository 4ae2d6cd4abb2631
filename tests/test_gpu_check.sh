#!/usr/bin/env bash
# bench/gpu_check without a GPU: its patterns are what they are called, on a CPU with small problems it races, writes its
# record and succeeds, verifies random problems, counts choices, reads counters, and judges attention by its rivals; without a device it
# says so, and a part that could not run is a failure.
# usage: test_gpu_check.sh <root of the tree> <command line>
set -eu
root=$1 cli=$2
command -v python3 >/dev/null || { echo "skipped: there is no python3"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export PYTHONDONTWRITEBYTECODE=1

python3 - "$root" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
import problems
import rivals
rows = {p.name: p for p in problems.all_problems()}
assert len(rows) == len(problems.all_problems()), "two problems have one name"
for p in rows.values():
    assert not p.like or p.like in rows, p.like
    lists = p.blocks() if p.m * p.k < 2**31 else []
    side = p.stored()[1] // p.block
    assert all(x < y for columns in lists for x, y in zip(columns, columns[1:])), p.name
    assert all(0 <= columns[0] and columns[-1] < side for columns in lists if columns), p.name
    configurations = rivals.configurations(p.rival_job(0, "")) if "triton" in p.rivals else []
    assert all(p.n % c["SPLIT_N"] == 0 for c in configurations) and ("triton" not in p.rivals or configurations), p.name
counts = sorted(len(c) for c in rows["f16 16384x4096x16384 block 64, powerlaw rows"].blocks())
even = [len(c) for c in rows["f16 16384x4096x16384 block 64, equal rows"].blocks()]
assert counts[-1] == 50 * counts[len(counts) // 2] and sum(counts) == sum(even) and max(even) - min(even) <= 1
heavy = sorted(len(c) for c in rows["f16 4096^3 block 64, 4 rows 8 times heavier"].blocks())
assert sum(heavy) == 512 and heavy[-4] == heavy[-1] and 7 < heavy[-1] / heavy[0] < 10
EOF

"$root/bench/gpu_check" 100 --device cpu --shrink 32 --section race --only '4096^3 block 64,' --program "$cli" \
    --bench "$folder/none" --record "$folder/record.json"
python3 - "$folder/record.json" <<'EOF'
import json
import sys
record = json.load(open(sys.argv[1]))
assert record["version"] == 1 and record["date"] and record["machine"]["backend"] == "cpu", record["machine"]
assert not record["checks"]["failures"] and record["checks"]["left_out"], record["checks"]
rows = {r["problem"]["name"]: r for r in record["rows"]}
assert len(rows) >= 4 and all(r["seconds"] > 0 and r["floor_seconds"] > 0 and r["variant"] for r in rows.values()), rows
assert rows["f16 4096^3 block 64, sampled"]["problem"]["op"] == "sampled"
assert rows["f16 4096^3 block 64, transposed"]["problem"]["transpose"]
EOF

# Random problems, and the choices of a bench that has made its times up: the first variant of each job is 2 % behind the
# second, and the estimate's choice, the last, 30 %.
cat >"$folder/bench" <<'EOF'
#!/usr/bin/env python3
import json
import sys
for line in open(sys.argv[2]):
    words = dict(word.split("=", 1) for word in line.split())
    assert words["estimate"] == "1" and int(words["within"]) > 100, line
    names = words["variants"].split(",")
    for i, name in enumerate(names):
        times = [t * {0: 1.02, 1: 1.0, len(names) - 1: 1.3}.get(i, 1.1) for t in (1e-5, 1.5e-5, 2e-5)]
        print(json.dumps({"id": int(words["id"]), "variant": name, "estimated": i == len(names) - 1, "seconds": sorted(times)[1], "times": times}))
EOF
chmod +x "$folder/bench"
"$root/bench/gpu_check" 100 --device cpu --shrink 100 --section random --section choice --only '1024x256x1024 block 32' --program "$cli" \
    --bench "$folder/bench" --record "$folder/both.json" --onto "$folder/record.json"
python3 - "$folder/both.json" <<'EOF'
import json
import sys
record = json.load(open(sys.argv[1]))
random, choice = record["checks"]["random"], record["checks"]["choice"]
assert len(record["rows"]) >= 4 and record["checks"]["added"][0]["sections"] == ["random", "choice"], "the old record is not there"
assert random["verified"]["problems"] >= 100 and random["tuned"]["problems"] >= 2, random
assert random["verified"]["failed"] == random["tuned"]["failed"] == 0, random
assert choice["problems"] == 3 and all(abs(r["chosen_ratio"] - 1.02) < 1e-9 and abs(r["estimated_ratio"] - 1.3) < 1e-9 for r in choice["rows"]), choice
assert [f["count"] for f in choice["figures"].values()] == [3, 3, 0] and not record["checks"]["added"][0]["failures"], choice["figures"]
EOF
python3 - "$root" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
import report
old = {"rows": [], "checks": {"failures": ["check: x is wrong", "race: y"]}}
new = {"date": "", "commit": "", "command": "", "rows": [], "checks": {"left_out": [], "failures": [], "seconds": 1, "section_seconds": {"check": 1}}}
assert report.added(old, new)["checks"]["failures"] == ["race: y"], "what ran again has no old failures"
EOF

# Counters of an ncu that has made them up: of the one row that misses, and of the dense product.
mkdir "$folder/bin"
cat >"$folder/bin/ncu" <<'EOF'
#!/usr/bin/env python3
import sys
words = sys.argv[1:]
names, log = (words[words.index(option) + 1] for option in ("--metrics", "--log-file"))
names, dense = names.split(","), "--sparsity" in words
assert any("sparse_autotune" in word for word in words) and ("--matrix" in words) != dense, words
with open(log, "w") as f:
    print("==PROF== Connected", file=f)
    for kernel, values in (("Kernel Name", names), ("", ["unit"] * len(names)), ("nvjet" if dense else "multiply", ["1,000"] * len(names)),
                           ("nvjet" if dense else "multiply", ["3,000.5"] * len(names)), ("nvjet" if dense else "multiply", ["2,000"] * len(names))):
        print(",".join(f'"{word}"' for word in ["ID", kernel, *values]), file=f)
EOF
chmod +x "$folder/bin/ncu"
python3 - "$folder/record.json" "$folder/missed.json" <<'EOF'
import json
import sys
record = json.load(open(sys.argv[1]))
next(r for r in record["rows"] if r["problem"]["name"] == "f16 4096^3 block 64, transposed")["targets"] = [{"ratio": "dense_cublas", "met": False}]
json.dump(record, open(sys.argv[2], "w"))
EOF
PATH=$folder/bin:$PATH "$root/bench/gpu_check" 100 --device cpu --shrink 32 --section counters --program "$cli" --bench "$folder/none" \
    --onto "$folder/missed.json" --record "$folder/counted.json"
python3 - "$root" "$folder/counted.json" <<'EOF'
import json
import sys
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
import counters
row, dense = (found := json.load(open(sys.argv[2]))["checks"]["counters"])
assert row["problem"] == "f16 4096^3 block 64, transposed" and row["kernel"] == "multiply" and dense["kernel"] == "nvjet", found
assert row["launches"] == 3 and abs(row["seconds"] - 2e-6) < 1e-12 and row["l2_read_bytes"] == 64000 and abs(row["tensor_share"] - 20) < 1e-9, row
assert len(counters.table(found)) == 4 and "dense" in counters.table(found)[3]
p = {"op": "matmul", "name": "x", "m": 1, "n": 2, "k": 3, "dtype": "f32", "tf32": True}
targets = [{"ratio": "dense_cublas", "met": True}, {"ratio": "triton_bsr_portable", "met": False}]
assert counters.jobs([{"problem": p, "variant": "v", "portable": "w", "targets": targets}]) == ([("x", "w")], [(1, 2, 3, "f32", True)])
assert "--allow-tf32" in counters.dense_words(1, 2, 3, "f32", True)
EOF

# Attention: masks are what they are called, and rows are judged by rivals whose times are made up.
"$root/bench/gpu_check" 100 --device cpu --shrink 64 --section attention --program "$cli" --bench "$folder/none" --record "$folder/attention.json"
python3 - "$root" "$folder/attention.json" <<'EOF'
import json
import sys
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
import attention
rows = {p.name: p for p in attention.all_problems()}
assert len(rows) == len(attention.all_problems()), "two problems have one name"
for p in rows.values():
    assert not p.like or p.like in rows, p.like
    lists, (height, width) = p.blocks(), p.sides()
    assert len(lists) == p.m // height and sum(map(len, lists)) == round(p.density * len(lists) * (p.n // width)), p.name
    assert all(columns and columns == sorted(set(columns)) and columns[-1] < p.n // width for columns in lists), p.name
record = json.load(open(sys.argv[2]))
assert not record["checks"]["failures"] and len(record["rows"]) == len(rows), record["checks"]
for row in record["rows"]:
    problem = row["problem"]
    assert row["seconds"] > 0 and row["floor_seconds"] > 0 and row["variant"] and row["ratios"]["tflops"] > 0, row
    kept = {(False, 0): problem["m"] * problem["n"], (True, 0): problem["m"] * (problem["m"] + 1) // 2}.get((problem["causal"], problem["window"]))
    if problem["density"] == 1 and kept:
        each = 10 if problem["op"] == "attention-backward" else 4
        assert problem["flops"] == each * problem["dim"] * problem["heads"] * problem["batch"] * kept, problem

def row(name, seconds, flops=1e12, rivals=()):
    found = {"variant": "cuda_attention_f16_any_sm90_128x128", "verdict": "ok", "seconds": seconds, "library": False, "dense": False}
    library = {"variant": "cuda_attention_any_any_cudnn", "verdict": "ok", "seconds": 3e-3, "library": True, "dense": False}
    made = attention.Row(rows[name], {"results": [found, library], "problem": {"flops": flops, "bytes": 4e9}})
    made.rivals.update(rivals)
    return made
ceilings = {"memory": 4e12, "f16": 1e15, "l2_bytes": 1e9}
long = row(attention.LONG, 2e-3, rivals={"sdpa_cudnn": 1e-3, "sdpa_flash": 4e-3})
window = row("attention 1, 16, 16384, 128, window 1024", 1e-3, 0.25e12)
decode = row("attention 32, 32 over 8, 1 query, 8192 keys, 128", 2e-3)
back, sparse = (row("attention backward 1, 16, 4096, 128" + more, s) for more, s in (("", 3e-3), (", 128-blocks, density 0.26", 1e-3)))
every = {r.problem.name: r for r in (long, window, decode, back, sparse)}
assert long.ratios(every, ceilings) == {"cudnn": 0.5, "sdpa_cudnn": 0.5, "sdpa_flash": 2, "best_sdpa": 0.5, "tflops": 500}, long.ratios(every, ceilings)
assert abs(window.ratios(every, ceilings)["dense_rate"] - 0.25) < 1e-12 and window.ratios(every, ceilings)["tflops"] == 250
assert decode.ratios(every, ceilings)["hbm"] == 0.5 and abs(sparse.ratios(every, ceilings)["own_dense"] - 3) < 1e-12
decode.set_floor(ceilings)
assert decode.floors == {"operations": 1e-3, "hbm": 3e9 / 4e12} and decode.limit == "operations" and decode.cold_floor == 1e-3

import attention_rivals  # a backend that refuses is left out with the reason that torch warned of
from types import SimpleNamespace
said = ("Flash attention kernel not used because:", "Flash attention has been runtime disabled.", "cuDNN attention kernel not used because:", "head_dim is too large")
warned = [SimpleNamespace(message=text + " (Triggered internally at a.cpp:1.)") for text in said]
error = RuntimeError("No available kernel. Aborting execution.")
assert attention_rivals.refusal("sdpa_cudnn", error, warned) == said[3]
assert attention_rivals.refusal("sdpa_efficient", error, warned) == attention_rivals.refusal("sdpa_cudnn", error, []) == str(error)
EOF
if python3 -c 'import torch.nn.attention.flex_attention' 2>/dev/null; then
    python3 - "$root" <<'EOF'
import sys
import warnings
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
warnings.simplefilter("ignore")
import torch
from torch.nn.attention.flex_attention import flex_attention
import attention
import attention_rivals
bench = attention_rivals.Bench()
bench.device, bench.dense = "cpu", lambda rows, cols, dtype: torch.rand(rows, cols) * 2 - 1
for p in attention.all_problems():  # the masks that FlexAttention gets keep what ours keep
    job = p.shrunk(32).rival_job(0)
    q, k, v, _ = bench.operands(job)
    if "flex" in p.rivals:
        assert bench.error(job, q, k, v, flex_attention(q, k, v, block_mask=bench.flex_mask(job))) < 1e-5, p.name
EOF
fi

# What a tile must read through L2, counted by hand.
python3 - "$root" <<'EOF'
import sys
sys.path.insert(0, sys.argv[1] + "/bench/gpu")
import floor
import problems
class Two(problems.Problem):  # 2 x 3 blocks of 64: rows {0, 1} and {1, 2}
    def blocks(self):
        return [[0, 1], [1, 2]]
p = Two("two", 128, 1024, 192, 64)
a, b = 4 * 64 * 64 * 2, 64 * 1024 * 2  # all blocks; 64 rows of B
assert floor.l2_bytes(p, "cuda_matmul_f16_16n_sm90_64x512") == 2 * a + 4 * b
assert floor.l2_bytes(p, "cuda_matmul_f16_16n_sm90_128x256_union") == 4 * a + 3 * b
assert floor.l2_bytes(p, "cuda_matmul_f16_64_sm90_64x256_pair") == 4 * a + 3 * b
assert floor.l2_bytes(p, "cuda_matmul_f16_32_sm80_32x256") == 4 * a + 8 * b
assert floor.l2_bytes(p, "cuda_matmul_any_any_cublas_block") is None
class Low(problems.Problem):  # 2 x 8 blocks of 16: columns 0 and 5 in one row, 1 in the other
    def blocks(self):
        return [[0, 5], [1]]
low = Low("low", 32, 512, 128, 16, layout="col,col")
assert floor.l2_bytes(low, "cuda_matmul_f16_16n_sm90_128x256_union") == 2 * 3 * 16 * 16 * 2 + 8 * 16 * 512 * 2  # four columns together, twice
low.layout = "row,row"
assert floor.l2_bytes(low, "cuda_matmul_f16_16n_sm90_128x256_union") == 2 * 3 * 16 * 16 * 2 + 3 * 16 * 512 * 2
s = Two("sampled", 128, 192, 256, 64, op="sampled")
x = 64 * 256 * 2  # 64 rows of X, or columns of Y
assert floor.l2_bytes(s, "cuda_sampled_f16_64_mma_64x128") == (2 + 4) * x
assert floor.l2_bytes(s, "cuda_sampled_f16_64_mma_64x64") == (4 + 4) * x
EOF

# What the pages say was measured stands in the record.
python3 "$root/bench/gpu/pages.py" --check

expect() { # status, a line that the output must end with or hold, arguments
    local wanted=$1 line=$2 status=0
    shift 2
    "$root/bench/gpu_check" "$@" --program "$cli" --record "$folder/second.json" >"$folder/out" 2>&1 || status=$?
    if [ "$status" -eq "$wanted" ] && grep -qE -- "$line" "$folder/out"; then return; fi
    echo "FAILED: gpu_check $* gave $status, expected $wanted and '$line'" && cat "$folder/out" && exit 1
}
CUDA_VISIBLE_DEVICES='' expect 2 '^gpu_check: there is no GPU here: '
[ ! -e "$folder/second.json" ] || { echo "FAILED: a record of nothing" && exit 1; }
expect 1 '^FAILED: race could not run: no time left$' 6 --device cpu --section race
expect 1 '^NOT all right: 1 failed$' 6 --device cpu --section race
expect 0 '^  2  nothing ran: there is no GPU here' --help
echo "ok: gpu_check on a CPU"
