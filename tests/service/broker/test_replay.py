"""What a replay makes of a log, and how little of it it has to apply."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

import service.broker.shard
import service.groups.classic_group
import txn.coordinator
from log.batch import CorruptBatch, build_plain_batch
from log.control import ControlType, build_marker
from log.ids import TopicPartition
from log.steps import done_at_once
from service.broker.machine import Mishaps
from service.broker.partition import Partition
from service.broker.replay import HELD_BYTES, Replay
from service.groups import records
from service.groups.classic_group import MADE_A_TURN, ClassicGroup, ClassicMember
from service.groups.commands import DescribeClassicGroup
from service.groups.offsets import CommittedOffset
from service.groups.records import (
    TOPICS_READ_A_TURN,
    classic_group_record,
    classic_group_tombstone,
    empty_classic_group_record,
    offset_key,
    offset_tombstone,
    offset_value,
)
from service.turns import breathe
from tests.service.api.txn_stage import TxnStage, on_txn_stage, until
from tests.service.groups.driver import Driver, Topics, with_soft_epochs_of
from tests.sim.replicas import applied_one_by_one
from txn.records import read_value, write_key, write_value
from txn.states import State, Txn

Record = tuple[bytes, bytes | None]
TOPIC_ID = b"i" * 16
TRANSACTIONS = 2_000


def append(partition: Partition, *records: Record, producer_id: int = -1) -> None:
    epoch = 0 if producer_id >= 0 else -1
    partition.append_own(build_plain_batch(records, 1, producer_id=producer_id, producer_epoch=epoch), now_ms=1)


def test_of_the_transactions_of_an_id_only_the_last_is_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takeover lasts as long as it takes to read the log, not as long as it takes to understand each record."""
    read = 0

    def counted(transactional_id: str, value: bytes) -> Txn:
        nonlocal read
        read += 1
        return read_value(transactional_id, value)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        for number in range(TRANSACTIONS):
            name = f"pay-{number % 4}"
            for state in (State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT):
                told = Txn(name, 7, number % 1_000, state, 60_000, number, (TopicPartition("orders", 0),))
                append(partition, (write_key(name), write_value(told)))
        append(partition, (write_key("pay-0"), None))
        plainly = applied_one_by_one(coordinators._new_machine(partition), partition)
        monkeypatch.setattr(txn.coordinator, "read_value", counted)
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), Mishaps())
        done_at_once(replay.up_to(partition.log.end_offset))
        assert read <= 3
        assert {each.transactional_id: each for each in replay.machine.all()} == {
            each.transactional_id: each for each in plainly.all()
        }
        assert replay.machine.describe("pay-1").txn.updated_ms == TRANSACTIONS - 3

    on_txn_stage(tmp_path, scene)


def test_a_record_that_nobody_can_read_takes_nothing_back(tmp_path: Path) -> None:
    """A newer version may have written it. The decision before it holds, and its markers are owed."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        decided = Txn("pay", 7, 1, State.PREPARE_COMMIT, 60_000, 1, (TopicPartition("orders", 0),))
        append(partition, (write_key("pay"), write_value(decided)))
        append(
            partition, (write_key("pay"), b"\0\7of a version to come"), (write_key("pay"), write_value(decided)[:-3])
        )
        mishaps = Mishaps()
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), mishaps)
        done_at_once(replay.up_to(partition.log.end_offset))
        assert replay.machine.describe("pay").txn.state is State.PREPARE_COMMIT
        replay.tell_passed_over()
        assert mishaps.records == 2

    on_txn_stage(tmp_path, scene)


def misplace(root: Path, partition: Partition, at: int, offset: int) -> None:
    """The batch at one offset says that it is at another one."""
    (path,) = root.glob(f"**/{partition.log.folder}/*.log")
    with path.open("r+b") as file:
        file.seek(partition.log.segments[0].position_of(at))
        file.write(offset.to_bytes(8))


@pytest.mark.parametrize(("at", "offset"), [(0, 1 << 56), (0, 2), (2, 0), (2, 300)])
def test_a_batch_with_the_offsets_of_another_place_is_damage(tmp_path: Path, at: int, offset: int) -> None:
    """No checksum covers them. A coordinator that knew nothing was loaded, so nobody was fenced any more."""

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        for number in range(3):
            told = Txn(f"pay-{number}", 7, 1, State.EMPTY, 60_000, 1)
            append(partition, (write_key(told.transactional_id), write_value(told)))
        await partition.log.flush()
        misplace(tmp_path, partition, at, offset)
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), Mishaps())
        with pytest.raises(CorruptBatch, match="not their place"):
            done_at_once(replay.up_to(partition.log.end_offset))

    on_txn_stage(tmp_path, scene)


def test_long_records_that_are_replaced_are_read_in_turns(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.transactions
        partition = coordinators.shard("pay").partition
        partitions = tuple(TopicPartition("orders", index) for index in range(60_000))
        for _ in range(5):
            told = Txn("pay", 7, 1, State.ONGOING, 60_000, 1, partitions)
            append(partition, (write_key("pay"), write_value(told)))
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), Mishaps())
        assert sum(1 for _ in replay.up_to(partition.log.end_offset)) >= 3

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("seed", range(20))
def test_a_replay_makes_what_all_records_make_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Offsets plain and in transactions, committed, aborted and open, groups that are made and buried between them,
    and records that nobody can read; replayed in one go, or in several.
    """
    chance = Random(seed)
    monkeypatch.setattr("service.broker.replay.HELD_BYTES", chance.choice((200, 2_000, HELD_BYTES)))

    def offset(number: int) -> Record:
        place = chance.choice("gh"), "orders", chance.randrange(3)
        if chance.random() < 0.1:
            return offset_tombstone(*place)
        return offset_key(*place), offset_value(CommittedOffset(number, -1, "", number, None, TOPIC_ID))

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.groups
        partition = coordinators.shard("g").partition
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), Mishaps())
        for number in range(300):
            match chance.randrange(12):
                case 0:
                    append(partition, empty_classic_group_record(chance.choice("gh"), number))
                case 1:
                    append(partition, classic_group_tombstone(chance.choice("gh")))
                case 2 | 3 | 4:
                    append(partition, offset(number), offset(number), producer_id=chance.randrange(3))
                case 5 | 6:
                    marker = build_marker(
                        chance.choice((ControlType.COMMIT, ControlType.ABORT)),
                        producer_id=chance.randrange(3),
                        producer_epoch=0,
                        coordinator_epoch=0,
                        timestamp_ms=1,
                    )
                    partition.append_own(bytearray(marker), now_ms=1)
                case 7:
                    append(partition, (offset(number)[0], b"\0\5of a version to come"), (b"\0\1", b"x"), (b"", b"x"))
                case _:
                    append(partition, *(offset(number) for _ in range(chance.randrange(1, 4))))
            if chance.random() < 0.02:
                done_at_once(replay.up_to(partition.log.end_offset))
        done_at_once(replay.up_to(partition.log.end_offset))
        plainly = applied_one_by_one(coordinators._new_machine(partition), partition)
        assert replay.machine.durable_facts() == plainly.durable_facts()
        assert replay.machine.durable_facts() != coordinators._new_machine(partition).durable_facts()

    on_txn_stage(tmp_path, scene)


def test_a_group_of_thousands_of_members_is_made_in_turns_before_its_coordinator_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has one record, and it wakes in one turn. Until it is made, clients are told that the coordinator loads."""
    many = 3 * MADE_A_TURN
    group = ClassicGroup("g", generation=1, protocol_type="consumer", protocol_name="range")
    for number in range(many):
        name = f"member {number}"
        group.members[name] = ClassicMember(
            name, None, "c", "/127.0.0.1", 9_000, 9_000, (("range", b"\0\0" + bytes(8)),)
        )
    made = [0]

    def counted(*facts: Any) -> ClassicMember:
        made[-1] += 1
        return ClassicMember(*facts)

    async def turn() -> None:
        made.append(0)
        await breathe()

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.groups
        partition = coordinators.shard("g").partition
        append(partition, classic_group_record(group, dict.fromkeys(group.members, b"a")))
        monkeypatch.setattr(service.groups.classic_group, "ClassicMember", counted)
        monkeypatch.setattr(service.broker.shard, "breathe", turn)
        coordinators.led(partition)
        await until(lambda: all(shard.loaded for shard in coordinators.shards()))
        made.append(0)
        found = await coordinators.shard("g").handle(DescribeClassicGroup("g"))
        assert len(found.members) == many
        assert made[-1] == 0
        assert max(made) <= MADE_A_TURN

    on_txn_stage(tmp_path, scene)


def test_records_of_members_with_thousands_of_topics_are_read_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What can't be read is passed over all the same."""
    names = tuple(f"a topic of which there are very many {number}" for number in range(3 * TOPICS_READ_A_TURN))
    driver = Driver(topics=Topics(**dict.fromkeys(names, 1)))
    driver.beat("a", 0, subscribed_topics=names)
    driver.beat("b", 0, subscribed_topics=None, subscribed_regex="a topic.*")
    driver.wait(10_000)
    driver.beat("a", 2, owned={})
    read = [0]

    def counts(name: str) -> None:
        called = getattr(records, name)

        def counted(part: bytes) -> Any:
            read[-1] += 1
            return called(part)

        monkeypatch.setattr(records, name, counted)

    async def scene(stage: TxnStage) -> None:
        coordinators = stage.broker.coordination.groups
        partition = coordinators.shard("g").partition
        written = [pair for entry in driver.log for pair in entry.records]
        longest = max(written, key=lambda pair: len(pair[1] or b""))
        for key, value in ((longest[0], (longest[1] or b"")[:-9]), *written):
            append(partition, (key, value))
        for name in ("_read_few_of_target", "_read_few_held"):
            counts(name)
        records._known_values.clear()
        mishaps = Mishaps()
        replay: Replay[Any] = Replay(partition, coordinators._new_machine(partition), mishaps)
        for _ in replay.up_to(partition.log.end_offset):
            read.append(0)
        assert sum(read) > 2 * len(names) // 2
        assert max(read) <= TOPICS_READ_A_TURN
        replay.tell_passed_over()
        assert mishaps.records == 1
        live, found = driver.machine.durable_facts(), replay.machine.durable_facts()
        assert found == with_soft_epochs_of(live, found)

    on_txn_stage(tmp_path, scene)
