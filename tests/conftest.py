"""What every test shares."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that toolcrib runs on."""
    return "asyncio"
