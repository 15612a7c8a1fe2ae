"""What the verbs say of definitions that are not used as they came."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran
from tests.contract.test_odd_definitions import DEFINITIONS, EXPECTED
from tests.upstream.support import SERVERS

Command = Callable[..., Ran]


def test_every_verb_counts_what_is_offered_and_says_what_became_of_the_rest(
    command: Command, settings: Callable[..., Path]
) -> None:
    small = [one for one in DEFINITIONS if not one["name"].startswith("many")]
    spec = json.dumps({"pages": [{"tools": small}]})
    file = settings(odd={"command": sys.executable, "args": ["-I", "-S", str(SERVERS / "raw.py"), spec]})
    fates = {one["name"]: EXPECTED[one["name"]] for one in small}
    offered = sum(fate != "rejected" for fate in fates.values())
    repaired = sum(fate == "repaired" for fate in fates.values())

    first = command("servers", "-c", file, "--json").json["servers"][0]
    at_rest = command("servers", "-c", file, "--json").json["servers"][0]
    assert (first["state"], at_rest["state"]) == ("ready", "idle")
    for row in (first, at_rest):
        assert row["tools"] == offered
        found = {one["tool"]: one["state"] for one in (*row["rejected"], *row["marked"])}
        assert found == {name: fate for name, fate in fates.items() if fate != "offered"}
    assert len(command("tools", "-c", file).out.splitlines()) == offered
    table = " ".join(command("servers", "-c", file).out.split())
    assert f"1 tool rejected; {repaired} tools repaired; 1 tool with arguments checked by the server only" in table

    doctor = command("doctor", "-c", file)
    assert "rejected: text: its arguments would have to be string, and must be an object" in doctor.out
    assert "repaired: required_null: its input schema was repaired: required was left out" in doctor.out
    assert "unchecked: remote: what it refers to elsewhere is left to its server" in doctor.out
    assert f"1 server, {offered} tools" in doctor.out

    assert "Not all arguments are checked before a call" in command("describe", "odd:remote", "-c", file).out
    assert "Not all arguments" not in command("describe", "odd:plain", "-c", file).out
    assert "left to its server" in command("describe", "odd:remote", "-c", file, "--json").json["unchecked"]
    assert "odd:remote: Not all arguments are checked before a call" in command("lint", "-c", file).out
