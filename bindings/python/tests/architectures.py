"""Tiny models of transformers with random weights, and what sparsify makes of each.

`python architectures.py` prints the table of docs/guide/sparse-model-from-a-dense-one.md; a test compares it.
"""

import copy
import os
from collections import Counter
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import sparse_autotune as sa
from sparse_autotune import _sparsify
from sparse_autotune._torch.dense_weight import DenseWeight

BLOCK, DENSITY = 16, 0.5

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96}
FEED = {"intermediate_size": 128, "max_position_embeddings": 64}
GROUPED = {**SIZES, **FEED, "num_key_value_heads": 2}
GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96, "n_positions": 64}
ENCODER_DECODER = {"d_model": 64, "vocab_size": 96} | {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("layers", 1), ("ffn_dim", 128), ("attention_heads", 4))
}
IMAGE = {**SIZES, "intermediate_size": 128, "image_size": 16, "patch_size": 8}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16, "pad_token_id": 0}
WHISPER |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER |= {"suppress_tokens": None, "begin_suppress_tokens": None}
POSITIONS = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
STATE = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96, "state_size": 8}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
ROUTED = {"moe_intermediate_size": 64, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2}

# name: class, what its configuration is made with
MODELS = {
    "Llama": ("LlamaForCausalLM", GROUPED),
    "Mistral": ("MistralForCausalLM", GROUPED),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED),
    "Qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 16}),
    "Gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 16}),
    "Phi3": ("Phi3ForCausalLM", {**GROUPED, "pad_token_id": 0}),
    "StableLM": ("StableLmForCausalLM", GROUPED),
    "GPT-2": ("GPT2LMHeadModel", GPT),
    "GPT-J": ("GPTJForCausalLM", {**GPT, "rotary_dim": 8}),
    "GPT-NeoX": ("GPTNeoXForCausalLM", {**SIZES, **FEED}),
    "OPT": (
        "OPTForCausalLM",
        {**SIZES, "ffn_dim": 128, "max_position_embeddings": 64, "word_embed_proj_dim": 64},
    ),
    "BLOOM": ("BloomForCausalLM", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 96}),
    "Falcon": ("FalconForCausalLM", SIZES),
    "MPT": (
        "MptForCausalLM",
        {"d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 96, "max_seq_len": 64},
    ),
    "T5": (
        "T5ForConditionalGeneration",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 96},
    ),
    "BART": ("BartForConditionalGeneration", {**ENCODER_DECODER, "max_position_embeddings": 64}),
    "BERT": ("BertForMaskedLM", {**SIZES, **FEED}),
    "RoBERTa": ("RobertaForMaskedLM", {**SIZES, **FEED}),
    "DeBERTa": ("DebertaForMaskedLM", {**SIZES, **FEED, **POSITIONS}),
    "DeBERTa-v2": ("DebertaV2ForMaskedLM", {**SIZES, **FEED, **POSITIONS}),
    "ALBERT": ("AlbertForMaskedLM", {**SIZES, **FEED, "embedding_size": 32}),
    "ViT": ("ViTForImageClassification", IMAGE),
    "CLIP": (
        "CLIPModel",
        {"text_config": {**SIZES, **FEED}, "vision_config": IMAGE, "projection_dim": 64},
    ),
    "Whisper": ("WhisperForConditionalGeneration", {**ENCODER_DECODER, **WHISPER}),
    "Mamba": ("MambaForCausalLM", {**STATE, "time_step_rank": 16}),
    "Mamba2": (
        "Mamba2ForCausalLM",
        {**STATE, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 8},
    ),
    "RWKV": (
        "RwkvForCausalLM",
        {**STATE, "context_length": 64, "attention_hidden_size": 64, "intermediate_size": 128},
    ),
    "Mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "DeepSeek-V3": (
        "DeepseekV3ForCausalLM",
        {**SIZES, **FEED, **LATENT, **ROUTED, "topk_group": 1, "v_head_dim": 16, "first_k_dense_replace": 1},
    ),
}


def class_of(name):
    return getattr(transformers, MODELS[name][0])


def make(name, **more):
    """The dense model, and inputs for it."""
    torch.manual_seed(0)
    kind, given = class_of(name), {**MODELS[name][1], **more}
    model = kind(kind.config_class(**given)).eval()
    words, pixels = torch.arange(1, 17).view(2, 8), torch.randn(2, 3, 16, 16)
    if name == "ViT":
        return model, {"pixel_values": pixels}
    if name == "CLIP":
        return model, {"input_ids": words, "pixel_values": pixels}
    if name == "Whisper":
        return model, {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": words[:, :4]}
    if name in ("T5", "BART"):
        return model, {"input_ids": words, "decoder_input_ids": words[:, :4]}
    return model, {"input_ids": words}


def sparse_of(model):
    """A sparse copy of a model, and the report."""
    reports = []
    sparse = sa.sparsify(copy.deepcopy(model), block=BLOCK, density=DENSITY, report=reports.append)
    return sparse, reports[0]


def mask(model, report):
    """Makes the weights that a dense model has for sparse layers those that the blocks mean, in place."""
    for name, layer in report.replaced.items():
        linear = model.get_submodule(name)
        with torch.no_grad():
            _sparsify.weight_of(linear).copy_(layer.to_dense().weight)


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def read_as_dense(model, inputs):
    """The layers of which a forward pass takes the dense matrix instead of calling them."""
    names = {id(layer): name for name, layer in model.named_modules()}
    seen, make_dense = set(), DenseWeight._dense

    def counted(weight):
        seen.add(names[id(weight._layer)])
        return make_dense(weight)

    with mock.patch.object(DenseWeight, "_dense", counted):
        run(model, inputs)
    return seen


def short(names):
    """The last parts of dotted names, each once, with how many there are."""
    counts = Counter(name.rpartition(".")[2] for name in names)
    return ", ".join(f"`{name}`" + (f" ({n})" if n > 1 else "") for name, n in sorted(counts.items()))


def row(name):
    model, inputs = make(name)
    sparse, report = sparse_of(model)
    reasons = {}
    for layer, why in report.left.items():
        reasons.setdefault(why, []).append(layer)
    left = "; ".join(f"{short(layers)}: {why}" for why, layers in reasons.items())
    dense = short(read_as_dense(sparse, inputs))
    return f"| {name} | `{MODELS[name][0]}` | {len(report.replaced)} | {left or '-'} | {dense or '-'} |"


if __name__ == "__main__":
    sa.set_effort("off")
    for name in MODELS:
        print(row(name))
