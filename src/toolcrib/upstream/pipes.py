"""The ends of pipes, without anything between them and the event loop.

asyncio's pipe transports keep the error of a broken pipe for whoever may ask for it later; some versions complain where
nobody does, and let the message be lost in silence. Here an error reaches the one who writes or reads.
"""

import os
import stat
from typing import Final

import anyio
import anyio.lowlevel
import anyio.to_thread

_CHUNK: Final = 65536
_CLOSED: Final = -1


class PipeWriter:
    """The end that is written to. It has the descriptor to itself, and sets it not to block."""

    def __init__(self, fd: int) -> None:
        """Closes the descriptor in the end."""
        os.set_blocking(fd, False)
        self._fd = fd

    async def send(self, data: bytes) -> None:
        """Write all of it, for one writer at a time. Raises `OSError`, and `anyio.ClosedResourceError` when closed."""
        await anyio.lowlevel.checkpoint()
        left = memoryview(data)
        while left:
            if self._fd == _CLOSED:
                raise anyio.ClosedResourceError
            try:
                left = left[os.write(self._fd, left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._fd)

    def close(self) -> None:
        """Let the reader see the end; whoever waits in `send` is told."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            anyio.notify_closing(fd)
            os.close(fd)


class PipeReader:
    """The end that is read from. Whether the descriptor blocks is left as it is: others may share it."""

    def __init__(self, fd: int) -> None:
        """Closes the descriptor in the end."""
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._can_wait = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)
        """Files and `/dev/null` an event loop cannot wait for; they never keep a reader waiting either."""

    async def receive(self) -> bytes:
        """What there is, at most 64 KiB. Raises `anyio.EndOfStream`, `OSError`, `anyio.ClosedResourceError`."""
        if self._fd == _CLOSED:
            raise anyio.ClosedResourceError
        if self._can_wait:
            await anyio.wait_readable(self._fd)
            chunk = os.read(self._fd, _CHUNK)
        else:
            chunk = await anyio.to_thread.run_sync(os.read, self._fd, _CHUNK)
        if not chunk:
            raise anyio.EndOfStream
        return chunk

    def close(self) -> None:
        """Whoever waits in `receive` is told."""
        fd, self._fd = self._fd, _CLOSED
        if fd != _CLOSED:
            anyio.notify_closing(fd)
            os.close(fd)
