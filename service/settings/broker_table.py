"""The table of a broker's keys: every key that has an effect here.

Names, types, defaults and checks are Apache Kafka's (4.3) where Kafka has the key (but COORDINATORS_SEGMENT_BYTES).
Parsing, `oncelog config`, DescribeConfigs, the checks of AlterConfigs and the documentation page are read from these
rows, so a key is described here and nowhere else. Keys that Kafka has and we do not are in
`service.settings.unhonoured`. Values are read through `service.settings.broker.BrokerConfig`.
"""

from enum import Enum
from typing import Any

from service.settings.setting import (
    MAX_INT,
    MAX_LONG,
    ConfigError,
    ConfigType,
    Mode,
    Setting,
    boolean,
    double,
    integer,
    invalid,
    listing,
    long,
    optional_integer,
    optional_listing,
    optional_long,
    optional_text,
    password,
    text,
)

ANYWHERE = Mode.CLUSTER_WIDE
RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
COORDINATORS_SEGMENT_BYTES = 8 << 20
"""A coordinator that begins reads its partition, and only sealed segments are compacted. With Kafka's 100 MB it may
read 700,000 records, which takes it seconds; here some 60,000, which takes it a quarter of one.
"""
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Durability(Enum):
    """When an `acks=all` write counts as kept (design, decision 8)."""

    AUTO = "auto"
    FSYNC = "fsync"
    OS = "os"


def check_gzip_level(name: str, value: int) -> None:
    if value != -1 and not 1 <= value <= 9:
        raise invalid(name, value, "Value must be between 1 and 9 or equal to -1")


def check_retention(name: str, value: int) -> None:
    """Refuse 0, which would delete everything at once. A user who writes it means -1."""
    if value == 0:
        raise ConfigError(f"{name} must be unlimited (-1) or, equal or greater than 1")


class BrokerSettings:
    """The implemented keys. An attribute of this class is the `Setting`; the same attribute of a `BrokerConfig` is its
    value.
    """

    # --- who and where ---
    node_id = integer(
        "node.id",
        -1,
        "The number of this broker in its cluster. -1: the broker takes a free one at its first start and keeps "
        "it in its data folder.",
        at_least=-1,
    )
    broker_id = integer("broker.id", -1, "The older name of node.id.")
    broker_rack = optional_text(
        "broker.rack", "Where this broker stands (rack, zone): replicas of a partition are spread over racks."
    )
    listeners = listing(
        "listeners",
        ("PLAINTEXT://:9092",),
        "Where clients connect: NAME://host:port, several separated by commas. Without a host: every address of "
        "the machine. Port 0: any free port.",
    )
    advertised_listeners = optional_listing(
        "advertised.listeners",
        "What clients are told to connect to, where that differs from listeners (containers, proxies, other networks).",
    )
    listener_security_protocol_map = listing(
        "listener.security.protocol.map",
        tuple(f"{protocol}:{protocol}" for protocol in SECURITY_PROTOCOLS),
        "Which security protocol each listener name speaks.",
    )
    controller_listener_names = listing(
        "controller.listener.names",
        (),
        "Listeners of KRaft controllers. There are none here: listeners with these names are not opened.",
    )

    http_listeners = listing(
        "http.listeners",
        ("auto",),
        "Where the HTTP API is: http://host:port, several separated by commas. auto: on the host of the first "
        "listener, 1010 below its port, so that 8082 goes with 9092 and 8083 with 9093, and any free port with port 0. "
        "Empty: there is none.",
    )
    http_max_body_bytes = integer(
        "http.max.body.bytes",
        16 << 20,
        "The largest body of an HTTP request that is read as a whole; NDJSON streams may be as long as they like.",
        at_least=1024,
    )

    http_cors_origins = listing(
        "http.cors.origins",
        (),
        "Pages of other origins that may use the HTTP API from a browser: https://example.org, several separated by "
        "commas; *: all of them. Browsers are served under these names, too: a proxy's belongs here.",
    )
    http_max_streams = integer(
        "http.max.streams", 5000, "Streams that may be open at one broker; further ones are refused.", at_least=0
    )
    http_consumer_instance_timeout_ms = integer(
        "http.consumer.instance.timeout.ms",
        300_000,
        "A consumer instance of the REST Proxy's version 2 whose client is silent for so long is gone.",
        at_least=1000,
    )
    http_idempotency_retention_ms = long(
        "http.idempotency.retention.ms",
        86_400_000,
        "For how long an Idempotency-Key is remembered, with the answer to its request. The topic __http_idempotency "
        "is kept for that long, whatever is set for it or for all topics.",
        at_least=60_000,
    )

    # --- data ---
    log_dir = listing("log.dir", ("data",), "The data folder, unless log.dirs names one.")
    log_dirs = optional_listing("log.dirs", "The data folders, separated by commas.")
    log_durability = text(
        "log.durability",
        "auto",
        "When a write with acks=all is answered. auto: after an fsync where fewer than two replicas must hold "
        "it, after replication otherwise; "
        "fsync: always after an fsync; os: once the operating system has it (lost if the machine loses power).",
        one_of=tuple(durability.value for durability in Durability),
    )
    log_reserve_bytes = long(
        "log.reserve.bytes",
        16 << 20,
        "Room that is kept back in each data folder, as a file: when the disk is full it is given up for what must go "
        "on (decisions, markers, committed offsets, snapshots, the metadata). While less than this is left besides "
        "it, producers are refused with an error that makes them send again. At most a sixteenth of the disk; 0: "
        "nothing is kept back.",
        at_least=0,
    )
    otlp_endpoint = optional_text(
        "otlp.endpoint",
        "Where spans of the transactions that this broker coordinates are sent by OpenTelemetry's OTLP over HTTP:"
        " http://collector:4318. Not set: nothing is followed, nothing sent.",
    )
    store_url = optional_text(
        "store.url",
        "Where the cluster's metadata lives, unless zookeeper.connect is set: sqlite:///FILE for a single broker,"
        " postgresql://USER:PASSWORD@HOST,HOST/DATABASE for a cluster. Not set: meta.db, in the data folder.",
    )
    zookeeper_connect = optional_text(
        "zookeeper.connect",
        "The ZooKeeper ensemble that keeps the cluster's metadata: host:port,host:port, and a chroot if it is shared"
        " (host:port,host:port/oncelog).",
    )
    zookeeper_digest = password(
        "zookeeper.digest", "user:password for ZooKeeper: what the cluster makes there is then this user's alone."
    )
    zookeeper_session_timeout_ms = integer(
        "zookeeper.session.timeout.ms",
        6000,
        "A broker that ZooKeeper hasn't heard of for so long is taken for dead, and others lead what it led.",
        at_least=100,
    )
    broker_session_timeout_ms = integer(
        "broker.session.timeout.ms",
        6000,
        "The same where the metadata is in PostgreSQL, or `serve --brokers` keeps it.",
        at_least=100,
    )
    unclean_leader_election_enable = boolean(
        "unclean.leader.election.enable",
        False,
        "Whether a replica that is not in sync may lead when all that are in sync are gone. What it lacks is lost.",
        mode=ANYWHERE,
    )
    auto_leader_rebalance_enable = boolean(
        "auto.leader.rebalance.enable",
        True,
        "Whether the first replica of each partition leads it again once it is in sync after an absence.",
    )
    leader_imbalance_check_interval_seconds = long(
        "leader.imbalance.check.interval.seconds",
        300,
        "How often it is looked whether partitions are led by their first replicas.",
        at_least=1,
    )

    # --- topics ---
    auto_create_topics_enable = boolean(
        "auto.create.topics.enable",
        True,
        "Whether a topic that a client asks for by name is created with the defaults when it does not exist.",
    )
    delete_topic_enable = boolean("delete.topic.enable", True, "Whether topics may be deleted.")
    num_partitions = integer(
        "num.partitions", 1, "Partitions of a topic that was created without saying how many.", at_least=1
    )
    default_replication_factor = integer(
        "default.replication.factor", 1, "Replicas of a partition whose topic was created without saying how many."
    )
    max_request_partition_size_limit = integer(
        "max.request.partition.size.limit",
        2000,
        "The most partitions that one DescribeTopicPartitions answer lists.",
        at_least=1,
    )

    # --- the log: defaults of topics ---
    message_max_bytes = integer(
        "message.max.bytes",
        1048588,
        "The largest record batch a topic takes, as it is stored.",
        at_least=0,
        mode=ANYWHERE,
    )
    compression_type = text(
        "compression.type",
        "producer",
        "How batches are stored: as the producer compressed them (producer), or recompressed with the codec named.",
        one_of=COMPRESSION_TYPES,
        mode=ANYWHERE,
    )
    compression_gzip_level = integer(
        "compression.gzip.level",
        -1,
        "gzip's level where compression.type is gzip; -1 is the codec's own default.",
        also=check_gzip_level,
        mode=ANYWHERE,
    )
    compression_lz4_level = integer(
        "compression.lz4.level",
        9,
        "lz4's level where compression.type is lz4.",
        at_least=1,
        at_most=17,
        mode=ANYWHERE,
    )
    compression_zstd_level = integer(
        "compression.zstd.level",
        3,
        "zstd's level where compression.type is zstd.",
        at_least=-131072,
        at_most=22,
        mode=ANYWHERE,
    )
    min_insync_replicas = integer(
        "min.insync.replicas",
        1,
        "In-sync replicas, the leader included, without which a write with acks=all is refused.",
        at_least=1,
        mode=ANYWHERE,
    )
    inter_broker_listener_name = optional_text(
        "inter.broker.listener.name",
        "The listener at which other brokers are asked; without a name, the first of each.",
    )
    replica_lag_time_max_ms = long(
        "replica.lag.time.max.ms",
        30000,
        "A replica that has not caught up with its leader for so long is in sync no longer.",
    )
    replica_selector_class = optional_text(
        "replica.selector.class",
        "Where consumers read that name their rack (client.rack): with this class from a replica in sync there, if "
        "there is one; without it from the leader.",
        one_of=(RACK_AWARE_SELECTOR,),
    )
    replica_fetch_min_bytes = integer(
        "replica.fetch.min.bytes", 1, "So much there should be before a leader answers the fetch of a follower."
    )
    replica_fetch_wait_max_ms = integer(
        "replica.fetch.wait.max.ms", 500, "So long at most a leader waits for it. Less than replica.lag.time.max.ms."
    )
    replica_fetch_max_bytes = integer(
        "replica.fetch.max.bytes", 1048576, "What a follower asks for of a partition in one fetch.", at_least=0
    )
    replica_fetch_response_max_bytes = integer(
        "replica.fetch.response.max.bytes",
        10485760,
        "What a follower asks for of all partitions in one fetch.",
        at_least=0,
    )
    replica_fetch_backoff_ms = integer(
        "replica.fetch.backoff.ms",
        1000,
        "The longest pause of a follower before it asks again a leader, or for a partition, that it asked in vain.",
        at_least=0,
    )
    replica_socket_timeout_ms = integer(
        "replica.socket.timeout.ms",
        30000,
        "A leader that has not answered a follower for so long, and its own waiting, is connected to anew.",
    )
    replica_high_watermark_checkpoint_interval_ms = long(
        "replica.high.watermark.checkpoint.interval.ms",
        5000,
        "How often it is written down what is known to be committed.",
    )
    log_segment_bytes = integer(
        "log.segment.bytes",
        1073741824,
        "A segment is closed and a new one begun before it would grow beyond this.",
        at_least=1048576,
        mode=ANYWHERE,
    )
    log_roll_ms = optional_long(
        "log.roll.ms",
        "A segment is closed this long after its first record, full or not. Not set: log.roll.hours.",
        at_least=1,
        mode=ANYWHERE,
    )
    log_roll_hours = integer("log.roll.hours", 168, "log.roll.ms in hours; the finer key wins.", at_least=1)
    log_roll_jitter_ms = optional_long(
        "log.roll.jitter.ms",
        "Up to this much is taken off log.roll.ms by chance, so that segments do not all roll at once. Not set: "
        "log.roll.jitter.hours.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_roll_jitter_hours = integer(
        "log.roll.jitter.hours", 0, "log.roll.jitter.ms in hours; the finer key wins.", at_least=0
    )
    log_retention_ms = optional_long(
        "log.retention.ms",
        "Segments whose newest record is older are deleted; -1 keeps them for ever. Not set: log.retention.minutes.",
        also=check_retention,
        mode=ANYWHERE,
    )
    log_retention_minutes = optional_integer(
        "log.retention.minutes",
        "log.retention.ms in minutes; the finer key wins. Not set: log.retention.hours.",
        also=check_retention,
    )
    log_retention_hours = integer(
        "log.retention.hours",
        168,
        "log.retention.ms in hours; the finer keys win. -1: no limit.",
        also=check_retention,
    )
    log_retention_bytes = long(
        "log.retention.bytes",
        -1,
        "The oldest segments of a partition are deleted while the rest is larger than this; -1: no limit.",
        mode=ANYWHERE,
    )
    log_retention_check_interval_ms = long(
        "log.retention.check.interval.ms",
        300000,
        "How often segments are looked through for what may go; every ten seconds while the disk is nearly full.",
        at_least=1,
    )
    log_cleanup_policy = listing(
        "log.cleanup.policy",
        ("delete",),
        "delete: old segments go; compact: the newest record of every key stays; both may be named.",
        one_of=("compact", "delete"),
        mode=ANYWHERE,
    )
    log_cleaner_enable = boolean(
        "log.cleaner.enable", True, "Whether topics with cleanup.policy=compact are compacted."
    )
    log_cleaner_backoff_ms = long(
        "log.cleaner.backoff.ms",
        15000,
        "How long compaction rests when nothing needs it.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_cleaner_dedupe_buffer_size = long(
        "log.cleaner.dedupe.buffer.size",
        134217728,
        "About how much memory compaction takes. What it must remember beyond that is in a file meanwhile.",
        at_least=1048576,
        mode=ANYWHERE,
    )
    log_cleaner_min_cleanable_ratio = double(
        "log.cleaner.min.cleanable.ratio",
        0.5,
        "A log is compacted once this share of it has not been compacted yet.",
        at_least=0,
        at_most=1,
        mode=ANYWHERE,
    )
    log_cleaner_delete_retention_ms = long(
        "log.cleaner.delete.retention.ms",
        86400000,
        "How long a compacted topic keeps tombstones, so that readers see the deletion.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_cleaner_min_compaction_lag_ms = long(
        "log.cleaner.min.compaction.lag.ms",
        0,
        "A record younger than this is not compacted.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_cleaner_max_compaction_lag_ms = long(
        "log.cleaner.max.compaction.lag.ms",
        MAX_LONG,
        "A record older than this makes its log due for compaction, however little there is to gain.",
        at_least=1,
        mode=ANYWHERE,
    )
    log_index_interval_bytes = integer(
        "log.index.interval.bytes",
        4096,
        "One index entry for so many bytes: smaller finds faster and indexes grow. At most it is 65536, and at"
        " least a 262144th of the segment.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_index_size_max_bytes = integer(
        "log.index.size.max.bytes",
        10485760,
        "A segment is closed when an index of it would grow beyond this.",
        at_least=4,
        mode=ANYWHERE,
    )
    log_flush_interval_messages = long(
        "log.flush.interval.messages",
        MAX_LONG,
        "A partition is fsynced after so many records, whatever log.durability says.",
        at_least=1,
        mode=ANYWHERE,
    )
    log_flush_interval_ms = optional_long(
        "log.flush.interval.ms",
        "The longest a record stays without fsync, whatever log.durability says. Not set: no limit.",
        mode=ANYWHERE,
    )
    log_flush_scheduler_interval_ms = long(
        "log.flush.scheduler.interval.ms", MAX_LONG, "The older fallback of log.flush.interval.ms."
    )
    log_flush_offset_checkpoint_interval_ms = integer(
        "log.flush.offset.checkpoint.interval.ms",
        60000,
        "How often it is recorded up to where each log is known to be durable: a start after a crash reads what is "
        "above.",
        at_least=0,
    )
    log_message_timestamp_type = text(
        "log.message.timestamp.type",
        "CreateTime",
        "Whose clock stamps records: the producer's (CreateTime) or the broker's (LogAppendTime).",
        one_of=("CreateTime", "LogAppendTime"),
        mode=ANYWHERE,
    )
    log_message_timestamp_before_max_ms = long(
        "log.message.timestamp.before.max.ms",
        MAX_LONG,
        "A producer's timestamp may lie this far behind the broker's clock; older records are refused.",
        at_least=0,
        mode=ANYWHERE,
    )
    log_message_timestamp_after_max_ms = long(
        "log.message.timestamp.after.max.ms",
        3600000,
        "A producer's timestamp may lie this far ahead of the broker's clock; later records are refused.",
        at_least=0,
        mode=ANYWHERE,
    )

    # --- connections and requests ---
    socket_request_max_bytes = integer(
        "socket.request.max.bytes",
        104857600,
        "The largest Produce request; a longer one closes the connection before anything is read. Other requests may"
        " have 8 MiB, and no more than this.",
        at_least=1,
    )
    queued_max_request_bytes = long(
        "queued.max.request.bytes",
        536870912,
        "What long requests (over 32 KiB) may hold of memory while they are read and wait to be written, over all"
        " connections. Beyond that others are not read; one at a time is, so that all get on. Bodies that come and"
        " answers that wait by HTTP may hold as much again; beyond that those end whose clients have not moved for"
        " longest. -1: no limit.",
    )
    max_connections = integer(
        "max.connections",
        MAX_INT,
        "Open connections, over all listeners. Who comes then is connected, but not heard before another leaves.",
        at_least=0,
        mode=ANYWHERE,
    )
    max_connections_per_ip = integer(
        "max.connections.per.ip",
        MAX_INT,
        "Open connections from one address, over all listeners. Further ones are closed. Those of other brokers count,"
        " too: each takes at most half of it for HTTP clients that wait for records of this one.",
        at_least=0,
        mode=ANYWHERE,
    )
    connections_max_idle_ms = long(
        "connections.max.idle.ms", 600000, "A connection without a request for so long is closed; below 0: none is."
    )
    fetch_max_bytes = integer(
        "fetch.max.bytes", 57671680, "The most that one fetch returns, beyond the first batch.", at_least=1024
    )
    max_incremental_fetch_session_cache_slots = integer(
        "max.incremental.fetch.session.cache.slots",
        1000,
        "Fetch sessions kept; clients beyond these send all their partitions with every fetch.",
        at_least=0,
    )

    # --- groups and offsets ---
    group_initial_rebalance_delay_ms = integer(
        "group.initial.rebalance.delay.ms",
        3000,
        "How long the first rebalance of an empty classic group waits for more members.",
    )
    group_min_session_timeout_ms = integer(
        "group.min.session.timeout.ms", 6000, "The shortest session timeout a classic member may ask for."
    )
    group_max_session_timeout_ms = integer(
        "group.max.session.timeout.ms", 1800000, "The longest session timeout a classic member may ask for."
    )
    group_max_size = integer("group.max.size", MAX_INT, "Members of one classic group.", at_least=1)
    group_consumer_session_timeout_ms = integer(
        "group.consumer.session.timeout.ms",
        45000,
        "A member of a consumer-protocol group not heard of for so long is out.",
        at_least=1,
    )
    group_consumer_heartbeat_interval_ms = integer(
        "group.consumer.heartbeat.interval.ms",
        5000,
        "How often members are told to report. Until they have their partitions: each second, or more often.",
        at_least=1,
    )
    group_consumer_assignment_interval_ms = integer(
        "group.consumer.assignment.interval.ms",
        1000,
        "How long an assignment stands before members that come and go cause another. That of a single member "
        "stands until no more members come, at the longest for this time.",
        at_least=0,
    )
    group_consumer_min_session_timeout_ms = integer(
        "group.consumer.min.session.timeout.ms", 45000, "The least that may be set for all groups or one.", at_least=1
    )
    group_consumer_max_session_timeout_ms = integer(
        "group.consumer.max.session.timeout.ms", 60000, "The most that may be set for all groups or one.", at_least=1
    )
    group_consumer_min_heartbeat_interval_ms = integer(
        "group.consumer.min.heartbeat.interval.ms", 5000, "The least that may be set for all groups or one.", at_least=1
    )
    group_consumer_max_heartbeat_interval_ms = integer(
        "group.consumer.max.heartbeat.interval.ms", 15000, "The most that may be set for all groups or one.", at_least=1
    )
    group_consumer_min_assignment_interval_ms = integer(
        "group.consumer.min.assignment.interval.ms", 0, "The least that may be set for all groups or one.", at_least=0
    )
    group_consumer_max_assignment_interval_ms = integer(
        "group.consumer.max.assignment.interval.ms",
        15000,
        "The most that may be set for all groups or one.",
        at_least=0,
    )
    group_consumer_max_size = integer(
        "group.consumer.max.size", MAX_INT, "Members of one consumer-protocol group.", at_least=1
    )
    group_consumer_assignors = listing(
        "group.consumer.assignors",
        ("uniform", "range"),
        "The assignors of the consumer protocol that run in the broker; the first is the default.",
        one_of=("uniform", "range"),
    )
    group_consumer_migration_policy = text(
        "group.consumer.migration.policy",
        "bidirectional",
        "Which way a group with members may change its protocol: upgrade to consumer, downgrade to classic, "
        "bidirectional, or disabled.",
    )
    offset_metadata_max_bytes = integer(
        "offset.metadata.max.bytes", 4096, "The longest note that may be committed with an offset."
    )
    offsets_retention_minutes = integer(
        "offsets.retention.minutes",
        10080,
        "Committed offsets of a group without members are forgotten after this long.",
        at_least=1,
    )
    offsets_retention_check_interval_ms = long(
        "offsets.retention.check.interval.ms", 600000, "How often such offsets are looked for.", at_least=1
    )
    offsets_topic_num_partitions = integer(
        "offsets.topic.num.partitions", 50, "Partitions of __consumer_offsets when it is created.", at_least=1
    )
    offsets_topic_replication_factor = integer(
        "offsets.topic.replication.factor",
        3,
        "Replicas of __consumer_offsets when it is created; fewer where fewer brokers live.",
        kind=ConfigType.SHORT,
        at_least=1,
    )
    offsets_topic_segment_bytes = integer(
        "offsets.topic.segment.bytes",
        COORDINATORS_SEGMENT_BYTES,
        "Segment size of __consumer_offsets when it is created; less than 1 MiB counts as 1 MiB. A coordinator reads"
        " what is not compacted yet when it begins.",
        at_least=1,
    )

    # --- producers and transactions ---
    producer_id_expiration_ms = integer(
        "producer.id.expiration.ms",
        86400000,
        "What a partition knows of a producer is forgotten this long after its last write.",
        at_least=1,
        mode=ANYWHERE,
    )
    producers_max = integer(
        "producers.max",
        2_000_000,
        "As many producers (each partition they write to counts) are remembered together, 200 to 400 bytes each. When "
        "there are more, those that have been idle for ten minutes are forgotten before their time, and if there are "
        "none, new producers are refused with POLICY_VIOLATION.",
        at_least=1,
    )
    metrics_partition_labels = boolean(
        "metrics.partition.labels",
        True,
        "Whether /metrics tells of every partition one by one. false: only of those that hold readers back or lack "
        "replicas; everything else is told by topic, by group and for the whole broker.",
    )
    producers_per_partition_max = integer(
        "producers.per.partition.max",
        1_000_000,
        "The same for the producers of one partition.",
        at_least=1,
    )
    producer_id_expiration_check_interval_ms = integer(
        "producer.id.expiration.check.interval.ms",
        600000,
        "How often producers are looked through for those to be forgotten.",
        at_least=1,
    )
    transaction_max_timeout_ms = integer(
        "transaction.max.timeout.ms", 900000, "The longest transaction timeout a producer may ask for.", at_least=1
    )
    transaction_two_phase_commit_enable = boolean(
        "transaction.two.phase.commit.enable",
        False,
        "Whether a producer may ask for transactions that no timeout ends, because another system decides them.",
    )
    transactional_id_expiration_ms = integer(
        "transactional.id.expiration.ms", 604800000, "A transactional id unused for so long is forgotten.", at_least=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms = integer(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        3600000,
        "How often transactional ids are looked through for those that have expired.",
        at_least=1,
    )
    transaction_partition_verification_enable = boolean(
        "transaction.partition.verification.enable",
        True,
        "Whether a partition asks the coordinator before the first write of a transaction.",
        mode=ANYWHERE,
    )
    transaction_state_log_num_partitions = integer(
        "transaction.state.log.num.partitions", 50, "Partitions of __transaction_state when it is created.", at_least=1
    )
    transaction_state_log_replication_factor = integer(
        "transaction.state.log.replication.factor",
        3,
        "Replicas of __transaction_state when it is created; fewer where fewer brokers live.",
        kind=ConfigType.SHORT,
        at_least=1,
    )
    transaction_state_log_min_isr = integer(
        "transaction.state.log.min.isr",
        2,
        "The lowest min.insync.replicas of __transaction_state; a partition never requires more than it has replicas.",
        at_least=1,
    )
    transaction_state_log_segment_bytes = integer(
        "transaction.state.log.segment.bytes",
        COORDINATORS_SEGMENT_BYTES,
        "Segment size of __transaction_state when it is created; less than 1 MiB counts as 1 MiB. A coordinator reads"
        " what is not compacted yet when it begins.",
        at_least=1,
    )


BROKER_SETTINGS: dict[str, Setting[Any]] = {
    setting.name: setting for setting in vars(BrokerSettings).values() if isinstance(setting, Setting)
}
