"""What each version of the protocol has: its era, its methods, its blocks, and how versions are agreed on.

The only module that compares versions. An older version (until 2025-11-25) begins with a handshake and has sessions. In
a modern one (2026-07-28) each request carries all it needs in `_meta`, and asks for input instead of sending requests
to the client.
"""

from collections.abc import Mapping
from typing import Final

HANDSHAKE_VERSIONS: Final = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""Those that begin with `initialize`, oldest first."""
MODERN_VERSIONS: Final = ("2026-07-28",)
"""Those without a handshake, oldest first."""
KNOWN_VERSIONS: Final = (*HANDSHAKE_VERSIONS, *MODERN_VERSIONS)
LATEST_HANDSHAKE: Final = HANDSHAKE_VERSIONS[-1]
LATEST_MODERN: Final = MODERN_VERSIONS[-1]

# Keys of `_meta` that the protocol defines.
RESERVED_META: Final = "io.modelcontextprotocol/"
"""Prefix of the keys by which a peer describes itself."""
PROTOCOL_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
CLIENT_CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
RELATED_TASK_KEY: Final = "io.modelcontextprotocol/related-task"
PROGRESS_KEY: Final = "progressToken"
TASKS_EXTENSION: Final = "io.modelcontextprotocol/tasks"
"""The extension with which a call may be answered by a task."""
ENVELOPE_KEYS: Final = frozenset({PROTOCOL_VERSION_KEY, CLIENT_INFO_KEY, CLIENT_CAPABILITIES_KEY, LOG_LEVEL_KEY})
"""What describes the client in each request of a modern version."""

LOG_MESSAGE: Final = "notifications/message"
LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first."""
OPENING_METHODS: Final = frozenset({"initialize", "server/discover"})
"""Those with which a client begins."""
LIST_METHODS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})

_COMMON_REQUESTS: Final = LIST_METHODS | {"tools/call", "prompts/get", "resources/read", "completion/complete"}
_OLDER_REQUESTS: Final = _COMMON_REQUESTS | {
    "initialize",
    "ping",
    "logging/setLevel",
    "resources/subscribe",
    "resources/unsubscribe",
}
_MODERN_REQUESTS: Final = _COMMON_REQUESTS | {"server/discover", "subscriptions/listen"}
_TASK_REQUESTS: Final = frozenset({"tasks/get", "tasks/list", "tasks/result", "tasks/cancel"})
_CLIENT_REQUESTS: Final = _OLDER_REQUESTS | _MODERN_REQUESTS | _TASK_REQUESTS
_CANCELLED: Final = frozenset({"notifications/cancelled"})
_OLDER_NOTIFICATIONS: Final = _CANCELLED | {
    "notifications/initialized",
    "notifications/progress",
    "notifications/roots/list_changed",
}
_TASK_NOTIFICATIONS: Final = frozenset({"notifications/tasks/status"})
_SERVER_NOTIFICATIONS: Final = frozenset(
    {
        "notifications/elicitation/complete",
        LOG_MESSAGE,
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/subscriptions/acknowledged",
        "notifications/tools/list_changed",
    }
)
"""Those that only servers send."""
_DEFINED: Final = _CLIENT_REQUESTS | _OLDER_NOTIFICATIONS | _TASK_NOTIFICATIONS | _SERVER_NOTIFICATIONS
INPUT_REQUESTS: Final[Mapping[str, str]] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What a server may ask a client, by method, with the capability that the client needs for it."""
_BLOCKS: Final = frozenset({"text", "image", "resource"})


def is_modern(version: str) -> bool:
    """Whether the version has no handshake and no sessions (2026-07-28 and later)."""
    return version in MODERN_VERSIONS


def is_since(version: str, first: str) -> bool:
    """Whether this is a known version that is as new as `first`.

    >>> is_since("2025-11-25", "2025-06-18"), is_since("zzz", "2025-06-18")
    (True, False)
    """
    return version in KNOWN_VERSIONS and KNOWN_VERSIONS.index(version) >= KNOWN_VERSIONS.index(first)


def negotiated(requested: object) -> str:
    """Return the version of a session whose client asks for one in `initialize`.

    >>> negotiated("2025-06-18"), negotiated("2026-07-28"), negotiated(None)
    ('2025-06-18', '2025-11-25', '2025-11-25')
    """
    return str(requested) if requested in HANDSHAKE_VERSIONS else LATEST_HANDSHAKE


def client_requests(version: str) -> frozenset[str]:
    """Return the methods that the version defines for clients to request. Extensions may add others."""
    if is_modern(version):
        return _MODERN_REQUESTS
    return _OLDER_REQUESTS | _TASK_REQUESTS if has_tasks(version) else _OLDER_REQUESTS


def client_notifications(version: str) -> frozenset[str]:
    """Return the notifications that the version defines for clients to send."""
    if is_modern(version):
        return _CANCELLED
    return _OLDER_NOTIFICATIONS | _TASK_NOTIFICATIONS if has_tasks(version) else _OLDER_NOTIFICATIONS


def is_defined(method: str) -> bool:
    """Whether any version defines the method as a request of clients or as a notification, so that no extension can."""
    return method in _DEFINED


def has_tasks(version: str) -> bool:
    """Whether calls can run as tasks without an extension."""
    return version == "2025-11-25"


def content_blocks(version: str) -> frozenset[str]:
    """Return the types of content blocks that clients of the version know.

    >>> sorted(content_blocks("2025-03-26"))
    ['audio', 'image', 'resource', 'text']
    """
    if is_since(version, "2025-06-18"):
        return _BLOCKS | {"audio", "resource_link"}
    return _BLOCKS | {"audio"} if is_since(version, "2025-03-26") else _BLOCKS


def is_reserved(meta_key: str) -> bool:
    """Whether only the two ends of a connection may set the key of `_meta`."""
    return meta_key.startswith(RESERVED_META) and meta_key != RELATED_TASK_KEY
