"""Choose the transport for a server from its options."""

from typing import Any

from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.transports.base import Transport


def open_transport(
    options: ServerOptions, fleet: FleetOptions, redact: Redactor, tokens: Any, *, is_shared: bool
) -> Transport:
    """Return a transport of the options' kind, not connected yet.

    One that is shared may reach a program which other processes use as well.
    """
    # Imported on first use: HTTP needs its client, and in-process servers the SDK's server.
    if options.target is not None or options.transport in ("memory", "custom"):
        from toolcrib.upstream import targets

        return targets.open_transport(options, fleet, redact)
    if options.transport == "stdio" and is_shared and fleet.find_programs is not None:
        from toolcrib.upstream.transports import hosted

        return hosted.HostedTransport(options, fleet, redact)
    if options.transport == "stdio":
        from toolcrib.upstream.transports import stdio

        return stdio.StdioTransport(options, fleet, redact)
    if options.transport == "sse":
        from toolcrib.upstream.transports import sse

        return sse.SseTransport(options, fleet, redact, tokens)
    from toolcrib.upstream.transports import http

    return http.HttpTransport(options, fleet, redact, tokens)
