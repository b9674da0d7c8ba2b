"""What the pages on operating and on security show is tried, as far as a machine without containers can."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from service.settings.sources import load_config
from tests.outside import needs
from tests.peers.process import free_port
from tests.service.cli.kit import ROOT, Running, Serving, oncelog

OPERATING = (ROOT / "docs" / "operating.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
PATIENCE_S = 20.0


def block(page: str, word: str) -> str:
    """The one that has this word in it."""
    (found,) = (each for each in re.findall(r"^```\w*\n(.*?)^```$", page, flags=re.M | re.S) if word in each)
    return str(found)


def test_every_file_that_is_named_is_there() -> None:
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", OPERATING + SECURITY))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "deploy").iterdir()}
    left = there - named - {"deploy/grafana", "deploy/kubernetes", "deploy/prometheus.yml", "deploy/spark.Dockerfile"}
    assert left == set(), "compose.yaml mounts or builds the others"


RUN = {"oncelog", "cp", "mkdir", "python3", "/opt/oncelog/bin/pip", "until"}
"""By tests: here, in test_commands.py and test_wheel.py."""
NOT_RUN = {"docker", "kubectl", "systemctl", "journalctl"}
"""These want containers, or systemd as the first process. What they name is compared with the files that they read."""


def test_what_is_shown_and_can_not_be_run_here_names_what_is_there() -> None:
    lines = [
        line for each in re.findall(r"^```sh\n(.*?)^```$", OPERATING, flags=re.M | re.S) for line in each.splitlines()
    ]
    words = [shlex.split(line, comments=True) for line in lines if line]
    assert {each[0] for each in words} == RUN | NOT_RUN
    (command,) = (each for each in words if each[:2] == ["docker", "run"])
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    profiles = {profile for service in compose["services"].values() for profile in service.get("profiles", ())}
    shown = [each for each in words if each[:2] == ["docker", "compose"]]
    assert {each[each.index("--profile") + 1] for each in shown if "--profile" in each} == profiles
    image = (ROOT / "deploy" / "Dockerfile").read_text()
    (exposed,) = re.findall(r"^EXPOSE (.*)$", image, flags=re.M)
    assert [word.split(":")[-1] for before, word in pairwise(command) if before == "-p"] == exposed.split()
    assert [word.split(":")[-1] for before, word in pairwise(command) if before == "-v"] == re.findall(
        r"^VOLUME (.*)$", image, flags=re.M
    )
    manifests = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "oncelog.yaml").read_text()))
    (pods,) = (each for each in manifests if each["kind"] == "StatefulSet")
    name = pods["metadata"]["name"]
    kubectl = [each[1:] for each in words if each[0] == "kubectl"]
    assert kubectl[1] == ["rollout", "status", f"statefulset/{name}"]
    assert kubectl[2][:3] == ["exec", f"{name}-0", "--"]
    assert kubectl[2][3:] in [each for each in words if each[0] == "oncelog"], "which test_commands.py tries"
    verbs = {"daemon-reload", "enable", "start", "stop"}
    for each in words:
        if each[0] == "systemctl":
            assert each[1] in verbs, each
            assert [word for word in each[2:] if not word.startswith("-")] in ([], ["oncelog"]), each


def test_the_service_starts_with_the_settings_that_are_deployed(tmp_path: Path) -> None:
    """As its unit says, but for where things are."""
    (line,) = re.findall(r"^ExecStart=(.*)$", (ROOT / "deploy" / "oncelog.service").read_text(), flags=re.M)
    program, *words = shlex.split(line)
    assert program in OPERATING
    config = load_config(ROOT / "deploy" / "server.properties", {}, [])
    assert config.warnings == ()
    assert words[:3] == ["serve", "-c", "/etc/oncelog/server.properties"]
    settings = tmp_path / "server.properties"
    text = (ROOT / "deploy" / "server.properties").read_text()
    text = re.sub(r"//(localhost)?:", "//127.0.0.1:", text)
    settings.write_text(text.replace(":9092", f":{free_port()}").replace(":8082", ":0"))
    words = [
        str(settings) if word == words[2] else word.replace("/var/lib/oncelog", str(tmp_path / "data"))
        for word in words
    ]
    with Serving(*words[1:]) as serving:
        assert oncelog("doctor", bootstrap=serving.bootstrap).status == 0
        assert serving.stop().status == 0


def test_a_backup_goes_on_where_it_was(tmp_path: Path) -> None:
    data, kept = tmp_path / "data", tmp_path / "kept"
    (copying,) = (line for line in block(OPERATING, "cp -a").splitlines() if line.startswith("cp"))
    with Serving.on(data) as serving:
        oncelog("produce", "orders", stdin=b"one\ntwo\n", bootstrap=serving.bootstrap)
        oncelog("consume", "orders", "--group", "billing", "-e", bootstrap=serving.bootstrap)
        assert serving.stop().status == 0
    subprocess.run([*copying.split()[:2], data, kept], check=True)
    assert oncelog("log", "verify", str(kept)).status == 0
    with Serving.on(data) as serving:
        oncelog("produce", "orders", stdin=b"three\n", bootstrap=serving.bootstrap)
    with Serving.on(kept) as restored:
        assert oncelog("consume", "orders", "-e", "-f", "%s\n", bootstrap=restored.bootstrap).out == "one\ntwo\n"
        (row,) = oncelog("group", "lag", "billing", "-o", "json", bootstrap=restored.bootstrap).json()
        assert (row["committed_offset"], row["lag"]) == (2, 0)


def test_what_asks_for_security_does_not_start() -> None:
    tried = block(SECURITY, "SASL_SSL").splitlines()
    assert len(tried) == 2
    for line in tried:
        words = shlex.split(line.partition(" || ")[0])[1:]
        refused = Running(*words, "--data", "/nonexistent").ended()
        assert (refused.status, refused.out) == (2, "")
        assert "this broker can't authenticate, authorize or encrypt yet" in refused.err


def test_listeners_by_network_are_settings_that_do_something(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text(block(SECURITY, "inter.broker.listener.name="))
    config = load_config(tmp_path / "server.properties", {}, [])
    assert config.warnings == ()
    assert {each.listener: each.host for each in config.advertised_endpoints()} == {
        "INTERNAL": "10.1.0.1",
        "CLIENTS": "broker-1.example",
    }


def certified(folder: Path, name: str) -> None:
    """Make `name.pem`, a key and its certificate, signed by the authority of this folder."""
    made = "openssl", "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-x509"
    if not (folder / "ca.pem").exists():
        subject = "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"
        subprocess.run([*made, *subject], cwd=folder, check=True, capture_output=True)
    told = "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-CA", "ca.pem", "-CAkey", "ca.key"
    out = "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", f"{name}.key", "-out", f"{name}.crt"
    subprocess.run([*made, *told, *out], cwd=folder, check=True, capture_output=True)
    (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())


@contextmanager
def stunnel(folder: Path, *, accept: int, connect: str) -> Iterator[None]:
    """It runs in `folder`, as the page has it."""
    certified(folder, "broker")
    text = block(SECURITY, "verifyChain")
    text = text.replace("accept = 9093", f"accept = 127.0.0.1:{accept}").replace("127.0.0.1:9092", connect)
    (folder / "stunnel.conf").write_text(f"pid =\n{text}")
    with subprocess.Popen(["stunnel", "stunnel.conf"], cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            assert any("Configuration successful" in line for line in process.stderr)
            yield
        finally:
            process.terminate()


@needs("stunnel", "openssl")
def test_a_proxy_lets_in_who_has_a_certificate_and_nobody_else(tmp_path: Path) -> None:
    """Clients find the broker behind it by what the broker advertises."""
    inside, outside = free_port(), free_port()
    told = "-o", f"advertised.listeners=PLAINTEXT://127.0.0.1:{outside}"
    where = "--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", str(inside)
    with Serving(*where, *told), stunnel(tmp_path, accept=outside, connect=f"127.0.0.1:{inside}"):
        settings: dict[str, str | int | float | bool] = {
            "bootstrap.servers": f"127.0.0.1:{outside}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(tmp_path / "ca.pem"),
            "log_level": 0,
        }
        with pytest.raises(KafkaException):
            AdminClient(settings).list_topics(timeout=3)
        certified(tmp_path, "client")
        own = {"ssl.certificate.location": tmp_path / "client.crt", "ssl.key.location": tmp_path / "client.key"}
        producer = Producer({**settings, **{name: str(path) for name, path in own.items()}})
        delivered: list[object] = []
        producer.produce("orders", b"through the proxy", on_delivery=lambda error, _: delivered.append(error))
        assert producer.flush(PATIENCE_S) == 0
        assert delivered == [None]
