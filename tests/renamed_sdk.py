"""The SDK with every private name renamed, as a later release might have them: a plugin for pytest, and `python -m`.

`pytest -p tests.renamed_sdk ...` runs tests with it, and `python -m tests.renamed_sdk serve ...` runs the command line.
Names and modules of `mcp` and `mcp_types` that begin with an underscore get another one; what uses only public names
notices nothing. Must be imported before the SDK is.
"""

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

PACKAGES: Final = ("mcp", "mcp_types")
PREFIX: Final = "_renamed"
KEPT: Final = frozenset({"_meta", "_missing_", "_generate_next_value_", "_value_"})
"""Private names that other libraries give a meaning: fields of the protocol, and enumerations."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name.strip("_") != "" and name not in KEPT


def renamed(name: str) -> str:
    return f"__{PREFIX[1:]}_{name[2:]}" if name.startswith("__") else f"{PREFIX}{name}"


def original(name: str) -> str:
    """The name of a module before it was renamed."""
    return ".".join(part.removeprefix(PREFIX) for part in name.split("."))


@functools.cache
def own_names() -> frozenset[str]:
    """Every private name that the SDK itself gives to something."""
    return frozenset(name for tree in _trees() for name in _defined(tree) if is_private(name))


def _trees() -> Iterator[ast.Module]:
    for package in PACKAGES:
        spec = importlib.machinery.PathFinder.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for file in sorted(Path(folder).rglob("*.py")):
                yield ast.parse(file.read_text(encoding="utf-8"))
                yield ast.parse(f"{file.stem} = None" if file.stem.isidentifier() else "")


def _defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.alias(asname=str(name)):
                yield name


class Renamer(ast.NodeTransformer):
    """Renames the SDK's own private names wherever a program writes them."""

    def _new(self, name: str) -> str:
        return renamed(name) if name in own_names() else name

    def visit(self, node: ast.AST) -> Any:
        """Rename what is below, and then the node: its identifiers, and its texts where they name attributes."""
        self.generic_visit(node)
        for field in ("name", "id", "attr", "arg", "asname"):
            if isinstance(getattr(node, field, None), str) and not isinstance(node, ast.alias):
                setattr(node, field, self._new(getattr(node, field)))
        match node:
            case ast.ImportFrom() | ast.Import():
                self._rename_import(node)
            case ast.Global() | ast.Nonlocal():
                node.names = [self._new(name) for name in node.names]
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, named, *_]):
                self._rename_texts(named)
            case ast.Assign(targets=[ast.Name(id="__slots__")]):
                self._rename_texts(node.value)
        return node

    def _rename_texts(self, node: ast.expr) -> None:
        for one in ast.walk(node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                one.value = self._new(one.value)

    def _rename_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """The modules of the SDK, the names that come from them, and what any import is called here."""
        module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
        is_own = isinstance(node, ast.ImportFrom) and (node.level > 0 or module.partition(".")[0] in PACKAGES)
        if is_own and isinstance(node, ast.ImportFrom) and node.module:
            node.module = self._path(node.module)
        for one in node.names:
            if is_own or one.name.partition(".")[0] in PACKAGES:
                one.name = self._path(one.name)
            if one.asname:
                one.asname = self._new(one.asname)

    def _path(self, name: str) -> str:
        return ".".join(map(self._new, name.split(".")))


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a file with its names changed, and keeps no byte code."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path), self.path)
        return compile(ast.fix_missing_locations(Renamer().visit(tree)), self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the SDK's modules by their new names only."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        last = fullname.rpartition(".")[2]
        if last in own_names():
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        found = importlib.machinery.PathFinder.find_spec(original(fullname), path, target)
        if found is None or found.origin is None:
            return found
        return importlib.util.spec_from_file_location(
            fullname,
            found.origin,
            loader=_Loader(fullname, found.origin),
            submodule_search_locations=found.submodule_search_locations,
        )


def install() -> None:
    """Rename the SDK's private names in this process. Raises `RuntimeError` if the SDK is loaded already."""
    loaded = [name for name in sys.modules if name.partition(".")[0] in PACKAGES]
    if loaded:
        raise RuntimeError(f"imported before its names were changed: {', '.join(loaded[:3])}")
    sys.meta_path.insert(0, _Finder())


install()

if __name__ == "__main__":
    from toolcrib.cli.main import main

    main()
