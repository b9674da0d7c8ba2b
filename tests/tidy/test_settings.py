"""A setting that is called implemented does something: some code outside the tables of settings reads it."""

import ast
from pathlib import Path

import pytest

from service.settings.broker_table import BROKER_SETTINGS
from service.settings.setting import Status
from service.settings.topic import TOPIC_SETTINGS
from service.settings.unhonoured import NO_EFFECT_SETTINGS

ROOT = Path(__file__).parents[2]
PACKAGES = ("log", "idempotence", "isolation", "txn", "service", "monitoring")
TABLES = ("service/settings/broker_table.py", "service/settings/topic.py", "service/settings/unhonoured.py")


def attributes_read() -> set[str]:
    """Every name that stands after a dot and is not assigned to."""
    names = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if str(path.relative_to(ROOT)) not in TABLES:
                tree = ast.parse(path.read_text())
                names |= {
                    node.attr
                    for node in ast.walk(tree)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
                }
    return names


def names_given() -> set[str]:
    """Every name that a keyword argument gives, as who reads what a topic alone has."""
    names = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if str(path.relative_to(ROOT)) not in TABLES:
                keywords = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.keyword))
                names |= {str(each.value.value) for each in keywords if isinstance(each.value, ast.Constant)}
    return names


READ = attributes_read()
GIVEN = names_given()
FOLLOWED = {
    synonym.name
    for setting in TOPIC_SETTINGS.values()
    if setting.status is Status.IMPLEMENTED
    for synonym in setting.synonyms
}
"""Keys of a broker that reach the log as a topic's default."""


@pytest.mark.parametrize("name", [name for name in BROKER_SETTINGS if name not in FOLLOWED])
def test_an_implemented_setting_of_a_broker_is_read(name: str) -> None:
    assert BROKER_SETTINGS[name].attribute in READ


@pytest.mark.parametrize(
    "name", [name for name, setting in TOPIC_SETTINGS.items() if setting.status is Status.IMPLEMENTED]
)
def test_an_implemented_setting_of_a_topic_is_read_and_follows_settings_that_count(name: str) -> None:
    setting = TOPIC_SETTINGS[name]
    assert setting.attribute in READ or name in GIVEN
    assert [synonym.name for synonym in setting.synonyms if synonym.name not in BROKER_SETTINGS] == []


def test_no_setting_is_called_both_implemented_and_without_effect() -> None:
    assert BROKER_SETTINGS.keys() & NO_EFFECT_SETTINGS.keys() == set()
