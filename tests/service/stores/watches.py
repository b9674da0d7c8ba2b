"""What a session keeps of watches that are over."""

from collections.abc import AsyncGenerator, Sequence
from typing import cast

from service.stores.port import Event, StoreSession
from service.stores.watching import ChangeWatcher


async def assert_watches_are_not_kept(session: StoreSession, watchers: Sequence[ChangeWatcher]) -> None:
    """A broker that missed changes watches anew: the holder of the store went on queueing each change for every former
    watch.
    """
    for _ in range(5):
        events = cast(AsyncGenerator[Event, None], session.watch())
        await anext(events)
        assert len(watchers) == 1
        await events.aclose()
    assert list(watchers) == []
