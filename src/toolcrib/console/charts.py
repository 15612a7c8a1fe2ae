"""Charts as inline SVG. They have no style attributes, which the console's security policy forbids, only classes."""

from collections.abc import Sequence
from html import escape

_GAP = 1


def columns(
    values: Sequence[float], marked: Sequence[float] = (), *, height: int = 40, step: int = 6, label: str
) -> str:
    """One column for each value; `marked` is the part of each to mark, such as errors. `label` says what it shows.

    >>> columns([1, 2], height=10, step=4, label="Calls")[:60]
    '<svg class="columns" viewBox="0 0 8 10" role="img" preserveA'
    """
    top = max(values, default=0) or 1
    box = f"0 0 {len(values) * step} {height}"
    parts = [_open("columns", box, label)]
    for place, value in enumerate(values):
        size = _size(value, top, height)
        parts.append(_rect("column", place * step, height - size, step - _GAP, size))
        if place < len(marked) and marked[place]:
            size = max(1.0, _size(marked[place], top, height))
            parts.append(_rect("marked", place * step, height - size, step - _GAP, size))
    return "".join([*parts, "</svg>"])


def bar(value: float, top: float, *, width: int = 160, height: int = 8, label: str) -> str:
    """A bar from the left for a value above 0; one below 0 grows in another colour.

    >>> 'class="positive"' in bar(1, 2, label="coverage"), 'class="negative"' in bar(-1, 2, label="same need")
    (True, True)
    """
    size = max(0.0, min(1.0, abs(value) / top if top else 0.0)) * width
    kind = "negative" if value < 0 else "positive"
    track = _rect("track", 0, 0, width, height)
    return f"{_open('bar', f'0 0 {width} {height}', label)}{track}{_rect(kind, 0, 0, size, height)}</svg>"


def span(start: float, length: float, whole: float, kind: str, *, label: str) -> str:
    """Where a part of a whole begins and how long it is, as on a timeline.

    >>> 'class="call" x="250" y="0" width="500"' in span(1, 2, 4, "call", label="2 s")
    True
    """
    scale = 1000 / whole if whole else 0.0
    begin = min(996.0, max(0.0, start * scale))
    size = min(1000 - begin, max(4.0, length * scale))
    return f"{_open('span', '0 0 1000 10', label)}{_rect(kind, begin, 0, size, 10)}</svg>"


def _open(kind: str, box: str, label: str) -> str:
    return f'<svg class="{kind}" viewBox="{box}" role="img" preserveAspectRatio="none" aria-label="{escape(label)}">'


def _size(value: float, top: float, height: int) -> float:
    return max(1.0, value / top * height) if value else 0.0


def _rect(kind: str, x: float, y: float, width: float, height: float) -> str:
    numbers = (f'{name}="{value:.5g}"' for name, value in (("x", x), ("y", y), ("width", width), ("height", height)))
    return f'<rect class="{kind}" {" ".join(numbers)}/>'
