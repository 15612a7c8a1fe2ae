"""Runs blocks of Python, each in a process of its own that has toolcrib imported already, which takes most of the time.

Reads a folder a line. In it, `block.py` is run, as a program; `told` gets its output. Writes the exit status a line.
"""

import os
import sys
import traceback
import warnings
from pathlib import Path

import toolcrib.app
import toolcrib.registry  # noqa: F401 - imported for the blocks


def run(folder: str) -> int:
    """In the child: the exit status."""
    os.chdir(folder)
    told = os.open("told", os.O_CREAT | os.O_WRONLY)
    for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, told), (2, told)):
        os.dup2(target, stream)
    warnings.simplefilter("error")
    status = 0
    try:
        code = compile(Path("block.py").read_text(), "block.py", "exec")
        exec(code, {"__name__": "__main__"})  # noqa: S102 - this is what the program is for
    except BaseException:  # noqa: BLE001 - whatever it is, it is told
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(run(line.rstrip("\n")))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
