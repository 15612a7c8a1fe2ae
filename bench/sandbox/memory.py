"""What the processes of a sandbox hold, from `/proc`. Linux only; workers are hidden from all but root."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KIB = 1024


@dataclass(frozen=True)
class Held:
    """Memory of some workers, in bytes each: proportional and private."""

    workers: int
    pss: float
    uss: float

    def __str__(self) -> str:
        return f"{self.pss / KIB / KIB:6.1f} {self.uss / KIB / KIB:6.1f}"


def below(pid: int) -> set[int]:
    """The descendants of this process."""
    parents = dict(filter(None, map(_parent, Path("/proc").glob("[0-9]*/stat"))))
    found: set[int] = set()
    new = {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def held(pids: Iterable[int]) -> Held | None:
    """The mean over these worker processes, or None if there are none or they cannot be read.

    Of a worker that is made of several processes only one has none below it.
    """
    pids = set(pids)
    sizes = [size for pid in pids if (size := _sizes(pid)) is not None]
    workers = sum(1 for pid in pids if not below(pid))
    if not sizes or not workers:
        return None
    return Held(workers, sum(pss for pss, _ in sizes) / workers, sum(uss for _, uss in sizes) / workers)


def children() -> set[int]:
    """The processes that this one started."""
    parents = dict(filter(None, map(_parent, Path("/proc").glob("[0-9]*/stat"))))
    return {child for child, parent in parents.items() if parent == os.getpid()}


def own() -> set[int]:
    """All processes below this one."""
    return below(os.getpid())


def _parent(stat: Path) -> tuple[int, int] | None:
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(stat.parent.name), int(fields[1])


def _sizes(pid: int) -> tuple[int, int] | None:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return None
    fields = {name: int(rest.split()[0]) * KIB for name, _, rest in (line.partition(":") for line in lines)}
    return fields["Pss"], fields["Private_Clean"] + fields["Private_Dirty"]
