"""The cluster and its topics as version 3 of Confluent's REST Proxy shows them: its users learn there the cluster's id,
which the paths of its other calls name.

The answers link to more than is here: of version 3 there are these calls and those that write (`compatible.py`).
"""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import quote

import msgspec
from aiohttp import web

from service.broker.internal_topics import INTERNAL_TOPICS
from service.cluster.image import Topic
from service.web.answers import as_json
from service.web.compatible import ErrorV3, refuse_v3, this_cluster
from service.web.gateway import Gateway
from service.web.routing import JSON, Route

CLUSTERS: Final = "/v3/clusters"


class ListedV3(msgspec.Struct):
    self: str
    next: str | None = None


class NamedV3(msgspec.Struct):
    self: str
    resource_name: str


class RelatedV3(msgspec.Struct):
    related: str


class ClusterV3(msgspec.Struct):
    kind: str
    metadata: NamedV3
    cluster_id: str
    controller: RelatedV3 | None
    acls: RelatedV3
    brokers: RelatedV3
    broker_configs: RelatedV3
    consumer_groups: RelatedV3
    topics: RelatedV3
    partition_reassignments: RelatedV3


class ClustersV3(msgspec.Struct):
    kind: str
    metadata: ListedV3
    data: list[ClusterV3]


class TopicV3(msgspec.Struct):
    kind: str
    metadata: NamedV3
    cluster_id: str
    topic_name: str
    is_internal: bool
    replication_factor: int
    partitions_count: int
    partitions: RelatedV3
    configs: RelatedV3
    partition_reassignments: RelatedV3


class TopicsV3(msgspec.Struct):
    kind: str
    metadata: ListedV3
    data: list[TopicV3]


def _base(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}{CLUSTERS}"


def _cluster(gateway: Gateway, request: web.Request) -> ClusterV3:
    name, controller = gateway.image.cluster_id, gateway.image.controller_id
    here = f"{_base(request)}/{name}"
    return ClusterV3(
        "KafkaCluster",
        NamedV3(here, f"crn:///kafka={name}"),
        name,
        RelatedV3(f"{here}/brokers/{controller}") if controller >= 0 else None,
        RelatedV3(f"{here}/acls"),
        RelatedV3(f"{here}/brokers"),
        RelatedV3(f"{here}/broker-configs"),
        RelatedV3(f"{here}/consumer-groups"),
        RelatedV3(f"{here}/topics"),
        RelatedV3(f"{here}/topics/-/partitions/-/reassignment"),
    )


def _topic(gateway: Gateway, request: web.Request, topic: Topic) -> TopicV3:
    cluster = gateway.image.cluster_id
    here = f"{_base(request)}/{cluster}/topics/{quote(topic.name)}"
    return TopicV3(
        "KafkaTopic",
        NamedV3(here, f"crn:///kafka={cluster}/topic={topic.name}"),
        cluster,
        topic.name,
        topic.name in INTERNAL_TOPICS,
        len(topic.partitions[0].replicas),
        len(topic.partitions),
        RelatedV3(f"{here}/partitions"),
        RelatedV3(f"{here}/configs"),
        RelatedV3(f"{here}/partitions/-/reassignment"),
    )


async def clusters(gateway: Gateway, request: web.Request) -> web.Response:
    return as_json(ClustersV3("KafkaClusterList", ListedV3(_base(request)), [_cluster(gateway, request)]))


async def cluster(gateway: Gateway, request: web.Request) -> web.Response:
    this_cluster(gateway, request)
    return as_json(_cluster(gateway, request))


async def topics(gateway: Gateway, request: web.Request) -> web.Response:
    this_cluster(gateway, request)
    all_topics = gateway.image.topics
    shown = [_topic(gateway, request, all_topics[name]) for name in sorted(all_topics)]
    return as_json(TopicsV3("KafkaTopicList", ListedV3(f"{_base(request)}/{gateway.image.cluster_id}/topics"), shown))


async def topic(gateway: Gateway, request: web.Request) -> web.Response:
    this_cluster(gateway, request)
    return as_json(_topic(gateway, request, gateway.topic(request.match_info["topic"])))


_route = partial(Route, "GET", tag="as Confluent's REST Proxy", refuse=refuse_v3, refusal=(JSON, ErrorV3))
_ONE = CLUSTERS + "/{cluster}"
ROUTES = (
    _route(CLUSTERS, clusters, "This cluster, as the only one of a list.", answer=ClustersV3),
    _route(_ONE, cluster, "This cluster.", answer=ClusterV3, problems=(404,)),
    _route(_ONE + "/topics", topics, "All topics.", answer=TopicsV3, problems=(404,)),
    _route(_ONE + "/topics/{topic}", topic, "One topic.", answer=TopicV3, problems=(404,)),
)
