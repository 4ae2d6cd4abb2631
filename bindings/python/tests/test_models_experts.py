"""Mixtures of experts of Hugging Face's transformers, beside their own implementation of experts."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", "5")


def tiny_models():
    """Makers of small models with random weights."""
    import transformers

    small = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    deepseek = {
        "moe_intermediate_size": 24,
        "num_key_value_heads": 4,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    }
    gpt_oss = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}
    return {
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**small, num_local_experts=4, num_experts_per_tok=2)
        ),
        "qwen3": lambda: transformers.Qwen3MoeForCausalLM(
            transformers.Qwen3MoeConfig(
                **small, moe_intermediate_size=24, num_experts=8, num_experts_per_tok=3, head_dim=8
            )
        ),
        "deepseek": lambda: transformers.DeepseekV3ForCausalLM(
            transformers.DeepseekV3Config(**{**small, **deepseek})
        ),
        "gpt_oss": lambda: transformers.GptOssForCausalLM(  # bias, interleaved gate, transposed weights
            transformers.GptOssConfig(**small, **gpt_oss)
        ),
    }


@pytest.fixture(params=["mixtral", "qwen3", "deepseek", "gpt_oss"])
def model(request):
    made = tiny_models()[request.param]
    import sparse_autotune.transformers  # noqa: F401

    torch.manual_seed(0)
    found = made().eval()
    with torch.no_grad():
        for name, parameter in found.named_parameters():  # some are made empty, and all are small
            if "norm" not in name:
                parameter.normal_(0, 0.3)
    return found


def both(model, compute):
    """What compute() gives with transformers' own experts, and with ours."""
    from sparse_autotune.transformers import experts

    model.set_experts_implementation("eager")
    theirs, calls, registry = compute(), [], experts.ALL_EXPERTS_FUNCTIONS
    assert registry["sparse_autotune"] is experts.experts_forward
    registry["sparse_autotune"] = lambda *a, **w: calls.append(1) or experts.experts_forward(*a, **w)
    try:
        model.set_experts_implementation("sparse_autotune")
        ours = compute()
    finally:
        del registry["sparse_autotune"]  # what stands before the one that was registered
    assert calls
    return theirs, ours


def test_logits_are_those_of_transformers_own_experts(model):
    tokens = torch.randint(3, 96, (2, 13))
    with torch.no_grad():
        theirs, ours = both(model, lambda: model(tokens).logits)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    model.set_experts_implementation("eager")
    with torch.no_grad():  # experts have a part in the logits
        for name, parameter in model.named_parameters():
            if name.endswith("experts.down_proj"):
                parameter.zero_()
        assert (model(tokens).logits - theirs).abs().max() > 0.1


def test_greedy_generation_gives_the_same_tokens(model):
    tokens = torch.randint(3, 96, (2, 5))
    words = {"do_sample": False, "max_new_tokens": 20, "min_new_tokens": 20}
    theirs, ours = both(model, lambda: model.generate(tokens, **words))
    assert theirs.shape == (2, 25) and torch.equal(ours, theirs)


def test_a_training_step_has_the_same_gradients(model):
    tokens = torch.randint(3, 96, (2, 13))

    def gradients():
        model.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    theirs, ours = both(model, gradients)
    assert theirs.keys() == ours.keys() and any("experts" in name for name in ours)
    for name, grad in theirs.items():
        torch.testing.assert_close(ours[name], grad, rtol=1e-3, atol=1e-5, msg=lambda m: f"{name}: {m}")


def test_experts_of_other_ranks_add_nothing():
    model = tiny_models()["mixtral"]()
    from sparse_autotune.transformers.experts import experts_forward

    experts = model.model.layers[0].mlp.experts
    with torch.no_grad():
        for parameter in experts.parameters():
            parameter.normal_(0, 0.1)
    x, weights = torch.randn(6, 32), torch.rand(6, 2)
    chosen = torch.tensor([[0, 4], [4, 4], [3, 4], [1, 2], [4, 0], [2, 4]])  # 4: another rank's
    elsewhere = torch.where(chosen == 4, 0.0, weights)
    with torch.no_grad():
        got = experts_forward(experts, x, chosen, weights)
        wanted = experts_forward(experts, x, chosen.clamp(max=3), elsewhere)
    torch.testing.assert_close(got, wanted)
    assert (got[1] == 0).all()
