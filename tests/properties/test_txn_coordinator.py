"""The transaction coordinator under clients whose answers get lost, whose requests come twice, late and out of order,
under restarts, and under clients that send anything at all.

Every end that a client sends is tagged with the transaction it was meant for: whatever happens, it ends that one or
none.
"""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from idempotence.epochs import FENCE_EPOCH, LAST_EPOCH
from idempotence.producer_ids import next_block
from log.ids import TopicPartition
from tests.rules import rule
from tests.txn.shard import PlainShard
from txn.commands import (
    AddPartitions,
    EndBranches,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    NamedBranch,
    VerifyPartitions,
)
from txn.markers import SendMarkers
from txn.records import write_key, write_value
from txn.settings import TxnSettings
from txn.states import AT_REST, State, Txn
from txn.verdicts import Ended, Initialized

PARTITIONS = [TopicPartition("orders", index) for index in range(3)]
IDS = ("pay", "ship")
NEAR_THE_END = 32_764


@dataclass(eq=False)
class Attempt:
    """One transaction as its client means it."""

    client: int
    outcome: State | None = None


@dataclass
class Client:
    number: int
    transactional_id: str
    pair: tuple[int, int] | None = None
    attempt: Attempt | None = None
    unanswered: tuple[EndTransaction, Attempt] | None = None


@dataclass
class World:
    shard: PlainShard = field(default_factory=PlainShard)
    clients: list[Client] = field(default_factory=lambda: [Client(index, IDS[index % 2]) for index in range(3)])
    current: dict[str, Attempt] = field(default_factory=dict)
    sent: list[tuple[object, Attempt | None]] = field(default_factory=list)
    markers: dict[tuple[int, int], bool] = field(default_factory=dict)
    new_pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    fates: dict[str, dict[tuple[int, int], bool | None]] = field(default_factory=lambda: {each: {} for each in IDS})
    """Whether what was written with a pair was committed; None while it is open."""

    # -- one request reaches the coordinator

    def deliver(self, request: object, attempt: Attempt | None) -> object:
        transactional_id: str = request.transactional_id  # type: ignore[attr-defined]
        before = self.state(transactional_id)
        answer = self.shard.ask(request)
        after = self.state(transactional_id)
        if after is State.ONGOING and before is not State.ONGOING:
            assert attempt is not None
            self.current[transactional_id] = attempt
            self.fates[transactional_id][self.present(transactional_id)] = None
        self.look(transactional_id, before, request, attempt)
        if isinstance(request, EndTransaction) and isinstance(answer, Ended):
            assert attempt is not None
            told = State.COMPLETE_COMMIT if request.commit else State.COMPLETE_ABORT
            assert attempt.outcome in (told, None)
            assert attempt.outcome is told or not request.commit, "told of a commit that never was"
        return answer

    def look(self, transactional_id: str, before: State | None, request: object, attempt: Attempt | None) -> None:
        """Was something decided, and was it what it should have been?"""
        after = self.state(transactional_id)
        if before is State.ONGOING and after is not State.ONGOING:
            decided = self.current.pop(transactional_id)
            committed = after in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
            assert decided.outcome is None, "decided twice"
            decided.outcome = State.COMPLETE_COMMIT if committed else State.COMPLETE_ABORT
            self.fates[transactional_id][list(self.fates[transactional_id])[-1]] = committed
            if committed:
                assert isinstance(request, EndTransaction)
                assert request.commit
            if isinstance(request, EndTransaction):
                assert attempt is decided, "an end ended another transaction than the one it was sent for"
        for effect in self.shard.take_effects():
            assert isinstance(effect, SendMarkers)
            pair = (effect.producer_id, effect.producer_epoch)
            assert self.markers.setdefault(pair, effect.commit) is effect.commit, "told both ways"

    def state(self, transactional_id: str) -> State | None:
        described = self.shard.machine.describe(transactional_id)
        return None if described is None else described.txn.state

    def present(self, transactional_id: str) -> tuple[int, int]:
        described = self.shard.machine.describe(transactional_id)
        assert described is not None
        return described.txn.producer_id, described.txn.producer_epoch

    def recall(self, *, from_the_first: bool) -> None:
        """The coordinator tells the truth of the past or nothing; the last commit, and all since, it knows."""
        for transactional_id, fates in self.fates.items():
            described = self.shard.machine.describe(transactional_id)
            is_known = from_the_first or any(fates.values())
            for pair, fate in reversed(fates.items()):
                told = None if described is None else described.txn.was_committed(*pair)
                assert told is fate if is_known else told in (None, fate)
                is_known = is_known and not fate

    # -- what can happen

    def start(self, who: int, _: int) -> None:
        client = self.clients[who]
        request = InitProducer(client.transactional_id, 60_000)
        answer = self.deliver(request, None)
        if not isinstance(answer, Initialized):
            self.write_markers(0, 0)
            answer = self.deliver(request, None)
        if isinstance(answer, Initialized):
            client.pair = (answer.producer_id, answer.producer_epoch)
            assert client.pair not in self.new_pairs, "two clients with one pair"
            self.new_pairs[client.pair] = who
            client.attempt, client.unanswered = None, None

    def add(self, who: int, which: int) -> None:
        client = self.clients[who]
        if client.pair is None or client.unanswered is not None:
            return
        client.attempt = client.attempt or Attempt(who)
        request = AddPartitions(client.transactional_id, *client.pair, (PARTITIONS[which % 3],))
        self.sent.append((request, client.attempt))
        self.deliver(request, client.attempt)

    def end(self, who: int, how: int) -> None:
        """`how`: commit or abort; the answer arrives or is lost (then the client asks again next time)."""
        client = self.clients[who]
        if client.pair is None:
            return
        if client.unanswered is None:
            attempt = client.attempt or Attempt(who)
            client.unanswered = (
                EndTransaction(client.transactional_id, *client.pair, commit=how % 2 == 0),
                attempt,
            )
        request, attempt = client.unanswered
        self.sent.append((request, attempt))
        answer = self.deliver(request, attempt)
        if how >= 4 or type(answer).__name__ in ("Busy", "NoProducerIds"):
            return
        client.unanswered = client.attempt = None
        client.pair = (answer.producer_id, answer.producer_epoch) if isinstance(answer, Ended) else None

    def again(self, who: int, which: int) -> None:
        """A request of long ago, delivered once more."""
        if self.sent:
            self.deliver(*self.sent[(who * 7 + which) % len(self.sent)])

    def write_markers(self, _: int, __: int) -> None:
        before = {transactional_id: self.state(transactional_id) for transactional_id in IDS}
        self.shard.write_all_markers()
        for transactional_id, state in before.items():
            self.look(transactional_id, state, None, None)

    def wait(self, who: int, how: int) -> None:
        before = {transactional_id: self.state(transactional_id) for transactional_id in IDS}
        self.shard.tick(20_000 * (1 + how))
        if how % 2:
            self.shard.write_all_markers()
        for transactional_id, state in before.items():
            self.look(transactional_id, state, None, None)

    def restart(self, _: int, how: int) -> None:
        before = (dict(everything(self.shard)), owed(self.shard))
        self.shard.restart(compacted=how % 2 == 0)
        assert (dict(everything(self.shard)), owed(self.shard)) == before
        self.shard.take_effects()


def everything(shard: PlainShard) -> list[tuple[str, Txn]]:
    return [(txn.transactional_id, txn) for txn in shard.machine.all()]


def owed(shard: PlainShard) -> list[tuple[str, int, int, bool]]:
    return sorted(
        (markers.transactional_id, markers.producer_id, markers.producer_epoch, markers.commit)
        for markers in shard.machine.owed_markers()
    )


ACTS = ("start", "add", "add", "end", "end", "again", "again", "write_markers", "wait", "restart")
STEPS = st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 2), st.integers(0, 7)), max_size=60)


ENDED = [
    (act, 0, how) for end in (0, 1, 1) for act, how in (("start", 0), ("add", 0), ("end", end), ("write_markers", 0))
]  # one is committed, the next two are aborted


@rule("B.8", "what became of former transactions is told truly or not at all, and is known from the last commit on")
@settings(deadline=None, max_examples=300)
@given(STEPS, st.booleans())
@example(ENDED * 3, False)
@example(ENDED * 3, True)
def test_a_coordinator_tells_the_truth_of_former_transactions(
    steps: list[tuple[str, int, int]], epochs_end: bool
) -> None:
    world = World()
    if epochs_end:
        near_the_end(world)
    for act, who, how in steps:
        getattr(world, act)(who, how)
        world.recall(from_the_first=not epochs_end)


@rule("C", "KAFKA-17754: an end, delivered again or late, never ends another transaction (version 2)")
@settings(deadline=None, max_examples=300)
@given(STEPS)
def test_an_end_ends_the_transaction_it_was_sent_for_or_none(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for act, who, how in steps:
        getattr(world, act)(who, how)


@rule("B.5", "the same at the end of the epochs, where the producer id changes")
@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_an_end_ends_its_own_transaction_when_epochs_run_out(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    near_the_end(world)
    for act, who, how in steps:
        getattr(world, act)(who, how)


def near_the_end(world: World) -> None:
    """Ids of an older version, with few epochs left."""
    for index, transactional_id in enumerate(IDS):
        txn = Txn(transactional_id, 500 + index, NEAR_THE_END, State.EMPTY, 60_000, 1)
        world.shard.log.append((write_key(transactional_id), write_value(txn)))
    world.shard.ids.add(next_block(5_000))
    world.shard.restart()


# ---------------------------------------------------------------- anything, from anybody

STRANGE_IDS = ("pay", "clicks", "clicks::1/a", "clicks::1/b", "clicks::2/a")


@dataclass
class Strangers:
    """Who knows the ids and guesses at pairs, and minds neither protocol nor version."""

    shard: PlainShard
    blocks: int = 0

    def pair(self, which: int, guess: int) -> tuple[int, int]:
        """That of the holder, of the transaction, or one nearby."""
        described = self.shard.machine.describe(STRANGE_IDS[which])
        if described is None:
            return 1, 0
        txn = described.txn
        producer_id, epoch = txn.holder if guess % 3 else (txn.producer_id, txn.producer_epoch)
        return producer_id, max(0, min(epoch + (0, 0, 0, -1, 1)[guess % 5], FENCE_EPOCH))

    def init(self, which: int, guess: int, how: int) -> None:
        pair = self.pair(which, guess) if how & 1 else (-1, -1)
        two_phase = how & 6 == 6
        ask = InitProducer(STRANGE_IDS[which], 60_000, *pair, two_phase, two_phase and bool(how & 8))
        self.shard.ask(ask)

    def add(self, which: int, guess: int, how: int) -> None:
        partitions = tuple(PARTITIONS[: how % 4])
        pair = self.pair(which, guess)
        self.shard.ask(AddPartitions(STRANGE_IDS[which], *pair, partitions, 2 * (how & 1), patience_ms=how))

    def verify(self, which: int, guess: int, how: int) -> None:
        self.shard.ask(VerifyPartitions(STRANGE_IDS[which], *self.pair(which, guess), tuple(PARTITIONS[: how % 4])))

    def end(self, which: int, guess: int, how: int) -> None:
        pair = self.pair(which, guess)
        self.shard.ask(EndTransaction(STRANGE_IDS[which], *pair, bool(how & 2), 2 * (how & 1), patience_ms=how))

    def decide(self, which: int, _: int, how: int) -> None:
        named = tuple(NamedBranch(name) for bit, name in enumerate(STRANGE_IDS[2:]) if how >> bit & 1)
        self.shard.ask(EndBranches("clicks", 1 + which % 2, bool(how & 8), named))

    def write_markers(self, which: int, _: int, how: int) -> None:
        """All that are owed, or a part of the first."""
        if how & 1:
            self.shard.write_all_markers()
        for owed in list(self.shard.machine.owed_markers())[:1]:
            pair = (owed.producer_id, owed.producer_epoch)
            self.shard.ask(MarkersWritten(owed.transactional_id, *pair, owed.partitions[: 1 + which % 2]))

    def wait(self, _: int, __: int, how: int) -> None:
        self.shard.tick(10_000 * how)

    def restart(self, _: int, __: int, how: int) -> None:
        before = dict(everything(self.shard))
        self.shard.restart(compacted=how % 2 == 0)
        assert dict(everything(self.shard)) == before

    def producer_ids(self, _: int, __: int, how: int) -> None:
        """They run out, or there are more."""
        while how & 1 and self.shard.ids.take() is not None:
            pass
        if not how & 1:
            self.blocks += 1
            self.shard.ids.add(next_block(10_000 * self.blocks))


STRANGE_ACTS = (
    *("init", "init", "add", "add", "verify", "end", "end", "decide"),
    *("write_markers", "wait", "restart", "producer_ids"),
)
STRANGE_STEPS = st.lists(
    st.tuples(st.sampled_from(STRANGE_ACTS), st.integers(0, 4), st.integers(0, 14), st.integers(0, 15)), max_size=40
)
OUT_OF_IDS_AT_THE_LAST_EPOCH = [
    *[("producer_ids", 0, 0, 1), ("add", 0, 1, 1), ("wait", 0, 0, 7), ("write_markers", 0, 0, 1)],
    *[("add", 0, 1, 1), ("end", 0, 1, 1)],
]
BEGUN_WITHOUT_PARTITIONS = [("add", 0, 1, 4), ("end", 0, 1, 3), ("add", 0, 1, 4), ("wait", 0, 0, 7)]


@rule("B.7", "whatever anybody sends, every transaction that nobody ends is ended by time, and its markers complete it")
@settings(deadline=None, max_examples=400)
@given(STRANGE_STEPS, st.sampled_from((0, NEAR_THE_END, LAST_EPOCH)))
@example(OUT_OF_IDS_AT_THE_LAST_EPOCH, LAST_EPOCH)
@example(BEGUN_WITHOUT_PARTITIONS, 0)
def test_whatever_is_sent_all_comes_to_rest(steps: list[tuple[str, int, int, int]], epoch: int) -> None:
    strangers = Strangers(PlainShard(TxnSettings(two_phase_commit_enabled=True)))
    shard = strangers.shard
    for index, name in enumerate(STRANGE_IDS[:2]):
        shard.log.append((write_key(name), write_value(Txn(name, 500 + index, epoch, State.EMPTY, 60_000, 1))))
    shard.restart()
    for act, which, guess, how in steps:
        getattr(strangers, act)(which, guess, how)
    for _ in range(3):
        shard.tick(200_000)
        shard.write_all_markers()
    for txn in shard.machine.all():
        assert txn.state in AT_REST or txn.is_two_phase
