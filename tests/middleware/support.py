"""Test doubles for middleware: a scripted backend, a clock that a test moves, and a user."""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio

from toolcrib.middleware.options import CallOptions
from toolcrib.middleware.pipeline import build_stack
from toolcrib.types import Call, Caller, CallNext, Context, Object, Tool, ToolResult

_T = TypeVar("_T")

ANN = Context(caller=Caller(id="ann", tenant="acme"))
BOB = Context(caller=Caller(id="bob", tenant="acme"))
READ: dict[str, Any] = {"readOnlyHint": True}
DESTROY: dict[str, Any] = {"destructiveHint": True}


class Stack:
    """The whole middleware of some options around one backend."""

    def __init__(self, options: CallOptions, **parts: Any) -> None:
        stack = build_stack(options, **parts)
        self.around_call, self.around_attempt = stack.around_call, stack.around_attempt
        self.audit_refused, self.breaker_states = stack.audit_refused, stack.breaker_states

    def __call__(self, backend: CallNext) -> CallNext:
        return self.around_call(self.around_attempt(backend))


class Clock:
    """A clock that stops until a test moves it; sleeping moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await anyio.lowlevel.checkpoint()


Step = ToolResult | BaseException


@dataclass
class Provider:
    """The innermost call: returns or raises the next step; the last step repeats."""

    steps: list[Step] = field(default_factory=lambda: [said("done")])
    seen: list[tuple[Context, Call]] = field(default_factory=list)
    meanwhile: Callable[[], None] | None = None

    async def __call__(self, ctx: Context, call: Call) -> ToolResult:
        self.seen.append((ctx, call))
        step = self.steps[min(len(self.seen), len(self.steps)) - 1]
        if self.meanwhile is not None:
            self.meanwhile()
        await anyio.lowlevel.checkpoint()
        if isinstance(step, BaseException):
            raise step
        return step

    @property
    def runs(self) -> int:
        return len(self.seen)


@dataclass
class Person:
    """A client with a user who answers."""

    capabilities: Object = field(default_factory=dict)
    can_elicit: bool = False
    answer: Any = None
    asked: list[Object] = field(default_factory=list)

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None: ...

    async def elicit(self, params: Object) -> Object:
        self.asked.append(params)
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is None:
            await anyio.sleep_forever()
        answer: Object = self.answer
        return answer

    async def sample(self, params: Object) -> Object:
        raise NotImplementedError


YES: dict[str, Any] = {"action": "accept", "content": {"approve": True}}
NO: dict[str, Any] = {"action": "decline"}


def said(text: str, **more: Any) -> ToolResult:
    return ToolResult(content=({"type": "text", "text": text},), **more)


def failed(text: str) -> ToolResult:
    return said(text, is_error=True)


def a_call(name: str = "read", /, *, backend: str = "github", hints: Object | None = None, **arguments: Any) -> Call:
    tool = Tool(name=name, namespace="github", annotations=hints or {})
    return Call(tool=tool, arguments=arguments, backend=backend)


def immediate(work: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as end:
        value: _T = end.value
        return value
    raise AssertionError("it waits for something")
