"""Machines are machines: no clock, no chance, no I/O, nothing that waits."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINES = (
    "log/ids.py",
    "log/clock.py",
    "log/tally.py",
    "log/compress.py",
    "log/batch.py",
    "log/control.py",
    "log/replica.py",
    "log/epochs.py",
    "log/retention.py",
    "log/cleaning_rules.py",
    "idempotence",
    "isolation",
    "txn",
    "service/wire",
    "service/settings",
    "service/groups",
    "service/cluster",
    "service/broker/acceptance.py",
    "service/broker/fetch_sessions.py",
)
WORLDLY = {"asyncio", "threading", "time", "random", "secrets", "uuid", "os", "socket", "logging"}
EDGES = {"service/cluster/metadata.py", "service/cluster/duties.py", "service/cluster/lookout.py"}
TOOLS = {"service/wire/generate.py"}  # run by hand, never by a broker


def machine_files() -> list[Path]:
    found: list[Path] = []
    for name in MACHINES:
        place = ROOT / name
        assert place.exists(), f"{name} is not there any more"
        found.extend(sorted(place.rglob("*.py")) if place.is_dir() else [place])
    return [path for path in found if str(path.relative_to(ROOT)) not in EDGES | TOOLS]


@pytest.mark.parametrize("path", machine_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_machine_touches_nothing_of_the_world(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith), (
            "a machine never waits"
        )
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        worldly = [name for name in names if name.split(".")[0] in WORLDLY]
        assert not worldly, f"{path.relative_to(ROOT)} imports {worldly}"
