"""matmul, transposes and sampled_matmul against dense NumPy, over shapes, blocks, dtypes, strides and
patterns."""

import os
import subprocess
import sys

import numpy as np
import pytest
from conftest import OnlyDlpack, close, random_bsr
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa

DTYPES = ["float32", "float64", "float16"]


@st.composite
def problems(draw):
    rows, cols = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    block = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(DTYPES))
    parts = random_bsr(
        draw(st.integers(0, 1000)), rows, cols, block, draw(st.sampled_from([0.0, 0.2, 0.6, 1.0])), dtype
    )
    matrix = sa.BsrMatrix(*parts[:3], (rows, cols))
    dense = parts[3]
    return (matrix.T, dense.T) if draw(st.booleans()) else (matrix, dense)


def laid_out(x, how):
    """The same numbers in another layout."""
    if how == "fortran":
        return np.asfortranarray(x)
    if how == "gaps":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1] + 3), np.nan, x.dtype)
        wide[..., : 2 * x.shape[-1] : 2] = x
        return wide[..., : 2 * x.shape[-1] : 2]
    if how == "reversed":
        return x[..., ::-1].copy()[..., ::-1]
    if how == "offset":
        flat = np.empty(x.size + 1, x.dtype)[1:].reshape(x.shape)
        flat[...] = x
        return flat
    return x


LAYOUTS = st.sampled_from(["plain", "fortran", "gaps", "reversed", "offset"])


@given(problems(), st.integers(0, 9), st.sampled_from([(), (3,), (2, 2), (0,)]), LAYOUTS)
def test_sparse_times_dense(problem, n, batch, how):
    a, dense = problem
    for seed in (1, 2):  # the second time takes the fast path
        b = laid_out(
            np.random.default_rng(seed).standard_normal((*batch, dense.shape[1], n)).astype(dense.dtype), how
        )
        got = a @ b
        assert type(got) is np.ndarray and got.dtype == b.dtype and got.shape == (*batch, dense.shape[0], n)
        close(got, dense.astype(np.float64) @ b.astype(np.float64), dense.dtype)


@given(problems(), st.sampled_from([(), (5,), (1,), (3, 2), (0,), (2, 3, 2)]), LAYOUTS)
def test_dense_times_sparse(problem, lead, how):
    a, dense = problem
    for seed in (2, 3):
        x = laid_out(
            np.random.default_rng(seed).standard_normal((*lead, dense.shape[0])).astype(dense.dtype), how
        )
        got = x @ a
        assert got.shape == (*lead, dense.shape[1]) and got.dtype == x.dtype
        close(got, x.astype(np.float64) @ dense.astype(np.float64), dense.dtype)


@given(problems(), st.integers(0, 9), LAYOUTS, LAYOUTS, st.sampled_from([1.0, -0.5]))
def test_sampled_product(problem, k, how_x, how_y, alpha):
    a, dense = problem
    rng = np.random.default_rng(3)
    ones = a.with_values(np.ones_like(a.values)).to_dense() if a.stored_blocks else np.zeros(a.shape)
    for _ in range(2):
        x = laid_out(rng.standard_normal((dense.shape[0], k)).astype(dense.dtype), how_x)
        y = laid_out(rng.standard_normal((k, dense.shape[1])).astype(dense.dtype), how_y)
        got = sa.sampled_matmul(x, y, a, alpha=alpha)
        assert got.shape == a.shape and not np.isnan(got.values).any()
        close(got.to_dense(), alpha * (x.astype(np.float64) @ y.astype(np.float64)) * ones, dense.dtype)
        into = a.with_values(np.full_like(a.values, np.nan))
        assert sa.sampled_matmul(x, y, a, alpha=alpha, out=into) is into
        close(into.to_dense(), got.to_dense(), dense.dtype)


@given(
    problems(),
    st.sampled_from([0.0, 1.0, -2.0]),
    st.sampled_from([0.0, 1.0, 0.5]),
    st.sampled_from([None, "relu", "gelu", "silu"]),
    st.booleans(),
    st.booleans(),
)
def test_epilogue(problem, alpha, beta, activation, with_bias, left):
    a, dense = problem
    rng = np.random.default_rng(4)
    dense = dense.T if left else dense
    b = rng.standard_normal((dense.shape[1], 5)).astype(dense.dtype)
    shape = (dense.shape[0], 5)
    out = np.full(shape, np.nan, dense.dtype) if beta == 0 else rng.standard_normal(shape).astype(dense.dtype)
    bias = rng.standard_normal(shape[0]).astype(dense.dtype) if with_bias else None
    expected = (
        alpha * (dense.astype(np.float64) @ b.astype(np.float64))
        + (beta * out if beta else 0)
        + (bias[:, None] if with_bias else 0)
    )
    expected = {
        None: lambda z: z,
        "relu": lambda z: np.maximum(z, 0),
        "silu": lambda z: z / (1 + np.exp(-z)),
        "gelu": gelu,
    }[activation](expected)
    operands = (np.ascontiguousarray(b.T), a) if left else (a, b)
    for _ in range(2 if beta == 0 else 0):  # a new result, the second time by the fast path
        got = sa.matmul(*operands, alpha=alpha, bias=bias, activation=activation)
        close(got.T if left else got, expected, dense.dtype)
    for _ in range(2):
        target = np.array(out.T, order="C") if left else out.copy()
        got = sa.matmul(*operands, out=target, alpha=alpha, beta=beta, bias=bias, activation=activation)
        assert got is target
        close(got.T if left else got, expected, dense.dtype)


@given(
    problems(),
    st.sampled_from([(), (3,)]),
    LAYOUTS,
    LAYOUTS.filter(lambda how: how != "reversed"),
    st.booleans(),
)
def test_into_memory_that_is_given(problem, batch, how, how_out, left):
    a, dense = problem
    rng = np.random.default_rng(5)
    for _ in range(3):
        b = rng.standard_normal((*batch, 6, dense.shape[0]) if left else (*batch, dense.shape[1], 6)).astype(
            dense.dtype
        )
        expected = b.astype(np.float64) @ dense if left else dense.astype(np.float64) @ b
        out = laid_out(np.full(expected.shape, np.nan, dense.dtype), how_out)
        b = laid_out(b, how)
        assert (sa.matmul(b, a, out=out) if left else sa.matmul(a, b, out=out)) is out
        close(out, expected, dense.dtype)


def gelu(z):
    from math import erf

    return z * 0.5 * (1 + np.vectorize(erf, otypes=[np.float64])(z / 2**0.5)) if z.size else z


@pytest.mark.parametrize("strides", [(0, 0), (0, 1), (1, 0)])
def test_a_broadcast_operand_is_read_as_it_is(strides):
    *parts, dense = random_bsr(0, 12, 10, (4, 5), 0.7)
    base = np.arange(20, dtype=np.float32)
    b = np.lib.stride_tricks.as_strided(base, (10, 7), [4 * s for s in strides])
    close(sa.BsrMatrix(*parts, (12, 10)) @ b, dense @ b)


def test_the_quick_way_is_taken_and_gives_way():
    if sa._quick._fast is None:
        pytest.skip("built without the extension")
    *parts, dense = random_bsr(6, 32, 24, (8, 8), 0.5)
    a = sa.BsrMatrix(*parts, (32, 24))
    b = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    run = a._runner
    assert run(a.values, b) is None
    c = a @ b
    quick = run(a.values, b)
    assert (
        type(quick) is np.ndarray
        and quick.dtype == b.dtype
        and quick.flags.c_contiguous
        and np.array_equal(quick, c)
    )
    # less aligned than the plan wants
    odd = np.concatenate([[0], b.ravel()]).astype(np.float32)[1:].reshape(24, 5)
    unaligned = np.frombuffer(b"0" + b.tobytes(), np.uint8)[1:].view(np.float32).reshape(24, 5)
    masked = np.ma.masked_array(b, b > 0)
    others = [
        b.astype(np.float64),
        b.astype(np.float16),
        b[:, :4],
        np.asfortranarray(b),
        b[::-1],
        b[:, ::-1],
        b.astype(">f4"),
        b.astype(np.int32),
        b.view(np.int32),
        b.astype(complex),
        b.astype(object),
        b.astype("f4,f4"),
        b.view(np.matrix),
        masked,
        odd,
        unaligned,
        b[0],
        b[None],
        np.float32(3),
        memoryview(b),
        b.tolist(),
        None,
    ]
    for other in others:
        assert run(a.values, other) is None
    for other in (odd, unaligned, b[::-1], np.asfortranarray(b), b.view(np.matrix)):
        for _ in range(2):
            close(a @ other, dense @ np.array(other))
    for other in (b.astype(">f4"), b.astype(np.int32), masked):
        for _ in range(2):
            with pytest.raises(TypeError, match="B"):
                a @ other
    frozen = b.copy()
    frozen.setflags(write=False)
    assert np.array_equal(run(a.values, frozen), c)
    with sa.set_effort("cached"):
        assert run(a.values, b) is None
    assert (
        run(a.values, b) is not None
        and run(a.values) is None
        and run(a.values, b, b, b) is None
        and run(b, a.values) is None
    )
    before = sa._abi.get_threads()
    sa._abi.set_threads(before + 1)  # plans are for a number of threads
    try:
        assert run(a.values, b) is None
        close(a @ b, dense @ b)
    finally:
        sa._abi.set_threads(before)


def test_the_quick_way_into_memory_that_is_given_gives_way():
    if sa._quick._fast is None:
        pytest.skip("built without the extension")
    *parts, dense = random_bsr(6, 32, 32, (8, 8), 0.5)
    a = sa.BsrMatrix(*parts, (32, 32))
    b = np.random.default_rng(0).standard_normal((32, 5)).astype(np.float32)
    out = np.full((32, 5), np.nan, np.float32)
    into = a._into
    assert into(a.values, b, out) is None and sa.matmul(a, b, out=out) is out
    out[...] = np.nan
    assert into(a.values, b, out) is out and a._runner(a.values, b) is None
    close(out, dense @ b)
    frozen = out.copy()
    frozen.setflags(write=False)
    for other in (
        frozen,
        out.astype(np.float64),
        out.astype(">f4"),
        out[:, :4],
        np.asfortranarray(out),
        b,
        out.view(np.matrix),
        None,
    ):
        assert into(a.values, b, other) is None
    assert into(a.values, b) is None and into(a.values) is None
    with pytest.raises(ValueError, match="out is read-only"):
        sa.matmul(a, b, out=frozen)
    with pytest.raises(ValueError, match="overlap"):
        sa.matmul(a, b, out=b)
    a @ b
    assert a._runner(a.values, b) is not None and into(a.values, b, out) is out


@pytest.mark.parametrize("shapes", [8, 9, 20])
def test_plans_that_runners_drop_are_used_again(shapes, monkeypatch):
    """More shapes in turn than a runner remembers, or more dimensions: no plan is made twice."""
    *parts, dense = random_bsr(8, 32, 24, (8, 8), 0.5)
    a = sa.BsrMatrix(*parts, (32, 24))
    operands = [
        np.random.default_rng(n).standard_normal((24, n)).astype(np.float32) for n in range(1, shapes + 1)
    ]
    operands.append(np.ones((1, 1, 1, 1, 1, 24, 5), np.float32))

    def all_of_them():
        for b in operands:
            close(a @ b, dense @ b)

    all_of_them()
    monkeypatch.setattr(sa._pattern.Plan, "dup", lambda plan: pytest.fail("a copy was made"))
    monkeypatch.setattr(sa._pattern.Pattern, "plan", lambda *_: pytest.fail("a plan was made"))
    for _ in range(3):
        all_of_them()


def test_strides_of_one_element_mean_nothing():
    """Negative ones of an output too, cold and warm."""
    a = sa.BsrMatrix.from_dense(np.ones((1, 16), np.float32), block=(1, 4))
    b = np.ones((16, 8), np.float32)
    for _ in range(3):
        for out in (np.full((1, 8), np.nan, np.float32)[::-1], np.full((1, 8), np.nan, np.float32)):
            assert sa.matmul(a, b, out=out) is out and (out == 16).all()


def test_a_bias_of_another_maker():
    torch = pytest.importorskip("torch")
    *parts, dense = random_bsr(8, 32, 24, (8, 8), 0.5)
    a, b = sa.BsrMatrix(*parts, (32, 24)), np.ones((24, 5), np.float32)
    for _ in range(3):
        close(sa.matmul(a, b, bias=torch.ones(32)), dense @ b + 1)


def test_arrays_and_tensors_of_one_pattern_keep_apart():
    torch = pytest.importorskip("torch")
    *parts, dense = random_bsr(7, 32, 24, (8, 8), 0.5)
    a = sa.BsrMatrix(*parts, (32, 24))
    t = a.with_values(torch.tensor(parts[2]))
    b = np.random.default_rng(0).standard_normal((24, 5)).astype(np.float32)
    for _ in range(3):
        for matrix in (a, t):
            for x, kind in ((b, np.ndarray), (torch.tensor(b), torch.Tensor)):
                got = matrix @ x
                assert type(got) is kind
                close(np.asarray(got), dense @ b)


def test_a_float32_result_of_16_bits():
    *parts, dense = random_bsr(0, 32, 32, (8, 8), 0.5, np.float16)
    a, b = sa.BsrMatrix(*parts, (32, 32)), np.ones((32, 4), np.float16)
    got = sa.matmul(a, b, out_dtype="float32")
    assert got.dtype == np.float32
    close(got, dense.astype(np.float64) @ b, "float32")


def test_out_may_be_a_view_beside_its_operand():
    *parts, dense = random_bsr(0, 16, 16, (4, 4), 0.5)
    a, both = (
        sa.BsrMatrix(*parts, (16, 16)),
        np.random.default_rng(0).standard_normal((16, 12)).astype(np.float32),
    )
    expected = dense @ both[:, :6]
    sa.matmul(a, both[:, :6], out=both[:, 6:])
    close(both[:, 6:], expected)


def test_scipy_matrices_are_taken_as_they_are():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.kron(np.array([[1, 0, 2], [0, 3, 0]], np.float32), np.ones((4, 4), np.float32))
    for make in (sparse.bsr_array, sparse.bsr_matrix):
        a, b = (
            make(dense, blocksize=(4, 4)),
            np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32),
        )
        close(sa.matmul(a, b), dense @ b)
        close(sa.bsr_gemm(b.T, make(dense.T, blocksize=(4, 4))), b.T @ dense.T)
        a.data *= 2  # in place: the next product sees it
        close(sa.matmul(a, b), 2 * dense @ b)


@pytest.mark.parametrize("form", ["csr_array", "csr_matrix", "csc_array", "csc_matrix"])
def test_scipy_matrices_of_single_elements_are_taken_as_they_are(form):
    sparse = pytest.importorskip("scipy.sparse")
    rng = np.random.default_rng(0)
    dense = (rng.standard_normal((20, 12)) * (rng.random((20, 12)) < 0.3)).astype(np.float32)
    a, b = getattr(sparse, form)(dense), rng.standard_normal((12, 3)).astype(np.float32)
    for _ in range(2):
        close(sa.matmul(a, b), dense @ b)
        close(sa.matmul(np.ones((2, 20), np.float32), a), np.ones((2, 20), np.float32) @ dense)
        a.data *= 2  # in place: the next product sees it
        dense *= 2
    kept = sa._sparse.as_bsr(a, "A")
    assert kept is sa._sparse.as_bsr(a, "A") and kept.block == (1, 1) and kept.shape == (20, 12)
    assert np.shares_memory(kept.values, a.data)


@pytest.mark.parametrize("form", ["csr_array", "csc_array"])
def test_a_scipy_matrix_with_room_to_spare_or_columns_in_disorder_is_understood(form):
    sparse = pytest.importorskip("scipy.sparse")
    make, data, b = getattr(sparse, form), np.arange(1, 5, dtype=np.float32), np.eye(3, dtype=np.float32)
    longer = make((data, np.array([0, 2, 1, 0]), np.array([0, 1, 2, 3])), shape=(3, 3))
    close(sa.matmul(longer, b), longer.toarray())
    twice = make((data, np.array([2, 0, 1, 1]), np.array([0, 2, 2, 4])), shape=(3, 3))
    close(sa.matmul(twice, b), twice.toarray())
    longer.indices[0] = 1
    close(sa.matmul(longer, b), longer.toarray())


def test_a_scipy_matrix_that_changes_its_indices_is_read_again():
    sparse = pytest.importorskip("scipy.sparse")
    a = sparse.bsr_array((np.ones((2, 2, 2), np.float32), [1, 0], [0, 2]), shape=(2, 4))  # unsorted
    b = np.arange(8, dtype=np.float32).reshape(4, 2)
    close(sa.matmul(a, b), a.toarray() @ b)
    a.sort_indices()
    close(sa.matmul(a, b), a.toarray() @ b)
    a.indices[:] = [0, 1]
    a.data[0] = 5
    close(sa.matmul(a, b), a.toarray() @ b)


def test_any_dlpack_array_is_an_operand():
    *parts, dense = random_bsr(0, 16, 12, (4, 4), 0.6)
    b = np.random.default_rng(0).standard_normal((12, 5)).astype(np.float32)
    close(sa.matmul(sa.BsrMatrix(*parts, (16, 12)), OnlyDlpack(b)), dense @ b)


@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.cuda)])
def test_jax_arrays_give_jax_arrays(kind):
    jax = pytest.importorskip("jax")
    try:
        place = jax.devices(kind)[0]
    except RuntimeError:
        pytest.skip(f"JAX has no {kind}")
    *parts, dense = random_bsr(0, 16, 12, (4, 4), 0.6)
    a, b = sa.BsrMatrix(*parts, (16, 12)), jax.device_put(np.ones((12, 5), np.float32), place)
    got = sa.matmul(a if kind == "cpu" else a.to("cuda:0"), b.block_until_ready())
    assert type(got).__module__.startswith("jax") and got.devices() == {place}
    close(got, dense @ np.ones((12, 5), np.float32))


def test_threads_may_share_a_matrix():
    from concurrent.futures import ThreadPoolExecutor

    *parts, dense = random_bsr(0, 128, 128, (16, 16), 0.4)
    a = sa.BsrMatrix(*parts, (128, 128))
    bs = [np.random.default_rng(i).standard_normal((128, 8)).astype(np.float32) for i in range(32)]
    with ThreadPoolExecutor(8) as pool:
        for b, c in zip(bs, pool.map(lambda b: a @ b, bs)):
            close(c, dense @ b)


FORKS = """
import os, signal
import numpy as np
import sparse_autotune as sa
rng = np.random.default_rng(0)
dense, b = rng.standard_normal((64, 64)).astype("f4"), rng.standard_normal((64, 40)).astype("f4")
a = sa.BsrMatrix.from_dense(dense, (8, 8))
assert np.allclose(a @ b, dense @ b, atol=1e-4)
child = os.fork()
if child == 0:
    signal.alarm(100)  # one that hangs is ended
    other = sa.BsrMatrix.from_dense(2 * dense, (8, 8))
    right = np.allclose(a @ b, dense @ b, atol=1e-4)
    right = right and np.allclose(other @ b[:, :7], 2 * dense @ b[:, :7], atol=1e-4)
    os._exit(0 if right else 1)
raise SystemExit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_computes():
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], timeout=250)
    assert done.returncode == 0
