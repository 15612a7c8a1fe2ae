"""How a verb ends: errors as text or JSON, a closed pipe and Ctrl-C without noise, always with a documented code."""

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec

import typer

from toolcrib.cli.exits import Exit, exit_code
from toolcrib.cli.output import say_json, tell, tell_error
from toolcrib.errors import InvalidRequest, ToolcribError

P = ParamSpec("P")


class Terminated(Exception):
    """SIGTERM came."""


class UsageError(InvalidRequest):
    """The command line itself does not fit."""

    code = "usage"


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """The verb, whose errors are shown as people and programs need them."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        debug = bool(kwargs.get("debug"))
        logging.getLogger().addHandler(_handler(debug=debug))
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BaseException as error:
            if debug and not isinstance(error, (KeyboardInterrupt, BrokenPipeError, SystemExit)):
                logging.getLogger(__name__).debug("the verb ended with an error", exc_info=True)
            _end(only(error), as_json=bool(kwargs.get("as_json")), debug=debug)

    return run


def _handler(*, debug: bool) -> logging.Handler:
    """Logs to standard error, or, without --debug, nowhere: verbs say themselves what people need to know."""
    if not debug:
        return logging.NullHandler()
    logging.getLogger("toolcrib").setLevel(logging.DEBUG)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def only(error: BaseException) -> BaseException:
    """The one error inside groups of one, or the group itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _end(error: BaseException, *, as_json: bool, debug: bool) -> NoReturn:
    match error:
        case ToolcribError():
            if as_json:
                _last_words({"error": error.payload()})
            tell_error(error)
            raise typer.Exit(exit_code(error)) from None
        case KeyboardInterrupt():
            raise typer.Exit(Exit.INTERRUPTED) from None
        case Terminated():
            raise typer.Exit(Exit.TERMINATED) from None
        case BrokenPipeError():
            # The interpreter flushes standard output once more at its end; that must not fail loudly.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(Exit.CLOSED_PIPE) from None
        case Exception():
            tell(f"toolcrib: unexpected {type(error).__name__}: {error}")
            if not debug:
                tell("Run it again with --debug to see where it arose.")
            raise typer.Exit(Exit.UNEXPECTED) from None
        case _:
            raise error


def _last_words(value: Any) -> None:
    try:
        say_json(value)
    except BrokenPipeError:
        _end(BrokenPipeError(), as_json=False, debug=False)
