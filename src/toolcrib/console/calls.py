"""The calls page: the last calls and searches with filters, and the timeline of one request."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toolcrib.console.figures import duration
from toolcrib.console.parts import ConsolePage, Visit, whole
from toolcrib.console.processes import FoundCalls, latest
from toolcrib.console.recorder import Recorded, RecordedCall, RecordedSearch
from toolcrib.errors import NotFound

_ROWS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One line of a timeline."""

    kind: str
    """search, call or upstream; `failed-call` for one that failed."""
    name: str
    offset_s: float
    duration_s: float
    level: int
    """0 for what the request did itself, 1 for what that led to."""
    note: str = ""


async def show(visit: Visit) -> ConsolePage:
    """The last calls and searches of all processes, or of one, that pass the filters."""
    chosen = {name: visit.query.get(name, "").strip() for name in ("tool", "caller", "outcome")}
    processes, others = visit.parts.processes, await visit.parts.processes.others()
    process = next((one.id for one in (processes.own, *others) if one.id == visit.query.get("process")), "")
    answers = await processes.calls(chosen, process)
    found = latest(processes.placed(event, peer) for peer, one in answers.given.items() for event in one.events)
    total, kept = (sum(getattr(one, name) for one in answers.given.values()) for name in ("total", "kept"))
    values = {
        "title": "Calls",
        "found": found[:_ROWS],
        "total": total,
        "kept": kept,
        "limit": visit.parts.options.calls,
        "content": visit.parts.recorder.content,
        "outcomes": _outcomes(answers.given.values()),
        "processes": sorted((processes.own, *others), key=lambda one: (one.name, one.id)) if others else (),
        "missing": [peer.name for peer in answers.missing],
        "chosen_process": process,
        **{f"chosen_{name}": value for name, value in chosen.items()},
    }
    return ConsolePage("calls.html", values)


def _outcomes(answers: Iterable[FoundCalls]) -> list[tuple[str, str]]:
    """The outcomes to choose from, with their names."""
    named = {"": "everything", "failed": "all errors", "search": "all searches"}
    seen = sorted({outcome for one in answers for outcome in one.outcomes})
    return [*named.items(), *((outcome, outcome.replace("_", " ")) for outcome in seen)]


async def show_request(visit: Visit) -> ConsolePage:
    """What one request did. Raises `NotFound` for one that is no longer kept."""
    processes = visit.parts.processes
    placed = await processes.of_request(whole(visit.request.path_params["number"]), visit.query.get("at", ""))
    events = [one.event for one in placed]
    if not events:
        raise NotFound("This request is no longer known.", hint="The console keeps only the most recent calls.")
    calls = [one for one in events if isinstance(one, RecordedCall)]
    before = await processes.search_before(calls[0]) if calls else None
    is_within = before is not None and (before.event.request, before.at) == (events[0].request, placed[0].at)
    bars = list(_bars(events))
    values = {
        "title": calls[0].tool if calls else "Search",
        "events": placed,
        "first": events[0],
        "process": placed[0].process if await processes.others() else None,
        "calls": calls,
        "before": None if is_within else before,
        "bars": bars,
        "whole": max((bar.offset_s + bar.duration_s for bar in bars), default=0.0),
        "content": visit.parts.recorder.content,
    }
    return ConsolePage("request.html", values)


def _bars(events: Sequence[Recorded]) -> Iterator[Bar]:
    """The lines of a timeline. Calls that another one made come below it, since they began later."""
    began = events[0].time
    for one in events:
        offset = one.time - began
        if isinstance(one, RecordedSearch):
            note = f"{duration(one.duration_s)}, {one.total} hit{'' if one.total == 1 else 's'}"
            yield Bar(kind="search", name="search", offset_s=offset, duration_s=one.duration_s, level=0, note=note)
            continue
        kind = "failed-call" if one.failed else "call"
        yield Bar(
            kind=kind,
            name=one.tool,
            offset_s=offset,
            duration_s=one.duration_s,
            level=int(one.nested),
            note=_note(one),
        )
        for place, step in enumerate(one.steps, start=1):
            yield Bar(
                kind="failed-call" if step.failed else "upstream",
                name=step.backend if len(one.steps) == 1 else f"{step.backend}, attempt {place}",
                offset_s=offset + step.offset_s,
                duration_s=step.duration_s,
                level=int(one.nested) + 1,
                note=duration(step.duration_s),
            )


def _note(call: RecordedCall) -> str:
    flags: Mapping[str, Any] = {"from the cache": call.cached, f"approval {call.approval}": call.approval}
    return ", ".join([duration(call.duration_s), *(text for text, holds in flags.items() if holds)])
