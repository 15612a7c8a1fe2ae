"""What the source of toolcrib contains that it should have little or nothing of: `structure.py [--json]`.

Private parts of other libraries, imports that no tool sees, files that read or write JSON-RPC by themselves, lines of
the protocol engine, and modules that `from toolcrib import App` loads. `tests/test_structure.py` holds the counts.
"""

import argparse
import ast
import functools
import importlib
import inspect
import json
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import toolcrib

ROOT: Final = Path(toolcrib.__file__).parent
ENGINE: Final = ("protocol", "server", "upstream")
ALLOWED: Final = {
    "_asdict": "public in named tuples",
    "_is_protocol": "the standard library's, which has no public name for it in Python 3.11",
}
"""Names that look private, and why they may be used."""
ALLOWED_IN: Final = {"providers/callable_info.py: cell_contents": "of functions that users hand in"}
"""The same for one file."""
_IMPORTERS: Final = ("import_module", "__import__", "lazy_module")
_BY_NAME: Final = ("getattr", "setattr", "hasattr", "delattr", "attrgetter")
_IMPORTED: Final = """
import sys
before = set(sys.modules)
from toolcrib import App
new = set(sys.modules) - before
print(len(new), len([name for name in new if name.partition(".")[0] == "toolcrib"]))
"""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The parsed source, by path below the package."""
    files = sorted(ROOT.rglob("*.py"))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text(encoding="utf-8")) for file in files}


def private_reaches() -> set[str]:
    """Every use of a private part of another library: the file, and what is used."""
    return (set(_private_names()) | set(_overridden())) - ALLOWED_IN.keys()


def _private_names() -> Iterator[str]:
    own = set(_defined())
    for file, tree in trees().items():
        for node in ast.walk(tree):
            for name in _used(node):
                if _is_private(name) and (name not in own or isinstance(node, ast.ImportFrom | ast.Import)):
                    yield f"{file}: {name}"


def _used(node: ast.AST) -> Iterator[str]:
    """The names that a node takes from an object or a module, as far as they may be another library's."""
    match node:
        case ast.Attribute(attr=name):
            yield name
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if function in _BY_NAME:
            yield from (one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str))
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):  # names to be looked up
            texts = [one.value for one in elements if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (text for text in texts if text.isidentifier() and text.islower())
        case ast.ImportFrom(module=str(module), level=0) if not module.startswith("toolcrib"):
            yield from (*module.split("."), *(one.name for one in node.names))
        case ast.Import():
            yield from (
                part for one in node.names if not one.name.startswith("toolcrib") for part in one.name.split(".")
            )


def _is_private(name: str) -> bool:
    if name == "cell_contents":  # what a function has closed over
        return True
    is_special = name.startswith("__") and name.endswith("__")
    return name.startswith("_") and name.strip("_") != "" and not is_special and name not in ALLOWED


def _defined() -> Iterator[str]:
    """Every name that toolcrib itself gives to something."""
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    yield name
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    yield name
                case ast.Import() | ast.ImportFrom():
                    yield from (one.asname for one in node.names if one.asname)


def _overridden() -> Iterator[str]:
    """The same for private methods of another library's class that a class here replaces."""
    for kind in _classes():
        for base in kind.__mro__[1:]:
            if not _is_foreign(base):
                continue
            private = {name for name in vars(kind) if _is_private(name) and not name.startswith("_abc_")}
            for name in private & vars(base).keys():
                yield f"{kind.__module__.partition('.')[2].replace('.', '/')}.py: {name}"


def _classes() -> Iterator[type]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found in pkgutil.walk_packages([str(ROOT)], "toolcrib."):
            if found.name.endswith("__main__") or ".worker" in found.name:
                continue
            module = importlib.import_module(found.name)
            for kind in vars(module).values():
                if inspect.isclass(kind) and kind.__module__ == found.name:
                    yield kind


def _is_foreign(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return package != "toolcrib" and package not in sys.stdlib_module_names


def hidden_imports() -> dict[str, int]:
    """Imports of toolcrib's own modules that are written in a string, by file."""
    found: dict[str, int] = {}
    for file, tree in trees().items():
        for node in ast.walk(tree):
            match node:
                case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[first, *_]) if (
                    function in _IMPORTERS and (function == "lazy_module" or _text(first).startswith("toolcrib."))
                ):
                    found[file] = found.get(file, 0) + 1
    return found


def _text(node: ast.expr) -> str:
    """The beginning of a text, as far as it is written there."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text
    return ""


def json_rpc_files() -> set[str]:
    """Files that write or read JSON-RPC by themselves, outside of `protocol`."""
    return {
        file
        for file, tree in trees().items()
        if not file.startswith("protocol/")
        and any(
            "jsonrpc" in text and text != "jsonrpc.request.id"  # of a span
            for text in _literals(tree)
        )
    }


def _literals(tree: ast.Module) -> Iterator[str]:
    """The texts and bytes of a file, without docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose:
            if isinstance(node.value, str):
                yield node.value
            elif isinstance(node.value, bytes):
                yield node.value.decode("latin-1")


def engine_lines() -> int:
    """The lines of the protocol engine."""
    files = (file for room in ENGINE for file in (ROOT / room).rglob("*.py"))
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def imported_modules() -> tuple[int, int]:
    """How many modules `from toolcrib import App` loads, and how many of them are toolcrib's."""
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True, timeout=60)
    everything, own = done.stdout.split()
    return int(everything), int(own)


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    reaches, hidden, files = sorted(private_reaches()), hidden_imports(), sorted(json_rpc_files())
    everything, own = imported_modules()
    counts = {
        "private parts of other libraries": len(reaches),
        "hidden imports": sum(hidden.values()),
        "files with JSON-RPC outside of protocol": len(files),
        "lines of protocol, server and upstream": engine_lines(),
        "modules that `from toolcrib import App` loads": everything,
        "of them toolcrib's own": own,
    }
    if parser.parse_args().json:
        print(json.dumps(counts))
        return
    for what, count in counts.items():
        print(f"{what:48}{count:7}")
    for title, names in (("private parts", reaches), ("hidden imports", sorted(hidden)), ("JSON-RPC", files)):
        print(f"\n{title}:", *names, sep="\n    ")


if __name__ == "__main__":
    main()
