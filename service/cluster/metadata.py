"""The cluster's metadata as one broker holds it: an image that follows the store, and the way to change it.

What always holds: there is one path to the image, the store's watch, in the order of commits. A command is answered
only after the image holds what the command did. Listeners hear of every change once, in order, and before that answer.
One task follows the watch, and one task carries out commands one after the other. So no decision is made on an image
that another command of this broker is about to change.

Every broker carries out commands, because each op is a compare-and-set. Once a broker is registered, its commits check
that it is still registered, and that no broker has registered since the image that it decided on. Decisions that only a
controller may make also check the controller's epoch (R1).

The loss of a session is a normal state. The parts that serve are told to stop, and everything that depended on the
session is void (R11). The broker then joins again by itself, in a new session and with a new epoch. If another process
has registered with its id meanwhile, it gives way and stops.
"""

import asyncio
import logging
from collections.abc import Callable, Container, Generator
from typing import Any, NamedTuple, TypeVar

from log.ids import TopicId
from log.tally import Histogram
from service.cluster.controller import (
    Command,
    FenceBroker,
    FoundCluster,
    Refusal,
    RegisterBroker,
    TakeBrokerId,
    id_is_taken,
)
from service.cluster.election import claim
from service.cluster.image import (
    BROKER_EPOCH,
    CONTROLLER_EPOCH,
    NO_DIRECTORIES,
    NO_LIFE,
    NO_SESSION,
    Delta,
    Image,
    RegisteredBroker,
    broker_key,
    differing,
    loading,
)
from service.ports import Env
from service.settings.broker import Endpoint
from service.stores.port import (
    Change,
    Check,
    Delete,
    MetadataStore,
    Op,
    Result,
    SessionExpired,
    StoreError,
    StoreFailed,
    StoreSession,
    StoreSnapshot,
)
from service.turns import done_in_turns
from service.wire.error_codes import ErrorCode

logger = logging.getLogger("oncelog.metadata")

Reply = TypeVar("Reply")
DeltaListener = Callable[[Delta], None]

MAX_WAITING_COMMANDS = 1000
"""The most commands that wait. Beyond that a caller waits before its command is queued, because each command may hold a
whole request.
"""
MAX_ATTEMPTS = 100
"""The most conflicts in a row before a command is given up. Something is wrong then that another try does not mend."""
RETRY_DELAY_S = 0.05
"""The pause before a store that did not answer is asked again. It doubles each time, up to a second."""
PATIENCE_S = 30.0
"""The longest time spent on learning the outcome of a command. After that the answer is that it is unknown."""
REJOIN_S_MIN, REJOIN_S_MAX = 0.1, 5.0
"""The shortest and the longest pause before a new session is requested. It doubles each time."""
ROUND, REST_SHARE, REST_S_MAX = 300, 0.2, 1.0
"""After each so many commits of the cluster those that made them rest for this fraction of the time that they took. A
broker that is far from the store, or busy, decides on what others have changed before it can append. Without a rest
that all keep at once it would come too late again and again, for as long as others go on.
"""
CALM_S = 30.0
"""If those commits took this long, a broker that is far has come in between."""
LOOKS_PER_LEASE = 20
"""How often during one session timeout this broker checks whether it may still act on its session."""
NOT_ANSWERED = "the metadata store has not answered for too long"
TAKEN_FOR_DEAD = "The cluster has taken this broker for dead."


class MetadataLost(Exception):
    """The session with the store is over, or only the controller may decide this. The command was not carried out, or
    its outcome is unknown.
    """

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error


class _Registration(NamedTuple):
    """What this broker registers each time it joins."""

    endpoints: tuple[Endpoint, ...]
    rack: str | None
    closed_life: int | None
    directories: tuple[str, ...]
    place: str
    lost: Container[tuple[TopicId, int]]


class ClusterMetadata:
    def __init__(
        self, store: MetadataStore, env: Env, *, session_timeout_s: float, min_in_sync: Callable[[], int] = lambda: 1
    ) -> None:
        self.min_in_sync = min_in_sync
        """How many replicas must be in sync, for topics that do not set it. It may change while the broker runs."""
        self.image = Image()
        self.broker_id = -1
        self.broker_epoch = -1
        self.sessions_lost = 0
        self.went_on = 0
        """How often the store answered again after this broker had led nothing for its silence."""
        self.latency = Histogram()
        """How long the store took to answer a commit, whatever the answer."""
        self.trouble = ""
        """Why this broker may not act on the metadata now; empty while it may."""
        self._is_leaving = False
        self.on_session_lost: Callable[[], None] = lambda: None
        self.on_session_regained: Callable[[], None] = lambda: None
        self.on_displaced: Callable[[], None] = lambda: None
        """Another process has registered with this broker's id since this one did: this one joins no more."""
        self.is_displaced = False
        self._store = store
        self._env = env
        self._session_timeout_s = session_timeout_s
        self._session: StoreSession | None = None
        self._opened: StoreSession | None = None  # the last session opened, perhaps not in use any more
        self._process = NO_SESSION
        """The first session of this process: by it the cluster tells it from others with the same data folder."""
        self._registration: _Registration | None = None
        self._has_joined = False
        self._trusted = False
        self._listeners: list[DeltaListener] = []
        self._commands: asyncio.Queue[tuple[Command[Any], bool, asyncio.Future[Any]]] = asyncio.Queue(
            MAX_WAITING_COMMANDS
        )
        self._waiting: list[tuple[int, asyncio.Future[Any]]] = []
        self._round_began_s = self._rests_until_s = env.clock.monotonic()
        self._is_in_round = False
        """Whether this broker has made one of the commits of the present round."""
        self._catching_up: list[asyncio.Timeout] = []
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def has_session(self) -> bool:
        """Whether this broker has a session that, as far as it knows, the store has not ended."""
        return self._session is not None

    @property
    def life(self) -> int:
        """The broker epoch of the last registration, if it is this process's; else that of nobody's life."""
        last = self.image.lives.get(self.broker_id, NO_LIFE)
        return last.epoch if last.process == self._process else -1

    # --- life ---

    async def start(self, *, broker_id: int, cluster_id: str, founding: bool = True) -> None:
        """Join the cluster. When this returns, the image is complete. With -1 for `broker_id` the broker takes a free
        id. With `founding`, a cluster that has no id yet gets `cluster_id`.
        """
        await self._begin_session()
        self.broker_id = broker_id
        if self.broker_id < 0:
            self.broker_id = await self._carry_out(TakeBrokerId())
        self._tasks.append(self._env.tasks.spawn("metadata commands", self._serve()))
        if founding and not self.image.cluster_id:
            await self.execute(FoundCluster(cluster_id))

    async def wait_for_id(self) -> None:
        """Wait while another broker is registered with this broker's id. Raises `MetadataLost` if that lasts longer
        than the session of a broker that has died, if this broker's own session ends, or if the store can't be asked.
        """
        deadline_s = self._env.clock.monotonic() + 2 * self._session_timeout_s
        while self.broker_id in self.image.brokers:
            if self._session is None:  # the image does not change any more
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
            if self._env.clock.monotonic() > deadline_s:
                await self._catch_up(for_its_id=True)  # this broker may be told late that the other one has gone
                if self.broker_id in self.image.brokers:
                    raise MetadataLost(ErrorCode.DUPLICATE_BROKER_REGISTRATION, id_is_taken(self.broker_id))
                return
            await asyncio.sleep(REJOIN_S_MIN)

    async def register(
        self,
        endpoints: tuple[Endpoint, ...],
        *,
        rack: str | None,
        closed_life: int | None,
        directories: tuple[str, ...] = (),
        place: str = "",
        lost: Container[tuple[TopicId, int]] = (),
    ) -> int:
        """Register this broker, and return its broker epoch. `closed_life` is the life that ended in order, if the data
        folders tell of one, `directories` are the ids of its data folders, `place` is where the first of them is, and
        `lost` are the partitions that had something there and have nothing. Nobody is told of them again once they are
        taken out.
        Raises `MetadataLost` while another broker has its id, or while the store can't be asked. After a session that
        ends meanwhile another one is begun, however often.
        """
        self._registration = _Registration(endpoints, rack, closed_life, directories, place, lost)
        deadline_s = self._env.clock.monotonic() + 2 * self._session_timeout_s
        delay_s, has_told, is_late = REJOIN_S_MIN, False, False
        while True:
            try:
                if self._session is None:  # the session was lost while the logs were read
                    await self._begin_session()
                if is_late:
                    await self._catch_up(for_its_id=True)
                refused = await self._register()
                if refused is None:
                    return self.broker_epoch
                why = MetadataLost(refused.error, refused.message or refused.error.name)
            except StoreError as error:
                why = MetadataLost(ErrorCode.REQUEST_TIMED_OUT, str(error))
            except MetadataLost as lost:
                why = lost
                if lost.error is ErrorCode.NOT_CONTROLLER:
                    logger.warning("This broker could not register: %s It tries again.", lost)
                    deadline_s, is_late = self._env.clock.monotonic() + 2 * self._session_timeout_s, False
            # A silent store is waited for longer than one that answers, such as one whose disk is full.
            is_silent = why.error is ErrorCode.REQUEST_TIMED_OUT
            # The session of a former life of this broker may have to expire first. If the other registration outlives
            # that, it belongs to a living broker, unless this one is told late of what has changed.
            if self._env.clock.monotonic() > deadline_s + (PATIENCE_S if is_silent else 0.0):
                if is_late or why.error is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    self._registration = None
                    raise why
                is_late = True
                continue
            await asyncio.sleep(delay_s)
            if why.error is not ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                delay_s = min(2 * delay_s, REJOIN_S_MAX)
            elif not has_told:  # the image alone is looked at again: it tells when the other one has gone
                has_told = True
                logger.error(
                    "id taken: a process on another data folder, or another copy of this one, is registered as broker"
                    " %d. This one waits for the end of that one's session",
                    self.broker_id,
                )

    async def _register(self) -> Refusal | None:
        session, own = self._session, self._registration
        if session is None or own is None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        self.broker_epoch = -1
        known = self.image.directories.get(self.broker_id, NO_DIRECTORIES).ids
        register = RegisterBroker(
            self.broker_id,
            session.id,
            self._process,
            own.endpoints,
            own.rack,
            own.closed_life,
            own.directories,
            self.min_in_sync(),
            own.lost,
            own.place,
            self._has_joined,
        )
        epoch = await self._carry_out(register)
        if isinstance(epoch, Refusal):
            return epoch
        self._has_joined = True
        if self._session is not session:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        now = self.image.brokers.get(self.broker_id)
        if now is None or now.epoch != epoch:  # the image told of it before this broker counted as registered
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, TAKEN_FOR_DEAD)
        self.broker_epoch, self._trusted = epoch, True
        if own.directories and (lost := set(known) - set(own.directories)):
            logger.critical(
                "%d data folder(s) with which broker %d was in the cluster before are not here: it does not count any"
                " more as one that holds what was there",
                *(len(lost), self.broker_id),
            )
        self._tasks.append(self._env.tasks.spawn("metadata lease", self._watch_lease(session)))
        return None

    def stay_out(self) -> None:
        """Do not join again, if the cluster takes this broker for dead or the session ends."""
        self._is_leaving = True

    async def leave(self) -> None:
        """Remove the registration of this broker. It does not join again."""
        self.stay_out()
        await self.execute(FenceBroker(self.broker_id, self.broker_epoch))

    async def close(self) -> None:
        """Leave the cluster. This ends the registration, and the control of the cluster if this broker has it."""
        for task in self._tasks:
            task.cancel()
        self._refuse_waiting("this broker is stopping")
        await self._end_session()

    # --- sessions ---

    async def _begin_session(self) -> None:
        await self._end_session()
        session = self._session = self._opened = await self._store.session(self._session_timeout_s)
        if self._process == NO_SESSION:
            self._process = session.id
        self._tasks = [task for task in self._tasks if not task.done()]
        begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.append(self._env.tasks.spawn("metadata watch", self._follow(session, begun)))
        await begun
        await self._commit()

    async def _end_session(self) -> None:
        """Close the last session that was opened. Its registration is only removed when the session ends, so a session
        that is not used any more must not be kept alive.
        """
        session, self._session, self._opened = self._opened, None, None
        if session is None:
            return
        try:
            await session.close()
        except Exception as error:  # noqa: BLE001 - whatever it is, the session is not used any more, and another may be
            logger.warning("session %d could not be closed: %r", session.id, error)

    async def _watch_lease(self, session: StoreSession) -> None:
        """Stop serving while the store has not answered for so long that other brokers may take this one for dead, and
        go on when it answers again.
        """
        while self._session is session:
            trusted = session.lease_left() > 0
            if trusted != self._trusted:
                self._trusted = trusted
                self.trouble = "" if trusted else NOT_ANSWERED
                if trusted:
                    logger.warning("the metadata store answers again")
                    try:
                        self.on_session_regained()
                        self.went_on += 1
                    except Exception:
                        logger.exception("this broker can't go on to serve what the metadata gives it")
                        self._lost("This broker leaves the cluster, to join it again.")
                else:
                    logger.error("%s: this broker leads nothing for now", NOT_ANSWERED)
                    self._end_catching_up()
                    self.on_session_lost()
            await asyncio.sleep(self._session_timeout_s / LOOKS_PER_LEASE)

    async def _rejoin(self) -> None:
        delay_s, cluster_id = REJOIN_S_MIN, self.image.cluster_id
        while True:
            await self._end_session()
            await asyncio.sleep(delay_s * (0.5 + self._env.rng.random() / 2))
            delay_s = min(2 * delay_s, REJOIN_S_MAX)
            try:
                await self._begin_session()
                if self.image.cluster_id != cluster_id:
                    why = f"The metadata store is of cluster {self.image.cluster_id!r}, this broker of {cluster_id}."
                    raise MetadataLost(ErrorCode.INCONSISTENT_CLUSTER_ID, why)
                refused = await self._register()
                if refused is not None:
                    raise MetadataLost(refused.error, refused.message or refused.error.name)
                logger.warning("broker %d is in the cluster again, with epoch %d", self.broker_id, self.broker_epoch)
                self.trouble = ""
                self.on_session_regained()
                self.went_on += 1
                return
            except (MetadataLost, StoreError) as error:
                self.trouble = str(error)
                is_refused = isinstance(error, MetadataLost) and error.error is ErrorCode.DUPLICATE_BROKER_REGISTRATION
                if is_refused and self.life < 0:
                    await self._give_way()
                    return
                logger.error("this broker can't join the cluster again yet: %s", error)
            except Exception:
                logger.exception("this broker can't join the cluster again yet")
                self._trusted = False
                self.on_session_lost()
            self.broker_epoch = -1

    async def _give_way(self) -> None:
        """If two processes took the id from each other, each would acknowledge what the other one lacks."""
        logger.critical(
            "id taken: another process has registered as broker %d since this one did, perhaps with a copy of its data"
            " folder. This one stops",
            self.broker_id,
        )
        self.is_displaced = True
        await self._end_session()
        self.on_displaced()

    # --- reading ---

    def subscribe(self, listener: DeltaListener) -> None:
        """`listener` is called for every change from now on, in order, as soon as `image` holds the change. It must not
        wait.
        """
        self._listeners.append(listener)

    def unsubscribe(self, listener: DeltaListener) -> None:
        self._listeners = [each for each in self._listeners if each != listener]

    def topic_name(self, topic_id: TopicId) -> str | None:
        return self.image.topic_names.get(topic_id)

    @property
    def in_session(self) -> bool:
        """Whether this broker is registered, and may act on its registration."""
        if self._is_leaving or self._session is None:
            return False
        return self.broker_epoch >= 0 and self._session.lease_left() > 0

    @property
    def why_out_of_session(self) -> str:
        """Why `in_session` is false; empty while it is true."""
        if self.in_session:
            return ""
        if self._is_leaving:
            return "this broker leaves the cluster"
        if self.trouble or self.broker_epoch < 0:
            return self.trouble or "this broker has not joined the cluster yet"
        return NOT_ANSWERED

    @property
    def is_controller(self) -> bool:
        """Whether the image names this session as the controller, though the store may be silent for the moment."""
        return self._session is not None and self.image.controller_session == self._session.id

    @property
    def controlling(self) -> bool:
        """Whether this broker may act as the controller now."""
        return self.is_controller and self._session is not None and self._session.lease_left() > 0

    async def catch_up(self) -> None:
        """Wait until the image shows every commit that was answered before this call. Raises `MetadataLost`, at the
        latest when this broker leads nothing any more: what is asked about its leadership has its answer then.
        """
        try:
            async with asyncio.timeout(None) as patience:
                self._catching_up.append(patience)
                try:
                    await self._catch_up()
                finally:
                    self._catching_up.remove(patience)
        except TimeoutError:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, self.why_out_of_session or NOT_ANSWERED) from None

    async def _catch_up(self, *, for_its_id: bool = False) -> None:
        """With `for_its_id`, a store that is silent for a while is waited for: this broker leads nothing yet."""
        session, delay_s = self._session, RETRY_DELAY_S
        deadline_s = self._env.clock.monotonic() + PATIENCE_S
        while session is not None and session is self._session and (for_its_id or session.lease_left() > 0):
            try:
                number = await session.newest()
            except SessionExpired:
                raise self._over(session) from None
            except Exception as error:  # noqa: BLE001 - whatever it is, the store has not answered
                logger.error("the metadata store failed: %r", error)
                number = None
            if number is not None:
                await self._reach(number)
                if self._session is session:
                    return
            if self._env.clock.monotonic() > deadline_s:
                break
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 1.0)
        if session is None or session is not self._session:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, NOT_ANSWERED)

    # --- changing ---

    async def execute(self, command: Command[Reply], *, as_controller: bool = False) -> Reply:
        """Decide on a command, commit, and return the reply once the image holds the commit. Raises `MetadataLost`."""
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        await self._commands.put((command, as_controller, answer))
        return await answer

    async def _serve(self) -> None:
        while True:
            command, as_controller, answer = await self._commands.get()
            try:
                await self._rest()
                reply = await self._carry_out(command, as_controller=as_controller)
            except Exception as error:  # noqa: BLE001 - the caller is told; the next command is another's
                if not answer.done():
                    answer.set_exception(error)
                    answer.exception()  # the caller may be gone
            else:
                if not answer.done():
                    answer.set_result(reply)
            finally:
                if not answer.done():  # cancelled: the broker is stopping; the outcome is unknown
                    answer.cancel()

    async def _rest(self) -> None:
        if len(self.image.brokers) > 1:
            await asyncio.sleep(max(self._rests_until_s - self._env.clock.monotonic(), 0.0))

    async def _carry_out(self, command: Command[Reply], *, as_controller: bool = False) -> Reply:
        retried = False
        for _ in range(MAX_ATTEMPTS):
            if as_controller and not self.controlling:
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "This broker does not control the cluster.")
            if self._session is None:
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
            image = self.image
            decided = command.decide(image, retried=retried)
            # What changes meanwhile makes the commit fail, except that a broker's registration ends: the controller
            # sees to the partitions that were given to that broker (`Duties.heard`).
            decision = await done_in_turns(decided) if isinstance(decided, Generator) else decided
            if not decision.ops:
                return decision.reply
            guard = self._guard(image)
            if as_controller:
                guard += (Check(CONTROLLER_EPOCH, image.controller_epoch.version),)
            result, _ = await self._commit(*guard, *decision.ops)
            if result is Result.OK:
                self._is_in_round = True
                return decision.reply
            retried = retried or result is Result.UNKNOWN
            if result is Result.CONFLICT and self.image.number == image.number:
                # Nobody else has changed anything, so the decision would always be the same.
                logger.error("a bug: %s decides on what the store refuses", type(command).__name__)
                raise MetadataLost(ErrorCode.UNKNOWN_SERVER_ERROR, "The change contradicts itself.")
        raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not accept the change.")

    def _guard(self, image: Image) -> tuple[Op, ...]:
        """Checks that this broker is still registered. The key alone does not tell: a registration that is removed and
        made again has the old version. The counter of registrations tells.
        """
        if self.broker_epoch < 0:
            return ()
        own = image.brokers.get(self.broker_id)
        if own is None or own.epoch != self.broker_epoch:
            raise MetadataLost(ErrorCode.STALE_BROKER_EPOCH, "This broker is not registered any more.")
        return Check(BROKER_EPOCH, image.broker_epoch.version), Check(broker_key(own.id), own.version)

    async def claim(self) -> None:
        """Become the controller, unless another registered broker is. Only a registered broker does: until its logs are
        open it does none of a controller's work. After an attempt whose outcome is unknown, the image is read; if this
        broker is the controller then, it claims again with the next epoch (R2).
        """
        doubtful = False
        for _ in range(MAX_ATTEMPTS):
            if self._session is None or self.broker_epoch < 0:
                raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
            image, session = self.image, self._session.id
            if image.controller is not None and (image.controller_session != session or not doubtful):
                return
            result, _ = await self._commit(
                *self._guard(image), *claim(image, broker_id=self.broker_id, session=session)
            )
            if result is Result.OK:
                return
            doubtful = doubtful or result is Result.UNKNOWN
        raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, "The metadata store did not accept the claim to control.")

    async def take_over(self, dead: RegisteredBroker) -> None:
        """Become the controller, with the next epoch, in place of a broker whose process has died (R1)."""
        session, image = self._session, self.image
        registered = image.brokers.get(dead.id)
        if session is None or image.controller_id != dead.id or registered is None or registered.epoch != dead.epoch:
            return
        gone = Delete(broker_key(dead.id), registered.version)
        await self._commit(
            *self._guard(image), gone, *claim(image, broker_id=self.broker_id, session=session.id, dead=dead.id)
        )

    async def _commit(self, *ops: Op) -> tuple[Result, int]:
        """Commit, and wait until the image shows what happened."""
        session = self._session
        if session is None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "This broker is stopping.")
        asked_s = self._env.clock.monotonic()
        result, number = await self._ask(session, *ops)
        self.latency.add(self._env.clock.monotonic() - asked_s)
        if result is Result.UNKNOWN:
            await asyncio.sleep(RETRY_DELAY_S)
            number = await self._barrier(session)
        if result is Result.EXPIRED:
            raise self._over(session)
        await self._reach(number)
        return result, number

    async def _ask(self, session: StoreSession, *ops: Op) -> tuple[Result, int]:
        """Commit. Raises `MetadataLost` after any error of the store: a quota or an access list may refuse a commit,
        and of what nobody foresaw the outcome is unknown.
        """
        try:
            return await session.commit(*ops)
        except StoreFailed as failed:
            raise MetadataLost(ErrorCode.KAFKA_STORAGE_ERROR, str(failed)) from None
        except Exception as error:
            logger.error("the metadata store failed: %r", error)
            raise MetadataLost(ErrorCode.KAFKA_STORAGE_ERROR, f"The metadata store failed: {error!r}") from error

    async def _barrier(self, session: StoreSession) -> int:
        """Commit nothing, and return the number of that commit. An image that has reached the number shows all earlier
        commits. A commit whose answer was lost may still happen: a later one, and not a question, rules that out.
        """
        deadline_s = self._env.clock.monotonic() + PATIENCE_S
        delay_s = RETRY_DELAY_S
        while True:
            why = "The metadata store does not answer."
            try:
                result, number = await self._ask(session)
            except MetadataLost as lost:
                why = str(lost)
            else:
                if result is Result.OK:
                    return number
                if result is Result.EXPIRED:
                    raise self._over(session)
            if self._env.clock.monotonic() > deadline_s:
                raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, why)
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, 1.0)

    # --- following ---

    async def _follow(self, session: StoreSession, begun: asyncio.Future[None]) -> None:
        over = MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        try:
            over = await self._watch(session, begun) or over
        except Exception:  # without this, the broker would go on leading by an image that no longer changes
            logger.exception("the metadata can't be followed")
            over = MetadataLost(ErrorCode.KAFKA_STORAGE_ERROR, "The metadata can't be followed.")
        if self._session is session:  # nobody may act by a session that is not followed
            self._lost(str(over))
        if not begun.done():
            begun.set_exception(over)

    async def _watch(self, session: StoreSession, begun: asyncio.Future[None]) -> MetadataLost | None:
        """Follow the store until the session is over. Commits that are known already are passed over, and after a gap
        everything is read again (R10). Returns why the store must not be followed any further, if that is the reason to
        stop.
        """
        async for event in session.watch():
            match event:
                case StoreSnapshot(number) if number < self.image.number and not begun.done():
                    return MetadataLost(
                        ErrorCode.KAFKA_STORAGE_ERROR,
                        f"The metadata store has gone back from commit {self.image.number} to {number}: bring back what"
                        " it has lost.",
                    )
                case StoreSnapshot(number) if number > self.image.number:
                    new = await done_in_turns(loading(event))
                    while number > self.image.number:  # an earlier session's task may announce others meanwhile
                        delta = await done_in_turns(differing(self.image, new))
                        if delta.old is self.image:
                            self._announce(delta)
                case Change():
                    await self._take(event)
                case _:
                    pass  # known already, or a gap, after which a snapshot comes
            if not begun.done():
                begun.set_result(None)
        return None

    async def _take(self, change: Change) -> None:
        """Make the image after a change that is not known yet. An earlier session's task may do the same meanwhile."""
        while change.number > self.image.number:
            delta = await done_in_turns(self.image.making(change))
            if delta.old is self.image:
                self._announce(delta)

    def _announce(self, delta: Delta) -> None:
        assert delta.old is self.image, "no change in between is passed over"
        assert self.image.number < delta.new.number, "the metadata never go back (R10)"
        self.image = delta.new
        if delta.old.number // ROUND < delta.new.number // ROUND:
            self._end_round()
        if self.broker_epoch >= 0 and self.broker_id in delta.brokers:
            own = delta.new.brokers.get(self.broker_id)
            if (own is None or own.epoch != self.broker_epoch) and not self._is_leaving:
                self._lost(TAKEN_FOR_DEAD)
        for listener in self._listeners:
            listener(delta)
        reached = [waiter for number, waiter in self._waiting if number <= delta.new.number]
        self._waiting = [(number, waiter) for number, waiter in self._waiting if number > delta.new.number]
        for waiter in reached:
            if not waiter.done():
                waiter.set_result(None)

    def _end_round(self) -> None:
        now_s = self._env.clock.monotonic()
        round_s = now_s - self._round_began_s
        if self._is_in_round and round_s < CALM_S:
            self._rests_until_s = now_s + min(REST_SHARE * round_s, REST_S_MAX)
        self._round_began_s, self._is_in_round = now_s, False

    async def _reach(self, number: int) -> None:
        """Wait until the image holds commit `number`. Raises `MetadataLost` if the session ends before."""
        if self._session is None:
            raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
        if self.image.number < number:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((number, waiter))
            await waiter

    def _over(self, session: StoreSession) -> MetadataLost:
        """The store says that this session is over. The answer may be late, and another session may have begun."""
        why = "The session with the metadata store is over."
        if self._session is session:
            self._lost(why)
        return MetadataLost(ErrorCode.NOT_CONTROLLER, why)

    def _lost(self, why: str) -> None:
        """The session is lost: everything that depended on it is void (R11)."""
        session = self._session
        if session is None:
            return
        logger.error("%s", why)
        self._session = None
        self._refuse_waiting(why)
        if self.broker_epoch < 0:
            return  # still joining: that task gets the error itself
        self.trouble = why
        self.sessions_lost += 1
        self.broker_epoch = -1
        if self._trusted:
            self._trusted = False
            self.on_session_lost()
        if not self._is_leaving:
            self._tasks.append(self._env.tasks.spawn("rejoin", self._rejoin()))

    def _refuse_waiting(self, why: str) -> None:
        self._end_catching_up()
        waiting, self._waiting = self._waiting, []
        while not self._commands.empty():
            waiting.append((0, self._commands.get_nowait()[2]))
        for _, waiter in waiting:
            if not waiter.done():
                waiter.set_exception(MetadataLost(ErrorCode.NOT_CONTROLLER, why))
                waiter.exception()  # marks the error as seen: the caller may be gone

    def _end_catching_up(self) -> None:
        for patience in self._catching_up:
            if not patience.expired():
                patience.reschedule(0.0)
