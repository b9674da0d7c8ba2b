"""The topics as groups see them: what is new to a group is told by another version, and nothing else is."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from log.ids import TopicId
from service.broker.topic_view import ImageTopics
from service.cluster.image import Image, PartitionState, Topic

LED = PartitionState((1,), (1,), 1, 0)


def test_the_version_is_that_of_the_last_change_that_groups_see() -> None:
    a = Topic("a", TopicId(b"a" * 16), 0, {}, {0: LED, 1: LED})
    first = Image(number=5, topics={"a": a})
    metadata: Any = SimpleNamespace(image=Image())
    view = ImageTopics(metadata)
    unread = view.version

    def version(image: Image) -> int:
        metadata.image = image
        return view.version

    assert unread < version(first) == 5
    assert version(replace(first, number=6)) == 5
    other_leader = replace(a, partitions={0: LED._replace(leader=2, leader_epoch=1), 1: LED})
    assert version(replace(first, number=7, topics={"a": other_leader})) == 5
    grown = replace(a, partitions={0: LED, 1: LED, 2: LED})
    assert version(replace(first, number=8, topics={"a": grown})) == 8
    made_again = replace(grown, id=TopicId(b"b" * 16))
    assert version(replace(first, number=9, topics={"a": made_again})) == 9
    assert version(replace(first, number=10, topics={"b": replace(made_again, name="b")})) == 10
    assert version(replace(first, number=11, topics={})) == 11
