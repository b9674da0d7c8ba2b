"""A scrape as text, in Prometheus's format and as OpenMetrics.

Lines are gathered by family, because both formats want the lines of a family together. Nothing here waits or counts.
The registry of prometheus-client would take a lock and an object for each of 300,000 samples, and would hold up the
loop during all of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from monitoring.families import REGISTRY, Family

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
EXEMPLAR_CHARACTERS: Final = 128
"""The most characters that OpenMetrics allows for the labels of an exemplar."""
LINES_AT_ONCE: Final = 1_000
"""How many lines are joined at once: about 100 kB."""
PACKED_A_TURN: Final = 2
"""How many families are packed in one turn: with a thousand lines each, in half a millisecond."""


class Named(Protocol):
    """One of those that were counted, by name."""

    @property
    def names(self) -> tuple[tuple[str, str], ...]: ...
    @property
    def value(self) -> float: ...
    @property
    def wall_ms(self) -> int: ...


class Counted(Protocol):
    """Counts under bounds."""

    @property
    def bounds(self) -> Sequence[float]: ...
    @property
    def counts(self) -> Sequence[int]: ...
    @property
    def total(self) -> float: ...
    @property
    def examples(self) -> Mapping[int, Named]: ...


def escape(value: str) -> str:
    """Any text as the value of a label."""
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def labelled(names: Sequence[str], values: Sequence[object]) -> str:
    """`{a="1",b="2"}`, or nothing."""
    if not names:
        return ""
    assert len(names) == len(values), names
    pairs = ",".join(f'{name}="{escape(str(value))}"' for name, value in zip(names, values, strict=True))
    return "{" + pairs + "}"


class Lines:
    """The samples of one scrape."""

    def __init__(self) -> None:
        self._of: dict[str, list[str]] = {name: [] for name in REGISTRY}
        self._packed: dict[str, list[str]] = {
            name: [] for name, family in REGISTRY.items() if family.kind != "histogram"
        }
        """Lines joined to long pieces. Those of histograms are not: exemplars know them by their numbers."""
        self._exemplars: dict[str, dict[int, str]] = {}
        self.readers = 0
        """How many requests are being answered with these lines."""
        self.was_told = False

    def of(self, family: Family) -> list[str]:
        """The list of a family's lines, for families with so many lines that they are written by hand."""
        return self._of[family.name]

    def add(self, family: Family, value: float, *labels: object) -> None:
        self._of[family.name].append(f"{family.name}{labelled(family.labels, labels)} {value}\n")

    def add_histogram(self, family: Family, counted: Counted, *labels: object) -> None:
        lines, name = self._of[family.name], family.name
        below = 0
        for index, (bound, count) in enumerate(zip((*counted.bounds, float("inf")), counted.counts, strict=True)):
            below += count
            le = "+Inf" if bound == float("inf") else repr(float(bound))
            if exemplar := _exemplar(counted.examples.get(index)):
                self._exemplars.setdefault(name, {})[len(lines)] = exemplar
            lines.append(f"{name}_bucket{labelled((*family.labels, 'le'), (*labels, le))} {below}\n")
        plain = labelled(family.labels, labels)
        lines.append(f"{name}_count{plain} {below}\n")
        lines.append(f"{name}_sum{plain} {counted.total}\n")

    def pack(self) -> None:
        """Join what has become many lines. The collector looks at each entry of each list that is new, and at 300,000
        lines for longer than a turn of the loop may take.
        """
        turns = PACKED_A_TURN
        for name, pieces in self._packed.items():
            if len(lines := self._of[name]) >= LINES_AT_ONCE:
                pieces.append("".join(lines))
                lines.clear()
                turns -= 1
                if not turns:
                    return

    def forget(self) -> Iterator[None]:
        """Free the lines step by step."""
        for lines in (*self._packed.values(), *self._of.values()):
            lines.clear()
            yield

    def render(self, *, openmetrics: bool) -> Iterator[str]:
        """The text in pieces. Between two pieces other tasks may have a turn."""
        for name, lines in self._of.items():
            packed = self._packed.get(name, ())
            if not lines and not packed:
                continue
            family = REGISTRY[name]
            shown = name.removesuffix("_total") if openmetrics else name
            says = family.says.replace("\\", "\\\\")
            yield f"# HELP {shown} {says}\n# TYPE {shown} {family.kind}\n"
            if openmetrics and name in self._exemplars:
                named = self._exemplars[name]
                lines = [f"{line[:-1]}{named[at]}\n" if at in named else line for at, line in enumerate(lines)]
            yield from packed
            for start in range(0, len(lines), LINES_AT_ONCE):
                yield "".join(lines[start : start + LINES_AT_ONCE])
        if openmetrics:
            yield "# EOF\n"


class Unwritten(Lines):
    """For a look that is not told line by line."""

    def add(self, family: Family, value: float, *labels: object) -> None:
        pass


def _exemplar(named: Named | None) -> str:
    if named is None or sum(len(name) + len(value) for name, value in named.names) > EXEMPLAR_CHARACTERS:
        return ""
    names = labelled([name for name, _ in named.names], [value for _, value in named.names])
    return f" # {names} {named.value} {named.wall_ms / 1000:.3f}"


def quantile(counted: Counted, part: float) -> float:
    """The value below which this part of the counts lies. It is an estimate, because nothing is known between two
    bounds.
    """
    wanted, below, lower = part * sum(counted.counts), 0.0, 0.0
    for bound, count in zip(counted.bounds, counted.counts, strict=False):
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below, lower = below + count, bound
    return lower
