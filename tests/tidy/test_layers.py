"""The table of layers in ARCHITECTURE.md is true: no module imports what its row does not name."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring", "spark_sink")
Row = tuple[tuple[str, ...], tuple[str, ...]]


def read_table() -> list[Row]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.split("## Layers", 1)[1].split("\n## ", 1)[0]
    rows = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            rows.append((tuple(re.findall(r"`([^`]+)`", cells[0])), tuple(re.findall(r"`([^`]+)`", cells[1]))))
    return rows


TABLE = read_table()


def within(module: str, names: tuple[str, ...]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in names)


def row_of(module: str) -> Row:
    matches = [row for row in TABLE if within(module, row[0])]
    assert matches, f"{module} stands in no row of the table of layers"
    return max(matches, key=lambda row: max(len(name) for name in row[0] if within(module, (name,))))


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
    assert row_of("service.broker.node")[0] == ("service.broker",)


@pytest.mark.parametrize("path", modules(), ids=module_name)
def test_a_module_imports_only_what_its_layer_may(path: Path) -> None:
    module = module_name(path)
    own, allowed = row_of(module)
    for imported in first_party_imports(path):
        assert within(imported, own) or within(imported, allowed), f"{module} imports {imported}"


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
