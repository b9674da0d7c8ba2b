"""What Spark needs, under `.cache/spark`: a virtual environment for each PySpark, and Spark's own Kafka connector.

The connector of PySpark 4.2.0 is the newest on Maven Central; one module of it is not there, and the classes under
standin/ take its place (no delegation tokens; nothing else is missing). `missing()` says in one line what a machine
lacks. Two processes may ask for the same thing at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.peers.process import CACHE, ROOT

CONNECTOR_PYSPARK = "4.2.0"
NEWEST_PYSPARK = "4.3.0"
EVERY_PYSPARK = (NEWEST_PYSPARK, "4.2.0", "4.1.0", "4.0.0")
OLDEST_JAVA = 17

HERE = Path(__file__).parent
PLACE = CACHE / "spark"
JARS = PLACE / "connector"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
# The data source's own requirements, a client that arranges topics, and what Spark wants for `mapInArrow`.
BESIDE_PYSPARK = ("confluent-kafka", "kio", "numpy", "pandas<3", "pyarrow")


class CannotInstall(RuntimeError):
    """A registry did not give what was asked for; the message says what and why."""


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


def interpreter(version: str) -> Path:
    """The Python that has this PySpark."""
    environment = PLACE / f"pyspark-{version}"
    done = environment / "installed"
    python = environment / "bin" / "python"
    wanted = " ".join((f"pyspark=={version}", *BESIDE_PYSPARK))
    with _alone(environment.name):
        if not done.exists() or done.read_text() != wanted:
            print(f"installing PySpark {version} into {environment.relative_to(ROOT)}", file=sys.stderr, flush=True)
            # Without a pip of its own, which Debian's Python cannot give it: ours fills it.
            _install([sys.executable, "-m", "venv", "--without-pip", str(environment)])
            _install([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *wanted.split()])
            done.write_text(wanted)
    return python


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


def product(python: Path) -> Path:
    """A folder for the module path in which there is our data source and nothing else of this clone."""
    folder = PLACE / "product"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "spark_sink"
    if not link.exists():
        link.symlink_to(ROOT / "spark_sink")
    return folder


def environment_of(python: Path, *paths: Path) -> dict[str, str]:
    """For a job's process: this Python in the driver and in the workers, and nothing of this clone but `paths`."""
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
