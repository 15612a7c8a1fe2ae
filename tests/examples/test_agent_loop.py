"""The agent-loop examples run as shipped, offline, and against a server that speaks Chat Completions."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOP = EXAMPLES / "agent_loop" / "agent.py"
DEMO = EXAMPLES / "dynamic_tools_demo" / "demo.py"


def ran(script: Path, **environment: str) -> str:
    known = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "AGENT_"))}
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**known, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_loop_does_its_tasks_in_both_ways_and_searching_reads_far_less() -> None:
    shown = ran(LOOP)
    assert shown.count("  searching: ") == shown.count("  everything:") == 3
    for searching, everything in re.findall(r"  searching:  (.*)\n  everything: (.*)\n", shown):
        assert searching == everything
    rows = re.findall(r"^(all tools|toolcrib's five) +(\d+) +(\d+) +([\d,]+)$", shown, re.MULTILINE)
    assert [row[:2] for row in rows] == [("all tools", "300"), ("toolcrib's five", "5")]
    all_tools, five = (int(row[3].replace(",", "")) for row in rows)
    assert five * 5 < all_tools


class Office(BaseHTTPRequestHandler):
    """A model that lists tools, then answers in words, and records its requests."""

    asked: list[tuple[str, str, dict[str, Any]]] = []  # noqa: RUF012 - a class is made for every test

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append((self.path, self.headers["Authorization"], request))
        message: dict[str, Any] = {"role": "assistant", "content": "Done."}
        if request["messages"][-1]["role"] == "user" and len(request["tools"]) == 5:
            function = {"name": "list_tools", "arguments": "{}"}
            message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}
        body = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so
        pass


@pytest.fixture
def office() -> Iterator[tuple[str, list[tuple[str, str, dict[str, Any]]]]]:
    handler = type("Handler", (Office,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1", handler.asked  # type: ignore[attr-defined]  # of Office
        server.shutdown()
        thread.join()


def test_a_real_provider_is_used_if_the_environment_names_a_model(office: Any) -> None:
    url, asked = office
    shown = ran(LOOP, AGENT_MODEL="some-model", OPENAI_API_KEY="k", OPENAI_BASE_URL=url)
    assert shown.count("Done.") == 6
    assert "k" not in re.findall(r"\w+", shown)
    assert {(path, key, request["model"]) for path, key, request in asked} == {
        ("/v1/chat/completions", "Bearer k", "some-model")
    }
    assert sorted({len(request["tools"]) for _, _, request in asked}) == [5, 300]
    answered = [request["messages"][-1] for _, _, request in asked if request["messages"][-1]["role"] == "tool"]
    assert all(json.loads(message["content"])["total_available"] == 300 for message in answered)


def test_the_demo_shows_its_six_things() -> None:
    shown = ran(DEMO)
    assert re.findall(r"^(\d)\. ", shown, re.MULTILINE) == list("123456")
    for query, tool in {
        "gaussian cdf": "normal_cdf",
        "find the average of numbers": "calculate_mean",
        "save data to disk": "write_file",
        "bell curve probability": "normal_pdf",
        "noraml_cdf": "normal_cdf",
        "multipley": "multiply",
        "calclate mean": "calculate_mean",
    }.items():
        assert re.search(rf"'{query}' +-> {tool} ", shown), query
    assert "before: ['calculate_mean', 'calculate_std'" in shown
    assert "after:  ['calculate_std', 'calculate_mean'" in shown
    assert 'call_tool: {"success": true, "result": 3.0}' in shown
    assert shown.count("-> normal_cdf\n") == 4
