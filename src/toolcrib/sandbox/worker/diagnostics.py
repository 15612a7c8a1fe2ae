"""What a type check of a script says, and which of it is reason enough not to run it.

A checker knows less than the script's author: it is believed where a call cannot succeed, and not where it only doubts.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_LINE = re.compile(r"^[^\n]*?:(\d+):\d+: (\w+)\[([\w-]+)\] (.*)$", re.MULTILINE)
_CALLS = frozenset(
    {
        "missing-argument",
        "unknown-argument",
        "invalid-argument-type",
        "too-many-positional-arguments",
        "parameter-already-assigned",
        "unresolved-reference",
    }
)
_DOUBT = re.compile(
    r"Expected `[^`]*Literal\[[^`]*`, found `(?:str|int|bool|LiteralString)`"
    r"|found `(?:object|[^`]*(?: \| |Unknown|Any)[^`]*)`"
)
"""A value that may well be one of those listed, or is not known well enough."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, with its line of the script, from 1."""

    line: int
    rule: str
    message: str


def refusals(text: str, servers: Iterable[str]) -> list[Diagnostic]:
    """The findings for which a script is not run, of the checker's output in its short form.

    >>> refusals("s:2:7: error[unresolved-attribute] Module `calc` has no member `ad`", ["calc"])
    [Diagnostic(line=2, rule='unresolved-attribute', message='Module `calc` has no member `ad`')]
    """
    modules = tuple(f"Module `{server}` has no member" for server in servers)
    found = [Diagnostic(int(line), rule, said) for line, level, rule, said in _LINE.findall(text) if level == "error"]
    return [item for item in found if _refused(item, modules)]


def _refused(item: Diagnostic, modules: tuple[str, ...]) -> bool:
    if item.rule in _CALLS:
        return not _DOUBT.search(item.message)
    if item.rule == "unresolved-attribute":
        return item.message.startswith(modules) if modules else False
    if item.rule == "invalid-syntax":
        return "`return` statement outside" not in item.message
    return item.rule == "not-subscriptable" and "CoroutineType" in item.message
