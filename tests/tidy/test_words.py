"""In one room a name means one thing: no two modules of a folder give it to classes, or to types, of their own."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring", "spark_sink")
GENERATED = ("service/wire/messages", "service/stores/migrations")


def rooms() -> list[str]:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    names = (str(folder.relative_to(ROOT)) for folder in folders)
    return sorted(name for name in names if not name.startswith(GENERATED))


def types_of(module: Path) -> Iterator[str]:
    """The classes, and the names for types, that this module makes. Type variables are its own business."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, ast.unparse(node.value)
            if name[0].isupper() and not name.isupper() and "TypeVar(" not in value:
                yield name
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias":
            yield ast.unparse(node.target)


@pytest.mark.parametrize("room", rooms())
def test_a_name_means_one_thing_in_its_room(room: str) -> None:
    makers: dict[str, list[str]] = {}
    for module in sorted((ROOT / room).glob("*.py")):
        for name in types_of(module):
            makers.setdefault(name, []).append(module.name)
    assert {name: where for name, where in makers.items() if len(where) > 1} == {}
