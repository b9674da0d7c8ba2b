"""What the handlers of the group APIs share: they ask the coordinator, and turn its verdicts into error codes.

A `Fault` has the same name as its error code, so no table between the two is needed.
"""

import asyncio
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from service.broker.coordinators import Coordinators
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.groups.commands import Command, OffsetToCommit
from service.groups.coordinator import GroupCoordinator
from service.groups.verdicts import Fault
from service.ports import Env
from service.turns import MadeLater, in_turns, slices_in_turns
from service.wire.error_codes import ErrorCode

Reply = TypeVar("Reply")
Thing = TypeVar("Thing")
Answer = TypeVar("Answer")
Groups: TypeAlias = Coordinators[GroupCoordinator]

# A bit for each operation on a group: read, delete, describe, describe and alter configs. Nobody is denied any yet.
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
OFFSETS_AT_ONCE = 250
"""How many offsets are written, read or deleted in one turn of the loop. Each takes ten to twenty microseconds."""
OFFSETS_AT_ONCE_BYTES = 500_000
"""So many bytes of notes and group ids are written at most: far less than the largest batch (1 MB), for each offset has
some more.
"""
OPERATIONS_NOT_ASKED = -(1 << 31)
REFUSED: dict[type[Exception], ErrorCode] = {
    NotCoordinator: ErrorCode.NOT_COORDINATOR,
    CoordinatorLoading: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    DecisionFailed: ErrorCode.UNKNOWN_SERVER_ERROR,
}


def error_code(fault: Fault | None) -> int:
    return ErrorCode.NONE if fault is None else ErrorCode[fault.name]


async def ask(groups: Groups, group_id: str, command: Command, kind: type[Reply]) -> Reply | ErrorCode:
    """The coordinator's reply, or why this broker can't give one."""
    try:
        reply = await groups.handle(group_id, command)
    except tuple(REFUSED) as refused:
        return REFUSED[type(refused)]
    assert isinstance(reply, kind)
    return reply


def answer_with(
    made: Callable[[Reply | ErrorCode], Answer | Awaitable[Answer]],
    groups: Groups,
    group_id: str,
    command: Command,
    kind: type[Reply],
    session: Session | None = None,
) -> Answer | Awaitable[Answer]:
    """Ask the coordinator, and make an answer of its reply, or of the reason why there is none. Most replies are there
    at once, and a task would cost as much as all the rest. With a `session`, the wait ends when the connection ends.
    """
    try:
        replied = groups.handle(group_id, command)
    except tuple(REFUSED) as refused:
        return made(REFUSED[type(refused)])
    if replied.done():
        return _made_of(made, kind, replied)
    if session is None:
        return MadeLater(replied, partial(_made_of, made, kind))
    session.waits_for(replied)
    return MadeLater(replied, partial(_made_for, session, made, kind))


def _made_for(
    session: Session,
    made: Callable[[Reply | ErrorCode], Answer | Awaitable[Answer]],
    kind: type[Reply],
    replied: asyncio.Future[Any],
) -> Answer | Awaitable[Answer]:
    session.waits_no_more(replied)
    return _made_of(made, kind, replied)


def _made_of(
    made: Callable[[Reply | ErrorCode], Answer | Awaitable[Answer]], kind: type[Reply], replied: asyncio.Future[Any]
) -> Answer | Awaitable[Answer]:
    try:
        reply = replied.result()
    except tuple(REFUSED) as refused:
        return made(REFUSED[type(refused)])
    assert isinstance(reply, kind)
    return made(reply)


async def offsets_in_turns(things: Iterable[Thing], group_id: str) -> AsyncIterator[list[Thing]]:
    """What a request names, in slices of which each fits into one turn, and its records into one batch."""
    async for some in slices_in_turns(things, OFFSETS_AT_ONCE):
        async for part in in_turns(_that_fit(some, group_id), 1):
            yield part


def _that_fit(some: list[Thing], group_id: str) -> Iterator[list[Thing]]:
    part, room, of_group = list[Thing](), OFFSETS_AT_ONCE_BYTES, len(group_id.encode())
    for each in some:
        size = of_group + (len(each.metadata.encode()) if isinstance(each, OffsetToCommit) else 0)
        if size > room and part:
            yield part
            part, room = [], OFFSETS_AT_ONCE_BYTES
        part.append(each)
        room -= size
    yield part


def host_of(session: Session) -> str:
    """The client's address in Kafka's form: an unknown host name, a slash, the address."""
    return f"/{session.host}"


def fresh_id(env: Env) -> str:
    """A fresh id. A classic member id is the client's or instance's name with such an id after it."""
    return str(UUID(bytes=env.unique()))


def fresh_member_id(env: Env) -> str:
    """A fresh id for a member of a consumer group that has not chosen one."""
    return urlsafe_b64encode(env.unique()).rstrip(b"=").decode()


def operations(wanted: bool) -> int:
    return ALL_GROUP_OPERATIONS if wanted else OPERATIONS_NOT_ASKED
