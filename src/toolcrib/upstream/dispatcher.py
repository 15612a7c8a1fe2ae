"""The SDK's request and answer machinery, made to live with servers as they are.

Built on the public surface of `JSONRPCDispatcher`: its `send_raw_request` and its `run`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import anyio
import anyio.abc
from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import SERVER_INFO_META_KEY
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_HANDSHAKE_VERSION

from toolcrib.upstream.link import Link, Streams


class RawDispatcher(JSONRPCDispatcher[TransportContext]):
    """Answers as plain JSON. Forgives what a handshake gets wrong; lets no flood of notices become tasks."""

    def __init__(self, streams: Streams, link: Link, *, probe_timeout_s: float) -> None:
        """Tells the link of its end, and of changed tools."""
        super().__init__(*streams)
        self._link = link
        self.probe_timeout_s = probe_timeout_s
        """How long the answer to `server/discover` may take."""

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **routing: Any
    ) -> dict[str, Any]:
        """The result object as it came, but those of the handshake in order. Raises `MCPError`."""
        if method == "server/discover":
            opts = {**(opts or {}), "timeout": self.probe_timeout_s}
        raw = await super().send_raw_request(method, params, opts, **routing)
        tidy = _TIDY.get(method)
        return raw if tidy is None else tidy(raw)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        *,
        task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve the connection until it ends, and say so."""

        def intercept(method: str, params: Mapping[str, Any] | None) -> bool:
            if on_notify_intercept is not None:
                on_notify_intercept(method, params)
            if method == "notifications/tools/list_changed":
                self._link.doubt.ring()
            else:
                self._link.notices.hear(method, params)
            # None is let through: each would cost a task.
            return True

        try:
            await super().run(on_request, on_notify, intercept, task_status=task_status)
        finally:
            self._link.end.come("the connection was closed")


def _tidy_initialize(raw: dict[str, Any]) -> dict[str, Any]:
    """With the version that was meant: some servers repeat any they are offered, some name one without handshake."""
    version = raw.get("protocolVersion")
    return {
        "protocolVersion": version if version in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION,
        "capabilities": _capabilities(raw),
        "serverInfo": _implementation(raw.get("serverInfo")),
        **_instructions(raw),
    }


def _tidy_discover(raw: dict[str, Any]) -> dict[str, Any]:
    meta = raw.get("_meta")
    info = meta.get(SERVER_INFO_META_KEY) if isinstance(meta, dict) else None
    versions = raw.get("supportedVersions")
    return {
        "resultType": "complete",
        "supportedVersions": [v for v in versions if isinstance(v, str)] if isinstance(versions, list) else [],
        "capabilities": _capabilities(raw),
        "_meta": {SERVER_INFO_META_KEY: _implementation(info)},
        **_instructions(raw),
    }


def _capabilities(raw: dict[str, Any]) -> dict[str, Any]:
    """Only what is used here: what there is, and notices of its changes."""
    given = raw.get("capabilities")
    if not isinstance(given, dict):
        return {}
    return {
        name: {flag: part.get(flag) is True for flag in flags}
        for name, flags in _USED.items()
        if isinstance(part := given.get(name), dict)
    }


def _implementation(info: Any) -> dict[str, Any]:
    known = info if isinstance(info, dict) else {}
    texts = {
        key: value for key in ("name", "version", "title", "description") if isinstance(value := known.get(key), str)
    }
    return {"name": "", "version": "", **texts}


def _instructions(raw: dict[str, Any]) -> dict[str, str]:
    text = raw.get("instructions")
    return {"instructions": text} if isinstance(text, str) else {}


_USED: Final[Mapping[str, tuple[str, ...]]] = {
    "tools": ("listChanged",),
    "prompts": ("listChanged",),
    "resources": ("listChanged", "subscribe"),
    "completions": (),
    "logging": (),
}
_TIDY: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "initialize": _tidy_initialize,
    "server/discover": _tidy_discover,
}
