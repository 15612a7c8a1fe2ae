"""Search: text in, hits out. Pure and deterministic.

What other packages use of it is loaded on first use, since a gateway is ready before it has tools to search.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import toolcrib.search.api as api  # noqa: PLR0402 - `from toolcrib.search` would ask this function again

    if name not in api.__all__:
        raise AttributeError(f"module 'toolcrib.search' has no attribute {name!r}")
    found = globals()[name] = getattr(api, name)
    return found
