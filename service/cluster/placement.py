"""Chooses the brokers that hold the partitions of a topic: in turn, and spread over racks.

Pure.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final

from log.steps import done_at_once
from service.cluster.image import RegisteredBroker
from service.turns import Steps

PLACED_A_TURN: Final = 500


def place(brokers: Iterable[RegisteredBroker], *, partitions: int, replicas: int, start: int) -> list[tuple[int, ...]]:
    """See `placing`."""
    return done_at_once(placing(brokers, partitions=partitions, replicas=replicas, start=start))


def placing(
    brokers: Iterable[RegisteredBroker], *, partitions: int, replicas: int, start: int
) -> Steps[list[tuple[int, ...]]]:
    """The replicas of each partition, the preferred leader first. There must be at least `replicas` brokers.

    Leaders take turns, beginning with the broker at `start`. The followers of a leader are the brokers after it. With
    every full turn they begin one broker further, so that the partitions of one leader are not all copied to the same
    neighbour. Brokers in racks that have no copy yet go first.
    """
    order = _alternate_racks(brokers)
    assert len(order) >= replicas
    placed = []
    for number in range(partitions):
        if number and number % PLACED_A_TURN == 0:
            yield
        turn, at = divmod(start + number, len(order))
        leader, others = order[at], order[at + 1 :] + order[:at]
        if others:
            shift = turn % len(others)
            others = others[shift:] + others[:shift]
        placed.append(tuple(broker.id for broker in _choose(leader, others, replicas)))
    return placed


def _alternate_racks(brokers: Iterable[RegisteredBroker]) -> list[RegisteredBroker]:
    """The brokers, one of each rack in turn, so that neighbours in the list are in different racks."""
    racks: dict[str | None, deque[RegisteredBroker]] = {}
    for broker in sorted(brokers, key=lambda broker: broker.id):
        racks.setdefault(broker.rack, deque()).append(broker)
    order = []
    while racks:
        for rack in list(racks):
            order.append(racks[rack].popleft())
            if not racks[rack]:
                del racks[rack]
    return order


def _choose(leader: RegisteredBroker, others: list[RegisteredBroker], replicas: int) -> list[RegisteredBroker]:
    chosen, waiting = [leader], list(others)
    used = {leader.rack}
    while len(chosen) < replicas:
        broker = next((one for one in waiting if one.rack not in used), None)
        if broker is None:
            used = set()  # every rack has a copy: begin again
            broker = waiting[0]
        waiting.remove(broker)
        used.add(broker.rack)
        chosen.append(broker)
    return chosen
