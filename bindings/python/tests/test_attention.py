"""Attention without torch: results, masks, layouts, wrong input, races; against the definition in double
precision."""

import copy
import pickle
import re

import numpy as np
import pytest
from conftest import TOLERANCE, OnlyDlpack
from hypothesis import given
from hypothesis import strategies as st

import sparse_autotune as sa


def expected(q, k, v, keep=None, scale=None):
    """Result and LSE from the definition."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, -3), np.repeat(v, group, -3)
    scores = q @ k.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    top = scores.max(-1, initial=-1e300, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        return weights @ v / np.where(total == 0, 1, total), (np.log(total) + top)[..., 0]


def close(got, wanted, dtype):
    tolerance = TOLERANCE[np.dtype(dtype).name]
    np.testing.assert_allclose(np.asarray(got, np.float64), wanted, rtol=tolerance, atol=tolerance)


def operands(seed, batch, heads, kv_heads, queries, keys, size, dtype=np.float32):
    rng = np.random.default_rng(seed)
    shapes = ((*batch, heads, queries, size), (*batch, kv_heads, keys, size), (*batch, kv_heads, keys, size))
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)


def laid_out(x, how):
    if how == "by rows":
        return np.ascontiguousarray(x.swapaxes(-2, -3)).swapaxes(-2, -3)
    if how == "gaps":
        wide = np.full((*x.shape[:-1], x.shape[-1] + 8), np.nan, x.dtype)
        wide[..., : x.shape[-1]] = x
        return wide[..., : x.shape[-1]]
    if how == "odd":  # elements apart: copied
        return np.stack([x, np.full_like(x, np.nan)], -1)[..., 0]
    if how == "backwards":
        return np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
    return x


LAYOUTS = st.sampled_from(["plain", "by rows", "gaps", "odd", "backwards"])


@st.composite
def masks(draw, queries, keys, heads):
    kind = draw(
        st.sampled_from(["none", "window", "strided", "mixed", "document", "blocks", "heads", "nothing"])
    )
    block, causal = (draw(st.integers(1, 20)), draw(st.integers(1, 20))), draw(st.booleans())
    seed = draw(st.integers(0, 99))
    if kind == "none":
        return None
    if kind == "window":
        return sa.AttentionMask.window(
            queries, draw(st.integers(1, 40)), keys=keys, block=block, causal=causal
        )
    if kind == "strided":
        return sa.AttentionMask.strided(
            queries, draw(st.integers(1, 5)), local=2, keys=keys, block=block, causal=causal
        )
    if kind == "mixed":
        return sa.AttentionMask.global_window_random(
            queries,
            keys=keys,
            block=block,
            heads=draw(st.sampled_from([None, heads])),
            causal=causal,
            seed=seed,
        )
    rng = np.random.default_rng(seed)
    if kind == "document":
        cuts = [np.sort(rng.integers(0, n + 1, 3)) for n in (queries, keys)]
        q, kv = ([0, *cut, n] for cut, n in zip(cuts, (queries, keys)))
        return sa.AttentionMask.document(
            q, kv_offsets=kv, block=block, causal=causal, window=draw(st.sampled_from([None, 7]))
        )
    grid = -(-queries // block[0]), -(-keys // block[1])
    stored = rng.random((heads, *grid) if kind == "heads" else grid) < (0.0 if kind == "nothing" else 0.5)
    return sa.AttentionMask.from_blocks(stored, (queries, keys), block, causal=causal)


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 3))
    heads = kv_heads * draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    mask = draw(masks(queries, keys, heads))
    packed = mask is not None and bool(mask.offsets)
    batch = draw(st.sampled_from([(), (1,)] if packed else [(), (1,), (2,), (2, 3)]))
    dtype = draw(st.sampled_from([np.float32, np.float64, np.float16]))
    q, k, v = operands(
        draw(st.integers(0, 99)),
        batch,
        heads,
        kv_heads,
        queries,
        keys,
        draw(st.sampled_from([8, 16, 24, 64])),
        dtype,
    )
    return laid_out(q, draw(LAYOUTS)), laid_out(k, draw(LAYOUTS)), laid_out(v, draw(LAYOUTS)), mask


def kept(mask, queries, keys, causal=False, window=None):
    everything = sa.AttentionMask(
        [0, 1], [0], (queries, keys), (queries, keys), causal=causal, window=window
    ).to_dense()
    if mask is None:
        return everything
    if mask.offsets:  # causal and window count within a sequence
        again = sa.AttentionMask(
            mask.row_ptr,
            mask.col_idx,
            mask.shape,
            mask.block,
            causal=causal,
            window=window,
            q_offsets=mask.offsets[0],
            kv_offsets=mask.offsets[1],
        )
        return mask.to_dense() & again.to_dense()
    return mask.to_dense() & everything


@given(problems(), st.booleans(), st.sampled_from([None, 1, 13]), st.sampled_from([None, 0.3, -0.5, 0.0]))
def test_attention_is_what_it_is_defined_to_be(problem, causal, window, scale):
    q, k, v, mask = problem
    keep = kept(mask, q.shape[-2], k.shape[-2], causal, window)
    wanted, wanted_lse = expected(q, k, v, keep, scale)
    out, lse = sa.attention(q, k, v, mask, causal=causal, window=window, scale=scale, return_lse=True)
    assert out.dtype == q.dtype and lse.dtype == np.float32 and type(out) is np.ndarray
    close(out, wanted, q.dtype)
    assert np.array_equal(np.isinf(lse), np.isinf(wanted_lse))
    np.testing.assert_allclose(lse, wanted_lse, rtol=2e-3, atol=2e-3)
    # another problem, maybe another kernel
    close(sa.attention(q, k, v, mask, causal=causal, window=window, scale=scale), wanted, q.dtype)


def test_rows_and_heads_lie_in_the_result_as_in_q():
    q, k, v = operands(0, (2,), 4, 2, 33, 20, 16)
    packed = np.ascontiguousarray(q.swapaxes(1, 2))
    out = sa.attention(packed.swapaxes(1, 2), k, v)
    assert out.swapaxes(1, 2).flags.c_contiguous and sa.attention(q, k, v).flags.c_contiguous
    close(out, sa.attention(q, k, v), q.dtype)


def test_packed_qkv_is_not_copied():
    qkv = np.random.default_rng(0).standard_normal((2, 50, 3, 4, 16)).astype(np.float32)
    q, k, v = qkv.transpose(2, 0, 3, 1, 4)
    from sparse_autotune import _arrays, _attention

    for x in (q, k, v):
        o = _arrays.describe(x, "x")
        assert _attention.Heads(o, "x").operand is o
    close(sa.attention(q, k, v), expected(q, k, v)[0], np.float32)


def test_arrays_that_offer_nothing_but_dlpack():
    q, k, v = operands(1, (1,), 2, 2, 16, 16, 8)
    close(sa.attention(*map(OnlyDlpack, (q, k, v))), expected(q, k, v)[0], np.float32)


@pytest.mark.parametrize("shape", [(0, 2, 4, 8), (1, 0, 4, 8), (1, 2, 0, 8), (0, 4, 8)])
def test_nothing_to_do(shape):
    x = np.ones(shape, np.float32)
    for mask in (None, sa.AttentionMask.window(4, 2, block=2)) if shape[-2] else (None,):
        out, lse = sa.attention(x, x, x, mask, return_lse=True)
        assert out.shape == shape and lse.shape == shape[:-1]


def test_queries_of_some_heads_need_keys_of_some():
    q, none = np.ones((1, 2, 4, 8), np.float32), np.ones((1, 0, 4, 8), np.float32)
    with pytest.raises(ValueError, match="k has 0 heads and q 2"):
        sa.attention(q, none, none)
    assert sa.attention(none, q, q).shape == none.shape


def test_no_keys_give_zeros():
    q, k = np.ones((1, 2, 4, 8), np.float32), np.ones((1, 2, 0, 8), np.float32)
    out, lse = sa.attention(q, k, k, return_lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_large_scores_do_not_overflow():
    q, k, v = operands(2, (1,), 1, 1, 40, 40, 16)
    out = sa.attention(q * 1e4, k * 1e4, v)
    assert np.isfinite(out).all()
    close(out, expected(q * 1e4, k * 1e4, v)[0], np.float32)


# ---- masks ----


@given(st.data())
def test_masks_are_made_again_from_what_they_keep(data):
    queries, keys = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    mask = data.draw(masks(queries, keys, 2).filter(lambda m: m is not None))
    keep = mask.to_dense()
    assert np.array_equal(sa.AttentionMask.from_dense(keep, block=1).to_dense(), keep)
    again = pickle.loads(pickle.dumps(mask))
    assert (
        np.array_equal(again.to_dense(), keep) and repr(again) == repr(mask) and copy.deepcopy(mask) is mask
    )


@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 20),
    st.integers(1, 20),
    st.integers(1, 50),
    st.booleans(),
    st.booleans(),
)
def test_every_stored_block_of_a_window_keeps_something(queries, keys, br, bc, window, causal, packed):
    if packed:
        offsets = [0, queries // 3, queries], [0, keys // 2, keys]
        mask = sa.AttentionMask.document(
            offsets[0], kv_offsets=offsets[1], block=(br, bc), causal=causal, window=window
        )
    else:
        mask = sa.AttentionMask.window(queries, window, keys=keys, block=(br, bc), causal=causal)
    wide = np.pad(mask.to_dense(), [(0, -queries % br), (0, -keys % bc)])
    assert wide.reshape(-(-queries // br), br, -(-keys // bc), bc).any((1, 3)).sum() == mask.stored_blocks
    whole = sa.AttentionMask([0, 1], [0], (queries, keys), (queries, keys), causal=causal, window=window)
    if not packed:
        assert np.array_equal(mask.to_dense(), whole.to_dense())


def test_a_window_keeps_exactly_its_keys():
    keep = sa.AttentionMask.window(100, 10, keys=120, block=16).to_dense()
    i, j = np.arange(100)[:, None] + 20, np.arange(120)
    assert np.array_equal(keep, (j <= i) & (i - j < 10))
    both = sa.AttentionMask.window(100, 10, block=(8, 16), causal=False).to_dense()
    assert np.array_equal(both, np.abs(np.arange(100)[:, None] - np.arange(100)) < 10)


def test_documents_see_themselves():
    mask = sa.AttentionMask.document([0, 30, 30, 75, 100], block=16, causal=True)
    number = np.repeat([0, 2, 3], [30, 45, 25])
    i = np.arange(100)
    assert np.array_equal(mask.to_dense(), (number[:, None] == number) & (i <= i[:, None]))


def test_global_blocks_are_seen_by_all_and_see_all():
    keep = sa.AttentionMask.global_window_random(
        256, block=16, first=2, window=1, random=3, seed=1
    ).to_dense()
    assert keep[:, :32].all() and keep[:32].all()
    blocks = keep[::16, ::16]
    assert (blocks[2:].sum(1) == 2 + 1 + 3).all()


def test_a_bsr_matrix_is_a_mask():
    scipy = pytest.importorskip("scipy.sparse")
    blocks = np.array([[1, 0, 1], [0, 1, 0]], np.float32)
    dense = np.kron(blocks, np.ones((16, 8), np.float32))
    matrix = sa.BsrMatrix.from_dense(dense, block=(16, 8))
    q, k, v = operands(3, (1,), 2, 2, 32, 24, 8)
    wanted = expected(q, k, v, dense > 0)[0]
    close(sa.attention(q, k, v, matrix), wanted, np.float32)
    close(sa.attention(q, k, v, scipy.bsr_array(dense, blocksize=(16, 8))), wanted, np.float32)
    flipped = sa.BsrMatrix.from_dense(np.ascontiguousarray(dense.T), block=(8, 16)).T
    close(sa.attention(q, k, v, flipped), wanted, np.float32)


def test_booleans_are_a_mask_where_whole_blocks_are_true():
    scipy = pytest.importorskip("scipy.sparse")
    dense = np.kron(np.array([[1, 0, 1], [0, 1, 0]], bool), np.ones((16, 8), bool))
    q, k, v = operands(3, (1,), 2, 2, 32, 24, 8)
    wanted, matrix = expected(q, k, v, dense)[0], scipy.bsr_array(dense, blocksize=(16, 8))
    for mask in (matrix, sa.AttentionMask.from_bsr(matrix)):
        close(sa.attention(q, k, v, mask), wanted, np.float32)
        close(sa.attention(q, k, v, attn_mask=mask), wanted, np.float32)
    x, y = np.ones((32, 4), np.float32), np.ones((4, 24), np.float32)
    np.testing.assert_array_equal(sa.sampled_matmul(x, y, matrix).to_dense(), np.where(dense, 4, 0))
    with pytest.raises(TypeError, match="A has dtype bool"):
        sa.matmul(matrix, np.ones((24, 2)))
    matrix.data[1, 3, 2] = False
    for call in (lambda: sa.attention(q, k, v, matrix), lambda: sa.AttentionMask.from_bsr(matrix)):
        with pytest.raises(ValueError, match="stores booleans that are False"):
            call()


def test_a_mask_shows_itself():
    mask = sa.AttentionMask.global_window_random(512, heads=6, block=32)
    html = mask._repr_html_()
    assert html.count("<svg") == 1 and html.count("<g fill=") == 4 and "6 heads" in html
    large = sa.AttentionMask.window(1 << 20, 4096, block=4096)
    assert "<rect" in large.picture() and len(large.picture()) < 200_000
    triangle = sa.AttentionMask.window(64, 64, block=32).picture()
    assert re.findall(r'width="([\d.]+)" height="3.75" fill-opacity="1.00"', triangle) == [
        f"{3.75 * n:.2f}" for n in range(1, 65)
    ]


@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (3, 0, 0), (3, 4, 0)])
def test_a_mask_of_nothing(shape):
    mask = sa.AttentionMask.from_dense(np.ones(shape, bool), block=4)
    assert mask.to_dense().shape == shape and mask.stored_blocks == 0 and mask.picture()
    q, k, v = operands(0, (1,), 3, 3, *shape[-2:], 8)
    out, lse = sa.attention(q, k, v, mask, return_lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_documents_without_tokens():
    mask = sa.AttentionMask.document([0, 0, 0], causal=True, window=3)
    assert mask.shape == (0, 0) and len(mask.offsets[0]) == 3
    assert sa.AttentionMask.document([0, 5], kv_offsets=[0, 0]).to_dense().shape == (5, 0)


# ---- wrong input ----

OK = np.ones((1, 4, 16, 16), np.float32)
BAD = [
    (dict(q=np.ones(16, np.float32)), ValueError, "q has 1 dimensions"),
    (dict(q=[1.0]), TypeError, "q is a list"),
    (dict(k=OK[0]), ValueError, "k has 3 dimensions and q 4"),
    (dict(k=OK.astype(np.float64)), TypeError, "k has dtype float64"),
    (dict(v=OK.astype(np.int32)), TypeError, "v has dtype int32"),
    (dict(k=OK[:, :3], v=OK[:, :3]), ValueError, "k has 3 heads and q 4"),
    (dict(k=OK[:, :0], v=OK[:, :0]), ValueError, "k has 0 heads"),
    (dict(v=OK[:, :, :8]), ValueError, r"v has shape \(1, 4, 8, 16\)"),
    (dict(k=np.ones((2, 4, 16, 16), np.float32)), ValueError, "k has shape .* expected the same batch"),
    (dict(k=OK[..., :8]), ValueError, "k has head size 8 and q 16"),
    (
        dict(v=np.ones((1, 4, 16, 577), np.float32)),
        NotImplementedError,
        "v has head size 577; expected 1 to 576",
    ),
    (
        dict(zip("qk", [np.ones((1, 4, 16, 600), np.float32)] * 2)),
        NotImplementedError,
        "q has head size 600; expected 1 to 576",
    ),
    (dict(softcap=0), ValueError, "softcap is 0.0; expected None, or 1e-4 to 1e6"),
    (dict(softcap=-2.0), ValueError, "softcap is -2.0"),
    (dict(softcap="x"), TypeError, "softcap is a str"),
    (dict(sinks=np.ones(3, np.float32)), ValueError, r"sinks has shape \(3,\); expected \(4,\)"),
    (dict(sinks=np.ones((1, 4), np.float32)), ValueError, r"sinks has shape \(1, 4\)"),
    (dict(sinks="x"), TypeError, "sinks is a str"),
    (dict(window=0), ValueError, "window is 0"),
    (dict(window=2.5), TypeError, "window is 2.5"),
    (dict(scale="x"), TypeError, "scale is a str"),
    (dict(scale=float("nan")), ValueError, "scale is nan"),
    (dict(scale=1e39), NotImplementedError, r"^scale is 1e\+39"),
    (dict(causal=0.1), TypeError, "causal is 0.1; expected True or False"),
    (dict(causal="no"), TypeError, "causal is 'no'; expected True or False"),
    (dict(causal=0, is_causal=True), TypeError, "causal is 0"),
    (dict(is_causal=0), TypeError, "is_causal is 0"),
    (dict(enable_gqa=1), TypeError, "enable_gqa is 1"),
    (dict(return_lse="no"), TypeError, "return_lse is 'no'"),
    (dict(deterministic=None), TypeError, "deterministic is None"),
    (dict(allow_tf32="no"), TypeError, "allow_tf32 is 'no'"),
    (dict(mask=OK > 0), TypeError, "^mask is a ndarray.*from_dense"),
    (dict(attn_mask=OK > 0), TypeError, "^attn_mask is a ndarray.*from_dense"),
    (dict(mask=sa.AttentionMask.window(32, 4)), ValueError, "mask is 32x32; expected 16x16"),
    (
        dict(mask=sa.AttentionMask.global_window_random(16, heads=3, block=4)),
        ValueError,
        "mask has 3 heads and q 4",
    ),
    (dict(dropout_p=0.1), NotImplementedError, "dropout_p is 0.1"),
    (dict(is_causal=True, q=OK[:, :, :8]), ValueError, "is_causal"),
    (dict(enable_gqa=False, k=OK[:, :2], v=OK[:, :2]), ValueError, "enable_gqa"),
    (dict(is_causal=True, k=None), TypeError, "k is a NoneType"),
    (dict(is_causal=True, q=[[1.0]]), TypeError, "q is a list"),
    (dict(is_causal=True, k=OK[0, 0, 0]), ValueError, "k has 1 dimensions"),
    (dict(enable_gqa=False, k=OK[0, 0], v=OK[0, 0]), ValueError, "k has 2 dimensions"),
    (
        dict(mask=sa.AttentionMask.window(16, 4), attn_mask=sa.AttentionMask.window(16, 4)),
        ValueError,
        "mask and attn_mask",
    ),
]


@pytest.mark.parametrize("words, kind, message", BAD)
def test_wrong_input_is_named(words, kind, message):
    with pytest.raises(kind, match=message):
        sa.attention(**{"q": OK, "k": OK, "v": OK, **words})


def test_bools_of_numpy_are_bools():
    words = {
        "causal": np.True_,
        "return_lse": np.False_,
        "deterministic": np.True_,
        "allow_tf32": np.False_,
        "is_causal": np.False_,
        "enable_gqa": np.True_,
    }
    np.testing.assert_array_equal(sa.attention(OK, OK, OK, **words), sa.attention(OK, OK, OK, causal=True))
    assert sa.AttentionMask.window(4, 4, causal=np.False_).causal is False


def test_packed_sequences_are_one_batch():
    x = np.ones((2, 1, 16, 8), np.float32)
    with pytest.raises(ValueError, match="q has a batch of 2"):
        sa.attention(x, x, x, sa.AttentionMask.document([0, 4, 16], block=4))


@pytest.mark.parametrize(
    "make, kind, message",
    [
        (lambda: sa.AttentionMask([0, 1], [0], (4,), 4), TypeError, "shape is"),
        (lambda: sa.AttentionMask([0, 1], [1], (4, 4), 4), ValueError, "col_idx"),
        (
            lambda: sa.AttentionMask([0, 1], [0], (4, 4), 4, heads=2),
            ValueError,
            "row_ptr has 2 entries; expected 3",
        ),
        (
            lambda: sa.AttentionMask([0, 1], [0], (4, 4), 4, q_offsets=[0, 3, 2, 4]),
            ValueError,
            "q_offsets is .* never decrease",
        ),
        (
            lambda: sa.AttentionMask([0, 1], [0], (4, 4), 4, q_offsets=[0, 5]),
            ValueError,
            "q_offsets ends with 5; expected 4",
        ),
        (lambda: sa.AttentionMask([0, 1], [0], (4, 4), 4, q_offsets=[1, 4]), ValueError, "q_offsets is"),
        (
            lambda: sa.AttentionMask([0, 1], [0], (4, 4), 4, kv_offsets=[0, 4]),
            ValueError,
            "kv_offsets is given without",
        ),
        (
            lambda: sa.AttentionMask([0, 1], [0], (4, 8), 8, q_offsets=[0, 4]),
            ValueError,
            "kv_offsets is None",
        ),
        (
            lambda: sa.AttentionMask.document([0, 4], kv_offsets=[0, 2, 4]),
            ValueError,
            "kv_offsets has 3 entries",
        ),
        (lambda: sa.AttentionMask.document([]), ValueError, "offsets is"),
        (lambda: sa.AttentionMask.window(0, 4), ValueError, "queries is 0"),
        (lambda: sa.AttentionMask.window(4, 0), ValueError, "window is 0"),
        (lambda: sa.AttentionMask.strided(4, 0), ValueError, "stride is 0"),
        (lambda: sa.AttentionMask.global_window_random(4, random=-1), ValueError, "random is -1"),
        (lambda: sa.AttentionMask.from_blocks([[1, 0]], (4, 4), 4), TypeError, "stored has dtype"),
        (lambda: sa.AttentionMask.from_blocks([[True, False]], (4, 4), 4), ValueError, "stored has shape"),
        (lambda: sa.AttentionMask.from_blocks([[True]], (4,), 4), TypeError, "shape is"),
        (lambda: sa.AttentionMask.from_blocks([[True]], "ab", 4), TypeError, "shape\\[0\\] is"),
        (
            lambda: sa.AttentionMask.from_dense(np.tril(np.ones((8, 8), bool)), block=4),
            ValueError,
            "keep holds blocks of 4x4",
        ),
        (lambda: sa.AttentionMask.from_dense(np.ones(8, bool)), ValueError, "keep has 1 dimensions"),
        (lambda: sa.AttentionMask.from_bsr(np.eye(4)), TypeError, "matrix is a ndarray"),
        (lambda: sa.AttentionMask.from_dense(np.ones((0, 4, 4), bool)), ValueError, "heads is 0"),
        (lambda: sa.AttentionMask.window(4, 4, block=0), ValueError, "block is 0"),
        (
            lambda: sa.AttentionMask.window(4, 4, causal=0.5),
            TypeError,
            "causal is 0.5; expected True or False",
        ),
    ],
)
def test_wrong_masks_are_named(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


# ---- races ----


def entries_but_for_alignment():
    """What the cache knows; NumPy's arrays are aligned by chance."""
    return {re.sub(r" align=\S+", "", key) for key in sa.cache.entries()}


def test_attention_races_and_is_tuned():
    q, k, v = operands(5, (1,), 4, 2, 64, 64, 16)
    mask = sa.AttentionMask.window(64, 16, block=16)
    race = sa.benchmark(sa.attention, q, k, v, mask)
    assert race.best.verdict == "ok" and race.problem["op"] == "attention" and race.problem["window"] == 16
    assert "4 heads over 2" in str(race) and race.as_dict()["problem"]["dim"] == 16
    back = sa.benchmark(sa.attention, q, k, v, mask, backward=True)
    assert back.best.verdict == "ok" and back.problem["op"] == "attention-backward"
    with sa.set_effort("quick"):
        sa.cache.clear()
        first = sa.tune(sa.attention, q, k, v, mask, gradients=True, effort="quick")
        assert len(first) == 2 and all(p["verified"] and p["tuned"] for p in first)
        known = entries_but_for_alignment()
        sa.tune(sa.attention, q, k, v, mask, gradients=True, effort="quick")
        assert entries_but_for_alignment() == known
    with pytest.raises(TypeError, match="causal"):
        sa.benchmark(sa.BsrMatrix.from_dense(np.eye(4), block=2), np.ones((4, 1)), causal=True)
    with pytest.raises(ValueError, match="q has shape"):
        sa.benchmark(sa.attention, q[:, :, :0], k, v)
    with pytest.raises(NotImplementedError, match=r"^scale is 1e"):
        sa.benchmark(sa.attention, q, k, v, scale=1e39)
    for race in (sa.benchmark, sa.tune):
        with pytest.raises(TypeError, match=r"^missing a required argument: 'v'$"):
            race(sa.attention, q, k)
        with pytest.raises(TypeError, match=r"^got an unexpected keyword argument 'masks'$"):
            race(sa.attention, q, k, v, masks=mask)


def test_lengths_that_differ_little_share_a_race():
    with sa.set_effort("quick"):
        sa.cache.clear()
        for n in range(1000, 1010):
            sa.attention(*operands(n, (1,), 4, 2, 1, n, 16))
        assert len(entries_but_for_alignment()) == 1


def by_numpy(call):
    group = call.heads // call.kv_heads
    k, v = (np.repeat(x, group, 1) for x in (call.k, call.v))
    scores = np.where(call.dense(), call.scale * (call.q @ k.swapaxes(2, 3)), -np.inf)
    top = np.maximum(scores.max(-1, keepdims=True), -1e30)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    call.out[...] = weights @ v / np.where(total == 0, 1, total)
    if call.lse is not None:
        with np.errstate(divide="ignore"):
            call.lse[...] = (np.log(total) + top)[..., 0]
    assert call.state == call.shape


def test_a_callable_is_a_variant_of_attention():
    name = "cpu_attention_f32_any_python_numpy"
    sa.register_variant(
        by_numpy,
        name=name,
        op="attention",
        prepare=lambda call: call.shape,
        supports=lambda call: call.size < 64,
    )
    q, k, v = operands(6, (2,), 4, 2, 40, 50, 16)
    mask = sa.AttentionMask.global_window_random(40, keys=50, heads=4, block=8, causal=True)
    for words in ({}, {"mask": mask}, {"mask": mask, "return_lse": True}, {"causal": True, "window": 5}):
        race = sa.benchmark(sa.attention, q, k, v, only=name, **words)
        assert [r.verdict for r in race] == ["ok"], race[0].message
    with pytest.raises(ValueError, match="prepare is given"):
        sa.register_variant(by_numpy, name="cpu_matmul_f32_any_python_none", prepare=lambda call: None)


def test_a_wrong_callable_is_found_out():
    def wrong(call):
        by_numpy(call)
        call.out[0, 0, 0] += 1

    name = "cpu_attention_f32_any_python_wrong"
    sa.register_variant(
        wrong,
        name=name,
        op="attention",
        prepare=lambda call: call.shape,
        supports=lambda call: call.size == 24,
    )
    q, k, v = operands(7, (1,), 2, 2, 32, 32, 24)
    race = sa.benchmark(sa.attention, q, k, v, only=name)
    assert race[0].verdict == "wrong" and race.best is None
