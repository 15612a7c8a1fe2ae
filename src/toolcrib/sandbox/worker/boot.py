"""Entry point of worker processes: `python -I -S -B boot.py worker|zygote lua|monty LIBRARY PARENT`."""

import os
import sys
from importlib import import_module


def main() -> None:
    """Import the package from the folder beside this file, and become a worker or a zygote."""
    kind, engine, library, parent = sys.argv[1:]
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs 5 ms here
    sys.path.append(place)
    main = import_module("worker.zygote" if kind == "zygote" else "worker.serve").main
    make_engine = getattr(import_module(f"worker.{engine}"), f"{engine.title()}Engine")
    sys.path.remove(place)
    main(make_engine, library, int(parent))


if __name__ == "__main__":
    main()
