"""`python -m toolcrib`: the command line."""

import sys


def main() -> None:
    """Run the command line, or name the extra that it needs."""
    try:
        from toolcrib.cli.main import main as run_cli  # noqa: PLC0415 - it may lack its libraries
    except ModuleNotFoundError as error:
        sys.exit(
            f"toolcrib: the command line needs the library {error.name!r}. Run: pip install 'toolcrib-slim[server]'"
        )
    run_cli()


if __name__ == "__main__":
    main()
