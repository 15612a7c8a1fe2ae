"""The options of every part of toolcrib, as frozen values.

`load_settings` reads them from a file; a program can pass them to `App` as `toolcrib.Settings`.
"""

from toolcrib.discovery.guards import GuardOptions
from toolcrib.gateway.options import GatewayOptions, SessionOptions
from toolcrib.middleware.options import (
    AuditFileOptions,
    BreakerOptions,
    CacheOptions,
    CallOptions,
    RateOptions,
    RetryOptions,
)
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.search.options import Bm25Options, PastOptions, PointsOptions, ScorerOptions, SearchOptions, TiersOptions
from toolcrib.server.options import AuthOptions, HttpOptions, IssuerOptions, Token
from toolcrib.settings.options import ConsoleOptions, LocalOptions, TelemetryOptions
from toolcrib.state.options import StateOptions
from toolcrib.surfaces.options import SurfaceOptions
from toolcrib.upstream.options import ArgumentOverride, FleetOptions, ServerOptions, ToolOverride

__all__ = [
    "ArgumentOverride",
    "AuditFileOptions",
    "AuthOptions",
    "Bm25Options",
    "BreakerOptions",
    "CacheOptions",
    "CallOptions",
    "ConsoleOptions",
    "FleetOptions",
    "GatewayOptions",
    "GuardOptions",
    "HttpOptions",
    "IssuerOptions",
    "Limits",
    "LocalOptions",
    "PastOptions",
    "PointsOptions",
    "RateOptions",
    "RetryOptions",
    "SandboxOptions",
    "ScorerOptions",
    "ScriptOptions",
    "SearchOptions",
    "ServerOptions",
    "SessionOptions",
    "StateOptions",
    "SurfaceOptions",
    "TelemetryOptions",
    "TiersOptions",
    "Token",
    "ToolOverride",
]
