"""Notice an agent loop that goes in circles: repeated calls, names that do not exist, searches without a call.

A guard adds notes to responses. It never runs a tool, and refuses nothing unless its options say so.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

from toolcrib.checks import Count, checked
from toolcrib.discovery.envelope import Envelope, failure
from toolcrib.errors import SettingsError
from toolcrib.sanitize import MAX_ECHO

_MAX_SHOWN: Final = 5
"""Tools of the last search that a note names."""
_CALL_TOOL: Final = "call_tool"
_LISTING_TOOLS: Final = frozenset({"list_tools", "search_tools"})
_SCHEMA_TOOLS: Final = frozenset({"get_tool_schema", "get_tool_schemas"})


@checked(error=SettingsError)
@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """When to note that a loop goes in circles; None is never. A good start for long loops is 3 of each, and 20
    lookups.

    Only `misses` is on by default: it extends a response that is an error anyway.
    """

    repeats: Count | None = None
    """Calls in a row of one tool with the same arguments and the same response; further ones get a note."""
    misses: Count | None = 3
    """Names in a row that do not exist; from then on, the error says how to find names."""
    lookups: Count | None = None
    """Lists, searches and schemas in a row without a call; further ones get a note."""
    refuse: bool = False
    """Whether to refuse what would get a note: nothing runs, and the response is an error. Off by default, since a
    model that waits for something has a good reason to ask for it again.
    """


@checked
class Guard:
    """Observes one loop. Safe to use from several threads and tasks; its memory does not grow.

    >>> guard = Guard(GuardOptions(lookups=1))
    >>> guard.observe("search_tools", {"query": "mail"}, {"success": True, "result": [{"name": "send"}]})
    {'success': True, 'result': [{'name': 'send'}]}
    >>> print(guard.observe("search_tools", {"query": "post"}, {"success": True, "result": [{"name": "send"}]})["note"])
    This is lookup 2 in a row without a call. Call one of the tools that were shown last (send), or say that none fits.
    """

    def __init__(self, options: GuardOptions | None = None) -> None:
        """Without options, only names that do not exist are counted. Raises `SettingsError` for anything but
        options.
        """
        self.options = options or GuardOptions()
        self._lock = Lock()
        self._turn: object = None
        self._forget()

    def reset(self) -> None:
        """Forget what was seen: a new task begins."""
        with self._lock:
            self._forget()

    def refusal(self, name: str, arguments: Any, *, turn: object = None) -> Envelope | None:
        """Return the response to a request that must not run, else None.

        `turn` is any value that changes with the user's next request; the guard then starts over.
        """
        options = self.options
        if not options.refuse:
            return None
        asked = self._digest(name, arguments)
        with self._lock:
            self._begin(turn)
            if name == _CALL_TOOL:
                repeated = options.repeats is not None and asked == self._asked and self._times >= options.repeats
                return failure(f"Not run. {self._repeated(self._times + 1)}") if repeated else None
            looked = options.lookups is not None and self._lookups >= options.lookups
            return failure(f"Not run. {self._looked(self._lookups + 1)}") if looked else None

    def observe(
        self, name: str, arguments: Any, answer: Envelope, *, missed: bool = False, turn: object = None
    ) -> Envelope:
        """Return the response with a note if there is one to make: in `note`, or in the error after a miss.

        `missed` means that a name was given which no tool has.
        """
        asked, gave = self._digest(name, arguments), self._digest(name, answer)
        with self._lock:
            self._begin(turn)
            note = self._count_call(asked, gave) if name == _CALL_TOOL else self._count_lookup(name, answer)
            missing = self._count_miss(name, missed=missed)
        if missing and isinstance(answer.get("error"), str):
            answer = {**answer, "error": f"{answer['error']} {missing}"}
        elif missing:
            note = missing
        if note:
            before = answer.get("note")
            answer = {**answer, "note": f"{before} {note}" if isinstance(before, str) else note}
        return answer

    # -- everything below needs the lock -----------------------------------------------------------------------------

    def _forget(self) -> None:
        self._asked = b""
        self._gave = b""
        self._times = self._misses = self._lookups = 0
        self._shown: tuple[str, ...] = ()

    def _begin(self, turn: object) -> None:
        if turn != self._turn:
            self._turn = turn
            self._forget()

    def _count_call(self, asked: bytes, gave: bytes) -> str:
        """A call ends a series of lookups; a changed response ends a series of calls."""
        self._lookups = 0
        same = asked == self._asked and gave == self._gave
        self._times = self._times + 1 if same else 1
        self._asked, self._gave = asked, gave
        most = self.options.repeats
        return self._repeated(self._times) if most is not None and self._times > most else ""

    def _count_lookup(self, name: str, answer: Envelope) -> str:
        self._lookups += 1
        found = answer.get("result")
        if isinstance(found, list) and name in _LISTING_TOOLS:
            self._shown = tuple(
                str(one.get("name"))[:MAX_ECHO] for one in found[:_MAX_SHOWN] if isinstance(one, Mapping)
            )
        most = self.options.lookups
        return self._looked(self._lookups) if most is not None and self._lookups > most else ""

    def _count_miss(self, name: str, *, missed: bool) -> str:
        """An existing name ends a series of misses; a search does not."""
        if not missed:
            self._misses = 0 if name == _CALL_TOOL or name in _SCHEMA_TOOLS else self._misses
            return ""
        self._misses += 1
        most = self.options.misses
        if most is None or self._misses < most:
            return ""
        found = f"The last search showed: {', '.join(self._shown)}." if self._shown else "Begin with search_tools."
        return f"{self._misses} names in a row do not exist: do not guess, copy names from search_tools. {found}"

    def _repeated(self, times: int) -> str:
        return (
            f"This is call {times} in a row with the same arguments and the same answer. Change the arguments, use "
            "another tool, or go on with the answer that is there."
        )

    def _looked(self, times: int) -> str:
        shown = f" ({', '.join(self._shown)})" if self._shown else ""
        return (
            f"This is lookup {times} in a row without a call. Call one of the tools that were shown last{shown}, or "
            "say that none fits."
        )

    def _digest(self, name: str, value: Any) -> bytes:
        """Return a digest of a call or its response; empty if repeats are not counted."""
        if self.options.repeats is None or name != _CALL_TOOL:
            return b""
        return blake2b(_canonical_json(value).encode("utf-8", "replace"), digest_size=16).digest()


def _canonical_json(value: Any) -> str:
    """Return the same text for equal requests, whichever form of a call they use."""
    try:
        if isinstance(value, str):
            value = json.loads(value)
        if isinstance(value, Mapping) and isinstance(value.get("arguments"), Mapping):
            value = {**{key: part for key, part in value.items() if key != "arguments"}, **value["arguments"]}
        return json.dumps(value, sort_keys=True, default=repr)
    except Exception:  # noqa: BLE001 - a host's values may raise anything; a guard must not break a loop
        return type(value).__name__
