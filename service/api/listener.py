"""One listener of a broker: by its name clients are told addresses that they can reach, and it says who they are."""

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
    """Who has connected."""
    tls: SSLContext | None = None
    """What encrypts its connections; None: nothing does."""
