"""The interfaces of a group and of a kind of group, by which the coordinator works with every kind.

The coordinator builds tables from the kinds. With them it finds the kind for a command by the types of the command and
of the group, for a record by the first bytes of its key, and for a deadline by its name and the type of the group. The
coordinator names no kind, so that another one (share, streams) is a file of its own and a line in `known_kinds.py`.

A kind may keep any state about its own groups. It shares only the arguments below with the others: the deadlines, the
draft of a decision, and the map of groups while a record is applied. A change from one kind to another is decided
outside of both, in a passage (`migration.py`).
"""

from collections.abc import Callable, Generator, Mapping
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from service.groups.commands import (
    CommitOffsets,
    CommitTransactionalOffsets,
    FetchOffsets,
    ListedGroupFacts,
    OffsetToCommit,
)
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.offsets import CommittedOffset
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView
from service.groups.verdicts import Draft, Fault, RecordPair, Token

# Whether this offset may be committed: the fault with which it is refused, or None.
OffsetCheck = Callable[[OffsetToCommit], Fault | None]


def any_offset(offset: OffsetToCommit) -> Fault | None:
    return None


class Group(Protocol):
    """One group. Reading it changes nothing."""

    kind: ClassVar[str]
    """The name of the group's kind in the answer to ListGroups."""

    @property
    def group_id(self) -> str: ...

    @property
    def state(self) -> Enum: ...

    @property
    def members(self) -> Mapping[str, object]:
        """The members by their ids."""

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members, so that it may be deleted."""

    @property
    def is_abandoned(self) -> bool:
        """Whether the group is empty and no member is about to join: if it has no offsets either, it can be removed."""

    def listed(self) -> ListedGroupFacts: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def may_commit(self, ask: CommitOffsets) -> Fault | OffsetCheck: ...

    def may_commit_in_transaction(self, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck: ...

    def fetching_fault(self, ask: FetchOffsets) -> Fault | None:
        """Why the caller may not be told the group's offsets; None: it may."""

    def deleting_fault(self) -> Fault | None:
        """Why no offset of the group may be deleted, whatever the topic; None: they may."""

    def idle_since_ms(self, committed: CommittedOffset) -> int | None:
        """The time from which the offset's retention counts; None: no offset of the group may expire now."""


G = TypeVar("G", bound=Group)

# Decides a command. The arguments: the group (None: there is no group of this name), the command, its token, the draft.
Decide = Callable[[Any, Any, Token, Draft], None]
# The answer to a command that says to ask again.
PutOff = Callable[[Any], object]
# Does what a deadline was set for. The arguments: the group, the id of a member (empty: the whole group), the draft.
FallDue = Callable[[Any, str, Draft], None]


class Kind(Protocol[G]):
    """One kind of group: plain tables, which are read once when the coordinator is made, and functions for its
    groups.
    """

    @property
    def group_type(self) -> type[G]: ...

    @property
    def commands(self) -> Mapping[type, Decide]:
        """The commands of this kind, for its own groups and for names without a group."""

    @property
    def joins(self) -> Mapping[type, PutOff]:
        """Those of `commands` by which a member may come to an empty group, and the answer that says to ask again."""

    @property
    def deadlines(self) -> Mapping[str, FallDue]: ...

    @property
    def done_in_turns(self) -> frozenset[str]:
        """The names of the deadlines at which one piece of a long work is done. One piece fills a turn of the loop."""

    @property
    def record_prefixes(self) -> frozenset[bytes]:
        """The first bytes of the keys of its records, `PREFIX_BYTES` long: the record types (`records.py`)."""

    def refuse(self, group: Group, command: Any, token: Token, draft: Draft) -> None:
        """Refuse one of `commands` that is about a group of another kind, if there is no passage from that kind."""

    def apply(self, groups: dict[str, Group], key: bytes, value: bytes | None, *, is_replay: bool) -> None:
        """Take up one record: put, change or remove the group that it is about, and no other."""

    def make_ready(self, group: G) -> Generator[None, None, None]:
        """Do what `wake` would need long for, of a group as the log left it. It yields when a turn is over."""

    def wake(self, group: G, draft: Draft) -> Group:
        """The live group in the place of `group`, which is as the log left it."""

    def heard_of(self, group: G, member_id: str, draft: Draft) -> None:
        """Offsets were committed with this member id, which may be unknown to the group."""

    def bury(self, group: G) -> list[RecordPair]:
        """Cancel the group's deadlines, and return the records that remove it."""

    def facts(self, group: G, *, is_awake: bool) -> object:
        """The durable facts about the group, in a form that can be compared."""


class Kinds(NamedTuple):
    """All kinds that a coordinator knows."""

    kinds: tuple[Kind[Any], ...]
    passages: Mapping[tuple[type, type], Decide]
    """By command and type of group: what decides a command that is about a group of another kind than the command's."""
    holding_offsets: Callable[[str], Group]
    """Makes the group for a name that has offsets but no members."""


MakeKinds = Callable[[GroupSettings, TopicView, Deadlines[DeadlineName]], Kinds]
