"""The members of a simulated group: clients of both protocols, eager and cooperative, static and not.

Each keeps to its protocol as a real client does, up to its own failures: it stops reading when told to, or when it has
not been heard for a session; a sleeper's last commit, however, is already on its way out when it wakes. What a request
that was not answered did nobody knows, so its sender begins anew as a new process.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from service.groups.commands import (
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    CommitOffsets,
    CommitTransactionalOffsets,
    ConsumerHeartbeat,
    FetchOffsets,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetToCommit,
    PartitionsAsked,
    SyncGroup,
)
from service.groups.consumer_protocol import read_assignment, read_subscription, write_assignment
from service.groups.verdicts import Fault
from tests.service.groups.driver import subscription
from tests.sim.group_world import ANSWER_WITHIN_MS, BEAT_MS, REBALANCE_MS, SESSION_MS, Broken, GroupWorld, Partition

GROUP = "g"
TOPICS = (("orders",), ("orders", "events"))
NO_TIME_MS = (0, -1)
AGAIN_MS = 50
LEFT_BEHIND_MS = 8_000  # the longest that a commit is on its way
REJOIN = (Fault.UNKNOWN_MEMBER_ID, Fault.ILLEGAL_GENERATION, Fault.FENCED_MEMBER_EPOCH, Fault.GROUP_ID_NOT_FOUND)


class Member:
    """What both protocols share: reading and committing what one owns, failing, sleeping."""

    def __init__(self, world: GroupWorld, name: str, *, instance: str | None, topics: tuple[str, ...]) -> None:
        self.world = world
        self.board = world.board
        self.chance = world.chance
        self.name = name
        self.instance = instance
        self.topics = topics
        self.assignors = self.chance.choice(world.plan.assignors)
        is_impatient = not world.healed and self.chance.random() < world.plan.impatient
        self.rebalance_timeout_ms = self.chance.choice(NO_TIME_MS) if is_impatient else REBALANCE_MS
        self.member_id = ""
        self.epoch = -1  # or generation
        self.owned: dict[
            Partition, bool
        ] = {}  # the partitions that the member reads, and whether it knows its position in each
        self.is_alive = True
        self.heard_ms = world.now_ms  # when the last request left that was answered well
        self.is_superseded = False  # another process is this instance now; it does not know yet
        self._asleep_until_ms = 0
        self._commits = False

    # Asking -----------------------------------------------------------------------------------------------------------

    def ask(
        self,
        command: Any,
        answered: Callable[[Any], None],
        *,
        patience_ms: int = ANSWER_WITHIN_MS,
        is_sign_of_life: bool = True,
    ) -> None:
        """`answered` with the reply; a request without one restarts the member."""
        asked_ms, waits = self.world.now_ms, True

        def answer(reply: Any) -> None:
            nonlocal waits
            if self._asleep_until_ms > self.world.now_ms and self.is_alive:
                self.world.after(self._asleep_until_ms - self.world.now_ms, lambda: answer(reply))
                return
            if waits and self.is_alive:
                waits = False
                if is_sign_of_life and reply is not None and reply.fault is None:
                    self.heard_ms = max(self.heard_ms, asked_ms)
                self.look_at_session()
                answered(reply)

        def give_up() -> None:
            nonlocal waits
            if waits and self.is_alive:
                waits = False
                self.restart()

        self.world.ask(command, answer, sender=self)
        self.world.after(patience_ms, give_up)

    @property
    def is_over(self) -> bool:
        return self.world.now_ms >= self.heard_ms + SESSION_MS

    @property
    def is_replaced(self) -> bool:
        return self.instance is not None and self.world.last_to_join[self.instance] is not self

    @property
    def is_put_out(self) -> bool:
        return self.world.is_hasty and not self.world.knows(self.member_id, self.epoch)

    def look_at_session(self) -> None:
        if self.is_over:
            self.lose_all()
            self.ask_again()

    def ask_again(self) -> None:
        """The member has given up its partitions, and must be told anew what it may read."""
        raise NotImplementedError

    # Owning -----------------------------------------------------------------------------------------------------------

    def own(self, partitions: set[Partition]) -> None:
        if self.is_superseded:
            return  # the answer is older than its successor
        for partition in [each for each in self.owned if each not in partitions]:
            self.lose(partition)
        for partition in sorted(partitions):
            if self.board.owners.get(partition) is not self:  # an answer that was old may have told it so before
                self.board.take(self, partition)
            if partition not in self.owned:
                self.owned[partition] = False
                self.find_position(partition)

    def lose(self, partition: Partition) -> None:
        del self.owned[partition]
        self.board.release(self, partition)

    def lose_all(self) -> None:
        for partition in list(self.owned):
            self.lose(partition)

    def name_of(self, partition: Partition) -> str | None:
        facts = self.world.topics.by_id(partition[0])
        return None if facts is None else facts.name

    def find_position(self, partition: Partition) -> None:
        name = self.name_of(partition)
        if name is None or not self.is_alive or partition not in self.owned:
            return
        at_least, removed = self.board.acknowledged.get(partition, -1), self.board.removed[partition]
        asked = PartitionsAsked(name, partition[0], (partition[1],))

        def found(reply: Any) -> None:
            one = None if reply is None or reply.fault is not None else reply.topics[0].offsets[0]
            if one is None or one.fault is not None:
                self.world.after(100, lambda: self.find_position(partition))
            else:
                if self.name_of(partition) is not None:  # else it was made anew meanwhile, and forgotten
                    is_removed = self.board.removed[partition] > removed
                    self.board.read(partition, one.offset, -1 if is_removed else at_least)
                if partition in self.owned:
                    self.owned[partition] = True

        self.ask(FetchOffsets(GROUP, None, -1, (asked,), True), found, is_sign_of_life=False)

    # Committing -------------------------------------------------------------------------------------------------------

    def commit(self, *, sleeps_first: bool = False) -> None:
        known = [partition for partition, is_known in self.owned.items() if is_known and self.name_of(partition)]
        if not known or self.epoch < 0 or self._commits:
            return
        self._commits = True
        partition = self.chance.choice(known)
        name = self.name_of(partition)
        assert name is not None
        value = self.board.fresh()
        offset = OffsetToCommit(name, partition[0], partition[1], value, 0, "")
        transactional = self.chance.random() < self.world.plan.commits_in_transactions
        producer = self.world.open_transaction({partition: value}) if transactional else -1
        member = (GROUP, self.member_id, self.instance, self.epoch, (offset,))
        removed = self.board.removed[partition]

        def done(reply: Any) -> None:
            self._commits = False
            is_taken = reply is not None and reply.fault is None and reply.faults == (None,)
            if transactional:
                # A member whose offsets could not be put into the transaction aborts it.
                committed = is_taken and self.chance.random() < 0.7
                wait_ms = self.chance.choice((1, 50, 1_000))
                self.world.after(wait_ms, lambda: self.world.end_transaction(producer, committed=committed))
            elif is_taken and self.board.removed[partition] == removed:
                self.board.acknowledge(partition, value)

        keeps_ms = self.chance.choice(self.world.plan.keeps_ms) if self.is_old_client else -1
        command = (
            CommitTransactionalOffsets(*member, producer, 0) if transactional else CommitOffsets(*member, keeps_ms)
        )
        if transactional:
            self.world.after(10_000, lambda: self.world.end_transaction(producer, committed=False))  # its time is up

        def leave() -> None:
            if not transactional or self.world.transactions[producer].decided is None:
                self.ask(command, done, patience_ms=6_000, is_sign_of_life=False)
            else:
                self._commits = False

        fate = 1.0 if self.world.healed else self.chance.random()
        if fate < 0.1 or sleeps_first:
            self.sleep(leave)
        elif fate < 0.25:
            self.world.after(self.chance.choice((1_000, 3_000)), leave)  # on its way for so long
        else:
            leave()

    def leave_a_transaction_behind(self) -> None:
        """With an offset of this member, if possible of a partition that has none yet. It goes on when the member is
        gone, for its producer is another client.
        """
        known = [partition for partition, is_known in self.owned.items() if is_known and self.name_of(partition)]
        if not known or self.epoch < 0 or self._commits or not self.world.plan.commits_in_transactions:
            return  # a commit that is on its way would come later, and be lower
        partition = self.chance.choice([each for each in known if each not in self.board.acknowledged] or known)
        name, value = self.name_of(partition), self.board.fresh()
        assert name is not None
        producer = self.world.open_transaction({partition: value})
        offset = OffsetToCommit(name, partition[0], partition[1], value, 0, "")

        def done(reply: Any) -> None:
            if reply is not None and reply.fault is None and reply.faults == (None,):
                wait_ms = self.chance.choice((500, 3_000, 8_000))  # the last is longer than a retention
                self.world.after(wait_ms, lambda: self.world.end_transaction(producer, committed=True))

        member = (GROUP, self.member_id, self.instance, self.epoch, (offset,))
        self._commits = True  # until it has arrived: otherwise the next one, which is higher, might overtake it
        self.world.after(max(self.world.plan.late_ms, 5) + 1, self._may_commit_again)
        self.world.ask(CommitTransactionalOffsets(*member, producer, 0), done)
        self.world.after(10_000, lambda: self.world.end_transaction(producer, committed=False))  # its time is up

    def _may_commit_again(self) -> None:
        self._commits = False

    @property
    def is_old_client(self) -> bool:
        """Of before static members and topic ids."""
        return isinstance(self, ClassicMember) and self.instance is None

    # Failing ----------------------------------------------------------------------------------------------------------

    def supersede(self) -> Member:
        """While this process is away another one is started as the same instance."""
        self.commit(sleeps_first=True)
        if not self.is_asleep:
            self.sleep()
        self.lose_all()
        self.is_superseded = True
        self.world.after(self.goes_ms - self.world.now_ms, self.go)
        born = self.class_of_successor()
        twin = born(self.world, f"{self.name}'", instance=self.instance, topics=self.topics_of_successor())
        self.world.members.append(twin)
        return twin

    def sleep(self, on_waking: Callable[[], None] = lambda: None) -> None:
        """The member does nothing for a while. Then it sends what it was about to send."""
        ms = self.chance.choice((500, 2_000, 5_000, 25_000))
        self._asleep_until_ms = self.world.now_ms + ms

        def wake() -> None:
            if self.is_alive:
                on_waking()
                self.look_at_session()

        self.world.after(ms, wake)

    @property
    def goes_ms(self) -> int:
        """When a process goes that another one has replaced."""
        return self._asleep_until_ms + 2_000

    @property
    def is_asleep(self) -> bool:
        return self.world.now_ms < self._asleep_until_ms

    def die(self) -> None:
        self.is_alive = False
        self.lose_all()

    def fenced(self) -> None:
        # What a process that is gone had sent may come last, and replaces its successor: it does so with Kafka, too.
        if not self.is_replaced:
            raise Broken(f"OnlyTheReplacedAreFenced: {self.name} was the last to join as {self.instance}")
        self.restart()

    def go(self) -> None:
        if self.is_alive:
            self.die()
            self.world.members.remove(self)

    def restart(self, after_ms: tuple[int, ...] = (1, 200)) -> None:
        """A new process in the place of this one."""
        if self.is_superseded:
            self.go()
        elif self.is_alive:
            self.die()
            self.world.after(self.chance.choice(after_ms), lambda: self.reborn().start())

    @property
    def lineage(self) -> str:
        """What the member shares with the processes before and after it."""
        return self.name.partition("#")[0].rstrip("'")

    def reborn(self, speaking: type[Member] | None = None) -> Member:
        name, speaking = f"{self.lineage}#{self.board.fresh()}", speaking or self.class_of_successor()
        born = speaking(self.world, name, instance=self.instance, topics=self.topics_of_successor())
        self.world.members.append(born)
        self.world.members.remove(self)
        return born

    def become(self, instance: str | None, speaking: type[Member] | None = None) -> bool:
        """The next process speaks this protocol (the new one if none is said), and goes on with the same member id as
        this instance. So it must not be overtaken by what this one commits.
        """
        if self.is_superseded or self._commits:
            return False
        self.die()
        born = self.reborn(speaking or ConsumerMember)
        born.member_id, born.instance = self.member_id, instance
        born.start()
        return True

    def class_of_successor(self) -> type[Member]:
        """A static member may be taken to the other protocol by a restart."""
        if self.instance is None or self.chance.random() >= self.world.plan.converts:
            return type(self)
        return ConsumerMember if isinstance(self, ClassicMember) else ClassicMember

    def topics_of_successor(self) -> tuple[str, ...]:
        if self.chance.random() >= 0.2:
            return self.topics
        # With a static member of a classic group, a new subscription does not change the assignment, as in Kafka.
        return TOPICS[0] if self.instance is not None else self.chance.choice(TOPICS)

    def leave(self) -> None:
        self.say_goodbye()
        self.restart()

    def depart(self) -> None:
        """For good."""
        self.say_goodbye()
        self.go()

    def say_goodbye(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def every_beat(self, beat: Callable[[], None]) -> None:
        if not self.is_alive:
            return
        if not self.is_asleep:
            self.look_at_session()
            beat()
            if self.chance.random() < 0.3:
                self.commit()
        self.world.after(BEAT_MS, lambda: self.every_beat(beat))


class ClassicMember(Member):
    is_to_linger = lingers = False

    def ask_again(self) -> None:
        self.epoch = -1

    def start(self) -> None:
        self.is_joining = False
        self.every_beat(self.beat)

    def beat(self) -> None:
        if self.is_joining:
            return
        if self.epoch < 0:
            self.join()
            return
        generation = self.epoch

        def answered(reply: Any) -> None:
            if reply is None or generation != self.epoch or self.is_joining:
                return
            if reply.fault is None:
                if self.lingers:
                    self.join()  # the coordinator has died, and the rebalance with it
            elif reply.fault is not Fault.REBALANCE_IN_PROGRESS:
                self.begin_anew(reply.fault)
            elif not self.begins_to_linger() and not self.switches():
                self.join()

        self.ask(Heartbeat(GROUP, self.epoch, self.member_id, self.instance), answered)

    def begins_to_linger(self) -> bool:
        """Perhaps its application works for so long that the member joins no rebalance until it is put out. Meanwhile
        its heartbeats go on.
        """
        if self.lingers:
            self.heard_ms = self.world.now_ms
            return True
        lingers = self.world.plan.lingers
        if not self.is_to_linger and (not lingers or self.world.healed or self.chance.random() >= lingers):
            return False
        self.lose_all()
        self.lingers, self.is_to_linger = True, False
        return True

    def switches(self) -> bool:
        """Perhaps the member goes on by the new protocol, under its id."""
        switches = self.world.plan.switches
        if not switches or self.world.healed or self.chance.random() >= switches:
            return False
        return self.become(self.instance)

    def begin_anew(self, fault: Fault | None) -> None:
        self.lose_all()
        self.lingers = False
        self.epoch = -1
        if fault is Fault.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif fault is Fault.FENCED_INSTANCE_ID:
            self.fenced()

    def join(self) -> None:
        self.is_joining = True
        self.lingers = False
        if not self.world.plan.cooperative:
            self.leave_a_commit_behind()
            self.lose_all()
        self.epoch = -1
        self.reported = set(self.owned)
        by_name: dict[str, list[int]] = {}
        for partition in self.owned:
            if (name := self.name_of(partition)) is not None:
                by_name.setdefault(name, []).append(partition[1])
        metadata = subscription(self.topics, tuple(by_name.items()))
        command = JoinGroup(
            group_id=GROUP,
            member_id=self.member_id,
            instance_id=self.instance,
            protocol_type="consumer",
            # Of an assignor that is named twice the first subscription counts.
            protocols=tuple(
                (name, subscription(()) if name in self.assignors[:place] else metadata)
                for place, name in enumerate(self.assignors)
            ),
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            client_id="c",
            client_host="/h",
            fresh_id=str(self.board.fresh()),
        )
        self.ask(command, self.joined, patience_ms=2 * REBALANCE_MS if self.member_id or self.instance else 1_500)

    def leave_a_commit_behind(self) -> None:
        """One that is on its way for so long that it comes when the member is of a later generation, and when somebody
        has committed more there.
        """
        plan = self.world.plan
        if plan.converts or plan.switches or any("consumer" in kind for kind in plan.kinds):
            return  # there a commit counts by since when its partition is held
        known = [partition for partition, is_known in self.owned.items() if is_known and self.name_of(partition)]
        if known and self.epoch >= 0 and not self.world.healed and self.chance.random() < 0.7:
            partition = self.chance.choice(known)
            name = self.name_of(partition)
            assert name is not None
            offset = OffsetToCommit(name, partition[0], partition[1], self.board.fresh(), 0, "")
            command = CommitOffsets(GROUP, self.member_id, self.instance, self.epoch, (offset,))

            def come() -> None:
                is_behind = self.board.acknowledged.get(partition, -1) > offset.offset
                if self.epoch > command.generation and is_behind:
                    self.world.ask(command, lambda reply: None)
                elif self.is_alive and self.world.now_ms < latest_ms:
                    self.world.after(100, come)

            latest_ms = self.world.now_ms + LEFT_BEHIND_MS
            self.world.after(300, come)

    def joined(self, reply: Any) -> None:
        self.is_joining = False
        if reply is None:
            return
        if reply.fault is Fault.MEMBER_ID_REQUIRED:
            self.member_id = reply.member_id
            self.join()
        elif reply.fault is not None:
            self.begin_anew(reply.fault)
        else:
            self.member_id, generation = reply.member_id, reply.generation
            if self.switches():
                return
            self.is_joining = True
            self.leads = reply.leader == self.member_id
            # A leader that comes back is not asked to assign. It checks whether topics have changed since the last
            # assignment.
            self.seen = self.board.assigned_for if reply.skip_assignment else self.partitions_seen()
            must_assign = bool(reply.members) and not reply.skip_assignment
            assignments = self.assign(reply) if must_assign else ()
            self.assigns_for = self.seen if must_assign else None
            topics = {name: facts.topic_id for name in self.topics if (facts := self.world.topics.by_name(name))}
            command = SyncGroup(
                GROUP, generation, self.member_id, self.instance, reply.protocol_type, reply.protocol_name, assignments
            )
            asked_ms = self.world.now_ms
            patience_ms = 2 * REBALANCE_MS
            self.ask(command, lambda reply: self.synced(reply, generation, asked_ms, topics), patience_ms=patience_ms)

    def assign(self, reply: Any) -> tuple[tuple[str, bytes], ...]:
        """As the leader: everybody gets every so-manieth partition; cooperatively only what no other has in hand."""
        given: dict[str, dict[str, list[int]]] = {member.member_id: {} for member in reply.members}
        read = {member.member_id: read_subscription(member.metadata) for member in reply.members}
        in_hand: dict[tuple[str, int], str] = {}
        if self.world.plan.cooperative:
            for member_id, said in read.items():
                assert said is not None
                in_hand.update({(topic, each): member_id for topic, owned in said.owned for each in owned})
        for topic in self.world.topics.names():
            facts = self.world.topics.by_name(topic)
            takers = [member_id for member_id, said in read.items() if said is not None and topic in said.topics]
            for partition in range(facts.partitions if facts is not None and takers else 0):
                taker = takers[partition % len(takers)]
                if in_hand.get((topic, partition), taker) == taker:
                    given[taker].setdefault(topic, []).append(partition)
        return tuple((member_id, write_assignment(list(parts.items()), 1)) for member_id, parts in given.items())

    def synced(self, reply: Any, generation: int, asked_ms: int, topics: dict[str, bytes]) -> None:
        """`topics` are those of that name when it joined: one that was made since is assigned by a later answer."""
        self.is_joining = False
        if reply is None or reply.fault is Fault.REBALANCE_IN_PROGRESS:
            return  # joins again at the next beat
        if reply.fault is not None:
            self.begin_anew(reply.fault)
            return
        if self.world.now_ms >= asked_ms + SESSION_MS:
            self.epoch = generation  # too late to believe it: the next beat tells
            self.begin_anew(None)
            return
        if self.assigns_for is not None:  # and it was taken
            self.board.assigned_for = self.assigns_for
        read = read_assignment(reply.assignment)
        assert read is not None
        wanted: set[Partition] = set()
        is_outdated = False
        for topic, partitions in read.partitions:
            if (facts := self.world.topics.by_name(topic)) is not None:
                if topics.get(topic, facts.topic_id) == facts.topic_id:
                    wanted |= {(facts.topic_id, partition) for partition in partitions}
                else:
                    is_outdated = True
        must_rejoin = is_outdated or (
            self.world.plan.cooperative and not self.reported <= wanted
        )  # others may have it now
        self.epoch = generation
        self.own(wanted)
        if must_rejoin and self.dies_letting_go():
            self.restart()  # before it could tell what it has given up
        elif must_rejoin:
            self.join()

    def dies_letting_go(self) -> bool:
        if not self.world.healed:
            return self.chance.random() < 0.2
        if self.lineage not in self.world.to_die_letting_go:
            return False
        del self.world.to_die_letting_go[self.lineage]
        return True

    def partitions_seen(self) -> tuple[tuple[bytes, int], ...]:
        """The topics it subscribes to; a leader minds those of all."""
        names = self.world.topics.names() if self.leads else self.topics
        known = (self.world.topics.by_name(topic) for topic in names)
        return tuple((facts.topic_id, facts.partitions) for facts in known if facts is not None)

    def say_goodbye(self) -> None:
        if self.instance is None:
            self.world.ask(LeaveGroup(GROUP, (LeavingMember(self.member_id, None),)), lambda reply: None)

    def every_beat(self, beat: Callable[[], None]) -> None:
        # Clients look at the metadata themselves: the leader joins again when its topics have changed.
        may_join = self.is_alive and not self.is_joining and not self.lingers
        if may_join and self.epoch >= 0 and self.seen != self.partitions_seen():
            self.join()
        super().every_beat(beat)

    seen: tuple[tuple[bytes, int], ...] = ()
    assigns_for: tuple[tuple[bytes, int], ...] | None = None
    reported: AbstractSet[Partition] = frozenset()
    is_joining = False
    leads = False


class ConsumerMember(Member):
    has_left = False

    def __init__(self, *everything: Any, **more: Any) -> None:
        super().__init__(*everything, **more)
        self.taken: dict[Partition, int] = {}  # a value of when it took what it owns
        self.lost: dict[Partition, int] = {}  # the same of what it has lost and not got again

    def ask_again(self) -> None:
        self.says_all = self.has_given_up = True

    def lose(self, partition: Partition) -> None:
        super().lose(partition)
        self.lost[partition] = self.taken.pop(partition)

    def own(self, partitions: set[Partition]) -> None:
        if not self.is_superseded:
            self.taken |= {each: self.board.fresh() for each in sorted(partitions) if each not in self.owned}
        super().own(partitions)
        self.lost = {partition: value for partition, value in self.lost.items() if partition not in self.owned}

    def reborn(self, speaking: type[Member] | None = None) -> Member:
        """The next process may speak the other protocol and go on with the same member id, unless this one's commit or
        goodbye is still on its way: it would be taken for one of the next.
        """
        may_go_on = self.instance is None and speaking is None and not (self._commits or self.has_left)
        goes_on = may_go_on and self.chance.random() < self.world.plan.converts
        born = super().reborn(ClassicMember if goes_on else speaking)
        if goes_on:
            born.member_id = self.member_id
        return born

    def leave_a_commit_behind(self) -> None:
        """Of a partition that the member has lost, with the epoch that it has just been told. It comes when the member
        is of a later epoch, when somebody has committed more there and nobody reads it, and comes again and again.
        Its reader may leave just then, and another coordinator come that has not heard of the member yet.
        """
        lost = [partition for partition in self.lost if self.name_of(partition)]
        if not lost or self.is_superseded or self.world.healed:
            return  # a superseded process reads nothing, but what it had may still be its own
        partition = self.chance.choice(lost)
        name, value = self.name_of(partition), self.lost[partition]
        assert name is not None
        offset = OffsetToCommit(name, partition[0], partition[1], value, 0, "")
        member = (GROUP, self.member_id, self.instance, self.epoch, (offset,))
        epoch, takes, kills = self.epoch, self.chance.random() < 0.7, self.chance.random() < 0.7
        producer = -1
        if self.chance.random() < self.world.plan.commits_in_transactions:
            producer = self.world.open_transaction({partition: value})
        command = CommitOffsets(*member) if producer < 0 else CommitTransactionalOffsets(*member, producer, 0)

        def done(reply: Any) -> None:
            if producer >= 0 and reply is not None and reply.fault is None and reply.faults == (None,):
                self.world.end_transaction(producer, committed=True)

        def come() -> None:
            nonlocal takes, kills
            is_over = not self.is_alive or partition not in self.lost or self.world.now_ms >= latest_ms
            if is_over and producer >= 0:
                self.world.end_transaction(producer, committed=False)
            if is_over:
                return
            if self.epoch > epoch and self.board.acknowledged.get(partition, -1) > value and not self.world.healed:
                reader = self.board.owners.get(partition)
                if reader is None:
                    if kills and self.world.is_free(partition):
                        self.world.kill_coordinator()
                        kills = False
                    self.world.ask(command, done)
                elif takes and isinstance(reader, Member) and reader.is_alive and not reader.is_asleep:
                    reader.leave()
                    takes = False
            self.world.after(50, come)

        latest_ms = self.world.now_ms + LEFT_BEHIND_MS
        self.world.after(300, come)

    def start(self) -> None:
        self.member_id = self.member_id or self.name
        self.epoch = 0
        self.says_all = True
        self.waits = False
        self.every_beat(self.beat)

    def beat(self) -> None:
        if self.waits:
            return
        self.waits = True
        self.has_given_up = False
        joins, says_all = self.epoch == 0, self.says_all
        owned: dict[bytes, tuple[int, ...]] = {}
        for topic_id, partition in sorted({*self.owned, *self.hangs_on}):
            owned[topic_id] = (*owned.get(topic_id, ()), partition)
        command = ConsumerHeartbeat(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rack_id=None,
            rebalance_timeout_ms=max(self.rebalance_timeout_ms, 0) if says_all else -1,
            subscribed_topics=self.topics if says_all and self.regex is None else () if says_all else None,
            subscribed_regex=(self.regex or self.no_regex) if says_all else None,
            server_assignor=None,
            owned={} if joins else owned,
            client_id="c",
            client_host="/h",
            fresh_id="unused",
        )
        asked_ms = self.world.now_ms
        self.ask(command, lambda reply: self.answered(reply, asked_ms))

    def answered(self, reply: Any, asked_ms: int) -> None:
        self.waits = False
        was_told, self.was_told = self.was_told, False
        if reply is None or reply.fault is Fault.COORDINATOR_LOAD_IN_PROGRESS:
            self.says_all = True
        elif reply.fault in REJOIN:
            if reply.fault is Fault.FENCED_MEMBER_EPOCH and was_told:
                raise Broken(f"TheToldAreBelieved: {self.name} was told that it is at {self.epoch}, and is fenced")
            if reply.fault is Fault.UNKNOWN_MEMBER_ID and was_told and self.does_its_part:
                raise Broken(f"TheHeardStay: {self.name} is thrown out, which was told that it is at {self.epoch}")
            self.lose_all()
            self.epoch, self.says_all = 0, True
        elif reply.fault is Fault.FENCED_INSTANCE_ID:
            self.fenced()
        elif reply.fault is not None:
            if reply.fault is not Fault.UNRELEASED_INSTANCE_ID:
                raise Broken(f"NoSuchAnswer: {reply}")
        elif self.world.now_ms >= asked_ms + SESSION_MS:
            self.lose_all()
            self.says_all = True
        else:
            is_new = reply.member_epoch > self.epoch
            self.epoch, self.says_all, self.was_told = reply.member_epoch, self.has_given_up, True
            if reply.assignment is not None and not self.hangs_on:
                given = {(topic_id, each) for topic_id, partitions in reply.assignment.items() for each in partitions}
                if (
                    not set(self.owned) <= given
                    and not self.world.healed
                    and self.chance.random() < self.world.plan.hangs
                ):
                    self.hang()
                else:
                    self.own(given)
            if is_new:
                self.leave_a_commit_behind()

    @property
    def does_its_part(self) -> bool:
        """Whether nobody had a reason to put the member out of the group. It may be in it under its former name: what
        joined under that one was late, and came last.
        """
        is_last = self.instance is None or self.world.last_to_join.get(self.instance) is self
        is_out = is_last and not self.world.knows(self.member_id, self.epoch)
        return is_out and not (self.is_over or self.hangs_on or self.world.is_hasty)

    def hang(self) -> None:
        """The member never finishes giving up its partitions: it sends heartbeats, reads nothing, and says that it owns
        all it had.
        """
        held = frozenset(self.owned)
        self.lose_all()
        self.hangs_on = held

    def look_at_session(self) -> None:
        if not self.hangs_on:
            super().look_at_session()

    def lose_all(self) -> None:
        super().lose_all()
        self.hangs_on = frozenset()

    @property
    def regex(self) -> str | None:
        return "|".join(self.topics) if len(self.topics) > 1 else None

    def leave(self) -> None:
        comes_back = self.world.plan.comes_back if self.instance is not None else 0.0
        if comes_back and not self.is_superseded and self.chance.random() < comes_back:
            self.come_back()
        else:
            super().leave()

    def come_back(self) -> None:
        """A static member leaves, and its next process goes on under the same member id, with the topics that it names
        now. So nothing may be on its way then that this one has sent: it would be taken for one of the next.
        """
        if self.is_superseded or not self.is_alive:
            return
        if self.waits or self._commits or self.epoch <= 0 or self.is_asleep:
            self.world.after(AGAIN_MS, self.come_back)
            return
        left_ms, waits = self.world.now_ms, True

        def told(reply: Any) -> None:
            nonlocal waits
            if not waits:
                return
            waits = False
            born = self.reborn(ConsumerMember)
            if reply is not None and reply.fault is None:
                born.member_id, born.topics = self.member_id, self.chance.choice(TOPICS)
            away_ms = 0 if self.world.healed else self.chance.choice((0, 200, SESSION_MS))
            self.world.after(max(left_ms + away_ms - self.world.now_ms, 1), born.start)

        self.say_goodbye(told)
        self.die()
        self.world.after(ANSWER_WITHIN_MS, lambda: told(None))

    @property
    def no_regex(self) -> str | None:
        """As in Kafka, who says nothing about an expression keeps the one that its instance had."""
        return "" if self.world.plan.comes_back else None

    def say_goodbye(self, told: Callable[[Any], None] = lambda reply: None) -> None:
        epoch = LEAVE_EPOCH if self.instance is None else STATIC_LEAVE_EPOCH
        if self.epoch > 0:
            command = ConsumerHeartbeat(
                GROUP, self.member_id, epoch, self.instance, None, -1, None, None, None, None, "c", "/h", ""
            )
            self.has_left = True
            self.lose_all()
            self.world.ask(command, told)

    says_all = True
    waits = False
    was_told = False  # its epoch, by the last answer: there was none after it that it may have missed
    has_given_up = False  # its partitions, since the request left that is to be answered
    hangs_on: AbstractSet[Partition] = frozenset()
