"""Record a terminal session, and draw it as an animated SVG for the README and the home page.

    python scripts/terminal_picture.py          # draw docs/assets/terminal.svg from the recording; no network
    python scripts/terminal_picture.py record   # run the commands with real servers from PyPI, then draw

The recording, docs/assets/terminal.json, has each command with its output and the seconds it took.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDING = ROOT / "docs" / "assets" / "terminal.json"
PICTURE = ROOT / "docs" / "assets" / "terminal.svg"

SDK = ("--with", "mcp==2.3.0")
SERVERS = {
    "time": ("uvx", *SDK, "mcp-server-time==2026.10.19", "--local-timezone", "UTC"),
    "git": ("uvx", *SDK, "mcp-server-git==2026.10.19"),
    "math": (
        "uvx",
        "--with",
        "chuk-mcp-math==0.2.3",
        "--with",
        "chuk-mcp-server==0.26.1",
        "chuk-mcp-math-server==0.3.3",
    ),
}
COMMANDS = (
    "toolcrib servers --fresh",
    'toolcrib search "least common multiple of two numbers" --limit 2',
    "toolcrib call math:lcm a=12 b=18",
    'toolcrib search "what time is it in Tokyo" --limit 2',
    "toolcrib call time:get_current_time timezone=Asia/Tokyo",
)
COLUMNS = 78

# Pixels of a character cell and around the text, and seconds of the animation.
CELL, LINE, MARGIN, TITLE = 8.4, 20, 16, 32
KEY_S, THINK_S, READ_S, HOLD_S = 0.035, 0.5, 1.6, 5.0
FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass(frozen=True, slots=True)
class Step:
    """One command of the recording."""

    command: str
    output: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line on the screen: its text, when it appears, and whether it is typed."""

    text: str
    at: float
    typed: bool


def record() -> tuple[Step, ...]:
    """Run the commands in a folder with the settings. The first runs once before, because it may download."""
    with tempfile.TemporaryDirectory() as folder:
        entries = {name: {"command": words[0], "args": list(words[1:])} for name, words in SERVERS.items()}
        Path(folder, "toolcrib.json").write_text(json.dumps({"mcpServers": entries}))
        subprocess.run(["git", "init", "--quiet", folder], check=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {
            **os.environ,
            "PATH": path,
            "COLUMNS": str(COLUMNS),
            "TOOLCRIB_CONFIG": "",
            "XDG_STATE_HOME": folder,
        }

        def run(command: str) -> Step:
            begun = time.perf_counter()
            done = subprocess.run(
                ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, check=True
            )
            return Step(command, done.stdout.rstrip("\n"), round(time.perf_counter() - begun, 1))

        run(COMMANDS[0])
        return tuple(run(command) for command in COMMANDS)


def load() -> tuple[Step, ...]:
    """The recording in the repository."""
    return tuple(Step(**step) for step in json.loads(RECORDING.read_text(encoding="utf-8")))


def rows(steps: Sequence[Step]) -> Iterator[Row]:
    """The lines of the screen in order, with the time at which each appears; the first command is there at once."""
    now = 0.0
    for number, step in enumerate(steps):
        yield Row(f"$ {step.command}", now, typed=number > 0)
        if number > 0:
            now += KEY_S * len(step.command) + THINK_S
        for line in step.output.splitlines():
            yield Row(line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…", now, typed=False)
        now += READ_S
        yield Row("", now, typed=False)


def draw(steps: Sequence[Step]) -> str:
    """The animated picture. Viewers that prefer reduced motion get the last frame."""
    lines = list(rows(steps))
    total = lines[-1].at + HOLD_S
    width = round(2 * MARGIN + COLUMNS * CELL)
    height = TITLE + MARGIN + LINE * (len(lines) - 1) + MARGIN
    style, body = [], []
    for number, row in enumerate(lines[:-1]):
        if not row.text:
            continue
        baseline = TITLE + MARGIN + LINE * number + 14
        if row.at > 0:
            style.append(
                f"#l{number}{{animation:a{number} {total:.1f}s linear infinite}}{_keyframes(number, row, total)}"
            )
        kind = "c" if row.typed else "o"
        body.append(f'<text id="l{number}" class="{kind}" x="{MARGIN}" y="{baseline}">{escape(row.text)}</text>')
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
            f'  role="img" aria-label="{escape(_label(steps))}">',
            "<style>",
            f"text{{font:14px {FONT};white-space:pre;fill:#cfd8dc}}.c{{fill:#fff;font-weight:600}}.d{{fill:#90a4ae}}",
            *style,
            "@media (prefers-reduced-motion:reduce){text{animation:none !important}}",
            "</style>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#1e272c" stroke="#455a64"/>',
            *(f'<circle cx="{20 + 18 * i}" cy="17" r="5.5" fill="#546e7a"/>' for i in range(3)),
            f'<text class="d" x="{width / 2:g}" y="22" text-anchor="middle">toolcrib</text>',
            *body,
            "</svg>",
            "",
        )
    )


def _keyframes(number: int, row: Row, total: float) -> str:
    """Show a line from its time on. A typed line is uncovered character by character."""
    start = 100 * row.at / total
    if not row.typed:
        appears = f"{start:.2f}%{{visibility:hidden}}{start + 0.01:.2f}%"
        return f"@keyframes a{number}{{0%,{appears},100%{{visibility:visible}}}}"
    end = 100 * (row.at + KEY_S * len(row.text)) / total
    hidden, shown = "clip-path:inset(0 100% 0 0)", "clip-path:inset(0 0 0 0)"
    steps = f"animation-timing-function:steps({len(row.text)})"
    return f"@keyframes a{number}{{0%{{{hidden}}}{start:.2f}%{{{hidden};{steps}}}{end:.2f}%,100%{{{shown}}}}}"


def _label(steps: Sequence[Step]) -> str:
    """The commands, for readers without the picture."""
    return "A terminal session: " + "; ".join(step.command for step in steps)


def main() -> None:
    """Record if asked to, and draw."""
    if sys.argv[1:] == ["record"]:
        steps = [{"command": s.command, "output": s.output, "seconds": s.seconds} for s in record()]
        RECORDING.write_text(json.dumps(steps, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PICTURE.write_text(draw(load()), encoding="utf-8")


if __name__ == "__main__":
    main()
