"""Attention in PyTorch: gradients, operators, autocast, torch.compile, BlockMask, torch's own attention in
races."""

import gc

import numpy as np
import pytest
from conftest import TOLERANCE, in_threads, run_program
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from test_attention import masks

from sparse_autotune import _attention
from sparse_autotune._torch import attention
from sparse_autotune._torch import masks as mask_tensors

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def expected(q, k, v, keep=None, scale=None):
    """From the definition, in double precision, with gradients."""
    group = q.shape[-3] // k.shape[-3]
    k, v = k.repeat_interleave(group, -3), v.repeat_interleave(group, -3)
    scores = q.double() @ k.double().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if keep is not None:
        keep = torch.as_tensor(keep, device=q.device)
        some = keep.any(-1, keepdim=True)
        weights = scores.masked_fill(~keep & some, float("-inf")).softmax(-1) * some
    else:
        weights = scores.softmax(-1)
    return weights @ v.double()


def close(got, wanted, times=1):
    tolerance = times * TOLERANCE[str(got.dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def operands(batch, heads, kv_heads, queries, keys, size, dtype=torch.float32, device="cpu", layout="heads"):
    def one(h, n):
        if layout == "heads":
            return torch.randn(*batch, h, n, size, device=device).to(dtype)
        return torch.randn(*batch, n, h, size, device=device).to(dtype).transpose(-2, -3)

    return one(heads, queries), one(kv_heads, keys), one(kv_heads, keys)


@given(st.data(), st.sampled_from(DTYPES), st.sampled_from(["heads", "rows"]))
def test_results_and_gradients(data, dtype, layout):
    kv_heads = data.draw(st.integers(1, 2))
    heads = kv_heads * data.draw(st.integers(1, 3))
    queries, keys = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    mask = data.draw(masks(queries, keys, heads))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    batch = (1,) if mask is not None and mask.offsets else (2,)
    leaves = [
        x.requires_grad_()
        for x in operands(
            batch, heads, kv_heads, queries, keys, data.draw(st.sampled_from([8, 32])), dtype, layout=layout
        )
    ]
    out = sa.attention(*leaves, mask)
    wanted = expected(*leaves, None if mask is None else mask.to_dense())
    assert out.dtype == dtype and out.requires_grad
    close(out, wanted)
    with torch.no_grad():
        again = sa.attention(*leaves, mask)
        assert torch.equal(again, sa.attention(*leaves, mask)) and not again.requires_grad
        close(again, wanted)
    grad = torch.randn_like(out)
    for got, want in zip(
        torch.autograd.grad(out, leaves, grad), torch.autograd.grad(wanted, leaves, grad.double())
    ):
        assert got.dtype == dtype
        close(got, want, 2e5 if dtype == torch.float64 else 2)  # LSE is float32


@pytest.mark.parametrize("name", ["none", "window", "heads", "document"])
def test_gradcheck(name):
    torch.manual_seed(0)
    mask = {
        "none": None,
        "window": sa.AttentionMask.window(10, 4, keys=12, block=4),
        "heads": sa.AttentionMask.global_window_random(10, keys=12, heads=4, block=3, random=1, window=1),
        "document": sa.AttentionMask.document([0, 3, 10], kv_offsets=[0, 5, 12], block=4, causal=True),
    }[name]
    leaves = [x.requires_grad_() for x in operands((1,), 4, 2, 10, 12, 8, torch.float64)]
    assert torch.autograd.gradcheck(lambda q, k, v: sa.attention(q, k, v, mask, scale=0.4), leaves)


def test_gradients_are_the_same_every_time():
    leaves = [x.requires_grad_() for x in operands((2,), 4, 2, 130, 130, 32)]
    runs = [torch.autograd.grad(sa.attention(*leaves, causal=True).square().sum(), leaves) for _ in range(3)]
    assert all(torch.equal(x, y) for run in runs[1:] for x, y in zip(runs[0], run))


def test_only_what_asks_gets_a_gradient_and_no_second_one():
    q, k, v = operands((1,), 2, 2, 16, 16, 8)
    v.requires_grad_()
    out, lse = sa.attention(q, k, v, return_lse=True)
    assert out.requires_grad and not lse.requires_grad
    (grad,) = torch.autograd.grad(out.sum(), v, create_graph=True)
    for _ in range(2):
        with pytest.raises(NotImplementedError, match="first gradients only"):
            grad.sum().backward(retain_graph=True)
        (grad,) = torch.autograd.grad(
            torch.ops.sparse_autotune.attention(q, k, v)[0].sum(), v, create_graph=True
        )


def test_nested_tensors_are_named():
    for layout in (torch.strided, torch.jagged):
        x = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)], layout=layout)
        for words in ({}, {"is_causal": True}):
            with pytest.raises(TypeError, match="q is a nested tensor"):
                sa.attention(x, x, x, **words)


def test_views_are_read_in_place_and_gradients_reach_them():
    qkv = torch.randn(2, 40, 3, 4, 16, requires_grad=True)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    out = sa.attention(q, k, v, causal=True)
    assert out.transpose(1, 2).is_contiguous()  # as the next linear layer wants it
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(out, wanted)
    close(torch.autograd.grad(out.sum(), qkv)[0], torch.autograd.grad(wanted.sum(), qkv)[0])


def test_it_is_called_as_torchs_own():
    q, k, v = operands((2,), 4, 4, 33, 33, 16)
    own = torch.nn.functional.scaled_dot_product_attention
    close(sa.attention(q, k, v, is_causal=True), own(q, k, v, is_causal=True))
    close(
        sa.attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=0.2),
        own(q, k, v, scale=0.2),
    )
    close(sa.attention(q, k[:, :2], v[:, :2], enable_gqa=True), own(q, k[:, :2], v[:, :2], enable_gqa=True))
    close(sa.attention(q[0], k[0], v[0]), own(q[0], k[0], v[0]))
    close(sa.attention(q[0, 0], k[0, 0], v[0, 0]), own(q[0, 0], k[0, 0], v[0, 0]))


def test_expanded_tensors():
    q, k, v = operands((1,), 4, 1, 20, 24, 8)
    wanted = sa.attention(q.repeat(3, 1, 1, 1), k.repeat(3, 1, 1, 1), v.repeat(3, 1, 1, 1))
    close(sa.attention(q.expand(3, 4, 20, 8), k.expand(3, 1, 24, 8), v.expand(3, 1, 24, 8)), wanted)
    q, k, v = operands((2,), 4, 4, 20, 24, 8)
    k, v = k[:, :1].expand(2, 4, 24, 8), v[:, :, :1].expand(2, 4, 24, 8)  # one head, and one row, for all
    close(sa.attention(q, k, v), sa.attention(q, k.contiguous(), v.contiguous()))
    ones = torch.ones(()).expand(2, 2, 8, 8)
    close(sa.attention(ones, ones, ones), ones)


def test_the_quick_way_serves_the_same_result():
    q, k, v = operands((1,), 2, 2, 64, 64, 16)
    first = sa.attention(q, k, v, causal=True)
    spec = _attention.Spec(True, None, None, True, None)
    if sa._quick._fast is not None:
        quick = attention.run_quick(q, k, v, None, spec, False)
        assert quick is not None and torch.equal(quick, first)
        assert attention.run_quick(q[:, :, :60], k, v, None, spec, False) is None
        assert attention.run_quick(q.numpy(), k, v, None, spec, False) is None
    assert torch.equal(first, sa.attention(q, k, v, causal=True))
    assert not torch.equal(first, sa.attention(q, k, v))
    odd = torch.cat([q.new_zeros(1), q.flatten()])[1:].view(q.shape)
    close(sa.attention(odd, k, v, causal=True), first)


@pytest.fixture
def only_runners(monkeypatch):
    """Gives a function: from its call on, a pass that no runner knows fails."""
    if sa._quick._fast is None:
        pytest.skip("built without the extension")

    def close_full_path():
        monkeypatch.setattr(_attention, "forward", lambda *_, **__: pytest.fail("the full path is taken"))
        monkeypatch.setattr(_attention, "backward", lambda *_, **__: pytest.fail("the full path is taken"))

    return close_full_path


@pytest.mark.parametrize("name", ["plain", "mask", "rows", "grouped", "two dimensions", "lse", "sum"])
def test_gradients_come_from_runners_from_the_second_call_on(name, device, only_runners):
    torch.manual_seed(0)
    heads = (4, 2) if name == "grouped" else (4, 4)
    layout = "rows" if name == "rows" else "heads"
    leaves = operands((2,), *heads, 48, 48, 16, device=device, layout=layout)
    if name == "two dimensions":
        leaves = [x[0, 0] for x in leaves]
    leaves = [x.detach().requires_grad_() for x in leaves]
    words = {"mask": sa.AttentionMask.window(48, 20, block=16)} if name == "mask" else {}
    grad = torch.randn_like(leaves[0])

    def step():
        out = sa.attention(*leaves, return_lse=name == "lse", **words)
        out = out[0] if name == "lse" else out
        if name == "sum":
            return out, *torch.autograd.grad(out.sum(), leaves)
        return out, *torch.autograd.grad(out, leaves, grad)

    first, second = step(), step()
    only_runners()
    for _ in range(3):
        third = step()
        for x, y, z in zip(first, second, third):
            assert x.stride() == y.stride() == z.stride()
            assert torch.equal(x, y) and torch.equal(x, z)
            assert z.untyped_storage().data_ptr() not in {
                t.untyped_storage().data_ptr() for t in (*first, *leaves)
            }


def test_runners_give_gradients_to_what_asks_for_them(only_runners):
    tensors = operands((1,), 2, 2, 16, 16, 8)
    leaves = [x.clone().requires_grad_() for x in tensors]
    for _ in range(2):
        wanted = torch.autograd.grad(sa.attention(*leaves).square().sum(), leaves)
    only_runners()
    for asks in ((0,), (1,), (2,), (0, 2)):
        some = [x.clone().requires_grad_(i in asks) for i, x in enumerate(tensors)]
        sa.attention(*some).square().sum().backward()
        for i, x in enumerate(some):
            assert (x.grad is None) == (i not in asks)
            assert x.grad is None or torch.equal(x.grad, wanted[i])
    with torch.no_grad():
        assert not sa.attention(*leaves, return_lse=True)[0].requires_grad


def test_runners_keep_the_rules_of_autograd(only_runners):
    leaves = [x.requires_grad_() for x in operands((1,), 2, 2, 16, 16, 8)]
    q, k, v = leaves
    grad = torch.randn_like(q)
    for _ in range(2):
        wanted = torch.autograd.grad(sa.attention(q, k, v), leaves, grad)
    only_runners()
    out = sa.attention(q, k, v)
    (again,) = torch.autograd.grad(out, q, grad, create_graph=True)
    assert torch.equal(again, wanted[0])
    with pytest.raises(NotImplementedError, match="first gradients only"):
        again.sum().backward()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(x) or x.clone(), lambda x: x):
        out = sa.attention(q, k, v)
    assert len(packed) == 5
    for x, y in zip(torch.autograd.grad(out, leaves, grad), wanted):
        assert torch.equal(x, y)
    scaled = k * 1
    out = sa.attention(q, scaled, v)
    scaled.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    out = sa.attention(q, k, v)
    batched = torch.autograd.grad(out, leaves, torch.stack([grad, 2 * grad]), is_grads_batched=True)
    for x, y in zip(batched, wanted):
        close(x, torch.stack([y, 2 * y]))


def test_runners_under_checkpointing_and_autocast(only_runners):
    from torch.utils.checkpoint import checkpoint

    leaves = [x.requires_grad_() for x in operands((1,), 2, 2, 16, 16, 8)]
    for dtype in (torch.float32, torch.bfloat16):
        found = []
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                out = checkpoint(sa.attention, *leaves, use_reentrant=False)
            assert out.dtype == dtype
            found.append(torch.autograd.grad(out, leaves, torch.ones_like(out)))
        assert all(torch.equal(x, y) and x.dtype == torch.float32 for x, y in zip(found[0], found[2]))
    only_runners()  # autocast's operands are runners', too
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = sa.attention(*leaves)
    out.backward(torch.ones_like(out))


def test_runners_in_threads(only_runners):
    leaves = [x.requires_grad_() for x in operands((1,), 2, 2, 32, 32, 16)]
    wanted, wrong = torch.autograd.grad(sa.attention(*leaves).square().sum(), leaves), []

    def work(_):
        for _ in range(50):
            found = torch.autograd.grad(sa.attention(*leaves).square().sum(), leaves)
            if not all(map(torch.equal, found, wanted)):
                wrong.append(found)

    in_threads(4, work)
    assert not wrong


# ---- operators ----


def arguments(mask, *more):
    return (None, (), *more) if mask is None else (mask._tensors[-1], mask._index_shape, *more)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_operators_keep_torchs_rules(packed, grad):
    torch.manual_seed(0)
    mask = (
        sa.AttentionMask.document([0, 10, 24], block=8, causal=True)
        if packed
        else sa.AttentionMask.window(24, 5, block=8)
    )
    q, k, v = (x.requires_grad_(grad) for x in operands((1,), 4, 2, 24, 24, 8, layout="rows"))
    for lse in (False, True):
        torch.library.opcheck(
            torch.ops.sparse_autotune.attention.default,
            (q, k, v, *arguments(mask, True, 5), None, True, None, None, lse),
        )
    torch.library.opcheck(torch.ops.sparse_autotune.attention.default, (q, k, v))
    q, k, v = q.detach(), k.detach(), v.detach()
    out, lse = torch.ops.sparse_autotune.attention(q, k, v, *arguments(mask, True), lse=True)
    torch.library.opcheck(
        torch.ops.sparse_autotune.attention_backward.default,
        (torch.randn_like(out), q, k, v, out, lse, *arguments(mask, True)),
    )


def test_an_operator_finds_the_mask_of_its_tensor():
    mask = sa.AttentionMask.document([0, 7, 20], block=4, causal=True)
    q, k, v = operands((1,), 2, 2, 20, 20, 8)
    wanted = sa.attention(q, k, v, mask)
    attention = torch.ops.sparse_autotune.attention
    index, shape = mask._tensors[-1], mask._index_shape
    assert torch.equal(attention(q, k, v, index, shape, True)[0], wanted)
    assert mask_tensors.pattern_of(index, shape) is mask._pattern
    other = index.clone()  # another tensor with the same words is read
    assert torch.equal(attention(q, k, v, other, shape, True)[0], wanted)
    known = mask_tensors.pattern_of(other, shape)
    assert known is not mask._pattern and known is mask_tensors.pattern_of(other, shape)
    other[-2:] = torch.tensor([12, 20])  # and read again when it changes
    other[-5:-3] = torch.tensor([12, 20])
    del known
    with pytest.raises(ValueError, match="mask has shape"):
        attention(q, k, v, other[:-1], shape, True)
    with pytest.raises(ValueError, match="mask_shape is"):
        attention(q, k, v, other, shape[:3], True)
    del other
    gc.collect()


def test_an_operator_without_lse_has_gradients_too():
    leaves = [x.requires_grad_() for x in operands((1,), 2, 2, 20, 20, 8)]
    out, _ = torch.ops.sparse_autotune.attention(*leaves)
    wanted = expected(*leaves)
    for got, want in zip(torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves)):
        close(got, want)


def test_autocast():
    leaves = [x.requires_grad_() for x in operands((1,), 2, 2, 32, 32, 16)]
    with torch.autocast("cpu", torch.bfloat16):
        out = sa.attention(*leaves, causal=True)
        other, _ = torch.ops.sparse_autotune.attention(*leaves, causal=True)
    assert out.dtype == other.dtype == torch.bfloat16
    out.float().sum().backward()
    assert leaves[0].grad.dtype == torch.float32
    close(out, sa.attention(*leaves, causal=True))


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (1, 0, 0)])
def test_vmap(in_dims):
    q, k, v = torch.randn(3, 2, 2, 12, 8), torch.randn(3, 2, 2, 12, 8), torch.randn(3, 2, 2, 12, 8)
    inputs = [x.movedim(0, d) if d is not None else x[0] for x, d in zip((q, k, v), in_dims)]
    mask = sa.AttentionMask.window(12, 3, block=4)
    got = torch.vmap(lambda *x: sa.attention(*x, mask, causal=np.True_, window=np.int64(3)), in_dims=in_dims)(
        *inputs
    )
    items = [[x.select(d, i) if d is not None else x for x, d in zip(inputs, in_dims)] for i in range(3)]
    close(got, torch.stack([sa.attention(*x, mask) for x in items]))
    close(
        torch.vmap(lambda *x: sa.attention(*x), in_dims=in_dims)(*inputs),
        torch.stack([sa.attention(*x) for x in items]),
    )
    pairs = torch.vmap(lambda *x: sa.attention(*x, return_lse=True)[1])(q[:, 0, 0], k[:, 0, 0], v[:, 0, 0])
    assert pairs.shape == (3, 12)


# ---- torch.compile ----


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_without_a_break(backend):
    mask = sa.AttentionMask.window(40, 8, block=8)
    qkv = torch.randn(2, 40, 3, 4, 16, requires_grad=True)

    def block(qkv):
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return sa.attention(q * 2, k, v, mask, scale=0.3).transpose(1, 2).flatten(2)

    compiled = torch.compile(block, fullgraph=True, backend=backend)
    out, wanted = compiled(qkv), block(qkv)
    close(out, wanted)
    close(torch.autograd.grad(out.square().sum(), qkv)[0], torch.autograd.grad(wanted.square().sum(), qkv)[0])
    with torch.no_grad():
        close(compiled(qkv), wanted)


def test_compile_with_other_lengths():
    compiled = torch.compile(
        lambda q, k, v: sa.attention(q, k, v, causal=True, return_lse=True),
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    for n in (17, 40, 64):
        q, k, v = operands((1,), 2, 2, n, n, 16)
        out, lse = compiled(q, k, v)
        wanted, wanted_lse = sa.attention(q, k, v, causal=True, return_lse=True)
        close(out, wanted)
        close(lse, wanted_lse)


def test_compile_names_a_wrong_argument():
    q, k, v = operands((1,), 2, 2, 16, 16, 8)
    compiled = torch.compile(
        lambda q, k, v: sa.attention(q, k, v, sa_mask), backend="aot_eager", fullgraph=True
    )
    sa_mask = sa.AttentionMask.window(32, 4)
    with pytest.raises(Exception, match="mask is 32x32; expected 16x16"):
        compiled(q, k, v)


@pytest.mark.parametrize(
    "words, kind, message",
    [
        ({"window": 0}, ValueError, "^window is 0; expected at least 1$"),
        (
            {"window": 0, "mask": sa.AttentionMask.window(16, 4)},
            ValueError,
            "^window is 0; expected at least 1$",
        ),
        ({"window": True}, TypeError, "^window is True; expected a whole number$"),
        ({"causal": 0.1}, TypeError, "^causal is 0.1; expected True or False$"),
        ({"allow_tf32": "no"}, TypeError, "^allow_tf32 is 'no'; expected True or False$"),
        ({"scale": 1e39}, NotImplementedError, r"^scale is 1e\+39"),
        (
            {"attn_mask": torch.ones(16, 16, dtype=torch.bool)},
            TypeError,
            "^attn_mask is a Tensor; .*from_dense takes booleans$",
        ),
        (
            {"mask": sa.AttentionMask.document([0, 4, 16])},
            ValueError,
            "^q has a batch of 2 beside a mask of packed sequences; expected 1$",
        ),
    ],
)
def test_what_is_wrong_is_told_in_the_same_words_compiled_or_not(words, kind, message):
    q, k, v = operands((2,), 2, 2, 16, 16, 8)

    def call(q, k, v):
        return sa.attention(q, k, v, **words)

    for each in (call, torch.compile(call, backend="aot_eager")):
        with pytest.raises(kind, match=message):
            each(q, k, v)


# ---- BlockMask ----

MODS = {
    "causal": lambda b, h, i, j: i >= j,
    "window": lambda b, h, i, j: (i >= j) & (i - j < 30),
    "both sides": lambda b, h, i, j: (i - j).abs() < 40,
    "blocks": lambda b, h, i, j: (i // 32 + j // 32) % 2 == 0,
    "heads": lambda b, h, i, j: (i // 32 + j // 32 + h) % 3 == 0,
}


@pytest.mark.parametrize("name", MODS)
@pytest.mark.parametrize("length", [128, 100])
def test_a_block_mask_is_understood(name, length):
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    heads = 4 if name == "heads" else None
    block_mask = flex.create_block_mask(MODS[name], None, heads, length, length, device="cpu", BLOCK_SIZE=32)
    mask = sa.AttentionMask.from_block_mask(block_mask)
    i = torch.arange(length)
    keep = (
        MODS[name](0, torch.arange(heads or 1)[:, None, None], i[:, None], i)
        .expand(heads or 1, length, length)
        .numpy()
    )
    assert np.array_equal(mask.to_dense(), keep if heads else keep[0])
    q, k, v = operands((2,), 4, 2, length, length, 16)
    close(sa.attention(q, k, v, block_mask), expected(q, k, v, keep))


def test_a_block_mask_that_blocks_cannot_say():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    for mod in (
        lambda b, h, i, j: i // 50 == j // 50,
        lambda b, h, i, j: i < j,
        lambda b, h, i, j: (i + j) % 2 == 0,
    ):
        with pytest.raises(ValueError, match="block_mask keeps blocks in part"):
            sa.AttentionMask.from_block_mask(
                flex.create_block_mask(mod, None, None, 128, 128, device="cpu", BLOCK_SIZE=32)
            )
    with pytest.raises(TypeError, match="block_mask is a int"):
        sa.AttentionMask.from_block_mask(3)


# ---- torch's own attention races ----

SDPA = "cpu_attention_any_any_torch_sdpa"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["plain", "causal", "window", "heads", "lse"])
def test_torchs_attention_is_verified(dtype, name):
    q, k, v = operands((2,), 4, 4, 64, 64, 32, dtype)
    words = {
        "plain": {},
        "causal": {"causal": True},
        "window": {"mask": sa.AttentionMask.window(64, 20, block=16)},
        "heads": {"mask": sa.AttentionMask.global_window_random(64, heads=4, block=16, random=1)},
        "lse": {"causal": True, "return_lse": True},
    }[name]
    race = sa.benchmark(sa.attention, q, k, v, only=SDPA, **words)
    assert [r.verdict for r in race] == ["ok"], race


def test_torchs_gradients_are_verified():
    q, k, v = operands((2,), 4, 4, 64, 64, 32)
    race = sa.benchmark(
        sa.attention, q, k, v, causal=True, backward=True, only="cpu_attention_backward_any_any_torch_sdpa"
    )
    assert [r.verdict for r in race] == ["ok"], race


OWN = """
import torch, sparse_autotune as sa
from sparse_autotune import _attention_variants
torch.manual_seed(0)
for mask in (None, sa.AttentionMask.window(48, 9, block=16)):
    q, k, v = torch.randn(2, 48, 3, 4, 16).permute(2, 0, 3, 1, 4)
    calls = []
    for dims in (4, 3):
        x = [t if dims == 4 else t[0] for t in (q, k, v)]
        keep = None if mask is None else torch.from_numpy(mask.to_dense())
        wanted = torch.nn.functional.scaled_dot_product_attention(*x, attn_mask=keep)
        for _ in range(2):
            out, lse = sa.attention(*x, mask, return_lse=True)
            assert torch.allclose(out, wanted, atol=1e-5) and lse.shape == out.shape[:-1]
            assert torch.allclose(sa.attention(*x, mask), wanted, atol=1e-5)
        leaves = [t.detach().requires_grad_() for t in x]
        compiled = torch.compile(lambda *t: sa.attention(*t, mask), backend="aot_eager", fullgraph=True)
        compiled(*leaves).sum().backward()
        assert torch.allclose(compiled(*leaves), wanted, atol=1e-5)
pattern = mask._pattern
print(any(callable(plan.direct) for plan in pattern._first.values()))
"""


ODD = """
import torch, sparse_autotune as sa
torch.manual_seed(0)
keep = torch.ones(48, 48, dtype=torch.bool).tril()
def wanted(q, k, v, keep, scale):
    s = (scale * (q.double() @ k.double().mT)).masked_fill(~keep, -torch.inf)
    return s.softmax(-1).nan_to_num(0) @ v.double(), s.logsumexp(-1)
q, k, v = (torch.randn(2, 16, 48).mT for _ in range(3))  # the size is not contiguous
# the first 16 queries see nothing
some = sa.AttentionMask.from_dense((torch.arange(48) >= 16).numpy()[:, None].repeat(48, 1), block=16)
cases = [dict(causal=True, **more) for more in (dict(), dict(scale=0.0), dict(scale=1e-60), dict(scale=-1.0))]
cases.append(dict(mask=some))
for words in cases:
    for x in ((q, k, v), (q.contiguous(), k, v), (q, k.contiguous(), v.contiguous())):
        kept = torch.from_numpy(some.to_dense()) if "mask" in words else keep
        o, l = wanted(*x, kept, words.get("scale", 0.25))
        leaves = [t.detach().requires_grad_() for t in x]
        out, lse = sa.attention(*leaves, return_lse=True, **words)
        assert (out - o).abs().max() < 1e-5, (words, (out - o).abs().max())
        assert torch.equal(lse.isfinite(), l.isfinite()) and (lse - l)[l.isfinite()].abs().max() < 1e-5, words
        out.sum().backward()
        exact = [t.detach().double().requires_grad_() for t in x]
        wanted(*exact, kept, words.get("scale", 0.25))[0].sum().backward()
        for a, b in zip(leaves, exact):
            assert (a.grad - b.grad.nan_to_num(0)).abs().max() < 1e-4, words
print("all right")
"""


@pytest.mark.parametrize("program, says", [(OWN, "True"), (ODD, "all right")])
def test_torchs_attention_serves_without_a_copy(program, says):
    run = run_program(program, SPARSE_AUTOTUNE_FORCE=SDPA)
    assert says in run.stdout, run.stdout + run.stderr


# ---- a GPU ----


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_on_a_gpu(dtype):
    torch.manual_seed(0)
    for mask, words in (
        (None, {}),
        (None, {"causal": True}),
        (sa.AttentionMask.window(300, 64), {}),
        (sa.AttentionMask.document([0, 100, 300], causal=True), {}),
    ):
        leaves = [x.requires_grad_() for x in operands((1,), 4, 2, 300, 300, 64, dtype, "cuda", "rows")]
        out = sa.attention(*leaves, mask, **words)
        keep = np.tri(300, dtype=bool) if words else None if mask is None else mask.to_dense()
        wanted = expected(*leaves, keep)
        close(out, wanted)
        for got, want in zip(
            torch.autograd.grad(out.sum(), leaves), torch.autograd.grad(wanted.sum(), leaves)
        ):
            close(got, want, 2)


@pytest.mark.cuda
def test_torchs_attention_races_on_a_gpu():
    for mask, words in (
        (None, {}),
        (None, {"causal": True}),
        (sa.AttentionMask.window(1024, 256, block=128), {}),
    ):
        for lse in (False, True):
            q, k, v = operands((1,), 8, 8, 1024, 1024, 64, torch.float16, "cuda")
            race = sa.benchmark(sa.attention, q, k, v, mask, return_lse=lse, **words)
            own = [r for r in race if "_torch_" in r.variant]
            assert own and all(r.verdict in ("ok", "skipped") for r in own), race
    back = sa.benchmark(sa.attention, q, k, v, causal=True, backward=True, deterministic=False)
    assert any("_torch_flash" in r.variant and r.verdict in ("ok", "skipped") for r in back), back


@pytest.mark.cuda
def test_a_cuda_graph_replays_attention():
    q, k, v = operands((1,), 4, 4, 256, 256, 64, torch.float16, "cuda")
    mask = sa.AttentionMask.window(256, 64)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        sa.attention(q, k, v, mask)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        out = sa.attention(q, k, v, mask)
    q.copy_(torch.randn_like(q))
    graph.replay()
    torch.cuda.synchronize()
    close(out, expected(q, k, v, mask.to_dense()))


@pytest.mark.cuda
def test_compiled_with_cuda_graphs():
    mask = sa.AttentionMask.window(256, 64)
    q, k, v = operands((1,), 4, 4, 256, 256, 64, torch.float16, "cuda")
    sa.attention(q, k, v, mask)
    compiled = torch.compile(
        lambda q, k, v: sa.attention(q, k, v, mask) * 2, mode="reduce-overhead", fullgraph=True
    )
    for _ in range(4):
        close(compiled(q, k, v).clone(), 2 * expected(q, k, v, mask.to_dense()))


def test_doubles_through_torchs_own_kernel():
    """Whoever wins: LSE is float32, and the gradients are those of plain arithmetic."""
    for length, causal in ((32, False), (64, True), (96, False), (160, True)):
        q, k, v = (torch.randn(1, 8, length, 64, dtype=torch.float64, requires_grad=True) for _ in range(3))
        out, lse = sa.attention(q, k, v, causal=causal, return_lse=True)
        assert lse.dtype == torch.float32
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        weights = torch.randn_like(out)
        for ours, theirs in zip(
            torch.autograd.grad(out, (q, k, v), weights), torch.autograd.grad(expected, (q, k, v), weights)
        ):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_torchs_own_kernel_takes_part_with_doubles():
    q, k, v = (torch.randn(1, 4, 64, 64, dtype=torch.float64) for _ in range(3))
    for words in ({}, {"backward": True}):
        race = sa.benchmark(sa.attention, q, k, v, **words)
        assert all(r.verdict in ("ok", "skipped") for r in race if "_torch_" in r.variant), race


def test_words_after_the_mask_go_by_their_place():
    q, k, v = (torch.randn(1, 2, 32, 16) for _ in range(3))
    assert torch.equal(
        sa.attention(q, k, v, None, True, 8, 0.5), sa.attention(q, k, v, causal=True, window=8, scale=0.5)
    )
    with pytest.raises(TypeError, match=r"causal is 0\.1; expected True or False"):
        sa.attention(q, k, v, None, 0.1)  # torch's own has dropout_p there


def test_operands_of_two_kinds_are_named():
    q = torch.randn(1, 2, 32, 16)
    with pytest.raises(TypeError, match="k is a ndarray; expected a torch tensor"):
        sa.attention(q, q.numpy(), q)


@pytest.mark.parametrize("layout", ["bsr", "bsc"])
def test_booleans_of_torch_are_a_mask_where_whole_blocks_are_true(layout, device):
    dense = torch.kron(torch.tensor([[1, 0, 1], [0, 1, 0]]).bool(), torch.ones(16, 8, dtype=torch.bool)).to(
        device
    )
    mask = getattr(dense, f"to_sparse_{layout}")((16, 8))
    q, k, v = torch.randn(1, 2, 32, 8, device=device), *torch.randn(2, 1, 2, 24, 8, device=device)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, dense)
    for kept in (mask, mask, sa.AttentionMask.from_bsr(mask)):
        torch.testing.assert_close(sa.attention(q, k, v, kept), wanted)
    x, y = torch.randn(32, 4, device=device), torch.randn(4, 24, device=device)
    torch.testing.assert_close(sa.sampled_matmul(x, y, mask).to_dense(), torch.where(dense, x @ y, 0))
    with pytest.raises(TypeError, match="A has dtype bool"):
        sa.matmul(mask, torch.ones(24, 2, device=device))
    mask.values()[1, 3, 2] = False
    with pytest.raises(ValueError, match="mask stores booleans that are False"):
        sa.attention(q, k, v, mask)


@pytest.mark.parametrize("shape", [(2, 0, 16, 8), (0, 16, 8)])
@pytest.mark.parametrize("compiled", [False, True])
def test_no_heads_give_nothing_and_have_gradients(shape, compiled, device):
    x = torch.randn(shape, device=device, requires_grad=True)
    call = torch.compile(sa.attention, backend="aot_eager") if compiled else sa.attention
    for mask in (None, sa.AttentionMask.window(16, 4, block=8)):
        out = call(x, x, x, mask)
        assert out.shape == shape and torch.autograd.grad(out.sum(), x)[0].shape == shape
        with torch.no_grad():
            assert call(x, x, x, mask).shape == shape
    assert torch.vmap(sa.attention)(*[x.detach()[None]] * 3).shape == (1, *shape)
