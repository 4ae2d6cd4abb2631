"""Matrices and layers whose values are fixed: what they compute, which changes they see, what they keep."""

import copy
import gc
import io
import pickle
import threading
import weakref

import numpy as np
import pytest
from conftest import OnlyDlpack, close, in_threads, random_bsr, run_program
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa
from sparse_autotune import _fixed, _quick


def numpy_matrix(seed, rows=48, cols=40, block=(8, 8), density=0.5, dtype=np.float32):
    row_ptr, col_idx, values, dense = random_bsr(seed, rows, cols, block, density, dtype)
    return sa.BsrMatrix(row_ptr, col_idx, values, (rows, cols)), dense


def fresh(seed, *shape, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plans(a):
    return list(a._fixed._first.values())


def old_or_new(got, old, new):
    """Until refresh() a variant that converts takes the values from before, another those that are there."""
    close(got, new if np.abs(got - new).max() < np.abs(got - old).max() else old)


def test_a_frozen_matrix_computes_what_it_did_before():
    a, dense = numpy_matrix(1)
    b, x, batch = fresh(2, 40, 7), fresh(3, 5, 3, 48), fresh(4, 3, 40, 6)
    bias, out = fresh(5, 48), fresh(6, 48, 7)
    assert a.freeze() is a and a.is_frozen and a.T.is_frozen and "frozen" in repr(a)
    for _ in range(3):
        close(a @ b, dense @ b)
        close(a @ b[:, 0], dense @ b[:, 0])
        close(a.T @ x[0].T, dense.T @ x[0].T)
        close(x @ a, x @ dense)
        close(a @ batch, dense @ batch)
        close(sa.matmul(a, b, bias=bias, activation="relu"), np.maximum(dense @ b + bias[:, None], 0))
        close(sa.matmul(a, b, out=out), dense @ b)
        close(sa.matmul(a, b, out=out.copy(), alpha=0.5, beta=2.0), 2.5 * (dense @ b))
        close(sa.matmul(a, np.asfortranarray(b), allow_dense=True, deterministic=False), dense @ b)
    assert all("fixed" in str(sa.benchmark(a, b, fresh=False).problem["key"]) for _ in range(1))
    a.unfreeze()
    assert not a.is_frozen
    a.values[...] *= 2
    close(a @ b, 2 * dense @ b)


def test_writes_that_nobody_counts_are_taken_in_by_refresh():
    a, dense = numpy_matrix(7)
    b = fresh(8, 40, 16)
    a.freeze()
    t = a.T
    for factor in (1.0, 3.0, -2.0):
        a.values[...] *= factor
        dense = dense * np.float32(factor)
        a.refresh()
        for _ in range(3):
            close(a @ b, dense @ b)
            close(t @ fresh(9, 48, 4), dense.T @ fresh(9, 48, 4))
    assert any(p.info().workspace_bytes for p in plans(a))  # else this test shows nothing
    before = a @ b
    a.values[...] = 0
    old_or_new(a @ b, before, 0 * before)  # what refresh() is for
    a.refresh()
    assert not (a @ b).any()


def test_new_values_are_seen_and_the_transpose_keeps_the_old_ones():
    a, dense = numpy_matrix(10)
    b, c = fresh(11, 40, 5), fresh(12, 48, 5)
    t = a.freeze().T
    close(a @ b, dense @ b)
    close(t @ c, dense.T @ c)
    a.values = a.values * 2
    for _ in range(3):
        close(a @ b, 2 * dense @ b)
        close(t @ c, dense.T @ c)
    assert a.is_frozen and t.is_frozen and a._fixed is not t._fixed


def test_frozen_matrices_of_one_pattern_never_share_a_plan():
    a, dense = numpy_matrix(13)
    others = [a.with_values(a.values * np.float32(k)) for k in range(2, 6)]
    b = fresh(14, 40, 9)
    assert not others[0].is_frozen
    for m in (a, *others):
        m.freeze()
    for _ in range(3):
        for k, m in enumerate((a, *others), 1):
            close(m @ b, k * dense @ b)
            close(fresh(15, 2, 48) @ m, k * fresh(15, 2, 48) @ dense)
    held = [id(p) for m in (a, *others) for p in plans(m)]
    assert len(set(held)) == len(held) and not {id(p) for p in a._pattern._first.values()} & set(held)
    # the very same values are no others
    assert a.with_values(a.values).freeze()._fixed is a._fixed


def test_copies_and_pickles_are_frozen_by_themselves():
    a, dense = numpy_matrix(16)
    b = fresh(17, 40, 5)
    a.freeze()
    close(a @ b, dense @ b)
    twins = [copy.deepcopy(a), pickle.loads(pickle.dumps(a)), a.to(dtype="float64").to(dtype="float32")]
    shared = copy.copy(a)
    assert shared._fixed is a._fixed and all(m.is_frozen and m._fixed is not a._fixed for m in twins)
    a.values[...] = 0
    a.refresh()
    for m in twins:
        close(m @ b, dense @ b)
    for m in (a, shared):
        assert not (m @ b).any()
    contiguous = twins[0].T.contiguous()
    assert contiguous.is_frozen and not contiguous.is_transposed
    close(contiguous @ fresh(18, 48, 3), dense.T @ fresh(18, 48, 3))


def test_what_a_frozen_matrix_keeps_is_bounded_and_goes_with_it():
    a, dense = numpy_matrix(19)
    a.freeze()
    for _ in range(2):
        for n in range(1, 3 * _fixed.MOST_COPIES):
            b = fresh(n, 40, n)
            close(a @ b, dense @ b)
            close(b.T @ a.T, b.T @ dense.T)
    assert 0 < len(a._fixed._copies) <= _fixed.MOST_COPIES
    # those beyond hold nothing, and so follow every write
    a.values[...] *= 2
    last = fresh(0, 40, 3 * _fixed.MOST_COPIES - 1)
    close(a @ last, 2 * dense @ last)
    with sa.set_effort("cached"):  # plans of another effort make room
        b = fresh(0, 40, 2)
        a.refresh()
        close(a @ b, 2 * dense @ b)
        assert 0 < len(a._fixed._copies) <= 2
    t, fixed, held = a.T, weakref.ref(a._fixed), weakref.WeakSet(plans(a))
    a.unfreeze()
    assert fixed() is not None and len(held)
    del t
    gc.collect()
    assert fixed() is None and not len(held)
    close(a @ b, 2 * dense @ b)


def test_threads_share_a_frozen_matrix():
    a, dense = numpy_matrix(20, 96, 80)
    a.freeze()
    wrong, barrier = [], threading.Barrier(6)

    def work(number):
        for turn in range(12):
            if barrier.wait() == 0:  # one of them changes the values while the others wait
                a.values[...] *= 2
                a.refresh()
            barrier.wait()
            b = fresh(number + turn, 80, 1 + number % 3)
            for _ in range(3):
                try:
                    close(a @ b / 2.0 ** (turn + 1), dense @ b)
                    close(b.T @ a.T / 2.0 ** (turn + 1), b.T @ dense.T)
                except BaseException as error:
                    wrong.append(error)

    in_threads(6, work)
    assert not wrong


def test_operators_of_scipy_take_frozen_matrices():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    a = sa.BsrMatrix.from_dense(np.diag(np.arange(1.0, 33.0)), block=4).freeze()
    close(linalg.cg(a, np.ones(32))[0], 1 / np.arange(1.0, 33.0), "float32")
    narrow = a.to(dtype="float32")
    assert narrow.is_frozen and narrow.matvec(np.ones(32)).dtype == np.float64
    close(narrow.rmatmat(np.ones((32, 2))), np.arange(1.0, 33.0)[:, None] * np.ones((1, 2)))


def test_what_a_sampled_product_writes_into_is_taken_in():
    a, dense = numpy_matrix(21)
    x, y, b = fresh(22, 48, 6), fresh(23, 6, 40), fresh(24, 40, 5)
    a.freeze()
    close(a @ b, dense @ b)
    sa.sampled_matmul(x, y, a, out=a)
    close(a @ b, np.where(dense != 0, x @ y, 0) @ b)


def test_races_of_a_frozen_matrix_are_with_fixed_values():
    a, _ = numpy_matrix(25, 64, 64)
    b = fresh(26, 64, 8)
    race = sa.benchmark(a, b)
    frozen = sa.benchmark(a.freeze(), b)
    assert "fixed" not in race.problem["key"].split() and "fixed" in frozen.problem["key"].split()
    assert "fixed values" in str(frozen) and "fixed values" not in str(race)
    assert frozen.best.verdict == "ok" and not [r for r in frozen if r.verdict == "wrong"]
    with sa.set_effort("quick"):
        assert len(sa.tune(a, [8], gradients=True, effort="quick")) == 2  # values get no gradient
        assert not any(p["tuned"] for p in sa.tune(a, [8], effort="quick"))


def test_a_graph_gets_a_plan_that_holds_the_values():
    """As on a GPU, but for the stream."""
    a, dense = numpy_matrix(27)
    b = fresh(28, 40, 16)
    a.freeze()
    for _ in range(3):
        close(a @ b, dense @ b)
    fixed = a._fixed
    (first,) = fixed._first
    device, _, problem, threads = first
    now = fixed.snapshot
    before = fixed._first[first]
    key, plan = fixed.take(device, problem, 0, threads, True, now)
    assert plan is before and plan.stamp is now.stamp  # converts nothing
    fixed.give_back(key, plan)
    assert fixed.take(device, problem, 0, threads, True, now)[1] is plan  # for the next graph, too
    fixed.give_back(key, plan)
    for _ in range(2):
        close(a @ b, dense @ b)  # by another one
    a.values[...] *= 2
    a.refresh()  # what graphs hold, too
    assert plan.stamp is fixed.snapshot.stamp
    # values that changed just before a capture are converted by the graph itself
    fixed.refresh(a.values)
    plan.stamp = None
    other = fixed.take(device, problem, 0, threads, True, fixed.snapshot)[1]
    assert other is not plan
    most = [fixed.take(device, problem, i, threads, True, fixed.snapshot) for i in range(1, 12)]
    assert fixed._graphs == _fixed.MOST_COPIES and not most[-1][0][2].has_fixed_values()


@pytest.mark.parametrize("done", [True, False])
def test_a_graph_takes_over_from_another_stream_what_is_done_there(done, monkeypatch):
    asked = []
    monkeypatch.setattr(_fixed, "is_done", lambda stream: asked.append(threading.current_thread()) or done)
    a, dense = numpy_matrix(46)
    b = fresh(47, 40, 16)
    close(a.freeze() @ b, dense @ b)
    ((device, _, problem, threads), plan), fixed = next(iter(a._fixed._first.items())), a._fixed
    plan.stream = "torch's"
    taken = fixed.take(device, problem, 5, threads, True, fixed.snapshot)[1]
    assert (taken is plan) == done and asked != [threading.current_thread()] and len(asked) == 1
    close(a @ b, dense @ b)


def test_values_that_are_known_by_dlpack_alone():
    row_ptr, col_idx, values, dense = random_bsr(42, 48, 40, (8, 8), 0.5)
    a = sa.BsrMatrix(row_ptr, col_idx, OnlyDlpack(values), (48, 40)).freeze()
    b = fresh(43, 40, 6)
    for factor in (1.0, 2.0):
        values *= np.float32(factor)
        a.refresh()
        for _ in range(3):
            close(a @ b, np.float32(factor) * dense @ b)
    assert plans(a) and len(a._fixed._copies) == 1  # converted once for each refresh


def test_a_matrix_of_scipy_that_is_handed_in_is_read_at_each_call():
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.bsr_array((fresh(44, 3, 8, 8), [0, 0, 1], [0, 1, 3]), shape=(16, 16))
    b = fresh(45, 16, 4)
    frozen = sa.BsrMatrix.from_scipy(x).freeze()
    before = frozen @ b
    x.data *= 2
    close(sa.matmul(x, b), x @ b)
    old_or_new(frozen @ b, before, x @ b)
    frozen.refresh()
    close(frozen @ b, x @ b)


def test_a_runner_serves_only_the_values_that_it_was_made_for():
    if _quick._fast is None:
        pytest.skip("built without the extension")
    a, dense = numpy_matrix(29)
    b = fresh(30, 40, 4)
    a.freeze()
    old = a._runner
    assert old(a.values, b) is None  # no plan yet
    close(a @ b, dense @ b)
    close(old(a.values, b), dense @ b)
    assert old(a.values.copy(), b) is None and old(a.values[:], b) is None
    a.refresh()
    assert old(a.values, b) is None and a._runner is not old
    close(a @ b, dense @ b)
    assert old(a.values, b) is None and a._runner(a.values, b) is not None


# ---- torch ----

torch = pytest.importorskip("torch")
from conftest import tensors
from conftest import tensors_close as near

nn = torch.nn


def write_through_numpy(a):
    a.values.numpy()[...] *= 2
    a.refresh()


def write_through_data(a):
    a.values.data.mul_(2)
    a.refresh()


def write_by_dlpack(a):
    torch.from_dlpack(a.values.detach()).mul_(2)
    a.refresh()


def write_in_inference_mode(a):
    with torch.inference_mode():
        a.values.mul_(2)


def write_by_optimizer(a):
    a.values.grad = -a.values.detach().clone()
    torch.optim.SGD([a.values], lr=1.0).step()


def put_data(a):
    a.values.data = a.values.data * 2


def put_data_twice(a):
    """The second may come to the address of the first."""
    a.values.data = a.values.data * 3
    a.values.data = a.values.data * 2 / 3


def set_storage(a):
    a.values.set_((a.values * 2).clone())


def put_values(a):
    a.values = a.values * 2


WRITES = {
    "mul_": lambda a: a.values.mul_(2),
    "copy_": lambda a: a.values.copy_(a.values * 2),
    "a view": lambda a: [block.mul_(2) for block in a.values],
    "detached": lambda a: a.values.detach().mul_(2),
    "out": lambda a: torch.mul(a.values, 2, out=a.values),
    "inference mode": write_in_inference_mode,
    "optimizer": write_by_optimizer,
    "data": put_data,
    "data twice": put_data_twice,
    "set_": set_storage,
    "values": put_values,
    "NumPy and refresh": write_through_numpy,
    ".data and refresh": write_through_data,
    "DLPack and refresh": write_by_dlpack,
}


@pytest.mark.parametrize("write", WRITES)
def test_writes_that_torch_counts_are_seen(write):
    a, dense = tensors(31, 48, 40, (8, 8), 0.5, torch.float32)
    a.values.nan_to_num_(0.0)
    b, x = torch.randn(40, 6), torch.randn(3, 48)
    a.freeze()
    for turn in range(3):
        t = a.T
        for _ in range(3):
            near(a @ b, dense @ b)
            near(x @ a, x @ dense)
            near(t @ x.T, dense.T @ x.T)
            near(sa.matmul(a, b, activation="relu"), (dense @ b).relu())
        WRITES[write](a)
        dense = dense * 2
        assert a.is_frozen, turn
    near(a @ b, dense @ b)


@given(st.lists(st.sampled_from([*WRITES, "T", "out", "left", "grad", "operator", "batch"]), max_size=14))
def test_any_order_of_writes_and_products(steps):
    a, dense = tensors(32, 24, 16, (8, 8), 0.6, torch.float64)
    a.values.nan_to_num_(0.0)
    a.freeze()
    for step in steps:
        b = torch.randn(16, 3, dtype=torch.float64)
        if step in WRITES:
            WRITES[step](a)
            dense = dense * 2
        if step == "T":
            near(a.T @ (dense @ b), dense.T @ (dense @ b))
        elif step == "out":
            near(sa.matmul(a, b, out=torch.full((24, 3), torch.nan, dtype=torch.float64)), dense @ b)
        elif step == "left":
            near(b.T @ a.T, b.T @ dense.T)
        elif step == "batch":
            near(a @ torch.stack([b, -b]), dense @ torch.stack([b, -b]))
        elif step == "operator":
            index = a._index
            near(torch.ops.sparse_autotune.matmul(a.values, *index, b, None, a.shape, fixed=True), dense @ b)
        elif step == "grad":
            b.requires_grad_()
            c = a @ b
            c.sum().backward()
            near(b.grad, dense.T @ torch.ones_like(c))
            near(c.detach(), dense @ b.detach())
        else:
            near(a @ b, dense @ b)


def test_values_that_require_gradients_cannot_be_frozen():
    a, dense = tensors(33, 24, 16, (8, 8), 0.6, torch.float32)
    a.requires_grad_()
    with pytest.raises(RuntimeError, match=r"A\.requires_grad_\(False\), or freeze A\.detach\(\)"):
        a.freeze()
    assert not a.is_frozen and a.detach().freeze().is_frozen
    a.requires_grad_(False).freeze()
    with pytest.raises(RuntimeError, match=r"unfreeze\(\) before requires_grad_"):
        a.requires_grad_()
    with pytest.raises(RuntimeError, match="frozen values get no gradients"):
        a.values = a.values.clone().requires_grad_()
    b = torch.randn(16, 3)
    near(a @ b, dense @ b)
    a.values.requires_grad_()
    for call in (
        lambda: a @ b,
        lambda: sa.matmul(a, b, bias=torch.zeros(24)),
        lambda: torch.ops.sparse_autotune.matmul(a.values, *a._index, b, None, a.shape, fixed=True),
    ):
        with pytest.raises(RuntimeError, match=r"unfreeze\(\) to train them"):
            call()
    with torch.no_grad():
        near(a @ b, dense @ b)
    a.unfreeze()
    (a @ b).sum().backward()
    assert a.values.grad is not None


def test_gradients_reach_b_and_bias_of_a_frozen_matrix():
    a, dense = tensors(34, 24, 16, (8, 8), 0.6, torch.float64)
    a.freeze()
    b = torch.randn(16, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(24, dtype=torch.float64, requires_grad=True)
    for _ in range(3):
        assert torch.autograd.gradcheck(lambda b, bias: sa.matmul(a, b, bias=bias), (b, bias))
        assert torch.autograd.gradgradcheck(lambda b: (a @ b).square(), (b,))
    # the product of the forward pass and that of the backward one are both with fixed values
    assert {k[2].struct.matmul.transpose for k in a._fixed._first} == {False, True}
    c = a @ b
    a.values.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        c.sum().backward()


def test_hooks_that_copy_saved_tensors_do_not_take_the_plans_away():
    a, dense = tensors(48, 24, 16, (8, 8), 0.6, torch.float32)
    b = torch.randn(16, 3, requires_grad=True)
    a.freeze() @ b
    held = a._fixed.snapshot
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        for _ in range(3):
            (grad,) = torch.autograd.grad((a @ b).sum(), b)
            near(grad, dense.T @ torch.ones(24, 3))
    assert a._fixed.snapshot is held


@pytest.mark.parametrize("counted", [True, False])
def test_a_torch_that_counts_no_writes_converts_at_each_call(counted, monkeypatch):
    if not counted:
        monkeypatch.setattr(_fixed, "count_of", lambda values: object())
    a, dense = tensors(35, 24, 16, (8, 8), 0.6, torch.float32)
    b = torch.randn(16, 3)
    a.freeze()
    for _ in range(3):
        near(a @ b, dense @ b)
        a.values.data.mul_(1 if counted else 2)
        dense = dense * (1 if counted else 2)


def test_values_of_inference_mode_need_refresh():
    with torch.inference_mode():
        a, dense = tensors(36, 24, 16, (8, 8), 0.6, torch.float32)
        a.freeze()
        b = torch.randn(16, 3)
        for _ in range(3):
            near(a @ b, dense @ b)
        a.values.mul_(2)
        a.refresh()
        for _ in range(3):
            near(a @ b, 2 * dense @ b)


def test_modes_and_transforms_meet_frozen_matrices():
    from torch.fx.experimental.proxy_tensor import make_fx

    a, dense = tensors(37, 24, 16, (8, 8), 0.6, torch.float32)
    a.freeze()
    b = torch.randn(5, 16, 3)
    for _ in range(2):
        near(torch.vmap(lambda x: sa.matmul(a, x))(b), dense @ b)
        near(torch.vmap(lambda x: sa.matmul(a, x))(b[:, :, 0]), b[:, :, 0] @ dense.T)
        traced = make_fx(lambda x: sa.matmul(a, x))(b[0])
        near(traced(b[1]), dense @ b[1])
        with torch.autocast("cpu", torch.bfloat16):
            near((a @ b[0]).float().bfloat16(), (dense @ b[0]).bfloat16())
        a.values.mul_(2)
        dense = dense * 2
    near(traced(b[1]), dense @ b[1])
    assert "True" in str(traced.graph)


# ---- layers ----


def new_layer(**words):
    return sa.SparseLinear(40, 24, block=8, density=0.4, **words)


def check(layer, device="cpu", dtype=torch.float32):
    x = torch.randn(5, 40, device=device).to(dtype)
    expected = layer.to_dense().double()(x.double()).detach()
    for _ in range(3):
        near(layer(x).detach(), expected)


def test_a_frozen_layer_computes_what_it_did_and_gives_gradients_to_its_input(device):
    layer = new_layer(activation="gelu", device=device)
    x = torch.randn(5, 40, device=device, requires_grad=True)
    before = layer(x)
    (grad,) = torch.autograd.grad(before.sum(), x)
    assert layer.freeze() is layer and layer.is_frozen and not layer.values.requires_grad
    assert layer.bias.requires_grad and "frozen=True" in repr(layer)
    for _ in range(3):
        after = layer(x)
        near(after.detach(), before.detach())
        near(torch.autograd.grad(after.sum(), x)[0], grad)
        with torch.no_grad():
            near(layer(x), before.detach())
    assert layer.matrix()._fixed is layer._fixed
    layer.requires_grad_()
    with pytest.raises(RuntimeError, match=r"unfreeze\(\) to train them"):
        layer(x)
    layer.unfreeze()
    assert layer.values.requires_grad and not layer.is_frozen
    layer(x).sum().backward()
    assert layer.values.grad is not None
    layer.values.requires_grad_(False)
    assert not layer.freeze().unfreeze().values.requires_grad  # as it was


def replaced(layer):
    layer.values = nn.Parameter(layer.values.detach() * 2, requires_grad=False)


def replaced_twice(layer):
    """The third parameter may come to the address of the first."""
    replaced(layer)
    replaced(layer)


def collective(layer):
    layer.values.data.mul_(2)
    layer.refresh()


CHANGES = {
    "load_state_dict": lambda x: x.load_state_dict(
        {k: v * 2 for k, v in x.state_dict().items() if k == "values"}, False
    ),
    "loaded in inference mode": lambda x: torch.inference_mode()(CHANGES["load_state_dict"])(x),
    "assigned": lambda x: x.load_state_dict(new_layer().state_dict(), assign=True),
    "another pattern": lambda x: x.load_state_dict(new_layer().state_dict()),
    "fewer blocks": lambda x: x.load_state_dict(sa.SparseLinear(40, 24, block=8, density=0.2).state_dict()),
    "replaced": replaced,
    "replaced twice": replaced_twice,
    "reset_parameters": lambda x: x.reset_parameters(),
    "uncounted": collective,
    "no_grad": lambda x: torch.no_grad()(x.values.mul_)(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("compiled", [False, True])
def test_a_frozen_layer_follows(change, compiled):
    layer = new_layer().freeze()
    if compiled:
        layer.compile(backend="eager")
    check(layer)
    for _ in range(2):
        CHANGES[change](layer)
        assert layer.is_frozen
        check(layer)


def test_a_frozen_layer_is_moved_copied_and_pickled():
    layer = new_layer().freeze()
    check(layer)
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        layer.to(dtype)
        assert layer.is_frozen
        check(layer, dtype=dtype)
    kept = io.BytesIO()
    torch.save(layer, kept)
    kept.seek(0)
    twins = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(kept, weights_only=False)]
    x = torch.randn(3, 40)
    expected = layer(x)
    with torch.no_grad():
        layer.values.zero_()
    for twin in twins:
        assert twin.is_frozen
        near(twin(x).detach(), expected.detach())
        check(twin)
        twin.unfreeze()
        assert twin.values.requires_grad
    near(layer(x), layer.bias.expand(3, -1))
    empty = sa.SparseLinear(40, 24, block=8, density=0.4, device="meta").freeze()
    empty.to_empty(device="cpu")
    empty.load_state_dict(twins[0].state_dict())
    assert empty.is_frozen
    check(empty)


def test_the_values_of_before_go_when_a_layer_is_moved():
    layer = new_layer().freeze()
    check(layer)
    storage, held = weakref.ref(layer._fixed.snapshot.memory), weakref.WeakSet(plans(layer))
    assert len(held)
    layer.float()  # does nothing
    assert len(held) and layer._fixed._first
    layer.double()
    assert not len(held) and not layer._fixed._first and storage() is None
    check(layer, dtype=torch.float64)
    held = weakref.ref(layer._fixed)
    layer.unfreeze()
    gc.collect()
    assert held() is None


def test_plans_do_not_hold_the_values_of_before():
    layer = new_layer().freeze()
    layer(torch.randn(7, 40))
    check(layer)
    old = weakref.ref(layer.values)
    replaced(layer)
    check(layer)
    gc.collect()
    assert old() is None


def test_a_whole_model_is_frozen_and_taken_back():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))
    sa.sparsify(model, block=16, density=0.5, include=("0", "2"))
    x = torch.randn(4, 64)
    expected = model(x)
    assert sa.freeze(model) is model and [m.is_frozen for m in (model[0], model[2])] == [True, True]
    assert model[3].weight.requires_grad
    for _ in range(3):
        near(model(x).detach(), expected.detach())
    for layer in (model[0], model[2]):
        layer.values.data.mul_(2)
    sa.refresh(model)
    expected = model[3](model[2].to_dense()(model[0].to_dense()(x).relu()))
    near(model(x).detach(), expected.detach())
    assert sa.freeze(model)[0].is_frozen  # again
    assert sa.unfreeze(model) is model and not model[0].is_frozen and model[0].values.requires_grad
    with pytest.raises(TypeError, match="model is a BsrMatrix"):
        sa.freeze(model[0].matrix())


def test_layers_that_share_values_share_their_plans():
    one, two = nn.Linear(32, 32), nn.Linear(32, 32)
    two.weight = one.weight
    model = sa.freeze(sa.sparsify(nn.Sequential(one, two), block=8, density=0.5))
    assert model[0].values is model[1].values and model[0]._fixed is model[1]._fixed
    x = torch.randn(3, 32)
    for _ in range(3):
        near(model(x).detach(), model[1].to_dense()(model[0].to_dense()(x)).detach())
        with torch.no_grad():
            model[0].values.mul_(1.5)
    assert sa.unfreeze(model)[0].values.requires_grad


def test_layers_of_one_pattern_serve_their_own_values():
    layer = new_layer()
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        twin.values.mul_(-3)
    layer.pattern()
    twin._pattern = layer._pattern
    for x in (layer, twin):
        x.freeze()
    for _ in range(3):
        check(layer)
        check(twin)
    assert layer.pattern() is twin.pattern() and layer._fixed is not twin._fixed


def test_compiled_layers_use_the_plans_of_fixed_values():
    layer = new_layer(activation="relu")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = torch.randn(5, 40, requires_grad=True)
    for frozen in (False, True, False, True):
        layer.freeze() if frozen else layer.unfreeze()
        for _ in range(3):
            got, want = compiled(x), layer.to_dense()(x).relu()
            near(got.detach(), want.detach())
            near(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0])
            with torch.no_grad():
                near(compiled(x), layer.to_dense()(x).relu())
                layer.values.mul_(1.5)
    assert {k[2].struct.matmul.transpose for k in layer._fixed._first} == {False, True}
    held = layer._fixed.snapshot
    with torch.no_grad():
        compiled(x)
        held = layer._fixed.snapshot
        compiled(x)
    assert layer._fixed.snapshot is held  # converts nothing


def test_a_compiled_product_of_a_frozen_matrix():
    a, dense = tensors(38, 24, 16, (8, 8), 0.6, torch.float32)
    a.freeze()
    compiled = torch.compile(lambda x: sa.matmul(a, x), fullgraph=True, backend="aot_eager")
    b = torch.randn(16, 3)
    for _ in range(3):
        near(compiled(b), dense @ b)
        a.values.mul_(2)
        dense = dense * 2
    assert a._fixed._first
    a.unfreeze()
    a.values.data.mul_(2)
    near(compiled(b), 2 * dense @ b)


def test_threads_share_a_frozen_layer():
    layer = new_layer().freeze()
    dense, wrong = layer.to_dense(), []

    def work(number):
        for turn in range(20):
            x = torch.randn(1 + (number + turn) % 4, 40)
            try:
                with torch.no_grad():
                    near(layer(x), dense(x))
            except BaseException as error:
                wrong.append(error)

    in_threads(4, work)
    assert not wrong


def test_it_works_without_the_extension():
    text = """
import sys
sys.modules["sparse_autotune._fast"] = None
import torch, sparse_autotune as sa
from sparse_autotune import _quick
assert _quick._fast is None
sa.set_effort("off")
layer = sa.SparseLinear(40, 24, block=8, density=0.4).freeze()
for _ in range(3):
    x = torch.randn(3, 40)
    torch.testing.assert_close(layer(x), layer.to_dense()(x), rtol=1e-4, atol=1e-4)
    a = layer.matrix()
    torch.testing.assert_close(x @ a.T, x @ a.to_dense().T, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        layer.values.mul_(2)
"""
    done = run_program(text)
    assert done.returncode == 0, done.stderr


# ---- what only a GPU shows ----


@pytest.mark.cuda
@pytest.mark.parametrize("warm_on", ["the same stream", "another stream", "nothing"])
def test_a_frozen_product_is_captured_into_a_graph(warm_on):
    a, dense = tensors(39, 512, 512, (64, 64), 0.3, torch.float32, "cuda")
    a.freeze()
    b = torch.randn(512, 64, device="cuda")
    side = torch.cuda.Stream()
    if warm_on != "nothing":
        with torch.cuda.stream(side if warm_on == "the same stream" else torch.cuda.current_stream()):
            for _ in range(3):
                a @ b
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        c = a @ b
        a @ b
    for _ in range(3):
        c.zero_()
        graph.replay()
        near(c, dense @ b)
        near(a @ b, dense @ b)
        a.values.mul_(2)
        dense = dense * 2
        a.refresh()


@pytest.mark.cuda
def test_a_write_before_a_capture_is_in_the_graph():
    a, dense = tensors(40, 512, 512, (64, 64), 0.3, torch.float32, "cuda")
    a.freeze()
    b = torch.randn(512, 64, device="cuda")
    a @ b
    a.values.mul_(2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = a @ b
    graph.replay()
    near(c, 2 * dense @ b)
    near(a @ b, 2 * dense @ b)


@pytest.mark.cuda
def test_streams_have_plans_of_their_own():
    a, dense = tensors(41, 512, 512, (64, 64), 0.3, torch.float32, "cuda")
    a.freeze()
    b = torch.randn(512, 64, device="cuda")
    streams, results = [torch.cuda.Stream() for _ in range(3)], []
    torch.cuda.synchronize()
    for _ in range(3):
        for s in streams:
            with torch.cuda.stream(s):
                results.append(a @ b)
    torch.cuda.synchronize()
    for c in results:
        near(c, dense @ b)
