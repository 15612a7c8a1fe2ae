"""toolcrib and its peers, each as its documentation shows it: tools in, a search from a text to ids out."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from types import SimpleNamespace

from toolcrib.cli.files import FileSearch, ToolFile, without_thresholds
from toolcrib.embedders.cache import CachedEmbedder
from toolcrib.embedders.models import load
from toolcrib.errors import MissingExtra
from toolcrib.search.embedding import ComputedVectors
from toolcrib.search.evaluation import ShownAnswer
from toolcrib.search.features import SemanticModel
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.search.vectors import default_table
from toolcrib.types import Tool

Pairs = Sequence[tuple[str, Tool]]
"""Tools, each with its id."""
Search = Callable[[str], list[str]]
"""From a text to the ids of ten hits at most, best first."""

TEN = 10


@dataclass(frozen=True)
class Engine:
    """One way to search."""

    name: str
    build: Callable[[Pairs], Search]
    package: str
    most: int = 100_000
    """The largest catalog that it is timed with; 0 where it is not timed."""
    ranked: bool = True
    """Whether its rankings are compared, or only its times."""
    shelf: Callable[[Pairs], FileSearch] | None = None
    """Ours only: the search whose hits have marks; None for a peer and where the marks are off."""

    @property
    def label(self) -> str:
        """Its name and, of a peer, its version."""
        return self.name if self.package == "toolcrib" else f"{self.name} {version(self.package)}"

    def answers(self, pairs: Pairs) -> Callable[[str], ShownAnswer]:
        """A search that says which hits are not marked as weak; those of a peer never are."""
        if self.shelf:
            return self.shelf(pairs).answer
        search = self.build(pairs)
        return lambda text: _unmarked(search(text))


def _unmarked(ids: Sequence[str]) -> ShownAnswer:
    return ShownAnswer(shown=tuple(ids), sure=tuple(ids))


def shelf(pairs: Pairs, scorer: Scorer = "hybrid") -> FileSearch:
    """Our search over the tools."""
    return FileSearch(ToolFile(iter(pairs)), SearchOptions(scorer=scorer))


def ours(name: str, shelf: Callable[[Pairs], FileSearch]) -> Engine:
    """Our search as it ships."""

    def build(pairs: Pairs) -> Search:
        ready = shelf(pairs)
        return lambda text: list(ready.answer(text).shown)

    return Engine(name, build, "toolcrib", shelf=shelf)


@cache
def minilm() -> SemanticModel | None:
    """The model of the extra `semantic`; None if it is not installed. It embeds a tool once, and every request."""
    try:
        embedder = load("minilm")
    except MissingExtra:
        return None
    return SemanticModel(default_table(), embedder, ComputedVectors(CachedEmbedder(embedder)))


def semantic_shelf(pairs: Pairs) -> FileSearch:
    """Our search with MiniLM."""
    return FileSearch(ToolFile(iter(pairs)), SearchOptions(), minilm())


def semantic() -> tuple[Engine, ...]:
    """The extra, if it is installed. It takes 13 ms to embed a tool, so it is timed with a small catalog only."""
    return (replace(ours("toolcrib hybrid + semantic", semantic_shelf), most=1_000),) if minilm() else ()


def scorer(name: Scorer) -> Engine:
    """Our search with that scorer."""
    return ours(f"toolcrib {name}", partial(shelf, scorer=name))


def marks_off(pairs: Pairs) -> Search:
    """Our default search without thresholds: it withholds nothing, as the peers."""
    ready = shelf(pairs)
    return lambda text: list(ready.answer(text, without_thresholds(ready.options)).shown)


def fastmcp(pairs: Pairs) -> Search:
    """The BM25 search transform, with the names that its namespaces give."""
    from fastmcp.server.transforms.search import BM25SearchTransform
    from fastmcp.tools.base import Tool as TheirTool

    several = len({tool.namespace for _, tool in pairs}) > 1
    ids, tools = {}, []
    for name, id_, tool in _named(pairs, lambda tool: _prefixed(tool) if several else tool.name):
        ids[name] = id_
        tools.append(TheirTool(name=name, description=tool.description, parameters=dict(tool.input_schema)))
    transform = BM25SearchTransform(max_results=TEN)
    run = asyncio.new_event_loop().run_until_complete

    def search(text: str) -> list[str]:
        # What its `search_tools` calls; through the tool itself a whole server would be measured.
        return [ids[tool.name] for tool in run(transform._search(tools, text))]  # noqa: SLF001

    search("build the index")
    return search


def _prefixed(tool: Tool) -> str:
    return f"{tool.namespace}_{tool.name}" if tool.namespace else tool.name


def chuk(pairs: Pairs) -> Search:
    """The engine behind its dynamic tool discovery."""
    from chuk_tool_processor.discovery import ToolSearchEngine

    engine = ToolSearchEngine()
    engine.set_tools(
        [
            SimpleNamespace(
                name=tool.name,
                namespace=tool.namespace,
                description=tool.description,
                parameters=tool.input_schema,
                id=id_,
            )
            for id_, tool in pairs
        ]
    )
    return lambda text: [hit.tool.id for hit in engine.search(text, limit=TEN)]


def bm25s(pairs: Pairs) -> Search:
    """Plain BM25 over name and description, English stop words left out."""
    import bm25s as library

    ids = [id_ for id_, _ in pairs]

    def tokens(texts: list[str]) -> object:
        return library.tokenize(texts, stopwords="en", show_progress=False)

    index = library.BM25()
    index.index(tokens([f"{tool.name} {tool.description}" for _, tool in pairs]), show_progress=False)

    def search(text: str) -> list[str]:
        try:
            found, scores = index.retrieve(tokens([text]), k=min(TEN, len(ids)), show_progress=False)
        except ValueError:  # no word is left of the query
            return []
        return [ids[place] for place, score in zip(found[0], scores[0], strict=True) if score > 0]

    return search


def toolregistry(pairs: Pairs) -> Search:
    """Its tool discovery, with the names that its integrations give."""
    from toolregistry import Tool as TheirTool
    from toolregistry import ToolMetadata, ToolRegistry
    from toolregistry.llm.discovery import ToolDiscoveryTool
    from toolregistry.utils import normalize_tool_name

    registry = ToolRegistry()
    for name, id_, tool in _named(pairs, lambda tool: normalize_tool_name(tool.name), normalize_tool_name):
        metadata = ToolMetadata(custom_tags=set(tool.tags), extra={"id": id_})
        schema = dict(tool.input_schema)
        theirs = TheirTool(
            name=name, description=tool.description, parameters=schema, callable=print, metadata=metadata
        )
        registry.register(theirs, namespace=tool.namespace or None)
    discovery = ToolDiscoveryTool(registry)

    def search(text: str) -> list[str]:
        hits = discovery.discover(text, top_k=TEN) if text.strip() else []
        return [registry.get_tool(hit["name"]).metadata.extra["id"] for hit in hits]

    return search


def tantivy(pairs: Pairs) -> Search:
    """A full-text engine in memory, with English stems: one field each for name, description and parameters."""
    import tantivy as library

    schema = library.SchemaBuilder()
    fields = ["name", "namespace", "description", "parameters"]
    for field in fields:
        schema.add_text_field(field, tokenizer_name="en_stem")
    schema.add_unsigned_field("place", stored=True)
    index = library.Index(schema.build())
    writer = index.writer(heap_size=100_000_000, num_threads=1)
    for place, (_, tool) in enumerate(pairs):
        parameters = " ".join(tool.input_schema.get("properties", {}))
        texts = (tool.name, tool.namespace, tool.description, parameters)
        writer.add_document(library.Document(place=place, **dict(zip(fields, texts, strict=True))))
    writer.commit()
    writer.wait_merging_threads()
    index.reload()
    searcher = index.searcher()
    ids = [id_ for id_, _ in pairs]

    def search(text: str) -> list[str]:
        query, _ = index.parse_query_lenient(text, fields)
        return [ids[searcher.doc(address)["place"][0]] for _, address in searcher.search(query, TEN).hits]

    return search


def _named(
    pairs: Pairs, spelt: Callable[[Tool], str], spelt_namespace: Callable[[str], str] = str
) -> Iterator[tuple[str, str, Tool]]:
    """Every tool with its id and the name it gets; of tools that would get the same, later ones get a number."""
    seen: Counter[tuple[str, str]] = Counter()
    for id_, tool in pairs:
        name = spelt(tool)
        place = (spelt_namespace(tool.namespace), name)
        seen[place] += 1
        yield name if seen[place] == 1 else f"{name}_again_{seen[place]}", id_, tool


ENGINES = (
    scorer("hybrid"),
    *semantic(),
    Engine("toolcrib hybrid, marks off", marks_off, "toolcrib", most=0),
    scorer("tiers"),
    scorer("bm25"),
    scorer("points"),
    Engine("fastmcp", fastmcp, "fastmcp"),
    Engine("chuk-tool-processor", chuk, "chuk-tool-processor", most=10_000),
    Engine("bm25s", bm25s, "bm25s"),
    Engine("toolregistry", toolregistry, "toolregistry", most=10_000),
    Engine("tantivy", tantivy, "tantivy", ranked=False),
)
OURS = ENGINES[0].name
