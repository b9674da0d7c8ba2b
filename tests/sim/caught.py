"""By which seed each planted bug was caught last. The tests try that one first, so that a part of the bugs is hunted in
minutes; `make mutants` and its like hunt from the first seed on, and write down what they find. As the product changes,
so do its runs: a seed that catches no more costs one run.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

FAR = 40
"""From about this seed on a hunt takes more than a minute of a processor."""
_FILE = Path(__file__).with_name("caught.json")


def seeds(mutant: str, *, anew: bool = False) -> Iterator[int]:
    """All seeds, in the order in which they are to be tried. `anew`: as if nothing were known."""
    known = None if anew else _read().get(mutant)
    return itertools.chain(() if known is None else (known,), itertools.count(1))


def takes_long(mutant: str) -> bool:
    """Whether the first seed that catches it is far up. Then so is the next one, once the runs have changed: the tests
    try the known one, and to hunt further is for `make mutants`.
    """
    return _read().get(mutant, 0) > FAR


def note(caught: dict[str, int]) -> None:
    """These bugs were caught by these seeds."""
    _FILE.write_text(json.dumps(_read() | caught, indent=2, sort_keys=True) + "\n")


def _read() -> dict[str, int]:
    known: dict[str, int] = json.loads(_FILE.read_text())
    return known
