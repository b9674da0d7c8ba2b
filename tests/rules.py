"""Ties a test to the rule of Kafka's exactly-once protocol that it proves.

`@rule("B.5", "a commit repeated after CompleteCommit is answered again")` changes nothing about the test; `python -m
tests.tools.rule_table` reads the decorators from the sources and writes docs/exactly-once-rules.md, so that each rule
can be followed to its proof.
"""

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def rule(section: str, statement: str) -> Callable[[Test], Test]:
    """`section` is the part of the protocol (B.1 idempotent append … B.10 offsets in transactions, T many writers)."""
    assert section
    assert statement
    return lambda test: test
