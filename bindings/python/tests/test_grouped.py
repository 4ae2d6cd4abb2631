"""Products of groups: results, gradients, operators, races; what is wrong is named."""

import json

import numpy as np
import pytest
from conftest import OnlyDlpack, close, in_threads, run_program, tensors_close
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa
from sparse_autotune import _grouped, report

try:
    import torch
except ImportError:
    torch = None

needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed")
ACTIVATIONS = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
}


def product(x, w, offsets, bias=None):
    """The definition, in double precision."""
    x, w = np.asarray(x, np.float64), np.asarray(w, np.float64)
    y = np.zeros((len(x), w.shape[2]))
    for g in range(len(w)):
        rows = slice(offsets[g], offsets[g + 1])
        y[rows] = x[rows] @ w[g] + (0 if bias is None else np.asarray(bias, np.float64)[g])
    return y


def weight_sums(x, z, offsets):
    x, z = np.asarray(x, np.float64), np.asarray(z, np.float64)
    return np.stack([x[i:j].T @ z[i:j] for i, j in zip(offsets, offsets[1:])])


def torch_product(x, w, offsets, bias=None):
    """The definition with torch's own products and gradients."""
    ends = offsets.tolist()
    y = [x[i:j] @ w[g] + (0 if bias is None else bias[g]) for g, (i, j) in enumerate(zip(ends, ends[1:]))]
    return torch.cat([*y, x.new_zeros(len(x) - ends[-1], w.shape[2])])


@st.composite
def sizes(draw):
    """Rows, k, n and offsets: groups that are empty, and rows behind the last."""
    rows, k, n = draw(st.integers(1, 70)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    inner = draw(st.lists(st.integers(0, rows), min_size=1, max_size=6))
    return rows, k, n, np.array([0, *sorted(inner)], draw(st.sampled_from([np.int32, np.int64])))


@given(
    sizes(),
    st.sampled_from(["float64", "float32", "float16"]),
    st.sampled_from(["rows", "columns", "gaps", "backwards"]),
    st.sampled_from(list(ACTIVATIONS)),
    st.booleans(),
)
def test_each_group_has_its_own_matrix(size, dtype, layout, activation, with_bias):
    rows, k, n, offsets = size
    groups, rng = len(offsets) - 1, np.random.default_rng(rows * k)
    x = rng.standard_normal((rows, k)).astype(dtype)
    w = {
        "rows": lambda: rng.standard_normal((groups, k, n)),
        "columns": lambda: rng.standard_normal((groups, n, k)).transpose(0, 2, 1),
        "gaps": lambda: rng.standard_normal((groups, k, 2 * n))[:, :, ::2],
        "backwards": lambda: rng.standard_normal((groups, k, n))[:, ::-1],
    }[layout]()
    w = w.astype(dtype) if layout == "rows" else np.copyto(like := np.empty_like(w, dtype), w) or like
    bias = rng.standard_normal((groups, n)).astype(dtype) if with_bias else None
    wanted = product(x, w, offsets, bias)
    wanted = ACTIVATIONS[activation](wanted)
    for _ in range(2):  # by the full path, and by the fast one
        got = sa.grouped_matmul(x, w, offsets, bias=bias, activation=activation)
        assert got.dtype == dtype and got.shape == (rows, n)
        close(got, wanted, dtype)
    z = rng.standard_normal((rows, n)).astype(dtype)
    for _ in range(2):
        got = sa.grouped_weights(x, z, offsets)
        assert got.dtype == dtype and got.shape == (groups, k, n)
        close(got / 8, weight_sums(x, z, offsets) / 8, dtype)


def test_transposed_weights_are_not_copied():
    w = np.ones((3, 5, 7), np.float32)
    x, offsets = np.ones((4, 7), np.float32), np.array([0, 1, 2, 4])
    seen = []
    real, _grouped.View = _grouped.View, lambda x, *a, **b: seen.append(real(x, *a, **b)) or seen[-1]
    try:
        close(sa.grouped_matmul(x, w.transpose(0, 2, 1), offsets), np.full((4, 5), 7.0))
    finally:
        _grouped.View = real
    assert seen[1].operand.pointer == w.ctypes.data and seen[1].layout == (1, 7, 35)


def test_rows_behind_the_last_group_get_zeros_and_are_not_read():
    x, w = np.ones((6, 4)), np.ones((2, 4, 3))
    x[4:] = np.nan
    y = sa.grouped_matmul(x, w, np.array([0, 1, 4]), bias=np.ones((2, 3)))
    assert (y[:4] == 5).all() and (y[4:] == 0).all()
    sums = sa.grouped_weights(x, x[:, :2], np.array([0, 1, 4]))
    assert np.isfinite(sums).all() and (sums[1] == 3).all()


@pytest.mark.parametrize("offset_type", [np.int32, np.int64])
def test_the_ends_of_groups_are_taken_as_torch_gives_them(offset_type):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 4)), rng.standard_normal((3, 4, 5))
    ends = np.array([2, 2, 8], offset_type)
    close(sa.grouped_matmul(x, w, ends), product(x, w, [0, 2, 2, 8]), "float64")
    close(sa.grouped_matmul(x, w, [2, 2, 8]), product(x, w, [0, 2, 2, 8]), "float64")


def test_a_plan_takes_the_offsets_of_each_call():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((40, 8)), rng.standard_normal((4, 8, 8))
    offsets = np.array([0, 10, 20, 30, 40])
    for end in range(11):
        offsets[1] = end
        close(sa.grouped_matmul(x, w, offsets), product(x, w, offsets), "float64")
        close(sa.grouped_weights(x, x, offsets), weight_sums(x, x, offsets), "float64")


@pytest.mark.parametrize("m, k, n, groups", [(0, 3, 4, 2), (3, 0, 4, 2), (3, 4, 0, 2), (3, 4, 5, 0)])
def test_nothing_is_a_product_too(m, k, n, groups):
    offsets = np.minimum(np.arange(groups + 1), m)
    y = sa.grouped_matmul(np.ones((m, k)), np.ones((groups, k, n)), offsets)
    assert y.shape == (m, n) and (y == 0).all()
    sums = sa.grouped_weights(np.ones((m, k)), np.ones((m, n)), offsets)
    assert sums.shape == (groups, k, n) and (sums == (m > 0)).all()


def test_out_takes_the_result_and_beta_what_it_held():
    rng = np.random.default_rng(0)
    x, w, offsets = rng.standard_normal((9, 4)), rng.standard_normal((2, 4, 5)), np.array([0, 3, 8])
    out = rng.standard_normal((9, 10))[:, ::2]
    before = out.copy()
    assert sa.grouped_matmul(x, w, offsets, out=out, alpha=2.0, beta=-1.0) is out
    close(out, 2 * product(x, w, offsets) - before, "float64")
    sums = rng.standard_normal((2, 5, 4))
    before = sums.copy()
    z = rng.standard_normal((9, 5))
    turned = sums.transpose(0, 2, 1)
    assert sa.grouped_weights(x, z, offsets, out=turned, beta=1.0) is turned
    close(sums.transpose(0, 2, 1), weight_sums(x, z, offsets) + before.transpose(0, 2, 1), "float64")


def test_half_precision_may_give_float32():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((9, 64)).astype(np.float16), rng.standard_normal((2, 64, 5)).astype(np.float16)
    y = sa.grouped_matmul(x, w, np.array([0, 3, 8]), out_dtype="float32")
    assert y.dtype == np.float32
    close(y, product(x, w, [0, 3, 8]), "float32")


def test_arrays_that_offer_dlpack_alone_are_taken():
    x, w = np.random.randn(9, 4), np.random.randn(2, 4, 5)
    got = sa.grouped_matmul(OnlyDlpack(x), OnlyDlpack(w), np.array([0, 3, 8]))
    close(got, product(x, w, [0, 3, 8]), "float64")


@pytest.mark.parametrize(
    "offsets, message",
    [
        ([1, 2, 3], r"offsets\[0\] is 1; expected 0"),
        ([0, 3, 2], r"offsets\[2\] is 2, below the 3 before it"),
        ([0, 3, 10], r"offsets\[2\] is 10, beyond the 9 rows"),
        ([0, -1, 2], r"offsets\[1\] is -1, below the 0 before it"),
    ],
)
def test_offsets_that_break_their_rules_are_refused_at_each_call(offsets, message):
    x, w, right = np.ones((9, 4)), np.ones((2, 4, 5)), np.array([0, 3, 9])
    calls = [
        lambda o: sa.grouped_matmul(x, w, o),
        lambda o: sa.grouped_weights(x, x, o),
        lambda o: sa.grouped_matmul(x, w, o, out=np.zeros((9, 5))),
    ]
    if torch is not None:
        tx, tw = torch.from_numpy(x), torch.from_numpy(w)
        calls += [
            lambda o: sa.grouped_matmul(tx, tw, torch.from_numpy(o)),
            lambda o: sa.grouped_matmul(tx.clone().requires_grad_(), tw, torch.from_numpy(o)),
            lambda o: torch.ops.sparse_autotune.grouped_weights(tx, tx, torch.from_numpy(o)),
        ]
    for call in calls:
        for _ in range(2):
            with pytest.raises(sa.ArgumentError, match=message) as found:
                call(np.array(offsets))
            assert found.value.status == "SAT_BAD_ROW_PTR"
            call(right)


@pytest.mark.parametrize(
    "words, error, message",
    [
        ({"x": np.ones(4)}, ValueError, "x has 1 dimensions; expected 2"),
        ({"w": np.ones((4, 5))}, ValueError, "w has 2 dimensions; expected 3"),
        ({"w": np.ones((2, 3, 5))}, ValueError, "x has 4 columns and w matrices of 3 rows"),
        ({"w": np.ones((2, 4, 5), np.float32)}, TypeError, "w has dtype float32 and x float64"),
        ({"x": np.ones((9, 4), np.int64)}, TypeError, "x has dtype int64"),
        ({"offsets": np.array([0, 1, 2, 3])}, ValueError, "offsets has 4 entries; expected 3, one more than"),
        ({"offsets": np.array([[0, 1, 2]])}, ValueError, "offsets has 2 dimensions; expected 1"),
        ({"offsets": np.array([0.0, 1, 2])}, TypeError, "offsets has dtype float64; expected int32 or int64"),
        ({"offsets": np.array([0, 1, 2], np.uint8)}, TypeError, "offsets has dtype uint8"),
        ({"offsets": np.array([0, 1, 2], ">i8")}, TypeError, "offsets has dtype >i8"),
        ({"bias": np.ones(5)}, ValueError, r"bias has shape \(5,\); expected \(2, 5\)"),
        ({"bias": np.ones((2, 5), np.float32)}, TypeError, "bias has dtype float32; expected float64"),
        ({"activation": "tanh"}, ValueError, "activation is 'tanh'"),
        ({"out": np.ones((9, 4))}, ValueError, r"out has shape \(9, 4\); expected \(9, 5\)"),
        ({"out": np.ones((9, 5), np.float32)}, TypeError, "out has dtype float32; expected float64"),
        ({"beta": 1.0}, ValueError, "beta is 1.0 without out"),
        ({"out_dtype": "float32"}, TypeError, "out_dtype has dtype float32; expected float64"),
    ],
)
def test_what_is_wrong_is_named(words, error, message):
    right = {"x": np.ones((9, 4)), "w": np.ones((2, 4, 5)), "offsets": np.array([0, 3, 9])}
    sa.grouped_matmul(**right)
    with pytest.raises(error, match=message):
        sa.grouped_matmul(**{**right, **words})


def test_what_is_wrong_with_the_operands_of_weights_is_named():
    x = np.ones((9, 4))
    with pytest.raises(ValueError, match="x has 9 rows and z 8; expected as many"):
        sa.grouped_weights(x, np.ones((8, 2)), np.array([0, 9]))
    with pytest.raises(ValueError, match="offsets has no entries"):
        sa.grouped_weights(x, x, np.zeros(0, np.int64))
    with pytest.raises(ValueError, match="out at .* overlaps x"):
        sa.grouped_weights(x, x, np.array([0, 9]), out=np.lib.stride_tricks.as_strided(x, (1, 4, 4)))


def test_a_race_is_checked_and_a_tuned_problem_is_served_from_the_cache(tmp_path):
    rng = np.random.default_rng(0)
    x, w = (
        rng.standard_normal((50, 24)).astype(np.float32),
        rng.standard_normal((3, 24, 16)).astype(np.float32),
    )
    offsets = np.array([0, 10, 20, 50])
    with sa.set_effort("quick"):
        race = sa.benchmark(sa.grouped_matmul, x, w, offsets, activation="silu")
        assert race.best.verdict == "ok" and "wrong" not in {r.verdict for r in race}
        assert race.problem["op"] == "grouped" and race.problem["groups"] == 3
        assert "3 groups" in str(race)
        assert sa.benchmark(sa.grouped_weights, x, x, offsets).problem["op"] == "grouped-weights"
    (tmp_path / "race.json").write_text(json.dumps(race.as_dict()))
    assert "grouped" in report.page(report.load(tmp_path / "race.json"))
    facts = sa.tune(sa.grouped_matmul, x, w, offsets, gradients=True, effort="quick")
    assert len(facts) == 3 and all(f["verified"] for f in facts)
    again = sa.tune(sa.grouped_matmul, x, w, offsets, gradients=True, effort="quick")
    assert all(f["cached"] and not f["tuned"] for f in again)


NOTED = """
import numpy as np, sparse_autotune as sa
from sparse_autotune import _untuned
x = np.ones((50, 24), np.float32)
w = np.ones((3, 16, 24), np.float32).transpose(0, 2, 1)
with sa.set_effort("cached"):
    sa.grouped_matmul(x, w, [0, 10, 20, 50], bias=np.ones((3, 16), np.float32), activation="silu")
    sa.grouped_weights(x, x, np.array([0, 10, 50], np.int32))
notes = sa.cache.untuned()
assert len(notes) == 2
for key, text in notes.items():
    race = _untuned.tune("cpu", "quick", key, text)
    assert race.problem["key"] == key and race.best is not None, (race.problem, key)
assert not sa.cache.untuned()
"""


def test_what_was_noted_is_tuned_later(tmp_path):
    run = run_program(NOTED, SPARSE_AUTOTUNE_CACHE=str(tmp_path))
    assert run.returncode == 0, run.stderr


def test_threads_may_call_at_the_same_time():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((60, 16)), rng.standard_normal((4, 16, 8))
    wrong = []

    def work(number):
        offsets = np.array([0, number, 20, 30, 50 + number])
        for _ in range(30):
            if not np.allclose(sa.grouped_matmul(x, w, offsets), product(x, w, offsets)):
                wrong.append(number)

    in_threads(4, work)
    assert not wrong


def test_plans_are_kept_for_so_many_sizes_only():
    for n in range(1, _grouped.MOST_SIZES + 20):
        _grouped.plans_of(7, 1, n)
    assert len(_grouped._plans) <= _grouped.MOST_SIZES
    x, w = np.ones((3, 1)), np.ones((7, 1, 1))
    assert (sa.grouped_matmul(x, w, np.array([0, 0, 0, 1, 1, 1, 2, 3])) == 1).all()


# ---- torch ----


def operands(dtype, rows=50, k=24, n=16, device="cpu"):
    """x, weights as layers store them, bias, and offsets with an empty group and rows behind the last."""
    torch.manual_seed(0)
    x = torch.randn(rows, k, dtype=dtype, device=device)
    stored = torch.randn(4, n, k, dtype=dtype, device=device)
    bias = torch.randn(4, n, dtype=dtype, device=device)
    return x, stored, bias, torch.tensor([0, 10, 10, 31, rows - 5], device=device)


@needs_torch
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_results_and_gradients_are_those_of_a_loop(device, dtype, activation):
    x, stored, bias, offsets = operands(getattr(torch, dtype), device=device)
    leaves = [t.requires_grad_() for t in (x, stored, bias)]
    got = sa.grouped_matmul(x, stored.transpose(1, 2), offsets, bias=bias, activation=activation, alpha=0.5)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    wanted = torch_product(0.5 * exact[0], exact[1].transpose(1, 2), offsets, exact[2])
    wanted = wanted if activation is None else getattr(torch.nn.functional, activation)(wanted)
    tensors_close(got, wanted)
    grad = torch.randn_like(got)
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, grad), torch.autograd.grad(wanted, exact, grad.double())
    ):
        assert mine.dtype == x.dtype
        tensors_close(mine / 8, theirs / 8)
    with torch.no_grad():
        for _ in range(3):
            again = sa.grouped_matmul(
                x, stored.transpose(1, 2), offsets, bias=bias, activation=activation, alpha=0.5
            )
            assert not again.requires_grad
            tensors_close(again, wanted)


@needs_torch
@pytest.mark.parametrize("through", ["package", "operators"])
def test_gradients_are_right_twice(through):
    x, stored, bias, offsets = operands(torch.float64, 12, 3, 4)
    offsets = torch.tensor([0, 3, 3, 7, 10])
    z = torch.randn(12, 4, dtype=torch.float64)
    for t in (x, stored, bias, z):
        t.requires_grad_()
    operators = torch.ops.sparse_autotune

    def matmul(x, w, bias):
        w = w.transpose(1, 2)
        if through == "package":
            return sa.grouped_matmul(x, w, offsets, bias=bias, alpha=0.5)
        return operators.grouped_matmul(x, w, offsets, bias, "none", 0.5)

    def weights(x, z):
        if through == "package":
            return sa.grouped_weights(x, z, offsets, alpha=0.5)
        return operators.grouped_weights(x, z, offsets, 0.5)

    assert torch.autograd.gradcheck(matmul, (x, stored, bias))
    assert torch.autograd.gradgradcheck(matmul, (x, stored, bias))
    assert torch.autograd.gradcheck(weights, (x, z))
    assert torch.autograd.gradgradcheck(weights, (x, z))


@needs_torch
@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_operators_keep_torchs_rules(activation):
    x, stored, bias, _ = operands(torch.float64, 20, 6, 5)
    offsets, leaves = torch.tensor([0, 4, 4, 11, 17]), [t.requires_grad_() for t in (x, stored, bias)]
    operators = torch.ops.sparse_autotune
    for some in (bias, None):
        torch.library.opcheck(
            operators.grouped_matmul, (x, stored.transpose(1, 2), offsets, some, activation, 0.5)
        )
    torch.library.opcheck(operators.grouped_weights, (x, torch.randn(20, 3).double(), offsets))

    def fused(x, w, bias):
        return operators.grouped_matmul(x, w.transpose(1, 2), offsets, bias, activation)

    assert torch.autograd.gradcheck(fused, leaves)


@needs_torch
@pytest.mark.parametrize("wanted", [("x",), ("w",), ("bias",), ("x", "bias")])
def test_only_gradients_that_are_asked_for_are_computed(wanted):
    x, stored, bias, offsets = operands(torch.float32)
    given = {"x": x, "w": stored, "bias": bias}
    for name in wanted:
        given[name].requires_grad_()
    sa.grouped_matmul(x, stored.transpose(1, 2), offsets, bias=bias).sum().backward()
    for name, t in given.items():
        assert (t.grad is not None) == (name in wanted)


@needs_torch
def test_arrays_may_have_offsets_of_torchs():
    x, stored, _, offsets = operands(torch.float32)
    for _ in range(2):
        got = sa.grouped_matmul(x.numpy(), stored.mT.numpy(), offsets)
        assert type(got) is np.ndarray
        close(got, torch_product(x, stored.mT, offsets))
        close(sa.grouped_weights(x.numpy(), x.numpy(), offsets), weight_sums(x, x, offsets.tolist()))


@needs_torch
def test_ends_as_torchs_own_grouped_product_has_them_give_its_result():
    x, stored, _, offsets = operands(torch.bfloat16, 64, 32, 32)
    offsets = torch.tensor([0, 16, 16, 48, 64], dtype=torch.int32)
    theirs = torch._grouped_mm(x, stored.transpose(1, 2), offs=offsets[1:])
    tensors_close(sa.grouped_matmul(x, stored.transpose(1, 2), offsets[1:]), theirs)


@needs_torch
def test_torch_compile_traces_without_a_break():
    x, stored, bias, offsets = operands(torch.float64)
    leaves = [t.requires_grad_() for t in (x, stored, bias)]

    def program(x, w, offsets, bias):
        y = sa.grouped_matmul(x, w.transpose(1, 2), offsets, bias=bias, activation="silu")
        return y.square().sum() + sa.grouped_weights(x, y, offsets).sum()

    compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
    got, wanted = compiled(x, stored, offsets, bias), program(x, stored, offsets, bias)
    torch.testing.assert_close(got, wanted)
    for mine, theirs in zip(torch.autograd.grad(got, leaves), torch.autograd.grad(wanted, leaves)):
        torch.testing.assert_close(mine, theirs)
    ends = torch.compile(lambda x, w, o: sa.grouped_matmul(x, w.transpose(1, 2), o), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(
            ends(x, stored, offsets[1:]), sa.grouped_matmul(x, stored.transpose(1, 2), offsets)
        )


@needs_torch
def test_torch_compile_takes_out_and_beta():
    x, stored, bias, offsets = operands(torch.float64)
    w, out = stored.transpose(1, 2), torch.randn(50, 16, dtype=torch.float64)
    mine, theirs = out.clone(), out.clone()

    @torch.compile(fullgraph=True, backend="aot_eager")
    def program(out):
        return sa.grouped_matmul(x, w, offsets, bias=bias, activation="relu", out=out, beta=0.5)

    program(mine)
    sa.grouped_matmul(x, w, offsets, bias=bias, activation="relu", out=theirs, beta=0.5)
    torch.testing.assert_close(mine, theirs)


@needs_torch
def test_autocast_casts_all_operands():
    x, stored, bias, offsets = operands(torch.float32)
    leaves = [t.requires_grad_() for t in (x, stored, bias)]
    w = stored.transpose(1, 2)
    wanted = torch_product(x, w, offsets, bias)
    with torch.autocast("cpu", torch.bfloat16):
        for got in (
            sa.grouped_matmul(x, w, offsets, bias=bias),
            torch.ops.sparse_autotune.grouped_matmul(x, w, offsets, bias),
        ):
            assert got.dtype == torch.bfloat16
            tensors_close(got, wanted)
            assert all(g.dtype == torch.float32 for g in torch.autograd.grad(got.float().sum(), leaves))
        assert sa.grouped_weights(x.detach(), x.detach(), offsets).dtype == torch.bfloat16


@needs_torch
def test_vmap_computes_each_item():
    x, stored, bias, offsets = operands(torch.float64)
    w, many = stored.transpose(1, 2), torch.randn(3, 50, 24, dtype=torch.float64)
    got = torch.vmap(lambda x: sa.grouped_matmul(x, w, offsets, bias=bias))(many)
    torch.testing.assert_close(got, torch.stack([torch_product(x, w, offsets, bias) for x in many]))
    got = torch.vmap(lambda x: sa.grouped_weights(x, many[0], offsets))(many)
    torch.testing.assert_close(got, torch.stack([sa.grouped_weights(x, many[0], offsets) for x in many]))


@needs_torch
def test_a_usual_call_takes_the_fast_path():
    x, stored, _, offsets = operands(torch.float32)
    w = stored.transpose(1, 2)
    if _grouped._quick._fast is None:
        pytest.skip("there is no fast path here")
    sa.grouped_matmul(x, w, offsets)
    full, _grouped.forward = _grouped.forward, None  # which the full path would call
    try:
        tensors_close(sa.grouped_matmul(x, w, offsets), torch_product(x, w, offsets))
        arrays = x.numpy(), w.numpy(), offsets.numpy()
        _grouped.forward = full
        sa.grouped_matmul(*arrays)
        _grouped.forward = None
        close(sa.grouped_matmul(*arrays), torch_product(x, w, offsets))
    finally:
        _grouped.forward = full


@needs_torch
def test_tensors_on_meta_have_shapes_alone():
    x, w = torch.empty(9, 4, device="meta"), torch.empty(2, 4, 5, device="meta")
    offsets = torch.empty(3, dtype=torch.int64, device="meta")
    assert sa.grouped_matmul(x, w, offsets).shape == (9, 5)
    assert sa.grouped_weights(x, x, offsets).shape == (2, 4, 4)


@needs_torch
def test_offsets_that_change_before_the_backward_pass_are_noticed():
    x, stored, _, offsets = operands(torch.float32)
    y = sa.grouped_matmul(x.requires_grad_(), stored.transpose(1, 2), offsets)
    offsets[1] = 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@needs_torch
def test_what_torch_cannot_do_is_refused():
    x, stored, bias, offsets = operands(torch.float32)
    w = stored.transpose(1, 2)
    with pytest.raises(TypeError, match="w is a ndarray; expected a torch tensor, as x is"):
        sa.grouped_matmul(x, w.numpy(), offsets)
    with pytest.raises(TypeError, match="offsets is a ndarray; expected a torch tensor, as x is"):
        sa.grouped_matmul(x, w, offsets.numpy())
    with pytest.raises(TypeError, match="offsets is a list; expected a torch tensor, as x is"):
        sa.grouped_weights(x.clone().requires_grad_(), x, [0, 50])
    with pytest.raises(RuntimeError, match="out is given, and x requires grad"):
        sa.grouped_matmul(x.clone().requires_grad_(), w, offsets, out=torch.empty(50, 16))
    with pytest.raises(RuntimeError, match="w requires grad, and x is a ndarray"):
        sa.grouped_matmul(x.numpy(), stored.clone().requires_grad_().transpose(1, 2), offsets)
    with pytest.raises(NotImplementedError, match="forward-mode AD"):
        torch.func.jvp(lambda x: sa.grouped_matmul(x, w, offsets), (x,), (x,))
    with pytest.raises(ValueError, match="offsets has 7 entries"):
        sa.grouped_matmul(x, w, torch.arange(7))


@needs_torch
@pytest.mark.cuda
@pytest.mark.parametrize("offset_type", ["int32", "int64"])
def test_a_captured_product_takes_the_offsets_of_each_replay(offset_type):
    rows, groups = 700, 9
    x = torch.randn(rows, 136, device="cuda", dtype=torch.float16)
    w = torch.randn(groups, 136, 264, device="cuda", dtype=torch.float16)
    offsets = torch.linspace(0, rows, groups + 1, device="cuda").to(getattr(torch, offset_type))
    sa.tune(sa.grouped_matmul, x, w, offsets)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            sa.grouped_matmul(x, w, offsets), sa.grouped_weights(x, x, offsets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        y, sums = sa.grouped_matmul(x, w, offsets), sa.grouped_weights(x, x, offsets)
    for _ in range(50):
        inner = torch.randint(0, rows + 1, (groups,), device="cuda").sort().values
        offsets[1:] = inner.to(offsets.dtype)
        x.copy_(torch.randn(x.shape, device="cuda"))
        y.fill_(float("nan")), sums.fill_(float("nan"))
        graph.replay()
        ends = offsets.tolist()
        wanted = torch_product(x.double(), w.double(), offsets)
        tensors_close(y, wanted)
        outer = torch.stack([x[i:j].double().T @ x[i:j].double() for i, j in zip(ends, ends[1:])])
        tensors_close(sums / 16, outer / 16)


@needs_torch
@pytest.mark.cuda
def test_on_a_gpu_groups_are_empty_from_the_first_fault_on():
    x, stored, _, _ = operands(torch.float32, device="cuda")
    for broken in ([0, 10, 5, 31, 40], [0, 10, 60, 61, 62], [0, 10, -1, 31, 40]):
        offsets = torch.tensor(broken, device="cuda")
        y = sa.grouped_matmul(x, stored.transpose(1, 2), offsets)
        wanted = torch_product(x, stored.transpose(1, 2), torch.tensor([0, 10, 10, 10, 10]))
        tensors_close(y, wanted)
