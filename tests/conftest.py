"""What all tests need."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Ctrl-C is heard also where the tests were started in the background of a shell, which ignores it for them.

    The processes that tests start inherit that, and Headway leaves an ignored signal ignored.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
