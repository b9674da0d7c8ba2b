"""The writers of the chaos do what a correct application does with the errors of its client library."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.chaos.cluster import writers
from tests.chaos.cluster.writers import Ending, ProducerSpent, TransactionalWriter

UNDELIVERED = KafkaError(
    KafkaError._INCONSISTENT, "7 message(s) failed delivery (see individual delivery reports)", txn_requires_abort=True
)

WRONG_STATE = KafkaError(KafkaError.INVALID_TXN_STATE, "Failed to end transaction", fatal=True)


class LateProducer:
    """Its commit fails for want of delivery, and its first abort is answered with that once more."""

    def __init__(self) -> None:
        self.aborts = 0

    def begin_transaction(self) -> None:
        pass

    def produce(self, *_: Any, **__: Any) -> None:
        pass

    def commit_transaction(self, _: float) -> None:
        raise KafkaException(UNDELIVERED)

    def abort_transaction(self, _: float) -> None:
        self.aborts += 1
        if self.aborts == 1:
            raise KafkaException(UNDELIVERED)


def test_an_abort_that_is_answered_with_the_failure_of_its_commit_is_asked_for_again() -> None:
    """Messages fail if they can't be delivered for as long as a transaction may last. The run was called wrong then,
    though nothing was lost.
    """
    producer = LateProducer()
    writer = TransactionalWriter("w", "nowhere", "t", 6, seed=1)
    writer.write(cast(Producer, producer))
    assert (writer.transactions[0].ending, producer.aborts) == (Ending.ABORTED, 2)


class NeverHeard(LateProducer):
    """The coordinator was away for so long that no partition was added."""

    def abort_transaction(self, _: float) -> None:
        raise KafkaException(WRONG_STATE)


def test_a_transaction_that_never_began_was_aborted_and_another_producer_goes_on() -> None:
    writer = TransactionalWriter("w", "nowhere", "t", 6, seed=1)
    with pytest.raises(ProducerSpent):
        writer.write(cast(Producer, NeverHeard()))
    assert writer.transactions[0].ending is Ending.ABORTED


def test_a_commit_in_a_wrong_state_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was acknowledged then. What is fatal to a producer was never told before."""
    writer = TransactionalWriter("w", "nowhere", "t", 6, seed=1)

    class Forgotten(LateProducer):
        def init_transactions(self, _: float) -> None:
            pass

        def commit_transaction(self, _: float) -> None:
            writer.stop()
            raise KafkaException(WRONG_STATE)

    monkeypatch.setattr(writers, "Producer", lambda _: Forgotten())
    writer.run()
    assert len(writer.failures) == 1
    assert writer.transactions[-1].ending is Ending.AMBIGUOUS
