"""The branches of every root, by what is to become of them. It is a fold over the records: a replay makes the same.

A root's record alone commits the sealed branches of its token. Their own records may follow later, even after a crash:
`undone` has the roots whose branches have not all followed yet. Until one has, it is taken for committed (`decided`).
"""

from typing import TypeVar

from txn.branches import branch_of, is_open, is_sealed, reusable
from txn.decisions import commit_branch
from txn.states import NO_TOKEN, Txn

Key = TypeVar("Key", str, tuple[str, int])


class BranchIndex:
    def __init__(self) -> None:
        self.all: dict[str, dict[str, None]] = {}
        self.open: dict[str, dict[str, None]] = {}
        self.finished: dict[str, dict[str, None]] = {}
        """Those whose producer ids can be taken over."""
        self.undone: dict[str, Txn] = {}
        """Roots with branches that they have committed, and that are not moved yet."""
        self._sealed: dict[tuple[str, int], dict[str, None]] = {}
        self._decided: dict[str, Txn] = {}

    def follow(self, transactional_id: str, txn: Txn | None) -> None:
        """Take up an id as it is now; None: it is forgotten."""
        branch = branch_of(transactional_id)
        if branch is None:
            if txn is not None and txn.decided_token != NO_TOKEN:
                self._decided[transactional_id] = txn
            else:
                self._decided.pop(transactional_id, None)
            self._look(transactional_id)
            return
        _enter(self.all, branch.root, transactional_id, present=txn is not None)
        _enter(self.open, branch.root, transactional_id, present=txn is not None and is_open(txn))
        _enter(self.finished, branch.root, transactional_id, present=txn is not None and reusable(txn))
        is_ready = txn is not None and is_open(txn) and is_sealed(txn)
        _enter(self._sealed, (branch.root, branch.token), transactional_id, present=is_ready)
        self._look(branch.root)

    def sealed(self, root: str, token: int) -> dict[str, None]:
        """The open branches of this token whose writers have sealed them."""
        return self._sealed.get((root, token), {})

    def decided(self, txn: Txn) -> Txn:
        """The transaction as its root has decided it."""
        branch = branch_of(txn.transactional_id) if self.undone else None
        root = None if branch is None else self.undone.get(branch.root)
        if root is None or txn.transactional_id not in self.sealed(root.transactional_id, root.decided_token):
            return txn
        return commit_branch(txn, wall_ms=root.updated_ms)

    def _look(self, root: str) -> None:
        txn = self._decided.get(root)
        if txn is not None and (root, txn.decided_token) in self._sealed:
            self.undone[root] = txn
        else:
            self.undone.pop(root, None)


def _enter(index: dict[Key, dict[str, None]], key: Key, transactional_id: str, *, present: bool) -> None:
    if present:
        index.setdefault(key, {})[transactional_id] = None
    elif key in index:
        index[key].pop(transactional_id, None)
        if not index[key]:
            del index[key]
