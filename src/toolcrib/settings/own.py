"""The section `toolcrib` of a settings file: every key is ours, so an unknown one is an error."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toolcrib.gateway.options import GatewayOptions
from toolcrib.server.options import HttpOptions
from toolcrib.settings import search as search_table
from toolcrib.settings.document import Problems
from toolcrib.settings.jsonc import Field
from toolcrib.settings.section import Section, closest, kind, over, shown
from toolcrib.settings.tokens import Tokens
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.tokens import ENCODINGS, ESTIMATE
from toolcrib.upstream.options import FleetOptions, ServerOptions

AT: Final[Field] = ("toolcrib",)
SURFACES: Final = ("search", "direct")


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The section, in each package's terms."""

    fleet: FleetOptions
    gateway: GatewayOptions
    surfaces: SurfaceOptions
    http: HttpOptions
    defaults: ServerOptions
    """Deadlines and sizes of servers that set none."""


def read(value: Any, problems: Problems, tokens: Tokens) -> Own:
    """The section's values over the defaults of each package."""
    if not isinstance(value, dict):
        problems.add(AT, f"must be an object, not {kind(value)}")
        value = {}
    own = Section(value, AT, problems)
    timeouts = own.section("timeouts") or Section({}, AT, problems)
    search = own.section("search") or Section({}, AT, problems)
    read = Own(
        fleet=_fleet(own),
        gateway=_gateway(search, timeouts, tokens.folder),
        surfaces=_surfaces(own, search),
        http=_http(own, tokens),
        defaults=_defaults(own, timeouts),
    )
    timeouts.refuse_unknown()
    search.refuse_unknown()
    own.refuse_unknown()
    return read


def _fleet(own: Section) -> FleetOptions:
    backoff = own.section("backoff") or Section({}, AT, own.problems)
    first, most = backoff.seconds("first"), backoff.seconds("max")
    options = over(FleetOptions(), backoff_first_s=first, backoff_max_s=most)
    if options.backoff_first_s > options.backoff_max_s:
        backoff.problems.add(backoff.at, f"has first above max, which is {options.backoff_max_s:g}")
    backoff.refuse_unknown()
    return options


def _gateway(search: Section, timeouts: Section, folder: Path) -> GatewayOptions:
    return over(
        search_table.read(search, folder),
        start_grace_s=timeouts.seconds("start_grace"),
        call_grace_s=timeouts.seconds("call_grace"),
    )


def _surfaces(own: Section, search: Section) -> SurfaceOptions:
    names = own.texts("surfaces")
    for position, name in enumerate(names or ()):
        if name not in SURFACES:
            near = closest(name, set(SURFACES))
            hint = f'did you mean "{near}"?' if near else f"there are {', '.join(SURFACES)}"
            own.problems.add((*AT, str(own.spelling("surfaces")), position), f"{shown(name)} is no surface; {hint}")
    if names == ():
        own.problems.add((*AT, str(own.spelling("surfaces"))), f"must name one of {', '.join(SURFACES)}")
    return over(
        SurfaceOptions(),
        surfaces=None if names is None else tuple(dict.fromkeys(names)),
        always_visible=own.texts("always_visible"),
        prefix=own.flag("prefix"),
        digest_tokens=own.count("digest_tokens", low=0),
        list_page_bytes=own.count("list_page_bytes", low=1024),
        reply_tokens=own.count("reply_tokens", low=0),
        tokens=search.choice("tokens", (ESTIMATE, *ENCODINGS)),
    )


def _http(own: Section, tokens: Tokens) -> HttpOptions:
    http = own.section("http") or Section({}, AT, own.problems)
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
        max_message_bytes=own.count("max_message_bytes", low=1024),
    )
