"""Bugs that group coordinators have had, planted one at a time, each to be caught within `MAX_SEEDS` runs.

`python -m tests.sim.group_mutants` shows how many runs each took and which promise it broke.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import service.groups.classic_kind
import service.groups.consumer_decisions
import service.groups.migration
import service.groups.offset_decisions
from log.clock import ClockWatch
from service.broker.coordinators import Coordinators
from service.broker.shard import Shard
from service.groups.classic_decisions import ClassicDecisions
from service.groups.classic_group import ClassicGroup
from service.groups.commands import DeleteOffsetsReply, FetchOffsets, FetchReply, JoinReply
from service.groups.consumer_decisions import ConsumerDecisions
from service.groups.consumer_group import ConsumerGroup, ConsumerMember, Raised, Tallies, TargetByTopic
from service.groups.consumer_kind import ConsumerKind
from service.groups.coordinator import GroupCoordinator
from service.groups.forgetting import Forgetting
from service.groups.migration import Migration
from service.groups.offset_decisions import OffsetDecisions
from service.groups.offsets import Offsets, OffsetsByTopic
from service.groups.reconciliation import Walk, reconcile
from service.groups.records import consumer_member_record, current_record, member_tombstones, target_epoch_record
from service.groups.resuming import Resuming
from service.groups.states import MemberState
from service.groups.verdicts import Fault, OffsetsPut, RecordPair
from tests.sim import caught, gathering
from tests.sim.groups import run
from tests.sim.run import replaced

MAX_SEEDS = 800
NOTHING_RECORDED: RecordPair = (b"", None)

Planting = contextlib.AbstractContextManager[None]


def what_is_gathered_is_answered_when_it_is_written() -> Planting:
    def write_gathered(shard: Shard[Any]) -> None:
        gathered, shard._gathered, shard._gathered_bytes = shard._gathered, [], 0
        if gathered and shard._write(gathered):
            for decision in gathered:
                shard._deliver(decision)

    return replaced(Shard, "write_gathered", write_gathered)


def a_reader_overtakes_what_is_gathered() -> Planting:
    original = Shard._carry_out

    def carry_out(shard: Shard[Any], decision: Any) -> None:
        if decision.records:
            original(shard, decision)
        else:
            shard._answer(decision)

    return replaced(Shard, "_carry_out", carry_out)


def a_look_does_not_wait_for_what_is_gathered() -> Planting:
    return replaced(Shard, "committed", lambda shard: shard.partition.committed(shard._written_end_offset))


def a_marker_overtakes_what_is_gathered() -> Planting:
    return replaced(Coordinators, "write_gathered", lambda coordinators, index: None)


def a_refused_append_is_not_noticed() -> Planting:
    original = Shard._give_up

    def give_up(shard: Shard[Any]) -> None:
        if not shard.partition.is_leading or not shard.loaded:
            original(shard)

    return replaced(Shard, "_give_up", give_up)


def a_producers_batch_overtakes_what_is_gathered() -> Planting:
    original = Shard._carry_out

    def carry_out(shard: Shard[Any], decision: Any) -> None:
        if decision.producer_id >= 0 and decision.records:
            if shard._apply(decision) and shard._write((decision,)):
                shard._answer(decision)
        else:
            original(shard, decision)

    return replaced(Shard, "_carry_out", carry_out)


def tombstone_lost() -> Planting:
    original = member_tombstones
    return replaced(service.groups.consumer_decisions, "member_tombstones", lambda *names: original(*names)[:-1])


def assignments_begin_with_heartbeats_only() -> Planting:
    return replaced(ConsumerDecisions, "assign_later", lambda *everything: None)


def assignment_compared_with_the_wrong_epoch() -> Planting:
    original = ConsumerDecisions.maybe_assign

    def maybe_assign(
        decisions: ConsumerDecisions, group: ConsumerGroup, _: int, member: ConsumerMember, draft: Any
    ) -> Any:
        return original(decisions, group, member.member_epoch, member, draft)

    return replaced(ConsumerDecisions, "maybe_assign", maybe_assign)


def static_member_fenced_by_its_own_restart() -> Planting:
    def refuse(decisions: Any, group: Any, ask: Any, instance: str, old: str, new: str, token: Any, draft: Any) -> None:
        draft.answer(token, JoinReply(new, Fault.FENCED_INSTANCE_ID))

    return replaced(ClassicDecisions, "_replace_static", refuse)


def pending_join_never_expired() -> Planting:
    original = ClassicDecisions.session_over

    def session_over(decisions: ClassicDecisions, group: ClassicGroup, member_id: str, draft: Any) -> None:
        if member_id in group.members:
            original(decisions, group, member_id, draft)

    return replaced(ClassicDecisions, "session_over", session_over)


def sessions_lost_on_restart() -> Planting:
    return replaced(Resuming, "begin", lambda resuming, group, draft: None)


def offsets_of_open_transactions_visible() -> Planting:
    def put(offsets: Offsets, group: str, pending: Any, *, producer_id: int) -> None:
        offsets.put(group, pending)

    return replaced(Offsets, "put_pending", put)


def subscription_of_a_restarted_instance_kept() -> Planting:
    original = ClassicDecisions._replace_static

    def replace_static(decisions: Any, group: ClassicGroup, *rest: Any) -> None:
        before = group.subscribed_topics
        original(decisions, group, *rest)
        if group.state.name == "STABLE":
            group.subscribed_topics = before

    return replaced(ClassicDecisions, "_replace_static", replace_static)


def partition_given_before_it_is_free() -> Planting:
    def reconcile_blindly(member: ConsumerMember, walk: Walk) -> ConsumerMember | None:
        return reconcile(member, walk._replace(held={}))

    return replaced(service.groups.consumer_decisions, "reconcile", reconcile_blindly)


def what_is_still_to_be_revoked_taken_for_free() -> Planting:
    original = ConsumerGroup._hold

    def hold(group: ConsumerGroup, member: ConsumerMember, *, but: ConsumerMember | None) -> None:
        original(group, member._replace(revoking={}), but=but)

    return replaced(ConsumerGroup, "_hold", hold)


def topics_that_change_not_looked_at() -> Planting:
    return replaced(ConsumerGroup, "must_look_at_metadata", lambda group, version: False)


def changed_topics_taken_for_assigned_after_a_long_look() -> Planting:
    original = ConsumerDecisions.look_some

    def look_some(decisions: ConsumerDecisions, group: ConsumerGroup, draft: Any) -> None:
        group.raised = Raised(group.epoch, decisions._topics.version)
        original(decisions, group, draft)

    return replaced(ConsumerDecisions, "look_some", look_some)


def commit_of_a_fenced_member_accepted() -> Planting:
    def committing_fault(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> Any:
        return Fault.ILLEGAL_GENERATION if generation != group.generation else None

    return replaced(ClassicGroup, "committing_fault", committing_fault)


def generation_unchecked() -> Planting:
    def committing_fault(group: ClassicGroup, member_id: str, instance_id: str | None, generation: int) -> Any:
        return group.member_fault(member_id, instance_id)

    return replaced(ClassicGroup, "committing_fault", committing_fault)


def rebalance_timer_lost_on_restart() -> Planting:
    def begin_session(decisions: ConsumerDecisions, group: ConsumerGroup, member: ConsumerMember, draft: Any) -> None:
        decisions._keep_session(group, member, decisions._settings.consumer_times(group.group_id), draft)

    return replaced(ConsumerDecisions, "_begin_session", begin_session)


def what_the_leader_assigns_early_forgotten() -> Planting:
    original = ClassicDecisions.sync

    def sync(self: ClassicDecisions, group: ClassicGroup, ask: Any, token: Any, draft: Any) -> None:
        original(self, group, ask, token, draft)
        group.early_sync = None

    return replaced(ClassicDecisions, "sync", sync)


def epoch_recorded_before_the_last_targets() -> Planting:
    original = ConsumerDecisions.assign_some

    def assign_some(decisions: ConsumerDecisions, group: ConsumerGroup, draft: Any) -> None:
        ahead = group.assignment_round
        original(decisions, group, draft)
        if ahead is not None and ahead.is_computed and group.assignment_round is not None:
            draft.records.append(target_epoch_record(group.group_id, ahead.epoch, draft.wall_ms))

    return replaced(ConsumerDecisions, "assign_some", assign_some)


def instance_replaced_in_a_rebalance_not_recorded() -> Planting:
    return replaced(ClassicDecisions, "_record_instance", lambda *everything: None)


def replaced_process_goes_on() -> Planting:
    return replaced(service.groups.consumer_decisions, "_refuse_instance", lambda owner, member_id: None)


def replaced_classic_process_goes_on() -> Planting:
    def find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerMember | Fault:
        member = group.members.get(member_id) if instance_id is None else group.static_member(instance_id)
        return Fault.UNKNOWN_MEMBER_ID if member is None or member.classic is None else member

    return replaced(service.groups.migration, "_find_classic", find)


def what_a_restarted_instance_was_to_let_go_of_forgotten() -> Planting:
    return replaced(ClassicGroup, "must_let_go", lambda group, member: False)


def partitions_left_out_before_an_upgrade_stay_so() -> Planting:
    return replaced(Migration, "_leaves_some_out", lambda *everything: iter(()))


def offsets_taken_up_otherwise_than_recorded() -> Planting:
    def put(first_key: bytes, records: int, group_id: str, offsets: OffsetsByTopic) -> OffsetsPut:
        earlier = {
            topic: {partition: each._replace(commit_timestamp_ms=0) for partition, each in partitions.items()}
            for topic, partitions in offsets.items()
        }
        return OffsetsPut(first_key, records, group_id, earlier)

    return replaced(service.groups.offset_decisions, "OffsetsPut", put)


def partitions_still_read_at_an_upgrade_not_recorded() -> Planting:
    original = current_record

    def record(group_id: str, member: ConsumerMember) -> RecordPair:
        return original(group_id, member._replace(revoking={}))

    return replaced(service.groups.migration, "current_record", record)


def offsets_expire_though_they_are_new() -> Planting:
    original = Forgetting._is_expired

    def is_expired(forgetting: Forgetting, group_id: str, topic: str, partition: int) -> bool:
        with replaced(forgetting, "_settings", dataclasses.replace(forgetting._settings, offsets_retention_ms=0)):
            return original(forgetting, group_id, topic, partition)

    return replaced(Forgetting, "_is_expired", is_expired)


def clock_believed_however_it_is_set() -> Planting:
    return replaced(ClockWatch, "since_ms", lambda watch, stamped_ms: stamped_ms)


def rebalance_timeout_that_was_not_said_kept() -> Planting:
    return replaced(service.groups.classic_kind, "with_rebalance_timeout", lambda ask: ask)


def assignor_named_twice_counted_twice() -> Planting:
    original = Tallies._count

    def count(tallies: Tallies, member: ConsumerMember, by: int) -> None:
        original(tallies, member, by)
        names = [] if member.classic is None else [name for name, _ in member.classic.protocols]
        for name in names[len(set(names)) :]:
            tallies.supporting[name] = tallies.supporting.get(name, 0) + by

    return replaced(Tallies, "_count", count)


def offsets_of_subscribed_topics_deleted() -> Planting:
    original = OffsetDecisions.delete

    def delete(decisions: OffsetDecisions, group: ClassicGroup | None, *rest: Any) -> DeleteOffsetsReply:
        with replaced(ClassicGroup, "is_subscribed_to", lambda group, topic: False):
            return original(decisions, group, *rest)

    return replaced(OffsetDecisions, "delete", delete)


def offsets_of_open_transactions_outlive_their_group() -> Planting:
    """A partition that has only an offset of a transaction gets no tombstone when its group is deleted."""

    def names(forgetting: Forgetting, group_id: str, topics: Any) -> Iterator[tuple[str, int]]:
        known = forgetting._offsets.of_group(group_id)
        return ((topic, partition) for topic in topics for partition in list(known.get(topic, ())))

    return replaced(Forgetting, "_names", names)


def offsets_of_the_next_topic_forgotten_with_the_former() -> Planting:
    original = Forgetting._is_gone

    def is_gone(forgetting: Forgetting, topic: str, deleted_id: bytes | None, topic_id: bytes) -> bool:
        return deleted_id is not None or original(forgetting, topic, deleted_id, topic_id)

    return replaced(Forgetting, "_is_gone", is_gone)


def deleted_topics_not_forgotten() -> Planting:
    return replaced(Forgetting, "_is_gone", lambda *everything: False)


def groups_joined_while_they_are_deleted() -> Planting:
    original = GroupCoordinator.__init__

    def init(coordinator: GroupCoordinator, *everything: Any) -> None:
        original(coordinator, *everything)
        coordinator._joins = {}

    return replaced(GroupCoordinator, "__init__", init)


def told_epochs_that_are_in_no_record_not_believed() -> Planting:
    return replaced(ConsumerGroup, "told_up_to", lambda group, member: member.member_epoch)


def commits_of_an_epoch_that_may_be_old_taken_after_a_restart() -> Planting:
    original = ConsumerGroup._may_commit_at

    def may_commit_at(group: ConsumerGroup, member: ConsumerMember, epoch: int) -> Any:
        if member.member_epoch <= epoch <= group.told_up_to(member):
            with replaced(ConsumerGroup, "told_up_to", lambda group, member: epoch):
                return original(group, member, epoch)
        return original(group, member, epoch)

    return replaced(ConsumerGroup, "_may_commit_at", may_commit_at)


def generations_of_members_that_change_their_protocol_not_recorded() -> Planting:
    original = Migration._join_members

    def join_members(migration: Migration, group: ConsumerGroup, *rest: Any) -> None:
        with replaced(service.groups.migration, "current_record", lambda group_id, member: NOTHING_RECORDED):
            original(migration, group, *rest)
        draft = rest[-1]
        draft.records[:] = [record for record in draft.records if record is not NOTHING_RECORDED]

    return replaced(Migration, "_join_members", join_members)


def epochs_of_instances_that_are_away_believed() -> Planting:
    def has_soft_epoch(member: ConsumerMember) -> bool:
        return member.state is MemberState.STABLE and member.classic is None

    return replaced(ConsumerMember, "has_soft_epoch", property(has_soft_epoch))


def what_a_member_newly_has_not_recorded() -> Planting:
    original = ConsumerDecisions.walk

    def walk(decisions: ConsumerDecisions, group: ConsumerGroup, member: ConsumerMember, *rest: Any) -> Any:
        draft = rest[-1]
        first = len(draft.records)
        walked = original(decisions, group, member, *rest)
        is_settled = group.members.get(member.member_id) is member and member.has_soft_epoch
        if walked is not None and is_settled and walked.is_reconciled_to(group.assignment_epoch):
            del draft.records[first:]
            group.put(walked)
        return walked

    return replaced(ConsumerDecisions, "walk", walk)


def instances_that_are_new_given_nothing() -> Planting:
    def target_of(group: ConsumerGroup, member_id: str, instance_id: str | None) -> TargetByTopic:
        known_as = member_id if instance_id is None else group.static_members.get(instance_id, "")
        return group.target.get(known_as, {})

    return replaced(ConsumerGroup, "target_of", target_of)


def former_names_of_instances_kept() -> Planting:
    original = ConsumerGroup.put

    def put(group: ConsumerGroup, member: ConsumerMember) -> None:
        before = group.static_members.copy()
        original(group, member)
        group.static_members = before | group.static_members

    return replaced(ConsumerGroup, "put", put)


def members_that_go_on_by_the_new_protocol_held_to_the_times_of_the_old_one() -> Planting:
    return replaced(ConsumerKind, "_classic_time_is_over", ConsumerKind._member_is_lost)


def offsets_of_open_transactions_expire_with_the_former_ones() -> Planting:
    original = Forgetting._is_expired

    def is_expired(forgetting: Forgetting, *names: Any) -> bool:
        with replaced(Offsets, "is_pending", lambda *names: False):
            return original(forgetting, *names)

    return replaced(Forgetting, "_is_expired", is_expired)


def who_asks_for_stable_offsets_not_told_to_wait() -> Planting:
    original = OffsetDecisions.fetch

    def fetch(decisions: OffsetDecisions, group: Any, ask: FetchOffsets) -> FetchReply:
        return original(decisions, group, ask._replace(require_stable=False))

    return replaced(OffsetDecisions, "fetch", fetch)


def all_the_time_to_let_go() -> Planting:
    return replaced(ConsumerDecisions, "_await_revocation", lambda *everything: None)


def rebalances_wait_for_ever_for_who_does_not_join() -> Planting:
    return replaced(ClassicDecisions, "_set_join_deadline", lambda *everything: None)


def members_of_the_old_protocol_waited_for_for_ever() -> Planting:
    return replaced(Migration, "_expect_rejoin", lambda *everything: None)


def subscription_of_an_instance_that_comes_back_under_its_own_id_kept() -> Planting:
    """What it says now takes the place of the tombstone of the process before, and what that had said stands behind."""
    original = ConsumerDecisions.record_member

    def record_member(decisions: Any, group: Any, old: Any, new: Any, draft: Any, *, names: Any = None) -> bool:
        key = consumer_member_record(group.group_id, new)[0]
        place = next((at for at, (each, _) in enumerate(draft.records) if each == key), None)
        if place is None or draft.records[place][1] is not None:
            return original(decisions, group, old, new, draft, names=names)
        after = draft.records[place + 1 :]
        del draft.records[place:]
        changed = original(decisions, group, old, new, draft, names=names)
        draft.records.extend(after)
        return changed

    return replaced(ConsumerDecisions, "record_member", record_member)


OF_SHARDS = (
    what_is_gathered_is_answered_when_it_is_written,
    a_reader_overtakes_what_is_gathered,
    a_look_does_not_wait_for_what_is_gathered,
    a_marker_overtakes_what_is_gathered,
    a_producers_batch_overtakes_what_is_gathered,
    a_refused_append_is_not_noticed,
)
MUTANTS: dict[str, Callable[[], Planting]] = {
    plant.__name__: plant
    for plant in (
        *OF_SHARDS,
        tombstone_lost,
        assignments_begin_with_heartbeats_only,
        assignment_compared_with_the_wrong_epoch,
        static_member_fenced_by_its_own_restart,
        pending_join_never_expired,
        sessions_lost_on_restart,
        offsets_of_open_transactions_visible,
        subscription_of_a_restarted_instance_kept,
        partition_given_before_it_is_free,
        what_is_still_to_be_revoked_taken_for_free,
        topics_that_change_not_looked_at,
        changed_topics_taken_for_assigned_after_a_long_look,
        commit_of_a_fenced_member_accepted,
        generation_unchecked,
        rebalance_timer_lost_on_restart,
        what_the_leader_assigns_early_forgotten,
        epoch_recorded_before_the_last_targets,
        instance_replaced_in_a_rebalance_not_recorded,
        replaced_process_goes_on,
        replaced_classic_process_goes_on,
        what_a_restarted_instance_was_to_let_go_of_forgotten,
        partitions_left_out_before_an_upgrade_stay_so,
        offsets_taken_up_otherwise_than_recorded,
        partitions_still_read_at_an_upgrade_not_recorded,
        offsets_expire_though_they_are_new,
        clock_believed_however_it_is_set,
        rebalance_timeout_that_was_not_said_kept,
        assignor_named_twice_counted_twice,
        offsets_of_subscribed_topics_deleted,
        offsets_of_open_transactions_outlive_their_group,
        offsets_of_the_next_topic_forgotten_with_the_former,
        deleted_topics_not_forgotten,
        groups_joined_while_they_are_deleted,
        told_epochs_that_are_in_no_record_not_believed,
        commits_of_an_epoch_that_may_be_old_taken_after_a_restart,
        generations_of_members_that_change_their_protocol_not_recorded,
        epochs_of_instances_that_are_away_believed,
        what_a_member_newly_has_not_recorded,
        instances_that_are_new_given_nothing,
        former_names_of_instances_kept,
        members_that_go_on_by_the_new_protocol_held_to_the_times_of_the_old_one,
        offsets_of_open_transactions_expire_with_the_former_ones,
        who_asks_for_stable_offsets_not_told_to_wait,
        all_the_time_to_let_go,
        rebalances_wait_for_ever_for_who_does_not_join,
        members_of_the_old_protocol_waited_for_for_ever,
        subscription_of_an_instance_that_comes_back_under_its_own_id_kept,
    )
}


class Caught(NamedTuple):
    seeds: int
    """How many runs it took."""
    seed: int
    """The last of them, which caught it."""
    broken: str
    """Nothing if it was not caught."""


def hunt(name: str, max_seeds: int = MAX_SEEDS, *, anew: bool = False) -> Caught:
    """Seed after seed, until the mutant is caught. `anew`: as if it had never been."""
    planting = MUTANTS[name]
    tried, seed = 0, 0
    for tried, seed in enumerate(itertools.islice(caught.seeds(name, anew=anew), max_seeds), start=1):
        with planting():
            broken = gathering.run(seed) if planting in OF_SHARDS else run(seed)
        if broken:
            return Caught(tried, seed, broken)
    return Caught(tried, seed, "")


def main() -> int:
    found = {}
    for name in MUTANTS:
        verdict = hunt(name, anew=True)
        if verdict.broken:
            found[name] = verdict.seed
        print(f"{name:45} {verdict.seeds:4}  {verdict.broken[:100] or 'NOT CAUGHT'}", flush=True)
    caught.note(found)
    print(f"{len(found)} of {len(MUTANTS)} caught")
    return 0 if len(found) == len(MUTANTS) else 1


if __name__ == "__main__":
    sys.exit(main())
