"""Compare two settings, and watch the files that they came from, so that changes apply without a restart."""

import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.abc
import anyio.to_thread

from toolcrib.errors import ToolcribError, missing_extra
from toolcrib.sanitize import listing
from toolcrib.settings.document import snake
from toolcrib.settings.options import Settings
from toolcrib.upstream.options import ServerOptions

logger = logging.getLogger(__name__)

_APPLIED_OF_AUTH: Final = (
    *("issuers", "scopes", "step_up", "algorithms", "leeway", "recheck", "introspect", "private_hosts", "api_keys"),
)
_APPLIED: Final = frozenset(
    {
        ("policy",),
        ("env_file",),
        ("max_message_bytes",),
        ("http", "tokens"),
        ("http", "tokens_file"),
        *(("auth", key) for key in _APPLIED_OF_AUTH),
        ("search", "keywords"),
        *(("timeouts", key) for key in ("start", "list", "call", "call_max")),
    }
)
"""What of the section `toolcrib` applies without a restart: rights, tokens, and what servers take as their defaults."""

FileStamp = tuple[int, int, int] | None
"""Inode, size and time of change of a file; None if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """The difference between two settings. Everything but `needs_restart` can be applied while an app runs."""

    added: tuple[str, ...] = ()
    """Servers, by name."""
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()
    """Servers that had been given up."""
    policy: bool = False
    """Whether who may see and call what has changed."""
    keywords: bool = False
    """Whether the file of keywords has other entries."""
    tokens: bool = False
    """Whether the callers of the HTTP server, or their secrets, have changed."""
    needs_restart: tuple[str, ...] = ()
    """Settings that differ from those the app was started with, such as `http.port`, and apply at its next start."""

    def __bool__(self) -> bool:
        return bool(
            self.added
            or self.removed
            or self.changed
            or self.retried
            or self.policy
            or self.keywords
            or self.tokens
            or self.needs_restart
        )

    def __str__(self) -> str:
        """The change in one line.

        >>> str(SettingsChange(added=("git", "time"), policy=True, needs_restart=("http.port",)))
        'added git, time; the policy changed; after a restart: http.port'
        >>> str(SettingsChange())
        'nothing changed'
        """
        servers = {"added": self.added, "removed": self.removed, "restarted": self.changed, "tried again": self.retried}
        parts = [f"{verb} {listing(names)}" for verb, names in servers.items() if names]
        parts += ["the policy changed"] if self.policy else []
        parts += ["the keywords changed"] if self.keywords else []
        parts += ["the tokens changed"] if self.tokens else []
        parts += [f"after a restart: {listing(self.needs_restart)}"] if self.needs_restart else []
        return "; ".join(parts) or "nothing changed"


def compare(before: Settings, after: Settings, started_with: Settings | None = None) -> SettingsChange:
    """Return what changed; `started_with`, by default `before`, are the settings that a restart would replace."""
    old, new = _by_name(before.servers), _by_name(after.servers)
    started = started_with or before
    return SettingsChange(
        added=tuple(name for name in new if name not in old),
        removed=tuple(name for name in old if name not in new),
        changed=tuple(name for name in new if name in old and old[name] != new[name]),
        policy=before.section.get("policy") != after.section.get("policy"),
        keywords=before.gateway.keywords != after.gateway.keywords,
        tokens=before.http.tokens != after.http.tokens or before.auth != after.auth,
        needs_restart=tuple(_different(started.section, after.section)),
    )


def with_reloaded(before: Settings, after: Settings) -> Settings:
    """The settings before, with what applies while an app runs as it is after."""
    return replace(
        before,
        servers=after.servers,
        policy=after.policy,
        gateway=replace(before.gateway, keywords=after.gateway.keywords),
        http=replace(before.http, tokens=after.http.tokens),
        auth=after.auth,
        http_problem=after.http_problem,
        files=after.files,
        section=after.section,
        warnings=after.warnings,
    )


def _by_name(servers: Sequence[ServerOptions]) -> dict[str, ServerOptions]:
    return {server.name: server for server in servers}


def _different(before: Mapping[str, Any], after: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the settings that differ and are not applied at once, as dotted names of at most two parts."""
    old, new = ({snake(key): value for key, value in table.items()} for table in (before, after))
    for key in dict.fromkeys((*old, *new)):
        here = (*path, key)
        one, other = old.get(key), new.get(key)
        if one == other or here in _APPLIED:
            continue
        if not path and any(isinstance(value, Mapping) for value in (one, other)):
            tables = [value if isinstance(value, Mapping) else {} for value in (one, other)]
            yield from _different(tables[0], tables[1], here)
        else:
            yield ".".join(here)


class SettingsWatcher:
    """Loads settings again when one of their files changes, or on request, and passes on what can be used.

    A file that is invalid changes nothing; why is logged once, and kept as `problem`.
    """

    def __init__(
        self,
        settings: Settings,
        load: Callable[[], Settings],
        apply: Callable[[Settings], Awaitable[Any]],
        *,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`load` reads the files in a worker thread; `apply` may raise `ToolcribError` for what it cannot take over.

        `note` gets each new `problem`, and an empty text once there is none any more.
        """
        self.problem = ""
        """Why the files as they are now were not taken over; empty if they were."""
        self._files = settings.files
        self._load = load
        self._apply = apply
        self._note = note
        self._applied = _stamps(self._files)
        self._is_running = anyio.Event()
        self._lock = anyio.Lock()

    async def run(self, every_s: float, *, at_once: bool = False) -> None:
        """Look every `every_s` seconds whether a file has changed and then stayed the same. Never returns.

        With `at_once`, the system's reports of changes are used as well. Raises `MissingExtra` without `watchfiles`.
        """
        self._is_running.set()
        async with anyio.create_task_group() as group:
            if at_once:
                group.start_soon(self._run_on_reports, load_watch())
            await self._poll(every_s)

    async def _run_on_reports(self, watch: Callable[..., AsyncIterator[object]]) -> None:
        """Reload as soon as the system reports a change, once it is quiet for a moment."""
        while True:
            files = self._files
            # Folders, because editors replace files, and containers the folder that a file is a link into.
            folders = {file.parent for file in files if file.parent.is_dir()}
            if not folders:
                return
            async for _ in watch(*folders, recursive=False, debounce=400, step=100, rust_timeout=1_000):
                now = await anyio.to_thread.run_sync(_stamps, files, abandon_on_cancel=True)
                if now != self._applied or self.problem:
                    await self.reload()
                if self._files != files:
                    break

    async def _poll(self, every_s: float) -> None:
        seen = self._applied
        while True:
            await anyio.sleep(every_s)
            now = await anyio.to_thread.run_sync(_stamps, self._files, abandon_on_cancel=True)
            # With a problem, a file that is not known yet may have what is missing.
            if self._files and now == seen and (now != self._applied or self.problem):
                await self.reload()
            seen = now

    async def run_on_signal(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Reload at each SIGHUP, where the system has it. Never returns."""
        if not hasattr(signal, "SIGHUP"):
            task_status.started()
            await anyio.sleep_forever()
        with anyio.open_signal_receiver(signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                await self._is_running.wait()  # what a signal changes is applied once there is something to change
                await self.reload()

    async def reload(self) -> None:
        """Load the settings and apply them. Logs what changed, or why nothing did."""
        async with self._lock:
            # Before reading, so that a change during it is noticed.
            stamps = await anyio.to_thread.run_sync(_stamps, self._files, abandon_on_cancel=True)
            try:
                settings = await anyio.to_thread.run_sync(self._load, abandon_on_cancel=True)
                change = await self._apply(settings)
            except ToolcribError as error:
                self._report(str(error))
            except Exception as error:
                logger.exception("the settings could not be read again")
                self._report(f"{type(error).__name__} while reading")
            else:
                self._set_problem("")
                logger.info("settings read again: %s", change)
                for warning in settings.warnings:
                    logger.warning("%s", warning)
                if settings.files != self._files:
                    self._files = settings.files
                    stamps = await anyio.to_thread.run_sync(_stamps, self._files, abandon_on_cancel=True)
            self._applied = stamps

    def _report(self, problem: str) -> None:
        if problem != self.problem:
            logger.error("the changed settings cannot be used, so nothing was changed: %s", problem)
        self._set_problem(problem)

    def _set_problem(self, problem: str) -> None:
        if problem != self.problem:
            self.problem = problem
            self._note(problem)


def load_watch() -> Callable[..., AsyncIterator[object]]:
    """The function of `watchfiles` that reports changes. Raises `MissingExtra`."""
    try:
        from watchfiles import awatch
    except ModuleNotFoundError as error:
        raise missing_extra("watchfiles", "toolcrib[watch]", needed_by="watch_at_once") from error
    return awatch


def _stamps(files: Sequence[Path]) -> tuple[FileStamp, ...]:
    return tuple(map(_stamp, files))


def _stamp(path: Path) -> FileStamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
