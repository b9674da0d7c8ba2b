"""What the broker counts while it serves: plain integers, added to where the work is done, and read at any time.

Counts begin at zero with the process, and those of a partition with its place in the table.
"""

from collections import Counter

from idempotence.verdicts import Duplicate, Fenced, NotInTransaction, OutOfOrder, TransactionOpen, Verdict
from log.tally import Histogram

NO_ERROR = 0


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
