from toolcrib.search.api import *  # noqa: F403 - its `__all__` says what
