"""Keeps the results of calls within a budget: a larger one is kept whole, and the reply shows what is in it.

`read_result` reads the rest. No list shows it: a reply that needs it says how to call it, so it costs nothing where
results are small.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from toolcrib.errors import ExecutionFailed, InvalidRequest, StateUnavailable
from toolcrib.gateway.gateway import Gateway
from toolcrib.providers.content import json_text
from toolcrib.results.reading import parse_read
from toolcrib.results.store import ResultStore
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.surfaces.reply import text_result
from toolcrib.tokens import LabelledCounter, counter
from toolcrib.types import JSON, PATH_META, Context, Object, Tool, ToolResult

logger = logging.getLogger(__name__)

READ_RESULT: Final = "read_result"
MAX_RESULT_CHARS_META: Final = "anthropic/maxResultSizeChars"
"""Key in the `_meta` of a tool of how long its results may be in the agent's context, in characters."""
WHOLE_META: Final = "toolcrib/wholeResult"
"""Key of a request's `_meta` that asks for a result whole, whatever its size."""
RESULT_URI: Final = "toolcrib://results/"
_RESULT_URI: Final = re.compile(rf"{RESULT_URI}(r_[a-z2-9]{{10}})(?:\?part=(\d{{1,6}}))?")
_RESOURCE_CHARS: Final = 4 * 1024 * 1024
"""The longest answer to `resources/read`."""

_PREVIEW_TOKENS: Final = 230
_LEAST_REPLACED: Final = 500
"""The fewest tokens of a result that is replaced because a reply has several."""
_LEAST_CHARS_PER_TOKEN: Final = 12
"""A text with more characters per token of the budget than this is over it, without counting."""
_CHARS_PER_TOKEN: Final = 4
_WORDS: Final = "path: JSONPath, grep: regex, page, range: '1-20'"


@dataclass(frozen=True, slots=True)
class Continuation:
    """How an agent goes on from a preview: the meta-tool to call, with what takes the name and the arguments."""

    tool: str
    form: str = '{"name":"read_result","arguments":{ARGUMENTS}}'
    """What the meta-tool takes, with ARGUMENTS in place of the fields that `read_result` takes."""
    pair: str = '"{}":"{}"'
    """How such a field is written."""

    def call(self, **fields: str) -> str:
        """The call that reads a result with these fields."""
        given = ",".join(self.pair.format(name, value) for name, value in fields.items())
        return f"{self.tool} {self.form.replace('ARGUMENTS', given)}"


class ResultBudget:
    """Replaces results above the budget of the settings by what is in them and a handle."""

    def __init__(self, store: ResultStore, counter: LabelledCounter) -> None:
        self._store = store
        self._counter = counter

    @classmethod
    def of(cls, gateway: Gateway, options: SurfaceOptions) -> Self:
        """The budget of a gateway's options. Raises as `tokens.counter` does."""
        return cls(ResultStore(gateway.state, gateway.options.results), counter(options.tokens))

    async def fit(self, ctx: Context, tool: Tool, result: ToolResult, how: Continuation) -> ToolResult:
        """The result, or a reply in its place with its shape, its size, a preview, a link, and how to go on.

        A gateway in front of this one, and a client that asks for it, gets the result as it is; so does every client
        while results cannot be kept.
        """
        if result.kind != "complete" or not self._is_large(tool, result) or _wants_whole(ctx):
            return result
        return await self._replaced(ctx, tool, result, how)

    async def fit_all(
        self, ctx: Context, results: Sequence[tuple[Tool, ToolResult]], how: Continuation
    ) -> list[ToolResult]:
        """Several results of one reply: as many as necessary are replaced, the largest first."""
        fitted = [await self.fit(ctx, tool, result, how) for tool, result in results]
        budget = self._store.options.tokens
        if not budget or _wants_whole(ctx):
            return fitted
        sizes = [self._counter.count(result.text) for result in fitted]
        for place in sorted(range(len(fitted)), key=lambda place: -sizes[place]):
            tool, result = results[place]
            if sum(sizes) <= budget or sizes[place] < _LEAST_REPLACED or result.kind != "complete":
                break
            if fitted[place] is result:
                fitted[place] = await self._replaced(ctx, tool, result, how)
                sizes[place] = self._counter.count(fitted[place].text)
        return fitted

    async def _replaced(self, ctx: Context, tool: Tool, result: ToolResult, how: Continuation) -> ToolResult:
        text = await _document_text(result)
        try:
            handle = await self._store.keep(ctx.caller, tool.id, text)
        except StateUnavailable as error:  # the call has run: nothing of what it returned may be lost
            logger.warning("a large result of %s is passed on whole, since it cannot be kept: %s", tool.id, error)
            return result
        try:
            found = await self._store.overview(text, _PREVIEW_TOKENS)
        except ExecutionFailed as error:
            logger.warning("no preview of a result of %s: %s", tool.id, error)
            found = {"shape": "", "preview": text[: _PREVIEW_TOKENS * 2], "items": None, "lines": None}
        lines = [self._headline(handle, text, found), *_shape_line(found), found["preview"]]
        lines.append(_how_to_go_on(handle, found, how))
        pictures = tuple(block for block in result.content if block.get("type") == "image")
        link = _link(handle, tool, text, found)
        said = {"type": "text", "text": "\n".join(filter(None, lines))}
        return replace(result, content=(said, *link, *pictures), structured=None)

    async def read(self, ctx: Context, arguments: Object) -> ToolResult:
        """Answer `read_result`. Raises `NotFound`, `InvalidRequest` and `ExecutionFailed`."""
        handle, request = parse_read(arguments)
        tokens = self._store.options.tokens or 8_000
        return text_result(await self._store.read(ctx.caller, handle, request, tokens))

    async def read_resource(self, ctx: Context, uri: str) -> ToolResult | None:
        """Answer `resources/read` for the link to a result; None for any other URI.

        Raises `NotFound`, and `InvalidRequest` for a result that is read in parts only.
        """
        found = _RESULT_URI.fullmatch(uri)
        if found is None:
            return None
        text = await self._store.text(ctx.caller, found[1])
        parts = max(1, -(-len(text) // _RESOURCE_CHARS))
        part = int(found[2] or 1)
        if (found[2] is None and parts > 1) or not 1 <= part <= parts:
            raise InvalidRequest(
                f"{uri} has {len(text):,} characters, and is read in {parts} parts.",
                hint=f"Read {RESULT_URI}{found[1]}?part=1 and so on.",
            )
        shown = text[(part - 1) * _RESOURCE_CHARS : part * _RESOURCE_CHARS]
        return ToolResult(structured={"contents": [{"uri": uri, "mimeType": "text/plain", "text": shown}]})

    def _is_large(self, tool: Tool, result: ToolResult) -> bool:
        options = self._store.options
        if not options.tokens:
            return False
        chars, blob_chars = _block_chars(result.content)
        if blob_chars > options.bytes:
            return True
        most = options.tokens * _LEAST_CHARS_PER_TOKEN
        if result.structured is not None:
            chars = max(chars, _chars_up_to(result.structured, most))
        own = tool.meta.get(MAX_RESULT_CHARS_META)
        if isinstance(own, int) and not isinstance(own, bool) and own > options.tokens * _CHARS_PER_TOKEN:
            return chars > own
        return chars > options.tokens and (chars > most or self._tokens(result) > options.tokens)

    def _tokens(self, result: ToolResult) -> int:
        """The tokens of the texts of a result or, if it has more, of its structured content."""
        texts = "\n".join(filter(None, map(_block_text, result.content)))
        data = "" if result.structured is None else json_text(result.structured)
        return max(self._counter.count(texts), self._counter.count(data))

    def _headline(self, handle: str | None, text: str, found: Mapping[str, Any]) -> str:
        size = self._counter.count(text) if len(text) < 1_000_000 else len(text) // _CHARS_PER_TOKEN  # noqa: PLR2004
        kind = "JSON" if found["shape"] else "text"
        count = f", {found['items']:,} items" if found["items"] is not None else ""
        count = f", {found['lines']:,} lines" if found["lines"] is not None else count
        name = f"Result {handle}" if handle is not None else "The result"
        return f"{name} is too long to show whole: {kind} of about {size:,} tokens{count}."


def _wants_whole(ctx: Context) -> bool:
    return ctx.show_all or PATH_META in ctx.meta or ctx.meta.get(WHOLE_META) is True


def _shape_line(found: Mapping[str, Any]) -> Iterator[str]:
    """The shape of JSON; without the fields that the header of a table lists anyway, if they are many."""
    if found["shape"]:
        yield f"Shape: {found['shape']}"


def _how_to_go_on(handle: str | None, found: Mapping[str, Any], how: Continuation) -> str:
    if handle is None:
        return "It is too large to be kept: call the tool again, and ask for less."
    if found["shape"]:
        call = how.call(handle=handle, path="$[0]" if found["items"] is not None else "$.…")
    else:
        call = how.call(handle=handle, grep="…")
    return f"To read more ({_WORDS}): {call}"


def _link(handle: str | None, tool: Tool, text: str, found: Mapping[str, Any]) -> Iterator[Object]:
    if handle is not None:
        mime_type = "application/json" if found["shape"] else "text/plain"
        yield {
            "type": "resource_link",
            "uri": f"{RESULT_URI}{handle}",
            "name": f"{tool.name} {handle}",
            "mimeType": mime_type,
            "size": len(text),
        }


def _block_chars(content: Iterable[Object]) -> tuple[int, int]:
    """The characters of texts, and those that audio and embedded data hold.

    A picture costs a model the same whatever its bytes.
    """
    texts = blobs = 0
    for block in content:
        text = block.get("text") if block.get("type") == "text" else _block_text(block)
        texts += len(text) if isinstance(text, str) else 0
        if block.get("type") == "audio":
            blobs += len(str(block.get("data", "")))
        elif isinstance(resource := block.get("resource"), Mapping):
            blobs += len(str(resource.get("blob", "")))
    return texts, blobs


def _chars_up_to(value: JSON, most: int) -> int:
    """The characters of a value as JSON, give or take a few, as far as they are not above `most`."""
    count, todo = 0, [value]
    while todo and count <= most:
        one = todo.pop()
        if isinstance(one, str):
            count += len(one) + 3
        elif isinstance(one, (list, tuple)):
            count += 3
            todo.extend(one)
        elif isinstance(one, (int, float)) or one is None:
            count += 5
        else:
            count += 3 + sum(len(key) + 4 for key in one)
            todo.extend(one.values())
    return count


async def _document_text(result: ToolResult) -> str:
    """The result as one text: what its text blocks say or, if they are no JSON, its structured content."""
    blocks = [block for block in result.content if block.get("type") != "image"]
    texts = [_block_text(block) for block in blocks]
    if result.structured is not None and not (texts and texts[0] and _says_all(texts[0], result.structured)):
        try:
            return json_text(result.structured)
        except RecursionError:  # nested very deep, which takes many times as long
            return "".join(json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).iterencode(result.structured))
    if blocks and all(text is not None for text in texts):
        return "\n".join(text for text in texts if text is not None)
    return json_text(blocks)


def _says_all(text: str, structured: JSON) -> bool:
    """Whether a text is JSON as well, or the structured content is only a wrapper around it."""
    if text.lstrip()[:1] in ("{", "["):
        return True
    return isinstance(structured, Mapping) and len(structured) == 1 and isinstance(next(iter(structured.values())), str)


def _block_text(block: Object) -> str | None:
    """What a block says; None for one that is not text."""
    text = block.get("text") if block.get("type") == "text" else None
    resource = block.get("resource")
    if text is None and isinstance(resource, Mapping):
        text = resource.get("text")
    return text if isinstance(text, str) else None
