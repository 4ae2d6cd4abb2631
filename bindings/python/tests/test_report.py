"""The command line of the package, and the page it draws."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sparse_autotune import __main__ as program
from sparse_autotune import report

VOID = {"meta"}


class Balanced(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_page(text):
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert not re.search(r"(?:src|href)=|url\(|nan|inf[,\"' ]", text)


def test_races_become_a_page(tmp_path, capsys):
    results, page = tmp_path / "races.json", tmp_path / "report.html"
    words = [
        "race",
        "--size",
        "128x64x128",
        "--block",
        "16,32",
        "--density",
        "0.1,0.5",
        "--device",
        "cpu",
        "-o",
        str(results),
    ]
    assert program.main(words) == 0
    assert capsys.readouterr().out.count("best:") == 4
    assert len(json.loads(results.read_text())["races"]) == 4
    assert program.main(["report", str(results), "-o", str(page), "--title", "<Mine>"]) == 0
    text = page.read_text()
    check_page(text)
    assert (
        "&lt;Mine&gt;" in text
        and "Speed-up over density" in text
        and "Rate over block size" in text
        and "Roofline" in text
    )
    assert text.count('class="card"') == 4 + 3


def test_a_race_prints_json(capsys):
    assert (
        program.main(
            [
                "race",
                "--size",
                "64x8x64",
                "--block",
                "16",
                "--op",
                "sampled",
                "--dtype",
                "f64",
                "--device",
                "cpu",
                "--json",
            ]
        )
        == 0
    )
    race = json.loads(capsys.readouterr().out)
    assert race["problem"]["op"] == "sampled" and race["problem"]["dtype"] == "f64" and race["best"]
    check_page(report.page([race]))
    for busy in (False, True):
        text = report.page([race | {"busy": busy}])
        check_page(text)
        assert ("The machine was busy" in text) == busy


@pytest.mark.parametrize("record", ["h200.json", "epyc-zen4-2-cores.json"])
def test_records_of_the_benchmark_become_a_page(record):
    path = Path(__file__).resolve().parents[3] / "bench" / "results" / record
    if not path.exists():
        pytest.skip("the records are not beside the tests")
    check_page(report.page(report.load(path), record))


def test_bad_input(tmp_path, capsys):
    (tmp_path / "text").write_text("text")
    (tmp_path / "none").write_text("{}")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe{}")
    (tmp_path / "deep").write_text("[" * 100000)
    for name in ("bytes", "deep"):
        assert program.main(["report", str(tmp_path / name)]) == 1
        assert f"{tmp_path / name} is not JSON" in capsys.readouterr().err
    for words in (
        ["report", str(tmp_path / "text")],
        ["report", str(tmp_path / "none")],
        ["report", str(tmp_path / "absent")],
        ["race", "--size", "4x4"],
        ["race", "--device", "tpu"],
        ["race", "--density", "2", "--size", "8x8x8", "--block", "4", "--device", "cpu"],
    ):
        assert program.main(words) == 1, words
        assert "sparse_autotune:" in capsys.readouterr().err
    blocks = "expected sides of at least 1 such as 64"
    for option, word, expected in (
        ("--size", "big", "expected three sizes"),
        ("--block", "0", blocks),
        ("--block", "1x2x3", blocks),
        ("--density", "half", "expected numbers from 0 to 1"),
    ):
        with pytest.raises(SystemExit):
            program.main(["race", option, word])
        assert f"argument {option}: {word!r}; {expected}" in capsys.readouterr().err


PROBLEM = {"op": "matmul", "m": 8, "n": 8, "k": 8, "block": [4, 4], "dtype": "f32", "density": 0.5}
RACE = {
    "problem": PROBLEM,
    "device": {"name": "here"},
    "best": "v",
    "results": [{"variant": "v", "verdict": "ok", "seconds": 1e-3}],
}


@pytest.mark.parametrize(
    "data, named",
    [
        ([RACE], "a race is"),
        ({"races": 5}, "races is 5"),
        ({"races": [5]}, "a race is 5"),
        ({"races": [{**RACE, "problem": None}]}, "problem is None"),
        ({**RACE, "device": None}, "device is None"),
        ({**RACE, "results": {}}, "results is"),
        ({**RACE, "results": [3]}, "a result is 3"),
        ({**RACE, "results": [{"variant": "v", "verdict": "ok", "seconds": "1"}]}, "seconds is '1'"),
        ({**RACE, "results": [{"verdict": "ok"}]}, "variant is None"),
        ({**RACE, "problem": {**PROBLEM, "block": [4]}}, "block is [4]"),
        ({**RACE, "problem": {**PROBLEM, "block": [0, 0]}}, "block is 0"),
        ({**RACE, "device": {"name": []}}, "name is []"),
        ({**RACE, "device": {"name": 3}}, "name is 3"),
        ({**RACE, "results": [{"variant": "v", "verdict": "ok", "seconds": 5e-324}]}, "seconds is 5e-324"),
        ({**RACE, "problem": {**PROBLEM, "floor_seconds": 1e300}}, "floor_seconds is 1e+300"),
        ({**RACE, "problem": {**PROBLEM, "m": None}}, "m is None"),
        ({**RACE, "problem": {**PROBLEM, "density": -1}}, "density is -1"),
        ({**RACE, "problem": {**PROBLEM, "density": 2}}, "density is 2"),
        ({"rows": 5}, "rows is 5"),
        ({"rows": [5]}, "a row is 5"),
        ({"rows": [{"problem": PROBLEM, "seconds": "1"}]}, "seconds is '1'"),
        ({"rows": [{"problem": PROBLEM, "seconds": 1, "rival_seconds": [1]}]}, "rival_seconds is"),
    ],
)
def test_results_that_are_none(data, named, tmp_path, capsys):
    file = tmp_path / "results.json"
    file.write_text(json.dumps(data))
    assert program.main(["report", str(file), "-o", str(tmp_path / "page")]) == 1
    said = capsys.readouterr().err
    assert str(file) in said and named in said


def test_sizes_beyond_memory_are_refused_at_once(capsys):
    for size in ("1000000x1000000x8", "99999999x99999999x9999999"):
        assert (
            program.main(["race", "--size", size, "--block", "64", "--density", "0.5", "--device", "cpu"])
            == 1
        )
        assert f"--size is {size}" in capsys.readouterr().err


def test_a_race_that_runs_out_of_memory_says_so(capsys, monkeypatch):
    def run(*_arguments, **_options):
        raise MemoryError("no memory")

    monkeypatch.setattr(program._race, "run", run)
    assert program.main(["race", "--size", "64x8x64", "--block", "16", "--device", "cpu"]) == 1
    assert "no memory" in capsys.readouterr().err


def test_race_takes_the_words_of_the_command_line(capsys):
    words = [
        "race",
        "-m",
        "64",
        "-n",
        "8",
        "-k",
        "96",
        "--block",
        "16",
        "--sparsity",
        "0.5",
        "--device",
        "cpu",
        "--json",
    ]
    assert program.main(words) == 0
    problem = json.loads(capsys.readouterr().out)["problem"]
    assert (problem["m"], problem["n"], problem["k"]) == (64, 8, 96) and problem["stored_blocks"] == 12
    for bad, named in (
        (["--sparsity", "2"], "--sparsity is 2.0"),
        (["-k", "0"], "-k is 0"),
        (["--density", "-1"], "--density is -1.0"),
    ):
        assert program.main(["race", *bad]) == 1
        assert named in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_told_before_racing(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(program._race, "run", pytest.fail)
    assert (
        program.main(
            ["race", "--device", "cpu", "--size", "64x8x64", "-o", str(tmp_path / "none" / "x.json")]
        )
        == 1
    )
    assert "--output is" in capsys.readouterr().err


def test_races_of_different_problems_keep_apart():
    """Layouts, transposes and TF32 are told in words and have plots of their own."""

    def race(block, density, seconds, key):
        results = [
            {
                "variant": name,
                "verdict": "ok",
                "seconds": s,
                "flops_per_second": 1e12,
                "dense": name == "dense",
            }
            for name, s in (("v", seconds), ("dense", 1e-3))
        ]
        problem = {
            "op": "matmul",
            "m": 64,
            "n": 64,
            "k": 64,
            "block": [block, block],
            "dtype": "f16",
            "density": density,
            "key": key,
        }
        return {"problem": problem, "device": {"name": "here"}, "best": "v", "results": results}

    plain, other = (
        "t=0 layout=blocks,row,row density=0.5 overlap=0.5 skew=1",
        "t=1 layout=blocks,col,col tf32 density=0.5 overlap=0.5 skew=1",
    )
    races = [
        race(b, d, 5e-4 if key == plain else 1e-4, key)
        for key in (plain, other)
        for b in (4, 8)
        for d in (0.5, 0.25)
    ]
    page = report.page(races)
    assert (
        page.count("<h3>Speed-up over density</h3>") == 2
        and "matmul f16 64×64×64, transposed, by columns, TF32" in page
    )
    titles = re.findall(r"<h3>(matmul.*?)</h3>", page)
    assert len(titles) == len(set(titles)) == 8
    first = page[page.index("<h3>Speed-up over density</h3>") : page.index("<h3>Rate over block size</h3>")]
    assert "2.00× faster" in first and "10.00×" not in first


def test_roofs_are_what_the_machine_was_seen_to_reach():
    """A record says so: a GPU's by dtype, a CPU's by threads. What it leaves out has no roof; a race alone
    has its floor's."""

    def drawn(machine, dtype="f16", key="", **more):
        problem = {
            **PROBLEM,
            "dtype": dtype,
            "key": key,
            "flops": 8e9,
            "bytes": 1e8,
            "floor_seconds": 2e-5,
            **more,
        }
        row = {"problem": problem, "variant": "v", "seconds": 1e-4, "floor_seconds": 2e-5}
        races = list(report._races({"machine": machine, "rows": [row]}))
        return report.page(races)

    gpu = {"name": "gpu", "ceilings": {"f16": 5e14, "f32": 5e13, "tf32": 3e14, "memory": 4e12}}
    assert "f16, 500 TFLOPS at most" in drawn(gpu) and "f32, 50 TFLOPS at most" in drawn(gpu, "f32")
    assert "tf32, 300 TFLOPS at most" in drawn(gpu, "f32", "tf32")
    cpu = {
        "name": "cpu",
        "ceilings": [{"threads": n, "peak_f32": n * 1e11, "read_bandwidth": 3e10} for n in (2, 1)],
    }
    assert "f32, 100 GFLOPS at most" in drawn(cpu, "f32", threads=1) and "f32, 200 GFLOPS at most" in drawn(
        cpu, "f32", threads=2
    )
    page = drawn(cpu, "bf16", threads=2)
    assert "bf16" in page and "at most" not in page and "seen to reach" in page
    assert "f16, 400 TFLOPS at most" in drawn({"name": "here"}) and "seen to reach" not in drawn(
        {"name": "here"}
    )
    for ceilings in (5, {"f16": "fast"}):
        with pytest.raises(ValueError, match="ceilings is 5|f16 is 'fast'"):
            drawn({"name": "gpu", "ceilings": ceilings})


def test_each_machine_has_its_own_roofline():
    """Races that say nothing of their machine's rates are drawn under those that others of that machine
    say."""

    def race(name, seconds, **device):
        return {
            "problem": {**PROBLEM, "flops": 8e9, "bytes": 1e8, "floor_seconds": 1e-4},
            "device": {"name": name, **device},
            "best": "v",
            "results": [{"variant": "v", "verdict": "ok", "seconds": seconds}],
        }

    page = report.page(
        [race("fast", 1e-3, ceilings={"f32": 5e13, "memory": 4e12}), race("slow", 1e-1), race("fast", 2e-3)]
    )
    check_page(page)
    drawn = page.split("<h3>Roofline</h3>")[1:]
    assert len(drawn) == 2 and "fast: each dot" in drawn[0] and "slow: each dot" in drawn[1]
    assert "50 TFLOPS at most" in drawn[0] and "seen to reach" in drawn[0] and drawn[0].count("<circle") == 2
    assert "80 TFLOPS at most" in drawn[1] and "floors" in drawn[1]


def test_numbers_below_the_axis_do_not_stand_on_each_other():
    races = [
        {
            **RACE,
            "problem": {**PROBLEM, "density": d},
            "results": [{"variant": n, "verdict": "ok", "seconds": 1e-3, "dense": n == "d"} for n in "vd"],
        }
        for d in (0.047, 0.05, 0.5)
    ]
    page = report.page(races)
    assert ">0.047<" in page and ">0.05<" not in page and ">0.5<" in page
