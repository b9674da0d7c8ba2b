"""What a shard makes of a machine that raises, of records that nobody can read, and of errors that pass."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import service.broker.coordinators
import service.broker.shard
from log.batch import build_batch, read_records
from log.ids import TopicPartition
from service.broker.machine import Mishaps
from service.broker.partition import TOO_FEW_IN_SYNC, Partition, PartitionLost
from service.broker.replay import SHORT_BYTES
from service.broker.shard import ANSWERS_A_TURN, FewAnswersATurn, NotCoordinator, Shard
from service.groups.commands import (
    CommitOffsets,
    CommitTransactionalOffsets,
    FetchOffsets,
    OffsetToCommit,
)
from service.groups.coordinator import GroupCoordinator
from service.groups.offsets import CommittedOffset
from service.groups.records import offset_value, read_offset
from service.groups.verdicts import GroupDecision
from service.ports import RealClock
from service.stores.memory import MemoryServer
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeTransactionsRequest
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.api.test_transactions import commit_offset, committed_offset
from tests.service.api.txn_stage import FEW, TxnStage, Writer, find_coordinator, on_txn_stage, until, values

NONE = ErrorCode.NONE


def shard_of(stage: TxnStage) -> Shard[Any]:
    return stage.broker.coordination.transactions.shard("pay")


def shard_index(shard: Shard[Any]) -> int:
    return shard.partition.topic_partition.partition


async def loaded_again(stage: TxnStage, former: Shard[Any]) -> None:
    coordinators, index = (
        stage.broker.coordination.by_topic[former.partition.topic_partition.topic],
        shard_index(former),
    )
    await until(lambda: coordinators._shards[index] is not former and coordinators._shards[index].loaded)


async def answered(ask: Callable[[], Awaitable[int]]) -> int:
    """What is answered once the coordinator is back."""
    async with asyncio.timeout(10):
        while True:
            code = await ask()
            if code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS):
                return code
            await asyncio.sleep(0.01)


def test_a_command_that_raises_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        shard = shard_of(stage)

        def raises(*_: Any) -> Any:
            raise StopIteration

        with monkeypatch.context() as patched, caplog.at_level(logging.CRITICAL + 1, "oncelog.coordinator"):
            patched.setattr(shard.machine, "decide", raises)
            assert (await writer.end(commit=True)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
            assert await writer.write("orders", "a") == ErrorCode.UNKNOWN_SERVER_ERROR
        assert (shard._waiting, shard.dropped) == ({}, False)
        assert stage.broker.coordination.transactions.mishaps == Mishaps(decisions=2)
        assert await writer.write("orders", "a") == NONE
        assert (await writer.end(commit=True)).error_code == NONE
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("culprit", ["apply", "build_plain_batch"])
def test_a_decision_that_cannot_be_applied_is_forgotten_with_all_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, culprit: str
) -> None:
    """The id is open in the log, and so it is in the machine that answers afterwards."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        assert await writer.write("orders", "a") == NONE
        shard = shard_of(stage)
        state = shard.machine.describe("pay")

        def raises(*_: Any, **__: Any) -> Any:
            raise ValueError

        with monkeypatch.context() as patched:
            patched.setattr(shard.machine if culprit == "apply" else service.broker.shard, culprit, raises)
            assert (await writer.end(commit=True)).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        await loaded_again(stage, shard)
        assert shard_of(stage).machine.describe("pay") == state
        assert (await writer.end(commit=True)).error_code == NONE
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


def test_what_follows_from_a_decision_is_done_again_after_it_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The markers of a committed transaction are owed, whatever becomes of the first attempt to send them."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        assert await writer.write("orders", "a") == NONE
        shard = shard_of(stage)

        def raises(*_: Any) -> None:
            raise ValueError

        with monkeypatch.context() as patched:
            patched.setattr(stage.broker.coordination.marker_courier, "post", raises)
            assert (await writer.end(commit=True)).error_code == NONE
        await loaded_again(stage, shard)
        # The replay owes the markers; they are sent beside it.
        await until(lambda: shard_of(stage).machine.describe("pay").txn.state.label == "CompleteCommit")
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


def test_a_timer_that_raises_is_armed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice what is due raises; the third time the transaction that took too long is aborted."""
    monkeypatch.setattr(service.broker.shard, "REST_MS_MIN", 1)

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        assert await writer.init(timeout_ms=1) == NONE
        machine, raised = shard_of(stage).machine, 0
        original = machine.expire

        def raises_twice(now_ms: int) -> Any:
            nonlocal raised
            if raised < 2:
                raised += 1
                raise ValueError
            return original(now_ms)

        monkeypatch.setattr(machine, "expire", raises_twice)
        assert await writer.write("orders", "late") == NONE
        await until(lambda: machine.describe("pay").txn.state.label == "CompleteAbort")
        assert stage.broker.coordination.transactions.mishaps == Mishaps(expiries=2)
        assert await values(stage, "orders") == []

    on_txn_stage(tmp_path, scene)


UNREADABLE = {
    "a key of no version": (b"\0\0", b"x"),
    "half a key": (b"\0", b"x"),
    "no key": (None, b"x"),
    "a value that is none": (b"\0\0\0\3pay", b"x"),
}


@pytest.mark.parametrize("key_and_value", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("topic", ["__transaction_state", "__consumer_offsets"])
def test_an_internal_record_that_nobody_can_read_is_named_kept_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, topic: str, key_and_value: tuple[bytes | None, bytes]
) -> None:
    store, unreadable = MemoryServer(RealClock()), []
    key, value = key_and_value
    if topic == "__consumer_offsets" and value == b"x" and key and len(key) > 2:
        key = b"\0\2\0\3pay"  # a classic group's

    async def first(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await find_coordinator(here, "pay")
        await find_coordinator(here, "pay", key_type=0)
        assert await Writer(here, "other").init() == NONE
        partition = here.broker.coordination.by_topic[topic].shard("pay").partition
        batch = build_batch([(key, value, (), here.broker.env.clock.wall_ms())])
        unreadable.append((partition.topic_partition, partition.log.end_offset))
        partition.append_own(bytearray(batch), now_ms=0)

    async def second(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await until(
            lambda: all(shard.loaded for each in here.broker.coordination.by_topic.values() for shard in each.shards())
        )
        assert await Writer(here, "pay").init() == NONE
        ((where, offset),) = unreadable
        assert here.broker.coordination.by_topic[topic].mishaps == Mishaps(records=1)
        assert f"{where}: the record at offset {offset} can't be read" in caplog.text
        kept = [
            header.base_offset
            for header, _ in here.broker.coordination.by_topic[topic].shard("pay").partition.log.scan(0)
        ]
        assert offset in kept

    on_stage(tmp_path, first, FEW, metadata=store)
    with caplog.at_level(logging.ERROR, "oncelog.coordinator"):
        on_stage(tmp_path, second, FEW, metadata=store)


def test_a_coordinators_record_that_rotted_is_not_passed_over(tmp_path: Path) -> None:
    """What it said may have been a decision: the partition is not served, and says why."""
    store, places = MemoryServer(RealClock()), []

    async def first(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await find_coordinator(here, "pay")
        assert await Writer(here, "pay").init() == NONE
        partition = here.broker.coordination.transactions.shard("pay").partition
        places.append(partition.topic_partition)

    async def second(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        partition = here.broker.partitions.get(where)
        assert partition is not None
        await until(lambda: partition.offline)
        assert await Writer(here, "pay").init() == ErrorCode.NOT_COORDINATOR

    on_stage(tmp_path, first, FEW, metadata=store)
    (where,) = places
    assert isinstance(where, TopicPartition)
    (segment,) = tmp_path.rglob(f"{where.topic}-{where.partition}/*.log")
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)
    on_stage(tmp_path, second, FEW, metadata=store)


@pytest.mark.parametrize(
    ("value", "most_at_once"),
    [(None, 190), (offset_value(CommittedOffset(1, -1, "x" * 9 * SHORT_BYTES, 5, None, b"i" * 16)), 25)],
)
def test_others_have_turns_while_one_large_batch_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: bytes | None, most_at_once: int
) -> None:
    """Or one of large records, which tell of a member's thousands of topics."""
    store, at_once, most = MemoryServer(RealClock()), 0, 0
    apply = GroupCoordinator.apply

    async def first(stage: Stage) -> None:
        here = TxnStage(stage.broker)
        await find_coordinator(here, "pay", key_type=0)
        key = b"\0\1\0\3pay\0\6orders"
        records = [(key + index.to_bytes(4), value, (), 0) for index in range(3 * most_at_once)]
        batch = bytearray(build_batch(records))
        here.broker.coordination.groups.shard("pay").partition.append_own(batch, now_ms=0)

    def counted(machine: GroupCoordinator, key: bytes, value: bytes | None) -> None:
        nonlocal at_once, most
        apply(machine, key, value)
        if machine._is_live:
            return  # it deletes offsets of a topic that is not there
        if not at_once:
            asyncio.get_running_loop().call_soon(next_turn)
        at_once += 1
        most = max(most, at_once)

    def next_turn() -> None:
        nonlocal at_once
        at_once = 0

    async def second(stage: Stage) -> None:
        groups = TxnStage(stage.broker).broker.coordination.groups
        await until(lambda: all(shard.loaded for shard in groups.shards()))
        assert most_at_once // 2 < most <= most_at_once
        assert groups.mishaps == Mishaps()

    on_stage(tmp_path, first, FEW, metadata=store)
    monkeypatch.setattr(GroupCoordinator, "apply", counted)
    on_stage(tmp_path, second, FEW, metadata=store)


# Decisions of one turn


def commits(stage: TxnStage, *offsets: int, partition: int = 0) -> list[asyncio.Future[Any]]:
    """So many commits of the group, all in this turn."""
    orders = stage.broker.metadata.image.topics["orders"]
    shard = stage.broker.coordination.groups.shard("group")
    told = [(OffsetToCommit("orders", orders.id, partition, offset, -1, ""),) for offset in offsets]
    return [shard.handle(CommitOffsets("group", "", None, -1, each, -1, False)) for each in told]


def write_marker(stage: TxnStage, writer: Writer) -> None:
    """The writer's transaction is committed where its group's offsets are."""
    written = stage.broker.coordination.marker_writer.write(
        stage.broker.coordination.groups.shard("group").partition.topic_partition,
        producer_id=writer.producer_id,
        producer_epoch=writer.epoch + 1,
        commit=True,
        coordinator_epoch=0,
        transaction_version=2,
    )
    assert isinstance(written, tuple)


def batches(partition: Partition, from_offset: int) -> list[int]:
    """How many records each batch has."""
    return [header.record_count for header, _ in partition.log.scan(from_offset)]


def test_the_decisions_of_one_turn_are_written_in_two_batches_and_answered_in_their_order(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        shard = stage.broker.coordination.groups.shard("group")
        before, order = shard.partition.log.end_offset, list[int]()

        def answered(number: int, _: object) -> None:
            order.append(number)

        many = commits(stage, *range(10))
        for number, each in enumerate(many):
            each.add_done_callback(partial(answered, number))
        assert [each.done() for each in many] == [True] + 9 * [False]
        assert batches(shard.partition, before) == [1]
        read = shard.handle(FetchOffsets("group", None, -1, (), False))
        assert not read.done()  # it tells of offsets that are not in the log
        await asyncio.gather(*many, read)
        assert order == list(range(10))
        assert batches(shard.partition, before) == [1, 9]
        await asyncio.sleep(0)
        assert commits(stage, 11)[0].done()

    on_txn_stage(tmp_path, scene)


def test_what_is_gathered_is_written_before_it_is_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.broker.shard, "GATHERED_BYTES", 300)

    async def scene(stage: TxnStage) -> None:
        shard = stage.broker.coordination.groups.shard("group")
        before = shard.partition.log.end_offset
        await asyncio.gather(*commits(stage, *range(9)))
        found = batches(shard.partition, before)
        assert sum(found) == 9
        assert found[0] == 1
        assert 1 < max(found) < 5

    on_txn_stage(tmp_path, scene)


def test_gathered_decisions_that_cannot_be_written_are_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: TxnStage) -> None:
        shard = stage.broker.coordination.groups.shard("group")
        many = commits(stage, 1, 2, 3)
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_own", lambda *_, **__: TOO_FEW_IN_SYNC)
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert [type(each) for each in outcomes[1:]] == [NotCoordinator, NotCoordinator]
        assert (shard.dropped, shard._waiting, shard._gathered) == (True, {}, [])
        await loaded_again(stage, shard)
        assert await committed_offset(stage) == (1, NONE)

    on_txn_stage(tmp_path, scene)


def test_a_decision_that_was_never_written_is_not_told_as_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is described in the turn in which it was gathered, and then can't be written."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        writer = Writer(stage, "pay")
        assert await writer.init() == NONE
        assert await writer.write("orders", "a") == NONE
        shard = shard_of(stage)
        other = next(
            name for name in map(str, itertools.count()) if coordinators.partition_index(name) == shard_index(shard)
        )
        await until(lambda: not shard._gathers)
        original, asked = Partition.append_own, 0

        def second_fails(partition: Partition, *arguments: Any, **named: Any) -> Any:
            nonlocal asked
            asked += partition is shard.partition
            return TOO_FEW_IN_SYNC if asked == 2 else original(partition, *arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(Partition, "append_own", second_fails)
            described = stage.ask(DescribeTransactionsRequest(["pay"]))
            _, ended, told = await asyncio.gather(Writer(stage, other).init(), writer.end(commit=True), described)
        assert ended.error_code == ErrorCode.NOT_COORDINATOR
        assert told.transaction_states[0].error_code == ErrorCode.NOT_COORDINATOR
        with pytest.raises(PartitionLost):
            shard.committed()
        await loaded_again(stage, shard)
        assert (await writer.end(commit=False)).error_code == NONE
        assert await values(stage, "orders") == []

    on_txn_stage(tmp_path, scene)


def test_gathered_decisions_that_cannot_be_put_together_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the fault of one of them: the others are not refused for it."""

    def raises(*_: Any, **__: Any) -> Any:
        raise ValueError

    async def scene(stage: TxnStage) -> None:
        shard = stage.broker.coordination.groups.shard("group")
        many = commits(stage, 1, 2, 3)
        with monkeypatch.context() as patched:
            patched.setattr(service.broker.shard, "build_plain_batch", raises)
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        assert [type(each) for each in outcomes[1:]] == [NotCoordinator, NotCoordinator]
        await loaded_again(stage, shard)

    on_txn_stage(tmp_path, scene)


def test_gathered_decisions_go_with_the_leadership(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        groups = stage.broker.coordination.groups
        shard = groups.shard("group")
        end_offset = shard.partition.log.end_offset
        many = commits(stage, 1, 2, 3)
        shard.drop()
        outcomes = await asyncio.gather(*many, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert [type(each) for each in outcomes[1:]] == [NotCoordinator, NotCoordinator]
        assert shard.partition.log.end_offset == end_offset + 1

    on_txn_stage(tmp_path, scene)


def test_what_follows_from_an_answer_is_not_decided_between_a_decision_and_its_record(tmp_path: Path) -> None:
    """Decisions that were gathered are written because a producer's offsets come. An answer to one of them must not ask
    anything before these are written.
    """

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        shard = stage.broker.coordination.groups.shard("group")
        await until(lambda: not shard._gathers)
        asked: list[asyncio.Future[Any]] = []
        commits(stage, 1, 2)
        shard._post = lambda _: asked.extend(commits(stage, 5))
        (gathered,) = shard._gathered
        shard._gathered[0] = GroupDecision(tuple(gathered.records), tuple(gathered.answers), effects=("ask",))
        orders = stage.broker.metadata.image.topics["orders"]
        offset = OffsetToCommit("orders", orders.id, 0, 7, -1, "")
        shard.handle(CommitTransactionalOffsets("group", "", None, -1, (offset,), writer.producer_id, writer.epoch))
        await until(lambda: bool(asked) and asked[0].done())
        written = [
            read_offset(record.value).offset
            for _, batch in shard.partition.log.scan(0)
            for record in read_records(bytes(batch))
            if record.value is not None
        ]
        assert written == [1, 2, 7, 5]

    on_txn_stage(tmp_path, scene)


def test_who_asks_what_is_committed_asks_for_what_was_gathered_too(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        shard = stage.broker.coordination.groups.shard("group")
        before = shard.partition.log.end_offset
        many = commits(stage, 1, 2)
        shard.committed()
        assert batches(shard.partition, before) == [1, 1]
        await asyncio.gather(*many)

    on_txn_stage(tmp_path, scene)


def test_a_marker_comes_after_what_was_gathered(tmp_path: Path) -> None:
    """A replay finds decisions and markers in the order in which the machine took them up."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        assert (await stage.ask(commit_offset(writer, 7))).topics[0].partitions[0].error_code == NONE
        shard = stage.broker.coordination.groups.shard("group")
        await until(lambda: not shard._gathers)
        before = shard.partition.log.end_offset
        many = commits(stage, 1, 2)
        write_marker(stage, writer)
        found = [header.is_control for header, _ in shard.partition.log.scan(before)]
        assert found == [False, False, True]
        await asyncio.gather(*many)

    on_txn_stage(tmp_path, scene)


# What waits for a commit


@asynccontextmanager
async def slow_disk(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Nothing more becomes durable meanwhile."""
    over, flush = asyncio.Event(), Partition.flush

    async def later(partition: Partition) -> None:
        await over.wait()
        await flush(partition)

    monkeypatch.setattr(Partition, "flush", later)
    try:
        yield
    finally:
        over.set()


def test_offsets_of_a_transaction_are_told_when_its_marker_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the marker were lost, the offsets would go back until it is written again."""

    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        assert (await stage.ask(commit_offset(writer, 7))).topics[0].partitions[0].error_code == NONE
        async with slow_disk(monkeypatch):
            write_marker(stage, writer)
            told = asyncio.ensure_future(committed_offset(stage))
            await asyncio.sleep(0.05)
            assert not told.done()
        assert await told == (7, NONE)

    on_txn_stage(tmp_path, scene, log_durability="fsync")


def test_a_slow_disk_commits_much_at_once_and_others_have_turns_while_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, a_turn, most = 5 * ANSWERS_A_TURN, 0, 0

    async def scene(stage: TxnStage) -> None:
        nonlocal a_turn, most
        shard = stage.broker.coordination.groups.shard("group")
        orders = stage.broker.metadata.image.topics["orders"]
        numbers: list[int] = []

        def answered(number: int, _: object) -> None:
            nonlocal a_turn
            numbers.append(number)
            a_turn += 1

        async with slow_disk(monkeypatch):
            for number in range(many):
                offsets = (OffsetToCommit("orders", orders.id, 0, number, -1, ""),)
                decided = shard.handle(CommitOffsets("group", "", None, -1, offsets, -1, False))
                decided.add_done_callback(partial(answered, number))
            await asyncio.sleep(0)
            assert not numbers
        while len(numbers) < many:
            await asyncio.sleep(0)
            most, a_turn = max(most, a_turn), 0
        assert most == ANSWERS_A_TURN
        assert numbers == list(range(many))
        assert not shard._undelivered
        assert await committed_offset(stage) == (many - 1, NONE)

    on_txn_stage(tmp_path, scene, log_durability="fsync")


def test_who_has_much_to_answer_lets_others_answer_in_the_next_turn() -> None:
    answers, given = FewAnswersATurn(), []

    def answer(name: str, left: int) -> None:
        def go_on() -> None:
            nonlocal left
            while left and answers.may_give(1, go_on):
                left -= 1
                given.append(name)

        go_on()

    async def main() -> None:
        for name in "abc":
            answer(name, 3 * ANSWERS_A_TURN)
        for _ in range(9):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert given == [name for name in "aabcabcbc" for _ in range(ANSWERS_A_TURN)]
