from toolcrib.state.index_file import *  # noqa: F403 - its `__all__` says what
