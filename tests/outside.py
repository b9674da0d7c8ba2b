"""Programs that are no Python packages: what is tested with them is skipped where they are missing, and says so."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

FROM = {
    "promtool": "prometheus",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "amtool": "prometheus-alertmanager",
    "kcat": "kcat",
    "java": "default-jre-headless",
    "javac": "default-jdk-headless",
    "mvn": "maven",
    "openssl": "openssl",
    "cc": "gcc libc6-dev",
    "curl": "curl",
    "jq": "jq",
    "node": "nodejs",
    "go": "golang-go",
    "stunnel": "stunnel4",
    "mount": "mount",
    "systemd-analyze": "systemd",
}
"""Debian packages."""


def missing(*programs: str) -> str | None:
    """Why what needs these programs can't run here, or None."""
    lacking = [program for program in programs if shutil.which(program) is None]
    if not lacking:
        return None
    packages = " ".join(FROM[program] for program in lacking)
    return f"no {' and no '.join(lacking)} on this machine (Debian: apt install {packages})"


def missing_java() -> str | None:
    """Why Spark can't run here, or None."""
    return None if os.environ.get("JAVA_HOME") else missing("java")


def needs(*programs: str) -> pytest.MarkDecorator:
    import pytest  # not above: what runs in an environment of its own, with Spark alone, asks `missing` too

    return pytest.mark.skipif(missing(*programs) is not None, reason=missing(*programs) or "")
