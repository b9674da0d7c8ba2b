"""The cluster as pages and metrics ask it: by the same questions as other clients, but this broker is asked without a
connection, and nobody waits for somebody who is silent.

What always holds: a question that is not answered soon goes on, for as long as any may, but the one who asked it gets a
failure; and until the same broker has answered, all others who ask it anything get one at once. Nothing is asked again
because of what an answer says: "not now" is an answer, too.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from service.client.failures import ClientFailure, FailureKind
from service.web.gateway import Gateway, Inside, first_error
from service.wire.base import Request, Struct
from service.wire.error_codes import ErrorCode
from service.wire.messages import DescribeBranchesRequest, DescribeTransactionsRequest, FetchResponse

R = TypeVar("R", bound=Struct)
T = TypeVar("T")

TIMEOUT_S: Final = 3.0
"""The longest time that a page may take. It says what it does not know rather than wait long."""
SOON_S: Final = 0.2
"""The shortest time that somebody has to answer."""
TIMES: Final = 4
"""Otherwise they have so many times as long as their slowest answer of late took."""
FADES: Final = 0.9
"""How much of that is remembered at the next answer."""
TELLS_WHAT_IS_COMMITTED: Final = (DescribeTransactionsRequest, DescribeBranchesRequest)
"""Coordinators wait before they answer these, until what they tell is on enough replicas."""


@dataclass(slots=True)
class Heard:
    """What is known of how soon somebody answers."""

    slowest_s: float = 0.1
    answered_s: float = -math.inf
    """When they answered last."""
    silent_since_s: float | None = None
    under_way: int = 0
    """Questions that they have not answered."""

    @property
    def patience_s(self) -> float:
        return max(SOON_S, TIMES * self.slowest_s)


class Hearing:
    """Asks somebody, and remembers who is silent."""

    def __init__(self) -> None:
        self._heard: dict[str, Heard] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    async def hear(self, who: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to what `ask` asks them."""
        heard = self._heard.setdefault(who, Heard())
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        if heard.silent_since_s is not None and heard.under_way:
            raise _silence(who, asked_s - heard.silent_since_s)
        task = loop.create_task(self._answered(heard, ask()))
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if heard.silent_since_s is None:
            for _ in range(2):  # twice, so that a loop that was held up itself still takes what has come meanwhile
                await asyncio.wait([task], timeout=heard.patience_s / 2)
            if task.done():
                return task.result()
            if heard.answered_s < asked_s:
                heard.silent_since_s = heard.silent_since_s or asked_s
        raise _silence(who, loop.time() - (heard.silent_since_s or asked_s))

    async def _answered(self, heard: Heard, question: Coroutine[Any, Any, T]) -> T:
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        heard.under_way += 1
        try:
            answer = await question
        finally:
            heard.under_way -= 1
        heard.answered_s, heard.silent_since_s = loop.time(), None
        if (took_s := heard.answered_s - asked_s) < TIMEOUT_S:
            heard.slowest_s = max(took_s, FADES * heard.slowest_s)
        return answer

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # who still waits for it has it


def _silence(who: str, since_s: float) -> ClientFailure:
    lasts = f" for {since_s:.0f} s" if since_s >= 1 else ""
    return ClientFailure(f"{who} has not answered{lasts}", FailureKind.UNREACHABLE)


class NearCluster(Inside):
    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, timeout_s=0.0)
        self.hearing = Hearing()

    async def ask(
        self, request: Request[R], *, node: int | None = None, wait_s: float = 0.0, version: int | None = None
    ) -> R:
        ask = partial(super().ask, request, node=node, wait_s=wait_s, version=version)
        asked = self._gateway.node_id if node is None else node
        if isinstance(request, TELLS_WHAT_IS_COMMITTED):
            return await self.hearing.hear(f"the transaction coordinator of broker {asked}", partial(_committed, ask))
        answer = await (ask() if asked == self._gateway.node_id else self.hearing.hear(f"broker {asked}", ask))
        if isinstance(answer, FetchResponse):
            _read_slices(answer)
        return answer

    async def offers(self, request: Struct, *, node: int | None = None) -> bool:
        ask = partial(super().offers, request, node=node)
        asked = self._gateway.node_id if node is None else node
        return await (ask() if asked == self._gateway.node_id else self.hearing.hear(f"broker {asked}", ask))


async def _committed(ask: Callable[[], Coroutine[Any, Any, R]]) -> R:
    """The answer, if it tells anything."""
    answer = await ask()
    if first_error(answer) == ErrorCode.COORDINATOR_NOT_AVAILABLE:
        raise ClientFailure("what the coordinator has decided last is not on enough replicas yet")
    return answer


def _read_slices(answer: FetchResponse) -> None:
    """This broker answers with slices of its files: read them."""
    for topic in answer.responses:
        for data in topic.partitions:
            records: Any = data.records
            if isinstance(records, list):
                data.records = b"".join(part if isinstance(part, bytes) else part.read() for part in records)
