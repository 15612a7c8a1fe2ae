"""The files that deploy a gateway: what they start exists, without rights and without secrets."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

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


def locked(name: str) -> dict[str, str]:
    """The versions of a file of requirements, by name; each must have a hash."""
    text = (DEPLOY / "requirements" / name).read_text(encoding="utf-8")
    entries = re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:]
    assert all("--hash=sha256:" in entry for entry in entries)
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def test_the_image_installs_what_the_project_and_its_extras_need_each_by_its_hash() -> None:
    text = (DEPLOY.parent / "Makefile").read_text(encoding="utf-8")
    (extras,) = re.findall(r"^IMAGE_EXTRAS := (.+)$", text, re.MULTILINE)
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(one for name in extras.split() for one in project["optional-dependencies"][name]),
    ]
    versions = locked("image.txt")
    for requirement in map(Requirement, wanted):
        assert versions[canonicalize_name(requirement.name)] in requirement.specifier
    assert "uv" in versions


def test_what_builds_a_release_is_installed_by_its_hash() -> None:
    top = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text(encoding="utf-8"))
    versions = locked("build.txt")
    for requirement in map(Requirement, top["build-system"]["requires"]):
        assert versions[requirement.name] in requirement.specifier
    assert versions.keys() >= {"build", "twine", "cyclonedx-bom"}
    installs = [line for line in image() if re.search(r"\bpip install\b", line)]
    assert installs
    for command in re.findall(r"pip install [^&]+", " ".join(installs)):
        assert "--require-hashes" in command or "--no-deps /wheels/" in command


def test_base_images_are_named_by_digest() -> None:
    bases = [line for line in image() if line.startswith("FROM ")]
    assert len(bases) == 2
    assert all(re.match(r"FROM \S+@sha256:[0-9a-f]{64}(?: AS build)?$", line) for line in bases)


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


CONFINED = {
    "NoNewPrivileges": "true",
    "CapabilityBoundingSet": "",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "PrivateDevices": "true",
    "PrivateUsers": "true",
    "ProtectKernelModules": "true",
    "ProtectKernelTunables": "true",
    "ProtectControlGroups": "true",
    "ProtectProc": "invisible",
    "RestrictNamespaces": "true",
    "RestrictSUIDSGID": "true",
    "SystemCallArchitectures": "native",
    "UMask": "0077",
}


def test_the_service_has_no_rights_and_leaves_its_servers_what_they_need() -> None:
    service = unit()["Service"]
    assert {name: service[name] for name in CONFINED} == CONFINED
    text = (DEPLOY / "toolcrib.service").read_text(encoding="utf-8")
    allowed, denied = re.findall(r"^SystemCallFilter=(.+)$", text, re.MULTILINE)
    assert {"@system-service", "seccomp", "landlock_restrict_self"} <= set(allowed.split()), (
        "scripts are confined with them"
    )
    assert denied == "~@privileged", "@resources has setrlimit, which limits scripts"
    assert {"AF_UNIX", "AF_INET", "AF_INET6"} <= set(service["RestrictAddressFamilies"].split())
    assert "MemoryDenyWriteExecute" not in service, "Node.js compiles into writable memory"
    assert f"Environment=HOME=/var/lib/{service['StateDirectory']}" in text, "downloads of uvx and npx are below it"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_rates_the_exposure_of_the_service_as_low() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(DEPLOY / "toolcrib.service")]
    rated = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert rated.returncode == 0, rated.stdout[-300:]


def test_the_service_finds_what_is_installed_beside_it() -> None:
    text = (DEPLOY / "toolcrib.service").read_text(encoding="utf-8")
    (path,) = re.findall(r"^Environment=PATH=(.+)$", text, re.MULTILINE)
    assert path.split(":")[0] == str(Path(shlex.split(unit()["Service"]["ExecStart"])[0]).parent)


def test_a_release_is_built_by_a_command_of_this_repository_and_needs_no_secret() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert "make release TRY=no" in commands
    assert re.search(r"^release:", (DEPLOY.parent / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "secrets." not in text
    (pushed,) = [step["with"] for step in jobs["image"]["steps"] if "build-push" in step.get("uses", "")]
    assert (DEPLOY.parent / pushed["file"]).is_file()
    assert any("cosign sign" in step.get("run", "") for step in jobs["sign"]["steps"])


def test_every_action_is_named_by_commit() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    used = re.findall(r"uses: *(.+)", text)
    assert len(used) > 10
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []


def test_a_job_that_can_prove_who_it_is_runs_only_what_publishes_or_signs() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    trusted = {name: job for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert trusted.keys() == {"pypi", "sign"}
    actions = {step["uses"].split("@")[0] for job in trusted.values() for step in job["steps"] if "uses" in step}
    assert actions == {
        "actions/download-artifact",
        "pypa/gh-action-pypi-publish",
        "docker/login-action",
        "sigstore/cosign-installer",
    }
    commands = [step["run"] for job in trusted.values() for step in job["steps"] if "run" in step]
    assert len(commands) == 1
    assert commands[0].startswith("cosign sign ")


def test_nothing_that_is_published_is_built_where_packages_are_installed_without_hashes() -> None:
    text = (DEPLOY.parent / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    unhashed = {
        name
        for name, job in jobs.items()
        for step in job["steps"]
        for line in step.get("run", "").splitlines()
        if re.search(r"\bpipx? (?:install|run)\b", line) and "--require-hashes" not in line
    }
    assert unhashed == {"trial"}
    assert "outputs" not in jobs["trial"]


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
