"""The configuration of one broker.

A `BrokerConfig` holds one value for every key of `service.settings.broker_table`, read as an attribute:
`config.num_partitions`. Static values never change. `set_dynamic` lays over them what `kafka-configs --alter
--entity-type brokers` stored. All code that depends on settings gets a `BrokerConfig`; `service.settings.sources` makes
it from files, environment and command line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from service.settings.broker_table import BROKER_SETTINGS, SECURITY_PROTOCOLS, BrokerSettings, Durability
from service.settings.setting import ConfigError, Mode, Setting, Status, invalid
from service.settings.unhonoured import NO_EFFECT, NO_EFFECT_SETTINGS, NO_SECURITY, REFUSED, idle_setting, unhonoured

KNOWN_SETTINGS: dict[str, Setting[Any]] = BROKER_SETTINGS | NO_EFFECT_SETTINGS
"""Every key that is shown to clients. Its status says whether it has an effect."""


def broker_setting(name: str) -> Setting[Any]:
    """The setting of any name. An unknown key is kept, and has no effect."""
    return BROKER_SETTINGS.get(name) or idle_setting(name)


class Origin(Enum):
    """Where a value comes from. Later ones win."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


class Given(NamedTuple):
    """A value as the user wrote it, and where: the line of a file, a variable, the command line."""

    value: str
    origin: Origin
    place: str = ""


class Bounded(NamedTuple):
    """A default, and the bounds for values that are set in its place."""

    least: int
    default: int
    most: int


class Endpoint(NamedTuple):
    """A listener: its name, its address, and how it is protected. An empty host means every address of the machine."""

    listener: str
    host: str
    port: int
    protocol: str

    @property
    def address(self) -> str:
        """The address as it is written in a client's configuration."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host or '*'}:{self.port}"

    @property
    def url(self) -> str:
        """The address of a listener of HTTP, for a browser and for other brokers."""
        return f"http://{self.address}"


WEB = "HTTP"
"""The name of the listener and of the protocol of the HTTP API, which Kafka does not have."""
WEB_PORT_BELOW = 9092 - 8082
"""The distance between the HTTP port and the Kafka port: brokers on one machine differ by their ports, and so do their
HTTP APIs.
"""


# --- one broker's configuration --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Described:
    """One value of a key and where it came from, for DescribeConfigs and `oncelog config show`."""

    name: str
    value: str | None
    origin: Origin


class BrokerConfig(BrokerSettings):
    """The values of every implemented key. Raises `ConfigError` if a value can't be accepted. `warnings` names keys
    that were set and have no effect.
    """

    given: dict[str, Given]
    warnings: tuple[str, ...]

    def __init__(self, given: Mapping[str, str | Given] | None = None) -> None:
        self.given = {
            name: value if isinstance(value, Given) else Given(value, Origin.COMMAND_LINE)
            for name, value in (given or {}).items()
        }
        problems: list[str] = []
        self.warnings = tuple(unhonoured({name: given.value for name, given in self.given.items()}, problems))
        for name, setting in BROKER_SETTINGS.items():
            self._place(setting, self.given[name].value if name in self.given else None, problems)
        if not problems:
            problems.extend(self._contradictions())
        if problems:
            raise ConfigError("\n".join(problem + self._places_of(problem) for problem in problems))
        self.warnings += tuple(self._hopes())
        self._idle: frozenset[str] = frozenset()  # dynamic keys without effect that were reported already
        self._static = {setting.attribute: self.__dict__[setting.attribute] for setting in BROKER_SETTINGS.values()}

    def _place(self, setting: Setting[Any], value: str | None, problems: list[str]) -> None:
        try:
            self.__dict__[setting.attribute] = setting.default if value is None else setting.parse(value)
        except ConfigError as error:
            problems.append(str(error))

    def _places_of(self, problem: str) -> str:
        """Where the keys stand that a problem names."""
        words = set(re.findall(r"[\w.-]*\w", problem))
        places = [given.place for name, given in self.given.items() if name in words and given.place]
        return f" (from {', '.join(places)})" if places else ""

    def _contradictions(self) -> Iterator[str]:
        if "broker.id" in self.given:
            if "node.id" in self.given and self.node_id != self.broker_id:
                yield f"node.id ({self.node_id}) and broker.id ({self.broker_id}) must say the same"
            self.__dict__["node_id"] = self.broker_id
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            yield "group.min.session.timeout.ms must be less than or equal to group.max.session.timeout.ms"
        yield from self._out_of_bounds()
        if self.group_consumer_heartbeat_interval_ms >= self.group_consumer_session_timeout_ms:
            yield "group.consumer.heartbeat.interval.ms must be less than group.consumer.session.timeout.ms"
        if self.group_consumer_migration_policy.lower() not in ("disabled", "downgrade", "upgrade", "bidirectional"):
            yield "group.consumer.migration.policy must be one of: disabled, downgrade, upgrade, bidirectional"
        if self.zookeeper_connect is not None and self.store_url is not None:
            yield "zookeeper.connect and store.url name two places for the metadata: set one of them"
        if self.zookeeper_digest is not None and ":" not in self.zookeeper_digest:
            yield "zookeeper.digest is written user:password"
        yield from self._listener_problems()

    def _hopes(self) -> Iterator[str]:
        """Settings that are allowed, but are hardly what was meant for a cluster."""
        if self.may_have_company:
            return
        if self.default_replication_factor > 1:
            yield (
                f"default.replication.factor is {self.default_replication_factor}, but there is one broker: topics"
                " that are made without saying how many replicas they want are refused; set it to 1"
            )
        if self.min_insync_replicas > 1:
            yield (
                f"min.insync.replicas is {self.min_insync_replicas}, but there is one broker: writes with acks=all are "
                "refused, but in topics that have a value of their own; set it to 1"
            )

    @property
    def may_have_company(self) -> bool:
        """Whether several brokers can share the metadata store."""
        return self.zookeeper_connect is not None or not (self.store_url or "sqlite").startswith("sqlite")

    @property
    def session_timeout_s(self) -> float:
        timeout_ms = self.broker_session_timeout_ms
        return (timeout_ms if self.zookeeper_connect is None else self.zookeeper_session_timeout_ms) / 1000

    def _out_of_bounds(self) -> Iterator[str]:
        for kind, (least, value, most) in self.consumer_group_times.items():
            key, least_key, most_key = (f"group.consumer.{which}{kind}" for which in ("", "min.", "max."))
            if most < least:
                yield f"{most_key} must be greater than or equal to {least_key}"
            if value < least:
                yield f"{key} must be greater than or equal to {least_key}"
            if value > most:
                yield f"{key} must be less than or equal to {most_key}"

    def _listener_problems(self) -> Iterator[str]:
        try:
            endpoints, advertised = self.endpoints, self.advertised_endpoints()
            web = self.web_endpoints if endpoints else ()
        except ConfigError as error:
            yield str(error)
            return
        if not endpoints:
            yield "listeners must name at least one listener that is not a controller's"
        for endpoint in endpoints:
            if endpoint.protocol != "PLAINTEXT":
                yield f"listener {endpoint.listener} asks for {endpoint.protocol}: {NO_SECURITY}"
        if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
            yield "Each listener must have a different name"
        ports = [(endpoint.host, endpoint.port) for endpoint in (*endpoints, *web) if endpoint.port]
        if len(dict.fromkeys(ports)) < len(ports):
            yield "Each listener must have a different port"
        for endpoint in advertised:
            if endpoint.listener not in {one.listener for one in endpoints}:
                yield f"advertised.listeners names {endpoint.listener}, which is not in listeners"
            if endpoint.host == "0.0.0.0":
                yield "advertised.listeners cannot use the nonroutable meta-address 0.0.0.0. Use a routable IP address."

    # --- derived values ---

    @property
    def data_folders(self) -> tuple[str, ...]:
        return self.log_dirs or self.log_dir

    @property
    def durability(self) -> Durability:
        return Durability(self.log_durability)

    @property
    def consumer_group_times(self) -> dict[str, Bounded]:
        """The values for consumer groups without settings of their own, by the last part of the key's name."""
        return {
            "session.timeout.ms": Bounded(
                self.group_consumer_min_session_timeout_ms,
                self.group_consumer_session_timeout_ms,
                self.group_consumer_max_session_timeout_ms,
            ),
            "heartbeat.interval.ms": Bounded(
                self.group_consumer_min_heartbeat_interval_ms,
                self.group_consumer_heartbeat_interval_ms,
                self.group_consumer_max_heartbeat_interval_ms,
            ),
            "assignment.interval.ms": Bounded(
                self.group_consumer_min_assignment_interval_ms,
                self.group_consumer_assignment_interval_ms,
                self.group_consumer_max_assignment_interval_ms,
            ),
        }

    @property
    def protocols(self) -> dict[str, str]:
        """Security protocol by listener name."""
        pairs = (entry.partition(":") for entry in self.listener_security_protocol_map)
        known = {name.strip().upper(): protocol.strip().upper() for name, _, protocol in pairs}
        if "listener.security.protocol.map" in self.given:
            return known
        # Kafka's small server.properties have a listener CONTROLLER and no map.
        return {name.upper(): "PLAINTEXT" for name in self.controller_listener_names} | known

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where to listen. Listeners of KRaft controllers are left out."""
        return self._parse_endpoints("listeners", self.listeners)

    def advertised_endpoints(self, default_host: str = "localhost") -> tuple[Endpoint, ...]:
        """The addresses for clients. A listener that names no host, and for which no other address is advertised, is
        advertised at `default_host`.
        """
        listening = {endpoint.listener: endpoint for endpoint in self.endpoints}
        advertised = self._parse_endpoints("advertised.listeners", self.advertised_listeners or self.listeners)
        named: dict[str, Endpoint] = {}
        for endpoint in advertised:
            host = endpoint.host
            if self.advertised_listeners is None and host in ("", "0.0.0.0", "::"):
                host = default_host
            port = endpoint.port or (listening[endpoint.listener].port if endpoint.listener in listening else 0)
            named[endpoint.listener] = endpoint._replace(host=host or default_host, port=port)
        return tuple(named.values())

    @property
    def web_endpoints(self) -> tuple[Endpoint, ...]:
        """Where the HTTP API listens."""
        if self.http_listeners != ("auto",):
            return tuple(map(parse_web_endpoint, self.http_listeners))
        first = self.endpoints[0]
        port = max(first.port - WEB_PORT_BELOW, 0)
        return (Endpoint(WEB, first.host, port, WEB),)

    def _parse_endpoints(self, key: str, entries: tuple[str, ...]) -> tuple[Endpoint, ...]:
        protocols = self.protocols
        parsed = (parse_endpoint(key, entry, protocols) for entry in entries)
        return tuple(endpoint for endpoint in parsed if endpoint.listener not in self.controller_listener_names)

    # --- dynamic values ---

    def set_dynamic(self, cluster_wide: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, ...]:
        """Lay the stored values over the static ones; the broker's own values win over those of the cluster. Returns
        messages about values that could not be used, for which the last good value stays, and about new keys without
        effect.
        """
        problems: list[str] = []
        for setting in BROKER_SETTINGS.values():
            if setting.mode is Mode.READ_ONLY:
                continue
            stored = own.get(setting.name, cluster_wide.get(setting.name))
            if stored is None:
                self.__dict__[setting.attribute] = self._static[setting.attribute]
            else:
                self._place(setting, stored, problems)
        idle = [
            setting for name in {**cluster_wide, **own} if (setting := broker_setting(name)).status is Status.NO_EFFECT
        ]
        problems += [
            f"{setting.name} has no effect: {setting.doc}" for setting in idle if setting.name not in self._idle
        ]
        self._idle = frozenset(setting.name for setting in idle)
        return tuple(problems)

    # --- showing it ---

    def describe(self) -> Iterator[Described]:
        """Every known key with its static value, in the order of the tables of keys."""
        for name, setting in KNOWN_SETTINGS.items():
            given = self.given.get(name)
            if given is None:
                yield Described(name, setting.default_text, Origin.DEFAULT)
            else:
                yield Described(name, given.value, given.origin)


def parse_endpoint(key: str, entry: str, protocols: Mapping[str, str]) -> Endpoint:
    name, separator, address = entry.partition("://")
    host, colon, port = address.rpartition(":")
    listener = name.strip().upper()
    if not separator or not colon or not listener or not port.strip().isdecimal() or int(port) > 65535:
        raise invalid(key, entry, "a listener is written NAME://host:port")
    if listener not in protocols:
        raise invalid(key, entry, f"listener {listener} has no security protocol in listener.security.protocol.map")
    if protocols[listener] not in SECURITY_PROTOCOLS:
        raise invalid("listener.security.protocol.map", protocols[listener], "not a security protocol")
    return Endpoint(listener, _host_of(key, entry, host), int(port), protocols[listener])


def parse_web_endpoint(entry: str) -> Endpoint:
    scheme, separator, address = entry.strip().rstrip("/").partition("://")
    host, colon, port = address.rpartition(":")
    if scheme.lower() == "https":
        raise invalid("http.listeners", entry, f"it asks for encryption: {NO_SECURITY}")
    if scheme.lower() != "http" or not separator or not colon or not port.isdecimal() or int(port) > 65535:
        raise invalid("http.listeners", entry, "a listener is written http://host:port")
    return Endpoint(WEB, _host_of("http.listeners", entry, host), int(port), WEB)


def _host_of(key: str, entry: str, host: str) -> str:
    try:
        host.encode("idna")
    except UnicodeError:  # nobody can look for such a name, not even in vain
        raise invalid(key, entry, "between the dots of its host there is nothing, or too much") from None
    return host.strip("[] ")


def document_settings() -> str:
    """The tables of broker keys as Markdown."""
    lines = ["| key | type | default | valid | changed while running | what it does |", "|---|---|---|---|---|---|"]
    lines += [_row(setting) for setting in BROKER_SETTINGS.values()]
    idle = {name: setting.doc for name, setting in NO_EFFECT_SETTINGS.items()} | NO_EFFECT
    lines += ["", "Accepted without effect (named in a warning when set):", "", "| key | why |", "|---|---|"]
    lines += [_reason_row(name, reason) for name, reason in idle.items()]
    lines += [
        "",
        "A running broker takes, keeps and shows these too, as well as keys that nobody knows, and warns in its log.",
    ]
    lines += ["", "Refused (the broker does not start):", "", "| key | why |", "|---|---|"]
    lines += [_reason_row(name, reason) for name, reason in REFUSED.items()]
    return "\n".join(lines) + "\n"


def _row(setting: Setting[Any]) -> str:
    default = "–" if setting.default_text is None else f"`{setting.default_text}`"
    cells = (f"`{setting.name}`", setting.kind.name.lower(), default, setting.choices, setting.mode.value, setting.doc)
    return "| " + " | ".join(cells) + " |"


def _reason_row(name: str, reason: str) -> str:
    return f"| `{name}{'*' if name.endswith('.') else ''}` | {reason} |"
