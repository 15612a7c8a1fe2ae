"""The users of `mixed_load.py`, for locust: each opens a session, lists, calls, pings, and now and then begins again.

Reads `BENCH_TOOL` (the name of the tool that echoes) and `BENCH_AUTHORIZATION` from the environment.
"""

import json
import os
from typing import Any, Final

from locust import HttpUser, constant, task

_VERSION: Final = "2025-06-18"
"""The newest that both gateways speak."""
_PATH: Final = os.environ["BENCH_PATH"]
_TOOL: Final = os.environ["BENCH_TOOL"]


class Client(HttpUser):
    """One agent, which waits for each answer and sends the next request at once."""

    wait_time = constant(0)

    def on_start(self) -> None:
        """Open a session."""
        self._number = 0
        self._session = ""
        self.begin()

    @task(1)
    def begin(self) -> None:
        """Leave the session, if there is one, and open another."""
        if self._session:
            self.client.delete(_PATH, headers=self._headers(), name="DELETE")
        self._session = ""
        client = {"name": "bench", "version": "1"}
        params = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
        self._send("initialize", params, expect="protocolVersion")
        message = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        self.client.post(_PATH, json=message, headers=self._headers(), name="initialized")

    @task(4)
    def ping(self) -> None:
        """Ask whether the gateway is there."""
        self._send("ping", {}, expect="{}")

    @task(10)
    def read_list(self) -> None:
        """Read the list of tools."""
        self._send("tools/list", {}, expect="echo")

    @task(35)
    def call(self) -> None:
        """Call the tool, and check its answer."""
        text = f"number {self._number} of {id(self)}"
        self._send("tools/call", {"name": _TOOL, "arguments": {"text": text}}, expect=text)

    def _headers(self) -> dict[str, str]:
        headers = {
            "Authorization": os.environ["BENCH_AUTHORIZATION"],
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": _VERSION,
        }
        return {**headers, "Mcp-Session-Id": self._session} if self._session else headers

    def _send(self, method: str, params: dict[str, Any], *, expect: str) -> None:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        with self.client.post(
            _PATH, json=message, headers=self._headers(), name=method, catch_response=True
        ) as response:
            self._session = response.headers.get("mcp-session-id", self._session)
            text = response.text or ""
            body = text.partition("data: ")[2] if text.startswith(("event:", ":")) else text
            try:
                answer = json.loads(body.splitlines()[0] if body else "")
            except ValueError:
                response.failure(f"not an answer: {text[:200]}")
                return
            if answer.get("id") != self._number or expect not in json.dumps(answer.get("result", "")):
                response.failure(f"a wrong answer: {text[:200]}")
