"""Prune a small transformer block to 87.5 % sparse, fine-tune it, and see what that costs and gains.

A block of a transformer learns to copy: at every position it names the token that stood eight places before.
Then its linear layers are swapped for block-sparse ones, which keep half, a quarter and at last an eighth of
their blocks, and it learns on for a while after each step.

    python examples/transformer.py                            # about a minute on two cores
    python examples/transformer.py --width 1024 --block 64    # on a GPU
"""

# %% What there is to learn
import argparse
import copy
import time

import torch
from torch import nn

import sparse_autotune as sa

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--block", type=int, default=16)
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(0)
device, tokens, length, back = options.device, 16, 32, 8


def batch(size=32):
    """Random tokens, and at each position the token `back` places before."""
    x = torch.randint(tokens, (size, length), device=device)
    return x, x.roll(back, 1)


# %% A block as everybody writes it: attention and a wide MLP, four to five matrices
class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.embed, self.place = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, tokens)

    def forward(self, x):
        h = self.embed(x) + self.place.weight
        q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = h + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        h = h + self.down(nn.functional.gelu(self.up(self.norm2(h))))
        return self.head(h)


def train(model, steps, rate):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(steps):
        x, y = batch()
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model):
    x, y = batch(256)
    return (model(x).argmax(-1) == y).float().mean().item()


def show(name, model):
    count = sum(p.numel() for p in model.parameters())
    print(f"{name:<28} {accuracy(model):6.1%} right, {count / 1e6:6.2f} million parameters")


# %% Dense first
model = Block(options.width).to(device)
train(model, options.steps, 2e-3)
show("dense", model)

# %% Prune, step by step: the blocks with the largest norms stay; embeddings and the head stay dense
CHOSEN = ["qkv", "out", "up", "down"]


def prune(model, density):
    """A copy whose chosen layers keep this share of their blocks."""
    model = copy.deepcopy(model)
    for name in CHOSEN:
        layer = getattr(model, name)
        dense = layer.to_dense() if isinstance(layer, sa.SparseLinear) else layer
        setattr(model, name, sa.SparseLinear.from_dense(dense, block=options.block, density=density))
    return model


show(
    "pruned at once, not tuned",
    sa.sparsify(copy.deepcopy(model), block=options.block, density=0.125, include=CHOSEN),
)
sparse = model
for density in (0.5, 0.25, 0.125):
    sparse = prune(sparse, density)
    # Gradients reach the kept blocks, through products that never touch the others.
    train(sparse, options.steps, 2e-3)
    show(f"{1 - density:.1%} sparse, fine-tuned", sparse)
print(sparse.up)


# %% Speed, of one layer at a size where it matters
def seconds(call, times=5):
    for _ in range(2):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / times


large, rows = (4096, 8192) if device == "cuda" else (1024, 512)
dtype = torch.float16 if device == "cuda" else torch.float32
dense = nn.Linear(large, large, device=device, dtype=dtype)
pruned = sa.SparseLinear.from_dense(dense, block=64, density=0.125)
x = torch.randn(rows, large, device=device, dtype=dtype, requires_grad=True)
for name, run in (
    ("forward", lambda layer: layer(x)),
    ("forward and backward", lambda layer: layer(x).sum().backward()),
):
    with torch.set_grad_enabled(name != "forward"):
        slow, fast = seconds(lambda: run(dense)), seconds(lambda: run(pruned))
    print(
        f"{large} to {large}, {rows} rows, {name}: dense {slow * 1e3:.2f} ms, sparse {fast * 1e3:.2f} ms, "
        f"{slow / fast:.1f}x faster"
    )
