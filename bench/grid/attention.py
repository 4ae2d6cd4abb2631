"""Attention of a grid: operands, the call as a user of the Python package writes it, and torch's own."""

import draw
import numpy as np
import torch
import verify

import sparse_autotune as sa

SDPA = torch.nn.functional.scaled_dot_product_attention
BACKENDS = {
    "sdpa_cudnn": "CUDNN_ATTENTION",
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_math": "MATH",
}


class Attention:
    """One problem with its operands on a device."""

    def __init__(self, p, grid, seed, device):
        self.p, self.device, self.cuda = p, device, device != "cpu"
        number = draw.generator_seed(grid, seed, p.index)
        self.rng = np.random.default_rng(number)
        self.generator = torch.Generator(device=device).manual_seed(number)
        self.dtype = verify.kinds(torch)[p.dtype]
        self.q, self.grad = self.heads(p.heads, p.queries), self.heads(p.heads, p.queries)
        self.k, self.v = self.heads(p.kv_heads, p.keys), self.heads(p.kv_heads, p.keys)
        for x in (self.q, self.k, self.v):
            x.requires_grad_(p.backward)
        self.kept = draw.draw_mask(np, self.rng, p) if p.block else None
        self.mask = sa.AttentionMask.from_blocks(self.kept, (p.queries, p.keys), p.block) if p.block else None
        # lengths without a mask share one pattern, which may have plans of other problems
        self.pattern = self.mask._pattern if p.block else sa._attention.dense_pattern(p.queries, p.keys)
        self.before, self.cached = set(self.pattern._first), {}

    def heads(self, heads, rows):
        p = self.p
        by_rows = p.layout == "rows"
        shape = (p.batch, rows, heads, p.size) if by_rows else (p.batch, heads, rows, p.size)
        made = torch.randn(*shape, generator=self.generator, device=self.device).to(self.dtype)
        return made.transpose(1, 2) if by_rows else made

    def change_values(self):
        """New ones, where a call that remembered the old ones would be found out."""
        with torch.no_grad():
            self.v.copy_(torch.randn(self.v.shape, generator=self.generator, device=self.device))

    # ---- ours ----

    def step(self, forward):
        """The call, and where gradients are asked for those as autograd makes them."""
        q, k, v, grad = self.q, self.k, self.v, self.grad
        if not self.p.backward:
            return lambda: forward(q, k, v)
        return lambda: torch.autograd.grad(forward(q, k, v), (q, k, v), grad)

    def ours(self):
        mask, causal = self.mask, self.p.causal
        return self.step(lambda q, k, v: sa.attention(q, k, v, mask, causal=causal))

    def elsewhere(self):
        """Other results to look at: of a call with gradients its output, which `ours` does not return."""
        if not self.p.backward:
            return []
        out = sa.attention(self.q, self.k, self.v, self.mask, causal=self.p.causal)
        return [(out.detach(), self.expected_output())]

    def variants(self):
        plans = self.pattern._first
        new = [plans[key] for key in plans if key not in self.before] or plans.values()
        return sorted({plan.info().variant.decode() for plan in new})

    # ---- what is right ----

    def dense_mask(self):
        """Booleans (queries, keys); None: all are kept."""
        return self.keep("mask", self.make_mask)

    def make_mask(self):
        p, keep = self.p, None
        if p.block:
            kept = torch.from_numpy(self.kept).to(self.device)
            keep = kept.repeat_interleave(p.block, 0).repeat_interleave(p.block, 1)
            keep = keep[: p.queries, : p.keys].contiguous()
        if p.causal:
            causal = torch.ones(p.queries, p.keys, device=self.device, dtype=torch.bool).tril()
            keep = causal if keep is None else keep & causal
        return keep

    def keep(self, name, make):
        if name not in self.cached:
            self.cached[name] = make()
        return self.cached[name]

    def rows(self):
        count = min(verify.LOOKED_AT, self.p.queries)
        return torch.from_numpy(np.sort(self.rng.choice(self.p.queries, count, replace=False))).to(
            self.device
        )

    def expected(self):
        p, keep = self.p, self.dense_mask()
        with torch.no_grad():
            if p.backward:
                return verify.backward(torch, p, self.q, self.k, self.v, self.grad, keep, self.rows())
            return self.expected_output()

    def expected_output(self):
        p = self.p
        with torch.no_grad():
            places = [
                (int(self.rng.integers(p.batch)), int(self.rng.integers(p.heads)), self.rows())
                for _ in range(3)
            ]
            return verify.forward(torch, p, self.q, self.k, self.v, self.dense_mask(), places)

    # ---- floor ----

    def work(self):
        p = self.p
        pairs = self.dense_mask().sum().item() if p.block or p.causal else p.queries * p.keys
        operations = 4.0 * p.batch * p.heads * pairs * p.size * (3.5 if p.backward else 1)
        reads = self.q.element_size() * p.batch * p.size
        rows = 2 * p.heads * p.queries + 2 * p.kv_heads * p.keys
        return operations, float(reads * rows * (2 if p.backward else 1))

    # ---- peers ----

    def peers(self):
        names = ("sdpa_cudnn", "sdpa_flash", "sdpa_efficient") if self.cuda else ("sdpa", "sdpa_math")
        found = {name: (lambda name=name: self.sdpa(name)) for name in names}
        if self.p.flex:
            found["flex_attention"] = self.flex
        return found

    def last_peers(self):
        """Those that are asked where all others have refused: torch's own choice, plain arithmetic."""
        return {"sdpa": lambda: self.sdpa("sdpa")} if self.cuda else {}

    def sdpa(self, name):
        """A mask of blocks is given as booleans, which is what torch takes."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        words = {"is_causal": self.p.causal}
        if self.p.block:
            words = {"attn_mask": self.dense_mask()}
        if self.p.heads != self.p.kv_heads:
            words["enable_gqa"] = True
        if name == "sdpa":
            return self.step(lambda q, k, v: SDPA(q, k, v, **words))
        backend = getattr(SDPBackend, BACKENDS[name])
        step = self.step(lambda q, k, v: SDPA(q, k, v, **words))

        def call():
            with sdpa_kernel([backend]):
                return step()

        return call

    def flex(self):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        p, kept = self.p, torch.from_numpy(self.kept).to(self.device)
        block, causal = p.block, p.causal

        def keeps(b, h, i, j):
            found = kept[i // block, j // block]
            return found & (i >= j) if causal else found

        torch._dynamo.reset()  # or shapes that were compiled before count against this one
        mask = create_block_mask(keeps, None, None, p.queries, p.keys, device=self.device)
        compiled = torch.compile(flex_attention, dynamic=False)
        return self.step(lambda q, k, v: compiled(q, k, v, block_mask=mask))

    def least_seconds(self, name):
        """torch's plain arithmetic writes and reads all scores several times."""
        if name != "sdpa_math":
            return 0.0
        p = self.p
        return 4.0 * p.batch * p.heads * p.queries * p.keys * p.size / 5e11

    def compare(self, expected, name, got):
        return max(e.excess(got, True) for e in expected) / verify.PEER
