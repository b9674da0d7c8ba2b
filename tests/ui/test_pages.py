"""The pages in a real browser: what they show, that they keep up, what they can do, and that no name does anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal
from urllib.parse import quote

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, sync_playwright

from tests.service.cli.kit import process
from tests.ui.scene import HOSTILE, Scene
from tests.ui.screenshots import CHROMIUM, PAGES

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists(CHROMIUM), reason="no Chromium on this machine (Debian: apt install chromium)"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PATIENCE_MS = 20_000
WHOLE_BYTES = 150_000


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("pages") / "data")
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as play:
        launched = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


class Watched:
    """A page, with what its browser had to complain about and what it loaded."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        self.loaded: dict[str, int] = {}
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("response", self._note)

    def _note(self, response: Response) -> None:
        if "live=1" not in response.url:
            self.loaded[response.url] = int(response.headers.get("content-length", 0))

    def go(self, path: str) -> Page:
        answer = self.page.goto(self.url + path)
        assert answer is not None
        assert answer.status == 200, path
        return self.page


@pytest.fixture
def watched(scene: Scene, browser: Browser) -> Iterator[Watched]:
    context = browser.new_context()
    watching = Watched(context.new_page(), scene.url)
    yield watching
    assert watching.complaints == []
    assert all(url.startswith(scene.url) for url in watching.loaded), "nothing comes from elsewhere"
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_there_light_and_no_name_on_it_does_anything(watched: Watched, name: str) -> None:
    page = watched.go(PAGES[name])
    assert page.locator("h1").count() == 1
    assert page.locator("#missing[role=status]").count() == 0
    assert page.title() != "taken"
    assert page.locator("main b:has-text('xxx')").count() == 0, "markup in a name is text"
    assert sum(watched.loaded.values()) < WHOLE_BYTES
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_anybody_out(
    scene: Scene, browser: Browser, scheme: Literal["light", "dark"]
) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    for path in PAGES.values():
        page.goto(scene.url + path)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
    context.close()


def test_the_keyboard_alone_gets_past_the_menu(watched: Watched) -> None:
    page = watched.go("/ui")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"


def test_a_page_needs_no_script(scene: Scene, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(scene.url + "/ui/transactions")
    page.get_by_label("Transactional id contains").fill("nightly")
    page.get_by_role("button", name="Search").click()
    assert page.get_by_test_id("transaction").count() == 1
    context.close()


def test_who_reads_decides_what_is_shown(watched: Watched) -> None:
    def states(isolation: str) -> set[str]:
        page = watched.go(f"/ui/topics/orders/0?offset=100&isolation={isolation}")
        return {row.get_attribute("class") or "" for row in page.get_by_test_id("record").all()}

    assert states("committed") == {"committed"}
    assert states("uncommitted") == {"committed", "aborted", "open"}
    assert states("everything") == {"committed", "aborted", "open", "marker"}


def test_the_bar_of_a_topic_shows_what_waits_and_behind_whom(watched: Watched) -> None:
    page = watched.go("/ui/topics/orders")
    row = page.get_by_test_id("partition").first
    assert row.locator("rect.open").count() == 1
    assert row.locator("rect.aborted").count() == 2
    row.get_by_role("link", name="nightly-import").click()
    page.wait_for_url("**/ui/transactions/nightly-import")
    assert page.get_by_test_id("batch").count() > 0


def test_an_open_page_shows_what_is_new_without_being_loaded_again(scene: Scene, watched: Watched) -> None:
    page = watched.go("/ui/topics")
    page.wait_for_selector("#live-dot.on")
    page.evaluate("window.loadedOnce = true")
    process("topic", "create", "brand-new", ONCELOG_BOOTSTRAP=scene.served.bootstrap)
    page.get_by_role("link", name="brand-new").wait_for()
    assert page.evaluate("window.loadedOnce")


def test_light_and_dark_are_remembered(watched: Watched) -> None:
    page = watched.go("/ui")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark").click()
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_a_transaction_is_aborted_only_by_who_types_its_name(scene: Scene, watched: Watched) -> None:
    name = quote(HOSTILE, safe="")
    page = watched.go(f"/ui/transactions/{name}")
    page.get_by_test_id("confirm").fill("something else")
    page.get_by_role("button", name="Abort this transaction").click()
    assert "nothing was done" in page.get_by_role("alert").inner_text()
    watched.complaints.clear()  # the browser says that it was refused
    watched.go(f"/ui/transactions/{name}")
    page.get_by_test_id("confirm").fill(HOSTILE)
    page.get_by_role("button", name="Abort this transaction").click()
    page.get_by_text("Done: aborted").wait_for()
    (described,) = process("txn", "describe", HOSTILE, "-o", "json", ONCELOG_BOOTSTRAP=scene.served.bootstrap).json()
    assert described["state"] != "Ongoing"


def test_what_hangs_is_named_on_the_overview_and_ended_on_its_page(scene: Scene, watched: Watched) -> None:
    page = watched.go("/ui")
    assert "nobody will end" in page.locator("#verdict").inner_text()
    watched.go("/ui/transactions")
    hanging = page.locator("#hanging")
    hanging.get_by_text("End it").click()
    hanging.get_by_label("to confirm").fill("audit.log-0")
    hanging.get_by_role("button", name="Abort it in this partition").click()
    page.get_by_text("Done: aborted").wait_for()
    assert process("txn", "hanging", "--older-than", "0s", ONCELOG_BOOTSTRAP=scene.served.bootstrap).status == 0
    watched.go("/ui")
    page.locator("#verdict").get_by_text("All is well").wait_for()  # a marker that was written is seen a moment later


def test_a_group_is_moved_by_who_types_its_name(scene: Scene, watched: Watched) -> None:
    page = watched.go("/ui/groups/search-index")
    page.get_by_label("to the start").check()
    page.get_by_label("to confirm").fill("search-index")
    page.get_by_role("button", name="Move the group").click()
    page.get_by_text("Done: moved to the start").wait_for()
    lags = process("group", "lag", "search-index", "-o", "json", ONCELOG_BOOTSTRAP=scene.served.bootstrap).json()
    assert {row["committed_offset"] for row in lags} == {0}


@pytest.mark.parametrize("headers", [{"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_site_can_do_nothing(scene: Scene, headers: dict[str, str]) -> None:
    answer = requests.post(
        f"{scene.url}/ui/transactions/nightly-import/abort", {"confirm": "nightly-import"}, headers=headers, timeout=20
    )
    assert answer.status_code == 409
    (described,) = process(
        "txn", "describe", "nightly-import", "-o", "json", ONCELOG_BOOTSTRAP=scene.served.bootstrap
    ).json()
    assert described["state"] == "Ongoing"


def test_what_is_not_there_is_said_so(scene: Scene) -> None:
    for path in ("/ui/topics/none", "/ui/topics/orders/77", "/ui/transactions/none", "/ui/static/none.css", "/ui/none"):
        assert requests.get(scene.url + path, timeout=20).status_code == 404, path


def test_no_page_may_run_a_script_of_anybody_else(scene: Scene) -> None:
    answer = requests.get(scene.url + "/ui", timeout=20)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text
