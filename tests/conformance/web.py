"""The same calls of version 2 of the REST Proxy to oncelog and to Strimzi's Kafka Bridge, answers compared.

    python -m tests.conformance.web                            oncelog against the bridge's answers recorded earlier
    python -m tests.conformance.web --bridge http://HOST:8080  oncelog against a bridge that runs
    python -m tests.conformance.web --bridge URL --record      write the bridge's answers anew

Ends with 0 when every difference is explained in tests/conformance/web.md. The bridge may stand before oncelog or
Apache Kafka, with its own settings: everything that the calls need is written through it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import requests

from tests.conformance.compare import Transcripts, differences, read_excuses, sort_out
from tests.conformance.plain import Plain
from tests.conformance.talk import Step
from tests.peers.process import QUICK_SETTINGS
from tests.service.web.kit import Served

EXPLAINED = Path(__file__).with_name("web.md")
RECORDED = Path(__file__).with_name("recorded") / "web.json"
MEDIA = "application/vnd.kafka.v2+json"
PATIENCE_S = 100.0


class Calls:
    """What one program asks, and what it is answered: names of its own are left out."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._mark = uuid.uuid4().hex[:8]
        self.topic, self.group = f"topic-{self._mark}", f"group-{self._mark}"
        self.instance = f"/consumers/{self.group}/instances/one"
        self.steps: list[Step] = []

    def ask(
        self, method: str, path: str, body: Any = None, accept: str = MEDIA, media: str = MEDIA
    ) -> requests.Response:
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": media})
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        return requests.request(method, self._url + path, data=content, headers=headers, timeout=PATIENCE_S)

    def say(self, step: str, method: str, path: str, body: Any = None, **more: str) -> Any:
        answer = self.ask(method, path, body, **more)
        self._note(step, answer)
        return answer.json() if answer.ok and answer.content else None

    def _note(self, step: str, answer: requests.Response) -> None:
        text = answer.text.replace(self._url, "<url>").replace(self._mark, "<mark>")
        told: Plain = json.loads(text) if answer.content else None
        media = answer.headers.get("Content-Type", "").partition(";")[0]
        self.steps.append({"step": step, "answer": {"status": answer.status_code, "media": media, "body": told}})

    def write(self, step: str, form: str, *records: Any, partition: int | None = None) -> None:
        path = f"/topics/{self.topic}" + ("" if partition is None else f"/partitions/{partition}")
        self.say(step, "POST", path, {"records": list(records)}, media=f"application/vnd.kafka.{form}.v2+json")

    def make(self, step: str, **wishes: Any) -> None:
        self.say(step, "POST", f"/consumers/{self.group}", {"name": "one", "auto.offset.reset": "earliest", **wishes})

    def read(self, step: str, form: str, count: int) -> None:
        """The first answer's form and all records, in their order: how many come at once is chance."""
        media = f"application/vnd.kafka.{form}.v2+json"
        deadline = time.monotonic() + PATIENCE_S
        records: list[Any] = []
        while len(records) < count:
            answer = self.ask("GET", self.instance + "/records?timeout=1000", accept=media)
            if not answer.ok or time.monotonic() > deadline:
                self._note(step, answer)
                return
            records += [each | {"timestamp": "<time>"} if "timestamp" in each else each for each in answer.json()]
        text = json.dumps(sorted(records, key=lambda each: (each["partition"], each["offset"])))
        told: Plain = json.loads(text.replace(self._mark, "<mark>"))
        media = answer.headers["Content-Type"].partition(";")[0]
        self.steps.append({"step": step, "answer": {"status": 200, "media": media, "body": told}})

    @property
    def place(self) -> dict[str, Any]:
        return {"topic": self.topic, "partition": 0}


def produced(calls: Calls) -> None:
    calls.write("json", "json", {"key": "k", "value": {"x": [1, None]}}, {"value": "text"}, partition=0)
    calls.write("binary", "binary", {"key": "aw==", "value": "AAE="}, partition=0)
    calls.write("text", "text", {"value": "plain"}, partition=0)
    calls.write("a partition that is not there", "json", {"value": {}}, partition=99)
    calls.write("base64 that is none", "binary", {"value": "?"}, partition=0)
    calls.write("no records", "json", partition=0)
    calls.write("a form that is not there", "xml", {"value": {}}, partition=0)


def subscribed(calls: Calls) -> None:
    calls.write("written", "json", {"key": "a", "value": [1]}, {"value": None}, {"value": {"x": "y"}}, partition=0)
    calls.make("made", format="json")
    calls.make("made twice", format="json")
    calls.say("subscribed", "POST", calls.instance + "/subscription", {"topics": [calls.topic]})
    calls.read("read", "json", 3)
    calls.say("what is subscribed", "GET", calls.instance + "/subscription")
    calls.say("read as another form", "GET", calls.instance + "/records", accept="application/vnd.kafka.binary.v2+json")
    calls.say("read as anything", "GET", calls.instance + "/records", accept="*/*")
    calls.say("read as text", "GET", calls.instance + "/records", accept="text/plain")
    pattern = {"topic_pattern": calls.topic}
    calls.say("both kinds", "POST", calls.instance + "/subscription", {"topics": [calls.topic], **pattern})
    calls.say("no kind", "POST", calls.instance + "/subscription", {})
    calls.say("assigned besides", "POST", calls.instance + "/assignments", {"partitions": [calls.place]})
    calls.say("unsubscribed", "DELETE", calls.instance + "/subscription")
    calls.say("nothing subscribed", "GET", calls.instance + "/subscription")
    calls.say("deleted", "DELETE", calls.instance)
    calls.say("deleted twice", "DELETE", calls.instance)


def assigned(calls: Calls) -> None:
    calls.write("written", "binary", {"key": "aw==", "value": "AAE="}, {"value": "Ag=="}, partition=0)
    calls.make("made", format="binary")
    calls.say(
        "read without anything", "GET", calls.instance + "/records", accept="application/vnd.kafka.binary.v2+json"
    )
    calls.say(
        "moved without anything", "POST", calls.instance + "/positions", {"offsets": [{**calls.place, "offset": 0}]}
    )
    calls.say("assigned", "POST", calls.instance + "/assignments", {"partitions": [calls.place]})
    calls.say("subscribed besides", "POST", calls.instance + "/subscription", {"topics": [calls.topic]})
    calls.read("read", "binary", 2)
    for step, where in (("to the beginning", "beginning"), ("to the end", "end")):
        calls.say(step, "POST", f"{calls.instance}/positions/{where}", {"partitions": [calls.place]})
    calls.say("to an offset", "POST", calls.instance + "/positions", {"offsets": [{**calls.place, "offset": 1}]})
    calls.read("read from there", "binary", 1)
    elsewhere = {"topic": calls.topic, "partition": 77}
    calls.say("elsewhere", "POST", calls.instance + "/positions", {"offsets": [{**elsewhere, "offset": 1}]})
    calls.say("an offset below 0", "POST", calls.instance + "/positions", {"offsets": [{**calls.place, "offset": -1}]})
    calls.say("committed", "POST", calls.instance + "/offsets", {"offsets": [{**calls.place, "offset": 1}]})
    calls.say("committed all", "POST", calls.instance + "/offsets")
    calls.say("deleted", "DELETE", calls.instance)


def gone_on(calls: Calls) -> None:
    calls.write("written", "json", {"value": ["a"]}, {"value": ["b"]}, {"value": ["c"]}, partition=0)
    calls.make("made", format="json")
    calls.say("assigned", "POST", calls.instance + "/assignments", {"partitions": [calls.place]})
    calls.say("committed", "POST", calls.instance + "/offsets", {"offsets": [{**calls.place, "offset": 0}]})
    calls.say("deleted", "DELETE", calls.instance)
    calls.make("made again", format="json")
    calls.say("assigned again", "POST", calls.instance + "/assignments", {"partitions": [calls.place]})
    calls.read("what comes next", "json", 2)
    calls.say("committed as read", "POST", calls.instance + "/offsets")
    calls.say("deleted again", "DELETE", calls.instance)
    calls.write("written later", "json", {"value": ["d"]}, partition=0)
    calls.make("made once more", format="json")
    calls.say("subscribed", "POST", calls.instance + "/subscription", {"topic_pattern": calls.topic[:-1] + "."})
    calls.read("what comes then", "json", 1)
    calls.say("left", "DELETE", calls.instance)


def refused(calls: Calls) -> None:
    group = f"/consumers/{calls.group}"
    calls.say("reset", "POST", group, {"auto.offset.reset": "smallest"})
    calls.say("form", "POST", group, {"format": "avro"})
    calls.say("unknown field", "POST", group, {"no.such.thing": 1})
    calls.say("no json", "POST", group, b"{")
    calls.say("an array", "POST", group, b"[]")
    calls.say("another media type", "POST", group, b"{}", media="text/plain")
    calls.say("nobody reads", "GET", calls.instance + "/records", accept="application/vnd.kafka.json.v2+json")
    calls.say("nobody subscribes", "POST", calls.instance + "/subscription", {"topics": ["x"]})
    calls.say("nobody commits", "POST", calls.instance + "/offsets")
    calls.make("made")
    calls.say("topics of another type", "POST", calls.instance + "/subscription", {"topics": "x"})
    calls.say("partitions of another type", "POST", calls.instance + "/assignments", {"partitions": {}})
    calls.say(
        "timeout of another type",
        "GET",
        calls.instance + "/records?timeout=soon",
        accept="application/vnd.kafka.binary.v2+json",
    )
    calls.say("deleted", "DELETE", calls.instance)


CONVERSATIONS: Sequence[Callable[[Calls], None]] = (produced, subscribed, assigned, gone_on, refused)


def hold_with(url: str) -> Transcripts:
    held: dict[str, list[Step]] = {}
    for conversation in CONVERSATIONS:
        calls = Calls(url)
        conversation(calls)
        held[f"web.{conversation.__name__}"] = calls.steps
    return held


def hold_with_ours() -> Transcripts:
    with tempfile.TemporaryDirectory(prefix="oncelog-web-") as folder:
        served = Served(Path(folder) / "data", **QUICK_SETTINGS)
        try:
            return hold_with(served.url)
        finally:
            served.stop()


def read_recorded() -> Mapping[str, Sequence[Step]]:
    found: dict[str, list[Step]] = json.loads(RECORDED.read_text())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.web", description=__doc__.partition("\n")[0])
    parser.add_argument("--bridge", metavar="URL", help="a bridge that runs")
    parser.add_argument("--record", action="store_true", help="write its answers to tests/conformance/recorded")
    chosen = parser.parse_args()
    oracle = read_recorded() if chosen.bridge is None else hold_with(chosen.bridge)
    if chosen.record:
        RECORDED.write_text(json.dumps(oracle, indent=1, ensure_ascii=False) + "\n")
        return 0
    found = list(differences(oracle, hold_with_ours()))
    unexplained, idle = sort_out(found, read_excuses(EXPLAINED))
    for one in unexplained:
        print(one)
    for line in idle:
        print(f"{EXPLAINED.name}: nothing differs any more at {line!r}")
    steps = sum(map(len, oracle.values()))
    print(f"{steps} steps compared, {len(found)} differences, {len(unexplained)} of them unexplained")
    return int(bool(unexplained or idle))


if __name__ == "__main__":
    sys.exit(main())
