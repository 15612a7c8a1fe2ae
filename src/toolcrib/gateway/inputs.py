"""Arguments for a script: the global `args`, put before its text, and taken out of what its errors say of lines."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from toolcrib.errors import InvalidRequest, ScriptFailed, ScriptRefused
from toolcrib.model import Object

_PLACES: Final = re.compile(r"^script:(\d+)", re.MULTILINE)
_FRAMES: Final = re.compile(r'^(  File "script", line )(\d+)', re.MULTILINE)
_MOST_BITS: Final = 4096
"""Larger whole numbers are no numbers of anybody's JSON."""
_SHOWN: Final = 40
_BOM: Final = "\ufeff"


def with_arguments(source: str, arguments: Object, language: str, limits: Any) -> tuple[str, Any]:
    """The script with its arguments as `args`, and its limits, in which they do not count as a part of its source.

    They may be as large and as deep as those of one call, which `limits.out_bytes` and `limits.depth` say. Raises
    `InvalidRequest`, which names the argument that JSON cannot carry.
    """
    if len(source.encode(errors="surrogatepass")) > limits.script_bytes:
        return source, limits  # it is refused as it is, and told its own size
    before = first_line(_as_json(arguments, limits), language)
    source = source.removeprefix(_BOM)
    if language == "lua" and source.startswith("#"):
        before += "--"  # a first line for the shell, which is no longer the first
    return before + source, replace(limits, script_bytes=limits.script_bytes + len(before.encode()))


def first_line(text: str, language: str) -> str:
    r"""What stands before a script: its arguments, given as JSON. In Python it is a line of its own.

    >>> first_line('{"n": 1}', "lua")
    'local args = json.decode("{\\"n\\": 1}"); '
    >>> first_line('{"n": 1}', "python")
    'from json import loads as _loads; args: dict = _loads(\'{"n": 1}\')\n'
    """
    if language == "lua":
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        return f'local args = json.decode("{quoted}"); '
    return f"from json import loads as _loads; args: dict = _loads({text!r})\n"


def as_written(error: ScriptFailed, language: str) -> None:
    """Have an error of a script with arguments speak of the lines that its author wrote.

    Only what the engine says of places is changed, never what a tool or the script itself said.
    """
    if language == "lua":
        return
    data: dict[str, Any] = dict(error.data)
    if isinstance(line := data.get("line"), int):
        data["line"] = max(1, line - 1)
    trace = str(data.get("traceback", ""))
    frames = trace.removesuffix(error.message)
    data["traceback"] = _FRAMES.sub(_one_less, frames) + trace[len(frames) :]
    error.data = data
    if isinstance(error, ScriptRefused):
        error.message = _PLACES.sub(lambda match: f"script:{max(1, int(match[1]) - 1)}", error.message)


def _one_less(match: re.Match[str]) -> str:
    return f"{match[1]}{max(1, int(match[2]) - 1)}"


def _as_json(arguments: Object, limits: Any) -> str:
    try:
        text = json.dumps(dict(arguments), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise _no_arguments(_fault(arguments, "arguments", limits.depth) or f"arguments: {error}") from None
    if size > limits.out_bytes:
        raise _no_arguments(f"arguments are {size} bytes of JSON, and {limits.out_bytes} are allowed")
    if _is_deep(arguments, limits.depth):
        raise _no_arguments(_fault(arguments, "arguments", limits.depth) or "arguments are nested too deep")
    return text


def _no_arguments(what: str) -> InvalidRequest:
    return InvalidRequest(f"The script's {what}.", hint="Send arguments that are plain JSON, and not too much of it.")


def _is_deep(value: object, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [item for one in level for item in _items(one) if isinstance(item, Mapping | list | tuple)]
    return bool(level)


def _items(value: object) -> Any:
    return value.values() if isinstance(value, Mapping) else value


def _fault(value: object, where: str, left: int) -> str:
    """What is wrong first, and where; empty where nothing is."""
    if not isinstance(value, Mapping | list | tuple):
        return _plain_fault(value, where)
    if left == 0:
        return f"{where[:_SHOWN]}... is nested too deep"
    named = value.items() if isinstance(value, Mapping) else enumerate(value)
    for key, item in named:
        fault = _key_fault(key, where) or _fault(item, f"{where}{_step(key)}", left - 1)
        if fault:
            return fault
    return ""


def _plain_fault(value: object, where: str) -> str:
    if isinstance(value, str):
        return "" if _is_unicode(value) else f"{where} is not valid Unicode; base64-encode binary data"
    if isinstance(value, int):
        return f"{where} is a number with too many digits; send a text" if value.bit_length() > _MOST_BITS else ""
    if isinstance(value, float):
        return "" if math.isfinite(value) else f"{where} is {value}, which JSON cannot carry"
    return "" if value is None else f"{where} is a {type(value).__name__}, which JSON cannot carry"


def _key_fault(key: object, where: str) -> str:
    if not isinstance(key, str | int | float | None):
        return f"{where} has a key that is a {type(key).__name__}; keys are texts"
    return "" if _is_unicode(str(key)) else f"{where} has a key that is not valid Unicode"


def _step(key: object) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{str(key)[:_SHOWN]}"


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
