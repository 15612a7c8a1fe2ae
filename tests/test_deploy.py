"""The files that deploy a gateway: what they start exists, without rights and without secrets."""

import re
import shlex
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from toolcrib.cli.main import app
from toolcrib.server.options import HEALTH_PATHS

yaml: Any = import_module("yaml")  # without type stubs
DEPLOY = Path(__file__).parents[1] / "deploy"


def image() -> list[str]:
    """The instructions of the Dockerfile, each on one line."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def last(name: str) -> str:
    return [line.removeprefix(f"{name} ") for line in image() if line.startswith(f"{name} ")][-1]


def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys of systemd have capitals
    parser.read(DEPLOY / "toolcrib.service")
    return parser


def parse(words: list[str]) -> dict[str, Any]:
    """The options of a `toolcrib` command line."""
    command = app.get_command(click.Context(app), words[0])
    assert command is not None
    return command.make_context(words[0], words[1:]).params


@pytest.mark.parametrize(
    "words",
    [yaml.safe_load(last("CMD")), shlex.split(unit()["Service"]["ExecStart"])[1:]],
    ids=["container", "service"],
)
def test_what_is_started_is_a_command_of_toolcrib(words: list[str]) -> None:
    assert words[0] == "serve"
    assert parse(words)["config"] == Path("/etc/toolcrib/toolcrib.toml")


def test_the_container_runs_without_rights_and_reports_its_health() -> None:
    assert int(last("USER")) > 1000
    assert HEALTH_PATHS[0] in last("HEALTHCHECK")
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["toolcrib"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])


def test_the_image_installs_extras_that_exist() -> None:
    (extras,) = re.findall(r'"\.\[(.+?)\]"', "\n".join(image()))
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


def test_no_file_has_a_secret_and_ports_are_published_to_this_machine_only() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    assert services["toolcrib"]["environment"]["TOOLCRIB_TOKEN"].startswith("${TOOLCRIB_TOKEN:?")
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])


def test_several_gateways_share_redis_and_only_the_proxy_is_published_to_this_machine() -> None:
    services = yaml.safe_load((DEPLOY / "compose.replicas.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert all(value.startswith("${") for value in service.get("environment", {}).values())
    assert {name for name, service in services.items() if "ports" in service} == {"proxy"}
    assert services["proxy"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["toolcrib"]["deploy"]["replicas"] == 3
    assert "server toolcrib:8000;" in (DEPLOY / "nginx.conf").read_text(encoding="utf-8")


def test_a_reload_of_the_service_is_the_signal_that_reads_the_settings_again() -> None:
    assert unit()["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert unit()["Service"]["KillMode"] == "mixed", "workers are stopped by their supervisor, once calls have ended"
    assert unit()["Service"]["NoNewPrivileges"] == "true"


def test_the_service_finds_what_is_installed_beside_it() -> None:
    text = (DEPLOY / "toolcrib.service").read_text(encoding="utf-8")
    (path,) = re.findall(r"^Environment=PATH=(.+)$", text, re.MULTILINE)
    assert path.split(":")[0] == str(Path(shlex.split(unit()["Service"]["ExecStart"])[0]).parent)


def test_a_release_is_built_by_a_command_of_this_repository_and_needs_no_secret() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert "make release" in commands
    assert re.search(r"^release:", (DEPLOY.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})} == {"pypi", "image"}
    assert "secrets." not in text
    (pushed,) = [step["with"] for step in jobs["image"]["steps"] if "build-push" in step.get("uses", "")]
    assert (DEPLOY.parent / pushed["file"]).is_file()
    assert any("cosign sign" in step.get("run", "") for step in jobs["image"]["steps"])


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", sorted((DEPLOY.parent / ".github" / "workflows").glob("*.yml"))),
        ("vendor.compose-spec", sorted(DEPLOY.glob("compose*.yaml"))),
    ],
)
def test_workflows_and_compose_files_fit_their_schemas(schema: str, files: list[Path]) -> None:
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stdout
