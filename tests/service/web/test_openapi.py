"""The API as it tells of itself is the API as it is."""

from __future__ import annotations

import gzip
import html
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest
import requests
import zstandard
from openapi_spec_validator import OpenAPIV31SpecValidator
from schemathesis import GenerationMode

from tests.service.web.exploring import explore
from tests.service.web.kit import ROOT, Http, Served

CASES = 2
"""Of each operation; `make fuzz-http` makes thousands."""


def test_the_document_is_openapi_and_holds_every_operation(http: Http) -> None:
    document = http.get("/openapi.json").json
    OpenAPIV31SpecValidator(document).validate()
    assert set(document["paths"]["/v1/transactions/{txn}/batches/{number}"]) == {"put"}
    operations = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert len(operations) == len(set(operations))
    assert not [name for name in document["components"]["schemas"] if "." in name], "two types have one name"


def test_the_document_says_how_long_a_body_may_be(http: Http) -> None:
    paths = http.get("/openapi.json").json["paths"]
    for path, size_bytes in {"/v1/topics": 262144, "/v1/groups/{group}/members/{member}/offsets": 1048576}.items():
        assert f"longer than {size_bytes} bytes" in paths[path]["post"]["responses"]["413"]["description"]


def test_the_document_says_which_numbers_may_be_asked_for_as_strings(http: Http) -> None:
    """It depended on the version of msgspec."""
    schemas = http.get("/openapi.json").json["components"]["schemas"]
    for kind, names in {"Page": ["next_offset", "high_watermark"], "RecordOut": ["offset", "producer_id"]}.items():
        for name in names:
            assert schemas[kind]["properties"][name]["type"] == ["integer", "string"], name
    assert schemas["RecordOut"]["properties"]["partition"]["type"] == "integer"


def test_the_document_says_what_headers_tell_and_which_lines_come_back(http: Http) -> None:
    """They were not in it, and a PUT's key, without which it is refused, was optional."""
    document = http.get("/openapi.json").json
    paths, schemas = document["paths"], document["components"]["schemas"]
    for path, kind in (("/v1/topics/{topic}/records", "Report"), ("/v1/records", "Report")):
        lines = paths[path]["post"]["responses"]["200"]["content"]["application/x-ndjson"]["schema"]
        assert lines["contentSchema"] == {"$ref": f"#/components/schemas/{kind}"}
    assert {"line", "problem", "offset"} <= schemas["Report"]["properties"].keys()
    told = {
        name: {(method, path) for path, methods in paths.items() for method, operation in methods.items()
               if name in operation["responses"].get(status, {}).get("headers", ())}
        for name, status in {
            "Location": "201", "ETag": "200", "Batch-Replayed": "200", "Next-Offset": "200", "Commit-Token": "200",
            "Idempotency-Replayed": "200",
        }.items()
    }  # fmt: skip
    assert all(told.values()), told
    assert ("put", "/v1/topics/{topic}/records") in told["Idempotency-Replayed"]
    for methods in paths.values():
        assert all("Retry-After" in each["responses"]["default"]["headers"] for each in methods.values())
    for method, is_needed in {"post": False, "put": True}.items():
        (key,) = (
            each for each in paths["/v1/topics/{topic}/records"][method]["parameters"]
            if each["name"] == "Idempotency-Key"
        )  # fmt: skip
        assert key["required"] is is_needed


def test_every_answer_of_a_transaction_says_its_outcome(http: Http) -> None:
    document = http.get("/openapi.json").json
    checked = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            is_one = "{txn}" in path or method != "get"
            if operation["tags"] != ["transactions"] or not is_one or path.endswith(":find-hanging"):
                continue
            for status, answer in operation["responses"].items():
                if status.startswith("2"):
                    content = answer["content"]["application/json"]
                    schema = document["components"]["schemas"][content["schema"]["$ref"].rpartition("/")[2]]
                    assert "outcome" in schema["properties"], (method, path, status)
                    checked += 1
    assert checked > 7


def test_people_find_every_operation_and_problem_on_a_page(http: Http) -> None:
    page = http.get("/docs")
    assert page.headers["Content-Type"].startswith("text/html")
    for path in http.get("/openapi.json").json["paths"]:
        assert path in page.json
    assert "409" in http.get("/problems/producer-fenced").json
    assert "http://" not in page.json.replace(http.url, "").replace("http://localhost", "")


@pytest.mark.skipif(not which("curl"), reason="no curl")
def test_commands_on_the_page_that_have_an_example_can_be_copied(http: Http) -> None:
    http.post("/v1/topics", {"name": "orders"})
    page = html.unescape(http.get("/docs").json)
    assert "`" not in page
    commands = [
        each for each in re.findall(r"<pre>(curl [^<]* --json [^<]*)</pre>", page) if not re.search("…|{txn}", each)
    ]
    assert len(commands) == 5
    for command in commands:
        told = subprocess.run(
            ["bash", "-c", f"{command} -s -o /dev/null -w '%{{http_code}}'"], capture_output=True, text=True
        )
        assert told.stdout in ("200", "201", "409"), command


def test_every_page_of_the_documentation_is_served_and_no_other_file(http: Http) -> None:
    listed = re.findall(r"<a href='/docs/([^']+)'>", http.get("/docs").json)
    assert {"start.md", "llms.txt", "runbooks/OncelogLsoStuck.md"} <= set(listed)
    for name in listed:
        page = http.get(f"/docs/{name}")
        assert (page.status, page.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert page.json == (ROOT / "docs" / name).read_text()
    for name in ("pictures/again.svg", "..%2fREADME.md", "runbooks/..%2f..%2fREADME.md", "%2fetc%2fpasswd", "%00"):
        assert (name, http.get(f"/docs/{name}").status) == (name, 404)


@pytest.mark.timeout(600)  # half a minute of the processor's time, on a machine that has other things to do
def test_generated_requests_find_no_server_error_and_no_undocumented_answer(served: Served) -> None:
    asked, done = explore(served, CASES)
    assert asked[GenerationMode.POSITIVE] > 50
    assert asked[GenerationMode.NEGATIVE] > 50
    looks = [name for name in done if re.fullmatch(r"GET /v1/topics/\{topic\}(/offsets|/configs)?", name)]
    assert len(looks) == 3
    assert all(done[name] for name in looks), "no request was made of something that is there"


def test_answers_are_packed_as_the_client_likes(http: Http, topic: str) -> None:
    assert http.post(f"/v1/topics/{topic}/records", {"records": [{"value": "x" * 5000}]}).status == 200
    for codec, unpack in (("gzip", gzip.decompress), ("zstd", lambda body: zstandard.decompress(body))):
        answer = requests.get(
            f"{http.url}/v1/topics/{topic}/partitions/0/records",
            headers={"Accept-Encoding": codec},
            stream=True,
            timeout=30,
        )
        assert answer.headers["Content-Encoding"] == codec
        assert b"xxxx" in unpack(answer.raw.read(decode_content=False))


@pytest.mark.parametrize(
    ("encoding", "pack"), [("zstd", zstandard.compress), ("gzip", gzip.compress), ("X-GZip", gzip.compress)]
)
def test_bodies_may_be_packed(http: Http, topic: str, encoding: str, pack: Callable[[bytes], bytes]) -> None:
    """`x-gzip` is gzip, as RFC 9110 has it; it was not known."""
    body = pack(b'{"records":[{"value":1}]}')
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    assert http.post(f"/v1/topics/{topic}/records", body, headers=headers).status == 200


def test_pages_of_other_origins_may_ask_only_if_they_are_named(http: Http, tmp_path: Path) -> None:
    origin = {"Origin": "https://example.org"}
    assert "Access-Control-Allow-Origin" not in http.get("/livez", headers=origin).headers
    served = Served(tmp_path / "data", **{"http.cors.origins": "https://example.org"})
    client = Http(served.url)
    try:
        asked = {**origin, "Access-Control-Request-Method": "POST"}
        answer = client.ask("OPTIONS", "/v1/records", headers=asked)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "https://example.org")
        named = "content-type,record-header-trace,ce-id"
        answer = client.ask("OPTIONS", "/v1/records", headers={**asked, "Access-Control-Request-Headers": named})
        assert answer.headers["Access-Control-Allow-Headers"] == named
        of_event = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-specversion": "1.0"}
        assert client.post("/v1/topics/t/events", b"x", headers=of_event).status == 200
        event = client.get("/v1/topics/t/partitions/0/events/0", headers=origin)
        assert "ce-source" in event.headers["Access-Control-Expose-Headers"].split(", ")
        for media in ("text/event-stream", "application/x-ndjson"):
            more = {**origin, "Accept": media, "X-Request-Id": "7"}
            stream = client.get("/v1/topics/t/stream?from=earliest&until=end", headers=more)
            assert (stream.status, stream.headers["Access-Control-Allow-Origin"]) == (200, "https://example.org")
            assert stream.headers["X-Request-Id"] == "7"
        other = {"Origin": "https://example.com"}
        assert "Access-Control-Allow-Origin" not in client.get("/livez", headers=other).headers
    finally:
        client.session.close()
        served.stop()
