"""`python -m sparse_autotune tune`, `cache`, `info` and `doctor`, in a cache of their own."""

import json

import numpy as np
import pytest
from conftest import in_threads, run_program

import sparse_autotune as sa
from sparse_autotune import __main__ as program
from sparse_autotune import _doctor, _untuned

MAIN = "import sys; from sparse_autotune.__main__ import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def run(tmp_path):
    """Runs the program, and gives what it printed."""

    def run(*words, code=0, **environment):
        here = {"SPARSE_AUTOTUNE_CACHE": str(tmp_path / "cache"), "SPARSE_AUTOTUNE_DEVICE": "cpu"}
        done = run_program(MAIN, *words, **{**here, **environment})
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def test_info_names_device_cache_and_environment(run, tmp_path):
    text = run("info")
    assert text.startswith(f"sparse_autotune {sa.__version__}\n  device      ")
    assert f"  cache       {tmp_path / 'cache'}\n" in text
    assert "  environment SPARSE_AUTOTUNE_DEVICE=cpu\n" in text
    found = json.loads(run("info", "--json"))
    assert found["device"]["backend"] == "cpu" and found["variants"] > 5 and not found["cuda"]["used"]


def findings(text):
    return {one["id"]: one for one in json.loads(text)["findings"]}


def test_the_doctor_shows_what_is_found(run, tmp_path):
    text = run("doctor")
    assert text.startswith(f"sparse_autotune {sa.__version__}\n  device      ")
    assert f"  cache       {tmp_path / 'cache'} (" in text and "  openmp      /" in text
    found = json.loads(run("doctor", "--json"))
    assert found["packages"]["numpy"] == np.__version__ and found["effort"] == "quick"
    assert found["processors"]["online"] >= found["processors"]["allowed"] >= 1
    assert not [one for one in found["findings"] if one["level"] == "broken" or not one["remedy"]]


def test_the_doctor_names_what_is_missing_and_ignored(run, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (tmp_path / "file").touch()
    wrong = {"SPARSE_AUTOTUNE": "heroic", "SPARSE_AUTOTUNE_DEVCE": "cpu"}
    threads = str(4 * len(_doctor.os.sched_getaffinity(0)))
    found = findings(
        run("doctor", "--json", OMP_NUM_THREADS=threads, SPARSE_AUTOTUNE_CACHE=str(shared), **wrong)
    )
    assert "mode 0777" in found["cache_of_others"]["what"] and "share" in found["threads"]["what"]
    assert found["ignored"]["level"] == "note"  # the last of two
    found = findings(run("doctor", "--json", SPARSE_AUTOTUNE_CACHE=str(tmp_path / "file" / "cache")))
    assert "Not a directory" in found["cache_read_only"]["what"]
    assert "cache_in_memory" in findings(run("doctor", "--json", SPARSE_AUTOTUNE_CACHE=""))
    assert "effort" in findings(run("doctor", "--json", SPARSE_AUTOTUNE="off"))
    pinned = {"SPARSE_AUTOTUNE": "pinned", "SPARSE_AUTOTUNE_CACHE": ""}
    assert run_program(MAIN, "doctor", **pinned).returncode == 1
    assert "cache_in_memory" not in findings(run("doctor", "--json", SPARSE_AUTOTUNE="pinned"))


def test_a_device_that_cannot_be_had_is_broken_and_the_rest_is_shown(run):
    done = run_program(MAIN, "doctor", "--device", "cuda:99")
    assert (
        done.returncode == 1 and "broken    device is 'cuda:99'" in done.stdout and "  cache  " in done.stdout
    )


def test_two_openmp_run_times_are_a_finding():
    found = _doctor.Found("cpu", None, openmp=["/a/libgomp.so.1", "/b/libiomp5.so"])
    (one,) = [one for one in _doctor._process(found) if one.id == "openmp"]
    assert "/a/libgomp.so.1 and /b/libiomp5.so" in one.what and "MKL_THREADING_LAYER" in one.remedy
    assert "openmp" not in [
        one.id for one in _doctor._process(_doctor.Found("cpu", None, openmp=["/a/libgomp.so.1"]))
    ]


def test_the_cache_is_listed_exported_cleared_and_imported(run, tmp_path):
    assert run("cache").startswith("0 entries in ")
    run("race", "--size", "64x16x64", "--block", "16")
    (entry,) = json.loads(run("cache", "list", "--json"))["entries"]
    assert entry["results"] > 1 and entry["seconds"] > 0 and " m=64 n=16 k=64 " in entry["key"]
    table = run("cache", "list").splitlines()
    assert table[0].split()[:2] == ["id", "results"] and table[1].split()[0] == entry["id"]
    assert entry["fastest"] in table[1] and table[2].startswith("1 entry in ")
    assert run("cache", "show", entry["id"]) == run("cache", "show", entry["key"])
    file = tmp_path / "fleet.cache"
    run("cache", "export", str(file))
    assert run("cache", "clear", entry["id"]) == "1 entry removed\n"
    assert run("cache", "import", str(file)) == f"1 entry taken from {file}\n"
    assert run("cache", "clear") == "1 entry removed\n"


def test_wrong_words_are_refused(run):
    assert "no entry of that key or id" in run("cache", "show", "beef", code=1)
    assert "expected one file" in run("cache", "import", code=1)
    assert "unexpected 'x'" in run("cache", "list", "x", code=1)
    with pytest.raises(SystemExit):
        program.main(["cache", "burn"])


ESTIMATED = """
import numpy as np, sparse_autotune as sa
A = sa.BsrMatrix.from_dense(np.ones((64, 64)), block=8)
A @ np.ones((64, 4))
A.T @ np.ones((64, 4))
q = np.ones((1, 2, 32, 16), np.float32)
sa.attention(q, q, q, causal=True)
"""


def test_problems_that_were_estimated_are_tuned_later(run, tmp_path):
    where = {"SPARSE_AUTOTUNE_CACHE": str(tmp_path / "cache")}
    done = run_program(ESTIMATED, SPARSE_AUTOTUNE="cached", **where)
    assert done.returncode == 0, done.stderr
    notes = run("tune", "--list").splitlines()
    assert [note.split()[0] for note in notes] == ["op=matmul", "op=matmul", "op=attention"]
    lines = run("tune").splitlines()
    assert lines[-1] == "3 problems" and not any("its key differs" in line for line in lines)
    assert run("tune") == "0 problems\n"
    assert run("cache").endswith(f"3 entries in {tmp_path / 'cache'}\n")


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("skew, overlap", [(1, 0.0), (1, 0.5), (4, 0.25)])
def test_a_made_up_pattern_is_like_the_one_that_was_noted(skew, overlap, transposed):
    words = {"op": "matmul", "m": "1000", "n": "1", "k": "900", "block": "4x8", "blocks": "2500"}
    words |= {"t": str(transposed), "skew": str(skew), "overlap": str(overlap)}
    pattern = _untuned.make_pattern(words, "cpu", 1)
    view = pattern.view()
    assert pattern.shape == ((900, 1000) if transposed else (1000, 900)) and view.stored_blocks == 2500
    assert (view.t_skew if transposed and skew > 1 else view.skew) == pytest.approx(max(skew, 1.01), rel=0.1)
    if not transposed and skew == 1:  # a skewed row cannot repeat a longer one
        assert view.overlap == pytest.approx(overlap, abs=0.05)
    assert np.all(np.diff(pattern.row_ptr) >= 0)


def test_a_note_that_makes_no_sense_is_named():
    with pytest.raises(ValueError, match="cannot be read"):
        _untuned.tune("cpu", "quick", "", "op=matmul m=4")


def test_processes_share_the_problems(run, tmp_path):
    noted = str(tmp_path / "noted")
    done = run_program(ESTIMATED, SPARSE_AUTOTUNE="cached", SPARSE_AUTOTUNE_CACHE=noted)
    assert done.returncode == 0, done.stderr
    assert "expected --store" in run("tune", "--world", "2", code=1)
    assert "expected 0 to 0, below --world" in run(
        "tune", "--rank", "1", code=1
    )  # where --world was forgotten
    assert "--world 0: expected at least 1" in run("tune", "--world", "0", code=1)
    assert "expected 0 to 1" in run("tune", "--world", "2", "--rank", "2", "--store", noted, code=1)
    for job in ("first", "second"):
        out = ["", ""]

        def work(rank):
            words = ["--world", "2", "--rank", str(rank), "--store", str(tmp_path / job), "--notes", noted]
            out[rank] = run("tune", *words, SPARSE_AUTOTUNE_CACHE=str(tmp_path / f"cache{rank}"))

        in_threads(2, work)
        lines = [sorted(text.splitlines()) for text in out]
        assert [len(one) for one in lines] == [4, 4], out
        raced = [sum(line.endswith(", raced here") for line in one) for one in lines]
        assert sum(raced) == (3 if job == "first" else 0)
        assert [f"3 problems, {count} raced here" in one for count, one in zip(raced, lines)] == [True, True]
        winners = [
            {line.rpartition(",")[0] for line in one if line.endswith(" here") and ": " in line}
            for one in lines
        ]
        assert len(winners[0]) == 3 and winners[0] == winners[1]
