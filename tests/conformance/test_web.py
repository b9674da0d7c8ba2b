"""Calls of the REST Proxy's version 2 are answered as Strimzi's Kafka Bridge answered them when that was recorded, or
web.md says why not.
"""

from __future__ import annotations

import pytest

from tests.conformance.compare import differences, read_excuses, sort_out
from tests.conformance.web import EXPLAINED, hold_with_ours, read_recorded


@pytest.mark.timeout(300)
def test_every_difference_from_the_bridge_is_explained_and_every_explanation_needed() -> None:
    unexplained, idle = sort_out(list(differences(read_recorded(), hold_with_ours())), read_excuses(EXPLAINED))
    assert not unexplained, "\n".join(map(str, unexplained))
    assert not idle
