"""What to do about a server that fails: by how it is reached, and by the reason it gives."""

import re
from typing import Final

from toolcrib.model import ServerState, ServerStatus
from toolcrib.upstream.options import ServerOptions

_Table = tuple[tuple[str, str], ...]

_CREDENTIALS: Final = 'Put its credentials into "headers", such as "Authorization": "Bearer ${{TOKEN}}".'
_LONGER: Final = 'Give it longer: "timeouts": {{"start": 120}}, or see what holds it up.'

_SETTINGS: Final[_Table] = (
    (
        r"environment variable (\S+) is not set",
        "Set {0} where toolcrib is started, or give it a default: ${{{0}:-...}}.",
    ),
    (r"environment variable (\S+) is empty", "Set {0} where toolcrib is started."),
    (r"asked for by the editor|known to the editor", "Write ${{env:NAME}} in its place and set that variable."),
    (r"the file .+ does not exist", "Create the file, or correct its path."),
    (r'"([^"]+)" is not a setting; did you mean "([^"]+)"', "Write {1} in place of {0}."),
    (r"", "Mend its entry in the settings file."),
)
"""For a server that its entry in the settings keeps from being tried."""

_COMMAND: Final[_Table] = (
    (r"^its working directory", 'Create that folder, or correct "cwd".'),
    (
        r"^the command .+ not found",
        'Install the program, or give its full path in "command"; arguments belong in "args".',
    ),
    (
        r"^the command .+ (?:may not be executed|could not be started)",
        "Make its command executable, or start it with an interpreter.",
    ),
    (r"certificate|\bSSL", "Set SSL_CERT_FILE in its env."),
    (r"^no (?:answer|tool list) .*within", _LONGER),
    (r"", "Run its command by hand to see what it says; its environment holds only what env gives it."),
)

_URL: Final[_Table] = (
    (r"\bHTTP 40[13]\b", _CREDENTIALS),
    (r"\bHTTP 407\b", "Put the proxy's credentials into the proxy's address, where toolcrib is started."),
    (r"\bHTTP 40[45]\b", 'Correct its url, or its "type": "http" or "sse".'),
    (r"\bHTTP \d+", "See its own log; it is tried again by itself."),
    (r"\bRedirect to", "Write the address that it names into url, if that is the server you mean."),
    (r"certificate", "Set SSL_CERT_FILE where toolcrib is started, if that certificate is to be trusted."),
    (r"no TLS connection", 'Write "http://" in its url, if it speaks no TLS; otherwise correct the port.'),
    (r"^no (?:answer|tool list) .*within|\bin time$", _LONGER),
    (
        r"refused|cannot be reached|host name is not known|closed without an answer|broke off",
        "Check that it is running and that its url is right.",
    ),
    (r"", "Check that its url is that of an MCP endpoint, and see its own log."),
)

_QUOTED: Final = re.compile(r' \(it said ".*"\)|; it last said: .*', re.DOTALL)
"""Words of the server's own within the reason: they say nothing about what kind of failure it is."""


def advice(status: ServerStatus, server: ServerOptions) -> str:
    """What may help; empty for a server that is ready.

    >>> lacking = ServerOptions(name="x", problem="environment variable KEY is not set")
    >>> advice(ServerStatus(name="x", state=ServerState.FAILED, since=0, reason=lacking.problem), lacking)
    'Set KEY where toolcrib is started, or give it a default: ${KEY:-...}.'
    """
    if status.state is ServerState.READY:
        return ""
    reason = _QUOTED.sub("", status.reason)
    found = ((re.search(pattern, reason, re.IGNORECASE), words) for pattern, words in _table(server))
    return next(words.format(*match.groups()) for match, words in found if match is not None)


def _table(server: ServerOptions) -> _Table:
    if server.problem:
        return _SETTINGS
    return _URL if server.url else _COMMAND
