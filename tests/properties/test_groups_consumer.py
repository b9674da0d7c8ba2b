"""A consumer group under members that keep to KIP-848, lose answers, leave and fall silent, while topics come, grow
and go.

A client here does what the protocol asks: it lets go of what it is told to, sooner or later, says so, and takes what
it is given. The model is the clients themselves: what each believes to own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from hypothesis.strategies import booleans, integers, sampled_from

from service.groups.commands import ConsumerHeartbeatReply, ForgetTopic
from service.groups.verdicts import Fault
from tests.service.groups.driver import Driver, Topics

TOPICS = ("a", "b", "c")
MUST_REJOIN = (Fault.FENCED_MEMBER_EPOCH, Fault.UNKNOWN_MEMBER_ID, Fault.GROUP_ID_NOT_FOUND)
Owned = frozenset[tuple[bytes, int]]


@dataclass
class Client:
    member_id: str
    topics: tuple[str, ...]
    regex: str | None
    assignor: str
    epoch: int = 0
    owned: Owned = frozenset()
    target: Owned = field(default_factory=frozenset)
    missed_an_answer: bool = False

    def sees(self, reply: ConsumerHeartbeatReply) -> None:
        self.epoch = reply.member_epoch
        if reply.assignment is not None:
            self.target = frozenset(
                (topic_id, partition) for topic_id, partitions in reply.assignment.items() for partition in partitions
            )

    def obeys(self) -> None:
        """Stop reading what is not in the last assignment, read what is."""
        self.owned = self.target

    def starts_anew(self) -> None:
        self.epoch, self.owned, self.target = 0, frozenset(), frozenset()


def by_topic(owned: Iterable[tuple[bytes, int]]) -> dict[bytes, tuple[int, ...]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, partition in sorted(owned):
        found.setdefault(topic_id, []).append(partition)
    return {topic_id: tuple(partitions) for topic_id, partitions in found.items()}


class ConsumerGroupMachine(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.driver = Driver(topics=Topics(a=3, b=2))
        self.alive: list[Client] = []
        self.arrived = 0

    @rule(
        target=clients,
        topics=sampled_from([("a",), ("a", "b"), ("a", "c"), ()]),
        regex=sampled_from([None, "[ab]", ".*"]),
        assignor=sampled_from(["uniform", "range"]),
    )
    def arrive(self, topics: tuple[str, ...], regex: str | None, assignor: str) -> Client:
        self.arrived += 1
        client = Client(f"m{self.arrived}", topics, regex, assignor)
        self.alive.append(client)
        return client

    @rule(client=clients, answer_is_lost=booleans(), everything=booleans())
    def beat(self, client: Client, answer_is_lost: bool, everything: bool) -> None:
        joins = client.epoch == 0
        # A client that got no answer can't know what was heard: it says everything again, and is told everything.
        full = joins or everything or client.missed_an_answer
        client.missed_an_answer = answer_is_lost
        reply = self.driver.beat(
            client.member_id,
            client.epoch,
            subscribed_topics=client.topics if full else None,
            subscribed_regex=client.regex if full else None,
            server_assignor=client.assignor if full else None,
            rebalance_timeout_ms=30_000 if full else -1,
            owned=by_topic(client.owned),
        )
        if answer_is_lost:
            return
        if reply.fault is not None:
            assert reply.fault in MUST_REJOIN, reply
            client.starts_anew()
        else:
            client.sees(reply)

    @rule(client=clients)
    def obey(self, client: Client) -> None:
        client.obeys()

    @rule(client=clients, topics=sampled_from([("a",), ("b",), ("a", "b", "c"), ()]))
    def subscribe(self, client: Client, topics: tuple[str, ...]) -> None:
        client.topics = topics
        self.beat(client, False, True)

    @rule(all_but=integers(0, 3), rounds=integers(1, 6))
    def members_settle(self, all_but: int, rounds: int) -> None:
        """Most members do what they should for a while; one is late."""
        self._keep_to_the_protocol([each for place, each in enumerate(self.alive) if place != all_but], rounds)

    def _keep_to_the_protocol(self, members: list[Client], rounds: int) -> None:
        for _ in range(rounds):
            for client in members:
                self.beat(client, False, client.epoch == 0)
                client.obeys()
            self.time_passes(2_000)

    @rule(client=consumes(clients))
    def leave(self, client: Client) -> None:
        self.driver.beat(client.member_id, -1)
        self.alive.remove(client)

    @rule(client=consumes(clients))
    def vanish(self, client: Client) -> None:
        self.alive.remove(client)

    @rule(ms=sampled_from([1, 1_000, 5_000, 30_001, 45_001]))
    def time_passes(self, ms: int) -> None:
        self.driver.wait(ms)
        # Who was not heard of for so long knows it: it gives up what it has, as a client does whose session is over.
        members = {member.member_id for member in self.driver.consumer().members}
        for client in self.alive:
            if client.member_id not in members:
                client.starts_anew()

    @rule(name=sampled_from(TOPICS), partitions=integers(1, 5))
    def topic_appears_or_grows(self, name: str, partitions: int) -> None:
        facts = self.driver.topics.by_name(name)
        self.driver.topics.put(name, max(partitions, facts.partitions if facts is not None else 0))

    @rule(name=sampled_from(TOPICS))
    def topic_goes(self, name: str) -> None:
        facts = self.driver.topics.by_name(name)
        if facts is not None:
            self.driver.topics.remove(name)
            self.driver.ask(ForgetTopic(name, facts.topic_id))

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        seen: dict[tuple[bytes, int], str] = {}
        for client in getattr(self, "alive", ()):
            for partition in client.owned:
                assert seen.setdefault(partition, client.member_id) == client.member_id, partition

    def teardown(self) -> None:
        """Left to themselves the members come to a stable group, which reads every partition subscribed to."""
        if not hasattr(self, "driver"):
            return
        self._keep_to_the_protocol(self.alive, rounds=40)
        facts = self.driver.consumer()
        assert not self.alive or facts.state == "Stable", facts
        wanted: set[tuple[bytes, int]] = set()
        for client in self.alive:
            # Expressions may see new topics with a delay of some seconds, which have passed.
            for name in self.driver.topics.names():
                matched = client.regex == ".*" or (client.regex == "[ab]" and name in "ab")
                if name in client.topics or matched:
                    topic = self.driver.topics.by_name(name)
                    assert topic is not None
                    wanted.update((topic.topic_id, partition) for partition in range(topic.partitions))
        assert {partition for client in self.alive for partition in client.owned} == wanted


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
