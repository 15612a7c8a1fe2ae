"""`toolcrib login`, `logout` and `logins`, in front of a real authorization server."""

import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
import pytest
from tests.cli.conftest import Ran, toolbox
from tests.upstream.test_logins import World, world

from toolcrib.cli.output import ExitCode

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]


@pytest.fixture(autouse=True)
def browser(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A browser whose user consents at once; returns the pages that it opened."""
    opened: list[str] = []

    def visit(url: str) -> bool:
        opened.append(url)
        with httpx2.Client(follow_redirects=True, trust_env=False) as client:
            return client.get(url).is_success

    monkeypatch.setattr(webbrowser, "open", visit)
    monkeypatch.setenv("TOOLCRIB_VAULT_KEY", "k" * 32)
    return opened


class Shell:
    """The command line in front of the protected server of a world."""

    def __init__(self, it: World, settings: SettingsFile, command: Command, folder: Path) -> None:
        state = {"state": {"path": str(folder / "state.sqlite")}}
        self._config = settings(state, guarded={"url": it.protected.url, "auth": "oauth"}, plain=toolbox())
        self._command = command

    async def run(self, *words: str) -> Ran:
        return await anyio.to_thread.run_sync(lambda: self._command(*words, "--config", str(self._config)))

    async def start(self, *words: str) -> Ran:
        """Run it in a process of its own, for the verbs that handle signals."""
        program = [sys.executable, "-m", "toolcrib", *words, "--config", str(self._config)]
        done = await anyio.run_process(program, check=False)
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


async def test_a_login_is_listed_used_and_deleted(
    settings: SettingsFile, command: Command, tmp_path: Path, browser: list[str]
) -> None:
    async with world(limit_s=120) as it:
        shell = Shell(it, settings, command, tmp_path)
        assert (await shell.run("logins")).out == "No logins are stored.\n"
        logged_in = await shell.run("login", "guarded")
        assert logged_in.out == "Logged in to guarded.\n"
        assert browser[0] in logged_in.err
        [listed] = (await shell.run("logins", "--json")).json["logins"]
        assert (listed["server"], listed["for"], listed["issuer"]) == ("guarded", "all callers", it.issuer.issuer)
        assert (listed["refreshes"], listed["expired"], listed["problem"]) == (True, False, "")
        assert "guarded:whoami" in (await shell.start("tools", "--namespace", "guarded")).out
        assert "revoked" not in (await shell.run("logout", "guarded")).out
        assert it.issuer.families[0].revoked
        assert (await shell.run("logout", "guarded")).code == ExitCode.NOT_FOUND


async def test_a_login_that_the_server_does_not_accept_is_not_listed_as_ready(
    settings: SettingsFile, command: Command, tmp_path: Path
) -> None:
    async with world(limit_s=120) as it, world() as other:
        shell = Shell(it, settings, command, tmp_path)
        await shell.run("login", "guarded")
        assert "ready" in (await shell.run("logins")).out
        it.protected.issuer = other.issuer
        assert "does not accept the last one" in (await shell.start("tools", "--namespace", "guarded")).err
        assert "refused" in (await shell.run("logins")).out
        [listed] = (await shell.run("logins", "--json")).json["logins"]
        assert listed["refused"] is not None
        await shell.run("login", "guarded")
        assert "ready" in (await shell.run("logins")).out


@pytest.mark.slow
async def test_no_verb_prints_a_token(settings: SettingsFile, command: Command, tmp_path: Path) -> None:
    async with world(limit_s=120) as it:
        shell = Shell(it, settings, command, tmp_path)
        printed = ""
        for words in (["login", "guarded"], ["logins"], ["logins", "--json"], ["state"]):
            ran = await shell.run(*words)
            assert ran.code == ExitCode.OK
            printed += ran.out + ran.err
        for verb in ("servers", "doctor"):
            ran = await shell.start(verb, "--debug")
            assert ran.code == ExitCode.OK
            printed += ran.out + ran.err
        known = [*it.issuer.tokens, *(token.refresh_token for token in it.issuer.tokens.values())]
        assert known
        assert [token for token in known if token in printed] == []


async def test_a_login_that_fails_says_why(settings: SettingsFile, command: Command, tmp_path: Path) -> None:
    async with world(limit_s=120) as it:
        it.issuer.change_redirect = lambda url: url.partition("?")[0] + "?error=access_denied&" + url.partition("&")[2]
        failed = await Shell(it, settings, command, tmp_path).run("login", "guarded")
    assert failed.code == ExitCode.SERVER
    assert "The login at guarded failed: the login was declined." in failed.err


async def test_a_server_without_a_login_and_a_caller_without_one_are_refused(
    settings: SettingsFile, command: Command, tmp_path: Path
) -> None:
    async with world(limit_s=120) as it:
        shell = Shell(it, settings, command, tmp_path)
        for words, reason in (
            (["login", "plain"], "says nothing of a login"),
            (["login", "guarded", "--caller", "ann"], "All callers share one login"),
            (["login", "guarded", "--tenant", "acme"], "--tenant needs --caller"),
        ):
            refused = await shell.run(*words)
            assert refused.code == ExitCode.USAGE
            assert reason in refused.err
        assert (await shell.run("login", "other")).code == ExitCode.NOT_FOUND
