"""Who watches over in-sync sets goes on, whatever one partition does."""

import asyncio
import errno
from pathlib import Path
from typing import Any

import pytest

from log.batch import build_batch
from log.disk import DiskFault
from service.broker import in_sync
from service.broker.in_sync import ANSWERED_A_TURN, InSyncSets, Proposed
from service.broker.partition import Appended, Leading, Partition
from service.cluster.controller import AlterPartition, Command, GiveUpReplica, RaiseLeaderEpoch, Refusal, Together
from service.cluster.image import Image, PartitionState
from service.cluster.metadata import MetadataLost
from service.stores.memory import Faults, MemorySession
from service.wire.error_codes import ErrorCode
from service.wire.messages import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests.service.api.admin_stage import Stage, on_stage
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until
from tests.service.broker.topic_stage import LIFE, OS, led
from tests.turns import with_turns


def test_one_partition_that_can_not_be_looked_at_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.create(1, 2, name="later")
        looked_at: list[str] = []

        def consider(sets: InSyncSets, partition: Partition, *, joiner: int | None = None) -> None:
            looked_at.append(partition.topic_partition.topic)
            if looked_at[-1] != "later":
                raise AssertionError("this broker's own mistake")

        monkeypatch.setattr(InSyncSets, "consider", consider)
        await until(lambda: looked_at.count("later") >= 2)

    given = {"log.durability": "os", "replica.lag.time.max.ms": "100"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=given)


def test_a_proposal_that_ends_a_reassignment_away_from_here_changes_nothing_before_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer may come before this broker has followed the image, in which another leads."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)
        state = PartitionState((2, 3), (2, 3), 2, partition.leader_epoch + 1, partition_epoch=5)

        async def execute(*_: object) -> list[PartitionState]:
            return [state]

        in_sync = stage.broker.replication.in_sync
        monkeypatch.setattr(stage.broker.metadata, "execute", execute)
        assert isinstance(partition.role, Leading)
        await in_sync._propose([in_sync._proposed(partition, partition.role, ((1, 0), (2, LIFE)))])
        assert partition.is_leading
        assert partition.replicas.isr == (1, 2)

    on_stage(tmp_path, scene, OS)


def test_a_refusal_by_a_later_image_does_not_say_that_the_set_was_never_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first commit was lost. It may have been accepted, and another broker may lead since then, which
    this leadership learns at its turn.
    """

    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1,), min_in_sync=1)
        metadata = stage.broker.metadata
        metadata.unsubscribe(stage.broker.holdings.follow)
        execute = metadata.execute

        async def overtaken(*_: object) -> list[Refusal]:
            await execute(RaiseLeaderEpoch(partition.topic_partition, 1, 9))
            return [Refusal(ErrorCode.FENCED_LEADER_EPOCH)]

        monkeypatch.setattr(metadata, "execute", overtaken)
        assert isinstance(partition.role, Leading)
        proposal = (1, 0), (2, LIFE)
        partition.replicas.proposed(proposal)
        in_sync = stage.broker.replication.in_sync
        await in_sync._propose([in_sync._proposed(partition, partition.role, proposal)])
        appended = partition.append_from_client(
            memoryview(bytearray(build_batch([(b"k", b"v", (), 1)]))), acks=-1, now_ms=1
        )
        assert isinstance(appended, Appended)
        assert partition.committed(appended.end_offset) is not None, "2 may be in sync, and does not have it"
        state = metadata.image.partition(partition.topic_partition)
        assert state is not None
        partition.decided(state.isr, state.partition_epoch, state.eligible)
        assert partition.committed(appended.end_offset) is None, "now it is known who is in sync"

    on_stage(tmp_path, scene, OS)


def test_the_refusal_of_an_earlier_proposal_leaves_the_next_one_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first one was under way another broker changed the set, and a follower was proposed that had caught up.
    If it did not count, it could come to lead without what was acknowledged meanwhile.
    """

    async def scene(stage: Stage) -> None:
        partition = await led(stage, isr=(1, 2), min_in_sync=1)
        metadata = stage.broker.metadata
        metadata.unsubscribe(stage.broker.holdings.follow)
        refused: asyncio.Future[Refusal] = asyncio.get_running_loop().create_future()

        async def slow(*_: object) -> list[Refusal]:
            return [await refused]

        execute = metadata.execute
        monkeypatch.setattr(metadata, "execute", slow)
        assert isinstance(partition.role, Leading)
        first, second = ((1, 0),), ((1, 0), (3, LIFE))
        partition.replicas.proposed(first)
        in_sync = stage.broker.replication.in_sync
        proposing = asyncio.ensure_future(in_sync._propose([in_sync._proposed(partition, partition.role, first)]))
        await asyncio.sleep(0)
        await execute(RaiseLeaderEpoch(partition.topic_partition, 1, 9))
        state = metadata.image.partition(partition.topic_partition)
        assert state is not None
        partition.decided((1,), state.partition_epoch, ())
        partition.replicas.proposed(second)
        refused.set_result(Refusal(ErrorCode.INVALID_UPDATE_VERSION))
        await proposing
        appended = partition.append_from_client(
            memoryview(bytearray(build_batch([(b"k", b"v", (), 1)]))), acks=-1, now_ms=1
        )
        assert isinstance(appended, Appended)
        assert partition.committed(appended.end_offset) is not None, "3 may be in sync, and does not have it"

    on_stage(tmp_path, scene, OS)


def test_a_proposal_that_fails_is_not_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another one, a follower that died would stay in sync, and nothing would be committed any more."""

    async def scene(stage: Stage) -> None:
        partition = await led(stage)

        async def fails(*_: object) -> PartitionState:
            raise RuntimeError("this broker's own mistake")

        monkeypatch.setattr(stage.broker.metadata, "execute", fails)
        assert isinstance(partition.role, Leading)
        for _ in range(2):
            partition.replicas.proposed(((1, 0),))
            in_sync = stage.broker.replication.in_sync
            await in_sync._propose([in_sync._proposed(partition, partition.role, ((1, 0),))])

    on_stage(tmp_path, scene, OS)


def test_in_sync_sets_that_change_at_once_are_proposed_together_and_changed_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of very many partitions dies or comes back, and in one turn hundreds of them find that."""
    many = 3 * ANSWERED_A_TURN

    async def scene(stage: Stage) -> None:
        await stage.create("orders", many)
        await stage.broker.holdings.even()
        partitions = list((stage.broker.partitions.topic("orders") or {}).values())
        in_sync, metadata = stage.broker.replication.in_sync, stage.broker.metadata
        commands: list[Command[Any]] = []
        answered: asyncio.Future[list[Refusal]] = asyncio.get_running_loop().create_future()

        async def execute(command: Command[Any]) -> list[Refusal]:
            commands.append(command)
            return await answered

        monkeypatch.setattr(metadata, "execute", execute)
        for partition in partitions:
            partition.lead(partition.leader_epoch + 1, 1, (1, 2), (1, 2), fsync=False)
        before = len(asyncio.all_tasks())
        for partition in partitions:
            in_sync.consider(partition)
        assert len(asyncio.all_tasks()) == before + 1
        await asyncio.sleep(0)
        (command,) = commands
        assert isinstance(command, Together)
        assert len(command.proposals) == many
        answered.set_result([Refusal(ErrorCode.INVALID_UPDATE_VERSION)] * many)

        async def all_answered() -> None:
            for _ in iter(lambda: in_sync._is_proposing, False):
                await asyncio.sleep(0)

        _, turns = await with_turns(all_answered())
        assert turns >= many // ANSWERED_A_TURN

    on_stage(tmp_path, scene, OS)


def test_a_follower_whose_disk_failed_leaves_and_does_not_come_back(tmp_path: Path) -> None:
    """Its leader has nothing new for it, and takes it for one that holds everything."""

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.write("a")
        await stage.in_sync(1, 2)
        stage.broker(2).folders[0].fail(DiskFault(errno.EIO, "broken"))
        await stage.in_sync(1)
        changed = stage.state().partition_epoch
        await asyncio.sleep(1.5)  # five looks
        assert stage.state().partition_epoch == changed

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.lag.time.max.ms": "600"})


def test_what_a_failed_disk_held_is_left_to_others_in_one_commit_first_what_was_led(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was one commit for each partition, and every other command of this broker came after them."""
    many = 12
    monkeypatch.setattr(in_sync, "PROPOSED_TOGETHER", many // 2)

    async def scene(stage: ClusterStage) -> None:
        assigned = [CreatableReplicaAssignment(index, [2, 1] if index % 2 else [1, 2]) for index in range(many)]
        await stage.wire(1).ask(CreateTopicsRequest([CreatableTopic("many", -1, -1, assignments=assigned)]))
        broker = stage.broker(1)
        await until(lambda: len(broker.partitions) == many)
        await broker.holdings.even()
        commands: list[Command[Any]] = []
        execute = broker.metadata.execute

        async def noted(command: Command[Any]) -> Any:
            commands.append(command)
            return await execute(command)

        monkeypatch.setattr(broker.metadata, "execute", noted)
        broker.folders[0].fail(DiskFault(errno.EIO, "broken"))
        states = broker.metadata.image.topics["many"].partitions
        await until(
            lambda: all(state.isr == (2,) for state in broker.metadata.image.topics["many"].partitions.values())
        )
        given_up = [[each.index for each in each.proposals] for each in commands if isinstance(each, Together)]
        assert len(given_up) == len(commands) == 2
        assert [states[index].leader for index in given_up[0]] == [1] * (many // 2)
        assert sorted(given_up[0] + given_up[1]) == list(range(many))

    given = {"log.durability": "os", "replica.lag.time.max.ms": "30000"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=given)


def test_a_replica_that_came_back_whole_while_others_were_left_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_sync, "PROPOSED_TOGETHER", 1)

    async def scene(stage: ClusterStage) -> None:
        assigned = [CreatableReplicaAssignment(index, [1, 2]) for index in range(2)]
        await stage.wire(1).ask(CreateTopicsRequest([CreatableTopic("many", -1, -1, assignments=assigned)]))
        broker = stage.broker(1)
        await until(lambda: len(broker.partitions) == 2)
        await broker.holdings.even()
        execute, sent = broker.metadata.execute, list[int]()
        first, other = broker.partitions

        async def noted(command: Command[Any]) -> Any:
            if isinstance(command, Together):
                sent.extend(each.index for each in command.proposals)
                if other in broker.partitions:
                    broker.partitions.remove(other)
            return await execute(command)

        monkeypatch.setattr(broker.metadata, "execute", noted)
        for partition in (first, other):
            broker.replication.in_sync.give_up(partition)
        await until(lambda: other not in broker.partitions and not broker.replication.in_sync._is_giving_up)
        assert sent == [first.topic_partition.partition]
        broker.partitions.add(other)

    given = {"log.durability": "os", "replica.lag.time.max.ms": "30000"}
    on_cluster_stage(tmp_path, scene, 1, 2, given=given)


def test_a_replica_that_could_not_be_left_to_others_is_left_to_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        metadata = stage.broker(1).metadata
        execute, fails = metadata.execute, [MetadataLost(ErrorCode.NOT_CONTROLLER, "silent"), RuntimeError("a mistake")]

        async def at_last(command: Command[Any]) -> Any:
            if fails:
                raise fails.pop()
            return await execute(command)

        monkeypatch.setattr(metadata, "execute", at_last)
        stage.broker(1).folders[0].fail(DiskFault(errno.EIO, "broken"))
        await stage.in_sync(2)
        assert not fails

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.lag.time.max.ms": "300"})


@pytest.mark.parametrize("whose", ["coordination.lose", "replication.fail"])
def test_a_replica_on_a_failed_disk_that_can_not_be_let_go_is_left_to_others_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    def fails(partition: Partition) -> None:
        raise AssertionError("this broker's own mistake")

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        await stage.in_sync(1, 2)
        broker, partition = stage.broker(1), stage.partition(1)
        part, what = whose.split(".")
        monkeypatch.setattr(getattr(broker, part), what, fails)
        broker.folders[0].fail(DiskFault(errno.EIO, "broken"))
        assert partition.offline is (part == "coordination")
        await stage.in_sync(2)
        assert stage.state().leader == 2
        monkeypatch.undo()

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.lag.time.max.ms": "300"})


async def six(stage: ClusterStage) -> list[Partition]:
    """Partitions that broker 1 leads and broker 2 follows, both in sync."""
    assigned = [CreatableReplicaAssignment(index, [1, 2]) for index in range(6)]
    await stage.wire(1).ask(CreateTopicsRequest([CreatableTopic("six", -1, -1, assignments=assigned)]))
    broker = stage.broker(1)
    await until(lambda: len(broker.partitions) == 6)
    await broker.holdings.even()
    return sorted(broker.partitions, key=lambda partition: partition.topic_partition)


def mistaken(monkeypatch: pytest.MonkeyPatch, command: type[AlterPartition | GiveUpReplica]) -> None:
    """Nothing can be decided on partition 3."""
    decide = command.decide

    def decides(each: Any, image: Image, *, retried: bool) -> Any:
        if each.index == 3:
            raise AssertionError("this broker's own mistake")
        return decide(each, image, retried=retried)

    monkeypatch.setattr(command, "decide", decides)


def test_a_replica_on_which_nothing_can_be_decided_keeps_no_other_of_a_failed_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look gathered the same lot again, and all of it stayed led by this broker."""

    async def scene(stage: ClusterStage) -> None:
        await six(stage)
        mistaken(monkeypatch, GiveUpReplica)
        broker = stage.broker(1)
        broker.folders[0].fail(DiskFault(errno.EIO, "broken"))

        def leaders() -> list[int]:
            return [state.leader for _, state in sorted(broker.metadata.image.topics["six"].partitions.items())]

        await until(lambda: leaders() == [2, 2, 2, 1, 2, 2])
        assert "this broker's own mistake" in caplog.text
        await until(lambda: "six-3 can't be left to other replicas yet" in caplog.text)
        monkeypatch.undo()
        await until(lambda: leaders() == [2] * 6)

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.lag.time.max.ms": "300"})


def test_an_in_sync_set_on_which_nothing_can_be_decided_keeps_no_other_and_may_have_been_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: ClusterStage) -> None:
        partitions = await six(stage)
        mistaken(monkeypatch, AlterPartition)
        in_sync, proposals = stage.broker(1).replication.in_sync, list[Proposed]()
        monkeypatch.setattr(in_sync, "consider", lambda *_, **__: None)  # broker 2 does not come back in sync
        for partition in partitions:
            assert isinstance(partition.role, Leading)
            proposal = ((1, stage.broker(1).metadata.broker_epoch),)
            partition.replicas.proposed(proposal)
            proposals.append(in_sync._proposed(partition, partition.role, proposal))
        await in_sync._propose(proposals)
        assert [partition.replicas.isr for partition in partitions] == [(1,), (1,), (1,), (1, 2), (1,), (1,)]
        assert [partition.replicas.pending_isr for partition in partitions] == [(), (), (), (1,), (), ()]
        monkeypatch.undo()

    on_cluster_stage(tmp_path, scene, 1, 2, given={"log.durability": "os", "replica.lag.time.max.ms": "30000"})


def test_whether_it_leads_is_answered_by_no_as_soon_as_it_leads_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One question waited for half a minute, and the next one, behind it, as long again."""

    class Away(Faults):
        def delay_s(self) -> float:
            return 3600.0

    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2)
        metadata, in_sync = stage.broker(1).metadata, stage.broker(1).replication.in_sync
        partition = stage.partition(1)
        judged = [(partition, partition.leader_epoch)]
        assert await in_sync.led_until_now(judged) == [True]
        session = metadata._session
        assert isinstance(session, MemorySession)
        session._faults = Away()
        first = asyncio.ensure_future(in_sync.led_until_now(judged))
        await asyncio.wait([first], timeout=0.1)
        second = asyncio.ensure_future(in_sync.led_until_now(judged))
        await asyncio.wait([first, second], timeout=0.1)
        assert not first.done() and not second.done()
        monkeypatch.setattr(session, "lease_left", lambda: -1.0)
        async with asyncio.timeout(5):
            for question in (first, second, in_sync.led_until_now(judged)):
                assert await question == [False]
        assert not partition.is_leading

    on_cluster_stage(tmp_path, scene, 1, 2)
