"""A polite end: SIGTERM and Ctrl-C become a request that the loop honours between two steps."""

import os
import signal
import time
from types import FrameType
from typing import Self


class StopRequest:
    """Remembers that the process was asked to stop, while used as a context manager.

    The first signal only sets ``asked``; one that comes later acts as it does without this class,
    so that a user who insists is obeyed at once. Those of the first seconds are the same request:
    torchrun hands on to every rank what terminal or scheduler have sent to all of them.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)
    _ONE_REQUEST = 2.0
    """Seconds."""

    def __init__(self) -> None:
        self.asked = False
        self._since = 0.0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        self._previous = {each: signal.signal(each, self._note) for each in self._SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
        elif time.monotonic() - self._since > self._ONE_REQUEST:
            self._restore()
            os.kill(os.getpid(), number)

    def _restore(self) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
