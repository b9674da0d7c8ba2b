"""Speaks with a group coordinator. There are the topics `orders` (four partitions) and `events` (three).

join g client=ann [member=ann-1] [topics=orders,events] [owns=orders:0,1] [instance=i] [session=10000]
sync g member=ann-1 generation=1 [ann-1=orders:0,1 bob-2=orders:2,3]       the leader says who reads what
beat g member=ann-1 generation=1
leave g member=ann-1
walk g member=cid epoch=0 [topics=orders] [owns=orders:0,1|nothing] [instance=i]     a heartbeat of KIP-848
commit g orders-0=7 [member=ann-1 generation=1] [producer=5]               of an open transaction
end producer=5 commit|abort                                                the transaction's markers are written
fetch g orders-0 [stable]
forget g orders-0                   delete the offset
delete g   describe g   list
topic orders=6   drop orders        the topic grows, or is deleted
tick 60001                          milliseconds pass
restart                             another broker replays the log
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from service.groups.commands import (
    ClassicGroupFacts,
    CommitOffsets,
    CommitReply,
    CommitTransactionalOffsets,
    ConsumerGroupFacts,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsReply,
    FaultReply,
    FetchOffsets,
    FetchReply,
    ForgetTopic,
    Heartbeat,
    JoinGroup,
    JoinReply,
    LeaveGroup,
    LeaveReply,
    LeavingMember,
    OffsetToCommit,
    PartitionsAsked,
    SyncGroup,
    SyncReply,
)
from service.groups.consumer_protocol import read_assignment, write_assignment
from service.groups.records import read_key, read_offset, read_value
from service.groups.verdicts import Fault, RecordPair
from service.wire.messages import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    OffsetCommitKey,
)
from tests.service.groups.driver import PENDING, Driver, subscription
from tests.transcripts.txn import Words


class GroupsSpeaker:
    def __init__(self) -> None:
        self.driver = Driver()
        self._waiting: dict[int, str] = {}  # requests that have no answer yet, by what they asked
        self._told = 0  # entries of the log
        self._fresh = 0

    def say(self, line: str) -> list[str]:
        answered = self._carry_out(Words(line), line)
        return [*answered, *self._late_answers(), *self._written()]

    def _carry_out(self, words: Words, line: str) -> list[str]:
        driver = self.driver
        match words.verb:
            case "tick":
                driver.wait(int(words.plain[0]))
            case "restart":
                driver.restart()
                self._waiting.clear()
            case "topic":
                for name, count in words.named.items():
                    driver.topics.put(name, int(count))
            case "end":
                driver.end_transaction(int(words.named["producer"]), committed=words.flag("commit"))
            case "list":
                return [f"{group_id}: {' '.join(facts)}".strip() for group_id, facts in driver.listed().items()]
            case "describe":
                return self._describe(words.plain[0])
            case _:
                reply = driver.ask(self._command(words))
                if reply == PENDING:
                    self._waiting[driver.tokens] = line
                    return ["waits"]
                return self._tell(reply)
        return []

    def _late_answers(self) -> Iterator[str]:
        for token in [token for token in self._waiting if token in self.driver.answers]:
            (told,) = self._tell(self.driver.answers[token])
            yield f"then to `{self._waiting.pop(token)}`: {told}"

    def _written(self) -> Iterator[str]:
        for entry in self.driver.log[self._told :]:
            for record in entry.records:
                waits = f" with producer {entry.producer_id}" if entry.producer_id >= 0 else ""
                yield f"  wrote {self._tell_record(record)}{waits}"
        self._told = len(self.driver.log)

    # What is asked ----------------------------------------------------------------------------------------------------

    def _command(self, words: Words) -> Any:
        if words.verb == "drop":
            topic_id = self.driver.topics.id_of(words.plain[0])
            self.driver.topics.remove(words.plain[0])
            return ForgetTopic(words.plain[0], topic_id)
        named, group = words.named, words.plain[0]
        member, instance = named.get("member", ""), named.get("instance")
        generation = int(named.get("generation", -1))
        match words.verb:
            case "join":
                return self._join(named, group)
            case "sync":
                assignments = tuple(
                    (name, write_assignment([(topic, numbers) for topic, numbers in read_partitions(value)], 1))
                    for name, value in named.items()
                    if name not in ("member", "instance", "generation")
                )
                return SyncGroup(group, generation, member, instance, None, None, assignments)
            case "beat":
                return Heartbeat(group, generation, member, instance)
            case "leave":
                return LeaveGroup(group, (LeavingMember(member, instance),))
            case "walk":
                return self._walk(named, group)
            case "commit":
                offsets = tuple(
                    OffsetToCommit(topic, self.driver.topics.id_of(topic), index, int(named[f"{topic}-{index}"]), 0, "")
                    for topic, index in places(named)
                )
                if "producer" in named:
                    producer_id = int(named["producer"])
                    return CommitTransactionalOffsets(group, member, instance, generation, offsets, producer_id, 0)
                return CommitOffsets(group, member, instance, generation, offsets)
            case "fetch":
                asked = tuple(PartitionsAsked(topic, bytes(16), (index,)) for topic, index in places(words.plain))
                return FetchOffsets(group, None, -1, asked, words.flag("stable"))
            case "forget":
                return DeleteOffsets(group, tuple((topic, (index,)) for topic, index in places(words.plain)))
            case "delete":
                return DeleteGroup(group)
        raise ValueError(f"nobody understands {words.verb!r}")

    def _next_fresh(self) -> str:
        self._fresh += 1
        return str(self._fresh)

    def _join(self, named: Mapping[str, str], group: str) -> JoinGroup:
        owned = tuple(read_partitions(named.get("owns", "nothing")))
        metadata = subscription(tuple(named.get("topics", "orders").split(",")), owned)
        return JoinGroup(
            group,
            named.get("member", ""),
            named.get("instance"),
            "consumer",
            (("range", metadata),),
            int(named.get("session", 10_000)),
            60_000,
            named.get("client", ""),
            "/127.0.0.1",
            self._next_fresh() if "member" not in named else "",
        )

    def _walk(self, named: Mapping[str, str], group: str) -> ConsumerHeartbeat:
        epoch = int(named["epoch"])
        says = named.get("owns", "nothing" if epoch == 0 else None)
        topics = named.get("topics", "orders" if epoch == 0 else None)
        owned = {self.driver.topics.id_of(topic): tuple(each) for topic, each in read_partitions(says or "nothing")}
        return ConsumerHeartbeat(
            group,
            named["member"],
            epoch,
            named.get("instance"),
            None,
            60_000 if epoch == 0 else -1,
            None if topics is None else tuple(topics.split(",")),
            None,
            None,
            None if says is None else owned,
            "client",
            "/127.0.0.1",
            "",
        )

    # What comes of it -------------------------------------------------------------------------------------------------

    def _tell(self, reply: Any) -> list[str]:
        if getattr(reply, "fault", None) is not None and not (isinstance(reply, JoinReply) and reply.member_id):
            return [tell_fault(reply.fault)]
        match reply:
            case JoinReply():
                if reply.fault is not None:
                    return [f"{tell_fault(reply.fault)} member={reply.member_id}"]
                members = " members=" + ",".join(each.member_id for each in reply.members) if reply.members else ""
                leader = f" leader={reply.leader}" if reply.leader else ""
                skips = " assigned already" if reply.skip_assignment else ""
                return [f"joined member={reply.member_id} generation={reply.generation}{leader}{members}{skips}"]
            case SyncReply():
                return [f"reads {self._tell_assignment(reply.assignment)}"]
            case LeaveReply():
                return [tell_fault(member.fault, "left") for member in reply.members]
            case ConsumerHeartbeatReply():
                reads = "" if reply.assignment is None else f" reads {self._tell_held(reply.assignment)}"
                return [f"epoch={reply.member_epoch}{reads}"]
            case CommitReply():
                return [tell_fault(fault, "committed") for fault in reply.faults]
            case FetchReply():
                return [
                    f"{topic.topic}-{each.partition}={each.offset if each.fault is None else tell_fault(each.fault)}"
                    for topic in reply.topics
                    for each in topic.offsets
                ]
            case DeleteOffsetsReply():
                return [
                    f"{topic}-{index}: {tell_fault(fault, 'deleted')}"
                    for topic, found in reply.topics
                    for index, fault in found
                ]
            case FaultReply():
                return ["done"]
        raise AssertionError(reply)

    def _describe(self, group: str) -> list[str]:
        (kind, *_) = self.driver.listed().get(group, ("",))
        facts: ClassicGroupFacts | ConsumerGroupFacts
        if kind != "consumer":
            facts = self.driver.classic(group)
            members = [f"  {each.member_id} {self._tell_assignment(each.assignment)}" for each in facts.members]
        else:
            facts = self.driver.consumer(group)
            members = [
                f"  {each.member_id} epoch={each.member_epoch}"
                f" {tell_partitions((topic.topic, topic.partitions) for topic in each.assigned)}"
                f" target {tell_partitions((topic.topic, topic.partitions) for topic in each.target)}"
                for each in facts.members
            ]
        return [facts.state, *members]

    def _tell_assignment(self, data: bytes) -> str:
        read = read_assignment(data)
        assert read is not None
        return tell_partitions(read.partitions)

    def _tell_held(self, held: Mapping[bytes, Iterable[int]]) -> str:
        return tell_partitions((self._topic_name(topic_id), numbers) for topic_id, numbers in held.items())

    def _topic_name(self, topic_id: bytes) -> str:
        facts = self.driver.topics.by_id(topic_id)
        return "gone" if facts is None else facts.name

    def _tell_record(self, record: RecordPair) -> str:
        key, value = read_key(record[0]), record[1]
        match key:
            case OffsetCommitKey() | LegacyOffsetCommitKey():
                what = f"{key.group} {key.topic}-{key.partition}"
                return f"{what}: gone" if value is None else f"{what}: {read_offset(value).offset}"
            case GroupMetadataKey():
                return f"{key.group}: {'gone' if value is None else self._tell_generation(value)}"
        what = " ".join([type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key"), *names_in(key)])
        return f"{what}: {'gone' if value is None else self._tell_part(key, value)}"

    def _tell_generation(self, value: bytes) -> str:
        said = read_value(GroupMetadataValue, value)
        members = [f"{each.member_id} {self._tell_assignment(each.assignment)}" for each in said.members]
        return f"generation {said.generation}, " + ("; ".join(members) or "no members")

    def _tell_part(self, key: object, value: bytes) -> str:
        match key:
            case ConsumerGroupMetadataKey():
                return f"epoch={read_value(ConsumerGroupMetadataValue, value).epoch}"
            case ConsumerGroupMemberMetadataKey():
                member = read_value(ConsumerGroupMemberMetadataValue, value)
                speaks = " classic" if member.classic_member_metadata is not None else ""
                return ",".join(member.subscribed_topic_names) + speaks
            case ConsumerGroupTargetAssignmentMetadataKey():
                return f"epoch={read_value(ConsumerGroupTargetAssignmentMetadataValue, value).assignment_epoch}"
            case ConsumerGroupTargetAssignmentMemberKey():
                target = read_value(ConsumerGroupTargetAssignmentMemberValue, value)
                return self._tell_held({each.topic_id: each.partitions for each in target.topic_partitions})
            case ConsumerGroupCurrentMemberAssignmentKey():
                current = read_value(ConsumerGroupCurrentMemberAssignmentValue, value)
                has = self._tell_held({each.topic_id: each.partitions for each in current.assigned_partitions})
                lets_go = {each.topic_id: each.partitions for each in current.partitions_pending_revocation}
                told = f"epoch={current.member_epoch} {has}"
                return f"{told} lets go of {self._tell_held(lets_go)}" if lets_go else told
        raise AssertionError(key)


def names_in(key: Any) -> list[str]:
    return [key.group_id, key.member_id] if hasattr(key, "member_id") else [key.group_id]


def places(names: Iterable[str]) -> list[tuple[str, int]]:
    """`orders-0` among other words."""
    cut = [name.rpartition("-") for name in names]
    return [(topic, int(index)) for topic, _, index in cut if topic and index.isdigit()]


def read_partitions(text: str) -> list[tuple[str, list[int]]]:
    """`orders:0,1;events:2`, or `nothing`."""
    parts = [part.split(":") for part in text.split(";") if part != "nothing"]
    return [(topic, [int(index) for index in numbers.split(",")]) for topic, numbers in parts]


def tell_partitions(held: Iterable[tuple[str, Iterable[int]]]) -> str:
    told = (f"{topic}:{','.join(str(each) for each in sorted(numbers))}" for topic, numbers in held)
    return ";".join(told) or "nothing"


def tell_fault(fault: Fault | None, well: str = "") -> str:
    return well if fault is None else fault.name.lower().replace("_", " ")
