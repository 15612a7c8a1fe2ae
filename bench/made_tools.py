"""A made-up catalog of any size: real services, verbs, objects and parameters, recombined.

The parts come from the operations of AWS and Google, as `training` mines them, and from the tools of the retrieval
sets. A seed gives the same tools on every machine.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from training.corpus import sentences, split_words  # noqa: E402
from training.mine_apis import botocore, discovery  # noqa: E402
from training.ranking_sets import LabelledSet, find_sets  # noqa: E402

from toolcrib.search.evaluation import LabelledQuery  # noqa: E402
from toolcrib.types import Tool  # noqa: E402

OUT = ROOT / "bench" / "out"
PACKAGES = ("botocore==1.44.5", "google-api-python-client==2.202.0")

NEAR = 0.15
"""The share of near-duplicates: another tool's definition with one part changed."""

EXACT = 0.008
"""The share of tools with the definition of another one, under another service."""

_ENDINGS = ("hub", "cloud", "desk", "flow", "base", "works", "connect", "one", "lab", "suite", "point", "link")
_REGIONS = ("", "", "", "eu", "us", "apac", "pro", "lite", "beta", "v2", "internal", "legacy")


class Parts(NamedTuple):
    """What tools are made of."""

    services: list[str]
    verbs: list[str]
    objects: list[str]
    texts: list[str]
    parameters: list[tuple[str, str]]


def mined_parts(sets: Sequence[LabelledSet]) -> Parts:
    """The parts, mined once."""
    kept = OUT / "million-parts.json"
    if kept.is_file():
        return Parts(*json.loads(kept.read_text()))
    records = [*botocore(_wheel(PACKAGES[0])), *discovery(_wheel(PACKAGES[1]))]
    names = [split_words(record.name) for record in records if not record.source.endswith("_api")]
    names += [split_words(tool.name) for each in sets for tool in each.tools]
    names = [name for name in names if len(name) > 1]
    given = [pair for record in records for pair in record.params]
    given += [
        (name, str(schema.get("description", "")))
        for each in sets
        for tool in each.tools
        for name, schema in tool.input_schema.get("properties", {}).items()
        if isinstance(schema, dict)
    ]
    texts = [text for record in records for text in sentences(record.description)[:2] if 20 < len(text) < 240]
    services = [record.group for record in records] + [tool.namespace for each in sets for tool in each.tools]
    parts = Parts(
        services=sorted({service.lower() for service in services if service}),
        verbs=[name[0] for name in names],  # with repetitions: as common as they are
        objects=sorted({" ".join(name[1:5]) for name in names}),
        texts=sorted(set(texts)),
        parameters=sorted({(name, text[:160]) for name, text in given if name}),
    )
    kept.write_text(json.dumps(parts))
    return parts


def _wheel(requirement: str) -> Path:
    name, _, version = requirement.partition("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(OUT.glob(pattern)):
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "download", "--no-deps", requirement, "--dest", str(OUT)], check=True)
    return next(OUT.glob(pattern))


def made_tools(parts: Parts, count: int, seed: int = 1) -> Iterator[Tool]:
    """Yield `count` tools with different ids."""
    chance = random.Random(seed)
    recent: list[Tool] = []
    seen: set[int] = set()
    made = 0
    while made < count:
        kind = chance.random()
        if recent and kind < EXACT:
            tool = replace(chance.choice(recent), namespace=_service(parts, chance))
        elif recent and kind < EXACT + NEAR:
            tool = _changed(chance.choice(recent), parts, chance)
        else:
            tool = _recombined(parts, chance)
            if len(recent) < 5_000:
                recent.append(tool)
            else:
                recent[chance.randrange(5_000)] = tool
        mark = hash(tool.key)
        if mark not in seen:
            seen.add(mark)
            made += 1
            yield tool


def _service(parts: Parts, chance: random.Random) -> str:
    words = [chance.choice(parts.services).replace(" ", "-")]
    if chance.random() < 0.5:
        words.append(chance.choice(_ENDINGS))
    return "-".join(filter(None, [*words, chance.choice(_REGIONS)]))


def _recombined(parts: Parts, chance: random.Random) -> Tool:
    verb, thing = chance.choice(parts.verbs), chance.choice(parts.objects)
    words = [verb, *thing.split()]
    camel = chance.random() < 0.4
    name = words[0] + "".join(word.capitalize() for word in words[1:]) if camel else "_".join(words)
    service = _service(parts, chance)
    text = f"{verb.capitalize()} {thing} in {service}. {chance.choice(parts.texts)}"
    return Tool(name=name, namespace=service, description=text, input_schema=_schema(parts, chance, thing))


def _schema(parts: Parts, chance: random.Random, thing: str) -> dict[str, Any]:
    given = [chance.choice(parts.parameters) for _ in range(chance.randrange(1, 7))]
    given.append((f"{thing.replace(' ', '_')}_id", f"The id of the {thing}."))
    properties = {name: {"type": "string", "description": text} for name, text in given}
    return {"type": "object", "properties": properties, "required": [given[0][0]]}


def _changed(tool: Tool, parts: Parts, chance: random.Random) -> Tool:
    """The same tool of another service, with another parameter or another verb."""
    service = _service(parts, chance)
    if chance.random() < 0.5:
        schema = _schema(parts, chance, "item")
        return replace(tool, namespace=service, input_schema=schema)
    verb = chance.choice(parts.verbs)
    text = f"{verb.capitalize()} {tool.description.split(' ', 1)[-1]}"
    return replace(tool, namespace=service, name=f"{verb}_{tool.name}", description=text)


def development_sets(most: int) -> list[LabelledSet]:
    """The development sets as one catalog, with at most so many queries each, whose ids are those of tools."""
    folder = os.environ.get("TOOLCRIB_RETRIEVAL_DATA")
    taken: set[str] = set()
    found = []
    for each in find_sets(Path(folder) if folder else None):
        ids: dict[str, str] = {}
        tools = []
        for id_, given in zip(each.ids, each.tools, strict=True):
            tool = (
                given if given.id not in taken else replace(given, namespace=f"{each.name}-{given.namespace or 'set'}")
            )
            if tool.id in taken:
                continue
            taken.add(tool.id)
            ids[id_] = tool.id
            tools.append(tool)
        asked = [query for query in each.queries if query.relevant and query.relevant <= ids.keys()]
        chosen = asked if len(asked) <= most else random.Random(f"1-{each.name}").sample(asked, most)
        queries = tuple(
            LabelledQuery(id=query.id, text=query.text, relevant=frozenset(ids[id_] for id_ in query.relevant))
            for query in chosen
        )
        found.append(LabelledSet(each.name, tuple(tool.id for tool in tools), tuple(tools), queries))
    return found
