"""What is private to torch: one file reaches it, and without any of it results are right."""

import ast
import json
from pathlib import Path

import pytest
from conftest import run_program

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from sparse_autotune._torch import private

HOME = Path(sa.__file__).parent
# The level of forward-mode AD is read wherever it matters, of the object that private.py gives.
GIVEN = {"_current_level"}


def private_names():
    ends = {path.rpartition(".")[2] for path in private.names}
    more = {
        "_C",
        "_dynamo",
        "_functorch",
        "_inductor",
        "_subclasses",
        "_dynamo_static_input_type",
        "_dynamo_marked_constant",
    }
    return {name for name in ends | more if name.startswith("_") and not name.startswith("__")} - GIVEN


@pytest.mark.parametrize("path", sorted(HOME.rglob("*.py")), ids=lambda path: str(path.relative_to(HOME)))
def test_only_one_file_uses_private_names_of_torch(path):
    if path == Path(private.__file__):
        return
    hidden, found = private_names(), []
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(x.name for x in node.names)] if not node.level else []
        elif isinstance(node, ast.Import):
            names = [part for x in node.names for part in x.name.split(".")]
        found += [(node.lineno, name) for name in names if name in hidden]
    assert not found


# Forks one process for each name that is hidden: importing torch is what takes long.
PROGRAM = """
import copy, importlib.util, json, os, sys, traceback
import torch, torch._dynamo
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

MODULE = "torch.nn.Module()."
COMPILED = "dynamo", "_check", "apply", "FAKE"  # what torch.compile may come across


def owner_of(path):
    found = torch
    for part in path.split(".")[1:-1]:
        found = getattr(found, part, None)
    return found


def load_without(hidden):
    places = {(id(owner_of(p)), p.rpartition(".")[2]) for p in hidden if not p.startswith(MODULE)}

    def lacking(found, name, *default):
        there = (id(found), name) not in places
        if isinstance(found, torch.nn.Module) and MODULE + name in hidden:
            there = False
        return getattr(found if there else object(), name, *default)

    home = importlib.util.find_spec("sparse_autotune").submodule_search_locations[0]
    place = os.path.join(home, "_torch", "private.py")
    spec = importlib.util.spec_from_file_location("sparse_autotune._torch.private", place)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    module.getattr = lacking  # before the builtin one
    find_spec = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name in hidden else find_spec(name, *rest)
    spec.loader.exec_module(module)
    importlib.util.find_spec = find_spec
    import sparse_autotune as sa

    assert sa._torch.private is module
    assert not any(module.names[name] for name in hidden), "not hidden"
    return sa


def close(got, wanted, tolerance=1e-4):
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


def refused_or(right, call):
    try:
        found = call()
    except (NotImplementedError, RuntimeError):
        return
    right(found)


def products(sa):
    dense = torch.randn(32, 24)
    dense[8:16, :16] = 0
    a = sa.BsrMatrix.from_dense(dense, 8)
    b, x = torch.randn(24, 5), torch.randn(3, 32)
    for _ in range(3):
        close(sa.matmul(a, b), dense @ b)
        close(a @ b, dense @ b)
        close(x @ a, x @ dense)
        close(sa.matmul(a, b, out=torch.empty(32, 5)), dense @ b)
        close(sa.matmul(a, b, bias=torch.ones(32), activation="relu"), (dense @ b + 1).relu())
    p, q = torch.randn(32, 7), torch.randn(7, 24)
    for _ in range(2):
        close(sa.sampled_matmul(p, q, a).to_dense(), torch.where(dense != 0, p @ q, 0))
    if not sa._torch.private.always_watched:
        sa.matmul(a, b, allow_tf32=False, out_dtype=torch.float32)
    sparse = dense.to_sparse_bsr((8, 8))
    for _ in range(2):
        close(sa.matmul(sparse, b), dense @ b)
    sparse.values().mul_(2)
    close(sa.matmul(sparse, b), 2 * dense @ b)
    a.freeze()
    for _ in range(3):
        for _ in range(3):
            close(a @ b, dense @ b)
            close(x @ a, x @ dense)
            close(sa.matmul(a, b, out=torch.empty(32, 5)), dense @ b)
        a.values.mul_(2)
        dense = dense * 2
    return a, dense, b


def gradients(sa, a, b):
    # Random ones: those of `a` were doubled three times, and the sine of a large sum shows its rounding.
    v, b = torch.randn_like(a.values).requires_grad_(), b.clone().requires_grad_()
    m = a.with_values(v)
    bias = torch.randn(32, requires_grad=True)
    ways = lambda: sa.matmul(m, b), lambda: sa.matmul(m, b, bias=bias, alpha=2.0)
    dense = lambda: m.to_dense() @ b, lambda: 2 * (m.to_dense() @ b) + bias[:, None]
    for got, wanted, needs in zip(ways, dense, ((v, b), (v, b, bias))):
        for _ in range(2):
            first = torch.autograd.grad(got().sin().sum(), needs, create_graph=True)
            other = torch.autograd.grad(wanted().sin().sum(), needs, create_graph=True)
            close(first, other)
            again = torch.autograd.grad(sum(g.square().sum() for g in first), needs)
            close(again, torch.autograd.grad(sum(g.square().sum() for g in other), needs), 1e-3)
    rows = torch.autograd.functional.jacobian(lambda c: sa.matmul(a, c), b.detach()[:, 0], vectorize=True)
    close(rows, a.to_dense())


def layers(sa):
    layer, other = (sa.SparseLinear(32, 16, block=8, density=0.5) for _ in range(2))
    x = torch.randn(3, 32)
    for _ in range(3):
        dense, y = layer.to_dense(), layer(x)
        close(y, dense(x))
        layer.values.grad = None
        y.sin().sum().backward()
        with torch.no_grad():
            close(layer(x), dense(x))
        dense(x).sin().sum().backward()
        wanted = sa.sampled_matmul(torch.cos(y).detach().T.contiguous(), x, layer.matrix().detach())
        close(layer.values.grad, wanted.values)
        close(layer.bias.grad, dense.bias.grad)
        layer.bias.grad = None
    third = sa.SparseLinear(32, 16, block=8, density=0.5)
    layer.col_idx.copy_(other.col_idx)  # torch counts this write,
    close(layer(x), layer.to_dense()(x))
    layer.col_idx.numpy()[:] = third.col_idx.numpy()  # and not this one
    close(layer(x), layer.to_dense()(x))
    close(copy.deepcopy(layer)(x), layer.to_dense()(x))
    assert layer.weight.shape == (16, 32)
    close(x @ layer.weight.T, layer(x) - layer.bias)
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32, bias=False))
    model.append(model[0])
    before = model(x)
    sa.sparsify(model, block=8, density=1.0)
    assert model[0] is model[3] and isinstance(model[2], sa.SparseLinear)
    close(model(x), before)


def autocast(sa, a, dense, b):
    wanted = dense @ b
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for got in (
            sa.matmul(a, b),
            torch.ops.sparse_autotune.matmul(a.values, *a._index, b, None, [32, 24]),
        ):
            assert got.dtype == torch.bfloat16
            close(got.float(), wanted, 2e-1)
        q = torch.randn(1, 2, 16, 8)
        assert torch.ops.sparse_autotune.attention(q, q, q)[0].dtype == torch.bfloat16
        layer = sa.SparseLinear(24, 16, block=8)
        assert layer(b.T).dtype == torch.bfloat16
    assert sa.matmul(a, b).dtype == torch.float32


def attention(sa):
    own = torch.nn.functional.scaled_dot_product_attention
    q, k, v = (torch.randn(1, 2, 32, 16, requires_grad=True) for _ in range(3))
    keep = torch.zeros(32, 32, dtype=torch.bool)
    keep[:, :16] = keep[16:, 16:] = True
    mask = sa.AttentionMask.from_dense(keep.numpy(), block=16)
    for _ in range(2):
        for words, more in (({"causal": True}, {"is_causal": True}), ({"mask": mask}, {"attn_mask": keep})):
            with torch.no_grad():
                close(sa.attention(q, k, v, **words), own(q, k, v, **more))
            got, wanted = sa.attention(q, k, v, **words), own(q, k, v, **more)
            pair = [torch.autograd.grad(r.sin().sum(), (q, k, v)) for r in (got, wanted)]
            close(*pair, 1e-3)
    x = torch.randn(3, 1, 2, 32, 16)
    close(torch.vmap(lambda y: sa.attention(y, y, y))(x), own(x, x, x))


def transforms(sa, a, dense, b):
    batch = torch.randn(4, 24, 5)
    close(torch.vmap(lambda c: sa.matmul(a, c))(batch), dense @ batch)
    refused_or(
        lambda g: close(g, dense.sum(0)[:, None].expand(24, 5)),
        lambda: torch.func.grad(lambda c: sa.matmul(a, c).sum())(b),
    )
    t = torch.randn_like(b)
    refused_or(
        lambda pair: close(pair[1], dense @ t), lambda: torch.func.jvp(lambda c: sa.matmul(a, c), (b,), (t,))
    )
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(b, t)
        for call in (lambda: sa.matmul(a, dual), lambda: a @ dual):
            refused_or(lambda r: close(forward_ad.unpack_dual(r).tangent, dense @ t), call)
    close(sa.matmul(a, b), dense @ b)


def traces(sa, a, dense, b):
    other = torch.randn_like(b)
    for words in ({}, {"pre_dispatch": True}):
        graph = make_fx(lambda c: sa.matmul(a, c), **words)(b)
        assert "sparse_autotune.matmul" in graph.code, graph.code
        close(graph(other), dense @ other)
    traced = torch.jit.trace(lambda c: sa.matmul(a, c), (b,))
    assert "sparse_autotune::matmul" in str(traced.graph)
    close(traced(other), dense @ other)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert sa.matmul(a, mode.from_tensor(b)).shape == (32, 5)
    with FakeTensorMode() as mode:
        layer = sa.SparseLinear(24, 16, block=8)
        assert layer(mode.from_tensor(b).T).shape == (5, 16)
    close(sa.matmul(a, b), dense @ b)


def compiled(sa, a, dense, b):
    compile = lambda f, **words: torch.compile(f, backend="eager", **words)
    close(compile(lambda c: sa.matmul(a, c), fullgraph=True)(b), dense @ b)
    layer, x = sa.SparseLinear(24, 16, block=8), b.T.contiguous()
    close(compile(layer, fullgraph=True)(x), layer.to_dense()(x))
    close(compile(lambda y: sa.matmul(y, layer.matrix().T))(x), layer.to_dense()(x) - layer.bias)
    sparse = dense.to_sparse_bsr((8, 8))
    close(compile(lambda s, c: sa.matmul(s, c))(sparse, b), dense @ b)
    q = torch.randn(1, 2, 32, 16)
    close(compile(lambda y: sa.attention(y, y, y), fullgraph=True)(q), sa.attention(q, q, q))


def check(hidden):
    sa = load_without(hidden)
    sa.set_effort("off")
    torch.manual_seed(0)
    a, dense, b = products(sa)
    gradients(sa, a, b)
    layers(sa)
    autocast(sa, a, dense, b)
    attention(sa)
    transforms(sa, a, dense, b)
    traces(sa, a, dense, b)
    if len(hidden) != 1 or any(word in hidden[0] for word in COMPILED):
        compiled(sa, a, dense, b)
    products(sa)


torch.set_num_threads(1)
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))  # loads the compiler
wrong, running = [], {}
for hidden in json.loads(sys.argv[1]):
    while len(running) >= 2:
        child, status = os.wait()
        wrong += [running[child]] if status else []
        del running[child]
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # After a fork torch makes its thread pool anew at the first use, which several threads may not share.
        torch.set_num_threads(1)
        try:
            check(hidden)
        except BaseException:
            print("without", hidden, flush=True)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    running[child] = hidden
for child in list(running):
    wrong += [running[child]] if os.waitpid(child, 0)[1] else []
print("wrong:", json.dumps(wrong))
"""


GROUPS = 4  # so that several processes can share the work


@pytest.mark.parametrize("group", range(GROUPS))
def test_results_are_right_without_each_private_name_and_without_all(group):
    every = sorted(private.names)
    cases = [[name] for name in every[group::GROUPS]] + ([[], every] if group == 0 else [])
    # Without a GPU: the compiler asks for one, and a forked child has none that its parent has used.
    run = run_program(PROGRAM, json.dumps(cases), CUDA_VISIBLE_DEVICES="")
    assert run.stdout.strip().splitlines()[-1] == "wrong: []", run.stdout[-2000:] + run.stderr[-8000:]
