"""Lua 5.4 scripts: each runs in its own process, and is checked before for calls that cannot work.

The check reads the source with regular expressions, since a hostile script could break a parser. It looks at arguments
written as a table of names and values, and of the values only at strings, numbers, `true` and `false`.
"""

import re
import secrets
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from importlib import util
from itertools import islice
from typing import Any, Final, Self

import anyio
import anyio.to_thread

from toolcrib.errors import InvalidArguments, InvalidTool, MissingExtra, SandboxUnavailable
from toolcrib.sandbox.calls import Schemas
from toolcrib.sandbox.executor import ScriptSandbox
from toolcrib.sandbox.languages import LUA, LUA_RESERVED, ServerNames, find_calls
from toolcrib.sandbox.process import WorkerKind
from toolcrib.sandbox.result import SeenCall
from toolcrib.sandbox.worker import seccomp
from toolcrib.schema.validate import Schema
from toolcrib.types import JSON, Object


class LuaSandbox(ScriptSandbox):
    """Runs untrusted Lua scripts.

    A script sees each server as a global table: `server.tool{name = value}` starts a call and returns a promise;
    `promise:await()` waits for its value. On Linux every script has a process without files, network or privileges,
    behind a system call filter. On macOS and Windows, which are untested, it has its own process, the engine's limits
    and the deadlines, and `seccomp="require"` refuses to run.

        async with LuaSandbox() as box:
            result = await box.run("return calc.add{a=1, b=2}:await()", {"calc": {"add": add}})
    """

    language = LUA

    async def __aenter__(self) -> Self:
        """Raises `MissingExtra` without lupa, and `SandboxUnavailable` if no process can be started and locked down."""
        library = _lua_library()
        self._check_seccomp()
        await self._start(WorkerKind("lua", library))
        return self

    def _completed(
        self, job: dict[str, Any], servers: Mapping[str, ServerNames], schemas: Schemas | None
    ) -> dict[str, Any]:
        del servers, schemas
        return {**job, "seed": [secrets.randbits(62), secrets.randbits(62)]}  # forked processes would draw the same

    async def _find_calls(
        self, source: str, servers: Mapping[str, ServerNames], schemas: Schemas
    ) -> tuple[SeenCall, ...]:
        return await anyio.to_thread.run_sync(check_calls, source, servers, schemas)

    def _check_seccomp(self) -> None:
        missing = seccomp.missing()
        if missing and self.options.seccomp == "require":
            raise SandboxUnavailable(
                f"Scripts are not run here: {missing}.",
                hint='Set sandbox.seccomp to "try" to run them with the other protections and a warning, or to "off".',
            )


def _lua_library() -> str:
    """The file of the Lua binding. Raises `MissingExtra`."""
    try:
        spec = util.find_spec("lupa.lua54")
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise MissingExtra("The library 'lupa' is not installed.", hint="Run: pip install 'toolcrib[lua]'")
    return spec.origin


_NAME: Final = r"[A-Za-z_]\w*"
_ACCESS: Final = re.compile(rf"(?<![\w.:\"'\]])({_NAME})[ \t]*(?:\.[ \t]*({_NAME})[ \t]*)?(?=[({{\"'])", re.ASCII)
"""A name, or a name and its field, where they are called."""
_BINDING: Final = re.compile(
    rf"\blocal\s+(?:function\s+)?({_NAME}(?:\s*,\s*{_NAME})*)|\bfor\s+({_NAME}(?:\s*,\s*{_NAME})*)"
    rf"|\bfunction\s+({_NAME})|\b({_NAME})\s*(?:=(?!=)|,)",
    re.ASCII,
)
"""Where a script may define names; a name before a comma may be defined too."""
_PARAMETERS: Final = re.compile(r"\bfunction\b[^()\n]{0,200}\(([^)]{0,500})\)")
_WORD: Final = re.compile(_NAME, re.ASCII)
_OPENING: Final = re.compile(r"[ \t]*(?:\([ \t\n]*)?\{")
_FIELD: Final = re.compile(
    rf"\s*(?:({_NAME})|\[\s*(?:\"([^\"\\\n]*)\"|'([^'\\\n]*)')\s*\])\s*=(?!=)\s*"
    r"(?:\"([^\"\\\n]*)\"|'([^'\\\n]*)'|(-?\d+(?:\.\d+)?)(?![\w.])|(true|false)\b)?",
    re.ASCII,
)
_MAX_CHARS: Final = 65_536
"""Of a longer script, only the calls of known servers are found."""
_MAX_CALLS: Final = 100
"""Calls whose arguments are checked."""
_MAX_TABLE_CHARS: Final = 4_000
"""Longer tables are not checked."""
_OPEN: Final[JSON] = None
"""In place of a value that the source does not show."""


def check_calls(source: str, servers: Mapping[str, ServerNames], schemas: Schemas) -> tuple[SeenCall, ...]:
    """The calls in a script, those of unknown servers included, each with what is wrong with its arguments.

    >>> names = {"calc": ServerNames(original="calc", tools={"add": "add"})}
    >>> schemas = {"calc": {"add": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}
    >>> [call.problem for call in check_calls('calc.add{ a = "x" }\\ncalc.add{ a = x }', names, schemas)]
    ['"a" must be integer, not string.', '']
    """
    if len(source) > _MAX_CHARS:
        return find_calls(source, LUA, servers)
    plain = LUA.literals.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    found = {(call.line, call.server, call.tool): call for call in find_calls(source, LUA, servers)}
    for call in _unknown_names(plain, servers):
        found.setdefault((call.line, call.server, call.tool), call)
    for call in islice(_calls_with_arguments(source, plain, servers, schemas), _MAX_CALLS):
        key = (call.line, call.server, call.tool)
        if call.problem and key in found and not found[key].problem:
            found[key] = call
    return tuple(sorted(found.values(), key=lambda call: call.line))


def _unknown_names(plain: str, servers: Mapping[str, ServerNames]) -> Iterator[SeenCall]:
    """Calls of what is neither a server nor defined by the script."""
    parts = [part for match in _BINDING.finditer(plain) for part in match.groups() if part]
    parts += _PARAMETERS.findall(plain)
    words = {word for part in parts for word in _WORD.findall(part)}
    known = {*servers, *words, *LUA.globals, *LUA_RESERVED, "args"}
    lines = _line_ends(plain)
    for match in _ACCESS.finditer(plain):
        if match[1] not in known:
            server, tool = (match[1], match[2]) if match[2] else ("", match[1])
            yield SeenCall(server=server, tool=tool, line=bisect_left(lines, match.start()) + 1, known=False)


def _line_ends(source: str) -> list[int]:
    return [match.start() for match in re.finditer("\n", source)]


def _calls_with_arguments(
    source: str, plain: str, servers: Mapping[str, ServerNames], schemas: Schemas
) -> Iterator[SeenCall]:
    """The calls with a table of arguments, and what is wrong with these."""
    lines = _line_ends(source)
    for match in _ACCESS.finditer(plain):
        names = servers.get(match[1])
        tool = names.tools.get(match[2] or "") if names is not None else None
        schema = schemas.get(names.original, {}).get(tool) if names is not None and tool is not None else None
        opening = _OPENING.match(plain, match.end())
        if names is None or tool is None or schema is None or opening is None:
            continue
        given = _fields(source, plain, opening.end())
        problem = _problem(given, schema) if given is not None else ""
        line = bisect_left(lines, match.start()) + 1
        yield SeenCall(server=names.original, tool=tool, line=line, known=True, problem=problem)


def _fields(source: str, plain: str, start: int) -> dict[str, JSON] | None:
    """The fields of the table that begins there; None if it is not only names and values."""
    fields: dict[str, JSON] = {}
    at, depth, last = start, 0, start
    while at < min(len(plain), start + _MAX_TABLE_CHARS):
        char = plain[at]
        if char in "([{":
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
        elif char in ",;}" and not depth:
            if source[last:at].strip():
                field = _FIELD.match(source, last)
                if field is None:
                    return None
                name = next(part for part in field.groups()[:3] if part is not None)
                is_whole = not source[field.end() : at].strip()
                fields[name] = _literal(field) if is_whole else _OPEN
            if char == "}":
                return fields
            last = at + 1
        at += 1
    return None


def _literal(field: "re.Match[str]") -> JSON:
    text = field[4] if field[4] is not None else field[5]
    if text is not None:
        return text
    if field[6] is not None:
        return float(field[6]) if "." in field[6] else int(field[6])
    return field[7] == "true" if field[7] is not None else _OPEN


def _problem(given: dict[str, JSON], schema: Object) -> str:
    """Why the arguments cannot fit, whatever the values are that the source does not show."""
    hidden = [name for name, value in given.items() if value is _OPEN]
    properties = schema.get("properties")
    checked: dict[str, Any] = dict(schema)
    if hidden:
        if not isinstance(properties, dict) or checked.keys() & {"allOf", "anyOf", "oneOf", "not", "if", "$ref"}:
            return ""
        checked["properties"] = {**properties, **{name: {} for name in hidden if name in properties}}
    try:
        Schema(checked, "").accept(dict(given))
    except InvalidArguments as error:
        return error.message.removeprefix(": ").strip()
    except InvalidTool:
        return ""
    return ""
