"""Clients of the chaos run that have nothing but HTTP, as a shell with curl has: they copy a topic, are killed at any
moment, and repeat blindly what they may have done before.

`copy_with_keys` sends each record by itself, with the group's offset and an Idempotency-Key made of its place; what it
is not told about it sends again as it was, often twice at once, and after a start it goes back over what is done.
`copy_in_transactions` begins, puts batches, commits; what it is not told about it asks for. Both ask any broker, and
after a failure another one. `copy_with_new_keys` has another key for each time it sends a record: who judges must find
records twice.
"""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

BATCH = 20
BACK = 30
"""Records that are sent again after a start."""
ABORT_EVERY = 7
TIMEOUT_S = 10.0
PAUSE_S = 0.05
PARTITIONS = 3

Body = dict[str, Any]
KeyOf = Callable[[str], str]
"""The key for the next time that a request is sent, made of its place."""


class Refused(Exception):
    """An answer that says what is wrong."""

    def __init__(self, status: int, body: Body) -> None:
        super().__init__(f"{status} {body}")
        self.status, self.body = status, body


class Http:
    """One connection to any of these addresses, to any again when it broke or its broker could not answer."""

    def __init__(self, urls: str) -> None:
        self._places = [urlsplit(url).netloc for url in urls.split(",")]
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, method: str, path: str, body: Body | None = None, key: str | None = None) -> Body:
        """The answer; OSError, if nobody told."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection(random.choice(self._places), timeout=TIMEOUT_S)
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Idempotency-Key": f'"{key}"'})
        content = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException) as failure:
            self.close()
            raise OSError(str(failure)) from failure
        found: Body = json.loads(said) if said else {}
        if answer.status >= 400:
            raise Refused(answer.status, found)
        return found

    def until_answered(
        self, method: str, path: str, body: Body | None = None, key: str | None = None, *, until: float
    ) -> Body:
        """The same again while nobody tells, or it says that it may be tried again."""
        while True:
            try:
                return self.ask(method, path, body, key)
            except OSError:
                pass
            except Refused as refused:
                if not refused.body.get("retriable") and refused.status != 504:
                    raise
                self.close()
            if time.monotonic() > until:
                raise TimeoutError(f"{method} {path}")
            time.sleep(PAUSE_S)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def positions(http_: Http, group: str, source: str, until: float) -> dict[int, int]:
    """Where the group is."""
    path = f"/v1/groups/{group}/offsets"
    try:
        told = http_.until_answered("GET", path, until=until)["offsets"]
    except Refused as refused:
        if refused.status != 404:
            raise
        told = []
    found = {each["partition"]: each["offset"] for each in told if each["topic"] == source}
    return {index: max(found.get(index, 0), 0) for index in range(PARTITIONS)}


def page(http_: Http, source: str, index: int, offset: int, until: float) -> list[Body]:
    path = f"/v1/topics/{source}/partitions/{index}/records?offset={offset}&max_records={BATCH}&wait_ms=100"
    records: list[Body] = http_.until_answered("GET", path, until=until)["records"]
    return records


def copied(record: Body, target: str) -> Body:
    return {"topic": target, "partition": record["partition"], "key": record["key"], "value": record["value"]}


def copy_with_keys(urls: str, source: str, target: str, group: str, until: float, key_of: KeyOf = str) -> None:
    start = positions(Http(urls), group, source, until)
    failures: list[BaseException] = []

    def partition(index: int) -> None:
        try:
            _copy_partition(urls, source, target, group, index, max(start[index] - BACK, 0), until, key_of)
        except BaseException as failure:  # noqa: BLE001 - told by the main thread
            failures.append(failure)

    threads = [threading.Thread(target=partition, args=(index,), daemon=True) for index in range(PARTITIONS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if failures:
            raise failures[0]
        time.sleep(PAUSE_S)
    if failures:
        raise failures[0]


def copy_with_new_keys(urls: str, source: str, target: str, group: str, until: float) -> None:
    copy_with_keys(urls, source, target, group, until, lambda place: f"{place}-{uuid.uuid4()}")


def _copy_partition(
    urls: str, source: str, target: str, group: str, index: int, offset: int, until: float, key_of: KeyOf
) -> None:
    mine, twin = Http(urls), Http(urls)
    while time.monotonic() < until:
        for record in page(mine, source, index, offset, until):
            assert record["offset"] == offset, "the source is written without transactions: no gaps"
            offset += 1
            offsets = {"group": group, "offsets": [{"topic": source, "partition": index, "offset": offset}]}
            body = {"records": [copied(record, target)], "offsets": offsets}
            place = f"{group}-{index}-{record['offset']}"
            if random.random() < 0.2:
                other = threading.Thread(target=_once, args=(twin, body, key_of(place)), daemon=True)
                other.start()
                mine.until_answered("POST", "/v1/records", body, key_of(place), until=until)
                other.join()
            else:
                mine.until_answered("POST", "/v1/records", body, key_of(place), until=until)


def _once(client: Http, body: Body, key: str) -> None:
    """A twin of a request: whatever becomes of it, nobody wants to know."""
    try:
        client.ask("POST", "/v1/records", body, key)
    except (OSError, Refused):
        return


def copy_in_transactions(urls: str, source: str, target: str, group: str, until: float) -> None:
    http_ = Http(urls)
    turn = 0
    while time.monotonic() < until:
        begin = {"transactional_id": group, "timeout_ms": 5_000}
        txn = "/v1/transactions/" + http_.until_answered("POST", "/v1/transactions", begin, until=until)["txn"]
        turn += 1
        # The transaction before is decided now, and so is where the group stands.
        here = positions(http_, group, source, until)
        pages = [page(http_, source, index, offset, until) for index, offset in here.items()]
        records = [copied(record, target) for some in pages for record in some]
        if not records:
            http_.until_answered("POST", f"{txn}:abort", until=until)
            continue
        try:
            half = len(records) // 2
            for number, some in enumerate((records[:half], records[half:]) if half else (records,)):
                http_.until_answered("PUT", f"{txn}/batches/{number}", {"records": some}, until=until)
            read = [
                {"topic": source, "partition": some[-1]["partition"], "offset": some[-1]["offset"] + 1}
                for some in pages
                if some
            ]
            http_.until_answered("PUT", f"{txn}/offsets/{group}", {"offsets": read}, until=until)
            if turn % ABORT_EVERY:
                http_.until_answered("POST", f"{txn}:commit", until=until)
            else:
                http_.until_answered("POST", f"{txn}:abort", until=until)
        except Refused as refused:
            # Its time is over, or its broker was started anew: what there is of it is not taken.
            if refused.status not in (409, 410):
                raise
            _give_up(http_, txn, until)


def _give_up(http_: Http, txn: str, until: float) -> None:
    try:
        http_.until_answered("POST", f"{txn}:abort", until=until)
    except Refused as refused:
        if refused.status not in (409, 410):
            raise


OVER_HTTP = {"http with keys": copy_with_keys, "http transactions": copy_in_transactions}
CARELESS = {"http with new keys": copy_with_new_keys}
