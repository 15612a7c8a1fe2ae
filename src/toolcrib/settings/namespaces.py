"""A server's key as a namespace. Nearly every key is one as it stands."""

from toolcrib.errors import InvalidName
from toolcrib.names import MAX_NAMESPACE, check_namespace


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
