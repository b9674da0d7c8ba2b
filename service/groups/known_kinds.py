"""The kinds of groups that this broker knows, and the passages between them. Another kind is another line here."""

from service.groups.classic_group import ClassicGroup
from service.groups.classic_kind import ClassicKind
from service.groups.consumer_decisions import ConsumerDecisions
from service.groups.consumer_kind import ConsumerKind
from service.groups.deadlines import DeadlineName, Deadlines
from service.groups.kinds import Kinds
from service.groups.migration import Migration
from service.groups.settings import GroupSettings
from service.groups.topics import TopicView


def known_kinds(settings: GroupSettings, topics: TopicView, deadlines: Deadlines[DeadlineName]) -> Kinds:
    classic = ClassicKind(settings, deadlines)
    consumer_decisions = ConsumerDecisions(settings, topics, deadlines)
    migration = Migration(settings, topics, deadlines, classic, consumer_decisions)
    consumer = ConsumerKind(settings, topics, consumer_decisions, remove=migration.remove, downgrade=migration.go_back)
    return Kinds((classic, consumer), migration.passages, holding_offsets=ClassicGroup)
