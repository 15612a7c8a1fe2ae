"""One Lua script in this process, which then ends.

The gateway says what to run in one frame. From then on this process can read and write its two pipes, compute, and
nothing else. Lua sees none of the Python objects here: they stay behind the closures of `prelude.lua`.
"""

import json
import os
import sys
from functools import partial
from importlib import util
from typing import Any

from . import lockdown, pipes, seccomp

READY, BEGUN, UNSAFE, NOTE, FAILED = b"r", b"b", b"u", b"n", b"e"
"""The first byte of those frames that Python writes; the prelude writes the others."""
OUT_OF_MEMORY = 77
"""The exit status of a worker that Python, not Lua, ran out of memory in."""


def main(library: str, parent: int) -> None:
    """Be one worker of a pool: get ready, wait for the job, run it. Never returns."""
    lockdown.die_with(parent)
    serve(Engine(library))


class Engine:
    """A Lua with the prelude compiled and nothing run yet: all that can be made ready before the job is known."""

    def __init__(self, library: str) -> None:
        self.runtime = _load(library).LuaRuntime(
            encoding=None,
            register_eval=False,
            register_builtins=False,
            unpack_returned_tuples=False,
            attribute_handlers=(_no_attribute, _no_attribute),
            max_memory=0,
        )
        json_library = self.runtime.compile(_read("json.lua"), name=b"=json.prelude", mode=b"t")()
        self.start = partial(self.runtime.compile(_read("prelude.lua"), name=b"=prelude", mode=b"t"), json_library)


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


def serve(engine: Engine) -> None:
    """Wait for a job and run it. Never returns."""
    status = 0
    try:
        code = b"" if seccomp.missing() else seccomp.program(os.uname().machine, os.getpid())
        pipes.write_frame(READY)
        job = json.loads(pipes.read_frame())
        pipes.write_frame(BEGUN)
        _run(engine, job, code)
        pipes.linger()
    except MemoryError:  # Lua's own is a kind of it
        status = OUT_OF_MEMORY
    except (pipes.Closed, OSError):
        status = 1
    except BaseException as error:  # noqa: BLE001 - the last frame of a process that ends here
        _last_words(error)
        status = 1
    finally:
        os._exit(status)


def _last_words(error: BaseException) -> None:
    said = {"kind": "crash", "message": f"{type(error).__name__}: {error}"[:1000], "traceback": "", "stage": "run"}
    try:
        pipes.write_frame(FAILED + json.dumps(said).encode())
        pipes.linger()
    except (OSError, MemoryError):
        return


def _run(engine: Engine, job: dict[str, Any], code: bytes) -> None:
    limits, source = job["limits"], job["source"].encode()
    lockdown.limit(memory=limits["as_bytes"], cpu_s=limits["cpu_s"])
    lockdown.confine()
    if not _filtered(job["seccomp"], code):
        return
    bridge = _Bridge(engine.runtime, limits["lua_bytes"])
    engine.start(bridge.send, bridge.receive, bridge.lift, bridge.cap, source, json.dumps(job["prelude"]).encode())


def _filtered(wish: str, code: bytes) -> bool:
    """Whether the script may run: the filter is in place, or may be missing. `code` is empty where none can be had."""
    if wish == "off":
        return True
    reason = seccomp.apply(code) if code else seccomp.missing()
    if reason:
        pipes.write_frame((UNSAFE if wish == "require" else NOTE) + reason.encode())
    return not reason or wish == "try"


class _Bridge:
    """The functions that the prelude gets. None of them raises: an error that crosses into Lua would be an object.

    Lua's memory limit is off while one runs, and until the prelude puts it back: a string that the host gives to a full
    Lua would jump over Python's frames.
    """

    def __init__(self, runtime: Any, lua_bytes: int) -> None:
        self._runtime = runtime
        self._bytes = lua_bytes

    def lift(self) -> None:
        self._runtime.set_max_memory(0)

    def cap(self) -> None:
        self._runtime.set_max_memory(self._bytes)

    def send(self, body: bytes) -> None:
        self.lift()
        try:
            pipes.write_frame(body)
        except OSError:
            os._exit(1)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)

    def receive(self) -> bytes:
        self.lift()
        try:
            return pipes.read_frame()
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except (OSError, pipes.Closed):
            os._exit(1)


def _no_attribute(*_: object) -> None:
    raise AttributeError


if __name__ == "__main__":
    sys.exit("run boot.py instead")
