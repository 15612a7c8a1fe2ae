"""Every block of the how-to pages runs unchanged, offline."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.forks import RunPython

from toolcrib.gateway.keywords import ToolDescriber, ToolKeywords
from toolcrib.settings.loader import load_settings
from toolcrib.state.memory import MemoryStore
from toolcrib.types import Tool

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "how-to"
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ELSEWHERE = {"agent-loop", "openai", "anthropic", "gemini", "frameworks"}
"""Pages that `tests/examples` runs."""
SERVES = "app.run()"
"""Run the server on an empty stdin: it ends without output."""
EXAMPLES = [path.read_text() for path in sorted((ROOT / "examples").rglob("*.py"))]
"""What a page shows of them runs with its neighbours, in the tests of the examples."""


def blocks(language: str) -> Iterator[object]:
    for path in sorted(path for path in PAGES.glob("*.md") if path.stem not in ELSEWHERE):
        for place, match in enumerate(FENCE.finditer(path.read_text())):
            if match[1] == language and not any(match[2] in example for example in EXAMPLES):
                yield pytest.param(match[2], id=f"{path.stem}-{place}")


@pytest.mark.parametrize("block", [*blocks("python")])
def test_a_python_block_runs(block: str, run_python: RunPython, tmp_path: Path) -> None:
    done = run_python(block, tmp_path)
    assert done.code == 0, done.err
    assert done.out or SERVES in block


class FakeClient:
    """Replaces the client of a model's provider: each request is answered with two phrases."""

    def __init__(self) -> None:
        phrases = '["who is on call", "whom can I wake"]'
        self.messages = SimpleNamespace(create=self._answer_later)
        self.responses = SimpleNamespace(create=self._answer)
        self._reply = SimpleNamespace(content=[SimpleNamespace(text=phrases)], output_text=phrases)
        self.asked: list[str] = []

    def _answer(self, **request: Any) -> Any:
        self.asked.append(str(request))
        return self._reply

    async def _answer_later(self, **request: Any) -> Any:
        return self._answer(**request)


@pytest.mark.anyio
@pytest.mark.parametrize("block", [*blocks("py")])
async def test_a_hook_that_asks_a_model_describes_tools(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient()
    for name, make in (("anthropic", "AsyncAnthropic"), ("openai", "OpenAI")):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**{make: lambda: client}))
    words: dict[str, Any] = {}
    exec(block, words)  # noqa: S102 - a block of our own page
    keywords = ToolKeywords({})
    describer = ToolDescriber(words["describe"], keywords, MemoryStore())
    tool = Tool(namespace="pager", name="list_shifts", description="Shows the people on duty.")
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:

            async def stop() -> None:
                group.cancel_scope.cancel()
                await anyio.sleep_forever()

            await describer.run(lambda: [tool], lambda: None, stop)
    (described,) = keywords.apply((tool,))
    assert described.keywords == ("who is on call", "whom can I wake")
    assert "pager:list_shifts: Shows the people on duty." in client.asked[0]


@pytest.mark.parametrize("block", [*blocks("toml")])
def test_a_toml_block_is_a_configuration(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUDIT_KEY", "a key of more than sixteen characters")
    path = tmp_path / "toolcrib.toml"
    path.write_text(block)
    (tmp_path / "keywords.toml").touch()
    (tmp_path / "secrets.env").touch(mode=0o600)
    assert not load_settings(path).warnings
