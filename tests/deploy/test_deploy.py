"""What is deployed with: valid by the schemas of those who read it, and in words that the broker knows."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from monitoring.boards import BOARDS
from service.cli.companions import PIPELINES
from service.settings.sources import load_config
from tests.outside import needs

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "oncelog.yaml").read_text()))
(MONITOR,) = yaml.safe_load_all((DEPLOY / "kubernetes" / "monitoring.yaml").read_text())
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|[smhdwy]))+$"}


def of_these(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


SERVICE_MONITOR = of_these(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "ServiceMonitor"},
    metadata=of_these(["name"], name={"type": "string"}, labels=LABELS),
    spec=of_these(
        ["selector", "endpoints"],
        jobLabel={"type": "string"},
        selector=of_these([], matchLabels=LABELS),
        endpoints={
            "type": "array",
            "minItems": 1,
            "items": of_these([], port={"type": "string"}, path={"type": "string"}, interval=DURATION),
        },
    ),
)
"""What a ServiceMonitor may say, of the fields that ours uses. The operator drops a field that it does not know without
a word, so a misspelt one must be found here.
"""
BROKERS = [name for name in COMPOSE["services"] if name.startswith("broker")]


def test_compose_is_valid() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_of_compose_is_set_up_with_settings_that_do_something(name: str) -> None:
    config = load_config(None, COMPOSE["services"][name]["environment"], [])
    assert config.warnings == ()
    assert config.node_id == int(name.removeprefix("broker-"))


def test_what_compose_mounts_is_there() -> None:
    for service in COMPOSE["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]


def test_compose_runs_the_pipelines_that_the_demo_runs_on_topics_that_it_makes() -> None:
    run = {service["command"][0] for service in COMPOSE["services"].values() if service["image"] == "oncelog-spark"}
    assert run == {f"{each.name}.py" for each in PIPELINES}
    assert all((ROOT / "spark_sink" / "demo" / script).exists() for script in run)
    made = re.search(r"for each in ([a-z ]+);", COMPOSE["services"]["topics"]["entrypoint"][2])
    assert made is not None
    assert set(made[1].split()) == {topic for each in PIPELINES for topic in (each.reads, each.writes)}


def test_compose_opens_ports_to_this_machine_only_and_checks_the_health_of_what_it_starts() -> None:
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert "healthcheck" in service or service["image"] == "oncelog", name


@needs("promtool")
def test_prometheus_takes_its_configuration_and_scrapes_every_broker(tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    (tmp_path / "oncelog.rules.yml").write_bytes((ROOT / "monitoring" / "alerts" / "oncelog.rules.yml").read_bytes())
    checked = subprocess.run(
        ["promtool", "check", "config", str(tmp_path / "prometheus.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    (job,) = config["scrape_configs"]
    published = {name: COMPOSE["services"][name]["ports"][1].removeprefix("127.0.0.1:").split(":") for name in BROKERS}
    assert [(each["targets"], each["labels"]) for each in job["static_configs"]] == [
        ([f"{name}:{inside}"], {"instance": f"localhost:{outside}"}) for name, (outside, inside) in published.items()
    ], "an alert's runbook_url, made of the instance, leads there from this machine"


@needs("amtool")
def test_alertmanager_takes_its_configuration() -> None:
    checked = subprocess.run(
        ["amtool", "check-config", str(DEPLOY / "alertmanager.yml")], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_grafana_finds_the_boards_where_compose_mounts_them() -> None:
    provided = yaml.safe_load((DEPLOY / "grafana" / "provisioning" / "dashboards" / "oncelog.yml").read_text())
    (provider,) = provided["providers"]
    mounts = dict(volume.split(":")[:2] for volume in COMPOSE["services"]["grafana"]["volumes"])
    assert mounts["./monitoring/dashboards"] == provider["options"]["path"]
    home = COMPOSE["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.removeprefix(provider["options"]["path"] + "/") in {board.path.name for board in BOARDS}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_a_kubernetes_manifest_is_valid(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)


def test_kubernetes_neither_starts_a_broker_again_nor_hides_it_from_its_clients_while_the_store_is_away() -> None:
    """It is not ready then. Its name must go on to lead to it, or clients could not go on when the store is back; and
    who looks for any broker finds those that have the store.
    """
    (stateful,) = [each for each in MANIFESTS if each["kind"] == "StatefulSet"]
    services = {each["metadata"]["name"]: each["spec"] for each in MANIFESTS if each["kind"] == "Service"}
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    probed = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
    assert probed == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert services[stateful["spec"]["serviceName"]]["publishNotReadyAddresses"]
    assert "publishNotReadyAddresses" not in services["oncelog-bootstrap"]


def test_the_service_monitor_is_valid() -> None:
    jsonschema.validate(MONITOR, SERVICE_MONITOR)


def test_the_service_monitor_finds_every_broker_once() -> None:
    """By one Service, which names pods that are not ready too: a broker without its store is to be watched above all.
    By two Services each broker would be counted twice, and OncelogNoController would never end.
    """
    wanted = MONITOR["spec"]["selector"]["matchLabels"].items()
    ports = {endpoint["port"] for endpoint in MONITOR["spec"]["endpoints"]}
    (found,) = [
        each
        for each in MANIFESTS
        if each["kind"] == "Service"
        and wanted <= each["metadata"]["labels"].items()
        and ports & {port["name"] for port in each["spec"]["ports"]}
    ]
    assert found["spec"]["publishNotReadyAddresses"]
    (stateful,) = [each for each in MANIFESTS if each["kind"] == "StatefulSet"]
    pods = stateful["spec"]["template"]["metadata"]["labels"]
    assert found["spec"]["selector"].items() <= pods.items()
    assert MONITOR["spec"]["jobLabel"] in found["metadata"]["labels"]


def test_a_broker_of_kubernetes_is_set_up_with_settings_that_do_something() -> None:
    (stateful,) = [each for each in MANIFESTS if each["kind"] == "StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    line = container["args"][0].replace("${HOSTNAME##*-}", "2").replace("${HOSTNAME}", "oncelog-2")
    words = shlex.split(line)
    given = [words[at + 1] for at, word in enumerate(words) if word == "-o"]
    config = load_config(None, {}, given)
    assert config.warnings == ()
    assert config.node_id == 2
    assert config.advertised_endpoints()[0].host == "oncelog-2.oncelog"


@needs("systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    """With a program that is there: it asks for that too."""
    unit = (DEPLOY / "oncelog.service").read_text()
    (tmp_path / "oncelog.service").write_text(re.sub("/opt/oncelog/bin/oncelog", sys.executable, unit))
    checked = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "oncelog.service")], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


LOCKS = {"requirements.txt": ROOT / "pyproject.toml", "spark-requirements.txt": ROOT / "spark_sink" / "pyproject.toml"}
"""What an image holds, by the project that it is for."""
MACHINES = ("x86_64", "aarch64")


def test_the_image_is_built_of_every_package_that_is_installed() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    installed = re.search(r"^include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert installed is not None
    for package in re.findall(r'"(\w+)\*"', installed[1]):
        assert f"COPY {package} {package}" in lines


@pytest.mark.parametrize("name", ["Dockerfile", "spark.Dockerfile"])
def test_an_image_is_built_elsewhere_of_what_is_locked_and_runs_as_nobody(name: str) -> None:
    build, _, image = (DEPLOY / name).read_text().rpartition("\nFROM ")
    assert "pip" not in image
    assert image.index("\nUSER 10001:10001\n") < image.index("\nENTRYPOINT ")
    installs = re.findall(r"pip (?:install|wheel) .*", build.replace("\\\n", "").replace("&&", "\n"))
    assert len(installs) == build.count("bin/pip") - 1, "and a check that nothing is missing"
    for line in installs:  # with a hash each, or from what is here and nowhere else
        own = "--no-deps" in line and "--no-build-isolation" in line
        assert "--require-hashes" in line or own or "/dist/" in line, line


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_one_version_of_all_that_is_needed_to_the_last_package(lock: str) -> None:
    lines = re.findall(r"^([a-z0-9-]+)==(\S+)", (DEPLOY / lock).read_text(), re.MULTILINE)
    locked = dict(lines)
    assert len(locked) == len(lines)
    for machine in MACHINES:
        here = {"python_version": "3.12", "python_full_version": "3.12.0", "platform_machine": machine}
        needed = [
            (each, "") for each in map(Requirement, tomllib.loads(LOCKS[lock].read_text())["project"]["dependencies"])
        ]
        seen: set[tuple[str, str]] = set()
        while needed:
            each, extra = needed.pop()
            if each.marker is not None and not each.marker.evaluate({**here, "extra": extra}):
                continue
            name = re.sub(r"[._]", "-", each.name.lower())
            assert each.specifier.contains(locked[name]), f"{name} {locked[name]} is not {each.specifier}"
            for one in {(name, extra) for extra in each.extras or {""}} - seen:
                seen.add(one)
                needed += [(each, one[1]) for each in map(Requirement, metadata.requires(name) or ())]


def test_what_git_ignores_and_tests_are_not_sent_to_who_builds_an_image_and_what_it_copies_is() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]

    def is_sent(path: str) -> bool:
        names = path.split("/")
        under = ["/".join(names[: at + 1]) for at in range(len(names))]
        return not any(fnmatch(each, pattern) or fnmatch(f"/{each}", pattern) for each in under for pattern in ignored)

    for line in (ROOT / ".gitignore").read_text().splitlines():
        assert not is_sent(line.strip("/").replace("*", "a")), line
    for name in (".git", "tests/sim", "service/net/__pycache__"):
        assert not is_sent(name)
    for dockerfile in ("Dockerfile", "spark.Dockerfile"):
        for sources in re.findall(r"^COPY (?!--from)(.*) \S+$", (DEPLOY / dockerfile).read_text(), re.MULTILINE):
            for source in sources.split():
                assert is_sent(source)
                assert (ROOT / source).exists()
