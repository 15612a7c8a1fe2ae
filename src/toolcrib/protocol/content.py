"""What servers send: tools, blocks of content, documents, and questions to the client. Keys of others pass unread.

Each shape is the schema's, written by hand; where versions differ, what all of them accept.
"""

from collections.abc import Mapping
from typing import Any, Final

from toolcrib.protocol.shapes import (
    Problem,
    Shape,
    anything,
    array_of,
    boolean,
    either,
    fraction,
    integer,
    key,
    map_of,
    mapping,
    number,
    one_of,
    record,
    tagged,
    text,
)

ICON: Final = record({"src": text}, {"mimeType": text, "sizes": array_of(text), "theme": one_of("light", "dark")})
ROLE: Final = one_of("assistant", "user")

# -- tools ---------------------------------------------------------------------------------------------------------

_SCHEMA_PARTS: Final = {"$schema": text, "properties": map_of(either(mapping, boolean)), "required": array_of(text)}
_OBJECT_SCHEMA: Final = record({"type": one_of("object")}, _SCHEMA_PARTS)


def _output_schema(value: Any) -> Problem | None:
    """Accept any schema: older versions have only those of objects, and are sent no others."""
    if isinstance(value, Mapping) and value.get("type") == "object":
        return _OBJECT_SCHEMA(value)
    return record({}, {"$schema": text})(value)


TOOL: Final = record(
    {"name": text, "inputSchema": _OBJECT_SCHEMA},
    {
        "title": text,
        "description": text,
        "outputSchema": _output_schema,
        "annotations": record(
            {},
            {
                "title": text,
                "readOnlyHint": boolean,
                "destructiveHint": boolean,
                "idempotentHint": boolean,
                "openWorldHint": boolean,
            },
        ),
        "icons": array_of(ICON),
        "execution": record({}, {"taskSupport": one_of("forbidden", "optional", "required")}),
        "_meta": mapping,
    },
)

# -- content -------------------------------------------------------------------------------------------------------

_ABOUT: Final = {
    "annotations": record({}, {"audience": array_of(ROLE), "priority": fraction, "lastModified": text}),
    "_meta": mapping,
}
_ABOUT_RESOURCE: Final = {"mimeType": text, "_meta": mapping}
RESOURCE: Final = either(
    record({"uri": text, "text": text}, _ABOUT_RESOURCE), record({"uri": text, "blob": text}, _ABOUT_RESOURCE)
)
_TEXT: Final = record({"text": text}, _ABOUT)
_MEDIA: Final = record({"data": text, "mimeType": text}, _ABOUT)
_LINK: Final = {"title": text, "description": text, "mimeType": text, "size": integer, "icons": array_of(ICON)}
BLOCK: Final = tagged(
    "type",
    {
        "text": _TEXT,
        "image": _MEDIA,
        "audio": _MEDIA,
        "resource_link": record({"name": text, "uri": text}, {**_LINK, **_ABOUT}),
        "resource": record({"resource": RESOURCE}, _ABOUT),
    },
)
_NAMED: Final = {"title": text, "description": text, "icons": array_of(ICON), "_meta": mapping}
_ARGUMENT: Final = record({"name": text}, {"title": text, "description": text, "required": boolean})
LISTED: Final[Mapping[str, Shape]] = {
    "prompts/list": record({"name": text}, {"arguments": array_of(_ARGUMENT), **_NAMED}),
    "resources/list": record({"name": text, "uri": text}, {**_LINK, **_ABOUT}),
    "resources/templates/list": record({"name": text, "uriTemplate": text}, {**_NAMED, "mimeType": text, **_ABOUT}),
}
"""The entries of lists other than that of tools."""
DOCUMENTS: Final[Mapping[str, Shape]] = {
    "prompts/get": record(
        {"messages": array_of(record({"role": ROLE, "content": BLOCK}))}, {"description": text, "_meta": mapping}
    ),
    "resources/read": record({"contents": array_of(RESOURCE)}, {"_meta": mapping}),
    "completion/complete": record(
        {"completion": record({"values": array_of(text)}, {"total": integer, "hasMore": boolean})}, {"_meta": mapping}
    ),
}
"""The results of methods that are neither lists nor calls."""

# -- questions to the client ---------------------------------------------------------------------------------------

_SAMPLING_BLOCK: Final = tagged(
    "type",
    {
        "text": _TEXT,
        "image": _MEDIA,
        "audio": _MEDIA,
        "tool_use": record({"id": text, "name": text, "input": mapping}, {"_meta": mapping}),
        "tool_result": record(
            {"toolUseId": text, "content": array_of(BLOCK)},
            {"structuredContent": anything, "isError": boolean, "_meta": mapping},
        ),
    },
)
SAMPLED: Final = either(array_of(_SAMPLING_BLOCK), _SAMPLING_BLOCK)
"""The content of a message that a model is sent, or has written."""
_ASKED: Final = {"_meta": record({}, {"progressToken": key}), "task": record({}, {"ttl": integer})}
_REQUESTED: Final = record(
    {"type": one_of("object"), "properties": mapping}, {"$schema": text, "required": array_of(text)}
)
_FORM: Final = record({"message": text, "requestedSchema": _REQUESTED}, {"mode": one_of("form"), **_ASKED})
_URL: Final = record({"message": text, "url": text, "mode": one_of("url")}, {"elicitationId": text, **_ASKED})


def _elicitation(params: Any) -> Problem | None:
    """Accept the params of a form, or those of a page to open."""
    is_url = isinstance(params, Mapping) and params.get("mode") == "url"
    return _URL(params) if is_url else _FORM(params)


_PREFERENCES: Final = record(
    {},
    {
        "hints": array_of(record({}, {"name": text})),
        "costPriority": fraction,
        "speedPriority": fraction,
        "intelligencePriority": fraction,
    },
)
_SAMPLING: Final = record(
    {"messages": array_of(record({"role": ROLE, "content": SAMPLED}, {"_meta": mapping})), "maxTokens": integer},
    {
        "systemPrompt": text,
        "temperature": number,
        "stopSequences": array_of(text),
        "includeContext": one_of("none", "thisServer", "allServers"),
        "modelPreferences": _PREFERENCES,
        "metadata": mapping,
        "tools": array_of(TOOL),
        "toolChoice": record({}, {"mode": one_of("auto", "required", "none")}),
        **_ASKED,
    },
)
QUESTIONS: Final[Mapping[str, Shape]] = {
    "elicitation/create": record({"params": _elicitation}),
    "sampling/createMessage": record({"params": _SAMPLING}),
    "roots/list": record({}, {"params": record({}, {"_meta": mapping})}),
}
"""What a server may ask a client, as the whole request."""
