"""A server over stdio with tools that are cancelled internally; tests run it as a child process."""

import asyncio

from toolcrib import App

app = App()


@app.tool
async def await_cancelled() -> int:
    """Await a cancelled future."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


@app.tool
async def cancel_oneself() -> int:
    """Cancel the current task."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return 1


@app.tool
def ping() -> str:
    """Return normally."""
    return "pong"


if __name__ == "__main__":
    app.run()
