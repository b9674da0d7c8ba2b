"""What the metadata does to the partitions that a broker leads is counted by that broker, and by no other."""

from pathlib import Path

import pytest

from log.ids import TopicId, TopicPartition
from log.steps import done_at_once
from service.broker.tally import COUNTED_A_TURN, FLAPS, FLAPS_WITHIN_MS, LeadershipTally
from service.cluster.image import Delta, Image, PartitionState, Topic
from tests.service.broker.cluster_stage import ClusterStage, on_cluster_stage, until

PLACE = TopicPartition("orders", 0)
CALM = PartitionState(replicas=(1, 2, 3), isr=(1, 2, 3), leader=1, leader_epoch=4)
MOVING = PartitionState(
    replicas=(1, 2, 3), isr=(2, 3), leader=3, leader_epoch=4, partition_epoch=7, adding=(1,), removing=(3,)
)


OLD, NEW = TopicId(bytes(16)), TopicId(b"another topic id")


def image(state: PartitionState, topic_id: TopicId = OLD) -> Image:
    return Image(topics={"orders": Topic("orders", topic_id, 0, {}, {0: state})})


class Clock:
    now_ms = 0

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms


def heard(old: Image, new: Image) -> LeadershipTally:
    tally = LeadershipTally(lambda: 1, Clock())
    done_at_once(tally.heard(Delta(old, new, partitions=(PLACE,))))
    return tally


def counts(tally: LeadershipTally) -> tuple[int, int, int, int]:
    return tally.shrunk, tally.grown, tally.elected, tally.unclean


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (CALM, CALM._replace(isr=(1, 2)), (1, 0, 0, 0)),
        (CALM._replace(isr=(1, 2)), CALM, (0, 1, 0, 0)),
        (CALM._replace(isr=(1, 2)), CALM._replace(isr=(1, 3)), (1, 1, 0, 0)),
        (CALM, CALM._replace(leader=2, leader_epoch=5, isr=(2, 3)), (0, 0, 0, 0)),
        (CALM._replace(leader=2), CALM._replace(leader_epoch=5, isr=(1, 3)), (1, 0, 1, 0)),
        (CALM._replace(leader=-1, isr=(2,)), CALM._replace(leader_epoch=5, isr=(1,)), (1, 1, 0, 1)),
        (CALM._replace(leader=-1, isr=(), eligible=(1,)), CALM._replace(leader_epoch=5, isr=(1,)), (0, 1, 1, 0)),
        (MOVING, CALM._replace(replicas=(1, 2), leader_epoch=5, isr=(1, 2)), (1, 1, 1, 0)),
        (MOVING, MOVING._replace(leader=1, leader_epoch=5, isr=(1,)), (1, 1, 0, 1)),
    ],
    ids=[
        "fell out",
        "came back",
        "one for another",
        "another leads",
        "elected",
        "elected out of sync",
        "elected as eligible",
        "moved here",
        "elected out of sync while it is moved here",
    ],
)
def test_what_happened_is_counted_where_it_is_led(
    old: PartitionState, new: PartitionState, expected: tuple[int, int, int, int]
) -> None:
    assert counts(heard(image(old), image(new))) == expected


def test_a_topic_made_again_is_no_election() -> None:
    new = image(CALM._replace(leader_epoch=0), NEW)
    assert counts(heard(image(CALM._replace(isr=(2,))), new)) == (0, 0, 0, 0)


def test_an_in_sync_set_flaps_that_lost_a_member_three_times_lately() -> None:
    clock = Clock()
    tally = LeadershipTally(lambda: 1, clock)
    shrinks = Delta(image(CALM), image(CALM._replace(isr=(1, 2))), partitions=(PLACE,))
    for clock.now_ms in range(FLAPS - 1):
        done_at_once(tally.heard(shrinks))
    clock.now_ms = FLAPS
    assert tally.flapping() == 0
    done_at_once(tally.heard(shrinks))
    assert tally.flapping() == 1
    clock.now_ms = FLAPS_WITHIN_MS
    assert tally.flapping() == 1
    clock.now_ms = FLAPS_WITHIN_MS + 1
    assert tally.flapping() == 0


def test_who_leads_without_having_been_in_sync_says_so(tmp_path: Path) -> None:
    async def scene(stage: ClusterStage) -> None:
        await stage.create(1, 2, unclean_leader_election_enable="true")
        await stage.write("both have it")
        await stage.kill(2)
        await stage.in_sync(1)
        assert counts(stage.broker(1).leaderships)[0] == 1
        await stage.write("one has it")
        await stage.kill(1)
        await until(lambda: stage.broker(3).metadata.image.partition(PLACE) is not None)
        await stage.start(2)
        await until(lambda: stage.state().leader == 2)
        assert counts(stage.broker(2).leaderships)[2:] == (0, 1)
        assert counts(stage.broker(3).leaderships) == (0, 0, 0, 0)

    on_cluster_stage(tmp_path, scene)


def test_a_change_of_very_many_partitions_is_counted_in_turns() -> None:
    many = range(3 * COUNTED_A_TURN)
    old, new = (
        Image(topics={"orders": Topic("orders", OLD, 0, {}, dict.fromkeys(many, state))})
        for state in (CALM, CALM._replace(isr=(1, 2)))
    )
    tally = LeadershipTally(lambda: 1, Clock())
    counting = tally.heard(Delta(old, new, partitions=tuple(TopicPartition("orders", index) for index in many)))
    assert sum(1 for _ in counting) == 3
    assert tally.shrunk == len(many)
