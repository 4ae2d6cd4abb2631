"""bench/grid: what is drawn, the arithmetic of its summary, and who is blamed when a process ends."""

import math
import sys
from collections import Counter
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")

FOLDER = Path(__file__).resolve().parents[3] / "bench" / "grid"
if not FOLDER.is_dir():
    pytest.skip("bench/ is not here", allow_module_level=True)
sys.path.append(str(FOLDER))
import draw
import runner
import summary
import verify

# ---- the draw ----


@pytest.mark.parametrize("grid", draw.GRIDS)
def test_a_problem_is_a_function_of_the_seed_and_its_number(grid):
    some = [draw.problem(grid, "seed", i) for i in range(50)]
    assert some == [draw.problem(grid, "seed", i) for i in range(50)]
    assert some[7] == draw.problem(grid, "seed", 7)
    others = [draw.problem(grid, "another", i) for i in range(50)]
    assert sum(a == b for a, b in zip(some, others)) == 0
    assert len({p.words() for p in some}) == 50


def test_a_draw_is_the_same_with_every_python():
    assert draw.problem("gpu_products", "abc", 0).words() == (
        "A*B f16 2530x8192, N 4, block 40x40, d 0.329 random, columns, changing"
    )


@pytest.mark.parametrize("grid", ["gpu_products", "cpu_products"])
def test_products_stay_within_what_the_grid_is_of(grid):
    some = [draw.problem(grid, "s", i) for i in range(1000)]
    limit = draw.LIMITS[grid]
    for p in some:
        assert 256 <= min(p.m, p.k) and max(p.m, p.k) <= 16384 and 1 <= p.n <= 4096
        assert 1 <= min(p.block) and max(p.block) <= 256 and 0.008 <= p.density <= 0.5
        assert 2.0 * p.m * p.n * p.k <= limit["operations"] and p.m * p.k <= limit["elements"]
    rectangular = sum(p.block[0] != p.block[1] for p in some)
    assert 250 < rectangular < 420
    assert {p.dtype for p in some} == set(draw.DTYPES[grid])
    assert {p.operation for p in some} == set(draw.OPERATIONS)
    assert {p.layout for p in some} == set(draw.LAYOUTS)
    assert {p.values for p in some} == {"fixed", "changing"}
    assert sum(p.n % 2 for p in some) > 250 and sum(p.m % p.block[0] > 0 for p in some) > 150


@pytest.mark.parametrize("grid", ["gpu_attention", "cpu_attention"])
def test_attention_stays_within_what_the_grid_is_of(grid):
    some = [draw.problem(grid, "s", i) for i in range(1000)]
    for p in some:
        assert 32 <= p.size <= 256 and p.size % 8 == 0 and 16 <= p.keys <= 16384 and p.batch <= 32
        assert p.heads % p.kv_heads == 0 and p.queries <= p.keys
        assert not (p.causal or p.block) or p.queries == p.keys
        assert not p.flex or (p.block == 128 and p.keys % 128 == 0 and grid == "gpu_attention")
    counts = Counter(p.mask() for p in some)
    assert min(counts[name] for name in ("none", "causal", "blocks", "blocks and causal")) > 30
    assert sum(p.backward for p in some) > 250 and sum(p.kv_heads != p.heads for p in some) > 150


@pytest.mark.parametrize("pattern", draw.PATTERNS)
@pytest.mark.parametrize("few", [1 << 24, 0])
def test_patterns_are_sorted_and_about_as_dense_as_drawn(pattern, few, monkeypatch):
    monkeypatch.setattr(draw, "FEW_BLOCKS", few)
    p = draw.Product(0, "A*B", "f32", 3000, 2000, 8, (8, 4), 0.1, pattern, "plain", "fixed")
    row_ptr, col_idx = draw.draw_pattern(np, np.random.default_rng(1), p)
    rows, cols = 375, 500
    assert len(row_ptr) == rows + 1 and row_ptr[0] == 0 and row_ptr[-1] == len(col_idx)
    assert 0 <= col_idx.min() and col_idx.max() < cols
    steps, begins = np.diff(col_idx), row_ptr[1:-1]
    inner = np.ones(len(steps), bool)
    inner[begins[(begins > 0) & (begins < len(col_idx))] - 1] = False
    assert (steps[inner] > 0).all()
    assert 0.05 < len(col_idx) / (rows * cols) < 0.12
    counts = np.diff(row_ptr)
    assert (counts.max() > 5 * np.median(counts)) == (pattern == "power-law")


def test_a_pattern_is_never_empty():
    p = draw.Product(0, "A*B", "f32", 256, 256, 8, (256, 256), 0.008, "random", "plain", "fixed")
    row_ptr, col_idx = draw.draw_pattern(np, np.random.default_rng(1), p)
    assert list(row_ptr) == [0, 1] and list(col_idx) == [0]


# ---- the summary ----


def row(index, seconds, ratio, again=1.0, **words):
    """A row with one peer."""
    peer = None if ratio is None else (seconds or 1e-4) * ratio
    found = {"index": index, "problem": f"p{index}", "strata": {"dtype": "f16"}, "seconds": seconds}
    found.update(peer=None if peer is None else "csr", peer_seconds=peer, ratio=ratio if seconds else None)
    found["peers"] = {} if peer is None else {"csr": {"seconds": peer, "ratio": ratio}}
    if seconds:
        found.update(again_seconds=seconds * again, again_ratio=again)
    return {**found, **words}


def summarise(rows, grid="gpu_products"):
    return summary.summarise(grid, "seed", rows, {"name": "M", "threads": 2})


def test_behind_takes_a_share_and_some_microseconds():
    rows = [
        row(0, 100e-6, 0.96),  # 4 us and 4 %
        row(1, 10e-6, 0.90),  # 1 us only
        row(2, 1000e-6, 0.98),  # 20 us, but 2 %
        row(3, 100e-6, 0.70),  # 30 us and 43 %
        row(4, 10e-6, 0.60),  # 4 us and 67 %: behind by 3 %, not by 25 %
    ]
    found = summarise(rows)
    assert (found["problems"], found["behind_3_percent"], found["behind_25_percent"]) == (5, 3, 1)
    assert summarise(rows, "cpu_attention")["behind_3_percent"] == 1
    assert [r["index"] for r in found["rows"]] == [4, 3, 1, 0, 2]


def test_a_ratio_counts_at_most_4_and_at_least_a_quarter():
    found = summarise([row(0, 1e-3, 100.0), row(1, 1e-3, 0.001), row(2, 1e-3, 2.0)])
    assert math.isclose(found["geometric_mean"], 2 ** (1 / 3), rel_tol=1e-3)


def test_an_error_of_ours_is_a_loss_and_a_problem_without_peers_is_none():
    found = summarise([row(0, None, 1.0, error="refused"), row(1, 1e-3, 1.0), row(2, 1e-3, None)])
    assert (found["problems"], found["drawn"], found["errors"], found["without_peers"]) == (2, 3, 1, 1)
    assert found["behind_3_percent"] == found["behind_25_percent"] == 1
    assert math.isclose(found["geometric_mean"], 0.5, rel_tol=1e-3)
    assert found["rows"][0]["error"] == "refused"
    alone = summarise([row(0, None, None, error="no process")])
    assert (alone["problems"], alone["behind_25_percent"], alone["geometric_mean"]) == (1, 1, 0.25)


def test_noise_is_ours_beside_itself():
    found = summarise([row(i, 1e-3, 1.0, again=0.9 if i == 0 else 1.01) for i in range(10)])["noise"]
    assert (found["problems"], found["behind_3_percent"], found["median_percent"]) == (10, 1, 1.0)
    assert found["ninth_decile_percent"] == pytest.approx(11.11)


def test_strata_and_peers_add_up():
    rows = [row(i, 1e-3, 0.5 + i, strata={"side": "16 to 31" if i % 2 else "2 to 7"}) for i in range(4)]
    rows[0]["peers"]["dense_cublas"] = {"seconds": 4e-3, "ratio": 4.0}
    found = summarise(rows)
    assert list(found["strata"]["side"]) == ["2 to 7", "16 to 31"]
    assert sum(s["problems"] for s in found["strata"]["side"].values()) == 4
    assert found["peers"]["dense_cublas"]["problems"] == 1 and found["peers"]["csr"]["best"] == 4
    assert found["peers"]["all but dense"]["problems"] == 4


def test_parts_of_one_seed_come_together():
    first, second = summarise([row(0, 1e-3, 1.0), row(1, 1e-3, 1.0)]), summarise([row(1, 1e-3, 2.0)])
    found = summary.merged({"gpu_products": first}, {"gpu_products": second})["gpu_products"]
    assert {r["index"]: r["ratio"] for r in found["rows"]} == {0: 1.0, 1: 2.0}
    other = dict(second, seed="another")
    assert summary.merged({"gpu_products": first}, {"gpu_products": other})["gpu_products"]["problems"] == 1
    assert "gpu_products" in summary.merged({"gpu_products": first}, {"cpu_products": second})


def test_the_table_says_what_was_found():
    text = summary.text("gpu_products", summarise([row(0, 100e-6, 0.5, variant="v"), row(1, 1e-3, 2.0)]))
    assert "all " in text and "0.50      100.0       50.0 csr" in text and "p0; v" in text


# ---- what is right ----


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_a_right_product_passes_and_one_dropped_number_does_not(dtype):
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    a, b = (
        torch.rand(*shape).mul(2).sub(1).to(verify.kinds(torch)[dtype]) for shape in ((40, 300), (300, 9))
    )
    expected = verify.product(torch, dtype, a[5:30], b, lambda out: out[5:30])
    wide = torch.float64 if dtype == "f64" else torch.float32
    right = (a.to(wide) @ b.to(wide)).to(a.dtype)
    assert expected.excess(right) <= 1
    a[7, 11] = 0
    assert expected.excess((a.to(wide) @ b.to(wide)).to(a.dtype)) > 1
    right[7, 3] = math.nan
    assert expected.excess(right) == math.inf


def test_right_gradients_of_attention_pass_and_a_dropped_key_does_not():
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    p = draw.Attention(0, True, "f32", 2, 4, 2, 33, 40, 64, False, 0, 1.0, "heads", False)
    shapes = ((2, 4, 33, 64), (2, 2, 40, 64), (2, 2, 40, 64))
    q, k, v = (torch.randn(*shape, requires_grad=True) for shape in shapes)
    grad, rows = torch.randn(2, 4, 33, 64), torch.arange(5, 20)
    mask = torch.zeros(33, 40)

    def found():
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
        return out.detach(), torch.autograd.grad(out, (q, k, v), grad)

    with torch.no_grad():
        outputs = verify.forward(torch, p, q, k, v, None, [(1, 3, rows)])
        gradients = verify.backward(torch, p, q, k, v, grad, None, rows)
    assert len(gradients) == 4  # dQ of two heads of queries, dK and dV of their keys
    out, got = found()
    assert max(e.excess(out) for e in outputs) <= 1 and max(e.excess(got) for e in gradients) <= 1
    mask[:, 17] = -math.inf
    out, got = found()
    assert min(e.excess(out) for e in outputs) > 1 and min(e.excess(got) for e in gradients) > 1


# ---- the runner ----

FAKE = """#!{python}
import json, os, sys
def say(**words): print(json.dumps(words), flush=True)
grid, seed, seconds, threads, indices, *without = sys.argv[2:]
say(machine={{"name": "fake", "threads": 1}})
for i in map(int, indices.split(",")):
    say(begin=i)
    say(stage="ours")
    if i == 1: os._exit(9)
    say(stage="peer")
    if i == 2 and "2:peer" not in without: os._exit(9)
    say(row=dict(index=i, problem="p", strata={{}}, seconds=1e-3, peer=None, peer_seconds=None, ratio=None,
                 peers={{}}))
"""


@pytest.fixture
def fake(tmp_path):
    path = tmp_path / "python"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    return str(path)


def test_a_process_that_ends_is_ours_to_answer_for_unless_a_peer_was_at_work(fake, tmp_path):
    run = runner.Run("cpu_products", "s", 1, fake, tmp_path, tmp_path, {0}, 4)
    rows = {r["index"]: r for r in run.run(60, lambda *_: None)}
    assert sorted(rows) == [1, 2, 3] and not run.todo and run.machine["name"] == "fake"
    assert "ended with 9" in rows[1]["error"] and rows[1]["seconds"] is None
    assert "error" not in rows[2] and run.left_out == {2: ["peer"]}
    assert len(run.failures) == 1


def test_a_second_thread_count_is_a_grid_of_its_own():
    assert runner.name_of("cpu_products", runner.cores()) == "cpu_products"
    assert runner.name_of("cpu_products", runner.cores() + 1).endswith(f"_{runner.cores() + 1}_threads")
    assert runner.name_of("gpu_products", runner.cores() + 1) == "gpu_products"
