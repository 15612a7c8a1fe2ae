"""Exit codes and errors of the verbs."""

from collections.abc import Callable

import click.exceptions
import pytest

from toolcrib.cli.output import ExitCode, Terminated, report_errors
from toolcrib.errors import ConnectionLost, ToolNotFound


def raising(error: BaseException) -> Callable[..., None]:
    """A verb that only raises."""

    @report_errors
    def verb(*, debug: bool = False, as_json: bool = False) -> None:
        raise error

    return verb


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ToolNotFound("x"), ExitCode.NOT_FOUND),
        (ExceptionGroup("many", [ExceptionGroup("one", [ConnectionLost("x")])]), ExitCode.SERVER),
        (ExceptionGroup("many", [ConnectionLost("x"), ConnectionLost("y")]), ExitCode.UNEXPECTED),
        (RuntimeError("x"), ExitCode.UNEXPECTED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (BaseExceptionGroup("one", [KeyboardInterrupt()]), ExitCode.INTERRUPTED),
        (Terminated(), ExitCode.TERMINATED),
        (click.exceptions.Exit(7), 7),
    ],
)
def test_every_end_has_its_code(error: BaseException, code: int) -> None:
    with pytest.raises(click.exceptions.Exit) as caught:
        raising(error)()
    assert caught.value.exit_code == code


def test_an_error_is_shown_with_its_hint_and_what_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        raising(ToolNotFound("No x.", hint="Try one.", suggestions=["one", "two", "three\a"]))(as_json=True)
    shown = capsys.readouterr()
    assert shown.err == "toolcrib: No x.\nTry one.\nDid you mean: two, three?\n"
    assert '"code": "tool_not_found"' in shown.out


def test_an_unexpected_error_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit):
        raising(RuntimeError("odd"))()
    assert capsys.readouterr().err == (
        "toolcrib: unexpected RuntimeError: odd\nRun it again with --debug to see the traceback.\n"
    )
