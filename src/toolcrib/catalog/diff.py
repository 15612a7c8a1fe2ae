"""What changed from one catalog to the next."""

from dataclasses import dataclass

from toolcrib.catalog.catalog import Catalog
from toolcrib.model import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """The difference of two catalogs, each part by id."""

    added: tuple[Tool, ...] = ()
    removed: tuple[Tool, ...] = ()
    changed: tuple[tuple[Tool, Tool], ...] = ()
    """Before and after, of tools whose definition is another one under the same id."""

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return bool(self.added or self.removed or self.changed)


def diff(before: Catalog, after: Catalog) -> Diff:
    """What was added, removed and changed. Only definitions count, not which objects hold them."""
    old, new = before.definitions(), after.definitions()
    return Diff(
        added=tuple(tool for id_, (tool, _) in new.items() if id_ not in old),
        removed=tuple(tool for id_, (tool, _) in old.items() if id_ not in new),
        changed=tuple(
            (old[id_][0], tool) for id_, (tool, digest) in new.items() if id_ in old and old[id_][1] != digest
        ),
    )
