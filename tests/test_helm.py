"""The Helm chart: its values, and what its templates make of them.

Helm itself is used where it is installed. The chart uses a small part of its template language, which is read here, so
that the tests also run without it.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from toolcrib._version import VERSION
from toolcrib.server.options import HEALTH_PATHS
from toolcrib.settings.loader import load_settings

yaml: Any = import_module("yaml")  # without type stubs
CHART = Path(__file__).parents[1] / "deploy" / "helm" / "toolcrib"
DOCKERFILE = CHART.parents[1] / "Dockerfile"
_TAG = re.compile(r"{{-?\s*(.*?)\s*}}")


def read(name: str) -> Any:
    return yaml.safe_load((CHART / name).read_text(encoding="utf-8"))


def merged(base: Any, more: Any) -> Any:
    if not isinstance(base, Mapping) or not isinstance(more, Mapping):
        return more
    return {**base, **{key: merged(base.get(key), value) for key, value in more.items()}}


class Template:
    """The part of the template language that the chart uses: values, if, else, quote, default, toYaml and toJson."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        chart = read("Chart.yaml")
        self._top = {"Values": values, "Release": {"Name": "hub"}, "Chart": {"AppVersion": chart["appVersion"]}}

    def render(self, text: str) -> str:
        lines: list[str] = []
        shown = [True]
        for line in text.splitlines():
            control = re.fullmatch(r"\s*{{-\s*(if .+|else|end)\s*}}\s*", line)
            if control is None:
                lines += [_TAG.sub(lambda tag: self._value(tag[1]), line)] if all(shown) else []
            elif control[1].startswith("if "):
                shown.append(bool(self._look_up(control[1].removeprefix("if ").strip())))
            elif control[1] == "else":
                shown.append(not shown.pop())
            else:
                shown.pop()
        assert shown == [True], "an if without an end"
        return "\n".join(lines)

    def _value(self, expression: str) -> str:
        first, *pipes = (part.strip() for part in expression.split("|"))
        function, _, argument = first.rpartition(" ")
        value = self._look_up(argument)
        if function == "toJson":
            value = json.dumps(value)
        elif function == "toYaml":
            value = yaml.safe_dump(value).rstrip()
        else:
            assert function == "", expression
        for pipe in pipes:
            name, _, argument = pipe.partition(" ")
            value = self._piped(value, name, argument)
        return str(value).lower() if isinstance(value, bool) else str(value)

    def _piped(self, value: Any, name: str, argument: str) -> Any:
        match name:
            case "quote":
                return json.dumps(str(value))
            case "default":
                return value or self._look_up(argument)
            case "nindent":
                indent = "\n" + " " * int(argument)
                return indent + str(value).replace("\n", indent)
        raise AssertionError(f"{name} is not read here")

    def _look_up(self, path: str) -> Any:
        found: Any = self._top
        for key in path.removeprefix(".").split("."):
            found = found[key]
        return found


def rendered(**changes: Any) -> dict[str, Any]:
    """The objects of the chart by kind."""
    values = merged(read("values.yaml"), changes)
    check(values)
    template = Template(values)
    found = [yaml.safe_load(template.render(path.read_text())) for path in sorted(CHART.glob("templates/*.yaml"))]
    return {one["kind"]: one for one in found if one}


def check(values: Any) -> None:
    jsonschema_rs.validate(json.loads((CHART / "values.schema.json").read_text()), values)


def container(objects: Mapping[str, Any]) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]["containers"][0]


def test_the_chart_is_that_of_this_version() -> None:
    assert read("Chart.yaml")["appVersion"] == VERSION


def test_the_settings_of_the_chart_can_be_loaded_and_are_where_the_container_reads_them(tmp_path: Path) -> None:
    objects = rendered()
    file = tmp_path / "toolcrib.json"
    file.write_text(objects["ConfigMap"]["data"]["toolcrib.json"])
    settings = load_settings(file, environ={})
    assert (settings.warnings, settings.telemetry.metrics) == ((), "0.0.0.0:9464")
    mounts = {one["name"]: one["mountPath"] for one in container(objects)["volumeMounts"]}
    assert container(objects)["args"][-1] == f"{mounts['settings']}/toolcrib.json"
    volumes = set(re.findall(r'VOLUME \["(.+)", "(.+)"\]', DOCKERFILE.read_text())[0])
    assert volumes <= set(mounts.values())


def test_the_pod_runs_without_rights_and_is_asked_for_its_health() -> None:
    objects = rendered()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert str(pod["securityContext"]["runAsUser"]) in DOCKERFILE.read_text()
    assert pod["automountServiceAccountToken"] is False
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    probes = [container(objects)[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe")]
    assert tuple(probes) == HEALTH_PATHS


def test_the_service_leads_to_the_pods() -> None:
    objects = rendered()
    selector = objects["Service"]["spec"]["selector"]
    assert selector.items() <= objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    ports = {one["name"]: one["containerPort"] for one in container(objects)["ports"]}
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] in ports
    assert container(objects)["args"][2] == f"0.0.0.0:{ports['http']}"


def test_state_is_on_a_volume_of_one_pod_or_in_no_volume_at_all() -> None:
    kept, unkept = rendered(), rendered(persistence={"enabled": False})
    claim = kept["PersistentVolumeClaim"]["metadata"]["name"]
    volumes = [
        {one["name"]: one for one in objects["Deployment"]["spec"]["template"]["spec"]["volumes"]}
        for objects in (kept, unkept)
    ]
    assert volumes[0]["state"]["persistentVolumeClaim"]["claimName"] == claim
    assert kept["Deployment"]["spec"]["strategy"] == {"type": "Recreate"}
    assert volumes[1]["state"]["emptyDir"] == {}
    assert "PersistentVolumeClaim" not in unkept


def test_the_image_is_that_of_the_chart_unless_the_values_say_otherwise() -> None:
    assert container(rendered())["image"] == f"toolcrib:{VERSION}"
    assert container(rendered(image={"tag": "next"}))["image"] == "toolcrib:next"


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2},
        {"replicas": 2, "persistence": {"enabled": False}},
        {"replica": 1},
        {"secretName": ""},
        {"service": {"port": 0}},
    ],
    ids=str,
)
def test_values_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        rendered(**changes)


def test_replicas_share_state_in_redis() -> None:
    state = {"toolcrib": {"state": {"url": "redis://redis:6379/0"}}}
    objects = rendered(replicas=3, persistence={"enabled": False}, settings=state)
    assert objects["Deployment"]["spec"]["replicas"] == 3


def test_the_chart_has_no_secret() -> None:
    objects = rendered()
    assert container(objects)["envFrom"] == [{"secretRef": {"name": "toolcrib"}}]
    assert "Secret" not in objects


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("helm") is None, reason="needs helm")
def test_helm_renders_the_same() -> None:
    for words in (["lint", "--strict", str(CHART)], ["template", "hub", str(CHART)]):
        done = subprocess.run(["helm", *words], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    objects = {one["kind"]: one for one in yaml.safe_load_all(done.stdout) if one}
    assert objects == rendered()
