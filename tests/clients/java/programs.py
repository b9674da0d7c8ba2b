"""What starts a program of one Java file on Kafka's client library; it is compiled when it has changed."""

import subprocess
from pathlib import Path

from tests.peers.kafka import JARS, fetch_jars, tool_command
from tests.peers.process import CACHE

CLASSES = CACHE / "java-programs"


def java_program(source: Path, *words: str) -> list[str]:
    compiled = CLASSES / f"{source.stem}.class"
    if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
        subprocess.run(["javac", "-d", str(CLASSES), "-cp", f"{fetch_jars()}/*", str(source)], check=True)
    command = tool_command(source.stem, *words, heap="96m")
    command[command.index("-cp") + 1] = f"{CLASSES}:{JARS}/*"
    return command
