"""An audit log in a file that shows whether it was changed: each record carries the hash of the one before it.

A record is a line of JSON that ends with its own hash: the SHA-256 of the line without that last member, or with a key
its HMAC-SHA256. It also has a number and, as `previous`, the hash of the record before it, also across files. A record
that is changed, left out or added breaks the chain; a new one cannot be made without the key. What the chain cannot
show is that its end was cut off: for that, note the last hash elsewhere, and look for it with
`verify_audit(holds=...)`.

Several processes may write to one file. Each begins its part with a record, and ends it with one, so that the log shows
which process may have died with records that it had yet to write. Where calls could not be recorded, the next record
says how many, when, and why.
"""

import errno
import hashlib
import hmac
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, Final, Self

import anyio
import anyio.to_thread

from toolcrib.errors import NotFound, StateUnavailable
from toolcrib.middleware.audit import AuditEvent, AuditSink, log_sink
from toolcrib.middleware.options import AuditFileOptions, CallOptions
from toolcrib.private_files import open_private

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger(__name__)

START: Final = "0" * 64
"""What the first record of a chain has as its `previous`."""
_HASH_MEMBER: Final = ',"hash":"'
_HASH_CHARS: Final = 64
_END: Final = len(_HASH_MEMBER) + _HASH_CHARS + len('"}')
"""Characters of a line that its hash does not cover."""
_MAX_WAITING: Final = 10_000
"""Events that wait for the file; further ones are counted, and the count becomes a record."""
_BATCH: Final = 256
"""Records that are written in one step. Fewer are where there is no room for so many."""
_RESERVED: Final = 4096
"""Bytes that a file beside the log takes, so that its last record has room on a full disk."""
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_MAX_TEXT: Final = 500
"""Characters of a value."""
_MAX_TAIL: Final = 64 * 1024
"""Bytes at the end of a file that are read to go on with its chain: more than two lines."""
_RETRY_S: Final = 1.0
_STOP_S: Final = 5.0
"""How long the end of a program waits for the last records, in seconds."""
_MAX_PROBLEMS: Final = 20
_MAX_NUMBER: Final = 10**12
"""More records than a log can have. Python refuses to write numbers of thousands of digits."""
_MAX_TIME: Final = 1e11
"""Seconds since the epoch that a date can have."""


def audit_files(path: Path) -> tuple[Path, ...]:
    """The files of a log that are there, in the order in which they were written; the current one is last."""
    earlier = sorted(path.parent.glob(f"{path.stem}-{'[0-9]' * 12}{path.suffix}"))
    return (*earlier, path) if path.is_file() else tuple(earlier)


def _hash_of(text: str, key: bytes | None) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest() if key is None else hmac.digest(key, data, "sha256").hex()


def _line(values: dict[str, Any], key: bytes | None) -> tuple[str, str]:
    text = json.dumps(values, separators=(",", ":"))[:-1]
    own = _hash_of(text, key)
    return f'{text}{_HASH_MEMBER}{own}"}}\n', own


def _cut(value: str | float) -> str | float:
    return value[:_MAX_TEXT] if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFileStatus:
    """How an audit file is doing, since this process has begun to write it."""

    written: int = 0
    """Records in the file."""
    waiting: int = 0
    """Records that are yet to be written."""
    lost: int = 0
    """Calls that were not recorded, and never will be."""
    refused: int = 0
    """Calls that were refused because they could not be recorded."""
    reason: str = ""
    """Why the file cannot be written; empty while it can."""


@dataclass(slots=True)
class _Lost:
    """Calls that found no room to wait."""

    events: int = 0
    first: float = 0.0
    last: float = 0.0

    def add(self, time_s: float) -> None:
        self.first = self.first if self.events else time_s
        self.last = time_s
        self.events += 1

    def record(self, now: float, reason: str) -> dict[str, Any]:
        return {
            "kind": "lost",
            "time": now,
            "events": self.events,
            "from": self.first,
            "to": self.last,
            "reason": reason or "more calls came than could be written",
        }


class AuditFile:
    """Takes events, and writes them in a thread of its own. A file that cannot be written is tried again."""

    def __init__(
        self, options: AuditFileOptions, sink: AuditSink | None = None, *, wall: Callable[[], float] = time.time
    ) -> None:
        """`sink` gets each event too; `wall` gives seconds since the epoch."""
        self.options = options
        self._sink = sink
        self._wall = wall
        self._key = None if options.key is None else options.key.encode()
        self._waiting: deque[dict[str, Any]] = deque()
        self._lost = _Lost()
        self._writer = ""
        """Identifies this part of the log, once it has begun."""
        self._stopping = False
        self._written = self._all_lost = self._refused = 0
        self._reason = ""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._chain = _Chain(options, self._key)

    @classmethod
    def of(cls, options: CallOptions, sink: AuditSink | None) -> "AuditFile | None":
        """The file that the options name, which gives each event also to `sink`, or to the log if the options want one.

        None if they name no file.
        """
        if options.audit_file is None:
            return None
        if sink is None and options.audit:
            sink = log_sink(options.audit) if isinstance(options.audit, str) else log_sink()
        return cls(options.audit_file, sink)

    async def __aenter__(self) -> Self:
        """Start writing. Events that came before wait."""
        self._stopping = False
        self._thread = threading.Thread(target=self._write, name="toolcrib audit", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Write what waits, for a few seconds at most, and stop."""
        with self._changed:
            thread, self._thread, self._stopping = self._thread, None, True
            self._changed.notify_all()
        if thread is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(thread.join, _STOP_S)
        with self._changed:
            if missing := len(self._unwritten()) + self._lost.events:
                logger.error("%d audit records could not be written to %s", missing, self.options.path)
            if thread is not None and not thread.is_alive():
                self._waiting.clear()
                self._lost, self._writer = _Lost(), ""

    def __call__(self, event: AuditEvent) -> None:
        """Take an event. Never waits for the file."""
        values = {name: _cut(value) for name, value in event.to_object().items()}
        with self._changed:
            if len(self._waiting) >= _MAX_WAITING:
                self._lost.add(event.time)
                self._all_lost += 1
            else:
                self._begin()
                self._count_lost()
                self._waiting.append({"kind": "call", **values})
                self._changed.notify_all()
        if self._sink is not None:
            self._sink(event)

    def status(self) -> AuditFileStatus:
        """How the file is doing. Any thread may ask."""
        with self._changed:
            return AuditFileStatus(
                written=self._written,
                waiting=len(self._waiting),
                lost=self._all_lost,
                refused=self._refused,
                reason=self._reason,
            )

    async def require(self) -> None:
        """Raise `StateUnavailable` unless a call can be recorded, as far as is known before it runs.

        The first call waits until the file was written once.
        """
        if not self._written and self._thread is not None and not self._reason:
            await anyio.to_thread.run_sync(self._wait_written, abandon_on_cancel=True)
        if self._written and not self._reason and len(self._waiting) < _MAX_WAITING:
            return
        with self._changed:
            self._refused += 1
        raise StateUnavailable(
            "No tool is run at the moment, because calls cannot be recorded.",
            hint="Nothing was called. Try again later; the log of the gateway says why.",
        )

    def _wait_written(self) -> None:
        with self._changed:
            self._begin()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._written or self._reason or self._stopping, timeout=_STOP_S)

    # -- what is written -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Have it written that this process begins, once."""
        if not self._writer:
            self._writer = token_hex(8)
            self._waiting.append(
                {"kind": "started", "time": self._wall(), "writer": self._writer, "process": os.getpid()}
            )

    def _count_lost(self) -> None:
        """Have the number of events that found no room written."""
        if self._lost.events:
            self._waiting.append(self._lost.record(self._wall(), self._reason))
            self._lost = _Lost()

    def _write(self) -> None:
        most = _BATCH
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                batch = [*islice(self._waiting, most)]
            if not batch:
                break
            try:
                self._chain.append(batch)
            except OSError as error:
                if error.errno in _NO_ROOM and len(batch) > 1:
                    most = len(batch) // 2  # there may be room for a part
                elif self._wait_to_try_again(error):
                    break
                continue
            most = min(_BATCH, 2 * most)
            self._note_written(len(batch))
        self._end()
        self._chain.close()

    def _note_written(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._waiting.popleft()
            self._written += count
            self._count_lost()
            was, self._reason = self._reason, ""
            self._changed.notify_all()
        if was:
            logger.warning("the audit file %s is written again", self.options.path)

    def _wait_to_try_again(self, error: OSError) -> bool:
        """Wait until the file should be tried again. Returns whether to stop instead."""
        with self._changed:
            was, self._reason = self._reason, error.strerror or type(error).__name__
            self._changed.notify_all()
            if not was:
                logger.error("the audit file %s cannot be written: %s", self.options.path, self._reason)
            if self._stopping:
                return True
            self._changed.wait_for(lambda: self._stopping, timeout=_RETRY_S)
            return False  # also when it is to stop now: the disk may have room since the last attempt

    def _end(self) -> None:
        """Write that this process ends, and how many calls it could not record, in the room that is kept for it."""
        with self._changed:
            if not self._writer:
                return
            lost = replace(self._lost)
            for one in self._unwritten():
                lost.add(one["time"])
            last = [lost.record(self._wall(), self._reason)] if lost.events else []
            ended = {"kind": "ended", "time": self._wall(), "writer": self._writer}
        with suppress(OSError):  # `__aexit__` logs how many are missing
            if last:
                self._chain.free_reserve()
            self._chain.append([*last, ended])

    def _unwritten(self) -> list[dict[str, Any]]:
        return [one for one in self._waiting if one["kind"] == "call"]


class _Chain:
    """The file of a log, and where its chain ends."""

    def __init__(self, options: AuditFileOptions, key: bytes | None) -> None:
        self._options = options
        self._path = options.path
        self._key = key
        self._file: int | None = None
        self._size = -1
        """The size at which `_number` and `_previous` are those of the last record."""
        self._number = 0
        self._previous = START
        self._torn: str | None = None
        """The hash of a line at the end that was cut short, by a crash or a full disk."""
        self._cannot_rotate = False

    def append(self, records: Sequence[dict[str, Any]]) -> None:
        """Write records, all of them or none."""
        with self._locked() as (file, size):
            if size != self._size:
                self._find_end(file, size)
            number, previous, lines = self._number, self._previous, list[str]()
            if self._torn is not None:  # it is ended in the same step, or nothing would account for it
                records = [{"kind": "recovered", "time": time.time(), "cut": self._torn}, *records]
                lines.append("\n")
            for record in records:
                number += 1
                line, previous = _line({"number": number, "previous": previous, **record}, self._key)
                lines.append(line)
            data = "".join(lines).encode("utf-8", "surrogatepass")
            try:
                written = 0
                while written < len(data):
                    written += os.write(file, data[written:])
                if self._options.sync:
                    os.fsync(file)
            except OSError:
                os.ftruncate(file, size)
                raise
            self._number, self._previous, self._size, self._torn = number, previous, size + len(data), None
            if self._size >= self._options.max_bytes:
                self._try_rotate()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def free_reserve(self) -> None:
        """Give the disk back what was reserved, for a record that must be written."""
        self._path.with_name(f"{self._path.name}.reserve").unlink(missing_ok=True)

    def _reserve(self) -> None:
        """Take room for a last record. Random bytes, because a file system may store others in less room."""
        with suppress(OSError):  # a disk that is full already
            place = self._path.with_name(f"{self._path.name}.reserve")
            with os.fdopen(open_private(place, os.O_WRONLY), "wb") as file:
                if os.fstat(file.fileno()).st_size < _RESERVED:
                    file.write(os.urandom(_RESERVED))

    @contextmanager
    def _locked(self) -> Iterator[tuple[int, int]]:
        """The file, locked against other processes, and its size."""
        while True:
            if self._file is None:
                self._file = open_private(self._path, os.O_RDWR | os.O_APPEND)
                self._reserve()
            _lock(self._file)
            opened = os.fstat(self._file)
            try:
                is_current = os.path.samestat(opened, self._path.stat())
            except FileNotFoundError:
                is_current = False
            if is_current:
                break
            self.close()  # another process has begun a new file
            self._size = -1
        try:
            yield self._file, opened.st_size
        finally:
            if self._file is not None:
                _lock(self._file, free=True)

    def _find_end(self, file: int, size: int) -> None:
        """Go on where the file ends, or the one before it if it is empty."""
        end = os.pread(file, min(size, _MAX_TAIL), max(0, size - _MAX_TAIL))
        self._torn = None
        if end and not end.endswith(b"\n"):
            cut = end.rpartition(b"\n")[2]
            self._torn = hashlib.sha256(cut).hexdigest()
            end = end[: len(end) - len(cut)]
        lines = end.splitlines()
        if not lines and (earlier := [one for one in audit_files(self._path) if one != self._path]):
            with os.fdopen(open_private(earlier[-1], os.O_RDONLY), "rb") as last:
                last.seek(-min(earlier[-1].stat().st_size, _MAX_TAIL), os.SEEK_END)
                lines = last.read().splitlines()
        self._number, self._previous = 0, START
        for line in reversed(lines):
            if (record := _read(line)) is not None:
                self._number, self._previous = record["number"], record["hash"]
                break

    def _try_rotate(self) -> None:
        """Begin a new file. If that fails, this one goes on: its records are written, and must not be written again."""
        try:
            self._rotate()
        except OSError as error:
            if not self._cannot_rotate:
                logger.error("no new file can be begun for the audit log %s: %s", self._path, error.strerror)  # noqa: TRY400 - the reason says it all
            self._cannot_rotate = True
        else:
            self._cannot_rotate = False

    def _rotate(self) -> None:
        if sys.platform == "win32":  # which renames no open file
            self.close()
        self._path.rename(self._path.with_stem(f"{self._path.stem}-{self._number:012}"))
        self.close()
        self._size = -1
        earlier = [one for one in audit_files(self._path) if one != self._path]
        for old in earlier[: max(0, len(earlier) - self._options.max_files + 1)]:
            old.unlink(missing_ok=True)


def _lock(file: int, *, free: bool = False) -> None:
    """Lock a file against other processes, or free it. Does nothing on Windows: only one process may write there."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_UN if free else fcntl.LOCK_EX)


def _read(line: bytes) -> dict[str, Any] | None:
    """The record of a line; None if it is none."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    is_record = (
        isinstance(record, dict)
        and type(record.get("number")) is int
        and 0 < record["number"] < _MAX_NUMBER
        and all(isinstance(record.get(name), str) and len(record[name]) == _HASH_CHARS for name in ("previous", "hash"))
    )
    return record if is_record else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditGap:
    """Calls that were not recorded. Times are seconds since the epoch, 0 in a log of an earlier version."""

    record: int
    """The number of the record that says so."""
    events: int
    first: float = 0.0
    last: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditWriter:
    """A process that writes to the log."""

    record: int
    """The number of its first record."""
    process: int
    since: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What the check of an audit log found."""

    files: tuple[str, ...]
    records: int
    first: int | None = None
    """The number of the first record; above 1 if older files were removed."""
    last: int | None = None
    last_hash: str | None = None
    """The hash of the last record. Note it elsewhere to show later that nothing before it was cut off."""
    cut_lines: int = 0
    """Lines that a crash cut short, and that the next record accounts for."""
    lost: int = 0
    """Calls that were not recorded while the file could not be written, by the log's own count."""
    gaps: tuple[AuditGap, ...] = ()
    """Where they are missing, the first 20 places."""
    unended: tuple[AuditWriter, ...] = ()
    """Processes that have begun to write, and not ended: they still run, or died, perhaps with unwritten records."""
    held: bool | None = None
    """Whether the hash that was asked for is in the chain; None if none was."""
    problems: tuple[str, ...] = ()
    """Where the chain is broken, the first 20 places."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was changed, no call is known to be missing, and the hash that was asked for is there."""
        return not self.problems and not self.lost and self.held is not False


def verify_audit(path: Path, *, key: str | None = None, holds: str | None = None) -> AuditReport:
    """Check the whole log of which `path` is the current file, or one file of it.

    `key` is that of `AuditFileOptions`; `holds` a hash that was noted earlier. Raises `NotFound` if there is no file.
    """
    with ExitStack() as opened:
        files = _open_files(path, opened)
        if not files:
            raise NotFound(f"There is no audit log at {path}.", hint="calls.audit_file says where one is written.")
        check = _Check(None if key is None else key.encode(), holds)
        for file in files:
            for place, line in enumerate(file, start=1):
                check.take(line, f"{Path(file.name).name}:{place}")
        return check.report(tuple(str(file.name) for file in files))


def _open_files(path: Path, opened: ExitStack) -> list[BinaryIO]:
    """Open the files of a log, although a gateway may begin a new one at any moment."""
    try:
        current: list[BinaryIO] = [opened.enter_context(path.open("rb"))]
    except FileNotFoundError:
        current = []
    earlier: list[BinaryIO] = [opened.enter_context(one.open("rb")) for one in audit_files(path) if one != path]
    if earlier and current and os.path.sameopenfile(earlier[-1].fileno(), current[0].fileno()):
        return earlier
    return [*earlier, *current]


@dataclass(slots=True)
class _Check:
    key: bytes | None
    holds: str | None
    records: int = 0
    first: int | None = None
    number: int | None = None
    previous: str | None = None
    cut: tuple[str, str] | None = None
    """The place and the hash of a line that is not a record."""
    cut_lines: int = 0
    lost: int = 0
    gaps: list[AuditGap] = field(default_factory=list)
    writers: dict[str, AuditWriter] = field(default_factory=dict)
    held: bool = False
    problems: list[str] = field(default_factory=list)

    def take(self, line: bytes, place: str) -> None:
        """Check the next line."""
        record = _read(line)
        if record is None:
            self._settle_cut(None)
            self.cut = (place, hashlib.sha256(line.rstrip(b"\n")).hexdigest())
            return
        self._settle_cut(record)
        text = line.rstrip(b"\n").decode("utf-8", "surrogatepass")
        if not hmac.compare_digest(_hash_of(text[:-_END], self.key), record["hash"]):
            reason = "it was changed" if self.key is None else "it was changed, or the key is another one"
            self._add(f"{place}: record {record['number']} does not have its hash: {reason}.")
        elif self.previous is None:
            if record["number"] == 1 and record["previous"] != START:
                self._add(f"{place}: record 1 does not begin a chain.")
        elif (record["number"], record["previous"]) != ((self.number or 0) + 1, self.previous):
            self._add(f"{place}: record {record['number']} does not follow record {self.number}.")
        self.records += 1
        self.first = record["number"] if self.first is None else self.first
        self.number, self.previous = record["number"], record["hash"]
        self.held = self.held or record["hash"] == self.holds
        self._note(record)

    def _note(self, record: dict[str, Any]) -> None:
        """Take what a record says of the log itself."""
        match record:
            case {"kind": "lost", "events": int(events)}:
                self.lost += events
                first, last = (_time(record.get(name)) for name in ("from", "to"))
                self.gaps.append(
                    AuditGap(
                        record=record["number"],
                        events=events,
                        first=first,
                        last=last,
                        reason=str(record.get("reason", "")),
                    )
                )
            case {"kind": "started", "writer": str(writer), "process": int(process)}:
                since = _time(record.get("time"))
                self.writers[writer] = AuditWriter(record=record["number"], process=process, since=since)
            case {"kind": "ended", "writer": str(writer)}:
                self.writers.pop(writer, None)

    def report(self, files: tuple[str, ...]) -> AuditReport:
        """What was found."""
        if self.cut is not None:
            self.cut_lines += 1  # the last line: the process that wrote it ended there
        return AuditReport(
            files=files,
            records=self.records,
            first=self.first,
            last=self.number,
            last_hash=self.previous,
            cut_lines=self.cut_lines,
            lost=self.lost,
            gaps=tuple(self.gaps[:_MAX_PROBLEMS]),
            unended=tuple(self.writers.values()),
            held=None if self.holds is None else self.held,
            problems=tuple(self.problems[:_MAX_PROBLEMS]),
        )

    def _settle_cut(self, following: dict[str, Any] | None) -> None:
        """A line that is not a record is right only if the next record accounts for it."""
        if self.cut is None:
            return
        place, found = self.cut
        self.cut = None
        if following is not None and following.get("kind") == "recovered" and following.get("cut") == found:
            self.cut_lines += 1
        else:
            self._add(f"{place}: this line is not a record.")

    def _add(self, problem: str) -> None:
        if len(self.problems) <= _MAX_PROBLEMS:
            self.problems.append(problem)


def _time(value: Any) -> float:
    """A time of a record, which anyone may have written; 0 if it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _MAX_TIME else 0.0
