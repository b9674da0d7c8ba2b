"""`oncelog serve`: one broker in this process, until SIGTERM or SIGINT.

What always holds: if the broker can't start, one line says why, the exit status is not 0, and nothing in the data
folder was touched. Either signal ends it cleanly, with status 0. The broker, and everything that takes long to import,
is loaded only after the settings were understood.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import math
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from service.cli.data_lock import FolderUnusable, locked
from service.cli.root import leave_start, say_and_leave

if TYPE_CHECKING:
    from service.broker.node import Broker
    from service.broker.opening import OpeningProgress
    from service.settings.broker import BrokerConfig, Endpoint
    from service.supervisor import BrokerProcess

ENDING = (signal.SIGTERM, signal.SIGINT)
# If the addresses take longer than this, say what the start is doing.
SILENCE_S = 1.5
# `timeout` sends its signal to the process and to its group: two within this time count as one.
AGAIN_S = 1.0
# The shortest time between two lines about a long start in a log.
LINE_EVERY_S = 10.0
# A broker whose supervisor was killed stops within this time.
PARENT_EVERY_S = 1.0
# Loggers of which a client may cause lines as fast as it asks, and how many lines of a kind they write.
CAUSED_BY_CLIENTS = ("oncelog.door", "oncelog.net", "oncelog.topics", "oncelog.http", "oncelog.http.connection")
LINES_A_PERIOD, PERIOD_S = 10, 10.0
LONGEST_LINE = 4_000


@click.command()
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(path_type=Path),
    help="Kafka's server.properties, or the same settings as TOML.",
)
@click.option(
    "-o",
    "--override",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting; can be given again. `-o json` prints the address and the folder as JSON instead.",
)
@click.option("--data", metavar="FOLDER", help="The data folder (log.dirs); default ./data.")
@click.option("--host", help="Listen on this address only; default all.")
@click.option("--port", type=click.IntRange(0, 65535), help="Listen on this port; default 9092. 0: any free one.")
@click.option(
    "--brokers", metavar="N", help="So many brokers on this machine, on ports one after the other; auto: one a core."
)
def command(
    path: Path | None,
    overrides: Sequence[str],
    data: str | None,
    host: str | None,
    port: int | None,
    brokers: str | None,
) -> None:
    """Run a broker, with everything it needs in one folder.

    It ends with status 0 on SIGTERM and ctrl-C. Settings come from -c FILE, the environment (KAFKA_LOG_RETENTION_MS
    or ONCELOG_…) and -o, later ones win; `oncelog config explain KEY` says what one means.
    """
    # Objects that are made at the start stay. To look through them again and again delays the first request. The broker
    # enables it again (service/garbage.py).
    gc.disable()
    as_json = "json" in overrides
    settings = [override for override in overrides if override != "json"]
    config = _load(path, settings, data=data, host=host, port=port)
    _log_to_stderr()
    if brokers is not None:
        flags = [*(("-c", str(path)) if path is not None else ()), *(f"-o{override}" for override in settings)]
        raise click.exceptions.Exit(serve_several(config, how_many(brokers), flags, as_json=as_json))
    for warning in config.warnings:  # of several brokers each says its own: here none would be known to have company
        logging.getLogger("oncelog.config").warning("%s", warning)
    try:
        folders = [Path(folder) for folder in config.data_folders]
        with locked(folders):
            for endpoint in config.endpoints:
                _check_port(endpoint, cure="--port N")
            for endpoint in config.web_endpoints:
                _check_port(endpoint, " for HTTP", cure="-o http.listeners=http://HOST:N")
            status = _run(config, _json_banner if as_json else _banner)
    except FolderUnusable as error:
        raise _failure(str(error)) from None
    raise click.exceptions.Exit(status)


def how_many(brokers: str) -> int:
    """`auto` means one for each core that this process may use, up to 16: beyond that other parts of the machine limit
    them.
    """
    if brokers == "auto":
        return min(len(os.sched_getaffinity(0)), 16)
    if not brokers.isdecimal() or not 1 <= int(brokers) <= 100:
        raise _failure(f"--brokers {brokers}: a number from 1 to 100, or auto", usage=True)
    return int(brokers)


def serve_several(
    config: BrokerConfig,
    count: int,
    flags: Sequence[str],
    *,
    as_json: bool = False,
    defaults: dict[str, str] | None = None,
    log: Path | None = None,
    describe: Callable[[list[BrokerProcess]], str] | None = None,
) -> int:
    from service.broker.data_folder import StartError
    from service.supervisor import ON_ONE_MACHINE, Supervisor

    gc.enable()
    supervisor = Supervisor(config, count, flags, defaults=ON_ONE_MACHINE if defaults is None else defaults, log=log)

    def ready(members: list[BrokerProcess]) -> None:
        facts = [member.facts for member in members]
        if as_json:
            click.echo(json.dumps({"bootstrap": ",".join(each["bootstrap"] for each in facts), "brokers": facts}))
        else:
            click.echo((describe or _describe_several)(members))

    async def main() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        asked_s = 0.0

        def end() -> None:
            nonlocal asked_s
            if stop.is_set() and loop.time() - asked_s > AGAIN_S:
                supervisor.kill()
            asked_s = asked_s or loop.time()
            stop.set()

        for number in ENDING:
            # `loop.add_signal_handler` would give the signals back to Python at the end, and a late one would cut short
            # what comes after it.
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(end))
        try:
            running = asyncio.ensure_future(supervisor.run(on_ready=ready, stop=stop))
            stopping = asyncio.ensure_future(stop.wait())
            await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
            await running
        finally:
            ignore_signals()
        return 0

    try:
        return asyncio.run(main())
    except StartError as error:
        raise _failure(str(error)) from None


def ignore_signals() -> None:
    """All is about to end already."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def _describe_several(members: list[BrokerProcess]) -> str:
    lines = [f"oncelog is up with {len(members)} brokers. Ctrl-C stops them all.", ""]
    for member in members:
        facts = member.facts
        where = f"{facts['bootstrap']:<22} data {facts['data'][0]}  process {facts['process_id']}"
        lines.append(f"  broker {facts['node_id']:<5} {where}")
    http = ", ".join(url for member in members for url in member.facts["http"])
    lines += ["", f"  HTTP         {http or 'off (http.listeners is empty)'}"]
    bootstrap = ",".join(member.facts["bootstrap"] for member in members)
    lines += [
        "",
        "To try it, in another terminal:",
        "",
        f"  {own_name()} topic create orders --partitions {2 * len(members)} -b {bootstrap}",
        f"  {own_name()} cluster -b {bootstrap}",
        "",
    ]
    return "\n".join(lines)


def _failure(message: str, *more: str, usage: bool = False) -> click.ClickException:
    """One clear line; several problems of a configuration are a line each."""
    from service.cli.failures import CliError, Exit

    return CliError(message, Exit.USAGE if usage else Exit.FAILED, more=more)


def _load(
    path: Path | None, overrides: Sequence[str], *, data: str | None, host: str | None, port: int | None
) -> BrokerConfig:
    """The settings of all sources. Flags are short forms of settings, and win over all other sources. Listeners that
    can't be served are refused: if encryption was asked for, no open port may be offered.
    """
    from service.settings.setting import ConfigError
    from service.settings.sources import load_config

    flags = list(overrides)
    if data is not None:
        flags.append(f"log.dirs={data}")
    # The one variable of that prefix that is no setting: it tells the other commands where a broker is.
    environment = {name: value for name, value in os.environ.items() if name != "ONCELOG_BOOTSTRAP"}
    try:
        config = load_config(path, environment, flags)
        if host is None and port is None:
            return config
        shown = f"[{host}]" if host and ":" in host else host or ""
        return load_config(
            path, environment, [*flags, f"listeners=PLAINTEXT://{shown}:{9092 if port is None else port}"]
        )
    except ConfigError as error:
        raise _failure(*str(error).split("\n"), usage=True) from None


def _log_to_stderr() -> None:
    formatter = OneLine("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in CAUSED_BY_CLIENTS:
        logging.getLogger(name).addFilter(Seldom())


class OneLine(logging.Formatter):
    """What a client has named is no line of its own, whatever is in the name, and fills no page."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = record.message
        if len(text) > LONGEST_LINE:
            text = f"{text[:LONGEST_LINE]}... ({len(text)} characters)"
        record.message = "".join([each if each.isprintable() else repr(each)[1:-1] for each in text])
        return super().formatMessage(record)


class Seldom(logging.Filter):
    """Lets few lines of a kind through, and says how many it has left out: a client that repeats a bad request at once
    would fill the disk with log lines.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """For each text of the code, arguments not filled in: when its period began, and the lines since then."""

    def filter(self, record: logging.LogRecord) -> bool:
        kind, now_s = str(record.msg), self._now_s()
        since_s, lines = self._kinds.get(kind, (-math.inf, 0))
        if now_s - since_s < PERIOD_S:
            self._kinds[kind] = since_s, lines + 1
            if lines + 1 == LINES_A_PERIOD:
                record.msg = f"{kind} (more of this kind are left out for {PERIOD_S - (now_s - since_s):.0f} s)"
            return lines < LINES_A_PERIOD
        self._kinds[kind] = now_s, 1
        if lines > LINES_A_PERIOD:
            record.msg = f"{kind} ({lines - LINES_A_PERIOD} of this kind were left out before)"
        return True


def _check_port(endpoint: Endpoint, what_for: str = "", *, cure: str) -> None:
    """Say that a port is taken before logs are opened and recovered in vain."""
    where = endpoint.address + what_for
    try:
        found = socket.getaddrinfo(
            endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise _failure(f"can't listen on {where}: {error.strerror}") from None
    for family, kind, protocol, _, address in found:
        try:
            probe = socket.socket(family, kind, protocol)
        except OSError:
            continue  # a machine without IPv6
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind(address)
                if endpoint.port:
                    probe.listen(1)  # two may bind with SO_REUSEADDR; only one may listen
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:
                    continue
                why = f"the port is in use; {cure} takes another" if error.errno == errno.EADDRINUSE else error.strerror
                raise _failure(f"can't listen on {where}: {why}") from None


def _run(config: BrokerConfig, print_banner: Callable[[Broker, Sequence[Endpoint]], None]) -> int:
    from service.broker.data_folder import StartError

    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_serve(config, print_banner))
    except StartError as error:
        raise _failure(str(error)) from None
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        raise _failure(f"{place}{error.strerror or error}") from None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed; it has no Windows and may lag behind a new Python."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _serve(config: BrokerConfig, print_banner: Callable[[Broker, Sequence[Endpoint]], None]) -> int:
    from service.process import run_broker

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    asked_s = 0.0
    up = False

    def end(number: int) -> None:
        nonlocal asked_s
        if not up:
            leave_start()
        if not stop.is_set():
            asked_s = loop.time()
            stop.set()
        elif loop.time() - asked_s > AGAIN_S:
            # A second ctrl-C means: don't wait. What was acknowledged is as safe as after a crash.
            say_and_leave("stopped without waiting; the next start reads the logs again", 128 + number)

    for number in ENDING:
        loop.add_signal_handler(number, end, number)
    waiting = _StartReport(loop)

    def ready(broker: Broker, web: Sequence[Endpoint]) -> None:
        nonlocal up
        up = True
        waiting.end()
        print_banner(broker, web)

    if (config.store_url or "").startswith("unix://"):
        waiting.also = loop.create_task(_stop_with(os.getppid(), stop))
    try:
        await run_broker(config, on_opening=waiting.watch, on_ready=ready, stop=stop)
    finally:
        waiting.end()
    return 0


async def _stop_with(parent: int, stop: asyncio.Event) -> None:
    """Stop when the process that holds the metadata store is gone: nothing else would stop this broker then."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nobody tells when a parent dies
        await asyncio.sleep(PARENT_EVERY_S)
    stop.set()


class _StartReport:
    """Tells the progress of a long start: a terminal is updated, a log gets a line now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.also: asyncio.Task[None] | None = None
        self._opening: OpeningProgress | None = None
        self._terminal = sys.stderr.isatty()
        self._said = False
        self._timer = loop.call_later(SILENCE_S, self._say)

    def watch(self, opening: OpeningProgress) -> None:
        self._opening = opening

    def end(self) -> None:
        self._timer.cancel()
        if self._said and self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
        self._said = False

    def _say(self) -> None:
        text = "still starting"
        if self._opening is not None and self._opening.partitions:
            done = self._opening
            text += f": {done.opened} of {done.partitions} logs are open"
            if done.read_bytes:
                text += f"; {done.read_bytes / 1e9:.1f} GB read again, as the last stop was not a clean one"
        click.echo(f"\r\x1b[K{text}" if self._terminal else text, err=True, nl=not self._terminal)
        self._said = True
        self._timer = self._loop.call_later(0.2 if self._terminal else LINE_EVERY_S, self._say)


def _web_urls(web: Sequence[Endpoint]) -> list[str]:
    """The addresses for a browser. A broker that listens on all addresses is shown as localhost."""
    everywhere = ("", "0.0.0.0", "::")
    return [each._replace(host="localhost" if each.host in everywhere else each.host).url for each in web]


def _banner(broker: Broker, web: Sequence[Endpoint]) -> None:
    click.echo(describe_start(broker.bootstrap, broker.config, _web_urls(web)))


def _json_banner(broker: Broker, web: Sequence[Endpoint]) -> None:
    facts = {
        "bootstrap": broker.bootstrap,
        "http": _web_urls(web),
        "data": [str(Path(folder).absolute()) for folder in broker.config.data_folders],
        "node_id": broker.metadata.broker_id,
        "cluster_id": broker.metadata.image.cluster_id,
        "process_id": os.getpid(),
    }
    click.echo(json.dumps(facts))


def describe_start(bootstrap: str, config: BrokerConfig, web: Sequence[str]) -> str:
    """The text at the start: where the broker is, where its data is, and what to try."""
    folders = ", ".join(str(Path(folder).absolute()) for folder in config.data_folders)
    return f"""\
oncelog is up. Ctrl-C stops it.

  bootstrap address   {bootstrap}
  HTTP                {", ".join(web) or "off (http.listeners is empty)"}
  data folder         {folders}
  durability          {_DURABILITY[config.durability.value]}

To try it, in another terminal:

  echo hello | kcat -b {bootstrap} -P -t greetings
  kcat -b {bootstrap} -C -t greetings -e

  python3 -m venv /tmp/try && /tmp/try/bin/pip install kafka-python
  /tmp/try/bin/python -c 'from kafka import KafkaProducer
print(KafkaProducer(bootstrap_servers="{bootstrap}").send("greetings", b"hello from Python").get())'

  {own_name()} consume greetings -b {bootstrap}
"""


def own_name() -> str:
    """How to call this command from here: `make serve` puts nothing on the path."""
    if shutil.which("oncelog"):
        return "oncelog"
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "oncelog" else f"{sys.executable} -m service.cli"


_DURABILITY = {
    "auto": "auto: acks=all is answered after an fsync while this broker is the only replica",
    "fsync": "fsync: acks=all is answered after an fsync",
    "os": "os: acks=all is answered once the operating system has it; a power cut may lose it",
}
