"""`oncelog doctor`: whether the cluster is healthy, what is wrong, and what to do about it.

Checks are independent: one that can't be made says so, and the others go on. The exit status is 6 if something is
wrong, so that a monitor can run it.
"""

from __future__ import annotations

import asyncio
import ctypes
import resource
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import click

from log.ids import TopicPartition
from service.broker.internal_topics import INTERNAL_TOPICS
from service.cli.cluster import away
from service.cli.config_client import BROKER, TOPIC
from service.cli.connect import listen, with_cluster
from service.cli.failures import CliError, Exit
from service.cli.moving import least_in_sync
from service.cli.output import Output, output_option, show
from service.cli.txn import find_pins
from service.client.cluster import LATEST, Cluster, Deadline
from service.client.ends import Ends, ends_of
from service.client.failures import ClientFailure, error_name
from service.client.groups import committed_offsets, list_groups
from service.client.http_port import why_no_http
from service.client.reader import Reader, Selection
from service.client.transactions import list_transactions
from service.settings.broker import BrokerConfig
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeClusterRequest,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribedTrouble,
    DescribeHealthRequest,
    DescribeHealthResponse,
    DescribeLogDirsRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)

OK, WARNING, PROBLEM, UNKNOWN = "ok", "warning", "problem", "unknown"
DESCRIPTORS: Final = 4096
NEARLY_FULL: Final = 0.1
GROUPS_S: Final = 30.0
"""How long offsets of groups are asked for, and how long those are looked at that seem to stand still."""
NAMED: Final = 3
STANDING_S: Final = 6.0
"""Consumers that get on commit more often: by themselves every five seconds."""
READ_S: Final = 2.0
MOVING_S: Final = 1.0
HTTP_S: Final = 3.0
NOT_KEPT: Final = 5
"""What Linux's adjtimex returns if no program keeps the clock."""
KERNEL_TIMES_BYTES: Final = 512
COLUMNS = ("check", "state", "finding", "cure")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of one check, and what to do."""

    check: str
    state: str
    finding: str
    cure: str | None


Check = Callable[[Cluster], Awaitable[list[Diagnosis]]]


def _well(check: str, finding: str) -> list[Diagnosis]:
    return [Diagnosis(check, OK, finding, None)]


def _named(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


@click.command()
@output_option
@with_cluster
async def command(cluster: Cluster, output: Output) -> None:
    """Check a cluster: what is wrong, and what to do about it.

    Looked at are brokers, their HTTP APIs, sessions, disks, replicas, transactions, groups, and this machine's limits
    and clock. Ends with 6 when something is wrong, with 5 when no broker answers.
    """
    await cluster.metadata([])
    await listen(cluster, cluster.timeout_s)
    rows = _limits() + _clock()
    for name, check in CHECKS.items():
        try:
            rows += await check(cluster)
        except ClientFailure as failure:
            rows.append(Diagnosis(name, UNKNOWN, failure.message, "see what the brokers' logs say, and ask again"))
    show(rows, output, columns=COLUMNS)
    wrong = [row for row in rows if row.state in (PROBLEM, UNKNOWN)]
    if wrong:
        raise CliError(f"{len(wrong)} of {len(rows)} checks found something wrong: {wrong[0].finding}", Exit.CONDITION)


def _limits() -> list[Diagnosis]:
    """The limits of this machine, which may be a broker's."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < DESCRIPTORS:
        cure = "raise the hard limit (LimitNOFILE=, ulimits:) where a broker runs: connections and logs share it"
        return [Diagnosis("limits", WARNING, f"a process here may open {most} files", cure)]
    return _well("limits", "a process here may open enough files")


def _clock() -> list[Diagnosis]:
    """The clock of this machine. Brokers need no common clock, but retention, timeouts and the ages that commands show
    do.
    """
    ask_kernel = getattr(ctypes.CDLL(None), "adjtimex", None)
    if ask_kernel is None:
        return _well("clock", "this system does not tell whether its clock is kept in step")
    if ask_kernel(ctypes.create_string_buffer(KERNEL_TIMES_BYTES)) == NOT_KEPT:
        cure = "run chrony or systemd-timesyncd where a broker runs, unless its host keeps the clock"
        return [Diagnosis("clock", WARNING, "nothing keeps this machine's clock in step", cure)]
    return _well("clock", "this machine's clock is kept in step")


async def _brokers(cluster: Cluster) -> list[Diagnosis]:
    found = []
    for failure in cluster.silent.values():
        cure = "is it up, and does its advertised.listeners name an address that can be reached from here?"
        found.append(Diagnosis("brokers", PROBLEM, failure.message, cure))
    for node, held in sorted((await away(cluster)).items()):
        cure = "start it again (its log says why it ended); if it is gone for good: `oncelog cluster drain`"
        found.append(Diagnosis("brokers", PROBLEM, f"broker {node} is away, and {held} replicas with it", cure))
    return found or _well("brokers", f"{len(await cluster.nodes())} registered, and each answers at its address")


FAILED, FULL, UNUSED = "failed", "full", "unused"
"""What a broker says of its data folders (service/broker/health.py)."""


async def _health(cluster: Cluster) -> list[Diagnosis]:
    """What each broker finds wrong between itself and the others."""
    found = [
        Diagnosis("health", PROBLEM, f"broker {node}: {each.says}", CURES.get(each.kind, "see its log"))
        for node in await cluster.nodes()
        for each in await _troubles(cluster, node)
        if each.kind not in (FAILED, FULL, UNUSED)  # the check of disks tells that
    ]
    return found or _well("health", "brokers reach each other, also by HTTP, their clocks agree, and replicas keep up")


async def _troubles(cluster: Cluster, node: int) -> list[DescribedTrouble]:
    return (await _told(cluster, node)).troubles


async def _told(cluster: Cluster, node: int) -> DescribeHealthResponse:
    """What a broker tells of itself and of others; nothing if it is older than this question."""
    try:
        if await cluster.offers(DescribeHealthRequest(), node=node):
            return await cluster.ask(DescribeHealthRequest(), node=node)
    except ClientFailure:
        pass  # another check tells that it does not answer
    return DescribeHealthResponse()


async def _http(cluster: Cluster) -> list[Diagnosis]:
    """Whether the HTTP APIs answer here. That brokers reach them is for their own check: they may have other ways."""
    urls = {node: urlsplit(url) for node in await cluster.nodes() if (url := (await _told(cluster, node)).http_url)}
    whys = await asyncio.gather(
        *(why_no_http(node, url.hostname or "", url.port or 0, HTTP_S) for node, url in urls.items())
    )
    cure = "if clients here need it: open the port, or name a host in its http.listeners that they reach"
    found = [
        Diagnosis(
            "http", WARNING, f"the HTTP API of broker {node} can't be reached from here at {url.geturl()}: {why}", cure
        )
        for (node, url), why in zip(urls.items(), whys, strict=True)
        if why is not None
    ]
    return found or _well("http", f"{len(urls)} HTTP APIs, and each answers here" if urls else "no broker has one")


async def _sessions(cluster: Cluster) -> list[Diagnosis]:
    """A broker without a session with the metadata store answers, but says of all its partitions that it does not lead
    them.
    """
    led: dict[int, TopicPartition] = {}
    for topic in await cluster.metadata(None):
        for part in topic.partitions:
            led.setdefault(part.leader_id, TopicPartition(topic.name or "", part.partition_index))
    lost = [node for node in led if node >= 0 and await _denies(cluster, node, led[node])]
    if lost:  # or its partitions have just got other leaders
        await asyncio.sleep(MOVING_S)
        lost = [node for node in lost if await _denies(cluster, node, led[node])]
    if lost:
        cure = "is the metadata store (ZooKeeper, PostgreSQL) up, and can the broker reach it? See the broker's log"
        named = _named([str(node) for node in lost])
        return [Diagnosis("session", PROBLEM, f"brokers that lead nothing of what they should lead: {named}", cure)]
    return _well("session", "every broker leads what it should lead")


async def _denies(cluster: Cluster, node: int, partition: TopicPartition) -> bool:
    wanted = ListOffsetsTopic(partition.topic, [ListOffsetsPartition(partition.partition, -1, LATEST)])
    try:
        answer = await cluster.ask(ListOffsetsRequest(-1, 0, [wanted]), node=node)
    except ClientFailure:
        return False  # another check tells that it does not answer
    return answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def _controller(cluster: Cluster) -> list[Diagnosis]:
    told = await cluster.ask(DescribeClusterRequest())
    if told.controller_id not in await cluster.nodes():
        cure = "bring the metadata store back (ZooKeeper, PostgreSQL): brokers elect a controller in it"
        return [Diagnosis("controller", PROBLEM, "no broker controls the cluster", cure)]
    return _well("controller", f"broker {told.controller_id} controls the cluster")


async def _partitions(cluster: Cluster) -> list[Diagnosis]:
    leaderless: list[str] = []
    copyless: list[str] = []
    thin: dict[TopicPartition, int] = {}
    count = 0
    for topic in await cluster.metadata(None):
        for part in topic.partitions:
            count += 1
            if part.leader_id < 0:
                (leaderless if part.isr_nodes else copyless).append(f"{topic.name}-{part.partition_index}")
            elif len(part.isr_nodes) < len(part.replica_nodes):
                thin[TopicPartition(topic.name or "", part.partition_index)] = len(part.isr_nodes)
    found = []
    if leaderless:
        cure = "bring back a broker of their in-sync sets, on its disk (`oncelog topic describe`)"
        found.append(Diagnosis("partitions", PROBLEM, f"{len(leaderless)} have no leader: {_named(leaderless)}", cure))
    if copyless:
        cure = (
            "let another copy lead, with what it has: `oncelog topic elect TOPIC --unclean`; or is that disk to be had"
            " (docs/cluster.md, what a loss costs)?"
        )
        names = _named(copyless)
        told = f"{len(copyless)} have no leader, for the disk of the last replica in sync is gone: {names}"
        found.append(Diagnosis("partitions", PROBLEM, told, cure))
    least = await least_in_sync(cluster, {each.topic for each in thin})
    if refusing := [f"{each.topic}-{each.partition}" for each, in_sync in thin.items() if in_sync < least[each.topic]]:
        cure = "bring back the brokers that hold them: below min.insync.replicas writes with acks=all are refused"
        names = _named(refusing)
        found.append(Diagnosis("partitions", PROBLEM, f"{len(refusing)} have too few replicas in sync: {names}", cure))
    if thin:
        cure = "is a broker down, its disk slow, or the network to it?"
        names = _named([f"{each.topic}-{each.partition}" for each in thin])
        found.append(Diagnosis("partitions", WARNING, f"{len(thin)} lack a replica: {names}", cure))
    return found or _well("partitions", f"{count} have a leader and all their replicas in sync")


async def _disks(cluster: Cluster) -> list[Diagnosis]:
    found = []
    for node in await cluster.nodes():
        if node in cluster.silent:
            continue  # another check tells that it does not answer
        troubles = await _troubles(cluster, node)
        full = {each.about for each in troubles if each.kind == FULL}
        cure = "see what is in them, then remove them (docs/operating.md, what a start moves aside)"
        unused = [f"broker {node}: {each.says}" for each in troubles if each.kind == UNUSED]
        found += [Diagnosis("disks", WARNING, each, cure) for each in unused]
        for folder in (await cluster.ask(DescribeLogDirsRequest(topics=[]), node=node)).results:
            where = f"{folder.log_dir} of broker {node}"
            if folder.error_code:
                cure = "see the broker's log; replace the disk and start the broker again"
                found.append(Diagnosis("disks", PROBLEM, f"{where} is out of service", cure))
            elif folder.log_dir in full:
                cure = "lower retention, trim a topic, or give it a larger disk: producers go on by themselves then"
                found.append(Diagnosis("disks", PROBLEM, f"{where} is full: producers are refused", cure))
            elif 0 <= folder.usable_bytes < NEARLY_FULL * folder.total_bytes:
                cure = "lower retention, trim a topic, or give it a larger disk, before producers are refused"
                free = f"{where} has {folder.usable_bytes * 100 // folder.total_bytes} % free"
                found.append(Diagnosis("disks", WARNING, free, cure))
    whose = " of the brokers that answer" if cluster.silent else ""
    return found or _well("disks", f"every data folder{whose} is in service and has room")


async def _replication(cluster: Cluster) -> list[Diagnosis]:
    """On several brokers, a single replica of everything is seldom intended; nor are fewer than a new topic would get,
    as after a drain, or so few that the loss of one stops writers.
    """
    nodes = await cluster.nodes()
    if len(nodes) < 2:
        return _well("replication", "one broker: one copy")
    topics = [topic for topic in await cluster.metadata(None) if topic.name and topic.partitions]
    copies = {topic.name or "": min(len(each.replica_nodes) for each in topic.partitions) for topic in topics}
    single = [name for name, count in copies.items() if count == 1]
    several = {name: count for name, count in copies.items() if 1 < count < len(nodes)}
    least, usual = await least_in_sync(cluster, several), await _usual_copies(cluster, several)
    few = [name for name, count in several.items() if count < min(usual, len(nodes)) or count <= least[name]]
    found = []
    if single:
        most = min(3, len(nodes))
        cure = (
            f"`oncelog topic reassign TOPIC --replication-factor {most}`; for new topics --replicas {most}, or"
            " default.replication.factor"
        )
        told = f"{len(single)} topics are on one broker only: {_named(single)}"
        found.append(Diagnosis("replication", WARNING, told, cure))
    if few:
        cure = "`oncelog topic reassign TOPIC --replication-factor N`"
        told = (
            f"{len(few)} topics have fewer copies than default.replication.factor, or only as many as"
            f" min.insync.replicas: {_named(few)}"
        )
        found.append(Diagnosis("replication", WARNING, told, cure))
    return found or _well("replication", "as many copies as new topics get")


async def _usual_copies(cluster: Cluster, concerned: Collection[str]) -> int:
    """How many copies a new topic gets, as the first broker that answers has it."""
    for node in await cluster.nodes() if concerned else ():
        if node not in cluster.silent:
            resource = DescribeConfigsResource(BROKER, str(node), ["default.replication.factor"])
            answer = await cluster.ask(DescribeConfigsRequest(resources=[resource]), node=node)
            return int(answer.results[0].configs[0].value or 1)
    return 1


async def _transactions(cluster: Cluster) -> list[Diagnosis]:
    await list_transactions(cluster, states=["Ongoing"])  # raises if a coordinator does not answer
    hung = [each for each in await find_pins(cluster) if each.hangs]
    if hung:
        where = _named([f"{each.topic}-{each.partition} at {each.first_open_offset}" for each in hung])
        cure = "`oncelog txn hanging`, then `oncelog txn abort TOPIC PARTITION --start-offset N`"
        return [Diagnosis("transactions", PROBLEM, f"{len(hung)} hang, and readers wait: {where}", cure)]
    return _well("transactions", "none hangs, and every coordinator answers")


async def _groups(cluster: Cluster) -> list[Diagnosis]:
    """All groups are looked at, as far as there is time for it: it says how many were not."""
    listed = await list_groups(cluster)
    deadline = Deadline(GROUPS_S)
    committed: dict[str, dict[TopicPartition, int]] = {}
    for each in listed:
        if deadline.passed():
            break
        committed[each.group_id] = await committed_offsets(cluster, each.group_id)
    abandoned = {each.group_id for each in listed if each.group_state == "Empty"}
    left: list[str] = []
    unread: dict[str, dict[TopicPartition, int]] = {}
    ends = await _ends(cluster, committed)
    for group, offsets in committed.items():
        there = {each: ends[each].left_from(offset) for each, offset in offsets.items() if each in ends}
        if group in abandoned:
            if lag := sum(each.total for each in there.values()):
                at_most = "" if all(each.is_exact for each in there.values()) else "at most "
                left.append(f"{group} ({at_most}{lag})")
        elif more := {each: offsets[each] for each, records in there.items() if records.decided}:
            unread[group] = more
    found = []
    if left:
        cure = "start their consumers, or delete them (`oncelog group delete`) if nobody needs them any more"
        found.append(Diagnosis("groups", WARNING, f"{len(left)} have lag and no members: {_named(left)}", cure))
    standing, judged = await _standing(cluster, unread)
    if standing:
        cure = "see their consumers' logs (`oncelog group members`): is there a record that they can't get past?"
        what = f"{len(standing)} committed nothing for {STANDING_S:.0f} s, with more to read: {_named(standing)}"
        found.append(Diagnosis("groups", WARNING, what, cure))
    looked_at = len(committed) - len(unread) + judged
    if looked_at < len(listed):
        what = f"{len(listed) - looked_at} of {len(listed)} were not looked at: it would take too long"
        found.append(Diagnosis("groups", WARNING, what, "see `oncelog_group_status` in the brokers' metrics"))
    return found or _well("groups", f"none of {looked_at} stands still with more to read")


async def _ends(cluster: Cluster, committed: Mapping[str, Mapping[TopicPartition, int]]) -> dict[TopicPartition, Ends]:
    """The ends of all partitions that groups have read, as far as brokers tell of them."""
    led = {
        TopicPartition(topic.name or "", part.partition_index)
        for topic in await cluster.metadata(None)
        for part in topic.partitions
        if part.leader_id >= 0 and part.leader_id not in cluster.silent
    }
    since: dict[TopicPartition, int] = {}
    for there in committed.values():
        for partition, offset in there.items():
            if partition in led:
                since[partition] = min(since.get(partition, offset), offset)
    return await ends_of(cluster, since)


async def _standing(cluster: Cluster, unread: Mapping[str, Mapping[TopicPartition, int]]) -> tuple[list[str], int]:
    """The groups that commit nothing for a while in a partition where there is a record for them, and how many there
    was time to judge. Aborted records are none: a group that has read all but these need not commit.
    """
    if unread:
        await asyncio.sleep(STANDING_S)
    deadline = Deadline(GROUPS_S)
    found: list[str] = []
    for judged, (group, before) in enumerate(unread.items()):
        if deadline.passed():
            return found, judged
        now = await committed_offsets(cluster, group)
        same = {each: offset for each, offset in before.items() if now.get(each) == offset}
        if same and (where := await _readable(cluster, same)) is not None:
            found.append(f"{group} ({where.topic}-{where.partition} at {before[where]})")
    return found, len(unread)


async def _readable(cluster: Cluster, positions: dict[TopicPartition, int]) -> TopicPartition | None:
    """A partition in which there is a decided record at its offset or behind it."""
    reader = Reader(cluster, positions, Selection())
    try:
        async with asyncio.timeout(READ_S):
            while True:
                for partition, records in await reader.next():
                    if records:
                        return partition
    except TimeoutError:
        return None
    finally:
        await reader.close()


async def _settings(cluster: Cluster) -> list[Diagnosis]:
    """Settings of internal topics that can't be intended."""
    policies = {name: topic.kept(BrokerConfig())["cleanup.policy"] for name, topic in INTERNAL_TOPICS.items()}
    names = [topic.name for topic in await cluster.metadata(None) if topic.name in policies]
    resources = [DescribeConfigsResource(TOPIC, name, ["cleanup.policy"]) for name in names]
    answer = await cluster.ask(DescribeConfigsRequest(resources=resources))
    wrong = [
        f"{result.resource_name} ({policies[result.resource_name]})"
        for result in answer.results
        for config in result.configs
        if config.name == "cleanup.policy" and config.value != policies[result.resource_name]
    ]
    refused = [f"{each.resource_name}: {error_name(each.error_code)}" for each in answer.results if each.error_code]
    if wrong or refused:
        cure = "`oncelog config set -t TOPIC cleanup.policy=POLICY`: what it deletes before its time is forgotten"
        finding = f"internal topics without the cleanup.policy that they need: {_named(wrong + refused)}"
        return [Diagnosis("settings", PROBLEM, finding, cure)]
    return _well("settings", "internal topics are compacted as they must be")


CURES: Final = {
    "session": "is the metadata store (ZooKeeper, PostgreSQL) up, and can the broker reach it?",
    "unreachable": (
        "mend its advertised.listeners or inter.broker.listener.name, its name's address, or the firewall; or its"
        " process hangs: start it again"
    ),
    "stranger": "give each broker its own advertised.listeners",
    "clock": "run chrony or systemd-timesyncd on both machines",
    "http": "open its HTTP port to the other brokers, or name a host in its http.listeners that they reach",
    "stuck": "mend what it says; the partitions are copied on by themselves then",
    "out-of-sync": "start that broker, or see what its log says",
}
"""By the kind of what a broker finds wrong (service/broker/health.py)."""

CHECKS: dict[str, Check] = {
    "brokers": _brokers,
    "health": _health,
    "http": _http,
    "session": _sessions,
    "controller": _controller,
    "partitions": _partitions,
    "replication": _replication,
    "disks": _disks,
    "settings": _settings,
    "transactions": _transactions,
    "groups": _groups,
}
