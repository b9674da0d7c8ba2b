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

from spark_sink import WrongPython, register
from tests.clients.topics import Topics
from tests.outside import missing_java
from tests.peers.process import ROOT
from tests.spark_sink.reading import values

NEEDS_JAVA = pytest.mark.skipif(missing_java() is not None, reason=missing_java() or "")
PACKAGE = ROOT / "spark_sink"
WRITE = """
import sys
from spark_sink import register
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.log.level", "ERROR")
    .getOrCreate()
)
if "register" in sys.argv:
    register(spark)
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


@NEEDS_JAVA
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


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """A Python that nothing is installed for."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    return tmp_path / "bare" / "bin" / "python3"


@NEEDS_JAVA
@pytest.mark.timeout(300)
def test_a_job_that_registers_works_with_the_python_it_was_started_with(
    installed: Path, bootstrap: str, topics: Topics, bare_python: Path
) -> None:
    """`env/bin/python job.py`, where the first `python3` on the path is another one."""
    topic = topics.create()
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    path = f"{bare_python.parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [sys.executable, "-c", WRITE, bootstrap, topic, "register"],
        cwd=installed.parent,
        env={**environment, "PYTHONPATH": str(installed), "PATH": path},
        check=True,
        timeout=250,
    )
    assert values(bootstrap, topic) == ["0", "1", "2"]


def session_of(master: str, python: str) -> SparkSession:
    context = SimpleNamespace(master=master, pythonExec=python)
    registered = SimpleNamespace(register=lambda source: None)
    return cast(SparkSession, SimpleNamespace(sparkContext=context, dataSource=registered))


@pytest.mark.parametrize("named", [True, False], ids=["PYSPARK_PYTHON", "a cluster"])
def test_a_python_that_lacks_the_package_is_named_at_once_with_the_line_to_set(
    bare_python: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    session = session_of("local[2]" if named else "spark://master:7077", str(bare_python))
    with pytest.raises(WrongPython, match=f"No module named .*export PYSPARK_PYTHON={sys.executable}"):
        register(session)
    with pytest.raises(WrongPython, match="there is no such program"):
        register(session_of("yarn", "/no/such/python"))


def test_in_local_mode_the_python_of_the_job_is_taken_unless_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    session = session_of("local[*]", "python3")
    register(session)
    assert session.sparkContext.pythonExec == sys.executable
