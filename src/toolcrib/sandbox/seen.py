"""The calls that can be seen in a script without running it, and without parsing what might break a parser."""

import re
from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

from toolcrib.sandbox.names import Language, ServerNames
from toolcrib.sandbox.result import SeenCall

_LUA_SKIPPED = re.compile(
    r"""--\[(=*)\[.*?(?:\]\1\]|\Z)|--[^\n]*|\[(=*)\[.*?(?:\]\2\]|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?""",
    re.DOTALL,
)
_PYTHON_SKIPPED = re.compile(
    r'''#[^\n]*|"""(?:[^\\]|\\.)*?(?:"""|\Z)|\'\'\'(?:[^\\]|\\.)*?(?:\'\'\'|\Z)|"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?''',
    re.DOTALL,
)
_USED = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*[.:][ \t]*([A-Za-z_]\w*)")
_INDEXED = re.compile(r"(?<![\w.:])([A-Za-z_]\w*)[ \t]*\[[ \t]*(\"[^\"\n]*\"|'[^'\n]*')[ \t]*\]")

_LINE_END = re.compile("\n")
_SHOWN: Final = 200


def seen_calls(source: str, language: Language, servers: Mapping[str, ServerNames]) -> tuple[SeenCall, ...]:
    """Uses of `server.tool`, in the order of the script, once a line, at most 200; under the names of the tools' owner.

    What is made by a computed name, through a variable, or by code in a text is not seen.

    >>> names = {"calc": ServerNames(original="calc-1", tools={"add": "add"})}
    >>> seen_calls("-- calc.sub{}\\nreturn calc.add{a=1}:await()", "lua", names)
    (SeenCall(server='calc-1', tool='add', line=2, known=True),)
    """
    skipped = _LUA_SKIPPED if language == "lua" else _PYTHON_SKIPPED
    plain = skipped.sub(_blank, source)
    lines = [match.start() for match in _LINE_END.finditer(source)]
    found = {(match.start(), match[1], match[2]) for match in _USED.finditer(plain) if match[1] in servers}
    for match in _INDEXED.finditer(source):
        if match[1] in servers and plain[match.start()] == source[match.start()]:
            found.add((match.start(), match[1], match[2][1:-1]))
    calls: dict[SeenCall, None] = {}
    for start, server, tool in sorted(found):
        names = servers[server]
        known = tool in names.tools or tool in names.tools.values()
        line = bisect_left(lines, start) + 1
        original = names.tools.get(tool, tool)
        calls.setdefault(SeenCall(server=names.original, tool=original, line=line, known=known))
        if len(calls) == _SHOWN:
            break
    return tuple(calls)


def _blank(match: "re.Match[str]") -> str:
    """As many characters, and the same lines."""
    return re.sub(r"[^\n]", " ", match[0])
