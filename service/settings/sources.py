"""Where a broker's configuration comes from: files, environment, command line.

Later sources win: defaults, then the file (Kafka's `server.properties` or `oncelog.toml`), then the environment
(`KAFKA_…` as Kafka's container images read it, and `ONCELOG_…`), then `-o key=value`. Nothing is checked here;
`BrokerConfig` checks names and values.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from service.settings.broker import BrokerConfig, Given, Origin
from service.settings.setting import ConfigError
from service.settings.unhonoured import is_known

# Variables that Kafka's scripts and images read for themselves: they are not keys of the broker.
NOT_KEYS = ("HEAP_OPTS", "OPTS", "JVM_PERFORMANCE_OPTS", "GC_LOG_OPTS", "LOG4J_OPTS", "LOG4J_LOGGERS", "DEBUG", "HOME")
NOT_KEYS_PREFIXES = ("JMX_", "LOG4J_", "JAVA_", "DEBUG_", "CLUSTER_ID", "VERSION", "SCALA_VERSION")

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY_AND_VALUE = re.compile(r"((?:\\.|[^\s=:\\])*)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)


def load_config(path: Path | None, environment: Mapping[str, str], overrides: Iterable[str] = ()) -> BrokerConfig:
    """The configuration from all sources together. Raises `ConfigError`, which names what can't be read or accepted."""
    given: dict[str, Given] = {}
    if path is not None:
        in_file = read_file(path)
        if in_file and not any(map(is_known, in_file)):
            raise ConfigError(f"{path} is no configuration: none of its keys is one of oncelog's or Kafka's")
        given.update(in_file)
    given.update(read_environment(environment))
    given.update(map(parse_override, overrides))
    return BrokerConfig(given)


def read_file(path: Path) -> dict[str, Given]:
    try:
        content = path.read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8") from error
    if path.suffix != ".toml":
        return {
            name: Given(value, Origin.FILE, f"{path}:{line}")
            for name, (value, line) in parse_properties(content).items()
        }
    try:  # which tells no lines
        return {name: Given(value, Origin.FILE, str(path)) for name, value in flatten_toml(tomllib.loads(content))}
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def parse_properties(content: str) -> dict[str, tuple[str, int]]:
    """Reads Java's properties format: comments; `=`, `:` or white space between key and value; lines continued by a
    backslash; escapes. Each value comes with the number of the line on which it begins.
    """
    settings: dict[str, tuple[str, int]] = {}
    for number, line in _logical_lines(content):
        match = _KEY_AND_VALUE.match(line)
        assert match is not None  # every part of the pattern may be empty
        settings[_unescape(match[1])] = _unescape(match[2]).strip(), number
    return settings


def _logical_lines(content: str) -> Iterator[tuple[int, str]]:
    pending, begins = "", 0
    for number, raw in enumerate(content.splitlines(), 1):
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        begins = begins if pending else number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending += line[:-1]
            continue
        yield begins, pending + line
        pending = ""
    if pending:
        yield begins, pending


def _unescape(value: str) -> str:
    def one(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPES.get(escape, escape)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", one, value)


def flatten_toml(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """`[log.retention] hours = 1` and `"log.retention.hours" = 1` are the same key."""
    for name, value in table.items():
        key = f"{prefix}{name}"
        match value:
            case dict():
                yield from flatten_toml(value, f"{key}.")
            case bool():
                yield key, str(value).lower()
            case list():
                yield key, ",".join(str(item) for item in value)
            case _:
                yield key, str(value)


def read_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """`KAFKA_LOG_RETENTION_MS` is log.retention.ms; `__` stands for `_` and `___` for `-`, as in Kafka's images.
    ONCELOG_ wins over KAFKA_.
    """
    settings: dict[str, Given] = {}
    for prefix in ("KAFKA_", "ONCELOG_"):
        for variable in sorted(environment):
            name = variable.removeprefix(prefix)
            if name == variable or not name or name in NOT_KEYS or name.startswith(NOT_KEYS_PREFIXES):
                continue
            settings[_key_of(name)] = Given(environment[variable], Origin.ENVIRONMENT, variable)
    return settings


def _key_of(name: str) -> str:
    return re.sub("_+", lambda run: {1: ".", 2: "_", 3: "-"}.get(len(run[0]), run[0]), name.lower())


def parse_override(override: str) -> tuple[str, Given]:
    name, separator, value = override.partition("=")
    if not separator or not name.strip():
        raise ConfigError(f"{override!r} is not key=value")
    return name.strip(), Given(value.strip(), Origin.COMMAND_LINE, "the command line")
