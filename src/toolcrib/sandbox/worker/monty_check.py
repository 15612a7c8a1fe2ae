"""Checks of a Python script before it makes a call: a quick one here, and what counts of the type checker's findings.

The type checker takes longer than most scripts run, so it is asked only about scripts in which the quick check finds
something that it might refuse: a name that nothing defines, a tool that its server lacks, or a call whose arguments do
not obviously fit. A script that passes the quick check can still hold type errors; those of a call are found by the
tool's schema when the call is made.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_NOT_OFFERED = frozenset(
    {"__import__", "breakpoint", "compile", "exit", "globals", "help", "input", "locals", "open", "quit"}
)
_KNOWN = frozenset({*dir(builtins), "call_tool", "result"}) - _NOT_OFFERED
"""Names that scripts may use. Any other one that the script does not define is for the type checker to judge."""
_NUMBERS = {"bool": ("bool", "int", "float"), "int": ("int", "float"), "float": ("float",)}
"""The types that accept a number of that type."""
_CONVERSIONS = frozenset({"str", "int", "float", "bool", "list", "dict", "tuple", "set", "bytes"})
_DISPLAYS: dict[type[ast.expr], str] = {
    ast.JoinedStr: "str",
    ast.List: "list",
    ast.ListComp: "list",
    ast.Tuple: "tuple",
    ast.Dict: "dict",
    ast.DictComp: "dict",
    ast.Set: "set",
    ast.SetComp: "set",
    ast.Lambda: "function",
    ast.GeneratorExp: "generator",
}


def needs_checker(source: str, servers: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the type checker might refuse the script. `servers` have `name`, `tools` with names, and a `stub`.

    >>> calc = {"name": "calc", "tools": [{"name": "add"}], "stub": "async def add(*, a: int) -> Any: ..."}
    >>> [needs_checker(f"await calc.{call}", [calc]) for call in ("add(a=1)", "add(a='1')", "add()", "ad(a=1)")]
    [False, True, True, True]
    """
    try:
        return not _QuickCheck(ast.parse(source), servers).passes()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True


class _QuickCheck:
    """What a script defines and uses, regardless of where in it."""

    def __init__(self, tree: ast.Module, servers: Sequence[Mapping[str, Any]]) -> None:
        self._nodes = list(ast.walk(tree))
        self._servers = {server["name"]: server for server in servers}
        self._tools = {name: {tool["name"] for tool in server["tools"]} for name, server in self._servers.items()}
        self._awaited = {id(node.value) for node in self._nodes if isinstance(node, ast.Await)}
        self._bound = {name for node in self._nodes for name in _bound_names(node)}
        self._values = self._single_values()

    def passes(self) -> bool:
        """Whether nothing in the script might be refused."""
        if not self._bound.isdisjoint(self._servers):
            return False  # the name may stand for a server or not
        return all(map(self._is_plain, self._nodes))

    def _single_values(self) -> dict[str, ast.expr]:
        """The values of variables that are assigned once, and in no other way."""
        values: dict[str, list[ast.expr | None]] = {}
        for node in self._nodes:
            simple = isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
            if isinstance(node, ast.Assign) and simple:
                values.setdefault(ast.unparse(node.targets[0]), []).append(node.value)
            elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor | ast.NamedExpr | ast.comprehension):
                for name in (one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)):
                    values.setdefault(name, []).append(None)
            elif isinstance(node, ast.arg):
                values.setdefault(node.arg, []).append(None)
        return {name: only for name, [only, *more] in values.items() if only is not None and not more}

    def _is_plain(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            return node.id in self._bound or node.id in _KNOWN or node.id in self._servers
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._servers:
            return node.attr in self._tools[node.value.id]
        if isinstance(node, ast.Subscript):
            return not self._is_pending(node.value)
        return not isinstance(node, ast.Call) or self._may_succeed(node)

    def _is_pending(self, node: ast.expr) -> bool:
        """Whether the value is a call of a tool that was not awaited."""
        node = self._resolve(node)
        return isinstance(node, ast.Call) and self._tool_of(node) is not None and id(node) not in self._awaited

    def _resolve(self, node: ast.expr) -> ast.expr:
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node

    def _tool_of(self, call: ast.Call) -> tuple[str, str] | None:
        """Server and tool that are called, as the script names them."""
        function = call.func
        if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
            return None
        return (function.value.id, function.attr) if function.value.id in self._servers else None

    # -- arguments -------------------------------------------------------------------------------------------------

    def _may_succeed(self, call: ast.Call) -> bool:
        tool = self._tool_of(call)
        if tool is None:
            return True
        if call.args or any(one.arg is None for one in call.keywords):
            return False
        parameters = self._parameters(*tool)
        if parameters is None:
            return False
        given = [one.arg for one in call.keywords]
        known = {one.arg: one.annotation for one in parameters.kwonlyargs}
        defaults = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        needed = {one.arg for one, default in defaults if default is None}
        if not needed <= set(given) or len(set(given)) < len(given):
            return False
        if parameters.kwarg is None and not set(given) <= known.keys():
            return False
        return all(self._fits(one.value, known.get(one.arg or "")) for one in call.keywords)

    def _parameters(self, server: str, tool: str) -> ast.arguments | None:
        """The parameters in the stub of that tool; None if it has none."""
        found = re.search(rf"^async def {tool}\(.*$", self._servers[server]["stub"], re.MULTILINE)
        function = ast.parse(found[0]).body[0] if found is not None else None
        return function.args if isinstance(function, ast.AsyncFunctionDef) else None

    def _fits(self, value: ast.expr, kind: ast.expr | None) -> bool:
        """Whether the type accepts the value, as far as the script shows what it is."""
        value = self._resolve(value)
        if kind is None or (isinstance(kind, ast.Name) and kind.id == "Any"):
            return not self._is_pending(value)
        if isinstance(kind, ast.BinOp):
            return self._fits(value, kind.left) or self._fits(value, kind.right)
        found = _type_of(value)
        if isinstance(kind, ast.Subscript) and isinstance(kind.value, ast.Name):
            return self._fits_generic(value, found, kind.value.id, kind.slice)
        if found is None:
            return not self._is_pending(value)
        wanted = kind.id if isinstance(kind, ast.Name) else str(getattr(kind, "value", ""))
        return wanted in _NUMBERS.get(found, (found,))

    def _fits_generic(self, value: ast.expr, found: str | None, kind: str, of: ast.expr) -> bool:
        """The same for `Literal`, `Sequence` and `Mapping`."""
        if kind == "Literal":
            options = of.elts if isinstance(of, ast.Tuple) else [of]
            same = [ast.dump(option) == ast.dump(value) for option in options]
            return any(same) if found is not None else not self._is_pending(value)
        if found is None:
            return not self._is_pending(value)
        if kind == "Sequence":
            items = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            return found in ("list", "tuple") and all(self._fits(item, of) for item in items)
        return found == "dict"


def _type_of(value: ast.expr) -> str | None:
    """The name of the value's type, if the source shows it."""
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub | ast.UAdd):
        return _type_of(value.operand)
    if isinstance(value, ast.Constant):
        return "None" if value.value is None else type(value.value).__name__
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _CONVERSIONS:
        return value.func.id
    return _DISPLAYS.get(type(value))


def _bound_names(node: ast.AST) -> Iterable[str]:
    """The names that a part of the script defines."""
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(one.asname or one.name).partition(".")[0] for one in node.names]
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        return [node.name]
    return []


# -- the type checker ----------------------------------------------------------------------------------------------

_DIAGNOSTIC_LINE = re.compile(r"^[^\n]*?:(\d+):\d+: (\w+)\[([\w-]+)\] (.*)$", re.MULTILINE)
_CALL_RULES = frozenset(
    {
        "missing-argument",
        "unknown-argument",
        "invalid-argument-type",
        "too-many-positional-arguments",
        "parameter-already-assigned",
        "unresolved-reference",
    }
)
_UNCERTAIN = re.compile(
    r"Expected `[^`]*Literal\[[^`]*`, found `(?:str|int|bool|LiteralString)`"
    r"|found `(?:object|[^`]*(?: \| |Unknown|Any)[^`]*)`"
)
"""The value may be one of those listed, or its type is not known well enough."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One finding, with its line in the script, from 1."""

    line: int
    rule: str
    message: str


def refusals(output: str, servers: Iterable[str]) -> list[Diagnostic]:
    """The findings that stop a script from running, from the checker's concise output.

    The checker knows less than the author, so it counts only where a call cannot succeed, not where it is uncertain.

    >>> refusals("s:2:7: error[unresolved-attribute] Module `calc` has no member `ad`", ["calc"])
    [Diagnostic(line=2, rule='unresolved-attribute', message='Module `calc` has no member `ad`')]
    """
    modules = tuple(f"Module `{server}` has no member" for server in servers)
    found = [
        Diagnostic(int(line), rule, text)
        for line, level, rule, text in _DIAGNOSTIC_LINE.findall(output)
        if level == "error"
    ]
    return [item for item in found if _is_refusal(item, modules)]


def _is_refusal(item: Diagnostic, modules: tuple[str, ...]) -> bool:
    if item.rule in _CALL_RULES:
        return not _UNCERTAIN.search(item.message)
    if item.rule == "unresolved-attribute":
        return item.message.startswith(modules) if modules else False
    if item.rule == "invalid-syntax":
        return "`return` statement outside" not in item.message
    return item.rule == "not-subscriptable" and "CoroutineType" in item.message
