"""What a started server inherits of our environment: what it needs to run and to reach a network, no more."""

import os
from collections.abc import Mapping
from typing import Final

from mcp.client.stdio import get_default_environment

_NETWORK: Final = frozenset(
    {
        "ALL_PROXY",
        "CURL_CA_BUNDLE",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NODE_EXTRA_CA_CERTS",
        "NO_PROXY",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
    }
)
"""Proxies and certificates: without them nothing behind a company's proxy could be downloaded or reached."""
_PLACE: Final = frozenset(
    {"LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"}
)
"""Where it is: language, time zone, and folders."""


def inherited(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The SDK's choice (HOME, LOGNAME, PATH, SHELL, TERM, USER), and what has to do with the network and the place.

    >>> "AWS_SECRET_ACCESS_KEY" in inherited({"AWS_SECRET_ACCESS_KEY": "x", "https_proxy": "http://proxy:3128"})
    False
    """
    chosen = {name: value for name, value in environ.items() if name.upper() in _NETWORK or name in _PLACE}
    return {**get_default_environment(), **chosen}
