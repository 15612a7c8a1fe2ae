"""Access tokens of authorization servers: what is accepted, what is refused, and where clients are led."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from tests.server.issuer import RESOURCE, FakeIssuer, FakeNet

from toolcrib import Caller
from toolcrib.errors import InsufficientScope, NotAuthenticated, ServerUnavailable, SettingsError, ToolcribError
from toolcrib.options import AuthOptions, IssuerOptions
from toolcrib.server.auth.oauth import OAuthResource
from toolcrib.server.http.requests import AsgiRequest

pytestmark = pytest.mark.anyio

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}},
}
METADATA = "/.well-known/oauth-protected-resource"


def resource_of(
    *issuers: FakeIssuer, net: FakeNet | None = None, clock: Callable[[], float] = time.time, **auth: Any
) -> OAuthResource:
    options = {"resource": RESOURCE, "issuers": tuple(IssuerOptions(issuer=one.url) for one in issuers), **auth}
    return OAuthResource(AuthOptions(**options), fetch=net or FakeNet(*issuers), clock=clock)


async def caller_of(oauth: OAuthResource, token: str) -> Caller:
    with anyio.fail_after(5):
        return await oauth.authenticate({"authorization": f"Bearer {token}"})


async def refusal(oauth: OAuthResource, token: str) -> ToolcribError:
    with pytest.raises(ToolcribError) as refused:
        await caller_of(oauth, token)
    return refused.value


# -- what a token says -------------------------------------------------------------------------------------------------


async def test_the_claims_of_a_token_say_who_the_caller_is() -> None:
    login = FakeIssuer()
    token = login.token(sub="ann", scope="read write", roles=["editor"], groups=["eng", "ops"])
    caller = await caller_of(resource_of(login), token)
    assert (caller.id, caller.tenant, caller.issuer) == ("ann", login.url, login.url)
    assert caller.scopes == {"read", "write"}
    assert caller.roles == {"editor"}
    assert caller.groups == {"eng", "ops"}


async def test_claims_are_mapped_as_the_settings_say() -> None:
    login = FakeIssuer()
    options = IssuerOptions(
        issuer=login.url,
        caller_claim="oid",
        tenant_claim="org.id",
        tenants=("acme",),
        scopes_claim="scp",
        roles_claim="realm_access.roles",
        groups_claim="https://acme.example/groups",
    )
    token = login.token(
        oid="42",
        org={"id": "acme"},
        scp=["a", "b"],
        realm_access={"roles": ["r"]},
        claims={"https://acme.example/groups": "g h"},
    )
    caller = await caller_of(resource_of(login, issuers=(options,)), token)
    assert (caller.id, caller.tenant) == ("42", "acme")
    assert (sorted(caller.scopes), sorted(caller.roles), sorted(caller.groups)) == (["a", "b"], ["r"], ["g", "h"])
    other = login.token(oid="42", org={"id": "evil"})
    assert "tenant is not one that is accepted" in str(await refusal(resource_of(login, issuers=(options,)), other))


async def test_callers_of_two_issuers_with_one_subject_are_two_callers() -> None:
    ours, theirs = FakeIssuer("https://login.example/ours"), FakeIssuer("https://login.example/theirs")
    oauth = resource_of(ours, theirs)
    one, other = await caller_of(oauth, ours.token()), await caller_of(oauth, theirs.token())
    assert (one.id, other.id) == ("ann", "ann")
    assert one.tenant != other.tenant
    assert one.key != other.key


async def test_an_issuer_names_tenants_of_its_own_only() -> None:
    login = FakeIssuer()
    own = IssuerOptions(issuer=login.url, tenant_claim="org", tenants=("acme", "test-*"))
    oauth = resource_of(login, issuers=(own,))
    for tenant in ("acme", "test-7"):
        assert (await caller_of(oauth, login.token(org=tenant))).tenant == tenant
    for tenant in ("globex", "acme-7", "test", "*"):
        assert "tenant is not one that is accepted" in str(await refusal(oauth, login.token(org=tenant)))


def test_an_issuer_that_may_name_any_tenant_is_refused_unless_the_settings_say_so() -> None:
    any_tenant: dict[str, Any] = {"issuer": "https://a.example", "tenant_claim": "org"}
    with pytest.raises(SettingsError, match="needs tenants"):
        OAuthResource(AuthOptions(issuers=(IssuerOptions(**any_tenant),), resource=RESOURCE))
    OAuthResource(AuthOptions(issuers=(IssuerOptions(**any_tenant, tenants=("*",)),), resource=RESOURCE))
    with pytest.raises(SettingsError, match="at the end"):
        OAuthResource(AuthOptions(issuers=(IssuerOptions(**any_tenant, tenants=("a*b",)),), resource=RESOURCE))


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ({"tenant": "acme"}, {"tenant": "acme"}, "could be confused"),
        ({"tenant_claim": "org"}, {}, "needs tenants"),
        ({"tenant_claim": "org", "tenants": ("acme",)}, {"tenant": "acme"}, "could be confused"),
        (
            {"tenant_claim": "org", "tenants": ("a", "b")},
            {"tenant_claim": "org", "tenants": ("b",)},
            "could be confused",
        ),
        ({"tenant_claim": "org", "tenants": ("acme-*",)}, {"tenant": "acme-7"}, "could be confused"),
        ({"tenant": "acme"}, {"tenant_claim": "org", "tenants": ("*",)}, "could be confused"),
        (
            {"tenant_claim": "org", "tenants": ("a*",)},
            {"tenant_claim": "org", "tenants": ("ab*",)},
            "could be confused",
        ),
    ],
)
def test_issuers_that_could_name_each_others_callers_are_refused(
    one: dict[str, Any], other: dict[str, Any], problem: str
) -> None:
    issuers = (IssuerOptions(issuer="https://a.example", **one), IssuerOptions(issuer="https://b.example", **other))
    with pytest.raises(SettingsError, match=problem):
        OAuthResource(AuthOptions(issuers=issuers, resource=RESOURCE))


# -- what is refused ---------------------------------------------------------------------------------------------------


def unsigned(header: Mapping[str, Any], claims: Mapping[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def of_hmac(login: FakeIssuer) -> str:
    """A token signed with the public key as an HMAC secret."""
    pem = login.private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    unsigned_token = unsigned({"alg": "HS256", "typ": "JWT", "kid": login.kid}, login.claims()).rstrip(".")
    signature = hmac.new(pem, unsigned_token.encode(), hashlib.sha256).digest()
    return f"{unsigned_token}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def of_another_key(login: FakeIssuer) -> str:
    stranger = FakeIssuer(login.url)
    return stranger.token(headers={"kid": login.kid})


NOW = int(time.time())
REFUSED: Mapping[str, tuple[Callable[[FakeIssuer], str], str]] = {
    "another audience": (lambda it: it.token(aud="https://other.example/mcp"), "another server"),
    "an audience that begins alike": (lambda it: it.token(aud=f"{RESOURCE}.evil.example"), "another server"),
    "no audience": (lambda it: it.token(aud=None), "not valid"),
    "another issuer": (lambda it: it.token(iss="https://evil.example"), "issuer is not one that is accepted"),
    "an issuer with a slash more": (lambda it: it.token(iss=f"{it.url}/"), "issuer is not one that is accepted"),
    "no issuer": (lambda it: it.token(iss=None), "not valid"),
    "another key": (of_another_key, "not signed by a key"),
    "no signature": (lambda it: unsigned({"alg": "none", "kid": it.kid}, it.claims()), "algorithm is not accepted"),
    "no signature, spelt oddly": (lambda it: unsigned({"alg": "NoNe"}, it.claims()), "algorithm is not accepted"),
    "the public key as a secret": (of_hmac, "algorithm is not accepted"),
    "expired": (lambda it: it.token(exp=NOW - 60), "has expired"),
    "without expiry": (lambda it: it.token(exp=None), "not valid"),
    "not valid yet": (lambda it: it.token(nbf=NOW + 3600), "not valid yet"),
    "issued in the future": (lambda it: it.token(iat=NOW + 3600), "not valid yet"),
    "an ID token": (lambda it: it.token(nonce="n"), "not an access token"),
    "an ID token of Keycloak": (lambda it: it.token(typ="ID"), "not an access token"),
    "another type": (lambda it: it.token(headers={"typ": "logout+jwt"}), "not an access token"),
    "unknown extensions": (lambda it: it.token(headers={"crit": ["x"], "x": 1}), "not valid"),
    "an unknown key": (lambda it: it.token(headers={"kid": "unknown"}), "not signed by a key"),
    "no caller": (lambda it: it.token(sub=None), "who its caller is"),
    "an empty caller": (lambda it: it.token(sub=" "), "who its caller is"),
    "an endless caller": (lambda it: it.token(sub="x" * 300), "who its caller is"),
    "no JWT": (lambda it: "opaque", "not valid"),
    "broken": (lambda it: it.token()[:-4], "not"),
    "half a JWT": (lambda it: it.token().rpartition(".")[0], "not valid"),
    "nested too deeply": (lambda it: unsigned({"alg": "ES256"}, {}) + "." * 5, "not valid"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_token_that_does_not_fit_is_refused(name: str) -> None:
    login = FakeIssuer()
    make, reason = REFUSED[name]
    oauth = resource_of(login)
    assert (await caller_of(oauth, login.token())).id == "ann"
    error = await refusal(oauth, make(login))
    assert isinstance(error, NotAuthenticated)
    assert reason in str(error)


async def test_a_token_of_one_issuer_does_not_verify_with_the_keys_of_another() -> None:
    ours, theirs = FakeIssuer("https://a.example"), FakeIssuer("https://b.example")
    theirs.keys = [theirs.published(ours.kid)]
    error = await refusal(resource_of(ours, theirs), theirs.token(iss=ours.url, headers={"kid": ours.kid}))
    assert "not signed by a key" in str(error)


@pytest.mark.parametrize(
    "published",
    [{"use": "enc"}, {"key_ops": ["encrypt"]}, {"alg": "ES384"}, {"kty": "oct", "k": "c2VjcmV0"}, {"crv": "secp256k1"}],
)
async def test_a_key_that_is_for_something_else_verifies_nothing(published: dict[str, Any]) -> None:
    login = FakeIssuer()
    login.keys = [login.published(login.kid, **published)]
    assert "not signed by a key" in str(await refusal(resource_of(login), login.token()))


@pytest.mark.parametrize(("bits", "fits"), [(1024, False), (2048, True)])
async def test_rsa_keys_have_a_least_size(bits: int, fits: bool) -> None:
    login = FakeIssuer()
    key = rsa.generate_private_key(65537, bits)
    login.keys = [{**RSAAlgorithm.to_jwk(key.public_key(), as_dict=True), "kid": "r"}]
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    if not fits:
        with pytest.warns(jwt.InsecureKeyLengthWarning):
            token = jwt.encode(login.claims(), pem, algorithm="RS256", headers={"kid": "r"})
        assert "not valid" in str(await refusal(resource_of(login), token))
        return
    token = jwt.encode(login.claims(), pem, algorithm="RS256", headers={"kid": "r"})
    assert (await caller_of(resource_of(login), token)).id == "ann"
    only_ec = resource_of(login, algorithms=("ES256",))
    assert "algorithm is not accepted" in str(await refusal(only_ec, token))


async def test_the_leeway_is_a_setting() -> None:
    login = FakeIssuer()
    token = login.token(exp=int(time.time()) - 60)
    assert (await caller_of(resource_of(login, leeway_s=120), token)).id == "ann"
    assert "has expired" in str(await refusal(resource_of(login, leeway_s=0), token))


async def test_an_audience_of_the_settings_replaces_the_address() -> None:
    login = FakeIssuer()
    issuers = (IssuerOptions(issuer=login.url, audience=("api://tools",)),)
    oauth = resource_of(login, issuers=issuers)
    assert (await caller_of(oauth, login.token(aud=["other", "api://tools"]))).id == "ann"
    assert "another server" in str(await refusal(oauth, login.token()))


@pytest.mark.parametrize("audience", [f"{RESOURCE}/", "HTTPS://TOOLS.EXAMPLE/mcp"])
async def test_the_address_is_compared_as_addresses_are(audience: str) -> None:
    login = FakeIssuer()
    assert (await caller_of(resource_of(login), login.token(aud=audience))).id == "ann"


async def test_an_id_token_is_accepted_where_the_settings_say_so() -> None:
    login = FakeIssuer()
    issuers = (IssuerOptions(issuer=login.url, id_tokens=True),)
    assert (await caller_of(resource_of(login, issuers=issuers), login.token(nonce="n"))).id == "ann"


async def test_a_token_without_the_scopes_that_all_need_says_which() -> None:
    login = FakeIssuer()
    error = await refusal(resource_of(login, scopes=("tools", "read")), login.token(scope="read"))
    assert isinstance(error, InsufficientScope)
    assert error.data["scopes"] == ["read", "tools"]


# -- keys --------------------------------------------------------------------------------------------------------------


async def test_a_verified_token_needs_no_issuer_any_more() -> None:
    login = FakeIssuer()
    net = FakeNet(login)
    oauth = resource_of(login, net=net)
    token = login.token()
    await caller_of(oauth, token)
    login.is_down = True
    assert (await caller_of(oauth, token)).id == "ann"
    assert net.asked == [f"{login.url}/.well-known/openid-configuration", f"{login.url}/keys"]


@pytest.mark.parametrize(("lifetime_s", "passed_s"), [(100, 131), (3600, 301)])
async def test_a_remembered_token_is_looked_at_again_when_it_expires_and_every_five_minutes(
    lifetime_s: int, passed_s: int
) -> None:
    login, now = FakeIssuer(), [time.time()]
    oauth = resource_of(login, clock=lambda: now[0])
    token = login.token(exp=int(now[0]) + lifetime_s)
    await caller_of(oauth, token)
    oauth._realms[""].issuers.clear()  # another look finds no issuer
    now[0] += passed_s - 2
    assert (await caller_of(oauth, token)).id == "ann"
    now[0] += 3
    assert "issuer is not one that is accepted" in str(await refusal(oauth, token))


async def test_a_new_key_is_read_when_a_token_names_it() -> None:
    login = FakeIssuer()
    oauth = resource_of(login)
    await caller_of(oauth, login.token())
    keys = oauth._realms[""].issuers[login.url]._keys
    login.rotate("second")
    keys._tried_at = -1e9  # the last reading is long ago
    assert (await caller_of(oauth, login.token())).id == "ann"


async def test_a_flood_of_unknown_keys_is_one_question_to_the_issuer() -> None:
    login = FakeIssuer()
    net = FakeNet(login)
    oauth = resource_of(login, net=net)
    await caller_of(oauth, login.token())
    before = len(net.asked)
    for number in range(100):
        assert "not signed" in str(await refusal(oauth, login.token(headers={"kid": f"k{number}"})))
    assert len(net.asked) - before <= 2
    assert (await caller_of(oauth, login.token(sub="bob"))).id == "bob"


async def test_many_first_requests_read_the_keys_once() -> None:
    login = FakeIssuer()
    net = FakeNet(login)
    oauth = resource_of(login, net=net)
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(caller_of, oauth, login.token(sub=f"user{number % 5}"))
    assert len(net.asked) == 2


async def test_an_issuer_that_cannot_be_reached_is_not_the_fault_of_the_token() -> None:
    login = FakeIssuer()
    login.is_down = True
    error = await refusal(resource_of(login), login.token())
    assert isinstance(error, ServerUnavailable)


async def test_metadata_of_another_issuer_is_not_believed() -> None:
    login = FakeIssuer()

    async def fetch(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Any:
        if url.endswith("/keys"):
            return {"keys": login.keys}
        return {"issuer": "https://evil.example", "jwks_uri": f"{login.url}/keys"}

    oauth = OAuthResource(AuthOptions(resource=RESOURCE, issuers=(IssuerOptions(issuer=login.url),)), fetch=fetch)
    assert "names another issuer" in str(await refusal(oauth, login.token()))


async def test_keys_at_another_host_need_the_settings() -> None:
    login = FakeIssuer()

    async def fetch(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Any:
        if url == "https://keys.example/jwks":
            return {"keys": login.keys}
        return {"issuer": login.url, "jwks_uri": "https://keys.example/jwks"}

    def oauth(**more: Any) -> OAuthResource:
        issuer = IssuerOptions(issuer=login.url, **more)
        return OAuthResource(AuthOptions(resource=RESOURCE, issuers=(issuer,)), fetch=fetch)

    assert "at another host" in str(await refusal(oauth(), login.token()))
    assert (await caller_of(oauth(jwks_url="https://keys.example/jwks"), login.token())).id == "ann"


@pytest.mark.parametrize("keys", [{"keys": [{}] * 101}, {"keys": "none"}, [], None])
async def test_a_key_set_that_is_none_is_refused(keys: Any) -> None:
    login = FakeIssuer()

    async def fetch(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Any:
        return keys

    issuer = IssuerOptions(issuer=login.url, jwks_url="https://login.example/keys")
    oauth = OAuthResource(AuthOptions(resource=RESOURCE, issuers=(issuer,)), fetch=fetch)
    assert isinstance(await refusal(oauth, login.token()), ServerUnavailable)


# -- tokens that are no JWTs -------------------------------------------------------------------------------------------


def opaque(login: FakeIssuer) -> tuple[OAuthResource, FakeNet]:
    issuer = IssuerOptions(
        issuer=login.url,
        introspection_url=f"{login.url}/introspect",
        client_id="gateway",
        client_secret="a secret of the gateway",
    )
    net = FakeNet(login)
    return resource_of(login, net=net, issuers=(issuer,)), net


async def test_a_token_that_is_no_jwt_is_introspected_and_remembered() -> None:
    login = FakeIssuer()
    oauth, net = opaque(login)
    login.introspected["opaque-1"] = {"active": True, "sub": "ann", "aud": RESOURCE, "scope": "read"}
    caller = await caller_of(oauth, "opaque-1")
    await caller_of(oauth, "opaque-1")
    assert (caller.id, sorted(caller.scopes), caller.tenant) == ("ann", ["read"], login.url)
    assert net.users == [("gateway", "a secret of the gateway")]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"active": False, "sub": "ann", "aud": RESOURCE}, "not valid"),
        ({"active": "true", "sub": "ann", "aud": RESOURCE}, "not valid"),
        ({"active": True, "sub": "ann"}, "another server"),
        ({"active": True, "sub": "ann", "aud": "https://other.example"}, "another server"),
        ({"active": True, "sub": "ann", "aud": RESOURCE, "exp": 1}, "expired"),
        ({"active": True, "sub": "ann", "aud": RESOURCE, "iss": "https://evil.example"}, "another issuer"),
        ({"active": True, "aud": RESOURCE}, "who its caller is"),
    ],
)
async def test_an_introspected_token_that_does_not_fit_is_refused(answer: dict[str, Any], reason: str) -> None:
    login = FakeIssuer()
    oauth, _ = opaque(login)
    login.introspected["opaque-1"] = answer
    assert reason in str(await refusal(oauth, "opaque-1"))


def test_the_secret_for_introspection_is_never_shown() -> None:
    issuer = IssuerOptions(issuer="https://login.example", client_id="me", client_secret="hush-hush-hush")
    assert "hush" not in repr(AuthOptions(issuers=(issuer,)))


@pytest.mark.parametrize("audience", ["http://[x", "https://\u2100.example"])
async def test_an_audience_that_is_no_address_is_that_of_another_server(audience: str) -> None:
    login = FakeIssuer()
    refused = await refusal(resource_of(login), login.token(sub="ann", aud=audience))
    assert isinstance(refused, NotAuthenticated)
    assert "another server" in refused.message


async def unused(*_: object) -> Any:
    raise AssertionError("only the head of the request is looked at")


async def test_a_moment_of_expiry_counts_as_text_and_one_beyond_all_numbers_is_none() -> None:
    login = FakeIssuer()
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": []}

    async def expires(moment: object) -> float | None:
        bearer = f"Bearer {login.token(sub='ann', exp=moment)}".encode()
        request = AsgiRequest({**scope, "headers": [(b"authorization", bearer)]}, unused, unused)
        return (await resource_of(login).identify(request)).expires

    soon = int(time.time()) + 100
    assert await expires(str(soon)) == await expires(soon)
    assert await expires(10**400) is None


async def test_an_issuer_is_asked_about_a_few_made_up_tokens_at_a_time() -> None:
    login = FakeIssuer()
    asked, answer = list[str](), anyio.Event()

    async def fetch(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Any:
        asked.append(url)
        await answer.wait()
        return {"active": False}

    options = IssuerOptions(
        issuer=login.url, introspection_url=f"{login.url}/introspect", client_id="c", client_secret="s"
    )
    oauth = OAuthResource(AuthOptions(resource=RESOURCE, issuers=(options,)), fetch=fetch)

    async def send(number: int) -> None:
        with pytest.raises(NotAuthenticated):
            await oauth.authenticate({"authorization": f"Bearer made-up-{number}"})

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            for number in range(100):
                group.start_soon(send, number)
            await anyio.wait_all_tasks_blocked()
            assert 1 < len(asked) <= 20
            answer.set()
    assert len(asked) == 100


async def test_a_flood_of_made_up_tokens_is_refused_and_stops_no_one_who_was_let_in_before() -> None:
    login, now, answer = FakeIssuer(), [time.time()], anyio.Event()

    async def fetch(url: str, form: Mapping[str, str] | None = None, auth: tuple[str, str] | None = None) -> Any:
        assert form is not None
        if form["token"] != "of-ann":
            await answer.wait()
            return {"active": False}
        return {"active": not login.is_down, "sub": "ann", "aud": RESOURCE}

    options = IssuerOptions(
        issuer=login.url, introspection_url=f"{login.url}/introspect", client_id="c", client_secret="s"
    )
    oauth = OAuthResource(AuthOptions(resource=RESOURCE, issuers=(options,)), fetch=fetch, clock=lambda: now[0])
    refused = list[type[Exception]]()

    async def send(number: int) -> None:
        try:
            await oauth.authenticate({"authorization": f"Bearer made-up-{number}"})
        except (NotAuthenticated, ServerUnavailable) as error:
            refused.append(type(error))

    with anyio.fail_after(30):
        await caller_of(oauth, "of-ann")
        async with anyio.create_task_group() as group:
            for number in range(300):
                group.start_soon(send, number)
            await anyio.wait_all_tasks_blocked()
            now[0] += 31  # the token is due for another look
            assert (await caller_of(oauth, "of-ann")).id == "ann"
            login.is_down, now[0] = True, now[0] + 31
            assert "not valid" in str(await refusal(oauth, "of-ann"))
            with pytest.raises(ServerUnavailable, match="too much"):  # a stranger from then on
                await caller_of(oauth, "of-ann")
            answer.set()
    assert refused.count(ServerUnavailable) == 300 - 16 - 100
    assert refused.count(NotAuthenticated) == 16 + 100
