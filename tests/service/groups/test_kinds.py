"""The router of the coordinator, shown with a third kind of group that is made up here: a waiting room.

Who enters is a guest until a minute has passed. The coordinator knows nothing of waiting rooms.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, NamedTuple, cast, get_args

import pytest

from service.groups.commands import (
    Command,
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerHeartbeatReply,
    DescribeClassicGroup,
    DescribeConsumerGroup,
    FaultReply,
    FetchOffsets,
    Heartbeat,
    JoinReply,
    LeaveReply,
    ListedGroupFacts,
    SyncGroup,
)
from service.groups.coordinator import OWN_COMMANDS, GroupCoordinator
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.kinds import Decide, FallDue, Group, Kinds, OffsetCheck, PutOff, any_offset
from service.groups.known_kinds import known_kinds
from service.groups.offsets import CommittedOffset
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView
from service.groups.verdicts import Draft, Fault, RecordPair, Token
from tests.service.groups.driver import Driver

WAIT_MS = 60_000
GUEST = b"\0\x63"  # what the keys of its records begin with; then group and guest


class Enter(NamedTuple):
    group_id: str
    guest: str


class Mood(Enum):
    QUIET = "Quiet"
    LIVELY = "Lively"


@dataclass
class WaitingRoom:
    kind: ClassVar[str] = "waiting room"

    group_id: str
    members: dict[str, str] = field(default_factory=dict)
    heard_of: list[str] = field(default_factory=list, compare=False)

    @property
    def state(self) -> Mood:
        return Mood.LIVELY if self.members else Mood.QUIET

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def is_abandoned(self) -> bool:
        return self.is_empty

    def listed(self) -> ListedGroupFacts:
        return ListedGroupFacts(self.group_id, "waiting", self.state.value, self.kind)

    def is_subscribed_to(self, topic: str) -> bool:
        return topic == "events" and bool(self.members)

    def may_commit(self, ask: CommitOffsets) -> Fault | OffsetCheck:
        return any_offset if ask.member_id in self.members else Fault.UNKNOWN_MEMBER_ID

    def may_commit_in_transaction(self, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck:
        return Fault.UNSUPPORTED_VERSION

    def fetching_fault(self, ask: FetchOffsets) -> Fault | None:
        return Fault.STALE_MEMBER_EPOCH if ask.member_epoch == 13 else None

    def deleting_fault(self) -> Fault | None:
        return None

    def idle_since_ms(self, committed: CommittedOffset) -> int | None:
        return committed.commit_timestamp_ms


class WaitingRooms:
    group_type = WaitingRoom
    done_in_turns: frozenset[str] = frozenset()
    record_prefixes = frozenset({GUEST})

    def __init__(self, deadlines: Deadlines[DeadlineName]) -> None:
        self._deadlines = deadlines
        self.commands: dict[type, Decide] = {Enter: self._enter}
        self.joins: dict[type, PutOff] = {Enter: lambda ask: "closed"}
        self.deadlines: dict[str, FallDue] = {"bored": self._go}

    def _enter(self, room: WaitingRoom | None, ask: Enter, token: Token, draft: Draft) -> None:
        draft.records.append(record(ask.group_id, ask.guest, there=True))
        self._deadlines.set(("bored", ask.group_id, ask.guest), draft.now_ms + WAIT_MS)
        draft.answer(token, 1 if room is None else len(room.members) + 1)

    def _go(self, room: WaitingRoom, guest: str, draft: Draft) -> None:
        draft.records.append(record(room.group_id, guest, there=False))

    def refuse(self, group: Group, command: Enter, token: Token, draft: Draft) -> None:
        draft.answer(token, f"{group.group_id} is a {group.kind} group")

    def apply(self, groups: dict[str, Group], key: bytes, value: bytes | None, *, is_replay: bool) -> None:
        group_id, guest = key[2:].decode().split("/")
        room = groups.get(group_id)
        if not isinstance(room, WaitingRoom):
            room = WaitingRoom(group_id)
        if value is None and not guest:
            groups.pop(group_id)
            return
        if value is None:
            room.members.pop(guest, None)
        else:
            room.members[guest] = ""
        groups[group_id] = room

    def make_ready(self, group: WaitingRoom) -> Generator[None, None, None]:
        yield from ()

    def wake(self, group: WaitingRoom, draft: Draft) -> WaitingRoom:
        for guest in group.members:
            self._deadlines.set(("bored", group.group_id, guest), draft.now_ms + WAIT_MS)
        return group

    def heard_of(self, group: WaitingRoom, member_id: str, draft: Draft) -> None:
        group.heard_of.append(member_id)

    def bury(self, group: WaitingRoom) -> list[RecordPair]:
        return [record(group.group_id, "", there=False)]

    def facts(self, group: WaitingRoom, *, is_awake: bool) -> object:
        return group


def record(group_id: str, guest: str, *, there: bool) -> RecordPair:
    return GUEST + f"{group_id}/{guest}".encode(), b"" if there else None


def with_waiting_rooms(settings: GroupSettings, topics: TopicView, deadlines: Deadlines[DeadlineName]) -> Kinds:
    known = known_kinds(settings, topics, deadlines)
    return known._replace(kinds=(*known.kinds, WaitingRooms(deadlines)))


@pytest.fixture
def driver() -> Driver:
    return Driver(make_kinds=with_waiting_rooms)


def room_of(driver: Driver, group_id: str = "room") -> WaitingRoom:
    (room,) = (group for group in driver.machine.groups() if group.group_id == group_id)
    assert isinstance(room, WaitingRoom)
    return room


def test_another_kind_of_group_has_its_commands_records_and_deadlines(driver: Driver) -> None:
    assert driver.ask(Enter("room", "ann")) == 1
    driver.wait(WAIT_MS // 2)
    assert driver.ask(Enter("room", "bob")) == 2
    driver.wait(WAIT_MS // 2)
    assert list(room_of(driver).members) == ["bob"]


def test_another_kind_of_group_is_woken_after_a_replay(driver: Driver) -> None:
    driver.ask(Enter("room", "ann"))
    driver.restart()
    assert driver.listed()["room"] == ("waiting room", "Lively", "waiting")
    driver.wait(WAIT_MS)
    assert room_of(driver).is_empty


def test_another_kind_of_group_says_who_may_commit_and_hears_of_it(driver: Driver) -> None:
    driver.ask(Enter("room", "ann"))
    assert driver.commit(5, group="room", member="bob") is Fault.UNKNOWN_MEMBER_ID
    assert driver.commit(7, group="room", member="ann") is None
    assert driver.commit_in_transaction(1, group="room") is Fault.UNSUPPORTED_VERSION
    assert (driver.committed("room"), room_of(driver).heard_of) == (7, ["ann"])
    assert driver.fetch("room", member_epoch=13).fault is Fault.STALE_MEMBER_EPOCH


def test_another_kind_of_group_is_deleted_when_it_is_empty(driver: Driver) -> None:
    driver.ask(Enter("room", "ann"))
    driver.commit(7, group="room", member="ann")
    assert driver.delete_group("room") is Fault.NON_EMPTY_GROUP
    driver.wait(WAIT_MS)
    assert driver.delete_group("room") is None
    assert (driver.listed(), driver.committed("room")) == ({}, -1)


def test_another_kind_of_group_is_gone_when_its_last_offset_has_expired() -> None:
    settings = GroupSettings(offsets_retention_ms=3_600_000)
    driver = Driver(settings, make_kinds=with_waiting_rooms)
    driver.ask(Enter("room", "ann"))
    driver.commit(7, group="room", member="ann")
    driver.wait(settings.offsets_retention_ms - WAIT_MS)
    assert "room" in driver.listed()
    driver.wait(WAIT_MS + settings.offsets_retention_check_interval_ms)
    assert driver.listed() == {}


def test_a_group_whose_kind_knows_no_other_refuses_what_is_not_its_own(driver: Driver) -> None:
    driver.ask(Enter("room", "ann"))
    written = len(driver.log)
    assert driver.join("room").fault is Fault.INCONSISTENT_GROUP_PROTOCOL
    assert driver.ask(Heartbeat("room", 1, "ann", None)) == FaultReply(Fault.UNKNOWN_MEMBER_ID)
    assert driver.ask(SyncGroup("room", 1, "ann", None, None, None, ())).fault is Fault.UNKNOWN_MEMBER_ID
    left = driver.leave("ann", group="room")
    assert (type(left), left.members[0].fault) == (LeaveReply, Fault.UNKNOWN_MEMBER_ID)
    beat = driver.beat("ann", 0, "room")
    assert (type(beat), beat.fault) == (ConsumerHeartbeatReply, Fault.GROUP_ID_NOT_FOUND)
    for described in (driver.ask(DescribeClassicGroup("room")), driver.ask(DescribeConsumerGroup("room"))):
        assert (described.fault, described.message) == (
            Fault.GROUP_ID_NOT_FOUND,
            "group room is a waiting room group",
        )
    assert (len(driver.log), list(room_of(driver).members)) == (written, ["ann"])


def test_the_groups_of_others_refuse_what_another_kind_is_asked(driver: Driver) -> None:
    driver.stable_group("old")
    driver.beat("m", 0, "new")
    assert driver.ask(Enter("old", "ann")) == "old is a classic group"
    assert driver.ask(Enter("new", "ann")) == "new is a consumer group"


def test_a_deadline_of_a_group_that_has_turned_into_another_kind_is_nothing(driver: Driver) -> None:
    """What a kind forgot to call off is not done to a stranger."""
    driver.ask(Enter("room", "ann"))
    key, value = record("room", "", there=False)
    driver.machine.apply(key, value)
    assert isinstance(driver.join("room", requires_member_id=True), JoinReply)
    driver.machine.expire(driver.now_ms + WAIT_MS)
    assert driver.listed()["room"][0] == "classic"


@pytest.mark.parametrize("command", get_args(Command), ids=lambda command: command.__name__)
def test_every_command_is_decided_whatever_there_is(command: Any) -> None:
    """The tables leave no gap: no command meets a group, or none, that nobody has thought of."""
    machine = cast(Any, GroupCoordinator(GroupSettings(), Driver().topics, lambda: 0))
    asked_of = [(command, group) for group in (*machine._kinds, type(None))]
    assert command in OWN_COMMANDS or all(each in machine._deciders for each in asked_of)
