"""What is wrong is told by an exception of the expected type that names the argument, and never by a
crash."""

import ctypes

import numpy as np
import pytest
from conftest import close

import sparse_autotune as sa
from sparse_autotune import _arrays

ONE = np.ones((1, 2, 2), np.float32)
A = sa.BsrMatrix([0, 1, 2], [1, 0], np.ones((2, 2, 2), np.float32), (4, 4))
B = np.ones((4, 3), np.float32)


def bad(kind, words, call, *arguments, **options):
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    assert words in str(caught.value), str(caught.value)


def bsr(row_ptr=(0, 1, 2), col_idx=(1, 0), values=None, shape=(4, 4)):
    return sa.BsrMatrix(
        list(row_ptr), list(col_idx), np.ones((2, 2, 2), np.float32) if values is None else values, shape
    )


@pytest.mark.parametrize(
    "kind, words, arguments",
    [
        (ValueError, "row_ptr", {"row_ptr": (1, 1, 2)}),
        (ValueError, "row_ptr", {"row_ptr": (0, 2, 1)}),
        (ValueError, "row_ptr", {"row_ptr": (0, 1, 3)}),
        (ValueError, "row_ptr", {"row_ptr": (0, 2)}),
        (ValueError, "row_ptr", {"row_ptr": (0, 1, 2, 2)}),
        (ValueError, "row_ptr", {"row_ptr": (0, -5, 2)}),
        (ValueError, "col_idx", {"col_idx": (1, 2)}),
        (ValueError, "col_idx", {"col_idx": (-1, 0)}),
        (ValueError, "col_idx", {"col_idx": (2**40, 0)}),
        (ValueError, "col_idx", {"row_ptr": (0, 2, 2), "col_idx": (1, 1)}),
        (ValueError, "col_idx", {"row_ptr": (0, 2, 2), "col_idx": (1, 0)}),
        (ValueError, "values", {"values": np.ones((3, 2, 2), np.float32)}),
        (ValueError, "values", {"values": np.ones((2, 4), np.float32)}),
        (ValueError, "values", {"values": np.ones((2, 0, 2), np.float32)}),
        (TypeError, "values", {"values": np.ones((2, 2, 2), np.int32)}),
        (TypeError, "values", {"values": np.ones((2, 2, 2), np.complex64)}),
        (TypeError, "values", {"values": np.ones((2, 2, 2), ">f4")}),
        (TypeError, "values", {"values": "text"}),
        (TypeError, "values", {"values": object()}),
        (TypeError, "shape", {"shape": 4}),
        (TypeError, "shape", {"shape": (4, 4, 4)}),
        (ValueError, "shape", {"shape": (-4, 4)}),
        (TypeError, "shape", {"shape": (4.9, 4)}),
        (TypeError, "shape", {"shape": (float("inf"), 4)}),
        (TypeError, "shape", {"shape": "44"}),
        (ValueError, "shape", {"shape": (4, 2**64 + 4)}),
        (ValueError, "row_ptr", {"shape": (2**62, 4)}),
        (TypeError, "row_ptr", {"row_ptr": (0.0, 1.5, 2.0)}),
    ],
)
def test_broken_matrices(kind, words, arguments):
    bad(kind, words, bsr, **arguments)


def test_indices_of_another_shape_or_kind():
    bad(ValueError, "row_ptr", sa.BsrMatrix, np.zeros((2, 2), int), [0], ONE, (2, 2))
    bad(TypeError, "col_idx", sa.BsrMatrix, [0, 1], ["a"], ONE, (2, 2))
    bad(ValueError, "col_idx", sa.BsrMatrix, [0, 1], np.array([2**64 - 1], np.uint64), ONE, (2, 2))
    bad(ValueError, "row_ptr is [[0], [1, 2]]", sa.BsrMatrix, [[0], [1, 2]], [0], ONE, (2, 2))
    bad(ValueError, "row_ptr is a NoneType of 0 dim", sa.BsrMatrix, None, [0], ONE, (2, 2))
    bad(
        TypeError,
        "col_idx is a masked array",
        sa.BsrMatrix,
        [0, 1],
        np.ma.masked_array([0], [True]),
        ONE,
        (2, 2),
    )
    bad(ValueError, "values is [[[1.0], ", sa.BsrMatrix, [0, 1], [0], [[[1.0], [1.0, 2.0]]], (2, 2))
    bad(ValueError, "x is [[1.0], ", sa.BsrMatrix.from_dense, [[1.0], [1.0, 2.0]], 1)
    bad(ValueError, "stored is [[True], ", sa.AttentionMask.from_blocks, [[True], [True, False]], (2, 2), 1)
    bad(
        TypeError,
        "stored is a masked array",
        sa.AttentionMask.from_blocks,
        np.ma.masked_array([[True]], [[True]]),
        (2, 2),
        2,
    )


def test_tensors_of_indices_that_cannot_be_read():
    torch = pytest.importorskip("torch")
    rows = torch.tensor([0, 1])
    bad(ValueError, "row_ptr is on meta", sa.BsrMatrix, rows.to("meta"), [0], ONE, (2, 2))
    bad(
        ValueError,
        "stored is on meta",
        sa.AttentionMask.from_blocks,
        torch.ones(1, 1, dtype=torch.bool, device="meta"),
        (2, 2),
        2,
    )
    bad(TypeError, "row_ptr is a Tensor of torch.bfloat16", sa.BsrMatrix, rows.bfloat16(), [0], ONE, (2, 2))
    bad(
        TypeError,
        "row_ptr is a Tensor of torch.int64, torch.sparse_coo",
        sa.BsrMatrix,
        rows.to_sparse(),
        [0],
        ONE,
        (2, 2),
    )
    parts = [x.to("meta") for x in (rows, rows[:1], torch.ones(1))]
    bad(
        ValueError,
        "x.values() is on meta",
        sa.BsrMatrix.from_csr,
        torch.sparse_csr_tensor(*parts, size=(1, 1)),
        1,
    )


@pytest.mark.parametrize(
    "kind, words, b",
    [
        (ValueError, "B", np.ones((5, 3), np.float32)),
        (ValueError, "B", np.ones((), np.float32)),
        (TypeError, "B", np.ones((4, 3), np.float64)),
        (TypeError, "B", np.ones((4, 3), np.int64)),
        (TypeError, "B", np.ones((4, 3), bool)),
        (TypeError, "B", [[1.0]]),
        (TypeError, "B", None),
        (TypeError, "B", np.ma.masked_array(B, B > 0)),
        (NotImplementedError, "B", A),
    ],
)
def test_operands_that_do_not_fit(kind, words, b):
    bad(kind, words, sa.matmul, A, b)


def test_the_other_side():
    bad(ValueError, "A has shape", sa.matmul, np.ones((3, 5), np.float32), A)
    bad(TypeError, "A", sa.matmul, B, B)


@pytest.mark.parametrize(
    "kind, words, options",
    [
        (ValueError, "out", {"out": np.empty((4, 4), np.float32)}),
        (TypeError, "out", {"out": np.empty((4, 3), np.float64)}),
        (TypeError, "out", {"out": "text"}),
        (ValueError, "out", {"out": np.empty((4, 6), np.float32)[:, ::-2]}),
        (
            ValueError,
            "out",
            {"out": np.lib.stride_tricks.as_strided(np.empty(16, np.float32), (4, 3), (4, 4))},
        ),
        (ValueError, "out", {"out": np.broadcast_to(np.float32(0), (4, 3))}),
        (ValueError, "out", {"out": B}),
        (ValueError, "beta", {"beta": 1.0}),
        (TypeError, "alpha", {"alpha": "two"}),
        (TypeError, "beta", {"beta": None}),
        (ValueError, "bias", {"bias": np.ones(3, np.float32)}),
        (TypeError, "bias", {"bias": np.ones(4, np.float64)}),
        (TypeError, "bias", {"bias": 1.0}),
        (ValueError, "activation", {"activation": "tanh"}),
        (ValueError, "activation", {"activation": 3}),
        (TypeError, "out_dtype", {"out_dtype": "float64"}),
        (TypeError, "out_dtype", {"out_dtype": "int8"}),
    ],
)
def test_options_that_do_not_fit(kind, words, options):
    bad(kind, words, sa.matmul, A, B, **options)


def test_sampled_operands_that_do_not_fit():
    x, y = np.ones((4, 3), np.float32), np.ones((3, 4), np.float32)
    bad(ValueError, "X has 5 rows", sa.sampled_matmul, np.ones((5, 3), np.float32), y, A)
    bad(ValueError, "Y has 5 columns", sa.sampled_matmul, x, np.ones((3, 5), np.float32), A)
    bad(ValueError, "Y 2 rows", sa.sampled_matmul, x, np.ones((2, 4), np.float32), A)
    bad(ValueError, "X has 1 dim", sa.sampled_matmul, np.ones(4, np.float32), y, A)
    bad(TypeError, "dtype", sa.sampled_matmul, x, y.astype(np.float64), A)
    bad(TypeError, "pattern", sa.sampled_matmul, x, y, "text")
    bad(TypeError, "out", sa.sampled_matmul, x, y, A, out=x)
    other = sa.BsrMatrix([0, 1, 2], [0, 1], np.ones((2, 2, 2), np.float32), (4, 4))
    bad(ValueError, "out", sa.sampled_matmul, x, y, A, out=other)
    bad(ValueError, "beta", sa.sampled_matmul, x, y, A, beta=1.0)
    bad(TypeError, "X is a list", sa.sampled_matmul, x.tolist(), y, A.T)
    bad(TypeError, "Y is a list", sa.sampled_matmul, x, y.tolist(), A.T)
    bad(ValueError, "X has 5 rows", sa.sampled_matmul, np.ones((5, 3), np.float32), y, A.T)
    bad(TypeError, "out", sa.sampled_matmul, x, y, A.T, out=x)


def test_blocks_beyond_memory():
    eye = pytest.importorskip("scipy.sparse").eye_array(8, format="csr")
    for huge in (2**64 + 2, 10**9):
        bad(ValueError, "block is", sa.BsrMatrix.from_csr, eye, huge)
        bad(ValueError, "block is", sa.BsrMatrix.from_dense, B, huge)
        bad(ValueError, "block is", sa.BsrMatrix.from_dense, B[:0], huge)


def test_conversions_that_do_not_fit():
    bad(ValueError, "block", sa.BsrMatrix.from_dense, B, 0)
    bad(TypeError, "block", sa.BsrMatrix.from_dense, B, (1, 2, 3))
    bad(ValueError, "keep", sa.BsrMatrix.from_dense, B, 2, keep=1.5)
    bad(TypeError, "keep", sa.BsrMatrix.from_dense, B, 2, keep="0.5")
    bad(TypeError, "threshold", sa.BsrMatrix.from_dense, B, 2, threshold="0.5")
    bad(ValueError, "threshold", sa.BsrMatrix.from_dense, B, 2, threshold=-1.0)
    bad(ValueError, "keep", sa.BsrMatrix.from_dense, B, 2, keep=0.5, threshold=1.0)
    bad(ValueError, "x has 1", sa.BsrMatrix.from_dense, np.ones(3), 2)
    bad(TypeError, "x", sa.BsrMatrix.from_torch, B)
    bad(TypeError, "x", sa.BsrMatrix.from_scipy, B)
    bad(TypeError, "x", sa.BsrMatrix.from_csr, B)
    bad(TypeError, "block is array([2, 2])", sa.BsrMatrix.from_csr, B, block=np.array([2, 2]))
    bad(ValueError, "values", A.with_values, np.ones((3, 2, 2), np.float32))
    bad(ValueError, "device", A.to, "tpu")
    bad(TypeError, "values", A.requires_grad_)
    ragged = sa.BsrMatrix.from_dense(np.ones((3, 3)), 2)
    bad(ValueError, "SciPy", ragged.to_scipy)


def sparse_with(maker, attribute, place, value):
    m = maker(np.eye(8))
    getattr(m, attribute)[place] = value
    return m


@pytest.mark.parametrize(
    "form, attribute, place, value",
    [
        ("bsr", "indptr", 1, 10**9),
        ("bsr", "indptr", 0, 1),
        ("bsr", "indptr", 1, -1),
        ("bsr", "indptr", -1, 3),
        ("bsr", "indices", 0, 10**9),
        ("csr", "indptr", 4, 10**9),
        ("csr", "indices", 3, 10**9),
        ("csr", "indices", 3, -1),
        ("csc", "indptr", 4, 10**9),
        ("csc", "indices", 3, 8),
        ("coo", "row", 3, 10**9),
        ("coo", "col", 3, -(10**9)),
    ],
)
def test_indices_that_scipy_would_follow_anywhere(form, attribute, place, value):
    sparse = pytest.importorskip("scipy.sparse")
    maker = {
        "bsr": lambda x: sparse.bsr_array(x, blocksize=(4, 4)),
        "csr": sparse.csr_array,
        "csc": sparse.csc_array,
        "coo": sparse.coo_array,
    }[form]
    m = sparse_with(maker, attribute, place, value)
    bad(ValueError, f"x.{attribute}", sa.BsrMatrix.from_csr, m, 2)
    bad(ValueError, f"x.{attribute}", sa.BsrMatrix.from_scipy, m)
    if form == "bsr":
        bad(ValueError, f"A.{attribute}", sa.matmul, m, np.ones((8, 2)))
        m = maker(np.eye(8))
        sa.matmul(m, np.ones((8, 2)))
        getattr(m, attribute)[place] = value
        bad(ValueError, f"A.{attribute}", sa.matmul, m, np.ones((8, 2)))


def test_a_list_of_lists_that_points_anywhere():
    m = pytest.importorskip("scipy.sparse").lil_array(np.eye(8))
    m.rows[1] = [99]
    bad(ValueError, "x.indices", sa.BsrMatrix.from_csr, m, 2)


def test_a_sparse_vector():
    sparse = pytest.importorskip("scipy.sparse")
    try:
        vector = sparse.coo_array(np.ones(8))
    except ValueError:
        pytest.skip("a SciPy without one-dimensional arrays")
    bad(ValueError, "x has 1 dim", sa.BsrMatrix.from_csr, vector, 2)


def test_csr_tensors_that_point_anywhere():
    torch = pytest.importorskip("torch")
    m = torch.eye(8).to_sparse_csr()
    m.col_indices()[3] = 99
    bad(ValueError, "x.col_indices()", sa.BsrMatrix.from_csr, m, 2)


class Shared:
    """An array of a maker whose DLPack is broken."""

    def __init__(self, capsule, device=(1, 0)):
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_words):
        if isinstance(self.capsule, Exception):
            raise self.capsule
        return self.capsule

    def __dlpack_device__(self):
        return self.device


def test_broken_dlpack():
    used = B.__dlpack__()
    np.from_dlpack(Shared(used))
    for x in (
        Shared(None),
        Shared(used),
        Shared(3),
        Shared(KeyError("x")),
        Shared(B.__dlpack__(), None),
        Shared(B.__dlpack__(), (1,)),
    ):
        bad(TypeError, "B is a Shared", sa.matmul, A, x)
    bad(ValueError, "B is on DLPack device 7", sa.matmul, A, Shared(B.__dlpack__(), (7, 0)))
    for says in ((2, 0), (13, 0)):
        bad(
            ValueError,
            f"B is on DLPack device {says[0]}, 0 by its __dlpack_device__() and on 1, 0 by its capsule",
            sa.matmul,
            A,
            Shared(B.__dlpack__(), says),
        )
    close(sa.matmul(A, Shared(B.__dlpack__(), (3, 1))), A @ B)  # pinned memory is the host's
    elsewhere = B.__dlpack__()
    pointer = _arrays._capsule_pointer(elsewhere, b"dltensor")
    ctypes.cast(pointer, ctypes.POINTER(_arrays._DLTensor)).contents.device_type = 2
    bad(
        ValueError,
        "B is on DLPack device 1, 0 by its __dlpack_device__() and on 2, 0 by its capsule",
        sa.matmul,
        A,
        Shared(elsewhere),
    )
    try:
        versioned = B.__dlpack__(max_version=(1, 0))
    except TypeError:
        return  # a NumPy that knows none
    bad(TypeError, "B is a Shared", sa.matmul, A, Shared(versioned))


def test_values_resized_in_place():
    a = bsr()
    a.values.resize((1, 2, 2), refcheck=False)
    bad(ValueError, "values has shape (1, 2, 2); expected (2, 2, 2)", sa.matmul, a, B)
    bad(
        ValueError,
        "values has shape (1, 2, 2); expected (2, 2, 2)",
        sa.sampled_matmul,
        B,
        B.T.copy(),
        A,
        out=a,
    )
    a = bsr()
    a.values.shape = (2, 4, 1)
    bad(ValueError, "values has shape (2, 4, 1)", sa.matmul, B.T, a)


def test_settings_that_do_not_exist():
    bad(ValueError, "effort", sa.set_effort, "maximal")
    bad(ValueError, "effort is []", sa.set_effort, [])
    bad(ValueError, "effort is []", sa.tune, A, 4, effort=[])
    bad(ValueError, "effort", sa.tune, A, 4, effort="off")
    bad(ValueError, "columns", sa.tune, A, 0)
    bad(ValueError, "columns", sa.tune, A, 2**70)
    bad(TypeError, "columns", sa.tune, A, 1.5)
    bad(TypeError, "columns", sa.tune, A, [4, "4"])
    bad(TypeError, "key", sa.cache.clear, 3)
    bad(ValueError, "B has shape", sa.benchmark, A, np.ones((5, 3), np.float32))


@pytest.mark.parametrize(
    "kind, words, options",
    [
        (TypeError, "function is 3", {"function": 3}),
        (TypeError, "supports is 3", {"supports": 3}),
        (TypeError, "estimate is 'fast'", {"estimate": "fast"}),
        (TypeError, "prepare is 3", {"prepare": 3, "op": "attention"}),
        (TypeError, "name is 3", {"name": 3}),
        (ValueError, "name is ''", {"name": ""}),
        (ValueError, "name is 'a,b'", {"name": "a,b"}),
        (ValueError, "name is 'a\\x00b'; expected a str without NUL", {"name": "a\0b"}),
        (ValueError, "name is 'a\\nb'", {"name": "a\nb"}),
        (ValueError, "expected 1 to 127 printable", {"name": "a" * 128}),
        (TypeError, "revision is 2", {"revision": 2}),
        (ValueError, "revision is '1\\x00'", {"revision": "1\0"}),
        (TypeError, "about is None", {"about": None}),
        (ValueError, "about is '\\x00'", {"about": "\0"}),
        (ValueError, "op is 'conv'", {"op": "conv"}),
        (ValueError, "op is []", {"op": []}),
        (ValueError, "backend is {}", {"backend": {}}),
        (TypeError, "dtypes is 'float32'", {"dtypes": "float32"}),
        (TypeError, "dtypes is 3", {"dtypes": 3}),
        (ValueError, "dtypes is ()", {"dtypes": ()}),
        (ValueError, "dtypes holds 'int8'", {"dtypes": ("int8",)}),
        (ValueError, "dtypes holds []", {"dtypes": ([],)}),
        (TypeError, "deterministic is 'no'", {"deterministic": "no"}),
        (TypeError, "dense is 2", {"dense": 2}),
    ],
)
def test_variants_that_cannot_be(kind, words, options):
    bad(kind, words, sa.register_variant, **{"function": print, "name": "x", **options})


PORTABLE = "cpu_matmul_any_any_c_portable"


@pytest.mark.parametrize(
    "kind, words, only",
    [
        (ValueError, "only is 'nope'; expected variants of cpu", "nope"),
        (ValueError, "which has 'nope'", [PORTABLE, "nope"]),
        (ValueError, "\\x00", PORTABLE + "\0"),
        (
            ValueError,
            "only is 'cpu_attention_any_any_c_reference'; no variant of that name fits",
            "cpu_attention_any_any_c_reference",
        ),
        (ValueError, "only is ''", ""),
        (ValueError, "only is []", []),
        (TypeError, "only is 3", 3),
        (TypeError, "only is [3]", [3]),
    ],
)
def test_races_of_variants_that_are_not_there(kind, words, only):
    bad(kind, words, sa.benchmark, A, B, only=only)


def test_files_that_are_not_there(tmp_path):
    bad(FileNotFoundError, "absent", sa.cache.load, tmp_path / "absent")
    bad(sa.FileError, "absent", sa.cache.load, tmp_path / "absent")
    for function in (sa.cache.load, sa.cache.export):
        bad(TypeError, "file is a int", function, 3)
        bad(ValueError, "file is 'a\\x00b'", function, "a\0b")
    bad(ValueError, "key is 'a\\x00b'", sa.cache.clear, "a\0b")
    (tmp_path / "text").write_text("nothing of the kind")
    bad(ValueError, "text", sa.cache.load, tmp_path / "text")


def test_a_gpu_that_is_not_there():
    pytest.importorskip("torch")
    from conftest import HAVE_CUDA

    if not HAVE_CUDA:
        bad(RuntimeError, "cuda", sa.device_info, "cuda:0")
        bad(RuntimeError, "device is 'cuda:0'", A.to, "cuda")
        bad(RuntimeError, "device is 'cuda:0'", A.to(dtype="bfloat16").to, "cuda")


def test_sparse_matrices_of_others_are_named_as_arguments():
    sparse = pytest.importorskip("scipy.sparse")
    whole = sparse.bsr_array(np.eye(8, dtype=np.int64), blocksize=(4, 4))
    bad(TypeError, "A has dtype int64", sa.matmul, whole, np.ones((8, 2)))
    bad(TypeError, "B has dtype int64", sa.matmul, np.ones((2, 8)), whole)
    bad(TypeError, "pattern has dtype int64", sa.sampled_matmul, np.ones((8, 2)), np.ones((2, 8)), whole)
    bad(TypeError, "x has dtype int64", sa.BsrMatrix.from_scipy, whole)


def test_errors_have_a_common_type_and_a_status():
    with pytest.raises(sa.Error) as caught:
        bsr(col_idx=(1, 2))
    assert caught.value.status == "SAT_COLUMN_RANGE" and isinstance(caught.value, ValueError)


def test_a_missing_library_is_an_import_error(tmp_path):
    import os
    import subprocess
    import sys

    words = [sys.executable, "-c", "import sparse_autotune"]
    run = subprocess.run(
        words,
        capture_output=True,
        text=True,
        env={**os.environ, "SPARSE_AUTOTUNE_LIBRARY": str(tmp_path / "absent.so")},
    )
    assert (
        run.returncode == 1 and "ImportError: sparse_autotune: its library could not be loaded" in run.stderr
    )


def test_an_out_that_lies_between_addresses_is_named():
    room = np.zeros(4 * 3 * 4 + 1, np.uint8)
    bad(
        ValueError,
        "out begins at an address that is no multiple of 4",
        sa.matmul,
        A,
        B,
        out=room[1:].view(np.float32).reshape(4, 3),
    )


def test_absurd_blocks_and_unknown_words_are_named():
    bad(ValueError, "block is 1099511627776x1099511627776", sa.BsrMatrix.from_dense, np.ones((4, 4)), 2**40)
    bad(TypeError, "benchmark of a product got bogus", sa.benchmark, A, B, bogus=1)
