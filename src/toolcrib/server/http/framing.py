"""Where a request ends in the bytes of a connection, if the bytes allow only one answer.

Parsers disagree about heads with an upgrade, two lengths, chunks or a bare line feed. Where a proxy and the server
behind it disagree about the end of a request, the server takes the rest of it for another client's request. A head
that is unusual in any way therefore has no frame here, and is left to a strict parser.
"""

import re
from typing import Final, NamedTuple

_HEAD: Final = re.compile(
    rb"(?:GET|POST|PUT|PATCH|DELETE|OPTIONS|HEAD) /(?!/)[!\"$-~]* HTTP/1\.1\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t -~]*\r\n)*\r\n"
)
_FRAMING: Final = re.compile(
    rb"\n(content-length|host|transfer-encoding|(?:proxy-)?connection|upgrade|expect):[\t ]*([^\r]*)", re.IGNORECASE
)
"""The headers that say where a request ends, whose it is, or that its connection is to become another one."""
_BLANK_LINES: Final = re.compile(rb"(?:\r\n)+")
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_PLAIN_CONNECTIONS: Final = (b"keep-alive", b"close")
_MAX_LENGTH_DIGITS: Final = 15


class Frame(NamedTuple):
    """The sizes of the parts of a request, in bytes."""

    head: int
    body: int


def skip_blank_lines(data: bytearray) -> None:
    """Drop the line ends that the data begins with: clients may send them after a body (RFC 9112, 2.2)."""
    if found := _BLANK_LINES.match(data):
        del data[: found.end()]


def head_size(data: bytes | bytearray, start: int = 0) -> int | None:
    r"""The size of the head that the data begins with, as any parser may see it; None if its end is not after `start`.

    >>> head_size(b"GET / HTTP/1.1\r\n\r\n{}"), head_size(b"GET / HTTP/1.1\n\n"), head_size(b"GET / HTTP/1.1\r\n")
    (18, 16, None)
    """
    found = _HEAD_END.search(data, start)
    return None if found is None else found.end()


def frame(data: bytes) -> Frame | None:
    r"""The frame of the request that the data begins with; None if anything about its head is unusual.

    >>> frame(b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /")
    Frame(head=50, body=2)
    >>> frame(b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nUpgrade: h2c\r\n\r\n{}") is None
    True
    """
    head = _HEAD.match(data)
    if head is None:
        return None
    length: int | None = None
    hosts, has_connection = 0, False
    for name, value in _FRAMING.findall(head[0]):
        kind = name.lower()
        if kind == b"content-length" and length is None and value.isdigit() and len(value) <= _MAX_LENGTH_DIGITS:
            length = int(value)
        elif kind == b"host":
            hosts += 1
        elif kind == b"connection" and not has_connection and value.lower() in _PLAIN_CONNECTIONS:
            has_connection = True
        else:
            return None
    # Of blanks at the end of a value, parsers make different things.
    if hosts != 1 or b" \r\n" in head[0] or b"\t\r\n" in head[0]:
        return None
    return Frame(head.end(), length or 0)
