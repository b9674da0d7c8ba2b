"""What compaction makes of the log of groups: of each key the last record, in the old order, up to a cut.

As the cleaner does it: nothing of an undecided transaction or behind one is touched, what was aborted goes, and
tombstones go with the next pass.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.service.groups.driver import Entry


def compacted(log: Sequence[Entry], chance: random.Random) -> list[Entry]:
    fates, end = _fates(log, chance.randint(0, len(log)))
    tombstones_stay = chance.random() < 0.5
    counting = [
        entry for place, entry in enumerate(log[:end]) if entry.marker is None and fates.get(place, True)
    ]  # fmt: skip
    last = {key: entry for entry in counting for key, _ in entry.records}
    kept: list[Entry] = []
    for place, entry in enumerate(log[:end]):
        if entry.marker is not None:
            kept.append(entry)
        elif fates.get(place, True):
            newest = {key: value for key, value in entry.records if last[key] is entry}
            records = tuple((key, value) for key, value in newest.items() if value is not None or tombstones_stay)
            kept.append(Entry(records, entry.producer_id))
    return [*kept, *log[end:]]


def _fates(log: Sequence[Entry], cut: int) -> tuple[dict[int, bool], int]:
    """Whether each transactional entry before `cut` was committed, and where the first undecided one is."""
    fates: dict[int, bool] = {}
    undecided: dict[int, list[int]] = {}
    for place, entry in enumerate(log[:cut]):
        if entry.marker is not None:
            fates.update(dict.fromkeys(undecided.pop(entry.producer_id, ()), entry.marker))
        elif entry.producer_id >= 0:
            undecided.setdefault(entry.producer_id, []).append(place)
    return fates, min((places[0] for places in undecided.values()), default=cut)
