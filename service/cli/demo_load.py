"""What `oncelog demo --load` writes, in transactions of several producers, some aborted: transfers between accounts,
one in twenty sent twice by somebody who was not sure, and clicks of users. It goes on whatever dies, until it is ended.

    python -m service.cli.demo_load localhost:9092
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

from service.client.cluster import Cluster
from service.client.failures import ClientFailure
from service.client.pool import Address
from service.client.transaction import Transaction
from service.client.writer import OutgoingRecord, Writer

PRODUCERS = 3
"""Of transfers. One more writes clicks."""
PAUSE_S = 0.1
TRANSFERS = 5
"""How many transfers a transaction has."""
ABORTED = TWICE = 0.05
ACCOUNTS = ("anna", "berta", "carl", "dora", "emil", "frida")
USERS, CLICKS = 20, 2
"""How many users click, and how many of them in a transaction."""
SESSION_S, RESTS_S = 15.0, 40.0
"""How long a user clicks, and rests then: longer than the half minute that ends a session."""
TIMEOUT_S = 10.0
Make = Callable[[random.Random], list[OutgoingRecord]]
"""Makes the records of one transaction."""


def transfers(numbers: Iterator[int], chance: random.Random) -> list[OutgoingRecord]:
    found = []
    for _ in range(TRANSFERS):
        payer, payee = chance.sample(ACCOUNTS, 2)
        told = {"id": next(numbers), "payer": payer, "payee": payee, "amount": chance.randrange(1, 100)}
        record = (payer.encode(), json.dumps(told).encode(), (), time.time_ns() // 1_000_000)
        found += [OutgoingRecord(record)] * (2 if chance.random() < TWICE else 1)
    return found


def clicks(chance: random.Random) -> list[OutgoingRecord]:
    """Users click and rest in turns, each at another time."""
    now_s, every_s = time.time(), SESSION_S + RESTS_S
    awake = [user for user in range(USERS) if (now_s + user * every_s / USERS) % every_s < SESSION_S]
    return [
        OutgoingRecord((b"user %d" % user, b"/pears", (), int(now_s * 1000)))
        for user in chance.choices(awake, k=CLICKS)
    ]


async def produce(bootstrap: list[Address], name: str, topic: str, make: Make) -> None:
    chance = random.Random(name)
    while True:
        try:
            async with Cluster(bootstrap, client_id=name, timeout_s=TIMEOUT_S) as cluster:
                transaction = Transaction(cluster, name)
                writer = Writer(cluster, topic, codec=0, transaction=transaction)
                await writer.open()
                while True:
                    await writer.write(make(chance))
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
    make = partial(transfers, numbers)
    await asyncio.gather(
        *(produce(addresses, f"load-{number}", "transfers", make) for number in range(PRODUCERS)),
        produce(addresses, "load-clicks", "clicks", clicks),
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
