"""What `pip install` of a built wheel brings is all there is to a broker, its pages and its boards: in an environment
that has nothing else, by the console script. What deploys brokers, `deploy/` and compose.yaml, is not in it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Sequence
from os.path import normpath
from pathlib import Path

import pytest
import requests

from tests.outside import needs
from tests.service.cli.kit import ROOT
from tests.service.web.kit import Served


def built(folder: Path) -> Path:
    """From what is committed or about to be, in a folder of its own: a build leaves traces."""
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    packages = re.search(r"^include = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert packages is not None
    wanted = tuple(f"{name}/" for name in re.findall(r'"(\w+)\*"', packages[1]))
    for name in names.stdout.splitlines():
        if (name.startswith(wanted) or name in ("pyproject.toml", "README.md")) and (ROOT / name).exists():
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    made = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(folder / "source")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(folder: Path, *whats: Sequence[str]) -> Path:
    """A new environment with this and what its metadata asks for, and nothing else."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check"]
    for what in whats:
        done = subprocess.run([*pip, "install", "-q", *what], capture_output=True, text=True, check=False)
        if done.returncode and re.search(r"Could not find a version|NewConnectionError|Max retries", done.stderr):
            pytest.skip("no Python package index within reach")
        assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.mark.timeout(300)
def test_a_wheel_holds_every_file_of_its_packages_and_runs(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
    source = tmp_path / "source"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    left_out = ("build/", "oncelog.egg-info/", "docs/screens/")
    pages = {name: (source / name).read_text() for name in there if name.startswith("docs/") and name.endswith(".md")}
    linked = [(name, link) for name, page in pages.items() for link in re.findall(r"\]\(([\w/.-]+\.\w+)[)#]", page)]
    assert len(linked) > 50
    assert [each for each in linked if normpath(f"{each[0]}/../{each[1]}") not in there] == []
    wanted = {name for name in wanted if "/" in name and not name.startswith(left_out)}
    assert wanted - there == set()
    bin_ = installed(tmp_path / "environment", [str(wheel)])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = "import json, importlib.metadata as m; print(json.dumps(m.metadata('oncelog').json))"
    metadata = json.loads(
        subprocess.run([bin_ / "python", "-c", asked], capture_output=True, cwd=tmp_path, check=True).stdout
    )
    assert (metadata["name"], metadata["version"]) == (project["name"], project["version"])
    assert (metadata["summary"], metadata["requires_python"]) == (project["description"], project["requires-python"])
    assert metadata["description"] == (ROOT / "README.md").read_text()
    needed = {each for each in metadata["requires_dist"] if "extra ==" not in each}
    assert {re.split(r"[>=<\[;]", each)[0] for each in needed} == {
        re.split(r"[>=<\[;]", each)[0] for each in project["dependencies"]
    }
    told = subprocess.run([bin_ / "oncelog", "--help"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert "doctor" in told.stdout

    class Installed(Served):
        tree = tmp_path
        program = (str(bin_ / "oncelog"),)

    served = Installed(tmp_path / "data")
    try:
        assert "All is well" in requests.get(f"{served.url}/ui", timeout=20).text
        assert requests.get(f"{served.url}/ui/static/style.css", timeout=20).status_code == 200
        assert "oncelog_build_info" in requests.get(f"{served.url}/metrics", timeout=20).text
        (rules,) = (tmp_path / "environment").rglob("monitoring/alerts/oncelog.rules.yml")
        runbooks = re.findall(r"docs/runbooks/\w+\.md", rules.read_text())
        assert len(runbooks) > 20
        for runbook in runbooks:
            page = requests.get(f"{served.url}/{runbook}", timeout=20)
            assert (page.status_code, page.text.splitlines()[0]) == (200, f"# {Path(runbook).stem}")
        assert (
            requests.get(f"{served.url}/docs/architecture.md", timeout=20).text
            == (ROOT / "ARCHITECTURE.md").read_text()
        )
        assert "make serve" in requests.get(f"{served.url}/docs/start.md", timeout=20).text
        doctor = [str(bin_ / "oncelog"), "doctor", "-b", str(served.bootstrap)]
        assert subprocess.run(doctor, capture_output=True, cwd=tmp_path, check=False).returncode == 0
    finally:
        assert served.stop() == 0


@needs("curl")
@pytest.mark.timeout(300)
def test_the_list_with_hashes_has_all_that_a_broker_needs(tmp_path: Path) -> None:
    """As docs/operating.md installs it, and waits for it."""
    hashed = ["--require-hashes", "-r", str(ROOT / "deploy" / "requirements.txt")]
    bin_ = installed(tmp_path / "environment", hashed, ["--no-deps", str(built(tmp_path))])

    class Installed(Served):
        tree = tmp_path
        program = (str(bin_ / "oncelog"),)

    (waits,) = re.findall(r"^(until .*; done) +#", (ROOT / "docs" / "operating.md").read_text(), re.MULTILINE)
    served = Installed(tmp_path / "data")
    try:
        command = waits.replace("localhost:8082", served.url.removeprefix("http://"))
        assert command != waits
        subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=60)
    finally:
        served.stop()
