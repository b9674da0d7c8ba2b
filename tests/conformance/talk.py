"""A scripted conversation with one broker, and the transcript of what it answered.

A conversation is a plain function that takes a `Talk`. It must do the same whatever the answers are, because it is
held with two brokers and the transcripts are compared step by step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic

from service.wire.base import Request, Response
from service.wire.codec import (
    API_NAMES,
    MalformedRequest,
    decode_response,
    encode_response,
    read_response_header,
)
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    DescribeGroupsRequest,
    DescribeTransactionsRequest,
    FindCoordinatorRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
    MetadataRequest,
    MetadataRequestTopic,
)
from service.wire.messages.versions import NEWEST_IS_UNSTABLE, VERSIONS, ApiKey
from tests.conformance.connection import PATIENCE_SECONDS, SILENCE_SECONDS, Connection, NoAnswer, api_key_of
from tests.conformance.plain import Names, Plain, plain

API_VERSIONS = ApiKey.API_VERSIONS.value
AT_ONCE_SECONDS = 0.25
BROKE_OFF = "broke off"

Conversation = Callable[["Talk"], None]
Step = dict[str, Plain]


def stable_versions(key: ApiKey) -> range:
    """The versions of an API that Kafka offers."""
    lowest, highest = VERSIONS[key]
    return range(lowest, highest + 1 - (key in NEWEST_IS_UNSTABLE))


class Sent(Generic[Response]):
    """A request that is under way."""

    def __init__(
        self, label: str, key: int, version: int, correlation_id: int, connection: Connection, at: float
    ) -> None:
        self.label = label
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.connection = connection
        self.at = at


class Talk:
    """Asks, and writes down what came back."""

    def __init__(self, port: int, name: str) -> None:
        self.name = name
        self.steps: list[Step] = []
        self._port = port
        self._names = Names(port)
        self._connections: list[Connection] = []
        self._main: Connection | None = None
        self._topics = 0

    # -- what a conversation says

    def ask(
        self,
        request: Request[Response],
        version: int | None = None,
        *,
        why: str = "",
        on: Connection | None = None,
        claimed_version: int | None = None,
        keep: Callable[[dict[str, Plain]], Plain] | None = None,
        timed: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> Response | None:
        """Send a request, write down its answer, and return it. None when there is none or it reports something else.

        `keep` reduces the answer to what is compared. `timed` writes down, too, whether it came at once.
        """
        sent = self.send(request, version, why=why, on=on, claimed_version=claimed_version)
        return self.hear(sent, keep=keep, timed=timed, patience_seconds=patience_seconds)

    def send(
        self,
        request: Request[Response],
        version: int | None = None,
        *,
        why: str = "",
        on: Connection | None = None,
        claimed_version: int | None = None,
    ) -> Sent[Response]:
        """Send a request without waiting for its answer, which `hear` fetches."""
        key = ApiKey(api_key_of(request))
        used = stable_versions(key)[-1] if version is None else version
        connection = on or self.connection
        said = used if claimed_version is None else claimed_version
        correlation_id = connection.send(request, used, claimed_version=claimed_version)
        label = f"{API_NAMES[key]} v{said}" + (f" {why}" if why else "")
        return Sent(label, key, used, correlation_id, connection, time.monotonic())

    def hear(
        self,
        sent: Sent[Response],
        *,
        keep: Callable[[dict[str, Plain]], Plain] | None = None,
        timed: bool = False,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> Response | None:
        """Write down the answer to a request that was sent before."""
        frame = sent.connection.receive(patience_seconds=patience_seconds)
        step: Step = {"step": f"{len(self.steps) + 1}. {sent.label}"}
        self.steps.append(step)
        if timed:
            step["came"] = "at once" if time.monotonic() - sent.at < AT_ONCE_SECONDS else "later"
        if isinstance(frame, NoAnswer):
            step["outcome"] = frame.value
            self._forget(sent.connection)
            return None
        response, facts = self._read(sent, frame)
        answer: Plain = facts if keep is None or response is None else keep(facts)
        step["answer"] = answer
        return response

    def raw(self, frame: bytes, why: str, *, patience_seconds: float = SILENCE_SECONDS) -> None:
        """Send a frame on a connection of its own and write down whether it is answered, refused or ignored."""
        self.raw_bytes(len(frame).to_bytes(4, "big", signed=True) + frame, why, patience_seconds=patience_seconds)

    def raw_bytes(self, data: bytes, why: str, *, patience_seconds: float = SILENCE_SECONDS) -> None:
        """The same with the bytes of a frame's length included."""
        connection = self.connect()
        connection.send_bytes(data)
        frame = connection.receive(patience_seconds=patience_seconds)
        outcome = frame.value if isinstance(frame, NoAnswer) else "answered"
        self.steps.append({"step": f"{len(self.steps) + 1}. {why}", "outcome": outcome})
        self._forget(connection)

    def note(self, what: str, value: Plain) -> None:
        """Write down something a conversation worked out."""
        self.steps.append({"step": f"{len(self.steps) + 1}. {what}", "answer": value})

    def connect(self) -> Connection:
        self._connections.append(Connection(self._port))
        return self._connections[-1]

    @property
    def connection(self) -> Connection:
        """The connection that is used when none is named; a new one after the broker closed the last."""
        if self._main is None:
            self._main = self.connect()
        return self._main

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    # -- what a conversation needs first, none of it written down

    def topic(self, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        """A topic of this conversation alone, whose id has a name in the transcript."""
        name = self.topic_name()
        configs = [CreatableTopicConfig(name=key, value=value) for key, value in (settings or {}).items()]
        new = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=configs)
        created = self.quietly(CreateTopicsRequest(topics=[new], timeout_ms=10_000))
        assert created.topics[0].error_code == ErrorCode.NONE, created
        self.topic_id(name)
        asked = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(partitions)]
        ends = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=asked)])

        def served() -> bool:
            (topic,) = self.quietly(ends, 7).topics
            return all(partition.error_code == ErrorCode.NONE for partition in topic.partitions)

        self.wait_for(served)
        return name

    def settled(self) -> None:
        """Wait until changes of metadata made so far are seen everywhere. They are taken in one after another, so a
        topic that is made now and seen has all of them before it."""
        self.topic()

    def topic_name(self) -> str:
        """The name of a topic that is not there."""
        self._topics += 1
        return f"{self.name.replace('.', '-').replace('_', '-')}-{self._topics}"

    def topic_id(self, name: str, *, partitions: int = 1) -> bytes:
        """The id of a topic; a transcript shows it as `<id of NAME>`. Waits until the broker knows of so many
        partitions and leads them all."""

        def look() -> bytes | None:
            described = self.quietly(
                MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            )
            (topic,) = described.topics
            led = [p for p in topic.partitions if p.leader_id >= 0]
            ready = topic.error_code == ErrorCode.NONE and partitions <= len(led) == len(topic.partitions)
            return topic.topic_id if ready else None

        topic_id: bytes = self.wait_for(look)
        self._names.know("id", topic_id, f"<id of {name}>")
        return topic_id

    def group(self) -> str:
        """The name of a group whose coordinator is ready."""
        name = self._coordinated("group", 0)
        ask = DescribeGroupsRequest(groups=[name])
        not_yet = {
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NOT_COORDINATOR,
        }
        self.wait_for(lambda: self.quietly(ask).groups[0].error_code not in not_yet)
        return name

    def transactional_id(self) -> str:
        """A transactional id whose coordinator is ready."""
        name = self._coordinated("transactions", 1)
        self.coordinator_loaded(name)
        return name

    def coordinator_loaded(self, transactional_id: str) -> None:
        """Wait until the coordinator of a transactional id that nobody has used says so."""
        ask = DescribeTransactionsRequest(transactional_ids=[transactional_id])
        unknown = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        self.wait_for(lambda: self.quietly(ask).transaction_states[0].error_code == unknown)

    def _coordinated(self, what: str, kind: int) -> str:
        self._topics += 1
        name = f"{self.name}-{what}-{self._topics}"
        ask = FindCoordinatorRequest(key_type=kind, coordinator_keys=[name])
        self.wait_for(lambda: self.quietly(ask).coordinators[0].error_code == ErrorCode.NONE)
        return name

    def quietly(self, request: Request[Response], version: int | None = None) -> Response:
        """Ask without writing anything down."""
        key = ApiKey(api_key_of(request))
        used = stable_versions(key)[-1] if version is None else version
        self.connection.send(request, used)
        frame = self.connection.receive()
        assert isinstance(frame, bytes), f"{API_NAMES[key]} v{used}: {frame.value}"
        _, at = read_response_header(key, used, frame)
        response: Response = decode_response(key, used, frame[at:])
        return response

    def wait_for(self, look: Callable[[], Any], *, patience_seconds: float = PATIENCE_SECONDS) -> Any:
        """Look until there is something to see."""
        until = time.monotonic() + patience_seconds
        while not (found := look()):
            assert time.monotonic() < until, f"{self.name}: waited {patience_seconds} s in vain"
            time.sleep(0.02)
        return found

    # -- reading answers

    def _read(self, sent: Sent[Response], frame: bytes) -> tuple[Response | None, dict[str, Plain]]:
        version = sent.version
        try:
            correlation_id, at = read_response_header(sent.key, version, frame)
            body = frame[at:]
            if sent.key == API_VERSIONS and body[:2] == b"\x00\x23":
                version = 0  # a question in a version that the broker lacks is answered in the first one
            response: Response = decode_response(sent.key, version, body)
        except MalformedRequest as wrong:
            return None, {"unreadable": str(wrong), "bytes": frame.hex()}
        facts = plain(response, self._names)
        if correlation_id != sent.correlation_id:
            facts["correlation"] = "the answer to another request"
        if b"".join(_joined(encode_response(sent.key, version, response))) != body:
            facts["bytes"] = "not what its fields say"
        return response, facts

    def _forget(self, connection: Connection) -> None:
        connection.close()
        if connection is self._main:
            self._main = None


def _joined(parts: list[Any]) -> Iterator[bytes]:
    return (bytes(part) for part in parts)


def hold(conversation: Conversation, *, family: str, port: int) -> list[Step]:
    """Hold one conversation; its transcript. One that breaks off says so in its last step."""
    talk = Talk(port, f"{family}.{conversation.__name__}")
    try:
        conversation(talk)
    except (AssertionError, MalformedRequest, OSError, IndexError, AttributeError) as broken:
        talk.note(BROKE_OFF, f"{type(broken).__name__}: {str(broken)[:300]}")
    finally:
        talk.close()
    return talk.steps
