"""A classic group under members that join, sync, beat, commit, leave, fall silent and come back, and restarts in
between.

The model is naive: it knows what each client was told, and that is enough to say who may own what.
"""

from dataclasses import dataclass

from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from hypothesis.strategies import booleans, integers, sampled_from

from service.groups.commands import JoinReply, SyncReply
from service.groups.verdicts import Fault
from tests.service.groups.driver import Driver

PARTITIONS = 6
RECOVERABLE = (None, Fault.REBALANCE_IN_PROGRESS, Fault.ILLEGAL_GENERATION, Fault.UNKNOWN_MEMBER_ID)


@dataclass
class Client:
    instance: str | None
    member_id: str = ""
    generation: int = -1
    join_token: int | None = None
    sync_token: int | None = None
    joined: JoinReply | None = None
    owned: frozenset[int] = frozenset()
    synced: bool = False


class ClassicGroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.driver = Driver()
        self.assigned: dict[int, dict[str, frozenset[int]]] = {}  # generation -> member -> partitions
        self.newest_generation = 0  # that anybody was told of
        self.newest_stable = 0  # that anybody was assigned in
        self.committed: dict[int, int] = {}
        self.commits = 0
        self.alive: list[Client] = []

    # What clients do

    @rule(target=clients, static=booleans(), name=sampled_from(["x", "y"]))
    def arrive(self, static: bool, name: str) -> Client:
        client = Client(name if static else None)
        self.alive.append(client)
        return client

    @rule(client=clients)
    def join(self, client: Client) -> None:
        self._listen()
        if client.join_token is not None or client.sync_token is not None:
            return  # its connection is busy
        # Shorter than a session: a static member that misses a rebalance is still a member, of an old generation.
        reply = self.driver.join(member=client.member_id, instance_id=client.instance, rebalance_timeout_ms=5_000)
        if reply == "pending":
            client.join_token = self.driver.tokens
        else:
            self._joined(client, reply)
        self._listen()

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        self._listen()
        if client.joined is None or client.join_token is not None or client.sync_token is not None:
            return
        assignments: dict[str, list[int]] = {}
        if client.joined.leader == client.member_id and not client.joined.skip_assignment:
            members = [member.member_id for member in client.joined.members]
            for partition in range(PARTITIONS):
                assignments.setdefault(members[partition % len(members)], []).append(partition)
        reply = self.driver.sync(
            client.joined,
            assignments={member: bytes(partitions) for member, partitions in assignments.items()},
            instance_id=client.instance,
        )
        if reply == "pending":
            client.sync_token = self.driver.tokens
        else:
            self._synced(client, reply)
        self._listen()

    @rule(client=clients)
    def beat(self, client: Client) -> None:
        self._listen()
        if client.joined is None or client.join_token is not None:
            return
        fault = self.driver.heartbeat(client.joined, instance_id=client.instance)
        self._learn(client, fault)

    @rule(client=clients, partition=integers(0, PARTITIONS - 1))
    def commit(self, client: Client, partition: int) -> None:
        self._listen()
        if client.joined is None:
            return
        self.commits += 1
        fault = self.driver.commit(
            self.commits,
            member=client.member_id,
            generation=client.generation,
            instance_id=client.instance,
            partition=partition % 4,
        )
        if fault is None:
            assert client.generation == self.newest_generation or client.generation == self.newest_stable
            assert client.generation >= self.newest_stable, "a member of an old generation may not commit"
            self.committed[partition % 4] = self.commits
        elif fault is not Fault.REBALANCE_IN_PROGRESS:
            self._learn(client, fault)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        self._listen()
        if client.member_id:
            self.driver.leave(client.member_id)
        self._gone(client)
        self._listen()

    @rule(client=consumes(clients))
    def vanish(self, client: Client) -> None:
        self._gone(client)

    @rule(target=clients, client=consumes(clients))
    def static_restart(self, client: Client) -> object:
        """A process with an instance id dies and is started again; its parked requests are nobody's."""
        self._listen()
        if client.instance is None:
            return client
        self._gone(client)
        again = Client(client.instance)
        self.alive.append(again)
        return again

    @rule(all_but=integers(0, 3))
    def members_settle(self, all_but: int) -> None:
        """Most clients do what they should for a while; one may not."""
        busy = [client for place, client in enumerate(self.alive) if place != all_but]
        self._keep_to_the_protocol(busy, rounds=10)

    # What the world does

    @rule(ms=sampled_from([1, 500, 3_000, 5_001, 10_001]))
    def time_passes(self, ms: int) -> None:
        self.driver.wait(ms)
        self._listen()

    @rule()
    def restart(self) -> None:
        self._listen()
        before = self.driver.classic()
        self.driver.restart()
        if before.state == "Stable":
            assert self.driver.classic() == before, "a stable group goes on where it was"
        for client in self.alive:
            client.join_token = client.sync_token = None  # connections broke
        self.newest_generation = self.newest_stable  # one that was not assigned in is forgotten

    # What must hold

    @invariant()
    def commits_are_kept(self) -> None:
        if not hasattr(self, "driver"):
            return
        for partition, offset in self.committed.items():
            assert self.driver.committed(partition=partition) == offset

    @invariant()
    def generations_assign_a_partition_once(self) -> None:
        for members in getattr(self, "assigned", {}).values():
            everything = [partition for partitions in members.values() for partition in partitions]
            assert len(everything) == len(set(everything))

    def teardown(self) -> None:
        """Whatever happened: members who keep to the protocol end up in one stable generation."""
        if not hasattr(self, "driver"):
            return
        self._keep_to_the_protocol(self.alive, rounds=60)
        # Of several clients with one instance id the last one wins, the others are fenced: count the instances.
        instances = {client.instance or id(client) for client in self.alive}
        if len(instances) == len(self.alive):
            facts = self.driver.classic()
            assert facts.state == ("Stable" if self.alive else facts.state), facts
            held = {client.member_id for client in self.alive}
            assert held == {member.member_id for member in facts.members} or not self.alive
            assert sum(len(client.owned) for client in self.alive) == (PARTITIONS if self.alive else 0)

    def _keep_to_the_protocol(self, clients: list[Client], rounds: int) -> None:
        for _ in range(rounds):
            self._listen()
            for client in clients:
                if client.joined is None:
                    self.join(client)
                elif not client.synced:
                    self.sync(client)
                else:
                    self.beat(client)
            self.driver.wait(1_000)
        self._listen()

    # Hearing answers

    def _listen(self) -> None:
        """Give every answer that has come to its client."""
        for client in self.alive:
            if client.join_token in self.driver.answers and client.join_token is not None:
                reply = self.driver.answers[client.join_token]
                client.join_token = None
                self._joined(client, reply)
            if client.sync_token in self.driver.answers and client.sync_token is not None:
                reply = self.driver.answers[client.sync_token]
                client.sync_token = None
                self._synced(client, reply)

    def _joined(self, client: Client, reply: JoinReply) -> None:
        if reply.fault is Fault.MEMBER_ID_REQUIRED:
            client.member_id = reply.member_id
        elif reply.fault is not None:
            self._learn(client, reply.fault)
        else:
            assert reply.generation >= self.newest_stable, "generations never go back"
            self.newest_generation = max(self.newest_generation, reply.generation)
            client.member_id, client.generation, client.joined = reply.member_id, reply.generation, reply
            client.owned, client.synced = frozenset(), False

    def _synced(self, client: Client, reply: SyncReply) -> None:
        if reply.fault is not None:
            self._learn(client, reply.fault)
            return
        client.owned, client.synced = frozenset(reply.assignment), True
        self.newest_stable = max(self.newest_stable, client.generation)
        members = self.assigned.setdefault(client.generation, {})
        owner = client.instance or client.member_id  # a static member inherits what its older self had
        assert members.setdefault(owner, client.owned) == client.owned, "an assignment never changes"

    def _learn(self, client: Client, fault: Fault | None) -> None:
        if fault is None:
            return
        client.joined, client.owned, client.synced = None, frozenset(), False
        if fault in (Fault.UNKNOWN_MEMBER_ID, Fault.FENCED_INSTANCE_ID):
            client.member_id = ""
        else:
            assert fault in RECOVERABLE, fault

    def _gone(self, client: Client) -> None:
        if client in self.alive:
            self.alive.remove(client)


TestClassicGroup = ClassicGroupMachine.TestCase
TestClassicGroup.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
