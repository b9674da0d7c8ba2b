"""Gathers the metrics of one broker for a scrape.

Every collector is a generator that yields after the work of one turn of the event loop (two milliseconds, see SLICE),
so that its caller can give other tasks a turn. Values that belong together (the offsets of a partition) are read in one
step, so they agree. Between two steps they may change.

A part that can't be told is left out (a coordinator that is loading, a disk that does not answer), and another metric
says so.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.process_collector import ProcessCollector

from monitoring import families as of
from monitoring import shapes
from monitoring.burrow import BurrowStatus, Window
from monitoring.exposition import Lines, escape, quantile

SLICE: Final = 100
"""How many partitions are looked at in one step."""
IDS_AT_ONCE: Final = 2_000
GROUP_PARTITIONS_AT_ONCE: Final = 150
BLOCKERS: Final = 100
"""How many transactions that hold up readers are named."""
LATE_BUFFER_MS: Final = 5 * 60_000
"""Kafka's value: a coordinator that was away may end a transaction this much later."""
WINDOWS_MAX: Final = 200_000
"""For how many partitions of groups commits are kept. Each takes about half a kilobyte."""
WANTED_MAX: Final = 5_000
"""How many partitions of other brokers are asked about for the lag of groups."""
ASKED_AFTER_MS: Final = 5_000
"""Other coordinators are asked only about transactions that are open for longer: most have ended by then."""
SET_BY_A_CLOCK_MS: Final = 946_684_800_000
PROCESS_IO: Final = Path("/proc/self/io")
NO_LEADER: Final = -1
QUANTILES: Final = ((0.5, "0.50"), (0.95, "0.95"), (0.99, "0.99"), (0.999, "0.999"))
ONGOING: Final = "Ongoing"
AT_AN_END: Final = ("Empty", "CompleteCommit", "CompleteAbort")


class OpenedHere(NamedTuple):
    """A transaction that is open in a partition led here."""

    began_ms: int
    topic: str
    partition: int
    producer_id: int
    first_offset: int


class Holder(NamedTuple):
    """Who has a transaction open, as its coordinator here knows, and since when."""

    transactional_id: str
    started_ms: int


class Scrape:
    """The collectors of one broker, with what they remember from one scrape to the next."""

    def __init__(self, broker: shapes.Broker, *, version: str) -> None:
        self._broker = broker
        self.tasks = broker.env.tasks
        self._version = version
        self._began_s = broker.env.clock.monotonic()
        self._windows: dict[tuple[str, str, int], Window] = {}
        self.late_groups: dict[str, int] | None = None
        """The groups that don't keep up, with Burrow's codes, as of the last look at all groups; None before the first.
        """
        self.wanted: dict[tuple[str, int], int] = {}
        """Partitions for which groups of this coordinator have offsets, and which this broker does not hold; with the
        lowest of these offsets.
        """
        self.elsewhere: Mapping[tuple[str, int], shapes.Ends] = {}
        """The ends of those, as their leaders told lately."""
        self.strangers: dict[OpenedHere, None] = {}
        """Open transactions that hold up readers here and that no coordinator of this broker knows."""
        self.holders_elsewhere: Mapping[int, str] = {}
        """By producer id, the transactional ids that other coordinators have open."""
        self.nobodys: frozenset[OpenedHere] = frozenset()
        """Those of the last scrape that no coordinator had open when all were asked afterwards."""
        self._process = ProcessCollector(registry=None)

    def gather(self, lines: Lines) -> Iterator[None]:
        for _ in self._gathered(lines):
            lines.pack()
            yield

    def _gathered(self, lines: Lines) -> Iterator[None]:
        self._broker_itself(lines)
        yield
        blockers: list[OpenedHere] = []
        yield from self._partitions(lines, blockers)
        yield from self._transactions(lines, blockers)
        yield from self.judge_groups(lines)
        self._requests(lines)
        yield
        self._disks(lines)
        yield

    # -- the broker itself

    def _broker_itself(self, lines: Lines) -> None:
        broker, image, clock = self._broker, self._broker.metadata.image, self._broker.env.clock
        lines.add(of.BUILD_INFO, 1, self._version, broker.metadata.broker_id, image.cluster_id)
        lines.add(of.UPTIME, round(clock.monotonic() - self._began_s, 3))
        lines.add(of.BROKERS, len(image.brokers))
        for broker_id, registered in image.brokers.items():
            address = registered.endpoints[0].address if registered.endpoints else ""
            lines.add(of.BROKER_INFO, 1, address, broker_id)
        lines.add(of.REGISTERED, int(broker.metadata.broker_id in image.brokers))
        lines.add(of.ACTIVE_CONTROLLER, int(image.controller_id == broker.metadata.broker_id))
        lines.add(of.CONTROLLER_EPOCH, image.controller_epoch.value)
        backend = "sql" if broker.config.zookeeper_connect is None else "zookeeper"
        lines.add(of.SESSION, int(broker.metadata.has_session), backend)
        lines.add(of.SESSIONS_LOST, broker.metadata.sessions_lost, backend)
        lines.add(of.STORE_RECONNECTS, broker.metadata.went_on, backend)
        lines.add_histogram(of.STORE_LATENCY, broker.metadata.latency, backend)
        for metric in self._process.collect():
            for sample in metric.samples:
                if (family := of.REGISTRY.get(sample.name)) is not None:
                    lines.add(family, sample.value)
        lines.add(of.TASKS_FAILED, broker.env.tasks.failed)
        for work, failures in broker.housekeeper.failures.items():
            lines.add(of.PARTITION_FAILURES, failures, work)
        lines.add(of.PARTITION_FAILURES, broker.compactor.failures, "compaction")
        lines.add(of.PRODUCERS_REFUSED, broker.maker.producer_room.refused)
        lines.add(of.TXN_MAX_TIMEOUT, broker.config.transaction_max_timeout_ms / 1000)
        lines.add_histogram(of.LOOP_LAG, broker.loop_watch.lag)
        idle = round(broker.loop_watch.idle(), 4)
        lines.add(of.NETWORK_IDLE, idle)
        lines.add(of.HANDLERS_IDLE, idle)
        self._leaderships(lines)
        for trouble in broker.health.troubles:
            lines.add(of.TROUBLE, trouble.partitions, trouble.kind, trouble.about)
        for other, apart_s in broker.health.clocks_apart_s.items():
            lines.add(of.CLOCK_APART, apart_s, other)
        for kind, mishaps in (
            ("group", broker.coordination.groups.mishaps),
            ("transaction", broker.coordination.transactions.mishaps),
        ):
            lines.add(of.MISHAPS, mishaps.decisions, kind, "decision")
            lines.add(of.MISHAPS, mishaps.expiries, kind, "expiry")
            lines.add(of.MISHAPS, mishaps.records, kind, "record")
            lines.add(of.MISHAPS, mishaps.rebuilt, kind, "rebuilt")

    def _leaderships(self, lines: Lines) -> None:
        tally = self._broker.leaderships
        lines.add(of.SHRINKS, tally.shrunk)
        lines.add(of.ISR_SHRINKS, tally.shrunk)
        lines.add(of.EXPANDS, tally.grown)
        lines.add(of.ISR_EXPANDS, tally.grown)
        lines.add(of.FLAPPING, tally.flapping())
        lines.add(of.ELECTIONS, tally.elected, "true")
        lines.add(of.ELECTIONS, tally.unclean, "false")
        lines.add(of.UNCLEAN_ELECTIONS, tally.unclean)

    # -- partitions

    def _partitions(self, lines: Lines, blockers: list[OpenedHere]) -> Iterator[None]:
        broker, image = self._broker, self._broker.metadata.image
        told = _PartitionLines(lines)
        one_by_one = broker.config.metrics_partition_labels
        counts: Counter[str] = Counter()
        log_bytes: Counter[str] = Counter({folder.name: 0 for folder in broker.folders})
        now_ms = broker.env.clock.wall_ms()
        late_since_ms = now_ms - broker.config.transaction_max_timeout_ms - LATE_BUFFER_MS
        lacking = {other: 0 for other in image.brokers if other != broker.metadata.broker_id}
        worked = 0
        for name, topic in list(image.topics.items()):
            held = broker.partitions.topic(name) or {}
            sums = _TopicSums()
            for index, placed in topic.partitions.items():
                worked += 1
                if worked % SLICE == 0:
                    yield
                leader = placed.leader if placed.leader in image.brokers else NO_LEADER
                counts["leaderless"] += leader == NO_LEADER
                counts["moved"] += leader not in (NO_LEADER, placed.replicas[0])
                partition = held.get(index)
                if partition is None:
                    continue
                counts["held"] += 1
                counts["offline"] += partition.offline
                counts["producers"] += len(partition.producers)
                log_bytes[partition.folder.name] += partition.log.size_bytes
                sums.add(partition.tally, partition.producers.unknown)
                if placed.leader != broker.metadata.broker_id:
                    continue
                counts["led"] += 1
                counts["reassigning"] += bool(placed.adding or placed.removing)
                in_sync, wanted = len(placed.isr), len(placed.replicas)
                least = min(partition.log.config.min_insync_replicas, wanted)
                under, under_min, at_min = in_sync < wanted, in_sync < least, in_sync == least < wanted
                counts["under"] += under
                counts["under_min"] += under_min
                counts["at_min"] += at_min
                if partition.is_leading:
                    end_offset, start_offset = partition.log.end_offset, partition.log.start_offset
                    for other, follower in partition.replicas.followers.items():
                        lacks = end_offset - max(follower.held_end_offset, start_offset)
                        lacking[other] = max(lacking.get(other, 0), lacks)
                stable = partition.stable
                began_ms = now_ms
                if stable.open_transactions:
                    found = [
                        OpenedHere(each.first_timestamp_ms, name, index, each.producer_id, each.first_offset)
                        for each in islice(stable.describe_open(), SLICE)
                    ]
                    blockers += found
                    began_ms = found[0].began_ms
                    counts["late"] += any(SET_BY_A_CLOCK_MS < each.began_ms < late_since_ms for each in found)
                held_up = partition.high_watermark - partition.last_stable_offset
                if one_by_one or held_up or under or partition.offline:
                    waits_s = max(now_ms - began_ms, 0) / 1000 if held_up else 0
                    told.add(name, index, partition, placed, (under, under_min, at_min), held_up, waits_s)
            lines.add(of.TOPIC_PARTITIONS, len(topic.partitions), name)
            sums.tell(lines, name)
            counts["records_in"] += sums.records_in
        yield
        self._count(lines, counts)
        for other, records in lacking.items():
            lines.add(of.REPLICA_LAG, records, other)
        for folder, size_bytes in log_bytes.items():
            lines.add(of.LOG_BYTES, size_bytes, folder)

    def _count(self, lines: Lines, counts: Mapping[str, int]) -> None:
        lines.add(of.LEADER_COUNT, counts["led"])
        lines.add(of.PARTITION_COUNT, counts["held"])
        lines.add(of.REASSIGNING, counts["reassigning"])
        lines.add(of.UNDER_REPLICATED_COUNT, counts["under"])
        lines.add(of.UNDER_MIN_ISR_COUNT, counts["under_min"])
        lines.add(of.AT_MIN_ISR_COUNT, counts["at_min"])
        lines.add(of.OFFLINE_REPLICA_COUNT, counts["offline"])
        lines.add(of.PRODUCER_ID_COUNT, counts["producers"])
        lines.add(of.PRODUCER_IDS, counts["producers"])
        lines.add(of.LATE_COUNT, counts["late"])
        lines.add(of.RECORDS_IN, counts["records_in"])
        controls = self._broker.metadata.image.controller_id == self._broker.metadata.broker_id
        lines.add(of.OFFLINE_PARTITIONS, counts["leaderless"] if controls else 0)
        lines.add(of.PREFERRED_IMBALANCE, counts["moved"] if controls else 0)

    # -- transactions

    def _transactions(self, lines: Lines, blockers: list[OpenedHere]) -> Iterator[None]:
        broker = self._broker
        states: Counter[str] = Counter({ONGOING: 0})
        holders: dict[int, Holder] = {}
        oldest_ms = now_ms = broker.env.clock.wall_ms()
        worked = owed = loading = 0
        shards = list(broker.coordination.transactions.shards())
        for shard in shards:
            if not shard.loaded:
                loading += 1
                continue
            for txn in list(shard.machine.all()):
                worked += 1
                if worked % IDS_AT_ONCE == 0:
                    yield
                label = txn.state.label
                states[label] += 1
                if label not in AT_AN_END:
                    holders[txn.producer_id] = Holder(txn.transactional_id, txn.started_ms)
                if label == ONGOING and txn.started_ms > SET_BY_A_CLOCK_MS:
                    oldest_ms = min(oldest_ms, txn.started_ms)
            owed += shard.machine.owed_count
        yield
        lines.add(of.TXN_OPEN, states[ONGOING])
        lines.add(of.TXN_OLDEST, (now_ms - oldest_ms) / 1000)
        for label, count in states.items():
            lines.add(of.TXN_STATES, count, label)
        lines.add(of.TXN_MARKERS_PENDING, owed)
        lines.add(of.COORDINATORS, len(shards), "transaction")
        lines.add(of.COORDINATORS_LOADING, loading, "transaction")
        tally = broker.coordination.txn_tally
        for result, count in tally.ended.items():
            lines.add(of.TXN_ENDED, count, result)
        lines.add_histogram(of.TXN_DURATION, tally.duration)
        lines.add_histogram(of.TXN_PARTITIONS, tally.partitions)
        if (ends := broker.requests.apis.get("END_TXN")) is not None:
            lines.add_histogram(of.TXN_COMMIT_LATENCY, ends.seconds, "prepare")
        lines.add_histogram(of.TXN_COMMIT_LATENCY, tally.markers, "markers")
        lines.add_histogram(of.TXN_COMMIT_LATENCY, tally.completed, "complete")
        lines.add(of.SPANS_LOST, 0 if tally.follower is None else tally.follower.lost)
        lines.add(of.TXN_HANGING, self._hanging(blockers, holders))
        if not self._transaction_coordinators():
            strangers = (each for each in blockers if each.producer_id not in holders)
            self.strangers = {each: None for each in strangers if now_ms - each.began_ms > ASKED_AFTER_MS}
        for each in sorted(blockers)[:BLOCKERS]:
            held_s = max(now_ms - _began_ms(each, holders), 0) / 1000
            known = holders.get(each.producer_id)
            whose = self.holders_elsewhere.get(each.producer_id, "") if known is None else known.transactional_id
            lines.add(of.BLOCKER, held_s, each.topic, each.partition, each.producer_id, whose)

    def _hanging(self, blockers: list[OpenedHere], holders: Mapping[int, Holder]) -> int:
        """The open transactions that nothing will end. `holders` was read after them. A coordinator knows a transaction
        before anything of it is written, so a transaction that no coordinator has now has ended meanwhile, or hangs.

        If other brokers coordinate, too, they are asked before the next scrape. Until then only the age tells.
        """
        broker = self._broker
        coordinators = self._transaction_coordinators()
        late_since_ms = broker.env.clock.wall_ms() - broker.config.transaction_max_timeout_ms - LATE_BUFFER_MS
        return sum(
            self._is_open(each)
            and (
                (each.producer_id not in holders and (coordinators or each in self.nobodys))
                or SET_BY_A_CLOCK_MS < _began_ms(each, holders) < late_since_ms
            )
            for each in blockers
        )

    def _transaction_coordinators(self) -> bool:
        """Whether all transaction coordinators are on this broker and have read their logs."""
        topic = self._broker.metadata.image.topics.get("__transaction_state")
        shards = list(self._broker.coordination.transactions.shards())
        if topic is None:
            return True  # no transaction was ever begun by the rules
        return len(shards) == len(topic.partitions) and all(shard.loaded for shard in shards)

    def _is_open(self, blocker: OpenedHere) -> bool:
        held = self._broker.partitions.topic(blocker.topic) or {}
        partition = held.get(blocker.partition)
        return partition is not None and (
            partition.stable.open_transactions.get(blocker.producer_id) == blocker.first_offset
        )

    # -- groups

    def judge_groups(self, lines: Lines) -> Iterator[None]:
        """How far each group is and whether it keeps up."""
        broker = self._broker
        now_ms = broker.env.clock.wall_ms()
        one_by_one = broker.config.metrics_partition_labels
        states: Counter[str] = Counter()
        seen: dict[tuple[str, str, int], Window] = {}
        late: dict[str, int] = {}
        worked = loading = 0
        shards = list(broker.coordination.groups.shards())
        for shard in shards:
            if not shard.loaded:
                loading += 1
                continue
            for group in list(shard.machine.groups()):
                group_id, worst, behind_ms = group.group_id, BurrowStatus.OK, 0
                states[group.state.value] += 1
                lines.add(of.GROUP_MEMBERS, len(group.members), group_id)
                for topic, offsets in list(shard.machine.committed(group_id).items()):
                    held = broker.partitions.topic(topic) or {}
                    offset_sum = lag_sum = stable_sum = 0
                    for index, committed in list(offsets.items()):
                        worked += 1
                        if worked % GROUP_PARTITIONS_AT_ONCE == 0:
                            yield
                        key = (group_id, topic, index)
                        ends: shapes.Ends | None = held.get(index)
                        if ends is None:
                            ends = self._elsewhere(topic, index, committed.offset)
                            if ends is None:
                                continue
                        left = ends.left_from(committed.offset)
                        lag = left.decided + left.undecided
                        offset_sum += committed.offset
                        lag_sum += lag
                        stable_sum += left.decided
                        worst = max(worst, self._judge(key, seen, committed, lag, now_ms))
                        if (window := seen.get(key)) is not None:
                            had = ends.last_stable_offset if left.decided else committed.offset
                            behind_ms = max(behind_ms, window.behind_ms(committed.offset, had, now_ms))
                        if one_by_one:
                            lines.add(of.GROUP_OFFSET, committed.offset, *key)
                            lines.add(of.GROUP_LAG, lag, *key)
                    lines.add(of.GROUP_OFFSET_SUM, offset_sum, group_id, topic)
                    lines.add(of.GROUP_LAG_SUM, lag_sum, group_id, topic)
                    lines.add(of.GROUP_STABLE_LAG, stable_sum, group_id, topic)
                lines.add(of.GROUP_STATUS, int(worst), group_id)
                lines.add(of.GROUP_LAG_SECONDS, behind_ms / 1000, group_id)
                if worst is not BurrowStatus.OK:
                    late[group_id] = int(worst)
                if pending := shard.machine.pending(group_id):
                    lines.add(of.GROUP_PENDING, pending, group_id)
            yield
        self._windows, self.late_groups = seen, late
        for state, count in states.items():
            lines.add(of.GROUPS, count, state)
        lines.add(of.COORDINATORS, len(shards), "group")
        lines.add(of.COORDINATORS_LOADING, loading, "group")

    def _judge(
        self,
        key: tuple[str, str, int],
        seen: dict[tuple[str, str, int], Window],
        committed: shapes.Committed,
        lag: int,
        now_ms: int,
    ) -> BurrowStatus:
        if len(seen) >= WINDOWS_MAX:
            return BurrowStatus.OK
        window = seen[key] = self._windows.get(key) or Window()
        window.take(committed.offset, committed.commit_timestamp_ms, committed.offset + lag)
        return window.judge(lag, now_ms)

    def _elsewhere(self, topic: str, index: int, offset: int) -> shapes.Ends | None:
        """The end of a partition that is not held here, for a group at this offset; None if it was not told yet."""
        lowest = self.wanted.get((topic, index), offset)
        if len(self.wanted) < WANTED_MAX or (topic, index) in self.wanted:
            self.wanted[topic, index] = min(lowest, offset)
        return self.elsewhere.get((topic, index))

    # -- requests, disks

    def _requests(self, lines: Lines) -> None:
        requests = self._broker.requests
        for key, api in sorted(requests.apis.items(), key=itemgetter(0)):
            name = key.title().replace("_", "")  # Kafka's own metrics write EndTxn
            lines.add_histogram(of.REQUEST_SECONDS, api.seconds, name)
            lines.add(of.REQUESTS, sum(api.seconds.counts), name)
            for part, shown in QUANTILES:
                lines.add(of.REQUEST_MS, round(quantile(api.seconds, part) * 1000, 3), name, shown)
            for error, count in sorted(api.errors.items()):
                lines.add(of.REQUEST_ERRORS, count, name, getattr(error, "name", error))
        for listener, count in requests.connections.items():
            lines.add(of.CONNECTIONS, count, listener)
        http = requests.http
        for (path, method, status), count in sorted(http.answered.items()):
            lines.add(of.HTTP_REQUESTS, count, path, method, status)
        for path, seconds in sorted(http.seconds.items(), key=itemgetter(0)):
            lines.add_histogram(of.HTTP_SECONDS, seconds, path)
        for slug, count in sorted(http.problems.items()):
            lines.add(of.HTTP_PROBLEMS, count, slug)
        lines.add(of.HTTP_UNDER_WAY, http.under_way)
        lines.add(of.HTTP_STREAMS, http.streams)
        for state, count in http.keys().items():
            lines.add(of.IDEMPOTENCY_KEYS, count, state)
        lines.add(of.IDEMPOTENCY_CONFLICT, http.problems.get("request-in-flight", 0))
        lines.add(of.IDEMPOTENCY_MISMATCH, http.problems.get("key-reused", 0))
        lines.add(of.IDEMPOTENCY_REPLAYED, http.replayed)

    def _disks(self, lines: Lines) -> None:
        for family, count_bytes in disk_bytes():
            lines.add(family, count_bytes)
        folders = self._broker.folders
        lines.add(of.OFFLINE_LOG_DIRS, sum(folder.failed is not None for folder in folders))
        for folder in folders:
            lines.add(of.FOLDER_FAILED, int(folder.failed is not None), folder.name)
            lines.add(of.FOLDER_FULL, int(folder.headroom.is_short), folder.name)
            lines.add(of.UNUSED, len(folder.unused), folder.name)
            lines.add(of.UNUSED_BYTES, sum(folder.unused.values()), folder.name)
            lines.add_histogram(of.FSYNC, folder.flusher.seconds, folder.name)
            try:
                space = folder.disk.space()
            except OSError:
                continue  # unknown: this metric is left out, and the one above tells why
            lines.add(of.DISK_FREE, space.free_bytes, folder.name)
            lines.add(of.DISK_TOTAL, space.total_bytes, folder.name)


def _began_ms(opened: OpenedHere, holders: Mapping[int, Holder]) -> int:
    """Its records may tell older times than that of their writing."""
    holder = holders.get(opened.producer_id)
    return opened.began_ms if holder is None else holder.started_ms


class _TopicSums:
    """What clients did in the partitions of one topic on this broker."""

    def __init__(self) -> None:
        self.records_in = 0
        self._values = [0] * len(_BY_TOPIC)

    def add(self, tally: shapes.PartitionTally, unknown: int) -> None:
        self.records_in += tally.records_in
        values = (
            *(tally.records_in, tally.bytes_in, tally.bytes_out, tally.appended + tally.refused, tally.refused),
            *(tally.reads + tally.failed_reads, tally.failed_reads),
            *(tally.fenced, tally.duplicates, tally.out_of_order, tally.outside_transaction, unknown),
        )
        if any(values):
            self._values = [sum(pair) for pair in zip(self._values, values, strict=True)]

    def tell(self, lines: Lines, topic: str) -> None:
        for family, value in zip(_BY_TOPIC, self._values, strict=True):
            lines.add(family, value, topic)


_BY_TOPIC: Final = (
    *(of.MESSAGES_IN, of.BYTES_IN, of.BYTES_OUT, of.PRODUCE_REQUESTS, of.FAILED_PRODUCE),
    *(of.FETCH_REQUESTS, of.FAILED_FETCH),
    *(of.PRODUCER_FENCED, of.PRODUCER_DUPLICATES, of.PRODUCER_OUT_OF_ORDER, of.PRODUCER_OUTSIDE),
    of.PRODUCER_UNKNOWN,
)


class _PartitionLines:
    """The families that have a line for each partition. Their labels are written once for all families."""

    FAMILIES: Final = (
        *(of.CURRENT_OFFSET, of.OLDEST_OFFSET, of.IN_SYNC_REPLICA, of.LEADER, of.LEADER_IS_PREFERRED, of.REPLICAS),
        *(of.REPLICAS_COUNT, of.UNDER_REPLICATED, of.UNDER_MIN_ISR, of.AT_MIN_ISR, of.LSO_LAG, of.LOG_SIZE),
        *(of.PARTITION_START, of.PARTITION_STABLE, of.PARTITION_HIGH, of.PARTITION_END),
        *(of.PARTITION_LSO_RECORDS, of.PARTITION_LSO_SECONDS, of.PARTITION_ABORTED),
    )

    def __init__(self, lines: Lines) -> None:
        self._to = [(lines.of(family).append, family.name) for family in self.FAMILIES]

    def add(
        self,
        topic: str,
        index: int,
        partition: shapes.Partition,
        placed: shapes.Placed,
        in_sync: tuple[bool, bool, bool],
        held_up: int,
        waits_s: float,
    ) -> None:
        labels = f'{{topic="{escape(topic)}",partition="{index}"}}'
        log, high = partition.log, partition.high_watermark
        under, under_min, at_min = in_sync
        start = log.start_offset
        values = (
            *(high, start, len(placed.isr), placed.leader, int(placed.leader == placed.replicas[0])),
            *(len(placed.replicas), len(placed.replicas), int(under), int(under_min), int(at_min)),
            *(held_up, log.size_bytes),
            *(start, high - held_up, high, log.end_offset, held_up, waits_s, partition.stable.aborted_count),
        )
        for (append, name), value in zip(self._to, values, strict=True):
            append(f"{name}{labels} {value}\n")


def disk_bytes() -> Iterator[tuple[of.Family, int]]:
    """What Linux counts of the process's disk traffic. Where that is not shown, there is nothing to tell."""
    try:
        told = dict(line.split(": ") for line in PROCESS_IO.read_text().splitlines())
        yield of.DISK_READ, int(told["read_bytes"])
        yield of.DISK_WRITTEN, int(told["write_bytes"])
    except (OSError, ValueError, LookupError):
        return
