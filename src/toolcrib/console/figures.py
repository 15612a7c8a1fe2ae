"""How the pages of the console write figures, times, addresses and charts.

Charts are inline SVG. They have no style attributes, which the console's security policy forbids, only classes.
"""

import math
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_GAP = 1


def ago(moment: float, now: float | None = None) -> str:
    """How long ago something happened.

    >>> [ago(0, now) for now in (0.4, 59, 61, 7300, 200_000)]
    ['now', '59 s', '1 min', '2 h', '2 d']
    """
    passed = max(0.0, (time.time() if now is None else now) - moment)
    if passed < 1:
        return "now"
    for unit, size in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if passed >= size:
            return f"{int(passed // size)} {unit}"
    return f"{int(passed)} s"


def duration(seconds: float) -> str:
    """A duration with about three digits.

    >>> [duration(one) for one in (0.00042, 0.0123, 0.4567, 2.5, 93)]
    ['0.42 ms', '12.3 ms', '457 ms', '2.50 s', '93.0 s']
    """
    value, unit = (seconds * 1000, "ms") if seconds < 1 else (seconds, "s")
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:.{min(digits, 2)}f} {unit}"


def number(value: float) -> str:
    """A number with separators.

    >>> number(41230), number(0.5)
    ('41,230', '0.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,g}"


def percent(part: float, whole: float) -> str:
    """A share in per cent.

    >>> percent(1, 3), percent(1, 1000), percent(0, 0), percent(9999, 10000)
    ('33 %', '0.1 %', '0 %', '99.9 %')
    """
    share = 100 * part / whole if whole else 0.0
    is_almost_none_or_all = 0 < min(share, 100 - share) < 1
    return f"{min(share, 99.9):.1f} %" if is_almost_none_or_all else f"{share:.0f} %"


def clock(moment: float) -> str:
    """The time of day, in UTC.

    >>> clock(3661.5)
    '01:01:01'
    """
    return datetime.fromtimestamp(moment, UTC).strftime("%H:%M:%S")


def iso(moment: float) -> str:
    """A moment for programs.

    >>> iso(0)
    '1970-01-01T00:00:00+00:00'
    """
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")


def segment(text: str) -> str:
    """A text as one segment of an address.

    >>> segment("git:log/x")
    'git%3Alog%2Fx'
    """
    return quote(text, safe="")


def with_query(path: str, **parameters: object) -> str:
    """An address with those of the parameters that are not empty.

    >>> with_query("/calls", tool="git", caller="")
    '/calls?tool=git'
    """
    given = {name: value for name, value in parameters.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


# -- charts ------------------------------------------------------------------------------------------------------------


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
