"""README's commands, word for word, in its order, on one broker. Only where things are is replaced: the port, and the
environment that a reader makes for a library that the tests have.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.service.cli.kit import ROOT, Serving

SECTION = "Use it"
ANOTHER_ENVIRONMENT = "/tmp/try"
EXPECTED = {
    "kcat -b": ["order 1: two apples"],
    '"billing"': ["orders", "order 2: three pears"],
    "curl": ['"outcome":"applied"', '"fruit": "fig"', "event: end"],
    "group lag": ["anna", "carl", "payments", "billing"],
}
"""What a block must print, by a word in it."""


def blocks() -> list[str]:
    (section,) = re.findall(rf"^## {SECTION}$(.*?)^## ", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    return re.findall(r"^```\n(.*?)^```$", section, flags=re.M | re.S)


def test_readmes_commands_do_what_it_says(tmp_path: Path) -> None:
    python = tmp_path / "try" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    ran = ""
    web = "-o", "http.listeners=http://127.0.0.1:0"
    with Serving("--data", str(tmp_path / "data"), "--host", "127.0.0.1", "--port", "0", *web) as serving:
        for block in blocks():
            if "pip install" in block or any(each in block and shutil.which(each) is None for each in ("kcat", "curl")):
                continue
            block = block.replace(ANOTHER_ENVIRONMENT, str(tmp_path / "try")).replace("python3 -c", f"{python} -c")
            block = block.replace("localhost:9092", serving.bootstrap)
            block = block.replace("localhost:8082", serving.facts["http"][0].removeprefix("http://"))
            done = subprocess.run(
                ["sh", "-eu", "-c", block],
                cwd=ROOT,
                env={**os.environ, "ONCELOG_BOOTSTRAP": serving.bootstrap},
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
            assert done.returncode == 0, (block, done.stdout, done.stderr)
            for word, printed in EXPECTED.items():
                if word in block:
                    assert all(each in done.stdout for each in printed), (block, done.stdout)
            ran += block
    for command in ("init_transactions", "consumer.consume", "oncelog config explain"):
        assert command in ran, f"README has changed: no block says {command}"
