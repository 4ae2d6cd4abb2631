"""BsrMatrix: made from others, made into others, shown."""

import copy
import pickle

import numpy as np
import pytest
from conftest import close, random_bsr
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.booleans(),
)
def test_dense_and_back(rows, cols, br, bc, density, transposed):
    dense = random_bsr(0, rows, cols, (br, bc), density, np.float64)[3]
    a = sa.BsrMatrix.from_dense(dense, (br, bc))
    if transposed:
        a, dense = a.T, dense.T
    assert np.array_equal(a.to_dense(), dense)
    assert np.array_equal(a.contiguous().to_dense(), dense)
    assert a.shape == dense.shape


@given(
    st.integers(1, 40), st.integers(1, 40), st.integers(1, 8), st.integers(1, 8), st.sampled_from([0.02, 0.2])
)
def test_csr_of_any_block(rows, cols, br, bc, density):
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random_array((rows, cols), density=density, format="csr", rng=np.random.default_rng(0))
    a = sa.BsrMatrix.from_csr(x, (br, bc))
    assert np.array_equal(a.to_dense(), x.toarray())


# An element that is stored twice, and one behind the end.
TWICE = np.array([0, 2, 3]), np.array([1, 1, 0, 0]), np.array([1.0, 2.0, 4.0, 8.0])


def test_csr_with_an_element_twice_has_the_sum():
    sparse = pytest.importorskip("scipy.sparse")
    indptr, indices, data = TWICE
    x = sparse.csr_array((data, indices, indptr), shape=(2, 2))
    for block in (1, 2, "auto"):
        assert sa.BsrMatrix.from_csr(x, block).to_dense().tolist() == [[0, 3], [4, 0]]
    x = sparse.csr_array((data[:3], np.array([0, 1, 0]), indptr), shape=(2, 2))
    assert x.has_canonical_format  # SciPy does not look again
    x.indices[0] = 1
    assert sa.BsrMatrix.from_csr(x, 2).to_dense().tolist() == [[0, 3], [4, 0]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_a_csr_tensor_with_an_element_twice_has_the_sum(dtype):
    torch = pytest.importorskip("torch")
    indptr, indices, data = (torch.from_numpy(x) for x in TWICE)
    x = torch.sparse_csr_tensor(
        indptr, indices[:3], data[:3].to(getattr(torch, dtype)), size=(2, 2), check_invariants=False
    )
    for block in (1, 2):
        assert sa.BsrMatrix.from_csr(x, block).to_dense().tolist() == [[0, 3], [4, 0]]


def test_a_bsr_tensor_with_a_block_twice_is_refused():
    torch = pytest.importorskip("torch")
    x = torch.sparse_bsr_tensor([0, 2], [1, 1], torch.ones(2, 2, 2), size=(2, 4), check_invariants=False)
    with pytest.raises(ValueError, match="col_idx.*expected no repeats"):
        sa.BsrMatrix.from_torch(x)


def test_csr_chooses_a_block_by_itself():
    sparse = pytest.importorskip("scipy.sparse")
    blocks = np.random.default_rng(0).random((16, 16)) < 0.2
    x = sparse.csr_array(np.kron(blocks, np.ones((8, 8), np.float32)).astype(np.float32))
    a = sa.BsrMatrix.from_csr(x, "auto", columns=16)
    assert np.array_equal(a.to_dense(), x.toarray())
    assert a.block[0] in (2, 3, 4, 6, 8, 12, 16, 32, 64)


def test_keep_takes_the_blocks_with_the_largest_norms():
    x = np.zeros((8, 8))
    x[0, 0], x[4, 4], x[0, 4] = 1, 3, 2
    a = sa.BsrMatrix.from_dense(x, 4, keep=0.5)
    assert (
        a.stored_blocks == 2
        and a.to_dense()[4, 4] == 3
        and a.to_dense()[0, 4] == 2
        and a.to_dense()[0, 0] == 0
    )
    assert sa.BsrMatrix.from_dense(x, 4, threshold=2.5).stored_blocks == 1
    assert sa.BsrMatrix.from_dense(x, 4).stored_blocks == 3


def test_scipy_and_back():
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random_array((24, 32), density=0.1, format="bsr", rng=np.random.default_rng(0))
    a = sa.BsrMatrix.from_scipy(sparse.bsr_array(x.toarray(), blocksize=(4, 8)))
    assert np.array_equal(a.to_scipy().toarray(), x.toarray())
    assert np.array_equal(a.T.to_scipy().toarray(), x.toarray().T)
    assert sa.BsrMatrix.from_scipy(sparse.csr_array(x), block=4).block == (4, 4)


def test_indices_may_come_in_any_whole_number_type():
    values = np.ones((2, 2, 2))
    for kind in (list, np.int32, np.int64, np.uint8, np.uint64):
        row_ptr, col_idx = (
            ([0, 1, 2], [1, 0]) if kind is list else (np.array([0, 1, 2], kind), np.array([1, 0], kind))
        )
        assert sa.BsrMatrix(row_ptr, col_idx, values, (4, 4)).to_dense()[0, 2] == 1


def test_the_pattern_is_the_matrix_s_own():
    row_ptr, col_idx = np.array([0, 1, 2]), np.array([1, 0])
    a = sa.BsrMatrix(row_ptr, col_idx, np.ones((2, 2, 2)), (4, 4))
    col_idx[:] = 99
    close(a @ np.ones(4), [2, 2, 2, 2], "float64")
    with pytest.raises(ValueError):
        a.col_idx[0] = 7


def test_values_are_shared_and_may_change():
    values = np.ones((1, 2, 2))
    a = sa.BsrMatrix([0, 1], [0], values, (2, 2))
    values *= 3
    close(a @ np.ones(2), [6, 6], "float64")
    a.values = np.zeros((1, 2, 2))
    close(a @ np.ones(2), [0, 0], "float64")


def test_copies_share_the_pattern_and_pickles_make_it_again():
    *parts, dense = random_bsr(0, 12, 10, (4, 5), 0.5)
    a = sa.BsrMatrix(*parts, (12, 10)).T
    twin = copy.deepcopy(a)
    assert twin._pattern is a._pattern and twin.values is not a.values
    close(pickle.loads(pickle.dumps(a)).to_dense(), dense.T)


def test_other_dtypes_and_devices():
    *parts, dense = random_bsr(0, 12, 10, (4, 5), 0.5, np.float64)
    a = sa.BsrMatrix(*parts, (12, 10))
    assert a.to(dtype="float32").values.dtype == np.float32
    assert a.to("cpu").values is a.values
    close(a.to(dtype=np.float16).to_dense(), dense, "float16")


def test_it_shows_itself():
    a = sa.BsrMatrix.from_dense(np.eye(8, dtype=np.float32), 2)
    assert repr(a) == "BsrMatrix(8x8, float32, block 2x2, 4 of 16 blocks (75.0 % sparse), numpy on cpu)"
    picture = a._repr_html_()
    assert picture.count("<rect") == 5 and "<svg" in picture
    assert "empty" in sa.BsrMatrix([0], [], np.zeros((0, 2, 2)), (0, 0))._repr_html_()
    assert "transposed" in repr(a.T)
    few = sa.BsrMatrix(np.minimum(np.arange(5001), 1), [0], np.ones((1, 1, 1)), (5000, 5000))
    assert "(99.999996 % sparse)" in repr(few)
    full, none = sa.BsrMatrix.from_dense(np.ones((4, 4)), 2), sa.BsrMatrix.from_dense(np.zeros((4, 4)), 2)
    assert "(0.0 % sparse)" in repr(full) and "(100.0 % sparse)" in repr(none)


def test_a_large_picture_stays_small():
    a = sa.BsrMatrix.from_dense(np.eye(2000, dtype=np.float32), 2)
    assert len(a._repr_html_()) < 40_000


def test_statistics():
    a = sa.BsrMatrix([0, 2, 2], [0, 1], np.ones((2, 2, 2)), (4, 4))
    assert (
        a.stats["density"] == 0.5
        and a.stats["empty_rows"] == 1
        and a.stats["skew"] == 2
        and a.T.stats["skew"] == 1
    )
    assert a.density == 0.5 and a.stored_blocks == 2


@pytest.mark.parametrize("maker", ["numpy", "torch"])
def test_keep_knows_large_numbers_and_nan(maker):
    x = np.zeros((2, 8), np.float32)
    x[0, 0], x[0, 2], x[0, 4], x[0, 6] = 1e20, 1e30, np.nan, 1e25
    x = pytest.importorskip("torch").from_numpy(x) if maker == "torch" else x
    for share, kept in ((0.25, [2]), (0.5, [1, 2]), (0.75, [1, 2, 3])):
        assert sa.BsrMatrix.from_dense(x, 2, keep=share).col_idx.tolist() == kept
    x = np.array([[1e200, 1e300]])
    assert sa.BsrMatrix.from_dense(x, 1, keep=0.5).col_idx.tolist() == [1]


def test_whole_numbers_of_numpy():
    a = sa.BsrMatrix([0, 1], [0], np.ones((1, 2, 2)), (np.int64(2), np.int32(2)))
    assert a.shape == (2, 2) and len(sa.tune(a, columns=np.int64(4), effort="quick")) == 1
    assert len(sa.tune(a, columns=np.array([1, 2]), effort="quick")) == 2


# ---- an operator of scipy.sparse.linalg ----


def test_scipy_solves_with_a_matrix():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    rng = np.random.default_rng(0)
    square = rng.standard_normal((24, 24))
    dense = np.kron(np.eye(3), np.ones((8, 8))) * (square + square.T) + 30 * np.eye(24)
    a, b = sa.BsrMatrix.from_dense(dense, block=8), rng.standard_normal(24)
    for solve in (linalg.cg, linalg.gmres, linalg.bicg, linalg.bicgstab, linalg.minres):
        x, failed = solve(a, b, rtol=1e-10)
        assert not failed
        np.testing.assert_allclose(dense @ x, b, rtol=1e-6, atol=1e-6)
    tall = sa.BsrMatrix.from_dense(rng.standard_normal((40, 24)), block=8)
    for m in (tall, tall.T):
        d, y = m.to_dense(), rng.standard_normal(m.shape[0])
        np.testing.assert_allclose(
            linalg.lsqr(m, y, atol=1e-12, btol=1e-12)[0],
            np.linalg.lstsq(d, y, rcond=None)[0],
            rtol=1e-6,
            atol=1e-6,
        )
        np.testing.assert_allclose(
            linalg.svds(m, 3, return_singular_vectors=False), np.sort(np.linalg.svd(d)[1])[-3:], rtol=1e-6
        )
    single = sa.BsrMatrix.from_dense(dense.astype(np.float32), block=8)  # beside a vector of doubles
    x, failed = linalg.cg(single, b, rtol=1e-10)
    assert not failed
    np.testing.assert_allclose(dense.astype(np.float32).astype(np.float64) @ x, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("transposed", [False, True])
def test_it_is_what_scipy_calls_an_operator(dtype, transposed):
    linalg = pytest.importorskip("scipy.sparse.linalg")
    *parts, dense = random_bsr(3, 20, 12, (8, 4), 0.5, dtype)
    a = sa.BsrMatrix(*parts, (20, 12))
    a, dense = (a.T, dense.T) if transposed else (a, dense)
    rows, cols = dense.shape
    operator = linalg.aslinearoperator(a)
    assert operator.shape == dense.shape and operator.dtype == dtype
    for m in (a, operator):
        for n, call, d in ((cols, m.matvec, dense), (rows, m.rmatvec, dense.T)):
            for x in (np.ones(n, dtype), np.ones((n, 1), dtype), np.arange(n), np.ones(n, np.float64)):
                got = call(x)
                assert got.shape == (len(d), *x.shape[1:])
                close(got, d @ x, np.dtype(dtype).name)
        for n, call, d in ((cols, m.matmat, dense), (rows, m.rmatmat, dense.T)):
            close(call(np.ones((n, 3), dtype)), d @ np.ones((n, 3)), np.dtype(dtype).name)
    close(a @ np.ones(cols, dtype), dense @ np.ones(cols), np.dtype(dtype).name)
    assert (
        a.matvec(np.ones(cols, np.float64)).dtype == np.result_type(dtype, np.float64)
        and a.matvec(np.arange(cols)).dtype == dtype
    )
    for call, words in (
        (a.matvec, f"x has shape (3,); expected ({cols},) or ({cols}, 1)"),
        (a.matmat, f"X has shape (3,); expected ({cols}, any number)"),
    ):
        with pytest.raises(ValueError) as caught:
            call(np.ones(3, dtype))
        assert words in str(caught.value)
    with pytest.raises(TypeError, match="complex128"):
        a.matvec(np.ones(cols, complex))
