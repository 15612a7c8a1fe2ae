"""Options behind a model's name in a setting: `?threads=2&batch=16`, read as an adapter's keywords."""

from collections.abc import Callable
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, Final, get_args
from urllib.parse import parse_qsl

from toolcrib.errors import SettingsError
from toolcrib.words import nearest

_READERS: Final[dict[type, Callable[[str], Any]]] = {int: int, str: str, Path: Path}


def options(adapter: Callable[..., Any], query: str) -> dict[str, Any]:
    """The keywords of an adapter that a query string sets. Raises `SettingsError` for an unknown or unreadable one.

    >>> def adapter(model: str, *, threads: int | None = None) -> None: ...
    >>> options(adapter, "threads=2")
    {'threads': 2}
    >>> options(adapter, "thread=2")
    Traceback (most recent call last):
    toolcrib.errors.SettingsError: There is no option 'thread'. Did you mean 'threads'?
    """
    kinds = _kinds(adapter)
    return {name: _value(name, text, kinds) for name, text in parse_qsl(query, keep_blank_values=True)}


def _kinds(adapter: Callable[..., Any]) -> dict[str, tuple[Any, ...]]:
    """Each option, and what it may be: types, or the very words."""
    named = [given for given in signature(adapter).parameters.values() if given.kind is Parameter.KEYWORD_ONLY]
    return {given.name: get_args(given.annotation) or (given.annotation,) for given in named}


def _value(name: str, text: str, kinds: dict[str, tuple[Any, ...]]) -> Any:
    if name not in kinds:
        near = nearest(name, kinds, limit=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(kinds)}."
        raise SettingsError(f"There is no option {name!r}.", hint=hint, suggestions=near)
    first = kinds[name][0]
    if isinstance(first, str):
        if text not in kinds[name]:
            raise SettingsError(f"The option {name!r} is one of {', '.join(kinds[name])}, not {text!r}.")
        return text
    try:
        return _READERS[first](text)
    except ValueError as error:
        raise SettingsError(f"The option {name!r} is a number, not {text!r}.") from error
