"""What can go wrong, and when: each fault waits for its moment on the wire, strikes, and tells what it did.

The moments are those at which a crash has a different outcome: before Spark has written a batch's offsets down, while
its tasks write, when they have sealed what they wrote, when the broker has decided but the driver does not know,
when the driver knows but has not written it down. A fault returns None when its moment did not come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from confluent_kafka import KafkaException

from service.wire.messages import EndBranchesRequest, EndTxnRequest, ListOffsetsRequest, ProduceRequest
from tests.faults.proxy import Fault
from tests.spark.chaos.world import World
from tests.spark.cluster import kill_all

HELD_SECONDS = 3.0

Strike = Callable[[World], Awaitable[str | None]]


async def driver_before_the_offset_log(world: World) -> str | None:
    caught = await world.catch(ListOffsetsRequest, Fault.HOLD)
    if caught is None:
        return None
    world.driver.kill()
    caught.lose()
    return "driver killed while it asked where the topic ends"


async def driver_during_writes(world: World) -> str | None:
    """What the tasks had sent arrives later, when nobody waits for it any more."""
    caught = await world.catch(ProduceRequest, Fault.HOLD)
    if caught is None:
        return None
    world.driver.kill()
    await asyncio.sleep(world.chance.uniform(0, HELD_SECONDS))
    caught.release()
    return "driver killed while a task wrote; the write arrived later"


async def driver_after_a_write(world: World) -> str | None:
    caught = await world.catch(ProduceRequest, Fault.WATCH)
    if caught is None:
        return None
    await caught.answer()
    world.driver.kill()
    return "driver killed when a task had written"


async def driver_after_a_seal(world: World) -> str | None:
    caught = await world.catch(EndTxnRequest, Fault.WATCH, where=lambda message: bool(message.committed))
    if caught is None:
        return None
    await caught.answer()
    world.driver.kill()
    return "driver killed when a task had sealed its branch"


async def driver_before_the_decision(world: World) -> str | None:
    caught = await world.catch(EndBranchesRequest, Fault.HOLD)
    if caught is None:
        return None
    world.driver.kill()
    caught.lose()
    return f"driver killed before the decision on batch {caught.message.token} reached the broker"


async def decision_arrives_late(world: World) -> str | None:
    """The driver is dead when its last word reaches the broker; the next driver may be at work already."""
    caught = await world.catch(EndBranchesRequest, Fault.HOLD)
    if caught is None:
        return None
    world.driver.kill()
    await asyncio.sleep(world.chance.uniform(0, HELD_SECONDS))
    caught.release()
    return f"driver killed; its decision on batch {caught.message.token} arrived after its death"


async def driver_without_the_answer(world: World) -> str | None:
    caught = await world.catch(EndBranchesRequest, Fault.SWALLOW_ANSWER)
    if caught is None:
        return None
    await caught.answer()
    world.driver.kill()
    return f"batch {caught.message.token} decided, driver killed before it knew"


async def driver_before_the_commit_log(world: World) -> str | None:
    caught = await world.catch(EndBranchesRequest, Fault.WATCH)
    if caught is None:
        return None
    await caught.answer()
    world.driver.kill()
    written_down = (world.driver.checkpoint / "commits" / str(caught.message.token)).exists()
    known = "after" if written_down else "before"
    return f"batch {caught.message.token} decided, driver killed {known} it wrote that down"


async def answer_lost(world: World) -> str | None:
    """Nobody dies: the connection breaks when the decision is made."""
    caught = await world.catch(EndBranchesRequest, Fault.LOSE_ANSWER)
    if caught is None:
        return None
    await caught.answer()
    return f"batch {caught.message.token} decided, the answer lost on its way"


async def broker_between_decision_and_answer(world: World) -> str | None:
    caught = await world.catch(EndBranchesRequest, Fault.SWALLOW_ANSWER)
    if caught is None:
        return None
    await caught.answer()
    await world.restart_broker()
    return f"batch {caught.message.token} decided, broker killed before it could tell"


async def broker_before_the_decision(world: World) -> str | None:
    caught = await world.catch(EndBranchesRequest, Fault.HOLD)
    if caught is None:
        return None
    await world.restart_broker()
    caught.lose()
    return f"broker killed just before the decision on batch {caught.message.token} reached it"


async def broker_during_writes(world: World) -> str | None:
    caught = await world.catch(ProduceRequest, Fault.HOLD)
    if caught is None:
        return None
    await world.restart_broker()
    caught.lose()
    return "broker killed while a task wrote"


async def broker_any_time(world: World) -> str | None:
    await world.restart_broker()
    return "broker killed at random"


async def driver_any_time(world: World) -> str | None:
    world.driver.kill()
    return "driver killed at random"


async def executor_any_time(world: World) -> str | None:
    executors = world.cluster.executors()
    if not executors:
        return None
    kill_all([world.chance.choice(executors)])
    return f"one of {len(executors)} executors killed"


async def executor_during_writes(world: World) -> str | None:
    caught = await world.catch(ProduceRequest, Fault.WATCH)
    if caught is None:
        return None
    told = await executor_any_time(world)
    return told and f"{told} while a task wrote"


async def a_write_is_held(world: World) -> str | None:
    """Long enough for Spark to copy the task; the held write arrives when the copy may have won."""
    caught = await world.catch(ProduceRequest, Fault.HOLD)
    if caught is None:
        return None
    await asyncio.sleep(2 * HELD_SECONDS)
    caught.release()
    return f"a task's write held for {2 * HELD_SECONDS:.0f} s"


async def partitions_are_added(world: World) -> str | None:
    """While a task writes: what was planned keeps its places."""
    caught = await world.catch(ProduceRequest, Fault.HOLD)
    if caught is None:
        return None
    growing = world.chance.choice(world.growing)
    try:
        await asyncio.to_thread(growing.grow)
    except KafkaException:
        return None
    finally:
        caught.release()
    return f"{growing.topic} has {growing.counts[-1]} partitions now"


FOR_EVERY_SINK: tuple[Strike, ...] = (
    driver_before_the_offset_log,
    driver_during_writes,
    driver_after_a_write,
    broker_during_writes,
    broker_any_time,
    driver_any_time,
    executor_any_time,
    executor_during_writes,
    a_write_is_held,
    partitions_are_added,
)
FOR_DECISIONS: tuple[Strike, ...] = (
    driver_after_a_seal,
    driver_before_the_decision,
    decision_arrives_late,
    driver_without_the_answer,
    driver_before_the_commit_log,
    answer_lost,
    broker_between_decision_and_answer,
    broker_before_the_decision,
)
"""Only a sink that decides has these moments. Another one is struck while it writes instead."""
