"""Speaks with a transaction coordinator.

init id=pay [timeout=60000] [expect=1/0] [2pc] [keep] [patient]
add id=pay by=1/0 orders-0 orders-1 [v=1] [patient]
verify id=pay by=1/0 orders-0
end id=pay by=1/0 commit|abort [v=1] [patient]
decide root=clicks token=17 commit|abort [by=1/0] clicks::17/a=1/1
markers id=pay by=1/1 orders-0      leaders have written them
tick 60001                          milliseconds pass
restart                             another broker replays the log
show   owed   last root=clicks
"""

from collections.abc import Iterator
from dataclasses import fields
from enum import Enum

from log.ids import TopicPartition
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
from txn.settings import TxnSettings
from txn.states import NO_TOKEN, State, Txn
from txn.verdicts import Verdict

PATIENCE_MS = 1_000


class Words:
    """One line, taken apart: `name=value` words, and the others."""

    def __init__(self, line: str) -> None:
        self.verb, *words = line.split()
        self.named = dict(word.split("=", 1) for word in words if "=" in word and "::" not in word.split("=")[0])
        self.plain = [word for word in words if "=" not in word or "::" in word.split("=")[0]]

    def flag(self, name: str) -> bool:
        return name in self.plain

    def pair(self, name: str) -> tuple[int, int]:
        producer_id, epoch = self.named.get(name, "-1/-1").split("/")
        return int(producer_id), int(epoch)

    @property
    def patience_ms(self) -> int:
        return PATIENCE_MS if self.flag("patient") else 0

    def partitions(self) -> tuple[TopicPartition, ...]:
        named = [word.rpartition("-") for word in self.plain if word.rpartition("-")[2].isdigit()]
        return tuple(TopicPartition(topic, int(index)) for topic, _, index in named)


class TxnSpeaker:
    def __init__(self) -> None:
        self.shard = PlainShard(TxnSettings(two_phase_commit_enabled=True))

    def say(self, line: str) -> list[str]:
        words = Words(line)
        told: list[str] = []
        match words.verb:
            case "tick":
                self.shard.tick(int(words.plain[0]))
            case "restart":
                self.shard.restart()
            case "show":
                told += [f"{tell_txn(txn)}" for txn in self.shard.machine.all()]
            case "owed":
                told += [tell_markers(markers) for markers in self.shard.machine.owed_markers()]
            case "last":
                told.append(str(self.shard.machine.last_decision(words.named["root"])))
            case _:
                told += self._ask(words)
                return told
        return told + list(self._happened())

    def _ask(self, words: Words) -> list[str]:
        answer = self.shard.ask(command_of(words))
        first = "waits" if answer is None else tell_verdict(answer)
        return [first, *self._happened()]

    def _happened(self) -> Iterator[str]:
        for late in self.shard.take_late_answers():
            yield f"then {tell_verdict(late)}"
        for records in self.shard.take_written():
            for transactional_id, txn in records:
                yield f"  wrote {transactional_id}: gone" if txn is None else f"  wrote {tell_txn(txn)}"
        for effect in self.shard.take_effects():
            assert isinstance(effect, SendMarkers)
            yield f"  sends {tell_markers(effect)}"


def command_of(words: Words) -> object:
    transactional_id = words.named.get("id", "")
    producer_id, epoch = words.pair("by")
    version = int(words.named.get("v", 2))
    match words.verb:
        case "init":
            timeout_ms = int(words.named.get("timeout", 60_000))
            return InitProducer(
                transactional_id,
                timeout_ms,
                *words.pair("expect"),
                two_phase_commit=words.flag("2pc"),
                keep_prepared=words.flag("keep"),
                patience_ms=words.patience_ms,
            )
        case "add":
            return AddPartitions(transactional_id, producer_id, epoch, words.partitions(), version, words.patience_ms)
        case "verify":
            return VerifyPartitions(transactional_id, producer_id, epoch, words.partitions())
        case "end":
            return EndTransaction(
                transactional_id, producer_id, epoch, words.flag("commit"), version, words.patience_ms
            )
        case "markers":
            return MarkersWritten(transactional_id, producer_id, epoch, words.partitions())
        case "decide":
            named = [word.rpartition("=") for word in words.plain if "=" in word]
            branches = [NamedBranch(name, *(int(part) for part in pair.split("/"))) for name, _, pair in named]
            return EndBranches(
                words.named["root"],
                int(words.named["token"]),
                words.flag("commit"),
                tuple(branches),
                producer_id,
                epoch,
            )
    raise ValueError(f"nobody understands {words.verb!r}")


def tell_verdict(verdict: Verdict) -> str:
    """`Fenced(producer_epoch=0, current_epoch=1)` reads `fenced producer_epoch=0 current_epoch=1`."""
    name = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in type(verdict).__name__).strip()
    told = [f"{field.name}={tell_value(getattr(verdict, field.name))}" for field in fields(verdict)]
    return " ".join([name, *(word for word in told if not word.startswith("ongoing") or not word.endswith("=-1"))])


def tell_value(value: object) -> str:
    if isinstance(value, State):
        return value.label
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value) or "none"
    return str(value)


def tell_txn(txn: Txn) -> str:
    told = [f"{txn.transactional_id}: {txn.state.label} {txn.producer_id}/{txn.producer_epoch}"]
    if txn.last_producer_epoch >= 0:
        told.append(f"before={txn.previous_producer_id}/{txn.last_producer_epoch}")
    if txn.next_producer_id >= 0:
        told.append(f"next={txn.successor[0]}/{txn.successor[1]}")
    if txn.sealed_ms >= 0:
        told.append("sealed")
    if txn.decided_token != NO_TOKEN:
        told.append(f"decided={txn.decided_token}")
    return " ".join([*told, *(str(partition) for partition in txn.partitions)])


def tell_markers(markers: SendMarkers) -> str:
    outcome = "commit" if markers.commit else "abort"
    partitions = " ".join(str(partition) for partition in markers.partitions)
    version = markers.transaction_version
    return (
        f"{outcome} {markers.transactional_id} {markers.producer_id}/{markers.producer_epoch} v={version} {partitions}"
    )
