"""What only a GPU shows: streams, graphs, devices, torch's allocator, CuPy."""

import gc

import numpy as np
import pytest
from conftest import OnlyDlpack, agreeing_ranks, random_bsr, tensors_close

import sparse_autotune as sa
from sparse_autotune import _abi

torch = pytest.importorskip("torch")
from test_dynamic import Asked, Case

pytestmark = pytest.mark.cuda


def problem(size=512, block=64, n=256, dtype=torch.float16, seed=0):
    row_ptr, col_idx, values, dense = random_bsr(seed, size, size, (block, block), 0.3, np.float32)
    a = sa.BsrMatrix(row_ptr, col_idx, torch.tensor(values).cuda().to(dtype), (size, size))
    return a, torch.tensor(dense).cuda().to(dtype), torch.randn(size, n, device="cuda").to(dtype)


def close(got, expected, tolerance=2e-2):
    torch.testing.assert_close(got.float(), expected.float(), rtol=tolerance, atol=tolerance * 20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 48])
def test_every_dtype_and_block(dtype, block):
    a, dense, b = problem(384, block, 96, dtype)
    for m, d in ((a, dense), (a.T, dense.T)):
        for _ in range(2):
            close(m @ b, d @ b, 5e-2 if dtype == torch.bfloat16 else 2e-2)
            close(b.T @ m, b.T @ d, 5e-2 if dtype == torch.bfloat16 else 2e-2)
    s = sa.sampled_matmul(b, b.T, a)
    kept = a.with_values(torch.ones_like(a.values)).to_dense()
    close(s.to_dense(), (b @ b.T) * kept, 5e-2 if dtype == torch.bfloat16 else 2e-2)


def test_tuned_products_are_right():
    a, dense, b = problem()
    with sa.set_effort("quick"):
        close(a @ b, dense @ b)
        race = sa.benchmark(a, b, fresh=False)
    assert race.best.verdict == "ok" and not [r for r in race if r.verdict == "wrong"]


def test_work_goes_onto_the_current_stream():
    a, dense, b = problem()
    a @ b
    side = torch.cuda.Stream()
    wait = torch.randn(4096, 4096, device="cuda")
    with torch.cuda.stream(side):
        for _ in range(20):
            wait = wait @ wait * 1e-3
        late = b * 0 + 1  # ready only when all of the above is
        for _ in range(3):
            c = a @ late
    torch.cuda.current_stream().wait_stream(side)
    close(c, dense @ torch.ones_like(b))


def test_two_streams_do_not_disturb_each_other():
    a, dense, b = problem(1024, 64, 512)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(60):
        with torch.cuda.stream(streams[i % 3]):
            results.append(a @ b)
    torch.cuda.synchronize()
    expected = dense @ b
    for c in results:
        close(c, expected)
        assert torch.equal(c, results[0])


@pytest.mark.parametrize("warm", [True, False])
def test_products_are_captured_into_a_graph(warm):
    a, dense, b = problem(seed=3 + warm)
    if warm:
        with sa.set_effort("quick"):
            a @ b
    effort = "quick" if warm else "cached"
    graph = torch.cuda.CUDAGraph()
    with sa.set_effort(effort), torch.no_grad(), torch.cuda.graph(graph):
        c = a @ b
        d = sa.matmul(c.T, a, activation="relu")
    for factor in (1, 2):
        b.copy_(torch.randn_like(b) * factor)
        graph.replay()
        torch.cuda.synchronize()
        close(c, dense @ b)
        close(d, ((dense @ b).T.float() @ dense.float()).relu(), 5e-2)
    values = a.values
    del a
    gc.collect()
    torch.cuda.synchronize()
    values.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (c == 0).all()


def test_a_training_step_is_captured_into_a_graph():
    layer = sa.SparseLinear(256, 256, block=64, density=0.5, device="cuda")
    x = torch.randn(128, 256, device="cuda")

    def step():
        layer.zero_grad(set_to_none=False)
        layer(x).square().sum().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    got = layer.values.grad.clone()
    step()
    close(got, layer.values.grad)


@pytest.mark.slow
@pytest.mark.parametrize(
    "effort", ["off", "quick"]
)  # a race in the warm-up allocates, and its plan keeps what it needs
def test_compile_with_cuda_graphs(effort):
    model = torch.nn.Sequential(
        sa.SparseLinear(256, 256, 64, 0.5, device="cuda"),
        torch.nn.ReLU(),
        sa.SparseLinear(256, 128, 64, 0.5, device="cuda"),
    ).half()
    compiled = torch.compile(model, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad(), sa.set_effort(effort):
        for _ in range(4):
            x = torch.randn(64, 256, device="cuda").half()
            close(compiled(x), model(x))


@pytest.mark.slow
def test_training_compiled_with_cuda_graphs():
    layer = sa.SparseLinear(256, 256, 64, 0.5, device="cuda").half()
    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        x = torch.randn(64, 256, device="cuda").half().requires_grad_()
        grads = []
        for module in (compiled, layer):
            torch.compiler.cudagraph_mark_step_begin()
            layer.zero_grad()  # gradients are the graph's own memory: the next step writes over it
            x.grad = None
            module(x).float().square().sum().backward()
            grads.append((layer.values.grad.clone(), x.grad.clone()))
        for got, expected in zip(*grads):
            close(got, expected, 5e-2)


def test_what_stays_is_not_in_the_caller_s_memory_pool():
    a, dense, b = problem(1024, 32, 64, seed=6)
    expected = dense @ b
    fresh = problem(1024, 32, 64, seed=7)[0]
    index = [torch.tensor(i, device="cuda") for i in (fresh.row_ptr, fresh.col_idx)]
    there = sa.BsrMatrix(fresh.row_ptr, fresh.col_idx, fresh.values.cpu(), fresh.shape)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool), sa.set_effort("quick"):
        c = a @ b
        sa.sampled_matmul(b, b.T, a)
        # its pattern is new, as in a compiled backward pass
        torch.ops.sparse_autotune.sampled(b, b.T, *index, fresh.shape, fresh.block)
        sa.sampled_matmul(b, b.T, there)
    close(c, expected)
    del c
    gc.collect()
    torch.cuda.synchronize()
    assert pool.snapshot() and not [
        x for segment in pool.snapshot() for x in segment["blocks"] if x["state"].startswith("active")
    ]


def test_workspace_comes_from_torch():
    a, _, b = problem(1024, 32, 64, seed=5)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    with sa.set_effort("quick"):
        a @ b
    assert torch.cuda.memory_stats()["allocation.all.allocated"] > before + 2


def test_operands_elsewhere_are_refused():
    a, _, b = problem()
    for words, call in (
        ("B on cpu", lambda: a @ b.cpu()),
        ("A is on cpu", lambda: a.to("cpu") @ b),
        ("bias is on cpu", lambda: sa.matmul(a, b, bias=torch.zeros(512).half())),
        ("out is on cpu", lambda: sa.matmul(a, b, out=torch.empty(512, 256).half())),
        ("B", lambda: a @ np.ones((512, 2), np.float16)),
        ("device", lambda: a.to("cuda:99")),
    ):
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        assert words in str(caught.value)
    with pytest.raises(ValueError, match="one device"):
        a.requires_grad_() @ b.cpu()


def test_what_a_gpu_is():
    info = sa.device_info("cuda")
    assert info["backend"] == "cuda" and info["multiprocessors"] >= 1 and "threads" not in info
    a, _, b = problem()
    race = sa.benchmark(a, b, fresh=False)
    assert race.device["multiprocessors"] == info["multiprocessors"] and "threads" not in race.device


def test_matrices_move_between_devices():
    *parts, dense = random_bsr(0, 96, 64, (16, 16), 0.5)
    a = sa.BsrMatrix(*parts, (96, 64)).to("cuda")
    assert a._torch and a.device.type == "cuda"
    b = torch.randn(64, 8, device="cuda")
    close(a @ b, torch.tensor(dense).cuda() @ b)
    close((a.to("cpu") @ b.cpu()), torch.tensor(dense) @ b.cpu())


def test_float32_follows_torch_s_tf32():
    a, dense, b = problem(256, 64, 64, torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for allowed in (False, True, False):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            expected = dense.double() @ b.double()
            assert allowed or (a @ b - expected).abs().max() < 1e-3
            for needs_grad in (False, True):  # what is said beside the call counts for more
                said = sa.matmul(a, b.clone().requires_grad_(needs_grad), allow_tf32=False)
                assert (said - expected).abs().max() < 1e-3
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_cupy_arrays_give_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    *parts, dense = random_bsr(0, 96, 64, (16, 16), 0.5)
    row_ptr, col_idx, values = parts
    a = sa.BsrMatrix(row_ptr, col_idx, cupy.asarray(values), (96, 64))
    b = cupy.asarray(np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32))
    c = a @ b
    assert isinstance(c, cupy.ndarray)
    np.testing.assert_allclose(c.get(), dense @ b.get(), rtol=1e-3, atol=1e-3)
    with cupy.cuda.Stream() as stream:
        d = a @ (b * 2)
        stream.synchronize()
    np.testing.assert_allclose(d.get(), 2 * dense @ b.get(), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(
        cupy.asnumpy(sa.matmul(cupy.ones((3, 96), cupy.float32), a)),
        np.ones((3, 96)) @ dense,
        rtol=1e-3,
        atol=1e-3,
    )
    np.testing.assert_allclose(a.to_dense().get(), dense)
    out = cupy.empty((96, 8), cupy.float32)
    assert sa.matmul(a, b, out=out) is out


def test_a_function_of_torch_may_race():
    def dense(call):
        br, bc = call.block
        full = torch.zeros(call.shape, dtype=call.values.dtype, device=call.values.device)
        rows = torch.repeat_interleave(
            torch.arange(len(call.row_ptr) - 1, device=full.device),
            call.row_ptr.diff(),
            output_size=len(call.col_idx),
        )
        full.view(full.shape[0] // br, br, full.shape[1] // bc, bc).permute(0, 2, 1, 3)[
            rows, call.col_idx.long()
        ] = call.values
        call.out.copy_(full @ call.b)

    sa.register_variant(
        dense,
        name="cuda_matmul_f32_any_python_dense",
        backend="cuda",
        dense=True,
        supports=lambda p: p["plain"] and p["m"] % p["block"][0] == 0 and p["k"] % p["block"][1] == 0,
    )
    a, _, b = problem(256, 64, 64, torch.float32)
    race = sa.benchmark(a, b, only="cuda_matmul_f32_any_python_dense")
    assert race[0].verdict == "ok", race[0].message


def test_dlpack_arrays_on_the_gpu():
    a, dense, b = problem(256, 64, 64, torch.float32)
    torch.cuda.synchronize()
    c = sa.matmul(a, OnlyDlpack(b))
    torch.cuda.synchronize()
    close(torch.as_tensor(c, device="cuda"), dense @ b)


# ---- indices that change ----


class OnGpu:
    """A case of test_dynamic with copies of its indices, and operands, on the GPU."""

    def __init__(self, dtype=torch.float32, **words):
        self.case = Case(np.random.default_rng(), dtype, **words)
        self.row_ptr, self.col_idx = self.case.row_ptr.cuda(), self.case.col_idx.cuda()
        self.values = torch.empty(self.case.capacity, *self.case.block, dtype=dtype, device="cuda")
        self.b = torch.randn(self.case.shape[1], 32, device="cuda").to(dtype)
        self.x, self.y = (torch.randn(n, 16, device="cuda").to(dtype) for n in self.case.shape)

    def draw(self, hostile=False):
        self.case.draw(hostile)
        self.row_ptr.copy_(self.case.row_ptr)
        self.col_idx.copy_(self.case.col_idx)
        self.values.copy_(self.case.values())

    def matrix(self):
        return sa.BsrMatrix.dynamic(self.row_ptr, self.col_idx, self.values, self.case.shape)

    def results(self):
        a = self.matrix()
        return a @ self.b, a.T @ self.x, sa.sampled_matmul(self.x, self.y.T, a).values

    def check(self, results):
        d = self.case.dense(self.values.cpu()).double()
        samples = self.case.samples(self.x.cpu().double() @ self.y.cpu().double().T)
        for got, expected in zip(results, (d @ self.b.cpu().double(), d.T @ self.x.cpu().double(), samples)):
            tensors_close(got.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("effort", ["off", "quick"])
def test_a_graph_that_was_captured_once_follows_masks_that_change(dtype, effort):
    at = OnGpu(dtype, grid=(8, 8), block=(64, 64) if dtype == torch.float16 else (16, 16), capacity=40)
    at.draw()
    with sa.set_effort(effort), torch.no_grad():
        at.check(at.results())  # tuned before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = at.results()
    faults = 0
    for replay in range(60):
        at.draw(hostile=replay % 3 == 2)
        for t in results:
            t.fill_(torch.nan)
        graph.replay()
        at.check(results)
        faults += at.case.faulty
        found = 0
        for _ in range(3 if at.case.faulty else 1):  # one of each of the three plans
            try:
                at.matrix().check_indices()
            except ValueError as error:
                assert error.status in ("SAT_BAD_ROW_PTR", "SAT_COLUMN_RANGE", "SAT_COLUMN_ORDER")
                found += 1
        assert found == (3 if at.case.faulty else 0)
        at.matrix().check_indices()
    assert faults > 5


def test_one_product_reports_a_fault_and_results_are_not_lost():
    at = OnGpu(grid=(4, 4), block=(16, 16), capacity=8)
    at.draw()
    a = at.matrix()

    def faults():
        try:
            a @ at.b
        except ValueError as error:
            assert "col_idx[0] is -1; expected 0 to 3, in this run or an earlier one" in str(error)
            return 1
        return 0

    assert faults() == 0
    a.col_idx[:] = -1
    a.row_ptr[1:] = 1
    first = faults()  # where the device is quick
    torch.cuda.synchronize()
    at.draw()
    assert first + faults() == 1
    at.check([a @ at.b])
    a.check_indices()


def test_blocks_are_chosen_inside_a_graph():
    q, k = torch.randn(2, 512, 32, device="cuda"), torch.randn(2, 512, 32, device="cuda")
    values, b = torch.randn(2 * 8 * 3, 64, 64, device="cuda"), torch.randn(512, 64, device="cuda")

    def step():
        index = sa.choose_blocks(sa.block_scores(q, k, 64), 3)
        return sa.matmul(sa.BsrMatrix.dynamic(*index, values, (1024, 512)), b), *index

    with torch.no_grad():
        step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            c, row_ptr, col_idx = step()
    for _ in range(10):
        q.normal_(), k.normal_(), values.normal_()
        graph.replay()
        torch.cuda.synchronize()
        rows = col_idx.view(16, 3)
        assert (rows.diff(dim=1) > 0).all() and (rows == torch.arange(16, device="cuda")[:, None] % 8).any(
            1
        ).all()
        still = sa.BsrMatrix(row_ptr.cpu(), col_idx.cpu(), values, (1024, 512))
        tensors_close(c, still.to_dense().double() @ b.double())


def test_a_training_step_with_a_mask_that_changes_is_captured():
    at = OnGpu(grid=(4, 6), block=(32, 32), capacity=12)
    at.draw()
    at.values.nan_to_num_(0.0).requires_grad_()

    def step():
        at.values.grad = None
        (at.matrix() @ at.b).square().sum().backward()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    at.values.grad = None
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        with torch.no_grad():
            at.draw()
            at.values.nan_to_num_(0.0)
        graph.replay()
        leaf = at.values.detach().cpu().double().requires_grad_()
        (at.case.dense(leaf) @ at.b.cpu().double()).square().sum().backward()
        close(at.values.grad.cpu(), leaf.grad)


def test_new_masks_wait_for_nothing_and_make_no_plan(monkeypatch):
    at = OnGpu(grid=(8, 8), block=(32, 32), capacity=30)
    masks = []
    for _ in range(6):
        at.draw()
        masks.append((at.row_ptr.clone(), at.col_idx.clone(), at.case.dense(at.values.cpu())))
    values, scores = at.values.nan_to_num(0.0).requires_grad_(), torch.randn(8, 8, device="cuda")

    def step(row_ptr, col_idx):
        a = sa.BsrMatrix.dynamic(row_ptr.clone(), col_idx.clone(), values, at.case.shape)
        c = a @ at.b
        c.square().sum().backward()
        chosen = sa.BsrMatrix.dynamic(*sa.choose_blocks(scores, 3), values[:24].detach(), (256, 256))
        return c.detach(), chosen @ at.b.new_ones(256, 32)

    for mask in masks[:3]:
        step(*mask[:2])
    lib = Asked(_abi.lib)
    monkeypatch.setattr(_abi, "lib", lib)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [step(*mask[:2])[0] for mask in masks]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert set(lib.names) <= {"sat_run"}
    for c, (_, _, d) in zip(results, masks):
        assert c.shape == (at.case.shape[0], 32) and d.shape == at.case.shape


def test_a_dynamic_matrix_moves_with_copies_of_its_indices():
    at = OnGpu(grid=(4, 4), block=(16, 16), capacity=8)
    at.draw()
    there = at.matrix().to("cpu")
    assert there.is_dynamic and not there.row_ptr.is_cuda and there.to("cuda").col_idx.is_cuda
    d = at.case.dense(at.values.cpu())
    at.draw()
    tensors_close(there @ at.b.cpu(), d.double() @ at.b.cpu().double())
    with pytest.raises(ValueError, match="row_ptr is on cpu and the values on cuda:0"):
        sa.BsrMatrix.dynamic(at.row_ptr.cpu(), at.col_idx, at.values, at.case.shape)


@pytest.mark.slow
def test_a_mask_that_changes_under_compile_with_cuda_graphs():
    at = OnGpu(grid=(4, 4), block=(32, 32), capacity=10)

    def step(row_ptr, col_idx, values, b):
        return sa.matmul(sa.BsrMatrix.dynamic(row_ptr, col_idx, values, at.case.shape), b)

    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(6):
            at.draw()
            at.check([compiled(at.row_ptr, at.col_idx, at.values, at.b)])


def test_four_ranks_on_one_gpu_agree_and_survive_one_that_is_killed(tmp_path):
    agreeing_ranks(tmp_path, 4, "cuda", 4)
