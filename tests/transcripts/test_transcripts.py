from pathlib import Path

import pytest

from tests.transcripts.runner import replay, transcripts


@pytest.mark.parametrize("path", transcripts(), ids=lambda path: path.stem)
def test_the_machine_still_says_what_the_transcript_tells(path: Path) -> None:
    """A change that is meant: `make transcripts`, and review the difference."""
    assert replay(path) == path.read_text()
