"""Whether a change of the search gives the same answers to the last bit.

`python bench/retrieval/replies.py --record` keeps a hash of each reply in `bench/out/replies.json`; the same command
without `--record` asks everything again, and lists the replies that differ. A hash covers hits, their order, scores to
the last bit, reasons, breakdowns, signatures, unmatched words, nearest names, totals and notes. The requests are those
of the development sets, with typos, identifiers and other languages; a part of them is also asked with filters, masks,
overlays, boosts, groups, past requests and an embedder, and of indexes that were changed or saved.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import languages
import numpy as np
from sets import EVERYDAY, HELD_OUT, OUT, SAME_TOOLS, Set, found

from toolcrib.search.engine import search
from toolcrib.search.evaluation import SEED, query_tracks
from toolcrib.search.features import SemanticModel
from toolcrib.search.index import Index
from toolcrib.search.options import SearchOptions
from toolcrib.search.past import PastRequests
from toolcrib.search.vectors import default_table
from toolcrib.state.index_file import load_index, save_index
from toolcrib.types import Filters, SearchReply, SearchRequest, Tool

KEPT = OUT / "replies.json"
MOST = 200
"""Requests of a track of one set."""
FEW = 40
"""Requests of a set that are also asked in every other way."""


class HashEmbedder:
    """Gives each text a vector that depends on its words alone; enough to run the code for embedders."""

    name = "hash"
    dim = 48

    def embed(self, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The sum of a random vector for each word, at unit length."""
        rows = np.zeros((len(texts), self.dim), np.float32)
        for place, text in enumerate(texts):
            for word in text.lower().split():
                rows[place] += (
                    np.random.default_rng(zlib.crc32(word.encode())).standard_normal(self.dim).astype(np.float32)
                )
        lengths = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
        return rows / np.where(lengths > 0, lengths, 1)


@dataclass(frozen=True)
class Way:
    """One way to ask: the index, and the arguments of `search` beside the request."""

    index: Index
    more: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)


def digest(reply: SearchReply) -> str:
    """A hash of all that a reply says."""
    hits = [
        (
            (hit.tool.id, _bits(hit.score), _bits(hit.raw), hit.matched, hit.signature, hit.query, hit.weak),
            (hit.fallback, hit.similar, hit.detail),
            [(part.name, _bits(part.value), _bits(part.weight)) for part in hit.parts],
            [(one.word, one.field, one.how, one.matched, _bits(one.gain)) for one in hit.reasons],
        )
        for hit in reply.hits
    ]
    said = [hits, reply.total, reply.unmatched, reply.nearest, reply.note]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=8).hexdigest()


def _bits(number: float) -> str:
    """A number to its last bit; -0.0 is 0.0."""
    return (float(number) + 0.0).hex()


def ways(tools: Sequence[Tool], texts: Sequence[str]) -> dict[str, Way]:
    """The other ways to ask for these tools."""
    chance = random.Random(SEED)
    whole = Index.build(tools)
    mask = bytes(chance.random() < 0.6 for _ in tools)
    ids = [tool.id for tool in tools]
    half, few = len(tools) // 2, max(2, len(tools) // 25)
    removed = set(chance.sample(ids, few))
    past = PastRequests()
    for text in texts[::2]:
        past = past.with_request(text, chance.choice(ids[: len(ids) // 4 + 1]))
    spaces = sorted({tool.namespace for tool in tools})
    tags = sorted({tag for tool in tools for tag in tool.tags})
    model = SemanticModel(default_table(), HashEmbedder())
    found = {
        "mask": Way(whole, {"mask": mask}),
        "namespaces": Way(whole, request={"filters": Filters(namespaces=tuple(spaces[: len(spaces) // 3 + 1]))}),
        "read only": Way(whole, {"mask": mask}, {"filters": Filters(read_only=True)}),
        "overlay": Way(Index.build(tools[:half]), {"overlay": Index.build(tools[half:])}),
        "changed": Way(Index.build(tools[few:]).updated(tools[:few], removed)),
        "changed, mask": Way(Index.build(tools[few:]).updated(tools[:few]), {"mask": mask}),
        "boosts": Way(whole, {"boosts": {id_: 1 + 3 * chance.random() for id_ in ids[::3]}}, {"explain": True}),
        "groups": Way(whole, request={"group": True, "limit": 12}),
        "many": Way(whole, request={"limit": 80, "detail": "full", "explain": True}),
        "past": Way(whole, {"past": past}),
        "past, mask": Way(whole, {"past": past, "mask": mask}),
        "no thresholds": Way(whole, {"options": SearchOptions(nothing_below=0.0, weak_below=0.0)}),
        "few preselected": Way(whole, {"options": SearchOptions(preselected=64), "mask": mask}),
        "embedder": Way(Index.build(tools, model=model), request={"explain": True}),
        "embedder, mask": Way(Index.build(tools, model=model), {"mask": mask}),
        "saved": Way(_saved(whole, tools)),
    }
    if tags:
        found["tags"] = Way(whole, request={"filters": Filters(tags=tuple(tags[:1]))})
    return found


def _saved(index: Index, tools: Sequence[Tool]) -> Index:
    """The index as it comes back from a file, in another order and with some tools that the file does not have."""
    with tempfile.TemporaryDirectory() as folder:
        save_index(index, f"{folder}/tools.index")
        order = list(tools)
        random.Random(SEED).shuffle(order)
        other = [Tool(name=f"calibrate_zeppelin_{number}", description="Calibrate a zeppelin.") for number in range(3)]
        return load_index(f"{folder}/tools.index", order[1:] + other)


def asked(way: Way, texts: Sequence[str]) -> SearchReply:
    """The reply to one request."""
    request = {"limit": 10, "detail": "summary"} | dict(way.request)
    return search(way.index, SearchRequest(queries=tuple(texts), **request), **way.more)


def replies(each: Set) -> Iterator[tuple[str, str]]:
    """The name and the hash of each reply to the requests of a set."""
    tools = each.file.tools
    tracks = query_tracks(each.name, each.names, each.queries, most=MOST)
    chosen = tracks if each.name not in SAME_TOOLS else {"main": tracks["main"]}
    whole = Way(Index.build(tools))
    for track, queries in chosen.items():
        for query in queries:
            yield f"{each.name} / {track} / {query.id}", digest(asked(whole, [query.text]))
    texts = [query.text for track in chosen.values() for query in track]
    texts = random.Random(SEED).sample(texts, min(FEW, len(texts)))
    for name, way in ways(tools, texts).items():
        for number, text in enumerate(texts):
            yield f"{each.name} / {name} / {number}", digest(asked(way, [text]))
    for number in range(0, len(texts) - 3, 3):
        yield f"{each.name} / several / {number}", digest(asked(whole, texts[number : number + 3]))


def development(*, large: bool) -> list[Set]:
    """The development sets, those in other languages included."""
    some = [each for each in found() if each.name not in (EVERYDAY, HELD_OUT)]
    if not large:
        some = [each for each in some if not each.name.endswith("_large")]
    return some + [
        Set(f"languages {part} {each.name}", each.file, each.queries)
        for part in languages.PARTS
        for each in languages.sets(part)
    ]


def main() -> None:
    """Record all replies, or compare them with those that were recorded."""
    parser = argparse.ArgumentParser(description="Are the answers of a search the same to the last bit?")
    parser.add_argument("--record", action="store_true", help="keep the hashes instead of comparing")
    parser.add_argument("--large", action="store_true", help="also among all recorded tools of other servers")
    parser.add_argument("--set", nargs="+", dest="names", metavar="NAME", help="only sets with these words in the name")
    arguments = parser.parse_args()
    names = arguments.names or [""]
    before: dict[str, str] = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    differ, count = [], 0
    for each in development(large=arguments.large):
        if not any(word in each.name for word in names):
            continue
        now = dict(replies(each))
        count += len(now)
        other = [name for name, value in now.items() if before.get(name) != value]
        differ += other
        if arguments.record:
            before |= now
            KEPT.parent.mkdir(parents=True, exist_ok=True)
            KEPT.write_text(json.dumps(before))
        print(f"{each.name}: {len(now)} replies, {len(other)} other than before", file=sys.stderr, flush=True)
    if arguments.record:
        print(f"{count} replies recorded")
        return
    print("\n".join(differ[:40]))
    print(f"{len(differ)} of {count} replies differ")
    sys.exit(bool(differ))


if __name__ == "__main__":
    main()
