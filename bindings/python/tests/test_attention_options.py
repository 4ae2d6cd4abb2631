"""Attention's options: values of another size than keys, any head size, soft caps and sinks, alone and
combined, against the definition in double precision."""

import itertools

import numpy as np
import pytest
from conftest import TOLERANCE

import sparse_autotune as sa

SIZES = [(16, 16), (24, 40), (33, 33), (100, 7), (1, 1)]
OPTIONS = list(itertools.product([None, 1.5], [False, True]))  # softcap; whether there are sinks
HEADS = 4


def expected(q, k, v, keep, softcap, sinks):
    """NumPy, in double precision: the result and the LSE."""
    group = q.shape[-3] // k.shape[-3]
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    k, v = k.repeat(group, -3), v.repeat(group, -3)
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    weights = np.exp(scores) * keep
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(np.asarray(sinks, np.float64))[:, None, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, weights / total, 0) @ v, np.log(total[..., 0])


def operands(sizes, kv_heads=2, queries=20, keys=30, dtype=np.float32, seed=0):
    rng, (size, of_values) = np.random.default_rng(seed), sizes
    shapes = (2, HEADS, queries, size), (2, kv_heads, keys, size), (2, kv_heads, keys, of_values)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def causal(queries, keys):
    return np.tril(np.ones((queries, keys), bool), keys - queries)


@pytest.mark.parametrize("softcap, has_sinks", OPTIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_numpy_gets_what_the_definition_gives(sizes, softcap, has_sinks):
    q, k, v = operands(sizes)
    sinks = np.linspace(-1, 3, HEADS) if has_sinks else None
    for keep, words in (
        (causal(20, 30), {"causal": True}),
        (np.ones((20, 30), bool), {"mask": sa.AttentionMask.from_dense(np.ones((20, 30), bool), block=10)}),
    ):
        out, lse = sa.attention(q, k, v, softcap=softcap, sinks=sinks, return_lse=True, **words)
        wanted, wanted_lse = expected(q, k, v, keep, softcap, sinks)
        assert out.shape == (2, HEADS, 20, sizes[1]) and out.dtype == np.float32
        np.testing.assert_allclose(out, wanted, atol=1e-5)
        np.testing.assert_allclose(lse, wanted_lse, atol=1e-5)


def test_a_query_that_sees_nothing_gets_zeros_and_its_sink_as_lse():
    q, k, v = operands((16, 8))
    sinks = np.array([0.5, -1, 2, -np.inf], np.float32)
    mask = sa.AttentionMask.from_dense(np.arange(20)[:, None] // 10 * np.ones((1, 30)) > 0, block=10)
    out, lse = sa.attention(q, k, v, mask, sinks=sinks, return_lse=True)
    assert (out[:, :, :10] == 0).all() and (out[:, :, 10:] != 0).all()
    np.testing.assert_allclose(lse[:, :, :10], np.broadcast_to(sinks[:, None], (2, HEADS, 10)), rtol=1e-6)
    none, lse = sa.attention(q, k[:, :, :0], v[:, :, :0], sinks=sinks, return_lse=True)
    assert (none == 0).all()
    np.testing.assert_array_equal(lse, np.broadcast_to(sinks[:, None], lse.shape))


def test_a_race_takes_options():
    q, k, v = operands((16, 8))
    words = {"softcap": 2.0, "sinks": np.zeros(HEADS, np.float32)}
    for backward in (False, True):
        problem = sa.benchmark(sa.attention, q, k, v, backward=backward, **words).problem
        assert (problem["dim"], problem["value_dim"], problem["softcap"], problem["sinks"]) == (
            16,
            8,
            2.0,
            True,
        )


torch = pytest.importorskip("torch")


def tensors(sizes, dtype=torch.float32, **words):
    return [torch.from_numpy(x).to(dtype).requires_grad_() for x in operands(sizes, **words)]


def definition(q, k, v, softcap=None, sinks=None):
    """Causal, in double precision, with gradients."""
    group = q.shape[-3] // k.shape[-3]
    k, v = k.double().repeat_interleave(group, -3), v.double().repeat_interleave(group, -3)
    scores = q.double() @ k.mT * q.shape[-1] ** -0.5
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~torch.from_numpy(causal(*scores.shape[-2:])), float("-inf"))
    if sinks is None:
        return scores.softmax(-1) @ v
    extra = sinks.double()[:, None, None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, extra], -1).softmax(-1)[..., :-1] @ v


def sinks_of(dtype=torch.float32):
    return torch.linspace(-1, 3, HEADS).to(dtype).requires_grad_()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("softcap, has_sinks", OPTIONS)
@pytest.mark.parametrize("sizes", SIZES)
def test_results_and_gradients_are_those_of_the_definition(sizes, softcap, has_sinks, dtype):
    q, k, v = tensors(sizes, dtype)
    sinks = sinks_of() if has_sinks else None
    inputs = [q, k, v] + ([sinks] if has_sinks else [])
    out = sa.attention(q, k, v, causal=True, softcap=softcap, sinks=sinks)
    wanted = definition(q, k, v, softcap, sinks)
    assert out.dtype is dtype and out.shape == wanted.shape
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = torch.autograd.grad((out * weight).sum(), inputs)
    right = torch.autograd.grad((wanted * weight).sum(), inputs)
    tolerance = TOLERANCE[str(dtype).removeprefix("torch.")]
    torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=tolerance)
    for x, y in zip(found, right):
        assert x.dtype is y.dtype and x.shape == y.shape
        most = 4 * max(tolerance, 1e-6)  # LSE is float32, and so are gradients of sinks
        assert (x.double() - y.double()).abs().max() <= most * max(1, y.double().abs().max())


def test_sinks_of_16_bits_get_a_gradient_of_16_bits():
    q, k, v = tensors((16, 16))
    sinks = sinks_of(torch.bfloat16)
    sa.attention(q, k, v, sinks=sinks).square().sum().backward()
    assert sinks.grad.dtype is torch.bfloat16 and sinks.grad.abs().max() > 0


def test_gradients_are_first_ones_only():
    q, k, v = tensors((16, 8))
    out = sa.attention(q, k, v, sinks=sinks_of())
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="first gradients only"):
        grad.sum().backward()


@pytest.mark.parametrize("softcap, has_sinks", OPTIONS)
def test_compiled_calls_give_the_same(softcap, has_sinks):
    def run(call):
        q, k, v = tensors((24, 40))
        sinks = sinks_of() if has_sinks else None
        out = call(q, k, v, causal=True, softcap=softcap, sinks=sinks)
        out.square().sum().backward()
        return [out, q.grad, k.grad, v.grad] + ([sinks.grad] if has_sinks else [])

    for x, y in zip(run(torch.compile(sa.attention, backend="aot_eager", fullgraph=True)), run(sa.attention)):
        torch.testing.assert_close(x, y)


def test_operators_keep_torchs_rules():
    q, k, v = tensors((24, 40))
    options = None, [], True, None, None, True, None, 2.0, True
    torch.library.opcheck(torch.ops.sparse_autotune.attention, (q, k, v, *options))
    torch.library.opcheck(torch.ops.sparse_autotune.attention_sinks, (q, k, v, sinks_of(), *options))


def test_fake_tensors_have_the_shape_of_values():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = torch.empty(2, 4, 20, 24), torch.empty(2, 2, 30, 24), torch.empty(2, 2, 30, 40)
        assert sa.attention(q, k, v).shape == (2, 4, 20, 40)
        assert sa.attention(q, k, v, sinks=torch.empty(4)).shape == (2, 4, 20, 40)


def test_autocast_takes_sinks_as_they_are():
    q, k, v = tensors((16, 8))
    sinks = sinks_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sa.attention(q, k, v, sinks=sinks)
    assert out.dtype is torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype is torch.float32 and sinks.grad.dtype is torch.float32


def test_vmap_over_sinks_and_over_queries():
    q, k, v = (x.detach() for x in tensors((16, 8)))
    many = torch.stack([sinks_of().detach(), torch.zeros(HEADS)])
    by_sinks = torch.vmap(lambda s: sa.attention(q, k, v, sinks=s))(many)
    by_items = torch.vmap(lambda q, k, v: sa.attention(q, k, v, sinks=many[0]))(q, k, v)
    for x, s in zip(by_sinks, many):
        torch.testing.assert_close(x, sa.attention(q, k, v, sinks=s))
    torch.testing.assert_close(by_items, by_sinks[0])


@pytest.mark.parametrize(
    "change, error, text",
    [
        (dict(sinks=torch.zeros(3)), ValueError, r"sinks has shape \(3,\); expected \(4,\)"),
        (dict(sinks=[0.0] * 4), TypeError, "sinks is a list; expected a torch tensor"),
        (dict(softcap=2e6), ValueError, "softcap is 2000000.0; expected None, or 1e-4 to 1e6"),
        (dict(softcap=float("nan")), ValueError, "softcap is nan"),
    ],
)
def test_what_is_wrong_is_named(change, error, text):
    q, k, v = tensors((16, 16))
    with pytest.raises(error, match=text):
        sa.attention(q, k, v, **change)


def test_sinks_that_require_grad_beside_arrays_are_refused():
    q, k, v = operands((16, 16))
    with pytest.raises(RuntimeError, match="sinks requires grad"):
        sa.attention(q, k, v, sinks=sinks_of())


def test_calls_that_differ_in_one_option_do_not_share_what_is_kept_for_quick_ones():
    q, k, v = (x.detach() for x in tensors((24, 40)))
    calls = [
        (size, softcap, sinks) for size in (40, 24, 7) for softcap in (None, 1.5, 2.5) for sinks in (0, 1)
    ]
    for size, softcap, sinks in calls * 3:
        given = sinks_of().detach() if sinks else None
        out = sa.attention(q, k, v[..., :size], causal=True, softcap=softcap, sinks=given)
        torch.testing.assert_close(
            out.double(), definition(q, k, v[..., :size], softcap, given), rtol=1e-5, atol=1e-5
        )
    x = [t[..., :24].clone().requires_grad_() for t in (q, k, v)]
    for softcap in (None, 1.5) * 3:
        grads = torch.autograd.grad(sa.attention(*x, causal=True, softcap=softcap).square().sum(), x)
        for y, z in zip(grads, torch.autograd.grad(definition(*x, softcap).square().sum(), x)):
            torch.testing.assert_close(y, z, rtol=1e-4, atol=1e-4)
