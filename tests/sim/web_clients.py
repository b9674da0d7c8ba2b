"""The clients of the simulation that know nothing but HTTP, and repeat blindly what was not answered.

Writers with an Idempotency-Key, some of whom send the same request twice at once, or again much later, or another one
under the same key; one of them sends requests of the simplest form; one that writes plainly, and believes what it is
told; two that consume, transform and produce as the same group; two contenders for a transactional id, whose
transactions are resources; a reader of pages; two members of a group, who lose answers and go on behind the last that
they got.

What always holds: a request is in the history before it leaves. A transaction is `OK` only if an answer said that it is
applied, `FAILED` only if one said, for good, that it is not; everything else is unknown.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from log.ids import TopicPartition
from service.broker.internal_topics import TRANSACTIONS
from service.client.partitioner import partition_for_key
from service.wire.messages import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ElectLeadersRequestTopicPartitions,
    ReassignablePartition,
    ReassignableTopic,
)
from tests.sim.cluster_operator import PREFERRED
from tests.sim.history import CommittedRead, Outcome, Owned, Record, Transaction, Write
from tests.sim.plan import INPUT, LEDGER, OUTPUT
from tests.sim.transactions import ExactlyOnce
from tests.sim.workload import ANSWER_WITHIN, SETTLE_WITHIN, Actor, Clients, Unanswered

WEB_PORT = 8082
GROUP, FOLLOWERS = "movers", "followers"
T = TypeVar("T")
JSON = "application/json"
TRIES = 12
SLOW_S = 0.3
"""A batch that takes longer waits for a leader that is away."""
CROWD = 13
KEPT = 20
"""Requests that a writer sends again later."""
DECIDED = ("CompleteAbort", "PrepareAbort", "PrepareEpochFence", "CompleteEpochFence")


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_final(self) -> bool:
        """Whether the same request asked again would be answered so again."""
        return self.status < 400 or not (self.json["retriable"] or self.json["outcome"] == "unknown")


class WebLine:
    """A connection to some broker, which is left when it breaks or stays silent."""

    def __init__(self, actor: Actor, brokers: Sequence[str]) -> None:
        self._actor = actor
        self._brokers = brokers
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(
        self, method: str, path: str, body: bytes = b"", *, key: str | None = None, media: str = JSON, accept: str = ""
    ) -> Answer:
        clients = self._actor.clients
        if self._streams is not None and self._actor.chance.random() < 0.1:
            self.drop()
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                answer = await self._exchange(method, path, body, key, media, accept)
        except (OSError, EOFError, TimeoutError) as error:
            self.drop()
            raise Unanswered(repr(error)) from error
        if answer.status == 500:
            clients.history.wrong.append(f"{clients.now:.6f} {method} {path} was answered with {answer.body!r}")
        return answer

    async def _exchange(self, method: str, path: str, body: bytes, key: str | None, media: str, accept: str) -> Answer:
        if self._streams is None:
            broker = self._actor.chance.choice(self._brokers)
            self._streams = await asyncio.open_connection(broker, WEB_PORT)
        reader, writer = self._streams
        head = [
            f"{method} {path} HTTP/1.1",
            "Host: b",
            f"Content-Type: {media}",
            f"Content-Length: {len(body)}",
        ]
        if accept:
            head.append(f"Accept: {accept}")
        if key is not None:
            head.append(f'Idempotency-Key: "{key}"')
        writer.write("\r\n".join([*head, "\r\n"]).encode() + body)
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
        headers = {name.lower(): content for name, _, content in (line.partition(": ") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection") == "close":
            self.drop()
        return Answer(int(first.split()[1]), headers, content)

    def drop(self) -> None:
        """Break the connection. The server may still do what the last request asked for."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


@dataclass(slots=True)
class Post:
    """A request with an Idempotency-Key, which several may send; and what is known of it."""

    key: str
    body: bytes
    txn: Transaction
    writes: list[Write]
    path: str = "/v1/records"
    media: str = JSON


@dataclass(slots=True)
class Told:
    """What clients of one run have been told under each key."""

    posts: dict[tuple[str, bytes], Post] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)
    got: set[tuple[str, int, int]] = field(default_factory=set)
    """Topics, partitions and offsets that members of the group have got."""
    got_by_instances: set[tuple[str, int, int]] = field(default_factory=set)


class WebActor(ExactlyOnce):
    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name)
        self.web = WebLine(self, brokers)
        self.told = told
        self.in_doubt = False
        """Whether some try of the last request may have been done, or may still be."""

    def open_transaction(self, transactional_id: str) -> Transaction:
        number = self.clients.world.identity()
        txn = Transaction(number, f"{transactional_id}-{number}", -1, 0, self.clients.now)
        self.history.transactions.append(txn)
        return txn

    def note(self, txn: Transaction, values: list[tuple[TopicPartition, bytes | None, bytes]]) -> list[Write]:
        """Write down what is about to be sent, by partition and in order."""
        of_partition: dict[TopicPartition, list[tuple[bytes | None, bytes | None]]] = {}
        for partition, key, value in values:
            txn.values.append((partition, value))
            of_partition.setdefault(partition, []).append((key, value))
        writes = [
            Write(self.name, -txn.number, partition, tuple(records), -1, self.plan.held(-1), self.clients.now)
            for partition, records in of_partition.items()
        ]
        self.history.writes += writes
        return writes

    def some_records(self, name: str) -> list[tuple[TopicPartition, bytes | None, bytes]]:
        places = [each for each in self.clients.partitions() if each.topic in (INPUT, OUTPUT, LEDGER)]
        values = self.values(self.chance.randrange(1, 6), name)
        found = []
        for value in values:
            partition = self.chance.choice(places)
            found.append((partition, b"k%d" % self.chance.randrange(6) if partition.topic == LEDGER else None, value))
        return found

    def wrong(self, what: str) -> None:
        self.history.wrong.append(f"{self.clients.now:.6f} {self.name}: {what}")

    def take(self, txn: Transaction, writes: list[Write], results: list[dict[str, Any]]) -> None:
        """The answer says that everything is there, and where."""
        txn.outcome, txn.completed = Outcome.OK, min(txn.completed, self.clients.now)
        places = [(each["topic"], each["partition"], each["offset"]) for each in results]
        for write in writes:
            offsets = [offset for *partition, offset in places if tuple(partition) == write.partition]
            if not offsets or offsets != list(range(offsets[0], offsets[0] + len(write.records))):
                self.wrong(f"{len(write.records)} records of {write.partition} are told to be at {offsets}")
                continue
            write.completed, write.outcome = min(write.completed, self.clients.now), Outcome.OK
            write.base_offset = offsets[0]

    async def insist(  # type: ignore[override]
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        key: str | None = None,
        media: str = JSON,
        tries: int = TRIES,
    ) -> Answer:
        """The final answer, however often it takes to get it; Unanswered when it did not come."""
        self.in_doubt = False
        for _ in range(tries):
            try:
                answer = await self.web.ask(method, path, body, key=key, media=media)
                if answer.is_final:
                    return answer
                self.in_doubt |= answer.json["outcome"] != "none"
            except Unanswered:
                self.in_doubt = True
            await asyncio.sleep(0.4 * self.chance.random())
        raise Unanswered(f"{method} {path}")

    def new_post(self, key: str, values: list[tuple[TopicPartition, bytes | None, bytes]], **more: Any) -> Post:
        """Under the same key with the same body it is the same as before."""
        records = [record_of(*each) for each in values]
        return self.post_of(key, values, json.dumps({"records": records, **more}, separators=(",", ":")).encode())

    def post_of(self, key: str, values: list[tuple[TopicPartition, bytes | None, bytes]], body: bytes) -> Post:
        if (key, body) not in self.told.posts:
            txn = self.open_transaction(key)
            txn.committed_asked, txn.end_invoked, txn.outcome = True, self.clients.now, Outcome.UNKNOWN
            self.told.posts[key, body] = Post(key, body, txn, self.note(txn, values))
        return self.told.posts[key, body]

    async def post(self, post: Post, *, tries: int = TRIES) -> Answer:
        answer = await self.insist("POST", post.path, post.body, key=post.key, media=post.media, tries=tries)
        if answer.status == 200:
            known = self.told.answers.setdefault(post.key, answer.body)
            if known != answer.body:
                self.wrong(f"{post.key} was answered with {known!r:.300}, and is with {answer.body!r:.300}")
            topic = answer.json.get("topic")  # of all
            self.take(post.txn, post.writes, [{"topic": topic, **each} for each in answer.json["results"]])
        return answer

    async def settle(self) -> None:
        """After everything healed: write what is acknowledged, once. That takes a dozen fsyncs of several brokers one
        after the other, and others do the same meanwhile.
        """
        deadline = self.clients.now + 4 * SETTLE_WITHIN
        post = self.new_post(f"{self.name}-settled", self.some_records(self.name))
        last = ""
        while self.clients.now < deadline:
            try:
                answer = await self.post(post)
                if answer.status == 200:
                    return
                last = repr(answer.body)
            except Unanswered as error:
                last = repr(error)
            await asyncio.sleep(0.5)
        self.history.stuck.append(f"{self.name} can't write under an Idempotency-Key: {last}")

    async def judge_group(self, group: str, got: set[tuple[str, int, int]]) -> None:
        """What the group has committed, some client has got."""
        answer = await self._answered(lambda: self.insist("GET", f"/v1/groups/{group}/offsets"))
        for each in answer.json["offsets"] if answer is not None and answer.status == 200 else []:
            partition, offset = TopicPartition(each["topic"], each["partition"]), 0
            while offset < each["offset"]:
                read = await self._answered(partial(read_page, self, partition, offset, 1000))
                if read is None or read.to_offset == offset:
                    self.history.stuck.append(f"{self.name} can't read {partition} from offset {offset} on")
                    return
                for record in read.records:
                    if record.offset < each["offset"] and (*partition, record.offset) not in got:
                        self.wrong(f"{partition} is committed up to {each['offset']}, nobody got {record.offset}")
                offset = read.to_offset

    async def _answered(self, ask: Callable[[], Awaitable[T | None]]) -> T | None:
        deadline = self.clients.now + 4 * SETTLE_WITHIN
        while self.clients.now < deadline:
            try:
                if (answer := await ask()) is not None:
                    return answer
            except Unanswered:
                pass
            await asyncio.sleep(0.5)
        return None


def record_of(partition: TopicPartition, key: bytes | None, value: bytes) -> dict[str, Any]:
    record: dict[str, Any] = {
        "topic": partition.topic,
        "partition": partition.partition,
        "value_string": value.decode(),
    }
    return record if key is None else {**record, "key": key.decode()}


def let_go(line: WebLine, asked: asyncio.Future[Answer]) -> None:
    line.drop()
    if not asked.cancelled():
        asked.exception()  # the writer has it too, unless it was ended


class KeyedWriter(WebActor):
    """Writes to several topics at once under a key of its own, and never stops asking before it is answered; or gives
    up in the middle, as one that was killed.
    """

    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self._brokers = brokers
        self._twin = WebLine(self, brokers)
        self._done: list[Post] = []

    async def turn(self) -> None:
        if self._done and self.chance.random() < 0.3:
            await self._come_back(self.chance.choice(self._done))
            return
        if self.chance.random() < 0.3:
            await self._crowd()
            return
        number = self.clients.world.identity()
        post = self.new_post(f"{self.name}-{number}", self.some_records(f"{self.name}p{number}"))
        is_alone = self.chance.random() >= 0.2
        if not is_alone:  # a second client with the same request, whose answer nobody hears
            asking = asyncio.ensure_future(self._twin.ask("POST", post.path, post.body, key=post.key))
            asking.add_done_callback(lambda asked: asked.cancelled() or asked.exception())
        if self.chance.random() < 0.1:
            await self.web.ask("POST", post.path, post.body, key=post.key)
            return
        answer = await self.post(post)
        if answer.status == 200:
            self._done = [*self._done, post][-KEPT:]
        elif answer.json["outcome"] != "none":
            self.wrong(f"{post.key} was refused: {answer.body!r:.300}")
        elif is_alone and not self.in_doubt:
            post.txn.outcome = Outcome.FAILED

    async def _crowd(self) -> None:
        """Several requests for the same partition at one broker at once, which may share transactions there. Some are
        refused, and then none of the others may be.
        """
        broker = self.chance.choice(self._brokers)
        partition = self.some_records(self.name)[0][0]
        crowd: list[tuple[Post, asyncio.Future[Answer]]] = []
        for _ in range(self.chance.randrange(2, CROWD)):
            number = self.clients.world.identity()
            post = self.new_post(f"{self.name}-{number}", [self._one_of_crowd(partition, f"{self.name}c{number}")])
            line = WebLine(self, [broker])
            asked: asyncio.Future[Answer] = asyncio.ensure_future(line.ask("POST", post.path, post.body, key=post.key))
            asked.add_done_callback(partial(let_go, line))
            crowd.append((post, asked))
        await asyncio.wait([asked for _, asked in crowd])
        for post, answered in crowd:
            if answered.exception() is None and answered.result().status == 422:
                post.txn.outcome = Outcome.FAILED
            else:
                await self.post(post)

    def _one_of_crowd(self, partition: TopicPartition, name: str) -> tuple[TopicPartition, bytes | None, bytes]:
        place = TopicPartition(LEDGER, 0) if self.chance.random() < 0.2 else partition
        has_key = place.topic == LEDGER and self.chance.random() < 0.8  # without one it is refused there
        (value,) = self.values(1, name)
        return place, b"k%d" % self.chance.randrange(6) if has_key else None, value

    async def _come_back(self, post: Post) -> None:
        """With the same request, or with another one under its key."""
        if self.chance.random() < 0.5:
            await self.post(post)
            return
        other = self.new_post(post.key, self.some_records(f"{self.name}x{self.clients.world.identity()}"))
        other.txn.outcome = Outcome.FAILED  # the key belongs to what is done
        answer = await self.insist("POST", other.path, other.body, key=other.key)
        if answer.status != 422:
            self.wrong(f"{post.key} with another body was answered with {answer.status} {answer.body!r:.300}")


class SimpleWriter(KeyedWriter):
    """A keyed writer whose requests have the simplest form, for which brokers have a short way: values with one key, of
    which the broker finds the partition.
    """

    def some_records(self, name: str) -> list[tuple[TopicPartition, bytes | None, bytes]]:
        topic, key = self.chance.choice((INPUT, OUTPUT)), b"k%d" % self.chance.randrange(6)
        partition = TopicPartition(topic, partition_for_key(key, self.history.topics[topic].partitions))
        values = self.values(self.chance.randrange(1, 4), name)
        return [(partition, key, json.dumps(value.decode()).encode()) for value in values]

    def _one_of_crowd(self, partition: TopicPartition, name: str) -> tuple[TopicPartition, bytes | None, bytes]:
        (place, key, value), *_ = self.some_records(name)
        return (TopicPartition(LEDGER, 0), None, value) if self.chance.random() < 0.1 else (place, key, value)

    def new_post(self, key: str, values: list[tuple[TopicPartition, bytes | None, bytes]], **more: Any) -> Post:
        records = [
            {"value": json.loads(value)} | ({} if of_record is None else {"key": of_record.decode()})
            for _, of_record, value in values
        ]
        post = self.post_of(key, values, json.dumps({"records": records, **more}, separators=(",", ":")).encode())
        post.path = f"/v1/topics/{values[0][0].topic}/records"
        return post


class PlainWriter(WebActor):
    """Writes to several partitions at several brokers at once, without a key. Each batch is sent once, and the answer
    believed: so there is always one that a leader was writing when it was replaced.
    """

    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self._lines = [WebLine(self, [broker]) for broker in brokers]

    async def turn(self) -> None:
        await asyncio.gather(*(self._write(line) for line in self._lines))

    async def settle(self) -> None:
        """It promises no more than what it was told."""

    async def _write(self, line: WebLine) -> None:
        txn = self.open_transaction(self.name)
        (first, *_) = self.some_records(f"{self.name}p{txn.number}")
        writes = self.note(txn, [first])
        txn.committed_asked, txn.end_invoked, txn.outcome = True, self.clients.now, Outcome.UNKNOWN
        try:
            answer = await line.ask("POST", "/v1/records", json.dumps({"records": [record_of(*first)]}).encode())
        except Unanswered:
            return
        if answer.status == 200:
            self.take(txn, writes, answer.json["results"])
        elif answer.json["outcome"] == "none":
            txn.outcome = Outcome.FAILED


class Mover(WebActor):
    """Consumes input, and writes what it makes of it together with the offset, under a key made of where it began."""

    async def turn(self) -> None:
        partition = self.chance.choice([each for each in self.clients.partitions() if each.topic == INPUT])
        answer = await self.insist("GET", f"/v1/groups/{GROUP}/offsets")
        offsets = answer.json["offsets"] if answer.status == 200 else []
        here = [each for each in offsets if (each["topic"], each["partition"]) == partition]
        start = here[0]["offset"] if here else 0
        most = self.chance.randrange(1, 6)
        read = await read_page(self, partition, start, most)
        if read is None or not read.records:
            return
        end = read.to_offset
        values: list[tuple[TopicPartition, bytes | None, bytes]] = []
        for index, record in enumerate(read.records):
            where = TopicPartition(OUTPUT, index % 2)
            values.append((where, None, f"moved:{partition.partition}:{start}:{end}:{record.offset}".encode()))
        taken = {"topic": INPUT, "partition": partition.partition, "offset": end}
        key = f"{GROUP}-{partition.partition}-{start}"
        post = self.new_post(key, values, offsets={"group": GROUP, "offsets": [taken]})
        post.txn.group, post.txn.consumed = GROUP, {partition: (start, end)}
        await self.post(post, tries=self.chance.choice((1, 3, TRIES)))


class Contender(WebActor):
    """Runs one transaction after the other under an id that another wants too. If nobody says whether the last batch is
    in it, it may ask for the commit all the same: that is refused, or all of the batch is there, or nothing.
    """

    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self.timeout_ms = self.chance.choice((3000, 10_000, 60_000))

    async def turn(self) -> None:
        await asyncio.sleep(3 * self.chance.random())
        asked = json.dumps({"transactional_id": "contended", "timeout_ms": self.timeout_ms}).encode()
        answer = await self.insist("POST", "/v1/transactions", asked)
        if answer.status != 201:
            return
        begun = answer.json
        txn = self._begun(begun)
        self.history.owned.append(Owned("contended", txn.producer_id, txn.epoch, self.clients.now))
        path = f"/v1/transactions/{begun['txn']}"
        written: list[tuple[list[Write], Answer]] = []
        doubtful: Transaction | None = None
        for number in range(self.chance.randrange(1, 4)):
            batch = self._begun(begun)
            values = self._for_every_leader(f"c{txn.number}")
            writes = self.note(batch, values)
            body = json.dumps({"records": [record_of(*each) for each in values]}).encode()
            put = await self._put(f"{path}/batches/{number}", body)
            if put is None or put.status != 200:
                doubtful = batch if put is None or self.in_doubt else None
                break
            txn.values += batch.values
            batch.values.clear()
            written.append((writes, put))
            if self.chance.random() < 0.3:
                again = await self.insist("PUT", f"{path}/batches/{number}", body)
                if again.status == 200 and again.body != put.body:
                    self.wrong(f"batch {number} of {path} was {put.body!r:.200}, and is {again.body!r:.200}")
        wanted = self.chance.choice(("commit", "commit", "commit", "abort", "leave"))
        if wanted == "commit" and (doubtful is not None or len(written) == number + 1):
            await self._commit(path, txn, written, doubtful)
        if wanted != "leave" and txn.outcome is Outcome.FAILED:
            await self.insist("POST", f"{path}:abort")

    def _for_every_leader(self, name: str) -> list[tuple[TopicPartition, bytes | None, bytes]]:
        """So that some have their part of it while another is away."""
        places = [each for each in self.clients.partitions() if each.topic in (INPUT, OUTPUT)]
        spread = [(place, None, value) for place, value in zip(places, self.values(len(places), name), strict=True)]
        return [*spread, *self.some_records(name)]

    async def _put(self, path: str, body: bytes) -> Answer | None:
        """None if the answer was not waited for, because that took long: some leader is away. Then another broker may
        coordinate by now, while the former one still has a part of the batch to write.
        """
        asking = asyncio.ensure_future(self.insist("PUT", path, body))
        await asyncio.wait([asking], timeout=SLOW_S)
        if not asking.done() and self.chance.random() < 0.9:
            asking.cancel()
            self.web.drop()
            with contextlib.suppress(Unanswered):
                await self._move_coordinator()
            return None
        return await asking

    async def _move_coordinator(self) -> None:
        brokers = list(self.clients.node_ids.values())
        replicas = self.chance.sample(brokers, len(brokers))
        indexes = range(int(self.plan.settings["transaction.state.log.num.partitions"]))
        moved = ReassignableTopic(TRANSACTIONS.name, [ReassignablePartition(index, replicas) for index in indexes])
        await self.line.ask(AlterPartitionReassignmentsRequest(topics=[moved]))
        led = ElectLeadersRequestTopicPartitions(TRANSACTIONS.name, list(indexes))
        await self.line.ask(ElectLeadersRequest(PREFERRED, [led]))

    def _begun(self, begun: dict[str, Any]) -> Transaction:
        txn = self.open_transaction("contended")
        txn.transactional_id, txn.producer_id, txn.epoch = "contended", begun["producer_id"], begun["epoch"]
        return txn

    async def _commit(
        self, path: str, txn: Transaction, written: list[tuple[list[Write], Answer]], doubtful: Transaction | None
    ) -> None:
        txns = [txn] if doubtful is None else [txn, doubtful]
        for each in txns:
            each.committed_asked, each.end_invoked, each.outcome = True, self.clients.now, Outcome.UNKNOWN
        told: dict[str, Any] = {}
        with contextlib.suppress(Unanswered):
            told = (await self.insist("POST", f"{path}:commit", tries=2 * TRIES)).json
        outcome = told.get("outcome", "unknown")
        is_over = outcome == "none" and not self.in_doubt
        if not is_over and outcome != "applied":  # nobody has said what became of it: that is asked
            answer = await self.insist("GET", path, tries=2 * TRIES)
            if answer.status != 200:
                return
            told = answer.json
            outcome = told["outcome"]
            is_over = outcome == "none" and told["state"] in DECIDED
        if is_over:
            for each in txns:
                each.outcome, each.completed = Outcome.FAILED, self.clients.now
        elif outcome == "applied":
            txn.outcome, txn.completed = Outcome.OK, self.clients.now
            for writes, answer in written:
                self.take(txn, writes, answer.json["results"])
            if doubtful is not None and "next_batch" in told:
                doubtful.outcome = Outcome.OK if told["next_batch"] > len(written) else Outcome.FAILED


async def read_page(actor: WebActor, partition: TopicPartition, offset: int, most: int) -> CommittedRead | None:
    """What is committed from an offset on, written down; None if there is nothing to go on from."""
    path = f"/v1/topics/{partition.topic}/partitions/{partition.partition}/records"
    wait_ms = actor.chance.choice((0, 100, 500))
    invoked = actor.clients.now
    answer = await actor.web.ask(
        "GET", f"{path}?offset={offset}&max_records={most}&wait_ms={wait_ms}&values=base64&int64=string"
    )
    if answer.status != 200:
        return None
    page = answer.json
    records = tuple(
        Record(
            int(each["offset"]),
            int(each["timestamp"]),
            each["key"].encode() if "key" in each else None,
            base64.b64decode(each["value_base64"]) if "value_base64" in each else None,
        )
        for each in page["records"]
    )
    ends = int(page["last_stable_offset"]), int(page["high_watermark"])
    known = actor.clients.known_ends
    known[partition] = max(known.get(partition, 0), ends[1])
    held, now = actor.plan.visible_held, actor.clients.now
    read = CommittedRead(actor.name, partition, offset, int(page["next_offset"]), records, *ends, held, invoked, now)
    actor.history.committed_reads.append(read)
    return read


class PageReader(WebActor):
    """Reads pages from anywhere, and reads on for a while."""

    async def turn(self) -> None:
        topics = self.history.topics
        partition = self.chance.choice([each for each in self.clients.partitions() if topics[each.topic].transactional])
        offset = self.chance.randrange(self.clients.known_ends.get(partition, 0) + 1)
        for _ in range(self.chance.choice((1, 3, 10))):
            read = await read_page(self, partition, offset, self.chance.choice((1, 10, 1000)))
            if read is None:
                return
            offset = read.to_offset


class Member(WebActor):
    """Reads as a member of a group, and commits what it got. What the group has committed, some member has got."""

    async def turn(self) -> None:
        asked = json.dumps({"topics": [INPUT], "session_timeout_ms": self.chance.choice((2000, 20_000))}).encode()
        joined = await self.web.ask("POST", f"/v1/groups/{FOLLOWERS}/members", asked)
        if joined.status != 201:
            return
        member, token = joined.headers["location"], ""
        for _ in range(self.chance.choice((3, 10, 30))):
            most, wait_ms = self.chance.choice((1, 5, 1000)), self.chance.choice((0, 100, 3000, 6000))
            after = f"&after={token}" if token else ""
            try:
                page = await self.web.ask(
                    "GET", f"{member}/records?max_records={most}&wait_ms={wait_ms}&int64=string{after}"
                )
                is_lost = token and self.chance.random() < 0.2  # on its way
                if page.status == 200 and not is_lost:
                    token = page.json["commit_token"]
                    self.told.got.update(
                        (INPUT, each["partition"], int(each["offset"])) for each in page.json["records"]
                    )
                    if self.chance.random() < 0.5:
                        done = json.dumps({"commit_token": token}).encode()
                        await self.web.ask("POST", f"{member}/offsets", done)
            except Unanswered:
                if not token:  # there may have been an answer, and nothing tells what was in it
                    break
            else:
                if page.status == 410:
                    return
            await asyncio.sleep(0.3 * self.chance.random())
        if self.chance.random() < 0.5:
            await self.web.ask("DELETE", member)

    async def settle(self) -> None:
        await self.judge_group(FOLLOWERS, self.told.got)
