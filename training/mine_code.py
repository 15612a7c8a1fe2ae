"""Documented functions of Python wheels, and commands of the Fig completion specifications."""

import ast
import random
import re
import tarfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

from training.corpus import Record, clean

_SKIPPED = re.compile(r"(^|/)(tests?|testing|_vendor|vendored?|examples?|benchmarks?|conftest|setup)(/|\.py$)|/test_")
_SECTION = re.compile(
    r"\n\s*(:param|:type|:return|:rtype|:raise|@param|Args?:|Arguments:|Parameters\b|Returns?:?\s*\n|Raises?:|Examples?\b|"
    r"Notes?\b|See Also|Yields|Keyword Args|>>>|\.\. )"
)
_PARAM = re.compile(r"^\s*(?::param (?:\w+ )?(\w+):|(\w+)(?: \([^)]*\))?:|(\w+) : [^\n]+\n)\s*(.+)$", re.MULTILINE)
_SPEC = re.compile(
    r'name:("(?:[^"\\]|\\.)*"|\[[^\]]{1,200}\])(?:,displayName:"[^"]*")?,description:"((?:[^"\\]|\\.)*)"'
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_MAX_PARAMS = 12
_MAX_FUNCTIONS = 1500
_MIN_DOCUMENT = 20
_CLOUDS = ("/aws/", "/gcloud/", "/build/aws.js", "/build/gcloud.js")


def functions(wheel: Path, seed: int) -> Iterator[Record]:
    """A sample of the documented public functions and methods of one wheel."""
    package = wheel.name.split("-")[0].lower()
    found: list[Record] = []
    with zipfile.ZipFile(wheel) as archive:
        for path in archive.namelist():
            if not path.endswith(".py") or _SKIPPED.search(path):
                continue
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    tree = ast.parse(archive.read(path))
            except (SyntaxError, ValueError, RecursionError):
                continue
            found += _module(package, Path(path).stem.strip("_"), tree)
    if len(found) > _MAX_FUNCTIONS:
        found = random.Random(seed).sample(found, _MAX_FUNCTIONS)  # noqa: S311 - a repeatable sample, not a secret
    yield from found


def _module(package: str, module: str, tree: ast.Module) -> Iterator[Record]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _function(package, module, node)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _function(package, node.name, inner)
            text = _summary(ast.get_docstring(node) or "")
            if len(text) >= _MIN_DOCUMENT:
                yield Record("class", package, node.name, text, (), module)


def _function(package: str, owner: str, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Record]:
    document = ast.get_docstring(node) or ""
    text = _summary(document)
    if node.name.startswith("_") or len(text) < _MIN_DOCUMENT:
        return
    described = {}
    for found in _PARAM.finditer(document):
        described[found.group(1) or found.group(2) or found.group(3)] = clean(found.group(4), 200)
    names = [a.arg for a in [*node.args.args, *node.args.kwonlyargs] if a.arg not in {"self", "cls"}]
    params = tuple((name, described.get(name, "")) for name in names[:_MAX_PARAMS])
    yield Record("function", package, node.name, text, params, owner)


def _summary(document: str) -> str:
    return clean(_SECTION.split("\n" + document)[0], 600)


def commands(tarball: Path) -> Iterator[Record]:
    """The commands of the Fig specifications, with their options as parameters (not AWS's, Google's)."""
    with tarfile.open(tarball) as archive:
        for member in archive:
            path = member.name
            if not path.endswith(".js") or "/build/" not in path or any(cloud in path for cloud in _CLOUDS):
                continue
            handle = archive.extractfile(member)
            if handle is not None:
                program = path.split("/build/")[1].split("/")[0].removesuffix(".js")
                yield from _specification(program, handle.read().decode("utf-8", "replace"))


def _specification(program: str, text: str) -> Iterator[Record]:
    name, description, options = "", "", list[tuple[str, str]]()
    for found in _SPEC.finditer(text):
        names = _QUOTED.findall(found.group(1))
        described = clean(found.group(2).replace('\\"', '"').replace("\\n", " "))
        if not names:
            continue
        if names[0].startswith("-"):
            options.append((max(names, key=len).strip("-"), described[:200]))
            continue
        if name:
            yield Record("command", program, name, description, tuple(options[:_MAX_PARAMS]), program)
        name, description, options = names[0], described, []
    if name:
        yield Record("command", program, name, description, tuple(options[:_MAX_PARAMS]), program)
