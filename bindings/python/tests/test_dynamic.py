"""Matrices whose indices change: products, gradients and faults against loops and dense products; what is
asked of the library; and the choice of blocks."""

import copy
import pickle

import numpy as np
import pytest
from conftest import OnlyDlpack, in_threads, run_program, tensors_close

import sparse_autotune as sa
from sparse_autotune import _abi, _dynamic, _quick

torch = pytest.importorskip("torch")

STATUSES = "SAT_BAD_ROW_PTR", "SAT_COLUMN_RANGE", "SAT_COLUMN_ORDER"


class Case:
    """Index arrays of one kind, masks for them, and what these mean."""

    def __init__(self, rng, dtype=torch.float32, grid=None, block=None, capacity=None, index=None):
        self.rng, self.dtype = rng, dtype
        self.grid = grid or tuple(int(x) for x in rng.integers(1, 9, 2))
        self.block = block or tuple(int(x) for x in rng.choice([1, 2, 3, 4, 8, 16], 2))
        self.shape = tuple(g * b - int(rng.integers(0, b)) for g, b in zip(self.grid, self.block))
        blocks = self.grid[0] * self.grid[1]
        self.capacity = int(rng.integers(1, blocks + 1)) if capacity is None else capacity
        self.index = index or (torch.int32, torch.int64)[int(rng.integers(2))]
        self.row_ptr = torch.zeros(self.grid[0] + 1, dtype=self.index)
        self.col_idx = torch.zeros(self.capacity, dtype=self.index)

    def draw(self, hostile=False):
        """A new mask into the same tensors, and new values for it."""
        rng, (rows, cols) = self.rng, self.grid
        density = rng.choice([0.0, 0.1, 0.5, 1.0])
        kept = rng.random((rows, cols)) < density
        kept.flat[np.flatnonzero(kept)[self.capacity :]] = False
        row_ptr = np.concatenate(([0], np.cumsum(kept.sum(1))))
        col_idx = rng.integers(-3, cols + 3, self.capacity)  # behind the last row: anything
        col_idx[: row_ptr[-1]] = np.nonzero(kept)[1]
        for _ in range(int(rng.integers(1, 4)) if hostile else 0):
            spoilt = row_ptr if rng.random() < 0.4 else col_idx
            spoilt[rng.integers(len(spoilt))] = rng.choice([-1, 0, 1, cols, self.capacity + 1, 2**31 - 1])
        self.row_ptr.copy_(torch.from_numpy(row_ptr))
        self.col_idx.copy_(torch.from_numpy(col_idx))
        return self.understand()

    def understand(self):
        """The row and column of each place, -1 where it is nobody's, and whether anything is wrong."""
        row_ptr, col_idx = self.row_ptr.tolist(), self.col_idx.tolist()
        self.at, self.faulty, broken = [(-1, -1)] * self.capacity, False, False
        for i in range(self.grid[0]):
            begin, end = row_ptr[i], row_ptr[i + 1]
            broken = broken or (i == 0 and begin != 0) or begin < 0 or end < begin or end > self.capacity
            if broken:
                self.faulty = True
                continue
            row = col_idx[begin:end]
            if any(not 0 <= c < self.grid[1] for c in row) or any(a >= b for a, b in zip(row, row[1:])):
                self.faulty = True
                continue
            self.at[begin:end] = [(i, c) for c in row]
        return self

    def values(self):
        """Random ones, with NaN in places that are nobody's, and beyond the matrix."""
        values = torch.from_numpy(self.rng.standard_normal((self.capacity, *self.block))).to(self.dtype)
        for t, at in enumerate(self.at):
            ends = [max(0, min(b, s - i * b)) for b, s, i in zip(self.block, self.shape, at)]
            values[t, ends[0] if at[0] >= 0 else 0 :, :] = torch.nan
            values[t, :, ends[1] if at[0] >= 0 else 0 :] = torch.nan
        return values

    def dense(self, values):
        """Of values; differentiable."""
        (rows, cols), (br, bc) = self.grid, self.block
        tiles = [[values.new_zeros(br, bc)] * cols for _ in range(rows)]
        for t, (i, j) in enumerate(self.at):
            if i >= 0:
                tiles[i][j] = values[t]
        whole = torch.cat([torch.cat(row, 1) for row in tiles])
        nothing = 0 * values.nan_to_num(0.0).sum()  # also an empty mask has a gradient
        return whole[: self.shape[0], : self.shape[1]].nan_to_num(0.0) + nothing

    def random(self, *shape):
        return torch.from_numpy(self.rng.standard_normal(shape)).to(self.dtype)

    def matrix(self, values, **words):
        return sa.BsrMatrix.dynamic(self.row_ptr, self.col_idx, values, self.shape, **words)

    def samples(self, whole):
        """The blocks of a dense matrix at their places; zeros elsewhere."""
        (rows, cols), (br, bc) = self.shape, self.block
        found = torch.zeros(self.capacity, br, bc, dtype=torch.float64)
        for t, (i, j) in enumerate(self.at):
            if i >= 0:
                part = whole[i * br : min((i + 1) * br, rows), j * bc : min((j + 1) * bc, cols)].double()
                found[t, : part.shape[0], : part.shape[1]] = part
        return found


@pytest.fixture
def rng():
    return np.random.default_rng()


def products(case, a, dense, n):
    """Pairs of a product, as a function, and what it must give."""
    (rows, cols), d = case.shape, dense.double()
    b, x = case.random(cols, n), case.random(n, rows)
    bt, xt, v = case.random(rows, n), case.random(n, cols), case.random(cols)
    return [
        (lambda: a @ b, d @ b.double()),
        (lambda: a.T @ bt, d.T @ bt.double()),
        (lambda: x @ a, x.double() @ d),
        (lambda: xt @ a.T, xt.double() @ d.T),
        (lambda: a @ v, d @ v.double()),
        (lambda: sa.matmul(a, b, alpha=0.5, bias=torch.ones(rows, dtype=case.dtype), activation="relu"),
         (0.5 * d @ b.double() + 1).relu()),
    ]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_products_follow_a_mask_that_changes_in_place(rng, dtype):
    for _ in range(12):
        case = Case(rng, dtype)
        values = torch.empty(case.capacity, *case.block, dtype=dtype)
        a = case.matrix(values)
        for _ in range(5):
            case.draw()
            values.copy_(case.values())
            for product, expected in products(case, a, case.dense(values), int(rng.integers(1, 20))):
                tensors_close(product(), expected)
            x, y = case.random(case.shape[0], 5), case.random(5, case.shape[1])
            expected = case.samples(x.double() @ y.double())
            tensors_close(sa.sampled_matmul(x, y, a).values, expected)
            tensors_close(sa.sampled_matmul(y.T, x.T, a.T).values, expected)
            tensors_close(a.to_dense(), case.dense(values).double())


def converted(case, values, kind):
    """The same indices and values, in the arrays of another maker."""
    torch_index, host_index = (case.row_ptr, case.col_idx), (case.row_ptr.numpy(), case.col_idx.numpy())
    return {
        "numpy": (*host_index, values.numpy()),
        "numpy indices of a tensor": (*host_index, values),
        "tensors as indices of an array": (*torch_index, values.numpy()),
        "dlpack": (*map(OnlyDlpack, torch_index), values),
        "dlpack of numpy": (*map(OnlyDlpack, host_index), values.numpy()),
        "all dlpack": (*map(OnlyDlpack, torch_index), OnlyDlpack(values)),
    }[kind]


KINDS = [
    "numpy",
    "numpy indices of a tensor",
    "tensors as indices of an array",
    "dlpack",
    "dlpack of numpy",
    "all dlpack",
]


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_every_maker_are_read_in_place(rng, kind):
    for _ in range(5):
        case = Case(rng)
        values = torch.empty(case.capacity, *case.block)
        a = sa.BsrMatrix.dynamic(*converted(case, values, kind), case.shape)
        for hostile in (False, False, True, False):
            case.draw(hostile)
            values.copy_(case.values())
            b, d = case.random(case.shape[1], 7), case.dense(values)
            operand = b if isinstance(a.values, torch.Tensor) else b.numpy()
            x, y = case.random(case.shape[0], 2), case.random(2, case.shape[1])
            if case.faulty:
                with pytest.raises(ValueError):
                    a @ operand
            else:
                tensors_close(torch.as_tensor(a @ operand), d.double() @ b.double())
                c = d @ b
                turned = a.T @ (c if operand is b else c.numpy())
                tensors_close(torch.as_tensor(turned), d.double().T @ c.double())
                expected = case.samples(x.double() @ y.double())
                for pair in ((x, y), (x.numpy(), y.numpy()), (x.clone().requires_grad_(), y)):
                    for _ in range(2):  # by the full path, and by what it left behind
                        got = sa.sampled_matmul(*pair, a).values
                        tensors_close(torch.as_tensor(got).detach(), expected)


def test_faulty_rows_are_empty_and_every_route_says_so(rng):
    faults = 0
    for _ in range(60):
        case = Case(rng)
        case.draw(hostile=True)
        values = case.values()
        a, b, out = (
            case.matrix(values),
            case.random(case.shape[1], 6),
            torch.full((case.shape[0], 6), torch.nan),
        )
        grad = b.clone().requires_grad_()
        x, y = case.random(case.shape[0], 2), case.random(2, case.shape[1])
        operators, index = torch.ops.sparse_autotune, (case.row_ptr, case.col_idx)
        routes = [
            lambda: a @ b,
            lambda: sa.matmul(a, b, out=out),
            lambda: sa.matmul(a, grad),
            lambda: sa.BsrMatrix.dynamic(*(i.numpy() for i in index), values.numpy(), case.shape) @ b.numpy(),
            lambda: operators.dynamic_matmul(values, *index, b, None, case.shape),
            lambda: operators.dynamic_sampled(x, y, *index, case.shape, case.block),
            lambda: sa.sampled_matmul(x, y, a),
        ]  # fmt: skip
        faults += case.faulty
        for route in routes * 2:
            if not case.faulty:
                route()
                continue
            with pytest.raises(sa.ArgumentError) as caught:
                route()
            assert caught.value.status in STATUSES and str(caught.value).startswith(("row_ptr[", "col_idx["))
            a.check_indices()  # each fault is returned once
        if case.faulty:
            with pytest.raises(ValueError):
                a.to_static()
        tensors_close(out, case.dense(values).double() @ b.double())
    assert faults > 20


def test_sampled_products_go_into_a_matrix_and_clear_what_no_row_has(rng):
    for _ in range(10):
        case = Case(rng).draw()
        x, y = case.random(case.shape[0], 3), case.random(3, case.shape[1])
        before = torch.ones(case.capacity, *case.block)
        out = case.matrix(before.clone())
        assert sa.sampled_matmul(x, y, out, beta=2.0, out=out) is out
        expected = case.samples(x.double() @ y.double() + 2)
        tensors_close(out.values, expected)
    with pytest.raises(ValueError, match="another pattern"):
        other = sa.BsrMatrix.dynamic(case.row_ptr.clone(), case.col_idx, before, case.shape)
        sa.sampled_matmul(x, y, out, out=other)
    static = sa.BsrMatrix.from_dense(torch.ones(case.shape), block=case.block)
    with pytest.raises(ValueError, match="another pattern"):
        sa.sampled_matmul(x, y, out, out=static)


# ---- gradients ----


def gradients(case, values, product, *operands):
    """Of a random weighted sum of the product, to values and operands."""
    leaves = [t.detach().clone().requires_grad_() for t in (values, *operands)]
    result = product(*leaves)
    weights = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
    return torch.autograd.grad((result * weights).sum(), leaves)


def test_gradients_are_those_of_the_dense_matrix_and_zero_where_nothing_is_stored(rng):
    for _ in range(12):
        case = Case(rng, torch.float64).draw()
        values = case.values()
        b, x = case.random(3, case.shape[1], 4), case.random(2, 3, case.shape[0])
        bias = case.random(case.shape[0])
        index = case.row_ptr, case.col_idx
        dense_values = values.nan_to_num(0.0)
        calls = [
            (lambda v, b: sa.matmul(case.matrix(v), b), lambda d, b: d @ b, (b,)),
            (lambda v, x: sa.matmul(x, case.matrix(v)), lambda d, x: x @ d, (x,)),
            (lambda v, x: sa.matmul(case.matrix(v).T, x.mT), lambda d, x: d.mT @ x.mT, (x,)),
            (lambda v, b, c: sa.matmul(case.matrix(v), b, bias=c, activation="silu", alpha=2.0),
             lambda d, b, c: torch.nn.functional.silu(2 * d @ b + c[:, None]), (b, bias)),
            (lambda v, b, c: torch.ops.sparse_autotune.dynamic_matmul(
                v, *index, b, c, case.shape, activation="gelu", density=0.5),
             lambda d, b, c: torch.nn.functional.gelu(d @ b + c[:, None]), (b, bias)),
        ]  # fmt: skip
        for product, dense, operands in calls:
            got = gradients(case, values, product, *operands)
            expected = gradients(case, dense_values, lambda v, *o, f=dense: f(case.dense(v), *o), *operands)
            for g, e in zip(got, expected):
                tensors_close(g, e)


def test_gradients_of_sampled_products_and_second_ones(rng):
    case = Case(rng, torch.float64, grid=(3, 4), block=(2, 3), capacity=9).draw()
    x, y = (t.requires_grad_() for t in (case.random(case.shape[0], 3), case.random(3, case.shape[1])))
    values = case.values().nan_to_num(0.5).requires_grad_()
    b = case.random(case.shape[1], 2).requires_grad_()
    index = case.row_ptr, case.col_idx
    operators = torch.ops.sparse_autotune
    for f, leaves in (
        (lambda x, y: sa.sampled_matmul(x, y, case.matrix(values.detach())).values, (x, y)),
        (lambda x, y: operators.dynamic_sampled(x, y, *index, case.shape, case.block, 2.0), (x, y)),
        (lambda v, b: sa.matmul(case.matrix(v), b), (values, b)),
        (lambda v, b: operators.dynamic_matmul(v, *index, b, None, case.shape), (values, b)),
    ):
        assert torch.autograd.gradcheck(f, leaves) and torch.autograd.gradgradcheck(f, leaves)


@pytest.mark.parametrize("operator", [False, True])
def test_indices_that_change_before_the_backward_pass_are_noticed(rng, operator):
    case = Case(rng, grid=(4, 4), block=(4, 4), capacity=8).draw()
    values, b = case.values().requires_grad_(), case.random(case.shape[1], 4)
    if operator:
        index = case.row_ptr, case.col_idx
        c = torch.ops.sparse_autotune.dynamic_matmul(values, *index, b, None, case.shape)
    else:
        c = case.matrix(values) @ b
    case.draw()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


def test_a_checkpoint_recomputes_with_indices_of_its_own(rng):
    case = Case(rng, torch.float64, grid=(4, 4), block=(4, 4), capacity=8)
    values, b = case.draw().values().nan_to_num(0.0).requires_grad_(), case.random(case.shape[1], 4)

    def step(v):
        fresh = case.row_ptr.clone(), case.col_idx.clone()
        return (sa.BsrMatrix.dynamic(*fresh, v, case.shape) @ b).square().sum()

    torch.utils.checkpoint.checkpoint(step, values, use_reentrant=False).backward()
    got, values.grad = values.grad, None
    (case.dense(values) @ b).square().sum().backward()
    tensors_close(got, values.grad)


# ---- what is asked of the library ----


class Asked:
    """The library, with a list of what Python asks of it. The fast path runs plans without Python."""

    def __init__(self, lib):
        self.lib, self.names = lib, []

    def __getattr__(self, name):
        self.names.append(name)
        return getattr(self.lib, name)


@pytest.fixture
def asked(monkeypatch):
    lib = Asked(_abi.lib)
    monkeypatch.setattr(_abi, "lib", lib)
    return lib.names


def test_new_indices_at_each_step_run_the_plan_that_there_is(rng, asked):
    """No pattern, plan, copy or wait for a new mask: not in new tensors, and not for gradients."""
    case = Case(rng, grid=(6, 6), block=(8, 8), capacity=20)
    values, b = torch.randn(20, 8, 8, requires_grad=True), case.random(case.shape[1], 16)
    expected = None
    for step in range(12):
        case.draw()
        index = case.row_ptr.clone(), case.col_idx.clone()  # the allocator gives the last ones' memory
        a = sa.BsrMatrix.dynamic(*index, values, case.shape)
        c = a @ b
        c.square().sum().backward()
        expected = case.dense(values) @ b
        tensors_close(c, expected.double())
        with torch.no_grad():
            tensors_close(a @ b, expected.double())
            torch.ops.sparse_autotune.dynamic_matmul(values, *index, b, None, case.shape)
        del a, c, index
        if step == 1:
            del asked[:]
    assert set(asked) <= {"sat_run"}


def test_matrices_of_one_kind_are_tuned_once(rng, asked):
    a, b = (Case(rng, grid=(8, 8), block=(4, 4), capacity=30, index=torch.int64) for _ in range(2))
    b.shape = a.shape
    x = torch.randn(a.shape[1], 8)
    with sa.set_effort("quick"):
        for case in (a, b):
            values = case.draw().values()
            tensors_close(case.matrix(values) @ x, case.dense(values).double() @ x.double())
    assert asked.count("sat_plan_create") == 1 and asked.count("sat_pattern_create_dynamic") == 1
    race = sa.benchmark(b.matrix(values), x, fresh=False)
    assert " dynamic" in race.problem["key"] and race.problem["stored_blocks"] == 30
    assert [p["verified"] for p in sa.tune(b.matrix(values), 8, gradients=True, effort="quick")] == [True] * 3
    hinted = b.matrix(values, density=0.1, skew=1.5)
    assert hinted._pattern.kind is not b.matrix(values)._pattern.kind
    assert sa.benchmark(hinted, x, only="cpu_matmul_any_any_c_reference").problem["density"] < 0.2


NOTED = """
import numpy as np, sparse_autotune as sa
from sparse_autotune import _untuned
row_ptr, col_idx = np.arange(17, dtype=np.int32) * 2, np.zeros(40, np.int32)
col_idx[:32] = np.arange(32) % 2
with sa.set_effort("cached"):
    for density in (None, 0.05):
        a = sa.BsrMatrix.dynamic(row_ptr, col_idx, np.ones((40, 8, 4)), (128, 60), density=density)
        a @ np.ones((60, 3))
        a.T @ np.ones((128, 5))
notes = sa.cache.untuned()
assert len(notes) == 4 and all(" dynamic " in text for text in notes.values()), notes
for key, text in notes.items():
    race = _untuned.tune("cpu", "quick", key, text)
    assert race.problem["key"] == key and race.best is not None, (race.problem, key)
assert not sa.cache.untuned()
"""


def test_what_was_noted_is_tuned_later(tmp_path):
    run = run_program(NOTED, SPARSE_AUTOTUNE_CACHE=str(tmp_path))
    assert run.returncode == 0, run.stderr


def test_threads_have_plans_of_their_own(rng):
    case = Case(rng, grid=(8, 8), block=(8, 8), capacity=40)
    wrong = []

    def work(number):
        mine = Case(np.random.default_rng(number), grid=(8, 8), block=(8, 8), capacity=40)
        mine.shape = case.shape
        for step in range(30):
            mine.draw(hostile=step % 3 == 2)
            values, b = mine.values(), torch.randn(mine.shape[1], 8)
            try:
                c = mine.matrix(values) @ b
                ok = not mine.faulty and torch.allclose(c, mine.dense(values) @ b, rtol=1e-3, atol=1e-3)
            except ValueError:
                ok = mine.faulty
            wrong.extend([] if ok else [(number, step)])

    in_threads(4, work)
    assert not wrong


@pytest.mark.skipif(_quick._fast is None, reason="the extension was not built")
@pytest.mark.parametrize("of", ["torch", "numpy"])
def test_the_fast_path_serves_and_reports_a_fault_at_once(rng, asked, of):
    """A fault is returned once: on a GPU another run would not show it."""
    case = Case(rng, grid=(4, 4), block=(4, 4), capacity=8).draw()
    arrays = case.row_ptr, case.col_idx, torch.randn(8, 4, 4), torch.randn(case.shape[1], 3)
    *index, values, b = arrays if of == "torch" else (t.numpy() for t in arrays)
    a = sa.BsrMatrix.dynamic(*index, values, case.shape)
    out = a @ b
    sa.matmul(a, b, out=out)
    del asked[:]
    a @ b
    sa.matmul(a, b, out=out)
    assert "sat_run" not in asked
    case.row_ptr[0] = 1
    for call in (lambda: a @ b, lambda: sa.matmul(a, b, out=out)):
        with pytest.raises(ValueError, match=r"row_ptr\[0\] is 1; expected 0"):
            call()
    assert "sat_run" not in asked


def test_an_array_that_was_resized_is_refused(rng):
    case = Case(rng, grid=(4, 4), block=(2, 2), capacity=6).draw()
    a, b = case.matrix(torch.randn(6, 2, 2)), torch.randn(case.shape[1], 3)
    a @ b
    a @ b
    index = a.col_idx
    index.resize_(12)
    with pytest.raises(ValueError, match=r"col_idx has 12 entries; expected 6"):
        a @ b
    index.resize_(6)
    a @ b
    a.row_ptr.data = a.row_ptr.to(torch.int64 if case.index == torch.int32 else torch.int32)
    with pytest.raises(TypeError, match="expected one dtype"):
        a @ b


def test_plans_of_the_oldest_kind_go(monkeypatch):
    monkeypatch.setattr(_dynamic, "MOST_KINDS", 3)
    monkeypatch.setattr(_dynamic, "_kinds", {})
    kept = []
    for n in range(1, 8):
        index = torch.arange(n + 1), torch.arange(n)
        kept.append(sa.BsrMatrix.dynamic(*index, torch.ones(n, 1, 1), (n, n)))
        for a in kept:
            assert torch.equal(a @ torch.ones(a.shape[1]), torch.ones(a.shape[0]))
    assert len(_dynamic._kinds) == 3


# ---- what is around a call ----


def test_compiled_functions_make_and_multiply_without_a_break(rng):
    case = Case(rng, torch.float64, grid=(4, 4), block=(4, 4), capacity=8)
    values, b = torch.randn(8, 4, 4, dtype=torch.float64), case.random(case.shape[1], 4)
    outside = case.matrix(values)

    def step(row_ptr, col_idx, values, b):
        a = sa.BsrMatrix.dynamic(row_ptr, col_idx, values, case.shape, density=0.5)
        return sa.matmul(a, b, activation="gelu").sum() + sa.matmul(outside, b).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        case.draw()
        leaves = values.clone().requires_grad_(), b.clone().requires_grad_()
        loss = compiled(case.row_ptr, case.col_idx, *leaves)
        got = torch.autograd.grad(loss, leaves)
        d = case.dense(leaves[0])
        expected = torch.nn.functional.gelu(d @ leaves[1]).sum()
        expected = expected + (case.dense(values) @ leaves[1]).square().sum()
        tensors_close(loss, expected)
        for g, e in zip(got, torch.autograd.grad(expected, leaves)):
            tensors_close(g, e)


def test_the_operators_are_what_torch_expects(rng):
    case = Case(rng, torch.float64, grid=(3, 4), block=(2, 3), capacity=7).draw()
    values = case.values().nan_to_num(0.0).requires_grad_()
    index, b = (case.row_ptr, case.col_idx), case.random(case.shape[1], 3).requires_grad_()
    x, y = (t.requires_grad_() for t in (case.random(case.shape[0], 2), case.random(2, case.shape[1])))
    operators = torch.ops.sparse_autotune
    tests = "test_schema", "test_autograd_registration", "test_faketensor"
    torch.library.opcheck(
        operators.dynamic_matmul.default, (values, *index, b, None, list(case.shape)), test_utils=tests
    )
    words = list(case.shape), list(case.block)
    torch.library.opcheck(operators.dynamic_sampled.default, (x, y, *index, *words), test_utils=tests)


def test_vmap_and_autocast(rng):
    case = Case(rng, grid=(3, 3), block=(4, 4), capacity=6).draw()
    values = case.values().nan_to_num(0.0)
    a, d, batch = case.matrix(values), case.dense(values), case.random(5, case.shape[1], 2)
    tensors_close(torch.vmap(lambda b: sa.matmul(a, b))(batch), (d @ batch).double())
    tensors_close(torch.vmap(lambda v: sa.matmul(a, v))(batch[..., 0]), (batch[..., 0] @ d.T).double())
    masks = [(case.draw().row_ptr.clone(), case.col_idx.clone(), case.dense(values)) for _ in range(4)]
    index = [torch.stack(parts) for parts in list(zip(*masks))[:2]]
    product = torch.ops.sparse_autotune.dynamic_matmul
    got = torch.vmap(lambda r, c: product(values, r, c, batch[0], None, case.shape))(*index)
    tensors_close(got, torch.stack([m[2] @ batch[0] for m in masks]).double())
    with torch.autocast("cpu", torch.bfloat16):
        for c in (sa.matmul(a, batch[0]), product(values, *index_of(a), batch[0], None, case.shape)):
            assert c.dtype == torch.bfloat16
            tensors_close(c, case.dense(values).double() @ batch[0].double())


def index_of(a):
    return a.row_ptr, a.col_idx


# ---- what a matrix is ----


def test_copies_and_other_forms(rng):
    case = Case(rng, grid=(4, 5), block=(2, 3), capacity=12)
    case.shape = 8, 15
    values = case.draw().values().nan_to_num(0.0)
    a, d = case.matrix(values), case.dense(values)
    b = case.random(15, 2)
    assert a.is_dynamic and not a.is_frozen and a.stored_blocks == 12 and a.shape == (8, 15)
    assert a.row_ptr is case.row_ptr and a.col_idx is case.col_idx and a.values is values
    assert repr(a) == "BsrMatrix(8x15, float32, block 2x3, up to 12 of 20 blocks (dynamic), torch on cpu)"
    for same in (copy.copy(a), a.T.T, a.detach(), a.with_values(values)):
        assert same.is_dynamic and same.row_ptr is case.row_ptr
    for apart in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert apart.is_dynamic and apart.row_ptr is not case.row_ptr
    assert a.to(dtype="float64").values.dtype == torch.float64 and a.to(dtype="float64").is_dynamic
    still = a.to_static()
    assert not still.is_dynamic and still.to_static() is still
    np.testing.assert_array_equal(a.to_torch().to_dense(), d)
    np.testing.assert_array_equal(a.T.to_scipy().toarray(), d.T)
    assert "<svg" in a._repr_html_()
    stats, turned = a.stats, a.T.stats
    assert stats["density"] == 0.6 and turned["stored_blocks"] == 12
    assert (stats["most_in_a_row"], turned["most_in_a_row"]) == (5, 4)
    layer = sa.SparseLinear.from_matrix(a)
    case.draw()
    tensors_close(apart @ b, (d @ b).double())
    tensors_close(still @ b, (d @ b).double())
    tensors_close(layer(b.T), (d @ b).T.double())
    tensors_close(a @ b, (case.dense(values) @ b).double())
    for refused in (a.freeze, lambda: a.T.contiguous(), lambda: sa.AttentionMask.from_bsr(a)):
        with pytest.raises(NotImplementedError, match="to_static"):
            refused()


def test_no_capacity_and_no_rows():
    empty = torch.zeros(0, dtype=torch.int64)
    a = sa.BsrMatrix.dynamic(torch.zeros(3, dtype=torch.int64), empty, torch.ones(0, 2, 2), (4, 4))
    assert torch.equal(a @ torch.ones(4, 3), torch.zeros(4, 3))
    assert sa.sampled_matmul(torch.ones(4, 1), torch.ones(1, 4), a).values.shape == (0, 2, 2)
    b = sa.BsrMatrix.dynamic(torch.zeros(1, dtype=torch.int64), empty, torch.ones(0, 2, 2), (0, 4))
    assert (b @ torch.ones(4, 3)).shape == (0, 3)
    assert torch.equal(b.T @ torch.ones(0, 3), torch.zeros(4, 3))


def test_wrong_arguments_are_named():
    row_ptr, col_idx, values = torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2, 2, 2)
    right = {"row_ptr": row_ptr, "col_idx": col_idx, "values": values, "shape": (4, 4)}
    sa.BsrMatrix.dynamic(**right)
    for error, words, change in (
        (TypeError, "row_ptr is a list", {"row_ptr": [0, 1, 2]}),
        (TypeError, "col_idx has dtype float32; expected int32 or int64", {"col_idx": col_idx.float()}),
        (TypeError, "row_ptr has dtype int32 and col_idx int64; expected one", {"row_ptr": row_ptr.int()}),
        (ValueError, "row_ptr has 2 entries; expected 3 for 4 rows in blocks of 2", {"row_ptr": row_ptr[:2]}),
        (ValueError, "row_ptr has 2 dimensions", {"row_ptr": row_ptr[None]}),
        (ValueError, "col_idx has gaps", {"col_idx": torch.arange(4)[::2]}),
        (
            ValueError,
            "col_idx has 2 entries; expected 3, one for each block",
            {"values": torch.ones(3, 2, 2)},
        ),
        (ValueError, "values has 2 dimensions", {"values": torch.ones(2, 2)}),
        (ValueError, "values has blocks of 0x2", {"values": torch.ones(2, 0, 2)}),
        (TypeError, "values has dtype int64", {"values": torch.ones(2, 2, 2).long()}),
        (ValueError, "at most the 2 x 2 blocks", {"col_idx": torch.arange(5), "values": torch.ones(5, 2, 2)}),
        (TypeError, "shape is 4", {"shape": 4}),
        (ValueError, "row_ptr is on meta", {"row_ptr": row_ptr.to("meta")}),
        (ValueError, "density is 1.5; expected 0 to 1", {"density": 1.5}),
        (TypeError, "density is 'much'", {"density": "much"}),
        (ValueError, "skew is 0.5; expected a number from 1 on", {"skew": 0.5}),
        (ValueError, "skew is inf", {"skew": float("inf")}),
    ):
        with pytest.raises(error) as caught:
            sa.BsrMatrix.dynamic(**(right | change))
        assert words in str(caught.value)
    operators, index = torch.ops.sparse_autotune, (row_ptr, col_idx)
    with pytest.raises(ValueError, match="row_ptr has 3 entries"):
        operators.dynamic_matmul(values, *index, torch.ones(8, 1), None, (8, 8))
    with pytest.raises(ValueError, match="col_idx has 2 entries; expected 3, one for each"):
        operators.dynamic_matmul(torch.ones(3, 2, 2), *index, torch.ones(4, 1), None, (4, 4))
    with pytest.raises(ValueError, match="block is"):
        operators.dynamic_sampled(torch.ones(4, 1), torch.ones(1, 4), *index, (4, 4), (0, 2))


# ---- choosing blocks ----


def test_chosen_blocks_are_the_best_of_each_row_and_the_diagonal(rng):
    for _ in range(40):
        rows, cols = (int(x) for x in rng.integers(1, 12, 2))
        lead = tuple(int(x) for x in rng.integers(1, 4, int(rng.integers(0, 3))))
        top_k, diagonal = int(rng.integers(1, cols + 1)), bool(rng.integers(2))
        scores = rng.permutation(int(np.prod(lead)) * rows * cols).reshape(*lead, rows, cols).astype(float)
        scores[scores == 3], scores[scores == 4] = np.inf, -np.inf
        dtype = (torch.int32, torch.int64)[int(rng.integers(2))]
        given = torch.from_numpy(scores)
        row_ptr, col_idx = sa.choose_blocks(given, top_k, diagonal=diagonal, dtype=dtype)
        assert row_ptr.dtype == col_idx.dtype == dtype and torch.equal(given, torch.from_numpy(scores))
        flat = scores.reshape(-1, cols)
        assert row_ptr.tolist() == [i * top_k for i in range(len(flat) + 1)]
        for i, row in enumerate(flat):
            order = sorted(range(cols), key=lambda j: (-(diagonal and j == i % rows), -row[j]))
            assert col_idx[i * top_k : (i + 1) * top_k].tolist() == sorted(order[:top_k])


def test_not_a_number_counts_as_the_highest_score_but_for_the_diagonal():
    nan, inf = torch.nan, torch.inf
    scores = torch.tensor([[0.0, nan, nan, inf], [nan, -inf, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0]])
    for s in (scores, scores.half(), scores.double()):
        assert sa.choose_blocks(s, 1)[1].tolist() == [0, 1, 2]
        assert sa.choose_blocks(s, 2)[1][2:4].tolist() == [0, 1]
        for top_k in (1, 2, 3, 4):
            chosen = sa.choose_blocks(s, top_k)[1].view(3, top_k)
            assert (chosen.diff(dim=1) > 0).all()


def test_scores_are_the_products_of_means(rng):
    for _ in range(20):
        queries, keys, size = (int(x) for x in rng.integers(1, 30, 3))
        block = tuple(int(x) for x in rng.integers(1, 9, 2))
        q, k = torch.randn(2, 6, queries, size), torch.randn(2, 3, keys, size)
        got = sa.block_scores(q, k, block)
        means = [
            torch.stack([x[..., i : i + b, :].double().mean(-2) for i in range(0, x.shape[-2], b)], -2)
            for x, b in ((q, block[0]), (k, block[1]))
        ]
        expected = means[0] @ means[1].repeat_interleave(2, 1).mT
        assert got.dtype == torch.float32
        tensors_close(got, expected)


def test_choosing_and_multiplying_compiles_and_brings_nothing_to_the_host(rng):
    class NoHost(torch.utils._python_dispatch.TorchDispatchMode):
        """Refuses what would wait for a GPU."""

        def __torch_dispatch__(self, function, types, arguments=(), words=None):
            name = function.name()
            assert "_local_scalar_dense" not in name and "nonzero" not in name, name
            return function(*arguments, **(words or {}))

    q, k = torch.randn(2, 64, 8), torch.randn(2, 64, 8)
    values, b = torch.randn(2 * 8 * 3, 8, 8), torch.randn(64, 4)

    def step(q, k, values, b):
        index = sa.choose_blocks(sa.block_scores(q, k, 8), 3)
        return sa.matmul(sa.BsrMatrix.dynamic(*index, values, (128, 64)), b)

    with NoHost():
        expected = step(q, k, values, b)
    tensors_close(
        torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, values, b), expected.double()
    )
    row_ptr, col_idx = sa.choose_blocks(sa.block_scores(q, k, 8), 3)
    d = sa.BsrMatrix(row_ptr, col_idx, values, (128, 64)).to_dense()
    tensors_close(expected, d.double() @ b.double())


def test_wrong_words_for_choosing_are_named():
    scores, q, three = torch.zeros(3, 4), torch.zeros(2, 4, 8), torch.zeros(3, 4, 8)
    for error, words, call in (
        (TypeError, "scores is a ndarray", lambda: sa.choose_blocks(scores.numpy(), 1)),
        (ValueError, "scores has 1 dimensions", lambda: sa.choose_blocks(scores[0], 1)),
        (TypeError, "top_k is 1.5", lambda: sa.choose_blocks(scores, 1.5)),
        (ValueError, "top_k is 0; expected 1 to 4", lambda: sa.choose_blocks(scores, 0)),
        (ValueError, "top_k is 5; expected 1 to 4", lambda: sa.choose_blocks(scores, 5)),
        (TypeError, "dtype is torch.int16", lambda: sa.choose_blocks(scores, 1, dtype=torch.int16)),
        (ValueError, "q has a size of 8 and k of 7", lambda: sa.block_scores(q, q[..., :7], 2)),
        (ValueError, "q has 2 heads; expected a multiple of the 3", lambda: sa.block_scores(q, three, 2)),
        (TypeError, "block is 'x'", lambda: sa.block_scores(q, q, "x")),
    ):  # fmt: skip
        with pytest.raises(error) as caught:
            call()
        assert words in str(caught.value)
