"""A marker of an older client whose answer is lost, and which arrives in the producer's next transaction. That
transaction has the same epoch, so only the coordinator's epoch tells the marker from its own. Whatever happens to the
coordinator meanwhile, the marker must not end that transaction.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from log.ids import TopicPartition
from service.broker.coordinators import Coordinators
from service.broker.partition import PartitionLost
from service.broker.peers import PeerAway
from service.broker.shard import Shard
from service.wire.error_codes import ErrorCode
from service.wire.messages import WriteTxnMarkersRequest
from tests.service.api.txn_stage import Writer, find_coordinator, values
from tests.service.broker.cluster_stage import TOPIC, ClusterStage, on_cluster_stage, until
from txn.coordinator import TxnCoordinator

STATE = TopicPartition("__transaction_state", 0)
OF_OLDER_CLIENTS = 11
NOT_YET = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)
GIVEN = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "log.durability": "os",
}


def transactions(stage: ClusterStage, node_id: int) -> Coordinators[TxnCoordinator]:
    return stage.broker(node_id).coordination.transactions


def loaded_shard(stage: ClusterStage, node_id: int) -> Shard[TxnCoordinator] | None:
    shard = transactions(stage, node_id).at(0)
    return shard if shard is not None and shard.loaded and not shard.dropped else None


async def coordinated_by_one(stage: ClusterStage) -> None:
    """The only coordinator is broker 1, which is alone at first."""
    await find_coordinator(stage.wire(1), "pay")
    await stage.start(2)


async def ready(ask: Callable[[], Awaitable[int]]) -> None:
    async with asyncio.timeout(15):
        while True:
            error = await ask()
            if error not in NOT_YET:
                break
            await asyncio.sleep(0.02)
    assert error == ErrorCode.NONE


async def hiccup(stage: ClusterStage) -> None:
    """The session with the store is not trusted for a moment."""
    metadata = stage.broker(1).metadata
    metadata.on_session_lost()
    metadata.on_session_regained()


async def failed_decision(stage: ClusterStage) -> None:
    shard = transactions(stage, 1).at(0)
    assert shard is not None
    shard._give_up()


async def stop_and_start(stage: ClusterStage) -> None:
    await stage.stop(1)
    await stage.start(1)


async def patience(stage: ClusterStage) -> None:
    """The coordinator goes on, and knows that the answer is missing."""


@pytest.mark.parametrize("befall", [patience, hiccup, failed_decision, stop_and_start])
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
def test_a_late_marker_does_not_end_the_next_transaction(
    tmp_path: Path, befall: Callable[[ClusterStage], Awaitable[None]], commit: bool
) -> None:
    async def scene(stage: ClusterStage) -> None:
        await coordinated_by_one(stage)
        await stage.create(2)
        producer = Writer(stage.wire(1), "pay")
        await ready(producer.init)
        wire = stage.wire(2)
        at_leader = Writer(wire, "pay", producer.producer_id, producer.epoch)

        async def begin() -> int:
            producer.stage = stage.wire(1)
            return (await producer.add(TOPIC, 0))[0]

        await ready(begin)
        assert await at_leader.write(TOPIC, "first", version=OF_OLDER_CLIENTS) == ErrorCode.NONE
        late = held_back(stage)
        await producer.end(commit=commit, version=3)
        await until(lambda: bool(late))
        await befall(stage)
        await ready(begin)  # the first transaction is complete
        assert await at_leader.write(TOPIC, "second", sequence=1, version=OF_OLDER_CLIENTS) == ErrorCode.NONE
        answer = await wire.ask(late[0])
        assert answer.markers[0].topics[0].partitions[0].error_code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        assert (await producer.end(commit=not commit, version=3)).error_code == ErrorCode.NONE
        partition = stage.partition(2)
        await until(lambda: not partition.stable.open_transactions)
        assert await values(wire, TOPIC) == (["first"] if commit else ["second"])

    on_cluster_stage(tmp_path, scene, 1, given=GIVEN)


def held_back(stage: ClusterStage) -> list[WriteTxnMarkersRequest]:
    """The first markers that the coordinator sends lie in the network, and no answer comes."""
    held: list[WriteTxnMarkersRequest] = []
    peers = stage.broker(1).coordination.marker_courier._peers
    ask = peers.ask

    async def ask_later(broker_id: int, request: Any, **how: Any) -> Any:
        if held:
            return await ask(broker_id, request, **how)
        held.append(request)
        await asyncio.sleep(0.1)
        raise PeerAway("no answer", may_come_late=True)

    peers.ask = ask_later  # type: ignore[method-assign]
    return held


async def crash(stage: ClusterStage) -> None:
    await stage.kill(1)
    await stage.start(1)


async def crash_and_failed_replay(stage: ClusterStage) -> None:
    failed = asyncio.Event()

    async def fail(shard: Shard[Any]) -> None:
        failed.set()
        raise PartitionLost(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    with pytest.MonkeyPatch.context() as meanwhile:
        meanwhile.setattr(Shard, "_load", fail)
        await crash(stage)
        await failed.wait()


async def is_first_after(befall: Callable[[ClusterStage], Awaitable[None]], stage: ClusterStage, node_id: int) -> bool:
    former = transactions(stage, node_id).at(0)
    await befall(stage)
    await until(lambda: loaded_shard(stage, node_id) not in (None, former))
    shard = loaded_shard(stage, node_id)
    assert shard is not None
    return shard.is_first


def test_the_first_shard_of_a_leader_epoch_is_known_as_the_first(tmp_path: Path) -> None:
    """Nothing of that epoch can be under way then, so the epoch need not be raised."""

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")
        assert not await is_first_after(hiccup, stage, 1)
        assert await is_first_after(crash, stage, 1)
        assert not await is_first_after(hiccup, stage, 1)
        assert not await is_first_after(failed_decision, stage, 1)
        assert not await is_first_after(stop_and_start, stage, 1)
        assert await is_first_after(crash_and_failed_replay, stage, 1)
        assert not await is_first_after(failed_decision, stage, 1)

    on_cluster_stage(tmp_path, scene, 1, given=GIVEN)


def test_the_shard_of_another_leader_is_the_first_of_its_epoch(tmp_path: Path) -> None:
    async def stop(stage: ClusterStage) -> None:
        await stage.stop(1)

    async def scene(stage: ClusterStage) -> None:
        await find_coordinator(stage.wire(1), "pay")
        await until(lambda: all(stage.broker(each).partitions.get(STATE) is not None for each in (1, 2)))
        state = stage.broker(1).metadata.image.partition(STATE)
        assert state is not None
        if state.leader == 2:
            await stage.stop(2)
            await stage.start(2)
        await until(lambda: loaded_shard(stage, 1) is not None)
        await until(lambda: all_in_sync(stage))
        assert await is_first_after(stop, stage, 2)

    on_cluster_stage(tmp_path, scene, 1, 2, given=GIVEN | {"transaction.state.log.replication.factor": "2"})


def all_in_sync(stage: ClusterStage) -> bool:
    state = stage.broker(1).metadata.image.partition(STATE)
    return state is not None and len(state.isr) == 2
