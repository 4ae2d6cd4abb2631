"""What the tests of sharded layers run on several processes: `python sharded_ranks.py FOLDER JOB...`, where a
job is WORLD:NAME[:WORD...]. Each job is a function below, run by as many forked processes. Forking comes
before any product: importing torch is what takes long."""

import copy
import faulthandler
import json
import os
import sys
import time
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import parallelize_module

import sparse_autotune as sa
from sparse_autotune import distributed as sad

EVEN = {"width": 64, "hidden": 128, "blocks": ((16, 8), (8, 16))}
UNEVEN = {"width": 72, "hidden": 100, "blocks": ((16, 8), (8, 16))}  # 7 block rows, the last one short
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float64: 1e-12}


def skewed(out_features, in_features, block, dtype, bias=True, activation=None):
    """A layer whose block rows and columns hold very different numbers of blocks."""
    grid = -(-out_features // block[0]), -(-in_features // block[1])
    kept = torch.rand(grid) < torch.rand(grid[0], 1) * torch.rand(1, grid[1]) * 1.5
    kept[0, 0] = True
    dense = kept.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[:out_features, :in_features]
    matrix = sa.BsrMatrix.from_dense(dense * torch.randn(out_features, in_features), block, threshold=0.0)
    b = torch.randn(out_features) if bias else None
    layer = sa.SparseLinear.from_matrix(matrix, b, activation)
    with torch.no_grad():
        layer.values.mul_(0.2)
    return layer.to(dtype)


class Mlp(nn.Module):
    def __init__(self, size, dtype=torch.float32, activation="silu"):  # relu has a kink
        super().__init__()
        self.up = skewed(size["hidden"], size["width"], size["blocks"][0], dtype, activation=activation)
        self.down = skewed(size["width"], size["hidden"], size["blocks"][1], dtype)

    def forward(self, x):
        return self.down(self.up(x))


class Net(nn.Module):
    def __init__(self, size, layers=2, dtype=torch.float32):
        super().__init__()
        self.norm = nn.LayerNorm(size["width"], dtype=dtype)
        self.layers = nn.ModuleList(Mlp(size, dtype) for _ in range(layers))

    def forward(self, x):
        x = self.norm(x)
        for layer in self.layers:
            x = x + layer(x)
        return x


def same(got, wanted, dtype, what=""):
    tolerance = TOLERANCE[dtype] * max(1.0, wanted.abs().max().item())
    torch.testing.assert_close(
        got, wanted, rtol=TOLERANCE[dtype], atol=tolerance, msg=lambda m: f"{what}: {m}"
    )


def of(layer, whole):
    """This rank's blocks of what the matrix has in one piece, zeros in the padding."""
    stored = torch.from_numpy(layer._shard.stored_by(layer.values))
    return torch.where(stored[:, None, None] < 0, 0.0, whole[stored.clamp_min(0)].double()).to(whole.dtype)


def check_gradients(model, reference, dtype):
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        grad, wanted = p.grad, q.grad
        owner = model.get_submodule(name.rpartition(".")[0])
        if name.endswith("values") and isinstance(grad, DTensor) and owner._shard is not None:
            same(grad.to_local(), of(owner, wanted), dtype, name)
        else:
            same(grad.full_tensor() if isinstance(grad, DTensor) else grad, wanted, dtype, name)


def cuts_of(model, parts, how):
    if how == "plain":
        return [None] * len(model.layers)
    return [sad.balance(rows=x.up, columns=x.down, parts=parts) for x in model.layers]


def parallelize(model, mesh, how="plain"):
    for layer, cut in zip(model.layers, cuts_of(model, mesh.size(), how)):
        plan = {"up": sad.ColwiseParallel(cut=cut), "down": sad.RowwiseParallel(cut=cut)}
        parallelize_module(layer, mesh, plan)
    return model


def seeded(size, dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return Net(size, dtype=dtype)


def mesh_of(world, *names):
    return init_device_mesh("cpu", (world,), mesh_dim_names=names or ("tp",))


# ---- jobs ----


def tensor_parallel(rank, world, folder, dtype, shape, how):
    dtype, size = getattr(torch, dtype), EVEN if shape == "even" else UNEVEN
    reference = seeded(size, dtype)
    model = parallelize(seeded(size, dtype), mesh_of(world), how)
    torch.manual_seed(1)
    x = torch.randn(3, 5, size["width"], dtype=dtype, requires_grad=True)
    seen = []
    for _ in range(2):  # deterministic: the same bits again
        model.zero_grad(), setattr(x, "grad", None)
        y = model(x)
        y.square().mean().backward()
        seen.append([y.detach(), x.grad.clone(), *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*seen):
        a, b = (t.to_local() if isinstance(t, DTensor) else t for t in (a, b))
        assert torch.equal(a, b)
    z = x.detach().clone().requires_grad_()
    wanted = reference(z)
    wanted.square().mean().backward()
    same(y, wanted, dtype, "output")
    same(x.grad, z.grad, dtype, "x.grad")
    check_gradients(model, reference, dtype)
    # gradients are clipped by the norm of the whole
    norm = nn.utils.clip_grad_norm_([p for n, p in model.named_parameters() if "layers" in n], 0.1)
    norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
    wanted = nn.utils.clip_grad_norm_([p for n, p in reference.named_parameters() if "layers" in n], 0.1)
    same(norm, wanted, dtype, "norm")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            same(model(x), reference(x), dtype, f"output in {mode.__name__}")
    # ranks have like work by a balanced cut
    if how == "balanced":
        heaviest = max(map(len, model.layers[0].up._shard.layout.orders))
        plain = sa.SparseLinear.from_matrix(reference.layers[0].up.matrix())
        parallelize_module(plain, mesh_of(world), sad.ColwiseParallel())
        assert heaviest <= max(map(len, plain._shard.layout.orders))


def layouts(rank, world, folder, shape):
    """Every layout of inputs and outputs that torch's styles have, sequence parallelism among them."""
    size, mesh = EVEN if shape == "even" else UNEVEN, mesh_of(world)
    size = {**size, "width": 64} if shape == "even" else size
    torch.manual_seed(2)
    up = skewed(size["hidden"], size["width"], size["blocks"][0], torch.float32, activation="gelu")
    down = skewed(size["width"], size["hidden"], size["blocks"][1], torch.float32, activation="silu")
    x = torch.randn(2, 4 * world, size["width"])
    wanted_up = up(x)
    cuts = [None, sad.balance(rows=up, columns=down, parts=world)]

    def mine(t, dim=1):
        return t.chunk(world, dim)[rank].clone()

    for cut in cuts:
        for layout, make in ((Replicate(), lambda t: t.clone()), (Shard(1), mine)):
            # in: replicated or by sequence; out: replicated, by sequence, or a DTensor of any kind
            for out in (Replicate(), Shard(1), Shard(-1)):
                for local in (True, False):
                    if out == Shard(-1) and local:
                        continue
                    layer = copy.deepcopy(up)
                    words = {"input_layouts": layout, "output_layouts": out, "use_local_output": local}
                    parallelize_module(layer, mesh, sad.ColwiseParallel(cut=cut, **words))
                    given, theirs = make(x).requires_grad_(), x.clone().requires_grad_()
                    weight = torch.randn_like(wanted_up)
                    dist.broadcast(weight, 0)
                    y = layer(given)
                    if local:
                        same(y, make_of(out, wanted_up, mine), torch.float32, f"{layout} {out}")
                        loss = (y * make_of(out, weight, mine)).sum()
                    else:
                        assert isinstance(y, DTensor)
                        same(y.full_tensor(), wanted_up, torch.float32, f"{layout} {out}")
                        w = distribute_tensor(weight, mesh, y.placements)
                        loss = (y * w).sum()
                    loss.backward()
                    copied = copy.deepcopy(up)
                    (copied(theirs) * weight).sum().backward()
                    same(given.grad, make(theirs.grad), torch.float32, f"{layout} {out} {local} x.grad")
                    same(layer.values.grad.to_local(), of(layer, copied.values.grad), torch.float32)
                    same(layer.bias.grad.full_tensor(), copied.bias.grad, torch.float32, "bias")
    h = torch.randn(2, 4 * world, size["hidden"])
    wanted_down = down(h)
    for cut in cuts:
        for out in (Replicate(), Shard(1)):
            for layout, make in ((Replicate(), lambda t: t.clone()), (Shard(1), mine)):
                layer = copy.deepcopy(down)
                words = {"input_layouts": layout, "output_layouts": out}
                parallelize_module(layer, mesh, sad.RowwiseParallel(cut=cut, **words))
                given, theirs = make(h).requires_grad_(), h.clone().requires_grad_()
                weight = torch.randn_like(wanted_down)
                dist.broadcast(weight, 0)
                y = layer(given)
                same(y, make_of(out, wanted_down, mine), torch.float32, f"{layout} {out}")
                (y * make_of(out, weight, mine)).sum().backward()
                copied = copy.deepcopy(down)
                (copied(theirs) * weight).sum().backward()
                same(given.grad, make(theirs.grad), torch.float32, f"{layout} {out} x.grad")
                same(layer.values.grad.to_local(), of(layer, copied.values.grad), torch.float32)
                same(layer.bias.grad.full_tensor(), copied.bias.grad, torch.float32, "bias")


def make_of(layout, t, mine):
    return mine(t) if layout == Shard(1) else t


def optimizers_of(*models):
    """SGD: AdamW divides by the gradient, and makes much of what rounding leaves of a small one."""
    return [torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in models]


def advance(optimizers, dtype):
    for optimizer in optimizers:
        if dtype == torch.float32:
            optimizer.step()
        optimizer.zero_grad()


def data_parallel(rank, world, folder, kind, dtype, shape):
    """DDP and FSDP2: each rank has rows of its own, gradients are averaged."""
    dtype, size = getattr(torch, dtype), EVEN if shape == "even" else UNEVEN
    reference, model = seeded(size, dtype), seeded(size, dtype)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    torch.manual_seed(1)
    x = torch.randn(world, 5, size["width"], dtype=dtype)
    optimizers = optimizers_of(model, reference)
    for step in range(2):
        y = model(x[rank])
        wanted = reference(x)
        same(y, wanted[rank], dtype, f"step {step}")
        y.square().mean().backward()
        wanted.square().mean().backward()
        if kind == "fsdp":
            check_gradients(model, reference, dtype)
        advance(optimizers, dtype)
    found = sad.plain_state_dict(model)
    for name, t in reference.state_dict().items():
        same(found[name].to(dtype), t.to(dtype), dtype, name)


def mesh_2d(rank, world, folder, dtype, shape, how):
    dtype, size = getattr(torch, dtype), EVEN if shape == "even" else UNEVEN
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    reference, model = seeded(size, dtype), seeded(size, dtype)
    parallelize(model, mesh["tp"], how)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    torch.manual_seed(1)
    x = torch.randn(2, 5, size["width"], dtype=dtype)
    me = mesh["dp"].get_local_rank()
    optimizers = optimizers_of(model, reference)
    for step in range(2):
        y = model(x[me])
        wanted = reference(x)
        same(y, wanted[me], dtype, f"step {step}")
        y.square().mean().backward()
        wanted.square().mean().backward()
        for (name, p), q in zip(model.named_parameters(), reference.parameters()):
            if name.endswith("values"):
                owner = model.get_submodule(name.rpartition(".")[0])
                same(p.grad.to_local(), of(owner, q.grad), dtype, name)
        advance(optimizers, dtype)
    if dtype == torch.float32:
        found = sad.plain_state_dict(model)
        for name, t in reference.state_dict().items():
            same(found[name].float(), t.float(), dtype, name)


def clipped(rank, world, folder):
    """Gradients on meshes of one and of two dimensions are clipped by one norm, as docs/guide/many-gpus.md
    does it."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    reference, model = seeded(UNEVEN), parallelize(seeded(UNEVEN), mesh["tp"], "balanced")
    fully_shard(model, mesh=mesh["dp"])
    x = torch.randn(4, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    for m in (model, reference):
        m(x).square().mean().backward()
    meshes = {}
    for p in model.parameters():
        meshes.setdefault(p.device_mesh, []).append(p)
    norms = [nn.utils.get_total_norm([p.grad for p in each]).full_tensor() for each in meshes.values()]
    norm = torch.stack(norms).norm()
    for each in meshes.values():
        nn.utils.clip_grads_with_norm_(each, 0.1, norm)
    assert len(norms) == 2
    same(norm, nn.utils.clip_grad_norm_(reference.parameters(), 0.1), torch.float32)
    check_gradients(model, reference, torch.float32)


# ---- what is torch's own, and needs nothing of ours ----


def pipeline(rank, world, folder):
    """Two stages of sparse layers, under torch's schedules."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    x = torch.randn(8, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    for schedule in (ScheduleGPipe, Schedule1F1B):
        model, reference = seeded(UNEVEN).layers[rank], seeded(UNEVEN).layers
        stage = PipelineStage(model, rank, 2, torch.device("cpu"))
        pipe = schedule(stage, 4, loss_fn=lambda y, wanted: (y - wanted).square().mean())
        y = pipe.step(x) if rank == 0 else pipe.step(target=torch.zeros_like(x))
        wanted = reference[1](reference[0](x))
        wanted.square().mean().backward()
        if rank == 1:
            same(y, wanted, torch.float32)
        check_gradients(model, reference[rank], torch.float32)


def optimizer_over_ranks(rank, world, folder):
    """ZeRO, beside DDP."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    reference, model = seeded(UNEVEN), nn.parallel.DistributedDataParallel(seeded(UNEVEN))
    words = {"lr": 0.1, "momentum": 0.9}
    optimizers = [
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, **words),
        torch.optim.SGD(reference.parameters(), **words),
    ]
    x = torch.randn(world, 5, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    for step in range(3):
        y, wanted = model(x[rank]), reference(x)
        same(y, wanted[rank], torch.float32, f"step {step}")
        y.square().mean().backward()
        wanted.square().mean().backward()
        advance(optimizers, torch.float32)


def fsdp1(rank, world, folder):
    from torch.distributed.fsdp import FullyShardedDataParallel

    reference = seeded(UNEVEN)
    model = FullyShardedDataParallel(seeded(UNEVEN), device_id=torch.device("cpu"), use_orig_params=True)
    optimizers = optimizers_of(model, reference)
    x = torch.randn(world, 5, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    for step in range(3):
        y, wanted = model(x[rank]), reference(x)
        same(y, wanted[rank], torch.float32, f"step {step}")
        y.square().mean().backward()
        wanted.square().mean().backward()
        advance(optimizers, torch.float32)


def checkpointed(rank, world, folder):
    """Activations that are computed again in the backward pass give the same bits."""
    model = parallelize(seeded(UNEVEN), mesh_of(world), "balanced")
    x = torch.randn(4, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    found = []
    for call in (model, lambda x: torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)):
        model.zero_grad()
        call(x.clone().requires_grad_()).square().mean().backward()
        grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
        found.append([g.clone() for g in grads])
    assert all(torch.equal(a, b) for a, b in zip(*found))


def policies(rank, world, folder):
    """Mixed precision and CPU offload of `fully_shard`, over layers that are cut; autocast."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    x = torch.randn(4, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kinds = [({"mp_policy": mixed}, torch.bfloat16)]
    kinds += [({"offload_policy": CPUOffloadPolicy(pin_memory=False)}, torch.float32)]
    for words, dtype in kinds:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        reference, model = seeded(UNEVEN), parallelize(seeded(UNEVEN), mesh["tp"], "balanced")
        fully_shard(model, mesh=mesh["dp"], **words)
        y, wanted = model(x), reference(x)
        assert y.dtype == dtype
        same(y.float(), wanted, dtype)
        y.float().square().mean().backward()
        wanted.square().mean().backward()
        check_gradients(model, reference, dtype)
    reference, model = seeded(UNEVEN), parallelize(seeded(UNEVEN), mesh_of(world), "balanced")
    with torch.autocast("cpu", torch.bfloat16):
        y, wanted = model(x), reference(x)
    assert y.dtype == wanted.dtype
    same(y.float(), wanted.float(), torch.bfloat16)


def norm_by_sequence(rank, world, folder):
    """torch's own SequenceParallel on the norm, and our styles between shards of the sequence."""
    from torch.distributed.tensor.parallel import SequenceParallel

    mesh, reference, model = mesh_of(world), seeded(UNEVEN), seeded(UNEVEN)
    for layer in model.layers:
        cut = sad.balance(rows=layer.up, columns=layer.down, parts=world)
        up = sad.ColwiseParallel(cut=cut, input_layouts=Shard(1))
        down = sad.RowwiseParallel(cut=cut, output_layouts=Shard(1), use_local_output=False)
        parallelize_module(layer, mesh, {"up": up, "down": down})
    parallelize_module(model, mesh, {"norm": SequenceParallel()})
    x = torch.randn(2, 4 * world, UNEVEN["width"], generator=torch.Generator().manual_seed(1))
    y, wanted = model(x.chunk(world, 1)[rank]).full_tensor(), reference(x)
    same(y, wanted, torch.float32)
    y.square().mean().backward()
    wanted.square().mean().backward()
    check_gradients(model, reference, torch.float32)


def saved_beside_training(rank, world, folder):
    """`dcp.async_save` on a process group of its own writes what the model was when it was called."""
    group = dist.new_group(backend="gloo")
    model, optimizer = make_sharded(world, "balanced", "uneven", 0)
    one_step(model, optimizer, UNEVEN["width"])
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    wanted, words = in_one_piece(model, optimizer), {"checkpoint_id": f"{folder}/beside"}
    writing = dcp.async_save(state, planner=sad.SavePlanner(model), process_group=group, **words)
    one_step(model, optimizer, UNEVEN["width"])
    writing.result()
    dist.barrier()
    other, optimizer = make_sharded(world, "plain", "uneven", 9, f"{folder}/beside")
    state = dict(zip(("model", "optimizer"), get_state_dict(other, optimizer)))
    dcp.load(state, planner=sad.LoadPlanner(other), **words)
    set_state_dict(other, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found = in_one_piece(other, optimizer)
    assert all(torch.equal(found[key], t) for key, t in wanted.items())


def hsdp(rank, world, folder):
    """A mesh of three dimensions: replicated, sharded by fully_shard, and cut."""
    mesh = init_device_mesh("cpu", (2, 1, world // 2), mesh_dim_names=("copy", "dp", "tp"))
    reference, model = seeded(UNEVEN), parallelize(seeded(UNEVEN), mesh["tp"], "balanced")
    fully_shard(model, mesh=mesh["copy", "dp"])
    torch.manual_seed(1)
    x, me = torch.randn(2, 5, UNEVEN["width"]), mesh["copy"].get_local_rank()
    model(x[me]).square().mean().backward()
    reference(x).square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        if name.endswith("values"):
            same(p.grad.to_local(), of(model.get_submodule(name[:-7]), q.grad), torch.float32, name)
    found = sad.plain_state_dict(model)
    for name, t in reference.state_dict().items():
        assert torch.equal(found[name], t), name


def make_sharded(world, how, shape, seed, folder=None):
    """A model and optimizer on a mesh of a kind: plain, balanced, fsdp, 2d or one."""
    model = seeded(EVEN if shape == "even" else UNEVEN, seed=seed)
    if folder is not None:  # a model of another seed takes the checkpoint's patterns
        sad.load_patterns(model, folder)
    if how == "2d":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        parallelize(model, mesh["tp"], "balanced")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh["dp"])
        fully_shard(model, mesh=mesh["dp"])
    elif how == "fsdp":
        fully_shard(model)
    elif how != "one":
        parallelize(model, mesh_of(world), how)
    return model, torch.optim.AdamW(model.parameters(), 1e-2)


def one_step(model, optimizer, width):
    torch.manual_seed(7)
    model(torch.randn(4, width)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def in_one_piece(model, optimizer):
    """Parameters and optimizer state of the whole, by name."""
    found = sad.plain_state_dict(model)
    names = dict(model.named_parameters())
    pieces = {n: model.get_submodule(n.rpartition(".")[0]) for n in names if n.endswith("values")}
    for name, p in names.items():
        for key, t in optimizer.state[p].items():
            owner = pieces.get(name)
            if isinstance(t, DTensor):
                from sparse_autotune._checkpoint import _gather

                cut = owner is not None and owner._shard is not None
                t = _gather(owner._shard, t) if cut else t.full_tensor()
            found[f"{name}/{key}"] = t
    return {key: t.clone() for key, t in found.items()}


def save(rank, world, folder, name, how, shape):
    model, optimizer = make_sharded(world, how, shape, 0)
    one_step(model, optimizer, (EVEN if shape == "even" else UNEVEN)["width"])
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    dcp.save(state, checkpoint_id=f"{folder}/{name}", planner=sad.SavePlanner(model))
    found = in_one_piece(model, optimizer)
    if rank == 0:
        torch.save(found, f"{folder}/{name}.pt")


def load(rank, world, folder, name, how, shape, again=None, planner="ours"):
    """Bit for bit what was saved; the next step is that of the model that was not saved."""
    model, optimizer = make_sharded(world, how, shape, 99, f"{folder}/{name}")
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    words = {"planner": sad.LoadPlanner(model)} if planner == "ours" else {}
    dcp.load(state, checkpoint_id=f"{folder}/{name}", **words)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    found, wanted = in_one_piece(model, optimizer), torch.load(f"{folder}/{name}.pt", weights_only=True)
    assert found.keys() == wanted.keys()
    for key, t in wanted.items():
        assert torch.equal(found[key], t), key
    one_step(model, optimizer, (EVEN if shape == "even" else UNEVEN)["width"])
    if again is not None:
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
        dcp.save(state, checkpoint_id=f"{folder}/{again}", planner=sad.SavePlanner(model))
        found = in_one_piece(model, optimizer)
        if rank == 0:
            torch.save(found, f"{folder}/{again}.pt")


def plain_both_ways(rank, world, folder, how, shape):
    source = seeded(EVEN if shape == "even" else UNEVEN, seed=3)
    state = {k: t.clone() for k, t in source.state_dict().items()}
    model, _ = make_sharded(world, how, shape, 3)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    sad.load_plain_state_dict(model, state)
    found = sad.plain_state_dict(model)
    assert found.keys() == state.keys()
    for key, t in state.items():
        assert torch.equal(found[key], t), key
    seeded(EVEN if shape == "even" else UNEVEN, seed=4).load_state_dict(found)


def wrong_loads(rank, world, folder, name):
    """Nothing that does not fit is taken in silence."""
    model, _ = make_sharded(world, "balanced", "uneven", 0)
    state = {"model": get_model_state_dict(model)}
    dcp.save(state, checkpoint_id=f"{folder}/{name}")  # by torch's own planner: as this mesh has it
    one = seeded(UNEVEN, seed=0)
    for target, words in ((model, {"planner": sad.LoadPlanner(model)}), (one, {})):
        try:
            dcp.load({"model": get_model_state_dict(target)}, checkpoint_id=f"{folder}/{name}", **words)
        except dcp.CheckpointException as error:  # no Exception of Python's
            assert "expected" in str(error) or "mismatch" in str(error) or "Missing" in str(error), error
        else:
            raise AssertionError("loaded what is stored in another order")
    other = make_sharded(world, "balanced", "uneven", 5)[0]  # another pattern
    try:
        other.load_state_dict(model.state_dict())
    except RuntimeError as error:
        assert "load_patterns" in str(error), error
    else:
        raise AssertionError("loaded another pattern")
    whole = seeded(UNEVEN, seed=0)
    fully_shard(whole)
    try:
        whole.load_state_dict(seeded(UNEVEN, seed=5).state_dict())
    except RuntimeError as error:
        assert "another number of blocks" in str(error), error
    else:
        raise AssertionError("loaded another number of blocks into shards")
    for call in (lambda x: x.matrix(), lambda x: x.weight.sum(), lambda x: x.to_dense()):
        try:
            call(model.layers[0].up)
        except RuntimeError as error:
            assert "plain_state_dict gathers the whole" in str(error), error
        else:
            raise AssertionError("made the whole of a part")
    with torch.no_grad():
        model.layers[0].up.col_idx.copy_(model.layers[0].up.col_idx.flip(0))
    try:
        model(torch.zeros(1, UNEVEN["width"]))
    except RuntimeError as error:
        assert "another pattern" in str(error)
    else:
        raise AssertionError("computed with another pattern")


def from_meta(rank, world, folder, name):
    """A model that is made without memory is cut by the checkpoint's patterns, and loaded."""
    size = {**UNEVEN, "width": 72}
    source, _ = make_sharded(world, "balanced", "uneven", 0)
    dcp.save(
        {"model": get_model_state_dict(source)},
        checkpoint_id=f"{folder}/{name}",
        planner=sad.SavePlanner(source),
    )
    with torch.device("meta"):
        model = nn.Module()
        model.norm = nn.LayerNorm(size["width"])
        model.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for layer in model.layers:
            layer.up = sa.SparseLinear(
                size["width"], size["hidden"], block=size["blocks"][0], activation="silu"
            )
            layer.down = sa.SparseLinear(size["hidden"], size["width"], block=size["blocks"][1])
    try:
        parallelize_module(model.layers[0], mesh_of(world), {"up": sad.ColwiseParallel()})
    except RuntimeError as error:
        assert "load_patterns" in str(error)
    else:
        raise AssertionError("cut a layer without a pattern")
    sad.load_patterns(model, f"{folder}/{name}")
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp")) if world == 4 else None
    parallelize(model, mesh_of(world) if mesh is None else mesh["tp"], "balanced")
    if mesh is not None:
        fully_shard(model, mesh=mesh["dp"])
    model.to_empty(device="cpu")
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=f"{folder}/{name}", planner=sad.LoadPlanner(model))
    model.load_state_dict(state["model"])
    found, wanted = sad.plain_state_dict(model), sad.plain_state_dict(source)
    assert found.keys() == wanted.keys()
    for key, t in wanted.items():
        assert torch.equal(found[key], t), key
    for layer in model.layers:  # the padding too was without contents
        for x in (layer.up, layer.down):
            local = x.values.to_local()
            assert not local[torch.from_numpy(x._shard.stored_by(x.values) < 0)].any()
    if mesh is None:
        x = torch.randn(3, size["width"], generator=torch.Generator().manual_seed(1))
        same(model.layers[0].down(model.layers[0].up(x)), source.layers[0](x), torch.float32)


def ranks_that_differ(rank, world, folder):
    """Ranks that drew other patterns, and other numbers of blocks, take those of rank 0."""
    model = seeded(UNEVEN, seed=10 + rank)
    reference = seeded(UNEVEN, seed=10)
    model.norm.load_state_dict(reference.norm.state_dict())
    parallelize(model, mesh_of(world), "plain")
    x = torch.ones(2, UNEVEN["width"])
    same(model(x), reference(x), torch.float32)


def compiled(rank, world, folder, shape, how, backend="aot_eager"):
    size = EVEN if shape == "even" else UNEVEN
    model = parallelize(seeded(size), mesh_of(world), how)
    x = torch.randn(3, size["width"], generator=torch.Generator().manual_seed(1))
    wanted = model(x)
    wanted.square().mean().backward()
    grads = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in model.parameters()]
    model.zero_grad()
    quick = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        same(quick(x), wanted, torch.float32)
    y = quick(x)
    y.square().mean().backward()
    same(y, wanted, torch.float32)
    for p, g in zip(model.parameters(), grads):
        same(p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad, g, torch.float32)


def more_ranks_than_blocks(rank, world, folder):
    torch.manual_seed(0)
    up, down = (skewed(20, 24, (16, 8), torch.float32), skewed(24, 20, (8, 16), torch.float32))
    x = torch.randn(3, 24)
    wanted = down(up(x))
    mesh = mesh_of(world)
    parallelize_module(up, mesh, sad.ColwiseParallel())
    parallelize_module(down, mesh, sad.RowwiseParallel())
    same(down(up(x)), wanted, torch.float32)


def experts(rank, world, folder, count, shared="0"):
    """Each rank has tokens of its own, in different numbers; together they are one process's."""
    count, sizes = int(count), [5 + 3 * r for r in range(world)]
    torch.manual_seed(0)
    reference = sa.MoE(16, 12, experts=count, top_k=2, shared=int(shared), dtype=torch.float64)
    torch.manual_seed(rank)  # others than rank 0 begin with other values
    layer = (
        copy.deepcopy(reference)
        if rank == 0
        else type(reference)(16, 12, experts=count, top_k=2, shared=int(shared), dtype=torch.float64)
    )
    parallelize_module(layer, mesh_of(world), sad.ExpertParallel())
    x = torch.randn(sum(sizes), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own, whole = x.split(sizes)[rank].clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = layer(own), reference(whole)
    same(y, wanted.split(sizes)[rank], torch.float64, "output")
    y.square().sum().backward()
    wanted.square().sum().backward()
    same(own.grad, whole.grad.split(sizes)[rank], torch.float64, "x.grad")
    for (name, p), q in zip(layer.named_parameters(), reference.parameters()):
        grad = p.grad
        if isinstance(grad, DTensor):
            same(grad.full_tensor(), q.grad / world, torch.float64, name)
        else:
            dist.all_reduce(grad)
            same(grad, q.grad, torch.float64, name)
    state = get_model_state_dict(layer)
    dcp.save(state, checkpoint_id=f"{folder}/experts{count}{shared}")
    one = {k: torch.zeros_like(t) for k, t in reference.state_dict().items()}
    if rank == 0:
        dcp.load(one, checkpoint_id=f"{folder}/experts{count}{shared}", no_dist=True)
        for key, t in reference.state_dict().items():
            assert torch.equal(one[key], t), key


def uneven_experts(rank, world, folder, kind):
    """Ranks without tokens, and experts that get all of them."""
    sizes = {
        "rank_0_has_none": [0] + [7] * (world - 1),
        "nobody_has_any": [0] * world,
        "one_expert_has_all": [9] * world,
        "one_rank_has_all": [11] + [0] * (world - 1),
    }[kind]
    torch.manual_seed(0)
    one = kind == "one_expert_has_all"
    reference = sa.MoE(16, 12, experts=6, top_k=1 if one else 2, dtype=torch.float64)
    if one:
        with torch.no_grad():
            reference.router.weight.zero_()  # a tie, which goes to one expert
    layer = copy.deepcopy(reference)
    parallelize_module(layer, mesh_of(world), sad.ExpertParallel())
    x = torch.randn(sum(sizes), 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    own, whole = x.split(sizes)[rank].clone().requires_grad_(), x.clone().requires_grad_()
    y, wanted = layer(own), reference(whole)
    assert y.shape == own.shape
    y.square().sum().backward()
    wanted.square().sum().backward()
    if len(own):
        same(y, wanted.split(sizes)[rank], torch.float64, "output")
        same(own.grad, whole.grad.split(sizes)[rank], torch.float64, "x.grad")
    for (name, p), q in zip(layer.named_parameters(), reference.named_parameters()):
        if isinstance(p.grad, DTensor):
            same(p.grad.full_tensor(), q[1].grad / world, torch.float64, name)
    if one:
        assert sum(bool(g.any()) for g in reference.down.grad) == 1


def experts_2d(rank, world, folder):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "ep"))
    torch.manual_seed(0)
    reference = sa.MoE(16, 12, experts=5, top_k=2, shared=6, dtype=torch.float64)
    layer = copy.deepcopy(reference)
    parallelize_module(layer, mesh["ep"], sad.ExpertParallel())
    fully_shard(layer, mesh=mesh["dp"])
    x = torch.randn(6 * world, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    y, wanted = layer(x.chunk(world)[rank]), reference(x)
    same(y, wanted.chunk(world)[rank], torch.float64)
    y.square().sum().backward()
    wanted.square().sum().backward()
    for name in ("gate_up", "down"):
        grad = reference.get_parameter(name).grad / world
        same(layer.get_parameter(name).grad.full_tensor(), grad, torch.float64, name)


def empty_batches(rank, world, folder):
    model = parallelize(seeded(UNEVEN), mesh_of(world), "balanced")
    for shape in ((0, UNEVEN["width"]), (2, 0, UNEVEN["width"])):
        x = torch.zeros(shape, requires_grad=True)
        y = model(x)
        y.sum().backward()
        assert y.shape == x.grad.shape == shape


def bf16_steps(rank, world, folder, how):
    """Three steps in bf16 stay near those of one process: rounding is all that differs."""
    dtype, reference, model = torch.bfloat16, seeded(UNEVEN, torch.bfloat16), seeded(UNEVEN, torch.bfloat16)
    if how == "2d":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
        parallelize(model, mesh["tp"], "balanced")
        fully_shard(model, mesh=mesh["dp"])
    elif how == "fsdp":
        fully_shard(model)
    else:
        parallelize(model, mesh_of(world), how)
    x = torch.randn(4, UNEVEN["width"], dtype=dtype, generator=torch.Generator().manual_seed(0))
    before = {name: t.clone() for name, t in reference.state_dict().items()}
    optimizers = optimizers_of(model, reference)
    for _ in range(3):
        for m, optimizer in zip((model, reference), optimizers):
            (10 * m(x).float().square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
    found = sad.plain_state_dict(model)
    for name, t in reference.state_dict().items():
        if t.is_floating_point():
            moved = (t - before[name]).float().norm()
            assert moved > 0
            assert (found[name] - t).float().norm() < 0.2 * moved + 1e-2 * t.float().norm(), name


def compiled_2d(rank, world, folder):
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    reference, model = seeded(UNEVEN), parallelize(seeded(UNEVEN), mesh["tp"], "balanced")
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])
    x = torch.randn(2, 5, UNEVEN["width"], generator=torch.Generator().manual_seed(0))
    me = mesh["dp"].get_local_rank()
    y, wanted = torch.compile(model, backend="aot_eager")(x[me]), reference(x)
    same(y, wanted[me], torch.float32)
    y.square().mean().backward()
    wanted.square().mean().backward()
    for (name, p), q in zip(model.named_parameters(), reference.parameters()):
        if name.endswith("values"):
            owner = model.get_submodule(name.rpartition(".")[0])
            same(p.grad.to_local(), of(owner, q.grad), torch.float32, name)


def uneven_operators(rank, world, folder):
    """Sizes that the ranks do not divide, and a mesh of two dimensions."""
    kind, n = {"dtype": torch.float64}, 2 * world + 1
    torch.manual_seed(0)
    a = sa.BsrMatrix.from_dense(torch.randn(24, 32, **kind), block=8, keep=0.5)

    def agree(call, tensors, places, mesh=None):
        mesh = mesh_of(world) if mesh is None else mesh
        whole = [t.clone().requires_grad_() for t in tensors]
        parts = [distribute_tensor(t.detach(), mesh, at).requires_grad_() for t, at in zip(whole, places)]
        wanted, got = call(*whole), call(*parts)
        same(got.full_tensor(), wanted, torch.float64)
        wanted.square().sum().backward()
        got.square().sum().backward()
        for t, part in zip(whole, parts):
            same(part.grad.full_tensor(), t.grad, torch.float64)
        return got

    for at in (Shard(0), Shard(1)):
        agree(lambda x: sa.matmul(x, a), [torch.randn(n, 24, **kind)], [[at]])
        agree(lambda b: sa.matmul(a, b), [torch.randn(32, n, **kind)], [[at]])
    agree(lambda x: sa.matmul(x, a), [torch.randn(1, 3, 24, **kind)], [[Shard(0)]])  # ranks have no rows
    x, y = torch.randn(24, n, **kind), torch.randn(n, 32, **kind)
    agree(lambda x, y: sa.sampled_matmul(x, y, a).values, [x, y], [[Shard(1)], [Shard(0)]])
    q, k, v = (torch.randn(3, n, 32, 16, **kind) for _ in range(3))
    for at in (Shard(0), Shard(1), Shard(2), Shard(3)):
        agree(lambda q, k, v: sa.attention(q, k, v, causal=True), [q, k, v], [[at]] * 3)
    agree(lambda q, k, v: sa.attention(q, k, v), [q, k, v], [[Shard(1)], [Replicate()], [Replicate()]])
    if world == 4:
        mesh, q = init_device_mesh("cpu", (2, 2)), torch.randn(2, 4, 32, 16, **kind)
        got = agree(
            lambda q, k, v: sa.attention(q, k, v), [q, q + 1, q + 2], [[Shard(0), Shard(1)]] * 3, mesh
        )
        assert got.placements == (Shard(0), Shard(1))


def operators(rank, world, folder):
    """DTensors through our operators: results, gradients and placements."""
    mesh = mesh_of(world)

    def agree(call, tensors, places, out):
        """The call of DTensors is that of whole tensors, and its result is placed so, without a gather."""
        whole = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
        parts = [
            distribute_tensor(t.detach(), mesh, [at]).requires_grad_(t.requires_grad)
            for t, at in zip(whole, places)
        ]
        wanted, got = call(*whole), call(*parts)
        assert got.placements == (out,), (got.placements, out)
        same(got.full_tensor(), wanted, torch.float64)
        wanted.square().sum().backward()
        got.square().sum().backward()
        for a, b in zip(whole, parts):
            if a.requires_grad:
                same(b.grad.full_tensor(), a.grad, torch.float64)

    torch.manual_seed(0)
    kind = {"dtype": torch.float64}
    still = sa.BsrMatrix.from_dense(torch.randn(24, 32, **kind), block=8, keep=0.5)
    index = (torch.tensor(i) for i in (still.row_ptr, still.col_idx))
    for a in (still, sa.BsrMatrix.dynamic(*index, still.values, (24, 32))):
        for at in (Shard(0), Shard(1), Replicate()):
            agree(lambda x: sa.matmul(x, a), [torch.randn(2 * world, 3 * world, 24, **kind)], [at], at)
        agree(lambda b: sa.matmul(a, b), [torch.randn(32, 4 * world, **kind)], [Shard(1)], Shard(1))
        x, y = torch.randn(24, 4 * world, **kind), torch.randn(4 * world, 32, **kind)
        agree(lambda x, y: sa.sampled_matmul(x, y, a).values, [x, y], [Shard(1), Shard(0)], Partial())
    heads = 2 * world
    mask = sa.AttentionMask.window(32, 8)
    for at in (Shard(0), Shard(1), Replicate()):
        q, k, v = (torch.randn(world, heads, 32, 16, dtype=torch.float64) for _ in range(3))
        agree(lambda q, k, v: sa.attention(q, k, v, causal=True), [q, k, v], [at] * 3, at)
        agree(lambda q, k, v: sa.attention(q, k, v, mask), [q, k, v], [at] * 3, at)
    q, k, v = (torch.randn(1, h, 32, 16, dtype=torch.float64) for h in (4 * world, world, world))
    agree(lambda q, k, v: sa.attention(q, k, v), [q, k, v], [Shard(1)] * 3, Shard(1))
    offsets = torch.tensor([0, 4, 4, 10])
    x, w = torch.randn(10, 8, **kind), torch.randn(3, 8, 4 * world, **kind)
    agree(lambda x, w: sa.grouped_matmul(x, w, offsets), [x, w], [Replicate(), Shard(2)], Shard(1))
    layer = sa.SparseLinear.from_matrix(
        a, torch.randn(24, **kind)
    )  # a whole layer, and rows that are sharded
    agree(lambda x: layer(x), [torch.randn(4 * world, 32, **kind)], [Shard(0)], Shard(0))


def fake(rank, world, folder):
    """64 ranks that are not there: shapes and memory of a large model on one of them."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=13, world_size=64)
    mesh = init_device_mesh("cpu", (8, 8), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential()
    with torch.device("meta"):
        model.up = sa.SparseLinear(8192, 28672, block=64, density=0.125, dtype=torch.bfloat16)
        model.down = sa.SparseLinear(28672, 8192, block=64, density=0.125, dtype=torch.bfloat16)
    for layer in model:  # in place of load_patterns
        drawn = sa.nn.random_pattern(layer._grid, 0.125, torch.Generator().manual_seed(0))
        layer.row_ptr, layer.col_idx = drawn
    whole = sum(p.numel() for p in model.parameters())
    for balanced in (False, True):
        twin = copy.deepcopy(model)
        cut = sad.balance(rows=twin.up, columns=twin.down, parts=8) if balanced else None
        plan = {"up": sad.ColwiseParallel(cut=cut), "down": sad.RowwiseParallel(cut=cut)}
        parallelize_module(twin, mesh["tp"], plan)
        local = sum(p.to_local().numel() for p in twin.parameters())
        assert whole / 8 <= local <= whole / 8 * (1.01 if balanced else 1.05), local / whole
        fully_shard(twin, mesh=mesh["dp"])
        local = sum(p.to_local().numel() for p in twin.parameters())
        assert local <= whole / 64 * 1.06, local / whole
        assert twin.up.values.shape[0] % 8 == 0
    twin = parallelize(seeded(UNEVEN), init_device_mesh("cpu", (64,)))
    y = twin(torch.randn(3, 5, UNEVEN["width"], requires_grad=True))
    y.sum().backward()
    assert y.shape == (3, 5, UNEVEN["width"])
    for p in twin.layers.parameters():
        assert p.grad.shape == p.shape and p.grad.to_local().shape == p.to_local().shape


def several(rank, world, folder, *jobs):
    """Jobs one after the other in the same processes, which takes less time."""
    for job in jobs:
        name, *words = job.split(",")
        globals()[name](rank, world, folder, *words)


def main():
    folder, jobs, answers = sys.argv[1], sys.argv[2:], {}
    for number, job in enumerate(jobs):
        world, name, *words = job.split(":")
        world, began, children = int(world), time.monotonic(), []
        for rank in range(world):
            child = os.fork()
            if child == 0:
                status = 0
                try:
                    faulthandler.dump_traceback_later(int(os.environ.get("SAT_JOB_SECONDS", 240)), exit=True)
                    torch.set_num_threads(1)
                    if name != "fake":
                        at = f"file://{folder}/store{number}"
                        dist.init_process_group("gloo", init_method=at, rank=rank, world_size=world)
                    globals()[name](rank, world, folder, *words)
                    dist.destroy_process_group()
                except BaseException:
                    with open(f"{folder}/error{number}", "a") as file:
                        file.write(f"rank {rank}: {traceback.format_exc()}\n")
                    status = 1
                os._exit(status)
            children.append(child)
        failed, left = False, set(children)
        while left:
            child, status = os.wait()
            left.discard(child)
            if status and not failed:  # the others wait for it
                failed = True
                time.sleep(0.5)
                for other in left:
                    os.kill(other, 9)
        text = f"{folder}/error{number}"
        said = open(text).read() if os.path.exists(text) else "a rank died" if failed else ""
        answers[job] = {"error": said, "seconds": round(time.monotonic() - began, 2)}
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
