"""The registry: every metric that `/metrics` may show, its kind, its labels and what it says.

What always holds: nothing is exported that is not a row here; a row is charted on a board, used by an alert, or says
in `uncharted` why not. docs/monitoring.md is written from these rows.

Three families of names, so that what people have works at once: those of kafka_exporter (Grafana board 7589 and its
kin), those that Strimzi's rules give Kafka's own metrics, and ours (`oncelog_`).
"""

from dataclasses import dataclass
from typing import Final

KAFKA_EXPORTER: Final = "kafka_exporter"
STRIMZI: Final = "Kafka, as Strimzi names it"
OURS: Final = "oncelog"
PROCESS: Final = "process"

_THEIRS: Final = "for boards and rules that people have; ours say the same with oncelog_ names"
_BESIDE: Final = "looked at beside the others, when one is asked about"


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    kind: str
    says: str
    labels: tuple[str, ...] = ()
    uncharted: str = ""

    @property
    def origin(self) -> str:
        if self.name.startswith("oncelog_"):
            return OURS
        exporter = ("kafka_brokers", "kafka_broker_info", "kafka_topic_", "kafka_consumergroup_")
        if self.name.startswith("process_"):
            return PROCESS
        return KAFKA_EXPORTER if self.name.startswith(exporter) else STRIMZI


REGISTRY: Final[dict[str, Family]] = {}


def _family(kind: str, name: str, says: str, *labels: str, uncharted: str = "") -> Family:
    assert name not in REGISTRY, name
    assert (kind == "counter") == name.endswith("_total"), name
    family = REGISTRY[name] = Family(name, kind, says, labels, uncharted)
    return family


def _gauge(name: str, says: str, *labels: str, uncharted: str = "") -> Family:
    return _family("gauge", name, says, *labels, uncharted=uncharted)


def _counter(name: str, says: str, *labels: str, uncharted: str = "") -> Family:
    return _family("counter", name, says, *labels, uncharted=uncharted)


def _histogram(name: str, says: str, *labels: str, uncharted: str = "") -> Family:
    return _family("histogram", name, says, *labels, uncharted=uncharted)


# --- the process, as every program with a Prometheus client names it -------------------------------------------------

_counter("process_cpu_seconds_total", "Processor time of the broker's process.")
_gauge("process_resident_memory_bytes", "Memory of the broker's process.")
_gauge("process_virtual_memory_bytes", "Addresses of the broker's process.", uncharted=_BESIDE)
_gauge("process_start_time_seconds", "When it was started, in seconds since 1970.", uncharted=_BESIDE)
_gauge("process_open_fds", "Descriptors that are open.")
_gauge("process_max_fds", "Descriptors that may be open.")

# --- kafka_exporter --------------------------------------------------------------------------------------------------
# Each broker tells of the partitions it leads and the groups it coordinates, so that sums over brokers are right.

BROKERS = _gauge("kafka_brokers", "Brokers that are registered in the cluster.")
BROKER_INFO = _gauge(
    "kafka_broker_info", "1 for every registered broker, with its address.", "address", "id", uncharted=_BESIDE
)
TOPIC_PARTITIONS = _gauge("kafka_topic_partitions", "Partitions of the topic.", "topic")
CURRENT_OFFSET = _gauge(
    "kafka_topic_partition_current_offset", "The high watermark: readers see no further.", "topic", "partition"
)
OLDEST_OFFSET = _gauge(
    "kafka_topic_partition_oldest_offset", "The first offset that is still there.", "topic", "partition"
)
IN_SYNC_REPLICA = _gauge("kafka_topic_partition_in_sync_replica", "Replicas in sync.", "topic", "partition")
LEADER = _gauge(
    "kafka_topic_partition_leader", "The broker that leads; -1: none.", "topic", "partition", uncharted=_BESIDE
)
LEADER_IS_PREFERRED = _gauge(
    "kafka_topic_partition_leader_is_preferred",
    "1 where the first of the replicas leads.",
    *("topic", "partition"),
    uncharted=_THEIRS,
)
REPLICAS = _gauge("kafka_topic_partition_replicas", "Replicas there shall be.", "topic", "partition", uncharted=_BESIDE)
UNDER_REPLICATED = _gauge(
    "kafka_topic_partition_under_replicated_partition",
    "1 where fewer replicas are in sync than there shall be.",
    *("topic", "partition"),
)
GROUP_OFFSET = _gauge(
    "kafka_consumergroup_current_offset",
    "The offset that the group has committed.",
    *("consumergroup", "topic", "partition"),
    uncharted=_BESIDE,
)
GROUP_OFFSET_SUM = _gauge(
    "kafka_consumergroup_current_offset_sum", "The same, over the topic's partitions.", "consumergroup", "topic"
)
GROUP_LAG = _gauge(
    "kafka_consumergroup_lag",
    "Records between the committed offset and the high watermark; the newest 500 transaction markers don't count.",
    *("consumergroup", "topic", "partition"),
)
GROUP_LAG_SUM = _gauge(
    "kafka_consumergroup_lag_sum", "The same, over the topic's partitions.", "consumergroup", "topic"
)
GROUP_MEMBERS = _gauge("kafka_consumergroup_members", "Members of the group.", "consumergroup")

# --- Kafka's own, as Strimzi's rules name them -----------------------------------------------------------------------

MESSAGES_IN = _counter(
    "kafka_server_brokertopicmetrics_messagesin_total", "Records that clients wrote.", "topic", uncharted=_THEIRS
)
BYTES_IN = _counter("kafka_server_brokertopicmetrics_bytesin_total", "Bytes of batches that clients wrote.", "topic")
BYTES_OUT = _counter("kafka_server_brokertopicmetrics_bytesout_total", "Bytes of batches given to readers.", "topic")
PRODUCE_REQUESTS = _counter(
    "kafka_server_brokertopicmetrics_totalproducerequests_total",
    "Batches that clients sent, refused ones included.",
    "topic",
    uncharted=_THEIRS,
)
FAILED_PRODUCE = _counter(
    "kafka_server_brokertopicmetrics_failedproducerequests_total", "Batches that were refused.", "topic"
)
FETCH_REQUESTS = _counter(
    "kafka_server_brokertopicmetrics_totalfetchrequests_total",
    "Reads of a partition that found something, and those that failed.",
    "topic",
    uncharted=_THEIRS,
)
FAILED_FETCH = _counter(
    "kafka_server_brokertopicmetrics_failedfetchrequests_total", "Reads of a partition that failed.", "topic"
)
LEADER_COUNT = _gauge("kafka_server_replicamanager_leadercount", "Partitions that this broker leads.")
PARTITION_COUNT = _gauge("kafka_server_replicamanager_partitioncount", "Partitions that this broker holds.")
UNDER_REPLICATED_COUNT = _gauge(
    "kafka_server_replicamanager_underreplicatedpartitions", "Led here, and fewer in sync than there shall be."
)
UNDER_MIN_ISR_COUNT = _gauge(
    "kafka_server_replicamanager_underminisrpartitioncount",
    "Led here, and fewer in sync than min.insync.replicas: acks=all is refused.",
)
AT_MIN_ISR_COUNT = _gauge(
    "kafka_server_replicamanager_atminisrpartitioncount",
    "Led here, with replicas to spare set up, and just min.insync.replicas in sync: one more loss stops acks=all.",
    uncharted=_BESIDE,
)
OFFLINE_REPLICA_COUNT = _gauge(
    "kafka_server_replicamanager_offlinereplicacount", "Held here and not served: the disk or the log failed."
)
PRODUCER_ID_COUNT = _gauge(
    "kafka_server_replicamanager_produceridcount", "Producers that partitions here remember.", uncharted=_THEIRS
)
LATE_COUNT = _gauge(
    "kafka_server_replicamanager_partitionswithlatetransactionscount",
    "Led here, with a transaction open for longer than transaction.max.timeout.ms and five minutes.",
)
REASSIGNING = _gauge(
    "kafka_server_replicamanager_reassigningpartitions",
    "Led here, and being moved to other brokers.",
    uncharted=_BESIDE,
)
ISR_SHRINKS = _counter(
    "kafka_server_replicamanager_isrshrinks_total", "In-sync sets led here that lost a member.", uncharted=_THEIRS
)
ISR_EXPANDS = _counter(
    "kafka_server_replicamanager_isrexpands_total", "In-sync sets led here that got one.", uncharted=_THEIRS
)
UNCLEAN_ELECTIONS = _counter(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    "Leaderships that began here though this broker was not in sync.",
    uncharted=_THEIRS,
)
ACTIVE_CONTROLLER = _gauge(
    "kafka_controller_kafkacontroller_activecontrollercount", "1 on the broker that controls the cluster."
)
OFFLINE_PARTITIONS = _gauge(
    "kafka_controller_kafkacontroller_offlinepartitionscount", "Partitions without a leader; told by the controller."
)
PREFERRED_IMBALANCE = _gauge(
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
    "Partitions that another than the first of their replicas leads; told by the controller.",
)
REPLICAS_COUNT = _gauge(
    "kafka_cluster_partition_replicascount", "Replicas there shall be.", "topic", "partition", uncharted=_THEIRS
)
AT_MIN_ISR = _gauge(
    "kafka_cluster_partition_atminisr", "1 where one more loss stops acks=all.", "topic", "partition", uncharted=_BESIDE
)
UNDER_MIN_ISR = _gauge("kafka_cluster_partition_underminisr", "1 where acks=all is refused.", "topic", "partition")
LSO_LAG = _gauge(
    "kafka_cluster_partition_laststableoffsetlag",
    "High watermark less last stable offset.",
    *("topic", "partition"),
    uncharted=_THEIRS,
)
LOG_SIZE = _gauge("kafka_log_log_size", "Bytes of the partition's log.", "topic", "partition")
OFFLINE_LOG_DIRS = _gauge("kafka_log_logmanager_offlinelogdirectorycount", "Data folders out of service.")
REQUESTS = _counter(
    "kafka_network_requestmetrics_requests_total",
    "Requests that were answered; those that HTTP asks inside this broker are among them.",
    "request",
)
REQUEST_MS = _gauge(
    "kafka_network_requestmetrics_totaltimems",
    "How long requests took since the start, waiting included: an estimate from the histogram.",
    *("request", "quantile"),
    uncharted=_THEIRS,
)
DISK_READ = _gauge(
    "kafka_server_kafkaserver_linux_disk_read_bytes",
    "Bytes that the process had read from disks since its start, as Linux counts them.",
    uncharted=_THEIRS,
)
DISK_WRITTEN = _gauge(
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    "Bytes that the process had written to disks since its start, as Linux counts them.",
    uncharted=_THEIRS,
)
_IDLE: Final = "Part of the time since the scrape before in which the broker's event loop had nothing to do."
NETWORK_IDLE = _gauge("kafka_network_socketserver_networkprocessoravgidle_percent", _IDLE, uncharted=_THEIRS)
HANDLERS_IDLE = _gauge("kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent", _IDLE, uncharted=_THEIRS)
CONNECTIONS = _gauge("kafka_server_socket_server_metrics_connection_count", "Connections that are open.", "listener")

# --- ours ------------------------------------------------------------------------------------------------------------

BUILD_INFO = _gauge("oncelog_build_info", "1, with the version and who this is.", "version", "node_id", "cluster_id")
UPTIME = _gauge("oncelog_uptime_seconds", "Since this process began to serve.")
COORDINATORS_LOADING = _gauge(
    "oncelog_coordinators_loading",
    "Partitions of internal topics that are being replayed: what they coordinate can't be told yet.",
    "kind",
)
COORDINATORS = _gauge(
    "oncelog_coordinators", "Partitions of internal topics that are coordinated here.", "kind", uncharted=_BESIDE
)
MISHAPS = _counter(
    "oncelog_coordinator_mishaps_total",
    "What went wrong in coordinators: commands that could not be decided, what was due and could not be done, records "
    "passed over, coordinators that were replayed again.",
    *("kind", "what"),
)
TASKS_FAILED = _counter("oncelog_tasks_failed_total", "Background tasks that ended with an error.")
PARTITION_FAILURES = _counter(
    "oncelog_partition_failures_total",
    "Regular work that failed in one partition and is tried again: a flush, retention, forgetting idle producers, or "
    "compaction.",
    "work",
)

TXN_OPEN = _gauge("oncelog_transactions_open", "Transactional ids with an open transaction, by coordinator.")
TXN_STATES = _gauge(
    "oncelog_transactional_ids", "Transactional ids that are coordinated here, by state.", "state", uncharted=_BESIDE
)
TXN_OLDEST = _gauge("oncelog_transaction_oldest_open_seconds", "Age of the oldest open transaction coordinated here.")
TXN_MAX_TIMEOUT = _gauge("oncelog_transaction_max_timeout_seconds", "transaction.max.timeout.ms, for alerts.")
TXN_HANGING = _gauge(
    "oncelog_transactions_hanging",
    "Open in a partition led here, and nobody will end them: no coordinator has them open, or they are older than "
    "transaction.max.timeout.ms and five minutes.",
)
TXN_ENDED = _counter(
    "oncelog_transactions_completed_total",
    "Decided since the start: by the client (commit, abort), by time (timeout), by a successor (fenced).",
    "result",
)
TXN_DURATION = _histogram("oncelog_transaction_duration_seconds", "From the first partition to the decision.")
TXN_COMMIT_LATENCY = _histogram(
    "oncelog_transaction_commit_latency_seconds",
    "prepare: an EndTxn request until the decision is durable; markers: until every partition has its marker then; "
    "complete: until that is on record, so that the id can begin its next transaction.",
    "phase",
)
TXN_PARTITIONS = _histogram("oncelog_transaction_partitions", "Partitions of a transaction, when it was decided.")
TXN_MARKERS_PENDING = _gauge(
    "oncelog_txn_markers_pending", "Partitions that still owe a decided transaction its marker."
)

SPANS_LOST = _counter(
    "oncelog_spans_lost_total",
    "Spans of transactions that were not sent: the collector did not take them, or there was no room for them.",
)

PARTITION_START = _gauge(
    "oncelog_partition_log_start_offset", "The first offset there is.", "topic", "partition", uncharted=_BESIDE
)
PARTITION_STABLE = _gauge(
    "oncelog_partition_last_stable_offset", "read_committed sees no further.", "topic", "partition"
)
PARTITION_HIGH = _gauge(
    "oncelog_partition_high_watermark_offset", "Nobody sees further.", "topic", "partition", uncharted=_BESIDE
)
PARTITION_END = _gauge("oncelog_partition_log_end_offset", "One past the last.", "topic", "partition")
PARTITION_LSO_RECORDS = _gauge(
    "oncelog_partition_lso_lag_records", "Offsets that readers of committed records wait for.", "topic", "partition"
)
PARTITION_LSO_SECONDS = _gauge(
    "oncelog_partition_lso_lag_seconds",
    "For how long the oldest open transaction has held them up, by its own first timestamp.",
    *("topic", "partition"),
)
PARTITION_ABORTED = _gauge(
    "oncelog_partition_aborted_ranges", "Aborted transactions whose records are still there.", "topic", "partition"
)
BLOCKER = _gauge(
    "oncelog_lso_blocked_by",
    "Who holds up the readers of a partition: seconds since the transaction began there, for the hundred oldest.",
    *("topic", "partition", "producer_id", "transactional_id"),
)

PRODUCER_IDS = _gauge("oncelog_producer_ids", "Producers that partitions here remember; each partition counts.")
PRODUCER_FENCED = _counter("oncelog_producer_fenced_total", "Batches of producers that were succeeded.", "topic")
PRODUCER_DUPLICATES = _counter(
    "oncelog_producer_duplicate_batches_total", "Batches that were there already, answered as the first time.", "topic"
)
PRODUCER_OUT_OF_ORDER = _counter(
    "oncelog_producer_out_of_order_total", "Batches that came before their predecessors.", "topic"
)
PRODUCER_OUTSIDE = _counter(
    "oncelog_producer_outside_transaction_total",
    "Batches that belonged to no open transaction, or to another.",
    "topic",
)
PRODUCER_UNKNOWN = _counter(
    "oncelog_producer_unknown_total",
    "Batches in the middle of the sequence of a producer that the partition does not remember: it was idle for longer "
    "than producer.id.expiration.ms, or DeleteRecords took all that it wrote. They are taken, as in Kafka.",
    "topic",
)
PRODUCERS_REFUSED = _counter("oncelog_producers_refused_total", "New producers refused, for too many are remembered.")

REQUEST_SECONDS = _histogram("oncelog_request_seconds", "Requests until their answer, waiting included.", "api")
REQUEST_ERRORS = _counter(
    "oncelog_request_errors_total", "Requests that were answered with an error as a whole.", "api", "error"
)
HTTP_REQUESTS = _counter(
    "oncelog_http_requests_total",
    "HTTP requests that were answered, one that was forwarded by both brokers.",
    *("route", "method", "code"),
)
HTTP_SECONDS = _histogram(
    "oncelog_http_request_seconds", "HTTP requests until their answer; streams are not timed.", "route"
)
HTTP_PROBLEMS = _counter("oncelog_http_problems_total", "HTTP requests that were answered with a problem.", "problem")
HTTP_UNDER_WAY = _gauge("oncelog_http_under_way", "HTTP requests that are being answered, streams and pages included.")
HTTP_STREAMS = _gauge("oncelog_http_streams", "Streams of records by HTTP that are open here.")
IDEMPOTENCY_KEYS = _gauge(
    "oncelog_idempotency_keys",
    "Idempotency-Keys that this broker answers for: in_flight (their first request is being written), remembered. "
    "Those written before this broker led their partition count from the first use of one of them.",
    "state",
)
IDEMPOTENCY_CONFLICT = _counter(
    "oncelog_idempotency_conflict_total",
    "HTTP requests that were told to wait (409), for the first one with their Idempotency-Key was being written.",
)
IDEMPOTENCY_MISMATCH = _counter(
    "oncelog_idempotency_mismatch_total",
    "HTTP requests that were refused (422), for their Idempotency-Key belongs to another request.",
)
IDEMPOTENCY_REPLAYED = _counter(
    "oncelog_idempotency_replayed_total",
    "HTTP requests that were answered as the first time, for their Idempotency-Key was known.",
)
RECORDS_IN = _counter("oncelog_records_in_total", "Records that clients wrote here.")

CONTROLLER_EPOCH = _gauge("oncelog_controller_epoch", "How often the cluster has changed its controller.")
SESSION = _gauge(
    "oncelog_coordination_session_state",
    "1 while this broker has its session with the metadata store, 0 when it is lost.",
    "backend",
)
SESSIONS_LOST = _counter(
    "oncelog_coordination_sessions_lost_total", "Sessions with the metadata store that ended by themselves.", "backend"
)
STORE_RECONNECTS = _counter(
    "oncelog_coordination_reconnects_total",
    "How often the metadata store answered again after this broker had led nothing for its silence.",
    "backend",
)
STORE_LATENCY = _histogram(
    "oncelog_coordination_latency_seconds", "How long the metadata store took to answer a commit.", "backend"
)
REGISTERED = _gauge(
    "oncelog_broker_registered",
    "1 if the metadata names this broker as alive.",
    uncharted="the alert on kafka_brokers says it for the cluster",
)

TROUBLE = _gauge(
    "oncelog_trouble",
    "What is wrong between this broker and the rest of the cluster: session (none with the metadata store), "
    "unreachable (another broker can't be reached where it says that it is), stranger (somebody else is there), clock "
    "(another broker's clock is apart), http (its HTTP API can't be reached), stuck (so many partitions can't be "
    "copied from it), out-of-sync (so many partitions led here lack it). `oncelog doctor` and the log say it in a "
    "sentence.",
    *("kind", "about"),
)
CLOCK_APART = _gauge(
    "oncelog_clock_apart_seconds",
    "By how much another broker's clock is ahead of this one's, at least.",
    "broker",
    uncharted=_BESIDE,
)

REPLICA_LAG = _gauge(
    "oncelog_replica_lag_records",
    "The most records that another broker's replica lacks of a partition led here.",
    "broker",
)
SHRINKS = _counter("oncelog_isr_shrinks_total", "In-sync sets led here that lost a member.")
EXPANDS = _counter("oncelog_isr_expands_total", "In-sync sets led here that got one.")
FLAPPING = _gauge(
    "oncelog_isr_flapping_partitions",
    "Led here, and their in-sync sets have lost a member three times or more in ten minutes.",
)
ELECTIONS = _counter(
    "oncelog_leader_elections_total",
    "Leaderships that began here. clean=false: this broker was not in sync, and what it lacked is lost.",
    "clean",
)

FSYNC = _histogram("oncelog_fsync_seconds", "Flushes of a partition's log that went well.", "folder")
LOG_BYTES = _gauge("oncelog_log_bytes", "Bytes of all logs in a data folder.", "folder")
DISK_FREE = _gauge("oncelog_disk_free_bytes", "What the file system of a data folder has left.", "folder")
DISK_TOTAL = _gauge("oncelog_disk_total_bytes", "The size of a data folder's file system.", "folder")
FOLDER_FAILED = _gauge("oncelog_log_folder_failed", "1 where a data folder is out of service.", "folder")
FOLDER_FULL = _gauge("oncelog_log_folder_full", "1 where producers are refused for lack of room.", "folder")
UNUSED = _gauge(
    "oncelog_unused_folders",
    "Folders in a data folder that no partition uses: moved aside by a start, or of topics that are not known.",
    "folder",
)
UNUSED_BYTES = _gauge("oncelog_unused_bytes", "What is in those folders, as of some minutes ago.", "folder")
LOOP_LAG = _histogram(
    "oncelog_event_loop_lag_seconds", "How late the event loop was, a hundred times a second: everybody waits for it."
)

GROUPS = _gauge("oncelog_groups", "Groups that are coordinated here, by state.", "state")
GROUP_STATUS = _gauge(
    "oncelog_group_status",
    "The worst of the group's partitions by Burrow's rules: 1 OK, 2 WARN (falls behind), 4 STOP (commits no more), 5 "
    "STALL (commits the same offset while there is more), 6 REWIND (went back).",
    "consumergroup",
)
GROUP_STABLE_LAG = _gauge(
    "oncelog_group_stable_lag_records",
    "Records between the committed offset and the last stable offset: what a reader of committed records can have now.",
    *("consumergroup", "topic"),
)
GROUP_LAG_SECONDS = _gauge(
    "oncelog_group_lag_seconds",
    "For how long, at least, the oldest record that the group could have read and has not has been there; the worst of "
    "its partitions. Known from one scrape to the next: it begins at 0 when a broker begins to coordinate the group.",
    "consumergroup",
)
GROUP_PENDING = _gauge(
    "oncelog_group_pending_offsets",
    "Partitions whose offsets were committed in a transaction that is still open; only where there are any.",
    "consumergroup",
)
