"""Invalid options are refused with the name of the field."""

import math
from collections.abc import Callable

import pytest
from tests.middleware.support import ANN, Provider, Stack, a_call

from toolcrib.errors import SettingsError
from toolcrib.middleware.options import BreakerOptions, CacheOptions, CallOptions, RateOptions, RetryOptions
from toolcrib.types import Call, CallNext, Context, ToolResult

pytestmark = pytest.mark.anyio


async def test_by_default_there_is_no_middleware() -> None:
    provider = Provider()
    assert Stack(CallOptions())(provider) is provider


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("per_second", lambda: RateOptions(per_second=0)),
        ("per_second", lambda: RateOptions(per_second=math.nan)),
        ("burst", lambda: RateOptions(per_second=1, burst=0)),
        ("failures", lambda: BreakerOptions(failures=0)),
        ("share", lambda: BreakerOptions(share=1.5)),
        ("window", lambda: BreakerOptions(window=0)),
        ("open_s", lambda: BreakerOptions(open_s=-1)),
        ("attempts", lambda: RetryOptions(attempts=0)),
        ("first_s", lambda: RetryOptions(first_s=0)),
        ("longest_s", lambda: RetryOptions(longest_s=math.inf)),
        ("jitter", lambda: RetryOptions(jitter=2)),
        ("seconds", lambda: CacheOptions(seconds=0)),
        ("max_entries", lambda: CacheOptions(max_entries=0)),
        ("max_bytes", lambda: CacheOptions(max_bytes=0)),
        ("per", lambda: CacheOptions(per="all")),  # type: ignore[arg-type]  # what a file may say
        (r"tools\[0\]", lambda: CacheOptions(tools=("",))),
        ("deadline_s", lambda: CallOptions(deadline_s=0)),
        ("approval_wait_s", lambda: CallOptions(approval_wait_s=0)),
        ("approval_expires_s", lambda: CallOptions(approval_expires_s=-1)),
        ("approval must be one of", lambda: CallOptions(approval="sometimes")),  # type: ignore[arg-type]  # what a file may say
        ("approved", lambda: CallOptions(approved="github:*")),  # type: ignore[arg-type]  # an easy mistake
        (r"tool_rates\[0\]", lambda: CallOptions(tool_rates=((" ", RateOptions(per_second=1)),))),
        ("approval_key", lambda: CallOptions(approval_key="short")),
    ],
)
def test_a_setting_that_cannot_be_is_named(field: str, make: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match=field):
        make()


def test_the_key_of_approvals_is_not_shown() -> None:
    assert "secret-secret-secret" not in repr(CallOptions(approval_key="secret-secret-secret"))


async def test_middleware_of_the_application_runs_too() -> None:
    async def loud(ctx: Context, call: Call, call_next: CallNext) -> ToolResult:
        return await call_next(ctx, a_call("other"))

    provider = Provider()
    await Stack(CallOptions(), extra=[loud])(provider)(ANN, a_call())
    assert provider.seen[0][1].tool.id == "github:other"
