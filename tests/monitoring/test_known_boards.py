"""The boards that people have ask for names that a broker shows, with the labels that they group by.

Names and labels are those of the boards of Strimzi (Kafka, Kafka exporter) and of Grafana 7589.
"""

from __future__ import annotations

import pytest
import requests

from monitoring.families import REGISTRY
from monitoring.reference import page
from tests.monitoring.scraped import read
from tests.monitoring.test_prometheus import PATIENCE_S, broker
from tests.service.web.kit import Served

__all__ = ["broker"]

EXPORTER = {
    "kafka_brokers": (),
    "kafka_topic_partitions": ("topic",),
    "kafka_topic_partition_current_offset": ("topic", "partition"),
    "kafka_topic_partition_oldest_offset": ("topic", "partition"),
    "kafka_topic_partition_in_sync_replica": ("topic", "partition"),
    "kafka_topic_partition_leader": ("topic", "partition"),
    "kafka_topic_partition_leader_is_preferred": ("topic", "partition"),
    "kafka_topic_partition_replicas": ("topic", "partition"),
    "kafka_topic_partition_under_replicated_partition": ("topic", "partition"),
    "kafka_consumergroup_current_offset": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_current_offset_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_lag": ("consumergroup", "topic", "partition"),
    "kafka_consumergroup_lag_sum": ("consumergroup", "topic"),
    "kafka_consumergroup_members": ("consumergroup",),
}
STRIMZI = {
    "kafka_server_replicamanager_leadercount": (),
    "kafka_server_replicamanager_partitioncount": (),
    "kafka_server_replicamanager_underreplicatedpartitions": (),
    "kafka_server_replicamanager_underminisrpartitioncount": (),
    "kafka_server_replicamanager_atminisrpartitioncount": (),
    "kafka_server_replicamanager_offlinereplicacount": (),
    "kafka_server_replicamanager_produceridcount": (),
    "kafka_server_replicamanager_partitionswithlatetransactionscount": (),
    "kafka_server_replicamanager_isrshrinks_total": (),
    "kafka_server_replicamanager_isrexpands_total": (),
    "kafka_controller_controllerstats_uncleanleaderelections_total": (),
    "kafka_controller_kafkacontroller_activecontrollercount": (),
    "kafka_controller_kafkacontroller_offlinepartitionscount": (),
    "kafka_controller_kafkacontroller_preferredreplicaimbalancecount": (),
    "kafka_server_brokertopicmetrics_messagesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_bytesin_total": ("topic",),
    "kafka_server_brokertopicmetrics_bytesout_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalproducerequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedproducerequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_totalfetchrequests_total": ("topic",),
    "kafka_server_brokertopicmetrics_failedfetchrequests_total": ("topic",),
    "kafka_cluster_partition_replicascount": ("topic", "partition"),
    "kafka_cluster_partition_atminisr": ("topic", "partition"),
    "kafka_cluster_partition_underminisr": ("topic", "partition"),
    "kafka_cluster_partition_laststableoffsetlag": ("topic", "partition"),
    "kafka_log_log_size": ("topic", "partition"),
    "kafka_log_logmanager_offlinelogdirectorycount": (),
    "kafka_network_requestmetrics_requests_total": ("request",),
    "kafka_network_requestmetrics_totaltimems": ("request", "quantile"),
    "kafka_server_socket_server_metrics_connection_count": ("listener",),
    "kafka_server_kafkaserver_linux_disk_read_bytes": (),
    "kafka_server_kafkaserver_linux_disk_write_bytes": (),
}
LEFT_OUT = [
    f"kafka_network_requestmetrics_{part}timems"
    for part in ("requestqueue", "local", "remote", "responsequeue", "responsesend")
]


@pytest.mark.parametrize("known", [EXPORTER, STRIMZI], ids=["kafka_exporter", "strimzi"])
def test_what_known_boards_ask_for_returns_data(broker: Served, known: dict[str, tuple[str, ...]]) -> None:
    seen = read(requests.get(broker.url + "/metrics", timeout=PATIENCE_S).text)
    labels = {sample.name: set(sample.labels) for sample in seen.samples}
    assert {name: labels.get(name) for name in known} == {name: set(wanted) for name, wanted in known.items()}


def test_what_they_ask_for_in_vain_is_documented() -> None:
    """A split of a request's time that nothing here goes through would be invented."""
    assert not REGISTRY.keys() & set(LEFT_OUT)
    assert [name for name in LEFT_OUT if f"`{name}`" not in page()] == []
