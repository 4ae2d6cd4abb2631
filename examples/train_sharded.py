"""Train a small transformer with sparse layers on several processes, save it, resume on any other number, and
generate.

The transformer learns sequences that repeat themselves. Its layers are cut over the ranks of a mesh with two
dimensions: `tp` ranks share a layer, by heads and by hidden features, and `dp` ranks have rows of their own.

    torchrun --nproc-per-node 4 examples/train_sharded.py --tensor 2 --save saved     # 2 x 2 ranks
    torchrun --nproc-per-node 2 examples/train_sharded.py --tensor 2 --resume saved   # 1 x 2 ranks
    torchrun --nproc-per-node 1 examples/train_sharded.py --resume saved              # in one piece
"""

# %% What there is to learn: after `period` tokens everything comes again
import argparse
import os

# torch has an OpenMP of its own, and two that spin are slow on few cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

import sparse_autotune as sa

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--tensor", type=int, default=1, help="ranks that share a layer")
parser.add_argument("--steps", type=int, default=150)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--block", type=int, default=16)
parser.add_argument("--density", type=float, default=0.5)
parser.add_argument("--save", help="a folder for the checkpoint")
parser.add_argument("--resume", help="the folder of a checkpoint")
options = parser.parse_args()
tokens, length, period, rows = 16, 32, 8, 16


def batch(step):
    """Rows of all ranks: the same on each rank, so that the mesh does not show in what is learnt."""
    first = torch.randint(tokens, (rows, period), generator=torch.Generator().manual_seed(step))
    return first.repeat(1, length // period + 1)[:, : length + 1]


# %% A transformer as everybody writes it, but that its layers are sparse
class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        kind = {"block": options.block, "density": options.density}
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (sa.SparseLinear(width, width, **kind) for _ in range(3))
        self.out = sa.SparseLinear(width, width, **kind)
        self.up = sa.SparseLinear(width, 4 * width, activation="gelu", **kind)
        self.down = sa.SparseLinear(4 * width, width, **kind)

    def forward(self, x):
        h = self.norm1(x)
        # Each rank has heads of its own: -1, not their number.
        q, k, v = (
            layer(h).unflatten(-1, (-1, options.block)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        x = x + self.out(sa.attention(q, k, v, causal=True).transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.norm2(x)))


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, x):
        h = self.embed(x) + self.place.weight
        for layer in self.layers:
            h = layer(h)
        return self.head(self.norm(h))


# %% Ranks: on GPUs where each has one of its own (NCCL takes no two ranks on one), else on the CPU
if "LOCAL_WORLD_SIZE" not in os.environ:
    raise SystemExit("expected torchrun: torchrun --nproc-per-node 2 examples/train_sharded.py")
cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
device = "cuda" if cuda else "cpu"
if cuda:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if cuda else "gloo")
world, rank = dist.get_world_size(), dist.get_rank()
if world % options.tensor:
    raise SystemExit(f"--tensor {options.tensor} does not divide {world} ranks")
if rows % (world // options.tensor):
    raise SystemExit(f"{world} ranks by --tensor {options.tensor} do not divide the {rows} rows of a batch")
sa.distributed.enable()  # one rank races each problem, and all run the same kernels
mesh = init_device_mesh(device, (world // options.tensor, options.tensor), mesh_dim_names=("dp", "tp"))

torch.manual_seed(0)
model = Transformer(options.width, options.layers)
if options.resume:
    sa.distributed.load_patterns(model, options.resume)  # layers are cut by them
model.to(device)

# %% Cut: attention by heads, the MLP so that ranks have about as many blocks each
Colwise, Rowwise = sa.distributed.ColwiseParallel, sa.distributed.RowwiseParallel
for layer in model.layers:
    cut = sa.distributed.balance(rows=layer.up, columns=layer.down, parts=options.tensor)
    plan = {"q": Colwise(), "k": Colwise(), "v": Colwise(), "out": Rowwise()}
    parallelize_module(layer, mesh["tp"], {**plan, "up": Colwise(cut=cut), "down": Rowwise(cut=cut)})
    fully_shard(layer, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)  # of the cut parameters


def state(step):
    names = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    return {**names, "step": torch.tensor(step)}


first = 0
if options.resume:
    loaded = state(0)
    dcp.load(loaded, checkpoint_id=options.resume, planner=sa.distributed.LoadPlanner(model))
    words = {"model_state_dict": loaded["model"], "optim_state_dict": loaded["optimizer"]}
    set_state_dict(model, optimizer, **words)
    first = int(loaded["step"])
if rank == 0:
    print(f"{world} ranks on {device}, {options.tensor} to a layer, from step {first}")

# %% Train
mine = rows // mesh["dp"].size()
begin = mesh["dp"].get_local_rank() * mine
for step in range(first, first + options.steps):
    x = batch(step)[begin : begin + mine].to(device)
    loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step == first + options.steps - 1 or (step + 1) % 50 == 0:
        mean = loss.detach().clone()
        dist.all_reduce(mean, group=mesh["dp"].get_group())
        if rank == 0:
            print(f"step {step + 1:4}  loss {mean.item() / mesh['dp'].size():.6f}")

# %% Save
if options.save:
    saved = state(first + options.steps)
    dcp.save(saved, checkpoint_id=options.save, planner=sa.distributed.SavePlanner(model))

# %% Generate: what comes after two periods?
text = batch(10**6)[:1, :length].to(device)
wanted, text = text.clone(), text.clone()
text[:, 2 * period :] = 0
with torch.no_grad():
    for at in range(2 * period, length):
        text[:, at] = model(text)[:, at - 1].argmax(-1)
if rank == 0:
    right = (text == wanted)[:, 2 * period :].float().mean().item()
    print("wrote", *text[0, 2 * period :].tolist(), f"({right:.0%} right)")
dist.barrier()  # a rank of gloo that ends while others still talk may abort
dist.destroy_process_group()
