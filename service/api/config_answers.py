"""Settings as clients see them: the value in force, its source, and the values that would be in force without it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from service.cluster.image import ALL_BROKERS, NO_CONFIG
from service.cluster.metadata import ClusterMetadata
from service.settings.broker import KNOWN_SETTINGS, BrokerConfig, broker_setting
from service.settings.broker_table import BROKER_SETTINGS
from service.settings.group import GROUP_SETTINGS, group_values
from service.settings.setting import Mode, Setting, Status, text_of
from service.settings.topic import TOPIC_SETTINGS, Layer, Source, broker_layers, topic_layers, topic_value


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    source: Source
    read_only: bool
    setting: Setting[Any]
    layers: list[Layer]

    @property
    def sensitive(self) -> bool:
        return self.setting.sensitive


def describe_topic(metadata: ClusterMetadata, config: BrokerConfig, own: Mapping[str, str]) -> Iterator[ConfigEntry]:
    """Every key of a topic whose own values are `own`, by name."""
    everywhere, here = _dynamic(metadata)
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        layers = topic_layers(setting, own, config, everywhere, here)
        if setting.status is Status.IMPLEMENTED:
            value = text_of(topic_value(setting, own, config))
        else:
            value = layers[0].value if layers else setting.default_text
        yield ConfigEntry(name, value, _source(layers), False, setting, layers)


def describe_broker(metadata: ClusterMetadata, config: BrokerConfig) -> Iterator[ConfigEntry]:
    """Every key of this broker, by name, and further values that are stored for it."""
    everywhere, here = _dynamic(metadata)
    for name in sorted({**KNOWN_SETTINGS, **everywhere, **here}):
        setting = broker_setting(name)
        layers = broker_layers(config, name, everywhere, here)
        if name in BROKER_SETTINGS:
            value = text_of(getattr(config, setting.attribute))
        else:
            value = layers[0].value if layers else None
        if name == "node.id":
            value = str(metadata.broker_id)  # also if the broker has chosen its id itself
        read_only = setting.mode is Mode.READ_ONLY
        yield ConfigEntry(name, None if setting.sensitive else value, _source(layers), read_only, setting, layers)


def describe_group(metadata: ClusterMetadata, config: BrokerConfig, group_id: str) -> Iterator[ConfigEntry]:
    """Every key of a group, by name."""
    everywhere, here = _dynamic(metadata)
    own = metadata.image.group_configs.get(group_id, NO_CONFIG).values
    values = group_values(own, config)
    for name, setting in sorted(GROUP_SETTINGS.items()):
        layers = broker_layers(config, setting.synonyms[0].name, everywhere, here)
        if name in own:
            layers.insert(0, Layer(name, own[name], Source.GROUP))
        yield ConfigEntry(name, text_of(values[name]), _source(layers), False, setting, layers)


def describe_all_brokers(metadata: ClusterMetadata) -> Iterator[ConfigEntry]:
    """The values that were set for all brokers together, by name."""
    everywhere, _ = _dynamic(metadata)
    for name, value in sorted(everywhere.items()):
        setting = broker_setting(name)
        layers = [Layer(name, value, Source.DYNAMIC_DEFAULT_BROKER)]
        yield ConfigEntry(
            name, None if setting.sensitive else value, Source.DYNAMIC_DEFAULT_BROKER, False, setting, layers
        )


def _dynamic(metadata: ClusterMetadata) -> tuple[Mapping[str, str], Mapping[str, str]]:
    image = metadata.image
    return image.broker_config(ALL_BROKERS).values, image.broker_config(str(metadata.broker_id)).values


def _source(layers: list[Layer]) -> Source:
    return layers[0].source if layers else Source.DEFAULT
