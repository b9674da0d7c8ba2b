"""How fast: a table of medians, ours beside the previous commit's and Apache Kafka's, all measured in this run.

    python -m tests.bench                       our broker alone
    python -m tests.bench --peer kafka          and Apache Kafka 4.3 (needs Java 17)
    python -m tests.bench --base HEAD~1         and an earlier commit's code
    python -m tests.bench --quick --only start  a tenth of the load; figures whose name contains the text
    python -m tests.bench --scratch FOLDER      where data folders go; default: the folder for temporary files

Nothing is asserted about time: a number of another machine or hour says little, compare within a run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench import native
from tests.bench.contenders import Contender, Kafka, Ours, earlier_commit
from tests.bench.figures import FIGURES, FULL, MORE_IS_BETTER, QUICK, Effort, Rows
from tests.peers import kafka


def measure(contenders: Sequence[Contender], figures: Sequence[str], effort: Effort) -> dict[str, dict[str, float]]:
    """Row to contender to number. A figure that a contender cannot be measured in is left out, with a word on why."""
    table: dict[str, dict[str, float]] = {}
    for name in figures:
        for contender in contenders:
            began = time.monotonic()
            try:
                rows: Rows = FIGURES[name](contender, effort)
            except Exception as failure:  # noqa: BLE001 - one figure that fails shall not cost the others
                print(f"{name}: {contender.name}: not measured: {type(failure).__name__}: {failure}", file=sys.stderr)
                continue
            print(f"{name}: {contender.name}, {time.monotonic() - began:.0f} s", file=sys.stderr)
            for row, value in rows.items():
                table.setdefault(row, {})[contender.name] = value
    return table


def print_table(table: dict[str, dict[str, float]], contenders: Sequence[Contender]) -> None:
    """Ours first; behind each other contender how much better (above 1) or worse we are."""
    ours, *others = [contender.name for contender in contenders]
    header = ["", ours]
    for other in others:
        header += [other, "ratio"]
    lines = [header]
    for row, values in table.items():
        line = [row, _number(values.get(ours))]
        for other in others:
            line += [_number(values.get(other)), _ratio(row, values.get(ours), values.get(other))]
        lines.append(line)
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [
            line[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip())


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3g}"


def _ratio(row: str, ours: float | None, other: float | None) -> str:
    """How many times better ours is; costs in percent are not divided."""
    if ours is None or other is None or row.endswith("%") or not ours or not other:
        return ""
    return f"{ours / other if row.endswith(MORE_IS_BETTER) else other / ours:.2f}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.partition("\n")[0])
    parser.add_argument("--peer", choices=["kafka"], help="measure Apache Kafka too")
    parser.add_argument("--without-ours", action="store_true", help="the peer alone")
    parser.add_argument("--base", metavar="COMMIT", help="measure an earlier commit too")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load, one run")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help=f"one of {', '.join(FIGURES)}; can be given again"
    )
    parser.add_argument("--scratch", type=Path, help="where data folders go")
    parser.add_argument("--runs", type=int, help="how many runs the medians are of")
    parser.add_argument("--gb", type=float, help="the size of the crashed log")
    parser.add_argument("--minutes", type=float, help="how long the soak lasts")
    chosen = parser.parse_args()
    for why in (native.missing(), kafka.missing() if chosen.peer else None):
        if why:
            print(f"cannot measure: {why}", file=sys.stderr)
            return 2
    plan = QUICK if chosen.quick else FULL
    effort = Effort(
        runs=chosen.runs or plan.runs,
        scale=plan.scale,
        crashed_gb=chosen.gb or plan.crashed_gb,
        soak_minutes=chosen.minutes or plan.soak_minutes,
        partitions=plan.partitions,
    )
    figures = [name for name in FIGURES if not chosen.only or any(part in name for part in chosen.only)]
    with contextlib.ExitStack() as kept:
        folder = kept.enter_context(tempfile.TemporaryDirectory(dir=chosen.scratch, prefix="oncelog-bench-"))
        contenders: list[Contender] = [] if chosen.without_ours else [Ours("oncelog", Path(folder))]
        base = chosen.base or os.environ.get("BASE")
        if base:
            contenders.append(Ours(f"oncelog {base}", Path(folder), kept.enter_context(earlier_commit(base))))
        if chosen.peer:
            contenders.append(Kafka("Apache Kafka", Path(folder)))
        print_table(measure(contenders, figures, effort), contenders)
    return 0


if __name__ == "__main__":
    sys.exit(main())
