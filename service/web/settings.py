"""The settings of topics, groups, and brokers: shown with their version, and changed.

What always holds: with `If-Match`, settings change only if they are of that version when the change is committed. Of
two changes of one version one is refused.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from service.cluster.config_commands import Operation, ResourceType, version_of
from service.web.answers import as_json, path_int, query_flag, read_json
from service.web.forwarding import forward
from service.web.gateway import Gateway
from service.web.problems import Problem, of_error
from service.web.routing import Handler, Route, flag, header
from service.web.topics import is_dry
from service.web.unpacking import body_of
from service.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestAlterableConfig,
    IncrementalAlterConfigsRequestAlterConfigsResource,
)


class ConfigOut(msgspec.Struct):
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    documentation: str | None = None


class Configs(msgspec.Struct):
    configs: dict[str, ConfigOut]


class Patch(msgspec.Struct, forbid_unknown_fields=True):
    configs: dict[str, str | None]
    """The new settings; null means the default."""


_patches = msgspec.json.Decoder(Patch)


def _name(gateway: Gateway, request: web.Request, kind: ResourceType) -> str:
    match kind:
        case ResourceType.TOPIC:
            return gateway.topic(request.match_info["topic"]).name
        case ResourceType.GROUP:
            return request.match_info["group"]
        case _:
            return str(path_int(request, "broker")) if "broker" in request.match_info else ""


async def _elsewhere(
    gateway: Gateway, request: web.Request, kind: ResourceType, name: str, body: bytes
) -> web.StreamResponse | None:
    """The answer of the broker whose settings they are; None if they are known here."""
    if kind != ResourceType.BROKER or not name or int(name) == gateway.node_id:
        return None
    if int(name) not in gateway.image.brokers:
        raise Problem("not-found", f"there is no broker {name} now")
    return await forward(gateway, int(name), request, body)


def _shows(kind: ResourceType) -> Handler:
    async def configs(gateway: Gateway, request: web.Request) -> web.StreamResponse:
        name = _name(gateway, request, kind)
        if (answer := await _elsewhere(gateway, request, kind, name, b"")) is not None:
            return answer
        version = version_of(gateway.image, kind, name)  # before the settings: these may be newer, and never older
        resource = DescribeConfigsResource(kind, name, None)
        asked = DescribeConfigsRequest([resource], include_documentation=query_flag(request, "documentation"))
        (result,) = (await gateway.ask(gateway.node_id, asked)).results
        if result.error_code:
            raise of_error(result.error_code, result.error_message)
        found = {
            each.name: ConfigOut(
                *(each.value, each.config_source, each.read_only, each.is_sensitive), each.documentation or None
            )
            for each in result.configs
        }
        return as_json(Configs(found), headers={"ETag": f'"{version}"'})

    configs.__name__ += f"_of_{kind.name.lower()}"
    return configs


def _changes(kind: ResourceType) -> Handler:
    async def alter(gateway: Gateway, request: web.Request) -> web.StreamResponse:
        name, body = _name(gateway, request, kind), await body_of(request)
        patch = read_json(body, _patches)
        if (answer := await _elsewhere(gateway, request, kind, name, body)) is not None:
            return answer
        changes = [
            IncrementalAlterConfigsRequestAlterableConfig(
                setting, Operation.DELETE if value is None else Operation.SET, value
            )
            for setting, value in patch.configs.items()
        ]
        resource = IncrementalAlterConfigsRequestAlterConfigsResource(kind, name, changes)
        asked = IncrementalAlterConfigsRequest([resource], is_dry(request))
        (result,) = (await gateway.alter_configs(asked, _versions(request))).responses
        if result.error_code:
            raise of_error(result.error_code, result.error_message, writing=True)
        return web.Response(status=204)

    alter.__name__ += f"_of_{kind.name.lower()}"
    return alter


def _versions(request: web.Request) -> frozenset[str] | None:
    """The versions that the client accepts; None if any will do. A weak one is none of ours."""
    if "If-Match" not in request.headers:
        return None
    given = {each.strip() for each in ",".join(request.headers.getall("If-Match")).split(",")}
    return (
        None
        if "*" in given
        else frozenset(each[1:-1] for each in given if len(each) > 1 and each[0] == each[-1] == '"')
    )


def _routes(path: str, kind: ResourceType, whose: str, tag: str) -> tuple[Route, Route]:
    return (
        Route("GET", path, _shows(kind), f"All settings {whose}; the ETag is the version of those that were set.", tag,
              answer=Configs, problems=(400, 404, 503), parameters=(flag("documentation", "With what each means."),),
              headers={"ETag": "The version, for `If-Match`."}),
        Route("PATCH", path, _changes(kind), f"Change settings {whose}; null brings the default back.", tag, body=Patch,
              status=204, problems=(400, 404, 412, 422, 503, 504), parameters=(
                  flag("validate_only", "Only say whether it could be done."),
                  header("If-Match", "Only if the settings are of this version."))),
    )  # fmt: skip


ROUTES = (
    *_routes("/v1/topics/{topic}/configs", ResourceType.TOPIC, "of a topic", "topics"),
    *_routes("/v1/groups/{group}/configs", ResourceType.GROUP, "of a group, which need not be there yet", "groups"),
    *_routes("/v1/brokers/{broker}/configs", ResourceType.BROKER, "of a broker", "cluster"),
    *_routes("/v1/cluster/configs", ResourceType.BROKER, "that were set for all brokers together", "cluster"),
)
