"""What starts Member.java, compiled when that has changed."""

import subprocess
from pathlib import Path

from tests.peers.kafka import JARS, fetch_jars, tool_command
from tests.peers.process import CACHE

SOURCE = Path(__file__).with_name("Member.java")
CLASSES = CACHE / "java-member"


def member_command(*words: str) -> list[str]:
    compiled = CLASSES / "Member.class"
    if not compiled.exists() or compiled.stat().st_mtime < SOURCE.stat().st_mtime:
        subprocess.run(["javac", "-d", str(CLASSES), "-cp", f"{fetch_jars()}/*", str(SOURCE)], check=True)
    command = tool_command("Member", *words, heap="96m")
    command[command.index("-cp") + 1] = f"{CLASSES}:{JARS}/*"
    return command
