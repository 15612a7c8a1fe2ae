"""The texts of tools as the tiers read them: whole names, whole keywords, words between spaces."""

from toolcrib.model import Tool
from toolcrib.names import exact_spellings
from toolcrib.search.scorers.base import MAX_TEXT, Segment, kept
from toolcrib.search.scorers.strings import Strings
from toolcrib.search.text import words

_MARKS = ".,;:!?()[]{}\"'"


def read(text: str, limit: int) -> list[str]:
    """The first words of a query as they were typed, without the marks around them.

    >>> read('send "an email"?', 10)
    ['send', 'an', 'email']
    """
    stripped = (word.strip(_MARKS) for word in text[:MAX_TEXT].split())
    return [word for word in stripped if word][:limit]


def name(tool: Tool) -> str:
    """The name, lower case."""
    return tool.name.lower()


def spellings(tool: Tool) -> list[str]:
    """The ways to write the whole name, lower case: the name, the id, the wire name."""
    return [name(tool), *map(str.lower, exact_spellings(tool.key))]


def keywords(tool: Tool) -> dict[str, str]:
    """The keywords, the tags and the namespace, lower case, each with the field it is from."""
    found = {keyword[:MAX_TEXT].lower(): "keywords" for keyword in tool.keywords}
    for tag in tool.tags:
        found.setdefault(tag[:MAX_TEXT].lower(), "tags")
    found.setdefault(tool.namespace.lower(), "namespace")
    return {keyword: field for keyword, field in found.items() if keyword}


def description(tool: Tool) -> list[str]:
    """The words of the description, lower case, without the marks around them."""
    stripped = (word.strip(_MARKS) for word in tool.description[:MAX_TEXT].lower().split())
    return [word for word in stripped if word]


def around(tool: Tool, text: str) -> str:
    """The word of the description that holds a text, which one does."""
    whole = tool.description[:MAX_TEXT].lower()
    at = whole.index(text)
    before = whole[:at].rsplit(None, 1)[-1] if at and not whole[at - 1].isspace() else ""
    return (before + whole[at:].split(None, 1)[0]).strip(_MARKS)


def names(index: Segment) -> Strings:
    """The names of an index, lower case."""
    return kept(index, "names", lambda index: Strings([[name(tool)] for tool in index.tools]))


class Texts:
    """The texts of all tools of an index."""

    __slots__ = ("descriptions", "keywords", "names", "size", "spellings", "tokens")

    def __init__(self, index: Segment) -> None:
        """Reads every tool once."""
        self.size = len(index)
        self.names = names(index)
        self.spellings = Strings([spellings(tool) for tool in index.tools])
        self.keywords = Strings([keywords(tool) for tool in index.tools])
        self.descriptions = Strings([description(tool) for tool in index.tools])
        self.tokens = Strings([words(tool.name) for tool in index.tools])
        """The words of the names."""


def texts(index: Segment) -> Texts:
    """The texts of an index, read once."""
    return kept(index, "texts", Texts)
