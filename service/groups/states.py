"""The states of groups and of their members, the moves between them, and what may be trusted in each.

Classic groups (the members' leader assigns):

        Empty <------------------ no member left -----------------+
          | a member joins                                        |
          v                                                       |
    PreparingRebalance --- all joined, or time is up ---> CompletingRebalance
          ^  ^                                                |        |
          |  +--- a member joins, leaves, is lost ------------+        | the leader's SyncGroup
          |                                                            v
          +------ a member joins anew, leaves, is lost ------------- Stable

  Empty               no members; the generation, the protocol type and the offsets remain.
  PreparingRebalance  members answer JoinGroup; the last generation's members may still commit.
  CompletingRebalance the generation and the protocol are decided, the assignment is not; nobody may commit.
  Stable              the stored record holds generation, protocol, members and assignment, and equals what is live.

Only what the record says survives a restart. A group that was rebalancing comes back as Stable, in its last stored
generation. Its members either still belong to that generation or join again.

Consumer groups (KIP-848; the broker assigns): the state of the group follows from its parts, see `ConsumerGroup.state`.
Each member moves by itself towards the target assignment:

    Stable -> UnrevokedPartitions    the target takes partitions away; the member must first say that it let go of them
    Stable, UnrevokedPartitions -> UnreleasedPartitions   it has the target's epoch, but some partitions are still
    with others any -> Stable                    it holds exactly the target

A partition is given to a member only while no other member holds it. A partition that a member still has to revoke
counts as held.
"""

from enum import Enum, IntEnum


class ClassicState(Enum):
    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


CLASSIC_MOVES: dict[ClassicState, tuple[ClassicState, ...]] = {
    ClassicState.EMPTY: (ClassicState.PREPARING,),
    ClassicState.PREPARING: (ClassicState.COMPLETING, ClassicState.EMPTY),
    ClassicState.COMPLETING: (ClassicState.STABLE, ClassicState.PREPARING),
    ClassicState.STABLE: (ClassicState.PREPARING,),
}

# The state of a group that does not exist, in the answer to DescribeGroups.
DEAD = "Dead"


class MemberState(IntEnum):
    """How far a member of a consumer group is on its way to the target. The numbers are those in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127  # written by a version that knows more than this one

    @classmethod
    def of_number(cls, number: int) -> "MemberState":
        return MEMBER_STATES.get(number, cls.UNKNOWN)


MEMBER_STATES: dict[int, MemberState] = {state.value: state for state in MemberState}


class ConsumerState(Enum):
    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
