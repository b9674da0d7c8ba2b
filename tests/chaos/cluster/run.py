"""Three brokers and three ZooKeepers under faults, with writers at work; then peace, and everything is read back.

A run comes to its end in a bounded time, with a summary. Whatever does not come to its own end by then is named there,
with the place where it waits.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException

from tests.chaos.cluster.faults import Fault, Faults
from tests.chaos.cluster.machines import CARELESS, SAFE, SESSION_S, Cluster, build
from tests.chaos.cluster.moves import make_whole
from tests.chaos.cluster.verdict import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Verdict,
    compare_replicas,
    judge_transactions,
    judge_values,
    read_topic,
)
from tests.chaos.cluster.writers import Ending, SteadyWriter, TransactionalWriter
from tests.chaos.run import PARTITIONS as COPIED_PARTITIONS
from tests.chaos.run import Copier, Distance, Feeder, Judged, judge, let_finish
from tests.chaos.whence import whence
from tests.clients.three import out_of_sync
from tests.clients.topics import Topics
from tests.peers.network import Network

PARTITIONS = 6
WRITERS = 3
TICK_S = 0.05
MENDED_WITHIN_S = 240.0
"""A restart of each broker in turn takes a while."""
WHOLE_WITHIN_S = 90.0
REGISTERED_WITHIN_S = 30.0
JOINED_WITHIN_S = 180.0
"""A writer's own waits are shorter."""
AFTERWARDS_S = 600.0
"""From the last fault to the summary, beside the time that the faults had: what was written in it is read back, from
every replica, in a third of it. What is waited for on the way has bounds of its own; this is for what should not
happen.
"""


@dataclass
class Summary:
    seconds: float = 0.0
    values: int = 0
    transactions: Counter[str] = field(default_factory=Counter)
    inputs: int = 0
    ambiguous: int = 0
    faults: list[Fault] = field(default_factory=list)
    client_kills: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    copies: Judged = field(default_factory=Judged)
    """Of all copiers together."""
    wrong: list[str] = field(default_factory=list)
    """What is wrong beside the data: who hung, who ended by itself, what did not become whole."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    whole_after_s: float = 0.0
    is_judged: bool = False

    @property
    def is_clean(self) -> bool:
        return self.is_judged and not self.wrong and not self.copies.faults and not self.verdict.lines()

    def __str__(self) -> str:
        found = self.verdict
        faults = ", ".join(f"{kind} {count}" for kind, count in Counter(fault.kind for fault in self.faults).items())
        longest = max((until - since for since, until in self.gaps), default=0.0)
        lines = [
            *found.lines(),
            *self.copies.faults,
            *self.wrong,
            f"operations: {self.values} values, {sum(self.transactions.values())} transactions"
            f" ({', '.join(f'{count} {ending}' for ending, count in sorted(self.transactions.items()))}),"
            f" {self.inputs} inputs copied",
            f"faults in {self.seconds:.0f} s: {faults or 'none'}; clients killed {self.client_kills}",
            *self._by_kind(),
            f"whole again {self.whole_after_s:.1f} s after the last fault",
            *([] if self.is_judged else ["not everything was read back: what follows is true of a part only"]),
            f"ambiguous {self.ambiguous + self.transactions[Ending.AMBIGUOUS.value]},"
            f" lost {len(found.lost) + self.copies.lost}, doubled {len(found.doubled) + self.copies.doubled},"
            f" torn {len(found.torn)}, unlike {len(found.unlike)},"
            f" longest unavailability {longest:.1f} s",
        ]
        return "\n".join(lines)

    def _by_kind(self) -> Iterator[str]:
        """How long a partition acknowledged nothing at most, for faults that came alone."""
        times: dict[str, list[float]] = {}
        for fault in self.faults:
            until = fault.ended_s + SESSION_S
            if any(
                other is not fault and other.began_s < until and other.ended_s > fault.began_s - SESSION_S
                for other in self.faults
            ):
                continue
            during = [end - begin for begin, end in self.gaps if begin < until and end > fault.began_s]
            times.setdefault(fault.kind, []).append(max(during, default=0.0))
        for kind, found in sorted(times.items()):
            median, most = statistics.median(found), max(found)
            yield f"  {kind}: nothing acknowledged for {median:.1f} s, at most {most:.1f} s ({len(found)} times)"


def _create(topics: Topics, partitions: int) -> str:
    """A new topic, as soon as as many brokers are registered as it has replicas: one that starts on a busy machine may
    be late.
    """
    deadline = time.monotonic() + REGISTERED_WITHIN_S
    while True:
        try:
            return topics.create(partitions)
        except KafkaException as refused:
            if refused.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def run(folder: Path, *, seconds: float, seed: int, kinds: list[str], clients: list[str], careless: bool) -> Summary:
    """`careless`: with settings that lose what was acknowledged."""
    summary = Summary(seconds=seconds)
    cluster = build(folder, Network(), settings=CARELESS if careless else SAFE)

    def work() -> None:
        try:
            _run(cluster, summary, folder, random.Random(seed), kinds, clients, careless=careless)
        except Exception:  # noqa: BLE001 - whatever it is, there is a summary, and it is red
            summary.wrong.append(f"the run ended early: {traceback.format_exc()}")

    running = threading.Thread(target=work, name="the run", daemon=True)
    try:
        running.start()
        running.join(2 * seconds + AFTERWARDS_S)
        summary.wrong += _where_it_waits(running)
        summary.wrong += _said(cluster)
    finally:
        cluster.end()
    return summary


def _run(
    cluster: Cluster,
    summary: Summary,
    folder: Path,
    chance: random.Random,
    kinds: list[str],
    clients: list[str],
    *,
    careless: bool,
) -> None:
    cluster.start()
    topics = Topics(cluster.bootstrap, "chaos", replicas=3)
    steady, shared, source = (_create(topics, count) for count in (PARTITIONS, PARTITIONS, COPIED_PARTITIONS))
    copiers = [
        Copier(name, cluster.bootstrap, source, _create(topics, COPIED_PARTITIONS), folder, cluster.urls)
        for name in clients
    ]
    feeder, distance = Feeder(cluster.bootstrap, source), Distance(cluster.urls, copiers, source)
    writer = SteadyWriter(cluster.bootstrap, steady, PARTITIONS, acks="1" if careless else "all")
    transactional = [
        TransactionalWriter(f"writer-{number}", cluster.bootstrap, shared, PARTITIONS, chance.randrange(1 << 32))
        for number in range(WRITERS)
    ]
    distance.start()
    try:
        with _at_work(writer, transactional, summary):
            faults = Faults(cluster, chance, [steady, shared, source], kinds)
            summary.faults = faults.past
            _disturb(cluster, faults, chance, copiers, feeder, distance, summary)
            _tell("the last fault is over")
            _heal(cluster, faults, summary)
            _tell("the cluster is whole")
    finally:
        distance.stop()
        summary.values, summary.ambiguous = writer.told.sent, writer.told.ambiguous
        summary.gaps, summary.inputs = writer.told.gaps, feeder.count
        summary.wrong += [*writer.told.failures, *(each for one in transactional for each in one.failures)]
        for one in transactional:
            summary.transactions.update(each.ending.value for each in one.transactions)
    feeder.finish()
    summary.wrong += [*feeder.failures, *let_finish(cluster.bootstrap, copiers, source)]
    for copier in copiers:
        copier.kill()
    folders = [broker.data for broker in cluster.brokers.values()]
    whence_of = partial(whence, folders)
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        read = read_topic(cluster.bootstrap, steady, PARTITIONS, isolation)
        judge_values(summary.verdict, steady, writer.told, read, isolation, whence_of)
        compare_replicas(summary.verdict, cluster, steady, read, isolation)
        for topic in (source, *(copier.target for copier in copiers)):
            copied = read_topic(cluster.bootstrap, topic, COPIED_PARTITIONS, isolation)
            compare_replicas(summary.verdict, cluster, topic, copied, isolation)
        read = read_topic(cluster.bootstrap, shared, PARTITIONS, isolation)
        compare_replicas(summary.verdict, cluster, shared, read, isolation)
        _tell(f"everything is read back, {isolation}")
    for one in transactional:
        judge_transactions(summary.verdict, one.writer, one.transactions, shared, read, whence_of)
    for copier in copiers:
        judged = judge(cluster.bootstrap, copier, source, summary.inputs, folders)
        summary.copies.faults += judged.faults
        summary.copies.lost += judged.lost
        summary.copies.doubled += judged.doubled
    summary.is_judged = True


def _tell(what: str) -> None:
    """How far a run is that nothing befalls any more."""
    print(f"  {time.strftime('%H:%M:%S')} {what}", flush=True)


def _where_it_waits(thread: threading.Thread) -> list[str]:
    """Empty if it is over."""
    frame = sys._current_frames().get(thread.ident or 0)
    if not thread.is_alive() or frame is None:
        return []
    return [f"{thread.name} hangs: {''.join(traceback.format_stack(frame)[-4:])}"]


@contextmanager
def _at_work(writer: SteadyWriter, transactional: list[TransactionalWriter], summary: Summary) -> Iterator[None]:
    everybody: list[SteadyWriter | TransactionalWriter] = [writer, *transactional]
    for one in everybody:
        one.start()
    try:
        yield
    finally:
        for one in everybody:
            one.stop()
        until = time.monotonic() + JOINED_WITHIN_S
        for one in everybody:
            one.join(max(until - time.monotonic(), 0))
            summary.wrong += _where_it_waits(one)


def _disturb(
    cluster: Cluster,
    faults: Faults,
    chance: random.Random,
    copiers: list[Copier],
    feeder: Feeder,
    distance: Distance,
    summary: Summary,
) -> None:
    until = time.monotonic() + summary.seconds
    next_fault_s, next_client_s = time.monotonic() + 3.0, time.monotonic() + 5.0
    while (now_s := time.monotonic()) < until:
        for copier in copiers:
            copier.keep_running()
        if copiers:
            feeder.feed(5 if distance.is_short(feeder.count) else 0)
        faults.mend_due()
        cluster.keep_running()
        if now_s >= next_fault_s:
            faults.begin_one()
            next_fault_s = time.monotonic() + chance.choice((0.5, 4.0, 10.0))
        if copiers and now_s >= next_client_s:
            summary.client_kills += chance.choice(copiers).strike()
            next_client_s = time.monotonic() + chance.uniform(3.0, 15.0) / len(copiers)
        time.sleep(TICK_S)


def _heal(cluster: Cluster, faults: Faults, summary: Summary) -> None:
    """Everything is mended, and the cluster becomes whole, each within a time that is bounded."""
    until = time.monotonic() + MENDED_WITHIN_S
    faults.mend_due(everything=True)
    while faults.under_way:
        if time.monotonic() > until:
            summary.wrong.append(f"not mended: {', '.join(faults.under_way)}")
            break
        cluster.keep_running()
        time.sleep(TICK_S)
        faults.mend_due(everything=True)
    began_s = time.monotonic()
    lacking = ["everything"]
    asked_s = 0.0
    while lacking:
        now_s = time.monotonic()
        if now_s - began_s > WHOLE_WITHIN_S:
            summary.wrong.append(f"not whole {WHOLE_WITHIN_S:.0f} s after the last fault: {lacking[:8]}")
            return
        cluster.keep_running()
        time.sleep(0.2)
        if now_s - asked_s > 5.0:
            asked_s = now_s
            try:
                make_whole(cluster)
            except (OSError, TimeoutError):
                continue
        # At every broker: a move that was under way when they were made whole may have taken a replica away since.
        lacking = out_of_sync(cluster.admin, at_least=len(cluster.brokers))
    summary.whole_after_s = time.monotonic() - began_s


def _said(cluster: Cluster) -> list[str]:
    """What the brokers' own words say is wrong."""
    wrong = list(cluster.ended)
    for number, broker in cluster.brokers.items():
        text = broker.log_path.read_text(errors="replace")
        if "Traceback" in text:
            at = text.index("Traceback")
            wrong.append(f"broker {number} met an error of its own: …{text[max(at - 300, 0) : at + 1500]}")
    return wrong
