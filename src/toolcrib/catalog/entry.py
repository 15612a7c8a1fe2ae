"""One tool of a catalog, with all that is worked out once for it."""

import json
from dataclasses import dataclass
from hashlib import blake2b

from toolcrib.errors import InvalidTool
from toolcrib.model import Tool, Visibility
from toolcrib.names import Tier, check_key, exact_spellings, fold, spellings, wire_name
from toolcrib.schema import Schema


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A tool and what follows from its definition alone."""

    tool: Tool
    id: str
    wire: str
    digest: bytes
    """16 bytes; equal for equal definitions."""
    schema: Schema
    spellings: dict[str, Tier]
    folded: str
    """The folded name, without the namespace."""
    listed: bool
    """False for a tool that is found by its exact name only, and never suggested."""


def read(tool: Tool) -> Entry:
    """The entry of a tool. Raises `InvalidName` or `InvalidTool`."""
    check_key(tool.key)
    listed = tool.visibility is not Visibility.HIDDEN
    return Entry(
        tool=tool,
        id=tool.id,
        wire=wire_name(tool.key),
        digest=_digest(tool),
        schema=Schema(tool.input_schema, tool.id),
        spellings=spellings(tool.key, tool.version) if listed else exact_spellings(tool.key),
        folded=fold(tool.name).replace(".", ""),
        listed=listed,
    )


def check_text(tool: Tool) -> None:
    """Refuse a definition that cannot be written, such as half of a character. Raises `InvalidTool`."""
    _digest(tool)


def _digest(tool: Tool) -> bytes:
    parts = (
        tool.namespace, tool.name, tool.title, tool.description, tool.input_schema, tool.output_schema,
        tool.annotations, list(tool.icons), tool.keywords, tool.tags, tool.visibility, tool.version, tool.meta,
    )  # fmt: skip
    try:
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTool(f"{tool.id}: the definition is not JSON: {str(error)[:200]}.") from error
    if "\\ud" in text:  # a pair of surrogates, which is one character, or half of one, which is none
        _check_unicode(text, tool.id)
    return blake2b(text.encode(), digest_size=16).digest()


def _check_unicode(text: str, name: str) -> None:
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        near = ascii(error.object[max(0, error.start - 20) : error.end])[1:-1]
        raise InvalidTool(
            f"{name}: the definition holds half of a character, near {near}.",
            hint='Use text.encode(errors="replace").decode() where it comes from.',
        ) from None
