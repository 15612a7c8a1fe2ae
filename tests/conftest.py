"""Shared by all tests: the event loop, one TLS context, and the number of examples for each property."""

import gc
import os
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import httpcore2
import hypothesis
import pytest
from tests.forks import RunPython, forks

SHARE: Final = {"few": 0.2, "many": 1.0}
"""The share of its examples that a property is tried on: `few` in every run, `many` in the slow one."""
LEAST: Final = 10


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def one_tls_context() -> Iterator[None]:
    """Share a TLS context between all HTTP clients of a process; each would take 40 ms to read the certificates. A test
    that names its own certificates gets its own.
    """
    make: Any = httpcore2.default_ssl_context
    shared, usual = cache(make), os.environ.get("SSL_CERT_FILE")

    def choose(**given: Any) -> Any:
        return (shared if os.environ.get("SSL_CERT_FILE") == usual else make)(**given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", choose)
        yield


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the state of tests, and of programs that they start, out of the user's home."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def own_state_folder(state_folder: Path) -> Iterator[None]:
    """Let no test see what another one has left, such as catalogs of the same server."""
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(state_folder / uuid4().hex)
    yield
    os.environ["XDG_STATE_HOME"] = before


@pytest.fixture(scope="session")
def run_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunPython]:
    """Runs a Python program in a folder, without the second that importing toolcrib takes."""
    with forks(tmp_path_factory.mktemp("forks")) as run:
        yield run


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, Any, Any]:
    """Keep the tests themselves from the garbage collector: each full run would look through thousands of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two tests of each property: one with few examples, and a slow one with all of them."""
    if hypothesis.is_hypothesis_test(metafunc.function):
        metafunc.fixturenames.append("examples")
        metafunc.parametrize("examples", ["few", pytest.param("many", marks=pytest.mark.slow)])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Try a property on as many examples as its test says, however long a busy machine takes for each."""
    chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if "examples" not in chosen:
        return (yield)
    test = item.obj  # type: ignore[attr-defined]  # an item with examples is a function
    usual = test._hypothesis_internal_use_settings
    test._hypothesis_internal_use_settings = hypothesis.settings(
        usual,
        max_examples=min(usual.max_examples, max(LEAST, round(usual.max_examples * SHARE[str(chosen["examples"])]))),
        deadline=None,
        suppress_health_check={*usual.suppress_health_check, hypothesis.HealthCheck.too_slow},
    )
    try:
        return (yield)
    finally:
        test._hypothesis_internal_use_settings = usual
