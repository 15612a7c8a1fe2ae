"""The metrics of several worker processes: added up at any of them, and never less than before."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no workers on Windows")
PROGRAM = Path(__file__).with_name("worker_metrics.py")


class Worker:
    """One process that counts."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, text: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()
        said, line = "", ""
        while line != "end\n":
            said += line
            line = self.process.stdout.readline()
            assert line, "the worker has ended"
        return said

    def show(self) -> dict[str, float]:
        """The values that this worker shows, by name and labels."""
        return {
            key: float(value)
            for key, value in re.findall(r"^(\w\S*(?:\{.*\})?) (\S+)$", self.tell("show"), re.MULTILINE)
        }

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def worker(folder: Path) -> Iterator[Worker]:
    command = [sys.executable, str(PROGRAM), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Worker(process)
        finally:
            process.kill()


COUNT = 'toolcrib_search_duration_seconds_count{outcome="hit"}'
BUCKET = 'toolcrib_search_duration_seconds_bucket{le="0.025",outcome="hit"}'
SERVED = 'toolcrib_tokens_served_total{namespace="net"}'
READY, FAILED = 'toolcrib_servers{state="ready"}', 'toolcrib_servers{state="failed"}'


def test_any_worker_shows_the_sum_of_all_and_no_count_goes_back_when_one_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(worker(tmp_path)) for _ in range(2))
        first.tell("count 3")
        second.tell("count 4")
        second.tell("state failed ready")
        second.show()
        both = first.show()
        assert (both[COUNT], both[BUCKET], both["toolcrib_workers"]) == (7, 7, 2)
        assert (both[SERVED], both["toolcrib_tokens_saved"]) == (70, 7)
        assert (both[READY], both[FAILED]) == (1, 1)
        assert {key for key in both if key.startswith("process_resident_memory_bytes")} == {
            'process_resident_memory_bytes{process="1"}',
            'process_resident_memory_bytes{process="2"}',
        }

        second.kill()
        left = first.show()
        assert (left[COUNT], left[SERVED], left["toolcrib_tokens_saved"]) == (7, 70, 7)
        assert left["toolcrib_workers"] == 1
        assert left.get(FAILED, 0) == 0

        third = stack.enter_context(worker(tmp_path))
        third.tell("count 5")
        again = third.show()
        assert (again[COUNT], again[SERVED], again["toolcrib_workers"]) == (12, 120, 2)
        assert len(list(tmp_path.glob("histogram_*.db"))) == 2, "the new worker took over the files of the dead one"


def test_a_state_that_no_server_is_in_any_more_shows_none(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        one.tell("state failed")
        assert one.show()[FAILED] == 1
        one.tell("state ready")
        shown = one.show()
        assert (shown[READY], shown[FAILED]) == (1, 0)
