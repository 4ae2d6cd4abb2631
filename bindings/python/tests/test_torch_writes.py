"""Index tensors that are written to in ways that torch does not count: by collectives, through DLPack and
NumPy, by .data."""

import gc
import warnings
import weakref

import numpy as np
import pytest
from conftest import run_program

import sparse_autotune as sa

torch = pytest.importorskip("torch")

from sparse_autotune._torch import patterns

WRITES = {
    "numpy": lambda t, new: np.copyto(t.numpy(), new.numpy()),
    "dlpack": lambda t, new: np.copyto(np.from_dlpack(t), new.numpy()),
    "torch by dlpack": lambda t, new: torch.from_dlpack(torch.utils.dlpack.to_dlpack(t)).copy_(new),
    "data": lambda t, new: t.data.copy_(new),
}


def two_layers(**words):
    """Of one size, with as many blocks in each row, at other places."""
    torch.manual_seed(0)
    one, other = (sa.SparseLinear(64, 48, block=8, density=0.5, **words) for _ in range(2))
    assert torch.equal(one.row_ptr, other.row_ptr) and not torch.equal(one.col_idx, other.col_idx)
    with torch.no_grad():
        other.values.copy_(one.values)
        other.bias.copy_(one.bias)
    return one, other


def operator(layer):
    return lambda x: torch.ops.sparse_autotune.matmul(
        layer.values, layer.row_ptr, layer.col_idx, x, layer.bias, [48, 64], True, True
    )


CALLS = {
    "layer": lambda layer: layer,
    "without gradients": lambda layer: torch.no_grad()(layer),
    "operator": operator,
    "matrix": lambda layer: lambda x: sa.matmul(x, layer.matrix().T, bias=layer.bias),
    "compiled": lambda layer: torch.compile(layer, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("way", CALLS)
def test_a_write_that_torch_does_not_count_is_seen_by_the_next_call(way, how):
    layer, other = two_layers()
    call, x = CALLS[way](layer), torch.randn(3, 64)
    torch.testing.assert_close(call(x), layer.to_dense()(x))
    version = layer.col_idx._version
    WRITES[how](layer.col_idx, other.col_idx)
    assert layer.col_idx._version == version
    for _ in range(2):
        torch.testing.assert_close(call(x), other(x))


def test_operators_see_it_in_a_sampled_product_and_in_a_mask():
    layer, other = two_layers()
    x, y = torch.randn(48, 5), torch.randn(5, 64)

    def sampled():
        return torch.ops.sparse_autotune.sampled(x, y, layer.row_ptr, layer.col_idx, [48, 64], [8, 8])

    before = sampled()
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    expected = sa.sampled_matmul(x, y, other.matrix().detach()).values
    assert not torch.equal(before, expected)
    torch.testing.assert_close(sampled(), expected)

    q, k, v = torch.randn(3, 1, 2, 32, 8)
    masks = [sa.AttentionMask([0, 1, 2], [first, 1 - first], (32, 32), 16) for first in (0, 1)]
    index, new = (torch.tensor(np.concatenate([m.row_ptr, m.col_idx])) for m in masks)
    for mask in masks:
        torch.testing.assert_close(
            torch.ops.sparse_autotune.attention(q, k, v, index, [32, 32, 16, 16, 2, 0])[0],
            sa.attention(q, k, v, mask),
        )
        WRITES["numpy"](index, new)


def test_indices_of_any_whole_dtype_and_with_gaps_are_compared():
    layer, other = two_layers()
    x = torch.randn(3, 64)
    for dtypes in ((torch.int32, torch.int64), (torch.int16, torch.uint8), (torch.int64, torch.int64)):
        for step in (1, 2):
            rows, cols = (
                torch.zeros(step * len(t), dtype=d)[::step].copy_(t)
                for t, d in zip((layer.row_ptr, layer.col_idx), dtypes)
            )
            for one in (layer, other, layer):
                WRITES["data"](cols, one.col_idx)
                for _ in range(2):
                    torch.testing.assert_close(
                        torch.ops.sparse_autotune.matmul(
                            layer.values, rows, cols, x, layer.bias, [48, 64], True, True
                        ),
                        one(x),
                    )


def test_a_backward_pass_does_not_take_other_indices_than_its_forward_pass():
    layer, other = two_layers()
    x = torch.randn(3, 64, requires_grad=True)
    result = operator(layer)(x)
    kept = layer(x)
    (expected,) = torch.autograd.grad(layer.to_dense()(x).sum(), x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    with pytest.raises(RuntimeError, match="changed in place after the call"):
        result.sum().backward()
    # a layer's keeps the pattern itself
    torch.testing.assert_close(torch.autograd.grad(kept.sum(), x)[0], expected)


OTHERWISE = """
import sys, torch
if sys.argv[1] == "no extension":
    sys.modules["sparse_autotune._fast"] = None
else:
    torch.Tensor.__dlpack_c_exchange_api__ = None  # as before 2.10
import sparse_autotune as sa
sa.set_effort("off")
torch.manual_seed(0)
layer, other = (sa.SparseLinear(64, 48, block=8, density=0.5, bias=False) for _ in range(2))
other.values = layer.values
x = torch.randn(3, 64)
before = layer(x)
layer.col_idx.numpy()[:] = other.col_idx.numpy()
assert not torch.equal(before, other(x))
for _ in range(2):
    torch.testing.assert_close(layer(x), other(x))
pattern = layer.pattern()
assert layer.pattern() is pattern
assert sys.argv[1] == "no extension" or sa._quick._fast.holds(layer.col_idx, pattern.col_idx) is True
print("fine")
"""


@pytest.mark.parametrize("what", ["no extension", "no exchange functions"])
def test_it_is_seen_without_what_makes_it_quick(what):
    run = run_program(OTHERWISE, what)
    assert run.stdout.strip() == "fine", run.stderr


COLLECTIVES = """
import sys, torch, torch.distributed as dist
import sparse_autotune as sa
rank, file = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
sa.set_effort("off")
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
x = torch.arange(192.0).view(3, 64) % 7

def layer(seed):
    torch.manual_seed(seed)
    return sa.SparseLinear(64, 48, block=8, density=0.5)

def check(one, call, what):
    got, fresh = call(x), layer(9)
    fresh.load_state_dict(one.state_dict())
    torch.testing.assert_close(got, fresh(x), msg=lambda m: f"{what}: {m}")

for what in ("broadcast", "recv"):
    one = layer(rank)
    one(x)
    before = one.col_idx.clone()
    for t in (one.values.detach(), one.col_idx):
        if what == "broadcast":
            dist.broadcast(t, 0)
        else:
            dist.send(t, 1) if rank == 0 else dist.recv(t, 0)
    assert rank == 0 or not torch.equal(before, one.col_idx)
    check(one, one, what)
one = layer(rank)
one(x)
wrapped = torch.nn.parallel.DistributedDataParallel(one)
check(one, wrapped, "DDP's first broadcast")
new = layer(7)
if rank == 0:
    one.load_state_dict(new.state_dict())
wrapped(x).sum().backward()  # brings the other rank the buffers
assert torch.equal(one.col_idx, new.col_idx)
check(one, wrapped, "DDP's broadcast before each call")
dist.destroy_process_group()
print("fine")
"""


@pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="torch without gloo",
)
def test_what_a_collective_brings_is_the_pattern(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        runs = list(
            pool.map(
                lambda rank: run_program(
                    COLLECTIVES, str(rank), str(tmp_path / "store"), GLOO_SOCKET_IFNAME="lo"
                ),
                range(2),
            )
        )
    assert [r.stdout.strip() for r in runs] == ["fine", "fine"], "\n".join(r.stderr for r in runs)


# ---- where the host cannot read the indices: a GPU's, or here those of which it is told so ----


@pytest.fixture
def far(monkeypatch):
    monkeypatch.setattr(patterns, "in_host_memory", lambda t: False)


@pytest.mark.parametrize("way", ["layer", "without gradients", "operator", "matrix"])
def test_far_away_a_late_finding_raises_once_and_then_the_new_indices_serve(way, far):
    layer, other = two_layers()
    call, x = CALLS[way](layer), torch.randn(3, 64)
    expected = other(x)
    call(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    with pytest.raises(RuntimeError, match="torch does not count.*increment_version"):
        for _ in range(patterns.CHECK_CALLS + 1):
            call(x)
    for _ in range(2 * patterns.CHECK_CALLS):
        torch.testing.assert_close(call(x), expected)


def test_far_away_a_sparse_tensor_s_indices_are_watched_too(far):
    layer, other = two_layers()
    x, matrix = torch.randn(64, 3), layer.matrix().detach().to_torch()
    expected = other.matrix().detach() @ x
    sa.matmul(matrix, x)
    WRITES["dlpack"](matrix.col_indices(), other.col_idx)
    with pytest.raises(RuntimeError, match="torch does not count"):
        for _ in range(patterns.CHECK_CALLS + 1):
            sa.matmul(matrix, x)
    for _ in range(2):
        torch.testing.assert_close(sa.matmul(matrix, x), expected)


def test_far_away_a_call_after_a_pause_is_looked_at(far, monkeypatch):
    monkeypatch.setattr(patterns, "CHECK_SECONDS", -1.0)
    layer, other = two_layers()
    x = torch.randn(3, 64)
    layer(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    layer(x)
    with pytest.raises(RuntimeError, match="torch does not count"):
        layer(x)


def test_far_away_a_write_that_is_told_is_followed_at_once(far):
    layer, other = two_layers()
    x = torch.randn(3, 64)
    for _ in range(patterns.CHECK_CALLS + 1):
        layer(x)
    expected = other(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    torch.autograd.graph.increment_version(layer.col_idx)
    for _ in range(2 * patterns.CHECK_CALLS):
        torch.testing.assert_close(layer(x), expected)


def test_far_away_writing_the_same_again_is_nobody_s_business(far):
    layer, _ = two_layers()
    x = torch.randn(3, 64)
    expected = layer(x)
    for _ in range(3 * patterns.CHECK_CALLS):
        WRITES["dlpack"](layer.col_idx, layer.col_idx.clone())
        torch.testing.assert_close(layer(x), expected)


def test_far_away_what_no_later_call_found_is_told_when_the_layer_goes(far, monkeypatch):
    monkeypatch.setattr(patterns, "CHECK_SECONDS", -1.0)
    layer, other = two_layers()
    x = torch.randn(3, 64)
    layer(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy = two_layers()[0]
        copy(x), copy(x)
        del copy
        gc.collect()
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    layer(x)
    with pytest.warns(RuntimeWarning, match="torch does not count"):
        key = patterns._index_key(layer.row_ptr, layer.col_idx, (48, 64), (8, 8))
        del layer
        gc.collect()
        patterns._patterns.drop(key)


@pytest.mark.parametrize("owner", ["layer", "sparse tensor"])
@pytest.mark.parametrize("calls", [1, 3])
def test_far_away_few_calls_after_a_write_are_told_of_when_the_owner_goes(owner, calls, far):
    layer, other = two_layers()
    x = torch.randn(3, 64)
    one = layer if owner == "layer" else layer.matrix().detach().to_torch()
    call = one if owner == "layer" else lambda x: sa.matmul(x, one)  # noqa: F821
    x = x if owner == "layer" else torch.randn(5, 48)
    indices = layer.col_idx if owner == "layer" else one.col_indices()
    call(x)
    WRITES["dlpack"](indices, other.col_idx)
    for _ in range(calls):
        call(x)
    with pytest.warns(RuntimeWarning, match="torch does not count.*no call has found") as told:
        del layer, one, call, indices
        gc.collect()
    assert len([w for w in told if w.category is RuntimeWarning]) == 1
    assert not patterns._pending and not patterns._parked


def test_far_away_writes_that_torch_counts_are_nobody_s_business_at_the_end(far):
    x = torch.randn(3, 64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for inference in (False, True):
            layer, other = two_layers()
            with torch.inference_mode(inference):
                layer(x)
                if inference:
                    # torch counts nothing for these
                    layer.row_ptr, layer.col_idx = (layer.row_ptr.clone(), layer.col_idx.clone())
                    layer(x)
                    layer.load_state_dict(other.state_dict())
                else:
                    layer.col_idx.copy_(other.col_idx)
            del layer
            gc.collect()
        layer, other = two_layers()
        layer(x)
        WRITES["dlpack"](layer.col_idx, other.col_idx)
        torch.autograd.graph.increment_version(layer.col_idx)
        del layer
        gc.collect()


def test_far_away_a_last_look_waits_for_a_mode_to_end(far):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        seen = ()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen = (*self.seen, func)
            return func(*args, **(kwargs or {}))

    layer, other = two_layers()
    x = torch.randn(3, 64)
    layer(x)
    other(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    with Mode() as mode, warnings.catch_warnings():
        warnings.simplefilter("error")
        del layer
        gc.collect()
    assert mode.seen == () and len(patterns._parked) == 1
    with pytest.warns(RuntimeWarning, match="torch does not count"):
        other(x)  # anybody's call
    assert not patterns._parked


class Count:
    """What a device writes behind its copies, which are not there yet."""

    def __init__(self):
        self.value, self.waited = np.zeros(1, np.int64), False

    def copy_(self, _count, non_blocking):
        assert non_blocking

    def numpy(self):
        return self.value

    def wait(self, _device):
        self.waited, self.value[0] = True, 1 << 40


def test_far_away_nobody_waits_for_a_last_look_before_the_program_ends(far, monkeypatch):
    count, init = Count(), patterns.Look.__init__

    def on_a_device(look, *arguments):
        init(look, *arguments)
        look._came = count

    monkeypatch.setattr(patterns.Look, "__init__", on_a_device)
    monkeypatch.setattr(torch.cuda, "synchronize", count.wait)
    layer, other = two_layers()
    x = torch.randn(3, 64)
    layer(x)
    other(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del layer
        gc.collect()
        other(x)
    assert len(patterns._pending) == 1 and not count.waited
    with pytest.warns(RuntimeWarning, match="torch does not count"):
        patterns._look_at_all()
    assert count.waited and not patterns._pending


ENDS = """
import sys, torch
import sparse_autotune as sa
from sparse_autotune._torch import patterns
patterns.in_host_memory = lambda t: False
sa.set_effort("off")

def main(write):
    torch.manual_seed(0)
    layer, other = (sa.SparseLinear(64, 48, block=8, density=0.5) for _ in range(2))
    x = torch.randn(3, 64)
    layer(x)
    if write:
        layer.col_idx.numpy()[:] = other.col_idx.numpy()
    layer(x)
    parts = layer.values, layer.row_ptr, layer.col_idx
    result = torch.ops.sparse_autotune.matmul(*parts, x, layer.bias, [48, 64], True, True)
    return layer, result

kept = main("write" in sys.argv[1])
if "function" in sys.argv[1]:
    del kept
print("fine")
"""


@pytest.mark.parametrize("how", ["write, kept", "write in a function", "nothing"])
def test_far_away_a_program_does_not_end_in_silence(how):
    run = run_program(ENDS, how)
    assert run.stdout.strip() == "fine", run.stderr
    assert run.stderr.count("RuntimeWarning") == ("write" in how), run.stderr


def test_far_away_inference_mode_changes_nothing(far):
    layer, other = two_layers()
    x = torch.randn(3, 64)
    for inference in (False, True, False):
        with torch.inference_mode(inference):
            for _ in range(patterns.CHECK_CALLS + 1):
                layer(x)
    WRITES["dlpack"](layer.col_idx, other.col_idx)
    with torch.inference_mode(), pytest.raises(RuntimeError, match="torch does not count"):
        for _ in range(patterns.CHECK_CALLS + 1):
            layer(x)


# ---- on a GPU ----


@pytest.mark.cuda
@pytest.mark.parametrize("way", CALLS)
def test_on_a_gpu_a_write_that_torch_does_not_count_raises_at_a_later_call(way):
    layer, other = two_layers(device="cuda")
    call, x = CALLS[way](layer), torch.randn(3, 64, device="cuda")
    expected = other(x)
    call(x)
    WRITES["torch by dlpack"](layer.col_idx, other.col_idx)
    with pytest.raises(RuntimeError, match="torch does not count"):
        for _ in range(patterns.CHECK_CALLS + 1):
            call(x)
            torch.cuda.synchronize()
    for _ in range(2 * patterns.CHECK_CALLS):
        torch.testing.assert_close(call(x), expected)


@pytest.mark.cuda
def test_on_a_gpu_a_sparse_tensor_s_indices_are_watched_too():
    layer, other = two_layers(device="cuda")
    x, matrix = torch.randn(64, 3, device="cuda"), layer.matrix().detach().to_torch()
    expected = other.matrix().detach() @ x
    sa.matmul(matrix, x)
    WRITES["torch by dlpack"](matrix.col_indices(), other.col_idx)
    with pytest.raises(RuntimeError, match="torch does not count"):
        for _ in range(patterns.CHECK_CALLS + 1):
            sa.matmul(matrix, x)
            torch.cuda.synchronize()
    torch.testing.assert_close(sa.matmul(matrix, x), expected)


@pytest.mark.cuda
def test_on_a_gpu_looking_does_not_wait():
    layer, _ = two_layers(device="cuda")
    x = torch.randn(3, 64, device="cuda")
    with torch.no_grad():
        expected = layer(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            results = [layer(x) for _ in range(3 * patterns.CHECK_CALLS)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(t.is_pinned() for t in layer._seen.seen._look.copies)
    assert all(torch.equal(r, expected) for r in results)


@pytest.mark.cuda
def test_on_a_gpu_a_graph_keeps_its_pattern_and_captures_no_look(monkeypatch):
    monkeypatch.setattr(patterns, "CHECK_CALLS", 1)
    layer, other = two_layers(device="cuda")
    x = torch.randn(3, 64, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        expected = layer(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            layer(x)
        torch.cuda.current_stream().wait_stream(side)
        for first in (True, False):  # with copies that are there, and with none yet
            if not first:
                layer._seen = None
                patterns._patterns._entries.clear()
                layer.pattern()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                y = layer(x)
            for _ in range(2):
                y.zero_()
                graph.replay()
                torch.cuda.synchronize()
                torch.testing.assert_close(y, expected)
        WRITES["torch by dlpack"](layer.col_idx, other.col_idx)
        graph.replay()
        torch.cuda.synchronize()
        torch.testing.assert_close(y, expected)
    with pytest.warns(RuntimeWarning, match="replays of CUDA graphs"):  # no call has seen the write
        del layer
        gc.collect()
        patterns._settle(wait=True)


def test_pinned_copies_do_not_go_during_a_capture(monkeypatch):
    capturing = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])

    def make_and_drop():
        look = patterns.Look((np.arange(3),), pinned=False)
        look._came = torch.zeros(1)  # as if its memory were pinned
        return weakref.ref(look.copies[0])

    copy = make_and_drop()
    assert copy() is not None
    capturing[0] = False
    make_and_drop()
    assert copy() is None and not patterns._captured


@pytest.mark.cuda
def test_on_a_gpu_few_calls_after_a_write_are_told_of_when_the_layer_goes():
    layer, other = two_layers(device="cuda")
    x = torch.randn(3, 64, device="cuda")
    with torch.no_grad():
        layer(x)
        WRITES["torch by dlpack"](layer.col_idx, other.col_idx)
        layer(x)
    with pytest.warns(RuntimeWarning, match="torch does not count"):
        torch.cuda.set_sync_debug_mode("error")  # it goes without a wait
        try:
            del layer
            gc.collect()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        patterns._settle(wait=True)


@pytest.mark.cuda
@pytest.mark.parametrize("how", ["write, kept", "write in a function", "nothing"])
def test_on_a_gpu_a_program_does_not_end_in_silence(how):
    there = ENDS.replace("patterns.in_host_memory = lambda t: False", "torch.set_default_device('cuda')")
    there = there.replace(
        "layer.col_idx.numpy()[:] = other.col_idx.numpy()",
        "torch.from_dlpack(torch.utils.dlpack.to_dlpack(layer.col_idx)).copy_(other.col_idx)",
    )
    run = run_program(there, how)
    assert run.stdout.strip() == "fine", run.stderr
    assert run.stderr.count("RuntimeWarning") == ("write" in how), run.stderr


@pytest.mark.cuda
def test_on_a_gpu_a_layer_that_goes_during_a_capture_does_not_end_it():
    layer, other = two_layers(device="cuda")
    gone, _ = two_layers(device="cuda")
    x = torch.randn(3, 64, device="cuda")
    side = torch.cuda.Stream()
    with torch.no_grad():
        gone(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            expected = layer(x)
        torch.cuda.current_stream().wait_stream(side)
        WRITES["torch by dlpack"](gone.col_idx, other.col_idx)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
            del gone
            gc.collect()
        graph.replay()
        torch.testing.assert_close(y, expected)
        with pytest.warns(RuntimeWarning, match="torch does not count"):
            layer(x)
            patterns._settle(wait=True)
