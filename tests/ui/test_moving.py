"""Replicas are moved, and stopped on their way, from the page, in a real browser, between two brokers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import sync_playwright

from tests.monitoring.test_prometheus import wait_for
from tests.service.cli.kit import Serving, process
from tests.ui.screenshots import CHROMIUM
from tests.ui.test_pages import PATIENCE_MS

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists(CHROMIUM), reason="no Chromium on this machine (Debian: apt install chromium)"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_replicas_move_when_the_name_is_typed_and_stop_when_it_is_typed_again(tmp_path: Path) -> None:
    several = ("--host", "127.0.0.1", "--port", "0", "--brokers", "2", "-o", "http.listeners=http://127.0.0.1:0")
    with Serving("--data", str(tmp_path / "data"), *several) as running, sync_playwright() as play:
        bootstrap, url = running.bootstrap, running.facts["brokers"][0]["http"][0]

        def held_by() -> list[list[int]]:
            told = process("topic", "describe", "orders", "-o", "json", ONCELOG_BOOTSTRAP=bootstrap).json()
            return [each["replicas"] for each in told[0]["partitions"]]

        created = process("topic", "create", "orders", "-p", "2", "--replicas", "1", ONCELOG_BOOTSTRAP=bootstrap)
        assert created.status == 0, created
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_MS)

        def move_to(brokers: str, typed: str) -> None:
            page.goto(f"{url}/ui/topics/orders/replicas")
            page.get_by_label("Brokers (of one partition").fill(brokers)
            page.get_by_label("Copies").fill(str(len(brokers.split(","))))
            page.get_by_role("button", name="Show what would change").click()
            page.get_by_label("Type orders to confirm").fill(typed)
            with page.expect_navigation():
                page.get_by_role("button", name="Move the replicas").click()

        def moving() -> int:
            page.goto(f"{url}/ui/topics/orders/replicas")
            return page.get_by_test_id("moving").count()

        before = held_by()
        move_to("2", "order")
        assert "nothing was done" in page.get_by_role("alert").inner_text()
        assert held_by() == before
        move_to("2", "orders")
        wait_for(lambda: held_by() == [[2], [2]])

        # What is copied no faster than a byte a second is still on its way when it is stopped.
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
        for number in range(30_000):
            producer.produce("orders", bytes(1_000), partition=number % 2)
        assert producer.flush(30) == 0
        for setting in (
            ("--topic", "orders", "follower.replication.throttled.replicas=*"),
            ("--broker", "1", "follower.replication.throttled.rate=1"),
        ):
            changed = process("config", "set", *setting, ONCELOG_BOOTSTRAP=bootstrap)
            assert changed.status == 0, changed
        move_to("1", "orders")
        wait_for(lambda: moving() == 2)
        page.get_by_text("Stop it…").click()
        page.get_by_label("Type orders to confirm").first.fill("orders")
        with page.expect_navigation():
            page.get_by_role("button", name="Stop moving").click()
        wait_for(lambda: moving() == 0 and held_by() == [[2], [2]])
        browser.close()
