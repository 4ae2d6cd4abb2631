"""The fast path past torch's dispatcher: when it is taken, when it gives way, and torch or a package without
what it uses."""

import pytest
from conftest import run_program, tensors
from conftest import tensors_close as close

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode

from sparse_autotune._torch import modes, private
from sparse_autotune._torch import quick as fast_path


@pytest.mark.parametrize("torch_has", ["its function", "none", "another"])
def test_what_makes_results(torch_has, monkeypatch):
    """torch.compile's own function where torch has it and it does what is expected, else empty_strided."""
    if torch_has == "none":
        monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    elif torch_has == "another":
        monkeypatch.setattr(
            torch._C._dynamo.guards, "_empty_strided_cpu", lambda *shape: torch.empty(shape[0])
        )
    private.quick_maker.cache_clear()
    try:
        for like in (
            torch.empty(3, 5),
            torch.empty(5, 3, dtype=torch.bfloat16).T,
            torch.empty(2, 0, 3),
            torch.empty(4).double(),
        ):
            make, arguments = fast_path._maker(like)
            made = make(*arguments)
            assert (made.shape, made.stride(), made.dtype, made.device) == (
                like.shape,
                like.stride(),
                like.dtype,
                like.device,
            )
        a, dense = tensors(0, 12, 8, (4, 4), 0.6, torch.float32)
        b = torch.randn(8, 3)
        for _ in range(3):
            close(sa.matmul(a, b), dense @ b)
        with torch.inference_mode():
            assert sa.matmul(a, b).is_inference()
    finally:
        private.quick_maker.cache_clear()


def test_the_quick_way_is_taken_and_gives_way():
    if sa._quick._fast is None:
        pytest.skip("built without the extension")
    a, dense = tensors(6, 32, 24, (8, 8), 0.5, torch.float32)
    b = torch.randn(24, 5)
    run = a._runner
    assert run(a.values, b) is None
    c = a @ b
    quick = run(a.values, b)
    assert torch.equal(quick, c) and quick.is_contiguous() and quick.untyped_storage().resizable()
    odd = torch.cat([torch.zeros(1), b.flatten()])[1:].view(24, 5)  # less aligned than the plan wants
    for other in (
        b.double(),
        b[:, :4],
        b.T.contiguous().T,
        b.numpy(),
        b.clone().requires_grad_(),
        torch.nn.Parameter(b),
        None,
        odd,
    ):
        assert run(a.values, other) is None
    with torch.no_grad():
        assert run(a.values, torch.nn.Parameter(b)) is not None
    with torch.autocast("cpu"):
        assert run(a.values, b) is None
    with sa.set_effort("cached"):
        assert run(a.values, b) is None
    assert run(a.values, b) is not None and run(a.values) is None and run(a.values, b, b, b) is None


def test_the_quick_way_into_memory_that_is_given(device):
    a, dense = tensors(6, 32, 32, (8, 8), 0.5, torch.float32, device)
    b, out = torch.randn(32, 5, device=device), torch.full((32, 5), torch.nan, device=device)
    for quick in (False, True, True):
        out.fill_(torch.nan)
        version = out._version
        assert sa._quick._fast is None or (a._into(a.values, b, out) is not None) == quick
        out.fill_(torch.nan)
        # fill_ counts, and so does the product
        assert sa.matmul(a, b, out=out) is out and out._version > version + 1
        close(out, dense @ b)
    left = torch.full((5, 32), torch.nan, device=device)
    for _ in range(2):
        assert sa.matmul(b.T, a, out=left.fill_(torch.nan)) is left
        close(left, b.T @ dense)
    saved = out.clone().requires_grad_()
    square = (saved * 1) ** 2
    for wrong in (saved, out.double(), out[:, :4], b):
        with pytest.raises((RuntimeError, TypeError, ValueError), match="out"):
            sa.matmul(a, b, out=wrong)
    square.sum().backward()
    x = torch.randn(32, 5, device=device, requires_grad=True)
    product = x * out
    sa.matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()
    with torch.inference_mode():
        inside = torch.empty(32, 5, device=device)
        for _ in range(2):
            close(sa.matmul(a, b, out=inside.fill_(torch.nan)), dense @ b)


OLD_TORCH = """
import torch
torch.Tensor.__dlpack_c_exchange_api__ = None  # as before 2.10
import sparse_autotune as sa
sa.set_effort("off")
for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
    dense = torch.randn(32, 24).to(dtype)
    a, b, x = sa.BsrMatrix.from_dense(dense, 8), torch.randn(24, 5).to(dtype), torch.randn(2, 3, 32).to(dtype)
    for _ in range(3):
        torch.testing.assert_close(a @ b, dense @ b, rtol=5e-2, atol=5e-1)
        torch.testing.assert_close(x @ a, x @ dense, rtol=5e-2, atol=5e-1)
    assert a._runner(a.values, b) is not None and a._left_runner(a.values, x) is not None
    assert a._runner(a.values, b.to("meta")) is None
    q, k, v = (torch.randn(1, 2, 16, 8).to(dtype).requires_grad_() for _ in range(3))
    own = torch.nn.functional.scaled_dot_product_attention
    for _ in range(3):
        got, wanted = sa.attention(q, k, v), own(q, k, v)
        torch.testing.assert_close(got, wanted, rtol=5e-2, atol=5e-2)
        pair = [torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (got, wanted)]
        torch.testing.assert_close(*pair, rtol=5e-2, atol=5e-1)
    assert sa._quick._fast.plain(q, None, v) and not sa._quick._fast.plain(q, v.detach().to_sparse())
print("fine")
"""


def test_what_is_plain():
    """C says yes only where the full question has that answer."""
    if sa._quick._fast is None:
        pytest.skip("built without the extension")
    ask, x = sa._quick._fast.plain, torch.ones(2, 3)
    assert ask(x, None, torch.nn.Parameter(x), x.T) and modes.plain(x, None)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    class Mine(torch.Tensor):
        pass

    for other in (x.numpy(), 3, x.to_sparse(), nested, x.as_subclass(Mine), torch.ones(2, device="meta")):
        assert not ask(x, other)
    found = []
    torch.vmap(lambda y: found.extend([ask(y), ask(x)]) or y)(x)
    torch.func.functionalize(lambda y: found.extend([ask(y), ask(x)]) or y)(x)
    assert found == [False] * 4
    left = []
    torch.vmap(lambda y: left.append(y) or y)(x)
    assert not ask(*left)
    with FakeTensorMode():
        assert not ask(x)
    assert ask(x)


def test_torch_without_exchange_functions():
    if sa._quick._fast is None:
        pytest.skip("built without the extension")
    run = run_program(OLD_TORCH)
    assert run.stdout.strip() == "fine", run.stderr


def test_without_the_extension_everything_works():
    program = """
import sys, torch, numpy as np
sys.modules["sparse_autotune._fast"] = None
import sparse_autotune as sa
assert sa._quick._fast is None
sa.set_effort("off")
n = sa.BsrMatrix.from_dense(np.eye(8), 4)
for _ in range(2):
    assert (n @ np.ones((8, 2)) == 1).all() and (np.ones(8) @ n == 1).all()
a = sa.BsrMatrix.from_dense(torch.eye(8), 4)
v = a.values.requires_grad_()
b = torch.ones(8, 2, requires_grad=True)
for _ in range(2):
    (a @ b).sum().backward()
    sa.SparseLinear(8, 8, 4, 0.5)(b.detach().T)
assert (b.grad == 2).all()
print("fine")
"""
    run = run_program(program)
    assert run.stdout.strip() == "fine", run.stderr
