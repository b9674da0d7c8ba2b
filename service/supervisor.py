"""Several brokers on one machine, each a process, with one metadata store; and the restart of those that have died.

The metadata store is the embedded one in the data folder. This process has it open, and its brokers use it through a
socket. The first broker uses the data folder itself, so a single broker can become the first of several. The others
have folders inside it. The ports of the brokers follow each other.

What always holds: when this process ends, its brokers end too, even if it was killed. A broker that dies after it was
up is started again, with pauses that grow while it does not stay up or can't be started. Whenever all are to end, those
that are just being started end too.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from log.disk import RealDisk
from service.broker.data_folder import StartError, read_all
from service.cluster.image import load
from service.ports import RealEnv
from service.process import refuse_fewer, store_url
from service.settings.broker import BrokerConfig
from service.stores.port import StoreError, StoreSnapshot
from service.stores.shared import SCHEME, StoreServer
from service.stores.sql import SqlStore

logger = logging.getLogger("oncelog.supervisor")

OTHERS_FOLDER = "brokers"
MAX_PORT = 65_535
ERROR_PREFIX = "oncelog: "
"""How a command begins the line that says why it ends."""
RESTART_S_MIN, RESTART_S_MAX = 0.2, 10.0
STEADY_S = 30.0
"""A broker that was up for this long is restarted after the shortest pause again."""
ON_ONE_MACHINE = {
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
"""Defaults for several brokers on one machine. Copies on the same disk would cost three times as much, and protect only
against the death of a broker.
"""


def tied(command: Sequence[str]) -> list[str]:
    """The command, changed so that its process is killed when this thread ends, however this process ends. It is
    unchanged if the system has no `setpriv` (util-linux).
    """
    setpriv = shutil.which("setpriv")
    return list(command) if setpriv is None else [setpriv, "--pdeathsig", "KILL", "--", *command]


class BrokerProcess:
    """One of the brokers, and its process."""

    def __init__(self, number: int, command: Sequence[str], log: Path | None) -> None:
        self.number = number
        self.facts: dict[str, Any] = {}
        self._log = log
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._leaves = False

    async def start(self) -> None:
        """Start the process. Returns when the broker answers, and raises `StartError` if the process ends instead, or
        the machine can't have another one now.
        """
        try:
            process, log_end = await self._spawned()
        except OSError as error:
            raise StartError(f"broker {self.number} can't be started: {error}") from error
        self._process = process
        if self._leaves:
            process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            status = await process.wait()
            raise StartError(f"broker {self.number} did not start (status {status}){self._last_words(log_end)}")
        try:
            self.facts = json.loads(line)
        except ValueError:
            raise StartError(f"broker {self.number} said {line!r} instead of where it is") from None

    async def _spawned(self) -> tuple[asyncio.subprocess.Process, int]:
        """A new process, and where in its log its words begin."""
        log = None if self._log is None else os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        log_end = 0 if log is None else os.lseek(log, 0, os.SEEK_END)
        try:
            process = await asyncio.create_subprocess_exec(
                *tied(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        finally:
            if log is not None:
                os.close(log)
        return process, log_end

    def _last_words(self, log_end: int) -> str:
        """Why it did not start, from what it has written to the file for the operator, beyond `log_end`: its error, or
        else its last line, as after a traceback. Without such a file the operator has seen it.
        """
        if self._log is None:
            return ""
        try:
            written = self._log.read_bytes()
        except OSError:  # somebody has moved it, as logrotate does
            return ""
        lines = written[log_end:].decode(errors="replace").splitlines()
        errors = [line.removeprefix(ERROR_PREFIX) for line in lines if line.startswith(ERROR_PREFIX)]
        told = errors or [line for line in lines if line.strip()]
        return f": {told[-1]}" if told else ""

    def leave(self) -> None:
        """Let the process end, or the one that is being started now."""
        self._leaves = True
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a paused process hears nothing else before

    async def ended(self) -> int:
        """The status with which the process has ended; 0 if there was none."""
        return 0 if self._process is None else await self._process.wait()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)


class Supervisor:
    def __init__(
        self,
        config: BrokerConfig,
        count: int,
        arguments: Sequence[str],
        *,
        defaults: dict[str, str],
        log: Path | None = None,
    ) -> None:
        """`arguments` are those of `oncelog serve`, and are passed on to the members. `log` is the file for the
        members' messages to the operator.
        """
        self._log = log
        self._config = config
        self._count = count
        self._arguments = arguments
        self._defaults = defaults
        self.members: list[BrokerProcess] = []

    async def run(self, *, on_ready: Callable[[list[BrokerProcess]], None], stop: asyncio.Event) -> None:
        self._check_ports()
        folder = self._config.data_folders[0]
        os.makedirs(folder, exist_ok=True)
        env = RealEnv(RealDisk(folder))
        with tempfile.TemporaryDirectory(prefix="oncelog-") as place:
            store: SqlStore | None = None
            server: StoreServer | None = None
            own: dict[str, str] = {}
            try:
                if not self._config.may_have_company:
                    store = await SqlStore.open(store_url(self._config), env)
                    await self._refuse_fewer(store)
                    server = StoreServer(store, env, f"{place}/store")
                    await server.begin()
                    own = {"store.url": f"{SCHEME}{place}/store"}
                await self._run(own, on_ready, stop)
            except StoreError as error:
                raise StartError(str(error)) from None
            finally:
                if server is not None:
                    await server.close()
                if store is not None:
                    await store.close()
                await env.tasks.cancel_all()

    def _check_ports(self) -> None:
        """Say that there are not enough ports in terms of what was asked for: the members know one port each."""
        config = self._config
        for entry in (*config.listeners, *(config.advertised_listeners or ()), *config.http_listeners):
            port = entry.rpartition(":")[2]
            if port.isdigit() and 0 < int(port) <= MAX_PORT < int(port) + self._count - 1:
                raise StartError(
                    f"{self._count} brokers need the ports {port} to {int(port) + self._count - 1}, and there is none"
                    f" above {MAX_PORT}"
                )

    async def _refuse_fewer(self, store: SqlStore) -> None:
        session = await store.session(self._config.session_timeout_s)
        try:
            async for event in session.watch():
                assert isinstance(event, StoreSnapshot), "the first event tells everything"
                image = load(event)
                break
        finally:
            await session.close()
        refuse_fewer(image, self._first_id(), self._count)

    async def _run(
        self, own: dict[str, str], on_ready: Callable[[list[BrokerProcess]], None], stop: asyncio.Event
    ) -> None:
        self.members = [
            BrokerProcess(number, self._command(number, own), self._log) for number in range(1, self._count + 1)
        ]
        starts = [asyncio.ensure_future(member.start()) for member in self.members]
        all_up = asyncio.ensure_future(asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION))
        stopped = asyncio.ensure_future(stop.wait())
        await asyncio.wait((all_up, stopped), return_when=asyncio.FIRST_COMPLETED)
        failed = [error for start in starts if start.done() and (error := start.exception())]
        if failed or stop.is_set():
            stopped.cancel()
            await self._stop(starts)
            if failed:
                raise failed[0]
            return
        on_ready(self.members)
        keepers = [asyncio.ensure_future(self._keep(member, stop)) for member in self.members]
        await stopped
        await self._stop(keepers)

    async def _stop(self, starting: Sequence[asyncio.Future[None]]) -> None:
        """`starting` are the tasks that may be about to start a process."""
        for member in self.members:
            member.leave()
        await asyncio.gather(*starting, return_exceptions=True)
        await asyncio.gather(*(member.ended() for member in self.members))

    def kill(self) -> None:
        for member in self.members:
            member.signal(signal.SIGKILL)

    async def _keep(self, member: BrokerProcess, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RESTART_S_MIN
        while True:
            began_s = loop.time()
            status = await member.ended()
            if stop.is_set():
                return
            if loop.time() - began_s > STEADY_S:
                pause_s = RESTART_S_MIN
            logger.error("broker %d has ended (status %d) and is started again", member.number, status)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            pause_s = min(2 * pause_s, RESTART_S_MAX)
            if stop.is_set():
                return
            try:
                await member.start()
            except StartError as error:
                logger.error("%s", error)
            except Exception:  # whatever it is, the broker is to come back
                logger.exception("broker %d could not be started", member.number)
            else:
                logger.warning("broker %d is up again", member.number)

    def _command(self, number: int, own: dict[str, str]) -> list[str]:
        config, shift = self._config, number - 1
        folders = [folder if number == 1 else f"{folder}/{OTHERS_FOLDER}/{number}" for folder in config.data_folders]
        settings = {
            "log.dirs": ",".join(folders),
            "node.id": str(self._first_id() + shift),
            "listeners": ",".join(_moved(entry, shift) for entry in config.listeners),
            **{key: value for key, value in self._defaults.items() if key not in config.given},
            **own,
        }
        if config.advertised_listeners is not None:
            settings["advertised.listeners"] = ",".join(_moved(entry, shift) for entry in config.advertised_listeners)
        if config.http_listeners != ("auto",):
            settings["http.listeners"] = ",".join(_moved(entry, shift) for entry in config.http_listeners)
        given = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        return [sys.executable, "-m", "service.cli", "serve", *self._arguments, *given, "-o", "json"]

    def _first_id(self) -> int:
        """The id of the first broker: the one in the data folder, if it has one. The ids of the others follow."""
        folders = {folder: RealDisk(folder) for folder in self._config.data_folders if Path(folder).exists()}
        try:
            known = [facts.node_id for facts in read_all(folders).values() if facts is not None]
        finally:
            for disk in folders.values():
                disk.close()
        if known:
            return known[0]
        return self._config.node_id if self._config.node_id >= 0 else 1


def _moved(entry: str, shift: int) -> str:
    """A listener with its port moved by `shift`. Port 0, any free port, stays 0."""
    place, colon, port = entry.rpartition(":")
    return entry if not colon or not port.isdigit() or port == "0" else f"{place}:{int(port) + shift}"
