"""The arguments of a call, as the command line gives them: a JSON object, and `key=value` words typed by the schema.

`key=value` takes the type of the property, `key:=json` takes JSON, and a key given several times makes a list.
"""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from toolcrib.cli.output import UsageError
from toolcrib.names import nearest
from toolcrib.sanitize import listing
from toolcrib.schema.signature import parameters, properties, resolve, type_text
from toolcrib.settings import document
from toolcrib.types import Object

_OBJECT_HINT: Final = """Write an object, quoted for the shell: --args '{"name": "value"}'"""
_WORD_HINT: Final = "Write key=value for a string or a number, key:=JSON for anything else."
_WORD: Final = re.compile(r"(?P<key>.+?)(?P<raw>:?)=(?P<value>.*)", re.DOTALL)
_BOOLEANS: Final = {"true": True, "false": False}
_JSON_TYPES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}
_MAX_NESTED: Final = 8
"""Unions within unions."""


@dataclass(frozen=True, slots=True)
class ArgumentWord:
    """One `key=value` or `key:=json`."""

    key: str
    value: str
    is_json: bool


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call, whose words get their types once the tool is known."""

    given: Mapping[str, Any]
    """Those of `--args`."""
    words: tuple[ArgumentWord, ...] = ()

    @classmethod
    def read(cls, args: str, words: Sequence[str]) -> Self:
        """Read `--args` and the words after the name of the tool. Raises `UsageError`."""
        return cls(read_arguments(args), parse_words(words))

    def for_schema(self, schema: Object) -> dict[str, Any]:
        """The arguments for a tool with this schema; a word replaces what `--args` gives. Raises `UsageError`."""
        return {**self.given, **typed_arguments(self.words, schema)}


class _Unfit(Exception):
    """The text is not of the type."""


def read_arguments(given: str) -> dict[str, Any]:
    """Parse a JSON object from the text, a file (`@FILE`) or standard input (`-`). Raises `UsageError`."""
    text, source = _read_source(given)
    try:
        value = document.parse_jsonc(text).value
    except document.TextError as error:
        place = f"line {error.line}, column {error.column}"
        raise UsageError(f"{source} is not JSON: {error.message} ({place}).", hint=_OBJECT_HINT) from None
    if not isinstance(value, dict):
        raise UsageError(f"{source} must be a JSON object.", hint=_OBJECT_HINT)
    return value


def _read_source(given: str) -> tuple[str, str]:
    try:
        if given == "-":
            return sys.stdin.read(), "standard input"
        if given.startswith("@"):
            return Path(given[1:]).read_text(encoding="utf-8-sig"), given[1:]
    except UnicodeDecodeError:
        raise UsageError(f"{given} is not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{given[1:]} cannot be read: {error.strerror}.", hint="--args @FILE reads a file.") from None
    return given, "--args"


def parse_words(words: Sequence[str]) -> tuple[ArgumentWord, ...]:
    """Parse `key=value` words. Raises `UsageError`.

    >>> parse_words(["count:=2"])
    (ArgumentWord(key='count', value='2', is_json=True),)
    """
    return tuple(map(_parse_word, words))


def _parse_word(word: str) -> ArgumentWord:
    match = _WORD.fullmatch(word)
    if match is None:
        raise UsageError(f"{word!r} is not key=value.", hint=_WORD_HINT)
    return ArgumentWord(match["key"], match["value"], bool(match["raw"]))


def typed_arguments(words: Sequence[ArgumentWord], schema: Object) -> dict[str, Any]:
    """The words as arguments for a tool with this schema. Raises `UsageError` that names the property and its type.

    >>> schema = {"properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"type": "string"}}}}
    >>> typed_arguments(parse_words(["n=2", "tags=a", "tags=b"]), schema)
    {'n': 2, 'tags': ['a', 'b']}
    """
    given: dict[str, list[ArgumentWord]] = {}
    for word in words:
        given.setdefault(word.key, []).append(word)
    return {key: _argument(key, values, schema) for key, values in given.items()}


def _argument(key: str, words: Sequence[ArgumentWord], root: Object) -> Any:
    node = _property(key, root)
    if _is_list(node, root):
        if len(words) == 1 and (words[0].is_json or words[0].value.lstrip().startswith("[")):
            return _json(words[0])
        items: Any = next((branch.get("items", {}) for branch in _branches(node, root) if "items" in branch), {})
        return [_value(word, items, root) for word in words]
    if len(words) > 1:
        raise UsageError(f"{key} is given {len(words)} times, and takes one value.", hint=_expected(key, node, root))
    return _value(words[0], node, root)


def _property(key: str, root: Object) -> Any:
    """The schema of a property; `{}` for an unlisted one if the tool accepts those. Otherwise raises `UsageError`."""
    whole = resolve(root, root)
    listed = properties(whole)
    if key in listed:
        return listed[key]
    others = whole.get("additionalProperties")
    if isinstance(others, Mapping):
        return others
    if not listed or others is True or whole.get("patternProperties"):
        return {}
    near = nearest(key, listed)
    hint = f"Did you mean {near[0]}?" if near else f"It takes: {', '.join(one.name for one in parameters(root))}."
    raise UsageError(f"The tool has no parameter {key}.", hint=hint, suggestions=near)


def _value(word: ArgumentWord, node: Any, root: Object) -> Any:
    if word.is_json:
        return _json(word)
    try:
        return _typed(word.value, node, root)
    except _Unfit:
        kind = type_text(node, root)
        raise UsageError(
            f"{word.key} must be {kind}, not {word.value!r}.", hint=_expected(word.key, node, root)
        ) from None


def _expected(key: str, node: Any, root: Object) -> str:
    """What a property takes, with its options and its description."""
    options = _options(_branches(node, root))
    if options:
        return f"{key} is one of: {listing(map(_shown, options), 20)}"
    about = " ".join(str(resolve(node, root).get("description", "")).split())
    return f"{key}: {about}" if about else ""


def options_of(key: str, schema: Object) -> list[str]:
    """The values that a property takes, as words; empty if it takes others too."""
    branches = _branches(properties(resolve(schema, schema)).get(key, {}), schema)
    return [_shown(option) for option in _options(branches)]


def _shown(option: Any) -> str:
    return option if isinstance(option, str) else json.dumps(option, ensure_ascii=False)


def _json(word: ArgumentWord) -> Any:
    try:
        return json.loads(word.value)
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{word.key} is not JSON: {error.msg} at character {error.pos + 1}.",
            hint=f"Write {word.key}=TEXT for a string.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{word.key} cannot be read: {error}.") from None


def _branches(node: Any, root: Object, depth: int = 0) -> list[Object]:
    """The schema, or the alternatives of a union, and of unions in it."""
    schema = resolve(node, root)
    found = [branch for key in ("anyOf", "oneOf") for branch in _list(schema.get(key))]
    if not found or depth > _MAX_NESTED:
        return [schema]
    return [leaf for branch in found for leaf in _branches(branch, root, depth + 1)]


def _is_list(node: Any, root: Object) -> bool:
    kinds = _kinds(_branches(node, root))
    return "array" in kinds and "string" not in kinds


def _kinds(branches: Sequence[Object]) -> frozenset[str]:
    """The types that the branches allow; empty if they do not say."""
    found: set[str] = set()
    for branch in branches:
        kind = branch.get("type")
        named = [kind] if isinstance(kind, str) else [one for one in _list(kind) if isinstance(one, str)]
        found.update(named or map(_kind, _options([branch])))
    return frozenset(found)


def _options(branches: Sequence[Object]) -> list[Any]:
    """The values that the branches list."""
    return [
        option for one in branches for option in [*_list(one.get("enum")), *([one["const"]] if "const" in one else [])]
    ]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _kind(value: Any) -> str:
    return _JSON_TYPES.get(type(value), "object")


def _typed(text: str, node: Any, root: Object) -> Any:
    """The text as a value of the first type that it can be. Raises `_Unfit`."""
    branches = _branches(node, root)
    for option in _options(branches):
        if _shown(option) == text:
            return option
    free = [branch for branch in branches if not _options([branch])]
    kinds = _kinds(free)
    if not free:
        raise _Unfit
    if text == "null" and "null" in kinds:
        return None
    if "string" in kinds:
        return text
    if not kinds:
        return _json_or_text(text)
    value = _BOOLEANS.get(text.lower()) if "boolean" in kinds else None
    if value is not None:
        return value
    return _json_of_kind(text, kinds)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _json_of_kind(text: str, kinds: frozenset[str]) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        raise _Unfit from None
    kind = _kind(value)
    if kind == "number" and "integer" in kinds and "number" not in kinds and float(value).is_integer():
        return int(value)
    if kind not in kinds and not (kind == "integer" and "number" in kinds):
        raise _Unfit
    return value


def call_command(name: str, arguments: Object, schema: Object) -> str:
    """The command line of a call.

    >>> call_command("git:log", {"n": 1, "by": "Ann Lee"}, {"additionalProperties": True})
    "toolcrib call git:log n=1 'by=Ann Lee'"
    """
    words = [_word(key, value, schema) for key, value in arguments.items()]
    if any(word is None for word in words):
        words = ["--args", json.dumps(arguments, ensure_ascii=False)]
    return shlex.join(["toolcrib", "call", name, *filter(None, words)])


def _word(key: str, value: Any, schema: Object) -> str | None:
    """The word that gives this value; None if no word does."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for word in (f"{key}={text}", f"{key}:={json.dumps(value, ensure_ascii=False)}"):
        try:
            if json.dumps(typed_arguments(parse_words([word]), schema)) == json.dumps({key: value}):
                return word
        except UsageError:
            continue
    return None
