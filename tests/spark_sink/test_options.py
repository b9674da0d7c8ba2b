"""What is wrong with options is said with their names, before any broker is asked."""

from __future__ import annotations

import pytest

from spark_sink.errors import OptionError
from spark_sink.options import AtOffsets, AtTimestamps, Edge, SourceOptions, source_options

BROKER = {"kafka.bootstrap.servers": "localhost:9092"}


def read(*, streaming: bool = False, subscribe: str | None = "t", **options: str) -> SourceOptions:
    """Option names with two underscores for a dot."""
    given = {name.replace("__", "."): value for name, value in options.items()}
    if subscribe is not None:
        given["subscribe"] = subscribe
    return source_options({**BROKER, **given}, streaming=streaming)


def test_what_is_read_when_nothing_is_said() -> None:
    batch, stream = read(), read(streaming=True)
    assert (batch.starting, batch.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert (stream.starting, stream.ending) == (Edge.LATEST, Edge.LATEST)
    assert (batch.committed, batch.fail_on_data_loss, batch.headers, batch.group) == (True, True, False, None)
    assert batch.client.bootstrap == (("localhost", 9092),)


def test_names_are_read_in_any_case() -> None:
    options = source_options(
        {"Kafka.Bootstrap.Servers": "[::1]:1,PLAINTEXT://b:2", "SUBSCRIBE": "a, b", "startingoffsets": "Latest"},
        streaming=True,
    )
    assert options.client.bootstrap == (("::1", 1), ("b", 2))
    assert options.subscription.topics == {"a", "b"}
    assert options.starting is Edge.LATEST


def test_places_by_offset_and_by_time() -> None:
    by_offset = read(subscribe=None, assign='{"t": [0, 1]}', startingOffsets='{"t": {"0": 5, "1": -2}}')
    assert by_offset.starting == AtOffsets("startingOffsets", {("t", 0): 5, ("t", 1): -2})
    by_time = read(
        startingOffsets="earliest", startingTimestamp="17", endingOffsetsByTimestamp='{"t": {"0": 19}}',
        startingOffsetsByTimestampStrategy="latest",
    )  # fmt: skip
    assert by_time.starting == AtTimestamps("startingTimestamp", None, 17)
    assert by_time.ending == AtTimestamps("endingOffsetsByTimestamp", {("t", 0): 19})
    assert by_time.latest_where_no_timestamp


def test_what_is_set_is_understood() -> None:
    options = read(
        kafka__isolation__level="read_uncommitted", failOnDataLoss="false", includeHeaders="true", maxTriggerDelay="2h",
        minOffsetsPerTrigger="3", maxOffsetsPerTrigger="4", kafka__request__timeout__ms="1500",
        kafkaConsumer__pollTimeoutMs="2500", kafka__fetch__max__bytes="1000", kafka__client__id="me",
    )  # fmt: skip
    assert (options.committed, options.fail_on_data_loss, options.headers) == (False, False, True)
    assert (options.min_offsets_per_trigger, options.max_offsets_per_trigger) == (3, 4)
    assert options.max_trigger_delay_ms == 7_200_000
    assert (options.client.request_timeout_seconds, options.client.patience_seconds) == (1.5, 2.5)
    assert (options.fetch_bytes, options.client.client_id) == (1000, "me")


def test_a_group_is_named_or_made_from_a_prefix() -> None:
    assert read(kafka__group__id="g", groupIdPrefix="p").group == "g"
    made = read(groupIdPrefix="p").group
    assert made is not None
    assert made.startswith("p-")
    assert made == read(groupIdPrefix="p").group != read(groupIdPrefix="p", subscribe="other").group


def test_what_has_no_meaning_here_and_what_the_sink_reads_is_let_through() -> None:
    read(kafka__max__poll__records="5", fetchOffset__numRetries="3", topic="out", txnAppId="a")
    read(kafka__security__protocol="PLAINTEXT", maxOffsetsPerTrigger=str(2**40))


@pytest.mark.parametrize(
    ("named", "options", "why"),
    [
        ("kafka.bootstrap.servers", {"kafka__bootstrap__servers": ""}, "must name the brokers"),
        ("kafka.bootstrap.servers", {"kafka__bootstrap__servers": "localhost"}, "'localhost' is not host:port"),
        ("kafka.bootstrap.servers", {"kafka__bootstrap__servers": " , "}, "must name the brokers"),
        ("kafka.bootstrap.servers", {"kafka__bootstrap__servers": "SSL://b:1"}, "'SSL://b:1' is not host:port"),
        ("kafka.bootstrap.servers", {"kafka__bootstrap__servers": "", "bootstrap__servers": "b:1"}, "did you mean"),
        ("path", {"path": "t"}, ".option('subscribe', '…').load()"),
        ("subscribe", {"subscribe": None, "topic": "t"}, "To read it, say subscribe 't'; in SQL in a view of its own"),
        ("subscribe", {"subscribe": None}, "or assign or subscribePattern must be given"),
        ("subscribe", {"subscribePattern": "t.*"}, "given along with subscribePattern"),
        ("subscribe", {"subscribe": " , "}, "names no topic"),
        ("subscribePattern", {"subscribe": None, "subscribePattern": "("}, "not a regular expression"),
        ("assign", {"subscribe": None, "assign": "{}"}, "names no partition"),
        ("assign", {"subscribe": None, "assign": '{"t": [true]}'}, "must be JSON like"),
        ("assign", {"subscribe": None, "assign": "t"}, "must be JSON like"),
        ("assign", {"subscribe": None, "assign": '{"t": [-1]}'}, "must be JSON like"),
        ("startingOffsets", {"startingOffsets": "first"}, "must be earliest, latest or JSON"),
        ("startingOffsets", {"startingOffsets": '{"t": {"0": -3}}'}, "must be JSON like"),
        ("startingOffsets", {"startingOffsets": '{"t": [1]}'}, "must be JSON like"),
        ("startingOffsets", {"startingOffsets": f'{{"t": {{"0": {2**63}}}}}'}, "must be JSON like"),
        ("startingOffsets", {"startingOffsets": f'{{"t": {{"{2**31}": 0}}}}'}, "must be JSON like"),
        ("startingOffsets", {"startingOffsets": "latest"}, "a batch query can't start at the latest"),
        ("startingOffsets", {"startingOffsets": '{"t": {"0": -1}}'}, "a batch query can't start at the latest"),
        ("startingOffsets", {"subscribe": None, "assign": '{"t": [0, 1]}', "startingOffsets": '{"t": {"0": 1}}'},
         "names nothing for t-1, which is read"),
        ("endingOffsets", {"subscribe": None, "assign": '{"t": [0]}', "endingOffsets": '{"t": {"0": 1, "7": 1}}'},
         "names t-7, which is not read"),
        ("endingOffsets", {"endingOffsets": "earliest"}, "can't end at the earliest"),
        ("endingOffsets", {"endingOffsets": "latest", "streaming": True}, "a streaming query has no end"),
        ("endingTimestamp", {"endingTimestamp": "5", "streaming": True}, "a streaming query has no end"),
        ("startingTimestamp", {"startingTimestamp": "-1"}, "must be at least 0"),
        ("startingTimestamp", {"startingTimestamp": str(2**63)}, "must be at most"),
        ("kafka.request.timeout.ms", {"kafka__request__timeout__ms": str(2**31)}, "must be at most 2147483647"),
        ("startingOffsetsByTimestampStrategy", {"startingOffsetsByTimestampStrategy": "first"}, "error or latest"),
        ("failOnDataLoss", {"failOnDataLoss": "no"}, "must be true or false, not 'no'"),
        ("minPartitions", {"minPartitions": "0"}, "must be at least 1"),
        ("maxRecordsPerPartition", {"maxRecordsPerPartition": "many"}, "'many' is not a whole number"),
        ("minOffsetsPerTrigger", {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "more than"),
        ("maxTriggerDelay", {"maxTriggerDelay": "soon"}, "not a duration"),
        ("kafka.isolation.level", {"kafka__isolation__level": "all"}, "read_committed or read_uncommitted"),
        ("kafka.auto.offset.reset", {"kafka__auto__offset__reset": "latest"}, "set startingOffsets instead"),
        ("kafka.enable.auto.commit", {"kafka__enable__auto__commit": "true"}, "is not supported"),
        ("kafka.key.deserializer", {"kafka__key__deserializer": "x"}, "is not supported"),
        ("kafka.value.deserializer", {"kafka__value__deserializer": "x"}, "is not supported"),
        ("kafka.interceptor.classes", {"kafka__interceptor__classes": "x"}, "is not supported"),
        ("kafka.security.protocol", {"kafka__security__protocol": "SSL"}, "must be plaintext"),
        ("kafka.sasl.mechanism", {"kafka__sasl__mechanism": "PLAIN"}, "not supported yet"),
        ("startingoffset", {"startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ("kafka.nonsense", {"kafka__nonsense": "1"}, "there is no such option"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(named: str, options: dict[str, str], why: str) -> None:
    with pytest.raises(OptionError, match=r"^option") as error:
        read(**options)  # type: ignore[arg-type]
    assert error.value.option == named
    assert why in str(error.value)
