"""By which seed each planted bug was caught last. The tests try that one first, so that a part of the bugs is hunted in
minutes; `make mutants` and its like hunt from the first seed on, and write down what they find.

As the product changes, so do its runs, and a seed may catch no more. So of the broker's bugs a few seeds are kept that
caught each, the newest first, each with the fingerprint of its run without the bug. While that run is the same, the bug
must be caught by that seed: that it is not says that the simulation has become blind, or the bug harmless. When the run
has become another one, the seed is tried, and proves nothing.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

FAR = 40
"""From about this seed on a hunt takes more than a minute of a processor."""
KEPT = 3
_FILE = Path(__file__).with_name("caught.json")
_RUNS = Path(__file__).with_name("caught_runs.json")


def seeds(mutant: str, *, anew: bool = False) -> Iterator[int]:
    """All seeds, each once, in the order in which they are to be tried. `anew`: as if nothing were known."""
    first = [] if anew else known(mutant)
    return itertools.chain(first, (seed for seed in itertools.count(1) if seed not in first))


def known(mutant: str) -> list[int]:
    """The seeds that have caught it, the newest first."""
    newest = _read().get(mutant)
    kept = [seed for seed, _ in runs(mutant)]
    return list(dict.fromkeys(kept if newest is None else [newest, *kept]))


def runs(mutant: str) -> list[tuple[int, int]]:
    """Those seeds with the fingerprints of their runs without it, as far as these are kept."""
    return [(seed, fingerprint) for seed, fingerprint in _read_runs().get(mutant, [])]


def takes_long(mutant: str) -> bool:
    """Whether the first seed that catches it is far up. Then so is the next one, once the runs have changed: the tests
    try the known one, and to hunt further is for `make mutants`.
    """
    return _read().get(mutant, 0) > FAR


def note(caught: dict[str, int]) -> None:
    """These bugs were caught by these seeds."""
    _write(_FILE, json.dumps(_read() | caught, indent=2, sort_keys=True) + "\n")


def note_run(mutant: str, seed: int, fingerprint: int) -> None:
    """The bug was caught by this seed, whose run without it has this fingerprint."""
    note({mutant: seed})
    kept = [each for each in runs(mutant) if each[0] != seed]
    all_runs = _read_runs() | {mutant: [(seed, fingerprint), *kept][:KEPT]}
    lines = (f"  {json.dumps(name)}: {json.dumps(all_runs[name])}" for name in sorted(all_runs))
    _write(_RUNS, "{\n" + ",\n".join(lines) + "\n}\n")


def _write(file: Path, text: str) -> None:
    """At once: the processes that hunt read it meanwhile."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def _read() -> dict[str, int]:
    found: dict[str, int] = json.loads(_FILE.read_text())
    return found


def _read_runs() -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = json.loads(_RUNS.read_text())
    return found
