"""Races, tuning ahead of time, the cache, and variants in Python."""

import json

import numpy as np
import pytest
from conftest import close, random_bsr, run_program

import sparse_autotune as sa


def matrix(seed=0, size=64, block=16, dtype=np.float32):
    *parts, dense = random_bsr(seed, size, size, (block, block), 0.5, dtype)
    return sa.BsrMatrix(*parts, (size, size)), dense


def test_a_race_names_a_winner_and_prints():
    a, _ = matrix()
    race = sa.benchmark(a, np.ones((64, 8), np.float32))
    assert (
        race.best.verdict == "ok"
        and race[0] is race.best
        and race.best.seconds > 0
        and race.best.error < 1e-5
    )
    text = str(race)
    assert race.best.variant in text and "best:" in text and "64x8x64" in text
    assert "<table>" in race._repr_html_()
    again = json.loads(json.dumps(race.as_dict()))
    assert again["best"] == race.best.variant and again["problem"]["stored_blocks"] == a.stored_blocks
    assert {r["verdict"] for r in again["results"]} <= {"ok", "wrong", "error", "skipped", "memory"}


def test_a_race_shows_its_spread_and_says_when_the_machine_was_busy():
    race = sa.benchmark(matrix()[0], np.ones((64, 8), np.float32))
    assert 0 < race.best.least_seconds <= race.best.seconds and race.as_dict()["busy"] == race.busy
    assert " %" in str(race) or "one run" in str(race)
    for busy in (False, True):
        race.busy = busy
        assert ("the machine was busy" in str(race)) == ("the machine was busy" in race._repr_html_()) == busy


def test_a_race_becomes_a_frame():
    pandas = pytest.importorskip("pandas")
    frame = sa.benchmark(matrix()[0], np.ones((64, 8), np.float32), fresh=False).frame()
    assert isinstance(frame, pandas.DataFrame) and "variant" in frame.columns


def test_a_race_from_the_left_and_of_some_variants():
    race = sa.benchmark(np.ones((5, 64), np.float32), matrix()[0], only=["cpu_matmul_any_any_c_portable"])
    assert [r.variant for r in race] == ["cpu_matmul_any_any_c_portable"] and race.problem["transpose"]


def test_tuning_is_remembered():
    a, _ = matrix(3)
    with sa.set_effort("quick"):
        sa.cache.clear()
        first = sa.tune(a, [4, 8], gradients=True, effort="quick")
        assert len(first) == 6 and all(p["verified"] and p["pattern_verified"] for p in first)
        assert sa.cache.entries()
        assert not any(p["tuned"] for p in sa.tune(a, [4, 8], gradients=True, effort="quick"))
        a @ np.ones((64, 8), np.float32)


def test_the_cache_goes_into_a_file_and_comes_back(tmp_path):
    a, _ = matrix(4)
    with sa.set_effort("quick"):
        a @ np.ones((64, 16), np.float32)
        before = sa.cache.entries()
        sa.cache.export(tmp_path / "all")
        assert sa.cache.clear() == len(before) and not sa.cache.entries()
        assert sa.cache.load(tmp_path / "all") >= len(before)  # those of other devices go with them
        assert sa.cache.entries().keys() == before.keys()
        key = next(iter(before))
        assert sa.cache.clear(key) == 1 and key not in sa.cache.entries()


def test_effort_is_set_and_put_back():
    assert sa.get_effort() == "off"
    with sa.set_effort("cached"):
        assert sa.get_effort() == "cached"
        a, dense = matrix(5)
        close(a @ np.ones((64, 3), np.float32), dense @ np.ones((64, 3), np.float32))
        assert sa.cache.untuned()
    assert sa.get_effort() == "off"


def simple(call):
    br, bc = call.block
    call.out[...] = 0
    for i in range(len(call.row_ptr) - 1):
        for t in range(call.row_ptr[i], call.row_ptr[i + 1]):
            rows, cols = slice(i * br, (i + 1) * br), slice(call.col_idx[t] * bc, (call.col_idx[t] + 1) * bc)
            call.out[rows] += call.values[t] @ call.b[cols]


def whole_blocks(problem):
    return (
        problem["plain"]
        and problem["m"] % problem["block"][0] == 0
        and problem["k"] % problem["block"][1] == 0
    )


def test_a_python_variant_races():
    calls = []

    def counted(call):
        calls.append(call.b.shape)
        simple(call)

    sa.register_variant(counted, name="cpu_matmul_f32_any_python_counted", supports=whole_blocks)
    a, _ = matrix(6)
    race = sa.benchmark(a, np.ones((64, 6), np.float32), only="cpu_matmul_f32_any_python_counted")
    assert race.best.variant == "cpu_matmul_f32_any_python_counted" and calls
    with pytest.raises(ValueError, match="registered already"):
        sa.register_variant(simple, name="cpu_matmul_f32_any_python_counted")


SERVES = """
import numpy as np, sparse_autotune as sa
def double(call):
    call.out[...] = 7
sa.register_variant(double, name="cpu_matmul_f32_any_python_seven")
a = sa.BsrMatrix([0, 1], [0], np.ones((1, 2, 2), np.float32), (2, 2))
print((a @ np.ones((2, 1), np.float32)).ravel())
"""


def test_a_python_variant_serves():
    run = run_program(SERVES, SPARSE_AUTOTUNE_FORCE="cpu_matmul_f32_any_python_seven")
    assert run.stdout.strip() == "[7. 7.]", run.stderr


FAILING = """
import numpy as np, sparse_autotune as sa
sa.set_effort("off")
calls, failures = 0, 0
def seven(call):
    global calls, failures
    calls += 1
    if failures:
        failures -= 1
        raise RuntimeError("boom")
    call.out[...] = 7
sa.register_variant(seven, name="cpu_matmul_f32_any_python_failing")
A, b = sa.BsrMatrix([0, 1], [0], np.ones((1, 2, 2), "f4"), (2, 2)), np.ones((2, 1), "f4")
ways = [lambda: A @ b, lambda: sa.matmul(A, b), lambda: sa.matmul(A, b, out=np.empty((2, 1), "f4"))]
for way in ways:
    for _ in range(3):
        assert (way() == 7).all()
    calls, failures = 0, 1
    try:
        way()
    except sa.DeviceError as error:
        assert "boom" in str(error) and calls == 1, calls
    else:
        raise AssertionError(calls)
    assert (way() == 7).all()
print("fine")
"""


def test_what_a_variant_raises_comes_out_once():
    run = run_program(FAILING, SPARSE_AUTOTUNE_FORCE="cpu_matmul_f32_any_python_failing")
    assert run.stdout.strip() == "fine", run.stderr


def test_a_wrong_variant_never_wins():
    def wrong(call):
        simple(call)
        call.out[0, 0] += 100

    def failing(call):
        raise KeyError("100 % broken")

    sa.register_variant(wrong, name="cpu_matmul_f32_any_python_wrong", supports=whole_blocks)
    sa.register_variant(failing, name="cpu_matmul_f32_any_python_failing", supports=whole_blocks)
    sa.register_variant(simple, name="cpu_matmul_f32_any_python_unsure", supports=lambda p: 1 / 0)
    with pytest.warns(
        RuntimeWarning,
        match="cpu_matmul_f32_any_python_unsure: supports raised ZeroDivisionError: division by zero",
    ):
        race = sa.benchmark(matrix(7)[0], np.ones((64, 6), np.float32))
    verdicts = {r.variant: r for r in race}
    assert verdicts["cpu_matmul_f32_any_python_wrong"].verdict == "wrong"
    failed = verdicts["cpu_matmul_f32_any_python_failing"]
    assert failed.verdict == "error" and "100 % broken" in failed.message
    assert "cpu_matmul_f32_any_python_unsure" not in verdicts
    assert race.best.verdict == "ok"


INTERRUPTED = """
import sys, numpy as np, sparse_autotune as sa
if "torch" in sys.argv:
    import torch
def stop(call):
    global calls
    calls += 1
    if calls == last:
        raise KeyboardInterrupt
    call.out[...] = 7
calls, last = 0, 1
sa.register_variant(stop, name="cpu_matmul_f32_any_python_stop")
a, b = sa.BsrMatrix([0, 1], [0], np.ones((1, 2, 2), np.float32), (2, 2)), np.ones((2, 1), np.float32)
if "torch" in sys.argv:
    a, b, last = a.with_values(torch.ones(1, 2, 2)), torch.ones(2, 1), 3
    a @ b, a @ b
try:
    a @ b
except KeyboardInterrupt:
    print("stopped")
print(a @ b)
"""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_an_interrupt_inside_a_python_variant_comes_out(kind):
    if kind == "torch":
        pytest.importorskip("torch")
    run = run_program(INTERRUPTED, kind, SPARSE_AUTOTUNE_FORCE="cpu_matmul_f32_any_python_stop")
    assert run.stdout.startswith("stopped\n") and "7" in run.stdout, run.stderr


def test_an_interrupt_ends_a_race():
    calls = []

    def stop(call):
        calls.append(1)
        raise KeyboardInterrupt

    def supports(problem):
        if where == "supports":
            raise KeyboardInterrupt
        return where == "launch" and whole_blocks(problem)

    a, b, where = matrix(9)[0], np.ones((64, 6), np.float32), ""
    sa.register_variant(stop, name="cpu_matmul_f32_any_python_stop", supports=supports)
    for where in ("launch", "supports"):  # noqa: B007
        with pytest.raises(KeyboardInterrupt):
            sa.benchmark(a, b)
    assert len(calls) == 1
    where = ""
    assert sa.benchmark(a, b).best.verdict == "ok"


SIGNALLED = """
import os, signal, threading, time, numpy as np, sparse_autotune as sa
class Enough(Exception):
    pass
def enough(*_):
    raise Enough
signal.signal(signal.SIGUSR1, enough)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
sa.set_effort("full")
a, b = sa.BsrMatrix.from_dense(np.ones((512, 512), "f4"), 16), np.ones((512, 256), "f4")
for number in (signal.SIGINT, signal.SIGUSR1):
    begin = time.perf_counter()
    try:
        threading.Timer(0.5, os.kill, (os.getpid(), number)).start()
        sa.benchmark(a, b)
    except (KeyboardInterrupt, Enough) as error:
        print(type(error).__name__, time.perf_counter() - begin < 9)
print(sa.benchmark(a, b, only="cpu_matmul_any_any_c_portable").best.verdict)
"""


def test_what_a_handler_of_signals_raises_stops_a_race():
    """Which would take ten seconds."""
    run = run_program(SIGNALLED)
    assert run.stdout.split() == ["KeyboardInterrupt", "True", "Enough", "True", "ok"], run.stderr
    assert not run.stderr


def test_a_race_that_is_told_to_stop_is_cancelled(monkeypatch):
    monkeypatch.setattr(sa._abi, "watch", lambda: lambda _: False)
    with pytest.raises(sa.CancelledError, match="cancelled") as raised:
        sa.benchmark(matrix(10)[0], np.ones((64, 6), np.float32))
    assert raised.value.status == "SAT_CANCELLED"


def test_a_python_variant_of_the_sampled_product():
    def sampled(call):
        br, bc = call.block
        full = call.a @ call.b
        for i in range(len(call.row_ptr) - 1):
            for t in range(call.row_ptr[i], call.row_ptr[i + 1]):
                call.out[t] = full[i * br : (i + 1) * br, call.col_idx[t] * bc : (call.col_idx[t] + 1) * bc]

    sa.register_variant(
        sampled,
        name="cpu_sampled_f64_any_python_full",
        op="sampled",
        dtypes=("float64",),
        supports=lambda p: (
            p["alpha"] == 1 and p["beta"] == 0 and p["m"] % p["block"][0] == 0 and p["n"] % p["block"][1] == 0
        ),
    )
    a, _ = matrix(8, dtype=np.float64)
    with sa.set_effort("quick"):
        got = sa.sampled_matmul(np.ones((64, 5)), np.ones((5, 64)), a)
    assert got.values.max() == 5


def test_what_a_device_is():
    info = sa.device_info()
    assert info["backend"] == "cpu" and info["threads"] >= 1 and info["flop_rate"]["f32"] > 0
    assert "multiprocessors" not in info
    race = sa.benchmark(matrix()[0], np.ones((64, 8), np.float32), fresh=False)
    assert race.device["threads"] == info["threads"] and "multiprocessors" not in race.device


IGNORED = """
import warnings
import numpy as np
import sparse_autotune as sa
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    efforts = [sa.get_effort()]
    a = sa.BsrMatrix.from_dense(np.eye(8), 4)
    for n in (1, 2):
        a @ np.ones((8, n))
    with sa.set_effort("cached"):
        efforts.append(sa.get_effort())
        a @ np.ones((8, 3))
    efforts.append(sa.get_effort())
print(efforts)
print(*(f"{w.category.__name__} {w.message}" for w in caught), sep="\\n")
"""


@pytest.mark.parametrize(
    "effort, force, in_force, warned",
    [
        ("", "", "quick", []),
        ("OFF", "", "off", []),
        (
            "on",
            "",
            "quick",
            [
                (
                    "RuntimeWarning SPARSE_AUTOTUNE is 'on', which counts as quick; expected off, cached, "
                    "quick, full or pinned"
                )
            ],
        ),
        (
            "off",
            "cpu_matmul_none",
            "off",
            ["RuntimeWarning SPARSE_AUTOTUNE_FORCE is 'cpu_matmul_none'; no such variant"],
        ),
        ("off", "cpu_matmul_any_any_c_reference", "off", []),
    ],
)
def test_what_the_environment_asks_for_in_vain_is_warned_of(effort, force, in_force, warned):
    run = run_program(IGNORED, SPARSE_AUTOTUNE=effort, SPARSE_AUTOTUNE_FORCE=force)
    lines = run.stdout.strip().splitlines()
    assert lines[0] == str([in_force, "cached", in_force]), run.stderr
    assert [line for line in lines[1:] if line] == warned
