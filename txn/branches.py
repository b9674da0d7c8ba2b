"""One transaction with many writers: the names of branches, and the one decision over all of them.

A branch is an ordinary transactional producer whose id is `<root>::<token>/<name>`, say `clicks::17/part-3-5f2c`.
Everything about a branch is in its id, so that any Kafka client can write one and every transaction tool shows where it
belongs. The id has the root; the token, a number that grows with every decision (for Spark: the batch id); and a name
that no other writer uses.

What always holds:
 - A branch is on the coordinator of its root (`home_of`), so that one record of the root can decide about all.
 - A branch commits only by its root's decision. A commit by its own writer seals it: everything is written and
   acknowledged, and nothing more can be written. A decision names only branches of its own token, open and sealed.
 - With a decision every other open branch up to its token is aborted, and no new branch with such a token can be
   opened. This stops zombies.
 - A token is decided once. If it is asked for again, the first decision is the answer.

The next branch of the root takes over the producer id of a finished one, with the next epoch (`reusable`). If every
task had a producer id of its own, these ids would fill the memory of every partition (KIP-936).
"""

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from idempotence.epochs import is_exhausted
from log.ids import NO_PRODUCER_ID, NO_TIMESTAMP
from txn.commands import EndBranches, NamedBranch
from txn.records import fits_key
from txn.states import COMPLETED, State, Txn
from txn.verdicts import BranchFault, Fenced, InvalidRequest, Verdict, WrongState

SEPARATOR: Final = "::"
MAX_TOKEN: Final = 2**63 - 1
MAX_BRANCHES: Final = 10_000
"""How many branches one decision may name. Spark's default is 200 tasks."""
MAX_UNDECIDED: Final = 2 * MAX_BRANCHES
"""How many branches of one root may be undecided. A decision also aborts those that it does not name, so there must
be a limit.
"""
MAX_DECIDED_BY: Final = 1_000
"""How many characters `decided_by` may have. A root remembers two such names."""

_BRANCH: Final = re.compile(r"(?P<root>.+?)::(?P<token>[0-9]{1,19})/(?P<name>.+)", re.DOTALL)


class BranchId(NamedTuple):
    """A transactional id, read as the name of a branch."""

    root: str
    token: int
    name: str

    def __str__(self) -> str:
        return f"{self.root}{SEPARATOR}{self.token}/{self.name}"


def branch_of(transactional_id: str) -> BranchId | None:
    """The parts of a branch's id; None for an id that names no branch."""
    if SEPARATOR not in transactional_id:
        return None
    match = _BRANCH.fullmatch(transactional_id)
    if match is None or int(match["token"]) > MAX_TOKEN:
        return None
    return BranchId(match["root"], int(match["token"]), match["name"])


def home_of(transactional_id: str) -> str:
    """The id whose coordinator is asked about this one: the root of a branch; otherwise the id itself."""
    branch = branch_of(transactional_id)
    return transactional_id if branch is None else branch.root


def is_open(txn: Txn) -> bool:
    """Whether a branch still waits for a decision."""
    return txn.state in (State.EMPTY, State.ONGOING)


def is_sealed(txn: Txn) -> bool:
    """Whether the writer of an open branch has declared its part complete."""
    return txn.sealed_ms != NO_TIMESTAMP


def token_of(txn: Txn) -> int:
    branch = branch_of(txn.transactional_id)
    assert branch is not None
    return branch.token


def reusable(txn: Txn) -> bool:
    """Whether a new branch can take over this one's producer id."""
    return txn.state in COMPLETED and not is_exhausted(txn.producer_epoch)


def check_decision(root: Txn | None, ask: EndBranches) -> Verdict | None:
    """Why this caller can decide nothing for this root now; None: it can."""
    if not ask.root or branch_of(ask.root) is not None or not fits_key(ask.root):
        return InvalidRequest("not the id of a root")
    if not 0 <= ask.token <= MAX_TOKEN:
        return InvalidRequest("a token is a number from 0 to 2^63 - 1")
    if len(ask.branches) > MAX_BRANCHES:
        return InvalidRequest(f"more than {MAX_BRANCHES} branches in one decision")
    if len(ask.decided_by) > MAX_DECIDED_BY:
        return InvalidRequest(f"more than {MAX_DECIDED_BY} characters to say who decides")
    if ask.producer_id != NO_PRODUCER_ID:
        if root is None:
            return InvalidRequest("an owner of a root that nobody owns")
        if (ask.producer_id, ask.producer_epoch) != root.holder:
            return Fenced(ask.producer_epoch, root.producer_epoch)
    if root is not None and root.state not in (State.EMPTY, *COMPLETED):
        return WrongState(root.state)
    return None


def fault_of(named: NamedBranch, txn: Txn | None, ask: EndBranches) -> BranchFault | None:
    """Why a named branch can't take part."""
    branch = branch_of(named.transactional_id)
    if branch is None or branch.root != ask.root:
        return BranchFault.NOT_A_BRANCH
    if branch.token != ask.token:
        return BranchFault.OTHER_TOKEN
    if txn is None:
        return BranchFault.UNKNOWN
    if not is_open(txn):
        return BranchFault.NOT_OPEN
    if not is_sealed(txn):
        return BranchFault.NOT_SEALED
    if named.producer_id != NO_PRODUCER_ID and (named.producer_id, named.producer_epoch) != txn.holder:
        return BranchFault.OTHER_PRODUCER
    return None


def is_aborted_by(txn: Txn, named: Collection[str], token: int) -> bool:
    """Whether a decision over this token aborts the branch: every open one up to the token, but for the named ones."""
    return is_open(txn) and txn.transactional_id not in named and token_of(txn) <= token


def remember(root: Txn, ask: EndBranches, *, wall_ms: int) -> Txn:
    """The root's record that decides. Its state does not change: a client that repeats the end of the root's own last
    transaction must still be told how it ended.
    """
    return root._replace(
        updated_ms=wall_ms, decided_token=ask.token, decided_by=ask.decided_by, decided_before=root.decided_by
    )
