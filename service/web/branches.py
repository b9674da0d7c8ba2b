"""A transaction that several processes write, each of them a branch, and the one decision about all branches.

A branch is begun, written and committed like any transaction, under the id `{root}::{token}/{name}`. Its commit seals
it, but readers see nothing of it yet. One PUT then decides the token: the named branches become visible together, and
every other branch up to the token is aborted. `txn/branches.py` has the rules. The coordinator keeps them; HTTP adds
nothing.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from service.broker.internal_topics import TRANSACTIONS
from service.client.failures import ClientFailure
from service.client.transactions import find_transaction
from service.turns import NAMED_A_TURN, in_turns
from service.web.answers import as_json, read_json
from service.web.gateway import PAUSE_S, TIMEOUT_S, Gateway
from service.web.problems import Outcome, Problem, of_error
from service.web.producers import Producer
from service.web.routing import LIST_BYTES, Route
from service.web.unpacking import body_of
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeBranchesRequest,
    EndBranchesRequest,
    EndBranchesResponse,
    NamedBranch,
)
from txn.branches import MAX_BRANCHES, MAX_TOKEN, BranchId, branch_of

logger = logging.getLogger("oncelog.http")

SEEN_AT_ONCE = 16
COMMITTED = ("PrepareCommit", "CompleteCommit")
LAST_EPOCH = 0x7FFE
"""If a transaction has this epoch, its decision takes another producer id."""


class BranchName(msgspec.Struct, forbid_unknown_fields=True):
    """A sealed branch, as the answer to its commit names it."""

    name: str
    producer_id: int = -1
    epoch: int = -1


class Decide(msgspec.Struct, forbid_unknown_fields=True):
    commit: bool
    """True: the named branches become visible, and all others up to the token are aborted. False: all are aborted, and
    the token may still be decided.
    """
    branches: list[BranchName] = []
    decided_by: str = ""
    """A name that the caller gives itself. It is told to callers that come later with the same token."""
    producer_id: int = -1
    epoch: int = -1
    """The epoch of the root's owner; -1 if the root has no owner. A former owner can't decide."""


class DecisionOnBranches(msgspec.Struct, omit_defaults=True):
    """`decided_now` is false if the token was decided before, or if all is thrown away. `outcome` is what became of the
    branches that are named; those of them that still waited are aborted then. `last_token` is the token of the last
    decision, this one or a later; it is left out if all was thrown away and the token is not decided.
    """

    outcome: Outcome
    decided_now: bool
    last_token: int | UnsetType = UNSET
    decided_by: str | UnsetType = UNSET


class BranchesOut(msgspec.Struct, omit_defaults=True):
    """What was decided last, and which branches wait for a decision. -1 means that nothing was decided, or that there
    is no owner.
    """

    root: str
    last_token: int
    open: list[OpenBranch]
    producer_id: int
    epoch: int
    decided_by: str | UnsetType = UNSET


class OpenBranch(msgspec.Struct):
    token: int
    name: str
    transactional_id: str


_decides = msgspec.json.Decoder(Decide)


async def decide(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    root, token = request.match_info["root"], _token(request.match_info["token"])
    wanted = read_json(await body_of(request), _decides)
    if len(wanted.branches) > MAX_BRANCHES:
        raise of_error(ErrorCode.INVALID_REQUEST, f"more than {MAX_BRANCHES} branches in one decision")
    _refuse_pair(wanted.producer_id, wanted.epoch)
    named: list[NamedBranch] = []
    async for each in in_turns(wanted.branches, NAMED_A_TURN):
        _refuse_pair(each.producer_id, each.epoch)
        named.append(NamedBranch(str(BranchId(root, token, each.name)), each.producer_id, each.epoch))
    question = EndBranchesRequest(
        *(root, token, wanted.commit, named, wanted.producer_id, wanted.epoch), decided_by=wanted.decided_by
    )
    deadline = asyncio.get_running_loop().time() + TIMEOUT_S
    while True:
        answer, in_doubt = await gateway.ask_to_change(TRANSACTIONS, root, question)
        is_held = answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        if not is_held or asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(PAUSE_S)
    if code := answer.error_code:
        # Another request about these branches is carried out, which may be this one when it was sent before.
        what = answer.error_message or f"branches of {root!r}"
        raise of_error(code, what, writing=True, in_doubt=in_doubt or is_held)
    if answer.decided_now:
        await _until_visible(gateway, named)
    outcome = await _outcome(gateway, answer, token, wanted, named)
    last_token = answer.last_token if answer.last_token >= 0 else UNSET
    return as_json(DecisionOnBranches(outcome, answer.decided_now, last_token, answer.decided_by or UNSET))


def _refuse_pair(producer_id: int, epoch: int) -> None:
    if not (-1 <= producer_id < 2**63 and -1 <= epoch < 2**15):
        raise Problem("invalid-request", f"{producer_id} and {epoch} are no producer id and epoch")


async def _outcome(
    gateway: Gateway, answer: EndBranchesResponse, token: int, wanted: Decide, named: list[NamedBranch]
) -> Outcome:
    """What happened to the branches that were named, by this decision or by another."""
    if answer.decided_now:
        return "applied"
    if not wanted.commit and answer.last_token < token:
        return "none"  # a branch is committed only by the decision of its token, and there is none
    fates: set[Outcome] = set()
    try:
        for at in range(0, len(named), SEEN_AT_ONCE):
            fates.update(await asyncio.gather(*(_fate(gateway, each) for each in named[at : at + SEEN_AT_ONCE])))
    except ClientFailure as failure:
        logger.info("what became of %d branches of token %d can't be told: %s", len(named), token, failure)
        fates.add("unknown")
    if len(fates) == 1 and "unknown" not in fates:
        return fates.pop()
    is_own = answer.last_token == token and answer.decided_by == wanted.decided_by != ""
    return "applied" if is_own and "none" not in fates else "unknown"


async def _fate(gateway: Gateway, branch: NamedBranch) -> Outcome:
    """What became of one branch. Its commit keeps its epoch, or raises it by one."""
    found = await find_transaction(gateway.cluster, branch.transactional_id)
    if found is None:
        return "unknown"  # it was forgotten, or never begun
    epochs = found.producer_epoch - branch.producer_epoch
    is_same = found.producer_id == branch.producer_id and 0 <= epochs <= 1
    is_renamed = branch.producer_epoch >= LAST_EPOCH and found.producer_epoch == 0
    if branch.producer_id >= 0 and not (is_same or is_renamed):
        return "none"  # begun anew by another, before the decision: afterwards nobody can
    return "applied" if found.state in COMMITTED else "none"


def _token(given: str) -> int:
    if not (given.isascii() and given.isdigit() and len(given) < 20 and int(given) <= MAX_TOKEN):
        raise Problem("malformed", f"a token is a whole number from 0 to {MAX_TOKEN}, not {given[:40]!r}")
    return int(given)


async def _until_visible(gateway: Gateway, named: list[NamedBranch]) -> None:
    for at in range(0, len(named), SEEN_AT_ONCE):
        some = named[at : at + SEEN_AT_ONCE]
        await asyncio.gather(*(Producer(gateway, each.transactional_id).until_visible() for each in some))


async def describe(gateway: Gateway, request: web.Request) -> web.StreamResponse:
    root = request.match_info["root"]
    (found,) = (await gateway.ask_coordinator(TRANSACTIONS, root, DescribeBranchesRequest([root]))).roots
    if found.error_code:
        raise of_error(found.error_code, f"branches of {root!r}")
    known = [(branch_of(each), each) for each in found.open_branches]
    waiting = [OpenBranch(branch.token, branch.name, given) for branch, given in known if branch is not None]
    place = found.producer_id, found.producer_epoch
    return as_json(BranchesOut(root, found.last_token, waiting, *place, found.decided_by or UNSET))


_ROOT = "/v1/branches/{root}"
ROUTES = (
    Route("GET", _ROOT, describe,
          "The last decision over a transactional id's branches, and the branches that wait for one.", "transactions",
          answer=BranchesOut, problems=(503,)),
    Route("PUT", _ROOT + "/decisions/{token}", decide,
          "Decide over all branches of a token: those that are named show together, the others never. May be"
          " repeated: a token that is decided is answered, not decided again.",
          "transactions", body=Decide, body_bytes_max=LIST_BYTES, answer=DecisionOnBranches,
          problems=(400, 409, 413, 422, 503, 504)),
)  # fmt: skip
