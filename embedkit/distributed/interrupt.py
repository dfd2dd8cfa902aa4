"""Graceful stop: SIGTERM and Ctrl-C become a request, which work honours when it can."""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Self


class StopRequest:
    """Context manager that records that the process was asked to stop.

    The first signal sets ``asked``, and raises ``KeyboardInterrupt`` with its number if ``at_once``
    says that the request is to be honoured now. A later one has its usual effect, so that a second
    Ctrl-C ends the process. Signals within ``_ONE_REQUEST`` seconds of the first count as the same
    request, since torchrun forwards to every rank what the terminal or scheduler has sent to all.

    Only the main thread of a process gets signals; in other threads nothing is ever asked.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)
    _ONE_REQUEST = 2.0
    """Seconds after the first signal in which further ones count as the same request."""

    def __init__(self, at_once: Callable[[], bool] = lambda: False) -> None:
        self.asked = False
        self.signal = signal.SIGINT
        """The signal that asked."""
        self._at_once, self._since = at_once, 0.0
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def repeat(self) -> None:
        """Raise the ``KeyboardInterrupt`` again, if there was one, which a library may swallow."""
        if self.asked and self._at_once():
            raise KeyboardInterrupt(self.signal)

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if not self.asked:
            self.asked, self._since = True, time.monotonic()
            self.signal = signal.Signals(number)
            if self._at_once():
                raise KeyboardInterrupt(number)
        elif time.monotonic() - self._since > self._ONE_REQUEST:
            self.__exit__()
            os.kill(os.getpid(), number)
