"""MCP as bytes and values: messages, versions, sessions and failures, without any I/O.

Nothing here knows an event loop, a socket, HTTP or a log. Transports carry the bytes, and the server and the upstream
side decide what to do with the messages.
"""
