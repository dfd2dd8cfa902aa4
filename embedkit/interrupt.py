"""A polite end: SIGTERM and Ctrl-C become a request that the loop honours between two steps."""

import signal
from types import FrameType
from typing import Self


class StopRequest:
    """Remembers that the process was asked to stop, while used as a context manager.

    The first signal only sets ``asked``; a second one acts as it does without this class, so that
    a user who insists is obeyed at once.
    """

    _SIGNALS = (signal.SIGTERM, signal.SIGINT)

    def __init__(self) -> None:
        self.asked = False
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        self._previous = {each: signal.signal(each, self._note) for each in self._SIGNALS}
        return self

    def __exit__(self, *_error: object) -> None:
        self._restore()

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for each, handler in self._previous.items():
            signal.signal(each, handler)
