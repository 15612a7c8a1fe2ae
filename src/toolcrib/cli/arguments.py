"""The arguments of a call as the command line gives them."""

import sys
from pathlib import Path
from typing import Any

from toolcrib.cli.guard import UsageError
from toolcrib.settings import jsonc

_HINT = """Write an object, quoted for the shell: --args '{"name": "value"}'"""


def read_arguments(given: str) -> dict[str, Any]:
    """The object that is given as JSON, in a file (`@FILE`) or on standard input (`-`). Raises `UsageError`."""
    text, source = _text(given)
    try:
        value = jsonc.parse(text).value
    except jsonc.TextError as error:
        place = f"line {error.line}, column {error.column}"
        raise UsageError(f"{source} is not JSON: {error.message} ({place}).", hint=_HINT) from None
    if not isinstance(value, dict):
        raise UsageError(f"{source} must be a JSON object.", hint=_HINT)
    return value


def _text(given: str) -> tuple[str, str]:
    try:
        if given == "-":
            return sys.stdin.read(), "standard input"
        if given.startswith("@"):
            return Path(given[1:]).read_text(encoding="utf-8-sig"), given[1:]
    except UnicodeDecodeError:
        raise UsageError(f"{given} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{given[1:]} cannot be read: {error.strerror}.", hint="--args @FILE reads a file.") from None
    return given, "--args"
