"""The last of what a child said on stderr, and the one line of it that tells why it ended."""

import re
from typing import Final

from toolcrib.upstream.redact import plain

_LIMIT: Final = 4096
_NOISE: Final = re.compile(r"^(at |File \"|[\^~ ]+$|Node\.js v|npm (ERR!|error)( *$| A complete log))")
_TELLING: Final = re.compile(
    r"error|exception|missing|required|not found|no such|denied|fail|refused|invalid|unable|cannot|could not|must ",
    re.IGNORECASE,
)


class Tail:
    """Keeps the last 4 KiB."""

    def __init__(self) -> None:
        """Starts empty."""
        self._kept = b""

    def add(self, chunk: bytes) -> None:
        """Take what came next."""
        self._kept = (self._kept + chunk)[-_LIMIT:]

    def line(self) -> str:
        """The last line that speaks of an error, else the last line; empty when nothing was said.

        >>> tail = Tail()
        >>> tail.add(b"starting\\nError: API_KEY is missing\\n    at main (index.js:3)\\n\\nNode.js v20.1.0\\n")
        >>> tail.line()
        'Error: API_KEY is missing'
        """
        lines = [plain(line) for line in self._kept.decode(errors="replace").splitlines()]
        lines = [line for line in lines if line and not _NOISE.search(line)]
        telling = [line for line in lines if _TELLING.search(line)]
        return (telling or lines or [""])[-1]
