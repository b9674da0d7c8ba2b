"""A broker on which a bit of everything is going on, for the tests of the pages and for their pictures."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.monitoring.test_prometheus import in_transaction, write_unasked
from tests.service.cli.kit import process
from tests.service.web.kit import PATIENCE_S, Served

HOSTILE = '"><script>document.title="taken"</script><b>\u202e' + "x" * 180
FEW = {
    "transaction.state.log.num.partitions": "3",
    "offsets.topic.num.partitions": "3",
    "transaction.partition.verification.enable": "false",
}


class Scene:
    """`orders` has committed, aborted, open and hanging transactions; groups read it, one of them by a hostile name."""

    def __init__(self, folder: Path) -> None:
        self.served = Served(folder, **FEW)
        self.url = self.served.url
        bootstrap = self.served.bootstrap
        for topic, partitions in (("orders", "4"), ("payments", "2"), ("audit.log", "1"), ("clicks", "12")):
            process("topic", "create", topic, "-p", partitions, ONCELOG_BOOTSTRAP=bootstrap)
        plain = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for number in range(400):
            for topic, count in (("orders", 4), ("payments", 2), ("clicks", 12)):
                value = f'{{"order": {number}, "sum": {number * 7 % 100}}}'
                plain.produce(topic, value, key=f"customer-{number % 9}", partition=number % count)
        plain.flush(PATIENCE_S)
        for number in range(6):
            each = in_transaction(bootstrap, f"checkout-{number}", "orders")
            (each.abort_transaction if number % 3 == 0 else each.commit_transaction)(PATIENCE_S)
        self.open = [
            in_transaction(bootstrap, "nightly-import", "orders"),
            in_transaction(bootstrap, HOSTILE, "payments"),
        ]
        for number in range(40):
            self.open[0].produce("orders", f'{{"imported": {number}}}', key="import", partition=number % 3)
        self.open[0].flush(PATIENCE_S)
        write_unasked(bootstrap, "audit.log", 4_242)
        self.commit("billing", "orders", 4, 60)
        self.commit("search-index", "clicks", 12, 33)
        self.commit(HOSTILE, "payments", 2, 10)

    def commit(self, group: str, topic: str, partitions: int, offset: int) -> None:
        consumer = Consumer({"bootstrap.servers": self.served.bootstrap, "group.id": group})
        offsets = [TopicPartition(topic, number, offset) for number in range(partitions)]
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def close(self) -> None:
        self.open.clear()
        self.served.kill()
