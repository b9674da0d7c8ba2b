"""A page while something is away: what is known is shown, what is not is named, and nobody waits."""

from __future__ import annotations

import asyncio
import html
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import requests

from log.disk import DiskFault
from log.ids import TopicPartition
from service.broker.health import Trouble
from service.broker.marker_courier import MarkerCourier
from service.broker.shard import Shard
from service.client.failures import ClientFailure
from service.client.transactions import TransactionState
from service.web.documents import documents
from service.web.gateway import Gateway
from service.web.metrics import scraper_of
from service.web.pages import facts, views
from service.web.pages.facts import Told
from service.web.pages.near import Heard, Hearing
from service.web.pages.render import render
from service.web.pages.views import Facts, PageView, View, kept_of
from service.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
    DescribeHealthRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from tests.monitoring.test_metrics import commit
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage
from tests.service.web.kit import PATIENCE_S, Served
from tests.ui.test_tracing import ended


async def looked(stage: TxnStage, name: str, view: View, **match: str) -> str:
    told, found = await _viewed(stage, view, **match)
    return _rendered(name, found, told.missing)


async def _viewed(stage: TxnStage, view: View, **match: str) -> tuple[Told, Facts]:
    gateway = Gateway(stage.broker, scraper_of(stage.broker))
    told = Told(timeout_s=0.1)
    return told, await view(PageView(gateway, kept_of(gateway), told, {}, match))


def _rendered(name: str, found: Facts, missing: list[str]) -> str:
    common = {"here": name, "node_id": 1, "cluster_id": "c", "done": "", "search": "", "live": True}
    return render(f"{name}.html", **common, missing=missing, **found)


async def begun(stage: TxnStage) -> Writer:
    writer = Writer(stage, "pay")
    await writer.init()
    await writer.write("orders", "a")
    return writer


def test_coordinators_that_load_are_named_and_the_partitions_are_shown(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        for shard in stage.broker.coordination.transactions.shards():
            shard.loaded = False
        page = await looked(stage, "overview", views.overview)
        assert "Coordinators of transactions are loading" in page
        assert "Not everything can be told now" in page
        page = await looked(stage, "topic", views.topic, topic="orders")
        assert "high watermark 1" in page

    on_txn_stage(tmp_path, scene)


def test_a_transaction_that_is_decided_is_not_said_to_wait_for_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = await begun(stage)
        monkeypatch.setattr(MarkerCourier, "post", lambda courier, coordinator, every: None)
        await writer.end(commit=True)
        page = await looked(stage, "transaction", views.transaction, id="pay")
        assert "PrepareCommit" in page
        assert "it ends when its markers are in every partition" in page
        assert "when somebody ends it" not in page

    on_txn_stage(tmp_path, scene)


def test_the_bar_shows_every_aborted_transaction_and_tells_how_many_they_are(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "pay")
        await writer.init()
        for number in range(60):
            await writer.write("orders", str(number))
            await writer.end(commit=False)
        partition = stage.broker.partitions.get(TopicPartition("orders", 0))
        assert partition is not None
        async with asyncio.timeout(PATIENCE_S):
            while partition.stable.aborted_count < 60:  # noqa: ASYNC110 (nothing tells when markers are written)
                await asyncio.sleep(0.01)
        page = await looked(stage, "topic", views.topic, topic="orders")
        assert "60 aborted transactions" in page
        assert '<rect class="aborted" x="0" y="4" width="600"' in page

    on_txn_stage(tmp_path, scene)


def test_a_transaction_is_not_shown_with_the_offsets_of_a_topic_that_was_made_again(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = await begun(stage)
        await writer.end(commit=True)
        await ended(stage, "pay", count=1)
        assert (await _row_of(stage))["offsets"].stable > 0
        deleted = await stage.ask(DeleteTopicsRequest([DeleteTopicState("orders")], ["orders"]))
        assert deleted.responses[0].error_code == 0
        made = await stage.ask(CreateTopicsRequest([CreatableTopic("orders", 1, 1)]))
        assert made.topics[0].error_code == 0
        for _ in range(20):  # also once the new one is led
            assert (await _row_of(stage))["offsets"] is None
            await asyncio.sleep(0.02)

    async def _row_of(stage: TxnStage) -> dict[str, Any]:
        """As soon as all of the page can be told."""
        while True:
            told, found = await _viewed(stage, views.transaction, id="pay")
            if not told.missing:
                (row,) = found["cut"].rows
                return dict(row)

    on_txn_stage(tmp_path, scene)


def test_what_to_do_is_told_by_pages_that_are_there() -> None:
    named = set(re.findall(r'"(Oncelog\w+)"', Path(views.__file__).read_text()))
    assert len(named) == 11
    assert {f"runbooks/{each}.md" for each in named} <= set(documents())


def test_a_disk_that_failed_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        stage.broker.folders[0].fail(DiskFault(5, "broken"))
        page = await looked(stage, "overview", views.overview)
        assert "is out of service" in page
        assert "Broker 1: " in page
        assert '<a href="/docs/runbooks/OncelogLogFolderFailed.md">What to do</a>' in page
        assert "out of service" in await looked(stage, "brokers", views.brokers)
        assert "orders" in await looked(stage, "topics", views.topics)
        assert "not known now" in await looked(stage, "topic", views.topic, topic="orders")
        await looked(stage, "messages", views.messages, topic="orders", partition="0")

    on_txn_stage(tmp_path, scene)


def test_what_was_not_looked_at_yet_is_not_said_to_be_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitoring.scraping.WAITED_S", 0.0)

    async def scene(stage: TxnStage) -> None:
        await (await begun(stage)).end(commit=True)
        page = await looked(stage, "overview", views.overview)
        assert "Whether every group gets on is being looked at" in page
        assert "every group gets on." not in page
        monkeypatch.setattr("monitoring.scraping.WAITED_S", 60.0)
        assert "no transaction hangs, and every group gets on." in await looked(stage, "overview", views.overview)

    on_txn_stage(tmp_path, scene)


def test_all_is_not_said_to_be_well_while_something_can_not_be_told(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage)).end(commit=True)
        _, found = await _viewed(stage, views.overview)
        page = _rendered("overview", found, ["offsets of broker 2: no answer"])
        assert "What is known is well." in page
        assert "All is well" not in page
        assert 'class="verdict warn"' in page

    on_txn_stage(tmp_path, scene)


def test_a_disk_that_is_full_is_named_by_who_is_asked_for_its_health(tmp_path: Path) -> None:
    """So the pages of other brokers tell it, too."""

    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        stage.broker.folders[0].headroom.is_short = True
        (trouble,) = (await stage.ask(DescribeHealthRequest(), 0)).troubles
        assert (trouble.kind, trouble.about) == ("full", stage.broker.folders[0].name)
        page = await looked(stage, "overview", views.overview)
        assert f"Broker 1: {trouble.says}. See" in page
        assert "OncelogDiskFull.md" in page
        assert "full: producers are refused" in await looked(stage, "brokers", views.brokers)

    on_txn_stage(tmp_path, scene)


def test_what_brokers_find_wrong_between_them_is_on_the_overview(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await (await begun(stage)).end(commit=True)
        says = "the clock of broker {} is 2.0 s ahead of this broker's: keep both in step"
        stage.broker.health.troubles = [Trouble("clock", f"broker {n}", 1, says.format(n)) for n in range(2, 7)]
        page = await looked(stage, "overview", views.overview)
        assert html.escape("Broker 1: " + says.format(2), quote=False).replace("'", "&#39;") in page
        assert "tells 2 more like that" in page
        assert "Look at this." in page

    on_txn_stage(tmp_path, scene)


def test_a_group_that_nobody_reads_for_is_not_said_to_keep_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("monitoring.scraping.WAITED_S", PATIENCE_S)

    async def scene(stage: TxnStage) -> None:
        await (await begun(stage)).end(commit=True)
        await commit(stage, "left", "orders", 0)
        for page in (
            await looked(stage, "groups", views.groups),
            await looked(stage, "group", views.group, group="left"),
        ):
            assert "nobody reads" in page
        stage.broker.folders[0].fail(DiskFault(5, "broken"))
        assert "nobody reads" not in await looked(stage, "group", views.group, group="left")

    on_txn_stage(tmp_path, scene)


def test_a_broker_without_a_session_says_so(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        known = stage.broker.metadata.broker_epoch
        stage.broker.metadata.broker_epoch = -1
        assert "no session with the metadata store" in await looked(stage, "overview", views.overview)
        stage.broker.metadata.broker_epoch = known
        assert "no session with the metadata store" not in await looked(stage, "overview", views.overview)

    on_txn_stage(tmp_path, scene)


def test_a_broker_that_does_not_answer_is_named_and_the_others_are_heard(tmp_path: Path) -> None:
    async def scene() -> None:
        async def answer() -> str:
            return "told"

        told = Told(timeout_s=0.05)
        answers = await told.ask_each("offsets", {1: answer(), 2: asyncio.sleep(60, "late"), 3: answer()})
        assert answers == {1: "told", 3: "told"}
        assert len(told.missing) == 1
        assert "offsets of broker 2: no answer" in told.missing[0]

    asyncio.run(scene())


def test_who_is_silent_is_waited_for_once_until_they_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heard, "patience_s", 0.02)

    async def scene() -> None:
        hearing, answering, asked = Hearing(), asyncio.Event(), 0

        async def answer() -> str:
            nonlocal asked
            asked += 1
            await answering.wait()
            return "told"

        for _ in range(3):
            with pytest.raises(ClientFailure, match="broker 2 has not answered"):
                await hearing.hear("broker 2", answer)
        assert asked == 1, "the first question is still open: no other is put beside it"
        answering.set()
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    assert await hearing.hear("broker 2", answer) == "told"
                    break
                except ClientFailure:
                    await asyncio.sleep(0.01)

    asyncio.run(scene())


def test_who_could_not_be_reached_is_tried_again_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Heard, "patience_s", 0.02)

    async def scene() -> None:
        hearing, broken = Hearing(), asyncio.Event()

        async def fail() -> str:
            await broken.wait()
            raise ClientFailure("the connection broke")

        async def answer() -> str:
            return "told"

        with pytest.raises(ClientFailure, match="has not answered"):
            await hearing.hear("broker 2", fail)
        broken.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(ClientFailure, match="has not answered"):
            await hearing.hear("broker 2", answer)  # this one finds out that it answers again
        await asyncio.sleep(0)
        assert await hearing.hear("broker 2", answer) == "told"

    asyncio.run(scene())


def test_a_coordinator_whose_decisions_are_not_on_enough_replicas_keeps_no_page_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        never = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(Shard, "committed", lambda shard: never)
        gateway = Gateway(stage.broker, scraper_of(stage.broker))
        kept, began_s = kept_of(gateway), time.monotonic()
        for _ in range(10):
            told = Told()
            await views.transaction(PageView(gateway, kept, told, {}, {"id": "pay"}))
            assert "the transaction coordinator of broker 1 has not answered" in told.missing[0]
        assert time.monotonic() - began_s < 5.0  # each took two seconds before

    on_txn_stage(tmp_path, scene)


def test_a_member_may_call_itself_anything_and_be_given_anything(tmp_path: Path) -> None:
    """Of a classic group brokers take any bytes and names. The page is there, and nothing on it does anything."""
    name, given = "<b>\u202eevil\x1b[2J", b"not an assignment"

    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        protocol = JoinGroupRequestProtocol(name, b"\0")
        join = JoinGroupRequest("named", 30_000, 30_000, "", None, "consumer", [protocol])
        joined = await stage.ask(join, 3)
        assignment = SyncGroupRequestAssignment(joined.member_id, given)
        sync = SyncGroupRequest("named", joined.generation_id, joined.member_id, assignments=[assignment])
        assert (await stage.ask(sync, 3)).error_code == 0
        page = await looked(stage, "group", views.group, group="named")
        assert "<dt>members</dt><dd>1</dd>" in page
        assert "classic, &lt;b&gt;\\u202eevil\\u001b[2J" in page
        assert not {"\u202e", "\x1b", "<b>\\u"} & set(page)

    on_txn_stage(tmp_path, scene)


def test_who_lacks_for_one_reason_is_named_in_one_line() -> None:
    async def scene() -> None:
        async def away() -> None:
            raise ClientFailure("broker 2 has not answered")

        told = Told()
        for number in range(25):
            await told.ask(f"group-{number}", away(), None)
        assert told.missing == ["group-0, group-1, group-2 and 22 more: broker 2 has not answered"]

    asyncio.run(scene())


def test_nothing_is_said_to_hang_while_a_coordinator_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> dict[int, list[TransactionState]]:
        raise ClientFailure("it is away")

    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        monkeypatch.setattr(facts, "transactions_of", away)
        page = await looked(stage, "overview", views.overview)
        assert "not every coordinator answers" in page
        assert "nobody will end, and that readers" not in page

    on_txn_stage(tmp_path, scene)


def test_nothing_is_said_to_hang_while_nobody_coordinates_some_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker is silent, and none tells of what the dead one coordinates."""

    async def nothing(*_: object) -> dict[int, list[TransactionState]]:
        return {}

    async def scene(stage: TxnStage) -> None:
        await begun(stage)
        monkeypatch.setattr(facts, "transactions_of", nothing)
        assert "nobody will end, and that readers" in await looked(stage, "overview", views.overview)
        topic = stage.broker.metadata.image.topics["__transaction_state"]
        leaderless = replace(topic, partitions={**topic.partitions, 0: topic.partitions[0]._replace(leader=-1)})
        image = stage.broker.metadata.image
        stage.broker.metadata.image = replace(image, topics={**image.topics, topic.name: leaderless})
        page = await looked(stage, "overview", views.overview)
        assert "not every coordinator answers" in page
        assert "nobody will end, and that readers" not in page

    on_txn_stage(tmp_path, scene)


def test_a_hundred_open_pages_keep_nobody_waiting_and_a_stop_ends_them(tmp_path: Path) -> None:
    served = Served(tmp_path / "data")
    opened = [requests.get(served.url + "/ui?live=1", stream=True, timeout=PATIENCE_S) for _ in range(100)]
    firsts = [next(answer.iter_content(64 * 1024)) for answer in opened]
    assert all(b"<main" in first for first in firsts)
    assert requests.get(served.url + "/ui/topics", timeout=PATIENCE_S).status_code == 200
    assert "oncelog_http_under_way 10" in requests.get(served.url + "/metrics", timeout=PATIENCE_S).text
    assert served.stop() == 0
    assert "Traceback" not in served.log
    for answer in opened:
        answer.close()


@pytest.mark.parametrize(
    ("cost_s", "pages", "expected_s"),
    [(0.002, 1, 2.0), (0.002, 10, 2.0), (0.05, 1, 5.0), (0.05, 2, 10.0), (0.05, 10, 15.0)],
)
def test_pages_that_cost_more_are_drawn_less_often(cost_s: float, pages: int, expected_s: float) -> None:
    assert views.pause_between(cost_s, pages) == pytest.approx(expected_s)
