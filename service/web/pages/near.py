"""The cluster as pages ask it: by the same questions as other clients, but this broker is asked without
a connection.
"""

from __future__ import annotations

from typing import Any, TypeVar

from service.web.gateway import Gateway, Inside
from service.wire.base import Request, Struct
from service.wire.messages import FetchResponse

R = TypeVar("R", bound=Struct)

TIMEOUT_S = 3.0
"""The longest time to wait for an answer. A page says what it does not know rather than wait long."""


class NearCluster(Inside):
    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, TIMEOUT_S)

    async def ask(
        self, request: Request[R], *, node: int | None = None, wait_s: float = 0.0, version: int | None = None
    ) -> R:
        answer = await super().ask(request, node=node, wait_s=wait_s, version=version)
        if isinstance(answer, FetchResponse):
            _read_slices(answer)
        return answer


def _read_slices(answer: FetchResponse) -> None:
    """This broker answers with slices of its files: read them."""
    for topic in answer.responses:
        for data in topic.partitions:
            records: Any = data.records
            if isinstance(records, list):
                data.records = b"".join(part if isinstance(part, bytes) else part.read() for part in records)
