"""What the handlers of the group APIs share: asking the coordinator, and turning its verdicts into the protocol's
numbers.

A `Fault` is named as the protocol names it, so that the table between them is the names themselves.
"""

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from service.broker.coordinators import Coordinators
from service.broker.session import Session
from service.broker.shard import CoordinatorLoading, DecisionFailed, NotCoordinator
from service.groups.commands import Command
from service.groups.coordinator import GroupCoordinator
from service.groups.verdicts import Fault
from service.ports import Env
from service.wire.error_codes import ErrorCode

Reply = TypeVar("Reply")
Answer = TypeVar("Answer")
Groups: TypeAlias = Coordinators[GroupCoordinator]

# What anybody may do with a group while nobody is denied anything: read, delete, describe, describe and alter configs.
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
OFFSETS_AT_ONCE = 250
"""Written, read or deleted in one turn of the loop: each takes some ten to twenty microseconds."""
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
    """What is made of the coordinator's reply, or of why there is none. It is there at once for most that is asked: a
    task would cost as much as the rest. With a `session` the wait for it ends with the connection.
    """
    try:
        replied = groups.handle(group_id, command)
        if not replied.done():
            return _answer_later(made, replied, kind, session)
        reply = replied.result()
    except tuple(REFUSED) as refused:
        return made(REFUSED[type(refused)])
    assert isinstance(reply, kind)
    return made(reply)


async def _answer_later(
    made: Callable[[Reply | ErrorCode], Answer | Awaitable[Answer]],
    replied: Awaitable[Any],
    kind: type[Reply],
    session: Session | None,
) -> Answer:
    try:
        with nullcontext() if session is None else session.waits():
            reply = await replied
    except tuple(REFUSED) as refused:
        reply = REFUSED[type(refused)]
    assert isinstance(reply, (kind, ErrorCode))
    answer = made(reply)
    return await answer if isinstance(answer, Awaitable) else answer


def host_of(session: Session) -> str:
    """The client's address as Kafka writes it: a host name that is not known, a slash, the address."""
    return f"/{session.host}"


def fresh_id(env: Env) -> str:
    """For a classic member id, behind the client's or instance's name."""
    return str(UUID(bytes=env.unique()))


def fresh_member_id(env: Env) -> str:
    """For a consumer group's member that did not name itself."""
    return urlsafe_b64encode(env.unique()).rstrip(b"=").decode()


def operations(wanted: bool) -> int:
    return ALL_GROUP_OPERATIONS if wanted else OPERATIONS_NOT_ASKED
