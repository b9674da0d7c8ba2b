"""What is refused leaves a draft as it was: other records that are in it already stay."""

from typing import Any

from service.groups.commands import CommitOffsets, ConsumerHeartbeatReply, OffsetToCommit
from service.groups.consumer_decisions import answer_beat
from service.groups.kinds import Group
from service.groups.offset_decisions import OffsetDecisions
from service.groups.offsets import Offsets
from service.groups.settings import GroupSettings
from service.groups.verdicts import Draft, Fault, GroupRefusal
from tests.service.groups.driver import Topics

OTHERS = (b"another decision's key", b"its value")


def test_a_refused_heartbeat_takes_back_only_its_own_records() -> None:
    draft = Draft(1, 1, records=[OTHERS])
    first = len(draft.records)
    draft.records.append((b"the beat's", None))

    answer_beat(GroupRefusal(Fault.UNKNOWN_MEMBER_ID, "who?"), 7, draft, first)

    assert draft.records == [OTHERS]
    assert draft.answers == [(7, ConsumerHeartbeatReply(Fault.UNKNOWN_MEMBER_ID, "who?"))]


class SecondPartitionRefused:
    group_id = "g"

    def may_commit(self, ask: CommitOffsets) -> Any:
        return lambda each: Fault.STALE_MEMBER_EPOCH if each.partition == 1 else None


def test_a_refused_commit_takes_back_only_its_own_records() -> None:
    draft = Draft(1, 1, records=[OTHERS])
    group: Group = SecondPartitionRefused()  # type: ignore[assignment]
    offsets = tuple(OffsetToCommit("orders", bytes(16), partition, 5, -1, "") for partition in range(2))

    reply = OffsetDecisions(GroupSettings(), Offsets(), Topics()).commit(
        group, CommitOffsets("g", "m", None, 1, offsets), draft
    )

    assert reply.fault is Fault.STALE_MEMBER_EPOCH
    assert draft.records == [OTHERS]
    assert not draft.offsets
