"""A reader with a fetch session: it names its partitions once, and afterwards only what changed."""

from __future__ import annotations

import asyncio

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import FetchPartition, FetchRequest, FetchResponsePartitionData, FetchTopic, ForgottenTopic
from tests.sim.checkers import EARLIEST, LATEST
from tests.sim.history import Read
from tests.sim.workload import FETCH_BYTES, Clients, Reader, until_true

BY_ID_SINCE = 13
OTHERS_WRITE_S = 1.0
SESSION_IS_OVER = {
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}


class SessionReader(Reader):
    """Reads all partitions on, in one session as long as that lasts. In the end it must have come through each of them
    without naming one again that it had no reason to. A session of which it wants something still goes on.
    """

    def __init__(self, clients: Clients, name: str) -> None:
        super().__init__(clients, name)
        self._positions: dict[TopicPartition, int] = {}
        self._told: dict[TopicPartition, int] = {}  # what the broker has heard of our positions in this session
        self._left_out: dict[TopicPartition, None] = {}
        self._session = 0
        self._epoch = 0
        self._version = 7

    async def turn(self) -> None:
        if not self._positions:
            self._positions = dict.fromkeys(self.clients.partitions(), 0)
        for _ in range(self.chance.choice((1, 3, 10))):
            if self.chance.random() < 0.05:
                self._change_the_row()
            await self._fetch(self.chance.choice((0, 50, 500)), self.chance.choice(FETCH_BYTES))

    def _change_the_row(self) -> None:
        """A partition is left out for a while, or taken up again."""
        if self._left_out:
            self._left_out.popitem()
        else:
            self._left_out[self.chance.choice(list(self._positions))] = None

    async def _fetch(self, wait_ms: int, most_bytes: int) -> None:
        if not self._session:
            self._epoch, self._told = 0, {}
            self._version = self.chance.choice((7, 10, 12, 13, 17))
        wanted = {each: at for each, at in self._positions.items() if each not in self._left_out}
        changed = [each for each, at in wanted.items() if self._told.get(each) != at]
        forgotten = [each for each in self._told if each not in wanted]
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=most_bytes,
            session_id=self._session,
            session_epoch=self._epoch,
            topics=[self._topic(each, wanted[each]) for each in changed],
            forgotten_topics_data=[
                ForgottenTopic(each.topic, self.clients.topic_ids[each.topic], [each.partition]) for each in forgotten
            ],
        )
        invoked, session = self.clients.now, self._session
        self._session = 0  # unless it is answered: nobody knows then what the broker thinks was heard
        response = await self.line.ask(request, self._version)
        if response.error_code in SESSION_IS_OVER:
            return
        self.clients.judge_error(response.error_code, "a fetch session")
        if response.error_code:
            return
        if session and response.session_id != session:
            if wanted:  # with a new session it would get what this one has forgotten, and nobody would see that
                self.history.wrong.append(
                    f"{self.clients.now:.6f} {self.name}: its session is over, and nobody said so"
                )
            return
        self._session, self._epoch = response.session_id, self._epoch + 1
        self._told = wanted
        names = {topic_id: name for name, topic_id in self.clients.topic_ids.items()}
        for topic in response.responses:
            name = names[topic.topic_id] if self._version >= BY_ID_SINCE else topic.topic
            for data in topic.partitions:
                await self._take(TopicPartition(name, data.partition_index), data, invoked)

    def _topic(self, partition: TopicPartition, offset: int) -> FetchTopic:
        name, index = partition
        wanted = FetchPartition(index, fetch_offset=offset, partition_max_bytes=self.chance.choice(FETCH_BYTES))
        return FetchTopic(name, self.clients.topic_ids[name], [wanted])

    async def _take(self, partition: TopicPartition, data: FetchResponsePartitionData, invoked: float) -> None:
        self.clients.judge_error(data.error_code, f"a session's fetch of {partition}")
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            start = await self.list_offset(partition, self.chance.choice((EARLIEST, LATEST)))
            self._positions[partition] = self._positions[partition] if start is None else start
        if data.error_code:
            self._told[partition] = -1  # clients name it again, or forget it
            return
        offset = self._positions[partition]
        stored = b"" if data.records is None else bytes(data.records)  # type: ignore[arg-type]
        records, self._positions[partition] = self._open(partition, stored, offset)
        self.history.reads.append(
            Read(
                self.name,
                partition,
                offset,
                self._positions[partition],
                records,
                data.high_watermark,
                data.log_start_offset,
                self.plan.visible_held,
                invoked,
                self.clients.now,
            )
        )

    async def settle(self) -> None:
        """Come to where each partition ends, and again after others have written: the session was told nothing of what
        had no news.
        """
        self._left_out.clear()
        await self._come_to_the_ends()
        await asyncio.sleep(OTHERS_WRITE_S)
        await self._come_to_the_ends()

    async def _come_to_the_ends(self) -> None:
        ends: dict[TopicPartition, int] = {}

        async def ask_for_ends() -> bool:
            for partition in self._positions:
                if partition not in ends and (end := await self.list_offset(partition, LATEST)) is not None:
                    ends[partition] = end
            return all(partition in ends or partition in self.history.rotten for partition in self._positions)

        def behind() -> list[TopicPartition]:
            intact = [each for each in ends if each not in self.history.rotten]
            return [partition for partition in intact if self._positions[partition] < ends[partition]]

        async def read_on() -> bool:
            for _ in range(len(behind()) + 1):
                await self._fetch(500, 1 << 20)
            return not behind()

        await until_true(self.clients, ask_for_ends)
        if not await until_true(self.clients, read_on):
            self.history.stuck.append(f"{self.name} doesn't get to the end of {behind()} in its session")
