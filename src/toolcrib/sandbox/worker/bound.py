"""Arguments and results within bounds: what comes out of an engine that gives real Python objects, as JSON."""

import json
import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

_CALL = re.compile(r"<coroutine external_future\((\d{1,9})\)>")
_FUNCTION = re.compile(r"<function '[^']{1,100}' (?:at 0x[0-9a-f]{1,16}|external)>|<built-in function [\w.]{1,100}>")
_MAX_DIGITS_BITS = 4096
"""Larger whole numbers are no numbers of anybody's JSON."""


class OutOfBounds(ValueError):
    """The value is too large, too deep, or nothing that JSON can carry; the text begins with where."""


def encoded(value: object, root: str, limits: Mapping[str, int], calls: Mapping[int, str]) -> bytes:
    """The value as JSON. Raises `OutOfBounds`; a value shared a million times counts a million times.

    `calls` are those that were not awaited, by number: their place in a value is a mistake.
    """
    copy = _Copy(root, limits, calls)
    text = json.dumps(copy.copy(value, ()), ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > limits["out_bytes"]:
        raise copy.too_large()
    return text


def depth_of(value: object, most: int) -> int:
    """How deep plain JSON is nested; looked at no deeper than one level past `most`."""
    depth, level = 0, [value]
    while level and depth <= most:
        within: list[object] = []
        for item in level:
            if isinstance(item, dict):
                within.extend(item.values())
            elif isinstance(item, list):
                within.extend(item)
        if not within:
            break
        depth, level = depth + 1, within
    return depth


class _Copy:
    def __init__(self, root: str, limits: Mapping[str, int], calls: Mapping[int, str]) -> None:
        self._root = root
        self._calls = calls
        self._limits = limits
        self._nodes = 0
        self._bytes = 0

    def copy(self, value: object, path: tuple[str | int, ...]) -> Any:
        self._nodes += 1
        if self._nodes > self._limits["nodes"]:
            raise OutOfBounds(f"{self._root} is larger than {self._limits['nodes']} values")
        if value is None or isinstance(value, bool):
            self._count(4)
            return value
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, int | float):
            return self._number(value, path)
        if len(path) >= self._limits["depth"] and isinstance(value, list | tuple | Mapping):
            raise self._wrong(path, f"is nested deeper than {self._limits['depth']} levels")
        if isinstance(value, Mapping):
            return {self._key(key, path): self.copy(item, (*path, str(key)[:60])) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, (*path, place)) for place, item in enumerate(value)]
        raise self._wrong(path, f"is {_called(value)}, which JSON cannot carry{_instead(value)}")

    def _text(self, value: str, path: tuple[str | int, ...]) -> str:
        if len(value) > self._limits["out_bytes"]:  # before it is encoded
            raise self.too_large()
        if value.startswith("<"):
            self._check_shown(value, path)
        try:
            self._count(len(value.encode()) + 2)
        except UnicodeEncodeError:
            raise self._wrong(path, "is not valid Unicode; base64-encode binary data") from None
        return str(value)

    def _check_shown(self, value: str, path: tuple[str | int, ...]) -> None:
        """What JSON cannot carry comes from the interpreter as the text that `repr` shows."""
        call = _CALL.fullmatch(value)
        if call and int(call[1]) in self._calls:
            raise self._wrong(
                path, f"is the call {self._calls[int(call[1])]}, which was not awaited; put await before it"
            )
        if _FUNCTION.fullmatch(value):
            raise self._wrong(path, "is a function or an object, which JSON cannot carry")

    def _number(self, value: float, path: tuple[str | int, ...]) -> int | float:
        if isinstance(value, int):
            if value.bit_length() > _MAX_DIGITS_BITS:
                raise self._wrong(path, "is a number with too many digits; make a text of it")
            self._count(value.bit_length() // 3 + 1)
            return int(value)
        if not isfinite(value):
            raise self._wrong(path, f"is {value}, which JSON cannot carry")
        self._count(16)
        return float(value)

    def _key(self, key: object, path: tuple[str | int, ...]) -> str:
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise self._wrong(path, f"has a key that is a {type(key).__name__}; keys are texts")
        if isinstance(key, int):
            return str(self._number(key, path))
        return self._text(key, path)

    def _count(self, size: int) -> None:
        self._bytes += size + 1
        if self._bytes > self._limits["out_bytes"]:
            raise self.too_large()

    def too_large(self) -> OutOfBounds:
        """The error of a value with too many bytes."""
        return OutOfBounds(f"{self._root} is larger than {self._limits['out_bytes']} bytes")

    def _wrong(self, path: tuple[str | int, ...], what: str) -> OutOfBounds:
        shown = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path[:12])
        return OutOfBounds(f"{self._root}{shown}{'...' if len(path) > 12 else ''} {what}")  # noqa: PLR2004


def _instead(value: object) -> str:
    if isinstance(value, set | frozenset):
        return "; make a list of it"
    if isinstance(value, bytes):
        return "; base64-encode binary data"
    return ""


def _called(value: object) -> str:
    """Its type, unless that is the engine's own business."""
    name = type(value).__name__
    return "a function or an object" if name.startswith("Monty") else f"a {name}"
