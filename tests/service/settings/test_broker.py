"""A broker's configuration: what is understood, what is refused, who wins, and that Kafka's own file starts us."""

import math
from pathlib import Path

import pytest

from service.process import limits_of
from service.settings.broker import BrokerConfig, Origin, document_settings
from service.settings.broker_table import BROKER_SETTINGS, Durability
from service.settings.setting import ConfigError, Mode
from service.settings.sources import load_config, parse_properties, read_environment
from service.settings.unhonoured import NO_EFFECT, NO_EFFECT_SETTINGS, REFUSED

# The settings of the server.properties that Kafka 4.3 ships, comments left out.
KAFKAS_OWN_FILE = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\\
    SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_kafkas_own_server_properties_starts_us_and_names_what_does_nothing(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN_FILE)
    config = load_config(file, {})
    assert config.node_id == 1
    assert config.data_folders == ("/tmp/kraft-combined-logs",)
    assert [endpoint.listener for endpoint in config.endpoints] == ["PLAINTEXT"]
    assert [(one.host, one.port) for one in config.advertised_endpoints()] == [("localhost", 9092)]
    named = sorted(warning.split()[0] for warning in config.warnings)
    assert named == [
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "process.roles",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
    ]


def test_values_are_attributes_of_their_type() -> None:
    config = BrokerConfig(
        {"num.partitions": " 3 ", "auto.create.topics.enable": "FALSE", "log.cleanup.policy": "compact, delete"}
    )
    assert config.num_partitions == 3
    assert config.auto_create_topics_enable is False
    assert config.log_cleanup_policy == ("compact", "delete")
    assert config.log_retention_ms is None
    assert config.durability is Durability.AUTO
    assert config.log_cleaner_min_cleanable_ratio == 0.5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num.partitions", "0", "Invalid value 0 for configuration num.partitions: Value must be at least 1"),
        ("num.partitions", "1_0", "Invalid value 1_0 for configuration num.partitions: Not a number of type INT"),
        (
            "log.segment.bytes",
            "99999999999",
            "Invalid value 99999999999 for configuration log.segment.bytes: Not a number of type INT",
        ),
        (
            "delete.topic.enable",
            "yes",
            "Invalid value yes for configuration delete.topic.enable: Expected value to be either true or false",
        ),
        (
            "log.durability",
            "none",
            "Invalid value none for configuration log.durability: String must be one of: auto, fsync, os",
        ),
        ("log.cleanup.policy", "compact,", "Configuration 'log.cleanup.policy' values must not be empty."),
        ("log.dirs", "a,,b", "Configuration 'log.dirs' values must not be empty."),
    ],
)
def test_a_bad_value_is_refused_in_kafkas_words(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({name: value})
    assert str(caught.value) == message


def test_a_bad_value_is_told_with_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("# of broker 1\nlog.retention.ms=abc\nlisteners=PLAINTEXT://:9092\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file, {"KAFKA_NUM_PARTITIONS": "x", "ONCELOG_SSL_KEYSTORE_LOCATION": "k"}, ["fetch.max.bytes=y"])
    assert {line.rsplit(" (", 1)[1] for line in str(caught.value).splitlines()} == {
        f"from {file}:2)",
        "from KAFKA_NUM_PARTITIONS)",
        "from ONCELOG_SSL_KEYSTORE_LOCATION)",
        "from the command line)",
    }
    file.write_text("node.id=1\nbroker.id\\\n=2\n")
    with pytest.raises(ConfigError, match=rf"must say the same \(from {file}:1, {file}:2\)$"):
        load_config(file, {})
    toml = tmp_path / "oncelog.toml"
    toml.write_text("[log.retention]\nms = 'abc'\n")
    with pytest.raises(ConfigError, match=rf"LONG \(from {toml}\)$"):
        load_config(toml, {})


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig({"num.partitions": "x", "fetch.max.bytes": "1", "authorizer.class.name": "org.example.Authorizer"})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("authorizer.class.name", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        ("sasl.enabled.mechanisms", "PLAIN"),
        ("ssl.keystore.location", "/etc/kafka/keystore.jks"),
        ("listeners", "SSL://:9093"),
        ("zookeeper.ssl.client.enable", "true"),
        ("process.roles", "controller"),
        ("remote.log.storage.system.enable", "true"),
        ("security.inter.broker.protocol", "SASL_SSL"),
    ],
)
def test_what_must_not_be_ignored_refuses_the_start(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name if name != "listeners" else "listener SSL"):
        BrokerConfig({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("authorizer.class.name", ""), ("remote.log.storage.system.enable", "false"), ("ssl.client.auth", "none")],
)
def test_a_refused_key_that_asks_for_nothing_is_only_named(name: str, value: str) -> None:
    (warning,) = BrokerConfig({name: value}).warnings
    assert warning.startswith(name)


def test_a_controllers_listener_is_plaintext_unless_a_map_says_otherwise() -> None:
    """As Kafka has it: its small server.properties have no listener.security.protocol.map."""
    small = {"listeners": "PLAINTEXT://:9092,CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}
    assert [endpoint.listener for endpoint in BrokerConfig(small).endpoints] == ["PLAINTEXT"]
    with pytest.raises(ConfigError, match="listener CONTROLLER has no security protocol"):
        BrokerConfig({**small, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"})


def test_an_unknown_key_is_named() -> None:
    assert BrokerConfig({"nmu.partitions": "3"}).warnings == (
        "nmu.partitions is not a key of oncelog or Kafka and is ignored",
    )


@pytest.mark.parametrize("name", ["default.replication.factor", "min.insync.replicas"])
def test_a_setting_that_one_broker_cannot_live_up_to_is_named(name: str) -> None:
    """As it stands in the settings of every Kafka cluster of three."""
    (warning,) = BrokerConfig({name: "2"}).warnings
    assert warning.startswith(f"{name} is 2, but there is one broker")
    assert not BrokerConfig({name: "1"}).warnings


@pytest.mark.parametrize("unit", ["ms", "minutes", "hours"])
def test_to_keep_nothing_is_refused(unit: str) -> None:
    with pytest.raises(ConfigError, match=f"log.retention.{unit} must be unlimited"):
        BrokerConfig({f"log.retention.{unit}": "0"})
    assert BrokerConfig({f"log.retention.{unit}": "-1"})


def test_a_negative_idle_time_means_for_ever() -> None:
    assert limits_of(BrokerConfig({"connections.max.idle.ms": "-1"})).idle_timeout_s == math.inf
    assert limits_of(BrokerConfig({"connections.max.idle.ms": "1500"})).idle_timeout_s == 1.5


def test_later_sources_win_and_origins_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "oncelog.toml"
    file.write_text(
        'num.partitions = 2\n[log]\ndirs = ["a", "b"]\n[log.retention]\nhours = 1\n[auto.create.topics]\nenable '
        "= false\n"
    )
    environment = {"KAFKA_NUM_PARTITIONS": "3", "ONCELOG_LOG_RETENTION_HOURS": "5", "KAFKA_HEAP_OPTS": "-Xmx1g"}
    config = load_config(file, environment, ["num.partitions=4"])
    assert (config.num_partitions, config.log_retention_hours) == (4, 5)
    assert config.data_folders == ("a", "b")
    assert config.auto_create_topics_enable is False
    assert config.warnings == ()
    origins = {entry.name: entry.origin for entry in config.describe()}
    assert origins["num.partitions"] is Origin.COMMAND_LINE
    assert origins["log.retention.hours"] is Origin.ENVIRONMENT
    assert origins["log.dirs"] is Origin.FILE
    assert origins["fetch.max.bytes"] is Origin.DEFAULT


def test_environment_names_are_read_as_in_kafkas_images() -> None:
    given = {"KAFKA_LOG_RETENTION_MS": "1", "KAFKA_A__B___C": "2", "ONCELOG_A__B___C": "3", "OTHER_KEY": "4"}
    read = {name: one.value for name, one in read_environment(given).items()}
    assert read == {"log.retention.ms": "1", "a_b-c": "3"}


def test_properties_are_read_as_java_reads_them() -> None:
    content = "# no\n! no\n a = b = c \nd:e\\u0041\\\n   f\ng h\\\\\n\nempty=\nlast\n#x\\\nk\\=y=z"
    expected = {"a": "b = c", "d": "eAf", "g": "h\\", "empty": "", "last": "", "k=y": "z"}
    read = parse_properties(content)
    assert {name: value for name, (value, _) in read.items()} == expected
    assert [line for _, line in read.values()] == [3, 4, 6, 8, 9, 11]


@pytest.mark.parametrize("override", ["num.partitions", "=3", " =3"])
def test_an_override_without_a_key_or_value_is_refused(override: str) -> None:
    with pytest.raises(ConfigError, match="is not key=value"):
        load_config(None, {}, [override])


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        load_config(tmp_path / "nothing.properties", {})
    broken = tmp_path / "broken.toml"
    broken.write_text("= 3")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        load_config(broken, {})
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n10.0.0.2 broker-2\n")
    with pytest.raises(ConfigError, match="hosts is no configuration"):
        load_config(hosts, {})


def test_broker_id_is_node_id() -> None:
    assert BrokerConfig({"broker.id": "7"}).node_id == 7
    with pytest.raises(ConfigError, match="must say the same"):
        BrokerConfig({"broker.id": "7", "node.id": "8"})


def test_listeners_without_a_host_are_advertised_at_the_default_host() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://:9092"})
    assert [(one.host, one.port) for one in config.endpoints] == [("", 9092)]
    assert [(one.host, one.port) for one in config.advertised_endpoints("box")] == [("box", 9092)]


def test_an_ipv6_listener_keeps_its_address() -> None:
    (endpoint,) = BrokerConfig({"listeners": "PLAINTEXT://[::1]:9092"}).endpoints
    assert (endpoint.host, endpoint.port) == ("::1", 9092)


@pytest.mark.parametrize(
    "given",
    [
        {"listeners": "PLAINTEXT:9092"},
        {"listeners": "PLAINTEXT://localhost:99999"},
        {"listeners": "MINE://localhost:9092"},
        {"listeners": "PLAINTEXT://localhost:\N{SUPERSCRIPT TWO}"},
        {"listeners": "PLAINTEXT://localhost:1", "advertised.listeners": "PLAINTEXT://broker-1..svc:1"},
        {"listeners": "PLAINTEXT://localhost:1", "http.listeners": f"http://{'a' * 64}:1"},
        {"listeners": "PLAINTEXT://localhost:1", "advertised.listeners": "PLAINTEXT://0.0.0.0:1"},
        {"listeners": "PLAINTEXT://localhost:1", "advertised.listeners": "SSL://localhost:1"},
        {"listeners": "PLAINTEXT://a:1,PLAINTEXT://b:2"},
        {"group.min.session.timeout.ms": "10", "group.max.session.timeout.ms": "9"},
        {"group.consumer.heartbeat.interval.ms": "45000", "group.consumer.max.heartbeat.interval.ms": "50000"},
        {"group.consumer.session.timeout.ms": "44999"},
        {"group.consumer.heartbeat.interval.ms": "15001"},
        {"group.consumer.max.session.timeout.ms": "44000"},
    ],
)
def test_contradictions_refuse_the_start(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig(given)


def test_dynamic_values_lie_over_static_ones_and_go_again() -> None:
    config = BrokerConfig({"message.max.bytes": "1000", "num.partitions": "2"})
    assert config.set_dynamic({"message.max.bytes": "2000"}, {}) == ()
    assert config.message_max_bytes == 2000
    config.set_dynamic({"message.max.bytes": "2000"}, {"message.max.bytes": "3000", "num.partitions": "9"})
    assert (config.message_max_bytes, config.num_partitions) == (3000, 2)
    config.set_dynamic({}, {})
    assert config.message_max_bytes == 1000


def test_a_stored_value_that_is_no_longer_valid_is_told_and_not_used() -> None:
    config = BrokerConfig()
    problems = config.set_dynamic({"message.max.bytes": "-5"}, {})
    assert len(problems) == 1
    assert config.message_max_bytes == 1048588


def test_two_configurations_do_not_share_values() -> None:
    one, other = BrokerConfig({"num.partitions": "2"}), BrokerConfig()
    assert (one.num_partitions, other.num_partitions) == (2, 1)


def test_no_key_stands_in_two_tables() -> None:
    names = [*BROKER_SETTINGS, *NO_EFFECT_SETTINGS, *NO_EFFECT, *REFUSED]
    assert len(names) == len(set(names))


def test_every_default_is_valid_and_every_key_has_its_words() -> None:
    for setting in (*BROKER_SETTINGS.values(), *NO_EFFECT_SETTINGS.values()):
        assert setting.doc.endswith("."), setting.name
        if setting.default_text is not None:
            assert setting.parse(setting.default_text) == setting.default, setting.name


def test_the_documentation_names_every_key() -> None:
    page = document_settings()
    for name in (*BROKER_SETTINGS, *NO_EFFECT_SETTINGS):
        assert f"`{name}`" in page
    assert all(setting.mode is not Mode.PER_BROKER for setting in BROKER_SETTINGS.values())
