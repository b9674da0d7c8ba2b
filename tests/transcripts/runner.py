"""Conversations with a machine, told as text: what was asked, a line of dashes, what came of it.

    init id=pay
    ----
    initialized producer=1 epoch=0

Lines that begin with `#` are for the reader. A file's name up to the first underscore says which machine is spoken to
(`SPEAKERS`). The test compares every answer with the file; `make transcripts` writes the answers anew, to be reviewed
as a difference.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.transcripts.groups import GroupsSpeaker
from tests.transcripts.txn import TxnSpeaker

HERE = Path(__file__).parent
DASHES = "----"


class Speaker(Protocol):
    def say(self, line: str) -> list[str]:
        """Carry out one line; what came of it, line by line."""


SPEAKERS: dict[str, Callable[[], Speaker]] = {"groups": GroupsSpeaker, "txn": TxnSpeaker}


def transcripts() -> list[Path]:
    return sorted(HERE.glob("*.txt"))


def replay(path: Path) -> str:
    """The file as it ought to be: its questions, with the answers of today."""
    speaker = SPEAKERS[path.stem.partition("_")[0]]()
    told = []
    for paragraph in path.read_text().split("\n\n"):
        asked = paragraph.strip("\n").split(f"\n{DASHES}", 1)[0].split("\n")
        answers = [answer for line in asked if line and not line.startswith("#") for answer in speaker.say(line)]
        spoken = any(line and not line.startswith("#") for line in asked)
        told.append("\n".join([*asked, DASHES, *answers] if spoken else asked))
    return "\n\n".join(told) + "\n"
