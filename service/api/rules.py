"""Who may ask what: a rule for each API of the wire (`routes.py`) and for each operation of HTTP (the tables of
routes in `service/web`). A request passes its rule before anything is done for it. What HTTP asks of the wire's
handlers passes their rules too, as its client's question.

No listener asks for proof yet, so every session is ANONYMOUS, and every rule lets it pass. A principal that was proven
may ask what any client may; for what brokers ask of each other it would have to be a broker's, and none is yet.
"""

from collections.abc import Callable
from typing import Any

from service.broker.session import ANONYMOUS, Session
from service.wire.messages import AddPartitionsToTxnRequest, FetchRequest

Rule = Callable[[Session, Any], bool]
"""Whether the session may ask this: a request of the wire, or what the path of an HTTP request names."""


def anybody(session: Session, request: Any) -> bool:
    return True


def brokers(session: Session, request: Any) -> bool:
    """What brokers ask of each other, and Kafka's own tools."""
    return session.principal is ANONYMOUS


def readers_and_brokers(session: Session, request: FetchRequest) -> bool:
    """Anybody may read. A broker copies what is not committed yet, and tells by its questions what it holds."""
    copies = request.replica_id >= 0 or (request.replica_state is not None and request.replica_state.replica_id >= 0)
    return not copies or brokers(session, request)


def producers_and_brokers(session: Session, request: AddPartitionsToTxnRequest) -> bool:
    """A producer names its own transaction. Brokers name any, several at once, when producers write to them."""
    return not request.transactions or brokers(session, request)
