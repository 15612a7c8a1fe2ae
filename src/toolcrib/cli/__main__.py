"""`python -m toolcrib.cli` is `toolcrib`."""

from toolcrib.cli.main import main

if __name__ == "__main__":
    main()
