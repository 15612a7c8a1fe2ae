"""Where a worker process begins. It is run by path, `python -I -S -B boot.py lua|zygote LIBRARY PARENT`."""

import os
import sys
from importlib import import_module


def main() -> None:
    """Load what the rest needs from the folder beside this one, and become a worker or a zygote."""
    kind, library, parent = sys.argv[1:]
    place = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - pathlib costs 5 ms here
    sys.path.append(place)
    module = import_module("worker.zygote" if kind == "zygote" else "worker.script")
    sys.path.remove(place)
    module.main(library, int(parent))


if __name__ == "__main__":
    main()
