"""`oncelog-spark` stands alone: it brings what it needs, nothing of the broker, and Spark finds it by itself."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from spark_sink import register
from tests.clients.topics import Topics
from tests.peers.process import ROOT
from tests.spark_sink.reading import values

PACKAGE = ROOT / "spark_sink"
WRITE = """
import sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
rows = spark.range(3).selectExpr("cast(id as string) value")
options = {"kafka.bootstrap.servers": sys.argv[1], "topic": sys.argv[2]}
rows.write.format("oncelog").options(**options).mode("append").save()
spark.stop()
"""


def imported(file: Path) -> set[str]:
    """The first words of what a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_it_imports_what_it_requires_and_nothing_else() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    required = {re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]}
    used = set[str]().union(*map(imported, PACKAGE.rglob("*.py")))
    assert used - set(sys.stdlib_module_names) - {"spark_sink"} == required


@pytest.mark.parametrize("problem", ["DATA_SOURCE_ALREADY_EXISTS", "ANOTHER"])
def test_to_register_what_spark_has_found_is_no_error(problem: str) -> None:
    """As PySpark 4.0 has it; later ones just warn."""

    class Registration:
        def register(self, source: type[DataSource]) -> None:
            raise AnalysisException(source.name(), errorClass=problem, messageParameters={})

    session = cast(SparkSession, SimpleNamespace(dataSource=Registration()))
    with nullcontext() if problem == "DATA_SOURCE_ALREADY_EXISTS" else pytest.raises(AnalysisException):
        register(session)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what `pip install ./spark_sink` installs."""
    folder = tmp_path_factory.mktemp("packaging")
    source = shutil.copytree(PACKAGE, folder / "spark_sink", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps"]
    built = subprocess.run(
        [*pip, "--wheel-dir", folder, source], capture_output=True, text=True, timeout=300, check=False
    )
    if built.returncode and "setuptools" in built.stderr:
        pytest.skip("pip could not fetch setuptools, which builds the package")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("oncelog_spark-*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "installed")
    return folder / "installed"


@pytest.mark.timeout(300)
def test_the_package_holds_every_module_and_nothing_more(installed: Path) -> None:
    wanted = {f"spark_sink/{file.name}" for file in PACKAGE.glob("*.py")} | {"pyspark_oncelog/__init__.py"}
    assert {str(file.relative_to(installed)) for file in installed.rglob("*.py")} == wanted


@pytest.mark.timeout(300)
def test_spark_finds_it_without_being_told(installed: Path, bootstrap: str, topics: Topics) -> None:
    """Run from elsewhere, with nothing on the path but the package and what it requires."""
    topic = topics.create()
    subprocess.run(
        [sys.executable, "-c", WRITE, bootstrap, topic],
        cwd=installed.parent,
        env={**os.environ, "PYTHONPATH": str(installed), "PYSPARK_PYTHON": sys.executable},
        check=True,
        timeout=250,
    )
    assert values(bootstrap, topic) == ["0", "1", "2"]
