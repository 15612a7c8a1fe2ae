"""Runs programs in forks of a process that has imported toolcrib, because importing it takes a second each time.

A program runs as it would under `python -W error -c`: as `__main__`, with nothing on standard input. The tests import
`forks`; the process that it starts runs this file as a script.
"""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 60


@dataclass(frozen=True)
class Ended:
    """The exit code and output of a program."""

    code: int
    out: str
    err: str


RunPython = Callable[[str, Path], Ended]
"""Runs a program in a folder."""


@contextlib.contextmanager
def forks(folder: Path) -> Iterator[RunPython]:
    """A function that runs a program in a folder; `folder` holds the output meanwhile."""
    words = [sys.executable, "-W", "error", __file__]
    out, err = folder / "out", folder / "err"
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, replies = process.stdin, process.stdout

        def run(program: str, where: Path) -> Ended:
            print(json.dumps([program, str(where), str(out), str(err)]), file=requests, flush=True)
            code = int(replies.readline())
            return Ended(code, out.read_text(), err.read_text())

        yield run
        requests.close()


def serve() -> str:
    """Fork for each requested program: return in the fork with the program to run; exit when no more are requested."""
    for line in sys.stdin:
        program, folder, out, err = json.loads(line)
        if os.fork() == 0:
            signal.alarm(DEADLINE_S)
            os.chdir(folder)
            for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, _ANEW), (2, err, _ANEW)):
                os.dup2(os.open(path, flags), number)
            return str(program)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.wait()[1])}\n")
        sys.stdout.flush()
    sys.exit()


_ANEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def run_as_main(program: str) -> None:
    """Run a program in a module of its own, as Python does."""
    main: Any = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.argv, sys.path[0] = ["-c"], ""
    exec(compile(program, "<string>", "exec"), vars(main))  # noqa: S102 - a block of our own documentation


if __name__ == "__main__":
    import toolcrib

    for name in toolcrib.__all__:
        getattr(toolcrib, name)
    gc.freeze()  # what is shared with the forks is left alone when they end
    run_as_main(serve())
