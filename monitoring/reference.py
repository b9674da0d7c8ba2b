# ruff: noqa: E501 - a page of Markdown
"""docs/monitoring.md, from the registry: `python -m monitoring.reference > docs/monitoring.md`, which `make docs` does."""

from typing import Final

from monitoring.families import KAFKA_EXPORTER, OURS, PROCESS, REGISTRY, STRIMZI

HEAD: Final = """\
# Monitoring

Written by `make docs` from the registry of metrics; a test holds it to that.

Every broker shows its metrics at `http://BROKER:8082/metrics` (the setting `http.listeners`), to Prometheus and, as text, to
people. There is no exporter to run beside it: the names that people's boards and rules know from kafka_exporter and
from Strimzi are there, and under `oncelog_` what an exactly-once log has to tell besides.

- **Boards** for Grafana lie in `monitoring/dashboards/`: overview, exactly-once, topics and groups, requests. Written by
  `make boards`; `docker compose --profile monitoring up` brings them up with Prometheus and Alertmanager.
- **Alerts** lie in `monitoring/alerts/`, with their unit tests; each has a page under `docs/runbooks/`: what it means, what
  to look at, what to do. Every broker serves that page, as `http://BROKER:8082/docs/runbooks/index.md`; an alert's `runbook_url` is
  a link to it on a broker that answers scrapes.
- Each broker tells of the partitions that it leads and the groups and transactions that it coordinates, so that sums over
  brokers are right.
- OpenMetrics (which Prometheus asks for by itself) has exemplars: beside a bucket of
  `oncelog_transaction_duration_seconds` stands the transaction that fell into it last.
- With `otlp.endpoint=http://collector:4318` a broker sends spans of the transactions that it coordinates to OpenTelemetry:
  the whole, each partition, the time until the decision, the markers. `traceparent` headers of records are left as they are.
- Tens of thousands of partitions are scraped in steps, so that no client waits. With `metrics.partition.labels=false` only
  partitions that hold readers back or lack replicas are told one by one.
- Lag is told against the high watermark (`kafka_consumergroup_lag`) and against the stable offset
  (`oncelog_group_stable_lag_records`): where the first is large and the second small, an open transaction holds a group up.
  What is counted is the same in metrics, on pages, over HTTP, in `oncelog group lag` and in `oncelog doctor`: records, without
  transaction markers, which no consumer is given. Records of aborted transactions count, though readers of committed
  records are not given them: they have to read past them, and others get them. Of each partition the newest 500 markers are
  known; a group that is farther back than these has at most as much to read as is told, because older markers are counted.
- `promtool check metrics` ends with 3 because of four names that boards ask for: `kafka_network_requestmetrics_totaltimems` has
  a label `quantile` and is no summary, and `kafka_server_socket_server_metrics_connection_count`,
  `kafka_consumergroup_current_offset_sum` and `kafka_consumergroup_lag_sum` end like parts of one.
"""
TITLES: Final = {
    OURS: "Ours",
    KAFKA_EXPORTER: "As kafka_exporter names them (Grafana board 7589)",
    STRIMZI: "As Strimzi names Kafka's own",
    PROCESS: "The process",
}
LEFT_OUT: Final = """
Of the names in Strimzi's rules these are left out, and panels that ask for them stay empty. There is nothing here that
they would be true of:

- `kafka_network_requestmetrics_requestqueuetimems`, `kafka_network_requestmetrics_localtimems`,
  `kafka_network_requestmetrics_remotetimems`, `kafka_network_requestmetrics_responsequeuetimems` and
  `kafka_network_requestmetrics_responsesendtimems`: how the time of a request splits between the threads of Kafka and the queues
  between them. A broker here is one event loop without such queues, so a split would be invented. The sum of the five,
  `kafka_network_requestmetrics_totaltimems`, is there.
- `jvm_…`: no Java runs here. What the process takes is told by `process_…`, below.
"""


def page() -> str:
    parts = [HEAD]
    for origin, title in TITLES.items():
        parts.append(f"\n## {title}\n\n| metric | kind | labels | what it says |\n|---|---|---|---|\n")
        for family in REGISTRY.values():
            if family.origin == origin:
                labels = ", ".join(f"`{label}`" for label in family.labels) or "–"
                parts.append(f"| `{family.name}` | {family.kind} | {labels} | {family.says} |\n")
        parts += [LEFT_OUT] * (origin == STRIMZI)
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
