"""PyTorch: torch's own rules hold on every way that a product takes: out and beta, negated views, versions,
tangents, numbers, values that were replaced. Traces and modes have a file of their own."""

import copy
import re

import numpy as np
import pytest
from conftest import matrix

import sparse_autotune as sa
from sparse_autotune import _products

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.autograd import forward_ad

WAYS = ["eager", "autocast", "vmap", "compile"]


def by_way(way, call, *tensors):
    """call(*tensors), in which the last tensor is an out, in one of the ways."""
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return call(*tensors)
    if way == "vmap":
        return torch.func.vmap(call)(*(t.unsqueeze(0) for t in tensors)).squeeze(0)
    return (
        torch.compile(call, backend="eager", fullgraph=True)(*tensors) if way == "compile" else call(*tensors)
    )


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("way", WAYS)
def test_the_activation_waits_for_beta(way, activation):
    (a, dense), (b, out), bias = matrix(), torch.randn(2, 16, 3), torch.randn(16)
    inner = dense @ b + 2 * out + bias[:, None]
    expected = inner if activation is None else getattr(torch.nn.functional, activation)(inner)
    got = by_way(
        way, lambda b, o: sa.matmul(a, b, out=o, beta=2.0, bias=bias, activation=activation), b, out.clone()
    )
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=1e-1 if way == "autocast" else 1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_an_out_that_does_not_fit(way):
    (a, _), b = matrix(), torch.randn(16, 3)
    wrong = [
        (ValueError, torch.zeros(5, 16, 3)),
        (ValueError, torch.zeros(16, 1)),
        (TypeError, torch.zeros(16, 3, dtype=torch.float64)),
    ]
    for kind, out in wrong:
        with pytest.raises(kind if way != "compile" else Exception, match="out has"):
            by_way(way, lambda b, o: sa.matmul(a, b, out=o), b, out)


@pytest.mark.parametrize("way", WAYS)
def test_beta_without_out(way):
    (a, _), b = matrix(), torch.randn(16, 3)
    kind = ValueError if way != "compile" else Exception
    with pytest.raises(kind, match="without out"):
        by_way(way, lambda b: sa.matmul(a, b, beta=1.0), b)
    with pytest.raises(kind, match="without out"):
        by_way(way, lambda b: sa.sampled_matmul(b, b.t(), a, beta=1.0).values, b)


def test_beta_without_out_beside_gradients():
    (a, _), b = matrix(), torch.randn(16, 3, requires_grad=True)
    with pytest.raises(ValueError, match="without out"):
        sa.matmul(a, b, beta=1.0)
    with pytest.raises(ValueError, match="without out"):
        sa.sampled_matmul(b, b.t(), a, beta=1.0)


def negated(*shape):
    x = torch.randn(*shape, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    return x


def test_negated_views_are_operands():
    a, dense = matrix()
    for make in (
        lambda: negated(16, 3),
        lambda: negated(16),
        lambda: negated(16).unsqueeze(-1),
        lambda: negated(2, 16, 3),
    ):
        for _ in range(2):  # a plan that the fast path keeps for a plain tensor must not serve
            c = make()
            plain = torch.empty_strided(c.shape, c.stride()).copy_(c)
            torch.testing.assert_close(a @ plain, dense @ c)
            torch.testing.assert_close(a @ c, dense @ c)
            torch.testing.assert_close(
                sa.matmul(c.mT if c.dim() > 1 else c, a), (c.mT if c.dim() > 1 else c) @ dense
            )
    b, bias = torch.randn(16, 3), negated(16)
    for _ in range(2):
        torch.testing.assert_close(sa.matmul(a, b, bias=bias), dense @ b + bias[:, None])
    values = negated(*a.values.shape)
    torch.testing.assert_close(a.with_values(values) @ b, a.with_values(values.resolve_neg()) @ b)
    x, y = negated(16, 3), negated(3, 16)
    torch.testing.assert_close(sa.sampled_matmul(x, y, a).to_dense(), x @ y)
    g = negated(16, 3).requires_grad_()
    (a @ g).square().sum().backward()
    torch.testing.assert_close(g.grad, 2 * dense.T @ (dense @ g.detach()))
    layer = sa.SparseLinear(16, 16, 4, 1.0)
    for _ in range(2):
        torch.testing.assert_close(layer(y), layer(y.resolve_neg()))


def test_negated_views_of_attention():
    q, k, v = (negated(1, 2, 16, 8) for _ in range(3))
    plain = [x.resolve_neg().requires_grad_() for x in (q, k, v)]
    expected = sa.attention(*plain)
    for _ in range(2):
        torch.testing.assert_close(sa.attention(q, k, v), expected)
    grad = negated(1, 2, 16, 8)
    got, wanted = (
        torch.autograd.grad(sa.attention(*plain), plain, grad),
        torch.autograd.grad(expected, plain, grad.resolve_neg()),
    )
    for x, y in zip(got, wanted):
        torch.testing.assert_close(x, y)


def test_a_negated_view_of_any_strides_is_read_right():
    a = sa.BsrMatrix.from_dense(torch.randn(24, 16), 8)
    plain = torch.randn(16, 5)
    negated = torch._neg_view(-plain)
    assert negated.is_neg() and negated.stride() == plain.stride()
    for _ in range(2):
        for b in (plain, negated):
            torch.testing.assert_close(a @ b, a.to_dense() @ plain)
    out = torch.empty(24, 5)
    for _ in range(2):
        sa.matmul(a, plain, out=out)
        with pytest.raises(ValueError, match="negates"):
            sa.matmul(a, plain, out=torch._neg_view(torch.empty(24, 5)))


def test_zeros_without_memory_are_operands_and_gradients():
    a, dense = matrix()
    zeros = torch._efficientzerotensor
    for _ in range(2):
        for b in (zeros((16, 3)), zeros((2, 16, 3)), zeros(16)):
            # a plan that the fast path keeps
            torch.testing.assert_close(a @ torch.ones(b.shape), dense @ torch.ones(b.shape))
            assert torch.equal(a @ b, dense @ b)
        assert torch.equal(
            sa.sampled_matmul(zeros((16, 3)), torch.ones(3, 16), a).values, torch.zeros_like(a.values)
        )
    x = torch.randn(16, 3, requires_grad=True)
    layer, heads = sa.SparseLinear(16, 8, 4), torch.randn(1, 2, 16, 8, requires_grad=True)
    operator = torch.ops.sparse_autotune.matmul(a.values.requires_grad_(), *a._index, x, None, [16, 16])
    for y, inputs in (
        (a @ x, (a.values, x)),
        (operator, (a.values, x)),
        (layer(x.t()), (x, *layer.parameters())),
        (sa.attention(heads, heads, heads), (heads,)),
    ):
        for found, given in zip(torch.autograd.grad(y, inputs, zeros(y.shape)), inputs):
            assert found.shape == given.shape and not found.any()
    with pytest.raises(ValueError, match="out is .*zeros without memory"):
        sa.matmul(a.detach(), x.detach(), out=zeros((16, 3)))


def test_a_negated_out_is_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    with pytest.raises(ValueError, match="out is a view"):
        sa.matmul(a, b, out=negated(16, 3))


def test_indices_rewritten_in_inference_mode_are_read_again():
    """Torch counts no writes to tensors that were made there."""
    with torch.inference_mode():
        values, b = torch.randn(2, 4, 4), torch.randn(16, 3)
        row_ptr, col_idx = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
        sparse = torch.sparse_bsr_tensor(row_ptr.clone(), col_idx.clone(), values, (8, 16))
        layer = sa.SparseLinear.from_matrix(sa.BsrMatrix.from_torch(sparse))
        assert layer.col_idx.is_inference()
        mask = torch.tensor([0, 1, 0])  # row_ptr and col_idx: one row of blocks, one of them stored
        q = torch.randn(1, 1, 16, 8)
        for column in (0, 3, 1):
            for index in (col_idx, sparse.col_indices(), layer.col_idx):
                index[0] = column
            mask[2] = column
            expected = torch.zeros(8, 16)
            expected[:4, 4 * column : 4 * column + 4], expected[4:, 4:8] = values
            torch.testing.assert_close(
                torch.ops.sparse_autotune.matmul(values, row_ptr, col_idx, b, None, [8, 16]), expected @ b
            )
            torch.testing.assert_close(sa.matmul(sparse, b), expected @ b)
            torch.testing.assert_close(layer(b.T.contiguous()), b.T @ expected.T)
            seen = q[..., 4 * column : 4 * column + 4, :]
            out, _ = torch.ops.sparse_autotune.attention(q, q, q, mask, [16, 16, 16, 4, 1, 0])
            torch.testing.assert_close(out, torch.nn.functional.scaled_dot_product_attention(q, seen, seen))


def test_indices_of_inference_mode_are_traced():
    """Fakes of them hold nothing that could be compared."""
    layer, x = sa.SparseLinear(32, 48, block=8, density=0.3), torch.randn(2, 32)
    with torch.inference_mode():
        layer.row_ptr, layer.col_idx = layer.row_ptr.clone(), layer.col_idx.clone()
    expected = layer(x)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), expected)
    make_fx, b = torch.fx.experimental.proxy_tensor.make_fx, torch.randn(16, 3)
    with torch.inference_mode():
        sparse = torch.sparse_bsr_tensor(
            torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.randn(2, 4, 4), (8, 16)
        )
    expected = sa.matmul(sparse, b)
    for traced in (
        make_fx(lambda b: sa.matmul(sparse, b))(b),
        torch.jit.trace(lambda b: sa.matmul(sparse, b), (b,)),
    ):
        torch.testing.assert_close(traced(b), expected)

    def gradient(values, x):
        return torch.autograd.grad(
            torch.ops.sparse_autotune.matmul(
                values, layer.row_ptr, layer.col_idx, x, None, [48, 32], True, True
            ).sum(),
            values,
        )[0]

    values = layer.values.detach().requires_grad_()
    for mode in ("real", "fake", "symbolic"):
        traced = make_fx(gradient, tracing_mode=mode, _allow_non_fake_inputs=True)(values, x)
        torch.testing.assert_close(traced(values, x), gradient(values, x))


def test_a_sparse_tensor_changed_in_place_is_read_again():
    first, second = (torch.kron(x, torch.ones(4, 4)) for x in (torch.eye(3), torch.eye(3).flip(0)))
    x, b = first.to_sparse_bsr((4, 4)), torch.randn(12, 3)
    torch.testing.assert_close(sa.matmul(x, b), first @ b)
    made = sa._sparse.as_bsr(x, "A")
    x.values().mul_(2)
    torch.testing.assert_close(sa.matmul(x, b), 2 * first @ b)
    assert sa._sparse.as_bsr(x, "A") is made  # the values are shared, and the indices are what they were
    x.col_indices().copy_(torch.tensor([2, 1, 0]))
    torch.testing.assert_close(sa.matmul(x, b), 2 * second @ b)
    x.copy_(first.to_sparse_bsr((4, 4)))
    torch.testing.assert_close(sa.matmul(x, b), first @ b)
    for mode in (torch.no_grad, torch.inference_mode):  # torch counts none of these
        with mode():
            row_ptr, col_idx = torch.arange(4), torch.arange(3)
        x = torch.sparse_bsr_tensor(row_ptr, col_idx, torch.ones(3, 4, 4), (12, 12))
        torch.testing.assert_close(sa.matmul(x, b), first @ b)
        with mode():
            col_idx.copy_(torch.tensor([2, 1, 0]))
        torch.testing.assert_close(sa.matmul(x, b), second @ b)
        with mode():
            x.col_indices().data.copy_(torch.arange(3))
        torch.testing.assert_close(sa.matmul(x, b), first @ b)


def test_forward_mode_is_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    layer = sa.SparseLinear(16, 16, 4, 1.0)
    q = torch.randn(1, 2, 16, 8)
    calls = [
        (lambda b: a @ b, b),
        (lambda b: b.t() @ a, b),
        (lambda b: sa.matmul(a, b), b),
        (lambda b: sa.matmul(a, b, bias=b[:, 0]), b),
        (lambda b: sa.sampled_matmul(b, b.t(), a).values, b),
        (lambda v: a.with_values(v) @ b, a.values),
        (lambda b: layer(b.t()), b),
        (lambda q: sa.attention(q, q, q), q),
        (lambda b: torch.func.vmap(lambda c: sa.matmul(a, c), in_dims=1)(b), b),
    ]
    for call, x in calls:
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                call(x), call(x)  # the fast path has its plan
                with pytest.raises(NotImplementedError, match="forward-mode"):
                    torch.func.jvp(call, (x,), (x,))
                with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
                    call(forward_ad.make_dual(x, x))
    with forward_ad.dual_level():  # what has no tangent goes on
        a @ b
        torch.func.vmap(lambda c: sa.matmul(a, c), in_dims=1)(b)


def test_grad_of_torch_func_is_refused():
    a, dense = matrix()
    layer, b = sa.SparseLinear(16, 16, 4, 0.5), torch.randn(3, 16, 16)
    functions = [
        lambda x: sa.matmul(a, x),
        lambda x: x @ a,
        layer,
        lambda x: sa.sampled_matmul(x, x, a).values,
    ]
    for f in functions:
        for call in (
            torch.func.grad(lambda x, f=f: f(x).sum()),
            torch.func.jacrev(f),
            lambda x, f=f: torch.func.vjp(f, x),
        ):
            with pytest.raises(NotImplementedError, match=r"torch\.func"):
                call(b[0])
        with pytest.raises(NotImplementedError, match=r"torch\.func"):
            torch.func.vmap(torch.func.grad(lambda x, f=f: f(x).sum()))(b)
    torch.testing.assert_close(
        torch.func.grad(lambda x: (x * sa.matmul(a, b[1])).sum())(b[0]), dense @ b[1], rtol=1e-4, atol=1e-4
    )


def test_gradients_of_torch_func_are_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    q, other = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    calls = [
        (lambda b: sa.matmul(a, b), b),
        (lambda b: a @ b, b),
        (lambda v: sa.matmul(a.with_values(v), b), a.values),
        (lambda b: sa.sampled_matmul(b, b.t(), a).values, b),
        (lambda q: sa.attention(q, other, other), q),
        (lambda q: torch.func.vmap(lambda x: sa.attention(x, x, x))(q), q),
    ]
    for call, x in calls:
        call(x), call(x)  # the fast path has its plan
        for transform in (torch.func.grad, torch.func.jacrev, lambda f: lambda t: torch.func.vjp(f, t)):
            with pytest.raises(NotImplementedError, match="grad, vjp or jacrev"):
                transform(lambda x, call=call: call(x).sum())(x)
    with pytest.raises(NotImplementedError, match="grad, vjp or jacrev"):
        torch.func.vmap(torch.func.grad(lambda q: sa.attention(q, q, q).sum()))(q)
    scale = torch.ones(())  # what is not differentiated goes on
    torch.testing.assert_close(
        torch.func.grad(lambda s: (s * sa.attention(q, q, q)).sum())(scale), sa.attention(q, q, q).sum()
    )


def test_out_counts_as_written():
    (a, _), b = matrix(), torch.randn(16, 3)
    out, before = torch.ones(16, 3), 0
    for _ in range(2):
        sa.matmul(a, b, out=out)
        assert out._version > before
        before = out._version
    w = torch.ones(16, 3, requires_grad=True)
    loss = (w * out).sum()
    sa.matmul(a, b, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        loss.backward()
    target = a.with_values(torch.zeros_like(a.values))
    sa.sampled_matmul(b, b.t(), a, out=target)
    assert target.values._version > 0
    with torch.inference_mode():
        sa.matmul(a, b, out=torch.empty(16, 3))


def test_every_alpha_does_not_stay():
    (a, dense), b = matrix(), torch.randn(16, 3)
    a @ b
    for i in range(60):
        torch.testing.assert_close(sa.matmul(a, b, alpha=i / 8), i / 8 * (dense @ b), rtol=1e-4, atol=1e-4)
        sa.sampled_matmul(b, b.t(), a, alpha=i / 8)
    assert len(a._pattern.caches) < 40
    assert sa._quick._fast is None or a._runner(a.values, b) is not None


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (TypeError, "bias is a ndarray", lambda a, b: sa.matmul(a, b, bias=np.zeros(16, "f4"))),
        (
            TypeError,
            "bias is a ndarray",
            lambda a, b: sa.matmul(a, b.requires_grad_(), bias=np.zeros(16, "f4")),
        ),
        (
            RuntimeError,
            "alpha requires grad",
            lambda a, b: sa.matmul(a, b, alpha=torch.tensor(1.0, requires_grad=True)),
        ),
        (
            RuntimeError,
            "beta requires grad",
            lambda a, b: sa.matmul(a, b, out=b.clone(), beta=torch.tensor(1.0, requires_grad=True)),
        ),
        (
            RuntimeError,
            "alpha requires grad",
            lambda a, b: sa.sampled_matmul(b, b.t(), a, alpha=torch.tensor(1.0, requires_grad=True)),
        ),
        (ValueError, "alpha", lambda a, b: sa.matmul(a, b, alpha=10**400)),
        (TypeError, "alpha is a ndarray", lambda a, b: sa.matmul(a, b, alpha=np.ones(3))),
        (TypeError, "alpha is a ndarray", lambda a, b: sa.matmul(a, b, alpha=np.ones(1))),
        (TypeError, "alpha is a Tensor", lambda a, b: sa.matmul(a, b, alpha=torch.ones(3))),
        (TypeError, "beta is a ndarray", lambda a, b: sa.matmul(a, b, beta=np.zeros(3))),
        (TypeError, "alpha is a str", lambda a, b: sa.matmul(a, b, alpha="2")),
        (
            RuntimeError,
            "bias requires grad",
            lambda a, b: sa.matmul(in_numpy(a), b.numpy(), bias=torch.zeros(16, requires_grad=True)),
        ),
        (
            RuntimeError,
            "Y requires grad",
            lambda a, b: sa.sampled_matmul(b.numpy(), b.t().clone().requires_grad_(), a),
        ),
        (
            TypeError,
            "Y is a ndarray",
            lambda a, b: sa.sampled_matmul(b.clone().requires_grad_(), b.t().numpy(), a),
        ),
        (
            RuntimeError,
            "out requires grad",
            lambda a, b: sa.sampled_matmul(b, b.t(), a, out=a.with_values(a.values.clone().requires_grad_())),
        ),
        (
            RuntimeError,
            "out requires grad",
            lambda a, b: sa.matmul(in_numpy(a), b.numpy(), out=torch.zeros(16, 3, requires_grad=True)),
        ),
    ],
)
def test_what_would_be_lost_is_refused(kind, words, call):
    a, _ = matrix()
    b = torch.randn(16, 3)
    for warm in (False, True):
        if warm:
            a @ b
        with pytest.raises(kind, match=words):
            call(a, b.clone())


def in_numpy(a):
    return sa.BsrMatrix(a.row_ptr, a.col_idx, a.values.numpy(), a.shape)


def test_numbers_of_any_kind():
    (a, dense), b = matrix(), torch.randn(16, 3)
    for two in (2, np.float32(2), np.array(2.0), torch.tensor(2.0)):
        torch.testing.assert_close(sa.matmul(a, b, alpha=two), 2 * (dense @ b), rtol=1e-4, atol=1e-4)


def test_a_compiled_sampled_product_names_its_pattern():
    (a, _), x = matrix(), torch.randn(16, 3)
    plain = in_numpy(a)
    with pytest.raises(Exception, match="pattern: inside"):
        torch.compile(lambda x: sa.sampled_matmul(x, x.t(), plain).values, backend="eager", fullgraph=True)(x)
    got = torch.compile(lambda x: sa.sampled_matmul(x, x.t(), a).values, backend="eager", fullgraph=True)(x)
    torch.testing.assert_close(got, sa.sampled_matmul(x, x.t(), a).values)


# ---- values that changed after their matrix was made ----


def replaced(layer, values, how):
    """A call of the layer with other values, brought in one way or another."""
    if how == "assigned":
        layer.values = nn.Parameter(values)
    elif how == "data":
        layer.values.data = values
    elif how == "loaded":
        layer.load_state_dict({**layer.state_dict(), "values": values}, assign=True)
    else:
        return lambda x: torch.func.functional_call(layer, {"values": values}, (x,))
    return layer


@pytest.mark.parametrize("how", ["assigned", "data", "functional"])
@pytest.mark.parametrize("grad", [False, True])
def test_values_of_another_shape_are_refused(how, grad):
    layer = sa.SparseLinear(32, 24, block=8, density=0.5)
    x = torch.randn(3, 32)
    stored = len(layer.col_idx)
    for shape in ((1, 8, 8), (stored, 4, 16), (stored, 64), (2 * stored, 8, 8)):
        twin = copy.deepcopy(layer)
        with torch.set_grad_enabled(grad):
            for _ in range(2):
                twin(x)
            call = replaced(twin, torch.ones(shape), how)
            with pytest.raises(
                ValueError, match=re.escape(f"values has shape {shape}; expected ({stored}, 8, 8)")
            ):
                call(x)


def test_values_of_another_block_are_refused_by_the_operator_too():
    layer = sa.SparseLinear(8, 8, block=8, density=1.0)
    layer.values = nn.Parameter(torch.ones(1, 16, 16))
    for call in (lambda: layer.matrix(), lambda: torch.func.vmap(layer)(torch.ones(2, 3, 8))):
        with pytest.raises(ValueError, match="values has shape"):
            call()


@pytest.mark.parametrize("how", ["assigned", "data", "loaded", "functional"])
@pytest.mark.parametrize("grad", [False, True])
def test_values_with_gaps_are_copied(how, grad):
    layer, plain = (sa.SparseLinear(32, 24, block=8, density=0.5) for _ in range(2))
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(3, 32, requires_grad=grad)
    values = torch.randn_like(layer.values).transpose(1, 2)
    plain.values.data = values.contiguous()
    expected = plain(x)
    with torch.set_grad_enabled(grad):
        call = replaced(layer, values.requires_grad_(grad) if how == "functional" else values, how)
        for _ in range(3):
            got = call(x)
            torch.testing.assert_close(got, expected)
    if grad:
        got.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(
            values.grad if how == "functional" else layer.values.grad, plain.values.grad
        )


def test_values_resized_in_place_are_refused():
    a = sa.BsrMatrix.from_dense(torch.ones(32, 24), 8)
    b, p = torch.ones(24, 2), a.with_values(torch.zeros(12, 8, 8))
    for _ in range(2):
        a @ b
    a.values.resize_(1, 8, 8)
    p.values.resize_(1, 8, 8)
    for call in (
        lambda: a @ b,
        lambda: sa.matmul(a, b),
        lambda: torch.ones(32) @ a,
        lambda: sa.sampled_matmul(torch.ones(32, 2), torch.ones(2, 24), a, out=p),
    ):
        with pytest.raises(ValueError, match="values has shape"):
            call()


# ---- indices ----


def test_indices_that_change_before_the_backward_pass_are_named():
    values, rows, cols, x = (
        torch.ones(2, 2, 2, requires_grad=True),
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 1]),
        torch.randn(4, 4),
    )
    for call in (
        lambda: torch.ops.sparse_autotune.matmul(values, rows, cols, x, None, [4, 4]),
        lambda: torch.ops.sparse_autotune.sampled(x.requires_grad_(), x, rows, cols, [4, 4], [2, 2]),
    ):
        y = call()
        cols.copy_(torch.tensor([0, 0]))
        with pytest.raises(RuntimeError, match="in place"):
            y.sum().backward()


def test_index_tensors_of_one_storage_are_told_apart():
    product = torch.ops.sparse_autotune.matmul
    values, rows, x = torch.ones(2, 2, 2), torch.tensor([0, 1, 2]), torch.tensor([[1.0], [1.0], [0.0], [0.0]])
    buffer = torch.tensor([0, 1, 0, 0])
    for col_idx in (
        buffer[:2],
        buffer[::2],
        buffer.view(torch.int32)[:2],
        buffer.view(torch.int32)[1:3],
        buffer[1:3],
    ):
        expected = product(values, rows, col_idx.clone(), x, None, [4, 4])
        torch.testing.assert_close(product(values, rows, col_idx, x, None, [4, 4]), expected)
    product(values, rows, buffer[:2], x, None, [4, 4])
    with pytest.raises(ValueError, match="row_ptr has 2 entries"):
        product(values, rows[:2], buffer[:2], x, None, [4, 4])


# ---- nothing in a dimension ----


@pytest.mark.parametrize("inputs, outputs", [(0, 64), (64, 0), (0, 0)])
def test_layers_without_features_have_gradients(inputs, outputs):
    layer = sa.SparseLinear(inputs, outputs)
    for shape in ((3, inputs), (2, 3, inputs), (inputs,)):
        x = torch.ones(shape, requires_grad=True)
        layer(x).sum().backward()
        assert x.grad.shape == x.shape and layer.values.grad.shape == layer.values.shape


def test_an_empty_inner_dimension_may_lie_anyhow():
    a = sa.BsrMatrix([0, 0, 0, 0], [], torch.ones(0, 2, 2), (5, 0))
    b = torch.empty(2000).as_strided((2, 3, 1, 0, 16), (693, 99, 33, 33, 1))
    assert torch.equal(a @ b, torch.zeros(2, 3, 1, 5, 16))
    assert torch.equal(b.mT @ a.T, torch.zeros(2, 3, 1, 16, 5))


def test_allow_tf32_reaches_every_product(monkeypatch):
    """With gradients too, and in the backward pass: what torch is set to is asked for only where nothing was
    said."""
    seen = []

    def spy(allowed, _operand):
        seen.append(allowed)
        return 0

    monkeypatch.setattr(_products, "tf32_flag", spy)
    matrix = sa.BsrMatrix.from_dense(torch.randn(32, 24), block=8)
    values = matrix.values.clone().requires_grad_()
    a, b = matrix.with_values(values), torch.randn(24, 5, requires_grad=True)
    for allowed in (False, True, None):
        seen.clear()
        sa.matmul(a, b, allow_tf32=allowed).square().sum().backward()
        sa.matmul(a, b.detach(), allow_tf32=allowed, bias=torch.randn(32), activation="gelu").sum().backward()
        x, y = torch.randn(32, 6, requires_grad=True), torch.randn(6, 24, requires_grad=True)
        sa.sampled_matmul(x, y, a, allow_tf32=allowed).values.square().sum().backward()
        assert seen and set(seen) == {allowed}
    for call in (
        lambda b: sa.matmul(a, b, allow_tf32=False),
        lambda b: sa.sampled_matmul(torch.ones(32, 24) @ b, torch.ones(5, 24), a, allow_tf32=False).values,
    ):
        with pytest.raises(NotImplementedError, match="allow_tf32 is False"):
            torch.func.vmap(call)(torch.randn(2, 24, 5))
        seen.clear()
        try:
            torch.compile(call, backend="eager")(torch.randn(24, 5))
        except NotImplementedError as error:
            assert "allow_tf32 is" in str(error)
        else:  # the graph was broken, and the call is an eager one
            assert set(seen) == {False}


def test_what_is_allowed_is_computed_once():
    a, b = sa.BsrMatrix.from_dense(torch.randn(16, 16), block=8), torch.randn(16, 3)
    expected = sa.matmul(a, b)
    a._runner = pytest.fail  # the fast path is for what asks for nothing
    for words in ({"allow_dense": True}, {"deterministic": False}, {"allow_tf32": True}):
        assert torch.allclose(sa.matmul(a, b, **words), expected, atol=1e-5)


def test_nested_operands_are_named():
    dense = torch.eye(4)
    a, n = sa.BsrMatrix.from_dense(dense, block=2), torch.nested.nested_tensor([torch.ones(2, 2)])
    for name, call in {
        "values": lambda: sa.BsrMatrix([0, 1], [0], n, (2, 2)),
        "bias": lambda: sa.matmul(a, dense, bias=n),
        "out": lambda: sa.matmul(a, dense, out=n),
        "x": lambda: sa.BsrMatrix.from_dense(n, 2),
        "B": lambda: sa.benchmark(a, n),
    }.items():
        with pytest.raises(TypeError, match=f"^{name} is a nested tensor"):
            call()
    with pytest.raises(TypeError, match="^values is a nested tensor"):
        a.with_values(n)
    with pytest.raises(TypeError, match="^values is a nested tensor"):
        a.values = n


def test_operators_refuse_blocks_of_nothing():
    a, x = sa.BsrMatrix.from_dense(torch.eye(16), block=8), torch.randn(16, 4)
    row_ptr, col_idx = a._index
    for call in (
        lambda: torch.ops.sparse_autotune.sampled(x, x.t(), row_ptr, col_idx, [16, 16], [0, 8]),
        lambda: torch.ops.sparse_autotune.matmul(a.values[:, :0], row_ptr, col_idx, x, None, [16, 16]),
    ):
        with pytest.raises(ValueError, match="^block is"):
            call()
    with pytest.raises(ValueError, match="^shape is"):
        torch.ops.sparse_autotune.matmul(a.values, row_ptr, col_idx, x, None, [-16, 16])


def test_what_a_transform_left_behind_is_an_operand():
    a, kept = sa.BsrMatrix.from_dense(torch.randn(8, 8), block=4), []
    torch.func.grad(lambda x: (kept.append(x), x.sum())[1])(torch.ones(8, 3))
    x = torch.randn(8, 3, requires_grad=True)
    for b in (kept[0], kept[0] * x):  # dead wrappers, as torch calls them
        torch.testing.assert_close(sa.matmul(a, b), a.to_dense() @ b)
        values = a.values.clone().requires_grad_()
        sa.matmul(a.with_values(values), b).sum().backward()
        assert values.grad.isfinite().all()
