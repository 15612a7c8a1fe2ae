"""The parts of the server that load the MCP SDK and the HTTP libraries.

`lifespan` imports this module when an app is first served, so that importing `App` stays fast.
"""

from toolcrib.server.handlers import make_server
from toolcrib.server.http import http_app, serve_http, sse_app
from toolcrib.server.notifications import ListChangeNotifier
from toolcrib.server.stdio import serve_stdio

__all__ = ["ListChangeNotifier", "http_app", "make_server", "serve_http", "serve_stdio", "sse_app"]
