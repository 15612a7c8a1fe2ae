"""First calls of language models: one file a session, with what the model saw, and a line for each request."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """What a model was given: the first line of a file."""

    model: str
    date: str
    """When the calls were recorded, as YYYY-MM-DD."""
    system: str
    """The version of toolcrib whose definitions the model saw."""
    definitions: Sequence[Mapping[str, Any]]
    """The answer to `tools/list`, with the digest of the servers: name, description and input schema of each."""
    instructions: str
    """The server's instructions."""
    prompt: str
    """What was said around a request, with {request} in its place."""
    tools: str
    """The catalog behind the gateway: `alone`, or `recorded` for the set among recorded tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCall:
    """What the model did first for one request."""

    set: str
    request: str
    arguments: Mapping[str, Any] | None
    """Those of its call of `tool_search`; None if it called no tool or another one."""
    answer: str
    """What it called or wrote instead."""


def write_session(path: Path, session: Session, calls: Iterable[FirstCall]) -> int:
    """Write a file, line by line, so that a session that is cut off keeps what it has; return the number of calls."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(asdict(session), ensure_ascii=False) + "\n")
        for call in calls:
            file.write(json.dumps(asdict(call), ensure_ascii=False) + "\n")
            file.flush()
            count += 1
    return count


def read_second_calls(folder: Path) -> list[FirstCall]:
    """The calls that followed a reply, from every file of a folder; there may be none."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text(encoding="utf-8").splitlines()]
    return [FirstCall(**json.loads(line)) for line in lines]


def read_session(path: Path) -> tuple[Session, list[FirstCall]]:
    """Read a file. Raises `ValueError` that names the line that is not of this form."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Any] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append((FirstCall if found else Session)(**json.loads(line)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    if not found:
        raise ValueError(f"{path} is empty: its first line says what the model saw.")
    return found[0], found[1:]
