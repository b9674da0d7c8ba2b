"""Who may ask what: a rule for each API of the wire (`routes.py`) and for each operation of HTTP (the tables of routes
in `service/web`). A request is checked by its rule before anything is done for it. If HTTP calls a handler of the wire,
that handler's rule is checked for the HTTP client, too.

No listener asks for proof of identity yet. So every session is ANONYMOUS, and passes every rule. A principal that was
proven may ask what any client may. The requests of brokers would need a proven broker's principal, and there is none
yet.
"""

from collections.abc import Callable
from typing import Any

from service.broker.session import ANONYMOUS, Session
from service.wire.messages import AddPartitionsToTxnRequest, FetchRequest

Rule = Callable[[Session, Any], bool]
"""Whether the session may ask this. The second argument is a request of the wire, or the names in the path of an HTTP
request.
"""


def anybody(session: Session, request: Any) -> bool:
    return True


def brokers(session: Session, request: Any) -> bool:
    """For requests that only brokers and Kafka's own tools send."""
    return session.principal is ANONYMOUS


def readers_and_brokers(session: Session, request: FetchRequest) -> bool:
    """Every client may read. Only a broker may copy: it reads what is not committed yet, and its requests tell what it
    holds.
    """
    copies = request.replica_id >= 0 or (request.replica_state is not None and request.replica_state.replica_id >= 0)
    return not copies or brokers(session, request)


def producers_and_brokers(session: Session, request: AddPartitionsToTxnRequest) -> bool:
    """A producer may name its own transaction. Brokers may name any, and several at once, when producers write to
    them.
    """
    return not request.transactions or brokers(session, request)
