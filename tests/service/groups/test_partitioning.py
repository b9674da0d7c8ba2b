"""The partition of a group is what every client and every Kafka broker computes."""

import subprocess
import sys

import pytest

from service.groups.partitioning import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("orders", -1008770331),
        ("my-group", -1906497762),
        ("polygenelubricants", -(1 << 31)),
        ("é", 233),
        ("😀", 1772899),
    ],
)
def test_the_hash_is_javas(text: str, value: int) -> None:
    assert java_string_hash(text) == value


def test_a_partition_is_the_hashs_absolute_value_modulo_their_number() -> None:
    assert partition_for("orders", 50) == 1008770331 % 50


def test_the_one_hash_without_absolute_value_goes_to_partition_zero() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_the_first_group_that_is_asked_for_needs_no_descriptor() -> None:
    """Python looks for an encoding when it is first used, and so opens files."""
    tells = "import sys, service.groups.partitioning; print('encodings.utf_16_be' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", tells], capture_output=True, text=True, check=True)
    assert told.stdout == "True\n"
