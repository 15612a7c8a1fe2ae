"""Identifiers for servers and tools in scripts, and the calls that can be found in a script's source.

A name that already is an identifier stays as it is. Every other name is turned into one; if two names collide, the
changed ones get a hash of the original. So no tool ever answers to another tool's name, and the order in which tools
are added does not matter. A colliding name can change when another tool is added, so always show the mapping.
"""

import builtins
import keyword
import re
import sys
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Literal

from toolcrib.sandbox.result import SeenCall

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


_NON_WORD = re.compile(r"[^A-Za-z0-9_]")


_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


_MIN_HASH_DIGITS = 6


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
    word = _to_word(name)
    if not word.strip("_"):
        return name if _IDENTIFIER.fullmatch(name) and name != "_" else "_unnamed"
    return f"_{word}" if word[0].isdigit() or word in LUA_RESERVED else word


def sanitize_python_identifier(name: str) -> str:
    """The name as a Python identifier without an underscore at its front, by itself: it may meet another's.

    >>> [sanitize_python_identifier(name) for name in ("data-server", "123numbers", "class", "_hidden")]
    ['data_server', 'x123numbers', 'class_', 'x_hidden']
    """
    word = _to_word(name)
    if not word.strip("_"):
        return "unnamed"
    if word[0].isdigit() or word[0] == "_":
        word = f"x{word}"
    return f"{word}_" if word in PYTHON_RESERVED else word


def sanitize_identifier(name: str, language: Language) -> str:
    """The name as an identifier of that language, by itself."""
    return sanitize_lua_identifier(name) if language == "lua" else sanitize_python_identifier(name)


def script_names(servers: Mapping[str, Iterable[str]], language: Language) -> dict[str, ServerNames]:
    """What a script calls each server and each of its tools: identifier -> names, ordered by identifier.

    `servers` maps a server's name to the names of its tools. No server is called like a global of the language.

    >>> script_names({"data-server": ["get", "get-user"]}, "lua")
    {'data_server': ServerNames(original='data-server', tools={'get': 'get', 'get_user': 'get-user'})}
    """
    taken = LUA_GLOBALS if language == "lua" else PYTHON_GLOBALS
    return {
        identifier: ServerNames(original=original, tools=_assign_identifiers(servers[original], language))
        for identifier, original in _assign_identifiers(servers, language, taken).items()
    }


def _assign_identifiers(
    names: Iterable[str], language: Language, taken: frozenset[str] = frozenset()
) -> dict[str, str]:
    """Identifier -> name, ordered by identifier."""
    wanted: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        wanted.setdefault(_avoid_taken(taken, sanitize_identifier(name, language), language), []).append(name)
    found = {identifier: group[0] for identifier, group in wanted.items() if len(group) == 1}
    found |= {identifier: identifier for identifier, group in wanted.items() if identifier in group}
    for identifier, group in wanted.items():
        for name in group:
            if found.get(identifier) != name:
                found[_with_hash(identifier, name, found, wanted)] = name
    return dict(sorted(found.items()))


def _avoid_taken(taken: frozenset[str], word: str, language: Language) -> str:
    if word not in taken:
        return word
    return f"_{word}" if language == "lua" else f"{word}_"


def _with_hash(identifier: str, name: str, found: Mapping[str, str], wanted: Mapping[str, object]) -> str:
    """The identifier and as much of the name's hash as tells it from all others."""
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    sizes = range(_MIN_HASH_DIGITS, len(digest) + 1)
    return next(
        candidate
        for size in sizes
        if (candidate := f"{identifier}_{digest[:size]}") not in found and candidate not in wanted
    )


def _to_word(name: str) -> str:
    plain = name if name.isascii() else _strip_accents(name)
    return _NON_WORD.sub("_", plain)


def _strip_accents(name: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))


_LUA_TEXT = re.compile(
    r"""--\[(=*)\[.*?(?:\]\1\]|\Z)|--[^\n]*|\[(=*)\[.*?(?:\]\2\]|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""",
    re.DOTALL,
)


_PYTHON_TEXT = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?''',
    re.DOTALL,
)


_DOTTED_CALL = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*[.:][ \t]*([A-Za-z_]\w*)")


_INDEXED_CALL = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*\[[ \t]*(\"[^\"\n]*\"|'[^'\n]*')[ \t]*\]")


_LINE_END = re.compile("\n")


_MAX_FOUND_CALLS: Final = 200


def find_calls(source: str, language: Language, servers: Mapping[str, ServerNames]) -> tuple[SeenCall, ...]:
    """Uses of `server.tool`, in the order of the script, once a line, at most 200; under the names of the tools' owner.

    What is made by a computed name, through a variable, or by code in a text is not seen.

    >>> names = {"calc": ServerNames(original="calc-1", tools={"add": "add"})}
    >>> find_calls("-- calc.sub{}\\nreturn calc.add{a=1}:await()", "lua", names)
    (SeenCall(server='calc-1', tool='add', line=2, known=True),)
    """
    skipped = _LUA_TEXT if language == "lua" else _PYTHON_TEXT
    plain = skipped.sub(_blank_out, source)
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
    """As many characters, and the same lines."""
    return re.sub(r"[^\n]", " ", match[0])
