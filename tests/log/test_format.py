"""FORMAT.md says what the code writes."""

import re
from pathlib import Path

from log import batch as module
from log.batch import build_batch, checksum_ok, read_header, restamp


def test_the_worked_example_is_what_is_written() -> None:
    text = Path(module.__file__).with_name("FORMAT.md").read_text("utf-8")
    example = text[text.index("One record, key") : text.index("A control batch")]
    stored = b"".join(
        bytes.fromhex(line) for line in re.findall(r"^    ((?:[0-9a-f]{2} )*[0-9a-f]{2})\b  ", example, re.M)
    )
    batch = bytearray(build_batch([(b"k", b"hello", (), 1_000_000)]))
    restamp(batch, base_offset=7, leader_epoch=3)
    assert stored == bytes(batch)
    assert checksum_ok(stored, read_header(stored))
