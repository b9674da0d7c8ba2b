"""One transaction with many writers: drivers that let branches be written and sealed, and decide over them; and
transactions that outlive the client that prepared them, because somebody else decides.

Two drivers share a root, as a Spark query that runs twice by mistake does: of one token only one attempt may count.
They leave branches open, unnamed or unsealed, ask again after doubts, come back with tokens that are decided, and let
writers go on that should have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from functools import partial

from log.ids import TopicPartition
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeBranchesRequest,
    DescribeTransactionsRequest,
    EndBranchesRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    NamedBranch,
)
from tests.sim.history import Outcome, TokenTold, Transaction
from tests.sim.plan import OUTPUT
from tests.sim.postman import Postman
from tests.sim.transactions import AGAIN, TRIES, ExactlyOnce, Ownership, Refused
from tests.sim.workload import SETTLE_WITHIN, Clients, Unanswered, until_true

ROOT = "streams"
NEWEST_PRODUCE, NEWEST_END = 12, 5
MANY_OPENED, MANY_TRIES = 5, 10


class Participant(ExactlyOnce):
    """Writes and ends in the newest manner."""

    def __init__(self, clients: Clients, name: str, postman: Postman) -> None:
        super().__init__(clients, name)
        self.postman = postman

    def begin(self, transactional_id: str, owner: Ownership | None = None) -> Transaction:
        """Without an owner there are many."""
        pair = (owner.producer_id, owner.epoch) if owner is not None else (-1, -1)
        number = self.clients.world.identity()
        txn = Transaction(number, transactional_id, *pair, self.clients.now, many_writers=owner is None)
        self.history.transactions.append(txn)
        return txn

    async def write(self, transactional_id: str, owner: Ownership, txn: Transaction, order: int) -> TopicPartition:
        """Where it was written."""
        partition = self.chance.choice([each for each in self.clients.partitions() if each.topic == OUTPUT])
        await self.write_to(partition, None, transactional_id, owner, txn, order)
        return partition

    async def write_to(
        self,
        partition: TopicPartition,
        key: bytes | None,
        transactional_id: str,
        owner: Ownership,
        txn: Transaction,
        order: int,
    ) -> None:
        values = self.values(self.chance.randrange(1, 4), f"b{txn.number}")
        txn.values.extend((partition, value) for value in values)
        sending = self.prepare(
            owner, partition, values, transactional_id=transactional_id, version=NEWEST_PRODUCE, order=order, key=key
        )
        self.postman.see(sending.request, NEWEST_PRODUCE)

        async def send() -> int:
            return await self.send(sending)

        try:
            await self.insist(f"a batch to {partition}", transactional_id, send)
        except Refused as refused:
            sending.write.error = str(refused)
            raise

    async def end(self, transactional_id: str, owner: Ownership, *, committed: bool) -> Ownership:
        """The pair that EndTxn hands out."""
        answered: list[Ownership] = []

        async def ask() -> int:
            request = EndTxnRequest(transactional_id, owner.producer_id, owner.epoch, committed)
            self.postman.see(request, NEWEST_END)
            response = await self.line.ask(request, NEWEST_END)
            if response.error_code == ErrorCode.NONE:
                answered.append(Ownership(response.producer_id, response.producer_epoch))
            return response.error_code

        await self.insist(f"EndTxn of {transactional_id}", transactional_id, ask)
        return answered[0]


@dataclass(slots=True)
class Branch:
    transactional_id: str
    owner: Ownership
    order: int
    sealed: Ownership | None = None

    def named(self) -> NamedBranch:
        assert self.sealed is not None
        return NamedBranch(self.transactional_id, self.sealed.producer_id, self.sealed.epoch)


class Driver(Participant):
    """Decides token after token for a root."""

    def __init__(self, clients: Clients, name: str, postman: Postman) -> None:
        super().__init__(clients, name, postman)
        self._root: Ownership | None = None  # where it has made the root its own
        self._decided = -1  # the newest token it knows to be decided
        self._quitter: tuple[str, Ownership] | None = (
            None  # the writer that gave up a branch, and its producer id and epoch from before
        )
        self._opened = self._tries = 0  # branches since it did, and how often it has tried to write since

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        with contextlib.suppress(Refused):
            if self.chance.random() < 0.1:
                self._root = None if self._root else await self.initialize(ROOT, 60_000)
            token = await self._next_token()
            await self._attempt(max(0, token - 1) if self.chance.random() < 0.1 else token)

    async def settle(self) -> None:
        """Decide over one token more. Others do so too."""
        deadline = self.clients.now + 2 * SETTLE_WITHIN
        self._root = None
        longest_pause = 5.0
        while self.clients.now < deadline:
            with contextlib.suppress(Refused, Unanswered):
                if await self._attempt(await self._next_token(), commit=True):
                    return
            await asyncio.sleep(longest_pause * self.chance.random())
            longest_pause += 5.0
        self.history.stuck.append(f"{self.name} can't decide over branches of {ROOT}")

    async def _next_token(self) -> int:
        told = -1

        async def ask() -> int:
            nonlocal told
            invoked = self.clients.now
            [root] = (await self.line.ask(DescribeBranchesRequest([ROOT]))).roots
            if root.error_code == ErrorCode.NONE:
                told = root.last_token
                self._note(invoked, root.last_token, root.decided_by)
                for branch in root.open_branches:
                    token = int(branch.split("::")[1].split("/")[0])
                    if token <= told:
                        self.history.wrong.append(f"{self.clients.now:.6f} {branch} waits, and {told} is decided")
            return root.error_code

        await self.insist("the branches", ROOT, ask)
        return max(told + 1, 0)

    def _note(self, invoked: float, token: int, by: str) -> None:
        self._decided = max(self._decided, token)
        self.history.tokens_told.append(TokenTold(ROOT, token, by, invoked, self.clients.now))

    async def _attempt(self, token: int, *, commit: bool = False) -> bool:
        """Let a few branches be written, and decide. True if this attempt counts for sure."""
        decided_before = self._decided
        txn = self.begin(f"{ROOT}::{token}")
        stray_txn = self.begin(f"{ROOT}::{token}")
        timeout_ms = 60_000 if commit else self.chance.choice((2000, 60_000))
        if not commit and self.clients.plan.brokers == 1 and self.chance.random() < 0.3:
            await self._quit(token, timeout_ms)
        branches = [await self._open(token, txn, timeout_ms) for _ in range(self.chance.randrange(1, 4))]
        stray = await self._open(token, stray_txn, timeout_ms) if self.chance.random() < 0.3 else None
        if token <= decided_before:
            self.history.wrong.append(f"{self.clients.now:.6f} a branch of {token} was opened, it is decided")
        for _ in range(self.chance.randrange(1, 6)):
            branch = self.chance.choice(branches)
            partition = await self.write(branch.transactional_id, branch.owner, txn, branch.order)
            await self._haunt(token)
            if self.plan.haunts:
                await self._haunt_its_heir(token, branch, partition)
        if stray is not None:
            await self.write(stray.transactional_id, stray.owner, stray_txn, stray.order)
        if not commit and self.chance.random() < 0.1:
            return False  # the driver died
        for branch in branches:
            branch.sealed = await self.end(branch.transactional_id, branch.owner, committed=True)
        if stray is not None and self.chance.random() < 0.5:
            stray.sealed = await self.end(stray.transactional_id, stray.owner, committed=True)
        counts = await self._decide(txn, token, branches, committed=commit or self.chance.random() < 0.9)
        if not commit and txn.outcome is not Outcome.UNKNOWN and self.chance.random() < 0.3:
            await self._write_too_late(token, stray or self.chance.choice(branches))
        return counts

    async def _quit(self, token: int, timeout_ms: int) -> None:
        """A writer gives its branch up, as it may. Its producer id is used again, by others."""
        txn = self.begin(f"{ROOT}::{token}")
        branch = await self._open(token, txn, timeout_ms)
        await self.write(branch.transactional_id, branch.owner, txn, branch.order)
        told = await self.end(branch.transactional_id, branch.owner, committed=False)
        self._quitter, self._opened, self._tries = (branch.transactional_id, told), 0, 0

    async def _haunt(self, token: int) -> None:
        """It goes on writing with its former producer id and epoch when others own the id."""
        if self._quitter is None or self._opened < MANY_OPENED:
            return
        name, owner = self._quitter
        with contextlib.suppress(Refused):
            await self.write(name, owner, self.begin(f"{ROOT}::{token}"), -self.clients.world.identity())
        self._tries += 1
        if self._tries == MANY_TRIES:
            self._quitter = None

    async def _haunt_its_heir(self, token: int, branch: Branch, partition: TopicPartition) -> None:
        """It writes where the one that has its producer id now has just written."""
        if self._quitter is not None and self._quitter[1].producer_id == branch.owner.producer_id:
            name, owner = self._quitter
            txn, order = self.begin(f"{ROOT}::{token}"), -self.clients.world.identity()
            with contextlib.suppress(Refused):
                await self.write_to(partition, None, name, owner, txn, order)

    async def _write_too_late(self, token: int, branch: Branch) -> None:
        """What a writer sends in a transaction that is over is seen by nobody.

        Over several brokers markers take their time, as they do where a disk has no room for them at once, and what is
        written before they come belongs to what is ended, as in Kafka: there it is waited for them.
        """
        comes_late = self.plan.brokers > 1 or {"disk full", "no descriptors"} & set(self.plan.kinds)
        if comes_late and not await until_true(self.clients, partial(self._is_complete, branch)):
            return
        await self.write(branch.transactional_id, branch.owner, self.begin(f"{ROOT}::{token}"), branch.order)

    async def _is_complete(self, branch: Branch) -> bool:
        answer = await self.line.ask(DescribeTransactionsRequest([branch.transactional_id]))
        [told] = answer.transaction_states
        forgotten = told.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND  # its producer id has gone to another
        return forgotten or (not told.error_code and told.transaction_state.startswith("Complete"))

    async def _open(self, token: int, txn: Transaction, timeout_ms: int) -> Branch:
        self._opened += 1
        order = self.clients.world.identity()
        branch = f"{ROOT}::{token}/{self.name}-{txn.number}-{order}"
        return Branch(branch, await self.initialize(branch, timeout_ms), -order)

    async def _decide(self, txn: Transaction, token: int, branches: list[Branch], *, committed: bool) -> bool:
        mine = str(txn.number)
        pair = (self._root.producer_id, self._root.epoch) if self._root else (-1, -1)
        named = [branch.named() for branch in branches]
        request = EndBranchesRequest(ROOT, token, committed, named, *pair, decided_by=mine)
        txn.committed_asked, txn.end_invoked = committed, self.clients.now
        if committed:
            txn.outcome = Outcome.UNKNOWN
        for asked in range(TRIES):
            invoked = self.clients.now
            try:
                answer = await self.line.ask(request)
            except Unanswered:
                await asyncio.sleep(0.3 * self.chance.random())
                continue
            self.clients.judge_error(answer.error_code, f"the decision over {ROOT} {token}")
            if answer.error_code in AGAIN:
                await asyncio.sleep(0.05 + 0.2 * self.chance.random())
                continue
            if answer.error_code:
                if not asked:
                    txn.outcome = Outcome.FAILED  # nothing of ours was under way when it was refused
                raise Refused(answer.error_code)
            if not committed:
                return False
            self._note(invoked, answer.last_token, answer.decided_by)
            if answer.last_token < token:
                self.history.wrong.append(
                    f"{self.clients.now:.6f} {token} is decided, and {answer.last_token} the last"
                )
            if answer.last_token == token:
                txn.completed = self.clients.now
                txn.outcome = Outcome.OK if answer.decided_by == mine else Outcome.FAILED
                self.postman.keep(request, 0)
            elif not asked:
                txn.outcome = Outcome.FAILED  # it had been decided before
            return txn.outcome is Outcome.OK
        return False


class Preparer(Participant):
    """Prepares transactions that another actor decides over, goes away, comes back, and ends them as was decided."""

    _unanswered = 0  # inits; each may still arrive, and abort what is prepared by then

    async def turn(self) -> None:
        await asyncio.sleep(self.chance.random())
        with contextlib.suppress(Refused):
            await self._prepare_and_end()

    async def settle(self) -> None:
        deadline = self.clients.now + 2 * SETTLE_WITHIN
        while self.clients.now < deadline:
            with contextlib.suppress(Refused, Unanswered):
                if await self._prepare_and_end(commit=True):
                    return
            await asyncio.sleep(0.3)
        self.history.stuck.append(f"{self.name} can't end what it has prepared")

    async def _prepare_and_end(self, *, commit: bool = False) -> bool:
        owner, _ = await self._take(keep=False)
        txn = self.begin(self.name, owner)
        order = -self.clients.world.identity()
        for _ in range(self.chance.randrange(1, 4)):
            await self.write(self.name, owner, txn, order)
        committed = commit or self.chance.random() < 0.7
        if committed:  # from here on it's decided elsewhere, and must become true here
            txn.committed_asked, txn.outcome = True, Outcome.UNKNOWN
        await asyncio.sleep(self.chance.choice((0.0, 0.5, 3.0)) * self.chance.random())
        heir, ongoing = await self._take(keep=True)
        if ongoing != (owner.producer_id, owner.epoch):
            if self._unanswered and heir.epoch > owner.epoch + 1:
                return False
            self.history.wrong.append(
                f"{self.clients.now:.6f} {self.name} prepared {owner.producer_id, owner.epoch}, kept is {ongoing}"
            )
        txn.end_invoked = self.clients.now
        await self.end(self.name, heir, committed=committed)
        txn.completed = self.clients.now
        if committed:
            txn.outcome = Outcome.OK
        return committed

    async def _take(self, *, keep: bool) -> tuple[Ownership, tuple[int, int]]:
        taken: list[tuple[Ownership, tuple[int, int]]] = []

        async def ask() -> int:
            request = InitProducerIdRequest(self.name, 2000, enable2_pc=True, keep_prepared_txn=keep)
            self._unanswered += 1
            response = await self.line.ask(request, 6)
            self._unanswered -= 1
            if response.error_code == ErrorCode.NONE:
                owner = Ownership(response.producer_id, response.producer_epoch)
                taken.append((owner, (response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch)))
            return response.error_code

        await self.insist(f"InitProducerId of {self.name}", self.name, ask)
        return taken[0]
