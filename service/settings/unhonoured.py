"""Kafka's keys that have no effect here, each with the reason.

There are two kinds. Keys *accepted without effect* configure a part that this broker does not have (a thread pool, the
KRaft quorum). They are harmless to ignore, and a warning names them when they are set. Keys that are *refused* would
promise something that does not hold (authentication, tiered storage), so the broker does not start with them.

A running broker takes, keeps and shows every key, except keys that Kafka does not change in a running broker. This is
because tools set the keys that they know (throttles, metric reporters), also those of other versions.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from service.settings.broker_table import ANYWHERE, BROKER_SETTINGS
from service.settings.setting import (
    MAX_INT,
    MAX_LONG,
    ConfigType,
    Mode,
    Setting,
    Status,
    boolean,
    double,
    integer,
    listing,
    long,
    text,
)

_ONE_LOOP = "One event loop serves all connections and requests; add brokers to use more cores."
_ONE_BY_ONE = "Logs are recovered one after another; where batches are small, two threads gain nothing."
_NO_PURGATORY = "Waiting requests are woken one by one; nothing collects them in rounds."
_PEERS = "What brokers ask of each other has limits of its own."
_COMPACTION = "Compaction reads some megabytes at a time and sorts what it remembers, which has no load factor."
_UNLINKED = "A reader that is being served keeps the file open; its space is free when it is done."
_SPACE = "The file system finds room as it is needed."
_LEASE = "Leadership follows the metadata store; nothing is moved in rounds."
_RENEWED = "A session is renewed often enough by itself."
_KERNEL = "The operating system sizes its buffers and queues by itself."
_PROMETHEUS = "There are no JVM metric reporters."

NO_EFFECT_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: replace(setting, status=Status.NO_EFFECT)
    for setting in (
        integer("num.network.threads", 3, _ONE_LOOP, at_least=1, mode=ANYWHERE),
        integer("num.io.threads", 8, _ONE_LOOP, at_least=1, mode=ANYWHERE),
        integer("background.threads", 10, _ONE_LOOP, at_least=1, mode=ANYWHERE),
        integer("queued.max.requests", 500, _ONE_LOOP, at_least=1),
        integer("group.coordinator.threads", 4, _ONE_LOOP, at_least=1),
        integer("group.coordinator.background.threads", 2, _ONE_LOOP, at_least=1),
        integer("num.recovery.threads.per.data.dir", 2, _ONE_BY_ONE, at_least=1, mode=ANYWHERE),
        integer("log.cleaner.threads", 1, _ONE_LOOP, at_least=0, mode=ANYWHERE),
        integer("max.connection.creation.rate", MAX_INT, "Connections are limited in number, not in rate."),
        integer("fetch.purgatory.purge.interval.requests", 1000, _NO_PURGATORY),
        integer("producer.purgatory.purge.interval.requests", 1000, _NO_PURGATORY),
        integer("delete.records.purgatory.purge.interval.requests", 1, _NO_PURGATORY),
        integer("log.cleaner.io.buffer.size", 524288, _COMPACTION, at_least=0, mode=ANYWHERE),
        double("log.cleaner.io.buffer.load.factor", 0.9, _COMPACTION, mode=ANYWHERE),
        integer(
            "log.flush.start.offset.checkpoint.interval.ms",
            60000,
            "A log's new start is durable before DeleteRecords is answered, not in rounds.",
            at_least=0,
        ),
        long("log.segment.delete.delay.ms", 60000, _UNLINKED, at_least=0, mode=ANYWHERE),
        boolean("log.preallocate", False, _SPACE, mode=ANYWHERE),
        integer(
            "transaction.abort.timed.out.transaction.cleanup.interval.ms",
            10000,
            "A transaction is ended when its time is up, not in rounds.",
            at_least=1,
        ),
        integer("offsets.load.buffer.size", 5242880, "Partitions are read a segment at a time.", at_least=1),
        integer(
            "transaction.state.log.load.buffer.size",
            5242880,
            "Partitions are read a segment at a time.",
            at_least=1,
        ),
        integer("offsets.topic.compression.codec", 0, "Records of __consumer_offsets are stored uncompressed."),
        integer("num.replica.fetchers", 1, "A follower has one connection to each leader.", at_least=1, mode=ANYWHERE),
        integer("replica.socket.receive.buffer.bytes", 65536, _KERNEL),
        boolean("controlled.shutdown.enable", True, "A broker that stops always says so first."),
        integer("request.timeout.ms", 30000, _PEERS),
        integer("broker.heartbeat.interval.ms", 2000, _RENEWED),
        integer("socket.send.buffer.bytes", 102400, _KERNEL),
        integer("socket.receive.buffer.bytes", 102400, _KERNEL),
        integer("socket.listen.backlog.size", 50, _KERNEL, at_least=1),
        listing(
            "group.coordinator.rebalance.protocols",
            ("classic", "consumer"),
            "Both group protocols, classic and consumer, are always offered.",
            one_of=("consumer", "classic", "share", "streams"),
        ),
        integer("offsets.commit.timeout.ms", 5000, "A commit is answered when enough replicas hold it.", at_least=1),
        integer("metrics.num.samples", 2, _PROMETHEUS, at_least=1),
        long("metrics.sample.window.ms", 30000, _PROMETHEUS, at_least=1),
        text("metrics.recording.level", "INFO", _PROMETHEUS),
        integer("quota.window.num", 11, "There are no quotas yet.", at_least=1),
        integer("quota.window.size.seconds", 1, "There are no quotas yet.", at_least=1),
    )
}


SET_BY_TOOLS: dict[str, Setting[Any]] = {
    setting.name: setting
    for setting in (
        long(
            "leader.replication.throttled.rate",
            MAX_LONG,
            "Bytes a second that followers get of what its topic's leader.replication.throttled.replicas names.",
            at_least=0,
            mode=ANYWHERE,
        ),
        long(
            "follower.replication.throttled.rate",
            MAX_LONG,
            "Bytes a second that this broker copies of what its topic's follower.replication.throttled.replicas names.",
            at_least=0,
            mode=ANYWHERE,
        ),
        long(
            "replica.alter.log.dirs.io.max.bytes.per.second",
            MAX_LONG,
            "Bytes a second that this broker copies of partitions which move to another of its folders.",
            at_least=0,
            mode=ANYWHERE,
        ),
    )
}
"""Keys that are no part of a broker's configuration file: they are stored in a running cluster, and shown only then."""

_QUORUM = "there is no KRaft quorum: the metadata store keeps the cluster's state and elects the controller"
_SHARE = "share groups are not offered"
_STREAMS = "the streams group protocol is not offered"
NO_SECURITY = "this broker can't authenticate, authorize or encrypt yet, and ignoring this would leave it open"

# A name that ends in a dot stands for all names that begin with it.
NO_EFFECT: dict[str, str] = {
    "zookeeper.connection.timeout.ms": "the first answer may take as long as a session lasts",
    "zookeeper.max.in.flight.requests": "there is nothing to tune about ZooKeeper",
    "zookeeper.set.acl": "with zookeeper.digest what the cluster makes is its own, without it everybody's",
    "process.roles": _QUORUM,
    "controller.": _QUORUM,
    "metadata.": _QUORUM,
    "initial.broker.registration.timeout.ms": _QUORUM,
    "internal.metadata.": _QUORUM,
    "server.max.startup.time.ms": _QUORUM,
    "early.start.listeners": _QUORUM,
    "unstable.": "there are no unstable versions or features to switch on",
    "group.share.": _SHARE,
    "share.": _SHARE,
    "group.streams.": _STREAMS,
    "group.coordinator.": "the group coordinator has nothing to tune here",
    "group.consumer.": "there is nothing more to tune about consumer groups",
    "add.partitions.to.txn.": "the coordinator retries by itself",
    "kafka.metrics.": _PROMETHEUS,
    "metric.reporters": _PROMETHEUS,
    "telemetry.": "clients' telemetry is not collected",
    "replication.quota.": "there are no quotas yet",
    "alter.log.dirs.replication.quota.": "there are no quotas yet",
    "controller.quota.": "there are no quotas yet",
    "num.replica.alter.log.dirs.threads": "partitions move between folders one after the other",
    "log.dir.failure.timeout.ms": "a failed folder is taken out of service at once",
    "log.initial.task.delay.ms": "housekeeping begins with its first interval",
    "log.cleaner.io.max.bytes.per.second": "compaction is not throttled",
    "log.local.retention.": "there is no tiered storage",
    "remote.": "there is no tiered storage",
    "follower.fetch.": "there is no tiered storage",
    "unclean.leader.election.interval.ms": _LEASE,
    "max.connections.per.ip.overrides": "every address has the same limit",
    "connections.max.reauth.ms": "nothing is authenticated",
    "connection.failed.authentication.delay.ms": "nothing is authenticated",
    "socket.connection.setup.timeout.": "a connection to another broker has limits of its own",
    "log.message.format.version": "records have one format, v2",
    "inter.broker.protocol.version": "brokers of one version speak alike",
    "log.message.downconversion.enable": "records have one format, v2",
    "log.message.timestamp.difference.max.ms": "use log.message.timestamp.before.max.ms and …after.max.ms",
    "security.inter.broker.protocol": "connections between brokers are neither authenticated nor encrypted yet",
    "cordoned.log.dirs": "new partitions go to the folder that holds the fewest",
}
REFUSED: dict[str, str] = {
    "zookeeper.ssl.": "connections to ZooKeeper are not encrypted yet",
    "zookeeper.clientCnxnSocket": "connections to ZooKeeper are not encrypted yet",
    "authorizer.class.name": NO_SECURITY,
    "super.users": NO_SECURITY,
    "allow.everyone.if.no.acl.found": NO_SECURITY,
    "sasl.": NO_SECURITY,
    "ssl.": NO_SECURITY,
    "delegation.token.": NO_SECURITY,
    "principal.builder.class": NO_SECURITY,
    "security.providers": NO_SECURITY,
    "listener.name.": "settings of single listeners are not offered yet",
    "create.topic.policy.class.name": "policies in Java can't run here",
    "alter.config.policy.class.name": "policies in Java can't run here",
    "client.quota.callback.class": "callbacks in Java can't run here",
    "config.providers": "give secrets as environment variables instead",
}
# Values of refused keys that say what holds anyway, or that switch the feature off. These are accepted.
HARMLESS_VALUES: dict[str, tuple[str, ...]] = {
    "authorizer.class.name": ("",),
    "allow.everyone.if.no.acl.found": ("true",),
    "ssl.client.auth": ("none",),
    "sasl.enabled.mechanisms": ("",),
    "config.providers": ("",),
}
# The reverse: values of keys without effect that would promise something, and are therefore refused.
REFUSED_VALUES: dict[str, tuple[tuple[str, ...], str]] = {
    "remote.log.storage.system.enable": (("true",), "there is no tiered storage"),
    "process.roles": (("controller",), "a process that is only a controller does not exist here: any broker can be it"),
    "security.inter.broker.protocol": (("SSL", "SASL_PLAINTEXT", "SASL_SSL"), NO_SECURITY),
}


NEVER_DYNAMIC = (
    "process.roles",
    "controller.",
    "metadata.",
    "security.",
    "authorizer.class.name",
    "delegation.token.",
    "create.topic.policy.class.name",
    "alter.config.policy.class.name",
    "client.quota.callback.class",
)
"""Keys of the tables above that Kafka does not change in a running broker."""
_SECRET_WORDS = ("password", "passphrase", "secret", "jaas", "ssl.keystore.key")


def _reasons(table: Mapping[str, str]) -> Callable[[str], str | None]:
    """Looks up names in a table. Clients name any number of keys that are in none, so that is quick."""
    beginnings = tuple(key for key in table if key.endswith("."))

    def reason_of(name: str) -> str | None:
        if not name.startswith(beginnings):
            return table.get(name)
        return table.get(name) or next(table[key] for key in beginnings if name.startswith(key))

    return reason_of


_no_effect = _reasons(NO_EFFECT)
_refused = _reasons(REFUSED)
_never_dynamic = _reasons(dict.fromkeys(NEVER_DYNAMIC, "Kafka does not change it in a running broker"))


def is_known(name: str) -> bool:
    """Whether a name is a key of oncelog or Kafka, with or without effect."""
    return (
        name in BROKER_SETTINGS
        or name in NO_EFFECT_SETTINGS
        or any(reason_of(name) for reason_of in (_no_effect, _refused))
    )


def idle_setting(name: str) -> Setting[Any]:
    """A key without effect, as a running broker takes, keeps and shows it. As in Kafka, the value of an unknown key is
    treated as a secret.
    """
    setting = NO_EFFECT_SETTINGS.get(name) or SET_BY_TOOLS.get(name)
    if setting is not None:
        return setting
    reason = _no_effect(name) or _refused(name)
    secret = reason is None or any(word in name for word in _SECRET_WORDS)
    return Setting(
        name,
        ConfigType.UNKNOWN if secret else ConfigType.STRING,
        None,
        None,
        str,
        reason or "it is not a key of oncelog or Kafka",
        mode=Mode.READ_ONLY if _never_dynamic(name) else ANYWHERE,
        status=Status.NO_EFFECT,
    )


def unhonoured(given: Mapping[str, str], problems: list[str]) -> Iterator[str]:
    """Warnings for keys without effect. Problems with keys that must not be ignored are added to `problems`."""
    for name, value in given.items():
        words = set(value.replace(",", " ").split())
        values, why = REFUSED_VALUES.get(name, ((), ""))
        if words and words <= set(values):
            problems.append(f"{name}={value} is refused: {why}")
        elif name in BROKER_SETTINGS:
            if name == "controller.listener.names" and words:
                yield f"{name} has no effect: {_QUORUM}; listeners with these names are not opened"
        elif (idle := NO_EFFECT_SETTINGS.get(name)) is not None:
            yield f"{name} has no effect: {idle.doc}"
        elif (reason := _no_effect(name)) is not None:
            yield f"{name} has no effect: {reason}"
        elif not is_known(name):
            yield f"{name} is not a key of oncelog or Kafka and is ignored"
        elif value.strip().lower() in HARMLESS_VALUES.get(name, ()):
            yield f"{name} has no effect: it says what holds anyway"
        else:
            problems.append(f"{name} is refused: {_refused(name)}")
