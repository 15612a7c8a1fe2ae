"""Arguments against a JSON Schema: proven once, cheap when they fit, teaching when they do not."""

from typing import Any

import jsonschema_rs

from toolcrib.errors import InvalidArguments
from toolcrib.model import Object
from toolcrib.schema.compile import compiled
from toolcrib.schema.describe import signed
from toolcrib.schema.guard import checkable, max_depth
from toolcrib.schema.teach import Fault, faults

_MAX_MESSAGE = 800
"""Characters of a message."""


class Schema:
    """One input schema. Made, it is known to be sound; compiled it is when the first arguments come."""

    __slots__ = ("_max_depth", "_schema", "_validator", "_who")

    def __init__(self, schema: Object, who: str) -> None:
        """`who` is the name of the tool in messages. Raises `InvalidTool` when the schema is broken."""
        compiled(schema, who)
        self._max_depth: int | None = None
        self._schema = schema
        self._who = who
        self._validator: jsonschema_rs.Validator | None = None

    def check(self, arguments: Any, who: str = "") -> None:
        """Return when the arguments fit; otherwise raise `InvalidArguments`, which says what would.

        `who` is the name of the tool in the message, where it is called by another one.

        What cannot be checked in reasonable time, such as arguments nested very deep for a recursive schema, is left
        to the server.

        >>> schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, "double")
        >>> schema.check({"n": 1})
        >>> schema.check({"n": "1"})
        Traceback (most recent call last):
        toolcrib.errors.InvalidArguments: double: "n" must be integer, not string. Valid: double(n: integer)
        """
        validator = self._validator
        if validator is None:
            # Proving and compiling are two steps: a compiled schema takes 14 KB, and most tools are never called.
            validator = compiled(self._schema, self._who)
            self._max_depth = max_depth(self._schema)
            self._validator = validator
        if self._max_depth is not None and not checkable(arguments, self._max_depth):
            return
        try:
            if validator.is_valid(arguments):
                return
            found = faults(validator, arguments, self._schema)
        except (ValueError, RecursionError) as error:
            found = [Fault(text=f"the arguments cannot be read: {str(error)[:120]}")]
        raise self._taught(found, who or self._who)

    def _taught(self, found: list[Fault], who: str) -> InvalidArguments:
        text = f"{who}: {'; '.join(fault.text for fault in found)}"
        text = text if len(text) < _MAX_MESSAGE else f"{text[: _MAX_MESSAGE - 1]}…"
        return InvalidArguments(
            text if text.endswith("?") else f"{text}.",
            hint=f"Valid: {signed(who, self._schema)}",
            suggestions=tuple(dict.fromkeys(word for fault in found for word in fault.suggestions)),
        )
