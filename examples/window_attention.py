"""Swap the attention of a small transformer for a windowed one, see that nothing else changes, and what it
gains.

Every layer of the transformer looks back over a window. Written the usual way that is a dense mask: all
scores are computed, and most are thrown away. Here the mask is a pattern of blocks, and what it leaves out is
never computed.

    python examples/window_attention.py                                    # half a minute on two cores
    python examples/window_attention.py --length 16384 --window 1024       # on a GPU
"""

# %% A transformer as everybody writes it; `attend` is what will be swapped
import argparse
import os
import time
from pathlib import Path

# torch has an OpenMP of its own, and two that spin are slow on few cores
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import nn

import sparse_autotune as sa

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--length", type=int, default=2048)
parser.add_argument("--window", type=int, default=256)
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--picture", help="a file for the picture of the mask, .svg")
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(0)
device, length, tokens = options.device, options.length, 64
dtype = torch.float16 if device == "cuda" else torch.float32


class Layer(nn.Module):
    def __init__(self, width, size=64):
        super().__init__()
        self.size = size
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, attend):
        # views, of one product
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, -1, self.size)).permute(2, 0, 3, 1, 4)
        x = x + self.out(attend(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.embed, self.head = nn.Embedding(tokens, width), nn.Linear(width, tokens)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))

    def forward(self, x, attend):
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, attend)
        return self.head(h)


# %% Two ways to look back over a window
mask = sa.AttentionMask.window(length, options.window)
keep = torch.from_numpy(mask.to_dense()).to(device)
print(mask)
if options.picture:
    Path(options.picture).write_text(mask.picture() + "\n")


def dense(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def windowed(q, k, v):
    return sa.attention(q, k, v, mask)


# %% The same results, forward and backward
model = Transformer(options.width, options.layers).to(device, dtype)
x = torch.randint(tokens, (1, length), device=device)
# as torch.amp.GradScaler does it: gradients as small as these are lost in half precision
scale = 4096 if dtype == torch.float16 else 1
found = {}
for name, attend in (("dense", dense), ("windowed", windowed)):
    model.zero_grad()
    out = model(x, attend)
    (scale * nn.functional.cross_entropy(out.flatten(0, 1).float(), x.flatten())).backward()
    found[name] = out.detach().float(), model.layers[0].qkv.weight.grad.float() / scale
tolerance = 2e-2 if dtype == torch.float16 else 1e-4
for what, a, b in zip(("outputs", "gradients"), *found.values()):
    error = ((a - b).norm() / a.norm()).item()
    print(f"{what} differ by {error:.1e}, relative to their size")
    assert error < tolerance


# %% The speed
def seconds(call, times=5):
    best = float("inf")
    for _ in range(times + 2):
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best


q, k, v = torch.randn(1, length, 3, options.width // 64, 64, device=device, dtype=dtype).permute(
    2, 0, 3, 1, 4
)
with torch.no_grad():
    slow, fast = seconds(lambda: dense(q, k, v)), seconds(lambda: windowed(q, k, v))
    print(
        f"attention alone: dense {slow * 1e3:.2f} ms, windowed {fast * 1e3:.2f} ms, {slow / fast:.1f}x faster"
    )
    slow, fast = seconds(lambda: model(x, dense)), seconds(lambda: model(x, windowed))
    print(
        f"the transformer: dense {slow * 1e3:.2f} ms, windowed {fast * 1e3:.2f} ms, {slow / fast:.1f}x faster"
    )
slow, fast = (seconds(lambda a=a: model(x, a).float().sum().backward()) for a in (dense, windowed))
print(
    f"forward and backward: dense {slow * 1e3:.2f} ms, windowed {fast * 1e3:.2f} ms, {slow / fast:.1f}x "
    "faster"
)
