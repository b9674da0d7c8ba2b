"""`oncelog demo`: a whole cluster as child processes, to try out what happens when brokers die."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from service.cli.failures import CliError, Exit
from service.cli.serve import ENDING, _log_to_stderr, ignore_signals, own_name, serve_several

if TYPE_CHECKING:
    from service.cli.companions import Companions
    from service.supervisor import BrokerProcess

PATIENCE_S = 30.0
PREFIX, LOCK = "oncelog-demo-", "alive.lock"


@click.command()
@click.option("--brokers", type=click.IntRange(1, 16), default=3, show_default=True, help="So many brokers.")
@click.option(
    "--zookeeper", is_flag=True, help="Metadata in a real ZooKeeper (needs Java and pyspark, whose jars have it)."
)
@click.option(
    "--load", is_flag=True, help="Producers that write in transactions, and a group that reads; Prometheus too."
)
@click.option(
    "--spark", is_flag=True, help="Two pipelines of Spark's, exactly once (needs Java, pyspark and oncelog-spark)."
)
@click.option("--port", type=click.IntRange(0, 65000), default=9092, show_default=True, help="The first broker's port.")
def command(brokers: int, zookeeper: bool, load: bool, spark: bool, port: int) -> None:
    """Run a whole cluster to try things on, and clean up after it.

    Every record has several copies, and a broker that dies is started again. Ctrl-C stops all and removes its data.
    If a demo was killed, the next one removes what it has left.
    """
    from service.cli.companions import Companions, demo_of_spark
    from service.settings.sources import load_config

    for number in ENDING:
        signal.signal(number, _end)
    scripts = demo_of_spark() if spark else None
    with _folder() as folder, contextlib.ExitStack() as stack:
        settings = {
            "log.dirs": f"{folder}/data",
            "listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "num.partitions": str(2 * brokers),
        }
        if zookeeper:
            settings["zookeeper.connect"] = stack.enter_context(_zookeeper(Path(folder) / "zookeeper"))
        given = [f"{key}={value}" for key, value in settings.items()]
        copies = min(brokers, 3)
        defaults = {
            "default.replication.factor": str(copies),
            "min.insync.replicas": str(min(copies, 2)),
            "transaction.state.log.min.isr": str(min(copies, 2)),
        }
        _log_to_stderr()
        flags = [f"-o{each}" for each in given]
        config, log = load_config(None, {}, given), Path(folder) / "brokers.log"
        companions = stack.enter_context(Companions(Path(folder), load=load, spark=scripts, partitions=2 * brokers))
        describe = partial(_begin, log=log, companions=companions)
        status = serve_several(config, brokers, flags, defaults=defaults, log=log, describe=describe)
    raise click.exceptions.Exit(status)


def _end(*_: object) -> None:
    """The first signal ends the demo. A second one would interrupt the removal of its data."""
    ignore_signals()
    raise KeyboardInterrupt


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    """A folder for this demo's data, until the context ends. Those of demos that were killed are removed: nobody holds
    their locks any more.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is somebody else's, or has gone meanwhile
            if left.lstat().st_uid == os.getuid():
                with (left / LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(left)
    folder = tempfile.mkdtemp(prefix=PREFIX)
    try:
        with open(f"{folder}/{LOCK}.new", "xb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.rename(lock.name, f"{folder}/{LOCK}")  # by this name it is held from the first moment
            yield folder
    finally:
        _remove(Path(folder))


def _remove(folder: Path) -> None:
    """The lock last: without it nobody would go on with what is left, should this be interrupted."""
    for each in folder.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        elif each.name != LOCK:
            each.unlink()
    shutil.rmtree(folder)


def _begin(members: list[BrokerProcess], *, log: Path, companions: Companions) -> str:
    """The brokers are up: start the other processes, and say where everything is."""
    companions.begin(
        ",".join(member.facts["bootstrap"] for member in members),
        [url for member in members for url in member.facts["http"]],
    )
    return _describe(members, log, companions.told())


def _describe(members: list[BrokerProcess], log: Path, beside: list[str]) -> str:
    bootstrap = ",".join(member.facts["bootstrap"] for member in members)
    first = members[0].facts["bootstrap"]
    victim = members[-1].facts
    lines = [f"A cluster of {len(members)} brokers is up. Ctrl-C stops it and removes its data.", ""]
    lines += [
        f"  broker {each.facts['node_id']}   {each.facts['bootstrap']:<18} process {each.facts['process_id']}"
        for each in members
    ]
    pages = [f"  page         {url}/ui" for url in members[0].facts["http"]]
    lines += ["", *pages, *beside]
    lines += [
        "",
        f"What the brokers say goes to {log}.",
        "",
        "To try it, in another terminal:",
        "",
        "  # records in a transaction, each with copies on several brokers",
        f"  seq 1000 | kcat -b {bootstrap} -P -t numbers -X transactional.id=demo",
        "",
        "  # kill a broker: others lead what it led, and it is started again",
        f"  kill -9 {victim['process_id']}",
        f"  {own_name()} cluster -b {first}",
        "",
        "  # nothing is lost, nothing is there twice",
        f"  kcat -b {bootstrap} -C -t numbers -e -q | sort -n | uniq | wc -l",
        "",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _zookeeper(folder: Path) -> Iterator[str]:
    """A ZooKeeper server from pyspark's jars, until the context ends; its address."""
    from importlib.util import find_spec

    from service.supervisor import tied

    spec = find_spec("pyspark")
    if shutil.which("java") is None or spec is None or spec.origin is None:
        raise CliError("--zookeeper needs java on the path, and pyspark (pip install pyspark)", Exit.USAGE)
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    lines = (
        "tickTime=500",
        "admin.enableServer=false",
        f"dataDir={folder}",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
    )
    (folder / "zoo.cfg").write_text("\n".join(lines) + "\n")
    jars = Path(spec.origin).parent / "jars"
    server = ["java", "-Xmx128m", "-cp", f"{jars}/*", "org.apache.zookeeper.server.ZooKeeperServerMain"]
    with (folder / "server.log").open("ab") as log:
        command = tied([*server, str(folder / "zoo.cfg")])
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait(port, process)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # its data is about to be removed
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise CliError("ZooKeeper did not start") from None
            time.sleep(0.1)
        else:
            return
