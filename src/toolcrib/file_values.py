"""What a settings file may give for an option, beside what the type of the option says.

Options are annotated with these. Pydantic applies them when it validates a file; nothing here imports it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from toolcrib.checks import Constraint

_MAX_QUOTED: Final = 60


class SettingError(ValueError):
    """What is wrong with a value of a settings file, in words that follow the name of its field."""


@dataclass(frozen=True, slots=True)
class InFiles:
    """What a value must also be where a settings file gives it: in a program, an empty text can be of use, for one.

    `must` is a range, or a function that returns what is wrong, or an empty string. With `raw`, it gets the value as
    the file has it, before it is converted.
    """

    must: Constraint | Callable[[Any], str]
    raw: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Add the check to pydantic's schema."""
        schema = {
            "type": "function-before" if self.raw else "function-after",
            "function": {"type": "no-info", "function": self.check},
            "schema": handler(source),
        }
        return self.must.worded(schema) if isinstance(self.must, Constraint) else schema

    def check(self, value: Any) -> Any:
        """Return the value. Raises `SettingError`."""
        if isinstance(self.must, Constraint):
            problem = "" if isinstance(value, str | bool) or self.must.includes(value) else self.must.description
        else:
            problem = self.must(value)
        if problem:
            raise SettingError(problem)
        return value


@dataclass(frozen=True, slots=True)
class OneOf:
    """The words of which a settings file may give one."""

    words: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Add the words to pydantic's schema."""
        return {"type": "chain", "steps": [handler(source), {"type": "literal", "expected": list(self.words)}]}


def quoted(value: object) -> str:
    """A text, a number, true, false or null as a file has it, cut to 60 characters.

    >>> quoted("mcp")
    '"mcp"'
    """
    whole = json.dumps(value, ensure_ascii=False)
    return whole if len(whole) <= _MAX_QUOTED else f"{whole[: _MAX_QUOTED - 3]}..."


def file_problem(path: Any) -> str:
    """What is wrong with the path of a file in a settings file; empty if nothing is."""
    if not isinstance(path, str):
        return ""
    if not path.strip():
        return "must not be empty"
    return f"names a folder: {path}; name a file in it" if path.endswith(("/", "\\")) else ""


Text = Annotated[str, InFiles(lambda text: "" if text.strip() else "must not be empty")]
"""A text that is not empty in a file."""
