"""The section `toolcrib` of a settings file. Unknown keys are errors."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from toolcrib.discovery.guards import GuardOptions
from toolcrib.errors import ToolcribError
from toolcrib.gateway.options import GatewayOptions, ScriptOptions, SessionOptions
from toolcrib.gateway.policy import ByScopes, Effect, Rule
from toolcrib.middleware.options import (
    ApprovalMode,
    BreakerOptions,
    CacheOptions,
    CallOptions,
    RateOptions,
    RetryOptions,
)
from toolcrib.names import check_name
from toolcrib.sandbox.limits import Limits, SandboxOptions, Seccomp
from toolcrib.schema import Schema
from toolcrib.scripting.stored import read_script, script_files
from toolcrib.search.options import Scorer, SearchOptions
from toolcrib.server.options import HttpOptions, Token
from toolcrib.settings.document import FieldPath, Problems, dotted
from toolcrib.settings.document import read_file as read_document
from toolcrib.settings.env import VariableExpander, VariableSource
from toolcrib.settings.options import LocalOptions
from toolcrib.settings.section import Section, closest, is_pattern, kind, override, patterns, shown
from toolcrib.surfaces.options import SURFACES, SurfaceOptions
from toolcrib.tokens import ENCODINGS, ESTIMATE
from toolcrib.types import Action, Policy
from toolcrib.upstream.options import FleetOptions, ServerOptions

AT: Final[FieldPath] = ("toolcrib",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptTable:
    """The table, in each package's terms."""

    options: ScriptOptions
    limits: Limits
    sandbox: SandboxOptions
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolcribSection:
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


@dataclass(slots=True)
class TokenReader:
    """Reads tokens, and gathers why some are not to be had."""

    environ: Mapping[str, str]
    folder: Path
    missing: list[str] = field(default_factory=list)

    def read(self, http: Section) -> tuple[Token, ...]:
        """The tokens of `tokens`, of `tokens_file` and of the environment's own variable."""
        found = [*self._listed(http), *self._filed(http)]
        if secret := self.environ.get(AUTH_VARIABLE, "").strip():
            found.append(Token(secret=secret, caller="token"))
            if len(secret) < _SHORT:
                http.problems.warnings.append(f"{AUTH_VARIABLE} is {_GUESSABLE}")
        if len({token.secret for token in found}) < len(found):
            self.missing.append("two tokens have the same secret, so that they cannot be told apart")
        return tuple(found)

    def _listed(self, http: Section) -> list[Token]:
        found = [self._token(entry, self._place(entry)) for entry in http.sections("tokens")]
        return [token for token in found if token is not None]

    def _place(self, entry: Section) -> str | None:
        """The secret, from where the entry says it is."""
        variable, file = entry.text("env"), entry.text("file")
        if (variable is None) == (file is None):
            entry.problems.add(entry.at, "must say where its secret is: env (a variable) or file, one of them")
            return None
        secret = self._variable(variable, entry.at) if variable else self._file(str(file), entry.at)
        if secret is not None and len(secret) < _SHORT:
            entry.problems.warn(entry.at, f"is {_GUESSABLE}")
        return secret

    def _variable(self, name: str, at: FieldPath) -> str | None:
        secret = self.environ.get(name, "").strip()
        if not secret:
            self.missing.append(f"environment variable {name} is not set ({dotted((*at, 'env'))})")
        return secret or None

    def _file(self, name: str, at: FieldPath) -> str | None:
        try:
            secret = (self.folder / Path(name).expanduser()).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = "does not exist" if isinstance(error, FileNotFoundError) else "cannot be read"
            self.missing.append(f"the file {name} {why} ({dotted((*at, 'file'))})")
            return None
        if not secret:
            self.missing.append(f"the file {name} is empty ({dotted((*at, 'file'))})")
        return secret or None

    def _token(self, entry: Section, secret: str | None) -> Token | None:
        caller, tenant, scopes = entry.text("caller"), entry.text("tenant"), entry.texts("scopes")
        if caller is None and entry.spelling("caller") is None:
            entry.problems.add(entry.at, "must name its caller")
        for key in ("token", "secret", "value"):
            if entry.spelling(key):
                entry.problems.add((*entry.at, key), "does not belong in this file; name its place with env or file")
        entry.known -= {"token", "secret", "value"}
        self._refuse_unknown(entry)
        if secret is None or caller is None:
            return None
        return Token(secret=secret, caller=caller, tenant=tenant, scopes=frozenset(scopes or ()))

    def _refuse_unknown(self, entry: Section) -> None:
        plain = {key: value for key, value in entry.table.items() if key not in ("token", "secret", "value")}
        Section(plain, entry.at, entry.problems, entry.known).refuse_unknown()

    def _filed(self, http: Section) -> list[Token]:
        """The tokens of a file of their own: `{"tokens": [{"token", "caller", "tenant", "scopes"}]}`."""
        name = http.text("tokens_file")
        path = self.folder / Path(name).expanduser() if name else None
        if path is None:
            return []
        if not path.exists():
            self.missing.append(f"the file {name} does not exist ({dotted((*http.at, 'tokens_file'))})")
            return []
        document = read_document(path, str(name))
        problems = Problems(document)
        value: Any = document.value if isinstance(document.value, dict) else {}
        top = Section(value, (), problems)
        found = [self._token_with_secret(entry) for entry in top.sections("tokens")]
        if top.spelling("tokens") is None:
            problems.add((), 'must hold "tokens": a list of objects with token and caller')
        top.refuse_unknown()
        problems.raise_any()
        kept = [token for token in found if token is not None]
        if any(len(token.secret) < _SHORT for token in kept):
            http.problems.warn((*http.at, "tokens_file"), f"holds {_GUESSABLE}")
        return kept

    def _token_with_secret(self, entry: Section) -> Token | None:
        secret = entry.text("token", secret=True)
        caller, tenant, scopes = entry.text("caller"), entry.text("tenant"), entry.texts("scopes")
        for key, value in (("token", secret), ("caller", caller)):
            if value is None and entry.spelling(key) is None:
                entry.problems.add(entry.at, f"must have a {key}")
        entry.refuse_unknown()
        if secret is None or caller is None:
            return None
        return Token(secret=secret.strip(), caller=caller, tenant=tenant, scopes=frozenset(scopes or ()))


@dataclass(slots=True)
class CallsTable:
    """Reads the table, and gathers why its secret is not to be had."""

    surroundings: VariableSource
    missing: list[str] = field(default_factory=list)

    def read(self, calls: Section) -> CallOptions:
        """The table's values over the defaults."""
        options = override(
            CallOptions(),
            audit=_audit(calls),
            deadline_s=calls.seconds("deadline"),
            rate=_rate(calls.section("rate")),
            tool_rates=_tool_rates(calls),
            breaker=_breaker(calls.switched("breaker")),
            retry=_retry(calls.switched("retry")),
            cache=_call_cache(calls.switched("cache")),
            approval=calls.choice("approval", _APPROVALS),
            approved=patterns(calls, "approved"),
            approval_wait_s=calls.seconds("approval_wait"),
            approval_expires_s=calls.seconds("approval_expires"),
            approval_key=self._key(calls),
        )
        calls.refuse_unknown()
        return options

    def _key(self, calls: Section) -> str | None:
        """The secret out of its variable; where it is not to be had, each process has a key of its own."""
        text = calls.text("approval_key", secret=True)
        if text is None:
            return None
        at = (*calls.at, str(calls.spelling("approval_key")))
        if not _VARIABLE.fullmatch(text.strip()):
            calls.problems.add(at, "is a secret, which does not belong in this file; write ${NAME} and set NAME")
            return None
        expansion = VariableExpander(self.surroundings)
        key = expansion.fill(text.strip(), dotted(at)).strip()
        self.missing += expansion.missing
        if not expansion.missing and len(key) < _KEY_CHARS:
            self.missing.append(f"{dotted(at)} is too short: {_KEY_CHARS} characters are the least")
        return key if len(key) >= _KEY_CHARS else None


def read_toolcrib_section(value: Any, problems: Problems, tokens: TokenReader, calls: CallsTable) -> ToolcribSection:
    """The section's values over the defaults of each package."""
    if not isinstance(value, dict):
        problems.add(AT, f"must be an object, not {kind(value)}")
        value = {}
    own = Section(value, AT, problems)
    timeouts, search = _table(own, "timeouts"), _table(own, "search")
    read = ToolcribSection(
        fleet=_fleet(own),
        gateway=replace(
            _gateway(own, search, timeouts, tokens.folder),
            calls=calls.read(_table(own, "calls")),
            sessions=_sessions(own),
        ),
        surfaces=_surfaces(own, search),
        local=_local(own),
        policy=read_policy(own.section("policy")),
        scripts=read_scripts(_table(own, "scripts"), tokens.folder),
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
    options = override(FleetOptions(), backoff_first_s=first, backoff_max_s=most)
    if options.backoff_first_s > options.backoff_max_s:
        backoff.problems.add(backoff.at, f"has first above max, which is {options.backoff_max_s:g}")
    backoff.refuse_unknown()
    return options


def _gateway(own: Section, search: Section, timeouts: Section, folder: Path) -> GatewayOptions:
    providers = _table(own, "providers")
    options = override(
        read_search(search, folder),
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
    options = override(
        SessionOptions(),
        learn=table.flag("learn"),
        sessions=table.count("sessions", low=1),
        pause_s=table.seconds("pause"),
    )
    table.refuse_unknown()
    return options


def _local(own: Section) -> LocalOptions:
    table = _table(own, "local")
    options = override(
        LocalOptions(), max_threads=table.count("max_threads", low=1), mask_errors=table.flag("mask_errors")
    )
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
    options = override(
        SurfaceOptions(),
        surfaces=None if names is None else tuple(dict.fromkeys(names)),
        always_visible=own.texts("always_visible"),
        instructions=own.text("instructions"),
        meta_only=own.flag("meta_only"),
        call_many=own.flag("call_many"),
        summary=own.flag("summary"),
        guards=read_guards(_table(own, "guards")),
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


def _http(own: Section, tokens: TokenReader) -> HttpOptions:
    http = _table(own, "http")
    path = http.text("path")
    if path is not None and not path.startswith("/"):
        http.wrong(str(http.spelling("path")), 'must begin with "/"', path)
    options = override(
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
    return override(
        ServerOptions(name="", transport="stdio"),
        start_timeout_s=timeouts.seconds("start"),
        list_timeout_s=timeouts.seconds("list"),
        call_timeout_s=timeouts.seconds("call"),
        find_timeout_s=timeouts.seconds("find"),
        max_message_bytes=own.count("max_message_bytes", low=1024),
    )


_APPROVALS: Final[tuple[ApprovalMode, ...]] = get_args(ApprovalMode)


_SHARING: Final[tuple[Literal["caller", "scope"], ...]] = ("caller", "scope")


_VARIABLE: Final = re.compile(r"\$\{(?:env:)?[A-Za-z_][A-Za-z0-9_]*\}")


_KEY_CHARS: Final = 16


def _audit(calls: Section) -> bool | str | None:
    entry = calls.spelling("audit")
    value = None if entry is None else calls.table[entry]
    if entry is None or isinstance(value, bool) or (isinstance(value, str) and value.strip()):
        return value
    calls.wrong(entry, "must be true, false or the name of a logger", value)
    return None


def _rate(rate: Section | None) -> RateOptions | None:
    if rate is None:
        return None
    per_second, burst = rate.above_zero("per_second"), rate.count("burst", low=1)
    if rate.spelling("per_second") is None:
        rate.problems.add(rate.at, "must say how many calls a second: per_second")
    rate.refuse_unknown()
    return None if per_second is None else override(RateOptions(per_second=per_second), burst=burst)


def _tool_rates(calls: Section) -> tuple[tuple[str, RateOptions], ...] | None:
    """Patterns, each with its rate, in the order of the file."""
    table = calls.section("tool_rates")
    return None if table is None else tuple(_rates(table))


def _rates(table: Section) -> Iterator[tuple[str, RateOptions]]:
    for pattern, value in table.table.items():
        at = (*table.at, pattern)
        if not is_pattern(pattern, at, table.problems):
            continue
        if not isinstance(value, dict):
            table.problems.add(at, f"must be an object with per_second, not {kind(value)}")
            continue
        rate = _rate(Section(value, at, table.problems))
        if rate is not None:
            yield pattern, rate


def _breaker(table: Section | None) -> BreakerOptions | None:
    if table is None:
        return None
    options = override(
        BreakerOptions(),
        failures=table.count("failures", low=1),
        share=table.share("share", zero=False),
        window=table.count("window", low=1),
        open_s=table.seconds("open"),
    )
    table.refuse_unknown()
    return options


def _retry(table: Section | None) -> RetryOptions | None:
    if table is None:
        return None
    options = override(
        RetryOptions(),
        attempts=table.count("attempts", low=1),
        first_s=table.seconds("first"),
        longest_s=table.seconds("longest"),
        jitter=table.share("jitter"),
    )
    table.refuse_unknown()
    return options


def _call_cache(table: Section | None) -> CacheOptions | None:
    if table is None:
        return None
    options = override(
        CacheOptions(),
        seconds=table.seconds("seconds"),
        max_entries=table.count("max_entries", low=1),
        max_bytes=table.count("max_bytes", low=1),
        tools=patterns(table, "tools"),
        per=table.choice("per", _SHARING),
    )
    table.refuse_unknown()
    return options


def read_guards(guards: Section) -> GuardOptions:
    """The table's values over the defaults; `false` switches a guard off."""
    default = GuardOptions()
    options = GuardOptions(
        repeats=_times(guards, "repeats", default.repeats),
        misses=_times(guards, "misses", default.misses),
        lookups=_times(guards, "lookups", default.lookups),
        refuse=guards.flag("refuse") is True,
    )
    guards.refuse_unknown()
    return options


def _times(guards: Section, key: str, default: int | None) -> int | None:
    entry = guards.spelling(key)
    if entry is None:
        return default
    value = guards.table[entry]
    if value is False:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    guards.wrong(entry, "must be a whole number of at least 1, or false", value)
    return default


_EFFECTS: Final[tuple[Effect, ...]] = get_args(Effect)


_OTHERWISE: Final[tuple[Effect | Literal["next"], ...]] = (*_EFFECTS, "next")


_NEEDS: Final[tuple[Literal["any", "all"], ...]] = ("any", "all")


def read_policy(policy: Section | None) -> ByScopes | None:
    """The policy, or None where the section has none."""
    if policy is None:
        return None
    rules = [_rule(entry) for entry in policy.sections("rules")]
    roles = policy.section("roles")
    read = ByScopes(
        rules,
        default=policy.choice("default", _EFFECTS) or "allow",
        roles={} if roles is None else dict(_roles(roles)),
    )
    policy.refuse_unknown()
    return read


def _rule(entry: Section) -> Rule:
    rule = override(
        Rule(),
        tools=patterns(entry, "tools"),
        tags=entry.words("tags"),
        scopes=entry.words("scopes"),
        need=entry.choice("need", _NEEDS),
        tenants=entry.words("tenants"),
        action=entry.choice("action", tuple(Action)),
        effect=entry.choice("effect", _EFFECTS),
        otherwise=entry.choice("otherwise", _OTHERWISE),
    )
    for key in ("tools", "tags", "scopes", "tenants"):
        if (spelling := entry.spelling(key)) and entry.table[spelling] == []:
            entry.problems.add((*entry.at, spelling), "is empty, which would mean all of them; leave it out to say so")
    entry.refuse_unknown()
    return rule


def _roles(roles: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each role with the scopes it stands for."""
    for role, scopes in roles.table.items():
        listed = [scope for scope in scopes if isinstance(scope, str)] if isinstance(scopes, list) else None
        if listed is None or len(listed) < len(scopes):
            roles.wrong(role, "must be a list of scopes", None if isinstance(scopes, list) else scopes)
            continue
        yield role, tuple(listed)


_SECCOMP: Final[tuple[Seccomp, ...]] = get_args(Seccomp)


_WHOLE: Final = frozenset({"cpu_s"})
"""Seconds of which the kernel takes whole ones only."""


def read_scripts(scripts: Section, folder: Path) -> ScriptTable:
    """The table's values over the defaults; `folder` is where relative paths begin."""
    found = ScriptTable(
        options=override(
            ScriptOptions(),
            levels=scripts.count("levels", low=1),
            read_only=scripts.flag("read_only"),
            watch_s=scripts.seconds("watch"),
        ),
        limits=_limits(scripts.section("limits")),
        sandbox=_sandbox(scripts.section("sandbox")),
        folder=_folder(scripts, folder),
    )
    scripts.refuse_unknown()
    return found


def _limits(table: Section | None) -> Limits:
    if table is None:
        return Limits()
    given = {field.name: _limit(table, field.name) for field in fields(Limits)}
    table.refuse_unknown()
    try:
        return override(Limits(), **given)
    except ValueError as error:
        table.problems.add(table.at, f"cannot be kept: {error}")
        return Limits()


def _limit(table: Section, name: str) -> float | None:
    key = name.removesuffix("_s")
    return table.seconds(key) if key != name and name not in _WHOLE else table.count(key, low=1)


def _sandbox(table: Section | None) -> SandboxOptions:
    if table is None:
        return SandboxOptions()
    options = override(
        SandboxOptions(),
        seccomp=table.choice("seccomp", _SECCOMP),
        pool=table.count("pool", low=0),
        workers=table.count("workers", low=1),
        queue_wait_s=table.seconds("queue_wait"),
        zygote=table.flag("zygote"),
        start_s=table.seconds("start"),
    )
    table.refuse_unknown()
    return options


def _folder(scripts: Section, base: Path) -> Path | None:
    """The folder of stored scripts, which must be there. A script in it that cannot be used is named as left out."""
    folder = scripts.path("folder", base)
    if folder is None:
        return None
    at = (*scripts.at, str(scripts.spelling("folder")))
    if not folder.is_dir():
        scripts.problems.add(at, f"is no folder of scripts: {folder}; make it, or take the setting out")
        return None
    try:
        paths = script_files(folder)
    except OSError as error:
        scripts.problems.add(at, f"cannot be read: {folder}: {error.strerror or error}")
        return None
    for path in paths:
        _look_at(path, at, scripts.problems)
    return folder


def _look_at(path: Path, at: FieldPath, problems: Problems) -> None:
    """Warn of a script that will not become a tool, and why."""
    try:
        script = read_script(path)
        check_name(script.name)
        Schema(script.parameters, script.name)
    except ToolcribError as error:
        said = str(error)
        problems.warn(at, f"holds a script that is left out: {said if path.name in said else f'{path.name}: {said}'}")


_SCORERS: Final[tuple[Scorer, ...]] = get_args(Scorer)


_FALLBACKS: Final[tuple[Literal["", "popular"], ...]] = ("", "popular")


def read_search(search: Section, folder: Path) -> GatewayOptions:
    """The table's values over the defaults; `folder` is where relative paths begin."""
    options = override(
        GatewayOptions(),
        search=_ranking(search),
        synonyms=_synonyms(search),
        embedder=search.text("embedder"),
        embedder_cache=search.path("embedder_cache", folder),
        group=search.flag("group"),
        page_size=search.count("page_size", low=1),
    )
    if options.search.default_limit > options.search.max_limit:
        most = options.search.max_limit
        search.problems.add(search.at, f"has default_limit above max_limit, which is {most}")
    if options.search.nothing_below > options.search.weak_below:
        search.problems.add(
            search.at, f"has nothing_below above weak_below, which is {options.search.weak_below:g}: nothing is weak"
        )
    return options


def _ranking(search: Section) -> SearchOptions:
    return override(
        SearchOptions(),
        scorer=search.choice("scorer", _SCORERS),
        fallback=search.choice("fallback", _FALLBACKS),
        nothing_below=search.share("nothing_below"),
        weak_below=search.share("weak_below"),
        default_limit=search.count("default_limit", low=1),
        max_limit=search.count("max_limit", low=1),
    )


def _synonyms(search: Section) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    """Words, each with those that may stand for it; a single one may stand without a list."""
    table = search.section("synonyms")
    return None if table is None else tuple(_pairs(table))


def _pairs(table: Section) -> Iterator[tuple[str, tuple[str, ...]]]:
    for word, others in table.table.items():
        listed = [others] if isinstance(others, str) else others
        if not isinstance(listed, list):
            table.wrong(word, "must be a list of words", others)
            continue
        wrong = [other for other in listed if not isinstance(other, str) or not other.strip()]
        if wrong:
            table.problems.add((*table.at, word), f"must be a list of words, not of {shown(wrong[0])}")
            continue
        yield word, tuple(listed)


AUTH_VARIABLE: Final = "TOOLCRIB_TOKEN"
"""Holds the secret of one more token, whose caller is called "token"."""


_SHORT: Final = 16


_GUESSABLE: Final = f"a secret of fewer than {_SHORT} characters, which can be guessed"
