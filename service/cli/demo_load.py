"""What `oncelog demo --load` writes: transfers between accounts in transactions of several producers, some aborted, one
in twenty sent twice by somebody who was not sure. It goes on whatever dies, until it is ended.

    python -m service.cli.demo_load localhost:9092
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator

from service.client.cluster import Cluster
from service.client.failures import ClientFailure
from service.client.pool import Address
from service.client.transaction import Transaction
from service.client.writer import OutgoingRecord, Writer

TOPIC = "transfers"
PRODUCERS = 3
PAUSE_S = 0.1
TRANSFERS = 5
"""How many transfers a transaction has."""
ABORTED = TWICE = 0.05
ACCOUNTS = ("anna", "berta", "carl", "dora", "emil", "frida")
TIMEOUT_S = 10.0


def transfers(chance: random.Random, numbers: Iterator[int]) -> list[OutgoingRecord]:
    found = []
    for _ in range(TRANSFERS):
        payer, payee = chance.sample(ACCOUNTS, 2)
        told = {"id": next(numbers), "payer": payer, "payee": payee, "amount": chance.randrange(1, 100)}
        record = (payer.encode(), json.dumps(told).encode(), (), time.time_ns() // 1_000_000)
        found += [OutgoingRecord(record)] * (2 if chance.random() < TWICE else 1)
    return found


async def produce(bootstrap: list[Address], name: str, numbers: Iterator[int]) -> None:
    chance = random.Random(name)
    while True:
        try:
            async with Cluster(bootstrap, client_id=name, timeout_s=TIMEOUT_S) as cluster:
                transaction = Transaction(cluster, name)
                writer = Writer(cluster, TOPIC, codec=0, transaction=transaction)
                await writer.open()
                while True:
                    await writer.write(transfers(chance, numbers))
                    await (transaction.abort() if chance.random() < ABORTED else transaction.commit())
                    await asyncio.sleep(PAUSE_S)
        except ClientFailure as failure:
            print(
                f"{name}: {failure}", flush=True
            )  # a new producer takes the id over and aborts what this one left open
            await asyncio.sleep(1)


async def main(bootstrap: str) -> None:
    addresses = [Address(host, int(port)) for host, _, port in (each.rpartition(":") for each in bootstrap.split(","))]
    numbers = itertools.count(time.time_ns() // 1_000)
    await asyncio.gather(*(produce(addresses, f"load-{number}", numbers) for number in range(PRODUCERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
