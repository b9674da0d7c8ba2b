"""The pages in a real browser: what they show, that they keep up, what they can do, and that no name does anything."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from typing import Literal
from urllib.parse import quote

import pytest
import requests
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Response, sync_playwright

from tests.monitoring.test_prometheus import in_transaction
from tests.outside import needs
from tests.service.cli.kit import process
from tests.ui.scene import HOSTILE, Scene
from tests.ui.screenshots import CHROMIUM, PAGES, SIZES, viewport

pytestmark = [
    pytest.mark.skipif(
        not os.path.exists(CHROMIUM), reason="no Chromium on this machine (Debian: apt install chromium)"
    ),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PATIENCE_MS = 20_000
WHOLE_BYTES = 150_000
PAINTED_MS = 300
REACHABLE = """
  [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter(it => it.checkVisibility() && !it.disabled && it.tabIndex >= 0)
    .filter(it => it.type !== "radio" || it.checked)  // of those that belong together only the chosen one is reached
"""
NAMES = f"() => {REACHABLE}.map(it => it.name || it.innerText || it.tagName)"
# The elements are looked for again each time: a page that renews itself may have replaced them.
FOCUSED = f"""() => {{
  const it = document.activeElement;
  return [{REACHABLE}.indexOf(it), getComputedStyle(it).outlineStyle];
}}"""


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
    assert page.locator("main .means").count() > 0, "what its figures mean is said in words"
    assert sum(watched.loaded.values()) < WHOLE_BYTES
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), "nothing sticks out"


@pytest.mark.parametrize("width", SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_keeps_anybody_out(
    scene: Scene, browser: Browser, scheme: Literal["light", "dark"], width: str
) -> None:
    context = browser.new_context(color_scheme=scheme, bypass_csp=True, viewport=viewport(width))
    page = context.new_page()
    for path in PAGES.values():
        page.goto(scene.url + path)
        found = Axe().run(page)
        assert found.violations_count == 0, f"{path}: {found.generate_report()}"
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} sticks out"
        if width == "narrow":
            wide = "[...document.querySelectorAll('.wide:has(.stacked)')].filter(it => it.scrollWidth > it.clientWidth)"
            assert page.evaluate(f"{wide}.length") == 0, f"{path} has a table that must be moved sideways"
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_all_that_a_page_can_do(watched: Watched, name: str) -> None:
    """In the order in which it is read, each with a frame around it that can be seen."""
    page = watched.go(PAGES[name])
    wanted = page.evaluate(NAMES)
    assert len(wanted) > 8
    reached = []
    for _ in wanted:
        page.keyboard.press("Tab")
        number, outline = page.evaluate(FOCUSED)
        reached.append(number)
        assert outline != "none", f"{wanted[number]} shows no focus"
    assert reached == list(range(len(wanted))), [wanted[number] for number in set(range(len(wanted))) - set(reached)]


@pytest.mark.parametrize("width", SIZES)
def test_the_longest_name_of_a_topic_fits_every_page(scene: Scene, browser: Browser, width: str) -> None:
    name = "very.long-name_" * 17
    name = name[:249]
    process("topic", "create", name, ONCELOG_BOOTSTRAP=scene.served.bootstrap)
    in_transaction(scene.served.bootstrap, "t" * 249, name).commit_transaction(PATIENCE_MS / 1000)
    scene.commit("g" * 249, name, 1, 1)
    context = browser.new_context(viewport=viewport(width))
    page = context.new_page()
    about = (f"/ui/topics/{name}", f"/ui/topics/{name}/0", f"/ui/topics/{name}/produce", f"/ui/topics/{name}/replicas")
    more = ("/ui", "/ui/topics", "/ui/groups", "/ui/transactions?which=all", f"/ui/producers?topic={name}")
    own = (f"/ui/transactions/{'t' * 249}", f"/ui/groups/{'g' * 249}", f"/ui/groups/{'g' * 249}/reset?to=earliest")
    for path in (*about, *more, *own):
        answer = page.goto(scene.url + path)
        assert answer is not None
        assert answer.status == 200, path
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{path} sticks out"
    context.close()


def test_the_documentation_of_http_fits_a_phone(watched: Watched) -> None:
    page = watched.go("/docs")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_overviews_cards_and_curves_are_explained(watched: Watched) -> None:
    page = watched.go(PAGES["overview"])
    for figures in ("#figures", "#curves", "#who"):
        before = page.locator(f"{figures} .means, p.means:has(+ {figures})")
        assert before.count() == 1, figures


def test_a_page_is_little_work_for_a_browser(scene: Scene, browser: Browser) -> None:
    """So much of a processor until it is there, whatever else the machine does: it is painted before that."""
    spent = {}
    for name, path in PAGES.items():
        context = browser.new_context()
        page = context.new_page()
        watch = context.new_cdp_session(page)
        watch.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(scene.url + path)
        metrics = {each["name"]: each["value"] for each in watch.send("Performance.getMetrics")["metrics"]}
        spent[name] = metrics["TaskDuration"] * 1000
        context.close()
    assert max(spent.values()) < PAINTED_MS, spent


def test_the_keyboard_alone_writes_a_record(scene: Scene, watched: Watched) -> None:
    process("topic", "create", "typed", ONCELOG_BOOTSTRAP=scene.served.bootstrap)
    page = watched.go("/ui/topics/typed/produce")
    seen = []
    for _ in range(60):
        page.keyboard.press("Tab")
        name, kind = page.evaluate(
            "[document.activeElement.name || document.activeElement.innerText, document.activeElement.tagName]"
        )
        seen.append(name)
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", (
            f"{name} shows no focus"
        )
        if name == "value":
            page.keyboard.type("by hand")
        if kind == "BUTTON" and name == "Write it":
            page.keyboard.press("Enter")
            break
    page.get_by_role("status").wait_for()
    assert "typed-0, offset 0" in page.get_by_role("status").inner_text()
    assert {"key", "value", "how", "tombstone"} <= set(seen)


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


def test_records_are_found_by_what_they_hold(watched: Watched) -> None:
    page = watched.go("/ui/topics/orders/0?isolation=everything")
    page.get_by_label("From offset").fill("0")
    page.get_by_label("key or value contains").fill('"order": 112,')
    page.get_by_role("button", name="Go").click()
    found = page.get_by_test_id("record")
    assert found.count() == 1
    assert '"sum": 84' in found.inner_text()
    page.get_by_test_id("isolation-uncommitted").click()
    assert page.get_by_test_id("record").count() == 1, "who reads is another question"
    page.get_by_label("key or value contains").fill("nowhere")
    page.get_by_role("button", name="Go").click()
    assert "0 found" in page.get_by_role("status").inner_text()


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
    as_shown = HOSTILE.replace("\u202e", "\\u202e")
    assert as_shown in page.get_by_label("to confirm").locator("xpath=..").inner_text()
    page.get_by_test_id("confirm").fill(as_shown)
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
    page.locator("#verdict").get_by_text("nobody will end").wait_for(state="detached")  # seen a moment after the marker


def test_a_group_is_moved_by_who_types_its_name_after_seeing_where_to(scene: Scene, watched: Watched) -> None:
    def committed() -> set[int]:
        lags = process("group", "lag", "search-index", "-o", "json", ONCELOG_BOOTSTRAP=scene.served.bootstrap).json()
        return {row["committed_offset"] for row in lags}

    page = watched.go("/ui/groups/search-index")
    page.get_by_role("link", name="Move it to other offsets").click()
    page.get_by_label("so many records further").check()
    page.get_by_label("Time, number or offset").fill("-3")
    page.get_by_role("button", name="Show what would change").click()
    assert page.get_by_test_id("moved").count() == 12
    assert page.get_by_test_id("moved").first.inner_text().split() == ["clicks-0", "33", "30", "-3"]
    assert committed() == {33}, "nothing is done yet"
    page.get_by_label("to confirm").fill("search-index")
    page.get_by_role("button", name="Move the group").click()
    page.get_by_text("Done: moved in 12 partitions").wait_for()
    assert committed() == {30}
    watched.go("/ui/groups/search-index/reset?to=timestamp&value=yesterday")
    assert "is not a time" in page.get_by_role("alert").inner_text()


def test_a_record_is_written_once_however_often_one_clicks(scene: Scene, watched: Watched) -> None:
    process("topic", "create", "written", ONCELOG_BOOTSTRAP=scene.served.bootstrap)
    page = watched.go("/ui/topics/written")
    page.get_by_role("link", name="Write a record").click()
    page.get_by_label("Key", exact=True).fill("anna")
    page.get_by_label("Value", exact=True).fill('{"fruit": "apple"}')
    page.get_by_label("Headers, one a line").fill("shop: 3")
    form = dict(page.evaluate("Object.fromEntries(new FormData(document.querySelector('form.asking')))"))
    page.get_by_role("button", name="Write it").click()
    assert "written-0, offset 0: committed." in page.get_by_role("status").inner_text()
    assert "Idempotency-Key" in page.locator("pre").inner_text()
    again = requests.post(f"{scene.url}/ui/topics/written/produce", form, timeout=20)
    assert "written-0, offset 0: committed." in again.text, "the same form, sent twice"
    watched.go("/ui/topics/written/0")
    assert page.get_by_test_id("record").count() == 1
    assert page.get_by_test_id("record").locator(".data").all_inner_texts() == ["anna", '{"fruit": "apple"}\nshop: 3']


def test_a_record_is_written_in_a_transaction_that_is_aborted_or_stays_open(scene: Scene, watched: Watched) -> None:
    process("topic", "create", "decided", ONCELOG_BOOTSTRAP=scene.served.bootstrap)
    for how, id in (("that is aborted", "by-hand"), ("that stays open", "left-open")):
        page = watched.go("/ui/topics/decided/produce")
        page.get_by_label("Value", exact=True).fill("x")
        page.get_by_label(how).check()
        page.get_by_label("Transactional id").fill(id)
        page.get_by_role("button", name="Write it").click()
        page.get_by_role("status").wait_for()
    watched.go("/ui/topics/decided/0?isolation=everything&offset=0")
    states = [row.get_attribute("class") for row in page.get_by_test_id("record").all()]
    assert states == ["aborted", "marker", "open"]
    watched.go("/ui/transactions/left-open")
    assert "open" in page.locator("#trace h2").inner_text()


def test_what_may_not_be_written_is_refused_in_words(watched: Watched) -> None:
    page = watched.go("/ui/topics/orders/produce")
    page.get_by_label("Partition, of 4").fill("99")
    page.get_by_role("button", name="Write it").click()
    assert "99" in page.get_by_role("alert").inner_text()
    watched.complaints.clear()  # the browser says that it was refused


@needs("curl")
def test_a_request_is_sent_from_the_page_and_shown_as_a_command(scene: Scene, watched: Watched) -> None:
    page = watched.go("/ui/http")
    page.get_by_text("topics (").click()
    page.get_by_role("link", name="POST /v1/topics", exact=True).click()
    page.get_by_label("Body").fill('{"name": "from-a-page", "partitions": 2}')
    page.get_by_role("button", name="Send").click()
    assert page.get_by_test_id("status").inner_text() == "201"
    command = page.get_by_label("The same with curl").inner_text()
    ran = subprocess.run(["sh", "-c", f"{command} -s"], capture_output=True, text=True, timeout=30, check=True)
    assert "exists" in ran.stdout, "the command asks for the same"
    watched.go("/ui/http?method=GET&path=/v1/topics/orders/stream%3Ffrom=earliest")
    page.get_by_role("button", name="Send").click()
    assert "event: record" in page.get_by_label("Body of the answer").inner_text()
    assert page.get_by_text("only the beginning is shown").count() == 1


@pytest.mark.parametrize(
    "path", ["http://elsewhere.example/", "//elsewhere.example/", "/ui/http", "/v1/topics/{topic}"]
)
def test_only_this_brokers_api_is_asked_from_a_page(scene: Scene, path: str) -> None:
    answer = requests.post(f"{scene.url}/ui/http", {"method": "GET", "path": path}, timeout=20)
    assert answer.status_code == 400
    assert 'data-testid="status"' not in answer.text


def test_what_an_ended_transaction_did_is_told(scene: Scene, watched: Watched) -> None:
    page = watched.go("/ui/transactions/checkout-1")
    assert page.get_by_test_id("batch").count() == 2
    assert "commit marker" in page.get_by_test_id("batch").last.inner_text()
    assert page.get_by_test_id("event").count() >= 4
    watched.go(f"/ui/transactions/{quote(HOSTILE, safe='')}")
    assert page.title() != "taken"


def test_what_can_not_be_moved_is_refused_and_what_is_there_already_would_not_change(
    scene: Scene, watched: Watched
) -> None:
    page = watched.go("/ui/topics/orders")
    page.get_by_role("link", name="Move replicas").click()
    page.get_by_label("Brokers (of one partition").fill("1,7")
    page.get_by_role("button", name="Show what would change").click()
    assert "there is no broker 7" in page.get_by_role("alert").inner_text()
    page.get_by_label("Brokers (of one partition").fill("1")
    page.get_by_role("button", name="Show what would change").click()
    assert page.get_by_text("Nothing would change").count() == 1


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


@pytest.mark.parametrize("path", ["/ui/http", "/ui/topics/orders/produce"])
def test_another_site_can_send_nothing(scene: Scene, path: str) -> None:
    form = {"method": "DELETE", "path": "/v1/topics/orders", "value": "x", "how": "plain"}
    answer = requests.post(scene.url + path, form, headers={"Origin": "http://elsewhere.example"}, timeout=20)
    assert answer.status_code == 409
    assert "from another site" in answer.text


def test_what_is_not_there_is_said_so(scene: Scene) -> None:
    none = ("topics/none", "topics/orders/77", "transactions/none", "groups/none", "none", "topics/orders/0/none")
    for path in none:
        answer = requests.get(f"{scene.url}/ui/{path}", timeout=20)
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8"), path
        assert "There is no such" in answer.text
    assert requests.get(scene.url + "/ui/static/none.css", timeout=20).status_code == 404


@pytest.mark.parametrize("query", ["offset=abc", "offset=-5", "offset=99999999999999999999", "isolation=zzz"])
def test_where_no_reader_can_begin_is_said_so(scene: Scene, query: str) -> None:
    """The page began somewhere else and did not tell."""
    answer = requests.get(f"{scene.url}/ui/topics/orders/0?{query}", timeout=20)
    assert answer.status_code == 400
    assert query.partition("=")[2] in answer.text
    assert requests.get(f"{scene.url}/ui/topics/orders/0?offset=&isolation=everything", timeout=20).status_code == 200


def test_a_slash_behind_the_address_leads_on(scene: Scene) -> None:
    for path in ("/ui", "/docs"):
        answer = requests.get(f"{scene.url}{path}/", timeout=20)
        assert (answer.status_code, answer.url) == (200, scene.url + path)


def test_no_page_may_run_a_script_of_anybody_else(scene: Scene) -> None:
    answer = requests.get(scene.url + "/ui", timeout=20)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text
