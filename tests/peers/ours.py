"""Our broker as a user starts it: `oncelog serve` in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.peers.process import HERE, QUICK_SETTINGS, ROOT, BrokerProcess, Place


class Oncelog(BrokerProcess):
    """`oncelog serve` of this work tree, or of another one (the benchmark's previous commit)."""

    name = "oncelog"

    def __init__(
        self,
        folder: Path,
        *,
        settings: Mapping[str, str] = QUICK_SETTINGS,
        port: int | None = None,
        place: Place = HERE,
        tree: Path = ROOT,
    ) -> None:
        super().__init__(folder, settings=settings, port=port, place=place)
        self._tree = tree

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def command(self) -> list[str]:
        overrides = [part for name, value in self.settings.items() for part in ("-o", f"{name}={value}")]
        serve = [sys.executable, "-m", "service.cli", "serve"]
        return [*serve, "--data", str(self.data), "--host", self.place.host, "--port", str(self.port), *overrides]

    def environment(self) -> dict[str, str]:
        # The work tree's own code, whatever is installed: the benchmark starts two commits side by side.
        return {**super().environment(), "PYTHONPATH": str(self._tree)}
