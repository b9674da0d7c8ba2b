"""What Spark needs, under `.cache/spark`: a virtual environment for each PySpark, and Spark's own Kafka connector.

The connector of PySpark 4.2.0 is the newest on Maven Central; one module of it is not there, and the classes under
standin/ take its place (no delegation tokens; nothing else is missing). `missing()` says in one line what a machine
lacks. Two processes may ask for the same thing at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from tests.peers.process import CACHE, ROOT

CONNECTOR_PYSPARK = "4.2.0"
NEWEST_PYSPARK = "4.3.0"
EVERY_PYSPARK = (NEWEST_PYSPARK, "4.2.0", "4.1.0", "4.0.0")
OLDEST_JAVA = 17

HERE = Path(__file__).parent
PLACE = CACHE / "spark"
JARS = PLACE / "connector"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# A client that arranges topics, what Spark wants for `mapInArrow`, and what the data source is built with.
BESIDE_PYSPARK = ("confluent-kafka", "pandas<3", "setuptools")
PRODUCT = ROOT / "spark_sink"


Installed = TypeVar("Installed")


class CannotInstall(RuntimeError):
    """A registry did not give what was asked for; the message says what and why."""


def tidy_up_when_told_to_end() -> None:
    """SIGTERM ends this process as Ctrl-C does: what it started is stopped. `timeout` sends it twice."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)


def missing(*, connector: bool = False) -> str | None:
    """Why Spark cannot run here, or None. Nothing is fetched to find out."""
    for program in ("java", "javac", "mvn") if connector and not JARS.is_dir() else ("java",):
        if shutil.which(program) is None:
            return f"no {program} on the path"
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < OLDEST_JAVA:
        return f"Spark 4 needs Java {OLDEST_JAVA}, this is {said.splitlines()[0] if said else 'none'}"
    return None


def installed(install: Callable[[], Installed], *, connector: bool = False) -> Installed:
    """What `install` gives. Where this machine or a registry lacks something, that is said, and this process ends."""
    why = missing(connector=connector)
    if why is None:
        try:
            return install()
        except CannotInstall as failure:
            why = str(failure)
    print(f"skipped: {why}")
    sys.exit(0)


def interpreter(version: str) -> Path:
    """The Python that has this PySpark and, as a user would install it, our data source as it stands now."""
    environment = PLACE / f"pyspark-{version}"
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    wanted = [f"pyspark=={version}", *BESIDE_PYSPARK]
    with _alone(environment.name):
        if _changed(environment / "installed", " ".join(wanted)):
            print(f"installing PySpark {version} into {environment.relative_to(ROOT)}", file=sys.stderr, flush=True)
            # Without a pip of its own, which Debian's Python cannot give it: ours fills it.
            _install([sys.executable, "-m", "venv", "--without-pip", str(environment)])
            _install([*pip, *wanted])
            (environment / "installed").write_text(" ".join(wanted))
        sources = _sources(PRODUCT)
        if _changed(environment / "product", sources):
            with tempfile.TemporaryDirectory() as folder:  # a build leaves things behind
                copy = shutil.copytree(PRODUCT, Path(folder, "product"))
                # What it depends on, then itself once more: its version says nothing about what changed here.
                _install([*pip, "--no-build-isolation", str(copy)])
                _install([*pip, "--no-build-isolation", "--force-reinstall", "--no-deps", str(copy)])
            (environment / "product").write_text(sources)
    return python


def _changed(note: Path, wanted: str) -> bool:
    return not note.exists() or note.read_text() != wanted


def _sources(package: Path) -> str:
    """Stands for the contents of a package."""
    files = sorted([*package.rglob("*.py"), *package.rglob("*.toml")])
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def connector_jars() -> str:
    """Spark's own Kafka connector, as `spark.jars` wants it."""
    python = interpreter(CONNECTOR_PYSPARK)
    with _alone(JARS.name):
        if not JARS.is_dir():
            print("fetching Spark's own Kafka connector", file=sys.stderr, flush=True)
            partial = JARS.with_name("connector.partial")
            shutil.rmtree(partial, ignore_errors=True)
            _install(["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), COPY_JARS, f"-DoutputDirectory={partial}"])
            _compile_standins(spark_home(python), partial / "standin.jar")
            partial.rename(JARS)
    return ",".join(str(jar) for jar in sorted(JARS.glob("*.jar")))


def spark_home(python: Path) -> Path:
    """The folder that holds Spark itself: its jars, and under bin its programs."""
    (found,) = python.parent.parent.glob("lib/python*/site-packages/pyspark")
    return found


def environment_of(python: Path, *paths: Path) -> dict[str, str]:
    """For a job: this Python in driver and workers, and nothing of this clone in its module path but `paths`."""
    return {
        **os.environ,
        "SPARK_HOME": str(spark_home(python)),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


def _compile_standins(spark: Path, jar: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sources = [str(source) for source in sorted((HERE / "standin").glob("*.java"))]
        _install(["javac", "-nowarn", "-d", folder, "-cp", f"{spark}/jars/*", *sources])
        with zipfile.ZipFile(jar, "w") as archive:
            for compiled in sorted(Path(folder).rglob("*.class")):
                archive.write(compiled, compiled.relative_to(folder))


def _install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotInstall(f"{' '.join(command[:6])} …: {(done.stdout + done.stderr).strip()[-800:]}")


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
