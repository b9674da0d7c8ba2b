"""The least of a shard: runs a coordinator over a list in place of a log. Everything is committed at once; time
passes when the test says so.
"""

from typing import cast

from idempotence.producer_ids import ProducerIds, next_block
from txn.commands import Command, InitProducer, MarkersWritten
from txn.coordinator import TxnCoordinator
from txn.markers import SendMarkers
from txn.records import read_key, read_value
from txn.settings import TxnSettings
from txn.states import Txn
from txn.verdicts import Initialized, TxnDecision, Verdict

Record = tuple[bytes, bytes | None]
START_MS = 1_700_000_000_000


class PlainShard:
    def __init__(self, settings: TxnSettings | None = None, first_producer_id: int = 1) -> None:
        self.settings = settings or TxnSettings()
        self.ids = ProducerIds()
        self.ids.add(next_block(first_producer_id))
        self.log: list[Record] = []
        self.batches: list[list[Record]] = []
        self.now_ms = START_MS
        self.wall_ahead_ms = 0  # how far the wall clock is ahead of the steady one
        self.answers: dict[int, Verdict] = {}
        self.effects: list[object] = []
        self._last_token = 0
        self._told = 0
        self._late: list[Verdict] = []
        self.machine = TxnCoordinator(self.ids.take, self.settings, self.wall_ms)

    def ask(self, command: object) -> Verdict | None:
        """Decide on a command; None while its answer is outstanding."""
        token = self._last_token = self._last_token + 1
        self._carry_out(self.machine.decide(cast("Command", command), token, self.now_ms), token)
        return self.answers.get(token)

    def tick(self, milliseconds: int) -> None:
        """Time passes; what is due is done, each at its own time."""
        until_ms = self.now_ms + milliseconds
        while (at_ms := self.machine.next_deadline_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self._carry_out(self.machine.expire(self.now_ms))
        self.now_ms = until_ms

    def wall_ms(self) -> int:
        return self.now_ms + self.wall_ahead_ms

    def restart(self, *, compacted: bool = False) -> None:
        """Another broker takes over: it knows the log and nothing else."""
        records = list(dict(self.log).items()) if compacted else self.log
        self.machine = TxnCoordinator(self.ids.take, self.settings, self.wall_ms)
        for key, value in records:
            self.machine.apply(key, value)
        self.effects += self.machine.owed_markers()

    def _carry_out(self, decision: TxnDecision, own_token: int = 0) -> None:
        for key, value in decision.records:
            self.machine.apply(key, value)
        if decision.records:
            self.log += decision.records
            self.batches.append(list(decision.records))
        for token, verdict in decision.answers:
            assert token not in self.answers, "nobody is answered twice"
            self.answers[token] = verdict
            if token != own_token:
                self._late.append(verdict)
        self.effects += decision.effects

    # -- for tests

    def txn(self, transactional_id: str) -> Txn:
        described = self.machine.describe(transactional_id)
        assert described is not None
        return described.txn

    def init(self, transactional_id: str = "pay", timeout_ms: int = 60_000) -> tuple[int, int]:
        """Become the holder."""
        verdict = self.ask(InitProducer(transactional_id, timeout_ms))
        assert isinstance(verdict, Initialized), verdict
        return verdict.producer_id, verdict.producer_epoch

    def write_all_markers(self) -> list[SendMarkers]:
        """Every leader takes every marker that is owed."""
        owed = list(self.machine.owed_markers())
        for markers in owed:
            pair = (markers.producer_id, markers.producer_epoch)
            self.ask(MarkersWritten(markers.transactional_id, *pair, markers.partitions))
        return owed

    def take_written(self) -> list[list[tuple[str, Txn | None]]]:
        """The records since the last call, read back, batch by batch."""
        read = []
        for batch in self.batches[self._told :]:
            entries: list[tuple[str, Txn | None]] = []
            for key, value in batch:
                transactional_id = read_key(key)
                assert transactional_id is not None
                entries.append((transactional_id, None if value is None else read_value(transactional_id, value)))
            read.append(entries)
        self._told = len(self.batches)
        return read

    def take_effects(self) -> list[object]:
        taken, self.effects = self.effects, []
        return taken

    def take_late_answers(self) -> list[Verdict]:
        taken, self._late = self._late, []
        return taken
