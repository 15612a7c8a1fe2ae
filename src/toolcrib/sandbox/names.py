"""Identifiers of servers and tools in scripts, and the calls that can be found in a script's source.

A name that already is an identifier stays as it is. Every other name is turned into one; if two names collide, the
changed ones get a hash of the original. So no tool ever answers to another tool's name, and the order in which tools
are added does not matter. A colliding name can change when another tool is added, so always show the mapping.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from toolcrib.sandbox.languages import ScriptLanguage
from toolcrib.sandbox.result import SeenCall

_MIN_HASH_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """A server's original name, and its tools: identifier in the script -> original name."""

    original: str
    tools: Mapping[str, str]


def script_names(servers: Mapping[str, Iterable[str]], language: ScriptLanguage) -> dict[str, ServerNames]:
    """The identifiers of servers and their tools in a script: identifier -> names, ordered by identifier.

    `servers` maps a server's name to the names of its tools. No server gets the name of a global of the language.

    >>> from toolcrib.sandbox.languages import LUA
    >>> script_names({"data-server": ["get", "get-user"]}, LUA)
    {'data_server': ServerNames(original='data-server', tools={'get': 'get', 'get_user': 'get-user'})}
    """
    return {
        identifier: ServerNames(original=original, tools=_assign_identifiers(servers[original], language))
        for identifier, original in _assign_identifiers(servers, language, language.globals).items()
    }


def _assign_identifiers(
    names: Iterable[str], language: ScriptLanguage, taken: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Identifier -> name, ordered by identifier."""
    wanted: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        identifier = language.identifier(name)
        wanted.setdefault(language.avoid(identifier) if identifier in taken else identifier, []).append(name)
    found = {identifier: group[0] for identifier, group in wanted.items() if len(group) == 1}
    found |= {identifier: identifier for identifier, group in wanted.items() if identifier in group}
    for identifier, group in wanted.items():
        for name in group:
            if found.get(identifier) != name:
                found[_with_hash(identifier, name, found, wanted)] = name
    return dict(sorted(found.items()))


def _with_hash(identifier: str, name: str, found: Mapping[str, str], wanted: Mapping[str, object]) -> str:
    """The identifier with as much of the name's hash as makes it unique."""
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    sizes = range(_MIN_HASH_DIGITS, len(digest) + 1)
    return next(
        candidate
        for size in sizes
        if (candidate := f"{identifier}_{digest[:size]}") not in found and candidate not in wanted
    )


# -- calls in the source -------------------------------------------------------------------------------------------

_DOTTED_CALL = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*[.:][ \t]*([A-Za-z_]\w*)")
_INDEXED_CALL = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*\[[ \t]*(\"[^\"\n]*\"|'[^'\n]*')[ \t]*\]")
_LINE_END = re.compile("\n")
_MAX_FOUND_CALLS: Final = 200


def find_calls(source: str, language: ScriptLanguage, servers: Mapping[str, ServerNames]) -> tuple[SeenCall, ...]:
    """Uses of `server.tool`, in the order of the script, once per line, at most 200; under the tools' original names.

    Regular expressions find them, since a hostile script could break a parser. Calls through computed names, variables
    or code in strings are not found.

    >>> from toolcrib.sandbox.languages import LUA
    >>> names = {"calc": ServerNames(original="calc-1", tools={"add": "add"})}
    >>> find_calls("-- calc.sub{}\\nreturn calc.add{a=1}:await()", LUA, names)
    (SeenCall(server='calc-1', tool='add', line=2, known=True),)
    """
    plain = language.literals.sub(_blank_out, source)
    lines = [match.start() for match in _LINE_END.finditer(source)]
    found = {(match.start(), match[1], match[2]) for match in _DOTTED_CALL.finditer(plain) if match[1] in servers}
    for match in _INDEXED_CALL.finditer(source):
        if match[1] in servers and plain[match.start()] == source[match.start()]:
            found.add((match.start(), match[1], match[2][1:-1]))
    calls: dict[SeenCall, None] = {}
    for start, server, tool in sorted(found):
        names = servers[server]
        known = tool in names.tools or tool in names.tools.values()
        line = bisect_left(lines, start) + 1
        original = names.tools.get(tool, tool)
        calls.setdefault(SeenCall(server=names.original, tool=original, line=line, known=known))
        if len(calls) == _MAX_FOUND_CALLS:
            break
    return tuple(calls)


def _blank_out(match: "re.Match[str]") -> str:
    """As many spaces, with the line ends kept."""
    return re.sub(r"[^\n]", " ", match[0])
