"""The cluster's metadata as one broker holds it: an image that follows the store, and the way to change it.

What always holds: there is one path to the image, the store's watch, in the order of commits; an answer to a command
leaves after the image holds what the command did; listeners hear of every change once, in order, before that answer.
One task follows the watch, one carries out commands one after the other, so a decision is never made on an image that
another command of ours is about to change.

On a single broker it is its own controller. A broker of a larger cluster that does not control answers NOT_CONTROLLER
here; sending its commands to the one that does comes with replication between brokers. Called by the broker and by
every handler that reads or changes metadata.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from log.ids import TopicId
from service.cluster.controller import Command, FoundCluster, Refusal, RegisterBroker, TakeBrokerId
from service.cluster.election import claim
from service.cluster.image import CONTROLLER_EPOCH, Delta, Image, difference, load
from service.ports import Env
from service.settings.broker import Endpoint
from service.stores.port import Change, Check, MetadataStore, Op, Result, Session, Snapshot, StoreFailed
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.metadata")

Reply = TypeVar("Reply")
Listener = Callable[[Delta], None]

MAX_WAITING_COMMANDS = 1000
"""Beyond these a caller waits before its command is even taken: each may hold a whole request."""
MAX_ATTEMPTS = 100
"""A command that met so many conflicts in a row is given up: something is wrong that deciding again will not mend."""
RETRY_DELAY_S = 0.05
"""Before asking again a store that did not answer; twice as long each time, up to a second."""
PATIENCE_S = 30.0
"""A command whose outcome could not be learned for so long is answered with that."""


class MetadataLost(Exception):
    """The session with the store is over, or this broker does not control the cluster: the command was not carried
    out, or nobody can know.
    """

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class ClusterMetadata:
    def __init__(self, store: MetadataStore, env: Env, *, session_timeout_s: float) -> None:
        self.image = Image()
        self.broker_id = -1
        self.broker_epoch = -1
        self.on_session_lost: Callable[[], None] = lambda: None
        self._store = store
        self._env = env
        self._session_timeout_s = session_timeout_s
        self._session: Session | None = None
        self._listeners: list[Listener] = []
        self._commands: asyncio.Queue[tuple[Command[Any], asyncio.Future[Any]]] = asyncio.Queue(MAX_WAITING_COMMANDS)
        self._waiting: list[tuple[int, asyncio.Future[Any]]] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def has_session(self) -> bool:
        """Whether the store still counts this broker among the living."""
        return self._session is not None

    # --- life ---

    async def start(self, *, broker_id: int, cluster_id: str, founding: bool = True) -> None:
        """Join the cluster: its image is complete then. -1 for `broker_id` takes a free number; `cluster_id` is given
        to a cluster that has none yet, if it may be founded.

        Called again after the session was lost, it joins anew; listeners hear what changed meanwhile.
        """
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._session = await self._store.session(self._session_timeout_s)
        self._tasks.append(self._env.tasks.spawn("metadata watch", self._follow(self._session)))
        await self._commit()
        self.broker_id = broker_id
        if self.broker_id < 0:
            # Before the claim, because the claim names the broker; whoever else takes a number meets a conflict.
            self.broker_id = await self._carry_out(TakeBrokerId(), checked=False)
        await self._claim()
        self._tasks.append(self._env.tasks.spawn("metadata commands", self._serve()))
        if founding and not self.image.cluster_id:
            await self.execute(FoundCluster(cluster_id))

    async def register(self, endpoints: tuple[Endpoint, ...], *, rack: str | None, clean: bool) -> int:
        """Begin this broker's life in the cluster; its epoch. `clean`: its former life ended in order. Raises
        `MetadataLost` while another broker has its id.
        """
        assert self._session is not None
        command = RegisterBroker(self.broker_id, self._session.id, endpoints, rack, clean)
        epoch = await self.execute(command)
        if isinstance(epoch, Refusal):
            raise MetadataLost(epoch.error, epoch.message or epoch.error.name)
        self.broker_epoch = epoch
        return epoch

    async def close(self) -> None:
        """Leave the cluster: the registration goes, and with it the controllership."""
        for task in self._tasks:
            task.cancel()
        self._refuse_waiting("this broker is stopping")
        if self._session is not None:
            await self._session.close()
            self._session = None

    # --- reading ---

    def subscribe(self, listener: Listener) -> None:
        """`listener` is called for every change from now on, in order, as soon as `image` holds it. It never waits."""
        self._listeners.append(listener)

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self.image.topic_names.get(topic_id)

    @property
    def controlling(self) -> bool:
        return (
            self._session is not None
            and self.image.controller_session == self._session.id
            and self._session.lease_left() > 0
        )

    # --- changing ---

    async def execute(self, command: Command[Reply]) -> Reply:
        """Decide, commit, and answer once the image holds it. Raises `MetadataLost`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        await self._commands.put((command, answer))
        return await answer

    async def _serve(self) -> None:
        while True:
            command, answer = await self._commands.get()
            try:
                reply = await self._carry_out(command, checked=True)
            except Exception as error:  # noqa: BLE001 - whoever asked is told; the next command is another's
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(reply)
            finally:
                if not answer.done():  # cancelled: the broker is stopping, and the commit may have happened or not
                    answer.cancel()

    async def _carry_out(self, command: Command[Reply], *, checked: bool) -> Reply:
        """`checked`: as the controller, in its epoch (R1)."""
        retried = False
        for _ in range(MAX_ATTEMPTS):
            if checked and not self.controlling:
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "This broker does not control the cluster.")
            image = self.image
            decision = command.decide(image, retried=retried)
            if not decision.ops:
                return decision.reply
            guard: tuple[Op, ...] = (Check(CONTROLLER_EPOCH, image.controller_epoch.version),) if checked else ()
            result, _ = await self._commit(*guard, *decision.ops)
            if result is Result.OK:
                return decision.reply
            retried = retried or result is Result.UNKNOWN
        raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not accept the change.")

    async def _claim(self) -> None:
        """Become the controller, unless another is. After a doubtful answer the next round reads what holds and
        claims again one epoch up (R2).
        """
        assert self._session is not None
        for _ in range(MAX_ATTEMPTS):
            ops = claim(self.image, broker_id=self.broker_id, session=self._session.id)
            if not ops or (await self._commit(*ops))[0] is Result.OK:
                return
        raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not accept the claim to control.")

    async def _commit(self, *ops: Op) -> tuple[Result, int]:
        """Commit, and bring the image to where it shows what happened."""
        session = self._session
        if session is None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "This broker is stopping.")
        try:
            result, number = await session.commit(*ops)
        except StoreFailed as failed:
            raise MetadataLost(ErrorCode.KAFKA_STORAGE_ERROR, str(failed)) from None
        if result is Result.UNKNOWN:
            await asyncio.sleep(RETRY_DELAY_S)
            number = await self._barrier(session)
        if result is Result.EXPIRED:
            self._lost("The session with the metadata store is over.")
        await self._reach(number)
        return result, number

    async def _barrier(self, session: Session) -> int:
        """The number of a commit of nothing: everything before it shows in an image that has reached it."""
        deadline_s = self._env.clock.monotonic() + PATIENCE_S
        delay_s = RETRY_DELAY_S
        while True:
            why = "The metadata store does not answer."
            try:
                result, number = await session.commit()
            except StoreFailed as failed:
                why = str(failed)
            else:
                if result is Result.OK:
                    return number
                if result is Result.EXPIRED:
                    self._lost("The session with the metadata store is over.")
                    return 0
            if self._env.clock.monotonic() > deadline_s:
                raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, why)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 1.0)

    # --- following ---

    async def _follow(self, session: Session) -> None:
        async for event in session.watch():
            match event:
                case Snapshot(number) if number > self.image.number:
                    new = load(event)
                    self._announce(difference(self.image, new))
                case Change(number) if number > self.image.number:
                    self._announce(self.image.after(event))
                case _:
                    pass  # seen already, or a gap, after which a snapshot comes
        if self._session is session:
            self._lost("The session with the metadata store is over.")

    def _announce(self, delta: Delta) -> None:
        self.image = delta.new
        for listener in self._listeners:
            listener(delta)
        reached = [waiter for number, waiter in self._waiting if number <= delta.new.number]
        self._waiting = [(number, waiter) for number, waiter in self._waiting if number > delta.new.number]
        for waiter in reached:
            if not waiter.done():
                waiter.set_result(None)

    async def _reach(self, number: int) -> None:
        """Wait until the image holds commit `number`. Raises `MetadataLost` when the session ends before."""
        if self._session is None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        if self.image.number < number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((number, waiter))
            await waiter

    def _lost(self, why: str) -> None:
        """Everything that rested on the session is void (R11)."""
        if self._session is None:
            return
        logger.error("%s", why)
        self._session = None
        self._refuse_waiting(why)
        self.on_session_lost()

    def _refuse_waiting(self, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        while not self._commands.empty():
            waiting.append((0, self._commands.get_nowait()[1]))
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(MetadataLost(ErrorCode.NOT_CONTROLLER, why))
