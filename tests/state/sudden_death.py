"""A process that writes state of every kind until it is killed, and checks of what it had acknowledged.

`python -m tests.state.sudden_death KINDS STORE NAME` prints a line for each write that has returned. `STORE` is a file,
or the address of a Redis server.
"""
# ruff: noqa: T201 - what it prints is how it acknowledges

import asyncio
import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import SessionOptions
from toolcrib.gateway.sessions import Sessions
from toolcrib.middleware.approval import ApprovalToken, ApprovalTokens
from toolcrib.middleware.audit import AuditEvent
from toolcrib.middleware.audit_file import AuditFile, verify_audit
from toolcrib.middleware.options import AuditFileOptions
from toolcrib.results.store import ResultStore
from toolcrib.server.auth.api_keys import ApiKeys, ApiKeyTable
from toolcrib.state.base import StateStore
from toolcrib.state.redis import RedisStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.types import Caller, Context
from toolcrib.upstream.catalog.pins import PinStore
from toolcrib.upstream.logins.vault import Login, LoginVault
from toolcrib.upstream.options import LoginOptions
from toolcrib.usage.recorder import UsageRecorder, usage_table

KINDS = ("pins", "versions", "results", "learning", "usage", "api keys", "logins", "approvals")
_ANN = Caller(id="ann", tenant="acme")
_LOGINS = LoginOptions(key="a key of at least thirty-two bytes!")
_LATE_S = 3.0
"""How long batched changes may take to be written on a loaded machine, in seconds; a second is usual."""


class Written(NamedTuple):
    """A write that was acknowledged."""

    kind: str
    number: int
    what: str
    seen: float


@asynccontextmanager
async def opened(store: str) -> AsyncIterator[StateStore]:
    """The store of an address or a path."""
    if store.startswith("redis"):
        async with RedisStore(store, timeout_s=10.0) as shared:
            yield shared
    else:
        async with SqliteStore(Path(store)) as file:
            yield file


def _definition(number: int) -> dict[str, Any]:
    return {"name": "tool", "description": f"Version {number}."}


def _tokens(state: StateStore) -> ApprovalTokens:
    return ApprovalTokens("the key of approvals", state, expires_s=600.0, wall=time.time)


def _session(name: str, number: int) -> Context:
    return Context(caller=Caller(id=name), session=f"s{number}")


async def write(kind: str, state: StateStore, name: str, number: int) -> str:
    """Write once; return what is needed to check it."""
    if kind in ("pins", "versions"):
        pins = PinStore(state)
        await pins.review(f"{name} {kind}", [_definition(number)])
        if kind == "pins":
            await pins.trust(f"{name} {kind}")
    elif kind == "results":
        return await ResultStore(state).keep(_ANN, "x:list", f"result {number} of {name}") or ""
    elif kind == "learning":
        sessions = Sessions(SessionOptions(across=True), state)
        await sessions.record(_session(name, number), f"x:tool_{number % 200}", success=True)
        await asyncio.sleep(0.002)
    elif kind == "usage":
        recorder = UsageRecorder(state, lambda: ())
        recorder.search_ended(SimpleNamespace(outcome="hit"))  # type: ignore[arg-type]
        await recorder.save()
    elif kind == "api keys":
        _, secret = await ApiKeyTable(state).create(Caller(id=f"{name} {number}"), lasts_s=None)
        return secret
    elif kind == "logins":
        await LoginVault(state, _LOGINS).save(f"{name} {number}", Login(server=name, url="https://x.example/mcp"))
    else:
        token = ApprovalToken(stage="agreed", number=f"{name} {number}", expires=time.time() + 600, inner=None)
        await _tokens(state).spend(token)
    return ""


async def missing(state: StateStore, writer: "Writer") -> dict[str, list[int]]:
    """The acknowledged writes of each kind that are not there; of learning, the last seconds do not count."""
    found = {
        kind: await _missing(
            kind, state, writer.name, [one for one in writer.written if one.kind == kind], writer.killed
        )
        for kind in writer.kinds
    }
    return {kind: lost for kind, lost in found.items() if lost}


async def _missing(kind: str, state: StateStore, name: str, written: Sequence[Written], killed: float) -> list[int]:
    last = max((one.number for one in written), default=-1)
    if kind == "versions":
        known = [one["tool"] for _, one in await PinStore(state).history(f"{name} {kind}")]
        return [one.number for one in written if _definition(one.number) not in known]
    if kind == "pins":
        change = (await PinStore(state).review(f"{name} {kind}", [])).changes.get("tool")
        trusted = None if change is None else change.old
        return [last] if written and trusted not in (_definition(last), _definition(last + 1)) else []
    if kind == "usage":
        days = (await usage_table(state).items()).values()
        counted = sum(day.searches.get("hit", 0) for day in days)
        return [last] if counted < len(written) else []
    if kind == "learning":
        old = [one.number for one in written if one.seen < killed - _LATE_S]
        sessions = Sessions(SessionOptions(across=True), state)
        return [number for number in old if not len(await sessions.get(_session(name, number)))]
    return [one.number for one in written if not await _is_kept(kind, state, name, one)]


async def _is_kept(kind: str, state: StateStore, name: str, one: Written) -> bool:
    try:
        if kind == "results":
            text = await ResultStore(state).text(_ANN, one.what)
            return text == f"result {one.number} of {name}"
        if kind == "api keys":
            return (await ApiKeys(state).identity(one.what)).caller.id == f"{name} {one.number}"
        if kind == "logins":
            return await LoginVault(state, _LOGINS).load(f"{name} {one.number}") is not None
        token = ApprovalToken(stage="agreed", number=f"{name} {one.number}", expires=time.time() + 600, inner=None)
        await _tokens(state).spend(token)
    except ToolcribError:
        return kind == "approvals"  # refused, as it was used before
    return kind != "approvals"


def check_file(path: Path) -> list[str]:
    """What is wrong with a state file."""
    with sqlite3.connect(path) as db:
        found = [row[0] for row in db.execute("PRAGMA integrity_check") if row[0] != "ok"]
        counted = db.execute("SELECT count(*), sum(size), sum(bytes) FROM entries").fetchone()
        if counted[0] and db.execute("SELECT sum(entries), sum(size), sum(bytes) FROM totals").fetchone() != counted:
            found.append("its totals are wrong")
    db.close()
    return found


class Writer:
    """A process that writes, and is killed after a random number of acknowledged writes."""

    def __init__(self, kinds: Sequence[str], store: str, name: str) -> None:
        self.name = name
        self.kinds = kinds
        self.written: list[Written] = []
        self.killed = 0.0
        command = [sys.executable, "-m", "tests.state.sudden_death", ",".join(kinds), store, name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])

    def kill_after(self, count: int, *, within_s: float = 0.0) -> None:
        """Read acknowledgements until there are so many, wait up to `within_s`, and kill the process."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + random.uniform(0.0, within_s)  # noqa: S311 - any moment will do
        for line in self._process.stdout:
            self._take(line)
            if len(self.written) >= count and time.monotonic() >= deadline:
                break
        self._process.kill()
        self.killed = time.monotonic()
        for line in self._process.stdout.read().splitlines(keepends=True):
            if line.endswith("\n"):
                self._take(line)
        self._process.stdout.close()
        self._process.wait()

    def _take(self, line: str) -> None:
        kind, number, what = json.loads(line)
        self.written.append(Written(kind, number, what, time.monotonic()))


def lost_of_audit(path: Path, written: Sequence[Written]) -> list[str]:
    """What is wrong with an audit file after its writer was killed."""
    report = verify_audit(path)
    return [*report.problems, *(["records are missing"] if report.records < len(written) else [])]


async def _write_until_killed(kinds: str, store: str, name: str) -> None:
    if kinds == "audit":
        await _audit_until_killed(Path(store))
    async with opened(store) as state:
        for number in range(10**9):
            for kind in kinds.split(","):
                print(json.dumps([kind, number, await write(kind, state, name, number)]), flush=True)


async def _audit_until_killed(path: Path) -> None:
    """Acknowledge an event once the file has grown by it."""
    async with AuditFile(AuditFileOptions(path=path), sink=lambda _: None) as log:
        for number in range(10**9):
            size = path.stat().st_size if path.exists() else 0  # noqa: ASYNC240
            log(AuditEvent(time=time.time(), caller="ann", tool=f"x:{number}", outcome="ok"))
            while not path.exists() or path.stat().st_size == size:  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0)
            print(json.dumps(["audit", number, ""]), flush=True)


if __name__ == "__main__":
    asyncio.run(_write_until_killed(*sys.argv[1:4]))
