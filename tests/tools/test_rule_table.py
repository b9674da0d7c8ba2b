from tests.tools.rule_table import SECTIONS, TARGET, proofs, render


def test_the_table_of_rules_is_up_to_date() -> None:
    """If not: `python -m tests.tools.rule_table`."""
    assert TARGET.read_text() == render()


def test_every_rule_belongs_to_a_section_and_is_told_once() -> None:
    found = proofs()
    assert len(found) > 100
    assert {proof.section for proof in found} <= set(SECTIONS)
    statements = [(proof.section, proof.statement) for proof in found]
    assert len(statements) == len(set(statements))
