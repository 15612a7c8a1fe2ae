"""`toolcrib tokens`: API keys on the command line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Ran

Command = Callable[..., Ran]
SettingsFile = Callable[..., Path]


@pytest.fixture
def config(settings: SettingsFile, tmp_path: Path) -> Path:
    """Settings that accept keys."""
    return settings({"state": {"path": str(tmp_path / "state.sqlite")}, "auth": {"api_keys": True}})


def create(command: Command, config: Path, *words: str) -> Any:
    return command("tokens", "create", "--caller", "ann", *words, "--config", config, "--json").json


def test_a_key_is_shown_once_when_it_is_made(command: Command, config: Path) -> None:
    made = command("tokens", "create", "--caller", "ann", "--scope", "read", "--config", config)
    secret = made.out.strip()
    assert secret.startswith("tcrib_")
    assert "It is not shown again." in made.err
    assert "No gateway accepts it yet" not in made.err
    listed = command("tokens", "list", "--config", config).out
    assert secret.split("_")[1] in listed
    assert secret.rpartition("_")[2] not in listed


def test_the_list_says_who_uses_each_key_and_until_when(command: Command, config: Path) -> None:
    create(command, config, "--tenant", "acme", "--scope", "b", "--scope", "a", "--role", "editor", "--note", "laptop")
    create(command, config, "--expires", "never")
    one, other = command("tokens", "list", "--config", config, "--json").json
    assert (one["caller"], one["tenant"], one["scopes"], one["roles"]) == ("ann", "acme", ["a", "b"], ["editor"])
    assert (one["note"], other["expires"]) == ("laptop", None)
    assert one["expires"] > one["created"]
    assert {"token", "digest"}.isdisjoint(one)


def test_a_key_is_revoked_by_its_id_or_by_itself(command: Command, config: Path) -> None:
    first, second = create(command, config), create(command, config)
    assert command("tokens", "revoke", first["id"], "--config", config).out.startswith("Revoked")
    assert command("tokens", "revoke", second["token"], "--config", config, "--json").json == {"revoked": second["id"]}
    assert command("tokens", "list", "--config", config).out.strip() == "There are no API keys."
    again = command("tokens", "revoke", first["id"], "--config", config)
    assert (again.code, again.out) == (4, "")
    assert "No API key has the id" in again.err


def test_a_key_cannot_be_that_of_the_caller_at_this_machine(command: Command, config: Path) -> None:
    refused = command("tokens", "create", "--caller", "local", "--config", config)
    assert (refused.code, "caller at this machine" in refused.err) == (2, True)


@pytest.mark.parametrize("expires", ["", "0d", "tomorrow", "-1d", "9" * 9 + "d"])
def test_a_time_that_is_none_is_refused(command: Command, config: Path, expires: str) -> None:
    refused = command("tokens", "create", "--caller", "ann", "--expires", expires, "--config", config)
    assert refused.code == 2
    assert "is not a time" in refused.err


def test_without_a_store_that_lasts_no_key_is_made(command: Command, settings: SettingsFile) -> None:
    config = settings({"state": {"memory": True}})
    refused = command("tokens", "create", "--caller", "ann", "--config", config)
    assert (refused.code, refused.out) == (3, "")
    assert "no gateway would know the key" in refused.err


def test_a_key_that_no_gateway_accepts_comes_with_a_note(command: Command, settings: SettingsFile) -> None:
    made = command("tokens", "create", "--caller", "ann", "--config", settings({}))
    assert "set api_keys = true" in made.err
