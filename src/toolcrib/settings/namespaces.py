"""A server's key as a namespace, which nearly every key is as it stands, and what an entry says in its place."""

from toolcrib.errors import InvalidName
from toolcrib.names import MAX_NAMESPACE, check_namespace
from toolcrib.settings.section import Section


def namespace(key: str) -> str:
    """The key itself where it can be a namespace, else the closest readable one; a function of the key alone.

    >>> namespace("My Server"), namespace("io.github:files"), namespace(" notes ")
    ('My Server', 'io.github-files', 'notes')
    """
    try:
        check_namespace(key)
    except InvalidName:
        legal = "".join(char if char.isprintable() and char != ":" else "-" for char in key.strip())
        return legal[:MAX_NAMESPACE].strip() or "server"
    return key


def stated(entry: Section) -> str | None:
    """What the entry itself says; one that cannot be a namespace is noted, and never changed in silence."""
    said, spelling = entry.text("namespace"), entry.spelling("namespace")
    if said is None or namespace(said) == said:
        return said
    entry.wrong(str(spelling), "cannot be a namespace, which has no colon or control character", said)
    return None
