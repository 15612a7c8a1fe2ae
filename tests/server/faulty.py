"""A server over stdio, some of whose tools are cancelled from within; run as a child process by tests."""

import asyncio

from toolcrib import App

app = App()


@app.tool
async def await_cancelled() -> int:
    """Awaits what was cancelled."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


@app.tool
async def cancel_oneself() -> int:
    """Cancels the task it runs in."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return 1


@app.tool
def ping() -> str:
    """Answers."""
    return "pong"


if __name__ == "__main__":
    app.run()
