"""What would help the author of a script that failed."""

import re
from collections.abc import Mapping, Sequence

from toolcrib.words import nearest

_SHADOWED = re.compile(
    r"attempt to call a \w+ value \((?:local|upvalue|global) '(result|print|await|await_all|json)'\)"
)
_NO_TOOL = re.compile(r"(?:server|[Mm]odule) ['`]([^'`]*)['`] has no (?:tool|member|attribute) ['`]([^'`]*)['`]")
_NO_GLOBAL = re.compile(r"\(global '([^']*)'\)|[Nn]ame ['`]([^'`]*)['`] (?:is not|used when not) defined")


def hint_for(message: str) -> str:
    """One sentence, or nothing.

    >>> hint_for("script:2: attempt to call a table value (local 'result')")
    '"result" is a variable of the script here and hides the function of that name; rename the variable.'
    """
    shadowed = _SHADOWED.search(message)
    if shadowed:
        name = shadowed[1]
        return f'"{name}" is a variable of the script here and hides the function of that name; rename the variable.'
    if "attempt to index a nil value (global" in message or "attempt to call a nil value (global" in message:
        return "Servers and functions are called by the identifiers that discovery shows."
    return ""


def suggestions_for(message: str, servers: Mapping[str, Sequence[str]]) -> list[str]:
    """The closest names, best first, for a name that does not exist. `servers` maps identifiers to identifiers.

    >>> suggestions_for("server 'calc' has no tool 'ad'; it has: add, divide", {"calc": ["add", "divide"]})
    ['calc.add']
    """
    no_tool = _NO_TOOL.search(message)
    if no_tool:
        server, wanted = no_tool[1], no_tool[2]
        return [f"{server}.{name}" for name in nearest(wanted, servers.get(server, ()))]
    no_global = _NO_GLOBAL.search(message)
    return nearest(no_global[1] or no_global[2], servers) if no_global else []
