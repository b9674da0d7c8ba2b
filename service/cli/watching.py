"""Commands that look at a cluster again and again: a broker that goes away is what they are watched for."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable

import click

from service.cli.connect import listen
from service.cli.output import Output, visible
from service.client.cluster import Cluster
from service.client.failures import ClientFailure, FailureKind

ANSWER_S = 1.0
"""How long each look waits for brokers to answer at all."""
LASTING = (FailureKind.NOT_FOUND, FailureKind.NOT_AUTHORIZED)
"""What another look would find as well."""


async def look_again(look: Callable[[], Awaitable[list[str]]], *, every_s: float, looks: int | None = None) -> None:
    """Look until interrupted, or so often. A look shows what it finds and returns what it could not tell. If one fails
    after the first, that is said, and the next may find the cluster answering.
    """
    for number in itertools.count(1):
        try:
            notes = await look()
        except ClientFailure as failure:
            if number == 1 or failure.kind in LASTING:
                raise
            notes = [failure.message]
        for note in notes:
            click.echo(f"oncelog: {visible(note)}", err=True)
        if number == looks:
            return
        await asyncio.sleep(every_s)


async def answering(cluster: Cluster) -> tuple[list[int], list[str]]:
    """The brokers that answer, and what is to be said of the others."""
    await listen(cluster, min(cluster.timeout_s, ANSWER_S))
    notes = [f"{each.message}; what it leads and coordinates is left out" for each in cluster.silent.values()]
    return [node for node in await cluster.nodes() if node not in cluster.silent], notes


def clear(output: Output) -> None:
    if sys.stdout.isatty() and output in (Output.TABLE, Output.WIDE):
        click.clear()
