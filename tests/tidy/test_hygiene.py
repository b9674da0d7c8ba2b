"""Manners that a reader relies on: no ambient world in simulated code, no module named like the standard library,
no swallowed errors.
"""

import ast
import re
import sys
from pathlib import Path

import pytest

from tests.outside import FROM

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring", "spark_sink")
EDGES_OF_THE_PROCESS = (
    "service/cli/",
    "service/client/reader.py",  # its fetches and the writer's sends end with the call that started them
    "service/client/writer.py",
    "service/process.py",
    "service/web/",  # aiohttp has sockets of its own
    "service/ports.py",
    "service/supervisor.py",
    "service/stores/postgres.py",  # real sockets
    "service/stores/zookeeper.py",  # kazoo has real threads and sockets
    "log/disk.py",
    "service/wire/generate.py",
    "spark_sink",  # runs in Spark's processes, never in the simulation
)
PART_OF_DEBIAN = {"mount", "systemd"}
FOR_MORE = {"default-jdk-headless"}
"""What `make clients-more` and the like need, and `make test` does not."""
AMBIENT = {
    "time.time", "time.time_ns", "time.monotonic", "random.random", "random.randrange", "uuid.uuid4", "os.urandom",
    "asyncio.to_thread", "asyncio.TaskGroup", "asyncio.create_task", "asyncio.gather", "datetime.now",
}  # fmt: skip


def sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_no_module_is_named_like_one_of_the_standard_library(path: Path) -> None:
    assert path.stem.startswith("__") or path.stem not in sys.stdlib_module_names


@pytest.mark.parametrize(
    "path", [path for path in sources() if not name_of(path).startswith(EDGES_OF_THE_PROCESS)], ids=name_of
)
def test_what_the_simulation_runs_asks_its_ports_for_time_chance_and_tasks(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert f"{node.value.id}.{node.attr}" not in AMBIENT, f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_no_error_is_swallowed(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{name_of(path)}:{node.lineno} catches everything"
            broad = isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException")
            silent = all(isinstance(statement, ast.Pass) for statement in node.body)
            assert not (broad and silent), f"{name_of(path)}:{node.lineno} swallows every error"


@pytest.mark.parametrize("path", [*sources(), *sorted((ROOT / ".ci").iterdir())], ids=name_of)
def test_no_docstring_says_who_calls(path: Path) -> None:
    """Nothing holds such a sentence true, and a search tells it."""
    assert not re.search(r"\bCalled\s+by\b", path.read_text())


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "docs", "deploy"])
def test_a_subject_has_a_name(folder: str) -> None:
    """The caller, the client, the next leader: a word that means any of them makes the reader guess which."""
    vague = re.compile("who" + "ever", re.IGNORECASE)
    kinds = {".py", ".md", ".html", ".js", ".json", ".txt", ".yml", ".yaml", ".toml"}
    for path in [*ROOT.glob("*.md"), ROOT / "Makefile", *(ROOT / folder).rglob("*")]:
        if path.suffix in kinds or path.name == "Makefile":
            assert not vague.search(path.read_text()), name_of(path)


def test_the_build_machine_installs_what_tests_talk_to() -> None:
    """Prometheus, Alertmanager and stunnel were not installed there, so that their tests never ran."""
    told = set(re.findall(r"[\w.+-]+", (ROOT / ".ci" / "run").read_text()))
    wanted = {package for packages in FROM.values() for package in packages.split()} - PART_OF_DEBIAN - FOR_MORE
    assert wanted | {"chromium", "postgresql"} <= told
