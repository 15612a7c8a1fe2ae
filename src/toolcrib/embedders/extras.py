"""The optional libraries: importing one, and saying what is wrong when it, or its model, is not to be had."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from toolcrib.errors import MissingExtra, SettingsError, ToolcribError

_HINT = "A model's name is looked up on its hub, which needs a network; a path on this machine does not."


def library(module: str, *, extra: str) -> Any:
    """An optional library, imported now. Raises `MissingExtra` with the command that installs it.

    >>> library("no_such_library", extra="fastembed")
    Traceback (most recent call last):
    toolcrib.errors.MissingExtra: The library 'no_such_library' is not installed. Run: pip install 'toolcrib[fastembed]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        raise MissingExtra(
            f"The library {missing!r} is not installed.", hint=f"Run: pip install 'toolcrib[{extra}]'"
        ) from error


@contextmanager
def loading(model: str, *, hint: str = _HINT) -> Iterator[None]:
    """Whatever is raised over a model becomes a `SettingsError` that names the model."""
    try:
        yield
    except ToolcribError:
        raise
    except Exception as error:  # loaders share no error: a download, a parser and a runtime each raise their own
        raise SettingsError(
            f"The embedding model {model!r} cannot be used: {_said(error)}",
            hint=hint,
        ) from error


def _said(error: Exception) -> str:
    """The first line of what an error says, with its kind, as a sentence."""
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}".rstrip(":. ") + "."
