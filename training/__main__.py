"""`python -m training --out toolvec.npz`: build the static table. Steps that are already done are skipped."""

import argparse
import logging
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from training import mine_apis, mine_code, mine_glosses, pack
from training.corpus import Record, is_held_out, read, split_words, write
from training.holdout import catalog
from training.measure import report
from training.pieces import Pieces, ascii_pieces, full_vocabulary
from training.sources import Downloads, fetch
from training.student import Floats, Loss
from training.teacher import Teacher
from training.train import Plan, space, start, train
from training.views import parts, text_of

_LOG = logging.getLogger("training")
_SEED = 5
_TAUGHT = {
    "openapi": 39_000,
    "command": 10_000,
    "botocore": 7_000,
    "discovery": 6_000,
    "gloss": 70_000,
    "function": 65_000,
}
_WEIGHTS = {
    "openapi": 3.0,
    "openapi_api": 0.3,
    "command": 1.0,
    "botocore": 1.0,
    "botocore_api": 0.03,
    "discovery": 1.0,
    "discovery_api": 0.03,
    "gloss": 0.7,
    "function": 3.0,
    "class": 0.5,
}
_NOT_TOOLS = {"gloss", "class", "openapi_api", "botocore_api", "discovery_api"}
_PIECES = 20_550
_COMMON = 12_000
_ALWAYS = 1e9
_QUERIES = 300
_TEACHER_TEXT = 220


def mine(source: str, files: Downloads, folder: Path) -> int:
    """Write the records of one source and return their number, or 0 if the file exists."""
    path = folder / f"{source}.jsonl.gz"
    if path.exists():
        return 0
    miners: dict[str, Callable[[], Iterator[Record]]] = {
        "openapi": lambda: mine_apis.openapi(files.openapi, 1),
        "command": lambda: mine_code.commands(files.commands),
        "botocore": lambda: mine_apis.botocore(files.botocore),
        "discovery": lambda: mine_apis.discovery(files.discovery),
        "gloss": lambda: mine_glosses.glosses(files.glosses),
        "function": lambda: (record for wheel in files.wheels for record in mine_code.functions(wheel, 1)),
    }
    partial = path.with_suffix(".partial")
    count = write(partial, miners[source]())
    partial.rename(path)
    return count


def teach(source: str, files: Downloads, folder: Path, threads: int) -> tuple[list[int], Floats]:
    """Embed a sample of one source with the teacher: record numbers and float16[n, 384]."""
    path = folder / f"teacher_{source}.npz"
    if not path.exists():
        records = list(read(folder / f"{source}.jsonl.gz"))
        numbers = [i for i, r in enumerate(records) if not is_held_out(r.source.removesuffix("_api"), r.group)]
        random.Random(_SEED).shuffle(numbers)  # noqa: S311 - a repeatable sample, not a secret
        numbers = sorted(numbers[: _TAUGHT[source]])
        texts = [
            " ".join(split_words(records[i].name)) + ": " + records[i].description[:_TEACHER_TEXT] for i in numbers
        ]
        vectors = Teacher(files.teacher, files.tokeniser, threads=threads).embed(texts)
        np.savez(path, idx=np.asarray(numbers), emb=vectors.astype(np.float16))
    with np.load(path) as arrays:
        return arrays["idx"].tolist(), arrays["emb"]


def teach_pieces(names: list[str], files: Downloads, folder: Path, threads: int) -> Floats:
    """Embed single pieces with the teacher: float32[len(names), 384]."""
    path = folder / "teacher_pieces.npz"
    if not path.exists():
        vectors = Teacher(files.teacher, files.tokeniser, threads=threads).embed([n.removeprefix("##") for n in names])
        np.savez(path, emb=vectors.astype(np.float16))
    with np.load(path) as arrays:
        return np.asarray(arrays["emb"], dtype=np.float32)


def most_used(names: list[str], texts: list[str]) -> list[int]:
    """Choose the pieces to keep in the table, by number.

    Single characters; the vocabulary's first pieces, which are English's commonest words and names (a city in a
    request is a place, even where no tool's text names it); then the most frequent in the texts.
    """
    counts = np.asarray(Pieces(names).bags(texts).sum(axis=0)).ravel()
    counts += [_ALWAYS if i < _COMMON or len(name.removeprefix("##")) == 1 else 0 for i, name in enumerate(names)]
    return sorted(np.argsort(-counts, kind="stable")[:_PIECES].tolist())


def gather(files: Downloads, folder: Path, threads: int) -> tuple[list[Record], dict[int, Floats]]:
    """Collect every record to train on, and the teacher's vectors by record number."""
    records: list[Record] = []
    taught: dict[int, Floats] = {}
    for source in _TAUGHT:
        began = time.monotonic()
        numbers, vectors = teach(source, files, folder, threads)
        by_number = dict(zip(numbers, vectors, strict=True))
        for i, record in enumerate(read(folder / f"{source}.jsonl.gz")):
            if is_held_out(record.source.removesuffix("_api"), record.group):
                continue
            if i in by_number:
                taught[len(records)] = by_number[i]
            records.append(record)
        _LOG.info("%s: %d vectors, %.0f s", source, len(numbers), time.monotonic() - began)
    return records, taught


def learn(records: list[Record], taught: dict[int, Floats], pieces: Pieces, single: Floats, plan: Plan) -> Floats:
    """Train the table, float32[len(pieces), plan.dimensions]."""
    texts = [text_of(parts(record)) for record in records]
    counts = np.asarray(pieces.bags(texts).sum(axis=0)).ravel() + 0.5
    vectors = np.stack(list(taught.values())).astype(np.float32)
    centre, axes = space(vectors, plan.dimensions)
    near = (vectors - centre) @ axes
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    anchors = dict(zip(taught, near, strict=True))
    table = start(single, counts.astype(np.float32), axes, plan)
    train(table, pieces, records, anchors, _WEIGHTS, plan, Loss())
    return table


def main() -> None:
    """Fetch, mine, teach, train, pack, measure."""
    parser = argparse.ArgumentParser(prog="python -m training", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("toolvec.npz"), help="the table to write")
    parser.add_argument("--work", type=Path, default=Path("training-work"), help="downloads and half-done work")
    parser.add_argument("--dimensions", type=int, default=Plan().dimensions)
    parser.add_argument("--steps", type=int, default=Plan().steps)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes and teacher threads")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    given.work.mkdir(parents=True, exist_ok=True)
    files = fetch(given.work / "dl")
    _LOG.info("downloads are there")
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in [pool.submit(mine, source, files, given.work) for source in reversed(_TAUGHT)]:
            found.result()
    _LOG.info("texts are mined")
    names = ascii_pieces(full_vocabulary(files.tokeniser))
    single = teach_pieces(names, files, given.work, given.jobs)
    records, taught = gather(files, given.work, given.jobs)
    kept = most_used(names, [text_of(parts(record)) for record in records])
    pieces = Pieces(names[i] for i in kept)
    table = learn(records, taught, pieces, single[kept], Plan(dimensions=given.dimensions, steps=given.steps))
    documents = pieces.bags(text_of(parts(r)) for r in records if r.source not in _NOT_TOOLS)
    pack.write(given.out, pieces.names, pack.rotate(table, documents), pack.piece_weights(documents))
    _LOG.info("%s: %d bytes", given.out, given.out.stat().st_size)
    _, written = pack.read(given.out)
    for source in ("botocore", "discovery"):
        tools, queries = catalog(read(given.work / f"{source}.jsonl.gz"), source, _QUERIES, 1)
        for engine, figures in report(pieces, written, tools, queries).items():
            _LOG.info("%s (%d tools, held out), %s: R@1 / R@5 / nDCG %s", source, len(tools), engine, figures)


if __name__ == "__main__":
    main()
