"""SparseLinear and sparsify."""

import copy
import gc
import io
import math
import pickle
import re
import warnings

import numpy as np
import pytest

import sparse_autotune as sa

torch = pytest.importorskip("torch")
nn = torch.nn

from torch._subclasses.fake_tensor import FakeTensorMode


def same(x, y, tolerance=1e-4):
    torch.testing.assert_close(x, y, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "silu"])
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_a_linear_layer(activation, bias, device):
    layer = sa.SparseLinear(
        40, 24, block=(8, 5), density=0.4, bias=bias, activation=activation, device=device
    )
    dense = layer.to_dense()
    act = {
        None: lambda z: z,
        "relu": nn.functional.relu,
        "gelu": nn.functional.gelu,
        "silu": nn.functional.silu,
    }[activation]
    x = torch.randn(3, 7, 40, device=device)
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    same(layer(mine), act(dense(theirs)))
    layer(mine).square().sum().backward()
    act(dense(theirs)).square().sum().backward()
    same(mine.grad, theirs.grad)
    grads = layer.matrix().with_values(layer.values.grad).to_dense()
    kept = layer.matrix().with_values(torch.ones_like(layer.values)).to_dense()
    same(grads, dense.weight.grad * kept)
    if bias:
        same(layer.bias.grad, dense.bias.grad)
    with torch.no_grad():
        for _ in range(2):
            same(layer(x), act(dense(x)))


def test_its_rows_are_equally_filled():
    layer = sa.SparseLinear(1024, 512, block=64, density=0.125)
    assert layer.col_idx.shape[0] == 16 and (layer.row_ptr.diff() == 2).all() and layer.density == 0.125


def test_state_dict_goes_over_to_a_layer_with_another_pattern(device):
    one, other = (sa.SparseLinear(64, 64, block=8, density=d, device=device) for d in (0.25, 0.5))
    x = torch.randn(5, 64, device=device)
    other(x)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    same(other(x), one(x))
    assert (
        other.stored_blocks if hasattr(other, "stored_blocks") else other.col_idx.shape == one.col_idx.shape
    )


def test_copies_pickles_and_dtypes(device):
    layer = sa.SparseLinear(64, 32, block=8, density=0.3, device=device)
    x = torch.randn(5, 64, device=device)
    y = layer(x)
    twin = copy.deepcopy(layer)
    same(twin(x), y)
    assert twin.values is not layer.values and twin.pattern() is layer.pattern()
    same(pickle.loads(pickle.dumps(layer))(x), y)
    for dtype in (torch.bfloat16, torch.float16):
        low = copy.deepcopy(layer).to(dtype)
        assert low.values.dtype == dtype and low.row_ptr.dtype == torch.int32
        torch.testing.assert_close(low(x.to(dtype)).float(), y, rtol=0.1, atol=0.1)
    same(layer.double()(x.double()).float(), y)


def test_autocast(device):
    layer = sa.SparseLinear(64, 32, block=8, density=0.3, device=device)
    x = torch.randn(5, 64, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.values.grad.dtype == torch.float32


def test_it_learns(device):
    torch.manual_seed(0)
    layer = sa.SparseLinear(32, 16, block=8, density=0.5, device=device)
    target = sa.SparseLinear.from_matrix(
        layer.matrix().with_values(torch.randn_like(layer.values)), torch.zeros(16, device=device)
    )
    x = torch.randn(256, 32, device=device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(150):
        loss = (layer(x) - target(x).detach()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 1e-2


def test_from_dense_keeps_the_largest_blocks():
    linear = nn.Linear(32, 16)
    with torch.no_grad():
        linear.weight.mul_(1e-3)
        linear.weight[:8, 8:16] = 1
    layer = sa.SparseLinear.from_dense(linear, block=8, density=0.125)
    assert layer.col_idx.tolist() == [1] and layer.row_ptr.tolist() == [0, 1, 1]
    x = torch.randn(3, 32)
    same(layer(x), x @ layer.matrix().to_dense().T + linear.bias)
    assert sa.SparseLinear.from_dense(linear, block=8, threshold=0.5).col_idx.tolist() == [1]
    assert sa.SparseLinear.from_dense(nn.Linear(30, 17), block=8, density=1.0)(torch.ones(30)).shape == (17,)


def test_sparsify_swaps_what_is_chosen():
    shared = nn.Linear(32, 32)
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), shared, nn.Sequential(shared, nn.Linear(32, 4)))
    assert sa.sparsify(model, block=8, density=0.5, include=["0", "3.*", "2"], smallest=2) is model
    kinds = [type(m).__name__ for m in model.modules() if not list(m.children())]
    assert kinds == ["SparseLinear", "ReLU", "SparseLinear", "Linear"]
    assert model[2] is model[3][0] and type(model[3][1]) is nn.Linear
    assert model(torch.randn(2, 32)).shape == (2, 4)
    chosen = sa.sparsify(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), 4, 0.5, include=lambda name, layer: name == "1"
    )
    assert type(chosen[0]) is nn.Linear and type(chosen[1]) is sa.SparseLinear


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compile(backend, device):
    model = nn.Sequential(
        sa.SparseLinear(32, 64, 8, 0.5, activation="relu", device=device),
        sa.SparseLinear(64, 16, 8, 0.5, device=device),
    )
    x = torch.randn(6, 32, device=device, requires_grad=True)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    same(compiled(x), expected)
    compiled(x).sum().backward()
    assert model[0].values.grad is not None
    with torch.no_grad():
        same(compiled(x), expected)


def tensors_with_memory():
    gc.collect()
    found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter)]
    # pinned memory is the host's
    return [
        t for t in found if t.device.type != "meta" and not t.is_pinned() and t.untyped_storage().nbytes()
    ]


@pytest.mark.parametrize("effort", ["off", "quick"])
def test_a_compiled_step_leaves_nothing_but_gradients(effort, device):
    """What a first step keeps beside its gradients would lie in memory that torch thinks free after warming
    up a CUDA graph."""
    model = nn.Sequential(
        sa.SparseLinear(32, 64, 8, 0.5, device=device),
        sa.SparseLinear(64, 16, 8, 0.5, bias=False, device=device),
    )
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(6, 32, device=device, requires_grad=True)
    with sa.set_effort(effort):
        before = tensors_with_memory()
        compiled(x).square().sum().backward()
        known = {id(t) for t in (*before, x.grad, *(p.grad for p in model.parameters()))}
        assert [(t.shape, t.dtype) for t in tensors_with_memory() if id(t) not in known] == []


class Counted:
    """A backend of torch.compile that counts its graphs and runs them as they are."""

    graphs = 0

    def __call__(self, graph, _inputs):
        self.graphs += 1
        return graph.forward


def test_twelve_layers_are_one_graph(device):
    sizes = [32, 16, 40, 24, 8, 48, 32, 64, 16, 8, 24, 40, 32]
    model = nn.Sequential(
        *[
            sa.SparseLinear(n, m, 8, 0.3 + 0.05 * i, device=device)
            for i, (n, m) in enumerate(zip(sizes, sizes[1:]))
        ]
    )
    x, counted = torch.randn(4, 32, device=device), Counted()
    compiled = torch.compile(model, fullgraph=True, backend=counted)
    for _ in range(3):
        same(compiled(x), model(x))
    assert counted.graphs == 1


def test_layers_alike_share_one_graph(device):
    layers, x, counted = (
        [sa.SparseLinear(32, 32, 8, 0.5, device=device) for _ in range(20)],
        torch.randn(4, 32, device=device),
        Counted(),
    )
    for layer in layers:
        same(torch.compile(layer, fullgraph=True, backend=counted)(x), layer(x))
    assert counted.graphs == 1


def test_export():
    layer = sa.SparseLinear(32, 16, 8, 0.5)
    x = torch.randn(4, 32)
    program = torch.export.export(layer, (x,))
    same(program.module()(x), layer(x))


def test_sparsify_of_a_layer_in_two_places():
    shared = nn.Linear(32, 32)
    for include in (None, "0", "2"):
        model = sa.sparsify(nn.Sequential(shared, nn.ReLU(), shared), 16, 0.5, include=include)
        assert type(model[0]) is sa.SparseLinear and model[2] is model[0]


def test_frozen_layers_stay_frozen():
    linear = nn.Linear(32, 32).requires_grad_(False)
    model = sa.sparsify(nn.Sequential(linear, nn.Linear(32, 32)), 16, 0.5)
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert not model[0].to_dense().weight.requires_grad and model[1].to_dense().weight.requires_grad
    linear.bias.requires_grad_()
    half = sa.SparseLinear.from_dense(linear, 16)
    assert half.bias.requires_grad and not half.values.requires_grad


@pytest.mark.parametrize("include", [None, "*.1.linear2"])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_transformer_encoders(include, padding, norm_first, device):
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).to(device)
    sa.sparsify(model, 16, 0.5, include=include)
    x = torch.randn(2, 5, 64, device=device)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2], device=device) if padding else None
    expected = model.train()(x, src_key_padding_mask=mask)
    with torch.no_grad():
        same(model.eval()(x, src_key_padding_mask=mask), expected)
        same(copy.deepcopy(model)(x, src_key_padding_mask=mask), expected)
        same(model.layers[0](x), model.layers[0].train()(x))
    assert type(model.layers[1].linear2) is sa.SparseLinear


def test_a_state_dict_that_does_not_fit_changes_nothing():
    layer, x = sa.SparseLinear(64, 64, block=8, density=0.25), torch.randn(3, 64)
    before, parts = layer(x), (layer.values, layer.row_ptr, layer.col_idx)
    other = sa.SparseLinear(64, 64, block=8, density=0.5).state_dict()
    broken = [sa.SparseLinear(64, 64, block=b, density=0.25).state_dict() for b in (16, (8, 16), (16, 8))]
    broken += [
        sa.SparseLinear(64, 128, block=8, density=0.5).state_dict(),
        {k: v for k, v in other.items() if k != "values"},
    ]
    broken += [
        {k: v for k, v in other.items() if k != "row_ptr"},
        {**other, "col_idx": other["col_idx"][:, None]},
    ]
    for name, place, value in (
        ("col_idx", 0, 99),
        ("col_idx", 1, 0),
        ("row_ptr", 0, 1),
        ("row_ptr", 3, 99),
        ("row_ptr", -1, 3),
    ):
        state = copy.deepcopy(other)
        state[name][place] = value
        broken.append(state)
    broken.append({**other, "col_idx": other["col_idx"].float()})
    for state in broken:
        with pytest.raises(RuntimeError, match="left as it was"):
            layer.load_state_dict(state)
        assert layer.values is parts[0] and layer.row_ptr is parts[1] and layer.col_idx is parts[2]
        same(layer(x), before)
    layer.load_state_dict({"values": layer.values.detach() * 2}, strict=False)
    same(layer(x) - layer.bias, 2 * (before - layer.bias))


class OneMatrix(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.layer = sa.SparseLinear(32, 16, 8, 0.5, device=device)

    def forward(self, x):
        return sa.matmul(x, self.layer.matrix().T) * 2


def test_the_matrix_of_a_layer_in_compiled_code(device):
    model, x, counted = OneMatrix(device), torch.randn(4, 32, device=device), Counted()
    compiled = torch.compile(model, backend=counted)
    for _ in range(3):
        same(compiled(x), model(x))
    assert counted.graphs <= 2
    compiled(x).sum().backward()
    assert model.layer.values.grad is not None
    model.layer.load_state_dict(sa.SparseLinear(32, 16, 8, 0.5).state_dict())
    same(compiled(x), model(x))
    layer = sa.SparseLinear(32, 16, 8, 0.5, device=device)
    same(
        torch.compile(lambda x: sa.matmul(x, layer.matrix().T), backend="eager")(x),
        sa.matmul(x, layer.matrix().T),
    )


def test_bad_input():
    layer = sa.SparseLinear(32, 16, 8)
    for x in (None, [1.0], layer.values.detach().cpu().numpy()):
        with pytest.raises(TypeError, match="x is a"):
            layer(x)
    with pytest.raises(ValueError, match="x has shape"):
        layer(torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"x has dtype torch.float64 and values torch.float32"):
        layer(torch.ones(3, 32, dtype=torch.float64))
    nested = [torch.ones(3, 32), torch.ones(2, 32)]
    for x in (torch.nested.nested_tensor(nested), torch.nested.nested_tensor(nested, layout=torch.jagged)):
        with pytest.raises(TypeError, match="x is a nested tensor"):
            layer(x)
    for autocast in (False, True):
        with torch.autocast("cpu", enabled=autocast):
            for x in (
                torch.ones(3, 32).to_sparse(),
                torch.ones(3, 32).to_mkldnn(),
                torch.ones(3, 32, dtype=torch.int64),
            ):
                with pytest.raises(TypeError, match="x is a tensor of layout .* and dtype"):
                    layer(x)
            with pytest.raises(ValueError, match="x is on meta and values on cpu"):
                layer(torch.ones(3, 32, device="meta"))
    for density in (None, "0.5"):
        with pytest.raises(TypeError, match="density"):
            sa.sparsify(nn.Linear(8, 8), 4, density)
        with pytest.raises(TypeError, match="density"):
            sa.sparsify(nn.Sequential(nn.Linear(8, 8)), 4, density)
    with pytest.raises(TypeError, match="matrix"):
        sa.SparseLinear.from_matrix(3)
    with pytest.raises(TypeError, match="bias"):
        sa.SparseLinear.from_matrix(layer.matrix(), [1.0])
    with pytest.raises(ValueError, match="bias"):
        sa.SparseLinear.from_matrix(layer.matrix(), torch.ones(3))
    with pytest.raises(ValueError, match="x has shape"):
        sa.SparseLinear(32, 16, 8)(torch.ones(3, 31))
    with pytest.raises(TypeError, match="dtype"):
        sa.SparseLinear(32, 16, 8)(torch.ones(3, 32, dtype=torch.float64))
    for words, arguments in (("in_features", (-1, 4)), ("density", (4, 4, 2, 1.5)), ("block", (4, 4, 0))):
        with pytest.raises(ValueError, match=words):
            sa.SparseLinear(*arguments)
    for words, arguments in (("in_features is 64.0", (64.0, 4)), ("out_features is '4'", (4, "4"))):
        with pytest.raises(TypeError, match=words):
            sa.SparseLinear(*arguments)
    for dtype in (torch.int32, torch.complex64, "int8"):
        with pytest.raises(TypeError, match="dtype is"):
            sa.SparseLinear(4, 4, 2, dtype=dtype)
    assert sa.SparseLinear(np.int64(64), np.int32(4)).in_features == 64
    for bias in (torch.nested.nested_tensor(nested), torch.nested.nested_tensor(nested, layout=torch.jagged)):
        with pytest.raises(TypeError, match="bias is a nested tensor"):
            sa.SparseLinear.from_matrix(layer.matrix(), bias)
    for model in (nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))):
        for include in (5, ["0", 3], b"0"):
            with pytest.raises(
                TypeError,
                match=f"include is {re.escape(repr(include))}; expected a name, names, or a function",
            ):
                sa.sparsify(model, 4, include=include)
        for smallest in ("a", 1.5, None):
            with pytest.raises(TypeError, match=f"smallest is {smallest!r}; expected a whole number"):
                sa.sparsify(model, 4, smallest=smallest)
        with pytest.raises(ValueError, match="smallest is -1"):
            sa.sparsify(model, 4, smallest=-1)
    with pytest.raises(
        ValueError, match="linear is a LazyLinear that has no weight yet; expected one that has seen"
    ):
        sa.SparseLinear.from_dense(nn.LazyLinear(8))
    with pytest.raises(ValueError, match="linear is on meta; expected cpu or cuda"):
        sa.SparseLinear.from_dense(nn.Linear(8, 8, device="meta"))
    with pytest.raises(ValueError, match="activation"):
        sa.SparseLinear(4, 4, 2, activation="tanh")
    with pytest.raises(TypeError, match="linear"):
        sa.SparseLinear.from_dense(nn.ReLU())
    with pytest.raises(TypeError, match="model"):
        sa.sparsify(3)
    with pytest.raises(RuntimeError, match="meta"):
        sa.SparseLinear(4, 4, 2, device="meta").pattern()


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("kind", ["meta", "fake"])
def test_shapes_without_memory(kind, activation):
    with torch.device("meta") if kind == "meta" else FakeTensorMode():
        layer = sa.SparseLinear(40, 24, block=(8, 16), density=0.5, activation=activation)
        x = torch.empty(2, 5, 40, requires_grad=True)
        with torch.no_grad():
            assert layer(x).shape == (2, 5, 24)
        result = layer(x)
        assert result.shape == (2, 5, 24) and result.device == x.device
        result.sum().backward()
        assert (
            x.grad.shape == x.shape
            and layer.values.grad.shape == layer.values.shape
            and layer.bias.grad.shape == (24,)
        )


def test_parameters_are_reset_where_the_pattern_is_lost():
    torch.manual_seed(0)
    layer = sa.SparseLinear(40, 24, block=(8, 16), density=0.5, device="meta").to_empty(device="cpu")
    layer.row_ptr.fill_(7)  # what was in that memory
    with pytest.raises(ValueError, match="row_ptr"):
        layer(torch.randn(2, 40))
    layer.reset_parameters()
    x, rows = torch.randn(2, 40), layer.row_ptr.clone()
    same(layer(x), layer.to_dense()(x))
    assert layer.values.abs().max() > 0 and rows.tolist() == [0, 1, 2, 4]
    layer.reset_parameters()
    assert torch.equal(layer.row_ptr, rows)
    same(layer(x), layer.to_dense()(x))


def test_who_resets_parameters_and_where():
    class Zero(sa.SparseLinear):
        def reset_parameters(self):
            nn.init.zeros_(self.values)

    assert Zero(16, 16, block=4, density=0.5).values.abs().max() == 0
    layer = sa.SparseLinear(16, 16, block=4, density=0.5)

    def again():
        layer.reset_parameters()
        return layer(torch.ones(1, 16))

    same(torch.compile(again, backend="eager")(), layer(torch.ones(1, 16)))
    layer = sa.SparseLinear(16, 16, block=4, density=0.5, device="meta")
    # a loader that has not come to the buffers yet
    layer.values = nn.Parameter(torch.zeros(layer.values.shape))
    layer.reset_parameters()
    assert layer.values.abs().max() > 0 and layer.row_ptr.is_meta


@pytest.mark.parametrize("around", ["meta", "cpu"])
def test_inside_a_device(around):
    linear, tied = nn.Linear(8, 8), tied_layers()
    with torch.device(around):
        plain, given, far = (
            sa.SparseLinear(8, 8, block=4, density=0.5, device=d) for d in (None, "cpu", "meta")
        )
        made, swapped = sa.SparseLinear.from_dense(linear, 4), sa.sparsify(nn.Sequential(linear), 4)[0]
        sa.sparsify(tied, 4)
    for layer, where in (
        (plain, around),
        (given, "cpu"),
        (far, "meta"),
        (made, "cpu"),
        (swapped, "cpu"),
        (tied[0], "cpu"),
        (tied[2], "cpu"),
    ):
        assert {t.device.type for t in (layer.values, layer.bias, layer.row_ptr, layer.col_idx)} == {where}
        assert layer.col_idx.shape[0] == (2 if layer in (plain, given, far) else 1)
        if where == "cpu":
            same(layer(torch.ones(2, 8)), layer.to_dense()(torch.ones(2, 8)))


@pytest.mark.parametrize("sizes", [(128, 128), (64, 64), (8, 8)])
def test_a_small_layer_keeps_a_block(sizes):
    layers = (
        sa.SparseLinear(*sizes),
        sa.SparseLinear.from_dense(nn.Linear(*sizes)),
        sa.sparsify(nn.Linear(*sizes), smallest=0),
        sa.sparsify(nn.Sequential(nn.Linear(*sizes)), smallest=0)[0],
    )
    assert [layer.col_idx.shape[0] for layer in layers] == [1] * 4
    none = (
        sa.SparseLinear(*sizes, density=0),
        sa.SparseLinear.from_dense(nn.Linear(*sizes), density=0),
        sa.sparsify(nn.Linear(*sizes), density=0, smallest=0),
    )
    assert [layer.col_idx.shape[0] for layer in none] == [0] * 3
    assert sa.SparseLinear.from_dense(nn.Linear(*sizes), threshold=1e9).col_idx.shape[0] == 0
    assert (
        sa.SparseLinear.from_dense(nn.Linear(8, 24), 8, 0.34).col_idx.shape[0]
        == sa.SparseLinear(8, 24, 8, 0.34).col_idx.shape[0]
        == 1
    )


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_layer_without_blocks():
    assert sa.SparseLinear.from_dense(nn.Linear(0, 8), 4).col_idx.shape[0] == 0


def test_sparsify_of_a_bare_layer():
    linear, seen = nn.Linear(8, 8), []
    for options in (
        {},
        {"include": "*"},
        {"include": ""},
        {"include": lambda name, layer: seen.append((name, layer)) or True},
        {"smallest": 2},
    ):
        assert type(sa.sparsify(linear, 4, **options)) is sa.SparseLinear
    assert seen == [("", linear)]
    for options in (
        {"include": "0"},
        {"include": []},
        {"include": lambda name, layer: False},
        {"smallest": 3},
    ):
        assert sa.sparsify(linear, 4, **options) is linear


def test_subclasses_of_linear_stay_dense():
    """They may compute in a way of their own."""

    class Scaled(nn.Linear):
        def forward(self, x):
            return 100 * super().forward(x)

    for layer in (
        Scaled(16, 16),
        nn.utils.parametrizations.weight_norm(nn.Linear(16, 16)),
        nn.LazyLinear(16),
    ):
        assert sa.sparsify(layer, 8) is layer and sa.sparsify(nn.Sequential(layer), 8)[0] is layer
    attention = nn.MultiheadAttention(16, 2)
    assert not any(isinstance(m, sa.SparseLinear) for m in sa.sparsify(attention, 8).modules())


def test_names_may_come_from_a_generator():
    model = sa.sparsify(
        nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)]), 4, include=(n for n in ("2", "0"))
    )
    assert [type(m) for m in model] == [sa.SparseLinear, nn.Linear, sa.SparseLinear]


def tied_layers():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 8, bias=False))
    model[2].weight = model[3].weight = model[0].weight
    return model


def test_shared_weights_stay_shared(device):
    model = tied_layers().to(device)
    sa.sparsify(model, 4, 0.5)
    one, _, other, third = model
    assert (
        type(one) is type(other) is type(third) is sa.SparseLinear
        and one.values is other.values is third.values
    )
    assert one.pattern() is other.pattern() is third.pattern() and one.bias is not other.bias
    x = torch.randn(3, 8, device=device)
    dense = nn.Sequential(*[m.to_dense() if type(m) is sa.SparseLinear else m for m in model])
    same(model(x), dense(x))
    model(x).square().sum().backward()
    dense(x).square().sum().backward()
    kept = one.matrix().with_values(torch.ones_like(one.values)).to_dense()
    same(
        one.matrix().with_values(one.values.grad).to_dense(),
        (dense[0].weight.grad + dense[2].weight.grad + dense[3].weight.grad) * kept,
    )
    twin = copy.deepcopy(model).double()
    assert twin[0].values is twin[2].values is not one.values and len(list(twin.parameters())) == 3
    same(twin(x.double()).float(), model(x))
    model.load_state_dict(sa.sparsify(tied_layers(), 4, 0.5).state_dict())
    assert one.values is other.values
    same(one(x) - one.bias, other(x) - other.bias)
    before = other(x)
    # another number of blocks is of this layer alone
    one.load_state_dict(sa.SparseLinear(8, 8, 4, 0.75).state_dict())
    assert one.values is not other.values
    same(other(x), before)


def test_a_weight_shared_with_something_else_is_left():
    model = nn.ModuleDict(
        {"emb": nn.Embedding(16, 8), "mid": nn.Linear(8, 8), "head": nn.Linear(8, 16, bias=False)}
    )
    model["head"].weight = model["emb"].weight
    sa.sparsify(model, 4)
    assert (
        type(model["mid"]) is sa.SparseLinear
        and type(model["head"]) is nn.Linear
        and model["head"].weight is model["emb"].weight
    )
    model = sa.sparsify(tied_layers(), 4, include=["0", "2"])
    assert (
        type(model[0]) is type(model[2]) is type(model[3]) is nn.Linear and model[0].weight is model[3].weight
    )
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    model[0].bias = model[1].bias
    assert type(sa.sparsify(model, 4)[0]) is sa.SparseLinear and model[0].bias is model[1].bias


@pytest.mark.parametrize("bare", [False, True])
def test_hooks_go_along(bare):
    linear, calls = nn.Linear(8, 8), []
    handles = [
        linear.register_forward_hook(lambda *_: calls.append("forward")),
        linear.register_forward_hook(
            lambda m, a, k, y: y + k.get("more", 1), with_kwargs=True, always_call=True
        ),
        linear.register_forward_pre_hook(lambda m, a: (2 * a[0],)),
        linear.register_forward_pre_hook(lambda m, a, k: calls.append("pre"), with_kwargs=True),
        linear.register_full_backward_hook(lambda *_: calls.append("backward")),
        linear.register_full_backward_pre_hook(lambda *_: calls.append("backward pre")),
    ]
    layer = sa.sparsify(linear, 4, 0.5) if bare else sa.sparsify(nn.Sequential(linear), 4, 0.5)[0]
    x = torch.randn(3, 8, requires_grad=True)
    y = layer(x)
    same(y, layer.to_dense()(2 * x) + 1)
    y.sum().backward()
    assert calls == ["pre", "forward", "backward pre", "backward"]
    for handle in handles:
        handle.remove()
    same(layer(x), layer.to_dense()(x))
    layer.register_forward_hook(lambda *_: calls.append("new"))
    linear(x)
    assert "new" not in calls


def test_hooks_that_make_a_weight_stay_behind():
    prune = pytest.importorskip("torch.nn.utils.prune")
    linear = nn.Linear(8, 8)
    prune.l1_unstructured(linear, "weight", 0.5)
    model = sa.sparsify(nn.Sequential(linear), 4, 1.0)
    same(model[0].to_dense().weight, linear.weight)
    same(model(torch.ones(2, 8)), linear(torch.ones(2, 8)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_models_of_torch_jit():
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(8, 8))), nn.Linear(8, 8))
    for scripted in (model[0], torch.jit.trace(nn.Linear(8, 8), torch.ones(1, 8))):
        with pytest.raises(
            TypeError,
            match=r"model is a \w*Module; expected a torch.nn.Module that is not compiled by torch.jit",
        ):
            sa.sparsify(scripted, 4)
    sa.sparsify(model, 4)
    assert (
        isinstance(model[0], torch.jit.ScriptModule)
        and type(model[1]) is sa.SparseLinear
        and model(torch.ones(2, 8)).shape == (2, 8)
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_a_state_dict_is_seen_in_inference_mode(compiled):
    """Torch does not count writes to tensors that were made there, and operators know patterns by their index
    tensors."""
    with torch.inference_mode():
        layer, other = (sa.SparseLinear(96, 80, block=16, density=0.4) for _ in range(2))
        assert layer.col_idx.is_inference() and not torch.equal(layer.col_idx, other.col_idx)
        x = torch.randn(5, 96)
        call = torch.compile(layer, backend="aot_eager") if compiled else layer
        call(x)
        layer.load_state_dict(other.state_dict())
        torch.testing.assert_close(call(x), other(x))


@pytest.mark.parametrize("sizes", [(40, 24), (37, 21)])
def test_a_layer_has_the_weight_that_its_blocks_mean(sizes, device):
    layer = sa.SparseLinear(*sizes, block=(8, 16), density=0.4, device=device)
    dense, weight = layer.to_dense(), layer.weight
    assert isinstance(weight, torch.Tensor) and weight.dtype == layer.values.dtype and weight.requires_grad
    assert weight.shape == dense.weight.shape == weight.size() and weight.device == layer.values.device
    assert (weight.ndim, weight.numel(), len(weight)) == (2, math.prod(sizes), sizes[1])
    assert "SparseLinear" in repr(weight) and weight.is_floating_point() and not weight.is_meta
    same(weight.clone(), dense.weight)
    assert torch.equal(weight.t()[3], dense.weight.t()[3]) and weight.tolist() == dense.weight.tolist()
    x = torch.randn(5, sizes[0], device=device)
    same(nn.functional.linear(x, weight, layer.bias), layer(x))
    same(weight @ x.T, (layer(x) - layer.bias).T)
    (weight @ x.T).square().sum().backward()
    through_weight, layer.values.grad = layer.values.grad, None
    (layer(x) - layer.bias).square().sum().backward()
    same(through_weight, layer.values.grad)
    assert layer.half().weight.dtype == torch.float16
    for still in (weight.detach(), weight.data, layer.requires_grad_(False).weight):
        assert not still.requires_grad and not (still + 0).requires_grad


def test_a_weight_is_no_parameter_and_costs_nothing_until_it_is_read(monkeypatch):
    from sparse_autotune._torch import dense_weight

    layer = sa.SparseLinear(32, 16, 8, 0.5)
    assert set(layer.state_dict()) == {"values", "bias", "row_ptr", "col_idx"}
    assert [name for name, _ in layer.named_parameters()] == ["values", "bias"]
    made = []
    dense = dense_weight.dense
    monkeypatch.setattr(dense_weight, "dense", lambda *parts: made.append(parts) or dense(*parts))
    assert layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"
    assert layer.weight.shape == (16, 32) and layer.weight.requires_grad and layer.weight.data.dim() == 2
    assert not made
    layer.weight.sum()
    assert len(made) == 1


def test_a_weight_is_scaled_by_a_number_and_not_written_to_otherwise():
    layer = sa.SparseLinear(32, 16, 8, 0.5)
    before = layer.to_dense().weight.clone()
    with torch.no_grad():
        layer.weight.mul_(4)
        layer.weight.div_(2)
        weight = layer.weight
        weight *= 3
        weight /= 2
    same(layer.to_dense().weight, 3 * before)
    same(weight.clone(), 3 * before)
    with pytest.raises(RuntimeError, match="leaf"):  # as of any parameter
        layer.weight.mul_(2)
    values = layer.values.detach().clone()
    for write in (
        lambda w: w.mul_(torch.ones(16, 32)),
        lambda w: w.add_(1),
        lambda w: w.copy_(before),
        lambda w: w.data.zero_(),
        lambda w: w.detach().fill_(1),
        lambda w: w.requires_grad_(False),
        lambda w: w.__setitem__(0, 1),
        lambda w: w.__iadd__(1),
        lambda w: setattr(w, "data", before),
        lambda w: nn.init.normal_(w),
        lambda w: torch.add(before, 1, out=w),
        lambda w: torch.ops.aten.add_.Tensor(w, before),
        lambda w: w[0].zero_(),
        lambda w: w.t().copy_(before.t()),
        lambda w: nn.init.zeros_(w[:10]),
        lambda w: w.chunk(2)[1].view(-1)[3:].fill_(1),
        lambda w: w.contiguous().add_(1),
    ):
        with (
            torch.no_grad(),
            pytest.raises(RuntimeError, match="weight of a SparseLinear .* cannot be written"),
        ):
            write(layer.weight)
    with pytest.raises(AttributeError):
        layer.weight = before
    with torch.no_grad():  # what is computed of it, or copied, is the caller's
        (layer.weight[0] * 2).add_(1), layer.weight.clone().zero_(), torch.empty(32).copy_(layer.weight[0])
        assert type(layer.weight[0] + 1) is torch.Tensor
    with pytest.raises(KeyError):
        layer.weight = nn.Parameter(before)
    with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():  # as calls from C++ are
        same(layer.weight + 1, layer.to_dense().weight + 1)
        with pytest.raises(RuntimeError, match="cannot be written to"):
            layer.weight.add_(1)
    assert torch.equal(layer.values, values)


class ReadsWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = sa.SparseLinear(32, 16, 8, 0.5)

    def forward(self, x):
        return self.layer(x.to(self.layer.weight.dtype)) @ self.layer.weight


def test_a_weight_in_compiled_code_on_meta_and_in_an_export():
    model, x = ReadsWeight(), torch.randn(4, 32)
    expected = model(x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    same(compiled(x), expected)
    expected.sum().backward()
    grad, model.layer.values.grad = model.layer.values.grad, None
    compiled(x).sum().backward()
    same(model.layer.values.grad, grad)
    same(torch.export.export(model, (x,)).module()(x), expected)
    with torch.device("meta"):
        model = ReadsWeight()
        assert model.layer.weight.device.type == "meta" and model(torch.empty(4, 32)).shape == (4, 32)


def test_torch_modules_take_a_sparse_layer_that_was_put_there_by_hand():
    encoder = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True).eval()
    sparse, x = copy.deepcopy(encoder), torch.randn(2, 5, 64)
    sparse.linear1 = sa.SparseLinear.from_dense(encoder.linear1, 16, 1.0)
    attention = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    other = copy.deepcopy(attention)
    other.out_proj = sa.SparseLinear.from_dense(attention.out_proj, 16, 1.0)
    with torch.no_grad():
        same(sparse(x), encoder(x))
        same(other(x, x, x)[0], attention(x, x, x)[0])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(4, 16, 16))


class Scaled(nn.Linear):
    pass


def test_a_report_says_what_was_replaced_and_why_the_rest_was_left():
    model = nn.ModuleDict(
        {
            "first": nn.Linear(32, 16),
            "out": nn.Linear(32, 32),
            "small": nn.Linear(32, 4),
            "own": Scaled(16, 16),
            "experts": Experts(),
            "emb": nn.Embedding(32, 16),
            "head": nn.Linear(16, 32, bias=False),
            "rest": nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Conv2d(16, 16, 16)),
        }
    )
    model["head"].weight = model["emb"].weight
    reports = []
    sa.sparsify(
        model, 8, 0.5, include=lambda name, layer: name != "rest.0", exclude="o*t", report=reports.append
    )
    (report,) = reports
    assert report.replaced == {"first": model["first"]} and isinstance(model["first"], sa.SparseLinear)
    assert report.left == {
        "out": "in exclude",
        "small": "4x32 is smaller than 8x8, the smallest that is asked for",
        "own": "Scaled is a subclass of nn.Linear and may compute in a way of its own",
        "experts": "Experts holds up of shape (4, 16, 16) itself, not in a linear layer",
        "head": "shares its weight with emb",
        "rest.0": "not in include",
    }
    assert str(report).splitlines()[:3] == [
        "1 layers are sparse, 6 are left dense",
        "first    16x32 in blocks of 8x8, 4 stored, density 0.5",
        "out      left: in exclude",
    ]
    sa.sparsify(
        model, 8, 0.5, exclude=["own", "small"], report=reports.append
    )  # what is sparse is nobody's news
    assert set(reports[1].replaced) == {"out", "rest.0"} and "first" not in reports[1].left


def test_a_model_in_which_nothing_was_replaced_is_warned_of():
    with pytest.warns(UserWarning, match=r"sparsify replaced nothing(.|\n)*left: 8x8 is smaller than 64x64"):
        sa.sparsify(nn.Sequential(nn.Linear(8, 8)))
    with pytest.warns(UserWarning, match="LazyLinear is a subclass of nn.Linear"):
        sa.sparsify(nn.Sequential(nn.LazyLinear(8)), 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sa.sparsify(nn.Sequential(nn.Linear(8, 8)), 4, include="1")
        sa.sparsify(nn.Sequential(nn.Linear(8, 8)), 4, exclude="*")
        sa.sparsify(nn.ReLU())
    for exclude in (5, ["0", 3]):
        with pytest.raises(TypeError, match="exclude is .*; expected a name, names, or a function"):
            sa.sparsify(nn.Linear(8, 8), 4, exclude=exclude)
