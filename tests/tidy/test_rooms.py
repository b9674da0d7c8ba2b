"""The README of a folder says of each of its modules what it is for, in one line. It and ARCHITECTURE.md name nothing
that is gone.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring", "spark_sink")
GENERATED = ("service/wire/messages", "service/stores/migrations")
LONGEST_LINE = 150
ROW = re.compile(r"^\| `([\w/]+\.py)` \| (.+) \|$", re.MULTILINE)
NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|txt|json))`")
MEMBER = re.compile(r"`(?:\w+\.)*([A-Z][a-z]\w+)\.(\w+)(?:\(\))?`")


def rooms() -> list[Path]:
    return [readme.parent for package in PACKAGES for readme in sorted((ROOT / package).rglob("README.md"))]


def pages() -> list[Path]:
    return [ROOT / "ARCHITECTURE.md", *(room / "README.md" for room in rooms())]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def members() -> dict[str, set[str]]:
    """For each name of a class what it has: methods, and everything that is set in it."""
    found: dict[str, set[str]] = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        if name_of(path).startswith(GENERATED):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                here = found.setdefault(node.name, set())
                for part in ast.walk(node):
                    if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                        here.add(part.name)
                    elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        here.add(part.id)
                    elif isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                        here.add(part.attr)
    return found


def modules_of(room: Path) -> set[str]:
    """Those that no README further down is about."""
    others = [other for other in rooms() if other != room and room in other.parents]
    return {
        str(path.relative_to(room))
        for path in room.rglob("*.py")
        if not path.name.startswith("__")
        and not any(other in path.parents for other in others)
        and not name_of(path).startswith(GENERATED)
    }


@pytest.mark.parametrize("folder", PACKAGES)
def test_every_module_has_a_room(folder: str) -> None:
    assert ROOT / folder in rooms()


@pytest.mark.parametrize("room", rooms(), ids=name_of)
def test_a_room_says_what_each_of_its_modules_is_for(room: Path) -> None:
    rows = ROW.findall((room / "README.md").read_text())
    named = [name for name, _ in rows]
    assert sorted(named) == sorted(modules_of(room))
    for name, line in rows:
        assert len(line) <= LONGEST_LINE, f"{name}: one short line"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_names_no_file_that_is_gone(page: Path) -> None:
    """A file is named by its path, or by the end of it."""
    there = [name_of(path) for folder in (*PACKAGES, "tests", "docs") for path in (ROOT / folder).rglob("*")]
    there += [path.name for path in ROOT.iterdir()]
    for name in NAMED.findall(page.read_text()):
        assert any(path == name or path.endswith(f"/{name}") for path in there), name


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_a_page_names_nothing_of_a_class_that_it_does_not_have(page: Path) -> None:
    for name, member in MEMBER.findall(page.read_text()):
        assert member in members().get(name, ()), f"{name}.{member}"
