"""A worker that counts what standard input asks for, and prints the metrics of all workers."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolcrib.telemetry import GatewayMetrics, GatewayState
from toolcrib.types import ServerState, ServerStatus


def main() -> None:
    usage: Any = SimpleNamespace(since_start={}, saved_since_start=0)
    states = [ServerState.READY]
    metrics = GatewayMetrics(Path(sys.argv[1]))
    metrics.show_state(
        GatewayState(
            lambda: [ServerStatus(name=str(place), state=state, since=0) for place, state in enumerate(states)],
            tuple,
            usage=usage,
        )
    )
    for line in sys.stdin:
        match line.split():
            case ["count", number]:
                for _ in range(int(number)):
                    metrics.search_ended(SimpleNamespace(outcome="hit", duration_s=0.02))  # type: ignore[arg-type]
                usage.since_start = {"net": SimpleNamespace(served=int(number) * 10)}
                usage.saved_since_start += int(number)
            case ["state", *names]:
                states[:] = [ServerState(name) for name in names]
        text = metrics.text() if line.startswith("show") else ""
        print(f"{text}end", flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
