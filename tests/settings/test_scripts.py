"""The table `scripts`: the folder of stored scripts, their limits, and the sandbox."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolcrib.app import App
from toolcrib.errors import SettingsError
from toolcrib.sandbox.limits import Limits, SandboxOptions, ScriptOptions
from toolcrib.settings.options import Settings

Loading = Callable[..., Settings]

EVERYTHING = """
[toolcrib.scripts]
folder = "mine"
levels = 2
read_only = true
watch = 0.5

[toolcrib.scripts.limits]
wall = 30
stall = 2.5
soft_cpu = 1
cpu = 2
lua_bytes = 1000001
as_bytes = 1000002
calls = 50
inflight = 4
script_bytes = 1003
out_bytes = 1004
depth = 5
nodes = 6
response_bytes = 1007
frame_bytes = 3008
print_bytes = 1009
error_bytes = 1010

[toolcrib.scripts.sandbox]
seccomp = "try"
pool = 0
workers = 3
queue_wait = 1.5
zygote = false
start = 4
"""


def scripts(**fields: Any) -> str:
    return json.dumps({"toolcrib": {"scripts": fields}}, indent=1)


def test_every_key_sets_its_option(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    settings = loading(EVERYTHING, "toolcrib.toml")
    assert settings.scripts == ScriptOptions(levels=2, read_only=True, watch_s=0.5)
    assert settings.limits == Limits(
        wall_s=30,
        stall_s=2.5,
        soft_cpu_s=1,
        cpu_s=2,
        lua_bytes=1000001,
        as_bytes=1000002,
        calls=50,
        inflight=4,
        script_bytes=1003,
        out_bytes=1004,
        depth=5,
        nodes=6,
        response_bytes=1007,
        frame_bytes=3008,
        print_bytes=1009,
        error_bytes=1010,
    )
    assert settings.sandbox == SandboxOptions(
        seccomp="try", pool=0, workers=3, queue_wait_s=1.5, zygote=False, start_s=4
    )
    assert settings.script_folder == tmp_path / "mine"
    assert settings.warnings == ()


@pytest.mark.parametrize("text", [scripts(), scripts(limits={}, sandbox={}), '{"toolcrib": {}}'])
def test_without_the_table_scripts_use_the_defaults_and_none_are_stored(loading: Loading, text: str) -> None:
    settings = loading(text)
    assert (settings.scripts, settings.limits, settings.sandbox) == (ScriptOptions(), Limits(), SandboxOptions())
    assert settings.script_folder is None


def test_a_key_may_be_written_in_camel_case_too(loading: Loading) -> None:
    settings = loading(scripts(readOnly=True, limits={"softCpu": 1}, sandbox={"queueWait": 2}))
    assert (settings.scripts.read_only, settings.limits.soft_cpu_s, settings.sandbox.queue_wait_s) == (True, 1, 2)


def test_the_scripts_of_the_folder_are_tools_of_the_app(loading: Loading, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one.lua").write_text("return 1")
    app = App(loading(scripts(folder="mine")))
    assert [script.name for script in app.stored.scripts()] == ["one"]


@pytest.mark.parametrize("folder", ["nowhere", "mcp.json"])
def test_a_missing_folder_is_refused_with_its_path(loading: Loading, tmp_path: Path, folder: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(scripts(folder=folder))
    said = f"mcp.json:4: toolcrib.scripts.folder names a folder that does not exist: {tmp_path / folder}; create it"
    assert caught.value.message.startswith(said)


def test_a_folder_that_cannot_be_read_is_refused(
    loading: Loading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "mine").mkdir()
    monkeypatch.setattr("toolcrib.scripting.files.script_files", closed)
    with pytest.raises(
        SettingsError, match=r"mcp\.json:4: toolcrib\.scripts\.folder cannot be read: .*mine: Permission"
    ):
        loading(scripts(folder="mine"))


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.lua", "-- /// tool\n-- descriptoin = 'x'\n-- ///\nreturn 1", "bad.lua: there is no field descriptoin"),
        ("bad.py", "# /// tool\n# = = =\n# ///\n1", "bad.py: the metadata is not TOML"),
        ("bad.lua", "-- /// tool\n-- parameters.properties = 5\n-- ///\nreturn 1", "bad.lua: "),
        ("tab\tin_it.lua", "return 1", "tab"),
    ],
)
def test_a_broken_script_is_left_out_alone_with_a_warning_that_names_it(
    loading: Loading, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "mine" / "good.lua").write_text("return 1")
    settings = loading(scripts(folder="mine"))
    (warning,) = settings.warnings
    assert warning.startswith(f"mcp.json:4: toolcrib.scripts.folder contains a script that cannot be used: {said}")
    assert [script.name for script in App(settings).stored.scripts()] == ["good"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"levels": 0}, "mcp.json:4: toolcrib.scripts.levels must be a whole number of at least 1, not 0"),
        ({"read_only": "yes"}, 'mcp.json:4: toolcrib.scripts.read_only must be true or false, not "yes"'),
        ({"folder": 5}, "mcp.json:4: toolcrib.scripts.folder must be a string, not 5"),
        ({"level": 2}, 'mcp.json:4: toolcrib.scripts.level is not a setting; did you mean "levels"?'),
        ({"limits": 5}, "mcp.json:4: toolcrib.scripts.limits must be an object, not 5"),
        ({"limits": {"wall": "2m"}}, 'scripts.limits.wall must be a number of seconds above 0, not "2m"'),
        ({"limits": {"cpu": 2.5}}, "scripts.limits.cpu must be a whole number of at least 1, not 2.5"),
        (
            {"limits": {"wall_s": 2}},
            'mcp.json:5: toolcrib.scripts.limits.wall_s is not a setting; did you mean "wall"?',
        ),
        ({"limits": {"calls": 0}}, "mcp.json:5: toolcrib.scripts.limits.calls must be a whole number of at least 1"),
        ({"limits": {"nodes": True}}, "scripts.limits.nodes must be a whole number of at least 1, not true"),
        (
            {"levels": 2, "limits": {"out_bytes": 8388608}},
            "mcp.json:5: toolcrib.scripts.limits cannot be used: frame_bytes (4194304) must exceed out_bytes (8388608)",
        ),
        ({"sandbox": True}, "mcp.json:4: toolcrib.scripts.sandbox must be an object, not true"),
        ({"sandbox": {"seccomp": "never"}}, 'scripts.sandbox.seccomp cannot be "never"; use "require", "try" or "off"'),
        ({"sandbox": {"pool": -1}}, "scripts.sandbox.pool must be a whole number of at least 0, not -1"),
        ({"sandbox": {"workers": 0}}, "scripts.sandbox.workers must be a whole number of at least 1, not 0"),
        ({"sandbox": {"queue_wait": 0}}, "scripts.sandbox.queue_wait must be a number of seconds above 0, not 0"),
        ({"sandbox": {"zygot": True}}, 'scripts.sandbox.zygot is not a setting; did you mean "zygote"?'),
    ],
)
def test_a_wrong_value_is_refused_with_file_line_and_field(loading: Loading, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        loading(scripts(**fields))
    assert said in caught.value.message


@pytest.mark.parametrize("limits", [{"calls": 4}, {"out_bytes": 2048, "frame_bytes": 3072}])
def test_limits_that_fit_each_other_are_taken(loading: Loading, limits: dict[str, int]) -> None:
    taken = loading(scripts(limits=limits)).limits
    assert {name: getattr(taken, name) for name in limits} == limits
    assert taken.inflight <= taken.calls


def test_a_soft_limit_that_never_applies_is_warned_of(loading: Loading) -> None:
    (warning,) = loading(scripts(limits={"cpu": 2})).warnings
    assert "toolcrib.scripts.limits has a soft_cpu greater than its cpu of 2" in warning
    assert loading(scripts(limits={"cpu": 2, "soft_cpu": 1.5})).warnings == ()
