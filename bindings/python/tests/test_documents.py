"""Every example in a docstring, in the README and in examples/ runs."""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sparse_autotune as sa

ROOT = Path(__file__).resolve().parents[3]
HOME = Path(sa.__file__).parent
OF_TORCH = ("MoE", "SparseLinear", "SparsifyReport", "block_scores", "choose_blocks", "freeze", "refresh")
OF_TORCH += ("sparsify", "unfreeze")
MODULES = sorted(
    ".".join(path.relative_to(HOME).with_suffix("").parts)
    for path in HOME.rglob("*.py")
    if not path.stem.startswith("__")
)


@pytest.mark.parametrize("name", ["", *MODULES])
def test_docstrings(name):
    if name in ("nn", "_moe", "_sparsify", "_parallel", "_checkpoint", "_experts") or name.startswith(
        "_torch"
    ):
        pytest.importorskip("torch")
    if name.startswith("transformers"):
        pytest.importorskip("transformers", "5")
    if name == "_matrix":
        pytest.importorskip("scipy")
    module = importlib.import_module("sparse_autotune" + (f".{name}" if name else ""))
    with np.printoptions(legacy=False):
        failed, _ = doctest.testmod(module)
    assert failed == 0


def test_every_public_name_has_a_docstring():
    for name in sa.__all__:
        if name in OF_TORCH:
            pytest.importorskip("torch")
        assert name == "__version__" or getattr(sa, name).__doc__


def test_dir_lists_every_public_name():
    assert set(sa.__all__) <= set(dir(sa))  # those that wait for torch, too


@pytest.mark.parametrize(
    "document, needs",
    [
        ("README.md", "scipy"),
        ("docs/guide/python.md", "scipy"),
        ("docs/guide/production.md", "scipy"),
        ("docs/guide/attention-in-your-model.md", "transformers"),
        ("docs/guide/many-gpus.md", "torch"),
        ("docs/guide/masks-that-change.md", "torch"),
        ("docs/guide/mixtures-of-experts.md", "torch"),
        ("docs/guide/sparse-model-from-a-dense-one.md", "transformers"),
    ],
)
def test_examples_run_as_written(document, needs, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip(needs)
    path = ROOT / document
    if not path.exists():
        pytest.skip("the documents are not beside the tests")
    monkeypatch.chdir(tmp_path)
    scope: dict = {}
    blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(), re.S | re.M)
    assert blocks
    try:
        for code in blocks:
            if "transformers" in code:
                pytest.importorskip("transformers", "5")
            exec(compile(code, str(path), "exec"), scope)
    finally:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    "name, needs, words",
    [
        ("fem", "scipy", ["--nodes", "8", "--loads", "2"]),
        ("transformer", "torch", ["--width", "64", "--steps", "3"]),
        ("window_attention", "torch", ["--width", "64", "--layers", "1", "--picture", "window.svg"]),
    ],
)
def test_examples_run(name, needs, words, tmp_path):
    pytest.importorskip(needs)
    path = ROOT / "examples" / f"{name}.py"
    if not path.exists():
        pytest.skip("the examples are not beside the tests")
    run = subprocess.run(
        [sys.executable, str(path), *words],
        cwd=tmp_path,
        env={**os.environ, "SPARSE_AUTOTUNE": "off"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    if name == "fem":  # a line for each of the four products
        labels = re.findall(r"^(.*?) +[0-9.]+ s$", run.stdout, re.M)
        assert len(set(labels)) == 4, run.stdout
    if name == "window_attention":  # with the length and window that it has by itself
        assert (tmp_path / "window.svg").read_text() == (ROOT / "docs/guide/window.svg").read_text()
