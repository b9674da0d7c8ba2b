"""Brokers of tests have no HTTP API unless a test asks for one: the ports of several would meet."""

import os

os.environ.setdefault("ONCELOG_HTTP_LISTENERS", "")
