"""A scene that fails with a connection open, or leaves one, fails its test at once.

What uvloop finds open when it closes is told by a warning. Raised as an error in the middle of that, it left the
connection open, and the loop waited for it for ever, where no limit of a test's time could end it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

SCENE = """
import asyncio, pathlib, sys
from service.settings.broker import Endpoint
from service.web.app import WebServer
from tests.service.api.admin_stage import on_stage

async def scene(stage):
    await stage.create("t")
    server = WebServer(stage.broker, connections_max=10)
    await server.start([Endpoint("HTTP", "127.0.0.1", 0, "HTTP")])
    stage.broker.ready.set()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.endpoints[0].port)
    writer.write(b"GET /v1/topics/t/stream HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    assert sys.argv[2] == "leaves it", "the scene fails"

on_stage(pathlib.Path(sys.argv[1]), scene)
"""


@pytest.mark.parametrize(("what", "told"), [("fails", "the scene fails"), ("leaves it", "unclosed resource")])
def test_a_scene_with_an_open_stream_ends(tmp_path: Path, what: str, told: str) -> None:
    scene = [sys.executable, "-W", "error", "-c", SCENE, str(tmp_path), what]
    ended = subprocess.run(scene, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert told in ended.stderr
