"""Validate a table of a settings file against a pydantic model, and word what does not fit.

Keys may be written in snake_case, camelCase or kebab-case; null is the same as leaving a key out. Each error names
the field as the file spells it, its line, and the closest known key or value.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from functools import reduce
from operator import or_
from types import UnionType
from typing import Any, ClassVar, Final, Generic, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from toolcrib.checks import Delay, Seconds
from toolcrib.file_values import SettingError, Text, quoted
from toolcrib.settings.document import FieldPath, Problems, snake

M = TypeVar("M")

_NOT_IN_FILES: Final = "not_in_files"
_CUTOFF: Final = 0.7
"""How similar a key must be to be suggested, 0 to 1."""
NO_ALIASES: Final[Mapping[str, str]] = {}
_FREE: Final = frozenset(
    {"synonyms", "roles", "tool_rates", "env", "headers", "env_http_headers", "arguments", "annotations", "parameters"}
)
"""Tables whose keys are the user's own words."""
_ARGUMENT_VALUE: Final = 3
"""How deep in an override `arguments.NAME.fixed` is."""
_SWITCHES: Final = frozenset({"breaker", "retry", "cache", "past_requests"})
"""Tables that `true` turns on as they are by default, and `false` turns off."""
_FALSE_IS_NONE: Final = frozenset({"repeats", "misses", "lookups"})
_SECRETS: Final = frozenset(
    {
        *("tokens", "token", "key", "approval_key", "password", "client_secret", "private_key", "env", "headers"),
        *("url", "server_url", "http_url"),
    }
)
_LITERAL_SECRETS: Final = frozenset({"token", "secret", "value"})
_REPLACED: Final = {
    "start_grace": "set search_wait for the first search, and list_wait for the first list, in seconds",
}
"""Settings of earlier versions, each with what to write instead."""
_LISTS_OF_TABLES: Final = frozenset({"tokens", "rules", "issuers"})
_KINDS: Final[tuple[tuple[type | tuple[type, ...], str], ...]] = (
    (type(None), "null"),
    (bool, "true or false"),
    (str, "a string"),
    ((int, float), "a number"),
    (dict, "an object"),
    (list, "a list"),
)
TABLE_RULES: Final = ConfigDict(
    extra="forbid",
    strict=True,
    frozen=True,
    allow_inf_nan=False,
    populate_by_name=False,
    alias_generator=lambda name: name.removesuffix("_s"),
    defer_build=True,  # a verb validates few of the tables
)
"""Unknown keys are errors, and no value is converted from another type. Options classes inside of a table follow the
same rules. A key of seconds is written without the `_s` of its option.
"""


def _in_file(kind: Any) -> Any:
    """The type of an option where a file gives it: there, a text is not empty, and a time is above 0."""
    if kind is str or kind == Delay:
        return Text if kind is str else Seconds
    return reduce(or_, map(_in_file, get_args(kind))) if get_origin(kind) in (Union, UnionType) else kind


class Table(BaseModel):
    """A table of the file that is not validated as a class of options. It remembers which keys the file has.

    A class that says which options it `sets` has the `keys` for them, beside those it names itself.
    """

    model_config = TABLE_RULES
    options: ClassVar[Mapping[str, str]] = {}
    """The name of the option of each key."""

    def __init_subclass__(cls, *, sets: Any = None, keys: Mapping[str, str] = NO_ALIASES, **rules: Any) -> None:
        """`sets` is a class of options, and `keys` has the names of some of them, by the key of each."""
        super().__init_subclass__(**rules)
        cls.options = {**cls.options, **keys}
        kinds = {one.name: one.type for one in fields(sets)} if keys else {}
        for key, option in keys.items():
            cls.__annotations__[key] = _in_file(kinds[option]) | None
            setattr(cls, key, None)

    def given(self, *names: str, **renamed: str) -> dict[str, Any]:
        """The values that the file sets, by the names of their options; with `names` and `renamed`, only of these."""
        wanted = dict(zip(names, names, strict=True)) | renamed or self.options
        return {option: getattr(self, name) for name, option in wanted.items() if name in self.model_fields_set}


def options_of(kind: type[M], table: M, **changes: Any) -> M:
    """The options that a table of more fields holds, with these changes."""
    return kind(**{one.name: getattr(table, one.name) for one in fields(kind)} | changes)  # type: ignore[arg-type]  # an options class is a dataclass


@dataclass(slots=True, kw_only=True)
class Place(Generic[M]):
    """A validated table, and where its fields are in the file."""

    table: M
    at: FieldPath
    problems: Problems
    paths: Mapping[tuple[str | int, ...], FieldPath] = field(default_factory=dict)

    def path(self, *keys: str | int) -> FieldPath:
        """The path of a field, as the file spells it."""
        return self.paths.get(keys, (*self.at, *keys))

    def add(self, message: str, *keys: str | int) -> None:
        """Report a problem with the field, or with the table itself."""
        self.problems.add(self.path(*keys), message)

    def warn(self, message: str, *keys: str | int) -> None:
        """Report something odd about the field, which can be used anyway."""
        self.problems.warn(self.path(*keys), message)


def validate(
    model: type[M], value: Any, at: FieldPath, problems: Problems, aliases: Mapping[str, str] = NO_ALIASES
) -> Place[M]:
    """Validate the value that the file has at `at`. If it does not fit, report every problem and use the defaults.

    `aliases` are other names of the table's own keys, in snake_case.
    """
    reader = _Normalizer(at=at, problems=problems, aliases=aliases)
    normal = reader.normalize(value, ())
    place = Place(table=_empty(model), at=at, problems=problems, paths=reader.paths)
    if not normal and not _needs_keys(model):
        return place  # as most files have no section of ours, its validator is not built
    try:
        place.table = _validator(model).validate_json(json.dumps(normal, default=_not_json))
    except ValidationError as error:
        for details in error.errors(include_url=False, include_input=False):
            loc = tuple(part for part in details["loc"] if part != "[key]")
            keys = loc[:-1] if details["type"] == "missing" else loc
            place.add(_message(details, loc, _value_at(normal, loc), model), *keys)
    return place


def _empty(model: type[M]) -> M:
    """A table without keys; of a model, it lacks the fields that a file must set."""
    return model.model_construct() if issubclass(model, BaseModel) else model()


def _needs_keys(model: type) -> bool:
    return issubclass(model, BaseModel) and any(one.is_required() for one in model.model_fields.values())


def _validator(model: type[M]) -> TypeAdapter[M]:
    if model not in _VALIDATORS:
        _VALIDATORS[model] = TypeAdapter(model)
    return _VALIDATORS[model]


_VALIDATORS: Final[dict[type, TypeAdapter[Any]]] = {}
"""Those that were needed."""


@dataclass(slots=True, kw_only=True)
class _Normalizer:
    """Brings keys to snake_case, and remembers how the file spells them."""

    at: FieldPath
    problems: Problems
    aliases: Mapping[str, str]
    paths: dict[tuple[str | int, ...], FieldPath] = field(default_factory=dict)

    def normalize(self, value: Any, loc: tuple[str | int, ...]) -> Any:
        self.paths.setdefault(loc, self.at)
        if _is_verbatim(loc):
            return value
        if isinstance(value, list):
            items = list(self._items(enumerate(value), loc))
            return [item for _, item in items]
        if isinstance(value, dict):
            return dict(self._items(self._entries(value, loc), loc))
        return value

    def _items(self, entries: Any, loc: tuple[str | int, ...]) -> Iterator[tuple[Any, Any]]:
        for key, item in entries:
            self.paths.setdefault((*loc, key), (*self.paths[loc], key))
            yield key, self.normalize(item, (*loc, key))

    def _entries(self, table: Mapping[str, Any], loc: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
        """The entries under their normal keys, without those that are null or switched off."""
        free = bool(loc) and loc[-1] in _FREE
        spelled: dict[str, str] = {}
        for entry, item in table.items():
            key = entry if free else snake(entry)
            key = key if loc else self.aliases.get(key, key)
            if (item is None and not _is_verbatim((*loc, key))) or (key in _SWITCHES and item is False):
                continue
            if key in spelled:
                message = f'duplicates "{spelled[key]}"; keep one of them'
                self.problems.add((*self.paths[loc], entry), message)
                continue
            spelled[key] = entry
            self.paths[(*loc, key)] = (*self.paths[loc], entry)
            yield key, _expand(key, item, loc)


def _is_verbatim(loc: tuple[str | int, ...]) -> bool:
    """Whether a value stays as it is: a server's table of its own tools, or an argument of one."""
    is_argument = len(loc) == _ARGUMENT_VALUE and loc[0] == "arguments" and loc[-1] in ("fixed", "default")
    return is_argument or loc == ("tools",)


def _expand(key: str, item: Any, loc: tuple[str | int, ...]) -> Any:
    """The long form of a value that has a short one."""
    if key in _SWITCHES and item is True:
        return {}
    if key in _FALSE_IS_NONE and item is False:
        return None
    if key == "state" and not loc and isinstance(item, str):
        return {"url": item}
    if loc and loc[-1] == "synonyms" and isinstance(item, str):
        return [item]
    return item


def _not_json(value: object) -> dict[str, str]:
    """TOML's dates and times, which no setting takes."""
    return {"date": str(value)}


def _value_at(value: Any, loc: tuple[str | int, ...]) -> Any:
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


# -- messages ----------------------------------------------------------------------------------------------------------


def _message(error: ErrorDetails, loc: tuple[str | int, ...], value: Any, model: type) -> str:
    """What is wrong, to follow the name of the field."""
    name = next((part for part in reversed(loc) if isinstance(part, str)), "")
    kind_of_error = error["type"]
    if kind_of_error in ("extra_forbidden", "unexpected_keyword_argument", _NOT_IN_FILES):
        return _unknown_key(str(loc[-1]), loc[:-1], model)
    if kind_of_error in ("literal_error", "enum"):
        return _wrong_choice(value, re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", ""))))
    if kind_of_error == "missing":
        return f"needs {loc[-1]}"
    if kind_of_error == "value_error":
        problem = error["ctx"]["error"]
        return str(problem) if isinstance(problem, SettingError) else f"cannot be used: {problem}"
    must = error["msg"] if kind_of_error == "range" else _expected(kind_of_error, name)
    if name in _FALSE_IS_NONE:
        must += ", or false"
    return f"{must}{_instead(loc, value)}"


def _expected(kind_of_error: str, name: str) -> str:
    match kind_of_error:
        case "bool_type":
            return "must be true or false"
        case "string_type" | "path_type":
            return "must be a string"
        case "tuple_type":
            return "must be a list of objects" if name in _LISTS_OF_TABLES else "must be a list of strings"
        case _ if name in _SWITCHES:
            return "must be true, false or an object"
        case _:
            return "must be an object"


def _instead(loc: tuple[str | int, ...], value: Any) -> str:
    """The value that was found, unless it may be secret."""
    name = next((part for part in reversed(loc) if isinstance(part, str)), "")
    if name in _SECRETS or (len(loc) > 1 and loc[-2] in _SECRETS):
        return f", not {kind(value)}"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    quoted = f' (write "{value}")' if number and isinstance(loc[-1], int) else ""
    return f", not {display(value)}{quoted}"


def _unknown_key(entry: str, loc: tuple[str | int, ...], model: type) -> str:
    if entry in _LITERAL_SECRETS and "tokens" in loc:
        return "must not be written in this file; use env or file to say where the secret is"
    if (replaced := _REPLACED.get(snake(entry))) is not None:
        return f"is no longer a setting; {replaced}"
    known = known_keys(model, loc)
    near = closest(entry, known)
    return "is not a setting; " + (
        f'did you mean "{near}"?' if near else f"the settings here are {', '.join(sorted(known))}"
    )


def _wrong_choice(value: Any, choices: Sequence[str]) -> str:
    near = closest(value, set(choices)) if isinstance(value, str) else ""
    hint = f'did you mean "{near}"?' if near else f"use {_either(choices)}"
    return f"cannot be {display(value)}; {hint}"


def _either(choices: Sequence[str]) -> str:
    *others, last = map(display, choices)
    return f"{', '.join(others)} or {last}" if others else last


def known_keys(model: type, loc: tuple[str | int, ...] = ()) -> set[str]:
    """The keys of the table at `loc` inside a table of this model."""
    for part in loc:
        annotation = _annotations(model).get(str(part))
        model = next(_tables_in(annotation), model) if annotation is not None else model
    return set(_annotations(model))


def _annotations(model: type) -> dict[str, Any]:
    """The keys of a model or options class, each with its type."""
    if is_dataclass(model):
        items = {item.name.removesuffix("_s"): item.type for item in fields(model)}
        return {name: kind for name, kind in items.items() if NOT_IN_FILES not in getattr(kind, "__metadata__", ())}
    return {name.removesuffix("_s"): item.annotation for name, item in model.model_fields.items()}  # type: ignore[attr-defined]  # what is no dataclass here is a pydantic model


def _tables_in(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and (is_dataclass(annotation) or issubclass(annotation, BaseModel)):
        yield annotation
    for part in get_args(annotation):
        yield from _tables_in(part)


class _NotInFiles:
    """Marks an option that a table has, and that no file sets."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Accept nothing; a default is not validated."""
        nothing = {"type": "is-instance", "cls": _NotInFiles}
        return {
            "type": "custom-error",
            "schema": nothing,
            "custom_error_type": _NOT_IN_FILES,
            "custom_error_message": "is not a setting",
        }


NOT_IN_FILES: Final = _NotInFiles()


# -- words -------------------------------------------------------------------------------------------------------------


def closest(entry: str, known: set[str]) -> str:
    """The known word most similar to the entry; empty if none is close."""
    return next(iter(get_close_matches(snake(entry), sorted(known), n=1, cutoff=_CUTOFF)), "")


def display(value: Any) -> str:
    """A value as the file has it, cut to 60 characters; of lists, objects and dates only the kind."""
    if not isinstance(value, (str, int, float, bool, type(None))):
        return kind(value)
    return quoted(value)


def kind(value: Any) -> str:
    """The kind of a value, without the value."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "a date or time")


def url_problem(url: str) -> str:
    """What is wrong with a url, or an empty string."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "is not a url"
    if parts.scheme not in ("http", "https"):
        return "must begin with http:// or https://"
    return "" if parts.hostname else "must name a host"
