"""Completion in bash, zsh and fish: the script that a shell needs, and the names of servers, tools and parameters.

Names come from the catalogs that servers listed last, so completion starts no server.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from toolcrib.cli.output import UsageError, echo

_VARIABLE: Final = "_TOOLCRIB_COMPLETE"
_SHELLS: Final = ("bash", "zsh", "fish")
_START_FILES: Final = {"bash": ".bashrc", "zsh": ".zshrc"}
_ZSH_PREAMBLE: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"
_BASH_SCRIPT: Final = """\
%(complete_func)s() {
    local answer
    COMPREPLY=()
    while IFS= read -r answer; do
        case $answer in
            file,*) compopt -o default ;;
            dir,*) compopt -o dirnames ;;
            plain,*) COMPREPLY+=("${answer#plain,}"); [[ $answer == *= ]] && compopt -o nospace ;;
        esac
    done < <(COMP_WORDS="${COMP_LINE:0:COMP_POINT}" %(complete_var)s=bash_complete "$1")
    return 0
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class LineBashComplete(BashComplete):
    """Completes the line as a whole: bash splits words at the colon in the id of a tool."""

    source_template = _BASH_SCRIPT

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is being written, and that one."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)[1:]
        if not words or line[-1:].isspace():
            return words, ""
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """The kind and the text, without the part that bash takes for earlier words."""
        begun = self.get_completion_args()[1]
        kept = max(begun.rfind(":"), begun.rfind("=")) + 1
        return f"{item.type},{item.value[kept:] if item.type == 'plain' else item.value}"


def completion_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--install-completion` and `--show-completion`."""
    for name, text, callback in (
        ("--show-completion", "Print the completion script of a shell: bash, zsh or fish.", _show),
        ("--install-completion", "Install completion for a shell: bash, zsh, fish, or the one you use.", _install),
    ):
        command = click.option(
            name,
            metavar="[SHELL]",
            is_flag=False,
            flag_value="",
            expose_value=False,
            is_eager=True,
            callback=callback,
            help=text,
        )(command)
    return command


def _show(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        click.echo(completion_script(ctx.command, _shell(shell)))
        ctx.exit()


def _install(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None and not ctx.resilient_parsing:
        name = _shell(shell)
        for path in install_completion(name, completion_script(ctx.command, name), Path.home()):
            echo(f"Wrote {path}")
        echo("Completion works in the next shell that you start.")
        ctx.exit()


def _shell(given: str) -> str:
    name = given or Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise click.UsageError(f"There is no completion for {name or 'this shell'}. Name one of: {', '.join(_SHELLS)}.")
    return name


def completion_script(command: click.Command, shell: str) -> str:
    """The script that makes a shell complete `toolcrib`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise UsageError(f"There is no completion for {shell}.")
    script = kind(command, {}, "toolcrib", _VARIABLE).source()
    return _ZSH_PREAMBLE + script if shell == "zsh" else script


def install_completion(shell: str, script: str, home: Path) -> list[Path]:
    """Write the script where the shell finds it; in bash and zsh, a line of the start file reads it.

    Returns the files that were written. Installing again changes nothing else.
    """
    if shell == "fish":
        return [_write(home / ".config" / "fish" / "completions" / "toolcrib.fish", script)]
    path = _write(home / ".local" / "share" / "toolcrib" / f"completion.{shell}", script)
    start = home / _START_FILES[shell]
    line = f'[ -f "{path}" ] && source "{path}"  # completion of toolcrib'
    before = start.read_text(encoding="utf-8") if start.is_file() else ""
    if line in before.splitlines():
        return [path]
    ended = before if not before or before.endswith("\n") else f"{before}\n"
    return [path, _write(start, f"{ended}{line}\n")]


def _write(path: Path, text: str) -> Path:
    from toolcrib.settings.imports import write_atomically

    write_atomically(path, text.encode(), mode=0o644)
    return path


# -- names -------------------------------------------------------------------------------------------------------------


def complete_server(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """The namespaces of the configured servers."""
    return _items(begun, _names(ctx, "server_names"))


def complete_client(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    """The ids of the known clients."""
    from toolcrib.settings.clients import CLIENTS

    return _items(begun, [(client.id, client.title) for client in CLIENTS])


def complete_tool(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """The ids of the tools that the servers listed last."""
    return _items(begun, _names(ctx, "tool_names"))


def complete_parameter(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
    """The parameters of the tool that is named before, each with `=`, or the options of one."""
    return _items(begun, _names(ctx, "parameter_words", ctx.params.get("name") or "", begun))


def _names(ctx: click.Context, function: str, *arguments: str) -> Iterable[Any]:
    """What a function of the module of cached catalogs gives; nothing on any error, since a shell shows none."""
    try:
        from toolcrib.cli import cached

        return list(getattr(cached, function)(ctx.params.get("config"), *arguments))
    except Exception:  # noqa: BLE001 - a prompt is no place for an error
        return ()


def _items(begun: str, found: Iterable[tuple[str, str]]) -> list[CompletionItem]:
    return [CompletionItem(name, help=about or None) for name, about in found if name.startswith(begun)]
