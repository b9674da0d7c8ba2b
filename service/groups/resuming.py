"""The sessions of members that begin anew after the log was read: meanwhile no member could send heartbeats.

Those of a large group begin in several turns of the loop, because each costs microseconds and members are many.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.kinds import Group
from service.groups.verdicts import Draft

# How many members' sessions begin anew in one turn of the loop.
RESUMED_AT_ONCE = 1_000

# Begins the session of a member. The arguments: the group, the member, the draft.
BeginSession = Callable[[Any, Any, Draft], None]


class Resuming:
    def __init__(self, deadlines: Deadlines[DeadlineName], begin_session: BeginSession) -> None:
        self._deadlines = deadlines
        self._begin_session = begin_session
        self._left: dict[str, Iterator[str]] = {}  # by group: members whose sessions have still to begin

    def begin(self, group: Group, draft: Draft) -> None:
        self._left[group.group_id] = iter(list(group.members))
        self.go_on(group, draft)

    def go_on(self, group: Group, draft: Draft) -> None:
        """Begin the sessions of some members. Those of members that were heard of meanwhile, too: they may have to let
        go of something in time, and no heartbeat says so again.
        """
        some = list(islice(self._left.get(group.group_id, ()), RESUMED_AT_ONCE))
        for member_id in some:
            member = group.members.get(member_id)
            if member is not None:
                self._begin_session(group, member, draft)
        if len(some) == RESUMED_AT_ONCE:
            self._deadlines.set(("resume", group.group_id, ""), draft.now_ms)
        else:
            self._left.pop(group.group_id, None)

    def forget(self, group_id: str) -> None:
        self._left.pop(group_id, None)
        self._deadlines.cancel(("resume", group_id, ""))
