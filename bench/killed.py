"""Kill processes that write state, at random moments, until each kind was written so often; count what is lost.

`python bench/killed.py [WRITES] [STORE]`, with a folder for the files; or the address of a Redis server.
"""

import asyncio
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.state.sudden_death import KINDS, Writer, check_file, lost_of_audit, missing, opened


async def _store(store: str, writes: int) -> None:
    """Two writers at a time, with all kinds in turn."""
    done, lost, problems, kills = Counter[str](), Counter[str](), list[str](), 0
    while min(done[kind] for kind in KINDS) < writes:
        writers = [Writer(KINDS, store, f"{name} {kills}") for name in ("one", "two")]
        for writer in writers:
            await asyncio.to_thread(writer.kill_after, random.randint(1, 60 * len(KINDS)), within_s=5.0)
            kills += 1
        async with opened(store) as state:
            for writer in writers:
                done.update(one.kind for one in writer.written)
                lost.update({kind: len(numbers) for kind, numbers in (await missing(state, writer)).items()})
        if not store.startswith("redis"):
            problems += check_file(Path(store))
    print(
        f"{store.partition(':')[0] if store.startswith('redis') else 'sqlite'}: {kills} kills, {problems or 'intact'}"
    )
    for kind in KINDS:
        print(f"  {kind:10} {done[kind]:6} acknowledged, {lost[kind]} lost")


async def _audit(folder: Path, writes: int) -> None:
    done, kills, problems = 0, 0, list[str]()
    while done < writes:
        path = folder / f"audit-{kills}.jsonl"
        writer = Writer(["audit"], str(path), "one")
        await asyncio.to_thread(writer.kill_after, random.randint(1, 300), within_s=1.0)
        done, kills = done + len(writer.written), kills + 1
        problems += lost_of_audit(path, writer.written)
    print(f"audit file: {kills} kills, {done} acknowledged, {problems or 'whole, none lost'}")


def main() -> None:
    """Run with the arguments of the command line."""
    writes = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory() as folder:
        store = sys.argv[2] if len(sys.argv) > 2 else str(Path(folder) / "state.sqlite")
        asyncio.run(_store(store, writes))
        if not store.startswith("redis"):
            asyncio.run(_audit(Path(folder), writes))


if __name__ == "__main__":
    main()
