"""A catalog of a million tools on disk: time to build it, memory, searches beside bare tantivy, quality, changes.

`make bench-million` runs all of it; ARGS="--tools 100000" for a first look. Each step is a process of its own, so that
its memory is its own. Quality is nDCG@10 on the development sets, whose tools are in the catalog: those of the
repository, and those in the folder that TOOLCRIB_RETRIEVAL_DATA names.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from made_tools import OUT, development_sets, made_tools, mined_parts
from toolcrib.large.disk import DiskIndex
from toolcrib.search.engine import prepare, search
from toolcrib.search.evaluation import LabelledQuery, score
from toolcrib.search.index import Index
from toolcrib.types import SearchRequest, Tool

SEED = 1
MOST = 100
"""Queries of each set."""

SMALL = 100_000
"""The size of the catalog in memory that quality is compared with."""

Json = dict[str, Any]


def catalog(count: int) -> Iterator[Tool]:
    """The tools of the sets, and made-up ones up to `count`."""
    sets = development_sets(MOST)
    own = [tool for each in sets for tool in each.tools]
    taken = {tool.id for tool in own}
    others = (tool for tool in made_tools(mined_parts(sets), count, SEED) if tool.id not in taken)
    return chain(own, islice(others, max(0, count - len(own))))


def build(count: int, folder: Path) -> Json:
    """Build the index on disk."""
    shutil.rmtree(folder, ignore_errors=True)
    mined_parts(development_sets(MOST))
    began, used = time.perf_counter(), processor()
    with DiskIndex(folder) as index:
        made = index.update(catalog(count), processes=2)
    seconds, worked = time.perf_counter() - began, processor() - used
    began = time.perf_counter()
    generated = sum(1 for _ in catalog(count))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {
        "tools": made,
        "seconds": round(seconds, 1),
        "processor_seconds": round(worked, 1),
        "of_which_making_tools": round(time.perf_counter() - began, 1),
        "generated": generated,
        "peak_mb": peak_mb(),
        "disk_mb": size >> 20,
        "load": os.getloadavg()[0],
    }


def query(folder: Path) -> Json:
    """Open the index and search."""
    began = time.perf_counter()
    index = DiskIndex(folder)
    opened = time.perf_counter() - began
    asked = [query for each in development_sets(MOST) for query in each.queries]
    index.search("warm up")
    first = resident_mb()
    times = timed(index.search, [query.text for query in asked])
    quality = ndcg(lambda text: [hit.tool.id for hit in index.search(text).hits])
    worked = timed(index.search, [query.text for query in asked], time.process_time)
    typos = timed(index.search, [with_typo(query.text) for query in asked])
    resident = resident_mb()
    changes = []
    for number in range(5):
        tool = next(iter(index.definitions(["bench:marker"]).values()), Tool(name="marker", namespace="bench"))
        began = time.perf_counter()
        index.update([replace(tool, description=f"Frobnicates the zyxwv{number} quuxle.")])
        found = index.search(f"frobnicate zyxwv{number} quuxle").hits
        changes.append(time.perf_counter() - began)
        assert found[0].tool.id == "bench:marker", found[:1]
    index.update(remove=["bench:marker"])
    index.close()
    return {
        "open_s": round(opened, 2),
        "resident_after_open_mb": first,
        "resident_mb": resident,
        "p50_ms": p50(times),
        "p95_ms": p95(times),
        "processor_p50_ms": p50(worked),
        "typo_p50_ms": p50(typos),
        "change_ms": [round(1000 * each) for each in changes],
        "ndcg": quality,
        "load": os.getloadavg()[0],
    }


def bare_build(count: int, folder: Path) -> Json:
    """Build a bare tantivy index of the same tools: four fields with English stems."""
    import tantivy

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    builder = tantivy.SchemaBuilder()
    for field in FIELDS:
        builder.add_text_field(field, tokenizer_name="en_stem")
    builder.add_text_field("id", stored=True, tokenizer_name="raw")
    index = tantivy.Index(builder.build(), str(folder))
    began = time.perf_counter()
    writer = index.writer(heap_size=100_000_000, num_threads=1)
    for tool in catalog(count):
        parameters = " ".join(tool.input_schema.get("properties", {}))
        texts = (tool.name, tool.namespace, tool.description, parameters)
        writer.add_document(tantivy.Document(id=tool.id, **dict(zip(FIELDS, texts, strict=True))))
    writer.commit()
    writer.wait_merging_threads()
    return {"seconds": round(time.perf_counter() - began, 1), "peak_mb": peak_mb()}


def bare_query(folder: Path) -> Json:
    """Ten hits of a bare tantivy query, with their ids."""
    found = bare_search(folder)
    asked = [query.text for each in development_sets(MOST) for query in each.queries]
    found("warm up")
    times = timed(found, asked)
    worked = p50(timed(found, asked, time.process_time))
    return {
        "p50_ms": p50(times),
        "p95_ms": p95(times),
        "processor_p50_ms": worked,
        "ndcg": ndcg(found),
        "resident_mb": resident_mb(),
    }


def bare_search(folder: Path) -> Callable[[str], list[str]]:
    """Search the bare index for ten ids."""
    import tantivy

    index = tantivy.Index.open(str(folder))
    searcher = index.searcher()

    def found(text: str) -> list[str]:
        query, _ = index.parse_query_lenient(text, FIELDS)
        return [searcher.doc(address)["id"][0] for _, address in searcher.search(query, 10).hits]

    return found


def paired(folder: Path) -> Json:
    """Processor time of searches and of bare queries, each request asked of both in turn, also with a typo."""
    bare = bare_search(folder / "bare")
    asked = [query.text for each in development_sets(MOST) for query in each.queries]
    results: Json = {}
    with DiskIndex(folder / "index") as index:
        for name, texts in (("plain", asked), ("typos", [with_typo(text) for text in asked])):
            pairs = [timed(found, [text], time.process_time)[0] for text in texts for found in (index.search, bare)]
            ours, theirs = p50(pairs[::2]), p50(pairs[1::2])
            results[name] = {"ours_ms": ours, "bare_ms": theirs, "ratio": round(ours / theirs, 2)}
    return results | {"load": os.getloadavg()[0]}


def in_memory(count: int) -> Json:
    """The engine in memory."""
    began = time.perf_counter()
    index = Index.build([*catalog(count)])
    prepare(index)
    seconds = time.perf_counter() - began

    def found(text: str) -> list[str]:
        return [hit.tool.id for hit in search(index, SearchRequest(queries=(text,))).hits]

    asked = [query.text for each in development_sets(MOST) for query in each.queries]
    found("warm up")
    times = timed(found, asked)
    return {
        "tools": count,
        "build_s": round(seconds, 1),
        "resident_mb": resident_mb(),
        "p50_ms": p50(times),
        "p95_ms": p95(times),
        "ndcg": ndcg(found),
    }


FIELDS = ["name", "namespace", "description", "parameters"]


def ndcg(found: Callable[[str], list[str]]) -> dict[str, float]:
    """nDCG@10 of each set, x100, and their mean."""
    quality = {each.name: mean_ndcg(found, each.queries) for each in development_sets(MOST)}
    return {**quality, "mean": round(statistics.fmean(quality.values()), 2)}


def mean_ndcg(found: Callable[[str], list[str]], queries: Sequence[LabelledQuery]) -> float:
    """nDCG@10, x100."""
    return round(100 * statistics.fmean(score(found(query.text), query.relevant).ndcg_10 for query in queries), 2)


def with_typo(text: str) -> str:
    """Swap two letters of the longest word."""
    word = max(text.split(), key=len)
    middle = len(word) // 2
    return text.replace(word, word[: middle - 1] + word[middle] + word[middle - 1] + word[middle + 1 :], 1)


def timed(
    found: Callable[[str], object], texts: Sequence[str], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each search."""
    times = []
    for text in texts:
        began = clock()
        found(text)
        times.append(clock() - began)
    return times


def p50(times: Sequence[float]) -> float:
    """The median, in milliseconds."""
    return round(1000 * statistics.median(times), 2)


def p95(times: Sequence[float]) -> float:
    """The 95th percentile, in milliseconds."""
    return round(1000 * statistics.quantiles(times, n=20)[-1], 2)


def processor() -> float:
    """Processor time of this process and its children that have ended, in seconds."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def peak_mb() -> int:
    """The most memory that the process had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def resident_mb() -> int:
    """The memory of the process, with the parts of files that are mapped into it."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


STEPS = ("build", "bare_build", "bare_query", "query", "paired", "in_memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=OUT / "million")
    parser.add_argument("--step", choices=STEPS, help="only this step, as JSON; without it, all of them")
    parser.add_argument(
        "--in-memory", type=int, default=SMALL, help="tools of the engine in memory; a million take 5 GB of memory"
    )
    parser.add_argument("--skip", nargs="*", default=[], choices=STEPS)
    given = parser.parse_args()
    count, folder = given.tools, given.folder
    steps: dict[str, Callable[[], Json]] = {
        "build": lambda: build(count, folder / "index"),
        "bare_build": lambda: bare_build(count, folder / "bare"),
        "bare_query": lambda: bare_query(folder / "bare"),
        "query": lambda: query(folder / "index"),
        "paired": lambda: paired(folder),
        "in_memory": lambda: in_memory(min(count, given.in_memory)),
    }
    if given.step:
        print(json.dumps(steps[given.step]()))
        return
    results = {}
    for step in STEPS:
        if step in given.skip:
            continue
        command = [sys.executable, __file__, "--step", step, "--tools", str(count), "--folder", str(folder)]
        command += ["--in-memory", str(given.in_memory)]
        results[step] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        print(step, json.dumps(results[step]), flush=True)
    report(results)


def report(results: dict[str, Json]) -> None:
    """Print the goals."""
    if {"query", "bare_query"} <= results.keys():
        ours, bare = results["query"], results["bare_query"]
        print(f"p50 {ours['p50_ms']} ms, {ours['p50_ms'] / bare['p50_ms']:.2f} times bare tantivy (goal: 3)")
        print(f"resident {ours['resident_mb']} MB (goal: 1500); one change is found after {ours['change_ms']} ms (200)")
    if "paired" in results:
        plain, typos = results["paired"]["plain"]["ratio"], results["paired"]["typos"]["ratio"]
        print(f"processor time {plain} times that of bare tantivy, {typos} with typos: the figures for a busy machine")
    if "build" in results:
        print(f"built in {results['build']['seconds']} s (goal: 600), at most {results['build']['peak_mb']} MB")
    if {"query", "in_memory"} <= results.keys():
        found, memory = results["query"]["ndcg"]["mean"], results["in_memory"]
        loss = memory["ndcg"]["mean"] - found
        print(f"nDCG@10 {found}, {loss:.2f} below the engine in memory with {memory['tools']:,} tools (goal: 1)")


if __name__ == "__main__":
    main()
