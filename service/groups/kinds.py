"""What the coordinator asks of a group and of a kind of group, whatever kind it is.

The coordinator routes by tables that it builds from the kinds: a command by its type and the group's, a record by
what its key begins with, a deadline by its name and the group's type. It knows none of the kinds by name, so
that another one (share, streams) is a file of its own and a line in `known_kinds.py`.

A kind keeps what it likes about its own groups. With the others it shares what comes in here and nothing else: the
deadlines, the draft of a decision, and the map of groups while a record is applied. What leads from one kind to another
is decided outside of both, in a passage (`migration.py`).
"""

from collections.abc import Callable, Mapping
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

# May this offset of the committing member be taken? The fault it is refused with, else None.
OffsetCheck = Callable[[OffsetToCommit], Fault | None]


def any_offset(offset: OffsetToCommit) -> Fault | None:
    return None


class Group(Protocol):
    """One group. Reading it changes nothing."""

    kind: ClassVar[str]
    """The name of its kind, as ListGroups tells it."""

    @property
    def group_id(self) -> str: ...

    @property
    def state(self) -> Enum: ...

    @property
    def members(self) -> Mapping[str, object]:
        """By their ids."""

    @property
    def is_empty(self) -> bool:
        """It has no members, and may be deleted."""

    @property
    def is_abandoned(self) -> bool:
        """It is empty and nobody is on the way into it: without offsets it is nothing."""

    def listed(self) -> ListedGroupFacts: ...

    def is_subscribed_to(self, topic: str) -> bool: ...

    def may_commit(self, ask: CommitOffsets) -> Fault | OffsetCheck: ...

    def may_commit_in_transaction(self, ask: CommitTransactionalOffsets) -> Fault | OffsetCheck: ...

    def fetching_fault(self, ask: FetchOffsets) -> Fault | None:
        """Why the one who asks may not be told the group's offsets."""

    def deleting_fault(self) -> Fault | None:
        """Why none of its offsets may be deleted, of whatever topic."""

    def idle_since_ms(self, committed: CommittedOffset) -> int | None:
        """From when the offset's retention counts; None while no offset of the group may expire."""


G = TypeVar("G", bound=Group)

# Decides one command about a group; None where there is no group of this name.
Decide = Callable[[Any, Any, Token, Draft], None]
# Does what fell due for a group and one of its members (empty for the whole group).
FallDue = Callable[[Any, str, Draft], None]


class Kind(Protocol[G]):
    """One kind of group. Plain tables, read once when the coordinator is made, and what happens to every group."""

    @property
    def group_type(self) -> type[G]: ...

    @property
    def commands(self) -> Mapping[type, Decide]:
        """What its members ask, and what is asked about it: for its own groups, and where there is none."""

    @property
    def deadlines(self) -> Mapping[str, FallDue]: ...

    @property
    def done_in_turns(self) -> frozenset[str]:
        """Deadlines at each of which a piece of something long is done: one piece is enough for a turn of the loop."""

    @property
    def record_prefixes(self) -> frozenset[bytes]:
        """What the keys of its records begin with: their types, of `PREFIX_BYTES` (`records.py`)."""

    def refuse(self, group: Group, command: Any, token: Token, draft: Draft) -> None:
        """Answer one of `commands` about a group of another kind from which no passage leads here."""

    def apply(self, groups: dict[str, Group], key: bytes, value: bytes | None, *, is_replay: bool) -> None:
        """One record: put, change or take out the group that it speaks of, and touch no other."""

    def wake(self, group: G, draft: Draft) -> Group:
        """The group as it lives from now on. It is as the log left it, and nobody has asked for it since."""

    def heard_of(self, group: G, member_id: str, draft: Draft) -> None:
        """A member, perhaps, has committed offsets, which were taken."""

    def bury(self, group: G) -> list[RecordPair]:
        """Call off all that was to happen to it, and give the records that end it."""

    def facts(self, group: G, *, is_awake: bool) -> object:
        """What the log says about it, in a form that can be compared."""


class Kinds(NamedTuple):
    """All kinds that a coordinator knows."""

    kinds: tuple[Kind[Any], ...]
    passages: Mapping[tuple[type, type], Decide]
    """By command and type of group: what is decided where a command meets a group of another kind than its own."""
    holding_offsets: Callable[[str], Group]
    """A group of this name that comes to be because offsets are committed for it."""


MakeKinds = Callable[[GroupSettings, TopicView, Deadlines[DeadlineName]], Kinds]
