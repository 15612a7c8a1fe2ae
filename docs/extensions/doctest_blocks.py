"""Griffe extension: show the doctests of a docstring as code blocks in the API reference."""

from typing import Any

import griffe


def fence_doctests(docstring: str) -> str:
    """Wrap each paragraph that starts with `>>>` in a `pycon` code block."""
    paragraphs = docstring.split("\n\n")
    return "\n\n".join(f"```pycon\n{part}\n```" if part.startswith(">>> ") else part for part in paragraphs)


class DoctestBlocks(griffe.Extension):
    """Rewrite docstrings once they are collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence the doctests of one module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fence_doctests(obj.docstring.value)
