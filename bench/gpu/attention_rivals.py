#!/usr/bin/env python3
"""What PyTorch does with attention on the same GPU: its SDPA backends (cuDNN, FlashAttention-2,
memory-efficient), and FlexAttention, compiled, with the same masks as ours.

usage: attention_rivals.py JOBS.json SECONDS    prints one JSON object a line
Times are of kernels alone, taken as rivals.py takes them; of the backward pass without the forward one.
"""

import json
import statistics
import sys
import time
import warnings

import rivals

BACKENDS = {
    "sdpa_cudnn": "CUDNN_ATTENTION",
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
}
# how a warning about one begins
SAID_OF = {"sdpa_cudnn": "cudnn", "sdpa_flash": "flash", "sdpa_efficient": "memory efficient"}
LOOKED_AT = 256  # query rows of a head that are compared with plain arithmetic


class Bench(rivals.Bench):
    def __init__(self):
        super().__init__()
        self.compiled, self.device, self.mods = None, "cuda", {}

    def operands(self, job):
        """Q, K, V and dO: (batch, head, row, size) without gaps."""

        def make(heads, rows):
            return self.dense(job["batch"] * heads * rows, job["dim"], job["dtype"]).view(
                job["batch"], heads, rows, job["dim"]
            )

        q, k, v = (
            make(job["heads"], job["m"]),
            make(job["kv_heads"], job["n"]),
            make(job["kv_heads"], job["n"]),
        )
        return q, k, v, make(job["heads"], job["m"])

    def timed(self, call, stream):
        """Medians of graphs of ten or more calls, fewer replays of long ones. All on one stream, as the
        backward pass wants it."""
        torch = self.torch
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                call()
        torch.cuda.synchronize()

        def capture(calls):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                for _ in range(calls):
                    call()
            return graph

        calls = 10
        graph = capture(calls)
        once = min(self.pair(graph.replay) for _ in range(2)) / calls
        if once < 1e-4:
            calls = min(100, int(1e-3 / once))
            graph = capture(calls)
            graph.replay()
        times = []
        for _ in range(15 if once < 1e-3 else 5):
            time.sleep(rivals.PAUSE_SECONDS)
            times.append(self.pair(graph.replay) / calls)
        return statistics.median(times)

    def measure(self, job, forward):
        """`forward` takes Q, K and V. The stream of the forward pass is the one that the backward pass runs
        on."""
        torch, back = self.torch, job["op"] == "attention-backward"
        stream = torch.cuda.Stream()
        q, k, v, d = self.operands(job)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for x in (q, k, v):
                x.requires_grad_(back)
            out = forward(q, k, v)
        torch.cuda.synchronize()
        error = self.error(job, q, k, v, out)
        if back:
            return {
                "seconds": self.timed(
                    lambda: torch.autograd.grad(out, (q, k, v), d, retain_graph=True),  # noqa: F821
                    stream,
                ),
                "error": error,
            }
        del out
        return {"seconds": self.timed(lambda: forward(q, k, v), stream), "error": error}

    # ---- rivals ----

    def sdpa(self, job, name):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        more = {"enable_gqa": True} if job["heads"] != job["kv_heads"] else {}

        def forward(q, k, v):
            with sdpa_kernel([getattr(SDPBackend, BACKENDS[name])]):
                return self.torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, is_causal=job["causal"], **more
                )

        return self.measure(job, forward)

    def flex(self, job):
        from torch.nn.attention.flex_attention import flex_attention

        if self.compiled is None:
            self.compiled = self.torch.compile(flex_attention, dynamic=False)
        mask, more = self.flex_mask(job), {"enable_gqa": job["heads"] != job["kv_heads"]}
        if 0 < job["block"] < 128:  # its own tiles must divide the mask's blocks
            more["kernel_options"] = {
                name: job["block"]
                for name in ("BLOCK_M", "BLOCK_N", "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
            }
        return self.measure(job, lambda q, k, v: self.compiled(q, k, v, block_mask=mask, **more))

    def flex_mask(self, job):
        """As create_block_mask makes it: stored blocks are kept whole, and in those FlexAttention tests no
        element."""
        from torch.nn.attention.flex_attention import BlockMask, create_block_mask

        torch, block = self.torch, job["block"]
        if not block:
            return create_block_mask(
                lambda b, h, i, j: near(job, i, j), None, None, job["m"], job["n"], device=self.device
            )
        columns = job["n"] // block
        index = {"device": self.device, "dtype": torch.int32}
        counts = torch.tensor([[[len(row) for row in job["blocks"]]]], **index)
        lists = torch.tensor(
            [[[row + sorted(set(range(columns)) - set(row)) for row in job["blocks"]]]], **index
        )
        return BlockMask.from_kv_blocks(
            torch.zeros_like(counts),
            torch.zeros_like(lists),
            counts,
            lists,
            BLOCK_SIZE=block,
            mask_mod=self.mask_mod(job),
        )

    def mask_mod(self, job):
        """The same function for all masks of one shape: another one would be compiled anew."""
        block, key = job["block"], (job["m"], job["n"], job["block"])
        if key not in self.mods:
            grid = self.grid(job)
            self.mods[key] = grid, lambda b, h, i, j: grid[i // block, j // block]
        self.mods[key][0].copy_(self.grid(job))
        return self.mods[key][1]

    def grid(self, job):
        """Which blocks are stored."""
        grid = self.torch.zeros(
            len(job["blocks"]), job["n"] // job["block"], device=self.device, dtype=self.torch.bool
        )
        for at, columns in enumerate(job["blocks"]):
            grid[at, columns] = True
        return grid

    # ---- is it right? ----

    def error(self, job, q, k, v, out):
        """The largest difference from plain arithmetic in the last rows of the last head, beside the largest
        value."""
        torch, rows = self.torch, min(LOOKED_AT, job["m"])
        with torch.no_grad():
            keep = self.kept(job, rows)
            scores = (q[-1, -1, -rows:].float() @ k[-1, -1].float().t()) / job["dim"] ** 0.5
            weights = torch.softmax(scores.masked_fill(~keep, -torch.inf), dim=-1).nan_to_num(0)
            expected = weights @ v[-1, -1].float()
            return (
                (out[-1, -1, -rows:].float() - expected).abs().max() / expected.abs().max().clamp_min(1e-6)
            ).item()

    def kept(self, job, rows):
        torch = self.torch
        i = torch.arange(job["m"] - rows, job["m"], device=self.device)[:, None]
        j = torch.arange(job["n"], device=self.device)[None, :]
        keep = near(job, i, j) & (j >= 0)
        if job["block"]:
            keep = keep & self.grid(job)[i // job["block"], j // job["block"]]
        return keep.expand(rows, job["n"])

    def dense_rate(self):
        """Operations a second of a dense product, the larger of two sizes."""
        rates = []
        for side in (4096, 8192):
            a, b = self.dense(side, side, "f16"), self.dense(side, side, "f16")
            out = self.torch.empty_like(a)
            rates.append(2.0 * side**3 / self.seconds(lambda: self.torch.mm(a, b, out=out), 7))
        return max(rates)


def near(job, i, j):
    """Causal and window, by the key at which a query stands."""
    at = i + job["n"] - job["m"]
    keep = j < job["n"]
    if job["causal"]:
        keep = keep & (j <= at)
    if job["window"]:
        keep = keep & (j - at < job["window"]) & (at - j < job["window"])
    return keep


def refusal(name, error, warned):
    """Why a rival did not run. SDPA raises `No available kernel`; the warning behind `... kernel not used
    because:` has the reason."""
    said = [str(w.message).split(" (Triggered")[0].strip() for w in warned]
    for heading, reason in zip(said, said[1:]):
        if heading.lower().startswith(SAID_OF.get(name, " ")) and heading.endswith("not used because:"):
            return reason[:200]
    return ((str(error).splitlines() or [""])[0] or type(error).__name__)[:200]


def main():
    with open(sys.argv[1]) as f:
        jobs = json.load(f)
    deadline, bench = time.time() + float(sys.argv[2]), Bench()
    torch = bench.torch

    def say(**words):
        print(json.dumps(words), flush=True)

    import triton

    say(
        versions={
            "torch": torch.__version__,
            "triton": triton.__version__,
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
        }
    )
    say(copy_rate=bench.copy_rate())
    say(dense_rate=bench.dense_rate())
    tasks = [(job, name) for job in jobs if "sdpa" in job["rivals"] for name in BACKENDS]
    # last: each shape is compiled for seconds
    tasks += [(job, "flex_attention") for job in jobs if "flex" in job["rivals"]]
    for job, name in tasks:
        if time.time() > deadline:
            say(id=job["id"], rival=name, seconds=None, message="no time left")
            continue
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = bench.flex(job) if name == "flex_attention" else bench.sdpa(job, name)
            except Exception as error:
                found = {"seconds": None, "message": refusal(name, error, warned)}
        say(id=job["id"], rival=name, **found)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
