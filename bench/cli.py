"""The command line beside `fastmcp`'s on the same tasks, and beside `import numpy`, in one run.

Twelve servers over stdio that use no library, so that nearly all of the time is the command's own. The figure of a
task is its quickest round; `--rounds N` sets how many there are.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import processes

SERVER = Path(__file__).parents[1] / "tests" / "cli" / "toolbox_server.py"
SERVERS = 12


def tasks(config: Path) -> dict[str, dict[str, list[str]]]:
    """The commands of each task, by program."""
    toolcrib = [sys.executable, "-m", "toolcrib"]
    fastmcp = [str(Path(sys.executable).with_name("fastmcp"))]
    own = ["--config", str(config)]
    return {
        "import numpy": {"python": [sys.executable, "-c", "import numpy"]},
        "print the version": {"toolcrib": [*toolcrib, "--version"], "fastmcp": [*fastmcp, "--version"]},
        "list the tools, asking every server": {
            "toolcrib": [*toolcrib, "tools", "--fresh", *own],
            "fastmcp": [*fastmcp, "list", str(config)],
        },
        "list the tools": {"toolcrib": [*toolcrib, "tools", *own], "fastmcp": [*fastmcp, "list", str(config)]},
        "search the tools": {"toolcrib": [*toolcrib, "search", "say hello", *own]},
        "describe a tool": {"toolcrib": [*toolcrib, "describe", "s3:greet", *own]},
        "show the servers": {"toolcrib": [*toolcrib, "servers", *own]},
        "call a tool": {
            "toolcrib": [*toolcrib, "call", "s3:greet", "person=Ada", *own],
            "fastmcp": [*fastmcp, "call", str(config), "s3_greet", "person=Ada"],
        },
    }


def main() -> None:
    """Run every command in turn, several rounds, and print the best of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    best: dict[tuple[str, str], tuple[float, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mcp.json"
        servers = {f"s{number}": {"command": sys.executable, "args": [str(SERVER)]} for number in range(SERVERS)}
        config.write_text(json.dumps({"mcpServers": servers}))
        environ = {**os.environ, "XDG_STATE_HOME": folder}
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        processes.finished([sys.executable, "-m", "toolcrib", "tools", "--config", str(config)], environ)
        for _ in range(rounds):
            for task, programs in tasks(config).items():
                for program, command in programs.items():
                    now, kept = processes.finished(command, environ), best.get((task, program), (9e9, 9e9))
                    best[task, program] = min(now[0], kept[0]), min(now[1], kept[1])
    numpy = best["import numpy", "python"]
    print(f"{SERVERS} servers over stdio; seconds, and as ratios to importing numpy\n")
    print(f"{'':38}{'':10}{'wall':>8}{'ratio':>7}{'cpu':>8}{'ratio':>7}")
    for (task, program), (wall, cpu) in best.items():
        print(f"{task:38}{program:10}{wall:8.2f}{wall / numpy[0]:7.1f}{cpu:8.2f}{cpu / numpy[1]:7.1f}")


if __name__ == "__main__":
    main()
