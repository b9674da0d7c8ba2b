"""What the broker counts while it serves: plain integers, added to where the work is done, and read at any time.

Counts begin at zero with the process, and those of a partition with its place in the table.
"""

import logging
from collections import Counter, deque
from typing import Final

from idempotence.verdicts import Duplicate, Fenced, NotInTransaction, OutOfOrder, TransactionOpen, Verdict
from log.ids import TopicPartition
from log.tally import Histogram
from service.cluster.image import Delta

logger = logging.getLogger("oncelog.replication")

NO_ERROR = 0
FLAPS: Final = 3
FLAPS_WITHIN_MS: Final = 600_000
"""When each of its replicas is started again once, a partition of three loses two members under the same leader."""
FLAPS_FOLLOWED_MAX: Final = 10_000


class PartitionTally:
    """What clients did in one partition."""

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
        """A producer's batch was not taken up, for this reason."""
        match verdict:
            case Duplicate():
                self.duplicates += 1
            case OutOfOrder():
                self.out_of_order += 1
            case Fenced():
                self.fenced += 1
            case NotInTransaction() | TransactionOpen():
                self.outside_transaction += 1
            case _:
                pass


class ApiTally:
    """The requests of one kind."""

    __slots__ = ("errors", "seconds")

    def __init__(self) -> None:
        self.seconds = Histogram()
        """From when the request was there until it is answered, waiting included."""
        self.errors: Counter[int] = Counter()


class HttpTally:
    """What was asked by HTTP, by the table's paths (never by what a client wrote in their place)."""

    def __init__(self) -> None:
        self.answered: Counter[tuple[str, str, int]] = Counter()
        """By path, method and status."""
        self.seconds: dict[str, Histogram] = {}
        """By path; streams, which last as long as somebody follows them, are not timed."""
        self.problems: Counter[str] = Counter()
        self.replayed = 0
        """Requests that were answered as the first time, for their Idempotency-Key was known."""
        self.under_way = 0


class RequestTally:
    """Every request, and who is connected."""

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
        tally = self.api(name)
        tally.seconds.add(seconds)
        error = getattr(answer, "error_code", NO_ERROR)
        if error:
            tally.errors[error] += 1


class LeadershipTally:
    """What the metadata did to the partitions that a broker leads afterwards."""

    def __init__(self) -> None:
        self.shrunk = self.grown = 0
        """In-sync sets that lost a member; that got one."""
        self.elected = 0
        """Leaderships that began: this broker was in sync, or held all that was committed."""
        self.unclean = 0
        """Leaderships that began though this broker was neither: what it lacked is lost."""
        self._left: dict[TopicPartition, deque[int]] = {}

    def heard(self, delta: Delta, *, broker_id: int, now_ms: int) -> None:
        """The metadata has changed."""
        for partition in delta.partitions:
            old, new = delta.old.partition(partition), delta.new.partition(partition)
            if old is None or new is None or new.leader != broker_id:
                continue
            if delta.old.topics[partition.topic].id != delta.new.topics[partition.topic].id:
                continue
            if old.leader_epoch != new.leader_epoch:
                if broker_id in old.isr or broker_id in old.eligible:
                    self.elected += 1
                else:
                    self.unclean += 1
                    logger.error("%s: this broker leads though it was not in sync: what it lacks is lost", partition)
            self.grown += not set(new.isr) <= set(old.isr)
            if not set(old.isr) <= set(new.isr):
                self.shrunk += 1
                if partition in self._left or len(self._left) < FLAPS_FOLLOWED_MAX:
                    self._left.setdefault(partition, deque(maxlen=FLAPS)).append(now_ms)

    def flapping(self, now_ms: int) -> int:
        """Partitions whose in-sync set has lost a member again and again lately."""
        since_ms = now_ms - FLAPS_WITHIN_MS
        self._left = {partition: left for partition, left in self._left.items() if left[-1] >= since_ms}
        return sum(len(left) == FLAPS and left[0] >= since_ms for left in self._left.values())
