"""The section `toolcrib` of a settings file: every key is ours, so an unknown one is an error."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.sessions import SessionOptions
from toolcrib.protocols import Policy
from toolcrib.server.options import HttpOptions
from toolcrib.settings import guards as guards_table
from toolcrib.settings import policy as policy_table
from toolcrib.settings import scripts as scripts_table
from toolcrib.settings import search as search_table
from toolcrib.settings.calls import Calls
from toolcrib.settings.document import Problems
from toolcrib.settings.jsonc import Field
from toolcrib.settings.options import LocalOptions
from toolcrib.settings.scripts import ScriptTable
from toolcrib.settings.section import Section, closest, kind, over, shown
from toolcrib.settings.tokens import Tokens
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.tokens import ENCODINGS, ESTIMATE
from toolcrib.upstream.options import FleetOptions, ServerOptions

AT: Final[Field] = ("toolcrib",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The section, in each package's terms."""

    fleet: FleetOptions
    gateway: GatewayOptions
    surfaces: SurfaceOptions
    local: LocalOptions
    policy: Policy | None
    scripts: ScriptTable
    http: HttpOptions
    defaults: ServerOptions
    """Deadlines and sizes of servers that set none."""


def read(value: Any, problems: Problems, tokens: Tokens, calls: Calls) -> Own:
    """The section's values over the defaults of each package."""
    if not isinstance(value, dict):
        problems.add(AT, f"must be an object, not {kind(value)}")
        value = {}
    own = Section(value, AT, problems)
    timeouts, search = _table(own, "timeouts"), _table(own, "search")
    read = Own(
        fleet=_fleet(own),
        gateway=replace(
            _gateway(own, search, timeouts, tokens.folder),
            calls=calls.read(_table(own, "calls")),
            sessions=_sessions(own),
        ),
        surfaces=_surfaces(own, search),
        local=_local(own),
        policy=policy_table.read(own.section("policy")),
        scripts=scripts_table.read(_table(own, "scripts"), tokens.folder),
        http=_http(own, tokens),
        defaults=_defaults(own, timeouts),
    )
    timeouts.refuse_unknown()
    search.refuse_unknown()
    own.refuse_unknown()
    return read


def _table(own: Section, key: str) -> Section:
    """The table of that name, empty where there is none."""
    return own.section(key) or Section({}, AT, own.problems)


def _fleet(own: Section) -> FleetOptions:
    backoff = _table(own, "backoff")
    first, most = backoff.seconds("first"), backoff.seconds("max")
    options = over(FleetOptions(), backoff_first_s=first, backoff_max_s=most)
    if options.backoff_first_s > options.backoff_max_s:
        backoff.problems.add(backoff.at, f"has first above max, which is {options.backoff_max_s:g}")
    backoff.refuse_unknown()
    return options


def _gateway(own: Section, search: Section, timeouts: Section, folder: Path) -> GatewayOptions:
    providers = _table(own, "providers")
    options = over(
        search_table.read(search, folder),
        start_grace_s=timeouts.seconds("start_grace"),
        call_grace_s=timeouts.seconds("call_grace"),
        find_timeout_s=timeouts.seconds("find"),
        list_timeout_s=providers.seconds("list_timeout"),
        provider_cache_s=providers.seconds("cache"),
        request_tools=providers.count("request_tools", low=0),
    )
    providers.refuse_unknown()
    return options


def _sessions(own: Section) -> SessionOptions:
    table = _table(own, "sessions")
    options = over(
        SessionOptions(),
        learn=table.flag("learn"),
        sessions=table.count("sessions", low=1),
        pause_s=table.seconds("pause"),
    )
    table.refuse_unknown()
    return options


def _local(own: Section) -> LocalOptions:
    table = _table(own, "local")
    options = over(LocalOptions(), max_threads=table.count("max_threads", low=1), mask_errors=table.flag("mask_errors"))
    table.refuse_unknown()
    return options


def _surfaces(own: Section, search: Section) -> SurfaceOptions:
    names = own.texts("surfaces")
    for position, name in enumerate(names or ()):
        if name not in SURFACES:
            near = closest(name, set(SURFACES))
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(SURFACES)}"
            own.problems.add((*AT, str(own.spelling("surfaces")), position), f"{shown(name)} is no surface; {hint}")
    if names == ():
        own.problems.add((*AT, str(own.spelling("surfaces"))), f"must name one of {', '.join(SURFACES)}")
    options = over(
        SurfaceOptions(),
        surfaces=None if names is None else tuple(dict.fromkeys(names)),
        always_visible=own.texts("always_visible"),
        instructions=own.text("instructions"),
        meta_only=own.flag("meta_only"),
        call_many=own.flag("call_many"),
        summary=own.flag("summary"),
        guards=guards_table.read(_table(own, "guards")),
        prefix=own.flag("prefix"),
        digest_tokens=own.count("digest_tokens", low=0),
        list_page_bytes=own.count("list_page_bytes", low=1024),
        reply_tokens=own.count("reply_tokens", low=0),
        tokens=search.choice("tokens", (ESTIMATE, *ENCODINGS)),
    )
    if options.meta_only and "direct" in options.surfaces:
        at = (*AT, str(own.spelling("meta_only")))
        own.problems.add(at, "leaves nothing of the surface direct, which lists every tool by name; keep one")
    return options


def _http(own: Section, tokens: Tokens) -> HttpOptions:
    http = _table(own, "http")
    path = http.text("path")
    if path is not None and not path.startswith("/"):
        http.wrong(str(http.spelling("path")), 'must begin with "/"', path)
    options = over(
        HttpOptions(),
        host=http.text("host"),
        port=http.count("port", low=0, high=65535),
        path=path,
        tokens=tokens.read(http),
        allowed_hosts=http.texts("allowed_hosts"),
        allowed_origins=http.texts("allowed_origins"),
        max_body_bytes=http.count("max_body_bytes", low=1024),
        drain_s=http.seconds("drain"),
    )
    http.refuse_unknown()
    return options


def _defaults(own: Section, timeouts: Section) -> ServerOptions:
    return over(
        ServerOptions(name="", transport="stdio"),
        start_timeout_s=timeouts.seconds("start"),
        list_timeout_s=timeouts.seconds("list"),
        call_timeout_s=timeouts.seconds("call"),
        find_timeout_s=timeouts.seconds("find"),
        max_message_bytes=own.count("max_message_bytes", low=1024),
    )
