"""Writes docs/exactly-once-rules.md: every rule of the exactly-once protocol that a test proves, with the test.

    python -m tests.tools.rule_table

The rules are read from the `@rule(section, statement)` decorators in the sources; nothing is run.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "exactly-once-rules.md"

SECTIONS = {
    "B.1": "Idempotent append",
    "B.2": "Verification of transactional writes (KIP-890)",
    "B.3": "InitProducerId",
    "B.4": "AddPartitionsToTxn, AddOffsetsToTxn",
    "B.5": "EndTxn",
    "B.6": "Transaction markers",
    "B.7": "Timeouts, expiration",
    "B.8": "Formats: transaction log, control batches",
    "B.9": "Last stable offset, aborted transactions, readers",
    "B.10": "Consumer offsets in transactions",
    "C": "What others got wrong",
    "T": "Transactions with many writers",
}

HEAD = """# The rules of exactly-once, and their proofs

Kafka's protocol of idempotent and transactional producers, rule by rule, as oncelog keeps it, each with the test that
fails when it is broken. Generated from the tests by `python -m tests.tools.rule_table`; do not edit.
"""


class Proof(NamedTuple):
    section: str
    statement: str
    path: str
    test: str


def proofs() -> list[Proof]:
    found = [proof for path in sorted((ROOT / "tests").rglob("*.py")) for proof in proofs_in(path)]
    order = list(SECTIONS)
    return sorted(found, key=lambda proof: (order.index(proof.section), proof.path))


def proofs_in(path: Path) -> Iterator[Proof]:
    text = path.read_text()
    if "from tests.rules import rule" not in text:  # Hypothesis has a `rule` of its own
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                yield from _proof_of(decorator, path, node.name)


def _proof_of(decorator: ast.expr, path: Path, test: str) -> Iterator[Proof]:
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "rule"):
        return
    section, statement = (ast.literal_eval(argument) for argument in decorator.args)
    yield Proof(section, statement, str(path.relative_to(ROOT)), test)


def render() -> str:
    told, found = [HEAD], proofs()
    for section, title in SECTIONS.items():
        rows = [proof for proof in found if proof.section == section]
        if rows:
            told += [f"## {section} {title}", "", "| rule | test |", "|---|---|"]
            told += [f"| {_cell(row.statement)} | `{row.path}` {row.test} |" for row in rows]
            told.append("")
    return "\n".join(told).rstrip() + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_text(render())
    print(f"{len(proofs())} rules in {TARGET.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
