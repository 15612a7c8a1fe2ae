"""The table `calls`: the middleware of every call."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from toolcrib.errors import SettingsError
from toolcrib.middleware.options import BreakerOptions, CacheOptions, CallOptions, RateOptions, RetryOptions
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]

KEY = "0123456789abcdef"

EVERYTHING = """
[toolcrib.calls]
audit = "my.audit"
deadline = 30
approval = "destructive"
approved = ["git:*", "*:delete_draft"]
approval_wait = 60
approval_expires = 300
approval_key = "${APPROVAL_KEY}"
rate = { per_second = 5, burst = 20 }

[toolcrib.calls.tool_rates]
"mail:*" = { per_second = 0.1, burst = 1 }
"*" = { per_second = 2 }

[toolcrib.calls.breaker]
failures = 3
share = 0.5
window = 10
open = 4

[toolcrib.calls.retry]
attempts = 2
first = 0.1
longest = 1
jitter = 0

[toolcrib.calls.cache]
seconds = 5
max_entries = 10
max_bytes = 1000
tools = ["time:*"]
per = "scope"
"""


def calls(**fields: Any) -> str:
    return json.dumps({"toolcrib": {"calls": fields}}, indent=1)


def test_every_key_sets_its_option(loading: Loading) -> None:
    settings = loading(EVERYTHING, "toolcrib.toml", APPROVAL_KEY=KEY)
    assert settings.gateway.calls == CallOptions(
        audit="my.audit",
        deadline_s=30,
        rate=RateOptions(per_second=5, burst=20),
        tool_rates=(("mail:*", RateOptions(per_second=0.1, burst=1)), ("*", RateOptions(per_second=2))),
        breaker=BreakerOptions(failures=3, share=0.5, window=10, open_s=4),
        retry=RetryOptions(attempts=2, first_s=0.1, longest_s=1, jitter=0),
        cache=CacheOptions(seconds=5, max_entries=10, max_bytes=1000, tools=("time:*",), per="scope"),
        approval="destructive",
        approved=("git:*", "*:delete_draft"),
        approval_wait_s=60,
        approval_expires_s=300,
        approval_key=KEY,
    )
    assert KEY not in repr(settings)
    assert (settings.http_problem, settings.warnings) == ("", ())


def test_without_the_table_no_middleware_is_on(loading: Loading) -> None:
    assert loading(calls()).gateway.calls == CallOptions()


def test_true_switches_a_layer_on_with_its_defaults_and_false_leaves_it_off(loading: Loading) -> None:
    on = loading(calls(audit=True, breaker=True, retry=True, cache=True)).gateway.calls
    assert on == CallOptions(audit=True, breaker=BreakerOptions(), retry=RetryOptions(), cache=CacheOptions())
    assert loading(calls(audit=False, breaker=False, retry=False, cache=False)).gateway.calls == CallOptions()


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({}, "environment variable APPROVAL_KEY is not set (toolcrib.calls.approvalKey)"),
        ({"APPROVAL_KEY": "hunter2"}, "toolcrib.calls.approvalKey is too short: it needs at least 16 characters"),
    ],
)
def test_an_unavailable_key_disables_http_only(loading: Loading, environ: dict[str, str], problem: str) -> None:
    settings = loading(calls(approvalKey="${env:APPROVAL_KEY}"), **environ)
    assert settings.http_problem == problem
    assert settings.gateway.calls.approval_key is None


@pytest.mark.parametrize("key", ["hunter2hunter2hunter2", "${X:-hunter2hunter2}", "hunter2${X}"])
def test_a_key_in_the_file_is_refused_and_never_shown(loading: Loading, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(calls(approval_key=key), X=KEY)
    assert "mcp.json:4: toolcrib.calls.approval_key is a secret, which does not belong" in caught.value.message
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"audit": 1}, "mcp.json:4: toolcrib.calls.audit must be true, false or the name of a logger, not 1"),
        ({"audit": " "}, 'toolcrib.calls.audit must be true, false or the name of a logger, not " "'),
        ({"deadline": 0}, "mcp.json:4: toolcrib.calls.deadline must be a number of seconds above 0, not 0"),
        ({"rate": 5}, "mcp.json:4: toolcrib.calls.rate must be an object, not 5"),
        ({"rate": {"burst": 5}}, "mcp.json:4: toolcrib.calls.rate needs per_second"),
        ({"rate": {"per_second": 0}}, "calls.rate.per_second must be a number above 0, not 0"),
        ({"rate": {"per_second": 1, "burst": 0}}, "calls.rate.burst must be a whole number of at least 1, not 0"),
        ({"rate": {"perMinute": 1}}, "mcp.json:5: toolcrib.calls.rate.perMinute is not a setting"),
        ({"tool_rates": {"a:*": 5}}, 'calls.tool_rates."a:*" must be an object, not 5'),
        ({"tool_rates": {"a[": {"per_second": 1}}}, 'tool_rates."a[" opens a bracket that is never closed'),
        ({"tool_rates": {"a:*": {}}}, 'mcp.json:5: toolcrib.calls.tool_rates."a:*" needs per_second'),
        ({"breaker": "on"}, 'mcp.json:4: toolcrib.calls.breaker must be true, false or an object, not "on"'),
        ({"breaker": {"share": 0}}, "calls.breaker.share must be a number above 0, up to 1, not 0"),
        ({"breaker": {"open": -1}}, "calls.breaker.open must be a number of seconds above 0, not -1"),
        ({"breaker": {"failure": 1}}, 'calls.breaker.failure is not a setting; did you mean "failures"?'),
        ({"retry": {"attempts": 0}}, "calls.retry.attempts must be a whole number of at least 1, not 0"),
        ({"retry": {"jitter": 2}}, "calls.retry.jitter must be a number from 0 to 1, not 2"),
        ({"retry": {"attempt": 1}}, 'calls.retry.attempt is not a setting; did you mean "attempts"?'),
        ({"cache": {"per": "callers"}}, 'calls.cache.per cannot be "callers"; did you mean "caller"?'),
        ({"cache": {"tools": ["a", "["]}}, "mcp.json:7: toolcrib.calls.cache.tools[1] opens a bracket that is never"),
        (
            {"cache": {"size": 1}},
            "calls.cache.size is not a setting; the settings here are max_bytes, max_entries, per",
        ),
        ({"approval": "destructiv"}, 'calls.approval cannot be "destructiv"; did you mean "destructive"?'),
        ({"approved": "git:*"}, 'mcp.json:4: toolcrib.calls.approved must be a list of strings, not "git:*"'),
        ({"approved": ["git:*", ""]}, "mcp.json:6: toolcrib.calls.approved[1] must not be empty"),
        ({"approved": ["", "a["]}, "toolcrib.calls.approved[1] opens a bracket that is never closed: 'a['"),
        ({"approval_wait": "2m"}, 'calls.approval_wait must be a number of seconds above 0, not "2m"'),
        ({"approval_key": ["hunter2"]}, "calls.approval_key must be a string, not a list"),
        ({"aproval": "always"}, 'mcp.json:4: toolcrib.calls.aproval is not a setting; did you mean "approval"?'),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_and_field(loading: Loading, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(calls(**fields))
    assert said in caught.value.message
    assert "hunter2" not in str(caught.value)
