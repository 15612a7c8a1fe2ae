"""What to do about a server that fails, by the reason it gives."""

import re
from typing import Final

from toolcrib.model import ServerState, ServerStatus

_ADVICE: Final[tuple[tuple[str, str], ...]] = (
    (
        r"environment variable (\S+) is not set",
        "Set {0} where toolcrib is started, or give it a default: ${{{0}:-...}}.",
    ),
    (r"asked for by the editor", "Write ${{env:NAME}} in its place and set that variable."),
    (r"the file .+ does not exist", "Create the file, or correct its path."),
    (
        r"not found|no such file|cannot find|ENOENT",
        "Install its command, or give its full path; arguments belong in args, not in command.",
    ),
    (r"permission denied|not executable", "Make its command executable, or start it with an interpreter."),
    (
        r"\b40[13]\b|unauthori[sz]ed|forbidden",
        "Check its credentials: the Authorization header, or the key in its env.",
    ),
    (r"\b404\b", 'Check its url; an older server may need "type": "sse".'),
    (r"\b405\b", 'Its url may be of the older transport: try "type": "sse".'),
    (r"certificate|ssl", "Check its certificate; behind a proxy, set SSL_CERT_FILE in its env."),
    (
        r"refused|unreachable|name or service|resolve|getaddrinfo|connect",
        "Check that it is running and that its url is right.",
    ),
    (r"timed? ?out|no answer|did not answer", 'Give it longer: "timeouts": {{"start": 120}}, or see what holds it up.'),
    (
        r"exit|ended|closed",
        "Run its command by hand to see what it says; its environment holds only what env gives it.",
    ),
)


def advice(status: ServerStatus) -> str:
    """What may help; empty for a server that is ready.

    >>> failed = ServerStatus(name="x", state=ServerState.FAILED, since=0, reason="environment variable KEY is not set")
    >>> advice(failed)
    'Set KEY where toolcrib is started, or give it a default: ${KEY:-...}.'
    """
    if status.state is ServerState.READY:
        return ""
    for pattern, words in _ADVICE:
        if found := re.search(pattern, status.reason, re.IGNORECASE):
            return words.format(*found.groups())
    return "Run its command, or open its url, by hand to see what it says."
