"""Counters of what the broker serves: plain integers, which are added to where the work is done and may be read at any
time.

Counters begin at zero with the process. Those of a partition begin at zero when the partition is added to the table.
"""

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Final

from idempotence.verdicts import Duplicate, NotInTransaction, OutOfOrder, StaleEpoch, TransactionOpen, Verdict
from log.ids import TopicPartition
from log.tally import Histogram
from service.cluster.image import Delta
from service.ports import Clock
from service.turns import Steps, Turn

logger = logging.getLogger("oncelog.replication")

NO_ERROR = 0
FLAPS: Final = 3
FLAPS_WITHIN_MS: Final = 600_000
"""An in-sync set that loses members FLAPS times within this time is flapping. A rolling restart is not flapping: it
takes two members of a partition of three out under the same leader.
"""
FLAPS_FOLLOWED_MAX: Final = 10_000
COUNTED_A_TURN: Final = 1_000
"""So many changed partitions are looked at in one turn."""


class PartitionTally:
    """Counters of what clients did in one partition."""

    __slots__ = (
        "appended",
        "bytes_in",
        "bytes_out",
        "duplicates",
        "failed_reads",
        "fenced",
        "out_of_order",
        "outside_transaction",
        "reads",
        "records_in",
        "refused",
    )

    def __init__(self) -> None:
        self.appended = self.records_in = self.bytes_in = self.refused = 0
        self.reads = self.bytes_out = self.failed_reads = 0
        self.duplicates = self.out_of_order = self.fenced = self.outside_transaction = 0

    def judged(self, verdict: Verdict) -> None:
        """Count a producer's batch that was not appended, by its verdict."""
        match verdict:
            case Duplicate():
                self.duplicates += 1
            case OutOfOrder():
                self.out_of_order += 1
            case StaleEpoch():
                self.fenced += 1
            case NotInTransaction() | TransactionOpen():
                self.outside_transaction += 1
            case _:
                pass


class ApiTally:
    """Counters of the requests of one kind."""

    __slots__ = ("errors", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram()
        """Seconds from the arrival of a request until it is answered, waits included."""
        self.errors: Counter[int] = Counter()


class HttpTally:
    """HTTP requests, by the path of the route. A path that a client wrote is never used as a name."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """By path, method and status."""
        self.seconds: dict[str, Histogram] = {}
        """By path. Streams are not timed, because they last as long as a client follows them."""
        self.problems: Counter[str] = Counter()
        self.replayed = 0
        """Requests that got the answer of an earlier request, because their Idempotency-Key was known."""
        self.under_way = 0
        self.streams = 0
        self.keys: Callable[[], Mapping[str, int]] = dict
        """How many Idempotency-Keys this broker knows, by their state."""


class RequestTally:
    """All requests, and all connections."""

    def __init__(self) -> None:
        self.http = HttpTally()
        self.apis: dict[str, ApiTally] = {}
        self.connections: Counter[str] = Counter()

    def api(self, name: str) -> ApiTally:
        tally = self.apis.get(name)
        if tally is None:
            tally = self.apis[name] = ApiTally()
        return tally

    def answered(self, name: str, answer: object, seconds: float) -> None:
        tally = self.apis.get(name) or self.api(name)
        tally.seconds.add(seconds)
        error = getattr(answer, "error_code", NO_ERROR)
        if error:
            tally.errors[error] += 1


class LeadershipTally:
    """Changes of the metadata that concern the partitions led by this broker."""

    def __init__(self, broker_id: Callable[[], int], clock: Clock) -> None:
        self._broker_id = broker_id
        self._clock = clock
        self.shrunk = self.grown = 0
        """How many in-sync sets lost a member, and how many gained one."""
        self.elected = 0
        """Leaderships that began while this broker held all that was committed: it was in sync or eligible, or became a
        member in the same commit.
        """
        self.unclean = 0
        """Leaderships that began while this broker was neither: records that it lacked are lost."""
        self._left: dict[TopicPartition, deque[int]] = {}

    def heard(self, delta: Delta) -> Steps[None]:
        """Count what a change of the metadata did."""
        broker_id, now_ms, turn = self._broker_id(), self._now_ms(), Turn(COUNTED_A_TURN)
        for partition in delta.partitions:
            if turn.is_over():
                yield
            old, new = delta.old.partition(partition), delta.new.partition(partition)
            if old is None or new is None or new.leader != broker_id:
                continue
            if delta.old.topics[partition.topic].id != delta.new.topics[partition.topic].id:
                continue
            if old.leader_epoch != new.leader_epoch:
                # A commit that ends a reassignment makes new replicas members, and may let one of them lead at once.
                moved_here = broker_id in old.adding and broker_id not in new.adding
                if broker_id in old.isr or broker_id in old.eligible or moved_here:
                    self.elected += 1
                else:
                    self.unclean += 1
                    logger.error("%s: this broker leads though it was not in sync: what it lacks is lost", partition)
            self.grown += not set(new.isr) <= set(old.isr)
            if not set(old.isr) <= set(new.isr):
                self.shrunk += 1
                if partition in self._left or len(self._left) < FLAPS_FOLLOWED_MAX:
                    self._left.setdefault(partition, deque(maxlen=FLAPS)).append(now_ms)

    def flapping(self) -> int:
        """How many partitions had an in-sync set that lost members repeatedly of late."""
        since_ms = self._now_ms() - FLAPS_WITHIN_MS
        self._left = {partition: left for partition, left in self._left.items() if left[-1] >= since_ms}
        return sum(len(left) == FLAPS and left[0] >= since_ms for left in self._left.values())

    def _now_ms(self) -> int:
        return int(self._clock.monotonic() * 1000)
