"""Names of servers and tools as a script writes them.

A name that is an identifier already stays as it is. Every other name is made into one, and where two would meet, those
that had to be changed carry a hash of what they were. So no tool ever answers to another's name, and nothing depends on
the order in which tools are known. Names that clash can change when a neighbour comes: always show the mapping.
"""

import builtins
import keyword
import re
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

Language = Literal["lua", "python"]

LUA_RESERVED: Final = frozenset(
    [
        "and",
        "break",
        "do",
        "else",
        "elseif",
        "end",
        "false",
        "for",
        "function",
        "goto",
        "if",
        "in",
        "local",
        "nil",
        "not",
        "or",
        "repeat",
        "return",
        "then",
        "true",
        "until",
        "while",
    ]
)
LUA_GLOBALS: Final = frozenset(
    [
        "_G",
        "_VERSION",
        "_ENV",
        "assert",
        "await",
        "await_all",
        "coroutine",
        "error",
        "getmetatable",
        "ipairs",
        "json",
        "load",
        "math",
        "next",
        "null",
        "pairs",
        "pcall",
        "print",
        "rawequal",
        "rawget",
        "rawlen",
        "rawset",
        "result",
        "select",
        "setmetatable",
        "string",
        "table",
        "tonumber",
        "tostring",
        "type",
        "utf8",
        "xpcall",
        "bit32",
        "collectgarbage",
        "debug",
        "dofile",
        "io",
        "loadfile",
        "module",
        "newproxy",
        "os",
        "package",
        "python",
        "require",
        "unpack",
        "warn",
        "self",
    ]
)
"""What a script has, and what other Luas have: a server of such a name would be taken for it."""
PYTHON_RESERVED: Final = frozenset({*keyword.kwlist, *keyword.softkwlist, "self", "cls"})
PYTHON_GLOBALS: Final = frozenset({*sys.stdlib_module_names, *dir(builtins)})

_NOT_WORD = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_FIRST_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """A server's own name, and its tools: the script's identifier -> the tool's own name."""

    original: str
    tools: Mapping[str, str]


def sanitize_lua_identifier(name: str) -> str:
    """The name as a Lua identifier, by itself: it may meet another's.

    >>> [sanitize_lua_identifier(name) for name in ("data-server", "my.api", "123numbers", "while", "")]
    ['data_server', 'my_api', '_123numbers', '_while', '_unnamed']
    """
    word = _word(name)
    if not word.strip("_"):
        return name if _IDENTIFIER.fullmatch(name) and name != "_" else "_unnamed"
    return f"_{word}" if word[0].isdigit() or word in LUA_RESERVED else word


def sanitize_python_identifier(name: str) -> str:
    """The name as a Python identifier without an underscore at its front, by itself: it may meet another's.

    >>> [sanitize_python_identifier(name) for name in ("data-server", "123numbers", "class", "_hidden")]
    ['data_server', 'x123numbers', 'class_', 'x_hidden']
    """
    word = _word(name)
    if not word.strip("_"):
        return "unnamed"
    if word[0].isdigit() or word[0] == "_":
        word = f"x{word}"
    return f"{word}_" if word in PYTHON_RESERVED else word


def sanitize(name: str, language: Language) -> str:
    """The name as an identifier of that language, by itself."""
    return sanitize_lua_identifier(name) if language == "lua" else sanitize_python_identifier(name)


def bindings(servers: Mapping[str, Iterable[str]], language: Language) -> dict[str, ServerNames]:
    """What a script calls each server and each of its tools: identifier -> names, ordered by identifier.

    `servers` maps a server's name to the names of its tools. No server is called like a global of the language.

    >>> bindings({"data-server": ["get", "get-user"]}, "lua")
    {'data_server': ServerNames(original='data-server', tools={'get': 'get', 'get_user': 'get-user'})}
    """
    taken = LUA_GLOBALS if language == "lua" else PYTHON_GLOBALS
    return {
        identifier: ServerNames(original=original, tools=_identifiers(servers[original], language))
        for identifier, original in _identifiers(servers, language, taken).items()
    }


def _identifiers(names: Iterable[str], language: Language, taken: frozenset[str] = frozenset()) -> dict[str, str]:
    """Identifier -> name, ordered by identifier."""
    wanted: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        wanted.setdefault(_away_from(taken, sanitize(name, language), language), []).append(name)
    found = {identifier: group[0] for identifier, group in wanted.items() if len(group) == 1}
    found |= {identifier: identifier for identifier, group in wanted.items() if identifier in group}
    for identifier, group in wanted.items():
        for name in group:
            if found.get(identifier) != name:
                found[_hashed(identifier, name, found, wanted)] = name
    return dict(sorted(found.items()))


def _away_from(taken: frozenset[str], word: str, language: Language) -> str:
    if word not in taken:
        return word
    return f"_{word}" if language == "lua" else f"{word}_"


def _hashed(identifier: str, name: str, found: Mapping[str, str], wanted: Mapping[str, object]) -> str:
    """The identifier and as much of the name's hash as tells it from all others."""
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    sizes = range(_FIRST_DIGITS, len(digest) + 1)
    return next(
        candidate
        for size in sizes
        if (candidate := f"{identifier}_{digest[:size]}") not in found and candidate not in wanted
    )


def _word(name: str) -> str:
    plain = name if name.isascii() else _without_marks(name)
    return _NOT_WORD.sub("_", plain)


def _without_marks(name: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))
