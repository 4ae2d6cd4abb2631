"""PyTorch: products, gradients, operators, autocast, torch.compile, on the CPU and, where there is one, on a
GPU."""

import gc
import threading

import numpy as np
import pytest
from conftest import in_threads, run_program, tensors
from conftest import tensors_close as close
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from sparse_autotune import _context
from sparse_autotune._torch import patterns

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@st.composite
def problems(draw):
    rows, cols = draw(st.integers(0, 40)), draw(st.integers(0, 40))
    block = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    dtype = draw(st.sampled_from(DTYPES))
    a, dense = tensors(
        draw(st.integers(0, 99)), rows, cols, block, draw(st.sampled_from([0.0, 0.3, 1.0])), dtype
    )
    return (a.T, dense.T) if draw(st.booleans()) else (a, dense)


def laid_out(x, how):
    if how == "transposed":
        return x.mT.contiguous().mT if x.dim() > 1 else x
    if how == "gaps":
        return torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]
    if how == "offset":
        return torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape)
    return x


LAYOUTS = st.sampled_from(["plain", "transposed", "gaps", "offset"])


@given(problems(), st.sampled_from([(), (4,), (2, 3), (2, 2, 3), (0, 2)]), LAYOUTS, st.booleans())
def test_products(problem, rest, how, left):
    a, dense = problem
    inner = dense.shape[0] if left else dense.shape[1]
    shape = (*rest, inner) if left or not rest else (*rest[:-1], inner, rest[-1])
    b = laid_out(torch.randn(shape).to(dense.dtype), how)
    expected = b.double() @ dense.double() if left else dense.double() @ b.double()
    for _ in range(3):  # the full path, then the fast one
        got = b @ a if left else a @ b
        assert got.dtype == b.dtype and got.device == b.device and got.shape == expected.shape
        close(got, expected)


@given(problems(), st.integers(0, 6), LAYOUTS, LAYOUTS)
def test_sampled_products(problem, k, how_x, how_y):
    a, dense = problem
    x, y = (
        laid_out(torch.randn(s).to(dense.dtype), h)
        for s, h in (((dense.shape[0], k), how_x), ((k, dense.shape[1]), how_y))
    )
    kept = a.with_values(torch.ones_like(a.values)).to_dense().double()
    for _ in range(2):
        close(sa.sampled_matmul(x, y, a).to_dense(), (x.double() @ y.double()) * kept)


@given(
    st.integers(0, 14),
    st.integers(0, 14),
    st.integers(1, 5),
    st.integers(1, 5),
    st.sampled_from([(), (3,), (2, 3), (2, 2, 2)]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_gradients_are_those_of_the_dense_product(rows, cols, br, bc, rest, left, transposed, with_bias):
    a, _ = tensors(1, rows, cols, (br, bc), 0.6, torch.float64)
    values = a.values.nan_to_num(0.0).requires_grad_()
    a = a.with_values(values)
    a = a.T if transposed else a
    inner, features = (a.shape[0], a.shape[1]) if left else (a.shape[1], a.shape[0])
    shape = (*rest, inner) if left or not rest else (*rest[:-1], inner, rest[-1])
    b = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(features, dtype=torch.float64, requires_grad=True) if with_bias else None
    inputs = [values, b] + ([bias] if with_bias else [])
    ours = sa.matmul(b, a, bias=bias, alpha=-1.5) if left else sa.matmul(a, b, bias=bias, alpha=-1.5)
    dense = a.to_dense()
    theirs = -1.5 * (b @ dense if left else dense @ b)
    if with_bias:
        theirs = theirs + (bias if left or b.dim() == 1 else bias[:, None])
    close(ours, theirs)
    weights = torch.randn_like(theirs)
    for got, expected in zip(
        torch.autograd.grad(ours, inputs, weights), torch.autograd.grad(theirs, inputs, weights)
    ):
        close(got, expected)


def gradient_problem(device="cpu"):
    a, _ = tensors(2, 10, 7, (4, 3), 0.7, torch.float64, device)
    return a, a.values.nan_to_num(0.0).requires_grad_()


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
def test_gradcheck(left, activation, device):
    a, values = gradient_problem(device)
    b = torch.randn((5, 10) if left else (7, 5), dtype=torch.float64, device=device, requires_grad=True)
    bias = torch.randn(7 if left else 10, dtype=torch.float64, device=device, requires_grad=True)

    def product(values, b, bias):
        m = a.with_values(values)
        return (
            sa.matmul(b, m, bias=bias, activation=activation)
            if left
            else sa.matmul(m, b, bias=bias, activation=activation)
        )

    assert torch.autograd.gradcheck(product, (values, b, bias))
    assert torch.autograd.gradgradcheck(product, (values, b, bias))


def test_gradcheck_of_the_sampled_product(device):
    a, _ = gradient_problem(device)
    x = torch.randn(10, 3, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(3, 7, dtype=torch.float64, device=device, requires_grad=True)
    for m, first, second in ((a, x, y), (a.T, y.mT, x.mT)):
        assert torch.autograd.gradcheck(lambda x, y, m=m: sa.sampled_matmul(x, y, m).values, (first, second))
        assert torch.autograd.gradgradcheck(
            lambda x, y, m=m: sa.sampled_matmul(x, y, m).values, (first, second)
        )


@pytest.mark.parametrize(
    "transpose, left, activation, shape",
    [
        (False, False, "none", (7, 5)),
        (True, False, "none", (10,)),
        (False, True, "silu", (2, 3, 10)),
        (True, True, "gelu", (4, 7)),
        (False, False, "relu", (2, 7, 5)),
    ],
)
def test_opcheck_of_matmul(transpose, left, activation, shape, device):
    a, values = gradient_problem(device)
    b = torch.randn(shape, dtype=torch.float64, device=device, requires_grad=True)
    features = {(False, False): 10, (True, False): 7, (False, True): 7, (True, True): 10}[transpose, left]
    bias = torch.randn(features, dtype=torch.float64, device=device, requires_grad=True)
    torch.library.opcheck(
        torch.ops.sparse_autotune.matmul,
        (values, *a._index, b, bias, [10, 7], transpose, left, 1.5, activation),
    )
    torch.library.opcheck(
        torch.ops.sparse_autotune.matmul,
        (values.detach(), *a._index, b.detach(), None, [10, 7], transpose, left),
    )


def test_opcheck_of_sampled(device):
    a, _ = gradient_problem(device)
    x = torch.randn(10, 3, dtype=torch.float64, device=device, requires_grad=True)
    y = torch.randn(3, 7, dtype=torch.float64, device=device, requires_grad=True)
    torch.library.opcheck(torch.ops.sparse_autotune.sampled, (x, y, *a._index, [10, 7], [4, 3], 2.0))


def test_operators_differentiate_activations():
    a, values = gradient_problem()
    b = torch.randn(7, 4, dtype=torch.float64, requires_grad=True)
    for activation in ("gelu", "silu"):

        def product(values, b, activation=activation):
            return torch.ops.sparse_autotune.matmul(
                values, *a._index, b, None, [10, 7], False, False, 1.0, activation
            )

        assert torch.autograd.gradcheck(product, (values, b))
        assert torch.autograd.gradgradcheck(product, (values, b))


def test_operators_find_patterns_by_the_tensors_and_see_changes():
    values, b = torch.ones(2, 2, 2), torch.arange(8.0).view(4, 2)
    row_ptr, col_idx = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    product = torch.ops.sparse_autotune.matmul
    first = product(values, row_ptr, col_idx, b, None, [4, 4])
    close(product(values, row_ptr.clone(), col_idx.clone(), b, None, [4, 4]), first)
    col_idx.copy_(torch.tensor([1, 0]))  # in place: another pattern from now on
    close(product(values, row_ptr, col_idx, b, None, [4, 4]), first[[2, 3, 0, 1]])
    for make in range(8):  # addresses are used again, patterns are not
        index = torch.tensor([make % 2, 1 - make % 2])
        close(
            product(values, row_ptr, index, b, None, [4, 4]), first if make % 2 == 0 else first[[2, 3, 0, 1]]
        )
        del index
        gc.collect()


def test_sparse_bsr_tensors_are_taken_as_they_are(device):
    dense = torch.kron(torch.tensor([[1.0, 0, 2], [0, 3, 0]]), torch.ones(4, 4)).to(device)
    a, b = dense.to_sparse_bsr((4, 4)), torch.randn(12, 5, device=device, requires_grad=True)
    c = sa.matmul(a, b)
    close(c, dense @ b)
    c.sum().backward()
    close(b.grad, dense.T @ torch.ones(8, 5, device=device))
    close(sa.bsr_gemm(torch.ones(2, 8, device=device), a), torch.ones(2, 8, device=device) @ dense)
    back = sa.BsrMatrix.from_torch(a)
    close(back.to_torch().to_dense(), dense)
    close(back.T.to_torch().to_dense(), dense.T)


def test_scipy_times_torch():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.kron(np.eye(3, dtype=np.float32), np.ones((4, 4), np.float32))
    b = torch.randn(12, 3, requires_grad=True)
    c = sa.matmul(sparse.bsr_array(dense, blocksize=(4, 4)), b)
    assert isinstance(c, torch.Tensor)
    c.sum().backward()
    close(b.grad, torch.tensor(dense.T) @ torch.ones(12, 3))


def test_autocast(device):
    a, dense = tensors(3, 32, 32, (8, 8), 0.5, torch.float32, device)
    b = torch.randn(32, 4, device=device, requires_grad=True)
    a.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        c = sa.matmul(a, b)
        s = sa.sampled_matmul(b, b.t(), a)
        o = torch.ops.sparse_autotune.matmul(a.values, *a._index, b, None, [32, 32])
    assert c.dtype == s.values.dtype == o.dtype == torch.bfloat16
    close(c, dense.bfloat16() @ b.bfloat16())
    c.sum().backward()
    assert b.grad.dtype == torch.float32 and a.values.grad.dtype == torch.float32


def test_float32_results_of_16_bits(device):
    a, dense = tensors(3, 32, 32, (8, 8), 0.5, torch.bfloat16, device)
    b = torch.randn(32, 4, device=device).bfloat16()
    c = sa.matmul(a, b, out_dtype=torch.float32)
    assert c.dtype == torch.float32
    torch.testing.assert_close(c.double(), dense.double() @ b.double(), rtol=1e-3, atol=1e-3)


def test_out(device):
    a, dense = tensors(3, 32, 24, (8, 8), 0.5, torch.float32, device)
    b, out = torch.randn(24, 4, device=device), torch.full((32, 4), float("nan"), device=device)
    assert sa.matmul(a, b, out=out) is out
    close(out, dense @ b)
    sa.matmul(a, b, out=out, beta=2.0)
    close(out, 3 * (dense @ b))


def test_vectors_of_threads_share_a_matrix():
    a, dense = tensors(4, 96, 96, (16, 16), 0.5, torch.float32)
    wrong = []

    def work(seed):
        g = torch.Generator().manual_seed(seed)
        for n in range(1, 40):
            b = torch.randn(96, 1 + n % 5, generator=g)
            if not torch.allclose(a @ b, dense @ b, rtol=1e-3, atol=1e-3):
                wrong.append(seed)

    in_threads(6, work)
    assert not wrong


def test_torch_s_thread_count_is_followed_and_openmp_s_kept():
    from sparse_autotune import _abi

    a, dense = tensors(4, 96, 96, (16, 16), 0.5, torch.float32)
    torchs = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            before = _abi.get_threads()  # torch's OpenMP may be the same one
            close(a @ torch.ones(96, 3), dense @ torch.ones(96, 3))
            assert _abi.get_threads() == before
    finally:
        torch.set_num_threads(torchs)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_without_breaks(backend, device):
    a, dense = tensors(5, 32, 24, (8, 8), 0.5, torch.float32, device)
    a.requires_grad_()
    b = torch.randn(24, 4, device=device, requires_grad=True)

    @torch.compile(fullgraph=True, backend=backend)
    def f(a, b):
        return sa.matmul(a, b.relu(), activation="gelu").sum() + sa.matmul(b.T, a.T).sum()

    result = f(a, b)
    expected = torch.nn.functional.gelu(dense @ b.relu()).sum() + (b.T @ dense.T).sum()
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-3)
    result.backward()
    assert a.values.grad is not None and b.grad is not None
    with torch.no_grad():
        torch.testing.assert_close(f(a, b), expected.detach(), rtol=1e-4, atol=1e-3)

    @torch.compile(fullgraph=True, backend=backend)
    def g(x, y):
        return sa.sampled_matmul(x, y, a).values * 2

    x, y = torch.randn(32, 3, device=device), torch.randn(3, 24, device=device)
    close(g(x, y), 2 * sa.sampled_matmul(x, y, a).values)


@pytest.mark.slow
def test_compile_with_inductor_and_changing_sizes(device):
    a, dense = tensors(5, 32, 24, (8, 8), 0.5, torch.float32, device)
    f = torch.compile(lambda b: sa.matmul(a, b.relu()) + 1, fullgraph=True, dynamic=True)
    for n in (3, 7, 12):
        b = torch.randn(24, n, device=device)
        close(f(b), dense @ b.relu() + 1)


@pytest.mark.parametrize("strict", [True, False])
def test_export(strict):
    class Product(torch.nn.Module):
        def __init__(self, a):
            super().__init__()
            self.a = a

        def forward(self, b):
            return sa.matmul(self.a, b)

    a, dense = tensors(0, 12, 8, (4, 4), 0.6, torch.float32)
    b = torch.randn(8, 3)
    sa.matmul(a, b)
    program = torch.export.export(Product(a), (b,), strict=strict)
    assert "sparse_autotune.matmul" in str(program.graph)
    close(program.module()(2 * b), dense @ (2 * b))


def test_persistent_memory_is_asked_for_by_another_thread():
    """torch gives what a thread allocates to the CUDA graph that it warms up; tests/test_cuda.py has the
    rest."""
    here = threading.get_ident()
    assert _context._aside(lambda x: (threading.get_ident() != here, x), 7) == (True, 7)
    assert _context._aside(lambda: 1 / 0) is None


def test_operators_break_no_result_inside_compile():
    a, dense = tensors(5, 24, 24, (8, 8), 0.5, torch.float32)
    b = torch.randn(24, 24)
    close(torch.compile(lambda b: a @ b, backend="eager")(b), dense @ b)
    close(torch.compile(lambda b: b @ a, backend="eager")(b), b @ dense)


def test_fake_tensors_and_modes():
    from torch._subclasses.fake_tensor import FakeTensorMode

    a, _ = tensors(5, 32, 24, (8, 8), 0.5, torch.float32)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = sa.matmul(a, torch.empty(24, 5))
    assert type(fake).__name__ == "FakeTensor" and fake.shape == (32, 5)


def test_vmap():
    a, dense = tensors(5, 16, 12, (4, 4), 0.5, torch.float32)
    vectors, batch, rows = torch.randn(5, 12), torch.randn(12, 3, 5), torch.randn(5, 2, 16)
    close(torch.func.vmap(lambda b: sa.matmul(a, b))(vectors), vectors @ dense.T)
    close(
        torch.func.vmap(lambda b: sa.matmul(a, b), in_dims=2)(batch),
        torch.einsum("mk,knb->bmn", dense, batch),
    )
    close(torch.func.vmap(lambda x: sa.matmul(x, a))(rows), rows @ dense)
    values = torch.randn(3, *a.values.shape)
    got = torch.func.vmap(lambda v: sa.matmul(a.with_values(v), vectors[0]))(values)
    close(got, torch.stack([a.with_values(v).to_dense() @ vectors[0] for v in values]))


def test_inference_mode_and_no_grad():
    a, dense = tensors(5, 32, 24, (8, 8), 0.5, torch.float32)
    a.requires_grad_()
    b = torch.randn(24, 5)
    with torch.no_grad():
        assert not (a @ b).requires_grad
    with torch.inference_mode():
        for _ in range(2):
            close(a @ b, dense @ b)
    assert (a @ b).requires_grad


def test_a_parameter_changed_in_place_is_read_again():
    a, dense = tensors(5, 32, 24, (8, 8), 0.5, torch.float32)
    values = torch.nn.Parameter(a.values.clone())
    a, b = a.with_values(values), torch.randn(24, 5)
    with torch.no_grad():
        for factor in (1, 2, 4):
            close(a @ b, factor * dense @ b)
            values.mul_(2)


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (TypeError, "B", lambda a: a @ torch.ones(24, 2, dtype=torch.float64)),
        (TypeError, "B", lambda a: a @ torch.ones(24, 2, dtype=torch.int32)),
        (ValueError, "B", lambda a: a @ torch.ones(23, 2)),
        (ValueError, "B", lambda a: a @ torch.ones(23, 2, requires_grad=True)),
        (TypeError, "B", lambda a: a @ torch.ones(24, 2, dtype=torch.float64, requires_grad=True)),
        (ValueError, "meta", lambda a: a @ torch.ones(24, 2, device="meta")),
        (NotImplementedError, "both sparse", lambda a: a @ torch.eye(24).to_sparse_csr()),
        (TypeError, "A", lambda a: sa.matmul(torch.eye(24).to_sparse(), torch.ones(24, 2))),
        (
            RuntimeError,
            "out",
            lambda a: sa.matmul(a, torch.ones(24, 2, requires_grad=True), out=torch.empty(32, 2)),
        ),
        (
            RuntimeError,
            "out",
            lambda a: sa.matmul(a, torch.ones(24, 2), out=torch.empty(32, 2, requires_grad=True)),
        ),
        (
            RuntimeError,
            "requires grad",
            lambda a: a.with_values(a.values.clone().requires_grad_()) @ np.ones((24, 2), np.float32),
        ),
        (
            RuntimeError,
            "A",
            lambda a: sa.matmul(torch.eye(8).to_sparse_bsr((4, 4)).requires_grad_(), torch.ones(8, 2)),
        ),
        (
            RuntimeError,
            "out_dtype",
            lambda a: sa.matmul(
                a.to(dtype="float16"), torch.ones(24, 2).half().requires_grad_(), out_dtype="float32"
            ),
        ),
        (TypeError, "x", lambda a: sa.BsrMatrix.from_torch(torch.eye(4))),
        (
            TypeError,
            "A has dtype int64",
            lambda a: sa.matmul(torch.eye(8).long().to_sparse_bsr((4, 4)), torch.ones(8, 2)),
        ),
        (
            ValueError,
            "A has 3 dim",
            lambda a: sa.matmul(torch.ones(2, 8, 8).to_sparse_bsr((4, 4)), torch.ones(8, 2)),
        ),
        (
            TypeError,
            "B is a nested tensor",
            lambda a: a @ torch.nested.nested_tensor([torch.ones(24, 2), torch.ones(24, 3)]),
        ),
        (
            TypeError,
            "B is a nested tensor",
            lambda a: (
                a @ torch.nested.nested_tensor([torch.ones(24, 2), torch.ones(23, 2)], layout=torch.jagged)
            ),
        ),
        (
            TypeError,
            "A is a nested tensor",
            lambda a: sa.matmul(torch.nested.nested_tensor([torch.ones(2, 32), torch.ones(3, 32)]), a),
        ),
        (TypeError, "B is a tensor of layout torch._mkldnn", lambda a: a @ torch.ones(24, 2).to_mkldnn()),
        (
            TypeError,
            "Y is a nested tensor",
            lambda a: sa.sampled_matmul(
                torch.ones(32, 2), torch.nested.nested_tensor([torch.ones(2, 24)]), a
            ),
        ),
        (
            ValueError,
            "shape is (32, 24, 3)",
            lambda a: torch.ops.sparse_autotune.matmul(
                a.values, *a._index, torch.ones(24, 2), None, [32, 24, 3]
            ),
        ),
        (
            ValueError,
            "block is (8,)",
            lambda a: torch.ops.sparse_autotune.sampled(
                torch.ones(32, 2), torch.ones(2, 24), *a._index, [32, 24], [8]
            ),
        ),
        (
            ValueError,
            "values",
            lambda a: torch.ops.sparse_autotune.matmul(
                a.values[0], *a._index, torch.ones(24, 2), None, [32, 24]
            ),
        ),
        (
            ValueError,
            "row_ptr",
            lambda a: torch.ops.sparse_autotune.matmul(
                a.values, a._index[1], a._index[0], torch.ones(24, 2), None, [32, 24]
            ),
        ),
    ],
)
def test_bad_input(kind, words, call):
    a, _ = tensors(5, 32, 24, (8, 8), 0.5, torch.float32)
    with pytest.raises(kind) as caught:
        call(a)
    assert words in str(caught.value), str(caught.value)


def test_torch_may_be_imported_later():
    program = """
import numpy as np, sparse_autotune as sa
sa.set_effort("off")
A = sa.BsrMatrix.from_dense(np.eye(8, dtype="f4"), block=4)
import torch
x = torch.ones(8, 2, requires_grad=True)
sa.sampled_matmul(x, torch.ones(2, 8), A).values.sum().backward()
sa.matmul(A, x).sum().backward()
print(x.grad.unique().tolist())
try:
    sa.matmul(A, x.detach(), out=torch.zeros(8, 2, requires_grad=True))
except RuntimeError as error:
    print(error)
"""
    run = run_program(program)
    assert run.stdout.split("\n")[:2] == ["[5.0]", "out requires grad: gradients do not flow through out"], (
        run.stdout + run.stderr
    )


def test_patterns_go_with_their_matrices():
    gc.collect()
    before = len(patterns._patterns)
    for _ in range(200):
        sa.BsrMatrix.from_dense(torch.eye(16), block=4)
        sa.matmul(torch.eye(8).to_sparse_bsr((4, 4)), torch.ones(8, 2))
    gc.collect()
    assert len(patterns._patterns) < before + 150
    alive = [entry for entry in patterns._patterns._entries.values() if entry[2]() is not None]
    assert len(alive) <= before


def test_a_gradient_finds_the_pattern_of_a_matrix_that_is_gone():
    a = sa.BsrMatrix.from_dense(torch.randn(8, 8, dtype=torch.float64), block=4)
    dense, x = a.to_dense(), torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    operator = torch.ops.sparse_autotune.matmul(a.values, *a._index, x, None, [8, 8])
    out = sa.matmul(a, x)
    del a
    gc.collect()
    (operator + out).sum().backward()
    torch.testing.assert_close(x.grad, 2 * dense.T @ torch.ones(8, 3, dtype=torch.float64))


def test_matrices_are_made_in_many_threads():
    wrong = []

    def work(_):
        try:
            for _ in range(100):
                sa.BsrMatrix.from_dense(torch.eye(8), block=2)
        except Exception as error:
            wrong.append(error)

    in_threads(8, work)
    assert not wrong


def test_an_operand_on_meta_beside_others_is_named():
    a = sa.BsrMatrix.from_dense(torch.eye(8), block=4)
    (r, c), b, operators = a._index, torch.randn(8, 2), torch.ops.sparse_autotune
    for call, name in (
        (lambda: operators.matmul(a.values, r.to("meta"), c, b, None, [8, 8]), "row_ptr"),
        (lambda: operators.matmul(a.values, r, c, b, torch.zeros(8, device="meta"), [8, 8]), "bias"),
        (lambda: operators.sampled(b, torch.randn(2, 8, device="meta"), r, c, [8, 8], [4, 4]), "y"),
        (
            lambda: torch.vmap(lambda x: sa.matmul(a, x, bias=torch.zeros(8, device="meta")))(
                torch.randn(3, 8, 2)
            ),
            "bias",
        ),
    ):
        with pytest.raises(RuntimeError, match=f"{name} is on meta"):
            call()


def test_many_gradients_at_once():
    layer = sa.SparseLinear(16, 8, block=4, density=0.5).double()
    for shape in ((16,), (3, 16), (2, 3, 16)):
        x = torch.randn(shape, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian
        torch.testing.assert_close(jacobian(layer, x, vectorize=True), jacobian(layer, x))
    a, b = (
        sa.BsrMatrix.from_dense(torch.randn(8, 8, dtype=torch.float64), block=4),
        torch.randn(8, 3, dtype=torch.float64),
    )
    assert torch.autograd.gradcheck(
        lambda v, x: sa.matmul(a.with_values(v), x),
        (a.values.requires_grad_(), b.requires_grad_()),
        check_batched_grad=True,
    )


def test_a_transpose_has_its_own_statistics():
    a = sa.BsrMatrix.from_dense(
        np.kron([[1, 0, 1, 0, 0], [1, 0, 1, 0, 0], [1, 0, 0, 0, 0]], np.ones((2, 3))), block=(2, 3)
    )
    assert a.T.stats == a.T.contiguous().stats != a.stats


def test_the_package_works_without_torch_and_scipy():
    program = """
import sys
for name in ("torch", "scipy", "cupy", "pandas", "matplotlib"):
    sys.modules[name] = None
import numpy as np, sparse_autotune as sa
sa.set_effort("off")
print((sa.BsrMatrix.from_dense(np.eye(4), 2) @ np.ones(4)).sum())
try:
    sa.SparseLinear
except ImportError:
    print("no torch")
from sparse_autotune import *
print(BsrMatrix is sa.BsrMatrix)
"""
    run = run_program(program)
    assert run.stdout.split("\n")[:3] == ["4.0", "no torch", "True"], run.stderr


def test_bsc_tensors_are_taken_where_bsr_tensors_are(device):
    torch.manual_seed(0)
    dense = torch.randn(24, 16, device=device)
    dense[:8, :4] = 0
    sparse, b = dense.to_sparse_bsc((8, 4)), torch.randn(16, 3, device=device)
    for _ in range(2):
        close(sa.matmul(sparse, b), dense @ b)
        close(sa.matmul(b.new_ones(2, 24), sparse), b.new_ones(2, 24) @ dense)
        sparse.values().mul_(2)  # the blocks stand in another order, and are taken anew at each call
        dense *= 2
    with torch.no_grad():
        sparse.values().data.mul_(0.5)
        dense *= 0.5
    close(sa.matmul(sparse, b), dense @ b)
    turned = sparse.t()  # a BSR tensor whose blocks do not lie row by row
    assert turned.layout is torch.sparse_bsr and not turned.values().is_contiguous()
    for _ in range(2):
        close(sa.matmul(turned, dense), dense.T @ dense)
        turned.values().data.mul_(2)
        dense *= 2
    matrix = sa.BsrMatrix.from_torch(sparse)
    assert matrix.shape == (24, 16) and matrix.block == (8, 4)
    close(matrix.to_dense(), dense)
    values = matrix.values.requires_grad_()
    (matrix @ b).sum().backward()
    assert values.grad is not None
    x = torch.randn(24, 5, device=device)
    sampled = sa.sampled_matmul(x, x.new_ones(5, 16), sparse)
    close(sampled.to_dense(), torch.where(dense != 0, x @ x.new_ones(5, 16), 0))
    with pytest.raises(ValueError, match="A has 3 dimensions"):
        sa.matmul(torch.stack([dense, dense]).to_sparse_bsc((8, 4)), b)
    with pytest.raises(TypeError, match="A has dtype torch.int64|A has dtype int64"):
        sa.matmul(dense.long().to_sparse_bsc((8, 4)), b)


@pytest.mark.parametrize("columns", [False, True])
def test_csr_and_csc_tensors_are_taken_where_bsr_tensors_are(device, columns):
    torch.manual_seed(0)
    dense = torch.randn(24, 16, device=device) * (torch.rand(24, 16, device=device) < 0.3)
    sparse = dense.to_sparse_csc() if columns else dense.to_sparse_csr()
    b = torch.randn(16, 3, device=device)
    for _ in range(2):
        close(sa.matmul(sparse, b), dense @ b)
        close(sa.matmul(b.new_ones(2, 24), sparse), b.new_ones(2, 24) @ dense)
        sparse.values().mul_(2)  # shared: the next product sees it
        dense *= 2
    kept = sa._sparse.as_bsr(sparse, "A")
    assert kept is sa._sparse.as_bsr(sparse, "A") and kept.block == (1, 1)
    assert kept.values.data_ptr() == sparse.values().data_ptr()
    matrix = sa.BsrMatrix.from_torch(sparse)
    assert matrix.shape == (24, 16) and matrix.is_transposed is columns
    assert matrix.values.data_ptr() == sparse.values().data_ptr()
    close(matrix.to_dense(), dense)
    values = matrix.values.requires_grad_()
    (matrix @ b).sum().backward()
    assert values.grad is not None
    x = torch.randn(24, 5, device=device)
    sampled = sa.sampled_matmul(x, x.new_ones(5, 16), sparse)
    close(sampled.to_dense(), torch.where(dense != 0, x @ x.new_ones(5, 16), 0))
    with pytest.raises(TypeError, match="A has dtype torch.int64|A has dtype int64"):
        sa.matmul(dense.long().to_sparse_csr(), b)
    with pytest.raises(ValueError, match="A has 3 dimensions"):
        sa.matmul(torch.stack([dense, dense]).to_sparse_csr(), b)
    with pytest.raises(RuntimeError, match="from_torch"):
        sa.matmul(sparse.detach().requires_grad_(), b)


def test_a_csr_tensor_that_changes_its_columns_is_read_again(device):
    a = torch.tensor([[1.0, 0, 2], [0, 3, 0]], device=device).to_sparse_csr()
    b = torch.arange(6.0, device=device).reshape(3, 2)
    close(sa.matmul(a, b), a.to_dense() @ b)
    a.col_indices()[1] = 1
    close(sa.matmul(a, b), a.to_dense() @ b)


class SparseTensor:
    """What graph libraries have of torch_sparse, as far as it is asked."""

    def __init__(self, dense, weighted=True):
        self.of = dense.to_sparse_csr()
        self.value = self.of.values() if weighted else None

    def csr(self):
        return self.of.crow_indices(), self.of.col_indices(), self.value

    def sparse_sizes(self):
        return self.of.shape


def test_sparse_tensors_of_graph_libraries_are_taken_as_they_are(device):
    dense = torch.tensor([[1.0, 0, 2], [0, 3, 0]], device=device)
    b = torch.arange(6.0, device=device).reshape(3, 2)
    a, ones = SparseTensor(dense), SparseTensor(dense, weighted=False)
    for _ in range(2):
        close(sa.matmul(a, b), dense @ b)
        close(sa.matmul(b.T, SparseTensor(dense.T)), b.T @ dense.T)
        close(sa.matmul(ones, b), (dense != 0).float() @ b)
    assert sa._sparse.as_bsr(a, "A") is sa._sparse.as_bsr(a, "A")
    a.value.mul_(2)
    close(sa.matmul(a, b), 2 * dense @ b)
