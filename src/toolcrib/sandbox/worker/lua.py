"""One Lua script in this process.

From the job on this process can read and write its two pipes, compute, and nothing else. Lua sees none of the Python
objects here: they stay behind the closures of `prelude.lua`.
"""

import gc
import os
from functools import partial
from importlib import util
from typing import Any

from . import lockdown, pipes, seccomp


class Engine:
    """A Lua with all made ready that can be before the job is known."""

    def __init__(self, library: str) -> None:
        self.runtime = _load(library).LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=False,
            attribute_handlers=(_no_attribute, _no_attribute),
            max_memory=0,
        )
        compiled = partial(self.runtime.compile, mode=b"t")
        self._bridge = bridge = _Bridge(self.runtime)
        library = compiled(_read("json.lua"), name=b"=json.prelude")()
        prelude = compiled(_read("prelude.lua"), name=b"=prelude")
        self._run, self._warm = prelude(library, bridge.send, bridge.receive, bridge.lift, bridge.cap)
        self._filter = b""

    def prepare(self) -> None:
        """Make the filter, give up what no script needs, and touch what it does."""
        self._filter = seccomp.made(seccomp.program)
        lockdown.limit_always()
        lockdown.confine()
        self._warm()
        gc.collect()

    def accept(self, job: dict[str, Any]) -> bytes:
        """Nothing is to be said of this job."""
        del job
        return b""

    def lock(self, job: dict[str, Any]) -> str:
        """Give up the rest; why the filter could not be had, or an empty text."""
        lockdown.limit(memory=job["limits"]["as_bytes"], cpu_s=job["limits"]["cpu_s"])
        return "" if job["seccomp"] == "off" else seccomp.apply(self._filter)

    def run(self, job: dict[str, Any]) -> None:
        """Run the script."""
        self._bridge.bytes = job["limits"]["lua_bytes"]
        self._run(job["source"].encode(), job["prelude"].encode())


def _load(library: str) -> Any:
    """The Lua binding, straight from its file: this interpreter has no site-packages."""
    spec = util.spec_from_file_location("lupa.lua54", library)
    if spec is None or spec.loader is None:
        raise ImportError(library)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _read(name: str) -> bytes:
    """A part of the Lua side of the bridge, as source."""
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:  # noqa: PTH118, PTH120, PTH123
        return file.read()


class _Bridge:
    """The functions that the prelude gets. None of them raises: an error that crosses into Lua would be an object.

    Lua's memory limit is off while one runs, and until the prelude puts it back: a string that the host gives to a full
    Lua would jump over Python's frames.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.bytes = 0
        """What Lua may have, once that is known."""

    def lift(self) -> None:
        self._runtime.set_max_memory(0)

    def cap(self) -> None:
        self._runtime.set_max_memory(self.bytes)

    def send(self, body: bytes) -> None:
        self.lift()
        try:
            pipes.write_frame(body)
        except OSError:
            os._exit(1)
        except MemoryError:
            os._exit(pipes.OUT_OF_MEMORY)

    def receive(self) -> bytes:
        self.lift()
        try:
            return pipes.read_frame()
        except MemoryError:
            os._exit(pipes.OUT_OF_MEMORY)
        except (OSError, pipes.Closed):
            os._exit(1)


def _no_attribute(*_: object) -> None:
    raise AttributeError
