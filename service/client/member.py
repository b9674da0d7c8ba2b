"""One member of a classic group: it joins, is assigned partitions, sends heartbeats, commits and leaves.

When `beat` says that the group rebalances, the caller commits and joins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from log.ids import TopicPartition
from service.client.cluster import MOVED, RETRY_PAUSE_S, Cluster, Deadline, Patience, by_topic
from service.client.failures import ClientFailure, refused
from service.client.groups import commit_offsets, read_assignment
from service.wire.codec import decode_data, encode_data
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponseMember,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)

ASSIGNOR = "range"
PROTOCOL_VERSION = 1
SESSION_TIMEOUT_MS = 45_000
REBALANCE_TIMEOUT_MS = 60_000
BEAT_EVERY_S = 3.0

_JOIN_AGAIN = frozenset({ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID})


class Member:
    """This process as a member of `group`, reading `topics`."""

    def __init__(self, cluster: Cluster, group: str, topics: Sequence[str]) -> None:
        self._cluster = cluster
        self._group = group
        self._topics = list(topics)
        self._member_id = ""
        self._generation = -1
        self._beat_at = 0.0
        self._patience = Patience(SESSION_TIMEOUT_MS / 1000)

    async def join(self) -> list[TopicPartition]:
        """Become a member, or stay one through a rebalance. Returns the partitions to read."""
        deadline = Deadline(REBALANCE_TIMEOUT_MS / 1000 + self._cluster.timeout_s)
        while True:
            code, assigned = await self._try_to_join()
            if not code:
                self._beat_at = asyncio.get_running_loop().time() + BEAT_EVERY_S
                return assigned
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            elif code not in MOVED and code not in _JOIN_AGAIN and code != ErrorCode.MEMBER_ID_REQUIRED:
                raise refused(f"group {self._group}", code)
            if deadline.passed():
                raise refused(f"group {self._group}", code)
            if code != ErrorCode.MEMBER_ID_REQUIRED:
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _try_to_join(self) -> tuple[int, list[TopicPartition]]:
        version = PROTOCOL_VERSION.to_bytes(2, "big")
        subscription = ConsumerProtocolSubscription(topics=self._topics)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(name=ASSIGNOR, metadata=version + encode_data(subscription, PROTOCOL_VERSION))
            ],
        )
        node = await self._cluster.coordinator(self._group)
        joined = await self._cluster.ask(request, node=node, wait_s=REBALANCE_TIMEOUT_MS / 1000)
        self._member_id = joined.member_id or self._member_id
        if joined.error_code:
            return joined.error_code, []
        self._generation = joined.generation_id
        leads = joined.leader == joined.member_id and not joined.skip_assignment
        sync = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=await self._assign(joined.members) if leads else [],
        )
        synced = await self._cluster.ask(sync, node=node, wait_s=REBALANCE_TIMEOUT_MS / 1000)
        if synced.error_code or not synced.assignment:
            return synced.error_code, []
        assignment = read_assignment(bytes(synced.assignment))
        return 0, [
            TopicPartition(topic.topic, number)
            for topic in assignment.assigned_partitions
            for number in topic.partitions
        ]

    async def _assign(self, members: Sequence[JoinGroupResponseMember]) -> list[SyncGroupRequestAssignment]:
        """The leader's task: divide the partitions of every topic among the members that subscribe to it."""
        wishes = {}
        for member in members:
            data = bytes(member.metadata)
            version = min(int.from_bytes(data[:2], "big"), 3)
            wishes[member.member_id] = decode_data(ConsumerProtocolSubscription, version, memoryview(data)[2:]).topics
        counts = {}
        for topic in await self._cluster.metadata(sorted({name for topics in wishes.values() for name in topics})):
            if topic.name and not topic.error_code:
                counts[topic.name] = len(topic.partitions)
        shares = assign_ranges(wishes, counts)
        version_bytes = PROTOCOL_VERSION.to_bytes(2, "big")
        return [
            SyncGroupRequestAssignment(
                member_id=member,
                assignment=version_bytes + encode_data(_assignment_of(partitions), PROTOCOL_VERSION),
            )
            for member, partitions in shares.items()
        ]

    async def beat(self) -> bool:
        """Send a heartbeat if one is due. False: the group rebalances, and the member must join again."""
        if asyncio.get_running_loop().time() < self._beat_at:
            return True
        self._beat_at = asyncio.get_running_loop().time() + BEAT_EVERY_S
        request = HeartbeatRequest(group_id=self._group, generation_id=self._generation, member_id=self._member_id)
        try:
            node = await self._cluster.coordinator(self._group)
            response = await self._cluster.ask(request, node=node)
        except ClientFailure as error:
            self._patience.bear(error)
            self._beat_at = asyncio.get_running_loop().time() + RETRY_PAUSE_S
            return True
        self._patience.restore()
        if response.error_code in _JOIN_AGAIN:
            return False
        if response.error_code and response.error_code not in MOVED:
            raise refused(f"group {self._group}", response.error_code)
        return True

    async def commit_if_reachable(self, offsets: Mapping[TopicPartition, int]) -> bool:
        """Like `commit`, but False if no coordinator takes them now: the same offsets can be committed later."""
        try:
            code = await self._try_to_commit(offsets)
        except ClientFailure as error:
            self._patience.bear(error)
            return False
        return code not in MOVED

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these offsets; a coordinator that moves or loads is waited for. If a rebalance has taken the
        partitions away, nothing is committed.
        """
        deadline = Deadline(self._cluster.timeout_s)
        while (code := await self._try_to_commit(offsets)) in MOVED:
            if deadline.passed():
                raise refused(f"commit of group {self._group}", code)
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _try_to_commit(self, offsets: Mapping[TopicPartition, int]) -> int:
        """Returns 0, or why nothing was committed: the coordinator or the partitions have moved."""
        if not offsets:
            return 0
        code = await commit_offsets(
            self._cluster, self._group, offsets, generation=self._generation, member_id=self._member_id
        )
        if code and code not in _JOIN_AGAIN and code not in MOVED:
            raise refused(f"commit of group {self._group}", code)
        return code

    async def leave(self, reason: str) -> None:
        """Leave the group, so that others take over the partitions at once and not after the session timeout."""
        if not self._member_id:
            return
        request = LeaveGroupRequest(
            group_id=self._group,
            member_id=self._member_id,
            members=[MemberIdentity(member_id=self._member_id, reason=reason)],
        )
        try:
            node = await self._cluster.coordinator(self._group)
            await self._cluster.ask(request, node=node)
        except ClientFailure:
            return  # without a coordinator to tell, the session times out


def assign_ranges(wishes: Mapping[str, Sequence[str]], counts: Mapping[str, int]) -> dict[str, list[TopicPartition]]:
    """Kafka's range assignor: each member gets neighbouring partitions of each topic, the first members one more."""
    shares: dict[str, list[TopicPartition]] = {member: [] for member in sorted(wishes)}
    for topic in sorted(counts):
        members = [member for member in shares if topic in wishes[member]]
        for position, member in enumerate(members):
            each, more = divmod(counts[topic], len(members))
            first = position * each + min(position, more)
            last = first + each + (position < more)
            shares[member] += [TopicPartition(topic, number) for number in range(first, last)]
    return shares


def _assignment_of(partitions: Sequence[TopicPartition]) -> ConsumerProtocolAssignment:
    return ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=[each.partition for each in of_topic])
            for topic, of_topic in by_topic(partitions).items()
        ]
    )
