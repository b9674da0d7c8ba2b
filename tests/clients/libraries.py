"""kafka-python without the warning it raises while it is imported."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

with warnings.catch_warnings():
    # It reads its schemas through an importlib function that Python 3.11 deprecated and 3.13 took back.
    warnings.simplefilter("ignore", DeprecationWarning)
    kafka: Any = importlib.import_module("kafka")
