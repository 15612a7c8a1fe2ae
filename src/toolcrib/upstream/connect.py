"""From a server's options to the way there."""

from toolcrib.upstream.http import Network, http_link
from toolcrib.upstream.link import Link
from toolcrib.upstream.options import FleetOptions, ServerOptions
from toolcrib.upstream.redact import Redactor
from toolcrib.upstream.sse import sse_link
from toolcrib.upstream.stdio import stdio_link
from toolcrib.upstream.targets import target_link


def link_to(options: ServerOptions, fleet: FleetOptions, network: Network, redact: Redactor) -> Link:
    """A link of the options' transport, not connected yet; entering its transport may raise `ExchangeError`."""
    if options.target is not None or options.transport in ("memory", "custom"):
        return target_link(options, fleet, redact)
    if options.transport == "stdio":
        return stdio_link(options, fleet, redact)
    if options.transport == "sse":
        return sse_link(options, fleet, network, redact)
    return http_link(options, fleet, network, redact)
