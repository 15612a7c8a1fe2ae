"""The one-shot verbs over small real servers: text, JSON, and what goes wrong."""

import json
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from tests.cli.conftest import Ran, broken, toolbox

from toolcrib.cli import output
from toolcrib.cli.doctor import DoctorReport, print_report
from toolcrib.cli.output import ExitCode
from toolcrib.search.vectors import Vectors
from toolcrib.settings.options import Settings as LoadedSettings
from toolcrib.types import Rejected, ServerState, ServerStatus
from toolcrib.upstream.options import ServerOptions

Command = Callable[..., Ran]
Settings = Callable[..., Path]


# -- servers -----------------------------------------------------------------------------------------------------------


def test_servers_shows_each_state_and_why(command: Command, settings: Settings) -> None:
    ran = command("servers", "--config", settings(good=toolbox(), bad=broken(required=True)))
    assert ran.code == 0
    head, bad, good, blank, reason = ran.out.splitlines()
    assert head.split() == ["NAME", "STATE", "TOOLS", "REACHED", "BY", "SINCE"]
    assert bad.split()[:2] == ["bad", "failed"]
    assert good.split()[:4] == ["good", "ready", "4", "stdio"]
    assert (blank, reason.startswith("bad: "), "no licence key found" in reason) == ("", True, True)
    assert ran.err == ""


def test_servers_as_json_has_every_field(command: Command, settings: Settings) -> None:
    ran = command(
        "servers", "--json", "--config", settings(good=toolbox(), needy=toolbox(env={"K": "${KEY_FOR_TEST}"}))
    )
    good, needy = ran.json["servers"]
    assert good.pop("since").endswith("Z")
    info = good.pop("info")
    assert (info["name"], info["version"]) == ("toolbox", "1.2")
    assert good == {
        "name": "good",
        "namespace": "good",
        "state": "ready",
        "reason": "",
        "tools": 4,
        "rejected": [],
        "marked": [],
        "stale": False,
        "cached": False,
        "as_of": None,
        "transport": "stdio",
        "protocol": "2025-11-25",
        "retry_at": None,
        "sessions": "shared",
        "sessions_why": "",
    }
    assert (needy["state"], needy["reason"]) == ("failed", "environment variable KEY_FOR_TEST is not set (env.K)")


def test_servers_that_fail_for_one_reason_share_a_line_that_is_never_cut(
    command: Command, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "terminal_width", lambda: 60)
    lost = {"command": "no-such-program-for-this-test"}
    ran = command("servers", "--config", settings(a=lost, b=lost, c=lost, good=toolbox()))
    reasons = ran.out.partition("\n\n")[2]
    assert "a, b and c: the command" in reasons
    assert " ".join(reasons.split()).endswith("install it, or give its full path")
    assert all(len(line) <= 60 for line in reasons.splitlines())
    failing = command("tools", "--config", settings(a=lost, b=lost, good=toolbox())).err
    assert failing.startswith('toolcrib: servers a and b have failed: the command "no-such-program-for-this-test"')
    assert len(failing.splitlines()) == 1


def test_servers_without_any_says_so(command: Command, settings: Settings) -> None:
    assert command("servers", "--config", settings()) == Ran(0, "No servers are configured.\n", "")


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools_lists_every_tool_with_the_first_line_of_its_description(command: Command, settings: Settings) -> None:
    ran = command("tools", "--config", settings(a=toolbox(), b=toolbox("ring", "fail", "show_image")))
    assert ran == Ran(
        0,
        "a:fail        Always answers with an error.\n"
        "a:greet       Say hello to a person.\n"
        "a:ring        Ring the bell.\n"
        "a:show_image  Draw a picture.\n"
        "b:greet       Say hello to a person.\n",
        "",
    )


def test_tools_of_one_server_as_json_are_whole_definitions(command: Command, settings: Settings) -> None:
    ran = command("tools", "-n", "a", "--json", "-c", settings(a=toolbox("ring", "fail", "show_image"), b=toolbox()))
    (tool,) = ran.json["tools"]
    assert tool["id"] == "a:greet"
    assert tool["wire_name"] == "a__greet"
    assert tool["input_schema"]["required"] == ["person"]
    assert tool["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
    assert ran.json["servers"] == []


def test_tools_of_an_unknown_server_names_the_servers(command: Command, settings: Settings) -> None:
    ran = command("tools", "-n", "tolbox", "-c", settings(toolbox=toolbox()))
    assert ran == Ran(4, "", "toolcrib: No server is called tolbox.\nServers: toolbox.\n")


def test_a_failing_server_is_named_in_one_line_and_the_others_work(command: Command, settings: Settings) -> None:
    ran = command("tools", "--config", settings(bad=broken(), good=toolbox("ring", "fail", "show_image")))
    assert ran.code == 0
    assert ran.out == "good:greet  Say hello to a person.\n"
    (line,) = ran.err.splitlines()
    assert line.startswith("toolcrib: server bad has failed: ")
    assert "no licence key found" in line


# -- search ------------------------------------------------------------------------------------------------------------


def test_search_shows_score_id_and_description(command: Command, settings: Settings) -> None:
    ran = command("search", "say", "hello", "-c", settings(a=toolbox()))
    score, name, description = ran.out.splitlines()[0].split("  ")
    assert 0 < float(score) <= 1
    assert (name, description) == ("a:greet", "Say hello to a person.")


def test_search_as_json_has_hits_with_reasons_unmatched_words_and_servers(command: Command, settings: Settings) -> None:
    ran = command("search", "hello xyzzy", "--json", "--limit", "1", "-c", settings(a=toolbox(), bad=broken()))
    assert set(ran.json) == {"hits", "unmatched", "servers", "nearest", "note", "total"}
    (hit,) = ran.json["hits"]
    assert (hit["id"], hit["name"], hit["namespace"]) == ("a:greet", "greet", "a")
    assert 0 < hit["score"] <= 1
    assert ("hello", "description", "exact") in [
        (reason["word"], reason["field"], reason["how"]) for reason in hit["reasons"]
    ]
    assert ran.json["unmatched"] == ["xyzzy"]
    assert [(server["name"], server["state"]) for server in ran.json["servers"]] == [("bad", "failed")]


def test_search_ranks_by_the_settings_or_by_an_option(command: Command, settings: Settings) -> None:
    file = settings({"search": {"scorer": "tiers"}}, a=toolbox())

    def raw(*words: str) -> float:
        (hit,) = command("search", "greet", "--json", "--limit", "1", "-c", file, *words).json["hits"]
        assert hit["id"] == "a:greet"
        return float(hit["raw"])

    assert raw() == 1.0
    assert raw("--scorer", "points") >= 10.0


def test_search_groups_near_duplicates_if_the_settings_say_so(command: Command, settings: Settings) -> None:
    file = settings({"search": {"group": True}}, a=toolbox(), b=toolbox())
    found = command("search", "greet", "--json", "-c", file).json["hits"]
    assert [(hit["id"], hit["similar"]) for hit in found if hit["name"] == "greet"] == [("a:greet", ["b:greet"])]


def test_only_verbs_that_search_load_the_embedder(command: Command, settings: Settings) -> None:
    file = settings({"search": {"embedder": "no.such.module:make"}}, a=toolbox())
    assert command("tools", "-c", file).code == 0
    assert command("call", "a:greet", "--args", '{"person": "Ada"}', "-c", file).code == 0
    ran = command("search", "greet", "-c", file)
    assert ran.code == 3
    assert "toolcrib.search.embedder: There is no embedder" in ran.err


def test_a_search_that_finds_nothing_is_an_answer(command: Command, settings: Settings) -> None:
    ran = command("search", "xyzzy", "-c", settings(a=toolbox()))
    assert (ran.code, ran.out) == (0, "")
    assert "No tool matches." in ran.err
    assert "Words without a match: xyzzy" in ran.err


def test_a_search_without_any_tools_says_so_instead_of_blaming_the_words(command: Command, settings: Settings) -> None:
    ran = command("search", "hello", "-c", settings(bad=broken()))
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.splitlines()[-1] == "There are no tools to search."
    assert "Words without" not in ran.err


def test_search_in_an_unknown_server_and_without_words_is_refused(command: Command, settings: Settings) -> None:
    assert command("search", "hello", "-n", "b", "-c", settings(a=toolbox())).code == 4
    assert command("search", "-c", settings(a=toolbox())).code == 2
    assert command("search", "hello", "--limit", "0", "-c", settings(a=toolbox())).code == 2


# -- describe ----------------------------------------------------------------------------------------------------------


def test_describe_shows_all_that_a_call_needs(command: Command, settings: Settings) -> None:
    ran = command("describe", "greet", "-c", settings(a=toolbox()))
    assert ran.code == 0
    assert ran.out.startswith("a:greet  (Greeting)\nonly reads (says its server)\n\nSay hello to a person.\nIn any")
    assert "person" in ran.out
    assert "required  Who is greeted." in ran.out
    assert "toolcrib call a:greet person=" in ran.out


def test_the_example_of_describe_works_unchanged(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    described = command("describe", "a__greet", "--json", "-c", file).json
    assert described["id"] == "a:greet"
    example = described["example"]
    assert command("call", example["name"], "--args", json.dumps(example["arguments"]), "-c", file).code == 0


def test_an_unknown_tool_is_reported_with_suggestions(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    ran = command("describe", "a:gret", "-c", file)
    assert (ran.code, ran.out) == (4, "")
    assert "a:gret" in ran.err
    assert "Did you mean a:greet?" in ran.err
    as_json = command("describe", "a:gret", "--json", "-c", file)
    assert as_json.code == 4
    assert as_json.json["error"]["code"] == "tool_not_found"
    assert "a:greet" in as_json.json["error"]["suggestions"]


def test_an_ambiguous_name_is_refused_with_the_candidates(command: Command, settings: Settings) -> None:
    ran = command("call", "greet", "-c", settings(a=toolbox(), b=toolbox()))
    assert ran.code == 4
    assert "a:greet" in ran.err
    assert "b:greet" in ran.err


# -- call --------------------------------------------------------------------------------------------------------------


def test_call_prints_the_tools_result(command: Command, settings: Settings, tmp_path: Path) -> None:
    file = settings(a=toolbox())
    arguments = '{"person": "Ada"}'
    (tmp_path / "arguments.json").write_text(arguments)
    wanted = Ran(0, "Hello, Ada!\n", "")
    assert command("call", "a:greet", "--args", arguments, "-c", file) == wanted
    assert command("call", "a:greet", "--args", f"@{tmp_path}/arguments.json", "-c", file) == wanted
    assert command("call", "a:greet", "--args", "-", "-c", file, stdin=arguments) == wanted


def test_call_as_json_is_the_whole_result_under_mcps_names(command: Command, settings: Settings) -> None:
    ran = command("call", "a:greet", "--args", '{"person": "Ada"}', "--json", "-c", settings(a=toolbox()))
    assert ran.json == {
        "content": [{"type": "text", "text": "Hello, Ada!"}],
        "isError": False,
        "structuredContent": {"said": "Hello, Ada!"},
    }


def test_a_tool_that_answers_with_an_error_ends_with_its_own_code(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    assert command("call", "a:fail", "-c", file) == Ran(5, "", "fail went wrong\n")
    as_json = command("call", "a:fail", "--json", "-c", file)
    assert (as_json.code, as_json.json["isError"]) == (5, True)


def test_blocks_that_are_not_text_are_named(command: Command, settings: Settings) -> None:
    ran = command("call", "a:show_image", "-c", settings(a=toolbox()))
    assert ran == Ran(0, "[image image/png, 4 characters of base64; --json prints it]\n", "")


@pytest.mark.parametrize("name", ["a:greet", "A__greet", "a.greet"])
def test_a_tool_whose_name_contains_its_server_needs_no_prefix(
    command: Command, settings: Settings, tmp_path: Path, name: str
) -> None:
    other = {"command": sys.executable, "args": ["-c", f"open({str(tmp_path / 'started')!r}, 'w')"], "required": True}
    file = settings(a=toolbox(), b=other)
    assert command("call", name, "--args", '{"person": "Ada"}', "-c", file) == Ran(0, "Hello, Ada!\n", "")
    assert command("describe", name, "-c", file).err == ""
    assert not (tmp_path / "started").exists()


def test_only_an_id_rules_out_that_a_tool_is_of_another_server(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox("ring"), bad=broken())
    by_id, otherwise = command("describe", "a:ring", "-c", file), command("describe", "a.ring", "-c", file)
    assert (by_id.code, otherwise.code) == (4, 4)
    assert "server bad has failed" not in by_id.err
    assert "server bad has failed" in otherwise.err


def test_a_kept_script_may_use_every_server_even_if_one_is_called_like_the_scripts(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "hello.lua").write_text('result(a.greet({person = "Ada"}):await())')
    file = settings({"scripts": {"folder": str(tmp_path / "kept")}}, a=toolbox(), scripts=toolbox("greet"))
    ran = command("call", "scripts:hello", "-c", file)
    assert (ran.code, ran.err) == (0, "")
    assert "Hello, Ada!" in ran.out


def test_arguments_can_be_words_that_the_schema_types(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    assert command("call", "a:greet", "person=Ada", "language=de", "-c", file) == Ran(0, "Hello, Ada!\n", "")
    assert command("call", "a:greet", "--args", '{"person": "Bo"}', "person=Ada", "-c", file).out == "Hello, Ada!\n"
    wrong = command("call", "a:greet", "person=Ada", "language=fr", "-c", file)
    assert wrong == Ran(2, "", 'toolcrib: language must be "en"|"de", not \'fr\'.\nlanguage is one of: en, de\n')
    assert command("call", "a:greet", "persn=Ada", "-c", file).err.endswith("Did you mean person?\n")
    assert command("call", "a:greet", "Ada", "-c", settings(a={"command": "never-started"})).code == 2


def test_arguments_that_do_not_fit_are_taught(command: Command, settings: Settings) -> None:
    ran = command("call", "a:greet", "--args", '{"persn": "Ada"}', "-c", settings(a=toolbox()))
    assert (ran.code, ran.out) == (2, "")
    assert "person" in ran.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("{person: 1}", "--args is not JSON: a key in double quotes belongs here (line 1, column 2)."),
        ("[]", "--args must be a JSON object."),
        ("@lost.json", "lost.json cannot be read: No such file or directory."),
        ("", "--args is not JSON: the file is empty"),
    ],
)
def test_arguments_that_are_no_object_are_refused_before_any_server_starts(
    command: Command, settings: Settings, given: str, said: str
) -> None:
    ran = command("call", "a:greet", "--args", given, "-c", settings(a={"command": "never-started"}))
    assert ran.code == 2
    assert said in ran.err
    assert "never-started" not in ran.err


def test_a_tool_of_a_server_that_is_down_names_the_server_and_why(command: Command, settings: Settings) -> None:
    ran = command("call", "bad:greet", "--args", '{"person": "Ada"}', "-c", settings(a=toolbox(), bad=broken()))
    assert ran.code == 6
    assert "no licence key found" in ran.err


def test_a_required_server_that_is_down_ends_the_verb(command: Command, settings: Settings) -> None:
    ran = command("tools", "-c", settings(a=toolbox(), bad=broken(required=True)))
    assert (ran.code, ran.out) == (6, "")
    assert "required" in ran.err


# -- approval and policy -----------------------------------------------------------------------------------------------

ASKS = {"calls": {"approval": "writing"}}


def test_a_call_without_approval_is_not_run_and_says_how_to_approve(command: Command, settings: Settings) -> None:
    file = settings(ASKS, a=toolbox())
    ran = command("call", "a:show_image", "-c", file)
    assert (ran.code, ran.out) == (7, "")
    assert "a:show_image was not run: a person must agree to it" in ran.err
    assert "Approve it with --yes, or run this at a terminal to be asked." in ran.err
    as_json = command("call", "a:show_image", "--json", "-c", file)
    assert (as_json.code, as_json.json["error"]["code"]) == (7, "approval_required")


def test_a_call_that_was_agreed_to_beforehand_is_run(command: Command, settings: Settings) -> None:
    ran = command("call", "a:show_image", "--yes", "-c", settings(ASKS, a=toolbox()))
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("[image image/png")


def test_a_call_that_needs_no_approval_asks_no_one(command: Command, settings: Settings) -> None:
    ran = command("call", "a:greet", "--args", '{"person": "Ada"}', "-c", settings(ASKS, a=toolbox()))
    assert ran == Ran(0, "Hello, Ada!\n", "")


def test_a_policy_hides_tools_from_verbs_that_use_them_but_not_from_a_look_at_the_servers(
    command: Command, settings: Settings
) -> None:
    hiding = {"policy": {"rules": [{"tools": ["a:*"], "scopes": ["admin"]}]}, "always_visible": ["a:greet"]}
    file = settings(hiding, a=toolbox())
    assert command("tools", "-c", file).out == ""
    assert command("describe", "a:greet", "-c", file).code == 4
    assert "the policy hides them from you" in command("search", "greet", "-c", file).err
    assert command("servers", "--fresh", "-c", file).out.splitlines()[1].split()[:3] == ["a", "ready", "4"]
    assert "No problems: 1 server, 4 tools." in command("doctor", "-c", file).out


def test_tools_of_a_server_are_asked_for_by_the_namespace_that_its_entry_gives(
    command: Command, settings: Settings
) -> None:
    file = settings(a=toolbox("ring", "fail", "show_image", namespace="box", allowedTools=["greet"]))
    assert command("tools", "-n", "box", "-c", file) == Ran(0, "box:greet  Say hello to a person.\n", "")
    assert command("tools", "-n", "a", "-c", file).code == 4
    assert command("servers", "--json", "-c", file).json["servers"][0]["namespace"] == "box"
    assert command("doctor", "-c", file).code == 0


# -- settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["servers", "tools", "doctor", "serve"])
def test_no_settings_file_names_the_places_searched(command: Command, verb: str) -> None:
    ran = command(verb)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("toolcrib: No settings file was found. Searched, in this order:\n  toolcrib.toml\n")
    assert ".vscode/mcp.json" in ran.err


def test_an_error_in_a_settings_file_names_its_line_as_text_and_as_json(command: Command, tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"toolcrib": {\n  "prefix": "no"}}')
    said = '.mcp.json:2: toolcrib.prefix must be true or false, not "no"'
    assert command("tools") == Ran(3, "", f"toolcrib: {said}\n")
    assert command("tools", "--json").json["error"]["message"] == said


def test_a_wrong_entry_disables_its_server_alone(command: Command, tmp_path: Path) -> None:
    servers = {"good": toolbox(), "time": {"command": "uvx", "args": "UTC"}}
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": servers}, indent=1))
    said = '.mcp.json:11: mcpServers.time.args must be a list of strings, not "UTC"'
    ran = command("tools")
    assert (ran.code, ran.err) == (0, f"toolcrib: server time has failed: {said}\n")
    assert "good:greet" in ran.out
    assert {row["name"]: row["state"] for row in command("servers", "--fresh", "--json").json["servers"]} == {
        "good": "ready",
        "time": "failed",
    }
    ran = command("doctor")
    assert ran.code == 6
    assert f"BAD time: failed: {said}" in ran.out
    assert "do: Fix its entry in the settings file." in ran.out


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_is_content_when_all_is_well(command: Command, settings: Settings) -> None:
    file = settings(a=toolbox())
    ran = command("doctor", "-c", file)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith(f"Settings: {file}\n")
    assert "ok  a: 4 tools" in ran.out
    assert "No problems: 1 server, 4 tools." in ran.out


def test_doctor_sees_the_tools_of_a_gateway_that_searches_on_disk(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    search = {"engine": "tantivy", "index": str(tmp_path / "index")}
    ran = command("doctor", "-c", settings({"search": search}, good=toolbox()))
    assert "No problems: 1 server, 4 tools." in ran.out
    assert not (tmp_path / "index").exists()


def test_doctor_says_where_secrets_come_from_and_whether_they_are_there(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("a secret of the right length")
    tokens = [{"secret": f"${{file:{name}}}", "caller": name} for name in ("there", "missing")]
    ran = command("doctor", "--config", settings({"http": {"tokens": tokens}}))
    assert "ok  toolcrib.http.tokens[0].secret: the file: there" in ran.out
    assert "BAD toolcrib.http.tokens[1].secret: the file missing does not exist" in ran.out
    assert "right length" not in ran.out


def test_doctor_says_what_fails_and_what_to_do(command: Command, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text("{}")
    file = settings(
        {"always_visible": ["a:gone"], "http": {"tokens": [{"env": "TOKEN_FOR_TEST", "caller": "me"}]}},
        a=toolbox(allowedTools=["greet", "grow"], required=True, autoApprove=[]),
        needy=toolbox(env={"K": "${KEY_FOR_TEST}"}, required=True),
        lost={"command": "no-such-program-for-test"},
    )
    ran = command("doctor", "-c", file)
    assert (ran.code, ran.err) == (6, "")
    for said in (
        f"also found, not used: {tmp_path}/.mcp.json",
        "mcpServers.a has settings of another client that are ignored: autoApprove",
        "ok  a: 1 tool  (",
        "BAD needy: failed: environment variable KEY_FOR_TEST is not set (env.K)",
        "do: Set KEY_FOR_TEST where toolcrib is started, or give it a default: ${KEY_FOR_TEST:-...}.",
        'do: Install the program, or give its full path in "command"; arguments belong in "args".',
        "toolcrib.always_visible: ",
        "a: allowedTools names grow, which the server does not offer",
        "serve --http would refuse to start: environment variable TOKEN_FOR_TEST is not set",
        "2 of 3 servers are not ready: lost, needy",
    ):
        assert said in ran.out


def test_doctor_notes_patterns_that_guard_nothing_since_they_may_be_misspelt(
    command: Command, settings: Settings
) -> None:
    ours = {
        "policy": {"rules": [{"tools": ["a:ring", "a:grete"], "scopes": ["admin"]}, {"effect": "hide"}]},
        "calls": {"approved": ["a:*"], "tool_rates": {"b:*": {"per_second": 1}}, "cache": {"tools": ["*:gret"]}},
    }
    file = settings(ours, a=toolbox())
    ran = command("doctor", "-c", file)
    assert ran.code == 0
    assert [line for line in ran.out.splitlines() if line.startswith("Note")] == [
        "Note: toolcrib.calls.tool_rates: b:* matches no current tool",
        "Note: toolcrib.calls.cache.tools: *:gret matches no current tool",
        "Note: toolcrib.policy.rules[0].tools: a:grete matches no current tool",
    ]
    assert len(command("doctor", "--json", "-c", file).json["notes"]) == 3
    assert command("doctor", "--json", "-c", settings(ours, a=toolbox(), bad=broken())).json["notes"] == []


@pytest.mark.parametrize(
    ("policy", "fate"),
    [
        ({"rules": [{"tools": ["a:ring"], "scopes": ["admin"]}]}, "are hidden from every caller: "),
        ({"rules": [{"tools": ["a:ring"], "effect": "hide"}]}, "are open to every caller: "),
        (
            {"rules": [{"tools": ["a:ring"], "effect": "hide"}], "default": "approve"},
            "are run only if a person agrees: ",
        ),
        ({"rules": [{"scopes": ["admin"]}]}, None),
        ({"default": "hide"}, None),
        (None, None),
    ],
)
def test_doctor_counts_the_tools_that_no_rule_covers(
    command: Command, settings: Settings, policy: dict[str, object] | None, fate: str | None
) -> None:
    ran = command("doctor", "--json", "-c", settings({} if policy is None else {"policy": policy}, a=toolbox()))
    said = [note for note in ran.json["notes"] if "no rule says" in note]
    assert ran.code == 0
    assert bool(said) is bool(fate)
    if fate is not None:
        assert (
            f"no rule says who may see 3 of 4 tools, which {fate}a:fail, a:greet, a:show_image. Name a tool" in said[0]
        )


def test_doctor_does_not_say_that_all_is_well_without_the_file_of_keywords(
    command: Command, settings: Settings
) -> None:
    ran = command("doctor", "-c", settings({"search": {"keywords": "gone.json"}}, a=toolbox()))
    assert "Nothing fails, but there is 1 warning above: 1 server, 4 tools." in ran.out
    assert "No problems" not in ran.out


def test_doctor_names_definitions_that_are_rejected_or_wait_for_a_person(capsys: pytest.CaptureFixture[str]) -> None:
    broken = Rejected(tool="x", reason="its schema is broken")
    held = Rejected(tool="y", reason="its description changed", state="held")
    for rejected, code, said in (
        ((), ExitCode.OK, "No problems: 1 server, 3 tools."),
        ((broken,), ExitCode.OK, "Nothing fails, but there is 1 tool rejected above: 1 server, 3 tools."),
        ((held, held), ExitCode.REFUSED, "but there are 2 tools held until you trust the definition above"),
        ((broken, held), ExitCode.REFUSED, "there is 1 tool rejected and 1 tool held until you trust the definition"),
    ):
        status = ServerStatus(name="wiki", state=ServerState.READY, since=0, tools=3, rejected=rejected)
        options = {"wiki": ServerOptions(name="wiki", command="wiki")}
        report = DoctorReport(settings=LoadedSettings(), unused=(), statuses=(status,), problems=(), options=options)
        print_report(report)
        assert said in capsys.readouterr().out
        assert (report.exit_code, report.as_json()["ok"]) == (code, code is ExitCode.OK)


def test_doctor_shows_entries_of_the_keywords_file_that_do_nothing(
    command: Command, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "words.json").write_text('{"a:greet": ["salute"], "a:grete": ["salute"],\n"a:ring": 3}')
    ran = command("doctor", "-c", settings({"search": {"keywords": "words.json"}}, a=toolbox()))
    assert ran.code == 0
    assert '  warning: words.json:2: "a:ring" is left out: it must be a list of phrases, not a number' in ran.out
    assert "Note: toolcrib.search.keywords: a:grete is not a current tool; did you mean a:greet?" in ran.out


OTHERS = ("ring", "fail", "show_image")


def test_doctor_says_what_an_embedder_adds_to_a_search(command: Command, settings: Settings) -> None:
    search = {"embedder": "tests.cli.test_verbs:Flat"}
    ran = command("doctor", "-c", settings({"search": search}, a=toolbox(*OTHERS)))
    assert ran.code == 0
    assert "Note: search.embedder tests.cli.test_verbs:Flat works and adds " in ran.out


class Flat:
    """An embedder to which all texts are the same."""

    name = "flat"
    dim = 2

    def embed(self, texts: Sequence[str]) -> Vectors:
        return np.array([[1, 0] if text.strip() else [0, 0] for text in texts], dtype=np.float32).reshape(-1, 2)


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (
            {"surfaces": ["direct"], "prefix": False},
            "serve would refuse to start: a:greet and b:greet both claim the name greet. Set prefix = true",
        ),
        ({"http": {"host": "0.0.0.0"}}, "serve --http would refuse to start: Refusing to serve on 0.0.0.0 without"),
        (
            {"search": {"embedder": "onnx:some-model"}},
            "serve would refuse to start: toolcrib.search.embedder: There is no embedder 'onnx'. Use one of static, ",
        ),
        (
            {"search": {"describe": "no_such_module:describe"}},
            "serve would refuse to start: toolcrib.search.describe: no_such_module:describe cannot be loaded",
        ),
    ],
)
def test_doctor_reports_whatever_serve_would_refuse(
    command: Command, settings: Settings, ours: dict[str, object], said: str
) -> None:
    ran = command("doctor", "-c", settings(ours, a=toolbox(*OTHERS), b=toolbox(*OTHERS)))
    assert ran.code == 6
    assert f"Problem: {said}" in ran.out
    assert "No problems" not in ran.out


def test_names_that_the_policy_keeps_apart_do_not_collide_for_doctor(command: Command, settings: Settings) -> None:
    only_admins = {"rules": [{"tools": ["b:*"], "scopes": ["admin"]}]}
    file = settings({"surfaces": ["direct"], "prefix": False, "policy": only_admins}, a=toolbox(), b=toolbox())
    assert command("doctor", "-c", file).code == 0


def test_doctor_gives_advice_that_fits_the_response_of_a_url(command: Command, settings: Settings) -> None:
    with answering() as base:
        servers = {name: {"url": f"{base}/{name}"} for name in ("broken", "moved", "page")}
        file = settings(
            **servers, tls={"url": base.replace("http:", "https:")}, typo={"url": base, "allowTools": ["a"]}
        )
        reports = command("doctor", "--json", "-c", file).json["servers"]
    assert {one["name"]: one["advice"] for one in reports} == {
        "broken": "Correct its url: it leads to a page for people, not to an MCP endpoint.",
        "moved": "Write the address that it names into url, if that is the server you mean.",
        "page": "Correct its url: it leads to a page for people, not to an MCP endpoint.",
        "tls": 'Write "http://" in its url, if it speaks no TLS; otherwise correct the port.',
        "typo": "Write allowedTools in place of allowTools.",
    }


def test_doctor_names_the_time_that_a_list_took_too_long_for(command: Command, settings: Settings) -> None:
    program = (
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    asked = json.loads(line)\n"
        "    if asked['method'] == 'initialize':\n"
        "        info = {'name': 'slow', 'version': '1'}\n"
        "        result = {'protocolVersion': '2025-11-25', 'capabilities': {'tools': {}}, 'serverInfo': info}\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': asked['id'], 'result': result}), flush=True)\n"
    )
    entry = {"command": sys.executable, "args": ["-c", program], "protocol": "2025-11-25"}
    (report,) = command("doctor", "--json", "-c", settings(slow={**entry, "timeouts": {"list": 0.2}})).json["servers"]
    assert report["reason"] == "no tool list within 0.2 s"
    assert report["advice"] == 'Give it longer: "timeouts": {"list": 120}, or see what holds it up.'


class _NoServer(BaseHTTPRequestHandler):
    """An HTTP endpoint that is not an MCP server."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response({"/broken": 500, "/moved": 307}.get(self.path, 200))
        if self.path == "/moved":
            self.send_header("location", "http://elsewhere.invalid/mcp")
        self.send_header("content-type", "text/html")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server gives it
        pass


@contextmanager
def answering() -> Iterator[str]:
    """Serve one such endpoint, and yield its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoServer) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_doctor_names_files_that_cannot_be_written(command: Command, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("not a folder")
    (tmp_path / "link.jsonl").symlink_to("precious")
    calls = {"audit_file": {"path": "link.jsonl", "required": True}}
    file = settings({"calls": calls, "state": {"path": "plain/state.sqlite"}}, a=toolbox())
    ran = command("doctor", "-c", file)
    assert ran.code == 6
    said = " ".join(ran.out.split())
    assert (
        f"toolcrib.calls.audit_file: every call is refused, because {tmp_path}/link.jsonl cannot be written: "
        "it is a link to precious" in said
    )
    assert f"because {tmp_path}/plain/state.sqlite cannot be written: {tmp_path}/plain is not a folder" in said
    (tmp_path / "link.jsonl").unlink()
    (tmp_path / "plain").unlink()
    assert command("doctor", "-c", file).code == 0


def test_a_call_that_the_audit_file_lacks_says_so(command: Command, settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to("precious")
    file = settings({"calls": {"audit_file": {"path": "link.jsonl"}}}, a=toolbox())
    ran = command("call", "a:greet", "person=Ann", "-c", file)
    assert ran.code == 0
    assert f"toolcrib: the audit file {tmp_path}/link.jsonl cannot be written: it is a link to precious" in ran.err


def test_doctor_shows_what_was_run_without_secrets(command: Command, settings: Settings) -> None:
    secrets = ["--api-key", "hunter2", "postgres://me:hunter2@db/x", "hunter2hunter2hunter2", "plain word"]
    bad = {"command": "no-such-program", "args": ["--flag", *secrets], "env": {"KEY": "hunter2!"}}
    ran = command("doctor", "-c", settings(bad=bad))
    assert "ran: no-such-program --flag --api-key *** postgres://db/x *** 'plain word'" in ran.out
    assert "hunter2" not in ran.out


def test_doctor_as_json_has_everything_and_no_secrets(command: Command, settings: Settings) -> None:
    file = settings(remote={"url": "http://user:hunter2@127.0.0.1:9/hunter2?key=hunter2"}, bad=broken())
    ran = command("doctor", "--json", "-c", file)
    assert (ran.code, ran.json["ok"]) == (6, False)
    assert ran.json["source"] == str(file)
    assert [server["reached_by"] for server in ran.json["servers"]][1] == "http: http://127.0.0.1:9"
    assert all(server["advice"] for server in ran.json["servers"])
    assert "hunter2" not in ran.out + ran.err


@pytest.mark.parametrize("words", [("call", "toolbox:greet", "person=Ann"), ("tools", "--fresh"), ("doctor",)])
def test_commands_leave_the_address_of_metrics_to_the_gateway_that_has_it(
    command: Command, settings: Callable[..., Path], words: tuple[str, ...]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        metrics = f"127.0.0.1:{taken.getsockname()[1]}"
        file = settings({"telemetry": {"metrics": metrics}, "console": {"address": "127.0.0.1:0"}}, toolbox=toolbox())
        ran = command(*words, "-c", file)
    assert (ran.code, ran.err) == (0, "")


def test_doctor_reports_a_console_that_would_not_start(command: Command, settings: Callable[..., Path]) -> None:
    file = settings({"console": {"address": "0.0.0.0:8321"}}, toolbox=toolbox())
    ran = command("doctor", "-c", file)
    assert ran.code == 6
    assert "serve would refuse to start" in ran.out
