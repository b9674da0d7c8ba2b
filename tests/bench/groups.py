"""Groups of many members, each as simple as possible: requests and answers, no records are read.

`python -m tests.bench.groups PORT WHAT COUNT` is the load, in a process of its own. `run` starts it, and while it
works, sends small requests to the broker: the longest of them tells how long other clients wait. A member of the
classic protocol has a connection of its own, because brokers answer in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from typing import Final, cast

import uvloop

from service.client.connection import Client
from service.wire.codec import decode_response, encode_data, encode_request, write_request_header
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ApiVersionsRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
    ConsumerProtocolSubscription,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from service.wire.messages.versions import ApiKey
from tests.bench.contenders import TimedOncelog
from tests.bench.native import PATIENCE_SECONDS, LoadFailed, Outcome
from tests.peers.process import ROOT, BrokerProcess

TOPIC: Final = "shared"
PARTITIONS: Final = 1_000
MANY: Final = "many-"  # the names of very many topics begin so
LONG_MS: Final = 300_000
CONNECTIONS: Final = 32
BEAT_SECONDS: Final = (
    0.5  # five thousand real members send fewer heartbeats than this, a tenth of a second would send 50,000
)
TARGET_STANDS_SECONDS: Final = 1.1  # both brokers keep a target assignment for one second at least
LEAVES: Final = 5  # one after the other, of which the median is told
AT_ONCE: Final = 200  # connections that are made, or groups that are committed for
OFFSETS: Final = 10  # of one commit
STEADY_SECONDS: Final = 10.0
NAMES_TOPICS: Final = 9  # the last version of OffsetCommit and OffsetFetch that does
WAITING: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
SUBSCRIPTION: Final = b"\0\1" + encode_data(ConsumerProtocolSubscription(topics=[TOPIC]), 1)
ASSIGNMENT: Final = b"\0\1" + bytes(60)


def run(broker: BrokerProcess, what: str, count: int) -> Outcome:
    """What the load found, and `others_wait_ms`. Of a broker that measures its turns its `longest_turn_ms`, too, since
    the connections of the load stand.
    """
    command = [sys.executable, "-m", __name__, str(broker.port), what, str(count)]
    ask = write_request_header(ApiKey.API_VERSIONS, 3, 1, "other") + encode_request(
        ApiKey.API_VERSIONS, 3, ApiVersionsRequest("other", "1")
    )
    frame, longest_s = struct.pack(">i", len(ask)) + ask, 0.0
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as load,
        socket.create_connection(("127.0.0.1", broker.port), timeout=PATIENCE_SECONDS) as other,
    ):
        assert load.stdout is not None
        load.stdout.readline()  # its connections stand
        if isinstance(broker, TimedOncelog):
            broker.longest_turn_ms()
        while load.poll() is None:
            asked_s = time.monotonic()
            other.sendall(frame)
            if not other.recv(65536):
                raise LoadFailed("the broker closed a connection")
            longest_s = max(longest_s, time.monotonic() - asked_s)
            time.sleep(0.002)
        told, failed = load.communicate()
    if load.returncode:
        raise LoadFailed(f"{' '.join(command)}: {failed.decode().strip()[-500:]}")
    outcome: Outcome = {**json.loads(told), "others_wait_ms": longest_s * 1000}
    if isinstance(broker, TimedOncelog):
        outcome["longest_turn_ms"] = broker.longest_turn_ms()
    return outcome


# -- classic members


class Whole:
    """Knows when all members are in one generation."""

    def __init__(self, count: int) -> None:
        self.reached = asyncio.Event()
        self._count = count
        self._members_of: dict[int, set[str]] = {}

    def note(self, member_id: str, generation: int) -> bool:
        members = self._members_of.setdefault(generation, set())
        members.add(member_id)
        if len(members) == self._count:
            self.reached.set()
        return self.reached.is_set()


class ClassicMember:
    def __init__(self, client: Client, group: str) -> None:
        self.client = client
        self.group = group
        self.member_id = ""

    async def be_named(self) -> None:
        answer = await self._join()
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED, answer
        self.member_id = answer.member_id

    def _join(self) -> Awaitable[JoinGroupResponse]:
        protocols = [JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION) for name in ("range", "roundrobin")]
        return self.client.request(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=LONG_MS,
                rebalance_timeout_ms=LONG_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=protocols,
            )
        )

    async def take_part(self, whole: Whole) -> None:
        """Join, and join again when told so, until the whole group is in one generation."""
        while not whole.reached.is_set():
            joined = await self._join()
            assert not joined.error_code, joined.error_code
            fault = await self._sync(joined)
            while not fault and not whole.note(self.member_id, joined.generation_id):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(whole.reached.wait(), BEAT_SECONDS)
                    return
                fault = await self._beat(joined.generation_id)
            assert fault in (0, ErrorCode.REBALANCE_IN_PROGRESS), fault

    async def _sync(self, joined: JoinGroupResponse) -> int:
        answer = await self.client.request(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type=joined.protocol_type,
                protocol_name=joined.protocol_name,
                assignments=[
                    SyncGroupRequestAssignment(member_id=member.member_id, assignment=ASSIGNMENT)
                    for member in joined.members
                ],
            )
        )
        assert answer.error_code or answer.assignment == ASSIGNMENT
        return answer.error_code

    async def _beat(self, generation: int) -> int:
        request = HeartbeatRequest(group_id=self.group, generation_id=generation, member_id=self.member_id)
        return (await self.client.request(request)).error_code

    async def leave(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        answer = await self.client.request(LeaveGroupRequest(group_id=self.group, members=[identity]))
        assert not answer.error_code, answer.error_code


async def classic(clients: Sequence[Client]) -> Outcome:
    members = [ClassicMember(client, f"classic-{len(clients)}") for client in clients]
    await asyncio.gather(*(member.be_named() for member in members))

    async def rebalance() -> None:
        whole = Whole(len(members))
        await asyncio.gather(*(member.take_part(whole) for member in members))

    formed = await seconds_of(rebalance())
    mended = []
    for _ in range(LEAVES):
        await members.pop().leave()
        mended.append(await seconds_of(rebalance()))
    return {"formed_s": formed, "mended_s": statistics.median(mended)}


# -- members of the consumer protocol


class ConsumerMember:
    def __init__(self, client: Client, group: str, number: int, expression: str | None = None) -> None:
        self.client = client
        self.group = group
        self.expression = expression
        self.member_id = f"member-{number:05}"
        self.epoch = 0
        self.owned: list[tuple[bytes, int]] = []
        self.tells = True  # what it owns
        self.interval_s = 0.0

    async def beat(self, epoch: int | None = None) -> None:
        joins = self.epoch == 0
        by_topic: dict[bytes, list[int]] = {}
        for topic_id, partition in self.owned:
            by_topic.setdefault(topic_id, []).append(partition)
        owned = [ConsumerGroupHeartbeatRequestTopicPartitions(each, by_topic[each]) for each in by_topic]
        answer = await self.client.request(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.member_id,
                member_epoch=self.epoch if epoch is None else epoch,
                rebalance_timeout_ms=LONG_MS if joins else -1,
                subscribed_topic_names=[TOPIC] if joins and self.expression is None else None,
                subscribed_topic_regex=self.expression if joins else None,
                topic_partitions=owned if self.tells else None,
            )
        )
        assert not answer.error_code, (answer.error_code, answer.error_message)
        self.epoch = answer.member_epoch
        self.interval_s = answer.heartbeat_interval_ms / 1000
        self.tells = answer.assignment is not None
        if answer.assignment is not None:
            given = answer.assignment.topic_partitions
            self.owned = [(topic.topic_id, partition) for topic in given for partition in topic.partitions]

    async def take_part(self, shared: Shared) -> None:
        """Send heartbeats as clients do, until the group is stable: in the interval that the broker tells, and at once
        when something was taken up or given up.
        """
        while not shared.reached.is_set():
            had, was_at = self.owned, self.epoch
            await self.beat()
            if shared.note(self, had, was_at) or self.owned != had:
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(shared.reached.wait(), self.interval_s)


class Shared:
    """Knows when all members are at one epoch and have shared out the partitions. All of them have just been made."""

    def __init__(self, members: Sequence[ConsumerMember], partitions: int) -> None:
        self.reached = asyncio.Event()
        self._members = members
        self._partitions = partitions
        self._share = -(-partitions // len(members))
        self._epochs = Counter({0: len(members)})
        self._owned = self._greedy = 0  # partitions; members that have more than their share

    def note(self, member: ConsumerMember, had: Sequence[tuple[bytes, int]], was_at: int) -> bool:
        self._epochs += Counter({member.epoch: 1})
        self._epochs -= Counter({was_at: 1})
        self._owned += len(member.owned) - len(had)
        self._greedy += (len(member.owned) > self._share) - (len(had) > self._share)
        if len(self._epochs) == 1 and not self._greedy and self._owned == self._partitions:
            owned = {partition for each in self._members for partition in each.owned}
            if len(owned) == self._partitions:
                self.reached.set()
        return self.reached.is_set()


async def come_together(members: Sequence[ConsumerMember], partitions: int = PARTITIONS) -> None:
    shared = Shared(members, partitions)
    await asyncio.gather(*(member.take_part(shared) for member in members))


async def consumer(clients: Sequence[Client]) -> Outcome:
    """After one has left the others do not wait between their heartbeats: otherwise only the interval of stable members
    would be measured, which is the same for both brokers.
    """
    group = f"consumer-{len(clients)}"
    members = [ConsumerMember(client, group, number) for number, client in enumerate(clients)]
    formed = await seconds_of(come_together(members))
    mended = []
    for _ in range(LEAVES):
        await asyncio.sleep(TARGET_STANDS_SECONDS)  # otherwise what is left of this time would be measured
        await members.pop().beat(epoch=-1)
        mended.append(await seconds_of(until_stable(members)))
    return {"formed_s": formed, "mended_s": statistics.median(mended)}


async def by_expression(clients: Sequence[Client], topics: int) -> Outcome:
    """A group over very many topics of one partition."""
    members = [
        ConsumerMember(client, f"many-{topics}", number, expression=f"{MANY}.*")
        for number, client in enumerate(clients)
    ]
    return {"formed_s": await seconds_of(come_together(members, topics))}


async def until_stable(members: Sequence[ConsumerMember], partitions: int = PARTITIONS) -> None:
    """All members send heartbeats until they are at one epoch and have shared out the partitions."""
    share = -(-partitions // len(members))
    while True:
        await asyncio.gather(*(member.beat() for member in members))
        owned = [partition for member in members for partition in member.owned]
        is_fair = (
            max(len(member.owned) for member in members) <= share
        )  # the first member was given everything at first
        if is_fair and len({member.epoch for member in members}) == 1 and len(owned) == len(set(owned)) == partitions:
            return
        await asyncio.sleep(0.05)


async def heartbeats(clients: Sequence[Client], count: int) -> Outcome:
    """Heartbeats a second in a group in which nothing changes. A few connections carry all members."""
    members = [ConsumerMember(clients[number % len(clients)], f"steady-{count}", number) for number in range(count)]
    await until_stable(members)
    await asyncio.gather(*(member.beat() for member in members))

    async def beat(on: Client) -> int:
        until, beats, mine = time.monotonic() + STEADY_SECONDS, 0, [each for each in members if each.client is on]
        while time.monotonic() < until:
            for member in mine[:20]:
                await member.beat()
            mine = mine[20:] + mine[:20]
            beats += 20
        return beats

    return {"per_second": sum(await asyncio.gather(*map(beat, clients))) / STEADY_SECONDS}


# -- offsets


def commit(group: str, offset: int) -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index, committed_offset=offset) for index in range(OFFSETS)
    ]
    return OffsetCommitRequest(group_id=group, topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)])


async def commit_offsets(client: Client, group: str, offset: int) -> None:
    answer = await client.request(commit(group, offset), version=NAMES_TOPICS)
    assert not any(partition.error_code for partition in answer.topics[0].partitions), answer


def fetch(groups: Iterable[str]) -> OffsetFetchRequest:
    topics = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=list(range(OFFSETS)))]
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics) for group in groups])


async def offsets_of(client: Client, groups: Iterable[str]) -> list[bool]:
    """For each group, whether it has any offsets."""
    request = fetch(groups)
    answer = await client.request(request, version=NAMES_TOPICS)
    assert not any(group.error_code for group in answer.groups), answer
    return [group.topics[0].partitions[0].committed_offset >= 0 for group in answer.groups]


class Repeated(asyncio.Protocol):
    """Sends one request again and again, each when the one before is answered. Every answer must be the same bytes as
    the first, which `make` has seen to be right. So the load takes little of the processors that the broker needs.
    """

    def __init__(self, frame: bytes, answer: bytes) -> None:
        self.answered = 0
        self._frame = frame
        self._answer = answer
        self._have = b""
        self._until = time.monotonic() + STEADY_SECONDS / 2
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class does not derive from it
        self._transport.write(self._frame)

    def data_received(self, data: bytes) -> None:
        self._have += data
        if len(self._have) < len(self._answer):
            return
        if self._have != self._answer:
            self._over.set_exception(LoadFailed(f"another answer than the first: {self._have!r}"))
        self._have = b""
        self.answered += 1
        if time.monotonic() < self._until:
            self._transport.write(self._frame)
        elif not self._over.done():
            self._over.set_result(self.answered)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._over.done():
            self._over.set_exception(LoadFailed("the broker closed a connection"))

    @classmethod
    async def make(cls, port: int, request: OffsetCommitRequest | OffsetFetchRequest) -> int:
        """How often the request was answered in the time."""
        key = ApiKey.OFFSET_COMMIT if isinstance(request, OffsetCommitRequest) else ApiKey.OFFSET_FETCH
        asked = write_request_header(key, NAMES_TOPICS, 1, "load") + encode_request(key, NAMES_TOPICS, request)
        frame = struct.pack(">i", len(asked)) + asked
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        body = await reader.readexactly(size)
        writer.close()
        answer = decode_response(key, NAMES_TOPICS, body[5:])  # behind its header
        if isinstance(answer, OffsetCommitResponse):
            errors = [partition.error_code for partition in answer.topics[0].partitions]
        else:
            errors = [partition.committed_offset < 0 for partition in answer.groups[0].topics[0].partitions]
        assert len(errors) == OFFSETS and not any(errors), answer
        repeats = cls(frame, struct.pack(">i", size) + body)
        await asyncio.get_running_loop().create_connection(lambda: repeats, "127.0.0.1", port)
        return await repeats._over


async def offsets(port: int) -> Outcome:
    """Requests a second on a few connections, each with a group of its own."""
    names = [f"offsets-{number}" for number in range(CONNECTIONS)]
    commits = await asyncio.gather(*(Repeated.make(port, commit(name, 5)) for name in names))
    fetches = await asyncio.gather(*(Repeated.make(port, fetch([name])) for name in names))
    return {"commits": sum(commits) / (STEADY_SECONDS / 2), "fetches": sum(fetches) / (STEADY_SECONDS / 2)}


async def many_groups(clients: Sequence[Client], count: int) -> Outcome:
    """One commit for each of so many groups."""

    async def some(client: Client, numbers: Iterable[int]) -> None:
        for number in numbers:
            await commit_offsets(client, f"many-{number}", number)

    width = len(clients)
    all_of_them = asyncio.gather(*(some(client, range(at, count, width)) for at, client in enumerate(clients)))
    return {"committed_s": await seconds_of(all_of_them)}


async def until_expired(client: Client, count: int) -> Outcome:
    """The time from the first of some groups losing its offsets until there is no group at all."""
    some = [f"many-{number}" for number in range(0, count, max(count // 200, 1))]
    began = 0.0
    while True:
        left = await offsets_of(client, some)
        began = began or (time.monotonic() if not all(left) else 0.0)
        if not any(left) and not (await client.request(ListGroupsRequest())).groups:
            return {"expired_s": time.monotonic() - began}
        await asyncio.sleep(0.2)


# -- the load's own process


async def seconds_of(work: Awaitable[object]) -> float:
    began = time.monotonic()
    await work
    return time.monotonic() - began


@contextlib.asynccontextmanager
async def connected(port: int, count: int) -> AsyncIterator[list[Client]]:
    clients = [Client("127.0.0.1", port) for _ in range(count)]
    for at in range(0, count, AT_ONCE):
        await asyncio.gather(*(client.connect() for client in clients[at : at + AT_ONCE]))
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


async def until_coordinated(client: Client, groups: Iterable[str]) -> None:
    """Wait until the groups' coordinators are there and have read their logs."""
    for group in groups:
        while True:
            found = await client.request(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]))
            beaten = await client.request(HeartbeatRequest(group_id=group, generation_id=0, member_id="nobody"))
            if not found.coordinators[0].error_code and beaten.error_code not in WAITING:
                break
            await asyncio.sleep(0.1)


async def main(port: int, what: str, count: int) -> None:
    """The group's coordinator and those of names that hash to any other partition shall be there before it counts."""
    async with connected(port, count if what in ("classic", "consumer") else CONNECTIONS) as clients:
        named = {"classic": "classic", "consumer": "consumer", "heartbeats": "steady"}
        few = [f"{named[what]}-{count}"] if what in named else [f"many-{number}" for number in range(400)]
        await until_coordinated(clients[0], [*few, *(f"offsets-{number}" for number in range(CONNECTIONS))])
        print("begin", flush=True)
        match what:
            case "classic":
                outcome = await classic(clients)
            case "consumer":
                outcome = await consumer(clients)
            case "expression":
                outcome = await by_expression(clients, count)
            case "heartbeats":
                outcome = await heartbeats(clients, count)
            case "offsets":
                outcome = await offsets(port)
            case "many":
                outcome = await many_groups(clients, count)
            case _:
                outcome = await until_expired(clients[0], count)
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
