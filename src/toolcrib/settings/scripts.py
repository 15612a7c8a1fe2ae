"""The table `scripts` of our section: where stored scripts are, how far a script may go, and how it is kept in."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, get_args

from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import ScriptOptions
from toolcrib.gateway.storage import read_file, scripts_in
from toolcrib.names import check_name
from toolcrib.sandbox.limits import Limits, SandboxOptions, Seccomp
from toolcrib.schema import Schema
from toolcrib.settings.document import Problems
from toolcrib.settings.jsonc import Field
from toolcrib.settings.section import Section, over

_SECCOMP: Final[tuple[Seccomp, ...]] = get_args(Seccomp)
_WHOLE: Final = frozenset({"cpu_s"})
"""Seconds of which the kernel takes whole ones only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTable:
    """The table, in each package's terms."""

    options: ScriptOptions
    limits: Limits
    sandbox: SandboxOptions
    folder: Path | None


def read(scripts: Section, folder: Path) -> ScriptTable:
    """The table's values over the defaults; `folder` is where relative paths begin."""
    found = ScriptTable(
        options=over(
            ScriptOptions(),
            levels=scripts.count("levels", low=1),
            read_only=scripts.flag("read_only"),
            watch_s=scripts.seconds("watch"),
        ),
        limits=_limits(scripts.section("limits")),
        sandbox=_sandbox(scripts.section("sandbox")),
        folder=_folder(scripts, folder),
    )
    scripts.refuse_unknown()
    return found


def _limits(table: Section | None) -> Limits:
    if table is None:
        return Limits()
    given = {field.name: _limit(table, field.name) for field in fields(Limits)}
    table.refuse_unknown()
    try:
        return over(Limits(), **given)
    except ValueError as error:
        table.problems.add(table.at, f"cannot be kept: {error}")
        return Limits()


def _limit(table: Section, name: str) -> float | None:
    key = name.removesuffix("_s")
    return table.seconds(key) if key != name and name not in _WHOLE else table.count(key, low=1)


def _sandbox(table: Section | None) -> SandboxOptions:
    if table is None:
        return SandboxOptions()
    options = over(
        SandboxOptions(),
        seccomp=table.choice("seccomp", _SECCOMP),
        pool=table.count("pool", low=0),
        workers=table.count("workers", low=1),
        queue_wait_s=table.seconds("queue_wait"),
        zygote=table.flag("zygote"),
        start_s=table.seconds("start"),
    )
    table.refuse_unknown()
    return options


def _folder(scripts: Section, base: Path) -> Path | None:
    """The folder of stored scripts, which must be there. A script in it that cannot be used is named as left out."""
    folder = scripts.path("folder", base)
    if folder is None:
        return None
    at = (*scripts.at, str(scripts.spelling("folder")))
    if not folder.is_dir():
        scripts.problems.add(at, f"is no folder of scripts: {folder}; make it, or take the setting out")
        return None
    try:
        paths = scripts_in(folder)
    except OSError as error:
        scripts.problems.add(at, f"cannot be read: {folder}: {error.strerror or error}")
        return None
    for path in paths:
        _look_at(path, at, scripts.problems)
    return folder


def _look_at(path: Path, at: Field, problems: Problems) -> None:
    """Warn of a script that will not become a tool, and why."""
    try:
        script = read_file(path)
        check_name(script.name)
        Schema(script.parameters, script.name)
    except ToolcribError as error:
        said = str(error)
        problems.warn(at, f"holds a script that is left out: {said if path.name in said else f'{path.name}: {said}'}")
