"""What `pip install` of a built wheel brings is all there is to a broker, its pages and its boards."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import requests

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


def test_a_wheel_holds_every_file_of_its_packages_and_runs(tmp_path: Path) -> None:
    wheel = built(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        there = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    source = tmp_path / "source"
    wanted = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    left_out = ("build/", "oncelog.egg-info/", "docs/screens/")
    wanted = {name for name in wanted if "/" in name and not name.startswith(left_out)}
    assert wanted - there == set()

    class Installed(Served):
        tree = tmp_path / "installed"

    served = Installed(tmp_path / "data")
    try:
        assert "All is well" in requests.get(f"{served.url}/ui", timeout=20).text
        assert requests.get(f"{served.url}/ui/static/style.css", timeout=20).status_code == 200
        assert "oncelog_build_info" in requests.get(f"{served.url}/metrics", timeout=20).text
        rules = (tmp_path / "installed" / "monitoring" / "alerts" / "oncelog.rules.yml").read_text()
        runbooks = re.findall(r"docs/runbooks/\w+\.md", rules)
        assert len(runbooks) > 20
        for runbook in runbooks:
            page = requests.get(f"{served.url}/{runbook}", timeout=20)
            assert (page.status_code, page.text.splitlines()[0]) == (200, f"# {Path(runbook).stem}")
        assert "make serve" in requests.get(f"{served.url}/docs/start.md", timeout=20).text
        loaded = os.readlink(f"/proc/{served.process.pid}/cwd")
        assert loaded == str(tmp_path / "installed")
    finally:
        assert served.stop() == 0
