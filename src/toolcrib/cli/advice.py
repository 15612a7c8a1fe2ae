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
    (r"HTTP 40[137]", 'Put its credentials into "headers", such as "Authorization": "Bearer ${{TOKEN}}".'),
    (r"HTTP 40[45]", 'Correct its url, or set "type": "sse".'),
    (r"certificate|SSL|TLS", "Set SSL_CERT_FILE: in its env for a command, where toolcrib is started for a url."),
    (r"exited|ended", "Run its command by hand to see what it says; its environment holds only what env gives it."),
    (
        r"the command .+ not found",
        'Install the program, or give its full path in "command"; arguments belong in "args".',
    ),
    (r"permission|executable", "Make its command executable, or start it with an interpreter."),
    (r"no answer|in time|timed out", 'Give it longer: "timeouts": {{"start": 120}}, or see what holds it up.'),
    (r"refused|reached|not known|connection", "Check that it is running and that its url is right."),
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
