"""The table `guards`: when an agent loop is warned that it repeats itself."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.app import App
from toolcrib.discovery.guards import GuardOptions
from toolcrib.errors import SettingsError
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]


def guards(**fields: Any) -> str:
    return json.dumps({"toolcrib": {"surfaces": ["dynamic"], "guards": fields}}, indent=1)


def test_every_key_sets_its_option(loading: Loading) -> None:
    settings = loading(guards(repeats=3, misses=2, lookups=20, refuse=True))
    assert settings.surfaces.guards == GuardOptions(repeats=3, misses=2, lookups=20, refuse=True)


def test_without_the_table_only_guessed_names_are_looked_at(loading: Loading) -> None:
    assert loading(guards()).surfaces.guards == loading('{"toolcrib": {}}').surfaces.guards == GuardOptions()


def test_false_switches_a_guard_off(loading: Loading) -> None:
    settings = loading(guards(repeats=False, misses=False, lookups=False, refuse=False))
    assert settings.surfaces.guards == GuardOptions(misses=None)


async def test_the_surface_of_an_app_is_guarded_as_the_settings_say(loading: Loading) -> None:
    app = App(loading(guards(lookups=1)))
    notes = []
    async with app:
        for _ in range(2):
            result = await app.facade.call(app.local_context(), "list_tools", {})
            assert isinstance(result.structured, dict)
            notes.append(result.structured.get("note", ""))
    assert notes[0] == ""
    assert notes[1].startswith("This is lookup 2 in a row without a call.")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"repeats": 0}, "mcp.json:7: toolcrib.guards.repeats must be a whole number of at least 1, or false, not 0"),
        ({"misses": True}, "toolcrib.guards.misses must be a whole number of at least 1, or false, not true"),
        ({"lookups": "20"}, 'toolcrib.guards.lookups must be a whole number of at least 1, or false, not "20"'),
        ({"refuse": 1}, "mcp.json:7: toolcrib.guards.refuse must be true or false, not 1"),
        ({"repeat": 3}, 'mcp.json:7: toolcrib.guards.repeat is not a setting; did you mean "repeats"?'),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_and_field(loading: Loading, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(guards(**fields))
    assert said in caught.value.message


def test_guards_that_are_no_table_are_refused(loading: Loading) -> None:
    with pytest.raises(SettingsError, match=r"toolcrib\.guards must be an object, not 3"):
        loading('{"toolcrib": {"guards": 3}}')
