"""scaled_dot_product_attention with torch's signature: who computes it, and that it is what torch's gives."""

import gc
import logging

import numpy as np
import pytest
from conftest import TOLERANCE
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from sparse_autotune._torch import explained

own = torch.nn.functional.scaled_dot_product_attention
ours = sa.scaled_dot_product_attention


def close(got, wanted, times=1):
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    tolerance = times * TOLERANCE[str(got.dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


def operands(*shapes, dtype=torch.float32):
    """Leaves of these shapes, in memory as (batch, length, heads, size)."""
    torch.manual_seed(0)
    return [
        torch.randn(*s[:-3], s[-2], s[-3], s[-1]).to(dtype).transpose(-2, -3).detach().requires_grad_()
        if len(s) > 2
        else torch.randn(s).to(dtype).requires_grad_()
        for s in shapes
    ]


@pytest.fixture
def who(caplog):
    """Gives a function: who computed since it was asked last, and why."""
    caplog.set_level(logging.DEBUG, logger="sparse_autotune")

    def ask():
        lines = [record.args for record in caplog.records if record.name == "sparse_autotune"]
        caplog.clear()
        return lines

    return ask


def same_as_torch(leaves, *arguments, times=1, **words):
    """Results and gradients."""
    got, wanted = ours(*leaves, *arguments, **words), own(*leaves, *arguments, **words)
    close(got, wanted, times)
    grad = torch.randn_like(wanted)
    asked = [x for x in leaves if x.requires_grad]
    if asked:
        for x, y in zip(torch.autograd.grad(got, asked, grad), torch.autograd.grad(wanted, asked, grad)):
            close(x, y, 2 * times)
    return got


# ---- masks ----

BATCH, HEADS, LENGTH = 3, 2, 40
AT = torch.arange(LENGTH)
CAUSAL = AT[:, None] >= AT
LENGTHS = torch.tensor([40, 17, 30])[:, None, None, None]
RIGHT, LEFT = AT < LENGTHS, AT >= LENGTH - LENGTHS
SEQUENCE = torch.tensor([0] * 10 + [1] * 5 + [2] * 25)
PACKED = SEQUENCE[:, None] == SEQUENCE
NEAR = AT[:, None] - AT < 7
TILES = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]])
BLOCKS = torch.kron(TILES, torch.ones(16, 16)).bool()[:LENGTH, :LENGTH]
EXPRESSED = {
    "all": CAUSAL | True,
    "causal": CAUSAL,
    "a window": CAUSAL & NEAR,
    "a window to both sides": (AT[:, None] - AT).abs() < 5,
    "padding on the right": RIGHT,
    "padding on the left": LEFT,
    "the same padding of all": RIGHT[1:2],
    "causal and padding on the left": LEFT & CAUSAL,
    "a window and padding on the left": LEFT & CAUSAL & NEAR,
    "sequences": PACKED,
    "causal sequences": PACKED & CAUSAL,
    "sequences with a window": PACKED & CAUSAL & NEAR,
    "other sequences in each item": torch.stack([PACKED, PACKED.flip(0, 1), CAUSAL | True])[:, None],
    "blocks": BLOCKS,
    "blocks less causal": BLOCKS & CAUSAL,
    "blocks by head": torch.stack([BLOCKS, CAUSAL | True]),
    "heads that are the same": torch.stack([CAUSAL, CAUSAL]),
    "0 and -inf": torch.zeros(BATCH, 1, 1, LENGTH).masked_fill(~RIGHT, -torch.inf),
    "rows that keep nothing": (AT < 8)[:, None],
    "nothing": CAUSAL & False,
}
BY_TORCH = {
    "booleans without order": torch.rand(LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) < 0.5,
    "other numbers": AT[:, None] * 0.1 - AT * 0.1,
    "causal and padding on the right": RIGHT & CAUSAL,
    "other blocks in each item": torch.stack([BLOCKS, BLOCKS.flip(0), CAUSAL | True])[:, None],
    "booleans by head": torch.stack([CAUSAL, CAUSAL.T]),
    "one query that sees less": CAUSAL & ~((AT[:, None] == 20) & (AT < 10)),
    "one item without the window": (CAUSAL & NEAR & LEFT) | (CAUSAL & (LENGTHS == LENGTH)),
    "a window that grows": (AT[:, None] - AT).abs() <= AT[:, None] // 4,
}


@pytest.mark.parametrize("name", EXPRESSED)
def test_a_mask_that_words_express_is_computed_here(name, who):
    leaves = operands(*[(BATCH, HEADS, LENGTH, 16)] * 3)
    got = same_as_torch(leaves, EXPRESSED[name])
    assert [by for by, _ in who()] == ["sparse_autotune"]
    assert got.transpose(1, 2).is_contiguous()  # as the next layer wants it
    leaves = [x.detach().contiguous().requires_grad_() for x in leaves]
    same_as_torch(leaves, EXPRESSED[name])


@pytest.mark.parametrize("name", BY_TORCH)
def test_any_other_mask_is_left_to_torch(name, who):
    same_as_torch(operands(*[(BATCH, HEADS, LENGTH, 16)] * 3), BY_TORCH[name])
    ((by, why),) = who()
    assert by == "torch" and "mask" in why


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["causal", "padding on the right", "blocks by head"])
def test_other_dtypes(name, dtype, who):
    times = 2e5 if dtype == torch.float64 else 1  # LSE is float32
    same_as_torch(operands(*[(BATCH, HEADS, LENGTH, 16)] * 3, dtype=dtype), EXPRESSED[name], times=times)
    assert [by for by, _ in who()] == ["sparse_autotune"]


def kept_by(words, batch, queries, keys):
    """Booleans that words mean: (batch, heads, queries, keys)."""
    keep = np.zeros((batch, 1, queries, keys), bool)
    if words.packed:
        span, dense = words.last, words.mask.to_dense()
        for b in range(batch):
            rows = slice(b * queries, (b + 1) * queries)
            keep[b, 0, :, :span] = dense[rows, b * span : (b + 1) * span]
            dense[rows, b * span : (b + 1) * span] = False
        assert not dense.any()  # no item sees another
        return keep
    queries_at = np.arange(queries)[:, None] + words.last - words.first - queries
    distance = np.arange(words.last - words.first) - queries_at
    inside = np.ones_like(distance, bool) if words.mask is None else words.mask.to_dense()
    if words.causal:
        inside = inside & (distance <= 0)
    if words.window:
        inside = inside & (abs(distance) < words.window)
    heads = inside.shape[0] if inside.ndim == 3 else 1
    keep = np.repeat(keep, heads, 1)
    keep[:, :, :, words.first : words.last] = inside
    return keep


@given(st.data())
def test_words_keep_what_the_mask_does(data):
    batch, queries = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 40))
    keys = queries + data.draw(st.sampled_from([0, 0, 0, 1, 5, -1]))
    keys = max(keys, 1)
    keep = np.zeros((batch, 1, queries, keys), bool)
    causal, windows = (
        data.draw(st.booleans()),
        data.draw(st.sampled_from([[None], [None], [1], [2, 9], [9, None]])),
    )
    at = np.arange(queries)[:, None] + keys - queries
    for b in range(batch):
        first = data.draw(st.integers(0, keys))
        last = data.draw(st.sampled_from([keys, keys, data.draw(st.integers(0, keys))]))
        keep[b, 0, :, first:last] = True
        cut = data.draw(st.integers(0, min(queries, keys)))
        if cut and data.draw(st.booleans()):
            keep[b, 0, :cut, cut + keys - queries :] = False
            keep[b, 0, cut:, : max(cut + keys - queries, 0)] = False
        if causal:
            keep[b] &= np.arange(keys) <= at
        if (window := data.draw(st.sampled_from(windows))) is not None:
            keep[b] &= np.arange(keys) > at - window
    for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 3]))):  # what nothing says
        row = keep[data.draw(st.integers(0, batch - 1)), 0, data.draw(st.integers(0, queries - 1))]
        here = slice(0, data.draw(st.integers(0, keys))) if data.draw(st.booleans()) else slice(None)
        row[here] = ~row[here] if data.draw(st.booleans()) else False
    free = data.draw(st.booleans())
    words = explained.explain(keep, (batch, queries, keys), free)
    if isinstance(words, str):
        return
    got = kept_by(words, batch, queries, keys)
    if free and queries <= keys:  # what stands at keys that nobody sees may get anything
        padded = ~keep.any((1, 2))[:, keys - queries :]
        got, keep = (np.where(padded[:, None, :, None], False, x) for x in (got, keep))
    assert np.array_equal(*np.broadcast_arrays(got, keep))


def test_causal_padding_on_the_right_is_expressed_where_its_queries_are_free():
    keep = (RIGHT & CAUSAL).numpy()
    sizes = BATCH, LENGTH, LENGTH
    assert isinstance(explained.explain(keep, sizes, False), str)
    words = explained.explain(keep, sizes, True)
    assert words.packed and words.mask.causal
    # a cross mask of the same lengths is not causal, and its queries are nobody's padding
    cross = keep.copy()
    cross[0, 0, :, 3] = True
    assert isinstance(explained.explain(cross, sizes, True), str)


def test_a_mask_is_analysed_once_and_kept_with_its_tensor(monkeypatch, who):
    calls = []
    explained._entries.clear()
    explain = explained.explain
    monkeypatch.setattr(explained, "explain", lambda *x: calls.append(1) or explain(*x))
    q, k, v = (x.detach() for x in operands(*[(BATCH, HEADS, LENGTH, 16)] * 3))
    mask = RIGHT.clone()
    for _ in range(3):
        close(ours(q, k, v, mask), own(q, k, v, mask))
        close(ours(q, k, v, mask.expand(-1, -1, LENGTH, -1)), own(q, k, v, mask))  # repeats nothing new
    assert len(calls) == 1
    mask[2] = True
    close(ours(q, k, v, mask), own(q, k, v, mask))
    mask.numpy()[1, :, :, :5] = False  # nobody counts this write
    close(ours(q, k, v, mask), own(q, k, v, mask))
    assert len(calls) == 3
    for _ in range(20):  # others at the same address
        mask = torch.rand(BATCH, 1, 1, 1) * LENGTH > AT
        close(ours(q, k, v, mask), own(q, k, v, mask))
    assert len(explained._entries) <= explained.MOST_KEPT
    del mask
    gc.collect()
    ours(q, k, v, RIGHT)
    assert len(explained._entries) == 1


def test_masks_that_say_the_same_share_a_pattern():
    sizes = BATCH, LENGTH, LENGTH
    first, second = (explained.explain(RIGHT.numpy().copy(), sizes, False) for _ in range(2))
    assert first.mask is second.mask


# ---- the other arguments ----


@pytest.mark.parametrize(
    "queries, keys, by", [(40, 40, "sparse_autotune"), (24, 40, "sparse_autotune"), (40, 24, "torch")]
)
def test_causality_counts_from_the_first_query_and_the_first_key(queries, keys, by, who):
    leaves = operands((2, 4, queries, 16), (2, 4, keys, 16), (2, 4, keys, 16))
    same_as_torch(leaves, None, 0.0, True)
    assert [x for x, _ in who()] == [by]


def test_arguments_go_by_their_places_and_by_their_names(who):
    q, k, v = operands((2, 4, 24, 16), (2, 2, 24, 16), (2, 2, 24, 16))
    words = dict(scale=0.3, enable_gqa=True)
    close(ours(q, k, v, None, 0.0, True, **words), own(q, k, v, None, 0.0, True, **words))
    mask = CAUSAL[:24, :24]
    words = dict(attn_mask=mask, dropout_p=0.0, is_causal=False, scale=0.3, enable_gqa=True)
    close(ours(query=q, key=k, value=v, **words), own(query=q, key=k, value=v, **words))
    assert [by for by, _ in who()] == ["sparse_autotune"] * 2


@pytest.mark.parametrize(
    "shapes, why",
    [
        ([(2, 4, 24, 600)] * 3, "head size"),
        ([(2, 4, 24, 16), (2, 1, 24, 16), (2, 1, 24, 16)], "differ in heads"),
        ([(2, 4, 24, 16), (1, 4, 24, 16), (1, 4, 24, 16)], "repeated over the batch"),
    ],
)
def test_shapes_that_kernels_do_not_take_are_left_to_torch(shapes, why, who):
    same_as_torch(operands(*shapes))
    ((by, reason),) = who()
    assert by == "torch" and why in reason


@pytest.mark.parametrize("sizes", [(12, 12), (16, 8), (5, 33)])
@pytest.mark.parametrize("masked", [False, True])
def test_any_head_size_and_values_of_another_size(sizes, masked, who):
    size, of_values = sizes
    same_as_torch(
        operands((2, 4, 24, size), (2, 4, 24, size), (2, 4, 24, of_values)),
        CAUSAL[:24, :24] if masked else None,
    )
    assert [by for by, _ in who()] == ["sparse_autotune"]


@pytest.mark.parametrize("shape", [(24, 16), (6, 24, 16), (2, 3, 4, 24, 16)])
@pytest.mark.parametrize("masked", [False, True])
def test_other_numbers_of_dimensions(shape, masked):
    same_as_torch(operands(*[shape] * 3), CAUSAL[:24, :24] if masked else None)


def test_dropout_is_refused_by_name():
    q, k, v = operands(*[(1, 2, 16, 8)] * 3)
    with pytest.raises(NotImplementedError, match=r"^dropout_p is 0\.1; expected 0"):
        ours(q, k, v, dropout_p=0.1)


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: ours(q, k, v.double()),
        lambda q, k, v: ours(q, k[..., :8], v),
        lambda q, k, v: ours(q, k, v, torch.ones(3, 5, dtype=torch.bool)),
        lambda q, k, v: ours(q, k, v, dropout_p=-1.0),
    ],
)
def test_what_torch_refuses_torch_refuses_here(change):
    with pytest.raises((RuntimeError, ValueError)):
        change(*operands(*[(1, 2, 16, 16)] * 3))


def test_masks_of_this_package_are_taken():
    q, k, v = operands(*[(2, 2, 64, 16)] * 3)
    mask = sa.AttentionMask.window(64, 16, block=16)
    close(ours(q, k, v, mask), own(q, k, v, torch.from_numpy(mask.to_dense())))


def test_a_mask_that_learns_gets_its_gradient(who):
    q, k, v = operands(*[(2, 2, 24, 16)] * 3)
    bias = torch.zeros(24, 24, requires_grad=True)
    (got,) = torch.autograd.grad(ours(q, k, v, bias).square().sum(), bias)
    (wanted,) = torch.autograd.grad(own(q, k, v, bias).square().sum(), bias)
    close(got, wanted)
    assert who() == [("torch", "the mask requires a gradient")]


def test_autocast_chooses_the_dtype():
    leaves = operands(*[(2, 2, 24, 16)] * 3)
    for mask in (None, CAUSAL[:24, :24], RIGHT[1:, ..., :24], BY_TORCH["other numbers"][:24, :24]):
        found = []
        for f in (ours, own):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = f(*leaves, mask)
            assert out.dtype == torch.bfloat16
            found.append((out, *torch.autograd.grad(out.sum(), leaves)))
        for x, y in zip(*found):
            assert x.dtype == y.dtype
            close(x.bfloat16(), y.bfloat16(), 0.1)


def test_autocast_makes_one_dtype_of_several(who):
    q, k, v = operands(*[(2, 2, 24, 16)] * 3)
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    for f in (ours, compiled):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got, wanted = f(q, k.bfloat16(), v), own(q, k.bfloat16(), v)
        close(got, wanted)
        assert [by for by, _ in who()] == ["sparse_autotune"]
    with pytest.raises(RuntimeError):  # by torch
        ours(q, k.bfloat16(), v)


def test_transforms_of_torch_func_are_left_to_torch(who):
    q, k, v = (x.detach() for x in operands(*[(2, 2, 24, 16)] * 3))
    got, wanted = (torch.func.grad(lambda x: f(x, k, v).square().sum())(q) for f in (ours, own))
    close(got, wanted)
    assert who()[0][0] == "torch"
    close(torch.vmap(ours)(q, k, v), own(q, k, v))


def test_fake_tensors_and_subclasses_work():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(2, 2, 24, 16)
        assert ours(q, q, q, torch.ones(24, 24, dtype=torch.bool)).shape == q.shape

    class Odd(torch.Tensor):
        pass

    q, k, v = (x.detach() for x in operands(*[(2, 2, 24, 16)] * 3))
    close(ours(q.as_subclass(Odd), k, v).as_subclass(torch.Tensor), own(q, k, v))


def test_it_compiles_without_a_break(who):
    q, k, v = operands((2, 4, 24, 16), (2, 2, 24, 16), (2, 2, 24, 16))
    blocks = sa.AttentionMask.window(24, 9, block=8)

    def both(f, q, k, v, mask, more):
        x = f(q, k, v, is_causal=True, enable_gqa=True)
        x = f(x, k, v, mask, enable_gqa=True)
        x = f(x, k, v, more, enable_gqa=True)
        return f(x[..., :12], k[..., :12], v[..., :12], enable_gqa=True)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    dense = torch.from_numpy(blocks.to_dense())
    got, wanted = (
        compiled(ours, q, k, v, CAUSAL[:24, :24], blocks),
        both(own, q, k, v, CAUSAL[:24, :24], dense),
    )
    close(got, wanted)
    for x, y in zip(*(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (got, wanted))):
        close(x, y, 4)
    told = who()
    assert [by for by, _ in told] == ["sparse_autotune", "torch", "sparse_autotune", "sparse_autotune"]
    assert "torch.compile" in told[1][1]


# ---- in torch's place ----


@pytest.mark.parametrize("padded", [False, True])
def test_it_stands_in_torchs_place_under_multihead_attention(padded, monkeypatch, who):
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
    x = torch.randn(3, 20, 64, requires_grad=True)
    words = {"key_padding_mask": AT[:20] >= torch.tensor([20, 9, 13])[:, None]} if padded else {}
    wanted = layer(x, x, x, need_weights=False, **words)[0]
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ours)
    got = layer(x, x, x, need_weights=False, **words)[0]
    assert [by for by, _ in who()] == ["sparse_autotune"]
    close(got, wanted)
    for a, b in zip(
        *(torch.autograd.grad(o.square().sum(), [x, *layer.parameters()]) for o in (got, wanted))
    ):
        close(a, b, 4)


@pytest.mark.parametrize("causal", [False, True])
def test_it_stands_in_torchs_place_under_a_transformer_encoder(causal, monkeypatch, who):
    torch.manual_seed(0)
    one = torch.nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
    x, padding = torch.randn(3, 20, 64), AT[:20] >= torch.tensor([20, 9, 13])[:, None]
    words = {"mask": torch.nn.Transformer.generate_square_subsequent_mask(20)} if causal else {}
    padding = torch.zeros(3, 20).masked_fill(padding, -torch.inf)  # of the mask's kind
    wanted = model(x, src_key_padding_mask=padding, **words)
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", ours)
    got = model(x, src_key_padding_mask=padding, **words)
    close(got, wanted)
    # what follows the padding of a causal item sees all that comes before it, which no sequences say
    assert {by for by, _ in who()} == {"torch" if causal else "sparse_autotune"}
    got.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
