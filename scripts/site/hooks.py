"""What MkDocs calls while it builds the site: pages that are not in docs/ are added, lab notes are listed,
and links that lead out of docs/ lead to the same file's page here."""

import ast
import os
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True

import header  # noqa: E402

# Pages that stand elsewhere in the tree: where, and what they are called here
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "src/README.md": "src/README.md",
}
PACKAGE = ROOT / "bindings/python/sparse_autotune"
HEADER = "include/sparse_autotune.h"
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^```.*?^```$", re.S | re.M)
LANGUAGES = {".py": "python", ".c": "c", ".h": "c", ".sh": "bash", ".rs": "rust", ".toml": "toml"}

# The Python reference: every name of sparse_autotune.__all__ stands in one of these.
PYTHON = {
    "Matrices and products": [
        "BsrMatrix",
        "matmul",
        "bsr_gemm",
        "sampled_matmul",
        "choose_blocks",
        "block_scores",
    ],
    "Attention": ["attention", "AttentionMask", "scaled_dot_product_attention"],
    "Groups": ["grouped_matmul", "grouped_weights"],
    "Layers and models": [
        "SparseLinear",
        "MoE",
        "sparsify",
        "SparsifyReport",
        "freeze",
        "refresh",
        "unfreeze",
    ],
    "Tuning": ["set_effort", "get_effort", "tune", "benchmark", "Race", "Record", "device_info"],
    "Variants of your own": ["register_variant", "VariantCall", "AttentionCall"],
    "Errors": [
        "Error",
        "ArgumentError",
        "BusyError",
        "CancelledError",
        "DeviceError",
        "FileError",
        "OutOfMemoryError",
        "UnsupportedError",
    ],
}
ALIASES = {"bsr_gemm": "matmul"}
MODULES = {"cache": "The cache", "distributed": "Many GPUs", "transformers": "Hugging Face's transformers"}


def listed_in(module):
    """What a module's __all__ lists, as its source says; a starred table counts with its keys."""
    tree = ast.parse((PACKAGE / module).read_text())
    tables, found = {}, []
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Dict):
            tables[target.id] = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        if isinstance(target, ast.Name) and target.id == "__all__":
            for item in node.value.elts:
                found += tables[item.value.id] if isinstance(item, ast.Starred) else [item.value]
    return found


def home_of(name, folder=""):
    """The module that defines a function or a class: of the package and its torch part, or of a folder."""
    folders = (folder,) if folder else ("", "_torch")
    for path in (path for place in folders for path in sorted((PACKAGE / place).glob("*.py"))):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return ".".join(("sparse_autotune", *path.relative_to(PACKAGE).with_suffix("").parts))
    return None  # a module


def python_page():
    listed = [name for names in PYTHON.values() for name in names]
    wanted = set(listed_in("__init__.py")) - {"__version__"} - set(MODULES)
    if set(listed) != wanted:
        raise SystemExit(
            f"scripts/site/hooks.py: the Python reference and __all__ differ: {set(listed) ^ wanted}"
        )
    found = [
        "# The Python reference",
        "Made of the docstrings. [The page on Python](../guide/python.md) shows how to begin.",
    ]
    for title, names in PYTHON.items():
        homes = {name: home_of(name) for name in names}
        found += [f"## {title}", *(f"::: {home}.{name}" for name, home in homes.items() if home)]
        found += [
            f"`{name}` is another name of `{ALIASES[name]}`." for name, home in homes.items() if not home
        ]
    for module, title in MODULES.items():
        folder = (PACKAGE / module).is_dir()
        names = listed_in(f"{module}/__init__.py" if folder else f"{module}.py")
        homes = {
            name: f"sparse_autotune.{module}"
            if module == "cache"
            else home_of(name, module if folder else "")
            for name in names
        }
        found += [f"## {title}: `sparse_autotune.{module}`"]
        found += [f"::: {home}.{name}" for name, home in homes.items() if home]
    return "\n\n".join(found) + "\n"


def rust_page():
    crates = {
        "sparse_autotune": "`sparse-autotune`, the safe crate",
        "burn_sparse": "`burn-sparse`, for Burn",
        "sparse_autotune_sys": "`sparse-autotune-sys`, the declarations",
    }
    lines = ["# The Rust reference", "[The page on Rust](../guide/rust.md) shows how to begin.", ""]
    if (ROOT / os.environ.get("SITE_RUSTDOC", "-")).is_dir():
        lines += ["rustdoc made these pages:", ""]
        lines += [f'- <a href="../rust/{crate}/index.html">{text}</a>' for crate, text in crates.items()]
    else:
        lines += [
            "This site was built without rustdoc. `cargo doc --open` in `bindings/rust` makes its pages."
        ]
    return "\n".join(lines) + "\n"


def sources(config):
    """Every page that is written: its place in the tree, its place here."""
    found = dict(ELSEWHERE)
    for path in Path(config.docs_dir).rglob("*.md"):
        found[path.relative_to(ROOT).as_posix()] = path.relative_to(config.docs_dir).as_posix()
    return found


def targets(text, home):
    """The files of the tree that a page links to."""
    for found in LINK.finditer(FENCE.sub("", text)):
        link = found.group(2).split("#")[0]
        if link and not re.match(r"[a-z]+:", link):
            yield os.path.normpath(os.path.join(os.path.dirname(home), link))


def shown(path):
    """A file of the tree, or the files of a folder, as a page."""
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    found = [f"# {path.relative_to(ROOT).as_posix()}"]
    for file in files:
        if path.is_dir():
            found.append(f"## {file.name}")
        found.append(f"````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n````")
    return "\n\n".join(found) + "\n"


def page_for(target):
    """Where a file of the tree that is no page is shown: a text as a page, anything else as it is."""
    path = ROOT / target
    if target == HEADER:
        return "reference/c.md"
    if path.is_dir() or path.suffix in LANGUAGES or not path.suffix or path.name.startswith("LICENSE"):
        return f"files/{target}.md"
    return f"files/{target}"


def titled(stem):
    """A note's name in the list: 2026-11-18: short products"""
    return f"{stem[:10]}: {stem[11:].replace('-', ' ')}"


def on_config(config):
    notes = sorted((Path(config.docs_dir) / "lab").glob("2*.md"), reverse=True)
    config.nav[-1]["Lab"] = ["lab/README.md", *({titled(note.stem): f"lab/{note.name}"} for note in notes)]
    return config


def on_files(files, config):
    def add(place, text):
        files.append(File.generated(config, place, content=text))

    known = sources(config)
    for home, place in ELSEWHERE.items():
        add(place, (ROOT / home).read_text())
    add("reference/c.md", header.page((ROOT / HEADER).read_text()))
    add("reference/python.md", python_page())
    add("reference/rust.md", rust_page())
    for home in known:
        for target in targets((ROOT / home).read_text(), home):
            place = page_for(target)
            if target in known or target.startswith("docs/") or files.get_file_from_path(place):
                continue
            if not (ROOT / target).exists():
                raise SystemExit(f"{home}: no {target}")
            if place.endswith(".md"):
                add(place, shown(ROOT / target))
            else:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri
    homes = {place: home for home, place in sources(config).items()}
    if here not in homes:
        return markdown

    def moved(found):
        link, _, anchor = found.group(2).partition("#")
        if not link or re.match(r"[a-z]+:", link):
            return found.group(0)
        target = os.path.normpath(os.path.join(os.path.dirname(homes[here]), link))
        known = sources(config)
        place = known.get(target) or (target[5:] if target.startswith("docs/") else page_for(target))
        place = os.path.relpath(place, os.path.dirname(here) or ".")
        return found.group(1) + place + ("#" + anchor if anchor else "") + found.group(3)

    parts, last = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(moved, markdown[last : fence.start()]), fence.group(0)]
        last = fence.end()
    return "".join(parts) + LINK.sub(moved, markdown[last:])
