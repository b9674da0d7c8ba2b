"""Two sets of transcripts side by side, and the table of differences that are meant.

`docs/differences.md` explains: each section of it (a heading, why, and lines indented by four spaces) excuses the
differences whose place matches one of those lines, in which `*` stands for anything. A difference without an excuse
is a failure, and so is a section without a reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.conformance.plain import Plain
from tests.conformance.talk import BROKE_OFF, Step
from tests.peers.process import ROOT

DIFFERENCES = ROOT / "docs" / "differences.md"
ABSENT = "(nothing)"

Transcripts = Mapping[str, Sequence[Step]]


@dataclass(frozen=True)
class Difference:
    """One place where the oracle and the other broker disagree."""

    place: str
    expected: Plain
    found: Plain

    def __str__(self) -> str:
        return f"{self.place}\n      Kafka: {_short(self.expected)}\n    oncelog: {_short(self.found)}"


@dataclass(frozen=True)
class Excuse:
    """A section of docs/differences.md."""

    title: str
    reason: str
    patterns: tuple[str, ...]

    def covers(self, difference: Difference) -> bool:
        return any(_matches(pattern, difference.place) for pattern in self.patterns)


def differences(oracle: Transcripts, other: Transcripts) -> Iterator[Difference]:
    """Every place where the transcripts of the conversations in `oracle` differ."""
    for conversation, expected in oracle.items():
        found = other.get(conversation)
        if found is None:
            yield Difference(conversation, "held", ABSENT)
            continue
        if BROKE_OFF in str(expected[-1]["step"]):
            yield Difference(f"{conversation} / {expected[-1]['step']}", expected[-1]["answer"], "not comparable")
        for one, two in zip(expected, found, strict=False):
            yield from _between(f"{conversation} / {one['step']} /", dict(one), dict(two))
        if len(expected) != len(found):
            yield Difference(f"{conversation} / steps", len(expected), len(found))


def _between(place: str, expected: Plain, found: Plain) -> Iterator[Difference]:
    if expected == found:
        return
    if isinstance(expected, dict) and isinstance(found, dict):
        dot = " " if place.endswith("/") else "."
        for key in [*expected, *(key for key in found if key not in expected)]:
            yield from _between(f"{place}{dot}{key}", expected.get(key, ABSENT), found.get(key, ABSENT))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, (one, two) in enumerate(zip(expected, found, strict=True)):
            yield from _between(f"{place}[{index}]", one, two)
    else:
        yield Difference(place, expected, found)


def read_excuses(path: Path = DIFFERENCES) -> list[Excuse]:
    """The sections that excuse something; no file, no excuses."""
    if not path.exists():
        return []
    excuses = []
    for section in re.split(r"^## ", path.read_text(), flags=re.MULTILINE)[1:]:
        title, _, rest = section.partition("\n")
        lines = rest.splitlines()
        patterns = tuple(line.strip() for line in lines if line.startswith("    ") and line.strip())
        reason = " ".join(line for line in lines if line and not line.startswith("    "))
        if patterns:
            assert reason, f"{path.name}: no reason is given for {title!r}"
            excuses.append(Excuse(title.strip(), reason, patterns))
    return excuses


def sort_out(found: Sequence[Difference], excuses: Sequence[Excuse]) -> tuple[list[Difference], list[str]]:
    """Differences without an excuse, and lines of excuses without a difference."""
    unexplained = [one for one in found if not any(excuse.covers(one) for excuse in excuses)]
    patterns = [pattern for excuse in excuses for pattern in excuse.patterns]
    idle = [pattern for pattern in patterns if not any(_matches(pattern, one.place) for one in found)]
    return unexplained, idle


def _matches(pattern: str, place: str) -> bool:
    return re.fullmatch(".*".join(re.escape(part) for part in pattern.split("*")), place) is not None


def _short(value: Plain, limit: int = 400) -> str:
    text = value if value == ABSENT else json.dumps(value, ensure_ascii=False)
    assert isinstance(text, str)
    return text if len(text) <= limit else text[: limit - 3] + "..."
