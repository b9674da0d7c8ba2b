"""The commands in README and in the documentation, word for word, in their order, on one broker. Only where things are
is replaced: the ports, and the environment that a reader makes for a library that the tests have. Every other line with
a command of ours is at least one that the program takes.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from service.cli.failures import Exit
from service.cli.root import cli
from tests.monitoring.test_prometheus import in_transaction, write_unasked
from tests.outside import missing
from tests.service.cli.kit import ROOT, Serving, oncelog

ANOTHER_ENVIRONMENT = "/tmp/try"
TOOLS = ("kcat", "curl")
VERIFICATION = "transaction.partition.verification.enable"
README = {
    "kcat -b": ["order 1: two apples"],
    '"billing"': ["orders", "order 2: three pears"],
    "curl": ['"outcome":"applied"', '"fruit": "fig"', "event: end"],
    "order-6": ["'outcome': 'applied'", "from Python", "order 6", "event: end"],
    "group lag": ["anna", "carl", "payments", "billing"],
}
"""What a block must print, by a word in it."""
START = {
    "oncelog doctor": ["brokers", "none hangs"],
    "two apples": ["two apples"],
    "order-2": ['"outcome":"applied"', "Idempotency-Replayed: true", "three pears"],
    "a melon": ["4.20"],
    "TXN=": ["cash-desk-1", '"outcome":"applied"', "not yet"],
}


def blocks(path: str, section: str | None = None) -> list[str]:
    text = (ROOT / path).read_text()
    if section is not None:
        (text,) = re.findall(rf"^## {section}$(.*?)^## ", text, flags=re.M | re.S)
    return [block for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S) if not language]


def run(blocks: list[str], expected: dict[str, list[str]], folder: Path) -> str:
    python = folder / "try" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = ""
    web = "-o", "http.listeners=http://127.0.0.1:0"
    with Serving("--data", str(folder / "data"), "--host", "127.0.0.1", "--port", "0", *web) as serving:
        for block in blocks:
            used = [each for each in TOOLS if each in block]
            if "pip install" in block or block.startswith("make ") or missing(*used):
                continue
            block = block.replace(ANOTHER_ENVIRONMENT, str(folder / "try")).replace("python3 -c", f"{python} -c")
            block = block.replace("localhost:9092", serving.bootstrap)
            block = block.replace("localhost:8082", serving.facts["http"][0].removeprefix("http://"))
            done = subprocess.run(
                ["sh", "-eu", "-c", block],
                cwd=ROOT,
                env={**os.environ, "ONCELOG_BOOTSTRAP": serving.bootstrap, "PATH": path},
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            for word, printed in expected.items():
                if word in block:
                    assert all(each in done.stdout for each in printed), (block, done.stdout)
            ran += block
    return ran


def test_readmes_commands_do_what_it_says(tmp_path: Path) -> None:
    ran = run(blocks("README.md", "Use it"), README, tmp_path)
    for command in ("init_transactions", "consumer.consume", "oncelog config explain"):
        assert command in ran, f"README has changed: no block says {command}"
    if why := missing(*TOOLS):
        pytest.skip(why)


def test_getting_started_does_what_it_says(tmp_path: Path) -> None:
    ran = run(blocks("docs/start.md"), START, tmp_path)
    if why := missing(*TOOLS):
        pytest.skip(why)
    assert all(word in ran for word in START)


def test_the_commands_of_the_explaining_pages_do_what_they_say(tmp_path: Path) -> None:
    before = [
        "oncelog topic create orders\necho melon | oncelog produce orders\noncelog consume orders --group billing -e"
    ]
    told = blocks("docs/exactly-once.md") + blocks("docs/from-kafka.md")
    ran = run(before + told, {"config explain": ["log.flush.interval.messages"], "group reset": ["orders"]}, tmp_path)
    assert "txn hanging" in ran
    assert "group reset billing" in ran


def test_readme_tells_of_every_command_and_of_every_target_that_proves_something() -> None:
    """Of the others `make` alone tells."""
    text = (ROOT / "README.md").read_text()
    rows = "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    commands = cli.list_commands(click.Context(cli))
    assert [name for name in commands if f"`oncelog {name}`" not in rows] == []
    targets = re.findall(r"^([a-z-]+):.* ## ", (ROOT / "Makefile").read_text(), flags=re.M)
    assert len(targets) > 30
    small = {"help", "clean", "lint", "types", "format", "docs"}
    assert [name for name in targets if name not in small and not re.search(rf"`(make )?{name}[ `]", rows)] == []


def _shown() -> list[tuple[str, str, bool]]:
    """Each line with a command of ours, and whether it is to be typed as it is: in a block, not within a sentence."""
    found = {}
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text().replace("\\\n", " ")
        inside = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)
        lines = [line for language, block in inside if language != "text" for line in block.splitlines()]
        typed = [part for line in lines for part in re.split(r" \|\|? ", line)]
        named = re.findall(r"`(oncelog [^`]+)`", text)
        for line in (*named, *typed):
            if line.startswith("oncelog ") and "…" not in line and "COMMAND" not in line:
                found[path.name, " ".join(line.split())] = line in typed
    return [(where, line, is_typed) for (where, line), is_typed in found.items()]


SHOWN = _shown()


@pytest.mark.parametrize(("where", "line", "is_typed"), SHOWN, ids=[f"{each[0]}: {each[1]}"[:90] for each in SHOWN])
def test_every_command_that_is_shown_is_one_that_the_program_takes(
    where: str, line: str, is_typed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders.txt").touch()
    words = shlex.split(re.split(r" \|\|? | > ", line)[0], comments=True)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="oncelog")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"{where}: there is no command {words[0]}"
        command, words = found, words[1:]
    if not is_typed or isinstance(command, click.Group):
        options = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
        unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
        assert unknown in ([], ["--help"]), f"{where}: {line}"
        return
    command.make_context("oncelog", words, resilient_parsing="--help" in words)


COMPLETED = {
    "config set": "retention.ms=86400000 --topic orders",
    "topic trim": "orders -p 0 --before 1",
    "topic describe": "orders",
    "topic reassign": "orders --brokers 1,2",
    "topic reassign TOPIC": "--replication-factor 3",
    "cluster drain": "3",
    "group reset": "billing --to earliest",
    "group lag": "billing",
    "txn abort": "pay-2",
    "log dump": "FOLDER",
}
"""What a sentence leaves out because its reader knows it."""
PLACES = {"TOPIC": "orders", "PARTITION": "0", "GROUP": "billing", "ID": "pay-1"}
CONDITIONS = ("doctor", "txn hanging")
"""Their status says that something is wrong, and something is."""
ASKING_FIRST = ("reassign", "elect", "trim", "drain", "spread", "reset", "abort", "delete")
RUN_AT_THREE = sorted(
    {
        line.partition(" # ")[0].removeprefix("oncelog ")
        for where, line, _ in SHOWN
        if (where in ("cluster.md", "spark.md") or where.startswith("Oncelog"))
        and line.split()[1] not in ("serve", "demo")
    },
    key=lambda line: ("spread" in line, "delete" in line, line.startswith("log "), line),
)
"""A broker has been drained when others give it its share again, and what is deleted is not asked for any more."""


def test_the_commands_for_clusters_and_of_the_runbooks_work_at_three_brokers(tmp_path: Path) -> None:
    """With something that hangs, something that is open, and a group. What reads the files of a stopped broker does
    so in the end.
    """
    few = ("offsets.topic.num.partitions=2", "transaction.state.log.num.partitions=2", f"{VERIFICATION}=false")
    settings = [word for each in few for word in ("-o", each)]
    where = ("--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", "0", "--brokers", "3")
    with Serving(*where, *settings) as serving:
        bootstrap = serving.bootstrap
        before = ("topic create orders -p 3 -r 2", "produce orders", "consume orders --group billing -e")
        for line in before:
            assert oncelog(*line.split(), stdin=b"one\ntwo\n", bootstrap=bootstrap).status == 0, line
        producers = [in_transaction(bootstrap, name, "orders") for name in ("pay-1", "pay-2")]
        for member in serving.facts["brokers"]:
            write_unasked(member["bootstrap"], "orders", 4_242)  # its leader takes it
        (hangs,) = (row for row in oncelog("txn", "hanging", "-o", "json", bootstrap=bootstrap).json() if row["hangs"])
        places = {**PLACES, "ADDRESS": bootstrap, "N": str(hangs["first_open_offset"])}
        for line in RUN_AT_THREE:
            words = [places.get(word, word) for word in f"{line} {COMPLETED.get(line, '')}".split()]
            if words[0] == "log":
                continue
            if words[1:2] == ["drain"]:
                words[2:] = ["3"]
            asks = any(word in words for word in ASKING_FIRST)
            ended = oncelog(*words, *(["--yes"] if asks else []), bootstrap=bootstrap)
            expected = (Exit.OK, Exit.CONDITION) if line.startswith(CONDITIONS) else (Exit.OK,)
            assert ended.status in expected, (line, ended)
            if "drain" in words:
                assert _held(bootstrap)[3] == 0
        assert _held(bootstrap)[3] > 0
        left = oncelog("txn", "hanging", "-o", "json", bootstrap=bootstrap)
        assert [row for row in left.json() if row["hangs"]] == []
        assert oncelog("txn", "ls", "--state", "ongoing", "-o", "json", bootstrap=bootstrap).json() == []
        assert "loud-orders" in oncelog("topic", "ls", bootstrap=bootstrap).out
        del producers
        assert serving.stop().status == 0
    folder = next((tmp_path / "data").rglob("orders-0"))
    for line in RUN_AT_THREE:
        if line.startswith("log "):
            words = f"{line} {COMPLETED.get(line, '')}".replace("FOLDER", str(folder)).split()
            assert oncelog(*words).status == 0, line


def _held(bootstrap: str) -> dict[int, int]:
    """How many replicas each broker holds."""
    return {row["broker"]: row["holds"] for row in oncelog("cluster", "-o", "json", bootstrap=bootstrap).json()}
