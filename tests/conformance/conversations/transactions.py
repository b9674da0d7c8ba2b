"""Producer ids, sequences, transactions in both versions, their markers, and what a reader of either isolation is
told."""

from __future__ import annotations

from typing import NamedTuple

from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    DescribeProducersRequest,
    DescribeProducersRequestTopicRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from service.wire.messages.versions import ApiKey
from tests.conformance.conversations.committed_offsets import committed
from tests.conformance.plain import Plain
from tests.conformance.say import batch, commit, fetch, list_offsets, produce
from tests.conformance.talk import Talk, stable_versions

LAST_SEQUENCE = 2**31 - 1


class Producer(NamedTuple):
    """Who writes."""

    transactional_id: str | None
    id: int
    epoch: int

    def older(self) -> Producer:
        return self._replace(epoch=self.epoch - 1)

    def newer(self) -> Producer:
        return self._replace(epoch=self.epoch + 1)


def init(
    transactional_id: str | None, *, producer_id: int = -1, epoch: int = -1, timeout_ms: int = 60_000
) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def begun(talk: Talk, transactional_id: str | None, *, why: str = "") -> Producer:
    """A producer that the broker knows; asks again while it is not ready or an earlier transaction is being ended."""
    talk.wait_for(lambda: talk.quietly(init(transactional_id)).error_code == ErrorCode.NONE)
    answer = talk.ask(init(transactional_id), why=why)
    assert answer is not None
    return Producer(transactional_id, answer.producer_id, answer.producer_epoch)


def data(producer: Producer, sequence: int, count: int = 1, *, transactional: bool | None = None) -> bytes:
    in_transaction = producer.transactional_id is not None if transactional is None else transactional
    return batch(
        count,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=in_transaction,
    )


def write(
    talk: Talk, topic: str, producer: Producer, sequence: int, count: int = 1, *, version: int = 11, why: str = ""
) -> None:
    asked = produce(topic, data(producer, sequence, count), transactional_id=producer.transactional_id)
    talk.ask(asked, version, why=why)


def add(producer: Producer, *topics: str, partition: int = 0) -> AddPartitionsToTxnRequest:
    rows = [AddPartitionsToTxnTopic(name=topic, partitions=[partition]) for topic in topics]
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=producer.transactional_id or "",
        v3_and_below_producer_id=producer.id,
        v3_and_below_producer_epoch=producer.epoch,
        v3_and_below_topics=rows,
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id or "",
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                topics=rows,
            )
        ],
    )


def end(producer: Producer, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=producer.transactional_id or "",
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        committed=commit,
    )


def ended(talk: Talk, producer: Producer, *, commit: bool, version: int = 4) -> None:
    """End a transaction and wait until its markers are written; only the first answer is written down."""
    word = "commit" if commit else "abort"
    talk.ask(end(producer, commit=commit), version, why=word)
    settled(talk, producer)


def settled(talk: Talk, producer: Producer) -> None:
    asked = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id or ""])

    def done() -> bool:
        return talk.quietly(asked).transaction_states[0].transaction_state not in {
            "PrepareCommit",
            "PrepareAbort",
            "Ongoing",
        }

    talk.wait_for(done)


def look(talk: Talk, topic: str, why: str) -> None:
    """What both isolations are shown."""
    for isolation in (0, 1):
        talk.ask(fetch(topic, isolation_level=isolation), 12, why=f"isolation {isolation}, {why}")
        talk.ask(list_offsets(topic, -1, isolation_level=isolation), 7, why=f"isolation {isolation}, {why}")


def producer_ids(talk: Talk) -> None:
    stem = talk.transactional_id()
    talk.wait_for(lambda: talk.quietly(init(None)).error_code == ErrorCode.NONE)
    for version in stable_versions(ApiKey.INIT_PRODUCER_ID):
        talk.coordinator_loaded(f"{stem}-{version}")
        talk.ask(init(None), version, why="for an idempotent producer")
        talk.ask(init(f"{stem}-{version}"), version, why="for a transactional producer")
        talk.ask(init(f"{stem}-{version}"), version, why="again")
        talk.ask(init(""), version, why="for an empty id")
        for timeout_ms in (0, -1, 900_000, 900_001, 2**31 - 1):
            asked = init(f"{stem}-{version}-{timeout_ms}", timeout_ms=timeout_ms)
            talk.ask(asked, version, why=f"timeout of {timeout_ms} ms")
        talk.ask(init(None, timeout_ms=0), version, why="idempotent, without a timeout")


def producer_ids_that_are_expected(talk: Talk) -> None:
    """KIP-360: a producer says who it was."""
    name = talk.transactional_id()
    producer = begun(talk, name)
    for version in (3, 4, 5):
        talk.ask(init(name, producer_id=producer.id), version, why="an id without an epoch")
        talk.ask(init(name, epoch=producer.epoch), version, why="an epoch without an id")
        talk.ask(init(name, producer_id=producer.id + 1_000_000, epoch=0), version, why="an id of somebody else")
        talk.ask(init(name, producer_id=producer.id, epoch=30_000), version, why="an epoch to come")
    talk.ask(init(name, producer_id=producer.id, epoch=producer.epoch), why="itself")
    talk.ask(init(name, producer_id=producer.id, epoch=producer.epoch), why="itself, retried")
    talk.ask(init(name, producer_id=producer.id, epoch=producer.epoch - 1), why="what it was long ago")
    talk.ask(init(None, producer_id=producer.id, epoch=producer.epoch), why="without a transactional id")


def sequences(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, None)
    write(talk, topic, producer, 5, why="not from zero, of a new producer")
    fresh = begun(talk, None)
    for sequence, count, why in (
        (0, 3, "the first three"),
        (3, 2, "the next two"),
        (3, 2, "again"),
        (0, 3, "the first again"),
        (4, 1, "the end of an earlier batch"),
        (3, 1, "the beginning of an earlier batch"),
        (7, 1, "a gap"),
        (5, 1, "the right one"),
        (6, 1, "and on"),
        (7, 1, "and on"),
        (8, 1, "and on"),
        (9, 1, "and on"),
        (5, 1, "the fifth before last again"),
        (3, 2, "what fell out of the window"),
        (0, 3, "what fell out long ago"),
        (LAST_SEQUENCE, 1, "the last number there is"),
    ):
        write(talk, topic, fresh, sequence, count, why=why)
    write(talk, topic, fresh.newer(), 4, why="a new epoch, not from zero")
    write(talk, topic, fresh.newer(), 0, why="a new epoch")
    write(talk, topic, fresh, 10, why="the epoch before")
    write(talk, topic, fresh.newer(), 1, why="the new epoch goes on")
    look(talk, topic, "at last")


def sequences_that_wrap(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, None)
    write(talk, topic, producer, LAST_SEQUENCE - 2, 2, why="near the end")
    write(talk, topic, producer, LAST_SEQUENCE, 1, why="the last")
    write(talk, topic, producer, 0, 1, why="from zero again")
    write(talk, topic, producer, 1, 1, why="and on")
    other = begun(talk, None)
    write(talk, topic, other, LAST_SEQUENCE - 1, 4, why="across the end")
    write(talk, topic, other, 2, 1, why="and on")


def producers_on_strange_terms(talk: Talk) -> None:
    topic = talk.topic()
    strange = Producer(None, 4_000_000_000, 3)
    write(talk, topic, strange, 0, why="an id that was never given")
    for epoch in (-1, 32_767):
        write(talk, topic, Producer(None, strange.id, epoch), 0, why=f"epoch {epoch}")
    write(talk, topic, Producer(None, strange.id, 3), -1, why="sequence -1")
    write(talk, topic, Producer(None, strange.id, 3), -5, why="sequence -5")
    write(talk, topic, Producer(None, -5, 0), 0, why="id -5")


def a_transaction_of_the_old_kind(talk: Talk) -> None:
    first, second = talk.topic(), talk.topic()
    producer = begun(talk, talk.transactional_id())
    for version in (0, 2, 3):
        talk.ask(add(producer, first), version, why="the first topic")
    talk.ask(add(producer, first, second), 3, why="both", keep=topics_in_order)
    write(talk, first, producer, 0, 2)
    write(talk, second, producer, 0, 1)
    look(talk, first, "while it is open")
    ended(talk, producer, commit=True)
    look(talk, first, "after its end")
    talk.ask(add(producer, first), 3, why="the next")
    write(talk, first, producer, 2, 2, why="the next")
    ended(talk, producer, commit=False)
    look(talk, first, "after an abort")
    talk.ask(fetch(first, 4, isolation_level=1), 12, why="inside what was aborted")
    talk.ask(fetch(first, 6, isolation_level=1), 12, why="behind it")


def topics_in_order(answer: dict[str, Plain]) -> Plain:
    rows = answer.get("results_by_topic_v3_and_below", [])
    assert isinstance(rows, list)
    return {**answer, "results_by_topic_v3_and_below": sorted(rows, key=str)}


def a_transaction_of_the_new_kind(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, talk.transactional_id())
    write(talk, topic, producer, 0, 2, version=12, why="joins the transaction by itself")
    write(talk, topic, producer, 2, 1, version=12)
    look(talk, topic, "while it is open")
    answer = talk.ask(end(producer, commit=True), 5, why="commit")
    settled(talk, producer)
    look(talk, topic, "after its end")
    talk.ask(end(producer, commit=True), 5, why="commit again, in the epoch before")
    write(talk, topic, producer, 3, 1, version=12, why="in the epoch before")
    assert answer is not None
    next_one = Producer(producer.transactional_id, answer.producer_id, answer.producer_epoch)
    write(talk, topic, next_one, 3, 1, version=12, why="the new epoch, not from zero")
    write(talk, topic, next_one, 0, 1, version=12, why="the new epoch")
    talk.ask(end(next_one, commit=False), 5, why="abort")
    settled(talk, producer)
    look(talk, topic, "after an abort")


def requests_in_a_row_keep_their_order(talk: Talk) -> None:
    """Five requests on their way at once, one of which adds a partition to the transaction: none overtakes it."""
    topic = talk.topic(partitions=2)
    producer = begun(talk, talk.transactional_id())
    for number in range(10):
        sequences = [0, 0]
        sent = []
        for partitions in ((0,), (0, 1), (0,), (0,), (0, 1)):
            rows = []
            for partition in partitions:
                rows.append(PartitionProduceData(index=partition, records=data(producer, sequences[partition])))
                sequences[partition] += 1
            asked = ProduceRequest(
                transactional_id=producer.transactional_id,
                acks=-1,
                timeout_ms=10_000,
                topic_data=[TopicProduceData(name=topic, partition_data=rows)],
            )
            sent.append(talk.send(asked, 12, why=f"of transaction {number}"))
        for each in sent:
            talk.hear(each, keep=errors_of_partitions)
        answer = talk.quietly(end(producer, commit=True), 5)
        assert answer.error_code == ErrorCode.NONE
        settled(talk, producer)
        producer = Producer(producer.transactional_id, answer.producer_id, answer.producer_epoch)


def errors_of_partitions(answer: dict[str, Plain]) -> Plain:
    topics = answer["responses"]
    assert isinstance(topics, list) and isinstance(topics[0], dict)
    partitions = topics[0]["partition_responses"]
    assert isinstance(partitions, list)
    return " ".join(sorted(str(one.get("error_code", 0)) for one in partitions if isinstance(one, dict)))


def ends_out_of_place(talk: Talk) -> None:
    """The table of what EndTxn answers in which state: before errors had names of their own, with them, and since the
    epoch moves.
    """
    topic = talk.topic()
    for version in (0, 2, 3, 4, 5):
        for first in (True, False):
            producer = begun(talk, talk.transactional_id())
            word = "commit" if first else "abort"
            talk.ask(end(producer, commit=first), version, why=f"{word} of nothing")
            producer = begun(talk, producer.transactional_id)
            if version < 5:
                talk.ask(add(producer, topic), 3)
            else:
                write(talk, topic, producer, 0, version=12)
            talk.ask(end(producer.older(), commit=first), version, why=f"{word} in the epoch before")
            talk.ask(end(producer.newer(), commit=first), version, why=f"{word} in an epoch to come")
            talk.ask(
                end(producer._replace(id=producer.id + 500_000), commit=first), version, why=f"{word} of another id"
            )
            nobody = producer._replace(transactional_id=f"{producer.transactional_id}-nobody")
            talk.ask(end(nobody, commit=first), version, why=f"{word} by nobody")
            talk.ask(end(producer._replace(transactional_id=""), commit=first), version, why=f"{word} without a name")
            answer = talk.ask(end(producer, commit=first), version, why=word)
            settled(talk, producer)
            talk.ask(end(producer, commit=first), version, why=f"{word} after {word}")
            talk.ask(end(producer, commit=not first), version, why=f"the other after {word}")
            if answer is not None and version == 5:
                current = Producer(producer.transactional_id, answer.producer_id, answer.producer_epoch)
                talk.ask(end(current, commit=True), version, why="commit of nothing, in the new epoch")
                talk.ask(end(current, commit=False), version, why="abort of nothing, in the new epoch")


def partitions_added_wrongly(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, talk.transactional_id())
    for version in (0, 1, 2, 3):
        talk.ask(add(producer._replace(transactional_id="no-such-id"), topic), version, why="by nobody")
        talk.ask(add(producer._replace(id=producer.id + 500_000), topic), version, why="with another id")
        talk.ask(add(producer.older(), topic), version, why="in the epoch before")
        talk.ask(add(producer.newer(), topic), version, why="in an epoch to come")
        talk.ask(add(producer, "no-such-topic"), version, why="of no topic")
        talk.ask(add(producer, topic, "no-such-topic"), version, why="one of two is there", keep=topics_in_order)
        talk.ask(add(producer, topic, partition=7), version, why="a partition that is not there")
    talk.ask(add(producer), 3, why="nothing")
    talk.ask(add(producer._replace(transactional_id=""), topic), 3, why="without a name")
    for version in (4, 5):
        talk.ask(add(producer, topic), version, why="in the brokers' form")


def writes_without_a_transaction(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, talk.transactional_id())
    for version in (3, 10, 11):
        write(talk, topic, producer, 0, version=version, why="to a partition that was not added")
    asked = produce(topic, data(producer, 0), transactional_id=None)
    talk.ask(asked, 11, why="transactional, without naming the id")
    asked = produce(topic, data(producer, 0), transactional_id="somebody-else")
    for version in (11, 12):
        talk.ask(asked, version, why="naming another id")
    write(talk, topic, producer.older(), 0, version=12, why="in the epoch before")
    write(talk, topic, producer.newer(), 0, version=12, why="in an epoch to come")
    talk.ask(add(producer, topic), 3)
    write(talk, topic, producer, 0, why="now it was")
    plain = produce(topic, data(producer, 1, transactional=False), transactional_id=producer.transactional_id)
    talk.ask(plain, 11, why="a plain batch in the midst of a transaction")
    look(talk, topic, "while it is open")
    ended(talk, producer, commit=True)


def fencing(talk: Talk) -> None:
    topic = talk.topic()
    name = talk.transactional_id()
    zombie = begun(talk, name)
    talk.ask(add(zombie, topic), 3)
    write(talk, topic, zombie, 0)
    talk.ask(init(name), 4, why="while a transaction is open")
    heir = begun(talk, name, why="after it was aborted")
    for version in (10, 11, 12):
        write(talk, topic, zombie, 1, version=version, why="the zombie")
    for version in (1, 3):
        talk.ask(add(zombie, topic), version, why="the zombie")
    for version in (1, 4, 5):
        talk.ask(end(zombie, commit=True), version, why="the zombie")
    talk.ask(add(heir, topic), 3, why="the heir")
    write(talk, topic, heir, 0, why="the heir")
    ended(talk, heir, commit=True)
    look(talk, topic, "at last")


def a_transaction_that_takes_too_long(talk: Talk) -> None:
    topic = talk.topic()
    name = talk.transactional_id()
    answer = talk.ask(init(name, timeout_ms=200))
    assert answer is not None
    producer = Producer(name, answer.producer_id, answer.producer_epoch)
    talk.ask(add(producer, topic), 3)
    write(talk, topic, producer, 0)
    settled(talk, producer)
    write(talk, topic, producer, 1, why="too late")
    talk.ask(end(producer, commit=True), 4, why="too late")
    look(talk, topic, "after it was aborted")


def refused(answer: dict[str, Plain]) -> Plain:
    """Of a group outside the transaction Kafka says INVALID_TXN_STATE or TRANSACTION_ABORTABLE, as it happens."""
    return "refused" if "'error_code': 48" in str(answer) or "'error_code': 120" in str(answer) else answer


def commit_with(
    by: Producer, group: str, topic: str, offset: int, *, member: str = "", generation: int = -1
) -> TxnOffsetCommitRequest:
    rows = [TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")]
    return TxnOffsetCommitRequest(
        transactional_id=by.transactional_id or "",
        group_id=group,
        producer_id=by.id,
        producer_epoch=by.epoch,
        generation_id=generation,
        member_id=member,
        topics=[TxnOffsetCommitRequestTopic(name=topic, partitions=rows)],
    )


def offsets(talk: Talk) -> None:
    topic = talk.topic()
    group = talk.group()
    producer = begun(talk, talk.transactional_id())

    def offsets_of(
        offset: int, by: Producer = producer, *, member: str = "", generation: int = -1
    ) -> TxnOffsetCommitRequest:
        return commit_with(by, group, topic, offset, member=member, generation=generation)

    def adding(by: Producer = producer, name: str = group) -> AddOffsetsToTxnRequest:
        return AddOffsetsToTxnRequest(
            transactional_id=by.transactional_id or "", producer_id=by.id, producer_epoch=by.epoch, group_id=name
        )

    for version in (0, 3):
        talk.ask(offsets_of(1), version, why="before the group was added", keep=refused)
        talk.ask(adding(producer.older()), version, why="in the epoch before")
        talk.ask(adding(name=""), version, why="a group without a name")
        talk.ask(adding(Producer("no-such-id", producer.id, 0)), version, why="by nobody")
    for version in stable_versions(ApiKey.ADD_OFFSETS_TO_TXN):
        talk.ask(adding(), version)
    for version in (0, 1, 2, 3, 4):
        talk.ask(offsets_of(version + 1), version)
        talk.ask(offsets_of(9, producer.older()), version, why="in the epoch before")
    talk.ask(offsets_of(9, member="nobody", generation=3), 3, why="as a member nobody knows")
    talk.ask(offsets_of(9, generation=3), 3, why="in a generation that is not")
    for stable in (False, True):
        talk.ask(committed(group, [(topic, [0])], stable=stable), 9, why=f"while pending, stable={stable}")
    talk.ask(commit(group, topic, [77]), 9, why="beside the transaction")
    talk.ask(committed(group, [(topic, [0])]), 9, why="beside the transaction")
    ended(talk, producer, commit=True)
    talk.wait_for(lambda: stable_again(talk, group, topic))
    talk.ask(committed(group, [(topic, [0])], stable=True), 9, why="after the commit")
    talk.ask(adding())
    talk.ask(offsets_of(50), 3)
    ended(talk, producer, commit=False)
    talk.wait_for(lambda: stable_again(talk, group, topic))
    talk.ask(committed(group, [(topic, [0])], stable=True), 9, why="after an abort")
    modern = begun(talk, talk.transactional_id())
    talk.ask(offsets_of(60, modern), 5, why="version 5 adds the group itself")
    talk.ask(end(modern, commit=True), 5)
    settled(talk, modern)
    talk.wait_for(lambda: stable_again(talk, group, topic))
    talk.ask(committed(group, [(topic, [0])], stable=True), 9, why="after that")


def stable_again(talk: Talk, group: str, topic: str) -> bool:
    answer = talk.quietly(committed(group, [(topic, [0])], stable=True), 9)
    return answer.groups[0].topics[0].partitions[0].error_code == ErrorCode.NONE


def offsets_of_a_group_that_is_deleted(talk: Talk) -> None:
    """While a transaction that commits them is open."""
    topic = talk.topic()
    for has_more in (False, True):
        for commits in (True, False):
            for then in ("nothing", "from outside", "in the transaction"):
                _deleted_meanwhile(talk, topic, then, has_more=has_more, commits=commits)


def _deleted_meanwhile(talk: Talk, topic: str, then: str, *, has_more: bool, commits: bool) -> None:
    group = talk.group()
    producer = begun(talk, talk.transactional_id())
    if has_more:
        talk.ask(commit(group, topic, [3]), 8)
    talk.ask(commit_with(producer, group, topic, 5), 5)
    talk.ask(DeleteGroupsRequest(groups_names=[group]), why=f"with more={has_more}")
    for stable in (False, True):
        talk.ask(committed(group, [(topic, [0])], stable=stable), 9, why=f"deleted, stable={stable}")
    talk.ask(DescribeGroupsRequest(groups=[group]), why="deleted")
    if then == "from outside":
        talk.ask(commit(group, topic, [77]), 8, why=then)
    elif then == "in the transaction":
        talk.ask(commit_with(producer, group, topic, 88), 5, why=then)
    talk.ask(end(producer, commit=commits), 5)
    settled(talk, producer)
    talk.wait_for(lambda: stable_again(talk, group, topic))
    talk.ask(committed(group, [(topic, [0])], stable=True), 9, why=f"then {then}, commit={commits}")
    talk.ask(DescribeGroupsRequest(groups=[group]), why=f"then {then}, commit={commits}")


def looking_on(talk: Talk) -> None:
    topic = talk.topic()
    producer = begun(talk, talk.transactional_id())
    name = producer.transactional_id or ""

    def mine(answer: dict[str, Plain]) -> Plain:
        rows = answer.get("transaction_states", [])
        assert isinstance(rows, list)
        return {
            **answer,
            "transaction_states": [r for r in rows if isinstance(r, dict) and r["transactional_id"] == name],
        }

    def everything(why: str) -> None:
        talk.ask(DescribeTransactionsRequest(transactional_ids=[name]), why=why)
        for version in stable_versions(ApiKey.LIST_TRANSACTIONS):
            talk.ask(ListTransactionsRequest(), version, why=why, keep=mine)
        rows = [DescribeProducersRequestTopicRequest(name=topic, partition_indexes=[0])]
        talk.ask(DescribeProducersRequest(topics=rows), why=why)

    everything("before")
    talk.ask(add(producer, topic), 3)
    everything("added")
    write(talk, topic, producer, 0, 2)
    everything("written")
    filters = {
        "in state Ongoing": ListTransactionsRequest(state_filters=["Ongoing"]),
        "in state Empty": ListTransactionsRequest(state_filters=["Empty"]),
        "in state Nonsense": ListTransactionsRequest(state_filters=["Nonsense", "Ongoing"]),
        "of its id": ListTransactionsRequest(producer_id_filters=[producer.id]),
        "of another id": ListTransactionsRequest(producer_id_filters=[producer.id + 500_000]),
        "for longer than an hour": ListTransactionsRequest(duration_filter=3_600_000),
        "by its name": ListTransactionsRequest(transactional_id_pattern=f"{name}.*"),
        "by a name nobody has": ListTransactionsRequest(transactional_id_pattern="zzz.*"),
        "by a pattern that is none": ListTransactionsRequest(transactional_id_pattern="("),
    }
    for why, asked in filters.items():
        talk.ask(asked, why=why, keep=mine)
    ended(talk, producer, commit=True)
    everything("committed")
    talk.ask(DescribeTransactionsRequest(transactional_ids=["no-such-id", ""]), why="of nobody")
    talk.ask(DescribeTransactionsRequest(transactional_ids=[]), why="none")
    strange = [
        DescribeProducersRequestTopicRequest(name="no-such-topic", partition_indexes=[0]),
        DescribeProducersRequestTopicRequest(name=topic, partition_indexes=[5]),
    ]
    talk.ask(DescribeProducersRequest(topics=strange), why="what is not there")
    talk.ask(DescribeProducersRequest(topics=[]), why="nothing")


def markers_written_by_hand(talk: Talk) -> None:
    """What an administrator does to a transaction that hangs, and what a coordinator of either kind of transactions
    sends.
    """
    for version, transaction_version in ((1, 0), (2, 0), (2, 2)):
        _markers_by_hand(talk, version, transaction_version)


def _markers_by_hand(talk: Talk, version: int, transaction_version: int) -> None:
    topic = talk.topic()
    producer = begun(talk, talk.transactional_id())
    talk.ask(add(producer, topic), 3)
    write(talk, topic, producer, 0)

    def marker(
        by: Producer, *, name: str = topic, partition: int = 0, coordinator: int = 0, commit: bool = False
    ) -> WritableTxnMarker:
        return WritableTxnMarker(
            producer_id=by.id,
            producer_epoch=by.epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[partition])],
            coordinator_epoch=coordinator,
            transaction_version=transaction_version,
        )

    cases = {
        "in the epoch before": marker(producer.older()),
        "on a partition that is not there": marker(producer, partition=5),
        "on a topic that is not there": marker(producer, name="no-such-topic"),
        "of a producer that never wrote": marker(Producer(None, 5_000_000_000, 0)),
        "by its own": marker(producer, coordinator=0),
        "again": marker(producer),
        "of an older coordinator": marker(producer, coordinator=-1),
    }
    for why, one in cases.items():
        talk.ask(WriteTxnMarkersRequest(markers=[one]), version, why=f"{why}, of version {transaction_version}")
    look(talk, topic, "after the marker")
    ended(talk, producer, commit=False)


CONVERSATIONS = (
    producer_ids,
    producer_ids_that_are_expected,
    sequences,
    sequences_that_wrap,
    producers_on_strange_terms,
    a_transaction_of_the_old_kind,
    a_transaction_of_the_new_kind,
    requests_in_a_row_keep_their_order,
    ends_out_of_place,
    partitions_added_wrongly,
    writes_without_a_transaction,
    fencing,
    a_transaction_that_takes_too_long,
    offsets,
    looking_on,
    markers_written_by_hand,
    offsets_of_a_group_that_is_deleted,
)
