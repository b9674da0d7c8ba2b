"""Bugs of the HTTP API, planted one at a time in the simulated cluster, each to be caught within `MAX_SEEDS` runs.

`python -m tests.sim.web_mutants` shows how many runs each took and which promise it broke.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import as_completed
from functools import cache
from typing import Any

import service.web.branches
import service.web.idempotency
import service.web.producing
import service.web.transactions
from log.batch import build_batch, read_records
from log.ids import TopicPartition
from service.web.answers import path_int
from service.web.fetching import Piece
from service.web.following import Stream
from service.web.idempotency import Keys, Memory
from service.web.instances import Instance, Instances
from service.web.members import HttpMember
from service.web.problems import Problem
from service.web.producers import Producer
from service.web.sending import OutgoingBatch, send, send_one_each
from service.wire.error_codes import ErrorCode
from tests.sim import caught
from tests.sim.mutants import Caught, hunt_in
from tests.sim.run import processes, replaced
from tests.sim.web import run

MAX_SEEDS = 40

Planting = contextlib.AbstractContextManager[None]


def make_plain(batches: Sequence[OutgoingBatch]) -> None:
    """Make these batches belong to no transaction."""
    for each in batches:
        records = read_records(memoryview(bytes(each.batch)))
        each.batch = build_batch([(one.key, one.value, one.headers, one.timestamp) for one in records])
        each.numbered = False


def the_keys_record_is_written_outside_the_transaction() -> Planting:
    """The record may be there though the data was aborted, or the data without the record."""
    original = Producer.write

    async def write(producer: Producer, batches: list[OutgoingBatch], *, internal: bool = False) -> None:
        if not internal:
            await original(producer, batches)
            return
        make_plain(batches)
        await send_one_each(producer._gateway, batches, internal=True)

    return replaced(Producer, "write", write)


@contextlib.contextmanager
def an_answer_is_replayed_for_another_body() -> Iterator[None]:
    async def sha256_of(*_: Any) -> str:
        return "the same"

    idempotency = service.web.idempotency
    with replaced(idempotency, "sha256_of", sha256_of), replaced(idempotency, "sha256", lambda *_: "the same"):
        yield


def a_new_leader_of_keys_knows_none_of_before() -> Planting:
    async def read(memory: Memory, gateway: Any) -> None:
        """The new leader begins with an empty memory."""

    return replaced(Memory, "_read", read)


def undecided_keys_are_not_waited_for() -> Planting:
    """A key that a new leader finds undecided may be committed a moment later."""

    original = Memory._learn

    async def learn(memory: Memory, gateway: Any) -> None:
        memory._until = min(memory._until, memory.partition.last_stable_offset)
        await original(memory, gateway)

    return replaced(Memory, "_learn", learn)


def aborted_keys_are_remembered() -> Planting:
    class Nothing:
        def __init__(self, ranges: Any) -> None:
            pass

        def covers(self, header: Any, batch: Any) -> bool:
            return False

    return replaced(service.web.idempotency, "AbortedBatches", Nothing)


def a_twin_is_not_told_to_wait() -> Planting:
    class Forgetful(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            return False

        def __delitem__(self, key: Any) -> None:
            self.pop(key, None)

    original = Keys.__init__

    def begin(keys: Keys, gateway: Any) -> None:
        original(keys, gateway)
        keys._under_way = Forgetful()

    return replaced(Keys, "__init__", begin)


class Unordered(int):
    """No number stands before another one or behind it."""

    def __lt__(self, other: int) -> bool:
        return False

    __gt__ = __lt__


def a_batchs_number_is_not_looked_at() -> Planting:
    """A batch that is put again is written again."""

    def unordered(request: Any, name: str, **more: Any) -> int:
        found = path_int(request, name, **more)
        return Unordered(found) if name == "number" else found

    return replaced(service.web.transactions, "path_int", unordered)


def offsets_are_committed_beside_the_transaction() -> Planting:
    """The group goes on though what was made of its input is aborted, or the other way round."""
    original = service.web.producing.commit_offsets

    async def later(producer: Producer, offsets: Any) -> None:
        apart = Producer(producer._gateway, f"{producer.transactional_id}-offsets")
        await apart.own()
        await original(apart, offsets)
        await apart.end(commit=True)

    return replaced(service.web.producing, "commit_offsets", later)


def each_topic_is_written_for_itself() -> Planting:
    """A request over several partitions is several writes, none of which waits for the others."""

    async def write(producer: Producer, batches: list[OutgoingBatch], *, internal: bool = False) -> None:
        is_request = not internal and producer.transactional_id.startswith("__http-")
        mine = batches[:1] if is_request else batches
        await original(producer, mine, internal=internal)
        make_plain(batches[len(mine) :])
        await send(producer._gateway, batches[len(mine) :])
        for each in batches:
            if each.error:
                raise each.problem()

    original = Producer.write
    return replaced(Producer, "write", write)


def a_commit_that_takes_long_is_told_to_have_failed() -> Planting:
    original = Producer.end

    async def end(producer: Producer, *, commit: bool) -> None:
        try:
            async with asyncio.timeout(0.2 if commit else None):
                await original(producer, commit=commit)
        except TimeoutError:
            raise Problem("conflict", "it takes too long", outcome="none") from None

    return replaced(Producer, "end", end)


def what_a_lost_answer_held_is_not_given_again() -> Planting:
    """The member's client says how far it has got, and the broker goes on from where it is itself."""
    return replaced(HttpMember, "go_back", lambda member, generation, seen: None)


def a_line_that_was_cut_off_is_written() -> Planting:
    """The client has gone before the end of its line, and sends that line again."""

    async def lines(request: Any, line_bytes_max: int) -> AsyncIterator[tuple[int, list[bytes]]]:
        rest = b""
        try:
            async for chunk in request.content.iter_any():
                *whole, rest = (rest + chunk).split(b"\n")
                if whole:
                    yield 0, whole
        except OSError:
            request.content.set_exception(None)
        if rest:
            yield 0, [rest]

    return replaced(service.web.producing, "_lines", lines)


def what_may_be_written_is_told_not_to_be() -> Planting:
    original = OutgoingBatch.problem

    def problem(batch: OutgoingBatch) -> Problem:
        told = original(batch)
        told.outcome = "none"
        return told

    return replaced(OutgoingBatch, "problem", problem)


def a_cursor_is_ahead_of_what_was_sent() -> Planting:
    """It says of each partition how far that was read, though another partition's records are sent first."""
    original = Stream._fetch

    async def fetch(stream: Stream, node: int, positions: dict[TopicPartition, int], wait_s: float) -> list[Piece]:
        pieces = await original(stream, node, positions, wait_s)
        for piece in pieces:
            if piece.data:
                stream._cursor.moved(piece.partition.partition, piece.last_stable_offset)
        return pieces

    return replaced(Stream, "_fetch", fetch)


def a_stream_that_comes_back_begins_where_the_topic_ends() -> Planting:
    """What was written while its client was away is told to nobody."""
    original = Stream.__init__

    def begin(stream: Stream, gateway: Any, *given: Any, **more: Any) -> None:
        original(stream, gateway, *given, **more)
        for index, offset in stream._cursor.offsets.items():
            partition = gateway.partitions.get(TopicPartition(stream._topic, index))
            if offset and partition is not None:
                stream._cursor.moved(index, max(partition.last_stable_offset, offset))

    return replaced(Stream, "__init__", begin)


def an_instance_commits_an_answer_that_may_be_lost() -> Planting:
    original = Instances._commit_known

    async def commit(instances: Instances, instance: Instance) -> None:
        instance.uncommitted.update(instance.shown)
        await original(instances, instance)

    return replaced(Instances, "_commit_known", commit)


def a_decision_of_another_is_told_as_ones_own() -> Planting:
    async def outcome(*_: Any) -> str:
        return "applied"

    return replaced(service.web.branches, "_outcome", outcome)


def nobody_asks_whether_a_transaction_takes_more() -> Planting:
    """What comes to a branch after its seal is written where it was written before."""

    async def refusal(producer: Producer) -> int:
        return ErrorCode.NONE

    return replaced(Producer, "refusal", refusal)


def a_broker_that_does_not_know_a_transaction_ends_it() -> Planting:
    """A batch that is on its way from the broker that has begun it comes into it afterwards."""

    async def refuse_parts(gateway: Any, name: Any, known: Any) -> None:
        """Nothing is in part, as far as is known."""

    return replaced(service.web.transactions, "_refuse_parts", refuse_parts)


def an_end_does_not_wait_for_a_batch() -> Planting:
    return replaced(service.web.transactions.OpenTransactions, "turn", lambda *_: asyncio.Lock())


MUTANTS: dict[str, Callable[[], Planting]] = {
    plant.__name__: plant
    for plant in (
        the_keys_record_is_written_outside_the_transaction,
        an_answer_is_replayed_for_another_body,
        a_new_leader_of_keys_knows_none_of_before,
        undecided_keys_are_not_waited_for,
        aborted_keys_are_remembered,
        a_twin_is_not_told_to_wait,
        a_batchs_number_is_not_looked_at,
        offsets_are_committed_beside_the_transaction,
        each_topic_is_written_for_itself,
        a_commit_that_takes_long_is_told_to_have_failed,
        what_a_lost_answer_held_is_not_given_again,
        a_line_that_was_cut_off_is_written,
        what_may_be_written_is_told_not_to_be,
        a_cursor_is_ahead_of_what_was_sent,
        a_stream_that_comes_back_begins_where_the_topic_ends,
        an_instance_commits_an_answer_that_may_be_lost,
        a_decision_of_another_is_told_as_ones_own,
        nobody_asks_whether_a_transaction_takes_more,
        a_broker_that_does_not_know_a_transaction_ends_it,
        an_end_does_not_wait_for_a_batch,
    )
}


@cache
def is_right(seed: int) -> bool:
    """Without any mutant. Most are caught by one of the first seeds, which need not be run anew for each."""
    return run(seed).right


def hunt(name: str, max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Caught:
    """Seed after seed, until the mutant of that name is caught. `anew`: as if it had never been."""
    seeds = itertools.islice(caught.seeds(name, anew=anew), max_seeds)
    return hunt_in(seeds, name, MUTANTS[name], run, is_right)


def hunt_all(names: Sequence[str], max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Iterator[Caught]:
    """Side by side; in the order in which they end."""
    with processes(os.cpu_count() or 1) as pool:
        hunts = [pool.submit(hunt, name, max_seeds, anew=anew) for name in names]
        yield from (each.result() for each in as_completed(hunts))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim.web_mutants", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--only", default="", help="the mutants whose name contains this")
    parser.add_argument("--seeds", type=int, default=MAX_SEEDS, help="the most seeds for one mutant")
    arguments = parser.parse_args()
    chosen = [name for name in MUTANTS if arguments.only in name]
    found = 0
    print(f"{'planted bug':52} {'seeds':>5} {'seconds':>7}  broken promise")
    for verdict in hunt_all(chosen, arguments.seeds, anew=True):
        if verdict.broken:
            found += 1
            caught.note({verdict.mutant: verdict.seed})  # at once: to hunt all takes an hour
        what = verdict.broken or "NOT CAUGHT"
        print(f"{verdict.mutant:52} {verdict.seeds:5} {verdict.seconds:7.0f}  {what}", flush=True)
    print(f"{found} of {len(chosen)} caught")
    return 0 if found == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
