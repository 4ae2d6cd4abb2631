"""Mixtures of experts: the layer beside a plain loop over experts."""

import copy

import pytest

import sparse_autotune as sa

torch = pytest.importorskip("torch")
nn = torch.nn

ACTIVATIONS = {"silu": nn.functional.silu, "gelu": nn.functional.gelu, "relu": nn.functional.relu}


def plainly(layer, x):
    """The layer's result from its definition: a loop over experts, each with the tokens that chose it."""
    tokens = x.reshape(-1, layer.features)
    kind = torch.promote_types(x.dtype, torch.float32)
    logits = tokens.to(kind) @ layer.router.weight.to(kind).T
    scores = logits.softmax(-1) if layer.scores == "softmax" else logits.sigmoid()
    weights, chosen = scores.topk(layer.top_k, -1)
    if layer.renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    weights = (weights * layer.scale).to(x.dtype)

    def gated(h):
        return ACTIVATIONS[layer.activation](h[:, : h.shape[1] // 2]) * h[:, h.shape[1] // 2 :]

    out = torch.zeros_like(tokens)
    for expert in range(layer.experts):
        rows, place = torch.where(chosen == expert)
        y = gated(tokens[rows] @ layer.gate_up[expert].T) @ layer.down[expert].T
        out = out.index_add(0, rows, y * weights[rows, place, None])
    if layer.shared_gate_up is not None:
        out = out + gated(tokens @ layer.shared_gate_up.weight.T) @ layer.shared_down.weight.T
    return out.reshape(x.shape)


def agree(layer, x, tolerance=1e-4):
    """Results and all gradients are those of the plain loop."""
    leaves = [x.requires_grad_(), *layer.parameters()]
    got, wanted = layer(x), plainly(layer, x)
    assert got.dtype == x.dtype and got.shape == x.shape
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    grad = torch.randn_like(wanted)
    # an expert that no token chose has no part in the loop's result
    words = {"allow_unused": True, "materialize_grads": True}
    for mine, theirs in zip(
        torch.autograd.grad(got, leaves, grad), torch.autograd.grad(wanted, leaves, grad, **words)
    ):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("shared", [0, 12])
def test_a_mixture_is_the_loop_over_its_experts(scores, renormalise, shared):
    torch.manual_seed(0)
    layer = sa.MoE(
        24, 20, 6, 2, scores=scores, renormalise=renormalise, shared=shared, scale=1.5, dtype=torch.float64
    )
    agree(layer, torch.randn(3, 17, 24, dtype=torch.float64), 1e-9)


@pytest.mark.parametrize("activation", ["silu", "gelu", "relu"])
@pytest.mark.parametrize("tokens, experts, top_k", [(1, 8, 2), (9, 4, 4), (40, 1, 1), (3, 64, 1), (0, 4, 2)])
def test_few_tokens_empty_experts_and_all_experts_are_served(activation, tokens, experts, top_k):
    torch.manual_seed(tokens)
    agree(sa.MoE(16, 8, experts, top_k, activation=activation), torch.randn(tokens, 16))


def test_tokens_that_all_choose_one_expert_are_not_dropped():
    torch.manual_seed(0)
    layer = sa.MoE(16, 8, 4, 1)
    with torch.no_grad():
        layer.router.weight.zero_()
        layer.router.weight[2] = 1
    x = torch.rand(50, 16)  # all positive
    assert (layer.route(x)[1] == 2).all()
    agree(layer, x)
    layer(x).sum().backward()
    assert layer.down.grad[2].abs().sum() > 0
    assert (layer.down.grad[[0, 1, 3]] == 0).all() and (layer.gate_up.grad[[0, 1, 3]] == 0).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_router_scores_in_float32_whatever_the_parameters_are(dtype):
    torch.manual_seed(0)
    layer = sa.MoE(64, 32, 8, 2).to(dtype)
    x = torch.randn(30, 64, dtype=dtype)
    weights, _, logits = layer.route(x)
    assert weights.dtype == logits.dtype == torch.float32
    exact = x.double() @ layer.router.weight.double().T
    torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        again = layer.route(x)[2]
    assert torch.equal(again, logits)
    torch.testing.assert_close(layer(x).float(), plainly(layer, x).float(), rtol=5e-2, atol=1e-2)


def test_autocast_computes_experts_in_its_own_dtype():
    torch.manual_seed(0)
    layer, x = sa.MoE(64, 32, 8, 2, shared=16), torch.randn(30, 64)
    with torch.autocast("cpu", torch.bfloat16):
        got = layer(x)
        got.float().square().sum().backward()
    torch.testing.assert_close(got.float(), plainly(layer, x), rtol=5e-2, atol=2e-2)
    assert got.dtype == torch.bfloat16 and layer.down.grad.dtype == torch.float32


def test_results_are_the_same_at_each_call():
    torch.manual_seed(0)
    layer, x = sa.MoE(32, 16, 5, 3), torch.randn(70, 32)
    with torch.no_grad():
        first = layer(x)
        assert all(torch.equal(first, layer(x)) for _ in range(5))


def test_torch_compile_takes_a_mixture_as_one_graph():
    torch.manual_seed(0)
    layer = sa.MoE(32, 16, 4, 2, shared=8)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (11, 20, 5):
        x = torch.randn(tokens, 32, requires_grad=True)
        leaves = [x, *layer.parameters()]
        got, wanted = compiled(x), layer(x)
        torch.testing.assert_close(got, wanted)
        for mine, theirs in zip(
            torch.autograd.grad(got.square().sum(), leaves),
            torch.autograd.grad(wanted.square().sum(), leaves),
        ):
            torch.testing.assert_close(mine, theirs)


def test_a_state_dict_and_a_copy_make_the_same_layer():
    layer, x = sa.MoE(16, 8, 4, 2, shared=8), torch.randn(10, 16)
    other = sa.MoE(16, 8, 4, 2, shared=8)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert set(layer.state_dict()) == {
        "router.weight",
        "gate_up",
        "down",
        "shared_gate_up.weight",
        "shared_down.weight",
    }


def test_a_layer_on_meta_reports_shapes():
    layer = sa.MoE(16, 8, 4, 2, device="meta")
    assert layer(torch.empty(3, 5, 16, device="meta")).shape == (3, 5, 16)


def test_a_few_steps_make_the_loss_smaller():
    torch.manual_seed(0)
    layer = sa.MoE(16, 32, 4, 2)
    optimizer = torch.optim.Adam(layer.parameters(), 1e-2)
    x = torch.randn(64, 16)
    y, losses = x.flip(1), []
    for _ in range(30):
        loss = (layer(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    "words, error, message",
    [
        ({"top_k": 5}, ValueError, "top_k is 5; expected at most 4"),
        ({"top_k": 0}, ValueError, "top_k is 0"),
        ({"features": 1.5}, TypeError, "features is 1.5"),
        ({"hidden": -1}, ValueError, "hidden is -1"),
        ({"shared": -1}, ValueError, "shared is -1"),
        ({"scores": "tanh"}, ValueError, "scores is 'tanh'"),
        ({"activation": "tanh"}, ValueError, "activation is 'tanh'"),
    ],
)
def test_what_is_wrong_with_a_mixture_is_named(words, error, message):
    with pytest.raises(error, match=message):
        sa.MoE(**{"features": 16, "hidden": 8, "experts": 4, **words})


def test_an_input_of_another_width_is_refused():
    with pytest.raises(ValueError, match="x has 15 columns; expected 16"):
        sa.MoE(16, 8, 4)(torch.ones(2, 15))


# ---- on a GPU ----


@pytest.mark.cuda
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 2e-4), ("bfloat16", 5e-2)])
@pytest.mark.parametrize("shared", [0, 48])
def test_a_mixture_on_a_gpu_is_the_loop_over_its_experts(dtype, tolerance, shared):
    torch.manual_seed(1)
    dtype = getattr(torch, dtype)
    layer = sa.MoE(128, 96, 8, 2, shared=shared, device="cuda", dtype=dtype)
    agree(layer, torch.randn(3, 70, 128, device="cuda", dtype=dtype), tolerance)


@pytest.mark.cuda
def test_a_captured_training_step_routes_anew_at_each_replay():
    torch.manual_seed(2)
    layer = sa.MoE(128, 64, 16, 2, device="cuda")
    x, grad = (torch.randn(300, 128, device="cuda") for _ in range(2))
    x.requires_grad_()
    leaves = [x, *layer.parameters()]

    def step():
        y = layer(x)
        return [y, *torch.autograd.grad(y, leaves, grad)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        got = step()
    for number in range(1000):
        with torch.no_grad():
            x.copy_(torch.randn(x.shape, device="cuda"))
            x[:, :8] += 3 * torch.randn(8, device="cuda")  # uneven groups
        for t in got:
            t.fill_(float("nan"))
        graph.replay()
        wanted = plainly(layer, x)
        torch.testing.assert_close(got[0], wanted, rtol=2e-4, atol=2e-4)
        if number % 20 == 0:
            words = {"allow_unused": True, "materialize_grads": True}
            for mine, theirs in zip(got[1:], torch.autograd.grad(wanted, leaves, grad, **words)):
                torch.testing.assert_close(mine, theirs, rtol=5e-4, atol=5e-4)


@pytest.mark.cuda
def test_a_tuned_step_on_a_gpu_waits_for_nothing():
    layer = sa.MoE(128, 64, 16, 2, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(300, 128, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        layer(x).sum().backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")  # torch's own copies and waits
    try:
        layer(x).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
