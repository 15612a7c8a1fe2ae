"""What a search can be narrowed to."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from toolcrib.model import Filters, Tool, Visibility

Bools = npt.NDArray[np.bool_]


class Facets:
    """The filterable sides of some tools, as arrays."""

    __slots__ = ("_namespaces", "_numbers", "_read_only", "_tags", "_visibility")

    def __init__(self, tools: Sequence[Tool]) -> None:
        """Positions are places in `tools`."""
        self._numbers: dict[str, int] = {}
        self._namespaces = np.array(
            [self._numbers.setdefault(t.namespace, len(self._numbers)) for t in tools], np.int32
        )
        self._read_only = np.array([t.annotations.get("readOnlyHint") is True for t in tools], np.bool_)
        self._visibility = {kind: np.array([t.visibility is kind for t in tools], np.bool_) for kind in Visibility}
        self._tags: dict[str, list[int]] = {}
        for position, tool in enumerate(tools):
            for tag in tool.tags:
                self._tags.setdefault(tag, []).append(position)

    def passing(self, filters: Filters) -> Bools:
        """The tools that pass all the filters."""
        passes = np.ones(len(self._read_only), np.bool_)
        if filters.namespaces:
            numbers = [self._numbers[name] for name in filters.namespaces if name in self._numbers]
            passes &= np.isin(self._namespaces, numbers)
        if filters.read_only is not None:
            passes &= self._read_only == filters.read_only
        if filters.visibility:
            passes &= np.logical_or.reduce([self._visibility[kind] for kind in filters.visibility])
        for tag in filters.tags:
            tagged = np.zeros(len(passes), np.bool_)
            tagged[self._tags.get(tag, [])] = True
            passes &= tagged
        return passes
