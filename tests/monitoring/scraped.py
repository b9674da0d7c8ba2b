"""A scrape as a test reads it: by prometheus-client's own parsers, which refuse what is malformed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from monitoring.collectors import Scrape
from monitoring.exposition import Lines
from monitoring.shapes import Broker


class Sample(NamedTuple):
    name: str
    labels: Mapping[str, str]
    value: float
    exemplar: Mapping[str, str] | None


class Scraped:
    def __init__(self, samples: Iterable[Sample]) -> None:
        self.samples = list(samples)

    def all(self, name: str, **labels: object) -> list[float]:
        wanted = {key: str(value) for key, value in labels.items()}
        return [
            sample.value
            for sample in self.samples
            if sample.name == name and wanted.items() <= dict(sample.labels).items()
        ]

    def one(self, name: str, **labels: object) -> float:
        (value,) = self.all(name, **labels)
        return value

    @property
    def names(self) -> set[str]:
        return {sample.name for sample in self.samples}


def read(text: str) -> Scraped:
    """Both formats: OpenMetrics says where it ends."""
    openmetrics_families: Any = openmetrics.text_string_to_metric_families
    families = openmetrics_families(text) if text.endswith("# EOF\n") else read_text(text)
    return Scraped(
        Sample(each.name, each.labels, each.value, each.exemplar.labels if each.exemplar else None)
        for family in families
        for each in family.samples
    )


def gathered(scrape: Scrape) -> Lines:
    lines = Lines()
    for _ in scrape.gather(lines):
        pass
    return lines


def scraped(broker: Broker, *, openmetrics: bool = False) -> Scraped:
    return read("".join(gathered(Scrape(broker, version="1")).render(openmetrics=openmetrics)))
