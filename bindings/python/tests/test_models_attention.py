"""Hugging Face models with attn_implementation="sparse_autotune": the same as with "eager"."""

import copy
import logging
import warnings

import pytest
from conftest import TOLERANCE, run_program

import sparse_autotune as sa

torch = pytest.importorskip("torch")
tf = pytest.importorskip("transformers")

import sparse_autotune.transformers
from sparse_autotune.transformers import attention

WORDS = dict(
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    vocab_size=128,
    initializer_range=0.3,  # else logits say little of what attention did
)
DECODER = dict(
    WORDS,
    num_key_value_heads=2,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,  # else the last token is the likeliest next one
)
GPT2 = dict(
    vocab_size=128,
    n_positions=128,
    n_embd=64,
    n_layer=2,
    n_head=4,
    resid_pdrop=0,
    embd_pdrop=0,
    attn_pdrop=0,
    initializer_range=0.3,
    bos_token_id=1,
    eos_token_id=None,
    tie_word_embeddings=False,  # else the last token is the likeliest next one
)
DECODERS = {
    "llama": lambda **w: (tf.LlamaForCausalLM, tf.LlamaConfig(**{**DECODER, **w})),
    "mistral": lambda **w: (tf.MistralForCausalLM, tf.MistralConfig(**{**DECODER, "sliding_window": 8, **w})),
    "gemma2": lambda **w: (
        tf.Gemma2ForCausalLM,
        tf.Gemma2Config(**{**DECODER, "head_dim": 16, "sliding_window": 8, **w}),
    ),
    "gemma3": lambda **w: (
        tf.Gemma3ForCausalLM,
        tf.Gemma3TextConfig(**{**DECODER, "head_dim": 16, "sliding_window": 8, **w}),
    ),
    "gpt-oss": lambda **w: (
        tf.GptOssForCausalLM,
        tf.GptOssConfig(
            **{
                **DECODER,
                "head_dim": 16,
                "sliding_window": 8,
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                **w,
            }
        ),
    ),
    "qwen2": lambda **w: (tf.Qwen2ForCausalLM, tf.Qwen2Config(**{**DECODER, **w})),
    "gpt2": lambda **w: (tf.GPT2LMHeadModel, tf.GPT2Config(**{**GPT2, **w})),
}
BATCH, LENGTH = 3, 24
LEFT = torch.ones(BATCH, LENGTH, dtype=torch.long)
LEFT[1, :9], LEFT[2, :1] = 0, 0
RIGHT = LEFT.flip(1)


def models(cls, config, dtype=torch.float32, **loaded):
    """The same model twice: by eager, and by sparse_autotune."""
    torch.manual_seed(0)
    eager = cls._from_config(copy.deepcopy(config), attn_implementation="eager").to(dtype).eval()
    ours = cls._from_config(copy.deepcopy(config), attn_implementation="sparse_autotune").to(dtype).eval()
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def tokens(batch=BATCH, length=LENGTH):
    return torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(1))


def close(got, wanted, times=1):
    tolerance = times * TOLERANCE[str(got.dtype).removeprefix("torch.")]
    torch.testing.assert_close(got.double(), wanted.double(), rtol=tolerance, atol=tolerance)


@pytest.fixture
def who(caplog):
    """Gives a function: who computed since it was asked last."""
    caplog.set_level(logging.DEBUG, logger="sparse_autotune")

    def ask():
        found = {record.args[0] for record in caplog.records if record.name == "sparse_autotune"}
        caplog.clear()
        return found

    return ask


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", DECODERS)
def test_logits_of_decoders_are_those_of_eager(name, padding, who):
    eager, ours = models(*DECODERS[name]())
    mask = {"none": None, "left": LEFT, "right": RIGHT}[padding]
    with torch.no_grad():
        got, wanted = (m(tokens(), attention_mask=mask).logits for m in (ours, eager))
    kept = slice(None) if mask is None else mask.bool()
    assert wanted.abs().max() > 1
    close(got[kept], wanted[kept])
    assert who() == {"sparse_autotune"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_logits_in_16_bits_are_as_near_to_float32_as_those_of_eager(name, dtype):
    eager, ours = models(*DECODERS[name](initializer_range=0.1), dtype=dtype)
    with torch.no_grad():
        got, theirs = (m(tokens(), attention_mask=LEFT).logits[LEFT.bool()].float() for m in (ours, eager))
        exact = eager.float()(tokens(), attention_mask=LEFT).logits[LEFT.bool()]
    assert (got - exact).abs().max() <= 1.5 * (theirs - exact).abs().max()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", DECODERS)
def test_greedy_generation_gives_the_same_tokens(name, padded, cache):
    eager, ours = models(*DECODERS[name]())
    words = {"max_new_tokens": 12, "do_sample": False, "disable_compile": True, "pad_token_id": 0}
    if cache == "static":
        words["cache_implementation"] = "static"
    mask = LEFT if padded else torch.ones_like(LEFT)
    got, wanted = (m.generate(tokens(), attention_mask=mask, **words) for m in (ours, eager))
    assert torch.equal(got, wanted) and got.shape[1] == LENGTH + 12
    assert len(wanted[:, LENGTH:].unique()) > 3  # not one token again and again


def test_a_prompt_in_parts_gives_the_same_logits(who):
    for name in ("llama", "mistral"):
        eager, ours = models(*DECODERS[name]())
        found = []
        for model in (ours, eager):
            with torch.no_grad():
                first = model(tokens()[:, :10], use_cache=True)
                found.append(model(tokens()[:, 10:], past_key_values=first.past_key_values).logits)
        close(*found)
        assert who() == {"sparse_autotune"}


@pytest.mark.parametrize("batch", ["whole", "padded", "packed"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_training_step_has_the_gradients_of_eager(name, batch, who):
    eager, ours = models(*DECODERS[name](initializer_range=0.1))
    labels, words = tokens(), {}
    if batch == "padded":
        words["attention_mask"], labels = RIGHT, labels.masked_fill(RIGHT == 0, -100)
    if batch == "packed":
        words["position_ids"], words["use_cache"] = (
            torch.cat([torch.arange(10), torch.arange(14)])[None],
            False,
        )
    for model in (ours, eager):
        model.train()
        model(tokens(), labels=labels, **words).loss.backward()
    asked = 0
    for (place, x), y in zip(ours.named_parameters(), eager.parameters()):
        assert (x.grad is None) == (y.grad is None), place
        if y.grad is not None:
            asked += 1
            assert (x.grad - y.grad).abs().max() <= 1e-4 * max(y.grad.abs().max(), 1e-3), place
    assert asked > 10
    assert who() == {"sparse_autotune"}


def test_packed_sequences_do_not_see_each_other(who):
    _, ours = models(*DECODERS["mistral"]())
    where = torch.cat([torch.arange(10), torch.arange(14)])[None]
    with torch.no_grad():
        packed = ours(tokens(), position_ids=where, use_cache=False).logits
        close(packed[:, 10:], ours(tokens()[:, 10:], use_cache=False).logits)
        assert (packed - ours(tokens(), use_cache=False).logits).abs().max() > 0.1
    assert who() == {"sparse_autotune"}


@pytest.mark.parametrize("padded", [False, True])
def test_bert_and_vit_are_those_of_eager(padded, who):
    eager, ours = models(tf.BertModel, tf.BertConfig(**WORDS, max_position_embeddings=64))
    mask = RIGHT if padded else None
    got, wanted = (m(tokens(), attention_mask=mask).last_hidden_state for m in (ours, eager))
    kept = mask.bool() if padded else slice(None)
    close(got[kept], wanted[kept])
    weights = torch.randn_like(wanted[kept])
    for out in (got, wanted):
        (out[kept] * weights).sum().backward()
    x, y = (m.encoder.layer[0].attention.self.query.weight.grad for m in (ours, eager))
    assert y.abs().max() > 0 and (x - y).abs().max() <= 1e-4 * y.abs().max()
    words = {k: v for k, v in WORDS.items() if k != "vocab_size"}
    eager, ours = models(tf.ViTModel, tf.ViTConfig(**words, image_size=32, patch_size=8))
    pixels = torch.randn(2, 3, 32, 32)
    close(*(m(pixels).last_hidden_state for m in (ours, eager)))
    assert who() == {"sparse_autotune"}


# ---- blocks ----


def blocks_of(queries, keys):
    return sa.AttentionMask.strided(queries, 3, keys=keys, block=16)


def dense(mask):
    keep = torch.from_numpy(mask.to_dense())
    return torch.zeros(1, 1, *keep.shape).masked_fill(~keep, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2"])
def test_prefill_takes_the_blocks_that_are_set(name, who):
    eager, ours = models(*DECODERS[name](sliding_window=40) if name != "llama" else DECODERS[name]())
    ids, mask = tokens(2, 64), blocks_of(64, 64)
    sparse_autotune.transformers.set_prefill_mask(ours, mask)
    reach = torch.arange(64)[:, None] - torch.arange(64) < (64 if name == "llama" else 40)
    windowed = dense(mask).masked_fill(~reach, torch.finfo(torch.float32).min)
    given = {"full_attention": dense(mask), "sliding_attention": windowed} if name == "gemma2" else windowed
    with torch.no_grad():
        got, wanted = ours(ids).logits, eager(ids, attention_mask=given).logits
        close(got, wanted)
        assert (got - eager(ids).logits).abs().max() > 0.1
        assert who() == {"sparse_autotune"}
        with pytest.raises(ValueError, match="the mask of set_prefill_mask is 64x64; expected 60x60"):
            ours(ids[:, :60])
        sparse_autotune.transformers.set_prefill_mask(ours, None)
        close(ours(ids).logits, eager(ids).logits)


def test_blocks_by_a_function_of_lengths_beside_padding_and_in_generation():
    eager, ours = models(*DECODERS["llama"]())
    ids, padding, asked = tokens(2, 64), torch.ones(2, 64, dtype=torch.long), []
    padding[1, :9] = 0
    sparse_autotune.transformers.set_prefill_mask(ours, lambda *n: asked.append(n) or blocks_of(*n))
    both = dense(blocks_of(64, 64)).masked_fill(padding[:, None, None] == 0, torch.finfo(torch.float32).min)
    at = (padding.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        got = ours(ids, attention_mask=padding, position_ids=at).logits
        wanted = eager(ids, attention_mask=both, position_ids=at).logits
    close(got[padding.bool()], wanted[padding.bool()])
    made = ours.generate(ids, max_new_tokens=3, do_sample=False)
    assert asked == [(64, 64)]  # once for all layers, and not where there is one query
    with torch.no_grad():
        out = eager(ids, attention_mask=dense(blocks_of(64, 64)), use_cache=True)
        assert torch.equal(out.logits[:, -1].argmax(-1), made[:, 64])
        out = eager(made[:, 64:65], past_key_values=out.past_key_values)  # which sees all keys
        assert torch.equal(out.logits[:, -1].argmax(-1), made[:, 65])
    with pytest.raises(TypeError, match="mask is a int"):
        sparse_autotune.transformers.set_prefill_mask(ours, 3)
    sparse_autotune.transformers.set_prefill_mask(ours, lambda *_: 3)
    with pytest.raises(TypeError, match="gave a int"):
        ours(ids)


# ---- what is left to others ----


@pytest.fixture
def warned():
    """Gives a function that runs something and returns what was warned of."""
    attention._warned.clear()

    def run(call):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        return [str(w.message) for w in found if "attention of a model" in str(w.message)]

    yield run
    attention._warned.clear()


def test_what_cannot_be_done_here_is_warned_of_once_with_its_reason(warned):
    for name in ("gemma2", "gpt-oss"):
        _, model = models(*DECODERS[name](attention_dropout=0.5))
        assert not warned(lambda: model(tokens()))
        (text,) = warned(lambda: model.train()(tokens()))
        assert "by eager" in text and "dropout" in text
        assert not warned(lambda: model(tokens()))
        attention._warned.clear()
    _, llama = models(*DECODERS["llama"](attention_dropout=0.5))
    assert not warned(lambda: llama(tokens()))
    (text,) = warned(lambda: llama.train()(tokens()))
    assert "by sdpa" in text and "dropout" in text


def test_a_head_size_that_is_no_multiple_of_8_gives_the_same_logits(who):
    eager, ours = models(*DECODERS["llama"](head_dim=12))
    with torch.no_grad():
        got, wanted = (m(tokens(), attention_mask=LEFT).logits[LEFT.bool()] for m in (ours, eager))
    close(got, wanted)
    assert who() == {"sparse_autotune"}


def test_weights_are_given_where_they_are_asked_for():
    eager, ours = models(*DECODERS["llama"]())
    with torch.no_grad():
        got, wanted = (m(tokens(), output_attentions=True).attentions for m in (ours, eager))
    assert len(got) == 2 and all(map(torch.equal, got, wanted))


@pytest.mark.parametrize("word", ["cache", "indices", "block_indices"])
def test_what_would_be_ignored_is_refused(word):
    q = torch.randn(1, 2, 8, 16)
    with pytest.raises(NotImplementedError, match=rf"\({word}\) is not offered"):
        attention.attention_forward(torch.nn.Module(), q, q, q, None, **{word: q})


def test_a_model_that_computes_attention_by_itself_is_refused():
    config = tf.BloomConfig(vocab_size=128, hidden_size=64, n_layer=1, n_head=4)
    model = tf.BloomForCausalLM._from_config(config, attn_implementation="sparse_autotune")
    with pytest.raises(NotImplementedError, match="models of BloomConfig do not call"):
        model(tokens())


def test_it_compiles_without_a_break(who):
    eager, ours = models(*DECODERS["llama"](num_hidden_layers=1))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    logits, wanted = (m(tokens()).logits for m in (compiled, eager))
    close(logits, wanted)
    assert who() == {"sparse_autotune"}
    logits.square().sum().backward()
    wanted.square().sum().backward()
    x, y = (m.model.layers[0].self_attn.q_proj.weight.grad for m in (ours, eager))
    assert y.abs().max() > 0 and (x - y).abs().max() <= 1e-4 * y.abs().max()
    with torch.no_grad():  # a mask that nobody can look at while it traces
        got = compiled(tokens(), attention_mask=LEFT).logits[LEFT.bool()]
        close(got, eager(tokens(), attention_mask=LEFT).logits[LEFT.bool()])
    assert who() == {"sdpa"}


def test_transformers_is_imported_only_when_it_is_asked_for():
    run = run_program("import sys, torch, sparse_autotune; print('transformers' in sys.modules)")
    assert run.stdout.strip() == "False", run.stderr
