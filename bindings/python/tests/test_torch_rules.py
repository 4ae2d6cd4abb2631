"""PyTorch: torch's own rules hold on every way that a product takes: out and beta, negated views, versions, tangents, numbers."""

import numpy as np
import pytest

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad  # noqa: E402

WAYS = ["eager", "autocast", "vmap", "compile"]


def matrix(size=16, block=4):
    a = sa.BsrMatrix.from_dense(torch.randn(size, size), block=block)
    return a, a.to_dense()


def by_way(way, call, *tensors):
    """call(*tensors), in which the last tensor is an out, in one of the ways."""
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return call(*tensors)
    if way == "vmap":
        return torch.func.vmap(call)(*(t.unsqueeze(0) for t in tensors)).squeeze(0)
    return torch.compile(call, backend="eager", fullgraph=True)(*tensors) if way == "compile" else call(*tensors)


@pytest.mark.parametrize("activation", [None, "relu", "gelu"])
@pytest.mark.parametrize("way", WAYS)
def test_the_activation_waits_for_beta(way, activation):
    (a, dense), (b, out), bias = matrix(), torch.randn(2, 16, 3), torch.randn(16)
    inner = dense @ b + 2 * out + bias[:, None]
    expected = inner if activation is None else getattr(torch.nn.functional, activation)(inner)
    got = by_way(way, lambda b, o: sa.matmul(a, b, out=o, beta=2.0, bias=bias, activation=activation), b, out.clone())
    torch.testing.assert_close(got, expected, rtol=5e-2, atol=1e-1 if way == "autocast" else 1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_an_out_that_does_not_fit(way):
    (a, _), b = matrix(), torch.randn(16, 3)
    wrong = [(ValueError, torch.zeros(5, 16, 3)), (ValueError, torch.zeros(16, 1)), (TypeError, torch.zeros(16, 3, dtype=torch.float64))]
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
    for make in (lambda: negated(16, 3), lambda: negated(16), lambda: negated(16).unsqueeze(-1), lambda: negated(2, 16, 3)):
        for _ in range(2):  # a plan that the quick way keeps for a plain tensor must not serve
            c = make()
            plain = torch.empty_strided(c.shape, c.stride()).copy_(c)
            torch.testing.assert_close(a @ plain, dense @ c)
            torch.testing.assert_close(a @ c, dense @ c)
            torch.testing.assert_close(sa.matmul(c.mT if c.dim() > 1 else c, a), (c.mT if c.dim() > 1 else c) @ dense)
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
    got, wanted = torch.autograd.grad(sa.attention(*plain), plain, grad), torch.autograd.grad(expected, plain, grad.resolve_neg())
    for x, y in zip(got, wanted):
        torch.testing.assert_close(x, y)


def test_a_negated_out_is_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    with pytest.raises(ValueError, match="out is a view"):
        sa.matmul(a, b, out=negated(16, 3))


def test_a_sparse_tensor_changed_in_place_is_read_again():
    first, second = (torch.kron(x, torch.ones(4, 4)) for x in (torch.eye(3), torch.eye(3).flip(0)))
    x, b = first.to_sparse_bsr((4, 4)), torch.randn(12, 3)
    torch.testing.assert_close(sa.matmul(x, b), first @ b)
    made = sa._matrix.as_bsr(x, "A")
    x.values().mul_(2)
    torch.testing.assert_close(sa.matmul(x, b), 2 * first @ b)
    assert sa._matrix.as_bsr(x, "A") is made  # the values are shared, and the indices are what they were
    x.col_indices().copy_(torch.tensor([2, 1, 0]))
    torch.testing.assert_close(sa.matmul(x, b), 2 * second @ b)
    x.copy_(first.to_sparse_bsr((4, 4)))
    torch.testing.assert_close(sa.matmul(x, b), first @ b)


def test_forward_mode_is_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    layer = sa.SparseLinear(16, 16, 4, 1.0)
    q = torch.randn(1, 2, 16, 8)
    calls = [
        (lambda b: a @ b, b), (lambda b: b.t() @ a, b), (lambda b: sa.matmul(a, b), b), (lambda b: sa.matmul(a, b, bias=b[:, 0]), b),
        (lambda b: sa.sampled_matmul(b, b.t(), a).values, b), (lambda v: a.with_values(v) @ b, a.values), (lambda b: layer(b.t()), b),
        (lambda q: sa.attention(q, q, q), q), (lambda b: torch.func.vmap(lambda c: sa.matmul(a, c), in_dims=1)(b), b),
    ]  # fmt: skip
    for call, x in calls:
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                call(x), call(x)  # the quick way has its plan
                with pytest.raises(NotImplementedError, match="forward-mode"):
                    torch.func.jvp(call, (x,), (x,))
                with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
                    call(forward_ad.make_dual(x, x))
    with forward_ad.dual_level():  # what has no tangent goes on
        a @ b
        torch.func.vmap(lambda c: sa.matmul(a, c), in_dims=1)(b)


def test_gradients_of_torch_func_are_refused():
    (a, _), b = matrix(), torch.randn(16, 3)
    q, other = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 16, 8)
    calls = [
        (lambda b: sa.matmul(a, b), b), (lambda b: a @ b, b), (lambda v: sa.matmul(a.with_values(v), b), a.values),
        (lambda b: sa.sampled_matmul(b, b.t(), a).values, b), (lambda q: sa.attention(q, other, other), q),
        (lambda q: torch.func.vmap(lambda x: sa.attention(x, x, x))(q), q),
    ]  # fmt: skip
    for call, x in calls:
        call(x), call(x)  # the quick way has its plan
        for transform in (torch.func.grad, torch.func.jacrev, lambda f: lambda t: torch.func.vjp(f, t)):
            with pytest.raises(NotImplementedError, match="grad, vjp or jacrev"):
                transform(lambda x, call=call: call(x).sum())(x)
    with pytest.raises(NotImplementedError, match="grad, vjp or jacrev"):
        torch.func.vmap(torch.func.grad(lambda q: sa.attention(q, q, q).sum()))(q)
    scale = torch.ones(())  # what is not differentiated goes on
    torch.testing.assert_close(torch.func.grad(lambda s: (s * sa.attention(q, q, q)).sum())(scale), sa.attention(q, q, q).sum())


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
    assert sa._torch._fast is None or a._runner(a.values, b) is not None


@pytest.mark.parametrize(
    "kind, words, call",
    [
        (TypeError, "bias is a ndarray", lambda a, b: sa.matmul(a, b, bias=np.zeros(16, "f4"))),
        (TypeError, "bias is a ndarray", lambda a, b: sa.matmul(a, b.requires_grad_(), bias=np.zeros(16, "f4"))),
        (RuntimeError, "alpha requires grad", lambda a, b: sa.matmul(a, b, alpha=torch.tensor(1.0, requires_grad=True))),
        (RuntimeError, "beta requires grad", lambda a, b: sa.matmul(a, b, out=b.clone(), beta=torch.tensor(1.0, requires_grad=True))),
        (RuntimeError, "alpha requires grad", lambda a, b: sa.sampled_matmul(b, b.t(), a, alpha=torch.tensor(1.0, requires_grad=True))),
        (ValueError, "alpha", lambda a, b: sa.matmul(a, b, alpha=10**400)),
        (TypeError, "alpha is a ndarray", lambda a, b: sa.matmul(a, b, alpha=np.ones(3))),
        (TypeError, "alpha is a ndarray", lambda a, b: sa.matmul(a, b, alpha=np.ones(1))),
        (TypeError, "alpha is a Tensor", lambda a, b: sa.matmul(a, b, alpha=torch.ones(3))),
        (TypeError, "beta is a ndarray", lambda a, b: sa.matmul(a, b, beta=np.zeros(3))),
        (TypeError, "alpha is a str", lambda a, b: sa.matmul(a, b, alpha="2")),
        (RuntimeError, "bias requires grad", lambda a, b: sa.matmul(in_numpy(a), b.numpy(), bias=torch.zeros(16, requires_grad=True))),
        (RuntimeError, "Y requires grad", lambda a, b: sa.sampled_matmul(b.numpy(), b.t().clone().requires_grad_(), a)),
        (TypeError, "Y is a ndarray", lambda a, b: sa.sampled_matmul(b.clone().requires_grad_(), b.t().numpy(), a)),
        (RuntimeError, "out requires grad", lambda a, b: sa.sampled_matmul(b, b.t(), a, out=a.with_values(a.values.clone().requires_grad_()))),
        (RuntimeError, "out requires grad", lambda a, b: sa.matmul(in_numpy(a), b.numpy(), out=torch.zeros(16, 3, requires_grad=True))),
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
