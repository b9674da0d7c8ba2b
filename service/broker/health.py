"""Finds out what is wrong between this broker and the rest of the cluster, and says it in one line each: in the log
when it begins and ends, to who asks (`oncelog doctor`), and as metrics.

A look asks each other broker, at the address that it has registered, who it is and what its clock says, and whether its
HTTP API answers. So an address that can't be reached, or leads to another broker, is found before a replica or a
forwarded request needs it. What replication knows is put together: what can't be copied here, and which replicas
elsewhere are not in sync, each with the reason.

Nothing else depends on this. Trouble that is over before the second look is not told: leaders change, and brokers
restart.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import NamedTuple

from log.ids import TopicPartition
from service.broker.partition import Leading
from service.broker.partition_table import PartitionTable
from service.broker.replication import Replication, address_of
from service.client.connection import Client, ClientError
from service.client.http_port import why_no_http
from service.cluster.image import RegisteredBroker
from service.cluster.metadata import ClusterMetadata
from service.ports import Env
from service.settings.broker import WEB, BrokerConfig
from service.turns import breathe
from service.wire.messages import DescribeHealthRequest

logger = logging.getLogger("oncelog.health")

LOOK_EVERY_S = 5.0
ANSWER_S = 3.0
LASTS_S = 5.0
"""How long a partition can't be copied before it is told."""
CLOCKS_APART_MS = 1_000
"""Timeouts of transactions, retention and timestamps go by the clocks of several brokers."""
PARTITIONS_A_TURN = 256

SESSION, UNREACHABLE, STRANGER, CLOCK, HTTP = "session", "unreachable", "stranger", "clock", "http"
STUCK, OUT_OF_SYNC = "stuck", "out-of-sync"
KINDS = (SESSION, UNREACHABLE, STRANGER, CLOCK, HTTP, STUCK, OUT_OF_SYNC)
FAILED, FULL, UNUSED = "failed", "full", "unused"
"""What is wrong with a data folder. A broker knows it at once, and metrics of their own tell it."""
STORE = "metadata store"


class Trouble(NamedTuple):
    """`partitions`: how many it concerns; 1 where it is not about partitions."""

    kind: str
    about: str
    partitions: int
    says: str


class Seen(NamedTuple):
    """What the last look at another broker, in this life of it, has found."""

    epoch: int
    trouble: Trouble | None
    apart_ms: int | None = None
    """By how much its clock is ahead of ours, at least; None if it does not tell."""


class Health:
    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: PartitionTable,
        replication: Replication,
    ) -> None:
        self._env = env
        self._config = config
        self._metadata = metadata
        self._partitions = partitions
        self._replication = replication
        self._seen: dict[int, Seen] = {}
        self.troubles: list[Trouble] = []
        """What is wrong, as the last look has found."""

    @property
    def clocks_apart_s(self) -> dict[int, float]:
        """By broker, how far its clock is ahead of ours."""
        return {broker: seen.apart_ms / 1000 for broker, seen in self._seen.items() if seen.apart_ms is not None}

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except Exception:  # nothing else depends on it
                logger.exception("the look at the cluster's health failed; it is tried again")

    async def look(self) -> None:
        found = [*self._of_session(), *await self._of_brokers(), *await self._of_partitions()]
        before, now = ({(each.kind, each.about): each for each in told} for told in (self.troubles, found))
        for what, trouble in now.items():
            if what not in before:
                logger.warning("%s", trouble.says)
        for what, trouble in before.items():
            if what not in now:
                logger.info("no longer: %s", trouble.says)
        self.troubles = found

    def _of_session(self) -> Iterator[Trouble]:
        if why := self._metadata.trouble:
            yield Trouble(SESSION, STORE, 1, f"this broker leads nothing for now: {why}")

    # -- other brokers

    async def _of_brokers(self) -> list[Trouble]:
        metadata, troubles = self._metadata, []
        others = [broker for broker in metadata.image.brokers.values() if broker.id != metadata.broker_id]
        self._seen = {broker.id: self._seen[broker.id] for broker in others if broker.id in self._seen}
        for broker in others:
            before, now = self._seen.get(broker.id), await self._look(broker)
            self._seen[broker.id] = now
            if now.trouble is None or before is None or before.trouble is None or before.epoch != now.epoch:
                continue
            if before.trouble.kind == now.trouble.kind and broker.id in metadata.image.brokers:
                troubles.append(now.trouble)
        return troubles

    async def _look(self, broker: RegisteredBroker) -> Seen:
        host, port = address_of(broker, self._config.inter_broker_listener_name)
        whose, where = f"broker {broker.id}", f"{host}:{port}"
        client = Client(host, port, f"health-{self._metadata.broker_id}")
        clock = self._env.clock
        try:
            async with asyncio.timeout(ANSWER_S), client:
                if not client.offers(DescribeHealthRequest):
                    return Seen(broker.epoch, None)  # it is older than this question
                asked_s = clock.monotonic()
                told = await client.request(DescribeHealthRequest())
                now_ms, took_ms = clock.wall_ms(), (clock.monotonic() - asked_s) * 1000
        except (OSError, ClientError, TimeoutError) as error:
            why = str(error) or f"no answer within {ANSWER_S:g} s"
            says = (
                f"{whose} can't be reached at {where}, where it says that it is ({why}): its advertised.listeners must"
                " name an address that other brokers reach"
            )
            return Seen(broker.epoch, Trouble(UNREACHABLE, whose, 1, says))
        if (told.broker_id, told.cluster_id) != (broker.id, self._metadata.image.cluster_id):
            says = (
                f"{where}, where {whose} says that it is, leads to broker {told.broker_id} of cluster"
                f" {told.cluster_id}: its advertised.listeners must name its own address"
            )
            return Seen(broker.epoch, Trouble(STRANGER, whose, 1, says))
        # Its clock was read between the question and the answer: this much is certain.
        earliest, latest = told.wall_ms - now_ms, told.wall_ms - now_ms + took_ms
        apart_ms = int(earliest if earliest > 0 else min(latest, 0))
        if abs(apart_ms) < CLOCKS_APART_MS:
            return Seen(broker.epoch, await self._of_http(broker), apart_ms)
        direction = "ahead of" if apart_ms > 0 else "behind"
        says = f"the clock of {whose} is {abs(apart_ms) / 1000:.1f} s {direction} this broker's: keep both in step"
        return Seen(broker.epoch, Trouble(CLOCK, whose, 1, says), apart_ms)

    @staticmethod
    async def _of_http(broker: RegisteredBroker) -> Trouble | None:
        """Requests that the other broker must serve are forwarded there."""
        endpoint = broker.endpoint(WEB)
        if endpoint is None:
            return None
        why = await why_no_http(broker.id, endpoint.host, endpoint.port, ANSWER_S)
        if why is None:
            return None
        whose = f"broker {broker.id}"
        says = (
            f"the HTTP API of {whose} can't be reached at {endpoint.url}, where it says that it is ({why}): requests"
            " that must be served there can't be forwarded"
        )
        return Trouble(HTTP, whose, 1, says)

    # -- replicas

    async def _of_partitions(self) -> list[Trouble]:
        stuck: dict[tuple[str, str], list[TopicPartition]] = {}
        for leader, place, why in self._replication.stuck(self._env.clock.monotonic() - LASTS_S):
            stuck.setdefault((f"broker {leader}", why), []).append(place)
        missing: dict[tuple[str, str], list[TopicPartition]] = {}
        for count, partition in enumerate(self._partitions):
            if count % PARTITIONS_A_TURN == PARTITIONS_A_TURN - 1:
                await breathe()
            role = partition.role
            if not isinstance(role, Leading) or len(role.replicas.isr) == len(role.replicas.replicas):
                continue
            for member in role.replicas.replicas:
                if member not in role.replicas.isr:
                    why = self._why_missing(partition.topic_partition, role, member)
                    missing.setdefault((f"broker {member}", why), []).append(partition.topic_partition)
        return [
            *_grouped(STUCK, stuck, "{partitions} can't be copied from {about}: {why}"),
            *_grouped(OUT_OF_SYNC, missing, "{about} has no copy in sync of {partitions}: {why}"),
        ]

    def _why_missing(self, place: TopicPartition, role: Leading, member: int) -> str:
        if member not in self._metadata.image.brokers:
            return "it is not in the cluster"
        now_ms, follower = self._replication.in_sync.now_ms(), role.replicas.followers[member]
        if now_ms - follower.fetched_ms > self._config.replica_lag_time_max_ms or follower.held_end_offset < 0:
            return "it does not ask for what is new; its own log says why"
        throttles = self._replication.throttles
        if throttles.leading.concerns(place, member):
            return "this broker's leader.replication.throttled.rate holds it back"
        if throttles.following.concerns_there(place, member):
            return "its follower.replication.throttled.rate holds it back"
        return "it asks for what is new, and has not caught up"


def _grouped(kind: str, found: dict[tuple[str, str], list[TopicPartition]], says: str) -> Iterator[Trouble]:
    """One trouble for each broker, with the reason that concerns most partitions."""
    by_broker: dict[str, list[tuple[int, str, TopicPartition]]] = {}
    for (about, why), partitions in found.items():
        by_broker.setdefault(about, []).append((len(partitions), why, partitions[0]))
    for about, reasons in by_broker.items():
        total = sum(count for count, _, _ in reasons)
        _, why, first = max(reasons)
        named = f"{first} and {total - 1} more partitions" if total > 1 else str(first)
        yield Trouble(kind, about, total, says.format(partitions=named, about=about, why=why))
