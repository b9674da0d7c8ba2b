# ruff: noqa: E501 - what a panel asks is one line, as Grafana shows it
"""The Grafana boards, as readable Python. `make boards` writes them to monitoring/dashboards/*.json, and a test
compares the files with this page.

A panel is one line: its title, its query, and what the figure means in words. Every metric of `families.py` is on a
board or in an alert, or says there why not.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent / "dashboards"
WIDTH: Final = 24
SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
JOB: Final = '{job="$job"}'
RED, GREEN = "red", "green"

Query = tuple[str, str]
"""An expression and the name of its lines."""


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    means: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    height: int = 8
    bad_from: float | None = None
    """From this value on the figure is red."""
    good: bool = False
    """The figure is red below one, because it counts something that must be there."""
    stacked: bool = False
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Row:
    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    says: str
    rows: Sequence[Row]
    filters: Sequence[tuple[str, str]] = field(default=())
    """Further variables: each has a name, and the metric whose label of that name gives its values."""

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.uid}.json"


def of(metric: str, more: str = "") -> str:
    """A metric, limited to the brokers that the board shows."""
    return f'{metric}{{job="$job"{"," + more if more else ""}}}'


def per_second(counter: str, by: str = "", more: str = "") -> str:
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped} (rate({of(counter, more)}[$__rate_interval]))"


def share(part: float, histogram: str, by: str = "", more: str = "") -> str:
    """The value below which this part of the recent counts of a histogram lies."""
    grouped = f"le, {by}" if by else "le"
    return f"histogram_quantile({part}, sum by ({grouped}) (rate({of(histogram + '_bucket', more)}[$__rate_interval])))"


def figure(title: str, means: str, expression: str, **more: Any) -> Panel:
    return Panel(title, means, ((expression, ""),), kind="stat", width=more.pop("width", 4), height=4, **more)


COMMITTED: Final = 'result="commit"'
CLEAN: Final = 'clean="true"'
UNCLEAN: Final = 'clean="false"'
TOPIC: Final = 'topic=~"$topic"'
WHERE: Final = "{{topic}}-{{partition}}"

OVERVIEW: Final = Board(
    "oncelog-overview",
    "oncelog: overview",
    "Is the cluster well, and how much does it do.",
    (
        Row(
            "Is it well",
            (
                figure("Brokers", "Brokers that are registered.", f"max({of('kafka_brokers')})", good=True),
                figure(
                    "Controllers",
                    "There must be one.",
                    f"sum({of('kafka_controller_kafkacontroller_activecontrollercount')})",
                    good=True,
                    bad_from=2,
                ),
                figure(
                    "Partitions without a leader",
                    "Nobody can write to them or read them.",
                    f"sum({of('kafka_controller_kafkacontroller_offlinepartitionscount')})",
                    bad_from=1,
                ),
                figure(
                    "Writes with acks=all refused",
                    "Partitions with fewer in sync than min.insync.replicas.",
                    f"sum({of('kafka_server_replicamanager_underminisrpartitioncount')})",
                    bad_from=1,
                ),
                figure(
                    "Under-replicated",
                    "Partitions with a replica that is not in sync.",
                    f"sum({of('kafka_server_replicamanager_underreplicatedpartitions')})",
                    bad_from=1,
                ),
                figure(
                    "Replicas out of service",
                    "The disk or the log failed.",
                    f"sum({of('kafka_server_replicamanager_offlinereplicacount')})",
                    bad_from=1,
                ),
                figure(
                    "Open transactions",
                    "Readers of committed records wait behind them.",
                    f"sum({of('oncelog_transactions_open')})",
                ),
                figure(
                    "Oldest open",
                    "How long ago the oldest open transaction began.",
                    f"max({of('oncelog_transaction_oldest_open_seconds')})",
                    unit="s",
                ),
                figure(
                    "Hanging transactions",
                    "Nobody will end them: see the exactly-once board.",
                    f"sum({of('oncelog_transactions_hanging')})",
                    bad_from=1,
                ),
                figure(
                    "Data folders out of service",
                    "A write or an fsync failed.",
                    f"sum({of('kafka_log_logmanager_offlinelogdirectorycount')})",
                    bad_from=1,
                ),
                figure(
                    "Data folders full",
                    "Producers are refused until there is room.",
                    f"sum({of('oncelog_log_folder_full')})",
                    bad_from=1,
                ),
                figure(
                    "Unused folders",
                    "Moved aside by a start, or of topics that are not known: `oncelog doctor` tells what to do.",
                    f"sum({of('oncelog_unused_folders')})",
                    bad_from=1,
                ),
                figure(
                    "Coordinators loading",
                    "What they coordinate can't be told or changed yet.",
                    f"sum({of('oncelog_coordinators_loading')})",
                    bad_from=1,
                ),
            ),
        ),
        Row(
            "What it does",
            (
                Panel(
                    "Records in",
                    "Records that clients wrote, a second.",
                    ((per_second("oncelog_records_in_total", "instance"), "{{instance}}"),),
                    unit="cps",
                    stacked=True,
                ),
                Panel(
                    "Bytes in",
                    "What clients wrote, by broker.",
                    ((per_second("kafka_server_brokertopicmetrics_bytesin_total", "instance"), "{{instance}}"),),
                    unit="Bps",
                    stacked=True,
                ),
                Panel(
                    "Bytes out",
                    "What readers were given, by broker.",
                    ((per_second("kafka_server_brokertopicmetrics_bytesout_total", "instance"), "{{instance}}"),),
                    unit="Bps",
                    stacked=True,
                ),
                Panel(
                    "Partitions",
                    "Held by each broker, and led by it: that should be alike.",
                    (
                        (of("kafka_server_replicamanager_partitioncount"), "held by {{instance}}"),
                        (of("kafka_server_replicamanager_leadercount"), "led by {{instance}}"),
                    ),
                ),
                Panel(
                    "Connections",
                    "Open ones, by listener.",
                    (
                        (
                            f"sum by (instance, listener) ({of('kafka_server_socket_server_metrics_connection_count')})",
                            "{{instance}} {{listener}}",
                        ),
                    ),
                ),
                Panel(
                    "In-sync sets",
                    "How often a replica fell out of them and came back, by the broker that leads; flapping: three times in ten minutes.",
                    (
                        (
                            f"sum by (instance) (increase({of('oncelog_isr_shrinks_total')}[$__rate_interval]))",
                            "fell out, {{instance}}",
                        ),
                        (
                            f"sum by (instance) (increase({of('oncelog_isr_expands_total')}[$__rate_interval]))",
                            "came back, {{instance}}",
                        ),
                        (of("oncelog_isr_flapping_partitions"), "flapping, {{instance}}"),
                    ),
                ),
                Panel(
                    "Elections",
                    "Leaderships that began; an unclean one loses records that were acknowledged.",
                    (
                        (
                            f"sum by (instance) (increase({of('oncelog_leader_elections_total', CLEAN)}[$__rate_interval]))",
                            "{{instance}}",
                        ),
                        (
                            f"sum by (instance) (increase({of('oncelog_leader_elections_total', UNCLEAN)}[$__rate_interval]))",
                            "unclean, {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "Not led by the preferred broker",
                    "Partitions that another replica than the first leads.",
                    ((f"sum({of('kafka_controller_kafkacontroller_preferredreplicaimbalancecount')})", "partitions"),),
                ),
            ),
        ),
        Row(
            "What it lives on",
            (
                Panel(
                    "Event loop",
                    "99 of 100 turns were at most so late: everybody waits for them.",
                    ((share(0.99, "oncelog_event_loop_lag_seconds", "instance"), "{{instance}}"),),
                    unit="s",
                ),
                Panel(
                    "fsync",
                    "99 of 100 flushes took at most so long: acks=all waits for them where few replicas hold a write.",
                    ((share(0.99, "oncelog_fsync_seconds", "instance, folder"), "{{instance}} {{folder}}"),),
                    unit="s",
                ),
                Panel(
                    "Disk",
                    "What is free of each data folder's file system, what the logs take, and what folders take that nobody uses.",
                    (
                        (of("oncelog_disk_free_bytes"), "free {{instance}} {{folder}}"),
                        (of("oncelog_disk_total_bytes"), "size {{instance}} {{folder}}"),
                        (of("oncelog_log_bytes"), "logs {{instance}} {{folder}}"),
                        (of("oncelog_unused_bytes"), "unused {{instance}} {{folder}}"),
                    ),
                    unit="bytes",
                ),
                Panel(
                    "Session with the metadata store",
                    "0: the broker leads nothing until it has one again.",
                    (
                        (of("oncelog_coordination_session_state"), "{{instance}} {{backend}}"),
                        (
                            f"increase({of('oncelog_coordination_sessions_lost_total')}[$__rate_interval])",
                            "lost {{instance}}",
                        ),
                        (
                            f"increase({of('oncelog_coordination_reconnects_total')}[$__rate_interval])",
                            "went on {{instance}}",
                        ),
                    ),
                ),
                Panel(
                    "The metadata store's answers",
                    "How long it took to answer a commit.",
                    ((share(0.99, "oncelog_coordination_latency_seconds", "instance"), "99 % {{instance}}"),),
                    unit="s",
                ),
                Panel(
                    "Replicas behind",
                    "The most records that a broker's replica lacks of a partition that another one leads.",
                    ((f"max by (broker) ({of('oncelog_replica_lag_records')})", "broker {{broker}}"),),
                ),
                Panel(
                    "Changes of the controller",
                    "It should rarely move.",
                    ((f"max({of('oncelog_controller_epoch')})", "epoch"),),
                ),
                Panel(
                    "Processor",
                    "Cores that each broker keeps busy; it has one event loop, and one is about its most.",
                    ((f"rate({of('process_cpu_seconds_total')}[$__rate_interval])", "{{instance}}"),),
                ),
                Panel("Memory", "", ((of("process_resident_memory_bytes"), "{{instance}}"),), unit="bytes"),
                Panel(
                    "Descriptors",
                    "Of those the process may open.",
                    ((f"{of('process_open_fds')} / {of('process_max_fds')}", "{{instance}}"),),
                    unit="percentunit",
                ),
                Panel(
                    "Up since",
                    "Seconds; a saw-tooth is a broker that dies again and again.",
                    ((of("oncelog_uptime_seconds"), "{{instance}}"),),
                    unit="s",
                ),
                Panel(
                    "What went wrong inside",
                    "Each has a line in the broker's log.",
                    (
                        (
                            f"sum by (kind, what) (increase({of('oncelog_coordinator_mishaps_total')}[$__rate_interval]))",
                            "{{kind}} {{what}}",
                        ),
                        (f"sum(increase({of('oncelog_tasks_failed_total')}[$__rate_interval]))", "tasks"),
                        (
                            f"sum by (work) (increase({of('oncelog_partition_failures_total')}[$__rate_interval]))",
                            "{{work}} of a partition",
                        ),
                    ),
                ),
            ),
        ),
    ),
)

EXACTLY_ONCE: Final = Board(
    "oncelog-exactly-once",
    "oncelog: exactly-once",
    "Who holds the stable offset back, since when, and how transactions end.",
    (
        Row(
            "Now",
            (
                figure(
                    "Open", "Transactional ids with an open transaction.", f"sum({of('oncelog_transactions_open')})"
                ),
                figure(
                    "Oldest open",
                    "It is aborted when its own timeout is over.",
                    f"max({of('oncelog_transaction_oldest_open_seconds')})",
                    unit="s",
                ),
                figure(
                    "Hanging",
                    "No coordinator will end them. `oncelog txn hanging` names them, `oncelog txn abort` ends one.",
                    f"sum({of('oncelog_transactions_hanging')})",
                    bad_from=1,
                ),
                figure(
                    "Partitions with a late one",
                    "Open for longer than any transaction may be.",
                    f"sum({of('kafka_server_replicamanager_partitionswithlatetransactionscount')})",
                    bad_from=1,
                ),
                figure(
                    "Markers owed",
                    "Decided, and partitions have not been told yet.",
                    f"sum({of('oncelog_txn_markers_pending')})",
                    bad_from=100,
                ),
                figure(
                    "Longest a transaction may be",
                    "transaction.max.timeout.ms.",
                    f"max({of('oncelog_transaction_max_timeout_seconds')})",
                    unit="s",
                ),
            ),
        ),
        Row(
            "Who blocks the stable offset",
            (
                Panel(
                    "Who blocks the stable offset",
                    "Readers of committed records wait behind these, the longest first. No id: no coordinator knows it, it hangs.",
                    ((f"sort_desc(topk(20, {of('oncelog_lso_blocked_by')}))", ""),),
                    kind="table",
                    unit="s",
                    width=24,
                    columns=("topic", "partition", "transactional_id", "producer_id", "instance", "Value"),
                ),
                Panel(
                    "Records held up",
                    "Offsets between the stable offset and the high watermark, the ten largest.",
                    ((f"topk(10, {of('oncelog_partition_lso_lag_records')} > 0)", WHERE),),
                    width=12,
                ),
                Panel(
                    "Held up for",
                    "How long the oldest open transaction has held them up, the ten longest.",
                    ((f"topk(10, {of('oncelog_partition_lso_lag_seconds')} > 0)", WHERE),),
                    unit="s",
                    width=12,
                ),
            ),
        ),
        Row(
            "How they end",
            (
                Panel(
                    "Ended",
                    "A second, by how: by the client, by time, by a successor with the same id.",
                    ((per_second("oncelog_transactions_completed_total", "result"), "{{result}}"),),
                    unit="cps",
                    stacked=True,
                ),
                Panel(
                    "Aborted, of all",
                    "One in five is much: consumers skip what was written for nothing.",
                    (
                        (
                            f"1 - sum(rate({of('oncelog_transactions_completed_total', COMMITTED)}[$__rate_interval])) / sum(rate({of('oncelog_transactions_completed_total')}[$__rate_interval]))",
                            "aborted",
                        ),
                    ),
                    unit="percentunit",
                ),
                Panel(
                    "How long they were open",
                    "From the first partition to the decision.",
                    (
                        (share(0.5, "oncelog_transaction_duration_seconds"), "half"),
                        (share(0.99, "oncelog_transaction_duration_seconds"), "99 %"),
                    ),
                    unit="s",
                ),
                Panel(
                    "Time to commit",
                    "Until the decision is durable, then until every partition has its marker, then until that is on record.",
                    ((share(0.99, "oncelog_transaction_commit_latency_seconds", "phase"), "99 % {{phase}}"),),
                    unit="s",
                ),
                Panel(
                    "Time to commit, all of them",
                    "Brighter: more of them.",
                    (
                        (
                            f"sum by (le) (rate({of('oncelog_transaction_commit_latency_seconds_bucket')}[$__rate_interval]))",
                            "{{le}}",
                        ),
                    ),
                    kind="heatmap",
                    unit="s",
                ),
                Panel(
                    "Spans lost",
                    "Parts of traces that were not sent, a second; none are made where otlp.endpoint is not set.",
                    ((per_second("oncelog_spans_lost_total", "instance"), "{{instance}}"),),
                ),
                Panel(
                    "Partitions of a transaction",
                    "Each costs a marker.",
                    (
                        (share(0.5, "oncelog_transaction_partitions"), "half"),
                        (share(0.99, "oncelog_transaction_partitions"), "99 %"),
                    ),
                ),
            ),
        ),
        Row(
            "What producers did",
            (
                Panel(
                    "Batches sent again",
                    "They were there already, and were answered as the first time: exactly-once at work.",
                    ((per_second("oncelog_producer_duplicate_batches_total", "topic"), "{{topic}}"),),
                    unit="cps",
                ),
                Panel(
                    "Fenced",
                    "Batches of producers that have a successor with the same id.",
                    ((per_second("oncelog_producer_fenced_total", "topic"), "{{topic}}"),),
                    unit="cps",
                ),
                Panel(
                    "Out of order",
                    "Batches that came before their predecessors; the client sends them again.",
                    ((per_second("oncelog_producer_out_of_order_total", "topic"), "{{topic}}"),),
                    unit="cps",
                ),
                Panel(
                    "Producers not remembered",
                    "Batches in the middle of a sequence whose beginning the partition does not remember.",
                    ((per_second("oncelog_producer_unknown_total", "topic"), "{{topic}}"),),
                    unit="cps",
                ),
                Panel(
                    "Outside a transaction",
                    "Batches that belonged to no open transaction.",
                    ((per_second("oncelog_producer_outside_transaction_total", "topic"), "{{topic}}"),),
                    unit="cps",
                ),
                Panel(
                    "Producers remembered",
                    "Each partition counts; and new ones refused for there being too many.",
                    (
                        (f"sum by (instance) ({of('oncelog_producer_ids')})", "{{instance}}"),
                        (per_second("oncelog_producers_refused_total"), "refused a second"),
                    ),
                ),
                Panel(
                    "Aborted and still there",
                    "Aborted transactions whose records readers have to skip, the ten largest.",
                    ((f"topk(10, {of('oncelog_partition_aborted_ranges')} > 0)", WHERE),),
                ),
            ),
        ),
    ),
)

TOPICS: Final = Board(
    "oncelog-topics-groups",
    "oncelog: topics and groups",
    "How much each topic takes, and whether groups keep up.",
    (
        Row(
            "Groups",
            (
                Panel(
                    "Do they keep up",
                    "By Burrow's rules: 1 yes, 2 falls behind, 4 commits no more, 5 stands still, 6 went back.",
                    ((f"sort_desc(topk(30, max by (consumergroup) ({of('oncelog_group_status')}) > 1))", ""),),
                    kind="table",
                    width=8,
                    columns=("consumergroup", "Value"),
                ),
                Panel(
                    "Lag",
                    "Records up to the high watermark; markers are not counted.",
                    (
                        (
                            f"topk(10, sum by (consumergroup, topic) ({of('kafka_consumergroup_lag_sum', TOPIC)}))",
                            "{{consumergroup}} {{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Lag of what can be read",
                    "Records up to the stable offset. Where it is small and the other is large, a transaction holds the group up.",
                    (
                        (
                            f"topk(10, sum by (consumergroup, topic) ({of('oncelog_group_stable_lag_records', TOPIC)}))",
                            "{{consumergroup}} {{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Read, a second",
                    "How fast committed offsets move on.",
                    (
                        (
                            f"topk(10, sum by (consumergroup, topic) (rate({of('kafka_consumergroup_current_offset_sum', TOPIC)}[$__rate_interval])))",
                            "{{consumergroup}} {{topic}}",
                        ),
                    ),
                    unit="cps",
                ),
                Panel(
                    "Members",
                    "Of each group.",
                    ((f"topk(20, sum by (consumergroup) ({of('kafka_consumergroup_members')}))", "{{consumergroup}}"),),
                ),
                Panel(
                    "Groups, by state", "", ((f"sum by (state) ({of('oncelog_groups')})", "{{state}}"),), stacked=True
                ),
                Panel(
                    "Worst partitions",
                    "Lag of single partitions, the ten largest.",
                    ((f"topk(10, {of('kafka_consumergroup_lag', TOPIC)} > 0)", "{{consumergroup}} " + WHERE),),
                    width=12,
                ),
                Panel(
                    "Time behind",
                    "For how long the oldest record that a group could have read has waited for it.",
                    ((f"topk(10, {of('oncelog_group_lag_seconds')} > 0)", "{{consumergroup}}"),),
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Offsets in open transactions",
                    "Partitions whose committed offsets count only when a transaction ends.",
                    ((f"sum by (consumergroup) ({of('oncelog_group_pending_offsets')})", "{{consumergroup}}"),),
                    width=12,
                ),
            ),
        ),
        Row(
            "Topics",
            (
                Panel(
                    "Bytes in",
                    "The ten topics with most.",
                    (
                        (
                            f"topk(10, {per_second('kafka_server_brokertopicmetrics_bytesin_total', 'topic', TOPIC)})",
                            "{{topic}}",
                        ),
                    ),
                    unit="Bps",
                ),
                Panel(
                    "Bytes out",
                    "The ten topics with most.",
                    (
                        (
                            f"topk(10, {per_second('kafka_server_brokertopicmetrics_bytesout_total', 'topic', TOPIC)})",
                            "{{topic}}",
                        ),
                    ),
                    unit="Bps",
                ),
                Panel(
                    "Refused",
                    "Batches and reads that were refused.",
                    (
                        (
                            f"topk(10, {per_second('kafka_server_brokertopicmetrics_failedproducerequests_total', 'topic', TOPIC)})",
                            "{{topic}} written",
                        ),
                        (
                            f"topk(10, {per_second('kafka_server_brokertopicmetrics_failedfetchrequests_total', 'topic', TOPIC)})",
                            "{{topic}} read",
                        ),
                    ),
                    unit="cps",
                ),
                Panel(
                    "Records",
                    "High watermark less the oldest offset: what can be read, markers included.",
                    (
                        (
                            f"topk(10, sum by (topic) ({of('kafka_topic_partition_current_offset', TOPIC)} - {of('kafka_topic_partition_oldest_offset', TOPIC)}))",
                            "{{topic}}",
                        ),
                    ),
                ),
                Panel(
                    "Size",
                    "Bytes of the logs, on the brokers that lead them.",
                    ((f"topk(10, sum by (topic) ({of('kafka_log_log_size', TOPIC)}))", "{{topic}}"),),
                    unit="bytes",
                ),
                Panel(
                    "Partitions",
                    "And of those the ones that lack replicas.",
                    (
                        (f"sum(max by (topic) ({of('kafka_topic_partitions', TOPIC)}))", "all"),
                        (f"sum({of('kafka_topic_partition_under_replicated_partition', TOPIC)})", "under-replicated"),
                        (f"sum({of('kafka_cluster_partition_underminisr', TOPIC)})", "acks=all refused"),
                        (f"min({of('kafka_topic_partition_in_sync_replica', TOPIC)})", "fewest in sync"),
                    ),
                ),
                Panel(
                    "Written and not readable yet",
                    "Log end less stable offset, the ten largest partitions.",
                    (
                        (
                            f"topk(10, {of('oncelog_partition_log_end_offset', TOPIC)} - {of('oncelog_partition_last_stable_offset', TOPIC)} > 0)",
                            WHERE,
                        ),
                    ),
                    width=24,
                ),
            ),
        ),
    ),
    filters=(("topic", "kafka_topic_partitions"),),
)

REQUESTS: Final = Board(
    "oncelog-requests",
    "oncelog: requests, HTTP and Spark",
    "What clients ask, how long it takes, and what goes wrong.",
    (
        Row(
            "Kafka clients (Spark's sources and sinks among them)",
            (
                Panel(
                    "Requests",
                    "A second, by kind.",
                    ((per_second("kafka_network_requestmetrics_requests_total", "request"), "{{request}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Produce",
                    "Until the answer; acks=all waits for replicas or the disk.",
                    (
                        (share(0.5, "oncelog_request_seconds", more='api="Produce"'), "half"),
                        (share(0.99, "oncelog_request_seconds", more='api="Produce"'), "99 %"),
                    ),
                    unit="s",
                ),
                Panel(
                    "Fetch",
                    "Until the answer; a reader with nothing to read waits on purpose.",
                    (
                        (share(0.5, "oncelog_request_seconds", more='api="Fetch"'), "half"),
                        (share(0.99, "oncelog_request_seconds", more='api="Fetch"'), "99 %"),
                    ),
                    unit="s",
                ),
                Panel(
                    "Slowest",
                    "99 of 100 requests of a kind, waiting included, the ten slowest kinds.",
                    ((f"topk(10, {share(0.99, 'oncelog_request_seconds', 'api')})", "{{api}}"),),
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Errors",
                    "Requests answered with an error as a whole, a second. NOT_COORDINATOR and the like are how clients find their way.",
                    ((per_second("oncelog_request_errors_total", "api, error"), "{{api}} {{error}}"),),
                    unit="cps",
                    width=12,
                ),
            ),
        ),
        Row(
            "HTTP",
            (
                Panel(
                    "HTTP requests",
                    "A second, by route.",
                    ((per_second("oncelog_http_requests_total", "route, method"), "{{method}} {{route}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "How long they take",
                    "99 of 100, the ten slowest routes; streams are not timed.",
                    ((f"topk(10, {share(0.99, 'oncelog_http_request_seconds', 'route')})", "{{route}}"),),
                    unit="s",
                ),
                Panel(
                    "Statuses",
                    "5xx are the broker's, 4xx the clients'.",
                    ((per_second("oncelog_http_requests_total", "code"), "{{code}}"),),
                    unit="reqps",
                    stacked=True,
                ),
                Panel(
                    "Problems",
                    "By what they are: request-in-flight and key-reused are about Idempotency-Keys.",
                    ((per_second("oncelog_http_problems_total", "problem"), "{{problem}}"),),
                    unit="cps",
                ),
                Panel(
                    "Answered again",
                    "Requests with a known Idempotency-Key: sent again, applied once.",
                    (
                        (per_second("oncelog_idempotency_replayed_total"), "replayed"),
                        (per_second("oncelog_idempotency_conflict_total"), "told to wait (409)"),
                        (per_second("oncelog_idempotency_mismatch_total"), "the key was another's (422)"),
                    ),
                    unit="cps",
                ),
                Panel(
                    "Idempotency-Keys",
                    "Remembered, and those whose first request is being written.",
                    ((f"sum by (state) ({of('oncelog_idempotency_keys')})", "{{state}}"),),
                ),
                Panel(
                    "Under way",
                    "Requests that are being answered, streams and open pages included.",
                    (
                        (of("oncelog_http_under_way"), "{{instance}}"),
                        (of("oncelog_http_streams"), "of them streams, {{instance}}"),
                    ),
                ),
            ),
        ),
        Row(
            "Transactions of Spark, and of others who write in parallel",
            (
                Panel(
                    "EndTxn and EndBranches",
                    "A commit of a sink is one of them: 99 of 100.",
                    ((share(0.99, "oncelog_request_seconds", "api", 'api=~"EndTxn|EndBranches"'), "{{api}}"),),
                    unit="s",
                    width=12,
                ),
                Panel(
                    "Partitions of a transaction",
                    "A sink writes to all of them.",
                    ((share(0.99, "oncelog_transaction_partitions"), "99 %"),),
                    width=12,
                ),
            ),
        ),
    ),
)

BOARDS: Final = (OVERVIEW, EXACTLY_ONCE, TOPICS, REQUESTS)


def as_json(board: Board) -> str:
    return json.dumps(_dashboard(board), indent=1, ensure_ascii=False) + "\n"


def write() -> None:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        board.path.write_text(as_json(board))


def _dashboard(board: Board) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for row in board.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
            }
        )
        x, y, tallest = 0, y + 1, 0
        for panel in row.panels:
            if x + panel.width > WIDTH:
                x, y, tallest = 0, y + tallest, 0
            place = {"x": x, "y": y, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            x, tallest = x + panel.width, max(tallest, panel.height)
        y += tallest
    return {
        "uid": board.uid,
        "title": board.title,
        "description": board.says,
        "tags": ["oncelog"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "tags": ["oncelog"],
                "title": "oncelog",
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [*_variables(board)]},
        "panels": panels,
    }


def _variables(board: Board) -> list[dict[str, Any]]:
    chosen: list[dict[str, Any]] = [
        {"name": "source", "type": "datasource", "query": "prometheus", "label": "data source"},
        {
            "name": "job",
            "type": "query",
            "label": "cluster",
            "datasource": SOURCE,
            "query": "label_values(oncelog_build_info, job)",
            "refresh": 1,
        },
    ]
    for name, metric in board.filters:
        query = f'label_values({metric}{{job="$job"}}, {name})'
        chosen.append(
            {
                "name": name,
                "type": "query",
                "datasource": SOURCE,
                "query": query,
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
            }
        )
    return chosen


def _panel(panel: Panel) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            **({"format": "table", "instant": True} if panel.kind == "table" else {}),
            **({"format": "heatmap"} if panel.kind == "heatmap" else {}),
            **({"exemplar": True} if "_bucket" in expression else {}),
        }
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.means,
        "datasource": SOURCE,
        "targets": targets,
        "fieldConfig": {
            "defaults": {"unit": panel.unit, "thresholds": _thresholds(panel), "custom": _style(panel)},
            "overrides": [],
        },
        "options": _options(panel),
        **({"transformations": _only(panel.columns)} if panel.columns else {}),
    }


def _thresholds(panel: Panel) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": RED if panel.good else GREEN, "value": None}]
    if panel.good:
        steps.append({"color": GREEN, "value": 1})
    if panel.bad_from is not None:
        steps.append({"color": RED, "value": panel.bad_from})
    return {"mode": "absolute", "steps": steps}


def _style(panel: Panel) -> dict[str, Any]:
    if panel.kind != "timeseries":
        return {}
    return {
        "lineWidth": 1,
        "fillOpacity": 20 if panel.stacked else 5,
        "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case "stat":
            return {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
        case "heatmap":
            return {"calculate": False, "yAxis": {"unit": panel.unit}, "exemplars": {"color": "rgba(255,0,255,0.7)"}}
        case "table":
            return {"showHeader": True}
        case _:
            return {
                "legend": {"displayMode": "list", "placement": "bottom"},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }


def _only(columns: Sequence[str]) -> list[dict[str, Any]]:
    names = {name: index for index, name in enumerate(columns)}
    return [
        {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
        {"id": "organize", "options": {"indexByName": names}},
    ]


if __name__ == "__main__":
    write()
