"""The table of layers in ARCHITECTURE.md is true: no module imports what its row does not name."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring", "spark_sink")


class Row(NamedTuple):
    packages: tuple[str, ...]
    imports: tuple[str, ...]
    nature: str


def read_table() -> list[Row]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Layers", 1)[1].split("\n## ", 1)[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            packages, imports = (tuple(re.findall(r"`([^`]+)`", cell)) for cell in cells[:2])
            rows.append(Row(packages, imports, cells[2]))
    return rows


TABLE = read_table()


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def place_of(module: str) -> tuple[Row, str]:
    """The row of the module, and the package of that row."""
    places = [(row, name) for row in TABLE for name in row.packages if within(module, (name,))]
    assert places, f"{module} stands in no row of the table of layers"
    return max(places, key=lambda place: len(place[1]))


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def first_party_imports(path: Path) -> list[str]:
    imported = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            imported.append(node.module)
        elif isinstance(node, ast.Import):
            imported.extend(alias.name for alias in node.names)
    return [name for name in imported if name.split(".")[0] in (*PACKAGES, "tests")]


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path.read_text().strip()]


def test_the_table_can_be_read() -> None:
    assert len(TABLE) >= 10
    assert place_of("service.broker.node")[1] == "service.broker"
    assert place_of("log.batch")[1] == "log.batch"
    assert place_of("log.segments")[1] == "log"


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    module = module_name(path)
    row, own = place_of(module)
    before = row.packages[: row.packages.index(own) + 1]
    for imported in first_party_imports(path):
        assert within(imported, before + row.imports), f"{module} imports {imported}"


def test_a_machine_imports_no_edge() -> None:
    """A row that says which of its modules are edges is left out: `test_purity` knows its machines one by one."""
    for row in TABLE:
        if row.nature.startswith("machine") and "are edges" not in row.nature:
            assert not [name for name in row.imports if place_of(name)[0].nature.startswith("edge")], row.packages


def test_handlers_take_parts_of_the_broker_and_few_know_the_whole() -> None:
    whole = re.compile(r"^\s*(?:from|import) service\.broker(?:\.node\b| import .*\bnode\b)", re.MULTILINE)
    assert {module_name(path) for path in modules() if whole.search(path.read_text())} == {
        "service.api.broker_door",
        "service.api.routes",
        "service.cli.serve",
        "service.process",
        "service.web.app",
        "service.web.gateway",
    }


def test_every_rule_of_the_cluster_is_named_where_it_is_kept() -> None:
    rules = re.findall(r"^\| (R\d+) \|", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    assert len(rules) == len(set(rules)) >= 14
    assert {rule for path in modules() for rule in re.findall(r"\bR\d+\b", path.read_text())} == set(rules)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_room_that_holds_something_says_what_it_is_for(package: str) -> None:
    for folder in [ROOT / package, *(path for path in (ROOT / package).iterdir() if path.is_dir())]:
        if any(path.read_text().strip() for path in folder.glob("*.py")) and folder.name != "versions":
            readme = folder / "README.md"
            assert readme.exists(), f"{folder.relative_to(ROOT)} has no README.md"


def test_checks_that_run_in_an_environment_with_spark_alone_need_no_pytest() -> None:
    program = "import sys; sys.modules['pytest'] = None; import tests.spark.connector.checks"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
