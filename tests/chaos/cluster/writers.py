"""Who writes meanwhile, and what they were told of it.

One writes single values to every partition of a topic and notes when each was acknowledged; others write in
transactions over several partitions, and note how each of those ended. Nothing here judges.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

PAUSE_S = 0.02
WAIT_S = 10.0
COMMIT_WITHIN_S = 60.0
ABORTED_SHARE = 0.15


@dataclass
class Told:
    """What was acknowledged: of each partition the values at their offsets; and where they were not, for how long."""

    acknowledged: list[dict[int, int]]
    somewhere: list[set[int]]
    """Acknowledged without an offset: repeats of batches that are there, but too old for the broker to tell where."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    sent: int = 0
    ambiguous: int = 0
    failures: list[str] = field(default_factory=list)


class SteadyWriter(threading.Thread):
    """A value to every partition, again and again."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, acks: str) -> None:
        super().__init__(name="the steady writer", daemon=True)
        self.told = Told([{} for _ in range(partitions)], [set() for _ in range(partitions)])
        self._topic = topic
        self._over = threading.Event()
        self._next = [0] * partitions
        self.heard_s = [time.monotonic()] * partitions
        # It never gives up: with each value that it gives up librdkafka begins a new epoch in all partitions, and sends
        # again what it has no answer for, which may be there. That came thousands of times after 120 s without service.
        safely = {"enable.idempotence": True, "message.timeout.ms": 0} if acks == "all" else {"acks": acks}
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, **safely})

    def run(self) -> None:
        while not self._over.is_set():
            for partition, value in enumerate(self._next):
                with contextlib.suppress(BufferError):
                    self._producer.produce(
                        self._topic, b"%d" % value, partition=partition, on_delivery=self._heard_of(partition, value)
                    )
                    self._next[partition] += 1
                    self.told.sent += 1
            self._producer.poll(PAUSE_S)
        if left := self._producer.flush(150):
            self.told.failures.append(f"{left} values were never answered")

    def _heard_of(self, partition: int, value: int) -> Any:
        def heard(error: KafkaError | None, message: Message) -> None:
            now_s = time.monotonic()
            if error is not None:
                self.told.ambiguous += 1
                if error.fatal():
                    self.told.failures.append(f"fatal to an idempotent producer: {error}")
                return
            if (offset := message.offset()) is None:
                self.told.somewhere[partition].add(value)
            else:
                self.told.acknowledged[partition][offset] = value
            self.told.gaps.append((self.heard_s[partition], now_s))
            self.heard_s[partition] = now_s

        return heard

    def stop(self) -> None:
        self._over.set()


class ProducerSpent(Exception):
    """Its library takes nothing any more, and that is no fault of anybody's: another one goes on."""


class Ending(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    AMBIGUOUS = "nobody knows"


@dataclass
class Transaction:
    size: int
    ending: Ending = Ending.AMBIGUOUS


class TransactionalWriter(threading.Thread):
    """One transaction after another. Its values say of which transaction they are: `number.index`."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.writer = name
        self.transactions: list[Transaction] = []
        self.failures: list[str] = []
        self._servers = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._chance = random.Random(seed)
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            producer = Producer(
                {
                    "bootstrap.servers": self._servers,
                    "transactional.id": self.writer,
                    "transaction.timeout.ms": 10_000,
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            try:
                producer.init_transactions(3 * WAIT_S)
                while not self._over.is_set():
                    self.write(producer)
            except ProducerSpent:
                pass
            except KafkaException as failure:
                # The coordinator aborts what takes longer than its timeout, and fences who began it.
                if failure.args[0].code() != KafkaError._FENCED and not failure.args[0].retriable():
                    self.failures.append(f"{self.writer}: {traceback.format_exc()}")
                time.sleep(0.2)

    def write(self, producer: Producer) -> None:
        """One transaction, up to its end; raises what leaves its end open."""
        number, size = len(self.transactions), self._chance.randint(1, 8)
        transaction = Transaction(size)
        self.transactions.append(transaction)
        producer.begin_transaction()
        for index in range(size):
            value = f"{number}.{index}".encode()
            producer.produce(
                self._topic, value, self.writer.encode(), partition=self._chance.randrange(self._partitions)
            )
        try:
            if self._chance.random() >= ABORTED_SHARE:
                self._commit(producer)
                transaction.ending = Ending.COMMITTED
                return
        except KafkaException as failure:
            if not failure.args[0].txn_requires_abort():
                raise
        try:
            self._abort(producer)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError.INVALID_TXN_STATE:
                raise
            # No partition was ever added: the coordinator was away, or owed markers of the commit before, for longer
            # than messages may wait. librdkafka (2.16) asks for the end all the same, because it counts each answer
            # that it takes as retriable as a request that may have arrived (`txn_req_cnt`). For the coordinator the
            # transaction before is over, and committed. Apache Kafka 4.3 was asked, with a broker paused that owed a
            # marker: CONCURRENT_TRANSACTIONS while it was owed, INVALID_TXN_STATE afterwards, which librdkafka calls
            # fatal. For a commit nobody may be told that: then all was acknowledged.
            transaction.ending = Ending.ABORTED
            raise ProducerSpent from failure
        transaction.ending = Ending.ABORTED

    def _commit(self, producer: Producer) -> None:
        _until_it_goes(lambda: producer.commit_transaction(WAIT_S), KafkaError.retriable)

    def _abort(self, producer: Producer) -> None:
        """librdkafka also answers an abort with the demand for one, if a delivery fails meanwhile."""
        _until_it_goes(
            lambda: producer.abort_transaction(WAIT_S), lambda error: error.retriable() or error.txn_requires_abort()
        )

    def stop(self) -> None:
        self._over.set()


def _until_it_goes(call: Callable[[], None], is_passing: Callable[[KafkaError], bool]) -> None:
    until = time.monotonic() + COMMIT_WITHIN_S
    while True:
        try:
            call()
        except KafkaException as failure:
            if not is_passing(failure.args[0]) or time.monotonic() > until:
                raise
        else:
            return
