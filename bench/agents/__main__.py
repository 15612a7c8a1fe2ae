"""What agents find, not what sentences find: first calls of language models, replayed.

    python bench/agents record small.jsonl --model NAME --endpoint URL --shape openai
    python bench/agents record large.jsonl --model NAME --command "claude -p"
    python bench/agents report

`record` shows a model the meta-tools of a gateway in front of each development set, with the digest and the
instructions, and one request at a time, and keeps its first call. The key of an endpoint is in
`TOOLCRIB_AGENT_KEY`. `report` replays all recordings in `bench/agents/recordings` and prints the table; FastMCP's BM25
search gets the same words. A second table has the calls of `recordings/second`, which followed first replies that
missed or were not sure. The sets are those of `bench/replies`, and `hard`.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import anyio
from models import Command, Endpoint, Model
from recordings import FirstCall, Session, read_second_calls, read_session, write_session

HERE = Path(__file__).parent
sys.path[1:1] = [str(HERE.parent / "replies")]

import systems  # noqa: E402 - of the folder of the replies
from agent import is_complete  # noqa: E402 - likewise
from catalogs import Catalog, among, development_sets, hard_set, recorded_tools  # noqa: E402 - likewise

from toolcrib import __version__  # noqa: E402 - after the path
from toolcrib.surfaces.options import SurfaceOptions  # noqa: E402 - likewise
from toolcrib.testing import FakeProvider, FakeSource, connect, ready, running  # noqa: E402 - likewise

RECORDINGS = Path(os.environ.get("TOOLCRIB_BENCH_AGENTS", HERE / "recordings"))
SEARCH = "tool_search"
SENTENCE = "none: the request itself is the query"
"""In place of a model, in the rows of an agent that pastes what its user wrote."""


# -- recording ---------------------------------------------------------------------------------------------------------


async def shown(catalog: Catalog) -> tuple[list[dict[str, Any]], str]:
    """What a client of a gateway in front of the catalog lists and reads before it asks: definitions, instructions."""
    servers: dict[str, list[Any]] = {}
    for tool in catalog.tools.values():
        servers.setdefault(tool.namespace, []).append(tool)
    source = FakeSource(*(FakeProvider(tools, status=ready(name, tools=len(tools))) for name, tools in servers.items()))
    async with running(source) as gateway, connect(gateway, SurfaceOptions()) as client:
        tools = (await client.list_tools()).tools
        instructions = client.instructions or ""
    listed = [{"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tools]
    return listed, instructions


def first_calls(model: Model, catalog: Catalog) -> Iterator[FirstCall]:
    """The first call of a model for each request of a catalog."""
    for request in catalog.requests:
        answer = model.first_call(request.text)
        if isinstance(answer, str):
            yield FirstCall(set=catalog.name, request=request.text, arguments=None, answer=answer)
        else:
            name, arguments = answer
            found = arguments if name == SEARCH else None
            yield FirstCall(set=catalog.name, request=request.text, arguments=found, answer=name)


def record(options: argparse.Namespace) -> None:
    """Record a session for each set; the file gets the name of the set before its own."""
    others = recorded_tools() if options.tools == "recorded" else {}
    for catalog in _sets(options.sets, options.per_set):
        behind = among(catalog, others) if others else catalog
        definitions, instructions = anyio.run(shown, behind)
        model: Model
        if options.command:
            model = Command(options.command, definitions, instructions)
        else:
            key = os.environ.get("TOOLCRIB_AGENT_KEY", "")
            model = Endpoint(options.endpoint, options.shape, options.model, key, definitions, instructions)
        session = Session(
            model=options.model,
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            system=__version__,
            definitions=definitions,
            instructions=instructions,
            prompt=model.prompt,
            tools=options.tools,
        )
        RECORDINGS.mkdir(exist_ok=True)
        path = RECORDINGS / f"{catalog.name}-{options.file}"
        print(f"{path}: {write_session(path, session, first_calls(model, behind))} requests")


# -- the table ---------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What the reply to one call had."""

    place: int | None
    """The place of the first right tool, from 0; None if it is not in the reply."""
    schema: bool
    """Whether a right tool came with its whole input schema."""
    tokens: int
    weak: bool
    """Whether the right tool was first and marked weak."""


def judge(reply: Any, right: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> Outcome:
    """Judge a reply of a system, whose first text block has these entries; `right` has the right tools by id."""
    places = [place for place, id_ in enumerate(reply.hits) if id_ in right]
    shown = [(reply.hits[id_], right[id_].input_schema) for id_ in reply.hits if id_ in right]
    whole = any(schema is not None and is_complete(schema, original) for schema, original in shown)
    is_first = bool(places) and places[0] == 0
    return Outcome(min(places, default=None), whole, reply.tokens, is_first and bool(entries[0].get("weak")))


HEADER = (
    "| catalog | model | system | requests | searched | right first | in three | in five | whole schema in the reply "
    "| reply, median tokens | right and first, but marked weak |\n|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def row(where: str, model: str, system: str, asked: int, outcomes: Sequence[Outcome]) -> str:
    """A row of the table; shares are of all requests, also of those for which the model did not search."""

    def share(yes: Sequence[bool]) -> str:
        return f"{sum(yes) / asked:.0%}"

    within = [[one.place is not None and one.place < most for one in outcomes] for most in (1, 3, 5)]
    cells = [where, model, system, str(asked), str(len(outcomes)), *map(share, within)]
    cells += [share([one.schema for one in outcomes]), f"{median([one.tokens for one in outcomes] or [0]):.0f}"]
    weak = sum(one.weak for one in outcomes)
    return "| " + " | ".join([*cells, f"{weak} of {sum(within[0])}"]) + " |"


def replayed(
    catalog: Catalog, calls: Sequence[FirstCall], opened: AbstractContextManager[Any], *, whole: bool
) -> tuple[str, list[Outcome]]:
    """The name of a system, and what it answers to the calls; without `whole`, it gets the words of the query alone."""
    right = {request.text: request.right for request in catalog.requests}
    outcomes = []
    with opened as system:
        for call in calls:
            if call.arguments is None:
                continue
            reply = system.replay(call.arguments) if whole else system.search(words_of(call.arguments))
            entries = json.loads(reply.texts[0]) if reply.texts else []
            tools = {id_: catalog.tools[id_] for id_ in right[call.request]}
            outcomes.append(judge(reply, tools, entries))
    return system.name, outcomes


def words_of(arguments: Mapping[str, Any]) -> str:
    """The words of a query, for a system that takes nothing else."""
    query = arguments.get("query") or arguments.get("needs") or ""
    return " ".join(map(str, query)) if isinstance(query, list) else str(query)


class Replay(NamedTuple):
    """Calls that are put to both systems over a catalog."""

    model: str
    catalog: Catalog
    calls: Sequence[FirstCall]

    @property
    def where(self) -> str:
        """The catalog as the table names it."""
        return f"{self.catalog.name}, {len(self.catalog.tools):,} tools"


def replays(files: Sequence[Path], known: Mapping[str, Catalog], others: Mapping[str, Any]) -> Iterator[Replay]:
    """Each recording over its catalog; those made over a set alone also over the set among recorded tools, if any."""
    for path in files:
        session, calls = read_session(path)
        for name in dict.fromkeys(call.set for call in calls):
            if name not in known or (session.tools == "recorded" and not others):
                print(f"Left out: {path.name}, {name}: its tools are not there.")
                continue
            own = _still_asked(calls, known[name], path)
            catalogs = [known[name]] if session.tools == "alone" else []
            catalogs += [among(known[name], others)] if others else []
            yield from (Replay(f"{session.model}, {session.date}", catalog, own) for catalog in catalogs)


def _still_asked(calls: Sequence[FirstCall], catalog: Catalog, path: Path) -> list[FirstCall]:
    """The calls of a set whose requests it still has; says on standard output how many it has not."""
    texts = {request.text for request in catalog.requests}
    own = [call for call in calls if call.set == catalog.name]
    kept = [call for call in own if call.request in texts]
    if len(kept) < len(own):
        print(f"Left out: {path.name}, requests that {catalog.name} no longer has: {len(own) - len(kept)}.")
    return kept


def pasted(catalog: Catalog) -> Replay:
    """The calls of an agent that searches with each request as its user wrote it."""
    calls = [
        FirstCall(set=catalog.name, request=request.text, arguments={"query": request.text}, answer=SEARCH)
        for request in catalog.requests
    ]
    return Replay(SENTENCE, catalog, calls)


def report(options: argparse.Namespace) -> None:
    """Replay the recordings, and the requests themselves over the same catalogs, and print the table."""
    files = sorted(RECORDINGS.glob("*.jsonl"))
    if not files:
        print(f"There are no recordings in {RECORDINGS}. `python bench/agents record` makes some.")
        return
    known = {catalog.name: catalog for catalog in _sets(options.sets)}
    recorded = list(replays(files, known, recorded_tools()))
    catalogs = {replay.where: replay.catalog for replay in recorded}
    print(HEADER)
    for replay in [*recorded, *map(pasted, catalogs.values())]:
        for system, outcomes in _in_each_system(replay):
            print(row(replay.where, replay.model, system, len(replay.calls), outcomes), flush=True)
    _report_second_turns(recorded)


def _in_each_system(replay: Replay) -> Iterator[tuple[str, list[Outcome]]]:
    tools = replay.catalog.tools
    for opened, whole in (
        (systems.toolcrib("toolcrib", systems.ROOT / "src", tools), True),
        (systems.fastmcp(tools), False),
    ):
        yield replayed(replay.catalog, replay.calls, opened, whole=whole)


SECOND_HEADER = (
    "\n| catalog | system | requests asked twice | right first: first reply | second | in three: first reply | second "
    "| whole schema: first reply | second | second reply, median tokens |\n"
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def _report_second_turns(recorded: Sequence[Replay]) -> None:
    """Print what the second calls find beside the first ones to the same requests."""
    second = {(call.set, call.request): call for call in read_second_calls(RECORDINGS / "second")}
    if second:
        print(SECOND_HEADER)
    for replay in recorded:
        asked = [call for call in replay.calls if (call.set, call.request) in second]
        if not asked:
            continue
        again = [second[call.set, call.request] for call in asked]
        turns = [_in_each_system(replay._replace(calls=calls)) for calls in (asked, again)]
        for (system, before), (_, after) in zip(*turns, strict=True):
            print(second_row(replay.where, system, before, after), flush=True)


def second_row(where: str, system: str, before: Sequence[Outcome], after: Sequence[Outcome]) -> str:
    """A row of the table of second calls: how many of the requests each of both replies served."""
    cells = [where, system, str(len(before))]
    for most in (1, 3):
        cells += [str(sum(one.place is not None and one.place < most for one in turn)) for turn in (before, after)]
    cells += [str(sum(one.schema for one in turn)) for turn in (before, after)]
    return "| " + " | ".join([*cells, f"{median([one.tokens for one in after]):.0f}"]) + " |"


def _sets(names: Sequence[str] | None, per_set: int = sys.maxsize) -> list[Catalog]:
    """The sets of these names, or all, each with at most so many requests."""
    sets = [*development_sets(per_set), hard_set(per_set)]
    return [one for one in sets if not names or one.name in names]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="agents", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    reporting = verbs.add_parser("report", help="replay the recordings, and print the table")
    recording = verbs.add_parser("record", help="record the first calls of a model")
    recording.add_argument("file", help="the end of the names of the files")
    recording.add_argument("--model", required=True, help="the name that the table shows")
    recording.add_argument("--tools", choices=("alone", "recorded"), default="alone", help="what is beside a set")
    recording.add_argument("--per-set", type=int, default=100, metavar="N", help="at most so many requests of each set")
    way = recording.add_mutually_exclusive_group(required=True)
    way.add_argument("--command", help="a program that reads the prompt and writes the call")
    way.add_argument("--endpoint", metavar="URL", help="of the API")
    recording.add_argument("--shape", choices=("openai", "anthropic"), default="openai", help="of the API")
    for verb in (reporting, recording):
        verb.add_argument("--set", nargs="+", dest="sets", metavar="NAME", help="only these sets")
    options = parser.parse_args()
    (record if options.verb == "record" else report)(options)


if __name__ == "__main__":
    main()
