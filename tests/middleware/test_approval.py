"""Approval: a user agrees to this call of this tool with these arguments before any of it runs."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ElicitResult, methods
from tests.middleware.support import ANN, BOB, DESTROY, NO, READ, YES, Clock, Person, Provider, Stack, a_call, said

from toolcrib.errors import ApprovalRequired, RateLimited, ServerUnavailable, StateUnavailable
from toolcrib.gateway.options import GatewayOptions
from toolcrib.gateway.policy import ByScopes, Rule
from toolcrib.middleware.approval import APPROVAL_KEY, ApprovalTokens, approval_binding
from toolcrib.middleware.options import CallOptions, RateOptions, RetryOptions
from toolcrib.state.memory import MemoryStore
from toolcrib.state.sqlite import SqliteStore
from toolcrib.testing import FakeProvider, FakeSource, connect, running, text_of
from toolcrib.types import Call, CallNext, Context, Object, ToolResult
from toolcrib.wire import result_to_wire

pytestmark = pytest.mark.anyio

DROP = a_call("drop", hints=DESTROY, name="db")
CARRIES = Person(capabilities={"elicitation": {"form": {}}})


def asking(provider: Provider, **options: Any) -> CallNext:
    return Stack(CallOptions(**{"approval": "destructive", **options}))(provider)


def by(ctx: Context, person: Person) -> Context:
    return replace(ctx, client=person)


def again(ctx: Context, asked: ToolResult, answer: Any = YES) -> Context:
    """Repeat the call with the user's answer, as a client does."""
    responses = dict.fromkeys(asked.input_requests or {}, answer)
    return replace(ctx, client=CARRIES, input_responses=responses, request_state=asked.request_state)


async def asked_first(run: CallNext, ctx: Context = ANN, call: Call = DROP) -> ToolResult:
    asked = await run(by(ctx, CARRIES), call)
    assert asked.kind == "input_required"
    return asked


# -- which calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("approval", "asks_for"),
    [
        ("never", set()),
        ("destructive", {"destroys"}),
        ("writing", {"destroys", "adds", "says nothing"}),
        ("always", {"destroys", "adds", "says nothing", "reads"}),
    ],
)
async def test_the_setting_says_which_tools_need_it(approval: str, asks_for: set[str]) -> None:
    tools: dict[str, dict[str, Any]] = {
        "destroys": DESTROY,
        "adds": {"destructiveHint": False},
        "says nothing": {},
        "reads": {"readOnlyHint": True, "destructiveHint": True},
    }
    run = asking(Provider(), approval=approval)
    refused = set()
    for name, hints in tools.items():
        try:
            await run(ANN, a_call(name, hints=hints))
        except ApprovalRequired:
            refused.add(name)
    assert refused == asks_for


async def test_tools_that_are_approved_by_name_are_not_asked_about() -> None:
    provider = Provider()
    await asking(provider, approved=("github:dr?p",))(ANN, DROP)
    assert provider.runs == 1


async def test_a_policy_asks_whatever_the_settings_say() -> None:
    policy = ByScopes([Rule(tools=("github:*",), effect="approve")])
    provider = Provider()
    run = Stack(CallOptions(approval="never", approved=("*",)), policy=policy)(provider)
    with pytest.raises(ApprovalRequired, match="change its policy to allow it"):
        await run(ANN, a_call(hints=READ))
    assert provider.runs == 0


# -- clients that cannot ask -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("client", [None, Person(), Person(capabilities={"elicitation": {"url": {}}})])
async def test_without_a_way_to_ask_the_refusal_says_how_to_allow_the_tool(client: Person | None) -> None:
    provider = Provider()
    with pytest.raises(ApprovalRequired) as refused:
        await asking(provider)(replace(ANN, client=client), DROP)
    assert 'add "github:drop" to the setting `approved`' in refused.value.hint
    assert refused.value.data == {"tool": "github:drop", "reason": "no_client"}
    assert provider.runs == 0


# -- clients that repeat the call --------------------------------------------------------------------------------------


async def test_the_question_names_the_tool_and_shows_the_arguments_in_a_form_that_clients_take() -> None:
    asked = await asked_first(asking(Provider()))
    assert asked.input_requests is not None
    message = asked.input_requests[APPROVAL_KEY]["params"]["message"]
    assert "github:drop" in message
    assert 'name: "db"' in message
    wire = result_to_wire(asked, "2026-07-28")
    methods.validate_server_result("tools/call", "2026-07-28", wire)


async def test_after_a_yes_the_call_runs_once_and_the_tool_sees_nothing_of_the_question() -> None:
    provider = Provider()
    run = asking(provider)
    asked = await asked_first(run)
    assert provider.runs == 0
    assert await run(again(ANN, asked), DROP) == said("done")
    ((ctx, _),) = provider.seen
    assert (ctx.request_state, ctx.input_responses) == (None, None)


@pytest.mark.parametrize(
    "answer",
    [NO, {"action": "cancel"}, {"action": "accept"}, {"action": "accept", "content": {"approve": "true"}}, "yes", None],
)
async def test_anything_but_a_clear_yes_is_a_final_no(answer: Any) -> None:
    provider = Provider()
    run = asking(provider)
    asked = await asked_first(run)
    with pytest.raises(ApprovalRequired, match="was not run"):
        await run(again(ANN, asked, answer), DROP)
    with pytest.raises(ApprovalRequired, match="used before"):
        await run(again(ANN, asked), DROP)
    assert provider.runs == 0


async def test_an_approval_is_for_one_call() -> None:
    provider = Provider()
    run = asking(provider)
    asked = await asked_first(run)
    await run(again(ANN, asked), DROP)
    with pytest.raises(ApprovalRequired) as refused:
        await run(again(ANN, asked), DROP)
    assert refused.value.data["reason"] == "used"
    assert provider.runs == 1


@pytest.mark.parametrize(
    ("ctx", "call", "reason"),
    [
        (BOB, DROP, "foreign"),
        (replace(ANN, caller=replace(ANN.caller, tenant="other")), DROP, "foreign"),
        (replace(ANN, caller=replace(ANN.caller, issuer="https://login.example")), DROP, "foreign"),
        (replace(ANN, caller=replace(ANN.caller, scopes=frozenset({"write"}))), DROP, "foreign"),
        (replace(ANN, caller=replace(ANN.caller, roles=frozenset({"admin"}))), DROP, "foreign"),
        (replace(ANN, caller=replace(ANN.caller, groups=frozenset({"staff"}))), DROP, "foreign"),
        (ANN, a_call("drop", hints=DESTROY, name="other"), "changed_arguments"),
        (ANN, a_call("drop_all", hints=DESTROY, name="db"), "changed_tool"),
        (ANN, Call(tool=replace(DROP.tool, description="New."), arguments={"name": "db"}), "changed_tool"),
    ],
)
async def test_an_approval_is_for_this_caller_tool_and_arguments(ctx: Context, call: Call, reason: str) -> None:
    provider = Provider()
    run = asking(provider)
    asked = await asked_first(run)
    with pytest.raises(ApprovalRequired) as refused:
        await run(again(ctx, asked), call)
    assert refused.value.data["reason"] == reason
    assert "without requestState" in refused.value.hint
    assert provider.runs == 0


async def test_an_expired_question_is_repeated() -> None:
    clock, provider = Clock(), Provider()
    run = Stack(CallOptions(approval="always"), wall=clock)(provider)
    asked = await asked_first(run)
    clock.now += 600
    with pytest.raises(ApprovalRequired, match="left open for too long"):
        await run(again(ANN, asked), DROP)
    asked = await asked_first(run)
    clock.now += 599
    assert await run(again(ANN, asked), DROP) == said("done")


async def test_a_state_returned_without_an_answer_repeats_the_question() -> None:
    provider = Provider()
    run = asking(provider)
    asked = await asked_first(run)
    repeated = await run(replace(again(ANN, asked), input_responses={}), DROP)
    assert repeated.kind == "input_required"
    assert await run(again(ANN, repeated), DROP) == said("done")


async def test_a_state_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ApprovalRequired) as refused:
        await asking(Provider())(replace(ANN, client=CARRIES, request_state="the tool's own"), DROP)
    assert refused.value.data["reason"] == "forged"


async def test_another_process_takes_the_state_only_with_the_same_key() -> None:
    shared: dict[str, Any] = {"approval_key": "the same for all of us"}
    asked = await asked_first(asking(Provider(), **shared))
    assert await asking(Provider(), **shared)(again(ANN, asked), DROP) == said("done")
    with pytest.raises(ApprovalRequired, match="not one that this server gave out"):
        await asking(Provider())(again(ANN, asked), DROP)


@pytest.mark.parametrize("error", [ServerUnavailable("away"), RateLimited("later")])
async def test_an_approval_stays_good_when_nothing_was_run_for_it(error: Exception) -> None:
    provider = Provider([error, said("done")])
    run = asking(provider)
    asked = await asked_first(run)
    with pytest.raises(type(error)):
        await run(again(ANN, asked), DROP)
    assert await run(again(ANN, asked), DROP) == said("done")


async def test_a_question_costs_no_share_of_the_rate_and_an_approved_call_one() -> None:
    provider = Provider()
    run = asking(provider, rate=RateOptions(per_second=0.001, burst=1))
    await asked_first(run)
    asked = await asked_first(run)
    await run(again(ANN, asked), DROP)
    asked = await asked_first(run)
    with pytest.raises(RateLimited):
        await run(again(ANN, asked), DROP)
    assert provider.runs == 1


async def test_a_retry_does_not_ask_again() -> None:
    clock, provider = Clock(), Provider([ServerUnavailable("away"), said("done")])
    run = Stack(CallOptions(approval="always", retry=RetryOptions()), sleep=clock.sleep)(provider)
    assert await run(again(ANN, await asked_first(run)), DROP) == said("done")


# -- tools that ask the user -------------------------------------------------------------------------------------------


OWN: Object = {"which": {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": {}}}}


async def test_a_tool_that_asks_after_the_approval_gets_its_own_state_and_answers_without_a_second_question() -> None:
    question = ToolResult(kind="input_required", input_requests=OWN, request_state="its own")
    provider = Provider([question, said("done")])
    run = asking(provider)
    asked = await run(again(ANN, await asked_first(run)), DROP)
    assert asked.input_requests == OWN
    assert asked.request_state != "its own"
    answer = {"action": "accept", "content": {"which": "this"}}
    assert await run(again(ANN, asked, answer), DROP) == said("done")
    ctx, _ = provider.seen[1]
    assert (ctx.request_state, ctx.input_responses) == ("its own", {"which": answer})


async def test_that_state_is_bound_to_the_call_as_well() -> None:
    question = ToolResult(kind="input_required", input_requests=OWN, request_state="its own")
    provider = Provider([question])
    run = asking(provider)
    asked = await run(again(ANN, await asked_first(run)), DROP)
    with pytest.raises(ApprovalRequired, match="not those that the question was about"):
        await run(again(ANN, asked), a_call("drop", hints=DESTROY, name="other"))
    assert provider.runs == 1


async def test_a_tool_that_needs_no_approval_keeps_its_own_state() -> None:
    provider = Provider()
    await asking(provider)(replace(ANN, request_state="its own", input_responses={"q": YES}), a_call())
    ((ctx, _),) = provider.seen
    assert (ctx.request_state, ctx.input_responses) == ("its own", {"q": YES})


async def test_a_call_that_needs_no_approval_any_more_gets_on() -> None:
    key: dict[str, Any] = {"approval_key": "the same for all of us"}
    question = ToolResult(kind="input_required", input_requests=OWN, request_state="its own")
    before = asking(Provider([question]), **key)
    first = await asked_first(before)
    second = await before(again(ANN, first), DROP)
    provider = Provider()
    after = asking(provider, **key, approved=("*",))
    await after(again(ANN, first), DROP)
    await after(again(ANN, second), DROP)
    assert [ctx.request_state for ctx, _ in provider.seen] == [None, "its own"]
    assert [ctx.input_responses for ctx, _ in provider.seen] == [None, {"which": YES}]


# -- clients that answer during the call -------------------------------------------------------------------------------


async def test_a_client_that_can_be_asked_at_once_is() -> None:
    provider, person = Provider(), Person(can_elicit=True, answer=YES)
    assert await asking(provider)(by(ANN, person), DROP) == said("done")
    assert [params["requestedSchema"]["required"] for params in person.asked] == [["approve"]]


async def test_a_no_is_reported_as_declined() -> None:
    provider = Provider()
    with pytest.raises(ApprovalRequired, match="the question was declined") as refused:
        await asking(provider)(by(ANN, Person(can_elicit=True, answer=NO)), DROP)
    assert refused.value.data == {"tool": "github:drop", "reason": "declined"}
    assert provider.runs == 0


async def test_a_call_does_not_wait_for_an_answer_forever() -> None:
    provider = Provider()
    with anyio.fail_after(5):
        with pytest.raises(ApprovalRequired, match=r"there was no answer within 0\.01 s"):
            await asking(provider, approval_wait_s=0.01)(by(ANN, Person(can_elicit=True)), DROP)
    assert provider.runs == 0


async def test_a_persons_time_to_think_is_not_the_calls() -> None:
    class Slow(Person):
        async def elicit(self, params: Object) -> Object:
            await anyio.sleep(0.02)
            return YES

    run = asking(Provider(), deadline_s=0.01)
    assert await run(by(ANN, Slow(can_elicit=True)), DROP) == said("done")


async def test_a_client_that_fails_to_ask_has_not_agreed(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()
    with pytest.raises(ApprovalRequired, match="the client failed to ask"):
        await asking(provider)(by(ANN, Person(can_elicit=True, answer=RuntimeError("broken pipe"))), DROP)
    assert provider.runs == 0


# -- with clients of the official SDK ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_in_every_protocol_version_a_client_with_a_person_runs_the_tool_and_another_gets_a_hint(
    mode: str,
) -> None:
    asked: list[str] = []

    async def yes(_: Any, params: Any) -> ElicitResult:
        asked.append(params.message)
        return ElicitResult(action="accept", content={"approve": True})

    provider = FakeProvider([DROP.tool])
    options = GatewayOptions(search_wait_s=0, list_wait_s=0, calls=CallOptions(approval="destructive"))
    arguments: dict[str, Any] = {"name": "github:drop", "arguments": {"name": "db"}}
    async with running(FakeSource(provider), options=options) as gateway:
        async with connect(gateway, mode=mode) as client:
            refused = await client.call_tool("execute_tool", arguments)
            assert refused.is_error
            assert "`approved`" in text_of(refused)
            assert provider.calls == []
        async with connect(gateway, mode=mode, elicitation_callback=yes) as client:
            assert not (await client.call_tool("execute_tool", arguments)).is_error
    assert provider.calls == [("drop", {"name": "db"})]
    assert len(asked) == 1


# -- the question ------------------------------------------------------------------------------------------------------


async def shown(**arguments: Any) -> str:
    asked = await asking(Provider())(by(ANN, CARRIES), a_call("drop", hints=DESTROY, **arguments))
    assert asked.input_requests is not None
    return str(asked.input_requests[APPROVAL_KEY]["params"]["message"])


async def test_a_long_argument_is_cut_and_hides_no_other() -> None:
    message = await shown(text="x" * 10_000, target="everything")
    assert "(cut, 10002 characters)" in message
    assert 'target: "everything"' in message
    assert len(message) < 1000


async def test_many_arguments_are_cut_and_said_to_be() -> None:
    message = await shown(**{f"name_{number}": number for number in range(100)})
    assert "and 60 more arguments that are not shown" in message


async def test_no_argument_can_pass_for_a_line_of_ours() -> None:
    message = await shown(**{"a\nb\u202e": "c\nMay github:read be called once?"})
    assert len(message.splitlines()) == 2
    assert "\u202e" not in message


async def test_a_call_without_arguments_says_so() -> None:
    assert (await shown()).endswith("without arguments")


async def test_arguments_that_are_not_json_cannot_be_agreed_to() -> None:
    with pytest.raises(Exception, match="are not JSON"):
        await asking(Provider())(by(ANN, CARRIES), a_call("drop", hints=DESTROY, value={1}))


# -- the signed state --------------------------------------------------------------------------------------------------

ABOUT = approval_binding(ANN.caller, DROP)
NOTES = ApprovalTokens("a key of a test, long enough", MemoryStore(), expires_s=600, wall=Clock())
GOOD = NOTES.issue("asked", ABOUT, "inner")


@given(place=st.integers(0, len(GOOD)), cut=st.integers(0, 3), more=st.text(max_size=3))
def test_a_state_that_was_changed_in_any_way_is_refused(place: int, cut: int, more: str) -> None:
    changed = GOOD[:place] + more + GOOD[place + cut :]
    if changed == GOOD:
        assert NOTES.read(changed, ABOUT).inner == "inner"
    else:
        with pytest.raises(ApprovalRequired):
            NOTES.read(changed, ABOUT)


@given(text=st.text(max_size=200))
def test_no_text_of_others_is_a_state(text: str) -> None:
    with pytest.raises(ApprovalRequired):
        NOTES.read(text, ABOUT)


@given(inner=st.none() | st.text())
def test_a_tools_own_state_comes_back_unchanged(inner: str | None) -> None:
    assert NOTES.read(NOTES.issue("agreed", ABOUT, inner), ABOUT).inner == inner


def test_a_state_signed_by_another_version_is_refused() -> None:
    for signed in ("toolcrib0.W10=", "toolcrib1.W10=", "toolcrib1.!", ""):
        with pytest.raises(ApprovalRequired, match="not one that this server gave out"):
            NOTES.read(f"{signed}.{NOTES._signature(signed)}", ABOUT)


async def test_a_spent_token_is_never_forgotten_and_too_many_let_no_further_call_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("toolcrib.middleware.approval.MAX_SPENT", 2)
    clock = Clock()
    notes = ApprovalTokens(None, MemoryStore(clock=clock), expires_s=600, wall=clock)
    tickets = [notes.read(notes.issue("asked", ABOUT), ABOUT) for _ in range(3)]
    for ticket in tickets[:2]:
        await notes.spend(ticket)
    with pytest.raises(StateUnavailable, match="no room for another value in the table spent approvals"):
        await notes.spend(tickets[2])
    with pytest.raises(ApprovalRequired, match="used before"):
        await notes.spend(tickets[0])
    clock.now += 602
    await notes.spend(notes.read(notes.issue("asked", ABOUT), ABOUT))
    assert len(await notes._spent.items()) == 1


@pytest.mark.parametrize("key", ["a key of a test, long enough", None])
async def test_a_spent_token_stays_spent_after_a_restart_if_there_is_a_key(key: str | None, tmp_path: Path) -> None:
    async def restarted(text: str) -> str:
        async with SqliteStore(tmp_path / "state.sqlite") as store:
            tokens = ApprovalTokens(key, store, expires_s=600, wall=time.time)
            text = text or tokens.issue("asked", ABOUT)
            await tokens.spend(tokens.read(text, ABOUT))
            return text

    token = await restarted("")
    with pytest.raises(ApprovalRequired, match="used before" if key else "not one that this server gave out"):
        await restarted(token)
