"""Our codec beside kio: `python -m tests.service.wire.measure`. The numbers stand in service/wire/README.md.

The least of many short runs, because the machine is shared. Import and memory are those of fresh processes.
"""

from __future__ import annotations

import io
import subprocess
import sys
import timeit
from collections.abc import Callable
from typing import Any

from kio.serial import entity_reader, entity_writer

from service.wire import messages as m
from service.wire.base import Struct
from service.wire.codec import decode_request, decode_response, encode_request, encode_response
from service.wire.messages.schemas import MESSAGES
from tests.service.wire.oracle import kio_class, to_kio

TOPIC_ID = bytes(range(16))
PARTITIONS = range(4)


def produce(size: int) -> m.ProduceRequest:
    data = m.TopicProduceData("orders", partition_data=[m.PartitionProduceData(2, bytes(size))])
    return m.ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[data])


EXAMPLES: list[tuple[str, Struct, int]] = [
    ("Produce request, 1 partition, 500 B", produce(500), 11),
    ("Produce request, 1 partition, 100 KB", produce(100_000), 11),
    (
        "Produce response, 1 partition",
        m.ProduceResponse(
            [m.TopicProduceResponse("orders", partition_responses=[m.PartitionProduceResponse(2, 0, 9)])]
        ),
        11,
    ),
    (
        "Fetch request, 4 partitions",
        m.FetchRequest(
            topics=[m.FetchTopic(topic_id=TOPIC_ID, partitions=[m.FetchPartition(at) for at in PARTITIONS])]
        ),
        17,
    ),
    (
        "Fetch response, 4 partitions of 1 KB",
        m.FetchResponse(
            responses=[
                m.FetchableTopicResponse(
                    topic_id=TOPIC_ID,
                    partitions=[m.FetchResponsePartitionData(at, records=bytes(1000)) for at in PARTITIONS],
                )
            ]
        ),
        17,
    ),
    ("Metadata request, 1 topic", m.MetadataRequest([m.MetadataRequestTopic(name="orders")]), 12),
    (
        "Metadata response, 3 brokers, 12 partitions",
        m.MetadataResponse(
            brokers=[m.MetadataResponseBroker(at, f"broker-{at}", 9092) for at in range(3)],
            topics=[
                m.MetadataResponseTopic(
                    name="orders",
                    topic_id=TOPIC_ID,
                    partitions=[m.MetadataResponsePartition(0, at, 1, 0, [1, 2, 3], [1, 2, 3]) for at in range(12)],
                )
            ],
        ),
        12,
    ),
    (
        "OffsetCommit request, 4 partitions",
        m.OffsetCommitRequest(
            "group",
            5,
            "member",
            topics=[
                m.OffsetCommitRequestTopic(
                    "orders", partitions=[m.OffsetCommitRequestPartition(at, 7) for at in PARTITIONS]
                )
            ],
        ),
        9,
    ),
]


def least_us(work: Callable[[], object]) -> float:
    work()
    once = timeit.timeit(work, number=20) / 20
    number = max(1, int(0.002 / once))
    return min(timeit.repeat(work, number=number, repeat=150)) / number * 1e6


def row(title: str, message: Struct, version: int) -> str:
    name = type(message).__name__
    _, key, *_ = MESSAGES[name]
    assert key is not None
    decode, encode = (
        (decode_request, encode_request) if name.endswith("Request") else (decode_response, encode_response)
    )
    ours: Any = encode(key, version, message)
    data = ours if isinstance(ours, bytes) else ours[0]
    view = memoryview(bytearray(data))
    read_only = view.toreadonly()
    schema = kio_class(name, version)
    entity = to_kio(message, schema, version)
    read, write = entity_reader(schema), entity_writer(schema)
    times = (
        least_us(lambda: decode(key, version, view)),
        least_us(lambda: read(read_only, 0)),
        least_us(lambda: encode(key, version, message)),
        least_us(lambda: write(io.BytesIO(), entity)),
    )
    return f"| {title} | {times[0]:.1f} | {times[1]:.1f} | {times[2]:.1f} | {times[3]:.1f} |"


FRESH = """
import os, time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, start = resident(), time.process_time()
{code}
print(f"{{(time.process_time() - start) * 1000:.0f}} ms, {{(resident() - before) / 1e6:.1f}} MB")
"""
OURS = """
from service.wire.codec import decode_request, _new_decoder, compile_encoder, API_NAMES
from service.wire.messages.versions import VERSIONS
kept = []
for key, (first, last) in [each for each in VERSIONS.items() if each[0] < 20000]:
    for version in {versions}:
        kept.append(_new_decoder(key.value, version, "Request"))
        kept.append(compile_encoder(API_NAMES[key.value] + "Response", version))
"""
KIO = """
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from service.wire.messages.versions import VERSIONS
kept = []
for key, (first, last) in [each for each in VERSIONS.items() if each[0] < 20000]:
    for version in {versions}:
        kept.append(entity_reader(load_request_schema(key.value, version)))
        kept.append(entity_writer(load_response_schema(key.value, version)))
"""


def fresh(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", FRESH.format(code=code)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    print("| microseconds | decode, ours | decode, kio | encode, ours | encode, kio |\n|---|--:|--:|--:|--:|")
    for example in EXAMPLES:
        print(row(*example), flush=True)
    newest, every = "[last]", "range(first, last + 1)"
    print("import of the codec and the messages:", fresh("import service.wire.codec, service.wire.messages"))
    print(
        "every API, newest version: ours",
        fresh(OURS.format(versions=newest)),
        "- kio",
        fresh(KIO.format(versions=newest)),
    )
    print(
        "every API, every version: ours", fresh(OURS.format(versions=every)), "- kio", fresh(KIO.format(versions=every))
    )


if __name__ == "__main__":
    main()
