"""`toolcrib audit`: check an audit log, and digest arguments as it does."""
# ruff: noqa: ARG001, PLC0415 - as in `main`

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from toolcrib.cli.options import config_option, reports
from toolcrib.cli.output import ExitCode, UsageError, echo, echo_json, pluralize


@click.command(short_help="Check whether the audit log was changed.")
@click.argument("action", type=click.Choice(("verify", "digest")), metavar="verify|digest")
@click.argument("what", required=False, metavar="[FILE|JSON]")
@click.option("--holds", metavar="HASH", help="With verify: a hash noted earlier, which the log must still have.")
@config_option
@reports()
def audit(*, action: str, what: str | None, holds: str | None, config: Path | None, as_json: bool, debug: bool) -> None:
    """Check the audit log: that no record was changed, left out or added.

    verify checks FILE, or the log that the settings name, with the older files beside it. The exit code is 6 if the
    log is not whole. digest prints the digest that the log has for these arguments of a call, a JSON object or @FILE;
    both need the key of the log, from the settings, if it has one.
    """
    from toolcrib.middleware.audit_file import verify_audit
    from toolcrib.settings.loader import load_settings

    options = load_settings(config).gateway.calls.audit_file if what is None or config or action == "digest" else None
    if action == "digest":
        _print_digest(options, what, as_json=as_json)
        return
    if what is None and options is None:
        raise UsageError("The settings name no audit file.", hint="Give a file, or set calls.audit_file.path.")
    path = Path(what) if what is not None else options.path if options is not None else Path()
    report = verify_audit(path, key=None if options is None else options.key, holds=holds)
    if as_json:
        echo_json({"whole": report.is_whole, **asdict(report)})
    else:
        _print_report(report)
    if not report.is_whole:
        raise click.exceptions.Exit(ExitCode.SERVER)


def _print_digest(options: Any, text: str | None, *, as_json: bool) -> None:
    from toolcrib.cli.arguments import read_arguments
    from toolcrib.middleware.audit import digest_key
    from toolcrib.middleware.fingerprint import canonical_json, digest

    if options is None or options.key is None:
        raise UsageError(
            "This audit log has no key, so its digests cannot be recomputed.",
            hint="Set calls.audit_file.key, as ${NAME}.",
        )
    if text is None:
        raise UsageError("digest needs the arguments of the call, such as '{\"id\": 3}'.")
    found = digest(canonical_json(read_arguments(text)) or "", digest_key(options.key))
    echo_json({"arguments": found}) if as_json else echo(found)


def _print_report(report: Any) -> None:
    for problem in report.problems:
        echo(problem)
    count = f"{pluralize(report.records, 'record')} in {pluralize(len(report.files), 'file')}"
    if report.records:
        count += f", numbers {report.first} to {report.last}"
    echo(f"{'Broken' if report.problems else 'Whole'}: {count}.")
    if report.first is not None and report.first > 1:
        echo(f"Records before number {report.first} are in files that are not here.")
    if report.cut_lines:
        echo(f"{pluralize(report.cut_lines, 'line')} cut short when a process ended.")
    if report.lost:
        echo(f"{pluralize(report.lost, 'call')} not recorded while the file could not be written.")
    if report.held is not None:
        echo("The hash is in the log." if report.held else "The hash is not in the log.")
    if report.last_hash:
        echo(f"Last hash: {report.last_hash}")
