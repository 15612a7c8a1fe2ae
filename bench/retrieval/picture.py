"""A picture of quality against time, as SVG, without any library."""

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 64, 190, 24, 56
FONT = 'font-family="sans-serif" font-size="12"'
UPWARDS = "nDCG@10 of the main track, x100"
MIDDLE = 'text-anchor="middle"'
LINE = 13
"""Pixels between two labels, at least."""


def picture(points: Sequence[tuple[str, float, float]]) -> str:
    """Engines as dots: p50 of a search in microseconds to the right, on a logarithmic scale; nDCG@10 upwards.

    Each point is a label, microseconds, and a share from 0 to 1. Empty where there are no points.
    """
    if not points:
        return ""
    low = math.floor(math.log10(min(time for _, time, _ in points)))
    high = max(low + 1, math.ceil(math.log10(max(time for _, time, _ in points))))
    bottom = math.floor(min(share for _, _, share in points) * 10) / 10
    top = max(bottom + 0.1, math.ceil(max(share for _, _, share in points) * 10) / 10)

    def across(time: float) -> float:
        return LEFT + (math.log10(time) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def down(share: float) -> float:
        return HEIGHT - BOTTOM - (share - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid_across([(across(10**power), _time(10**power)) for power in range(low, high + 1)]),
        *_grid_down([(down(ten / 10), f"{ten * 10}") for ten in range(round(bottom * 10), round(top * 10) + 1)]),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "p50 of a search (logarithmic)", anchor="middle"),
        f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" {MIDDLE}>{UPWARDS}</text>',
        *_dots([(label, across(time), down(share)) for label, time, share in points]),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _dots(places: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    """The dots and their labels, which make room for each other where they would overlap."""
    taken: list[tuple[float, float]] = []
    for label, x, y in sorted(places, key=lambda place: place[2]):
        ours = label.startswith("toolcrib")
        at = y + 4
        while any(abs(at - other) < LINE and abs(x - beside) < RIGHT for beside, other in taken):
            at += LINE
        taken.append((x, at))
        colour = "#c2410c" if ours else "#475569"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>'
        yield _text(x + 10, at, label, colour=colour)


def _grid_across(marks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for x, label in marks:
        yield f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#e2e8f0"/>'
        yield _text(x, HEIGHT - BOTTOM + 18, label, anchor="middle")


def _grid_down(marks: Sequence[tuple[float, str]]) -> Iterator[str]:
    for y, label in marks:
        yield f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e2e8f0"/>'
        yield _text(LEFT - 8, y + 4, label, anchor="end")


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#1e293b") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _time(microseconds: float) -> str:
    if microseconds < 1_000:
        return f"{microseconds:g} us"
    return f"{microseconds / 1_000:g} ms" if microseconds < 1_000_000 else f"{microseconds / 1_000_000:g} s"
