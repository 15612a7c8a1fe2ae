"""`python -m toolcrib`: the command line."""

from toolcrib.cli.main import main

if __name__ == "__main__":
    main()
