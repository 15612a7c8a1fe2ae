"""`python -m toolcrib`: the command line."""

import sys
from importlib import import_module


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    try:
        cli = import_module("toolcrib.cli.main")
    except ModuleNotFoundError as error:
        sys.exit(
            f"toolcrib: the command line needs the library {error.name!r}. Run: pip install 'toolcrib-slim[server]'"
        )
    cli.main()


if __name__ == "__main__":
    main()
