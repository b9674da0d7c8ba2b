"""oncelog answers as Apache Kafka 4.3 did when its answers were recorded, or docs/differences.md says why not.

`python -m tests.conformance --record` records them anew; `make conformance` compares with a live Kafka.
"""

from __future__ import annotations

import pytest

from tests.conformance.compare import Transcripts, differences, read_excuses, sort_out
from tests.conformance.families import EQUAL_SETTINGS, FAMILIES, hold_family, read_recorded
from tests.peers.ours import Oncelog


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Transcripts]:
    """Every family held with one broker, in the order in which Kafka heard them: some leave something behind."""
    broker = Oncelog(tmp_path_factory.mktemp("conformance"), settings=EQUAL_SETTINGS)
    broker.start()
    try:
        return {family: hold_family(family, broker.port) for family in FAMILIES}
    finally:
        broker.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_difference_from_apache_kafka_is_explained(transcripts: dict[str, Transcripts], family: str) -> None:
    found = list(differences(read_recorded(family), transcripts[family]))

    unexplained, _ = sort_out(found, read_excuses())

    assert not unexplained, "\n".join(str(one) for one in unexplained[:20])


@pytest.mark.timeout(300)
def test_every_line_of_the_explanations_is_needed(transcripts: dict[str, Transcripts]) -> None:
    found = [one for family in FAMILIES for one in differences(read_recorded(family), transcripts[family])]

    _, idle = sort_out(found, read_excuses())

    assert idle == []
