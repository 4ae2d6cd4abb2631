"""PyTorch: what traces, modes and checkpoints see of a product, and that nothing of theirs stays."""

import re
import threading
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
from conftest import matrix

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

# ---- traces ----


def jit_trace(f, example):
    traced = torch.jit.trace(f, example, check_trace=False)
    return traced, str(traced.inlined_graph if isinstance(f, torch.nn.Module) else traced.graph)


def fx_trace(f, example, **words):
    traced = make_fx(f, **words)(example)
    return traced, str(traced.graph)


FX_TRACES = [fx_trace, pytest.param(partial(fx_trace, pre_dispatch=True), id="fx_trace_early")]


@pytest.mark.parametrize("trace", [jit_trace, *FX_TRACES])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_traces_hold_the_operator(trace, grad):
    layer = sa.SparseLinear(64, 48, block=16, density=0.5, activation="gelu")
    a, pattern = sa.BsrMatrix.from_dense(torch.randn(48, 64), 16), sa.BsrMatrix.from_dense(torch.eye(3), 2)
    functions = [
        layer,
        lambda x: sa.matmul(a, x.T),
        lambda x: a @ x.T,
        lambda x: x @ a.T,
        lambda x: sa.sampled_matmul(x, x.T, pattern).values,
    ]
    x, zeros = torch.randn(3, 64), torch.zeros(3, 64)
    with torch.set_grad_enabled(grad):
        for f in functions:
            for _ in range(2):
                f(zeros)  # so that there is a fast path
            traced, graph = trace(f, zeros)
            assert re.search(r"sparse_autotune(::|\.)(matmul|sampled)", graph)
            torch.testing.assert_close(traced(x), f(x))


def traced_calls():
    """Functions of a square x of 8."""
    a, mask = sa.BsrMatrix.from_dense(torch.randn(8, 8), 2, keep=0.5), sa.AttentionMask.window(8, 3, block=2)
    return [
        sa.SparseLinear(8, 8, block=2, density=0.5),
        lambda x: a @ x,
        lambda x: sa.sampled_matmul(x, x.T, a).values,
        lambda x: sa.attention(x, x, x, mask),
    ]


@pytest.mark.parametrize("trace", FX_TRACES)
@pytest.mark.parametrize("number", range(4))
def test_traces_of_a_backward_pass_hold_the_operator(trace, number):
    f, x = traced_calls()[number], torch.randn(8, 8, requires_grad=True)
    y = f(x)
    backward = lambda g: torch.autograd.grad(y, x, g, retain_graph=True)[0]  # noqa: E731
    g = torch.randn_like(y)
    traced, graph = trace(backward, g)
    assert "sparse_autotune." in graph
    torch.testing.assert_close(traced(3 * g), backward(3 * g))


class ByMatrix(torch.autograd.Function):
    """Its backward pass is a product of ours, which torch's modes for functions do not surround."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.a = a
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad @ ctx.a, None


@pytest.mark.parametrize("trace", FX_TRACES)
def test_products_of_ours_in_a_backward_pass_are_traced(trace):
    a, dense = matrix()

    def f(x):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(ByMatrix.apply(x, a).pow(2).sum(), x)[0]

    x = torch.randn(3, 16)
    torch.testing.assert_close(trace(f, x)[0](3 * x), 6 * x @ dense)


def test_a_trace_in_another_thread_is_not_ours():
    a, b = sa.BsrMatrix.from_dense(torch.randn(16, 16), 4, keep=0.5), torch.randn(16, 4)
    traced, found = threading.Event(), []

    def other(x):
        # refused where somebody traces
        thread = threading.Thread(target=lambda: found.append(sa.matmul(a, b, out_dtype="float32")))
        thread.start()
        thread.join()
        traced.set()
        return x + 1

    make_fx(other, pre_dispatch=True)(torch.ones(2))
    assert traced.is_set() and len(found) == 1
    torch.testing.assert_close(found[0], a.to_dense() @ b)


def test_gradients_of_attention_for_many_at_once():
    mask = sa.AttentionMask.window(8, 3, block=2)
    q = torch.randn(1, 1, 8, 8, requires_grad=True)
    y, gs = sa.attention(q, q, q, mask), torch.randn(3, 1, 1, 8, 8)
    many = torch.autograd.grad(y, q, gs, retain_graph=True, is_grads_batched=True)[0]
    torch.testing.assert_close(
        many, torch.stack([torch.autograd.grad(y, q, g, retain_graph=True)[0] for g in gs])
    )


# ---- what is kept is made outside of modes ----


@pytest.mark.parametrize(
    "around",
    [
        partial(FakeTensorMode, allow_non_fake_inputs=True),
        FakeTensorMode,
        partial(FlopCounterMode, display=False),
    ],
)
def test_indices_made_in_a_mode_serve_outside(around):
    parts = [0, 1, 2], [0, 1], np.ones((2, 4, 4), np.float32)
    with around():
        mask = sa.AttentionMask.window(8, 3, block=2)
        a = sa.BsrMatrix(*parts, (8, 8))
        x = torch.ones(8, 8)
        assert type(sa.attention(x, x, x, mask)) is type(sa.sampled_matmul(x, x, a).values) is type(x)
    x = torch.randn(3, 8, 8)
    for f, wanted in (
        (lambda x: sa.attention(x, x, x, mask), torch.stack([sa.attention(y, y, y, mask) for y in x])),
        (
            lambda x: sa.sampled_matmul(x, x, a).values,
            torch.stack([sa.sampled_matmul(y, y, a).values for y in x]),
        ),
    ):
        found = torch.vmap(f)(x)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(
        torch.compile(lambda x: sa.attention(x, x, x, mask), backend="eager")(x[0]),
        sa.attention(x[0], x[0], x[0], mask),
    )


def test_a_pattern_from_outside_serves_in_a_fake_mode():
    a, _ = matrix()
    with FakeTensorMode():
        x = torch.randn(16, 16)
        assert sa.sampled_matmul(x, x, a).values.shape == a.values.shape


def test_autocast_of_one_device_leaves_another_alone():
    mask = sa.AttentionMask.window(8, 3, block=2)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu"):
        x = torch.empty(8, 8, device="cuda")
        assert sa.attention(x, x, x, mask).dtype == torch.float32


def test_indices_made_in_functionalize_serve_outside():
    a, x = sa.BsrMatrix([0, 1, 2], [0, 1], np.ones((2, 4, 4), np.float32), (8, 8)), torch.randn(8, 8)
    torch.func.functionalize(lambda x: sa.sampled_matmul(x, x, a).values)(x)
    with torch.autocast("cpu"):
        found = sa.sampled_matmul(x, x, a).values
    assert type(found) is torch.Tensor and not torch._is_functional_tensor(found)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("seen", ["forward", "backward"])
def test_a_mode_may_see_half_of_a_checkpoint(number, seen):
    f, x = traced_calls()[number], torch.randn(8, 8, requires_grad=True)
    with FlopCounterMode(display=False) if seen == "forward" else nullcontext():
        y = checkpoint(f, x, use_reentrant=False).square().sum()
    with FlopCounterMode(display=False) if seen == "backward" else nullcontext():
        y.backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(f(x).square().sum(), x)[0])


def test_gradients_on_meta_are_refused_by_name():
    a, x = matrix(8, 4)[0], torch.randn(8, 8, device="meta", requires_grad=True)
    for call, name in (
        (lambda: sa.attention(x, x, x), "q"),
        (lambda: sa.sampled_matmul(x, x, a), "X"),
        (lambda: sa.matmul(a, x), "B"),
    ):
        with pytest.raises(ValueError, match=f"{name} is on meta"):
            call()


@pytest.mark.filterwarnings("ignore")
def test_jit_traces_an_activation():
    a = sa.BsrMatrix.from_dense(torch.randn(16, 16), block=8)
    x = torch.randn(16, 3)
    for f, y in (
        (lambda x: sa.matmul(a, x, activation="gelu"), x),
        (sa.SparseLinear(3, 16, block=8, density=0.5, activation="gelu"), x),
    ):
        traced = torch.jit.trace(f, y)  # compares traces with and without gradients
        torch.testing.assert_close(traced(2 * y), f(2 * y))


# ---- sparse tensors in compiled code ----


@pytest.mark.parametrize("layout", ["bsr", "bsc"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore")
def test_sparse_tensors_serve_in_compiled_code(backend, layout, device):
    """torch.compile leaves the frames that hold them to Python, and must not stumble over what those call."""
    dense = torch.randn(16, 16, device=device)
    dense[:4, 4:12] = 0
    sparse, b = getattr(dense, f"to_sparse_{layout}")((4, 4)), torch.randn(16, 3, device=device)
    q = torch.randn(1, 2, 16, 8, device=device)
    keeps = (
        torch.kron(
            torch.ones(4, 4, device=device).index_put(
                (torch.tensor(0, device=device), torch.tensor([1, 2], device=device)),
                torch.zeros(2, device=device),
            ),
            torch.ones(4, 4, device=device),
        )
        > 0
    )
    for call, arguments, expected in (
        (lambda s, x: sa.matmul(s, x + 1) * 2, (b,), dense @ (b + 1) * 2),
        (lambda s, x: sa.matmul(x.t(), s, activation="relu"), (b,), (b.t() @ dense).relu()),
        (lambda s, x: sa.sampled_matmul(x, x.t(), s).to_dense(), (b,), torch.where(keeps, b @ b.t(), 0)),
        (lambda s, x: sa.matmul(sa.BsrMatrix.from_torch(s), x), (b,), dense @ b),
        (
            lambda s, x: sa.attention(x, x, x, attn_mask=s),
            (q,),
            torch.nn.functional.scaled_dot_product_attention(q, q, q, keeps),
        ),
        (
            lambda s, x: sa.attention(x, x, x, s),
            (q,),
            torch.nn.functional.scaled_dot_product_attention(q, q, q, keeps),
        ),
    ):
        for grad in (False, True):
            torch._dynamo.reset()
            compiled, given = (
                torch.compile(call, backend=backend),
                [x.clone().requires_grad_(grad) for x in arguments],
            )
            for _ in range(2):
                got = compiled(sparse, *given)
                torch.testing.assert_close(got.detach(), expected, rtol=1e-4, atol=1e-4)
            assert got.requires_grad == grad
    matrix = sa.BsrMatrix.from_torch(sparse)
    torch._dynamo.reset()
    whole = torch.compile(lambda m, x: sa.matmul(m, x), backend=backend, fullgraph=True)
    torch.testing.assert_close(whole(matrix, b), dense @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_what_is_called_with_a_sparse_tensor_is_not_compiled():
    """Piece by piece: that takes seconds, and gains nothing."""
    sparse, x = torch.randn(16, 16).to_sparse_bsr((4, 4)), torch.randn(1, 2, 16, 8)
    for call in (
        lambda s: sa.matmul(s, x[0, 0]),
        lambda s: sa.matmul(x[0, 0].t(), s),
        lambda s: sa.attention(x, x, x, attn_mask=s),
    ):
        graphs = []
        torch._dynamo.reset()
        got = torch.compile(call, backend=lambda graph, _: graphs.append(graph) or graph.forward)(sparse)
        assert graphs == []
        torch.testing.assert_close(got, call(sparse))
