"""What settings mean: single ones for `oncelog config explain`, all of them as `docs/configuration.md`.

All of it comes from the tables with which the broker parses its settings, so the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from service.settings.broker import document_settings
from service.settings.broker_table import BROKER_SETTINGS
from service.settings.group import GROUP_SETTINGS
from service.settings.setting import Setting
from service.settings.topic import TOPIC_SETTINGS
from service.settings.unhonoured import NO_EFFECT, NO_EFFECT_SETTINGS, REFUSED

INTRODUCTION = """\
# Settings

Written by `make docs` from the tables that the broker parses with; a test holds it to them. `oncelog config explain
KEY` shows one.

Names, types, defaults and checks are Apache Kafka's where Kafka has the key, so a `server.properties` of Kafka's
starts a broker: `oncelog serve -c server.properties`. The same settings can be written as TOML (`oncelog.toml`),
given in the environment (`KAFKA_LOG_RETENTION_MS` or `ONCELOG_LOG_RETENTION_MS` for `log.retention.ms`; `__` stands
for `_`, `___` for `-`) and on the command line (`-o log.retention.ms=60000`). Later ones win, in this order: default,
file, environment, command line. What `oncelog config set` stores wins over all of them, for the keys that can be
changed while the broker runs: `cluster-wide` keys for all brokers or one, `per-broker` keys for one.

A key that does nothing here is named in a warning; a key that would promise what does not hold keeps the broker from
starting.

## A broker's settings

"""

TOPIC_INTRODUCTION = """
## A topic's settings

Set with `oncelog topic create -c`, `oncelog topic alter -c` or `oncelog config set --topic`. Where a topic has no
value of its own, the broker's setting in the column *follows* holds.

| key | type | default | valid | follows | what it does |
|---|---|---|---|---|---|
"""

GROUP_INTRODUCTION = """
## A consumer group's settings

Set with `oncelog config set --group`, for groups of the consumer protocol. The broker's `group.consumer.min.…` and
`group.consumer.max.…` bound them.

| key | type | default | valid | follows | what it does |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a setting of one kind means. `status` says whether setting it does anything here."""

    name: str
    belongs_to: str
    status: str
    type: str | None
    default: str | None
    valid: str
    changed_while_running: str | None
    follows: list[str]
    meaning: str


def explain(name: str) -> list[Explanation]:
    """What is known under `name`: a broker's key, a topic's key, or both."""
    found = []
    if name in BROKER_SETTINGS:
        found.append(_of_broker(BROKER_SETTINGS[name]))
    if name in NO_EFFECT_SETTINGS:
        found.append(_of_broker(NO_EFFECT_SETTINGS[name]))
    elif name in NO_EFFECT:
        found.append(_without_setting(name, "accepted without effect", NO_EFFECT[name]))
    if name in TOPIC_SETTINGS:
        found.append(_of_topic(TOPIC_SETTINGS[name]))
    if name in GROUP_SETTINGS:
        found.append(_of_group(GROUP_SETTINGS[name]))
    for refused, why in REFUSED.items():
        # A key that ends in a dot stands for all that begin so.
        if name == refused or (refused.endswith(".") and name.startswith(refused)):
            found.append(_without_setting(name, "refused", why))
    return found


def similar(name: str) -> list[str]:
    """Names that a misspelt one may have meant."""
    return get_close_matches(name, list(all_names()), n=3)


def all_names() -> Iterator[str]:
    yield from dict.fromkeys(
        [*BROKER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS, *NO_EFFECT_SETTINGS, *NO_EFFECT, *REFUSED]
    )


def _of_broker(setting: Setting[Any]) -> Explanation:
    return _explained(setting, "broker", setting.mode.value)


def _of_topic(setting: Setting[Any]) -> Explanation:
    return _explained(setting, "topic", "yes")


def _of_group(setting: Setting[Any]) -> Explanation:
    return _explained(setting, "group", "yes")


def _explained(setting: Setting[Any], belongs_to: str, changed_while_running: str) -> Explanation:
    return Explanation(
        name=setting.name,
        belongs_to=belongs_to,
        status=setting.status.value,
        type=setting.kind.name.lower(),
        default=setting.default_text,
        valid=setting.choices,
        changed_while_running=changed_while_running,
        follows=[synonym.name for synonym in setting.synonyms],
        meaning=setting.doc,
    )


def _without_setting(name: str, status: str, why: str) -> Explanation:
    return Explanation(
        name=name,
        belongs_to="broker",
        status=status,
        type=None,
        default=None,
        valid="",
        changed_while_running=None,
        follows=[],
        meaning=why,
    )


def document() -> str:
    """The page `docs/configuration.md`."""
    topics = "".join(map(_line, TOPIC_SETTINGS.values()))
    groups = "".join(map(_line, GROUP_SETTINGS.values()))
    return INTRODUCTION + document_settings() + TOPIC_INTRODUCTION + topics + GROUP_INTRODUCTION + groups


def _line(setting: Setting[Any]) -> str:
    default = "–" if setting.default_text is None else f"`{setting.default_text}`"
    follows = ", ".join(f"`{synonym.name}`" for synonym in setting.synonyms)
    cells = (f"`{setting.name}`", setting.kind.name.lower(), default, setting.choices, follows, setting.doc)
    return "| " + " | ".join(cells) + " |\n"
