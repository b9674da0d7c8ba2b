"""`ClusterMetadata`: answers rest on the image, listeners hear everything in order, and lost answers neither lose nor
double anything.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from kazoo.exceptions import QuotaExceededError

from idempotence.producer_ids import ProducerIdBlock
from log.disk import RealDisk
from log.ids import TopicId
from service.cluster import image as image_module
from service.cluster import metadata as metadata_module
from service.cluster.controller import (
    AllocateProducerIds,
    AlterPartition,
    FenceBroker,
    MetadataDecision,
    Refusal,
    RemoveDead,
    Together,
)
from service.cluster.election import claim
from service.cluster.image import (
    BROKER_EPOCH,
    CONTROLLER_EPOCH,
    Delta,
    Image,
    PartitionState,
    encode_config,
    group_config_key,
    load,
)
from service.cluster.metadata import REST_S_MAX, ROUND, ClusterMetadata, MetadataLost
from service.cluster.topic_commands import CreatePartitions, CreateTopics, DeleteTopics, MorePartitions, NewTopic
from service.ports import RealClock, RealEnv
from service.stores.ledger import AppendOutcome, LedgerSession, LedgerStore
from service.stores.memory import Fate, Faults, MemoryServer, MemorySession, MemoryStore
from service.stores.port import Change, Check, Create, Entry, Event, Op, Result
from service.wire.error_codes import ErrorCode
from tests.service.broker.cluster_stage import until
from tests.service.cluster.worlds import ENDPOINTS, topic_id

SESSION_S = 60


class SeededFaults(Faults):
    """Loses every third request or answer, by the seed, once switched on."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.on = False
        self.lost = 0

    def fate(self) -> Fate:
        if not self.on or self.chance.random() > 0.35:
            return Fate.ANSWERED
        self.lost += 1
        return self.chance.choice((Fate.REQUEST_LOST, Fate.ANSWER_LOST))


class Cluster:
    """A store in memory, and brokers' metadata on it."""

    def __init__(self, env: RealEnv) -> None:
        self.env = env
        self.server = MemoryServer(env.clock)

    async def broker(self, broker_id: int = 1, *, faults: Faults | None = None) -> ClusterMetadata:
        store = MemoryStore(self.server, self.env, faults)
        metadata = ClusterMetadata(store, self.env, session_timeout_s=SESSION_S)
        await metadata.start(broker_id=broker_id, cluster_id="the-cluster")
        return metadata


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    env = RealEnv(RealDisk(str(folder)))
    yield Cluster(env)
    await env.tasks.cancel_all()


def new_topics(*names: str, start: int = 1) -> CreateTopics:
    return CreateTopics(tuple(NewTopic(name, topic_id(start + at), 1, 1) for at, name in enumerate(names)), 1, 1)


def test_the_first_broker_founds_the_cluster_controls_it_and_takes_an_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(-1)
            assert metadata.broker_id == 1
            assert metadata.image.cluster_id == "the-cluster"
            assert metadata.image.controller_id == -1
            epoch = await metadata.register(ENDPOINTS, rack="r1", closed_life=None)
            await metadata.claim()
            assert metadata.controlling
            assert metadata.image.controller == metadata.image.brokers[1]
            broker = metadata.image.brokers[1]
            assert (broker.epoch, broker.endpoints, broker.rack) == (epoch, ENDPOINTS, "r1")
            await metadata.close()
            left = load(world.server.snapshot())
            assert (left.brokers, left.controller_id, left.cluster_id) == ({}, -1, "the-cluster")

    asyncio.run(main())


def test_a_broker_whose_session_ends_again_and_again_while_it_registers_gets_in_at_last(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            register, ended, now_s = ClusterMetadata._register, 0, RealClock.monotonic

            async def ends(of: ClusterMetadata) -> Refusal | None:
                nonlocal ended
                if ended < 2:
                    ended += 1
                    patch.setattr(RealClock, "monotonic", staticmethod(lambda: now_s() + ended * 3 * SESSION_S))
                    of._session = None
                    raise MetadataLost(ErrorCode.NOT_CONTROLLER, "The session with the metadata store is over.")
                return await register(of)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ClusterMetadata, "_register", ends)
                patch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)
                epoch = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
                assert metadata.image.brokers[1].epoch == epoch
            assert ended == 2

    asyncio.run(main())


def test_a_broker_whose_registration_is_gone_before_it_knows_of_it_registers_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took itself for registered, and was never again: nobody told it once more that it was not."""
    commit = ClusterMetadata._commit

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata, other = await world.broker(1), await world.broker(2)
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            fenced = 0

            async def late(of: ClusterMetadata, *ops: Op) -> tuple[Result, int]:
                nonlocal fenced
                outcome = await commit(of, *ops)
                if of is metadata and 1 in of.image.brokers and not fenced:
                    fenced = of.image.brokers[1].epoch
                    await other.execute(FenceBroker(1, fenced))
                    await until(lambda: 1 not in of.image.brokers)
                return outcome

            monkeypatch.setattr(ClusterMetadata, "_commit", late)
            epoch = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            assert fenced and metadata.in_session
            assert metadata.image.brokers[1].epoch == epoch > fenced

    asyncio.run(main())


def test_a_broker_registers_by_no_session_that_it_can_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be given topics and leaderships, and hear of none."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            metadata._lost("the session ends while the logs are read")
            watch = MemorySession.watch

            def fails_once(session: MemorySession) -> AsyncIterator[Event]:
                monkeypatch.setattr(MemorySession, "watch", watch)
                raise RuntimeError("disk I/O error")

            monkeypatch.setattr(MemorySession, "watch", fails_once)
            monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)
            async with asyncio.timeout(5):
                epoch = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            assert metadata.image.brokers[1].epoch == epoch

    asyncio.run(main())


def test_an_answer_leaves_after_the_image_and_every_listener_have_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            heard: list[Delta] = []
            metadata.subscribe(heard.append)
            (result,) = await metadata.execute(new_topics("orders"))
            assert result.topic == metadata.image.topics["orders"]
            assert [delta.topics for delta in heard] == [("orders",)]
            await metadata.execute(DeleteTopics((topic_id(1),)))
            assert "orders" not in metadata.image.topics
            assert heard[1].old is heard[0].new and heard[1].new is metadata.image

    asyncio.run(main())


def test_commands_given_at_once_are_carried_out_one_after_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            creations = [metadata.execute(new_topics("same", start=number)) for number in range(1, 21)]
            blocks = [metadata.execute(AllocateProducerIds()) for _ in range(20)]
            results = await asyncio.gather(*creations)
            errors = [result.error for (result,) in results]
            assert errors == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 19
            assert len({block.first for block in await asyncio.gather(*blocks)}) == 20

    asyncio.run(main())


@pytest.mark.parametrize("seed", range(6))
def test_lost_answers_neither_lose_nor_double_anything(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third request or answer is lost; commands are answered as if none had been."""
    monkeypatch.setattr(metadata_module, "RETRY_DELAY_S", 0)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            faults = SeededFaults(seed)
            metadata = await world.broker(faults=faults)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            faults.on = True
            blocks: list[ProducerIdBlock] = []
            for number in range(1, 25):
                (created,) = await metadata.execute(new_topics(f"t{number}", start=number))
                assert created.error is ErrorCode.NONE
                more = (MorePartitions(f"t{number}", 2),)
                (grown,) = await metadata.execute(CreatePartitions(more, seen=metadata.image))
                assert grown.error is ErrorCode.NONE
                blocks.append(await metadata.execute(AllocateProducerIds()))
                if number % 2:
                    (deleted,) = await metadata.execute(DeleteTopics((created.id,)))
                    assert deleted.error is ErrorCode.NONE
            assert faults.lost > 10
            assert sorted(metadata.image.topics) == sorted(f"t{number}" for number in range(2, 25, 2))
            assert {len(topic.partitions) for topic in metadata.image.topics.values()} == {2}
            assert all(one.end <= two.first for one, two in pairwise(blocks))
            assert load(world.server.snapshot()) == metadata.image

    asyncio.run(main())


def test_every_broker_decides_but_what_a_controller_alone_decides(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            controller = await world.broker(1)
            await controller.register(ENDPOINTS, rack=None, closed_life=None)
            await controller.claim()
            other = await world.broker(2)
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            await other.claim()
            assert not other.controlling
            (created,) = await other.execute(new_topics("orders"))
            assert created.error is ErrorCode.NONE
            with pytest.raises(MetadataLost) as refused:
                await other.execute(RemoveDead(), as_controller=True)
            assert refused.value.error is ErrorCode.NOT_CONTROLLER

    asyncio.run(main())


def test_only_a_registered_broker_controls_the_cluster(tmp_path: Path) -> None:
    """One that claims control and then reads its logs for long, as earlier releases do, does a controller's work only
    afterwards: the next that registers takes its place.
    """

    async def main() -> None:
        async with cluster(tmp_path) as world:
            reads_its_logs = await world.broker(1)
            with pytest.raises(MetadataLost):
                await reads_its_logs.claim()
            image, session = reads_its_logs.image, reads_its_logs._session
            assert session is not None
            await session.commit(*claim(image, broker_id=1, session=session.id))
            other = await world.broker(2)
            assert (other.image.controller_id, other.image.controller) == (1, None)
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            await other.claim()
            assert other.controlling
            await reads_its_logs.register(ENDPOINTS, rack=None, closed_life=None)
            await reads_its_logs.claim()
            assert (other.controlling, reads_its_logs.controlling) == (True, False)
            assert other.image.controller_epoch.value == 2

    asyncio.run(main())


@pytest.mark.parametrize("fails", [1, 2], ids=["the commit", "the commit and the next"])
def test_a_store_that_refuses_in_a_way_that_nobody_foresaw_is_lost_to_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fails: int
) -> None:
    """A quota of ZooKeeper's: tasks died of the error, and a transaction's marker was never sent again."""
    monkeypatch.setattr(metadata_module, "RETRY_DELAY_S", 0)
    commit, newest, asked = MemorySession.commit, MemorySession.newest, 0

    async def refused(session: MemorySession, *ops: Op) -> tuple[Result, int]:
        nonlocal asked
        asked += 1
        if asked == fails:
            raise QuotaExceededError
        return (Result.UNKNOWN, 0) if asked < fails else await commit(session, *ops)

    async def refused_once(session: MemorySession) -> int | None:
        monkeypatch.setattr(MemorySession, "newest", newest)
        raise QuotaExceededError

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            monkeypatch.setattr(MemorySession, "commit", refused)
            if fails == 1:
                with pytest.raises(MetadataLost, match="QuotaExceededError"):
                    await metadata.execute(AllocateProducerIds())
            assert (await metadata.execute(AllocateProducerIds())).first == 0
            monkeypatch.setattr(MemorySession, "newest", refused_once)
            await metadata.catch_up()
            assert "QuotaExceededError" in caplog.text

    asyncio.run(main())


def test_two_brokers_that_make_the_same_topic_at_once_make_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            brokers = [await world.broker(number) for number in (1, 2, 3)]
            for broker in brokers:
                await broker.register(ENDPOINTS, rack=None, closed_life=None)
            made = [broker.execute(new_topics("same", start=at)) for at, broker in enumerate(brokers, 1)]
            errors = sorted(result.error for (result,) in await asyncio.gather(*made))
            assert errors == [ErrorCode.NONE] + [ErrorCode.TOPIC_ALREADY_EXISTS] * 2

    asyncio.run(main())


def test_every_commit_checks_the_registration_and_a_controllers_its_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R1: so a commit that was under way while another took over changes nothing."""
    commits: list[tuple[Op, ...]] = []
    commit = MemorySession.commit

    async def recorded(session: MemorySession, *ops: Op) -> tuple[Result, int]:
        commits.append(ops)
        return await commit(session, *ops)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.claim()
            monkeypatch.setattr(MemorySession, "commit", recorded)
            await metadata.execute(new_topics("orders"))
            await metadata.execute(AllocateProducerIds(), as_controller=True)
            own = (Check(BROKER_EPOCH, metadata.image.broker_epoch.version), Check("brokers/1", 0))
            assert [ops[:2] for ops in commits] == [own, own]
            assert commits[1][2] == Check(CONTROLLER_EPOCH, metadata.image.controller_epoch.version)

    asyncio.run(main())


def test_a_command_that_contradicts_itself_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits behind it would wait for a hundred decisions."""
    commits: list[tuple[Op, ...]] = []
    commit = MemorySession.commit

    async def counted(session: MemorySession, *ops: Op) -> tuple[Result, int]:
        commits.append(ops)
        return await commit(session, *ops)

    class Contradiction:
        def decide(self, image: Image, *, retried: bool) -> MetadataDecision[None]:
            return MetadataDecision(None, (Create("x", b""), Create("x", b"")))

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            monkeypatch.setattr(MemorySession, "commit", counted)
            with pytest.raises(MetadataLost) as refused:
                await metadata.execute(Contradiction())
            assert refused.value.error is ErrorCode.UNKNOWN_SERVER_ERROR
            assert len(commits) == 1
            assert "Contradiction" in caplog.text
            await metadata.close()

    asyncio.run(main())


def test_a_controller_replaced_while_it_slept_changes_nothing(tmp_path: Path) -> None:
    """R1: it still believes that it controls, because its image is of before."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.claim()
            world.server.end_session(metadata.image.brokers[1].session)
            with pytest.raises(MetadataLost):
                await metadata.execute(new_topics("orders"))
            assert load(world.server.snapshot()).topics == {}

    asyncio.run(main())


@pytest.mark.parametrize("fenced", [False, True], ids=["its session ended", "it was taken for dead"])
def test_a_broker_that_lost_its_place_is_told_and_joins_again_in_a_new_epoch(tmp_path: Path, fenced: bool) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            first = await metadata.register(ENDPOINTS, rack="r", closed_life=None)
            told: list[str] = []
            regained = asyncio.Event()
            metadata.on_session_lost = lambda: told.append("lost")

            def is_back() -> None:
                told.append("regained")
                regained.set()

            metadata.on_session_regained = is_back
            other = await world.broker(2)
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            heard: list[Delta] = []
            metadata.subscribe(heard.append)
            if fenced:
                assert await other.execute(FenceBroker(1, first))
            else:
                world.server.end_session(metadata.image.brokers[1].session)
            await other.execute(new_topics("meanwhile"))
            await asyncio.wait_for(regained.wait(), 5)
            assert told == ["lost", "regained"] and metadata.sessions_lost == 1
            assert metadata.image.brokers[1].epoch == metadata.broker_epoch > first
            assert metadata.image.brokers[1].rack == "r"
            assert "meanwhile" in metadata.image.topics and "meanwhile" in [
                name for delta in heard for name in delta.topics
            ]
            (created,) = await metadata.execute(new_topics("after", start=7))
            assert created.error is ErrorCode.NONE

    asyncio.run(main())


def test_two_names_that_collide_are_not_made_at_once_by_two_brokers_nor_together(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            brokers = [await world.broker(number) for number in (1, 2)]
            for broker in brokers:
                await broker.register(ENDPOINTS, rack=None, closed_life=None)
            names = ("orders.eu", "orders_eu")
            results = await asyncio.gather(
                *(
                    broker.execute(new_topics(name, start=number))
                    for number, (broker, name) in enumerate(zip(brokers, names, strict=True), 1)
                )
            )
            errors = sorted(result.error for (result,) in results)
            assert errors == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
            both = await brokers[0].execute(new_topics("pay.in", "pay_in", start=7))
            assert [result.error for result in both] == [ErrorCode.NONE, ErrorCode.INVALID_TOPIC_EXCEPTION]
            assert len(load(world.server.snapshot()).topics) == 2

    asyncio.run(main())


@pytest.mark.parametrize("fails", ["a listener", "taking up again what it held"])
def test_a_broker_that_can_not_take_up_what_it_hears_leaves_and_joins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """It would lead on by an image that stands still."""
    monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            first = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            told: list[str] = []
            regained = asyncio.Event()
            metadata.on_session_lost = lambda: told.append("lost")

            def is_back() -> None:
                told.append("regained")
                if fails != "a listener" and len(told) == 2:
                    raise AssertionError(fails)
                regained.set()

            def hears(delta: Delta) -> None:
                if "poison" in delta.topics:
                    raise AssertionError(fails)

            metadata.on_session_regained = is_back
            metadata.subscribe(hears)
            with pytest.raises(MetadataLost):
                await metadata.execute(new_topics("poison"))
            await asyncio.wait_for(regained.wait(), 5)
            assert told == (["lost", "regained"] if fails == "a listener" else ["lost", "regained"] * 2)
            assert metadata.in_session and metadata.broker_epoch > first
            assert "poison" in metadata.image.topics
            (created,) = await metadata.execute(new_topics("after", start=7))
            assert created.error is ErrorCode.NONE

    asyncio.run(main())


def test_a_lease_that_is_back_and_can_not_be_taken_up_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "LOOKS_PER_LEASE", 6000)
    monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            told: asyncio.Queue[str] = asyncio.Queue()
            metadata.on_session_lost = lambda: told.put_nowait("lost")
            epoch = await metadata.register(ENDPOINTS, rack=None, closed_life=None)

            def is_back() -> None:
                told.put_nowait("regained")
                if metadata.broker_epoch == epoch:
                    raise AssertionError("this broker's own mistake")

            metadata.on_session_regained = is_back
            monkeypatch.setattr(MemorySession, "lease_left", lambda session: -1.0)
            assert await asyncio.wait_for(told.get(), 5) == "lost"
            monkeypatch.setattr(MemorySession, "lease_left", lambda session: 1.0)
            assert [await asyncio.wait_for(told.get(), 5) for _ in range(3)] == ["regained", "lost", "regained"]
            assert metadata.in_session and metadata.broker_epoch > epoch

    asyncio.run(main())


def test_a_broker_whose_lease_has_run_out_leads_nothing_until_the_store_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "LOOKS_PER_LEASE", 6000)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            told: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()
            metadata.on_session_lost = lambda: told.put_nowait(("lost", metadata.in_session))
            metadata.on_session_regained = lambda: told.put_nowait(("regained", metadata.in_session))
            epoch = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            monkeypatch.setattr(MemorySession, "lease_left", lambda session: -1.0)
            assert await asyncio.wait_for(told.get(), 5) == ("lost", False)
            monkeypatch.setattr(MemorySession, "lease_left", lambda session: 1.0)
            assert await asyncio.wait_for(told.get(), 5) == ("regained", True)
            assert metadata.broker_epoch == epoch

    asyncio.run(main())


class Away(Faults):
    """Answers no request, for longer than a lease lasts, once switched on."""

    def __init__(self, delayed_s: float) -> None:
        self.delayed_s = delayed_s
        self.away = False

    def delay_s(self) -> float:
        return self.delayed_s if self.away else 0.0

    def fate(self) -> Fate:
        return Fate.REQUEST_LOST if self.away else Fate.ANSWERED


@pytest.mark.parametrize("delayed_s", [0.001, 3600.0], ids=["its answers are lost", "it does not answer"])
@pytest.mark.parametrize("ends", ["its lease", "its session"])
def test_who_waits_for_the_newest_image_is_told_when_this_broker_leads_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delayed_s: float, ends: str
) -> None:
    """A question about its leadership waited for half a minute, and the next one as long again."""
    monkeypatch.setattr(metadata_module, "LOOKS_PER_LEASE", 6000)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            faults = Away(delayed_s)
            metadata = await world.broker(1, faults=faults)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.catch_up()
            lost = asyncio.Event()
            metadata.on_session_lost = lost.set
            faults.away = True
            asking = asyncio.ensure_future(metadata.catch_up())
            await asyncio.wait([asking], timeout=0.1)
            assert not asking.done()
            if ends == "its lease":
                monkeypatch.setattr(MemorySession, "lease_left", lambda session: -1.0)
            else:
                world.server.end_session(metadata.image.brokers[1].session)
            async with asyncio.timeout(5):
                await lost.wait()
                for question in (asking, metadata.catch_up()):
                    with pytest.raises(MetadataLost):
                        await question

    asyncio.run(main())


def test_to_wait_for_the_newest_image_commits_nothing(tmp_path: Path) -> None:
    """Brokers that asked so at the same time kept each other, and the controller, from committing."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata, other = [await world.broker(number) for number in (1, 2)]
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            await other.execute(new_topics("orders"))
            number = world.server.number
            for _ in range(3):
                await metadata.catch_up()
            assert metadata.image.number == world.server.number == number
            assert "orders" in metadata.image.topics

    asyncio.run(main())


def test_a_store_that_has_gone_back_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.execute(new_topics("orders"))
            regained = asyncio.Event()
            metadata.on_session_regained = regained.set
            number, world.server.number = world.server.number, 0
            world.server.end_session(metadata.image.brokers[1].session)
            await asyncio.sleep(0.05)
            assert not metadata.in_session
            assert "orders" in metadata.image.topics
            world.server.number = number + 100
            await asyncio.wait_for(regained.wait(), 5)

    asyncio.run(main())


def test_who_waits_for_its_id_is_told_when_the_session_ends(tmp_path: Path) -> None:
    """Its image changes no more: it would wait its whole patience, and then say that the id is taken."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            other = await world.broker(1)
            await other.register(ENDPOINTS, rack=None, closed_life=None)
            metadata = await world.broker(1)
            waits = asyncio.create_task(metadata.wait_for_id())
            await asyncio.sleep(0.01)
            assert metadata._session is not None
            world.server.end_session(metadata._session.id)
            with pytest.raises(MetadataLost) as lost:
                await asyncio.wait_for(waits, 5)
            assert lost.value.error is ErrorCode.NOT_CONTROLLER

    asyncio.run(main())


def test_a_session_that_was_left_is_not_kept_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is registered in it would stand in this broker's own way."""
    monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)
    refused: list[str] = []
    register = ClusterMetadata._register

    async def not_at_first(metadata: ClusterMetadata) -> Refusal | None:
        await register(metadata)
        if len(refused) < 3:
            refused.append("the answer was lost")
            raise MetadataLost(ErrorCode.REQUEST_TIMED_OUT, refused[-1])
        return None

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker(1)
            await metadata.register(ENDPOINTS, rack=None, closed_life=None, directories=("folder",))
            regained = asyncio.Event()
            metadata.on_session_regained = regained.set
            monkeypatch.setattr(ClusterMetadata, "_register", not_at_first)
            world.server.end_session(metadata.image.brokers[1].session)
            await asyncio.wait_for(regained.wait(), 5)
            assert len(world.server._expiry) == 1

    asyncio.run(main())


@pytest.mark.parametrize("is_left", [False, True], ids=["which lives", "which has left"])
def test_a_process_does_not_join_again_after_another_one_of_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    """With a copy of its data folder the other one took the id, and they took it from each other for ever: what each
    acknowledged the other one lacked.
    """
    monkeypatch.setattr(metadata_module, "REJOIN_S_MIN", 0.001)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata, copy = await world.broker(1), await world.broker(1)
            displaced = asyncio.Event()
            metadata.on_displaced = displaced.set
            await metadata.register(ENDPOINTS, rack=None, closed_life=None, directories=("folder",))
            if is_left:
                world.server.end_session(metadata.image.brokers[1].session)
            epoch = await copy.register(ENDPOINTS, rack=None, closed_life=None, directories=("folder",))
            if is_left:
                await copy.close()
            await asyncio.wait_for(displaced.wait(), 10)
            assert metadata.is_displaced and not metadata.has_session
            left = load(world.server.snapshot())
            assert left.lives[1].epoch == epoch
            assert {broker.epoch for broker in left.brokers.values()} == (set() if is_left else {epoch})

    asyncio.run(main())


def test_a_process_on_a_copy_of_the_folder_of_who_is_registered_says_so_and_waits_for_its_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata, copy = await world.broker(1), await world.broker(1)
            first = await metadata.register(ENDPOINTS, rack=None, closed_life=None, directories=("one",), place="here")
            joining = asyncio.ensure_future(
                copy.register(ENDPOINTS, rack=None, closed_life=None, directories=("one",), place="there")
            )
            async with asyncio.timeout(10):
                for _ in iter(lambda: "id taken" in caplog.text, True):
                    await asyncio.sleep(0.01)
            assert not joining.done() and metadata.in_session
            assert load(world.server.snapshot()).brokers[1].epoch == first
            await metadata.close()
            assert await asyncio.wait_for(joining, 10) == first + 1
            await copy.close()

    asyncio.run(main())


def hears(metadata: ClusterMetadata) -> asyncio.Event:
    """While this event is not set, it hears of no change."""
    told, take = asyncio.Event(), metadata._take

    async def later(change: Change) -> None:
        await told.wait()
        await take(change)

    metadata._take = later  # type: ignore[method-assign]
    told.set()
    return told


async def join(metadata: ClusterMetadata, *, waits: bool = False) -> int:
    if waits:
        await metadata.wait_for_id()
    return await metadata.register(ENDPOINTS, rack=None, closed_life=None)


@pytest.mark.parametrize("late", [Result.EXPIRED, Result.UNKNOWN])
def test_a_late_answer_to_a_session_that_is_over_leaves_the_next_one_alone(tmp_path: Path, late: Result) -> None:
    """The broker lost its leadership a second time."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            first = await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            session = metadata._session
            assert session is not None
            answers, commit, asked = asyncio.Event(), session.commit, asyncio.Event()

            async def answered_late(*ops: Op) -> tuple[Result, int]:
                if asked.is_set():
                    return await commit(*ops)
                asked.set()
                await answers.wait()
                return late, 0

            session.commit = answered_late  # type: ignore[method-assign]
            creating = asyncio.ensure_future(metadata.execute(new_topics("orders")))
            await asked.wait()
            world.server.end_session(session.id)
            await until(lambda: metadata.in_session and metadata._session is not session)
            answers.set()
            with pytest.raises(MetadataLost, match="is over"):
                await creating
            assert metadata.in_session and metadata.sessions_lost == 1 and metadata.broker_epoch == first + 1
            await metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True], ids=["as it registers", "with an empty folder"])
def test_who_hears_late_that_a_former_session_is_over_does_not_take_its_own_id_for_taken(
    tmp_path: Path, waits: bool
) -> None:
    """Found by the simulation: the broker ended, though nobody else had its id."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            former, metadata = await world.broker(1), await world.broker(1)
            first = await former.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.catch_up()
            told = hears(metadata)
            told.clear()
            await former.close()
            metadata._session_timeout_s = 0.05
            joining = asyncio.ensure_future(join(metadata, waits=waits))
            await asyncio.wait([joining], timeout=1.0)
            assert not joining.done()
            told.set()
            assert await asyncio.wait_for(joining, 10) == first + 1
            await metadata.close()

    asyncio.run(main())


def test_who_asks_whether_its_id_is_taken_asks_again_in_the_next_session(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            former, metadata = await world.broker(1), await world.broker(1)
            first = await former.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.catch_up()
            told = hears(metadata)
            told.clear()
            await former.execute(new_topics("orders"))
            metadata._session_timeout_s = 0.3
            joining = asyncio.ensure_future(join(metadata))
            await until(lambda: bool(metadata._waiting))  # it has asked, and waits for what it has not heard of
            session, number = metadata._session, world.server.number
            assert session is not None
            told.set()
            world.server.end_session(session.id)
            await until(lambda: metadata._session not in (None, session) and metadata.image.number == number + 1)
            told.clear()
            await former.close()
            await asyncio.wait([joining], timeout=1.0)
            assert not joining.done()
            told.set()
            assert await asyncio.wait_for(joining, 10) == first + 1
            await metadata.close()

    asyncio.run(main())


@pytest.mark.parametrize("is_out", [False, True], ids=["", "and its lease is out"])
@pytest.mark.parametrize("waits", [False, True], ids=["as it registers", "with an empty folder"])
def test_who_can_t_ask_whether_its_id_is_taken_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool, is_out: bool
) -> None:
    """It said that its id was taken, though nobody had it."""
    monkeypatch.setattr(metadata_module, "PATIENCE_S", 0.05)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            faults = Away(0.001)
            former, metadata = await world.broker(1), await world.broker(1, faults=faults)
            await former.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.catch_up()
            hears(metadata).clear()
            await former.close()
            faults.away = True
            metadata._session_timeout_s = 0.05
            if is_out:
                monkeypatch.setattr(metadata._session, "lease_left", lambda: -1.0)
            with pytest.raises(MetadataLost, match="has not answered"):
                await asyncio.wait_for(join(metadata, waits=waits), 3)

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True], ids=["as it registers", "with an empty folder"])
def test_who_asks_whether_its_id_is_taken_waits_for_a_store_that_is_silent_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Found by the simulation: the start ended, as the lease was out at that moment."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            faults = Away(0.001)
            former, metadata = await world.broker(1), await world.broker(1, faults=faults)
            first = await former.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.catch_up()
            told = hears(metadata)
            told.clear()
            await former.close()
            faults.away = True
            metadata._session_timeout_s = 0.05
            assert metadata._session is not None
            with monkeypatch.context() as patch:
                patch.setattr(metadata._session, "lease_left", lambda: -1.0)
                joining = asyncio.ensure_future(join(metadata, waits=waits))
                await asyncio.wait([joining], timeout=0.5)
                assert not joining.done()
            faults.away = False
            told.set()
            assert await asyncio.wait_for(joining, 10) == first + 1
            await metadata.close()

    asyncio.run(main())


def test_who_can_t_register_because_the_store_is_silent_says_so_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "PATIENCE_S", 0.05)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            faults = Away(0.001)
            metadata = await world.broker(1, faults=faults)
            metadata._session_timeout_s = 0.05
            faults.away = True
            with pytest.raises(MetadataLost, match="does not answer"):
                await asyncio.wait_for(metadata.register(ENDPOINTS, rack=None, closed_life=None), 3)

    asyncio.run(main())


class Distant:
    """A session of a ledger that several share. What is asked takes a while."""

    def __init__(self, records: list[bytes], living: list[int], way_s: float) -> None:
        self.id = len(living)
        living.append(self.id)
        self._records, self._living, self._way_s = records, living, way_s

    def lease_left(self) -> float:
        return 1.0

    async def newest(self) -> int:
        await asyncio.sleep(self._way_s)
        return len(self._records)

    confirmed_newest = newest

    async def append(self, number: int, record: bytes) -> AppendOutcome:
        await asyncio.sleep(self._way_s)
        if number != len(self._records) + 1:
            return AppendOutcome.BEHIND
        self._records.append(record)
        return AppendOutcome.OK

    async def read(self, after: int) -> list[bytes]:
        await asyncio.sleep(self._way_s)
        return self._records[after:]

    async def living(self) -> frozenset[int]:
        return frozenset(self._living)

    async def set_base(self, number: int, base: bytes, *, drop_to: int) -> None:
        return

    async def hint(self) -> bool:
        await asyncio.sleep(0.01)
        return True

    async def close(self) -> None:
        self._living.remove(self.id)


def test_commits_that_came_slowly_are_followed_by_no_rest(tmp_path: Path) -> None:
    """Every 300th command of a quiet cluster waited for a second."""

    async def main() -> None:
        async with cluster(tmp_path) as world:
            first, second = await world.broker(1), await world.broker(2)
            for each in (first, second):
                await each.register(ENDPOINTS, rack=None, closed_life=None)
            while first.image.number % ROUND != ROUND - 1:
                await first.execute(AllocateProducerIds())
            first._round_began_s -= 360
            began_s = time.monotonic()
            for _ in range(3):
                await first.execute(AllocateProducerIds())
            assert time.monotonic() - began_s < REST_S_MAX / 2

    asyncio.run(main())


def test_a_broker_far_from_the_store_gets_its_change_in_though_others_change_something_without_end(
    tmp_path: Path,
) -> None:
    """Each of its commits came after another one, for as long as that lasted."""

    async def main() -> None:
        env = RealEnv(RealDisk(str(tmp_path)))
        records: list[bytes] = []
        living: list[int] = []

        async def broker(broker_id: int, way_s: float) -> ClusterMetadata:
            async def connect(_timeout_s: float) -> LedgerSession:
                return cast(LedgerSession, Distant(records, living, way_s))

            metadata = ClusterMetadata(LedgerStore(connect, env), env, session_timeout_s=SESSION_S)
            await metadata.start(broker_id=broker_id, cluster_id="the-cluster")
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            return metadata

        near, nearer, far = await broker(1, 0.0002), await broker(2, 0.0), await broker(3, 0.002)

        async def without_end(metadata: ClusterMetadata) -> None:
            while True:
                await metadata.execute(AllocateProducerIds())

        storm = [asyncio.ensure_future(without_end(each)) for each in (near, nearer)]
        await asyncio.sleep(0.1)
        for topic in range(3):
            async with asyncio.timeout(10):
                await far.execute(new_topics(f"t{topic}", start=topic))
        for each in storm:
            assert not each.done()
            each.cancel()
        await env.tasks.cancel_all()

    asyncio.run(main())


def test_many_proposals_of_in_sync_sets_are_one_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            one, two = await world.broker(1), await world.broker(2)
            epochs = [await broker.register(ENDPOINTS, rack=None, closed_life=None) for broker in (one, two)]
            topic = NewTopic("orders", topic_id(1), 20, 2)
            await one.execute(CreateTopics((topic,), 1, 1))
            led = [index for index, state in one.image.topics["orders"].partitions.items() if state.leader == 1]
            before = world.server.number
            alone = ((1, epochs[0]),)
            shrunk = [AlterPartition(topic_id(1), index, 1, epochs[0], 0, 0, alone) for index in (*led, led[0])]
            together = Together(tuple(shrunk))
            replies = await one.execute(together)
            assert [reply.isr for reply in replies[:-1] if isinstance(reply, PartitionState)] == [(1,)] * len(led)
            assert isinstance(replies[-1], Refusal) and replies[-1].error is ErrorCode.INVALID_UPDATE_VERSION
            assert world.server.number - before == 1

    asyncio.run(main())


def test_stopping_answers_what_still_waits(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            waiting = [asyncio.ensure_future(metadata.execute(AllocateProducerIds())) for _ in range(3)]
            await asyncio.sleep(0)
            await metadata.close()
            done, pending = await asyncio.wait(waiting, timeout=5)
            assert not pending
            for task in done:
                assert task.cancelled() or isinstance(task.exception(), MetadataLost) or task.result() is not None

    asyncio.run(main())


def test_a_topic_is_found_by_its_id(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            await metadata.register(ENDPOINTS, rack=None, closed_life=None)
            await metadata.execute(new_topics("orders"))
            assert metadata.topic_name(topic_id(1)) == "orders"
            assert metadata.topic_name(TopicId(bytes(16))) is None

    asyncio.run(main())


def test_a_change_that_two_tasks_take_in_turns_is_heard_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task of a session that is over may still follow when the next one does."""
    monkeypatch.setattr(image_module, "APPLIED_A_TURN", 1)

    async def main() -> None:
        async with cluster(tmp_path) as world:
            metadata = await world.broker()
            heard: list[Delta] = []
            metadata.subscribe(heard.append)
            entries = tuple((group_config_key(f"group {n}"), Entry(encode_config({}), 0)) for n in range(5))
            change = Change(metadata.image.number + 1, entries)
            await asyncio.gather(metadata._take(change), metadata._take(change))
            assert [delta.new.number for delta in heard] == [change.number]
            assert len(metadata.image.group_configs) == 5
            await metadata.close()

    asyncio.run(main())
