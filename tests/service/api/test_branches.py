"""One transaction with many writers, over the wire: what readers see, and what zombies are told."""

import asyncio
from pathlib import Path

import pytest

from service.api import wire_codes
from service.wire.error_codes import ErrorCode
from service.wire.messages import (
    DescribeBranchesRequest,
    DescribeTransactionsRequest,
    EndBranchesRequest,
    EndBranchesResponse,
    NamedBranch,
)
from tests.rules import rule
from tests.service.api.txn_stage import TxnStage, Writer, on_txn_stage, values

NONE = ErrorCode.NONE


async def write_branch(stage: TxnStage, transactional_id: str, value: str, partition: int = 0) -> NamedBranch:
    """All that a task does; what it reports to its driver."""
    writer = Writer(stage, transactional_id)
    assert await writer.init() == NONE
    assert await writer.write("orders", value, partition=partition) == NONE
    answer = await writer.end(commit=True)
    assert answer.error_code == NONE
    return NamedBranch(transactional_id, answer.producer_id, answer.producer_epoch)


async def decide(stage: TxnStage, token: int, *branches: NamedBranch, commit: bool = True) -> EndBranchesResponse:
    return await stage.ask(EndBranchesRequest("clicks", token, commit, list(branches)))


@rule("T", "readers see all that the decision named, at once, and nothing else (over the wire)")
def test_readers_see_what_was_decided(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        first = await write_branch(stage, "clicks::17/part-0", "a", 0)
        second = await write_branch(stage, "clicks::17/part-1", "b", 1)
        await write_branch(stage, "clicks::17/part-1-again", "b twice", 1)
        assert [await values(stage, "orders", partition=index) for index in (0, 1)] == [[], []]
        answer = await decide(stage, 17, first, second)
        assert (answer.error_code, answer.decided_now, answer.last_token) == (NONE, True, 17)
        assert [await values(stage, "orders", partition=index) for index in (0, 1)] == [["a"], ["b"]]

    on_txn_stage(tmp_path, scene)


@rule("T", "a batch that runs again after its decision writes nothing a second time (over the wire)")
def test_a_batch_that_runs_again_changes_nothing(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        zombie = Writer(stage, "clicks::17/zombie")
        await zombie.init()
        await zombie.write("orders", "zombie")
        branch = await write_branch(stage, "clicks::17/part-0", "a")
        await decide(stage, 17, branch)
        again = await decide(stage, 17, branch)
        assert (again.error_code, again.decided_now, again.last_token) == (NONE, False, 17)
        assert await Writer(stage, "clicks::17/part-0-again").init() == ErrorCode.PRODUCER_FENCED
        assert await zombie.write("orders", "more", sequence=1) == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await zombie.end(commit=True)).error_code == ErrorCode.PRODUCER_FENCED
        assert await values(stage, "orders") == ["a"]

    on_txn_stage(tmp_path, scene)


def test_a_branch_that_is_not_ready_is_named_and_nothing_happens(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        ready = await write_branch(stage, "clicks::17/part-0", "a")
        unsealed = Writer(stage, "clicks::17/part-1")
        await unsealed.init()
        await unsealed.write("orders", "b")
        answer = await decide(stage, 17, ready, NamedBranch("clicks::17/part-1"))
        assert answer.error_code == ErrorCode.INVALID_TXN_STATE
        assert answer.error_message == "clicks::17/part-1 is not sealed"
        assert await values(stage, "orders") == []
        described = (await stage.ask(DescribeBranchesRequest(["clicks", "others"]))).roots
        assert [(root.root, root.last_token) for root in described] == [("clicks", -1), ("others", -1)]
        assert described[0].open_branches == ["clicks::17/part-0", "clicks::17/part-1"]
        assert (await decide(stage, 17, commit=False)).error_code == NONE
        assert (await stage.ask(DescribeBranchesRequest(["clicks"]))).roots[0].open_branches == []

    on_txn_stage(tmp_path, scene)


def test_branches_written_by_an_older_protocol_are_decided_alike(tmp_path: Path) -> None:
    async def scene(stage: TxnStage) -> None:
        writer = Writer(stage, "clicks::17/part-0")
        await writer.init()
        await writer.add("orders", 0)
        await writer.write("orders", "a", version=11)
        assert (await writer.end(commit=True, version=4)).error_code == NONE
        late = await writer.write("orders", "elsewhere, after the seal", partition=1, version=12)
        assert late == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await decide(stage, 17, NamedBranch("clicks::17/part-0"))).decided_now
        assert [await values(stage, "orders", partition=index) for index in (0, 1)] == [["a"], []]

    on_txn_stage(tmp_path, scene)


@pytest.mark.parametrize("how", ["in time", "late", "lost"])
def test_a_decision_is_told_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Who is told of a decision does not make it again; so it must be one that a crash does not undo."""

    async def told(stage: TxnStage, branch: str) -> tuple[int, int, int, str]:
        root, txn = await asyncio.gather(
            stage.ask(DescribeBranchesRequest(["clicks"])), stage.ask(DescribeTransactionsRequest([branch]))
        )
        (described,), (state,) = root.roots, txn.transaction_states
        return described.error_code, described.last_token, state.error_code, state.transaction_state

    async def scene(stage: TxnStage) -> None:
        branch = await write_branch(stage, "clicks::17/part-0", "a")
        log = stage.broker.coordination.transactions.shard("clicks").partition.log
        async with log.alone():  # nobody can flush
            deciding = asyncio.ensure_future(decide(stage, 17, branch))
            asking = asyncio.ensure_future(told(stage, branch.transactional_id))
            await asyncio.wait([asking], timeout=0.3)
            assert asking.done() == (how == "late")
            if how == "lost":
                stage.broker.holdings.step_down()
                assert await asking == (ErrorCode.NOT_COORDINATOR, -1, ErrorCode.NOT_COORDINATOR, "")
        answer = await deciding
        if how == "in time":
            assert answer.decided_now
            assert (await asking)[:3] == (NONE, 17, NONE)
        if how == "late":
            late = ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert await asking == (late, -1, late, "")

    monkeypatch.setattr(wire_codes, "PATIENCE_MS", 50 if how == "late" else 60_000)
    on_txn_stage(tmp_path, scene, log_durability="fsync")
