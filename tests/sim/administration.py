"""Actors that delete a topic and create it again, and that change settings, while everything else goes on."""

from __future__ import annotations

import asyncio

from log.batch import build_batch, read_records, split
from log.ids import ZERO_TOPIC_ID, TopicId, TopicPartition
from log.manifest import RECOVERY_POINTS
from log.relocation import FORMER, stem_of
from service.broker.folder_moves import RATE
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeLogDirsRequest,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.sim.disk import Inode
from tests.sim.history import Outcome, Reborn, RebornRead, RebornWrite, SettingSeen, SettingSet
from tests.sim.plan import MOVED_ON
from tests.sim.workload import BROKER, Actor, Clients, Line, until_true

REBORN = "reborn"
NOTE = b"\nreborn 0 "
NOT_THERE = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID}
PRODUCE_BY_ID, FETCH_BY_ID = 13, 13
TOPIC, BROKERS = 2, 4  # resource types
SET, DELETE = 0, 1
FAST = 1_000_000_000
"""Bytes a second."""
PERIODS = 4
"""How often it waits for moves as long as actors wait for anything else: a log of many small segments takes its time
from a disk that stalls.
"""


def move_to(folder: str, partition: TopicPartition) -> AlterReplicaLogDirsRequest:
    topic = AlterReplicaLogDirTopic(partition.topic, [partition.partition])
    return AlterReplicaLogDirsRequest([AlterReplicaLogDir(folder, [topic])])


async def folders_of(line: Line, partition: TopicPartition) -> list[str]:
    """Where it is; a copy that is made does not count."""
    found = await line.ask(DescribeLogDirsRequest(topics=None), 4)
    return [
        folder.log_dir
        for folder in found.results
        for topic in folder.topics
        for each in topic.partitions
        if (topic.name, each.partition_index) == partition and not each.is_future_key
    ]


class Recreator(Actor):
    """The only actor that knows the topic `reborn`: it creates, writes, reads and deletes it, and creates it again."""

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._topic: Reborn | None = None
        self._is_out_of_service = False
        """Then it is not deleted: in the end it must be served."""

    async def turn(self) -> None:
        await asyncio.sleep(0.3 * self.chance.random())
        topic = self._topic
        if topic is None:
            await self._create()
        elif self.chance.random() < 0.6:
            await self._write(topic)
        elif self.chance.random() < 0.6:
            await self._read(self.chance.choice(self.history.reborn))  # also those that are no more
        elif not self._is_out_of_service:
            await self._delete_or_move_on(topic)

    async def _delete_or_move_on(self, topic: Reborn) -> None:
        noted = self._noted_in()
        if MOVED_ON not in self.plan.kinds or (noted is None and self.chance.random() < 0.2):
            await self._delete(topic)
        elif noted is not None:
            await self._move(next(folder for folder in self.plan.folders if folder != noted))
            await self._delete(topic)
            if self._topic is None:
                await self._create()
            self.history.moved_on += 1

    def _noted_in(self) -> str | None:
        """The folder that has noted how much of it is durable."""
        disk = self.clients.world.hosts[BROKER].disk
        assert disk is not None
        noted = {path: disk.find(path) for path, _, _ in disk.files() if path.endswith(RECOVERY_POINTS)}
        found = [path for path, file in noted.items() if isinstance(file, Inode) and NOTE in bytes(file.cache)]
        return found[0].split("/")[0] if found else None

    async def _move(self, folder: str) -> None:
        """Move it to that folder before it is deleted: what the other one has noted of it must not last."""
        await self.line.ask(move_to(folder, TopicPartition(REBORN, 0)), 2)

        for _ in range(20):
            if folder in await folders_of(self.line, TopicPartition(REBORN, 0)):
                return
            await asyncio.sleep(0.05)

    async def _create(self) -> None:
        chance = self.chance
        configs = {
            "segment.ms": chance.choice(("200", "60000")),
            "segment.index.bytes": chance.choice(("24", "400")),
            "cleanup.policy": chance.choice(("delete", "compact")),
        }
        asked = [CreatableTopicConfig(key, value) for key, value in configs.items()]
        request = CreateTopicsRequest([CreatableTopic(REBORN, 1, 1, [], asked)], timeout_ms=5000)
        [result] = (await self.line.ask(request, 7)).topics
        self.clients.judge_error(result.error_code, f"the creation of {REBORN}")
        if result.error_code == ErrorCode.NONE:
            self._take_up(bytes(result.topic_id))
        elif (
            result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        ):  # an earlier request of this actor that was not answered
            await self._look()

    async def _look(self) -> None:
        [known] = (await self.line.ask(MetadataRequest([MetadataRequestTopic(name=REBORN)]), 12)).topics
        if known.error_code == ErrorCode.NONE:
            self._take_up(bytes(known.topic_id))

    def _take_up(self, topic_id: bytes) -> None:
        for known in self.history.reborn:
            if known.topic_id == topic_id:
                self._topic = known  # its deletion was not answered
                return
        self._topic = Reborn(topic_id, self.clients.now)
        self.history.reborn.append(self._topic)

    async def _delete(self, topic: Reborn) -> None:
        self._topic = None
        if self.chance.random() < 0.5:
            request, version = DeleteTopicsRequest(topic_names=[REBORN], timeout_ms=5000), self.chance.choice((1, 5))
        else:
            request, version = DeleteTopicsRequest([DeleteTopicState(None, topic.topic_id)], timeout_ms=5000), 6
        topic.deletion_invoked = min(topic.deletion_invoked, self.clients.now)
        [result] = (await self.line.ask(request, version)).responses
        self.clients.judge_error(result.error_code, f"the deletion of {REBORN}")
        if result.error_code == ErrorCode.NONE:
            topic.deleted = min(topic.deleted, self.clients.now)
        if self.chance.random() < 0.5:  # while its folder goes
            await self._create()

    async def _write(self, topic: Reborn) -> None:
        """By its id, so that it is known which of them is meant; also when it is no more."""
        values = []
        for _ in range(self.chance.randrange(1, 4)):
            self.clients.values += 1
            values.append(b"%s:%d" % (REBORN.encode(), self.clients.values))
        now_ms = int((self.clients.world.epoch_seconds + self.clients.now) * 1000)
        batch = build_batch([(value, value, (), now_ms) for value in values])
        write = RebornWrite(topic.topic_id, tuple(values), self.plan.held(-1), self.clients.now)
        self.history.reborn_writes.append(write)
        data = TopicProduceData("", topic.topic_id, [PartitionProduceData(0, batch)])
        response = await self.line.ask(ProduceRequest(None, -1, 3000, [data]), PRODUCE_BY_ID)
        [answer] = response.responses[0].partition_responses
        self.clients.judge_error(answer.error_code, f"a batch to {REBORN}")
        self._is_out_of_service = answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        if answer.error_code == ErrorCode.NONE:
            write.completed, write.outcome, write.base_offset = self.clients.now, Outcome.OK, answer.base_offset
        elif answer.error_code in NOT_THERE and topic is self._topic:
            self._topic = None
        elif answer.error_code == ErrorCode.REQUEST_TIMED_OUT and topic is self._topic and self.chance.random() < 0.5:
            await self._delete(topic)  # though it is being written

    async def _read(self, topic: Reborn) -> bool:
        """From its beginning; True if it was read to its end, or is rightly no more."""
        found: list[tuple[int, bytes | None]] = []
        invoked, offset, high_watermark = self.clients.now, 0, 1
        while offset < high_watermark:
            wanted = FetchPartition(0, fetch_offset=offset, partition_max_bytes=1 << 20)
            request = FetchRequest(max_wait_ms=0, topics=[FetchTopic("", topic.topic_id, [wanted])])
            response = await self.line.ask(request, self.chance.choice((FETCH_BY_ID, 17)))
            if response.error_code or not response.responses:
                return False
            [data] = response.responses[0].partitions
            self.clients.judge_error(data.error_code, f"a fetch of {REBORN}")
            if data.error_code:
                return data.error_code in NOT_THERE and topic.deletion_invoked < self.clients.now
            high_watermark = data.high_watermark
            before = offset
            for header, batch in split(bytes(data.records or b"")):  # type: ignore[arg-type]
                found += [(record.offset, record.value) for record in read_records(batch, header)]
                offset = header.next_offset
            if offset == before:
                break
        read = RebornRead(topic.topic_id, tuple(found), high_watermark, self.plan.visible_held, invoked)
        read.completed = self.clients.now
        self.history.reborn_reads.append(read)
        return True

    async def settle(self) -> None:
        """Create it if need be, and see what it holds."""

        async def see_it() -> bool:
            if self._topic is None:
                await self._create()
            if self._topic is None:
                return False
            await self._write(self._topic)
            return self._topic is not None and await self._read(self._topic)

        if not await until_true(self.clients, see_it):
            self.history.stuck.append(f"{self.name} can't create, write and read {REBORN}")


CHANGED_SETTINGS = {
    "segment.ms": ("200", "1000", "60000"),
    "segment.index.bytes": ("24", "80", "400"),
    "index.interval.bytes": ("50", "500", "4096"),
    "compression.type": ("producer", "zstd", "uncompressed"),
    "flush.messages": ("1", "9223372036854775807"),
    "min.compaction.lag.ms": ("0", "1000"),
}
CHANGED_OF_BROKERS = {"log.cleaner.backoff.ms": ("100", "1000"), "log.flush.interval.messages": ("3", "1000000")}


class Tinkerer(Actor):
    """Changes settings, and looks whether they are as it left them."""

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        resource = self._some_resource()
        if self.chance.random() < 0.6:
            await self._set(*resource)
        else:
            await self._look(*resource)

    def _some_resource(self) -> tuple[int, str]:
        if self.chance.random() < 0.2:
            return BROKERS, ""
        return TOPIC, self.chance.choice(list(self.clients.topic_ids))

    async def _set(self, kind: int, name: str) -> bool:
        choices = CHANGED_SETTINGS if kind == TOPIC else CHANGED_OF_BROKERS
        key = self.chance.choice(list(choices))
        value = self.chance.choice(choices[key])
        change = SettingSet(f"{kind}/{name}", key, value, self.clients.now)
        self.history.settings_set.append(change)
        config = IncrementalAlterConfigsRequestAlterableConfig(key, SET, value)
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, [config])
        [answer] = (await self.line.ask(IncrementalAlterConfigsRequest([resource]), 1)).responses
        self.clients.judge_error(answer.error_code, f"a change of {key} of {name}")
        if answer.error_code == ErrorCode.NONE:
            change.completed, change.outcome = self.clients.now, Outcome.OK
        return answer.error_code == ErrorCode.NONE

    async def _look(self, kind: int, name: str) -> bool:
        keys = list(CHANGED_SETTINGS if kind == TOPIC else CHANGED_OF_BROKERS)
        invoked = self.clients.now
        request = DescribeConfigsRequest([DescribeConfigsResource(kind, name, keys)])
        [answer] = (await self.line.ask(request, self.chance.choice((2, 4)))).results
        self.clients.judge_error(answer.error_code, f"the settings of {name}")
        if answer.error_code:
            return False
        for config in answer.configs:
            self.history.settings_seen.append(
                SettingSeen(f"{kind}/{name}", config.name, config.value or "", invoked, self.clients.now)
            )
        return True

    async def settle(self) -> None:
        """Everything shows as it was set."""
        for kind, name in [(BROKERS, ""), *((TOPIC, name) for name in self.clients.topic_ids)]:

            async def look(kind: int = kind, name: str = name) -> bool:
                return await self._look(kind, name)

            if not await until_true(self.clients, look):
                self.history.stuck.append(f"{self.name} can't see the settings of {name}")


INTERNAL = (TopicPartition("__consumer_offsets", 0), TopicPartition("__transaction_state", 0))
NOT_MOVED = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR}


class Porter(Actor):
    """Moves partitions between the folders of a broker, calls moves off, and moves them back when they have hardly
    moved. In some runs moves are slow, so that much comes in between. What has healed comes to rest in one folder.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._last: TopicPartition | None = None
        self._rate = self.chance.choice((None, 500, 5_000))

    async def turn(self) -> None:
        if self._rate is not None and await self.move_at(self._rate):
            self._rate = None
        if (settling := self._settling()) is not None:
            self._last = settling
        elif self._last is None or self.chance.random() < 0.5:
            await asyncio.sleep(self.chance.random())
            compacted = [each for each in self.clients.partitions() if self.history.topics[each.topic].compacted]
            choices = [*self.clients.partitions(), *compacted * 2, *INTERNAL, *[TopicPartition(REBORN, 0)] * 3]
            self._last = self.chance.choice(choices)
        await self.ask(self._last, self.chance.choice(self.plan.folders))

    def _settling(self) -> TopicPartition | None:
        """A partition whose move is decided, but not durable yet."""
        disks = [host.disk for host in self.clients.world.hosts.values() if host.disk is not None]
        paths = [path for disk in disks for path, _, _ in disk.files() if FORMER in path]
        left = {folder for path in paths for folder in path.split("/") if folder.endswith(FORMER)}
        for partition in self.clients.partitions() if left else ():
            topic_id = TopicId(self.clients.topic_ids.get(partition.topic, ZERO_TOPIC_ID))
            if stem_of(topic_id, partition.partition) + FORMER in left:
                return partition
        return None

    async def move_at(self, bytes_per_second: int) -> bool:
        config = IncrementalAlterConfigsRequestAlterableConfig(RATE, SET, str(bytes_per_second))
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(BROKERS, "", [config])
        [answer] = (await self.line.ask(IncrementalAlterConfigsRequest([resource]), 1)).responses
        self.clients.judge_error(answer.error_code, "how fast partitions move between folders")
        return answer.error_code == ErrorCode.NONE

    async def ask(self, partition: TopicPartition, folder: str) -> None:
        request = move_to(folder, partition)
        [[result]] = [each.partitions for each in (await self.line.ask(request, self.chance.choice((1, 2)))).results]
        if result.error_code not in NOT_MOVED:
            self.clients.judge_error(result.error_code, f"the move of {partition} to {folder}")

    async def settle(self) -> None:
        await until_true(self.clients, lambda: self.move_at(FAST))
        for _ in range(PERIODS):
            if await until_true(self.clients, self._nothing_moves):
                return
        self.history.stuck.append(f"{self.name} waits for a move between folders that does not end")

    async def _nothing_moves(self) -> bool:
        told = [
            (topic.name, each)
            for folder in (await self.line.ask(DescribeLogDirsRequest(topics=None), 4)).results
            for topic in folder.topics
            for each in topic.partitions
        ]
        found = [(name, each.partition_index, each.is_future_key) for name, each in told]
        homes = [each[:2] for each in found]
        if len(homes) == len(set(homes)):
            return True
        if len({each for each in found if not each[2]}) < len([each for each in found if not each[2]]):
            self.history.wrong.append(f"partitions are in two folders: {sorted(found)}")
        return False
