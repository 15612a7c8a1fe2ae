"""The `auth` of a server's entry, and the table `logins`."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.settings.conftest import Loading

from toolcrib.errors import SettingsError
from toolcrib.upstream.options import IdentityProviderOptions, LoginOptions, OAuthClientOptions, ServerOptions

URL = "https://mcp.example/mcp"


def entry(loading: Loading, auth: Any, **environ: str) -> ServerOptions:
    return loading(json.dumps({"mcpServers": {"s": {"url": URL, "auth": auth}}}), **environ).servers[0]


def test_oauth_is_all_that_a_server_of_the_specification_needs(loading: Loading) -> None:
    assert entry(loading, "oauth").auth == OAuthClientOptions()
    assert entry(loading, None).auth is None


def test_every_key_of_a_login_sets_its_option(loading: Loading) -> None:
    auth = {
        "grant": "client_credentials",
        "issuer": "https://login.example/${REALM}",
        "clientId": "me",
        "client_secret": "${SECRET}",
        "client_auth": "client_secret_post",
        "scopes": ["a", "b"],
        "resource": False,
        "parameters": {"accessType": "offline"},
        "audience": ["x"],
        "allowed_hosts": ["sso.internal"],
    }
    assert entry(loading, auth, SECRET="s3cret", REALM="acme").auth == OAuthClientOptions(
        grant="client_credentials",
        issuer="https://login.example/acme",
        client_id="me",
        client_secret="s3cret",
        client_auth="client_secret_post",
        scopes=("a", "b"),
        resource=False,
        parameters={"accessType": "offline"},
        audience=("x",),
        allowed_hosts=("sso.internal",),
    )


def test_an_identity_provider_has_credentials_of_its_own(loading: Loading) -> None:
    provider = {"issuer": "https://idp.example", "clientId": "at-idp", "clientSecret": "${IDP}", "subject": "id_token"}
    own = {"issuer": "https://a.example", "client_id": "me", "client_secret": "${SECRET}"}
    auth = {"grant": "identity_assertion", **own, "identityProvider": provider}
    found = entry(loading, auth, SECRET="s3cret", IDP="idp-s3cret").auth
    assert found is not None
    assert found.identity_provider == IdentityProviderOptions(
        issuer="https://idp.example", client_id="at-idp", client_secret="idp-s3cret", subject="id_token"
    )
    assert "s3cret" not in repr(found)
    literal = {**auth, "identityProvider": {**provider, "clientSecret": "literal-secret"}}
    assert "does not belong in this file" in entry(loading, literal, SECRET="s3cret").problem


@pytest.mark.parametrize(
    ("auth", "problem"),
    [
        ("basic", 'must be "oauth" or a table'),
        ({"client_id": "me", "client_secret": "literal-secret"}, "does not belong in this file"),
        ({"client_id": "me", "client_secret": "${MISSING}"}, "MISSING is not set"),
        ({"issuer": "http://login.example"}, "must begin with https://"),
        ({"grant": "forward"}, "forward needs audience"),
        ({"grant": "password"}, "grant"),
        ({"clientt_id": "me"}, "client_id"),
    ],
)
def test_a_mistake_disables_that_server_and_names_no_secret(loading: Loading, auth: Any, problem: str) -> None:
    server = entry(loading, auth)
    assert problem in server.problem
    assert "literal-secret" not in server.problem


def test_secrets_are_left_out_of_the_options_as_text(loading: Loading) -> None:
    auth = {"issuer": "https://a.example", "client_id": "me", "client_secret": "${SECRET}"}
    assert "s3cret" not in repr(entry(loading, auth, SECRET="s3cret"))


def test_the_key_of_the_vault_comes_from_the_environment_or_a_file_beside_the_state(loading: Loading) -> None:
    text = json.dumps({"toolcrib": {"logins": {"public_url": "https://gw.example", "callback_port": 8765, "wait": 60}}})
    found = loading(text, XDG_STATE_HOME="/kept", TOOLCRIB_VAULT_KEY="key").fleet.logins
    assert found == LoginOptions(
        key="key",
        key_file=Path("/kept/toolcrib/logins.key"),
        public_url="https://gw.example",
        callback_port=8765,
        wait_s=60,
    )
    assert "'key'" not in repr(found)


def test_where_the_key_of_the_vault_is_counts_among_the_secrets(loading: Loading, tmp_path: Path) -> None:
    def sources(**environ: str) -> list[str]:
        found = loading(json.dumps({"toolcrib": {}}), XDG_STATE_HOME=str(tmp_path), **environ).secrets
        return [secret.source for secret in found if secret.where == "the key of stored logins"]

    assert sources() == []
    key_file = tmp_path / "toolcrib" / "logins.key"
    key_file.parent.mkdir()
    key_file.write_text("k" * 32)
    assert sources() == [f"the file: {key_file}"]
    assert sources(TOOLCRIB_VAULT_KEY="k" * 32) == ["the variable TOOLCRIB_VAULT_KEY"]


def test_a_public_url_must_be_safe(loading: Loading) -> None:
    with pytest.raises(SettingsError, match="must begin with https://"):
        loading(json.dumps({"toolcrib": {"logins": {"public_url": "http://gw.example"}}}))
