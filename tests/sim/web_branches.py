"""Drivers of transactions with many writers, by HTTP: branches that are begun, written and sealed as resources, and the
one decision over them.

Two drivers share a root. Of one token only one attempt may count, whatever was repeated blindly, and each is told what
became of its own branches. They leave branches open, unnamed or unsealed, and come back with tokens that are decided.
What comes to a branch after its seal, at any broker, is not taken; and what is on its way meanwhile is in it or never
will be, as the seal says, or the same batch, put again, is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.sim.history import Outcome, TokenTold, Transaction, Write
from tests.sim.plan import INPUT
from tests.sim.web_clients import Answer, Told, WebActor, WebLine, let_go, record_of
from tests.sim.workload import SETTLE_WITHIN, Clients, Unanswered

ROOT, GROUP = "webstreams", "branches"


@dataclass(slots=True)
class Branch:
    path: str
    named: dict[str, Any] | None = None
    """As the answer to its commit names it."""
    written: list[tuple[list[Write], Answer]] = field(default_factory=list)


class Broken(Exception):
    """A step was refused: the attempt is given up."""


class BranchDriver(WebActor):
    def __init__(self, clients: Clients, name: str, brokers: Sequence[str], told: Told) -> None:
        super().__init__(clients, name, brokers, told)
        self._brokers = brokers

    async def turn(self) -> None:
        await asyncio.sleep(5 * self.chance.random())
        with contextlib.suppress(Broken):
            token = await self._next_token()
            await self._attempt(max(0, token - 1) if self.chance.random() < 0.1 else token)

    async def settle(self) -> None:
        deadline = self.clients.now + 4 * SETTLE_WITHIN
        pause_s = 5.0
        while self.clients.now < deadline:
            with contextlib.suppress(Broken, Unanswered):
                if await self._attempt(await self._next_token(), is_last=True):
                    return
            await asyncio.sleep(pause_s * self.chance.random())
            pause_s += 5.0  # others do so too
        self.history.stuck.append(f"{self.name} can't decide over branches of {ROOT}")

    async def _next_token(self) -> int:
        invoked = self.clients.now
        answer = await self._done("GET", f"/v1/branches/{ROOT}", 200)
        told = answer.json
        self._note(invoked, told)
        for branch in told["open"]:
            if branch["token"] <= told["last_token"]:
                self.wrong(f"{branch} waits, and {told['last_token']} is decided")
        return int(told["last_token"]) + 1

    def _note(self, invoked: float, told: dict[str, Any]) -> None:
        if told["last_token"] >= 0:
            by = told.get("decided_by", "")
            self.history.tokens_told.append(TokenTold(ROOT, told["last_token"], by, invoked, self.clients.now))

    async def _done(self, method: str, path: str, status: int, body: bytes = b"") -> Answer:
        answer = await self.insist(method, path, body)
        if answer.status != status:
            raise Broken(answer.body)
        return answer

    async def _attempt(self, token: int, *, is_last: bool = False) -> bool:
        """Whether this attempt counts for sure."""
        chance = self.chance
        txn, stray = self._begun(token), self._begun(token)
        branches = [await self._open(token) for _ in range(chance.randrange(1, 4))]
        for branch in branches:
            for number in range(chance.randrange(1, 3)):
                await self._write(branch, number, txn)
            if chance.random() < 0.3:
                await self._done("PUT", f"{branch.path}/offsets/{GROUP}", 200, read_up_to(token))
        if chance.random() < 0.3:
            left = await self._open(token)
            await self._write(left, 0, stray)
            if chance.random() < 0.5:
                await self._seal(left)
        if not is_last and chance.random() < 0.1:
            return False  # the driver died
        for branch in branches:
            if chance.random() < 0.3:
                await self._overtake(branch, txn)
            await self._seal(branch)
            if chance.random() < 0.3:
                await self._come_late(branch, token)
        await self._decide(txn, token, branches, commit=is_last or chance.random() < 0.9)
        return txn.outcome is Outcome.OK

    def _begun(self, token: int) -> Transaction:
        txn = self.open_transaction(ROOT)
        txn.transactional_id, txn.many_writers = f"{ROOT}::{token}", True
        return txn

    async def _open(self, token: int) -> Branch:
        name = f"{ROOT}::{token}/{self.name}-{self.clients.world.identity()}".replace(" ", "-")
        asked = json.dumps({"transactional_id": name, "timeout_ms": 60_000}).encode()
        begun = await self._done("POST", "/v1/transactions", 201, asked)
        return Branch(f"/v1/transactions/{begun.json['txn']}")

    async def _write(self, branch: Branch, number: int, txn: Transaction) -> None:
        values = self.some_records(f"b{txn.number}")
        writes = self.note(txn, values)
        body = json.dumps({"records": [record_of(*each) for each in values]}).encode()
        for _ in range(self.chance.choice((1, 1, 2))):
            answer = await self._done("PUT", f"{branch.path}/batches/{number}", 200, body)
        branch.written.append((writes, answer))

    async def _seal(self, branch: Branch) -> None:
        answer = await self._done("POST", f"{branch.path}:commit", 200)
        branch.named = answer.json["branch"]

    async def _overtake(self, branch: Branch, txn: Transaction) -> None:
        """Seal while a batch is on its way to any broker, and then ask what became of that."""
        batch = self.open_transaction(ROOT)
        values = self.some_records(f"b{batch.number}")
        writes = self.note(batch, values)
        body = json.dumps({"records": [record_of(*each) for each in values]}).encode()
        number = len(branch.written)
        path = f"{branch.path}/batches/{number}"
        line = WebLine(self, self._brokers)
        asyncio.ensure_future(line.ask("PUT", path, body)).add_done_callback(partial(let_go, line))
        await asyncio.sleep(self.chance.choice((0.0, 0.02, 0.5)) * self.chance.random())
        self.web.drop()
        sealed = await self.insist("POST", f"{branch.path}:commit")  # refused if the batch is there in part
        batches = sealed.json.get("next_batch", -1) if sealed.status == 200 else -1
        answer = await self.insist("PUT", path, body)
        if answer.status == 200 or batches > number:
            txn.values += batch.values
            batch.values.clear()
        elif batches < 0:
            raise Broken("nobody knows whether the batch is in the branch, which is not named")
        if answer.status == 200:
            branch.written.append((writes, answer))
            if batches not in (-1, number + 1):
                self.wrong(f"{path} is in its branch, which had {batches} batches when it was sealed")

    async def _come_late(self, branch: Branch, token: int) -> None:
        """With what was not written before the seal; nothing of it may ever show."""
        late = self._begun(token)
        late.outcome = Outcome.FAILED
        values = self.some_records(f"b{late.number}")
        self.note(late, values)
        batch = json.dumps({"records": [record_of(*each) for each in values]}).encode()
        for what, body in (f"batches/{len(branch.written)}", batch), (f"offsets/{GROUP}", read_up_to(token + 1)):
            self.web.drop()
            with contextlib.suppress(Unanswered):
                answer = await self.insist("PUT", f"{branch.path}/{what}", body)
                if answer.status == 200:
                    self.wrong(f"{what} of {branch.path} was written after the seal: {answer.body!r}")

    async def _decide(self, txn: Transaction, token: int, branches: list[Branch], *, commit: bool) -> None:
        mine = str(txn.number)
        body = {"commit": commit, "branches": [each.named for each in branches], "decided_by": mine}
        txn.committed_asked, txn.end_invoked = commit, self.clients.now
        if commit:
            txn.outcome = Outcome.UNKNOWN
        invoked = self.clients.now
        answer = await self.insist("PUT", f"/v1/branches/{ROOT}/decisions/{token}", json.dumps(body).encode())
        if answer.status != 200:
            if not self.in_doubt and answer.json["outcome"] == "none":
                txn.outcome = Outcome.FAILED
            raise Broken(answer.body)
        told = answer.json
        if not commit:
            if told["outcome"] == "applied" and not told["decided_now"]:
                self.wrong(f"branches that nobody has committed are told to show: {told}")
            return
        self._note(invoked, told)
        if told["last_token"] < token:
            self.wrong(f"{token} is decided, and the last is told to be {told['last_token']}")
        if told["outcome"] == "applied":
            for branch in branches:
                for writes, given in branch.written:
                    self.take(txn, writes, given.json["results"])
        elif told["outcome"] == "none":
            txn.outcome = Outcome.FAILED


def read_up_to(offset: int) -> bytes:
    return json.dumps({"offsets": [{"topic": INPUT, "partition": 0, "offset": offset}]}).encode()
