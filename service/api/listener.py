"""One listener of a broker. Its clients are told addresses of the same listener, which they can reach. It finds out who
each client is.
"""

from collections.abc import Callable
from ssl import SSLContext
from typing import NamedTuple

from service.broker.session import ANONYMOUS, Principal
from service.net.door import PeerInfo


def no_proof(peer: PeerInfo) -> Principal:
    return ANONYMOUS


class Listener(NamedTuple):
    name: str
    authenticate: Callable[[PeerInfo], Principal] = no_proof
    """Finds out who the client of a connection is."""
    tls: SSLContext | None = None
    """The TLS settings of its connections; None: they are not encrypted."""
