"""The loop of tests that run as a broker does, on uvloop."""

import warnings

import uvloop


class Loop(uvloop.Loop):
    """Tells when it is closed what was left open, as uvloop does. Warnings are errors in tests, and one raised while
    uvloop closes its handles leaves that handle open: it would wait for it for ever, past every limit of a test's time.
    """

    def close(self) -> None:
        with warnings.catch_warnings(record=True) as left_open:
            warnings.simplefilter("always")
            super().close()
        for each in left_open:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
