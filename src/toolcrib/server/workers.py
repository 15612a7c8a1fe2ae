"""One of several processes that serve one address: what its supervisor gave it, and where it keeps its state.

The supervisor (`toolcrib.server.supervisor`) starts the same command once for each worker, with a description of its
place in an environment variable, and with inherited sockets: the listening ones, and one that is connected to the
supervisor. If that connection ends, so does the worker.
"""

import json
import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from toolcrib.server.options import WorkerPlace
from toolcrib.server.process import SharedAddress
from toolcrib.server.sockets import adopt_socket
from toolcrib.state.hub import HubConnection, HubStore
from toolcrib.state.options import OpenableStore, StateOptions, make_store

VARIABLE: Final = "TOOLCRIB_WORKER"
"""The environment variable with the place of a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSeat:
    """What a worker gets from its supervisor."""

    number: int
    """From 1."""
    count: int
    folder: str
    """Where the workers have their own sockets; only this user may look into it."""
    supervisor: int
    """The descriptor of the connection to the supervisor."""
    listeners: dict[str, int]
    """Descriptors of the listening sockets, by what they are for."""

    def as_text(self) -> str:
        """The value of the environment variable."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(fields)


class Worker:
    """This process as a worker."""

    def __init__(self, seat: WorkerSeat) -> None:
        self.supervisor = HubConnection(socket.socket(fileno=seat.supervisor))
        """The connection to the supervisor, which has the state of all workers."""
        self.place = WorkerPlace(
            number=seat.number,
            count=seat.count,
            folder=Path(seat.folder),
            sockets={name: adopt_socket(descriptor) for name, descriptor in seat.listeners.items()},
        )
        self.address = SharedAddress(
            sock=self.place.sockets["http"], own_path=own_socket(self.place.folder, seat.number, os.getpid())
        )

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str] = os.environ) -> Self | None:
        """This process as a worker, None if it is none. Removes the variable, so that no child takes itself for one."""
        text = environ.pop(VARIABLE, None)
        return None if text is None else cls(WorkerSeat(**json.loads(text)))

    def make_store(self, options: StateOptions) -> OpenableStore:
        """The state that all workers share: what the options say is durable there, the rest in the supervisor.

        In Redis, everything is.
        """
        if options.url is not None:
            return make_store(options)
        return HubStore(self.supervisor, None if options.path is None else make_store(options))

    async def report(self, event: str) -> None:
        """Tell the supervisor that this worker is `serving`, or `settled`: it knows what its servers offer."""
        await self.supervisor.ask(event)

    async def find_programs(self) -> tuple[str, str]:
        """Where the programs of stdio servers run, and what to send there first. Raises `StateUnavailable`."""
        path, credential = await self.supervisor.ask("programs")
        return str(path), str(credential)

    def retire(self) -> None:
        """Leave new connections to the other workers, and stop soon."""
        self.address.retired.set()

    def leave(self) -> None:
        """Remove what no other process would, if the supervisor has ended and no other worker is left."""
        if not self.supervisor.lost.is_set():
            return
        try:
            self.place.folder.rmdir()
        except OSError:  # others are still there
            return


def own_socket(folder: Path, number: int, process: int) -> Path:
    """Where the other workers reach the one with this number and process id."""
    return folder / f"worker-{number}-{process}.sock"
