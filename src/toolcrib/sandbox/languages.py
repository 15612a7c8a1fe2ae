"""Script languages: what the rest of toolcrib needs to know about Lua and Python.

A further language is one more `ScriptLanguage` here with its part of `mistakes.toml`, an engine beside `lua.py`, its
side in `worker/`, and what makes it in `toolcrib.scripting.engines`. Elsewhere, only public names such as the limit
`lua_bytes` mention a language. Importing this module loads no engine.

A tool's name that already is an identifier stays as it is. Every other name is turned into one; if two names collide,
the changed ones get a hash of the original. So no tool ever answers to another tool's name, and the order in which
tools are added does not matter. A colliding name can change when another tool is added, so always show the mapping.
"""

import builtins
import json
import keyword
import re
import sys
import tomllib
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from toolcrib.sandbox.result import SeenCall

_MIN_HASH_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerNames:
    """A server's original name, and its tools: identifier in the script -> original name."""

    original: str
    tools: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A usual mistake of a script's author."""

    error: re.Pattern[str]
    """Found in the engine's message."""
    hint: str
    """What to write instead; `{0}` is the first group of `error`."""
    source: re.Pattern[str] | None = None
    """Found in the script too, if the message alone is not enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptLanguage:
    """A language that scripts can be written in."""

    name: str
    title: str
    """The name as people write it."""
    suffix: str
    """Of script files, with the dot."""
    comment: str
    """What begins a comment that ends with the line."""
    literals: re.Pattern[str]
    """Matches comments and strings, where no call is found."""
    package: str
    """The package that the engine needs, and that may not be installed."""
    aborts_without_memory: bool = False
    """Whether a process of the engine ends with SIGABRT when it is out of memory."""
    confuses_empty: bool = False
    """Whether an empty array and an empty object are the same value; the tool's schema then decides which is sent."""
    identifier: Callable[[str], str]
    """A name as an identifier; two names can give the same one."""
    globals: frozenset[str]
    """Names that no server may have."""
    avoid: Callable[[str], str]
    """Another identifier for a server whose own is a global."""
    await_hint: str
    """What to do about a call that was never awaited."""
    arguments_prefix: Callable[[str], str]
    """Source to put before a script, so that it has `args`; given the arguments as JSON."""
    prefix_lines: int = 0
    """By how many lines the prefix moves the script."""
    skips_shebang: bool = False
    """Whether the engine ignores a first line that begins with `#`."""
    usage: str
    """How a script calls tools and gives its result, for a model."""
    example_call: Callable[[str, Sequence[str]], str]
    """An example call of a function with these parameters."""
    read_result: str
    """An expression that is the value of `{server}.get` for the text `{handle}`."""


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


def hint_for(message: str, source: str, language: ScriptLanguage) -> str:
    """What helps the author of a script with that error, in a sentence or two; or an empty string.

    >>> hint_for("script:1: 'then' expected near '!'", "if a != b then end", LUA)
    'In Lua, "not equal" is written ~=.'
    """
    for mistake in mistakes()[language.name]:
        found = mistake.error.search(message)
        if found and (mistake.source is None or mistake.source.search(source)):
            return mistake.hint.format(*found.groups())
    return ""


@cache
def mistakes() -> Mapping[str, Sequence[Mistake]]:
    """The mistakes to explain, by language."""
    table = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))
    return {
        language: [_mistake(row, place, table["languages"]) for row in table[language]]
        for language, place in table["places"].items()
    }


def _mistake(row: Mapping[str, str], place: str, languages: Mapping[str, str]) -> Mistake:
    error = row["error"] if "error" in row else f"{place}(?:{row['line']})"
    source = languages[row["written_in"]] if "written_in" in row else row.get("source")
    return Mistake(re.compile(error), row["hint"], None if source is None else re.compile(source, re.MULTILINE))


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
    (SeenCall(server='calc-1', tool='add', line=2, known=True, problem=''),)
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


_LUA_RESERVED_TEXT: Final = """
    and break do else elseif end false for function goto if in local nil not or repeat return then true until
    while
"""
LUA_RESERVED: Final = frozenset(_LUA_RESERVED_TEXT.split())
_LUA_GLOBALS_TEXT: Final = """
    _G _VERSION _ENV assert await await_all coroutine error getmetatable ipairs json load math next null pairs
    pcall print rawequal rawget rawlen rawset result select setmetatable string table tonumber tostring type
    utf8 xpcall bit32 collectgarbage debug dofile io loadfile module newproxy os package python require unpack
    warn self
"""
LUA_GLOBALS: Final = frozenset(_LUA_GLOBALS_TEXT.split())
"""What a script has, and what other versions of Lua have: a server of such a name would be mistaken for it."""
PYTHON_RESERVED: Final = frozenset({*keyword.kwlist, *keyword.softkwlist, "self", "cls"})
PYTHON_GLOBALS: Final = frozenset({*sys.stdlib_module_names, *dir(builtins)})
_NON_WORD = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LUA_LITERALS = re.compile(
    r"""--\[(=*)\[.*?(?:\]\1\]|\Z)|--[^\n]*|\[(=*)\[.*?(?:\]\2\]|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""",
    re.DOTALL,
)
_PYTHON_LITERALS = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?''',
    re.DOTALL,
)


def sanitize_lua_identifier(name: str) -> str:
    """The name as a Lua identifier; two names can give the same one.

    >>> [sanitize_lua_identifier(name) for name in ("data-server", "my.api", "123numbers", "while", "")]
    ['data_server', 'my_api', '_123numbers', '_while', '_unnamed']
    """
    word = _to_word(name)
    if not word.strip("_"):
        return name if _IDENTIFIER.fullmatch(name) and name != "_" else "_unnamed"
    return f"_{word}" if word[0].isdigit() or word in LUA_RESERVED else word


def sanitize_python_identifier(name: str) -> str:
    """The name as a Python identifier without a leading underscore; two names can give the same one.

    >>> [sanitize_python_identifier(name) for name in ("data-server", "123numbers", "class", "_hidden")]
    ['data_server', 'x123numbers', 'class_', 'x_hidden']
    """
    word = _to_word(name)
    if not word.strip("_"):
        return "unnamed"
    if word[0].isdigit() or word[0] == "_":
        word = f"x{word}"
    return f"{word}_" if word in PYTHON_RESERVED else word


def _to_word(name: str) -> str:
    plain = name if name.isascii() else _strip_accents(name)
    return _NON_WORD.sub("_", plain)


def _strip_accents(name: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFKD", name) if not unicodedata.combining(char))


def _lua_arguments(text: str) -> str:
    r"""Arguments for a Lua script, on the script's own first line.

    >>> _lua_arguments('{"n": 1}')
    'local args = json.decode("{\\"n\\": 1}"); '
    """
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'local args = json.decode("{quoted}"); '


def _python_arguments(text: str) -> str:
    """Arguments for a Python script, on a line before it."""
    return f"from json import loads as _loads; args: dict = _loads({text!r})\n"


def _lua_call(function: str, names: Sequence[str]) -> str:
    """An example call.

    >>> print(_lua_call("mail.send", ["to", "end"]))
    local result = mail.send({
      to = ...,
      ["end"] = ...
    }):await()
    """
    fields = ",\n".join(f"  {_lua_key(name)} = ..." for name in names)
    return f"local result = {function}({{\n{fields}\n}}):await()" if fields else f"local result = {function}():await()"


def _lua_key(name: str) -> str:
    is_plain = _IDENTIFIER.fullmatch(name) and name not in LUA_RESERVED
    return name if is_plain else f"[{json.dumps(name, ensure_ascii=False)}]"


def _python_call(function: str, names: Sequence[str]) -> str:
    """An example call.

    >>> _python_call("mail.send", ["to"]), _python_call("mail.send", ["reply-to"])
    ('result = await mail.send(to=...)', 'result = await mail.send({"reply-to": ...})')
    """
    if all(_IDENTIFIER.fullmatch(name) for name in names):
        return f"result = await {function}({', '.join(f'{name}=...' for name in names)})"
    return f"result = await {function}({{{', '.join(f'{json.dumps(name)}: ...' for name in names)}}})"


LUA: Final = ScriptLanguage(
    name="lua",
    title="Lua",
    suffix=".lua",
    comment="--",
    literals=_LUA_LITERALS,
    package="lupa",
    identifier=sanitize_lua_identifier,
    globals=LUA_GLOBALS,
    avoid="_{}".format,
    confuses_empty=True,
    await_hint="add :await() to wait for it",
    arguments_prefix=_lua_arguments,
    skips_shebang=True,
    usage=(
        "In Lua, `server.tool({name = value})` starts a call at once and `:await()` waits for what it gives; "
        "`await_all({p1, p2})` waits for several. A tool that fails raises an error, which `pcall` or `promise:try()` "
        "catches. Give the result with `result(value)` or `return value`. Example: "
        "`local sum = calculator.add({ a = 10, b = 20 }):await() result({ sum = sum })`."
    ),
    example_call=_lua_call,
    read_result='{server}.get({{handle = "{handle}"}}):await()',
)
PYTHON: Final = ScriptLanguage(
    name="python",
    title="Python",
    suffix=".py",
    comment="#",
    literals=_PYTHON_LITERALS,
    package="pydantic_monty",
    aborts_without_memory=True,
    identifier=sanitize_python_identifier,
    globals=PYTHON_GLOBALS,
    avoid="{}_".format,
    await_hint="put await before it to wait for it",
    arguments_prefix=_python_arguments,
    prefix_lines=1,
    usage="In Python, `await server.tool(name=value)` calls, and the last expression is the result.",
    example_call=_python_call,
    read_result='(await {server}.get(handle="{handle}"))',
)
LANGUAGES: Final[Mapping[str, ScriptLanguage]] = {one.name: one for one in (LUA, PYTHON)}
"""By name, the usual language first."""
DEFAULT_LANGUAGE: Final = LUA.name
