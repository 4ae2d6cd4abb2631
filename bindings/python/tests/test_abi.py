"""What Python takes the C interface for, beside the header itself."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sparse_autotune import _abi

HEADER = Path(__file__).resolve().parents[3] / "include" / "sparse_autotune.h"
TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
STRUCTS = {
    "sat_" + re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower(): kind
    for kind in vars(_abi).values()
    if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and hasattr(kind, "_fields_")
}


def fields(kind):
    """Names as the header has them, those of a part as the struct's own."""
    found = []
    for name, of in kind._fields_:
        found += fields(of) if name in getattr(kind, "_anonymous_", ()) else [name]
    return found


def constants():
    """C's names of numbers, and Python's numbers."""
    found = {f"SAT_{n}": x for n, x in vars(_abi).items() if n.isupper() and isinstance(x, int)}
    for prefix, names in (("ACT", _abi.ACTIVATIONS), ("EFFORT", _abi.EFFORTS)):
        found |= {f"SAT_{prefix}_{name.upper()}": number for name, number in names.items()}
    return found | {f"SAT_VERDICT_{name.upper()}": number for number, name in _abi.VERDICTS.items()}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_has_the_fields_of_the_header(name):
    body = re.search(rf"^(?:typedef )?struct {name} \{{$(.*?)^\}}", TEXT, re.S | re.M)[1]
    body = re.sub(r"\(\*(\w+)\)\([^)]*\)", r"\1", body)  # pointers to functions
    assert re.findall(r"(\w+)(?:\[\w+\])?\s*[,;]", body) == fields(STRUCTS[name])


def test_structs_and_numbers_are_the_compilers(tmp_path):
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    expected = {f"sizeof({name})": ctypes.sizeof(kind) for name, kind in STRUCTS.items()} | constants()
    for name, kind in STRUCTS.items():
        for field in fields(kind):
            at, example = getattr(kind, field), f"(({name} *)0)->{field}"
            expected |= {f"offsetof({name}, {field})": at.offset, f"sizeof({example})": at.size}
    lines = (f'printf("%lld\\n", (long long)({word}));' for word in expected)
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stdio.h>\n#include "{HEADER}"\nint main(void) {{ {" ".join(lines)} }}\n')
    subprocess.run(["cc", "-o", tmp_path / "layout", source], check=True)
    run = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True)
    assert dict(zip(expected, map(int, run.stdout.split()))) == expected


def test_functions_have_the_arguments_of_the_header():
    for name, (_, arguments) in _abi._SIGNATURES.items():
        given = re.search(rf"\b{name}\(([^;]*?)\)(?=;|\n#if)", TEXT)[1].split(",")
        expected = [x for x in given if x.strip() not in ("void", "...")]
        assert len(arguments) == len(expected), name


def test_every_status_has_an_exception():
    statuses = {
        n: int(x)
        for n, x in re.findall(r"(SAT_\w+) = (\d+)", re.search(r"enum sat_status.*?}", TEXT, re.S)[0])
    }
    assert _abi._ARGUMENT | set(_abi._OTHERS) <= set(statuses)
    for name, status in statuses.items():
        error = _abi.failure(status)
        assert error.status == name and isinstance(error, (ValueError, RuntimeError, OSError, MemoryError))
    assert type(_abi.failure(statuses["SAT_CANCELLED"])) is _abi.CancelledError
    assert type(_abi.failure(statuses["SAT_BUSY"])) is _abi.BusyError
