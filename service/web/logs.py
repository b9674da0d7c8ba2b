"""What the log of a partition is made of, as its leader holds it: segments, leader epochs, aborted transactions; and
the producers of all partitions.

What always holds: a list is cut where it gets long, and says where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice

import msgspec
from aiohttp import web

from log.ids import TopicPartition
from service.broker.partition import Partition
from service.client.transactions import producers_of
from service.turns import in_turns, slices_in_turns
from service.web.answers import as_json, query_int
from service.web.forwarding import forward
from service.web.gateway import Gateway
from service.web.problems import Problem
from service.web.routing import Handler, Route, integer, text
from service.web.topics import ProducerOut, partition_of, producer_out
from service.wire.error_codes import ErrorCode

TOLD_MAX = 1_000
ASKED_AT_ONCE = 200
"""How many partitions are asked about their producers at the same time."""
SEEN_A_TURN = 500


class SegmentOut(msgspec.Struct):
    base_offset: int
    end_offset: int
    size_bytes: int
    largest_timestamp: int
    active: bool
    """It is being written to."""


class SegmentsOut(msgspec.Struct):
    leader: int
    log_start_offset: int
    log_end_offset: int
    segments: list[SegmentOut]
    next_offset: int | None
    """Where the next page begins, if there is one."""


class EpochOut(msgspec.Struct):
    epoch: int
    start_offset: int


class EpochsOut(msgspec.Struct):
    leader: int
    leader_epoch: int
    epochs: list[EpochOut]
    """Those of which the log still has something; the last ones if there are many."""


class AbortedOut(msgspec.Struct):
    producer_id: int
    first_offset: int
    last_offset: int
    """Where its marker is."""


class AbortedPage(msgspec.Struct):
    leader: int
    aborted: list[AbortedOut]
    next_offset: int | None
    """Where the next page begins, if there is one."""


class ProducerThere(ProducerOut):
    topic: str
    partition: int


class PartitionUntold(msgspec.Struct):
    topic: str
    partition: int


class AllProducers(msgspec.Struct):
    producers: list[ProducerThere]
    more: bool
    """There are more: name a topic, or a producer."""
    not_told: list[PartitionUntold]
    """Partitions without a leader."""


def _by_leader(show: Callable[[Gateway, web.Request, Partition], web.Response]) -> Handler:
    """The leader shows it, whichever broker is asked."""

    @wraps(show)
    async def shown(gateway: Gateway, request: web.Request) -> web.StreamResponse:
        named = partition_of(gateway, request)
        leader = gateway.leader(named)
        if leader != gateway.node_id:
            return await forward(gateway, leader, request, b"")
        partition = gateway.partitions.get(named)
        if partition is None or not partition.is_leading:
            where = f"{named.topic} partition {named.partition}"
            raise Problem("not-now", f"{where} is not led here yet", error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return show(gateway, request, partition)

    return shown


@_by_leader
def segments(gateway: Gateway, request: web.Request, partition: Partition) -> web.Response:
    log, first = partition.log, query_int(request, "offset", 0)
    wanted = (each for each in log.segments if each.end_offset > first or not each.sealed)
    found = [
        SegmentOut(each.base_offset, each.end_offset, each.size_bytes, each.largest_timestamp, not each.sealed)
        for each in islice(wanted, TOLD_MAX)
    ]
    following = next(wanted, None)
    after = None if following is None else following.base_offset
    return as_json(SegmentsOut(gateway.node_id, log.start_offset, log.end_offset, found, after))


@_by_leader
def epochs(gateway: Gateway, request: web.Request, partition: Partition) -> web.Response:
    found = [EpochOut(*each) for each in partition.log.epochs.entries()[-TOLD_MAX:]]
    return as_json(EpochsOut(gateway.node_id, partition.leader_epoch, found))


@_by_leader
def aborted(gateway: Gateway, request: web.Request, partition: Partition) -> web.Response:
    first, high = max(query_int(request, "offset", 0), partition.log.start_offset), partition.high_watermark
    ranges = partition.stable.aborted_ranges(first, high)
    found = [AbortedOut(*each) for each in islice(ranges, TOLD_MAX + 1) if each.last_offset < high]
    after = found[TOLD_MAX - 1].last_offset + 1 if len(found) > TOLD_MAX else None
    return as_json(AbortedPage(gateway.node_id, found[:TOLD_MAX], after))


async def producers(gateway: Gateway, request: web.Request) -> web.Response:
    """By topic and partition."""
    topic, producer_id = request.query.get("topic"), query_int(request, "producer_id", -1)
    names = sorted(gateway.image.topics) if topic is None else [gateway.topic(topic).name]
    found: list[ProducerThere] = []
    untold: list[PartitionUntold] = []
    async for some in slices_in_turns(_partitions(gateway, names), ASKED_AT_ONCE):
        led = []
        for each in some:
            state = gateway.image.partition(each)
            if state is not None and state.leader in gateway.image.brokers:
                led.append(each)
            elif state is not None and len(untold) < TOLD_MAX:
                untold.append(PartitionUntold(*each))
        told = await producers_of(gateway.cluster, led)
        async for each in in_turns(led, SEEN_A_TURN):
            found += [
                ProducerThere(**msgspec.structs.asdict(producer_out(state)), topic=each.topic, partition=each.partition)
                for state in told[each]
                if producer_id in (-1, state.producer_id)
            ]
        if len(found) > TOLD_MAX:
            break
    return as_json(AllProducers(found[:TOLD_MAX], len(found) > TOLD_MAX, untold))


def _partitions(gateway: Gateway, names: list[str]) -> Iterator[TopicPartition]:
    for name in names:
        if (topic := gateway.image.topics.get(name)) is not None:
            yield from [TopicPartition(name, index) for index in topic.partitions]


_PARTITION = "/v1/topics/{topic}/partitions/{partition}"
_FROM = (integer("offset", "From this offset on."),)
ROUTES = (
    Route("GET", "/v1/producers", producers, "The producers of all partitions, as their leaders know them.", "topics",
          answer=AllProducers, problems=(400, 404, 503), parameters=(
              text("topic", "Those of this topic."), integer("producer_id", "Only this one."))),
    Route("GET", _PARTITION + "/segments", segments, "The segments of the partition's log, at its leader.", "topics",
          answer=SegmentsOut, problems=(400, 404, 503), parameters=_FROM),
    Route("GET", _PARTITION + "/epochs", epochs, "Where each leader epoch began in the partition's log.", "topics",
          answer=EpochsOut, problems=(400, 404, 503)),
    Route("GET", _PARTITION + "/aborted", aborted, "The partition's aborted transactions, by their markers.", "topics",
          answer=AbortedPage, problems=(400, 404, 503), parameters=_FROM),
)  # fmt: skip
