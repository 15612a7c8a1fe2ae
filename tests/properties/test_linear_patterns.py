"""Every regular expression of the package takes time linear in the length of a text."""

import ast
import dataclasses
import functools
import importlib
import inspect
import pkgutil
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.growth import MAX_GROWTH, growth, repeated

import toolcrib
from toolcrib.sandbox.languages import mistakes
from toolcrib.trust import rules

UNITS: Final = (
    *(
        "M",
        "a",
        "aA",
        "A1b2",
        "a-",
        "a.",
        "a_",
        "_",
        "-",
        ".",
        "1",
        "1,",
        "a1",
        "é",
        "中",
        "中a",
        "й",
        "\ud83d",
        "\x00",
    ),
    *(
        " ",
        "\t",
        "\n",
        " \n",
        "\n\n ",
        "\xa0",
        "a ",
        "a b c ",
        "1 ",
        "a\n",
        ", ",
        "; ",
        ": ",
        "* ",
        "- ",
        "# ",
        "e.g. ",
    ),
    *(
        "(",
        "((",
        "()",
        "[",
        "{",
        "<",
        "</",
        '"',
        "'",
        "`",
        "\\",
        "\\\\",
        "/",
        "//",
        "://",
        "a://",
        "http://",
        "@",
        "a@",
    ),
    *("=", "a=", "a:", "&", "?", "|", "$", "${", "%", "!", "~", "^", "+", "*", ">", ")", "]", "}", "\x1b", "\x1b["),
)
_OWN_TEXT: Final = ("toolcrib.cli.", "toolcrib.settings.", "toolcrib.gateway.policy")
"""Modules that read only what the people who run it write: commands, settings and policies."""
_ANCHORED: Final = frozenset({"match", "fullmatch"})
_NOT_IMPORTED: Final = ("__main__", "demo", "sandbox.worker")
_LENGTH: Final = 4_000
_SUSPECT_S: Final = 0.003
"""Processor time for a text of 4,000 characters from which on its growth is measured."""
_FILLERS: Final = ("a", "a_", "a ", "a-", ".", "1", " ", "\n", "/a", "é")
_PIECE: Final = re.compile(r"[A-Za-z][A-Za-z_ ]+|[^\w\s\\()\[\]{}|?*+^$.]{2,}")
_MAX_PIECES: Final = 150


def _modules() -> Iterator[Any]:
    for info in pkgutil.walk_packages(toolcrib.__path__, "toolcrib."):
        if not any(part in info.name for part in _NOT_IMPORTED):
            try:
                yield importlib.import_module(info.name)
            except ModuleNotFoundError:  # an extra that is not installed
                continue


def _held(value: object, depth: int = 4) -> Iterator[re.Pattern[Any]]:
    """The patterns in a value, in its attributes and in its items."""
    if isinstance(value, re.Pattern):
        yield value
    elif depth == 0 or isinstance(value, str | bytes):
        return
    elif isinstance(value, Mapping):
        for item in (*value, *value.values()):
            yield from _held(item, depth - 1)
    elif isinstance(value, tuple | list | set | frozenset):
        for item in value:
            yield from _held(item, depth - 1)
    elif inspect.isclass(value) and value.__module__.startswith("toolcrib"):
        for item in tuple(vars(value).values()):
            yield from _held(item, 1)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _held(getattr(value, field.name, None), depth - 1)


def _in_functions(path: Path) -> Iterator[tuple[str, re.Pattern[str]]]:
    """The patterns that the functions of a file write where they use them, after how they use them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="re"), attr=method), args=[ast.Constant(value=str(text)), *_]
            ) if method != "compile":
                yield method, re.compile(text)


def _methods(source: str) -> Mapping[str, set[str]]:
    """By the name of a pattern, the methods that a source calls of it."""
    found = defaultdict[str, set[str]](set)
    for name, method in re.findall(r"(\w+)\.(match|fullmatch|search|sub|subn|split|findall|finditer)\b", source):
        found[name].add(method)
    return found


class _Pattern(NamedTuple):
    compiled: re.Pattern[Any]
    anchored: bool
    """Whether the package only ever matches a text with it from its beginning."""

    def read(self, text: str) -> None:
        given = text.encode("utf-8", "surrogatepass") if isinstance(self.compiled.pattern, bytes) else text
        if self.anchored:
            self.compiled.match(given)
            self.compiled.fullmatch(given)
        else:
            for _ in self.compiled.finditer(given):
                pass


@functools.cache
def _patterns() -> dict[str, _Pattern]:
    """Every pattern once, by where it is. Loads the whole package, so only the process that runs these tests does."""
    root = Path(toolcrib.__file__).parent
    public = _methods("\n".join(path.read_text(encoding="utf-8") for path in root.rglob("*.py")))
    found = dict[str, _Pattern]()
    for module in _modules():
        if module.__name__.startswith(_OWN_TEXT):
            continue
        path = Path(module.__file__ or "")
        own = _methods(path.read_text(encoding="utf-8"))
        for name, value in tuple(vars(module).items()):
            used = (own if name.startswith("_") else public).get(name, {"search"})
            for number, pattern in enumerate(_held(value)):
                anchored = used <= _ANCHORED
                found[f"{module.__name__}.{name}[{number}]"] = _Pattern(pattern, anchored)
        for number, (method, pattern) in enumerate(_in_functions(path)):
            found[f"{module.__name__}, in a function [{number}]"] = _Pattern(pattern, method in _ANCHORED)
    for number, signal in enumerate(rules.all_signals()):
        found[f"toolcrib.trust.lint_rules.{signal.name}[{number}]"] = _Pattern(signal.pattern, anchored=False)
    for number, pattern in enumerate(_held(mistakes())):
        found[f"toolcrib.sandbox.mistakes[{number}]"] = _Pattern(pattern, anchored=False)
    seen = set[tuple[Any, int, bool]]()
    once = dict[str, _Pattern]()
    for place, one in found.items():
        key = (one.compiled.pattern, one.compiled.flags, one.anchored)
        if key not in seen:
            seen.add(key)
            once[place] = one
    return once


PACKAGES: Final = sorted(info.name for info in pkgutil.iter_modules(toolcrib.__path__, "toolcrib."))


def _patterns_of(package: str) -> dict[str, _Pattern]:
    return {place: one for place, one in _patterns().items() if re.match(rf"{re.escape(package)}[.,]", place)}


def _pieces(pattern: re.Pattern[Any]) -> list[str]:
    """Literal parts of a pattern: the beginnings of matches that fail."""
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    return list(dict.fromkeys(piece.strip() for piece in _PIECE.findall(source)))[:_MAX_PIECES]


def _near_misses(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Starts and units of texts that begin like a match again and again, or once and then go on for long."""
    for piece in _pieces(pattern):
        yield from (("", unit) for unit in (piece, f"{piece} ", f"{piece} a ", f"a {piece}\n"))
        yield from ((start, unit) for start in (piece, f"{piece} ") for unit in _FILLERS)


def _first_slow(pattern: _Pattern, texts: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first text, as a start and a repeated unit, that takes more than linear time to search."""
    for start, unit in texts:
        began = time.thread_time()
        pattern.read(start + repeated(unit, _LENGTH))
        suspect = time.thread_time() - began > _SUSPECT_S
        if suspect and growth(pattern.read, unit, 2 * _LENGTH, start=start) > MAX_GROWTH:
            return start, unit
    return None


def test_all_patterns_are_found() -> None:
    patterns = _patterns()
    assert len(patterns) > 300
    assert "toolcrib.sanitize._SECRETS[0]" in patterns
    assert "toolcrib.trust.lint, in a function [0]" in patterns
    assert any(place.startswith("toolcrib.trust.lint_rules.give[") for place in patterns)
    assert sum(len(_patterns_of(package)) for package in PACKAGES) == len(patterns)


@pytest.mark.parametrize("package", PACKAGES)
def test_patterns_take_time_linear_in_long_texts(package: str) -> None:
    found = {place: _first_slow(one, (("", unit) for unit in UNITS)) for place, one in _patterns_of(package).items()}
    assert {place: text for place, text in found.items() if text is not None} == {}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_patterns_take_time_linear_in_texts_that_nearly_match_them(package: str) -> None:
    found = {place: _first_slow(one, _near_misses(one.compiled)) for place, one in _patterns_of(package).items()}
    assert {place: text for place, text in found.items() if text is not None} == {}
