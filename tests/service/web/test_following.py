"""Streams of very many clients: what those at the same place read together, and what ends each of them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import pytest

from log.batch import build_batch
from log.compress import Codec
from log.copies import Buffer
from log.ids import TopicId, TopicPartition
from service.cluster.image import Delta, Image, PartitionState, Topic
from service.web import following
from service.web.app import LINE_BYTES_MAX
from service.web.fetching import Lens, Piece
from service.web.following import (
    TOLD_A_TURN,
    Cursor,
    Place,
    Portion,
    SharedReading,
    Stream,
    read_cursor,
    refuse_wide,
)
from service.web.holding import Holder, Holding
from service.web.problems import Problem
from service.wire.error_codes import ErrorCode
from tests.service.web.kit import turns_of

ID = TopicId(b"t" * 16)
PLACE = Place(b"topic", 1, ((TopicPartition("orders", 0), 7),), ())
NEXT = PLACE._replace(positions=((TopicPartition("orders", 0), 8),))
FOUND = [Portion(0, [(7, b"{}")], 8, 2)]
WHOLE = bytes(build_batch([(None, b"{}", (), 1000)]))
DAMAGED = bytes(1000)


def played(scene: Callable[[SharedReading], Awaitable[None]]) -> None:
    async def main() -> None:
        reading = SharedReading()
        await scene(reading)
        assert not reading._waiting, "nobody waits where nobody reads"

    asyncio.run(main())


def joins(reading: SharedReading, wait_s: float = 60.0) -> asyncio.Task[list[Portion] | None]:
    return asyncio.ensure_future(reading.join(PLACE, wait_s))


def test_one_reads_and_all_get_it() -> None:
    async def scene(reading: SharedReading) -> None:
        assert await reading.join(PLACE, 60) is None, "the first one reads"
        others = [joins(reading) for _ in range(5)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in others)
        reading.leave(PLACE, FOUND)
        assert [await each for each in others] == [FOUND] * 5
        assert await reading.join(PLACE, 60) == FOUND, "who comes late, too"
        assert reading.known(NEXT) is None

    played(scene)


def test_very_many_that_wait_are_told_in_turns() -> None:
    """All 1,300 streams of a topic sent in one turn, which held the loop for a tenth of a second."""

    async def scene(reading: SharedReading) -> None:
        assert await reading.join(PLACE, 60) is None
        others = [joins(reading) for _ in range(5 * TOLD_A_TURN)]
        await asyncio.sleep(0)
        reading.leave(PLACE, FOUND)
        done = [0]
        while not all(each.done() for each in others):
            await asyncio.sleep(0)
            done.append(sum(each.done() for each in others))
        assert max(now - before for before, now in pairwise(done)) == TOLD_A_TURN
        assert [await each for each in others] == [FOUND] * len(others)

    played(scene)


def test_when_one_finds_nothing_or_fails_the_next_one_reads() -> None:
    async def scene(reading: SharedReading) -> None:
        assert await reading.join(PLACE, 60) is None
        second, third = joins(reading), joins(reading)
        await asyncio.sleep(0)
        reading.leave(PLACE, [])
        assert await second is None
        assert not third.done()
        reading.leave(PLACE, [])
        assert await third is None
        reading.leave(PLACE, [])

    played(scene)


def test_who_goes_as_its_turn_to_read_comes_hands_it_on() -> None:
    async def scene(reading: SharedReading) -> None:
        assert await reading.join(PLACE, 60) is None
        second, third = joins(reading), joins(reading)
        await asyncio.sleep(0)
        reading.leave(PLACE, [])
        second.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await second
        assert await third is None
        reading.leave(PLACE, FOUND)

    played(scene)


def test_who_waited_long_enough_goes_and_who_is_cancelled_is_forgotten() -> None:
    async def scene(reading: SharedReading) -> None:
        assert await reading.join(PLACE, 60) is None
        gone = joins(reading)
        await asyncio.sleep(0)
        gone.cancel()
        assert await reading.join(PLACE, 0.001) == []
        reading.leave(PLACE, [])
        assert await reading.join(PLACE, 60) is None, "nobody was left to read"
        reading.leave(PLACE, [])

    played(scene)


def test_what_was_found_is_kept_for_a_moment_and_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(reading: SharedReading) -> None:
        for number in range(10):
            place = PLACE._replace(node=number)
            assert await reading.join(place, 60) is None
            reading.leave(place, [Portion(0, [(7, b"x" * 100)], 8, 100)])
        assert [reading.known(PLACE._replace(node=number)) is not None for number in range(10)] == [False] * 7 + [
            True
        ] * 3
        assert reading._kept_bytes == 600, "as they were read and as they were sent"
        monkeypatch.setattr(following, "KEPT_S", -1.0)
        assert reading.known(PLACE._replace(node=9)) is None, "a log may have lost it since"

    monkeypatch.setattr(following, "KEPT_BYTES", 700)
    played(scene)


def topic_with(partitions: int) -> Topic:
    state = PartitionState((1,), (1,), leader=1, leader_epoch=0)
    return Topic("t", ID, 1, {}, dict.fromkeys(range(partitions), state))


def test_a_change_of_partitions_is_heard_between_the_turn_to_read_and_the_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream read on without the new partitions, for as long as there was nothing new in the old ones."""
    topics = {"t": topic_with(1)}

    async def scene(reading: SharedReading) -> None:
        gateway: Any = SimpleNamespace(
            reading=reading,
            topic=lambda name: topics[name],
            same_topic=lambda name, _: topics[name],
            leader=lambda partition: 1,
        )
        lens, asked = Lens(), asyncio.Event()

        async def fetch(*_: object, **__: object) -> None:
            asked.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(following, "fetch", fetch)
        response: Any = None
        more: Any = {"is_sse": True, "most": following.ALL_THE_TIME, "until": None}
        stream = Stream(gateway, Holder(Holding(1)), response, None, "t", None, Cursor(ID, {0: 7}), lens, **more)
        place = stream._place(1, {TopicPartition("t", 0): 7})
        assert await reading.join(place, 60) is None
        step = asyncio.ensure_future(stream._step())
        await asyncio.sleep(0)
        reading.leave(place, [])  # it is the stream's turn now
        before = Image(topics=dict(topics))
        topics["t"] = topic_with(2)
        reading.heard(Delta(before, Image(topics=dict(topics)), topics=("t",)))
        await asyncio.wait([step], timeout=1)
        assert (step.done(), asked.is_set()) == (True, False)
        assert stream._partitions() == [0, 1]

    played(scene)


def test_a_client_that_goes_while_it_has_not_taken_all_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each such client was an error in the log: "Task exception was never retrieved"."""
    monkeypatch.setattr(following, "STALLED_S", 0.01)
    told: list[dict[str, Any]] = []

    async def scene(_: SharedReading) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        gone = asyncio.Event()

        async def write(_: bytes) -> None:
            await gone.wait()
            raise ConnectionResetError("the client is gone")

        response, transport = Mock(write=write), Mock(get_write_buffer_size=lambda: 1)
        more: Any = {"is_sse": True, "most": following.ALL_THE_TIME, "until": None}
        cursor = Cursor(ID, {0: 7})
        stream = Stream(Mock(), Holder(Holding(1 << 20)), response, transport, "t", None, cursor, Lens(), **more)
        await stream._write(bytes(100_000))
        assert stream._stalled is not None
        gone.set()
        await asyncio.sleep(0.01)
        stream._stalled = None
        del stream
        gc.collect()

    played(scene)
    assert not told, told


def test_well_packed_records_are_not_held_together_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 MB are packed in 2.6 KB, and six times as long as they are shown. All of it was there at once, twice, and was
    joined in one turn of the loop.
    """
    partition = TopicPartition("t", 0)
    data = build_batch([(None, b"\x01" * 50_000, (), 1000)] * 100, codec=Codec.ZSTD)
    data += build_batch([(None, b"%d" % each, (), 1000) for each in range(100)], base_offset=100)
    assert len(data) < following.SHARED_BYTES
    shared, written = list[int](), list[bytes]()

    async def fetch(*_: object, **__: object) -> list[Piece]:
        return [Piece(partition, 0, data=data)]

    async def write(content: bytes) -> None:
        written.append(content)

    monkeypatch.setattr(following, "fetch", fetch)
    leave = SharedReading.leave

    def left(reading: SharedReading, place: Place, found: list[Portion]) -> None:
        shared.append(sum(len(line) for portion in found for _, line in portion.lines))
        leave(reading, place, found)

    monkeypatch.setattr(SharedReading, "leave", left)

    async def scene(reading: SharedReading) -> None:
        env, topic = SimpleNamespace(blocking=asyncio.to_thread), topic_with(1)
        gateway: Any = SimpleNamespace(
            reading=reading, env=env, topic=lambda _: topic, same_topic=lambda _, __: topic, leader=lambda _: 1
        )
        response: Any = SimpleNamespace(write=write)
        transport: Any = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=None)
        more: Any = {"is_sse": False, "most": following.ALL_THE_TIME, "until": None}
        holding, cursor = Holding(1 << 30), Cursor(ID, {0: 0})
        stream = Stream(gateway, Holder(holding), response, transport, "t", None, cursor, Lens(), **more)
        await stream._step()
        assert cursor.offsets == {0: 200}
        assert (shared, holding.bytes) == ([0], 0)
        assert max(map(len, written)) < 2 * following.SHARED_TEXT_BYTES
        offsets = [json.loads(line)["offset"] for line in b"".join(written).splitlines()]
        assert offsets == list(range(200))
        cursor.moved(0, 100)
        await stream._step()
        assert cursor.offsets == {0: 200}
        assert shared[1] > 0, "what is short is shared"

    played(scene)


def test_small_batches_are_sent_together_and_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them was written by itself, 25,000 records a second, and many of them in one turn of the loop: 40 ms."""
    partitions, each_has = 3, 1000
    one = [(None, b"{}", (), 1000)]
    data = b"".join(bytes(build_batch(one, base_offset=offset)) for offset in range(each_has))
    written = list[bytes]()

    async def fetch(*_: object, **__: object) -> list[Piece]:
        return [Piece(TopicPartition("t", index), 0, data=data) for index in range(partitions)]

    async def write(content: bytes) -> None:
        written.append(content)

    monkeypatch.setattr(following, "fetch", fetch)

    async def work() -> None:
        topic = topic_with(partitions)
        gateway: Any = SimpleNamespace(reading=SharedReading(), same_topic=lambda *_: topic, leader=lambda _: 1)
        gateway.topic = lambda _: topic
        response: Any = SimpleNamespace(write=write)
        transport: Any = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=None)
        more: Any = {"is_sse": True, "most": following.ALL_THE_TIME, "until": None}
        cursor = Cursor(ID, dict.fromkeys(range(partitions), 0))
        stream = Stream(gateway, Holder(Holding(1 << 30)), response, transport, "t", None, cursor, Lens(), **more)
        await stream._step()
        assert cursor.offsets == dict.fromkeys(range(partitions), each_has)

    assert turns_of(work()) > 12
    told = b"".join(written)
    assert told.count(b"event: record") == partitions * each_has
    assert len(written) <= 1 + len(told) // following.GATHERED_BYTES
    assert max(map(len, written)) < 2 * following.TOLD_BYTES


@pytest.mark.parametrize("most", [10, 1])
def test_what_is_before_damage_is_sent(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """A stream that has sent all that it was to send ends as it should, and not with what is wrong behind that."""
    partitions = [TopicPartition("t", index) for index in range(2)]
    ahead = b"" if most == 1 else WHOLE
    written = list[bytes]()

    async def fetch(_: object, __: int, asked: dict[TopicPartition, int], *___: object, **____: object) -> list[Piece]:
        data = {partitions[0]: WHOLE, partitions[1]: ahead + DAMAGED}
        return [Piece(each, 0, data=data[each]) for each in asked]

    async def write(content: bytes) -> None:
        written.append(content)

    monkeypatch.setattr(following, "fetch", fetch)

    async def scene(reading: SharedReading) -> None:
        topic = topic_with(2)
        gateway: Any = SimpleNamespace(reading=reading, same_topic=lambda *_: topic, leader=lambda _: 1)
        gateway.topic = lambda _: topic
        transport: Any = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=None)
        more: Any = {"is_sse": True, "most": most, "until": None}
        cursor = Cursor(ID, {0: 0, 1: 0})
        response: Any = SimpleNamespace(write=write)
        stream = Stream(gateway, Holder(Holding(1 << 30)), response, transport, "t", None, cursor, Lens(), **more)
        with nullcontext() if most == 1 else pytest.raises(Problem):
            await stream._step()
        assert cursor.offsets == {0: 1, 1: most > 1}
        assert b"".join(written).count(b"event: record") == min(most, 2)

    played(scene)


def streamed(
    monkeypatch: pytest.MonkeyPatch,
    partitions: int,
    leaders: Sequence[Callable[[], Awaitable[list[Piece]]]],
    scene: Callable[[Stream, list[bytes]], Awaitable[None]],
    most: int = following.ALL_THE_TIME,
    until: dict[int, int] | None = None,
) -> None:
    """Play a scene with a stream and what it has written. Each leader leads one partition, the last all others."""
    written = list[bytes]()

    async def fetch(_: object, node: int, asked: dict[TopicPartition, int], *__: object, **___: object) -> list[Piece]:
        return [piece for piece in await leaders[node]() if piece.partition in asked]

    async def write(content: bytes) -> None:
        written.append(content)

    monkeypatch.setattr(following, "fetch", fetch)

    async def with_stream(reading: SharedReading) -> None:
        topic = topic_with(partitions)
        gateway: Any = SimpleNamespace(reading=reading, topic=lambda _: topic, same_topic=lambda *_: topic)
        gateway.leader = lambda partition: min(partition.partition, max(len(leaders) - 1, 0))
        transport: Any = SimpleNamespace(get_write_buffer_size=lambda: 0, abort=None)
        response: Any = SimpleNamespace(write=write)
        more: Any = {"is_sse": False, "most": most, "until": until}
        cursor = Cursor(ID, dict.fromkeys(range(partitions), 0))
        stream = Stream(gateway, Holder(Holding(1 << 30)), response, transport, "t", None, cursor, Lens(), **more)
        await scene(stream, written)

    played(with_stream)


@pytest.mark.parametrize("error", [0, ErrorCode.UNKNOWN_SERVER_ERROR])
@pytest.mark.parametrize("damaged", [0, 1, 2])
@pytest.mark.parametrize("most", [following.ALL_THE_TIME, 100], ids=["together", "alone"])
def test_what_is_wrong_in_one_partition_is_told_behind_what_others_have(
    monkeypatch: pytest.MonkeyPatch, most: int, damaged: int, error: int
) -> None:
    """Nothing of the others was sent, or only of those before it. Its client came back, and so it was again."""

    async def found() -> list[Piece]:
        pieces = [Piece(TopicPartition("t", index), 0, data=WHOLE) for index in range(3)]
        pieces[damaged] = Piece(TopicPartition("t", damaged), error, data=b"" if error else DAMAGED)
        return pieces

    async def scene(stream: Stream, written: list[bytes]) -> None:
        with pytest.raises(Problem) as failure:
            await stream.run()
        await stream.failed(failure.value)
        *records, end = [json.loads(line) for line in b"".join(written).splitlines()]
        assert sorted(each["partition"] for each in records) == sorted({0, 1, 2} - {damaged})
        assert end["error"]["type"] == "/problems/server-error"
        assert read_cursor(end["error"]["cursor"], ID) == {index: int(index != damaged) for index in range(3)}
        assert stream._held.holder.bytes == 0

    streamed(monkeypatch, 3, [found], scene, most)


@pytest.mark.parametrize("most", [following.ALL_THE_TIME, 100], ids=["together", "alone"])
def test_damage_that_fills_the_answers_of_a_leader_is_told_behind_what_its_other_partitions_have(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A leader gives no more of others than what there is room for behind it: they were never sent."""
    partitions = [TopicPartition("t", index) for index in range(3)]
    waits: list[int] = []

    async def fetch(
        _: object, __: int, asked: dict[TopicPartition, int], *___: object, wait_ms: int, **____: object
    ) -> list[Piece]:
        waits.append(wait_ms)
        first = next(iter(asked))
        return [Piece(each, 0, data=b"") for each in asked if each != first] + [
            Piece(first, 0, data=WHOLE if first == partitions[2] else DAMAGED)
        ]

    async def scene(stream: Stream, written: list[bytes]) -> None:
        monkeypatch.setattr(following, "fetch", fetch)
        with pytest.raises(Problem, match="t-0 is damaged"):
            await stream.run()
        assert [json.loads(line)["partition"] for line in b"".join(written).splitlines()] == [2]
        assert waits[1:] == [0, 0], "damage is told at once where others have nothing"
        assert stream._held.holder.bytes == 0

    streamed(monkeypatch, 3, [], scene, most)


def test_what_is_wrong_at_one_leader_is_told_behind_what_others_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of the damaged partition was the first to answer, each time."""

    async def at_once() -> list[Piece]:
        return [Piece(TopicPartition("t", 0), 0, data=DAMAGED)]

    async def soon() -> list[Piece]:
        await asyncio.sleep(0.05)
        return [Piece(TopicPartition("t", 1), 0, data=WHOLE)]

    async def scene(stream: Stream, written: list[bytes]) -> None:
        with pytest.raises(Problem):
            await stream.run()
        assert b"".join(written).count(b'"offset":0') == 1
        assert stream._cursor.offsets == {0: 0, 1: 1}

    streamed(monkeypatch, 2, [at_once, soon], scene)


def test_what_is_wrong_behind_the_end_of_a_stream_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was: of what had been appended since, also while other partitions were read still."""
    answers = iter([WHOLE + DAMAGED, WHOLE])

    async def found() -> list[Piece]:
        data = next(answers)
        return [Piece(TopicPartition("t", int(data == WHOLE)), 0, data=data)]

    async def scene(stream: Stream, written: list[bytes]) -> None:
        await stream.run()
        *records, end = [json.loads(line) for line in b"".join(written).splitlines()]
        assert [each["partition"] for each in records] == [0, 1]
        assert read_cursor(end["end"]["cursor"], ID) == {0: 1, 1: 1}

    streamed(monkeypatch, 2, [found], scene, until={0: 1, 1: 1})


def test_what_is_wrong_at_one_leader_is_not_told_once_all_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream was to send one record, and had sent it."""

    async def at_once() -> list[Piece]:
        return [Piece(TopicPartition("t", 0), 0, data=DAMAGED)]

    async def soon() -> list[Piece]:
        await asyncio.sleep(0.05)
        return [Piece(TopicPartition("t", 1), 0, data=WHOLE)]

    async def scene(stream: Stream, written: list[bytes]) -> None:
        await stream.run()
        assert [list(json.loads(line))[-1] for line in b"".join(written).splitlines()] == ["cursor", "end"]

    streamed(monkeypatch, 2, [at_once, soon], scene, most=1)


def test_what_was_read_does_not_wait_for_leaders_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was a pause for each of their partitions: 5 s, for 250 of them."""

    async def found() -> list[Piece]:
        moved = [Piece(TopicPartition("t", index), ErrorCode.NOT_LEADER_OR_FOLLOWER) for index in range(100)]
        return [*moved, Piece(TopicPartition("t", 100), 0, data=WHOLE)]

    async def scene(stream: Stream, written: list[bytes]) -> None:
        step = asyncio.ensure_future(stream._step())
        for _ in range(20):
            await asyncio.sleep(0)
        assert b"".join(written).count(b'"offset":0') == 1
        assert not step.done(), "it is not asked again at once"
        await asyncio.wait_for(step, 1)

    streamed(monkeypatch, 101, [found], scene)


def test_nothing_new_is_not_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream to which nothing had come for 15 s found that in what was kept, again and again: for as long as it was
    kept, the loop stood still.
    """
    asked, looked = [0], [0]

    async def nothing_and_then_one() -> list[Piece]:
        asked[0] += 1
        await asyncio.sleep(0)
        return [Piece(TopicPartition("t", index), 0, data=WHOLE if index < asked[0] - 2 else b"") for index in range(2)]

    known = SharedReading.known

    def looks(reading: SharedReading, place: Place) -> list[Portion] | None:
        looked[0] += 1
        assert looked[0] < 20, "it goes round in circles"
        return known(reading, place)

    async def scene(stream: Stream, written: list[bytes]) -> None:
        monkeypatch.setattr(SharedReading, "known", looks)
        for steps in (1, 2):
            await stream._step()
            assert asked == [steps]
        await stream._step()
        assert asked == [3]
        assert b"".join(written).count(b'"offset":0') == 1
        assert stream._cursor.offsets == {0: 1, 1: 0}

    streamed(monkeypatch, 2, [nothing_and_then_one], scene)


@pytest.mark.parametrize("is_sse", [True, False])
def test_what_is_read_together_is_written_once_for_all_at_the_same_cursor(
    monkeypatch: pytest.MonkeyPatch, *, is_sse: bool
) -> None:
    """500 streams wrote the same text 500 times. One that is elsewhere in another partition has a text of its own."""
    built = list[str]()
    told_of = Stream._told_of

    def count(stream: Stream, portion: Portion) -> list[Buffer]:
        built.append(stream._cursor.text)
        return told_of(stream, portion)

    async def told(others: Sequence[int]) -> list[tuple[list[Buffer], str, str]]:
        portion = Portion(0, [(7, b'{"a":1}'), (9, b'{"b":2}')], 12, 20)
        found = []
        for other in others:
            nothing, holder, cursor = Mock(), Holder(Holding(1 << 30)), Cursor(ID, {0: 7, 1: other})
            more: Any = {"is_sse": is_sse, "most": following.ALL_THE_TIME, "until": None}
            stream = Stream(nothing, holder, nothing, None, "t", None, cursor, Lens(), **more)
            found.append((stream._told_together(portion), stream._told, stream._cursor.text))
        return found

    monkeypatch.setattr(Stream, "_told_of", count)
    together = asyncio.run(told([3, 3, 3, 4, 3]))
    assert len(built) == 3, "nobody keeps what the one before last had"
    assert together == [asyncio.run(told([other]))[0] for other in (3, 3, 3, 4, 3)]
    assert together[3][2].endswith("@0:12,1:4")
    assert together[3][1].endswith("@0:10,1:4")


def test_a_cursor_of_as_many_partitions_as_a_stream_may_have_fits_a_request() -> None:
    """A client got cursors that it could not give back, or not beside the one that its address had from the first."""
    cursor = Cursor(ID, dict.fromkeys(range(10_000, 10_000 + following.PARTITIONS_MAX), 10**11))
    assert len(cursor.text) < 8190, "of a header"
    given = 2 * len(quote(cursor.text, safe="")) + len("GET /v1/topics//stream?cursor=&lastEventId= HTTP/1.1")
    assert given + 3 * 249 < LINE_BYTES_MAX
    refuse_wide("t", following.PARTITIONS_MAX)
    with pytest.raises(Problem, match="partitions=0,1,2"):
        refuse_wide("t", following.PARTITIONS_MAX + 1)
