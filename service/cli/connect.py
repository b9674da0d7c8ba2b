"""How a command reaches a cluster: the options that say where it is, the loop it runs in, names for completion."""

from __future__ import annotations

import asyncio
import errno
import functools
import math
import os
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from service.settings.setting import MAX_INT

if TYPE_CHECKING:
    from service.client.cluster import Cluster

P = ParamSpec("P")
T = TypeVar("T")


class Seconds(click.FloatRange):
    """A time that can be waited for, and be told to a broker in milliseconds."""

    name = "seconds"

    def __init__(self, at_least: float) -> None:
        super().__init__(min=at_least, max=MAX_INT // 1000)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = super().convert(value, param, ctx)
        if math.isnan(seconds):  # which lies in every range
            self.fail(f"{value!r} is no time", param, ctx)
        return seconds


# The shell completes at every press of the tab key: no names are better than a shell that hangs.
COMPLETION_TIMEOUT_S = 1.0


def with_cluster(body: Callable[Concatenate[Cluster, P], Awaitable[None]]) -> Callable[..., None]:
    """Make a command of `async def body(cluster, …)`, with the options that every such command has."""

    @click.option(
        "-b",
        "--bootstrap",
        envvar="ONCELOG_BOOTSTRAP",
        default="localhost:9092",
        show_default=True,
        metavar="HOST:PORT",
        help="A broker of the cluster, or several, with commas between. Also from ONCELOG_BOOTSTRAP.",
    )
    @click.option(
        "--timeout",
        "timeout_s",
        type=Seconds(at_least=0.001),
        default=10.0,
        show_default=True,
        metavar="SECONDS",
        help="How long a broker may take.",
    )
    @functools.wraps(body)
    def command(bootstrap: str, timeout_s: float, **arguments: Any) -> None:
        async def run(cluster: Cluster) -> None:
            await body(cluster, **arguments)  # type: ignore[call-arg]

        run_with_cluster(bootstrap, timeout_s, run)

    return command


async def listen(cluster: Cluster, within_s: float) -> None:
    """Find out which brokers are silent, all at once, so that nothing else waits for them one after the other."""
    from service.client.failures import ClientFailure, FailureKind
    from service.wire.messages import MetadataRequest

    async def silence(node: int) -> ClientFailure | None:
        try:
            async with asyncio.timeout(within_s):
                await cluster.ask(MetadataRequest(topics=[]), node=node)
        except TimeoutError:
            why = f"no answer within {within_s:g} s"
        except ClientFailure as failure:
            why = failure.message
        else:
            return None
        return ClientFailure(f"broker {node} does not answer: {why}", FailureKind.UNREACHABLE)

    cluster.silent = {}
    nodes = await cluster.nodes()
    found = await asyncio.gather(*(silence(node) for node in nodes))
    cluster.silent = {node: failure for node, failure in zip(nodes, found, strict=True) if failure is not None}


def run_with_cluster(bootstrap: str, timeout_s: float, body: Callable[[Cluster], Awaitable[T]]) -> T:
    """Run `body` with a cluster, in a loop of its own."""
    from service.cli.failures import CliError, Exit
    from service.client.cluster import Cluster
    from service.client.failures import ClientFailure
    from service.client.pool import parse_addresses

    try:
        addresses = parse_addresses(bootstrap)
    except ValueError:
        raise click.BadParameter(f"{bootstrap!r} is not HOST:PORT", param_hint="--bootstrap") from None

    async def main() -> T:
        async with Cluster(addresses, client_id="oncelog-cli", timeout_s=timeout_s) as cluster:
            return await body(cluster)

    try:
        return asyncio.run(main())
    except ClientFailure as failure:
        if failure.message.endswith(os.strerror(errno.ECONNREFUSED)):  # nothing listens there
            failure.message += "; oncelog serve starts a broker, -b HOST:PORT says where one is"
        raise CliError.of(failure) from None
    except UnicodeEncodeError as error:
        raise CliError(f"{error.object!a} is not text in UTF-8", Exit.USAGE) from None
    except (struct.error, OverflowError):
        raise CliError("a number is larger than the protocol has room for", Exit.USAGE) from None


def _completed(names: Callable[[Cluster], Awaitable[list[str]]]) -> Callable[..., list[CompletionItem]]:
    def complete(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from service.cli.failures import CliError

        bootstrap = ctx.params.get("bootstrap") or "localhost:9092"
        try:
            found = run_with_cluster(bootstrap, COMPLETION_TIMEOUT_S, names)
        except (CliError, click.BadParameter):
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]

    return complete


async def _topic_names(cluster: Cluster) -> list[str]:
    return sorted(topic.name for topic in await cluster.metadata(None) if topic.name and not topic.is_internal)


async def _group_names(cluster: Cluster) -> list[str]:
    from service.client.groups import list_groups

    return [group.group_id for group in await list_groups(cluster)]


complete_topic = _completed(_topic_names)
complete_group = _completed(_group_names)
