"""What errors say, and what they keep to themselves."""

import pytest

from toolcrib import App
from toolcrib.errors import ExecutionFailed


async def test_a_secret_in_an_exception_of_a_tool_does_not_reach_the_caller() -> None:
    app = App()

    @app.tool
    def report() -> str:
        """Write the report."""
        raise ConnectionError("cannot connect to postgres://ann:hunter2@db/main")

    async with app:
        with pytest.raises(ExecutionFailed) as raised:
            await app.call("report")

    assert "postgres://***@db/main" in str(raised.value)
    assert "hunter2" not in str(raised.value.payload())
