"""ListTransactions, versions 0 to 2 (1: open for longer than a time, 2: ids by pattern): the transactional ids that
this broker coordinates. If it can't name all of them now, it names none and says so: a transaction that no coordinator
has open counts as one that hangs.
"""

from service.api.wire_codes import Transactions
from service.broker.session import Session
from service.cluster.metadata import ClusterMetadata
from service.groups.regex import MATCHED_AT_ONCE, BoundedRegex, InvalidRegex
from service.ports import Env
from service.turns import NAMED_A_TURN, Turn, breathe, in_turns
from service.wire.codec import RequestHeader
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    ListTransactionsResponseTransactionState,
)
from txn.states import State, Txn

STATES = {state.label: state for state in State}
LOOKED_AT_ONCE = 1_000
STEPS_OF_A_LOOK = MATCHED_AT_ONCE // LOOKED_AT_ONCE


async def handle(
    transactions: Transactions,
    metadata: ClusterMetadata,
    env: Env,
    session: Session,
    header: RequestHeader,
    request: ListTransactionsRequest,
) -> ListTransactionsResponse:
    if not metadata.in_session:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
    shards = list(transactions.shards())
    if not all(shard.loaded for shard in shards) or transactions.not_ready(metadata.broker_id):
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        text = request.transactional_id_pattern
        pattern = BoundedRegex(text, of_topics=False) if text else None
    except InvalidRegex:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION)
    labels = request.state_filters
    unknown = [label async for label in in_turns(labels, NAMED_A_TURN) if label not in STATES]
    if labels and len(unknown) == len(labels):
        return ListTransactionsResponse(unknown_state_filters=unknown)
    wanted_states = dict.fromkeys([STATES[label] async for label in in_turns(labels, NAMED_A_TURN) if label in STATES])
    wanted_producers = dict.fromkeys(request.producer_id_filters)

    def is_wanted(txn: Txn, now_ms: int) -> bool:
        return (
            (not wanted_states or txn.state in wanted_states)
            and (not wanted_producers or txn.producer_id in wanted_producers)
            # As in Kafka, an id that has had no transaction yet counts as begun before all others.
            and (request.duration_filter < 0 or now_ms - txn.started_ms > request.duration_filter)
            and (pattern is None or pattern.matches(txn.transactional_id))
        )

    found: list[ListTransactionsResponseTransactionState] = []
    turn = Turn(MATCHED_AT_ONCE)
    for shard in shards:
        for txn in list(shard.machine.all()):
            if turn.is_over(STEPS_OF_A_LOOK if pattern is None else pattern.steps(txn.transactional_id)):
                await breathe()
            if is_wanted(txn, env.clock.wall_ms()):
                state = ListTransactionsResponseTransactionState(txn.transactional_id, txn.producer_id, txn.state.label)
                found.append(state)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)
