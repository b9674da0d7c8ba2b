"""The simulation of one test keeps clear of the garbage of others."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def what_other_tests_left_is_not_looked_at() -> Iterator[None]:
    """Every world that ends collects its garbage. Beside the objects of thousands of tests that takes half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
