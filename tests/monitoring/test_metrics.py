"""What a scrape of a real broker says: about partitions, transactions, groups, producers and requests."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from log.batch import build_batch
from log.disk import DiskFault
from monitoring import families as of
from monitoring.burrow import BurrowStatus
from monitoring.collectors import SET_BY_A_CLOCK_MS, SLICE, Scrape
from monitoring.exposition import LINES_AT_ONCE, Lines
from monitoring.families import REGISTRY
from monitoring.scraping import GATHERING, Scraper
from service.api.broker_door import BrokerDoor
from service.api.listener import Listener
from service.net.door import PeerInfo
from service.wire.codec import RequestHeader, encode_request
from service.wire.messages import (
    EndTxnRequest,
    MetadataRequest,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from service.wire.messages.versions import ApiKey
from tests.monitoring.scraped import gathered, read, scraped
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage, until, values

HOSTILE = '</td><script>alert("1")</script>\\\n\x07\u202e' + "g" * 200


async def commit(stage: TxnStage, group: str, topic: str, offset: int, partition: int = 0) -> None:
    where = OffsetCommitRequestTopic(topic, partitions=[OffsetCommitRequestPartition(partition, offset)])
    answer = await stage.ask(OffsetCommitRequest(group, topics=[where]), 9)
    assert answer.topics[0].partitions[0].error_code == 0


async def begun(stage: TxnStage, transactional_id: str, *, timeout_ms: int = 60_000) -> Writer:
    """A producer with one record in an open transaction in orders-0."""
    writer = Writer(stage, transactional_id)
    assert await writer.init(timeout_ms=timeout_ms) == 0
    assert await writer.write("orders", "a") == 0
    return writer


def test_an_open_transaction_is_seen_where_it_holds_readers_back_and_who_it_is(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = await begun(stage, "pay")
        plain = Writer(stage, "", producer_id=7_000, epoch=0)
        assert await plain.write("orders", "b", plain=True) == 0
        seen = scraped(stage.broker)
        here = {"topic": "orders", "partition": 0}
        assert seen.one("oncelog_partition_last_stable_offset", **here) == 0
        assert seen.one("oncelog_partition_high_watermark_offset", **here) == 2
        assert seen.one("oncelog_partition_log_end_offset", **here) == 2
        assert seen.one("oncelog_partition_lso_lag_records", **here) == 2
        assert seen.one("kafka_cluster_partition_laststableoffsetlag", **here) == 2
        assert seen.one("oncelog_transactions_open") == 1
        assert seen.one("oncelog_transactions_hanging") == 0
        who = {"producer_id": writer.producer_id, "transactional_id": "pay"}
        assert seen.one("oncelog_lso_blocked_by", **here, **who) >= 0
        await writer.end(commit=True)
        seen = scraped(stage.broker)
        assert seen.one("oncelog_partition_lso_lag_records", **here) == 0
        assert seen.one("oncelog_transactions_open") == 0
        assert seen.all("oncelog_lso_blocked_by") == []
        assert seen.one("oncelog_transactions_completed_total", result="commit") == 1

    on_txn_stage(tmp_path, scene)


def test_for_how_long_readers_are_held_up_is_told_in_seconds(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        here = {"topic": "orders", "partition": 0}
        writer = await begun(stage, "pay")
        began_s = stage.broker.env.clock.monotonic()
        await asyncio.sleep(0.3)
        seen = scraped(stage.broker)
        waited_s = stage.broker.env.clock.monotonic() - began_s
        assert 0.29 <= seen.one("oncelog_partition_lso_lag_seconds", **here) <= waited_s + 0.2
        await writer.end(commit=True)
        await until(lambda: scraped(stage.broker).one("oncelog_partition_lso_lag_records", **here) == 0)
        assert scraped(stage.broker).one("oncelog_partition_lso_lag_seconds", **here) == 0

    on_txn_stage(tmp_path, scene)


def test_a_transaction_that_no_coordinator_knows_is_counted_as_hanging(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage, "pay")
        stray = Writer(stage, "stray", producer_id=9_999, epoch=0)
        assert await stray.write("orders", "b", version=11) == 0
        seen = scraped(stage.broker)
        assert seen.one("oncelog_transactions_hanging") == 1
        assert seen.one("oncelog_transactions_open") == 1
        assert seen.one("oncelog_lso_blocked_by", producer_id=9_999, transactional_id="") >= 0

    on_txn_stage(tmp_path, scene, transaction_partition_verification_enable="false")


def test_a_transaction_of_old_records_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill. When it began is known to its coordinator."""

    def of_long_ago(writer: Writer, value: str, *, sequence: int, plain: bool) -> bytes:
        old_ms = SET_BY_A_CLOCK_MS + 1000
        return build_batch(
            [(None, value.encode(), (), old_ms)],
            producer_id=writer.producer_id,
            producer_epoch=writer.epoch,
            base_sequence=sequence,
            transactional=not plain,
        )

    monkeypatch.setattr(Writer, "batch", of_long_ago)

    async def scene(stage: TxnStage) -> None:
        await begun(stage, "pay")
        seen = scraped(stage.broker)
        assert seen.one("oncelog_transactions_hanging") == 0
        assert seen.one("oncelog_lso_blocked_by", transactional_id="pay") < 60

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize(
    ("told", "hanging", "whose"),
    [({}, 1, ""), ({9_999: "elsewhere"}, 0, "elsewhere"), (None, 0, "")],
    ids=["nobody has it", "another coordinator has it", "not all told"],
)
def test_whether_it_hangs_is_asked_of_other_coordinators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[int, str] | None, hanging: int, whose: str
) -> None:
    """A broker of a cluster knows a part of the transactions; age alone would tell after twenty minutes."""
    monkeypatch.setattr("monitoring.collectors.ASKED_AFTER_MS", -1)
    monkeypatch.setattr("monitoring.scraping.FRESH_S", 0.0)
    monkeypatch.setattr("monitoring.scraping.GATHERING", math.inf)

    async def scene(stage: TxnStage) -> None:
        stray = Writer(stage, "stray", producer_id=9_999, epoch=0)
        assert await stray.write("orders", "b", version=11) == 0
        for shard in stage.broker.coordination.transactions.shards():
            shard.loaded = False
        asked: list[set[int]] = []

        async def holders(producer_ids: Collection[int]) -> dict[int, str] | None:
            asked.append(set(producer_ids))
            return told

        scraper = Scraper(Scrape(stage.broker, version="1"), None, holders)
        for expected in (0, hanging):
            text = b"".join([piece async for piece in scraper.text(openmetrics=False)]).decode()
            assert read(text).one("oncelog_transactions_hanging") == expected
        assert asked == [{9_999}]
        assert read(text).one("oncelog_lso_blocked_by", producer_id=9_999, transactional_id=whose) >= 0

    on_txn_stage(tmp_path, scene, transaction_partition_verification_enable="false")


def test_what_hangs_goes_on_hanging_while_a_coordinator_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a coordinator away the alert was resolved, and began to wait anew."""
    monkeypatch.setattr("monitoring.collectors.ASKED_AFTER_MS", -1)
    monkeypatch.setattr("monitoring.scraping.FRESH_S", 0.0)
    monkeypatch.setattr("monitoring.scraping.GATHERING", math.inf)

    async def scene(stage: TxnStage) -> None:
        stray = Writer(stage, "stray", producer_id=9_999, epoch=0)
        assert await stray.write("orders", "b", version=11) == 0
        for shard in stage.broker.coordination.transactions.shards():
            shard.loaded = False
        answers: list[dict[int, str] | None] = [{}, None, {}, {9_999: "pay"}, None]

        async def holders(_: Collection[int]) -> dict[int, str] | None:
            return answers.pop(0)

        scraper = Scraper(Scrape(stage.broker, version="1"), None, holders)
        hanging = []
        while answers:
            text = b"".join([piece async for piece in scraper.text(openmetrics=False)]).decode()
            hanging.append(read(text).one("oncelog_transactions_hanging"))
        assert hanging == [0, 1, 1, 1, 0, 0]
        assert read(text).one("oncelog_lso_blocked_by", producer_id=9_999, transactional_id="pay") >= 0

    on_txn_stage(tmp_path, scene, transaction_partition_verification_enable="false")


def test_how_a_transaction_ended_is_told_apart(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        aborting = await begun(stage, "aborts")
        await aborting.end(commit=False)
        await begun(stage, "fenced")
        await Writer(stage, "fenced").init()
        await begun(stage, "slow", timeout_ms=50)
        tally = stage.broker.coordination.txn_tally
        await until(lambda: tally.ended["timeout"] == 1)
        seen = scraped(stage.broker)
        ended = {result: seen.one("oncelog_transactions_completed_total", result=result) for result in tally.ended}
        assert ended == {"commit": 0, "abort": 1, "timeout": 1, "fenced": 1}
        assert seen.one("oncelog_transaction_duration_seconds_count") == 3
        assert seen.one("oncelog_transaction_partitions_sum") == 3

    on_txn_stage(tmp_path, scene)


def test_a_replayed_decision_is_not_counted_again(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        for shard in list(stage.broker.coordination.transactions.shards()):
            stage.broker.coordination.transactions.led(shard.partition)
        await until(lambda: all(shard.loaded for shard in stage.broker.coordination.transactions.shards()))
        assert scraped(stage.broker).one("oncelog_transactions_completed_total", result="commit") == 1

    on_txn_stage(tmp_path, scene)


def test_openmetrics_names_a_transaction_beside_the_bucket_it_fell_into(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay # {}")).end(commit=True)
        seen = scraped(stage.broker, openmetrics=True)
        named = [sample.exemplar for sample in seen.samples if sample.exemplar]
        assert {"transactional_id": "pay # {}", "producer_id": "0"} in named
        assert "# {" not in "".join(gathered(Scrape(stage.broker, version="1")).render(openmetrics=False))

    on_txn_stage(tmp_path, scene)


def test_what_a_producer_did_wrong_is_counted_by_topic(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "", producer_id=7_000, epoch=1)
        assert await writer.write("orders", "a", plain=True) == 0
        assert await writer.write("orders", "a", plain=True) == 0
        assert await writer.write("orders", "c", plain=True, sequence=5) != 0
        writer.epoch = 0
        assert await writer.write("orders", "d", plain=True, sequence=1) != 0
        assert await values(stage, "orders") == ["a"]
        seen = scraped(stage.broker)
        assert seen.one("oncelog_producer_duplicate_batches_total", topic="orders") == 1
        assert seen.one("oncelog_producer_out_of_order_total", topic="orders") == 1
        assert seen.one("oncelog_producer_fenced_total", topic="orders") == 1
        assert seen.one("kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 1
        assert seen.one("kafka_server_brokertopicmetrics_failedproducerequests_total", topic="orders") == 2
        sent = seen.one("kafka_server_brokertopicmetrics_bytesin_total", topic="orders")
        assert sent == seen.one("kafka_server_brokertopicmetrics_bytesout_total", topic="orders") > 0
        assert seen.one("oncelog_producer_ids") == 1
        assert seen.one("oncelog_producer_unknown_total", topic="orders") == 0
        forgotten = Writer(stage, "", producer_id=7_001, epoch=0)
        assert await forgotten.write("orders", "e", plain=True, sequence=5) == 0
        assert scraped(stage.broker).one("oncelog_producer_unknown_total", topic="orders") == 1

    on_txn_stage(tmp_path, scene)


def test_the_lag_of_a_group_is_told_against_the_high_watermark_and_the_stable_offset(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        plain = Writer(stage, "", producer_id=7_000, epoch=0)
        for sequence in range(3):
            assert await plain.write("orders", "x", plain=True, sequence=sequence) == 0
        await begun(stage, "pay")
        await commit(stage, "readers", "orders", 1)
        seen = scraped(stage.broker)
        mine = {"consumergroup": "readers", "topic": "orders"}
        assert seen.one("kafka_consumergroup_lag", **mine, partition=0) == 3
        assert seen.one("kafka_consumergroup_lag_sum", **mine) == 3
        assert seen.one("oncelog_group_stable_lag_records", **mine) == 2
        assert seen.one("kafka_consumergroup_current_offset", **mine, partition=0) == 1
        assert seen.one("oncelog_group_lag_seconds", consumergroup="readers") == 0

    on_txn_stage(tmp_path, scene)


def test_a_group_that_has_read_everything_but_a_marker_has_no_lag(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        await commit(stage, "readers", "orders", 1)
        seen = scraped(stage.broker)
        assert seen.one("oncelog_partition_log_end_offset", topic="orders", partition=0) == 2
        assert seen.one("kafka_consumergroup_lag", consumergroup="readers", topic="orders", partition=0) == 0
        assert seen.one("oncelog_group_status", consumergroup="readers") == 1

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_hostile_name_is_a_label_and_nothing_else(tmp_path: Path, openmetrics: bool) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage, HOSTILE)
        await commit(stage, HOSTILE, "orders", 0)
        seen = scraped(stage.broker, openmetrics=openmetrics)
        assert seen.one("oncelog_group_status", consumergroup=HOSTILE) >= 1
        assert seen.one("oncelog_lso_blocked_by", transactional_id=HOSTILE) >= 0

    on_txn_stage(tmp_path, scene)


def test_a_coordinator_that_loads_is_told_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage, "pay")
        for shard in stage.broker.coordination.transactions.shards():
            shard.loaded = False
        seen = scraped(stage.broker)
        assert seen.one("oncelog_coordinators_loading", kind="transaction") == 2
        assert seen.one("oncelog_transactions_open") == 0
        assert seen.one("oncelog_transactions_hanging") == 0, "nobody can know yet"
        assert seen.one("oncelog_lso_blocked_by", transactional_id="") >= 0

    on_txn_stage(tmp_path, scene)


def test_a_folder_that_failed_is_told_and_the_rest_as_well(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        (folder,) = stage.broker.folders
        folder.fail(DiskFault(5, "broken"))
        seen = scraped(stage.broker)
        assert seen.one("oncelog_log_folder_failed") == 1
        assert seen.one("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert seen.one("kafka_server_replicamanager_offlinereplicacount") > 0
        assert seen.one("kafka_brokers") == 1

    on_txn_stage(tmp_path, scene)


def test_requests_are_counted_and_timed_by_name_and_their_errors_too(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        door = BrokerDoor(stage.broker, Listener("PLAINTEXT"))
        session = door.connected(PeerInfo("10.0.0.9", 1234, None))
        for key, version, request in (
            (ApiKey.METADATA, 9, MetadataRequest([])),
            (ApiKey.END_TXN, 3, EndTxnRequest("nobody", 1, 0, True)),
        ):
            body = memoryview(bytearray(encode_request(key, version, request)))
            answer = door.request(session, RequestHeader(key, version, 1, "test"), body)
            if asyncio.iscoroutine(answer):
                await answer
        seen = scraped(stage.broker)
        assert seen.one("oncelog_request_seconds_count", api="Metadata") == 1
        assert seen.one("kafka_network_requestmetrics_requests_total", request="EndTxn") == 1
        assert seen.one("oncelog_request_errors_total", api="EndTxn") == 1
        assert seen.one("kafka_server_socket_server_metrics_connection_count", listener="PLAINTEXT") == 1
        door.disconnected(session)
        assert scraped(stage.broker).one("kafka_server_socket_server_metrics_connection_count") == 0

    on_txn_stage(tmp_path, scene)


def test_a_broker_may_be_told_to_show_only_the_partitions_that_need_a_look(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage, "pay")
        await commit(stage, "readers", "orders", 0)
        seen = scraped(stage.broker)
        assert seen.all("oncelog_partition_log_end_offset", topic="orders") == [1]
        assert seen.all("kafka_consumergroup_lag") == []
        assert seen.one("kafka_consumergroup_lag_sum", consumergroup="readers") == 1

    on_txn_stage(tmp_path, scene, metrics_partition_labels="false")


def test_a_scrape_is_done_in_steps_of_a_hundred_partitions(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await stage.create("wide", 1_000)
        await stage.broker.holdings.even()
        lines = Lines()
        told, most = lines.of(REGISTRY["oncelog_partition_log_end_offset"]), 0
        before = 0
        for _ in Scrape(stage.broker, version="1").gather(lines):
            most, before = max(most, len(told) - before), len(told)
        assert before >= 1_000
        assert most <= SLICE

    on_txn_stage(tmp_path, scene)


def test_many_who_scrape_at_once_are_given_the_same_scrape(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        scraper = Scraper(Scrape(stage.broker, version="1"))
        first, *others = await asyncio.gather(*(scraper.lines() for _ in range(20)))
        assert all(other is first for other in others)

    on_txn_stage(tmp_path, scene)


def test_no_list_of_a_scrape_grows_long_and_every_line_is_told() -> None:
    """The collector looks at each entry of a new list. Lists of 15,000 lines held up the loop for 10 ms and more."""
    lines, many = Lines(), [of.CURRENT_OFFSET, of.OLDEST_OFFSET, of.LEADER]
    longest = 0
    for number in range(5_000):
        for family in many:
            lines.add(family, number, "orders", number)
        if number % SLICE == 0:
            lines.pack()
        longest = max(longest, *(len(lines.of(family)) for family in many))
    assert longest < 2 * LINES_AT_ONCE
    seen = read("".join(lines.render(openmetrics=False)))
    for family in many:
        assert [seen.one(family.name, topic="orders", partition=number) for number in (0, 1_234, 4_999)] == [
            0,
            1_234,
            4_999,
        ]
        assert len(seen.all(family.name)) == 5_000
    for _ in lines.forget():
        pass
    assert "".join(lines.render(openmetrics=False)) == ""


class Laborious:
    """Stands for the collectors of a broker with very many partitions."""

    def __init__(self) -> None:
        self.gathered = 0
        self.wanted: dict[tuple[str, int], None] = {}
        self.strangers: dict[object, None] = {}

    def gather(self, lines: Lines) -> Iterator[None]:
        self.gathered += 1
        for _ in range(5):
            time.sleep(0.02)
            yield


def test_a_scraper_gone_mad_is_given_the_same_again_for_longer_where_a_scrape_is_much_work() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        scraper = Scraper(scrape := Laborious())  # type: ignore[arg-type]
        began_s = loop.time()
        looks = 0
        while scrape.gathered < 3:
            assert b"".join([piece async for piece in scraper.text(openmetrics=True)]) == b"# EOF\n"
            looks += 1
        assert looks > 100
        assert loop.time() - began_s >= 2 * scrape_s / GATHERING

    scrape_s = 5 * 0.02
    asyncio.run(scene())


def test_a_long_look_at_all_groups_is_not_waited_for_and_told_when_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("monitoring.scraping.WAITED_S", 0.0)
    monkeypatch.setattr("monitoring.burrow.ALONE_MS", -1)

    async def scene(stage: TxnStage) -> None:
        await (await begun(stage, "pay")).end(commit=True)
        await commit(stage, "gone", "orders", 0)
        scraper = Scraper(Scrape(stage.broker, version="1"))
        assert await scraper.late_groups() is None
        await until(lambda: scraper._scrape.late_groups is not None)
        assert await scraper.late_groups() == {"gone": BurrowStatus.STOP}

    on_txn_stage(tmp_path, scene)
