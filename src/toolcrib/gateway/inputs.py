"""Arguments for a script: the global `args`, put before its text, and taken out of what its errors say of lines."""

import json
import re
from typing import Any, Final

from toolcrib.errors import ScriptFailed
from toolcrib.model import Object

_LINES: Final = re.compile(r"(\bscript:|\bline )(\d+)")


def with_arguments(source: str, arguments: Object, language: str) -> str:
    """The script with its arguments as `args`.

    In Lua they stand in the script's first line; in Python, where that cannot be, in one before it.

    >>> with_arguments("return args.n", {"n": 1}, "lua")
    'local args = json.decode("{\\\\"n\\\\": 1}") return args.n'
    >>> with_arguments("args['n']", {"n": 1}, "python")
    "args: dict = {'n': 1}\\nargs['n']"
    """
    if language == "lua":
        text = json.dumps(arguments, allow_nan=False).replace("\\", "\\\\").replace('"', '\\"')
        return f'local args = json.decode("{text}") {source}'
    plain = json.loads(json.dumps(arguments, allow_nan=False))
    return f"args: dict = {plain!a}\n{source}"


def as_written(error: ScriptFailed, language: str) -> None:
    """Have an error of a script with arguments speak of the lines that its author wrote."""
    if language == "lua":
        return
    data: dict[str, Any] = dict(error.data)
    if isinstance(line := data.get("line"), int):
        data["line"] = max(1, line - 1)
    data["traceback"] = _one_less(str(data.get("traceback", "")))
    error.data = data
    error.message = _one_less(error.message)


def _one_less(text: str) -> str:
    return _LINES.sub(lambda match: f"{match[1]}{max(1, int(match[2]) - 1)}", text)
