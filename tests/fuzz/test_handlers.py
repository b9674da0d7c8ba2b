"""A short siege; `make fuzz` is the long one."""

from pathlib import Path

from tests.fuzz.handlers import Siege
from tests.fuzz.hostile import OFFERED


def test_a_besieged_broker_answers_everything_and_harms_nobody_else(tmp_path: Path) -> None:
    with Siege(tmp_path) as siege:
        siege.attack(seed=20_26, count=4 * len(OFFERED), many=20)
        siege.judge()
