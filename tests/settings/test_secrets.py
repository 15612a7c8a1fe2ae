"""No setting has a secret as its default."""

import dataclasses
import re
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

import toolcrib.options
from toolcrib import Settings, load_settings
from toolcrib.options import CallOptions, HttpOptions, ServerOptions
from toolcrib.registry import BackendConfig, Config
from toolcrib.settings.models import ToolcribTable

SECRET = re.compile(r"secret|token|password|passwd|credential|auth|(?:^|_)key$|headers|^env$|^args$|url")
NO_SECRETS = {
    "IdentityProviderOptions.client_auth": "the name of a method",
    "SurfaceOptions.tokens": "how tokens are counted",
    "SearchTable.tokens": "how tokens are counted",
    "ToolcribTable.tokens": "how tokens are counted",
    "ToolcribTable.auth": "a table, whose own fields are looked at",
    "Settings.auth": "the same",
    "ToolcribTable.secrets": "the same",
    "PointsOptions.token": "points for a word",
}
EMPTY: tuple[Any, ...] = (None, "", (), {}, [], frozenset())


def option_classes() -> Iterator[type]:
    """Every class of options, also those inside of others."""
    waiting: list[Any] = [getattr(toolcrib.options, name) for name in toolcrib.options.__all__]
    waiting += [Settings, BackendConfig, Config, ToolcribTable]
    seen: set[Any] = set()
    while waiting:
        made = waiting.pop()
        waiting += typing.get_args(made)
        if not isinstance(made, type) or made in seen:
            continue
        seen.add(made)
        if dataclasses.is_dataclass(made) or issubclass(made, BaseModel):
            yield made
            waiting += typing.get_type_hints(made).values()


def defaults(made: Any) -> Iterator[tuple[str, Any]]:
    """Each field with its default; those without one are left out."""
    if issubclass(made, BaseModel):
        for name, one in made.model_fields.items():
            if not one.is_required():
                yield name, one.get_default(call_default_factory=True)
        return
    for one in dataclasses.fields(made):
        if one.default is not dataclasses.MISSING:
            yield one.name, one.default
        elif one.default_factory is not dataclasses.MISSING:
            yield one.name, one.default_factory()


def test_no_setting_has_a_secret_as_its_default() -> None:
    looked_at = []
    for made in option_classes():
        for name, default in defaults(made):
            field = f"{made.__name__}.{name}"
            if not SECRET.search(name) or field in NO_SECRETS or isinstance(default, int | float):
                continue
            looked_at.append(field)
            assert default in EMPTY, field
    assert {"CallOptions.approval_key", "HttpOptions.tokens", "ServerOptions.headers", "TokenTable.env"} <= {*looked_at}


def test_the_settings_of_an_empty_file_hold_no_secret(tmp_path: typing.Any) -> None:
    file = tmp_path / "toolcrib.json"
    file.write_text('{"mcpServers": {}}')
    settings = load_settings(file, environ={})
    assert (settings.http.tokens, settings.gateway.calls.approval_key) == ((), None)
    assert (settings.http, settings.gateway.calls) == (HttpOptions(), CallOptions())


def test_options_that_hold_secrets_do_not_show_them() -> None:
    server = ServerOptions(name="a", url="https://me:hunter2@example.com", headers={"Authorization": "hunter2"})
    assert "hunter2" not in repr(
        (server, CallOptions(approval_key="hunter2" * 4), BackendConfig(name="a", url="http://hunter2"))
    )
