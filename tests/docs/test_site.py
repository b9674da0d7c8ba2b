"""The documentation as a site: it is built without a complaint, needs no other host, and tells where all of it is."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml

from service.cli.reference import commands, http
from tests.service.cli.kit import ROOT

DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


class Loads(HTMLParser):
    """What a browser loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src") or "")
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.found.append(given.get("href") or "")


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text())
        assert loads.found
        assert [each for each in loads.found if re.match(r"\w+:|//", each) and not each.startswith("data:")] == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*['\"]?(https?:)?//", sheet.read_text()), sheet


def test_a_program_that_reads_finds_every_page_by_one_file(site: Path) -> None:
    told = (site / "llms.txt").read_text()
    linked = set(re.findall(r"\]\(([\w/.-]+\.md)\)", told))
    assert all((DOCS / name).exists() for name in linked)
    nav = re.findall(r"^ *- ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    assert {name for name in nav if not name.startswith("runbooks/Oncelog")} - linked == {"index.md"}


def test_what_nobody_has_published_yet_is_not_linked() -> None:
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    assert [page.name for page in pages if re.search(r"pypi\.org/project/oncelog", page.read_text())] == []


def test_the_image_has_the_text_of_pages_that_are_links() -> None:
    """A wheel is built from where they lead."""
    (copied,) = re.findall(r"^COPY pyproject.toml (.*) \./$", (ROOT / "deploy" / "Dockerfile").read_text(), flags=re.M)
    links = [page for page in DOCS.rglob("*.md") if page.is_symlink()]
    assert [page.readlink() for page in links] == [Path("../ARCHITECTURE.md")]
    assert "ARCHITECTURE.md" in copied.split()


def test_every_alert_has_its_runbook_in_the_site() -> None:
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts" / "oncelog.rules.yml").read_text())
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    nav = set(re.findall(r"runbooks/(Oncelog\w+)\.md", (ROOT / "mkdocs.yml").read_text()))
    index = set(re.findall(r"\((Oncelog\w+)\.md\)", (DOCS / "runbooks" / "index.md").read_text()))
    assert alerts == nav == index


def test_the_references_are_what_the_code_gives() -> None:
    """`make docs` writes them."""
    assert (DOCS / "commands.md").read_text() == commands(), "run: make docs"
    assert (DOCS / "http-reference.md").read_text() == http(), "run: make docs"


def test_the_version_that_is_built_has_its_notes() -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert version is not None
    assert f"## {version[1]}" in (DOCS / "releases.md").read_text()
