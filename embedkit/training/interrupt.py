"""Graceful stop: SIGTERM and Ctrl-C become a request that the loop honours between two steps."""

import os
import signal
import time
from types import FrameType
from typing import Self


class StopRequest:
    """Context manager that records that the process was asked to stop.

    The first signal only sets ``asked``; a later one has its usual effect, so that a second Ctrl-C
    ends the process at once. Signals within ``_ONE_REQUEST`` seconds of the first count as the same
    request, since torchrun forwards to every rank what the terminal or scheduler has sent to all.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)
    _ONE_REQUEST = 2.0
    """Seconds after the first signal in which further ones count as the same request."""

    def __init__(self) -> None:
        self.asked = False
        self._since = 0.0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > self._ONE_REQUEST:
            self.__exit__()
            os.kill(os.getpid(), number)
