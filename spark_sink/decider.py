"""Who decided: the name that a sink gives itself with each decision, and what it makes of one that it finds made.

The broker remembers for each root who made its last decision and the one before. A batch that Spark runs again after a
crash finds its own query there, and has nothing to do. Another query that is found there has written rows of its own
under this number: to pass that over would drop the rows of this batch in silence.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

DIGEST_CHARACTERS = 16
LONGEST_APP = 500  # characters as they are written down; a broker remembers no more than 1,000 for all


@dataclass(frozen=True, slots=True)
class Decider:
    """What is not known is empty."""

    query: str = ""  # the id of the streaming query, which is its checkpoint's
    run: str = ""  # that of its run: another one after each start
    reads: str = ""  # which offsets the batch reads, in short
    rows: int | None = None  # how many the batch has
    app: str = ""  # batch writes: txnAppId
    topic: str = ""  # batch writes: the option
    batch: int | None = None  # batch writes: which one of the query they are part of
    write: str = ""  # batch writes: this one, not another in the same batch

    def __str__(self) -> str:
        return json.dumps({name: value for name, value in asdict(self).items() if value not in ("", None)})

    @classmethod
    def read(cls, text: str) -> Decider | None:
        """None if nobody said, or said it in another way."""
        try:
            return cls(**json.loads(text)) if text else None
        except (TypeError, ValueError):
            return None

    def described(self) -> str:
        if self.app:
            where = f" to topic {self.topic!r}" if self.topic else ""
            return f"txnAppId {self.app!r}{where}" + (f" in query {self.query}" if self.query else "")
        return f"query {self.query} in run {self.run}"


def name_of_app(app: str) -> str:
    """The name itself, unless it is too long to be remembered."""
    return app if len(json.dumps(app)) <= LONGEST_APP else _digest(app.encode())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGEST_CHARACTERS]


def digest_of_offsets(checkpoint: str | None, batch: int) -> str:
    """What Spark noted that the batch reads, if its checkpoint is a folder of this machine: the same text whenever the
    batch runs again, another one in a copy that went its own way."""
    if checkpoint is None:
        return ""
    try:
        noted = (Path(checkpoint.removeprefix("file://").removeprefix("file:")) / "offsets" / str(batch)).read_bytes()
    except OSError:
        return ""
    return _digest(noted)


def conflict(mine: Decider, token: int, last_token: int, last: Decider | None, before: Decider | None) -> str | None:
    """Why a decision that was found made is not this batch's own; None: it is, as far as can be known."""
    if mine.app:
        return _conflict_of_apps(mine, token, last_token, last)
    if last_token > token:
        return (
            f"a later batch, {last_token}, is decided: the checkpoint was rewound, or another query has the same root"
        )
    if last is None:
        return None
    if last.app or last.query != mine.query:
        return f"it was decided by another one, {last.described()}"
    if last.run == mine.run:
        return None  # the answer was lost
    if last.reads and mine.reads:
        if last.reads != mine.reads:
            return (
                f"it was decided by {last.described()}, which read other offsets: the checkpoint was copied or rewound"
            )
    elif problem := _other_rows(mine, last):
        return problem
    if before is not None and before.run == mine.run:
        return f"it was decided by {last.described()}, while this run was under way: the checkpoint was copied"
    return None


def _other_rows(mine: Decider, last: Decider) -> str | None:
    """A batch that runs again has the rows that it had. One that was planned anew, after a backup of the checkpoint was
    restored, has more: those that came since. Versions before this one left no count.
    """
    if mine.rows is None or last.rows is None or mine.rows == last.rows:
        return None
    return (
        f"it was decided by {last.described()}, with {last.rows} rows, and has {mine.rows} now: the checkpoint was"
        " copied or rewound, or the query gives other rows each time"
    )


def _conflict_of_apps(mine: Decider, token: int, last_token: int, last: Decider | None) -> str | None:
    """A version that the same application wrote is written once; that is no conflict. But a query that writes versions
    comes back to the last one only.
    """
    if last is None:
        return None
    another_query = mine.query and last.query and mine.query != last.query
    if (last.app, last.topic) != (mine.app, mine.topic) or another_query:
        return f"it was decided by another one, {last.described()}"
    if not mine.query:
        return None
    if last_token > token:
        if last.query and (last.batch is None or last.batch == mine.batch):
            return None  # one batch writes several versions; versions of this program before left no batch
        return f"a later version, {last_token}, is decided by {last.described()}: the checkpoint was rewound"
    if mine.run and last.run == mine.run:
        if last.write in ("", mine.write):
            return None  # the answer was lost
        return f"it was decided by another write of the same batch, {last.described()}"
    return _other_rows(mine, last)
