"""ZooKeeper as a ledger, through kazoo.

| znode | |
|---|---|
| `head` | its version is the number of the newest record: to append is to set it at the version one knows |
| `records/<number>` | a record, or the list of its parts |
| `parts/…` | pieces of what is larger than ZooKeeper takes at once; they count when a record or the base names them |
| `base` | the number of the newest base, and its parts |
| `sessions/s-<id>` | ephemeral: a session that is alive. Every append checks that the one of its own session is there |

What always holds: an append is one transaction of ZooKeeper, so a record is there wholly or not at all, whatever its
size. A session that is over appends nothing, even if its request was already on its way. If the answer to an append was
lost, the next append makes the lost one fail or come before it. A lease is extended only by what a majority of the
ensemble has answered: a server that lost its leader goes on answering reads for a while, and a leader that was replaced
`sync`, and the session may end meanwhile.

kazoo has threads of its own. Their calls enter the loop at one place, `_from_kazoo`. Beside that they set one number,
the granted timeout.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    AuthFailedError,
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from service.ports import Env
from service.stores.lease import BEATS, Leased
from service.stores.ledger import AppendOutcome, LedgerAway
from service.stores.port import SessionExpired, StoreError
from service.stores.zookeeper_connection import Connection

logger = logging.getLogger("oncelog.store")

PART_BYTES: Final = 512 * 1024
"""Half of what ZooKeeper takes in one request (`jute.maxbuffer`)."""
WHOLE, IN_PARTS = b"\0", b"\1"
READ_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """The address of the ensemble: `host:port,host:port/chroot`. With `user`, only that user may access the znodes that
    we create (digest).
    """

    connect: str
    user: str = ""
    password: str = ""

    async def session(self, timeout_s: float, env: Env) -> "ZooKeeperSession":
        """A session, once the ensemble answers. Raises `StoreError`."""
        session = ZooKeeperSession(self, timeout_s, env)
        await session.begin()
        return session


class ZooKeeperSession(Leased):
    """See `LedgerSession`."""

    def __init__(self, place: ZooKeeper, timeout_s: float, env: Env) -> None:
        super().__init__(timeout_s, env)
        self.id = -1
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._head = 0
        self._parts_made = 0
        acl = [make_digest_acl(place.user, place.password, all=True)] if place.user else None
        self._client = KazooClient(
            place.connect,
            timeout=timeout_s,
            auth_data=[("digest", f"{place.user}:{place.password}")] if place.user else None,
            default_acl=acl,
            connection_retry=KazooRetry(max_tries=-1, max_delay=1.0),
            logger=logging.getLogger("oncelog.zookeeper"),
        )
        self._client.add_listener(lambda state: self._from_kazoo(self._state_changed, state))
        self._client._connection = Connection(self._client, timeout_s, self._granted)

    def _granted(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    # -- life

    async def begin(self) -> None:
        await self._env.blocking(self._client.start_async().wait, self._timeout_s)
        if not self._client.connected:
            await self.close()
            raise StoreError(f"no ZooKeeper answered at {self._place.connect} within {self._timeout_s:g} s")
        try:
            for path in ("/records", "/parts", "/sessions"):
                await self._ask(lambda path=path: self._client.ensure_path_async(path))  # type: ignore[misc]
            for path in ("/head", "/base"):
                await self._make_once(path)
            name = await self._ask(
                lambda: self._client.create_async("/sessions/s-", b"", ephemeral=True, sequence=True), by_majority=True
            )
        except (LedgerAway, SessionExpired, KazooException) as error:
            await self.close()
            raise StoreError(f"ZooKeeper at {self._place.connect} can't be used: {error!r}") from None
        self.id = int(name.rpartition("-")[2])
        self._env.tasks.spawn(f"heartbeat of session {self.id}", self._beat())

    async def _make_once(self, path: str) -> None:
        try:
            await self._ask(lambda: self._client.create_async(path, b""))
        except NodeExistsError:
            return

    async def _beat(self) -> None:
        try:
            while not self._over:
                try:
                    await self.confirmed_newest()
                except (LedgerAway, SessionExpired) as error:
                    logger.debug("session %d: %r", self.id, error)  # the lease limits how long that may last
                await asyncio.sleep(self._timeout_s / BEATS)
        finally:
            self._end()  # after an error that nobody foresaw: another session may get on

    async def close(self) -> None:
        self._end()
        await self._env.blocking(self._stop)

    def _stop(self) -> None:
        self._client.stop()
        self._client.close()

    # -- kazoo's threads

    def _from_kazoo(self, call: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _state_changed(self, state: KazooState) -> None:
        if state == KazooState.LOST:
            self._end()
        else:
            self._stirred.set()  # the watches were lost with the connection

    def _watched(self, event: object) -> None:
        self._from_kazoo(self._stirred.set)

    async def _ask(self, call: Callable[[], Any], *, by_majority: bool = False) -> Any:
        """The answer of kazoo to `call`. Raises `LedgerAway`, `SessionExpired`, and the errors of the request. Of what
        goes `by_majority` a majority of the ensemble answers, otherwise perhaps only the server that is asked.
        """
        if self._over:
            raise SessionExpired
        answer: asyncio.Future[Any] = self._loop.create_future()

        def settle(result: Any) -> None:
            if answer.done():
                return
            if result.exception is not None:
                answer.set_exception(result.exception)
            else:
                answer.set_result(result.value)

        asked_s = self._env.clock.monotonic()
        call().rawlink(lambda result: self._from_kazoo(settle, result))
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await answer
        except (TimeoutError, ConnectionLoss) as error:
            raise LedgerAway(repr(error)) from None
        except (SessionExpiredError, AuthFailedError):
            raise SessionExpired from None
        if by_majority:
            self._heard_s = max(self._heard_s, asked_s)
        return found

    # -- the ledger

    async def newest(self) -> int:
        synced = self._ask(lambda: self._client.sync_async("/head"))
        _, head = await asyncio.gather(synced, self._look_at_head())
        return head

    async def confirmed_newest(self) -> int:
        """A leader that was replaced, and does not know it, answers a `sync` alone. A transaction that only checks
        needs a majority like any other, and changes nothing. The look at the head comes behind it.
        """
        checked = self._ask(self._checked().commit_async, by_majority=True)
        [alive], head = await asyncio.gather(checked, self._look_at_head())
        if isinstance(alive, Exception):
            self._end()
            raise SessionExpired
        return head

    async def _look_at_head(self) -> int:
        stat = await self._ask(lambda: self._client.exists_async("/head", watch=self._watched))
        if stat is None:
            raise LedgerAway("somebody has removed the metadata from ZooKeeper")
        head: int = stat.version
        if head > self._head:
            self._stirred.set()
        self._head = max(self._head, head)
        return head

    async def append(self, number: int, record: bytes) -> AppendOutcome:
        try:
            if len(record) <= PART_BYTES:
                value = WHOLE + record
            else:
                value = IN_PARTS + await self._put_parts(f"r-{number:010d}", record)
            transaction = self._checked()
            transaction.set_data("/head", b"", version=number - 1)
            transaction.create(_record_path(number), value)
            alive, appended, _ = await self._ask(transaction.commit_async, by_majority=True)
        except LedgerAway:
            return AppendOutcome.UNKNOWN
        except SessionExpired:
            return AppendOutcome.EXPIRED
        if isinstance(alive, NoNodeError):
            self._end()
            return AppendOutcome.EXPIRED
        if isinstance(appended, BadVersionError):
            return AppendOutcome.BEHIND
        if isinstance(appended, Exception):
            logger.error("ZooKeeper refused a record of %d bytes: %r", len(record), appended)
            return AppendOutcome.UNKNOWN
        self._head = max(self._head, number)
        return AppendOutcome.OK

    def _checked(self) -> TransactionRequest:
        transaction = self._client.transaction()
        transaction.check(f"/sessions/s-{self.id:010d}", 0)
        return transaction

    async def read(self, after: int) -> list[bytes] | None:
        numbers = range(after + 1, min(self._head, after + READ_AT_ONCE) + 1)
        asked = [self._get(_record_path(number)) for number in numbers]
        try:
            found = await asyncio.gather(*asked)
            return [await self._join_parts(value[1:]) if value[:1] == IN_PARTS else value[1:] for value, _ in found]
        except NoNodeError:
            return None

    async def base(self) -> tuple[int, bytes]:
        while True:
            value, _ = await self._get("/base")
            if not value:
                return 0, b""
            number, _, parts = value.partition(b"\n")
            try:
                return int(number), await self._join_parts(parts)
            except NoNodeError:
                continue  # a newer base has replaced it

    async def set_base(self, number: int, base: bytes, *, drop_to: int) -> None:
        parts = await self._put_parts(f"b-{number:010d}", base)
        value, stat = await self._get("/base")
        if not value or int(value.partition(b"\n")[0]) < number:
            transaction = self._checked()
            transaction.set_data("/base", b"%d\n%b" % (number, parts), version=stat.version)
            await self._ask(transaction.commit_async)  # fails if another process has just set one
        await self._sweep(drop_to)

    async def _sweep(self, drop_to: int) -> None:
        """Remove old records, and parts that no record and no base names any more."""
        value, _ = await self._get("/base")
        number, _, named = value.partition(b"\n")
        keep = set(json.loads(named))
        for name in await self._ask(lambda: self._client.get_children_async("/records")):
            if int(name) <= drop_to:
                await self._remove(f"/records/{name}")
        for name in await self._ask(lambda: self._client.get_children_async("/parts")):
            kind, of = name.split("-")[:2]
            if name not in keep and int(of) <= (drop_to if kind == "r" else int(number)):
                await self._remove(f"/parts/{name}")

    async def _remove(self, path: str) -> None:
        try:
            await self._ask(lambda: self._client.delete_async(path))
        except NoNodeError:
            return  # another broker has removed it

    async def living(self) -> frozenset[int]:
        names = await self._ask(lambda: self._client.get_children_async("/sessions", watch=self._watched))
        return frozenset(int(name.rpartition("-")[2]) for name in names)

    # -- parts

    async def _put_parts(self, name: str, data: bytes) -> bytes:
        """Store `data` in pieces. Returns the names by which to join them."""
        names = []
        for start in range(0, len(data), PART_BYTES):
            self._parts_made += 1
            part = f"{name}-{self.id}-{self._parts_made}"
            await self._ask(
                lambda part=part, start=start: self._client.create_async(  # type: ignore[misc]
                    f"/parts/{part}", data[start : start + PART_BYTES]
                )
            )
            names.append(part)
        return json.dumps(names).encode("ascii")

    async def _join_parts(self, names: bytes) -> bytes:
        found = await asyncio.gather(*(self._get(f"/parts/{name}") for name in json.loads(names)))
        return b"".join(data for data, _ in found)

    async def _get(self, path: str) -> Any:
        return await self._ask(lambda: self._client.get_async(path))


def _record_path(number: int) -> str:
    return f"/records/{number:010d}"
