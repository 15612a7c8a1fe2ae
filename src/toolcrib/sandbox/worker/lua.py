"""Run one Lua script in this process.

Once it has the job, this process can only compute, read one pipe and write the other. Lua sees no Python object: they
stay behind the closures of `prelude.lua`.
"""

import gc
import json
import os
from functools import partial
from importlib import util
from typing import Any

from . import lockdown, seccomp, serve


class LuaEngine:
    """A Lua runtime, set up as far as possible without a job."""

    def __init__(self, library: str) -> None:
        """`library` is the file of the Lua binding."""
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
        library = compiled(_lua_source("json.lua"), name=b"=json.prelude")()
        prelude = compiled(_lua_source("prelude.lua"), name=b"=prelude")
        self._run, self._warm = prelude(library, bridge.send, bridge.receive, bridge.lift, bridge.cap, bridge.exit)
        self._filter = b""

    def prepare(self) -> None:
        """Build the filter, give up what no script needs, and touch the memory that scripts use."""
        self._filter = seccomp.build(seccomp.program)
        lockdown.limit_always()
        lockdown.confine()
        self._warm()
        gc.collect()

    def accept(self, job: dict[str, Any]) -> bytes:
        del job
        return b""

    def lock(self, job: dict[str, Any]) -> str:
        """Apply the limits and the filter; returns why the filter failed, or an empty string."""
        lockdown.limit(memory=job["limits"]["as_bytes"], cpu_s=job["limits"]["cpu_s"])
        return "" if job["seccomp"] == "off" else seccomp.apply(self._filter)

    def run(self, job: dict[str, Any]) -> None:
        self._bridge.max_bytes = job["limits"]["lua_bytes"]
        known = {**job["limits"], "servers": job["servers"], "check": job["check"], "seed": job["seed"]}
        self._run(job["source"].encode(), json.dumps(known).encode())


def _load(library: str) -> Any:
    """Import the Lua binding from its file, since this interpreter has no site-packages."""
    spec = util.spec_from_file_location("lupa.lua54", library)
    if spec is None or spec.loader is None:
        raise ImportError(library)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lua_source(name: str) -> bytes:
    """The source of a Lua file of this package."""
    with open(os.path.join(os.path.dirname(__file__), name), "rb") as file:  # noqa: PTH118, PTH120, PTH123
        return file.read()


class _Bridge:
    """The functions that the prelude gets. None of them raises: an error that crosses into Lua would be an object.

    Lua's memory limit is lifted while one runs, and until the prelude restores it. Otherwise passing a string to a Lua
    that is out of memory would make Lua jump past Python's frames.
    """

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self.max_bytes = 0
        """Lua's memory limit; 0 means none, before the job is known."""

    def lift(self) -> None:
        self._runtime.set_max_memory(0)

    def cap(self) -> None:
        self._runtime.set_max_memory(self.max_bytes)

    def exit(self) -> None:
        """End the process of a script that has used up its processor time, where there is no room to report it."""
        os._exit(serve.OUT_OF_TIME)

    def send(self, body: bytes) -> None:
        self.lift()
        try:
            serve.write_frame(body)
        except OSError:
            os._exit(1)
        except MemoryError:
            os._exit(serve.OUT_OF_MEMORY)

    def receive(self) -> bytes:
        self.lift()
        try:
            return serve.read_frame()
        except MemoryError:
            os._exit(serve.OUT_OF_MEMORY)
        except (OSError, serve.Closed):
            os._exit(1)


def _no_attribute(*_: object) -> None:
    raise AttributeError
